"""On a GPU lanes load first and store last, where nothing can tell the difference."""

import diffsim as ds
from diffsim.ir.nodes import Atomic, Load, Store
from diffsim.ir.traversal import statements
from diffsim.passes import pipeline


def order(kernel):
    """What the adjoint's lanes do to gradients, in order."""
    adjoint = pipeline.run(kernel._only(()).derivative.ir, pipeline.LOWER_CUDA)
    (task,) = [t for t in adjoint.tasks if t.axes]
    words = {Load: "load", Store: "store", Atomic: "add"}
    return [
        f"{words[type(s)]} {s.mem.name}"
        for s in statements(task.body)
        if isinstance(s, (Load, Store, Atomic)) and s.mem.is_grad
    ]


def test_the_clearing_of_a_store_comes_last(cpu):
    x, z = (ds.field(ds.f32, shape=64, needs_grad=True) for _ in range(2))

    @ds.kernel
    def triad(c: ds.f32):
        for i in x:
            z[i] = x[i] + c * x[i]

    triad(2.0)
    assert order(triad) == [
        "load z.grad",
        "load x.grad",
        "store x.grad",  # the next load asks for it; LLVM sees that it need not
        "load x.grad",
        "store z.grad",
        "store x.grad",
    ]


def test_all_loads_of_a_lane_come_before_its_stores(cpu):
    x, y, z = (ds.field(ds.f32, shape=64, needs_grad=True) for _ in range(3))

    @ds.kernel
    def triad(c: ds.f32):
        for i in x:
            z[i] = x[i] + c * y[i]

    triad(2.0)
    assert order(triad)[:3] == ["load z.grad", "load y.grad", "load x.grad"]
    assert sorted(order(triad)[3:]) == ["store x.grad", "store y.grad", "store z.grad"]


def test_lanes_with_branches_keep_their_order_but_for_clearings(cpu):
    w, x, y, z = (ds.field(ds.f32, shape=64, needs_grad=True) for _ in range(4))

    @ds.kernel
    def both(c: ds.f32):
        for i in x:
            if x[i] > c:
                w[i] = x[i]
            z[i] = c * y[i]

    both(2.0)
    expected = ["load z.grad", "add y.grad", "load w.grad", "store w.grad", "add x.grad"]
    assert order(both) == [*expected, "store z.grad"]


def test_rows_that_are_apart_are_different_places(cpu):
    x = ds.field(ds.f32, shape=(2, 64), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32, c: ds.f32):
        for i in range(64):
            x[t + 1, i] = c * x[t, i]

    step(0, 2.0)
    assert order(step) == ["load x.grad", "load x.grad", "store x.grad", "store x.grad"]


def test_it_stays_before_what_may_look_at_the_same_place(cpu):
    x = ds.field(ds.f32, shape=(2, 64), needs_grad=True)

    @ds.kernel
    def step(s: ds.i32, t: ds.i32, c: ds.f32):
        for i in range(64):
            x[s, i] = c * x[t, i]

    step(1, 0, 2.0)
    assert order(step) == ["load x.grad", "store x.grad", "load x.grad", "store x.grad"]
