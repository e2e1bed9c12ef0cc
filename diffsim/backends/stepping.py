"""Runs IR as a Python function whose lines are the user's: for debuggers (docs/adr/0053).

The function is written as a syntax tree with the place in the source of each statement, and named like the
kernel, so that a debugger shows, steps through and stops at the lines that the user wrote. Its locals are the
kernel's: values by the names that the user gave them, memories as NumPy arrays. It decides the order alone;
each statement is computed by the interpreter, so that both agree by construction. An adjoint is IR like any
other: it steps through the same lines backwards.

    for i in $step.lanes(0):                  # line 13
        $step.run(4)                          # line 14
        length = $step.run(5)

A `Print` without pieces is `breakpoint()`. Names with a `$`, which no user can have, are the function's own.
"""

from __future__ import annotations

import ast
import keyword
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from diffsim.backends.interpreter import Interpreter, as_type
from diffsim.errors import Span
from diffsim.ir.nodes import (
    Block,
    CustomCall,
    For,
    If,
    Kernel,
    Mem,
    Print,
    Stmt,
    Task,
    Value,
    While,
)

_STEP = "$step"
_MOST_LOOPS = 15
"""Python nests at most 20 loops; deeper ones are run as one statement."""


class Stepper(Interpreter):
    """One run of a kernel: what its Python function calls, with the numbers of things in `things`."""

    breakpoint = staticmethod(breakpoint)  # stops in the frame that calls it

    def __init__(
        self,
        things: Sequence[Any],
        kernel: Kernel,
        memory: Mapping[Mem, np.ndarray],
        args: Sequence[Any],
        seed: int,
    ) -> None:
        super().__init__(kernel, memory, args, seed, {})
        self.things = things

    def array(self, number: int) -> np.ndarray:
        """Return the array of a memory."""
        return self.memory[self.things[number]]

    def shown(self, number: int) -> Any:
        """Return a value that is bound."""
        return self.value(self.things[number])

    def run(self, number: int) -> Any:
        """Run a statement; return the value that it binds, if it is one."""
        s = self.things[number]
        self.stmt(s)
        out = getattr(s, "out", None)
        return None if out is None else self.env[out]

    def lanes(self, number: int) -> Iterator[Any]:
        """Run the lanes of a task: yields the indices of each, one after the other."""
        task = self.things[number]
        for lane in self.lanes_of(task):
            yield lane[0] if len(lane) == 1 else lane
            self.combine(task)

    def combine_number(self, number: int) -> None:
        """Add what a serial task yields to its reductions."""
        self.combine(self.things[number])

    def loop(self, number: int) -> Iterator[Any]:
        """Run a loop: yields the index of each iteration, whose carried values are bound."""
        s = self.things[number]
        indices = range(int(self.value(s.lo)), int(self.value(s.hi)))
        carried = self.values(s.inits)
        for k in reversed(indices) if s.reverse else indices:
            self.env[s.index] = as_type(k, s.index.type)
            # All parameters at once: one carried value may be computed from another's old value.
            self.bind(s.params, carried)
            yield k
            carried = self.values(s.body.yields)
        self.bind(s.outs, carried)

    def repeat(self, number: int) -> Iterator[tuple[()]]:
        """Run a while loop: yields before each run of its body."""
        s = self.things[number]
        carried = self.values(s.inits)
        while self.goes_on(s, carried):
            yield ()
            carried = self.values(s.body.yields)
        self.bind(s.outs, carried)

    def true(self, number: int) -> bool:
        """Return whether the condition of an if holds."""
        return bool(self.value(self.things[number].cond))

    def bind_to(self, number: int) -> None:
        """Bind the results of a statement to what a block yields: (outs, block)."""
        outs, block = self.things[number]
        self.bind(outs, self.values(block.yields))


class Program:
    """A kernel as a Python function."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        writer = _Writer(kernel)
        tree = ast.Module([writer.function()], [])
        found: dict[str, Any] = {}
        # Globals of the user's module, so that a debugger finds what the kernel's lines name.
        code = compile(ast.fix_missing_locations(tree), kernel.span.file, "exec")
        exec(code, _globals_of(kernel.span.file), found)
        self.function = found[kernel.name]
        self.things = writer.things


def _globals_of(file: str) -> dict[str, Any]:
    """Return the globals of the module that was loaded from a file, or those of the main program."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            return vars(module)
    return vars(sys.modules["__main__"])


class _Writer:
    """Writes the function of a kernel as a syntax tree."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.things: list[Any] = []
        self.line = kernel.span.line
        self.depth = 0

    def function(self) -> ast.FunctionDef:
        head, body = self.line, []
        for mem in self.kernel.mems:
            if mem.kind in ("field", "array"):
                body.append(self.show(mem.name, "array", mem))
        body += self.names(self.kernel.args)
        for task in self.kernel.tasks:
            body += self.task(task)
        self.line = head
        only = ast.arguments([], [ast.arg(_STEP)], None, [], [], None, [])
        return self.placed(ast.FunctionDef(self.kernel.name, only, _some(body), []))

    # ---- pieces of syntax

    def placed(self, node: Any) -> Any:
        """Put what has no place yet of a node on the present line."""
        place = {"lineno": self.line, "end_lineno": self.line, "col_offset": 0, "end_col_offset": 0}
        for part in ast.walk(node):
            if "lineno" in part._attributes and not hasattr(part, "lineno"):
                vars(part).update(place)
        return node

    def at(self, span: Span) -> None:
        """Go to a line of the user's, if it is in the kernel's own file."""
        if span.file == self.kernel.span.file:
            self.line = span.line

    def call(self, method: str, thing: object) -> ast.Call:
        self.things.append(thing)
        function = ast.Attribute(ast.Name(_STEP, ast.Load()), method, ast.Load())
        return ast.Call(function, [ast.Constant(len(self.things) - 1)], [])

    def show(self, name: str, method: str, thing: object) -> ast.stmt:
        """Call a method, and assign the result to a local of the user's name, if there is one."""
        value, name = self.call(method, thing), _local(name)
        if name:
            return self.placed(ast.Assign([ast.Name(name, ast.Store())], value))
        return self.placed(ast.Expr(value))

    def names(self, values: Sequence[Value]) -> list[ast.stmt]:
        """Show the values that have names."""
        return [self.show(v.hint, "shown", v) for v in values if _local(v.hint)]

    def loop(
        self, method: str, thing: For | While | Task, axes: Sequence[Value], begin: Sequence[Value]
    ) -> ast.stmt:
        """Write a loop over what a method yields: the axes' indices."""
        names: list[ast.expr] = [
            ast.Name(_local(v.hint) or f"${k}", ast.Store()) for k, v in enumerate(axes)
        ]
        target = names[0] if len(names) == 1 else ast.Tuple(names, ast.Store())
        head = self.line
        steps = self.call(method, thing)
        self.depth += 1
        body = [*self.names(begin), *self.block(thing.body)]
        self.depth -= 1
        self.line = head
        return self.placed(ast.For(target, steps, _some(body), []))

    # ---- the parts of a kernel

    def task(self, task: Task) -> list[ast.stmt]:
        self.at(task.span)
        if task.axes:
            return [self.loop("lanes", task, task.axes, ())]
        combined = [self.show("", "combine_number", task)] if task.reductions else []
        return [*self.block(task.body), *combined]

    def block(self, block: Block) -> list[ast.stmt]:
        return [made for s in block.stmts for made in self.stmt(s)]

    def stmt(self, s: Stmt) -> list[ast.stmt]:
        self.at(s.span)
        if isinstance(s, For) and self.depth < _MOST_LOOPS:
            return [self.loop("loop", s, [s.index], s.params), *self.names(s.outs)]
        if isinstance(s, While) and self.depth < _MOST_LOOPS:
            return [self.loop("repeat", s, (), s.params), *self.names(s.outs)]
        if isinstance(s, If):
            head, condition = self.line, self.call("true", s)
            then = self.bound(s.then, s.outs)
            self.line = head
            orelse = self.bound(s.orelse, s.outs)
            self.line = head
            return [self.placed(ast.If(condition, _some(then), orelse))]
        if isinstance(s, CustomCall):
            return self.bound(s.body, s.outs)
        if isinstance(s, Print) and not s.pieces:
            stop = ast.Attribute(ast.Name(_STEP, ast.Load()), "breakpoint", ast.Load())
            return [self.placed(ast.Expr(ast.Call(stop, [], [])))]
        out = getattr(s, "out", None)
        return [self.show("" if out is None else out.hint, "run", s)]

    def bound(self, block: Block, outs: Sequence[Value]) -> list[ast.stmt]:
        """Write a block, and bind these values to what it yields."""
        made = self.block(block)
        return [*made, self.show("", "bind_to", (outs, block)), *self.names(outs)] if outs else made


def _local(name: str) -> str:
    """Return a user's name as that of a local: `x.grad` as `x_grad`; empty if it can be none."""
    name = name.replace(".", "_")
    return name if name.isidentifier() and not keyword.iskeyword(name) else ""


def _some(body: list[ast.stmt]) -> list[ast.stmt]:
    return body or [ast.Pass()]
