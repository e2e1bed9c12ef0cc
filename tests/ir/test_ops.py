"""Every row of the op table, from the row itself: documentation, values, derivatives, machine code.

An op added to the table is tested here without a line of test code. `Program` is the harness: a
kernel of one parallel loop that applies a formula to arrays, run by the interpreter or on the CPU.
"""

import ctypes
import itertools

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.backends.cpu import codegen as cpu_backend
from diffsim.backends.cuda import target as cuda_target
from diffsim.backends.llvm.parameter_block import ERROR, POOL, RUN, SEED, THREADS
from diffsim.backends.native.jit import Jit
from diffsim.backends.native.pool import Pool, launcher
from diffsim.backends.simd import libm
from diffsim.errors import Span
from diffsim.ir import builder_stack, ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Block, Const, Kernel, Let, Mem, Task, Value
from diffsim.ir.op import ANALYTIC, BY_REAL_PART, TABLE, UNKNOWN, ZERO, Math, NotDifferentiable, Op
from diffsim.ir.types import SCALARS, bool_, f32, f64, i8, i32, i64, tensor, u8, u32, u64
from diffsim.ir.verifier import verify
from diffsim.passes.pipeline import GPU_FUNCTIONS
from diffsim.passes.transforms.scalarize import scalarize

SPAN = Span("test_ops.py", 1)
FLOATS = [f32, f64]
INTS = [i32, i64, u8, u32, i8, u64]
TYPES_OF = {
    "F": FLOATS,
    "I": INTS,
    "N": FLOATS + INTS,
    "B": [bool_],
    "J": [*INTS, bool_],
    "T": [*FLOATS, *INTS, bool_],
}
ELEMENTWISE = [row for row in TABLE.values() if row.infer_type is None]
STRUCTURAL = [row for row in TABLE.values() if row.infer_type is not None]
# The last bits of a * b - c, and of a remainder, are those of its largest part.
CANCELS = {"mod"}


class Program:
    """`(y0[i], y1[i], ...) = formula(x0[i], x1[i], ...)` for all i, and the arrays."""

    def __init__(self, formula, inputs):
        """Takes the formula and (type, array of n values) for each of its arguments."""
        n = len(inputs[0][1])
        builder, lane = Builder(SPAN), Value(i32, "i")
        ins = [Mem(f"x{k}", t, 1, (n,)) for k, (t, _) in enumerate(inputs)]
        with builder, builder.block() as stmts:
            results = formula(*(builder.load(m, (lane,)) for m in ins))
            results = results if isinstance(results, tuple) else (results,)
            self.outs = [Mem(f"y{k}", v.type, 1, (n,)) for k, v in enumerate(results)]
            for m, v in zip(self.outs, results, strict=True):
                builder.store(m, (lane,), v)
        bounds = Block([], (Const(i32, 0), Const(i32, n)))
        task = Task((lane,), bounds, Block(stmts), SPAN)
        self.kernel = verify(Kernel("test", (), (*ins, *self.outs), (task,), SPAN))
        self.memory = dict(zip(ins, (x for _, x in inputs), strict=True))
        for m in self.outs:
            self.memory[m] = np.zeros((n, *m.dtype.shape), m.dtype.scalar.numpy)

    def interpret(self, change=lambda kernel: kernel):
        interpreter.run(verify(change(self.kernel)), self.memory)
        return [self.memory[m].copy() for m in self.outs]


class Cpu:
    """Compiles kernels and runs them on one thread."""

    def __init__(self):
        self.jit = Jit()
        self.pool = Pool(self.jit, 1)

    def run(self, kernel, memory):
        scalar = verify(scalarize(kernel), "scalarize")
        code = cpu_backend.lower(scalar, self.jit, fast_math=False)
        library = self.jit.load(self.jit.compile(code.text))
        slots, errors = (ctypes.c_int64 * code.layout.size)(), (ctypes.c_int64 * 8)()
        slots[POOL], slots[ERROR] = self.pool.handle, ctypes.addressof(errors)
        slots[SEED], slots[THREADS] = 0, 1
        for mem, k in code.layout.pointers.items():
            slots[k] = memory[mem].ctypes.data
        slots[RUN] = library.address("launch")
        launcher(self.jit, None)(ctypes.addressof(slots))


@pytest.fixture(scope="module")
def cpu():
    found = Cpu()
    yield found
    found.pool.close()


def types_of(row):
    """The scalar types that a row is tested with."""
    if row.name == "random_u64":
        return [u64]
    if row.name == "float_of_bits":
        return [i32, i64]
    (letter,) = set(row.operands) - {"B"} or {"B"}
    return TYPES_OF[letter]


def draw(row, t, n, seed=0):
    """(type, n values) for each operand, from the row's sample."""
    rng = np.random.default_rng(seed)
    drawn = []
    for letter, (lo, hi) in zip(row.operands, row.sample, strict=True):
        kind = bool_ if letter == "B" else t
        if kind.is_float:
            x = rng.uniform(lo, hi, n)
        elif kind.is_bool:
            x = rng.integers(0, 2, n)
        else:
            least = max(np.ceil(lo), 0) if kind.kind == "u" else np.ceil(lo)
            x = rng.integers(int(least), int(np.floor(hi)) + 1, n)
        drawn.append((kind, x.astype(kind.numpy)))
    return drawn


def reference(row, inputs):
    with np.errstate(all="ignore"):
        if row.name == "random_u64":
            return np.array([row.ref(*at) for at in zip(*(x for _, x in inputs), strict=True)])
        return row.ref(*(x for _, x in inputs))


def close(have, want, row, inputs, *, f64_tolerance):
    """Whole numbers exactly, floats to the tolerance of their type."""
    want = np.asarray(want)
    assert have.dtype == want.dtype
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(have, want)
        return
    rtol = f64_tolerance if want.dtype == np.float64 else max(2e-6, f64_tolerance)
    largest = max(float(np.abs(x).max()) for _, x in inputs)
    atol = 4 * np.finfo(want.dtype).eps * largest if row.name in CANCELS else 0
    np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)


def name(thing):
    return thing.name if hasattr(thing, "operands") else str(thing)


CASES = [(row, t) for row in ELEMENTWISE for t in types_of(row)]


# ---- what a row says


@pytest.mark.parametrize("row", TABLE.values(), ids=name)
def test_row_is_complete(row):
    assert row.doc.endswith(".")
    assert TABLE[row.name] is row
    n = len(row.operands)
    if row.infer_type is None:
        assert len(row.sample) == n
        assert all(lo < hi for lo, hi in row.sample)
    if isinstance(row.vjp, tuple):
        assert len(row.vjp) == n
        assert all(r is ZERO or isinstance(r, NotDifferentiable) or callable(r) for r in row.vjp)
    else:
        assert (
            row.vjp is ZERO or isinstance(row.vjp, NotDifferentiable) or row.infer_type is not None
        )
    assert row.result in {"", "b", "i", "f", *row.operands}


def test_public_names_are_rows():
    assert set(ops.PUBLIC) == {row.name for row in TABLE.values() if row.public}
    assert {thing.name for thing in vars(ops).values() if isinstance(thing, Op)} == set(TABLE)


TARGETS = {"cpu": libm.FUNCTIONS, "cuda": cuda_target.FUNCTIONS}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("row", TABLE.values(), ids=name)
def test_every_row_has_a_lowering_on_every_target(row, target):
    if isinstance(row.lowering, Math):
        assert row.lowering.name in TARGETS[target] or row.lowering.formula is not None


@pytest.mark.parametrize("target", TARGETS)
def test_targets_name_no_function_that_no_row_has(target):
    named = {row.lowering.name for row in TABLE.values() if isinstance(row.lowering, Math)}
    assert set(TARGETS[target]) <= named


def test_formulas_are_for_targets_without_the_function():
    """A pipeline writes out the formulas of the functions that its target does not have, and no others."""
    both = {
        row.lowering.name
        for row in TABLE.values()
        if isinstance(row.lowering, Math) and row.lowering.formula is not None
    }
    assert both & set(TARGETS["cuda"]) == GPU_FUNCTIONS
    assert both & set(TARGETS["cpu"]) == set()


# ---- values


@pytest.mark.parametrize(("row", "t"), CASES, ids=name)
def test_interpreter_follows_the_reference(row, t):
    inputs = draw(row, t, 12)
    (have,) = Program(row, inputs).interpret()
    want = np.asarray(reference(row, inputs)).astype(have.dtype)
    np.testing.assert_array_equal(have, want)
    assert have.dtype == row.result_type(dict.fromkeys(row.operands, t)).numpy


EXPANDED = [(row, t) for row, t in CASES if row.formula(())]


@pytest.mark.parametrize(("row", "t"), EXPANDED, ids=name)
def test_expansion_equals_reference(row, t):
    inputs = draw(row, t, 24, seed=1)
    program = Program(row, inputs)
    (want,) = program.interpret()
    (have,) = program.interpret(scalarize)
    close(have, want, row, inputs, f64_tolerance=1e-12)


@pytest.mark.parametrize("row", ELEMENTWISE, ids=name)
def test_vectors_are_done_element_by_element(row):
    (t, *_) = types_of(row)
    shape = () if row.name == "random_u64" else (2,)
    inputs = [(tensor(kind, shape), x.reshape(-1, *shape)) for kind, x in draw(row, t, 8, seed=2)]
    program = Program(row, inputs)
    (have,) = program.interpret()
    want = reference(row, draw(row, t, 8, seed=2))
    np.testing.assert_array_equal(have.ravel(), np.asarray(want).astype(have.dtype))
    close(program.interpret(scalarize)[0], have, row, inputs, f64_tolerance=1e-12)


@pytest.mark.parametrize("row", [r for r in ELEMENTWISE if r.name != "random_u64"], ids=name)
def test_of_pythons_numbers_it_is_one(row):
    """In Python `ds.sin(0.5)` is a float, not NumPy's: it prints as one, and JSON takes it."""
    for t in types_of(row):
        for lane in range(3):
            args = [x[lane].item() for _, x in draw(row, t, 3, seed=13)]
            want = {"b": bool, "i": int, "f": float}.get(row.result) or type(args[-1])
            assert type(row(*args)) is want, args


@pytest.mark.parametrize("row", [r for r in ELEMENTWISE if r.public], ids=name)
def test_of_pythons_vectors_it_is_one(row):
    """`ds.sin(ds.Vector([0.5, 1.0]))` is a vector of Python's numbers."""
    for t in types_of(row):
        args = [x.tolist() for _, x in draw(row, t, 3, seed=14)]
        found = row(*(ds.Vector(x) for x in args))
        want = [row(*numbers) for numbers in zip(*args, strict=True)]
        assert isinstance(found, ds.Matrix)
        assert [type(x) for x in found] == [type(x) for x in want]
        assert list(found) == want


# ---- machine code


@pytest.mark.parametrize("row", ELEMENTWISE, ids=name)
def test_cpu_equals_reference(row, cpu):
    compare_on_cpu(cpu, row, [draw(row, t, 37, seed=3) for t in types_of(row)])


WRAPS = (
    "add accumulate sub mul neg abs sign min max lt ge eq bit_and bit_or bit_xor bit_not".split()
)


@pytest.mark.parametrize("row", [TABLE[k] for k in WRAPS], ids=name)
def test_integers_wrap_on_cpu(row, cpu):
    rng = np.random.default_rng(4)
    many = []
    for t in INTS:
        info = np.iinfo(t.numpy)
        at = [rng.integers(info.min, info.max, 40, t.numpy, endpoint=True) for _ in row.operands]
        at[0][:2] = info.min, info.max
        many.append([(t, x) for x in at])
    compare_on_cpu(cpu, row, many)


DIVISIONS = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "truncdiv": lambda a, b: int(a / b),
    "raw_mod": lambda a, b: a - b * int(a / b),
}


@pytest.mark.parametrize("row", [TABLE[k] for k in DIVISIONS], ids=name)
def test_division_has_pythons_signs(row, cpu):
    pairs = [(a, b) for a in range(-7, 8) for b in (-3, -2, -1, 1, 2, 3)]
    want = [DIVISIONS[row.name](a, b) for a, b in pairs]
    for t in (i8, i32, i64):
        inputs = [(t, np.array(side, t.numpy)) for side in zip(*pairs, strict=True)]
        program = Program(row, inputs)
        for have in (program.interpret(), program.interpret(scalarize)):
            assert have[0].tolist() == want
        cpu.run(program.kernel, program.memory)
        assert program.memory[program.outs[0]].tolist() == want


SHIFTS = [TABLE["shl"], TABLE["shr"]]


@pytest.mark.parametrize("row", SHIFTS, ids=name)
def test_shifts_of_any_number(row, cpu):
    rng = np.random.default_rng(5)
    many = []
    for t in INTS:
        info = np.iinfo(t.numpy)
        x = rng.integers(info.min, info.max, 20, t.numpy, endpoint=True)
        many.append([(t, x), (t, rng.integers(0, t.bits, 20).astype(t.numpy))])
    compare_on_cpu(cpu, row, many)


def compare_on_cpu(cpu, row, many):
    """One compilation: each set of inputs is a task of its own."""
    programs = [Program(row, inputs) for inputs in many]
    whole = Kernel(
        "test",
        (),
        tuple(m for p in programs for m in p.kernel.mems),
        tuple(t for p in programs for t in p.kernel.tasks),
        SPAN,
    )
    memory = {m: x for p in programs for m, x in p.memory.items()}
    cpu.run(verify(whole), memory)
    for program, inputs in zip(programs, many, strict=True):
        have = memory[program.outs[0]].copy()
        close(have, program.interpret()[0], row, inputs, f64_tolerance=2e-15)


@pytest.mark.parametrize("t", [*FLOATS, *INTS, bool_], ids=name)
def test_cast(t, cpu):
    rng = np.random.default_rng(6)
    inputs = []
    for have in SCALARS.values():
        low = 0 if "u" in (t.kind, have.kind) or "b" in (t.kind, have.kind) else -100
        x = rng.uniform(low, 100, 20) if have.is_float else rng.integers(low, 100, 20)
        inputs.append((have, (x % 2 if have.is_bool else x).astype(have.numpy)))

    def casts(*xs):
        return tuple(builder_stack.builder().cast(x, t) for x in xs)

    program = Program(casts, inputs)
    want = [x.astype(t.numpy) for _, x in inputs]
    for have in (program.interpret(), program.interpret(scalarize)):
        for a, b in zip(have, want, strict=True):
            np.testing.assert_array_equal(a, b)
    cpu.run(program.kernel, program.memory)
    for m, b, (have, _) in zip(program.outs, want, inputs, strict=True):
        np.testing.assert_array_equal(program.memory[m], b, err_msg=f"{have} to {t}")


# ---- derivatives


def derivatives(row, inputs, g):
    """What each argument's rule makes of the incoming adjoint; None for those that have no rule."""

    def formula(g, *xs):
        y = row(*xs)
        rules = [row.rule(k) for k in range(len(xs))]
        made = [r(g, *xs, y) for r in rules if callable(r)]
        assert all(v.type is g.type for v in made)
        return (y, *made)

    _, *have = Program(formula, [(f64, g), *inputs]).interpret()
    found = iter(have)
    return [next(found) if callable(row.rule(k)) else None for k in range(len(inputs))]


def difference(row, inputs, k, h):
    """Central difference of the reference with respect to argument k."""

    def at(step):
        xs = [x + step if j == k else x for j, (_, x) in enumerate(inputs)]
        return reference(row, [(t, x) for (t, _), x in zip(inputs, xs, strict=True)])

    return (at(h) - at(-h)) / (2 * h)


DECLARED = {"stop_grad", "derived_as"}  # whose derivatives are those that the program wants
SMOOTH = [row for row in ELEMENTWISE if f64 in types_of(row) and row.result != "b"]


@pytest.mark.parametrize("row", SMOOTH, ids=name)
def test_rules_are_derivatives(row):
    n = 8
    inputs = draw(row, f64, n, seed=7)
    g = np.random.default_rng(8).uniform(0.5, 2, n)
    for k, have in enumerate(derivatives(row, inputs, g)):
        if row.operands[k] == "B" or isinstance(row.rule(k), NotDifferentiable):
            assert have is None
            continue
        if have is None:
            assert row.rule(k) is ZERO
            if row.name not in DECLARED:
                assert not difference(row, inputs, k, 1e-6).any()
            continue
        coarse, fine = (difference(row, inputs, k, h) for h in (1e-3, 5e-4))
        # Richardson: the error of a step's square cancels.
        want = g * (1 if row.name in DECLARED else (4 * fine - coarse) / 3)
        np.testing.assert_allclose(have, want, rtol=1e-8, atol=1e-9, err_msg=f"argument {k}")


@pytest.mark.parametrize("row", SMOOTH, ids=name)
def test_imaginary_parts_are_derivatives(row):
    """A tiny imaginary step of an argument, against Richardson's differences of the reference."""
    how = row.continuation
    if how is BY_REAL_PART:
        # The rules are compared with differences above, but for that of `stop_grad`.
        assert all(row.rule(k) is ZERO for k in range(len(row.operands)))
        return
    if how is UNKNOWN:
        assert isinstance(row.rule(0), NotDifferentiable)
        return
    inputs = draw(row, f64, 8, seed=7)
    for k in range(len(inputs)):
        if row.operands[k] == "B" or (row.name, k) in (("drop_rounding", 1), ("derived_as", 0)):
            continue
        moved = [
            x if t.is_bool else x.astype(complex) + 1e-30j * (j == k)
            for j, (t, x) in enumerate(inputs)
        ]
        have = np.imag((row.ref if how is ANALYTIC else how)(*moved)) / 1e-30
        coarse, fine = (difference(row, inputs, k, h) for h in (1e-3, 5e-4))
        want = np.ones(8) if row.name in DECLARED else (4 * fine - coarse) / 3
        np.testing.assert_allclose(have, want, rtol=1e-8, atol=1e-9, err_msg=f"argument {k}")


def test_stop_grad_is_constant():
    assert ops.stop_grad.vjp is ZERO


def test_rules_of_casts_change_the_adjoints_type():
    def formula(x, g):
        y = builder_stack.builder().cast(x, f64)
        return ops.cast.rule(0)(g, x, y)

    program = Program(formula, [(f32, np.ones(1, np.float32)), (f64, np.full(1, 3.0))])
    assert program.outs[0].dtype is f32
    assert program.interpret()[0] == 3.0


def derivative_at(row, *point, g=1.0):
    inputs = [
        (bool_ if letter == "B" else f64, np.array([x], bool if letter == "B" else np.float64))
        for letter, x in zip(row.operands, point, strict=True)
    ]
    return [None if d is None else float(d[0]) for d in derivatives(row, inputs, np.array([g]))]


@pytest.mark.parametrize(
    ("row", "point", "want"),
    [
        (ops.sqrt, (0.0,), [0.0]),
        (ops.absolute, (0.0,), [0.0]),
        (ops.fabs, (0.0,), [0.0]),
        (ops.asin, (1.0,), [0.0]),
        (ops.asin, (-1.0,), [0.0]),
        (ops.acos, (1.0,), [0.0]),
        (ops.acos, (-1.0,), [0.0]),
        (ops.atan2, (0.0, 0.0), [0.0, 0.0]),
        (ops.power, (0.0, 0.5), [0.0, 0.0]),
        (ops.power, (0.0, 0.0), [0.0, 0.0]),
        (ops.power, (0.0, 1.0), [1.0, 0.0]),
        (ops.power, (0.0, 2.0), [0.0, 0.0]),
        (ops.power, (-2.0, 3.0), [12.0, 0.0]),
        (ops.minimum, (2.0, 2.0), [1.0, 0.0]),
        (ops.maximum, (2.0, 2.0), [1.0, 0.0]),
        (ops.minimum, (1.0, 2.0), [1.0, 0.0]),
        (ops.maximum, (1.0, 2.0), [0.0, 1.0]),
        (ops.select, (True, 1.0, 2.0), [None, 1.0, 0.0]),
        (ops.select, (False, 1.0, 2.0), [None, 0.0, 1.0]),
    ],
    ids=name,
)
def test_documented_points(row, point, want):
    assert derivative_at(row, *point) == want


@pytest.mark.parametrize("row", [r for r in SMOOTH if r.vjp is not ZERO], ids=name)
@pytest.mark.parametrize("g", [0.0, 1.0])
def test_no_nan_where_the_op_is_finite(row, g):
    for point in itertools.product(
        [-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0], repeat=len(row.operands)
    ):
        with np.errstate(all="ignore"):
            finite = np.isfinite(row.ref(*np.array(point)))
        if finite:
            found = [d for d in derivative_at(row, *point, g=g) if d is not None]
            assert not np.isnan(found).any(), (point, found)


EXTREMES = [0.0, -0.0, 0.5, 1.0, 1e-300, 5e-324, 1e3, 1e200, 1.7e308, np.inf, np.nan]
EXTREMES = np.array([*EXTREMES, *(-x for x in EXTREMES[2:])])


class Everything:
    def __contains__(self, _):
        return True


def adjoints_of_nothing(make, inputs, y):
    """What the rules make of an incoming adjoint of 0 that a select has set to 0."""

    def formula(g, *xs):
        make(*xs)
        let = builder_stack.builder().stmts[-1]
        assert isinstance(let, Let)
        builder_stack.builder().cut = Everything()
        rules = [let.op.rule(k) for k in range(len(let.args))]
        made = [r(g, *let.args, let.out) for r in rules if callable(r)]
        return tuple(v for v in made if v is not None)

    zeros = np.zeros((len(inputs[0][1]), *y.shape))
    program = Program(formula, [(y, zeros), *inputs])
    with np.errstate(all="ignore"):
        return [*program.interpret(), *program.interpret(scalarize)]


@pytest.mark.parametrize("row", [r for r in SMOOTH if r.vjp is not ZERO], ids=name)
def test_an_adjoint_of_0_stays_0(row):
    """Whatever the arguments are: a value that was thrown away has no derivative."""
    if isinstance(row.rule(0), NotDifferentiable):
        return
    grid = np.array(list(itertools.product(EXTREMES, repeat=len(row.operands)))).T
    inputs = [
        (bool_ if letter == "B" else f64, x > 0 if letter == "B" else x)
        for letter, x in zip(row.operands, grid, strict=True)
    ]
    for found in adjoints_of_nothing(row, inputs, f64):
        wrong = np.flatnonzero(found != 0)
        assert not wrong.size, (grid[:, wrong[0]], found[wrong[0]])


def test_norm_at_zero_has_no_nan():
    def formula(v):
        square = v * v
        total = ops.reduce_sum(square)
        length = ops.sqrt(total)
        builder = builder_stack.builder()
        g = ops.sqrt.rule(0)(builder.const(1.0, f64), total, length)
        g = ops.reduce_sum.rule(0)(g, square, total)
        return ops.mul.rule(0)(g, v, v, square) + ops.mul.rule(1)(g, v, v, square)

    vec3 = tensor(f64, (3,))
    points = np.array([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]])
    (have,) = Program(formula, [(vec3, points)]).interpret()
    np.testing.assert_allclose(have, [[0, 0, 0], [0.6, 0, 0.8]])


# ---- tensors as wholes

VEC2, VEC3 = tensor(f64, (2,)), tensor(f64, (3,))
MAT23, MAT32 = tensor(f64, (2, 3)), tensor(f64, (3, 2))


def build(t):
    return lambda *xs: builder_stack.builder().build(xs, t)


STRUCTURES = {
    "build vec3": (build(VEC3), [f64] * 3),
    "build mat2x3": (build(MAT23), [f64] * 6),
    "extract [1]": (lambda v: ops.extract(v, 1), [VEC3]),
    "extract [1, 2]": (lambda m: ops.extract(m, 1, 2), [MAT23]),
    "extract [i]": (ops.extract, [VEC2, i32]),
    "extract [i, j]": (ops.extract, [MAT23, i32, i32]),
    "insert [1]": (lambda v, x: ops.insert(v, x, 1), [VEC3, f64]),
    "insert [1, 2]": (lambda m, x: ops.insert(m, x, 1, 2), [MAT23, f64]),
    "insert [i]": (ops.insert, [VEC2, f64, i32]),
    "insert [i, j]": (ops.insert, [MAT23, f64, i32, i64]),
    "broadcast vec3": (
        lambda x: builder_stack.builder().broadcast(x, VEC3),
        [f64],
    ),
    "broadcast mat2x3": (
        lambda x: builder_stack.builder().broadcast(x, MAT23),
        [f64],
    ),
    "sum vec3": (ops.reduce_sum, [VEC3]),
    "sum mat2x3": (ops.reduce_sum, [MAT23]),
    "transpose": (ops.transpose, [MAT23]),
    "matmul mat vec": (ops.matmul, [MAT23, VEC3]),
    "matmul mat mat": (ops.matmul, [MAT23, MAT32]),
    "outer": (ops.outer, [VEC2, VEC3]),
}


def draw_tensors(kinds, n=4):
    rng = np.random.default_rng(9)
    return [
        (t, rng.uniform(-2, 2, (n, *t.shape)) if t.is_float else rng.integers(0, 2, n, t.numpy))
        for t in kinds
    ]


def test_every_structural_row_is_here():
    assert {key.split()[0] for key in STRUCTURES} == {row.name for row in STRUCTURAL}


@pytest.mark.parametrize("case", STRUCTURES)
def test_structures_on_cpu(case, cpu):
    make, kinds = STRUCTURES[case]
    program = Program(make, draw_tensors(kinds))
    (want,) = program.interpret()
    (scalar,) = program.interpret(scalarize)
    cpu.run(program.kernel, program.memory)
    for have in (scalar, program.memory[program.outs[0]]):
        np.testing.assert_allclose(have, want, rtol=4e-16 * 4, atol=1e-15)


def test_structures_against_numpy():
    rng = np.random.default_rng(10)
    a, b, v = (rng.normal(size=(5, *s)) for s in ((2, 3), (3, 2), (3,)))
    mat23, mat32 = (MAT23, a), (MAT32, b)
    checks = [
        (ops.matmul, [mat23, mat32], a @ b),
        (ops.matmul, [mat23, (VEC3, v)], np.einsum("nij,nj->ni", a, v)),
        (ops.transpose, [mat23], a.swapaxes(1, 2)),
        (ops.reduce_sum, [mat23], a.sum(axis=(1, 2))),
        (ops.outer, [(VEC3, v), (VEC3, v)], v[:, :, None] * v[:, None, :]),
    ]
    for make, inputs, want in checks:
        np.testing.assert_allclose(Program(make, inputs).interpret()[0], want, atol=1e-14)


@pytest.mark.parametrize("case", STRUCTURES)
def test_an_adjoint_of_0_stays_0_in_structures(case):
    make, kinds = STRUCTURES[case]
    rng = np.random.default_rng(12)
    inputs = [
        (t, rng.choice(EXTREMES, (99, *t.shape)) if t.is_float else np.zeros(99, t.numpy))
        for t in kinds
    ]
    (y,) = Program(make, inputs).outs
    for found in adjoints_of_nothing(make, inputs, y.dtype):
        assert (found == 0).all()


@pytest.mark.parametrize("case", STRUCTURES)
def test_rules_of_structures(case):
    make, kinds = STRUCTURES[case]
    inputs = draw_tensors(kinds)
    forward = Program(make, inputs)
    (y,) = forward.interpret()
    w = np.random.default_rng(11).normal(size=y.shape)
    taken = []

    def formula(w, *xs):
        make(*xs)
        let = builder_stack.builder().stmts[-1]
        assert isinstance(let, Let)
        made = [let.op.rule(k)(w, *let.args, let.out) for k in range(len(let.args))]
        taken.extend(k for k, v in enumerate(made) if v is not None)
        assert all(v is not None or let.args[k].type.is_int for k, v in enumerate(made))
        return tuple(v for v in made if v is not None)

    adjoint = Program(formula, [(forward.outs[0].dtype, w), *inputs])
    have, scalar = adjoint.interpret(), adjoint.interpret(scalarize)
    assert taken == [k for k, t in enumerate(kinds) if t.is_float]
    for k, contribution, lowered in zip(taken, have, scalar, strict=True):
        x = inputs[k][1]
        np.testing.assert_allclose(lowered, contribution, atol=1e-14)
        for at in np.ndindex(*x.shape[1:]):
            sides = []
            for step in (0.5, -0.5):  # all of these ops are linear in each argument
                moved = x.copy()
                moved[(slice(None), *at)] += step
                changed = [*inputs[:k], (kinds[k], moved), *inputs[k + 1 :]]
                (out,) = Program(make, changed).interpret()
                sides.append((w * out).reshape(len(x), -1).sum(axis=1))
            np.testing.assert_allclose(
                contribution[(slice(None), *at)], sides[0] - sides[1], atol=1e-12
            )
