"""Sequences: moves of memory against NumPy, between storages of every form, rows and elements of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.memory.storage import StorageLayout, StridedSpan, matching_spans
from diffsim.runtime.session import session


def forms(shape, dtype):
    """The ways in which elements of a shape can lie."""
    for n, soa in ((1, False), (2, False), (2, True)):
        for order in itertools.permutations(range(len(shape))):
            yield StorageLayout(dtype, n, shape, order, soa)


def numpy_move(step, a, b):
    if step == "copy":
        a[...] = b
    elif step == "swap":
        a[...], b[...] = b.copy(), a.copy()
    elif step == "clear":
        a[...] = 0
    else:
        a += b


def native_move(step, one, other, dtype):
    sequence = session.backend.new_command_list()
    if step == "clear":
        sequence.add_clear(one)
    elif step == "sum":
        sequence.add_sum(one, other, dtype)
    else:
        getattr(sequence, f"add_{step}")(one, other)
    sequence.run()
    assert sequence.done == 1


def filled(form, seed):
    """A storage with numbers in it, and these as an array."""
    made = session.backend.new_storage(form)
    array = np.random.default_rng(seed).integers(1, 9, (*form.shape, form.components))
    made.from_numpy(array.astype(form.dtype.numpy))
    return made, made.to_numpy()


STEPS = [
    *itertools.product((ds.f32, ds.i8), ("copy", "swap", "clear")),
    *itertools.product((ds.f32, ds.f64), ("sum",)),
]


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 4), (2, 1, 3), (1, 1), ()])
@pytest.mark.parametrize(("dtype", "step"), STEPS)
def test_moves_of_everything(cpu, shape, dtype, step):
    done = 0
    for f, g in itertools.product(forms(shape, dtype), forms(shape, dtype)):
        if f.components != g.components:
            continue
        (one, a), (other, b) = filled(f, 1), filled(g, 2)
        found = matching_spans(one, other)
        if found is None:
            assert f != g
            continue
        done += 1
        numpy_move(step, a, b)
        native_move(step, *found, dtype)
        assert np.array_equal(one.to_numpy(), a)
        assert np.array_equal(other.to_numpy(), b)
    assert done >= 3


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 1, 3)])
@pytest.mark.parametrize(("dtype", "step"), STEPS)
def test_moves_of_rows(cpu, shape, dtype, step):
    """Both ways: a row and a packed copy of another one of the same axis."""
    for f, axis in itertools.product(forms(shape, dtype), range(len(shape))):
        rest = tuple(n for k, n in enumerate(shape) if k != axis)
        order = tuple(k - (k > axis) for k in f.order if k != axis)
        row = shape[axis] - 1
        for turned in (False, True):
            (whole, a), (packed, b) = (
                filled(f, 1),
                filled(StorageLayout(dtype, f.components, rest, order, f.soa), 2),
            )
            there = f.part(whole.address, axis, row)
            found = [there, there.packed(packed.address)]
            arrays = [a[(slice(None),) * axis + (row,)], b]
            if turned:
                found, arrays = found[::-1], arrays[::-1]
            numpy_move(step, *arrays)
            native_move(step, *found, dtype)
            assert np.array_equal(whole.to_numpy(), a)
            assert np.array_equal(packed.to_numpy(), b)


@pytest.mark.parametrize(("dtype", "step"), STEPS)
def test_moves_of_elements(cpu, dtype, step):
    for f in forms((3, 4), dtype):
        (one, a), (other, b) = (
            filled(f, 1),
            filled(StorageLayout(dtype, f.components, (), (), False), 2),
        )
        at = 2 * f.strides[0] + 1 * f.strides[1]
        there = f.element(one.address, at)
        numpy_move(step, a[2, 1], b)
        native_move(step, there, there.packed(other.address), dtype)
        assert np.array_equal(one.to_numpy(), a)
        assert np.array_equal(other.to_numpy(), b)


def test_matching_spans():
    form = StorageLayout(ds.f32, 2, (4, 3), (0, 1), False)
    assert form.part(1000, None) == StridedSpan(1000, 96)
    assert form.part(1000, 0, 2) == StridedSpan(1048, 24, 1, 96)
    assert form.part(1000, 1, 1) == StridedSpan(1008, 8, 4, 24)
    assert form.element(1000, 14) == StridedSpan(1056, 8)
    blocks = StorageLayout(ds.f32, 2, (4, 3), (0, 1), True)
    assert blocks.part(1000, 0, 2) == StridedSpan(1024, 12, 2, 48)
    assert blocks.part(1000, 1, 1) == StridedSpan(1004, 4, 8, 12)
    assert blocks.element(1000, 7) == StridedSpan(1028, 4, 2, 48)
    assert blocks.element(1000, 7).packed(64) == StridedSpan(64, 4, 2, 4)


def test_a_part_of_a_sequence(cpu):
    memory = session.backend.new_storage(StorageLayout(ds.f64, 1, (8,), (0,), False))
    memory.from_numpy(np.arange(8.0).reshape(8, 1))
    sequence = session.backend.new_command_list()
    for k in range(7):
        sequence.add_swap(*(StridedSpan(memory.address + 8 * j, 8) for j in (k, k + 1)))
    sequence.run(2, 5)
    assert sequence.done == 5
    assert memory.to_numpy()[:, 0].tolist() == [0, 1, 3, 4, 5, 2, 6, 7]
    sequence.run()
    assert memory.to_numpy()[:, 0].tolist() == [1, 3, 4, 5, 2, 6, 7, 0]
    session.backend.new_command_list().run()
