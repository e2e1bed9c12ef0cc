"""The interpreter with complex numbers: the complex step through a launch.

Floats may have a tiny imaginary part, which is their derivative times the step. Real parts are computed from
real parts alone, in the exact type, as without a step: so all branches, indices and rounded numbers are those
of the program, and nothing of the step gets into them (the square of ih is 0 and not -h^2). Imaginary parts
are in f64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diffsim.backends.interpreter import Interpreter, unset
from diffsim.errors import AutodiffError, Span
from diffsim.ir.nodes import Check, InlineLLVM, Kernel, Let, Mem, Print, Stmt, Store, Value
from diffsim.ir.op import ANALYTIC, BY_REAL_PART, TABLE, UNKNOWN, Op
from diffsim.ir.types import Type, converted

_COMBINE = {"add": TABLE["add"], "min": TABLE["min"], "max": TABLE["max"]}
HINT = 'check this with differences="ridders", which takes it'


def run_complex(
    kernel: Kernel,
    memory: Mapping[Mem, np.ndarray],
    args: Sequence[Any],
    seed: int,
    *,
    constant: bool = False,
) -> None:
    """Run a kernel on memory whose floats are complex128.

    Args:
        kernel: well-formed IR.
        memory: as for `interpreter.run`; changed in place.
        args: the arguments.
        seed: the launch's key for random numbers.
        constant: whether what it stores is declared constant.

    Raises:
        AutodiffError: a number with an imaginary part gets into what has no formula for complex numbers.
    """
    with np.errstate(all="ignore"):
        work = ComplexInterpreter(kernel, memory, args, seed, {})
        work.constant = constant
        for task in kernel.tasks:
            work.task(task)


class ComplexInterpreter(Interpreter):
    """The state of one run. A value is complex only where its imaginary part is not 0."""

    constant = False

    def number_type(self, mem: Mem) -> np.dtype:
        return np.dtype(np.complex128) if mem.dtype.is_float else super().number_type(mem)

    def unset(self, shape: tuple[int, ...], t: Type) -> np.ndarray:
        made = unset(shape, t)
        return made.astype(np.complex128) if t.is_float else made

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, InlineLLVM):
            raise AutodiffError(
                f"{s.name} is LLVM text, which has no complex step", s.span, hint=HINT
            )
        if isinstance(s, Store) and self.constant:
            at = self.place(s.mem, s.index, s.span)
            self.memory[s.mem][at] = np.real(self.value(s.value))
        else:
            super().stmt(s)

    def report(self, s: Check | Print) -> None:
        # The launch itself prints.
        if isinstance(s, Check):
            super().report(s)

    # ---- memory

    def load(self, mem: Mem, index: Sequence[Value], span: Span) -> Any:
        found = super().load(mem, index, span)
        return plain(found, mem.dtype)

    def update(self, op: str, mem: Mem, index: Sequence[Value], value: Any, span: Span) -> Any:
        old = self.load(mem, index, span)
        if self.constant:
            value = converted(np.real(value), mem.dtype.scalar)
        if not (np.iscomplexobj(old) or np.iscomplexobj(value)):
            return super().update(op, mem, index, value, span)
        at = self.place(mem, index, span)
        if op == "xchg":
            self.memory[mem][at] = value
            return old
        row, both = _COMBINE[op], (_complex(old), _complex(value))
        real = converted(row.ref(*(x.real for x in both)), mem.dtype.scalar)
        self.memory[mem][at] = _joined(real, imaginary(row, both, span), mem.dtype)
        return old

    # ---- ops

    def op(self, s: Let) -> Any:
        args = self.values(s.args)
        if not any(map(np.iscomplexobj, args)):
            return self.applied(s, args)
        operands = list(zip(args, s.args, strict=True))
        real = self.applied(s, [converted(np.real(x), v.type.scalar) for x, v in operands])
        constant = s.op.continuation is BY_REAL_PART
        # Integers have no imaginary part; bits of a float would lose it silently.
        if constant or not (s.out.type.is_float or s.op.continuation is UNKNOWN):
            return real
        # Integers and booleans choose elements and sides, and stay what they are.
        numbers = [_complex(x) if v.type.is_float else x for x, v in operands]
        return _joined(real, imaginary(s.op, numbers, s.span), s.out.type)


def imaginary(op: Op, args: Sequence[Any], span: Span) -> Any:
    """Return the imaginary part of an op of complex numbers, as an array or number."""
    how = op.continuation
    if how is UNKNOWN:
        raise AutodiffError(f"{op.sign} has no complex step", span, hint=HINT)
    function = op.ref if how is ANALYTIC else how
    assert callable(function)
    return np.imag(function(*args))


def plain(x: Any, t: Type) -> Any:
    """Return numbers without imaginary parts as the real numbers that they are."""
    if np.iscomplexobj(x) and not np.any(np.imag(x)):
        return converted(np.real(x), t.scalar)
    return x


def _complex(x: Any) -> Any:
    return np.asarray(x).astype(np.complex128)[()]


def _joined(real: Any, imag: Any, t: Type) -> Any:
    """Return the complex numbers of these parts; where there is no real one there is no other."""
    made, parts = np.array(real, np.complex128), np.asarray(imag)
    # `build` gives a row of numbers; an op of scalars may stand for equal elements.
    parts = parts.reshape(made.shape) if parts.size == made.size else parts
    made.imag = np.where(np.isnan(made.real), np.nan, parts)
    return plain(made[()], t)
