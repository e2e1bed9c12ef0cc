"""What pages and decisions name in backticks is there, and the changelog says nothing twice."""

import builtins
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PACKAGE = [p for p in (ROOT / "diffsim").iterdir() if p.is_dir()]
FOLDERS = [ROOT, ROOT / "diffsim", ROOT / "tests", *PACKAGE]  # what paths in prose are relative to
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1", re.M | re.S)
QUOTED = re.compile(r"`([^`\n]+)`")
SOURCE = "\n".join(p.read_text("utf-8") for p in sorted((ROOT / "diffsim").rglob("*.py")))
DEFINED = set(re.findall(r"^(?:class )?([A-Z]\w*)\b(?: =|: |\(|:)", SOURCE, re.M))
MEMBERS = set(re.findall(r"(?:def |self\.|^    )(\w+)(?=\(| =|:)", SOURCE, re.M))
FOREIGN = {"Function"}  # of pycuda
OF_TAICHI = "taichi-examples.md"  # names files of its package


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != OF_TAICHI], ids=lambda p: p.name)
def test_files_are_there(page):
    paths = [t for t in quoted(page) if re.fullmatch(r"[\w.-]+(/[\w.-]+)+\.(py|ll|md)", t)]
    assert [t for t in paths if not any((folder / t).is_file() for folder in FOLDERS)] == []


def test_decisions_have_numbers_of_their_own():
    numbers = [page.name[:4] for page in (ROOT / "docs/adr").glob("[0-9]*.md")]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("page", sorted((ROOT / "docs/adr").glob("*.md")), ids=lambda p: p.name)
def test_classes_are_there(page):
    named = [re.fullmatch(r"([A-Z][a-z][A-Za-z]*)(?:\.(\w+))?", t) for t in quoted(page)]
    assert [m[0] for m in named if m and not is_there(m[1], m[2])] == []


def is_there(name, member):
    if name in FOREIGN or hasattr(builtins, name):
        return True
    return name in DEFINED and (member is None or member in MEMBERS)


def quoted(page):
    """What stands in backticks in the prose of a page."""
    return QUOTED.findall(FENCED.sub("", page.read_text("utf-8")))


def test_what_is_not_there_is_found():
    assert is_there("SimdLowering", None)
    assert is_there("TypeError", None)
    assert not is_there("WideBody", None)
    assert not is_there("Session", "teapot")


def test_the_changelog_says_nothing_twice():
    # A merge keeps both sides of an edited item.
    items = re.findall(r"^- (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    starts = [item[:45] for item in items]
    assert sorted(set(starts)) == sorted(starts)
