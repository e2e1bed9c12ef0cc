"""Signatures: what `help` and editors show is how functions can be called, also by keyword."""

import inspect
import types

import numpy as np
import pytest

import diffsim as ds

MODULES = "ad algorithms linalg math optim profiler tools ui".split()


@pytest.mark.parametrize("module", [None, *MODULES])
def test_public_functions_name_their_parameters(module):
    space = getattr(ds, module) if module else ds
    nameless = [
        name
        for name in dir(space)
        if name[0] != "_"
        and callable(thing := getattr(space, name))
        and not isinstance(thing, type | types.ModuleType)
        and {"args", "kwargs"} <= set(inspect.signature(thing).parameters)
    ]
    assert nameless == []


def test_fields_take_their_options_in_taichis_order():
    order = "shape order name offset needs_grad needs_dual layout".split()
    for make in (ds.field, ds.Vector.field, ds.Matrix.field):
        assert " ".join(order) in " ".join(inspect.signature(make).parameters)
    ds.init(arch=ds.cpu)
    x = ds.field(ds.f32, 4, None, "heat", -1, True)
    assert (x.name, x.needs_grad) == ("heat", True)
    assert ds.ndarray(ds.f32, 4, True).grad.shape == (4,)


def test_init_shows_its_options():
    shown = inspect.signature(ds.init).parameters
    assert [*shown][:3] == ["arch", "default_fp", "default_ip"]
    assert shown["debug"].default is False
    assert set(ds.init.__doc__.split("Raises")[0].split()) >= {
        f"{n}:" for n in shown if n != "given"
    }
    ds.init(ds.cpu, ds.f64, ds.i64)
    assert ds.field(float, ()).dtype is ds.f64
    assert ds.field(int, ()).dtype is ds.i64


@ds.kernel
def by_keyword(x: ds.types.ndarray(ds.f64, 1), a: ds.f64):
    x[0] = ds.select(x2=a, cond=a > 1.0, x1=3.0)
    x[1] = ds.cast(dtype=ds.i32, obj=a)
    x[2] = ds.pow(exponent=3.0, base=a)
    x[3] = ds.atan2(a, x2=2.0)
    x[4] = ds.floor(x=a) + ds.floor(a, dtype=ds.i32) + ds.round(dtype=ds.i32, x=a)
    x[5] = ds.math.clamp(x=a, xmax=2.0, xmin=0.5)
    ds.atomic_add(y=a, x=x[6])
    ds.static_assert(msg="known", cond=1 < 2)
    x[7] = ds.math.mix(a=0.25, y=a, x=0.0) + ds.raw_div(x2=2.0, x1=a)


def test_arguments_by_keyword_reach_their_parameters(cpu):
    a = 2.75
    made = np.zeros(8)
    by_keyword(made, a)
    expected = [3.0, 2.0, a**3, np.arctan2(a, 2.0), 2 + 2 + 3, 2.0, a, 0.25 * a + a / 2]
    np.testing.assert_allclose(made, expected, rtol=1e-15)
    in_python = [
        ds.select(x2=a, cond=a > 1.0, x1=3.0),
        ds.cast(dtype=ds.i32, obj=a),
        ds.pow(exponent=3.0, base=a),
        ds.atan2(a, x2=2.0),
        ds.floor(x=a) + ds.floor(a, dtype=ds.i32) + ds.round(dtype=ds.i32, x=a),
        ds.math.clamp(x=a, xmax=2.0, xmin=0.5),
    ]
    np.testing.assert_allclose(in_python, expected[:6], rtol=1e-15)


def test_gradients_follow_keywords(cpu):
    x = ds.field(ds.f64, shape=1, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x[0] = 1.5

    @ds.kernel
    def compute():
        for i in x:
            ds.atomic_add(
                y=ds.pow(exponent=3.0, base=x[i]) / ds.select(x1=2.0, x2=1.0, cond=True),
                x=loss[None],
            )

    with ds.Tape(loss):
        compute()
    assert x.grad[0] == pytest.approx(3 * 1.5**2 / 2, rel=1e-14)


@ds.kernel
def misnamed(a: ds.f64) -> ds.f64:
    return ds.sin(y=a)


@ds.kernel
def twice(a: ds.f64) -> ds.f64:
    return ds.atan2(a, x1=a)


@ds.kernel
def of_taichi():
    ds.loop_config(block_dim_adaptive=False, bit_vectorize=False)
    for i in range(2):
        pass


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: misnamed(1.0), "ds.sin has no parameter y", "x"),
        (lambda: ds.sin(y=1.0), "ds.sin has no parameter y", "x"),
        (lambda: twice(1.0), "cannot be called with this and x1=", "x1, x2"),
        (lambda: ds.sqrt(1.0, dtype=ds.i32), "ds.sqrt takes no dtype", "ds.cast"),
    ],
)
def test_other_keywords_are_refused(cpu, call, message, hint):
    with pytest.raises(ds.KernelTypeError, match=message) as found:
        call()
    assert hint in found.value.hint


def test_options_of_taichis_loops_are_taken(cpu):
    of_taichi()
