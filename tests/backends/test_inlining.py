"""Functions of tasks that a launch calls from one place are inlined first, and only those."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cpu.inlining import inline_first

N = 50


def function(name, attributes="#1", body=()):
    return [f"define internal void @{name}(ptr %p) {attributes} {{", "entry:", *body, "ret void }"]


def marked(functions, launch):
    lines = inline_first([line for f in functions for line in f], launch)
    assert len(lines) == sum(map(len, functions))
    return {re.search(r"@(\w+)", s)[1] for s in lines if " alwaysinline " in s}


def test_one_call():
    assert marked([function("task0"), function("task10")], ["call void @task10(ptr %p)"]) == {
        "task10"
    }


def test_calls_from_two_places():
    assert marked([function("task0")], ["call void @task0(ptr %p)"] * 2) == set()


def test_functions_that_threads_get():
    launch = ["call void @task0(ptr %p)", "call i64 @ds_parallel_for(ptr %p, ptr @task0)"]
    assert marked([function("task0")], launch) == set()
    assert marked([function("task0")], launch[1:]) == set()


def test_functions_that_others_call():
    other = function("seamed0", body=["call void @alone0(ptr %p)"])
    launch = ["call void @alone0(ptr %p)", "call i64 @ds_parallel_for(ptr %p, ptr @seamed0)"]
    assert marked([function("alone0"), other], launch) == set()


def test_functions_that_only_store():
    assert marked([function("task0", "#0")], ["call void @task0(ptr %p)"]) == set()


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels(threads):
    """Short tasks run on the launching thread; a long one is given to threads, where there are several."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=threads)
    x = ds.field(ds.f64, shape=N, needs_grad=True)
    y = ds.field(ds.f64, shape=N, needs_grad=True)
    z = ds.field(ds.f64, shape=400_000, needs_grad=True)

    @ds.kernel
    def run():
        for i in x:
            y[i] = ds.sin(x[i]) * x[i]
        for i in z:
            z[i] = 0.0
        for i in z:
            z[i] = y[i % N] * 2.0

    text = run.llvm()
    heads = dict(re.findall(r"(?m)^define internal void @(\w+)\(.*?\) (.*)\{$", text))
    assert heads["task0"].startswith("alwaysinline #1")
    assert "alwaysinline" not in heads["task1"]
    assert ("alwaysinline" in heads["task2"]) == ("ptr @task2," not in text)
    values = np.linspace(-1, 1, N)
    x.from_numpy(values)
    run()
    expected = np.sin(values) * values * 2
    np.testing.assert_allclose(z.to_numpy(), np.resize(expected, 400_000), rtol=1e-12)
    z.grad.fill(1.0)
    run.grad()
    slope = (np.cos(values) * values + np.sin(values)) * 2 * (400_000 // N)
    np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-9)
    ds.reset()
