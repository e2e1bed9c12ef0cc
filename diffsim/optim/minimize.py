"""`ds.optim.minimize`: the methods of SciPy that follow gradients, over fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffsim.ad.hessians.hessian import hvp
from diffsim.errors import (
    ArgumentError,
    AutodiffError,
    DiffsimError,
    MissingPackageError,
    OptionError,
    Span,
    shown,
)
from diffsim.lang.host import peer_names
from diffsim.lang.host.signatures import (
    checked,
    is_one_of,
    need_bool,
    need_function,
    need_number,
    need_whole,
)
from diffsim.lang.host.source import check_runs
from diffsim.lang.host.unsupported import Explained, close_to
from diffsim.optim.flat_parameters import FlatParameters
from diffsim.optim.runs.interrupts import stopped_by_ctrl_c
from diffsim.optim.runs.objective import Objective
from diffsim.runtime.fields.field import Field
from diffsim.runtime.observe.progress import ProgressBar
from diffsim.runtime.session import session
from diffsim.tracebacks import add_own

_BOUNDED = ("L-BFGS-B", "TNC", "SLSQP", "trust-constr")
_OF_SECOND_ORDER = ("Newton-CG", "trust-ncg", "trust-krylov", "trust-constr")
_METHODS = ("BFGS", "CG", *_BOUNDED, *_OF_SECOND_ORDER[:-1])
_LIMITS = {"L-BFGS-B": {"maxfun": 10**9}, "TNC": {"maxfun": 10**9}}
"""Options without which a method would end before its iterations are done."""


@dataclass
class Minimum(Explained):
    """The result of a minimisation; made by `ds.optim.minimize`, whose callbacks get it while it runs.

    Attributes:
        loss: the lowest one, at the values that the fields have now.
        losses: after each iteration.
        evaluations: how often the loss and its gradient were computed.
        converged: whether the method ended by itself, as nothing was left to gain.
        message: why it ended, in its own words.
        interrupted: whether Ctrl-C ended it.

    Example:
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def compute():
            loss[None] = (x[None] - 3.0) ** 2

        found = ds.optim.minimize(x, compute, loss=loss, progress=False)
        print(found.loss < 1e-9, found.evaluations >= len(found.losses))  # prints: True True
    """

    _words = "the result of a minimisation"
    _advice = peer_names.OF_MINIMUM

    loss: float = math.inf
    losses: list[float] = field(default_factory=list)
    evaluations: int = 0
    converged: bool = False
    message: str = ""
    interrupted: bool = False


class _Ended(Exception):
    """Ends SciPy's loop: by Ctrl-C, or as the callback wants it."""


@checked
def minimize(
    fields: Any,
    program: Callable[[], Any],
    method: str = "L-BFGS-B",
    loss: Field | None = None,
    iterations: int = 100,
    *,
    bounds: Any = None,
    tolerance: float | None = None,
    callback: Callable[[Minimum], Any] | None = None,
    options: Mapping[str, Any] | None = None,
    replay: bool | None = None,
    progress: bool = True,
) -> Minimum:
    """Find the values of fields at which a loss is lowest, by a method of SciPy.

        found = ds.optim.minimize([w, b], simulate, bounds=(-1, 1))

    The fields hold the best values at the end. Numbers are handed to SciPy in f64: fields of f32 end where
    their rounding hides what is left to gain.

    Args:
        fields: a field with a gradient, or a list or a dictionary of such fields.
        program: launches kernels, and returns the field of the loss: a function of the fields alone.
        method: L-BFGS-B, BFGS, CG, TNC or SLSQP, which use gradients; Newton-CG, trust-ncg, trust-krylov or
            trust-constr, which use products with the matrix of second derivatives too (`ds.ad.hvp`).
        loss: a field of a single element, if the program does not return it. It is set to 0 before each run.
        iterations: how many at most.
        bounds: the least and the greatest value, None for no bound: a pair for all fields, or a list or
            dictionary as `fields` is, with a pair for each. Arrays bound each number by its own.
        tolerance: where to end; what it means is up to the method (`tol` of `scipy.optimize.minimize`).
        callback: called after each iteration, with what was found so far; True ends the search.
        options: further options of the method, by SciPy's names.
        replay: whether to run the first call's launches again in place of calling the program, which is
            faster. True: the program launches the same each time. If left out, where that is proved.
        progress: whether to show a progress bar.

    Raises:
        ArgumentError: arguments that do not fit.
        MissingPackageError: SciPy is not installed.
        AutodiffError: and its kind: a gradient cannot be given; the loss or a gradient is not finite.

    Example:
        x = ds.field(ds.f64, shape=(), needs_grad=True)
        loss = ds.field(ds.f64, shape=(), needs_grad=True)

        @ds.kernel
        def compute():
            loss[None] = (x[None] - 3.0) ** 2

        found = ds.optim.minimize(x, compute, loss=loss, progress=False)
        print(round(x[None], 6), found.converged)  # prints: 3.0 True
    """
    _check(method, iterations, callback, bounds)
    need_number(tolerance, "tolerance")
    need_bool(progress, "progress")
    scipy_minimize = _scipy_minimize()
    flat = FlatParameters(fields)
    objective = Objective(program, loss, flat.fields, replay=replay)
    search = _Search(objective, flat, callback, ProgressBar(iterations, shown=progress))
    given: dict[str, Any] = {"method": method, "tol": tolerance}
    if bounds is not None:
        search.low, search.high = flat.bounds(bounds)
        given["bounds"] = list(zip(search.low, search.high, strict=True))
    if method in _OF_SECOND_ORDER:
        given["hessp"] = search.hessian_product
    limit = {"maxiter": iterations} if method != "TNC" else {}
    given["options"] = {**limit, **_LIMITS.get(method, {}), **(options or {})}
    search.run(scipy_minimize, given)
    return search.found


def _check(method: Any, iterations: Any, callback: Any, bounds: Any) -> None:
    if not is_one_of(method, *_METHODS):
        raise OptionError(
            f"there is no method {shown(method)} that uses gradients",
            Span.of_caller(),
            _meant(method),
        )
    if bounds is not None and method not in _BOUNDED:
        raise OptionError(
            f"{method} knows no bounds", Span.of_caller(), f"use one of {', '.join(_BOUNDED)}"
        )
    need_whole(iterations, "iterations")
    if iterations is None or iterations < 1:
        raise ArgumentError(
            f"iterations starts at 1, and is {iterations}", Span.of_caller(), "write iterations=100"
        )
    if callback is not None:
        need_function(callback, "callback", "give one of one parameter: def callback(found): ...")
        check_runs(callback, "callback", ("found",))


def _meant(method: Any) -> str:
    """Return what to write for a missing method."""
    name = str(method)
    plain = name.upper().replace("-", "").replace("_", "")
    # Names without hyphens, and PyTorch's LBFGS.
    for known in _METHODS:
        if plain in (
            known.upper().replace("-", ""),
            known.upper().replace("-", "").removesuffix("B"),
        ):
            return f'write method="{known}"'
    if plain in ("ADAM", "SGD", "GD", "GRADIENTDESCENT"):
        return "write ds.optim.train(program, ds.optim.Adam(fields, lr=0.01), iterations=100)"
    close = close_to(name, list(_METHODS)) or close_to(name.upper(), list(_METHODS))
    return f"did you mean {close}?" if close else f"use one of {', '.join(_METHODS)}"


def _scipy_minimize() -> Any:
    try:
        import scipy.optimize  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingPackageError(
            f"ds.optim.minimize takes its methods from SciPy, which cannot be imported: {error}",
            Span.of_caller(),
            hint='install it: pip install "diffsim-lang[sparse]"; ds.optim.Adam and ds.optim.train need none',
        ) from None
    # SciPy calls the program, and an error in it names the line that called `minimize`.
    add_own(scipy.__path__[0])
    return scipy.optimize.minimize


class _Search:
    """One call of `minimize`: the functions that SciPy calls, and what they found so far.

    Attributes:
        found: what is returned in the end.
        low, high: the bounds.
    """

    def __init__(
        self,
        objective: Objective,
        flat: FlatParameters,
        callback: Callable[[Minimum], Any] | None,
        bar: ProgressBar,
    ) -> None:
        self.objective, self.flat, self.callback, self.bar = objective, flat, callback, bar
        self.found = Minimum()
        self.low: Any = -math.inf
        self.high: Any = math.inf
        self._best = flat.values()

    def run(self, scipy_minimize: Any, given: dict[str, Any]) -> None:
        """Let SciPy search, from the present values; the fields have the best ones at the end."""
        found = self.found
        self._best = np.clip(self._best, self.low, self.high)
        try:
            with stopped_by_ctrl_c() as stop:
                self._stop = stop
                result = scipy_minimize(
                    self.value_and_gradient, self._best, jac=True, callback=self._after, **given
                )
                found.converged, found.message = bool(result.success), str(result.message)
        except _Ended:
            found.interrupted = self._stop.is_set()
            done = len(found.losses) == self.bar.total
            found.message = (
                "Ctrl-C"
                if found.interrupted
                else "all iterations are done"
                if done
                else "the callback returned True"
            )
        finally:
            self.bar.close()
            self.flat.set(self._best)

    def value_and_gradient(self, x: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        """Return the loss and its gradient."""
        found, launches = self.found, session.launches
        self.flat.set(x)
        loss = self.objective.evaluate()
        found.evaluations += 1
        gradient = self.flat.gradient()
        if not (math.isfinite(loss) and np.isfinite(gradient).all()):
            raise self._not_finite(loss, launches)
        # Some methods look beyond the bounds on their way.
        if loss < found.loss and ((self.low <= x) & (x <= self.high)).all():
            found.loss, self._best = loss, x.copy()
        return loss, gradient

    def hessian_product(
        self, x: np.ndarray[Any, Any], v: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the product of the matrix of second derivatives with a vector."""
        self.flat.set(x)
        fields = list(self.flat.fields.values())
        products = hvp(self.objective.program, fields, self.flat.parts(v), loss=self.objective.loss)
        return self.flat.join(products)

    def _after(self, intermediate_result: Any, *_: Any) -> None:
        """Note that an iteration is done."""
        found = self.found
        # Some methods pass the values alone; the best loss is that of the last iteration then.
        found.losses.append(float(getattr(intermediate_result, "fun", found.loss)))
        self.bar.update(len(found.losses), f"loss {found.losses[-1]:.6g}")
        if self.callback is not None and self.callback(found) is True:
            raise _Ended
        if self._stop.is_set() or len(found.losses) == self.bar.total:
            raise _Ended

    def _not_finite(self, loss: float, launches: int) -> DiffsimError:
        where = f"in evaluation {self.found.evaluations}"
        hint = "bound the fields (bounds=...), or start nearer"
        try:
            self.objective.explain(launches)
        except DiffsimError as error:
            message = f"the loss is {loss} {where}: {error.message}"
            return AutodiffError(message, error.span, f"{error.hint}; or {hint}")
        return AutodiffError(
            f"the loss or its gradient is not finite {where}: the loss is {loss}",
            Span.of_caller(),
            hint,
        )
