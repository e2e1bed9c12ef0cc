"""The host's side of GPU runs, on a GPU that is not there (`fake.py`)."""

import contextlib
import gc
import os
import re
import struct
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from diffsim.backends.cuda import driver, libcuda, pycuda_context
from diffsim.backends.cuda.libcuda import DriverError
from diffsim.backends.cuda.ptx import to_ptx
from diffsim.backends.llvm.parameter_block import ERROR, SEED
from diffsim.runtime import session
from diffsim.runtime.cuda import backend as cuda_backend
from diffsim.runtime.cuda import device
from diffsim.runtime.fields import export
from diffsim.runtime.memory.storage import HOST
from tests.cuda import fake as fakes
from tests.cuda.fake import live

ROOT = Path(__file__).resolve().parents[2]


# ---- launches


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


def test_a_block_too_large_to_be_handed_over(fake):
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


# ---- memory


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


def test_out_of_memory_names_the_field_and_nothing_breaks(fake):
    ds = fake
    with pytest.raises(
        ds.FieldError,
        match=r"no memory for huge of shape .* it takes 745 GiB, and .* has 16 GiB left",
    ):
        ds.field(ds.f64, shape=10**11, name="huge")
    x = ds.field(ds.f32, shape=3)
    x.fill(1)
    assert x[2] == 1


@contextlib.contextmanager
def little_memory(ds, left=0):
    """A GPU that is as good as full."""
    gc.collect()
    session.session.device._release_spare()
    memory, ds.driver.memory = ds.driver.memory, ds.driver.used + left
    yield
    ds.driver.memory = memory


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

    record().backward(loss)
    assert (x.grad[5], y.grad[5]) == (4 * 27, 4 * 8)
    words = r"no memory to save [xy]: it takes 781 KiB, and GPU 0 .*checkpoint"
    with little_memory(ds), pytest.raises(ds.AutodiffError, match=f"(?s){words}"):
        record()
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
    assert failed >= 4
    for f in (x, y):
        f.grad.fill(0)
    tape.backward(loss)
    assert (x.grad[5], y.grad[5]) == (4 * 27, 4 * 8)


def test_kept_memory_is_given_up_before_an_allocation_fails(fake):
    ds = fake
    kept = ds.field(ds.u8, shape=32 << 20)
    del kept
    gc.collect()
    ds.driver.memory = ds.driver.used + 1000
    x = ds.field(ds.u8, shape=20 << 20)
    x.fill(3)
    assert x[5] == 3


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
        part = x.storage.snapshot(axis, 1)
        x.fill(ds.Vector([-1.0, -2.0]))
        x.storage.restore(part, axis, 1)
        expected = np.broadcast_to(np.float32([-1, -2]), (4, 3, 2)).copy()
        at = (slice(None),) * axis + (1,)
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


# ---- NumPy


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
    with pytest.raises(ds.BackendError, match=r"fill can not be launched .*ILLEGAL_ADDRESS"):
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

    with pytest.raises(ds.BackendError, match=r"fill can not be compiled for .*\n*ptxas: line 3"):
        fill()


# ---- the cache


def test_code_is_compiled_once(fake, tmp_path):
    ds = fake
    cache = str(tmp_path / "cache")

    def program():
        ds.init(arch=ds.cuda, offline_cache_file_path=cache)
        x = ds.field(ds.f32, shape=7)

        @ds.kernel
        def fill():
            for i in x:
                x[i] = 3.0 * i

        before = ds.driver.linked
        fill()
        assert x[2] == 6
        return ds.driver.linked - before

    assert [program(), program()] == [1, 0]
    ds.driver.version += 10
    assert [program(), program()] == [1, 0]
    for file in (tmp_path / "cache").rglob("*.entry"):
        file.write_bytes(file.read_bytes()[:-9])
    assert program() == 1


def test_code_on_disk_that_the_driver_refuses_is_compiled_again(fake, tmp_path, monkeypatch):
    ds = fake
    x = ds.field(ds.f32, shape=7)
    load, asked = ds.driver.load, []

    @ds.kernel
    def fill():
        for i in x:
            x[i] = 3.0 * i

    def picky(image):
        asked.append(image)
        if len(asked) == 2:
            raise DriverError("cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU", 209)
        return load(image)

    monkeypatch.setattr(ds.driver, "load", picky)
    before = ds.driver.linked
    for _ in range(3):
        ds.init(arch=ds.cuda, offline_cache_file_path=str(tmp_path / "cache"))
        fill()
        assert x[2] == 6
    assert (len(asked), ds.driver.linked - before) == (4, 2)


# ---- which backend


def missing(monkeypatch, message="NVIDIA's driver (libcuda.so.1) is not installed"):
    def opened(number, jit, pool):
        raise DriverError(message)

    monkeypatch.setattr(cuda_backend, "open_device", opened)


def test_without_a_gpu(monkeypatch):
    import diffsim as ds

    missing(monkeypatch)
    with pytest.raises(ds.BackendError, match=r"libcuda\.so\.1\) is not installed") as caught:
        ds.init(arch=ds.cuda)
    assert "nvidia-smi" in str(caught.value)
    with pytest.warns(UserWarning, match=r"using the CPU, because .* is not installed") as found:
        ds.init(arch=ds.gpu)
    assert len(found) == 1
    x = ds.field(ds.f32, shape=3)
    assert x.storage.device is HOST
    ds.init(arch=[ds.cuda, ds.cpu])
    assert ds.field(ds.f32, shape=3).storage.device is HOST
    with pytest.raises(ds.FieldError, match="is not a backend"):
        ds.init(arch=[])
    ds.init(arch=ds.cpu)


def test_the_environment_chooses_where_init_does_not(fake, monkeypatch):
    ds = fake
    monkeypatch.setattr(session, "_default_arch", fakes.DEFAULT_ARCH)
    for name, on_gpu in (("cuda", True), ("gpu", True), ("cpu", False), ("", False)):
        monkeypatch.setenv("DIFFSIM_ARCH", name)
        ds.init()
        assert (ds.field(ds.f32, shape=3).storage.device is not HOST) is on_gpu
        ds.reset()
        assert (ds.field(ds.f32, shape=3).storage.device is not HOST) is on_gpu
        ds.init(arch=ds.cpu)
        assert ds.field(ds.f32, shape=3).storage.device is HOST
    monkeypatch.setenv("DIFFSIM_ARCH", "vulkan")
    with pytest.raises(ds.FieldError, match="DIFFSIM_ARCH can not be 'vulkan'"):
        ds.init()


def test_the_cpu_needs_no_driver():
    code = (
        "import diffsim.backends.cuda.driver as driver; driver.load = None\n"
        "import diffsim as ds; ds.init(arch=ds.cpu); x = ds.field(ds.f32, shape=3); x.fill(1); print(x[2])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert (run.returncode, run.stdout) == (0, "1.0\n"), run.stderr


def test_no_driver_is_one_error(monkeypatch):
    monkeypatch.setattr(libcuda, "LIBRARIES", ("libnothing.so.1",))
    libcuda.load.cache_clear()
    try:
        with pytest.raises(DriverError, match="is not installed"):
            driver.Driver()
    finally:
        libcuda.load.cache_clear()


class Library:
    """The driver's library as far as opening a GPU goes."""

    def __init__(self, version, sm):
        self.numbers = {
            "cuDriverGetVersion": version,
            "cuDeviceGetCount": 1,
            75: sm // 10,
            76: sm % 10,
        }

    def __getitem__(self, name):
        def call(*args):
            kinds = libcuda.CALLS[name]
            assert len(args) == len(kinds)
            if name == "cuDeviceGetName":
                args[0].value = b"a card"
            which = args[1] if name == "cuDeviceGetAttribute" else name
            if which in self.numbers:
                args[0]._obj.value = self.numbers[which]
            return 0

        return call


@pytest.mark.parametrize(
    ("version", "sm", "message"),
    [
        (11040, 80, r"driver is too old: it knows CUDA 11\.4, .* CUDA 11\.8 \(driver 520\)"),
        (12090, 37, r"GPU 0 \(a card\) is too old: its compute capability is 3\.7, .* 5\.0"),
        (11080, 50, None),
        (13000, 120, None),
    ],
)
def test_what_is_too_old_is_refused_before_anything_runs(monkeypatch, version, sm, message):
    """So that ds.gpu and lists can fall back to the CPU."""
    import diffsim as ds

    monkeypatch.setattr(driver, "load", lambda: Library(version, sm))
    monkeypatch.setattr(pycuda_context, "find", lambda: None)
    monkeypatch.setattr(device, "_devices", {})
    monkeypatch.setattr(cuda_backend, "open_device", device.open_device)
    if message is None:
        ds.init(arch=ds.cuda)
    else:
        with pytest.raises(ds.BackendError, match=message):
            ds.init(arch=ds.cuda)
        with pytest.warns(UserWarning, match=message):
            ds.init(arch=ds.gpu)
    ds.init(arch=ds.cpu)


@pytest.mark.parametrize(
    ("sm", "version", "target", "ptx"),
    [
        (75, 11080, 75, 7.8),
        (90, 11080, 89, 7.8),
        (90, 12000, 89, 7.8),
        (90, 12010, 90, 8.1),
        (120, 12080, 90, 8.1),
        (88, 13000, 87, 7.8),  # LLVM's PTX for 8.8 itself is newer
    ],
)
def test_no_newer_ptx_than_the_driver_takes(sm, version, target, ptx):
    """Versions of PTX by NVIDIA's table of release notes: 7.8 is of CUDA 11.8, 8.1 of 12.1."""
    opened = device.Device(fakes.FakeDriver(sm=sm, version=version), None, None)
    assert opened.sm == target
    text = to_ptx("define ptx_kernel void @k() {\n  ret void\n}\n", opened.sm)
    assert f".version {ptx}\n.target sm_{target}\n" in text


# ---- other libraries


class Foreign:
    """An array of another library on the fake GPU."""

    def __init__(self, memory, start=0, shape=None, strides=None, dtype=np.float32, **more):
        self.memory = memory
        dtype = np.dtype(dtype)
        shape = memory.shape if shape is None else shape
        self.more = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory.address + start, False),
            "version": 3,
            "strides": strides,
            **more,
        }

    @property
    def __cuda_array_interface__(self):
        return self.more


def test_arrays_on_the_gpu_are_used_where_they_are(fake):
    ds = fake
    memory = ds.field(ds.f32, shape=12)
    memory.from_numpy(np.arange(12, dtype=np.float32))
    x = ds.field(ds.f32, shape=(2, 3))

    @ds.kernel
    def take(y: ds.types.ndarray()):
        for i, j in x:
            x[i, j] = y[i, j]
            y[i, j] = -1.0

    take(Foreign(memory, 12, (2, 3)))
    assert x.to_numpy().tolist() == [[3, 4, 5], [6, 7, 8]]
    assert memory.to_numpy().tolist() == [0, 1, 2, -1, -1, -1, -1, -1, -1, 9, 10, 11]
    take(Foreign(memory, 0, (2, 3), (12, 4), stream=99))
    assert ds.driver.waited_for == 99
    assert x.to_numpy().tolist() == [[0, 1, 2], [-1, -1, -1]]
    for wrong, message in (
        (Foreign(memory, 0, (2, 3), (16, 4)), "not contiguous"),
        (Foreign(memory, 0, (2, 3), data=(memory.address, True)), "read-only"),
        (Foreign(memory, 0, (2, 3), mask=memory), "has a mask"),
        (Foreign(memory, 0, (2, 3), data=(12345, False)), "not on GPU 0"),
        (Foreign(memory, 0, (2, 3), dtype=np.complex64), "complex64 can not be used"),
        (Foreign(x, 4, (1, 3)), "overlap"),
    ):
        with pytest.raises(ds.KernelTypeError, match=message):
            take(wrong)
    ds.init(arch=ds.cpu)
    with pytest.raises(ds.KernelTypeError, match="is on a GPU, and kernels run on the CPU"):
        take(Foreign(memory, 12, (2, 3)))


def test_gradients_with_foreign_arrays(fake):
    """The tape keeps what they were, and refuses to lose a value in them."""
    ds = fake
    memory = ds.field(ds.f32, shape=3)
    memory.from_numpy(np.float32([1, 2, 3]))
    x, loss = ds.field(ds.f32, shape=3, needs_grad=True), ds.field(ds.f32, (), needs_grad=True)
    x.fill(1)

    @ds.kernel
    def measure(w: ds.types.ndarray()):
        for i in x:
            loss[None] += w[i] * x[i] ** 2

    with ds.Tape(loss):
        measure(Foreign(memory))
        memory.fill(100)
    assert x.grad.to_numpy().tolist() == [2, 4, 6]
    x.grad.fill(0)
    measure(Foreign(memory))
    loss.grad.fill(1)
    measure.grad(Foreign(memory))
    assert x.grad.to_numpy().tolist() == [200, 200, 200]

    @ds.kernel
    def store(w: ds.types.ndarray()):
        for i in x:
            w[i] = x[i]

    with pytest.raises(ds.MissingGradientError):
        with ds.Tape(loss):
            store(Foreign(memory))
            measure(Foreign(memory))


def test_a_replay_refuses_foreign_arrays(fake):
    ds = fake
    memory = ds.field(ds.f32, shape=3)
    x, loss = ds.field(ds.f32, shape=3, needs_grad=True), ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def measure(w: ds.types.ndarray()):
        for i in x:
            loss[None] += w[i] * x[i] ** 2

    with ds.Tape(loss) as tape:
        measure(Foreign(memory))
    with pytest.raises(ds.AutodiffError, match="w of measure was an array of another library"):
        tape.replay()


def test_fields_are_handed_out(fake):
    ds = fake
    x = ds.Matrix.field(2, 3, ds.f64, shape=(4, 5), layout=ds.Layout.SOA)
    given = x.__cuda_array_interface__
    assert given["shape"] == (4, 5, 2, 3)
    assert given["typestr"] == "<f8"
    assert given["strides"] == (40, 8, 480, 160)
    assert given["data"] == (x.address, False)
    assert x.__dlpack_device__() == (2, 0)
    memory = weakref.ref(x.storage)
    capsule = x.__dlpack__()
    del x
    gc.collect()
    assert memory() is not None
    del capsule
    gc.collect()
    assert memory() is None


def test_numpy_is_told_that_a_field_is_on_a_gpu(fake):
    """Its own error would be lost, with a SystemError in its place."""
    ds = fake
    x = ds.field(ds.f32, shape=4)
    memory = weakref.ref(x.storage)
    with pytest.raises(BufferError, match=r"use x\.to_numpy"):
        np.from_dlpack(x)
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(1, 0), stream=None)
    assert x.__dlpack__(max_version=(1, 0), stream=1, dl_device=(2, 0)) is not None
    del x
    gc.collect()
    assert memory() is None


class OnHost:
    """A field of the fake GPU as a library sees it that knows streams and works on the host's memory."""

    def __init__(self, field, stream=1, **more):
        self.field, self.more = field, {"stream": stream, **more}

    def __dlpack_device__(self):
        return self.field.__dlpack_device__()

    def __dlpack__(self, **asked):
        self.capsule = self.field.__dlpack__(**{**asked, **self.more})
        self.name = re.search(r'"(\w+)"', repr(self.capsule))[1]
        return self.capsule


@pytest.mark.parametrize(
    ("version", "name"), [((1, 0), "dltensor_versioned"), (None, "dltensor"), ((0, 8), "dltensor")]
)
def test_capsules_of_both_kinds_are_read_by_numpy(fake, monkeypatch, version, name):
    ds = fake
    monkeypatch.setattr(device, "_DLPACK_CUDA", HOST.dlpack[0])
    values = np.arange(60.0).reshape(4, 5, 3)
    x = ds.Vector.field(3, ds.f64, shape=(4, 5), layout=ds.Layout.SOA)
    x.from_numpy(values)
    given = OnHost(x, max_version=version)
    a = np.from_dlpack(given)
    ds.sync()
    assert given.name == name
    assert a.ctypes.data == x.address
    assert (a == values).all()
    assert a.flags.writeable == (version == (1, 0))  # by the old kind NumPy is not told
    if a.flags.writeable:
        a[2, 3, 1] = -1
        assert x[2, 3][1] == -1
    x.fill(5)
    ds.sync()
    assert (a == 5).all()
    memory, held = weakref.ref(x.storage), len(export._handed_out)
    del x, given
    gc.collect()
    assert memory() is not None
    del a
    gc.collect()
    assert (memory(), len(export._handed_out)) == (None, held - 1)


def test_a_copy_is_one_if_it_is_asked_for(fake, monkeypatch):
    ds = fake
    monkeypatch.setattr(device, "_DLPACK_CUDA", HOST.dlpack[0])
    x = ds.field(ds.i32, shape=1000)
    x.fill(3)
    used = live(ds)
    a = np.from_dlpack(OnHost(x, copy=True, max_version=(1, 0)))
    x.fill(4)
    ds.sync()
    assert (a == 3).all()
    assert live(ds) > used
    del a
    assert live(ds) == used
    x.fill(5)
    waits = ds.driver.waits
    for stream in (None, 1, -1):
        x.__dlpack__(stream=stream)
    assert ds.driver.waits == waits
    for stream in (2, 12345):  # of its own, or a thread's: in no order with ours
        x.__dlpack__(stream=stream)
        assert ds.driver.waits == waits + 1
        waits += 1
    for place in ((2, 1), (1, 7), (13, 0)):
        with pytest.raises(BufferError, match=r"in the memory of GPU 0 .*to_numpy"):
            x.__dlpack__(stream=1, dl_device=place)


def test_memory_may_be_let_go_after_pythons_end(tmp_path):
    """As by a static variable of another library."""
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes\n"
        "from tests.cuda import fake\n"
        "fake.install()\n"
        "import diffsim as ds\n"
        "ds.init(arch=ds.cuda)\n"
        "capsule = ds.field(ds.f32, 4).__dlpack__(stream=1)\n"
        "take = ctypes.pythonapi.PyCapsule_GetPointer\n"
        "take.restype, take.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)\n"
        "at = take(capsule, b'dltensor') + 56\n"  # after DLTensor and the manager's own pointer
        "keep = ctypes.pythonapi.Py_IncRef\n"
        "keep.argtypes = (ctypes.py_object,)\n"
        "class Late:\n"
        "    def __del__(self, at=at, word=ctypes.c_void_p, write=__import__('os').write):\n"
        "        write(1, b'%d' % (word.from_address(at).value or 0))\n"
        "import numpy\n"  # its module is among the last to be emptied
        "numpy.late = Late()\n"
        "assert ctypes.c_void_p.from_address(at).value\n"
        "keep(capsule)\n"
    )
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert (run.returncode, run.stdout) == (0, "0"), run.stderr


def test_numpy_shares_a_field_on_the_cpu(fake):
    ds = fake
    ds.init(arch=ds.cpu)
    x = ds.Vector.field(3, ds.f32, shape=(4, 5), layout=ds.Layout.SOA)
    a = np.from_dlpack(x)
    x[2, 3] = [1, 2, 3]
    assert a[2, 3].tolist() == [1, 2, 3]
    assert not hasattr(x, "__cuda_array_interface__")
    del x
    gc.collect()
    assert a[2, 3].tolist() == [1, 2, 3]


def test_writes_from_outside_can_be_told(fake):
    ds = fake
    x, loss = ds.field(ds.f32, 3, needs_grad=True), ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    with pytest.raises(ds.GlobalDataAccessError):
        with ds.Tape(loss):
            measure()
            x.mark_written()


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


@pytest.mark.parametrize("how", ["tape", "replay", "kernel.grad"])
def test_gradients_of_a_pass_that_failed_late_are_nan(fake, how, monkeypatch):
    """An adjoint notes on the GPU that something is wrong; Python hears of it when it next looks."""
    ds = fake
    x, other = (ds.field(ds.f64, shape=4, needs_grad=True) for _ in range(2))
    loss, turns = ds.field(ds.f64, shape=(), needs_grad=True), ds.field(ds.i32, shape=())

    @ds.kernel(simplicity="relaxed")
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
