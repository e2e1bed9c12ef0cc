"""What a tape holds: one entry for each launch, each write from Python, each copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.saves import Saved
from diffsim.errors import Span
from diffsim.runtime.field import Field

if TYPE_CHECKING:
    from diffsim.runtime.specialize import Special


class Launched:
    """A kernel's launch: `args` as they were, `given` as they were given (arrays keep changing)."""

    __slots__ = ("args", "given", "now", "seed", "special")

    def __init__(
        self, special: Special, given: tuple[Any, ...], args: tuple[Any, ...], now: int, seed: int
    ) -> None:
        self.special = special
        self.given = given
        self.args = args
        self.now = now
        self.seed = seed


class Wrote:
    """A write from Python: what the element (None: all of them) was before has no effect any more.

    `value` is what was written: an element, or an array of all of them; the field it was copied from if
    no gradient flows through the copy. `writer` is the statement, as in `Versions`.
    """

    __slots__ = ("field", "index", "value", "writer")

    def __init__(
        self, field: Field, index: tuple[int, ...] | None, value: np.ndarray | Field
    ) -> None:
        self.field = field
        self.index = index
        self.value = value
        row, versions = self.row, field.versions
        self.writer = versions.writer if row is None else versions.writers.get(row)

    @property
    def row(self) -> int | None:
        """The row that it stays within (None: any)."""
        axis = self.field.versions.axis
        return None if self.index is None or axis is None else self.index[axis]


class Copied:
    """A copy of one field into another. `writer` is the statement, as in `Versions`."""

    __slots__ = ("source", "span", "target", "writer")

    def __init__(self, target: Field, source: Field, span: Span | None) -> None:
        self.target = target
        self.source = source
        self.span = span
        self.writer = target.versions.writer

    def back(self) -> None:
        """The adjoint of the copy."""
        target, source = self.target.grad, self.source.grad
        if target is None or target is source:
            return
        if source is not None:
            source._array += target._array
            source._touch()
        target.clear()


class Replaced:
    """A function with a gradient of its own: `backward()` stands for the adjoints of `inside`.

    It uses the gradients of `arrays`, and those of `written`, which it also wrote. `span` is the line of
    the program that made it.
    """

    __slots__ = ("arrays", "backward", "inside", "span", "written")

    def __init__(
        self,
        backward: Callable[[], Any],
        inside: list[Entry],
        arrays: tuple[Field, ...] = (),
        written: tuple[Field, ...] = (),
    ) -> None:
        self.backward = backward
        self.inside = inside
        self.arrays = arrays
        self.written = written
        self.span = Span.of_caller()


Entry = Launched | Wrote | Copied | Replaced | Saved


def flat(entries: list[Entry]) -> Iterator[Entry]:
    """All entries, with those inside of functions that have a gradient of their own."""
    for entry in entries:
        yield entry
        if isinstance(entry, Replaced):
            yield from flat(entry.inside)


def own_saves(entries: list[Entry], k: int) -> Iterator[Saved]:
    """The copies that the launch `entries[k]` made of what it was about to overwrite itself."""
    while (k := k + 1) < len(entries):
        following = entries[k]
        if not isinstance(following, Saved):
            break
        if following.own:
            yield following
