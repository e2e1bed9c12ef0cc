"""State that the functions of one kernel share when they are written as LLVM text.

Differences between targets are behind `Target` (`target.py`).
"""

from __future__ import annotations

import math
import struct

from diffsim.backends.llvm import safepoints
from diffsim.backends.llvm.parameter_block import ParameterBlock
from diffsim.backends.llvm.target import Target
from diffsim.ir.nodes import Alloca, Atomic, Check, Const, Kernel, Mem, Print, Task
from diffsim.ir.simple_tasks import box_sizes
from diffsim.ir.traversal import task_statements
from diffsim.ir.types import ScalarType


class Module:
    """State that the functions of one kernel share: declarations, alias scopes, the table of diagnostics.

    Attributes:
        deterministic: on the CPU, whether no result may depend on how fast threads are, nor on how many.
        exact: whether every number must come out the same, to the last bit, in other code too.
    """

    def __init__(
        self,
        kernel: Kernel,
        layout: ParameterBlock,
        target: Target,
        *,
        fast_math: bool,
        deterministic: bool = False,
    ) -> None:
        self.kernel = kernel
        self.deterministic = deterministic
        self.layout = layout
        self.target = target
        self.exact = _same_bits(kernel)
        # No nnan and ninf, even with fast_math: results without NaN checks would be poison where a
        # program meets one (LLVM LangRef, fast-math flags).
        self.flags = "reassoc nsz arcp contract afn" if fast_math else "contract"
        # Not even contraction: whether a product and a sum are fused depends on the code around
        # them.
        if self.exact:
            self.flags = ""
        # By symbol: each is declared once, however many functions use it.
        self.declared: dict[str, str] = {}
        self.math: dict[str, None] = {}
        self.text: list[str] = []
        """Functions that long blocks were outlined into."""
        self.parts = 0
        self.scalar_calls = 0
        """Calls emitted so far of functions without a vector form."""
        self.inlined_forms = 0
        """Calls emitted so far of vector forms that are written where they are called."""
        self.loops: dict[int, str] = {}
        """Metadata nodes of loops that LLVM must not vectorize, with what they say."""
        self.loop_hints: list[str] = []
        """Metadata of loops that a GPU's threads are to unroll."""
        self.counting: set[int] = set()
        """Tasks whose functions return early where the launch is to stop."""
        self.sharing: dict[int, tuple[int, ...]] = {}
        """The tasks that may have one function, by each of them (`cpu/shared_functions.py`)."""
        self.same_sizes: dict[tuple[int, int], int] = {}
        """The number of lanes of a task along an axis, if all that share its function have as many."""
        self.same_as: dict[int, int] = {}
        """The task whose function a task is run by, if it is another one's."""
        boxes = filter(None, map(box_sizes, kernel.tasks))
        self.most_lanes = max(map(math.prod, boxes), default=0)
        """Lanes of the largest task whose number of lanes is a constant."""
        self.tables: dict[Mem, str] = {}
        """The names of memories that belong to the code."""
        self.simd_widths: dict[Task, int] = {}
        """Lanes of a task that run together as a vector, memoized."""
        self.checks: list[Check | Alloca] = []
        self.prints: list[Print] = []
        self.nodes = 10
        """The number of the next metadata node; those below are fixed."""
        self.domains: list[dict[object, int]] = [{}]
        """By memory, the first node of its alias scope, in each domain of scopes."""

    def declare(self, name: str, text: str) -> None:
        self.declared[name] = text

    def table(self, mem: Mem) -> str:
        """Return the name of a table, which belongs to the code."""
        name = self.tables.setdefault(mem, f"@table{len(self.tables)}")
        count, t = math.prod(mem.shape or ()), memory_type(mem.dtype.scalar)
        # Zeros take no room in the object file.
        text = f"{name} = internal global [{count} x {t}] zeroinitializer, align 64"
        self.declare(name, text)
        return name

    def new_nodes(self, count: int = 1) -> int:
        """Return the first number of new metadata nodes."""
        self.nodes += count
        return self.nodes - count

    def open_domain(self) -> None:
        """Begin a new domain of alias scopes, for the functions of one task.

        Each access names all other scopes of its domain. With the memories of the whole kernel in one domain
        LLVM would look through all of them for each pair of accesses of each task.
        """
        self.domains.append({})

    def alias(self, mem: Mem | str) -> str:
        """Return the alias metadata of an access: its own scope, and noalias with all others.

        One scope for each memory: fields are separate allocations, and a launch refuses arrays that overlap
        what the kernel writes (`runtime/binding/array_memory.py`). Temporaries and partial results ("block")
        and saved values ("scratch") never overlap with any.
        """
        shared = {"temp": "block", "scratch": "scratch"}
        key = shared.get(mem.kind, mem) if isinstance(mem, Mem) else mem
        domain = self.domains[-1]
        if key not in domain:
            domain[key] = self.new_nodes(3)
        return f", !alias.scope !{domain[key]}, !noalias !{domain[key] + 1}"

    def as_scalars(
        self, calls_before: int | None = None, *, slow: bool = False, always: bool = False
    ) -> str:
        """Return metadata for the back edge of a loop that should not become vectors, if it is one.

        Those are the ones since whose beginning there were more calls of functions without vector forms.

        LLVM would call such a function for each element of a vector, which gains nothing, and its two
        cost estimates differ where one call takes the result of another: an assertion then ends the process.
        `slow`: whether LLVM would take too long. `always`: whether it is one in any case, of few iterations,
        and so not unrolled either.
        """
        if calls_before in (None, self.scalar_calls) and not (slow or always):
            return ""
        k = self.new_nodes()
        self.loops[k] = "!2, !4" if always else "!2"
        return f", !llvm.loop !{k}"

    def as_vectors_first(self) -> str:
        """Return metadata for the back edge of a loop that becomes vectors before it is written out.

        Once it was, each lane's branches are its own, and no vectors are found among them.
        """
        k = self.new_nodes()
        self.loops[k] = "!4, !5"
        return f", !llvm.loop !{k}"

    def metadata(self) -> list[str]:
        lines = ['!0 = distinct !{!0, !"kernel"}', "!1 = !{}"]
        # Node 3 belongs to the branch weights of safepoints.
        if "@ds_poll" in self.declared:
            lines.append(safepoints.METADATA)
        # Three nodes for each scope: the list of itself, that of all others of its domain, and itself. Their
        # size is quadratic in the number of memories that one task touches.
        for domain in self.domains:
            for k in domain.values():
                others = ", ".join(f"!{j + 2}" for j in domain.values() if j != k)
                lines.append(f"!{k} = !{{!{k + 2}}}")
                lines.append(f"!{k + 1} = !{{{others}}}")
                lines.append(f"!{k + 2} = distinct !{{!{k + 2}, !0}}")
        if self.loops:
            lines.append('!2 = !{!"llvm.loop.vectorize.enable", i1 false}')
            lines.append('!4 = !{!"llvm.loop.unroll.disable"}')
            lines.append('!5 = !{!"llvm.loop.vectorize.followup_vectorized", !6}')
            lines.append('!6 = !{!"llvm.loop.unroll.enable"}')
        lines += [f"!{k} = distinct !{{!{k}, {says}}}" for k, says in self.loops.items()]
        return lines


def _same_bits(kernel: Kernel) -> bool:
    """Return whether another kernel must compute the same numbers, to the last bit, in code of its own.

    The adjoint of `atomic_max m[i], v` computes v again and compares it with m[i]. So both kernels are
    compiled without contraction, and without the vector forms of math functions, which round differently.
    """
    # Reductions and atomics: the passes turn one into the other.
    updates = [(mem, op) for t in kernel.tasks for op, mem, _ in t.reductions]
    for t in kernel.tasks:
        updates += [(s.mem, s.op) for s in task_statements(t) if isinstance(s, Atomic)]
    return any(
        op == "xchg" or (op in ("min", "max") and mem.grad is not None) for mem, op in updates
    )


def memory_type(t: ScalarType) -> str:
    """Return the LLVM type in memory: a boolean is a byte, as in NumPy."""
    return "i8" if t.is_bool else t.llvm


def number(c: Const) -> str:
    """Return a constant as LLVM text; floats in hexadecimal, so that no digit is lost."""
    t = c.type.scalar
    if t.is_float:
        if t.bits == 16:
            return f"0xH{int(t.numpy.type(c.value).view('u2')):04X}"
        # LLVM writes float constants as the bits of the equal double, and rejects a double that no
        # float is equal to (LangRef, Simple Constants).
        value = float(t.numpy.type(c.value))
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if t.is_bool:
        return "true" if c.value else "false"
    return str(int(c.value))
