"""Sums out of loops, reductions of parallel loops, and atomics that need not be atomic."""

import numpy as np
import pytest

from diffsim.backends.interpreter import run
from diffsim.errors import Span
from diffsim.ir import ops
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Arg, Atomic, Block, Const, For, If, Kernel, Mem, Task, Value, While
from diffsim.ir.traversal import blocks, task_statements
from diffsim.ir.types import SCALARS, bool_, f32, f64, i32, i64, u8
from diffsim.ir.verifier import verify
from diffsim.passes.transforms import reductions
from diffsim.passes.transforms.demote_atomics import demote_atomics
from diffsim.passes.transforms.reductions import hoist_reductions, identity

SPAN = Span("test_reductions.py", 1)
N = 5
X = Mem("x", f64, 1, (N,))
S, T = Mem("s", f64, 0, ()), Mem("t", f64, 0, ())
P = Mem("p", f64, 2, (N, N))
IDX = Mem("idx", i32, 1, (N,))
MEMS = (X, S, T, P, IDX)
ZERO, ONE, THREE = Const(i32, 0), Const(i32, 1), Const(i32, 3)


def memory():
    rng = np.random.default_rng(0)
    return {
        X: rng.normal(size=N),
        S: np.array(0.5),
        T: np.array(-0.5),
        P: rng.normal(size=(N, N)),
        IDX: np.array([3, 0, 0, 4, 1], np.int32),
    }


def parallel(body, n=1, hi=N):
    """A kernel of one task over n axes 0..hi; body(builder, *axes) fills it."""
    b, axes = Builder(SPAN, f64), tuple(Value(i32, name) for name in "ij"[:n])
    with b:
        body(b, *axes)
    bounds = Block([], (ZERO, Const(i32, hi)) * n)
    args = (Arg(i32, "arg", 0),)
    return Kernel("k", args, MEMS, (Task(axes, bounds, Block(b.stmts), SPAN),), SPAN)


def changed(kernel, change):
    """What the pass makes of it, which gives the same numbers."""
    made = verify(change(verify(kernel)), change.__name__)
    before, after = memory(), memory()
    run(kernel, before, (2,))
    run(made, after, (2,))
    for mem in MEMS:
        np.testing.assert_allclose(after[mem], before[mem], rtol=1e-13)
    return made


def taken(kernel):
    made = changed(kernel, hoist_reductions)
    changed(made, demote_atomics)
    return made.tasks[0]


def loop(b, body, hi=THREE):
    k = Value(i32, "k")
    with b.block() as stmts:
        body(k)
    b.add(For(k, ZERO, hi, (), (), Block(stmts), (), SPAN))


def branch(b, cond, then, orelse=lambda: None):
    with b.block() as yes:
        then()
    with b.block() as no:
        orelse()
    b.add(If(cond, Block(yes), Block(no), (), SPAN))


def atomics(task):
    return [s for s in task_statements(task) if isinstance(s, Atomic)]


# ---- reductions


@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_a_parallel_sum_becomes_a_reduction(op):
    def body(b, i):
        b.atomic(op, S, (), b.load(X, (i,)))

    task = taken(parallel(body))
    assert task.reductions == ((op, S, ()),)
    assert not atomics(task)
    assert task.body.yields == (task.body.stmts[0].out,)


def test_sums_of_one_element_are_one_reduction():
    def body(b, i):
        x = b.load(X, (i,))
        b.atomic("add", S, (), x)
        b.atomic("max", T, (), x)
        b.atomic("add", S, (), x * x)

    task = taken(parallel(body))
    assert task.reductions == (("add", S, ()), ("max", T, ()))
    assert [s.op.name for s in task.body.stmts[1:]] == ["mul", "accumulate"]


def test_a_sum_of_two_axes():
    def body(b, i, j):
        b.atomic("add", S, (), b.load(P, (i, j)))

    assert taken(parallel(body, 2)).reductions == (("add", S, ()),)


def test_elements_at_leaves():
    def body(b, i):
        x = b.load(X, (i,))
        b.atomic("add", P, (ZERO, ONE), x)
        b.atomic("add", P, (ONE, ZERO), x)

    k = parallel(body)
    assert len(taken(k).reductions) == 2
    arg = k.args[0]
    b = Builder(SPAN, f64)
    b.atomic("add", X, (arg,), Const(f64, 1.0))
    k = Kernel(
        "k", (arg,), MEMS, (Task((Value(i32),), k.tasks[0].bounds, Block(b.stmts), SPAN),), SPAN
    )
    assert taken(k).reductions == (("add", X, (arg,)),)


def test_what_is_used_otherwise_stays_atomic():
    def reads(b, i):
        b.atomic("add", S, (), b.load(S, ()))

    def stores(b, i):
        b.atomic("add", S, (), b.load(X, (i,)))
        branch(b, i < 0, lambda: b.store(S, (), Const(f64, 1.0)))

    def wants_old(b, i):
        b.store(P, (i, i), b.atomic("add", S, (), Const(f64, 1.0), wants_old=True))

    def mixes(b, i):
        b.atomic("add", S, (), Const(f64, 1.0))
        b.atomic("max", S, (), Const(f64, 0.0))

    def varies(b, i):
        b.atomic("add", X, (b.load(IDX, (i,)),), Const(f64, 1.0))

    def bits(b, i):
        b.atomic("xor", IDX, (ZERO,), i)

    for body in (reads, stores, wants_old, mixes, varies, bits):
        k = parallel(body)
        task = taken(k)
        assert not task.reductions, body.__name__
        assert len(atomics(task)) == len(atomics(k.tasks[0])), body.__name__


def test_serial_code_has_no_reductions():
    b = Builder(SPAN, f64)
    b.atomic("add", S, (), Const(f64, 1.0))
    k = Kernel("k", (), MEMS, (Task((), Block([]), Block(b.stmts), SPAN),), SPAN)
    task = changed_without_args(k)
    assert not task.reductions
    assert len(atomics(task)) == 1


def changed_without_args(kernel):
    made = verify(hoist_reductions(kernel))
    before, after = memory(), memory()
    run(kernel, before)
    run(made, after)
    assert before[S] == after[S]
    return made.tasks[0]


def test_a_sum_in_a_branch():
    def body(b, i):
        x = b.load(X, (i,))
        branch(
            b,
            x > 0,
            lambda: b.atomic("add", S, (), x),
            lambda: (b.atomic("add", S, (), 2.0 * x), b.atomic("max", T, (), x)),
        )
        b.atomic("add", S, (), Const(f64, 1.0))

    task = taken(parallel(body))
    assert task.reductions == (("add", S, ()), ("max", T, ()))
    assert not atomics(task)


def test_a_branch_without_sums_stays_as_it_is():
    def body(b, i):
        x = b.load(X, (i,))
        branch(b, x > 0, lambda: b.store(P, (i, i), x))
        b.atomic("add", S, (), x)

    task = taken(parallel(body))
    assert task.body.stmts[2].outs == ()
    assert task.body.yields == (task.body.stmts[0].out,)


def test_no_lanes_leave_the_sum_alone():
    def body(b, i):
        b.atomic("add", S, (), b.load(X, (i,)))

    assert len(taken(parallel(body, hi=0)).reductions) == 1


# ---- loops


@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_a_loop_carries_its_sum(op):
    def body(b, i):
        loop(b, lambda k: b.atomic(op, X, (i,), b.load(P, (i, k))))

    task = taken(parallel(body))
    turns, update = task.body.stmts
    assert isinstance(turns, For)
    assert (update.op, update.mem, update.value) == (op, X, turns.outs[0])
    assert turns.inits[0].value == identity(op, f64).value
    names = [s.op.name for s in turns.body.stmts if hasattr(s, "args")]
    assert names == [{"add": "accumulate"}.get(op, op)]


def test_sums_leave_nested_loops_and_become_reductions():
    def body(b, i):
        loop(b, lambda k: loop(b, lambda m: b.atomic("add", S, (), b.load(P, (k, m)))))

    task = taken(parallel(body))
    assert task.reductions == (("add", S, ()),)
    (outer,) = task.body.stmts
    inner = outer.body.stmts[0]
    assert len(outer.params) == len(inner.params) == 1
    assert not atomics(task)


def test_a_while_carries_its_sum():
    def body(b, i):
        k = Value(i32, "k")
        with b.block() as cond:
            more = k < i
        with b.block() as stmts:
            b.atomic("add", S, (), Const(f64, 0.25))
            b.atomic("add", X, (i,), Const(f64, 0.25))  # no turn may mean no such element
            after = k + 1
        inits, outs = (ZERO,), (Value(i32),)
        b.add(While((k,), inits, Block(cond, (more,)), Block(stmts, (after,)), outs, SPAN))

    task = taken(parallel(body))
    # Besides its counter: both sums, and whether the element was updated.
    assert [len(s.params) for s in task.body.stmts if isinstance(s, While)] == [4]
    assert [a.mem for a in atomics(task)] == [X]
    assert [mem for _, mem, _ in task.reductions] == [S]


def in_loops(block, inside=False):
    """The atomics that loops still make."""
    for s in block.stmts:
        if isinstance(s, Atomic) and inside:
            yield s
        for inner in blocks(s):
            yield from in_loops(inner, inside or isinstance(s, (For, While)))


def test_updates_under_branches_of_loops_leave_all_of_them():
    """Of elements that exist in some lanes alone: no other lane touches one."""

    def body(b, i):
        at = i + 3

        def inner(k, m):
            v = b.load(IDX, (k,)) + m * 0.5
            yes = lambda: [b.atomic("add", X, (at,), v), b.atomic("min", P, (at, i), v)]  # noqa: E731
            branch(b, b.named("and", at < N, m != 1), yes, lambda: b.atomic("add", S, (), v))
            branch(b, at < N, lambda: b.atomic("add", X, (at,), v * 3.0))

        loop(b, lambda k: loop(b, lambda m: inner(k, m), hi=k))

    task = taken(parallel(body))
    assert not list(in_loops(task.body))
    assert sorted(a.mem.name for a in atomics(task)) == ["p", "x"]
    assert [mem for _, mem, _ in task.reductions] == [S]


def test_a_while_that_reads_its_sum_keeps_it():
    def body(b, i):
        with b.block() as cond:
            more = b.load(S, ()) < 3.0
        with b.block() as stmts:
            b.atomic("add", S, (), Const(f64, 1.0))
        b.add(While((), (), Block(cond, (more,)), Block(stmts), (), SPAN))

    task = taken(parallel(body))
    assert not task.reductions
    assert task.body.stmts[0].params == ()


def test_an_element_that_the_loop_chooses_stays():
    def body(b, i):
        loop(b, lambda k: b.atomic("add", X, (b.load(IDX, (k,)),), Const(f64, 1.0)))
        loop(b, lambda k: b.atomic("add", P, (k, i), Const(f64, 1.0)))

    task = taken(parallel(body))
    assert all(s.params == () for s in task.body.stmts)


def test_indices_that_the_loop_computes_anew_leave_it():
    def body(b, i):
        def turn(k, m):
            v = b.load(IDX, (m,)) + k * 0.5
            b.atomic("add", X, (i * 2 - i,), v)
            far = Const(i32, 4) - i
            yes = lambda: [b.atomic("max", P, (i, far), v), b.atomic("max", P, (far - 0, i), v)]  # noqa: E731
            branch(b, b.named("and", v > 1.0, m != k), yes)

        loop(b, lambda k: loop(b, lambda m: turn(k, m)))

    task = taken(parallel(body))
    assert not list(in_loops(task.body))
    assert sorted(a.mem.name for a in atomics(task)) == ["p", "p", "x"]


def test_indices_of_any_length_leave_loops():
    def body(b, i):
        def turn(k):
            at = i + 1500
            for _ in range(1500):
                at = at - 1
            b.atomic("add", X, (at,), b.load(IDX, (k,)) * 0.5)

        loop(b, turn)

    task = taken(parallel(body))
    assert not list(in_loops(task.body))
    assert [a.mem for a in atomics(task)] == [X]


def test_indices_that_the_loop_changes_or_must_not_compute_stay():
    def turns(b, i):
        loop(b, lambda k: b.atomic("add", X, (i * 0 + k,), Const(f64, 1.0)))

    def results(b, i):
        def turn(k):
            side = Value(i32, "side")
            b.add(If(k < i, Block([], (ONE,)), Block([], (ZERO,)), (side,), SPAN))
            b.atomic("add", X, (side + 1,), Const(f64, 1.0))

        loop(b, turn)

    def loads(b, i):
        loop(b, lambda k: b.atomic("add", X, (b.load(IDX, (i,)) + 1 - 1,), Const(f64, 1.0)))

    def divides(b, i):
        def turn(k):
            # 0 has no iteration to divide by it
            at = b.named("int_div", Const(i32, 4), i)
            b.atomic("add", X, (at,), Const(f64, 1.0))

        loop(b, turn, hi=i)

    for body in (turns, results, loads, divides):
        task = taken(parallel(body))
        assert len(list(in_loops(task.body))) == 1, body.__name__


def test_what_the_loop_reads_stays():
    def body(b, i):
        def turn(k):
            b.atomic("add", X, (i,), b.load(X, (i,)))

        loop(b, turn)

    task = taken(parallel(body))
    assert [s.params for s in task.body.stmts] == [()]


def test_a_sum_in_a_branch_of_a_loop():
    def body(b, i):
        def turn(k):
            x = b.load(P, (i, k))
            branch(b, x > 0, lambda: b.atomic("add", S, (), x))

        loop(b, turn)

    task = taken(parallel(body))
    (turns,) = task.body.stmts
    assert isinstance(turns.body.stmts[-2], If)
    assert len(turns.body.stmts[-2].outs) == 1
    assert [mem for _, mem, _ in task.reductions] == [S]


@pytest.mark.parametrize("guard", ["branch", "no turns"])
def test_an_element_is_touched_only_if_it_was(guard):
    # k is -1 where there is no such element, which the program asks before it uses k.
    def body(b, i):
        k = b.load(IDX, (i,)) - 1

        def add():
            b.atomic("add", X, (k,), Const(f64, 1.0))

        if guard == "branch":
            loop(b, lambda turn: branch(b, k >= 0, add))
        else:
            loop(b, lambda turn: add(), ops.minimum(k + 1, 2))

    taken(parallel(body))


@pytest.mark.parametrize("t", [t for t in SCALARS.values() if t is not bool_], ids=str)
@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_identities_change_nothing(op, t):
    combine = {"add": np.add, "min": np.fmin, "max": np.fmax}[op]
    info = np.finfo(t.numpy) if t.is_float else np.iinfo(t.numpy)
    for x in (info.min, info.max, 1):
        with np.errstate(all="ignore"):
            assert combine(t.numpy.type(identity(op, t).value), t.numpy.type(x)) == x
    assert identity(op, u8).type is u8


# ---- exclusive updates


def exclusive(body, n=1):
    """For each atomic, whether it was marked."""
    return [s.exclusive for s in atomics(changed(parallel(body, n), demote_atomics).tasks[0])]


HALF = Const(f64, 0.5)


def add(b, mem, *index):
    b.atomic("add", mem, index, HALF)


def shifted(b, i, by):
    return ops.mod(i + by, N)


@pytest.mark.parametrize(
    ("body", "alone"),
    [
        (lambda b, i: add(b, X, i), True),
        (lambda b, i: (add(b, X, i), b.load(X, (i,))), True),
        (lambda b, i: (add(b, P, i, ZERO), add(b, P, i, ONE)), True),
        (lambda b, i: (add(b, P, ZERO, i), add(b, P, ONE, i)), True),
        (lambda b, i: loop(b, lambda k: add(b, P, k, i)), True),
        (lambda b, i: branch(b, i < 2, lambda: add(b, X, i)), True),
        (lambda b, i: (add(b, P, i, i), add(b, P, i, ZERO)), True),
        (lambda b, i: add(b, X, b.cast(i, i64)), True),
        (lambda b, i: add(b, X, b.load(IDX, (i,))), False),
        (lambda b, i: add(b, X, ZERO), False),
        (lambda b, i: (add(b, P, i, ZERO), add(b, P, ZERO, i)), False),
        (lambda b, i: (add(b, X, i), add(b, X, ops.floordiv(i, 2))), False),
        (lambda b, i: (add(b, X, i), b.load(X, (ZERO,))), False),
        (lambda b, i: (add(b, X, i), b.store(X, (b.load(IDX, (i,)),), HALF)), False),
        (lambda b, i: add(b, X, shifted(b, i, 1)), False),  # it is, but who would know
        (lambda b, i: add(b, X, ops.floordiv(i, 2)), False),
        (lambda b, i: add(b, X, b.cast(b.cast(i, u8), i32)), False),  # i8 forgets
    ],
)
def test_exclusive_on_one_axis(body, alone):
    found = exclusive(body)
    assert found == [alone] * len(found)


def neighbours(b, i):
    # Room for i + 1 on the axis of length N.
    branch(b, i < N - 1, lambda: (add(b, X, i), add(b, X, i + 1)))


def only_the_next(b, i):
    branch(b, i < N - 1, lambda: (add(b, X, i + 1), b.load(X, (i - (-1),))))


def two_steps(b, i):
    loop(b, lambda t: (add(b, P, t, i), b.load(P, (t + 1, i))))


def test_shifts_must_agree():
    assert exclusive(neighbours) == [False, False]
    assert exclusive(only_the_next) == [True]
    assert exclusive(two_steps) == [True]


def test_two_axes_need_both():
    assert exclusive(lambda b, i, j: add(b, P, i, j), 2) == [True]
    assert exclusive(lambda b, i, j: add(b, P, j, i), 2) == [True]
    assert exclusive(lambda b, i, j: add(b, P, i, i), 2) == [False]
    assert exclusive(lambda b, i, j: add(b, X, i), 2) == [False]
    assert exclusive(lambda b, i, j: (add(b, P, i, j), b.load(P, (j, i))), 2) == [False]


def test_each_memory_is_judged_by_itself():
    def body(b, i):
        add(b, X, i)
        add(b, P, b.load(IDX, (i,)), ZERO)

    assert exclusive(body) == [True, False]


def test_scratch_and_serial_code_are_ones_own():
    b = Builder(SPAN, f64)
    add(b, X, ZERO)
    k = Kernel("k", (), MEMS, (Task((), Block([]), Block(b.stmts), SPAN),), SPAN)
    assert [s.exclusive for s in atomics(demote_atomics(k).tasks[0])] == [True]


def test_marks_keep_old_values_and_lines():
    def body(b, i):
        b.store(P, (i, i), b.atomic("max", X, (i,), HALF, wants_old=True))

    k = parallel(body)
    (before,), (after,) = atomics(k.tasks[0]), atomics(changed(k, demote_atomics).tasks[0])
    assert after.exclusive
    assert not before.exclusive
    assert (after.out, after.span, after.origin) == (before.out, before.span, before)


def test_sums_in_single_precision():
    mem = Mem("f", f32, 0, ())
    b, i = Builder(SPAN), Value(i32)
    b.atomic("add", mem, (), Const(f32, 0.1))
    task = Task((i,), Block([], (ZERO, Const(i32, 10))), Block(b.stmts), SPAN)
    made = verify(hoist_reductions(Kernel("k", (), (mem,), (task,), SPAN)))
    array = np.zeros((), np.float32)
    run(made, {mem: array})
    assert made.tasks[0].reductions
    np.testing.assert_allclose(array, 1.0, rtol=1e-6)


# ---- sums along the last axes


@pytest.fixture
def few(monkeypatch):
    """A task of so few lanes may have loops in place of axes."""
    monkeypatch.setattr(reductions, "_FEWEST_LANES", N)


def in_lanes(kernel):
    """The extents of the axes that are left, and of the loops that others became."""
    made = changed(kernel, lambda k: hoist_reductions(k, in_lanes=True))
    changed(made, demote_atomics)
    (task,) = made.tasks
    return len(task.axes), [s for s in task_statements(task) if isinstance(s, For)]


def test_an_axis_that_only_sums_run_along_becomes_a_loop(few):
    axes, (found,) = in_lanes(
        parallel(lambda b, i, j: b.atomic("add", X, (i,), b.load(P, (i, j)) * b.load(T, ())), 2)
    )
    assert axes == 1
    assert len(found.outs) == 1  # the sum, which is added once


def test_a_total_besides_and_a_branch(few):
    def body(b, i, j):
        v = b.load(P, (i, j))
        branch(b, v > 0.0, lambda: b.atomic("max", X, (i,), v), lambda: b.atomic("add", S, (), v))

    axes, loops = in_lanes(parallel(body, 2))
    assert axes == 1
    assert len(loops) == 1


@pytest.mark.parametrize(
    "body",
    [
        lambda b, i, j: b.atomic("add", X, (j,), b.load(P, (i, j))),  # not the last axis
        lambda b, i, j: b.atomic("add", P, (j, i), b.load(X, (i,))),
        lambda b, i, j: b.atomic("add", X, (b.load(IDX, (i,)),), b.load(P, (i, j))),
        lambda b, i, j: b.atomic("add", X, (i,), b.load(X, (j,)) * 0.0),  # seen by other lanes
        lambda b, i, j: b.store(P, (i, j), b.atomic("add", X, (i,), HALF, wants_old=True) * 0.0),
        lambda b, i, j: loop(b, lambda k: b.atomic("add", X, (i,), b.load(P, (i, j)))),
        lambda b, i, j: b.atomic("add", S, (), b.load(P, (i, j))),  # no lanes would be left
    ],
)
def test_other_axes_stay(few, body):
    kernel = parallel(body, 2)
    assert len(hoist_reductions(kernel, in_lanes=True).tasks[0].axes) == 2


def test_few_lanes_keep_their_axes():
    kernel = parallel(lambda b, i, j: b.atomic("add", X, (i,), b.load(P, (i, j))), 2)
    assert in_lanes(kernel)[0] == 2


def test_an_axis_without_iterations_adds_nothing(few):
    b, (i, j) = Builder(SPAN, f64), (Value(i32, name) for name in "ij")
    b.atomic("min", X, (i,), b.load(P, (i, j)))
    bounds = Block([], (ZERO, Const(i32, N), THREE, ONE))
    task = Task((i, j), bounds, Block(b.stmts), SPAN)
    assert in_lanes(Kernel("k", (Arg(i32, "arg", 0),), MEMS, (task,), SPAN))[0] == 1
