"""How long kernels take: what `ds.profiler` shows."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from diffsim.errors import ArgumentError, OptionError, Span, shown
from diffsim.lang.host.signatures import checked, checked_methods, is_one_of, need_bool
from diffsim.lang.host.unsupported import no_attribute
from diffsim.public_names import names_of_module
from diffsim.runtime.memory.storage import MemorySpace
from diffsim.runtime.observe.memory_table import memory_of_fields
from diffsim.runtime.observe.time_table import KernelTime, TimeTable
from diffsim.runtime.session import session

FORWARD, ADJOINT, TANGENT = "forward", "adjoint", "tangent"
_MOST_MARKS = 1024

__all__ = [
    "clear_kernel_profiler_info",
    "clear_scoped_profiler_info",
    "get_kernel_profiler_total_time",
    "print_kernel_profiler_info",
    "print_memory_profiler_info",
    "print_scoped_profiler_info",
    "query_kernel_profiler_info",
    "table",
]
__dir__ = names_of_module(__all__)


class KernelTimer:
    """The times of one kernel in one direction.

    Attributes:
        seconds: of each launch; `clocks`: the session's clock at each.
        compile_seconds: how long its compilations took.
        mark: marks a time.
    """

    def __init__(self, name: str, direction: str) -> None:
        self.name = name
        self.direction = direction
        self.compile_seconds = 0.0
        self._device: MemorySpace
        self.clear()

    def clear(self) -> None:
        """Forget the launches."""
        self._marks: list[tuple[int, Any, Any]] = []
        self.seconds = array("d")
        self.clocks = array("q")

    def runs_on(self, device: MemorySpace) -> None:
        """Measure launches on a device from now on."""
        self._device, self.mark = device, device.mark_time

    def add(self, now: int, start: Any, end: Any) -> None:
        """Add a launch between two marks."""
        self._marks.append((now, start, end))
        if len(self._marks) >= _MOST_MARKS:
            self.settle()

    def settle(self) -> None:
        """Make times of the marks; waits for the launches."""
        marks, self._marks = self._marks, []
        for now, start, end in marks:
            self.seconds.append(self._device.seconds_between(start, end))
            self.clocks.append(now)


_timers: dict[tuple[str, str], KernelTimer] = {}


def timer_of(name: str, direction: str, device: MemorySpace) -> KernelTimer | None:
    """Return what measures the launches of a kernel; None: nothing does."""
    if not session.options.kernel_profiler:
        return None
    timer = _timer(name, direction)
    timer.settle()
    timer.runs_on(device)
    return timer


def _timer(name: str, direction: str) -> KernelTimer:
    key = name, direction
    if key not in _timers:
        _timers[key] = KernelTimer(name, direction)
    return _timers[key]


@contextlib.contextmanager
def compiling(name: str, direction: str) -> Iterator[None]:
    """Measure a compilation."""
    start = time.perf_counter()
    yield
    if session.options.kernel_profiler:
        _timer(name, direction).compile_seconds += time.perf_counter() - start


def measured(windows: Iterable[tuple[int, int]] | None = None) -> TimeTable:
    """Return the times of all kernels; `windows`: of the launches between these readings of the clock."""
    rows = []
    for timer in list(_timers.values()):
        timer.settle()
        times = list(timer.seconds)
        if windows is not None:
            both = zip(timer.clocks, timer.seconds, strict=True)
            inside = list(windows)
            times = [s for now, s in both if any(lo < now <= hi for lo, hi in inside)]
        if times or windows is None:
            rows.append(KernelTime(timer.name, timer.direction, times, timer.compile_seconds))
    return TimeTable(sorted(rows, key=lambda row: -row.total))


# ---- Taichi's names


@checked
def table() -> TimeTable:
    """Return the times of all kernels so far: it prints as a table, and has `plot()`.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        print("double" in str(ds.profiler.table()))  # prints: True
    """
    _check_enabled()
    return measured()


@checked
def print_kernel_profiler_info(mode: str = "count") -> None:
    """Print the times of all kernels.

    Args:
        mode: "count": a line for each kernel; "trace": one for each launch, in their order.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        ds.profiler.print_kernel_profiler_info()
        # prints: ...
        # prints: double...
        # prints: ...
    """
    if not is_one_of(mode, "count", "trace"):
        raise OptionError(
            f"mode={shown(mode)} is not possible", Span.of_caller(), hint='it is "count" or "trace"'
        )
    found = table()
    print(found if mode == "count" else _trace())


def _trace() -> str:
    """Return a line for each launch."""
    every = [
        (now, seconds, timer)
        for timer in _timers.values()
        for now, seconds in zip(timer.clocks, timer.seconds, strict=True)
    ]
    lines = [
        f"{1e3 * seconds:12.6f} ms  {timer.name}, {timer.direction}"
        for _, seconds, timer in sorted(every, key=lambda launch: launch[0])
    ]
    return "\n".join(lines)


@checked
def clear_kernel_profiler_info() -> None:
    """Forget all launches that were measured.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        ds.profiler.clear_kernel_profiler_info()
        print(ds.profiler.get_kernel_profiler_total_time())  # prints: 0.0
    """
    for timer in _timers.values():
        timer.clear()


@checked
def get_kernel_profiler_total_time() -> float:
    """Return the time of all launches that were measured [s].

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        print(ds.profiler.get_kernel_profiler_total_time() > 0.0)  # prints: True
    """
    return table().total


@checked
def query_kernel_profiler_info(name: Any) -> KernelTime:
    """Return the times of the kernel of this name: `counter`, `min`, `max`, `avg` [ms].

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        found = ds.profiler.query_kernel_profiler_info("double")
        print(found.counter, found.min <= found.avg <= found.max)  # prints: 2 True
    """
    if not isinstance(name, str):  # a kernel would be found under no name, and have no launches
        known = getattr(name, "__name__", "step")
        raise ArgumentError(
            f"a kernel is asked for by its name, not by {shown(name)}",
            Span.of_caller(),
            hint=f'write ds.profiler.query_kernel_profiler_info("{known}")',
        )
    rows = [row for row in table().rows if row.name == name and row.direction == FORWARD]
    return rows[0] if rows else KernelTime(name, FORWARD, [], 0.0)


@checked
def print_scoped_profiler_info() -> None:
    """Print how long the compilation of each kernel took.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        ds.profiler.print_scoped_profiler_info()
        # prints: ...
        # prints: ...double...
        # prints: ...
    """
    print(table().compilations())


@checked
def clear_scoped_profiler_info() -> None:
    """Forget how long compilations took.

    Example:
        ds.init(kernel_profiler=True)

        @ds.kernel
        def double(a: ds.f32) -> ds.f32:
            return 2.0 * a

        double(1.5)
        double(2.5)
        ds.profiler.clear_scoped_profiler_info()
        ds.profiler.print_scoped_profiler_info()
        # prints: ...
    """
    for timer in _timers.values():
        timer.compile_seconds = 0.0


@checked
def print_memory_profiler_info() -> None:
    """Print the memory of each field, gradients included, the largest first.

    It needs no option of `ds.init`. What a tape keeps besides is in `tape.stats()`.

    Example:
        heat = ds.field(ds.f64, shape=(64, 64), needs_grad=True, name="heat")
        ds.profiler.print_memory_profiler_info()
        # prints: field...memory
        # prints: heat...(64, 64)...32 KiB
        # prints: heat.grad...(64, 64)...32 KiB
        # prints: ...
    """
    print(memory_of_fields())


def _check_enabled() -> None:
    if not session.options.kernel_profiler:
        raise ArgumentError(
            "no launch was measured",
            Span.of_caller(),
            hint="write ds.init(kernel_profiler=True) at the start of the program",
        )


_ELSEWHERE = {
    "collect_kernel_profiler_metrics": "use NVIDIA's Nsight Compute, which counts what the hardware does",
    "set_kernel_profiler_metrics": "use NVIDIA's Nsight Compute, which counts what the hardware does",
    "set_kernel_profiler_toolkit": "leave it out: the times are those between events of the driver",
    "get_predefined_cupti_metrics": "use NVIDIA's Nsight Compute, which counts what the hardware does",
    "CuptiMetric": "use NVIDIA's Nsight Compute, which counts what the hardware does",
}


def __getattr__(name: str) -> NoReturn:
    raise no_attribute("ds.profiler", name, __all__, _ELSEWHERE.get(name, ""))


def _forget() -> None:
    _timers.clear()


session.at_reset.append(_forget)


@checked_methods("__init__")
class ScopedTimer:
    """Measures the time of a block, and prints it.

        with ds.ScopedTimer("simulate"):
            simulate()

    Args:
        name: what is printed.
        active: whether anything is measured.
        print: whether the time is printed.
        dict: where the time is appended to the list of that name.
        synchronize: whether launches before and inside the block are waited for.

    Attributes:
        elapsed: the time of the block [ms].

    Example:
        times = {}
        with ds.ScopedTimer("simulate", print=False, dict=times) as timer:
            sum(range(1000))
        print(timer.elapsed > 0.0, len(times["simulate"]))  # prints: True 1
    """

    def __init__(
        self,
        name: str,
        active: bool = True,
        print: bool = True,
        dict: dict[str, list[float]] | None = None,
        synchronize: bool = False,
    ) -> None:
        for what, value in (("active", active), ("print", print), ("synchronize", synchronize)):
            need_bool(value, what)
        self.name = name
        self.active = active
        self.elapsed = 0.0
        self._print = print
        self._dict = dict
        self._synchronize = synchronize

    def _now(self) -> float:
        if self._synchronize:
            session.backend.sync()
        return time.perf_counter()

    def __enter__(self) -> ScopedTimer:
        if self.active:
            self._start = self._now()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if not self.active:
            return
        self.elapsed = 1e3 * (self._now() - self._start)
        if self._dict is not None:
            self._dict.setdefault(self.name, []).append(self.elapsed)
        if self._print:
            print(f"{self.name} took {self.elapsed:.2f} ms")
