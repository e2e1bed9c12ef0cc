"""Random programs with components of vector and matrix fields under names of their own (`get_scalar_field`).

A component shares the memory of its field, as a view of an array shares that of the array: Python runs the
same text on NumPy's arrays and views. Each kernel reaches each memory in one of three ways, by any of its
names: elements of its own, reads of any element, or additions to any element. So iterations do not meet.
"""

import re
from random import Random
from types import SimpleNamespace

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError
from tests.support import source

N = 3
NAMES = {  # the names of each memory, with what makes a scalar of an element
    "v": ("v[{}][0]", "v[{}][1]", "v0[{}]", "v1[{}]", "v[{}].y"),
    "A": ("A[{}][0, 1]", "A[{}][1, 0]", "a01[{}]", "a10[{}]"),
    "w": ("w[{}]",),
}
LOOPS = ("range(N)", "v", "v0", "a10", "w", "ds.ndrange(N)")
WAYS = ("save", "refuse", "hand")


class _Maker:
    def __init__(self, seed):
        self.r = Random(seed)

    def scalar(self, name, index):
        return self.r.choice(NAMES[name]).format(index)

    def index(self):
        return self.r.choice(["i", "(i + 1) % N", "0", "N - 1 - i"])

    def value(self, modes, depth=0):
        r = self.r
        kind = r.random()
        readable = [k for k, mode in modes.items() if mode != "add"]
        if kind < 0.4 and readable:
            name = r.choice(readable)
            return self.scalar(name, "i" if modes[name] == "own" else self.index())
        if kind < 0.6 or depth > 2:
            return r.choice(["p[i]", "p[(i + 2) % N]", "0.5", "1.25", "s"])
        one, other = self.value(modes, depth + 1), self.value(modes, depth + 1)
        if kind < 0.7:
            return f"ds.sin({one})"
        return f"({one} {r.choice('+-*')} {other})"

    def statement(self, modes):
        r = self.r
        writable = [k for k, mode in modes.items() if mode != "read"]
        name = r.choice(writable)
        own = modes[name] == "own"
        index = "i" if own else self.index()
        op = r.choice(["=", "+=", "-="] if own else ["+=", "-="])
        if r.random() < 0.15:
            return f"s = {self.value(modes)}"
        if name == "v" and r.random() < 0.3:
            both = f"{self.value(modes)}, {self.value(modes)}"
            return f"v[{index}] {op} ds.Vector([{both}])"
        if name == "A" and own and r.random() < 0.3:
            return f"A[i] = {r.choice(['0.5 * A[i]', 'A[i] * s', 'A[i] @ A[i]', 'A[i].transpose() * p[i]'])}"
        if name == "v" and own and r.random() < 0.2:
            return "v[i] = A[i] @ v[i]" if modes["A"] != "add" else "v[i] = 0.5 * v[i]"
        return f"{self.scalar(name, index)} {op} {self.value(modes)}"

    def kernel(self, k):
        r = self.r
        modes = {name: r.choice(["own", "own", "read", "add"]) for name in NAMES}
        if all(m == "read" for m in modes.values()):
            modes["v"] = "own"
        lines = [
            f"@ds.kernel\ndef k{k}():",
            f"    for i in {r.choice(LOOPS)}:",
            "        s = 0.75 * p[i]",
        ]
        for _ in range(r.randint(1, 4)):
            lead = "        "
            form = r.random()
            if form < 0.15:
                lines.append(f"{lead}if {self.value(modes)} > 0.4:")
                lead += "    "
            elif form < 0.3:
                lines.append(f"{lead}for _ in range({r.randint(0, 3)}):")
                lead += "    "
            lines.append(lead + self.statement(modes))
        return "\n".join(lines) + "\n"


END = """@ds.kernel
def end():
    for i in w:
        loss[None] += v0[i] * (i + 1.5) + v[i][1] * v1[i] + a01[i] - A[i][1, 0] * w[i] + A[i][0, 0]
"""


def make(seed):
    """The text of a program: its kernels, launched in order."""
    maker = _Maker(seed)
    return "\n".join(maker.kernel(k) for k in range(maker.r.randint(1, 4)))


class _Array(np.ndarray):
    """An array whose elements are copies, with the attributes of vectors that programs use."""

    y = property(lambda self: self[1], lambda self, value: self.__setitem__(1, value))

    def transpose(self):
        return self.T


def _in_numpy(text, p, start):
    """The arrays and the loss that Python computes."""
    space = {k: start[k].copy().view(_Array) for k in "vAw"}
    v, a = space["v"], space["A"]
    space |= {"v0": v[:, 0], "v1": v[:, 1], "a01": a[:, 0, 1], "a10": a[:, 1, 0]}
    space |= {"p": p, "N": N, "loss": {None: 0.0}, "ds": _STUB}
    exec(re.sub(r"for i in .*:", "for i in range(N):", text + "\n" + END), space)
    for name in _kernels(text):
        space[name]()
    return space


_STUB = SimpleNamespace(kernel=lambda f: f, sin=np.sin, Vector=np.array)


def _kernels(text):
    return [*re.findall(r"def (k\d+)", text), "end"]


def verdict(text, seed, arch=None, **options):
    """ "right", "refused" or "invalid"; or what is wrong."""
    r = Random(seed)
    rng = np.random.default_rng(seed)
    start = {
        "v": rng.uniform(-1, 1, (N, 2)), "A": rng.uniform(-1, 1, (N, 2, 2)), "w": rng.uniform(-1, 1, N)
    }  # fmt: skip
    p = rng.uniform(0.5, 1.5, N)
    try:
        want = _in_numpy(text, p, start)
    except (SyntaxError, NameError, KeyError, TypeError):
        return "invalid"
    how = r.choice(WAYS)
    options = {"debug": r.random() < 0.2, "rules": r.choice(["enforced", "lifted"]), **options}
    ds.init(arch=arch or ds.cpu, default_fp=ds.f64, **options)
    space = _fields(Random(seed + 1))
    source.make(text + "\n" + END, space)
    for key, array in start.items():
        space[key].from_numpy(array)
    space["v0"][0] = start["v"][0, 0]  # Python writes through it, too
    space["p"].from_numpy(p)
    try:
        _differentiated(space, _kernels(text), how)
    except AutodiffError:
        return "refused"
    for key in ("v", "A", "w", "v0", "v1", "a01", "a10"):
        if not np.allclose(space[key].to_numpy(), want[key], rtol=1e-9, atol=1e-9):
            return f"values: {key} with {how}"
    if not np.isclose(space["loss"][None], want["loss"][None], rtol=1e-9):
        return "values: loss"
    if not np.array_equal(space["v1"].grad.to_numpy(), space["v"].grad.to_numpy()[:, 1]):
        return "gradient: of the component"
    return _compared(text, p, start, space["p"].grad.to_numpy(), how)


def _fields(r):
    soa = {"layout": ds.Layout.SOA} if r.random() < 0.3 else {}
    v = ds.Vector.field(2, ds.f64, shape=N, needs_grad=True, name="v", **soa)
    a = ds.Matrix.field(2, 2, ds.f64, shape=N, needs_grad=True, name="A", **soa)
    w, p = (ds.field(ds.f64, shape=N, needs_grad=True, name=k) for k in "wp")
    loss = ds.field(ds.f64, shape=(), needs_grad=True, name="loss")
    found = {"v": v, "A": a, "w": w, "p": p, "loss": loss, "N": N, "ds": ds}
    found |= {"v0": v.get_scalar_field(0), "v1": v.get_scalar_field(1)}
    return found | {"a01": a.get_scalar_field(0, 1), "a10": a.get_scalar_field(1, 0)}


def _differentiated(space, names, how):
    if how == "hand":
        for name in names:
            space[name]()
        space["loss"].grad[None] = 1.0
        for name in reversed(names):
            space[name].grad()
        return
    with ds.Tape(space["loss"], in_place=how):
        for name in names:
            space[name]()


def _compared(text, p, start, grad, how):
    h = 1e-6
    for k in range(N):
        e = h * np.eye(N)[k]
        low, mid, high = (_in_numpy(text, q, start)["loss"][None] for q in (p - e, p, p + e))
        want = (high - low) / (2 * h)
        if abs(high - 2 * mid + low) > 1e-3 * h * (1 + abs(want)):
            continue  # a branch changes between the points
        if abs(grad[k] - want) > 1e-5 * max(1, abs(want)):
            return f"gradient: of p[{k}] with {how}: {grad[k]}, not {want}"
    return "right"
