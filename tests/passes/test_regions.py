"""Regions of memory, against the elements that kernels touch."""

import itertools
from random import Random

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.nodes import Arg
from diffsim.ir.types import i32
from diffsim.passes.analysis.regions import (
    RegionMap,
    Row,
    disjoint,
    must_write,
    reads,
    writes,
)
from tests.support.trace import ir_of, trace

pytestmark = pytest.mark.usefixtures("cpu")

PLACES = ["t", "t + 1", "t - 1", "i", "i + 1", "2", "3", "2 * i", "n", "n + t"]


def made(seed, count=4):
    """A kernel that loads and stores at random indices of a field of rank 2."""
    random = Random(seed)
    x = ds.field(ds.f32, shape=(24, 24))
    index = [", ".join(random.choice(PLACES) for _ in range(2)) for _ in range(count)]
    lines = [
        f"        x[{at}] = 1.0\n" if k % 2 else f"        x[0, 0] = x[{at}]\n"
        for k, at in enumerate(index)
    ]
    body = "    for i in range(3):\n" + "".join(lines)
    return ir_of(body, params="t: ds.i32, n: ds.i32", x=x), x


def elements(region, shape, args):
    """All elements of a region."""
    numbers = {r.axis: r.shift + (0 if r.argument is None else args[r.argument]) for r in region}
    return set(
        itertools.product(
            *[[numbers[k]] if k in numbers else range(n) for k, n in enumerate(shape)]
        )
    )


@pytest.mark.parametrize("seed", range(20))
def test_accesses_stay_within_their_regions(seed):
    kernel, x = made(seed)
    accesses = [*reads(kernel), *writes(kernel)]
    region = {a.stmt: a.region for a in accesses}
    touched = {a.stmt: [] for a in accesses}
    for t, n in itertools.product((1, 4), (0, 2, 5)):
        args = dict(zip(kernel.args, (t, n), strict=True))
        done = trace(kernel, t, n).accesses
        for a in done:
            assert a.element in elements(region[a.stmt], x.shape, args)
        for s, found in touched.items():
            found.append({a.element for a in done if a.stmt is s})
    for a, b in itertools.combinations(accesses, 2):
        if disjoint(a.region, b.region):
            pairs = zip(touched[a.stmt], touched[b.stmt], strict=True)
            assert all(one.isdisjoint(other) for one, other in pairs)


def test_what_is_disjoint():
    t, n = Arg(i32, "t", 0), Arg(i32, "n", 1)
    row = lambda axis, arg, shift: frozenset([Row(axis, arg, shift)])  # noqa: E731
    assert disjoint(row(0, t, 0), row(0, t, 1))
    assert disjoint(row(0, None, 2), row(0, None, 3))
    assert not disjoint(row(0, t, 0), row(0, n, 1))  # t = n + 1
    assert not disjoint(row(0, t, 0), row(1, t, 1))
    assert not disjoint(frozenset(), row(0, t, 1))


@pytest.mark.parametrize("seed", range(30))
def test_the_map_finds_what_a_search_finds(seed):
    random = Random(seed)
    args = [None, Arg(i32, "t", 0), Arg(i32, "n", 1)]

    def region():
        rows = [Row(random.randrange(3), random.choice(args), random.randrange(3)) for _ in "ab"]
        return frozenset(rows[: random.randrange(3)])

    things = [(region(), k) for k in range(20)]
    by_region = RegionMap(things)
    for asked in (region() for _ in range(20)):
        assert by_region.overlapping(asked) == {k for r, k in things if not disjoint(r, asked)}


@pytest.mark.parametrize(
    ("loop", "store", "certain"),
    [
        ("i, j in x", "x[i, j]", True),
        ("i, j in x", "x[j, i]", True),  # the field is square
        ("i, j in x", "x[i, i]", False),
        ("i in range(6)", "x[t, i]", True),
        ("i in range(7)", "x[t + 1, i % 6]", False),
        ("i in range(5)", "x[t, i]", False),
        ("i in range(1, 6)", "x[t, i]", False),
        ("i in range(n)", "x[t, i]", False),
        ("i, j in x", "x[i, 0]", True),
        ("i in range(6)", "x[i, i]", False),
    ],
)
def test_must_write(loop, store, certain):
    x = ds.field(ds.f32, shape=(6, 6))
    kernel = ir_of(f"    for {loop}:\n        {store} = 1.0\n", params="t: ds.i32, n: ds.i32", x=x)
    found = must_write(kernel)
    assert len(found) == certain
    for a in found:
        done = {access.element for access in trace(kernel, 2, 3).accesses if access.writes}
        assert done >= elements(a.region, x.shape, dict(zip(kernel.args, (2, 3), strict=True)))


def test_a_store_in_a_branch_is_not_certain():
    x = ds.field(ds.f32, shape=6)
    assert not must_write(
        ir_of("    for i in x:\n        if i < n:\n            x[i] = 1.0\n", x=x)
    )


def test_time_axis_and_order():
    x, y = ds.field(ds.f32, shape=(4, 8)), ds.field(ds.f32, shape=8)
    kernel = ir_of("    for i in y:\n        x[n + 1, i] = x[n, i] + y[i]\n", x=x, y=y)
    assert [(a.mem.name, a.time_slice and a.time_slice.axis) for a in reads(kernel)] == [
        ("x", 0),
        ("y", None),
    ]
    assert [a.time_slice.axis for a in writes(kernel)] == [0]
    assert disjoint(reads(kernel)[0].region, writes(kernel)[0].region)
    assert np.array_equal(x.to_numpy(), np.zeros((4, 8)))  # asking is not launching
