"""Forward mode of every row of the op table: against differences, a complex step, and its adjoint."""

import numpy as np
import pytest

from diffsim.backends import interpreter
from diffsim.errors import AutodiffError, Span
from diffsim.ir import builder_stack, ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Block, Const, Kernel, Mem, Task, Value
from diffsim.ir.op import TABLE, NotDifferentiable, Zero
from diffsim.ir.types import bool_, f32, f64, i32, tensor
from diffsim.ir.verifier import verify
from diffsim.passes.autodiff.reverse import reverse
from diffsim.passes.tangent.forward import differentiate

SPAN = Span("test_tangent_ops.py", 1)
N = 24
ELEMENTWISE = [
    row
    for row in TABLE.values()
    if row.infer_type is None and not isinstance(row.vjp, (Zero, NotDifferentiable))
]
# NumPy's references of these are analytic functions of complex numbers.
ANALYTIC = """
    add sub mul div neg sqrt rsqrt exp log exp2 log2 sin cos tan asin acos atan sinh cosh tanh
""".split()
matrix, vector = tensor(f64, (2, 2)), tensor(f64, (2,))
STRUCTURAL = {
    "build": (lambda a, b: builder_stack.builder().build((a, b), vector), [f64, f64]),
    "extract": (lambda m: ops.extract(m, 1, 0), [matrix]),
    "insert": (lambda m, x: ops.insert(m, x, 0, 1), [matrix, f64]),
    "broadcast": (lambda x: ops.broadcast_to(x, matrix), [f64]),
    "sum": (ops.reduce_sum, [matrix]),
    "transpose": (ops.transpose, [matrix]),
    "matmul": (ops.matmul, [matrix, matrix]),
    "matmul with a vector": (ops.matmul, [matrix, vector]),
    "outer": (ops.outer, [vector, vector]),
}


class Formula:
    """`y[i] = formula(x0[i], x1[i], ...)` for all i, with duals and gradients, in the interpreter."""

    def __init__(self, formula, types, width=1):
        builder, lane = Builder(SPAN), Value(i32, "i")
        ins = [memory(f"x{k}", t, width) for k, t in enumerate(types)]
        with builder, builder.block() as stmts:
            y = formula(*(builder.load(m, (lane,)) for m in ins))
            self.out = memory("y", y.type, width)
            builder.store(self.out, (lane,), y)
        bounds = Block([], (Const(i32, 0), Const(i32, N)))
        task = Task((lane,), bounds, Block(stmts), SPAN)
        self.kernel = verify(Kernel("f", (), (*ins, self.out), (task,), SPAN))
        self.ins, self.width = ins, width
        self.made = differentiate(self.kernel, width=width)
        verify(self.made.ir)

    def value(self, xs):
        held = dict(zip(self.ins, (x.copy() for x in xs), strict=True)) | {
            self.out: empty(self.out)
        }
        interpreter.run(self.kernel, held)
        return held[self.out]

    def tangent(self, xs, dxs):
        """The tangent of the result; `dxs` holds None for what is no float."""
        held = dict(zip(self.ins, (x.copy() for x in xs), strict=True)) | {
            self.out: empty(self.out)
        }
        for m, dx in zip(self.ins, dxs, strict=True):
            if m.dual is not None:
                held[m.dual] = dx.copy()
        held[self.out.dual] = np.full(shape_of(self.out.dual), np.nan)
        interpreter.run(self.made.ir, held)
        return held[self.out.dual]

    def adjoint(self, xs, g):
        held = dict(zip(self.ins, (x.copy() for x in xs), strict=True)) | {
            self.out: empty(self.out)
        }
        for m in self.ins:
            if m.grad is not None:
                held[m.grad] = empty(m)
        held[self.out.grad] = g.copy()
        made = reverse(self.kernel)
        interpreter.run(made.ir, held)
        return [None if m.grad is None else held[m.grad] for m in self.ins]


def memory(name, t, width):
    mem = Mem(name, t, 1, (N,))
    if t.is_float:
        mem.dual = Mem(f"{name}.dual", t, 1 + (width > 1), (N, width) if width > 1 else (N,))
        mem.grad = Mem(f"{name}.grad", t, 1, (N,), is_grad=True)
    return mem


def shape_of(mem):
    return (*mem.shape, *mem.dtype.shape)


def empty(mem):
    return np.zeros(shape_of(mem), mem.dtype.scalar.numpy)


def dot(a, b):
    return sum(np.sum(x * y) for x, y in zip(a, b, strict=True) if x is not None)


def check(formula, types, xs, near=2e-8, *, alike=False):
    """Forward mode against central differences, and against reverse mode: <J dx, g> = <dx, J^T g>."""
    r = np.random.default_rng(7)
    f = Formula(formula, types)
    floats = [t.is_float for t in types]
    dxs = [r.uniform(-1, 1, x.shape) if fl else None for x, fl in zip(xs, floats, strict=True)]
    if alike:
        dxs = dxs[:1] * len(xs)
    dy = f.tangent(xs, dxs)
    ends = [
        f.value([x + h * dx if fl else x for x, dx, fl in zip(xs, dxs, floats, strict=True)])
        for h in (1e-6, -1e-6)
    ]
    slope = (ends[0] - ends[1]) / 2e-6
    np.testing.assert_allclose(dy, slope, rtol=near, atol=near * max(1, np.abs(slope).max()))
    g = r.uniform(-1, 1, dy.shape)
    there, back = dot([dy], [g]), dot(dxs, f.adjoint(xs, g))
    assert there == pytest.approx(back, rel=1e-13, abs=1e-13 * np.abs(dy).sum())
    return dxs, dy


@pytest.mark.parametrize("row", ELEMENTWISE, ids=lambda row: row.name)
def test_elementwise_rows(row):
    r = np.random.default_rng(3)
    types = [bool_ if letter == "B" else f64 for letter in row.operands]
    xs = [
        r.integers(0, 2, N).astype(bool) if t is bool_ else r.uniform(lo, hi, N)
        for t, (lo, hi) in zip(types, row.sample, strict=True)
    ]
    # Its arguments are one number, made in two ways.
    dxs, dy = check(row, types, xs, alike=row.name == "derived_as")
    if row.name in ANALYTIC:
        step = row.ref(*(x + 1e-30j * dx for x, dx in zip(xs, dxs, strict=True))).imag / 1e-30
        np.testing.assert_allclose(dy, step, rtol=1e-13, atol=1e-14)


def test_all_analytic_rows_are_there():
    assert set(ANALYTIC) <= {row.name for row in ELEMENTWISE}


@pytest.mark.parametrize("name", STRUCTURAL)
def test_rows_on_whole_tensors(name):
    formula, types = STRUCTURAL[name]
    r = np.random.default_rng(5)
    check(formula, types, [r.uniform(-2, 2, (N, *t.shape)) for t in types])


def test_every_op_on_tensors_says_how_it_is_linear():
    structural = {row.name for row in TABLE.values() if row.infer_type is not None}
    assert {row.name for row in TABLE.values() if row.linear} == structural
    assert {name.split()[0] for name in STRUCTURAL} == structural


def test_scalars_among_vectors_and_other_precisions():
    mixed = [f64, vector, tensor(f32, (2,))]
    r = np.random.default_rng(6)

    def formula(s, v, w):
        c = ops.cast_to(w, f64)
        return ops.minimum(s * v, c) / (v * v + 1.0) + ops.select(s > 0, s, c)

    f = Formula(formula, mixed)
    xs = [r.uniform(-1, 1, (N, *t.shape)).astype(t.scalar.numpy) for t in mixed]
    dxs = [r.uniform(-1, 1, x.shape).astype(x.dtype) for x in xs]
    there = f.tangent(xs, dxs)
    g = r.uniform(-1, 1, there.shape)
    # The adjoint of a conversion to f64 is rounded to f32.
    assert dot([there], [g]) == pytest.approx(dot(dxs, f.adjoint(xs, g)), rel=1e-6)


@pytest.mark.parametrize("row", ELEMENTWISE, ids=lambda row: row.name)
def test_several_tangents_are_those_of_single_runs(row):
    r = np.random.default_rng(4)
    types = [bool_ if letter == "B" else f64 for letter in row.operands]
    xs = [
        r.integers(0, 2, N).astype(bool) if t is bool_ else r.uniform(lo, hi, N)
        for t, (lo, hi) in zip(types, row.sample, strict=True)
    ]
    dxs = [None if t is bool_ else r.uniform(-1, 1, (N, 4)) for t in types]
    together, single = Formula(row, types, 4), Formula(row, types)
    found = together.tangent(xs, dxs)
    for k in range(4):
        alone = single.tangent(xs, [None if d is None else d[:, k].copy() for d in dxs])
        np.testing.assert_allclose(found[:, k], alone, rtol=1e-14, atol=1e-15)


def infinite_slopes():
    zero = np.zeros(N)
    return {
        "sqrt": (ops.sqrt, [zero]),
        "log": (ops.log, [zero]),
        "pow": (ops.power, [zero, zero + 0.5]),
        "div": (ops.div, [zero + 1, zero]),
        "asin": (ops.asin, [zero + 1]),
        "acos": (ops.acos, [zero - 1]),
        "atan2": (ops.atan2, [zero, zero]),
    }


@pytest.mark.parametrize("name", infinite_slopes())
def test_a_tangent_of_0_stays_0_where_the_slope_is_infinite(name):
    row, xs = infinite_slopes()[name]
    f = Formula(row, [f64] * len(xs))
    np.testing.assert_array_equal(f.tangent(xs, [np.zeros(N)] * len(xs)), np.zeros(N))


def test_what_a_select_does_not_take_does_not_count():
    def formula(x):
        return ops.select(x > 0, ops.log(x) * x, 2.0 * x)

    f = Formula(formula, [f64])
    xs = np.linspace(-1.0, 1.0, N)
    xs[N // 2] = 0.0
    want = np.where(xs > 0, np.log(np.where(xs > 0, xs, 1)) + 1, 2.0)
    np.testing.assert_allclose(f.tangent([xs], [np.ones(N)]), want, rtol=1e-14)


def test_rows_without_a_derivative_are_refused():
    with pytest.raises(AutodiffError, match=r"ds\.trigamma has no derivative here"):
        Formula(ops.trigamma, [f64])
