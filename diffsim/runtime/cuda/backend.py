"""An NVIDIA GPU as a backend: fields in its memory, launches and copies in order on one stream of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from diffsim.backends.cuda import codegen
from diffsim.backends.cuda.codegen import SimtCode
from diffsim.backends.cuda.libcuda import DriverError
from diffsim.backends.cuda.ptx import PtxError
from diffsim.errors import BackendError
from diffsim.ir.nodes import Kernel
from diffsim.passes import pipeline
from diffsim.passes.pipeline import Stages
from diffsim.runtime.backend import BackendUnavailable, CodeRefused, RecentlyUsed, register
from diffsim.runtime.cuda.command_list import CudaCommandList
from diffsim.runtime.cuda.device import Device, DeviceStorage, open_device
from diffsim.runtime.cuda.executable import CudaExecutable, CudaModule
from diffsim.runtime.memory.storage import StorageLayout
from diffsim.runtime.session import session


class CudaBackend:
    """One GPU; see `Backend` for the methods."""

    name = "cuda"
    stops = False
    keeps_code = False
    many_lanes = True
    knows_shapes = False

    def __init__(self, device: Device) -> None:
        self.device = device
        self.loaded = RecentlyUsed(
            0
        )  # the device's memory is scarce: modules go with their kernels

    def new_storage(self, layout: StorageLayout) -> DeviceStorage:
        return DeviceStorage(layout, self.device)

    def lowering(self) -> Stages:
        return pipeline.lower_cuda(debug=session.options.debug)

    def generate(self, lowered: Kernel) -> SimtCode:
        options = session.options
        return codegen.lower(
            lowered,
            fast_math=options.fast_math,
            deterministic=options.deterministic,
            sm=self.device.sm,
            block_dim=options.default_gpu_block_dim,
        )

    def code_key(self, text: str) -> tuple[str, ...]:
        # "cubin" keeps these keys apart from the CPU's; the identity names the driver, whose assembler makes
        # the code.
        return "cubin", text, self.device.identity, session.jit.fingerprint

    def assemble(self, text: str) -> bytes:
        with _refusing():
            return self.device.machine_code(text)

    def load(self, image: bytes) -> CudaModule:
        with _refusing():
            return CudaModule(self.device, image)

    def link(self, lowered: Kernel, code: SimtCode, image: CudaModule) -> CudaExecutable:
        return CudaExecutable(lowered, code, image, self.device)

    def refusal(self, kernel: Kernel, reason: str) -> BackendError:
        return BackendError(
            f"{kernel.name} cannot be compiled for {self.device}: {reason}",
            kernel.span,
            hint="docs/gpu.md says what it takes; ds.init(arch=ds.cpu) runs without a GPU",
        )

    def new_command_list(self) -> CudaCommandList:
        return CudaCommandList(self.device)

    def sync(self) -> None:
        self.device.sync()

    def info(self) -> str:
        """Return the GPU, its driver, and whose context is used: libcuda's own, or pycuda's."""
        driver = self.device.driver
        version = f"CUDA {driver.version // 1000}.{driver.version % 1000 // 10}"
        return f"{self.device}, {version}, through {driver.interface}"


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Run a block whose errors say that code is refused, but for those after which nothing works."""
    try:
        yield
    except PtxError as problem:
        raise CodeRefused(str(problem)) from None
    # An error that ends the context says nothing about this code.
    except DriverError as problem:
        if problem.is_fatal:
            raise
        raise CodeRefused(problem.reason) from None


def _open(number: int) -> CudaBackend:
    # Functions: the session makes its compiler and its pool when they are first needed.
    try:
        device = open_device(number, lambda: session.jit, lambda: session.pool)
    except DriverError as error:
        raise BackendUnavailable(error.reason) from None
    # Set here, as fields, which register the function, belong to a room above this one.
    device.on_failure = session.on_device_failure
    return CudaBackend(device)


register("cuda", _open)
