"""The adjoint of what only a branch uses is part of the branch, and is right wherever it is."""

from functools import partial

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import Span
from diffsim.ir.nodes import Atomic, Block, Const, For, If, Load, Mem, Store, Value
from diffsim.ir.traversal import blocks, task_statements
from diffsim.ir.types import bool_, f64, i32
from diffsim.passes.autodiff import reverse
from diffsim.passes.autodiff.skipped_iterations import Before
from diffsim.passes.kept.unread_branches import BranchReads
from tests.support.source import make

N = 6
INITIAL = np.linspace(0.5, 2.0, N)
WEIGHTS = np.linspace(-1.0, 2.0, N)
TABLE = np.array([3, 0, 5, 1, 1, 2])


def kernel_of(lines):
    """A kernel of these lines for each `i`, and its fields."""
    field = partial(ds.field, ds.f64, shape=N, needs_grad=True)
    names = dict(ds=ds, x=field(), y=field(), z=field(), at=ds.field(ds.i32, shape=N))
    body = "\n".join(f"        {line}" for line in lines)
    make(f"@ds.kernel\ndef run():\n    for i in range({N}):\n{body}\n", names)
    names["at"].from_numpy(TABLE)
    return names


def depths(names):
    """The number of branches around each addition to the gradient of x, of the adjoint as it is made."""

    def visit(block, depth):
        for s in block.stmts:
            if isinstance(s, Atomic) and s.mem.name == "x.grad":
                yield depth
            for inner in blocks(s):
                yield from visit(inner, depth + isinstance(s, If))

    made = names["run"]._only(()).derivative.ir
    return sorted(d for task in made.tasks for d in visit(task.body, 0))


def check_gradient(names, fields=("x", "z")):
    """Against central differences along a random direction."""
    random, step = np.random.default_rng(0), 1e-6
    start = dict(x=INITIAL, z=INITIAL[::-1] ** 2)
    ways = {k: random.normal(size=N) for k in fields}

    def loss(sign):
        for k, a in start.items():
            names[k].from_numpy(a + sign * step * ways.get(k, 0.0))
        names["y"].fill(0.0)
        names["run"]()
        return names["y"].to_numpy() @ WEIGHTS

    slope = (loss(1) - loss(-1)) / (2 * step)
    loss(0)
    for k in start:
        names[k].grad.fill(0.0)
    names["y"].grad.from_numpy(WEIGHTS)
    names["run"].grad()
    found = sum(names[k].grad.to_numpy() @ ways[k] for k in fields)
    np.testing.assert_allclose(found, slope, rtol=1e-7)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # Of four candidates those that are near count: all of what they need follows the branch.
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]] - x[i]",
                "    far = ds.sqrt(d * d + 0.01)",
                "    if far < 0.7:",
                "        y[i] += d / far * z[k]",
            ],
            [1, 1],
        ),
        # The root is used in any case, so only what it does not need follows.
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]]",
                "    far = ds.sqrt(d * d + 0.01)",
                "    e = x[k]",
                "    y[i] += far",
                "    if far < 0.9:",
                "        y[i] += d * e",
            ],
            [0, 1],
        ),
        # Both sides use it.
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]]",
                "    if d < 0.9:",
                "        y[i] += d * z[k]",
                "    else:",
                "        y[i] += ds.sin(d)",
            ],
            [0],
        ),
        # Each side has its own.
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]]",
                "    e = x[k]",
                "    if z[k] < 0.9:",
                "        y[i] += d * z[k]",
                "    else:",
                "        y[i] += ds.sin(e)",
            ],
            [1, 1],
        ),
        # Into the branch in a branch, past what each of them computes before.
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]] - x[i]",
                "    if k != i:",
                "        far = ds.sqrt(d * d + 0.01)",
                "        if far < 0.7:",
                "            y[i] += d / far * z[k]",
            ],
            [2, 2],
        ),
        # The outer branch uses it, too, after the inner one and before it.
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]]",
                "    if k != i:",
                "        if d < 0.9:",
                "            y[i] += d * z[k]",
                "        y[i] += ds.sin(d)",
            ],
            [1],
        ),
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]]",
                "    if k != i:",
                "        e = ds.sin(d)",
                "        if d < 0.9:",
                "            y[i] += d * z[k]",
                "        y[i] += e",
            ],
            [1],
        ),
        # The other side of the outer branch uses it.
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]]",
                "    if k != i:",
                "        if d < 0.9:",
                "            y[i] += d * z[k]",
                "    else:",
                "        y[i] += ds.sin(d)",
            ],
            [0],
        ),
        # An earlier branch hands it on, or a loop does.
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]]",
                "    e = d",
                "    if k > 1:",
                "        e = ds.sin(d)",
                "    if e < 0.9:",
                "        y[i] += e * z[k]",
            ],
            [0],
        ),
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]]",
                "    e = z[k]",
                "    for m in range(2):",
                "        e += ds.sin(e * d)",
                "    if e < 0.9:",
                "        y[i] += e * z[k]",
            ],
            [0],
        ),
        # Two branches, each with its own.
        (
            [
                "for k in range(4):",
                "    d = x[at[(i + k) % 6]]",
                "    e = x[k]",
                "    if d < 0.9:",
                "        y[i] += d * z[k]",
                "    if e < 0.9:",
                "        y[i] += e / z[k]",
            ],
            [1, 1],
        ),
        # Without a loop: an element that a table tells follows, but not one of the lane's own alone.
        (["d = x[at[i]]", "if d < 0.9:", "    y[i] = d * z[i]"], [1]),
        (["d = x[i]", "if d < 0.9:", "    y[i] = d * z[i]"], [0]),
    ],
    ids=lambda case: "; ".join(map(str.strip, case)) if isinstance(case[0], str) else "",
)
def test_where_additions_are_made(cpu, quick_code, lines, expected):
    names = kernel_of(lines)
    assert depths(names) == expected
    check_gradient(names)


def test_no_load_follows_across_a_store(cpu, quick_code):
    """The store's adjoint clears the gradient that the load before it adds to."""
    x, loss = ds.field(ds.f64, shape=N, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)
    at, w = ds.field(ds.i32, shape=N), ds.field(ds.f64, shape=N)
    at.from_numpy(np.arange(N))
    w.from_numpy(WEIGHTS)

    @ds.kernel
    def run():
        for i in range(N):
            for k in range(3):
                d = x[at[i]]
                x[i] = d * d * 0.5
                if w[i] > 0.0:
                    loss[None] += d * w[i] * k

    def program(start):
        total, now = 0.0, start.copy()
        for k in range(3):
            total += (now * np.maximum(WEIGHTS, 0.0) * k).sum()
            now = now * now * 0.5
        return total

    x.from_numpy(INITIAL)
    with ds.Tape(loss, in_place="save"):
        run()
    np.testing.assert_allclose(loss[None], program(INITIAL))
    step, expected = 1e-6, np.zeros(N)
    for k in range(N):
        e = step * np.eye(N)[k]
        expected[k] = (program(INITIAL + e) - program(INITIAL - e)) / (2 * step)
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-7, atol=1e-9)


def test_an_infinite_derivative_elsewhere_adds_nothing(cpu, quick_code):
    """The root of 0 has an infinite derivative, where nothing uses the root."""
    names = kernel_of(
        [
            "for k in range(4):",
            "    far = ds.sqrt(x[at[(i + k) % 6]] - x[at[k]])",
            "    if far > 0.5:",
            "        y[i] += far",
        ]
    )
    names["x"].from_numpy(np.full(N, 1.0))
    names["run"]()
    names["y"].grad.from_numpy(WEIGHTS)
    names["run"].grad()
    np.testing.assert_array_equal(names["x"].grad.to_numpy(), np.zeros(N))


# ---- branches within one another: their forward code comes once, unless something reads it


def chain(k, arm="r = x[i] * r * {j}.5 + ds.sin(z[i] * r)"):
    """A chain of k branches, each on the other side of the one before."""
    lines = ["r = x[i] + 1.5"]
    for j in range(k):
        lines.append(f"{'elif' if j else 'if'} r < {0.93 + 2.5 * (j + 1) / k}:")
        lines.append("    " + arm.format(j=j))
    return [*lines, "y[i] += r"]


def emitted(lines, monkeypatch):
    """How many statements the adjoint has before those go that nothing needs."""
    found = []

    def counted(kernel, *more):
        found.append(sum(1 for t in kernel.tasks for _ in task_statements(t)))
        return plain(kernel, *more)

    plain = reverse.eliminate_dead_code
    with monkeypatch.context() as patched:
        patched.setattr(reverse, "eliminate_dead_code", counted)
        assert kernel_of(lines)["run"]._only(()).derivative.ir
    return max(found)


def test_the_adjoint_of_a_chain_grows_with_it(monkeypatch):
    short, long = (emitted(chain(k), monkeypatch) for k in (12, 48))
    assert long < 4.2 * short


@pytest.mark.parametrize("stored", [False, True])
def test_the_gradient_of_a_chain(stored):
    arm = "r = x[i] * r * {j}.5 + ds.sin(z[i] * r)"
    # A store on a side is no reason to emit it twice.
    check_gradient(kernel_of(chain(5, arm if not stored else "y[i] += r * x[i] * z[i]")))


CHANGED = ["a = x[i]", "if x[i] > 0.6:", "    b = a", "    if z[i] > 1.0:"]
CHANGED += ["        b = ds.sin(a * z[i])"]
READ = [
    # by a statement of the side
    ["a = x[i]", "if x[i] > 0.6:", "    b = a", "    if z[i] > 1.0:", "        b = a * z[i]"]
    + ["    a = ds.sin(b) * b", "y[i] = a * a"],
    # by a condition, and by a branch whose own results nothing reads
    ["a = x[i]", "if x[i] > 0.6:", "    b = a", "    if z[i] > 1.0:", "        b = a * z[i]"]
    + ["    if b * b > 1.5:", "        a = ds.exp(-b) * b", "y[i] = a * a"],
    # only within another, whose condition does not read it; also deeper in that
    CHANGED + ["    if x[i] < 1.8:", "        a = ds.exp(-b) * b", "y[i] = a * a"],
    CHANGED
    + [
        "    if x[i] < 1.8:",
        "        if z[i] < 3.0:",
        "            a = ds.exp(-b) * b",
        "y[i] = a * a",
    ],
    # as what a branch yields that is read
    CHANGED
    + ["    if x[i] < 1.8:", "        a = b", "        y[i] += z[i]", "    a = ds.sin(a) * a"]
    + ["y[i] += a * a"],
    # within a branch of a branch
    ["a = x[i]", "if x[i] > 0.6:", "    if z[i] > 1.0:", "        b = a * a"]
    + ["        if z[i] > 2.0:", "            b = ds.sin(a * z[i])"]
    + ["        if b > 0.3:", "            a = a * b * b", "y[i] = a * a"],
    # as an index, and by what is written
    ["k = i", "if x[i] > 0.6:", "    if z[i] > 1.0:", "        k = at[i]"]
    + ["    y[i] += x[k] * x[k] * z[i]"],
    # in a loop
    ["a = x[i]", "for t in range(3):", "    if a > 0.6:", "        b = a", "        if z[i] > 1.0:"]
    + ["            b = a * z[i] * 0.5", "        a = ds.sin(b) * b", "y[i] = a * a"],
]


@pytest.mark.parametrize("lines", READ)
def test_what_is_read_is_computed(lines):
    names = kernel_of(lines)
    check_gradient(names)
    assert np.isfinite(names["x"].grad.to_numpy()).all()
    assert len(names["x"].grad.to_numpy()) == N


def test_forward_code_of_a_branch_that_is_read_stays_when_it_is_in_another(monkeypatch):
    read = emitted(READ[0], monkeypatch)
    assert read > emitted([s for s in READ[0] if "sin(b)" not in s], monkeypatch)


SPAN, ZERO, ONE = Span("test_followers.py", 1), Const(i32, 0), Const(f64, 1.0)
FIELD, SCRATCH = Mem("x", f64, 1, (4,)), Mem("s", f64, 1, None, "scratch")


@pytest.mark.parametrize(
    ("inside", "stays"),
    [
        (Load(Value(f64), FIELD, (ZERO,), SPAN), False),
        (Store(FIELD, (ZERO,), ONE, SPAN), False),
        # An adjoint does not repeat an atomic, and each copy of it finds the result in the same log.
        (Atomic(Value(f64), "add", FIELD, (ZERO,), ONE, SPAN), False),
        # What is stored to scratch is stored again, and later statements load it.
        (Store(SCRATCH, (ZERO,), ONE, SPAN), True),
        (For(Value(i32), ZERO, ZERO, (), (), Block([]), (), SPAN), True),
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_which_branches_come_once(inside, stays, depth):
    for _ in range(depth):
        inside = If(Value(bool_), Block([]), Block([inside]), (), SPAN)
    found = BranchReads().without_unread(Block([inside])).stmts
    assert list(found) == ([inside] if stays else [])


def test_what_is_remembered_holds_on_one_side_only():
    v, w = Value(f64), Value(f64)
    branch = Before(Block([]), 0, set(), (), None, {})
    within = Before(Block([]), 0, set(), (), branch.side({v}), {})
    assert [within.gets_elsewhere(x) for x in (v, w, v, w)] == [True, False, True, False]
    assert [branch.side({w}).gets_elsewhere(x) for x in (v, w)] == [False, True]
