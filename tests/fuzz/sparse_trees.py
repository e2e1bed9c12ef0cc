"""Random programs on sparse layout trees, against a model in NumPy: values, active cells and gradients.

A program is a tree and steps, each a kernel or a statement of Python. The model has dense arrays and a mask
of the active elements. Gradients are those of the steps run again until the active set stays as it is; they
are compared with differences. A tape during which the set still changes must refuse, or be right.
"""

import copy
import math
import pickle
import tempfile
from random import Random

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError
from tests.support import source

TREES = (
    "pointer(ds.ij, (4, 3)).dense(ds.ij, (2, 4))",
    "pointer(ds.ij, (4, 4)).bitmasked(ds.ij, (2, 2))",
    "bitmasked(ds.ij, (8, 6))",
    "dense(ds.ij, (2, 2)).pointer(ds.ij, (2, 3)).dense(ds.ij, (3, 2))",
    "pointer(ds.ij, 2).pointer(ds.ij, (3, 2)).dense(ds.ij, 2)",
    "hash(ds.i, 6).dense(ds.j, 8)",
    "pointer(ds.j, 5).dense(ds.i, 6)",
    "pointer(ds.i, 4).bitmasked(ds.j, 7)",
    "pointer(ds.ij, (3, 4)).dense(ds.i, 2).bitmasked(ds.j, 3)",
    "dense(ds.i, 5).dynamic(ds.j, 9, chunk_size=4)",
    "pointer(ds.i, 3).dense(ds.i, 2).dynamic(ds.j, 8, chunk_size=3)",
    "pointer(ds.ij, (3, 3)).dense(ds.ij, 2)",
)
STEPS = "scatter loop shift gather total cells clear write append fill keep".split()
WEIGHTS = (4, 5, 3, 2, 2, 1, 1, 1, 1, 1, 2)


def make(seed):
    """The text of a program: its tree, then a line for each step."""
    r = Random(seed)
    lines = [r.choice(TREES), "scatter x 0"]
    for k in range(r.randint(2, 6)):
        (op,) = r.choices(STEPS, WEIGHTS)
        lines.append(f"{op} {r.choice('xy')} {k + 1}")
    return "\n".join([*lines, "total x 98", "total y 99"]) + "\n"


KERNELS = """
@ds.kernel
def scatter(f: ds.template(), c: ds.f64):
    for k in range(K):
        f[at[k, 0], at[k, 1]] += c * p[k] * p[k]

@ds.kernel
def loop(f: ds.template(), g: ds.template(), c: ds.f64):
    for i, j in f:
        g[i, j] = ds.sin(f[i, j]) + c * f[i, ds.max(j - 1, 0)] * p[0] + 0.25 * i

@ds.kernel
def shift(f: ds.template(), g: ds.template(), c: ds.f64):
    for I in ds.grouped(f):
        g[ds.min(I[0] + 1, n - 1), I[1]] += c * f[I] + 0.125

@ds.kernel
def gather(f: ds.template(), c: ds.f64):
    for i, j in z:
        z[i, j] += c * f[i, j] * f[i, j] + f[ds.max(i - 1, 0), j]

@ds.kernel
def total(f: ds.template(), c: ds.f64):
    for i, j in f:
        loss[None] += (c + i - 0.5 * j) * f[i, j] + f[i, j] * f[i, j]

@ds.kernel
def count(f: ds.template()):
    for i, j in f:
        number[None] += 1

@ds.kernel
def cells():
    for I in ds.grouped(node):
        number[None] += 1000

@ds.kernel
def clear(k: ds.i32):
    ds.deactivate(node, CELL)

@ds.kernel
def append(c: ds.f64):
    for k in range(3):
        x[2].append(c)
"""


class _Device:
    """The program on diffsim."""

    def __init__(self, tree, points):
        self.x, self.y = (ds.field(ds.f64, name=k, needs_grad=True) for k in "xy")
        *above, last = tree.split(").")
        node = eval("ds.root." + ").".join([*above, last]), {"ds": ds})
        node.place(self.x, self.y)
        # The outermost sparse node, whose cells are cleared.
        self.node = node
        while self.node.above.cells is not None:
            self.node = self.node.above
        self.n, self.m = self.x.shape
        self.z = ds.field(ds.f64, shape=self.x.shape, needs_grad=True)
        self.p = ds.field(ds.f64, shape=len(points), needs_grad=True)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)
        self.number = ds.field(ds.i32, shape=())
        self.at = ds.field(ds.i32, shape=(len(points), 2))
        self.at.from_numpy(points)
        self.is_list = node.kind == "dynamic"
        last = self.node.kind == "dynamic"
        self.cell = [k % s for k, s in zip((1, 1), self.node.shape, strict=False)]
        if last:
            self.cell = self.cell[:1]
        space = {**vars(self), "ds": ds, "K": len(points)}
        text = KERNELS.replace("CELL", str(self.cell))
        if not self.is_list:
            text = text[: text.index("@ds.kernel\ndef append")]
        source.make(text, space)
        self.space = space

    def run(self, op, name, k):
        f, g = (self.x, self.y) if name == "x" else (self.y, self.x)
        call, c = self.space.get(op), 0.1 * k + 0.3
        if op in ("scatter", "gather", "total"):
            call(f, c)
        elif op in ("loop", "shift"):
            call(f, g, c)
        elif op == "cells":
            call()
        elif op == "clear":
            call(k)
        elif op == "append" and self.is_list:
            call(c)
        elif op == "write":
            f[k % self.n, k % self.m] = c
        elif op == "fill":
            f.fill(c)
        elif op == "keep":
            self.keep(k)

    def keep(self, k):
        """Write x and y to a file, change both and their active cells, and read the file; or copy them."""
        x, y = self.x, self.y
        before = [f.to_numpy() for f in (x, y, x.grad)]
        if k % 3:
            with tempfile.TemporaryDirectory() as folder:
                ds.save(f"{folder}/kept.npz", x, y, grad=x.grad)
                if k % 3 == 1:
                    self.node.deactivate_all()
                for f, i, j in ((x, 0, 0), (y, self.n - 1, k % self.m), (x.grad, 0, 0)):
                    f[i, j] = 7.0
                ds.load(f"{folder}/kept.npz", x, y, grad=x.grad)
            found = [x, y, x.grad]
        else:
            way = pickle.loads(pickle.dumps([x, y])) if k % 2 else copy.deepcopy([x, y])
            counts = [self.counted(f) for f in (x, y, *way)]
            assert len(set(counts)) == 1, f"active cells of copies: {counts}"
            self.number[None] = 0
            found = [*way, way[0].grad]
            assert way[0].tree[0] is way[1].tree[0] is not x.tree[0], "the copies' trees"
            way[0][0, 0] = 7.0  # of the copy alone
            way[0].from_numpy(before[0])
        for f, array in zip(found, before, strict=True):
            assert np.array_equal(f.to_numpy(), array), "what is read is not what was written"

    def counted(self, f):
        self.number[None] = 0
        self.space["count"](f)
        return self.number[None]


class _Model:
    """The program in NumPy."""

    def __init__(self, device, points):
        self.of, self.at = device, points
        shape = device.x.shape
        self.masks = []  # of the sparse levels, outermost first: elements whose cells are active
        cells, node = device.x.tree[0], device.x.node
        for c in reversed(list(cells.chain())):
            place = device.x.tree[1]
            factor = place.factors(c.level)
            self.masks.append((np.zeros(shape, bool), factor, c.level.list_axis, c.level.chunk))
        assert node is not None
        self.start()

    def start(self):
        shape = self.of.x.shape
        self.x, self.y, self.z = (np.zeros(shape) for _ in "xyz")
        self.loss = 0.0

    @property
    def active(self):
        return self.masks[-1][0]

    def activate(self, i, j):
        for mask, (a, b), axis, _ in self.masks:
            if axis is None:
                mask[i // a * a : i // a * a + a, j // b * b : j // b * b + b] = True
            else:  # all lists are along the last axis here
                mask[i, : j + 1] = True

    def blocks(self):
        """How many cells of the outermost sparse level are active (elements of lists)."""
        mask, (a, b), axis, _ = self.masks[0]
        return mask.sum() if axis is not None else mask[::a, ::b].sum()

    def run(self, op, name, k, p):
        f, g = (self.x, self.y) if name == "x" else (self.y, self.x)
        c, (n, m) = 0.1 * k + 0.3, f.shape
        lanes = list(zip(*np.nonzero(self.active), strict=True))
        if op == "scatter":
            for (i, j), v in zip(self.at, p, strict=True):
                f[i, j] += c * v * v
                self.activate(i, j)
        elif op == "loop":
            for i, j in lanes:
                g[i, j] = np.sin(f[i, j]) + c * f[i, max(j - 1, 0)] * p[0] + 0.25 * i
        elif op == "shift":
            for i, j in lanes:
                g[min(i + 1, n - 1), j] += c * f[i, j] + 0.125
                self.activate(min(i + 1, n - 1), j)
        elif op == "gather":
            self.z += c * f * f + f[np.maximum(np.arange(n) - 1, 0)]
        elif op == "total":
            for i, j in lanes:
                self.loss += (c + i - 0.5 * j) * f[i, j] + f[i, j] * f[i, j]
        elif op == "clear":
            self.clear()
        elif op == "append" and self.of.is_list:
            for _ in range(3):
                j = int(self.active[2].sum())
                if j < m:
                    self.x[2, j] = c
                    self.activate(2, j)
        elif op == "write":
            f[k % n, k % m] = c
            self.activate(k % n, k % m)
        elif op == "fill":
            f[self.active] = c
        # "keep" leaves everything as it was

    def clear(self):
        _, (a, b), axis, _ = self.masks[0]
        level, cell = self.of.node.cells.level, self.of.cell
        index = [slice(None)] * 2
        numbers = [k for k in level.axes if axis is None or k != level.axes[axis]]
        for number, at in zip(numbers, cell, strict=True):
            size = (a, b)[number]
            index[number] = slice(at * size, (at + 1) * size)
        for array in (self.x, self.y, *(mask for mask, *_ in self.masks)):
            array[tuple(index)] = 0


def verdict(text, seed, **options):
    """ "right", "refused" or "invalid"; or what is wrong."""
    r = Random(seed)
    tree, *steps = text.splitlines()
    try:
        steps = [(op, name, int(k)) for op, name, k in (s.split() for s in steps)]
    except ValueError:
        return "invalid"
    if tree not in TREES:
        return "invalid"
    # A list that is full is an error with debug=True, and may be full here.
    options["debug"] = options.get("debug", False) and "dynamic" not in tree
    ds.init(**{"arch": ds.cpu, "random_seed": 1, **options})
    rng = np.random.default_rng(seed)
    sizes = eval("ds.root." + tree, {"ds": ds}).shape
    points = np.stack([rng.integers(0, s, 4) for s in sizes], 1).astype(np.int32)
    p = rng.uniform(0.5, 1.5, 4)
    device = _Device(tree, points)
    # Lanes that ask one by one whether they are active see what others activate meanwhile.
    asks = "bitmasked" in tree or "dynamic" in tree
    first = [s for s in steps if not (asks and s[0] == "shift")]
    wrong = _values(device, _Model(device, points), first, p)
    return wrong or _gradients(device, steps, p, r)


def _values(device, model, steps, p):
    device.p.from_numpy(p)
    for k, (op, name, number) in enumerate(steps):
        device.number[None] = 0
        device.run(op, name, number)
        found = device.number[None]
        if op == "cells" and found != 1000 * model.blocks():
            return f"cells: step {k}: {found // 1000}, not {model.blocks()}"
        model.run(op, name, number, p)
        for which in "xyz":
            have, want = getattr(device, which).to_numpy(), getattr(model, which)
            if not np.allclose(have, want, rtol=1e-10, atol=1e-10):
                return f"values: step {k} ({op}): {which}"
        if device.counted(device.x) != model.active.sum():
            return f"active: step {k} ({op})"
    if not math.isclose(device.loss[None], model.loss, rel_tol=1e-9, abs_tol=1e-9):
        return "values: loss"
    return None


def _gradients(device, steps, p, r):
    steps = [s for s in steps if s[0] not in ("clear", "append", "cells", "keep")]

    def run(q):
        for f in (device.x, device.y, device.z, device.loss):
            f.fill(0)
        device.p.from_numpy(q)
        for s in steps:
            device.run(*s)
        return device.loss[None]

    how = r.choice(["save", "save", "refuse"])
    settled = r.random() < 0.8
    before = -1
    while settled and before != (before := device.counted(device.x)):
        run(p)
    grad = None
    # A tape that records the same again reuses what it can, from its second recording on.
    for turn in range(r.choice([1, 1, 4])):
        for f in (device.x, device.y, device.z, device.loss):
            f.fill(0)
        device.p.from_numpy(p)
        device.p.grad.fill(0)
        try:
            with ds.Tape(device.loss, in_place=how):
                for s in steps:
                    device.run(*s)
        except AutodiffError as error:
            return f"recording {turn}: {error}" if turn and settled else "refused"
        found = device.p.grad.to_numpy()
        if turn and settled and not np.array_equal(found, grad):
            return f"recording {turn}: {found}, not {grad}"
        grad = found
    wrong = settled and _rollout(device, steps, p, grad, r)
    if wrong:
        return wrong
    # The set must be as it was in the record for differences to be of the same program.
    if run(p) != run(p) and not settled:
        return "right"
    h = 1e-6
    for k in range(len(p)):
        e = h * np.eye(len(p))[k]
        want = (run(p + e) - run(p - e)) / (2 * h)
        if abs(grad[k] - want) > 1e-5 * max(1, abs(want)):
            return f"gradient: of p[{k}] with {how}: {grad[k]}, not {want}"
    return "right"


def _rollout(device, steps, p, grad, r):
    """The same steps, each a step of a rollout with checkpoints: its gradient must be that of the tape."""
    for f in (device.x, device.y, device.z, device.loss):
        f.fill(0)
    device.p.grad.fill(0)
    state = [device.x, device.y, device.z]
    schedule = r.choice(["mixed", "binomial", "equidistant"])
    try:
        with ds.Tape(device.loss):
            ds.ad.checkpoint(
                lambda t: device.run(*steps[t]),
                len(steps),
                state=state,
                snapshots=r.randint(2, 4),
                schedule=schedule,
            )
    except AutodiffError:
        return None
    found = device.p.grad.to_numpy()
    if not np.allclose(found, grad, rtol=1e-9, atol=1e-9):
        return f"rollout: {schedule}: {found}, not {grad}"
    return None
