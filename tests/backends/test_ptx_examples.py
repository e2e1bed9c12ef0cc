"""Every kernel of the examples, and its adjoint, becomes PTX that ptxas accepts."""

import importlib
import sys
from pathlib import Path

import pytest

import diffsim as ds
from diffsim.backends.cuda.ptx import PtxError, assemble, find_libdevice

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SM = 80

try:
    find_libdevice()
except PtxError:
    pytest.skip("no libdevice here", allow_module_level=True)


@pytest.fixture
def launched(cpu, monkeypatch):
    """The kernels that an example launches: name to the compiled special."""
    from diffsim.runtime.kernels.kernel import Kernel

    found = {}
    specialize = Kernel.specialize

    def noting(kernel, args, **how):
        special, values = specialize(kernel, args, **how)
        found[kernel.__name__] = kernel
        return special, values

    monkeypatch.setattr(Kernel, "specialize", noting)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield found
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def check(kernel, *, grad=True):
    """PTX of the kernel (and of its adjoint), assembled where there is ptxas."""
    for made in [kernel, kernel.grad] if grad else [kernel]:
        text = made.ptx(sm=SM)
        assert f".target sm_{SM}" in text
        assert ".visible .entry" in text
        assert ".extern .func" not in text, "something is not linked"
        report = assemble(text, SM)
        assert report is None or "registers" in report  # None: no ptxas here


def test_mass_spring(launched):
    example = importlib.import_module("mass_spring")
    robot = example.load_robot(EXAMPLES / "robots" / "walker.json")
    simulation = example.Simulation(robot, 3)
    with ds.Tape(simulation.loss):
        simulation.walk()
    assert sorted(launched) == ["begin", "contract", "measure", "move", "pull", "sense"]
    for kernel in launched.values():
        check(kernel)


def test_gravity(launched):
    example = importlib.import_module("gravity")
    example.simulate(4, 2)
    assert sorted(launched) == ["advance", "attract"]
    check(launched["attract"])
    check(launched["advance"], grad=False)  # it changes what it reads, and uses a gradient


def test_minimize(launched, capsys, tmp_path):
    example = importlib.import_module("minimize")
    example.main(["--iterations", 2, "--out", tmp_path])
    assert sorted(launched) == ["compare", "descend"]
    check(launched["compare"])
    check(launched["descend"], grad=False)


def test_ptxas_may_unroll_loops_further(cpu):
    """LLVM asks it not to once it has run four turns at once itself."""
    ds = cpu
    x = ds.Vector.field(3, ds.f32, shape=1024)

    @ds.kernel
    def attract():
        for i in x:
            total = ds.Vector([0.0, 0.0, 0.0])
            for j in range(1024):
                d = x[j] - x[i]
                total += d * ds.rsqrt(d.dot(d) + 1e-3)
            x[i] = total

    text = attract.ptx(sm=90)
    assert text.count("rsqrt") >= 4 or text.count("sqrt.rn") >= 4
    assert "unroll" not in text
