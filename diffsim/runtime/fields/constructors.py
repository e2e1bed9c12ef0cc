"""Makes fields and arrays: `ds.field`, `ds.ndarray`, and what `ds.Vector.field` and the like call."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import numpy as np

from diffsim.errors import DtypeError, FieldError, OptionError, Span, shown
from diffsim.ir.types import ScalarType, TensorType
from diffsim.lang.host.annotations import as_of_now, scalar_type
from diffsim.lang.host.signatures import checked, need_bool
from diffsim.lang.types.structs import StructType
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.component_field import ComponentField
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.protocols import FieldProtocols
from diffsim.tracebacks import entry


class Layout:
    """How the components of a vector field lie in memory.

    Example:
        v = ds.Vector.field(3, ds.f32, shape=8, layout=ds.Layout.SOA)  # all x, then all y, then all z
        v[0] = [1.0, 2.0, 3.0]
        print(v[0])  # prints: [1.0, 2.0, 3.0]
    """

    AOS = "aos"
    """All components of an element side by side (default)."""
    SOA = "soa"
    """One block for each component."""


class _AnyKind(PublicNames):
    """The answers of `isinstance` and `issubclass` for `ds.Field`."""

    def __instancecheck__(cls, thing: object) -> bool:  # noqa: N805 - of a metaclass
        return issubclass(type(thing), cls)

    def __subclasscheck__(cls, kind: type) -> bool:  # noqa: N805
        return (
            issubclass(kind, FieldProtocols)
            if cls is AnyField
            else type.__subclasscheck__(cls, kind)
        )


class AnyField(Field, metaclass=_AnyKind):  # noqa: D101 - below
    # The public `ds.Field`: to `isinstance` fields of structs and components of fields are fields, too.
    __doc__ = Field.__doc__
    _public = Field._public


AnyField.__name__ = "Field"


class _Kind(type):
    """Properties that `isinstance` tests beyond the class: a field's kind, and the axes of an element."""

    _kind: str
    _axes: tuple[int, ...]

    def __instancecheck__(cls, thing: object) -> bool:
        if isinstance(thing, ComponentField):
            return cls is ScalarField
        return (
            isinstance(thing, Field) and thing.kind == cls._kind and len(thing.element) in cls._axes
        )

    @entry
    def __call__(cls, *args: Any, **named: Any) -> Any:
        if "__new__" not in vars(cls):
            raise FieldError(
                f"ds.{cls.__name__} makes nothing: it is for isinstance(x, ds.{cls.__name__})",
                Span.of_caller(),
                hint="fields are made by ds.field and ds.Vector.field, arrays by ds.ndarray",
            )
        return super().__call__(*args, **named)

    @property
    def __signature__(cls) -> inspect.Signature:
        """The parameters of `__new__`, which `help` and editors show."""
        shown = inspect.signature(cls.__new__)
        return shown.replace(parameters=list(shown.parameters.values())[1:])


class ScalarField(metaclass=_Kind):
    """For `isinstance(x, ds.ScalarField)`: a field of numbers, made by `ds.field`; or a component.

    Example:
        print(isinstance(ds.field(ds.f32, shape=3), ds.ScalarField))  # prints: True
    """

    _kind = "field"
    _axes: tuple[int, ...] = (0,)


class MatrixField(metaclass=_Kind):
    """For `isinstance(x, ds.MatrixField)`: a field of vectors or matrices; made by `ds.Vector.field`.

    Example:
        print(isinstance(ds.Vector.field(2, ds.f32, shape=3), ds.MatrixField))  # prints: True
    """

    _kind = "field"
    _axes: tuple[int, ...] = (1, 2)


class Ndarray(metaclass=_Kind):
    """For `isinstance(x, ds.Ndarray)`: an array, made by `ds.ndarray` and the like.

    Example:
        print(isinstance(ds.ndarray(ds.f32, shape=3), ds.Ndarray))  # prints: True
    """

    _kind = "array"
    _axes: tuple[int, ...] = (0, 1, 2)


class ScalarNdarray(Ndarray):
    """`ds.ScalarNdarray(ds.f32, shape)` makes an array of numbers, as `ds.ndarray` does.

    Example:
        print(ds.ScalarNdarray(ds.f32, (2, 3)).shape)  # prints: (2, 3)
    """

    _axes = (0,)

    @checked
    def __new__(cls, dtype: object, arr_shape: object) -> Field:  # type: ignore[misc]
        """Make an array of numbers."""
        return make_ndarray((), dtype, arr_shape, needs_grad=False)


class VectorNdarray(Ndarray):
    """`ds.VectorNdarray(3, ds.f32, shape)` makes an array of vectors, as `ds.Vector.ndarray` does.

    Example:
        print(ds.VectorNdarray(3, ds.f32, 4).to_numpy().shape)  # prints: (4, 3)
    """

    _axes = (1,)

    @checked
    def __new__(cls, n: int, dtype: object, shape: object) -> Field:  # type: ignore[misc]
        """Make an array of vectors of n numbers."""
        return make_ndarray((n,), dtype, shape, needs_grad=False)


class MatrixNdarray(Ndarray):
    """`ds.MatrixNdarray(2, 3, ds.f32, shape)` makes an array of matrices, as `ds.Matrix.ndarray` does.

    Example:
        print(ds.MatrixNdarray(2, 3, ds.f32, 4).to_numpy().shape)  # prints: (4, 2, 3)
    """

    _axes = (2,)

    @checked
    def __new__(cls, n: int, m: int, dtype: object, shape: object) -> Field:  # type: ignore[misc]
        """Make an array of matrices of n rows and m columns."""
        return make_ndarray((n, m), dtype, shape, needs_grad=False)


def checked_shape(shape: object) -> tuple[int, ...]:
    """Return a shape as a tuple of positive ints."""
    if shape is None:
        shape = ()
    # An array that NumPy has computed the sizes in, too; one without axes is a number.
    several = (tuple, list, np.ndarray) if getattr(shape, "ndim", 1) else (tuple, list)
    dims: Any = shape if isinstance(shape, several) else (shape,)
    made = []
    for d in dims:
        try:
            n = operator.index(d)
        # Takes NumPy's integers, and refuses 2.0, as a length of an array does.
        except TypeError:
            n = 0
        # True is an integer in Python, and never meant as a length.
        if n < 1 or isinstance(d, bool):
            raise FieldError(
                f"a shape is made of whole numbers from 1 on, not {shown(shape)}",
                Span.of_caller(),
                hint="write shape=n, shape=(n, m), or shape=() for a single element",
            )
        made.append(n)
    return tuple(made)


def checked_offset(offset: object, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of the first element along each axis: ints, as many as there are axes."""
    is_several = isinstance(offset, (tuple, list, np.ndarray))
    given: Any = offset if is_several else (offset,) * min(len(shape), 1)
    try:
        made = [operator.index(o) for o in given]
    except TypeError:
        made = []
    # True is an integer in Python, and never meant as an index.
    wrong = any(isinstance(o, bool) for o in given) or any(abs(o) >= 2**31 for o in made)
    if wrong or len(made) != len(shape):
        raise FieldError(
            f"an offset is a whole number for each axis, not {shown(offset)} for shape {shape}",
            Span.of_caller(),
            hint="write offset=-2, or offset=(-2, -4): the index of the first element",
        )
    return tuple(made)


def checked_order(order: object, rank: int) -> tuple[int, ...]:
    """Return the axes from slowest to fastest, of `order="ji"`."""
    names = "ijklmnop"[:rank]
    if not isinstance(order, str) or sorted(order) != sorted(names):
        raise FieldError(
            f"an order names each axis once, slowest first, not {shown(order)} for {rank} axes",
            Span.of_caller(),
            hint=f'write order="{names[::-1]}"; axes are named {names}' if rank else "leave it out",
        )
    return tuple(map(names.index, order))


def check_float(dtype: ScalarType, what: str) -> None:
    """Refuse a gradient or dual of integers."""
    if not dtype.is_float:
        raise DtypeError(
            f"a field of {dtype} cannot have a {what}",
            Span.of_caller(),
            hint="only floats have derivatives: use ds.f32 or ds.f64",
        )


def make_field(
    element: tuple[int, ...],
    dtype: object,
    shape: object,
    name: str,
    needs_grad: bool,
    layout: object,
    needs_dual: bool = False,
    offset: object = None,
    order: object = None,
) -> Field:
    """Make a field; without a shape it waits for a place in a layout tree."""
    for n in element:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < 2**16:
            raise FieldError(
                f"an element has at least one component, not {shown(n)}",
                Span.of_caller(),
                hint="write ds.Vector.field(3, ds.f32, shape=n)",
            )
    if not isinstance(name, str):
        raise FieldError(
            f"the name of a field is a text, not {shown(name)}",
            Span.of_caller(),
            hint='write name="x"',
        )
    if layout is not None and not (isinstance(layout, str) and layout in (Layout.AOS, Layout.SOA)):
        raise OptionError(
            f"{shown(layout)} is not a layout",
            Span.of_caller(),
            hint="use ds.Layout.AOS or ds.Layout.SOA",
        )
    need_bool(needs_grad, "needs_grad")
    need_bool(needs_dual, "needs_dual")
    made = Field(
        scalar_type(float if dtype is None else dtype), element, name=name, soa=layout == Layout.SOA
    )
    if needs_grad or needs_dual:
        check_float(made.dtype, "gradient" if needs_grad else "dual")
    # Before `place`, which gives all their memory in one layout.
    if needs_grad:
        made.add_grad()
    if needs_dual:
        made.add_dual()
    if shape is None:
        for given, what in ((offset, "offset"), (order, "order")):
            if given is not None:
                raise FieldError(
                    f"{what} is for fields with a shape",
                    Span.of_caller(),
                    hint="give shape=..., or place it: ds.root.dense(ds.i, n).place(x, offset=-2)",
                )
        return made
    dims = checked_shape(shape)
    made.place(
        dims,
        None if order is None else checked_order(order, len(dims)),
        origin=() if offset is None else checked_offset(offset, dims),
    )
    return made


def make_ndarray(
    element: tuple[int, ...],
    dtype: object,
    shape: object,
    needs_grad: bool,
    needs_dual: bool = False,
) -> Field:
    """Make an array: a field that kernels get as an argument, for any shape."""
    made = make_field(element, dtype, None, "", needs_grad, None, needs_dual)
    # Kernels see its memory through a parameter, so one compiled kernel serves all arrays of a type and
    # number of axes.
    made.kind = "array"
    made.place(checked_shape(shape))
    return made


@checked
def field(
    dtype: object = None,
    shape: object = None,
    order: object = None,
    name: str = "",
    offset: object = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    layout: object = None,
) -> Any:
    """Make a field of numbers, vectors, matrices or structs.

    Args:
        dtype: scalar type, `ds.types.vector/matrix`, or a struct; the default float if left out.
        shape: number of elements along each axis, () for a single one. Without a shape the field waits
            to be placed: `ds.root.dense(ds.i, n).place(x)`.
        order: the axes in memory, slowest first: "ji" for columns side by side.
        name: for messages; else the variable's name in the first kernel that uses it.
        offset: the index of its first element, a number for each axis; 0 if left out.
        needs_grad: whether gradients with respect to it are wanted (`x.grad`).
        needs_dual: whether forward mode's tangents of it are wanted (`x.dual`).
        layout: for vector fields, `ds.Layout.AOS` or `ds.Layout.SOA`.

    Raises:
        ArgumentError: a shape, type or option that makes no sense.
        OutOfMemoryError: there is no memory for it.

    Example:
        x = ds.field(ds.f32, shape=(4, 8), needs_grad=True)
        x[1, 2] = 3.0
        print(x.to_numpy().sum())  # prints: 3.0
    """
    dtype = as_of_now(dtype)
    if isinstance(dtype, StructType):
        if order is not None:
            raise OptionError(
                "order is for fields of numbers, vectors and matrices, these are structs",
                Span.of_caller(),
                hint="leave it out, or place it: "
                f"x = {dtype.__name__}.field(); ds.root.dense(ds.ji, n).place(x)",
            )
        return dtype.field(
            shape,
            name=name,
            needs_grad=needs_grad,
            layout=layout,
            needs_dual=needs_dual,
            offset=offset,
        )
    if isinstance(dtype, TensorType):
        element, dtype = dtype.shape, dtype.scalar
    else:
        element = ()
    return make_field(element, dtype, shape, name, needs_grad, layout, needs_dual, offset, order)


@checked
def ndarray(
    dtype: object, shape: object, needs_grad: bool = False, needs_dual: bool = False
) -> Field:
    """Make an array for arguments annotated `ds.types.ndarray()`; used from Python like a field.

    Args:
        dtype: scalar type, or `ds.types.vector/matrix`.
        shape: number of elements along each axis.
        needs_grad: whether gradients with respect to it are wanted.
        needs_dual: whether forward mode's tangents of it are wanted (`x.dual`).

    Example:
        a = ds.ndarray(ds.types.vector(2, ds.f32), shape=8)
        a[0] = [1.0, 2.0]
        print(a.shape, a[0])  # prints: (8,) [1.0, 2.0]
    """
    dtype = as_of_now(dtype)
    if isinstance(dtype, TensorType):
        return make_ndarray(dtype.shape, dtype.scalar, shape, needs_grad, needs_dual)
    return make_ndarray((), dtype, shape, needs_grad, needs_dual)
