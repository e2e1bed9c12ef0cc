"""Gradients that tapes set to 0 in the beginning: of every layout, and nothing beside them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import diffsim as ds


def in_a_tree_node(cells, fields):
    def make():
        a, b = (ds.field(ds.f32, needs_grad=True) for _ in range(2))
        cells().place(*fields(a, b))
        return a, b

    return make


MAKERS = {
    "plain": lambda: [ds.field(ds.f64, 5, needs_grad=True) for _ in range(2)],
    "halves": lambda: [ds.field(ds.f16, (3, 5), needs_grad=True) for _ in range(2)],
    "columns": lambda: [ds.field(ds.f32, (3, 4), order="ji", needs_grad=True) for _ in range(2)],
    "vectors": lambda: [ds.Vector.field(3, ds.f32, 7, needs_grad=True) for _ in range(2)],
    "components apart": lambda: [
        ds.Vector.field(3, ds.f32, 7, needs_grad=True, layout=ds.Layout.SOA) for _ in range(2)
    ],
    "long": lambda: [ds.field(ds.f32, 10_000, needs_grad=True) for _ in range(2)],
    "arrays": lambda: [ds.ndarray(ds.f32, (4, 4), needs_grad=True) for _ in range(2)],
    "number": lambda: [ds.field(ds.f64, (), needs_grad=True) for _ in range(2)],
    "cells side by side": in_a_tree_node(
        lambda: ds.root.dense(ds.i, 8), lambda a, b: (a, b, a.grad, b.grad)
    ),
    "sparse": in_a_tree_node(
        lambda: ds.root.pointer(ds.i, 4).dense(ds.i, 2), lambda a, b: (a, b, a.grad, b.grad)
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_of_every_layout(cpu, kind):
    a, b = MAKERS[kind]()
    for f, value in ((a, 1.0), (b, 2.0), (a.grad, 3.0), (b.grad, 4.0)):
        f.from_numpy(np.full_like(f.to_numpy(), value))
    for _ in range(2):
        ds.clear_all_gradients()
        for f, value in ((a, 1.0), (b, 2.0), (a.grad, 0.0), (b.grad, 0.0)):
            if kind != "sparse" or f.is_grad:
                assert (f.to_numpy() == value).all()
        a.grad.fill(5.0)


@pytest.mark.host
def test_what_other_libraries_write_is_cleared(cpu):
    """They write to the memory unseen, from the moment on when they are given it."""
    x = ds.field(ds.f32, 5, needs_grad=True)
    x.grad.fill(1.0)
    ds.clear_all_gradients()
    theirs = np.from_dlpack(x.grad)
    ds.clear_all_gradients()
    theirs[...] = 7.0
    ds.clear_all_gradients()
    assert not x.grad.to_numpy().any()


def test_fields_made_and_dropped_between(cpu):
    x = ds.field(ds.f32, 5, needs_grad=True)
    x.grad.fill(1.0)
    ds.clear_all_gradients()
    x.grad.fill(1.0)
    y = ds.field(ds.f32, 6, needs_grad=True)
    y.grad.fill(1.0)
    ds.clear_all_gradients()
    assert not x.grad.to_numpy().any()
    assert not y.grad.to_numpy().any()
    gone = weakref.ref(x)
    x.grad.fill(1.0)
    del x
    gc.collect()
    assert gone() is None
    y.grad.fill(1.0)
    ds.clear_all_gradients()
    assert not y.grad.to_numpy().any()


def test_versions_of_what_is_cleared(cpu, quick_code):
    """What an adjoint loads of a gradient that was cleared since its launch is refused; no line wrote it."""
    x, y, z = (ds.field(ds.f64, 3, needs_grad=True) for _ in range(3))
    g = z.grad

    @ds.kernel
    def look():
        for i in y:
            y[i] = ds.stop_grad(g[i]) * x[i]

    g.fill(3.0)
    look()
    ds.clear_all_gradients()
    y.grad.fill(1.0)
    with pytest.raises(ds.GlobalDataAccessError, match="a Python statement has changed") as caught:
        look.grad()
    assert "fill" not in str(caught.value)


def test_cuts_end(cpu, quick_code):
    """Gradients of values that Python has set belong to no launch; zeros do."""
    x, y = (ds.field(ds.f64, 3, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, (), needs_grad=True)
    x.fill(2.0)

    @ds.kernel
    def square():
        for i in y:
            y[i] = x[i] ** 2

    @ds.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    square()
    with ds.Tape() as tape:
        y[0] = 3.0
    tape.backward(grads={y: 1.0})
    with pytest.raises(ds.AutodiffError, match="belongs to the value that Python set"):
        square.grad()
    ds.clear_all_gradients()
    assert not y.grad.versions.dirty
    total()
    loss.grad[None] = 1.0
    total.grad()
    square.grad()
    assert x.grad.to_numpy().tolist() == [4.0, 4.0, 4.0]
