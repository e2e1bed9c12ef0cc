"""Arguments of the functions of this room: fields, pairs of them, limits; refused where they do not fit."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from diffsim.errors import ArgumentError, DtypeError, FieldError, Span, shown
from diffsim.lang.host.signatures import need_function, need_number
from diffsim.lang.host.source import check_runs
from diffsim.lang.types.descriptions import describe
from diffsim.parameters import signature_of_function
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.kernel import BoundKernel, Kernel

Mask = Sequence[tuple[Any, Any]] | None
Pairs = list[tuple[Field, Field]]


class Subject(NamedTuple):
    """The function to differentiate: one without parameters, and the pairs (input, output) of fields.

    Attributes:
        names: what parameters of the function are called, for the fields that it is given.
    """

    run: Callable[[], Any]
    inputs: list[Field]
    outputs: list[Field]
    pairs: Pairs
    names: Mapping[str, Field]


def subject(
    function: Any, inputs: Any, outputs: Any, mask: Mask, *, needs_grad: bool = True
) -> Subject:
    """Validate the function, its fields and the mask; `needs_grad`: for reverse mode."""
    need_function(function, "what is checked", "give a kernel, or a Python function")
    check_runs(function, "the function")
    given, made = _listed(inputs), _listed(outputs)
    run, passed = _bound(function, given, made)
    # Numbers, and fields without gradients, are constants that the function is called with.
    ins = [f for f in given if not passed or has_gradient(f)]
    if not ins and not needs_grad:
        ins = [f for f in given if isinstance(f, Field) and f.dtype.is_float]
    ins, outs = (
        _fields(some, what, needs_grad)
        for some, what in ((ins or given, "inputs"), (made, "outputs"))
    )
    names = {name: f for name, f in passed.items() if isinstance(f, Field)}
    return Subject(run, ins, outs, masked(mask, ins, outs, names), names)


def _listed(fields: Any) -> list[Any]:
    return list(fields) if isinstance(fields, (list, tuple)) else [fields]


def has_gradient(f: Any) -> bool:
    """Whether reverse mode can go through a field."""
    return isinstance(f, Field) and f.grad is not None


def _bound(
    function: Any, inputs: list[Any], outputs: list[Any]
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Return the function without parameters, and what it is called with, by the parameters' names."""
    needed = _parameters(function)
    if not needed:
        return function, {}
    for given in ([*inputs, *outputs], inputs):
        if len(needed) == len(given):
            return functools.partial(function, *given), dict(zip(needed, given, strict=True))
    name = getattr(function, "__name__", "the function")
    counts = [
        f"{n} {word}{'' if n == 1 else 's'}"
        for n, word in (
            (len(needed), "parameter"),
            (len(inputs), "input"),
            (len(outputs), "output"),
        )
    ]
    raise ArgumentError(
        f"{name} has {counts[0]}, and is given {counts[1]} and {counts[2]}",
        Span.of_caller(),
        hint="it is called with the inputs and then the outputs, in its own order; else write "
        f"lambda: {name}(...)",
    )


def _parameters(function: Any) -> list[str]:
    """Return the names of the arguments that a call needs."""
    if isinstance(function, BoundKernel):
        function = function.kernel
    if isinstance(function, Kernel):
        return list(function.signature.names)
    try:
        known = signature_of_function(function).parameters.values()
    except (TypeError, ValueError):  # a function of C's
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in known if p.kind in positional and p.default is p.empty]


def _fields(given: list[Any], what: str, needs_grad: bool) -> list[Field]:
    """Refuse what is no list of fields of floats, with gradients if these are needed."""
    wanted = f"{what} is a list of fields {'with gradients' if needs_grad else 'of floats'}"
    if not given:
        raise ArgumentError(
            f"{wanted}, and there is none", Span.of_caller(), hint=f"write {what}=[x, y]"
        )
    for f in given:
        if not isinstance(f, Field):
            raise ArgumentError(
                f"{wanted}, and {describe(f)} is none",
                Span.of_caller(),
                hint="make a field, or for an argument ds.ndarray(ds.f64, shape, needs_grad=True), and fill "
                "it with from_numpy",
            )
        if not f.dtype.is_float:
            raise DtypeError(
                f"{wanted}, and {f.name} has whole numbers ({f.dtype}), which have no derivative",
                Span.of_caller(),
                hint="leave it out, or give the field floats",
            )
        if needs_grad and f.grad is None:
            raise FieldError(
                f"{wanted}, and {f.name} has none",
                Span.of_caller(),
                hint="declare them with needs_grad=True; ds.ad.jacobian needs none in forward mode",
            )
    return list(dict.fromkeys(given))


# ---- pairs


def masked(
    mask: Mask, inputs: list[Field], outputs: list[Field], names: Mapping[str, Field]
) -> Pairs:
    """Return the pairs (input, output) that a mask names; None: all.

    Args:
        mask: the pairs, of fields, their numbers or names.
        inputs: what may be first in a pair.
        outputs: what may be second.
        names: fields by the names of parameters, which come before those of the fields.
    """
    if mask is None:
        return [(i, o) for i in inputs for o in outputs]
    if not isinstance(mask, (list, tuple, set)):
        raise _no_mask(mask)
    found: dict[tuple[Field, Field], None] = {}
    for pair in mask:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise _no_mask(pair)
        i, o = (names.get(w, w) if isinstance(w, str) else w for w in pair)
        found[_named(i, inputs, "input"), _named(o, outputs, "output")] = None
    return list(found)


def _no_mask(thing: Any) -> ArgumentError:
    return ArgumentError(
        f"a mask is a list of pairs (input, output), not {shown(thing)}",
        Span.of_caller(),
        hint='name or number them: input_output_mask=[("x", "y"), (0, 1)]',
    )


def _named(which: Any, fields: list[Field], what: str) -> Field:
    """Return the field that a name, a number or the field itself stands for."""
    for number, f in enumerate(fields):
        same = which is f or (isinstance(which, str) and which == f.name)
        if same or (isinstance(which, int) and not isinstance(which, bool) and which == number):
            return f
    raise ArgumentError(
        f"there is no {what} {which.name if isinstance(which, Field) else shown(which)}",
        Span.of_caller(),
        hint=f"the {what}s are {', '.join(f'{f.name} ({k})' for k, f in enumerate(fields))}",
    )


# ---- limits


def either(new: Any, old: Any) -> Any:
    """Return an option that has two names: as it was given."""
    return old if new is None else new


def need_step(eps: Any) -> None:
    """Refuse what is no step of differences; None means the default."""
    need_number(eps, "eps")
    if eps is not None and not eps > 0:
        raise ArgumentError(
            f"eps is a step larger than 0, not {shown(eps)}",
            Span.of_caller(),
            hint="leave it out, or give 1e-5",
        )


def limit(f: Field, most: int | None) -> int:
    """Return how many components of a field are looked at (0, less or None: all)."""
    size = int(f.storage.layout.count)
    return min(size, most) if most is not None and most > 0 else size


def offsets(fields: Iterable[Field]) -> dict[Field, int]:
    """Return where each field begins when all of their components stand in one row."""
    found, at = {}, 0
    for f in fields:
        found[f] = at
        at += int(f.storage.layout.count)
    return found
