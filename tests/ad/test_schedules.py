"""Checkpoint schedules: how often steps are run, against searches of all schedules, and planning itself."""

from __future__ import annotations

import functools
import math
import time
import tracemalloc

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.schedules.actions import Action, Holdings, backward, forward
from diffsim.ad.schedules.mixed import best_split, leaf_lengths, planned, repeated
from diffsim.ad.schedules.online import OnlineStates

pytestmark = pytest.mark.usefixtures("quick_code")


@functools.cache
def optimum(n, free, state=1, tape=1, kept=0):
    """Fewest runs to reverse n steps: the recursion over all first actions (Maddison 2023, section 4).

    `kept` is what the first state takes if it is held to the end, and is held already.
    """
    best = n if kept + (n - 1) * tape <= free else math.inf
    if kept or free >= state:
        for i in range(1, n):
            right = optimum(n - i, free - (kept or state), state, tape)
            best = min(best, i + optimum(i, free, state, tape, kept) + right)
    if n > 1 and not kept and free >= tape:
        best = min(best, 1 + optimum(n - 1, free - tape, state, tape))
    return best


def shortest_path(n, slots):
    """The same without any recursion: Dijkstra over all that can be held, for very small n."""
    # present step, steps not yet reversed, states and tapes held; the tape at work is reversed at once
    start = 0, n, frozenset()
    distance, todo = {start: 0}, {0: [start]}
    for cost in range(10 * n * n):
        for node in todo.get(cost, ()):
            if distance[node] < cost:
                continue
            at, left, held = node
            if not left:
                return cost
            moves = [(0, (at, left, held - {h})) for h in held]
            moves += [(0, (s, left, held)) for kind, s in held if kind == "state"]
            if ("tape", left - 1) in held:
                moves.append((0, (None, left - 1, held - {("tape", left - 1)})))
            if at is not None and at < left:
                moves.append((1, (at + 1, left, held)))
                if at == left - 1:
                    moves.append((1, (None, left - 1, held)))
                if len(held) < slots:
                    moves.append((0, (at, left, held | {("state", at)})))
                    moves.append((1, (at + 1, left, held | {("tape", at)})))
            for price, other in moves:
                if cost + price < distance.get(other, math.inf):
                    distance[other] = cost + price
                    todo.setdefault(cost + price, todo[cost] if not price else []).append(other)
    raise AssertionError("no way")


def performed(n, held, first_runs=None):
    """Follow a schedule, check that it is one that can be performed, and count the runs."""
    room = held.room + held.tape_bytes
    runs, at, left = 0, 0, n
    actions = first_runs or forward(0, n, held)
    for phase in (actions, backward(n, held)):
        for a in held.follow(phase):
            if a.kind in ("run", "tape"):
                assert a.step == at
                at = a.end if a.kind == "run" else at + 1
                runs += at - a.step
            elif a.kind == "restore":
                assert a.step in held.states
                at = a.step
            elif a.kind in ("hold", "store"):
                assert a.step == at
            elif a.kind == "reverse":
                left -= 1
                assert a.step == left
                assert left in held.tapes
            assert held.used <= room
    assert left == 0
    assert list(held.states) == [0]
    assert not held.tapes
    return runs


def started(state=8, tape=8, *, disk=False, **options):
    held = Holdings(state, tape, **options)
    if disk:
        held.spacing = held.lengths(0)[0]
    held.add_state(0, None, 0 if disk else state)
    return held


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_schedule_is_better_than_the_closed_form(slots):
    """A search of everything that can be held, whatever the order."""
    for n in range(1, 9 - slots):
        want = shortest_path(n, slots)
        assert optimum(n, slots) == want
        assert n + repeated(n, leaf_lengths(slots, 1, 1)) == want


def test_closed_form_is_the_optimum_of_the_recursion():
    for slots in range(1, 8):
        for n in range(1, 120):
            lengths = leaf_lengths(slots, 1, 1)
            want = optimum(n, slots)
            assert n + repeated(n, lengths) == n + planned(n, lengths) == want
            if i := best_split(n, lengths):
                assert i + optimum(i, slots) + optimum(n - i, slots - 1) == want


def test_the_first_state_stays():
    """It is there for another backward pass; performed, the runs are the optimum under this condition."""
    for slots in range(1, 6):
        for n in range(1, 70):
            held = started(states=slots)
            want = optimum(n, slots, 1, 1, 1)
            assert held.planned(n) == want
            assert performed(n, held) == want


def test_as_good_as_the_best_known():
    """The numbers of the literature: 20 slots, 1,000 steps."""
    mixed, revolve = (
        performed(1000, started(states=20, holds_tapes=tapes)) for tapes in (True, False)
    )
    assert (mixed, revolve) == (2823, 3747)
    # Griewank and Walther: r n - binom(s + r, r - 1) runs, and each step once more on a tape.
    assert revolve == 3 * 1000 - math.comb(23, 2) + 1000


@pytest.mark.parametrize(("steps", "slots"), [(1, 1), (9, 1), (100, 5), (1000, 8), (700, 30)])
def test_binomial_runs_are_those_of_revolve(steps, slots):
    r = next(r for r in range(steps + 1) if math.comb(slots + r, r) >= steps)
    want = r * steps - (math.comb(slots + r, r - 1) if r else 0) + steps
    assert performed(steps, started(states=slots, holds_tapes=False)) == want


@pytest.mark.parametrize(
    ("state", "tape"), [(2, 1), (3, 1), (10, 1), (3, 2), (10, 9), (2, 3), (9, 10), (1, 3), (1, 10)]
)
def test_tapes_and_states_of_other_sizes(state, tape):
    """At most what is planned, and a tenth more than the optimum; much less than with states alone."""
    for room in range(state, 5 * state + 3 * tape, max(1, (state + tape) // 3)):
        for n in (2, 5, 13, 29, 40):
            held = started(state, tape, memory=room + tape)
            plan = held.planned(n)
            runs = performed(n, held)
            best = optimum(n, room, state, tape, state)
            assert best <= runs <= plan
            assert runs <= 1.1 * best
            alone = performed(n, started(state, tape, memory=room + tape, holds_tapes=False))
            assert runs <= alone


def test_a_million_steps_are_planned_at_once():
    """Less than 10 ms and 1 MB, whatever the memory holds; the next actions too."""
    for state, tape, states in ((1, 1, 1), (1, 1, 20), (10, 7, 1000), (10, 1, 4000), (1, 9, 500)):
        times = []
        for _ in range(3):
            begin = time.process_time()
            plan = ds.ad.checkpoint_plan(10**6, states, state_bytes=state, tape_bytes=tape)
            actions = iter(plan)
            first = [next(actions) for _ in range(3)]
            times.append(time.process_time() - begin)
        assert min(times) < 0.010
        assert first[0] == Action("hold", 0)
    tracemalloc.start()
    assert ds.ad.checkpoint_plan(10**6, 20).steps_run == 7055200
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_disk():
    """Each step twice at most; what is read back is run on tapes as a whole."""
    for n in (1, 10, 11, 12, 100, 1000):
        held = started(memory=88, disk=True)
        assert held.spacing == 11
        plan = held.planned(n)
        assert performed(n, held) == plan == 2 * n - ((n - 1) % 11 + 1)


def online(held, states, n):
    """The actions of a forward run whose end nobody knows."""
    for t in range(n):
        if states.wants(t):
            dropped = states.replace(t)
            if dropped is not None:
                held.drop_state(dropped)
            yield Action("hold", t)
        yield Action("run", t, t + 1)


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 10, 20])
@pytest.mark.parametrize("stride", [1, None])
def test_an_unknown_number_of_steps(slots, stride):
    """At most one run of each step more than with the number known, and what theory says in all."""
    for n in (1, 2, 3, 7, slots, 3 * slots, 100, 231, 400, 1000):
        if slots < 3 and n > 100:
            continue
        held = started(states=slots)
        stride = stride or max(1, held.lengths(0)[0] // 2)
        runs = performed(n, held, online(held, OnlineStates(slots, stride), n))
        assert runs <= started(states=slots).planned(n) + n
        # Wang, Moin, Iaccarino: no step is run more than r times again, stretch by stretch
        r = next(r for r in range(n + 1) if math.comb(slots - 1 + r, r) >= n or slots == 1)
        if stride == 1 and slots > 1:
            assert runs <= (r + 2) * n


def test_planned_from_the_states_of_an_online_run():
    for n in (1, 5, 50, 333):
        held = started(states=6)
        for _ in held.follow(online(held, OnlineStates(6, 2), n)):
            pass
        plan = held.planned_from_states(n)
        assert performed(n, held, iter([Action("run", 0, n)])) == plan


def test_a_plan_is_printed_and_drawn():
    plan = ds.ad.checkpoint_plan(10, 3)
    assert (plan.n_steps, plan.steps_run) == (10, optimum(10, 3, 1, 1, 1))
    lines = str(plan).splitlines()
    assert lines[0] == "<checkpoint plan: 10 steps, 20 runs, 2.000 of each step>"
    assert lines[1] == "  hold 0"
    assert sum(a.kind == "reverse" for a in plan) == 10
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    ax = plan.plot(plt.figure().gca())
    runs = {line.get_label(): line.get_xdata() for line in ax.lines}
    lengths = {name: np.nansum(np.diff(x)) for name, x in runs.items() if not name.startswith("_")}
    assert lengths["run"] + lengths["run on a tape"] == plan.steps_run
    assert lengths["adjoint"] == 10
    # Below it the memory: never more than three states, and the tape at work.
    below = plan.plot().figure.axes[1]
    most = max(path.get_extents().y1 for area in below.collections for path in area.get_paths())
    assert most == 4
    plt.close("all")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_steps": 0}, "n_steps is a whole number"),
        ({"n_steps": 10, "snapshots": 2.5}, "snapshots is a whole number"),
        ({"n_steps": 10, "tape_bytes": -1}, "tape_bytes is a whole number"),
        ({"n_steps": 10, "snapshots": 2, "memory": 9}, "both given"),
        ({"n_steps": 10, "memory": 1}, "memory=1 is too little"),
        ({"n_steps": 10, "schedule": "equidistant"}, "has no plan"),
    ],
)
def test_plans_that_make_no_sense(arguments, words):
    with pytest.raises(ds.ArgumentError, match=words):
        ds.ad.checkpoint_plan(**arguments)
