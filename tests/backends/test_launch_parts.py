"""Kernels of many tasks are launched in parts, each a function of its own."""

import re
import signal
import textwrap

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cpu import codegen, outline
from tests.support.source import make


def chain(k):
    """A row of numbers for each of k loops, and the kernel that makes each of the one before."""
    x = ds.field(ds.f64, shape=(k + 1, 9), needs_grad=True)
    loops = "".join(
        f"for i in range(1, 8):\n    x[{j + 1}, i] = x[{j}, i - 1] * x[{j}, i + 1]\n"
        for j in range(k)
    )
    text = f"@ds.kernel\ndef run():\n{textwrap.indent(loops, '    ')}"
    space = {"ds": ds, "x": x}
    make(text, space)
    return x, space["run"]


def parts(kernel):
    return len(re.findall(r"define internal i1 @launch_part", kernel.llvm()))


@pytest.mark.parametrize("threads", [1, 3])
def test_tasks_are_launched_sixteen_at_a_time(threads):
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    assert [parts(chain(k)[1]) for k in (1, 16, 17, 40)] == [0, 0, 2, 3]


@pytest.mark.parametrize("longest", [outline._LONGEST, 3])
def test_values_and_gradients_of_a_chain(monkeypatch, longest):
    # Long blocks are in parts, too, which have names of their own.
    monkeypatch.setattr(outline, "_LONGEST", longest)
    monkeypatch.setattr(outline, "_PART", min(longest, outline._PART))
    ds.init(arch=ds.cpu, offline_cache=False)
    k = 20
    x, run = chain(k)
    rows, slopes = np.zeros((k + 1, 9)), np.zeros((k + 1, 9))
    rows[0] = np.linspace(0.95, 1.05, 9)
    slopes[k, 1:8] = np.linspace(-1.0, 1.0, 7)
    x.from_numpy(np.pad(rows[:1], ((0, k), (0, 0))))
    x.grad.from_numpy(slopes)
    for j in range(k):
        rows[j + 1, 1:8] = rows[j, :-2] * rows[j, 2:]
    for j in reversed(range(k)):
        slopes[j, :-2] += slopes[j + 1, 1:8] * rows[j, 2:]
        slopes[j, 2:] += slopes[j + 1, 1:8] * rows[j, :-2]
    run()
    run.grad()
    np.testing.assert_allclose(x.to_numpy(), rows, rtol=1e-12)
    np.testing.assert_allclose(x.grad.to_numpy()[0], slopes[0], rtol=1e-12, atol=1e-15)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.parametrize("most", [1, 2, 16])
def test_what_stops_a_part_stops_the_launch(monkeypatch, most):
    monkeypatch.setattr(codegen, "_MOST_TOGETHER", most)
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, default_fp=ds.f64)
    x, y = ds.field(ds.f64, shape=2), ds.field(ds.i32, shape=4)

    @ds.kernel
    def run(steps: ds.i64):
        for i in range(2):
            total = x[i]
            for _ in range(steps):
                total = total * 0.5 + 1.0
            x[i] = total
        for i in range(4):
            y[i] = 1
        for i in range(4):
            y[i] += 1

    class Rung(Exception):
        pass

    def ring(*_):
        raise Rung

    run(10)
    assert y.to_numpy().tolist() == [2] * 4
    y.fill(0)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Rung):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            run(10**12)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert y.to_numpy().tolist() == [0] * 4
