"""Vectors and matrices in Python: `ds.Vector([1, 2])`, `ds.Matrix([[1, 0], [0, 1]])`.

Outside kernels their numbers are in a NumPy array, and every method is the formula that kernels use
(`linalg.py`). Inside kernels the translator recognizes the constructors and makes tensor values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diffsim.errors import (
    AccessError,
    ArgumentError,
    DiffsimError,
    KernelTypeError,
    Span,
    shown,
)
from diffsim.ir.op import Op, OpDispatch, Tracked
from diffsim.ir.types import ScalarType, Sizes, converted, from_numpy
from diffsim.lang.host.annotations import scalar_type
from diffsim.lang.host.hooks import runtime
from diffsim.lang.host.observations import CompiledByValue
from diffsim.lang.host.provenance import holds_field, marked, source_of
from diffsim.lang.host.signatures import checked_methods, need_number, need_size, need_whole
from diffsim.lang.host.unsupported import no_assignment, no_attribute
from diffsim.lang.types import linalg
from diffsim.lang.types.arrays import OPERATORS, answers, checked_index, no_element, same_shape
from diffsim.parameters import signature_of
from diffsim.public_names import PublicNames, with_example
from diffsim.tracebacks import entries, entry

_set = object.__setattr__
# Names for `dir` and for advice, besides the methods of `linalg`; and those that make others.
_PUBLIC = "cast fill get_shape m n ndim shape to_list to_numpy w x y z".split()
_MAKERS = "cols diag field identity ndarray one rows unit zero".split()
Function = Callable[[Any, Any], Any]


def _operator(function: Function) -> Callable[[Matrix, Any], Any]:
    """Make an operator of a function of NumPy."""
    return lambda self, other: self._apply(other, function)


def _reflected(function: Function) -> Callable[[Matrix, Any], Any]:
    """Make the operator that Python calls on the right operand, with the operands in the order written."""
    return lambda self, other: self._apply(other, lambda a, b: function(b, a))


@entries(
    but="__init__ __len__ __iter__ __getitem__ __copy__ __deepcopy__ __reduce__ apply converted"
)
@checked_methods(
    "__init__ field ndarray zero one identity unit diag rows cols to_numpy to_list fill cast"
)
class Matrix(Sizes, OpDispatch, CompiledByValue, metaclass=PublicNames):
    """A small vector or matrix of numbers.

    Args:
        arr: the elements: a list, a list of rows, or an array with one or two axes.
        dt: scalar type of the elements; NumPy's choice if left out.

    Operators work element by element; `@` multiplies matrices, and a matrix by a vector. Elements are
    `m[i, j]`, those of a vector also `v.x`, `v.y`, `v.z`, `v.w` and `v.xy`. Without `dt` it adopts the
    precision of what it meets in a kernel.

    Raises:
        ArgumentError: these are no numbers, or rows of different lengths.

    Example:
        m = ds.Matrix([[0.0, -1.0], [1.0, 0.0]])
        print(m @ ds.Vector([1.0, 2.0]), m * 2.0)  # prints: [-2.0, 1.0] [[0.0, -2.0], [2.0, 0.0]]
    """

    _public = " ".join((*_PUBLIC, *_MAKERS, *linalg.METHODS))

    __signature__ = signature_of("arr, dt=None")  # the others are diffsim's own
    __slots__ = ("at", "entries", "owner", "provenance", "typed")
    __array_priority__ = 100  # NumPy's older protocol: `array * vector` then asks the vector
    entries: np.ndarray

    def __init__(
        self,
        arr: object,
        dt: object = None,
        *,
        owner: Callable[[], Any] | None = None,
        at: int = 0,
    ) -> None:
        provenance = source_of(arr)
        entries = _entries_of(arr)
        if entries is None:
            raise ArgumentError(
                "a vector or matrix is made of a list of numbers or of rows of equal length, not "
                + shown(arr),
                Span.of_caller(),
                hint="write ds.Vector([x, y]) or ds.Matrix([[a, b], [c, d]]); of a field take x[i]",
            )
        t = None if dt is None else scalar_type(dt)
        if t is not None and entries.dtype != t.numpy:
            entries = converted(entries, t)
        _set(self, "entries", entries)
        # A weak reference to the field that an element was read from, and its number in the field's memory.
        _set(self, "owner", owner)
        _set(self, "at", at)
        # Where it was read, while a tape records (`runtime.fields.read_values.Provenance`).
        _set(self, "provenance", provenance)
        _set(self, "typed", dt is not None)

    # ---- constructors, with Taichi's names

    @staticmethod
    def field(
        n: int,
        m: int,
        dtype: object = None,
        shape: object = None,
        order: object = None,
        name: str = "",
        offset: object = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: object = None,
        ndim: int | None = None,
    ) -> Any:
        """Make a field of n x m matrices (ndim=1: of vectors); see `ds.field` for the other arguments.

        Example:
            F = ds.Matrix.field(2, 3, ds.f32, shape=4)
            print(F[0].shape, F.to_numpy().shape)  # prints: (2, 3) (4, 2, 3)
        """
        need_whole(ndim, "ndim", hint="leave it out")
        if ndim is not None and ndim != 2 and (ndim, m) != (1, 1):
            raise ArgumentError(
                f"a field of {n} x {m} matrices does not have ndim={shown(ndim)}",
                Span.of_caller(),
                hint="leave ndim out; fields of vectors are made by ds.Vector.field(n, ds.f32, shape)",
            )
        element = (n,) if ndim == 1 else (n, m)
        return runtime().make_field(
            element, dtype, shape, name, needs_grad, layout, needs_dual, offset, order
        )

    @staticmethod
    def ndarray(
        n: int,
        m: int,
        dtype: object,
        shape: object,
        *,
        needs_grad: bool = False,
        needs_dual: bool = False,
    ) -> Any:
        """Make an array of n x m matrices; see `ds.ndarray`.

        Example:
            a = ds.Matrix.ndarray(2, 3, ds.f32, shape=4)
            print(a.shape, a.to_numpy().shape)  # prints: (4,) (4, 2, 3)
        """
        return runtime().make_ndarray((n, m), dtype, shape, needs_grad, needs_dual)

    @staticmethod
    def zero(dt: object, n: int, m: int | None = None) -> Matrix:
        """Return all zeros: n elements, or n x m.

        Example:
            print(ds.Matrix.zero(ds.f32, 2, 2))  # prints: [[0.0, 0.0], [0.0, 0.0]]
        """
        return filled(0, dt, n, m)

    @staticmethod
    def one(dt: object, n: int, m: int | None = None) -> Matrix:
        """Return all ones: n elements, or n x m.

        Example:
            print(ds.Matrix.one(ds.i32, 2, 2))  # prints: [[1, 1], [1, 1]]
        """
        return filled(1, dt, n, m)

    @staticmethod
    def identity(dt: object, n: int) -> Matrix:
        """Return the n x n identity.

        Example:
            print(ds.Matrix.identity(ds.f32, 2))  # prints: [[1.0, 0.0], [0.0, 1.0]]
        """
        need_size(n)
        return Matrix(np.eye(n), dt)

    @staticmethod
    def unit(n: int, i: int, dt: object = int) -> Matrix:
        """Return the i-th unit vector of n elements, of integers where `dt` does not say.

        Example:
            print(ds.Matrix.unit(3, 1))  # prints: [0, 1, 0]
        """
        need_size(n)
        if isinstance(i, bool) or not isinstance(i, (int, np.integer)) or not 0 <= i < n:
            raise AccessError(
                f"a vector of {n} elements has no element {shown(i)}",
                Span.of_caller(),
                hint="elements are counted from 0: ds.Vector.unit(3, 0)",
            )
        return Matrix(np.eye(n)[i], dt)

    @staticmethod
    def diag(dim: int, val: Any) -> Matrix:
        """Return the dim x dim matrix with `val` on the diagonal.

        Example:
            print(ds.Matrix.diag(2, 3.0))  # prints: [[3.0, 0.0], [0.0, 3.0]]
        """
        need_size(dim)
        need_number(val if val is not None else shown(val), "the value on the diagonal")
        return marked(Matrix(np.eye(dim) * val), val)

    @staticmethod
    def rows(rows: object) -> Matrix:
        """Return the matrix with these vectors as rows.

        Example:
            print(ds.Matrix.rows([ds.Vector([1, 2]), ds.Vector([3, 4])]))  # prints: [[1, 2], [3, 4]]
        """
        return Matrix(rows)

    @staticmethod
    def cols(cols: object) -> Matrix:
        """Return the matrix with these vectors as columns.

        Example:
            print(ds.Matrix.cols([ds.Vector([1, 2]), ds.Vector([3, 4])]))  # prints: [[1, 3], [2, 4]]
        """
        rows = Matrix(cols)  # through rows, which checks that all have one length
        return marked(Matrix(rows.entries.T), rows)

    # ---- properties and conversions

    def _as_constant(self) -> Any:
        """Return whether its type was given, and its elements."""
        return self.typed, self.entries

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """(n,) of a vector, (n, m) of a matrix.

        Example:
            print(ds.Matrix([[1, 2, 3], [4, 5, 6]]).shape)  # prints: (2, 3)
        """
        return self.entries.shape

    def to_numpy(self) -> np.ndarray:
        """Return a copy as a NumPy array.

        Example:
            print(ds.Matrix([[1, 2], [3, 4]]).to_numpy().sum(axis=0))  # prints: [4 6]
        """
        return self.entries.copy()

    def to_list(self) -> list[Any]:
        """Return the elements as (nested) lists of Python numbers.

        Example:
            print(ds.Vector([1.0, 2.0]).to_list())  # prints: [1.0, 2.0]
        """
        return self.entries.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:  # NumPy asks for a ValueError
            raise ArgumentError(
                "an array of a vector or matrix is always a copy",
                Span.of_caller(),
                hint="leave copy=False out",
            )
        return np.array(self.entries, dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Make a vector of `np.ones(2) * v`, as of `v * np.ones(2)`; of `np.sin(v)` an array of NumPy."""
        # Operators give vectors, whatever the order of the operands; other functions give arrays.
        binary = OPERATORS.get(ufunc) if method == "__call__" and not options else None
        if binary is not None:
            a, b = (Matrix(t) if isinstance(t, np.ndarray) and t.ndim else t for t in inputs)
            # A scalar of NumPy on the left is no vector, and its operator would call this method again.
            if isinstance(a, Matrix):
                return binary(a, b)
            return b._apply(a, lambda entries, number: ufunc(number, entries))
        made = getattr(ufunc, method)(*map(_plain, inputs), **options)
        source = source_of(inputs)
        # An array carries no origin: the gradient would silently be lost. Integers and booleans have none.
        if source is not None and np.asarray(made).dtype.kind == "f":
            source.refuse(f"np.{ufunc.__name__}", "write it with functions of ds, such as ds.sin")
        return made

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Any:
        return iter([marked(_python(e), self) for e in self.entries])

    def __getitem__(self, index: object) -> Any:
        try:
            try:
                return marked(_python(self.entries[checked_index(index)]), self)
            except (IndexError, ValueError, TypeError):
                raise no_element(self, index) from None
        except (ArgumentError, AccessError) as error:
            error.leave_package()
            raise

    def __setitem__(self, index: Any, value: object) -> None:
        try:
            checked_index(index)
            self.entries[index]  # read first: an index that does not exist has a message of its own
        except (IndexError, ValueError, TypeError):
            raise no_element(self, index) from None
        field = None if self.owner is None else self.owner()
        if field is None:
            self._assign(index, value)
            return
        # `x[i][0] = 1` changes the element of the field, and `v = x[i]; v[0] = 1` as well.
        changed = self.__copy__()
        changed._assign(index, value)
        field.set_components(self.at, self.entries, changed)
        _set(self, "entries", changed.entries)

    def _assign(self, index: Any, value: Any) -> None:
        """Set elements that exist."""
        entries = self.entries
        given = _entries_of(value, least=0)
        if given is not None and not (entries.dtype.kind in "biu" and given.dtype.kind == "f"):
            with contextlib.suppress(ValueError, OverflowError):
                # NumPy refuses a Python int that does not fit, but wraps an element of an array around.
                entries[index] = value if isinstance(value, int) else given
                marked(self, self, value)
                return
        raise ArgumentError(
            f"element {shown(index)} of {self} cannot be set to {shown(value)}",
            Span.of_caller(),
            hint="its elements are integers: convert it, int(value), or make the vector of floats"
            if given is not None and given.dtype.kind == "f" and entries.dtype.kind in "biu"
            else f"its shape is {self.shape}, and its elements are {from_numpy(entries.dtype)}",
        )

    def fill(self, val: object) -> None:
        """Set all elements.

        Example:
            v = ds.Vector([1.0, 2.0])
            v.fill(3.0)
            print(v)  # prints: [3.0, 3.0]
        """
        self[:] = val

    def cast(self, dtype: object) -> Matrix:
        """Return the elements in another type; from float to integer their fractions are cut off.

        Example:
            print(ds.Vector([1.75, -1.75]).cast(ds.i32))  # prints: [1, -1]
        """
        return marked(Matrix(self.entries, dtype), self)

    def __repr__(self) -> str:
        return repr(self.entries.tolist())

    # ---- arithmetic

    def apply(self, op: Op, args: Sequence[object]) -> Any:
        """Apply an op of the table, element by element: `ds.sin(v)`."""
        for a in args:
            if isinstance(a, Tracked) and not isinstance(a, float):
                return a.apply(op, args)
        plain = [_plain(a) for a in args]
        same_shape(op.sign, plain)
        made = wrap(op(*plain))
        # `ds.stop_grad` is how a user says that the number is meant as a constant.
        return made if op.name == "stop_grad" else marked(made, *args)

    def converted(self, to: ScalarType) -> Matrix:
        """Return its numbers in another type."""
        return Matrix(self, to)

    def _apply(self, other: object, function: Function) -> object:
        operand = other
        if isinstance(other, (Matrix, list, tuple, np.ndarray)):
            other = _entries_of(other, least=0)
        elif not isinstance(other, (int, float, np.bool_, np.integer, np.floating)):
            # Python then asks the other operand; for == and != it falls back to identity.
            if function in (np.equal, np.not_equal) or answers(other):
                return NotImplemented
            other = None
        if other is None:
            raise _no_operand(operand)
        if np.ndim(other) and np.shape(other) != self.entries.shape:
            raise KernelTypeError(
                f"shapes do not fit together: {self.entries.shape} and {np.shape(other)}",
                Span.of_caller(),
                hint="+, -, *, / work element by element; matrices are multiplied with @",
            )
        try:
            with np.errstate(all="ignore"):  # as in kernels: 1 / 0 is infinite
                made = wrap(function(self.entries, other))
            return marked(made, self, operand)
        except (TypeError, ValueError, OverflowError) as problem:
            raise KernelTypeError(
                f"{self} and {shown(operand)} do not go together: {problem}",
                Span.of_caller(),
                hint="convert one of them: v.cast(ds.f64), v.cast(ds.i64)",
            ) from None

    __add__ = __radd__ = _operator(np.add)
    __mul__ = __rmul__ = _operator(np.multiply)
    __and__ = __rand__ = _operator(np.bitwise_and)
    __or__ = __ror__ = _operator(np.bitwise_or)
    __xor__ = __rxor__ = _operator(np.bitwise_xor)
    __sub__, __rsub__ = _operator(np.subtract), _reflected(np.subtract)
    __truediv__, __rtruediv__ = _operator(np.divide), _reflected(np.divide)
    __floordiv__, __rfloordiv__ = _operator(np.floor_divide), _reflected(np.floor_divide)
    __mod__, __rmod__ = _operator(np.mod), _reflected(np.mod)
    __pow__, __rpow__ = _operator(np.power), _reflected(np.power)
    __lshift__, __rlshift__ = _operator(np.left_shift), _reflected(np.left_shift)
    __rshift__, __rrshift__ = _operator(np.right_shift), _reflected(np.right_shift)
    __lt__, __le__ = _operator(np.less), _operator(np.less_equal)
    __gt__, __ge__ = _operator(np.greater), _operator(np.greater_equal)

    def __invert__(self) -> Any:
        return self._apply(0, lambda a, _: np.invert(a))

    def __pos__(self) -> Any:
        return self._apply(0, lambda a, _: np.positive(a))

    def __neg__(self) -> Any:
        return self._apply(0, lambda a, _: np.negative(a))

    def __abs__(self) -> Matrix:
        return marked(Matrix(np.abs(self.entries)), self)

    def __rmatmul__(self, o: object) -> Any:
        entries = _entries_of(o)
        if entries is None:
            raise _no_operand(o)
        return marked(Matrix(entries), o) @ self

    def __matmul__(self, o: Any) -> Any:
        if answers(o) and not isinstance(
            o, (Matrix, list, tuple, np.ndarray, float, int, np.generic)
        ):
            return NotImplemented
        if _entries_of(o) is None:
            raise _no_operand(o)
        axes = self.entries.ndim + np.ndim(o)
        # Two axes in all: vector @ vector, which is ambiguous (a number or a matrix).
        if np.ndim(o) == 0 or axes == 2 or self.shape[-1] != np.shape(o)[0]:
            raise KernelTypeError(
                f"shapes do not fit together: {self.shape} @ {np.shape(o)}",
                Span.of_caller(),
                hint="as many rows are needed on the right as there are columns on the left",
            )
        return in_python("matmul", linalg.multiply, self, o)

    def __eq__(self, o: object) -> Any:
        return self._apply(o, np.equal)

    def __ne__(self, o: object) -> Any:
        return self._apply(o, np.not_equal)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise KernelTypeError(
            "a vector or matrix is neither true nor false",
            Span.of_caller(),
            hint="compare elements, or a norm; all of them: (a == b).all()",
        )

    def __getattr__(self, name: str) -> Any:
        # The GLSL Specification 4.60, 5.5: any letters of one set, also repeated.
        chosen = linalg.swizzle(name)
        if chosen is not None and self.entries.ndim == 1 and max(chosen) < len(self.entries):
            return marked(Matrix(self.entries[chosen]), self)
        raise no_attribute(str(self), name, (*_PUBLIC, *linalg.METHODS), self._too_few(name))

    def __setattr__(self, name: str, value: object) -> None:
        if name in _STATE:
            _set(self, name, value)
        elif name in linalg.COMPONENTS and linalg.COMPONENTS[name] < len(self.entries):
            self[linalg.COMPONENTS[name]] = value
        elif self.entries.ndim == 1 and (chosen := self._chosen(name)):
            self[chosen] = value
        else:
            hint = self._too_few(name)
            if not hint and linalg.swizzle(name):
                hint = "each element once"
            raise no_assignment(str(self), name, linalg.COMPONENTS, hint)

    def _chosen(self, name: str) -> list[int] | None:
        """Return the elements that `.xy` names in an assignment: each once, and all of them present."""
        chosen = linalg.swizzle(name)
        ok = chosen and max(chosen) < len(self.entries) and len(set(chosen)) == len(chosen)
        return chosen if ok else None

    def _too_few(self, name: str) -> str:
        named = [linalg.COMPONENTS[c] for c in name if c in linalg.COMPONENTS]
        if len(named) < len(name) or not named or max(named) < len(self.entries):
            return ""
        return f"it has {len(self.entries)} elements, the first is .{name[0] if named[0] == 0 else 'x'}"

    def __copy__(self) -> Matrix:
        made = Matrix(self.entries)
        made.typed, made.provenance = self.typed, self.provenance  # no owner: a copy may be changed
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Matrix:
        return self.__copy__()

    def __reduce__(self) -> Any:
        return _again, (self.entries, self.typed)


def _again(entries: np.ndarray, typed: bool) -> Matrix:
    """Rebuild a pickled vector or matrix."""
    made = Matrix(entries)
    made.typed = typed
    return made


def _component(k: int) -> property:
    def get(self: Matrix) -> Any:
        if k >= len(self.entries):
            raise AttributeError("not so many elements")  # then Python calls __getattr__
        return marked(_python(self.entries[k]), self)

    @entry
    def assign(self: Matrix, value: object) -> None:
        self[k] = value

    doc = with_example(
        f"Element {k}.", f"print(ds.Vector([1, 2, 3, 4]).{'xyzw'[k]})  # prints: {k + 1}"
    )
    return property(get, assign, doc=doc)


for _name, _k in linalg.COMPONENTS.items():
    setattr(Matrix, _name, _component(_k))


def _method(name: str) -> Callable[..., Any]:
    """Make a method of a formula, which can be called unbound as well: `ds.Matrix.norm(v)`."""
    formula = linalg.METHODS[name]

    def method(self: Any, *args: Any, **named: Any) -> Any:
        return in_python(name, formula, self, *args, **named)

    method.__name__, method.__qualname__ = name, f"Matrix.{name}"
    method.__doc__, method.__wrapped__ = formula.__doc__, formula  # type: ignore[attr-defined]
    return entry(method)


UNBOUND: dict[Any, str] = {}
"""The names of the methods, by the functions that `ds.Matrix.norm` and `ds.Vector.norm` are."""
for _name in linalg.METHODS:
    setattr(Matrix, _name, _method(_name))
    UNBOUND[vars(Matrix)[_name]] = _name


_STATE = frozenset(Matrix.__slots__)


def _no_operand(thing: object) -> KernelTypeError:
    return KernelTypeError(
        f"a vector or matrix and {shown(thing)} do not go together",
        Span.of_caller(),
        hint="compute with numbers, lists of numbers, vectors and matrices; @ takes vectors and matrices",
    )


def _entries_of(rows: object, least: int = 1) -> np.ndarray | None:
    """Convert to an array with at least `least` and at most two axes; None if that is not possible."""
    if isinstance(rows, Matrix):
        rows = rows.entries
    if isinstance(rows, (list, tuple)):
        rows = [r.entries if isinstance(r, Matrix) else r for r in rows]
    try:
        # NumPy would read a field's elements unrecorded, and drop the mask of a masked array.
        if holds_field(rows) or hasattr(rows, "mask"):
            return None
        made = np.array(rows)
        if made.dtype.kind not in "biuf" or not least <= made.ndim <= 2 or made.size == 0:
            return None
        return made
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def in_python(name: str, function: Any, *args: Any, **named: object) -> Any:
    """Evaluate a formula of numbers, vectors and matrices in NumPy; the result keeps their origin.

    Raises:
        KernelTypeError: they do not fit together.
    """
    try:
        plain = {k: _plain(a) for k, a in named.items()}
        with np.errstate(all="ignore"):  # as in kernels: 1 / 0 is infinite
            made = wrap(function(*map(_plain, args), **plain))
        return marked(made, *args, *named.values())
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as problem:
        if isinstance(problem, DiffsimError):
            raise
        # Messages of the formulas themselves, and of Python about arguments, are clear as they are.
        about = (function.__doc__ or "").partition("\n")[0].rstrip(".")
        said = isinstance(problem, ValueError) or "argument" in str(problem)
        given = ", ".join(map(shown, (*args, *named.values())))
        raise KernelTypeError(
            str(problem) if said else f"{name} cannot be computed of ({given})",
            Span.of_caller(),
            hint=f"{name}: {about}",
        ) from None


def _plain(a: object) -> Any:
    """Return the array or number that NumPy computes with."""
    if isinstance(a, (list, tuple)):
        a = Matrix(a)
    if isinstance(a, Tracked) and isinstance(a, float):
        return a.value
    return a.entries if isinstance(a, Matrix) else a


def _python(e: object) -> object:
    return e.item() if isinstance(e, np.generic) else wrap(e)


def wrap(x: object) -> Any:
    """Return NumPy's result as a number, vector or matrix."""
    if isinstance(x, np.ndarray):
        return Matrix(x) if x.ndim else x.item()
    return x.item() if isinstance(x, np.generic) else x


def filled(number: int, dt: object, n: int, m: int | None) -> Matrix:
    """Make a vector of n elements, or an n x m matrix, of one number."""
    need_size(n)
    if m is not None:
        need_size(m)
    return Matrix(np.full((n,) if m is None else (n, m), number), dt)
