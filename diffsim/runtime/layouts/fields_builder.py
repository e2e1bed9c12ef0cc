"""Layout trees of their own, whose fields can be given up together: `ds.FieldsBuilder`."""

from __future__ import annotations

from typing import Any

from diffsim.errors import FieldError, Span
from diffsim.lang.host.signatures import checked_methods
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.field import Field
from diffsim.runtime.layouts.layout_tree import Axes, Node
from diffsim.runtime.session import session
from diffsim.runtime.threads import members
from diffsim.tracebacks import entries


@entries("finalize")
@checked_methods("__init__ finalize dense pointer bitmasked dynamic")
class FieldsBuilder(Node, metaclass=PublicNames):
    """A layout tree beside `ds.root`: `fb.dense(ds.i, n).place(x)`, then `tree = fb.finalize()`.

    Example:
        builder = ds.FieldsBuilder()
        x = ds.field(ds.f32)
        builder.dense(ds.i, 8).place(x)
        tree = builder.finalize()
        print(x.shape)  # prints: (8,)
        tree.destroy()  # frees the memory of x
    """

    _public = "empty finalize root"

    def __init__(self) -> None:
        super().__init__(None, {}, "root")

    def __reduce_ex__(self, protocol: object) -> Any:
        """Copy with a sparse tree: into one that is not finalized."""
        super().__reduce_ex__(protocol)
        return FieldsBuilder, ()

    # Taichi's programs write dense(indices=...) of a builder, and dense(axes=...) of other nodes.

    def dense(self, indices: Axes, dimensions: object) -> Node:
        """Divide each element into a dense array; see `ds.root.dense`.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.dense(ds.ij, (4, 8)).place(x)
            builder.finalize()
            print(x.shape)  # prints: (4, 8)
        """
        return super().dense(indices, dimensions)

    def pointer(self, indices: Axes, dimensions: object) -> Node:
        """Divide each element into an array whose cells are active or not.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.pointer(ds.i, 4).dense(ds.i, 8).place(x)
            builder.finalize()
            x[20] = 1.0  # activates block 2
            print(x[20], x[0])  # prints: 1.0 0.0
        """
        return super().pointer(indices, dimensions)

    def bitmasked(self, indices: Axes, dimensions: object) -> Node:
        """Divide each element into an array whose cells are active or not.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.bitmasked(ds.i, 32).place(x)
            builder.finalize()
            x[20] = 1.0  # activates this element
            print(x[20], x[0])  # prints: 1.0 0.0
        """
        return super().bitmasked(indices, dimensions)

    def dynamic(self, index: Axes, dimension: object, chunk_size: object = None) -> Node:
        """Divide each element into a list, whose length changes; see `ds.root.dynamic`.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.i32)
            builder.dense(ds.i, 4).dynamic(ds.j, 8).place(x)
            builder.finalize()
            x[1, 0] = 7  # the list of cell 1 has an element now
            print(x[1, 0], x.shape)  # prints: 7 (4, 8)
        """
        return super().dynamic(index, dimension, chunk_size)

    @property
    def root(self) -> Node:
        """The outermost node: the builder itself.

        Example:
            builder = ds.FieldsBuilder()
            print(builder.root is builder)  # prints: True
        """
        return self

    @property
    def empty(self) -> bool:
        """Whether nothing was added yet.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            print(builder.empty)  # prints: True
            builder.dense(ds.i, 8).place(x)
            print(builder.empty)  # prints: False
        """
        return not self.below and not self.fields

    def finalize(self, raise_warning: bool = True) -> FieldsTree:
        """Close the tree, and return it; `raise_warning` is taken as Taichi's programs give it.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.dense(ds.i, 8).place(x)
            tree = builder.finalize()
            print(builder.finalized)  # prints: True
        """
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

    @property
    def destroyed(self) -> bool:
        """Whether the fields were given up.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.dense(ds.i, 8).place(x)
            tree = builder.finalize()
            print(tree.destroyed)  # prints: False
            tree.destroy()
            print(tree.destroyed)  # prints: True
        """
        return self._destroyed

    def destroy(self) -> None:
        """Give up all fields of the tree: using one of them is an error from now on.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.dense(ds.i, 8).place(x)
            tree = builder.finalize()
            tree.destroy()
            try:
                x[0] = 1.0
            except ds.FieldError as error:
                print("destroyed" in error.message)  # prints: True
        """
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
