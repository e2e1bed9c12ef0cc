"""On a GPU a gradient is cleared after it was used, where nothing can tell the difference."""

import diffsim as ds
from diffsim.ir.nodes import Atomic, Load, Store
from diffsim.passes import pipeline


def order(kernel):
    """What the adjoint's lanes do to gradients, in order."""
    adjoint = pipeline.run(kernel._only(()).adjoint, pipeline.LOWER_CUDA)
    (task,) = [t for t in adjoint.tasks if t.axes]
    words = {Load: "load", Store: "store", Atomic: "add"}
    return [
        f"{words[type(s)]} {s.mem.name}"
        for s in task.body.stmts
        if isinstance(s, (Load, Store, Atomic)) and s.mem.is_grad
    ]


def test_the_clearing_of_a_store_comes_last(cpu):
    x, z = (ds.field(ds.f32, shape=64, needs_grad=True) for _ in range(2))

    @ds.kernel
    def triad(c: ds.f32):
        for i in x:
            z[i] = x[i] + c * x[i]

    triad(2.0)
    assert order(triad) == ["load z.grad", "add x.grad", "add x.grad", "store z.grad"]


def test_rows_that_are_apart_are_different_places(cpu):
    x = ds.field(ds.f32, shape=(2, 64), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32, c: ds.f32):
        for i in range(64):
            x[t + 1, i] = c * x[t, i]

    step(0, 2.0)
    assert order(step) == ["load x.grad", "add x.grad", "store x.grad"]


def test_it_stays_before_what_may_look_at_the_same_place(cpu):
    x = ds.field(ds.f32, shape=(2, 64), needs_grad=True)

    @ds.kernel
    def step(s: ds.i32, t: ds.i32, c: ds.f32):
        for i in range(64):
            x[s, i] = c * x[t, i]

    step(1, 0, 2.0)
    assert order(step) == ["load x.grad", "store x.grad", "add x.grad"]
