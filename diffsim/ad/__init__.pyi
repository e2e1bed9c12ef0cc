"""Automatic differentiation from Python: tapes, gradients written by hand, code without gradients."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

class CheckpointPlan:
    """The schedule of a checkpointed rollout, made by `ds.ad.checkpoint_plan` step by step as it is iterated."""
    def __init__(self, n_steps: int, options: dict[str, Any], *, disk: bool) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    n_steps: Any
    steps_run: Any
    runs_per_step: Any
    def plot(self, ax: Any = ...) -> Any:
        """Draw what is run from left to right, steps downward, and below it the memory that is held."""
class CheckpointStats:
    """The cost of a rollout; made by `ds.ad.checkpoint`. The counts go on during the backward pass."""
    def __init__(self, snapshot_bytes: int) -> None: ...
    snapshots: Any
    snapshot_bytes: Any
    tapes: Any
    tape_bytes: Any
    disk_bytes: Any
    peak_bytes: Any
    steps_run: Any
    planned_steps: Any
class FwdMode:
    """Computes tangents along with what runs inside `with`: directional derivatives, in one run."""
    def __init__(self, loss: Any = ..., param: Any = ..., seed: Any = ..., clear_gradients: bool = ...) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None: ...
    def tangents(self, y: Any) -> Any:
        """Return the tangents of a field's values, or of a value that a kernel returned in the block."""
class Recorded:
    """A number, vector or matrix on a tape: made by a kernel that returned it, or computed from such ones."""
    def __init__(self, value: Any, tape: Any) -> None: ...
    def __abs__(self) -> Any: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __bool__(self) -> bool: ...
    def __float__(self) -> float: ...
    def __ge__(self, other: Any, /) -> Any: ...
    def __getitem__(self, index: Any) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def __len__(self) -> int: ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __pos__(self) -> Any: ...
    def __pow__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __rpow__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    grad: Any
    @property
    def value(self) -> Any:
        """The plain number, vector or matrix: a constant for the tape."""
from diffsim import Tape as Tape
def checkpoint(step: Callable[[int], Any], n_steps: int | None = ..., state: Sequence[Field] = ..., *, while_: Callable[[int], Any] | None = ..., schedule: Literal['mixed', 'binomial', 'equidistant'] = ..., snapshots: int | None = ..., memory: int | None = ..., disk: str | PathLike[str] | bool | None = ..., progress: bool = ...) -> Any:
    """Run `step(t)` for t = 0 .. n_steps - 1; on a tape, differentiate it within a memory budget."""
def checkpoint_plan(n_steps: int, snapshots: int | None = ..., *, memory: int | None = ..., state_bytes: int = ..., tape_bytes: int | None = ..., schedule: Literal['mixed', 'binomial'] = ..., disk: bool = ...) -> Any:
    """Return the schedule of `ds.ad.checkpoint`, without running anything: print it, iterate it, plot it."""
from diffsim import clear_all_gradients as clear_all_gradients
def fixed_point(step: Callable[[], Any], unknown: Field, output: Field | None = ..., *, params: Sequence[Field] | None = ..., iteration: str = ..., method: str | None = ..., tolerance: float | None = ..., max_iterations: int | None = ..., preconditioner: Any = ...) -> None:
    """Find x = g(x, p); on a tape one entry, whose adjoint solves (1 - dg/dx)^T y = x.grad."""
def grad_for(primal: Any, *, check: bool = ...) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the gradient of a function marked with `ds.ad.grad_replaced`."""
def grad_replaced(func: F) -> F:
    """Decorate a Python function that launches kernels and has a gradient of its own."""
def gradcheck(function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Field], *, eps: float | None = ..., atol: float | None = ..., rtol: float | None = ..., raise_exception: bool = ..., input_output_mask: Any = ..., max_inputs_per_var: int | None = ..., max_outputs_per_var: int | None = ..., plot_relative_error: bool = ..., plot_absolute_error: bool = ..., show_summary: bool = ..., directions: int | None = ..., seed: int = ..., differences: str = ..., max_inputs: int | None = ..., max_outputs: int | None = ...) -> bool:
    """Compare gradients with differences: |ad - fd| <= atol + rtol * |fd| everywhere, and no NaN."""
def gradcheck_tape(tape: Tape, *, eps: float | None = ..., atol: float | None = ..., rtol: float | None = ..., raise_exception: bool = ..., input_output_masks: Mapping[str, Any] | None = ..., blacklist_kernels: Sequence[str] | str | None = ..., whitelist_kernels: Sequence[str] | str | None = ..., max_inputs_per_var: int | None = ..., max_outputs_per_var: int | None = ..., plot_relative_error: bool = ..., plot_absolute_error: bool = ..., show_summary: bool = ..., reverse_launches: bool = ..., skip_to_launch_index: int = ..., directions: int | None = ..., seed: int = ..., differences: str = ..., kernels: Sequence[str] | str | None = ..., skip_kernels: Sequence[str] | str | None = ..., max_inputs: int | None = ..., max_outputs: int | None = ...) -> bool:
    """Check each launch on a tape by itself with `gradcheck`, from what its fields hold now."""
def hessian(function: Callable[[], Any], fields: Any, *, loss: Field | None = ...) -> np.ndarray[Any, Any]:
    """Compute the Hessian matrix of a loss, for small inputs: 4 of its columns in one run of the function."""
def hvp(function: Callable[[], Any], fields: Any, vectors: Any, *, loss: Field | None = ...) -> Any:
    """Compute products of the Hessian matrix of a loss with vectors, in one run of the function."""
def implicit_root(residual: Callable[[], Any], unknown: Field, output: Field, *, params: Sequence[Field] | None = ..., solver: Callable[[], Any] | None = ..., method: str | None = ..., symmetric: bool = ..., tolerance: float | None = ..., max_iterations: int | None = ..., preconditioner: Any = ...) -> None:
    """Solve F(x, p) = 0 for x; on a tape one entry, whose adjoint is a solve with the transposed Jacobian."""
def jacobian(function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Field], *, input_output_mask: Any = ..., max_outputs_per_var: int | None = ..., mode: str = ..., sparsity: Any = ..., sparse: bool = ..., plot_jacobians: bool = ..., max_outputs: int | None = ...) -> Any:
    """Compute the derivatives of all outputs with respect to all inputs."""
def jacobian_fd(function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Field], *, input_output_mask: Any = ..., max_inputs_per_var: int | None = ..., eps: float | None = ..., sparsity: Any = ..., plot_jacobians: bool = ..., max_inputs: int | None = ...) -> Any:
    """Compute the same as `jacobian` by central differences; NaN in columns left out."""
def jacobian_plot(jacobians: Mapping[tuple[Field, Field], Any] | Tape, kernel: Any = ..., inputs: Sequence[Field] | None = ..., outputs: Sequence[Field] | None = ..., show_plot: bool = ..., show_colorbar: bool = ..., scale_colors_per_submatrix: bool = ..., title: str | None = ..., colormap: str = ..., log_scale: bool = ...) -> Any:
    """Draw Jacobians as images: a row of images for each output, a column for each input."""
def linear_solve(A: Any, b: Field, out: Field, *, method: str | None = ..., product: Field | None = ..., symmetric: bool = ..., tolerance: float | None = ..., max_iterations: int | None = ..., preconditioner: Any = ...) -> None:
    """Set `out` to the solution x of A x = b; on a tape one entry, whose adjoint is the transposed solve."""
no_grad: Any
from diffsim import stop_grad as stop_grad

__all__ = [
    "CheckpointPlan",
    "CheckpointStats",
    "FwdMode",
    "Recorded",
    "Tape",
    "checkpoint",
    "checkpoint_plan",
    "clear_all_gradients",
    "fixed_point",
    "grad_for",
    "grad_replaced",
    "gradcheck",
    "gradcheck_tape",
    "hessian",
    "hvp",
    "implicit_root",
    "jacobian",
    "jacobian_fd",
    "jacobian_plot",
    "linear_solve",
    "no_grad",
    "stop_grad",
]
