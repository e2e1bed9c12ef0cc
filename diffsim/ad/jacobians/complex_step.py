"""The complex step: derivatives from imaginary parts, without a difference.

    f'(x) = imag(f(x + ih)) / h   for an analytic f, with h = 1e-30: exact up to rounding

(J. N. Lyness and C. B. Moler, Numerical differentiation of analytic functions, 1967.) The program runs once
more. Before each launch the interpreter runs its kernel on complex numbers
(`backends/complex_interpreter.py`): real parts are what the fields hold, imaginary parts are kept here. Then
the launch itself runs, so that real parts are always the program's own.

What the program declares constant has no imaginary part: `ds.stop_grad`, code in `ds.ad.no_grad()`. A func
with a gradient of its own runs as it stands. Refused is what does not go through kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diffsim.ad.jacobians.program import Program
from diffsim.ad.record.elements import Index, numpy_index, values_of
from diffsim.ad.record.entries import Launched, Stored, Wrote
from diffsim.ad.record.entry import Entry, flat
from diffsim.ad.record.replaced import Replaced
from diffsim.backends.complex_interpreter import HINT, run_complex
from diffsim.errors import AutodiffError
from diffsim.ir.nodes import Mem
from diffsim.runtime.binding.arguments import takes_field
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.specialization import Specialization
from diffsim.runtime.memory.versions import span_of
from diffsim.runtime.recorder import NullRecorder
from diffsim.runtime.session import session


def complex_step(program: Program, along: Mapping[Field, np.ndarray], h: float) -> list[np.ndarray]:
    """Return the derivatives of the outputs along a direction of the inputs.

    Raises:
        AutodiffError: something in the program has no complex step.
    """
    check_entries(program.tape.entries)
    program.runs += 1
    recorder = _ImaginaryParts()
    for f, direction in along.items():
        recorder.parts[f] = np.array(h * direction).reshape(f.shape + f.element)
    with program.start.again():
        session.tape = recorder
        program.run()
    zero = np.zeros(())
    shapes = [o.shape + o.element for o in program.outputs]
    ends = [recorder.parts.get(o, zero) for o in program.outputs]
    return [np.broadcast_to(p, s).reshape(-1) / h for p, s in zip(ends, shapes, strict=True)]


class _ImaginaryParts(NullRecorder):
    """Follows a run with complex numbers; `parts` are the imaginary ones of each field that has some."""

    intercepts = True

    def __init__(self) -> None:
        self.parts: dict[Field, np.ndarray] = {}

    # ---- launches

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> None:
        """Run a launch that writes, which is all that may matter, on complex numbers."""
        parameters = special.arguments.parameters
        if any(takes_field(p, a) for p, a in zip(parameters, args, strict=True)):
            return  # another variant of the kernel takes its place, and is announced, too
        mems = [m for m in special.ir.mems if m.kind in ("field", "array")]
        things = {m: special.object_of(m, args) for m in mems}
        if not any(isinstance(thing, Field) and thing in self.parts for thing in things.values()):
            return
        # By the object: an array may be a field that the kernel knows by name, too.
        arrays = {id(thing): self._numbers(m, thing) for m, thing in things.items()}
        memory = {m: arrays[id(thing)] for m, thing in things.items()}
        # The key that the launch is about to draw (`launch_function.py`).
        seed = (session.options.random_seed << 32) + session.launches + 1
        scalars = special.arguments.scalars(args)
        run_complex(special.ir, memory, scalars, seed, constant=special.mode.is_detached)
        for m, thing in things.items():
            if np.iscomplexobj(memory[m]):
                self._keep(special, m, thing, np.imag(memory[m]))

    def _numbers(self, mem: Mem, thing: Any) -> np.ndarray:
        """Return what a field or array holds, with its imaginary parts."""
        kind = np.complex128 if mem.dtype.is_float else mem.dtype.scalar.numpy
        if not isinstance(thing, Field):
            return np.array(thing, kind)
        made = values_of(thing).reshape(thing.shape + thing.element).astype(kind)
        if thing in self.parts:
            made.imag = self.parts[thing]
        return made

    def _keep(self, special: Specialization, mem: Mem, thing: Any, imag: np.ndarray) -> None:
        if isinstance(thing, Field):
            self.parts.pop(thing, None)
            if imag.any():
                self.parts[thing] = imag.copy()
        elif imag.any():
            raise AutodiffError(
                f"{mem.name}, an array that is not a field, depends on the inputs in {special.name}: what is "
                "done with it in Python has no complex step",
                special.kernel.source.head(),
                hint=HINT,
            )

    # ---- writes from Python

    def wrote(self, field: Field, index: Index, value: Any) -> None:
        if field in self.parts:
            self.parts[field][numpy_index(field, index)] = 0

    def stopped(self, field: Field) -> None:
        self.parts.pop(field, None)

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        if source not in self.parts:
            self.wrote(target, to, None)
        elif target.dtype.is_float:
            imag = self.parts[source][numpy_index(source, at)].copy()
            own = self.parts.setdefault(target, np.zeros(target.shape + target.element))
            own[numpy_index(target, to)] = imag


# ---- what does not go through kernels


def check_entries(record: Any) -> None:
    """Refuse a recorded program whose dependences go through Python."""
    for e in record:
        if (
            isinstance(e, Replaced)
            and e.is_opaque
            and not (e.by_user and _launches_alone(e.inside))
        ):
            raise AutodiffError(f"{e.name} has no complex step: it is no kernel", e.span, hint=HINT)
    for e in flat(record):
        if isinstance(e, Stored):
            raise AutodiffError(
                "a value that a kernel returned, or that is made of one in Python, has no complex step",
                span_of(e.writer),
                hint=HINT,
            )
    given = [e for e in flat(record) if isinstance(e, Wrote) and e.is_given()]
    if given and record.reads:
        raise AutodiffError(
            f"fields are read out in Python, and {given[-1].field.name} is set there: if one is made of the "
            "other, the complex step cannot see it",
            span_of(given[-1].writer),
            hint=HINT,
        )


def _launches_alone(inside: Any) -> bool:
    """Whether a function with a gradient of its own leaves all that it computes to kernels."""
    return not any(map(_goes_through_python, flat(inside)))


def _goes_through_python(entry: Entry) -> bool:
    if isinstance(entry, Launched):
        return bool(entry.special.returns_float)
    value = getattr(entry, "value", None)
    return isinstance(value, np.ndarray) and bool(value.any())
