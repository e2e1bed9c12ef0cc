"""Neighbours that wrap around or stop at faces: boxes are split, and additions to them gathered."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.ir.nodes import Atomic, Let
from diffsim.ir.traversal import statements
from diffsim.ir.verifier import verify
from diffsim.passes import pipeline
from diffsim.passes.forms.interiors import _between, _changes, split_interiors
from diffsim.passes.transforms.scatter_to_gather import scatter_to_gather
from tests.support.source import make

H, W = 20, 24
TEXT = """
@ds.kernel
def kernel():
    for i, j in ds.ndrange({box}):
        y[i, j] = x[{near}] * x[i, j] + ds.sin(x[{other}])
"""
NEAR = {
    "remainder": ("(i + 1) % H, j", "i, (j - 1) % W"),
    "remainder of a sum": ("(i - 2 + H) % H, j", "(H + i - 1) % H, (j + 3) % W"),
    "extremes": ("ds.min(i + 1, H - 1), j", "i, ds.max(0, j - 2)"),
    "both extremes": ("ds.max(ds.min(i + 2, H - 1), 1), j", "i, ds.min(W - 2, ds.max(j - 2, 0))"),
    "branches": ("i + 1 if i < H - 1 else 0, j", "i, j - 1 if not j == 0 else W - 1"),
    "selection": ("ds.select(i == H - 1, 0, i + 1), j", "i, ds.select(j != 0, j - 1, j)"),
    "twice": ("((i + 1) % H + 1) % H, j", "i, ds.max((j + 1) % W, 2)"),
}
BOXES = ("H, W", "(1, H), (0, W - 1)")


@pytest.fixture
def fields(cpu):
    x, y = (ds.field(ds.f64, shape=(H, W), needs_grad=True) for _ in range(2))
    return dict(ds=ds, H=H, W=W, x=x, y=y)


def run(ir):
    rng = np.random.default_rng(3)
    start = {m: rng.uniform(0, 1, m.shape) for m in sorted(ir.mems, key=lambda m: m.name)}
    interpreter.run(ir, start, ())
    return {m.name: a for m, a in start.items()}


def kernel_of(fields, near, other, box="H, W"):
    make(TEXT.format(box=box, near=near, other=other), fields)
    return fields["kernel"]._only(())


@pytest.mark.parametrize("kind", NEAR)
def test_the_same_is_computed(fields, kind):
    made = kernel_of(fields, *NEAR[kind], BOXES[len(kind) % 2])
    for ir in (made.ir, made.derivative.ir):
        split, rims = split_interiors(ir)
        assert len(split.tasks) == len(ir.tasks) + len(rims) > len(ir.tasks)
        verify(split, "split_interiors")
        expected, found = run(ir), run(scatter_to_gather(split, rims=rims))
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", NEAR)
def test_the_interior_is_a_plain_stencil(fields, kind):
    """No remainder is left in it, and no atomic update."""
    ir = kernel_of(fields, *NEAR[kind]).derivative.ir
    large = [t for t in pipeline.run(ir, pipeline.LOWER).tasks if _lanes(t) >= (H - 6) * (W - 6)]
    inside = [s for t in large for s in statements(t.body)]
    assert not any(isinstance(s, Let) and s.op.name in ("mod", "min", "max") for s in inside)
    assert any(isinstance(s, Atomic) for s in inside)
    assert all(s.exclusive for s in inside if isinstance(s, Atomic))


def _lanes(task):
    ends = [v.value for v in task.bounds.yields]
    return np.prod(np.diff(np.reshape(ends, (-1, 2))))


@pytest.mark.parametrize(
    "place",
    [
        "i, j",
        "(i + 10) % H, j",  # two halves, none of them a rim
        "(2 * i) % H, j",
        "(i + j) % H, j",
        "ds.min(i + 1, at[None]), j",
        "i, (j + at[None]) % W",
        "ds.cast(x[i, j], ds.i32), j",
        "ds.cast(x[i, j] < float('inf'), ds.i32), j",
    ],
)
def test_what_stays_whole(fields, place):
    fields["at"] = ds.field(ds.i32, shape=())
    ir = kernel_of(fields, place, place).ir
    assert split_interiors(ir) == (ir, frozenset())


def test_small_boxes_stay_whole(fields):
    ir = kernel_of(fields, "(i + 1) % 9, j", "i, (j + 1) % 9", "9, 9").ir
    assert split_interiors(ir) == (ir, frozenset())


def test_numbers_that_wrap_around(fields):
    """A narrow sum that overflows is no index plus a constant."""
    place = "(ds.cast(i, ds.i8) + ds.cast(120, ds.i8)) % 20, j"
    ir = kernel_of(fields, place, "i, j").ir
    assert split_interiors(ir) == (ir, frozenset())


def test_a_gpu_splits_for_updates_alone(fields):
    made = kernel_of(fields, *NEAR["remainder"])
    assert split_interiors(made.ir, only_updates=True) == (made.ir, frozenset())
    assert len(split_interiors(made.derivative.ir, only_updates=True)[1]) == 2


@pytest.mark.parametrize("shift", [-3, 0, 1, 66])
@pytest.mark.parametrize("at", [1, 2, 5, 64, 1000])
def test_only_remainders_near_the_ends_are_looked_at(at, shift):
    for lanes in ((0, 99), (3, 130), (-7, 64)):
        everywhere = [n for n in range(lanes[0], lanes[1] + 1) if (n + shift) % at == 0]
        found = _changes("mod", at, shift, lanes)
        assert _between(lanes, found) == _between(lanes, everywhere)
    assert len(list(_changes("mod", at, shift, (0, 2**31 - 2)))) <= 10
