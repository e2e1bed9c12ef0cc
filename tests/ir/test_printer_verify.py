"""Printed IR reads as documented and is the same every time; malformed IR is found and named."""

import re

import pytest

from diffsim.errors import InternalError, Span
from diffsim.ir import ops
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
    RngKey,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.op import UNKNOWN, ZERO, Instr, Op
from diffsim.ir.printer import print_kernel
from diffsim.ir.types import bool_, f32, f64, i32, tensor, u64
from diffsim.ir.verifier import verify

SPAN = Span("test_printer_verify.py", 4)
VEC2 = tensor(f32, (2,))
X, LOSS = Mem("x", f32, 1, (8,)), Mem("loss", f32, 0, ())
ZERO_I, EIGHT = Const(i32, 0), Const(i32, 8)


def kernel(
    stmts, *, mems=(X, LOSS), axes=(), bounds=(), args=(), reductions=(), yields=(), block_dim=None
):
    body = Block(stmts, yields)
    task = Task(axes, Block([], bounds), body, SPAN, reductions, block_dim=block_dim)
    return Kernel("step", args, mems, (task,), SPAN)


def let(op, *args, t=f32, hint=""):
    out = Value(t, hint)
    return Let(out, op, args, SPAN), out


# ---- printing


def squares():
    i, loaded = Value(i32, "i"), Value(f32)
    product, out = let(ops.mul, loaded, loaded)
    return kernel(
        [Load(loaded, X, (i,), SPAN), product, Atomic(None, "add", LOSS, (), out, SPAN)],
        axes=(i,),
        bounds=(ZERO_I, EIGHT),
    )


def test_the_example_of_the_documentation():
    text = print_kernel(squares())
    assert re.sub(r" +; L\d+", "", text) == (
        "kernel step(x: field f32[8], loss: field f32[]) {\n"
        "  parallel %i in 0..8 {\n"
        "    %t0: f32 = load x[%i]\n"
        "    %t1: f32 = mul %t0, %t0\n"
        "    atomic_add loss[], %t1\n"
        "  }\n"
        "}\n"
    )
    assert all(re.search(r" ; L4$|^}$|^  }$|^kernel", line) for line in text.splitlines())
    assert print_kernel(squares()) == text


def test_blocks_are_printed_where_the_user_gave_them():
    i = Value(i32, "i")
    made = kernel([], axes=(i,), bounds=(ZERO_I, EIGHT), block_dim=96)
    assert "  parallel %i in 0..8 block_dim 96 {" in print_kernel(verify(made))


def test_every_statement_is_printed():
    s = SPAN
    n, flags = Arg(i32, "n", 0), Arg(tensor(bool_, (2,)), "flags", 1)
    a = Mem("a", VEC2, 2, None, "array")
    saved, other = Mem("saved", f32, 1, None, "scratch"), Mem("x", f32, 0, (), "temp")
    e0, e1, e2 = (Value(f32, "e") for _ in range(3))
    k, w0, w1, c = Value(i32, "k"), Value(i32, "w"), Value(i32, "w"), Value(bool_)
    less, cond = let(ops.lt, w0, n, t=bool_)
    more, w2 = let(ops.add, w0, Const(i32, 1), t=i32, hint="w")
    v, y = Value(VEC2, "v"), Value(f32)
    bits, _ = let(ops.random_u64, RngKey(u64), RngKey(u64), Const(u64, 1), t=u64)
    pick, chosen = let(ops.extract, flags, ZERO_I, t=bool_)
    stmts = [
        Alloca(saved, n, s),
        Load(v, a, (n, ZERO_I), s),
        bits,
        For(k, ZERO_I, Dim(i32, a, 1), (e0,), (Const(f32, 0.0),), Block([], (e0,)), (e1,), s, True),
        While((w0,), (ZERO_I,), Block([less], (cond,)), Block([more], (w2,)), (w1,), s),
        pick,
        If(chosen, Block([], (e1,)), Block([], (Const(f32, 1.5),)), (e2,), s),
        If(chosen, Block([Store(X, (w1,), e2, s)]), Block([]), (), s),
        Store(saved, (w1,), e2, s),
        Atomic(y, "max", X, (w1,), e2, s, True),
        Store(a, (n, n), Const(VEC2, 2.0), s),
        Store(other, (), y, s),
        Check(chosen, "n is odd", (n,), s),
    ]
    text = print_kernel(
        kernel(stmts, mems=(X, a, saved, other), args=(n, flags), reductions=(("min", X, (n,)),),
               yields=(e2,))
    )  # fmt: skip
    lines = [re.sub(r" +; L4", "", line) for line in text.splitlines()]
    assert lines == [
        "kernel step(x: field f32[8], a: array<vec2 f32, 2>, x.1: temp f32[], $n: i32, "
        "$flags: vec2 bool) {",
        "  serial {",
        "    scratch saved[$n]: f32",
        "    %v: vec2 f32 = load a[$n, 0]",
        "    %t0: u64 = random_u64 $seed, $seed, 1",
        "    %e.1: f32 = for %k in 0..$a.shape[1] reversed carry (%e: f32 = 0.0) {",
        "      yield %e",
        "    }",
        "    %w.1: i32 = while carry (%w: i32 = 0) {",
        "      %t1: bool = lt %w, $n",
        "      yield %t1",
        "    } do {",
        "      %w.2: i32 = add %w, 1",
        "      yield %w.2",
        "    }",
        "    %t2: bool = extract $flags, 0",
        "    %e.2: f32 = if %t2 {",
        "      yield %e.1",
        "    } else {",
        "      yield 1.5",
        "    }",
        "    if %t2 {",
        "      store x[%w.1], %e.2",
        "    }",
        "    store saved[%w.1], %e.2",
        "    %t3: f32 = exclusive_max x[%w.1], %e.2",
        "    store a[$n, $n], splat(2.0)",
        "    store x.1[], %t3",
        "    check %t2, 'n is odd'",
        "    reduce_min x[$n], %e.2",
        "  }",
        "}",
    ]


def test_booleans_are_printed_in_small_letters():
    out = Mem("b", bool_, 0, ())
    text = print_kernel(kernel([Store(out, (), Const(bool_, True), SPAN)], mems=(out,)))
    assert "store b[], true" in text


# ---- verifying


def test_well_formed_ir_passes_through():
    made = squares()
    assert verify(made) is made


def loop(**changed):
    p, k = Value(f32), Value(i32)
    parts = dict(
        index=k, lo=ZERO_I, hi=EIGHT, params=(p,), inits=(Const(f32, 0.0),),
        body=Block([], (p,)), outs=(Value(f32),), span=SPAN,
    )  # fmt: skip
    return For(**{**parts, **changed})


def branch(**changed):
    parts = dict(cond=Const(bool_, True), then=Block([]), orelse=Block([]), outs=(), span=SPAN)
    return If(**{**parts, **changed})


def while_loop(**changed):
    yes = Block([], (Const(bool_, True),))
    parts = dict(params=(), inits=(), cond=yes, body=Block([]), outs=(), span=SPAN)
    return While(**{**parts, **changed})


def bound_twice():
    first, out = let(ops.sin, Const(f32, 1.0))
    return kernel([first, Let(out, ops.cos, (out,), SPAN)])


def used_before():
    second, out = let(ops.sin, Const(f32, 1.0))
    first, _ = let(ops.cos, out)
    return kernel([first, second])


def leaves_its_block():
    inner, out = let(ops.sin, Const(f32, 1.0))
    return kernel([branch(then=Block([inner])), Store(LOSS, (), out, SPAN)])


def leaves_its_task():
    inner, out = let(ops.sin, Const(f32, 1.0))
    first, second = Block([inner]), Block([Store(LOSS, (), out, SPAN)])
    tasks = tuple(Task((), Block([]), body, SPAN) for body in (first, second))
    return Kernel("step", (), (LOSS,), tasks, SPAN)


def stray_op():
    forged = Op("sin", "F -> F", "Not the row.", ref=None, lowering=Instr(), vjp=ZERO,
                continuation=UNKNOWN, sample=[(0, 1)])  # fmt: skip
    return kernel([let(forged, Const(f32, 1.0))[0]])


HALF, YES = Const(f32, 0.5), Const(bool_, True)
MALFORMED = {
    "bound twice": bound_twice,
    "used where it is not bound": used_before,
    "is used where it is not bound": leaves_its_block,
    "(f32) is used where it is not bound": leaves_its_task,
    "sin is not in the table": stray_op,
    "operands of add differ in type": lambda: kernel([let(ops.add, HALF, Const(f64, 1.0))[0]]),
    "result of add should be f32": lambda: kernel([let(ops.add, HALF, HALF, t=f64)[0]]),
    "result of lt should be bool": lambda: kernel([let(ops.lt, HALF, HALF)[0]]),
    "operand of add has another shape": lambda: kernel(
        [let(ops.add, Const(VEC2, 1.0), HALF, t=tensor(f32, (3,)))[0]]
    ),
    "loss is not one of the kernel's memories": lambda: kernel(
        [Store(LOSS, (), HALF, SPAN)], mems=(X,)
    ),
    "x has 1 axes": lambda: kernel([Store(X, (), HALF, SPAN)]),
    "an index must be a whole number": lambda: kernel([Store(X, (HALF,), HALF, SPAN)]),
    "x holds f32, not f64": lambda: kernel([Store(X, (ZERO_I,), Const(f64, 1.0), SPAN)]),
    "loss holds f32, not vec2 f32": lambda: kernel([Load(Value(VEC2), LOSS, (), SPAN)]),
    "loss holds f32, not i32": lambda: kernel([Atomic(None, "add", LOSS, (), EIGHT, SPAN)]),
    "carried values differ in number": lambda: kernel([loop(outs=())]),
    "carried values differ in number or": lambda: kernel([loop(body=Block([], (EIGHT,)))]),
    "bounds and index differ in type": lambda: kernel([loop(index=Value(u64))]),
    "carried values": lambda: kernel([loop(inits=())]),
    "carried values differ": lambda: kernel([while_loop(inits=(HALF,))]),
    "a while needs one boolean": lambda: kernel([while_loop(cond=Block([], (HALF,)))]),
    "the condition of a while writes": lambda: kernel(
        [while_loop(cond=Block([Store(LOSS, (), HALF, SPAN)], (Const(bool_, True),)))]
    ),
    "the bounds of a task write": lambda: Kernel(
        "step",
        (),
        (LOSS,),
        (Task((), Block([Store(LOSS, (), HALF, SPAN)]), Block([]), SPAN),),
        SPAN,
    ),
    "branch results differ": lambda: kernel([branch(outs=(Value(f32),))]),
    "an if needs a boolean": lambda: kernel([branch(cond=EIGHT)]),
    "needs lo and hi for each axis": lambda: kernel([], axes=(Value(i32),), bounds=(ZERO_I,)),
    "one value for each reduction": lambda: kernel([], reductions=(("add", LOSS, ()),)),
    "one value for each": lambda: kernel([], yields=(HALF,)),
    "cannot have blocks of 100 threads": lambda: kernel(
        [], axes=(Value(i32),), bounds=(ZERO_I, EIGHT), block_dim=100
    ),
    "cannot have blocks of 0 threads": lambda: kernel(
        [], axes=(Value(i32),), bounds=(ZERO_I, EIGHT), block_dim=0
    ),
    "cannot have blocks of 64 threads": lambda: kernel([], block_dim=64),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_malformed_ir_is_found(message):
    with pytest.raises(InternalError) as caught:
        verify(MALFORMED[message](), "a pass")
    first, rest = str(caught.value).split("\n", 1)
    assert first.startswith("malformed IR after a pass: ")
    assert message in first
    assert "kernel step(" in rest
    assert caught.value.span is SPAN


def test_without_a_pass_it_was_the_frontend():
    with pytest.raises(InternalError, match="malformed IR after building"):
        verify(bound_twice())


def test_a_lane_may_not_use_what_the_bounds_bound():
    # Bounds are evaluated once, on the launching thread.
    made, out = let(ops.add, EIGHT, EIGHT, t=i32)
    body = Block([Store(X, (out,), HALF, SPAN)])
    axis = Value(i32)
    task = Task((axis,), Block([made], (ZERO_I, out)), body, SPAN)
    with pytest.raises(InternalError, match="not bound"):
        verify(Kernel("step", (), (X,), (task,), SPAN))


def test_scratch_is_known_from_where_it_is_made():
    mem = Mem("saved", f32, 1, None, "scratch")
    store = Store(mem, (ZERO_I,), HALF, SPAN)
    verify(kernel([Alloca(mem, EIGHT, SPAN), store]))
    with pytest.raises(InternalError, match="saved is not one of"):
        verify(kernel([store, Alloca(mem, EIGHT, SPAN)]))


def test_what_the_builder_makes_is_well_formed():
    b = Builder(SPAN)
    with b:
        v = b.tensor_of([b.load(X, (ZERO_I,)), 2.0], (2,))
        w = ops.select(v > 1, v, -v) + b.broadcast(Const(i32, 1), VEC2)
        b.store(X, (EIGHT,), ops.reduce_sum(ops.matmul(ops.outer(w, w), v)))
    verify(kernel(b.stmts))
