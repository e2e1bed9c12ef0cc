"""Layout trees of their own, whose fields can be given up together: `ds.FieldsBuilder`."""

from __future__ import annotations

from diffsim.errors import FieldError, Span
from diffsim.lang.host.signatures import checked_methods
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.field import Field
from diffsim.runtime.layouts.layout_tree import Node
from diffsim.runtime.session import session
from diffsim.runtime.threads import members
from diffsim.tracebacks import entries


@entries("finalize")
@checked_methods("finalize")
class FieldsBuilder(Node, metaclass=PublicNames):
    """A layout tree beside `ds.root`: `fb.dense(ds.i, n).place(x)`, then `tree = fb.finalize()`."""

    _public = "finalize"

    def __init__(self) -> None:
        super().__init__(None, {}, "root")

    def finalize(self, raise_warning: bool = True) -> FieldsTree:
        """Close the tree, and return it; `raise_warning` is taken as Taichi's programs give it."""
        self.check_open()
        self.finalized = True
        return FieldsTree(self)

    def __repr__(self) -> str:
        return "ds.FieldsBuilder()"


@entries("destroy")
class FieldsTree:
    """A tree that is complete; `destroy` gives its fields up."""

    def __init__(self, root: FieldsBuilder) -> None:
        self._root = root
        self._destroyed = False

    def destroy(self) -> None:
        """Give up all fields of the tree: using one of them is an error from now on."""
        if self._destroyed:
            raise FieldError(
                "this tree of fields is destroyed already",
                Span.of_caller(),
                hint="destroy each tree once",
            )
        self._destroyed = True
        for f in members(self._root.fields):
            for one in (f.adjoint, *f.duals.values(), f):
                if one is not None and one.placed:
                    _give_up(one)
            session.with_grad.discard(f)
            session.with_dual.discard(f)
        session.duals += 1
        # Kernels that use the fields are translated again, and find that they have no place.
        for forget in session.at_new_grad:
            forget()


def _give_up(f: Field) -> None:
    """Take a field its place; the memory stays for tapes that have recorded it, until the field is gone."""
    f._shared.append(f.storage)
    f._shape = None
    f.destroyed = True
    for name in ("_mem", "_flat", "_storage", "_strides", "_step"):
        del f.__dict__[name]
