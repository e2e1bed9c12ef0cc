"""Fields: memory that kernels and Python share.

A field owns its memory, on the host or on a GPU, which is freed with it. Elements are scalars, vectors or
matrices; `x[i]` reads or writes one from Python, `to_numpy`/`from_numpy` all of them. A gradient is a
field too (`x.grad`), and `ds.ndarray` is the same thing passed to kernels as an argument.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from typing import Any

import numpy as np

from diffsim.backends.native.pool import closed, wait
from diffsim.errors import (
    DiffsimError,
    FieldError,
    OutOfMemoryError,
    Span,
    memory_size,
    shown,
)
from diffsim.ir.nodes import Mem
from diffsim.ir.op import Tracked
from diffsim.ir.sparse import Place
from diffsim.ir.types import ScalarType, Type, size_of, tensor
from diffsim.lang.host import peer_names
from diffsim.lang.host.field_like import FieldLike
from diffsim.lang.host.signatures import checked
from diffsim.lang.host.unsupported import no_assignment, no_attribute
from diffsim.lang.types.matrix import Matrix
from diffsim.public_names import PublicNames
from diffsim.runtime.fields import display
from diffsim.runtime.fields.adjoints import (
    NO_DUALS,
    asked_grad,
    followed_by_tape,
    is_followed,
    lost_source,
    make_dual,
    make_grad,
    narrow_dual,
    place_dual,
)
from diffsim.runtime.fields.component_field import ComponentField, component_of
from diffsim.runtime.fields.contents import WholeContents, activate_written
from diffsim.runtime.fields.conversions import (
    element_of,
    index_of,
    number_of,
    row_of,
    scalar_of,
    set_components,
    set_row,
)
from diffsim.runtime.fields.copies import FieldCopies
from diffsim.runtime.fields.export import SharedMemory, TensorCopies
from diffsim.runtime.fields.protocols import FieldProtocols
from diffsim.runtime.fields.read_values import FieldElement, Provenance
from diffsim.runtime.memory.storage import HostStorage, Storage, StorageLayout
from diffsim.runtime.memory.versions import Versions
from diffsim.runtime.session import session
from diffsim.runtime.variable_names import name_of
from diffsim.tracebacks import IS_OWN, entries, entry

_note = session.written.append
# Addresses and `id`s are given again; these are not, so caches can be keyed by them.
_numbers = itertools.count()
_PUBLIC = (
    "assign copy_from dtype dual element_shape fill from_numpy from_torch get_scalar_field grad m "
    "mark_written n name needs_dual needs_grad parent shape snode to_gpuarray to_numpy to_torch"
).split()
"""The public attributes, as `dir` and messages list them."""
_FIXED = frozenset(["dtype", "element", "is_dual", "is_grad", "number", "versions"])
"""Attributes that are set once."""
_CHANGING = frozenset(
    (
        "given_name kind source adjoint declares_grad destroyed duals declares_dual tree node "
        "placed_at _exported _flat _mem _order _shape _shared _step _storage _strides soa"
    ).split()
)
"""Attributes that diffsim itself sets again."""
_ASSIGNED = {
    "shape": "a field keeps its shape: make another one",
    "dtype": "a field keeps its type: make another one, and copy: y.copy_from(x)",
    "name": 'give the name when it is made: ds.field(ds.f32, shape=n, name="x")',
    "needs_grad": "give it when the field is made: ds.field(ds.f32, shape=n, needs_grad=True)",
    "needs_dual": "give it when the field is made: ds.field(ds.f32, shape=n, needs_dual=True)",
    "fill": "fill is a method: x.fill(value)",
    "value": "name an element: x[i] = value",
}
"""Advice for those who assign these."""


@entries("__setattr__ __delattr__ __getattr__")
class Field(
    WholeContents,
    FieldCopies,
    FieldProtocols,
    SharedMemory,
    TensorCopies,
    FieldLike,
    metaclass=PublicNames,
):
    """A field; made by `ds.field`, `ds.Vector.field` and `ds.Matrix.field`.

    Attributes:
        shape: number of elements along each axis; () for a single one.
        dtype: scalar type of its elements (of their components).
        grad: the field of its gradient; None without `needs_grad`.
        dual: the field of its tangent, in forward mode; an error without `needs_dual`.

    Example:
        x = ds.field(ds.f32, shape=(4, 8), needs_grad=True)
        x[1, 2] = 3.0
        print(x[1, 2], x.shape, x.dtype)  # prints: 3.0 (4, 8) f32
        print(x.grad.to_numpy().sum(), isinstance(x, ds.Field))  # prints: 0.0 True
    """

    _public = " ".join(_PUBLIC)

    dtype: ScalarType
    _mem: Mem

    def __init__(
        self,
        dtype: ScalarType,
        element: tuple[int, ...] = (),
        *,
        name: str = "",
        soa: bool = False,
        kind: str = "field",
        is_grad: bool = False,
        is_dual: bool = False,
    ) -> None:
        # That no other field of this process has, or ever had.
        self.number = next(_numbers)
        self.dtype = dtype
        self.element = element
        self.soa = soa and bool(element)
        self.kind = kind
        self.is_grad = is_grad
        self.is_dual = is_dual
        # Where autodiff adds up its gradient: `grad`, or one that tapes use among themselves (`adjoints.py`).
        self.adjoint: Field | None = None
        self.declares_grad = False
        # Where forward mode computes its tangents: `dual`, and others by how many there are at once. It is
        # replaced, never changed, as most fields share the empty one.
        self.duals: dict[int, Field] = NO_DUALS
        self.declares_dual = False
        self.versions = Versions()
        self.given_name = name
        self.source: Provenance | None = None  # of what was read from it last on a tape
        self._shape: tuple[int, ...] | None = None
        # Storages that others may still use, kept where the field moves to another device.
        self._shared: list[Storage] = []
        # Whether others may write to the memory at any time, so that "all zeros" cannot be relied on.
        self._exported = False
        self._order: tuple[int, ...] = ()
        # Of a field in a sparse tree: its innermost cells and its place, and the node that it is placed in
        # (of a mask: its cells).
        self.tree: tuple[Any, Place] | None = None
        self.node: Any = None
        self.placed_at = -1  # what the clock read when it got its place in the node
        self.destroyed = False  # with its tree

    # ---- storage

    def place(
        self,
        shape: tuple[int, ...],
        order: tuple[int, ...] | None = None,
        in_blocks: bool = False,
        *,
        sparse: bool = False,
        tree: tuple[Any, Place] | None = None,
        origin: tuple[int, ...] = (),
    ) -> None:
        """Allocate memory, all zeros, as `StorageLayout` describes it (order None: as in C).

        `tree`: the cells of a sparse tree, and where the elements are in it; `origin`: the first index.
        """
        if self._shape is not None or self.destroyed:
            # Kernels compiled for the field have its address and strides in their code.
            raise FieldError(
                f"{self.name} already has its place", Span.of_caller(), hint="place each field once"
            )
        self._order = tuple(range(len(shape))) if order is None else order
        t: Type = tensor(self.dtype, self.element)
        self.tree = tree
        lazy = sparse or tree is not None
        form = StorageLayout(self.dtype, size_of(t), shape, self._order, self.soa, in_blocks, lazy)
        self._hold(self._allocate(form))
        self._strides = form.strides
        self._mem = Mem(
            self.given_name or self._kind_in_words(),
            t,
            len(shape),
            shape,
            "field",
            strides=self._strides,
            component_stride=form.component_stride,
            handle=weakref.ref(self),  # kernels keep no field alive
            is_grad=self.is_grad,
            place=None if tree is None else tree[1],
            origin=origin,
        )
        self._step = form.strides[0] if len(shape) == 1 and not any(origin) else 0  # x[i], fast
        self._shape = shape
        session.placed.add(self)
        if self.adjoint is not None:
            self.adjoint.place(shape, order, tree=tree, origin=origin)
            self._mem.grad = self.adjoint._mem  # where autodiff finds the gradient
            session.with_grad.add(self)
        if self.duals:
            place_dual(self, self.duals[1], 1)

    def _allocate(self, form: StorageLayout) -> Storage:
        """Allocate memory where the session's kernels run."""
        try:
            return session.backend.new_storage(form)
        except (MemoryError, ValueError, OverflowError):
            left = session.device.free_memory_text()
            raise OutOfMemoryError(
                f"there is no memory for {self.name} of shape {shown(form.shape)}: it takes "
                f"{memory_size(form.nbytes)}{left and ', and ' + left}",
                Span.of_caller(),
                hint="use fewer elements, or ds.f32 in place of ds.f64",
            ) from None

    def _hold(self, storage: Storage) -> None:
        self._storage = storage
        self._flat = storage.flat

    @property
    def _array(self) -> np.ndarray:
        """The elements on the host, as an array of shape `shape` + (components,)."""
        storage = self.storage
        assert isinstance(storage, HostStorage), "this is for the CPU"
        return storage.array

    def _written(self, value: object) -> np.ndarray:
        """Return the components of the elements that Python has just written, for a replay."""
        form = self._storage.layout
        made = np.empty(form.components, form.dtype.numpy)
        made[...] = element_of(self, value) if self.element else value
        return made

    @property
    def storage(self) -> Storage:
        """The field's memory, moved to where the session's kernels run if it is missing."""
        storage = self._storage
        # Moved lazily, at the first use after `ds.init` chose another backend.
        if storage.device is not session.device:
            made = self._allocate(storage.layout)
            made.copy_from(storage)
            self._hold(made)
            return made
        return storage

    def __setattr__(self, name: str, value: object) -> None:
        # A misspelt attribute (`x.vaule = 1`) would do nothing silently.
        if name not in _CHANGING and (name not in _FIXED or name in self.__dict__):
            self._refuse_assignment(name)
        object.__setattr__(self, name, value)

    def _refuse_assignment(self, name: str) -> None:
        """Refuse an assignment, except to new attributes of a class that a user derived from this one."""
        if name in ("grad", "dual"):
            raise FieldError(
                f"the {'gradient' if name == 'grad' else name} of {self.name} is a field, made with it, and "
                "cannot be replaced",
                Span.of_caller(),
                hint=f"write to it: x.{name}.fill(0), x.{name}.from_numpy(array), x.{name}.copy_from(field)",
            )
        if type(self) is Field or name in _FIXED or hasattr(Field, name):
            raise no_assignment(self.in_words(), name, _PUBLIC, _ASSIGNED.get(name, ""))

    def __delattr__(self, name: str) -> None:
        if type(self) is Field or name in _FIXED or name in _CHANGING:
            raise no_assignment(self.in_words(), name, (), "del x releases the whole field")
        object.__delattr__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name in ("_mem", "_flat", "_storage", "_strides", "_step"):
            self._not_placed()
        hint = peer_names.OF_FIELDS.get(name, "")
        if not hint and not name.startswith("_") and hasattr(np.ndarray, name):
            hint = f"write {self._array_text()}.{name}"
        raise no_attribute(self.in_words(), name, _PUBLIC, hint)

    @property
    def name(self) -> str:
        """The name given, or that of a variable, as far as there is one.

        Example:
            x = ds.field(ds.f32, shape=3, name="heat")
            print(x.name)  # prints: heat
        """
        return self._found_name or self._kind_in_words()

    @property
    def _found_name(self) -> str:
        return self.given_name or name_of(self)

    def _kind_in_words(self) -> str:
        return "grad" if self.is_grad else "dual" if self.is_dual else "a field"

    def in_words(self) -> str:
        """Format the field for messages: "the field x"."""
        name = self._found_name
        return f"the field {name}" if name else self._kind_in_words()

    def _called(self) -> str:
        return self._found_name or "x"

    def call_it(self, name: str) -> None:
        """Adopt a name for messages and printed IR, unless it has one."""
        if not self.given_name:  # the first name stays
            self.given_name = name
            self._mem.name = name
            if self.adjoint is not None and not self.adjoint.given_name:
                self.adjoint.call_it(f"{name}.grad")
            for dual in self.duals.values():
                if not dual.given_name:
                    dual.call_it(f"{name}.dual")

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis; () for a single one.

        Example:
            print(ds.field(ds.f32, shape=(4, 8)).shape)  # prints: (4, 8)
        """
        if self._shape is None:
            try:
                self._not_placed()
            except DiffsimError as error:
                error.leave_package()
                raise
        return self._shape

    @property
    def n(self) -> int:
        """Rows of an element (1 for scalars).

        Example:
            print(ds.Matrix.field(2, 3, ds.f32, shape=4).n)  # prints: 2
        """
        return self.element[0] if self.element else 1

    @property
    def m(self) -> int:
        """Columns of an element (1 for scalars and vectors).

        Example:
            print(ds.Matrix.field(2, 3, ds.f32, shape=4).m)  # prints: 3
        """
        return self.element[1] if len(self.element) == 2 else 1

    @property
    def element_shape(self) -> tuple[int, ...]:
        """The shape of an element: () of numbers, (n,) of vectors, (n, m) of matrices.

        Example:
            print(ds.Matrix.field(2, 3, ds.f32, shape=4).element_shape)  # prints: (2, 3)
        """
        return self.element

    @property
    def address(self) -> int:
        """Address of the first scalar."""
        return self.storage.address

    @property
    def origin(self) -> tuple[int, ...]:
        """The index of its first element: (0, ...), or the `offset` that it was made with."""
        return self._mem.origin

    @property
    def placed(self) -> bool:
        """Whether its memory is allocated."""
        return self._shape is not None

    @property
    def needs_grad(self) -> bool:
        """Whether it was declared with a gradient.

        Example:
            print(ds.field(ds.f32, shape=3, needs_grad=True).needs_grad)  # prints: True
        """
        return self.declares_grad

    @property
    def grad(self) -> Field | None:
        """The field of its gradient.

        Example:
            x = ds.field(ds.f32, shape=3, needs_grad=True)
            x.grad.fill(2.0)
            print(x.grad.shape, x.grad[0])  # prints: (3,) 2.0
        """
        return self.adjoint if self.declares_grad else asked_grad(self)

    @property
    def needs_dual(self) -> bool:
        """Whether it was declared with tangents, for forward mode.

        Example:
            print(ds.field(ds.f32, shape=3, needs_dual=True).needs_dual)  # prints: True
        """
        return self.declares_dual

    @property
    @entry
    def dual(self) -> Field:
        """The field of its tangent, which forward mode computes.

        Example:
            x = ds.field(ds.f32, shape=3, needs_dual=True)
            x.dual[0] = 1.0  # the direction of a derivative
            print(x.dual.shape)  # prints: (3,)
        """
        return narrow_dual(self)

    @checked
    def get_scalar_field(self, *indices: int) -> ComponentField:
        """Return a component of the elements as a field of numbers that shares their memory.

        Args:
            indices: the index in an element: of a vector one number, of a matrix two.

        Example:
            places = ds.Vector.field(2, ds.f32, shape=4)
            heights = places.get_scalar_field(1)
            heights[3] = 2.0
            print(places[3].to_list())  # prints: [0.0, 2.0]
        """
        return component_of(self, indices)

    def fields(self) -> list[Field]:
        """Return the field: a field of structs has several."""
        return [self]

    def __repr__(self) -> str:
        return display.summary(self)

    def __str__(self) -> str:
        return display.text(self)

    def _repr_html_(self) -> str:
        return display.page(self)

    def add_grad(self, *, declared: bool = True) -> None:
        """Give the field a gradient of its own shape (`declared`: that the program may read)."""
        make_grad(self, declared)

    def new_derivative(self, what: str) -> Field:
        """Make a gradient ("grad") or "dual", of the type of derivatives; it has no place yet."""
        name = f"{self.given_name}.{what}" if self.given_name else ""
        dual = what == "dual"
        return Field(
            self.dtype.arithmetic,
            self.element,
            name=name,
            soa=self.soa,
            kind=self.kind,
            is_grad=not dual,
            is_dual=dual,
        )

    def add_dual(self) -> None:
        """Give the field a dual of its own shape, which the program may read."""
        if self.dtype.is_float and not self.is_dual:  # integers have no derivative
            make_dual(self, 1)
            self.declares_dual = True

    # ---- writes from Python

    def _touch(self, row: int | None = None, key: object = None, value: object = None) -> None:
        """Note a write from Python: advance the clock, and set the version (of a row).

        The value of the element with this key was written (... of all); None: other values.
        """
        # The clock ticks after the write, and its reading is the version: any adjoint of an earlier launch
        # that loads these elements is refused from now on (docs/adr/0004).
        session.clock = now = session.clock + 1
        # 0 is `_touch`, 1 the public method, 2 the user's statement (or a wrapper of the method).
        frame: Any = sys._getframe(2)
        while IS_OWN[frame.f_code.co_filename] and frame.f_back is not None:
            frame = frame.f_back
        writer = frame.f_code, frame.f_lasti
        v = self.versions
        if row is None:  # as `Versions.written`, without a call
            v.latest = v.whole = now
            v.writer, v.dirty = writer, True
        else:
            v.written(row, now, writer)
        _note((now, self.number, row, key, value, writer))

    def _before(self, index: tuple[int, ...] | None = None) -> None:
        """Announce a write from Python to a recorder that intercepts writes."""
        tape = session.recorders and session.writes_to  # one test while no tape records
        if tape and tape.intercepts:
            tape.writing(self, None if index is None else self.versions.row_at(index))

    def _before_element(self, tape: Any, key: object) -> None:
        """Announce a write to an element."""
        if tape.intercepts:
            self._before(index_of(self, key))

    def __getitem__(self, key: object) -> Any:
        try:
            # A launch of another thread is in progress: its elements are not defined yet (docs/adr/0022).
            if closed[0]:
                wait()
            if not self.element:
                if session.recorders and is_followed(self):
                    return FieldElement.of(self, index_of(self, key))
                if key.__class__ is int and self._step and 0 <= key < self._shape[0]:  # type: ignore[index]
                    return self._flat[key * self._step]
                if key is None and not self._shape:
                    return self._flat[0]
                return self._flat[self._place(key)]
            at = self._place(key)
            found = self._storage.element(at)
            made = Matrix(found.reshape(self.element), self.dtype, owner=self._mem.handle, at=at)
            if session.recorders and is_followed(self):
                made.provenance = Provenance.of(self)
            return made
        except DiffsimError as error:
            error.leave_package()
            raise

    def __setitem__(self, key: object, value: object) -> None:
        try:
            followed = None
            lost = None
            if closed[0]:
                wait()
            if key is not None and not self._step and (row := row_of(self, key)):
                set_row(self, row, value)
                return
            tape = session.recorders and session.writes_to
            if tape:
                if value.__class__ not in (int, float):
                    lost = lost_source(self, value)
                if isinstance(value, Tracked):
                    followed, value = followed_by_tape(self, value), value.value
                # Before anything changes, since a recorder may copy what is overwritten.
                self._before_element(tape, key)
            known = value
            if not self.element:
                # The memoryview checks numbers in C; what it refuses is converted, or explained, below.
                try:
                    if key is None and not self._shape:
                        self._flat[0] = value
                    elif key.__class__ is int and self._step and 0 <= key < self._shape[0]:  # type: ignore[index]
                        self._flat[key * self._step] = value
                    else:
                        self._storage.set_element(self._place(key), scalar_of(self, value))
                except (TypeError, ValueError, OverflowError):
                    self._storage.set_element(self._place(key), scalar_of(self, value))
            else:
                made = element_of(self, value)
                self._storage.set_element(self._place(key), made)
                known = session.contents_of(made)
            # Stamps the row alone if there are rows: writing x[t + 1] leaves x[t] current.
            if self.versions.axis is None and self.tree is None:
                self._touch(None, key, known)
            else:
                self._touch(activate_written(self, key), key, known)
            if not tape:
                return
            if followed is not None:
                tape.stored(self, index_of(self, key), followed)
            else:
                # As memory holds it now.
                tape.wrote(self, self._index_of_written(key), self._written(value))
                if lost:
                    tape.lost(lost)
        except DiffsimError as error:
            error.leave_package()
            raise

    def _index_of_written(self, key: object) -> tuple[int, ...]:
        """Return the index of an element that has been found to be there."""
        return (key,) if key.__class__ is int and self._step else index_of(self, key)

    def set_components(self, at: int, was: np.ndarray, value: Matrix) -> None:
        """Set an element that was read, some components of which have been changed."""
        set_components(self, at, was, value)

    def _place(self, key: object) -> int:
        """Return the number of an element's first component among the scalars in memory."""
        return number_of(self, index_of(self, key))
