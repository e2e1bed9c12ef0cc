"""Ownership, against all pairs of lanes."""

from random import Random

import pytest

import diffsim as ds
from diffsim.passes.analysis.dependence import accesses_of
from diffsim.passes.analysis.ownership import Ownership, own_without_pairs, written_by_others
from tests.support.trace import ir_of, trace

pytestmark = pytest.mark.usefixtures("cpu")

PLACES = ["i", "j", "i + 1", "j + 1", "n", "0", "1", "k", "i - j + 3"]


def same_element(a, b):
    """Whether two indices meet; a whole vector meets each of its components."""
    return all(i == j for i, j in zip(a, b, strict=False))


def rivals(kernel, counted, args=()):
    """For each access: whether another lane touches an element of it by one of those that count."""
    found = {}
    done = trace(kernel, *args).accesses
    others = [a for a in done if a.stmt in counted]
    for a in done:
        meets = any(
            o.stmt.mem is a.stmt.mem and o.lane != a.lane and same_element(o.element, a.element)
            for o in others
        )
        found[a.stmt] = found.get(a.stmt, False) or meets
    return found


@pytest.mark.parametrize("seed", range(40))
def test_what_is_own_no_other_lane_touches(seed):
    random = Random(seed)
    has_components = seed % 2 == 1
    x = (
        ds.Vector.field(2, ds.f32, shape=(12, 12))
        if has_components
        else ds.field(ds.f32, shape=(12, 12))
    )
    lines = []
    for k in range(4):
        at = ", ".join(random.choice(PLACES) for _ in range(2))
        component = random.choice(["", "[0]", "[1]", "[k]"]) if has_components else ""
        one = f"x[{at}]{component}"
        lines.append(f"            {one} {random.choice(['=', '+=', '='])} {k}.0 + {one}\n")
    body = "    for i, j in ds.ndrange(3, 2):\n        for k in range(2):\n" + "".join(lines)
    kernel = ir_of(body, x=x)
    (task,) = kernel.tasks
    accesses = list(accesses_of(task))
    counted = random.sample(accesses, random.randint(1, len(accesses)))
    ownership = Ownership(task, counted)
    for n in (0, 2):
        for s, shared in rivals(kernel, counted, (n,)).items():
            assert not (ownership.is_own(s) and shared)


def test_what_is_found_out():
    """The answers are as sharp as they can be for these, in the order of the statements."""
    x, y = ds.field(ds.f32, shape=(12, 12)), ds.field(ds.f32, shape=12)
    kernel = ir_of(
        "    for i in range(4):\n"
        "        x[i, 0] += 1.0\n"
        "        x[i, 1] += 1.0\n"
        "        x[i, n] += 1.0\n"
        "        y[i] = 1.0\n"
        "        y[i + 1] += 1.0\n",
        x=x,
        y=y,
    )
    (task,) = kernel.tasks
    accesses = list(accesses_of(task))
    ownership = written_by_others(task)
    shared = rivals(kernel, accesses, (2,))
    assert [ownership.is_own(s) for s in accesses] == [not shared[s] for s in accesses]
    assert [shared[s] for s in accesses] == [False] * 3 + [True] * 2


def test_rows_of_constants_are_told_apart():
    """Lanes share x[i + 1, 0] and x[i, 0], and neither of them with x[i, 1]."""
    x = ds.field(ds.f32, shape=(12, 3))
    kernel = ir_of(
        "    for i in range(4):\n        x[i, 0] = 1.0\n        x[i + 1, 0] = 2.0\n        x[i, 1] = 3.0\n",
        x=x,
    )
    (task,) = kernel.tasks
    ownership = written_by_others(task)
    assert [ownership.is_own(s) for s in accesses_of(task)] == [False, False, True]


def test_components_are_told_apart():
    """Neighbours add to different components; a whole vector meets both."""
    x = ds.Vector.field(2, ds.f32, shape=12)
    body = "    for i in range(1, 9):\n        x[i - 1][0] += 1.0\n        x[i + 1][1] += 2.0\n"
    (task,) = ir_of(body, x=x).tasks
    assert all(map(written_by_others(task).is_own, accesses_of(task)))
    (task,) = ir_of(body + "        x[i] = ds.Vector([1.0, 2.0])\n", x=x).tasks
    assert not any(map(written_by_others(task).is_own, accesses_of(task)))


def test_loads_of_what_nobody_writes_are_own():
    x, y = ds.field(ds.f32, shape=8), ds.field(ds.f32, shape=8)
    kernel = ir_of("    for i in y:\n        y[i] = x[0]\n", x=x, y=y)
    (task,) = kernel.tasks
    assert all(map(written_by_others(task).is_own, accesses_of(task)))
    everything = Ownership(task, accesses_of(task))
    assert [everything.is_own(s) for s in accesses_of(task)] == [False, True]


def test_a_serial_task_has_one_lane():
    x = ds.field(ds.f32, shape=8)
    kernel = ir_of("    x[0] = 1.0\n    x[n] += 1.0\n", x=x)
    (task,) = kernel.tasks
    assert all(map(written_by_others(task).is_own, accesses_of(task)))


PARTNERS = ["i ^ n", "n ^ i", "i + n", "i | n", "i ^ 2", "i ^ (n + 1)", "i ^ (m & 6)", "i ^ j"]
GUARDS = [
    "o > i", "i >= o", "o != i", "not o <= i", "i & n == 0", "i & n != 0", "0 == i & 2",
    "i & n == 0 and o < 8", "o > i or i == 3", "i & (n + 1) == 0",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_lanes_in_pairs(seed):
    """What is own in pairs, of which one lane works, no other lane touches, whatever the launch is given."""
    random = Random(seed)
    x = ds.field(ds.f32, shape=(64, 3))
    at = [random.choice(["i", "o"]) for _ in range(3)]
    guards = [random.choice(GUARDS)] * 3 if seed % 2 else [random.choice(GUARDS) for _ in range(3)]
    lines = [
        f"            if {guard}:\n                x[{place}, {random.choice('0j')}] += 1.0\n"
        for place, guard in zip(at, guards, strict=True)
    ]
    partner = random.choice(PARTNERS)
    body = (
        f"    for i, j in ds.ndrange(8, 2):\n        o = {partner}\n        if 0 <= o:\n"
        + "".join(lines)
    )
    kernel = ir_of(body, params="n: ds.i32, m: ds.i32", x=x)
    (task,) = kernel.tasks
    accesses = list(accesses_of(task))
    ownership = Ownership(task, accesses)
    for n in range(8):
        for s, shared in rivals(kernel, accesses, (n, 7 - n)).items():
            assert not (ownership.is_own(s) and shared), (body, n)


@pytest.mark.parametrize(
    ("partner", "guard"),
    [
        ("i ^ n", "o > i"),
        ("n ^ i", "not o >= i"),
        ("i + n", "i & n == 0"),
        ("i ^ (1 << n)", "i < o"),
    ],
)
def test_pairs_are_own_where_one_lane_of_each_works(partner, guard):
    x = ds.field(ds.f32, shape=64)
    body = f"    for i in range(8):\n        o = {partner}\n"
    exchange = "x[i], x[o] = x[o], x[i]\n"
    (task,) = ir_of(body + f"        if {guard}:\n            {exchange}", x=x).tasks
    assert all(map(written_by_others(task).is_own, accesses_of(task)))
    # For who asks whether neighbours' elements are side by side.
    assert not any(map(own_without_pairs(task).is_own, accesses_of(task)))
    (task,) = ir_of(body + f"        {exchange}", x=x).tasks
    assert not any(map(written_by_others(task).is_own, accesses_of(task)))
