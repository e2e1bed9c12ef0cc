"""Steps that are launched again on the way back, and gradients asked of single kernels by hand.

A program launches steps, and on the way back some of their kernels again, perhaps others, in another order,
or with writes from Python between them; or it runs a rollout several times, and then its gradients several
times. A gradient that `kernel.grad` gives must be that of each launch that may be meant (docs/adr/0019): of
the last ones with these arguments, as many as there were calls since. The oracle is NumPy with complex
steps, and the states before all launches.
"""

from random import Random

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError, DiffsimError
from tests.support import source

SHAPES = {"a": (4, 3), "b": (3,), "c": (3,)}
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
@ds.kernel
def inner(s: ds.i32):
    for i in range(1, 3): a[s + 1, i] = a[s, i] * a[s, i - 1] + 0.1 * b[i]
@ds.kernel
def rim(f: ds.f64):
    for i in range(2): c[i] = b[i] * b[i + 1] * f
@ds.kernel
def own(s: ds.i32):
    for i in b:
        c[i] = a[s, i] ** 2
        a[s + 1, i] = c[i] * c[i] + 0.5
@ds.kernel
def chosen(s: ds.i32):
    for i in order: c[order[i]] = a[s, i] ** 2 + b[i]
@ds.kernel
def spread(s: ds.i32):
    for i in order: b[order[i]] += a[s, i] * c[i]
@ds.kernel
def given(y: ds.types.ndarray(), s: ds.i32):
    for i in range(1, 3): b[i] = y[i] ** 2 * a[s, i]
@ds.kernel
def made(y: ds.types.ndarray(), s: ds.i32):
    for i in range(2): y[i] = a[s, i] ** 2
@ds.kernel
def measure():
    for i in c: loss[None] += c[i] ** 2 + a[3, i]
@ds.kernel
def swap():
    for i in order: order[i] = 2 - order[i]
@ds.kernel
def paint():
    for i in picture: picture[i] = c[i]
@ds.kernel
def branches(s: ds.i32):
    for i in b:
        if a[s, i] > 0.5: c[i] = a[s, i] ** 2
        else: c[i] = b[i] * a[s, i]
        b[i] = c[i] * 0.5
"""
ORDER = np.array([2, 0])


def _inner(a, b, c, s):
    a[s + 1, 1:] = a[s, 1:] * a[s, :-1] + 0.1 * b[1:]


def _rim(a, b, c, f):
    c[:2] = b[:2] * b[1:] * f


def _own(a, b, c, s):
    c[:] = a[s] ** 2
    a[s + 1] = c * c + 0.5


def _chosen(a, b, c, s, order=ORDER):
    c[order] = a[s, :2] ** 2 + b[:2]


def _spread(a, b, c, s, order=ORDER):
    b[order] += a[s, :2] * c[:2]


def _given(a, b, c, y, s):
    b[1:] = {"b": b, "c": c}[y][1:] ** 2 * a[s, 1:]


def _made(a, b, c, y, s):
    {"b": b, "c": c}[y][:2] = a[s, :2] ** 2


def _branches(a, b, c, s):
    c[:] = np.where(a[s].real > 0.5, a[s] ** 2, b * a[s])
    b[:] = c * 0.5


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
    "inner": _inner,
    "rim": _rim,
    "own": _own,
    "chosen": _chosen,
    "spread": _spread,
    "given": _given,
    "made": _made,
    "swap": lambda a, b, c: None,
    "paint": lambda a, b, c: None,
    "branches": _branches,
}
STEP_KINDS = [
    "clear() add({s}) convert({s}) move({s})",
    "clear() add({s}) shift() scale(0.5) move({s})",
    "clear() part({s}) add({s}) convert({s}) guarded({s}) last({s})",
    "clear() add({s}) masked({s}) moved({s})",
    "clear() add({s}) masked({s}) move({s})",
    "part({s}) convert({s}) both() move({s})",
    "inner({s}) rim(0.5) move({s})",
    "own({s}) spread({s}) convert({s})",
    "clear() spread({s}) chosen({s}) move({s})",
    "given('c',{s}) rim(-0.7) inner({s})",
    "made('c',{s}) branches({s}) move({s})",
]
WRITES = [
    "a[{s}, 0] = 0.7",
    "a[{s}, 1] = 0.4",
    "b.fill(0.4)",
    "b.fill(0.0)",
    "c.fill(0.3)",
    "c[1] = 0.3",
    "c[1] = -0.0",
    "b.copy_from(c)",
    "b.from_numpy(np.array([0.2, 0.3, 0.9]))",
    "a[{s}] = np.array([0.2, 0.3, 0.9])",
    "b.grad.fill(0.0)",
    "paint()",
    "swap()",
    "ds.ad.clear_all_gradients()",
    "tape({s})",
]


def make(seed):
    """The program of this number: launches, and `ask(kernel, arguments)` for gradients."""
    r = Random(seed)
    return _rollouts(r) if seed % 2 else _steps_again(r)


def _rollouts(r):
    """Rollouts several times, most often as they are, and then their gradients several times."""
    first = r.choice([["b.fill(0.4)", "c.fill(0.3)"], ["b.fill(0.4)"], ["c[1] = 0.3"], []])
    steps = [r.choice(STEP_KINDS).format(s=s).split() for s in range(STEPS)]
    forward = [*first, *(call for calls in steps for call in calls)]
    lines = []
    for _ in range(r.randint(1, 2)):
        for _ in range(r.randint(1, 3)):
            lines += _lines(r, _changed(r, forward) if r.random() < 0.15 else forward, 0.01)
        if r.random() < 0.15:
            lines.append(r.choice(WRITES).format(s=r.randrange(STEPS)))
        for _ in range(r.randint(1, 3)):
            lines += _asked(r, forward[len(first) :], 0.02)
    return "def main():\n" + "".join(f"    {line}\n" for line in lines)


def _asked(r, calls, rate):
    """The gradients of calls, last first, now and then with a write or a launch between."""
    for call in reversed(calls):
        if r.random() < rate:
            yield r.choice([*WRITES, *calls]).format(s=r.randrange(STEPS))
        name, _, given = call.partition("(")
        yield f"ask({name!r}, {given[:-1]})" if given != ")" else f"ask({name!r})"


def _steps_again(r):
    """Steps, on the way back some of them again."""
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
    number, step = r.choice(["0.5", "-0.7"]), r.randrange(STEPS)
    given = dict.fromkeys(["clear", "shift", "both", "paint", "swap"], "")
    given |= {"scale": number, "rim": number, "given": f"'c',{step}", "made": f"'c',{step}"}
    return f"{name}({given.get(name, step)})"


def _lines(r, calls, rate=0.08):
    for call in calls:
        if r.random() < rate:
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
        self.order = ds.field(ds.i32, 2)
        self.order.from_numpy(ORDER.astype(np.int32))
        picture, self.loss = ds.field(ds.f64, 3), ds.field(ds.f64, (), needs_grad=True)
        self.kernels = dict(self.fields, ds=ds, order=self.order, picture=picture, loss=self.loss)
        source.make(KERNELS, self.kernels)
        self.before, self.calls, self.answers, self.wrong = {}, {}, 0, None
        self.space = {**self.fields, "ask": self.ask, "tape": self.tape, "ds": ds, "np": np}
        self.space |= {name: self.launcher(name) for name in IN_NUMPY}

    def launcher(self, name):
        def launch(*args):
            key = name, args
            # The calls since the last launch have taken as many off the end of the row.
            row, taken = self.before.setdefault(key, []), self.calls.pop(key, 0)
            del row[max(len(row) - taken, 0) :]
            row.append(({k: f.to_numpy() for k, f in self.fields.items()}, self.order.to_numpy()))
            self.kernels[name](*self.given(args))

        return launch

    def given(self, args):
        return [self.fields[a] if isinstance(a, str) else a for a in args]

    def tape(self, s):
        """A tape that saves what is overwritten, and sets it back for its backward pass."""
        with ds.Tape(self.loss, in_place="save"):
            for name in ("move", "shift", "move"):
                self.space[name](*[s] * (name == "move"))
            self.kernels["measure"]()

    def ask(self, name, *args):
        """Ask for a gradient, which must be that of each launch that may be meant."""
        given = {k: self.random.uniform(-1.0, 1.0, s) for k, s in SHAPES.items()}
        for k, f in self.fields.items():
            f.grad.from_numpy(given[k])
        key = name, args
        try:
            self.kernels[name].grad(*self.given(args))
        except AutodiffError:
            return
        if key not in self.before:  # never launched: taken as if it were now
            return
        self.answers += 1
        self.calls[key] = self.calls.get(key, 0) + 1
        for state, order in self.before[key][-self.calls[key] :]:
            if not all(
                np.abs(x).max() <= 1e6 for x in state.values()
            ):  # overflow is another matter
                return
            for k, expected in _adjoint(name, args, state, given, order).items():
                found = self.fields[k].grad.to_numpy()
                if not np.allclose(found, expected, rtol=1e-9, atol=1e-12):
                    self.wrong = f"{key}: {k}.grad is {found.tolist()}, not {expected.tolist()}"


def _adjoint(name, args, state, given, order):
    """The adjoint of one launch, by complex steps of 1e-30, which are exact (Squire and Trapp 1998)."""
    found = {k: np.zeros(s) for k, s in SHAPES.items()}
    more = {"order": order} if name in ("chosen", "spread") else {}
    for k, gradient in found.items():
        for index in np.ndindex(*gradient.shape):
            moved = {n: x.astype(complex) for n, x in state.items()}
            moved[k][index] += 1e-30j
            IN_NUMPY[name](moved["a"], moved["b"], moved["c"], *args, **more)
            gradient[index] = sum((given[n] * moved[n]).sum() for n in SHAPES).imag / 1e-30
    return found
