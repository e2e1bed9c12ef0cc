"""Launches on a GPU that is not there (`fake.py`): blocks, grids, errors that come late, threads."""

import struct
import threading

import numpy as np
import pytest

from diffsim.backends.cuda.libcuda import DriverError
from diffsim.backends.llvm.parameter_block import ERROR, SEED
from diffsim.runtime import session
from tests.cuda.fake import live


def test_launches_in_order_with_their_blocks(fake):
    """Byte by byte, against a packing of the layout written down here."""
    ds = fake
    x = ds.field(ds.f64, shape=(3, 4))
    a = ds.ndarray(ds.f64, shape=(5, 2))

    @ds.kernel
    def run(y: ds.types.ndarray(), n: ds.i32, s: ds.f64, flag: ds.u1, big: ds.u64, small: ds.i8):
        for i, j in x:
            x[i, j] += s + ds.random()
        for i, j in y:
            y[i, j] += n + small
            if flag:
                y[i, j] += ds.cast(big, ds.f64)

    before = len(ds.driver.launches)
    run(a, -7, 2.5, True, 2**63 + 5, -3)
    made = ds.driver.launches[before:]
    special = next(iter(run.specializations.values()))
    compiled = special.executable
    code = compiled.layout
    assert [launch.name for launch in made] == ["run_task0", "run_task1"]
    for launch in made:
        block = launch.block
        assert len(block) == 8 * code.fixed

        def slot(k, code="q", block=block):
            return struct.unpack_from("<" + code, block, 8 * k)[0]

        assert slot(0) == compiled.work.address
        assert slot(ERROR) == compiled.errors.address
        assert slot(SEED) == 1  # the session's first launch with random numbers, its seed being 0
        by_name = {m.name: m for m in code.pointers}
        assert slot(code.pointers[by_name["x"]]) == x.address
        y = by_name["y"]
        assert slot(code.pointers[y]) == a.address
        assert [slot(code.dims[y] + k) for k in range(2)] == [5, 2]
        at = {arg.hint: k for arg, k in code.args.items()}
        assert slot(at["n"], "i") == -7
        assert slot(at["s"], "d") == 2.5
        assert slot(at["flag"], "?") is True
        assert slot(at["big"], "Q") == 2**63 + 5
        assert slot(at["small"], "b") == -3
        assert launch.block_dim % 32 == 0
        assert launch.grid >= 1
    assert (a.to_numpy() == -7 - 3 + float(2**63 + 5)).all()


def test_launches_do_not_wait(fake):
    ds = fake
    x = ds.field(ds.f32, shape=10, needs_grad=True)
    y = ds.field(ds.f32, shape=10, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def step(a: ds.f32):
        for i in x:
            y[i] = a * x[i]
            loss[None] += y[i] ** 2

    def turn():
        x.fill(2.0)
        with ds.Tape(loss, in_place="save"):
            step(3.0)
        y.grad.copy_from(x.grad)

    turn()
    waits = ds.driver.waits
    turn()
    assert ds.driver.waits == waits
    assert y.grad[3] == 36
    assert ds.driver.waits > waits


@pytest.mark.filterwarnings("ignore:more than 500 iterations")
def test_a_block_too_large_to_be_handed_over(quick_code, fake):
    ds = fake
    fields = [ds.field(ds.i32, shape=2) for _ in range(600)]

    @ds.kernel
    def number(k: ds.i32):
        for j in ds.static(range(600)):
            f = fields[j]
            f[1] = j + k

    number(5)
    number(7)
    assert len(ds.driver.launches[-1].block) > 4096
    assert [f[1] for f in fields] == list(range(7, 607))


def test_grids(fake):
    ds = fake
    few, many = ds.field(ds.f32, shape=10), ds.field(ds.f32, shape=10_000_019)

    @ds.kernel
    def set_few():
        for i in few:
            few[i] = 1.0

    @ds.kernel
    def set_many():
        for i in many:
            many[i] = 1.0

    ds.driver.run_kernels = False
    set_few()
    set_many()
    one, two = ds.driver.launches[-2:]
    assert one.grid == 1
    per_block = 10_000_019 / two.grid
    assert per_block % 1 != 0
    assert two.grid * two.block_dim <= 10_000_019 + two.block_dim


def test_numpy_arrays_are_copied_in_and_out(fake):
    ds = fake

    @ds.kernel
    def scale(x: ds.types.ndarray(), y: ds.types.ndarray(), a: ds.f64):
        for i in x:
            y[i] = a * x[i]

    x, y = np.arange(5.0), np.zeros(5)
    start = live(ds)
    scale(x, y, 2.0)
    assert y.tolist() == [0, 2, 4, 6, 8]
    assert x.tolist() == [0, 1, 2, 3, 4]
    assert live(ds) - start < 10_000  # the kernel's own

    @ds.kernel
    def more(x: ds.types.ndarray(), y: ds.types.ndarray()):
        for i in x:
            x[i] += y[i] + 1.0

    more(x, x)
    assert x.tolist() == [1, 3, 5, 7, 9]


# ---- errors


def test_a_failed_check_is_seen_when_python_next_looks(fake):
    ds = fake
    ds.init(arch=ds.cuda, debug=True)
    device = session.session.device
    x = ds.field(ds.f32, shape=10)

    @ds.kernel
    def put(k: ds.i32):
        x[k] = 1.0

    put(3)
    with pytest.raises(ds.AccessError, match=r"12.*x") as caught:
        put(12)
    assert "x[k] = 1.0" in str(caught.value)
    put(4)
    compiled = next(iter(put.specializations.values())).executable
    for look in (ds.sync, x.to_numpy, lambda: x[0]):
        compiled.params[compiled.layout.args[next(iter(compiled.layout.args))]] = 99
        assert compiled.call(compiled.block) == 0  # as without debug
        device.add_pending(compiled, False, 0)
        with pytest.raises(ds.AccessError, match="99"):
            look()
        look()
    put(5)
    assert x.to_numpy()[1:].nonzero()[0].tolist() == [2, 3, 4]  # what is outside goes to the first


def test_what_the_driver_says_is_raised(fake):
    ds = fake
    x = ds.field(ds.f32, shape=10)

    @ds.kernel
    def fill():
        for i in x:
            x[i] = 1.0

    fill()
    ds.driver.failure = DriverError("cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS", 700)
    with pytest.raises(ds.BackendError, match=r"fill cannot be launched .*ILLEGAL_ADDRESS"):
        fill()
    for look in (ds.sync, x.to_numpy, lambda: x[3]):
        with pytest.raises(ds.BackendError, match=r"launched before has failed .*ILLEGAL_ADDRESS"):
            look()
    ds.driver.failure = None


def test_code_that_the_driver_refuses(fake, monkeypatch):
    ds = fake
    x = ds.field(ds.f32, shape=10)

    def link(ptx):
        raise DriverError("cuLinkAddData: CUDA_ERROR_INVALID_PTX\nptxas: line 3", 218)

    monkeypatch.setattr(ds.driver, "link", link)

    @ds.kernel
    def fill():
        for i in x:
            x[i] = 0.123454321

    with pytest.raises(ds.BackendError, match=r"fill cannot be compiled for .*\n*ptxas: line 3"):
        fill()


@pytest.mark.parametrize("how", ["tape", "replay", "kernel.grad"])
def test_gradients_of_a_pass_that_failed_late_are_nan(fake, how, monkeypatch):
    """An adjoint notes on the GPU that something is wrong; Python hears of it when it next looks."""
    ds = fake
    x, other = (ds.field(ds.f64, shape=4, needs_grad=True) for _ in range(2))
    loss, turns = ds.field(ds.f64, shape=(), needs_grad=True), ds.field(ds.i32, shape=())

    @ds.kernel
    def iterate():
        for i in x:
            y = x[i]
            for _ in range(turns[None]):
                y = ds.sin(y)
            loss[None] += y

    turns[None] = 3
    tape = ds.Tape()
    with tape:
        iterate()
    if how == "replay":
        tape.replay()
    x.grad.fill(7.0)
    other.grad.fill(2.0)
    loss.grad.fill(1.0)
    if how == "kernel.grad":
        iterate.grad()
    else:
        tape.backward(loss)
    special = next(iter(iterate.specializations.values()))

    def report():
        raise ds.AccessError("no memory", None)

    monkeypatch.setattr(special.derivative.executable, "report", report)
    with pytest.raises(ds.AccessError, match="no memory") as caught:
        x.grad.to_numpy()
    assert "are NaN now" in caught.value.__notes__[0]
    assert np.isnan(x.grad.to_numpy()).all()
    assert other.grad[0] == 2.0


# ---- threads


def test_threads_share_a_device(fake):
    ds = fake
    x = ds.field(ds.i32, shape=8)

    @ds.kernel
    def more(k: ds.i32):
        for i in x:
            x[i] += k

    more(0)

    def work():
        for _ in range(200):
            more(1)
            y = ds.field(ds.i32, shape=100)
            y.fill(5)
            assert y[99] == 5

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert x.to_numpy().tolist() == [800] * 8
