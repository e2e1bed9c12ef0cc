"""Instrumented variants of a kernel, which record or check more than it says, and their compilation.

A variant is not a class of its own: it is the same kernel (or derivative) with an `Instrumentation`, which
changes the IR just before it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from diffsim.errors import DiffsimError, GlobalDataAccessError
from diffsim.ir import nodes
from diffsim.ir.nodes import Alloca, Check, Mem
from diffsim.ir.types import i64
from diffsim.passes.instrument.independence import (
    CLAIMED,
    Notes,
    check_independence,
    watched_fields,
)
from diffsim.runtime import compiler
from diffsim.runtime.backend import Backend
from diffsim.runtime.executable import Executable, same_error
from diffsim.runtime.fields.field import Field
from diffsim.runtime.observe.nonfinite import FiniteWatch, Part
from diffsim.runtime.session import session

WrittenParts = Callable[[tuple[Any, ...]], Sequence[tuple[Mem, Part]]]
"""The memories that a launch with these arguments writes, and what they are in it."""


class Explain(Protocol):
    """Makes the error to raise from that of a failed check, the check, and the check's values."""

    def __call__(
        self, error: DiffsimError, check: Check | Alloca, values: list[int]
    ) -> DiffsimError: ...


@dataclass(frozen=True, slots=True)
class Instrumentation:
    """A change of the IR that is compiled.

    Attributes:
        transform: makes the IR to compile from the IR of the kernel.
        explain: makes the errors of checks that the transformation added.
        checks_each_launch: whether a GPU's checks are read after each launch, and not when Python next
            waits for the GPU.
    """

    transform: Callable[[nodes.Kernel], nodes.Kernel]
    explain: Explain
    checks_each_launch: bool = False


def independence_checks(kernel: nodes.Kernel) -> Instrumentation | None:
    """Return the checks of `ds.loop_config(independent=True)`; None: no loop of the kernel says so."""
    watched = watched_fields(kernel)
    if not watched:
        return None
    fields: list[Field] = []

    def note(mem: Mem) -> Mem:
        made = Field(i64, (), name=mem.name)
        made.place((*(mem.shape or ()), *mem.dtype.shape))
        fields.append(made)
        memory: Mem = made._mem
        return memory

    notes = {m: Notes(note(m), note(m), note(m)) for m in watched}
    run = note(Mem("run", i64, 0, ()))

    def explain(error: DiffsimError, check: Check | Alloca, values: list[int]) -> DiffsimError:
        if not fields or not error.message.endswith(CLAIMED):
            return error
        hint = "leave out independent=True, or change the indices; elements that are only added to may meet"
        return GlobalDataAccessError(error.message, error.span, hint=hint)

    # `explain` also keeps the fields alive, to which memories refer weakly.
    return Instrumentation(lambda k: check_independence(k, notes, run), explain, True)


def finite_watch(
    name: Callable[[tuple[Any, ...]], str],
    ir: nodes.Kernel,
    backend: Backend,
    parts: WrittenParts,
    *,
    adjoint: bool = False,
) -> FiniteWatch | None:
    """Return what looks for NaN and infinities after launches; None: the options do not ask for it."""
    watched = session.options.watched_numbers
    if not watched:
        return None
    alone = watched == "nan"
    return FiniteWatch(name, ir, backend, nan_alone=alone, adjoint=adjoint, parts=parts)


def option_checks(ir: nodes.Kernel, watch: FiniteWatch | None) -> Instrumentation | None:
    """Return the instrumentation that the options of `ds.init` ask for; None: none."""
    claims = independence_checks(ir) if session.options.debug else None
    if watch is None:
        return claims
    if claims is None:
        return Instrumentation(watch.transform, same_error)
    first = claims.transform
    return Instrumentation(lambda k: watch.transform(first(k)), claims.explain, True)


def compiled(
    ir: nodes.Kernel, backend: Backend, instrumentation: Instrumentation | None = None
) -> Executable:
    """Compile a kernel for a backend, with an instrumentation if one is given."""
    if instrumentation is None:
        return compiler.compile_kernel(ir, backend)
    # Not cached here: the caller keeps the result with the variant it belongs to.
    made = compiler.compile_kernel(instrumentation.transform(ir), backend)
    made.explain = instrumentation.explain
    if instrumentation.checks_each_launch:
        # On a GPU a failed check is otherwise noticed late, when the values that explain it have been
        # overwritten.
        made.reports_at_once = True
    return made
