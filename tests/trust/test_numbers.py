"""One definition of every op: constant, argument, element, vector, interpreter, GPU and Python agree.

For each op of the table and each type, on the numbers where definitions part: zeros of both signs, the ends
of the range, subnormals, infinities, NaN, divisors of 0, shifts beyond the width. What Python, C or NumPy
define is asked of them, not of the table.
"""

import itertools
import linecache
import math
from random import Random

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.errors import Span
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Const
from diffsim.ir.op import TABLE, Math
from diffsim.ir.types import SCALARS, bool_, of_width
from diffsim.passes.vectors import vectorize
from tests.cuda import emulated
from tests.fuzz import numbers as fuzz

TYPES = [t for t in SCALARS.values() if t is not bool_]
NUMBERS = [t.name for t in TYPES]
INTERNAL = {
    "int_div",
    "int_rem",
    "int_shl",
    "int_shr",
    "random_u64",
    "spectral_gradient",
    "drop_rounding",
    "cast",
}
ROWS = {r.name: r for r in TABLE.values() if r.infer_type is None and r.name not in INTERNAL}
UNSIGNED_ZERO = {"min", "max"}
"""Of 0 and -0 either may be the smaller one."""


def special(t):
    """Numbers of a type where something may go wrong."""
    if t.is_bool:
        return np.array([False, True])
    if t.is_float:
        info = np.finfo(t.numpy)
        tiny, least = info.smallest_subnormal, info.tiny
        numbers = [
            0.0,
            -0.0,
            1,
            -1,
            0.5,
            -0.5,
            1.5,
            -2.5,
            3,
            np.inf,
            -np.inf,
            np.nan,
            tiny,
            -tiny,
            least,
        ]
        numbers += [
            info.max,
            info.min,
            2.0**31,
            -(2.0**31) - 1,
            2.0**53 + 2,
            2.0**63,
            2.0**64,
            0.1,
            255.5,
        ]
        with np.errstate(over="ignore"):  # some are beyond an f16
            return np.array(numbers).astype(t.numpy)
    info = np.iinfo(t.numpy)
    numbers = [
        0,
        1,
        2,
        3,
        -1,
        -2,
        5,
        -7,
        7,
        8,
        31,
        32,
        33,
        63,
        64,
        info.max,
        info.max - 1,
        info.min,
    ]
    numbers += [info.min + 1, 100, 2**31, 2**53 + 1]
    return np.unique(np.array([n for n in numbers if info.min <= n <= info.max], t.numpy))


def fits(row, t):
    """Whether an op takes this type for its operands."""
    letters = set(row.operands) - {"B"}
    if not letters:
        return t.is_bool
    if row.result == "f" and f"f{t.bits}" not in SCALARS:
        return False
    (letter,) = letters
    return {"F": t.is_float, "I": t.is_int, "N": not t.is_bool, "J": not t.is_float, "T": True}[
        letter
    ]


def operands(row, t, seed=0, most=None):
    """The types and the columns of operands, every combination of special numbers."""
    kinds = [bool_ if letter == "B" else t for letter in row.operands]
    grid = np.array(list(itertools.product(*(range(len(special(k))) for k in kinds))))
    if most and len(grid) > most:
        grid = grid[sorted(Random(seed).sample(range(len(grid)), most))]
    return kinds, [special(k)[grid[:, j]] for j, k in enumerate(kinds)]


def result_type(row, kinds):
    if row.result == "b":
        return bool_
    if row.result in ("i", "f"):  # of the same width
        return of_width(row.result, kinds[0].bits)
    return kinds[row.operands.index(row.result)]


def reference(row, kinds, columns):
    """What the op gives in NumPy, in exactly its type."""
    with np.errstate(all="ignore"):
        return np.asarray(row.ref(*columns)).astype(result_type(row, kinds).numpy)


def same(row, got, want):
    """Where two results are not the same number; last bits of functions count as the same."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype.kind != "f":
        return got == want
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    if isinstance(row.lowering, Math) and row.name != "float_rem":
        with np.errstate(all="ignore"):
            near = np.abs(got - want) <= 8 * np.spacing(
                np.maximum(np.abs(want), np.finfo(want.dtype).tiny)
            )
        return equal | near
    if row.name in UNSIGNED_ZERO:
        return equal
    return equal & ((np.signbit(got) == np.signbit(want)) | np.isnan(want))


def explain(row, columns, got, want, where):
    wrong = ~same(row, got, want)
    cases = [
        f"{row.name}({', '.join(repr(c[k]) for c in columns)}) = {got[k]!r}, not {want[k]!r}"
        for k in np.flatnonzero(wrong)[:6]
    ]
    return f"{where}, {wrong.sum()} wrong:\n" + "\n".join(cases) if wrong.any() else ""


def run_text(text, space, name):
    file = f"<{name} {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), space)
    return space


class Grid:
    """Fields of every op's operands and results, and a kernel that applies all ops, each in its own loop."""

    def __init__(self, t, most=400):
        self.cases = {}
        self.space = {"ds": ds}
        self.t = t
        for k, (name, row) in enumerate(ROWS.items()):
            if fits(row, t):
                kinds, columns = operands(row, t, seed=k, most=most)
                self.cases[name] = row, kinds, columns, reference(row, kinds, columns)

    def compile(self):
        lines = ["@ds.kernel", "def apply():"]
        for name, (row, kinds, columns, want) in self.cases.items():
            for j, (kind, column) in enumerate(zip(kinds, columns, strict=True)):
                x = self.space[f"x_{name}_{j}"] = ds.field(kind, len(column))
                x.from_numpy(column)
            self.space[f"y_{name}"] = ds.field(result_type(row, kinds), len(want))
            self.space[f"op_{name}"] = row
            args = ", ".join(f"x_{name}_{j}[i]" for j in range(len(kinds)))
            lines.append(f"    for i in range({len(want)}):")
            lines.append(f"        y_{name}[i] = op_{name}({args})")
        run_text("\n".join(lines) + "\n", self.space, f"all of {self.t}")
        return self

    def compare(self, where, found):
        """`found` gives the results of an op."""
        wrong = [
            explain(row, columns, found(name), want, f"{where} of {self.t}")
            for name, (row, _, columns, want) in self.cases.items()
        ]
        assert not any(wrong), "\n".join(filter(None, wrong))


ALL = [*NUMBERS, "bool"]
SOME = ["f32", "f64", "i8", "i32", "u64"]


@pytest.mark.parametrize("t", ALL)
def test_elements_of_fields(t, request):
    if t not in ("f32", "i32"):  # LLVM's passes see the others in `test_lanes_that_run_together`
        request.getfixturevalue("quick_code")
    ds.init(arch=ds.cpu)
    grid = Grid(SCALARS[t]).compile()
    grid.space["apply"]()
    grid.compare("elements", lambda name: grid.space[f"y_{name}"].to_numpy())


@pytest.mark.parametrize("t", SOME)
def test_the_interpreter(t):
    ds.init(arch=ds.cpu)
    grid = Grid(SCALARS[t], most=80).compile()
    ir = grid.space["apply"]._only(()).ir
    memory = {mem: mem.handle().to_numpy() for mem in ir.mems}
    interpreter.run(ir, memory)
    results = {mem.name: array for mem, array in memory.items()}
    grid.compare("the interpreter", lambda name: results[f"y_{name}"])


@pytest.mark.parametrize("t", SOME)
def test_lanes_that_run_together(t, monkeypatch):
    monkeypatch.setattr(vectorize, "_ALWAYS", True)
    ds.init(arch=ds.cpu)
    grid = Grid(SCALARS[t]).compile()
    assert grid.space["apply"].llvm().count("masked") > 3
    grid.space["apply"]()
    grid.compare("vectors", lambda name: grid.space[f"y_{name}"].to_numpy())


@pytest.mark.parametrize("t", SOME)
def test_a_gpu(t, monkeypatch):
    emulated.install(monkeypatch.setattr, by_default=True)
    emulated.choose(block_dim=32, at_once=3, races=True)
    ds.init(arch=ds.cuda, offline_cache=False)
    try:
        grid = Grid(SCALARS[t], most=100).compile()
        grid.space["apply"]()
        grid.compare("a GPU", lambda name: grid.space[f"y_{name}"].to_numpy())
    finally:
        emulated.choose(block_dim=32, at_once=3, races=False)
        ds.reset()
        ds.init(arch=ds.cpu)


@pytest.mark.parametrize("t", SOME)
def test_arguments(t):
    ds.init(arch=ds.cpu)
    grid = Grid(SCALARS[t], most=60)
    grid.cases.pop("select")
    space = grid.space
    lines = ["@ds.kernel", f"def apply(n: ds.i32, a: ds.{t}, b: ds.{t}):"]
    for name, (row, kinds, _, want) in grid.cases.items():
        space[f"op_{name}"] = row
        space[f"y_{name}_{len(kinds)}"] = ds.field(result_type(row, kinds), len(want))
        lines.append(f"    if n < {len(want)}:")
        lines.append(
            f"        y_{name}_{len(kinds)}[n] = op_{name}({'a, b'[: 3 * len(kinds) - 2]})"
        )
    run_text("\n".join(lines) + "\n", space, f"arguments of {t}")
    for arity in (1, 2):
        mine = {k: v for k, v in grid.cases.items() if len(v[1]) == arity}
        operand = {name: columns for name, (_, _, columns, _) in mine.items()}
        for name, columns in operand.items():
            for n, row in enumerate(zip(*columns, strict=True)):
                a, b = (*row, row[0])[:2]
                space["apply"](n, a, b)
            row, _, _, want = mine[name]
            got = space[f"y_{name}_{arity}"].to_numpy()
            assert not explain(row, columns, got, want, "arguments"), explain(
                row, columns, got, want, "arguments"
            )


@pytest.mark.parametrize("t", ALL)
def test_constants(t):
    """Folded while the IR is built, by the frontend and by passes alike."""
    scalar = SCALARS[t]
    grid = Grid(scalar, most=None)
    builder = Builder(Span(__file__, 1))
    for name, (row, kinds, columns, want) in grid.cases.items():
        got = []
        for numbers in zip(*columns, strict=True):
            constants = [Const(k, x.item()) for k, x in zip(kinds, numbers, strict=True)]
            folded = builder.op(row, constants)
            assert isinstance(folded, Const), (name, numbers)
            got.append(folded.value)
        got = np.array(got, result_type(row, kinds).numpy)
        assert not explain(row, columns, got, want, "constants")


@pytest.mark.parametrize("t", ["f64", "i64", "bool"])
def test_calls_from_python(t):
    grid = Grid(SCALARS[t])
    for row, kinds, columns, want in grid.cases.values():
        got = [row(*(x.item() for x in numbers)) for numbers in zip(*columns, strict=True)]
        got = np.array(got, result_type(row, kinds).numpy)
        assert not explain(row, columns, got, want, "Python")


# ---- casts, and what Python and C say


def cast_in_python(number, to):
    """A conversion in whole numbers and doubles of Python."""
    if to.is_bool:
        return bool(number != 0)
    if to.is_float:
        return float(number)
    if isinstance(number, float):
        if math.isnan(number):
            return 0
        info = np.iinfo(to.numpy)
        return int(max(info.min, min(info.max, number if math.isinf(number) else int(number))))
    number = int(number) & (2**to.bits - 1)
    return number - 2**to.bits if to.kind == "i" and number >> (to.bits - 1) else number


def casts(t):
    numbers = special(t)
    want = {}
    with np.errstate(all="ignore"):
        for to in SCALARS.values():
            want[to] = np.array([cast_in_python(x.item(), to) for x in numbers], to.numpy)
            if t.kind in "iu" and to.name == "f32":  # one rounding, not two
                want[to] = numbers.astype(np.float32)
    return numbers, want


def alike(got, want):
    return np.array_equal(got, want, equal_nan=want.dtype.kind == "f")


def cast_kernel(t):
    numbers, want = casts(t)
    space = {"ds": ds, "x": ds.field(t, len(numbers)), "one": t}
    space["x"].from_numpy(numbers)
    lines = ["@ds.kernel", "def apply():", f"    for i in range({len(numbers)}):"]
    for to in want:
        space[f"y_{to}"], space[f"{to}_"] = ds.field(to, len(numbers)), to
        lines.append(f"        y_{to}[i] = ds.cast(x[i], {to}_)")
    for to in want:
        space[f"a_{to}"] = ds.field(to, len(numbers))
    lines += ["@ds.kernel", "def from_argument(i: ds.i32, a: one):"]
    lines += [f"    a_{to}[i] = ds.cast(a, {to}_)" for to in want]
    return run_text("\n".join(lines) + "\n", space, f"casts of {t}"), numbers, want


@pytest.mark.parametrize("simd", [False, True], ids=["plain", "simd"])
@pytest.mark.parametrize("t", ALL)
def test_casts(t, simd, monkeypatch):
    monkeypatch.setattr(vectorize, "_ALWAYS", simd)
    ds.init(arch=ds.cpu)
    space, numbers, want = cast_kernel(SCALARS[t])
    ir = space["apply"]._only(()).ir
    memory = {mem: mem.handle().to_numpy() for mem in ir.mems}
    interpreter.run(ir, memory)
    interpreted = {mem.name: array for mem, array in memory.items()}
    space["apply"]()
    for i, number in enumerate(numbers):
        space["from_argument"](i, number)
    builder = Builder(Span(__file__, 1))
    for to, numbers_there in want.items():
        folded = [builder.cast(Const(SCALARS[t], x.item()), to).value for x in numbers]
        from_python = [ds.cast(x.item(), to) for x in numbers]
        for where, got in (
            ("elements", space[f"y_{to}"].to_numpy()),
            ("arguments", space[f"a_{to}"].to_numpy()),
            ("the interpreter", interpreted[f"y_{to}"]),
            ("constants", np.array(folded, to.numpy)),
            ("Python", np.array(from_python, to.numpy)),
            ("a vector", ds.cast(ds.Vector(numbers), to).entries if t != "bool" else numbers_there),
        ):
            assert alike(got, numbers_there), (where, to, numbers, got, numbers_there)


@pytest.mark.parametrize("t", SOME)
def test_casts_on_a_gpu(t, monkeypatch):
    emulated.install(monkeypatch.setattr, by_default=True)
    emulated.choose(block_dim=32, at_once=3, races=True)
    ds.init(arch=ds.cuda, offline_cache=False)
    try:
        space, numbers, want = cast_kernel(SCALARS[t])
        space["apply"]()
        for to, numbers_there in want.items():
            assert alike(space[f"y_{to}"].to_numpy(), numbers_there), (to, numbers)
    finally:
        emulated.choose(block_dim=32, at_once=3, races=False)
        ds.reset()
        ds.init(arch=ds.cpu)


def test_casts_of_numbers_that_are_written():
    """They are doubles and whole numbers, as in Python: not rounded to the default float first."""

    @ds.kernel
    def kernel() -> ds.types.vector(8, ds.i64):
        return [
            ds.cast(3e9, ds.i32), ds.cast(300, ds.i8), ds.u8(-1), ds.cast(nan, ds.i32),
            ds.cast(16777217.0, ds.i32), ds.round(3e9, ds.i32), ds.floor(-1e30, dtype=ds.i64), ds.u8(-0.9),
        ]  # fmt: skip

    nan = math.nan
    ds.init(arch=ds.cpu)
    want = [2**31 - 1, 44, 255, 0, 16777217, 2**31 - 1, -(2**63), 0]
    assert list(kernel()) == want
    here = [
        ds.cast(3e9, ds.i32), ds.cast(300, ds.i8), ds.u8(-1), ds.cast(nan, ds.i32),
        ds.cast(16777217.0, ds.i32), ds.round(3e9, ds.i32), ds.floor(-1e30, dtype=ds.i64), ds.u8(-0.9),
    ]  # fmt: skip
    assert here == want
    assert ds.floor(ds.Vector([1.5, -1e30]), ds.i32).entries.tolist() == [1, -(2**31)]


@pytest.mark.parametrize("t", ["f64", "i64"])
def test_quotients_and_remainders_are_those_of_python(t):
    for name, python in (("floordiv", divmod), ("mod", divmod)):
        _, (a, b) = operands(ROWS[name], SCALARS[t])
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            if y == 0 or (t == "f64" and (math.isinf(x) or math.isnan(x + y))):
                continue
            want = python(x, y)[name == "mod"]
            got = ROWS[name](x, y)
            if t == "i64":
                want = cast_in_python(want, SCALARS["i64"])
            assert got == want, (name, x, y)
            assert t == "i64" or math.copysign(1, got) == math.copysign(1, want), (name, x, y)


@pytest.mark.parametrize("t", NUMBERS)
def test_shifts_and_bits_are_those_of_whole_numbers(t):
    scalar = SCALARS[t]
    if scalar.is_float:
        return
    for name in ("shl", "shr"):
        _, (a, n) = operands(ROWS[name], scalar)
        got = np.asarray(ROWS[name](a, n))
        for k, (x, y) in enumerate(zip(a.tolist(), n.tolist(), strict=True)):
            far = not 0 <= y < scalar.bits
            if name == "shl":
                want = 0 if far else cast_in_python(x << y, scalar)
            else:
                want = (-1 if x < 0 else 0) if far else x >> y
            assert got[k] == want, (name, x, y)


def test_division_by_0_of_floats_in_a_kernel():
    ds.init(arch=ds.cpu, default_fp=ds.f64)

    @ds.kernel
    def both(a: ds.f64, b: ds.f64) -> ds.types.vector(2, ds.f64):
        return [a // b, a % b]

    @ds.kernel
    def written() -> ds.types.vector(4, ds.f64):
        return [1.5 // -inf, 1.5 % -inf, ds.f64(1.5) // zero, ds.f64(1.5) % zero]

    inf, zero = math.inf, 0.0
    assert list(both(1.5, -inf)) == [-1.0, -inf] == list(written())[:2]
    for a, b, q in ((1.5, 0.0, inf), (-1.5, 0.0, -inf), (1.5, -0.0, -inf)):
        found = both(a, b)
        assert found[0] == q
        assert math.isnan(found[1])
    found = list(written())[2:]
    assert found[0] == inf
    assert math.isnan(found[1])


@pytest.mark.parametrize("seed", range(8))
def test_random_kernels(seed):
    """Of casts, quotients, shifts and atomic extremes of functions; `make fuzz` runs more of them."""
    text = fuzz.make(seed)
    assert fuzz.verdict(text, seed) == "right", text
    ds.init(arch=ds.cpu)


BIG = 10**400


@pytest.mark.parametrize(
    "call",
    [
        lambda f: ds.cast(BIG, ds.f32),
        lambda f: ds.i64(2**70),
        lambda f: ds.cast(["one", 2], ds.f32),
        lambda f: ds.i32(None),
        lambda f: ds.i32(1, 2),
        lambda f: ds.i32(),
        lambda f: ds.max(BIG, 1.0),
        lambda f: f["floats"].fill(BIG),
        lambda f: f["floats"].__setitem__(0, BIG),
        lambda f: f["vectors"].__setitem__(0, [BIG, 1]),
        lambda f: f["bytes"].__setitem__(0, np.int64(300)),
        lambda f: f["bytes"].fill(2**70),
        lambda f: f["bytes"].from_numpy([2**70, 1, 2]),
        lambda f: f["take"](BIG),
        lambda f: f["take"](a=BIG),
        lambda f: f["whole"](2**70),
        lambda f: f["store"](),
        lambda f: f["turns"](),
        lambda f: f["floats"].to_numpy("q9"),
        lambda f: ds.types.struct(a=ds.i8)(a=300),
    ],
)
def test_what_is_no_number_of_a_type_is_an_error_with_the_line(call):
    ds.init(arch=ds.cpu)
    f = {"floats": ds.field(ds.f32, 3), "bytes": ds.field(ds.i8, 3)}
    f["vectors"] = ds.Vector.field(2, ds.f32, 3)
    floats, big = f["floats"], BIG

    @ds.kernel
    def take(a: ds.f64) -> ds.f64:
        return a

    @ds.kernel
    def whole(a: ds.i64) -> ds.i64:
        return a

    @ds.kernel
    def store():
        floats[0] = floats[1] * big

    @ds.kernel
    def turns():
        for _ in range(2**70):
            floats[0] = 1.0

    f.update(take=take, whole=whole, store=store, turns=turns)
    with pytest.raises(ds.errors.DiffsimError) as caught:
        call(f)
    text = str(caught.value)
    assert "test_numbers.py" in text
    assert "^" in text
    assert "Hint: " in text
    assert max(map(len, text.splitlines())) < 220
