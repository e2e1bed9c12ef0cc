"""From a Python function to its syntax tree, with spans that point into the user's file."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable
from typing import Any

from diffsim.errors import KernelSyntaxError, Span


class Source:
    """The syntax tree of a function and where it stands.

    Args:
        function: what the decorator was applied to.
        what: "kernel" or "func", for messages.
    """

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        if not inspect.isfunction(function):
            raise KernelSyntaxError(
                f"@ds.{what} decorates functions, not {type(function).__name__}", Span.of_caller()
            )
        code = function.__code__
        self.function = function
        self.name = function.__name__
        self.file = code.co_filename
        self.where = f"{what} {self.name}"
        self.first = code.co_firstlineno
        lines = linecache.getlines(self.file, function.__globals__)
        if len(lines) < self.first:
            raise KernelSyntaxError(
                f"the source of {self.name} is not available, so it can not be compiled",
                Span(self.file, self.first, where=self.where),
                hint="define it in a file or a notebook cell; a function made by exec() of a string "
                "has no source",
            )
        block = inspect.getblock(lines[self.first - 1 :])
        text = "".join(block)
        self.indent = len(block[0]) - len(block[0].lstrip())
        try:
            module = ast.parse(textwrap.dedent(text))
        except SyntaxError as problem:
            raise KernelSyntaxError(
                f"the source of {self.name} can not be read: {problem.msg}",
                Span(self.file, self.first, where=self.where),
                hint="a kernel is an ordinary def with its decorator on a line of its own",
            ) from None
        node = module.body[0] if module.body else None
        if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
            raise KernelSyntaxError(
                f"the text at the place where {self.name} was defined is something else",
                Span(self.file, self.first, where=self.where),
                hint="the file changed after it was loaded, or the function was made by exec(); "
                "lambdas and async functions can not be compiled",
            )
        self.node = node

    def span(self, node: Any, parent: Span | None = None) -> Span:
        """The place of a syntax node in the user's file."""
        shift, indent = self.first - 1, self.indent
        return Span(
            self.file,
            node.lineno + shift,
            node.col_offset + indent,
            node.end_lineno + shift,
            node.end_col_offset + indent,
            self.where,
            parent,
        )

    def head(self, parent: Span | None = None) -> Span:
        """The `def` line."""
        shift = self.first - 1
        return Span(self.file, self.node.lineno + shift, self.indent, None, None, self.where, parent)
