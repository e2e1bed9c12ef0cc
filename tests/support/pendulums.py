"""A rollout that tapes replay: driven pendulums on a time axis."""

import numpy as np

import diffsim as ds
from tests.support.gradients import field, numbers


@ds.data_oriented
class Pendulums:
    """Pendulums on a time axis, each with a length of its own, driven by a control."""

    def __init__(self, steps=30, n=5):
        self.steps, self.n = steps, n
        self.angle, self.speed = field((steps + 1, n)), field((steps + 1, n))
        self.length, self.control = field(n), field(steps)
        self.loss = field()
        self.length.from_numpy(numbers(n, lo=0.5, hi=2.0))
        self.control.from_numpy(numbers(steps))

    @ds.kernel
    def step(self, t: ds.i32, dt: ds.f64):
        for i in range(self.n):
            pull = self.control[t] - 9.81 / self.length[i] * ds.sin(self.angle[t, i])
            self.speed[t + 1, i] = self.speed[t, i] + dt * pull
            self.angle[t + 1, i] = self.angle[t, i] + dt * self.speed[t + 1, i]

    @ds.kernel
    def measure(self):
        for i in range(self.n):
            self.loss[None] += self.angle[self.steps, i] ** 2

    def run(self):
        for t in range(self.steps):
            self.step(t, 0.01)
        self.measure()

    def record(self, **options):
        tape = ds.Tape(self.loss, **options)
        with tape:
            self.run()
        return tape

    def results(self):
        fields = (self.loss, self.angle, self.speed)
        gradients = (self.length.grad, self.control.grad, self.angle.grad, self.speed.grad)
        return [f.to_numpy() for f in (*fields, *gradients)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
