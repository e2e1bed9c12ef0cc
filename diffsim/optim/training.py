"""`ds.optim.train`: the loop around an optimiser, with all that a long training needs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diffsim.ad.field_ops import clone
from diffsim.errors import ArgumentError, AutodiffError, DiffsimError, Span, warn
from diffsim.lang.host.signatures import (
    checked,
    need_bool,
    need_function,
    need_number,
    need_path,
    need_whole,
)
from diffsim.lang.host.source import check_runs
from diffsim.lang.host.unsupported import Explained
from diffsim.lang.types.descriptions import describe
from diffsim.optim.runs.checkpoint import Checkpoint
from diffsim.optim.runs.interrupts import stopped_by_ctrl_c
from diffsim.optim.runs.log import Log
from diffsim.optim.runs.objective import Objective
from diffsim.optim.runs.random_state import checked_generators
from diffsim.optim.steps.gradient_norm import not_finite
from diffsim.optim.steps.optimizer import Optimizer
from diffsim.optim.steps.parameters import state_fields
from diffsim.runtime.fields.field import Field
from diffsim.runtime.files import writable_folder
from diffsim.runtime.observe.progress import ProgressBar
from diffsim.runtime.session import session


@dataclass
class Run(Explained):
    """The result of a training; made by `ds.optim.train`, whose callbacks get it while it runs.

    Attributes:
        losses: of each iteration, those before a resume too.
        best_loss: the lowest one.
        best_iteration: its number, from 1 on; 0: there is none yet.
        seconds: how long the training took, with those before a resume.
        interrupted: whether Ctrl-C ended it.

    Example:
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def compute():
            loss[None] = (x[None] - 3.0) ** 2

        opt = ds.optim.SGD(x, lr=0.25)
        run = ds.optim.train(compute, opt, iterations=3, loss=loss, progress=False)
        print(run.losses, run.best_iteration)  # prints: [9.0, 2.25, 0.5625] 3
        print(run.loss, run.iteration)  # prints: 0.5625 3
    """

    _words = "a run"

    losses: list[float] = field(default_factory=list)
    best_loss: float = math.inf
    best_iteration: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def iteration(self) -> int:
        """The number of the last iteration, from 1 on."""
        return len(self.losses)

    @property
    def loss(self) -> float:
        """The loss of the last iteration."""
        return self.losses[-1]


@checked
def train(
    program: Callable[[], Any],
    opt: Optimizer,
    iterations: int,
    loss: Field | None = None,
    out: Any = None,
    resume: bool = False,
    patience: int | None = None,
    callback: Callable[[Run], Any] | None = None,
    *,
    state: Any = (),
    generators: Any = None,
    checkpoint_every: float = 30.0,
    replay: bool | None = None,
    progress: bool = True,
) -> Run:
    """Train parameters: run a program, follow its gradient, again and again.

        opt = ds.optim.Adam([w, b], lr=0.01)
        run = ds.optim.train(simulate, opt, iterations=300, out="out/walk", resume=True)

    At the end the parameters hold the values of the lowest loss. Ctrl-C ends the training after the
    iteration. A loss or gradient that is not finite is an error, which names the iteration and the operation
    that made it.

    Args:
        program: launches kernels, and returns the field of the loss.
        opt: moves the parameters.
        iterations: how many there are in all, those before a resume included.
        loss: a field of a single element, if the program does not return it. It is set to 0 before each run.
        out: a folder for `log.csv`, with a line for each iteration, and `checkpoint.npz`.
        resume: go on from the checkpoint in `out`, if there is one: to the same bits as without the break.
            A checkpoint of other parameters is refused; of another program, as far as its code and its
            numbers show that, or of more iterations, a warning says so.
        patience: after so many iterations without a new best loss go back to the best values, and on from
            there half as fast (`opt.scale`, and `opt.reset()`). Then a NaN ends nothing, but goes back too.
        callback: called with the run in each iteration, before the parameters move; True ends the training.
        state: other fields that go on from one iteration to the next, for the checkpoint.
        generators: of `numpy.random`, from which the program draws, for the checkpoint. The random numbers of
            kernels, of `random` and of `numpy.random` itself are in it anyway.
        checkpoint_every: seconds between two checkpoints; there is one at the end, too.
        replay: whether to run the first call's launches again in place of calling the program, which is
            faster. True: the program launches the same each time. If left out, where that is proved.
        progress: whether to show a progress bar.

    Raises:
        AutodiffError: and its kind: a gradient cannot be given; the loss or a gradient is not finite.
        ArgumentError: arguments that do not fit, a checkpoint of another training.

    Example:
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def compute():
            loss[None] = (x[None] - 3.0) ** 2

        opt = ds.optim.SGD(x, lr=0.25)
        run = ds.optim.train(compute, opt, iterations=40, loss=loss, progress=False)
        print(round(x[None], 6), run.iteration)  # prints: 3.0 40
    """
    _check(opt, iterations, patience, callback, checkpoint_every)
    need_bool(resume, "resume")
    need_bool(progress, "progress")
    if resume and out is None:
        raise ArgumentError(
            "resume=True goes on from a checkpoint, and no folder is named that could hold one",
            Span.of_caller(),
            hint='write out="out/training"',
        )
    objective = Objective(program, loss, opt.fields, replay=replay)
    others = state_fields(state, opt.fields)
    training = _Training(objective, opt, iterations, patience, callback)
    if out is not None:
        need_path(out, "out")
        folder = Path(out)
        writable_folder(folder)
        training.store(folder, others, checked_generators(generators), checkpoint_every, resume)
    training.run_all(progress)
    return training.run


def _check(opt: Any, iterations: Any, patience: Any, callback: Any, checkpoint_every: Any) -> None:
    if not isinstance(opt, Optimizer):
        raise ArgumentError(
            f"opt is an optimiser, not {describe(opt)}",
            Span.of_caller(),
            hint="write opt = ds.optim.Adam(fields, lr=0.01)",
        )
    for number, what in ((iterations, "iterations"), (patience, "patience")):
        need_whole(number, what)
        if number is not None and number < 1:
            raise ArgumentError(
                f"{what} starts at 1, and is {number}", Span.of_caller(), f"write {what}=100"
            )
    if iterations is None:
        raise ArgumentError("iterations is a whole number, not None", Span.of_caller(), "write 100")
    if callback is not None:
        need_function(callback, "callback", "give one of one parameter: def callback(run): ...")
        check_runs(callback, "callback", ("run",))
    need_number(checkpoint_every, "checkpoint_every", "give seconds, such as 30.0")


class _Training:
    """One call of `train`.

    Attributes:
        run: what became of it so far.
        best: for each parameter a field with the best values so far.
        since: how many iterations were made since the best one, or since it was gone back to.
    """

    def __init__(
        self,
        objective: Objective,
        opt: Optimizer,
        iterations: int,
        patience: int | None,
        callback: Callable[[Run], Any] | None,
    ) -> None:
        self.objective, self.opt = objective, opt
        self.iterations, self.patience, self.callback = iterations, patience, callback
        self.run = Run()
        self.best: dict[str, Field] = {key: clone(f, False) for key, f in opt.fields.items()}
        self.since = 0
        self._log_file: Path | None = None
        self._checkpoint: Checkpoint | None = None
        self._every = math.inf
        self._saved_at = time.monotonic()

    def store(
        self,
        folder: Path,
        state: Mapping[str, Field],
        generators: list[np.random.Generator],
        every: float,
        resume: bool,
    ) -> None:
        """Keep log and checkpoint in a folder, and go on from the checkpoint that is there."""
        self._log_file = folder / "log.csv"
        self._checkpoint = Checkpoint(
            folder / "checkpoint.npz",
            self.opt,
            self.best,
            state,
            generators,
            self.objective.program,
        )
        self._every = every
        if not resume:
            return
        if self._checkpoint.path.exists():
            self.run.losses, counters = self._checkpoint.read()
            self.since = counters.pop("since")
            vars(self.run).update(counters)
            if self.run.iteration > self.iterations:
                warn(
                    f"{self._checkpoint.path} has {self.run.iteration} iterations, and iterations="
                    f"{self.iterations} counts these, too: none is made, and the parameters get the best "
                    "values of all that were made",
                    UserWarning,
                )
        else:
            print(f"{self._checkpoint.path} does not exist: training begins anew", file=sys.stderr)

    def run_all(self, shown: bool) -> None:
        """Make all iterations, and let the parameters have the best values."""
        run, before = self.run, self.run.seconds
        begin = time.monotonic()
        bar = ProgressBar(self.iterations, run.iteration, shown=shown)
        try:
            with stopped_by_ctrl_c() as stop, Log(self._log_file, run.iteration) as log:
                ended = False
                while run.iteration < self.iterations and not ended:
                    norm = self._evaluate()
                    run.seconds = before + time.monotonic() - begin
                    rate = self.opt.rate()
                    log.write(run.iteration, run.loss, run.best_loss, norm, rate, run.seconds)
                    ended = self.callback is not None and self.callback(run) is True
                    self._move(norm)
                    bar.update(run.iteration, f"loss {run.loss:.6g}  best {run.best_loss:.6g}")
                    run.interrupted = stop.is_set()
                    ended = ended or run.interrupted
                    if time.monotonic() - self._saved_at >= self._every:
                        self._save()
            self._save()
        finally:
            bar.close()
            self._restore_best()

    def _evaluate(self) -> float:
        """Find the loss and the gradients, and note the best values; return the length of the gradients."""
        run = self.run
        self._launches = session.launches
        try:
            loss = self.objective.evaluate()
        except DiffsimError as error:
            error.add_note(f"in iteration {run.iteration + 1} of the training")
            raise
        norm = self.opt.gradient_norm() if math.isfinite(loss) else math.nan
        run.losses.append(loss)
        if norm == 0 and run.iteration == 1:
            warn(
                f"the gradient of {', '.join(f.name for f in self.opt.fields.values())} is 0 in the first "
                "iteration, so nothing moves: does the program read the parameters on the way to the loss?",
                UserWarning,
            )
        self.since += 1
        if loss < run.best_loss and math.isfinite(loss):
            run.best_loss, run.best_iteration, self.since = loss, run.iteration, 0
            for key, f in self.opt.fields.items():
                self.best[key].copy_from(f)
        return norm

    def _move(self, norm: float) -> None:
        """Move the parameters, or go back to the best ones."""
        is_finite = math.isfinite(norm)
        if not is_finite and (self.patience is None or not self.run.best_iteration):
            raise self._not_finite()
        if not is_finite or self.since == self.patience:
            self._restore_best()
            self.opt.reset()
            self.opt.scale /= 2
            self.since = 0
        else:
            self.opt.step_by(norm)

    def _not_finite(self) -> DiffsimError:
        """Return the error for a loss or a gradient that is not finite."""
        run = self.run
        where = f"in iteration {run.iteration} of the training"
        try:
            self.objective.explain(self._launches)
            if math.isfinite(run.loss):
                raise not_finite(self.opt.fields, self.opt.iteration)
        except DiffsimError as found:
            message = f"the loss is {run.loss} {where}: {found.message}"
            return AutodiffError(message, found.span, found.hint)
        return AutodiffError(
            f"the loss is {run.loss} {where}, and no operation of the program made it",
            Span.of_caller(),
            hint="look at what the program starts from",
        )

    def _restore_best(self) -> None:
        if self.run.best_iteration:
            for key, f in self.opt.fields.items():
                f.copy_from(self.best[key])

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        run = self.run
        counters = {
            "best_loss": run.best_loss,
            "best_iteration": run.best_iteration,
            "seconds": run.seconds,
            "since": self.since,
        }
        self._checkpoint.write(run.losses, counters)
        self._saved_at = time.monotonic()
