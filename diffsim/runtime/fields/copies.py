"""Fields copied by `copy` and `deepcopy`, and pickled: fields of their own, with all that a program can see.

That is type, shape, order of axes, offset, values, whether there is a gradient and a dual, and what these
hold. A field in a dense layout tree becomes one with a shape, in the same order. One in a sparse tree is
below a copy of the nodes around it, with the same active cells; fields that are copied together share it. On
a tape a copy is one that is differentiated, as `ds.clone`; its gradient begins at 0. Kernels that were
compiled for a field use that field: an object with kernels gets kernels of its own with its copy.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from diffsim.lang.host.copying import refuse
from diffsim.runtime.fields.adjoints import is_followed
from diffsim.runtime.fields.contents import write_nonzeros
from diffsim.runtime.memory.nonzeros import Nonzeros, nonzeros
from diffsim.runtime.session import session
from diffsim.runtime.threads import members
from diffsim.tracebacks import entries

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field


def like(f: Field, *, name: str = "", needs_grad: bool, needs_dual: bool) -> Field:
    """Return a new field of the same type and layout, all zeros; without a place if `f` has none."""
    form = {"dtype": f.dtype, "element": f.element, "name": name, "soa": f.soa, "kind": f.kind}
    # Its class is not imported, as it inherits from what is defined here.
    made = _unplaced(type(f), form, (needs_grad, needs_dual))
    if f.placed:
        made.place(f.shape, f._order, origin=f.origin)
    return made


def _unplaced(kind: type[Field], form: dict[str, Any], declared: tuple[bool, bool]) -> Field:
    """Return a field without memory, with a gradient and a dual if these are declared."""
    made = kind(**form)
    # Before `place`, which gives all their memory in one layout.
    if declared[0]:
        made.add_grad()
    if declared[1]:
        made.add_dual()
    return made


@entries("__copy__ __deepcopy__ __reduce_ex__")
class FieldCopies:
    """The part of a field that copies and pickles it."""

    def __copy__(self: Any) -> Field:
        return copy.deepcopy(self)

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Field:
        owner, what = _owner_of(self)
        if owner is not None:
            found: Field = getattr(copy.deepcopy(owner, memo), what)
            return found
        _check_copied(self)
        if self.tree is not None:
            return _in_copied_tree(self, memo)
        made = like(self, needs_grad=self.declares_grad, needs_dual=self.declares_dual)
        for mine, its in _derivatives(made, self):
            memo[id(its)] = mine
        if not self.placed:
            return made
        made.copy_from(self)
        if not session.recorders:
            for mine, its in _derivatives(made, self):
                if its.versions.dirty:
                    mine.copy_from(its)
        return made

    def __reduce_ex__(self: Any, protocol: object) -> Any:
        owner, what = _owner_of(self)
        if owner is not None:
            return getattr, (owner, what)
        _check_copied(self)
        if session.recorders and is_followed(self):
            raise refuse(
                self.in_words(),
                "a tape records, and what is pickled would be a constant",
                "pickle it after the block; ds.clone(x) is a copy that the tape follows",
            )
        form = {
            "dtype": self.dtype,
            "element": self.element,
            "name": self.given_name,
            "soa": self.soa,
            "kind": self.kind,
        }
        declared = self.declares_grad, self.declares_dual
        fields = [self, *(its for _, its in _derivatives(self, self))]
        if self.tree is not None:
            found = [nonzeros(f.storage) for f in fields]
            return _restored_in_tree, (type(self), form, self.node, self.origin, declared, found)
        place = (self.shape, self._order, self.origin) if self.placed else None
        arrays = [f.to_numpy() for f in fields] if self.placed else []
        return _restored, (type(self), form, place, declared, arrays)


def _restored(
    kind: type[Field],
    form: dict[str, Any],
    place: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None,
    declared: tuple[bool, bool],
    arrays: list[Any],
) -> Field:
    """Make the field that was pickled."""
    made = _unplaced(kind, form, declared)
    if place is not None:
        shape, order, origin = place
        made.place(shape, order, origin=origin)
        for f, array in zip((made, *(f for f, _ in _derivatives(made, made))), arrays, strict=True):
            f.from_numpy(array)
    return made


def _restored_in_tree(
    kind: type[Field],
    form: dict[str, Any],
    node: Any,
    origin: tuple[int, ...],
    declared: tuple[bool, bool],
    found: list[Nonzeros],
) -> Field:
    """Make the field of a sparse tree that was pickled, or is copied, below a copy of its node."""
    made = _unplaced(kind, form, declared)
    node.place(made, offset=origin if any(origin) else None)
    for f, values in zip((made, *(f for f, _ in _derivatives(made, made))), found, strict=True):
        write_nonzeros(f, values)
    return made


def _in_copied_tree(f: Field, memo: dict[int, Any]) -> Field:
    """Return a copy of a field of a sparse tree, below a copy of its node."""
    if session.recorders:
        raise refuse(
            f.in_words(),
            "a tape records, and it is in a sparse tree",
            "copy it before the block; ds.clone(x) is a dense copy that the tape follows",
        )
    make, (kind, form, node, *rest) = f.__reduce_ex__(2)
    # Copied once for all fields in it.
    made: Field = make(kind, form, copy.deepcopy(node, memo), *rest)
    made.given_name = ""
    for mine, its in _derivatives(made, f):
        memo[id(its)] = mine
    return made


def _derivatives(made: Field, f: Field) -> list[tuple[Field, Field]]:
    """Return pairs of the declared gradients and duals of two fields that are alike."""
    found = []
    if f.declares_grad and f.adjoint is not None and made.adjoint is not None:
        found.append((made.adjoint, f.adjoint))
    if f.declares_dual:
        found.append((made.duals[1], f.duals[1]))
    return found


def _owner_of(f: Field) -> tuple[Field | None, str]:
    """Return the field that this one is the gradient or dual of, and which of them."""
    if not (f.is_grad or f.is_dual):
        return None, ""
    what = "grad" if f.is_grad else "dual"
    for owner in members(session.with_grad if f.is_grad else session.with_dual):
        if any(its is f for _, its in _derivatives(owner, owner)):
            return owner, what
    return None, ""


def _check_copied(f: Field) -> None:
    if f.destroyed:
        f._not_placed()
    if f.is_grad or f.is_dual:
        raise refuse(
            f.in_words(),
            "the field that it belongs to is gone",
            "ds.clone(x) makes a field of its own, x.to_numpy() an array",
        )
    if type(f).__module__ != FieldCopies.__module__.replace("copies", "field"):
        raise refuse(
            f.in_words(),
            f"the attributes that the class {type(f).__name__} adds are not known",
            "give the class a method __deepcopy__, or __reduce__ for pickle",
        )
