"""Gradients that the user writes, and code that no gradient flows through."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from diffsim.ad.tape import Tape
from diffsim.errors import AutodiffError, FieldError, Span
from diffsim.runtime.context import session
from diffsim.runtime.field import Field


class _Inside(Tape):
    """Records what a function with a gradient of its own does; nothing of it is differentiated."""

    def __init__(self, outer: Tape) -> None:
        super().__init__()
        self.outer = outer
        self.in_place = outer.in_place

    def launching(self, special: Any, args: tuple[Any, ...]) -> None:
        self.outer.entries += self.outer.saver.before_launch(special.detached.in_place, args)[0]

    def launched(self, special: Any, args: tuple[Any, ...], now: int, seed: int) -> None:
        super().launched(special.detached, args, now, seed)

    def writing(self, field: Field, row: int | None) -> None:
        self.outer.writing(field, row)


class GradReplaced:
    """A Python function whose gradient is another function; made by `ds.ad.grad_replaced`.

    Calling it runs it. On a tape it counts as one step, whose adjoint is the function that
    `ds.ad.grad_for` gave; `function.grad(...)` runs that one directly.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.backward: Callable[..., Any] | None = None

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else BoundGradReplaced(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tape = session.tape
        if tape is None:
            return self.function(*args, **kwargs)
        backward = self._needed()
        session.tape = inside = _Inside(tape)
        try:
            result = self.function(*args, **kwargs)
        finally:
            if session.tape is inside:
                session.tape = tape
        tape.replaced(functools.partial(backward, *args, **kwargs), inside)
        return result

    def grad(self, *args: Any, **kwargs: Any) -> None:
        """Run the gradient, with the arguments of the call that it belongs to."""
        backward = self._needed()
        with session.recomputing():
            backward(*args, **kwargs)

    def _needed(self) -> Callable[..., Any]:
        if self.backward is None:
            name = getattr(self.function, "__name__", "the function")
            raise AutodiffError(
                f"{name} is marked with ds.ad.grad_replaced and has no gradient",
                Span.of_caller(),
                hint=f"write the gradient: @ds.ad.grad_for({name})",
            )
        return self.backward


class BoundGradReplaced:
    """A method with a gradient of its own, taken from an object."""

    def __init__(self, replaced: GradReplaced, owner: Any) -> None:
        self.replaced = replaced
        self.owner = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.replaced(self.owner, *args, **kwargs)

    def grad(self, *args: Any, **kwargs: Any) -> None:
        """Run the gradient, with the arguments of the call that it belongs to."""
        self.replaced.grad(self.owner, *args, **kwargs)


def grad_replaced(function: Callable[..., Any]) -> GradReplaced:
    """Decorate a Python function (or method) that launches kernels and has a gradient of its own.

        @ds.ad.grad_replaced
        def forward(mul):
            scale(mul)

        @ds.ad.grad_for(forward)
        def backward(mul):
            scale.grad(mul)

    On a tape the launches inside of it are not differentiated; `backward` is called in their place,
    with the same arguments.
    """
    return GradReplaced(function)


def grad_for(primal: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the gradient of a function marked with `ds.ad.grad_replaced`.

    It gets the arguments of the call, reads the gradients of what the function wrote, and adds to
    the gradients of what it read (`kernel.grad(...)` does both).

    Raises:
        AutodiffError: the function is not marked, or has a gradient already.
    """
    if isinstance(primal, BoundGradReplaced):
        primal = primal.replaced
    if not isinstance(primal, GradReplaced):
        name = getattr(primal, "__name__", repr(primal))
        raise AutodiffError(
            f"{name} is not marked with ds.ad.grad_replaced",
            Span.of_caller(),
            hint=f"put @ds.ad.grad_replaced on {name}",
        )
    if primal.backward is not None:
        raise AutodiffError(f"{primal.__name__} has a gradient already", Span.of_caller())  # type: ignore[attr-defined]

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        primal.backward = backward
        return backward

    return decorate


class _Detached:
    """Stands for the tape that is recording, where no gradient flows."""

    records = False

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.in_place = tape.in_place

    def launching(self, special: Any, args: tuple[Any, ...]) -> None:
        self.tape.launching(special.detached, args)

    def writing(self, field: Field, row: int | None) -> None:
        self.tape.writing(field, row)

    def launched(self, special: Any, args: tuple[Any, ...], now: int, seed: int) -> None:
        self.tape.launched(special.detached, args, now, seed)

    @staticmethod
    def returned(result: Any) -> Any:
        return result

    def wrote(self, field: Field, index: tuple[int, ...] | None, value: np.ndarray | Field) -> None:
        self.tape.wrote(field, index, value)

    def copied(self, target: Field, source: Field) -> None:
        self.tape.wrote(target, None, source)

    def replaced(self, backward: Callable[[], Any], inside: Tape) -> None:
        raise AutodiffError(
            "a function with a gradient of its own was called where no gradient flows",
            Span.of_caller(),
            hint="call it outside of ds.ad.no_grad",
        )


@contextlib.contextmanager
def _no_grad_block() -> Iterator[None]:
    tape = session.tape
    if tape is None or isinstance(tape, _Detached):
        yield
        return
    session.tape = detached = _Detached(tape)
    try:
        yield
    finally:
        if session.tape is detached:
            session.tape = tape


class NoGrad:
    """`ds.ad.no_grad`: as a context or a decorator.

        with ds.ad.no_grad():
            update()              # on a tape: what it stores counts as constant

        @ds.ad.no_grad
        def update_all(): ...

    Fields that the code stores to forget what they had to do with the loss; kernels may return
    values. Outside of a tape it changes nothing.
    """

    def __call__(self, function: Callable[..., Any] | None = None) -> Any:
        if function is None:
            return _no_grad_block()
        if not callable(function):
            raise FieldError(
                f"ds.ad.no_grad decorates functions, not {function!r}", Span.of_caller()
            )

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _no_grad_block():
                return function(*args, **kwargs)

        return wrapped


no_grad = NoGrad()
