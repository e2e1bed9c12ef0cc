"""Gradients of values that Python set in a tape's block, not of the values before (docs/adr/0027)."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from diffsim.errors import AutodiffError, Span
from diffsim.runtime.memory.storage import Storage
from diffsim.runtime.memory.versions import Versions, span_of


class _Gradient(Protocol):
    """The part of a gradient field that is needed here; fields belong to a room above this one."""

    versions: Versions

    @property
    def storage(self) -> Storage: ...


class _Field(Protocol):
    """The part of a field that is needed here."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def adjoint(self) -> _Gradient | None: ...


class Cut(NamedTuple):
    """Elements of a gradient that belong to a value which Python set.

    Attributes:
        now: the clock's reading at the end of the pass that computed them.
        record: the identity of the tape's record.
        part: these elements, as an index of an array.
        writer: the statement that set the value.
    """

    now: int
    record: object
    part: Any
    writer: Any


Cuts = dict[Any, Cut] | None
"""Those of one gradient, by the elements; None: none."""


def refuse_cut(f: _Field, cut: Cut, who: str) -> AutodiffError:
    """Return the error for a gradient that would flow back to before a write."""
    place = span_of(cut.writer)
    shown = "" if place is None else f"\n  set here:\n{place.text()}\n  asked for here:"
    return AutodiffError(
        f"{f.name}.grad belongs to the value that Python set in the block of a later tape, and not to what "
        f"{who} left in {f.name}, which has no effect any more{shown}",
        Span.of_caller(),
        hint="set these elements of the gradient to 0 first; or set the value in ds.ad.no_grad(): then its "
        "gradient is not kept",
    )


def check_gradient(f: _Field, since: int, who: str) -> None:
    """Refuse an adjoint whose cotangent, of a field that its launch wrote, is such a gradient.

    Args:
        f: the field.
        since: the clock's reading at the launch.
        who: the kernel.

    Raises:
        AutodiffError: with the statement that set the value.
    """
    grad = f.adjoint
    if grad is None or not grad.versions.cuts:
        # Nearly always: one test of an attribute.
        return
    versions = grad.versions
    # Components of vectors go to one axis, the last, as in `Cut.part`.
    array = grad.storage.to_numpy().reshape((*f.shape, -1))
    for cut in grad.versions.cuts.values():
        # A whole gradient that the user set after that pass replaces what the cut was about; the writer is a
        # tuple for Python's statements only.
        by_user = versions.whole > cut.now and isinstance(versions.writer, tuple)
        # A cut made before the launch belongs to a value that the launch has overwritten. A gradient of 0
        # flows nowhere, so it is harmless.
        if cut.now > since and not by_user and array[cut.part].any():
            raise refuse_cut(f, cut, who)
