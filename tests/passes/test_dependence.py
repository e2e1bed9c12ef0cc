"""What is said of turns that meet, against all pairs of turns."""

import itertools
import math
from random import Random

import pytest

import diffsim as ds
from diffsim.ir.nodes import Store
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.dependence import distances
from tests.support.source import make

pytestmark = pytest.mark.usefixtures("cpu")


def stores(source, **space):
    """The body of a kernel's only task: the task, and its stores."""
    space = {"ds": ds, **space}
    make(f"@ds.kernel\ndef f(n: ds.i32):\n{source}", space)
    (task,) = space["f"]._only(()).ir.tasks
    return task, [s for s in task_statements(task) if isinstance(s, Store)]


def index_of(random, names):
    """A sum of loop variables as text."""
    terms = [
        random.choice([f"{v}", f"{v}", f"{random.choice([2, 3, 4, 6, -1])} * {v}", f"({v} << 1)"])
        for v in random.sample(names, random.randint(1, len(names)))
    ]
    return " + ".join([*terms, str(random.randint(-3, 3))])


@pytest.mark.parametrize("seed", range(40))
def test_all_pairs(seed):
    random = Random(seed)
    y = ds.field(ds.f64, shape=(64, 64))
    a, b, c = (random.randint(1, 4) for _ in range(3))
    low = random.randint(0, 2)
    pairs = [[index_of(random, ["i", "j", "k"]) for _ in range(2)] for _ in range(2)]
    task, found = stores(
        f"    for i, j in ds.ndrange({a}, ({low}, {low + b})):\n"
        f"        for k in range({c}):\n"
        f"            y[{', '.join(pairs[0])}] = 1.0\n"
        f"            y[{', '.join(pairs[1])}] = 2.0\n",
        y=y,
    )
    turns = list(itertools.product(range(a), range(low, low + b), range(c)))
    at = [
        [tuple(eval(e, {"i": i, "j": j, "k": k}) for e in pair) for i, j, k in turns]
        for pair in pairs
    ]
    variables = [*task.axes, task.body.stmts[0].index]
    for one, two in ((0, 0), (0, 1), (1, 1)):
        said = distances(task, found[one], found[two])
        meetings = [
            [x - z for x, z in zip(s, t, strict=True)]
            for s, p in zip(turns, at[one], strict=True)
            for t, q in zip(turns, at[two], strict=True)
            if p == q
        ]
        assert not (said.never and meetings)
        for n, v in enumerate(variables):
            least, most = said.of(v)
            assert all(least <= m[n] <= most for m in meetings)
        if said.same(task.axes):
            assert all(m[:2] == [0, 0] for m in meetings)


def test_what_is_found_out():
    y = ds.field(ds.f64, shape=(64, 64))
    at = ds.field(ds.i32, shape=64)
    task, found = stores(
        "    for i, j in ds.ndrange(8, 4):\n"
        "        y[i, j] = 0.0\n"
        "        y[i * 4 + j, n] = 0.0\n"
        "        y[i * 4 + j + 1, n] = 0.0\n"
        "        y[i * 3 + j, 0] = 0.0\n"
        "        y[i + n, j - n] = 0.0\n"
        "        y[at[i], j] = 0.0\n"
        "        y[2 * i, 0] = 0.0\n"
        "        y[2 * i + 1, 0] = 0.0\n"
        "        v = ds.Vector([i, j]) * 2 + 1\n"
        "        y[v.y, v.x] = 0.0\n"
        "        y[j, 7 - i] = 0.0\n",
        y=y,
        at=at,
    )
    alone = [distances(task, s, s).same(task.axes) for s in found]
    assert alone == [True, True, True, False, True, False, False, False, True, True]
    i, j = task.axes
    assert distances(task, found[5], found[5]).of(j) == (0, 0)
    assert distances(task, found[5], found[5]).of(i) == (-7, 7)
    assert distances(task, found[6], found[7]).never
    assert not distances(task, found[1], found[2]).same(task.axes)
    assert distances(task, found[0], found[4]).of(i) == (-7, 7)  # n is not known


def test_bounds_that_are_not_known():
    y = ds.field(ds.f64, shape=(64, 64))
    task, found = stores(
        "    for i in range(n):\n"
        "        for k in range(i):\n"
        "            y[i, k] = 0.0\n"
        "            y[i + k, 0] = 0.0\n"
        "            y[i + 1, k] = 0.0\n",
        y=y,
    )
    assert [distances(task, s, s).same(task.axes) for s in found] == [True, False, True]
    assert distances(task, found[0], found[2]).of(task.axes[0]) == (1, 1)
    assert distances(task, found[1], found[1]).of(task.axes[0]) == (-math.inf, math.inf)


def test_shifts_that_lose_bits():
    """A shift is 0 where all bits are lost; the turns that it leaves alike can meet."""
    y = ds.field(ds.f64, shape=(64, 64))
    task, found = stores(
        "    for i in range(16):\n"
        "        y[i << 2, 0] = 0.0\n"
        "        y[(4 * i) << 30, 0] = 0.0\n"
        "        y[(i - 8) << 28, 0] = 0.0\n"
        "        y[(i - 8) << 29, 0] = 0.0\n"
        "        y[ds.i64(i) << 29, 0] = 0.0\n"
        "        y[i << 32, 0] = 0.0\n"
        "        y[i << -1, 0] = 0.0\n"
        "        y[n << 1, i] = 0.0\n",
        y=y,
    )
    alone = [distances(task, s, s).same(task.axes) for s in found]
    assert alone == [True, False, True, False, True, False, False, True]


def test_sums_that_whole_numbers_never_make_equal():
    y = ds.field(ds.f64, shape=(64, 64))
    task, found = stores(
        "    for i in range(n):\n"
        "        y[n, i] = 0.0\n"
        "        y[1 - n, i] = 0.0\n"
        "        y[2 - n, i] = 0.0\n"
        "        y[2 * i, 0] = 0.0\n"
        "        y[4 * i + 3, 0] = 0.0\n"
        "        y[3 * i + 2, 0] = 0.0\n"
        "        y[5 - i, 0] = 0.0\n"
        "        y[i, 0] = 0.0\n",
        y=y,
    )

    def never(a, b, same=()):
        return distances(task, found[a], found[b], same).never

    assert never(0, 1)  # n = 1 - n
    assert not never(0, 2)  # n = 2 - n for n = 1
    assert never(3, 4)  # 2 i = 4 j + 3
    assert not never(3, 5)  # 2 i = 3 j + 2
    assert not never(6, 7)  # 5 - i = j
    assert never(6, 7, task.axes)  # 5 - i = i
