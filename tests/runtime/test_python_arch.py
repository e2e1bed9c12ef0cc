"""`arch=ds.python`: the numbers of compiled code, line by line as Python itself would run the kernel."""

import sys

import numpy as np
import pytest

import diffsim as ds
from tests.fuzz import programs, rewrites


@pytest.fixture
def on_python():
    ds.init(arch=ds.python)
    yield
    ds.reset()


N = 3


@ds.func
def bend(p):
    length = p.norm()
    if length > 1.0:
        return p / length
    return p


@ds.kernel
def step(k: ds.i32, h: ds.f32, wind: ds.types.vector(2, ds.f32)):
    for i in range(N):
        p = bend(x[k, i] + h * wind)
        for j in range(3):
            p = p * 0.5 + ds.Vector([count[i], j]) * h
        x[k + 1, i] = p


@ds.kernel
def total(weights: ds.types.ndarray()):
    for i, j in ds.ndrange(N, 2):
        loss[None] += weights[i] * x[4, i][j]


@ds.kernel
def end(i: ds.i32) -> ds.types.vector(2, ds.f32):
    return x[4, i]


def run(arch, **layout):
    """Launch a small program; return its state, its result and its gradient."""
    global x, count, loss
    ds.init(arch=arch)
    x = ds.Vector.field(2, ds.f32, shape=(5, N), needs_grad=True, **layout)
    count = ds.field(ds.u8, shape=N)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)
    x.from_numpy(np.random.default_rng(1).normal(size=(5, N, 2)).astype(np.float32))
    count.from_numpy(np.array([1, 2, 250], np.uint8))
    weights = ds.ndarray(ds.f32, shape=N)
    weights.from_numpy(np.array([0.3, -2.0, 0.7], np.float32))
    with ds.ad.Tape(loss) as tape:
        for k in range(4):
            step(k, 0.1, [1.0, -0.5])
        total(weights)
    gradient = x.grad.to_numpy()
    tape.replay()
    return x.to_numpy(), list(end(1)), gradient, x.grad.to_numpy(), loss[None]


@pytest.mark.parametrize("layout", [{}, {"layout": ds.Layout.SOA}])
def test_state_result_gradient_and_replay_are_those_of_compiled_code(layout):
    compiled, stepped = run(ds.cpu, **layout), run(ds.python, **layout)
    for a, b in zip(compiled, stepped, strict=True):
        np.testing.assert_allclose(b, a, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("seed", range(2000, 2006))
def test_random_programs_agree_with_dual_numbers(seed):
    text = (programs, rewrites)[seed % 2].make(seed)
    assert programs.verdict(text, seed, "save", arch=ds.python) in ("right", "refused", "invalid")


def lines_of(function, file):
    """Call a function; return the lines of this file that debuggers would stop at, and their locals."""
    seen = []

    def trace(frame, event, _):
        if frame.f_code.co_filename != file or frame.f_code.co_name not in ("walk", "walk_grad"):
            return None
        if event == "line":
            seen.append((frame.f_code.co_name, frame.f_lineno, dict(frame.f_locals)))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return seen


def walk():
    for i in range(2):
        a = x[i] * 2.0
        while a > 1.5:
            a = a - 1.0
        if a > 0.0:
            a = a * 3.0
        else:
            a = a + 5.0
        y[i] = a


def test_a_debugger_sees_the_lines_that_python_itself_would_run(on_python):
    global x, y
    numbers = [1.75, -0.25]
    x, y = list(numbers), [0.0, 0.0]
    by_python = lines_of(walk, __file__)
    x = ds.field(ds.f64, shape=2)
    y = ds.field(ds.f64, shape=2)
    x.from_numpy(np.array(numbers))
    kernel = ds.kernel(walk)
    kernel()
    stepped = lines_of(kernel, __file__)
    # On the line of `def` the arrays get their names; a line has an event for each of its operations.
    first = walk.__code__.co_firstlineno
    stepped = [s for s in stepped if s[1] > first]
    assert [line for _, line, _ in stepped] == [line for _, line, _ in by_python]
    for (_, _, expected), (_, _, shown) in zip(by_python, stepped, strict=True):
        assert [shown.get(name) for name in "ia"] == [expected.get(name) for name in "ia"]
    assert y.to_numpy().tolist() == [4.5, 4.5]


def test_the_adjoint_steps_through_the_same_lines_with_values_to_print(on_python):
    global x, y
    x = ds.field(ds.f32, shape=2, needs_grad=True)
    y = ds.field(ds.f32, shape=2, needs_grad=True)
    kernel = ds.kernel(walk)
    x.from_numpy(np.array([0.5, -0.25], np.float32))
    kernel()
    y.grad.fill(1.0)
    seen = lines_of(kernel.grad, __file__)
    first = walk.__code__.co_firstlineno
    assert {name for name, _, _ in seen} == {"walk_grad"}
    assert all(first <= line <= first + 9 for _, line, _ in seen)
    assert seen[-1][2]["x_grad"].tolist() == x.grad.to_numpy().tolist() == [6.0, 2.0]


def test_breakpoint_stops_at_its_line_with_the_values_of_the_lane(on_python, monkeypatch):
    z = ds.field(ds.f32, shape=2)
    seen = []

    def hook():
        frame = sys._getframe(1)
        seen.append((frame.f_lineno, frame.f_locals["i"], float(frame.f_locals["b"])))

    monkeypatch.setattr(sys, "breakpointhook", hook)

    @ds.kernel
    def f():
        for i in range(2):
            b = z[i] + i
            breakpoint()
            z[i] = b

    f()
    line = f.source.head().line + 3
    assert seen == [(line, 0, 0.0), (line, 1, 1.0)]
    assert z.to_numpy().tolist() == [0.0, 1.0]


def test_breakpoint_is_a_warning_where_it_can_not_stop(cpu):
    z = ds.field(ds.f32, shape=2)

    @ds.kernel
    def f():
        for i in z:
            breakpoint()
            z[i] = 2.0

    with pytest.warns(UserWarning, match=r"stops with ds\.init\(arch=ds\.python\)"):
        f()
    assert z.to_numpy().tolist() == [2.0, 2.0]


def test_lines_are_printed_when_the_kernel_comes_to_them(on_python, capsys):
    z = ds.field(ds.f32, shape=2)

    @ds.kernel
    def f():
        for i in range(3):
            print("at", i)
            z[i] = 1.0

    with pytest.raises(ds.AccessError, match=r"\[2\] is outside z") as caught:
        f()
    assert "z[i] = 1.0" in str(caught.value)
    assert capsys.readouterr().out == "at 0\nat 1\nat 2\n"


def test_checks_of_debug_mode_fail_as_in_compiled_code():
    z = ds.field(ds.f32, shape=2)

    @ds.kernel
    def f(k: ds.i32):
        for i in range(2):
            assert k < 5, "too far"
            z[k + i] = 1.0

    texts = []
    for arch in (ds.cpu, ds.python):
        for k in (1, 7):
            ds.init(arch=arch, debug=True)
            with pytest.raises(ds.CheckError) as caught:
                f(k)
            texts.append(str(caught.value))
    ds.reset()
    assert texts[:2] == texts[2:]


def test_fields_stay_when_the_arch_changes_and_the_environment_can_ask_for_it(monkeypatch):
    monkeypatch.setenv("DIFFSIM_ARCH", "python")
    ds.init()
    assert ds.device_info() == "Python, one statement at a time"
    z = ds.field(ds.f32, shape=2)

    @ds.kernel
    def f():
        for i in z:
            z[i] += 1.0

    f()
    monkeypatch.delenv("DIFFSIM_ARCH")
    ds.init(arch=ds.cpu)
    f()
    ds.reset()
    assert z.to_numpy().tolist() == [2.0, 2.0]
