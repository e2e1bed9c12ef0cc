"""CUDA without a GPU: every row becomes PTX that ptxas accepts, and computes what it should.

Nothing here runs on a GPU. What the threads compute is seen with `emulator.py`.
"""

import re
from contextlib import contextmanager

import numpy as np
import pytest

from diffsim.backends.cuda.codegen import BLOCK_DIM, EntryPoint, emit_ptx, lower
from diffsim.backends.cuda.ptx import PtxError, assemble, find_libdevice, find_ptxas
from diffsim.errors import BackendError, Span
from diffsim.ir import ops, types
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Alloca,
    Arg,
    Atomic,
    Block,
    Check,
    Const,
    Dim,
    For,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Task,
    Value,
    While,
)
from diffsim.ir.op import TABLE, UNKNOWN, Instr, LLVMIntrinsic, Math, Op
from diffsim.ir.types import SCALARS, bool_, f32, f64, i32, i64, tensor, u8, u32, u64
from diffsim.ir.verifier import verify
from diffsim.passes.pipeline import GPU_FUNCTIONS
from diffsim.passes.transforms.dce import eliminate_dead_code
from diffsim.passes.transforms.demote_atomics import demote_atomics
from diffsim.passes.transforms.mark_uniform import mark_uniform
from diffsim.passes.transforms.reductions import hoist_reductions
from diffsim.passes.transforms.scalarize import scalarize
from tests.backends.emulator import Blocks

try:
    find_libdevice()
except PtxError:
    HAS_LIBDEVICE = False
else:
    HAS_LIBDEVICE = True

needs_libdevice = pytest.mark.skipif(not HAS_LIBDEVICE, reason="no libdevice here")

SPAN = Span("user.py", 7)
N = 64
FLOATS = [f32, f64]
INTS = [i32, i64, u8, u32, u64]
ALL = [*FLOATS, *INTS, bool_]
LETTERS = {"F": FLOATS, "I": INTS, "N": FLOATS + INTS, "B": [bool_], "J": [*INTS, bool_], "T": ALL}


# ---- kernels


def field(name, dtype, shape=(N,), **more):
    return Mem(name, dtype, len(shape), shape, **more)


class Draft:
    """A kernel under construction."""

    def __init__(self, name="k", *args):
        self.name, self.args = name, args
        self.mems, self.tasks = {}, []
        self.b = Builder(SPAN)

    def use(self, *mems):
        self.mems.update(dict.fromkeys(mems))
        return mems[0] if len(mems) == 1 else mems

    @contextmanager
    def parallel(self, *bounds, code=(), types_=i32):
        """A parallel task over 0..n for each of bounds (or lo..hi for a pair)."""
        axes = tuple(Value(types_, f"i{k}") for k in range(len(bounds)))
        pairs = [p if isinstance(p, tuple) else (0, p) for p in bounds]
        yields = tuple(
            v if isinstance(v, Value) else Const(types_, v) for pair in pairs for v in pair
        )
        with self.b as b, b.block() as stmts:
            yield axes if len(axes) > 1 else axes[0]
        self.tasks.append(Task(axes, Block(list(code), yields), Block(stmts), SPAN))

    @contextmanager
    def serial(self):
        with self.b as b, b.block() as stmts:
            yield
        self.tasks.append(Task((), Block([]), Block(stmts), SPAN))

    def kernel(self):
        made = Kernel(self.name, self.args, tuple(self.mems), tuple(self.tasks), SPAN)
        made = hoist_reductions(scalarize(verify(made), functions=GPU_FUNCTIONS))
        return mark_uniform(verify(eliminate_dead_code(demote_atomics(made))))


def check(kernel, *, fast_math=False, generations=(75, 120, 90)):
    """The PTX of each entry point; ptxas has to accept it for three generations of GPUs.

    LLVM writes the same version of PTX for 75 to 89, another one for 90, and its own choice for newer ones.
    """
    for sm in generations:
        ptx = emit_ptx(kernel, sm, fast_math=fast_math)
        if find_ptxas():
            assemble(ptx, sm)
        assert f".target sm_{sm}" in ptx
    entry = re.compile(r"^\.visible \.entry (\w+)\((.*?)^\}", re.MULTILINE | re.DOTALL)
    return dict(entry.findall(ptx))


# ---- every row of the table


def rows_of(t):
    """(row, operand types) of the rows that take a scalar of this type as last operand."""
    for row in TABLE.values():
        if row.result == "f" and f"f{t.bits}" not in SCALARS:  # no float of this width
            continue
        if row.infer_type is None and row.name != "cast" and t in LETTERS[row.operands[-1]]:
            yield row, [bool_ if letter == "B" else t for letter in row.operands]


def kernel_of_rows(t, only=None):
    """One task for each row: out[i] = row(a0[i], a1[i], ...)."""
    draft, named = Draft(f"rows_{t}"), {}
    outs = {x: field(f"out_{x}", x) for x in ALL}
    for row, operands in rows_of(t):
        if only is not None and row.name not in only:
            continue
        with draft.parallel(N) as i:
            ins = [draft.use(field(f"a{k}", x)) for k, x in enumerate(operands)]
            y = draft.b.op(row, [draft.b.load(m, (i,)) for m in ins])
            draft.b.store(draft.use(outs[y.type]), (i,), y)
        named[f"rows_{t}_task{len(draft.tasks) - 1}"] = row
    if only is None:
        for to in ALL:
            with draft.parallel(N) as i:
                a = draft.b.load(draft.use(field("a0", t)), (i,))
                draft.b.store(draft.use(outs[to]), (i,), draft.b.cast(a, to))
            named[f"rows_{t}_task{len(draft.tasks) - 1}"] = TABLE["cast"]
    return draft.kernel(), named


# Where libdevice starts a Newton iteration from, or takes 2 to the power of a whole number.
SEEDS = {f"{word}.approx.ftz.f{bits}" for word in ("rcp", "rsqrt") for bits in (32, 64)}
SEEDS |= {"ex2.approx.ftz.f32", "div.approx.ftz.f32"}
# CUDA's rsqrtf, rsqrt and exp2f: off by 2, 1 and 2 units in the last place (CUDA C++ Programming Guide).
WHOLE = {"rsqrt": {"rsqrt.approx.f32", "rsqrt.approx.f64"}, "exp2": {"ex2.approx.f32"}}
# libdevice's fmod divides roughly, as often as it takes; its result is exact (the same guide).
WHOLE |= {name: {"div.approx.f32"} for name in ("float_rem", "floordiv", "mod")}
# Formulas that call functions of libdevice.
CALLERS = {"floordiv", "mod", "digamma", "trigamma"}
# Worked out in f64 for f32 as well.
DOUBLE = {"digamma", "trigamma"}


@needs_libdevice
@pytest.mark.parametrize("t", ALL, ids=str)
def test_rows(t):
    kernel, named = kernel_of_rows(t)
    # What is done with integers is the same for all generations.
    made = check(kernel) if t in FLOATS else check(kernel, generations=(90,))
    assert made.keys() == named.keys()
    for name, row in named.items():
        code = made[name]
        assert "st.global" in code, row
        inexact = set(re.findall(r"[\w.]+\.(?:approx|ftz)[\w.]*", code))
        by_libdevice = isinstance(row.lowering, Math) or row.name in CALLERS
        allowed = SEEDS | WHOLE.get(row.name, set()) if by_libdevice else set()
        assert inexact <= allowed, row
        if t in FLOATS and row.name not in {"cast", *DOUBLE} and not isinstance(row.lowering, Math):
            assert f".f{96 - t.bits}" not in code, row
        if t in FLOATS and row.name in ("div", "sqrt"):
            assert f"{row.name}.rn.{t}" in code


STRUCTURE = {
    "build": lambda b, m, v, i: b.build([b.op(ops.extract, [v, k]) for k in (1, 0)], v.type),
    "extract": lambda b, m, v, i: b.op(ops.extract, [m, i, 1]),
    "insert": lambda b, m, v, i: b.op(ops.insert, [v, 3, i]),
    "broadcast": lambda b, m, v, i: b.broadcast(b.op(ops.extract, [v, 0]), m.type),
    "sum": lambda b, m, v, i: b.op(ops.reduce_sum, [m]),
    "transpose": lambda b, m, v, i: b.op(ops.transpose, [m]),
    "matmul": lambda b, m, v, i: b.op(TABLE["matmul"], [m, v]),
    "outer": lambda b, m, v, i: b.op(TABLE["outer"], [v, v]),
}


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_rows_on_tensors(t):
    draft = Draft()
    m, v = draft.use(field("m", tensor(t, (2, 2))), field("v", tensor(t, (2,))))
    for name, emit in STRUCTURE.items():
        with draft.parallel(N) as i:
            y = emit(draft.b, draft.b.load(m, (i,)), draft.b.load(v, (i,)), i)
            draft.b.store(draft.use(field(f"out_{name}", y.type)), (i,), y)
    assert len(check(draft.kernel())) == len(STRUCTURE)


def test_no_row_is_left_out():
    tried = {row.name for t in ALL for row, _ in rows_of(t)} | {"cast"} | STRUCTURE.keys()
    assert tried == TABLE.keys()


@pytest.mark.parametrize(
    "how",
    [Math("hypot"), Instr(i="add"), LLVMIntrinsic(f="sin"), LLVMIntrinsic(i="smin")],
    ids=repr,
)
def test_row_without_cuda_code_is_refused(monkeypatch, how):
    row = Op(
        "fake", "F -> F", "?", ref=np.sin, lowering=how, vjp=(), continuation=UNKNOWN, sample=[]
    )
    monkeypatch.setitem(TABLE, "fake", row)
    draft = Draft()
    x = draft.use(field("x", f64))
    with draft.parallel(N) as i:
        out = Value(f64)
        draft.b.add(Let(out, row, (draft.b.load(x, (i,)),), Span("user.py", 31)))
        draft.b.store(x, (i,), out)
    with pytest.raises(BackendError, match=r"fake[\s\S]*user.py") as caught:
        lower(draft.kernel(), fast_math=False)
    assert caught.value.span.line == 31


@needs_libdevice
def test_fast_math_is_an_option():
    kernel, _ = kernel_of_rows(f32, {"div", "sqrt", "sin", "add", "lt"})
    exact, fast = "".join(check(kernel).values()), "".join(check(kernel, fast_math=True).values())
    for word in ("div", "sqrt"):
        assert f"{word}.rn.f32" in exact
        assert f"{word}.approx" not in exact
        assert f"{word}.approx" in fast
    assert ".ftz" not in exact  # subnormal numbers stay
    assert "div.approx.ftz.f32" in fast


# ---- atomics and reductions

ATOMIC_TYPES = [i32, u32, i64, u64, f32, f64, types.i8, u8, types.i16, types.u16]
BITS = ("and", "or", "xor")


def atomic_cases():
    for t in ATOMIC_TYPES:
        for op in ("add", "min", "max", *(() if t.is_float else BITS)):
            yield t, op
    yield from ((bool_, op) for op in BITS)


def kernel_of_atomics(cases, *, exclusive, old):
    draft = Draft()
    for t, op in cases:
        m, v, at, before = (
            field("m", t, ()),
            field("v", t),
            field("at", i32),
            field("before", t),
        )
        with draft.parallel(N) as i:
            b = draft.b
            draft.use(m, v, before)
            out = Value(t) if old else None
            value = b.load(v, (i,))
            b.add(Atomic(out, op, m, (), value, SPAN, exclusive))
            if old:
                b.store(before, (i,), out)
    made = Kernel("k", (), tuple(draft.mems), tuple(draft.tasks), SPAN)
    return verify(
        scalarize(made, functions=GPU_FUNCTIONS)
    )  # as it stands: no reduction is made of it


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_atomics(exclusive, old):
    cases = list(atomic_cases())
    made = check(kernel_of_atomics(cases, exclusive=exclusive, old=old))
    for (t, op), code in zip(cases, made.values(), strict=True):
        atomic = re.findall(r"\b(?:atom|red)\.(?:relaxed\.gpu\.)?global\.\w+\.\w+", code)
        if exclusive:  # a plain load and store, whether or not the old value is wanted
            assert not atomic, (t, op)
            continue
        assert len(atomic) == 1, (t, op, atomic)
        loop = (
            "cas" if (t.is_float and op != "add") or (t.bits in (8, 16) and op not in BITS) else op
        )
        assert f".{loop}." in atomic[0], (t, op, atomic)
        if t.bits >= 32 and loop != "cas":
            assert atomic[0].endswith(
                f"{t.kind}{t.bits}".replace("i", "s") if op in ("min", "max") else str(t.bits)
            )


@pytest.mark.parametrize(("t", "op"), [(f32, "and"), (f64, "xor"), (bool_, "add"), (bool_, "min")])
def test_atomics_without_sense_are_refused(t, op):
    for exclusive in (False, True):
        with pytest.raises(BackendError, match=f"no atomic {op} of {t}") as caught:
            lower(kernel_of_atomics([(t, op)], exclusive=exclusive, old=False), fast_math=False)
        assert caught.value.span is SPAN


def kernel_of_sums(t):
    draft = Draft("sums")
    v = draft.use(field("v", t, (7, 30)))
    outs = [draft.use(field(op, t, (), kind="temp")) for op in ("add", "min")]
    high = draft.use(field("max", t, (3,)))
    with draft.parallel((2, 7), 30) as (i, j):
        x = draft.b.load(v, (i, j))
        draft.b.atomic("add", outs[0], (), x)
        draft.b.atomic("min", outs[1], (), x)
        draft.b.atomic("max", high, (Const(i32, 1),), x)
    return draft.kernel()


@pytest.mark.parametrize("t", ATOMIC_TYPES, ids=str)
def test_reductions(t):
    kernel = kernel_of_sums(t)
    assert len(kernel.tasks[0].reductions) == 3
    (code,) = check(kernel).values()
    words = 2 if t.bits == 64 else 1
    assert code.count("shfl.sync.down.b32") == 3 * (5 + 3) * words  # in warps, and their results
    assert code.count("bar.sync") == 1
    assert len(re.findall(r"\b(?:atom|red)\.", code)) == 3
    # The sums are in registers until the shuffles, and memory is updated after them.
    assert "ld.local" not in code
    assert "st.local" not in code
    assert code.rindex("shfl.sync") < re.search(r"\b(?:atom|red)\.", code).start()


# ---- control flow, scratch, checks, addresses


def kernel_of_control():
    """Loops and branches with scratch, a check and a sum; `control_reference` is the same."""
    m = Arg(i32, "m", 0)
    draft = Draft("step.while é", m)
    b = draft.b
    x, out, whole = draft.use(field("x", f64), field("out", f64), field("whole", f64, ()))
    with draft.parallel(N) as i:
        saved = draft.use(Mem("saved", f64, 1, None, "scratch"))
        start = b.load(x, (i,))
        b.add(Alloca(saved, m, SPAN))
        k, p, r = Value(i32, "k"), Value(f64, "p"), Value(f64, "r")
        with b.block() as body:
            b.store(saved, (k,), p)
            with b.block() as then:
                doubled = p * 2.0
            with b.block() as orelse:
                more = p + 1.0
            one = Value(f64)
            b.add(If(p < 10.0, Block(then, (doubled,)), Block(orelse, (more,)), (one,), SPAN))
        b.add(For(k, Const(i32, 0), m, (p,), (start,), Block(body, (one,)), (r,), SPAN))
        k2, q, total = Value(i32, "k"), Value(f64, "q"), Value(f64, "total")
        with b.block() as body:
            follows = q * 0.5 + b.load(saved, (k2,))
        zero = Const(f64, 0.0)
        b.add(
            For(k2, Const(i32, 0), m, (q,), (zero,), Block(body, (follows,)), (total,), SPAN, True)
        )
        y, z, last = Value(f64, "y"), Value(f64, "z"), Value(f64, "last")
        with b.block() as cond:
            go = y < 100.0
        with b.block() as body:
            inner = draft.use(Mem("inner", f64, 1, None, "scratch"))
            b.add(Alloca(inner, Const(i32, 2), SPAN))
            b.store(inner, (Const(i32, 1),), y * 3.0)
            z = b.load(inner, (Const(i32, 1),))
        b.add(While((y,), (total,), Block(cond, (go,)), Block(body, (z,)), (last,), SPAN))
        b.add(Check(last < 1e6, "too large", (i,), SPAN))
        b.store(out, (i,), last + r)
        b.atomic("add", whole, (), last + r)
    return draft.kernel(), x, out, whole


def control_reference(x, m):
    saved, p = [], x
    for _ in range(m):
        saved.append(p)
        p = p * 2 if p < 10 else p + 1
    q = 0.0
    for s in reversed(saved):
        q = q * 0.5 + s
    while q < 100:
        q *= 3
    return q + p


def test_control_flow_scratch_and_checks():
    kernel, *_ = kernel_of_control()
    made = check(kernel)
    assert made.keys() == {"step_while___task0"}
    (code,) = made.values()
    assert "malloc" not in code  # the turns are known before the lanes start
    assert ".cas.b64" in code  # the error that comes first is the one that is reported
    assert "ld.global" in code
    assert "bra" in code


def test_addresses_have_64_bits():
    draft = Draft()
    large = 2**31 + 8
    x, flat = draft.use(field("x", f32, (2, large)), field("flat", f32, (2 * large,)))
    y, places = draft.use(field("y", f32, (70_000, 70_000)), field("places", i32, (N, 3)))
    b = draft.b
    with draft.parallel(N) as n:
        i, j, k = (b.load(places, (n, Const(i32, c))) for c in range(3))
        v = b.load(x, (i, Const(i64, 2**31 + 4)))
        w = b.load(y, (i * j, b.named("add", k, 1)))
        b.store(flat, (Const(i64, 2 * large - 1),), v + w)
    with draft.parallel((3, large)) as n:
        b.store(flat, (n,), Const(f32, 1.0))
    first, second = check(draft.kernel()).values()
    assert not re.search(r"\bm(?:ul|ad)\.lo\.[su]32|shl\.b32", first)
    assert re.search(rf"setp\.\w+\.u64 .*, {large - 3};", second)
    assert re.search(r"mul\.wide\.s32|cvt\.s64\.s32", first)
    assert str(4 * large) in first or f"{large}" in first
    assert str(4 * (2**31 + 4)) in first
    assert str(4 * (2 * large - 1)) in first
    assert lower(draft.kernel(), fast_math=False).entries[1].lanes == large - 3


# ---- launches


def test_entry_points():
    n = Arg(i64, "n", 0)
    a = Mem("a", f32, 2, None, "array")
    draft = Draft("step", n)
    x, count, s = draft.use(
        field("x", f32), field("count", i32, ()), field("s", f32, (), kind="temp")
    )
    draft.use(a)
    with draft.serial():
        draft.b.store(s, (), Const(f32, 1.0))
    with draft.parallel(Dim(i32, a, 0), (1, Dim(i32, a, 1))) as (i, j):
        draft.b.store(a, (i, j), draft.b.load(s, ()))
    with draft.parallel(4, 3) as (i, j):
        draft.b.store(x, (i,), draft.b.load(a, (i, j)))
    read = Value(i32)
    with draft.parallel(read, code=[Load(read, count, (), SPAN)]) as i:
        draft.b.store(x, (i,), Const(f32, 0.0))
    with draft.parallel(n, types_=i64) as i:
        draft.b.store(x, (i,), Const(f32, 0.0))
    with draft.serial():
        draft.b.store(s, (), Const(f32, 2.0))
    read = Value(i32)  # of what the task itself writes: the bounds are computed before it starts
    with draft.parallel(read, code=[Load(read, count, (), SPAN)]) as i:
        draft.b.store(count, (), i)
    kernel = draft.kernel()
    code = lower(kernel, fast_math=False)
    assert code.entries == [
        EntryPoint("step_serial0", "serial", 0, 1, 1, blocks=1),
        EntryPoint("step_task1", "parallel", 1, None, BLOCK_DIM, 8),
        EntryPoint("step_task2", "parallel", 2, 12, per_thread=8),
        EntryPoint("step_task3", "parallel", 3, per_thread=4),
        EntryPoint("step_task4", "parallel", 4, per_thread=4),
        EntryPoint("step_serial5", "serial", 5, 1, 1, blocks=1),
        EntryPoint("step_task6", "parallel", 6, per_thread=4),
    ]
    layout = code.layout
    handed = [*layout.pointers.values(), *layout.args.values()]
    handed += [layout.dims[a] + k for k in range(2)]
    written = [*layout.temps.values(), *layout.bounds.values(), *layout.lanes.values()]
    for used, size in ((handed, layout.fixed), (written, layout.work)):
        assert len(set(used)) == len(used)
        assert max(used) < size
    assert layout.lanes.keys() == {6}
    made = check(kernel)
    assert list(made) == [e.name for e in code.entries]
    for e in code.entries:
        assert f".maxntid {e.block_dim}\n" in made[e.name]
        assert re.search(r"\b(ld|st)\.global", made[e.name])
        assert f"{e.name}_param_0[{8 * layout.fixed}]\n" in made[e.name]


@pytest.mark.parametrize("n", [507, 508])  # 4096 bytes, less 5 slots of its own
def test_the_block_is_the_kernels_own_unless_it_is_too_large(n):
    draft = Draft("many")
    fields = [draft.use(field(f"x{k}", f32)) for k in range(n)]
    with draft.parallel(N) as i:
        for x in fields[1:]:
            draft.b.store(fields[0], (i,), draft.b.load(x, (i,)))
    kernel = draft.kernel()
    layout = lower(kernel, fast_math=False).layout
    assert layout.by_value == (n == 507)
    (code,) = check(kernel).values()
    assert ".local" not in code
    assert (".param .align 8 .b8" in code) == layout.by_value
    assert "ld.global" in code


# ---- what the threads compute, seen on the CPU


BLOCK = 64


def blocks(kernel, *, deterministic=False, **more):
    code = lower(kernel, fast_math=False, deterministic=deterministic, block_dim=BLOCK)
    return Blocks(code, **more)


@pytest.mark.parametrize("t", [f32, f64, i32, u8, i64], ids=str)
def test_sums_are_right(t):
    kernel = kernel_of_sums(t)
    (v,) = [m for m in kernel.mems if m.name == "v"]
    named = {m.name: m for m in kernel.mems}
    rng = np.random.default_rng(3)
    data = (rng.normal(size=(7, 30)) * 20).astype(t.numpy) if t is not u8 else None
    data = rng.integers(0, 255, (7, 30)).astype(u8.numpy) if data is None else data
    high = np.zeros(3, t.numpy)
    machine = blocks(kernel)
    work = machine.launch({v: data, named["max"]: high})
    slots = machine.code.layout.temps
    add, least = (work[slots[named[op]] :][:1].view(t.numpy)[0] for op in ("add", "min"))
    part = data[2:7]
    assert least == min(part.min(), 0)
    assert high.tolist() == [0, part.max(), 0]
    np.testing.assert_allclose(add, part.sum(dtype=t.numpy), rtol=1e-5)


def test_lanes_are_right():
    draft = Draft("lanes")
    a = draft.use(Mem("a", i32, 3, None, "array"))
    n, count = draft.use(field("n", i32, ())), draft.use(field("count", i64, ()))
    hi = Value(i32)
    with draft.parallel((1, Dim(i32, a, 0)), (-1, hi), 5, code=[Load(hi, n, (), SPAN)]) as (
        i,
        j,
        k,
    ):
        b = draft.b
        b.atomic("add", a, (i, j + 1, k), i * 100 + j * 10 + k)
        b.atomic("add", count, (), Const(i64, 1))
    with draft.serial():
        draft.b.atomic("add", count, (), Const(i64, 1000))
    machine = blocks(draft.kernel())
    array, total = np.zeros((4, 8, 6), np.int32), np.zeros((), np.int64)
    machine.launch({a: array, n: np.array(6, np.int32), count: total})
    i, j, k = np.meshgrid(*(np.arange(d) for d in array.shape), indexing="ij")
    inside = (i >= 1) & (j < 7) & (k < 5)
    assert (array == np.where(inside, i * 100 + (j - 1) * 10 + k, 0)).all()
    assert total == 3 * 7 * 5 + 1000
    machine.launch({a: array, n: np.array(-9, np.int32), count: total})  # no lanes
    assert total == 3 * 7 * 5 + 2000


def test_control_flow_is_right():
    kernel, x, out, whole = kernel_of_control()
    machine = blocks(kernel)
    data, result, total = np.linspace(0.5, 12, N), np.zeros(N), np.zeros(())
    machine.launch({x: data, out: result, whole: total}, [5])
    np.testing.assert_allclose(result, [control_reference(v, 5) for v in data], rtol=1e-14)
    np.testing.assert_allclose(total, result.sum(), rtol=1e-13)
    assert machine.error[0] == 0
    assert not machine.heap


@pytest.mark.parametrize("arena", [39, 40, 79, 80, 40 * 33, 40 * 100, 40 * 1000])
def test_as_many_threads_as_have_room_take_lanes(arena):
    kernel, x, out, whole = kernel_of_control()
    machine = blocks(kernel, arena=8 * -(-arena // 8))
    machine.arena = machine.arena.view(np.uint8)[:arena]
    data, result, total = np.linspace(0.5, 12, N), np.zeros(N), np.zeros(())
    machine.launch({x: data, out: result, whole: total}, [5])
    if arena < 40:  # 5 values of 8 bytes do not fit
        assert isinstance(machine.code.checks[machine.error[0] - 1], Alloca)
        assert machine.error[1] == 40
        assert not result.any()
    else:
        assert machine.error[0] == 0
        np.testing.assert_allclose(result, [control_reference(v, 5) for v in data], rtol=1e-14)
        np.testing.assert_allclose(total, result.sum(), rtol=1e-13)


def kernel_of_stacks():
    """out[i] = the sum of k * m over k below m = i % 7, saved and read again, twice."""
    draft = Draft("stacks")
    b = draft.b
    x, out = draft.use(field("x", i32), field("out", f32))
    with draft.parallel(N) as i:
        m = b.load(x, (i,))
        outer = draft.use(Mem("outer", f32, 1, None, "scratch"))
        inner = draft.use(Mem("inner", tensor(f32, (2,)), 1, None, "scratch"))
        b.add(Alloca(outer, m, SPAN))
        k = Value(i32, "k")
        with b.block() as body:
            b.add(Alloca(inner, m, SPAN))
            both = b.build([b.cast(k, f32), b.cast(m, f32)], tensor(f32, (2,)))
            b.store(inner, (k,), both)
            read = b.load(inner, (k,))
            b.store(outer, (k,), b.op(ops.extract, [read, 0]) * b.op(ops.extract, [read, 1]))
        b.add(For(k, Const(i32, 0), m, (), (), Block(body), (), SPAN))
        k, total, after = Value(i32, "k"), Value(f32, "total"), Value(f32, "after")
        with b.block() as body:
            more = total + b.load(outer, (k,))
        zero = Const(f32, 0.0)
        b.add(For(k, Const(i32, 0), m, (total,), (zero,), Block(body, (more,)), (after,), SPAN))
        b.store(out, (i,), after)
    return draft.kernel(), x, out


@pytest.mark.parametrize("cells", [0, 3, 7, 100])
def test_threads_with_different_needs_have_stacks_and_a_heap(cells):
    kernel, x, out = kernel_of_stacks()
    machine = blocks(kernel, arena=8 * -(-cells * 4 * 2 * BLOCK // 8))
    data, result = np.arange(N, dtype=np.int32) % 7, np.zeros(N, np.float32)
    machine.launch({x: data, out: result})
    assert result.tolist() == [m * m * (m - 1) / 2 for m in data.tolist()]
    assert machine.error[0] == 0
    assert machine.most_held > 0 if cells < 18 else machine.most_held == 0
    assert not machine.heap
    machine.heap_left = 12
    result[:] = -1
    machine.launch({x: data, out: result})
    if cells < 18:
        assert isinstance(machine.code.checks[machine.error[0] - 1], Alloca)
        assert machine.error[1] in {4 * m for m in range(13)} - {
            0
        }  # what one of the threads asked for
    assert not machine.heap
    right = [r in (-1, m * m * (m - 1) / 2) for r, m in zip(result, data.tolist(), strict=True)]
    assert all(right)


def test_few_values_stay_in_local_memory():
    draft = Draft("few")
    x, room = draft.use(field("x", f32), Mem("room", tensor(f32, (2,)), 1, None, "scratch"))
    b = draft.b
    with draft.parallel(N) as i:
        b.add(Alloca(room, Const(i32, 10), SPAN))
        k, r = Value(i32, "k"), Value(i32, "k")
        with b.block() as body:
            v = b.cast(k, f32)
            b.store(room, (k,), b.build([v, v * 2.0], tensor(f32, (2,))))
        b.add(For(k, Const(i32, 0), Const(i32, 10), (), (), Block(body), (), SPAN))
        read = b.load(room, (b.cast(b.load(x, (i,)), i32),))
        b.store(x, (i,), b.op(ops.extract, [read, 1]))
    kernel = draft.kernel()
    (code,) = check(kernel).values()
    assert ".local" in code
    assert "malloc" not in code
    data = np.arange(N, dtype=np.float32) % 10
    machine = blocks(kernel)
    machine.launch({x: data})
    assert data.tolist() == [2 * (k % 10) for k in range(N)]


def test_failed_check_is_reported():
    kernel, x, out, whole = kernel_of_control()
    machine = blocks(kernel)
    data = np.ones(N)
    data[40] = 1e7
    machine.launch({x: data, out: np.zeros(N), whole: np.zeros(())}, [1])
    assert isinstance(machine.code.checks[machine.error[0] - 1], Check)
    assert machine.error[1] == 40


@pytest.mark.parametrize("op", ["add", "min", "max", "xor"])
def test_atomics_are_right(op):
    cases = [t for t in (i32, u8, f32, f64, bool_) if (t, op) in set(atomic_cases())]
    for t in cases:
        kernel = kernel_of_atomics([(t, op)], exclusive=False, old=True)
        named = {m.name: m for m in kernel.mems}
        v = np.random.default_rng(1).integers(0, 2 if t is bool_ else 3, N).astype(t.numpy)
        m, before = np.ones((), t.numpy), np.zeros(N, t.numpy)
        blocks(kernel).launch({named["m"]: m, named["v"]: v, named["before"]: before}, grid=1)
        whole = {"add": np.add, "min": np.minimum, "max": np.maximum, "xor": np.bitwise_xor}[op]
        assert m == whole(t.numpy.type(1), whole.reduce(v)), t
