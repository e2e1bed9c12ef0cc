"""Dropping what has no effect: carried values, branch results, scratch and temporaries included."""

import numpy as np

from diffsim.backends.interpreter import run
from diffsim.errors import Span
from diffsim.ir import ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Check,
    Const,
    For,
    If,
    Kernel,
    Load,
    Mem,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.traversal import task_statements
from diffsim.ir.types import bool_, f64, i32
from diffsim.ir.verifier import verify
from diffsim.passes.transforms.dce import eliminate_dead_code

SPAN = Span("test_dce.py", 1)
X, Y = Mem("x", f64, 1, (4,)), Mem("y", f64, 0, ())
ZERO, THREE = Const(i32, 0), Const(i32, 3)


def number(x):
    return Const(f64, x)


def serial(b, stmts=None):
    return Task((), Block([]), Block(b.stmts if stmts is None else stmts), SPAN)


def kernel(*tasks, temps=(), result=None):
    return Kernel("k", (), (X, Y, *temps), tasks, SPAN, result)


def dropped(k):
    """The kernel after the pass, which does what it did."""
    less = verify(eliminate_dead_code(verify(k)), "drop_dead")
    found = []
    for one in (k, less):
        memory = {X: np.arange(1.0, 5.0), Y: np.array(0.0)}
        returned = run(one, memory)
        found.append([returned, memory[X].tolist(), memory[Y].tolist()])
    assert found[0] == found[1]
    return less


def kinds(k):
    return [type(s).__name__ for t in k.tasks for s in task_statements(t)]


def test_values_that_nobody_reads():
    b = Builder(SPAN)
    with b:
        x = b.load(X, (ZERO,))
        ops.sin(ops.cos(x))
        b.load(Y, ())
        b.store(Y, (), x + 1.0)
    assert kinds(dropped(kernel(serial(b)))) == ["Load", "Let", "Store"]


def test_effects_stay():
    b = Builder(SPAN)
    with b:
        x = b.load(X, (ZERO,))
        old = b.atomic("add", Y, (), x, wants_old=True)
        b.add(Check(x > 0, "positive", (), SPAN))
    assert kinds(dropped(kernel(serial(b)))) == ["Load", "Atomic", "Let", "Check"]


def loop_with(b, n, body):
    """A loop of three turns that carries n floats from 1.0; body(params) gives the next ones."""
    params = tuple(Value(f64, f"p{k}") for k in range(n))
    with b.block() as stmts:
        nexts = body(params)
    outs = tuple(Value(f64) for _ in range(n))
    inits = tuple(number(1.0) for _ in range(n))
    b.add(For(Value(i32), ZERO, THREE, params, inits, Block(stmts, nexts), outs, SPAN))
    return outs


def test_carried_values_that_nobody_reads():
    b = Builder(SPAN)
    with b:

        def body(p):
            return p[0] * 2.0, ops.sin(p[1]) + p[0], p[2] + p[0]

        outs = loop_with(b, 3, body)
        b.store(Y, (), outs[2])
    (loop, _) = dropped(kernel(serial(b))).tasks[0].body.stmts
    # p1 needs only itself; p2 needs p0.
    assert [p.hint for p in loop.params] == ["p0", "p2"]
    assert len(loop.inits) == len(loop.outs) == len(loop.body.yields) == 2
    assert [s.op.name for s in loop.body.stmts] == ["mul", "add"]


def test_a_loop_that_does_nothing():
    b = Builder(SPAN)
    with b:
        loop_with(b, 1, lambda p: (p[0] * 2.0,))
        b.store(Y, (), number(1.0))
    assert kinds(dropped(kernel(serial(b)))) == ["Store"]


def test_a_loop_with_effects_keeps_what_they_need():
    b = Builder(SPAN)
    with b:

        def body(p):
            b.atomic("add", Y, (), p[0])
            return p[1], p[0], ops.sin(p[2])

        loop_with(b, 3, body)
    (loop,) = dropped(kernel(serial(b))).tasks[0].body.stmts
    assert [p.hint for p in loop.params] == ["p0", "p1"]


def test_while_keeps_what_its_condition_needs():
    b = Builder(SPAN)
    with b:
        k, x, unused = Value(i32, "k"), Value(f64, "x"), Value(f64, "unused")
        with b.block() as cond:
            more = k < 3
        with b.block() as body:
            nexts = (k + 1, x * 2.0, unused + x)
        outs = (Value(i32), Value(f64), Value(f64))
        inits = (ZERO, number(1.0), number(0.0))
        b.add(While((k, x, unused), inits, Block(cond, (more,)), Block(body, nexts), outs, SPAN))
        b.store(Y, (), outs[1])
    (loop, _) = dropped(kernel(serial(b))).tasks[0].body.stmts
    assert [p.hint for p in loop.params] == ["k", "x"]


def test_results_of_branches():
    b = Builder(SPAN)
    with b:
        x = b.load(X, (ZERO,))
        sides = []
        for f in (ops.sin, ops.cos):
            with b.block() as stmts:
                sides.append(Block(stmts, (f(x), ops.exp(x))))
        outs = (Value(f64), Value(f64))
        b.add(If(x > 0.5, *sides, outs, SPAN))
        b.store(Y, (), outs[0])
    branch = dropped(kernel(serial(b))).tasks[0].body.stmts[2]
    assert isinstance(branch, If)
    assert len(branch.outs) == len(branch.then.yields) == len(branch.orelse.yields) == 1
    assert [s.op.name for s in (*branch.then.stmts, *branch.orelse.stmts)] == ["sin", "cos"]


def test_what_led_to_an_effect_stays():
    b = Builder(SPAN)
    with b:
        flag = b.load(X, (ZERO,)) > 0
        with b.block() as inner:
            with b.block() as deepest:
                b.store(Y, (), number(5.0))
            b.add(If(flag, Block(deepest), Block([]), (), SPAN))
            ops.sin(b.load(X, (THREE,)))
        b.add(For(Value(i32), ZERO, THREE, (), (), Block(inner), (), SPAN))
    assert kinds(dropped(kernel(serial(b)))) == ["Load", "Let", "For", "If", "Store"]


def test_scratch_that_nobody_reads():
    for read in (False, True):
        b, mem = Builder(SPAN), Mem("saved", f64, 1, None, "scratch")
        with b:
            b.add(Alloca(mem, THREE, SPAN))
            b.store(mem, (ZERO,), b.load(X, (ZERO,)))
            saved = b.load(mem, (ZERO,))
            b.store(Y, (), saved if read else number(1.0))
        want = ["Alloca", "Load", "Store", "Load", "Store"] if read else ["Store"]
        assert kinds(dropped(kernel(serial(b)))) == want


def test_scratch_is_kept_by_a_read_in_a_loop():
    b, mem = Builder(SPAN), Mem("saved", f64, 1, None, "scratch")
    with b:
        b.add(Alloca(mem, THREE, SPAN))
        for reverse in (False, True):
            k = Value(i32)
            with b.block() as body:
                if reverse:
                    b.atomic("add", Y, (), b.load(mem, (k,)))
                else:
                    b.store(mem, (k,), b.load(X, (k,)))
            b.add(For(k, ZERO, THREE, (), (), Block(body), (), SPAN, reverse))
    less = dropped(kernel(serial(b)))
    assert kinds(less) == ["Alloca", "For", "Load", "Store", "For", "Load", "Atomic"]


def temp_tasks(*, read):
    b, temp = Builder(SPAN), Mem("s", f64, 0, (), "temp")
    with b:
        with b.block() as first:
            b.store(temp, (), number(2.0))
        with b.block() as second:
            b.atomic("add", temp, (), b.load(X, (ZERO,)))
        with b.block() as third:
            b.store(Y, (), b.load(temp, ()) if read else number(1.0))
    return tuple(serial(b, stmts) for stmts in (first, second, third)), temp


def test_temporaries_and_tasks_that_nobody_needs():
    tasks, temp = temp_tasks(read=False)
    less = dropped(kernel(*tasks, temps=(temp,)))
    assert kinds(less) == ["Store"]
    assert len(less.tasks) == 1


def test_temporaries_that_a_later_task_reads():
    tasks, temp = temp_tasks(read=True)
    assert len(dropped(kernel(*tasks, temps=(temp,))).tasks) == 3


def test_the_result_is_read_by_the_caller():
    tasks, temp = temp_tasks(read=False)
    assert len(dropped(kernel(*tasks, temps=(temp,), result=temp)).tasks) == 3


def test_bounds_keep_their_temporary():
    b, temp = Builder(SPAN), Mem("n", i32, 0, (), "temp")
    with b:
        with b.block() as first:
            b.store(temp, (), THREE)
        with b.block() as bounds:
            hi = b.load(temp, ())
        axis = Value(i32, "i")
        with b.block() as lane:
            b.store(X, (axis,), number(9.0))
    task = Task((axis,), Block(bounds, (ZERO, hi)), Block(lane), SPAN)
    less = dropped(kernel(serial(b, first), task, temps=(temp,)))
    assert kinds(less) == ["Store", "Load", "Store"]


def test_reductions_stay():
    b, axis = Builder(SPAN), Value(i32, "i")
    with b, b.block() as lane:
        x = b.load(X, (axis,))
        ops.sin(x)
    task = Task((axis,), Block([], (ZERO, THREE)), Block(lane, (x,)), SPAN, (("add", Y, ()),))
    less = dropped(kernel(task))
    assert kinds(less) == ["Load"]
    assert less.tasks[0].reductions == task.reductions


def test_parts_that_live_are_not_copied():
    b = Builder(SPAN)
    with b:
        b.store(Y, (), b.load(X, (ZERO,)))
        b.add(Atomic(None, "add", Y, (), number(1.0), SPAN))
    (task,) = dropped(kernel(serial(b))).tasks
    assert all(a is b for a, b in zip(task.body.stmts, b.stmts, strict=True))
    assert isinstance(task.body.stmts[0], Load)
    assert isinstance(task.body.stmts[1], Store)


def test_a_flag_carried_only_for_itself_goes():
    # What the frontend makes of `break`: a boolean that later turns test.
    b = Builder(SPAN)
    with b:
        stopped, total = Value(bool_, "stopped"), Value(f64, "total")
        k = Value(i32)
        with b.block() as body:
            now = stopped | (b.load(X, (k,)) > 2.0)
            nexts = (now, total + 1.0)
        outs = (Value(bool_), Value(f64))
        inits = (Const(bool_, False), number(0.0))
        b.add(For(k, ZERO, THREE, (stopped, total), inits, Block(body, nexts), outs, SPAN))
        b.store(Y, (), outs[1])
    (loop, _) = dropped(kernel(serial(b))).tasks[0].body.stmts
    assert [p.hint for p in loop.params] == ["total"]
    assert [s.op.name for s in loop.body.stmts] == ["add"]
