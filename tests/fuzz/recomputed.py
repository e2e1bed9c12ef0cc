"""Steps that are launched again on the way back, and gradients asked of single kernels by hand.

A program launches steps, and on the way back some of their kernels again, perhaps others, in another order,
or with writes from Python between them. A gradient that `kernel.grad` gives must be the one of the launch
with these arguments; the oracle is NumPy with complex steps.
"""

from random import Random

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError, DiffsimError
from tests.support import source

SHAPES = {"a": (4, 2), "b": (2,), "c": (2,)}
STEPS = 3

KERNELS = """
@ds.kernel
def clear():
    for i in b: b[i] = 0.0
@ds.kernel
def add(s: ds.i32):
    for i in b: b[i] += ds.sin(a[s, i])
@ds.kernel
def convert(s: ds.i32):
    for i in b: c[i] = b[i] ** 2 + a[s, i] * b[i]
@ds.kernel
def guarded(s: ds.i32):
    for i in b:
        if b[i] > 0.5: c[i] = b[i] ** 3
@ds.kernel
def masked(s: ds.i32):
    for i in b:
        if b[i] > 1.0: c[i] = b[i] ** 2 + a[s, i] * b[i]
@ds.kernel
def moved(s: ds.i32):
    for i in b:
        a[s + 1, i] = a[s, i]
        if b[i] > 1.0: a[s + 1, i] = a[s, i] + 0.1 * c[i] ** 2
@ds.kernel
def move(s: ds.i32):
    for i in b: a[s + 1, i] = a[s, i] + 0.1 * c[i] ** 2
@ds.kernel
def part(s: ds.i32):
    b[0] = a[s, 1] ** 2
@ds.kernel
def scale(f: ds.f64):
    for i in b: c[i] = ds.sin(b[i]) * f
@ds.kernel
def shift():
    for i in b: b[i] = b[i] * 0.5 + 0.3
@ds.kernel
def both():
    for i in b: b[i] = ds.sin(c[i])
    for i in b: c[i] = b[i] * 0.5
@ds.kernel
def column(s: ds.i32):
    for i in range(4): a[i, 1] = a[i, 0] ** 2 * 0.5
@ds.kernel
def last(s: ds.i32):
    for i in b: a[3, i] = c[i] ** 2 + a[s, i] ** 2
"""


def _guarded(a, b, c, s):
    c[:] = np.where(b.real > 0.5, b**3, c)


def _masked(a, b, c, s):
    c[:] = np.where(b.real > 1.0, b**2 + a[s] * b, c)


def _moved(a, b, c, s):
    a[s + 1] = np.where(b.real > 1.0, a[s] + 0.1 * c**2, a[s])


def _both(a, b, c):
    b[:] = np.sin(c)
    c[:] = b * 0.5


def _set(x, value):
    x[...] = value


IN_NUMPY = {
    "clear": lambda a, b, c: _set(b, 0.0),
    "add": lambda a, b, c, s: _set(b, b + np.sin(a[s])),
    "convert": lambda a, b, c, s: _set(c, b**2 + a[s] * b),
    "guarded": _guarded,
    "masked": _masked,
    "moved": _moved,
    "move": lambda a, b, c, s: _set(a[s + 1], a[s] + 0.1 * c**2),
    "part": lambda a, b, c, s: _set(b[:1], a[s, 1] ** 2),
    "scale": lambda a, b, c, f: _set(c, np.sin(b) * f),
    "shift": lambda a, b, c: _set(b, b * 0.5 + 0.3),
    "both": _both,
    "column": lambda a, b, c, s: _set(a[:, 1], a[:, 0] ** 2 * 0.5),
    "last": lambda a, b, c, s: _set(a[3], c**2 + a[s] ** 2),
}
STEP_KINDS = [
    "clear() add({s}) convert({s}) move({s})",
    "clear() add({s}) shift() scale(0.5) move({s})",
    "clear() part({s}) add({s}) convert({s}) guarded({s}) last({s})",
    "clear() add({s}) masked({s}) moved({s})",
    "clear() add({s}) masked({s}) move({s})",
    "part({s}) convert({s}) both() move({s})",
]
WRITES = ["a[{s}, 0] = 0.7", "b.fill(0.4)", "c[1] = 0.3", "b.grad.fill(0.0)"]


def make(seed):
    """The program of this number: launches, and `ask(kernel, arguments)` for gradients."""
    r = Random(seed)
    steps = [_changed(r, r.choice(STEP_KINDS).format(s=s).split()) for s in range(STEPS)]
    lines = [line for calls in steps for line in _lines(r, calls)]
    for calls in reversed(steps):
        again = len(calls) - r.choice([0, 1, 1, 1, 2])
        lines += _lines(r, _changed(r, calls[: max(again, 1)]))
        for call in reversed(calls[max(again - 2, 0) :]):
            name, _, given = call.partition("(")
            lines.append(f"ask({name!r}, {given[:-1]})" if given != ")" else f"ask({name!r})")
    return "def main():\n" + "".join(f"    {line}\n" for line in lines)


def _changed(r, calls):
    """The calls, most often as they are, or with some left out, added, replaced or exchanged."""
    calls = list(calls)
    for _ in range(r.choice([0, 0, 0, 1, 1, 2])):
        k, how = r.randrange(len(calls)), r.random()
        if how < 0.3 and len(calls) > 1:
            del calls[k]
        elif how < 0.6:
            calls.insert(k, _any_call(r))
        elif how < 0.8:
            calls[k] = _any_call(r)
        else:
            j = r.randrange(len(calls))
            calls[k], calls[j] = calls[j], calls[k]
    return calls


def _any_call(r):
    name = r.choice(list(IN_NUMPY))
    given = {"clear": "", "shift": "", "both": "", "scale": r.choice(["0.5", "-0.7"])}
    return f"{name}({given.get(name, r.randrange(STEPS))})"


def _lines(r, calls):
    for call in calls:
        if r.random() < 0.08:
            yield r.choice(WRITES).format(s=r.randrange(STEPS))
        yield call


def verdict(text, seed):
    """ "right", "refused" (all that was asked), or what is wrong."""
    program = _Program(seed)
    try:
        exec(compile(text, f"<recomputed {seed}>", "exec"), program.space)
        program.space["main"]()
    except AutodiffError:
        raise
    except DiffsimError:
        return "invalid"
    return program.wrong or ("right" if program.answers else "refused")


class _Program:
    """Fields and kernels, the state before each launch, and what was found of the gradients."""

    def __init__(self, seed):
        ds.init(default_fp=ds.f64)
        self.random = np.random.default_rng(seed)
        self.fields = {k: ds.field(ds.f64, s, needs_grad=True) for k, s in SHAPES.items()}
        for f in self.fields.values():
            f.from_numpy(self.random.uniform(0.2, 1.0, f.shape))
        self.kernels = dict(self.fields, ds=ds)
        source.make(KERNELS, self.kernels)
        self.before, self.answers, self.wrong = {}, 0, None
        self.space = {**self.fields, "ask": self.ask}
        self.space |= {name: self.launcher(name) for name in IN_NUMPY}

    def launcher(self, name):
        def launch(*args):
            self.before[name, args] = {k: f.to_numpy() for k, f in self.fields.items()}
            self.kernels[name](*args)

        return launch

    def ask(self, name, *args):
        """Ask for a gradient, which must be that of the last launch with these arguments."""
        given = {k: self.random.uniform(-1.0, 1.0, s) for k, s in SHAPES.items()}
        for k, f in self.fields.items():
            f.grad.from_numpy(given[k])
        known = self.before.get((name, args))
        try:
            self.kernels[name].grad(*args)
        except AutodiffError:
            return
        if known is None:  # never launched: taken as if it were now
            return
        self.answers += 1
        for k, expected in _adjoint(name, args, known, given).items():
            found = self.fields[k].grad.to_numpy()
            if not np.allclose(found, expected, rtol=1e-9, atol=1e-12):
                self.wrong = f"{name}{args}: {k}.grad is {found.tolist()}, not {expected.tolist()}"


def _adjoint(name, args, state, given):
    """The adjoint of one launch, by complex steps of 1e-30, which are exact (Squire and Trapp 1998)."""
    found = {k: np.zeros(s) for k, s in SHAPES.items()}
    for k, gradient in found.items():
        for index in np.ndindex(*gradient.shape):
            moved = {n: x.astype(complex) for n, x in state.items()}
            moved[k][index] += 1e-30j
            IN_NUMPY[name](moved["a"], moved["b"], moved["c"], *args)
            gradient[index] = sum((given[n] * moved[n]).sum() for n in SHAPES).imag / 1e-30
    return found
