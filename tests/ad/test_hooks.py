"""What can be watched in a backward pass: each step's gradients."""

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("cpu")


@pytest.fixture
def rollout(cpu):
    """x[t + 1] = a x[t], and L = x[n]: the gradient of x[t] is a**(n - t)."""
    n, a = 6, 3.0
    x = ds.field(ds.f64, shape=n + 1, needs_grad=True)
    L = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        x[t + 1] = a * x[t]

    @ds.kernel
    def end():
        L[None] = x[n]

    x[0] = 1.0

    def run():
        for t in range(n):
            step(t)
        end()

    return n, a, x, L, run


def test_the_order_is_reverse(rollout):
    n, a, x, L, run = rollout
    seen = []

    def watch(step, grads):
        seen.append((step, grads[x][step] if step < n else grads[x][n]))

    tape = ds.Tape(L)
    assert tape.on_backward(watch) is watch
    with tape:
        run()
    assert seen == [(n, 1.0)] + [(t, a ** (n - t)) for t in reversed(range(n))]


def test_clipping(rollout):
    _n, _a, x, L, run = rollout
    with ds.Tape(L) as tape:

        @tape.on_backward
        def clip(step, grads):
            g = grads[x].to_numpy()
            grads[x].from_numpy(np.clip(g, -10.0, 10.0))

        run()
    assert x.grad[0] == 10


def test_truncation(rollout):
    """No gradient reaches the steps before the third."""
    _n, _a, x, L, run = rollout
    tape = ds.Tape()

    @tape.on_backward
    def cut(step, grads):
        if step == 3:
            grads[x].fill(0)

    with tape:
        run()
    tape.backward(L)
    assert x.grad[0] == 0


def test_several_hooks_functions_and_scopes(cpu):
    x, y, L = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))
    calls = []

    @ds.kernel
    def double():
        y[None] = 2 * x[None]

    @ds.kernel
    def end():
        L[None] = y[None]

    tape = ds.Tape()
    tape.on_backward(lambda step, grads: calls.append(("a", step, set(grads))))
    tape.on_backward(lambda step, grads: calls.append(("b", step, set(grads))))
    with tape:
        y[None] = 1.0
        tape.record_scope_begin("all of it")
        double()
        tape.record_func(lambda: calls.append("mine"), [x])
        end()
        tape.record_scope_end()
    assert tape.stats().entries == 4
    tape.backward(L)
    expected = [(h, k, fs) for k, fs in ((2, {y, L}), (1, {x}), (0, {x, y})) for h in "ab"]
    assert [c for c in calls if c != "mine"] == expected
    assert calls[2] == "mine"
    with pytest.raises(ds.ArgumentError, match="cannot be called"):
        tape.on_backward(3)


def test_seeds_of_any_shape_again_and_again(rollout):
    """backward is repeatable, from several outputs of any shape."""
    n, a, x, L, run = rollout
    tape = ds.Tape()
    with tape:
        run()
    for k in (1, 2):
        tape.backward(grads={x: np.eye(n + 1)[2] + np.eye(n + 1)[3], L: 2.0})
        assert x.grad[0] == k * (a**2 + a**3 + 2 * a**n)
    tape.zero()
    tape.backward(L, grads={L: 5.0})  # the loss wins: its seed is 1
    assert x.grad[0] == a**n
