"""Layout trees, dense and sparse: `ds.root.pointer(ds.ij, 64).dense(ds.ij, 8).place(x)`.

Nested nodes multiply the sizes of axes they share (`dense(i, 4).dense(i, 8)` has 32 elements along i), and
the order of the axes in the tree is their order in memory, slowest first. Each field has a block of memory of
its own, which is freed with its last reference.

The cells of sparse nodes (pointer, hash, bitmasked, dynamic) are active or not. A field below one has the
addresses of a dense field, and takes memory for the cells that are written (docs/adr/0057).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

from diffsim.errors import ArgumentError, FieldError, Span, shown
from diffsim.ir.nodes import Mem
from diffsim.ir.sparse import Level, Place
from diffsim.lang.host.copying import refuse
from diffsim.lang.host.field_like import NodeLike
from diffsim.lang.host.peer_names import OF_NODES
from diffsim.lang.host.signatures import checked, checked_methods, need_count
from diffsim.lang.host.unsupported import Explained
from diffsim.lang.types.descriptions import describe
from diffsim.public_names import PublicNames, with_example
from diffsim.runtime.fields.constructors import checked_offset, checked_shape
from diffsim.runtime.fields.contents import caller
from diffsim.runtime.fields.display import summary
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField
from diffsim.runtime.layouts.cells import Cells
from diffsim.runtime.memory.nonzeros import Nonzeros, nonzeros
from diffsim.runtime.memory.storage import Storage
from diffsim.runtime.session import session
from diffsim.runtime.threads import members
from diffsim.tracebacks import entries

SPARSE = ("pointer", "hash", "bitmasked", "dynamic")
"""The kinds of nodes whose cells are active or not."""


class Axes(metaclass=PublicNames):
    """One or several axes: `ds.i`, `ds.ij`, `ds.axes(0, 1)`."""

    _public = ""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def _description(self) -> str:
        """Say what `help(ds.ij)` shows."""
        which = " and ".join(map(str, self.numbers))
        word = "Axes" if len(self.numbers) > 1 else "Axis"
        example = f"""
            x = ds.field(ds.f32)
            ds.root.dense({self!r}, 8).place(x)
            print(x.shape)  # prints: {(8,) * len(self.numbers)}
        """
        return with_example(f"{word} {which} of a layout.", example)

    def __repr__(self) -> str:
        if max(self.numbers) < 4:
            return "ds." + "".join("ijkl"[n] for n in self.numbers)
        return f"ds.axes({', '.join(map(str, self.numbers))})"


i, j, k, l = Axes(0), Axes(1), Axes(2), Axes(3)  # noqa: E741 - Taichi's names
ij, ik, il, jk, jl, kl = Axes(0, 1), Axes(0, 2), Axes(0, 3), Axes(1, 2), Axes(1, 3), Axes(2, 3)
ijk, ijl, ikl, jkl = Axes(0, 1, 2), Axes(0, 1, 3), Axes(0, 2, 3), Axes(1, 2, 3)
ijkl = Axes(0, 1, 2, 3)


@checked
def axes(*numbers: int) -> Axes:
    """Return the axes with these numbers, 0 the first.

    Example:
        x = ds.field(ds.f32)
        ds.root.dense(ds.axes(0, 1), (4, 8)).place(x)
        print(x.shape)  # prints: (4, 8)
    """
    right = all(isinstance(n, int) and 0 <= n < 8 for n in numbers)
    if not numbers or not right or len(set(numbers)) != len(numbers):
        raise FieldError(
            f"axes are different numbers from 0 to 7, not {shown(numbers)}",
            Span.of_caller(),
            "write ds.ij, or ds.axes(0, 1)",
        )
    return Axes(*numbers)


@entries("__copy__ __reduce_ex__")
@checked_methods(
    "dense pointer hash bitmasked dynamic lazy_grad lazy_dual deactivate_all parent place"
)
class Node(Explained, NodeLike, metaclass=PublicNames):
    """A node of the tree: some axes with their sizes, inside another node.

    Attributes:
        kind: "root", "dense", or the kind of a sparse node.
        cells: which cells are active: of the node itself if it is sparse, else of the innermost sparse node
            around it; None: there is none.
        fields: those placed here or below: a tree does not keep them.
    """

    _public = (
        "bitmasked bytes_in_use deactivate_all dense dynamic fields finalized lazy_dual "
        "lazy_grad parent place pointer shape"
    )

    _words = "a node of a layout tree"
    _advice = OF_NODES

    finalized = False
    """Whether the whole tree is complete, of its root."""

    def __init__(
        self, above: Node | None, sizes: dict[int, int], kind: str = "dense", chunk: int = 0
    ) -> None:
        self.above = above
        self.sizes = sizes
        self.kind = kind
        self.chunk = chunk
        self.fields: weakref.WeakSet[Field] = weakref.WeakSet()
        if above is None:
            _trees.add(self)
        self.below: list[weakref.ref[Node]] = []
        self.cells: Cells | None = None if above is None else above.cells
        if kind in SPARSE:
            assert above is not None
            self.cells = self._new_cells(above)
        if above is not None:
            above.check_open()
            above.below.append(weakref.ref(self))

    def _new_cells(self, above: Node) -> Cells:
        """Make the cells of a sparse node."""
        totals = self._totals()
        axes = tuple(sorted(totals))
        shape = tuple(totals[a] for a in axes)
        if above.cells is not None and above.cells.level.list_axis is not None:
            raise FieldError(
                f"a {self.kind} cannot be inside a dynamic",
                Span.of_caller(),
                hint="put the dynamic innermost: root.pointer(...).dynamic(...)",
            )
        if math.prod(shape) > 2**31 - 1:
            raise FieldError(
                f"{shown(shape)} cells of one sparse node are too many: at most 2**31",
                Span.of_caller(),
                hint="give it fewer and larger cells: .pointer(ds.ijk, n).dense(ds.ijk, 8)",
            )
        at = None
        if self.kind == "dynamic":
            (axis,) = self.sizes
            at = axes.index(axis)
        return Cells(self.kind, axes, shape, above.cells, at, self.chunk)

    def __copy__(self) -> Any:
        raise _no_copy()

    def __reduce_ex__(self, protocol: object) -> Any:
        """Copy a sparse tree with its fields (`deepcopy`, `pickle`); refuse others, which fields leave."""
        if not any(n.kind in SPARSE for n in (*self._path(), *self._within())):
            raise _no_copy()
        active = nonzeros(self.cells.mask.storage) if self.kind in SPARSE and self.cells else None
        return _copied, (self.above, self.sizes, self.kind, self.chunk, active)

    def dense(self, axes: Axes, dimensions: object) -> Node:
        """Divide each element into a dense array.

        Args:
            axes: `ds.i`, `ds.ij`, ...
            dimensions: number of elements along each of the axes, or one number for all of them.

        Example:
            x = ds.field(ds.f32)
            ds.root.dense(ds.ij, (4, 8)).dense(ds.ij, 2).place(x)
            print(x.shape)  # prints: (8, 16)
        """
        return Node(self, self._sizes(axes, dimensions))

    def pointer(self, axes: Axes, dimensions: object) -> Node:
        """Divide each element into an array whose cells are active or not.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.pointer(ds.i, 4)
            blocks.dense(ds.i, 8).place(x)
            x[20] = 1.0  # activates block 2
            print(x[20], x[0], x.shape)  # prints: 1.0 0.0 (32,)
        """
        return Node(self, self._sizes(axes, dimensions), "pointer")

    def hash(self, axes: Axes, dimensions: object) -> Node:
        """Divide each element into an array whose cells are active or not, as `pointer`.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.hash(ds.i, 4)
            blocks.dense(ds.i, 8).place(x)
            x[20] = 1.0  # activates block 2
            print(x[20], x[0])  # prints: 1.0 0.0
        """
        return Node(self, self._sizes(axes, dimensions), "hash")

    def bitmasked(self, axes: Axes, dimensions: object) -> Node:
        """Divide each element into an array whose cells are active or not.

        Example:
            x = ds.field(ds.f32)
            ds.root.bitmasked(ds.i, 32).place(x)
            x[20] = 1.0  # activates this element
            print(x[20], x[0], x.shape)  # prints: 1.0 0.0 (32,)
        """
        return Node(self, self._sizes(axes, dimensions), "bitmasked")

    def dynamic(self, axis: Axes, dimension: object, chunk_size: object = None) -> Node:
        """Divide each element into a list, whose length changes.

        Args:
            axis: one that no node above has.
            dimension: the most elements of a list.
            chunk_size: how many elements loops take at once; a number that suits `dimension` if left out.

        Example:
            x = ds.field(ds.i32)
            ds.root.dense(ds.i, 4).dynamic(ds.j, 8).place(x)

            @ds.kernel
            def compute() -> ds.i32:
                x[1].append(7)
                x[1].append(8)
                return x[1].length()

            print(compute(), x[1, 0], x[1, 1])  # prints: 2 7 8
        """
        sizes = self._sizes(axis, dimension)
        (number, n), *more = sizes.items()
        if more or number in self._totals():
            raise FieldError(
                f"the lists of a dynamic are along one axis of their own, not {axis!r}",
                Span.of_caller(),
                hint="write root.dense(ds.i, n).dynamic(ds.j, 1024)",
            )
        chunk = min(n, 32) if chunk_size is None else chunk_size
        if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
            raise FieldError(
                f"chunk_size is a whole number from 1 on, not {shown(chunk)}",
                Span.of_caller(),
                hint="leave it out",
            )
        return Node(self, sizes, "dynamic", min(chunk, n))

    def _sizes(self, axes: Axes, size: object) -> dict[int, int]:
        """Return the size of a new node along each of its axes."""
        if not isinstance(axes, Axes):
            raise FieldError(
                f"{shown(axes)} are no axes", Span.of_caller(), hint="write ds.root.dense(ds.i, n)"
            )
        dims = checked_shape(size)
        # One number stands for all axes.
        if len(dims) == 1:
            dims = dims * len(axes.numbers)
        if len(dims) != len(axes.numbers):
            raise FieldError(
                f"{axes!r} needs {len(axes.numbers)} sizes, not {dims}",
                Span.of_caller(),
                hint="give one for each axis, or one for all of them",
            )
        return dict(zip(axes.numbers, dims, strict=True))

    def place(self, *args: object, offset: object = None) -> Node:
        """Allocate fields (and their gradients, if any) with the axes of this node.

        Args:
            args: fields made without a shape.
            offset: the index of the first element, a number for each axis; 0 if left out.

        Example:
            x, v = ds.field(ds.f32), ds.Vector.field(3, ds.f32)
            ds.root.dense(ds.i, 8).place(x, v)
            print(x.shape, v.shape)  # prints: (8,) (8,)
        """
        self.check_open()
        sizes = self._totals()
        # The axes of the field come in the order i, j, k, whatever their order in memory.
        numbers = sorted(sizes)
        spread = [one for f in args for one in (f.fields() if isinstance(f, StructField) else [f])]
        for f in spread:
            if not isinstance(f, Field):
                raise FieldError(
                    f"only fields can be placed, not {describe(f)}",
                    Span.of_caller(),
                    hint="the gradient of a field that was placed without one: make the field with "
                    "needs_grad=True, or give it no shape and place both before the first launch: "
                    ".place(x, x.grad)"
                    if f is None
                    else "write .place(x, y); gradients of fields that have needs_grad=True go along",
                )
            shape = tuple(sizes[a] for a in numbers)
            if f.is_grad or f.is_dual:
                self._place_derivative(f, shape)
                continue
            # The permutation from the order in memory to the axes of the shape.
            order = tuple(numbers.index(axis) for axis in sizes)
            tree = None
            if self.cells is not None:
                tree = self.cells, Place(tuple(numbers), shape, self.cells.level)
            for d in (f.adjoint, *f.duals.values()):
                if d is not None and d.node is not None and d.node.shape != shape:
                    raise _other_shape(d, d.node.shape, shape)
            f.place(shape, order, tree=tree, origin=self._origin(offset, shape))
            f.node, f.placed_at = self, session.clock
            if tree is not None:
                # Kernels that deactivate cells of the tree set what is in them to 0: this field, too.
                for forget in session.at_new_grad:
                    forget()
            # Each node knows the fields below it, for its own `lazy_grad`.
            for node in self._path():
                node.fields.add(f)
        return self

    def check_open(self) -> None:
        """Raise ArgumentError if nothing can be added to the tree any more."""
        if self._path()[0].finalized:
            raise FieldError(
                "this tree of fields is complete: finalize() was called",
                Span.of_caller(),
                hint="place all fields before, or make another ds.FieldsBuilder()",
            )

    def _origin(self, offset: object, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index of the first element of a field placed here."""
        if offset is None:
            return ()
        if self.cells is not None and self.cells.level.list_axis is not None:
            raise FieldError(
                "a field in a dynamic has no offset",
                Span.of_caller(),
                hint="lists and their elements count from 0: add the offset to the index, x[i + 2]",
            )
        return checked_offset(offset, shape)

    def _place_derivative(self, f: Field, shape: tuple[int, ...]) -> None:
        """Note where the program places a gradient or dual, which has the layout of its field.

        Taichi's programs place it beside its field or in a node of its own. Layouts change no result.
        """
        if f.placed and f.shape != shape:
            raise _other_shape(f, shape, f.shape)
        f.node = self

    def _path(self) -> list[Node]:
        return [*self.above._path(), self] if self.above is not None else [self]

    def _totals(self) -> dict[int, int]:
        """Return the number of elements along each axis, in the order of the tree, slowest first."""
        sizes: dict[int, int] = {}
        for node in self._path():
            for axis, n in node.sizes.items():
                # An axis that occurs twice has its sizes multiplied.
                sizes[axis] = sizes.get(axis, 1) * n
        return sizes

    def parent(self, n: int = 1) -> Node:
        """Return the node around this one, or the n-th from here outwards.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.dense(ds.i, 4)
            cells = blocks.dense(ds.i, 8)
            print(cells.parent() is blocks, blocks.parent() is ds.root)  # prints: True True
        """
        need_count(
            n, "the number of nodes outwards", 0, "write parent() for the next one, parent(2)"
        )
        node = self
        for _ in range(n):
            if node.above is None:
                raise FieldError(
                    f"{self!r} has no {shown(n)} nodes around it",
                    Span.of_caller(),
                    hint="the outermost one is ds.root",
                )
            node = node.above
        return node

    # ---- active cells

    @property
    def bytes_in_use(self) -> int:
        """How much memory the fields placed here or below take, with their gradients and masks.

        Example:
            x = ds.field(ds.f32)
            cells = ds.root.dense(ds.i, 8)
            cells.place(x)
            print(cells.bytes_in_use)  # prints: 32
        """
        found = 0
        for f in members(self.fields):
            every = (f, f.adjoint, *f.duals.values())
            found += sum(_in_use(g.storage) for g in every if g is not None)
        masks = {c for n in (self, *self._within()) if n.cells for c in n.cells.chain()}
        return found + sum(_in_use(m.storage) for c in masks for m in (c.mask, c.listed))

    def _within(self) -> Iterator[Node]:
        """Yield the nodes below this one, outermost first."""
        for ref in self.below:
            node = ref()
            if node is not None:
                yield node
                yield from node._within()

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(sorted(self._totals()))

    @property
    def cell_place(self) -> Place | None:
        """Where its cells are in a sparse tree, for loops over them; None: all are there."""
        if self.cells is None:
            return None
        return Place(self.axes, self.shape, self.cells.level)

    def sparse_below(self) -> list[Level]:
        """Return the sparse levels below this node."""
        return [n.cells.level for n in self._within() if n.kind in SPARSE and n.cells is not None]

    def placed_fields(self) -> list[Any]:
        """Return the fields placed in this very node."""
        found = sorted(members(self.fields), key=lambda f: f.number)
        return [f for f in found if f.node is self]

    def memories(self) -> list[tuple[Mem, tuple[int, ...]]]:
        """Return the memories of the fields placed here or below, with the numbers of their axes."""
        found = sorted(members(self.fields), key=lambda f: f.number)
        return [(f._mem, f.tree[1].axes) for f in found if f.tree is not None]

    def deactivate_all(self) -> None:
        """Make all cells of this node inactive, and those below: their elements are 0 from now on.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.pointer(ds.i, 4)
            blocks.dense(ds.i, 8).place(x)
            x[20] = 1.0  # activates block 2
            blocks.deactivate_all()
            print(x[20])  # prints: 0.0
        """
        who = caller()
        for f in sorted(members(self.fields), key=lambda f: f.number):
            if f.tree is not None:
                f.fill(0)
                f.versions.by_caller()
        for node in (self, *self._within()):
            if node.kind in SPARSE and node.cells is not None:
                node.cells.clear(who)

    def lazy_grad(self) -> None:
        """Give a gradient to every float field placed below this node.

        Example:
            x = ds.field(ds.f32)
            ds.root.dense(ds.i, 8).place(x)
            ds.root.lazy_grad()
            print(x.grad.shape)  # prints: (8,)
        """
        # A list, as fields may be freed during the loop.
        for f in list(self.fields):
            f.add_grad()

    def lazy_dual(self) -> None:
        """Give a dual, for forward mode, to every float field placed below this node.

        Example:
            x = ds.field(ds.f32)
            ds.root.dense(ds.i, 8).place(x)
            ds.root.lazy_dual()
            print(x.dual.shape)  # prints: (8,)
        """
        for f in list(self.fields):
            f.add_dual()

    def __repr__(self) -> str:
        if self.above is None:
            return "ds.root"
        axes, sizes = Axes(*self.sizes), tuple(self.sizes.values())
        above = "ds.root" if self.above.above is None else repr(self.above)
        return f"{above}.{self.kind}({axes!r}, {sizes[0] if len(sizes) == 1 else sizes})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells along each axis that it or a node above it divides.

        Example:
            print(ds.root.dense(ds.i, 4).dense(ds.i, 8).shape)  # prints: (32,)
        """
        sizes = self._totals()
        return tuple(sizes[a] for a in sorted(sizes))


def _no_copy() -> ArgumentError:
    return refuse(
        "a layout",
        "fields have their places in it",
        "make the same layout again where it is needed",
    )


def _copied(
    above: Node, sizes: dict[int, int], kind: str, chunk: int, active: Nonzeros | None
) -> Node:
    """Make the copy of a node, with the cells that are active."""
    made = Node(above, sizes, kind, chunk)
    if active is not None and made.cells is not None:
        made.cells.replace(active, caller())
    return made


def _other_shape(f: Field, given: tuple[int, ...], shape: tuple[int, ...]) -> ArgumentError:
    what = "dual" if f.is_dual else "gradient"
    return FieldError(
        f"{f.name} is placed with shape {given}, and its field has shape {shape}",
        Span.of_caller(),
        hint=f"a {what} has the shape of its field: place it with the same axes and sizes",
    )


def _in_use(storage: Storage) -> int:
    found: int = getattr(storage, "resident", storage.layout.nbytes)
    return found


class Root(Node):
    """`ds.root`: where layout trees begin.

    Example:
        x, v = ds.field(ds.f32), ds.Vector.field(3, ds.f32)
        ds.root.dense(ds.i, 8).place(x, v)
        print(x.shape, v[7])  # prints: (8,) [0.0, 0.0, 0.0]
    """

    def __init__(self) -> None:
        super().__init__(None, {}, "root")
        # At `ds.init` and `ds.reset` a program builds its tree anew.
        session.at_reset.append(self.forget)

    def __copy__(self) -> Root:
        return self

    def __reduce_ex__(self, protocol: object) -> str:
        """Copy and pickle by name: there is one root in each process."""
        return "root"

    def __repr__(self) -> str:
        fields = sorted(members(self.fields), key=lambda f: f.number)
        if not fields:
            return "ds.root"
        placed = "".join(f"\n  {summary(f, f._found_name)}" for f in fields)
        return f"ds.root, with{placed}"

    def forget(self) -> None:
        """Discard the tree; fields placed in it stay usable."""
        self.fields = weakref.WeakSet()
        self.below = []


_trees: weakref.WeakSet[Node] = weakref.WeakSet()
"""The roots of all layout trees."""
root = Root()


@checked
def deactivate_all_snodes() -> None:
    """Make all cells of all sparse trees inactive.

    Example:
        x = ds.field(ds.f32)
        blocks = ds.root.pointer(ds.i, 4)
        blocks.dense(ds.i, 8).place(x)
        x[20] = 1.0  # activates block 2
        ds.deactivate_all_snodes()
        print(x[20])  # prints: 0.0
    """
    for tree in members(_trees):
        tree.deactivate_all()
