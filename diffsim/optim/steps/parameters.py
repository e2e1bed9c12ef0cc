"""The parameters of an optimisation: fields in a list or a dictionary, each with a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diffsim.errors import ArgumentError, DtypeError, FieldError, MissingGradientError, Span
from diffsim.lang.types.descriptions import describe
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField


def named_fields(given: Any) -> dict[str, Field]:
    """Return the fields of numbers in what was given, each with a name of its own.

    Args:
        given: a field, or a list or dictionary of fields. A field of structs stands for its members
            of floats.

    Returns:
        The fields by their keys in the dictionary, or their places in the list ("0"); members are "0.member".

    Raises:
        ArgumentError: something else, nothing, whole numbers, or a field that is given twice.
        MissingGradientError: a field has no gradient.
    """
    found: dict[str, Field] = {}
    for key, thing in _items(given):
        if isinstance(thing, StructField):
            floats = {k: getattr(thing, k) for k in thing.keys}
            found |= {f"{key}.{k}": f for k, f in floats.items() if f.dtype.is_float}
        elif isinstance(thing, Field):
            found[key] = thing
        else:
            raise FieldError(
                f"parameter {key} is {describe(thing)}, and parameters are fields",
                Span.of_caller(),
                hint="give a field, a list of fields or a dictionary of them: ds.optim.Adam([w, b])",
            )
    if not found:
        raise ArgumentError(
            "there is no parameter to optimise",
            Span.of_caller(),
            hint="give fields with needs_grad=True: ds.optim.Adam([w, b])",
        )
    _check(found)
    return found


def state_fields(given: Any, parameters: Mapping[str, Field]) -> dict[str, Field]:
    """Return fields that are no parameters, but belong to a checkpoint, by name."""
    found: dict[str, Field] = {}
    own = {id(f) for f in parameters.values()}
    for key, thing in _items(given):
        if not isinstance(thing, (Field, StructField)):
            raise FieldError(
                f"state {key} is {describe(thing)}, and what goes on between iterations are fields",
                Span.of_caller(),
                hint="give a list of fields: state=[mean]",
            )
        parts = [thing] if isinstance(thing, Field) else thing.fields()
        found |= {f"{key}.{k}" if k else key: f for k, f in enumerate(parts) if id(f) not in own}
    return found


def _items(given: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(given, Mapping):
        for key, thing in given.items():
            yield str(key), thing
    elif isinstance(given, (list, tuple)):
        for k, thing in enumerate(given):
            yield str(k), thing
    else:
        yield "0", given


def _check(fields: Mapping[str, Field]) -> None:
    """Refuse fields without a gradient, and fields that are given twice."""
    seen: dict[int, str] = {}
    for key, f in fields.items():
        if not f.dtype.is_float:
            raise DtypeError(
                f"{f.name} holds whole numbers ({f.dtype}), and only floats can be optimised",
                Span.of_caller(),
                hint="leave it out, or make it a field of ds.f32 or ds.f64",
            )
        if f.grad is None:
            raise MissingGradientError(
                f"{f.name} (parameter {key}) has no gradient to follow",
                Span.of_caller(),
                hint="give the field, not its gradient"
                if f.is_grad
                else "declare it with needs_grad=True",
            )
        if id(f) in seen:
            raise FieldError(
                f"{f.name} is given twice, as the parameters {seen[id(f)]} and {key}",
                Span.of_caller(),
                hint="give each field once",
            )
        seen[id(f)] = key
        _ = f.shape  # which refuses a field without a place in memory
