"""`progress`: a loop that shows how far it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar

from diffsim.errors import shown
from diffsim.lang.host.signatures import checked, need_whole
from diffsim.runtime.observe.progress import ProgressBar
from diffsim.tools.pictures.arrays import refuse

T = TypeVar("T")


class Progress(Generic[T]):
    """A loop that shows how far it is; made by `ds.tools.progress`."""

    def __init__(self, things: Iterable[T], label: str, total: int | None) -> None:
        self._things, self._label, self._total = things, label, total
        self._notes = ""

    def __iter__(self) -> Iterator[T]:
        bar = ProgressBar(self._total, label=self._label)
        try:
            for done, thing in enumerate(self._things, 1):
                yield thing
                bar.update(done, self._notes)
        finally:
            bar.close()

    def note(self, **values: Any) -> None:
        """Show values beside the bar: `bar.note(loss=loss[None])`; floats with four digits.

        Example:
            for i in (bar := ds.tools.progress(range(3), "training")):
                bar.note(loss=1.0 / (i + 1))
            print(i)  # prints: 2
        """
        self._notes = "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in values.items()
        )


@checked
def progress(things: Iterable[T] | int, label: str = "", total: int | None = None) -> Progress[T]:
    """Loop over things, and show how far the loop is, on standard error.

    That is one line in a terminal, which `tqdm` draws where it is installed, then in notebooks too; elsewhere
    it is ten lines.

        for i in (bar := ds.tools.progress(range(100), "training")):
            bar.note(loss=step())

    Args:
        things: what to loop over; a number n is `range(n)`.
        label: what to write before the bar.
        total: how many there are, for things that do not know it.

    Example:
        total = 0
        for i in ds.tools.progress(range(4), "adding"):
            total += i
        print(total)  # prints: 6
    """
    if isinstance(things, int):
        if things >= 2**63:  # more than `len` can say
            raise refuse(f"no loop ends after {shown(things)} steps", "give a smaller number")
        things = range(things)  # type: ignore[assignment]
    if not isinstance(things, Iterable):
        raise refuse(f"{shown(things)} cannot be looped over", "give a range, a list or a number")
    need_whole(total, "total")
    if total is None and isinstance(things, Sized):
        total = len(things)
    return Progress(things, label, total)
