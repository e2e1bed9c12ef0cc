"""An NVIDIA GPU as a backend: fields in its memory, launches and copies in order on one stream of it."""

from __future__ import annotations

from diffsim.backends.cuda.libcuda import DriverError
from diffsim.ir.nodes import Kernel
from diffsim.runtime.backend import BackendUnavailable, register
from diffsim.runtime.cuda.command_list import CudaCommandList
from diffsim.runtime.cuda.device import Device, DeviceStorage, open_device
from diffsim.runtime.cuda.executable import CudaExecutable
from diffsim.runtime.memory.storage import StorageLayout
from diffsim.runtime.session import session


class CudaBackend:
    """One GPU; see `Backend` for the methods."""

    name = "cuda"

    def __init__(self, device: Device) -> None:
        self.device = device

    def new_storage(self, layout: StorageLayout) -> DeviceStorage:
        return DeviceStorage(layout, self.device)

    def compile(self, kernel: Kernel) -> CudaExecutable:
        return CudaExecutable(kernel, self.device)

    def new_command_list(self) -> CudaCommandList:
        return CudaCommandList(self.device)

    def sync(self) -> None:
        self.device.sync()

    def info(self) -> str:
        """Return the GPU, its driver, and whose context is used: libcuda's own, or pycuda's."""
        driver = self.device.driver
        version = f"CUDA {driver.version // 1000}.{driver.version % 1000 // 10}"
        return f"{self.device}, {version}, through {driver.interface}"


def _open(number: int) -> CudaBackend:
    try:
        device = open_device(number, lambda: session.jit, lambda: session.pool)
    except DriverError as error:
        raise BackendUnavailable(error.reason) from None
    device.on_failure = session.on_device_failure
    return CudaBackend(device)


register("cuda", _open)
