"""Native code that compares accesses of launches says the same as a comparison of all pairs."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError
from diffsim.ir.nodes import Mem, Store
from diffsim.ir.types import TensorType, f32
from diffsim.passes.autodiff.launch_conditions import Sites
from diffsim.runtime.kernels import launch_checks
from diffsim.runtime.numbering import meetings
from tests.support.gradients import check, field, numbers
from tests.support.rules import refused

pytestmark = pytest.mark.usefixtures("cpu")


def access(mem, whole=False):
    """An access to a component of a field (or to a whole element), of which nothing else is asked."""
    made = object.__new__(Store)
    made.mem, made.index = mem, (0,) * (1 if whole else 2)
    return made


def notes(r, sites, lanes, most, gap):
    """Random notes of random accesses in each lane, with gaps between lanes."""
    counts = r.integers(0, most + 1, lanes)
    starts = np.cumsum(counts + gap) - counts - gap
    bits = (len(sites) - 1).bit_length()
    codes = (
        r.integers(-3 * (r.random() < 0.2), r.choice([8, 20, 60]), counts.sum() + gap * lanes + 1)
        << bits
    )
    codes += r.integers(0, len(sites), len(codes))
    return meetings.Notes(tuple(sites), starts, starts + counts, codes, (0,), (lanes,), (), None)


def touched(found, sites, parts):
    """Pairs of lane and element."""
    numbers = [found.sites.index(a) for a in sites.accesses]
    return {
        (lane, e // parts)
        for lane, site, e in zip(found.lane, found.site, found.elements, strict=True)
        if site in numbers
    }


@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_all_pairs(first):
    for seed in range(first, first + 100):
        compare(seed)


def compare(seed):
    r = np.random.default_rng(seed)
    shape = [None, (20,), (100,), (10**9,)][seed % 4]
    mem = Mem("x", TensorType(f32, (3,)), 1, shape)
    sites = [access(mem, whole=r.random() < 0.1) for _ in range(r.integers(1, 6))]
    lanes, same_lane = int(r.integers(1, 6)), bool(r.random() < 0.7)
    one = notes(r, sites, lanes, 2, int(r.integers(0, 3)))
    other = one if r.random() < 0.5 else notes(r, sites, lanes, 2, 1)
    some, more = (
        Sites(task, tuple(r.permutation(sites)[: r.integers(1, len(sites) + 1)]))
        for task in (0, int(other is not one))
    )
    if r.random() < 0.3 and one is other:
        more = some
    question = meetings.Question(some, tuple(sites), more, tuple(sites), same_lane=same_lane)
    a, b = touched(one, some, question._parts), touched(other, more, question._parts)
    meet = any(e == f and not (same_lane and k == j) for k, e in a for j, f in b)
    surely = question.surely_not(one, other)
    if one is other and some == more and not same_lane:
        assert not surely  # what meets itself is for NumPy
        return
    assert not (surely and meet)
    # Elements that are none of the field's are for NumPy as well.
    outside = (
        shape is not None
        and question._count < 1000
        and any(not 0 <= e < question._count for _, e in b)
    )
    assert surely or meet or outside
    assert (question.first_meeting(one, other) is not None) == meet


def test_lists_that_change(monkeypatch):
    """Each launch has other lists: longer ones than the room of the last, and at last two that meet."""
    runs = []
    run = launch_checks.TraceRun._run

    def counted(self, args, memory, starts, room):
        runs.append(len(starts))
        return run(self, args, memory, starts, room)

    monkeypatch.setattr(launch_checks.TraceRun, "_run", counted)
    x, y, loss = field(40), field(40), field()
    count, place = ds.field(ds.i32, 6), ds.field(ds.i32, (6, 5))

    @ds.kernel
    def spread(first: ds.i32, n: ds.i32):
        for i in range(first, n):
            for k in range(count[i]):
                y[place[i, k]] = ds.sin(x[i]) * (k + 1)

    @ds.kernel
    def total():
        for i in range(40):
            loss[None] += (i % 7) * y[i]

    r = np.random.default_rng(0)
    start = numbers(40)

    def program():
        y.from_numpy(start)
        spread(0, 3)
        spread(3, 6)
        total()

    def write(lengths):
        count.from_numpy(np.array(lengths, np.int32))
        places = r.permutation(40)[:30].astype(np.int32).reshape(6, 5)
        place.from_numpy(places)
        return places

    x.from_numpy(numbers(40, seed=1))

    def of(turn):
        with ds.Tape(loss):
            turn()

    for lengths in ([1, 2, 0] * 2, [2, 1, 1] * 2, [5, 5, 5] * 2, [1, 0, 0] * 2, [2, 3, 1] * 2):
        write(lengths)
        check(program, loss, x)
    # One run of the trace where the lists fit into the room of the last ones, two where they do not.
    write([5] * 6)
    of(program)
    runs.clear()
    write([5] * 6)
    of(program)
    assert len(runs) == 2
    places = write([4, 5, 3, 2, 2, 5])
    places[5, 4] = places[4, 1]
    place.from_numpy(places)
    error = refused(program, loss, GlobalDataAccessError)
    assert f"y[{places[4, 1]}]" in error.message
    assert "iterations 4 and 5" in error.message
    write([4, 5, 3, 2, 2, 5])
    check(program, loss, x)
