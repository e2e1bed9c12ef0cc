"""Additions in branches are gathered: the same sums, and no element is touched that need not exist.

The interpreter runs adjoints before and after the pass. It refuses indices out of bounds, which compiled code
does not.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.ir.nodes import Atomic, If
from diffsim.ir.traversal import statements, task_statements
from diffsim.ir.verifier import verify
from diffsim.passes import pipeline
from diffsim.passes.analysis import guarded_updates
from diffsim.passes.analysis.affine import number, task_definitions, truth
from diffsim.passes.analysis.guarded_updates import additions, updates_of
from diffsim.passes.neighbours.scatter_to_gather import scatter_to_gather
from tests.support.source import make

N = 6


class Maker:
    """Writes a kernel whose lanes read neighbours under conditions, all of them inside the field."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.axes = self.r.choice(["i", "ij", "ij"])
        self.lines = []

    def text(self):
        bounds = self.r.choice(["whole", "inner", "arguments"])
        if bounds == "arguments":
            self.axes = "i"
        head = {
            ("i", "whole"): "for i in range(6):",
            ("i", "inner"): "for i in range(1, 5):",
            ("i", "arguments"): "for i in range(lo, hi):",
            ("ij", "whole"): "for i, j in ds.ndrange(6, 6):",
            ("ij", "inner"): "for i, j in ds.ndrange((1, 5), 6):",
        }[self.axes, bounds]
        self.first, self.last = (1, 4) if bounds == "inner" else (0, 5)
        self.put(1, head)
        for _ in range(self.r.randint(2, 5)):
            self.term(2)
        return "\n".join(["@ds.kernel", "def kernel(lo: ds.i32, hi: ds.i32):", *self.lines, ""])

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def beyond(self, depth):
        """A neighbour with other values beyond the ends, in a formula that its derivative needs it for."""
        k = self.r.choice([-2, -1, 1, 2])
        self.put(depth, f"p = i + {k}")
        self.put(depth, "near = 0.0 * x[i]")
        self.put(depth, "if p < 0:")
        self.put(depth + 1, f"near = {self.r.choice(['-x[0]', '0.5 * x[i]', 'w[i]'])}")
        self.put(depth, f"elif p {self.r.choice(['>= 6', '> 6 - 1'])}:")
        self.put(depth + 1, f"near = {self.r.choice(['-x[5]', '2.0 * x[i]'])}")
        self.put(depth, "else:")
        self.put(depth + 1, "near = x[p]")
        self.put(depth, self.r.choice(["y[i] += (x[i] + near) ** 2", "y[i] += near * near"]))

    def term(self, depth):
        if self.axes == "i" and self.r.random() < 0.3:
            self.beyond(depth)
            return
        shifts = [self.r.randint(-2, 2) for _ in self.axes]
        places = [f"{a} + {s}" if s else a for a, s in zip(self.axes, shifts, strict=True)]
        at, name = ", ".join(places), "x" if self.axes == "i" else "m"
        inside = [self.guard(k, p, s) for k, (p, s) in enumerate(zip(places, shifts, strict=True))]
        tests = [t for t in inside if t]
        out = f"{'y' if self.axes == 'i' else 'q'}[{', '.join(self.axes)}]"
        scale = self.r.choice(["2.0", "w[i]", "(w[i] * 3.0 + 1.0)", f"{name}[{at}]"])
        add = f"{out} += {scale} * {name}[{at}]"
        if self.r.random() < 0.3:
            tests.append(self.r.choice(["w[i] > 0.5", "i != 3", "i % 2 == 0"]))
        if not tests:
            self.put(depth, add)
        elif self.r.random() < 0.3:
            for k, test in enumerate(tests):
                self.put(depth + k, f"if {test}:")
            self.put(depth + len(tests), add)
        elif self.r.random() < 0.3:
            self.put(depth, f"if not ({' and '.join(tests)}):")
            self.put(depth + 1, f"{out} += 1.5 * w[{self.axes[-1]}]")
            self.put(depth, "else:")
            self.put(depth + 1, add)
        else:
            self.put(depth, f"if {' and '.join(tests)}:")
            self.put(depth + 1, add)

    def guard(self, axis, place, shift):
        """A test that a place is inside; none where it certainly is."""
        first, last = (self.first, self.last) if axis == 0 else (0, 5)
        low, high = first + shift < 0, last + shift > 5
        if not low and not high and self.r.random() < 0.7:
            return ""
        lower, upper = self.r.choice(
            [(f"0 <= {place}", f"{place} < 6"), (f"{place} > -1", f"5 >= {place}")]
        )
        if self.r.random() < 0.5:
            return f"0 <= {place} < 6"
        if low and high:
            return f"{lower} and {upper}"
        return lower if low else upper


def adjoint(text, space):
    names = {"ds": ds, **space}
    make(text, names)
    return names["kernel"]._only(()).derivative.ir


def run(ir, args):
    rng = np.random.default_rng(3)
    start = {m: rng.uniform(0, 1, m.shape) for m in sorted(ir.mems, key=lambda m: m.name)}
    interpreter.run(ir, start, args)
    return {m.name: a for m, a in start.items()}


def space():
    x, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))
    m, q = (ds.field(ds.f64, shape=(N, N), needs_grad=True) for _ in range(2))
    return dict(x=x, y=y, m=m, q=q, w=ds.field(ds.f64, shape=N))


def holds(seed, fields):
    """Whether the pass changed the adjoint of a random kernel; the memory ends the same."""
    text = Maker(seed).text()
    ir = adjoint(text, fields)
    gathered = scatter_to_gather(ir)
    verify(gathered, "scatter_to_gather")
    if gathered == ir:
        return False
    for args in ((0, 6), (2, 5), (3, 3), (4, 1), (1, 2)):
        expected, found = run(ir, args), run(gathered, args)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-13, err_msg=text)
    return True


def test_random_stencils(cpu):
    fields = space()
    changed = [holds(seed, fields) for seed in range(16)]
    assert sum(changed) > 6


def test_a_guarded_wave_has_no_atomics(cpu):
    """The conditions of neighbours are gone where all of them are inside, and hold at the rim."""
    p = ds.field(ds.f64, shape=(4, N, N), needs_grad=True)

    @ds.func
    def at(t, i, j):
        return p[t, i, j] if 0 <= i < N and 0 <= j < N else 0

    @ds.kernel
    def step(t: ds.i32):
        for i, j in ds.ndrange(N, N):
            around = at(t, i - 1, j) + at(t, i + 1, j) + at(t, i, j - 1) + at(t, i, j + 1)
            p[t + 1, i, j] = 2 * p[t, i, j] - at(t - 1, i, j) + 0.3 * (around - 4 * at(t, i, j))

    gathered = pipeline.run(step._only(()).derivative.ir, pipeline.LOWER, check=True)
    updates = [s for t in gathered.tasks for s in task_statements(t) if isinstance(s, Atomic)]
    assert updates
    assert all(s.exclusive for s in updates)
    inside = [t for t in gathered.tasks if not any(isinstance(s, If) for s in statements(t.body))]
    assert any(isinstance(s, Atomic) for t in inside for s in statements(t.body))
    seed = np.random.default_rng(0).random((N, N))
    values = np.zeros((4, N, N))
    values[3] = seed
    p.grad.from_numpy(values)
    step(2)
    step.grad(2)
    padded = np.pad(seed, 1)
    around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    np.testing.assert_allclose(
        p.grad.to_numpy()[2], 2 * seed + 0.3 * (around - 4 * seed), rtol=1e-13
    )
    np.testing.assert_allclose(p.grad.to_numpy()[1], -seed, rtol=1e-13)


def test_a_value_that_only_nested_branches_need(cpu):
    """Copies of branches bring along what the innermost ones yield."""
    n = 6
    u, y = (cpu.field(cpu.f64, shape=n, needs_grad=True) for _ in range(2))

    @cpu.kernel
    def square():
        for i in u:
            left = 0.0 * u[0]
            if i < 1:
                left = -u[0]
            elif i > n:
                left = -u[n - 1]
            else:
                left = u[i - 1]
            y[i] = (u[i] + left) ** 2

    values = np.arange(1.0, n + 1) ** 2
    u.from_numpy(values)
    square()
    y.grad.fill(1.0)
    square.grad()
    pairs = 2 * (values[1:] + values[:-1])  # the first element's square is 0, whatever u[0] is
    np.testing.assert_allclose(u.grad.to_numpy(), np.r_[0, pairs] + np.r_[pairs, 0], rtol=1e-14)


def test_a_branch_that_adds_and_yields(cpu):
    """What a neighbour's branch yields is computed again, without what the branch adds elsewhere."""
    x, y, w = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(3))

    @ds.kernel
    def slopes():
        for i in range(1, N - 1):
            a = x[i + 1] - x[i - 1]
            if w[i] > 0.5:
                a = 3.0 * x[i] * x[i] + x[i + 1]
            y[i] = a

    lowered = pipeline.run(slopes._only(()).derivative.ir, pipeline.LOWER, check=True)
    updates = [s for t in lowered.tasks for s in task_statements(t) if isinstance(s, Atomic)]
    assert updates
    assert all(s.exclusive for s in updates)
    values, chosen, seed = np.random.default_rng(0).random((3, N))
    x.from_numpy(values)
    w.from_numpy(chosen)
    slopes()
    y.grad.from_numpy(seed)
    slopes.grad()
    expected, sure = np.zeros(N), chosen > 0.5
    for i in range(1, N - 1):
        expected[i + 1] += seed[i]
        expected[i if sure[i] else i - 1] += seed[i] * (6 * values[i] if sure[i] else -1)
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-13)


def test_what_is_read_is_not_gathered(cpu):
    """Lanes that add in branches need not meet: one may read what it will add to."""
    x, y = ds.field(ds.f64, shape=N), ds.field(ds.f64, shape=N)

    @ds.kernel
    def read_then_add():
        for i in x:
            if i == 4:
                y[i] = x[i]
                x[i] += 1.0
            if i == 1:
                x[i + 1] += 2.0

    read_then_add()
    assert x.to_numpy().tolist() == [0, 0, 2, 0, 1, 0]
    assert y.to_numpy().tolist() == [0] * N


@pytest.mark.parametrize(
    ("test", "known"),
    [
        ("i >= 2", True), ("i > 2", None), ("2 <= i < 5", True), ("i - 2 < 0", False),
        ("i != 9", True), ("not i < 2", True), ("i < 2 or i >= 5", False), ("n > i", None),
        ("i == 1", False), ("i == 3", None), ("i - 2 == 5 or i != 3", None),
        ("i > 3 or i >= 2", True), ("i > 3 and i < 2", False), ("i + 2147483647 > 0", None),
        ("w[i] > 0.5", None), ("5 > i and w[i] > 0.5", None),
    ],
)  # fmt: skip
def test_what_bounds_tell_of_a_condition(cpu, test, known):
    text = f"def f(n: ds.i32):\n for i in range(2, 5):\n  if {test}:\n   y[i] += 1\n"
    names = {"ds": ds, **space()}
    make("@ds.kernel\n" + text, names)
    (task,) = names["f"]._only(()).ir.tasks
    (update,) = updates_of(task.body, set(additions(task.body)))
    assert (
        truth(update.computes.cond, task_definitions(task), {task.axes[0]: (number(2), number(4))})
        is known
    )


@pytest.mark.parametrize("count", [4, 32])
def test_chains_of_branches_are_copied_for_stencils_alone(cpu, monkeypatch, count):
    """What an addition in the last of k branches needs is a chain of k: all of them together, k * k."""
    copied = []
    guarded = guarded_updates._guarded

    def counted(*args, **options):
        copied.append(args)
        return guarded(*args, **options)

    monkeypatch.setattr(guarded_updates, "_guarded", counted)
    chain = "".join(
        f"        {'elif' if c else 'if'} c[i] == {c}:\n            y[i] = {c}.5 * x[i] * x[i]\n"
        for c in range(count)
    )
    space = {
        "ds": ds,
        "c": ds.field(ds.i32, shape=N),
        **{n: ds.field(ds.f64, shape=N, needs_grad=True) for n in "xy"},
    }
    make(f"@ds.kernel\ndef run():\n    for i in range({N}):\n{chain}", space)
    values, which = np.linspace(1.0, 2.0, N), np.arange(N) % count
    space["x"].from_numpy(values)
    space["c"].from_numpy(which.astype(np.int32))
    space["run"]()
    space["y"].grad.fill(1.0)
    space["run"].grad()
    np.testing.assert_allclose(space["x"].grad.to_numpy(), 2 * (which + 0.5) * values, rtol=1e-6)
    assert not copied
