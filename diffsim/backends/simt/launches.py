"""The SIMT backend: the tasks of a kernel become functions of a GPU.

The tasks of a launch are consecutive GPU launches, in the order of `SimtCode.entries`. Every entry
point takes the parameter block by value, so that a launch copies nothing and the block lies in the
GPU's constant memory. Values that the tasks of a launch write for each other are in a work area, whose
address the block holds. The threads of a "parallel" entry take lanes in strides of the whole grid,
so any grid will do; one that fills the GPU is best. Serial tasks in a row are one entry.

The threads find out the bounds of their loop themselves where that is one small computation of
values that the task does not write. Otherwise the entry before it stores the bounds and the number of
lanes in the work area, so the host never waits to learn them.

Sums are folded in registers, with shuffles and in shared memory; a block updates memory once
(`backends/simt/block_reduce.py`). Atomic updates come in no fixed order: sums of floats differ in their
last bits from launch to launch. With `deterministic=True` they do not: blocks store their partial results,
which another entry adds in order, and a task with other updates whose order matters (sums of floats with an
index that several lanes have, atomics whose old value is used) runs its lanes in order on one thread, which
is right and slow.

No address is baked into the text, and nothing here needs a GPU or a driver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from diffsim.backends.llvm.lanes import count
from diffsim.backends.llvm.module import Module
from diffsim.backends.simt.block_reduce import shared_copies
from diffsim.backends.simt.distribution import is_tiled, lanes_per_thread, rows
from diffsim.backends.simt.entry_functions import (
    MOST_BLOCKS,
    combine_entry,
    joined_entry,
    parallel_entry,
    serial_entry,
)
from diffsim.backends.simt.entry_point import BLOCK_DIM, EntryPoint
from diffsim.backends.simt.parameter_block import ALIGNMENT, SimtParameterBlock
from diffsim.backends.simt.target import SimtTarget
from diffsim.errors import Span
from diffsim.ir.nodes import Alloca, Atomic, Kernel, Let, Load, Mem, Store, Task
from diffsim.ir.traversal import statements

_MOST_BOUND_STATEMENTS = 32  # that each thread computes by itself
_MOST_JOINED = 8  # tasks of one launch
_UNROLL = 4


class SimtCode:
    """LLVM text of a kernel, its parameter layout, what it can report, its launches in order.

    Attributes:
        heap: whether threads may take memory from the device's heap (`cuCtxSetLimit` sizes it).
        ordered: tasks that run on one thread for the sake of `deterministic=True`.
    """

    def __init__(
        self,
        text: str,
        layout: SimtParameterBlock,
        module: Module,
        entries: list[EntryPoint],
        *,
        heap: bool,
        ordered: list[Span],
    ) -> None:
        self.text = text
        self.layout = layout
        self.checks = module.checks
        self.prints = module.prints
        self.entries = entries
        self.heap = heap
        self.ordered = ordered


def lower_simt(
    kernel: Kernel,
    target: SimtTarget,
    *,
    fast_math: bool,
    deterministic: bool = False,
    block_dim: int = BLOCK_DIM,
) -> SimtCode:
    """Lower a scalar kernel to an LLVM module for a kind of GPU.

    Args:
        kernel: on scalars, the formulas of its ops written out.
        target: the kind of GPU.
        fast_math: let LLVM approximate and reorder; subnormal f32 numbers are 0.
        deterministic: give equal bits in every run with the same grids.
        block_dim: threads in a block of the tasks that do not say: a multiple of 32 up to 1024, or a power
            of two.

    Raises:
        BackendError: the target has no code for something in the kernel.
    """
    layout = SimtParameterBlock(kernel, target.parameter_bytes)
    module = Module(kernel, layout, target, fast_math=fast_math)
    launches = Launches(module, layout, block_dim, deterministic=deterministic)
    launches.write(kernel.tasks)
    # Metadata nodes 2 and 3 are fixed here; `Module.metadata` numbers its own from 10 on.
    parts = [
        *(module.declared[symbol] for symbol in sorted(module.declared)),
        *launches.text,
        *module.metadata(),
        f"!2 = !{{i64 {ALIGNMENT}}}",
        *module.loop_hints,
        f'!3 = !{{!"llvm.loop.unroll.count", i32 {_UNROLL}}}',
    ]
    if fast_math:
        parts += target.module_flags(module.new_nodes())
    # The host then sizes the heap before the first launch; afterwards it cannot.
    heap = target.heap_alloc in module.declared
    whole = "\n".join(parts) + "\n"
    return SimtCode(whole, layout, module, launches.entries, heap=heap, ordered=launches.ordered)


class Launches:
    """Writes the entry points of a kernel, one for each launch, in order.

    Attributes:
        text: the entry points' functions.
        ordered: the loops whose lanes run in order, on one thread.
        waiting: the tasks that the next launch of one thread runs.
    """

    def __init__(
        self, module: Module, layout: SimtParameterBlock, block_dim: int, *, deterministic: bool
    ) -> None:
        self.name = _symbol(module.kernel.name)
        self.module = module
        self.layout = layout
        self.block_dim = block_dim
        self.deterministic = deterministic
        self.entries: list[EntryPoint] = []
        self.text: list[str] = []
        self.ordered: list[Span] = []
        self.waiting: list[int] = []

    def write(self, tasks: Sequence[Task]) -> None:
        k = 0
        # The end of a GPU launch is the only barrier across blocks, so dependent tasks must be
        # separate entries; merged are serial tasks in a row and tasks known to be independent.
        while k < len(tasks):
            group = self._group(tasks[k : k + _MOST_JOINED])
            if not group[0].axes:
                # Serial tasks wait for more of their kind: one launch runs all of them.
                self.waiting.append(k)
            elif len(group) > 1 or is_tiled(group[0], self._dim(group[0])):
                self._pending(k, group)
            else:
                self._alone(k, group[0])
            k += len(group)
        self._flush()

    def _dim(self, task: Task) -> int:
        return task.block_dim or self.block_dim

    def _group(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the first of these tasks, and those after it that belong to the same launch."""
        group = [tasks[0]]
        for other in tasks[1:] if tasks[0].axes else ():
            # One launch has one block size, and no order among its blocks.
            if self._dim(other) != self._dim(tasks[0]) or not other.concurrent:
                break
            group.append(other)
        return group

    def _add(self, entry: EntryPoint, text: list[str]) -> None:
        self.entries.append(entry)
        self.text += text

    def _flush(self) -> None:
        if self.waiting:
            first = self.waiting[0]
            entry = EntryPoint(f"{self.name}_serial{first}", "serial", first, 1, 1, blocks=1)
            self._add(entry, serial_entry(self.module, entry, self.waiting))
            self.waiting = []

    def _pending(self, k: int, group: list[Task]) -> None:
        self._flush()
        dim = self._dim(group[0])
        entry = EntryPoint(f"{self.name}_task{k}", "parallel", k, rows(group, dim), dim)
        self._add(entry, joined_entry(self.module, entry, group))

    def _alone(self, k: int, task: Task) -> None:
        layout, lanes, dim = self.layout, count(task), self._dim(task)
        # The serial entry that runs the waiting tasks evaluates these bounds too: no launch of its
        # own.
        if lanes is None and not _threads_find_bounds(task):
            # The number of lanes goes through the work area to the entry after it.
            layout.lanes[k] = layout.reserve(1)
            self.waiting.append(k)
        self._flush()
        called = f"{self.name}_task{k}"
        # Slow but right: the user is told which loops run so (`ordered`).
        if self.deterministic and _depends_on_lane_order(task):
            self.ordered.append(task.span)
            # One thread strides over all lanes: the order of a serial loop.
            entry = EntryPoint(called, "serial", k, lanes, 1, blocks=1)
        else:
            # A word for each block of the largest grid; the number of blocks is part of the result,
            # so the grid is bounded and recorded.
            in_order = self.deterministic and bool(task.reductions)
            if in_order:
                layout.blocks[k] = layout.reserve(1)
                layout.partials[k] = layout.reserve(MOST_BLOCKS * len(task.reductions))
            # A bounded grid only where each block needs a word for its result.
            per_thread, blocks = lanes_per_thread(task), MOST_BLOCKS if in_order else None
            fills = _fills(task, lanes, dim)
            entry = EntryPoint(called, "parallel", k, lanes, dim, per_thread, blocks, fills)
        self._add(entry, parallel_entry(self.module, entry, task))
        if k in layout.partials:
            entry = EntryPoint(
                f"{self.name}_combine{k}", "combine", k, None, self.block_dim, blocks=1
            )
            self._add(entry, combine_entry(self.module, entry, task))


def _symbol(name: str) -> str:
    """Return the kernel's name without what GPUs' assemblers do not allow in names."""
    # PTX identifiers: letters, digits and _ (PTX ISA, Identifiers); flags keep other alphabets out.
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if plain[:1].isalpha() else f"k{plain}"


def _depends_on_lane_order(task: Task) -> bool:
    """Return whether results depend on the order in which lanes update an element.

    Integer additions, minima and maxima commute exactly; float additions round, and an old value that is used
    tells how many others came first.
    """
    return any(
        isinstance(s, Atomic)
        and not s.exclusive
        and (s.out is not None or (s.op == "add" and s.mem.dtype.scalar.is_float))
        for s in statements(task.body)
    )


def _fills(task: Task, lanes: int | None, block_dim: int) -> bool:
    """Return whether each block has partial results to add up, or each thread memory of its own."""
    return (
        bool(task.reductions)
        or any(isinstance(s, Alloca) for s in statements(task.body))
        or bool(shared_copies(task, lanes, block_dim))
    )


def _written(task: Task) -> set[Mem]:
    written = {s.mem for s in statements(task.body) if isinstance(s, (Store, Atomic))}
    return written | {mem for _, mem, _ in task.reductions}


def _threads_find_bounds(task: Task) -> bool:
    """Return whether every thread may compute the bounds: little work, on values not written by the task.

    Threads begin at different times: one that begins late would read what an early one has overwritten.
    """
    if len(task.bounds.stmts) > _MOST_BOUND_STATEMENTS:
        return False
    # Bounds may depend on fields: the loads must give every thread the same.
    written = _written(task)
    # Arrays of arguments may be views of one another: a store to one may change any.
    if any(mem.kind == "array" for mem in written):
        written |= {s.mem for s in statements(task.bounds) if isinstance(s, Load)}
    return all(
        isinstance(s, Let) or (isinstance(s, Load) and s.mem not in written)
        for s in task.bounds.stmts
    )
