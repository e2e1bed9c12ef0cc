"""The protocol of backends (where fields lie and kernels run), and the registry for `ds.init(arch=...)`.

A backend's own module registers it: `cpu/backend.py`, `cuda/backend.py`. The session has one at a time
(`session.backend`), and everything outside those two folders reaches the machine through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from diffsim.errors import BackendError
from diffsim.ir.nodes import Kernel
from diffsim.ir.types import ScalarType
from diffsim.passes.pipeline import Stages
from diffsim.runtime.executable import BoundArray, Executable
from diffsim.runtime.memory.storage import MemorySpace, Storage, StorageLayout, StridedSpan


class CommandList(Protocol):
    """A sequence of launches and memory operations that runs without Python between them.

    The `add_...` methods append operations; `run` executes them, as often as wanted. Nothing can be added
    after the first run.

    Attributes:
        done: how many operations the last `run` completed.
    """

    done: int

    def add_launch(
        self,
        executable: Any,
        args: list[bool | int | float],
        seed: int,
        arrays: list[BoundArray],
    ) -> None:
        """Append a launch.

        Args:
            executable: the kernel, compiled for this backend.
            args: its arguments, flattened to scalars.
            seed: the key of its random numbers.
            arrays: the memories that are arguments.
        """

    def add_copy(self, target: StridedSpan, source: StridedSpan) -> None:
        """Append a copy. The caller keeps both memories alive as long as the list."""

    def add_swap(self, one: StridedSpan, other: StridedSpan) -> None:
        """Append an exchange of the contents of two memories that do not overlap."""

    def add_sum(self, target: StridedSpan, source: StridedSpan, dtype: ScalarType) -> None:
        """Append an addition of f32 or f64 numbers to those of a memory that does not overlap theirs."""

    def add_clear(self, target: StridedSpan) -> None:
        """Append setting memory to 0."""

    def run(self, begin: int = 0, end: int | None = None) -> None:
        """Run the operations begin..end (all).

        Other threads of Python run meanwhile where that takes long, and Ctrl-C ends it.

        Raises:
            CheckError: a check in a kernel failed, as in a launch; `done` tells how far it got.
            KeyboardInterrupt: and whatever else a signal handler raises.
        """

    def __len__(self) -> int:
        """Return the number of operations."""


class Code(Protocol):
    """The result of `generate`: LLVM text, with what the backend's `link` needs to know of it."""

    text: str


class RecentlyUsed:
    """A cache of the most recently used values, bounded in number (LRU)."""

    def __init__(self, most: int) -> None:
        self.most = most
        # A dictionary keeps the order of insertion; a value that is used is inserted anew, so the first is
        # the oldest.
        self.values: dict[Any, Any] = {}  # in the order of their use

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the value of a key, made if it is missing."""
        found = self.values.pop(key, None)
        if found is None:
            found = make()
        self.values[key] = found
        if len(self.values) > self.most:
            # The default: another thread may have removed it.
            self.values.pop(next(iter(self.values)), None)
        return found


class Backend(Protocol):
    """A processor that kernels run on, with its memory.

    Attributes:
        name: as in `ds.init(arch=ds.NAME)`.
        device: where its fields lie. Two backends with one device share fields and executables.
        stops: whether `breakpoint()` in a kernel stops a launch.
        keeps_code: whether `link` asks nothing of the tasks of a kernel, so that code can be linked without
            the passes having run.
        many_lanes: whether lanes at work are so many that each saves as little as it can.
        knows_shapes: whether the shapes of the arrays that a kernel is given first are numbers in its code.
        loaded: the machine code that was loaded last.
    """

    name: str
    stops: bool
    keeps_code: bool
    many_lanes: bool
    knows_shapes: bool
    loaded: RecentlyUsed

    @property
    def device(self) -> MemorySpace: ...

    def new_storage(self, layout: StorageLayout) -> Storage:
        """Allocate the elements of a field, all zeros.

        Raises:
            MemoryError, ValueError, OverflowError: there is not so much memory.
        """

    def lowering(self) -> Stages:
        """Return the passes between prepared IR and `generate`."""

    def generate(self, lowered: Kernel) -> Code:
        """Generate LLVM text from lowered IR."""

    def code_key(self, text: str) -> tuple[str, ...]:
        """Return everything that the machine code made of a text depends on."""

    def assemble(self, text: str) -> bytes:
        """Make machine code of LLVM text.

        Raises:
            CodeRefused: the compiler cannot.
        """

    def load(self, image: bytes) -> Any:
        """Load machine code into the process, or onto the device.

        Raises:
            CodeRefused: it is not what `assemble` makes here.
        """

    def link(self, lowered: Kernel, code: Any, image: Any) -> Executable:
        """Make an executable of what `lower`, `generate` and `load` returned."""

    def refusal(self, kernel: Kernel, reason: str) -> BackendError:
        """Return the error for a kernel whose code was refused."""

    def new_command_list(self) -> CommandList:
        """Make an empty command list."""

    def sync(self) -> None:
        """Wait until all launches are done, and raise what their checks found."""

    def info(self) -> str:
        """Return what kernels run on, in words."""


class CodeRefused(Exception):
    """Machine code cannot be made, or loaded; the text says why."""


class BackendUnavailable(Exception):
    """A backend cannot be used on this machine; the text says what is missing."""


# Filled by `register` when `diffsim` is imported, so this module needs to know no backend.
_openers: dict[str, Callable[[int], Backend]] = {}


def register(name: str, opener: Callable[[int], Backend]) -> None:
    """Register a backend.

    Args:
        name: as in `ds.init(arch=ds.NAME)`.
        opener: returns the backend of a device, given its number; may raise BackendUnavailable.
    """
    _openers[name] = opener


def open_backend(name: str, device: int) -> Backend:
    """Return the backend of that name on the device of that number.

    Raises:
        BackendUnavailable: something that it needs is missing.
    """
    return _openers[name](device)
