"""Verifies that IR is well formed, so that a pass that breaks it is found at once and not in LLVM."""

from __future__ import annotations

from diffsim.errors import InternalError
from diffsim.ir.nodes import (
    LEAVES,
    Alloca,
    Atomic,
    Block,
    CustomCall,
    For,
    Gradient,
    If,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Value,
    While,
)
from diffsim.ir.op import TABLE
from diffsim.ir.printer import print_kernel
from diffsim.ir.traversal import blocks, custom_rule_blocks, entered, has_effects, outs, uses
from diffsim.ir.types import ScalarType, TensorType, bool_, derivative_type


def verify(kernel: Kernel, after: str = "") -> Kernel:
    """Return the kernel itself; raises InternalError naming the pass `after` if it is malformed."""
    try:
        _verify(kernel)
    except _Malformed as fault:
        # The whole kernel, since the fault may be far from where it shows.
        text = print_kernel(kernel)
        raise InternalError(
            f"malformed IR after {after or 'building'}: {fault.message}\n{text}",
            fault.stmt.span if fault.stmt is not None else kernel.span,
        ) from None
    return kernel


class _Malformed(Exception):
    """A fault, and the statement that has it."""

    def __init__(self, message: str, stmt: Stmt | None) -> None:
        super().__init__(message, stmt)
        self.message = message
        self.stmt = stmt


def _verify(kernel: Kernel) -> None:
    """Verify tasks and their blocks."""
    # Two invariants of SSA: every value is bound once in the kernel (`bound_once`), and every use is
    # dominated by its binding, which in structured control flow means that it is visible in an
    # enclosing block.
    bound_once: set[Value] = set()
    mems = set(kernel.mems)
    for mem in kernel.mems:
        _dual(mem)
    for task in kernel.tasks:
        visible: set[Value] = set()
        _block(task.bounds, visible, bound_once, mems)
        # Bounds are evaluated once by the launch, before there are lanes that could order the writes.
        if has_effects(task.bounds):
            raise _Malformed("the bounds of a task write something", None)
        if len(task.bounds.yields) != 2 * len(task.axes):
            raise _Malformed("a task needs lo and hi for each axis", None)
        if task.block_dim is not None and not (task.axes and is_block_dim(task.block_dim)):
            raise _Malformed(f"a task cannot have blocks of {task.block_dim} threads", None)
        if task.independent and not task.axes:
            raise _Malformed("a serial task has no iterations that could be independent", None)
        # Values of the bounds are not visible in the body: bounds run once, before any lane.
        visible = set(task.axes)
        _block(task.body, visible, bound_once, mems)
        if len(task.body.yields) != len(task.reductions):
            raise _Malformed("a task must yield one value for each reduction", None)


def _dual(mem: Mem) -> None:
    """Verify that the dual of a memory holds one tangent of each element, or several in one more axis."""
    dual = mem.dual
    if dual is None:
        return
    if dual.dtype is not derivative_type(mem.dtype) or dual.rank - mem.rank not in (0, 1):
        raise _Malformed(f"the dual of {mem.name} has another type or rank", None)
    if None not in (mem.shape, dual.shape) and dual.shape[: mem.rank] != mem.shape:  # type: ignore[index]
        raise _Malformed(f"the dual of {mem.name} has another shape", None)


def is_block_dim(n: int) -> bool:
    """Whether the blocks of a GPU may have n threads: whole warps of 32, or a power of two; at most 1024."""
    return 0 < n <= 1024 and (n % 32 == 0 or n & (n - 1) == 0)


def _block(block: Block, outer: set[Value], bound_once: set[Value], mems: set[Mem]) -> None:
    """Verify a block in which the values of `outer` are visible."""
    visible = set(outer)

    def seen(v: Value, stmt: Stmt | None) -> None:
        if v not in visible and not isinstance(v, LEAVES):
            raise _Malformed(f"a value ({v.hint or v.type}) is used where it is not bound", stmt)

    def bind(v: Value, stmt: Stmt) -> None:
        if v in bound_once:
            raise _Malformed(f"a value ({v.hint or v.type}) is bound twice", stmt)
        bound_once.add(v)
        visible.add(v)

    for stmt in block.stmts:
        # Uses before results: a statement does not see what it binds.
        for v in uses(stmt):
            seen(v, stmt)
        # Scratch is declared where it is allocated, and not in the kernel's head.
        if isinstance(stmt, Alloca):
            mems.add(stmt.mem)
        if isinstance(stmt, (Load, Store, Atomic)) and stmt.mem not in mems:
            raise _Malformed(f"{stmt.mem.name} is not one of the kernel's memories", stmt)
        _types(stmt)
        for v in entered(stmt):
            bind(v, stmt)
        for inner in blocks(stmt):
            _block(inner, visible, bound_once, mems)
        for v in outs(stmt):
            bind(v, stmt)
        # After the results are bound, since the rule may read them.
        if isinstance(stmt, CustomCall):
            _given(stmt, visible, bound_once, mems)
    # With the block's own values in sight, and before they go out of scope.
    for v in block.yields:
        seen(v, None)


def _given(call: CustomCall, outer: set[Value], bound_once: set[Value], mems: set[Mem]) -> None:
    """Verify the blocks of a custom rule, which see the call's results and seeds."""
    if any(seed in bound_once for seed in call.seeds):
        raise _Malformed("the adjoint of a result is bound twice", call)
    bound_once.update(call.seeds)
    # A rule adds to gradients, which are not among the memories of the primal kernel.
    grads = {m.grad for m in call.targets if m.grad is not None}
    for block in custom_rule_blocks(call):
        _block(block, outer | set(call.seeds), bound_once, mems | grads)


def _same(what: str, stmt: Stmt, *groups: tuple[Value, ...]) -> None:
    first = groups[0]
    for group in groups[1:]:
        # Types are interned, so this compares identities.
        if [v.type for v in group] != [v.type for v in first]:
            raise _Malformed(f"{what} differ in number or type", stmt)


def _derivatives(
    what: str, stmt: Stmt, values: tuple[Value, ...], derivatives: tuple[Value, ...]
) -> None:
    wanted = [derivative_type(v.type) if v.type.is_float else v.type for v in values]
    if [g.type for g in derivatives] != wanted:
        raise _Malformed(f"{what} differ in number or type", stmt)


def _types(stmt: Stmt) -> None:
    """Verify the types of a statement's operands and results."""
    if isinstance(stmt, Let):
        _let_types(stmt)
    elif isinstance(stmt, (Load, Store, Atomic)):
        full = len(stmt.mem.dtype.shape) + stmt.mem.rank
        # Whole elements, or single components of them; nothing in between.
        if len(stmt.index) not in (stmt.mem.rank, full):
            raise _Malformed(f"{stmt.mem.name} has {stmt.mem.rank} axes", stmt)
        if any(not i.type.is_int or i.type.shape for i in stmt.index):
            raise _Malformed("an index must be a whole number", stmt)
        component = len(stmt.index) > stmt.mem.rank
        want = stmt.mem.dtype.scalar if component else stmt.mem.dtype
        have = stmt.out.type if isinstance(stmt, Load) else stmt.value.type
        if want is not have:
            raise _Malformed(f"{stmt.mem.name} holds {want}, not {have}", stmt)
    elif isinstance(stmt, For):
        _same("carried values", stmt, stmt.params, stmt.inits, stmt.body.yields, stmt.outs)
        if not (stmt.lo.type is stmt.hi.type is stmt.index.type):
            raise _Malformed("bounds and index differ in type", stmt)
    elif isinstance(stmt, While):
        _same("carried values", stmt, stmt.params, stmt.inits, stmt.body.yields, stmt.outs)
        if [v.type for v in stmt.cond.yields] != [bool_]:
            raise _Malformed("a while needs one boolean", stmt)
        # A condition is pure, so that running it once more than the body has no effect.
        if has_effects(stmt.cond):
            raise _Malformed("the condition of a while writes something", stmt)
    elif isinstance(stmt, If):
        _same("branch results", stmt, stmt.then.yields, stmt.orelse.yields, stmt.outs)
        if stmt.cond.type is not bool_:
            raise _Malformed("an if needs a boolean", stmt)
    elif isinstance(stmt, (CustomCall, Gradient)):
        _call_types(stmt)


def _call_types(stmt: CustomCall | Gradient) -> None:
    """Verify that arguments, results and their adjoints agree in number and type."""
    if isinstance(stmt, Gradient):
        _same("arguments and parameters", stmt, stmt.args, stmt.params)
        _derivatives("arguments and their adjoints", stmt, stmt.args, stmt.outs)
        _derivatives("results and their adjoints", stmt, stmt.body.yields, stmt.seeds)
    else:
        _same("results", stmt, stmt.body.yields, stmt.outs)
        if stmt.replay is not None:
            _same("replayed results", stmt, stmt.replay.yields, stmt.outs)
        if stmt.adjoint is not None:
            _derivatives("results and their adjoints", stmt, stmt.outs, stmt.seeds)
            _derivatives("arguments and their adjoints", stmt, stmt.args, stmt.adjoint.yields)


def _let_types(stmt: Let) -> None:
    """Verify an op against the signature of its row."""
    op, args, out = stmt.op, stmt.args, stmt.out
    if TABLE.get(op.name) is not op:
        raise _Malformed(f"{op.name} is not in the table", stmt)
    if not op.moves and any(v.type.scalar.for_storage for v in (*args, out)):
        raise _Malformed(f"{op.name} computes in a type of storage", stmt)
    # The letters of a signature say nothing about their types (see `Op`).
    if op.infer_type is not None or op.name == "cast":
        return
    groups: dict[str, ScalarType] = {}
    for letter, a in zip(op.operands, args, strict=True):
        if groups.setdefault(letter, a.type.scalar) is not a.type.scalar:
            raise _Malformed(f"operands of {op.name} differ in type", stmt)
        if isinstance(a.type, TensorType) and a.type.shape != out.type.shape:
            raise _Malformed(f"operand of {op.name} has another shape than the result", stmt)
    want = op.result_type(groups)
    if out.type.scalar is not want:
        raise _Malformed(f"result of {op.name} should be {want}", stmt)
