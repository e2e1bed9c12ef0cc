"""Which backend `ds.init` opens, what it refuses as too old, and code that is kept on disk for a GPU."""

import pytest

from diffsim.backends.cuda import driver, libcuda, pycuda_context
from diffsim.backends.cuda.libcuda import DriverError
from diffsim.backends.cuda.ptx import to_ptx
from diffsim.runtime import session
from diffsim.runtime.cuda import backend as cuda_backend
from diffsim.runtime.cuda import device
from diffsim.runtime.memory.storage import HOST
from tests.cuda import fake as fakes
from tests.support.processes import run


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
    with pytest.warns(UserWarning, match="using the CPU"):
        ds.init(arch=ds.vulkan)
    ds.init(arch=[ds.cuda, "cpu"])
    ds.init(arch=[ds.cuda, ds.x64])
    assert ds.field(ds.f32, shape=3).storage.device is HOST
    with pytest.raises(ds.OptionError, match="is not a backend"):
        ds.init(arch=[])
    ds.init(arch=ds.cpu)


def test_the_environment_wins_over_init(fake, monkeypatch):
    ds = fake
    monkeypatch.setattr(session, "default_arch", fakes.DEFAULT_ARCH)
    for name, on_gpu in (("cuda", True), ("gpu", True), ("cpu", False), ("", False)):
        monkeypatch.setenv("DIFFSIM_ARCH", name)
        ds.init()
        assert (ds.field(ds.f32, shape=3).storage.device is not HOST) is on_gpu
        ds.reset()
        assert (ds.field(ds.f32, shape=3).storage.device is not HOST) is on_gpu
        ds.init(arch=ds.cpu)
        assert (ds.field(ds.f32, shape=3).storage.device is not HOST) is on_gpu
    monkeypatch.setenv("DIFFSIM_ARCH", "vulkan")
    with pytest.raises(ds.OptionError, match="DIFFSIM_ARCH cannot be 'vulkan'"):
        ds.init()
    with pytest.raises(ds.OptionError, match="'cu' is not a backend"):
        ds.init(arch="cu")
    monkeypatch.delenv("DIFFSIM_ARCH")


def test_the_cpu_needs_no_driver(tmp_path):
    code = (
        "import diffsim.backends.cuda.driver as driver; driver.load = None\n"
        "import diffsim as ds; ds.init(arch=ds.cpu); x = ds.field(ds.f32, shape=3); x.fill(1); print(x[2])"
    )
    assert run(tmp_path, code) == "1.0\n"


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


# ---- code on disk


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
