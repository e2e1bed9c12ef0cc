"""Lowering takes time in proportion to the statements of a lane.

Not measured with a stopwatch: what is counted is the lines of Python that run.
"""

import sys

import pytest

import diffsim as ds
from diffsim.passes import pipeline


def programs(n):
    """Kernels whose lanes hold n unrolled turns."""
    x = ds.field(ds.f64, shape=4, needs_grad=True)
    y = ds.field(ds.f64, shape=4, needs_grad=True)
    w = ds.field(ds.f64, shape=2 * n + 1, needs_grad=True)

    @ds.kernel
    def carried():
        for i in x:
            a = x[i]
            for k in ds.static(range(n)):
                a = ds.sin(a) * w[k] + x[i]
            y[i] += a

    @ds.kernel
    def chain():
        for i in range(1):
            for k in ds.static(range(n)):
                w[k + 1] = ds.sin(w[k])

    @ds.kernel
    def same_element():
        for i in x:
            for k in ds.static(range(n)):
                y[i] = y[i] + x[i] * x[i]

    @ds.kernel
    def neighbours():
        for i in x:
            for k in ds.static(range(n)):
                y[i] += w[i + k] * w[i + k + 1]

    @ds.kernel
    def loops():
        for i in x:
            for k in ds.static(range(n)):
                for j in range(3):
                    y[i] += x[j] * w[j + k]

    @ds.kernel
    def window():
        for i in x:
            a = x[i]
            for k in ds.static(range(n)):
                a = a * w[k] + x[i]
            for j in range(3):
                y[i + j] += a * w[j]

    return {f.source.name: f for f in (carried, chain, same_element, neighbours, loops, window)}


def lines_run(work):
    """How many lines of Python a function runs."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def lower(kernel):
    """From the prepared kernel to what the backends take, forward and backward."""
    special = kernel._only(())
    for ir in (special.ir, special.derivative.ir):
        pipeline.run(ir, pipeline.LOWER)
        pipeline.run(ir, pipeline.LOWER_CUDA)


@pytest.mark.parametrize(
    "name", ["carried", "chain", "same_element", "neighbours", "loops", "window"]
)
def test_twice_the_turns_take_twice_the_work(cpu, name):
    few, many = (programs(n)[name] for n in (40, 80))
    few.ir(), many.ir()
    assert lines_run(lambda: lower(many)) < 2.2 * lines_run(lambda: lower(few))


def test_a_check_in_all_pairs_is_seen():
    def pairs(n):
        return [(a, b) for a in range(n) for b in range(n)]

    assert lines_run(lambda: pairs(80)) > 3.5 * lines_run(lambda: pairs(40))
