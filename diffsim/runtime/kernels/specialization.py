"""A kernel compiled for one combination of compiled-in arguments, and its adjoint, made when asked for."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import AutodiffError, FieldError, GlobalDataAccessError, Span
from diffsim.ir import nodes
from diffsim.ir.nodes import Atomic, Const, Load, Mem, RngKey, Store
from diffsim.ir.traversal import task_statements, uses
from diffsim.ir.types import TensorType, an
from diffsim.lang.frontend.translate import Translation
from diffsim.lang.host.observations import identities
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.matrix import Matrix
from diffsim.passes.analysis import regions
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.passes.autodiff import reverse
from diffsim.passes.autodiff.activity import Activity, missing_gradient, read_after_leak
from diffsim.runtime.executable import Executable
from diffsim.runtime.fields.conversions import array_of
from diffsim.runtime.fields.device_array import known_as
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.poison import ZERO, poison
from diffsim.runtime.kernels import captures, launch_function
from diffsim.runtime.kernels.arguments import Parameter, flatten
from diffsim.runtime.kernels.launch_history import LaunchHistory
from diffsim.runtime.locked_cached_property import locked_cached_property
from diffsim.runtime.memory.cut_gradients import check_gradient
from diffsim.runtime.memory.versions import Versions
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.kernel import Kernel

_FOREVER = 1 << 62


class Specialization:
    """One compiled kernel.

    Attributes:
        kernel: the user's kernel.
        key: the compiled-in arguments that it is for.
        translation: the frontend's result, with what it captured.
        ir: the prepared IR.
        values: the parameters that a launch passes.
        launch: the launch function (`launch_function.py`).
        launches: when it was launched.
        stale: whether something that it was compiled for is gone; `needed`: what may go.
        is_detached: whether its adjoint takes what it stores for constants (`ds.ad.no_grad`).
        backend: what it is compiled for.
        is_in_place: whether the tape puts back what the kernel overwrites.
        announced: whether a tape that asks for it hears of launches before they happen.
        origin: for a kernel `in_place`: the ordinary one.
        variants: the same kernel for other purposes, made when they are needed.
    """

    announced = True

    def __init__(
        self,
        kernel: Kernel,
        translation: Translation,
        ir: nodes.Kernel,
        values: list[Parameter],
        arrays: dict[str, Any],
        simplicity: str,
        key: tuple[Any, ...],
        *,
        is_detached: bool = False,
        is_in_place: bool = False,
    ) -> None:
        self.kernel = kernel
        self.key = key
        self.backend = session.backend
        self.moves = session.moves
        self.is_detached = is_detached
        self.is_in_place = is_in_place
        self.origin = self
        self.variants: dict[Any, Specialization] = {}
        self.translation = translation
        self.ir = ir
        self.values = values
        self.arrays = arrays
        self.simplicity = simplicity
        self.stale = False
        self.launches = LaunchHistory()
        self.needed: list[weakref.ref[Any]] = []
        self.need(self.fields())
        self.need(f for look in translation.looks if (f := look.object) is not None)
        self.read = _distinct(regions.reads(ir))
        self.written = _distinct(regions.writes(ir))
        for a in (*self.read, *self.written):
            self._choose_axis(a)
        self.gradients = self.count_gradients()
        self.differentiable = self.gradients > 0
        returns_float = ir.result is not None and ir.result.dtype.is_float
        self.on_tape = (
            self.differentiable
            or bool(self.written)
            or (returns_float and any(a.mem.dtype.is_float for a in self.read))
        )

    def need(self, things: Iterable[Any]) -> None:
        """Without any of these fields (or other objects) it is of no use any more."""
        gone = functools.partial(_drop, weakref.ref(self))
        self.needed += [weakref.ref(t, gone) for t in things]

    def alive(self) -> list[Any]:
        """These things, for somebody who keeps it in use."""
        return [found for t in self.needed if (found := t()) is not None]

    @locked_cached_property
    def overwrites(self) -> list[RegionAccess]:
        """Stores that reach every element of the rows they stay within."""
        return regions.must_write(self.ir)

    def _choose_axis(self, a: RegionAccess) -> None:
        """The first axis that a kernel indexes with an argument becomes the field's time axis."""
        if a.mem.kind == "field":
            versions = self.versions_of(a.mem)
            if versions.axis is None and a.time_axis is not None:
                versions.choose(a.time_axis, a.mem.handle().shape[a.time_axis])

    def count_gradients(self) -> int:
        """How many of the memories have a gradient (more than `gradients` if some came late)."""
        return sum(m.grad is not None for m in self.ir.mems)

    @staticmethod
    def versions_of(mem: Mem) -> Versions:
        return mem.handle().versions

    def array_name(self, mem: Mem) -> str:
        """The parameter behind an array's memory (or behind that of its gradient)."""
        for name, ref in self.arrays.items():
            if ref._mem is mem or ref._mem.grad is mem:
                return name
        raise KeyError(mem.name)

    def object_of(self, mem: Mem, args: tuple[Any, ...]) -> Any:
        """The field or array behind a memory in a launch with these arguments; None for others."""
        if mem.kind == "field":
            return mem.handle()
        if mem.kind != "array":
            return None
        name = self.array_name(mem)
        found = args[[p.name for p in self.values].index(name)]
        return found if self.arrays[name]._mem is mem else found.grad

    def fields(self) -> list[Field]:
        """The fields that the kernel captured."""
        return [m.handle() for m in self.ir.mems if m.kind == "field"]

    @locked_cached_property
    def identity(self) -> tuple[Any, ...]:
        """What tells it from the same kernel compiled for other things."""
        numbers = [f.number for f in self.fields()]
        objects = [o for look in self.translation.looks for o in identities(look.kept)]
        return id(self.kernel), self.key, *numbers, *objects

    def box(self, a: RegionAccess, args: tuple[Any, ...]) -> tuple[Field, int | None] | None:
        """The field that an access reaches in a launch, and the row (None: any) it stays within."""
        f = self.object_of(a.mem, args)
        if not isinstance(f, Field):
            return None
        named = dict(zip((p.name for p in self.values), args, strict=True))
        return f, launch_function.row_number(a, f.versions.axis, named)

    def scalars(self, args: tuple[Any, ...]) -> list[bool | int | float]:
        """The arguments that are passed by value, flattened to scalars."""
        made: list[bool | int | float] = []
        for p, a in zip(self.values, args, strict=True):
            if p.kind != "value":
                continue
            if a.__class__ is int or a.__class__ is float:
                made.append(a)
            else:
                made += flatten(p, a, self.kernel.source.name)
        return made

    def launch_key(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a launch with these arguments is known by."""
        key: list[Any] = []
        for p, a in zip(self.values, args, strict=True):
            if p.kind == "array":
                key.append(known_as(a))
            elif p.type is not None and p.type.shape:
                key.append(tuple(flatten(p, a, self.kernel.source.name)))
            else:
                key.extend(flatten(p, a, self.kernel.source.name))
        return tuple(key)

    # ---- forward

    @locked_cached_property
    def compiled(self) -> Executable:
        return self._compile(self.ir)

    def _compile(self, ir: nodes.Kernel) -> Executable:
        return self.backend.compile(ir)

    @locked_cached_property
    def launch(self) -> Callable[..., Any]:
        return launch_function.forward(self)

    def recheck(self) -> bool:
        """Whether captured values changed so that the kernel must be compiled anew."""
        if captures.recheck(self):
            self.stale = True
        return self.stale

    def forget_launch(self) -> None:
        """Write the launch function anew at the next launch."""
        self.__dict__.pop("launch", None)
        if self.kernel.signature.plain:
            self.kernel.forget_launch()

    def again(self, *args: Any) -> Any:
        """Launch after compiling anew.

        Raises:
            launch.Anew: only the caller knows the arguments that were compiled in.
        """
        self.kernel.forget()
        if any(p.kind == "template" for p in self.kernel.signature.parameters):
            raise launch_function.Anew
        return self.kernel(*args)

    def cut_short(self) -> None:
        """A launch began to write, and nothing tells a tape of it."""
        tape = session.listener
        if tape is not None:
            source = self.kernel.source
            tape.cut_short(source.name, source.head())

    def returned(self) -> Any:
        found = self.compiled.returned()
        t = self.compiled.result.dtype if self.compiled.result is not None else None
        wanted = self.kernel.signature.result
        if isinstance(wanted, TensorType):
            return Matrix(np.array(found).reshape(wanted.shape), wanted.scalar)
        assert t is not None
        return found

    # ---- backward

    @locked_cached_property
    def _reversed(self) -> tuple[nodes.Kernel, frozenset[Mem]]:
        relaxed = self.simplicity == "relaxed"
        return reverse.reverse(
            self.ir, relaxed=relaxed, detached=self.is_detached, in_place=self.is_in_place
        )

    @property
    def adjoint(self) -> nodes.Kernel:
        """The adjoint in IR.

        Raises:
            AutodiffError: and its kind, where the gradient can not be given exactly.
        """
        return self._reversed[0]

    @property
    def before(self) -> frozenset[Mem]:
        """The memories that the adjoint must find as they were before the launch."""
        return self._reversed[1]

    @property
    def plain(self) -> Specialization:
        """The kernel that this one is a variant of, as a tape records it."""
        return self

    @property
    def parts(self) -> tuple[Any, ...]:
        """What a variant of it is made from."""
        return (
            self.kernel,
            self.translation,
            self.ir,
            self.values,
            self.arrays,
            self.simplicity,
            self.key,
        )

    @property
    def flags(self) -> dict[str, Any]:
        return {"is_detached": self.is_detached, "is_in_place": self.is_in_place}

    @locked_cached_property
    def detached(self) -> Specialization:
        """The same kernel for launches that no gradient flows through."""
        return self if self.is_detached else self._variant(is_detached=True)

    @locked_cached_property
    def in_place(self) -> Specialization:
        """The same kernel for tapes that put back what it overwrites."""
        if self.is_in_place:
            return self
        made = self._variant(is_in_place=True, is_detached=self.is_detached)
        made.origin = self
        return made

    def _variant(self, *, is_detached: bool = False, is_in_place: bool = False) -> Specialization:
        made = Specialization(*self.parts, is_detached=is_detached, is_in_place=is_in_place)
        made.need(self.alive())
        if "compiled" in self.__dict__:
            made.__dict__["compiled"] = self.compiled
        return made

    @locked_cached_property
    def activity(self) -> Activity:
        return Activity(self.ir, frozenset() if self.is_detached else None)

    @locked_cached_property
    def returns_active(self) -> bool:
        """Whether derivatives flow through what the kernel returns."""
        return self.ir.result is not None and self.ir.result in self.activity.temps

    @locked_cached_property
    def read_after_leak(self) -> frozenset[Mem]:
        return read_after_leak(self.ir, self.activity)

    @locked_cached_property
    def gradient_writes(self) -> list[Store | Atomic]:
        """The statements that write something other than 0 to a gradient."""
        return [
            s
            for t in self.ir.tasks
            for s in task_statements(t)
            if isinstance(s, (Store, Atomic)) and s.mem.is_grad and not _is_zero(s.value)
        ]

    @locked_cached_property
    def adjoint_reads(self) -> list[RegionAccess]:
        """The loads of the adjoint: what must be as it was at the forward launch."""
        return _distinct(
            a
            for a in regions.reads(self.adjoint)
            if isinstance(a.stmt, Load) and a.stmt.origin is not a.stmt
        )

    @locked_cached_property
    def adjoint_written(self) -> list[RegionAccess]:
        return _distinct(regions.writes(self.adjoint))

    @locked_cached_property
    def adjoint_compiled(self) -> Executable:
        return self._compile(self.adjoint)

    @locked_cached_property
    def run_adjoint(self) -> Callable[..., None]:
        """The adjoint's launch function: (args, since, seed)."""
        return launch_function.backward(self)

    @locked_cached_property
    def captures_changed(self) -> Callable[[], bool]:
        return launch_function.captures_changed(self)

    def grad_launch(self, *args: Any, returned: Any = None) -> None:
        """`kernel.grad(...)`: the adjoint of a launch with these arguments (`launch_history.py` says which).

        A kernel that was never launched is taken as if it were launched now, if its adjoint needs nothing
        that the launch makes. `returned` is the gradient of what it returned.
        """
        name = self.kernel.source.name
        if session.tape is not None:
            raise AutodiffError(
                f"{name}.grad can not run while a tape is recording: the tape would "
                "add to the same gradients",
                Span.of_caller(),
                hint="call it before or after the tape",
            )
        if self.is_elsewhere():
            raise self._not_launched("since ds.init() chose another backend")
        if self.stale or self.captures_changed():
            raise self._not_launched("since a field that it uses was made anew")
        if self.activity.leaks:
            raise missing_gradient(self.activity.leaks[0])
        if returned is not None and not self.returns_active:
            raise AutodiffError(
                f"what {name} returns does not depend on anything with a gradient",
                Span.of_caller(),
                hint="leave out returned=",
            )
        seeds = (self.seeds(returned),) if self.returns_active else ()
        key = self._known_launches(args)
        since, count = (_FOREVER, 0) if key is None else self.launches.asked(key)
        seed = (
            0 if self.launches.last is None else self.launches.seeds.get(key, self.launches.last[1])
        )
        if count > 1 and self._adjoint_draws and since != self.launches.times[key][-1]:
            raise self._of_an_earlier_launch(
                count, "each launch draws random numbers of its own", None
            )
        self._check_cuts(args, since)
        clock = session.clock
        try:
            self.run_adjoint(args, since, seed, *seeds)
        except BaseException as error:
            if session.clock != clock:
                poison(error, lambda: self._adds_to(args), ZERO)
            elif count > 1 and isinstance(error, GlobalDataAccessError):
                raise self._of_an_earlier_launch(count, error.message, error.span) from None
            raise
        if key is not None:
            self.launches.answered(key, count)

    def _check_cuts(self, args: tuple[Any, ...], since: int) -> None:
        """The gradients to take must be of what the launch wrote; code in a given gradient is trusted."""
        if session.recomputed_from is None:
            for a in self.written:
                f = self.object_of(a.mem, args)
                if isinstance(f, Field):
                    check_gradient(f, since, self.kernel.source.name)

    def _adds_to(self, args: tuple[Any, ...]) -> Iterator[Field]:
        """The gradients that the adjoint writes in a launch with these arguments."""
        for a in self.adjoint_written:
            f = self.object_of(a.mem, args)
            if isinstance(f, Field) and f.is_grad:
                yield f

    def seeds(self, returned: Any) -> list[float]:
        """The gradient of what the kernel returns as a list of scalars."""
        name = self.kernel.source.name
        result = self.ir.result
        assert result is not None
        if returned is None:
            raise AutodiffError(
                f"{name} returns a value that depends on something with a gradient, and {name}.grad was "
                "not told its gradient",
                Span.of_caller(),
                hint=f"write {name}.grad(..., returned=1.0), or launch {name} on a tape",
            )
        found = array_of(returned)
        if found.shape != result.dtype.shape or found.dtype.kind not in "biuf":
            raise FieldError(
                f"{name} returns {an(result.dtype)}, and its gradient can not be {describe(returned)}",
                Span.of_caller(),
                hint="give it the shape of the value",
            )
        return [float(g) for g in found.ravel()]

    def is_elsewhere(self) -> bool:
        """Whether kernels run on another backend since, so that fields may not be where they were."""
        return self.backend.device is not session.device or self.moves != session.moves

    def _known_launches(self, args: tuple[Any, ...]) -> Any:
        """What the launches with these arguments are known by; None if a launch makes no difference."""
        launches = self.launches
        if launches.last is None:
            if self.kernel.launched_before:
                raise self._not_launched("since ds.init() was called or a field made anew")
            self._check_needs_no_launch(args)
            return None
        try:
            key = args if args in launches.times else self.launch_key(args)
        except TypeError:  # an argument that is no number
            key = self.launch_key(args)
        if key not in launches.times:
            raise self._not_launched("lately" if launches.forgot else "with these arguments")
        return key

    def _check_needs_no_launch(self, args: tuple[Any, ...]) -> None:
        """Raise an error if the adjoint needs what a launch with these arguments writes, or draws."""
        name = self.kernel.source.name
        hint = f"launch it first: {name}(...), then {name}.grad(...)"
        if self._adjoint_draws:
            raise AutodiffError(
                f"the gradient of {name} needs the random numbers of a launch, and {name} was never launched",
                self.kernel.source.head(),
                hint=hint,
            )
        for a in self.adjoint_reads:
            if any(self._meet(a, w, args) for w in self.written):
                assert isinstance(a.stmt, Load)
                raise GlobalDataAccessError(
                    f"the gradient of {name} needs {a.mem.name} as {name} leaves it, and {name} was never "
                    "launched\n  read here:",
                    a.stmt.origin.span,
                    hint=hint,
                )

    def _meet(self, one: RegionAccess, other: RegionAccess, args: tuple[Any, ...]) -> bool:
        """Whether two accesses may reach the same element in a launch with these arguments."""
        f = self.object_of(one.mem, args)
        if f is None or f is not self.object_of(other.mem, args):
            return False
        boxes = self.box(one, args), self.box(other, args)
        rows = [box[1] for box in boxes if box is not None]
        return None in rows or len(set(rows)) <= 1

    @locked_cached_property
    def _adjoint_draws(self) -> bool:
        """Whether the adjoint needs the random numbers of its launch."""
        return self.translation.uses_random and any(
            isinstance(v, RngKey)
            for t in self.adjoint.tasks
            for s in task_statements(t)
            for v in uses(s)
        )

    def _of_an_earlier_launch(self, count: int, why: str, span: Span | None) -> AutodiffError:
        name = self.kernel.source.name
        return GlobalDataAccessError(
            f"{name}.grad was called {count} times since {name} was launched last, so this call may belong "
            f"to an earlier launch: {why}",
            span or self.kernel.source.head(),
            hint=f"run {name}(...) again before this call; or record the launches: ds.Tape(loss) "
            "differentiates several, and tape.backward(grads={y: seed}) one as often as wanted",
        )

    def _not_launched(self, when: str) -> AutodiffError:
        name = self.kernel.source.name
        return AutodiffError(
            f"{name}.grad belongs to a launch of {name}, and {name} was not launched {when}",
            Span.of_caller(),
            hint=f"run {name}(...) with the same arguments first",
        )

    def stale_value(self, k: int, args: tuple[Any, ...], since: int) -> None:
        """Raise the error for a value that changed between the forward launch and its adjoint.

        In a gradient that the user wrote (`ds.ad.grad_for`) what it computes again is taken for right.
        """
        a = self.adjoint_reads[k]
        f: Field = self.object_of(a.mem, args)
        named = dict(zip((p.name for p in self.values), args, strict=True))
        row = launch_function.row_number(a, f.versions.axis, named)
        start = session.recomputed_from
        if start is not None and f.versions.made_again(row, since, start):
            return
        who, place = f.versions.written_by(row)
        shown = "" if place is None else "\n" + place.text()
        assert isinstance(a.stmt, Load)
        raise GlobalDataAccessError(
            f"the gradient of {self.kernel.source.name} needs {a.mem.name} as it was when the kernel "
            f"ran, and {who} has changed it since{shown}\n  read here:",
            a.stmt.origin.span,
            hint="give each step its own elements (x[t + 1, i] = f(x[t, i])), or let the tape keep what "
            'was there: ds.Tape(loss, in_place="save")',
        )


def _distinct(accesses: Iterable[RegionAccess]) -> list[RegionAccess]:
    """One access, the first, for each part of each memory."""
    found: dict[tuple[Mem, regions.Part], RegionAccess] = {}
    for a in accesses:
        found.setdefault((a.mem, a.part), a)
    return list(found.values())


def _is_zero(value: nodes.Value) -> bool:
    return isinstance(value, Const) and not np.any(value.value)


def _drop(special: weakref.ref[Specialization], _: weakref.ref[Any]) -> None:
    """A field that a kernel was compiled for is gone."""
    found = special()
    if found is not None:
        found.stale = True
        found.kernel.drop(found)
