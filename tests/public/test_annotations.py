"""Annotations as type checkers want them: without calls, with sizes in subscripts."""

import pickle
from typing import Literal

import numpy as np
import pytest

import diffsim as ds

vec3 = ds.types.vector[Literal[3], ds.f64]
mat23 = ds.types.matrix[Literal[2], Literal[3], ds.f64]


@ds.func
def scaled(x: ds.template, factor):
    x *= factor


@ds.kernel
def compute(
    a: ds.types.ndarray,
    b: ds.types.ndarray[ds.f64, Literal[1]],
    x: ds.template,
    v: vec3,
    m: mat23,
) -> vec3:
    for i in range(3):
        x[i] += a[i] * b[i]
    w = ds.types.vector(3, ds.f64)(v[0], v[1], v[2])
    scaled(w, 2.0)
    u = m @ w
    return vec3(u[0], u[1], w[2])


def test_classes_without_a_call_are_annotations(cpu):
    x = ds.field(ds.f64, shape=3)
    a = np.arange(3.0)
    m = mat23(1, 0, 0, 0, 1, 0)
    made = compute(a, a + 1, x, vec3(1.0, 2.0, 3.0), m)
    assert made.to_list() == [2.0, 4.0, 6.0]
    assert x.to_numpy().tolist() == [0.0, 2.0, 6.0]


def test_wrong_arrays_are_refused(cpu):
    x = ds.field(ds.f64, shape=3)
    a = np.arange(3.0)
    for wrong in (a[:, None], a.astype(np.float32)):
        with pytest.raises(ds.KernelTypeError):
            compute(a, wrong, x, vec3(0), mat23(0))


def test_subscripts_mean_the_calls():
    assert vec3 == ds.types.vector(3, ds.f64)
    assert mat23 == ds.types.matrix(2, 3, ds.f64)
    assert ds.types.ndarray[ds.f32, 2] == ds.types.ndarray(ds.f32, 2)
    assert ds.types.ndarray[vec3] == ds.types.ndarray(dtype=vec3)
    assert pickle.loads(pickle.dumps(ds.types.ndarray)) is ds.types.ndarray


@pytest.mark.parametrize(
    "make",
    [
        lambda: ds.types.vector[Literal["3"], ds.f32],
        lambda: ds.types.vector[0, ds.f32],
        lambda: ds.types.vector[3.5],
        lambda: ds.types.matrix[2, ds.f32],
        lambda: ds.types.ndarray[ds.f32, Literal[-1]],
        lambda: ds.types.ndarray["f32"],
    ],
)
def test_wrong_subscripts_are_errors_of_diffsim(make):
    with pytest.raises(ds.DiffsimError) as found:
        make()
    assert "test_annotations.py" in str(found.value)


def test_types_is_a_module():
    import diffsim.types
    from diffsim.types import f32, vector

    assert diffsim.types is ds.types
    assert vector(2, f32) == ds.types.vector(2, ds.f32)
    with pytest.raises(AttributeError, match="vectro"):
        ds.types.vectro


def test_templates_take_taichis_arguments():
    assert ds.template(tensor=None, dim=2) == ds.template()
