"""Automatic differentiation from Python: tapes, gradients written by hand, code without gradients."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, overload
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")

class CheckpointPlan:
    """The schedule of a checkpointed rollout, made by `ds.ad.checkpoint_plan` step by step as it is iterated.

    Attributes:
        n_steps: the number of steps.
        steps_run: how often a step is run, forward and backward together.
        runs_per_step: that divided by the number of steps.

    Example:
        plan = ds.ad.checkpoint_plan(10, snapshots=10)
        print(plan.n_steps, plan.steps_run, plan.runs_per_step)  # prints: 10 10 1.0
    """
    def __init__(self, n_steps: int, options: dict[str, Any], *, disk: bool) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    n_steps: Any
    steps_run: Any
    runs_per_step: Any
    def plot(self, ax: Any = ...) -> Any:
        """Draw what is run from left to right, steps downward, and below it the memory that is held.

        Args:
            ax: matplotlib's axes, for the steps alone; None: a new figure with both.

        Returns:
            The axes of the steps.

        Example:
            ax = ds.ad.checkpoint_plan(10, snapshots=3).plot()
            ax.figure.savefig("plan.png")
            print(len(ax.figure.axes))  # prints: 2
        """
class CheckpointStats:
    """The cost of a rollout; made by `ds.ad.checkpoint`. The counts go on during the backward pass.

    Attributes:
        snapshots: most states that were held in memory at once.
        snapshot_bytes: bytes of one.
        tapes: most steps that were on tapes at once, the one whose adjoint was run included.
        tape_bytes: bytes of what the tape of one step copied, at most.
        disk_bytes: most bytes of states on the disk at once.
        peak_bytes: most bytes held at once: states, what tapes saved of steps, the final values, which return
            after the backward pass, and 16 bytes of notes for each step (on the disk, if states are there).
        steps_run: how often a step was run, forward and backward together.
        planned_steps: how often they are going to be run in all, by the sizes of the first step; 0: not known
            (no tape, or `while_=` before the end of the forward run).

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 1.0

        @ds.kernel
        def step(t: ds.i32):
            x[None] = 2.0 * x[None]

        stats = ds.ad.checkpoint(step, 10, [x])
        print(x[None], stats.steps_run)  # prints: 1024.0 10
    """
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
    """Computes tangents along with what runs inside `with`: directional derivatives, in one run.

        with ds.ad.FwdMode(loss=loss, param=x):
            simulate()
        loss.dual[None]  # d loss / d x

    Every field that depends on a param has its tangent afterwards: `y.dual` where it was declared with
    `needs_dual=True` or is named here, and `forward.tangents(y)` for any. Nothing is saved, state may be
    changed in place, and no rule restricts the program.

    Args:
        loss: a field of floats, or a list of them: what tangents are wanted of.
        param: what is differentiated by: a field of floats; a list of them; or a dictionary from fields to
            seeds.
        seed: the tangent of the param: numbers in its shape; a list of these, up to 8, computes as many
            tangents in one run. With several params: a list with one seed for each. If left out it is 1,
            where the param is a single number.
        clear_gradients: whether all duals are set to 0 on entry.

    Raises:
        AutodiffError: and its kind, in the line whose tangent cannot be given.
        ArgumentError: a seed that does not fit.

    Example:
        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)
        x.fill(3.0)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        with ds.ad.FwdMode(loss=y, param=x, seed=[1.0, 0.0, 0.5]) as forward:
            square()
        print(forward.tangents(y))  # prints: [6. 0. 3.]
    """
    def __init__(self, loss: Any = ..., param: Any = ..., seed: Any = ..., clear_gradients: bool = ...) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None: ...
    def tangents(self, y: Any) -> Any:
        """Return the tangents of a field's values, or of a value that a kernel returned in the block.

        Args:
            y: a field, an array, or what a kernel returned.

        Returns:
            An array in the shape of `y.to_numpy()`; with a list of seeds one for each of them, in order.

        Example:
            x = ds.field(ds.f64, shape=3, needs_grad=True)
            y = ds.field(ds.f64, shape=3, needs_grad=True)
            x.fill(3.0)

            @ds.kernel
            def square():
                for i in x:
                    y[i] = x[i] ** 2

            with ds.ad.FwdMode(loss=y, param=x, seed=[[1, 0, 0], [0, 1, 0]]) as forward:
                square()
            print(forward.tangents(y).tolist())  # prints: [[6.0, 0.0, 0.0], [0.0, 6.0, 0.0]]
        """
class Recorded:
    """A number, vector or matrix on a tape: made by a kernel that returned it, or computed from such ones.

    `+ - * / **`, `abs`, comparisons and functions such as `ds.sin` take it, `field[i] = r` stores it, and
    a kernel takes it as an argument: all of this is differentiated. `r.value` is the plain number (or
    `ds.Vector`, `ds.Matrix`): a constant. When the tape has ended it is a number like any other.

    Attributes:
        array: the value.
        tape: its recorder; `record`: in which of its recordings.
        grad: in the backward pass, the gradient that has come in so far; None: nothing yet.
        tangent: in forward mode, its tangents, one for each seed.

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 3.0

        @ds.kernel
        def square() -> ds.f32:
            return x[None] ** 2

        with ds.Tape() as tape:
            a = square()
            b = ds.sin(a) / a
        tape.backward(b)
        print(isinstance(a, ds.ad.Recorded), a.value)  # prints: True 9.0
    """
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
    """Run `step(t)` for t = 0 .. n_steps - 1; on a tape, differentiate it within a memory budget.

    Args:
        step: launches the kernels of one step. It may overwrite its state in place, call functions with
            gradients of their own, and checkpoint a rollout of substeps itself. It is run several times
            for each t, and must depend on t and the state alone.
        n_steps: number of steps; with `while_` the most, and may be left out.
        state: the fields that carry information from one step to the next.
        while_: where the number of steps is not known: `while_(t)` is asked before each step, once, and the
            first that is not true ends the rollout. It may read fields, and change none.
        schedule: "mixed" (states and tapes: fewest runs), "binomial" (states alone), or "equidistant" (each
            step is run twice, memory grows with the root of their number).
        snapshots: how many copies of the state fit into the memory for states and tapes; about
            sqrt(n_steps) if left out.
        memory: or how many bytes all copies together may take (`stats.peak_bytes`).
        disk: a folder for states, or True for the system's temporary one: each step is run twice at most. The
            files are removed when they are not needed any more.
        progress: whether the backward pass shows a bar on stderr.

    Returns:
        What it took.

    Raises:
        AutodiffError: on a tape, a field that is not in `state` carries something from step to step;
            in the backward pass, a step does something else when it is run again, or takes more memory
            than is there. The disk is full.
        ArgumentError: arguments that make no sense; a budget too small for one step.

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 1.0

        @ds.kernel
        def step(t: ds.i32):
            x[None] = 2.0 * x[None]

        with ds.Tape() as tape:
            stats = ds.ad.checkpoint(step, 10, [x], snapshots=3)
        tape.backward(grads={x: 1.0})
        print(x.grad[None], stats.steps_run)  # prints: 1024.0 20
    """
def checkpoint_plan(n_steps: int, snapshots: int | None = ..., *, memory: int | None = ..., state_bytes: int = ..., tape_bytes: int | None = ..., schedule: Literal['mixed', 'binomial'] = ..., disk: bool = ...) -> Any:
    """Return the schedule of `ds.ad.checkpoint`, without running anything: print it, iterate it, plot it.

    Args:
        n_steps: number of steps.
        snapshots: memory of so many states; about sqrt(n_steps) if left out.
        memory: or so many bytes for states and tapes.
        state_bytes: bytes of a state.
        tape_bytes: bytes that the tape of one step saves; as many as a state if left out.
        schedule: "mixed" or "binomial".
        disk: whether states are written to a disk.

    Raises:
        ArgumentError: arguments that make no sense; too little memory.

    Example:
        print(ds.ad.checkpoint_plan(1000, snapshots=10).runs_per_step < 4.0)  # prints: True
        for action in list(ds.ad.checkpoint_plan(3, snapshots=3))[:2]:
            print(action)
        # prints: hold 0
        # prints: tape 0
    """
from diffsim import clear_all_gradients as clear_all_gradients
def fixed_point(step: Callable[[], Any], unknown: Field, output: Field | None = ..., *, params: Sequence[Field] | None = ..., iteration: str = ..., method: str | None = ..., tolerance: float | None = ..., max_iterations: int | None = ..., preconditioner: Any = ...) -> None:
    """Find x = g(x, p); on a tape one entry, whose adjoint solves (1 - dg/dx)^T y = x.grad.

    Args:
        step: a function without parameters that launches kernels: it computes `output` from `unknown`
            and from any other fields. These get their gradients.
        unknown: the field x; the iteration begins at what it holds.
        output: the field of g(x), set to 0 before each step; if left out the step changes `unknown`
            itself.
        params: fields that the step reads, if that is to be tested.
        iteration: "repeat": x = g(x) until it stays; "newton": Newton's method on g(x) - x.
        method: how the adjoint (and Newton's method) solves: "gmres" (if left out), "bicgstab", "cg" or
            "lu".
        tolerance: how far the last iteration may go, relative to x (1e-12; 1e-6 in f32).
        max_iterations: (10000; 50 for Newton's method).
        preconditioner: as in `implicit_root`.

    Raises:
        SolveError: no convergence; the fixed point is not isolated.
        ArgumentError: fields that do not fit.
        AutodiffError: and its kind, as in `implicit_root`.

    Example:
        c, x, g = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))
        c[None], x[None] = 9.0, 1.0

        @ds.kernel
        def newton():  # for the root of c
            g[None] = 0.5 * (x[None] + c[None] / x[None])

        with ds.Tape() as tape:
            ds.ad.fixed_point(newton, x, g)
        tape.backward(grads={x: 1.0})
        print(round(x[None], 6), round(c.grad[None], 6))  # prints: 3.0 0.166667
    """
def grad_for(primal: Any, *, check: bool = ...) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the gradient of a function marked with `ds.ad.grad_replaced`.

    It gets the arguments of the call, reads the gradients of what the function wrote, and adds to
    the gradients of what it read (`kernel.grad(...)` does both).

    Args:
        primal: the function.
        check: compare the gradient, the first time that a tape runs it, with central differences
            along one random direction; for that what it does to fields is done twice more, and all
            fields are put back. The two may differ by 1e-4 of their size in f64, by 2e-2 in f32 (0.2 in
            f16), and by what rounding does to the differences.

    Raises:
        AutodiffError: the function is not marked, or has a gradient already; the check fails.

    Example:
        x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))

        @ds.ad.grad_replaced
        def forward():
            y.from_numpy(2.0 * x.to_numpy())

        @ds.ad.grad_for(forward)
        def backward():
            x.grad.from_numpy(x.grad.to_numpy() + 2.0 * y.grad.to_numpy())

        with ds.Tape() as tape:
            forward()
        tape.backward(grads={y: 1.0})
        print(x.grad[0])  # prints: 2.0
    """

class _GradReplaced(Generic[P, R]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, obj: None, owner: Any = ...) -> Self: ...
    @overload
    def __get__(self: _GradReplaced[Concatenate[S, Q], R], obj: S, owner: Any = ...) -> _GradReplaced[Q, R]: ...
    def grad(self, *args: P.args, **kwargs: P.kwargs) -> None: ...

def grad_replaced(func: Callable[P, R]) -> _GradReplaced[P, R]:
    """Decorate a Python function (or method) that launches kernels and has a gradient of its own.

        @ds.ad.grad_replaced
        def forward(mul):
            scale(mul)

        @ds.ad.grad_for(forward)
        def backward(mul):
            scale.grad(mul)

    On a tape the launches inside it are not differentiated; `backward` is called in their place,
    with the same arguments.

    Example:
        x, y = (ds.field(ds.f32, shape=(), needs_grad=True) for _ in range(2))
        x[None] = 3.0

        @ds.kernel
        def square():
            y[None] = x[None] ** 2

        @ds.ad.grad_replaced
        def forward():
            square()

        @ds.ad.grad_for(forward)
        def backward():
            square.grad()

        with ds.Tape(y):
            forward()
        print(x.grad[None])  # prints: 6.0
    """

def gradcheck(function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Field], *, eps: float | None = ..., atol: float | None = ..., rtol: float | None = ..., raise_exception: bool = ..., input_output_mask: Any = ..., max_inputs_per_var: int | None = ..., max_outputs_per_var: int | None = ..., plot_relative_error: bool = ..., plot_absolute_error: bool = ..., show_summary: bool = ..., directions: int | None = ..., seed: int = ..., differences: str = ..., max_inputs: int | None = ..., max_outputs: int | None = ...) -> bool:
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
def gradcheck_tape(tape: Tape, *, eps: float | None = ..., atol: float | None = ..., rtol: float | None = ..., raise_exception: bool = ..., input_output_masks: Mapping[str, Any] | None = ..., blacklist_kernels: Sequence[str] | str | None = ..., whitelist_kernels: Sequence[str] | str | None = ..., max_inputs_per_var: int | None = ..., max_outputs_per_var: int | None = ..., plot_relative_error: bool = ..., plot_absolute_error: bool = ..., show_summary: bool = ..., reverse_launches: bool = ..., skip_to_launch_index: int = ..., directions: int | None = ..., seed: int = ..., differences: str = ..., kernels: Sequence[str] | str | None = ..., skip_kernels: Sequence[str] | str | None = ..., max_inputs: int | None = ..., max_outputs: int | None = ...) -> bool:
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
def hessian(function: Callable[[], Any], fields: Any, *, loss: Field | None = ...) -> np.ndarray[Any, Any]:
    """Compute the Hessian matrix of a loss, for small inputs: 4 of its columns in one run of the function.

    Args:
        function: launches kernels; called without arguments, once for each 4 columns, from the same values of
            all fields, which are afterwards as one call leaves them.
        fields: what is differentiated by: a field with a gradient, or a list of them.
        loss: as for `ds.ad.hvp`.

    Returns:
        A square array with a row and a column for each number in the fields, one field after the other, in
        the order of `to_numpy`; as computed, and so symmetric up to rounding.

    Raises:
        AutodiffError: and its kind, in the line whose derivative cannot be given.

    Example:
        x = ds.field(ds.f64, shape=2, needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)
        x.fill(2.0)

        @ds.kernel
        def add_cubes():
            for i in x:
                loss[None] += x[i] ** 3

        print(ds.ad.hessian(add_cubes, x, loss=loss).tolist())  # prints: [[12.0, 0.0], [0.0, 12.0]]
    """
def hvp(function: Callable[[], Any], fields: Any, vectors: Any, *, loss: Field | None = ...) -> Any:
    """Compute products of the Hessian matrix of a loss with vectors, in one run of the function.

        loss[None], H v:  ds.ad.hvp(simulate, x, v, loss=loss)

    The gradient is computed too: `x.grad` holds it afterwards, as after `ds.Tape(loss)`.

    Args:
        function: launches kernels; called once, without arguments. Fields are afterwards as it leaves them,
            but for gradients and duals, which are all set to 0 first.
        fields: what is differentiated by, twice: a field with a gradient, or a list of them.
        vectors: numbers in the shape of the field, or a list with as many for each field. With one more axis
            in front there are several vectors, up to 8, which share one run.
        loss: a field of a single element, set to 0 on entry. If left out, what the function returns: such a
            field, or the number that a kernel returned.

    Returns:
        An array in the shape of the vectors; for a list of fields a list of arrays.

    Raises:
        AutodiffError: and its kind, in the line whose derivative cannot be given.
        ArgumentError: vectors that do not fit.

    Example:
        x = ds.field(ds.f64, shape=2, needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)
        x.fill(2.0)

        @ds.kernel
        def add_cubes():
            for i in x:
                loss[None] += x[i] ** 3

        print(ds.ad.hvp(add_cubes, x, [1.0, 0.5], loss=loss))  # prints: [12.  6.]
    """
def implicit_root(residual: Callable[[], Any], unknown: Field, output: Field, *, params: Sequence[Field] | None = ..., solver: Callable[[], Any] | None = ..., method: str | None = ..., symmetric: bool = ..., tolerance: float | None = ..., max_iterations: int | None = ..., preconditioner: Any = ...) -> None:
    """Solve F(x, p) = 0 for x; on a tape one entry, whose adjoint is a solve with the transposed Jacobian.

    Args:
        residual: a function without parameters that launches kernels: it computes `output`, which is set to
            0 before, from `unknown` and from any other fields. These get their gradients.
        unknown: the field x; Newton's method begins at what it holds.
        output: the field of F, with as many components.
        params: fields that the residual reads, if that is to be tested.
        solver: a function that sets `unknown` to a solution, in place of Newton's method. Its
            result is tested by the residual; whatever else it writes is put back.
        method: how systems with the Jacobian are solved: "lu" (coloured passes and a factorisation; if
            left out), or "cg", "bicgstab" and "gmres", which need no Jacobian but products with it.
        symmetric: whether the Jacobian is symmetric, as that of a gradient is.
        tolerance: how far Newton's last step may go, relative to x (1e-10; 1e-5 in f32); of a `solver`
            how far the next one would go (1e-6, 1e-3).
        max_iterations: steps of Newton's method (50).
        preconditioner: of Krylov methods: a function that returns an approximate solution of J z = r.

    Raises:
        SolveError: no convergence, a singular Jacobian.
        ArgumentError: fields that do not fit.
        AutodiffError: and its kind, in lines of the residual that have no gradient; later, what it read has
            changed.

    Example:
        c, x, F = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(3))
        c[None], x[None] = 9.0, 1.0

        @ds.kernel
        def residual():
            F[None] = x[None] ** 2 - c[None]

        with ds.Tape() as tape:
            ds.ad.implicit_root(residual, x, F)
        tape.backward(grads={x: 1.0})
        print(round(x[None], 6), round(c.grad[None], 6))  # prints: 3.0 0.166667
    """
def jacobian(function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Field], *, input_output_mask: Any = ..., max_outputs_per_var: int | None = ..., mode: str = ..., sparsity: Any = ..., sparse: bool = ..., plot_jacobians: bool = ..., max_outputs: int | None = ...) -> Any:
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
def jacobian_fd(function: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Field], *, input_output_mask: Any = ..., max_inputs_per_var: int | None = ..., eps: float | None = ..., sparsity: Any = ..., plot_jacobians: bool = ..., max_inputs: int | None = ...) -> Any:
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
def jacobian_plot(jacobians: Mapping[tuple[Field, Field], Any] | Tape, kernel: Any = ..., inputs: Sequence[Field] | None = ..., outputs: Sequence[Field] | None = ..., show_plot: bool = ..., show_colorbar: bool = ..., scale_colors_per_submatrix: bool = ..., title: str | None = ..., colormap: str = ..., log_scale: bool = ...) -> Any:
    """Draw Jacobians as images: a row of images for each output, a column for each input.

    Args:
        jacobians: what `jacobian` or `jacobian_fd` returned, dense or sparse. Hatched is not computed
            (NaN). Or a tape: a figure for each kernel on it, of its first launch, from what the fields
            hold now.
        kernel: a kernel or function whose name the title has.
        inputs: the inputs to draw, in that order; None: all.
        outputs: the outputs to draw, in that order; None: all.
        show_plot: whether to show the figure at once; else it is returned only.
        show_colorbar: whether to draw the scale of colours.
        scale_colors_per_submatrix: whether each image has a scale of its own.
        title: the title.
        colormap: the name of matplotlib's.
        log_scale: logarithmic colours, symmetric around 0: small and large derivatives side by side.

    Returns:
        The figure, of matplotlib; of a tape a list of them.

    Example:
        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)
        x.fill(3.0)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        found = ds.ad.jacobian(square, [x], [y])
        figure = ds.ad.jacobian_plot(found, show_plot=False)
        figure.savefig("jacobian.png")
        print(len(figure.axes) > 0)  # prints: True
    """
def linear_solve(A: Any, b: Field, out: Field, *, method: str | None = ..., product: Field | None = ..., symmetric: bool = ..., tolerance: float | None = ..., max_iterations: int | None = ..., preconditioner: Any = ...) -> None:
    """Set `out` to the solution x of A x = b; on a tape one entry, whose adjoint is the transposed solve.

    Vectors count with all their components, in the order of `to_numpy`.

    Args:
        A: a square array or a matrix of SciPy, which are constants; a field of n * n numbers; or
            entries from a field in the places of a sparse matrix: `(values, (rows, columns))` or
            `(values, columns, starts)`, as SciPy's `coo_array` and `csr_array` take them. The field of
            values gets its gradient. Or a function without parameters that launches kernels, which
            compute `product`, the matrix times `out`, from `out` and any other fields; these get theirs.
        b: a field of floats; it may be `out` itself.
        out: a field of floats with as many components.
        method: "lu" (a factorisation, used again by the adjoint; for sparse matrices by SciPy), "cg"
            (symmetric and positive definite), "bicgstab" or "gmres". If left out "lu"; of a function "cg"
            if it is symmetric, else "gmres".
        product: where a function A computes A x; set to 0 before.
        symmetric: whether A is symmetric; it is tested.
        tolerance: of Krylov methods: the residual relative to b (1e-12; 1e-6 if `out` is f32).
        max_iterations: of Krylov methods.
        preconditioner: of Krylov methods: "jacobi", or a function that returns an approximate solution
            of A z = r for an array r, or an operator of SciPy.

    Raises:
        SolveError: the matrix is singular, or the iteration does not converge.
        ArgumentError: sizes or types that do not fit.
        MissingPackageError: SciPy is needed and not installed.
        MissingGradientError: `out` has no gradient, and b or the entries have one.

    Example:
        b, x = (ds.field(ds.f64, shape=2, needs_grad=True) for _ in range(2))
        b.from_numpy(np.array([2.0, 8.0]))
        with ds.Tape() as tape:
            ds.ad.linear_solve(np.diag([2.0, 4.0]), b, x)
        tape.backward(grads={x: 1.0})
        print(x.to_numpy(), b.grad.to_numpy())  # prints: [1. 2.] [0.5  0.25]
    """
no_grad: Any
"""`ds.ad.no_grad`: as a context or a decorator.

    with ds.ad.no_grad():
        update()              # on a tape: what it stores counts as constant

    @ds.ad.no_grad
    def update_all(): ...

Fields that the code stores to forget what they had to do with the loss; kernels may return
values. Outside a tape it changes nothing.

Example:
    x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
    with ds.Tape() as tape:
        with ds.ad.no_grad():
            y.copy_from(x)
    tape.backward(grads={y: 1.0})
    print(x.grad[0])  # prints: 0.0
"""
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
