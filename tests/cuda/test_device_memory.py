"""Memory of a GPU that is not there (`fake.py`): freed with its field, none left, moved to the CPU."""

import contextlib
import gc

import numpy as np
import pytest

from diffsim.runtime import session
from diffsim.runtime.fields.adjoints import make_dual
from tests.cuda.fake import live


def test_memory_goes_with_its_field(fake):
    ds = fake
    start = live(ds)
    for _ in range(2):
        x = ds.field(ds.f64, shape=40_000_000)
        assert live(ds) == start + 320_000_000
        del x
        assert live(ds) == start
    assert ds.driver.used < start + (300 << 20)


def test_a_program_leaks_nothing(fake):
    ds = fake

    def program():
        x = ds.Vector.field(2, ds.f32, shape=50, needs_grad=True)
        loss = ds.field(ds.f32, shape=(), needs_grad=True)

        @ds.kernel
        def step(y: ds.types.ndarray()):
            for i in x:
                x[i] += 0.1 * ds.sin(x[i]) * y[i]
            for i in x:
                loss[None] += x[i].sum()

        with ds.Tape(loss, in_place="save"):
            step(np.ones(50, np.float32))
        return loss[None]

    program()
    before = live(ds), len(ds.driver.modules)
    for _ in range(3):
        program()
    assert (live(ds), len(ds.driver.modules)) == before


def test_kept_memory_is_given_up_before_an_allocation_fails(fake):
    ds = fake
    kept = ds.field(ds.u8, shape=32 << 20)
    del kept
    gc.collect()
    ds.driver.memory = ds.driver.used + 1000
    x = ds.field(ds.u8, shape=20 << 20)
    x.fill(3)
    assert x[5] == 3


# ---- none left


@contextlib.contextmanager
def little_memory(ds, left=0):
    """A GPU that is as good as full."""
    gc.collect()
    session.session.device._release_spare()
    memory, ds.driver.memory = ds.driver.memory, ds.driver.used + left
    yield
    ds.driver.memory = memory


def test_out_of_memory_names_the_field_and_nothing_breaks(fake):
    ds = fake
    with pytest.raises(
        ds.OutOfMemoryError,
        match=r"no memory for huge of shape .* it takes 745 GiB, and .* has 2 GiB left",
    ):
        ds.field(ds.f64, shape=10**11, name="huge")
    x = ds.field(ds.f32, shape=3)
    x.fill(1)
    assert x[2] == 1


def test_out_of_memory_names_an_argument_or_a_kernel(fake):
    ds = fake

    @ds.kernel
    def double(a: ds.types.ndarray()):
        for i in a:
            a[i] *= 2

    given = np.ones(1 << 18)
    with little_memory(ds), pytest.raises(ds.BackendError, match="work of double") as caught:
        double(given)
    assert "double(given)" in str(caught.value)
    double(given)
    words = r"no memory for the array a of double: it takes 2 MiB, and GPU 0 .* has 1000 bytes"
    with little_memory(ds, 1000), pytest.raises(MemoryError, match=words) as caught:
        double(given)
    assert isinstance(caught.value, ds.BackendError)
    assert "double(given)" in str(caught.value)
    double(given)
    assert (given == 4).all()


def test_out_of_memory_on_a_tape_names_the_field_and_puts_values_back(fake):
    """Forward, and backward in the middle of what is put back for the adjoints."""
    ds = fake
    n = 100_000
    x, y, loss = (ds.field(ds.f64, shape=k, needs_grad=True) for k in (n, n, ()))

    @ds.kernel
    def square():
        for i in x:
            x[i] = x[i] ** 2
        for i in y:
            y[i] = y[i] ** 2

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] + y[i]

    def record():
        x.fill(3)
        y.fill(2)
        tape = ds.Tape(in_place="save")
        with tape:
            square()
            square()
            measure()
        return tape

    square()
    measure()
    words = r"no memory to save [xy]: it takes 781 KiB, and GPU 0 .*checkpoint"
    with little_memory(ds), pytest.raises(ds.AutodiffError, match=f"(?s){words}"):
        record()
    record().backward(loss)
    assert (x.grad[5], y.grad[5]) == (4 * 27, 4 * 8)
    tape = record()
    failed = 0
    for room in range(20):
        with little_memory(ds, 8 * n * room + 100):
            try:
                tape.backward(loss)
            except ds.DiffsimError as problem:
                assert "no memory" in problem.message
                failed += 1
        assert (x[7], y[7]) == (81, 16)
        if failed <= room:
            break
    assert failed >= 2
    for f in (x, y):
        f.grad.fill(0)
    tape.backward(loss)
    assert (x.grad[5], y.grad[5]) == (4 * 27, 4 * 8)


# ---- copies and moves


@pytest.mark.parametrize("layout", ["AOS", "SOA"])
@pytest.mark.parametrize("order", ["ij", "ji"])
def test_rows_of_every_layout(fake, layout, order):
    """A tape that saves rows puts exactly these back."""
    ds = fake
    x = ds.Vector.field(2, ds.f32, layout=getattr(ds.Layout, layout))
    if order == "ij":
        ds.root.dense(ds.ij, (4, 3)).place(x)
    else:
        ds.root.dense(ds.j, 3).dense(ds.i, 4).place(x)
    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    for axis in (0, 1):
        x.from_numpy(values)
        part = x.storage.snapshot((axis, 1, 2))
        x.fill(ds.Vector([-1.0, -2.0]))
        x.storage.restore(part, (axis, 1, 2))
        expected = np.broadcast_to(np.float32([-1, -2]), (4, 3, 2)).copy()
        at = (slice(None),) * axis + (slice(1, 3),)
        expected[at] = values[at]
        assert (x.to_numpy() == expected).all()


def test_fields_move_where_kernels_run(fake):
    ds = fake
    ds.init(arch=ds.cpu)
    x = ds.field(ds.f32, shape=4, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def double():
        for i in x:
            x[i] *= 2.0

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    x.from_numpy(np.float32([1, 2, 3, 4]))
    double()
    tape = ds.Tape()
    with tape:
        measure()
    grad = measure.grad
    ds.init(arch=ds.cuda)
    assert x[3] == 8
    with pytest.raises(ds.AutodiffError, match="for another backend"):
        tape.backward(loss)
    with pytest.raises(ds.AutodiffError, match=r"ds\.init"):
        grad()
    double()
    assert x.to_numpy().tolist() == [4, 8, 12, 16]
    tape = ds.Tape()
    with tape:
        measure()
    tape.backward(loss)
    assert x.grad[0] == 8
    ds.init(arch=ds.cpu)
    measure()  # moves the fields and changes nothing that the tape needs
    ds.init(arch=ds.cuda)
    with pytest.raises(ds.AutodiffError, match="for another backend"):
        tape.backward(loss)
    tape.zero()
    ds.init(arch=ds.cpu)
    double()
    assert x.to_numpy().tolist() == [8, 16, 24, 32]
    with ds.Tape(loss):
        measure()
    assert x.grad.to_numpy().tolist() == [16, 32, 48, 64]


# ---- several tangents


@pytest.mark.parametrize("shape", [(), 400, (3, 700)])
def test_tangents_in_blocks(fake, shape):
    """What is set is read, whatever lies between the blocks."""
    x = fake.Vector.field(3, fake.f64, shape=shape)
    dual = make_dual(x, 4)
    numbers = np.random.default_rng(1).normal(size=(*x.shape, 4, 3))
    dual.from_numpy(numbers)
    np.testing.assert_array_equal(dual.to_numpy(), numbers)
    dual.fill([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(dual.to_numpy(), np.broadcast_to([1.0, 2.0, 3.0], numbers.shape))
    dual.clear()
    assert not dual.to_numpy().any()
