"""Neighbours that wrap around or stop at faces: boxes are split, and additions to them gathered."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.ir.nodes import Atomic, If, Let
from diffsim.ir.traversal import statements
from diffsim.ir.verifier import verify
from diffsim.passes import pipeline
from diffsim.passes.analysis.affine import number
from diffsim.passes.neighbours.interiors import (
    _between,
    _changes,
    split_guarded_updates,
    split_interiors,
)
from diffsim.passes.neighbours.scatter_to_gather import scatter_to_gather
from tests.support.gradients import check_along
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


def run(ir, arguments=(), shape=None):
    rng = np.random.default_rng(3)
    mems = sorted(ir.mems, key=lambda m: m.name)
    start = {m: rng.uniform(0, 1, m.shape or shape) for m in mems}
    interpreter.run(ir, start, arguments)
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


AT_LAUNCH = """
@ds.kernel
def kernel(n: ds.i32, m: ds.i32):
    for i, j in ds.ndrange({box}):
        y[i, j] = x[{near}] * x[i, j] + ds.sin(x[{other}])
"""
OF_ARRAYS = """
@ds.kernel
def kernel(x: A, y: A):
    n, m = x.shape[0], x.shape[1]
    for i, j in ds.ndrange({box}):
        y[i, j] = x[{near}] * x[i, j] + ds.sin(x[{other}])
"""
MORE = {
    "inside": ("i - 1, j + 1", "i + 1, j - 1"),
    "chain": ("i - 1 if 0 <= i - 1 and i < n else i, j", "i, j + 2 if j + 2 < m else j"),
}


SIZES = [(-5, 1), (0, 2), (1, 9), (2, 1), (2, 2), (3, 3), (8, 9)]


@pytest.mark.parametrize("kind", [*NEAR, *MORE])
def test_bounds_that_are_arguments(fields, kind):
    """Boxes of any size: empty ones, and those shorter than their rims or than the stencil."""
    near, other = (s.replace("H", "n").replace("W", "m") for s in (NEAR | MORE)[kind])
    box = (
        "(1, n - 1), (1, m - 1)"
        if kind == "inside"
        else ("n, m", "(1, n), (0, m - 1)")[len(kind) % 2]
    )
    make(AT_LAUNCH.format(box=box, near=near, other=other), fields)
    made = fields["kernel"]._only((H, W))
    for ir in (made.ir, made.derivative.ir):
        split, rims = split_interiors(ir)
        verify(split, "split_interiors")
        assert kind == "inside" or len(split.tasks) == 1 + len(rims) > 1
        gathered = scatter_to_gather(split, rims=rims)
        assert ir is made.ir or len(gathered.tasks) > len(split.tasks)
        for sizes in SIZES:
            expected, found = run(ir, sizes), run(gathered, sizes)
            for name, values in expected.items():
                np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["remainder of a sum", "chain", "inside"])
def test_bounds_that_are_extents(fields, kind):
    near, other = (s.replace("H", "n").replace("W", "m") for s in (NEAR | MORE)[kind])
    box = "(1, n - 1), (1, m - 1)" if kind == "inside" else "n, m"
    fields["A"] = ds.types.ndarray(ds.f64, 2)
    make(OF_ARRAYS.format(box=box, near=near, other=other), fields)
    made = fields["kernel"]._only(tuple(ds.ndarray(ds.f64, (H, W), needs_grad=True) for _ in "xy"))
    for ir in (made.ir, made.derivative.ir):
        lowered = pipeline.run(ir, pipeline.LOWER)
        updates = [[s for s in statements(t.body) if isinstance(s, Atomic)] for t in lowered.tasks]
        assert ir is made.ir or any(found and all(s.exclusive for s in found) for found in updates)
        for shape in ((1, 2), (2, 1), (3, 9), (8, 3)):
            expected, found = run(ir, shape=shape), run(lowered, shape=shape)
            for name, values in expected.items():
                np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-13)


def test_the_least_number_is_no_large_bound(cpu):
    """`n - 1` wraps around in 32 bits: there would be lanes without end."""
    x, y = (cpu.field(cpu.f32, shape=4, needs_grad=True) for _ in range(2))

    @cpu.kernel
    def inside(n: cpu.i32):
        for i in range(1, n - 1):
            y[i] += x[i - 1] + x[i + 1] if i < n - 2 else x[i]

    for n in (-(2**31), -(2**31) + 1, 0, 2, 3, 4):
        y.grad.fill(1.0)
        x.grad.fill(0.0)
        inside.grad(n)
        wanted = np.zeros(4)
        for i in range(1, n - 1):
            wanted[[i - 1, i + 1] if i < n - 2 else [i]] += 1
        np.testing.assert_array_equal(x.grad.to_numpy(), wanted)


def test_bounds_that_tell_nothing(fields):
    """Of another argument, of what was loaded, or above what a comparison of this width can see."""
    for box, place in (
        ("n, m", "(i + 1) % m, j"),
        ("n, m", "i + 1 if i < m - 1 else i, j"),
        ("(n, m), m", "i - 1 if i > m else i, j"),
        ("at[None], m", "i + 1 if i < at[None] - 1 else i, j"),
        ("n * 2, m", "(i + 1) % (n * 2), j"),
    ):
        fields["at"] = ds.field(ds.i32, shape=())
        make(AT_LAUNCH.format(box=box, near=place, other=place), fields)
        ir = fields["kernel"]._only((H, W)).ir
        assert split_interiors(ir) == (ir, frozenset()), place


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


@pytest.mark.parametrize("terms", [150, 250, 350])
@pytest.mark.parametrize("term", ["x[(i + {0}) % H, j] * 2.0", "x[(i + {0}) % H, j] * {1}.0"])
def test_what_is_computed_twice_is_no_more_code(fields, term, terms):
    """Up to 600 statements are split: of a term, an index, a remainder, a load, a product and a sum."""
    # The sums differ, and the products by other numbers; the neighbours are four.
    line = " + ".join(term.format(k % 4, k // 2) for k in range(terms))
    text = f"@ds.kernel\ndef kernel():\n    for i, j in ds.ndrange(H, W): y[i, j] = {line}\n"
    make(text, fields)
    ir = fields["kernel"]._only(()).ir
    assert sum(1 for _ in statements(ir.tasks[0].body)) > 600
    distinct = terms + (4 if "2.0" in term else terms)
    assert bool(split_interiors(ir)[1]) is (distinct + 12 < 600)


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
        box = number(lanes[0]), number(lanes[1])
        found = _changes("mod", number(at), shift, box)
        assert _between(box, found) == _between(box, map(number, everywhere))
    box = number(0), number(2**31 - 2)
    assert len(list(_changes("mod", number(at), shift, box))) <= 10


def test_remainders_of_floats_stay(cpu, quick_code):
    x, y = ds.field(ds.f32, shape=40), ds.field(ds.i32, shape=40)
    z, least = ds.field(ds.i32, shape=40), ds.field(ds.f32, shape=())
    infinite = float("inf")
    x.fill(-1.5)
    z.fill(3)

    @ds.kernel
    def kernel():
        for i in range(40):
            y[i] = z[(i + 24) % 40]
            ds.atomic_min(least[None], x[i] % -ds.f32(infinite))
            y[i] = y[i] + z[(i + 31) % 40]

    kernel()
    assert least[None] == -1.5
    assert y.to_numpy().tolist() == [6] * 40


GUARDED = """
@ds.func
def get(i, j):
    value = ds.cast(0.5, ds.f64)
    if i >= 0 and j >= 0 and i < H and j < W:
        value = x[i, j]
    return value

@ds.kernel
def kernel():
    for i, j in x:
        v = 2 * get(i - 1, j) + get(i + 1, j) - get(i, j - 1) * get(i, j + 1)
        if x[i, j] > 0:
            v = ds.sqrt(x[i, j])
        y[i, j] = v
"""


@pytest.mark.parametrize("has_masks", [True, False])
def test_loads_that_guards_keep_inside(fields, has_masks):
    """Where loads of some lanes take longer than of all, the interior has no guards."""
    make(GUARDED, fields)
    ir = fields["kernel"]._only(()).ir
    split, rims = split_interiors(ir, has_masks=has_masks)
    assert len(rims) == (0 if has_masks else 4)
    verify(split, "split_interiors")
    np.testing.assert_array_equal(run(split)["y"], run(ir)["y"])
    branches = sum(isinstance(s, If) for s in statements(split.tasks[0].body))
    assert branches == (5 if has_masks else 1)
    # A GPU's parts are launches.
    assert not split_interiors(ir, only_updates=True, has_masks=False)[1]
    given = np.random.default_rng(1).standard_normal((H, W))
    fields["x"].from_numpy(given)
    fields["kernel"]()
    padded = np.pad(given, 1, constant_values=0.5)
    want = 2 * padded[:-2, 1:-1] + padded[2:, 1:-1] - padded[1:-1, :-2] * padded[1:-1, 2:]
    want = np.where(given > 0, np.sqrt(np.maximum(given, 0)), want)
    np.testing.assert_allclose(fields["y"].to_numpy(), want, rtol=1e-12, atol=1e-13)


BESIDE = """
@ds.kernel
def kernel():
    for i, j in ds.ndrange(H, W):
        out = v[i, j][0] * v[i, j][1]
        if i > 0:
            out -= v[i - 1, j][0] ** 2
        if j + 1 < W:
            out += 0.5 * v[i, j + 1][1]
        y[i, j] = ds.sin(out)
"""


def test_components_of_vectors_that_guards_keep_inside(cpu):
    """They are not side by side, so masks do not make their loads fast: the interior has no guards."""
    width = 160  # short rows are split for their branches
    v = ds.Vector.field(2, ds.f64, (H, width), needs_grad=True)
    y, total = (ds.field(ds.f64, shape, needs_grad=True) for shape in ((H, width), ()))
    space = dict(ds=ds, H=H, W=width, v=v, y=y)
    make(BESIDE, space)
    ir = space["kernel"]._only(()).ir
    split, rims = split_interiors(ir)
    verify(split, "split_interiors")
    assert len(rims) == 2
    assert not any(isinstance(s, If) for s in statements(split.tasks[0].body))
    assert not split_interiors(ir, only_updates=True)[1]

    def of(a):
        out = a[..., 0] * a[..., 1]
        out[1:] -= a[:-1, :, 0] ** 2
        out[:, :-1] += 0.5 * a[:, 1:, 1]
        return np.sin(out)

    given = np.random.default_rng(1).standard_normal((H, width, 2))
    along = np.random.default_rng(2).standard_normal((H, width, 2))
    weights = 1 + np.arange(H)[:, None] + 2 * np.arange(width)
    v.from_numpy(given)

    @ds.kernel
    def weigh():
        for i, j in y:
            total[None] += y[i, j] * (1 + i + 2 * j)

    with ds.Tape(total):
        space["kernel"]()
        weigh()
    np.testing.assert_allclose(y.to_numpy(), of(given), rtol=1e-12, atol=1e-13)
    slope = (v.grad.to_numpy() * along).sum()
    ends = [(of(given + x * along) * weights).sum() for x in (1e-6, -1e-6)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-6)


def test_rows_at_faces_have_no_ends(fields):
    """Lanes of a row at a face load side by side; its ends, which wrap around, are lanes of the columns."""
    ir = kernel_of(fields, *NEAR["remainder"]).ir
    split, rims = split_interiors(ir)
    boxes = {tuple(v.value for v in t.bounds.yields) for t in split.tasks if t in rims}
    assert boxes == {(H - 1, H, 1, W), (0, H, 0, 1)}


INSIDE = """
@ds.kernel
def kernel():
    for i, j in x:
        if {test}:
            w[i, j] = 2.0 * y[i, j]
            a = ds.sin(w[i, j])
            {updates}
        else:
            {other}
"""
AROUND = "x[i + 1, j] += a; x[i - 1, j] -= a; x[i, j + 1] += 2 * a"
FACES = "0 < i < H - 1 and 2 <= j and j < W - 1"


def guarded(cpu, *, test=FACES, updates=AROUND, other="x[i, j] += y[i, j]", text=INSIDE):
    x, y, w = (ds.field(ds.f64, shape=(H, W), needs_grad=True) for _ in range(3))
    space = dict(ds=ds, H=H, W=W, x=x, y=y, w=w)
    make(text.format(test=test, updates=updates, other=other), space)
    return space["kernel"]


def test_lanes_inside_of_a_branch_have_a_box_of_their_own(cpu):
    """They update rows at once there. At the faces nothing is left of the branch."""
    ir = guarded(cpu)._only(()).ir
    assert scatter_to_gather(ir) is not ir
    assert len(scatter_to_gather(ir).tasks) == 1  # what a lane has stored before is in what it adds
    split = split_guarded_updates(ir)
    verify(split, "split_guarded_updates")
    assert len(split.tasks) == 5
    assert not any(isinstance(s, If) for t in split.tasks for s in statements(t.body))
    expected, found = run(ir), run(split)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "what",
    [
        dict(updates="x[i, j] += a; x[i, j] += 2 * a"),  # of one element
        dict(other=AROUND.replace("a", "3.0")),  # at the faces, too
        dict(test=FACES + " and y[i, j] > 0.5"),  # not all of the box
        dict(updates=f"{AROUND}; w[i, j] = ds.atomic_add(y[0, 0], a)"),  # lanes have an order then
        dict(test="5 < i < H - 1"),  # far from a face
    ],
)
def test_other_branches_stay(cpu, what):
    ir = guarded(cpu, **what)._only(()).ir
    assert split_guarded_updates(ir) is ir


def test_lanes_that_trail_others_stay(cpu):
    ir = guarded(cpu)._only(()).ir
    (task,) = ir.tasks
    trailing = ir.replace(tasks=(task, task.replace(lag=1)))
    assert split_guarded_updates(trailing) is trailing
    behind = ir.replace(tasks=(task.replace(lag=1), task))
    assert [t.lag for t in split_guarded_updates(behind).tasks] == [1] + [None] * 5


def test_the_gradient_of_velocities_that_are_read_back(cpu):
    """The adjoint adds to the gradient of v before it loads it, so it cannot gather, but is split."""
    n = 20
    x, v = (ds.Vector.field(2, ds.f64, shape=(3, n, n), needs_grad=True) for _ in range(2))
    k = ds.field(ds.f64, shape=(n, n), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        for i, j in k:
            if 0 < i < n - 1 and 0 < j < n - 1:
                around = x[t, i + 1, j] + x[t, i - 1, j] + x[t, i, j + 1] + x[t, i, j - 1]
                v[t + 1, i, j] = v[t, i, j] + k[i, j] * (around - 4 * x[t, i, j])
                x[t + 1, i, j] = x[t, i, j] + 0.1 * v[t + 1, i, j]
            else:
                x[t + 1, i, j] = x[t, i, j]

    @ds.kernel
    def measure():
        for i, j in k:
            loss[None] += x[2, i, j].norm_sqr() + x[2, i, j].x * v[2, i, j].y

    def run_all():
        step(0)
        step(1)
        measure()

    x.from_numpy(np.random.default_rng(0).standard_normal((3, n, n, 2)))
    v.from_numpy(np.random.default_rng(1).standard_normal((3, n, n, 2)))
    k.from_numpy(np.random.default_rng(2).uniform(0.5, 1, (n, n)))
    lowered = pipeline.run(step._only((0,)).derivative.ir, pipeline.LOWER, "scatter_to_gather")
    assert len(lowered.tasks) == 5
    check_along(run_all, loss, [x, v, k])
