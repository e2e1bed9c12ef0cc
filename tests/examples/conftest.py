"""What tests of examples share."""

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch, cpu, quick_code):
    """Import an example by its name, anew in each test."""
    for folder in (EXAMPLES, *EXAMPLES.glob("*/")):
        monkeypatch.syspath_prepend(str(folder))

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load
