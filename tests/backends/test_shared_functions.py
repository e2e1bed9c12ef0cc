"""Tasks that are the same but for their bounds have one function."""

import re

import numpy as np
import pytest

import diffsim as ds
from tests.support.source import make


def functions(kernel):
    return len(re.findall(r"define internal void @task", kernel.llvm()))


def stencil(reach, shape):
    """Squares of neighbours' sums, and the kernel."""
    x = ds.field(ds.f64, shape=shape, needs_grad=True)
    y = ds.field(ds.f64, shape=shape, needs_grad=True)
    box = tuple((reach, n - reach) for n in shape)
    around = [(-reach, reach + 1)] * len(shape)

    @ds.kernel
    def run():
        for I in ds.grouped(ds.ndrange(*box)):
            total = 0.0
            for D in ds.static(ds.grouped(ds.ndrange(*around))):
                total += x[I + D] * (1.0 + D.sum())
            y[I] = total * total

    return x, y, run


def gradient(values, seeds, reach):
    """The gradient of the stencil's sum of seeds * squares, in NumPy."""
    found = np.zeros_like(values)
    inside = tuple(slice(reach, n - reach) for n in values.shape)
    offsets = list(np.ndindex((2 * reach + 1,) * values.ndim))
    views = [
        tuple(slice(o, o + n - 2 * reach) for o, n in zip(d, values.shape, strict=True))
        for d in offsets
    ]
    weights = [1.0 + sum(d) - reach * values.ndim for d in offsets]
    total = sum(w * values[v] for w, v in zip(weights, views, strict=True))
    for w, v in zip(weights, views, strict=True):
        found[v] += 2 * w * total * seeds[inside]
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("reach", "shape", "most"),
    # The inside, rims with short rows and those with long ones, and what clears the gradient of y; from five
    # neighbours on, what stores the sum that all are given a multiple of.
    [(1, (9,), 3), (2, (40,), 4), (1, (12, 40), 5), (1, (7, 8, 24), 5), (2, (9, 9, 9), 5)],
)
def test_rims_share_a_function(threads, reach, shape, most):
    ds.init(arch=ds.cpu, default_fp=ds.f64, cpu_max_num_threads=threads)
    x, y, run = stencil(reach, shape)
    random = np.random.default_rng(1)
    values, seeds = random.uniform(-1, 1, shape), random.uniform(-1, 1, shape)
    x.from_numpy(values)
    run()
    y.grad.from_numpy(seeds)
    run.grad()
    expected = gradient(values, seeds, reach)
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-12, atol=1e-12)
    assert functions(run.grad) <= most
    ds.reset()


def test_sweeps_that_a_kernel_writes_down_again(cpu):
    a = ds.field(ds.f64, shape=20, needs_grad=True)
    b = ds.field(ds.f64, shape=20, needs_grad=True)

    @ds.kernel
    def sweeps():
        for _ in ds.static(range(6)):
            for i in range(1, 19):
                b[i] = 0.5 * (a[i - 1] + a[i + 1])
            for i in range(1, 19):
                a[i] = b[i]

    values = np.random.default_rng(0).uniform(-1, 1, 20)
    a.from_numpy(values)
    sweeps()
    for _ in range(6):
        values[1:-1] = 0.5 * (values[:-2] + values[2:])
    np.testing.assert_allclose(a.to_numpy(), values, rtol=1e-14)
    assert functions(sweeps) == 2


def test_other_bounds_numbers_and_fields(cpu):
    x = ds.field(ds.f64, shape=90)
    y = ds.field(ds.f64, shape=90)

    @ds.kernel
    def fill(n: ds.i32):
        for i in range(10):
            x[i] += 1.0 * i
        for i in range(n, 30):
            x[i] += 1.0 * i
        for i in range(30, 20):
            x[i] += 1.0 * i
        for i in range(40, 2 * n):
            x[i] += 1.0 * i
        for i in range(70, 80):
            x[i] += 2.0 * i
        for i in range(80, 90):
            y[i] += 1.0 * i

    fill(25)
    i = np.arange(90)
    once = (i < 10) | ((25 <= i) & (i < 30)) | ((40 <= i) & (i < 50))
    np.testing.assert_array_equal(x.to_numpy(), i * (once + 2 * ((70 <= i) & (i < 80))))
    np.testing.assert_array_equal(y.to_numpy(), i * (i >= 80))
    assert functions(fill) == 3


def test_alias_scopes_are_those_of_a_task(cpu):
    """Each access names the scopes of what its own task touches, not those of the whole kernel."""

    def nodes(count):
        fields = [ds.field(ds.f32, shape=8) for _ in range(count + 1)]
        text = "\n".join(
            f"    for i in range(8):\n        f{k + 1}[i] = f{k}[i] + {k}.5" for k in range(count)
        )
        space = {"ds": ds, **{f"f{k}": f for k, f in enumerate(fields)}}
        make(f"@ds.kernel\ndef run():\n{text}\n", space)
        space["run"]()
        lines = space["run"].llvm().splitlines()
        return sum(len(line.split(",")) for line in lines if re.match(r"!\d+ = !\{", line))

    assert nodes(16) < 1.1 * 2 * nodes(8)
