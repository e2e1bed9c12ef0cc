"""Programs in which many launches store what nothing reads: their adjoints are left out.

Or they only look so: a later launch reads one row, a pass starts from what they have stored, the program sets
its gradient by hand or leaves one of an earlier pass there. Passes from different gradients take turns, on
tapes that record the same again and again, on tapes that are replayed, and by `kernel.grad()`; Python, which
runs the kernels on complex numbers, says what the gradient is.
"""

from random import Random
from types import SimpleNamespace

import numpy as np

import diffsim as ds
from diffsim.ad.repeat import variant
from diffsim.errors import AutodiffError
from tests.support.source import make as make_source

FIELDS = "abcde"
SHAPE = (4, 3)
ROWS = ("t", "t + 1", "t", "t + 1", "0", "3")
PLACES = ("i", "i", "i", "(i + 1) % 3", "0")
SHAPES = (
    "{d}[{w}, i] = {f}",
    "{d}[{w}, i] = {f}",
    "{d}[{w}, i] += {f}",
    "{d}[{w}, 0] += {f}",
    "{d}[{w}, i] = {f}\n{e}[{v}, i] = {g}",
    "if i < 2:\n    {d}[{w}, i] = {f}",
    "s = 0.1\nfor k in range(3):\n    s += {f}\n{d}[{w}, i] = ds.sin(s)",
)
OTHERS = ("{d}.fill(0.3)", "{d}[1, 2] = 0.4", "{d}.copy_from({e})")
WAYS = ("loop", "passes", "replays", "by hand")
FEW = variant.FEW
reached = dict.fromkeys(WAYS, 0)
"""How many fields that launches store to had a gradient that no adjoint has touched, in right programs."""


def make(seed):
    """The program of this number: kernels, and `main`, which launches them."""
    r = Random(seed)
    count = r.randrange(2, 6)
    lines = [line for k in range(count) for line in _kernel(r, k)]
    used = r.sample(FIELDS, r.choice([1, 1, 2]))
    value = " + ".join(f"0.3 * {f}[{r.randrange(4)}, i] * {f}[3, i]" for f in used)
    lines += ["@ds.kernel", "def measure(t: ds.i32, p: ds.f64):", "    for i in range(3):"]
    lines += [f"        loss[None] += p * ({value} + 0.1 * x[t, i])", "def main(p):"]
    launch = lambda t: f"k{r.randrange(count)}({t}, {r.choice(['p', '0.5'])})"  # noqa: E731
    for _ in range(r.randrange(1, 5)):
        some = [launch("t") for _ in range(r.randrange(1, 4))]
        lines.append(f"    for t in range({r.choice([1, 2, 3])}): {'; '.join(some)}")
        if r.random() < 0.15:
            d, e = r.sample(FIELDS, 2)
            lines.append("    " + r.choice(OTHERS).format(d=d, e=e))
    lines.append(f"    measure({r.randrange(3)}, 1.0)")
    if r.random() < 0.3:
        lines.append(f"    {launch(r.randrange(3))}")
    return "\n".join(lines) + "\n"


def _kernel(r, number):
    d, e, *rest = r.sample(FIELDS, 5)
    yield "@ds.kernel"
    yield f"def k{number}(t: ds.i32, p: ds.f64):"
    yield "    for i in range(3):"

    def value():
        a, b = (
            f"{r.choice([*rest, 'x', 'x'])}[{r.choice(ROWS)}, {r.choice(PLACES)}]" for _ in "ab"
        )
        return r.choice(["p * {a} * {b}", "0.4 * ds.sin({a}) + p", "{a} + 0.2 * {b}"]).format(
            a=a, b=b
        )

    text = r.choice(SHAPES).format(
        d=d, e=e, w=r.choice(ROWS), v=r.choice(ROWS), f=value(), g=value()
    )
    for line in text.splitlines():
        yield f"        {line}"


class _Array(np.ndarray):
    """A field of complex numbers."""

    def copy_from(self, other):
        self[...] = other


def _jacobian(text, start, p):
    """The derivatives of all that the program leaves in fields, by each number of x; and these."""
    ends = []
    for k in range(start["x"].size):
        fields = {f: a.astype(complex).view(_Array) for f, a in start.items()}
        fields["x"].reshape(-1)[k] += 1e-30j
        fields["loss"] = {None: 0.0}
        fake = SimpleNamespace(kernel=lambda f: f, i32=int, f64=float, sin=np.sin)
        space = {"ds": fake, **fields}
        exec(text, space)
        space["main"](p)
        fields["loss"] = np.array(fields["loss"][None])
        ends.append({f: np.imag(a) / 1e-30 for f, a in fields.items()})
    return ends


class _Program:
    """A program with its fields."""

    def __init__(self, text, r):
        self.text, self.random = text, np.random.default_rng(r.randrange(1 << 30))
        self.fields = {f: ds.field(ds.f64, SHAPE, needs_grad=True) for f in (*FIELDS, "x")}
        self.loss = ds.field(ds.f64, (), needs_grad=True)
        space = {"ds": ds, **self.fields, "loss": self.loss}
        make_source(text, space)
        self.main = space["main"]
        self.expected = np.zeros(SHAPE)

    def start(self, p):
        """Set all fields, and find what the gradients are."""
        start = {f: self.random.uniform(-1, 1, SHAPE) for f in self.fields}
        for f, values in start.items():
            self.fields[f].from_numpy(values)
        self.loss[None] = 0.0
        with np.errstate(all="ignore"):
            self.ends = _jacobian(self.text, start, p)

    def note(self, seeds):
        """Add what a pass from these seeds adds."""
        for k, ends in enumerate(self.ends):
            self.expected.reshape(-1)[k] += sum(
                float((ends[f] * s).sum()) for f, s in seeds.items()
            )

    def wrong(self, way):
        """Say what is wrong with the gradient of x, if something is; which is 0 then."""
        got, expected = self.fields["x"].grad.to_numpy(), self.expected
        self.fields["x"].grad.fill(0)
        self.expected = np.zeros(SHAPE)
        if not np.isfinite(expected).all():
            return "invalid"
        if not np.allclose(got, expected, rtol=1e-9, atol=1e-10 * max(1, np.abs(expected).max())):
            return f"gradient: {way}: {got.tolist()} for {expected.tolist()}"
        return None

    def seeds(self, r):
        """Some fields and seeds for them."""
        return {f: self.random.uniform(-1, 1, SHAPE) for f in r.sample(FIELDS, r.choice([1, 1, 2]))}

    def idle(self):
        written = [f for f in FIELDS if f"\n        {f}[" in self.text]
        return sum(not self.fields[f].grad.versions.dirty for f in written)


def _loop(program, r, **options):
    for turn in range(r.choice([3, 6])):
        p = 0.5 if turn % 3 else 0.7
        program.start(p)
        with ds.Tape(program.loss, **options):
            program.main(p)
        program.note({"loss": 1.0})
        reached["loop"] += program.idle()
        if said := program.wrong("loop"):
            return said
    return "right"


def _pass(program, tape, r):
    """A pass from some gradients, perhaps with others left of another one."""
    fields = program.fields
    if r.random() < 0.3:
        for f in r.sample(FIELDS, 2):
            fields[f].grad.fill(r.choice([0.0, 0.0, 0.5]))
    given = program.seeds(r) if r.random() < 0.6 else {}
    if not given or r.random() < 0.2:
        if given:
            tape.backward(program.loss, grads={fields[f]: s for f, s in given.items()})
        else:
            tape.backward(program.loss)
        program.note({"loss": 1.0, **given})
    else:
        tape.backward(grads={fields[f]: s for f, s in given.items()})
        program.note(given)
    return program.idle()


def _passes(program, r, **options):
    program.start(0.5)
    with ds.Tape(**options) as tape:
        program.main(0.5)
    for _ in range(4):
        reached["passes"] += _pass(program, tape, r)
        if r.random() < 0.5 and (said := program.wrong("passes")):
            return said
    return program.wrong("passes") or "right"


def _replays(program, r, **options):
    program.start(0.5)
    with ds.Tape(**options) as tape:
        program.main(0.5)
    for _ in range(5):
        if r.random() < 0.7:
            program.start(0.5)
            tape.replay()
            if said := program.wrong("replays"):
                return said
        reached["replays"] += _pass(program, tape, r)
    return program.wrong("replays") or "right"


def _by_hand(program, r, **_):
    space, calls = program.main.__globals__, []
    kernels = {k: v for k, v in space.items() if k[0] == "k" or k == "measure"}
    for name, kernel in kernels.items():
        space[name] = lambda *args, kernel=kernel: (calls.append((kernel, args)), kernel(*args))
    program.start(0.5)
    if any(word in program.text for word in (".fill", "copy_from", "[1, 2] =")):
        return "invalid"
    program.main(0.5)
    given = {"loss": 1.0, **(program.seeds(r) if r.random() < 0.5 else {})}
    if r.random() < 0.2:
        del given["loss"]
    for f, seed in given.items():
        if f == "loss":
            program.loss.grad[None] = 1.0
        else:
            program.fields[f].grad.from_numpy(seed)
    for kernel, args in reversed(calls):
        kernel.grad(*args)
    program.note(given)
    reached["by hand"] += program.idle()
    return program.wrong("by hand") or "right"


def verdict(text, seed, way):
    """ "right", "refused", "invalid", or what is wrong."""
    r = Random(f"{seed} {way}")
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=r.choice([1, 2]))
    variant.FEW = r.choice([1, 2, FEW])
    options = {} if r.random() < 0.5 else {"in_place": "save"}
    run = {"loop": _loop, "passes": _passes, "replays": _replays, "by hand": _by_hand}[way]
    try:
        return run(_Program(text, r), r, **options)
    except AutodiffError:
        return "refused"
    finally:
        variant.FEW = FEW
