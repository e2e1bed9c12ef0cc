"""Layout trees: `ds.root.dense(ds.ij, (n, m)).place(x)`.

Dense nodes only, for now. Nested nodes multiply the sizes of axes they share (`dense(i, 4).dense(i, 8)` has
32 elements along i), and the order of the axes in the tree is their order in memory, slowest first. Each
field has a block of memory of its own, which is freed with its last reference.
"""

from __future__ import annotations

import weakref
from typing import Any

from diffsim.errors import FieldError, Span, shown
from diffsim.lang.host.copying import refuse
from diffsim.lang.host.signatures import checked, checked_methods
from diffsim.lang.types.descriptions import describe
from diffsim.runtime.fields.constructors import checked_shape
from diffsim.runtime.fields.display import summary
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField
from diffsim.runtime.session import session
from diffsim.runtime.threads import members
from diffsim.tracebacks import entries, entry


class Axes:
    """One or several axes: `ds.i`, `ds.ij`, `ds.axes(0, 1)`."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

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
    """Return the axes with these numbers, 0 the first."""
    right = all(isinstance(n, int) and 0 <= n < 8 for n in numbers)
    if not numbers or not right or len(set(numbers)) != len(numbers):
        raise FieldError(
            f"axes are different numbers from 0 to 7, not {shown(numbers)}",
            Span.of_caller(),
            "write ds.ij, or ds.axes(0, 1)",
        )
    return Axes(*numbers)


@entries("place __reduce_ex__")
@checked_methods("dense lazy_grad lazy_dual")
class Node:
    """A node of the tree: some axes with their sizes, inside of another node."""

    def __init__(self, parent: Node | None, sizes: dict[int, int]) -> None:
        self.parent = parent
        self.sizes = sizes
        self.fields: weakref.WeakSet[Field] = weakref.WeakSet()
        """Those placed here or below: a tree does not keep them."""

    def __reduce_ex__(self, protocol: object) -> Any:
        """Refuse `copy`, `deepcopy` and `pickle`."""
        raise refuse(
            "a layout",
            "fields have their places in it",
            "make the same layout again where it is needed",
        )

    def dense(self, axes: Axes, size: object) -> Node:
        """Divide each element into a dense array.

        Args:
            axes: `ds.i`, `ds.ij`, ...
            size: number of elements along each of the axes, or one number for all of them.
        """
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
        return Node(self, dict(zip(axes.numbers, dims, strict=True)))

    # Refused by name: Taichi's programs use them, and an unknown attribute would not say what to do instead.
    @entry
    def _sparse(self, *args: object, **kwargs: object) -> Node:
        raise FieldError(
            "sparse layouts (pointer, bitmasked, dynamic, hash) are not there: fields are dense",
            Span.of_caller(),
            hint="use ds.root.dense(...); for a few active cells keep a list of their indices in a field and "
            "loop over that",
        )

    pointer = bitmasked = dynamic = hash = _sparse

    def place(self, *fields: object) -> Node:
        """Allocate fields (and their gradients, if any) with the axes of this node."""
        # In the order of the tree, slowest first; an axis that occurs twice has its sizes multiplied.
        sizes: dict[int, int] = {}
        for node in self._path():
            for axis, n in node.sizes.items():
                sizes[axis] = sizes.get(axis, 1) * n
        # The axes of the field come in the order i, j, k, whatever their order in memory.
        numbers = sorted(sizes)
        spread = [
            one for f in fields for one in (f.fields() if isinstance(f, StructField) else [f])
        ]
        for f in spread:
            if not isinstance(f, Field):
                raise FieldError(
                    f"only fields can be placed, not {describe(f)}",
                    Span.of_caller(),
                    hint="write .place(x, y); gradients of fields that have needs_grad=True go along",
                )
            # The permutation from the order in memory to the axes of the shape.
            order = tuple(numbers.index(axis) for axis in sizes)
            if f.is_grad or f.is_dual:
                # Taichi's programs place `x.grad` themselves; here it comes with the field.
                if any(isinstance(x, Field) and f in (x.grad, *x.duals.values()) for x in spread):
                    continue
                what, name = ("dual", "dual") if f.is_dual else ("gradient", "grad")
                raise FieldError(
                    f"a {what} is placed with its field, in the same layout",
                    Span.of_caller(),
                    hint=f"leave the {what} out, or write it beside its field: .place(x, x.{name})",
                )
            f.place(tuple(sizes[a] for a in numbers), order)
            # Each node knows the fields below it, for its own `lazy_grad`.
            for node in self._path():
                node.fields.add(f)
        return self

    def _path(self) -> list[Node]:
        return [*self.parent._path(), self] if self.parent is not None else [self]

    def lazy_grad(self) -> None:
        """Give a gradient to every float field placed below this node."""
        # A list, as fields may be freed during the loop.
        for f in list(self.fields):
            f.add_grad()

    def lazy_dual(self) -> None:
        """Give a dual, for forward mode, to every float field placed below this node."""
        for f in list(self.fields):
            f.add_dual()

    def __repr__(self) -> str:
        if self.parent is None:
            return "ds.root"
        axes, sizes = Axes(*self.sizes), tuple(self.sizes.values())
        above = "ds.root" if self.parent.parent is None else repr(self.parent)
        return f"{above}.dense({axes!r}, {sizes[0] if len(sizes) == 1 else sizes})"

    @property
    def shape(self) -> tuple[int, ...]:
        sizes: dict[int, int] = {}
        for node in self._path():
            for axis, n in node.sizes.items():
                sizes[axis] = sizes.get(axis, 1) * n
        return tuple(sizes[a] for a in sorted(sizes))


class Root(Node):
    """`ds.root`: where layout trees begin."""

    def __init__(self) -> None:
        super().__init__(None, {})
        # At `ds.init` and `ds.reset` a program builds its tree anew.
        session.at_reset.append(self.forget)

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


root = Root()
