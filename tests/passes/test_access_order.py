"""The order of accesses, against the order in which they happen."""

import itertools
from random import Random

import pytest

import diffsim as ds
from diffsim.ir.nodes import Load
from diffsim.passes.analysis.access_order import LaneAccesses, sections_of
from diffsim.passes.analysis.affine import definitions
from diffsim.passes.analysis.dependence import accesses_of, independent
from tests.support.trace import ir_of, trace

pytestmark = pytest.mark.usefixtures("cpu")

PLACES = ["i", "i + 1", "i - 1", "n", "n + 1", "2", "at[i]", "2 * i"]


def straight(seed):
    """Loads and stores without branches and loops, at random places."""
    random = Random(seed)
    x, at = ds.field(ds.f32, shape=16), ds.field(ds.i32, shape=16)
    at.fill(random.randint(0, 5))
    lines = [
        f"        {random.choice(['x[{}] = 1.0', 'x[{}] += 2.0', 'x[0] = x[{}]'])}\n".format(
            random.choice(PLACES)
        )
        for _ in range(8)
    ]
    return ir_of("    for i in range(1, 4):\n" + "".join(lines), x=x, at=at), (x, at)


@pytest.mark.parametrize("seed", range(25))
def test_the_next_access_is_not_missed(seed):
    kernel, _fields = straight(seed)
    (task,) = kernel.tasks
    stmts = list(task.body.stmts)
    lane = LaneAccesses(stmts, definitions(kernel))
    number = {s: k for k, s in enumerate(stmts)}
    for n in (1, 3):
        done = trace(kernel, n).accesses
        for one, other in itertools.permutations(done, 2):
            if one.stmt.mem is not other.stmt.mem or one.lane != other.lane:
                continue
            if lane.same_element(one.stmt, other.stmt):
                assert one.element == other.element
            k, j = number[one.stmt], number[other.stmt]
            if one.element == other.element and k < j:
                assert lane.next_access(one.stmt, k + 1) <= j
                if other.writes:
                    assert lane.next_access(one.stmt, k + 1, writing=True) <= j
            if lane.loaded_before(one.stmt, k):
                earlier = (a for a in done if a.lane == one.lane and number[a.stmt] < k)
                assert any(isinstance(a.stmt, Load) and a.element == one.element for a in earlier)


def test_the_next_access_is_the_next_one():
    x = ds.field(ds.f32, shape=16)
    kernel = ir_of(
        "    for i in range(4):\n"
        "        x[i] = 1.0\n"
        "        x[i + 1] = 2.0\n"
        "        if i > n:\n"
        "            x[i] = 3.0\n"
        "        x[i] = 4.0\n",
        x=x,
    )
    (task,) = kernel.tasks
    stmts = list(task.body.stmts)
    lane = LaneAccesses(stmts, definitions(kernel))
    first, second, last = (s for s in stmts if s in set(accesses_of(task)))
    at = stmts.index(first)
    branch = lane.next_access(first, at + 1)
    assert at < stmts.index(second) < branch < stmts.index(last)
    assert lane.next_access(first, branch + 1) == stmts.index(last)
    assert lane.next_access(second, stmts.index(second) + 1) is None


NESTS = {
    "recurrence": "        for t in range(1, 5):\n            x[i, t] = x[i, t - 1] * 2.0\n",
    "backwards": "        for t in range(4):\n            x[i, t] = x[i, t + 1] * 2.0\n",
    "same": "        for t in range(4):\n            x[i, t] = x[i, t] * 2.0\n",
    "constant": "        for t in range(4):\n            x[i, 0] = x[i, t + 1] * 2.0\n",
    "after": "        x[i, 3] = 1.0\n        for t in range(4):\n            y[i] = x[i, t]\n",
    "between": "        y[i] = x[i, n]\n        for t in range(4):\n            x[i, t] = 1.0\n",
    "nested": (
        "        for t in range(3):\n            for s in range(2):\n"
        "                x[i, t] = x[i, t + s] + 1.0\n"
    ),
    "neighbours": "        x[i, 0] = x[i + 1, 1]\n        x[i + 1, 2] = x[i, 2]\n",
    "shared": "        x[0, i] = x[i, 0]\n",
}


@pytest.mark.parametrize("name", NESTS)
def test_before_and_same_lane(name):
    x, y = ds.field(ds.f32, shape=(8, 8)), ds.field(ds.f32, shape=8)
    kernel = ir_of("    for i in range(3):\n" + NESTS[name], x=x, y=y)
    done = trace(kernel, 2).accesses
    (section,) = (s for s in sections_of(kernel) if s.axes)
    sites = [s for of in (section.loads, section.writes) for found in of.values() for s in found]
    for one, other in itertools.product(sites, repeat=2):
        if one is other or one.stmt.mem is not other.stmt.mem:
            continue
        pairs = [
            (a, b)
            for a in range(len(done))
            for b in range(len(done))
            if done[a].stmt is one.stmt
            and done[b].stmt is other.stmt
            and done[a].element == done[b].element
        ]
        if section.same_lane(one, other):
            assert all(done[a].lane == done[b].lane for a, b in pairs)
        if section.before(one, other):
            assert all(a < b for a, b in pairs if done[a].lane == done[b].lane)
        if pairs and one.kind != "load":
            assert one in [s for g in section.overlapping(other) for s in g.sites]


@pytest.mark.parametrize(
    ("name", "write_first"),
    [("recurrence", True), ("backwards", False), ("same", False), ("after", True)],
)
def test_what_is_known_of_the_order(name, write_first):
    """Whether each element is written before it is read, where it is both."""
    x, y = ds.field(ds.f32, shape=(8, 8)), ds.field(ds.f32, shape=8)
    kernel = ir_of("    for i in range(3):\n" + NESTS[name], x=x, y=y)
    (section,) = (s for s in sections_of(kernel) if s.axes)
    (mem,) = section.loads.keys() & section.writes.keys()
    (load,), (write,) = section.loads[mem], section.writes[mem]
    assert section.same_lane(load, write)
    assert section.before(write, load) == write_first
    assert section.before(load, write) == (not write_first)


# ---- tasks that have nothing to do with each other


def two_tasks(random):
    def loop():
        low = random.randint(1, 4)
        at = ", ".join(random.choice(["i", "i + 1", "i - 1", "n", "n + 1", "3"]) for _ in "ab")
        of = ", ".join(random.choice(["i", "i + 1", "i - 1", "n", "n + 1", "3"]) for _ in "ab")
        write = random.choice(["=", "+="])
        return f"    for i in range({low}, {low + random.randint(1, 3)}):\n        x[{at}] {write} y[{of}]\n"

    return loop() + loop().replace("y[", random.choice(["x[", "y["]))


@pytest.mark.parametrize("seed", range(40))
def test_independent_tasks_share_no_element(seed):
    x, y = ds.field(ds.f32, shape=(12, 12)), ds.field(ds.f32, shape=(12, 12))
    kernel = ir_of(two_tasks(Random(seed)), x=x, y=y)
    one, other = kernel.tasks
    shared = [
        (a, b)
        for n in range(1, 6)
        for done in [trace(kernel, n).accesses]
        for a in done
        for b in done
        if a.task < b.task and a.stmt.mem is b.stmt.mem and a.element == b.element
        if a.writes or b.writes
    ]
    assert independent(one, other) == independent(other, one)
    assert not (independent(one, other) and shared)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ("    for i in range(4, 8):\n        x[i, 0] = 1.0\n", True),
        ("    for i in range(3, 8):\n        x[i, 0] = 1.0\n", False),
        ("    for i in range(8):\n        x[i, 1] = 1.0\n", True),
        ("    for i in range(8):\n        y[i, 0] = x[i, 2]\n", True),
        ("    for i in range(8):\n        y[i, 0] = x[i, 0]\n", False),
        ("    for i in range(8):\n        x[i, n] = 1.0\n", False),
        ("    for i in range(n):\n        x[i, 0] = 1.0\n", False),
    ],
)
def test_what_is_independent(second, expected):
    x, y = ds.field(ds.f32, shape=(12, 12)), ds.field(ds.f32, shape=(12, 12))
    first = "    for i in range(4):\n        x[i, 0] = 2.0\n"
    assert independent(*ir_of(first + second, x=x, y=y).tasks) == expected
