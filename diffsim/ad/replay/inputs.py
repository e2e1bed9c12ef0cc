"""Arguments that differ from replay to replay: `tape.replay(rate=0.1)`.

A record has numbers for its arguments. Kernels that take one of the named arguments are replaced on it, once,
by kernels that load it from a 0-D field of the tape's own; a replay then only writes the field. So programs
and adjoints stay compiled, and the checks of versions see the number like any other value that an adjoint
loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.entries import Launched
from diffsim.ad.record.record import Record
from diffsim.ad.record.replaced import Replaced
from diffsim.errors import AutodiffError, Span, shown
from diffsim.runtime.binding.arguments import Parameter, flatten
from diffsim.runtime.fields.constructors import make_field
from diffsim.runtime.fields.field import Field

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class ReplayInputs:
    """The arguments of a record that a replay was given.

    Attributes:
        recorded: for each name the field that its kernels load, and the number on the record.
    """

    def __init__(self) -> None:
        self.recorded: dict[str, tuple[Field, Parameter, Any]] = {}
        self.kernels: dict[Specialization, Specialization] = {}

    def add(self, names: Iterable[str], record: Record) -> Record:
        """Return the record with these arguments loaded from fields.

        Raises:
            AutodiffError: no launch has such an argument, or they have several values, or it is no float.
        """
        new = [name for name in names if name not in self.recorded]
        if not new:
            return record
        self.recorded.update({name: _found(name, record) for name in new})
        fields = {name: self.recorded[name][0] for name in new}
        return record.with_kernels(lambda special: self._replaced(special, fields))

    def _replaced(self, special: Specialization, fields: Mapping[str, Field]) -> Specialization:
        given = {a: fields[a.hint]._mem for a in special.ir.args if a.hint in fields}
        if not given:
            return special
        made = self.kernels.get(special)
        if made is None:
            made = self.kernels[special] = special.with_arguments_from(given)
        return made

    def write(self, values: Mapping[str, Any]) -> None:
        """Write the values of one replay; what is not given is as recorded."""
        _refuse_fields(values)
        found = {
            name: flatten(p, values.get(name, recorded), "tape.replay")
            for name, (_, p, recorded) in self.recorded.items()
        }
        for name, (field, _, _) in self.recorded.items():
            field.fill(_element(found[name], field))


def _refuse_fields(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Field):
            raise AutodiffError(
                f"{name} of tape.replay is a number, not the field {value.name}",
                Span.of_caller(),
                hint=f"write {name}={value.name}[None]; for the gradient by it give the launch the field "
                "when you record, and set the field before each replay",
            )


def _element(numbers: list[Any], field: Field) -> Any:
    return np.array(numbers).reshape(field.element) if field.element else numbers[0]


def _found(name: str, record: Record) -> tuple[Field, Parameter, Any]:
    """Return a field for an argument, its parameter, and the number that all launches had."""
    found: tuple[Parameter, Any, str] | None = None
    for entry in record:
        if isinstance(entry, Replaced):
            _check_solve(entry, name)
        if not isinstance(entry, Launched):
            continue
        kernel = entry.special.arguments.kernel
        for p, a in zip(entry.special.arguments.parameters, entry.args, strict=True):
            if p.name != name:
                continue
            _check_kind(p, kernel)
            if found is None:
                found = p, a, kernel
            elif found[0].type != p.type or not _same(found[1], a):
                raise AutodiffError(
                    f"{name} has several values on this tape: {shown(found[1])} in {found[2]}, "
                    f"{shown(a)} in {kernel}, and replay({name}=...) would give all of them one",
                    Span.of_caller(),
                    hint=f"pass 0-D fields for {name}, and set them before the replay",
                )
    if found is None:
        raise AutodiffError(
            f"no kernel that this tape launched has an argument {name}, or it is compiled in",
            Span.of_caller(),
            hint=_names(record),
        )
    p, value, _ = found
    assert p.type is not None
    field = make_field(p.type.shape, p.type.scalar, (), name, False, None, False)
    return field, p, value


def _check_solve(entry: Replaced, name: str) -> None:
    """Refuse an argument that the function of a solve gives its kernels: Python runs it as it stands."""
    for special in entry.rerun.kernels if entry.rerun is not None else ():
        if any(p.name == name for p in special.arguments.parameters):
            raise AutodiffError(
                f"{name} is an argument of {special.arguments.kernel}, which the function of {entry.name} "
                "launches, and a replay cannot change it there",
                entry.span,
                hint=f"let {special.arguments.kernel} read {name} from a 0-D field, and set that before the "
                "replay",
            )


def _check_kind(p: Parameter, kernel: str) -> None:
    if p.kind == "array":
        raise AutodiffError(
            f"{p.name} of {kernel} was a field or an array",
            Span.of_caller(),
            hint=f"change what {p.name} holds before tape.replay()",
        )
    # Which elements a launch uses was checked for the record, and indices decide that.
    if p.type is None or not p.type.is_float:
        raise AutodiffError(
            f"{p.name} of {kernel} is no float, and a replay gives floats alone new values: the checks "
            "of a record hold for its indices",
            Span.of_caller(),
            hint="record the tape anew",
        )


def _same(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a), np.asarray(b))


def _names(record: Record) -> str:
    """Return advice that names the arguments that a replay can be given."""
    floats = {
        p.name: None
        for entry in record.firsts()
        if isinstance(entry, Launched)
        for p in entry.special.arguments.parameters
        if p.kind == "value" and p.type is not None and p.type.is_float
    }
    return f"its arguments of type float are {', '.join(floats)}" if floats else "it has no floats"
