"""The entries of a tape; `entry.py` says what each method is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.elements import (
    Box,
    Index,
    Run,
    add_elements,
    clear_gradient,
    move_gradient,
)
from diffsim.ad.record.entry import (
    BackwardRun,
    ChainSearch,
    Entry,
    ForwardProgram,
    Picture,
    ReverseProgram,
    Use,
    flat,
)
from diffsim.ad.record.overwrite_saves import refuse_sparse
from diffsim.errors import AutodiffError, GlobalDataAccessError, Span
from diffsim.ir.nodes import Store
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.runtime.fields.conversions import number_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.read_values import FieldElement
from diffsim.runtime.fields.recorded import Recorded

if TYPE_CHECKING:
    from diffsim.runtime.kernels.derivative import Derivative
    from diffsim.runtime.kernels.specialization import Specialization

Pull = Callable[[np.ndarray], np.ndarray]
Cleared = bool | np.ndarray
"""Whether the adjoint of a write clears the gradients of what was written; an array: of which elements."""


class Launched(Entry):
    """A launch of a kernel: `args` are copies, `given` the objects that the program passed.

    `returned` is what it returned, if derivatives flow through that. `undetached` is, for a launch in a
    function with a gradient of its own, the kernel with its derivatives; `special` has none then.
    """

    __slots__ = ("args", "given", "now", "returned", "seed", "special", "undetached")

    def __init__(
        self,
        special: Specialization,
        given: tuple[Any, ...],
        args: tuple[Any, ...],
        now: int,
        seed: int,
    ) -> None:
        self.special = special
        self.undetached: Specialization | None = None
        self.given = given
        self.args = args
        self.now = now
        self.seed = seed
        self.returned: Recorded | None = None

    def text(self) -> str:
        """Return the launch as a user would write it: step(137, x)."""
        return self.special.arguments.call_text(self.given)

    @property
    def is_declared_constant(self) -> bool:
        return self.special.mode.is_detached

    # ---- what it uses

    def _objects(self, accesses: Iterable[RegionAccess]) -> list[Field]:
        found: dict[Field, None] = {}
        # A kernel is compiled for fields and for kinds of arguments; which arrays those were is known per
        # launch.
        object_of, args = self.special.object_of, self.args
        for a in accesses:
            f = object_of(a.mem, args)
            if isinstance(f, Field):
                found[f] = None
        return list(found)

    def reads(self) -> list[Field]:
        return self._objects(self.special.accesses.reads)

    def writes(self) -> list[Field]:
        return self._objects(self.special.accesses.writes)

    def fields(self) -> Iterable[Field]:
        found = (self.special.object_of(m, self.args) for m in self.special.ir.mems)
        return [f for f in found if isinstance(f, Field)]

    def boxes(self) -> Iterator[Box]:
        for a in (*self.special.accesses.reads, *self.special.accesses.writes):
            box = self.special.box(a, self.args)
            if box is not None:
                yield box

    def overwrites(self) -> Iterable[Field]:
        for a in self.special.accesses.must_write:
            f = self.special.object_of(a.mem, self.args)
            # A row covers the whole field only if the axis that it fixes has one element.
            if isinstance(f, Field) and all(f.shape[row.axis] == 1 for row in a.region):
                yield f

    def statement(self, field: Field) -> Span | None:
        for a in self.special.accesses.writes:
            if self.special.object_of(a.mem, self.args) is field:
                return a.stmt.span
        return None

    def sets_gradients(self) -> Iterator[tuple[Field, Span | None]]:
        for statement in self.special.accesses.gradient_writes:
            f = self.special.object_of(statement.mem, self.given)
            if isinstance(f, Field):
                yield f, statement.span

    # ---- the backward pass

    def special_to_reverse(self) -> Specialization | None:
        # What only returns a value may never receive a gradient; its adjoint is compiled when it does.
        only_looked_at = self.returned is not None and not self.special.accesses.writes
        return self.special if self.special.differentiable and not only_looked_at else None

    def forget_gradient(self) -> None:
        if self.returned is not None:
            self.returned.pop_grad()

    def backward(self, run: BackwardRun, variant: Derivative | None = None) -> None:
        """Run its adjoint (or a variant of it, which an observed run asks for)."""
        special = self.special
        # The observer calls back with the variant to run, so the second call takes the other branch.
        if run.observed and variant is None:
            run.adjoint(self)
        elif special.differentiable:
            derivative = variant or special.derivative
            given: tuple[Any, ...] = (self.args, self.now, self.seed)
            if self.returned is not None:
                # Taking clears: the next pass starts from nothing.
                g = self.returned.pop_grad()
                if g is None and not special.accesses.writes:
                    return  # it was only looked at
                seeds = np.zeros(self.returned.array.shape) if g is None else g
                given = *given, derivative.seeds(seeds)
            try:
                derivative.launch(*given)
            except GlobalDataAccessError as error:
                run.refused.launch(error, derivative, *given)

    # ---- replays

    def check_replay(self) -> None:
        # Values that flow through Python, and arrays that Python may change, have no native form.
        source = self.special.kernel.source
        if self.returned is not None:
            raise AutodiffError(
                f"this tape cannot be replayed: it follows what {source.name} returned through Python",
                source.head(),
                hint="let the kernel store its result into a 0-D field, or record the tape anew each time",
            )
        for p, a in zip(self.special.arguments.parameters, self.given, strict=True):
            # A replay reads fields as they are then; changes of foreign arrays are not tracked.
            if p.kind == "array" and not isinstance(a, Field):
                kind = (
                    "a NumPy array" if isinstance(a, np.ndarray) else "an array of another library"
                )
                raise AutodiffError(
                    f"this tape cannot be replayed: {p.name} of {source.name} was {kind}, "
                    "whose changes are not recorded",
                    source.parameter(p.name),
                    hint="pass a ds.ndarray, or record the tape anew each time",
                )

    def record(self, program: ForwardProgram) -> None:
        program.launch(self)

    def reverse(self, program: ReverseProgram) -> None:
        program.adjoint(self)

    # ---- pictures and checks

    def draw(self, picture: Picture) -> None:
        special = self.special
        reads = map(self._use, special.accesses.reads)
        writes = map(self._use, special.accesses.writes)
        arguments = special.arguments.texts(self.given)
        picture.step(special.kernel.source.name, reads, writes, arguments, "kernel")

    def _use(self, a: RegionAccess) -> Use:
        arguments, box = self.special.arguments, self.special.box(a, self.args)
        port = arguments.array_name(a.mem) if a.mem.kind == "array" else ""
        thing, row = arguments.object_of(a.mem, self.given), None if box is None else box[1]
        return Use(thing, port, row, isinstance(a.stmt, Store))

    def may_break_chain(self) -> bool:
        # Compiled statements tell what they leak; which fields those are depends on the launch.
        activity = self.special.derivative.activity
        return bool(activity.leaks or activity.second_leaks)

    def follow(self, search: ChainSearch) -> None:
        search.launched(self)


class Wrote(Entry):
    """A write from Python, which ends the effect of the previous values of these elements.

    Attributes:
        value: what was written: one element, or an array of all; the source field of a copy that no gradient
            flows through.
        writer: the statement, as in `Versions`.
        cleared: not the gradients of inputs, which nothing on the tape used before (`ad/reverse/inputs.py`).
        declared_constant: whether the user asked for a constant: no gradient flows in the code that wrote it.
        array_source: the field that Python computed the array from, and the statement.
        lost_at: the statement, if Python computed the value from a field with a gradient and this has none.
    """

    __slots__ = (
        "array_source",
        "cleared",
        "declared_constant",
        "field",
        "index",
        "lost_at",
        "value",
        "writer",
    )
    is_plain = True  # whether it is what a statement of the user's wrote, and no more
    retained = True  # whether its adjoint clears a gradient that `retain_grad` keeps

    def __init__(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        self.field = field
        self.index = index
        self.value = value
        self.cleared: Cleared = True
        self.lost_at: Span | None = None
        self.declared_constant = False
        self.array_source: tuple[Field | None, Span | None] | None = None
        # Kept from now on: later writes replace the field's own note of who wrote last.
        self.writer = field.versions.writer_of(self.row)

    @property
    def row(self) -> int | None:
        """The only row of the time axis that it wrote to (None: any)."""
        # The row is a bound for the version check; None is always right, and less exact.
        if self.index is None or isinstance(self.index, Run):
            return None
        return self.field.versions.row_at(self.index)

    @property
    def is_declared_constant(self) -> bool:
        return self.declared_constant

    def is_given(self) -> bool:
        """Whether Python may have computed this constant from something; the field has a gradient."""
        if self.declared_constant or not self.is_plain or self.field.adjoint is None:
            return False
        if isinstance(self.value, np.ndarray):
            # Zeros are resets, computed from nothing.
            return bool(self.value.any())
        return not isinstance(self.value, Field)  # a copy of GPU memory may hold anything

    @property
    def may_be_input(self) -> bool:
        return self.is_plain and not self.declared_constant and self.array_source is None

    def constant_place(self) -> tuple[Field, Index] | None:
        return None if self.field.adjoint is None else (self.field, self.index)

    def writes(self) -> list[Field]:
        return [self.field]

    def boxes(self) -> Iterator[Box]:
        yield self.field, self.row

    def elements(self) -> Iterable[tuple[Field, Index]]:
        return [(self.field, self.index)]

    def backward(self, run: BackwardRun) -> None:
        """Clear the gradient: the overwritten value has no effect."""
        grad = self.field.adjoint
        # An input keeps its gradient: nothing before it on the tape used the element (docs/adr/0027).
        if grad is None or self.cleared is False:
            return
        index = self.index if self.cleared is True else self.cleared
        # Before the clear, while the gradient is still there.
        if self.retained:
            run.clearing(self.field, index)
        clear_gradient(grad, index, run.tangents)

    def check_replay(self) -> None:
        refuse_sparse(self.field, None)
        if isinstance(self.index, Run):
            raise _not_replayed("a copy of some elements", None)

    def record(self, program: ForwardProgram) -> None:
        program.assign(self)

    def reverse(self, program: ReverseProgram) -> None:
        program.clear(self)

    def draw(self, picture: Picture) -> None:
        picture.step("written in Python", [], [Use(self.field, "", self.row, stores=True)])

    def may_break_chain(self) -> bool:
        return self.lost_at is not None

    def follow(self, search: ChainSearch) -> None:
        search.wrote(self)


class Seeded(Wrote):
    """A write of nonzero values from Python to a gradient; `span` is the statement."""

    __slots__ = ("span",)
    is_plain = False

    def __init__(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        super().__init__(field, index, value)
        self.span = Span.of_caller()

    def sets_gradients(self) -> Iterator[tuple[Field, Span | None]]:
        yield self.field, self.span


class Stopped(Wrote):
    """A declaration that the present values of a field are constants: `ds.stop_grad(x)`."""

    __slots__ = ()
    is_plain = retained = False

    @property
    def is_declared_constant(self) -> bool:
        return True

    def check_replay(self) -> None:
        raise _not_replayed("ds.stop_grad of a field", None)

    def draw(self, picture: Picture) -> None:
        picture.step("stop_grad", [], [Use(self.field)])


class Stored(Wrote):
    """A write of a followed value (`Recorded`) to an element."""

    __slots__ = ("followed",)
    is_plain = False

    def __init__(self, field: Field, index: tuple[int, ...], followed: Recorded) -> None:
        super().__init__(field, index, followed.array)
        self.followed = followed

    def constant_place(self) -> tuple[Field, Index] | None:
        return None

    def backward(self, run: BackwardRun) -> None:
        """Add the element's gradient to that of the value, then clear it."""
        grad = self.field.adjoint
        if grad is not None:
            # The adjoint of `field[i] = value`: value.adj += field.grad[i]; field.grad[i] = 0. The clear
            # follows.
            assert isinstance(self.index, tuple)
            found = grad.storage.element(number_of(grad, self.index))
            self.followed.receive(np.array(found, np.float64).reshape(grad.element))
        super().backward(run)


class Computed(Entry):
    """Arithmetic in Python on followed values: the result, and for each operand its pullback.

    A number that was read from a field does not keep it alive; `parts` do.
    """

    __slots__ = ("made", "parts")

    def __init__(
        self, made: Recorded, parts: Sequence[tuple[Recorded | FieldElement, Pull]]
    ) -> None:
        self.made = made
        self.parts = [
            # Field and index instead of the number read: the adjoint adds to the gradient there, the value is
            # not needed.
            (a if isinstance(a, Recorded) else (a.field, a.index), pull)
            for a, pull in parts
        ]

    def elements(self) -> Iterable[tuple[Field, Index]]:
        places = (a for a, _ in self.parts if isinstance(a, tuple))
        return [(f, index) for f, index in places if f is not None]

    def forget_gradient(self) -> None:
        self.made.pop_grad()

    def backward(self, run: BackwardRun) -> None:
        """Add the pulled back gradient of the result to those of the operands."""
        g = self.made.pop_grad()
        if g is None:
            return
        for source, pull in self.parts:
            own = pull(g)
            if isinstance(source, Recorded):
                source.receive(own)
                continue
            field, index = source
            if field is not None and field.adjoint is not None:
                # The operand may have been broadcast; the adjoint of broadcasting is the sum.
                add_elements(field.adjoint, index, own.sum())
                field.adjoint._touch()


class Copied(Entry):
    """A copy of elements `at` of one field to elements `to` of another (None: all).

    `writer` is the statement, as in `Versions`; `cleared` is that of `Wrote`.
    """

    __slots__ = ("at", "cleared", "source", "span", "target", "to", "writer")

    def __init__(
        self, target: Field, source: Field, span: Span | None, to: Index = None, at: Index = None
    ) -> None:
        self.target = target
        self.source = source
        self.span = span
        self.to = to
        # Indices as given: the adjoint addresses the gradients of the same elements.
        self.at = at
        self.cleared: Cleared = True
        self.writer = target.versions.writer

    @property
    def may_be_input(self) -> bool:
        # A copy from a field without gradient sets constants, as an array from Python does.
        return self.source.adjoint is None

    def constant_place(self) -> tuple[Field, Index] | None:
        constant = self.source.adjoint is None and self.target.adjoint is not None
        return (self.target, self.to) if constant else None

    def reads(self) -> list[Field]:
        return [self.source]

    def writes(self) -> list[Field]:
        return [self.target]

    def elements(self) -> Iterable[tuple[Field, Index]]:
        return [(self.source, self.at), (self.target, self.to)]

    def statement(self, field: Field) -> Span | None:
        return self.span

    def sets_gradients(self) -> Iterator[tuple[Field, Span | None]]:
        if self.target.is_grad:
            yield self.target, self.span

    def backward(self, run: BackwardRun) -> None:
        """Move the gradient from the target to the source."""
        target, source = self.target.adjoint, self.source.adjoint
        if target is None or self.cleared is False:
            return
        index = self.to if self.cleared is True else self.cleared
        run.clearing(self.target, index)
        move_gradient(target, index, source, self.at, run.tangents)

    def check_replay(self) -> None:
        refuse_sparse(self.target, self.span)
        if isinstance(self.to, Run):
            raise _not_replayed("a copy of some elements", self.span)

    def record(self, program: ForwardProgram) -> None:
        program.copy(self)

    def reverse(self, program: ReverseProgram) -> None:
        program.copy_back(self)

    def draw(self, picture: Picture) -> None:
        picture.step("copy", [Use(self.source)], [Use(self.target, stores=self.to is None)])

    def may_break_chain(self) -> bool:
        return True

    def follow(self, search: ChainSearch) -> None:
        search.copied(self)


def _not_replayed(what: str, span: Span | None) -> AutodiffError:
    return AutodiffError(
        f"this tape cannot be replayed: it holds {what}",
        span,
        hint="copy whole fields, or record the tape anew each time",
    )


def all_written(entries: Iterable[Entry]) -> dict[Field, None]:
    """Return the fields that the program wrote: the backward pass computes their gradients anew."""
    found: dict[Field, None] = {}
    seen: set[int] = set()
    for entry in flat(entries):
        # `writes` takes time, and a record may have a million launches of a few kernels.
        if isinstance(entry, Launched) and not entry.special.arguments.arrays:
            if id(entry.special) in seen:
                continue  # all launches of a kernel without arrays write to the same fields
            seen.add(id(entry.special))
        found.update(dict.fromkeys(entry.writes()))
    return found
