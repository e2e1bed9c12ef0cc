"""The notebooks, as Markdown: their text and their code, without what they print and draw."""

from __future__ import annotations

import json
from pathlib import Path

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
        parts.append(f"````python\n{text}\n````" if cell["cell_type"] == "code" else text)
    return "\n\n".join(parts) + "\n"
