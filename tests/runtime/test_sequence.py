"""Sequences: moves of memory against NumPy, and stretches of any two arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.sequence import Stretches, new_sequence, stretches

pytestmark = pytest.mark.host  # a GPU has no replays yet


def views(shape, dtype):
    """Arrays of one shape that lie in memory in different ways."""
    n = int(np.prod(shape))
    yield "in order", np.zeros(n, dtype).reshape(shape)
    yield "backward order", np.zeros(n, dtype).reshape(shape[::-1]).T
    wide = tuple(2 * k for k in shape)
    yield (
        "every other",
        np.zeros(4 ** len(shape) * n, dtype)[: int(np.prod(wide))].reshape(wide)[
            tuple(slice(None, None, 2) for _ in shape)
        ],
    )
    yield "a row", np.zeros((3, *shape), dtype)[1]
    yield "a column", np.zeros((*shape, 3), dtype)[..., 1]
    yield "in blocks", np.zeros((shape[0], 3, *shape[1:]), dtype)[:, 2]


def numpy_move(step, a, b):
    if step == "copy":
        a[...] = b
    elif step == "swap":
        a[...], b[...] = b.copy(), a.copy()
    elif step == "clear":
        a[...] = 0
    else:
        a += b


def native_move(step, a, b):
    """The same in a sequence; False if there is none."""
    found = stretches(a, b)
    if found is None:
        return False
    sequence = new_sequence()
    if step == "clear":
        sequence.add_clear(found[0])
    elif step == "sum":
        sequence.add_sum(*found, {4: ds.f32, 8: ds.f64}[a.itemsize])
    else:
        getattr(sequence, f"add_{step}")(*found)
    sequence.run()
    assert sequence.done == 1
    return True


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (2, 1, 3), (1, 1)])
@pytest.mark.parametrize(
    ("dtype", "step"),
    [
        *itertools.product((np.float32, np.int8), ("copy", "swap", "clear")),
        *itertools.product((np.float32, np.float64), ("sum",)),
    ],
)
def test_moves(cpu, shape, dtype, step):
    """Every pair of views: what is in them, and that nothing beside them changes."""
    done = 0
    for (_, a), (_, b) in itertools.product(views(shape, dtype), views(shape, dtype)):
        wholes = [v if v.base is None else v.base for v in (a, b)]
        after = []
        for move in (numpy_move, native_move):
            random = np.random.default_rng(0)
            for whole in wholes:
                whole[...] = random.integers(1, 9, whole.shape)
            if move(step, a, b) is False:
                break
            after.append([whole.copy() for whole in wholes])
        else:
            done += 1
            assert all(map(np.array_equal, *after))
    assert done > 10


def test_stretches():
    a = np.zeros((4, 3, 2), np.float32)
    at = a.ctypes.data
    assert stretches(a) == [Stretches(at, 96, 1, 0)]
    assert stretches(a[:, 1]) == [Stretches(at + 8, 8, 4, 24)]
    assert stretches(a[2]) == [Stretches(at + 48, 24, 1, 0)]
    assert stretches(a[:, :, 1]) == [Stretches(at + 4, 4, 12, 8)]
    assert stretches(a[2, 1, 1:]) == [Stretches(at + 60, 4, 1, 0)]
    assert stretches(a[:, ::2, :1]) is None  # three axes that do not merge
    assert stretches(a, a.copy("F")) is None


def test_a_part_of_a_sequence(cpu):
    numbers = np.arange(8.0)
    sequence = new_sequence()
    for k in range(7):
        sequence.add_swap(*(Stretches(numbers.ctypes.data + 8 * j, 8) for j in (k, k + 1)))
    sequence.run(2, 5)
    assert sequence.done == 5
    assert numbers.tolist() == [0, 1, 3, 4, 5, 2, 6, 7]
    sequence.run()
    assert numbers.tolist() == [1, 3, 4, 5, 2, 6, 7, 0]
    new_sequence().run()
