"""Divergence, against the values that lanes really have at one point of the program."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import Span
from diffsim.ir.nodes import Alloca, Atomic, Block, Const, For, Load, Mem, Store, Task, Value
from diffsim.ir.traversal import outs, statements
from diffsim.ir.types import f32, i32
from diffsim.passes import pipeline
from diffsim.passes.analysis.divergence import (
    divergent_anywhere,
    divergent_values,
    hoistable_counts,
    is_steady,
    uniform_atomics,
)
from tests.support.source import make
from tests.support.trace import ir_of, trace

pytestmark = pytest.mark.usefixtures("cpu")

BODIES = {
    "branches": """
    for i, j in ds.ndrange(4, 4):
        a = i * 2 + n
        b = j + 1
        c = a
        if a > 3:
            c = a + 1
        d = a
        if b > 2:
            d = a + 1
        k[i, j] = c + d
""",
    "loops": """
    for i, j in ds.ndrange(4, 4):
        s = 0
        for m in range(n):
            s += m
        t = 0
        for m in range(j):
            t += 1
        u = 0
        for m in range(i):
            u = u + s
        k[i, j] = s + t + u
""",
    "bounds": """
    for i, j in ds.ndrange(4, 4):
        a = 0
        b = 0
        for m in range(j, j + 2):
            a = m * 2
        for m in range(i, i + 2):
            b = m * 2
        k[i, j] = a + b
""",
    "while": """
    for i, j in ds.ndrange(4, 4):
        a = n
        while a > 0:
            a = a - 1
        b = j
        while b > 1:
            b = b - 2
        k[i, j] = a + b
""",
    "memory": """
    for i, j in ds.ndrange(4, 4):
        a = r[n]
        b = r[i]
        c = r[j]
        k[i, j] = a + b + c
        e = k[0, n]
        k[i, n] = e
""",
    "atomics": """
    for i, j in ds.ndrange(4, 4):
        a = ds.atomic_add(k[0, 0], 1)
        b = r[1] + 1
        k[1, 1] += a + b
""",
    "late": """
    for i, j in ds.ndrange(4, 4):
        a = 0
        b = 0
        for m in range(3):
            k[i, j] += a
            a = b
            b = j
""",
}


def kernel_of(name):
    k, r = ds.field(ds.i32, shape=(4, 4)), ds.field(ds.i32, shape=8)
    r.from_numpy(np.arange(8, dtype=np.int32) ** 2)
    return ir_of(BODIES[name].strip("\n") + "\n", k=k, r=r), (k, r)


def differing(kernel, together):
    """The values that differ between lanes of one group at one point of the program."""
    seen, found = {}, set()
    for done in trace(kernel, 3).values:
        key = done.value, done.path, together(done.lane)
        if seen.setdefault(key, done.number) != done.number:
            found.add(done.value)
    return found


@pytest.mark.parametrize("name", BODIES)
def test_what_is_uniform_is_one_number(name):
    kernel, _fields = kernel_of(name)
    (task,) = kernel.tasks
    assert differing(kernel, lambda lane: ()) <= divergent_anywhere(task)
    if name != "memory":  # there lanes load what others write, which vectors of lanes never do
        assert differing(kernel, lambda lane: lane[:-1]) <= divergent_values(task)
    assert divergent_values(task) <= divergent_anywhere(task)


@pytest.mark.parametrize("name", ["branches", "loops", "bounds", "while", "late"])
def test_what_is_called_divergent_differs(name):
    """In these programs nothing outside loops is called divergent without reason."""
    kernel, _fields = kernel_of(name)
    (task,) = kernel.tasks
    outside = {v for s in task.body.stmts for v in outs(s)}
    neighbours = differing(kernel, lambda lane: lane[:-1])
    assert divergent_values(task) & outside == neighbours & outside
    assert divergent_anywhere(task) & outside == differing(kernel, lambda lane: ()) & outside


def test_memory_that_the_task_writes_is_not_steady():
    kernel, _fields = kernel_of("memory")
    (task,) = kernel.tasks
    assert {m.name: is_steady(task, m) for m in kernel.mems} == {"r": True, "k": False}


def test_uniform_atomics():
    e, w, r = ds.field(ds.i32, shape=8), ds.field(ds.i32, shape=8), ds.field(ds.i32, shape=8)
    kernel = ir_of(
        "    for i in range(4):\n"
        "        e[n] += 1\n"
        "        e[i] += 1\n"
        "        for j in range(n):\n"
        "            e[j] += 1\n"
        "        for j in range(i):\n"
        "            e[0] += 1\n"
        "        if n > 1:\n"
        "            e[r[n]] += 1\n"
        "        if i > 1:\n"
        "            e[2] += 1\n"
        "        e[w[0]] += 1\n"
        "        w[i] = 0\n",
        e=e,
        w=w,
        r=r,
    )
    (task,) = kernel.tasks
    done = [a for a in trace(kernel, 3).accesses if isinstance(a.stmt, Atomic)]
    every = [s for s in statements(task.body) if isinstance(s, Atomic)]
    elements = {
        s: [[a.element for a in done if a.stmt is s and a.lane == (i,)] for i in range(4)]
        for s in every
    }
    same = {s for s, found in elements.items() if all(e == found[0] for e in found)}
    uniform = uniform_atomics(task)
    assert uniform <= same
    assert same - uniform == {every[-1]}  # w[0] is 0 in this run, but lanes write w


def test_sizes_of_scratch_that_are_known_before_the_lanes():
    """What a reversed loop saves: of n values, of r[2] many, of as many as the lane has."""
    x, r = ds.field(ds.f32, shape=8, needs_grad=True), ds.field(ds.i32, shape=8)
    y = ds.field(ds.f32, shape=8, needs_grad=True)
    answers = []
    for count in ("n", "r[2]", "r[n]", "r[i]", "i + 1"):
        space = {"x": x, "y": y, "r": r, "ds": ds}
        loop = f"for k in range({count}):\n            a = ds.sin(a)"
        body = f"        a = x[i]\n        {loop}\n        y[i] = a\n"
        make(f"@ds.kernel\ndef f(n: ds.i32):\n    for i in y:\n{body}", space)
        adjoint = pipeline.run(space["f"]._only((1,)).derivative.ir, pipeline.LOWER_CUDA)
        (task,) = (t for t in adjoint.tasks if any(isinstance(s, For) for s in t.body.stmts))
        rooms = [s for s in statements(task.body) if isinstance(s, Alloca)]
        assert rooms
        answers.append(all(s.count in hoistable_counts(task) for s in rooms))
    assert answers == [True, True, False, False, False]


@pytest.mark.parametrize("writes", [False, True])
def test_sizes_that_the_task_itself_writes_are_not_known_before(writes):
    span = Span("here.py", 1)
    r, saved = Mem("r", i32, 1, (8,)), Mem("saved", f32, 1, None, "scratch")
    axis, n = Value(i32, "i"), Value(i32, "n")
    one = Const(i32, 1)
    store = [Store(r, (axis,), one, span)] if writes else []
    body = Block([Load(n, r, (one,), span), Alloca(saved, n, span), *store])
    task = Task((axis,), Block([], (Const(i32, 0), Const(i32, 8))), body, span)
    assert hoistable_counts(task) == (frozenset() if writes else {n})
