"""Words and phrases that docs, docstrings, comments and messages avoid, each with what to write instead."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SOURCES = [
    p for folder in ("diffsim", "examples", "tools") for p in sorted((ROOT / folder).rglob("*.py"))
]
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1", re.M | re.S)

EVERYWHERE = {
    r"without a word": "silently",
    r"can not(?! only)": "cannot",
    r"(?:inside|outside) of": "inside or outside alone",
    r"belongs? into": "belongs in",
    r"(?:is|are|was|were) not there": "does not exist, is missing",
    r"had better": "should",
    r"(?:its|their) like": "the like",
    r"(?:let|lets|letting) go of": "release",
    r"nothing tells": "indistinguishable",
    r"in so far as": "as far as",
    r"in question": "this",
    r"a (?:store|load|field|launch|pass) (?:wants|knows|forgets|remembers|hears)": "what happens",
    r"(?:kernels?|adjoints?|loops?) (?:wants?|forgets?|remembers?|hears?)": "what happens",
    r"(?:Refused|Not detected|Allowed|Missing) (?:is also|are numbers)": "the subject first",
}
"""Phrases as patterns, whose spaces also stand for the end of a line."""


CLAUSE_AS_SUBJECT = re.compile(r"(?:^|(?<=[.:;|] ))What (?!if\b)[^?\n#|.:;]*[.:;]", re.MULTILINE)
"""A sentence such as "What a kernel reads is ...": its subject should be a noun."""


def pattern(phrase):
    """A pattern for a phrase, which may be broken between lines, of comments too."""
    return r"(?<!\w)" + phrase.replace(" ", r"(?:[ \t]+|[ \t]*\n[ \t#>]*)") + r"\b"


def found_in(text, phrases):
    """The lines with a phrase to avoid, with what to write."""
    either = re.compile("|".join(f"({pattern(phrase)})" for phrase in phrases), re.IGNORECASE)
    return [
        f"{text.count(chr(10), 0, m.start()) + 1}: {m[0]!r}, write {list(phrases.values())[m.lastindex - 1]}"
        for m in either.finditer(text)
    ]


def without_blocks(text):
    """A page without its fenced blocks, whose lines stay as empty ones."""
    return FENCED.sub(lambda m: "\n" * m[0].count("\n"), text)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_pages(path):
    assert found_in(without_blocks(path.read_text("utf-8")), EVERYWHERE) == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_sentences_have_nouns_as_subjects(path):
    assert CLAUSE_AS_SUBJECT.findall(without_blocks(path.read_text("utf-8"))) == []


def test_sources():
    found = {
        p.relative_to(ROOT).as_posix(): lines
        for p in SOURCES
        if (lines := found_in(p.read_text("utf-8"), EVERYWHERE | {'"""What': "a noun as subject"}))
    }
    assert found == {}


def test_clauses_as_subjects_are_found():
    text = "## What it costs\n\nWhat is it?\nWhat a loop reads is saved. So: What it writes is not."
    assert CLAUSE_AS_SUBJECT.findall(text) == [
        "What a loop reads is saved.",
        "What it writes is not.",
    ]


def test_phrases_are_found():
    text = "It can\n    # not be inside of that. It cannot, and can not only do that. Belongs into?"
    assert found_in(text, EVERYWHERE) == [
        "1: 'can\\n    # not', write cannot",
        "2: 'inside of', write inside or outside alone",
        "2: 'Belongs into', write belongs in",
    ]
