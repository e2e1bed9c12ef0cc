"""What quotients, remainders and conditions tell of accesses that meet, against all accesses of a run."""

import itertools
from random import Random

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.analysis.access_order import sections_of
from diffsim.passes.analysis.index_forms import index_forms
from diffsim.passes.analysis.integer_system import IntegerSystem
from tests.support.trace import ir_of, trace

pytestmark = pytest.mark.usefixtures("cpu")

BOX = "for i, j in ds.ndrange(4, 4):\n"
MASKS = ("n", "m", "m", "2", "6", "-4", "(n ^ 1)", "(1 << (m & 3))")
ARGS = ((0, 2), (1, 3), (5, -1))


class Maker:
    """Writes a kernel whose accesses stand in branches, at indices with quotients and remainders."""

    def __init__(self, seed):
        self.r = Random(seed)
        self.lines, self.loops = [], []

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def number(self, depth=2):
        """A whole number, made of loop variables and arguments."""
        r = self.r
        if depth == 0 or r.random() < 0.3:
            return r.choice([*self.loops * 3, "n", "m", str(r.randint(0, 4))])
        a, b = self.number(depth - 1), self.number(depth - 1)
        k = r.choice([2, 2, 3, 4, 8])
        return r.choice(
            [
                f"({a} + {b})",
                f"({a} - {b})",
                f"({k} * {a})",
                f"({a} // {k})",
                f"({a} % {k})",
                f"({a} - {k} * ({a} // {k}))",
                f"({a} & {r.choice([1, 3])})",
                f"({a} {r.choice('&|^')} {r.choice(MASKS)})",
                f"({a} >> 1)",
                f"({a} << 1)",
                f"max({a}, {b})",
                f"min({a}, {b})",
                f"ds.i8({a} % 16)",
                f"(at[{r.choice(self.loops)}] + ds.Vector([{a}, {b}]))[{r.choice('01')}]",
                f"(ds.Matrix([[1, {k}], [{a}, 2]]) @ ds.Vector([{b}, n]))[{r.choice('01')}]",
            ]
        )

    def condition(self):
        r = self.r
        one = f"{self.number()} {r.choice(['==', '!=', '<', '<=', '>', '>='])} {self.number(1)}"
        if r.random() < 0.3:
            one = f"{self.number()} % 2 == {r.choice(['0', '1', 'n', 'n % 2'])}"
        roll = r.random()
        if roll < 0.2:
            return f"({one}) and ({self.condition()})"
        if roll < 0.3:
            return f"({one}) or ({self.condition()})"
        return f"not ({one})" if roll < 0.4 else one

    def stmt(self, depth):
        r = self.r
        roll = r.random()
        if depth < 5 and roll < 0.35:
            self.put(depth, f"if {self.condition()}:")
            self.body(depth + 1)
            if r.random() < 0.4:
                self.put(depth, "else:")
                self.body(depth + 1)
        elif depth < 4 and roll < 0.5:
            bounds = r.choice(["2", "0, 3", f"{self.loops[-1]}", f"{self.loops[-1]}, 4", "n"])
            k = f"k{len(self.lines)}"
            self.put(depth, f"for {k} in range({bounds}):")
            self.loops.append(k)
            self.body(depth + 1)
            self.loops.pop()
        else:
            # Within the field, by its last two bits of a shifted number.
            to, at = (f"({self.number()} + 60) % 120" for _ in range(2))
            if r.random() < 0.5:
                to, at = (
                    self.r.choice(self.loops) + " + 9",
                    f"{self.r.choice(self.loops)} + {r.randint(8, 10)}",
                )
            self.put(depth, f"y[{to}] = y[{at}]")

    def body(self, depth):
        for _ in range(self.r.randint(1, 2)):
            self.stmt(depth)

    def text(self):
        r = self.r
        lanes = r.choice(["i in range(8)", "i in range(1, 14)", "i, j in ds.ndrange(4, (1, 5))"])
        self.put(1, f"for {lanes}:")
        self.loops = ["i", "j"] if "j" in lanes else ["i"]
        self.body(2)
        return "\n".join(self.lines) + "\n"


def kernel_of(body):
    y = ds.field(ds.i32, shape=128)
    y.from_numpy(np.arange(128, dtype=np.int32))
    at = ds.Vector.field(2, ds.i32, shape=16)
    at.from_numpy(np.arange(32, dtype=np.int32).reshape(16, 2) % 5)
    return ir_of(body, params="n: ds.i32, m: ds.i32", y=y, at=at), (y, at)


def said_and_done(body, counts):
    """Compare what the analysis says of a kernel's accesses with what they do."""
    kernel, _field = kernel_of(body)
    (section,) = [s for s in sections_of(kernel) if s.axes]
    sites = [p for of_mem in (section.loads, section.writes) for v in of_mem.values() for p in v]
    runs = []
    for args in ARGS:
        done = {p.stmt: [] for p in sites}
        for time, a in enumerate(trace(kernel, *args).accesses):
            done[a.stmt].append((a.lane, a.element, time))
        runs.append(done)
    for one, other in itertools.combinations_with_replacement(sites, 2):
        meetings = [
            (a, b)
            for done in runs
            for a in done[one.stmt]
            for b in done[other.stmt]
            if a[1] == b[1]
        ]
        found = section.distances(one, other)
        if found.never:
            assert not meetings, (body, one.stmt.span.line)
        if section.same_lane(one, other):
            counts["alone"] += 1
            assert all(a[0] == b[0] for a, b in meetings), body
        for k, axis in enumerate(section.axes):
            least, most = found.of(axis)
            assert all(least <= a[0][k] - b[0][k] <= most for a, b in meetings), body
        if one is not other and section.before(one, other):
            counts["before"] += 1
            assert all(a[2] < b[2] for a, b in meetings if a[0] == b[0]), body
        counts["all"] += 1


def test_what_is_said_of_random_kernels():
    counts = dict.fromkeys(("all", "alone", "before"), 0)
    for seed in range(14):
        said_and_done(Maker(seed).text(), counts)
    assert counts["alone"] > counts["all"] / 10
    assert counts["before"] > 0


def test_forms_are_the_numbers_of_a_run():
    """Also where the arithmetic wraps around: then there is none."""
    for seed in range(20):
        kernel, _field = kernel_of(Maker(seed).text())
        (task,) = [t for t in kernel.tasks if t.axes]
        forms = index_forms(task)
        for args in ARGS:
            given = dict(zip(kernel.args, args, strict=True))
            for c in trace(kernel, *args).values:
                form = (
                    forms.exact(c.value) if c.value.type.is_int and not c.value.type.shape else None
                )
                if form is None or any(v in forms.limits for v in form):
                    continue  # quotients have no name in a run
                numbers = {None: 1, **given, **c.env}
                assert int(c.number) == sum(k * int(numbers[v]) for v, k in form.items())


def made(body):
    kernel, _field = kernel_of("".join(f"    {line}\n" for line in body.splitlines()))
    (section,) = [s for s in sections_of(kernel) if s.axes]
    sites = [p for of_mem in (section.loads, section.writes) for v in of_mem.values() for p in v]
    return all(section.same_lane(a, b) for a in sites for b in sites if "store" in (a.kind, b.kind))


@pytest.mark.parametrize(
    ("body", "apart"),
    [
        # Flattened loops.
        ("for q in range(64):\n    i = q // 8\n    j = q - 8 * i\n    y[8 * j + i] = 1", True),
        ("for q in range(64):\n    y[8 * (q % 8) + q // 8] = 1", True),
        ("for q in range(64):\n    y[8 * (q % 8) + q // 16] = 1", False),
        ("for q in range(64):\n    y[7 * (q % 8) + q // 8] = 1", False),
        ("for q in range(64):\n    y[16 * (q // 4 // 4) + q % 16] = 1", True),
        ("for q in range(64):\n    y[(q & 7) + 8 * (q >> 3)] = 1", True),
        ("for q in range(64):\n    y[q % 32] = 1", False),
        ("for q in range(32):\n    y[q % 32] = 1", True),
        ("for i, j in ds.ndrange(8, 8):\n    y[i * 8 + max(j - 1, 0)] = 1", False),
        ("for i in range(8):\n    y[64 + i] = y[n * 0 + max(i - 1, 0)]", True),
        # Colours.
        ("for i in range(1, 9):\n    if i % 2 == n:\n        y[i] = y[i - 1] + y[i + 1]", True),
        ("for i in range(1, 9):\n    if i % 2 == n:\n        y[i] = y[i - 2]", False),
        ("for i in range(1, 9):\n    if i % 3 == n:\n        y[i] = y[i - 1] + y[i + 2]", True),
        ("for i in range(1, 9):\n    if i % 3 == n:\n        y[i] = y[i - 1] + y[i + 3]", False),
        (
            "for i in range(1, 9):\n    if i % 2 == n:\n        y[i] = y[i - 1]\n    else:\n        y[i] = 0",
            False,
        ),
        ("for i in range(1, 9):\n    if i % 2 != 1:\n        y[i] = y[i - 1]", True),
        ("for i in range(1, 9):\n    if i % 2 != n:\n        y[i] = y[i - 1]", False),
        ("for i in range(1, 9):\n    if i & 1 and y[100] == 3:\n        y[i] = y[i - 1]", True),
        ("for i in range(1, 9):\n    if i & 1 or y[100] == 3:\n        y[i] = y[i - 1]", False),
        ("for i in range(1, 9):\n    if i % 2 == n:\n        continue\n    y[i] = y[i - 1]", False),
        ("for i in range(1, 9):\n    if i % 2 != n:\n        continue\n    y[i] = y[i - 1]", True),
        (BOX + "    if (i + j) % 2 == n:\n        y[5 * i + j] = y[5 * i + j + 1]", True),
        (BOX + "    if i % 2 == n:\n        y[5 * i + j] = y[5 * i + j + 1]", False),
        # The dividend wraps around: remainders by 2 stay, by 3 they do not.
        ("for i in range(1, 9):\n    if (i + m) % 2 == n:\n        y[i] = y[i - 1]", True),
        ("for i in range(1, 9):\n    if (i + m) % 3 == n:\n        y[i] = y[i - 1]", False),
        ("for i in range(64):\n    y[i * 100000007 % 7] = 1", False),
        # Pairs of a permutation network: no number is x ^ m of two, and x ^ m ^ m is x.
        (
            "for i in range(64):\n    o = i ^ n\n    if o > i:\n        y[i] = y[o]\n        y[o] = 1",
            True,
        ),
        (
            "for i in range(64):\n    o = n ^ i\n    if o >= i:\n        y[i] = 1\n        y[o] = 1",
            True,
        ),
        (
            "for i in range(64):\n    o = i ^ n\n    if o != i:\n        y[i] = y[o]\n        y[o] = 1",
            False,
        ),
        ("for i in range(64):\n    o = i ^ n\n    if o > i:\n        y[i] = y[i ^ m]", False),
        ("for i in range(64):\n    o = i ^ n\n    if o > i:\n        y[o + 1] = y[i]", False),
        ("for i in range(64):\n    o = i ^ (i + 1)\n    if o > i:\n        y[o] = y[i]", False),
        ("for i in range(64):\n    o = i ^ y[100]\n    if o > i:\n        y[o] = y[i]", False),
        ("for i in range(64):\n    if i & n == 0:\n        y[i] = 1\n        y[i + n] = 2", True),
        ("for i in range(64):\n    if i & n == 0:\n        y[i] = 1\n        y[i | n] = 2", True),
        ("for i in range(64):\n    if i & n == 1:\n        y[i] = 1\n        y[i + n] = 2", False),
        ("for i in range(64):\n    if i & n == 0:\n        y[i] = 1\n        y[i + m] = 2", False),
        (
            "for i in range(64):\n    o = i ^ (1 << n)\n    if i < o:\n        y[i] = y[o]\n        y[o] = 1",
            True,
        ),
        ("for i in range(64):\n    if i & (1 << n) == 0:\n        y[i] = y[i | (1 << n)]", True),
        ("for i in range(64):\n    y[(i ^ n) ^ n] = y[i]", True),
        ("for i in range(64):\n    y[i ^ n] = 1", True),
        ("for i in range(64):\n    y[i & n] = 1", False),
        ("for i in range(64):\n    y[i | n] = 1", False),
        # Constant masks are quotients.
        ("for i in range(64):\n    if i & 4 == 0:\n        y[i] = y[i + 4]", True),
        (
            "for i in range(64):\n    if i // 4 % 2 == 0:\n        y[i] = y[i ^ 4]\n        y[i | 4] = 1",
            True,
        ),
        ("for i in range(64):\n    if i & 4 == 0:\n        y[i] = y[i + 2]", False),
        ("for i in range(64):\n    y[i & -8] = y[i]", False),
        ("for i in range(64):\n    y[(i & 56) + (i & 7)] = 1", True),
        # Bounds, and single lanes.
        ("for i in range(16):\n    if i >= 8:\n        y[i] = y[i - 8]", True),
        ("for i in range(16):\n    if i >= 7:\n        y[i] = y[i - 8]", False),
        ("for i in range(16):\n    y[i + 1] = 1\n    if i == 0:\n        y[0] = 2", True),
        ("for i in range(16):\n    y[i + 1] = 1\n    if i == 1:\n        y[1] = 2", False),
        ("for i in range(16):\n    if i == n:\n        y[0] = 2", True),
        ("for i in range(16):\n    if i != n:\n        y[0] = 2", False),
        ("for i in range(8):\n    for k in range(i):\n        y[8 * i + k + 1] = y[0]", True),
        ("for i in range(8):\n    for k in range(i + 3):\n        y[8 * i + k + 8] = 1", False),
        ("for i in range(8):\n    for k in range(i):\n        y[8 * i + k + 8] = 1", True),
        # Twice the same place, under other conditions.
        (
            "for i in range(1, 9):\n    if i % 2 == 0:\n        y[i - 1] = 1\n    y[i - 1] = y[i]",
            False,
        ),
    ],
)
def test_what_is_apart(body, apart):
    assert made(body) == apart


def test_systems():
    x, y, q = "x", "y", "q"
    assert IntegerSystem(zero=[{x: 2, y: -4, None: 1}]).is_empty()
    assert not IntegerSystem(zero=[{x: 2, y: -3, None: 1}]).is_empty()
    assert IntegerSystem(zero=[{x: 6, y: 10, q: 15, None: -1}, {x: 1}, {y: 1}]).is_empty()
    assert IntegerSystem(least=[{x: 2, None: -1}, {x: -2, None: 1}]).is_empty()  # x = 1/2
    assert not IntegerSystem(least=[{x: 1}, {x: -1, None: 1}], nonzero=[{x: 1}]).is_empty()
    both = [{x: 1}, {x: -1, None: 1}]
    assert IntegerSystem(least=both, nonzero=[{x: 1}, {x: 1, None: -1}]).is_empty()


def value(form, at):
    return sum(n * (1 if v is None else at["xyz".index(v)]) for v, n in form.items())


def solutions(system):
    for at in itertools.product(range(-4, 5), repeat=3):
        if (
            not any(value(f, at) for f in system.zero)
            and all(value(f, at) >= 0 for f in system.least)
            and all(value(f, at) for f in system.nonzero)
        ):
            yield at


@pytest.mark.parametrize("seed", range(20))
def test_random_systems(seed):
    """None that has a solution is said to be empty, and most of those without one are."""
    random, missed = Random(seed), 0
    for _ in range(40):
        form = lambda: {v: random.randint(-3, 3) for v in ("x", "y", "z", None)}  # noqa: E731
        box = [{v: s, None: 4} for v in "xyz" for s in (1, -1)]
        zero, least, nonzero = ([form() for _ in range(random.randint(0, 2))] for _ in range(3))
        system = IntegerSystem(zero, [*box, *least], nonzero)
        some = next(solutions(system), None)
        assert not (system.is_empty() and some), (zero, least, nonzero, some)
        missed += some is None and not system.is_empty()
    assert missed <= 2
