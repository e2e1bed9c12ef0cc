"""How a solve takes part in a program: what it writes, and one entry of a tape, whose adjoint is a solve."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.enclosing_recorder import EnclosingRecorder, RolloutSummary, enclosing_recorder
from diffsim.ad.record.elements import Box, add_elements, read_elements, values_of, write_elements
from diffsim.errors import AutodiffError, MissingGradientError, Span
from diffsim.runtime.fields.adjoints import lend_adjoint
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


# ---- fields as vectors


def components(f: Field) -> np.ndarray:
    """Return a copy of all components of a field in one row, in f64; nobody takes note."""
    return np.array(values_of(f), np.float64).reshape(-1)


def set_components(f: Field, values: np.ndarray) -> None:
    """Set all components of a field; tapes take no note."""
    write_elements(f, None, values.reshape(values_of(f).shape))
    f._touch()
    f.versions.by_caller()


def take_gradient(f: Field) -> np.ndarray | None:
    """Return the gradient of what a solve wrote, and leave 0; None: there is nothing in it."""
    if f.adjoint is None:
        return None
    found = np.array(read_elements(f.adjoint, None), np.float64).reshape(-1)
    f.adjoint.clear()
    return found if found.any() else None


def add_gradient(f: Field, values: np.ndarray) -> None:
    """Add to the gradient of a field, if it has one."""
    if f.adjoint is not None:
        add_elements(f.adjoint, None, values.reshape(values_of(f).shape))
        f.adjoint._touch()


# ---- entries


class Solve(ABC):
    """A solve as one entry of a program (`Rerun` of `ad/record/entry.py`).

    Attributes:
        name: what the user called.
        out: the field that it sets.
        reads: the fields that its result depends on.
        written: other fields that it writes.
        alive: what its kernels need to stay alive.
    """

    name: str
    out: Field
    reads: Sequence[Field]
    written: Sequence[Field] = ()
    alive: Mapping[Specialization, list[Any]] = MappingProxyType({})

    @property
    def needed(self) -> Iterable[Box]:
        return ()

    @property
    @abstractmethod
    def held_bytes(self) -> int: ...

    @property
    def kernels(self) -> Iterable[Specialization]:
        return self.alive

    @abstractmethod
    def again(self) -> None:
        """Solve with what the fields hold now; the adjoint stays that of before."""

    @abstractmethod
    def rerun(self) -> None:
        """Solve with what the fields hold now; the adjoint is that of this solution."""

    @abstractmethod
    def backward(self) -> None:
        """Run the adjoint."""

    def reverse(self) -> None:
        """Run the adjoint; that its inputs are as they were is known."""
        self.backward()

    def date(self, now: int) -> None:  # noqa: B027 - what keeps copies needs no readings
        """Set the reading of the clock when it was run."""

    def append_to(self, outer: EnclosingRecorder) -> None:
        """Report it to the recorder around it."""
        outer.rolled_out(
            RolloutSummary(
                self.backward,
                self.again,
                self.reads,
                [self.out, *self.written],
                dict(self.alive),
                self.held_bytes,
                name=self.name,
                is_opaque=True,
                rerun=self,
            )
        )


def need_gradient(
    outer: EnclosingRecorder | None, name: str, reads: Sequence[Field], out: Field
) -> None:
    """Refuse a result without gradient that depends on a field with one; lend it one where rules are lifted.

    Raises:
        MissingGradientError: the chain would break at `out`.
    """
    source = next((f for f in reads if f.adjoint is not None), None)
    if outer is None or source is None or out.adjoint is not None:
        return
    if outer.lifting:
        lend_adjoint(out)
    elif getattr(outer, "refuses_constants", True):  # not where the user gives the gradient
        raise MissingGradientError(
            f"{name} sets {out.name}, which depends on {source.name} and has no gradient: the chain of "
            "derivatives would break here silently",
            Span.of_caller(),
            hint=f"declare {out.name} with needs_grad=True",
        ).advising()


def set_result(out: Field, values: np.ndarray, reads: Sequence[Field]) -> None:
    """Set the result of a solve, which was computed of what `reads` held, and tell recorders of it."""
    outer, tape = enclosing_recorder(), session.tape
    if outer is not None:
        outer.will_need(())  # what follows is not what the recording before had here
        if outer.intercepts:
            outer.writing(out, None)
    elif tape is not None and tape.intercepts:
        tape.writing(out, None)
    set_components(out, values)
    _tell_other_threads(out)
    if outer is None:
        watching = tape
    else:
        watching = outer.trace
        for look in (outer.validator, outer.nan):
            if look is not None:
                look.wrote(out, None)
    # As far as anybody else is concerned, the result depends on each of them as a copy would.
    if watching is not None:
        for f in reads or (out,):
            watching.copied(out, f)


def put_result(out: Field, values: np.ndarray) -> None:
    """Set the result of a solve in forward mode, and tell the recorders of other threads."""
    set_components(out, values)
    _tell_other_threads(out)


def _tell_other_threads(out: Field) -> None:
    this_thread = threading.get_ident()
    for thread, witness in list(session.witnesses):
        if thread != this_thread:
            witness.written_elsewhere(out, "a Python statement", Span.of_caller())


def no_tangent(name: str) -> AutodiffError:
    """Return the error for a solve in a run of second order."""
    return AutodiffError(
        f"{name} has first derivatives only: its adjoint gives no tangent",
        Span.of_caller(),
        hint="take differences of gradients; in ds.ad.no_grad() what it computes is constant",
    )
