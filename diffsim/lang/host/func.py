"""`@ds.func`, its derivatives `@ds.func_grad` and `@ds.func_replay`, and `@ds.data_oriented`."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from diffsim.errors import AutodiffError, DiffsimError, KernelSyntaxError, Span, shown
from diffsim.ir.types import ScalarType
from diffsim.lang.host.copying import Bound, Named
from diffsim.lang.host.hooks import runtime
from diffsim.lang.host.observations import CompiledByValue
from diffsim.lang.host.signatures import checked, need_bool
from diffsim.lang.host.source import Source
from diffsim.public_names import PublicNames
from diffsim.tracebacks import entries, entry

C = TypeVar("C", bound=type)


@entries("__call__")
class Func(Named, metaclass=PublicNames):
    """A function for use inside kernels; each call is inlined.

    Attributes:
        gradient: the function that `@ds.func_grad` decorates for it.
        replay: the function that `@ds.func_replay` decorates for it.
        native: its LLVM text, if `@ds.func_native` made it.
    """

    _public = ""

    def __init__(self, function: Callable[..., Any]) -> None:
        # Read now: a later edit of the file must not change what is compiled at the first call.
        self.source = Source(function, "func")
        self.gradient: Given | None = None
        self.replay: Given | None = None
        self.native: NativeText | None = None
        functools.update_wrapper(self, function)

    # The descriptor protocol, so that a func in a class is
    # a method: `self.f(x)` in a kernel passes the object.
    def __get__(self, owner: object, kind: object = None) -> Any:
        # From the class itself, `Particle.f`, it remains unbound.
        return self if owner is None else BoundFunc(self, owner)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        # A func has no meaning in Python: its types are those of the call in a kernel.
        raise DiffsimError(
            f"{self.source.name} is a ds.func: it can be called inside kernels and funcs only",
            Span.of_caller(),
            hint="call it from a @ds.kernel",
        )


class PyFunc(Func):
    """A func that Python can call too: there it is the plain function."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.source.function(*args, **kwargs)


class UndecoratedFunc(PyFunc):
    """A plain function, a method of a struct: kernels call it where `strict` asks for no decorator."""


class RealFunc(Func):
    """A func whose parameters and result have types; each call converts to them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        spec = self.source.node.args
        for p in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
            if p.annotation is None:
                raise KernelSyntaxError(
                    f"the parameter {p.arg} of a real_func has no type",
                    self.source.parameter(p.arg),
                    hint=f"write {p.arg}: ds.f32, or take @ds.func, whose parameters need none",
                )


class NativeText:
    """A func in LLVM text: the types of its parameters and result, one text per backend."""

    def __init__(
        self,
        types: dict[str, ScalarType],
        result: ScalarType,
        text: dict[str, str],
        adjoint: dict[str, str] | None,
        replay: dict[str, str] | None,
    ) -> None:
        self.types = types
        self.result = result
        self.text = text
        self.adjoint = adjoint
        self.replay = replay


@entries("__call__")
class Given:
    """A function that a user gives for a func: its gradient (`func_grad`) or its replay (`func_replay`)."""

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        self.source = Source(function, what)
        self.what = what
        functools.update_wrapper(self, function)

    def in_words(self) -> str:
        return f"{self.source.name}, which is a ds.{self.what}"

    def __call__(self, *args: object, **kwargs: object) -> Any:
        # Calling it by mistake would compute a gradient without the chain rule around it.
        raise self._not_called(Span.of_caller())

    def in_kernel(self, cx: Any, node: ast.Call, *given: object) -> Any:
        raise self._not_called(cx.span(node))

    def _not_called(self, span: Span | None) -> DiffsimError:
        return AutodiffError(
            f"{self.source.name} is a ds.{self.what}: it accompanies a func and is not called",
            span,
            hint="call the func; its gradient uses this",
        )


@entries("__call__")
class BoundFunc(Bound, CompiledByValue, metaclass=PublicNames):
    """A func bound to an object, which is its `self`."""

    _public = ""

    def in_words(self) -> str:
        return f"the func {self.func.source.name}"

    def __init__(self, func: Func, owner: object) -> None:
        self.func = func
        self.owner = owner
        self.__name__ = func.source.name

    def _as_constant(self) -> Any:
        """Return its parts: Python makes a new object each time the attribute is read."""
        return self.func, self.owner

    @staticmethod
    def _describe_constant(*parts: Any) -> str:
        func, _ = parts
        return f"the func {func.source.name}"

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.func(self.owner, *args, **kwargs)


@checked
def func(fn: Callable[..., Any], is_real_function: bool = False) -> Func:
    """Decorate a function so that kernels (and other funcs) can call it.

    Arguments are passed by value; fields, functions and other Python objects as they are. Those for
    parameters annotated `ds.template()` are changed where the func changes the parameter. A func may
    return one value or a tuple, from anywhere in its body.

    Example:
        @ds.func
        def square(a):
            return a * a

        @ds.kernel
        def compute(a: ds.f32) -> ds.f32:
            return square(a) + square(2.0)

        print(compute(3.0))  # prints: 13.0
    """
    # Taichi's second parameter, which its decorator real_func gives.
    need_bool(is_real_function, "is_real_function")
    return RealFunc(fn) if is_real_function else Func(fn)


@checked
def pyfunc(fn: Callable[..., Any]) -> Func:
    """Decorate a function that kernels call, as `ds.func`, and Python as well, where it runs as it is.

    Example:
        @ds.pyfunc
        def square(a):
            return a * a

        @ds.kernel
        def compute(a: ds.f32) -> ds.f32:
            return square(a)

        print(square(3), compute(3.0))  # prints: 9 9.0
    """
    return PyFunc(fn)


@checked
def real_func(fn: Callable[..., Any]) -> Func:
    """Decorate a function for kernels whose parameters and result all have types, to which calls convert.

    It may return from anywhere, and it cannot call itself. It is translated in place of each call, as
    every func is.

    Example:
        @ds.real_func
        def smaller(a: ds.f32, b: ds.f32) -> ds.f32:
            if a < b:
                return a
            return b

        @ds.kernel
        def compute(a: ds.i32) -> ds.f32:
            return smaller(a, 2.5)

        print(compute(3))  # prints: 2.5
    """
    return RealFunc(fn)


@checked
def func_grad(func: Func) -> Callable[[Callable[..., Any]], Given]:
    """Decorate a function as the gradient of a func.

    It takes the func's parameters and then the adjoint of each value that the func returns (or these
    values first, then their adjoints), and adds to the adjoints of the parameters:
    `ds.adjoint[x] += ...`, of a field or array `ds.adjoint[a][i] += ...`. What it adds nothing to has
    derivative 0.

    Raises:
        AutodiffError: the func has a gradient already, or the parameters do not fit.

    Example:
        @ds.func
        def root(c):
            return ds.sqrt(c)

        @ds.func_grad(root)
        def adj_root(c, s, adj_s):  # its result s, and the adjoint of that
            ds.adjoint[c] += 0.5 / s * adj_s

        @ds.kernel
        def slope(c: ds.f32) -> ds.f32:
            return ds.grad(root)(c)

        print(slope(4.0))  # prints: 0.25
    """
    _check_func(func, "func_grad")

    @entry
    def decorate(function: Callable[..., Any]) -> Given:
        given = Given(function, "func_grad")
        # A second one would silently replace the first, perhaps in another file.
        if func.gradient is not None:
            raise _twice(func, func.gradient, given)
        # Checked here and not at a call: the error is about the definition.
        _check_parameters(func, given, more=True)
        func.gradient = given
        # Kernels compiled so far have inlined the func without
        # its gradient, and their adjoints would ignore it.
        runtime().forget_kernels()
        return given

    return decorate


@checked
def func_replay(func: Func) -> Callable[[Callable[..., Any]], Given]:
    """Decorate a function that stands in for a func where an adjoint needs its result again.

    It has the func's parameters and returns the func's result without repeating its effects: for example, it
    reads a number that the func has stored, where the func would increment a counter again.

    Raises:
        AutodiffError: the func has a replay already, or the parameters do not fit.

    Example:
        count = ds.field(ds.i32, shape=())
        slot = ds.field(ds.i32, shape=3)

        @ds.func
        def take(i):  # the next free place, which it notes
            k = ds.atomic_add(count[None], 1)
            slot[i] = k
            return k

        @ds.func_replay(take)
        def take_again(i):
            return slot[i]

        @ds.kernel
        def compute():
            for i in range(3):
                take(i)

        compute()
        print(count[None])  # prints: 3
    """
    _check_func(func, "func_replay")

    @entry
    def decorate(function: Callable[..., Any]) -> Given:
        given = Given(function, "func_replay")
        if func.replay is not None:
            raise _twice(func, func.replay, given)
        _check_parameters(func, given, more=False)
        func.replay = given
        runtime().forget_kernels()
        return given

    return decorate


def _check_func(func: object, what: str) -> None:
    """Refuse objects that are not funcs."""
    if not isinstance(func, Func):
        name = getattr(func, "__name__", shown(func))
        raise AutodiffError(
            f"{name} is not a ds.func, so ds.{what} cannot be given for it",
            Span.of_caller(),
            hint="of a Python function that launches kernels the gradient is given by ds.ad.grad_for"
            if getattr(func, "_diffsim_kernel", False)
            else f"write @ds.func above the def of {name}",
        )


def _twice(func: Func, old: Given, new: Given) -> AutodiffError:
    """Return the error for a second gradient or replay."""
    what = "gradient" if old.what == "func_grad" else "replay"
    return AutodiffError(
        f"{func.source.name} has a {what} already:\n{old.source.head().text()}\n  and another one here:",
        new.source.head(),
        hint="take one of them away",
    )


def _check_parameters(func: Func, given: Given, *, more: bool) -> None:
    """Check that a gradient has the func's parameters and then adjoints (`more`), a replay exactly these."""
    mine, theirs = (
        [p.arg for p in (*s.node.args.posonlyargs, *s.node.args.args)]
        for s in (given.source, func.source)
    )
    spec = given.source.node.args
    n = len(theirs)
    # The adjoints are passed by position, after the parameters: nothing may come in between.
    plain = not (spec.vararg or spec.kwarg or spec.kwonlyargs or spec.defaults)
    if plain and mine[:n] == theirs and (len(mine) > n) == more:
        # An annotation may be left out, but must not contradict that of the func.
        have, want = given.source.annotations(), func.source.annotations()
        if all(have.get(p, want.get(p)) == want.get(p) for p in theirs):
            return
    after = ", and then one adjoint for each value that it returns" if more else ""
    raise AutodiffError(
        f"{given.source.name}({ast.unparse(spec)}) does not fit "
        f"{func.source.name}({ast.unparse(func.source.node.args)})",
        given.source.head(),
        hint=f"its parameters are those of {func.source.name}, under the same names{after}",
    )


@checked
def data_oriented(cls: C) -> C:
    """Decorate a class whose methods are kernels or funcs, so that `self.x` works inside them.

    The marker changes nothing in the class; numbers and fields reached through `self` are compiled in.

    Example:
        @ds.data_oriented
        class Grid:
            def __init__(self, n):
                self.x = ds.field(ds.i32, shape=n)

            @ds.kernel
            def fill(self, a: ds.i32):
                for i in self.x:
                    self.x[i] = a

        grid = Grid(3)
        grid.fill(7)
        print(grid.x.to_numpy())  # prints: [7 7 7]
    """
    return cls
