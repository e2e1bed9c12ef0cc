"""Memory comes back: fields, also those placed in layout trees, and kernels that are compiled and dropped."""

import gc
import sys

import numpy as np
import pytest

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


def resident() -> float:
    """Memory of this process [MB]."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


@pytest.mark.parametrize("how", ["field", "root", "grad", "lazy"])
def test_fields_go_with_their_last_reference(cpu, how):
    ds = cpu
    n = 5_000_000  # 20 MB

    def one_round() -> None:
        if how == "field":
            x = ds.field(ds.f32, shape=n)
        else:
            x = ds.field(ds.f32, needs_grad=how == "grad")
            node = ds.root.dense(ds.i, n // 100).dense(ds.i, 100).place(x)
            if how == "lazy":
                node.lazy_grad()
        x.fill(1.0)
        if x.grad is not None:
            x.grad.fill(2.0)

    one_round()
    gc.collect()
    before = resident()
    for _ in range(20):
        one_round()
    assert resident() - before < 60


def test_lazy_grad_reaches_what_is_still_there(cpu):
    ds = cpu
    x, y, z = (ds.field(ds.f32) for _ in range(3))
    ds.root.dense(ds.i, 3).place(x)
    ds.root.dense(ds.ij, (2, 2)).dense(ds.i, 2).place(y)
    ds.root.place(z)
    del z
    ds.root.lazy_grad()
    assert x.grad.shape == (3,)
    assert y.grad.shape == (4, 2)
    np.testing.assert_array_equal(y.grad.to_numpy(), 0.0)
