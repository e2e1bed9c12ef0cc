"""Activity analysis: which values and memories a derivative can flow through.

A value is *active* if it is a float that depends, through rules that are not ZERO, on a load from a memory
that has a gradient. Temporaries are active if an active value is stored into one. Values computed from a
gradient field itself (`x.grad[i]`) are *second order*: diffsim differentiates once, so they may not reach
anything that has a gradient, unless through `ds.stop_grad`.

A value is *useful* if it leads to something that is stored, so that an adjoint may flow into it:

    while top > 0:                          `best` depends on the vertices, so it is active. But it only
        ...                                 decides which branch is taken: no derivative comes back to it,
        if t < best:                        and so neither to any of the values it is computed from.
            best = t
            found = k
    hit[i] = found

Adjoints go through values that are both. Of the others the adjoint is 0 in all runs, and a loop would carry
that 0 from iteration to iteration (docs/adr/0131).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diffsim.errors import AutodiffError, MissingGradientError
from diffsim.ir.nodes import (
    Atomic,
    Block,
    CustomCall,
    For,
    If,
    InlineLLVM,
    Kernel,
    Let,
    Load,
    Mem,
    Stmt,
    Store,
    Value,
    While,
)
from diffsim.ir.op import NotDifferentiable, Zero
from diffsim.ir.traversal import blocks, task_statements

_HIDDEN = ("temp", "scratch")


class Activity:
    """The active values and temporaries of a kernel, and where active values leave the chain.

    Attributes:
        values: active values.
        temps: active temporaries and scratch.
        leaks: stores of active values into float memories whose loads are not active (no gradient).
        second_leaks: the same for second-order values.

    Args:
        kernel: the kernel.
        sources: the memories whose loads are active (none: the launch counts as a constant); if left
            out, those that have a gradient.
        values: values that are active from the start.
    """

    def __init__(
        self,
        kernel: Kernel,
        sources: frozenset[Mem] | None = None,
        values: Iterable[Value] = (),
    ) -> None:
        self.sources = sources
        self.values: set[Value] = set(values)
        self.second: set[Value] = set()
        self.temps: set[Mem] = set()
        self.second_temps: set[Mem] = set()
        self.leaks: list[Store | Atomic] = []
        self.second_leaks: list[Store | Atomic] = []
        # A fixed point over the whole kernel: a later task may make a temporary active that an earlier
        # statement of a loop loads. The sets only grow, so it ends; two rounds are the rule.
        while True:
            before = len(self.values), len(self.temps), len(self.second), len(self.second_temps)
            # Collected anew in each round: the last one has seen all active values.
            self.leaks = []
            self.second_leaks = []
            for task in kernel.tasks:
                self._block(task.body)
            after = len(self.values), len(self.temps), len(self.second), len(self.second_temps)
            if before == after:
                break

    def is_active(self, mem: Mem) -> bool:
        """Whether loads of the memory are active."""
        if mem.kind in _HIDDEN:
            return mem in self.temps
        return mem.grad is not None if self.sources is None else mem in self.sources

    def _block(self, block: Block) -> None:
        for s in block.stmts:
            self._stmt(s)

    def _spread(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        """Propagate activity from the first value of each pair to the second."""
        for source, target in pairs:
            for group in (self.values, self.second):
                # Integers and booleans have no derivative, whatever they were computed from.
                if source in group and target.type.is_float:
                    group.add(target)

    def _stmt(self, s: Stmt) -> None:
        """Propagate activity through one statement."""
        if isinstance(s, Let):
            self._let(s)
        elif isinstance(s, Load):
            if s.out.type.is_float:
                if self.is_active(s.mem):
                    self.values.add(s.out)
                # With given sources the question is about those alone (see `_check_reads` in
                # `custom_calls.py`).
                if self.sources is None and (s.mem.is_grad or s.mem in self.second_temps):
                    self.second.add(s.out)
        elif isinstance(s, (Store, Atomic)):
            self._write(s)
        elif isinstance(s, (For, While)):
            self._loop(s)
        elif isinstance(s, If):
            for side in (s.then, s.orelse):
                self._block(side)
                self._spread(zip(side.yields, s.outs, strict=True))
        elif isinstance(s, CustomCall):
            self._custom(s)
        elif isinstance(s, InlineLLVM):
            # Nothing is known of the text: every result may depend on every argument.
            self._spread((a, out) for a in s.args for out in s.outs)

    def _let(self, s: Let) -> None:
        if s.out.type.is_float:
            for group in (self.values, self.second):
                if any(
                    # A ZERO rule (floor, comparisons, stop_grad) ends the chain by definition.
                    a in group and not isinstance(s.op.rule(k), Zero)
                    for k, a in enumerate(s.args)
                ):
                    group.add(s.out)

    def _custom(self, s: CustomCall) -> None:
        """Propagate through a call: by its body, or by its rule if that is given."""
        self._block(s.body)
        if not s.is_given:
            self._spread(zip(s.body.yields, s.outs, strict=True))
            return
        # The given rule decides what the results depend on, so the body's own dependence is no bound:
        # each argument may reach each result.
        self._spread((v, out) for v in (*s.args, *s.body.yields) for out in s.outs)
        # The rule adds to the gradients of its targets, so the results need adjoints even if no
        # argument does.
        if any(self.is_active(m) for m in s.targets):
            self.values.update(v for v in s.outs if v.type.is_float)

    def _loop(self, s: For | While) -> None:
        """Propagate through a loop until its carried values no longer change."""
        # A carried value may become active by what the body yields, in as many rounds as values are
        # chained.
        while True:
            before = len(self.values) + len(self.second)
            self._spread(zip(s.inits, s.params, strict=True))
            self._block(s.body)
            self._spread(zip(s.body.yields, s.params, strict=True))
            self._spread(zip(s.params, s.outs, strict=True))
            if before == len(self.values) + len(self.second):
                break

    def _write(self, s: Store | Atomic) -> None:
        """Propagate into temporaries, and note active values that leave the chain."""
        if s.value in self.second:
            if s.mem.kind in _HIDDEN:
                self.second_temps.add(s.mem)
            elif s.mem.grad is not None:
                # Adding a first derivative to something differentiated would need the derivative of the
                # adjoint.
                raise second_order(s)
            elif not s.mem.is_grad and s not in self.second_leaks:
                self.second_leaks.append(s)
        old = s.out if isinstance(s, Atomic) else None
        # The old value that an atomic returns depends on everything added to the element before.
        known = s.value in self.values or self.is_active(s.mem)
        if known and old is not None and old.type.is_float:
            self.values.add(old)
        if s.value in self.values:
            if s.mem.kind in _HIDDEN:
                self.temps.add(s.mem)
            elif not self.is_active(s.mem) and s.mem.dtype.is_float and s not in self.leaks:
                self.leaks.append(s)


def useful_values(kernel: Kernel, active: set[Value]) -> set[Value]:
    """Return the active values that an adjoint may flow into."""
    ways: dict[Value, list[Value]] = {}
    found: set[Value] = set()
    todo: list[Value] = []
    for s in (s for t in kernel.tasks for s in task_statements(t)):
        # Also to memory without gradient: whether that breaks a chain is a question of the tape.
        if isinstance(s, (Store, Atomic)):
            todo.append(s.value)
        for out, source in _ways_back(s):
            if source in active:
                ways.setdefault(out, []).append(source)
    # Each value and each way is visited once: a chain of loops needs no rounds.
    while todo:
        v = todo.pop()
        if v in active and v not in found:
            found.add(v)
            todo += ways.get(v, ())
    return found


def _ways_back(s: Stmt) -> Iterator[tuple[Value, Value]]:
    """Yield the ways on which a statement hands adjoints back: from a value to one it comes from."""
    if isinstance(s, Let):
        yield from ((s.out, a) for k, a in enumerate(s.args) if not isinstance(s.op.rule(k), Zero))
    elif isinstance(s, If):
        for side in (s.then, s.orelse):
            yield from zip(s.outs, side.yields, strict=True)
    elif isinstance(s, (For, While)):
        for out, p, last, first in zip(s.outs, s.params, s.body.yields, s.inits, strict=True):
            # What is carried is one value at four places: all have an adjoint, or none.
            yield from ((out, p), (p, out), (p, last), (p, first))
    elif isinstance(s, CustomCall):
        yield from zip(s.outs, s.body.yields, strict=True)
        # A given rule says itself what the results depend on; its body's own way is no bound.
        yield from ((out, a) for out in s.outs for a in (*s.args, *s.body.yields) if s.is_given)
    elif isinstance(s, InlineLLVM):
        yield from ((out, a) for out in s.outs for a in s.args)


def check_bits(kernel: Kernel, activity: Activity) -> None:
    """Refuse ops whose integer results lose a derivative, such as the bits of a float.

    Integers have no adjoint that would lead back to such an op, so it is looked for here.

    Raises:
        AutodiffError: with the line.
    """
    for task in kernel.tasks:
        todo = [task.body]
        while todo:
            for s in todo.pop().stmts:
                if isinstance(s, Let) and not s.out.type.is_float:
                    _check_no_loss(s, activity)
                # The body of a call with a gradient of its own is not differentiated.
                if not (isinstance(s, CustomCall) and s.is_given):
                    todo += blocks(s)


def _check_no_loss(s: Let, activity: Activity) -> None:
    rules = [s.op.rule(k) for k, a in enumerate(s.args) if a in activity.values | activity.second]
    for rule in rules:
        if isinstance(rule, NotDifferentiable):
            raise AutodiffError(rule.why, s.span, hint=rule.hint)


def read_after_leak(kernel: Kernel, activity: Activity) -> frozenset[Mem]:
    """Return memories without gradient that are given an active value and may be read afterwards."""
    written = {s.mem: s for s in reversed((*activity.leaks, *activity.second_leaks))}
    found: set[Mem] = set()
    seen: set[Mem] = set()
    for t in kernel.tasks:
        inside = list(task_statements(t))
        seen.update(m for m, s in written.items() if s in inside)
        found.update(s.mem for s in inside if isinstance(s, Load) and s.mem in seen)
    return frozenset(found)


def second_order(s: Store | Atomic) -> AutodiffError:
    """Return the error for a derivative of a gradient."""
    return AutodiffError(
        f"{s.mem.name} depends on a gradient here, and a tape differentiates once",
        s.span,
        hint="take the gradient as a constant: ds.stop_grad(x.grad[i]); ds.ad.hvp gives second derivatives "
        "of a program, and ds.grad(f) in a kernel those of a func",
    )


def missing_gradient(s: Store | Atomic, reader: str = "", name: str = "") -> MissingGradientError:
    """Return the error for a chain that a memory without gradient breaks.

    Args:
        s: what stores the value there.
        reader: the name of the kernel that reads it.
        name: the program's name for the memory, if that is not the kernel's.
    """
    name = name or s.mem.name
    missing = f", has none itself, and {reader} reads it" if reader else ", and has none itself"
    return MissingGradientError(
        f"{name} is given a value that depends on something with a gradient{missing}: the "
        "chain of derivatives would break here silently",
        s.span,
        hint=f"declare {name} with needs_grad=True, or cut the chain on purpose: ds.stop_grad(value)",
    )
