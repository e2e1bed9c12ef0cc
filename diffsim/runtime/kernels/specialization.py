"""One kernel compiled for one combination of compiled-in arguments.

A `Specialization` is what a launch needs: IR, captures, code, launch function. It leads to its launches so
far (`launch_history.py`), what it reads and writes (`access_summary.py`), its derivative (`derivative.py`)
and variants with additional checks (`instrumentation.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import KernelStateError
from diffsim.ir import nodes
from diffsim.ir.nodes import Arg, Mem
from diffsim.ir.types import TensorType, derivative_type, size_of
from diffsim.lang.frontend.translate import Translation
from diffsim.lang.host.observations import identities
from diffsim.lang.types.matrix import Matrix
from diffsim.passes.analysis.dependence import Access
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.passes.forms.args_from_fields import load_args_from_fields
from diffsim.runtime import compiler
from diffsim.runtime.executable import Executable
from diffsim.runtime.fields.adjoints import is_lent, make_dual
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels import captures, launch_function
from diffsim.runtime.kernels.access_summary import AccessSummary, Box, LaunchArguments
from diffsim.runtime.kernels.derivative import (
    AdjointWithTangents,
    Derivative,
    Direction,
    Mode,
    dual_memories,
)
from diffsim.runtime.kernels.gradient_call import GradientCall
from diffsim.runtime.kernels.instrumentation import (
    Instrumentation,
    compiled,
    finite_watch,
    option_checks,
)
from diffsim.runtime.kernels.launch_checks import accessed_elements
from diffsim.runtime.kernels.launch_history import LaunchHistory
from diffsim.runtime.locked_cached_property import locked_cached_property, making
from diffsim.runtime.observe.nonfinite import FiniteWatch, Part
from diffsim.runtime.observe.profiler import FORWARD, TANGENT, compiling
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.kernel_template import KernelTemplate


class Specialization:
    """One compiled kernel.

    Attributes:
        kernel: the user's kernel.
        key: the compiled-in arguments that it is for.
        translation: the frontend's result, with what it captured.
        ir: the prepared IR.
        arguments: what a launch passes.
        simplicity: "strict" or "relaxed".
        mode: how its derivative is made.
        instrumentation: a change of the IR before it is compiled; None: none.
        origin: the specialization that it is a variant of; itself if it is none.
        duals: the memories that hold tangents, in a kernel that computes some.
        launches: when it was launched; variants share it.
        dependencies: the objects without which it is stale; variants share them.
        accesses: what a launch reads and writes.
        backend: what it is compiled for.
        variants: what others have made of it, by a key of theirs.
        part_of: the kernel of which it is one task, and the task's number; None: it is a whole kernel.
        kept: fields that each launch fills for its own adjoint (`ad/record/kept_conditions.py`).
        loads_arguments: whether it takes arguments from fields of a tape (`with_arguments_from`).
    """

    def __init__(
        self,
        kernel: KernelTemplate,
        key: tuple[object, ...],
        translation: Translation,
        ir: nodes.Kernel,
        arguments: LaunchArguments,
        simplicity: str,
        *,
        mode: Mode | None = None,
        instrumentation: Instrumentation | None = None,
        origin: Specialization | None = None,
    ) -> None:
        self.kernel = kernel
        self.name = kernel.source.name
        self.key = key
        # Kept, as code is made at the first launch, before which `ds.init` may choose another backend.
        self.backend = session.backend
        self.moves = session.moves
        self.translation = translation
        self.ir = ir
        self.arguments = arguments
        self.simplicity = simplicity
        self.mode = mode or Mode()
        self.instrumentation = instrumentation
        self.variants: dict[Any, Any] = {}
        self.part_of: tuple[Specialization, int] | None = None
        self.loads_arguments = False
        self.kept: tuple[Field, ...] = ()
        self.duals: frozenset[Mem] = frozenset()
        self.origin = origin or self
        # A variant shares what belongs to the launches rather than to the code: a launch of either is one
        # launch of the kernel, and a field that is gone makes both useless.
        self.dependencies: Dependencies
        if origin is None:
            self.launches = LaunchHistory()
            session.specializations.add(self)
            self.dependencies = Dependencies(self)
            self.dependencies.add(self.fields())
            # Objects that were compared by identity: another one may get their address once they are gone.
            for o in translation.observations:
                self.dependencies.add(o.objects)
        else:
            self.launches, self.dependencies = origin.launches, origin.dependencies
        self.accesses = AccessSummary.of_kernel(ir, arguments)
        # Compared with a new count in the backward pass: an adjoint made before a field got its gradient
        # would leave that gradient at 0 (`ad/checks/integrity.py`).
        self.gradients = self.count_gradients()
        self.differentiable = any(m.grad is not None for m in ir.mems)
        # Adjoints lent to fields go with the session.
        self.lifted_in = session.generation if session.options.lifts_rules else None
        # A kernel without gradients is recorded if it writes: it may overwrite what another adjoint loads
        # again, or a float that leads to the loss.
        self.on_tape = self.differentiable or bool(self.accesses.writes) or self.returns_float

    @locked_cached_property
    def returns_float(self) -> bool:
        """Return whether its result is a float that may depend on floats in memory, which a tape follows."""
        result = self.ir.result
        reads = self.accesses.reads
        # Integers and booleans have no derivative.
        return (
            result is not None
            and result.dtype.is_float
            and any(a.mem.dtype.is_float for a in reads)
        )

    def count_gradients(self) -> int:
        """Return how many memories have a gradient of their own (more than `gradients` if some came late)."""
        # Lent ones do not count: launches before that know that the field held constants then.
        return sum(m.grad is not None and not _borrows(m) for m in self.ir.mems)

    def fields(self) -> list[Field]:
        """Return the fields that the kernel captured."""
        return [m.handle() for m in self.ir.mems if m.kind == "field"]

    @property
    def direction(self) -> str:
        """The direction of a launch, as tables of times name it."""
        return FORWARD

    def object_of(self, mem: Mem, args: tuple[object, ...]) -> Any:
        """Return the field or array behind a memory in a launch with these arguments; None for others."""
        return self.arguments.object_of(mem, args)

    def accessed_elements(
        self, args: tuple[object, ...], sites: Sequence[Access], since: int | None
    ) -> np.ndarray | None:
        """Return the elements that statements of a launch access; see `launch_checks.py`."""
        return accessed_elements(self, args, sites, since)

    def box(self, a: RegionAccess, args: tuple[object, ...]) -> Box | None:
        """Return the field and row that an access, of the kernel or its derivative, reaches in a launch."""
        return self.accesses.box(a, args)

    @locked_cached_property
    def identity(self) -> tuple[Any, ...]:
        """Key identifying this specialization."""
        # Numbers are never given twice, unlike addresses, so that the key of a freed field matches nothing.
        numbers = [f.number for f in self.fields()]
        objects = [i for o in self.translation.observations for i in identities(o.kept)]
        return id(self.kernel), self.key, *numbers, *objects

    # ---- variants

    def variant(
        self, *, mode: Mode | None = None, instrumentation: Instrumentation | None = None
    ) -> Specialization:
        """Return the same kernel, differentiated in another mode or compiled from a changed IR."""
        return Specialization(
            self.kernel,
            self.key,
            self.translation,
            self.ir,
            self.arguments,
            self.simplicity,
            mode=mode,
            instrumentation=instrumentation,
            origin=self,
        )

    @locked_cached_property
    def detached(self) -> Specialization:
        """The same kernel for launches that no gradient flows through."""
        # Idempotent, so that a caller need not ask first.
        if self.mode.is_detached:
            return self
        return self.variant(mode=Mode(is_detached=True))

    @locked_cached_property
    def in_place(self) -> Specialization:
        """The same kernel for tapes that restore what it overwrites."""
        if self.mode.is_in_place:
            return self
        return self.variant(mode=dataclasses.replace(self.mode, is_in_place=True))

    @property
    def may_be_split(self) -> bool:
        """Whether a tape may launch its tasks as kernels of their own."""
        # Each launch draws numbers of its own, so the tasks would draw others than the kernel.
        random = self.translation.uses_random
        return len(self.ir.tasks) > 1 and self.ir.result is None and not random

    def part(self, k: int, ir: nodes.Kernel) -> Specialization:
        """Return one of its tasks as a kernel of its own, for tapes that restore what it overwrites."""
        made = Specialization(
            self.kernel,
            (*self.key, k),
            self.translation,
            ir,
            self.arguments,
            self.simplicity,
            mode=dataclasses.replace(self.mode, is_in_place=True),
        )
        made.part_of = self, k
        return made

    def with_arguments_from(self, fields: Mapping[Arg, Mem]) -> Specialization:
        """Return the same kernel, which loads some of its arguments from 0-D fields.

        Launches pass these arguments all the same. It has a launch history of its own.
        """
        ir = load_args_from_fields(self.ir, fields).replace(args=self.ir.args)
        made = Specialization(
            self.kernel,
            (*self.key, *(arg.hint for arg in fields)),
            self.translation,
            ir,
            self.arguments,
            self.simplicity,
            mode=self.mode,
        )
        made.loads_arguments = True
        return made

    @property
    def recorded_as(self) -> Specialization:
        """The specialization that a tape records a launch of this one as.

        An instrumented variant computes the same, and the derivative of the origin is that of both.
        """
        return self if self.instrumentation is None else self.origin

    @property
    def returns_active(self) -> bool:
        """Whether a recorder gives the program a value that it follows, in place of what is returned."""
        return self.derivative.returns_active

    @property
    def looks_at_captures(self) -> bool:
        """Whether a launch asks whether captured values are what they were."""
        return True

    @property
    def is_announced(self) -> bool:
        """Whether a launch is announced to a recorder that intercepts launches.

        An instrumented variant is not: the recorder itself has put it in place of the kernel.
        """
        return self.instrumentation is None

    @property
    def only_neighbours_hear(self) -> bool:
        """Whether its launches are reported to the tapes of other threads alone."""
        return False

    # ---- code

    @locked_cached_property
    def executable(self) -> Executable:
        """Its machine code; a variant for another mode differs in its derivative alone."""
        # Detached and in-place variants have their primal code in common with the origin.
        if self.ir is self.origin.ir and self.origin is not self and self.instrumentation is None:
            return self.origin.executable
        how = self.instrumentation or option_checks(self.ir, self.watch)
        with compiling(self.name, self.direction):
            return compiled(self.ir, self.backend, how)

    @locked_cached_property
    def watch(self) -> FiniteWatch | None:
        """The search for NaN and infinities after each launch; None: there is none."""
        if self.instrumentation is not None:
            return None
        if self.ir is self.origin.ir and self.origin is not self:
            return self.origin.watch
        return finite_watch(self.arguments.call_text, self.ir, self.backend, self.written_parts)

    def written_parts(self, args: tuple[Any, ...]) -> list[tuple[Mem, Part]]:
        """Return the memories that a launch writes, and the fields and arrays that they are in it."""
        return self.accesses.written_parts(args)

    @locked_cached_property
    def launch(self) -> Callable[..., Any]:
        """The launch function (`launch_function.py`)."""
        return launch_function.forward(self)

    def launch_again(self, *args: object) -> object:
        """Launch the kernel again, as recorded.

        Raises:
            KernelStateError: a captured name stands for another object now.
        """
        try:
            # A replay cannot compile anew: its record is of the specialization as it was.
            return self.launch(*args)
        except launch_function.Outdated:
            raise KernelStateError(
                f"{self.name} cannot be launched again: something that it uses was made anew since",
                self.kernel.source.head(),
                hint="run the program again from its start",
            ) from None

    @property
    def returned(self) -> Callable[[], Any]:
        """A function that returns what the last launch returned."""
        found = self.executable.returned
        if not isinstance(self.kernel.signature.result, TensorType):
            return found
        return lambda: self.as_declared(found())

    def as_declared(self, found: Any) -> Any:
        """Return what the kernel returned, as scalars, in the type that it declares."""
        wanted = self.kernel.signature.result
        # The executable returns scalars; only the frontend's type tells a matrix from a list.
        if isinstance(wanted, TensorType):
            return Matrix(np.array(found).reshape(wanted.shape), wanted.scalar)
        return found

    def cut_short(self) -> None:
        """Report a launch that began to write and failed, and so has no entry."""
        tape = session.listener
        if tape is not None:
            tape.cut_short(self.name, self.kernel.source.head())

    # ---- whether it still holds

    @property
    def is_stale(self) -> bool:
        """Whether something that it was compiled for is gone."""
        return self.dependencies.is_stale

    def is_elsewhere(self) -> bool:
        """Return whether kernels run on another backend since, so that fields may not be where they were."""
        return self.backend.device is not session.device or self.moves != session.moves

    @locked_cached_property
    def captures_changed(self) -> Callable[[], bool]:
        """A function that tells whether an observed value has changed."""
        return launch_function.captures_changed(self)

    def recheck(self) -> bool:
        """Compare the captured values; return whether the kernel must be compiled anew."""
        # Not raised from here: the launch function compiles anew.
        if captures.recheck(self):
            self.dependencies.is_stale = True
        return self.is_stale

    def forget_launch(self) -> None:
        """Write the launch function anew at the next launch."""
        # The function may not have been written yet.
        with contextlib.suppress(AttributeError):
            del self.launch
        self.kernel.forget_launch()

    # ---- derivative

    @locked_cached_property
    def derivative(self) -> Derivative:
        """Its derivative in its own mode."""
        return Derivative(self, self.mode)

    @locked_cached_property
    def gradient_call(self) -> GradientCall:
        """`kernel.grad(...)` for its launches."""
        return GradientCall(self)

    def with_tangents(self, args: tuple[Any, ...], mode: Mode, *, lent: bool) -> WithTangents:
        """Return the kernel with tangents, for the duals that the fields of this launch have now.

        Args:
            args: those of the launch.
            mode: forward mode, of some width; detached: all that the kernel stores is constant.
            lent: whether duals count that the program did not declare.

        Raises:
            AutodiffError: and its kind, where something has no tangent.
        """
        second = mode.direction is Direction.SECOND
        duals = {}
        for m in self.ir.mems:
            f = self.object_of(m, args)
            if isinstance(f, Field) and mode.width in f.duals and (lent or f.declares_dual):
                duals[m] = f.duals[mode.width]
            if second and isinstance(f, Field) and m.grad is not None and f.adjoint is not None:
                dual = make_dual(f.adjoint, mode.width)
                if dual is not None:
                    duals[m.grad] = dual
        # Arrays are other ones at each launch, and a variant is for all that have a dual.
        key = mode, *((m, None if m.kind == "array" else f.number) for m, f in duals.items())
        variants = self.origin.variants
        if key not in variants:
            with making:
                if key not in variants:
                    made = WithSecondDerivative if second else WithTangents
                    variants[key] = made(self.origin, duals, mode)
        found: WithTangents = variants[key]
        return found


class WithTangents(Specialization):
    """A kernel that computes tangents besides: forward mode launches it in place of the kernel.

    Attributes:
        leaks: stores of values with a tangent to memories without a dual.
        dual_of: the memories of duals, by those that they are the duals of.
    """

    def __init__(self, origin: Specialization, duals: dict[Mem, Field], mode: Mode) -> None:
        arrays = {
            m: Mem(
                f"{m.name}.dual",
                derivative_type(m.dtype),
                len(f.shape),
                None,
                "array",
                in_blocks=mode.width > 1,
            )
            for m, f in duals.items()
            if m.kind == "array"
        }
        self.dual_of = {m: arrays.get(m, f._mem) for m, f in duals.items()}
        with dual_memories(self.dual_of):
            made = compiler.with_tangents(origin.ir, width=mode.width, detached=mode.is_detached)
        super().__init__(
            origin.kernel,
            origin.key,
            origin.translation,
            made.ir,
            origin.arguments.with_duals(arrays, mode.width),
            origin.simplicity,
            mode=mode,
            origin=origin,
        )
        self.duals = frozenset(self.dual_of.values())
        self.leaks = made.leaks
        self._returns_active = made.returns_active

    @property
    def recorded_as(self) -> Specialization:
        return self.origin

    @property
    def is_announced(self) -> bool:
        return False

    @property
    def only_neighbours_hear(self) -> bool:
        return bool(self.duals)

    @property
    def direction(self) -> str:
        return TANGENT

    @property
    def looks_at_captures(self) -> bool:
        # The kernel that it is launched in place of has just looked.
        return False

    @property
    def returns_active(self) -> bool:
        return self._returns_active

    @property
    def returned(self) -> Callable[[], Any]:
        """As in `Specialization`; with its tangents, if it has some: an array, one each."""
        return self._value_and_tangents if self.returns_active else super().returned

    def _value_and_tangents(self) -> Any:
        found = self.executable.returned()
        wanted = self.kernel.signature.result
        assert wanted is not None
        n = size_of(wanted)
        value = self.as_declared(found[:n] if wanted.shape else found[0])
        return value, np.array(found[n:], np.float64).reshape(self.mode.width, *wanted.shape)


class WithSecondDerivative(WithTangents):
    """A kernel that computes tangents, and whose derivative computes those of the gradients.

    Tapes record its launches as those of any kernel, and save what duals held with what their fields held.
    """

    @property
    def recorded_as(self) -> Specialization:
        return self

    @property
    def only_neighbours_hear(self) -> bool:
        return False

    @locked_cached_property
    def derivative(self) -> Derivative:
        return AdjointWithTangents(self, self.mode)

    @property
    def detached(self) -> Specialization:
        """Itself: who launches it in code that no gradient flows through has asked for that variant."""
        return self


def _borrows(mem: Mem) -> bool:
    """Whether the gradient of a captured field is lent."""
    return mem.kind == "field" and is_lent(mem.handle())


class Dependencies:
    """The objects that a specialization was compiled for; without one of them it is stale.

    They are referenced weakly: a compiled kernel keeps no field alive.

    Attributes:
        is_stale: whether one of them is gone, or a captured name stands for another object now.
    """

    def __init__(self, specialization: Specialization) -> None:
        self.is_stale = False
        self._things: list[weakref.ref[Any]] = []
        self._specialization = weakref.ref(specialization)

    def add(self, things: Iterable[Any]) -> None:
        """Depend on these fields (or other objects)."""
        # A bound method would keep the specialization alive through each of its fields.
        gone = functools.partial(_drop, weakref.ref(self))
        self._things += [weakref.ref(t, gone) for t in things]

    def alive(self) -> list[Any]:
        """Return these objects; who keeps the specialization in use holds on to them."""
        # Those that are collected during the loop are skipped.
        return [found for t in self._things if (found := t()) is not None]

    def drop(self) -> None:
        """Remove the specialization from the kernel."""
        # First, as a launch in another thread may already have it in hand.
        self.is_stale = True
        specialization = self._specialization()
        if specialization is not None:
            specialization.kernel.drop(specialization)


def _drop(dependencies: weakref.ref[Dependencies], _: weakref.ref[Any]) -> None:
    # A callback of a weak reference: it runs when the object dies, at any time and in any thread.
    found = dependencies()
    if found is not None:
        found.drop()
