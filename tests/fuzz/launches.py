"""Random loops whose accesses meet or not as arguments and index fields say.

The kernel's text is also run by Python, with fields that note which iteration reads and writes what. So it is
known whether a launch has a gradient: a program without a conflict must not be refused, one with a race must
be, and gradients that are given must be those of central differences. Native code compares the accesses of
all launches here, and in half of the programs there were launches with other index fields before.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError, GlobalDataAccessError
from diffsim.runtime.kernels import launch_checks
from diffsim.runtime.numbering import meetings
from tests.support.source import make as compiled

LINE, ROWS, LANES, LARGEST = 24, 6, 6, 16
"""Elements of x and y, rows and columns of z, iterations of loops; p and q hold numbers below the last."""


class Maker:
    """Writes a kernel of one or two loops."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.lines = []

    def pick(self, *things):
        return self.r.choice(things)

    def program(self):
        self.lines = ["@ds.kernel", "def run(a: ds.i32, b: ds.i32):"]
        for _ in range(self.pick(1, 1, 2)):
            self.loop()
        return "\n".join(self.lines) + "\n"

    def loop(self):
        if self.r.random() < 0.15:
            self.lines += [
                f"    for i in range({LANES}):",
                f"        p[i] = (i * {self.pick('a', 'b', '5')} + b) % {LARGEST}",
            ]
            return
        self.names = self.pick(["i"], ["i"], ["i", "j"])
        if len(self.names) == 1:
            self.lines.append(f"    for i in range({self.pick(LANES, LANES, 'a', 'a + b')}):")
        else:
            self.lines.append(f"    for i, j in ds.ndrange({self.pick('2', 'a')}, 3):")
        depth = 2
        if self.r.random() < 0.25:
            self.lines.append(
                f"        if (i + {self.pick('a', 'b', 'q[i]')}) % 2 == {self.pick(0, 1)}:"
            )
            depth = 3
        elif self.r.random() < 0.2:
            self.lines.append(f"        for k in range({self.pick('2', 'a')}):")
            self.names = [*self.names, "k"]
            depth = 3
        for _ in range(self.pick(1, 1, 2)):
            self.statement("    " * depth)

    def statement(self, indent):
        target, source, other = (self.pick("x", "y", "z") for _ in range(3))
        value = self.pick(
            f"0.7 * {source}[{self.index(source)}] ** 2",
            f"ds.sin({source}[{self.index(source)}]) * {other}[{self.index(other)}]",
            f"0.5 * {source}[{self.index(source)}]",
        )
        self.lines.append(f"{indent}{target}[{self.index(target)}] = {value}")

    def index(self, field):
        if field == "z":
            return f"{self.place(ROWS)}, {self.place(ROWS)}"
        return self.place(LINE)

    def place(self, size):
        i, c = self.pick(*self.names), self.pick("a", "b", "1", "2")
        small = [i, c, f"{i} % 3 + a", f"(2 * {i} + b) % {ROWS}", f"p[{i}] % {ROWS}", "a", "b"]
        if size == ROWS:
            return self.pick(*small)
        wide = [
            f"{i} + {c}",
            f"a * {i} + b",
            f"2 * {i} + {c}",
            f"3 * {i} + {self.pick(*self.names)}",
            f"p[{i}]",
            f"p[{i}] + b",
            f"p[q[{i}] % {LANES}]",
            f"({i} * {i} + b) % {LINE}",
            f"(5 * {i} + a) % {LINE}",
        ]
        return self.pick(*wide, *wide, *small)


def make(seed):
    """The text of a kernel."""
    return Maker(seed).program()


class Noted:
    """A field in Python: numbers, and who reads and writes them."""

    def __init__(self, values, log):
        self.values = values
        self.log = log

    def __getitem__(self, at):
        self.log.append((self.log.lane, "read", id(self), at))
        return self.values[at].item()

    def __setitem__(self, at, value):
        self.log.append((self.log.lane, "write", id(self), at))
        self.values[at] = value


class Log(list):
    lane: tuple = ()


class _Python:
    """What the text calls `ds`."""

    i32, sin = int, staticmethod(math.sin)

    @staticmethod
    def kernel(f):
        return f

    @staticmethod
    def ndrange(*sizes):
        return itertools.product(*map(range, sizes))


def in_python(text, values, launches):
    """The values after these launches, and the accesses of each."""
    fields, logs = {k: v.copy() for k, v in values.items()}, []
    lines, loops = [], 0
    for line in text.splitlines():
        lines.append(line)
        if line.startswith("    for "):
            loops += 1
            names = line.split(" in ")[0].removeprefix("    for ")
            lines.append(f"        log.lane = ({loops}, {names},)")
    for args in launches:
        log = Log()
        space = {k: Noted(v, log) for k, v in fields.items()} | {"ds": _Python, "log": log}
        exec("\n".join(lines), space)
        space["run"](*args)
        logs.append(log)
    return fields, logs


def conflicts(log):
    """Whether lanes of a loop race, and whether anything that was read is written later."""
    race, stale = False, False
    for k, (lane, kind, field, at) in enumerate(log):
        for later, how, other, place in log[k + 1 :]:
            if field != other or at != place or "write" not in (kind, how):
                continue
            race |= lane[0] == later[0] and lane != later
            stale |= kind == "read" and how == "write"
    return race, stale


def verdict(text, seed, in_place="refuse"):
    """ "right", "refused", or what is wrong."""
    r = np.random.default_rng(seed)
    values = {
        "x": r.uniform(-1, 1, LINE),
        "y": r.uniform(-1, 1, LINE),
        "z": r.uniform(-1, 1, (ROWS, ROWS)),
    }
    for name in "pq":
        values[name] = r.permutation(LARGEST)[: 2 * LANES].astype(np.int32)
        if r.random() < 0.3:
            values[name][r.integers(LANES)] = values[name][0]
    weights = {k: r.uniform(-1, 1, values[k].shape) for k in "xyz"}
    launches = [tuple(map(int, r.integers(0, 4, 2))) for _ in range(r.choice([1, 1, 2]))]
    try:
        _, logs = in_python(text, values, launches)
    except IndexError:
        return "invalid"
    found = [conflicts(log) for log in logs]
    race = any(a for a, _ in found)
    found_by_us = run(text, values, weights, launches, in_place=in_place)
    if isinstance(found_by_us, AutodiffError):
        error = found_by_us
        if promise := broken_promise(error, run(text, values, weights, launches, rules="lifted")):
            return promise
        if not isinstance(error, GlobalDataAccessError):
            return "refused"
        # What a trace would have to load is not as it was where the kernel fills p after reading it.
        fills = "        p[i] =" in text
        # Without iterations nothing conflicts, though it would in each launch that has some.
        clean = len(launches) == 1 and logs[0] and not race and not found[0][1] and not fills
        return f"wrong: refused without need: {error.message}" if clean else "refused"
    if race:
        return f"wrong: a race has a gradient, {launches}"
    for k in "xyz":
        expected = central(text, values, weights, launches, k)
        if not np.allclose(found_by_us[k].grad.to_numpy(), expected, rtol=1e-5, atol=1e-7):
            return f"wrong: the gradient of {k}, {launches}"
    return "right"


def run(text, values, weights, launches, in_place=None, rules="enforced"):
    """The fields of a program after its backward pass; or the error of a refusal."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules=rules)
    fields = {k: ds.field(ds.f64, shape=values[k].shape, needs_grad=True) for k in "xyz"}
    fields |= {k: ds.field(ds.i32, shape=2 * LANES) for k in "pq"}
    for k, f in fields.items():
        f.from_numpy(values[k])
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    space = {**fields, "ds": ds}
    compiled(text, space)
    total = summed(fields, weights, loss)

    def differentiate():
        with ds.Tape(loss, **({"in_place": in_place} if in_place else {})):
            for args in launches:
                space["run"](*args)
            total()

    before = launch_checks.NATIVE_FROM, meetings._SPARSE, meetings._SMALL
    launch_checks.NATIVE_FROM = 0
    if values["q"].sum() % 2:  # tables for the elements that are noted, in place of all
        meetings._SPARSE, meetings._SMALL = 1, 0
    try:
        if values["p"].sum() % 2:  # what was known of other launches
            for k in "pq":
                fields[k].from_numpy(values[k][::-1].copy())
            with contextlib.suppress(AutodiffError):
                differentiate()
            for k, f in fields.items():
                f.from_numpy(values[k])
        differentiate()
    except AutodiffError as error:
        return error
    finally:
        launch_checks.NATIVE_FROM, meetings._SPARSE, meetings._SMALL = before
    return fields


def broken_promise(error, lifted):
    """What is wrong with the advice to lift the rules, given what the program does then; or None."""
    if not isinstance(lifted, AutodiffError):
        return None
    if error.is_lifted:
        return f"wrong: the switch does not lift all: {error}, but {lifted}"
    places = {_place(e) for e in lifted.parts}
    kept = [e.message for e in error.parts if e.is_lifted and _place(e) in places]
    return f"wrong: the switch does not lift {kept}" if kept else None


def _place(part):
    return type(part), part.message, part.span and part.span.line


def summed(fields, weights, loss):
    """A kernel that adds up x, y and z with weights."""
    x, y, z = (fields[k] for k in "xyz")
    u, v, w = (ds.field(ds.f64, shape=weights[k].shape) for k in "xyz")
    for f, k in zip((u, v, w), "xyz", strict=True):
        f.from_numpy(weights[k])

    @ds.kernel
    def total():
        for i in x:
            loss[None] += u[i] * x[i] + v[i] * y[i]
        for i, j in z:
            loss[None] += w[i, j] * z[i, j]

    return total


def central(text, values, weights, launches, name, h=1e-5):
    """Central differences of the loss with respect to one field."""
    gradient = np.zeros(values[name].shape)
    for at in np.ndindex(*gradient.shape):
        ends = []
        for step in (h, -h):
            moved = {k: v.copy() for k, v in values.items()}
            moved[name][at] += step
            after, _ = in_python(text, moved, launches)
            ends.append(sum((weights[k] * after[k]).sum() for k in "xyz"))
        gradient[at] = (ends[0] - ends[1]) / (2 * h)
    return gradient
