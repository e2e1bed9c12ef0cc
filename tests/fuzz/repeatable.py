"""Random programs in Python around fixed kernels, trained with replays where they are proved, and without.

A program reads globals, attributes, closures, defaults and elements, counts, draws random numbers, branches
and loops; in the middle of the training one of these changes. With and without replays the losses and the
parameters are the same to the last bit, or the proof of `diffsim/optim/runs/repeatable.py` is wrong.
"""

import random
import types

import numpy as np

import diffsim as ds
from diffsim.errors import DiffsimError
from diffsim.optim.runs.repeatable import Repeatable
from tests.support.source import make as run_source

STEPS = 7
KERNELS = """
FACTOR = 0.5

@ds.data_oriented
class Sim:
    level = 2

    def __init__(self):
        self.u = ds.field(ds.f64, shape=8, needs_grad=True)
        self.x = ds.field(ds.f64, shape=8, needs_grad=True)
        self.y = ds.field(ds.f64, shape=8, needs_grad=True)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)
        self.n, self.count, self.items = 3, 0, [1, 2]
        self.sub = types.SimpleNamespace(m=2)
        self.scale = 0.75

    @property
    def now(self):
        return self.count % 3

    @ds.kernel
    def step(self, t: ds.i32, a: ds.f64):
        for i in self.x:
            self.x[i] = FACTOR * self.x[i] + a * self.u[(i + t) % 8] * self.scale

    @ds.kernel
    def other(self, t: ds.i32, a: ds.f64):
        for i in self.y:
            self.y[i] += a * self.x[i] * self.u[t % 8]

    @ds.kernel
    def noise(self):
        for i in self.y:
            self.y[i] += 0.01 * ds.random(ds.f64)

    def twice(self, k):
        self.step(k, 0.5)
        self.other(k + 1, self.level)

    @ds.kernel
    def measure(self):
        for i in self.x:
            self.loss[None] += 0.01 * (self.x[i] ** 2 + self.y[i] ** 2 + self.u[i] ** 2)

G = 2
TABLE = (1, 2, 3)

def helper(k, a=0.25):
    sim.other(k, a)
    return k + 1

def around():
    inner = 2
    def program():
        k = 0
        inner
{body}
        sim.measure()
    def change(value):
        nonlocal inner
        inner = value
    return program, change

sim = Sim()
program, change_inner = around()
"""
NUMBERS = """
k G sim.n sim.sub.m TABLE[1] len(TABLE) inner sim.level 1 2 min(k,3) max(G,k) abs(-k) sim.n*2-k int(2.5)
(k+G)%4 Sim.level min(sim.n,G) divmod(k,2)[1]
""".split()
IMPURE = (
    "sim.count sim.items[0] sim.now drawn.randrange(3) int(10*abs(sim.x[1]))%3 np_drawn()".split()
)
CHANGES = {
    "G": "global G\n    G = 4",
    "n": "sim.n = 2",
    "m": "sim.sub.m = 1",
    "sub": "sim.sub = types.SimpleNamespace(m=3)",
    "TABLE": "global TABLE\n    TABLE = (3, 1)",
    "inner": "change_inner(1)",
    "class": "Sim.level = 1",
    "hides": "sim.level = 3",
    "factor": "global FACTOR\n    FACTOR = 0.25",
    "scale": "sim.scale = 1.5",
    "field": "sim.x = ds.field(ds.f64, shape=8, needs_grad=True)",
    "helper": "global helper\n    helper = lambda k, a=0.5: sim.step(k, a)",
    "default": "helper.__defaults__ = (0.9,)",
    "builtin": "global min\n    min = lambda *a: 1",
    "method": "sim.twice = lambda k: sim.other(k, 0.1)",
    "kernel": "sim.step, sim.other = sim.other, sim.step",
    "contents": "sim.u.fill(0.3)",
    "items": "sim.items[0] = 2",
    "nothing": "pass",
}


def make(seed):
    """The text of a program, and of what changes in it."""
    rng = random.Random(f"repeatable {seed}")
    impure = rng.choice([0.0, 0.0, 0.1])
    body = [f"    {line}" for _ in range(rng.randint(2, 5)) for line in _statements(rng, impure, 2)]
    change = CHANGES[rng.choice(list(CHANGES))]
    text = KERNELS.format(body="\n".join("    " + line for line in body))
    return f"{text}\ndef change():\n    {change}\n"


def _number(rng, impure):
    return rng.choice(IMPURE if rng.random() < impure else NUMBERS)


def _statements(rng, impure, depth):
    """The lines of one statement."""
    n, m = _number(rng, impure), _number(rng, impure)
    a = rng.choice([f"0.1 * {m}", "0.5", f"1 / (1 + {n} % 4)"])
    kind = rng.choice("step other twice helper name fill loop while branch noise count".split())
    if kind in ("step", "other"):
        return [f"sim.{kind}({n} % 8, {a})"]
    if kind == "twice":
        return [f"sim.twice({n} % 8)"]
    if kind == "helper":
        return [rng.choice([f"k = helper({n} % 8)", f"helper({n} % 8, {a})"])]
    if kind == "name":
        return [rng.choice([f"k = ({n} + {m}) % 5", f"k += {n} % 3"])]
    if kind == "fill":
        return [f"sim.{rng.choice('xy')}.fill({a})"]
    if kind == "noise" or kind == "count":
        if not impure:
            return ["pass"]
        return ["sim.noise()" if kind == "noise" else "sim.count += 1"]
    if not depth:
        return ["pass"]
    inner = ["    " + line for line in _statements(rng, impure, depth - 1)]
    if kind == "loop":
        return [f"for k in range({n} % 4):", *inner]
    if kind == "while":
        w = f"w{depth}"  # which nothing inside changes
        return [f"{w} = 0", f"while {w} < {n} % 3:", *inner, f"    {w} += 1"]
    test = rng.choice(
        [f"{n} > 1", f"{n} == {m}", f"not {n}", f"{n} > 1 and {m} < 3", "sim.sub is None"]
    )
    other = ["    " + line for line in _statements(rng, impure, depth - 1)]
    return [f"if {test}:", *inner, "else:", *other]


def verdict(text, seed):
    """What is wrong: "right", "refused" (as without replays), or the difference."""
    found = [_trained(text, seed, replay) for replay in (False, None)]
    if found[0] == found[1]:
        return "refused" if isinstance(found[0], str) else "right"
    return f"wrong: without replays {found[0]!r:.200}, with them {found[1]!r:.200}"


def is_proved(text):
    """Whether the program is replayed, at least before the change."""
    ds.init(arch=ds.cpu)
    try:
        Repeatable(_space(text, 0)["program"])
    except ValueError:
        return False
    return True


def _space(text, seed):
    numbers = np.random.default_rng(seed)
    space = {
        "ds": ds,
        "types": types,
        "drawn": random.Random(seed),
        "np_drawn": lambda: int(numbers.integers(3)),
    }
    run_source(text, space)
    return space


def _trained(text, seed, replay):
    """The losses and the parameters after some iterations, or the class of the error."""
    ds.init(arch=ds.cpu, random_seed=seed % 1000)
    space = _space(text, seed)
    sim = space["sim"]
    sim.u.from_numpy(np.random.default_rng(seed).uniform(-1, 1, 8))

    def callback(run):
        if run.iteration == 4:
            space["change"]()

    try:
        run = ds.optim.train(
            space["program"],
            ds.optim.Adam(sim.u, 0.02),
            STEPS,
            loss=sim.loss,
            callback=callback,
            replay=replay,
            progress=False,
        )
    except (DiffsimError, TypeError) as error:
        return type(error).__name__
    return run.losses, sim.u.to_numpy().tobytes()
