"""Checks that a source text is that of the compiled function; name mangling of classes.

A kernel is translated from its source, but Python runs its bytecode. Where the file was edited after the
import they differ, and translating the text would silently compile another program. Read `is_code_of` first.
"""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import inspect
import operator
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

# Flags of `from __future__` imports change what text compiles to, so they are passed on to `compile`.
_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
# Flags of a code object that come from its syntax; the others depend on what is around it.
_KIND = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


_PLAIN_LOADERS = ("builtins", "_frozen_importlib", "_frozen_importlib_external", "zipimport")
"""The modules whose loaders compile the text unchanged; "builtins": there is no loader."""


def is_code_of(node: ast.FunctionDef, function: FunctionType) -> bool:
    """Return whether Python would compile the text to this function.

    Of a function that a tool has rewritten (pytest's assertions, typeguard, beartype) only names and
    constants are compared: such tools add code, which cannot be told from what else an edit changes.
    """
    # What cannot be compiled here is not refused: the check must not reject a program that is right.
    made, code = _compiled(node, function), function.__code__
    if made is None or _is_same(made, code):
        return True
    return _is_rewritten(function, made) and _is_within(made, code)


def is_exactly(node: ast.FunctionDef, function: FunctionType, shift: int) -> bool:
    """Return whether Python compiles the text to this function, whose lines are `shift` below the text's.

    For a text that was found by a search: nothing else says that it is the right one.
    """
    made, code = _compiled(node, function), function.__code__
    return (
        made is not None and _is_same(made, code) and _last_line(made) + shift == _last_line(code)
    )


def _last_line(code: CodeType) -> int:
    return max(line for _, _, line in code.co_lines() if line is not None)


def _compiled(node: ast.FunctionDef, function: FunctionType) -> CodeType | None:
    """Compile the text as if at the function's place; None if that fails."""
    code = function.__code__
    bare: ast.stmt = ast.copy_location(ast.parse(f"def {node.name}(): pass").body[0], node)
    assert isinstance(bare, ast.FunctionDef)
    bare.args, bare.body = _without_values(node.args), node.body
    # The scopes around a function determine its bytecode: names are mangled by the class, and free variables
    # are read from cells instead of globals. Only names matter, so empty scopes with these names suffice.
    depth = 1
    # `__class__` is the cell that the compiler adds for `super()`; the class around makes it again.
    owner = class_around(code)
    if owner is not None:
        bare, depth = _around(f"class {owner}: pass", bare), depth + 1
    free = [n for n in code.co_freevars if n != "__class__"]
    if free:
        bare, depth = _around(f"def around({', '.join(free)}): pass", bare), depth + 1
    # CPython compiles `module.f(x)` differently (LOAD_ATTR,
    # not LOAD_METHOD) if the text imports the module.
    modules = {n for n, thing in function.__globals__.items() if isinstance(thing, ModuleType)}
    named = [n for n in code.co_names if n in modules and n.isidentifier()]  # pytest's are none
    imports = ast.parse("".join(f"import {n}\n" for n in dict.fromkeys(named))).body
    try:
        made = compile(
            ast.Module([*imports, bare], []),
            "",
            "exec",
            flags=code.co_flags & _FUTURE,
            dont_inherit=True,
        )
    except (SyntaxError, ValueError, RecursionError):
        return None
    for _ in range(depth):
        made = next(c for c in made.co_consts if isinstance(c, CodeType))
    return made


def _is_rewritten(function: FunctionType, made: CodeType) -> bool:
    """Return whether a tool may have rewritten the function, judging by its loader and added names."""
    spec = function.__globals__.get("__spec__")
    if type(getattr(spec, "loader", None)).__module__ not in _PLAIN_LOADERS:
        return True
    added = _content(function.__code__) - _content(made)
    # typeguard's and beartype's decorators put imports of their own into functions.
    return any(name.partition(".")[0] in ("typeguard", "beartype") for name, _ in added)


def _is_within(made: CodeType, code: CodeType) -> bool:
    """Return whether a function has at least the parameters, names and constants of another one."""
    counts = (made.co_argcount, made.co_kwonlyargcount, made.co_flags & _KIND)
    if counts != (code.co_argcount, code.co_kwonlyargcount, code.co_flags & _KIND):
        return False
    n = made.co_argcount + made.co_kwonlyargcount
    return made.co_varnames[:n] == code.co_varnames[:n] and _content(made) <= _content(code)


def _content(code: CodeType) -> set[tuple[str, str]]:
    """Return all names in a code object and those inside it, and the constants loaded, with their classes."""
    names = (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    found = {(name, "") for name in names}
    rest = list(_constants(code))
    while rest:
        thing = rest.pop()
        if isinstance(thing, CodeType):
            found |= _content(thing)
        elif isinstance(thing, (tuple, frozenset)):
            rest += thing
        else:
            # By text and class, since 1 == 1.0 == True, 0.0 == -0.0 and NaN != NaN.
            found.add((repr(thing), type(thing).__name__))
    return found


def _constants(code: CodeType) -> Iterator[Any]:
    """Yield the constants that instructions load.

    `co_consts` may begin with one that none loads, and lacks those that are part of an instruction: from
    Python 3.14 on small integers, from 3.15 on also None, True, False, -1 and "".
    """
    for step in dis.get_instructions(code):
        if step.opcode in dis.hasconst:
            assert step.arg is not None
            yield code.co_consts[step.arg]
        elif step.opname == "LOAD_SMALL_INT" or (
            # The others of the common constants are functions and classes, which tools load by their names.
            step.opname == "LOAD_COMMON_CONSTANT"
            and sys.version_info >= (3, 15)
            and not callable(step.argval)
        ):
            yield step.argval


def _around(text: str, inner: ast.stmt) -> ast.stmt:
    outer: Any = ast.parse(text).body[0]
    outer.body = [inner]
    made: ast.stmt = outer
    return made


def _without_values(args: ast.arguments) -> ast.arguments:
    """Return parameters without annotations and defaults, which are no part of the function's own code."""

    def bare(a: ast.arg) -> ast.arg:
        return ast.copy_location(ast.arg(a.arg), a)

    def none(at: ast.expr) -> ast.expr:
        return ast.copy_location(ast.Constant(None), at)

    # That there is a default is kept: the number of parameters with one is part of the syntax.
    return ast.arguments(
        posonlyargs=[bare(a) for a in args.posonlyargs],
        args=[bare(a) for a in args.args],
        vararg=args.vararg and bare(args.vararg),
        kwonlyargs=[bare(a) for a in args.kwonlyargs],
        kw_defaults=[d and none(d) for d in args.kw_defaults],
        kwarg=args.kwarg and bare(args.kwarg),
        defaults=[none(d) for d in args.defaults],
    )


def _is_same(a: CodeType, b: CodeType) -> bool:
    """Return whether two code objects do the same, whatever their line numbers."""
    heads = [
        (c.co_argcount, c.co_kwonlyargcount, c.co_flags & _KIND, c.co_varnames, c.co_freevars)
        for c in (a, b)
    ]
    if heads[0] != heads[1]:
        return False
    # The usual case, without disassembling.
    if a.co_code == b.co_code and a.co_names == b.co_names and len(a.co_consts) == len(b.co_consts):
        return all(map(_is_same_constant, a.co_consts, b.co_consts))
    # The bytecode of a method call also depends on whether the module was imported by name in the text.
    first, second = _steps(a), _steps(b)
    return len(first) == len(second) and all(
        name == other and (_is_same_constant(x, y))
        for (name, x), (other, y) in zip(first, second, strict=True)
    )


def _is_same_constant(x: object, y: object) -> bool:
    if isinstance(x, CodeType) and isinstance(y, CodeType):
        # The body of a class holds its line and its qualified name. No kernel has a class, so names suffice.
        if not (x.co_flags | y.co_flags) & inspect.CO_OPTIMIZED:
            return x.co_name == y.co_name
        return _is_same(x, y)
    return type(x) is type(y) and repr(x) == repr(y)


# Instructions that depend on how a call is compiled, and inline caches: they compute nothing themselves.
_AROUND_CALLS = frozenset(("CACHE", "PRECALL", "PUSH_NULL", "NOP", "RESUME", "EXTENDED_ARG"))


def _steps(code: CodeType) -> list[tuple[str, Any]]:
    """Return the instructions without those that only prepare a call; jumps by their target instruction."""
    found = list(dis.get_instructions(code))
    kept = [k for k, i in enumerate(found) if i.opname not in _AROUND_CALLS]
    number = {found[k].offset: n for n, k in enumerate(kept)}
    place = {i.offset: k for k, i in enumerate(found)}

    # A jump may target a skipped instruction: what counts is the next one that is kept.
    def led_to(offset: int) -> int | None:
        k = place[offset]
        while k < len(found) and found[k].offset not in number:
            k += 1
        return number[found[k].offset] if k < len(found) else None

    made = []
    for k in kept:
        one = found[k]
        name = one.opname.replace("LOAD_METHOD", "LOAD_ATTR")
        is_jump = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
        made.append((name, led_to(one.argval) if is_jump else one.argval))
    return made


def class_around(code: CodeType) -> str | None:
    """Return the innermost class whose body a function is defined in, also within other functions."""
    *around, _ = code.co_qualname.split(".")
    while around:
        name = around.pop()
        if name != "<locals>":
            return name
        around.pop()  # the function
    return None


class Mangled(ast.NodeTransformer):
    """Gives names such as `__mass` in a class the form that Python gives them: `_Body__mass`."""

    def __init__(self, owner: str) -> None:
        self.prefix = "_" + owner.lstrip("_")

    def visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "attr", "arg"):
            name = getattr(node, field, None)
            # The Python Language Reference, 6.2.1: no mangling
            # in a class whose name consists of underscores only.
            private = isinstance(name, str) and name.startswith("__") and not name.endswith("__")
            if private and self.prefix != "_":
                setattr(node, field, self.prefix + str(name))
        return self.generic_visit(node)
