"""Values in place of loads, against the interpreter: memory ends the same, bit by bit."""

from random import Random

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.ir.nodes import Load, Store
from diffsim.ir.traversal import task_statements
from diffsim.ir.verifier import verify
from diffsim.passes.forms.forward_stores import forward_stores
from tests.support.trace import ir_of

pytestmark = pytest.mark.usefixtures("cpu")


class Maker:
    """Writes the body of a kernel whose lanes write the same elements again and again.

    Some indices are equal for some arguments only, or for some lanes, and some elements belong to no lane.
    """

    PLACES = (*["y[i]"] * 5, *["v[i]"] * 3, *["v[i].x", "v[i][1]"] * 2, "v[i][i % 2]")
    RARE = (
        "z[i, t]",
        "z[i, u]",
        "z[i, 1]",
        "y[at[i]]",
        "y[i + 1]",
        "z[t, i]",
        "y[2 * i]",
        "q[None]",
    )

    def __init__(self, seed):
        self.r = Random(seed)
        self.lines, self.loops = [], 0

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def text(self):
        serial = self.r.random() < 0.2
        self.put(1, "i = n" if serial else "for i in range(4):")
        if serial:
            self.put(1, "if n < 9:")  # loops in it are no parallel ones
        for _ in range(self.r.randint(2, 6)):
            self.stmt(2)
        return "\n".join(self.lines) + "\n"

    def place(self):
        return self.r.choice(self.RARE if self.r.random() < 0.3 else self.PLACES)

    def number(self):
        place = self.place()
        return f"{place}.y" if place == "v[i]" else self.r.choice([place, place, "x[i]", "0.5"])

    def stmt(self, depth):
        kind = self.r.random() if depth < 4 else 0.0
        if kind < 0.65:
            target = self.place()
            value = f"{self.number()} * 0.7 + {self.number()}"
            if target == "v[i]":
                value = self.r.choice([f"v[i] * {self.number()}", f"ds.Vector([{value}, x[i]])"])
            how = self.r.choice(["=", "=", "=", "+=", "*="])
            if self.r.random() < 0.1 and target not in ("v[i]", "v[i][i % 2]"):
                self.put(depth, f"ds.atomic_max({target}, {self.number()})")
            else:
                self.put(depth, f"{target} {how} {value}")
        elif kind < 0.8:
            self.put(depth, f"if {self.number()} > 0.2:")
            self.inside(depth)
            if self.r.random() < 0.5:
                self.put(depth, "else:")
                self.inside(depth)
        elif kind < 0.92:
            self.loops += 1
            count = self.r.choice(["2", "3", "0", "n", "at[i]"])
            self.put(depth, f"for k{self.loops} in range({count}):")
            self.inside(depth, self.r.choice([None, "break", "continue"]))
        else:
            self.loops += 1
            self.put(depth, f"k{self.loops} = 0")
            self.put(depth, f"while k{self.loops} < 3 and {self.number()} < 0.7:")
            self.put(depth + 1, f"k{self.loops} += 1")
            self.inside(depth)

    def inside(self, depth, leave=None):
        if leave:
            self.put(depth + 1, f"if {self.number()} > 0.4:")
            self.put(depth + 2, leave)
        for _ in range(self.r.randint(1, 3)):
            self.stmt(depth + 1)


def kernel_of(body):
    x, y = (ds.field(ds.f64, shape=8, needs_grad=True) for _ in range(2))
    z = ds.field(ds.f64, shape=(8, 8), needs_grad=True)
    v = ds.Vector.field(2, ds.f64, shape=8, needs_grad=True)
    q = ds.field(ds.f64, shape=(), needs_grad=True)
    at = ds.field(ds.i32, shape=8)
    at.from_numpy(np.array([2, 0, 1, 3, 1, 0, 2, 3], np.int32))
    space = {"x": x, "y": y, "z": z, "v": v, "at": at, "q": q}
    return ir_of(body, params="n: ds.i32, t: ds.i32, u: ds.i32", **space), at


def end(kernel, at, *args):
    """The memory after a run of a kernel's IR."""
    rng = np.random.default_rng(1)
    start = {m: rng.uniform(-1, 1, m.shape + m.dtype.shape) for m in kernel.mems}
    start = {m: at.to_numpy() if m.name == "at" else a for m, a in start.items()}
    interpreter.run(kernel, start, args)
    return start


def same(body):
    """The kernel with values forwarded, whose memory ends the same; None: nothing was to be done."""
    kernel, at = kernel_of(body)
    made = forward_stores(kernel)
    if made is kernel:
        return None
    verify(made, "forward_stores")
    for args in ((1, 1, 1), (3, 1, 2), (0, 2, 1)):
        wanted, found = end(kernel, at, *args), end(made, at, *args)
        for m, values in wanted.items():
            assert np.array_equal(values, found.get(m, values), equal_nan=True), (body, m.name)
    return made


def test_random_kernels():
    changed = sum(same(Maker(seed).text()) is not None for seed in range(70))
    assert changed > 40


def count(kernel, kind, name="y"):
    found = [s for t in kernel.tasks for s in task_statements(t)]
    return sum(isinstance(s, kind) and s.mem.name == name for s in found)


@pytest.mark.parametrize(
    ("body", "loads", "stores"),
    [
        ("y[i] = x[i]\ny[i] = ds.max(y[i], 0.5)", 0, 1),
        ("y[i] = ds.sin(y[i])\ny[i] = ds.cos(y[i])", 1, 1),
        ("y[i] = x[i]\nif x[i] > 0.0:\n    y[i] = y[i] ** 2\ny[i] *= y[i]", 0, 3),
        ("y[i] = x[i]\nfor k in range(n):\n    y[i] = ds.sin(y[i])", 0, 2),
        ("for k in range(n):\n    y[i] = ds.sin(y[i])", 1, 1),
        ("while y[i] > 0.1:\n    y[i] = y[i] ** 2", 1, 1),
        # Another index that may be the same element, and one that is never.
        ("y[i] = x[i]\ny[at[i]] = 1.0\ny[i] = y[i] ** 2", 1, 3),
        ("z[i, t] = x[i]\nz[i, u] = 1.0\nz[i, t] = z[i, t] ** 2", 1, 3),
        ("z[i, t] = x[i]\nz[i, t + 1] = 1.0\nz[i, t] = z[i, t] ** 2", 0, 2),
        # Other lanes write the element.
        ("y[i] = x[i]\ny[i + 1] = 1.0\ny[i] = y[i] ** 2", 1, 3),
        ("q[None] = x[i]\nq[None] = q[None] ** 2", 1, 2),
    ],
)
def test_what_is_left(body, loads, stores):
    text = "".join(f"        {line}\n" for line in body.splitlines())
    kernel, _ = kernel_of("    for i in range(4):\n" + text)
    made, name = forward_stores(kernel), body[0] if body[0] in "zq" else "y"
    assert (count(made, Load, name), count(made, Store, name)) == (loads, stores)
