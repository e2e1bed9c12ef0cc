"""Struct types, and structs in Python: named members of scalar, vector, matrix or struct types.

Structs inside kernels are in `lang/frontend/functions/structs.py`.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, DtypeError, Span, names_of_caller, shown
from diffsim.ir.types import ScalarType, TensorType, an, bool_, from_numpy, tensor
from diffsim.lang.host.annotations import as_of_now, scalar_type
from diffsim.lang.host.copying import Named
from diffsim.lang.host.func import Func, PyFunc, UndecoratedFunc
from diffsim.lang.host.hooks import runtime
from diffsim.lang.host.observations import CompiledByValue
from diffsim.lang.host.provenance import marked
from diffsim.lang.host.signatures import checked, checked_methods, need_bool
from diffsim.lang.host.unsupported import close_to, no_attribute
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix
from diffsim.public_names import PublicNames
from diffsim.tracebacks import entries

# Functions that Python itself, from 3.14 on, adds to a class for its annotations (PEP 649).
_OF_PYTHON = frozenset({"__annotate__", "__annotate_func__"})


@entries("__call__ __mro_entries__")
@checked_methods("field")
class StructType(Named, metaclass=PublicNames):
    """The type of a struct; made by `ds.types.struct(...)` or `@ds.dataclass`.

    Calling it makes a struct: members are given by position or by name, missing ones are 0.

    Attributes:
        members: the type of each member, in order.
        methods: the funcs and plain functions of the class that `ds.dataclass` decorated.
        made_of: that class; None for a type made by `ds.types.struct`, until a class inherits from it.
    """

    _public = "field members"

    made_of: type | None = None

    def __init__(self, name: str, members: Mapping[str, object], methods: dict[str, Func]) -> None:
        self.__name__ = name
        self.members: dict[str, ScalarType | TensorType | StructType] = {}
        self.methods = methods
        if not members:
            raise ArgumentError(
                f"{name} has no members",
                Span.of_caller(),
                hint="write ds.types.struct(pos=ds.types.vector(3, ds.f32), mass=ds.f32)",
            )
        for member, given in members.items():
            t = as_of_now(given)
            # `particles.shape` and the like would be ambiguous; names with underscores belong to Python.
            if member in _RESERVED or member in methods or member.startswith("_"):
                raise ArgumentError(
                    f"a member of {name} cannot be called {member}",
                    Span.of_caller(),
                    hint="fields of structs have a method or an attribute of that name"
                    if not member.startswith("_")
                    else "take the underscore away",
                )
            plain = isinstance(t, (StructType, TensorType))
            self.members[member] = t if plain else scalar_type(t)

    def __call__(self, *args: object, **kwargs: object) -> Struct:
        given = self.bind(
            args, kwargs, lambda text, hint: ArgumentError(text, Span.of_caller(), hint)
        )
        made = {}
        for member, t in self.members.items():
            thing = given.get(member)
            # A struct is copied by reference: its type must be
            # the very same, not only have the same members.
            if isinstance(t, StructType):
                thing = t() if thing is None else thing
                if not isinstance(thing, Struct) or thing._type is not t:
                    raise ArgumentError(
                        f"{member} of {self.__name__} is a {t.__name__}, not {describe(thing)}",
                        Span.of_caller(),
                        hint=f"write {member}={t.__name__}(...)",
                    )
            elif isinstance(t, TensorType):
                # One number for all elements, as in a kernel.
                if thing is None or isinstance(thing, (int, float)):
                    thing = np.full(t.shape, self._number(member, t.scalar, thing))
                made_of = marked(Matrix(thing), given.get(member))
                # As in a kernel: a conversion that loses the fraction is written out.
                if made_of.entries.dtype.kind == "f" and t.is_int:
                    raise self._no_fractions(member, t, thing)
                made_of = made_of.cast(t.scalar)
                if made_of.entries.shape != t.shape:
                    raise ArgumentError(
                        f"{member} of {self.__name__} is {an(t)}, not {describe(thing)}",
                        Span.of_caller(),
                        hint="give a list of that shape",
                    )
                thing = made_of
            else:
                # The converted number keeps its origin, so that a gradient that it would lose is refused.
                thing = marked(t(self._number(member, t, thing)), thing)
            made[member] = thing
        return Struct(self, made)

    def _number(self, member: str, t: ScalarType, thing: object) -> object:
        """Return the number for a member; 0 where none is given."""
        if isinstance(thing, np.ndarray) and thing.size == 1:
            thing = thing.item()
        if thing is None:
            return 0
        if not isinstance(thing, (bool, int, float, np.bool_, np.integer, np.floating)):
            raise ArgumentError(
                f"{member} of {self.__name__} is {an(t)}, not {describe(thing)}",
                Span.of_caller(),
                hint="give one number",
            )
        if t.is_int and isinstance(thing, (float, np.floating)):
            raise self._no_fractions(member, t, thing)
        # 2**1023 is the largest power of two that a double holds: a float member takes no longer integer.
        if isinstance(thing, int) and not (t.holds(thing) and abs(thing) < 2**1023):
            raise DtypeError(
                f"{member} of {self.__name__} is {an(t)}, and {shown(thing)} does not fit into it",
                Span.of_caller(),
                hint="give the member a wider type, such as ds.i64",
            )
        return thing

    def _no_fractions(
        self, member: str, t: ScalarType | TensorType, thing: object
    ) -> ArgumentError:
        """Return the error for a float where the member is an integer."""
        return DtypeError(
            f"{member} of {self.__name__} is {an(t)}, {shown(thing)} would lose its fraction",
            Span.of_caller(),
            hint="convert it: int(value), v.cast(ds.i32)",
        )

    def bind(
        self,
        args: Iterable[Any],
        kwargs: Mapping[str, object],
        error: Callable[[str, str], Exception],
    ) -> dict[str, Any]:
        """Bind the arguments of a call to members; `error` makes the exception from a text and a hint."""
        args = list(args)
        # Shared with kernels, whose errors need another class and place: hence `error`.
        if len(args) > len(self.members):
            raise error(
                f"{self.__name__} has {len(self.members)} member{'s' * (len(self.members) != 1)}, "
                f"{len(args)} values are given",
                f"its members are {', '.join(self.members)}",
            )
        given = dict(zip(self.members, args, strict=False))
        for member, thing in kwargs.items():
            if member not in self.members:
                raise error(f"{self.__name__} has no member {member}", self.advice(member))
            if member in given:
                raise error(f"{self.__name__} gets {member} twice", "give it once")
            given[member] = thing
        return given

    def method_of(self, owner: object, name: str) -> Callable[..., Any] | None:
        """Return a method bound to a struct in Python, or to an element of a field; None: there is none."""
        method = self.methods.get(name)
        if isinstance(method, PyFunc):
            return functools.partial(method.source.function, owner)
        return None if method is None else method.__get__(owner)

    def advice(self, member: str) -> str:
        """Advise what to write instead of a member that does not exist."""
        close = close_to(member, [*self.members, *self.methods])
        return f"did you mean .{close}?" if close else f"its members are {', '.join(self.members)}"

    def field(
        self,
        shape: object = None,
        *,
        name: str = "",
        needs_grad: bool = False,
        layout: object = None,
        needs_dual: bool = False,
        offset: object = None,
    ) -> Any:
        """Make a field of such structs, each member a field of its own (`particles.pos`).

        Args:
            shape: number of elements along each axis; without one it waits to be placed.
            name: for messages.
            needs_grad: whether float members get gradients.
            layout: of the members that are vectors or matrices.
            needs_dual: whether float members get duals, for forward mode.
            offset: the index of the first element, a number for each axis; 0 if left out.

        Example:
            Body = ds.types.struct(pos=ds.math.vec2, mass=ds.f32)
            bodies = Body.field(shape=3, needs_grad=True)
            bodies[0] = Body(mass=0.5)
            print(bodies.mass[0], bodies.pos[0])  # prints: 0.5 [0.0, 0.0]
        """
        return runtime().make_struct_field(
            self, shape, name, needs_grad, layout, needs_dual, offset
        )

    # PEP 560: Python asks an object that stands among the
    # bases of a class, and is no class, for what to inherit.
    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        """Let `class Charged(Particle)` inherit from a class with these members and methods."""
        # A type of `ds.types.struct` gets a class on demand,
        # so that `dataclass` finds its members in the MRO.
        if self.made_of is None:
            self.made_of = type(self.__name__, (), {"__annotations__": dict(self.members)})
        return (self.made_of,)

    def __reduce__(self) -> Any:
        # A type made of a class is pickled by name. A nameless one
        # is pickled by its members, which identify it (`_nameless`).
        if "__qualname__" in vars(self):
            return super().__reduce__()
        return struct_type, (self.__name__, self.members, self.methods)

    def in_words(self) -> str:
        return f"the struct type {self.__name__}"

    def __repr__(self) -> str:
        inner = ", ".join(f"{k}={t!r}" for k, t in self.members.items())
        return f"<struct {self.__name__}: {inner}>"


# Attributes and methods of fields of structs.
_RESERVED = frozenset(
    (
        "shape grad dual name placed fill to_numpy from_numpy to_torch from_torch copy_from keys members "
        "needs_grad needs_dual call_it"
    ).split()
)


@entries()
@checked_methods("to_dict")
class Struct(CompiledByValue, metaclass=PublicNames):
    """A struct in Python: `p.pos`, `p.mass = 2.0`."""

    _public = "to_dict"

    __slots__ = ("_type", "_values")

    def __init__(self, type_: StructType, values: Mapping[str, object]) -> None:
        # Around the class's own __setattr__, which assigns to members.
        object.__setattr__(self, "_type", type_)
        object.__setattr__(self, "_values", values)

    def __getattr__(self, member: str) -> Any:
        try:
            return self._values[member]
        except KeyError:
            method = self._type.method_of(self, member)
            if method is not None:
                return method
            if member in _VIEWS:
                return _VIEWS[member](self)
            known = self._type.members
            raise no_attribute(self.in_words(), member, known, self._type.advice(member)) from None

    def __setattr__(self, member: str, value: object) -> None:
        if member not in self._type.members:
            advice = f"assign to one of its members, {', '.join(self._type.members)}"
            raise no_attribute(self.in_words(), member, self._type.members, advice)
        # The value is converted as the constructor does it.
        self._values[member] = self._type(**{member: value})._values[member]

    def _as_constant(self) -> Any:
        """Return its type and members."""
        return self._type, *self._values.values()

    @staticmethod
    def _describe_constant(*parts: Any) -> str:
        type_, *values = parts
        inner = ", ".join(f"{k}={v!r}" for k, v in zip(type_.members, values, strict=True))
        return f"{type_.__name__}({inner})"

    def to_dict(self, include_methods: bool = False, include_ndim: bool = False) -> dict[str, Any]:
        """Return the members by name.

        Args:
            include_methods: add the methods, as `__struct_methods`.
            include_ndim: add the number of axes of each vector and matrix, as `__matrix_ndim`.

        Example:
            p = ds.Struct(mass=2.0)
            p.mass = 3.0
            print(p.to_dict())  # prints: {'mass': 3.0}
        """
        need_bool(include_methods, "include_methods")
        need_bool(include_ndim, "include_ndim")
        made = dict(self._values)
        if include_methods:
            made["__struct_methods"] = dict(self._type.methods)
        if include_ndim:
            axes = {k: v.ndim for k, v in made.items() if isinstance(v, Matrix)}
            made["__matrix_ndim"] = axes
        return made

    def __dir__(self) -> list[str]:
        return [*self._values, *self._type.methods, "to_dict"]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct):
            return NotImplemented
        # Structs of different types are different, even with equal members.
        return other._type is self._type and all(
            _equal(one, other._values[k]) for k, one in self._values.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return Struct, (self._type, self._values)

    def __copy__(self) -> Struct:
        return Struct(self._type, dict(self._values))

    def __deepcopy__(self, memo: dict[int, Any]) -> Struct:
        return Struct(self._type, {k: copy.deepcopy(v, memo) for k, v in self._values.items()})

    def in_words(self) -> str:
        return f"a {self._type.__name__}"

    def __repr__(self) -> str:
        inner = ", ".join(f"{k}={v!r}" for k, v in self._values.items())
        return f"{self._type.__name__}({inner})"


_VIEWS: dict[str, Callable[[Struct], object]] = {
    "keys": lambda struct: list(struct._values),
    "items": lambda struct: struct._values.items(),
    "entries": lambda struct: dict(struct._values),
    "methods": lambda struct: dict(struct._type.methods),
}
"""Attributes of Taichi's structs, of those that have no member with the name."""


def _equal(a: Any, b: Any) -> bool:
    """Return whether two members are equal; vectors and matrices are compared as a whole."""
    equal = a == b
    return bool(equal.all() if isinstance(equal, Matrix) else equal)


@checked
def dataclass(cls: type) -> StructType:
    """Decorate a class whose annotations are the members of a struct, and its functions methods.

        @ds.dataclass
        class Particle:
            pos: ds.types.vector(3, ds.f32)
            mass: ds.f32

            @ds.func
            def momentum(self, v):
                return self.mass * v

    A method that assigns to members of `self` changes the struct it is called on. One without `@ds.func` is
    called from Python too. A class that inherits
    has the members of its parents first, and their methods; parents are structs or plain classes. With
    `ds.Struct` as a parent, which changes nothing, type checkers know `Particle.field` too.

    Example:
        @ds.dataclass
        class Body:
            pos: ds.types.vector(2, ds.f32)
            mass: ds.f32

        bodies = Body.field(shape=3)
        bodies[0] = Body(pos=[1.0, 2.0], mass=0.5)
        print(bodies[0].pos, bodies.mass[0])  # prints: [1.0, 2.0] 0.5
    """
    if not isinstance(cls, type):
        raise ArgumentError(
            "ds.dataclass decorates a class: the annotations in it are the members of a struct",
            Span.of_caller(),
            hint="write it above a class, or make the type with ds.types.struct(pos=..., mass=ds.f32)",
        )
    members: dict[str, Any] = {}
    methods: dict[str, Func] = {}
    # Parents first, without `object`: members keep the order of their first declaration.
    for part in reversed(cls.__mro__[:-1]):
        if "_diffsim_struct" in vars(part):
            continue  # `class Particle(ds.Struct)`, for type checkers
        members |= _members(part)
        for name, thing in vars(part).items():
            _check_fits(part, name, thing, members)
            # Anything that overrides a method hides it, also if it is no func.
            methods.pop(name, None)
            if isinstance(thing, (Func, types.FunctionType)) and name not in _OF_PYTHON:
                methods[name] = _as_method(thing)
    made = StructType(cls.__name__, members, methods)
    vars(made).update(__module__=cls.__module__, __qualname__=cls.__qualname__, made_of=cls)
    return made


def _members(cls: type) -> dict[str, Any]:
    """Return the types of the members that a class itself declares."""
    try:
        # Of this class alone, not of its parents, and with quoted annotations evaluated.
        return inspect.get_annotations(cls, eval_str=True)
    except NameError as problem:
        itself = problem.name == cls.__name__
        # Types of a function or of a text that `exec` runs are no globals of the class's module.
        names = names_of_caller()
        if not itself and problem.name in names:
            return inspect.get_annotations(cls, eval_str=True, locals={**names, **vars(cls)})
        raise ArgumentError(
            f"a member of {cls.__name__} is a {cls.__name__} itself, without end"
            if itself
            else f"the annotations of {cls.__name__} name {problem.name}, which is not defined",
            Span.of_caller(),
            hint="keep the index of the other one: other: ds.i32"
            if itself
            else "define it before the class, at the top of the file",
        ) from None


def _check_fits(cls: type, name: str, thing: object, members: Mapping[str, object]) -> None:
    """Refuse what can be no part of a struct."""
    special = name.startswith("__") and name.endswith("__")
    if inspect.isfunction(thing) and special and name not in _OF_PYTHON:
        raise ArgumentError(
            f"{cls.__name__}.{name} would never be called: structs are made and computed with by diffsim",
            Span.of_caller(),
            hint="give it a name of its own, and call it by that",
        )
    if name in members and not isinstance(thing, Func):
        raise ArgumentError(
            f"{cls.__name__}.{name} has a default value, which members of structs cannot have",
            Span.of_caller(),
            hint="leave it out: members that are not given are 0",
        )


# Types are compared by identity everywhere, so equal calls of `ds.types.struct` must give one object. Weak:
# a type ends with the last field or struct of it.
_nameless: weakref.WeakValueDictionary[Any, StructType] = weakref.WeakValueDictionary()


def struct_type(
    name: str, members: Mapping[str, object], methods: Mapping[str, Any] | None = None
) -> StructType:
    """Return the nameless struct type with these members: the same one for the same members.

    Args:
        name: for messages.
        members: their types.
        methods: funcs and functions by name.
    """
    made = StructType(name, members, {k: _as_method(f) for k, f in (methods or {}).items()})
    functions = ((k, f.source.function) for k, f in made.methods.items())
    return _nameless.setdefault((name, *made.members.items(), *functions), made)


def _as_method(function: Any) -> Func:
    """Return a func; a plain function becomes one that Python can call as well."""
    if isinstance(function, Func):
        return function
    if not isinstance(function, types.FunctionType):
        raise ArgumentError(
            f"a method of a struct is a function, not {shown(function)}",
            Span.of_caller(),
            hint='write __struct_methods={"area": area}, with a def area(self) above it',
        )
    return UndecoratedFunc(function)


def types_of_tuple(t: Any) -> tuple[Any, ...] | None:
    """Return the types that `(ds.f32, vec3)` or `tuple[ds.f32, vec3]` names; None if it is no tuple."""
    if typing.get_origin(t) is tuple:
        t = typing.get_args(t)
    return tuple(map(as_of_now, t)) if isinstance(t, tuple) and t else None


def nameless_struct(members: Mapping[str, Any]) -> Struct:
    """Make a struct of these values, of a type without a name."""
    return struct_type("struct", {k: _type_of(thing) for k, thing in members.items()})(**members)


def _type_of(thing: Any) -> ScalarType | TensorType | StructType:
    """Return the type of a member with this value: numbers have the default ones."""
    if isinstance(as_of_now(thing), (ScalarType, TensorType, StructType)):
        raise ArgumentError(
            f"ds.Struct takes values, and {shown(thing)} is a type",
            Span.of_caller(),
            hint="types of members make a struct type: ds.types.struct(mass=ds.f32)",
        )
    if isinstance(thing, Struct):
        return thing._type
    if isinstance(thing, (list, tuple, np.ndarray)):
        thing = Matrix(thing)
    if isinstance(thing, Matrix):
        kind, given = thing.entries.dtype.kind, from_numpy(thing.entries.dtype)
        scalar = runtime().default_fp() if kind == "f" else runtime().default_ip()
        return tensor(given if thing.typed and given else scalar, thing.shape)
    if isinstance(thing, (bool, int)):
        return bool_ if isinstance(thing, bool) else runtime().default_ip()
    return runtime().default_fp()
