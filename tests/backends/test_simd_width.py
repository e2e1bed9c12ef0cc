"""How many lanes run at once: what is live in the branches of a loop takes registers, too."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native.jit import Jit
from diffsim.backends.simd.simd_width import choose_simd_width
from tests.support.lowered import lower
from tests.support.source import make

N, M = 256, 40
HEAD = """@ds.kernel
def kernel():
    for i in range(N):
        {names} = {zeros}
        for j in range(M):
            d = x[i] - {shared}
            {branch}
                {lines}
        y[i] = {total}
"""


def lanes(fields, sums, branch, shared="p[j]"):
    """Lanes of the vectors of a loop that carries some sums; `shared` is the same for all lanes."""
    names = [f"a{k}" for k in range(sums)]
    lines = "\n                ".join(f"{a} = {0.1 * k} - {a} * d" for k, a in enumerate(names))
    text = HEAD.format(
        names=", ".join(names),
        zeros=", ".join(["0.0"] * sums),
        branch=branch,
        shared=shared,
        lines=lines,
        total=" + ".join(names),
    )
    make(text, fields)
    fields["kernel"]()
    widths = re.findall(r"phi <(\d+) x float>", fields["kernel"].llvm())
    assert widths
    return max(map(int, widths))


@pytest.fixture
def fields(cpu):
    made = {
        k: ds.field(ds.f32, shape=s, needs_grad=True) for k, s in zip("xpy", (N, M, N), strict=True)
    }
    return {"ds": ds, "N": N, "M": M, **made}


@pytest.mark.skipif(Jit().vector_bits < 256, reason="registers of two widths at least")
def test_branches_of_a_loop_take_registers(fields):
    few, many = lanes(fields, 2, "if d > 0.1:"), lanes(fields, 24, "if d > 0.1:")
    assert many < few
    # With 16 registers branches cost more than spills.
    straight = lanes(fields, 24, "for _ in ds.static(range(1)):")
    assert many == straight if Jit().vector_registers >= 32 else many >= straight


@pytest.mark.skipif(Jit().vector_registers < 32, reason="with 16 registers both are as wide")
def test_more_lanes_share_what_is_the_same_for_all(fields):
    own, shared = (
        lanes(fields, 18, "if d > 0.1:", s) for s in ("p[j]", "ds.sin(p[j]) * ds.exp(p[j])")
    )
    assert own < shared


def test_the_same_is_computed(fields):
    x, p = (fields[k] for k in "xp")
    start = np.random.default_rng(0).random(N + M).astype(np.float32)
    x.from_numpy(start[:N])
    p.from_numpy(start[N:])
    lanes(fields, 24, "if d > 0.1:")
    found = np.zeros((24, N))
    for j in range(M):
        d = x.to_numpy() - p.to_numpy()[j]
        found = np.where(d > 0.1, 0.1 * np.arange(24)[:, None] - found * d, found)
    np.testing.assert_allclose(fields["y"].to_numpy(), found.sum(0), rtol=1e-5)


def in_rows(cpu, fields):
    """Sums along rows of 40 numbers, one for each lane; each goes on with the number of the row before."""
    found = {
        "ds": ds,
        "N": N,
        "M": M,
        **{f"x{k}": cpu.field(ds.f32, shape=(N, M), needs_grad=True) for k in range(fields)},
        "y": cpu.field(ds.f32, shape=(N, M), needs_grad=True),
    }
    lines = "\n            ".join(f"a = a * 0.9 + x{k}[i, j]" for k in range(fields))
    text = f"""@ds.kernel
def kernel():
    for i in range(N):
        a = 0.0
        for j in range(M):
            {lines}
            y[i, j] = a
"""
    make(text, found)
    return found


@pytest.mark.parametrize(("fields", "want"), [(1, 32), (7, 16)])
def test_lanes_with_rows_of_their_own(cpu, fields, want):
    """No gathers, and fewer lanes where there are many rows; numbers and gradients as by NumPy."""
    found = in_rows(cpu, fields)
    kernel, y = found["kernel"], found["y"]
    data = np.random.default_rng(fields).random((fields, N, M)).astype(np.float32)
    for k in range(fields):
        found[f"x{k}"].from_numpy(data[k])
    kernel()
    sums, a = np.zeros((N, M)), np.zeros(N)
    for j in range(M):
        for k in range(fields):
            a = a * 0.9 + data[k, :, j]
        sums[:, j] = a
    np.testing.assert_allclose(y.to_numpy(), sums, rtol=1e-5)
    seed = np.random.default_rng(9).random((N, M)).astype(np.float32)
    y.grad.from_numpy(seed)
    kernel.grad()
    a = np.zeros(N)
    for j in reversed(range(M)):
        a = a + seed[:, j]
        for k in reversed(range(fields)):
            np.testing.assert_allclose(found[f"x{k}"].grad.to_numpy()[:, j], a, rtol=1e-5)
            a = a * 0.9
    if Jit().vector_bits >= 512:
        assert max(map(int, re.findall(r"phi <(\d+) x float>", kernel.llvm()))) == want
        assert "masked.gather" not in kernel.llvm()


def test_what_is_around_short_loops(cpu):
    """A long body with a short loop inside needs registers, too; of a long loop, those inside count."""
    x = cpu.Vector.field(9, cpu.f32, shape=512)

    def kernel(times):
        @cpu.kernel
        def around():
            for i in x:
                y, z = x[i], x[i]
                for _ in range(20):
                    s = y[0]
                    for _ in range(times):
                        s = s * 0.5 + 0.25
                    for k in cpu.static(range(9)):
                        y[k] = z[k] - y[k] * y[k] * s
                x[i] = y

        return around

    jit = Jit(vector_bits=256)
    kernels = [kernel(3), kernel(300)]
    found = [choose_simd_width(lower(k._only(()).ir).tasks[0], jit) for k in kernels]
    if jit.vector_bits == 256:
        assert found == [16, 32]  # without the loop 8: its operations wait for one another
    start = np.random.default_rng(1).uniform(-0.5, 0.5, (512, 9)).astype("f4")
    x.from_numpy(start)
    kernels[0]()
    want = start.astype("f8")
    for _ in range(20):
        s = want[:, :1] / 8 + 0.4375
        want = start - want * want * s
    np.testing.assert_allclose(x.to_numpy(), want, rtol=1e-4, atol=1e-6)
