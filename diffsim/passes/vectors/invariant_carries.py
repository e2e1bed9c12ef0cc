"""Invariant carries: values that loops hand on as they are become values from outside.

    %g.1 = for %c in 0..8 carry (%s = %g) {           for %c in 0..8 {
      %s.1 = if %inside {                               if %inside {
        ... %s ...                                        ... %g ...
        yield %s                               ->       }
      } else { yield %s }                             }
      yield %s.1
    }

The adjoint of a sum in a loop carries the sum's adjoint, which no iteration changes.

Assumes any task. Promises: the same values.
"""

from __future__ import annotations

from diffsim.ir.nodes import Block, For, If, Stmt, Task, Value, While
from diffsim.ir.traversal import Rewriter, blocks


def without_invariant_carries(task: Task) -> Task:
    """Return the task whose loops carry only what iterations change."""
    found = _Same()
    found.block(task.body)
    return task.replace(body=_Drop(found.of).block(task.body)) if found.of else task


class _Same:
    """Finds the results and carried values that are a value from outside."""

    def __init__(self) -> None:
        self.of: dict[Value, Value] = {}

    def value(self, v: Value) -> Value:
        while v in self.of:
            v = self.of[v]
        return v

    def block(self, block: Block) -> None:
        for s in block.stmts:
            for inner in blocks(s):
                self.block(inner)
            if isinstance(s, If):
                for out, a, b in zip(s.outs, s.then.yields, s.orelse.yields, strict=True):
                    if self.value(a) is self.value(b):
                        self.of[out] = a
            elif isinstance(s, (For, While)):
                for k, (p, y) in enumerate(zip(s.params, s.body.yields, strict=True)):
                    # The body of a loop that hands on another loop's value has been looked at before.
                    if self.value(y) is p:
                        self.of[p] = self.of[s.outs[k]] = s.inits[k]


class _Drop(Rewriter):
    """Copies a body without these."""

    def __init__(self, of: dict[Value, Value]) -> None:
        super().__init__()
        self.of = of

    def stmt(self, s: Stmt) -> list[Stmt]:
        if isinstance(s, (If, For, While)):
            s = self.without(s)
        return [self.copy(s)]

    def without(self, s: If | For | While) -> Stmt:
        """Return a statement without the places of what is a value from outside, and name that value."""
        places = [k for k, v in enumerate(s.outs) if v in self.of]
        if not places:
            return s
        for k in places:
            if not isinstance(s, If):
                self.env[s.params[k]] = self.value(s.inits[k])

        def left(values: tuple[Value, ...]) -> tuple[Value, ...]:
            return tuple([v for k, v in enumerate(values) if k not in places])

        def block(b: Block) -> Block:
            return Block(b.stmts, left(b.yields))

        for k in places:
            self.outer(s.outs[k])
        if isinstance(s, If):
            return s.replace(then=block(s.then), orelse=block(s.orelse), outs=left(s.outs))
        carried = {"params": left(s.params), "inits": left(s.inits), "outs": left(s.outs)}
        return s.replace(body=block(s.body), **carried)

    def outer(self, out: Value) -> None:
        """Name the value that a result is."""
        v = out
        while v in self.of and v not in self.env:
            v = self.of[v]
        self.env[out] = self.value(v)
