"""The gallery, as Markdown: a page for each example with its physics, its films, its source."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(
    [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "classics").glob("*.py")]
)
RUNS = '\nif __name__ == "__main__":'  # what examples have that are not parts of others


def pages() -> dict[str, str]:
    """The Markdown of all pages, by their files."""
    made = {f"gallery/{path.stem}.md": _page(path) for path in EXAMPLES}
    return {"gallery/index.md": _index(), **made}


def players() -> dict[str, Path]:
    """The HTML players that examples have written, by the files of the site that they become."""
    found = {}
    for path in EXAMPLES:
        for player in sorted((ROOT / "out" / path.stem).glob("*.html")):
            found[f"gallery/players/{path.stem}/{player.name}"] = player
    return found


def _index() -> str:
    lines = [
        "# Gallery",
        "",
        "For whoever wants to see what can be done. Short programs, each with its physics in its docstring; "
        "`diffsim demo NAME` runs one. Each writes a page that plays its films; after `make gallery` "
        "these are here as well. Each is one file to copy and change, so what two of them share, such as "
        "a robot's network or the weights of a grid, stands in both.",
        "",
    ]
    mains = [path for path in EXAMPLES if runs(path)]
    lines += [f"- [`{path.stem}`]({path.stem}.md): {_title(path)}" for path in mains]
    lines += ["", "## Parts of examples", ""]
    lines += [f"- [`{p.stem}`]({p.stem}.md): {_title(p)}" for p in EXAMPLES if p not in mains]
    return "\n".join(lines) + "\n"


def _page(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(source)) or ""
    lines = [f"# `{path.stem}`", "", escaped(doc), ""]
    for uri in (uri for uri in players() if uri.startswith(f"gallery/players/{path.stem}/")):
        address = uri.removeprefix("gallery/")
        lines += [
            f'<iframe src="{address}" title="the films of {path.stem}" loading="lazy"></iframe>',
            "",
            f'<a href="{address}">The same on a page of its own</a>',
            "",
        ]
    lines += [
        f"## `{path.relative_to(ROOT).as_posix()}`",
        "",
        "````python",
        source.rstrip(),
        "````",
        "",
    ]
    return "\n".join(lines)


def escaped(doc: str) -> str:
    """Text in which indented lines are blocks of code, and the rest has no signs of Markdown's."""
    lines = [
        line if line.startswith("    ") else line.replace("<", "&lt;") for line in doc.splitlines()
    ]
    return "\n".join(lines)


def _title(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return escaped(doc.split("\n")[0])


def runs(path: Path) -> bool:
    """Whether it is a program, and not a part of others."""
    return RUNS in path.read_text(encoding="utf-8")
