"""Command lists of `arch=ds.python`: a list of calls (`runtime/backend.py` has the protocol)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.ir.types import ScalarType
from diffsim.runtime.executable import BoundArray, make_block
from diffsim.runtime.memory.storage import StridedSpan
from diffsim.runtime.python.executable import PythonExecutable


class PythonCommandList:
    """A command list of Python calls."""

    def __init__(self) -> None:
        self.done = 0
        self._calls: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def add_launch(
        self,
        executable: PythonExecutable,
        args: list[bool | int | float],
        seed: int,
        arrays: list[BoundArray],
    ) -> None:
        block = make_block(executable, args, seed, arrays)
        self._calls.append(lambda: executable.run(block))

    def add_copy(self, target: StridedSpan, source: StridedSpan) -> None:
        to, of = _bytes(target), _bytes(source)
        self._calls.append(lambda: np.copyto(to, of))

    def add_swap(self, one: StridedSpan, other: StridedSpan) -> None:
        a, b = _bytes(one), _bytes(other)

        def swap() -> None:
            a[:], b[:] = b.copy(), a.copy()

        self._calls.append(swap)

    def add_sum(self, target: StridedSpan, source: StridedSpan, dtype: ScalarType) -> None:
        to, of = _bytes(target).view(dtype.numpy), _bytes(source).view(dtype.numpy)
        self._calls.append(lambda: np.add(to, of, out=to))

    def add_clear(self, target: StridedSpan) -> None:
        to = _bytes(target)
        self._calls.append(lambda: to.fill(0))

    def run(self, begin: int = 0, end: int | None = None) -> None:
        self.done = begin
        for call in self._calls[begin:end]:
            call()
            self.done += 1


def _bytes(span: StridedSpan) -> np.ndarray:
    """Return the runs of bytes of a memory as rows of an array."""
    if span.count * span.bytes == 0:
        return np.zeros((span.count, span.bytes), np.uint8)
    step = span.step if span.count > 1 else span.bytes
    nbytes = (span.count - 1) * step + span.bytes
    memory: Any = (ctypes.c_char * nbytes).from_address(span.address)
    return np.ndarray((span.count, span.bytes), np.uint8, memory, strides=(step, 1))
