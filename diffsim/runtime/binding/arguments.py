"""A kernel's signature: which parameters are compiled in, which are passed at each launch, and how."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, KernelSyntaxError, KernelTypeError, Span, shown
from diffsim.ir.layout import packed_strides
from diffsim.ir.nodes import Arg, Mem
from diffsim.ir.op import Tracked
from diffsim.ir.types import (
    ScalarType,
    TensorType,
    Type,
    an,
    derivative_type,
    from_numpy,
    i32,
    i64,
    size_of,
    tensor,
)
from diffsim.lang.frontend.expressions import ArrayRef
from diffsim.lang.host.annotations import ArrayAnnotation, Template, scalar_type
from diffsim.lang.host.provenance import source_of
from diffsim.lang.host.source import Source
from diffsim.lang.types import flattening
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.flattening import ResultForm
from diffsim.lang.types.structs import Struct, StructType
from diffsim.runtime.fields.conversions import array_of, refuse_mask
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import Element
from diffsim.runtime.memory.packed_arrays import memory_key
from diffsim.runtime.session import session


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: `kind` is "value", "array", "template", "struct" or "self".

    A struct is passed as `parts`, one value for each number, vector or matrix in it.
    """

    name: str
    kind: str
    type: Type | None = None
    array: ArrayAnnotation | None = None
    struct: StructType | None = None
    parts: tuple[Parameter, ...] = ()


class Signature:
    """The parameters of a kernel and the type it returns.

    Raises:
        KernelSyntaxError: a parameter without an annotation, *args, and the like.
    """

    def __init__(self, source: Source, *, method: bool) -> None:
        self.source = source
        function = source.function
        self.parameters: list[Parameter] = []
        hints = source.annotations()
        for k, p in enumerate(inspect.signature(function).parameters.values()):
            # *args and keyword-only parameters have no fixed place in the positional fast path of a launch.
            if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY):
                raise KernelSyntaxError(
                    f"{p.name} comes with or after a *, and a kernel has plain parameters only",
                    source.parameter(p.name),
                    hint="name each parameter, without *",
                )
            if k == 0 and method:
                # `self` is compiled in: its attributes are captured values.
                self.parameters.append(Parameter(p.name, "self"))
                continue
            if p.name not in hints:
                raise KernelSyntaxError(
                    f"the parameter {p.name} has no type",
                    source.parameter(p.name),
                    hint=f"write {p.name}: ds.f32, {p.name}: ds.i32, {p.name}: ds.template(), "
                    f"{p.name}: ds.types.ndarray(), ...",
                )
            self.parameters.append(_parameter(p.name, hints[p.name], source))
        result = hints.get("return")
        # Several values are returned in one vector, which `form` reads.
        self.form = _result_form(result, source)
        self.result: Type | None = self.form.carrier if self.form else None
        if result is not None and self.form is None:
            self.result = _value_type(result, source, "return")
        self.names = [p.name for p in self.parameters if p.kind != "self"]
        # Whether arguments and result are passed as they are, by the launch function itself.
        self.by_value = [(k, p) for k, p in enumerate(self.parameters) if p.kind == "value"]
        self.direct = self.form is None and all(
            p.kind in ("value", "self") for p in self.parameters
        )
        self.defaults = inspect.signature(function)
        # Python itself binds keywords and defaults, in C; the other way is only for its errors.
        self.binder = self._new_binder()

    def _new_binder(self) -> Callable[..., tuple[Any, ...]]:
        """Return a function with the kernel's parameters and defaults that returns its arguments."""
        space: dict[str, Any] = {}
        texts = []
        for n in self.names:
            default = self.defaults.parameters[n].default
            # Passed as a global: a default may be any object, which has no source text.
            if default is not inspect.Parameter.empty:
                # A default is evaluated outside the function, so no parameter can hide this name.
                space[f"default_of_{n}"] = default
                n = f"{n}=default_of_{n}"
            texts.append(n)
        # The trailing comma makes a tuple of one.
        made = "".join(f"{n}, " for n in self.names)
        return eval(f"lambda {', '.join(texts)}: ({made})", space)

    def bind_by_name(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[Any, ...]:
        """Do what `binder` does in small steps, to say what is wrong with a call.

        Raises:
            KernelTypeError: the call does not fit.
        """
        names = self.names
        given = dict(zip(names, args, strict=False))
        where = Span.of_caller()
        name = self.source.name
        hint = f"its definition is def {name}({ast.unparse(self.source.node.args)})"
        takes = f"{name} takes {len(names)} argument{'s' * (len(names) != 1)}"
        if len(args) > len(names):
            raise KernelTypeError(f"{takes}, {len(args)} given", where, hint)
        for k, v in kwargs.items():
            if k not in names:
                raise KernelTypeError(f"{name} has no parameter {k}", where, hint)
            if k in given:
                raise KernelTypeError(f"{name} gets {k} twice", where, hint)
            given[k] = v
        made = []
        for n in names:
            if n not in given:
                default = self.defaults.parameters[n].default
                if default is inspect.Parameter.empty:
                    shown = f"{takes}, {len(args) + len(kwargs)} given: {n} is missing"
                    raise KernelTypeError(shown, where, hint)
                given[n] = default
            made.append(given[n])
        return tuple(made)


def _parameter(name: str, hint: object, source: Source) -> Parameter:
    if isinstance(hint, Template):
        return Parameter(name, "template")
    if isinstance(hint, ArrayAnnotation):
        return Parameter(name, "array", None, hint)
    if isinstance(hint, StructType):
        parts = tuple(
            Parameter(f"{name}__{k}", "value", t) for k, t in enumerate(flattening.leaves(hint))
        )
        return Parameter(name, "struct", struct=hint, parts=parts)
    return Parameter(name, "value", _value_type(hint, source, name))


def _value_type(hint: object, source: Source, name: str) -> Type:
    if isinstance(hint, TensorType):
        return hint
    try:
        return scalar_type(hint)
    except ArgumentError:
        raise KernelSyntaxError(
            f"{describe(hint)} is not a type for "
            + ("a result" if name == "return" else f"the parameter {name}"),
            source.parameter(name),
            hint="use ds.f32, ds.i32, ..., ds.types.vector(n, ds.f32), ds.template(), "
            "ds.types.ndarray()",
        ) from None


def _result_form(result: object, source: Source) -> ResultForm | None:
    try:
        return flattening.result_form(result)
    except ArgumentError as problem:
        raise KernelSyntaxError(
            problem.message, source.parameter("return"), hint="write (ds.f32, ds.i32)"
        ) from None


# ---- values


def struct_values(p: Parameter, value: object, kernel: str) -> list[Any]:
    """Return the values of a struct argument, one for each part.

    Raises:
        KernelTypeError: it is no struct of that type.
    """
    t = p.struct
    assert t is not None
    if isinstance(value, Element):
        value = value._now()
    if not isinstance(value, Struct) or value._type is not t:
        raise KernelTypeError(
            f"{p.name} of {kernel} is a {t.__name__}, not {describe(value)}",
            Span.of_caller(),
            hint=f"make one: {t.__name__}(...)",
        )
    found = list(flattening.parts(t, value))
    if session.tape is not None and (source := source_of(found)) is not None:
        source.refuse(p.name, "give the kernel the fields of the members")
    return found


def flatten(p: Parameter, value: object, kernel: str) -> list[Any]:
    """Flatten one argument to scalars, and check each.

    Raises:
        KernelTypeError: it cannot be converted without loss.
    """
    t = p.type
    assert t is not None
    if isinstance(t, TensorType):
        # An array of a ragged list has objects for elements; its shape may agree by chance.
        made = array_of(value)
        if made.shape != t.shape or made.dtype == object:
            raise KernelTypeError(
                f"{p.name} of {kernel} is {an(t)}, not {describe(value)}",
                Span.of_caller(),
                hint="pass a list or an array of that shape",
            )
        # Floats at once, as each is below; any of them fits.
        if t.scalar.is_float and made.dtype.kind == "f" and made.dtype.itemsize <= 8:
            with np.errstate(over="ignore"):
                numbers: list[Any] = made.astype(t.scalar.numpy).ravel().tolist()
            return numbers
        # `item` gives Python's numbers, so that the checks below are those of scalar arguments.
        return [scalar_argument(p, t.scalar, x.item(), kernel) for x in made.ravel()]
    return [scalar_argument(p, t, value, kernel)]


def scalar_argument(p: Parameter, t: ScalarType, value: Any, kernel: str) -> Any:
    """Check and convert one scalar of an argument."""
    # NumPy's functions may return 0-D arrays in place of numbers.
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Tracked) and not value.follows():
        # A value that the tape no longer follows is a constant.
        value = value.value
    if t.is_bool:
        # No floats: `bool(0.5)` is seldom meant. Integers of 0 and 1 are common in configurations.
        if isinstance(value, (bool, np.bool_, int)):
            return bool(value)
    elif t.is_float:
        if isinstance(value, (int, float, np.floating, np.integer)):
            # Rounded to the type here, so that what is packed, recorded and shown is the value that the
            # kernel gets.
            try:
                # Infinity is the right f32 of a large f64, as in a conversion by IEEE 754; no warning is due.
                with np.errstate(over="ignore"):
                    return t.numpy.type(value).item()
            # An integer of Python beyond the range of a double, which has no nearest float.
            except OverflowError:
                raise KernelTypeError(
                    f"{p.name} of {kernel} is {an(t)}, and {shown(value)} does not fit into it",
                    Span.of_caller(),
                    hint="pass a float",
                ) from None
    else:
        try:
            # As Python itself asks for an index: takes NumPy's integers, refuses 2.0.
            number = operator.index(value)
        except TypeError:
            number = None
        if number is not None:
            # Never wraps around: 2**31 given for an i32 would be a negative index silently.
            if t.holds(number):
                return number
            raise KernelTypeError(
                f"{p.name} of {kernel} is {an(t)}, and {shown(number)} does not fit into it",
                Span.of_caller(),
                hint=f"annotate it {p.name}: ds.i64",
            )
    # The hints of the likely mistakes, before the general one.
    hint = None
    if isinstance(value, Field):
        hint = f"annotate it {p.name}: ds.template() to pass a field"
    elif isinstance(value, np.ndarray):
        hint = f"annotate it {p.name}: ds.types.ndarray() to pass an array"
    elif isinstance(value, float):
        hint = f"pass int(...), or annotate it {p.name}: float"
    raise KernelTypeError(
        f"{p.name} of {kernel} is {an(t)}, not {describe(value)}",
        Span.of_caller(),
        hint or "pass a number",
    )


# ---- fields in place of floats


def takes_field(p: Parameter, value: object) -> bool:
    """Return whether the value is a field, whose element the launch reads for a float parameter."""
    return isinstance(value, Field) and p.kind == "value" and p.type is not None and p.type.is_float


def field_kind(p: Parameter, field: Field, kernel: str) -> ArrayKind:
    """Return the kind of a 0-D field that is given for a number, vector or matrix.

    Raises:
        KernelTypeError: the field has several elements, or elements of another type.
    """
    assert p.type is not None
    have = tensor(field.dtype, field.element)
    # No conversion: the kernel loads the element as it lies in memory, and its gradient is added there.
    if field.shape != () or have != p.type:
        many = f", of shape {field.shape}" if field.shape != () else ""
        raise KernelTypeError(
            f"{p.name} of {kernel} is {an(p.type)}, and {field.in_words()} has elements of type "
            f"{have}{many}",
            Span.of_caller(),
            hint=f"annotate it {p.name}: ds.template() to pass a field"
            if field.shape != ()
            else f"pass a 0-D field of type {p.type}",
        )
    # Rank 0: no index, so 32 bits do.
    return ArrayKind(have, 0, field.adjoint is not None, False, field.is_grad)


# ---- arrays

_MOST_SHAPES = 4
"""Combinations of equal shapes that a kernel is compiled for; beyond, it is for all others at once."""


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """The properties of an array argument that the kernel is compiled for.

    Attributes:
        dtype: element type.
        rank: number of axes.
        grad: whether it has a gradient.
        large: whether indices need 64 bits.
        is_grad: whether it is a gradient itself.
        same: the earlier array parameter (its number among them) that gets the same array; -1: none.
        like: the first array parameter that gets an array of the same shape; -1: this one, or it may differ.
        shape: the lengths of all axes that the kernel is compiled for; None: any.
    """

    dtype: Type
    rank: int
    grad: bool
    large: bool
    is_grad: bool = False
    same: int = -1
    like: int = -1
    shape: tuple[int, ...] | None = None


def array_kind(p: Parameter, value: object, kernel: str) -> ArrayKind:
    """Return the kind of an array argument.

    Raises:
        KernelTypeError: not an array, or of the wrong type or number of axes.
    """
    assert p.array is not None
    want = p.array
    where = f"{p.name} of {kernel}"
    if isinstance(value, Field):
        dtype: Type = tensor(value.dtype, value.element)
        # The kernel computes addresses from the shape alone; a field with other strides is compiled in
        # instead, where its strides are constants.
        if value.tree is not None:
            raise KernelTypeError(
                f"{where}: a field in a sparse tree cannot be passed as an array",
                Span.of_caller(),
                hint=f"annotate it {p.name}: ds.template()",
            )
        if any(value.origin):
            raise KernelTypeError(
                f"{where}: a field with an offset cannot be passed as an array",
                Span.of_caller(),
                hint=f"annotate it {p.name}: ds.template()",
            )
        if value.soa or value._strides != packed_strides(value.shape, size_of(dtype)):
            raise KernelTypeError(
                f"{where}: a field with this layout cannot be passed as an array",
                Span.of_caller(),
                hint=f"annotate it {p.name}: ds.template()",
            )
        shape, grad, is_grad = value.shape, value.adjoint is not None, value.is_grad
    elif isinstance(value, (np.ndarray, DeviceArray)):
        dtype, shape = _foreign_kind(value, want, where)
        grad = is_grad = False
    else:
        hint = "pass np.array(...), or a ds.ndarray"
        # Their memory is the host's: NumPy can share it without a copy.
        if hasattr(value, "__array_interface__") or type(value).__module__.startswith("torch"):
            hint = "convert it with np.asarray, which shares the memory"
        raise KernelTypeError(f"{where} is an array, not {describe(value)}", Span.of_caller(), hint)
    # The annotation may name the element or its scalar.
    if want.dtype is not None and want.dtype not in (dtype, dtype.scalar):
        raise KernelTypeError(
            f"an element of {where} is {an(want.dtype)}, one of this array {an(dtype)}",
            Span.of_caller(),
            hint="convert the array, or leave dtype out of the annotation",
        )
    if want.ndim is not None and want.ndim != len(shape):
        raise KernelTypeError(
            f"the number of axes of {where} is {want.ndim}, that of this array {len(shape)}",
            Span.of_caller(),
            hint="reshape the array, or leave ndim out of the annotation",
        )
    if want.element_dim is not None and want.element_dim != len(dtype.shape):
        raise KernelTypeError(
            f"an element of {where} has {want.element_dim} axes, one of this array is {an(dtype)}",
            Span.of_caller(),
            hint="pass an array made by ds.Vector.ndarray, or name the element in the annotation: "
            "dtype=ds.types.vector(3, ds.f32)",
        )
    if want.element_shape is not None and want.element_shape != dtype.shape:
        raise KernelTypeError(
            f"an element of {where} has shape {want.element_shape}, one of this array is {an(dtype)}",
            Span.of_caller(),
            hint="pass an array of such elements, or leave element_shape out of the annotation",
        )
    if want.needs_grad and not grad:
        raise KernelTypeError(
            f"{where} needs a gradient, and this array has none",
            Span.of_caller(),
            hint="make it by ds.ndarray(..., needs_grad=True), or leave needs_grad out of the annotation",
        )
    if want.clamp and 0 in shape:
        raise KernelTypeError(
            f"{where} has no elements: no index can be clamped to one",
            Span.of_caller(),
            hint="launch the kernel only with arrays that have elements",
        )
    # 32-bit index arithmetic is faster on GPUs and in vectors, and is right up to this length of an axis.
    large = any(n > 2**31 - 1 for n in shape)
    return ArrayKind(dtype, len(shape), grad, large, is_grad)


def _foreign_kind(
    value: np.ndarray | DeviceArray, wanted: ArrayAnnotation, where: str
) -> tuple[Type, tuple[int, ...]]:
    """Return the type of an element of another library's array, and how many there are along each axis."""
    # The mask would be ignored, so that masked elements count.
    refuse_mask(value, where)
    # Numbers of another byte order are converted with the copy (`memory/packed_arrays.py`).
    scalar = from_numpy(value.dtype.newbyteorder("="))
    if scalar is None:
        raise KernelTypeError(
            f"{where}: arrays of {value.dtype} cannot be used in kernels",
            Span.of_caller(),
            hint=_how_to_convert(value.dtype),
        )
    # NumPy has no vectors as elements: the trailing axes are the components.
    element = wanted.element_shape or ()
    if isinstance(wanted.dtype, TensorType):
        element = wanted.dtype.shape
    elif wanted.element_dim and wanted.element_shape is None:
        element = value.shape[max(len(value.shape) - wanted.element_dim, 0) :]
    axes = len(value.shape) - (wanted.element_dim or len(element))
    if axes < 0 or value.shape[axes:] != element or 0 in element:
        few = wanted.element_dim and (axes < 0 or 0 in element)
        t = f"of {wanted.element_dim} axes" if few else an(tensor(scalar, element))
        raise KernelTypeError(
            f"an element of {where} is {t}, and the array has shape {value.shape}",
            Span.of_caller(),
            hint="the last axes of the array are those of an element"
            if few
            else f"the last axes of the array must be {element}",
        )
    return tensor(scalar, element), value.shape[:axes]


def _how_to_convert(dtype: np.dtype[Any]) -> str:
    """Advise what to pass in place of an array of a type that kernels do not have."""
    if dtype.names:
        return f"pass its members, each an array: array[{dtype.names[0]!r}]"
    if dtype.kind == "c":
        return "pass its parts, each an array: array.real, array.imag"
    return "convert it: array.astype(np.float32)"


def find_same(kinds: list[ArrayKind], values: Sequence[object]) -> list[ArrayKind]:
    """Return the kinds of a launch's arrays, with arrays that are passed twice marked."""
    made: list[ArrayKind] = []
    for k, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        for j in range(k):
            # Views of one memory with another type or shape are no duplicates: one memory has one type in the
            # kernel. `check_separate` refuses them where one of them is written.
            if kind == kinds[j] and _same_memory(value, values[j]):
                kind = dataclasses.replace(kind, same=j)
                break
        made.append(kind)
    return made


def _same_memory(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return memory_key(a) == memory_key(b)
    if isinstance(a, DeviceArray) and isinstance(b, DeviceArray):
        return (a.address, a.shape, a.dtype) == (b.address, b.shape, b.dtype)
    return a is b


def with_shapes(
    compiled: Collection[tuple[Any, ...]],
    key: list[Any],
    kinds: list[ArrayKind],
    arrays: Sequence[Any],
) -> list[ArrayKind]:
    """Return the kinds of a launch's arrays with their shapes, or with those marked whose shapes are equal.

    The first shapes that a kernel is launched with are numbers in its code. For others it is compiled once,
    or as often as there are combinations of equal shapes; beyond some of these for any shapes at all.

    Args:
        compiled: the keys of the kernel's specializations.
        key: what precedes the kinds in such a key.
        kinds: those of the arrays.
        arrays: fields, or arrays of others.
    """
    first: dict[tuple[int, ...], int] = {}
    made: list[ArrayKind] = []
    for k, (kind, array) in enumerate(zip(kinds, arrays, strict=True)):
        like = first.setdefault(array.shape[: kind.rank], k) if kind.rank else k
        made.append(kind if like == k else dataclasses.replace(kind, like=like))
    exact = [
        dataclasses.replace(kind, shape=tuple(array.shape[: kind.rank])) if kind.rank else kind
        for kind, array in zip(made, arrays, strict=True)
    ]
    whole = (*key, *kinds)
    alike = [k for k in compiled if shapeless(k) == whole]
    for found in (exact, made):
        if (*key, *found) in compiled:
            return found
    # Not with `deterministic=True`: bits would depend on which of a program's shapes came first.
    is_exact = session.backend.knows_shapes and not session.options.deterministic
    if is_exact and not alike and not any(0 in a.shape for a in arrays):
        return exact
    return made if len(alike) < _MOST_SHAPES else kinds


def shapeless(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the key of a specialization without what it says of shapes."""
    return tuple(
        dataclasses.replace(k, like=-1, shape=None) if isinstance(k, ArrayKind) else k for k in key
    )


def array_ref(
    name: str, kind: ArrayKind, *, clamp: bool = False, like: ArrayRef | None = None
) -> ArrayRef:
    """Return an array parameter as the translator sees it; `like`: that of an array of the same shape."""
    grad = None
    if kind.grad:
        t = derivative_type(kind.dtype)
        grad = Mem(f"{name}.grad", t, kind.rank, None, "array", is_grad=True)
    # No handle: the memory is bound at each launch.
    mem = Mem(name, kind.dtype, kind.rank, None, "array", grad, is_grad=kind.is_grad)
    if grad is not None:
        grad.like = mem
    if like is None:
        return ArrayRef(mem, i64 if kind.large else i32, clamp=clamp)
    mem.like = like._mem
    return ArrayRef(mem, i64 if kind.large else i32, clamp=clamp, shape=like.shape)


def set_shape(ref: ArrayRef, kind: ArrayKind) -> None:
    """Note the shape of an array parameter of a translated kernel in its memories."""
    for mem in (ref._mem, ref._mem.grad):
        if mem is not None:
            mem.shape = kind.shape


def make_args(parameters: list[Parameter]) -> dict[str, Arg]:
    """Return the run-time arguments, in order."""
    # Only values have a number: arrays are memories, and templates constants.
    values = [q for p in parameters for q in (p.parts or (p,)) if q.kind == "value"]
    return {p.name: Arg(p.type, p.name, k) for k, p in enumerate(values) if p.type is not None}
