"""Annotations as type checkers want them: without calls, with sizes in subscripts."""

import pickle
import sys
from typing import Literal

import numpy as np
import pytest

import diffsim as ds
from tests.support.source import make

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


def test_aliases_mean_their_types(cpu):
    """`type Real = ds.f64`, which only Python 3.12 can parse, and its forerunner."""
    alias = pytest.importorskip("typing_extensions").TypeAliasType
    real = alias("real", ds.f64)
    pair, body = alias("pair", ds.types.vector(2, real)), alias("body", ds.types.struct(mass=real))

    @ds.kernel
    def total(a: real, v: pair, b: body) -> real:
        w = pair(a, 0.1)
        return ds.cast(w[1], real) + v[0] * b.mass

    assert total(1.0, [2.0, 0.0], body.__value__(mass=0.3)) == 0.1 + 2.0 * 0.3
    assert ds.field(pair, shape=2).dtype == ds.f64
    with pytest.raises(ds.DtypeError, match="the class str is not a type of numbers"):
        ds.field(alias("text", str), shape=2)


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


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python evaluates annotations at the def")
class TestEvaluatedLater:
    """Names in annotations, which Python 3.14 asks for only where they are used."""

    def test_a_name_that_is_defined_after_the_kernel(self, cpu):
        @ds.kernel
        def total(v: vec2) -> ds.f32:  # noqa: F821
            return v[0] + v[1]

        vec2 = ds.math.vec2
        assert total(vec2(1.0, 2.0)) == 3.0

    def test_a_name_that_means_something_else_afterwards(self, cpu):
        real = ds.f32

        @ds.kernel
        def same(a: real) -> real:
            return a

        real = ds.i32
        assert same(1.5) == 1.5, "what the name meant at the def, as before Python 3.14"

    @pytest.mark.parametrize(("annotated", "named"), [("vec: nowhere", "vec"), ("", "return")])
    def test_a_name_that_is_never_defined(self, cpu, annotated, named):
        result, space = "nowhere" if named == "return" else "ds.f32", {"ds": ds}
        make(f"@ds.kernel\ndef step({annotated}) -> {result}:\n    return 1.0\n", space)
        said = f"the annotation of {named} cannot be evaluated: name 'nowhere' is not defined"
        with pytest.raises(ds.KernelSyntaxError, match=said) as found:
            space["step"](*[1.0] * (named == "vec"))
        assert found.value.span.columns()[1] == len("def step() -> nowhere")

    def test_functions_of_a_program_may_name_types_for_checkers_alone(self, cpu):
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def add():
            loss[None] += x[None] * x[None]

        def step(t: Step) -> Nothing:  # noqa: F821
            add()

        x[None] = 3.0
        with ds.Tape(loss):
            ds.ad.checkpoint(step, 2, [loss])
        assert x.grad[None] == 12.0
