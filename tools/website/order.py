"""The order of the site's pages: getting started, how-to guides, reference, explanation, gallery, project.

Every page of docs/ says in its first line what kind of page it is and for whom. That line puts it into its
part of the site; the lists below only say in which order. A page that no list names comes last in its part.
"""

from __future__ import annotations

import re

FIRST_LINE = re.compile(
    r"\A# .+\n\n\*(?P<kind>Tutorial|How-to guide|Reference|Explanation)\. (?P<whom>For .+\.)\*\n"
)
"""The title of a page, and below it the kind of the page, for whom it is and what it is."""

PARTS = {
    "Tutorial": ("Getting started", "start.md", "Lessons, to be read in this order."),
    "How-to guide": ("How-to guides", "guides.md", "What to do, one task on each page."),
    "Reference": ("Reference", "reference.md", "What there is and what it means, to look up."),
    "Explanation": ("Explanation", "explanation.md", "Why it works, for those who want to know."),
}
"""Title, file and description of the part for each kind of page."""

SECTIONS: dict[str, dict[str, str]] = {
    "Tutorial": {"": "installation first-gradient"},
    "How-to guide": {
        "Gradients": "autodiff checkpoints replay custom-gradients implicit forward-mode jacobians hessians "
        "inspect-gradients",
        "Training": "training networks pytorch jax",
        "Simulations": "gpu sparse precision reproducibility ports",
        "Programs": "gui ui tools notebooks-and-editors type-checkers concurrency caching packaging-programs",
        "When something is wrong": "faq debugging profiling",
        "Coming from elsewhere": "from-taichi from-warp",
        "Changing diffsim": "add-an-op releasing",
    },
    "Reference": {
        "Gradients": "which-derivative tapes python-on-a-tape access-rules derivatives decompositions",
        "Language and environment": "language conformance catching-errors command-line compatibility "
        "taichi-examples warp-examples glossary",
    },
    "Explanation": {"": "architecture loop-reversal"},
}
"""The sections of each part, in order, with their pages."""


def kind_of(text: str) -> str:
    """The kind of a page; one without its first line is a guide until it has one."""
    found = FIRST_LINE.match(text)
    return found["kind"] if found else "How-to guide"


def sections(kind: str, files: dict[str, str]) -> dict[str, list[str]]:
    """The pages of one part, by its sections."""
    left = {uri for uri, text in files.items() if FIRST_LINE.match(text) and kind_of(text) == kind}
    made: dict[str, list[str]] = {}
    for title, names in SECTIONS[kind].items():
        inside = [uri for name in names.split() if (uri := f"{name}.md") in left]
        left -= set(inside)
        if inside:
            made[title] = inside
    if left:
        made.setdefault("" if "" in SECTIONS[kind] else "More", []).extend(sorted(left))
    return made


def part_pages(files: dict[str, str]) -> dict[str, str]:
    """The first page of each part: its pages, with what each is and for whom."""
    made = {}
    for kind, (part, uri, about) in PARTS.items():
        lines = [f"# {part}", "", about, ""]
        for title, inside in sections(kind, files).items():
            lines += [f"## {title}", ""] if title else []
            lines += [_line(page, files[page]) for page in inside] + [""]
        lines += _beside(kind)
        made[uri] = "\n".join(lines) + "\n"
    return made


def _line(uri: str, text: str) -> str:
    title = text.split("\n", 1)[0].removeprefix("# ")
    found = FIRST_LINE.match(text)
    return (
        f"- [{title}]({uri}): f{found['whom'].removeprefix('F')}"
        if found
        else f"- [{title}]({uri})"
    )


def _beside(kind: str) -> list[str]:
    """Pages of a part that are not in docs/."""
    if kind == "Tutorial":
        return ["Afterwards: the [notebooks](notebooks/index.md), lessons to run in Jupyter."]
    if kind == "Reference":
        return ["## All names", "", "- [Reference of all names](reference/index.md)"]
    if kind == "Explanation":
        return [
            "- [Decisions](adr/index.md): why it is made as it is.",
            "- [Measurements](benchmarks/index.md): how fast it is, beside what.",
        ]
    return []


def navigation(files: dict[str, str]) -> list[object]:
    """The order of all pages, as MkDocs wants it."""
    parts: list[object] = [{"diffsim": "index.md"}]
    for kind, (part, uri, _) in PARTS.items():
        inside: list[object] = [uri]
        for title, pages in sections(kind, files).items():
            inside += [{title: pages}] if title else pages
        inside += _folders(kind, files)
        parts.append({part: inside})
    parts.append({"Gallery": folder(files, "gallery")})
    parts.append({"Project": ["changelog.md", "contributing.md", "tests.md"]})
    return parts


def _folders(kind: str, files: dict[str, str]) -> list[object]:
    if kind == "Tutorial":
        return [{"Notebooks": folder(files, "notebooks")}]
    if kind == "Reference":
        return [{"All names": folder(files, "reference")}]
    if kind == "Explanation":
        return [
            {"Decisions": folder(files, "adr")},
            {"Measurements": folder(files, "benchmarks")},
        ]
    return []


def folder(files: dict[str, str], name: str) -> list[str]:
    """The pages of a folder, its index first."""
    index = f"{name}/index.md"
    inside = (uri for uri in files if uri.startswith(f"{name}/") and uri != index)
    return [index, *(inside if name == "reference" else sorted(inside))]
