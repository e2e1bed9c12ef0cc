"""Whether a record is complete: a gradient of a program with unrecorded parts would be wrong.

Launches that were cut short, and writes between the blocks of one tape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from diffsim.ad.record.entry import fields_of, flat
from diffsim.errors import AutodiffError, MissingGradientError, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.ad.record.entry import Entry
    from diffsim.ad.record.overwrite_saves import Saved
    from diffsim.ad.record.record import Record


class RecordIntegrity:
    """Looks for gaps in one record.

    Attributes:
        ended_at: the clock's reading when the last block ended.
    """

    ended_at = _seen = 0
    _error: AutodiffError | None = None
    # Made where there is something to note: each turn of a loop has a record.
    _fields: dict[Field, None] | None = None
    _elsewhere: dict[Field, tuple[str, Span | None]] | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing is known to be missing in the record."""
        return self._error is None and not self._elsewhere

    def cut_short(self, what: str, span: Span | None) -> None:
        """Note that code which wrote to fields failed, and is not on the record."""
        self._error = AutodiffError(
            f"{what} did not run to its end on this tape, so what it wrote is not on the record",
            span,
            hint="record the tape anew: tape.reset(), and then: with tape: ...",
        )

    def restore_final(self, final: list[Saved]) -> None:
        """Restore, at the end of a backward pass, the values from its start, in reverse order."""
        if not final:
            return
        with contextlib.ExitStack() as stack:  # restores all of them, also if one fails
            # An exit stack calls back in reverse order of registration, which is the order that undoes
            # the restores.
            for saved in final:
                stack.callback(self._restore, saved)

    def _restore(self, saved: Saved) -> None:
        with self.if_cut_short(saved.box[0]):
            saved.restore()

    @contextlib.contextmanager
    def if_cut_short(self, saved: Field) -> Iterator[None]:
        """Guard the restore of a saved value: if it fails, the value that was there is lost."""
        try:
            yield
        except BaseException:
            self._error = AutodiffError(
                f"a backward pass failed while it put back what {saved.name} had held, and this tape has "
                "lost it",
                None,
                hint="set the fields anew and record the tape anew: tape.reset(), and then: with tape: ...",
            )
            raise

    def written_elsewhere(self, f: Any, who: str, span: Span | None) -> None:
        """Note that another thread wrote to a field (or array) while this one recorded."""
        if isinstance(f, Field) and f.adjoint is not None:
            self._elsewhere = {**(self._elsewhere or {}), f: (who, span)}

    def check(self, entries: Iterable[Entry], seeds: Iterable[Any] = ()) -> None:
        """Raise AutodiffError if something is missing in the record, or concerns the seeds."""
        if self._error is not None:
            raise self._error
        # Threads that write to each other's fields are rare, and the fields of a long record are many.
        if not self._elsewhere:
            return
        # A field without a role in the record may be written by anybody.
        for f in (*fields_of(entries), *seeds):
            if f in self._elsewhere:
                who, span = self._elsewhere[f]
                raise AutodiffError(
                    f"{who} changed {f.name} in another thread while this tape recorded, and a tape records "
                    "its own thread alone",
                    span,
                    hint="do it in the thread of the tape, before its block, or on a tape of the other "
                    "thread, with fields of its own",
                )

    def check_unchanged(self, entries: Sequence[Entry]) -> None:
        """Check that no field of the record changed between two blocks of its tape.

        Raises:
            AutodiffError: a field with a gradient has changed since it was recorded.
        """
        # Only what was recorded since the last block: otherwise a tape of many short blocks takes
        # quadratic time.
        fields = self._fields = {} if self._fields is None else self._fields
        for entry in flat(entries[self._seen :]):
            for f, _ in entry.boxes():
                if f.adjoint is not None:
                    fields[f] = None
        self._seen = len(entries)
        # By field first, then by row for those that changed at all.
        changed = [f for f in fields if f.versions.latest > self.ended_at]
        if not changed:
            return
        for entry in flat(entries):
            for f, row in entry.boxes():
                # Rows of a time axis that the record does not use may change between blocks.
                if f in changed and f.versions.changed(row, self.ended_at):
                    raise _between(f, row)


def check_kernels(record: Record) -> None:
    """Refuse a record whose kernels would have other adjoints now than at their launches.

    Raises:
        AutodiffError: the backend is another one.
        MissingGradientError: a field got its gradient later.
    """
    for special in record.alive:
        name = special.kernel.source.name
        # Its adjoint would be compiled for the backend of now, which cannot reach the fields of then.
        if special.is_elsewhere():
            raise AutodiffError(
                f"{name} was launched in this tape for another backend than that of now",
                special.kernel.source.head(),
                hint="record the tape again after ds.init",
            )
        if special.lifted_in not in (None, session.generation):
            raise AutodiffError(
                f'{name} was launched in this tape with ds.init(rules="lifted"), and ds.init or ds.reset was '
                "called since: fields have lost the gradients that the tape made for them",
                special.kernel.source.head(),
                hint="record the tape again",
            )
        # A kernel is compiled with the gradients that its fields had; a field that got one later was a
        # constant in it.
        if special.count_gradients() != special.gradients:
            raise MissingGradientError(
                f"a field that {name} uses got its gradient after {name} was launched in this tape",
                special.kernel.source.head(),
                hint="give fields their gradients (needs_grad=True, ds.root.lazy_grad()) before",
            )


def session_reset() -> AutodiffError:
    """Return the error for a session that was reset in the block of a tape."""
    return AutodiffError(
        "ds.init() or ds.reset() was called while this tape was recording, which ended the record",
        Span.of_caller(),
        hint="call ds.init() before the tape",
    )


def check_repeatable(
    record: Record, integrity: RecordIntegrity, aim: str, *, whole: bool, looking: bool
) -> None:
    """Refuse to run a record again that does not stand for its program.

    Args:
        record: of a tape.
        integrity: of the same tape.
        aim: what it is for, in messages.
        whole: whether a block of the tape has run to its end.
        looking: whether the tape looks at each launch.
    """
    if not whole or not record:
        raise no_record(aim)
    if looking:
        raise AutodiffError(
            "a tape cannot be replayed with validation=True or check_nan=True, since a replay looks at "
            "nothing",
            Span.of_caller(),
            hint="record it anew each time: with tape: ...",
        )
    # A replay of an incomplete record would be another program than the one that ran.
    integrity.check(record.firsts())


def no_record(aim: str) -> AutodiffError:
    """Return the error for a tape without a complete block."""
    return AutodiffError(
        f"there is nothing to {aim}: no block of this tape has run to its end",
        Span.of_caller(),
        hint="record first: with tape: ...",
    )


def _between(f: Field, row: int | None) -> AutodiffError:
    who, place = f.versions.written_by(row)
    return AutodiffError(
        f"{f.name} was recorded on this tape, {who} has changed it after the end of the block, and the "
        "record would go on as if it had not",
        place,
        hint="change it inside the block, or begin a new record: tape.reset()",
    )
