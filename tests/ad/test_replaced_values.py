"""Loops that replace a carried value: only the last iteration that did has an adjoint."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import check

N, K = 19, 12


def kernels(x, w, at, count, total):
    """Kernels by name; those of the first list replace values, in the others something else happens too."""

    @ds.kernel
    def smallest():
        """Each lane's least value."""
        for i in x:
            best = 3.0 * x[i]
            for k in range(count[i]):
                best = ds.min(best, w[at[k]] * w[at[k]] * x[i] + ds.sin(w[k]))
            total[None] += best * best

    @ds.kernel
    def largest_first():
        """The new value stands first, so it wins ties."""
        for i in x:
            best = -9.0
            for k in range(count[i]):
                best = ds.max(w[at[k]] * x[i], best)
            total[None] += best * x[i]

    @ds.kernel
    def with_place():
        """Two values replaced by one branch, and a number that counts."""
        for i in x:
            best, other, found = 20.0, x[i], 0
            for k in range(count[i]):
                far = (w[at[k]] - x[i]) ** 2
                if far < best:
                    best, other = far, w[k] * x[i]
                    found += 1
            total[None] += best + 2.0 * other * found

    @ds.kernel
    def in_branches():
        """Replaced in some iterations only, in one of two ways."""
        for i in x:
            best = x[i]
            for k in range(count[i]):
                if at[k] % 3 > 0:
                    if w[k] > 0.0:
                        best = ds.max(best, w[k] * x[i])
                    else:
                        best = ds.select(at[k] > 5, ds.cos(w[k]) * x[i], best)
            total[None] += best**3

    @ds.kernel
    def nested():
        """A minimum over pairs, and one that the inner loop may not reach."""
        for i in x:
            best = x[i] ** 2
            for k in range(count[i]):
                for m in range(at[k] % 4):
                    best = ds.min(best, (w[k] - w[m] * x[i]) ** 2)
            total[None] += ds.exp(-best)

    @ds.kernel
    def beside_a_sum():
        """A sum and two extremes, each of its own iteration, in one loop."""
        for i in x:
            low, high, added = 9.0, -9.0, 0.0
            for k in range(count[i]):
                v = w[at[k]] * x[i]
                low = ds.min(low, v)
                high = ds.max(high, v * v)
                added += v * w[k]
            total[None] += low * high + added

    @ds.kernel
    def chained():
        """The second smallest comes from the smallest, so its derivative passes iterations on."""
        for i in x:
            best, second = 8.0, 9.0
            for k in range(count[i]):
                v = w[at[k]] ** 2 * x[i]
                second = ds.min(second, ds.max(best, v))
                best = ds.min(best, v)
            total[None] += second * x[i]

    @ds.kernel
    def decaying():
        """What is kept changes, so every iteration has an adjoint."""
        for i in x:
            best = x[i]
            for k in range(count[i]):
                best = ds.max(0.9 * best, w[at[k]] * x[i])
            total[None] += best

    @ds.kernel
    def stopped():
        """A loop that is left early, with at most K iterations, and what it has found."""
        for i in x:
            t, best = x[i], 5.0
            for k in range(K):
                best = ds.min(best, 1.0 + (w[at[k]] - t) ** 2)
                if best < 1.05 or k >= count[i]:
                    break
                t += 0.5 * best * ds.sin(w[k])
            total[None] += t * best

    return locals()


SKIPPING = ["smallest", "largest_first", "with_place", "in_branches", "nested", "beside_a_sum"]
OTHERS = ["chained", "decaying", "stopped"]


@pytest.fixture
def fields(cpu, quick_code):
    cpu.init(arch=cpu.cpu, default_fp=cpu.f64, rules="lifted")
    random = np.random.default_rng(5)
    x, w, total = (ds.field(ds.f64, shape=s, needs_grad=True) for s in (N, K, ()))
    at, count = (ds.field(ds.i32, shape=s) for s in (K, N))
    x.from_numpy(random.uniform(0.4, 1.6, N))
    w.from_numpy(random.standard_normal(K))
    at.from_numpy(random.integers(0, K, K).astype("i4"))
    # Some loops have no iteration, or fewer than none.
    count.from_numpy(np.minimum(random.permutation(N) % (K + 4) - 2, K).astype("i4"))
    return x, w, at, count, total


@pytest.mark.parametrize("name", SKIPPING + OTHERS)
def test_gradients(fields, name):
    x, w, *_, total = fields
    kernel = kernels(*fields)[name]
    check(kernel, total, x, w)
    saves = "scratch" in kernel.grad.ir()
    assert saves == (name not in SKIPPING)
