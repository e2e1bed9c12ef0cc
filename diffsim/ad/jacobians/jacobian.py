"""`ds.ad.jacobian` and `ds.ad.jacobian_fd`: all derivatives of fields with respect to fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diffsim.ad.jacobians.arguments import Mask, either, need_step, subject
from diffsim.ad.jacobians.differences import columns
from diffsim.ad.jacobians.program import Program
from diffsim.ad.jacobians.rows import by_rows
from diffsim.lang.host.signatures import checked, need_whole
from diffsim.runtime.fields.field import Field

Jacobians = dict[tuple[Field, Field], np.ndarray]


@checked
def jacobian(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Field],
    *,
    input_output_mask: Mask = None,
    max_outputs_per_var: int | None = None,
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
        max_outputs: the same.

    Returns:
        For each pair (input, output) an array with a row for each component of the output, and a
        column for each component of the input, in the order of `to_numpy`; NaN in rows left out.
    """
    most = either(max_outputs_per_var, max_outputs)
    need_whole(most, "max_outputs_per_var")
    with Program(subject(function, inputs, outputs, input_output_mask)) as program:
        return by_rows(program, most)


@checked
def jacobian_fd(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Field],
    *,
    input_output_mask: Mask = None,
    max_inputs_per_var: int | None = None,
    eps: float | None = None,
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
        max_inputs: the same as `max_inputs_per_var`.
    """
    most = either(max_inputs_per_var, max_inputs)
    need_step(eps)
    need_whole(most, "max_inputs_per_var")
    with Program(subject(function, inputs, outputs, input_output_mask)) as program:
        return columns(program, "central", eps, most)
