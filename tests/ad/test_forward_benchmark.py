"""The programs of `benchmarks/forward_mode.py`, in f64: their tangents, and the table."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.benchmarks import load

pytestmark = pytest.mark.usefixtures("quick_code")


@pytest.fixture
def benchmark(cpu, monkeypatch):
    module = load(monkeypatch, "forward_mode")
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    return module


@pytest.mark.parametrize("number", range(4))
def test_tangents_are_slopes(benchmark, number):
    program = benchmark.PROGRAMS[number](ds.f64, quick=True)
    for count in benchmark.COUNTS:
        seeds, found = benchmark.tangents(program, count)
        for seed, tangent in zip(seeds, found, strict=True):
            ends = []
            for step in (1e-6, -1e-6):
                program.x.from_numpy(program.start + step * seed)
                program.run()
                ends.append(program.y.to_numpy())
            program.x.from_numpy(program.start)
            assert np.abs(tangent).max() > 0.01
            np.testing.assert_allclose(tangent, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-7)


def test_the_table_is_put_into_the_page(benchmark, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{benchmark.MARK}\nold\n\nafter\n")
    made = benchmark.row(benchmark.stencil, quick=True)
    assert made.count("|") == 2 + 2 * len(benchmark.COUNTS)
    benchmark.write_rows(page, benchmark.MARK, made)
    assert page.read_text() == f"before\n\n{benchmark.MARK}\n{made}\n\nafter\n"
    assert benchmark.MARK in benchmark.PAGE.read_text(encoding="utf-8")
