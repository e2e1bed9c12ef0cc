"""The programs of `benchmarks/natural` run, and their gradients are those of central differences in f64."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "natural"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*/*.py"))
REFERENCES = sorted(FOLDER.glob("*/*.c"))
# Their tests would take longest, and other tests have programs like them: `check.py` runs these too.
LONG = {"cloth", "mpm", "ray_march", "advect_cubic", "lattice_boltzmann", "wave_ternary", "rnn"}


@pytest.fixture
def natural(monkeypatch, cpu, quick_code):
    """Import a module of the suite by its name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("suite", "check"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in ("suite", "check"):
        sys.modules.pop(name, None)


def test_there_are_many_programs():
    assert len(PROGRAMS) >= 20
    assert set(PROGRAMS) > LONG


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - LONG))
def test_gradient_is_that_of_differences(name, natural, cpu):
    check = natural("check")
    check.start(cpu, name)
    assert check.program_error(cpu, name) < 1e-5


def test_most_programs_have_a_reference():
    names = {path.stem for path in REFERENCES}
    assert names <= set(PROGRAMS)
    assert len(names) >= 30


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("source", REFERENCES, ids=lambda path: path.stem)
def test_adjoint_in_c_is_that_of_differences(source, natural, tmp_path):
    assert natural("check").reference_error(source, tmp_path) < 1e-5
