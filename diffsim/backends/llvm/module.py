"""State that the functions of one kernel share when they are written as LLVM text.

Differences between targets are behind `Target` (`target.py`).
"""

from __future__ import annotations

import struct

from diffsim.backends.llvm import safepoints
from diffsim.backends.llvm.parameter_block import ParameterBlock
from diffsim.backends.llvm.target import Target
from diffsim.ir.nodes import Alloca, Atomic, Check, Const, Kernel, Mem, Print, Task
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
        self.loops = 0
        """Number of loops that LLVM must not vectorize."""
        self.loop_hints: list[str] = []
        """Metadata of loops that a GPU's threads are to unroll."""
        self.counting: set[int] = set()
        """Tasks whose functions return early where the launch is to stop."""
        self.simd_widths: dict[Task, int] = {}
        """Lanes of a task that run together as a vector, memoized."""
        self.checks: list[Check | Alloca] = []
        self.prints: list[Print] = []
        self.scopes: dict[object, int] = {}
        # One scope for each memory: fields are separate allocations, and a launch refuses arrays that
        # overlap what the kernel writes (`runtime/binding/array_memory.py`).
        for mem in kernel.mems:
            if mem.kind in ("field", "array"):
                self.scopes[mem] = len(self.scopes)
        # Temporaries and partial results ("block") and saved values ("scratch") never overlap with any.
        self.scopes["block"] = len(self.scopes)
        self.scopes["scratch"] = len(self.scopes)

    def declare(self, name: str, text: str) -> None:
        self.declared[name] = text

    def alias(self, mem: Mem | str) -> str:
        """Return the alias metadata of an access: its own scope, and noalias with all others."""
        shared = {"temp": "block", "scratch": "scratch"}
        k = self.scopes[shared.get(mem.kind, mem) if isinstance(mem, Mem) else mem]
        return f", !alias.scope !{10 + 2 * k}, !noalias !{11 + 2 * k}"

    def as_scalars(self, calls_before: int | None = None, *, always: bool = False) -> str:
        """Return metadata for the back edge of a loop that should not become vectors, if it is one.

        Those are the ones since whose beginning there were more calls of functions without vector forms.

        LLVM would call such a function for each element of a vector, which gains nothing, and its two
        cost estimates differ where one call takes the result of another: an assertion then ends the process.
        """
        if calls_before in (None, self.scalar_calls) and not always:
            return ""
        self.loops += 1
        return f", !llvm.loop !{9 + 3 * len(self.scopes) + self.loops}"

    def metadata(self) -> list[str]:
        n = len(self.scopes)
        lines = ['!0 = distinct !{!0, !"kernel"}', "!1 = !{}"]
        # Node 3 belongs to the branch weights of safepoints.
        if "@ds_poll" in self.declared:
            lines.append(safepoints.METADATA)
        # Numbering: 0 to 9 fixed nodes; 10 + 2k and 11 + 2k the lists of scope k and of all others;
        # then the scopes; then loops. `alias` and `as_scalars` use the numbers before the nodes are
        # written. Size is quadratic in the number of fields.
        scope = {k: 10 + 2 * n + k for k in range(n)}
        for k in range(n):
            lines.append(f"!{scope[k]} = distinct !{{!{scope[k]}, !0}}")
        for k in range(n):
            others = ", ".join(f"!{scope[j]}" for j in range(n) if j != k)
            lines.append(f"!{10 + 2 * k} = !{{!{scope[k]}}}")
            lines.append(f"!{11 + 2 * k} = !{{{others}}}")
        if self.loops:
            lines.append('!2 = !{!"llvm.loop.vectorize.enable", i1 false}')
        for k in range(10 + 3 * n, 10 + 3 * n + self.loops):
            lines.append(f"!{k} = distinct !{{!{k}, !2}}")
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
