"""The accesses of one launch of a kernel: regions of memories, and the fields behind them.

A kernel names memories; which field or array a memory is may depend on the arguments of the launch.
`LaunchArguments` maps the one to the other. An `AccessSummary` lists the accesses of one IR, so a
specialization has one and so has each of its derivatives. An `Extent` is what one of them reaches, as a
function of the arguments. Read `passes/analysis/regions.py` and `slices.py` first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ir import nodes
from diffsim.ir.nodes import Atomic, Const, Dim, Load, Mem, Store, Value
from diffsim.ir.traversal import task_statements
from diffsim.lang.frontend.expressions import ArrayRef
from diffsim.passes.analysis import regions
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.passes.analysis.slices import Form, Slice, form_text
from diffsim.passes.autodiff.custom_calls import notes_of
from diffsim.runtime.binding.arguments import flatten
from diffsim.runtime.binding.array_memory import shares
from diffsim.runtime.fields.device_array import known_as
from diffsim.runtime.fields.field import Field
from diffsim.runtime.locked_cached_property import locked_cached_property
from diffsim.runtime.memory.storage import WHOLE
from diffsim.runtime.memory.versions import Versions
from diffsim.runtime.observe.nonfinite import Part
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

if TYPE_CHECKING:
    from diffsim.runtime.binding.arguments import Parameter
    from diffsim.runtime.kernels.specialization import Specialization

Box = tuple[Field, int | None]
"""A field, and the row of its versioned axis that an access stays within (None: any row)."""
Rows = tuple[tuple[int, int], ...]
"""Axes with a fixed index along each; empty: any element."""


Side = int | tuple[int, ...]
"""An axis, or the signs with which indices are added (`passes/analysis/slices.py`)."""
Role = tuple[bool, int]
"""The role of a memory in an array argument: whether its gradient, and of how many tangents (0: no dual)."""


def field_in_role(array: Any, role: Role) -> Any:
    """Return the array itself, or the field of its gradient or of a dual; None: it has none."""
    of_gradient, width = role
    found = array.adjoint if of_gradient else array
    return found if width == 0 or found is None else found.duals.get(width)


class LaunchArguments:
    """The parameters that a launch passes, and the memories behind those that are arrays.

    Attributes:
        parameters: those that are not compiled in, in order.
        arrays: the array parameters as the translator sees them, by name.
        kernel: the kernel's name, for messages.
        duals: the memories of the duals of arrays (and of their gradients), by their own, in a kernel with
            tangents.
        width: how many tangents these hold.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        arrays: dict[str, ArrayRef],
        kernel: str,
        duals: dict[Mem, Mem] | None = None,
        width: int = 1,
    ) -> None:
        self.parameters = parameters
        self.arrays = arrays
        self.kernel = kernel
        self.duals = duals or {}
        self.width = width

    def with_duals(self, duals: dict[Mem, Mem], width: int) -> LaunchArguments:
        """Return the same parameters for a kernel with tangents."""
        return LaunchArguments(self.parameters, self.arrays, self.kernel, duals, width)

    def duals_of(self, mem: Mem) -> list[Mem]:
        """Return the memories of the duals of an array and of its gradient."""
        found = (self.duals.get(m) for m in (mem, mem.grad) if m is not None)
        return [m for m in found if m is not None]

    def array_name(self, mem: Mem) -> str:
        """Return the parameter behind an array's memory (or behind that of its gradient or dual)."""
        return self._origin(mem)[0]

    def _origin(self, mem: Mem) -> tuple[str, Role]:
        """Return the parameter behind a memory, and what of it the memory is."""
        for name, ref in self.arrays.items():
            # The gradient of an array argument is a memory of its own, without a parameter.
            for of_gradient, own in ((False, ref._mem), (True, ref._mem.grad)):
                if mem is own:
                    return name, (of_gradient, 0)
                if own is not None and mem is self.duals.get(own):
                    return name, (of_gradient, self.width)
        raise KeyError(mem.name)

    def place(self, name: str) -> int:
        """Return the number of a parameter."""
        return [p.name for p in self.parameters].index(name)

    def role_of(self, mem: Mem) -> Role:
        """Return what of an argument the memory of an array is."""
        return self._origin(mem)[1]

    def object_of(self, mem: Mem, args: tuple[Any, ...]) -> Any:
        """Return the field or array behind a memory in a launch with these arguments; None for others."""
        if mem.kind == "field":
            # A weak reference: kernels keep no fields alive.
            return mem.handle()
        if mem.kind != "array":
            return None
        name, role = self._origin(mem)
        return field_in_role(args[self.place(name)], role)

    def role_text(self, mem: Mem) -> str:
        """Format the field of that memory as an expression of the parameters."""
        name, (of_gradient, width) = self._origin(mem)
        of = f"{name}.adjoint" if of_gradient else name
        return f"{of}.duals[{width}]" if width else of

    def named(self, args: tuple[object, ...]) -> dict[str, Any]:
        """Return the arguments by their parameters' names."""
        return dict(zip((p.name for p in self.parameters), args, strict=True))

    def call_text(self, args: tuple[object, ...]) -> str:
        """Return a launch as a program writes it: step(137, x)."""
        return f"{self.kernel}({', '.join(self.texts(args))})"

    def texts(self, args: tuple[object, ...]) -> tuple[str, ...]:
        """Return the arguments as a program writes them: numbers, and names of all others."""
        plain = (bool, int, float, np.number)
        both = zip(self.parameters, args, strict=True)
        return tuple(f"{a!s}" if isinstance(a, plain) else p.name for p, a in both)

    def scalars(self, args: tuple[object, ...]) -> list[bool | int | float]:
        """Return the arguments that are passed by value, flattened to scalars."""
        made: list[bool | int | float] = []
        for p, a in zip(self.parameters, args, strict=True):
            if p.kind != "value":
                continue
            # Exact classes, which nearly all arguments have; subclasses (NumPy's f64 is one of float) are
            # converted.
            if a.__class__ is int or a.__class__ is float:
                made.append(a)
            else:
                made += flatten(p, a, self.kernel)
        return made

    def key(self, args: tuple[object, ...]) -> tuple[Any, ...]:
        """Return the key of launches with these arguments in a `LaunchHistory`."""
        key: list[Any] = []
        for p, a in zip(self.parameters, args, strict=True):
            if p.kind == "array":
                key.append(known_as(a))
            elif p.type is not None and p.type.shape:
                # A list has no hash, and may change after the launch.
                key.append(tuple(flatten(p, a, self.kernel)))
            else:
                key.extend(flatten(p, a, self.kernel))
        return tuple(key)


class AccessSummary:
    """The accesses of one IR, one for each region of each memory.

    Attributes:
        reads: what it reads; of an adjoint only the values of the forward launch that it loads again.
        loads: the loads among them, each.
        writes: what it stores or adds to. Without the masks of sparse trees: whether a launch changes one is
            known after it (`launch_function.write_activity`).
    """

    def __init__(
        self,
        ir: nodes.Kernel,
        arguments: LaunchArguments,
        reads: Iterable[RegionAccess],
        writes: Iterable[RegionAccess],
    ) -> None:
        self._ir = ir
        self._arguments = arguments
        reads = list(reads)
        self.loads: dict[Mem, list[Load]] = {}
        for a in reads:
            if isinstance(a.stmt, Load):
                self.loads.setdefault(a.mem, []).append(a.stmt)
        # Repeated accesses of one region would be tested and stamped again at each launch.
        self.reads = _distinct(reads)
        self.writes = _distinct(a for a in writes if a.mem.level is None)
        self._extents: dict[int, Extent] = {}
        self._read_parts: tuple[int, list[RegionAccess]] = -1, []

    @classmethod
    def of_kernel(cls, ir: nodes.Kernel, arguments: LaunchArguments) -> AccessSummary:
        """Summarize a kernel's own IR, and let its time axes be versioned by row."""
        # Notes of what atomics returned are read by adjoints alone.
        called = (notes_of(s) for t in ir.tasks for s in task_statements(t))
        notes = {noted[1] for noted in called if noted is not None}
        reads = (a for a in regions.reads(ir) if a.mem not in notes)
        made = cls(ir, arguments, reads, regions.writes(ir))
        # At compile time, so that the first launch already stamps by row; stamps of the whole made before
        # stay valid for all rows.
        _choose_axes(made.writes, made.reads)
        return made

    @classmethod
    def of_derivative(
        cls,
        ir: nodes.Kernel,
        arguments: LaunchArguments,
        checked: Iterable[RegionAccess] = (),
        internal: frozenset[Mem] = frozenset(),
    ) -> AccessSummary:
        """Summarize a derivative: its reads are what must be as it was at the forward launch.

        A load with an origin of its own is no recomputation of the forward launch: it loads a cotangent.

        Args:
            ir: the derivative.
            arguments: of the launch.
            checked: what is loaded to find out whether it is right.
            internal: memories of the derivative's own, which are left out.
        """
        again = (
            a
            for a in regions.reads(ir)
            if isinstance(a.stmt, Load) and a.stmt.origin is not a.stmt and a.mem not in internal
        )
        writes = (a for a in regions.writes(ir) if a.mem not in internal)
        return cls(ir, arguments, (*again, *checked), writes)

    @locked_cached_property
    def extremes(self) -> list[RegionAccess]:
        """Minima and maxima that update memories with gradients: their adjoints depend on the old value."""
        # `writes` may have another statement for the same part of the memory.
        return _distinct(
            a
            for a in regions.writes(self._ir)
            if isinstance(a.stmt, Atomic) and a.stmt.op in ("min", "max") and a.mem.grad is not None
        )

    @property
    def read_parts(self) -> list[RegionAccess]:
        """One read for each part of a field that versions tell from others."""
        tracked, parts = self._read_parts
        # A field that has got rows since has more parts.
        if tracked != Versions.tracked:
            tracked = Versions.tracked
            parts = list({self._part_key(a): a for a in self.reads}.values())
            self._read_parts = tracked, parts
        return parts

    def _part_key(self, a: RegionAccess) -> tuple[Any, ...]:
        whole = a.mem.kind == "field" and a.mem.level is None and versions_of(a.mem).axis is None
        return (a.mem,) if whole else self._extent(a).key

    @locked_cached_property
    def must_write(self) -> list[RegionAccess]:
        """Stores that reach every element of the rows they stay within."""
        return regions.must_write(self._ir)

    @locked_cached_property
    def exposed_reads(self) -> list[RegionAccess]:
        """Reads that may see what was there before the launch (upward-exposed uses)."""

        def is_covered(a: RegionAccess) -> bool:
            # Tasks run one after the other. A store to more rows than the read stays within covers it.
            return any(
                w.mem is a.mem and w.task < a.task and w.region <= a.region for w in self.must_write
            )

        return [a for a in self.reads if not is_covered(a)]

    @locked_cached_property
    def gradient_writes(self) -> list[Store | Atomic]:
        """The statements that write something other than 0 to a gradient."""
        return [
            s
            for t in self._ir.tasks
            for s in task_statements(t)
            # Storing 0 only clears a gradient.
            if isinstance(s, (Store, Atomic)) and s.mem.is_grad and not _is_zero(s.value)
        ]

    def box(self, a: RegionAccess, args: tuple[Any, ...]) -> Box | None:
        """Return the field and row that an access reaches; None for an array of another library."""
        return self._extent(a).box(args)

    def _extent(self, a: RegionAccess) -> Extent:
        # By identity, which is quicker than comparing accesses; an extent keeps its access.
        extent = self._extents.get(id(a))
        if extent is None:
            extent = self._extents[id(a)] = Extent(self._arguments, a)
        return extent

    @locked_cached_property
    def read_sections(self) -> list[Extent]:
        """One extent for each section that is read, as far as the arguments tell sections apart."""
        return list({e.section: e for e in map(self._extent, self.reads)}.values())

    @locked_cached_property
    def written_sections(self) -> list[Extent]:
        """The same of what is written."""
        return list({e.section: e for e in map(self._extent, self.writes)}.values())

    def divide(self, args: tuple[Any, ...]) -> None:
        """Let the arguments of a launch decide the rows of the fields that it writes, where none has."""
        for a in self.writes:
            s = a.time_slice
            if s is not None and s.block is None and not a.mem.is_grad:
                self._extent(a).divide(s, args)

    def written_parts(self, args: tuple[object, ...]) -> list[tuple[Mem, Part]]:
        """Return for each of `writes` the memory, the object behind it, and the part of that."""
        return [(a.mem, self._extent(a).part(args)) for a in self.writes]

    def may_alias(self, one: RegionAccess, other: RegionAccess, args: tuple[object, ...]) -> bool:
        """Return whether two accesses may reach the same element in a launch with these arguments."""
        f = self._arguments.object_of(one.mem, args)
        if f is None or f is not self._arguments.object_of(other.mem, args):
            # Different arrays do not overlap where the kernel writes (`check_separate`), so that identity
            # decides.
            return False
        boxes = self.box(one, args), self.box(other, args)
        rows = [box[1] for box in boxes if box is not None]
        # Without a known row an access reaches all of them.
        return None in rows or len(set(rows)) <= 1


def versions_of(mem: Mem) -> Versions:
    """Return the versions of a captured field."""
    made: Versions = mem.handle().versions
    return made


def slice_along(access: RegionAccess, axis: int | None) -> Slice | None:
    """Return what is known of the indices of an access along the axis of versions."""
    return next((s for s in access.slices if s.axis == axis), None)


def _choose_axes(writes: list[RegionAccess], reads: list[RegionAccess]) -> None:
    """Make the first axis that a kernel moves along with an argument the time axis of a field."""
    found: dict[Mem, list[Slice]] = {}
    later: set[Mem] = set()
    for a in (*writes, *reads):
        s = a.time_slice if a.mem.kind == "field" else None
        # Never changed after: launch functions that exist have the axis and its array in their text.
        if s is None or versions_of(a.mem).axis is not None:
            continue
        found.setdefault(a.mem, []).append(s)
        # A stride that is an argument is known at the first launch (`Versions.written_slice`).
        if a in writes and s.block is None:
            later.add(a.mem)
    for mem in found.keys() - later:
        axis = min(s.axis for s in found[mem])
        size = mem.handle().shape[axis]
        # Rows of several indices hold single ones as well.
        blocks = [s.block for s in found[mem] if s.axis == axis and s.block is not None]
        block = max((b for b in blocks if b < size), default=None)
        if block is not None:
            versions_of(mem).track_rows(axis, size, block)


class Extent:
    """The region of one access, as a function of the arguments.

    Attributes:
        axes: those along which it is one index in every launch, or sums of indices (`Diagonal.signs`).
        indices: computes these indices.
        sides: axes and sums, of which the first and the last one are known.
        section: a key that is equal for accesses with the same ends of these in every launch.
    """

    __slots__ = (
        "_arguments",
        "_field",
        "_slices",
        "_texts",
        "access",
        "axes",
        "indices",
        "section",
        "sides",
    )

    def __init__(self, arguments: LaunchArguments, access: RegionAccess) -> None:
        self.access = access
        self._arguments = arguments
        self._field = access.mem.handle if access.mem.kind == "field" else None
        self._texts = {
            s.axis: f"({self._text(s.first)}, {self._text(s.last)})" for s in access.slices
        }
        self._slices: dict[int | None, Callable[[tuple[Any, ...]], Any]] = {
            axis: _function(text) for axis, text in self._texts.items()
        }
        sides = {s.axis: (self._text(s.first), self._text(s.last)) for s in access.slices} | {
            d.signs: (self._text(d.first), self._text(d.last)) for d in access.diagonals
        }
        single = {side: first for side, (first, last) in sides.items() if first == last}
        self.axes: tuple[Side, ...] = tuple(single)
        self.sides: tuple[Side, ...] = tuple(sides)
        self.indices: Callable[[tuple[Any, ...]], tuple[int, ...]] = _function(
            "(" + "".join(f"{first}, " for first in single.values()) + ")"
        )
        self.section: tuple[Any, ...] = (access.mem, *sides.items())

    def ends(self, args: tuple[Any, ...]) -> tuple[tuple[int, int], ...]:
        """Return the first and the last index, or sum of indices, on each of the `sides` in a launch."""
        texts = (f"({first}, {last}), " for _, (first, last) in self.section[1:])
        found: tuple[tuple[int, int], ...] = _function("(" + "".join(texts) + ")")(args)
        return found

    def _text(self, form: Form) -> str:
        arguments = self._arguments

        def name_of(v: Value) -> str:
            if isinstance(v, Dim):
                return f"a[{arguments.place(arguments.array_name(v.mem))}].shape[{v.axis}]"
            # `int`, as Python's integers do not wrap around.
            return f"int(a[{arguments.place(v.hint)}])"

        return form_text(form, name_of)

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for accesses with equal boxes."""
        f = None if self._field is None else self._field()
        axis = None if f is None else f.versions.axis
        if axis is None:
            return (self.access.mem, *self._texts.items())
        # A field has versions along one axis only: x[t, i] and x[t, i + 1] share a row.
        return self.access.mem, self._texts.get(axis)

    def object_of(self, args: tuple[Any, ...]) -> Any:
        """Return the field or array that the access reaches in a launch; None for no field."""
        if self._field is not None:
            return self._field()
        return self._arguments.object_of(self.access.mem, args)

    def box(self, args: tuple[Any, ...]) -> Box | None:
        """Return the field and the only row (None: any) that the access reaches; None for no field."""
        f = self._field() if self._field is not None else self.object_of(args)
        # Memory of other libraries has no versions.
        if not isinstance(f, Field):
            return None
        versions = f.versions
        bounds = self._slices.get(versions.axis)
        if bounds is None:
            return f, None
        first, last = bounds(args)
        return f, first if versions.block == 1 and first == last else versions.row_within(
            first, last
        )

    def part(self, args: tuple[Any, ...]) -> Part:
        """Return the object that the access reaches, and the fewest indices of an axis that it stays within.

        Gradients have parts too: of these no versions of rows are kept, so that `box` is all of them.
        """
        f = self.object_of(args)
        if not isinstance(f, Field) or f.storage.layout.in_blocks:
            return f, WHOLE
        found, least = WHOLE, 1.0
        for axis in self._texts:
            first, last = self._slices[axis](args)
            share = (last - first + 1) / max(f.shape[axis], 1)
            # Indices outside the field are an error of their own.
            if 0 <= first <= last < f.shape[axis] and share < least:
                found, least = (axis, first, last - first + 1), share
        return f, found

    def divide(self, s: Slice, args: tuple[Any, ...]) -> None:
        """Make rows of the field along the axis of a slice, if it has none and the launch decides them."""
        f = self.object_of(args)
        if isinstance(f, Field) and s.stride is not None:
            stride = _function(self._text(s.stride))(args)
            f.versions.divide((s.axis, *self._slices[s.axis](args)), stride, f.shape[s.axis])

    def rows_of(self, args: tuple[Any, ...]) -> Rows:
        """Return the fixed indices along all axes in a launch."""
        found = ((axis, self._slices[axis](args)) for axis in self._texts)
        return tuple((axis, first) for axis, (first, last) in found if first == last)


@functools.lru_cache(1 << 12)
def _function(text: str) -> Callable[[tuple[Any, ...]], Any]:
    """Return the function of a launch's arguments that computes some numbers."""
    made: Callable[[tuple[Any, ...]], Any] = eval(f"lambda a: {text}")
    return made


def _distinct(accesses: Iterable[RegionAccess]) -> list[RegionAccess]:
    """Return one access, the first, for each part of each memory."""
    # The first keeps the source line that errors show.
    found: dict[tuple[Any, ...], RegionAccess] = {}
    for a in accesses:
        found.setdefault((a.mem, a.region, a.slices, a.diagonals), a)
    return list(found.values())


def _is_zero(value: nodes.Value) -> bool:
    # A constant vector is zero if all its components are.
    return isinstance(value, Const) and not np.any(value.value)


# ---- versions of array arguments


def touch_array(
    array: Any,
    role: Role,
    now: int,
    time: tuple[int, int] | None,
    slices: dict[int, tuple[int, int]],
    writer: object,
) -> None:
    """Stamp a write to an array argument (or to its gradient or dual) within these slices."""
    if isinstance(array, Field):
        f = field_in_role(array, role)
        if f is not None:
            # The time axis is chosen by the first kernel that indexes with an argument, for arrays as for
            # captured fields (`access_summary._choose_axes`).
            axis, stride = time or (f.versions.axis, 0)
            if f.versions.axis is not None:
                axis = f.versions.axis
            if axis in slices:
                f.versions.written_slice((axis, *slices[axis]), stride, f.shape[axis], now, writer)
            else:
                f.versions.written(None, now, writer)
        return
    # A NumPy array or tensor may be a view of a field's memory (`to_numpy` without a copy, DLPack): its write
    # is one of that field.
    for f in members(session.exported) if session.exported else ():
        if shares(array, f):
            f.versions.written(None, now, writer)


def array_changed(array: object, since: int, slices: dict[int, tuple[int, int]]) -> bool:
    """Tell whether an array argument was written within these slices after a clock reading."""
    # Arrays of other libraries have no versions: what Python does with their memory cannot be seen.
    if not isinstance(array, Field) or array.versions.latest <= since:
        return False
    versions = array.versions
    known = None if versions.axis is None else slices.get(versions.axis)
    return versions.changed(None if known is None else versions.row_within(*known), since)


def extents(special: Specialization, accesses: Iterable[RegionAccess]) -> list[Extent]:
    """Return what several accesses reach in a launch, without duplicates."""
    made = (Extent(special.arguments, a) for a in accesses)
    return list({extent.key: extent for extent in made}.values())
