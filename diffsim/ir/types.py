"""Types of values: scalars, and small tensors of static shape (vectors and matrices).

Both are interned, so types compare by identity. The Python names `ds.f32`, `ds.i32`, ... are the scalar
types themselves; called with a value inside a kernel they are casts.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from diffsim.errors import KernelTypeError, Span, shown
from diffsim.public_names import PublicNames, with_example


class ScalarType(metaclass=PublicNames):
    """A scalar type: `kind` is "f" (float), "i" (signed), "u" (unsigned) or "b" (boolean).

    Attributes:
        arithmetic: the type that ops on numbers of this type are computed in, and that their derivatives
            have. Another one than itself makes it a type of storage: results are rounded to it once.
    """

    _public = "bits name numpy"

    __slots__ = ("arithmetic", "bits", "code", "kind", "llvm", "name", "numpy")
    shape: tuple[int, ...] = ()

    def __init__(
        self,
        name: str,
        kind: str,
        bits: int,
        numpy: Any,
        llvm: str,
        code: str,
        arithmetic: ScalarType | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.bits = bits
        self.numpy = np.dtype(numpy)
        self.llvm = llvm
        self.code = code
        self.arithmetic = arithmetic or self

    def _description(self) -> str:
        """Say what `help(ds.f32)` shows."""
        name = "u1" if self.kind == "b" else self.name
        kind = {
            "f": f"Floating-point numbers of {self.bits} bits (IEEE 754)",
            "i": f"Integers of {self.bits} bits with a sign",
            "u": f"Integers of {self.bits} bits without a sign",
            "b": "Truth values",
        }[self.kind]
        text = f"""{kind}, `np.{self.numpy.name}` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.{name}`. Fields are made of it:
`ds.field(ds.{name}, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range."""
        return with_example(text, f"print(ds.{name}(2.75))  # prints: {self(2.75)}")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        # Unpickling must give the interned object, since types compare by identity.
        return (scalar, (self.name,))

    def __call__(self, *values: Any) -> Any:
        """Convert a Python number to this type (inside a kernel: a cast)."""
        if len(values) != 1:
            raise KernelTypeError(
                f"a conversion takes one value, not {len(values)}",
                Span.of_caller(),
                hint=f"write ds.{self}(value)",
            )
        (value,) = values
        try:
            # 0-D arrays are numbers; NumPy would convert larger ones element by element, and complex
            # ones with a warning.
            if isinstance(value, np.ndarray) and (value.ndim or value.dtype.kind not in "biuf"):
                raise TypeError
            number = value if isinstance(value, (bool, int, float, np.generic)) else float(value)
            return converted(number, self).item()
        except OverflowError as problem:
            hint = "write it as a float: 1e30"
            raise KernelTypeError(str(problem), Span.of_caller(), hint) from None
        except (TypeError, ValueError):
            raise KernelTypeError(
                f"{shown(value)} cannot be converted to {an(self)}",
                Span.of_caller(),
                hint="give a number; arrays have .astype(...), lists become vectors: ds.Vector([...])",
            ) from None

    @property
    def scalar(self) -> ScalarType:
        return self

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def for_storage(self) -> bool:
        """Whether numbers of this type are computed with in another one."""
        return self.arithmetic is not self

    @property
    def bytes(self) -> int:
        return int(self.numpy.itemsize)

    def keeps_index(self, of: ScalarType) -> bool:
        """Whether a cast from another integer type changes no index: u8(200) is -56 as an i8."""
        same_sign = of.kind == self.kind or (of.kind == "u" and of.bits < self.bits)
        return of.is_int and of.bits <= self.bits and (same_sign or self.bits >= 32)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest number of an integer type."""
        # `bool` has no limits of this kind; `holds` answers for it before.
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)

    def holds(self, number: float) -> bool:
        """Whether a whole number (or infinity, which an integer does not hold) fits."""
        if self.kind == "f":
            return True
        if self.kind == "b":
            return number in (0, 1)
        least, largest = self.limits
        return least <= number <= largest


f32 = ScalarType("f32", "f", 32, np.float32, "float", "f")
f64 = ScalarType("f64", "f", 64, np.float64, "double", "d")
# f32 has twice the digits and two more, so sums, products, quotients and roots that are rounded to f32 and
# then to f16 are the nearest f16 (S. A. Figueroa, When is double rounding innocuous?, SIGNUM 1995).
f16 = ScalarType("f16", "f", 16, np.float16, "half", "e", f32)
i8 = ScalarType("i8", "i", 8, np.int8, "i8", "b")
i16 = ScalarType("i16", "i", 16, np.int16, "i16", "h")
i32 = ScalarType("i32", "i", 32, np.int32, "i32", "i")
i64 = ScalarType("i64", "i", 64, np.int64, "i64", "q")
u8 = ScalarType("u8", "u", 8, np.uint8, "i8", "B")
u16 = ScalarType("u16", "u", 16, np.uint16, "i16", "H")
u32 = ScalarType("u32", "u", 32, np.uint32, "i32", "I")
u64 = ScalarType("u64", "u", 64, np.uint64, "i64", "Q")
bool_ = ScalarType("bool", "b", 1, np.bool_, "i1", "?")

SCALARS: dict[str, ScalarType] = {
    t.name: t for t in (f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)
}


def scalar(name: str) -> ScalarType:
    """Return the scalar type of that name."""
    return SCALARS[name]


def of_width(kind: str, bits: int) -> ScalarType:
    """Return the type of that kind ("f", "i", "u") and width: `of_width("i", 32)` is i32."""
    return SCALARS[f"{kind}{bits}"]


_LARGEST = 2**1024
"""Integers from here on are no floats."""


def converted(numbers: Any, to: ScalarType) -> Any:
    """Convert numbers to another type as kernels do: the definition of `cast`.

    An integer keeps the bits that the type has, so it wraps around. A float loses its fraction on the way to
    an integer; out of range it is the type's least or largest number, and NaN is 0. What is not 0 is true.

    Raises:
        OverflowError: an integer of more than 64 bits, or one that is no float.
    """
    # `object` is NumPy's type for integers beyond 64 bits.
    have = np.asarray(numbers)
    if have.dtype == object:
        if not to.is_float or have.shape or abs(numbers) >= _LARGEST:
            # NumPy would keep an array of Python objects, which no kernel can compute with.
            raise OverflowError(f"{shown(numbers)} does not fit into {an(to)}")
        have = np.asarray(float(numbers))
    if to.is_bool:
        return (have != 0)[()]
    # NumPy leaves float to integer conversion out of range undefined, as C does. Kernels saturate, as
    # LLVM's `llvm.fptosi.sat` and `llvm.fptoui.sat` are defined to (LangRef), so the range is tested
    # before.
    with np.errstate(all="ignore"):
        if not to.is_int or have.dtype.kind != "f":
            return have.astype(to.numpy)[()]
        least, largest = to.limits
        # The upper end as a power of two is exact in every float type; `largest` itself is not (2**63 -
        # 1).
        inside = (have > least) & (have < 2.0 ** (to.bits - (to.kind == "i")))
        made = np.where(inside, have, 0).astype(to.numpy)
        # NaN is neither inside nor above nor below, and stays 0.
        made[~inside & (have > 0)] = largest
        made[~inside & (have < 0)] = least
        return made[()]


class Sizes:
    """The sizes of a vector or matrix, or of a type of these, under Taichi's names."""

    __slots__ = ()
    shape: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of rows (of elements, of a vector).

        Example:
            print(ds.Matrix([[1, 2, 3], [4, 5, 6]]).n, ds.math.vec3.n)  # prints: 2 3
        """
        return self.shape[0]

    @property
    def m(self) -> int:
        """Number of columns (1 of a vector).

        Example:
            print(ds.Matrix([[1, 2, 3], [4, 5, 6]]).m, ds.math.vec3.m)  # prints: 3 1
        """
        return self.shape[1] if len(self.shape) == 2 else 1

    @property
    def ndim(self) -> int:
        """1 of a vector, 2 of a matrix.

        Example:
            print(ds.Matrix([[1, 2], [3, 4]]).ndim, ds.math.vec3.ndim)  # prints: 2 1
        """
        return len(self.shape)

    def get_shape(self) -> tuple[int, ...]:
        """Return `shape`, as Taichi's programs ask for it.

        Example:
            print(ds.Vector([1, 2, 3]).get_shape())  # prints: (3,)
        """
        return self.shape


class TensorType(Sizes, metaclass=PublicNames):
    """A vector `(n,)` or matrix `(n, m)` of scalars; made by `tensor()`.

    Attributes:
        maker: makes vectors in Python and fields, which are not known here; set by
        `diffsim.lang.types.matrix`.
    """

    _public = "dtype field get_shape m n ndarray ndim scalar shape"

    __slots__ = ("scalar", "shape")
    maker: Any

    def __init__(self, scalar: ScalarType, shape: tuple[int, ...]) -> None:
        self.scalar = scalar
        self.shape = shape

    def __repr__(self) -> str:
        if len(self.shape) == 1:
            return f"vec{self.shape[0]} {self.scalar}"
        return f"mat{self.shape[0]}x{self.shape[1]} {self.scalar}"

    def __reduce__(self) -> Any:
        # As for scalars: through the cache, to the one object of this type.
        return (tensor, (self.scalar, self.shape))

    def __call__(self, *elements: Any) -> Any:
        """Make a vector or matrix of these numbers, rows or vectors in order; of one number throughout."""
        return self.maker.make(self, elements)

    def field(self, shape: Any = None, **options: Any) -> Any:
        """Make a field of elements of this type; see `ds.field` for the options.

        Example:
            vec3 = ds.types.vector(3, ds.f32)
            x = vec3.field(shape=4)
            print(x[0], x.to_numpy().shape)  # prints: [0.0, 0.0, 0.0] (4, 3)
        """
        return self.maker.field(self, shape, **options)

    def ndarray(self, shape: Any, *, needs_grad: bool = False, needs_dual: bool = False) -> Any:
        """Make an array of elements of this type; see `ds.ndarray`.

        Example:
            vec3 = ds.types.vector(3, ds.f32)
            print(vec3.ndarray(shape=4).to_numpy().shape)  # prints: (4, 3)
        """
        return self.maker.ndarray(self, shape, needs_grad, needs_dual)

    @property
    def dtype(self) -> ScalarType:
        """The type of its scalars: `scalar`.

        Example:
            print(ds.types.vector(3, ds.f64).dtype)  # prints: f64
        """
        return self.scalar

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @property
    def kind(self) -> str:
        return self.scalar.kind

    @property
    def is_float(self) -> bool:
        return self.scalar.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.scalar.kind in "iu"

    @property
    def is_bool(self) -> bool:
        return self.scalar.kind == "b"


Type = ScalarType | TensorType


def an(t: Type) -> str:
    """Describe a value of that type to a user: "an f32", "a vector of 3 f32", "a 2x2 matrix of f32"."""
    if isinstance(t, ScalarType):
        return f"an {t}" if t.kind in "fi" else f"a {t}"
    sizes = "x".join(map(str, t.shape))
    return (
        f"a {sizes} matrix of {t.scalar}"
        if len(t.shape) == 2
        else f"a vector of {sizes} {t.scalar}"
    )


@functools.cache
def _tensor(scalar: ScalarType, shape: tuple[int, ...]) -> TensorType:
    return TensorType(scalar, shape)


def tensor(scalar: ScalarType, shape: tuple[int, ...]) -> Type:
    """Return the type of that scalar and shape; the scalar itself for the empty shape."""
    # Cached, which makes tensor types unique.
    return _tensor(scalar, tuple(shape)) if shape else scalar


def derivative_type(t: Type) -> Type:
    """Return the type of derivatives of, and with respect to, values of a float type."""
    return tensor(t.scalar.arithmetic, t.shape)


def size_of(t: Type) -> int:
    """Return the number of scalars of a value of this type."""
    return t.size if isinstance(t, TensorType) else 1


_RANK = {"b": 0, "i": 1, "u": 1, "f": 2}


def promote(a: ScalarType, b: ScalarType) -> ScalarType:
    """Return the common type of two operands.

    Floats beat integers, wide beats narrow, unsigned beats signed of the same width (as in C).
    """
    if a is b:
        return a
    # A float of any width beats every integer: i64 with f32 is f32, unlike NumPy's f64.
    if _RANK[a.kind] != _RANK[b.kind]:
        return a if _RANK[a.kind] > _RANK[b.kind] else b
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    # As C's usual arithmetic conversions (C11, 6.3.1.8) for operands of one rank.
    return a if a.kind == "u" else b


@functools.cache
def from_numpy(dtype: np.dtype[Any]) -> ScalarType | None:
    """Return the scalar type of a NumPy dtype, or None."""
    for t in SCALARS.values():
        if t.numpy == dtype:
            return t
    return None
