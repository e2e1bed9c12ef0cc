"""Chunks with seams: lanes that share elements with near lanes alone, on several threads without atomics."""

import re

import numpy as np
import pytest

import diffsim as ds
from tests.support.lowered import lower
from tests.support.trace import ir_of, trace


@pytest.fixture(params=[1, 2, 8])
def threads(request, monkeypatch):
    monkeypatch.setattr("diffsim.backends.cpu.chunks._CHUNK_WORK", 50)
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=request.param)
    return request.param


def reach(kernel, *args):
    return [t.reach for t in lower(kernel._only(args).ir).tasks]


def has_seams(kernel):
    return "@seamed0" in kernel.llvm() and "atomicrmw fadd" not in kernel.llvm()


@pytest.mark.parametrize("together", [False, True], ids=["lane by lane", "as vectors"])
def test_rows_that_add_to_other_rows(threads, together, monkeypatch):
    """Bounds of the launch: no rows, fewer than a seam needs, and many; sums of all lanes beside them."""
    monkeypatch.setattr("diffsim.passes.vectors.vectorize._ALWAYS", together)
    n, m = 61, 9
    x, y, total = ds.field(ds.f64, (n, m)), ds.field(ds.f64, (n, m)), ds.field(ds.f64, ())

    @ds.kernel
    def spread(first: ds.i32, behind: ds.i32):
        for i, j in ds.ndrange((first, behind), m):
            if (i + j) % 3 != 1:
                x[i - 1, j] += y[i, j]
                x[i + 2, (5 * j) % m] += 2.0 * y[i, j]
                total[None] += y[i, j]

    values = np.random.default_rng(0).integers(-99, 99, (n, m))
    y.from_numpy(values.astype(float))
    expected, sums = np.zeros((n, m)), 0
    for first, behind in ((1, n - 2), (3, 3), (5, 2), (4, 9), (2, 31), (7, 8)):
        spread(first, behind)
        for i in range(first, behind):
            for j in range(m):
                if (i + j) % 3 != 1:
                    expected[i - 1, j] += values[i, j]
                    expected[i + 2, 5 * j % m] += 2 * values[i, j]
                    sums += values[i, j]
    assert (x.to_numpy() == expected).all()  # whole numbers: exact in any order
    assert total[None] == sums
    assert reach(spread, 1, 2) == [3]
    assert ("@seamed0" in spread.llvm()) == (threads > 1)


@pytest.mark.parametrize("together", [False, True], ids=["lane by lane", "as vectors"])
def test_one_axis_with_steps_of_two_and_an_inner_loop(threads, together, monkeypatch):
    monkeypatch.setattr("diffsim.passes.vectors.vectorize._ALWAYS", together)
    n = 700
    fine, coarse = ds.field(ds.f64, 2 * n + 8), ds.field(ds.f64, n)

    @ds.kernel
    def prolong():
        for i in coarse:
            for k in range(5):
                fine[2 * i + k] += (k + 1) * coarse[i]

    values = np.random.default_rng(0).integers(-99, 99, n)
    coarse.from_numpy(values.astype(float))
    prolong()
    expected = np.zeros(2 * n + 8)
    for k in range(5):
        expected[k : k + 2 * n : 2] += (k + 1) * values
    assert (fine.to_numpy() == expected).all()
    assert reach(prolong) == [2]
    assert has_seams(prolong) == (threads > 1)


def test_gradient_of_a_sweep_in_place(threads):
    """Rows and columns without borders in between, against the transposed matrix of the sweep."""
    n = 40
    x, seen = ds.field(ds.f64, (n, n), needs_grad=True), []

    @ds.kernel
    def sweep(color: ds.i32):
        for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
            if (i + j) % 3 == color:  # of two colours, each cell would gather
                x[i, j] = 0.5 * x[i - 1, j] + 0.25 * (x[i + 1, j] - x[i, j - 1]) + 2 * x[i, j + 1]

    seeds = np.random.default_rng(0).integers(-9, 9, (n, n)).astype(float)
    for _ in range(3):
        x.grad.from_numpy(seeds)
        sweep.grad(1)
        seen.append(x.grad.to_numpy())
    expected = seeds.copy()
    inside = [(i, j) for i in range(1, n - 1) for j in range(1, n - 1) if (i + j) % 3 == 1]
    for i, j in inside:
        expected[i, j] = 0
    for i, j in inside:
        for a, b, c in ((-1, 0, 0.5), (1, 0, 0.25), (0, -1, -0.25), (0, 1, 2)):
            expected[i + a, j + b] += c * seeds[i, j]
    for found in seen:
        assert (found == expected).all()
    assert has_seams(sweep.grad) == (threads > 1)


def test_the_same_bits_every_time(threads):
    """The order of the updates of an element follows from the chunks, whichever thread is faster."""
    n = 2000
    x, y = ds.field(ds.f32, (n, 3)), ds.field(ds.f32, (n, 3))

    @ds.kernel
    def spread():
        for i, j in ds.ndrange((2, n - 2), 3):
            for k in range(-2, 3):
                x[i + k, (j * j) % 3] += y[i, j] * k

    y.from_numpy(np.random.default_rng(0).normal(size=(n, 3)).astype("f4"))
    found = set()
    for _ in range(20):
        x.fill(0)
        spread()
        found.add(x.to_numpy().tobytes())
    assert len(found) == 1
    assert has_seams(spread) == (threads > 1)


INDICES = (
    "i",
    "i - 1",
    "i + 2",
    "2 * i",
    "2 * i + k",
    "9 - i",
    "i + j",
    "n + i",
    "k",
    "i + k",
    "0",
)


@pytest.mark.parametrize("seed", range(30))
def test_lanes_beyond_reach_never_meet(seed, cpu):
    """The analysis, against all pairs of lanes."""
    random = np.random.default_rng(seed)
    x, v = ds.field(ds.f32, (40, 40)), ds.Vector.field(2, ds.f32, (40, 40))
    lines = []
    for _ in range(3):
        a, b = (str(random.choice(INDICES)) for _ in range(2))
        at = f"{random.choice(['x', 'v'])}[{a}, {b}]"
        at += str(random.choice(["[0]", "[1]", "[k]"])) if at[0] == "v" else ""
        lines.append(f"            {at} {random.choice(['+=', '+=', '='])} 1.0\n")
    body = "    for i, j in ds.ndrange((1, 10), (1, 4)):\n        for k in range(2):\n" + "".join(
        lines
    )
    kernel = lower(ir_of(body, x=x, v=v))
    accesses = trace(kernel, 3).accesses
    for number, task in enumerate(kernel.tasks):
        if task.reach is None:
            continue
        done = [a for a in accesses if a.task == number]
        shared = [a for a in done if not getattr(a.stmt, "exclusive", True)]
        for a in shared:
            for b in done:
                if a.stmt.mem is b.stmt.mem and a.element == b.element:
                    assert abs(a.lane[0] - b.lane[0]) <= task.reach


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("up(x[i - 1, j])\n        up(x[i + 1, j])", 2),
        ("up(x[i, j - 1])\n        up(x[i, j + 1])", 0),
        ("up(x[i, where[j]])", 0),
        ("up(x[where[i], j])", None),
        ("up(x[i % 7, j])", None),
        ("up(x[n, j])", None),
        ("up(x[i + 20, j])\n        up(x[i, j])", None),  # too far apart
        ("up(x[i, j])", None),  # nothing is shared
    ],
)
def test_what_is_found_out(body, expected, cpu):
    x, where = ds.field(ds.f32, (99, 99)), ds.field(ds.i32, 99)
    body = body.replace("up(", "ds.atomic_max(").replace("])", "], 1.0)")
    head = "    for i, j in ds.ndrange((1, 70), (1, 98)):\n        "
    assert [t.reach for t in lower(ir_of(head + body, x=x, where=where)).tasks] == [expected]


def test_private_copies_are_used_where_rows_are_not_known(threads):
    """Indices that a field tells are in no row."""
    x, where = ds.field(ds.f64, 30), ds.field(ds.i32, 4000)

    @ds.kernel
    def both(n: ds.i32):
        for i in range(n):
            x[where[i]] += 1.0

    both(4000)
    assert x[0] == 4000
    assert not re.search("@seamed", both.llvm())
