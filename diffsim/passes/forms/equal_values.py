"""Computes a value once that a program writes down twice, so that it is differentiated once.

    way.normalized() * (way.norm() - rest)

has two roots of the same sum. LLVM makes one of them where they are in one block, but no longer of their
adjoints: each has a quotient of its own, of what flows into it. Where the two are one value, what flows into
it is added first.

    %a = sqrt %s                  %a = sqrt %s
    %b = sqrt %s          ->      ... %a ...
    ... %b ...

An adjoint repeats functions of the program, as the derivative of a sine is a cosine. So functions are merged
again on the way to machine code: those of vectors have branches, and are no single values to LLVM. Quotients
and roots are; LLVM merges them with what they are computed of, so that all of a value is rounded in one way.

Legal within a block and those inside: equal are values by value numbering, and the derivative of a sum is the
sum of derivatives. Loads are not looked at. Only of what takes long, so that other kernels stay as they are.
"""

from __future__ import annotations

from diffsim.ir.nodes import Block, Const, CustomCall, Kernel, Let, Stmt, Task, Value
from diffsim.ir.op import Math
from diffsim.ir.traversal import Rewriter

_SLOW = frozenset(("div", "sqrt", "rsqrt", "pow"))


class ValueNumbering:
    """The numbers of the values that were seen; equal values share one.

    Ops are pure, so that values of the same op, type and operands are equal (Alpern, Wegman and Zadeck,
    "Detecting equality of variables in programs", 1988). Whoever uses it walks a body in its order and says
    what else has a number, as loads of what nobody writes.
    """

    def __init__(self) -> None:
        self._numbers: dict[Value, object] = {}
        self._known: dict[tuple[object, ...], object] = {}

    def number(self, v: Value) -> object:
        """Return the number of a value: its own unless it was seen to be computed like another one."""
        if isinstance(v, Const):
            return v.type, repr(v.value)  # `repr` tells 0.0 from -0.0
        return self._numbers.get(v, v)

    def let(self, s: Let) -> object:
        """Number the result of an operation."""
        return self.computed(s.out, s.op, s.out.type, *map(self.number, s.args))

    def computed(self, v: Value, *of: object) -> object:
        """Give a value the number of all that are computed of the same."""
        number = self._numbers[v] = self._known.setdefault(of, v)
        return number

    def equal(self, v: Value, number: object) -> None:
        """Give a value a number: it equals those that have it."""
        self._numbers[v] = number


def merge_equal_values(kernel: Kernel, *, only_functions: bool = False) -> Kernel:
    """Return the kernel that computes roots, quotients and functions once; itself, if it does already."""
    work = _Merging(frozenset() if only_functions else _SLOW)
    tasks = tuple([work.task(t) for t in kernel.tasks])
    return kernel.replace(tasks=tasks) if work.found else kernel


class _Merging(Rewriter):
    """Copies tasks; `found` says whether a value was there twice.

    Args:
        ops: the names of those that are merged, besides functions.
    """

    def __init__(self, ops: frozenset[str]) -> None:
        super().__init__()
        self.found = False
        self._ops = ops
        self._values = ValueNumbering()
        self._available: dict[object, Value] = {}

    def task(self, t: Task) -> Task:
        return t.replace(body=self.block(t.body))

    def block(self, b: Block) -> Block:
        # What a block computes is there in those inside, and ends with it.
        outside = len(self._available)
        copy = super().block(b)
        while len(self._available) > outside:
            self._available.popitem()
        return copy

    def custom(self, s: CustomCall) -> CustomCall:
        # A rule that is given says how results follow from arguments, so a call reads nothing else.
        outside, self._available = self._available, {}
        copy = super().custom(s)
        self._available = outside
        return copy

    def stmt(self, s: Stmt) -> list[Stmt]:
        if not isinstance(s, Let):
            return [self.copy(s)]
        number = self._values.let(s)
        if s.op.name not in self._ops and not isinstance(s.op.lowering, Math):
            return [self.copy(s)]
        if number in self._available:
            self.found = True
            self.env[s.out] = self._available[number]
            return []
        copy = self.copy(s)
        self._available[number] = self.env[s.out]
        return [copy]
