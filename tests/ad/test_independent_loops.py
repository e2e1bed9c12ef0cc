"""`ds.loop_config(independent=True)`: the user's word that iterations do not meet, and who checks it."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError, KernelTypeError
from tests.support.gradients import check, field, numbers
from tests.support.rules import refused
from tests.support.source import line_of

pytestmark = pytest.mark.usefixtures("quick_code", "cpu")


@pytest.fixture(params=["plain", "debug"])
def program(request):
    ds.init(arch=ds.cpu, default_fp=ds.f64, debug=request.param == "debug")
    x, out, loss = field(6), field(64), field()
    chance = ds.field(ds.i32, shape=6)

    @ds.kernel
    def scatter(spread: ds.i32):
        ds.loop_config(independent=True)
        for i in x:
            k = spread * i + ds.cast(ds.random(ds.f64) * 4.0, ds.i32)
            chance[i] = k
            out[k] = x[i] ** 2

    @ds.kernel
    def total():
        for k in out:
            loss[None] += k * out[k]

    x.from_numpy(numbers(6))
    return request.param, x, chance, scatter, total, loss


def test_the_word_is_taken_where_nothing_can_be_told(program):
    _, x, chance, scatter, total, loss = program
    with ds.Tape(loss):
        scatter(4)
        total()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * chance.to_numpy() * x.to_numpy(), rtol=1e-14)


def test_a_wrong_word_is_found(program):
    mode, _x, _chance, scatter, total, loss = program
    if mode == "debug":
        with pytest.raises(GlobalDataAccessError) as caught:
            for _ in range(50):
                scatter(0)
        error = caught.value
    else:
        with pytest.raises(GlobalDataAccessError) as caught:
            for _ in range(50):
                with ds.Tape(loss, validation=True):
                    scatter(0)
                    total()
        error = caught.value
    assert "of this parallel loop both write out[" in error.message
    assert "though ds.loop_config(independent=True) says that they do not meet" in error.message
    assert error.span.line == line_of(scatter, "out[k] =")
    with ds.Tape(loss, validation=True):
        scatter(4)
        total()


def test_the_iterations_and_the_element_are_named():
    ds.init(arch=ds.cpu, default_fp=ds.f64, debug=True)
    x, v, loss = field((4, 5)), field(4, n=2), field()
    a = ds.field(ds.i32, shape=4)

    @ds.kernel
    def reads_first(n: ds.i32):
        ds.loop_config(independent=True)
        for i, j in ds.ndrange((1, 4), n):
            x[i, j] = 2.0 * x[i - a[i], j]

    @ds.kernel
    def writes_later():
        ds.loop_config(independent=True)
        for i in range(3):
            x[i, 0] = 2.0 * x[i + a[i], 1 - a[i]]

    @ds.kernel
    def parts():
        ds.loop_config(independent=True)
        for i in v:
            v[a[i]].x = 1.0
            v[3 - a[i]].y = 2.0

    @ds.kernel
    def sums():
        ds.loop_config(independent=True)
        for i in range(4):
            x[a[i], 0] += 1.0
            if i == 3:
                x[a[i], 0] = 2.0

    def fails(launch, message):
        with pytest.raises(GlobalDataAccessError) as caught:
            launch()
        assert message in caught.value.message

    a.from_numpy(np.array([0, 0, 0, 0], np.int32))
    reads_first(5)
    reads_first(5)
    a.from_numpy(np.array([0, 0, 1, 0], np.int32))
    fails(
        lambda: reads_first(2),
        "iteration (2, 0) of this parallel loop reads x[1, 0], and iteration (1, 0)",
    )
    a.from_numpy(np.array([1, 0, 0, 0], np.int32))
    fails(
        writes_later, "iteration 0 of this parallel loop reads x[1, 0], and iteration 1 writes it"
    )
    a.from_numpy(np.array([0, 1, 2, 3], np.int32))
    parts()
    sums()
    a.from_numpy(np.array([0, 1, 2, 1], np.int32))
    fails(parts, "iterations 1 and 3 of this parallel loop both write v[1]")
    fails(sums, "iterations 1 and 3 of this parallel loop both write x[1, 0]")
    a.fill(0)
    fails(sums, "iterations 0 and 3")
    a.from_numpy(np.array([0, 0, 0, 1], np.int32))
    sums()  # several may add


def test_launches_are_not_asked_then(monkeypatch):
    from diffsim.runtime.kernels import launch_checks

    x, out, loss = field(6), field(6), field()
    slot = ds.field(ds.i32, shape=6)
    slot.from_numpy(np.array([3, 1, 0, 2, 5, 4], np.int32))

    @ds.kernel
    def scatter():
        ds.loop_config(independent=True)
        for i in x:
            out[slot[i]] = x[i] ** 2

    @ds.kernel
    def one_element():
        ds.loop_config(independent=True)
        for i in x:
            out[0] = x[i] ** 2

    @ds.kernel
    def total():
        for k in out:
            loss[None] += k * out[k]

    monkeypatch.setattr(launch_checks.TraceRun, "accesses", None)
    x.from_numpy(numbers(6))
    check(lambda: (scatter(), total()), loss, x)
    monkeypatch.undo()
    error = refused(lambda: (one_element(), total()), loss, GlobalDataAccessError)
    assert "iterations 0 and 1 of this parallel loop both store out[0]" in error.message


def test_the_option_is_for_parallel_loops():
    x = field(4)

    @ds.kernel
    def both():
        ds.loop_config(serialize=True, independent=True)
        for i in x:
            x[i] = 1.0

    with pytest.raises(KernelTypeError, match="leave out one of the two"):
        both()
