"""A Python function of fields, as another library sees it: arrays in, arrays out.

`ds.torch.wrap` and `ds.jax.wrap` make a `FieldFunction` each, and know how to turn their arrays into those of
NumPy; all that is about fields and tapes is here and in `call.py` (docs/adr/0044).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from diffsim.errors import ArgumentError, AutodiffError, DtypeError, FieldError, Span
from diffsim.ir.types import TensorType, Type, from_numpy
from diffsim.lang.host.annotations import scalar_type
from diffsim.lang.host.signatures import need_function
from diffsim.lang.types.descriptions import describe
from diffsim.runtime.fields.adjoints import lend_adjoint
from diffsim.runtime.fields.constructors import make_ndarray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session


class Given(NamedTuple):
    """Properties of an array, known before it is copied.

    Attributes:
        array: as its library has it.
        shape: of it.
        dtype: NumPy's type of its numbers; None: NumPy has none.
        type_name: the type, in the words of its library.
    """

    array: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    type_name: str


class Prepared(NamedTuple):
    """The fields of a call, and what else the function is given.

    Attributes:
        fields: the inputs.
        made: whether they were made for this call.
        args, named: the function's arguments.
    """

    fields: list[Field]
    made: bool
    args: tuple[Any, ...]
    named: dict[str, Any]


class FieldFunction:
    """A function of fields with its inputs and outputs.

    Args:
        function: launches kernels.
        inputs: a field for each array that it is called with; types, for arrays that are made for each call
            and handed to the function; None: any number of such arrays, in the type of what is given.
        outputs: fields that it writes; None: it returns them.

    Attributes:
        name: for messages.
    """

    def __init__(self, function: Callable[..., Any], inputs: Any, outputs: Any) -> None:
        need_function(function, "what is wrapped", "write wrap(function, inputs=[x], outputs=[y])")
        self.function = function
        self.name = str(getattr(function, "__name__", "the function"))
        self.inputs = _checked_inputs(inputs)
        self.outputs = None if outputs is None else _checked_outputs(outputs)

    # ---- before a call

    def count(self, args: Sequence[Any], is_array: Callable[[Any], bool]) -> int | None:
        """Return how many of the arguments are inputs, which come first; None: all arrays are.

        Raises:
            ArgumentError: one is missing.
        """
        if self.inputs is None:
            return None
        for k, into in enumerate(self.inputs):
            what = f"the field {into.name}" if isinstance(into, Field) else f"an array of {into}"
            if k >= len(args) or not is_array(args[k]):
                given = f"not {describe(args[k])}" if k < len(args) else "and there is none"
                raise FieldError(
                    f"argument {k + 1} of {self.name} is an array for {what}, {given}",
                    Span.of_caller(),
                    hint=f"give {len(self.inputs)} arrays first, then what else {self.name} takes",
                )
        return len(self.inputs)

    def prepare(
        self, args: Sequence[Any], named: dict[str, Any], given: dict[int, Given]
    ) -> Prepared:
        """Find or make the fields of a call, and check that the arrays fit into them.

        Args:
            args: of the call.
            named: those by name.
            given: the arrays among `args`, by place.

        Raises:
            ArgumentError: shapes or types that do not fit.
            AutodiffError: a tape records.
        """
        tape = session.tape
        if tape is not None:
            raise AutodiffError(
                f"{tape.work.words}, and {self.name} is differentiated by another library: one of the two "
                "can have its gradient",
                Span.of_caller(),
                hint=f"do it {tape.work.outside}; or call the function that was wrapped, with its fields",
            )
        if self.inputs is not None and all(isinstance(f, Field) for f in self.inputs):
            for k, f in enumerate(self.inputs):
                _check_fits(f, given[k], f"argument {k + 1} of {self.name}")
            return Prepared(list(self.inputs), False, tuple(args[len(self.inputs) :]), named)
        kinds = self.inputs or [None] * len(given)
        made = {
            k: _array_for(one, kind, f"argument {k + 1} of {self.name}")
            for (k, one), kind in zip(given.items(), kinds, strict=True)
        }
        everything = tuple(made.get(k, a) for k, a in enumerate(args))
        return Prepared(list(made.values()), True, everything, named)

    # ---- a call

    def run(self, prepared: Prepared) -> list[Field]:
        """Call the function; returns its outputs."""
        returned = self.function(*prepared.args, **prepared.named)
        if self.outputs is not None:
            return self.outputs
        single = returned is not None and not isinstance(returned, (tuple, list))
        found = [returned] if single else list(returned or ())
        if not found or not all(isinstance(f, Field) for f in found):
            wrong = next((f for f in found if not isinstance(f, Field)), None)
            raise FieldError(
                f"{self.name} returns its outputs, which are fields or arrays of diffsim, "
                f"not {describe(wrong)}",
                Span.of_caller(),
                hint="return the fields; or name them: wrap(function, inputs=[x], outputs=[y])",
            )
        return _distinct(found, f"{self.name} returns")

    def lend_adjoints(self, prepared: Prepared) -> None:
        """See that gradients can flow from the outputs to the inputs."""
        for f in (*prepared.fields, *(self.outputs or ())):
            lend_adjoint(f)


def _checked_inputs(inputs: Any) -> list[Any] | None:
    if inputs is None:
        return None
    listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    made = [f if isinstance(f, Field) else _type_of(f) for f in listed]
    fields = [f for f in made if isinstance(f, Field)]
    if fields and len(fields) < len(made):
        raise FieldError(
            "inputs are all fields, or all types",
            Span.of_caller(),
            hint="name a field for each input; or no field, and take all inputs as arguments of the function",
        )
    _distinct(fields, "inputs has")
    for f in fields:
        _introduce(f)
    return made


def _introduce(f: Field) -> None:
    """Let a field have the name that the program has for it here."""
    f.shape  # noqa: B018 - refused if it has no place yet
    if f._found_name:
        f.call_it(f._found_name)


def _type_of(thing: Any) -> Type:
    if isinstance(thing, TensorType):
        return thing
    try:
        return scalar_type(thing)
    except ArgumentError:
        raise FieldError(
            f"an input is a field or a type, not {describe(thing)}",
            Span.of_caller(),
            hint="write inputs=[x, v] with fields; a member of a field of structs is one: particles.pos",
        ) from None


def _checked_outputs(outputs: Any) -> list[Field]:
    listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    for f in listed:
        if not isinstance(f, Field):
            raise FieldError(
                f"an output is a field, not {describe(f)}",
                Span.of_caller(),
                hint="write outputs=[y]; a member of a field of structs is one: particles.pos",
            )
        _introduce(f)
    if not listed:
        raise FieldError("there are no outputs", Span.of_caller(), hint="write outputs=[y]")
    return _distinct(listed, "outputs has")


def _distinct(fields: list[Field], what: str) -> list[Field]:
    for k, f in enumerate(fields):
        if f in fields[:k]:
            raise FieldError(
                f"{what} {f.name} twice", Span.of_caller(), hint="name each field once"
            )
    return fields


def _check_fits(f: Field, given: Given, what: str) -> None:
    want = f.shape + f.element
    if given.shape != want:
        raise FieldError(
            f"{what} has shape {given.shape}, and {f.in_words()} needs {want}",
            Span.of_caller(),
            hint="its axes are those of the field, then those of an element"
            if f.element
            else "reshape the array, or declare the field with its shape",
        )
    if given.dtype != f.dtype.numpy:
        raise DtypeError(
            f"{what} holds {given.type_name}, and {f.in_words()} {f.dtype}",
            Span.of_caller(),
            hint=f"convert the array to {np.dtype(f.dtype.numpy).name}, or declare the field in its type",
        )


def _array_for(given: Given, kind: Type | None, what: str) -> Field:
    """Make an array of diffsim for what is given."""
    scalar = None if given.dtype is None else from_numpy(given.dtype)
    if scalar is None:
        raise DtypeError(
            f"{what} holds {given.type_name}, which kernels do not have",
            Span.of_caller(),
            hint="convert it to float32 or float64",
        )
    element = kind.shape if isinstance(kind, TensorType) else ()
    axes = len(given.shape) - len(element)
    if kind is not None and (kind.scalar != scalar or axes < 0 or given.shape[axes:] != element):
        raise DtypeError(
            f"{what} is of {given.type_name} and shape {given.shape}, and its elements are declared as "
            f"{kind}",
            Span.of_caller(),
            hint=f"its last axes must be {element}, of {kind.scalar}"
            if element
            else f"convert it to {kind}",
        )
    if 0 in given.shape:
        raise FieldError(
            f"{what} is empty: it has shape {given.shape}",
            Span.of_caller(),
            "give at least one element",
        )
    return make_ndarray(element, scalar, given.shape[:axes], scalar.is_float)


def set_values(f: Field, array: np.ndarray) -> None:
    """Copy an array that fits into a field."""
    f._before()
    f.storage.from_numpy(array.reshape((*f.shape, f.storage.layout.components)))
    f._touch()


def values_of(f: Field) -> np.ndarray:
    """Return a copy of what a field holds, in its own shape and that of an element."""
    return f.storage.to_numpy().reshape(f.shape + f.element)


def shapes(fields: Sequence[Field]) -> Iterator[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Yield shape and type of what `values_of` returns."""
    return ((f.shape + f.element, np.dtype(f.dtype.numpy)) for f in fields)
