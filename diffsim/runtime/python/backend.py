"""Python as a backend: fields as on the CPU, kernels as Python functions with the user's lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diffsim.backends.stepping import Program
from diffsim.errors import BackendError
from diffsim.ir.nodes import Kernel
from diffsim.passes import pipeline
from diffsim.passes.pipeline import Stages
from diffsim.runtime.backend import RecentlyUsed, register
from diffsim.runtime.memory.reserved import new_host_storage
from diffsim.runtime.memory.storage import HOST, HostStorage, MemorySpace, StorageLayout
from diffsim.runtime.python.command_list import PythonCommandList
from diffsim.runtime.python.executable import PythonExecutable
from diffsim.runtime.session import session


@dataclass
class PythonCode:
    """A kernel as a Python function: there is no text that a compiler would read."""

    program: Program
    text: str = ""


class PythonBackend:
    """The interpreter of the IR; see `Backend` for the methods."""

    name = "python"
    stops = True
    keeps_code = False
    many_lanes = False
    knows_shapes = False
    device: MemorySpace = HOST

    def __init__(self) -> None:
        self.loaded = RecentlyUsed(1)  # nothing is ever loaded

    def new_storage(self, layout: StorageLayout) -> HostStorage:
        return new_host_storage(layout)

    def lowering(self) -> Stages:
        # No passes: values stay the vectors and names that the user wrote.
        return pipeline.INTERPRETED_DEBUG if session.options.debug else pipeline.INTERPRETED

    def generate(self, lowered: Kernel) -> PythonCode:
        return PythonCode(Program(lowered))

    def code_key(self, text: str) -> tuple[str, ...]:
        return (text,)

    def assemble(self, text: str) -> bytes:
        return text.encode()

    def load(self, image: bytes) -> None:
        """Load nothing: there is no machine code."""

    def link(self, lowered: Kernel, code: PythonCode, image: Any) -> PythonExecutable:
        return PythonExecutable(lowered, code.program)

    def refusal(self, kernel: Kernel, reason: str) -> BackendError:
        return BackendError(
            f"Python cannot run {kernel.name}: {reason}",
            kernel.span,
            hint="run the program with ds.init(arch=ds.cpu)",
        )

    def new_command_list(self) -> PythonCommandList:
        return PythonCommandList()

    def sync(self) -> None:
        """Return at once: a launch returns when it is done."""

    def info(self) -> str:
        return "Python, one statement at a time"


_backend = PythonBackend()
register("python", lambda _: _backend)
