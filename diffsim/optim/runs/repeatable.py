"""Whether a program launches the same kernels with the same arguments each time it is called.

Then its recording can be replayed in place of calling it. That is proved from the program's syntax, with
answers of Python that can be compared again later (docs/adr/0050): names and attributes that it reads, by
identity. All it may do is to launch kernels and to fill and copy fields, with numbers that are made of
constants and of such answers, in loops over them. Whatever is not listed here is not proved: reading a field,
random numbers of Python, a counter, a file, `print`, a call of another library.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from diffsim.ad.field_ops import copy
from diffsim.errors import DiffsimError
from diffsim.lang.host.source import Source
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField
from diffsim.runtime.kernels.kernel import BoundKernel, Kernel

_ATOMS = (bool, int, float, str, bytes, type(None), range)
_FUNCTIONS = (
    abs,
    bool,
    divmod,
    enumerate,
    float,
    int,
    len,
    max,
    min,
    pow,
    range,
    reversed,
    round,
    zip,
)
_DEEPEST = 20
_PLAIN: tuple[Any, ...] = (object.__getattribute__, ModuleType.__getattribute__)
_MISSING = object()


class _NotProved(Exception):
    """Something that the proof has no rule for."""


class _Number:
    """A value that is made of constants and answers alone: a number, a text, a range, or a tuple of such."""


NUMBER = _Number()


class Repeatable:
    """A program that is proved to launch the same each time, as long as its answers stay the same.

    Args:
        program: a function, or an object with `__call__`.

    Raises:
        ValueError: it is not proved.
    """

    def __init__(self, program: Callable[[], Any]) -> None:
        self._answers: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._reading: list[Any] = []
        try:
            self.call(program, [])
        except (_NotProved, DiffsimError, RecursionError) as reason:
            raise ValueError(str(reason)) from None

    def holds(self) -> bool:
        """Return whether all answers are still the same."""
        return all(_look_up(owner, key) is was for owner, key, was in self._answers.values())

    # ---- answers of Python

    def look_up(self, owner: Any, key: str) -> Any:
        """Return what a namespace or an object has by that name, and note it as an answer."""
        found = _look_up(owner, key)
        # The owner is kept alive, so that no other object gets its id.
        self._answers[id(owner), key] = owner, key, found
        return found

    def attribute(self, owner: Any, key: str) -> Any:
        """Return an attribute that is stored as it stands: computed ones may differ each time."""
        if isinstance(owner, Field) and key == "shape":
            return NUMBER
        if isinstance(owner, (Field, StructField)):
            return self._member(owner, key)
        found = self.look_up(owner, key)
        if found is _MISSING:
            raise _NotProved(f".{key}")
        if key in getattr(owner, "__dict__", ()) and not isinstance(owner, type):
            return _value(found)
        if isinstance(owner, type) and isinstance(found, FunctionType):
            raise _NotProved(f".{key}")
        if isinstance(found, Kernel):
            return found  # of the class: bound to the object when it is called
        if isinstance(found, FunctionType):
            return MethodType(found, owner)
        if hasattr(type(found), "__get__"):
            raise _NotProved(f".{key}")
        return _value(found)

    def cell(self, cell: CellType) -> Any:
        """Return what a variable of a function around holds."""
        return self.look_up(cell, "cell_contents")

    @staticmethod
    def _member(owner: Field | StructField, key: str) -> Any:
        if isinstance(owner, StructField) and key in owner.keys:
            return getattr(owner, key)
        if key in ("fill", "copy_from") and isinstance(owner, Field):
            return MethodType(getattr(Field, key), owner)
        raise _NotProved(f".{key} of a field")

    # ---- calls

    def call(self, called: Any, args: list[Any]) -> Any:
        """Return what a call gives, if it is one that a replay repeats."""
        if isinstance(called, (Kernel, BoundKernel)):
            return self._launch(called, args)
        if called is copy or _is_method(called, "copy_from"):
            return self._only([isinstance(a, Field) for a in args], None)
        if _is_method(called, "fill"):
            return self._only([a is NUMBER for a in args], None)
        if _is_computed(called):
            return self._only([a is NUMBER for a in args], NUMBER)
        if isinstance(called, MethodType):
            return self.call(called.__func__, [called.__self__, *args])
        if isinstance(called, FunctionType):
            return self._function(called, args)
        method = self.look_up(type(called), "__call__") if not isinstance(called, type) else None
        if isinstance(method, FunctionType):
            return self._function(method, [called, *args])
        raise _NotProved(f"a call of {called!r}")

    @staticmethod
    def _only(right: list[bool], result: Any) -> Any:
        if not all(right):
            raise _NotProved("an argument")
        return result

    @staticmethod
    def _launch(called: Any, args: list[Any]) -> None:
        """Check a launch: numbers and fields are the same each time."""
        if not all(a is NUMBER or isinstance(a, (Field, StructField)) for a in args):
            raise _NotProved("an argument of a kernel")

    def _function(self, function: FunctionType, args: list[Any]) -> Any:
        """Check the body of a function of the program's."""
        if str(function.__module__).partition(".")[0] == "diffsim" or hasattr(
            function, "__wrapped__"
        ):
            raise _NotProved(f"a call of {function.__qualname__}")
        if len(self._reading) == _DEEPEST or function in self._reading:
            raise _NotProved("calls in calls")
        # Whoever exchanges the code or the defaults of a function exchanges these objects.
        for key in ("__code__", "__defaults__", "__kwdefaults__"):
            self._answers[id(function), key] = function, key, getattr(function, key)
        self._reading.append(function)
        node = Source(function, "func").node
        found = _Body(self, function, node, args).result
        self._reading.pop()
        return found


def _look_up(owner: Any, key: str) -> Any:
    """Return what a dictionary or a function holds, or what is stored in an object or its class."""
    if isinstance(owner, dict):
        return owner.get(key, _MISSING)
    if isinstance(owner, (FunctionType, CellType)):
        return getattr(owner, key, _MISSING)
    if not isinstance(owner, type):
        if type(owner).__getattribute__ not in _PLAIN:
            return _MISSING
        # A descriptor of the class that can be set wins over the object's own dictionary.
        above = _in_class(type(owner), key)
        if hasattr(type(above), "__set__"):
            return _MISSING
        return getattr(owner, "__dict__", {}).get(key, above)
    return _in_class(owner, key) if type(owner) is type else _MISSING


def _in_class(owner: type, key: str) -> Any:
    return next((vars(c)[key] for c in owner.__mro__ if key in vars(c)), _MISSING)


def _value(found: Any) -> Any:
    """Return an answer: one that cannot change is a number."""
    if type(found) is tuple:
        return NUMBER if all(_value(e) is NUMBER for e in found) else found
    is_scalar = isinstance(found, (np.bool_, np.integer, np.floating))
    return NUMBER if is_scalar or type(found) in _ATOMS else found


def _is_method(called: Any, name: str) -> bool:
    return isinstance(called, MethodType) and called.__func__ is getattr(Field, name)


def _is_computed(called: Any) -> bool:
    """Whether it is a function of numbers that gives the same each time."""
    is_of_math = isinstance(called, BuiltinFunctionType) and called.__module__ == "math"
    return is_of_math or any(called is f for f in _FUNCTIONS)


class _Body:
    """The body of a function, statement by statement.

    Attributes:
        names: the parameters and local names, with what they hold.
        result: what the function returns.
    """

    def __init__(
        self, proof: Repeatable, function: FunctionType, node: ast.FunctionDef, args: list[Any]
    ) -> None:
        self.proof, self.function = proof, function
        a = node.args
        if a.vararg or a.kwarg or a.kwonlyargs or len(args) > len(a.posonlyargs + a.args):
            raise _NotProved("parameters")
        names = [p.arg for p in (*a.posonlyargs, *a.args)]
        defaults = [_value(d) for d in function.__defaults__ or ()]
        missing = len(names) - len(args)
        if missing > len(defaults):
            raise _NotProved("parameters")
        given = [*args, *defaults[len(defaults) - missing :]]
        self.names: dict[str, Any] = dict(zip(names, given, strict=True))
        self.result: Any = None
        # All local names, also those that are assigned further down.
        self.locals = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
        self.statements(node.body)

    # ---- statements

    def statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            rule = _STATEMENTS.get(type(statement))
            if rule is None:
                raise _NotProved(f"line {statement.lineno}")
            rule(self, statement)

    def _expression(self, s: ast.Expr) -> None:
        if isinstance(s.value, ast.Call):
            self._call(s.value)
        else:
            self.value(s.value)

    def _assign(self, s: Any) -> None:
        targets = s.targets if isinstance(s, ast.Assign) else [s.target]
        if s.value is None:
            raise _NotProved(f"line {s.lineno}")
        is_update = isinstance(s, ast.AugAssign)
        found = self._numbers([s.target, s.value]) if is_update else self.value(s.value)
        for target in targets:
            self._bind(target, found)

    def _bind(self, target: ast.expr, found: Any) -> None:
        if isinstance(target, (ast.Tuple, ast.List)) and found is NUMBER:
            for part in target.elts:
                self._bind(part, NUMBER)
        elif isinstance(target, ast.Name) and target.id in self.locals:
            # One name for two things: which one it is may depend on the branch that was taken.
            if self.names.setdefault(target.id, found) is not found:
                raise _NotProved(target.id)
        else:
            raise _NotProved(f"line {target.lineno}")

    def _for(self, s: ast.For) -> None:
        self._numbers([s.iter])
        self._bind(s.target, NUMBER)
        self.statements([*s.body, *s.orelse])

    def _branch(self, s: Any) -> None:
        self._numbers([s.test])
        self.statements([*s.body, *s.orelse])

    def _return(self, s: ast.Return) -> None:
        found = None if s.value is None else self.value(s.value)
        if not (found is None or found is NUMBER or isinstance(found, Field)):
            raise _NotProved(f"line {s.lineno}")
        if self.result is not None and self.result is not found:
            raise _NotProved(f"line {s.lineno}")
        self.result = found

    def _nothing(self, s: ast.stmt) -> None:
        pass

    # ---- expressions

    def value(self, node: ast.expr) -> Any:
        """Return what an expression gives: NUMBER, or an object that is the same each time."""
        if isinstance(node, ast.Constant):
            return NUMBER
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if owner is NUMBER or owner is None:
                raise _NotProved(f"line {node.lineno}")
            return self.proof.attribute(owner, node.attr)
        if isinstance(node, ast.Call):
            found = self._call(node)
            if found is None:
                raise _NotProved(f"line {node.lineno}")
            return found
        if isinstance(node, ast.Compare) and all(
            isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops
        ):
            for part in (node.left, *node.comparators):
                self.value(part)
            return NUMBER
        return self._numbers(list(_parts(node)))

    def _numbers(self, nodes: list[ast.expr]) -> Any:
        for node in nodes:
            if self.value(node) is not NUMBER:
                raise _NotProved(f"line {node.lineno}")
        return NUMBER

    def _name(self, name: str) -> Any:
        if name in self.locals:
            if name not in self.names:
                raise _NotProved(name)
            return self.names[name]
        function = self.function
        if name in function.__code__.co_freevars:
            cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
            return _value(self.proof.cell(cell))
        found = self.proof.look_up(function.__globals__, name)
        if found is _MISSING:
            found = self.proof.look_up(vars(builtins), name)
        if found is _MISSING:
            raise _NotProved(name)
        return _value(found)

    def _call(self, node: ast.Call) -> Any:
        called = self.value(node.func)
        if any(isinstance(a, ast.Starred) for a in node.args) or any(
            k.arg is None for k in node.keywords
        ):
            raise _NotProved(f"line {node.lineno}")
        args = [self.value(a) for a in node.args]
        if node.keywords and not isinstance(called, (Kernel, BoundKernel)):
            raise _NotProved(f"line {node.lineno}")
        return self.proof.call(called, [*args, *(self.value(k.value) for k in node.keywords)])


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Return the operands of an expression that computes a number of numbers."""
    if not isinstance(node, _COMPUTING):
        raise _NotProved(f"line {node.lineno}")
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.Slice):
            yield from (e for e in (part.lower, part.upper, part.step) if e is not None)
        elif isinstance(part, ast.expr):
            yield part


_COMPUTING = (
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.List,
    ast.Subscript,
    ast.Tuple,
    ast.UnaryOp,
)
_STATEMENTS: Mapping[type[ast.stmt], Callable[[_Body, Any], None]] = {
    ast.AnnAssign: _Body._assign,
    ast.Assign: _Body._assign,
    ast.AugAssign: _Body._assign,
    ast.Break: _Body._nothing,
    ast.Continue: _Body._nothing,
    ast.Expr: _Body._expression,
    ast.For: _Body._for,
    ast.If: _Body._branch,
    ast.Pass: _Body._nothing,
    ast.Return: _Body._return,
    ast.While: _Body._branch,
}
