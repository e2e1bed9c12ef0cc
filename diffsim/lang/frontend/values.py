"""The domain of the translation: run-time values of the kernel, and objects of Python.

An expression evaluates to an `Evaluated`. A name is bound to a `Binding`, which may also be a local that
lives in memory, a local struct, or a name without a value. Partial evaluation rests on this binding-time
division: an object of Python is known at compile time and folded, a `Value` is computed by the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from diffsim.ir.nodes import Mem, Value
from diffsim.lang.host.field_like import is_any_field
from diffsim.lang.types.structs import StructType

PythonObject: TypeAlias = Any
"""Anything known at compile time: a number, a list, a field, a function, a module, an object of the program.

The type checker cannot tell such an object from the other members of the unions below; `isinstance` does.
"""


class Undefined:
    """The binding of a name that has a value on some paths only, or values of two types; `why` explains it.

    Invariant: it never leaves the environment; using such a name is an error, `error` where one is known.
    """

    __slots__ = ("error", "why")

    def __init__(self, why: str, error: Exception | None = None) -> None:
        self.why = why
        self.error = error


class KernelLocal:
    """A kernel-level local that lives in a temporary, because several tasks access it.

    Invariant: `mem` has rank 0 and the type that the local was given first.
    """

    __slots__ = ("mem",)

    def __init__(self, mem: Mem) -> None:
        self.mem = mem


class StructValue:
    """A struct as the value of an expression.

    Invariant: `members` has the keys of `type.members`; a member that is a struct is a StructValue.
    """

    __slots__ = ("members", "type")

    def __init__(self, type_: StructType, members: Mapping[str, Any]) -> None:
        self.type = type_
        self.members = members

    def in_words(self) -> str:
        return f"a {self.type.__name__}"

    def number_hint(self) -> str:
        """Advise what to write where a number is wanted."""
        return f"name a member: {', '.join(f'.{m}' for m in self.members)}"


class StructVar:
    """A local that is a struct; its members are bound to names of their own, "p.member".

    Two are equal if they are of one type: merging branches and loops compare the members' bindings.
    """

    __slots__ = ("type",)

    def __init__(self, type_: StructType) -> None:
        self.type = type_

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructVar) and other.type is self.type

    def __hash__(self) -> int:
        return id(self.type)

    def in_words(self) -> str:
        return f"a {self.type.__name__}"


class BoundPlace:
    """The binding of a `ds.template()` parameter to an element of a field: a name for the place in memory."""

    __slots__ = ()

    def load(self, cx: Any, node: Any) -> Any:
        """Load what is there."""
        raise NotImplementedError


class ElementPlace(BoundPlace):
    """A place of a number, vector or matrix, or of a component of one."""

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place

    def load(self, cx: Any, node: Any) -> Any:
        return cx.builder.load(*self.place)


class KernelDict(dict[Any, Any]):
    """A dictionary that a kernel makes; its keys are known at compile time, and it does not change."""

    def in_words(self) -> str:
        return "a dictionary"


class KernelContainer:
    """A kernel-level list, tuple or dictionary of which several tasks read run-time values.

    Invariant: in `form`, of the same structure, each of these values is a KernelLocal.
    """

    __slots__ = ("form",)

    def __init__(self, form: Any) -> None:
        self.form = form


def parts_of(thing: Any) -> list[Any] | None:
    """Return the parts of a struct, list, tuple or dictionary of the kernel in order; None for others."""
    if isinstance(thing, StructValue):
        return list(thing.members.values())
    if isinstance(thing, KernelDict):
        return list(thing.values())
    return list(thing) if isinstance(thing, (list, tuple)) else None


def of_parts(form: Any, parts: Iterable[Any]) -> Any:
    """Rebuild such a thing of other parts; the inverse of `parts_of`."""
    if isinstance(form, StructValue):
        return StructValue(form.type, dict(zip(form.members, parts, strict=True)))
    if isinstance(form, KernelDict):
        return KernelDict(zip(form, parts, strict=True))
    return type(form)(parts)


def holds_value(thing: Any) -> bool:
    """Return whether a run-time value is among the parts of an operand, or it is one."""
    parts = parts_of(thing)
    return isinstance(thing, Value) if parts is None else any(map(holds_value, parts))


def holds_fields(thing: Any) -> bool:
    """Return whether it is a list, tuple or dictionary of fields alone, or of such things."""
    if not isinstance(thing, (list, tuple, dict)):
        return False
    parts = thing.values() if isinstance(thing, dict) else thing
    return bool(thing) and all(is_any_field(p) or holds_fields(p) for p in parts)


# For readers: `PythonObject` is Any, so a type checker sees no difference between these.
Evaluated: TypeAlias = Value | StructValue | PythonObject
"""The value of an expression."""

Binding: TypeAlias = (
    Value | KernelLocal | KernelContainer | BoundPlace | StructVar | Undefined | PythonObject
)
"""The binding of a name."""

Environment: TypeAlias = dict[str, Binding]
"""The bindings of a function under translation; names of its own begin with "%", members are "p.member"."""

Place: TypeAlias = tuple[Mem, tuple[Value, ...]]
"""A memory and the index of an element in it, or of a component: then the component's index follows."""


def flatten(cx: Any, result: Evaluated, node: Any) -> list[Any]:
    """Return the values that a result consists of, in order."""
    parts = parts_of(result)
    if parts is None:
        return [cx.value(result, node, "the result")]
    return [value for one in parts for value in flatten(cx, one, node)]


def count(result: Evaluated) -> int:
    """Count the values of a flattened result."""
    parts = parts_of(result)
    return 1 if parts is None else sum(map(count, parts))


def unflatten(form: object, values: Iterator[Any]) -> Evaluated:
    """Rebuild a result of this structure from values; the inverse of `flatten`."""
    parts = parts_of(form)
    if parts is None:
        return next(values)
    return of_parts(form, [unflatten(one, values) for one in parts])


def structure(result: Evaluated) -> Evaluated:
    """Return the structure that two results must share to be merged."""
    if isinstance(result, StructValue):
        return result.type
    if isinstance(result, KernelDict):
        return {key: structure(one) for key, one in result.items()}
    if isinstance(result, (list, tuple)):
        return [structure(one) for one in result]
    return None
