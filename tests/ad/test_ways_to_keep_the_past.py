"""A time axis, in_place="save", checkpoints and replays: the programs of `benchmarks/in_place.py`, in f64."""

from __future__ import annotations

import numpy as np
import pytest

import diffsim as ds
from tests.support.benchmarks import load

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture
def benchmark(cpu, monkeypatch):
    module = load(monkeypatch, "in_place")
    module.REAL = ds.f64
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    return module


@pytest.mark.parametrize("program", ["PingPong", "Particles"])
def test_the_gradients_of_all_ways(benchmark, program):
    """They are equal, and the slope along one direction is that of central differences."""
    found = benchmark.ways(getattr(benchmark, program), quick=True)
    gradients = []
    for way in found:
        for _ in range(4):  # the first records, the second compares, others repeat
            way.round()
            gradients.append(way.program.x.grad.to_numpy())
        assert way.program.bytes() > 0
    for g in gradients[1:]:
        np.testing.assert_allclose(g, gradients[0], rtol=1e-9, atol=1e-15)
    axis, step = found[0].program, 1e-6
    x = axis.x.to_numpy()
    along = np.random.default_rng(2).normal(size=x.shape)
    ends = []
    for sign in (1, -1):
        axis.x.from_numpy(x + sign * step * along)
        axis.loss[None] = 0.0
        axis.run()
        ends.append(axis.loss[None])
    slope = (ends[0] - ends[1]) / (2 * step)
    assert (gradients[0] * along).sum() == pytest.approx(slope, rel=1e-6)


def test_bytes(benchmark):
    """In place the fields are small, and copies are made; a time axis needs none."""
    found = {way.name: way for way in benchmark.ways(benchmark.PingPong, quick=True)}
    for way in found.values():
        way.round()
    axis, saved = found["time axis"], found['`in_place="save"`']
    rows, n = benchmark.STEPS + 1, 100
    assert axis.program.bytes() == 2 * 8 * (n + rows * n + 1)
    assert axis.copies == 0
    assert saved.program.bytes() == 2 * 8 * (n + 2 * n + 1)
    # Each step overwrites what the step before it read, but for the first two.
    assert saved.copies == 8 * n * (benchmark.STEPS - 1)
