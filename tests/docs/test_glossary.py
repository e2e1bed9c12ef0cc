"""The glossary names places that are there, each term once."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \| `([^`]+)` \|$", (ROOT / "docs/glossary.md").read_text(), re.M
)


def test_each_place_is_there():
    assert len(ROWS) > 50
    assert [place for _, _, place in ROWS if not (ROOT / "diffsim" / place).is_file()] == []


def test_each_term_has_one_meaning():
    terms = [term for names, _, _ in ROWS for term in re.split(r", | \(|\)", names) if term]
    assert sorted(set(terms)) == sorted(terms)


def test_every_row_has_a_place():
    lines = (ROOT / "docs/glossary.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| term")]
    assert len(rows) == len(ROWS)
