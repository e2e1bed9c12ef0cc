"""From a Python function to its syntax tree, with spans that point into the user's file."""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
from collections.abc import Callable
from types import CodeType
from typing import Any

from diffsim.errors import KernelSyntaxError, Span
from diffsim.ir import locks
from diffsim.lang.annotations import as_of_now

_parsing = locks.lock()  # Python 3.11 does not parse in two threads at a time
_changed: set[str] = set()
"""Files that changed after a kernel was read from them."""


class Source:
    """The syntax tree of a function and where it stands.

    Args:
        function: what the decorator was applied to.
        what: "kernel" or "func", for messages.
    """

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        if not inspect.isfunction(function):
            raise KernelSyntaxError(
                f"@ds.{what} decorates a function, not {_described(function)}",
                Span.of_caller(),
                hint="write it above a def, and once",
            )
        code = function.__code__
        self.function = function
        self.name = function.__name__
        self.file = code.co_filename
        self.where = f"{what} {self.name}"
        self.first = code.co_firstlineno
        if self.name == "<lambda>":
            raise KernelSyntaxError(
                f"a lambda can not be a {what}",
                Span.of_caller(),
                hint=f"write a def with @ds.{what} above it",
            )
        with _parsing:
            lines = _lines(function, Span(self.file, code.co_firstlineno))
        if len(lines) < self.first:
            raise KernelSyntaxError(
                f"the source of {self.name} is not available, so it can not be compiled",
                Span(self.file, self.first, where=self.where),
                hint="define it in a file or a notebook cell; a function made by exec() of a string "
                "has no source",
            )
        block = inspect.getblock(lines[self.first - 1 :])
        text = "".join(block)
        nested = block[0][:1].isspace()
        self.shift = self.first - 1 - nested
        try:
            with _parsing:
                module: Any = ast.parse("if True:\n" + text if nested else text)
        except SyntaxError as problem:
            raise KernelSyntaxError(
                f"the source of {self.name} can not be read: {problem.msg}",
                Span(self.file, self.first, where=self.where),
                hint="a kernel is an ordinary def with its decorator on a line of its own",
            ) from None
        node = (module.body[0] if nested else module).body[0] if module.body else None
        if isinstance(node, ast.AsyncFunctionDef):
            raise KernelSyntaxError(
                f"an async function can not be a {what}", self.span(node), hint="leave async out"
            )
        if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
            raise KernelSyntaxError(
                f"the text at the place where {self.name} was defined is something else",
                Span(self.file, self.first, where=self.where),
                hint="the file changed after it was loaded, or the function was made by exec() of a "
                "string: define it in a file or a notebook cell, and run that again",
            )
        self.node = node
        with contextlib.suppress(NameError):  # of what is not defined yet: it is asked for again
            function.__annotations__  # noqa: B018  # from Python 3.14 on they are evaluated only now

    def span(self, node: Any, parent: Span | None = None) -> Span:
        """The place of a syntax node in the user's file."""
        return Span(
            self.file,
            node.lineno + self.shift,
            node.col_offset,
            node.end_lineno + self.shift,
            node.end_col_offset,
            self.where,
            parent,
        )

    def annotations(self) -> dict[str, Any]:
        """The annotations by name ("return": of the result), those written as text evaluated."""
        hints = dict(self.function.__annotations__)
        for name, hint in hints.items():
            while isinstance(hint, str):  # twice where quotes stand under `from __future__`
                try:
                    hint = hints[name] = eval(hint, self.function.__globals__)
                except Exception as problem:
                    raise KernelSyntaxError(
                        f"the annotation of {name} can not be evaluated: {problem}",
                        self.parameter(name),
                        hint="use ds.f32, ds.template(), ...; names in it must be global",
                    ) from None
            hints[name] = as_of_now(hint)
        return hints

    def parameter(self, name: str) -> Span:
        """A parameter with its annotation ("return": the annotation of the result)."""
        a = self.node.args
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
        found = [p for p in every if p is not None and p.arg == name]
        if name == "return" and self.node.returns is not None:
            return self.span(self.node.returns)
        return self.span(found[0]) if found else self.head()

    def head(self, parent: Span | None = None) -> Span:
        """The `def` line."""
        return Span(self.file, self.node.lineno + self.shift, where=self.where, parent=parent)


def _lines(function: Callable[..., Any], span: Span) -> list[str]:
    """The lines of the file that a function was defined in, as they were when that was loaded.

    A file that has changed since a kernel was read from it may have been loaded again, or not: which of its
    texts is the function's, its code decides.
    """
    code = function.__code__
    file = code.co_filename
    known = linecache.cache.get(file)
    old = linecache.getlines(file, function.__globals__)
    linecache.checkcache(file)
    if known is None or (file in linecache.cache and file not in _changed):
        return old
    _changed.add(file)
    new = linecache.getlines(file, function.__globals__)
    if _defines(new, code):
        return new
    if not new:
        linecache.cache[file] = known
    if not _defines(old, code):
        raise KernelSyntaxError(
            f"the file that {function.__name__} was defined in changed after it was loaded",
            span,
            hint="load it again: importlib.reload, or start the program anew",
        )
    linecache.cache[file] = known
    return old


def _defines(lines: list[str], code: CodeType) -> bool:
    """Whether the text of a file has this function at its place."""
    try:
        there = [compile("".join(lines), code.co_filename, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return False
    for c in there:
        there += [inner for inner in c.co_consts if isinstance(inner, CodeType)]
    return any(c.co_firstlineno == code.co_firstlineno and c == code for c in there)


def _described(thing: Any) -> str:
    source = getattr(thing, "source", None)
    if isinstance(source, Source):
        return f"{source.name}, which is a {source.where.split()[0]} already"
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"an object of class {type(thing).__name__}"


def assigned_names(statements: list[ast.stmt]) -> set[str]:
    """The names that statements bind."""
    names: set[str] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names
