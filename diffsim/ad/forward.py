"""Forward mode: `with ds.ad.FwdMode(loss, param):` computes tangents with the program (docs/adr/0039)."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from diffsim.ad.checks.integrity import session_reset
from diffsim.ad.tangent_recorder import TangentRecorder
from diffsim.errors import ArgumentError, AutodiffError, FieldError, Span, shown
from diffsim.lang.host.copying import refuse
from diffsim.lang.host.signatures import checked_methods, need_bool
from diffsim.lang.host.unsupported import Explained
from diffsim.lang.types.descriptions import describe
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.adjoints import clear_all_dual, make_dual
from diffsim.runtime.fields.conversions import array_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.session import session
from diffsim.runtime.threads import members
from diffsim.tracebacks import entries

MOST = 8
"""How many tangents are computed at once; code is made for 1, 4 and 8."""
_latest: weakref.ref[FwdMode] | None = None
"""The block whose tangents lie in the duals."""


@entries("__enter__ __exit__ __reduce_ex__")
@checked_methods("__init__ tangents")
class FwdMode(Explained, metaclass=PublicNames):
    """Computes tangents along with what runs inside `with`: directional derivatives, in one run.

        with ds.ad.FwdMode(loss=loss, param=x):
            simulate()
        loss.dual[None]  # d loss / d x

    Every field that depends on a param has its tangent afterwards: `y.dual` where it was declared with
    `needs_dual=True` or is named here, and `forward.tangents(y)` for any. Nothing is saved, state may be
    changed in place, and no rule restricts the program.

    Args:
        loss: a field of floats, or a list of them: what tangents are wanted of.
        param: what is differentiated by: a field of floats; a list of them; or a dictionary from fields to
            seeds.
        seed: the tangent of the param: numbers in its shape; a list of these, up to 8, computes as many
            tangents in one run. With several params: a list with one seed for each. If left out it is 1,
            where the param is a single number.
        clear_gradients: whether all duals are set to 0 on entry.

    Raises:
        AutodiffError: and its kind, in the line whose tangent cannot be given.
        ArgumentError: a seed that does not fit.

    Example:
        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)
        x.fill(3.0)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        with ds.ad.FwdMode(loss=y, param=x, seed=[1.0, 0.0, 0.5]) as forward:
            square()
        print(forward.tangents(y))  # prints: [6. 0. 3.]
    """

    _public = "tangents"

    _words = "forward mode"

    # Whether constants that Python sets first are inputs, as on a tape.
    keeps_inputs = True

    def __init__(
        self,
        loss: Any = None,
        param: Any = None,
        seed: Any = None,
        clear_gradients: bool = True,
    ) -> None:
        need_bool(clear_gradients, "clear_gradients")
        self.losses = [_checked(f, "loss") for f in _listed(loss)]
        seeds = _seeds(param, seed)
        self.count, self.seeds = aligned(seeds)
        self.width = width_for(self.count)
        self.clear_gradients = clear_gradients
        self.recorder: TangentRecorder | None = None
        self._seeded: dict[Field, int] = {}

    def __repr__(self) -> str:
        names = ", ".join(f.name for f in self.seeds)
        many = "" if self.count is None else f", {self.count} seeds"
        return f"<forward mode by {names or 'nothing'}{many}>"

    def __enter__(self) -> FwdMode:
        tape = session.tape
        if tape is not None:
            raise AutodiffError(
                f"{tape.work.words} already, and forward mode cannot run inside it",
                Span.of_caller(),
                hint=f"do it {tape.work.outside}",
            )
        self._clear()
        self._plant()
        known = members(session.with_dual) if self.keeps_inputs else ()
        inputs = [f for f in known if _dual_of(f, self.width) is not None]
        self.recorder = TangentRecorder(self.width, inputs)
        session.tape = self.recorder
        self._witness: tuple[int, Any] = session.add_witness(self.recorder)
        global _latest
        _latest = weakref.ref(self)
        return self

    def _clear(self) -> None:
        if self.clear_gradients:
            clear_duals()
            return
        # What a field was lent is the tangent of what it held then.
        for f in members(session.with_dual):
            dual = _dual_of(f, self.width)
            lent = self.width > 1 or not f.declares_dual
            if lent and dual is not None and f.versions.latest > dual.versions.latest:
                dual.clear()

    def _plant(self) -> None:
        """Set the tangents of the params."""
        for f in (*self.seeds, *self.losses):
            f.add_dual()
            make_dual(f, self.width)
        plant(self.seeds, self.count, self.width)
        self._seeded = {f: f.duals[self.width].versions.latest for f in self.seeds}

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        recorder = self.recorder
        assert recorder is not None
        session.remove_witness(self._witness)
        whole = session.tape is recorder
        if whole:
            session.tape = None
        if error is not None:
            return
        if not whole:
            raise session_reset()
        # A seed was for this block; what the program has written there is a tangent.
        for f, since in self._seeded.items():
            dual = f.duals[self.width]
            if f not in self.losses and dual.versions.latest == since:
                dual.clear()
        recorder.watch.check(self.losses, self.width)
        if not self.seeds:
            self._need_a_tangent()

    def _need_a_tangent(self) -> None:
        """Refuse a block without a param in which no dual was set: zeros would look like derivatives."""
        duals = [_dual_of(f, self.width) for f in members(session.with_dual)]
        if not any(dual.to_numpy().any() for dual in duals if dual is not None):
            raise ArgumentError(
                "nothing in this block has a tangent: param is missing, and no dual was set",
                Span.of_caller(),
                hint="write ds.ad.FwdMode(loss=loss, param=x)",
            )

    def tangents(self, y: Any) -> Any:
        """Return the tangents of a field's values, or of a value that a kernel returned in the block.

        Args:
            y: a field, an array, or what a kernel returned.

        Returns:
            An array in the shape of `y.to_numpy()`; with a list of seeds one for each of them, in order.

        Example:
            x = ds.field(ds.f64, shape=3, needs_grad=True)
            y = ds.field(ds.f64, shape=3, needs_grad=True)
            x.fill(3.0)

            @ds.kernel
            def square():
                for i in x:
                    y[i] = x[i] ** 2

            with ds.ad.FwdMode(loss=y, param=x, seed=[[1, 0, 0], [0, 1, 0]]) as forward:
                square()
            print(forward.tangents(y).tolist())  # prints: [[6.0, 0.0, 0.0], [0.0, 6.0, 0.0]]
        """
        if isinstance(y, Recorded):
            return self._of_value(y)
        if not isinstance(y, Field):
            raise FieldError(
                f"tangents are those of a field or a returned value, not of {describe(y)}",
                Span.of_caller(),
                hint="write forward.tangents(y)",
            )
        if _latest is None or _latest() is not self or self.recorder is None:
            raise AutodiffError(
                "these tangents are gone: another block of forward mode has begun since"
                if self.recorder is not None
                else "there are no tangents before the block has run",
                Span.of_caller(),
                hint="read them before the next block: with ds.ad.FwdMode(...) as forward: ...",
            )
        dual = _dual_of(y, self.width)
        if dual is None:  # nothing in the block gave it a tangent
            shape = y.shape + y.element
            return np.zeros(shape if self.count is None else (self.count, *shape))
        found = dual.to_numpy()
        if self.width > 1:
            return np.moveaxis(found, len(y.shape), 0)[: self.count]
        return found if self.count is None else found[None]

    def _of_value(self, y: Recorded) -> Any:
        if self.recorder is None or not y.belongs_to(self.recorder):
            raise AutodiffError(
                "this value was not returned in this block of forward mode",
                Span.of_caller(),
                hint="ask the block that it was returned in",
            )
        found = y.tangent[0 if self.count is None else slice(self.count)]
        return float(found) if not found.shape else found

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse `copy`, `deepcopy` and `pickle`."""
        raise refuse(
            "a block of forward mode",
            "its tangents are in fields of this process",
            "make another one: ds.ad.FwdMode(...)",
        )


def _dual_of(f: Field, width: int) -> Field | None:
    """Return the dual for that many tangents if it may hold anything but zeros."""
    dual = f.duals.get(width)
    return dual if dual is not None and dual.versions.dirty else None


# ---- arguments


def _listed(fields: Any) -> list[Any]:
    if fields is None:
        return []
    return list(fields) if isinstance(fields, (list, tuple)) else [fields]


def width_for(count: int | None) -> int:
    """Return for how many tangents code is made that computes so many (None: one)."""
    # A list with one seed is as cheap as the seed alone.
    many = count or 1
    return 1 if many == 1 else 4 if many <= 4 else MOST


def clear_duals() -> None:
    """Set all duals to 0, if no other thread uses them."""
    if any(session.recorders[n].tangents for n in list(session.recorders)):
        raise AutodiffError(
            "this would set all duals to 0, while another thread computes tangents",
            Span.of_caller(),
            hint="give the blocks of threads clear_gradients=False",
        )
    clear_all_dual()


@contextlib.contextmanager
def latest_block_kept() -> Iterator[None]:
    """Run blocks inside another one, which put back all duals: its tangents can be read afterwards."""
    global _latest
    before = _latest
    try:
        yield
    finally:
        _latest = before


def plant(seeds: Mapping[Field, np.ndarray], count: int | None, width: int) -> None:
    """Set the tangents of fields to seeds: one for each, or (`count`) a list of so many."""
    for f, seed in seeds.items():
        dual = make_dual(f, width)
        assert dual is not None
        given = seed if count is None else seed[0]
        if width > 1:
            given = np.zeros((width, *f.shape, *f.element))
            given[: len(seed)] = seed
            given = np.moveaxis(given, 0, len(f.shape))
        components = dual.storage.layout.components
        made = np.ascontiguousarray(given, dual.dtype.numpy)
        dual.storage.from_numpy(made.reshape((*dual.shape, components)))
        dual._touch()


def _checked(f: Any, role: str) -> Field:
    if not isinstance(f, Field):
        raise FieldError(
            f"{role} is a field, or a list of fields, not {describe(f)}",
            Span.of_caller(),
            hint=f"write ds.ad.FwdMode(loss=loss, param=x); the members of a field of structs are fields: "
            f"{role}=particles.pos",
        )
    if not f.dtype.is_float or f.is_dual:
        raise FieldError(
            f"{f.name}, given as {role}, has no tangent: it is {'a dual' if f.is_dual else f'of {f.dtype}'}",
            Span.of_caller(),
            hint="only floats have derivatives: use a field of ds.f32 or ds.f64",
        )
    f.shape  # noqa: B018 - refused if it has no place yet
    return f


def _seeds(param: Any, seed: Any) -> Iterator[tuple[Field, np.ndarray, bool]]:
    """Yield each param with its seed, and whether that is a list of seeds."""
    if isinstance(param, Mapping):
        if seed is not None:
            raise ArgumentError(
                "seed is given twice: param is a dictionary, which holds the seeds",
                Span.of_caller(),
                hint="write ds.ad.FwdMode(loss=loss, param={x: seed})",
            )
        for f, one in param.items():
            yield seed_of(_checked(f, "param"), one)
        return
    params = _listed(param)
    if seed is not None and not params:
        raise FieldError(
            "seed is given, and param is missing: the field that it is the tangent of",
            Span.of_caller(),
            hint="write ds.ad.FwdMode(loss=loss, param=x, seed=seed)",
        )
    if len(params) != len(set(map(id, params))):
        raise FieldError(
            "a field is given twice as param",
            Span.of_caller(),
            hint="give it once, with the sum of the seeds",
        )
    if not isinstance(param, (list, tuple)):
        for f in params:
            yield seed_of(_checked(f, "param"), seed)
        return
    given = [None] * len(params) if seed is None else seed
    if not isinstance(given, (list, tuple)) or len(given) != len(params):
        raise ArgumentError(
            f"there are {len(params)} params, and seed is not a list with one seed for each",
            Span.of_caller(),
            hint="write seed=[seed_of_x, seed_of_y]",
        )
    for f, one in zip(params, given, strict=True):
        yield seed_of(_checked(f, "param"), one)


def seed_of(f: Field, seed: Any, what: str = "seed") -> tuple[Field, np.ndarray, bool]:
    """Return the field with its seed as an array, and whether that is a list of seeds."""
    want = f.shape + f.element
    size = int(np.prod(want))
    if seed is None:
        if size == 1:
            return f, np.ones(want), False
        raise FieldError(
            f"{f.name} has {size} numbers, and a tangent is along one direction: the {what} is missing",
            Span.of_caller(),
            hint=f"give an array of shape {want}: 1 for the number to differentiate by and 0 for all others, "
            "or any direction; or a list of such arrays",
        )
    made = seed.to_numpy() if isinstance(seed, Field) else array_of(seed)
    if made.dtype.kind in "biuf":
        if made.shape == want:
            return f, made, False
        # Taichi's programs give the numbers of a matrix in a row.
        if made.shape == (size,) and (len(want) > 1 or want == (1,)):
            return f, made.reshape(want), False
        if made.ndim == len(want) + 1 and made.shape[1:] == want and len(made):
            return f, made, True
    raise FieldError(
        f"the {what} of {f.name} has the shape {want}, or one more axis in front for several "
        f"{what}s; this is "
        f"{describe(seed) if made.dtype.kind not in 'biuf' else f'of shape {made.shape}'}",
        Span.of_caller(),
        hint=f"give as many numbers as {f.name} has, in its shape",
    )


def aligned(
    seeds: Iterable[tuple[Field, np.ndarray, bool]], what: str = "seed"
) -> tuple[int | None, dict[Field, np.ndarray]]:
    """Return how many seeds there are (None: one, not in a list), and the seeds of each param."""
    found = list(seeds)
    counts = {len(seed) if is_list else None for _, seed, is_list in found}
    if len(counts) > 1:
        raise FieldError(
            f"the fields have different numbers of {what}s",
            Span.of_caller(),
            hint=f"give each field a list of as many {what}s as the others have",
        )
    count = counts.pop() if counts else None
    if count is not None and count > MOST:
        raise ArgumentError(
            f"these are {shown(count)} {what}s, and a run computes up to {MOST} tangents",
            Span.of_caller(),
            hint=f"run the program once for each {MOST} {what}s; a gradient by many numbers is quicker in "
            "reverse mode: ds.Tape",
        )
    return count, {f: seed for f, seed, _ in found}
