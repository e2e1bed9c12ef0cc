"""The kernel simplicity rule, checked where a gradient is asked for of kernels that promise to keep to it.

A kernel is either statements without loops, or loops alone; and a loop holds either exactly one loop, or
statements without loops. `ds.static` loops are unrolled and do not count, nor do loops in a func whose
gradient is given: nothing goes backwards through them.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffsim.errors import KernelSimplicityError, Span
from diffsim.ir.nodes import (
    Atomic,
    Block,
    CustomCall,
    For,
    If,
    Kernel,
    Load,
    Mem,
    Print,
    Stmt,
    Store,
    Task,
    While,
)
from diffsim.ir.traversal import Rewriter, blocks, free_values, task_statements
from diffsim.passes.analysis.counted_loops import counter_of
from diffsim.passes.transforms.dce import eliminate_dead_code

_ADVICE = (
    "split it into several kernels, unroll with ds.static(range(...)), or write "
    '@ds.kernel(simplicity="relaxed") to differentiate it as it stands'
)


def refused_shapes(kernel: Kernel) -> Iterator[KernelSimplicityError]:
    """Yield an error for each loop (or statement) that the rule has no place for."""
    # A print is no part of the derivative: adding one to debug a kernel must not make its gradient
    # refused.
    kernel = _without_prints(kernel)
    loops = [t for t in kernel.tasks if t.axes]
    plain = [t for t in kernel.tasks if not t.axes]
    if loops and plain:
        stmts = plain[0].body.stmts
        writes = [s for s in stmts if isinstance(s, (Store, Atomic))]
        yield _refused("it has statements beside its loops", (writes or stmts)[0].span, kernel)
    for t in kernel.tasks:
        yield from _check(kernel, _own_body(t), inside=bool(t.axes))


def _own_body(task: Task) -> Block:
    """Return what the user wrote into a loop: the condition that elements are active is not of it."""
    branches = [s for s in task.body.stmts if isinstance(s, If)]
    return branches[0].then if task.active is not None and len(branches) == 1 else task.body


def _without_prints(kernel: Kernel) -> Kernel:
    """Return the kernel without prints, and without the loads for them."""
    if not any(isinstance(s, Print) for t in kernel.tasks for s in task_statements(t)):
        return kernel
    copier = _Silent()
    tasks = tuple(
        t.replace(
            bounds=copier.block(t.bounds),
            axes=copier.fresh_all(t.axes),
            body=copier.block(t.body),
        )
        for t in kernel.tasks
    )
    made = kernel.replace(tasks=tasks)
    return eliminate_dead_code(made)


class _Silent(Rewriter):
    """Copies statements without prints."""

    def stmt(self, s: Stmt) -> list[Stmt]:
        return [] if isinstance(s, Print) else super().stmt(s)


def _check(kernel: Kernel, block: Block, *, inside: bool) -> Iterator[KernelSimplicityError]:
    """Check a block: no loops, or one alone; `inside`: whether a loop is around it.

    One error for each nest of loops: splitting or unrolling it answers all that may be wrong in it.
    """
    found = [s for s in _differentiated(block) if isinstance(s, (For, While))]
    if not found:
        return
    first = found[0]
    # 1. Reversing a while loop needs its number of iterations, and so a second run. One that counts up to
    # a bound, as a range with a break in it does, is a loop like any other.
    if isinstance(first, While) and counter_of(first) is None:
        yield _refused("a while loop in it", first.span, kernel)
        return
    here = [s for s in block.stmts if isinstance(s, (For, While))]
    # 2. A loop under a branch is emitted twice in the adjoint, for its values and for its adjoint.
    if first not in here:
        yield _refused(
            "a loop is inside a branch, or after a break, continue or return",
            first.span,
            kernel,
        )
        return
    if len(here) > 1:
        where = "a loop holds several loops" if inside else "it holds loops one after the other"
        for loop in here[1:]:
            yield _refused(where, loop.span, kernel)
        return
    # 3. Carried values have to be saved for each iteration (`loop_checkpoints.py`).
    if _carries(first):
        yield _refused(
            "a loop carries local variables from iteration to iteration", first.span, kernel
        )
        return
    for s in block.stmts:
        if isinstance(s, (Load, Store, Atomic)) and not _is_argument(s.mem):
            yield _refused("a loop is beside other statements", first.span, kernel)
            return
    yield from _check(kernel, first.body, inside=True)


def _carries(s: For | While) -> bool:
    """Whether an iteration needs what the one before it has computed."""
    if isinstance(s, For):
        return bool(s.params)
    # The counter is the number of the iteration, and a flag that only the condition reads ends the loop.
    counter, read = counter_of(s), free_values(s.body)
    return any(
        p in read for k, p in enumerate(s.params) if counter is None or k != counter.position
    )


def _is_argument(mem: Mem) -> bool:
    """Whether it is (like) an argument that is read from a field."""
    return mem.kind == "array" and mem.rank == 0


def _differentiated(block: Block) -> Iterator[Stmt]:
    """Yield the statements that the adjoint goes through."""
    for s in block.stmts:
        yield s
        # A given rule replaces the adjoint of the body, so its loops are never reversed.
        if not (isinstance(s, CustomCall) and s.is_given):
            for inner in blocks(s):
                yield from _differentiated(inner)


def _refused(what: str, span: Span, kernel: Kernel) -> KernelSimplicityError:
    return KernelSimplicityError(
        f"the gradient of {kernel.name} is refused by the kernel simplicity rule: {what}",
        span,
        _ADVICE,
    )
