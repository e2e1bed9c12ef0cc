"""The thread pool and scratch arenas of compiled kernels: Python's side of ``pool.ll`` and ``gate.ll``.

``pool.ll`` has the threads and arenas; ``gate.ll`` how launches share Python's lock (the GIL) with other
threads, run signal handlers, and exclude each other. Read the heads of these two files first.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Protocol

import llvmlite.binding as llvm

from diffsim.backends.native.jit import Jit, Library, LLVMError

KERNEL_SYMBOLS = (
    "ds_parallel_for",
    "ds_serial_for",
    "ds_pool_poll",
    "ds_poll",
    "ds_enter",
    "ds_run",
    "ds_leave",
    "ds_launch",
    "ds_arena_alloc",
    "ds_arena_mark",
    "ds_arena_release",
    "ds_log_mark",
    "ds_log_grow",
    "ds_log_release",
)
"""The functions that generated code may call: their contracts are in ``pool.ll`` and ``gate.ll``."""

_LOOPS = ("meetings.ll", "sequence.ll", "transpose.ll")
"""The files with loops over data, which LLVM should optimize."""

_COPY_CHUNK = 1 << 18  # bytes: some tens of us for one thread

_native: dict[str, Library] = {}  # for the life of the process: kernels hold addresses in it
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()

_closed = ctypes.c_int64(0)
closed: Sequence[int] = memoryview(_closed).cast("B").cast("q")
"""closed[0] is not 0 while a launch runs without Python's lock: code that accesses its memory must `wait`."""


class Cache(Protocol):
    """A store of bytes under keys, such as ``DiskCache``."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes under a key, or None."""

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key."""


def _source(name: str = "pool.ll") -> str:
    """Return the text of ``pool.ll`` (or another file beside it) with this platform's constants."""
    text = resources.files("diffsim.backends.native").joinpath(name).read_text(encoding="utf-8")
    # The instruction that a spinning thread executes: it saves power and frees the sibling
    # hyperthread.
    relax = {"x86_64": "pause", "amd64": "pause", "arm64": "yield", "aarch64": "yield"}
    for old, new in (
        ("@CLOCK_MONOTONIC = internal constant i32 1", time.CLOCK_MONOTONIC),
        ("@SIG_SETMASK = internal constant i32 2", int(signal.SIG_SETMASK)),
    ):
        # A constant that was renamed in the text must not go unnoticed.
        assert old in text or name != "pool.ll"
        text = text.replace(old, f"{old.rpartition(' ')[0]} {int(new)}")
    return text.replace('"pause"', f'"{relax.get(platform.machine().lower(), "")}"')


def load_native(jit: Jit, cache: Cache | None, name: str) -> Library:
    """Load the code of a file of LLVM text beside this one, compiled at most once per process."""
    if name in _native:
        return _native[name]
    text = _source(name)
    if name == "pool.ll":
        # One module: they call each other, and LLVM may inline the poll.
        text += _source("gate.ll")
    stem = name.removesuffix(".ll")
    # The text and all that the compiler depends on: another version of either finds no stale code.
    key = hashlib.sha256(f"{stem}\0{jit.fingerprint}\0{text}".encode()).hexdigest()
    library = None
    code = cache.get(key) if cache is not None else None
    if code is not None:
        try:
            library = jit.load(code)
        # A damaged entry of the cache: compile again, and replace it.
        except LLVMError:
            library = None
    if library is None:
        code = jit.compile(text, as_runtime=name not in _LOOPS)
        library = jit.load(code)
        if cache is not None:
            cache.put(key, code)
    _native[name] = library
    return library


def load_pool(jit: Jit, cache: Cache | None) -> Library:
    """Load the code of pools and launches, and register its symbols for kernels."""
    # Symbols are global to the process: all kernels call the same pool code, also after another
    # ds.init.
    known = _native.get("pool.ll")
    if known is not None:
        return known
    library = load_native(jit, cache, "pool.ll")
    for name in KERNEL_SYMBOLS:
        llvm.add_symbol(name, library.address(name))
    api, ptr = ctypes.pythonapi, ctypes.c_void_p
    needed = (
        api.PyEval_SaveThread,
        api.PyEval_RestoreThread,
        api.PyThreadState_Get,
        api.PyErr_CheckSignals,
    )
    # PYFUNCTYPE, here and below, keeps the GIL during the call: `gate.ll` itself decides when to
    # release it.
    give = ctypes.PYFUNCTYPE(None, ptr, ptr, ptr, ptr, ptr, ctypes.c_uint64)
    functions = (ctypes.cast(f, ptr) for f in needed)
    # Signals are handled in the main thread alone (CPython): only its launches check for them.
    main = threading.main_thread().ident
    give(library.address("ds_python"))(ctypes.addressof(_closed), *functions, main)
    return library


def launcher(jit: Jit, cache: Cache | None) -> Callable[[ctypes.c_void_p], None]:
    """Return the function that launches a kernel, given its parameter block."""
    address = load_pool(jit, cache).address("ds_launch")
    return ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address)


def wait() -> None:
    """Wait until no launch runs without Python's lock; none can begin while this thread holds the lock.

    Raises:
        KeyboardInterrupt: and whatever else a signal's handler raises.
    """
    # One comparison in the usual case: nearly every access to a field from Python calls this.
    if _closed.value:
        ctypes.PYFUNCTYPE(ctypes.c_int64)(_native["pool.ll"].address("ds_wait"))()


class Pool:
    """Native threads that share a parallel loop's chunks, with scratch memory for each.

    The calling thread takes part as worker 0. The other threads start with the first parallel loop,
    spin for some 40 us after each and then sleep. After a fork the child's pool works as before, at
    the same handle. Launches begin with the GIL held (``ctypes.PYFUNCTYPE``), and release it where
    they take long; one at a time runs.

    Attributes:
        threads: threads that share a loop, the caller's included.
    """

    def __init__(
        self, jit: Jit, threads: int, cache: Cache | None = None, interrupt: bool = True
    ) -> None:
        """Make a pool.

        Args:
            jit: the compiler for the pool's own code.
            threads: at least 1, the calling thread included.
            cache: where to keep the compiled pool between processes.
            interrupt: whether Ctrl-C (any Python signal handler that raises) ends a long loop.
        """
        # The state word of the pool has 16 bits each for seats and active workers (`pool.ll`).
        if not 1 <= threads <= 32767:
            raise ValueError(f"a pool has 1 to 32767 threads, not {threads}")
        self.threads = threads
        library = load_pool(jit, cache)
        i64, ptr = ctypes.c_int64, ctypes.c_void_p
        create = ctypes.PYFUNCTYPE(ptr, i64, ptr)(library.address("ds_pool_create"))
        destroy = ctypes.PYFUNCTYPE(None, ptr)(library.address("ds_pool_destroy"))
        self._run = ctypes.PYFUNCTYPE(i64, ptr, ptr, ptr, i64, i64)(library.address("ds_pool_run"))
        self._copy = library.address("ds_copy")
        self._bytes = ctypes.PYFUNCTYPE(i64, ptr)(library.address("ds_pool_scratch_bytes"))
        self._after_fork = ctypes.PYFUNCTYPE(None, ptr)(library.address("ds_pool_after_fork"))
        end = ctypes.PYFUNCTYPE(i64)(library.address("ds_end"))
        # Null: the pool never polls, so a long loop runs to its end.
        check = ctypes.cast(ctypes.pythonapi.PyErr_CheckSignals, ptr) if interrupt else None
        handle: int | None = create(threads, check)
        if handle is None:
            raise MemoryError("no memory for a thread pool")
        self._handle = handle
        # Runs at interpreter exit too, while ctypes still works; holds the code that threads run.
        self._finalizer = weakref.finalize(self, _destroy, destroy, handle, library)
        weakref.finalize(
            library, _end, end
        )  # at exit the latest is called first: before any pool goes
        _pools.add(self)

    @property
    def handle(self) -> int:
        """Return the address of the native pool: the first argument of all its native functions."""
        if not self._finalizer.alive:
            raise RuntimeError("the thread pool is closed")
        return self._handle

    @property
    def scratch_bytes(self) -> int:
        """Return the size of the scratch arenas [byte], in use or free for reuse."""
        return int(self._bytes(self.handle))

    def run(self, task: int, params: int, n: int, chunks: int) -> int:
        """Run ``void task(params, begin, end, chunk, worker)`` for each of the chunks of [0, n).

        Args:
            task: address of the function.
            params: address handed to it.
            n: size of the index range.
            chunks: how many parts it is cut in; below 2**31. 1 runs on this thread alone.

        Returns:
            0.

        Raises:
            KeyboardInterrupt: Ctrl-C; or whatever else a signal handler raised. The chunks not yet
                begun have not run.
        """
        return int(self._run(self.handle, task, params, n, chunks))

    def copy(self, to: int, of: int, nbytes: int) -> None:
        """Copy memory with as many threads as the size is worth; a closed pool copies on this thread.

        Errors as for `run`.
        """
        # A field may outlive the pool of its session: copying out of it must still work.
        if not self._finalizer.alive:
            ctypes.memmove(to, of, nbytes)
            return
        addresses = (ctypes.c_void_p * 2)(to, of)
        # One core does not saturate the memory bandwidth of most machines.
        chunks = max(1, nbytes // _COPY_CHUNK)
        self.run(self._copy, ctypes.addressof(addresses), nbytes, chunks)

    def close(self) -> None:
        """Stop the threads and free the scratch memory. Closing twice is fine."""
        self._finalizer()


def _destroy(destroy: Callable[[int], None], handle: int, _library: Library) -> None:
    # A thread that still runs native code would crash in freed memory; the process ends anyway.
    if not _still_running:
        destroy(handle)


_still_running = False
"""Whether the launch of a daemon thread did not stop at the end of the process."""


def _end(end: Callable[[], int]) -> None:
    global _still_running
    _still_running = end() != 0


def _restart_after_fork() -> None:
    library = _native.get("pool.ll")
    if library is not None:
        ctypes.PYFUNCTYPE(None)(library.address("ds_after_fork"))()
    # A fork copies the memory, but only the thread that called it: pools must forget their workers.
    for pool in _pools:
        if pool._finalizer.alive:
            pool._after_fork(pool._handle)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_after_fork)
