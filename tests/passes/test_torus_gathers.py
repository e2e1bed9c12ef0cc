"""Periodic stencils: elements gather from all neighbours modulo the length of an axis."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.ir.nodes import Atomic
from diffsim.ir.traversal import statements
from diffsim.ir.verifier import verify
from diffsim.passes.neighbours.torus_gathers import gather_on_torus
from tests.support.source import make

H, W = 20, 22
SIZES = "H: ds.i32, W: ds.i32"
TEXT = """
@ds.kernel
def kernel({sizes}):
    for i, j in ds.ndrange({box}):
        {line}
"""
STENCIL = "y[i, j] = x[(i + 1) % H, j] * x[i, (j - 1 + W) % W] * p[0] + x[i, j]"


@pytest.fixture
def fields(cpu):
    made = {k: ds.field(ds.f64, shape=(H, W), needs_grad=True) for k in "xyz"}
    p, r = ds.field(ds.f64, shape=1, needs_grad=True), ds.field(ds.i32, shape=W)
    return dict(ds=ds, H=H, W=W, p=p, r=r, **made)


def adjoint(fields, line, box="H, W", sizes=""):
    make(TEXT.format(line=line, box=box, sizes=sizes), fields)
    return fields["kernel"]._only(()).derivative.ir


def gathered(ir):
    found, made = gather_on_torus(ir, spare=True, has_masks=True)
    verify(found, "gather_on_torus")
    assert sum(t in made for t in found.tasks) == len(made)
    return found, made


def run(ir, arguments=()):
    rng = np.random.default_rng(7)
    start = {
        m: rng.integers(-3, 4, m.shape).astype("i4" if m.dtype.is_int else "f8")
        for m in sorted(ir.mems, key=lambda m: m.name)
    }
    interpreter.run(ir, start, arguments)
    return {m.name: a for m, a in start.items()}


def assert_the_same(one, other, arguments=()):
    # Whole numbers: exact in any order.
    there, here = run(one, arguments), run(other, arguments)
    for name, values in there.items():
        np.testing.assert_array_equal(values, here[name], err_msg=name)


GATHERED = {
    "stencil": STENCIL,
    "twice": "y[i, j] = x[((i + 1) % H + 1) % H, j] * x[(i + 1) % H, (j + 3) % W]",
    "branch": """d = x[(i + 1) % H, j]
        if x[i, j] > 0: d = x[(i - 1) % H, j] * x[i, (j + 1) % W]
        y[i, j] = d * d""",
    "branches alone": "if x[i, j] > 0: y[i, j] = x[(i - 1) % H, j] * x[(i + 1) % H, j] * 3",
    "two fields": STENCIL + " * z[i, (j + 1) % W] + z[i, (j - 1) % W] * x[i, j]",
    "value of the index": STENCIL + " * (i + 2 * j)",
    "row of a table": STENCIL + " * r[(j + 1) % W]",
}  # fmt: skip


@pytest.mark.parametrize("kind", GATHERED)
@pytest.mark.parametrize("sizes", ["", "H: ds.i32, W: ds.i32"])
def test_the_same_is_added(fields, kind, sizes):
    ir = adjoint(fields, GATHERED[kind], sizes=sizes)
    found, made = gathered(ir)
    assert len(made) == (3 if kind == "branches alone" else 5)
    assert_the_same(ir, found, (H, W) if sizes else ())


@pytest.mark.parametrize("flip", [False, True])
def test_bits_of_an_index_are_a_remainder(cpu, flip):
    names = {k: ds.field(ds.f64, shape=(16, 32), needs_grad=True) for k in "xy"} | dict(ds=ds)
    line = "y[i, j] = x[(i + 1) & 15, j] * x[i, (j - 1) & 31]"
    if flip:
        line = line.replace("(i + 1) & 15", "15 & (i + 1)")
    ir = adjoint(names, line, box="16, 32")
    found, made = gathered(ir)
    assert made
    assert_the_same(ir, found)


def test_parameters_are_summed_beside_and_clears_trail(fields):
    ir = adjoint(fields, STENCIL)
    found, made = gathered(ir)
    *_, inside, left = found.tasks
    assert inside in made
    assert {s.mem.name for s in statements(inside.body) if isinstance(s, Atomic)} == {
        "x.grad",
        "p.grad",
    }
    assert [type(s).__name__ for s in left.body.stmts] == ["Store"]
    assert left.lag == 1


def test_a_clear_does_not_trail_what_reads_it_elsewhere(fields):
    # The lane clears the element of a neighbour.
    line = "y[(i + 1) % H, j] = x[(i + 1) % H, j] * p[0] + x[i, j] * x[(i - 1) % H, j]"
    ir = adjoint(fields, line)
    found, _ = gathered(ir)
    assert found.tasks[-1].lag is None
    assert_the_same(ir, found)


@pytest.mark.parametrize("far", [4, 5, 9])
def test_a_clear_does_not_trail_what_is_read_around_the_torus(fields, far):
    # Axes are cut by four lanes at most: an interior reads farther rows at the other end of the box.
    ir = adjoint(fields, f"y[i, j] = x[(i + {far}) % H, j] * x[i, (j + 1) % W]", sizes=SIZES)
    found, made = gathered(ir)
    assert made
    assert found.tasks[-1].lag == (4 if far == 4 else None)
    assert_the_same(ir, found, (H, W))


def test_the_nearest_neighbour_counts(fields):
    ir = adjoint(fields, "y[i, j] = x[(i - 1 + H) % H, j] * x[i, j]")
    found, _ = gathered(ir)
    assert found.tasks[-1].lag == 1


def test_far_neighbours_of_boxes_of_unknown_size_stay(fields):
    # A difference of two of them need not fit in an index.
    ir = adjoint(fields, "y[i, j] = x[(i + 100000) % H, j] * x[i, j]", sizes=SIZES)
    assert gathered(ir)[0] is ir


@pytest.mark.parametrize("at", ["(i + 1) % H, (i + 1) % H", "(i + 1) % H, i", "i, (i + 1) % H"])
def test_diagonals_stay(fields, at):
    """One axis tells both components: which of them is the element's own place is not known."""
    text = f"@ds.kernel\ndef kernel():\n    for i in range(H): y[i, 0] = x[{at}] * x[i, i]\n"
    make(text, fields)
    ir = fields["kernel"]._only(()).derivative.ir
    assert gathered(ir)[0] is ir


def test_sums_in_loops_stay_beside(fields):
    # What is left then is more than clears.
    line = """d = x[(i + 1) % H, j] * x[i, j]
        for k in range(3): d += z[i, j] * z[k, j]
        y[i, j] = d"""
    ir = adjoint(fields, line)
    found, _ = gathered(ir)
    assert found.tasks[-1].lag is None
    assert_the_same(ir, found)


def test_a_sum_that_the_task_clears_stays_beside(fields):
    line = "x[(i + 1) % H, j] += y[i, j]; x[i, j] += y[i, j]; z[0, 0] += y[i, j]; z[i, j] = 0"
    make(TEXT.format(line=line, box="H, W", sizes=""), fields)
    ir = fields["kernel"]._only(()).ir
    found, _ = gathered(ir)
    sums = {s.mem.name for t in found.tasks[:-1] for s in statements(t.body)
            if isinstance(s, Atomic)}  # fmt: skip
    assert sums == {"x"}


LEFT = {
    "a part of the box": (STENCIL, "(1, H), W", ""),
    "another period": (STENCIL.replace("% H", "% (H - 1)"), "H, W", ""),
    "beside a plain neighbour": (STENCIL + " + x[i + 1, j]", "H - 1, W", ""),
    "one neighbour": ("y[i, j] = x[(i + 1) % H, j] * p[0]", "H, W", ""),
    "few lanes": (STENCIL.replace("% H", "% 3").replace("% W", "% 3"), "3, 3", ""),
    "a sum in a loop": (
        "for k in range(3):\n            y[i, j] += x[(i + 1) % H, j] * x[i, j] * k",
        "H, W",
        "",
    ),
}


@pytest.mark.parametrize("kind", LEFT)
def test_others_stay(fields, kind):
    line, box, sizes = LEFT[kind]
    ir = adjoint(fields, line, box, sizes)
    found, made = gathered(ir)
    assert found is ir
    assert not made


def test_what_the_task_reads_too_is_no_sum(fields):
    make(
        TEXT.format(line="x[(i + 1) % H, j] += y[i, j]\n        x[i, j] += z[i, j] * x[i, 0]",
                    box="H, W", sizes=""),
        fields,
    )  # fmt: skip
    ir = fields["kernel"]._only(()).ir
    assert gathered(ir)[0] is ir


def test_gradient_is_that_of_differences(fields):
    ir_line = GATHERED["branch"]
    make(TEXT.format(line=ir_line, box="H, W", sizes=""), fields)
    kernel, x, y, p = (fields[k] for k in ("kernel", "x", "y", "p"))
    rng = np.random.default_rng(1)
    x0, way, weight = rng.uniform(0.2, 1, (H, W)), rng.normal(size=(H, W)), rng.normal(size=(H, W))
    signs = np.where(rng.uniform(size=(H, W)) < 0.5, -1, 1)
    p.fill(0.7)

    def value(step):
        x.from_numpy(signs * x0 + step * way)
        kernel()
        return float((weight * y.to_numpy()).sum())

    central = (value(1e-5) - value(-1e-5)) / 2e-5
    value(0.0)
    y.grad.from_numpy(weight)
    x.grad.fill(0)
    kernel.grad()
    assert float((x.grad.to_numpy() * way).sum()) == pytest.approx(central, rel=1e-8)
    assert not y.grad.to_numpy().any()
