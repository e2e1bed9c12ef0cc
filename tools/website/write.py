"""Write the pages of the documentation's site into a folder, from where MkDocs makes HTML.

    python tools/website/write.py build/site      (`make docs` does this, and calls MkDocs)

README.md becomes the first page; docs/, benchmarks/ and notebooks/ keep their folders. The gallery and the
reference are made from the examples and from the package. Links of the repository become links of the site;
one that leads nowhere is an error, with the page and the line.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from diffsim.runtime.files import write_text  # noqa: E402 - this checkout, whatever is installed
from tools.website import gallery, notebooks, order, reference  # noqa: E402

WHOLE_LINK = re.compile(r"(\[[^]]*\]\([^)]*\))")
NAME = re.compile(r"`(?P<name>ds(?:\.\w+)+)(?:\([^`]*\))?`")
LINK = re.compile(r"(?<!!)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^ *(`{3,}|~{3,})(\w*)")

MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "tests/README.md": "tests.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "benchmarks": "benchmarks/index.md",
    "tests": "tests.md",
    "examples": "gallery/index.md",
    "notebooks": "notebooks/index.md",
    "docs/adr": "adr/index.md",
}
"""Where files and folders of the repository are on the site, if not in their place."""


class DeadLinkError(Exception):
    """A link that leads nowhere."""


def sources() -> dict[str, Path]:
    """All Markdown files of the repository that are pages, by the files of the site that they become."""
    paths = [ROOT / name for name in MOVED if name.endswith(".md")]
    paths += [p for folder in ("docs", "benchmarks") for p in sorted((ROOT / folder).rglob("*.md"))]
    return {site_file(p.relative_to(ROOT).as_posix()): p for p in paths}


def site_file(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path in MOVED:
        return MOVED[path]
    if re.fullmatch(r"examples/\w+\.py", path):
        return f"gallery/{Path(path).stem}.md"
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    if path.endswith(".md"):
        return path.removeprefix("docs/")
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}.txt"


def pages() -> dict[str, str]:
    """The Markdown of the whole site, by its files."""
    entries = reference.addresses()
    texts = {uri: (path, path.read_text(encoding="utf-8")) for uri, path in sources().items()}
    texts |= notebooks.sources()
    written = {
        uri: with_names(_adapted(uri, path, text), uri, entries)
        for uri, (path, text) in texts.items()
    }
    written |= {"adr/index.md": _decisions(), "notebooks/index.md": notebooks.index()}
    written |= order.part_pages(written)
    return {**written, **gallery.pages(), **reference.pages()}


def _adapted(uri: str, path: Path, text: str) -> str:
    """A page of the repository as MkDocs wants it: other links, no marks, empty lines before lists."""
    lines, fence, before = [], "", ""
    for number, line in enumerate(text.splitlines(), start=1):
        if mark := FENCE.match(line):
            if not fence:
                fence, line = mark[1], mark[0]
            elif line.strip() == fence:
                fence = ""
        elif not fence:
            if re.match(r"<!-- .* -->$", line):
                line = ""
            if re.match(r"([-*]|\d+\.) ", line) and before and not re.match(r"[-*\d ]", before):
                lines.append("")
            line = _with_links(line, uri, path, number)
        before = line
        lines.append(line)
    return "\n".join(lines) + "\n"


def _with_links(line: str, uri: str, path: Path, number: int) -> str:
    def moved(match: re.Match[str]) -> str:
        target = match["target"]
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        goal = (path.parent / target).resolve()
        if not goal.exists() or not goal.is_relative_to(ROOT):
            where = f"{path.relative_to(ROOT)}:{number}"
            raise DeadLinkError(f"{where}: there is no {target}; write the path from this page")
        new = site_file(goal.relative_to(ROOT).as_posix())
        return f"]({posixpath.relpath(new, posixpath.dirname(uri) or '.')}{match['anchor'] or ''})"

    return LINK.sub(moved, line)


def with_names(text: str, uri: str, entries: dict[str, str]) -> str:
    """A page whose public names in backticks lead to their entries; not in headings, links and blocks."""
    start = posixpath.dirname(uri) or "."

    def linked(match: re.Match[str]) -> str:
        if match["name"] not in entries:
            return match[0]
        return f"[{match[0]}]({posixpath.relpath(entries[match['name']], start)})"

    lines, fenced, open_link = [], False, False
    for line in text.splitlines():
        if FENCE.match(line):
            fenced = not fenced
        elif not (fenced or line.startswith(("#", "    "))):
            parts = WHOLE_LINK.split(line)
            # A link whose text is broken into two lines begins or ends here.
            is_whole = not any("](" in p or re.search(r"(?<!`)\[[^]`]*$", p) for p in parts[::2])
            if is_whole and not open_link:
                parts[::2] = [NAME.sub(linked, part) for part in parts[::2]]
            open_link = bool(re.search(r"\[[^]]*$", WHOLE_LINK.sub("", line)))
            line = "".join(parts)
        lines.append(line)
    return "\n".join(lines) + "\n"


def _decisions() -> str:
    lines = ["# Decisions", "", "For whoever changes diffsim: why it is made as it is.", ""]
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def copied(files: dict[str, str]) -> dict[str, Path]:
    """Files that are on the site as they are: pictures, players, and sources that pages link to."""
    found = {f"images/{p.name}": p for p in sorted((ROOT / "docs" / "images").iterdir())}
    found |= {name: Path(__file__).with_name(name) for name in ("site.css", "iframe-worker.js")}
    for uri, text in files.items():
        for match in LINK.finditer(text):
            goal = posixpath.normpath(posixpath.join(posixpath.dirname(uri), match["target"]))
            if goal.startswith("files/"):
                found[goal] = ROOT / goal.removeprefix("files/").removesuffix(".txt")
    return found | gallery.players()


def write_site(folder: Path) -> None:
    """Write all pages into `folder`/pages, and beside them the configuration with their order."""
    for made in ("pages", "html"):
        shutil.rmtree(folder / made, ignore_errors=True)
    files = pages()
    for uri, text in files.items():
        (folder / "pages" / uri).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / "pages" / uri, text)
    for uri, path in copied(files).items():
        (folder / "pages" / uri).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / "pages" / uri)
    inherited = os.path.relpath(ROOT / "tools" / "website" / "mkdocs.yml", folder)
    # JSON is YAML.
    config = {"INHERIT": inherited, "nav": order.navigation(files)}
    write_text(folder / "mkdocs.yml", json.dumps(config, indent=1) + "\n")


def main() -> int:
    """Write the site's pages; 1 if a link leads nowhere."""
    try:
        write_site(Path(sys.argv[1]))
    except DeadLinkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
