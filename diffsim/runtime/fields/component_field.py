"""One component of a field of vectors or matrices, under a name of its own: `x.get_scalar_field(0)`.

It shares the field's memory. In kernels `v[i]` is the component of `x[i]`; nothing else there needs to know
of it, so gradients, versions and checks are those of x. From Python it is read and written as a field of
numbers.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import AccessError, FieldError, Span, shown
from diffsim.ir.types import ScalarType
from diffsim.lang.host.field_like import ComponentLike
from diffsim.lang.host.peer_names import OF_FIELDS
from diffsim.lang.host.signatures import checked_methods
from diffsim.lang.host.unsupported import no_assignment, no_attribute
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.conversions import check_copy, checked_array, index_of, scalar_of
from diffsim.runtime.fields.protocols import FieldProtocols
from diffsim.runtime.session import session
from diffsim.runtime.variable_names import name_of
from diffsim.tracebacks import entries

if TYPE_CHECKING:
    from diffsim.ir.nodes import Mem
    from diffsim.runtime.fields.field import Field

_made: weakref.WeakKeyDictionary[Field, dict[tuple[int, ...], Any]] = weakref.WeakKeyDictionary()
"""The components of each field that are in use: there is one object of each, as kernels compare objects."""


def component_of(f: Field, indices: tuple[Any, ...]) -> ComponentField:
    """Return a component of a field; of a matrix that of the first column if one index is given."""
    where = Span.of_caller()
    if not f.element:
        raise FieldError(
            f"the elements of {f.name} are numbers, and have no components",
            where,
            hint=f"use {f.name} itself",
        )
    given = indices + (0,) * (2 - len(indices))
    ends = (*f.element, 1)[:2]
    if not indices or len(given) != 2 or not all(map(_is_index, given, ends)):
        last = ", ".join(str(n - 1) for n in f.element)
        raise AccessError(
            f"an element of {f.name} has no component {', '.join(map(shown, indices)) or 'without an index'}",
            where,
            hint=f"write {f.name}.get_scalar_field({last}) for the last one",
        )
    component = tuple(map(int, given[: len(f.element)]))
    kept = _made.setdefault(f, {})
    found = kept.get(component, lambda: None)()
    if found is None:
        found = ComponentField(f, component)
        kept[component] = weakref.ref(found)
    return found


def _is_index(k: Any, n: int) -> bool:
    whole = isinstance(k, (int, np.integer)) and not isinstance(k, bool)
    return whole and bool(0 <= k < n)


@entries(but="__init__ call_it in_words fields")
@checked_methods("fill to_numpy from_numpy copy_from")
class ComponentField(FieldProtocols, ComponentLike, metaclass=PublicNames):
    """A component of a field of vectors or matrices; made by `x.get_scalar_field(0)`.

    Attributes:
        base: the field that it is a component of.
        component: its index in an element of that.
    """

    _public = (
        "copy_from dtype dual fill from_numpy grad name needs_dual needs_grad parent shape "
        "snode to_numpy"
    )
    element = ()  # of an element that is a number

    def __init__(self, base: Field, component: tuple[int, ...]) -> None:
        self.__dict__.update(_base=base, _component=component)

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self.in_words(), name, self._public.split(), OF_FIELDS.get(name, ""))

    def __setattr__(self, name: str, value: object) -> None:
        raise no_assignment(
            self.in_words(), name, (), "write to its elements: v[i] = value, v.fill(value)"
        )

    _base: Field
    _component: tuple[int, ...]

    @property
    def base(self) -> Field:
        return self._base

    @property
    def component(self) -> tuple[int, ...]:
        return self._component

    # ---- what the field knows

    @property
    def _mem(self) -> Mem:
        return self._base._mem

    @property
    def dtype(self) -> ScalarType:
        """The type of its numbers."""
        return self._base.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
        return self._base.shape

    @property
    def origin(self) -> tuple[int, ...]:
        """The index of its first element along each axis."""
        return self._base.origin

    @property
    def placed(self) -> bool:
        """Whether the field has memory."""
        return self._base.placed

    @property
    def destroyed(self) -> bool:  # type: ignore[override]
        """Whether the field was given up with its layout tree."""
        return self._base.destroyed

    @property
    def node(self) -> Any:
        return self._base.node

    @property
    def needs_grad(self) -> bool:
        """Whether the field was declared with a gradient."""
        return self._base.needs_grad

    @property
    def grad(self) -> ComponentField | None:
        """The component of the field's gradient; None if it has none."""
        grad = self._base.grad
        return None if grad is None else component_of(grad, self._component)

    @property
    def needs_dual(self) -> bool:
        """Whether the field was declared with tangents, for forward mode."""
        return self._base.needs_dual

    @property
    def dual(self) -> ComponentField:
        """The component of the field's tangent."""
        return component_of(self._base.dual, self._component)

    @property
    def name(self) -> str:
        """The component of an element, as a program writes it."""
        return self._called()

    def _called(self) -> str:
        return f"{self._base._called()}.get_scalar_field({', '.join(map(str, self._component))})"

    def in_words(self) -> str:
        return f"component {', '.join(map(str, self._component))} of {self._base.in_words()}"

    def number_hint(self) -> str:
        return f"name an element: {self._sample()}"

    def _sample(self) -> str:
        return self._base._sample().replace(self._base._called(), self._called(), 1)

    def fields(self) -> list[Field]:
        return [self._base]

    def call_it(self, name: str) -> None:
        """Give the field its own name, of which messages speak."""
        found = name_of(self._base)
        if found:
            self._base.call_it(found)

    def __repr__(self) -> str:
        return f"<{self.in_words()}: {self.dtype}, shape {self.shape}>"

    def __str__(self) -> str:
        return str(self.to_numpy())

    def _is_number(self) -> bool:
        return self.shape == ()

    def __reduce_ex__(self, protocol: object) -> Any:
        return component_of, (self._base, self._component)

    # ---- elements and whole contents

    def __getitem__(self, key: object) -> Any:
        index_of(self._base, key)
        return self._base[key][self._component]

    def __setitem__(self, key: object, value: object) -> None:
        index_of(self._base, key)
        self._base[key][self._component] = value

    def to_numpy(self, dtype: Any = None) -> np.ndarray:
        """Return a copy: an array of the field's shape."""
        made: np.ndarray = self._of(self._base.to_numpy(dtype)).copy()
        return made

    def _of(self, elements: np.ndarray) -> Any:
        """View the component in an array of the field's elements."""
        at: Any = (..., *self._component)
        return elements[at]

    def fill(self, val: object) -> None:
        """Set the component of all elements to one number."""
        self._set(scalar_of(self._typed(), val))

    def from_numpy(self, arr: object) -> None:
        """Copy an array of the field's shape into the component."""
        self._set(checked_array(self._typed(), arr, self.shape, lambda: self.name))

    def copy_from(self, other: Any) -> None:
        """Copy a field of numbers of the same shape."""
        check_copy(self._typed(), other)
        self._set(other.to_numpy())

    def _typed(self) -> Any:
        # The checks of fields of numbers ask for what both have: name, shape and type.
        return self

    def _set(self, values: Any) -> None:
        base = self._base
        if session.recorders and session.tape:
            raise FieldError(
                f"{self.in_words()} cannot be set by itself while {session.tape.work.words}: a tape knows "
                "whole elements",
                Span.of_caller(),
                hint="set it in a kernel, or before the block",
            )
        whole = base.to_numpy()
        self._of(whole)[...] = values
        base.from_numpy(whole)
