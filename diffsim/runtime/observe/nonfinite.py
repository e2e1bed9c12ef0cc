"""Where a launch got a NaN or an infinity from: it is run once more, from what was there before.

`OriginSearch` runs the traced kernel (`passes/instrument/nonfinite.py`) on the memory as it was before the
launch. It serves `ds.Tape(check_nan=True)`, which has found the number itself, and `FiniteWatch`, which looks
at each launch with `debug=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsim.errors import KernelArithmeticError, Span
from diffsim.ir import nodes
from diffsim.ir.layout import shown_index
from diffsim.ir.nodes import Atomic, Const, Mem, Store, Value
from diffsim.ir.op import TABLE
from diffsim.ir.types import f64, i32
from diffsim.passes.instrument.nonfinite import (
    INDEX,
    MOST_OPERANDS,
    ORIGIN,
    SIZE,
    STORE,
    STORED,
    Origin,
    flag_stores,
    trace_origins,
)
from diffsim.runtime import compiler
from diffsim.runtime.backend import Backend
from diffsim.runtime.executable import Executable
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import WHOLE
from diffsim.runtime.memory.storage import Part as Place
from diffsim.runtime.variable_names import name_in_launch

INFINITE, NAN = 1, 2
WORD = {INFINITE: "infinite", NAN: "NaN"}
CAUSES = {
    INFINITE: "look for a division by 0, the logarithm of 0, a number beyond the type's range",
    NAN: "look for 0 / 0, inf - inf, the root or logarithm of a negative number",
}
_OF_ADJOINTS = {
    INFINITE: ", and for infinite derivatives, as of 1 / x at 0",
    NAN: ", and for infinite derivatives times 0",
}
_COMPONENTS = "xyzw"
_MOST_DIGITS = 12
_GROWS = frozenset("add sub mul accumulate exp exp2 sinh cosh sum cast".split())
_TOO_LARGE = "the numbers have grown beyond the type's range: a smaller time step, or f64"
_KEEP_AWAY = (
    "keep the operands away from there: ds.max(x, 0.0) under a root, a small number added to a denominator, "
    "an if around the statement"
)
_NO_DERIVATIVE = (
    "the derivative of this line has no finite value here: a small number added under a root or to a "
    "denominator, or an if around the statement, keeps away from there"
)


def faults(values: np.ndarray, *, nan_alone: bool) -> np.ndarray:
    """Return for each number 0, `NAN`, or `INFINITE`."""
    found = np.where(np.isnan(values), np.int8(NAN), np.int8(0))
    if not nan_alone:
        found[np.isinf(values)] = INFINITE
    return found


Part = tuple[object, Place]
"""A field or array that a launch writes, and the indices of one axis that it stays within."""


class KeptMemory:
    """Copies of what a launch writes.

    Args:
        parts: of which memory.
        spare: memory of earlier copies, which is used again.

    Attributes:
        is_whole: whether everything was copied: not arrays of other libraries on a GPU.
    """

    def __init__(self, parts: Iterable[Part], spare: SpareMemory | None = None) -> None:
        every = {(id(thing), place): (thing, place) for thing, place in parts}
        # A part of a field that is copied as a whole needs no copy of its own.
        self.parts = [
            p for key, p in every.items() if key[1] == WHOLE or (key[0], WHOLE) not in every
        ]
        self.is_whole = all(isinstance(thing, (Field, np.ndarray)) for thing, _ in self.parts)
        take = SpareMemory().take if spare is None else spare.take
        self._copies = [
            thing.storage.snapshot(place, take((thing.storage.layout, place[0], place[2])))
            if isinstance(thing, Field)
            else np.array(thing)
            for thing, place in self.parts
        ]

    def put_back(self) -> None:
        """Set the memory to what was copied."""
        for (thing, place), copy in zip(self.parts, self._copies, strict=True):
            if isinstance(thing, Field):
                thing.storage.restore(copy, place)
            elif isinstance(thing, np.ndarray):
                thing[...] = copy

    def end(self, spare: SpareMemory) -> None:
        """Give the copies' memory to later ones; this one is of no use afterwards."""
        for (thing, place), copy in zip(self.parts, self._copies, strict=True):
            if isinstance(thing, Field):
                spare.give((thing.storage.layout, place[0], place[2]), copy)
        self.parts, self._copies = [], []


class SpareMemory:
    """Memory of copies that are no longer needed, by what it may hold.

    New memory costs more than the copy: the system clears it page by page.
    """

    def __init__(self) -> None:
        self._free: dict[Hashable, list[Any]] = {}

    def take(self, form: Hashable) -> Any:
        """Return memory for a copy of this form; None: there is none."""
        found = self._free.get(form)
        return found.pop() if found else None

    def give(self, form: Hashable, memory: Any) -> None:
        """Keep memory for the next copy."""
        self._free.setdefault(form, []).append(memory)


@dataclass(frozen=True, slots=True)
class Found:
    """The first number that is not finite of a launch.

    Attributes:
        store: the statement that stored it, at `index`.
        number: what was stored.
        origin: the statement that made `result` of `operands`, in the iterations `loops`.
    """

    store: Store | Atomic
    index: tuple[int, ...]
    number: float
    origin: Origin
    result: float
    operands: tuple[float, ...]
    loops: tuple[int, ...]

    @property
    def fault(self) -> int:
        return NAN if np.isnan(self.number) else INFINITE

    def made(self) -> str:
        """Describe how it was made: sqrt(-1.0) is NaN, in the iteration i = 2."""
        where = ", ".join(
            f"{name} = {k}" if name else str(k)
            for name, k in zip(self.origin.loops, self.loops, strict=True)
        )
        return f"{self._expression()}{f', in the iteration {where}' if where else ''}"

    def _expression(self) -> str:
        mem = self.origin.mem
        if mem is not None and any(mem.origin):
            index = shown_index(mem.origin, [int(k) for k in self.operands[: mem.rank]])
            return f"{mem.name}[{index}] was NaN before"
        numbers = [_text(v, x) for v, x in zip(self.origin.operands, self.operands, strict=False)]
        name = self.origin.name
        if self.origin.mem is not None:
            return f"{self.origin.mem.name}[{', '.join(numbers) or 'None'}] was NaN before"
        sign = TABLE[name].sign if name in TABLE else name
        infix = len(numbers) == 2 and not sign[0].isalpha()
        text = f" {sign} ".join(numbers) if infix else f"{sign}({', '.join(numbers)})"
        return f"{text} is {'NaN' if np.isnan(self.result) else self.result}"

    def hint(self, *, adjoint: bool) -> str:
        """Return what to do about it."""
        if self.origin.mem is not None:
            return "look at where this value comes from"
        if self.origin.name in _GROWS and all(map(np.isfinite, self.operands)):
            return _TOO_LARGE
        return _NO_DERIVATIVE if adjoint else _KEEP_AWAY

    def message(self, launch: str, thing: object) -> tuple[str, Span]:
        """Return the message of an error, and the line that made the number.

        Args:
            launch: in words.
            thing: the field or array that it was stored to; None: the launch returned it.
        """
        what = "its result" if thing is None else self._place(name_in_launch(self.store.mem, thing))
        text = f"{what} became {WORD[self.fault]} in {launch}: {self.made()}"
        made, stored = self.origin.span, self.store.span
        if (made.file, made.line) != (stored.file, stored.line):
            verb = "read" if self.origin.mem is not None else "made"
            text += f"\n  stored here:\n{stored.text()}\n  {verb} here:"
        return text, made

    def _place(self, name: str) -> str:
        """Return the element as a program writes it: x[2, 3], v[2].y."""
        mem = self.store.mem
        rank = mem.rank
        at, component = self.index[:rank], self.index[rank:]
        text = f"{name}[{shown_index(mem.origin, at)}]"
        if len(component) == 1 and component[0] < len(_COMPONENTS):
            return f"{text}.{_COMPONENTS[component[0]]}"
        return f"{text}[{', '.join(map(str, component))}]" if component else text


def _text(v: Value, number: float) -> str:
    if isinstance(v, Const):
        return str(v.value)
    if v.type.is_bool:
        return str(bool(number))
    if v.type.is_int:
        return str(int(number))
    exact = str(v.type.scalar.numpy.type(number))
    return exact if len(exact) <= _MOST_DIGITS else f"{number:.6g}"


Run = Callable[[Executable], object]
"""Runs a launch again with other machine code."""


class OriginSearch:
    """Runs launches of one kernel again, to find out which operation made a number that is not finite."""

    def __init__(
        self, ir: nodes.Kernel, backend: Backend, *, nan_alone: bool, loads: bool = False
    ) -> None:
        self._traced = traced = trace_origins(ir, nan_alone=nan_alone, loads=loads)
        self._executable = compiler.compile_kernel(traced.kernel, backend)
        self._notes = Field(f64, (), name="notes", kind="array")
        self._notes.place((SIZE,))

    def find(self, run: Run, before: KeptMemory) -> Found | None:
        """Return what the launch made first; None: no operation made such a number.

        Args:
            run: the launch.
            before: what it wrote, as it was before. The memory is afterwards as it is now.
        """
        after = KeptMemory(before.parts)
        self._notes.storage.fill(0)
        self._executable.bind_array(self._traced.notes, self._notes.address, self._notes.shape)
        try:
            before.put_back()
            run(self._executable)
            return self._read(self._notes.storage.to_numpy()[:, 0])
        finally:
            after.put_back()

    def _read(self, notes: np.ndarray) -> Found | None:
        number = int(notes[ORIGIN])
        if not number:
            return None
        store = self._traced.stores[int(notes[STORE]) - 1]
        index = tuple(map(int, notes[INDEX : INDEX + len(store.index)]))
        made_by, result, *rest = notes[self._traced.row(number)].tolist()
        origin = self._traced.origins[int(made_by) - 1]
        operands, loops = rest[:MOST_OPERANDS], rest[MOST_OPERANDS:]
        return Found(
            store,
            index,
            float(notes[STORED]),
            origin,
            result,
            tuple(operands[: len(origin.operands)]),
            tuple(map(int, loops[: len(origin.loops)])),
        )


def general_hint(fault: int, *, adjoint: bool) -> str:
    """Return what to look for, where the operation is not known."""
    return CAUSES[fault] + (_OF_ADJOINTS[fault] if adjoint else "")


class FiniteWatch:
    """Looks after each launch of a kernel whether an operation made a number that is not finite.

    Args:
        name: returns the launch with these arguments in words.
        ir: the prepared kernel, or its adjoint.
        nan_alone: whether infinities are left out.
        parts: the memories that a launch with these arguments writes, and what they are in it.

    Attributes:
        flag: what the kernel sets where it stores such a number; a memoryview on the CPU.
    """

    def __init__(
        self,
        name: Callable[[tuple[Any, ...]], str],
        ir: nodes.Kernel,
        backend: Backend,
        *,
        nan_alone: bool,
        adjoint: bool,
        parts: Callable[[tuple[Any, ...]], Sequence[tuple[Mem, Part]]],
    ) -> None:
        self.name = name
        self._ir = ir
        self._backend = backend
        self._nan_alone = nan_alone
        self._adjoint = adjoint
        self._parts = parts
        self._search: OriginSearch | None = None
        self._spare = SpareMemory()
        self._field = Field(i32, (), name="nonfinite")
        self._field.place(())

    def transform(self, kernel: nodes.Kernel) -> nodes.Kernel:
        """Return the kernel that sets the flag."""
        return flag_stores(kernel, self._field._mem, nan_alone=self._nan_alone)

    def before(self, *args: object) -> KeptMemory:
        """Copy what a launch is about to write."""
        return KeptMemory((part for _, part in self._parts(args)), self._spare)

    def look(self, before: KeptMemory, run: Run, args: tuple[Any, ...]) -> None:
        """Look at what a launch has stored.

        Raises:
            KernelArithmeticError: an operation made a number that is not finite.
        """
        flat = self._field.storage.flat
        if not flat[0]:
            before.end(self._spare)
            return
        flat[0] = 0
        if self._search is None:
            self._search = OriginSearch(self._ir, self._backend, nan_alone=self._nan_alone)
        # Without all of what was there before, what it would compute is something else.
        found = self._search.find(run, before) if before.is_whole else None
        if found is not None:
            raise self._error(found, args)

    def _error(self, found: Found, args: tuple[Any, ...]) -> KernelArithmeticError:
        launch = self.name(args)
        if self._adjoint:
            launch = f"the adjoint of {launch}"
        thing = dict(self._parts(args)).get(found.store.mem, (None, None))[0]
        message, line = found.message(launch, thing)
        hint = found.hint(adjoint=self._adjoint)
        return KernelArithmeticError(
            message,
            line,
            hint=f"{hint}; where such numbers are meant, ds.init(debug=True, check_nan=False)",
        )
