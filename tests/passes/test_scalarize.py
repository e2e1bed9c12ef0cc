"""Scalar IR does what tensor IR does: by example, and on random programs, after every pass.

`Maker` writes random kernels without races: lanes read inputs, store to elements of their own, and
add to accumulators that nobody reads. All passes are held to the interpreter on them.
"""

import ctypes
import random
import struct

import numpy as np
import pytest

from diffsim.backends.cpu import chunks
from diffsim.backends.cpu import codegen as cpu
from diffsim.backends.interpreter import run
from diffsim.backends.llvm.parameter_block import ERROR, POOL, RUN, SEED, THREADS
from diffsim.backends.native.jit import Jit
from diffsim.backends.native.pool import Pool, launcher
from diffsim.errors import AccessError, BackendError, Span
from diffsim.ir import ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Alloca,
    Arg,
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
    RngKey,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.op import TABLE, UNKNOWN, ZERO, Math, Op
from diffsim.ir.printer import print_kernel
from diffsim.ir.traversal import outs, task_statements, uses
from diffsim.ir.types import bool_, f32, f64, i32, tensor, u8, u64
from diffsim.ir.verifier import verify
from diffsim.passes.transforms.dce import eliminate_dead_code
from diffsim.passes.transforms.demote_atomics import demote_atomics
from diffsim.passes.transforms.reductions import hoist_reductions
from diffsim.passes.transforms.scalarize import scalarize

SPAN = Span("test_scalarize.py", 1)
VEC2, MAT22, VEC3 = tensor(f64, (2,)), tensor(f64, (2, 2)), tensor(f64, (3,))
ZERO_I = Const(i32, 0)
N = 4


def serial(stmts, mems, args=(), result=None):
    return Kernel("k", args, mems, (Task((), Block([]), Block(stmts), SPAN),), SPAN, result)


def is_scalar(kernel):
    for task in kernel.tasks:
        for s in task_statements(task):
            values = (*uses(s), *outs(s), *getattr(s, "params", ()))
            assert all(v.type.shape == () for v in values), s
            if isinstance(s, Let):
                assert s.op.infer_type is None
                assert s.op.formula(()) is None
            elif isinstance(s, (Load, Store)):
                assert len(s.index) == s.mem.rank + len(s.mem.dtype.shape)
    return True


# ---- by example


def test_the_example_of_the_documentation():
    a, b, r = (Mem(name, tensor(f32, (2,)), 0, ()) for name in "abr")
    builder = Builder(SPAN)
    with builder:
        out = builder.load(a, ()) - builder.load(b, ())
        out.hint = "r"
        builder.store(r, (), out)
    made = verify(scalarize(serial(builder.stmts, (a, b, r))))
    text = [line.split(" ;")[0].strip() for line in print_kernel(made).splitlines()]
    assert "%r.0: f32 = sub %t0, %t2" in text
    assert "%r.1: f32 = sub %t1, %t3" in text
    assert "store r[1], %r.1" in text
    assert is_scalar(made)


def test_arguments_become_scalars():
    v, n = Arg(VEC2, "v", 0), Arg(i32, "n", 1)
    y = Mem("y", VEC2, 0, ())
    b = Builder(SPAN)
    with b:
        b.store(y, (), v * n)
    whole = serial(b.stmts, (y,), (v, n))
    made = verify(scalarize(whole))
    assert [(a.hint, a.type, a.position) for a in made.args] == [
        ("v.0", f64, 0),
        ("v.1", f64, 1),
        ("n", i32, 2),
    ]
    for k in (whole, made):
        memory = {y: np.zeros(2)}
        run(k, memory, (np.array([1.0, 2.0]), 3))
        assert memory[y].tolist() == [3.0, 6.0]


def test_regions_carry_scalars():
    p, r, out, k = Value(MAT22, "p"), Value(MAT22), Value(MAT22), Value(i32)
    y = Mem("y", MAT22, 0, ())
    b = Builder(SPAN)
    with b, b.block() as body:
        doubled = p * 2.0
    loop = For(k, ZERO_I, Const(i32, 3), (p,), (Const(MAT22, 1.0),), Block(body, (doubled,)), (r,),
               SPAN)  # fmt: skip
    branch = If(Const(bool_, False), Block([], (p,)), Block([], (r,)), (out,), SPAN)
    branch = If(Const(bool_, False), Block([], (Const(MAT22, 0.0),)), Block([], (r,)), (out,), SPAN)
    whole = serial([loop, branch, Store(y, (), out, SPAN)], (y,))
    made = verify(scalarize(verify(whole)))
    turns, choice, *stores = made.tasks[0].body.stmts
    assert len(turns.params) == len(turns.outs) == len(choice.outs) == len(stores) == 4
    assert turns.params[0].hint == "p.0"
    memory = {y: np.zeros((2, 2))}
    run(made, memory)
    assert (memory[y] == 8.0).all()


def test_indices_known_and_unknown():
    x, i, y = Mem("x", MAT22, 0, ()), Mem("i", i32, 1, (2,)), Mem("y", f64, 0, ())
    for known in (True, False):
        b = Builder(SPAN)
        with b:
            at = [Const(i32, 1), Const(i32, 0)]
            if not known:
                at = [b.load(i, (Const(i32, k),)) for k in (0, 1)]
            changed = ops.insert(b.load(x, ()), 9.0, *at)
            b.store(x, (), changed)
            b.store(y, (), ops.extract(changed, *at))
        whole = serial(b.stmts, (x, i, y))
        made = verify(scalarize(whole))
        assert is_scalar(made)
        selects = [s for s in made.tasks[0].body.stmts if isinstance(s, Let) and s.op is ops.select]
        assert bool(selects) != known
        for k in (whole, made):
            memory = {x: np.zeros((2, 2)), i: np.array([1, 0], np.int32), y: np.array(0.0)}
            run(k, memory)
            assert memory[x].tolist() == [[0, 0], [9, 0]]
            assert memory[y] == 9


def test_expansions_keep_the_ops_type():
    # The literals of a formula are i32 and must not widen an u8.
    x = Mem("x", u8, 0, ())
    b = Builder(SPAN)
    b.store(x, (), b.named("bit_not", b.load(x, ())))
    made = verify(scalarize(serial(b.stmts, (x,))))
    memory = {x: np.array(1, np.uint8)}
    run(made, memory)
    assert memory[x] == 254


def test_what_a_target_has_not_is_refused_with_the_line():
    row = Op("nowhere", "F -> F", "An op that no target has.", ref=np.sin, lowering=Math("nowhere"),
             vjp=ZERO, continuation=UNKNOWN, sample=[(0, 1)])  # fmt: skip
    y, line = Mem("y", f64, 0, ()), Span("user.py", 9)
    out, x = Value(f64), Value(f64)
    stmts = [Load(x, y, (), SPAN), Let(out, row, (x,), line), Store(y, (), out, SPAN)]
    kernel = serial(stmts, (y,))
    with pytest.raises(BackendError, match="nowhere") as caught:
        cpu.lower(scalarize(kernel), Jit(), fast_math=False)
    assert caught.value.span is line


def test_formulas_are_written_out_for_targets_without_the_function():
    x = Mem("x", f32, 0, ())
    b = Builder(SPAN)
    with b:
        b.store(x, (), ops.rsqrt(ops.floor(b.load(x, ()))))
    for has, expected in (((), ["floor", "sqrt", "div"]), (("rsqrt",), ["floor", "rsqrt"])):
        made = verify(scalarize(serial(b.stmts, (x,)), functions=has))
        names = [s.op.name for s in made.tasks[0].body.stmts if isinstance(s, Let)]
        assert names == expected


def test_dimensions_seeds_and_tasks_pass_through():
    a = Mem("a", VEC2, 1, None, "array")
    i, b = Value(i32, "i"), Builder(SPAN)
    with b:
        bits = b.named("random_u64", RngKey(u64), b.cast(i, u64), b.const(0, u64))
        small = b.cast(b.named("shr", bits, b.const(40, u64)), f64)
        b.store(a, (i,), b.broadcast(small, VEC2))
    task = Task((i,), Block([], (ZERO_I, Dim(i32, a, 0))), Block(b.stmts), SPAN)
    whole = verify(Kernel("k", (), (a,), (task,), SPAN))
    made = verify(scalarize(whole))
    found = []
    for k in (whole, made):
        memory = {a: np.zeros((3, 2))}
        run(k, memory, seed=7)
        found.append(memory[a].tolist())
        run(k, memory, seed=8)
        assert memory[a].tolist() != found[-1]
    assert found[0] == found[1]
    assert len({row[0] for row in found[0]}) == 3


@pytest.mark.parametrize("change", [lambda k: k, scalarize], ids=["tensors", "scalars"])
def test_faults_are_reported_alike(change):
    x, i, line = Mem("x", VEC2, 1, (3,)), Arg(i32, "i", 0), Span("user.py", 3)
    stmts = [
        Check(Const(bool_, True), "never", (), SPAN),
        Store(x, (i,), Const(VEC2, 1.0), line),
    ]
    kernel = change(serial(stmts, (x,), (i,)))
    memory = {x: np.zeros((3, 2))}
    run(kernel, memory, (2,))
    assert memory[x].tolist() == [[0, 0], [0, 0], [1, 1]]
    for bad in (3, -1):
        with pytest.raises(AccessError, match=rf"index \[{bad}.*outside x") as caught:
            run(kernel, memory, (bad,))
        assert caught.value.span is line
    odd = change(serial([Check(Const(bool_, False), "is odd", (i,), line)], (x,), (i,)))
    with pytest.raises(AccessError, match="is odd: 5") as caught:
        run(odd, memory, (5,))
    assert caught.value.span is line


# ---- at random


class Maker:
    """A random kernel on `memory`; the same one for the same seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.b = Builder(SPAN, f64)
        self.arg_v, self.arg_k = Arg(VEC2, "u", 0), Arg(i32, "n", 1)
        grid = (N, N)
        self.a, self.v = Mem("a", f64, 1, (N,)), Mem("v", VEC2, 2, grid)
        self.idx = Mem("idx", i32, 1, (N,))
        self.out, self.vout = Mem("out", f64, 2, grid), Mem("vout", VEC2, 2, grid)
        self.total, self.most = Mem("total", f64, 0, ()), Mem("most", VEC2, 0, ())
        self.spread, self.count = Mem("spread", VEC2, 1, (N,)), Mem("count", i32, 1, (N,))
        self.carry, self.result = Mem("carry", VEC2, 0, (), "temp"), Mem("r", f64, 0, (), "temp")
        self.mems = (
            *(self.a, self.v, self.idx, self.out, self.vout, self.total, self.most),
            *(self.spread, self.count, self.carry, self.result),
        )
        self.own = None
        self.kernel = self.make()

    def memory(self):
        rng = np.random.default_rng(0)
        shapes = {m: (*m.shape, *m.dtype.shape) for m in self.mems if m.kind == "field"}
        made = {m: rng.normal(size=s).astype(m.dtype.scalar.numpy) for m, s in shapes.items()}
        made[self.idx] = rng.integers(0, N, N, np.int32)
        return made

    def make(self):
        tasks = []
        with self.b:
            with self.b.block() as stmts:
                scope = self.scope()
                self.some(scope, 3, 1)
                self.b.store(self.carry, (), self.pick(scope, VEC2))
            tasks.append(Task((), Block([]), Block(stmts), SPAN))
            for _ in range(2):
                tasks.append(self.parallel())
            with self.b.block() as stmts:
                self.b.store(self.result, (), ops.reduce_sum(self.b.load(self.carry, ())))
            tasks.append(Task((), Block([]), Block(stmts), SPAN))
        args = (self.arg_v, self.arg_k)
        return verify(Kernel("random", args, self.mems, tuple(tasks), SPAN, self.result))

    def parallel(self):
        axes = tuple(Value(i32, name) for name in "ij")
        with self.b.block() as bounds:
            hi = ops.minimum(self.arg_k, 3) + 1
        with self.b.block() as stmts:
            scope = self.scope()
            scope[i32] += axes
            scope[VEC2].append(self.b.load(self.carry, ()))
            self.own = axes
            self.some(scope, 8, 2)
            self.b.store(self.out, axes, self.pick(scope, f64))
            self.b.store(self.vout, axes, self.pick(scope, VEC2))
            self.own = None
        box = (ZERO_I, Const(i32, N), ZERO_I, hi)
        return Task(axes, Block(bounds, box), Block(stmts), SPAN)

    def scope(self):
        """Values in sight, by type. Whole numbers are all in 0..N."""
        number = self.b.const(self.rng.choice([0.25, -1.5, 2.0]), f64)
        return {
            f64: [number],
            VEC2: [self.arg_v],
            MAT22: [Const(MAT22, 0.5)],
            i32: [self.arg_k, Const(i32, self.rng.randrange(N))],
            bool_: [Const(bool_, True)],
        }

    def pick(self, scope, t):
        return self.rng.choice(scope[t][-6:])

    def block(self, scope, n, depth):
        inner = {t: list(found) for t, found in scope.items()}
        with self.b.block() as stmts:
            self.some(inner, n, depth)
        return stmts, inner

    def some(self, scope, n, depth):
        simple = [self.number, self.vector, self.matrix, self.whole, self.truth, self.loads]
        regions = [self.loop, self.while_loop, self.branch, self.scratch]
        for _ in range(n):
            kinds = (
                simple * 2 + ([self.effect] * 3 if self.own else []) + (regions if depth else [])
            )
            self.rng.choice(kinds)(scope, depth)

    def number(self, scope, depth):
        x, y = self.pick(scope, f64), self.pick(scope, f64)
        v, m, k = self.pick(scope, VEC2), self.pick(scope, MAT22), self.pick(scope, i32)
        makers = [
            lambda: ops.tanh(x * y),
            lambda: x + 0.5 * y,
            lambda: x - ops.sin(y),
            lambda: x / (1.0 + y * y),
            lambda: ops.sqrt(ops.absolute(x)),
            lambda: ops.minimum(x, ops.maximum(y, -1.0)),
            lambda: ops.select(self.pick(scope, bool_), x, y),
            lambda: ops.rsqrt(1.5 + ops.cos(x)),
            lambda: ops.mod(x, 2.5) * ops.sign(y),
            lambda: self.b.cast(k, f64),
            lambda: ops.reduce_sum(self.rng.choice([v, m])),
            lambda: ops.extract(v, ops.mod(k, 2)),
            lambda: ops.extract(m, 1, ops.mod(k, 2)),
            lambda: ops.extract(m, 0, 1),
        ]
        scope[f64].append(self.rng.choice(makers)())

    def vector(self, scope, depth):
        x, k = self.pick(scope, f64), self.pick(scope, i32)
        v, w, m = self.pick(scope, VEC2), self.pick(scope, VEC2), self.pick(scope, MAT22)
        makers = [
            lambda: v + 0.5 * w,
            lambda: ops.tanh(x * v),
            lambda: ops.tanh(ops.matmul(m, v)),
            lambda: self.b.tensor_of([x, 0.5], (2,)),
            lambda: ops.insert(v, x, ops.mod(k, 2)),
            lambda: ops.insert(v, x, 1),
            lambda: self.b.broadcast(x, VEC2),
            lambda: ops.select(v < w, v, x),
            lambda: ops.maximum(v, -w),
        ]
        scope[VEC2].append(self.rng.choice(makers)())

    def matrix(self, scope, depth):
        x, v, w = self.pick(scope, f64), self.pick(scope, VEC2), self.pick(scope, VEC2)
        m, n = self.pick(scope, MAT22), self.pick(scope, MAT22)
        makers = [
            lambda: ops.tanh(ops.outer(v, w)),
            lambda: ops.tanh(ops.matmul(m, ops.transpose(n))),
            lambda: ops.sin(m + n),
            lambda: self.b.tensor_of([x, 1.0, x, -0.5], (2, 2)),
            lambda: ops.insert(m, x, ops.mod(self.pick(scope, i32), 2), 0),
        ]
        scope[MAT22].append(self.rng.choice(makers)())

    def whole(self, scope, depth):
        k, m = self.pick(scope, i32), self.pick(scope, i32)
        makers = [
            lambda: ops.mod(k + m, N),
            lambda: ops.mod(k - 3 * m, N),
            lambda: self.b.load(self.idx, (k,)),
            lambda: ops.maximum(k, m),
            lambda: ops.bit_xor(k, m),
            lambda: ops.select(self.pick(scope, bool_), k, m),
            lambda: self.b.cast(3.0 * ops.absolute(ops.sin(self.pick(scope, f64))), i32),
        ]
        scope[i32].append(self.rng.choice(makers)())

    def truth(self, scope, depth):
        x, y, p = self.pick(scope, f64), self.pick(scope, f64), self.pick(scope, bool_)
        k, m = self.pick(scope, i32), self.pick(scope, i32)
        makers = [
            lambda: x < y + 0.1,
            lambda: ops.eq(k, m),
            lambda: ops.logical_not(p),
            lambda: p & (k <= m),
            lambda: p | ops.isnan(x),
        ]
        scope[bool_].append(self.rng.choice(makers)())

    def loads(self, scope, depth):
        k, m = self.pick(scope, i32), self.pick(scope, i32)
        makers = [
            lambda: (f64, self.b.load(self.a, (k,))),
            lambda: (VEC2, self.b.load(self.v, (k, m))),
            lambda: (f64, self.b.load(self.v, (k, m, ops.mod(k, 2)))),
        ]
        if self.own:
            makers.append(lambda: (VEC2, self.b.load(self.vout, self.own)))
        t, made = self.rng.choice(makers)()
        scope[t].append(made)

    def effect(self, scope, depth):
        x, v = self.pick(scope, f64), self.pick(scope, VEC2)
        k = self.pick(scope, i32)
        i, j = self.own
        self.rng.choice(
            [
                lambda: self.b.store(self.out, (i, j), x),
                lambda: self.b.store(self.vout, (i, j), v),
                lambda: self.b.store(self.vout, (i, j, ops.mod(k, 2)), x),
                lambda: self.b.atomic("add", self.total, (), x),
                lambda: self.b.atomic("max", self.most, (), v),
                lambda: self.b.atomic("add", self.spread, (k,), v),
                lambda: self.b.atomic("add", self.spread, (i,), v),
                lambda: self.b.atomic("add", self.spread, (i, Const(i32, 1)), x),
                lambda: self.b.atomic("add", self.count, (k,), Const(i32, 3)),
            ]
        )()

    def carried(self, scope):
        types = self.rng.choices([f64, VEC2, MAT22], k=self.rng.randrange(3))
        inits = tuple(self.pick(scope, t) for t in types)
        return tuple(Value(t) for t in types), inits, tuple(Value(t) for t in types)

    def finish(self, scope, stmts, inner, params):
        """What a region's block yields, kept small so that loops do not blow up."""
        outer, self.b.stmts = self.b.stmts, stmts
        made = tuple(ops.sin(self.pick(inner, p.type)) for p in params)
        self.b.stmts = outer
        return made

    def loop(self, scope, depth):
        params, inits, results = self.carried(scope)
        k = Value(i32, "k")
        hi = self.rng.choice([Const(i32, 3), self.pick(scope, i32)])
        inside = {t: list(found) for t, found in scope.items()}
        inside[i32].append(k)
        for p in params:
            inside[p.type].append(p)
        stmts, inner = self.block(inside, 4, depth - 1)
        body = Block(stmts, self.finish(scope, stmts, inner, params))
        reverse = self.rng.random() < 0.3
        self.b.add(For(k, ZERO_I, hi, params, inits, body, results, SPAN, reverse))
        for r in results:
            scope[r.type].append(r)

    def while_loop(self, scope, depth):
        params, inits, results = self.carried(scope)
        k, last = Value(i32, "w"), Value(i32)
        inside = {t: list(found) for t, found in scope.items()}
        inside[i32].append(k)
        for p in params:
            inside[p.type].append(p)
        limit = self.pick(scope, i32)
        with self.b.block() as cond:
            more = (k < 3) & (k < limit)
        stmts, inner = self.block(inside, 3, depth - 1)
        yields = self.finish(scope, stmts, inner, params)
        with self.b.block() as more_stmts:
            after = k + 1
        body = Block([*stmts, *more_stmts], (after, *yields))
        cond_block = Block(cond, (more,))
        self.b.add(While((k, *params), (ZERO_I, *inits), cond_block, body, (last, *results), SPAN))
        for r in (last, *results):
            scope[r.type].append(r)

    def branch(self, scope, depth):
        results, _, _ = self.carried(scope)
        sides = []
        for _ in range(2):
            stmts, inner = self.block(scope, 3, depth - 1)
            sides.append(Block(stmts, self.finish(scope, stmts, inner, results)))
        self.b.add(If(self.pick(scope, bool_), *sides, results, SPAN))
        for r in results:
            scope[r.type].append(r)

    def scratch(self, scope, depth):
        t = self.rng.choice([f64, VEC2])
        mem, k = Mem("saved", t, 1, None, "scratch"), Value(i32)
        self.b.add(Alloca(mem, Const(i32, N), SPAN))
        with self.b.block() as body:
            self.b.store(mem, (k,), self.pick(scope, t) * self.b.cast(k, f64))
        self.b.add(For(k, ZERO_I, Const(i32, N), (), (), Block(body), (), SPAN))
        scope[t].append(self.b.load(mem, (self.pick(scope, i32),)))


def chain(*passes):
    def change(kernel):
        for p in passes:
            kernel = verify(p(kernel), p.__name__)
        return kernel

    return change


CHANGES = {
    "scalarize": chain(scalarize),
    "drop_dead": chain(eliminate_dead_code),
    "sums": chain(scalarize, hoist_reductions),
    "all": chain(
        eliminate_dead_code, scalarize, hoist_reductions, demote_atomics, eliminate_dead_code
    ),
}


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(seed):
    maker = Maker(seed)
    kernel = maker.kernel
    args = (np.array([0.3, -0.7]), 1 + seed % 3)
    want = maker.memory()
    returned = run(kernel, want, args, seed)
    assert np.isfinite(returned)
    for name, change in CHANGES.items():
        made, have = change(kernel), maker.memory()
        assert name == "drop_dead" or is_scalar(made)
        again = run(made, have, args, seed)
        np.testing.assert_allclose(again, returned, rtol=1e-9, err_msg=name)
        for mem in want:
            np.testing.assert_allclose(
                have[mem], want[mem], rtol=1e-9, atol=1e-12, err_msg=f"{name}: {mem.name}"
            )


@pytest.fixture(scope="module")
def on_cpu():
    """Runs scalar IR as machine code on two threads."""
    jit = Jit()
    pool = Pool(jit, 2)

    def execute(kernel, memory, args, seed):
        code = cpu.lower(kernel, jit, fast_math=False)
        library, layout = jit.load(jit.compile(code.text)), code.layout
        slots, errors = (ctypes.c_int64 * layout.size)(), (ctypes.c_int64 * 8)()
        slots[POOL], slots[ERROR] = pool.handle, ctypes.addressof(errors)
        slots[SEED], slots[THREADS] = seed, 2
        for mem, k in layout.pointers.items():
            slots[k] = memory[mem].ctypes.data
        numbers = [x for a in args for x in np.ravel(a)]
        for arg, x in zip(kernel.args, numbers, strict=True):
            raw = struct.pack("<d" if arg.type.is_float else "<q", x)
            (slots[layout.args[arg]],) = struct.unpack("<q", raw)
        slots[RUN] = library.address("launch")
        launcher(jit, None)(ctypes.addressof(slots))
        assert not any(errors)
        return struct.unpack("<d", struct.pack("<q", slots[layout.temps[kernel.result]]))[0]

    yield execute
    pool.close()


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 51])  # 51: two reductions at the same argument
def test_random_programs_on_cpu(seed, on_cpu, monkeypatch):
    monkeypatch.setattr(chunks, "_CHUNK_WORK", 200)  # so that these few lanes are shared out
    maker = Maker(seed)
    args = (np.array([0.3, -0.7]), 1 + seed % 3)
    want = maker.memory()
    returned = run(maker.kernel, want, args, seed)
    for name in ("scalarize", "all"):
        have = maker.memory()
        again = on_cpu(CHANGES[name](maker.kernel), have, args, seed)
        np.testing.assert_allclose(again, returned, rtol=1e-9, err_msg=name)
        for mem in want:
            np.testing.assert_allclose(
                have[mem], want[mem], rtol=1e-9, atol=1e-12, err_msg=f"{name}: {mem.name}"
            )


def test_random_programs_reach_everything():
    seen = set()
    for seed in range(40):
        for task in Maker(seed).kernel.tasks:
            for s in task_statements(task):
                seen.add(s.op.name if isinstance(s, Let) else type(s).__name__)
    assert {"For", "While", "If", "Alloca", "Atomic", "Load", "Store"} <= seen
    assert {row.name for row in TABLE.values() if row.infer_type is not None} <= seen
