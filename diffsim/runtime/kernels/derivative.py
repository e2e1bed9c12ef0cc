"""The derivative of a specialization: another kernel, made when it is first asked for.

In reverse mode it runs after the kernel, and `Derivative` has what that takes. In forward mode it runs in the
kernel's place: it is a variant of the specialization (`specialization.WithTangents`). For second derivatives
that variant has a derivative: the adjoint with its tangents (`AdjointWithTangents`, docs/adr/0046).
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import (
    KEEP,
    AutodiffError,
    GlobalDataAccessError,
    MissingGradientError,
    together,
)
from diffsim.ir import nodes
from diffsim.ir.nodes import Atomic, CustomCall, Load, Mem, RngKey, Store
from diffsim.ir.traversal import task_statements, uses
from diffsim.passes.analysis import regions
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.passes.autodiff.activity import Activity, read_after_leak
from diffsim.passes.autodiff.reverse import Adjoint
from diffsim.passes.autodiff.split_tasks import with_advice
from diffsim.passes.kept.stored_values import Loading
from diffsim.runtime import compiler
from diffsim.runtime.executable import Executable, same_error
from diffsim.runtime.fields.adjoints import is_lent, make_dual
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels import launch_function
from diffsim.runtime.kernels.access_summary import AccessSummary
from diffsim.runtime.kernels.instrumentation import Instrumentation, compiled, finite_watch
from diffsim.runtime.kernels.launch_checks import LaunchChecks
from diffsim.runtime.locked_cached_property import locked_cached_property
from diffsim.runtime.observe.nonfinite import FiniteWatch, Part
from diffsim.runtime.observe.profiler import ADJOINT, compiling
from diffsim.runtime.session import session
from diffsim.runtime.variable_names import name_in_launch

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization, WithTangents


class Direction(enum.Enum):
    """Which way derivatives flow through a kernel."""

    REVERSE = "reverse"
    FORWARD = "forward"
    SECOND = "forward over reverse"


@dataclass(frozen=True, slots=True)
class Mode:
    """How a kernel is differentiated.

    Attributes:
        direction: which way derivatives flow.
        is_detached: whether what the kernel stores is constant (`ds.ad.no_grad`): its adjoint only clears
            the gradients of what was overwritten.
        is_in_place: whether the tape restores, before the adjoint runs, what the kernel overwrote.
        width: how many tangents are computed at once.
    """

    direction: Direction = Direction.REVERSE
    is_detached: bool = False
    is_in_place: bool = False
    width: int = 1


def missing_dual(s: Store | Atomic, what: str = "") -> MissingGradientError:
    """Return the error for a store of a value with a tangent to memory without a dual.

    Args:
        s: the store.
        what: what the memory is in this launch, if not a field of the program.
    """
    name = s.mem.name
    return MissingGradientError(
        f"{name} is given a value with a tangent, and {what or f'{name} has no dual'}: the chain of "
        "derivatives would break here silently",
        s.span,
        hint=f"pass a ds.ndarray as {name}"
        if what
        else f"declare {name} with needs_dual=True; in ds.ad.FwdMode it is lent a dual",
    )


@contextlib.contextmanager
def dual_memories(duals: Mapping[Mem, Mem]) -> Iterator[None]:
    """Let memories have these duals: which ones have is a question of the launch, not of the kernel."""
    try:
        for m, dual in duals.items():
            m.dual = dual
        yield
    finally:
        for m in duals:
            m.dual = None


class Derivative:
    """The derivative of one specialization in one mode.

    Everything but the accessors of `specialization`, `mode` and `instrumentation` is computed at its first
    use: most kernels are never differentiated.

    Attributes:
        specialization: the kernel that is differentiated.
        mode: how.
        instrumentation: a change of the derivative's IR before it is compiled; None: none.
        variants: instrumented variants of it, by the key of whoever made them.
    """

    def __init__(
        self,
        specialization: Specialization,
        mode: Mode,
        instrumentation: Instrumentation | None = None,
        origin: Derivative | None = None,
    ) -> None:
        self.specialization = specialization
        self.mode = mode
        self.instrumentation = instrumentation
        # So that each is made once, and freed with the derivative (`ad/reverse/retain_grad.py`).
        self.variants: dict[Any, Any] = {}
        self._origin = origin
        # Strong references, the only ones: the IR refers to fields weakly.
        self._versions: dict[tuple[Mem, int, bool], Field] = {}

    def instrumented(self, instrumentation: Instrumentation) -> Derivative:
        """Make the same derivative, to be compiled from a changed IR."""
        return Derivative(self.specialization, self.mode, instrumentation, self)

    @property
    def primal(self) -> nodes.Kernel:
        """The kernel's own IR."""
        return self.specialization.ir

    # ---- analysis

    @locked_cached_property
    def activity(self) -> Activity:
        """Which values and memories derivatives flow through."""
        # An instrumented derivative differs only in the IR that is compiled; analyses and IR are the
        # origin's.
        if self._origin is not None:
            return self._origin.activity
        # Detached: nothing is active, so that the adjoint only clears the gradients of overwritten elements.
        return Activity(self.primal, frozenset() if self.mode.is_detached else None)

    @locked_cached_property
    def returns_active(self) -> bool:
        """Whether derivatives flow through what the kernel returns."""
        ir = self.primal
        return ir.result is not None and ir.result in self.activity.temps

    def unreachable_stores(self, args: tuple[Any, ...]) -> Iterator[Store | Atomic]:
        """Yield the stores of active values whose gradient the program itself cannot set or read."""
        yield from self.activity.leaks
        for s in self._active_stores:
            f = self.specialization.object_of(s.mem, args)
            if isinstance(f, Field) and is_lent(f):
                yield s

    @locked_cached_property
    def _active_stores(self) -> list[Store | Atomic]:
        """The first store of an active value to each memory with a gradient."""
        # Collected once: `kernel.grad` asks at each call.
        found: dict[Mem, Store | Atomic] = {}
        for t in self.primal.tasks:
            for s in task_statements(t):
                if isinstance(s, (Store, Atomic)) and s.value in self.activity.values:
                    found.setdefault(s.mem, s)
        return [s for mem, s in found.items() if mem.grad is not None]

    @locked_cached_property
    def read_after_leak(self) -> frozenset[Mem]:
        """Memories without gradient that the kernel reads after it has stored active values there."""
        return read_after_leak(self.primal, self.activity)

    # ---- IR

    @locked_cached_property
    def _differentiated(self) -> Adjoint:
        if self._origin is not None:
            return self._origin._differentiated
        # Made only here: an adjoint costs more to make than the kernel itself.
        special = self.specialization
        try:
            return self._made(strict=special.simplicity == "strict", in_place=self.mode.is_in_place)
        except AutodiffError as error:
            raise with_advice(
                error,
                self.primal,
                may_split=special.may_be_split,
                switch=not session.options.lifts_rules,
            ) from None

    def _made(self, *, strict: bool, in_place: bool) -> Adjoint:
        made = compiler.differentiate(
            self.primal,
            strict=strict,
            detached=self.mode.is_detached,
            in_place=in_place,
            new_version=self._new_version,
            again=self.mode.direction is Direction.SECOND,
        )
        # Forms that came to nothing have left theirs.
        self._versions = {k: f for k, f in self._versions.items() if f._mem in made.versions}
        return made

    @locked_cached_property
    def refusal(self) -> AutodiffError | None:
        """Why it cannot be made; None: it can."""
        try:
            self.ir  # noqa: B018 - made now
        except AutodiffError as error:
            return error
        return None

    def has_versions(self, mem: Mem) -> bool:
        """Return whether it computes states of a field again, whose gradients are not in the field's."""
        if self._origin is not None:
            return self._origin.has_versions(mem)
        used = self._differentiated.versions
        return any(
            m is mem and with_grad and f._mem in used
            for (m, _, with_grad), f in self._versions.items()
        )

    @property
    def version_bytes(self) -> int:
        """The size of the memories of its own (docs/adr/0031); 0 if it cannot be made."""
        if self.refusal is not None:
            return 0
        versions = [m.handle() for m in self._differentiated.versions]
        return sum(f.storage.layout.nbytes for f in versions)

    @property
    def is_for_every_launch(self) -> bool:
        """Whether no launch has to find apart what a tape that saves keeps in one state only."""
        checks = self.checks
        return checks is None or not any(c.on_saving_tape for c in checks.conditions)

    def _new_version(self, mem: Mem, number: int, *, with_grad: bool = True) -> Mem:
        """Allocate a memory like a field's, which holds values while the derivative runs."""
        made = self._versions.get((mem, number, with_grad))
        if made is None:
            f: Field = mem.handle()
            made = self._versions[mem, number, with_grad] = Field(
                f.dtype, f.element, name=mem.name, soa=f.soa, is_grad=f.is_grad
            )
            if with_grad and mem.grad is not None:
                made.add_grad()
            made.place(f.shape, f._order)
            # No gradient of the user's, so no tape has to clear it.
            session.with_grad.discard(made)
        return made._mem

    @property
    def ir(self) -> nodes.Kernel:
        """The derivative in IR, without instrumentation.

        Raises:
            AutodiffError: and its kind, where the gradient cannot be given exactly.
        """
        return self._differentiated.ir

    @property
    def restored(self) -> frozenset[Mem]:
        """The memories that it must find as they were before the launch."""
        return self._differentiated.restored

    @locked_cached_property
    def checks(self) -> LaunchChecks | None:
        """The checks of each launch before its adjoint runs; None: none."""
        if self._origin is not None:
            return self._origin.checks
        made = self._differentiated
        return LaunchChecks(self.specialization, made) if made.conditions else None

    @locked_cached_property
    def checks_if_lifted(self) -> LaunchChecks | None:
        """The checks of a launch if no rule refused the derivative."""
        refusal = self.refusal
        if refusal is None:
            return self.checks
        try:
            made = self._made(strict=False, in_place=True)
        except AutodiffError:
            return None  # with what it lacks beside the rules
        return LaunchChecks(self.specialization, made) if made.conditions else None

    @locked_cached_property
    def accesses(self) -> AccessSummary:
        """Its reads of the forward launch's values, and its writes."""
        # What the checks load must be as it was at the launch, too.
        more = () if self.checks is None else self.checks.reads
        return AccessSummary.of_derivative(
            self.ir, self.specialization.arguments, more, self._differentiated.versions
        )

    @locked_cached_property
    def cotangents(self) -> list[Mem] | None:
        """The gradients that it is linear in: where they are 0 it adds zeros.

        None: it may do something else then, by an adjoint of the user's, or to the tangents of gradients.
        """
        if self.mode.direction is not Direction.REVERSE:
            return None
        for t in self.primal.tasks:
            for s in task_statements(t):
                if isinstance(s, CustomCall) and s.is_given and not s.is_linear:
                    return None
        stored = dict.fromkeys(a.mem.grad for a in regions.writes(self.primal))
        found = [g for g in stored if g is not None]
        gradients = {m.grad for m in self.primal.mems if m.grad is not None}
        loaded = {a.mem for a in regions.reads(self.ir)} & gradients
        written = {a.mem for a in self.accesses.writes}
        return found if loaded <= set(found) and written <= gradients else None

    @locked_cached_property
    def draws_random(self) -> bool:
        """Whether it needs the random numbers of its launch."""
        # The forward kernel may draw numbers whose values no derivative needs.
        return self.specialization.translation.uses_random and any(
            isinstance(v, RngKey)
            for t in self.ir.tasks
            for s in task_statements(t)
            for v in uses(s)
        )

    # ---- code

    def seeds(self, g: np.ndarray) -> list[float]:
        """Return the cotangent of what the kernel returned as its launch takes it."""
        found: list[float] = g.ravel().tolist()
        return found

    @locked_cached_property
    def executable(self) -> Executable:
        """Its machine code."""
        how = self.instrumentation
        if how is None and self.watch is not None:
            how = Instrumentation(self.watch.transform, same_error)
        with compiling(self.specialization.name, ADJOINT):
            return compiled(self.ir, self.specialization.backend, how)

    @locked_cached_property
    def watch(self) -> FiniteWatch | None:
        """The search for NaN and infinities after each launch; None: there is none."""
        if self.instrumentation is not None:
            return None
        special = self.specialization
        text = special.arguments.call_text
        return finite_watch(text, self.ir, special.backend, self.written_parts, adjoint=True)

    def written_parts(self, args: tuple[Any, ...]) -> list[tuple[Mem, Part]]:
        """Return the memories that it writes, and the fields and arrays that they are in a launch."""
        return self.accesses.written_parts(args)

    @locked_cached_property
    def launch(self) -> Callable[..., None]:
        """Its launch function: (args, since, seed), or (args, since, seed, cotangent)."""
        return self.computing if self.loading is None else self.loading.launch

    @locked_cached_property
    def computing(self) -> Callable[..., None]:
        """The launch function of the one that computes again all that it needs."""
        return launch_function.derivative(self)

    def compute(self, *given: Any) -> None:
        """Launch the one that computes again all that it needs."""
        self.computing(*given)

    def forget_launch(self) -> None:
        """Write the launch functions anew at the next launch."""
        for name in ("launch", "computing"):
            with contextlib.suppress(AttributeError):  # it may not have been written yet
                delattr(self, name)
        loading = vars(self).get("loading")
        if loading is not None:
            loading.forget_launch()

    @locked_cached_property
    def loading(self) -> LoadingDerivative | None:
        """The same, with loads of what the launch has stored; None: there is nothing to gain.

        Variants that look at what is computed have none.
        """
        plain = self._origin is None and self.instrumentation is None and self.watch is None
        if not plain or self.specialization.backend.name == "python":
            return None
        found = self._differentiated.loading
        made = None if found is None else LoadingDerivative(self, found)
        # Each of them is asked for: one that is not known would be loaded unasked.
        return made if made is not None and made.knows_stores else None

    @property
    def stored(self) -> list[RegionAccess]:
        """The stores of the launch whose values it loads."""
        return []

    @property
    def usual(self) -> Derivative:
        """The one that most launches run."""
        return self.loading or self

    def refuse_stale(self, k: int, args: tuple[object, ...], since: int) -> None:
        """Raise the error for read number `k`, of a value that changed since the forward launch.

        In a gradient that the user wrote (`ds.ad.grad_for`) what it computes again is taken for right.
        """
        special = self.specialization
        a = self.accesses.reads[k]
        box = special.box(a, args)
        assert box is not None
        f, row = box
        # What a gradient written by the user has itself recomputed since its start holds the right values
        # again, though it was written after the launch.
        start = session.recomputed_from
        if start is not None and f.versions.rewritten(row, since, start):
            return
        raise together(list(self.stale_reads(args, since)))

    def is_stale(self, args: tuple[object, ...], since: int) -> bool:
        """Return whether something that it loads was written after a reading of the clock."""
        boxes = (self.specialization.box(a, args) for a in self.accesses.read_parts)
        return any(box is not None and box[0].versions.changed(box[1], since) for box in boxes)

    def stale_reads(self, args: tuple[object, ...], since: int) -> Iterator[GlobalDataAccessError]:
        """Yield an error for each value that changed since the forward launch."""
        special = self.specialization
        for a in self.accesses.reads:
            box = special.box(a, args)
            if box is not None and box[0].versions.changed(box[1], since):
                yield self._stale_read(a, *box)

    def _stale_read(self, a: RegionAccess, f: Field, row: int | None) -> GlobalDataAccessError:
        # The writer's line as well as the reader's: the user needs both to find the mistake.
        who, place = f.versions.written_by(row)
        shown = "" if place is None else "\n" + place.text()
        assert isinstance(a.stmt, Load)
        if a.mem.level is not None:
            return GlobalDataAccessError(
                f"the gradient of {self.specialization.name} needs the cells that were active when it ran "
                f"as they were, and {who} has changed them since{shown}\n  read here:",
                a.stmt.origin.span,
                hint="activate all cells before the block of the tape: run the steps once without it",
            )
        error = GlobalDataAccessError(
            f"the gradient of {self.specialization.name} needs {name_in_launch(a.mem, f)} as it was when the "
            f"kernel ran, and {who} has changed it since{shown}\n  read here:",
            a.stmt.origin.span,
            hint="give each step its own elements (x[t + 1, i] = f(x[t, i]))",
            # A tape does not know what the user's function will read, and so saves nothing for it.
            narrower=KEEP
            if session.recomputed_from is None
            else f"let the gradient set {a.mem.name} again before {self.specialization.name}.grad(...)",
        )
        error.written_at = f.versions.last(row)
        return error


class LoadingDerivative(Derivative):
    """A derivative that loads what its launch has stored, where the elements hold it still (docs/adr/0107).

    They do if the last write to their part of the field was the launch itself, by the exact reading of its
    clock. Where it was not, the derivative that computes is launched. What that one loads must be as it was
    in either case, so that the same programs are refused.
    """

    def __init__(self, origin: Derivative, made: Loading) -> None:
        super().__init__(origin.specialization, origin.mode, None, origin)
        self._computing = origin
        self._made_of = made

    @property
    def ir(self) -> nodes.Kernel:
        return self._made_of.ir

    @property
    def accesses(self) -> AccessSummary:
        return self._computing.accesses

    @locked_cached_property
    def stored(self) -> list[RegionAccess]:
        # Several stores to one part of a field are asked once.
        return list({(a.mem, a.slices): a for a in self._stores}.values())

    @property
    def _stores(self) -> list[RegionAccess]:
        wanted = set(self._made_of.stores)
        written = regions.writes(self._computing._differentiated.primal)
        return [a for a in written if a.stmt in wanted]

    @property
    def knows_stores(self) -> bool:
        """Whether it is known which parts of fields all that it loads is in."""
        return {a.stmt for a in self._stores} == set(self._made_of.stores)

    @locked_cached_property
    def launch(self) -> Callable[..., None]:
        return launch_function.derivative(self)

    def compute(self, *given: Any) -> None:
        self._computing.compute(*given)


class AdjointWithTangents(Derivative):
    """The adjoint of a kernel, which computes the tangents of its gradients besides: second derivatives.

    What it loads of the forward launch has a dual, which must be as it was, too.
    """

    specialization: WithTangents

    @property
    def primal(self) -> nodes.Kernel:
        return self.specialization.origin.ir

    def instrumented(self, instrumentation: Instrumentation) -> Derivative:
        return AdjointWithTangents(self.specialization, self.mode, instrumentation, self)

    def _made(self, *, strict: bool, in_place: bool) -> Adjoint:
        made = super()._made(strict=strict, in_place=in_place)
        seeds = made.ir.args[len(self.primal.args) :]
        duals = {**self.specialization.dual_of, **self._version_duals(made.versions)}
        with dual_memories(duals):
            tangent = compiler.with_tangents(
                made.ir, width=self.mode.width, detached=False, varying=seeds
            )
        if tangent.leaks:
            raise together([missing_dual(s, f"{s.mem.name} has no dual") for s in tangent.leaks])
        return made._replace(
            ir=tangent.ir,
            restored=made.restored | {duals[m] for m in made.restored if m in duals},
            versions=made.versions | {duals[m] for m in made.versions if m in duals},
            loading=None,
        )

    def _version_duals(self, versions: frozenset[Mem]) -> dict[Mem, Mem]:
        """Give duals to the memories of its own, and to their gradients."""
        found = {}
        for f in (m.handle() for m in versions):
            for own in (f, f.adjoint):
                dual = None if own is None else make_dual(own, self.mode.width)
                if dual is not None:
                    session.with_dual.discard(own)  # no dual of the user's
                    found[own._mem] = dual._mem
        return found

    def seeds(self, g: np.ndarray) -> list[float]:
        return [*super().seeds(g), *[0.0] * (g.size * self.mode.width)]
