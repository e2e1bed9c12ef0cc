"""Results of compiling a kernel, kept on disk beside the machine code (docs/adr/0081).

Without the cache on disk they are kept in memory, until `ds.init`: a kernel with other fields in the places
of its template arguments leads to the same results.

A result is found again by the fingerprint of the kernel that it was made of, by what was asked for, and by
everything else that it may depend on: diffsim's own sources, the options, the number of threads. Options are
part of the key unless they are known to change no code, so that a new one is never forgotten.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from diffsim.ir.nodes import Kernel
from diffsim.passes import pipeline
from diffsim.runtime.cache.disk_cache import DiskCache, key
from diffsim.runtime.cache.ir_bytes import (
    Fingerprint,
    NotStorable,
    dumps,
    fingerprint,
    is_flat,
    loads,
    set_fingerprint,
)
from diffsim.runtime.cache.own_version import own_version
from diffsim.runtime.session import session

_NOT_OF_CODE = frozenset(
    "offline_cache offline_cache_file_path random_seed traceback kernel_profiler log_level".split()
)
"""The options that no IR and no code depends on."""

_MOST_IN_MEMORY = 256


class _InMemory:
    """The results that were used last, where there is no cache on disk."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}  # in the order of their use

    def get(self, name: str) -> bytes | None:
        data = self._data.pop(name, None)
        if data is not None:
            self._data[name] = data
        return data

    def put(self, name: str, data: bytes) -> None:
        self._data[name] = data
        if len(self._data) > _MOST_IN_MEMORY:
            # The default: another thread may have removed it.
            self._data.pop(next(iter(self._data)), None)

    def clear(self) -> None:
        self._data.clear()


_in_memory = _InMemory()
session.at_reset.append(_in_memory.clear)


def find(kernel: Kernel, *how: object) -> Any:
    """Return what was kept of a kernel; None: nothing.

    Args:
        kernel: prepared IR, or an adjoint.
        how: what was asked for.
    """
    place = _place(kernel, how)
    return None if place is None else place.load()


def keep(kernel: Kernel, made: Any, *how: object) -> None:
    """Keep what was made of a kernel, if it can be written down."""
    place = _place(kernel, how)
    if place is not None:
        place.store(made)


def find_kernel(kernel: Kernel, *how: object) -> Any:
    """Return what was kept of a kernel with `keep_kernel`; None: nothing."""
    place = _place(kernel, how)
    kept = None if place is None else place.load()
    if place is None or kept is None:
        return None
    made, ir, known = kept
    set_fingerprint(ir, Fingerprint(place.name, tuple(known)))
    return made


def keep_kernel(kernel: Kernel, made: Any, ir: Kernel, *how: object) -> None:
    """Keep what was made of a kernel and holds another one, `ir`, of which more will be made and kept.

    The second kernel needs no fingerprint of its own: it follows from the first.
    """
    place = _place(kernel, how)
    if place is not None and is_flat(ir):
        known: list[Any] = []
        # `known` is written last, when it has been filled.
        if place.store((made, ir, known), known):
            set_fingerprint(ir, Fingerprint(place.name, tuple(known)))


class _Place(NamedTuple):
    """Where a result is kept.

    Attributes:
        cache: the folder, or the memory in its place.
        name: its key.
        known: what its bytes refer to.
    """

    cache: DiskCache | _InMemory
    name: str
    known: tuple[Any, ...]

    def load(self) -> Any:
        data = self.cache.get(self.name)
        if data is None:
            return None
        try:
            return loads(data, self.known)
        except NotStorable:
            return None

    def store(self, made: Any, met: list[Any] | None = None) -> bool:
        """Return whether it could be stored."""
        try:
            data = dumps(made, self.known, met)
        except NotStorable:
            return False
        self.cache.put(self.name, data)
        return True


def _place(kernel: Kernel, how: tuple[object, ...]) -> _Place | None:
    """Return the place of a result; None: it is made anew each time."""
    parts = _all_but_kernel()
    made = None if parts is None else fingerprint(kernel)
    if parts is None or made is None:
        return None
    store = session.cache or _in_memory
    return _Place(store, key(*parts, made.digest, repr(how)), made.known)


def base_key() -> tuple[DiskCache, str, str] | None:
    """Return the cache, and what all keys of results have in common; None: nothing is kept on disk."""
    parts = None if session.cache is None else _all_but_kernel()
    return None if session.cache is None or parts is None else (session.cache, *parts)


def _all_but_kernel() -> tuple[str, str] | None:
    """Return what all keys of results have in common; None: nothing is kept."""
    # IR that is verified after each pass has to go through them.
    if session.options.debug or pipeline.VERIFY:
        return None
    version = own_version()
    if version is None:
        return None
    options = (f.name for f in dataclasses.fields(session.options))
    of_code = {n: getattr(session.options, n) for n in options if n not in _NOT_OF_CODE}
    backend = session.backend.code_key("")
    return version, repr((session.backend.name, backend, session.threads, of_code))
