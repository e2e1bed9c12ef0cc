"""`ds.ad.jacobian` and `ds.ad.jacobian_fd`: all derivatives of fields with respect to fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffsim.ad.jacobians.arguments import Mask, either, need_step, subject
from diffsim.ad.jacobians.dependence import found_pattern
from diffsim.ad.jacobians.differences import columns
from diffsim.ad.jacobians.plots import jacobian_plot
from diffsim.ad.jacobians.program import Program
from diffsim.ad.jacobians.rows import by_rows
from diffsim.ad.jacobians.sparse import SparseMatrix, given_pattern, scipy_sparse, wanted_rows
from diffsim.errors import FieldError, Span, shown
from diffsim.lang.host.signatures import checked, need_bool, need_whole
from diffsim.runtime.fields.field import Field

Pair = tuple[Field, Field]


class Jacobians(dict[Pair, Any]):
    """A matrix for each pair (input, output).

    Attributes:
        passes: how many passes over the recorded program computed them, with the test of a sparse one.
        runs: how many times the program ran again, for differences or for a sparsity pattern.
    """

    def __init__(self, matrices: Mapping[Pair, Any], program: Program) -> None:
        super().__init__(matrices)
        self.passes = program.passes
        self.runs = program.runs


@checked
def jacobian(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Field],
    *,
    input_output_mask: Mask = None,
    max_outputs_per_var: int | None = None,
    sparsity: Any = None,
    sparse: bool = False,
    plot_jacobians: bool = False,
    max_outputs: int | None = None,
) -> Jacobians:
    """Compute the derivatives of all outputs with respect to all inputs in reverse mode.

    Args:
        function: launches kernels; run once. Fields are afterwards as they were before, gradients too.
            A kernel or function with parameters is called with the inputs and then the outputs.
        inputs: fields with gradients that it reads; if it has parameters, numbers and other fields too.
        outputs: fields with gradients that it writes.
        input_output_mask: the pairs (input, output) to compute, by name, number or field; None: all.
        max_outputs_per_var: how many components of each output are differentiated at most (0 or None: all).
        sparsity: where derivatives may differ from 0: "auto" to find it out by runs of the function;
            a matrix, or one for each pair. Outputs that depend on no input together then share a pass.
            None: one pass for each component of the outputs.
        sparse: return matrices of SciPy (`csr_array`); the sparsity is found out unless it is given.
        plot_jacobians: draw the result with `jacobian_plot`.
        max_outputs: the same as `max_outputs_per_var`.

    Returns:
        For each pair (input, output) an array with a row for each component of the output, and a
        column for each component of the input, in the order of `to_numpy`; NaN in rows left out.

    Raises:
        AutodiffError: there is no gradient; a derivative is outside of the pattern that was given.
    """
    most = either(max_outputs_per_var, max_outputs)
    need_whole(most, "max_outputs_per_var")
    need_bool(sparse, "sparse")
    if isinstance(sparsity, str) and sparsity != "auto":
        raise FieldError(
            f"sparsity={shown(sparsity)} is not possible",
            Span.of_caller(),
            hint='it is "auto", a matrix, or a dictionary {(x, y): matrix}',
        )
    if sparse:
        scipy_sparse()
        sparsity = "auto" if sparsity is None else sparsity
    with Program(subject(function, inputs, outputs, input_output_mask)) as program:
        if sparsity is None:
            made = Jacobians(by_rows(program, most), program)
        else:
            made = _sparse(program, sparsity, most, sparse)
    return _drawn(made, plot_jacobians)


def _drawn(made: Jacobians, wanted: bool) -> Jacobians:
    need_bool(wanted, "plot_jacobians")
    if wanted:
        jacobian_plot(made)
    return made


def _sparse(program: Program, sparsity: Any, most: int | None, sparse: bool) -> Jacobians:
    """Return the Jacobian by a pattern."""
    wanted = wanted_rows(program, most)
    if isinstance(sparsity, str):
        # More runs than rows would be no gain.
        pattern = found_pattern(program, int(wanted.sum()))
    else:
        pattern = given_pattern(program, sparsity)
    if pattern is None:
        dense = by_rows(program, most)
        made = {pair: scipy_sparse().csr_array(m) for pair, m in dense.items()} if sparse else dense
        return Jacobians(made, program)
    matrix = SparseMatrix(program, pattern, wanted)
    matrix.compute()
    form = matrix.scipy if sparse else matrix.dense
    return Jacobians({(i, o): form(i, o) for i, o in program.pairs}, program)


@checked
def jacobian_fd(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Field],
    *,
    input_output_mask: Mask = None,
    max_inputs_per_var: int | None = None,
    eps: float | None = None,
    plot_jacobians: bool = False,
    max_inputs: int | None = None,
) -> Jacobians:
    """Compute the same as `jacobian` by central differences; NaN in columns left out.

    Args:
        function: launches kernels; run twice for each component of the inputs.
        inputs: fields with gradients that it reads; if it has parameters, numbers and other fields too.
        outputs: fields with gradients that it writes.
        input_output_mask: the pairs (input, output) to compute, by name, number or field; None: all.
        max_inputs_per_var: how many components of each input are moved at most (0 or None: all).
        eps: the step; if left out 1e-2 for f32, 1e-5 for f64, times the number where that is larger than 1.
        plot_jacobians: draw the result with `jacobian_plot`.
        max_inputs: the same as `max_inputs_per_var`.
    """
    most = either(max_inputs_per_var, max_inputs)
    need_step(eps)
    need_whole(most, "max_inputs_per_var")
    with Program(subject(function, inputs, outputs, input_output_mask)) as program:
        made = Jacobians(columns(program, "central", eps, most), program)
    return _drawn(made, plot_jacobians)
