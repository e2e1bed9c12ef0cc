"""Retains gradients that the adjoint of a store clears: `ds.Tape(retain_grad=...)`.

Assumes an adjoint kernel, in which each store to a gradient is the adjoint of a store: it clears the element
after loading it. Promises: the element is first added to the retained gradient. An element that has a
retained gradient already was given two values that have an effect; that is reported, since it has two
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Check, Const, Kernel, Mem, Stmt, Store, Value
from diffsim.ir.traversal import Rewriter
from diffsim.ir.types import TensorType

TWO_VALUES = (
    "is given several values that have an effect, so there is no one gradient of it to keep"
)


def retain_gradients(adjoint: Kernel, kept: Mapping[Mem, Mem]) -> Kernel:
    """Return the adjoint that adds what it clears to retained gradients.

    Args:
        adjoint: an adjoint kernel.
        kept: for each gradient the memory (of the same type and rank) that retains it.
    """
    work = _Retainer(adjoint, kept)
    tasks = tuple(
        t.replace(bounds=work.block(t.bounds), body=work.block(t.body)) for t in adjoint.tasks
    )
    mems = (*adjoint.mems, *kept.values())
    return adjoint.replace(mems=mems, tasks=tasks)


class _Retainer(Rewriter):
    """Copies the adjoint, and puts the retaining addition before each clear."""

    def __init__(self, kernel: Kernel, kept: Mapping[Mem, Mem]) -> None:
        super().__init__()
        self.builder = Builder(kernel.span)
        self.kept = kept

    def fresh(self, v: Value) -> Value:
        return v

    def stmt(self, s: Stmt) -> list[Stmt]:
        # Every store to a gradient in an adjoint is the clear that follows a load of the final adjoint
        # of the element, so at this point the gradient is complete and about to be lost.
        kept = self.kept.get(s.mem) if isinstance(s, Store) else None
        if kept is None:
            return [self.copy(s)]
        assert isinstance(s, Store)
        assert isinstance(s.value, Const)
        b = self.builder
        b.span = s.span
        with b, b.block() as made:
            taken, have = b.load(s.mem, s.index), b.load(kept, s.index)
            for one, other in zip(self.parts(taken), self.parts(have), strict=True):
                # A gradient of exactly 0 is compatible with any other: such a store had no effect on
                # the loss, so the sum below still is the one gradient that the element has.
                free = b.named("or", b.named("eq", one, 0.0), b.named("eq", other, 0.0))
                index = s.index[: s.mem.rank]
                shown = ", ".join(["{}"] * len(index)) or "None"
                name = s.mem.name.removesuffix(".grad")
                b.add(Check(free, f"{name}[{shown}] {TWO_VALUES}", index, s.span))
            b.store(kept, s.index, have + taken)
        return [*made, s]

    def parts(self, v: Value) -> list[Value]:
        if not isinstance(v.type, TensorType):
            return [v]
        b, dims = self.builder, v.type.shape
        if len(dims) == 1:
            return [b.named("extract", v, k) for k in range(dims[0])]
        return [b.named("extract", v, i, j) for i in range(dims[0]) for j in range(dims[1])]
