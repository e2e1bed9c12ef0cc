"""Random launches with arrays of any strides, byte order and alias, and fields of any layout; against NumPy.

A program is a list of steps on an array of parameters, fields computed from it, and views of one table of
NumPy. The model does the same in NumPy. Values of the table are compared after each step, gradients with
central differences of the model. A launch is refused if, and only if, it writes to a view that another
argument overlaps without being the same view.
"""

import copy
import itertools
from random import Random
from types import SimpleNamespace

import numpy as np

import diffsim as ds
from diffsim.errors import DiffsimError
from tests.support import source

DTYPES = "<f4 >f4 <f8 >f8 <i4 >i4 <i8 >i8 <u4".split()
LAYOUTS = ("array", "field", "order", "offset", "tree", "placed")
STEPS = "weigh clamp scatter double add copy".split()
N, M = 3, 4

KERNELS = """
@ds.kernel
def weigh(f: ds.types.ndarray(), c: ds.types.ndarray(), out: ds.types.ndarray(), k: ds.f64):
    for i, j in f:
        out[i, j] += k * f[i, j] * c[i, j] + f[i, j] * f[i, j]

@ds.kernel
def weigh_fields(
    f: ds.types.ndarray(), c: ds.types.ndarray(), out: ds.template(), k: ds.f64, o: ds.template()
):
    for i, j in f:
        out[i + o[0], j + o[1]] += k * f[i, j] * c[i, j] + f[i, j] * f[i, j]

@ds.kernel
def unload(f: ds.template(), out: ds.types.ndarray(), o: ds.template()):
    for i, j in f:
        out[i - o[0], j - o[1]] = f[i, j]

@ds.kernel
def clamp(
    f: ds.types.ndarray(boundary="clamp"),
    c: ds.types.ndarray(boundary="clamp"),
    out: ds.types.ndarray(),
    k: ds.f64,
    s: ds.i32,
    t: ds.i32,
):
    for i, j in out:
        out[i, j] += k * f[i + s, j - t] * f[i, j + t] + c[i - s, j + s]

@ds.kernel
def scatter(f: ds.types.ndarray(), out: ds.types.ndarray(boundary="clamp"), s: ds.i32, t: ds.i32):
    for i, j in f:
        out[2 * i + s, j - t] += f[i, j] * f[i, j]

@ds.kernel
def double(c: ds.types.ndarray()):
    for i, j in c:
        c[i, j] = c[i, j] + c[i, j]

@ds.kernel
def add(c: ds.types.ndarray(), d: ds.types.ndarray()):
    for i, j in c:
        c[i, j] = c[i, j] + d[i, j]
"""


def make(seed):
    """The text of a program: the type of the table, then a line for each step."""
    r = Random(seed)
    lines = [f"table {r.choice(DTYPES)}"]
    for _ in range(r.randint(2, 6)):
        op = r.choice(STEPS)
        views = [r.randrange(10**6) for _ in range(2)]
        if r.random() < 0.3:
            views[1] = views[0]
        shifts = r.randint(-3, 3), r.randint(-3, 3)
        lines.append(f"{op} {r.choice(LAYOUTS)} {views[0]} {views[1]} {shifts[0]} {shifts[1]}")
    return "\n".join(lines) + "\n"


def view(table, number):
    """One of many views of N x M elements of a table of 12 x 12."""
    r = Random(number)
    steps = [r.choice((1, 2, -1, -2, 3)) for _ in range(2)]
    sizes = (N, M)
    turned = r.random() < 0.4
    if turned:
        sizes = sizes[::-1]
    parts = []
    for n, step in zip(sizes, steps, strict=True):
        reach = abs(step) * (n - 1) + 1
        first = r.randint(0, 12 - reach)
        part = slice(first, first + reach, abs(step))
        parts.append((part, slice(None, None, -1 if step < 0 else 1)))
    made = table[parts[0][0], parts[1][0]][parts[0][1], parts[1][1]]
    return made.T if turned else made


def new_field(layout):
    """A field or array with a gradient, and the index of its first element."""
    if layout == "array":
        return ds.ndarray(ds.f64, (N, M), needs_grad=True), (0, 0)
    if layout in ("field", "order", "offset"):
        origin = (-2, 5) if layout == "offset" else (0, 0)
        order = "ji" if layout == "order" else None
        return ds.field(ds.f64, (N, M), needs_grad=True, order=order, offset=origin), origin
    f = ds.field(ds.f64, needs_grad=True)
    node = (
        ds.root.dense(ds.i, N).dense(ds.j, M) if layout == "tree" else ds.root.dense(ds.ij, (N, M))
    )
    node.place(f) if layout == "tree" else node.place(f, f.grad)
    return f, (0, 0)


class Model:
    """The steps in NumPy, each from the last result to a new one."""

    def __init__(self, table, kept):
        self.table = table.copy()
        self.kept = kept  # the table before each step

    def run(self, steps, p):
        """Return the loss of these parameters."""
        x = p
        i, j = np.indices((N, M))
        for (op, _, a, b, s, t), table in zip(steps, self.kept, strict=True):
            c = view(table, a).astype(float)
            if op == "weigh":
                x = 0.5 * x * c + x * x
            elif op == "clamp":
                at = lambda y, i, j: y[np.clip(i, 0, N - 1), np.clip(j, 0, M - 1)]  # noqa: E731
                x = 0.5 * at(x, i + s, j - t) * at(x, i, j + t) + at(c, i - s, j + s)
            elif op == "scatter":
                out = np.zeros((N, M))
                np.add.at(out, (np.clip(2 * i + s, 0, N - 1), np.clip(j - t, 0, M - 1)), x * x)
                x = out
        return float(np.sum(x * (1 + i - 0.5 * j)))


def overlapping(a, b):
    """Whether two views share elements and are not the same."""
    return np.shares_memory(a, b) and (
        a.__array_interface__["data"] != b.__array_interface__["data"] or a.strides != b.strides
    )


def verdict(text, seed):
    """Run a program: "right", or what is wrong."""
    try:
        first, *rest = text.split("\n")
        dtype = np.dtype(first.split()[1])
        steps = [(*w[:2], *map(int, w[2:])) for w in map(str.split, filter(None, rest))]
    except (ValueError, IndexError, TypeError):
        return "invalid"
    ds.init(arch=ds.python if seed % 5 == 0 else ds.cpu, debug=seed % 3 == 0)
    space = {"ds": ds}
    source.make(KERNELS, space)
    k = SimpleNamespace(**space)
    random = np.random.default_rng(seed)
    table = random.integers(0, 4, (12, 12)).astype(dtype)
    weights = ds.field(ds.f64, (N, M))
    loss = ds.field(ds.f64, (), needs_grad=True)
    p, _ = new_field("array")
    p.from_numpy(random.uniform(-1, 1, (N, M)))
    i, j = np.indices((N, M))
    weights.from_numpy(1 + i - 0.5 * j)

    @ds.kernel
    def total(f: ds.types.ndarray()):
        for i, j in f:
            loss[None] += weights[i, j] * f[i, j]

    kept = []
    x = p
    with ds.Tape() as tape:
        for step in steps:
            kept.append(table.copy())
            found = run(k, x, table, step)
            if isinstance(found, str):
                return found
            x = found
        total(x)
    tape.backward(loss)
    model = Model(table, kept)
    start = p.to_numpy()
    want = model.run(steps, start)
    if not np.isclose(loss[None], want, rtol=1e-9, atol=1e-9):
        return f"value: {loss[None]} in place of {want}"
    for at in itertools.product(range(N), range(M)):
        ends = []
        for h in (1e-6, -1e-6):
            moved = start.copy()
            moved[at] += h
            ends.append(model.run(steps, moved))
        slope = (ends[0] - ends[1]) / 2e-6
        if not np.isclose(p.grad[at], slope, rtol=1e-4, atol=1e-4 * max(1.0, abs(want))):
            return f"gradient: {p.grad[at]} in place of {slope} at {at}"
    return "right"


def run(k, x, table, step):
    """Run one step; returns the field with the result, or what is wrong."""
    op, layout, a, b, s, t = step
    one, two = view(table, a), view(table, b)
    before = table.copy()
    if op in ("double", "add"):
        args = (one,) if op == "double" else (one, two)
        want = before.copy()
        target = view(want, a)
        target += target.copy() if op == "double" else view(before, b)
        try:
            (k.double if op == "double" else k.add)(*args)
        except DiffsimError as error:
            if op == "double" or not overlapping(one, two):
                return f"refused: {str(error).splitlines()[0]}"
            return x if np.array_equal(table, before) else "table changed by a refused launch"
        if op == "add" and overlapping(one, two):
            return "overlap not refused"
        return x if np.array_equal(table, want) else f"table: wrong after {op}"
    if op == "copy":
        made = copy.deepcopy(x)
        return made if made.address != x.address else "copy: the same memory"
    out, origin = new_field("array" if op != "weigh" else layout)
    if op == "weigh" and layout != "array":
        k.weigh_fields(x, one, out, 0.5, origin)
        made, _ = new_field("array")
        k.unload(out, made, origin)
        return made
    if op == "weigh":
        k.weigh(x, one, out, 0.5)
    elif op == "clamp":
        k.clamp(x, one, out, 0.5, s, t)
    else:
        k.scatter(x, out, s, t)
    return out if np.array_equal(table, before) else "table: changed by a read"
