"""Gradient descent: from the heights of a thrown ball, find how strong gravity is."""

import numpy as np

import diffsim as ds

RATE = 0.6  # step of the descent
COUNT = 50  # measurements


def main(iterations: int = 100) -> None:
    """Fit height = p0 + p1 t + p2 t² [m] to noisy measurements; then gravity is -2 p2."""
    ds.init(arch=ds.cpu)
    time, height = ds.field(ds.f32, shape=COUNT), ds.field(ds.f32, shape=COUNT)  # [s], [m]
    p = ds.field(ds.f32, shape=3, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)  # mean square error [m²]

    @ds.kernel
    def compare():
        for i in time:
            error = p[0] + p[1] * time[i] + p[2] * time[i] ** 2 - height[i]
            loss[None] += error**2 / COUNT

    @ds.kernel
    def descend():
        for i in p:
            p[i] += -RATE * p.grad[i]

    t = np.linspace(-1, 1, COUNT)  # 0 is the middle of the throw
    noise = np.random.default_rng(0).normal(0, 0.02, COUNT)
    time.from_numpy(t.astype(np.float32))
    height.from_numpy((6 + 2 * t - 9.81 / 2 * t**2 + noise).astype(np.float32))
    for i in range(iterations):
        with ds.Tape(loss):
            compare()
        if i % 10 == 0 or i == iterations - 1:
            print(f"iteration {i:3}  loss {loss[None]:9.5f} m²  gravity {abs(2 * p[2]):.3f} m/s²")
        descend()


if __name__ == "__main__":
    main()
