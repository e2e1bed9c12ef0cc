"""Gradients given by the user (`grad_replaced`, `grad_for`), and code without gradients (`no_grad`)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.enclosing_recorder import EnclosingRecorder, RolloutSummary, enclosing_recorder
from diffsim.ad.record.elements import Box, Index, read_elements, write_elements
from diffsim.ad.record.entries import Wrote
from diffsim.ad.record.entry import Entry, flat
from diffsim.ad.record.record import Record
from diffsim.ad.record.snapshot import StartSnapshot, run_perturbed
from diffsim.ad.record.task_launches import TaskLaunches
from diffsim.ad.recorder import TapeRecorder
from diffsim.ad.second_order_recorder import SecondOrderRecorder
from diffsim.ad.tangent_recorder import TangentRecorder, tangents_are_wanted
from diffsim.errors import ArgumentError, AutodiffError, GlobalDataAccessError, Span, shown
from diffsim.lang.host.copying import Bound, Named
from diffsim.lang.host.provenance import source_of
from diffsim.lang.host.signatures import checked, checked_methods
from diffsim.lang.host.source import check_runs, is_passive
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.poison import ZERO, poison, written_since
from diffsim.runtime.recorder import ForwardingRecorder
from diffsim.runtime.session import session
from diffsim.tracebacks import entries, entry

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


class _NestedRecorder(ForwardingRecorder, EnclosingRecorder):
    """Records what a function with a gradient of its own does; nothing of it is differentiated.

    The entries go to a record of its own (`body`), which becomes a single entry of the recorder around it.
    That one saves what is overwritten, for adjoints before the call.

    Attributes:
        script: what the function did, to be done again, if its gradient is to be compared with differences.
    """

    refuses_constants = False  # the user gives the gradient

    def __init__(
        self,
        outer: EnclosingRecorder,
        script: list[Callable[[], Any]] | None,
        start: StartSnapshot | None = None,
    ) -> None:
        self.body = TapeRecorder()
        # Launches inside must be announced where the tape around saves, or a comparison needs the
        # start.
        self.body.intercepts = outer.intercepts or start is not None
        super().__init__(self.body)
        self.outer = outer
        self.trace = outer.trace
        self.script = script
        self.body.snapshot = start
        self.validator = self.body.validator = outer.validator
        self.nan = self.body.nan = outer.nan
        self._launching: Specialization | None = None

    def launching(
        self, special: Specialization, args: tuple[Any, ...]
    ) -> Specialization | TaskLaunches | None:
        self._launching = special
        # Adjoints from before the call may need what the launch overwrites; the launch itself gets no
        # adjoint.
        self.outer.save_before(special, args)
        # Detached: nothing inside is differentiated, the user's gradient function stands for it.
        return self.body.launching(special.detached, args)

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        if self.trace is not None:
            self.trace.launched(special, args, now, seed)
        self.body.launched(special.detached, args, now, seed)
        entry = self.body.record.newest()
        own = self._launching or special
        self._launching = None
        # Kept for checks: where the plain kernel would lose a derivative, the call does too.
        if not own.mode.is_detached:
            entry.undetached = own
        if self.script is not None:
            # The entry's arguments, not those of the call: they are copies where the program may change
            # them.
            self.script.append(functools.partial(own.launch_again, *entry.args))

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        if self.trace is not None:
            self.trace.wrote(field, index, value)
        self.body.wrote(field, index, value)
        self._note_write(field, index)

    def stored(self, field: Field, index: tuple[int, ...], value: Recorded) -> None:
        if self.trace is not None:
            self.trace.stored(field, index, value)
        self.body.stored(field, index, value)
        self._note_write(field, index)

    def _note_write(self, field: Field, index: Index) -> None:
        if self.script is not None:
            # The values as they are now; the arrays that they came from may change.
            self.script.append(
                functools.partial(_write_elements, field, index, read_elements(field, index))
            )

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        if self.trace is not None:
            self.trace.copied(target, source, to, at)
        self.body.copied(target, source, to, at)
        if self.script is not None:
            # Read when it is run again: the source depends on the perturbed inputs.
            self.script.append(lambda: _write_elements(target, to, read_elements(source, at)))

    def writing(self, field: Field, row: int | None) -> None:
        self.body.writing(field, row)
        self.outer.writing(field, row)

    def cut_short(self, what: str, span: Span | None) -> None:
        self.outer.cut_short(what, span)

    def save_before(self, special: Specialization, args: tuple[Any, ...]) -> None:
        self.body.save_before(special, args)
        self.outer.save_before(special, args)

    def will_need(self, boxes: Iterable[Box]) -> None:
        """Nothing: the user's gradient is run in place of the rollout's."""

    def append(self, entry: Entry) -> None:
        self.body.append(entry)

    def replaced(self, name: str, backward: Callable[[], Any], inside: Record) -> None:
        self.body.replaced(name, backward, inside)

    def rolled_out(self, rollout: RolloutSummary) -> None:
        self.body.rolled_out(rollout)
        if self.script is not None:
            self.script.append(rollout.again)


def _write_elements(field: Field, index: Index, values: np.ndarray) -> None:
    write_elements(field, index, values)
    field._touch()


@entries("__get__ __call__ grad")
class GradReplaced(Named):
    """A Python function whose gradient is another function; made by `ds.ad.grad_replaced`.

    Calling it runs it. On a tape it counts as one step, whose adjoint is the function that
    `ds.ad.grad_for` gave; `function.grad(...)` runs that one directly.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.backward: Callable[..., Any] | None = None
        self.checked = True
        self.comparison: Comparison | None = None

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else BoundGradReplaced(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = getattr(self.function, "__name__", "the function")
        if tangents_are_wanted():
            raise AutodiffError(
                f"{name} has a gradient of its own, which is for reverse mode: it gives no tangent",
                Span.of_caller(),
                hint="differentiate in reverse mode, with ds.Tape; or leave out @ds.ad.grad_replaced, as the "
                f"kernels in {name} have tangents; in ds.ad.no_grad() what it computes is constant",
            )
        # Without a tape, and in code that no gradient flows through, it is a plain call.
        outer = enclosing_recorder()
        if outer is None:
            return self.function(*args, **kwargs)
        # A number computed in Python from a field would reach the gradient function as a constant.
        source = source_of((args, kwargs))
        if source is not None:
            source.refuse(name, "give it the field")
        backward: Callable[[], Any] = functools.partial(self._needed(), *args, **kwargs)
        start = None if self.checked else StartSnapshot()
        script = outer.script if isinstance(outer, _NestedRecorder) else None
        if script is None and start is not None:
            script = []
        # A nested call writes to the script of the outer one, which repeats all of it.
        inside = _NestedRecorder(outer, script, start)
        before, session.tape = session.tape, inside
        try:
            result = self.function(*args, **kwargs)
        except BaseException:
            # Something was written, and no entry will stand for it.
            if inside.body.record:
                outer.cut_short(name, Span.of_caller())
            raise
        finally:
            if session.tape is inside:
                session.tape = before
        if start is not None:
            if self.comparison is not None:
                self.comparison.drop()  # the last call is reversed first, so only its comparison is needed
            backward = self.comparison = Comparison(self, backward, start, inside)
        given = (args, *kwargs.values())
        # The gradient function gets the same objects as the call, so they must still hold the same.
        contents = _contents(given)
        if contents is not None:
            backward = _SameArguments(name, backward, given, contents)
        outer.replaced(name, backward, inside.body.record)
        return result

    def grad(self, *args: Any, **kwargs: Any) -> None:
        """Run the gradient function with the arguments of its call.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))

            @ds.ad.grad_replaced
            def forward(a):
                y.from_numpy(a * x.to_numpy())

            @ds.ad.grad_for(forward)
            def backward(a):
                x.grad.from_numpy(x.grad.to_numpy() + a * y.grad.to_numpy())

            y.grad.fill(1.0)
            forward.grad(2.0)
            print(x.grad[0])  # prints: 2.0
        """
        backward = self._needed()
        clock = session.clock
        try:
            # What the gradient function recomputes counts as what the launches saw: see
            # `Session.recomputed_from`.
            with session.recomputing():
                backward(*args, **kwargs)
        except BaseException as error:
            poison(error, lambda: written_since(clock), ZERO)
            raise

    def _needed(self) -> Callable[..., Any]:
        if self.backward is None:
            name = getattr(self.function, "__name__", "the function")
            raise AutodiffError(
                f"{name} is marked with ds.ad.grad_replaced and has no gradient",
                Span.of_caller(),
                hint=f"write the gradient: @ds.ad.grad_for({name})",
            )
        return self.backward


def _check_runs_at_once(function: Any, what: str) -> None:
    """Refuse generators and coroutines, whose bodies run after the call."""
    if is_passive(function):
        raise ArgumentError(
            f"{what} decorates functions, and {function.__name__} runs after its call is over: it is a "
            + ("generator" if inspect.isgeneratorfunction(function) else "coroutine"),
            Span.of_caller(),
            hint="decorate a function that it calls",
        )


def _contents(a: Any) -> Any:
    """Return a fingerprint of the arrays and lists of numbers in an argument; None if there are none."""
    # A hash instead of a copy: 64 bytes for an array of any size.
    if isinstance(a, np.ndarray) and a.dtype != object:
        return a.shape, a.dtype, hashlib.blake2b(np.ascontiguousarray(a).data).digest()
    if isinstance(a, list) and a and all(isinstance(e, (int, float)) for e in a):
        return tuple(a)
    if isinstance(a, (list, dict, tuple)):
        inside = tuple(map(_contents, a.values() if isinstance(a, dict) else a))
        return inside if any(i is not None for i in inside) else None
    return None


class _SameArguments:
    """A gradient function that refuses to run if arrays or lists among its arguments have changed.

    What the gradient itself writes to them is for the next time.
    """

    def __init__(self, name: str, backward: Callable[[], Any], args: Any, contents: Any) -> None:
        self.__name__ = name
        # The picture names the user's function, and not this wrapper.
        self.func = getattr(backward, "func", backward)  # for pictures of the tape
        self.backward = backward
        self.args = args
        self.contents = contents
        self.span = Span.of_caller()

    def __call__(self) -> None:
        if _contents(self.args) != self.contents:
            raise GlobalDataAccessError(
                f"an array or list given to {self.__name__} has changed since, and the gradient of "
                f"{self.__name__} gets it too",
                self.span,
                hint="give it a copy: array.copy()",
            )
        self.backward()
        self.contents = _contents(self.args)


class Comparison:
    """Compares the gradient of one call with central differences when it is first needed.

    The incoming gradients w weigh the outputs, the inputs move along a random direction u. Then
    w . (f(x + h u) - f(x - h u)) / 2h is u . (the gradient of the inputs).
    """

    def __init__(
        self,
        replaced: GradReplaced,
        backward: Callable[[], Any],
        start: StartSnapshot,
        nested: _NestedRecorder,
    ) -> None:
        self.__name__ = getattr(replaced.function, "__name__", "function")
        self.replaced = replaced
        self.backward = backward
        self.start = start
        self.script = nested.script or []
        inside = list(flat(nested.body.record))
        self.outputs = [
            f for f in dict.fromkeys(f for e in inside for f in e.writes()) if f.grad is not None
        ]
        self.inputs = [
            f for f in dict.fromkeys(f for e in inside for f in e.reads()) if f.grad is not None
        ]
        # The function did not write to all of its inputs; the comparison moves them too.
        for f in self.inputs:
            start.note(f)

    def drop(self) -> None:
        """Cancel the comparison and free its memory."""
        self.start, self.script, self.inputs, self.outputs = StartSnapshot(), [], [], []

    def forward(self) -> None:
        """Repeat the launches and writes of the function; its Python code is not run again."""
        for act in self.script:
            act()

    def __call__(self) -> None:
        grads = {f: f.grad.to_numpy(dtype=np.float64) for f in self.outputs if f.grad is not None}
        # Without incoming gradients both sides are 0, which shows nothing: it waits for a call that has
        # some.
        if self.replaced.checked or not any(w.any() for w in grads.values()):
            self.backward()
            return
        # 1. The user's gradient, as an increment: the gradients of inputs may hold contributions of
        # later entries.
        before = {f: f.grad.to_numpy(dtype=np.float64) for f in self.inputs if f.grad is not None}
        self.backward()
        self.replaced.checked, self.replaced.comparison = True, None
        # 2. One random direction u for all inputs. A wrong gradient agrees along it with probability 0,
        # and two runs suffice, however many components there are. A fixed seed: a check that fails
        # fails again.
        rng = np.random.default_rng(0)
        floats = (f.dtype for f in (*self.outputs, *self.start.saved) if f.dtype.is_float)
        eps = max(float(np.finfo(t.numpy).eps) for t in floats)
        # The error of central differences is O(h^2) + O(eps / h), which is least for h = eps^(1/3)
        # (Press et al., Numerical Recipes, section 5.7).
        h = eps ** (1 / 3)
        by, found = {}, 0.0
        for f in self.inputs:
            assert f.grad is not None
            values = self.start.values(f)
            u = rng.standard_normal(values.shape) * max(1.0, float(np.abs(values).max()))
            # A field that is output and input at once: its gradient was consumed, and what is there now
            # is all new.
            got = f.grad.to_numpy(dtype=np.float64) - (0 if f in grads else before[f])
            found += float((got * u).sum())
            by[f] = h * u
        # 3. The function at both ends of the step; all fields return to what they were.
        ends = [
            run_perturbed(self.forward, self.start, {f: s * d for f, d in by.items()}, self.outputs)
            for s in (1, -1)
        ]
        slopes = [
            grads[f] * (one - other) / (2 * h)
            for f, one, other in zip(self.outputs, *ends, strict=True)
        ]
        expected = float(sum(s.sum() for s in slopes))
        # 4. The tolerance: relative to the larger derivative, and to the size of the terms, which may
        # cancel in the sum; and the rounding of the two outputs, divided by the step.
        noise = float(np.sqrt(sum((s**2).sum() for s in slopes)))
        weighed = [grads[f] * one for f, one in zip(self.outputs, ends[0], strict=True)]
        rounding = 10 * eps / h * float(np.sqrt(sum((w**2).sum() for w in weighed)))
        allowed = eps**0.25 * max(abs(found), abs(expected), noise) + rounding
        # Written so that NaN fails.
        if not abs(found - expected) <= allowed:
            gradient = inspect.unwrap(self.replaced._needed())
            code = getattr(gradient, "__code__", None)
            raise AutodiffError(
                f"the gradient of {self.__name__} is wrong: along a random direction it says {found:.8g}, "
                f"central differences say {expected:.8g}",
                Span(code.co_filename, code.co_firstlineno) if code else None,
                hint="correct it; or leave check=True out if another function is meant to be differentiated",
            )


@entries("__call__ grad")
class BoundGradReplaced(Bound):
    """A bound method with a gradient of its own."""

    def __init__(self, replaced: GradReplaced, owner: Any) -> None:
        self.replaced = replaced
        self.owner = owner
        self.__name__ = replaced.function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.replaced(self.owner, *args, **kwargs)

    def grad(self, *args: Any, **kwargs: Any) -> None:
        """Run the gradient function with the arguments of its call."""
        self.replaced.grad(self.owner, *args, **kwargs)


@checked
def grad_replaced(func: Callable[..., Any]) -> GradReplaced:
    """Decorate a Python function (or method) that launches kernels and has a gradient of its own.

        @ds.ad.grad_replaced
        def forward(mul):
            scale(mul)

        @ds.ad.grad_for(forward)
        def backward(mul):
            scale.grad(mul)

    On a tape the launches inside it are not differentiated; `backward` is called in their place,
    with the same arguments.

    Example:
        x, y = (ds.field(ds.f32, shape=(), needs_grad=True) for _ in range(2))
        x[None] = 3.0

        @ds.kernel
        def square():
            y[None] = x[None] ** 2

        @ds.ad.grad_replaced
        def forward():
            square()

        @ds.ad.grad_for(forward)
        def backward():
            square.grad()

        with ds.Tape(y):
            forward()
        print(x.grad[None])  # prints: 6.0
    """
    _check_runs_at_once(func, "ds.ad.grad_replaced")
    return GradReplaced(func)


@checked
def grad_for(
    primal: Any, *, check: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the gradient of a function marked with `ds.ad.grad_replaced`.

    It gets the arguments of the call, reads the gradients of what the function wrote, and adds to
    the gradients of what it read (`kernel.grad(...)` does both).

    Args:
        primal: the function.
        check: compare the gradient, the first time that a tape runs it, with central differences
            along one random direction; for that what it does to fields is done twice more, and all
            fields are put back. The two may differ by 1e-4 of their size in f64, by 2e-2 in f32 (0.2 in
            f16), and by what rounding does to the differences.

    Raises:
        AutodiffError: the function is not marked, or has a gradient already; the check fails.

    Example:
        x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))

        @ds.ad.grad_replaced
        def forward():
            y.from_numpy(2.0 * x.to_numpy())

        @ds.ad.grad_for(forward)
        def backward():
            x.grad.from_numpy(x.grad.to_numpy() + 2.0 * y.grad.to_numpy())

        with ds.Tape() as tape:
            forward()
        tape.backward(grads={y: 1.0})
        print(x.grad[0])  # prints: 2.0
    """
    if isinstance(primal, BoundGradReplaced):
        primal = primal.replaced
    if not isinstance(primal, GradReplaced):
        name = getattr(primal, "__name__", shown(primal))
        raise AutodiffError(
            f"{name} is not marked with ds.ad.grad_replaced",
            Span.of_caller(),
            hint=f"put @ds.ad.grad_replaced on {name}",
        )
    if primal.backward is not None:
        raise AutodiffError(
            f"{primal.function.__name__} has a gradient already",
            Span.of_caller(),
            hint="put what both do into one function decorated with ds.ad.grad_for",
        )

    @entry
    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        check_runs(backward, "the gradient")
        primal.backward = backward
        # Without `check` the gradient counts as compared already.
        primal.checked = not check
        return backward

    return decorate


class _DetachedRecorder(ForwardingRecorder):
    """Forwards to the recorder of a tape in code that no gradient flows through.

    Launches and writes are recorded as those of constants.
    """

    follows_values = refuses_constants = False

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> Specialization | None:
        other: Specialization | None = self.inner.launching(special.detached, args)
        return other

    def launched(self, special: Specialization, args: tuple[Any, ...], now: int, seed: int) -> None:
        self.inner.launched(special.detached, args, now, seed)

    def returned(self, result: Any) -> Any:
        return result

    def wrote(self, field: Field, index: Index, value: np.ndarray | Field) -> None:
        if isinstance(self.inner, TangentRecorder):
            self.inner.clear_tangents(field, index)
            return
        if isinstance(self.inner, SecondOrderRecorder):
            self.inner.wrote_constant(field, index, value)
        else:
            self.inner.wrote(field, index, value)
        record = self.inner.record
        if isinstance(record, Record) and record and isinstance(last := record[-1], Wrote):
            # The inner recorder has just appended the entry.
            last.declared_constant = True

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        self.wrote(target, to, source if to is None else read_elements(target, to))

    def declared_constant(self) -> None:
        """Nothing: here everything is."""


@contextlib.contextmanager
def _no_grad_block() -> Iterator[None]:
    """Detach the launches and writes of a block."""
    tape = session.tape
    # Nested blocks: the outer one has detached everything already.
    if tape is None or isinstance(tape, _DetachedRecorder):
        yield
        return
    session.tape = detached = _DetachedRecorder(tape)
    try:
        yield
    finally:
        # Another tape, or `ds.init`, may have taken its place in the block; then there is nothing to
        # restore.
        if session.tape is detached:
            session.tape = tape


@checked_methods("__call__")
class NoGrad:
    """`ds.ad.no_grad`: as a context or a decorator.

        with ds.ad.no_grad():
            update()              # on a tape: what it stores counts as constant

        @ds.ad.no_grad
        def update_all(): ...

    Fields that the code stores to forget what they had to do with the loss; kernels may return
    values. Outside a tape it changes nothing.

    Example:
        x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
        with ds.Tape() as tape:
            with ds.ad.no_grad():
                y.copy_from(x)
        tape.backward(grads={y: 1.0})
        print(x.grad[0])  # prints: 0.0
    """

    def __reduce__(self) -> str:
        """Copy and pickle by name: it is a singleton."""
        return "no_grad"

    def __call__(self, func: Callable[..., Any] | None = None) -> Any:
        if func is None:
            return _no_grad_block()
        if not callable(func):
            raise ArgumentError(
                f"ds.ad.no_grad decorates functions, not {shown(func)}",
                Span.of_caller(),
                hint="write @ds.ad.no_grad above a function, or with ds.ad.no_grad(): before a block",
            )
        _check_runs_at_once(func, "ds.ad.no_grad")

        @functools.wraps(func)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _no_grad_block():
                return func(*args, **kwargs)

        # Called by hand, as `kernel.grad` is: a constant adds nothing to a gradient.
        wrapped.grad = lambda *args, **kwargs: None  # type: ignore[attr-defined]
        return wrapped


no_grad = NoGrad()
