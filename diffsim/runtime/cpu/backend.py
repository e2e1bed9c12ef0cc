"""The CPU as a backend: fields in the host's memory, code by LLVM, parallel loops on a pool of threads."""

from __future__ import annotations

from diffsim.ir.nodes import Kernel
from diffsim.runtime.backend import register
from diffsim.runtime.cpu.command_list import CpuCommandList
from diffsim.runtime.cpu.executable import CpuExecutable
from diffsim.runtime.memory.storage import HOST, HostStorage, MemorySpace, StorageLayout


class CpuBackend:
    """The processor that Python runs on; see `Backend` for the methods."""

    name = "cpu"
    device: MemorySpace = HOST

    def new_storage(self, layout: StorageLayout) -> HostStorage:
        return HostStorage(layout)

    def compile(self, kernel: Kernel) -> CpuExecutable:
        return CpuExecutable(kernel)

    def new_command_list(self) -> CpuCommandList:
        return CpuCommandList()

    def sync(self) -> None:
        """Return at once: a launch returns when it is done."""

    def info(self) -> str:
        return "the CPU"


_backend = CpuBackend()
register("cpu", lambda _: _backend)
