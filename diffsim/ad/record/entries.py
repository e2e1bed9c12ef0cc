"""What a tape holds, entry by entry: each knows its own part of the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffsim.ad.record.overwrite_saves import Saved
from diffsim.errors import AutodiffError, Span
from diffsim.lang.host.provenance import source_of
from diffsim.lang.types.matrix import Matrix
from diffsim.runtime.fields.device_array import DeviceArray
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.read_values import FieldElement, TrackedFloat
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.kernels.aliasing import shares
from diffsim.runtime.memory.storage import HOST
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

if TYPE_CHECKING:
    from diffsim.runtime.kernels.derivative import Derivative
    from diffsim.runtime.kernels.specialization import Specialization


UNCHANGING = frozenset((int, float, bool, np.float32, np.float64, np.int32, np.int64, Field))
"""Kinds of arguments that stay what they are."""


def constant(a: Any) -> Any:
    """An argument as it is now, whatever happens to it later.

    Raises:
        AutodiffError: Python made it of what has a gradient; it is the memory of such a field.
    """
    source = source_of(a)
    if source is not None:
        if isinstance(a, np.ndarray):
            source.refuse("a kernel", "give the kernel the field", "an array")
        source.refuse("a kernel", "give the kernel a 0-D field in place of the number")
    if isinstance(a, TrackedFloat):
        return float(a)
    if isinstance(a, np.ndarray):
        _check_alone(a)
        return a.copy()
    if isinstance(a, DeviceArray):
        _check_alone(a)
        return a.copy()
    if isinstance(a, Matrix):
        return a.entries.copy()
    return np.array(a) if isinstance(a, (list, tuple)) else a


def _check_alone(array: np.ndarray | DeviceArray) -> None:
    """Refuse an array that is the memory of a field with a gradient, which would not see it."""
    for f in members(session.exported):
        if f.grad is not None and shares(array, f):
            raise AutodiffError(
                f"this array is the memory of {f.name}, and no gradient would flow to or from {f.name}",
                Span.of_caller(),
                hint="give the kernel the field itself; if constants are meant, a copy: array.copy()",
            )


class Run(NamedTuple):
    """The elements `start` to `start + size` of a field, counted in the order of its indices."""

    start: int
    size: int


Index = tuple[int, ...] | Run | None
"""Which elements of a field: one, some, or (None) all."""


def part(field: Field, index: Index) -> Any:
    """These elements as an index into the field's array."""
    if index is None or not field.shape:
        return ...
    if isinstance(index, Run):
        return np.unravel_index(np.arange(index.start, index.start + index.size), field.shape)
    return index


def look(field: Field) -> np.ndarray:
    """What a field holds, to be read: an array of shape `shape` + (components,)."""
    storage = field.storage
    return field._array if storage.device is HOST else storage.to_numpy()


@contextlib.contextmanager
def edited(field: Field) -> Iterator[np.ndarray]:
    """The same to be changed; wherever the field lies, the changes get there at the end."""
    array = look(field)
    yield array
    if field.storage.device is not HOST:
        field.storage.from_numpy(array)


def held(field: Field, index: Index) -> np.ndarray:
    """A copy of what stands in these elements."""
    if isinstance(index, tuple) and not isinstance(index, Run):
        return np.array(field.storage.element(field._place(index)))
    return np.array(look(field)[part(field, index)])


def put_held(field: Field, index: Index, values: Any) -> None:
    """Set these elements, which nobody is told of."""
    if isinstance(index, tuple) and not isinstance(index, Run):
        field.storage.set_element(field._place(index), np.asarray(values))
        return
    with edited(field) as array:
        array[part(field, index)] = values


def add_held(field: Field, index: Index, values: Any) -> None:
    """Add to these elements, which nobody is told of."""
    with edited(field) as array:
        array[part(field, index)] += values


class Launched:
    """A kernel's launch: `args` as they were, `given` as they were given (arrays keep changing).

    `returned` is what it returned, if derivatives flow through that. `inside` is, for a launch in a
    function with a gradient of its own, the kernel with its derivatives; `special` has none then.
    """

    __slots__ = ("args", "given", "inside", "now", "returned", "seed", "special")

    def __init__(
        self,
        special: Specialization,
        given: tuple[Any, ...],
        args: tuple[Any, ...],
        now: int,
        seed: int,
    ) -> None:
        self.special = special
        self.inside: Specialization | None = None
        self.given = given
        self.args = args
        self.now = now
        self.seed = seed
        self.returned: Recorded | None = None

    def text(self) -> str:
        """The launch as the user might write it: step(137, x)."""
        shown = []
        for p, a in zip(self.special.arguments.parameters, self.given, strict=True):
            if isinstance(a, (bool, int, float, np.number)):
                shown.append(f"{a!s}")
            else:
                shown.append(p.name)
        return f"{self.special.kernel.source.name}({', '.join(shown)})"

    def backward(self, variant: Derivative | None = None) -> None:
        """Run the adjoint (or a variant of it)."""
        special, value = self.special, self.returned
        if not special.differentiable:
            return
        derivative = variant or special.derivative
        if value is None:
            derivative.launch(self.args, self.now, self.seed)
            return
        g = value.take()
        if g is None and not special.accesses.writes:
            return  # it was only looked at
        seeds = np.zeros(value.array.shape) if g is None else g
        derivative.launch(self.args, self.now, self.seed, seeds.ravel().tolist())


class Wrote:
    """A write from Python: what these elements were before has no effect any more.

    `value` is what was written: an element, or an array of all of them; the field it was copied from if
    no gradient flows through the copy. `writer` is the statement, as in `Versions`. `lost` is the statement
    too, if Python made the value of what has a gradient, and the field has none. `meant` says that a constant
    is what the user wants: no gradient flows in the code that wrote it. `taken` is the field that the array
    was made of, in Python, and the statement. `is_input` says that nothing on the tape used these elements
    before.
    """

    __slots__ = ("field", "index", "is_input", "lost", "meant", "taken", "value", "writer")

    def __init__(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        self.field = field
        self.index = index
        self.value = value
        self.is_input = False
        self.lost: Span | None = None
        self.meant = False
        self.taken: tuple[Field | None, Span | None] | None = None
        self.writer = field.versions.writer_of(self.row)

    @property
    def row(self) -> int | None:
        """The row that it stays within (None: any)."""
        axis = self.field.versions.axis
        if axis is None or self.index is None or isinstance(self.index, Run):
            return None
        return self.index[axis]

    def backward(self) -> None:
        """What stood there had no effect."""
        grad = self.field.grad
        if grad is None or self.is_input:
            return
        if self.index is None:
            grad.clear()
        else:
            put_held(grad, self.index, 0)
            grad._touch()


class Seeded(Wrote):
    """A write from Python to a gradient, of something that is not 0. `span` is the statement."""

    __slots__ = ("span",)

    def __init__(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        super().__init__(field, index, value)
        self.span = Span.of_caller()


class Stopped(Wrote):
    """What a field holds was declared a constant: `ds.stop_grad(x)`."""

    __slots__ = ()


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
    """Arithmetic in Python: what was made of which numbers, and how the gradient gets to them.

    A number that was read from a field does not keep it alive; `parts` do.
    """

    __slots__ = ("made", "parts")

    def __init__(
        self, made: Recorded, parts: Sequence[tuple[Recorded | FieldElement, Pull]]
    ) -> None:
        self.made = made
        self.parts = [
            (a if isinstance(a, Recorded) else (a.field, a.index), pull) for a, pull in parts
        ]

    def backward(self) -> None:
        """Hand the gradient on."""
        g = self.made.take()
        if g is None:
            return
        for source, pull in self.parts:
            own = pull(g)
            if isinstance(source, Recorded):
                source.receive(own)
                continue
            field, index = source
            if field is not None and field.grad is not None:
                add_held(field.grad, index, own.sum())
                field.grad._touch()


class Copied:
    """A copy of elements of one field into as many of another (None: of all into all).

    `writer` is the statement, as in `Versions`; `is_input` is that of `Wrote`.
    """

    __slots__ = ("at", "is_input", "source", "span", "target", "to", "writer")

    def __init__(
        self, target: Field, source: Field, span: Span | None, to: Index = None, at: Index = None
    ) -> None:
        self.target = target
        self.source = source
        self.span = span
        self.to = to
        self.at = at
        self.is_input = False
        self.writer = target.versions.writer

    def backward(self) -> None:
        """The adjoint: the source gets what the target had, of which nothing is left."""
        target, source = self.target.grad, self.source.grad
        if target is None or self.is_input:
            return
        flowing = held(target, self.to)
        put_held(target, self.to, 0)
        target._touch()
        if source is not None:
            add_held(source, self.at, flowing)
            source._touch()


class Replaced:
    """A function with a gradient of its own: `backward()` stands for the adjoints of `inside`.

    It uses the gradients of `arrays`, and those of `written`, which it also wrote. `span` is the line of
    the program that made it; `by_user` says whether the user wrote `backward`.
    """

    __slots__ = ("arrays", "backward", "by_user", "inside", "span", "written")

    def __init__(
        self,
        backward: Callable[[], Any],
        inside: Sequence[Entry],
        arrays: tuple[Field, ...] = (),
        written: tuple[Field, ...] = (),
        *,
        by_user: bool = True,
    ) -> None:
        self.by_user = by_user
        self.backward = backward
        self.inside = inside
        self.arrays = arrays
        self.written = written
        self.span = Span.of_caller()


class Scope:
    """The begin (with a name) or end of a group of entries, for pictures of the tape."""

    __slots__ = ("name",)

    def __init__(self, name: str | None) -> None:
        self.name = name


Pull = Callable[[np.ndarray], np.ndarray]
Entry = Launched | Wrote | Computed | Copied | Replaced | Saved | Scope


def flat(entries: Iterable[Entry]) -> Iterator[Entry]:
    """All entries, with those inside of functions that have a gradient of their own."""
    for entry in entries:
        yield entry
        if isinstance(entry, Replaced):
            yield from flat(entry.inside)


def fields_of(entries: Iterable[Entry]) -> dict[Field, None]:
    """The fields that entries read or wrote."""
    found: dict[Field, None] = {}
    for entry in flat(entries):
        things: Sequence[Any] = ()
        if isinstance(entry, Launched):
            things = [entry.special.object_of(m, entry.args) for m in entry.special.ir.mems]
        elif isinstance(entry, Wrote):
            things = [entry.field]
        elif isinstance(entry, Copied):
            things = [entry.target, entry.source]
        elif isinstance(entry, Replaced):
            things = [*entry.arrays, *entry.written]
        found.update(dict.fromkeys(f for f in things if isinstance(f, Field)))
    return found


def written(entry: Entry) -> list[Field]:
    """The fields that an entry wrote, but for entries inside of it."""
    if isinstance(entry, Launched):
        found = [entry.special.object_of(a.mem, entry.args) for a in entry.special.accesses.writes]
        return [f for f in dict.fromkeys(map(_field, found)) if f is not None]
    if isinstance(entry, Copied):
        return [entry.target]
    if isinstance(entry, Wrote):
        return [entry.field]
    return list(entry.written) if isinstance(entry, Replaced) else []


def all_written(entries: Iterable[Entry]) -> dict[Field, None]:
    """The fields that the recorded program wrote: their gradients belong to the backward pass."""
    found: dict[Field, None] = {}
    seen: set[int] = set()
    for entry in flat(entries):
        if isinstance(entry, Launched):
            if id(entry.special) in seen and not entry.special.arguments.arrays:
                continue
            seen.add(id(entry.special))
        found.update(dict.fromkeys(written(entry)))
    return found


def read(entry: Entry) -> list[Field]:
    """The fields that an entry read, but for entries inside of it."""
    if isinstance(entry, Launched):
        found = [entry.special.object_of(a.mem, entry.args) for a in entry.special.accesses.reads]
        return [f for f in dict.fromkeys(map(_field, found)) if f is not None]
    return [entry.source] if isinstance(entry, Copied) else []


def _field(thing: Any) -> Field | None:
    return thing if isinstance(thing, Field) else None


def own_saves(entries: Sequence[Entry], k: int) -> Iterator[Saved]:
    """The copies that the launch `entries[k]` made of what it was about to overwrite itself."""
    while (k := k + 1) < len(entries):
        following = entries[k]
        if not isinstance(following, Saved):
            break
        if following.own:
            yield following
