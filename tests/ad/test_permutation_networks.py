"""Networks that sort in place, pair by pair: the gradient of a sort is the inverse permutation."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError
from tests.fuzz import networks
from tests.support import source

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")
N = 16
SWAP = "    if (y[i] > y[o]) == up:\n        a = y[i]\n        y[i] = y[o]\n        y[o] = a\n"
BITONIC = {
    "exclusive or": "o = i ^ j\nif o > i:\n",
    "a bit that is not set": "o = i + j\nif i & j == 0:\n",
    "or": "o = i | (1 << q)\nif i & (1 << q) == 0 and o < 16:\n",
    # Right for powers of two alone: each launch is asked.
    "a quotient": "o = i + j\nif i // j % 2 == 0:\n",
    "all numbers with a bit": "o = i | j\nif o != i:\n",
}
ODD_EVEN = {
    "one parity": "o = i + 1\nif i % 2 == j and o < 16:\n",
}


def kernels(condition, **options):
    """The fields, and a function that launches one stage."""
    ds.init(default_fp=ds.f64, rules="lifted", **options)
    x, y, w = (ds.field(ds.f64, shape=N, needs_grad=g) for g in (True, True, False))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    body = (condition + SWAP).replace("\n", "\n        ")
    space = dict(ds=ds, x=x, y=y, w=w, loss=loss)
    source.make(
        "@ds.kernel\ndef begin():\n    for i in x:\n        y[i] = x[i]\n"
        "@ds.kernel\ndef end():\n    for i in x:\n        loss[None] += w[i] * y[i]\n"
        "@ds.kernel\ndef stage(k: ds.i32, j: ds.i32, q: ds.i32):\n    for i in x:\n"
        f"        up = (i & k) == 0\n        {body}\n",
        space,
    )
    return space


def sort(space, launches, seed=0):
    """The sorted numbers and the gradient, beside what they are."""
    random = np.random.default_rng(seed)
    numbers, weights = random.uniform(-1, 1, (2, N))
    space["x"].from_numpy(numbers)
    space["w"].from_numpy(weights)
    with ds.Tape(space["loss"]):
        space["begin"]()
        for args in launches:
            space["stage"](*args)
        space["end"]()
    assert np.array_equal(space["y"].to_numpy(), np.sort(numbers))
    assert np.array_equal(space["x"].grad.to_numpy(), weights[np.argsort(np.argsort(numbers))])


STAGES = [(2 << a, 1 << b, b) for a in range(4) for b in range(a, -1, -1)]


@pytest.mark.parametrize("form", BITONIC)
def test_bitonic(form):
    space = kernels(BITONIC[form], arch=ds.cpu)
    for seed in range(2):
        sort(space, STAGES, seed)


@pytest.mark.parametrize("form", ODD_EVEN)
def test_odd_even(form):
    sort(kernels(ODD_EVEN[form], arch=ds.cpu), [(0, t % 2, 0) for t in range(N)])


@pytest.mark.parametrize(
    "options",
    [dict(arch=ds.python), dict(arch=ds.cpu, debug=True, cpu_max_num_threads=2)],
)
def test_in_other_ways(options):
    sort(kernels(BITONIC["exclusive or"], **options), STAGES)


@pytest.mark.parametrize(
    "condition",
    [
        "o = i ^ j\nif o != i:\n",  # both lanes of a pair
        "o = i | j\nif o > i:\n",  # 0 | 3 and 1 | 3
        "o = i + j\nif i & k == 0 and o < 16:\n",  # another mask
    ],
)
def test_lanes_that_may_meet(condition):
    space = kernels(condition, arch=ds.cpu)
    with pytest.raises(GlobalDataAccessError, match="y"):
        sort(space, [(8, 3, 0)])


def test_random_networks():
    said = [networks.verdict(networks.make(seed), seed) for seed in (100, 101)]
    assert {"right", "refused"} == set(said)
