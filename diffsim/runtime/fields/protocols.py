"""Python's operators, conversions and NumPy's functions on a field.

A field is memory, neither a number nor an array. Python's operators on it are refused, each with what to
write instead; two fields are equal if they are the same one, so they can be keys and stand in lists. A field
of a single number converts and formats as a 0-D array of NumPy does: `float(loss)`, `f"{loss:.3f}"`. NumPy
may have a copy: `np.asarray(x)` and `plt.plot(x)` get `x.to_numpy()`, and `np.sum(x)` is computed of it. On
a tape that would be a constant, so a number that NumPy makes of a field with a gradient is refused there.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from diffsim.errors import AutodiffError, FieldError, OperationError, Span
from diffsim.ir.op import OpDispatch
from diffsim.lang.host.signatures import checked_methods, need_count
from diffsim.runtime.fields.adjoints import is_followed
from diffsim.runtime.session import session
from diffsim.tracebacks import IS_OWN, entries, entry

if TYPE_CHECKING:
    from diffsim.runtime.fields.field import Field

# Names of Python's special methods without underscores, and how the operator is written in a message.
_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_CALLS = {
    "float": "float({})", "int": "int({})", "complex": "complex({})", "index": "{}",
    "round": "round({})", "abs": "abs({})", "neg": "-{}", "pos": "+{}", "invert": "~{}",
    "divmod": "divmod({}, ...)", "rdivmod": "divmod(..., {})",
}  # fmt: skip
# What a field of a single number does as NumPy's 0-D arrays do, with the number that `x[None]` reads.
_CONVERSIONS: dict[str, Callable[..., object]] = {
    "float": float, "int": int, "complex": complex, "index": operator.index, "round": round,
}  # fmt: skip
_ORDERS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# The same operators as NumPy's ufuncs: `array + field` arrives here.
_OF_NUMPY = {
    np.add: "+", np.subtract: "-", np.multiply: "*", np.true_divide: "/", np.floor_divide: "//",
    np.remainder: "%", np.power: "**", np.matmul: "@", np.bitwise_and: "&", np.bitwise_or: "|",
    np.bitwise_xor: "^", np.left_shift: "<<", np.right_shift: ">>", np.less: "<", np.less_equal: "<=",
    np.greater: ">", np.greater_equal: ">=", np.equal: "==", np.not_equal: "!=",
}  # fmt: skip
# Functions of NumPy that write to their first argument: to a copy, if that is a field.
_WRITES = (np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis)
# What a comparison with a field could mean element by element.
_LIKE_ARRAYS = (bool, int, float, complex, np.generic, np.ndarray, list, tuple, OpDispatch)


@entries()
@checked_methods("parent")
class FieldProtocols:
    """The base of fields and of fields of structs."""

    to_numpy: Any
    destroyed: bool
    in_words: Any
    __getitem__: Any
    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...

        def _called(self) -> str:
            """Return the field as the user writes it."""

        def fields(self) -> list[Field]: ...

        @property
        def node(self) -> Any: ...

    def _not_placed(self) -> NoReturn:
        """Raise FieldError: the field has no memory."""
        if self.destroyed:
            raise FieldError(
                f"{self.name} was given up: the tree that it was placed in is destroyed",
                Span.of_caller(),
                hint="make another field, or destroy the tree later",
            )
        raise FieldError(
            f"{self.name} has no place in memory yet",
            Span.of_caller(),
            hint="place it: ds.root.dense(ds.i, n).place(x), or give ds.field a shape",
        )

    def parent(self, n: int = 1) -> Any:
        """Return the node of the layout tree that the field is placed in; the n-th around it.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.dense(ds.i, 4)
            blocks.dense(ds.i, 8).place(x)
            print(x.shape, x.parent().shape, x.parent(2).shape)  # prints: (32,) (32,) (4,)
        """
        if self.node is None:
            raise FieldError(
                f"{self.name} was made with a shape, and is in no layout tree",
                Span.of_caller(),
                hint="place it: ds.root.dense(ds.i, n).place(x)",
            )
        need_count(
            n, "the number of nodes outwards", 1, "write parent() for the next one, parent(2)"
        )
        return self.node if n == 1 else self.node.parent(n - 1)

    @property
    def snode(self) -> Any:
        """The field itself: its place in the tree, whose `parent()` is the node around it.

        Example:
            x = ds.field(ds.f32)
            cells = ds.root.dense(ds.i, 4)
            cells.place(x)
            print(x.snode.parent() is cells)  # prints: True
        """
        return self

    # ---- equality: of the object

    def __eq__(self, other: object) -> bool:
        # False would be a wrong answer to a question about elements; the identity is asked with `is`.
        if isinstance(other, _LIKE_ARRAYS):
            self._refuse("==")
        return self is other

    def __ne__(self, other: object) -> bool:
        if isinstance(other, _LIKE_ARRAYS):
            self._refuse("!=")
        return self is not other

    # Python removes it where `__eq__` is defined.
    __hash__ = object.__hash__

    # ---- what is refused

    def _refuse(self, sign: str, *, right: bool = False) -> NoReturn:
        """Raise the error for an operator; `right`: the field is its right operand."""
        text = f"... {sign} {{}}" if right else f"{{}} {sign} ..."
        raise self._not_there(
            text.format(self._called()),
            f"name an element, {self._sample()}; or take a copy of all: {text.format(self._array_text())}",
        )

    def _not_there(self, what: str, hint: str) -> OperationError:
        return OperationError(
            f"{what} cannot be computed: {self.in_words()} is memory, not a number",
            Span.of_caller(),
            hint=hint,
        )

    def _sample(self) -> str:
        """Write an element's expression for a hint: "x[i, j]"."""
        shape = self.__dict__.get("_shape", ())
        return f"{self._called()}[{', '.join('ijklmnop'[: len(shape or ())]) or None}]"

    def _array_text(self) -> str:
        return f"{self._called()}.to_numpy()"

    def __bool__(self) -> bool:
        raise OperationError(
            f"{self.in_words()} is neither true nor false",
            Span.of_caller(),
            hint=f"ask for an element, {self._sample()}, for all of them, {self._array_text()}.any(), or "
            f"whether there is one: {self._called()} is not None",
        )

    def __len__(self) -> int:
        raise self._not_there(f"len({self._called()})", f"write {self._called()}.shape[0]")

    def __contains__(self, thing: object) -> bool:
        raise self._not_there(f"... in {self._called()}", f"write ... in {self._array_text()}")

    def __iter__(self) -> Any:
        # Without this method Python would iterate by `__getitem__` from 0 until IndexError, one read for each
        # element.
        raise OperationError(
            f"{self.in_words()} cannot be looped over in Python",
            Span.of_caller(),
            hint=f"loop over {self._array_text()}, or in a kernel: for i in {self._called()}",
        )

    def __reversed__(self) -> Any:
        return self.__iter__()

    def __delitem__(self, key: object) -> None:
        raise self._not_there(
            f"del {self._called()}[...]", "elements stay where they are: set them to 0"
        )

    def __format__(self, spec: str) -> str:
        if self._is_number():
            return format(self[None], spec)
        if spec:
            raise self._not_there(f"the format {spec!r}", f"name an element: {self._sample()}")
        return str(self)

    def _is_number(self) -> bool:
        """Return whether this is a field of a single number."""
        return self.__dict__.get("_shape") == () and self.__dict__.get("element") == ()

    # ---- NumPy

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:  # NumPy's protocol asks for a ValueError; this is one
            raise FieldError(
                f"an array of {self.in_words()} is always a copy",
                Span.of_caller(),
                hint=f"leave copy=False out; without a copy there is np.from_dlpack({self._called()})",
            )
        made: np.ndarray = self.to_numpy(dtype)
        return made

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # NumPy calls this before it converts an argument (NEP 13). Its operators on fields are refused as
        # Python's are.
        if method == "__call__" and ufunc in _OF_NUMPY:
            self._refuse(_OF_NUMPY[ufunc])
        # `np.add.at(field, ...)` would add to a copy.
        if method == "at":
            self._refuse_write(f"np.{ufunc.__name__}.at")
        name = f"np.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
        return self._of_copies(name, getattr(ufunc, method), inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        # The same for functions that are no ufuncs (NEP 18).
        if function in _WRITES:
            self._refuse_write(f"np.{function.__name__}")
        return self._of_copies(f"np.{function.__name__}", function, args, options)

    def _of_copies(self, name: str, function: Any, args: Any, options: dict[str, Any]) -> object:
        """Call a function of NumPy with arrays in place of fields."""
        out = options.get("out")
        # `out=` may be an array or a tuple of them.
        if any(map(_is_field, out if isinstance(out, tuple) else (out,))):
            self._refuse_write(f"{name} with out=")
        found = function(*map(_copied, args), **{k: _copied(a) for k, a in options.items()})
        # Only results with a derivative: `np.argmax(x)` and `np.any(x > 0)` are constants whatever the tape
        # does.
        if session.recorders and any(map(is_followed, self.fields())) and _has_floats(found):
            forward = session.tape is not None and session.tape.tangents
            raise AutodiffError(
                f"{name} of {self.in_words()} would be a constant, and the tangent of {self.name} get lost"
                if forward
                else f"{name} of {self.in_words()} would be a constant for the tape that records, and the "
                f"gradient of {self.name} would lack it",
                Span.of_caller(),
                hint=f"compute it in a kernel; if a constant is meant, give it {self._array_text()}",
            )
        return found

    def _refuse_write(self, name: str) -> NoReturn:
        raise OperationError(
            f"{name} would write to a copy of {self.in_words()}, not to the field",
            Span.of_caller(),
            hint=f"make an array, and copy it: {self._called()}.from_numpy(array)",
        )


def _is_field(thing: object) -> bool:
    return isinstance(thing, FieldProtocols)


def _copied(thing: object) -> object:
    """Replace fields in an argument of a function of NumPy by arrays."""
    if isinstance(thing, (list, tuple)) and any(map(_is_field, thing)):
        return type(thing)([_copied(t) for t in thing])
    return np.asarray(thing) if _is_field(thing) else thing


def _has_floats(found: object) -> bool:
    """Return whether there are numbers with a derivative in a result: answers and positions have none."""
    if isinstance(found, (list, tuple)):
        return any(map(_has_floats, found))
    return (
        # An object array may hold anything, numbers included.
        isinstance(found, (float, np.ndarray, np.generic)) and np.asarray(found).dtype.kind in "fO"
    )


def _operator(sign: str, *, right: bool = False) -> object:
    @entry
    def refuse(self: FieldProtocols, other: object) -> Any:
        self._refuse(sign, right=right)

    return refuse


def _call(text: str, convert: Callable[..., object] | None) -> object:
    @entry
    def call(self: FieldProtocols, *args: object) -> Any:
        # Frame 0 is this function, 1 its wrapper, 2 the statement. Only the program's own statements convert:
        # where diffsim packs an argument or evaluates a constant, the field must not become a number, which
        # would be a constant for the gradient.
        statement = sys._getframe(2).f_code.co_filename
        if convert is not None and self._is_number() and not IS_OWN[statement]:
            number = self[None]
            # A float is no index, though it is a number.
            if convert is not operator.index or isinstance(number, int):
                return convert(number, *args)
        what = (
            text.format(self._called()) if text != "{}" else f"{self._called()} as a whole number"
        )
        raise self._not_there(what, f"name an element: {text.format(self._sample())}")

    return call


# Generated, as the methods differ only in their text. Special methods are looked up in the class, so an
# instance attribute would not do.
for _name, _sign in _SIGNS.items():
    setattr(FieldProtocols, f"__{_name}__", _operator(_sign))
    setattr(FieldProtocols, f"__r{_name}__", _operator(_sign, right=True))
for _name, _sign in _ORDERS.items():
    setattr(FieldProtocols, f"__{_name}__", _operator(_sign))
for _name, _text in _CALLS.items():
    setattr(FieldProtocols, f"__{_name}__", _call(_text, _CONVERSIONS.get(_name)))
