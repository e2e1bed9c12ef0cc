"""A function recorded once on a tape, for many passes over it and many runs of it.

Everything in this room asks a `Program`: for backward passes from given seeds, and for the outputs of
perturbed inputs. When it is closed, all fields, gradients and the count of random numbers are as they were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from diffsim.ad.forward import MOST, FwdMode, latest_block_kept
from diffsim.ad.jacobians.arguments import Subject, limit, offsets
from diffsim.ad.jacobians.paths import check_paths
from diffsim.ad.record.entries import all_written
from diffsim.ad.record.entry import fields_of
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.snapshot import StartSnapshot, run_perturbed
from diffsim.ad.replay.program import Replay
from diffsim.ad.tape import Tape
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

Arrays = dict[Field, np.ndarray]
"""For each field all components in one row, in the order of `to_numpy`, in f64."""


_FITS = 1 << 20
"""Bytes of fields up to which a run with 8 tangents takes less than two with 4 (docs/forward-mode.md)."""


class Program:
    """A function, its inputs and outputs, and the record of one run.

    Attributes:
        tape: the record; the fields are as at its end.
        passes: how many backward passes ran.
        runs: how many times the function ran again.
    """

    def __init__(self, subject: Subject) -> None:
        self.run, self.inputs, self.outputs, self.pairs, self.names = subject
        self.passes = self.runs = 0
        # Saving, so that functions which overwrite their inputs can be checked; no loss, as seeds are given.
        self.tape = tape = Tape(in_place="save")
        tape.keeps_inputs = False  # the perturbed inputs are those before the function
        tape.recorder.snapshot = self.start = StartSnapshot()
        # The snapshot copies what launches write; inputs are not written, and are moved by the differences.
        for f in self.inputs:
            self.start.note(f)
        try:
            with tape:
                self.run()
            check_paths(tape.entries, self.pairs)
        except BaseException:
            self._back()
            raise
        self._gradients: list[Saved] = []

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc: object) -> None:
        _put_back(self._gradients)
        self._back()

    def _back(self) -> None:
        """Restore the fields to their values at the start."""
        for saved in self.start.saved.values():
            saved.restore()
        session.launches = self.start.launches

    # ---- passes

    def pull_back(self, seeds: Mapping[Field, np.ndarray]) -> Arrays:
        """Return the gradients of the inputs for given gradients of outputs (a vector-Jacobian product)."""
        if not self._gradients:
            self._put_aside()
        self.passes += 1
        self.tape.backward(
            grads={
                o: seed.reshape(o.shape + o.element).astype(o.dtype.numpy)
                for o, seed in seeds.items()
            }
        )
        found = {}
        for i in self.inputs:
            assert i.adjoint is not None
            found[i] = i.adjoint.to_numpy(dtype=np.float64).reshape(-1)
        # Inputs accumulate, so each pass starts from 0.
        self._clear()
        return found

    def _put_aside(self) -> None:
        """Keep the user's gradients: there must be no trace of the passes."""
        fields = (*self.inputs, *self.outputs)
        # Those that were lent, too.
        used = dict.fromkeys((*fields_of(self.tape.entries.firsts()), *fields))
        self._gradients = [Saved((f.adjoint, None)) for f in used if f.adjoint is not None]
        self._clear()

    def _clear(self) -> None:
        for saved in self._gradients:
            saved.box[0].clear()

    def push_forward(self, directions: np.ndarray) -> np.ndarray:
        """Return the tangents of all outputs along directions of all inputs, one in each row.

        Raises:
            AutodiffError: something in the program has no tangent, such as a gradient that is given.
        """
        found = [np.zeros((0, sum(map(size, self.outputs))))]
        together = self._together()
        for first in range(0, len(directions), together):
            found.append(self._tangents(directions[first : first + together]))
            self.passes += 1
        return np.concatenate(found)

    def _together(self) -> int:
        """Return how many tangents a run computes."""
        touched = sum(f.storage.layout.nbytes for f in self.start.saved if f.dtype.is_float)
        return MOST if touched <= _FITS else MOST // 2

    def _tangents(self, directions: np.ndarray) -> np.ndarray:
        """Return the same for as many directions as one run takes."""
        starts, many = offsets(self.inputs), len(directions)
        seeds = {
            i: directions[:, starts[i] : starts[i] + size(i)].reshape(many, *i.shape, *i.element)
            for i in self.inputs
        }
        with self.start.again(), _duals_aside((*self.inputs, *self.outputs)), latest_block_kept():
            forward = FwdMode(loss=self.outputs, param=seeds)
            forward.keeps_inputs = (
                False  # as on the tape: what Python sets in the function is a constant
            )
            with forward:
                self.run()
            parts = [np.reshape(forward.tangents(o), (many, -1)) for o in self.outputs]
        return np.concatenate(parts, axis=1).astype(np.float64)

    # ---- runs

    def outputs_at(self, by: Mapping[Field, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs after a run from inputs that are moved by these steps."""
        self.runs += 1
        shaped = {f: step.reshape(f.shape + f.element) for f, step in by.items()}
        ends = run_perturbed(self.run, self.start, shaped, self.outputs)
        return [end.reshape(-1) for end in ends]

    def unmoved(self) -> list[np.ndarray]:
        """Return the outputs of the recorded run."""
        return [f.to_numpy(dtype=np.float64).reshape(-1) for f in self.outputs]


class RecordedBlock(Program):
    """The block of a tape with a loss, after its backward pass; it is run again as a replay."""

    def __init__(self, tape: Tape, inputs: Sequence[Field]) -> None:
        loss, start = tape.loss, tape.recorder.snapshot
        assert loss is not None
        assert start is not None
        self.tape, self.start = tape, start
        self.inputs, self.outputs, self.names = list(inputs), [loss], {}
        self.pairs = [(f, loss) for f in inputs]
        self.passes = self.runs = 0
        self._gradients = []
        for f in inputs:
            _check_not_set(tape, f)
            start.note(f)
        try:
            replay = Replay(tape.entries, tape.generation, all_written(tape.entries.firsts()))
            replay.check()
        except AutodiffError as why:
            raise AutodiffError(
                f"grad_check runs the block of the tape again, and {why.message}",
                why.span or Span.of_caller(),
                hint="leave grad_check out, and call ds.ad.gradcheck for a function that does the same",
            ) from None
        self.run = replay.forward

    def __exit__(self, *exc: object) -> None:
        """Leave the fields as they are: each run has put them back."""

    def pull_back(self, seeds: Mapping[Field, np.ndarray]) -> Arrays:
        """Return the gradients that the tape has computed, times the seed of the loss."""
        (seed,) = seeds.values()
        found = {}
        for f in self.inputs:
            assert f.adjoint is not None
            found[f] = f.adjoint.to_numpy(dtype=np.float64).reshape(-1) * float(seed.reshape(()))
        return found


def _check_not_set(tape: Tape, f: Field) -> None:
    """Refuse an input that Python sets in the block: a replay would undo the step of a difference."""
    for entry in tape.entries.firsts():
        if entry.may_be_input and f in entry.writes():
            raise AutodiffError(
                f"grad_check moves {f.name} before the block, which sets it to what it was",
                f.versions.written_by(None)[1] or Span.of_caller(),
                hint=f"set {f.name} before the block",
            )


def _put_back(kept: Sequence[Saved]) -> None:
    """Restore gradients or duals."""
    for saved in kept:
        saved.restore()
        # Written behind the back of `dirty`, on which the next pass relies.
        saved.box[0].versions.may_be_nonzero()


@contextlib.contextmanager
def _duals_aside(named: Sequence[Field]) -> Iterator[None]:
    """Keep the user's duals: there must be no trace of the tangents."""
    # A block of forward mode clears all, and declares those of the fields that it names.
    declared = {f: f.declares_dual for f in named}
    duals = [d for f in members(session.with_dual) for d in f.duals.values() if d.placed]
    kept = [Saved((d, None)) for d in duals]
    try:
        yield
    finally:
        _put_back(kept)
        for f, before in declared.items():
            f.declares_dual = before


def size(f: Field) -> int:
    """Return how many components a field has."""
    return int(f.storage.layout.count)


def precision(fields: Sequence[Field]) -> int:
    """Return the bytes of the least precise of their types: rounding anywhere spoils a difference."""
    return min(f.dtype.bytes for f in fields)


# ---- Jacobians row by row in reverse mode, and column by column in forward mode


def by_rows(program: Program, most: int | None) -> dict[tuple[Field, Field], np.ndarray]:
    """Return the Jacobian of each pair; NaN, which no comparison takes for a number, in rows left out."""
    made = {(i, o): np.full((size(o), size(i)), np.nan) for i, o in program.pairs}
    for o in dict.fromkeys(o for _, o in program.pairs):
        for row in range(limit(o, most)):
            # Row k of the Jacobian is the vector-Jacobian product with the k-th unit vector.
            seed = np.zeros(size(o))
            seed[row] = 1
            for i, gradient in program.pull_back({o: seed}).items():
                if (i, o) in made:
                    made[i, o][row] = gradient
    return made


def by_columns(program: Program, most: int | None) -> dict[tuple[Field, Field], np.ndarray]:
    """Return the same by tangents of the inputs."""
    made = {(i, o): np.full((size(o), size(i)), np.nan) for i, o in program.pairs}
    left, top = offsets(program.inputs), offsets(program.outputs)
    width = sum(map(size, program.inputs))
    for i in dict.fromkeys(i for i, _ in program.pairs):
        directions = np.zeros((size(i), width))
        directions[:, left[i] : left[i] + size(i)] = np.eye(size(i))
        pushed = program.push_forward(directions)
        for o in program.outputs:
            if (i, o) in made:
                rows = limit(o, most)
                made[i, o][:rows] = pushed[:, top[o] : top[o] + rows].T
    return made
