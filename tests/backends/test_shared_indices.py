"""Candidates of lists, loaded under conditions in conditions by lanes that run as vectors: the same as NumPy.

Their index is on the stack once; idle lanes have 0 in its place, or what they had.
"""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit
from diffsim.runtime.session import session

LANES, LENGTH, POINTS = 41, 6, 50
FAR = 2**30  # no element of any memory


@pytest.fixture(params=[512, 256])
def bits(request, monkeypatch):
    if request.param == 256:
        monkeypatch.setattr(session, "_jit", Jit(vector_bits=256))
    ds.init(arch=ds.cpu, offline_cache=False)
    if session.jit.vector_bits != request.param:
        pytest.skip("this processor has shorter vectors")
    return request.param


def lists():
    """Lists of 0 to LENGTH candidates for each lane, some of which are no points."""
    random = np.random.default_rng(3)
    first = np.concatenate([[0], np.cumsum(random.integers(0, LENGTH + 1, LANES))])
    items = random.integers(0, POINTS, first[-1])
    items[random.random(len(items)) < 0.4] = FAR
    starts, ids = ds.field(ds.i32, shape=LANES + 1), ds.field(ds.i32, shape=max(first[-1], 1))
    starts.from_numpy(first.astype("i4"))
    ids.from_numpy(items.astype("i4"))
    return starts, ids, first, items


def points(n):
    """Points whose coordinates are whole, and a number of each."""
    random = np.random.default_rng(n)
    x = ds.Vector.field(2, ds.f32, shape=(2, POINTS), needs_grad=True)
    w = ds.field(ds.f32, shape=n, needs_grad=True)
    x.from_numpy(random.integers(-4, 5, (2, POINTS, 2)).astype("f4"))
    w.from_numpy(random.integers(-4, 5, n).astype("f4"))
    return x, w


def sums(n):
    """A kernel that sums what some of its candidates have, its fields, and the lists."""
    starts, ids, first, items = lists()
    x, w = points(n)
    y = ds.field(ds.f32, shape=LANES, needs_grad=True)

    @ds.kernel
    def run(t: ds.i32):
        for i in range(LANES):
            s = 0.0
            for e in range(starts[i], starts[i + 1]):
                j = ids[e]
                if j < POINTS:
                    d = x[t, j] - x[t, i]
                    r = (d.norm_sqr() + 1.0) / 4.0
                    if r < 9.0 and j < n:
                        s += r * w[j] + ds.sqrt(r) * 0.0 + x[1 - t, j].x
            y[i] = s

    return run, (x, w, y), (first, items)


def expected(n, x, w, first, items, seeds):
    """The sums, and the gradients of the points and of their numbers."""
    y, gx, gw = np.zeros(LANES), np.zeros_like(x), np.zeros_like(w)
    for i in range(LANES):
        for j in items[first[i] : first[i + 1]]:
            if j >= POINTS:
                continue
            d = x[1, j] - x[1, i]
            r = (d @ d + 1) / 4
            if r < 9 and j < n:
                y[i] += r * w[j] + x[0, j, 0]
                gw[j] += seeds[i] * r
                gx[0, j, 0] += seeds[i]
                gx[1, j] += seeds[i] * w[j] * d / 2
                gx[1, i] -= seeds[i] * w[j] * d / 2
    return y, gx, gw


@pytest.mark.parametrize("n", [POINTS, POINTS + 7, 9])
def test_candidates_that_are_no_points(bits, n):
    """Memories as long as the first one, longer ones and shorter ones; whole numbers are exact."""
    run, (x, w, y), (first, items) = sums(n)
    run(1)
    seeds = np.arange(LANES) % 5 - 2.0
    given = [f.to_numpy().astype("f8") for f in (x, w)]
    value, gx, gw = expected(n, *given, first, items, seeds)
    np.testing.assert_array_equal(y.to_numpy(), value)
    y.grad.from_numpy(seeds.astype("f4"))
    run.grad(1)
    np.testing.assert_array_equal(x.grad.to_numpy(), gx)
    np.testing.assert_array_equal(w.grad.to_numpy(), gw)


def stored(kernel):
    """How often an index is stored for all lanes."""
    return len(re.findall(r"store <\d+ x i32> ", kernel.llvm()))


def test_an_index_is_stored_once_for_memories_that_are_long_enough(bits):
    """`x[t, j]` and `w[j]`; where `w` is shorter, lanes that do not take its branch get another element."""
    long, short = (sums(n)[0] for n in (POINTS, POINTS - 1))
    assert stored(long) + 1 == stored(short)
    assert "load volatile i32" in long.llvm()
