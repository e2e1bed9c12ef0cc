"""A walking robot of 12 masses and 20 springs, steered by a two-layer network: the cost of small launches.

1024 steps of four kernels each. The gradient is that of the distance walked with respect to the
network's weights. Figures "per launch" divide by the 4096 launches there and as many back. "Replayed" is a
tape that was recorded before: its launches run again without Python between them.
"""

import math

import numpy as np
from harness import bind, main

N, S, H, WAVES = 12, 20, 16, 4  # masses, springs, hidden units, input waves
INPUTS = WAVES + 4 * N
DT, OMEGA, GROUND, FRICTION = 0.004, 20.0, 0.1, 8000.0
PHASE, LAUNCHES = 2 * math.pi / WAVES, 4


def robot():
    """A lattice of 6 x 2 masses, its springs, and random weights; f32."""
    pairs = [(2 * i + j, 2 * i + 2 + j) for i in range(5) for j in range(2)]  # along
    pairs += [(2 * i, 2 * i + 1) for i in range(6)]  # upright
    pairs += [(2 * i, 2 * i + 3) for i in range(4)]  # diagonal
    pairs = np.array(pairs, np.int32)
    x = np.array(
        [(0.2 + 0.06 * i, 0.15 + 0.06 * j) for i in range(6) for j in range(2)], np.float32
    )
    rest = np.linalg.norm(x[pairs[:, 0]] - x[pairs[:, 1]], axis=1)
    swing = np.where(np.arange(S) < 16, 0.12, 0)  # how far a spring can be actuated
    r = np.random.default_rng(2)
    shapes = dict(w1=((H, INPUTS), 0.3), b1=(H, 0.1), w2=((S, H), 0.3), b2=(S, 0.1))
    weights = [r.standard_normal(shape) * scale for shape, scale in shapes.values()]
    return x, pairs, *(a.astype(np.float32) for a in (rest, np.full(S, 400.0), swing, *weights))


def rollout(steps, w1, b1, w2, b2):
    """The loss in NumPy and f64, for a batch of weights at once."""
    x, pairs, rest, stiff, swing, *_ = robot()
    first, second = pairs.T
    incidence = np.zeros((N, S))
    incidence[first, np.arange(S)], incidence[second, np.arange(S)] = -1, 1
    x = np.broadcast_to(x.astype(np.float64), (len(w1), N, 2))
    v, wave = np.zeros_like(x), PHASE * np.arange(WAVES)
    for t in range(steps):
        body = np.concatenate([x - x[:, :1], 0.1 * v], 2).reshape(len(x), -1)
        wave_now = np.broadcast_to(np.sin(OMEGA * DT * t + wave), (len(x), WAVES))
        h = np.tanh((w1 @ np.concatenate([wave_now, body], 1)[..., None])[..., 0] + b1)
        act = np.tanh((w2 @ h[..., None])[..., 0] + b2)
        d = x[:, first] - x[:, second]
        length = np.sqrt((d * d).sum(2)) + 1e-4
        pull = (length - rest * (1 + swing * act)) * stiff / length
        depth = np.maximum(0, GROUND - x[:, :, 1])
        outer = np.stack([-FRICTION * depth * v[:, :, 0], -4.8 + 2000 * depth], 2)
        v = 0.98 * v + DT * (incidence @ (pull[..., None] * d) + outer)
        x = x + DT * v
    return -x[:, :, 0].mean(1)


def directions():
    """Random directions in the space of all weights: 16 of each array."""
    r = np.random.default_rng(7)
    return [r.standard_normal((16, *w.shape)) for w in robot()[5:]]


def reference(steps):
    """The loss, and its derivatives along random directions from central differences."""
    weights, h = [w.astype(np.float64)[None] for w in robot()[5:]], 1e-6
    high = [w + h * d for w, d in zip(weights, directions(), strict=True)]
    low = [w - h * d for w, d in zip(weights, directions(), strict=True)]
    along = (rollout(steps, *high) - rollout(steps, *low)) / (2 * h)
    return dict(loss=rollout(steps, *weights)[0], along=along)


def check(b, loss, gradients=None, run=("forward", "backward")):
    exact = b.reference(lambda: reference(steps(b)))
    b.check(run[0], loss, exact.loss)
    if gradients is not None:
        parts = zip(gradients, directions(), strict=True)
        b.check(run[1], sum(np.tensordot(d, g, g.ndim) for g, d in parts), exact.along)


def steps(b):
    return b.size(1024, 128)


def timings(b, forward, backward=None, clear=None):
    """The times of a rollout, and what they make per launch."""
    per = dict(divide=steps(b) * LAUNCHES, per="per launch")
    b.time("forward", forward, **per)
    if backward:
        b.time("backward", backward, before=clear, **per)


class Robot:
    """Fields and kernels for the Taichi interface of the module `ds`."""

    def __init__(self, ds, steps):
        T = self.steps = steps
        self.ds = ds
        data = dict(zip("x pairs rest stiff swing w1 b1 w2 b2".split(), robot(), strict=True))

        def f32(*shape, grad=True):
            return ds.field(ds.f32, shape=shape, needs_grad=grad)

        self.x, self.v, self.force = (
            ds.Vector.field(2, ds.f32, shape=(t, N), needs_grad=True) for t in (T + 1, T + 1, T)
        )
        self.hidden, self.act = f32(T, H), f32(T, S)
        self.w1, self.b1, self.w2, self.b2 = f32(H, INPUTS), f32(H), f32(S, H), f32(S)
        self.rest, self.stiff, self.swing = (f32(S, grad=False) for _ in range(3))
        self.first, self.second = (ds.field(ds.i32, shape=S) for _ in range(2))
        self.loss = f32()
        for name in "rest stiff swing w1 b1 w2 b2".split():
            getattr(self, name).from_numpy(data[name])
        self.first.from_numpy(data["pairs"][:, 0].copy())
        self.second.from_numpy(data["pairs"][:, 1].copy())
        self.x.from_numpy(np.concatenate([data["x"][None], np.zeros((T, N, 2), np.float32)]))
        self.weights = [self.w1, self.b1, self.w2, self.b2]
        self.kernels = [*self.network(), *self.physics()]
        self.measure = self.distance()

    def network(self):
        ds, x, v, hidden, act = self.ds, self.x, self.v, self.hidden, self.act
        w1, b1, w2, b2 = self.weights

        @ds.kernel
        def think(t: ds.i32):
            for i in range(H):
                a = b1[i]
                for j in ds.static(range(WAVES)):
                    a += w1[i, j] * ds.sin(OMEGA * DT * t + PHASE * j)
                for j in ds.static(range(N)):
                    for k in ds.static(range(2)):
                        a += w1[i, WAVES + 4 * j + k] * (x[t, j][k] - x[t, 0][k])
                        a += w1[i, WAVES + 4 * j + 2 + k] * 0.1 * v[t, j][k]
                hidden[t, i] = ds.tanh(a)

        @ds.kernel
        def decide(t: ds.i32):
            for i in range(S):
                a = b2[i]
                for j in ds.static(range(H)):
                    a += w2[i, j] * hidden[t, j]
                act[t, i] = ds.tanh(a)

        return think, decide

    def physics(self):
        ds, x, v, force, act = self.ds, self.x, self.v, self.force, self.act
        first, second = self.first, self.second
        rest, stiff, swing = self.rest, self.stiff, self.swing

        @ds.kernel
        def pull(t: ds.i32):
            for i in range(S):
                a = first[i]
                b = second[i]
                d = x[t, a] - x[t, b]
                length = ds.sqrt(d.dot(d)) + 1e-4
                target = rest[i] * (1.0 + swing[i] * act[t, i])
                f = (length - target) * stiff[i] / length * d
                force[t, a] += -f
                force[t, b] += f

        @ds.kernel
        def move(t: ds.i32):
            for i in range(N):
                depth = ds.max(0.0, GROUND - x[t, i][1])
                outer = ds.Vector([-FRICTION * depth * v[t, i][0], -4.8 + 2000.0 * depth])
                new = 0.98 * v[t, i] + DT * force[t, i] + DT * outer
                v[t + 1, i] = new
                x[t + 1, i] = x[t, i] + DT * new

        return pull, move

    def distance(self):
        ds, x, loss, T = self.ds, self.x, self.loss, self.steps

        @ds.kernel
        def distance():
            for i in range(N):
                loss[None] += -x[T, i][0] / N

        return distance

    def simulate(self):
        for t in range(self.steps):
            for kernel in self.kernels:
                kernel(t)
        self.measure()

    def forward(self):
        self.loss[None] = 0.0
        self.force.fill(0.0)
        self.simulate()
        self.ds.sync()

    def prepare(self):
        """A forward run for one gradient: earlier ones, which were timed, do not count."""
        self.forward()
        for field in (self.x, self.v, self.force, self.hidden, self.act, *self.weights):
            field.grad.fill(0.0)
        self.loss.grad[None] = 1.0
        self.ds.sync()

    def backward(self):
        self.measure.grad()
        for t in reversed(range(self.steps)):
            for kernel in reversed(self.kernels):
                kernel.grad(t)
        self.ds.sync()

    def tape(self):
        self.force.fill(0.0)
        with self.ds.ad.Tape(self.loss):
            self.simulate()
        self.ds.sync()


class Recorded:
    """A robot's rollout, recorded once and run again as native code."""

    def __init__(self, robot):
        self.robot, self.record = robot, robot.ds.Tape(robot.loss)
        robot.force.fill(0.0)
        with self.record:
            robot.simulate()

    def forward(self):
        self.robot.force.fill(0.0)
        self.record.replay()

    def both(self):
        self.forward()
        self.record.backward()


def api(b):
    r = Robot(b.api(), steps(b))
    timings(b, r.forward, r.backward, r.prepare)
    b.time("on a Tape, with gradient", r.tape)
    check(b, r.loss[None], [w.grad.to_numpy() for w in r.weights])
    if b.diffsim:
        recorded = Recorded(r)
        b.time("replayed", recorded.forward, like="forward")
        b.time("replayed, with gradient", recorded.both, like="on a Tape, with gradient")
        gradients = [w.grad.to_numpy() for w in r.weights]
        check(b, r.loss[None], gradients, ("replayed", "replayed, with gradient"))


def warp_kernels(wp, T):
    Numbers, Table = wp.array(dtype=float), wp.array2d(dtype=float)
    Vectors, Indices = wp.array2d(dtype=wp.vec2), wp.array(dtype=wp.int32)

    @wp.kernel
    def think(t: int, x: Vectors, v: Vectors, w1: Table, b1: Numbers, hidden: Table):
        i = wp.tid()
        a = b1[i]
        for j in range(WAVES):
            a += w1[i, j] * wp.sin(OMEGA * DT * float(t) + PHASE * float(j))
        for j in range(N):
            d = x[t, j] - x[t, 0]
            u = 0.1 * v[t, j]
            a += w1[i, WAVES + 4 * j] * d[0] + w1[i, WAVES + 4 * j + 1] * d[1]
            a += w1[i, WAVES + 4 * j + 2] * u[0] + w1[i, WAVES + 4 * j + 3] * u[1]
        hidden[t, i] = wp.tanh(a)

    @wp.kernel
    def decide(t: int, hidden: Table, w2: Table, b2: Numbers, act: Table):
        i = wp.tid()
        a = b2[i]
        for j in range(H):
            a += w2[i, j] * hidden[t, j]
        act[t, i] = wp.tanh(a)

    @wp.kernel
    def pull(
        t: int,
        x: Vectors,
        act: Table,
        first: Indices,
        second: Indices,
        rest: Numbers,
        stiff: Numbers,
        swing: Numbers,
        force: Vectors,
    ):
        i = wp.tid()
        a = first[i]
        b = second[i]
        d = x[t, a] - x[t, b]
        length = wp.sqrt(wp.dot(d, d)) + 1e-4
        target = rest[i] * (1.0 + swing[i] * act[t, i])
        f = ((length - target) * stiff[i] / length) * d
        wp.atomic_add(force, t, a, -f)
        wp.atomic_add(force, t, b, f)

    @wp.kernel
    def move(t: int, x: Vectors, v: Vectors, force: Vectors, new_x: Vectors, new_v: Vectors):
        i = wp.tid()
        depth = wp.max(0.0, GROUND - x[t, i][1])
        outer = wp.vec2(-FRICTION * depth * v[t, i][0], -4.8 + 2000.0 * depth)
        new = 0.98 * v[t, i] + DT * force[t, i] + DT * outer
        new_v[t + 1, i] = new
        new_x[t + 1, i] = x[t, i] + DT * new

    @wp.kernel
    def distance(x: Vectors, loss: Numbers):
        i = wp.tid()
        wp.atomic_add(loss, 0, -x[T, i][0] / float(N))

    return think, decide, pull, move, distance


def warp(b):
    wp, T = b.warp(), steps(b)
    think, decide, pull, move, distance = warp_kernels(wp, T)
    start, pairs, *numbers = robot()
    states = np.concatenate([start[None], np.zeros((T, N, 2), np.float32)])
    x = wp.array(states, dtype=wp.vec2, requires_grad=True)
    v = wp.zeros((T + 1, N), dtype=wp.vec2, requires_grad=True)
    force = wp.zeros((T, N), dtype=wp.vec2, requires_grad=True)
    hidden = wp.zeros((T, H), dtype=float, requires_grad=True)
    act = wp.zeros((T, S), dtype=float, requires_grad=True)
    loss = wp.zeros(1, dtype=float, requires_grad=True)
    springs = [wp.array(pairs[:, k].copy(), dtype=wp.int32) for k in range(2)]
    springs += [wp.array(a, dtype=float) for a in numbers[:3]]
    w1, b1, w2, b2 = weights = [wp.array(a, dtype=float, requires_grad=True) for a in numbers[3:]]
    tape = wp.Tape()

    def forward():
        tape.reset()
        loss.zero_()
        force.zero_()
        with tape:
            for t in range(T):
                wp.launch(think, dim=H, inputs=[t, x, v, w1, b1], outputs=[hidden])
                wp.launch(decide, dim=S, inputs=[t, hidden, w2, b2], outputs=[act])
                wp.launch(pull, dim=S, inputs=[t, x, act, *springs], outputs=[force])
                wp.launch(move, dim=N, inputs=[t, x, v, force], outputs=[x, v])
            wp.launch(distance, dim=N, inputs=[x], outputs=[loss])

    def backward():
        tape.backward(loss)

    def both():
        tape.zero()
        forward()
        backward()

    timings(b, forward, backward, tape.zero)
    b.time("on a Tape, with gradient", both)
    check(b, loss.numpy()[0], [w.grad.numpy() for w in weights])


SOURCE = r"""
#include <math.h>
#include <string.h>
enum { N = %(N)d, S = %(S)d, H = %(H)d, WAVES = %(WAVES)d, INPUTS = %(INPUTS)d };
static const float DT = %(DT)r, OMEGA = %(OMEGA)r, GROUND = %(GROUND)r, FRICTION = %(FRICTION)r,
    PHASE = %(PHASE)r;
float rollout(long T, float *restrict x, float *restrict v, const int *restrict pairs,
              const float *restrict rest, const float *restrict stiff, const float *restrict swing,
              const float *restrict w1, const float *restrict b1, const float *restrict w2,
              const float *restrict b2) {
    float hidden[H], act[S], force[2 * N], loss = 0;
    for (long t = 0; t < T; t++, x += 2 * N, v += 2 * N) {
        for (int i = 0; i < H; i++) {
            const float *w = w1 + i * INPUTS;
            float a = b1[i];
            for (int j = 0; j < WAVES; j++) a += w[j] * sinf(OMEGA * DT * t + PHASE * j);
            for (int j = 0; j < N; j++) for (int k = 0; k < 2; k++)
                a += w[WAVES + 4 * j + k] * (x[2 * j + k] - x[k])
                    + w[WAVES + 4 * j + 2 + k] * 0.1f * v[2 * j + k];
            hidden[i] = tanhf(a);
        }
        for (int i = 0; i < S; i++) {
            float a = b2[i];
            for (int j = 0; j < H; j++) a += w2[i * H + j] * hidden[j];
            act[i] = tanhf(a);
        }
        memset(force, 0, sizeof force);
        for (int i = 0; i < S; i++) {
            int a = 2 * pairs[2 * i], b = 2 * pairs[2 * i + 1];
            float dx = x[a] - x[b], dy = x[a + 1] - x[b + 1], l = sqrtf(dx * dx + dy * dy) + 1e-4f;
            float f = (l - rest[i] * (1 + swing[i] * act[i])) * stiff[i] / l;
            force[a] -= f * dx; force[a + 1] -= f * dy;
            force[b] += f * dx; force[b + 1] += f * dy;
        }
        float *nx = x + 2 * N, *nv = v + 2 * N;
        for (int i = 0; i < 2 * N; i += 2) {
            float depth = fmaxf(0, GROUND - x[i + 1]);
            nv[i] = 0.98f * v[i] + DT * (force[i] - FRICTION * depth * v[i]);
            nv[i + 1] = 0.98f * v[i + 1] + DT * (force[i + 1] - 4.8f + 2000 * depth);
            nx[i] = x[i] + DT * nv[i];
            nx[i + 1] = x[i + 1] + DT * nv[i + 1];
        }
    }
    for (int i = 0; i < N; i++) loss -= x[2 * i] / N;
    return loss;
}
"""


def c(b):
    """The whole rollout in one function on one thread: what is left without any launch."""
    from ctypes import c_float

    library, T = b.c(SOURCE % globals()), steps(b)
    start, *rest = robot()
    x, v = np.zeros((2, T + 1, N, 2), np.float32)
    x[0] = start
    rollout_c = bind(library.rollout, T, x, v, *rest, returns=c_float)
    timings(b, rollout_c)
    check(b, rollout_c())


if __name__ == "__main__":
    main(api=api, c=c, warp=warp)
