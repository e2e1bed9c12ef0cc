"""`ds.optim.minimize` finds known minima by each method, within bounds, and says why it cannot."""

import builtins
import os
import signal

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("quick_code")

pytest.importorskip("scipy")

METHODS = "L-BFGS-B BFGS CG TNC SLSQP Newton-CG trust-ncg trust-krylov trust-constr".split()


def make(dtype=ds.f64):
    """A quadratic form of all fields: minimum at 1, 2, ... of each, of the value 3."""
    a = ds.Vector.field(2, dtype, shape=3, needs_grad=True)
    b = ds.field(dtype, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def measure():
        for i in a:
            away = a[i] - ds.Vector([2.0 * i + 1.0, 2.0 * i + 2.0])
            loss[None] += (i + 1) * away.norm_sqr() + 0.5 * away[0] * away[1]
        loss[None] += 3.0 + (b[None] - 1.0) ** 2

    def program():
        measure()
        return loss

    return a, b, loss, program


@pytest.mark.parametrize("method", METHODS)
def test_each_method_finds_the_minimum(cpu, method):
    a, b, _, program = make()
    found = ds.optim.minimize([a, b], program, method, progress=False)
    np.testing.assert_allclose(a.to_numpy().ravel(), np.arange(1, 7), atol=1e-4)
    assert b[None] == pytest.approx(1, abs=1e-4)
    assert found.loss == pytest.approx(3, abs=1e-7)
    assert found.converged
    assert found.losses[-1] == pytest.approx(found.loss)
    assert found.evaluations >= len(found.losses)


@pytest.mark.parametrize("method", ["L-BFGS-B", "TNC", "SLSQP", "trust-constr"])
def test_bounds(cpu, method):
    a, b, _, program = make()
    found = ds.optim.minimize(
        {"a": a, "b": b}, program, method, bounds={"b": (1.5, None)}, progress=False
    )
    assert b[None] == pytest.approx(1.5, abs=1e-3)
    assert found.loss == pytest.approx(3.25, abs=1e-3)
    highest = np.array([[9, 9], [9, 3.5], [9, 9]])
    ds.optim.minimize([a, b], program, method, bounds=[(0, highest), (None, None)], progress=False)
    assert a[1][1] == pytest.approx(3.5, abs=1e-3)
    # The other one of the pair moves: 4 (x - 3) + 0.5 (3.5 - 4) = 0.
    assert a[1][0] == pytest.approx(3 + 0.25 / 4, abs=1e-3)


def test_bounds_hold_for_fields_of_f32(cpu):
    x = ds.field(ds.f32, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def measure():
        loss[None] -= x[None]

    assert float(np.float32(0.1)) > 0.1  # as it rounds up
    ds.optim.minimize(x, measure, loss=loss, bounds=(None, 0.1), progress=False)
    assert 0.1 - 1e-8 < float(x[None]) <= 0.1
    x.fill(0)
    ds.optim.minimize(x, measure, loss=loss, bounds=(-1.0, 0.1), replay=True, progress=False)
    assert 0.1 - 1e-8 < float(x[None]) <= 0.1


def test_iterations_callback_and_ctrl_c(cpu, capsys):
    a, b, loss, program = make()
    found = ds.optim.minimize([a, b], program, iterations=2)
    assert len(found.losses) == 2
    assert not found.converged
    assert "2/2  loss " in capsys.readouterr().err
    a.fill(0)
    seen = []
    found = ds.optim.minimize(
        a, program, callback=lambda f: seen.append(f.loss) or len(seen) == 3, progress=False
    )
    assert len(found.losses) == len(seen) == 3
    assert "callback" in found.message
    loss.fill(0)
    assert float(program()) == found.loss  # of the best values
    a.fill(0)
    found = ds.optim.minimize(
        a, program, "BFGS", callback=lambda f: os.kill(os.getpid(), signal.SIGINT), progress=False
    )
    assert found.interrupted
    assert len(found.losses) == 1


def test_nan_names_the_operation(cpu):
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x.fill(0.5)

    @ds.kernel
    def measure():
        loss[None] -= ds.log(1.0 - x[None]) - 100.0 * (x[None] - 2.0) ** 2

    with pytest.raises(ds.AutodiffError) as caught:
        ds.optim.minimize(x, measure, loss=loss, progress=False)
    text = str(caught.value)
    assert "in evaluation 2: loss[None] became NaN" in text
    assert "ds.log(1.0 - x[None])" in text
    assert "or bound the fields" in text
    assert x[None] == 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "lbfgs"}, "there is no method 'lbfgs' that uses gradients"),
        ({"method": "Nelder-Mead"}, "there is no method 'Nelder-Mead' that uses gradients"),
        ({"method": "bfgs"}, 'write method="BFGS"'),
        ({"method": "LBFGS"}, 'write method="L-BFGS-B"'),
        ({"method": "newton_cg"}, 'write method="Newton-CG"'),
        ({"method": "trust"}, "did you mean trust-ncg?"),
        ({"method": "Adam"}, "write ds.optim.train(program, ds.optim.Adam("),
        ({"callback": lambda: True}, "callback is called with found, and its parameters are ()"),
        ({"method": "CG", "bounds": (0, 1)}, "CG knows no bounds"),
        ({"bounds": (1, 0)}, "a least value is greater than the greatest one"),
        ({"bounds": [(0, 1)]}, "the bounds of b (parameter 1) are a pair, not None"),
        ({"bounds": [(0, 1)] * 7}, "there are 7 bounds for 2 fields"),
        ({"bounds": {"v": (0, 1)}}, "there are bounds for 'v', and no parameter of this name"),
        ({"bounds": ("low", 1)}, "a bound of a is a number or an array of shape (3, 2)"),
        ({"iterations": 0}, "iterations starts at 1, and is 0"),
        ({"callback": 1}, "callback is a function, and 1 cannot be called"),
        ({"program": lambda: 3.0}, "the loss is a field of one element"),
        ({"fields": []}, "there is no parameter to optimise"),
        ({"tol": 1}, "minimize has no parameter tol"),
    ],
)
def test_wrong_arguments(cpu, change, words):
    a, b, _, program = make()
    with pytest.raises(ds.DiffsimError) as caught:
        ds.optim.minimize(**{"fields": [a, b], "program": program, "progress": False} | change)
    assert words in str(caught.value)
    assert "Hint: " in str(caught.value)


def test_errors_within_scipy_name_the_line_of_the_program(cpu):
    a, b, _, _ = make()
    with pytest.raises(ds.ArgumentError, match="the program returns nothing") as caught:
        ds.optim.minimize([a, b], lambda: None, progress=False)
    assert caught.value.span.file == __file__
    assert "ds.optim.minimize([a, b]" in str(caught.value)


def test_without_scipy(cpu, monkeypatch):
    a, b, _, program = make()
    real = builtins.__import__

    def without(name, *args, **named):
        if name.startswith("scipy"):
            raise ImportError("No module named 'scipy'")
        return real(name, *args, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ds.MissingPackageError, match=r"takes its methods from SciPy") as caught:
        ds.optim.minimize([a, b], program)
    assert 'pip install "diffsim-lang[sparse]"' in str(caught.value)
