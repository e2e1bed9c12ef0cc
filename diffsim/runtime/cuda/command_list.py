"""Command lists on a GPU: a CUDA graph, which one call of the driver starts.

The graph is captured when a list first runs as a whole; everything is compiled and allocated before, as a
capture allows neither. Parts of a list, and all of it where the driver makes no graph, are issued to the
device's stream one operation at a time. So they are in debug mode, where checks are read after each launch.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from diffsim.backends.cuda.driver import Launch
from diffsim.backends.cuda.libcuda import DriverError
from diffsim.ir.types import ScalarType
from diffsim.runtime.cuda.device import Device, copy
from diffsim.runtime.cuda.executable import CudaExecutable
from diffsim.runtime.executable import BoundArray
from diffsim.runtime.memory.storage import StridedSpan
from diffsim.runtime.session import session

Move = Callable[[Any], None]
"""Asks a driver for copies and the like."""


class CudaCommandList:
    """A command list of a GPU; see `CommandList` for the methods."""

    def __init__(self, device: Device) -> None:
        self.done = 0
        self._device = device
        # An operation is a list of launches, or a function that issues copies.
        self._rows: list[list[Launch] | Move] = []
        # Which operations are kernels of the program, whose checks are looked at.
        self._launched: dict[int, CudaExecutable] = {}
        # Parameter blocks live as long as the graph, which has their addresses.
        self._kept: list[Any] = []
        self._graph: _Graph | None = None
        # In place of a graph, where the driver makes none.
        self._steps: list[tuple[Callable[[], None], int]] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def add_launch(
        self,
        compiled: CudaExecutable,
        args: Iterable[bool | int | float],
        seed: int,
        arrays: Iterable[BoundArray],
    ) -> None:
        launches, kept = compiled.launches(args, seed, arrays)
        self._launched[len(self._rows)] = compiled
        self._kept.append(kept)
        self._rows.append(launches)

    def add_copy(self, target: StridedSpan, source: StridedSpan) -> None:
        self._rows.append(functools.partial(copy, to=target, of=source))

    def add_swap(self, one: StridedSpan, other: StridedSpan) -> None:
        self._rows.append([self._device.pairs.swap(one, other)])

    def add_sum(self, target: StridedSpan, source: StridedSpan, dtype: ScalarType) -> None:
        self._rows.append([self._device.pairs.sum(target, source, dtype)])

    def add_clear(self, target: StridedSpan) -> None:
        def clear(driver: Any) -> None:
            # A gap may hold other rows, so only the runs are cleared.
            if target.is_contiguous:
                driver.set_words(target.address, 0, 1, target.nbytes)
                return
            for k in range(target.count):
                driver.set_words(target.address + k * target.step, 0, 1, target.bytes)

        self._rows.append(clear)

    def run(self, begin: int = 0, end: int | None = None) -> None:
        self.done = begin
        if not self._rows:
            return
        # A part of a list differs from call to call, so that a graph of it would seldom be used again; a
        # check after each launch cannot be a part of a graph.
        if begin == 0 and end is None and not self._debugging():
            self._run_all()
        else:
            self._run_each(begin, len(self) if end is None else end)

    def _debugging(self) -> bool:
        return any(compiled.reports_at_once for compiled in self._launched.values())

    def _run_each(self, begin: int, end: int) -> None:
        driver = self._device.driver
        for k in range(begin, end):
            row = self._rows[k]
            if isinstance(row, list):
                _starter(driver, row, self._device)()
            else:
                row(driver)
            compiled = self._launched.get(k)
            if compiled is not None and compiled.checks:
                self._device.add_pending(compiled, compiled.reports_at_once, session.clock)
            self.done = k + 1

    def _run_all(self) -> None:
        if self._graph is None and self._steps is None:
            self._prepare()
        if self._graph is not None:
            # Set before, as an interrupt right after the call would find an operation done that is not
            # counted.
            self.done = len(self)  # Ctrl-C may come as soon as the driver has it
            try:
                self._device.driver.run_graph(self._graph.handle)
            except DriverError:
                # The driver has taken nothing.
                self.done = 0
                raise
        for step, done in self._steps or ():
            step()
            self.done = done
        # Once for each kernel: a graph of a million launches has a handful of kernels.
        for compiled in dict.fromkeys(self._launched.values()):
            if compiled.checks:
                self._device.add_pending(compiled, False, session.clock)

    def _prepare(self) -> None:
        """Capture the graph, or prepare single steps where the driver makes none."""
        driver = self._device.driver
        try:
            # Nothing may be freed during the capture (see `_no_collection`).
            with _no_collection():
                self._graph = _Graph(self._device, driver.record(self._enqueue))
        except DriverError as problem:
            # One warning; replays go on with single launches.
            self._device.without_graphs(problem)
            self._steps = list(self._in_steps(driver))

    def _enqueue(self, driver: Any) -> None:
        for step, _ in self._in_steps(driver):
            step()

    def _in_steps(self, driver: Any) -> Iterator[tuple[Callable[[], None], int]]:
        """Return the operations as functions, and how many are done after each; launches in a row as one."""
        batch: list[Launch] = []
        for k, row in enumerate(self._rows):
            if isinstance(row, list):
                # Consecutive launches are started by one native call.
                batch += row
                following = self._rows[k + 1] if k + 1 < len(self._rows) else None
                if not isinstance(following, list):
                    yield _starter(driver, batch, self._device), k + 1
                    batch = []
            else:
                yield functools.partial(row, driver), k + 1


class _Graph:
    """A graph of the driver, freed with this object."""

    __slots__ = ("device", "handle")

    def __init__(self, device: Device, handle: int) -> None:
        self.device = device
        self.handle = handle

    def __del__(self) -> None:
        # The graph may still be running, so the device waits for it first.
        self.device.drop_graph(self.handle)


def _starter(driver: Any, launches: list[Launch], device: Device) -> Callable[[], None]:
    """Return a function that starts launches."""
    start, block = driver.prepare(launches, device.jit)

    def run() -> None:
        code = start(block)
        if code:
            driver.failed(code)

    return run


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Turn off garbage collection: a finalizer that frees device memory would invalidate a capture."""
    # Restored as it was: a program may have turned collection off.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
