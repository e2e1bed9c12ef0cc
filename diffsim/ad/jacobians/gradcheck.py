"""`ds.ad.gradcheck`: the gradients of a function, or of each launch of a tape, compared with differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffsim.ad.jacobians.arguments import Mask, Subject, either, need_step, subject
from diffsim.ad.jacobians.comparison import (
    Compared,
    Options,
    at_a_component,
    compare,
    compare_directions,
    explain,
)
from diffsim.ad.jacobians.differences import SCHEMES
from diffsim.ad.jacobians.launches import launches_of, subject_of
from diffsim.ad.jacobians.plots import plot_errors
from diffsim.ad.jacobians.program import Program, RecordedBlock, size
from diffsim.ad.jacobians.report import Row, Table
from diffsim.ad.tape import Tape
from diffsim.errors import ArgumentError, AutodiffError, OptionError, Span, shown
from diffsim.lang.host.signatures import checked, is_one_of, need_bool, need_number, need_whole
from diffsim.lang.host.unsupported import close_to
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.kernel import BoundKernel, Kernel
from diffsim.runtime.observe.display import display

_MOST_DIRECTIONS = 10**6
_MOST_EACH = 100
"""Numbers of a field up to which a tape compares the gradient of each (`Tape(grad_check=...)`)."""


@checked
def gradcheck(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Field],
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    raise_exception: bool = True,
    input_output_mask: Mask = None,
    max_inputs_per_var: int | None = None,
    max_outputs_per_var: int | None = None,
    plot_relative_error: bool = False,
    plot_absolute_error: bool = False,
    show_summary: bool = True,
    directions: int | None = None,
    seed: int = 0,
    differences: str = "central",
    max_inputs: int | None = None,
    max_outputs: int | None = None,
) -> bool:
    """Compare gradients with differences: |ad - fd| <= atol + rtol * |fd| everywhere, and no NaN.

    Args:
        function: launches kernels, of what it is given alone: it is run many times from the same
            values. Fields and gradients are afterwards as they were before. A kernel or function with
            parameters is called with the inputs and then the outputs.
        inputs: fields with gradients that it reads; if it has parameters, numbers and other fields too.
        outputs: fields with gradients that it writes.
        eps: the step; if left out 1e-2 for f32, 1e-5 for f64, times the number where that is larger than 1.
        atol: absolute tolerance (1e-3, or 1e-7).
        rtol: relative tolerance (1e-2, or 1e-6).
        raise_exception: whether a difference is an error.
        input_output_mask: the pairs (input, output) to compare, by name, number or field; None: all.
        max_inputs_per_var: how many components of each input are moved at most (0 or None: all).
        max_outputs_per_var: how many components of each output are looked at at most (0 or None: all).
        plot_relative_error: whether to draw the relative errors (matplotlib).
        plot_absolute_error: whether to draw the absolute errors.
        show_summary: whether to show a table of the largest errors.
        directions: compare along that many random directions instead of every derivative: one backward
            pass for each output and two runs for each input decide, however many components there are.
        seed: of the random directions.
        differences: "central", or "richardson": two steps, from which a result is extrapolated that is
            1000 times more exact in f64 (tolerances 1e-9 and 1e-8), for twice as many runs; or "ridders":
            5 to 11 steps (1e-11 and 1e-10); or "complex": a complex step, which has no error of a difference
            (1e-12 and 1e-11): one run in the interpreter of kernels for each component of the inputs. It
            takes what is done in kernels, and what the program declares constant is constant.
        max_inputs: the same as `max_inputs_per_var`.
        max_outputs: the same as `max_outputs_per_var`.

    Returns:
        Whether all agree.

    Raises:
        AutodiffError: they do not, with the numbers; or there is no gradient; or nothing to compare.

    Example:
        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)
        x.fill(3.0)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        print(ds.ad.gradcheck(square, [x], [y], show_summary=False))  # prints: True
    """
    options = _options(
        eps=eps,
        atol=atol,
        rtol=rtol,
        max_inputs=either(max_inputs_per_var, max_inputs),
        max_outputs=either(max_outputs_per_var, max_outputs),
        directions=0 if directions is None else directions,
        seed=seed,
        differences=differences,
    )
    need_bool(raise_exception, "raise_exception")
    checked_one = subject(function, inputs, outputs, input_output_mask)
    check = _Check(options, raising=raise_exception)
    check.add(checked_one)
    return check.finish(show_summary, relative=plot_relative_error, absolute=plot_absolute_error)


@checked
def gradcheck_tape(
    tape: Tape,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    raise_exception: bool = True,
    input_output_masks: Mapping[str, Mask] | None = None,
    blacklist_kernels: Sequence[str] | str | None = None,
    whitelist_kernels: Sequence[str] | str | None = None,
    max_inputs_per_var: int | None = None,
    max_outputs_per_var: int | None = None,
    plot_relative_error: bool = False,
    plot_absolute_error: bool = False,
    show_summary: bool = True,
    reverse_launches: bool = False,
    skip_to_launch_index: int = 0,
    directions: int | None = None,
    seed: int = 0,
    differences: str = "central",
    kernels: Sequence[str] | str | None = None,
    skip_kernels: Sequence[str] | str | None = None,
    max_inputs: int | None = None,
    max_outputs: int | None = None,
) -> bool:
    """Check each launch on a tape by itself with `gradcheck`, from what its fields hold now.

    The tape, its fields and gradients are afterwards as they were. Inputs and outputs of a launch are
    the fields and arrays with gradients that its kernel reads and writes.

    Args:
        tape: a tape; functions with gradients of their own on it are not checked.
        eps: the step, as in `gradcheck`.
        atol: absolute tolerance, as in `gradcheck`.
        rtol: relative tolerance, as in `gradcheck`.
        raise_exception: whether a difference is an error.
        input_output_masks: for names of kernels the pairs (input, output) to compare: by the name of
            the parameter or field, or by number among the inputs and outputs of the launch.
        blacklist_kernels: names of kernels that are not checked.
        whitelist_kernels: names of the kernels to check; all, if left out or empty.
        max_inputs_per_var: how many components of each input are moved at most (0 or None: all).
        max_outputs_per_var: how many components of each output are looked at at most (0 or None: all).
        plot_relative_error: whether to draw the relative errors of each launch.
        plot_absolute_error: whether to draw the absolute errors of each launch.
        show_summary: whether to show a table with a row for each pair of each launch.
        reverse_launches: whether to begin with the last launch.
        skip_to_launch_index: how many launches to leave out, in the order of the check.
        directions: compare along that many random directions, as in `gradcheck`.
        seed: of the random directions.
        differences: "central", "richardson", "ridders" or "complex", as in `gradcheck`.
        kernels: the same as `whitelist_kernels`.
        skip_kernels: the same as `blacklist_kernels`.
        max_inputs: the same as `max_inputs_per_var`.
        max_outputs: the same as `max_outputs_per_var`.

    Returns:
        Whether all agree.

    Raises:
        AutodiffError: a gradient is wrong; or there was nothing to compare.
        ArgumentError: a name in `whitelist_kernels` or `input_output_masks` that no kernel on the tape has.

    Example:
        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)
        x.fill(3.0)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        with ds.Tape() as tape:
            square()
        print(ds.ad.gradcheck_tape(tape, show_summary=False))  # prints: True
    """
    options = _options(
        eps=eps,
        atol=atol,
        rtol=rtol,
        max_inputs=either(max_inputs_per_var, max_inputs),
        max_outputs=either(max_outputs_per_var, max_outputs),
        directions=0 if directions is None else directions,
        seed=seed,
        differences=differences,
    )
    need_bool(raise_exception, "raise_exception")
    need_whole(skip_to_launch_index, "skip_to_launch_index")
    first = max(0, skip_to_launch_index or 0)
    launches = launches_of(tape, "gradcheck_tape")
    masks = _masks(input_output_masks)
    chosen = _names(either(whitelist_kernels, kernels))
    skipped = _names(either(blacklist_kernels, skip_kernels))
    # A misspelled name would check nothing, and so pass.
    _need_known({*chosen, *masks}, {e.special.kernel.source.name for _, e in launches})
    check = _Check(options, raising=raise_exception)
    ordered = launches[::-1] if reverse_launches else launches
    named = [(number, e, e.special.kernel.source.name) for number, e in ordered[first:]]
    wanted = [row for row in named if row[2] not in skipped and (not chosen or row[2] in chosen)]
    for number, entry, name in wanted:
        if not entry.special.mode.is_detached:
            found = subject_of(entry, masks.get(name))
            # A launch that reads or writes no gradient has nothing to compare.
            if found is not None:
                check.add(found, f"{number}: {entry.text()}")
    return check.finish(
        show_summary,
        relative=plot_relative_error,
        absolute=plot_absolute_error,
        left_out=bool(launches) and not wanted,
    )


def compare_block(tape: Tape) -> None:
    """Compare the gradients that a tape has computed with differences; raise AutodiffError where they differ.

    All of a field with few numbers; of one with many along random directions.
    """
    few = [f for f in tape.compared if size(f) <= _MOST_EACH]
    many = [f for f in tape.compared if size(f) > _MOST_EACH]
    for fields, how, directions in ((few, compare, 0), (many, compare_directions, 3)):
        program, options = RecordedBlock(tape, fields), Options(directions=directions)
        for found in how(program, options):
            if found.bad.any():
                wrong = at_a_component(program, found, options) if directions else found
                raise explain(program, wrong, Options(), "")


Tape.compare = compare_block


class _Check:
    """Compares one subject after the other, and reports on all of them."""

    def __init__(self, options: Options, *, raising: bool) -> None:
        self.options = options
        self.raising = raising
        self.rows: list[Row] = []
        self.compared: list[tuple[str, Compared]] = []
        self.error: AutodiffError | None = None

    def add(self, subject: Subject, launch: str = "") -> None:
        """Compare one function."""
        if self.error is not None:
            return
        # Pairs without components would pass whatever the gradients are.
        pairs = [(i, o) for i, o in subject.pairs if size(i) and size(o)]
        if not pairs:
            return
        with Program(subject._replace(pairs=pairs)) as program:
            how = compare_directions if self.options.directions else compare
            for found in how(program, self.options):
                self.rows.append(found.row(launch, components=not self.options.directions))
                self.compared.append((launch, found))
                if found.bad.any() and self.raising and self.error is None:
                    self.error = explain(program, found, self.options, launch)

    def finish(
        self, show_summary: bool, *, relative: bool, absolute: bool, left_out: bool = False
    ) -> bool:
        """Report; raise AutodiffError for the first derivative that differs, or if nothing was compared.

        `left_out`: whether there were launches, and the options leave out all of them.
        """
        for wanted, what in ((relative, "relative"), (absolute, "absolute")):
            need_bool(wanted, f"plot_{what}_error")
        if not self.rows:
            raise _nothing_compared(left_out=left_out)
        if show_summary:
            display(Table(self.rows))
        # Before the error: the pictures tell where the matrices differ.
        if relative:
            plot_errors(self.compared, relative=True)
        if absolute:
            plot_errors(self.compared, relative=False)
        if self.error is not None:
            raise self.error
        return all(row.passed for row in self.rows)


def _nothing_compared(*, left_out: bool) -> AutodiffError:
    if left_out:
        return AutodiffError(
            "there is nothing to compare: the options leave out every launch on the tape",
            Span.of_caller(),
            hint="look at whitelist_kernels, blacklist_kernels and skip_to_launch_index",
        )
    return AutodiffError(
        "there is nothing to compare: nothing that is to be checked reads and writes fields with gradients "
        "that have elements",
        Span.of_caller(),
        hint="give the fields needs_grad=True and elements; record the launches to check: with tape: ...",
    )


# ---- options


def _options(**given: Any) -> Options:
    """Validate the options of a comparison."""
    need_step(given["eps"])
    for name in ("atol", "rtol"):
        need_number(given[name], name)
        if given[name] is not None and given[name] < 0:
            raise ArgumentError(
                f"{name} is a number from 0 on, not {shown(given[name])}",
                Span.of_caller(),
                hint=f"leave it out, or write {name}=1e-6",
            )
    for name in ("max_inputs", "max_outputs", "directions", "seed"):
        need_whole(given[name], name)
    if not is_one_of(given["differences"], *SCHEMES):
        raise OptionError(
            f"differences={shown(given['differences'])} is not possible",
            Span.of_caller(),
            hint=f"it is {' or '.join(map(repr, SCHEMES))}",
        )
    for name, most in (("directions", _MOST_DIRECTIONS), ("seed", 2**64)):
        if given[name] is None or not 0 <= given[name] <= most:
            raise ArgumentError(
                f"{name} is a whole number from 0 on, not {shown(given[name])}",
                Span.of_caller(),
                hint=f"write {name}=3",
            )
    return Options(**given)


# ---- tapes


def _masks(given: Any) -> Mapping[str, Mask]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"input_output_masks is a dictionary from names of kernels to masks, not {shown(given)}",
            Span.of_caller(),
            hint='write input_output_masks={"step": [("x", "y")]}',
        )
    return {_name(kernel): mask for kernel, mask in given.items()}


def _names(given: Sequence[str] | str | None) -> set[str]:
    if given is not None and not isinstance(given, (str, list, tuple, set)):
        raise ArgumentError(
            f"names of kernels are texts in a list, not {shown(given)}",
            Span.of_caller(),
            hint='write whitelist_kernels=["step"]',
        )
    return set(map(_name, [given] if isinstance(given, str) else given or ()))


def _name(kernel: Any) -> str:
    """Return the name that a kernel is chosen by: a text, or the kernel's own."""
    if isinstance(kernel, str):
        return kernel
    plain = kernel.kernel if isinstance(kernel, BoundKernel) else kernel
    return plain.source.name if isinstance(plain, Kernel) else shown(kernel)


def _need_known(names: set[str], known: set[str]) -> None:
    """Refuse names that no kernel on the tape has."""
    for name in sorted(names - known):
        close = close_to(name, sorted(known))
        there = f"its kernels are {', '.join(sorted(known))}" if known else "record launches first"
        raise ArgumentError(
            f"this tape launched no kernel that is named {name!r}",
            Span.of_caller(),
            hint=f"did you mean {close!r}?" if close else there,
        )
