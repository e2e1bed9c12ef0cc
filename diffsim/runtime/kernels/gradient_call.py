"""A call of `kernel.grad(...)`: it runs the derivative of an earlier launch.

Which launch that is, `launch_history.py` decides. The derivative must load the same values as at that
launch; this is checked by the derivative's launch function, and refused with the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from diffsim.errors import (
    ArgumentError,
    AutodiffError,
    GlobalDataAccessError,
    Span,
    together,
)
from diffsim.ir.nodes import Load
from diffsim.ir.types import an
from diffsim.lang.types.descriptions import describe
from diffsim.passes.autodiff.activity import missing_gradient
from diffsim.runtime.fields.conversions import array_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.launch_history import (
    Repeated,
    first_difference,
    note_gradients,
    read_the_same,
)
from diffsim.runtime.locked_cached_property import locked_cached_property
from diffsim.runtime.memory.cut_gradients import check_gradient
from diffsim.runtime.memory.versions import span_of
from diffsim.runtime.poison import ZERO, poison
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization
    from diffsim.runtime.memory.versions import Versions

Numbers = tuple[int | None, ...]
"""Those of the fields among the arguments that are arrays; None for an array of another library."""
_MOST_POSSIBLE = 1024
_FOREVER = 1 << 62
"""A clock reading that no write is younger than: for a derivative that needs no launch."""


class _Possible(NamedTuple):
    """That calls are possible, with some fields among the arguments.

    Attributes:
        changes: the count of changes of gradients as of which it was found.
        cotangents: the versions of the gradients of what the kernel writes.
        loaded: the versions of what the derivative loads.
    """

    changes: int
    cotangents: list[Versions]
    loaded: set[Versions]


class GradientCall:
    """Runs the derivative of one specialization outside a tape."""

    def __init__(self, specialization: Specialization) -> None:
        self.specialization = specialization
        self.derivative = specialization.derivative
        self.name = specialization.name
        self._repeated = Repeated(self.derivative)
        # For each combination of fields among the arguments.
        self._possible: dict[Numbers, _Possible] = {}
        parameters = specialization.arguments.parameters
        self._arrays = [k for k, p in enumerate(parameters) if p.kind == "array"]

    def __call__(self, *args: object, returned: object = None) -> None:
        """Run the derivative of a launch with these arguments.

        A kernel that was never launched is taken as if it were launched now, if its derivative needs nothing
        that the launch makes.

        Args:
            args: the arguments of the launch.
            returned: the cotangent of what the kernel returned.
        """
        # 1. Refuse calls that belong to no launch.
        special, derivative = self.specialization, self.derivative
        possible = self._possible.get(self.numbers(args))
        anew = possible is None or possible.changes != session.with_grad.changes
        if session.recorders or returned is not None or anew:
            self._check_callable(returned, args)
            possible = self._note_possible(args)
        elif special.dependencies.is_stale or special.captures_changed():
            raise self._made_anew()
        launches = special.launches
        session.from_tapes = False
        seeds = (self._seeds(returned),) if derivative.returns_active else ()
        # 2. Find the launch. `count` calls were made since the last one, this one included.
        try:
            # Plain numbers are their own key. That of no numbers is there before the first launch.
            is_key = launches.last is not None and args in launches.times
        except TypeError:
            is_key = False
        key = args if is_key else self._known_launches(args)
        since, count = (_FOREVER, 0) if key is None else launches.asked(key)
        rng_key = self._random_key(key, since, count) if special.translation.uses_random else 0
        if count > 1 and since != launches.times[key][-1]:
            since = self._as_if_last(args, key, since)
        # 3. Run it. A cut gradient belongs to a value that Python set after the launch.
        if possible is None or any(versions.cuts for versions in possible.cotangents):
            self._check_cuts(args, since)
        clock = session.clock
        try:
            derivative.launch(args, since, rng_key, *seeds)
        except BaseException as error:
            self._recover(error, (args, since, rng_key, *seeds), count, clock)
        # What writes nothing else cannot have changed what a later call reads.
        if session.clock == clock + 1 and self._writes_gradients_alone:
            note_gradients(clock + 1)
        # Only calls that ran count: a refused one may be repeated after a new launch.
        if key is not None:
            launches.answered(key, count)

    def _recover(
        self, error: BaseException, given: tuple[Any, ...], count: int, clock: int
    ) -> None:
        """Launch the derivative with what it was given once more, or raise what there is to say of an error.

        `count`: the calls since the launch, this one included; `clock`: its reading before.
        """
        args, since, *more = given
        if isinstance(error, GlobalDataAccessError) and count == 1:
            try:
                if self._was_recomputed(error, args, since, clock):
                    self.derivative.launch(args, clock, *more)
                    return
            except BaseException as second:
                error = second
        told = self._told(error, args, since, count, clock)
        if told is error:
            raise told
        raise told from None

    def quick(self, numbers: Numbers) -> Callable[..., bool]:
        """Return a function for calls as nearly all are, with these fields among the arguments.

        They are the first one after a launch with these arguments; and further ones, if nothing that the
        derivative loads was written since the earliest launch that they may mean.

        It takes the arguments, and their key in the launch history. It returns whether the call was one; if
        not, it has done nothing.
        """
        special, launches = self.specialization, self.specialization.launches
        derivative, alone = self.derivative, self._writes_gradients_alone
        dependencies, with_grad = special.dependencies, session.with_grad
        changed = special.captures_changed if special.looks_at_captures else None
        times, calls = launches.times, launches.calls
        all_possible = self._possible

        def call(args: tuple[Any, ...], key: Any) -> bool:
            possible = all_possible.get(numbers)
            if session.recorders or possible is None or possible.changes != with_grad.changes:
                return False
            if dependencies.is_stale or launches.last is None or (changed and changed()):
                return False
            for versions in possible.cotangents:
                if versions.cuts:
                    return False
            try:
                row = times.get(key)
            except TypeError:  # no plain numbers
                return False
            if not row:
                return False
            since = end = row[-1]
            before, count = calls.get(key), 1
            if before is not None:  # as `LaunchHistory.asked`
                last, count = before
                if last == end:
                    count += 1
                    since = row[-count if count <= len(row) else 0]
                    for versions in possible.loaded:
                        if versions.latest > since:
                            return False
                else:
                    launches.settle(key, row, last, count)
                    count = 1
            session.from_tapes, clock = False, session.clock
            try:
                derivative.launch(args, since, 0)
            except BaseException as error:
                self._recover(error, (args, since, 0), count, clock)
            if alone and session.clock == clock + 1:
                note_gradients(clock + 1)
            calls[key] = end, count
            return True

        return call

    def _random_key(self, key: object, since: int, count: int) -> int:
        """Return the key of the random numbers that the derivative draws."""
        launches = self.specialization.launches
        if launches.last is None:
            return 0
        # The adjoint of an earlier launch would draw that launch's numbers, of which no key was kept.
        if count > 1 and self.derivative.draws_random and since != launches.times[key][-1]:
            raise self._of_an_earlier_launch(
                count, "each launch draws random numbers of its own", None
            )
        return launches.seeds.get(key, launches.last[1])

    def _as_if_last(self, args: tuple[object, ...], key: object, since: int) -> int:
        """Return the clock, if all launches that may be meant have read what is there now; else `since`."""
        if session.recomputed_from is not None or not self.derivative.is_stale(args, since):
            return since
        return session.clock if self._repeated.reaches(key, args, since) else since

    def _was_recomputed(
        self, error: GlobalDataAccessError, args: tuple[object, ...], since: int, clock: int
    ) -> bool:
        """Return whether all that the refused derivative loads is again as its launch has read it."""
        if session.clock != clock or session.recomputed_from is not None or not error.is_stale:
            return False
        return read_the_same(self.derivative, args, [since])

    def _told(
        self, error: BaseException, args: tuple[object, ...], since: int, count: int, clock: int
    ) -> BaseException:
        """Return what to raise for an error of a derivative that was called at this reading of the clock."""
        # Once the clock has ticked, some of the gradients may have been added to.
        if session.clock != clock:
            poison(error, lambda: self._adds_to(args), ZERO)
            return error
        # Nothing was added: the adjoint refused before the clock ticked. With several calls the likely
        # reason is that this one means an earlier launch, so the error says that.
        if not isinstance(error, GlobalDataAccessError):
            return error
        if count > 1:
            return self._of_an_earlier_launch(
                count, self._difference(error, args, since), error.span
            )
        # What was overwritten a tape could have saved, unless it was a gradient written by the user.
        may_switch = session.recomputed_from is None and not session.options.lifts_rules
        found = error.parts
        if session.recomputed_from is None:
            found = tuple(self._refusals(args, since, error))
        return together([e.advising(switch=may_switch) if e.narrower else e for e in found])

    @locked_cached_property
    def _writes_gradients_alone(self) -> bool:
        return all(a.mem.is_grad for a in self.derivative.accesses.writes)

    def _refusals(
        self, args: tuple[object, ...], since: int, error: GlobalDataAccessError
    ) -> Iterator[GlobalDataAccessError]:
        """Yield all that is wrong with a launch for which the derivative has raised an error."""
        derivative = self.derivative
        # After a new launch the call belongs to that one, which has read the values that are there now.
        again = f"run {self.name}(...) again on the same values before {self.name}.grad(...)"
        for stale in derivative.stale_reads(args, since):
            stale.narrower = f"{again}, or {stale.narrower}"
            yield stale
        if not error.is_stale:
            yield from (e for e in error.parts if isinstance(e, GlobalDataAccessError))
        elif derivative.checks is not None and derivative.checks.may_be_asked(args, since):
            yield from derivative.checks.errors(args)

    def _check_callable(self, returned: object, args: tuple[object, ...]) -> None:
        """Refuse a call that belongs to no launch, or that could not give the right gradient."""
        if session.tape is not None:
            work = session.tape.work
            why = (
                "its gradients would have no tangents"
                if session.tape.tangents
                else "the tape would add to the same gradients"
            )
            raise AutodiffError(
                f"{self.name}.grad cannot run while {work.words}: {why}",
                Span.of_caller(),
                hint=f"call it {work.outside}; a force that a step takes from an energy is ds.grad of a "
                "func, in the kernel of the step",
            )
        if self.specialization.is_elsewhere():
            raise self._not_launched("since ds.init() chose another backend")
        # A field that was made anew: the launch wrote to the old one, whose gradient nobody can set.
        if self.specialization.is_stale or self.specialization.captures_changed():
            raise self._made_anew()
        if returned is not None and not self.derivative.returns_active:
            raise AutodiffError(
                f"the result of {self.name} does not depend on anything with a gradient",
                Span.of_caller(),
                hint="leave out returned=",
            )
        # A kernel that stores an active value where no gradient is kept: derivatives would end there
        # silently. A lent gradient is one of tapes, which set it to 0.
        lost = [missing_gradient(s) for s in self.derivative.unreachable_stores(args)]
        if lost:
            refused = self.derivative.refusal
            raise together(lost if refused is None else [*lost, refused])

    def numbers(self, args: tuple[Any, ...]) -> Numbers:
        """Return the numbers of the fields among the arguments."""
        given = [args[k] for k in self._arrays]
        return tuple([a.number if a.__class__ is Field else None for a in given])

    def _note_possible(self, args: tuple[Any, ...]) -> _Possible | None:
        """Note that calls with these fields are possible until gradients change.

        None: memory among the arguments is that of another library.
        """
        special, numbers = self.specialization, self.numbers(args)
        written = (special.object_of(a.mem, args) for a in special.accesses.writes)
        adjoints = [f.adjoint for f in written if isinstance(f, Field)]
        loaded = [special.object_of(a.mem, args) for a in self.derivative.accesses.reads]
        if None in numbers or not all(isinstance(f, Field) for f in loaded):
            return None
        if len(self._possible) >= _MOST_POSSIBLE:
            self._possible.clear()
        made = self._possible[numbers] = _Possible(
            session.with_grad.changes,
            [g.versions for g in adjoints if g is not None],
            {f.versions for f in loaded},
        )
        return made

    def _check_cuts(self, args: tuple[object, ...], since: int) -> None:
        """Refuse gradients of values that Python set after the launch; code of the user's is trusted."""
        # In a gradient written by the user, launches recompute what the gradient belongs to.
        if session.recomputed_from is None:
            for a in self.specialization.accesses.writes:
                f = self.specialization.object_of(a.mem, args)
                if isinstance(f, Field):
                    check_gradient(f, since, self.name)

    def _adds_to(self, args: tuple[object, ...]) -> Iterator[Field]:
        """Return the gradients that the derivative writes in a launch with these arguments."""
        for a in self.derivative.accesses.writes:
            # A cotangent that is consumed is written as well: cleared, since it belonged to the overwritten
            # value.
            f = self.specialization.object_of(a.mem, args)
            if isinstance(f, Field) and f.is_grad:
                yield f

    def _seeds(self, returned: object) -> list[float]:
        """Return the cotangent of what the kernel returns as a list of scalars."""
        result = self.specialization.ir.result
        assert result is not None
        if returned is None:
            raise AutodiffError(
                f"{self.name} returns a value that depends on something with a gradient, and "
                f"{self.name}.grad was not told its gradient",
                Span.of_caller(),
                hint=f"write {self.name}.grad(..., returned=1.0), or launch {self.name} on a tape",
            )
        # Integers and booleans of NumPy are fine as cotangents; complex numbers and objects are not.
        found = array_of(returned)
        if found.shape != result.dtype.shape or found.dtype.kind not in "biuf":
            raise ArgumentError(
                f"{self.name} returns {an(result.dtype)}, and its gradient cannot be "
                f"{describe(returned)}",
                Span.of_caller(),
                hint="give it the shape of the value",
            )
        return [float(g) for g in found.ravel()]

    # ---- the launch that a call belongs to

    def _known_launches(self, args: tuple[object, ...]) -> object:
        """Return the key of the launches with these arguments; None if the derivative needs no launch."""
        launches = self.specialization.launches
        if launches.last is None:
            # `ds.init` or a new field has discarded the history: it is unknown whether memory is as the
            # launch left it.
            if self.specialization.kernel.launched_before:
                raise self._not_launched("since ds.init() was called or a field made anew")
            self._check_needs_no_launch(args)
            return None
        key = self.specialization.arguments.key(args)
        if key not in launches.times:
            raise self._not_launched("lately" if launches.forgot else "with these arguments")
        return key

    def _check_needs_no_launch(self, args: tuple[object, ...]) -> None:
        """Raise an error if the derivative needs what a launch with these arguments writes, or draws."""
        hint = f"launch it first: {self.name}(...), then {self.name}.grad(...)"
        if self.derivative.draws_random:
            raise AutodiffError(
                f"the gradient of {self.name} needs the random numbers of a launch, and {self.name} was "
                "never launched",
                self.specialization.kernel.source.head(),
                hint=hint,
            )
        accesses = self.specialization.accesses
        for a in self.derivative.accesses.reads:
            # The values that a launch would have written do not exist.
            if any(accesses.may_alias(a, w, args) for w in accesses.writes):
                assert isinstance(a.stmt, Load)
                raise GlobalDataAccessError(
                    f"the gradient of {self.name} needs {a.mem.name} as {self.name} leaves it, and "
                    f"{self.name} was never launched\n  read here:",
                    a.stmt.origin.span,
                    hint=hint,
                )

    def _of_an_earlier_launch(self, count: int, why: str, span: Span | None) -> AutodiffError:
        return GlobalDataAccessError(
            f"{self.name}.grad was called {count} times since {self.name} was launched last, so this call "
            f"may belong to an earlier launch: {why}",
            span or self.specialization.kernel.source.head(),
            hint=f"run {self.name}(...) again before this call; or record the launches: ds.Tape(loss) "
            "differentiates several, and tape.backward(grads={y: seed}) one as often as wanted",
        )

    def _difference(
        self, error: GlobalDataAccessError, args: tuple[object, ...], since: int
    ) -> str:
        """Say what an earlier launch has read that is another value now."""
        key = self.specialization.arguments.key(args)
        readings = self.specialization.launches.since(key, since)
        by = first_difference(self.derivative, args, readings)
        place = span_of(by)
        if session.recomputed_from is not None or place is None:
            return error.message
        who = f"the {by.where}" if by is place else "a Python statement"
        return (
            f"it has read other values, and the first difference was made by {who}\n{place.text()}\n"
            "  read here:"
        )

    def _made_anew(self) -> AutodiffError:
        return self._not_launched("since a field that it uses was made anew")

    def _not_launched(self, when: str) -> AutodiffError:
        return AutodiffError(
            f"{self.name}.grad belongs to a launch of {self.name}, and {self.name} was not launched {when}",
            Span.of_caller(),
            hint=f"run {self.name}(...) with the same arguments first",
        )
