"""Notes what integer atomics return, so that an adjoint finds the same numbers again.

    k = ds.atomic_add(count[None], 1)           each lane takes a place,
    out[k] = x[i]                               in an order that no second run repeats

Assumes a prepared kernel. Such an atomic becomes a call that also stores the number for its lane, into a
field of the kernel's own, and whose replay loads it (`@ds.func_replay` is the same by hand). The field has
versions as any other: a second launch that overwrites the notes is noticed, and tapes that save, save them.
Atomics in loops of a lane stay as they are, and so do those in loops whose bounds are not known.
"""

from __future__ import annotations

from collections.abc import Callable

from diffsim.ir.nodes import (
    Atomic,
    Block,
    Const,
    CustomCall,
    If,
    Kernel,
    Load,
    Mem,
    Stmt,
    Store,
    Task,
    Value,
)
from diffsim.ir.traversal import Rewriter, blocks, outs, statements, uses
from diffsim.ir.types import ScalarType

NewField = Callable[[str, ScalarType, tuple[int, ...]], Mem]


def note_returned(kernel: Kernel, new_field: NewField) -> Kernel:
    """Return the kernel with notes where a derivative may depend on what an atomic returned.

    Args:
        kernel: a prepared kernel.
        new_field: allocates a field of a name, a type and a shape.
    """
    if not any(m.grad is not None for m in kernel.mems):
        return kernel
    tasks, made = [], list[Mem]()
    for t in kernel.tasks:
        shape = _shape(t)
        found = [] if shape is None else [s for s in _top(t.body) if _matters(s, t)]
        if found and shape is not None:
            work = _Noter(t, {s: new_field(_name(s), s.value.type.scalar, shape) for s in found})
            t = t.replace(body=work.block(t.body))
            made += work.notes.values()
        tasks.append(t)
    return kernel.replace(tasks=tuple(tasks), mems=(*kernel.mems, *made)) if made else kernel


def _name(s: Atomic) -> str:
    return f"atomic_{s.op}({s.mem.name})"


def _shape(task: Task) -> tuple[int, ...] | None:
    """Return the shape of a field with an element for each lane; None if it is not known."""
    ends = task.bounds.yields
    if not all(isinstance(v, Const) for v in ends):
        return None
    numbers = [int(v.value) for v in ends if isinstance(v, Const)]
    known = all(lo >= 0 for lo in numbers[::2])
    return tuple(max(hi, 1) for hi in numbers[1::2]) if known else None


def _top(block: Block) -> list[Atomic]:
    """Return the integer atomics of a block and its branches whose old values are used."""
    found: list[Atomic] = []
    for s in block.stmts:
        if isinstance(s, Atomic) and s.out is not None and s.out.type.is_int:
            found.append(s)
        elif isinstance(s, If):
            found += [a for b in blocks(s) for a in _top(b)]
    return found


def _matters(atomic: Atomic, task: Task) -> bool:
    """Whether accesses to something with a gradient may depend on what an atomic returned."""
    assert atomic.out is not None
    depends: set[Value] = {atomic.out}

    def visit(block: Block, inside: bool) -> bool:
        for s in block.stmts:
            here = inside or any(v in depends for v in uses(s))
            # What is computed in a loop or branch may come out of it.
            inner = [v for b in blocks(s) for x in statements(b) for v in uses(x)]
            if here or any(v in depends for v in inner):
                depends.update(outs(s))
            if here and isinstance(s, (Load, Store, Atomic)) and s.mem.grad is not None:
                return True
            if any(visit(b, here) for b in blocks(s)):
                return True
        return False

    return visit(task.body, False)


class _Noter(Rewriter):
    """Puts calls in the place of atomics; `notes`: the field of each."""

    def __init__(self, task: Task, notes: dict[Atomic, Mem]) -> None:
        super().__init__()
        self.task = task
        self.notes = notes

    # Statements are kept, not copied, so values keep their identity.
    def fresh(self, v: Value) -> Value:
        return v

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, Atomic) and s in self.notes:
            return [self._noted(s, self.notes[s])]
        return [self.copy(s)] if isinstance(s, If) else [s]

    def _noted(self, s: Atomic, note: Mem) -> Stmt:
        assert s.out is not None
        lane = self.task.axes
        old, again = Value(s.out.type), Value(s.out.type)
        body: list[Stmt] = [s.replace(out=old, origin=None), Store(note, lane, old, s.span)]
        return CustomCall(
            (s.out,),
            (),
            Block(body, (old,)),
            s.span,
            name=_name(s),
            replay=Block([Load(again, note, lane, s.span)], (again,)),
        )
