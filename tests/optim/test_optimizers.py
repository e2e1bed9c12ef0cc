"""`ds.optim.Adam` and `ds.optim.SGD` move fields as the published formulas say, or name what is wrong."""

import numpy as np
import pytest

import diffsim as ds


def adam(x, gradients, rates, betas=(0.9, 0.999), eps=1e-8):
    """Kingma and Ba 2015, algorithm 1, on arrays."""
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        mean = betas[0] * mean + (1 - betas[0]) * g
        square = betas[1] * square + (1 - betas[1]) * g**2
        x = x - rate * (mean / (1 - betas[0] ** t)) / (np.sqrt(square / (1 - betas[1] ** t)) + eps)
    return x


def sgd(x, gradients, rates, momentum=0.0, nesterov=False):
    """Gradient descent with momentum (Sutskever et al. 2013, in PyTorch's order)."""
    velocity = np.zeros_like(x)
    for g, rate in zip(gradients, rates, strict=True):
        velocity = momentum * velocity + g
        x = x - rate * (g + momentum * velocity if nesterov else velocity)
    return x


Body = ds.types.struct(mass=ds.f64, number=ds.i32, place=ds.types.vector(2, ds.f32))


def make_fields():
    """Fields of every kind, and the fields of numbers that they are made of."""
    body = Body.field(shape=3, needs_grad=True)
    given = [
        ds.field(ds.f64, shape=(), needs_grad=True),
        ds.field(ds.f32, shape=(2, 3), needs_grad=True),
        ds.Vector.field(3, ds.f64, shape=4, needs_grad=True, layout=ds.Layout.SOA),
        ds.Matrix.field(2, 2, ds.f64, shape=(), needs_grad=True),
        ds.Vector.ndarray(2, ds.f64, shape=(2, 2), needs_grad=True),
        body,
    ]
    return given, [*given[:5], body.mass, body.place]


def set_random(fields, random):
    """Give fields random values; returns what they hold, in f64."""
    for f in fields:
        f.from_numpy(random.normal(size=f.shape + f.element).astype(f.dtype.numpy))
    return [f.to_numpy().astype(np.float64) for f in fields]


WAYS = {
    "adam": (lambda f: ds.optim.Adam(f, 0.1), lambda x, g: adam(x, g, [0.1] * 5)),
    "adam with options": (
        lambda f: ds.optim.Adam(f, lambda k: 0.1 / (k + 1), betas=(0.5, 0.8), eps=0.1),
        lambda x, g: adam(x, g, [0.1 / (k + 1) for k in range(5)], (0.5, 0.8), 0.1),
    ),
    "descent": (lambda f: ds.optim.SGD(f, 0.1), lambda x, g: sgd(x, g, [0.1] * 5)),
    "momentum": (
        lambda f: ds.optim.SGD(f, 0.1, momentum=0.9),
        lambda x, g: sgd(x, g, [0.1] * 5, 0.9),
    ),
    "nesterov": (
        lambda f: ds.optim.SGD(f, 0.1, momentum=0.7, nesterov=True),
        lambda x, g: sgd(x, g, [0.1] * 5, 0.7, nesterov=True),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_steps_are_those_of_the_formulas(cpu, way):
    given, fields = make_fields()
    random = np.random.default_rng(0)
    start = set_random(fields, random)
    make, expected = WAYS[way]
    opt = make(given)
    seen = []
    for _ in range(5):
        seen.append(set_random([f.grad for f in fields], random))
        opt.step()
    for k, f in enumerate(fields):
        wanted = expected(start[k], [g[k] for g in seen])
        rel = 1e-13 if f.dtype is ds.f64 else 2e-6
        np.testing.assert_allclose(f.to_numpy(), wanted, rtol=rel, atol=rel)
    assert (given[5].number.to_numpy() == 0).all()
    assert opt.iteration == 5


def test_clipping_takes_the_length_of_all_gradients_together(cpu):
    given, fields = make_fields()
    random = np.random.default_rng(1)
    start = set_random(fields, random)
    gradients = set_random([f.grad for f in fields], random)
    opt = ds.optim.SGD(given, 1.0, clip_norm=0.5)
    length = np.sqrt(sum((g**2).sum() for g in gradients))
    assert opt.gradient_norm() == pytest.approx(length, rel=1e-12)
    assert length > 0.5
    opt.step()
    moved = np.sqrt(
        sum(((f.to_numpy() - x) ** 2).sum() for f, x in zip(fields, start, strict=True))
    )
    assert moved == pytest.approx(0.5, rel=1e-5)
    # A short gradient stays as it is.
    x = ds.field(ds.f64, shape=2, needs_grad=True)
    x.grad.fill(0.125)
    ds.optim.SGD(x, 1.0, clip_norm=0.5).step()
    assert x.to_numpy().tolist() == [-0.125, -0.125]


def test_huge_gradients_are_clipped(cpu):
    x = ds.field(ds.f64, shape=2, needs_grad=True)
    x.grad.from_numpy(np.array([3e200, -4e200]))  # their squares are infinite
    opt = ds.optim.SGD(x, 1.0, clip_norm=5.0)
    assert opt.gradient_norm() == pytest.approx(5e200)
    opt.step()
    np.testing.assert_allclose(x.to_numpy(), [-3.0, 4.0])


def test_schedules():
    o = ds.optim
    assert o.constant(0.5)(7) == 0.5
    assert [o.warm_up(0.4, 4)(k) for k in (0, 1, 3, 9)] == [0.1, 0.2, 0.4, 0.4]
    cosine = o.cosine(1.0, 10, least=0.2)
    np.testing.assert_allclose([cosine(k) for k in (0, 5, 10, 50)], [1.0, 0.6, 0.2, 0.2])
    assert o.exponential(2.0, 0.5)(3) == 0.25
    steps = o.step_decay(1.0, every=10, factor=0.5)
    assert [steps(k) for k in (0, 9, 10, 25)] == [1, 1, 0.5, 0.25]
    assert o.warm_up(o.exponential(1.0, 0.5), 2)(1) == 0.5


def test_a_restored_state_goes_on_with_the_same_bits(cpu):
    random = np.random.default_rng(2)
    gradients = random.normal(size=(6, 4))
    ends = []
    for interrupted in (False, True):
        x = ds.field(ds.f64, shape=4, needs_grad=True)
        opt = ds.optim.Adam({"x": x}, ds.optim.warm_up(0.1, 4))
        for k, g in enumerate(gradients):
            if interrupted and k == 3:
                state = opt.state_dict()
                opt = ds.optim.Adam({"x": x}, ds.optim.warm_up(0.1, 4))
                opt.load_state_dict(state)
            opt.scale = 0.5 if k == 1 else opt.scale
            x.grad.from_numpy(g)
            opt.step()
        ends.append(x.to_numpy())
    assert ends[0].tobytes() == ends[1].tobytes()


def test_reset_begins_anew(cpu):
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    opt = ds.optim.Adam(x, 0.1)
    x.grad.fill(2.0)
    opt.step()
    opt.step()
    opt.reset()
    x.fill(0)
    x.grad.fill(-7.0)
    opt.step()
    assert x[None] == pytest.approx(0.1)  # a first step of Adam has the length of the rate
    assert opt.iteration == 1


def test_minimises(cpu):
    x = ds.field(ds.f64, shape=3, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += (x[i] - i) ** 2

    opt = ds.optim.Adam(x, ds.optim.cosine(0.2, 200))
    for _ in range(200):
        with ds.Tape(loss):
            measure()
        opt.step()
    np.testing.assert_allclose(x.to_numpy(), [0, 1, 2], atol=1e-3)


class TestErrors:
    def test_of_parameters(self, cpu):
        plain = ds.field(ds.f64, shape=2)
        whole = ds.field(ds.i32, shape=2)
        x = ds.field(ds.f64, shape=2, needs_grad=True)
        nowhere = ds.field(ds.f64, needs_grad=True)
        for given, error, words in (
            ([x, plain], ds.MissingGradientError, "plain (parameter 1) has no gradient to follow"),
            ({"n": whole}, ds.ArgumentError, "whole holds whole numbers (i32)"),
            ([x, x], ds.ArgumentError, "x is given twice, as the parameters 0 and 1"),
            ([], ds.ArgumentError, "there is no parameter to optimise"),
            ([3.0], ds.ArgumentError, "parameter 0 is the number 3.0, and parameters are fields"),
            ({"w": np.zeros(3)}, ds.ArgumentError, "parameter w is a NumPy array of shape (3,)"),
            ([nowhere], ds.ArgumentError, "nowhere has no place in memory yet"),
            (x.grad, ds.MissingGradientError, "Hint: give the field, not its gradient"),
        ):
            with pytest.raises(error) as caught:
                ds.optim.Adam(given)
            assert words in str(caught.value)
            assert "ds.optim.Adam(given)" in str(caught.value)

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda x: ds.optim.Adam(x, lr=-1), "lr is a number from 0 on, not -1"),
            (lambda x: ds.optim.Adam(x, lr="fast"), "lr is a number, not 'fast'"),
            (lambda x: ds.optim.Adam(x, rate=1), "Adam has no parameter rate"),
            (lambda x: ds.optim.Adam(x, betas=0.9), "betas are two numbers"),
            (lambda x: ds.optim.Adam(x, betas=(0.9, 1.0)), "betas are two numbers"),
            (lambda x: ds.optim.Adam(x, eps=-1), "eps is a number from 0 on"),
            (lambda x: ds.optim.SGD(x, momentum=1.5), "momentum is a number from 0 to below 1"),
            (lambda x: ds.optim.SGD(x, nesterov=True), "nesterov=True needs a momentum"),
            (lambda x: ds.optim.SGD(x, clip_norm=0), "clip_norm is greater than 0, not 0"),
            (lambda x: ds.optim.SGD(x, lambda k: None).step(), "the learning rate of step 0 is"),
            (lambda x: ds.optim.warm_up(0.1, 0), "steps is a whole number from 1 on, not 0"),
            (lambda x: ds.optim.cosine(0.1, 1.5), "steps is a whole number, not 1.5"),
            (lambda x: ds.optim.SGD(x, lambda: 0.1), "the learning rate is called with step, and"),
            (lambda x: ds.optim.warm_up(lambda: 0.1, 3), "the learning rate is called with step"),
            (
                lambda x: ds.optim.SGD(x).zero_grad(),
                "with ds.Tape(loss) begins with all gradients 0",
            ),
            (lambda x: ds.optim.SGD(x).param_groups, "write opt.lr = 0.001"),
            (lambda x: ds.optim.SGD(x).stpe(), "did you mean .step?"),
            (lambda x: setattr(ds.optim.SGD(x), "learning_rate", 1), "write opt.lr = 0.001"),
            (lambda x: setattr(ds.optim.SGD(x), "lr", "fast"), "lr is a number, not 'fast'"),
            (lambda x: ds.optim.LBFGS, 'method="L-BFGS-B"'),
            (lambda x: ds.optim.lr_scheduler, "lr=ds.optim.cosine"),
            (lambda x: ds.optim.Adam(x, weight_decay=0.1), "add it to the loss"),
            (lambda x: ds.optim.Run().history, "there are best_iteration, best_loss"),
            (lambda x: ds.optim.Minimum().x, "x.to_numpy()"),
        ],
    )
    def test_of_options(self, cpu, call, words):
        x = ds.field(ds.f64, shape=2, needs_grad=True)
        with pytest.raises(ds.DiffsimError) as caught:
            call(x)
        assert words in str(caught.value)
        assert "Hint: " in str(caught.value)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_gradients_that_are_not_finite_move_nothing(self, cpu, value):
        speed = ds.Vector.field(2, ds.f32, shape=3, needs_grad=True)
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        opt = ds.optim.Adam([x, speed])
        opt.step()
        before = speed.to_numpy(), opt.state_dict()
        speed.grad[2] = [1.0, value]
        with pytest.raises(ds.AutodiffError) as caught:
            opt.step()
        assert f"speed.grad[2][1] is {value} before step 2: no parameter" in str(caught.value)
        assert "(1 of 6 numbers" in str(caught.value)
        assert (speed.to_numpy() == before[0]).all()
        for key, kept in before[1].items():
            assert np.array_equal(opt.state_dict()[key], kept)

    def test_the_rate_may_be_set_to_a_number(self, cpu):
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        opt = ds.optim.SGD(x, 0.5)
        opt.lr = 0.25
        x.grad[None] = 4.0
        opt.step()
        assert (x[None], opt.rate()) == (-1.0, 0.25)

    def test_a_step_on_a_tape(self, cpu):
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        opt = ds.optim.SGD(x)
        with ds.Tape(), pytest.raises(ds.AutodiffError, match="a tape is recording, and a step"):
            opt.step()

    def test_states_of_others(self, cpu):
        x = ds.field(ds.f64, shape=2, needs_grad=True)
        opt = ds.optim.Adam(x)
        good = opt.state_dict()
        y = ds.field(ds.f64, shape=3, needs_grad=True)
        z = ds.field(ds.f32, shape=2, needs_grad=True)
        for state, words in (
            (3, "the state of an optimiser is a dictionary, not the number 3"),
            (ds.optim.SGD(x).state_dict(), "it is that of 'SGD'"),
            (ds.optim.SGD(x).state_dict(), "make ds.optim.SGD, or begin anew"),
            ({k: v for k, v in good.items() if k != "mean/0"}, "it has no 'mean/0'"),
            (good | {"mean/1": 0}, "it has 'mean/1'"),
            (ds.optim.Adam(y).state_dict(), "mean/0 has shape (3,) in the state, and (2,) here"),
            (ds.optim.Adam(z).state_dict(), "mean/0 is float32 in the state, and float64 here"),
        ):
            with pytest.raises(ds.ArgumentError) as caught:
                opt.load_state_dict(state)
            assert words in str(caught.value)
