"""The notebooks, as Markdown: their text, their code, and what it printed and drew.

The outputs are those that the files hold: nothing is run for the site, and no Jupyter is needed. That cells
still print the same is held by `tests/examples/test_notebooks.py`.
"""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def sources() -> dict[str, tuple[Path, str]]:
    """The notebooks with their text as Markdown, by the files of the site that they become."""
    return {f"notebooks/{path.stem}.md": (path, _page(path)) for path in NOTEBOOKS}


def index() -> str:
    """The list of all notebooks."""
    lines = [
        "# Notebooks",
        "",
        "For whoever learns by trying: text and cells to run in Jupyter.",
        "",
    ]
    for path in NOTEBOOKS:
        title = _page(path).splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.stem}.md): `notebooks/{path.name}`")
    return "\n".join(lines) + "\n"


def _page(path: Path) -> str:
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"]).strip()
        if cell["cell_type"] == "code":
            parts.append(f"````python\n{text}\n````")
            parts += [_output(output) for output in cell["outputs"]]
        else:
            parts.append(text)
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    """The output of a cell, as HTML of one line: Markdown would read something into it."""
    if output["output_type"] == "stream":
        return _box(f"<pre>{html.escape(_text(output['text']).rstrip())}</pre>")
    data = {form: _text(value) for form, value in output["data"].items()}
    if "image/png" in data:
        return _box(_picture("image/png", data["image/png"].replace("\n", "")))
    if "image/svg+xml" in data:
        drawn = base64.b64encode(data["image/svg+xml"].encode()).decode()
        return _box(_picture("image/svg+xml", drawn))
    if "text/html" in data:
        return _box(data["text/html"])
    return _box(f"<pre>{html.escape(data['text/plain'])}</pre>")


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def _picture(form: str, data: str) -> str:
    return f'<img alt="what the cell draws" src="data:{form};base64,{data}">'


def _box(inside: str) -> str:
    # Sheets of styles know no references to characters, and need no ends of lines.
    inside = re.sub(
        r"<style>.*?</style>", lambda m: m[0].replace("\n", " "), inside, flags=re.DOTALL
    )
    line = inside.rstrip("\n").replace("\n", "&#10;").replace("`", "&#96;")
    return f'<div class="cell-output">{line}</div>'
