"""The session: options given to `ds.init`, the native parts they need, and the clock of all writes.

This is the only place that reads environment variables:
    DIFFSIM_CACHE_DIR   folder of compiled code (the option offline_cache_file_path wins)
    DIFFSIM_NUM_THREADS threads of the CPU backend (the option cpu_max_num_threads wins)
    DIFFSIM_DEBUG       1: as debug=True
"""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffsim.backends.jit import Jit
from diffsim.backends.pool import Pool
from diffsim.errors import BackendError, FieldError, Span
from diffsim.ir.types import ScalarType, f32, f64, i32, i64
from diffsim.lang.ports import ports
from diffsim.lang.scope import close_to
from diffsim.runtime.cache import DiskCache, default_folder


class Arch:
    """A backend, chosen by `ds.init(arch=ds.cpu)`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ds.{self.name}"


cpu, cuda, gpu = Arch("cpu"), Arch("cuda"), Arch("gpu")


@dataclass(slots=True)
class Options:
    """What `ds.init` was given; see there."""

    default_fp: ScalarType = f32
    default_ip: ScalarType = i32
    debug: bool = False
    fast_math: bool = False
    random_seed: int = 0
    cpu_max_num_threads: int = 0
    offline_cache: bool = True
    offline_cache_file_path: str = ""
    kernel_simplicity: str = "strict"


class Session:
    """Everything that a program has one of.

    Attributes:
        clock: counts launches and writes from Python; versions of fields are readings of it.
        tape: the innermost tape that is recording, or None.
        generation: counts `ds.init` and `ds.reset`; kernels compiled before are compiled anew.
        with_grad: fields that have a gradient.
        recomputed_from: while a gradient that the user wrote runs, the clock at its start: what it
            writes again counts as what it was.
        at_reset: what to call at `ds.init` and `ds.reset`.
        at_new_grad: what to call when a field that kernels may use already gets a gradient.
    """

    def __init__(self) -> None:
        self.options = Options()
        self.clock = 0
        self.tape: Any = None
        self.generation = 0
        self.launches = 0
        self.with_grad: weakref.WeakSet[Any] = weakref.WeakSet()
        self.at_reset: list[Any] = []
        self.at_new_grad: list[Any] = []
        self.recomputed_from: int | None = None
        self._jit: Jit | None = None
        self._pool: Pool | None = None
        self._cache: DiskCache | None = None

    @property
    def jit(self) -> Jit:
        if self._jit is None:
            self._jit = Jit()
        return self._jit

    @property
    def cache(self) -> DiskCache | None:
        if self._cache is None and self.options.offline_cache:
            folder = self.options.offline_cache_file_path or os.environ.get("DIFFSIM_CACHE_DIR")
            self._cache = DiskCache(Path(folder) if folder else default_folder())
        return self._cache if self.options.offline_cache else None

    @property
    def pool(self) -> Pool:
        threads = self.threads
        if self._pool is None or self._pool.threads != threads:
            self._pool = Pool(self.jit, threads, self.cache)
        return self._pool

    @property
    def threads(self) -> int:
        given = os.environ.get("DIFFSIM_NUM_THREADS", "0")
        if not given.isdecimal():
            raise FieldError(
                f"the environment variable DIFFSIM_NUM_THREADS can not be {given!r}",
                None,
                hint="give it a number of threads",
            )
        asked = self.options.cpu_max_num_threads or int(given)
        if asked:
            return asked
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    @contextlib.contextmanager
    def recomputing(self) -> Iterator[None]:
        """Run a gradient that the user wrote."""
        outer = self.recomputed_from
        self.recomputed_from = self.clock if outer is None else outer
        try:
            yield
        finally:
            self.recomputed_from = outer

    def tick(self) -> int:
        """A new reading of the clock."""
        self.clock += 1
        return self.clock


session = Session()
ports.default_fp = lambda: session.options.default_fp
ports.default_ip = lambda: session.options.default_ip

_CHOICES: dict[str, tuple[Any, ...]] = {
    "default_fp": (f32, f64),
    "default_ip": (i32, i64),
    "kernel_simplicity": ("strict", "relaxed"),
}
_WORDS = {bool: "True or False", int: "a whole number", str: "a text"}
_KINDS: dict[str, type] = {
    "debug": bool,
    "fast_math": bool,
    "random_seed": int,
    "cpu_max_num_threads": int,
    "offline_cache": bool,
    "offline_cache_file_path": str,
}


def init(arch: Arch = cpu, **options: Any) -> None:  # noqa: D417 - each option has its line
    """Start (or start anew) with these options. Fields made before stay usable.

    Args:
        arch: `ds.cpu`.
        default_fp: type of float literals and of `float`: `ds.f32` (default) or `ds.f64`.
        default_ip: type of int literals and of `int`: `ds.i32` (default) or `ds.i64`.
        debug: check bounds and assertions in every kernel (slower).
        fast_math: let the compiler reorder floating-point arithmetic and approximate divisions. Off by
            default: f64 means f64.
        random_seed: start of the random numbers.
        cpu_max_num_threads: threads of parallel loops; 0: as many as there are processors.
        offline_cache: keep compiled kernels on disk.
        offline_cache_file_path: the folder for them.
        kernel_simplicity: "strict" (default) refuses gradients of kernels outside of the kernel
            simplicity rule; "relaxed" differentiates their loops too.

    Raises:
        FieldError: an option that does not exist or can not have this value.
        BackendError: a backend that is not there.
    """
    if isinstance(arch, (list, tuple)) and arch:
        arch = arch[0]
    if arch is cuda:
        raise BackendError(
            "this version of diffsim runs kernels on the CPU only; CUDA code can be looked at with "
            "kernel.ptx()",
            Span.of_caller(),
            hint="use ds.init(arch=ds.cpu)",
        )
    if arch is gpu:
        warnings.warn("no GPU backend in this version: using the CPU", stacklevel=2)
    elif arch is not cpu:
        raise FieldError(f"{arch!r} is not a backend", Span.of_caller(), hint="use arch=ds.cpu")
    chosen = Options(debug=os.environ.get("DIFFSIM_DEBUG", "") == "1")
    aliases = {float: f32, int: i32}
    for name, value in options.items():
        if name not in Options.__slots__:
            close = close_to(name, list(Options.__slots__))
            raise FieldError(
                f"ds.init has no option {name}",
                Span.of_caller(),
                hint=f"did you mean {close}?" if close else "see help(ds.init)",
            )
        if name in _CHOICES:
            value = aliases.get(value, value) if isinstance(value, type) else value
            if value not in _CHOICES[name]:
                raise FieldError(
                    f"the option {name} can not be {value!r}",
                    Span.of_caller(),
                    hint="choose one of " + ", ".join(map(repr, _CHOICES[name])),
                )
        elif isinstance(value, bool) != (_KINDS[name] is bool) or not isinstance(
            value, _KINDS[name]
        ):
            raise FieldError(
                f"the option {name} can not be {value!r}",
                Span.of_caller(),
                hint=f"give it {_WORDS[_KINDS[name]]}",
            )
        if name == "cpu_max_num_threads" and not 0 <= value <= 1024:
            raise FieldError(
                f"the option {name} can not be {value}",
                Span.of_caller(),
                hint="give it a number from 1 to 1024, or 0 for as many threads as processors",
            )
        setattr(chosen, name, value)
    reset()
    session.options = chosen
    session._cache = None


def reset() -> None:
    """Forget compiled kernels, options and the layout tree; fields stay usable."""
    session.options = Options()
    session.generation += 1
    session.tape = None
    session.launches = 0
    for forget in list(session.at_reset):
        forget()


def sync() -> None:
    """Wait until all launches are done (on the CPU they always are)."""
