"""`ds.ad.jacobian` and `ds.ad.jacobian_fd`: all derivatives of fields with respect to fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffsim.ad.jacobians.arguments import (
    Mask,
    either,
    has_gradient,
    limit,
    masked,
    need_step,
    subject,
)
from diffsim.ad.jacobians.coloring import Pattern
from diffsim.ad.jacobians.dependence import found_pattern
from diffsim.ad.jacobians.differences import columns
from diffsim.ad.jacobians.plots import jacobian_plot
from diffsim.ad.jacobians.program import Program, by_columns, by_rows, size
from diffsim.ad.jacobians.sparse import SparseMatrix, given_pattern, scipy_sparse, wanted_rows
from diffsim.errors import ArgumentError, AutodiffError, OptionError, Span, shown
from diffsim.lang.host.signatures import checked, is_one_of, need_bool, need_whole
from diffsim.runtime.fields.field import Field

Pair = tuple[Field, Field]


class Jacobians(dict[Pair, Any]):
    """A matrix for each pair (input, output): `J[x, y]`; also by names or numbers, `J["x", "y"]`, `J[0, 1]`.

    Attributes:
        mode: "forward", "reverse" or "differences".
        passes: how many passes over the recorded program computed them, with the test of a sparse one.
        runs: how many times the program ran again, for differences or for a sparsity pattern.
    """

    def __init__(self, matrices: Mapping[Pair, Any], program: Program, mode: str) -> None:
        super().__init__(matrices)
        self.mode = mode
        self.passes = program.passes
        self.runs = program.runs
        self._fields = program.inputs, program.outputs, program.names

    def __missing__(self, key: Any) -> Any:
        (pair,) = masked([key], *self._fields)
        if pair in self:
            return self[pair]
        raise ArgumentError(
            f"the derivatives of {pair[1].name} by {pair[0].name} were not computed",
            Span.of_caller(),
            hint="name the pair in input_output_mask",
        )


@checked
def jacobian(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Field],
    *,
    input_output_mask: Mask = None,
    max_outputs_per_var: int | None = None,
    mode: str = "auto",
    sparsity: Any = None,
    sparse: bool = False,
    plot_jacobians: bool = False,
    max_outputs: int | None = None,
) -> Jacobians:
    """Compute the derivatives of all outputs with respect to all inputs.

    Args:
        function: launches kernels. Fields are afterwards as they were before, gradients too.
            A kernel or function with parameters is called with the inputs and then the outputs.
        inputs: fields that it reads, with gradients (in forward mode without them, if no input has one);
            if it has parameters, numbers and other fields too.
        outputs: fields that it writes, with gradients.
        input_output_mask: the pairs (input, output) to compute, by name, number or field; None: all.
        max_outputs_per_var: how many components of each output are differentiated at most (0 or None: all).
        mode: "reverse": a pass for each component of the outputs; "forward": up to 8 components of the
            inputs in a run, and no field needs a gradient; "auto": whichever has less to do, the other one
            where that is refused.
        sparsity: where derivatives may differ from 0: "auto" to find it out by runs of the function;
            a matrix, or one for each pair. Outputs that depend on no input together then share a pass.
            None: one pass for each component.
        sparse: return matrices of SciPy (`csr_array`); the sparsity is found out unless it is given.
        plot_jacobians: draw the result with `jacobian_plot`.
        max_outputs: the same as `max_outputs_per_var`.

    Returns:
        For each pair (input, output) an array with a row for each component of the output, and a
        column for each component of the input, in the order of `to_numpy`; NaN in rows left out.

    Raises:
        AutodiffError: there is no gradient; a derivative is outside the pattern that was given.

    Example:
        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)
        x.fill(3.0)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        print(ds.ad.jacobian(square, [x], [y])[x, y].diagonal())  # prints: [6. 6. 6.]
    """
    most = either(max_outputs_per_var, max_outputs)
    need_whole(most, "max_outputs_per_var")
    need_bool(sparse, "sparse")
    if not is_one_of(mode, "auto", "forward", "reverse"):
        raise OptionError(
            f"mode={shown(mode)} is not possible",
            Span.of_caller(),
            hint='it is "auto", "forward" or "reverse"',
        )
    _need_sparsity(sparsity)
    if sparse:
        scipy_sparse()
        sparsity = "auto" if sparsity is None else sparsity
    if mode == "auto" and not _all_have_gradients((inputs, outputs)):
        mode = "forward"
    what = subject(function, inputs, outputs, input_output_mask, needs_grad=mode != "forward")
    with Program(what) as program:
        columns = sum(size(i) for i in program.inputs)
        wanted = wanted_rows(program, most)
        # More runs than rows would be no gain.
        pattern = _pattern(program, sparsity, min(int(wanted.sum()), columns))
        if pattern is not None:
            matrix = SparseMatrix(program, pattern, wanted)
            return _drawn(_sparse(matrix, mode, sparse), plot_jacobians)
        how = {"forward": by_columns, "reverse": by_rows}
        first = "forward" if columns < wanted.sum() else "reverse"
        dense, used = _by_mode(mode, first, lambda mode: how[mode](program, most))
    if sparse:
        dense = {pair: scipy_sparse().csr_array(m) for pair, m in dense.items()}
    return _drawn(Jacobians(dense, program, used), plot_jacobians)


def _all_have_gradients(given: Sequence[Any]) -> bool:
    """Whether reverse mode can be meant: no output, and not all of the inputs, are without a gradient."""
    inputs, outputs = (
        [f for f in (some if isinstance(some, (list, tuple)) else [some]) if isinstance(f, Field)]
        for some in given
    )
    return any(map(has_gradient, inputs)) and all(map(has_gradient, outputs))


def _pattern(program: Program, sparsity: Any, most_runs: int) -> Pattern | None:
    """Return the pattern that is given or found; None: each row or column by itself."""
    if sparsity is None:
        return None
    if isinstance(sparsity, str):
        return found_pattern(program, most_runs)
    return given_pattern(program, sparsity)


def _need_sparsity(sparsity: Any) -> None:
    if isinstance(sparsity, str) and sparsity != "auto":
        raise OptionError(
            f"sparsity={shown(sparsity)} is not possible",
            Span.of_caller(),
            hint='it is "auto", a matrix, or a dictionary {(x, y): matrix}',
        )


def _sparse(matrix: SparseMatrix, mode: str, sparse: bool) -> Jacobians:
    """Return the Jacobian by a pattern."""
    counts = {m: int(matrix.colours(m).max(initial=-1)) for m in ("forward", "reverse")}
    first = "forward" if counts["forward"] < counts["reverse"] else "reverse"
    _, used = _by_mode(mode, first, matrix.compute)
    form = matrix.scipy if sparse else matrix.dense
    return Jacobians({(i, o): form(i, o) for i, o in matrix.program.pairs}, matrix.program, used)


def _by_mode(mode: str, first: str, compute: Callable[[str], Any]) -> tuple[Any, str]:
    """Compute in a mode; "auto": in the first one, or in the other where that is refused."""
    if mode != "auto":
        return compute(mode), mode
    try:
        return compute(first), first
    except AutodiffError as refusal:
        second = "reverse" if first == "forward" else "forward"
        try:
            return compute(second), second
        except AutodiffError:
            # Reverse mode knows more constructs, and its advice is what users follow.
            if first == "forward":
                raise
            raise refusal from None


def _drawn(made: Jacobians, wanted: bool) -> Jacobians:
    need_bool(wanted, "plot_jacobians")
    if wanted:
        jacobian_plot(made)
    return made


@checked
def jacobian_fd(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Field],
    *,
    input_output_mask: Mask = None,
    max_inputs_per_var: int | None = None,
    eps: float | None = None,
    sparsity: Any = None,
    plot_jacobians: bool = False,
    max_inputs: int | None = None,
) -> Jacobians:
    """Compute the same as `jacobian` by central differences; NaN in columns left out.

    Args:
        function: launches kernels; run twice for each component of the inputs, or for each colour.
        inputs: fields of floats that it reads; if it has parameters, numbers and other fields too.
        outputs: fields of floats that it writes.
        input_output_mask: the pairs (input, output) to compute, by name, number or field; None: all.
        max_inputs_per_var: how many components of each input are moved at most (0 or None: all).
        eps: the step; if left out 1e-2 for f32, 1e-5 for f64, times the number where that is larger than 1.
        sparsity: where derivatives may differ from 0, as in `jacobian`: inputs that no output depends on
            together are moved together, and one more pair of runs tests a pattern.
        plot_jacobians: draw the result with `jacobian_plot`.
        max_inputs: the same as `max_inputs_per_var`.

    Example:
        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)
        x.fill(3.0)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        print(ds.ad.jacobian_fd(square, [x], [y])[x, y].diagonal().round(6))  # prints: [6. 6. 6.]
    """
    most = either(max_inputs_per_var, max_inputs)
    need_step(eps)
    need_whole(most, "max_inputs_per_var")
    _need_sparsity(sparsity)
    what = subject(function, inputs, outputs, input_output_mask, needs_grad=False)
    with Program(what) as program:
        pattern = _pattern(program, sparsity, sum(limit(i, most) for i in program.inputs))
        if pattern is None:
            matrices = columns(program, "central", eps, most)
        else:
            matrix = SparseMatrix(program, pattern, wanted_rows(program, None))
            matrix.by_differences(eps, most)
            matrices = {(i, o): matrix.dense(i, o) for i, o in program.pairs}
        made = Jacobians(matrices, program, "differences")
    return _drawn(made, plot_jacobians)
