"""`ds.ad.hvp` and `ds.ad.hessian`: second derivatives of a loss, forward mode over reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diffsim.ad.forward import aligned, clear_duals, plant, seed_of, width_for
from diffsim.ad.record.snapshot import StartSnapshot
from diffsim.ad.repeat.past import Past, keep, take
from diffsim.ad.reverse.seeds import check_loss
from diffsim.ad.second_order_recorder import SecondOrderRecorder
from diffsim.ad.tape import Tape
from diffsim.errors import (
    ArgumentError,
    AutodiffError,
    FieldError,
    MissingGradientError,
    Span,
)
from diffsim.lang.host.signatures import checked, need_function
from diffsim.lang.host.source import check_runs
from diffsim.lang.types.descriptions import describe
from diffsim.runtime.fields.adjoints import lend_adjoint
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

GROUP = 4
"""How many columns of a Hessian are computed at once: more spill registers (docs/adr/0038)."""


@checked
def hvp(
    function: Callable[[], Any], fields: Any, vectors: Any, *, loss: Field | None = None
) -> Any:
    """Compute products of the Hessian matrix of a loss with vectors, in one run of the function.

        loss[None], H v:  ds.ad.hvp(simulate, x, v, loss=loss)

    The gradient is computed too: `x.grad` holds it afterwards, as after `ds.Tape(loss)`.

    Args:
        function: launches kernels; called once, without arguments. Fields are afterwards as it leaves them,
            but for gradients and duals, which are all set to 0 first.
        fields: what is differentiated by, twice: a field with a gradient, or a list of them.
        vectors: numbers in the shape of the field, or a list with as many for each field. With one more axis
            in front there are several vectors, up to 8, which share one run.
        loss: a field of a single element, set to 0 on entry. If left out, what the function returns: such a
            field, or the number that a kernel returned.

    Returns:
        An array in the shape of the vectors; for a list of fields a list of arrays.

    Raises:
        AutodiffError: and its kind, in the line whose derivative cannot be given.
        ArgumentError: vectors that do not fit.

    Example:
        x = ds.field(ds.f64, shape=2, needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)
        x.fill(2.0)

        @ds.kernel
        def add_cubes():
            for i in x:
                loss[None] += x[i] ** 3

        print(ds.ad.hvp(add_cubes, x, [1.0, 0.5], loss=loss))  # prints: [12.  6.]
    """
    given = _fields(fields)
    if given is fields and (not isinstance(vectors, (list, tuple)) or len(vectors) != len(given)):
        raise FieldError(
            f"there are {len(given)} fields, and vectors is not a list with one for each",
            Span.of_caller(),
            hint="write ds.ad.hvp(function, [x, y], [v_of_x, v_of_y])",
        )
    run = _SecondOrder(function, given, loss)
    found = run.products(vectors if given is fields else [vectors])
    return found if given is fields else found[0]


@checked
def hessian(
    function: Callable[[], Any], fields: Any, *, loss: Field | None = None
) -> np.ndarray[Any, Any]:
    """Compute the Hessian matrix of a loss, for small inputs: 4 of its columns in one run of the function.

    Args:
        function: launches kernels; called without arguments, once for each 4 columns, from the same values of
            all fields, which are afterwards as one call leaves them.
        fields: what is differentiated by: a field with a gradient, or a list of them.
        loss: as for `ds.ad.hvp`.

    Returns:
        A square array with a row and a column for each number in the fields, one field after the other, in
        the order of `to_numpy`; as computed, and so symmetric up to rounding.

    Raises:
        AutodiffError: and its kind, in the line whose derivative cannot be given.

    Example:
        x = ds.field(ds.f64, shape=2, needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)
        x.fill(2.0)

        @ds.kernel
        def add_cubes():
            for i in x:
                loss[None] += x[i] ** 3

        print(ds.ad.hessian(add_cubes, x, loss=loss).tolist())  # prints: [[12.0, 0.0], [0.0, 12.0]]
    """
    run = _SecondOrder(function, _fields(fields), loss)
    shapes = [f.shape + f.element for f in run.fields]
    sizes = [int(np.prod(s)) for s in shapes]
    ends = np.cumsum([0, *sizes])
    units, columns = np.eye(ends[-1]), []
    run.start = StartSnapshot()
    for first in range(0, ends[-1], GROUP):
        if first:
            run.go_back()
        some = units[first : first + GROUP]
        parts = np.split(some, ends[1:-1], axis=1)
        found = run.products([p.reshape(-1, *s) for p, s in zip(parts, shapes, strict=True)])
        columns.append(np.concatenate([p.reshape(len(some), -1) for p in found], axis=1))
    # The products are columns.
    return np.ascontiguousarray(np.concatenate(columns).T)


class _SecondOrder:
    """A function and its loss, for products with the Hessian.

    Attributes:
        start: what fields held before the first run; None: nothing goes back there.
    """

    def __init__(
        self, function: Callable[[], Any], fields: Sequence[Field], loss: Field | None
    ) -> None:
        need_function(function, "function", "give one that launches kernels")
        check_runs(function, "the function", ())
        if loss is not None:
            check_loss(loss)
        self.function = function
        self.fields = fields
        self.loss = loss
        self.start: StartSnapshot | None = None

    def products(self, vectors: Sequence[Any]) -> list[Any]:
        """Run the function; return the products of its Hessian with vectors, for each field."""
        both = zip(self.fields, vectors, strict=True)
        count, seeds = aligned([seed_of(f, v, "vector") for f, v in both], "vector")
        width = width_for(count)
        for f in self.fields:
            _need_adjoint(f)
        _clear()
        plant(seeds, count, width)
        del seeds
        inputs = [f for f in members(session.with_dual) if width in f.duals]
        tape = Tape(in_place="save")
        tape.recorder = recorder = SecondOrderRecorder(width, inputs)
        key = id(_SecondOrder), width, -1 if self.loss is None else self.loss.number
        past = take(key)
        if past is not None:  # the memory of the copies of the last product
            recorder.saver.spare = past.spare
        recorder.snapshot = self.start
        if self.loss is not None:
            if self.start is not None:
                self.start.note(self.loss)
            self.loss.fill(0)
        with tape:
            returned = self.function()
        loss = _loss_of(returned) if self.loss is None else self.loss
        recorder.forward.watch.check([loss] if isinstance(loss, Field) else [], width)
        tape.backward(loss)
        if recorder.record.copies():
            keep(key, Past(recorder.record, recorder.saver.spare, whole=False))
        return [_product(f, width, count) for f in self.fields]

    def go_back(self) -> None:
        """Let all fields hold what they held before the first run."""
        assert self.start is not None
        for saved in self.start.saved.values():
            saved.restore()
        session.launches = self.start.launches


def _clear() -> None:
    """Set all gradients and duals to 0."""
    if session.tape is not None:
        raise AutodiffError(
            f"{session.tape.work.words} already, and second derivatives cannot be computed inside it",
            Span.of_caller(),
            hint=f"do it {session.tape.work.outside}",
        )
    if session.others_use_gradients():
        raise AutodiffError(
            "this would set all gradients to 0, while another thread records a tape or runs its backward "
            "pass",
            Span.of_caller(),
            hint="compute second derivatives when the other thread has ended",
        )
    clear_duals()
    for f in members(session.with_grad):
        f.adjoint.clear()


def _fields(given: Any) -> Sequence[Field]:
    """Return the fields to differentiate by; a list of them stays what it is."""
    found = given if isinstance(given, (list, tuple)) else [given]
    for f in found:
        if not isinstance(f, Field) or not f.dtype.is_float:
            raise FieldError(
                f"second derivatives are those by fields of floats, and this is {describe(f)}",
                Span.of_caller(),
                hint="give a field with needs_grad=True, or a list of such fields",
            )
    if not found or len(set(map(id, found))) != len(found):
        raise FieldError(
            "a field is given twice" if found else "there is no field to differentiate by",
            Span.of_caller(),
            hint="give each field once: ds.ad.hvp(function, [x, y], ...)",
        )
    return found


def _need_adjoint(f: Field) -> None:
    if session.lifts_rules:
        lend_adjoint(f)
    if f.adjoint is None:
        raise MissingGradientError(
            f"{f.name} has no gradient, and second derivatives are those of gradients",
            Span.of_caller(),
            hint="declare it with needs_grad=True",
        ).advising(switch=True)


def _loss_of(returned: Any) -> Field | Recorded:
    if isinstance(returned, Recorded):
        return returned
    if returned is None:
        raise ArgumentError(
            "the function returns nothing, and no loss is named",
            Span.of_caller(),
            hint="return the field of the loss, or name it: ds.ad.hvp(..., loss=loss)",
        )
    check_loss(returned)
    loss: Field = returned
    return loss


def _product(f: Field, width: int, count: int | None) -> np.ndarray[Any, Any]:
    """Return the tangents of a field's gradient."""
    shape = f.shape + f.element
    dual = None if f.adjoint is None else f.adjoint.duals.get(width)
    if dual is None:  # nothing reads it
        return np.zeros(shape if count is None else (count, *shape))
    found: np.ndarray[Any, Any] = dual.to_numpy()
    if width > 1:
        return np.moveaxis(found, len(f.shape), 0)[:count]
    return found if count is None else found[None]
