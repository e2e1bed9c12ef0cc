"""Loops that save more than their share of memory go back in segments: same bits, bounded memory."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.autodiff import loop_checkpoints
from diffsim.runtime.session import session
from tests.support.gradients import check, field, numbers

pytestmark = pytest.mark.usefixtures("quick_code")

LONG = 100_000


def gradients(source, turns, t, lanes=70):
    """Derivatives of a chaotic map after so many turns, in as many lanes; and the scratch it took."""
    for threads in (2, 1):  # a new pool, which keeps no scratch of an earlier one
        # Made anew, with the constants set here.
        ds.init(arch=ds.cpu, cpu_max_num_threads=threads, offline_cache=False)
        assert session.pool.threads == threads
    x, c, y = (ds.field(t, shape=lanes, needs_grad=True) for _ in range(3))
    kernel = source(x, c, y)
    x.fill(0.1)
    c.from_numpy(np.linspace(-0.9, 0.4, lanes).astype(x.to_numpy().dtype))
    kernel(turns)
    y.grad.fill(1.0)
    kernel.grad(turns)
    return y.to_numpy(), x.grad.to_numpy(), c.grad.to_numpy(), session.pool.scratch_bytes


def counted(x, c, y):
    @ds.kernel
    def iterate(turns: ds.i32):
        for i in x:
            z, a = x[i], c[i]
            for k in range(turns):
                z = z * z * 0.5 + a * (k % 3)
            y[i] = z

    return iterate


def backwards(x, c, y):
    @ds.kernel
    def iterate(turns: ds.i32):
        for i in x:
            z, a = x[i], c[i]
            for k in range(turns, 0, -1):
                z = z * z * 0.5 + a * (k % 3)
            y[i] = z

    return iterate


def until(x, c, y):
    @ds.kernel
    def iterate(turns: ds.i32):
        for i in x:
            z, a = x[i], c[i]
            k = 0
            while k < turns and z < 5.0:
                z = z * z * 0.5 + a * (k % 3)
                k += 1 + i % 2
            y[i] = z

    return iterate


def nested(x, c, y):
    @ds.kernel
    def iterate(turns: ds.i32):
        for i in x:
            z, a = x[i], c[i]
            for k in range(turns):
                for m in range(k % 4):
                    z = z * z * 0.5 + a * m * 0.3
                if k % 5 == 0:
                    z = z * 0.5
            y[i] = z

    return iterate


@pytest.mark.parametrize("source", [counted, backwards, until, nested])
@pytest.mark.parametrize("turns", [0, 1, 2, 7, 8, 9, 50])
def test_the_same_bits_in_segments(source, turns, monkeypatch):
    whole = gradients(source, turns, ds.f64)
    monkeypatch.setattr(loop_checkpoints, "_MOST_BYTES", 0)
    for length in (1, 2, 7, 8, 100):
        monkeypatch.setattr(loop_checkpoints, "_SHORTEST", length)
        parts = gradients(source, turns, ds.f64)
        for a, b in zip(whole[:3], parts[:3], strict=True):
            assert a.tobytes() == b.tobytes()


def test_sums_into_a_field_are_added_by_segments(monkeypatch):
    """Additions to an element may happen in any order: here, not the one of a single segment."""

    def source(x, c, y):
        @ds.kernel
        def iterate(turns: ds.i32):
            for i in x:
                z = x[i]
                for k in range(turns):
                    z = z * z * 0.5 + c[i] * (k % 3)
                y[i] = z

        return iterate

    whole = gradients(source, 50, ds.f64)
    monkeypatch.setattr(loop_checkpoints, "_MOST_BYTES", 0)
    monkeypatch.setattr(loop_checkpoints, "_SHORTEST", 7)
    parts = gradients(source, 50, ds.f64)
    assert whole[1].tobytes() == parts[1].tobytes()
    np.testing.assert_allclose(whole[2], parts[2], rtol=1e-14)


@pytest.mark.parametrize("source", [counted, backwards, until])
def test_long_loops_take_bounded_memory(source, monkeypatch):
    """All that is carried would be 4 bytes x turns for each lane, up to 64 lanes at a time."""
    _, *parts, bytes_ = gradients(source, LONG, ds.f32, lanes=64)
    assert bytes_ < 4e6
    monkeypatch.setattr(loop_checkpoints, "_MOST_BYTES", 1 << 28)
    _, *whole, all_bytes = gradients(source, LONG, ds.f32, lanes=64)
    assert all_bytes > 2 * bytes_
    for a, b in zip(parts, whole, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_known_number_of_turns_within_the_share_is_one_segment():
    ds.init(arch=ds.cpu)
    x, y = (ds.field(ds.f32, shape=8, needs_grad=True) for _ in range(2))

    @ds.kernel
    def short():
        for i in x:
            z = x[i]
            for _ in range(4096):
                z = z * z
            y[i] = z

    @ds.kernel
    def long():
        for i in x:
            z = x[i]
            for _ in range(4097):
                z = z * z
            y[i] = z

    @ds.kernel
    def linear(turns: ds.i32):
        for i in x:
            z = x[i]
            for k in range(turns):
                z += k * x[i]
            y[i] = z

    @ds.kernel
    def triangular():
        for i in range(4096):
            z = x[i % 8]
            for k in range(i + 1):
                for m in range(k, k + 2):
                    z = z * z * m
            y[i % 8] += z

    @ds.kernel
    def larger():
        for i in range(4097):
            z = x[i % 8]
            for _ in range(i + 1):
                z = z * z
            y[i % 8] += z

    assert "segment" not in short.grad.ir()
    assert "segment" not in triangular.grad.ir()
    assert "segment" in larger.grad.ir()
    assert "segment" in long.grad.ir()
    assert "segment" not in linear.grad.ir()


@pytest.mark.parametrize("most", [1 << 14, 64])
def test_causal_attention(most, monkeypatch):
    """Rows of triangles, overwritten in place; as a whole and in segments."""
    monkeypatch.setattr(loop_checkpoints, "_MOST_BYTES", most)
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules="lifted", offline_cache=False)
    rows, heads, width = 21, 2, 3
    q, k = (field((rows, heads * width)) for _ in range(2))
    p, loss = field((heads, rows, rows)), field()

    @ds.kernel
    def attend():
        for h, i in ds.ndrange(heads, rows):
            top = -1e30
            for j in range(i + 1):
                s = 0.0
                for m in range(width):
                    s += q[i, h * width + m] * k[j, h * width + m]
                p[h, i, j] = s
                top = ds.max(top, s)
            total = 0.0
            for j in range(i + 1):
                total += ds.exp(p[h, i, j] - top)
            for j in range(i + 1):
                p[h, i, j] = ds.exp(p[h, i, j] - top) / total

    @ds.kernel
    def measure():
        for h, i, j in p:
            loss[None] += p[h, i, j] ** 2 * (1 + (i + 2 * j) % 3)

    def program():
        attend()
        measure()

    q.from_numpy(numbers(rows, heads * width))
    k.from_numpy(numbers(rows, heads * width, seed=1))
    check(program, loss, q, k, reset=(loss, p))
