"""The cart-pole example: its gradient, its loss falls, and it writes what it says."""

import numpy as np
import pytest


def reference(example, weights, start, steps):
    """The loss in NumPy and f64."""
    s, loss = start.astype(np.float64), 0.0
    total = example.CART + example.POLE

    def rates(s, force):
        sin, cos = np.sin(s[:, 2]), np.cos(s[:, 2])
        drive = (force + example.POLE * example.HALF * s[:, 3] ** 2 * sin) / total
        below = example.HALF * (4 / 3 - example.POLE * cos**2 / total)
        turn = (example.GRAVITY * sin - cos * drive) / below
        push = drive - example.POLE * example.HALF * turn * cos / total
        return np.stack([s[:, 1], push, s[:, 3], turn], -1)

    for _ in range(steps):
        hidden = np.tanh(s @ weights["w_in"].T + weights["b_in"])
        force = example.PUSH * np.tanh(hidden @ weights["w_out"])
        s = s + example.DT * rates(s + 0.5 * example.DT * rates(s, force), force)
        loss += (np.array(example.COSTS) * s**2).sum() / (len(s) * steps)
    return loss


def test_gradient(cpu, example):
    """Along random directions, against differences of the same formulas in NumPy."""
    ds, example = cpu, example("cart_pole")
    carts = example.Carts(5, 12, np.random.default_rng(3))
    with ds.Tape(carts.loss):
        carts.run()
    start = carts.state.to_numpy()[0]
    weights = {name: f.to_numpy().astype(np.float64) for name, f in carts.weights.items()}
    assert carts.loss[None] == pytest.approx(reference(example, weights, start, 12), rel=1e-5)
    random = np.random.default_rng(0)
    for name, f in carts.weights.items():
        along = random.standard_normal(weights[name].shape)
        ends = [
            reference(example, weights | {name: weights[name] + h * along}, start, 12)
            for h in (1e-5, -1e-5)
        ]
        slope = (f.grad.to_numpy() * along).sum()
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-5)


def test_it_learns_and_writes(cpu, example, tmp_path, capsys):
    example("cart_pole").main(
        ["--iterations", "12", "--steps", "40", "--carts", "8", "--out", tmp_path]
    )
    printed = capsys.readouterr().out.split()
    first, best = float(printed[2].rstrip(",")), float(printed[4].rstrip(","))
    assert best < 0.8 * first
    names = "cart_pole.html checkpoint.npz log.csv loss.png weights.npz"
    assert sorted(path.name for path in tmp_path.iterdir()) == names.split()
