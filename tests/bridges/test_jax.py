"""`ds.jax.wrap`, with the real JAX: its own checks of gradients, `jit` and `vmap`."""

import importlib

import numpy as np
import pytest

import diffsim as ds

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
N = 3


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    jax.config.update("jax_enable_x64", True)


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


class Pendulum:
    def __init__(self):
        self.x, self.v, self.push = (ds.field(ds.f64, shape=N) for _ in range(3))
        self.rate = ds.field(ds.f64, shape=())
        self.rate[None] = 1.0

    @ds.kernel
    def move(self, dt: ds.f64):
        for i in self.x:
            self.v[i] += dt * (self.push[i] - self.rate[None] * ds.sin(self.x[i]))
            self.x[i] += dt * self.v[i] * self.v[i]

    def wrapped(self, **options):
        return ds.jax.wrap(
            self.move, inputs=[self.x, self.v, self.push], outputs=[self.x, self.v], **options
        )


def same_step(x, v, push, dt):
    v = v + dt * (push - jnp.sin(x))
    return x + dt * v * v, v


def test_check_grads():
    check_grads = importlib.import_module("jax.test_util").check_grads
    arrays = tuple(numbers(N, seed=k) for k in range(3))
    reverse, forward = (Pendulum().wrapped(mode=m) for m in ("reverse", "forward"))
    check_grads(lambda *a: reverse(*a, 0.3), arrays, order=1, modes=["rev"])
    check_grads(lambda *a: forward(*a, 0.3), arrays, order=1, modes=["fwd"])


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_loop_with_a_policy(jit):
    weights = numbers(N, N, seed=4)
    step = Pendulum().wrapped()

    def loss(weights, one):
        x, v = numbers(N, seed=1), jnp.zeros(N)
        total = 0.0
        for _ in range(10):
            x, v = one(x, v, jnp.tanh(weights @ x), 0.1)
            total += (x * x).sum()
        return total

    found = jit(jax.grad(lambda w: loss(w, step)))(weights)
    assert np.allclose(found, jax.grad(lambda w: loss(w, same_step))(weights), rtol=1e-12)


def test_fields_are_as_they_were():
    p = Pendulum()
    step = p.wrapped()
    p.x.fill(4.0)
    p.v.fill(5.0)
    before = p.x.versions.latest
    jax.block_until_ready(jax.grad(lambda x: step(x, x, x, 0.1)[0].sum())(numbers(N)))
    assert p.x.to_numpy().tolist() == [4.0] * N
    assert p.v.to_numpy().tolist() == [5.0] * N
    assert p.x.versions.latest == before


def test_vmap_calls_one_after_the_other():
    step = Pendulum().wrapped()
    batch = [numbers(5, N, seed=k) for k in range(3)]

    def loss(one):
        return lambda x, v, u: (one(x, v, u, 0.3)[0] ** 2).sum()

    found = jax.jit(jax.vmap(jax.grad(loss(step))))(*batch)
    assert np.allclose(found, jax.vmap(jax.grad(loss(same_step)))(*batch), rtol=1e-12)


def test_whole_numbers():
    index, x, y, rank = (ds.field(t, shape=N) for t in (ds.i32, ds.f64, ds.f64, ds.i32))

    @ds.kernel
    def gather():
        for i in x:
            y[i] = x[index[i]] ** 2
            rank[i] = index[i] + 1

    places, a = jnp.asarray([2, 0, 2], jnp.int32), numbers(N)
    expected = np.array([2.0, 0.0, 4.0]) * a
    reverse = ds.jax.wrap(gather, inputs=[index, x], outputs=[y, rank])
    forward = ds.jax.wrap(gather, inputs=[index, x], outputs=[y, rank], mode="forward")
    assert reverse(places, a)[1].tolist() == [3, 1, 3]
    assert np.allclose(jax.grad(lambda a: reverse(places, a)[0].sum())(a), expected)
    assert np.allclose(jax.jacfwd(lambda a: forward(places, a)[0].sum())(a), expected)


def test_random_numbers_are_the_same_in_each_call():
    x, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))

    @ds.kernel
    def noisy():
        for i in x:
            y[i] = x[i] * ds.random(ds.f64)

    f = ds.jax.wrap(noisy, inputs=[x], outputs=[y])
    a = 1.0 + numbers(N) ** 2
    assert np.allclose(jax.jit(jax.grad(lambda a: f(a).sum()))(a), f(a) / a, rtol=1e-13)


# --- refused --------------------------------------------------------------------------------------


def test_state_that_changes_between_a_call_and_its_gradient_is_refused():
    p = Pendulum()
    step = p.wrapped()
    a = numbers(N)
    _, pull = jax.vjp(lambda x: step(x, a, a, 0.3)[0], a)
    pull(a)
    p.rate[None] = 2.0
    with pytest.raises(Exception, match="have changed between a call and its gradient"):
        jax.block_until_ready(pull(a))


def test_a_second_derivative_is_refused():
    step = Pendulum().wrapped()
    a = numbers(N)
    with pytest.raises(ValueError, match="Pure callbacks do not support"):
        jax.grad(lambda y: jax.grad(lambda x: step(x, x, x, 0.3)[0].sum())(y).sum())(a)


WRONG = [
    (lambda s, a: s(a, a), "argument 3 of move is an array for the field push"),
    (
        lambda s, a: s(a, 1.0, a, 0.3),
        "argument 2 of move is an array for the field v, not the number",
    ),
    (lambda s, a: s(a, a, a[:2], 0.3), r"has shape \(2,\), and the field push needs \(3,\)"),
    (lambda s, a: s(a, a, a.astype("float32"), 0.3), "holds float32, and the field push f64"),
    (lambda s, a: s(a, a, a, a), "argument 4 of move is an array of JAX, and not among the inputs"),
    (lambda s, a: ds.jax.wrap(print), "inputs and outputs are fields"),
    (lambda s, a: ds.jax.wrap(print, inputs=[], outputs=[], mode="both"), "is not possible"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[m[:40] for _, m in WRONG])
def test_wrong_calls(wrong, message):
    p = Pendulum()
    push, v, x = p.push, p.v, p.x
    step = ds.jax.wrap(p.move, inputs=[x, v, push], outputs=[x, v])
    with pytest.raises(ds.ArgumentError, match=message.replace("field ", "field (p\\.)?")):
        wrong(step, numbers(N))
