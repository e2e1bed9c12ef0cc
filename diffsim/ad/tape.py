"""Tapes: record launches, then run their adjoints in reverse order.

A tape holds one entry for each launch (and each write from Python to a field): what was launched, with which
arguments, and the clock's reading, against which the adjoint checks that everything it loads is still what
the launch saw. A tape saves no field values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.chains import check_chain
from diffsim.ad.entries import (
    Computed,
    Copied,
    Entry,
    Launched,
    Pull,
    Replaced,
    Stored,
    Wrote,
    flat,
)
from diffsim.ad.replay import Replay
from diffsim.ad.saves import Saved, Saver
from diffsim.errors import AutodiffError, FieldError, MissingGradientError, Span
from diffsim.lang.matrix import Matrix
from diffsim.lang.scope import describe
from diffsim.runtime.context import session
from diffsim.runtime.field import Field
from diffsim.runtime.foreign import DeviceArray
from diffsim.runtime.read import Read
from diffsim.runtime.recorded import Recorded
from diffsim.runtime.storage import Copy

if TYPE_CHECKING:
    from diffsim.runtime.specialize import Special


@dataclass(frozen=True, slots=True)
class TapeStats:
    """What a tape holds: recorded entries, and copies of overwritten values with their bytes."""

    entries: int
    saved: int
    saved_bytes: int


class Tape:
    """Records what runs inside of `with`, for gradients.

    With a loss the gradients are computed at the end of the block:

        with ds.Tape(loss):
            simulate()
        x.grad[0]  # d loss / d x[0]

    Without one, afterwards and as often as wanted: `tape.backward(loss)` or
    `tape.backward(grads={y: seed})`; gradients then add up until `tape.zero()`.

    The same launches with other contents of the fields: `tape.replay()`, then `tape.backward()`.

    What Python writes to a field inside of the block (an element, `fill`, `from_numpy`) is a constant: the
    gradient does not flow to what stood there before. `copy_from` is differentiated.

    Args:
        loss: a field of a single element that has a gradient. It is set to 0 on entry.
        clear_gradients: with a loss: whether all gradients are set to 0 on entry.
        in_place: "save" copies values that an adjoint needs before they are overwritten, and puts them
            back on the way, so that programs which overwrite their state have exact gradients;
            "refuse" (default) raises GlobalDataAccessError instead.

    Raises:
        MissingGradientError: the loss, or a field between it and the inputs, has no gradient.
        AutodiffError: and its kind, at the end of the block (or in `backward`).
    """

    records = True

    def __init__(
        self,
        loss: Field | None = None,
        clear_gradients: bool = True,
        *,
        in_place: str = "refuse",
    ) -> None:
        if in_place not in ("refuse", "save"):
            raise FieldError(
                f"in_place={in_place!r} is not possible",
                Span.of_caller(),
                hint='it is "refuse" or "save"',
            )
        self.in_place = in_place == "save"
        self.saver = Saver()
        self.pending: list[Saved] = []
        self.entries: list[Entry] = []
        self.newest: Launched
        self.kept: dict[Special, list[Field]] = {}
        self.loss = loss
        self.clear_gradients = clear_gradients
        self.complete = False
        self.generation = session.generation
        self._again: Replay | None = None
        if loss is not None:
            _check_loss(loss)

    # ---- recording

    def __enter__(self) -> Tape:
        if session.tape is not None:
            raise AutodiffError(
                "a tape is recording already, and tapes can not be nested",
                Span.of_caller(),
                hint="end the block of the other tape before",
            )
        if self.loss is not None:
            self._forget()
            self._clear()
        self._again = None
        self.complete = False
        if not self.entries:
            self.generation = session.generation
        session.tape = self
        return self

    def _clear(self) -> None:
        """What a run with a loss starts with."""
        if self.loss is not None:
            if self.clear_gradients:
                for f in list(session.with_grad):
                    f.grad.clear()
            self.loss.fill(0)

    def _forget(self) -> None:
        self.entries, self.kept, self.saver, self._again = [], {}, Saver(), None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        interrupted = session.tape is not self
        session.tape = None
        if error is not None:
            return
        if interrupted:
            self.entries = []
            raise AutodiffError(
                "ds.init() or ds.reset() was called while this tape was recording, which ended the record",
                Span.of_caller(),
                hint="call ds.init() before the tape",
            )
        self.complete = True
        if self.loss is not None:
            self.backward(self.loss)

    def launched(self, special: Special, args: tuple[Any, ...], now: int, seed: int) -> None:
        """Note a launch (called by the launch function)."""
        if special not in self.kept:
            self.kept[special] = special.fields()  # the adjoint will need them
        given = args
        for a in args:
            if a.__class__ not in _NUMBERS:
                args = tuple(_constant(a) for a in args)
                break
        if self.in_place:
            special = special.in_place
            self.saver.after_launch(special, args)
        self.newest = Launched(special, given, args, now, seed)
        self.entries.append(self.newest)
        self.entries += self.pending
        self.pending = []

    def returned(self, result: Any) -> Any:
        """What the launch just noted returns: a value that the tape follows."""
        made = self.newest.returned = Recorded(result, self)
        return made

    def computed(self, made: Recorded, parts: Sequence[tuple[Recorded | Read, Pull]]) -> None:
        """Note arithmetic in Python on values that the tape follows."""
        self.entries.append(Computed(made, parts))

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        """Note that Python stored a value that the tape follows."""
        self.entries.append(Stored(field, index, value))

    def launching(self, special: Special, args: tuple[Any, ...]) -> None:
        """A launch is about to start (called by the launch function if `in_place`)."""
        earlier, self.pending = self.saver.before_launch(special.in_place, args)
        for saved in self.pending:
            saved.own = True
        self.entries += earlier

    def writing(self, field: Field, row: int | None) -> None:
        """Python is about to write (called by the field if `in_place`)."""
        if not field.is_grad:
            self.entries += self.saver.before_write(field, row)

    def wrote(self, field: Field, index: tuple[int, ...] | None, value: np.ndarray | Field) -> None:
        """Note a write from Python (called by the field)."""
        self.entries.append(Wrote(field, index, value))

    def copied(self, target: Field, source: Field) -> None:
        """Note a copy (called by the field)."""
        self.entries.append(Copied(target, source, Span.of_caller()))

    def replaced(self, backward: Callable[[], Any], inside: Tape) -> None:
        """Note a run of a function with a gradient of its own, and what it did meanwhile."""
        self.kept.update(inside.kept)
        self.entries.append(Replaced(backward, inside.entries))

    def rolled_out(
        self,
        backward: Callable[[], Any],
        written: Sequence[Field],
        kept: dict[Special, list[Field]],
    ) -> None:
        """Note a checkpointed rollout and the fields that it wrote."""
        self.kept.update(kept)
        self.entries.append(Replaced(backward, [], (), tuple(written)))

    def record_func(self, backward: Callable[[], Any], arrays: Sequence[Field]) -> None:
        """Record a function that the backward pass calls at this place.

        Args:
            backward: called without arguments; it reads and adds to gradients.
            arrays: the fields and arrays whose gradients it uses, for `tape.zero()` and
                `tape.gradients`.
        """
        if not callable(backward):
            raise FieldError(f"{backward!r} can not be called", Span.of_caller())
        self.entries.append(Replaced(backward, [], tuple(arrays)))

    # ---- running it again

    def replay(self) -> None:
        """Run everything recorded again, in order, from what the fields hold now.

        Arguments passed by value, random numbers and what Python wrote to fields are as recorded. A tape
        with a loss sets it (and the gradients) to 0 first, as on entry. `tape.backward()` after it gives
        the gradients of this run. Both run as native code, without Python between the launches.

        Raises:
            AutodiffError: the tape can not be replayed: on a GPU; nothing was recorded, `ds.init` was
                called since, a kernel uses other fields now; it holds a function with a gradient of its own, a
                checkpointed rollout, or a launch with a NumPy array.
            KernelStateError: a number that was compiled in has changed.
            AccessError: a check in a kernel (`debug=True`) failed.
        """
        if not self.complete or not self.entries:
            raise AutodiffError(
                "there is nothing to replay: no block of this tape has run to its end",
                Span.of_caller(),
                hint="record first: with tape: ...",
            )
        if session.device is not None:
            raise AutodiffError(
                "a tape can not be replayed on a GPU yet",
                Span.of_caller(),
                hint="record it anew each time: with tape: ...",
            )
        again = self._again
        if again is None or not again.complete:
            again = Replay(self.entries, self.generation, self._written())
        again.check()
        self._check_gradients()
        self._clear()
        self._again = again
        again.forward()

    # ---- the backward pass

    def backward(
        self, loss: Field | Recorded | None = None, grads: Mapping[Field, Any] | None = None
    ) -> None:
        """Run the adjoints of everything recorded, last first.

        Args:
            loss: a field of a single element, whose gradient is set to 1; the tape's own if nothing
                is given; or a number that the tape followed: what a kernel returned, or made of that.
            grads: for any fields the gradients to start from: numbers, arrays or fields of their shape.

        Raises:
            AutodiffError: and its kind: a value that is needed has changed, a gradient is missing.
        """
        if session.tape is not None:
            raise AutodiffError(
                "the backward pass can not run while a tape records",
                Span.of_caller(),
                hint="call backward after the end of the with block",
            )
        if not isinstance(grads, Mapping | None):
            raise FieldError(
                "grads is a dictionary",
                Span.of_caller(),
                hint="write tape.backward(grads={y: seed})",
            )
        seeds: dict[Field, Any] = dict(grads or {})
        if grads is None and loss is None:
            loss = self.loss
        if loss is None and not seeds:
            raise AutodiffError(
                "a backward pass starts from a loss or from gradients",
                Span.of_caller(),
                hint="write tape.backward(loss) or tape.backward(grads={y: seed})",
            )
        if isinstance(loss, Field):
            _check_loss(loss)
            seeds[loss] = 1
        elif loss is not None:
            self._check_value(loss)
        self._check_gradients()
        again = self._again
        if again is None or not again.chained:
            check_chain(self.entries)
        if again is not None:
            again.chained = True
        self._forget_values()
        before = self._start_from_zero(self._written() if again is None else again.written)
        if isinstance(loss, Recorded):
            loss.receive(np.ones(()))
        for f, seed in seeds.items():
            _seed(f, seed)
        if again is None or not again.backward():
            self._run_adjoints()
        for grad, value in before.items():
            grad.storage.add(value)
            grad._touch()

    def _check_value(self, loss: Any) -> None:
        """Refuse a loss that is no number of this tape."""
        if not isinstance(loss, Recorded):
            _check_loss(loss)
        if not loss.belongs_to(self) or loss.array.shape:
            raise AutodiffError(
                "the loss is a value of another tape"
                if not loss.belongs_to(self)
                else f"the loss has shape {loss.array.shape}, and a loss is a single number",
                Span.of_caller(),
                hint="start from a number that was returned, or computed, on this tape",
            )

    def sweep(self) -> None:
        """Run the adjoints from the gradients as they are: one part of a longer program."""
        self._check_gradients()
        check_chain(self.entries)
        self._run_adjoints()

    def _run_adjoints(self) -> None:
        final: list[Saved] = []
        try:
            for entry in reversed(self.entries):
                if isinstance(entry, Saved):
                    final.append(entry.swap())
                elif isinstance(entry, Replaced):
                    with session.recomputing():
                        entry.backward()
                else:
                    entry.backward()
        finally:
            for saved in reversed(final):
                saved.swap()

    def _forget_values(self) -> None:
        """Gradients of values that the tape followed start from nothing."""
        for entry in self.entries:
            if isinstance(entry, Launched) and entry.returned is not None:
                entry.returned.take()
            elif isinstance(entry, Computed):
                entry.made.take()

    @staticmethod
    def _start_from_zero(written: Iterable[Field]) -> dict[Field, Copy]:
        """Set the gradients of all that was written to 0; what they were is added at the end."""
        before: dict[Field, Copy] = {}
        for f in written:
            if f.grad is not None and f.grad.versions.dirty:
                if f.grad.storage.may_be_nonzero():
                    before[f.grad] = f.grad.storage.take()
                f.grad.clear()
        return before

    def _written(self) -> dict[Field, None]:
        """The fields that the recorded program wrote: their gradients belong to the backward pass."""
        found: dict[Field, None] = {}
        seen: set[int] = set()
        for entry in flat(self.entries):
            if isinstance(entry, Launched):
                special = entry.special
                if id(special) not in seen or special.arrays:
                    seen.add(id(special))
                    for a in special.written:
                        f = special.object_of(a.mem, entry.args)
                        if isinstance(f, Field):
                            found[f] = None
            elif isinstance(entry, Copied):
                found[entry.target] = None
            elif isinstance(entry, Wrote):
                found[entry.field] = None
            elif isinstance(entry, Replaced):
                found.update(dict.fromkeys(entry.written))
        return found

    # ---- gradients

    @property
    def gradients(self) -> dict[Field, Field]:
        """For each field on the tape that has one, its gradient."""
        found: dict[Field, Field] = {}
        for entry in flat(self.entries):
            fields: list[Any]
            if isinstance(entry, Launched):
                special = entry.special
                fields = [special.object_of(m, entry.args) for m in special.ir.mems]
            elif isinstance(entry, Wrote):
                fields = [entry.field]
            elif isinstance(entry, Copied):
                fields = [entry.target, entry.source]
            elif isinstance(entry, (Saved, Computed)):
                continue
            else:
                fields = [*entry.arrays, *entry.written]
            for f in fields:
                if isinstance(f, Field) and f.grad is not None and f.kind != "argument":
                    found[f] = f.grad
        return found

    def zero(self) -> None:
        """Set all gradients on the tape to 0."""
        for grad in self.gradients.values():
            grad.clear()

    def reset(self) -> None:
        """Forget what was recorded, and set the gradients to 0."""
        self.zero()
        self._forget()

    def stats(self) -> TapeStats:
        """How much the tape holds."""
        saved = sum(isinstance(e, Saved) for e in self.entries)
        return TapeStats(len(self.entries) - saved, saved, self.saver.bytes)

    def _check_gradients(self) -> None:
        for special in self.kept:
            name = special.kernel.source.name
            if special.is_elsewhere():
                raise AutodiffError(
                    f"{name} was launched in this tape for another backend than that of now",
                    special.kernel.source.head(),
                    hint="record the tape again after ds.init",
                )
            if special.count_gradients() != special.gradients:
                raise MissingGradientError(
                    f"a field that {name} uses got its gradient after {name} was launched in this tape",
                    special.kernel.source.head(),
                    hint="give fields their gradients (needs_grad=True, ds.root.lazy_grad()) before",
                )


_NUMBERS = frozenset((int, float, bool, np.float32, np.float64, np.int32, np.int64, Field))


def _constant(a: Any) -> Any:
    """An argument as it is now, whatever happens to it later."""
    if isinstance(a, np.ndarray):
        return a.copy()
    if isinstance(a, DeviceArray):
        assert session.device is not None
        return a.copy(session.device)
    if isinstance(a, Matrix):
        return a.entries.copy()
    return np.array(a) if isinstance(a, (list, tuple)) else a


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Field):
        raise FieldError(
            f"the loss is a field of one element, not {describe(loss)}",
            Span.of_caller(),
            hint="loss = ds.field(ds.f32, shape=(), needs_grad=True)",
        )
    if loss.element or any(n != 1 for n in loss.shape):
        raise FieldError(
            f"{loss.name} has shape {loss.shape + loss.element}, and a loss is a single number",
            Span.of_caller(),
            hint="for several outputs use tape.backward(grads={field: seed})",
        )
    if loss.grad is None:
        raise MissingGradientError(
            f"{loss.name} has no gradient, and is the loss of a tape",
            Span.of_caller(),
            hint="declare it with needs_grad=True",
        )


def _seed(f: Any, seed: Any) -> None:
    if not isinstance(f, Field) or f.grad is None:
        name = f.name if isinstance(f, Field) else repr(f)
        raise MissingGradientError(
            f"{name} can not be given a gradient to start from: it has none",
            Span.of_caller(),
            hint="declare it with needs_grad=True",
        )
    if isinstance(seed, Field):
        f.grad.copy_from(seed)
    elif np.ndim(seed) == 0 or (f.element and np.shape(seed) == f.element):
        f.grad.fill(seed)
    else:
        f.grad.from_numpy(seed)
