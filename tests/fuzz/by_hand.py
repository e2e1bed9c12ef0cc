"""Random programs of launches and `kernel.grad` by hand, and of Python between launches on a tape, as text.

Three numbers `x`, `y` and the loss `l`. A program by hand launches kernels (some twice, with what they read
changed in between), then calls their gradients, last launch first, now and then several times; in some of
them the kernels are methods, or are given the fields. A program on a tape takes numbers through Python and
back, or sets a gradient in its block. The reference is plain Python that multiplies by the derivatives of
each line. Trips that nobody can see (`y[None] = math.sin(x[None])` where x leads to the loss in another way
too: docs/python-on-a-tape.md) are left out.
"""

from __future__ import annotations

import linecache
import math
import re
import textwrap
from random import Random

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError

KERNELS = {
    "square": ("l[None] += x[None] ** 2", lambda v: {"l": {"l": 1, "x": 2 * v["x"]}}),
    "scale": ("x[None] *= 1.5", lambda v: {"x": {"x": 1.5}}),
    "sine": ("y[None] = ds.sin(x[None])", lambda v: {"y": {"x": math.cos(v["x"])}}),
    "product": (
        "l[None] += x[None] * y[None]",
        lambda v: {"l": {"l": 1, "x": v["y"], "y": v["x"]}},
    ),
    "shift": ("x[None] += 0.25 * y[None]", lambda v: {"x": {"x": 1, "y": 0.25}}),
}
TRIPS = (
    "y.from_numpy(np.sin(x.to_numpy()))",
    "l[None] = math.sqrt(1.0 + l[None] ** 2)",
    "l[None] = np.sqrt(1.0 + l[None])",
    "x.to_numpy()",
    "print(end=f'{x[None]:.0f}'[:0])",
    "x[None] = 0.75",
    "with ds.ad.no_grad(): x[None] = 0.45",
    "y.grad[None] = 2.0",
    "y.grad.fill(0.0)",
)


def make(seed):
    """The program of a number: what it does, line by line."""
    r = Random(seed)
    names = [r.choice(list(KERNELS)) for _ in range(r.randint(1, 6))]
    if r.random() < 0.5:
        lines = [f"{name}()" for name in names]
        back = []
        for name in reversed(names):
            back += [f"{name}.grad()"] * r.choices((1, 2, 3), (8, 1, 1))[0]
        for _ in range(r.random() < 0.2):
            back.insert(r.randrange(len(back) + 1), r.choice(["x[None] = 0.5", *lines]))
        head = "# by hand" + r.choice(["", ", methods", ", arrays", ", templates"])
        return "\n".join([head, *lines, *back]) + "\n"
    lines = [f"{name}()" for name in names]
    for _ in range(r.randint(1, 2)):
        lines.insert(r.randrange(len(lines) + 1), r.choice(TRIPS))
    return "\n".join(["# on a tape", *lines]) + "\n"


class _Given:
    """A kernel that is given its fields."""

    def __init__(self, kernel, fields):
        self.kernel, self.fields = kernel, fields

    def __call__(self):
        self.kernel(*self.fields)

    def grad(self):
        self.kernel.grad(*self.fields)


def _space(head):
    space = {"ds": ds, "math": math, "np": np}
    for name in "xyl":
        space[name] = ds.field(ds.f64, shape=(), needs_grad=True, name=name)
    text = "".join(f"@ds.kernel\ndef {n}():\n    {body}\n" for n, (body, _) in KERNELS.items())
    taken = {"arrays": "ds.types.ndarray()", "templates": "ds.template()"}
    for kind in [k for k in taken if k in head]:
        text = text.replace("()", f"(x: {taken[kind]}, y: {taken[kind]}, l: {taken[kind]})")
    if "methods" in head:
        text = re.sub(r"\b([xyl])\[", r"self.\1[", text.replace("()", "(self)"))
        text = "class Methods:\n" + textwrap.indent(text, "    ")
    linecache.cache["<by hand>"] = (len(text), None, text.splitlines(True), "<by hand>")
    exec(compile(text, "<by hand>", "exec"), space)
    if "methods" in head:
        state = space["Methods"]()
        state.x, state.y, state.l = (space[name] for name in "xyl")
        space |= {name: getattr(state, name) for name in KERNELS}
    if any(k in head for k in taken):
        fields = [space[name] for name in "xyl"]
        space |= {name: _Given(space[name], fields) for name in KERNELS}
    space["x"][None], space["y"][None] = 0.6, -0.3
    return space


def _run(line, v):
    """A line in plain Python; returns the derivatives of what it sets."""
    name = line.partition("(")[0]
    if name in KERNELS:
        body, rule = KERNELS[name]
        slopes = rule(dict(v))
        exec(body.replace("[None]", "").replace("ds.", "math."), {"math": math}, v)
        return slopes
    if "x[None] =" in line:
        v["x"] = float(line.partition("=")[2])
        return {"x": {}}
    if line.startswith("y") and "sin" in line:
        v["y"], slope = math.sin(v["x"]), math.cos(v["x"])
        return {"y": {"x": slope}}
    if line.startswith("l[None] = math"):
        slope = v["l"] / math.hypot(1.0, v["l"])
        v["l"] = math.hypot(1.0, v["l"])
        return {"l": {"l": slope}}
    if line.startswith("l[None] = np"):
        v["l"] = math.sqrt(1.0 + v["l"])
        return {"l": {"l": 0.5 / v["l"]}}
    return {}


def _pull(g, slopes):
    """Multiply gradients by the derivatives of a line."""
    taken = {target: g[target] for target in slopes}
    for target in slopes:
        g[target] = 0.0
    for target, row in slopes.items():
        for source, slope in row.items():
            g[source] += slope * taken[target]


def verdict(text):
    """Run a program: "right", "refused", or what is wrong."""
    ds.init(default_fp=ds.f64)
    lines = text.splitlines()
    space = _space(lines[0])
    v = {"x": 0.6, "y": -0.3, "l": 0.0}
    try:
        expected = (
            _on_a_tape(space, lines[1:], v) if "tape" in lines[0] else _by_hand(space, lines[1:], v)
        )
    except AutodiffError:
        return "refused"
    found = {name: space[name].grad[None] for name in "xy"}
    for name in "xy":
        if not any(abs(found[name] - g[name]) <= 1e-9 * max(1.0, abs(g[name])) for g in expected):
            return f"gradient of {name}: {found[name]}, right: {[g[name] for g in expected]}"
    return "right"


def _on_a_tape(space, lines, v):
    with ds.Tape(space["l"]):
        for line in lines:
            exec(line, space)
    done = [_run(line, v) for line in lines]
    first = next(
        (k for k, line in enumerate(lines) if line.partition("(")[0] in KERNELS), len(lines)
    )
    sets = [k for k, line in enumerate(lines[:first]) if "x[None] =" in line]
    for k in sets:  # what Python sets before all launches is an input; the last one counts
        if k != sets[-1] or "no_grad" not in lines[k]:
            done[k] = {}
    g = {"x": 0.0, "y": 0.0, "l": 1.0}
    cleared = False
    for line, slopes in zip(reversed(lines), reversed(done), strict=True):
        if line.startswith("y.grad[None]") and not cleared:
            g["y"] += 2.0
        cleared |= line.startswith("y.grad")
        _pull(g, slopes)
    return [g]


def _by_hand(space, lines, v):
    """Each call belongs to the last launch, or to one before it for each call before: they have to agree."""
    launched, g = [], {"x": 0.0, "y": 0.0, "l": 1.0}
    space["l"].grad[None] = 1.0
    ends, taken = [g], {}
    for line in lines:
        exec(line, space)
        name = line.partition(".grad")[0] if ".grad" in line else None
        if name is None:
            launched.append((line.partition("(")[0], _run(line, v)))
            taken.pop(launched[-1][0], None)
            continue
        mine = [slopes for n, slopes in launched if n == name]
        followers = []
        for before in ends:
            for slopes in mine[-1 - taken.get(name, 0) :] if mine else [KERNELS[name][1](v)]:
                followers.append(dict(before))
                _pull(followers[-1], slopes)
        taken[name] = taken.get(name, 0) + 1
        first = followers[0]
        if any(abs(f[k] - first[k]) > 1e-9 for f in followers for k in f):
            return [{"x": math.nan, "y": math.nan, "l": math.nan}]
        ends = [first]
    return ends
