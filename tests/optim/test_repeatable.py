"""A program is replayed only while it is proved to launch the same each time."""

import math
import types
from collections import namedtuple

import numpy as np
import pytest

import diffsim as ds
from diffsim.optim.runs.repeatable import Repeatable
from tests.fuzz import repeatable

SCALE = 0.5
ONES = (1, 1, 1)
config = types.SimpleNamespace(steps=3, nested=types.SimpleNamespace(shift=2))
Settings = namedtuple("Settings", "steps")


@ds.data_oriented
class Sim:
    """Moves a number, some steps, by an input."""

    extra = 1

    def __init__(self, steps=4):
        self.steps = steps
        self.push = ds.field(ds.f64, shape=8, needs_grad=True)
        self.x = ds.field(ds.f64, shape=9, needs_grad=True)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)
        self.calls = 0
        self.random = np.random.default_rng(0)
        self.settings = Settings(3)
        self.table = [1, 2]

    @ds.kernel
    def step(self, t: ds.i32, scale: ds.f64):
        for i in range(1):
            self.x[t + 1] = self.x[t] * scale + self.push[t] + t

    @ds.kernel
    def measure(self, t: ds.i32):
        self.loss[None] += self.x[t] ** 2 + self.push[0]

    @ds.kernel
    def noise(self):
        self.loss[None] += ds.random(ds.f64) * self.push[1]

    @ds.kernel
    def energy(self) -> ds.f64:
        return self.x[1]

    @property
    def count(self):
        return self.steps

    @staticmethod
    def double(t):
        return 2 * t

    # ---- proved

    def simple(self):
        """With a docstring."""
        self.x.fill(0)
        for t in range(self.steps):
            self.step(t, SCALE)
        self.measure(self.steps)
        return self.loss

    def branches(self):
        last = 0
        if self.steps > 2 and self.extra is not None:
            for k, t in enumerate(reversed(range(3))):
                last = max(last, k + t % 2)
                self.step(last, scale=math.cos(0.5) * -SCALE + ONES[1])
        else:
            self.step(0, 1.0)
        while last < 2:
            last += 1
            if last == 1:
                continue
        self.measure(last)
        return self.loss

    def calls_others(self):
        self.advance(config.steps, scale=0.25) if False else self.advance(config.nested.shift)
        self.measure(1)
        return self.loss

    def advance(self, count, scale=0.75):
        kernel = self.step
        for t in range(count):
            kernel(t, scale)

    # ---- not proved

    def counter(self):
        self.calls += 1
        self.step(0, 0.5)

    def reads(self):
        if self.x[0] > 0:
            self.step(0, 0.5)

    def reads_as_argument(self):
        self.step(0, float(self.x[0]))

    def draws(self):
        self.step(0, self.random.normal())

    def sets(self):
        self.push[3] = 1.0

    def copies_arrays(self):
        self.x.from_numpy(np.ones(9))

    def prints(self):
        print("hello")

    def takes_a_property(self):
        self.step(self.count, 1.0)

    def of_a_list(self):
        for t in self.table:
            self.step(t, 1.0)

    def of_a_named_tuple(self):
        self.step(self.settings.steps, 1.0)

    def with_a_static_method(self):
        self.step(self.double(1), 1.0)

    def of_a_result(self):
        self.step(0, self.energy())

    def returns_a_result(self):
        return self.energy()

    def in_try(self):
        try:
            self.step(0, 1.0)
        finally:
            pass

    def by_number(self):
        np.random.seed(0)  # noqa: NPY002

    def two_things(self):
        f = self.x
        if self.steps > 3:
            f = self.push
        f.fill(0)

    def unpacks(self):
        self.step(*ONES[:2])

    def recursive(self):
        self.recursive()

    def yields(self):
        yield self.step(0, 1.0)

    def looks_up(self):
        self.step(vars(self)["steps"], 1.0)

    def comprehends(self):
        [self.step(t, 1.0) for t in range(3)]

    def changes_a_global(self):
        global SCALE
        SCALE = 0.5


PROVED = ("simple", "branches")
NOT_PROVED = [name for name in vars(Sim) if not name.startswith("_")]
NOT_PROVED = NOT_PROVED[NOT_PROVED.index("counter") :]


@pytest.mark.parametrize("name", PROVED)
def test_proved(cpu, name):
    assert Repeatable(getattr(Sim(), name)).holds()


@pytest.mark.parametrize("name", NOT_PROVED)
def test_not_proved(cpu, name):
    with pytest.raises(ValueError, match=r"."):
        Repeatable(getattr(Sim(), name))


def test_other_programs(cpu):
    sim = Sim()

    class Called:
        def __call__(self):
            sim.step(0, SCALE)

    class Lazy:
        def __getattr__(self, name):
            return 3

    lazy = Lazy()

    def asks_for_what_is_made():
        sim.step(lazy.steps, 1.0)

    def takes_defaults(t=0, scale=1.0):
        sim.step(t, scale)

    def loops_over_a_default(ts=[0]):  # noqa: B006
        for t in ts:
            sim.step(t, 1.0)

    assert Repeatable(sim.measure).holds()
    assert Repeatable(Called()).holds()
    assert Repeatable(takes_defaults).holds()
    for program in (
        asks_for_what_is_made,
        loops_over_a_default,
        lambda: sim.measure(1),
        lazy,
        3,
        Sim,
    ):
        with pytest.raises(ValueError, match=r"."):
            Repeatable(program)


def losses_of(sim, program, change, replay):
    """Train, with something changed after the third iteration; the losses and where the parameters end."""
    opt = ds.optim.SGD(sim.push, 0.01)

    def callback(run):
        if run.iteration == 3:
            change(sim)

    run = ds.optim.train(
        program, opt, 6, loss=sim.loss, callback=callback, replay=replay, progress=False
    )
    return run.losses, sim.push.to_numpy().tolist()


def set_global(name, value):
    return lambda sim: globals().__setitem__(name, value)


def set_extra(sim):
    sim.extra = None  # hides that of the class


CHANGES = {
    "nothing": lambda sim: None,
    "a global": set_global("SCALE", -0.25),
    "a number of an object": lambda sim: setattr(sim, "steps", 2),
    "a number of a class": set_extra,
    "a field": lambda sim: setattr(sim, "x", ds.field(ds.f64, shape=9, needs_grad=True)),
    "a tuple": set_global("ONES", (3, 3, 3)),
    "a builtin": set_global("max", lambda *a: 1),
    "the contents of a field": lambda sim: sim.push.fill(0.5),
}


@pytest.mark.parametrize("name", PROVED)
@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_meanwhile_counts(cpu, monkeypatch, name, change):
    monkeypatch.setitem(globals(), "SCALE", 0.5)
    monkeypatch.setitem(globals(), "ONES", (1, 1, 1))
    runs = []
    for replay in (False, None):
        sim = Sim()
        runs.append(losses_of(sim, getattr(sim, name), CHANGES[change], replay))
        globals().update(SCALE=0.5, ONES=(1, 1, 1))
        globals().pop("max", None)
    assert runs[0] == runs[1]


def test_programs_that_are_not_proved_are_called(cpu):
    for name in ("counter", "draws"):
        ends = []
        for replay in (False, None):
            sim = Sim()

            body = getattr(sim, name)

            def program(sim=sim, body=body):
                body()
                sim.measure(1)

            ends.append(losses_of(sim, program, lambda sim: None, replay))
        assert ends[0] == ends[1]
    assert len(set(ends[0][0])) == 6  # random numbers


def test_kernels_that_draw_random_numbers_are_launched(cpu):
    sim = Sim()

    def program():
        sim.noise()

    sim.push.fill(1)
    assert Repeatable(program).holds()
    losses, _ = losses_of(sim, program, lambda sim: None, None)
    assert len(set(losses)) == 6


def test_a_replay_spares_the_program(cpu, monkeypatch):
    sim = Sim()
    replayed = []
    real = ds.Tape.replay
    monkeypatch.setattr(ds.Tape, "replay", lambda tape: replayed.append(1) or real(tape))
    losses_of(sim, sim.simple, lambda sim: None, None)
    assert len(replayed) == 5
    losses_of(sim, sim.simple, lambda sim: setattr(sim, "steps", 3), None)
    assert len(replayed) == 5 + 4  # recorded in the first and in the fourth iteration
    losses_of(sim, sim.simple, lambda sim: None, False)
    assert len(replayed) == 5 + 4
    losses_of(sim, lambda: sim.simple(), lambda sim: None, None)
    assert len(replayed) == 5 + 4 + 5


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(cpu, quick_code, seed):
    assert repeatable.verdict(repeatable.make(seed), seed) in ("right", "refused")


def test_random_programs_are_proved(cpu):
    """Else the search above would find nothing."""
    proved = [repeatable.is_proved(repeatable.make(seed)) for seed in range(40)]
    assert 10 < sum(proved) < 35
