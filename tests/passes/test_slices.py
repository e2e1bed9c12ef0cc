"""Slices of accesses, against the elements that kernels touch."""

import itertools
from random import Random

import pytest

import diffsim as ds
from diffsim.passes.analysis.regions import reads, writes
from diffsim.passes.analysis.slices import form_text
from tests.support.trace import ir_of, trace

pytestmark = pytest.mark.usefixtures("cpu")

PLACES = [
    "(t + 1) * n + i", "t * n + i", "t * 4 + i", "(1 - p) * 4 + i", "p * n + 2 * i", "4 * t + 3 - i",
    "(t % 2) * 4 + i", "((t + 1) % 2) * 4", "(t * 2 + i) * 2 + j", "(t * n + i) * 2 + j", "(t - 3) // 2 + 4",
    "2 * t", "1 - p", "n - i", "i * n", "j", "t", "3", "(i - 1) // 2 + 1", "i // 3 + t", "-i // 2 + 9",
    "(2 * i + j + t) // 4", "(i + 5) >> 1", "i % 3 + n", "((i + 7) // 2 - 1) // 2", "i - i // 2",
    "(t * i + j) // 2", "2 * t * i + t", "20 - (n * i) // 3", "(i * 1000000007) // 4 % 8",
]  # fmt: skip


def bounds(s, args):
    """The first and the last index of a slice."""
    named = {a.hint: n for a, n in args.items()}
    return [eval(form_text(form, lambda v: str(named[v.hint]))) for form in (s.first, s.last)]


@pytest.mark.parametrize("seed", range(20))
def test_accesses_stay_within_their_slices(seed):
    random = Random(seed)
    u = ds.field(ds.f32, shape=64)
    loop = random.choice(["n", "3", "1, n", "p, n"])
    lines = [
        f"            u[{random.choice(PLACES)}] = u[{random.choice(PLACES)}]\n" for _ in "abc"
    ]
    body = f"    for i in range({loop}):\n        for j in range(2):\n" + "".join(lines)
    kernel = ir_of(body, params="t: ds.i32, n: ds.i32, p: ds.i32", u=u)
    found = {a.stmt: a.slices for a in (*reads(kernel), *writes(kernel))}
    assert any(found.values())
    for t, n, p in itertools.product((0, 3), (0, 2, 4), (0, 1)):
        args = dict(zip(kernel.args, (t, n, p), strict=True))
        for a in trace(kernel, t, n, p).accesses:
            for s in found[a.stmt]:
                first, last = bounds(s, args)
                assert first <= a.element[s.axis] <= last


@pytest.mark.parametrize("seed", range(20))
def test_sums_of_indices_stay_on_their_diagonals(seed):
    random = Random(seed)
    u, w = (ds.field(ds.f32, shape=shape) for shape in ((16, 16), (8, 8, 8)))
    pairs = ["i, t - i + 6", "i + 1, t - i + 6", "t + i, n + i", "i, j", "i // 2 + j, 9 - i // 2"]
    threes = ["i, j, 7 - i - j", "i, 5 - i, t", "j, i, j + 1", "i, i + j, 6 - j"]
    lines = [f"            u[{random.choice(pairs)}] = w[{random.choice(threes)}]\n" for _ in "ab"]
    kernel = ir_of(
        "    for i in range(p, n):\n        for j in range(2):\n" + "".join(lines),
        params="t: ds.i32, n: ds.i32, p: ds.i32",
        u=u,
        w=w,
    )
    found = {a.stmt: a.diagonals for a in (*reads(kernel), *writes(kernel))}
    assert any(found.values())
    for t, n, p in itertools.product((0, 3), (0, 2, 4), (0, 1)):
        args = dict(zip(kernel.args, (t, n, p), strict=True))
        for a in trace(kernel, t, n, p).accesses:
            for d in found[a.stmt]:
                first, last = bounds(d, args)
                total = sum(sign * k for sign, k in zip(d.signs, a.element, strict=True))
                assert first <= total <= last


@pytest.mark.parametrize(
    ("index", "ends"),
    [
        ("(i - 1) // 2", {(0, 1): (-1, -1), (3, 7): (1, 2), (-4, -1): (-3, -2)}),
        ("i >> 2", {(5, 9): (1, 2), (-3, 2): (-1, 0)}),
        ("t * i", {(0, 4): (0, 9), (-2, 3): (-6, 6)}),  # t is 3
        ("-t * i + 1", {(0, 4): (-8, 1)}),
        ("i % 6", {(0, 2): (0, 5)}),
        # The dividend may wrap around: any quotient.
        ("(i * 1000000) // 65536", {(0, 5): (0, 61), (0, 2149): (-32768, 32767)}),
        (
            "(i - 2147483647) // 2",
            {(0, 5): (-1073741824, -1073741822), (-9, 1): (-1073741824, 1073741823)},
        ),
    ],
)
def test_ends_of_what_lanes_divide(index, ends):
    s = slice_of(index, "n, p", shape=1 << 20)
    for (n, p), expected in ends.items():
        assert tuple(bounds(s, {v: {"n": n, "p": p, "t": 3}[v.hint] for v in s.leaves})) == expected


def slice_of(index, loop="n", shape=64):
    u = ds.field(ds.f32, shape=shape)
    body = f"    for i in range({loop}):\n        u[{index}] = 1.0\n"
    return writes(ir_of(body, params="t: ds.i32, n: ds.i32, p: ds.i32", u=u))[0].slices[0]


@pytest.mark.parametrize(
    ("index", "loop", "stride"),
    [
        ("t * n + i", "n", "n"),
        ("(t + 1) * n + i", "1, n - 1", "n"),
        ("(1 - p) * n + i", "n", "n"),
        ("t * 7 + i", "7", "7"),
        ("t * 7 + i", "3", "7"),
        ("(t % 2) * 7 + i", "7", "7"),
        ("2 * t", "7", "1"),
        ("t * 7 + i", "8", None),  # steps overlap
        ("t + i", "n", None),
        ("t * n + i", "p", None),  # nothing tells whether p is less than n
        ("i", "5", None),
    ],
)
def test_how_long_rows_should_be(index, loop, stride):
    found = slice_of(index, loop).stride
    assert (None if found is None else form_text(found, lambda v: v.hint)) == stride


@pytest.mark.parametrize("index", ["t * 4 + i", "t * 8 + 3 - i", "(2 - t) * 4 + i", "i"])
def test_the_row_of_a_slice(index):
    s = slice_of(index, "4")
    row = s.row(4)
    for t in range(3):
        first, last = bounds(s, {v: t for v in s.leaves})
        found = eval(form_text(row, lambda v: str(t))) if row is not None else None  # noqa: B023
        assert first // 4 == last // 4 == found
    assert slice_of("t * 4 + i", "5").row(4) is None
    assert slice_of("t * 6 + i", "4").row(4) is None
