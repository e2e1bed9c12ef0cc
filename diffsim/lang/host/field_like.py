"""The interface of fields that the language relies on; the runtime implements it.

Base classes and not `typing.Protocol`s, so that `is_field` examines the class of an object only. An
object of the program may answer `hasattr` with anything, or run code for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from diffsim.ir.nodes import Mem
from diffsim.ir.sparse import Level, Place
from diffsim.ir.types import ScalarType


class FieldLike:
    """Memory that kernels address by an index: a field, or an array argument under translation.

    Invariant: `_mem` describes the memory in IR, and is the same object wherever the field is used in one
    kernel. A field that is not placed yet raises a FieldError when asked for it.
    """

    __slots__ = ()
    destroyed = False
    """Whether it was given up with its layout tree."""
    # Declared to the type checker alone: properties here would hide the attributes of subclasses.
    if TYPE_CHECKING:  # attributes in some subclasses, properties in others

        @property
        def _mem(self) -> Mem: ...

        @property
        def shape(self) -> tuple[Any, ...]:
            """The number of elements along each axis; of an array argument a value known at run time."""

        @property
        def dtype(self) -> ScalarType: ...

        @property
        def grad(self) -> FieldLike | None: ...

        @property
        def needs_dual(self) -> bool: ...

    @property
    def placed(self) -> bool:
        """Whether it has memory; an array argument always has."""
        return True

    def call_it(self, name: str) -> None:
        """Adopt the name of the variable that it was found under; an array argument has its parameter's."""


class StructFieldLike:
    """A field of structs: one field per member, all of the same shape.

    Invariant: `_struct` has the keys of `type.members`, in the same order.
    """

    __slots__ = ()
    if TYPE_CHECKING:

        @property
        def _struct(self) -> Mapping[str, AnyField]: ...

        @property
        def type(self) -> Any:
            """Its `StructType`."""

        @property
        def name(self) -> str: ...

        @property
        def shape(self) -> tuple[int, ...]: ...

        @property
        def origin(self) -> tuple[int, ...]: ...

        @property
        def grad(self) -> StructFieldLike | None: ...

        @property
        def placed(self) -> bool: ...

        @property
        def destroyed(self) -> bool: ...

        def call_it(self, name: str) -> None: ...

        def fields(self) -> list[Any]:
            """Return the fields of all members, also those of structs inside."""


class ComponentLike:
    """One component of a field of vectors or matrices, which is indexed as a field of numbers.

    It has no memory of its own: kernels load and store the component of the field's element, so that all they
    know of that memory holds here too.
    """

    __slots__ = ()
    if TYPE_CHECKING:

        @property
        def base(self) -> FieldLike:
            """The field."""

        @property
        def component(self) -> tuple[int, ...]:
            """Its index in an element: one number of a vector, two of a matrix."""

        @property
        def _mem(self) -> Mem:
            """The memory of the field."""

        @property
        def shape(self) -> tuple[Any, ...]: ...

        @property
        def grad(self) -> ComponentLike | None: ...

        @property
        def needs_dual(self) -> bool: ...

        @property
        def placed(self) -> bool: ...

        @property
        def destroyed(self) -> bool: ...

        def call_it(self, name: str) -> None: ...


class NodeLike:
    """A node of a layout tree, whose cells kernels loop over, activate and ask about.

    Invariant: `cell_place` is where its cells are, None where all of them exist; it is found from what does
    not change after the node was made.
    """

    if TYPE_CHECKING:
        kind: str

        @property
        def axes(self) -> tuple[int, ...]: ...

        @property
        def shape(self) -> tuple[int, ...]: ...

        @property
        def cell_place(self) -> Place | None: ...

        def sparse_below(self) -> list[Level]:
            """Return the sparse levels below this node."""

        def placed_fields(self) -> list[FieldLike]:
            """Return the fields placed in this very node."""

        def memories(self) -> list[tuple[Mem, tuple[int, ...]]]:
            """Return the memories of the fields placed here or below, with the numbers of their axes."""


# They have no common base: a field of structs and a component have no memory of their own.
AnyField: TypeAlias = FieldLike | StructFieldLike | ComponentLike


def is_field(thing: object) -> TypeGuard[FieldLike]:
    """Return whether the object is a field or an array argument, by its class alone."""
    return issubclass(type(thing), FieldLike)


def is_struct_field(thing: object) -> TypeGuard[StructFieldLike]:
    """Return whether the object is a field of structs, by its class alone."""
    return issubclass(type(thing), StructFieldLike)


def is_component(thing: object) -> TypeGuard[ComponentLike]:
    """Return whether the object is a component of a field, by its class alone."""
    return issubclass(type(thing), ComponentLike)


def is_node(thing: object) -> TypeGuard[NodeLike]:
    """Return whether the object is a node of a layout tree, by its class alone."""
    return issubclass(type(thing), NodeLike)


def is_any_field(thing: object) -> TypeGuard[AnyField]:
    """Return whether the object is a field of any kind."""
    return issubclass(type(thing), (FieldLike, StructFieldLike, ComponentLike))
