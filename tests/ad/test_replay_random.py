"""Random programs: a replay does what recording the program anew does, in values, gradients and errors."""

from __future__ import annotations

import random

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.session import session
from tests.support.gradients import field

STEPS = 4


class Programs:
    """Fields, and everything that a program may do with them."""

    def __init__(self):
        self.x, self.y, self.s, self.r = field((STEPS + 1, 3)), field((3, 2)), field(3), field(3)
        self.v = field(3, n=2, layout=ds.Layout.SOA)
        self.p, self.loss = field(), field()
        self.k = ds.field(ds.i32, shape=3)
        self.floats = [self.x, self.y, self.s, self.r, self.v, self.p, self.loss]
        self.make_kernels()

    def make_kernels(self):
        x, y, s, r, v, p, loss, k = *self.floats, self.k

        @ds.kernel
        def step(t: ds.i32, h: ds.f64):
            for i in range(3):
                x[t + 1, i] = x[t, i] + h * ds.sin(x[t, i] * p[None])

        @ds.kernel
        def push(t: ds.i32):
            for i in range(3):
                x[t, i] += 0.1 * s[i] * s[i]

        @ds.kernel
        def turn():
            for i in s:
                s[i] = ds.cos(s[i]) * p[None]

        @ds.kernel
        def shake():
            for i in r:
                r[i] += ds.random(ds.f64) * s[i]

        @ds.kernel
        def mix():
            for i in v:
                for c in ds.static(range(2)):
                    v[i][c] += s[i] * y[i, c]

        @ds.kernel
        def scale():
            for i in v:
                v[i] = v[i] * p[None]

        @ds.kernel
        def square(t: ds.i32):
            for i in range(3):
                y[i, 0] = x[t, i] ** 2

        @ds.kernel
        def rotate():
            for i in k:
                k[i] = (k[i] + 1) % 3

        @ds.kernel
        def gather():
            for i in s:
                loss[None] += r[k[i]] * s[i] + v[i].dot(v[i]) + x[STEPS, i] ** 2

        def without_gradient():
            with ds.ad.no_grad():
                r.copy_from(s)
                turn()

        self.gather, self.turn = gather, turn
        self.plain = [turn, shake, mix, scale, rotate, gather, without_gradient]
        self.timed = [push, square, lambda t: step(t, 0.3), lambda t: step(t, -0.2)]

    def draw(self, draw):
        """One thing to do."""
        x, y, s, r, v = self.floats[:5]
        t, i, a = draw.randrange(STEPS), draw.randrange(3), draw.uniform(-1, 1)
        timed = draw.choice(self.timed)
        from_python = [
            lambda: s.__setitem__(i, a),
            lambda: x.__setitem__((t, i), a),
            lambda: v.__setitem__(i, [a, 2 * a]),
            lambda: s.fill(a),
            lambda: y.fill(0),
            lambda: r.from_numpy(np.array([a, -a, 2 * a])),
            lambda: s.copy_from(r),
            lambda: r.copy_from(s),
        ]
        return draw.choice([*self.plain, lambda: timed(t), lambda: timed(t), *from_python])

    def set(self, seed):
        numbers = np.random.default_rng(seed)
        for f in self.floats:
            f.from_numpy(numbers.uniform(-1, 1, f.shape + f.element))
        self.k.from_numpy(numbers.integers(0, 3, 3).astype(np.int32))

    def outcome(self, tape, afterwards, start):
        """Do something, go back; returns the error's class or the gradients, and all values."""
        for f in self.floats:
            f.grad.fill(0)
        for do in afterwards:
            do()
        try:
            tape.backward(**start)
            made = [f.grad.to_numpy() for f in self.floats]
        except ds.AutodiffError as error:
            made = type(error)
        return made, [f.to_numpy() for f in (*self.floats, self.k)]


def same(one, other):
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("in_place", ["refuse", "save"])
def test_random_programs(cpu, in_place):
    programs, right = Programs(), 0
    for seed in range(40):
        draw = random.Random(seed)
        made, tapes, launches = [], [], []
        for _ in range(2):
            made.append([programs.draw(draw) for _ in range(draw.randrange(2, 9))])
            made[-1].append(programs.gather)
            tapes.append(ds.Tape(in_place=in_place))
            launches.append(session.launches)
            with tapes[-1]:
                for do in made[-1]:
                    do()
        start = draw.choice([dict(loss=programs.loss), dict(grads={programs.s: 0.5})])
        for turn in range(3):
            which = draw.randrange(2)
            afterwards = [programs.draw(draw)] if draw.random() < 0.3 else []
            programs.set(seed + turn)
            session.launches = launches[which]  # the same random numbers
            anew = ds.Tape(in_place=in_place)
            with anew:
                for do in made[which]:
                    do()
            now = session.launches
            expected, values = programs.outcome(anew, afterwards, start)
            programs.set(seed + turn)
            tapes[which].replay()
            session.launches = now
            found, found_values = programs.outcome(tapes[which], afterwards, start)
            if isinstance(expected, type):
                assert found is expected
            else:
                right += 1
                assert same(found, expected)
            assert same(found_values, values)
    assert right > 10
