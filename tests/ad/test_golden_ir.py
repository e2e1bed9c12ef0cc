"""Golden IR: each file of tests/golden begins with a program, and goes on with the IR of its kernel `f`.

A stage that prints something else is a failed test; `pytest --update-golden` writes the files anew, for a
look at the difference. A new file needs the program alone. Line numbers in the IR are those of the file.
"""

from pathlib import Path

import pytest

import diffsim as ds
from diffsim.passes import pipeline
from tests.support.source import make

FILES = sorted((Path(__file__).parents[1] / "golden").glob("*.txt"))
MARK = "# ---- "


def stages(f):
    """The IR of a kernel, of its adjoint, and of the adjoint as a backend gets it."""
    yield "frontend", f.ir(after="frontend")
    yield "autodiff", f.grad.ir(after="autodiff")
    yield "lowered", f.grad.ir(after=pipeline.LOWER[-1][0])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_golden(file, request, cpu, monkeypatch):
    monkeypatch.setattr(pipeline, "VERIFY", True)
    text = file.read_text(encoding="utf-8")
    program = text.partition(f"\n{MARK}")[0].rstrip() + "\n"
    space = {"ds": ds}
    make(program, space)
    printed = program
    for name, ir in stages(space["f"]):
        printed += f"\n{MARK}{name}\n\n{ir.rstrip()}\n"
    if request.config.getoption("--update-golden"):
        file.write_text(printed, encoding="utf-8")
    else:
        assert printed == text


def test_there_are_golden_files():
    assert len(FILES) >= 8
