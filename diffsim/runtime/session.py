"""The session: the program's options, backend and recorders, and the clock of all writes.

`options.py` has the options of `ds.init` and the environment variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from diffsim import locks
from diffsim.backends.native.calls import Calls, calls
from diffsim.backends.native.jit import Jit
from diffsim.backends.native.pool import Pool, launcher, load_native
from diffsim.errors import ArgumentError, BackendError, OptionError, Said, Span, shown, warn
from diffsim.lang.host.signatures import checked
from diffsim.lang.host.unsupported import close_to
from diffsim.public_names import PublicNames, with_example
from diffsim.runtime import options
from diffsim.runtime.backend import Backend, BackendUnavailable, open_backend
from diffsim.runtime.cache.disk_cache import DiskCache, NoFolder, chosen_folder, not_kept
from diffsim.runtime.memory import transposed
from diffsim.runtime.memory.storage import MemorySpace
from diffsim.runtime.memory.written_values import Contents, contents_of
from diffsim.runtime.options import Options
from diffsim.runtime.recorder import Folded, NeighbourRecorder, Recorder, Witness
from diffsim.runtime.threads import CountedSet, of_threads
from diffsim.tracebacks import Shown


class Arch(metaclass=PublicNames):
    """A backend, chosen by `ds.init(arch=ds.cuda)`."""

    _public = "name"

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> str:
        """Copy and pickle by name: there is one object of each."""
        return self.name

    def _description(self) -> str:
        """Say what `help(ds.cuda)` shows."""
        text = f"{_ARCHS[self.name]}\n\nKernels run there after `ds.init(arch=ds.{self.name})`."
        return with_example(text, _ARCH_EXAMPLES[self.name])

    def __repr__(self) -> str:
        return f"ds.{self.name}"


_ARCHS = {
    "cpu": "The CPU: kernels are compiled to machine code, whose parallel loops run on all cores.",
    "cuda": "An NVIDIA GPU. `ds.init` raises BackendError where there is none.",
    "gpu": "A GPU if there is one, else the CPU, with a warning.",
    "python": "Python itself: kernels run line by line, slowly, where a debugger sees them.",
}
_ARCH_EXAMPLES = {
    "cpu": "ds.init(arch=ds.cpu)\nprint(ds.device_info())  # prints: the CPU",
    "cuda": "ds.init(arch=ds.cuda)\nprint(ds.device_info())  # prints: GPU 0 (...",
    "gpu": "ds.init(arch=ds.gpu)\nprint(ds.device_info())  # prints: GPU 0 (...",
    "python": "ds.init(arch=ds.python)\nprint(ds.device_info())  # prints: Python...",
}
# `gpu` is no backend: it means cuda, or with a warning the CPU.
cpu, cuda, gpu, python = Arch("cpu"), Arch("cuda"), Arch("gpu"), Arch("python")
# Taichi's names. A program that asks for a GPU by any of them runs on the GPU that there is.
x64 = x86_64 = arm64 = cpu
vulkan = metal = opengl = gles = dx11 = dx12 = amdgpu = gpu


_this_thread = threading.get_ident
_MOST_WRITTEN = 1 << 14
"""Writes from Python that are remembered for `kernel.grad`."""
_NOBODY: dict[int, Recorder] = {}  # never changed, as any dictionary of recorders


class Session:
    """The state that a program has once: options, backend, clock, recorders.

    Attributes:
        clock: counts launches and writes from Python; versions of fields are readings of it.
        recorders: the innermost recorder of each thread (by its number) where a tape records. The dictionary
            is never changed but replaced: other threads read it at any time, and may keep an empty one.
        alone: the same where a single one records, else nothing.
        witnesses: the numbers of threads, and what hears there what other threads write.
        passes: the threads that run a backward pass.
        written: the last writes from Python: the clock's reading, the number of the field, the row, the index
            of the element (... for all; (i, ...) for all of a row), its value (a number, or as
            `memory/written_values.py` has it; None: unknown), and who wrote it.
        unknown_until: the last reading at which fields may have changed without a note, or been set back.
        from_tapes: whether the last gradients came from a tape.
        generation: counts `ds.init` and `ds.reset`; kernels compiled before are compiled anew.
        with_grad: fields that have a gradient, lent or declared. Each change is counted, and so are new
            generations, and fields that other libraries see: by this count one can tell whether what was
            found out about kernels and gradients still holds.
        exported: fields whose memory other libraries see.
        placed: fields that have memory of their own, gradients and duals too.
        with_dual: fields that have a dual; `duals` counts the changes of who has one.
        specializations: kernels compiled for their arguments, whose launches are noted.
        own: what each thread has of its own. `recomputed_from`: while a gradient that the user wrote runs,
            the clock at its start: what it writes again counts as what it was.
        at_reset: what to call at `ds.init` and `ds.reset`.
        at_new_grad: what to call when a field that kernels may use already gets a gradient.
        on_device_failure: what to call when a GPU tells late that a check has failed (`Device`).
        moves: counts changes of the backend, after each of which fields may move.
    """

    def __init__(self) -> None:
        # Options as they are before any `ds.init`; `backend` completes them from the environment.
        self.options = Options()
        self.clock = 0
        self.recorders: dict[int, Recorder] = {}
        self.alone = self.recorders
        self.witnesses: list[tuple[int, Witness]] = []
        self.passes: set[int] = set()
        self.written: deque[tuple[int, int, int | None, Any, Any, Any]] = deque(
            maxlen=_MOST_WRITTEN
        )
        self.unknown_until = 0
        self.from_tapes = False
        self._changing = locks.rlock()  # a signal handler may record, too
        self.own = of_threads()
        self.generation = 0
        # Weak sets: a session keeps no field alive.
        self.with_grad = CountedSet()
        self.placed: weakref.WeakSet[Any] = weakref.WeakSet()
        self.with_dual: weakref.WeakSet[Any] = weakref.WeakSet()
        self.duals = 0
        self.exported: weakref.WeakSet[Any] = weakref.WeakSet()
        self.specializations: weakref.WeakSet[Any] = weakref.WeakSet()
        self.at_reset: list[Any] = []
        self.at_new_grad: list[Any] = []
        self.on_device_failure: Callable[[BaseException, int], None]
        self.moves = 0
        self._backend: Backend | None = None
        self._device: MemorySpace | None = None
        # Kept across `ds.reset`: only another device than the last one makes fields move.
        self._last: MemorySpace | None = None
        # Made when first needed: importing diffsim compiles nothing and starts no threads.
        self._jit: Jit | None = None
        self._pool: Pool | None = None
        self._cache: DiskCache | None = None
        self._launcher: Callable[[Any], None] | None = None
        self._calls: Calls | Literal[False] | None = None

    @property
    def tape(self) -> Recorder | None:
        """The innermost recorder of this thread, while a tape records in it."""
        # The usual case, no tape anywhere, costs one test of an empty dictionary.
        if not self.recorders:
            return None
        found = self.recorders.get(_this_thread())
        return found.unfolded if isinstance(found, Folded) else found

    @tape.setter
    def tape(self, tape: Recorder | None) -> None:
        this_thread = threading.get_ident()
        # Copy-on-write: launch functions read `recorders` without a lock, so no dictionary is changed that
        # they may hold.
        with self._changing:
            others = {n: t for n, t in self.recorders.items() if n != this_thread}
            self.recorders = others if tape is None else {**others, this_thread: tape}
            # `alone` must be derived from the new dictionary.
            self._set_witnesses(self.witnesses)

    @property
    def front(self) -> Recorder | None:
        """As `tape`, for reads: a steady tape (`Folded`) takes them as it is."""
        return self.recorders.get(_this_thread()) if self.recorders else None

    @property
    def listener(self) -> Recorder | None:
        """The recorder to which this thread reports, while a tape records in any thread."""
        this_thread = threading.get_ident()
        # Only where another thread witnesses: its tape must know of writes it did not record.
        own = self.tape
        # A copy, as threads end their recordings at any time.
        others = [witness for thread, witness in list(self.witnesses) if thread != this_thread]
        return NeighbourRecorder(own, others) if others else own

    @property
    def writes_to(self) -> Recorder | None:
        """As `listener`, for writes of plain values: a steady tape (`Folded`) takes them as it is."""
        return self.alone.get(_this_thread()) or self.listener

    def begin_recording(self, recorder: Recorder, witness: Witness) -> tuple[int, Witness]:
        """Report to a recorder, and what other threads write to a witness, until `end_recording`."""
        entry = _this_thread(), witness
        with self._changing:
            if self.recorders or self.witnesses:
                self.recorders = {**self.recorders, entry[0]: recorder}
                self._set_witnesses([*self.witnesses, entry])
            else:
                self.recorders = self.alone = {entry[0]: recorder}
                self.witnesses = [entry]
        return entry

    def end_recording(self, entry: tuple[int, Witness]) -> None:
        """End what `begin_recording` has begun in this thread."""
        with self._changing:
            recorders, witnesses = self.recorders, self.witnesses
            alone = len(recorders) == 1 == len(witnesses) and witnesses[0] is entry
            if alone and entry[0] in recorders:
                self.recorders = self.alone = _NOBODY
                self.witnesses = []
            else:
                self.recorders = {n: t for n, t in self.recorders.items() if n != entry[0]}
                self._set_witnesses([w for w in self.witnesses if w is not entry])

    def add_witness(self, witness: Witness) -> tuple[int, Witness]:
        """Report what other threads write to a witness, until `remove_witness` of what this returns."""
        entry = threading.get_ident(), witness
        with self._changing:
            self._set_witnesses([*self.witnesses, entry])
        return entry

    def remove_witness(self, entry: tuple[int, Witness]) -> None:
        """End the reports to a witness."""
        with self._changing:
            self._set_witnesses([w for w in self.witnesses if w is not entry])

    def _set_witnesses(self, witnesses: list[tuple[int, Witness]]) -> None:
        self.witnesses = witnesses
        # With at most one witness, `alone` leads its thread straight to its recorder; all other threads go
        # through `listener`.
        self.alone = self.recorders if len(witnesses) <= 1 else {}

    def forget_other_threads(self) -> None:
        """Discard the state of all other threads: the child of a fork has only this one."""
        # The other threads do not exist in the child, so that nothing would ever remove their recorders.
        this_thread = threading.get_ident()
        for numbers in (self.recorders, self.passes):
            # In place, which only a process with one thread may do.
            for number in [n for n in numbers if n != this_thread]:
                numbers.pop(number) if isinstance(numbers, dict) else numbers.remove(number)
        self._set_witnesses([w for w in self.witnesses if w[0] == this_thread])

    def others_use_gradients(self) -> bool:
        """Return whether another thread records, or runs a backward pass."""
        if not self.passes and not self.witnesses:
            return False
        this_thread = threading.get_ident()
        return any(n != this_thread for n in (*self.passes, *(n for n, _ in list(self.witnesses))))

    @property
    def launches(self) -> int:
        """How many launches with random numbers there were in this thread."""
        return self.own.launches

    @launches.setter
    def launches(self, count: int) -> None:
        self.own.launches = count

    @property
    def recomputed_from(self) -> int | None:
        return self.own.recomputed_from

    @recomputed_from.setter
    def recomputed_from(self, clock: int | None) -> None:
        self.own.recomputed_from = clock

    @property
    def backend(self) -> Backend:
        """The backend that kernels run on."""
        # Chosen at first use, so that a program without `ds.init` works.
        if self._backend is None:
            self.use(_choose(default_arch(), self.options.device))
            self.options = options.of_environment()
        assert self._backend is not None
        return self._backend

    @property
    def lifts_rules(self) -> bool:
        """Whether gradients of programs that break a rule are made (`ds.init(rules="lifted")`)."""
        if self._backend is None:
            _ = self.backend  # which completes the options
        return self.options.rules == "lifted"

    @property
    def device(self) -> MemorySpace:
        """Where fields lie: `backend.device`."""
        return self._device or self.backend.device

    def contents_of(self, array: Any) -> Contents | None:
        """Return what a note says of an array that Python writes; None: no gradient by hand will ask."""
        # After the pass of a tape all fields count as unknown.
        unasked = self.recorders or self.from_tapes or not len(self.with_grad)
        return None if unasked else contents_of(array)

    def use(self, backend: Backend | None) -> None:
        """Run kernels on a backend from now on; None: choose one when it is needed."""
        # Setting the backend opens nothing: it was opened by `open_backend`.
        self._backend = backend
        self._device = None if backend is None else backend.device
        # `moves` tells specializations that fields may have moved, even if the backend is the first one
        # again.
        if backend is not None and self._device is not self._last:
            self._last = self._device
            self.moves += 1

    @property
    def jit(self) -> Jit:
        if self._jit is None:
            self._jit = Jit(vector_bits=options.vector_bits_of_environment())
        return self._jit

    @property
    def cache(self) -> DiskCache | None:
        # Opened at the first compilation; an unusable folder costs one warning, and no error (docs/adr/0023).
        if self._cache is None and self.options.offline_cache:
            given = self.options.offline_cache_file_path or options.cache_dir_of_environment()
            try:
                self._cache = DiskCache(chosen_folder(given))
            except NoFolder as reason:
                not_kept(str(reason))
        return self._cache if self.options.offline_cache else None

    @property
    def launcher(self) -> Callable[[Any], None]:
        """The native function that launches a kernel on the CPU, given its parameter block."""
        if self._launcher is None:
            self._refuse_windows()
            self._launcher = launcher(self.jit, self.cache)
        return self._launcher

    @property
    def calls(self) -> Calls | None:
        """The maker of functions that launch kernels; None: this Python has no such functions."""
        if self._calls is None:
            self._calls = (hasattr(os, "fork") and calls(self.jit, self.cache)) or False
        return self._calls or None

    @staticmethod
    def _refuse_windows() -> None:
        # `fork` stands for the POSIX threads and signals that the native pool uses.
        if not hasattr(os, "fork"):
            raise BackendError(
                "diffsim uses threads of Linux and macOS, which this system does not have",
                Span.of_caller(),
                hint="on Windows, run it in WSL (the Windows Subsystem for Linux)",
            )

    @property
    def pool(self) -> Pool:
        threads = self.threads
        self._refuse_windows()
        # Another number of threads needs another pool; code in use keeps a reference to the old one.
        if self._pool is None or self._pool.threads != threads:
            self._pool = Pool(self.jit, threads, self.cache)
        return self._pool

    @property
    def threads(self) -> int:
        asked = self.options.cpu_max_num_threads or options.threads_of_environment()
        if asked:
            return asked
        # The processors that this process may use, which in containers are fewer than there are.
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    @contextlib.contextmanager
    def recomputing(self) -> Iterator[None]:
        """Run a block as a gradient that the user wrote (`recomputed_from`)."""
        outer = self.recomputed_from
        # Nested: what the outer gradient recomputes stays trusted in the inner one.
        self.recomputed_from = self.clock if outer is None else outer
        try:
            yield
        finally:
            self.recomputed_from = outer

    def tick(self) -> int:
        """Advance the clock and return its reading."""
        self.clock += 1
        return self.clock


def show_tracebacks() -> None:
    """Show tracebacks as the environment asks for; a value that it cannot have is reported by `ds.init`."""
    with contextlib.suppress(ArgumentError):
        Shown.full = options.traceback_of_environment() == "full"


show_tracebacks()
session = Session()
transposed.install(
    lambda: load_native(session.jit, session.cache, "transpose.ll").address("ds_transpose")
)
if hasattr(os, "register_at_fork"):
    # Locks are reset by `diffsim.locks`; this removes the recorders of threads that are gone.
    os.register_at_fork(after_in_child=session.forget_other_threads)

ARCHES = {arch.name: arch for arch in (cpu, cuda, gpu, python)}


def default_arch() -> Arch:
    """Return the backend that is used where neither `ds.init` nor the environment says."""
    return asked_of_environment() or cpu


def asked_of_environment() -> Arch | None:
    """Return the backend that DIFFSIM_ARCH asks for, whatever the program does; None: it is not set."""
    name = options.arch_of_environment()
    return ARCHES[name] if name else None


def _checked_arch(asked: Any) -> list[Arch]:
    """Return the backends asked for, which may be given by name; refuse anything else."""
    things = asked if isinstance(asked, (list, tuple)) else [asked]
    wanted: list[Any] = [ARCHES.get(a, a) if isinstance(a, str) else a for a in things]
    if wanted and all(isinstance(a, Arch) for a in wanted):
        return wanted
    close = close_to(asked, list(ARCHES)) if isinstance(asked, str) else None
    raise OptionError(
        f"{shown(asked)} is not a backend",
        Span.of_caller(),
        hint=f"write arch=ds.{close}" if close else "use arch=ds.cpu, ds.cuda, ds.gpu or ds.python",
    )


def _check_global_lock() -> None:
    """Refuse Python without its global lock: launches and recordings of several threads rely on it."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():  # from Python 3.13 on
        raise BackendError(
            "this Python runs without its global lock, which diffsim needs",
            Span.of_caller(),
            hint="start it with python -X gil=1, or with the environment variable PYTHON_GIL=1",
        )


def _choose(asked: Arch | Sequence[Arch], number: int) -> Backend:
    """Open the first of the backends asked for that can be used.

    Raises:
        BackendError: only `ds.cuda` was asked for, and something that it needs is missing.
    """
    _check_global_lock()
    # A list means an order of preference.
    wanted: list[Any] = list(asked) if isinstance(asked, (list, tuple)) else [asked]
    reason = ""
    for arch in wanted:
        try:
            # `gpu` in the list falls through to the CPU below.
            return open_backend((cuda if arch is gpu else arch).name, number)
        except BackendUnavailable as missing:
            reason = str(missing)
    if gpu in wanted:
        warn(f"using the CPU, because no GPU can be used: {reason}", UserWarning)
        return open_backend(cpu.name, 0)
    raise BackendError(
        f"arch=ds.cuda cannot be used here: {reason}",
        Span.of_caller(),
        hint="it takes an NVIDIA GPU and its driver (the program nvidia-smi shows both); "
        "ds.init(arch=ds.gpu) uses the CPU where there is none",
    )


@checked
def init(  # noqa: D417 - each option has its line
    arch: Arch | Sequence[Arch] | None = None,
    default_fp: Any = None,
    default_ip: Any = None,
    **given: Any,
) -> None:
    """Start (or start anew) with these options. Fields made before stay usable.

    A field made for another backend moves to this one when it is next used; tapes recorded before do not.

    Args:
        arch: where kernels run: `ds.cpu`; `ds.cuda`, an NVIDIA GPU; `ds.gpu`, a GPU, or with a warning the
            CPU; `ds.python`, Python itself, slowly, line by line, for debuggers (docs/debugging.md); or a
            list, of which the first that is there is taken. If left out, `ds.cpu`. The environment variable
            DIFFSIM_ARCH (`cpu`, `cuda`, `gpu` or `python`) wins over it. Taichi's other names mean `ds.cpu`
            (`x64`, `x86_64`, `arm64`) or `ds.gpu` (`vulkan`, `metal`, `opengl`, `gles`, `dx11`, `dx12`,
            `amdgpu`).
        default_fp: type of float literals and of `float`: `ds.f32` (default), `ds.f64` or `ds.f16`.
        default_ip: type of int literals and of `int`: `ds.i32` (default) or `ds.i64`.
        debug: check bounds, divisions of integers and assertions in every kernel, and look for NaN and
            infinities (slower).
        strict: a float that a kernel assigns to an integer (an element, a local, a parameter of a func, its
            result) is an error, and so are a break or return in a parallel loop, a local that such a loop
            keeps from one iteration to the next, and a call of a function without `@ds.func`; else the float
            loses its fraction and the loops run in order, with a warning.
        fast_math: let the compiler reorder floating-point arithmetic and approximate divisions. Off by
            default: f64 means f64.
        random_seed: start of the random numbers.
        cpu_max_num_threads: threads of parallel loops; 0: as many as there are processors.
        offline_cache: keep compiled kernels on disk.
        offline_cache_file_path: the folder for them.
        device: number of the GPU.
        device_scratch_size: bytes of GPU memory in which kernels save the values of loops for gradients; 0:
            a 32nd of its memory.
        default_gpu_block_dim: threads in a GPU's blocks, for loops without `ds.loop_config(block_dim=...)`: a
            multiple of 32 up to 1024, or a power of two; 256 if left out.
        deterministic: the same bits in every run. On the CPU this holds for everything, and for any number of
            threads; on a GPU for sums and atomic updates. Slower where lanes share what they update.
        rules: "enforced" (default) refuses gradients of programs that break a rule, with the line; "lifted"
            differentiates them at the cost of memory (`tape.stats()` tells how much): state that is
            overwritten, fields without `needs_grad` on the way to the loss. If left out, what the environment
            variable DIFFSIM_RULES says. `in_place=` of a tape wins over it.
        kernel_simplicity: "relaxed" (default) differentiates kernels of any shape; "strict" refuses gradients
            of those outside the kernel simplicity rule. `simplicity=` of a kernel wins over it.
        check_nan: after each launch, find the operation that made a NaN or an infinity which was stored;
            "nan": for NaN alone. If left out, as `debug` says.
        kernel_profiler: measure each launch, for `ds.profiler` and `tape.stats()`.
        log_level: what is said: "info"; from ds.ERROR on there are no warnings.
        traceback: "short" (default) shows the program's own frames in the tracebacks of diffsim's errors;
            "full" shows those inside diffsim too.

    Raises:
        ArgumentError: an option that does not exist or cannot have this value.
        BackendError: a backend that this machine lacks.

    Example:
        ds.init(arch=ds.cpu, default_fp=ds.f64, random_seed=7)
        x = ds.field(float, shape=3)
        print(x.dtype, ds.device_info())  # prints: f64 the CPU
    """
    # Options and backend are checked before anything is reset: a wrong call changes nothing.
    for name, t in (("default_fp", default_fp), ("default_ip", default_ip)):
        if t is not None:
            given[name] = t
    chosen = options.parse(given)
    named = None if arch is None else _checked_arch(arch)
    wanted = asked_of_environment() or named or default_arch()
    found = _choose(wanted, chosen.device)
    # Also forgets compiled kernels: options are compiled in.
    reset()
    session.options = chosen
    Shown.full = chosen.traceback == "full"
    Said.set(chosen.log_level)
    session.use(found)
    # Another folder may have been given.
    session._cache = None
    if logging := sys.modules.get("logging"):  # else nobody listens
        logging.getLogger("diffsim").info("kernels run on %s", device_info())


def _init_signature() -> inspect.Signature:
    """Return what `help(ds.init)` and editors show: each option by name. Taichi's others are taken too."""
    known = inspect.signature(init).parameters
    given = known["given"].replace(annotation="object")
    named = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=f.default,
            annotation=f.type,
        )
        for f in dataclasses.fields(options.Options)
        if f.name not in known
    ]
    return inspect.Signature([*list(known.values())[:3], *named, given], return_annotation="None")


init.__signature__ = _init_signature()  # type: ignore[attr-defined]


@checked
def device_info() -> str:
    """Return what kernels run on, in words; for a GPU also whose context: libcuda's own, or pycuda's.

    Example:
        ds.init(arch=ds.cpu)
        print(ds.device_info())  # prints: the CPU
    """
    return session.backend.info()


@checked
def reset() -> None:
    """Forget compiled kernels, options and the layout tree; fields stay usable.

    Example:
        ds.init(default_fp=ds.f64)
        x = ds.field(float, shape=3)
        ds.reset()
        print(x.dtype, ds.field(float, shape=3).dtype)  # prints: f64 f32
    """
    # Options go back to their defaults, not to those of the last `ds.init`.
    session.options = Options()
    show_tracebacks()
    session.use(None)
    session.generation += 1
    session.unknown_until = session.clock
    session.from_tapes = False
    session.with_grad.changes += 1
    # Tapes that were recording find that their session is gone (`ad/checks/integrity.py`).
    session.recorders = session.alone = {}
    session.witnesses = []
    session.own = of_threads()
    # A copy: a handler may register another one.
    for forget in list(session.at_reset):
        forget()


@checked
def sync() -> None:
    """Wait until all launches are done (on the CPU they always are).

    Raises:
        CheckError: an index out of bounds or a failed assertion in a kernel on a GPU.

    Example:
        x = ds.field(ds.f32, shape=3)
        x.fill(1.5)
        ds.sync()  # on a GPU, what was launched has ended now
        print(x[0])  # prints: 1.5
    """
    session.backend.sync()
