"""The parameter block of a compiled kernel: a row of 8-byte slots.

All inputs of a launch go through it: base pointers, dimensions of arrays, arguments, and the
slots that the tasks of one launch share (temporaries, bounds, partial results). No address is baked into
code, so object code can be kept on disk and shared by processes.

On the CPU all slots are in one block. On a GPU the slots that a launch hands over are a kernel's own,
read-only parameter; those that tasks write are words of a work area in device memory.
"""

from __future__ import annotations

from diffsim.ir.nodes import Arg, Const, Kernel, Mem
from diffsim.ir.types import size_of

LOG_SLOTS = 5
# The first slots are the same on all targets; `gate.ll` reads POOL, RUN and STOP by number.
POOL, ERROR, SEED, THREADS, PRINTED, FIRST = 0, 1, 2, 3, 4, 5
RUN, STOP, FIRST_OF_CPU = 5, 6, 7
"""On the CPU only, and known to `gate.ll`: the kernel's function; the stop request, not 0 if there is one."""


class ParameterBlock:
    """The layout of a parameter block: which slot holds what. Compiled code has scalar IR.

    The order is fixed by the kernel alone, so code from the disk cache fits a block made in another process.

    Args:
        kernel: the kernel.
        apart: whether the slots that tasks write (`temps` and what follows it below) are numbered from 0,
            as words of a memory of their own.

    Attributes:
        fixed: number of slots that a launch hands over.
        pointers: slot of each memory's base pointer.
        dims: slot of the first dimension of each array.
        args: slot of each argument, the first one of a tensor's.
        temps: slot of the first scalar of each temporary.
        bounds: slot of each bound of a parallel task that is not a constant.
        partials: slot of the pointer to a task's partial results.
        copies: slot of the pointer to the private copies of memories that a task adds to; the next slot has
            their number.
        logs: first slot of a task whose updates are logged (`update_log.py`).
        packed: slot of the pointer to each copy of a task that lanes load from.
        borders: slot of the pointer to the border counters of a task that trails another one, or has seams.
        size: number of slots, or of words of that memory.
    """

    def __init__(self, kernel: Kernel, *, apart: bool = False) -> None:
        self.pointers: dict[Mem, int] = {}
        self.dims: dict[Mem, int] = {}
        self.args: dict[Arg, int] = {}
        self.temps: dict[Mem, int] = {}
        self.bounds: dict[tuple[int, int], int] = {}
        self.partials: dict[int, int] = {}
        self.copies: dict[int, int] = {}
        self.logs: dict[int, int] = {}
        self.packed: dict[tuple[int, int], int] = {}
        self.borders: dict[int, int] = {}
        at = FIRST if apart else FIRST_OF_CPU
        for mem in kernel.mems:
            if mem.kind in ("field", "array"):
                self.pointers[mem] = at
                at += 1
                # Launches hand them over where the code has them as numbers, too.
                if mem.kind == "array":
                    self.dims[mem] = at
                    at += mem.rank
        for arg in kernel.args:
            self.args[arg] = at
            at += size_of(arg.type)
        # Up to here a launch fills the slots from Python, the rest is scratch of the kernel itself.
        self.fixed = at
        at = 0 if apart else at
        for mem in kernel.mems:
            if mem.kind == "temp":
                self.temps[mem] = at
                at += size_of(mem.dtype)
        for k, task in enumerate(kernel.tasks):
            # Constant bounds are in the code.
            for j, v in enumerate(task.bounds.yields):
                if not isinstance(v, Const):
                    self.bounds[k, j] = at
                    at += 1
            if task.reductions:
                self.partials[k] = at
                at += 1
            if task.privatized:
                self.copies[k] = at
                at += 2
            if task.order is not None and task.order.logged:
                self.logs[k] = at
                at += LOG_SLOTS
            for j in range(len(task.packed)):
                self.packed[k, j] = at
                at += 1
            if task.lag is not None or task.reach is not None:
                self.borders[k] = at
                at += 1
        self.size = at
