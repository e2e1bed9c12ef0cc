"""Jacobians, and gradients compared with central differences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from diffsim.ad.record.entries import Launched
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.snapshot import StartSnapshot, perturb
from diffsim.ad.tape import Tape
from diffsim.errors import AutodiffError, FieldError, Span, shown
from diffsim.lang.host.signatures import checked, need_function, need_number, need_whole
from diffsim.lang.host.source import check_runs
from diffsim.lang.host.unsupported import close_to
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

Jacobians = dict[tuple[Field, Field], np.ndarray]
# The steps are near eps^(1/3), where the error of central differences is least: rounding of the
# function grows as eps / h, truncation as h^2.
_TOLERANCE = {4: (1e-2, 1e-3, 1e-2), 8: (1e-5, 1e-7, 1e-6)}  # bytes: step, atol, rtol


@checked
def jacobian(
    function: Callable[[], Any],
    inputs: Sequence[Field],
    outputs: Sequence[Field],
    *,
    max_outputs: int | None = None,
) -> Jacobians:
    """Compute the derivatives of all outputs with respect to all inputs in reverse mode.

    Args:
        function: launches kernels; run once. Fields are afterwards as they were before, gradients too.
        inputs: fields with gradients that it reads.
        outputs: fields with gradients that it writes.
        max_outputs: how many components of each output are differentiated at most (0 or None: all).

    Returns:
        For each pair (input, output) an array with a row for each component of the output, and a
        column for each component of the input, in the order of `to_numpy`; NaN in rows left out.
    """
    _check_options(function, max_outputs=max_outputs)
    ins, outs = _checked(inputs, "inputs"), _checked(outputs, "outputs")
    # One run on a tape; every row is then one backward pass over the same record.
    tape, start = _record(function, ins)
    return _jacobian(tape, ins, outs, max_outputs, start)


@checked
def jacobian_fd(
    function: Callable[[], Any],
    inputs: Sequence[Field],
    outputs: Sequence[Field],
    *,
    eps: float | None = None,
    max_inputs: int | None = None,
) -> Jacobians:
    """Compute the same as `jacobian` by central differences; NaN in columns left out.

    Args:
        function: launches kernels; run twice for each component of the inputs.
        inputs: fields with gradients that it reads.
        outputs: fields with gradients that it writes.
        eps: the step; 1e-2 for f32, 1e-5 for f64 if left out.
        max_inputs: how many components of each input are moved at most (0 or None: all).
    """
    _check_options(function, eps=eps, max_inputs=max_inputs)
    ins, outs = _checked(inputs, "inputs"), _checked(outputs, "outputs")
    _, start = _record(function, ins)
    made = _differences(function, ins, outs, eps, max_inputs, start)
    _back(start)
    return made


@checked
def gradcheck(
    function: Callable[[], Any],
    inputs: Sequence[Field],
    outputs: Sequence[Field],
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    max_inputs: int | None = None,
    max_outputs: int | None = None,
    raise_exception: bool = True,
    show_summary: bool = False,
) -> bool:
    """Compare gradients with central differences: |ad - fd| <= atol + rtol * |fd| everywhere.

    Args:
        function: launches kernels, of what it is given alone: it is run many times from the same
            values. Fields and gradients are afterwards as they were before.
        inputs: fields with gradients that it reads.
        outputs: fields with gradients that it writes.
        eps: the step (1e-2 for f32, 1e-5 for f64 if left out).
        atol: absolute tolerance (1e-3, or 1e-7).
        rtol: relative tolerance (1e-2, or 1e-6).
        max_inputs: how many components of each input are moved at most (0 or None: all).
        max_outputs: how many components of each output are looked at at most (0 or None: all).
        raise_exception: whether a difference is an error.
        show_summary: whether to print a table of the largest errors.

    Returns:
        Whether all agree.

    Raises:
        AutodiffError: they do not, with the numbers; or there is no gradient; or nothing to compare.
    """
    _check_options(
        function, eps=eps, atol=atol, rtol=rtol, max_inputs=max_inputs, max_outputs=max_outputs
    )
    # Fields without gradients are refused: their column would be 0 on both sides, and the check would
    # pass.
    ins, outs = _checked(inputs, "inputs"), _checked(outputs, "outputs")
    # A check that compares nothing must not pass.
    if not all(any(f.storage.layout.count for f in group) for group in (ins, outs)):
        raise _nothing_compared("the fields have no elements", "give it fields with elements")
    tape, start = _record(function, ins)
    by_tape = _jacobian(tape, ins, outs, max_outputs, start)
    by_steps = _differences(function, ins, outs, eps, max_inputs, start)
    passed = True
    if show_summary:
        print("       input       output  abs. error rel. error")
    for (i, o), ad in by_tape.items():
        _, a, r = _tolerances(i, o)
        a, r = a if atol is None else atol, r if rtol is None else rtol
        fd = by_steps[i, o]
        error = np.abs(ad - fd)
        # Rows and columns beyond the limits are NaN in one of the two matrices.
        seen = np.zeros(ad.shape, bool)
        seen[: _limit(o, max_outputs), : _limit(i, max_inputs)] = True
        # Negated, so that a NaN on either side counts as a difference.
        bad = seen & ~(error <= a + r * np.abs(fd))
        if show_summary:
            worst = np.max(error[seen], initial=0.0)
            relative = np.max(error[seen] / np.maximum(np.abs(fd[seen]), 1e-30), initial=0.0)
            print(
                f"{i.name:>12} {o.name:>12} {worst:.3e} {relative:.3e}", "no" if bad.any() else "ok"
            )
        if bad.any():
            passed = False
            if raise_exception:
                row, column = np.argwhere(bad)[0]
                raise AutodiffError(
                    f"d {_component(o, row)} / d {_component(i, column)} is {ad[row, column]:.8g} by the "
                    f"tape and {fd[row, column]:.8g} by central differences",
                    Span.of_caller(),
                    hint="at a kink or jump the differences are wrong; else look at gradients written by "
                    "hand, and at what the function reads besides its inputs",
                )
    return passed


@checked
def gradcheck_tape(
    tape: Tape,
    *,
    kernels: Sequence[str] | str | None = None,
    skip_kernels: Sequence[str] | str = (),
    raise_exception: bool = True,
    **options: Any,
) -> bool:
    """Check each launch on a tape by itself with `gradcheck`, from what its fields hold now.

    Args:
        tape: a tape; functions with gradients of their own on it are not checked.
        kernels: names of the kernels to check (all, if left out or empty).
        skip_kernels: names of kernels that are not checked.
        raise_exception: whether a difference is an error.
        options: as those of `gradcheck`.

    Raises:
        AutodiffError: a gradient is wrong; or there was nothing to compare.
        FieldError: a name in `kernels` that no kernel on the tape has.
    """
    if not isinstance(tape, Tape):
        raise FieldError(
            f"gradcheck_tape takes a tape, not {shown(tape)}",
            Span.of_caller(),
            hint="record one: with ds.Tape() as tape: ...",
        )
    # Functions with gradients of their own are left out: their launches are no entries of the tape.
    launches = [e for e in tape.entries if isinstance(e, Launched)]
    known = {e.special.kernel.source.name for e in launches}
    chosen, skipped = _names(kernels), _names(skip_kernels)
    # A misspelled name would check nothing, and so pass.
    for name in sorted(chosen - known):
        close = close_to(name, sorted(known))
        there = f"its kernels are {', '.join(sorted(known))}" if known else "record launches first"
        raise FieldError(
            f"this tape launched no kernel that is named {name!r}",
            Span.of_caller(),
            hint=f"did you mean {close!r}?" if close else there,
        )
    passed, compared = True, False
    for entry in launches:
        name = entry.special.kernel.source.name
        if entry.special.mode.is_detached or name in skipped or (chosen and name not in chosen):
            continue
        # The plain kernel: on a saving tape the entry has its in-place variant.
        special, args = entry.special.origin, entry.args
        ins, outs = (
            list(dict.fromkeys(_with_gradient(special.object_of(a.mem, args) for a in group)))
            for group in (special.accesses.reads, special.accesses.writes)
        )
        # A launch that reads or writes no gradient has nothing to compare.
        if ins and outs:
            compared = True
            passed &= gradcheck(
                functools.partial(special.launch_again, *args),
                ins,
                outs,
                raise_exception=raise_exception,
                **options,
            )
    if not compared:
        raise _nothing_compared(
            "no launch on this tape that is to be checked reads and writes fields with gradients",
            "record the launches to check: with tape: ...; and give the fields needs_grad=True",
        )
    return passed


def _names(given: Sequence[str] | str | None) -> set[str]:
    if given is not None and not isinstance(given, (str, list, tuple, set)):
        raise FieldError(
            f"names of kernels are texts in a list, not {shown(given)}",
            Span.of_caller(),
            hint='write kernels=["step"]',
        )
    names = [given] if isinstance(given, str) else given or ()
    return {name if isinstance(name, str) else shown(name) for name in names}


def _nothing_compared(why: str, hint: str) -> AutodiffError:
    return AutodiffError(f"there is nothing to compare: {why}", Span.of_caller(), hint=hint)


def _with_gradient(things: Any) -> Iterator[Field]:
    return (f for f in things if isinstance(f, Field) and f.grad is not None)


def _checked(fields: Any, what: str) -> list[Field]:
    """Validate a list of fields with gradients."""
    given = [fields] if isinstance(fields, Field) else fields
    if not isinstance(given, (list, tuple)):
        given = []
    if not given or any(not isinstance(f, Field) or f.grad is None for f in given):
        raise FieldError(
            f"{what} is a list of fields with gradients",
            Span.of_caller(),
            hint="declare them with needs_grad=True",
        )
    return list(given)


def _check_options(function: Any, **numbers: Any) -> None:
    """Validate the function and the numbers given to a check."""
    need_function(
        function, "what is checked", "give a kernel without arguments, or a Python function"
    )
    for name, number in numbers.items():
        (need_whole if name.startswith("max") else need_number)(number, name)


def _tolerances(*fields: Field) -> tuple[float, float, float]:
    return _TOLERANCE[min(f.dtype.bytes for f in fields)]


def _record(function: Callable[[], Any], inputs: list[Field]) -> tuple[Tape, StartSnapshot]:
    """Run the function on a tape, with a snapshot of what it changes."""
    check_runs(function, "the function")
    # Saving, so that functions which overwrite their inputs can be checked; no loss, as rows are seeded
    # one by one.
    tape = Tape(in_place="save")
    tape.keeps_inputs = False  # the perturbed inputs are those before the function
    tape.recorder.snapshot = start = StartSnapshot()
    # The snapshot copies what launches write; inputs are not written, and are moved by the differences.
    for f in inputs:
        start.note(f)
    try:
        with tape:
            function()
    except BaseException:
        _back(start)
        raise
    return tape, start


def _back(start: StartSnapshot) -> None:
    """Restore the fields to their values at the start."""
    for saved in start.saved.values():
        saved.restore()
    session.launches = start.launches


def _jacobian(
    tape: Tape, ins: list[Field], outs: list[Field], most: int | None, start: StartSnapshot
) -> Jacobians:
    """Return the Jacobian row by row, one backward pass of the tape for each."""
    # The user's gradients are put aside: the check must leave no trace.
    given = {f: f.grad for f in (*ins, *outs) if f.grad is not None}
    grads = [Saved((g, None)) for g in {**tape.gradients, **given}.values()]
    made: Jacobians = {
        (i, o): np.full((o.storage.layout.count, i.storage.layout.count), np.nan)
        for i in ins
        for o in outs
    }
    try:
        for saved in grads:
            saved.box[0].clear()
        for o in outs:
            for row in range(_limit(o, most)):
                # Row k of the Jacobian is the vector-Jacobian product with the k-th unit vector.
                seed = np.zeros(o.storage.layout.count)
                seed[row] = 1
                shaped = seed.reshape(o.shape + o.element).astype(o.dtype.numpy)
                tape.backward(grads={o: shaped})
                for i in ins:
                    assert i.grad is not None
                    # Filled row by row; rows that are left out stay NaN, which no comparison takes for
                    # a number.
                    made[i, o][row] = i.grad.to_numpy().reshape(-1)
                # Inputs accumulate, so each row starts from 0.
                for saved in grads:
                    saved.box[0].clear()
    finally:
        for saved in grads:
            saved.restore()
            # Written behind the back of `dirty`, on which the next pass relies.
            saved.box[0].versions.may_be_nonzero()
        _back(start)
    return made


def _differences(
    function: Callable[[], Any],
    ins: list[Field],
    outs: list[Field],
    eps: float | None,
    most: int | None,
    start: StartSnapshot,
) -> Jacobians:
    """Return the Jacobian column by column, by central differences."""
    made: Jacobians = {
        (i, o): np.full((o.storage.layout.count, i.storage.layout.count), np.nan)
        for i in ins
        for o in outs
    }
    for i in ins:
        # The least precise of the types decides, since rounding anywhere spoils the difference.
        h = _tolerances(i, *outs)[0] if eps is None else eps
        for column in range(_limit(i, most)):
            ends = []
            for step in (h, -h):
                by = np.zeros(i.storage.layout.count)
                # One component at a time: exact, at two runs for each.
                by[column] = step
                ends.append(
                    run_perturbed(function, start, {i: by.reshape(i.shape + i.element)}, outs)
                )
            for o, one, other in zip(outs, *ends, strict=True):
                # The error is O(h^2), one order better than that of a one-sided difference.
                made[i, o][:, column] = (one - other).reshape(-1) / (2 * h)
    return made


def run_perturbed(
    function: Callable[[], Any],
    start: StartSnapshot,
    by: dict[Field, np.ndarray],
    outs: Sequence[Field],
) -> list[np.ndarray]:
    """Return the outputs of the function for perturbed inputs, and restore all fields."""
    # Restores the fields, and the random number key: both ends of a step must draw the same numbers.
    with start.again():
        perturb(start, by)
        function()
        return [f.to_numpy(dtype=np.float64) for f in outs]


def _limit(f: Field, most: int | None) -> int:
    size = int(f.storage.layout.count)
    return min(size, most) if most is not None and most > 0 else size


def _component(f: Field, number: int) -> str:
    at = np.unravel_index(number, f.shape + f.element) if f.shape + f.element else ()
    inside = ", ".join(str(int(k)) for k in at[: len(f.shape)]) or "None"
    component = ", ".join(str(int(k)) for k in at[len(f.shape) :])
    return f"{f.name}[{inside}]" + (f"[{component}]" if component else "")
