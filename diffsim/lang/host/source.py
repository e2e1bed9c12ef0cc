"""From a Python function to its syntax tree, with spans that point into the user's file."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import os
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from diffsim import locks
from diffsim.errors import ArgumentError, KernelSyntaxError, Span
from diffsim.lang.host.annotations import as_of_now
from diffsim.lang.text import unfiled
from diffsim.lang.text.compiled_source import Mangled, class_around, is_code_of, is_exactly
from diffsim.lang.text.lambdas import find_lambda
from diffsim.lang.text.plain_statements import with_plain_statements
from diffsim.parameters import signature_of_function

SyntaxNode: TypeAlias = ast.stmt | ast.expr | ast.arg | ast.keyword | ast.excepthandler
"""The nodes of a syntax tree that have a place in the file."""

_parsing = locks.lock()  # in Python 3.11 `ast.parse` fails if two threads parse at a time
_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
_newest: WeakValueDictionary[tuple[str, str], Source] = WeakValueDictionary()
"""The latest definition for each module and qualified name; weak, so that old functions are collected."""


class Source:
    """The syntax tree of a function and its place in the user's file.

    Invariant: the tree is that of the code which Python compiled, checked against the function's bytecode.

    Attributes:
        text: the text that the tree was made of.

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
        # Parameters of a kernel have types, and those of a lambda cannot.
        if self.name == "<lambda>" and what != "func":
            raise KernelSyntaxError(
                f"a lambda cannot be a {what}",
                Span.of_caller(),
                hint=f"write a def with @ds.{what} above it",
            )
        # Decorators of several threads may run at once, as modules are imported in threads.
        with _parsing:
            node, self.shift = self._read(function)
        if isinstance(node, ast.AsyncFunctionDef):
            raise KernelSyntaxError(
                f"an async function cannot be a {what}", self.span(node), hint="leave async out"
            )
        # The compiler mangles private names in classes; the
        # tree has to name the same globals as the bytecode.
        owner = class_around(code)
        if owner is not None:
            Mangled(owner).visit(node)
        self.node = with_plain_statements(node)
        module_of, name = function.__module__, function.__qualname__
        home = sys.modules.get(module_of) if isinstance(module_of, str) else None
        self.known_as = (str(module_of), name)
        # A qualified name with "<locals>" is shared by many closures, so the latest of them is no new version
        # of the others. `exec` with a dictionary of its own is no module either.
        if (
            not name.endswith("<lambda>")
            and "<locals>" not in name
            and getattr(home, "__dict__", None) is function.__globals__
        ):
            _newest[self.known_as] = self
        with contextlib.suppress(NameError):  # of what is not defined yet: it is asked for again
            function.__annotations__  # noqa: B018  # from Python 3.14 on they are evaluated only now

    def _read(self, function: FunctionType) -> tuple[Any, int]:
        """Return the syntax of a function, and what to add to its line numbers.

        The file may have changed since Python compiled it: the text as it was first read and as it is now are
        both tried, and the one that the function was compiled from is used.
        """
        # `linecache` may hold the text from the time of the import,
        # or none; `checkcache` drops it if the file has changed.
        file = self.file
        known = linecache.cache.get(file)
        old = linecache.getlines(file, function.__globals__)
        linecache.checkcache(file)
        new = linecache.getlines(file, function.__globals__)
        try:
            return self._parse(new, function)
        except KernelSyntaxError as problem:
            if known is not None and new != old:
                # The old text is kept for tracebacks of this function, whose lines are those of that text.
                linecache.cache[file] = known
                with contextlib.suppress(KernelSyntaxError):
                    return self._parse(old, function)
            found = None if os.path.isfile(file) else self._read_unfiled(function)
            if found is None:
                raise problem from None
            return found

    def _read_unfiled(self, function: FunctionType) -> tuple[Any, int] | None:
        """Return the syntax of a function that no file has, if its text is somewhere."""
        for lines in unfiled.texts(function):
            with contextlib.suppress(KernelSyntaxError, tokenize.TokenError):
                node, shift = self._parse(lines, function)
                if is_exactly(node, function, shift):
                    self.file = unfiled.registered(lines, self.file)
                    return node, shift
        return None

    def _parse(self, lines: list[str], function: FunctionType) -> tuple[Any, int]:
        """Parse a function among the lines of its file, and check that it is the compiled one."""
        code, place = function.__code__, Span(self.file, self.first, where=self.where)
        if len(lines) < self.first:
            raise KernelSyntaxError(
                f"the source of {self.name} is not available, so it cannot be compiled",
                place,
                hint="define it in a notebook cell, or in a .py file that is there when the program runs: a "
                "pipe or a .pyc file has no source, and a text that exec() runs only while a variable has it",
            )
        if self.name == "<lambda>":
            found = find_lambda("".join(lines), function)
            if found is None:
                raise KernelSyntaxError(
                    "the text of this lambda is not what Python has compiled",
                    place,
                    hint="write a def instead",
                )
            self.text = "".join(lines)
            return found, 0
        # `inspect.getsource` would read the file again and find
        # functions by a search for `def`; the first line is known.
        block = inspect.getblock(lines[self.first - 1 :])
        text = "".join(block)
        # An indented function is parsed inside `if True:`, one
        # line more, which keeps the columns as they are in the file.
        nested = block[0][:1].isspace()
        try:
            module: Any = ast.parse("if True:\n" + text if nested else text)
        except SyntaxError as problem:
            raise KernelSyntaxError(
                f"the source of {self.name} cannot be read: {problem.msg}",
                place,
                hint="a kernel is an ordinary def with its decorator on a line of its own",
            ) from None
        node = (module.body[0] if nested else module).body[0] if module.body else None
        if not isinstance(node, _DEFS) or node.name != code.co_name:
            raise KernelSyntaxError(
                f"the text at the place where {self.name} was defined is something else",
                place,
                hint="the file changed after it was loaded, or the function was made by exec() of a "
                "text: define it in a file or a notebook cell, and run that again",
            )
        if isinstance(node, ast.FunctionDef) and not is_code_of(node, function):
            raise KernelSyntaxError(
                f"the text of {self.name} is not what Python has compiled: the file that it was defined "
                "in changed after it was loaded",
                place,
                hint="load it again: importlib.reload, or start the program anew",
            )
        self.text = text
        return node, self.first - 1 - nested

    def replaced_by(self) -> Source | None:
        """Return the later definition under the same name, as of a notebook's edited cell; None if none."""
        newest = _newest.get(self.known_as)
        if (
            newest is None
            or newest is self
            or newest.function.__globals__ is not self.function.__globals__
        ):
            return None
        # A cell that was run again without an edit defines the same function: the old one remains valid.
        return None if ast.dump(newest.node) == ast.dump(self.node) else newest

    def span(self, node: SyntaxNode, parent: Span | None = None) -> Span:
        """Return the place of a syntax node in the user's file."""
        # The parser gives every node an end; only nodes made by hand could lack one.
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return Span(
            self.file,
            node.lineno + self.shift,
            node.col_offset,
            node.end_lineno + self.shift,
            node.end_col_offset,
            self.where,
            parent,
        )

    @functools.cached_property
    def locals(self) -> frozenset[str]:
        """The names that its statements bind."""
        return self._names[0]

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        """The names that its statements read."""
        return self._names[1]

    @functools.cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[str]]:
        names = [n for n in walk(self.node.body) if isinstance(n, ast.Name)]
        stored = frozenset(n.id for n in names if isinstance(n.ctx, ast.Store))
        return stored, frozenset(n.id for n in names if isinstance(n.ctx, ast.Load))

    @functools.cached_property
    def bare_return(self) -> ast.Return | None:
        """Its first return without a value."""
        return next((r for r in returns(self.node.body) if r.value is None), None)

    def annotations(self) -> dict[str, Any]:
        """Return the annotations by name ("return": of the result), evaluating those written as text."""
        try:
            hints = dict(self.function.__annotations__)
        except NameError as problem:
            # From Python 3.14 on; before that the `def` itself raises it.
            hint = f"define {problem.name} before the first launch"
            raise self._unevaluated(self._annotated_with(problem.name), problem, hint) from None
        for name, hint in hints.items():
            # Twice for an annotation that is quoted under `from __future__ import annotations`.
            while isinstance(hint, str):
                try:
                    # The user's own annotation in the user's own
                    # module, as `typing.get_type_hints` evaluates it.
                    hint = hints[name] = eval(hint, self.function.__globals__)
                except Exception as problem:
                    hint = "use ds.f32, ds.template(), ...; names in it must be global"
                    raise self._unevaluated(name, problem, hint) from None
            hints[name] = as_of_now(hint)
        return hints

    def _unevaluated(self, name: str, problem: Exception, hint: str) -> KernelSyntaxError:
        """Return the error for an annotation that raised one."""
        said = f"the annotation of {name} cannot be evaluated: {problem}"
        return KernelSyntaxError(said, self.parameter(name), hint=hint)

    def _annotated_with(self, name: str | None) -> str:
        """Return the first parameter whose annotation reads a name; "return" if none does."""
        for p in self._parameters():
            read = ast.walk(p.annotation) if p.annotation else ()
            if any(isinstance(n, ast.Name) and n.id == name for n in read):
                return p.arg
        return "return"

    def _parameters(self) -> list[ast.arg]:
        a = self.node.args
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
        return [p for p in every if p is not None]

    def parameter(self, name: str) -> Span:
        """Return the place of a parameter with its annotation ("return": that of the result)."""
        found = [p for p in self._parameters() if p.arg == name]
        if name == "return" and self.node.returns is not None:
            return self.span(self.node.returns)
        return self.span(found[0]) if found else self.head()

    def head(self, parent: Span | None = None) -> Span:
        """Return the place of the `def` line."""
        return Span(self.file, self.node.lineno + self.shift, where=self.where, parent=parent)


def is_passive(function: object) -> bool:
    """Return whether a call only makes a coroutine or generator, without running the body."""
    function = inspect.unwrap(function) if inspect.isroutine(function) else function
    tests = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    return any(test(function) for test in tests)


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _passive_in_words(function: object) -> str:
    return "an async function" if _is_async(function) else "a generator (a function with yield)"


def check_runs(function: object, what: str, given: Sequence[str] | None = None) -> None:
    """Refuse a function of the user that a call would not run, so that it is not skipped silently.

    Args:
        function: the function.
        what: its part, in messages.
        given: the names of what it is called with; None: that is checked elsewhere.

    Raises:
        ArgumentError: it is an async function or a generator; it takes other arguments.
    """
    # Objects with `__call__` and partial objects are functions too; what they call is looked at.
    call = function if inspect.isroutine(function) else vars(type(function)).get("__call__")
    if isinstance(function, functools.partial):
        call = function.func
    if call is not None and is_passive(call):
        raise ArgumentError(
            f"{what} is {_passive_in_words(call)}, and calling it would not run it",
            Span.of_caller(),
            hint="write it with a plain def, without async"
            if _is_async(call)
            else "leave yield out",
        )
    if given is not None and (
        inspect.isroutine(function) or isinstance(function, functools.partial)
    ):
        _check_parameters(function, what, given)


def _check_parameters(function: Callable[..., Any], what: str, given: Sequence[str]) -> None:
    """Refuse a function that cannot be called with so many arguments."""
    try:
        signature = signature_of_function(function)
    except (TypeError, ValueError):  # a function of C's
        return
    try:
        signature.bind(*given)
    except TypeError:
        with_these = " and ".join(given) or "no arguments"
        raise ArgumentError(
            f"{what} is called with {with_these}, and its parameters are {signature}",
            Span.of_caller(),
            hint=f"write def function({', '.join(given)}): ...",
        ) from None


def _described(thing: object) -> str:
    source = getattr(thing, "source", None)
    if isinstance(source, Source):
        return f"{source.name}, which is a {source.where.split()[0]} already"
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if thing is None:
        return "None"
    return f"an object of class {type(thing).__name__}"


def walk(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield all syntax nodes of statements, in any order; `ast.walk` takes three times as long."""
    todo: list[ast.AST] = list(statements)
    while todo:
        node = todo.pop()
        yield node
        for field in node._fields:
            inner = getattr(node, field, None)
            if isinstance(inner, ast.AST):
                todo.append(inner)
            elif isinstance(inner, list):
                todo += [one for one in inner if isinstance(one, ast.AST)]


def returns(statements: list[ast.stmt]) -> Iterator[ast.Return]:
    """Yield the returns among statements and in loops and branches there, in the order of the text."""
    # A stack of statements, reversed, so that they are popped in the order of the text. Nested functions
    # and classes are refused in kernels, so no return belongs to one of them.
    todo = statements[::-1]
    while todo:
        s = todo.pop()
        if isinstance(s, ast.Return):
            yield s
        todo += [*getattr(s, "body", ()), *getattr(s, "orelse", ())][::-1]
