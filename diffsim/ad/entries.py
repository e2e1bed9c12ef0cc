"""What a tape holds, entry by entry: each knows its own part of the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.saves import Saved
from diffsim.errors import Span
from diffsim.runtime.field import Field
from diffsim.runtime.read import Read
from diffsim.runtime.recorded import Recorded

if TYPE_CHECKING:
    from diffsim.runtime.specialize import Special


class Launched:
    """A kernel's launch: `args` as they were, `given` as they were given (arrays keep changing).

    `returned` is what it returned, if derivatives flow through that.
    """

    __slots__ = ("args", "given", "now", "returned", "seed", "special")

    def __init__(
        self, special: Special, given: tuple[Any, ...], args: tuple[Any, ...], now: int, seed: int
    ) -> None:
        self.special = special
        self.given = given
        self.args = args
        self.now = now
        self.seed = seed
        self.returned: Recorded | None = None

    def backward(self) -> None:
        """Run the adjoint."""
        special, value = self.special, self.returned
        if not special.differentiable:
            return
        if value is None:
            special.run_adjoint(self.args, self.now, self.seed)
            return
        g = value.take()
        if g is None and not special.written:
            return  # it was only looked at
        seeds = np.zeros(value.array.shape) if g is None else g
        special.run_adjoint(self.args, self.now, self.seed, seeds.ravel().tolist())


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

    def backward(self) -> None:
        """What stood there had no effect."""
        grad = self.field.grad
        if grad is None:
            return
        if self.index is None:
            grad.clear()
        else:
            grad.storage.set_element(grad._place(self.index), np.zeros(()))
            grad._touch()


class Stored(Wrote):
    """A write of a value that the tape follows."""

    __slots__ = ("followed",)

    def __init__(self, field: Field, index: tuple[int, ...], followed: Recorded) -> None:
        super().__init__(field, index, followed.array)
        self.followed = followed

    def backward(self) -> None:
        """The value takes the element's gradient."""
        grad = self.field.grad
        if grad is not None:
            found = grad.storage.element(grad._place(self.index))
            self.followed.receive(np.array(found, np.float64).reshape(grad.element))
        super().backward()


class Computed:
    """Arithmetic in Python: what was made of which numbers, and how the gradient gets to them."""

    __slots__ = ("made", "parts")

    def __init__(self, made: Recorded, parts: Sequence[tuple[Recorded | Read, Pull]]) -> None:
        self.made = made
        self.parts = parts

    def backward(self) -> None:
        """Hand the gradient on."""
        g = self.made.take()
        if g is None:
            return
        for source, pull in self.parts:
            part = pull(g)
            if isinstance(source, Recorded):
                source.receive(part)
            elif source.field.grad is not None:
                grad = source.field.grad
                at = grad._place(source.index)
                grad.storage.set_element(at, grad.storage.element(at) + part.sum())
                grad._touch()


class Copied:
    """A copy of one field into another. `writer` is the statement, as in `Versions`."""

    __slots__ = ("source", "span", "target", "writer")

    def __init__(self, target: Field, source: Field, span: Span | None) -> None:
        self.target = target
        self.source = source
        self.span = span
        self.writer = target.versions.writer

    def backward(self) -> None:
        """The source gets the gradient of the target."""
        target, source = self.target.grad, self.source.grad
        if target is None or target is source:
            return
        if source is not None:
            source.storage.add(target.storage)
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


Pull = Callable[[np.ndarray], np.ndarray]
Entry = Launched | Wrote | Computed | Copied | Replaced | Saved


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
