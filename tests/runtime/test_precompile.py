"""`ds.precompile`: kernels and adjoints are there before their first call, made by forks."""

import os
import signal
import sys

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit
from diffsim.runtime import compiler

N = 5


@pytest.fixture
def program(tmp_path):
    ds.init(arch=ds.cpu, default_fp=ds.f64, offline_cache_file_path=str(tmp_path))
    return make(np.random.default_rng().random())  # text that no earlier run has compiled


def make(number):
    x, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def power(n: ds.template(), a: ds.f64):
        for i in x:
            y[i] = a * number * x[i] ** n

    @ds.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    return x, y, loss, power, total, number


@pytest.fixture
def compiled_here(monkeypatch):
    """The texts that this process itself compiles."""
    texts, compile_ = [], Jit.compile

    def compiled(jit, text, **how):
        texts.append(text)
        return compile_(jit, text, **how)

    monkeypatch.setattr(Jit, "compile", compiled)
    return texts


@pytest.mark.host
@pytest.mark.parametrize("processes", [None, 1, 3])
def test_values_and_gradients(program, compiled_here, processes):
    x, y, loss, power, total, number = program
    ds.precompile((power, 3, 1.0), total, processes=processes)
    if sys.platform == "linux":
        assert not any("power" in text or "total" in text for text in compiled_here)
    made = len(compiled_here)
    x.from_numpy(start := np.linspace(1, 2, N))
    with ds.Tape(loss):
        power(3, 2.0)
        total()
    assert len(compiled_here) == made
    np.testing.assert_allclose(y.to_numpy(), 2 * number * start**3, rtol=1e-14)
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * number * start**2, rtol=1e-14)
    assert not compiler.ahead


@pytest.mark.host
def test_a_fork_that_fails(program, monkeypatch):
    """What it has not made is made here."""
    x, y, _, power, _, number = program
    here, compile_ = os.getpid(), Jit.compile

    def fails_elsewhere(jit, text, **how):
        assert os.getpid() == here
        return compile_(jit, text, **how)

    monkeypatch.setattr(Jit, "compile", fails_elsewhere)
    ds.precompile((power, 2, 1.0))
    x.fill(2.0)
    power(2, 1.0)
    assert y[0] == number * 4.0


def test_without_the_cache(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64, offline_cache=False)
    x, y, _, power, total, _ = make(0.5)
    ds.precompile((power, 2, 1.0), total)
    x.fill(2.0)
    power(2, 1.0)
    assert y[0] == 2.0


def test_what_is_refused(program):
    *_, power, total, _ = program
    with pytest.raises(ds.ArgumentError, match="takes kernels, not 3") as caught:
        ds.precompile(total, 3)
    assert "ds.precompile(step, (move, 0.1))" in caught.value.hint
    with pytest.raises(ds.ArgumentError, match="nothing would be compiled"):
        ds.precompile(total, processes=0)
    with pytest.raises(ds.DiffsimError, match="power is compiled for its arguments: pass some"):
        ds.precompile(power)


@pytest.mark.host
@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="a signal of POSIX")
def test_a_program_that_ignores_its_children(program):
    x, y, _, power, _, number = program
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        ds.precompile((power, 2, 1.0))
    finally:
        signal.signal(signal.SIGCHLD, before)
    x.fill(3.0)
    power(2, 1.0)
    assert y[0] == number * 9.0


@pytest.mark.host
def test_methods(program, compiled_here):
    @ds.data_oriented
    class Springs:
        def __init__(self, stiffness):
            self.stiffness = stiffness
            self.x, self.f = ds.field(ds.f64, shape=N), ds.field(ds.f64, shape=N)

        @ds.kernel
        def pull(self):
            for i in self.x:
                self.f[i] = -self.stiffness * self.x[i]

        @ds.kernel
        def move(self, dt: ds.f64):
            for i in self.x:
                self.x[i] += dt * self.f[i]

    soft, hard = Springs(2.0), Springs(7.0)
    ds.precompile(soft.pull, hard.pull, (soft.move, 0.1), hard.move)
    made = len(compiled_here)
    for springs in (soft, hard):
        springs.x.fill(1.0)
        springs.pull()
        springs.move(0.5)
    assert soft.x[0] == 1.0 - 0.5 * 2.0
    assert hard.x[0] == 1.0 - 0.5 * 7.0
    assert len(compiled_here) == made
