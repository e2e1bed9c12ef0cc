"""The CPU as a backend: fields in the host's memory, code by LLVM, parallel loops on a pool of threads."""

from __future__ import annotations

from diffsim.backends.cpu import codegen
from diffsim.backends.cpu.codegen import CpuCode
from diffsim.backends.native.jit import Library, LLVMError
from diffsim.backends.native.pool import load_pool
from diffsim.errors import BackendError
from diffsim.ir.nodes import Kernel
from diffsim.passes import pipeline
from diffsim.passes.pipeline import Stages
from diffsim.runtime.backend import CodeRefused, RecentlyUsed, register
from diffsim.runtime.cpu.command_list import CpuCommandList
from diffsim.runtime.cpu.executable import ENTRY, CpuExecutable
from diffsim.runtime.memory.reserved import new_host_storage
from diffsim.runtime.memory.storage import HOST, HostStorage, MemorySpace, StorageLayout
from diffsim.runtime.session import session


class CpuBackend:
    """The processor that Python runs on; see `Backend` for the methods."""

    name = "cpu"
    stops = False
    keeps_code = True
    many_lanes = False
    knows_shapes = True
    device: MemorySpace = HOST

    def __init__(self) -> None:
        # LLVM never frees some kilobytes of each library, and loading one takes time: a program that
        # compiles the same kernels again and again (after each `ds.init`) gets the same libraries.
        self.loaded = RecentlyUsed(256)

    def new_storage(self, layout: StorageLayout) -> HostStorage:
        return new_host_storage(layout)

    def lowering(self) -> Stages:
        options = session.options
        return pipeline.lower(
            debug=options.debug,
            deterministic=options.deterministic,
            vector_bits=session.jit.vector_bits,
        )

    def generate(self, lowered: Kernel) -> CpuCode:
        options = session.options
        return codegen.lower(
            lowered,
            session.jit,
            fast_math=options.fast_math,
            deterministic=options.deterministic,
            threads=session.threads,
        )

    def code_key(self, text: str) -> tuple[str, ...]:
        # The options are in the text; the fingerprint stands for the processor, LLVM and its settings.
        return text, session.jit.fingerprint

    def assemble(self, text: str) -> bytes:
        try:
            return session.jit.compile(text)
        except LLVMError as problem:
            raise CodeRefused(str(problem)) from None

    def load(self, image: bytes) -> Library:
        load_pool(session.jit, session.cache)  # registers the symbols that the code may call
        try:
            library = session.jit.load(image)
            library.address(ENTRY)  # fails where somebody has made up an entry of the disk cache
        except LLVMError as problem:
            raise CodeRefused(str(problem)) from None
        return library

    def link(self, lowered: Kernel, code: CpuCode, image: Library) -> CpuExecutable:
        return CpuExecutable(lowered, code, image)

    def refusal(self, kernel: Kernel, reason: str) -> BackendError:
        return BackendError(
            f"LLVM makes no machine code of {kernel.name}: {reason}",
            kernel.span,
            hint="please report this with the kernel; until then divide the kernel into smaller ones"
            ", or leave fast_math=True out",
        )

    def new_command_list(self) -> CpuCommandList:
        return CpuCommandList()

    def sync(self) -> None:
        """Return at once: a launch returns when it is done."""

    def info(self) -> str:
        return "the CPU"


# One for the process: its libraries are shared by all sessions.
_backend = CpuBackend()
register("cpu", lambda _: _backend)
