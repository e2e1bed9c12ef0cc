"""Functions that a loop's forward sweep computes are kept for its sweep backwards, and computed once."""

import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes import pipeline
from diffsim.passes.kept import sweeps
from tests.fuzz import chains
from tests.support.gradients import check, numbers
from tests.support.source import make

N, K = 5, 7
KERNEL = """@ds.kernel
def kernel(n: ds.i32):
    for i in range(N):
        s = y[i]
        for k in range({count}):
            {line}
        z[i] = s
"""
TURN = "s = s * ds.cos(q[i, k]) + ds.sin(q[i, k])"


@pytest.fixture
def fields(cpu):
    shapes = {"q": (N, 2 * K), "m": 2 * K, "y": N, "z": N}
    made = {k: ds.field(ds.f64, shape=s, needs_grad=True) for k, s in shapes.items()}
    return {"ds": ds, "N": N, "K": K, **made}


def functions(kernel):
    """The functions that the lowered adjoint of a kernel computes."""
    return sorted(re.findall(r"= (sin|cos|exp|tanh) ", kernel.grad.ir(after="dce")))


@pytest.mark.parametrize(
    ("line", "count", "found"),
    [
        (TURN, "K", ["cos", "sin"]),
        (TURN.replace("k]", "K - 1 - k]"), "K", ["cos", "sin"]),
        ("s = ds.sin(s) * m[k]", "K", ["sin", "cos"]),  # the cosine is one of the way back alone
        ("s = ds.exp(s) * m[k]", "K", ["exp"]),
        ("s = s * ds.exp(s * m[k])\n            s += s * s", "K", ["exp"]),
    ],
)
def test_what_is_computed(fields, line, count, found):
    make(KERNEL.format(line=line, count=count), fields)
    assert functions(fields["kernel"]) == sorted(found)


QUOTIENTS = [
    ("s = m[k] / (1.0 + s * s)", ["div"]),
    ("s = q[i, k] * ds.sqrt(0.5 + s * s)", ["sqrt"]),
    ("s = ds.sqrt(1.0 + s * s) / (m[k] + s)", ["div", "sqrt"]),
    ("s = q[i, k] / (1.0 + m[k] * s) + s * s", ["div"]),
    # The same in all iterations.
    ("s = s * s * (q[i, 0] / (1.0 + m[0] * y[i]))", []),
    # Of another element in each iteration, of its number, and of what a branch has made.
    ("s = s * s * (1.0 / (1.5 + q[i, k]))", ["div"]),
    ("s = s * s * (y[i] / (1.5 + k))", ["div"]),
    (
        "b = y[i]\n            if s > 0.3:\n                b = s\n            s *= s / (1.0 + b * b)",
        [],
    ),
]


def slow(kernel):
    """The quotients and roots that the lowered adjoint of a kernel computes."""
    return sorted(re.findall(r"= (div|sqrt) ", kernel.grad.ir(after="dce")))


@pytest.mark.parametrize(("line", "kept"), QUOTIENTS)
def test_quotients_and_roots(fields, monkeypatch, line, kept):
    make(KERNEL.format(line=line, count="K"), fields)
    found = slow(fields["kernel"])
    monkeypatch.setattr(pipeline, "keep_for_sweeps_back", lambda kernel: kernel)
    make(KERNEL.format(line=line, count="K"), fields)
    assert sorted([*found, *kept]) == slow(fields["kernel"])


def test_functions_come_first(fields, monkeypatch):
    line = "s = ds.sin(q[i, k] / (1.0 + s * s))"
    make(KERNEL.format(line=line, count="K"), fields)
    both = slow(fields["kernel"]), functions(fields["kernel"])
    assert both[1] == ["cos", "sin"]
    monkeypatch.setattr(sweeps, "_MOST_KEPT", 8 * K)
    line = "s = ds.exp(q[i, k] / (1.0 + s * s))"
    make(KERNEL.format(line=line, count="K"), fields)
    assert functions(fields["kernel"]) == ["exp"]
    assert len(slow(fields["kernel"])) > len(both[0])


@pytest.mark.parametrize(
    ("line", "count"),
    [
        (TURN, "n"),  # a number of iterations that nobody knows
        (TURN, "1, K"),
        ("if s > 0.1:\n                s = s * ds.exp(s)", "K"),  # not all iterations compute it
        ("for j in range(2):\n                s = s * ds.exp(s)", "K"),
    ],
)
def test_what_is_not_kept(fields, monkeypatch, line, count):
    make(KERNEL.format(line=line, count=count), fields)
    found = functions(fields["kernel"])
    monkeypatch.setattr(pipeline, "keep_for_sweeps_back", lambda kernel: kernel)
    make(KERNEL.format(line=line, count=count), fields)
    assert functions(fields["kernel"]) == found


def test_no_more_than_fits(fields, monkeypatch):
    make(KERNEL.format(line=TURN, count="K"), fields)
    monkeypatch.setattr(sweeps, "_MOST_KEPT", 8 * K)
    assert len(functions(fields["kernel"])) == 3


def arms():
    """Two loops, of which the second has one in it: the kernel, its fields and the loss."""
    ds.init(arch=ds.cpu, default_fp=ds.f64, offline_cache=False)
    shapes = (N, K), 2 * K, N
    q, m, y = (ds.field(ds.f64, shape=s, needs_grad=True) for s in shapes)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    for f in (q, m, y):
        f.from_numpy(numbers(*f.shape, lo=0.1, hi=0.9))

    @ds.kernel
    def swing():
        for i in range(N):
            s, c = y[i], 0.2
            for k in range(K):
                s = s * ds.cos(q[i, k]) + c * ds.sin(q[i, k])
                c = ds.exp(-c * s) * m[k] / ds.sqrt(1.0 + s * s)
            for k in range(K):
                for j in range(3):
                    s = ds.sin(s + m[j]) * ds.cos(m[j + k]) + c
                c = c * ds.cos(s * m[K - 1 - k]) + ds.tanh(c)
            loss[None] += (s + c) ** 2

    return swing, (q, m, y), loss


def test_the_same_numbers(monkeypatch):
    swing, fields, loss = arms()
    kept = functions(swing)
    found = check(swing, loss, *fields)

    monkeypatch.setattr(pipeline, "keep_for_sweeps_back", lambda kernel: kernel)
    swing, fields, loss = arms()
    assert len(functions(swing)) > len(kept)
    for a, b in zip(found, check(swing, loss, *fields), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_random_chains(quick_code):
    chains.reached.clear()
    for seed in range(8):
        assert chains.verdict(chains.make(seed), seed) == "right"
    assert {"div", "sqrt", "sin"} <= set(chains.reached)
