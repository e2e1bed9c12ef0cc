"""Memory of a real GPU: copies of all sizes, also by several threads, how much there is, and none left."""

import threading
import time

import numpy as np
import pytest

from tests.cuda.real import device, real, slow_kernel

pytestmark = pytest.mark.gpu


def test_numpy_arrays_are_copied_in_and_out(gpu):
    ds = gpu

    @ds.kernel
    def scale(x: ds.types.ndarray(), y: ds.types.ndarray(), a: ds.f32):
        for i, j in x:
            y[i, j] = a * x[i, j]

    x, y = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros((3, 4), np.float32)
    for a in (2, 3):
        scale(x, y, a)
        assert (y == a * x).all()


@pytest.mark.parametrize("nbytes", [1 << 16, (1 << 16) + 4, 1 << 22, (5 << 22) + 4, 100_000_004])
def test_arrays_of_all_sizes_are_copied(gpu, nbytes):
    ds = gpu
    n = nbytes // 4
    x = ds.field(ds.i32, shape=n)
    values = np.random.default_rng(nbytes).integers(-(2**31), 2**31, n).astype(np.int32)

    @ds.kernel
    def flip():
        for i in x:
            x[i] = -1 - x[i]

    for k in range(3):
        given = values + np.int32(k)
        x.from_numpy(given)
        given[...] = 0  # while the GPU still reads what was there
        flip()
        assert np.array_equal(x.to_numpy(), ~(values + np.int32(k)))


def test_threads_copy_at_the_same_time(gpu):
    ds = gpu
    n = 3_000_001
    found = []

    def work(k):
        x = ds.field(ds.i32, shape=n)
        for turn in range(5):
            given = np.arange(n, dtype=np.int32) * k + turn
            x.from_numpy(given)
            given[...] = 0
            found.append(np.array_equal(x.to_numpy(), np.arange(n, dtype=np.int32) * k + turn))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [True] * 20


@real
def test_from_numpy_does_not_wait(gpu):
    ds = gpu
    x, y = ds.field(ds.f32, shape=64), ds.field(ds.f32, shape=1 << 20)
    given = np.full(1 << 20, 2, np.float32)
    slow = slow_kernel(ds, x)
    slow(1)
    for _ in range(4):  # as many slots as it uses
        y.from_numpy(given)
    ds.sync()
    start = time.perf_counter()
    slow(3_000_000)
    y.from_numpy(given)
    returned = time.perf_counter() - start
    given[...] = 0
    assert (y.to_numpy() == 2).all()
    assert returned < 0.2 * (time.perf_counter() - start)


# ---- all there is


@real
@pytest.mark.memory
def test_memory_is_freed_with_its_field(gpu):
    """More in all than there is. (How much is free says nothing: other processes may use the GPU.)"""
    ds = gpu
    n = device().driver.memory // 100
    for k in range(150):
        x = ds.field(ds.u8, shape=n)
        x.fill(k % 7)
        if k % 10 == 0:
            assert x[n - 1] == k % 7
        del x


@real
@pytest.mark.memory
def test_more_than_2_to_the_31_elements(gpu):
    ds = gpu
    n = 2**31 + 16
    x = ds.field(ds.u8, shape=n)

    @ds.kernel
    def mark():
        for i in x:
            if i >= n - 3:
                x[i] = ds.cast(200 + (i - (n - 3)), ds.u8)

    mark()
    assert [x[n - k] for k in (4, 3, 2, 1)] == [0, 200, 201, 202]
    x[n - 1] = 9
    assert x[n - 1] == 9


@pytest.mark.memory
def test_no_memory_left(gpu):
    ds = gpu
    with pytest.raises(ds.OutOfMemoryError, match=r"no memory for big .* GiB"):
        ds.field(ds.f64, shape=1 << 40, name="big")
    x = ds.field(ds.f32, shape=10)
    x.fill(2)
    assert x[9] == 2
