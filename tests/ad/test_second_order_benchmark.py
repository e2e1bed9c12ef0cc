"""The programs of `benchmarks/second_order.py`: their products with the Hessian, and what they take."""

import numpy as np
import pytest

from tests.support.benchmarks import load


@pytest.fixture
def benchmark(cpu, quick_code, monkeypatch):
    module = load(monkeypatch, "second_order")
    module.init()
    return module


@pytest.mark.parametrize("name", ["heat", "springs", "mpm"])
def test_products_are_slopes_of_gradients(benchmark, name):
    program = benchmark.PROGRAMS[name](quick=True)
    start, ends = program.x.to_numpy(), []
    for _ in range(2):  # the second one takes the memory of the first one's copies
        product = program.hvp()
    for step in (1e-6, -1e-6):
        program.x.from_numpy(start + step * program.vector)
        ends.append(program.gradient())
    slope = (ends[0] - ends[1]) / 2e-6
    assert np.abs(slope).max() > 0.01
    np.testing.assert_allclose(product, slope, rtol=1e-5, atol=1e-7 * np.abs(slope).max())
