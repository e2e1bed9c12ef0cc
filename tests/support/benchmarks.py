"""The programs of `benchmarks/`, loaded as they load one another."""

import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load(monkeypatch, name):
    """Return the module of a benchmark, made anew."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)
