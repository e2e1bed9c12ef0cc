"""A folder of compiled code, shared by processes, that can never break a program.

An entry is one file: a header (magic, length, SHA-256 of the payload) and the payload. Files are
written beside their place and renamed, so readers and other writers see a whole entry or none;
anything else found there (cut short by a full disk, foreign, flipped bits) counts as a miss and is
removed. A folder that cannot be written turns the cache off with one warning.

The size is bounded by removing the least recently used entries. ``get`` marks an entry as used by
touching the file; the folder is only scanned once this process has added a sixteenth of the bound,
so that ``put`` stays cheap.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

MiB = 1 << 20

_HEADER = struct.Struct("<8sQ32s")
_MAGIC = b"diffsim\x01"
_SUFFIX = ".entry"
_TEMPORARY = ".partial"
_STALE_S = 3600.0
"""A temporary file older than this [s] was left by a process that died."""


def default_folder() -> Path:
    """Where this platform keeps a user's caches, with ``diffsim`` added."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        parent = Path(base) if base else Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        parent = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification has relative paths ignored.
        parent = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return parent / "diffsim"


def key(*parts: str | bytes) -> str:
    """A file-name-safe key: the SHA-256 of the parts, each with its length before it.

    Args:
        parts: all that decides the cached bytes. ``("ab", "c")`` and ``("a", "bc")`` differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class DiskCache:
    """A bounded map from key to bytes in a folder; safe with threads and other processes."""

    def __init__(self, folder: Path, max_bytes: int = 512 * MiB) -> None:
        """Make the cache; the folder itself is made at the first ``put``.

        Args:
            folder: where the entries are; other files there are left alone.
            max_bytes: bound on the sum of all entries [byte]; it may be passed by a sixteenth for
                each process that is writing.
        """
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self._enabled = True
        self._lock = threading.Lock()
        self._scan_after = max_bytes // 16
        # The first entry of a process triggers a scan, or many short processes would never do one.
        self._unscanned = self._scan_after

    def get(self, key: str) -> bytes | None:
        """The bytes stored under a key, or None.

        Args:
            key: as made by the function ``key``.
        """
        if not self._enabled:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = _unpack(data)
        # A cache that this user may only read is still good for reading.
        with contextlib.suppress(OSError):
            if payload is None:
                path.unlink()
            else:
                os.utime(path)
        return payload

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key, in place of what was there.

        Args:
            key: as made by the function ``key``.
            data: the bytes; an entry larger than the whole bound is not stored.
        """
        size = _HEADER.size + len(data)
        if not self._enabled or size > self.max_bytes:
            return
        path = self._path(key)
        header = _HEADER.pack(_MAGIC, len(data), hashlib.sha256(data).digest())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, header + data)
        except OSError as error:
            self._disable(error)
            return
        with self._lock:
            self._unscanned += size
            scan = self._unscanned > self._scan_after
            if scan:
                self._unscanned = 0
        if scan:
            self._shrink()

    def _path(self, key: str) -> Path:
        if not (key.isascii() and key.isalnum()):
            raise ValueError(f"not a cache key: {key!r}")
        # 256 subfolders keep directories small.
        return self.folder / key[:2] / (key + _SUFFIX)

    def _write(self, path: Path, data: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem[:16], suffix=_TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            try:
                os.replace(name, path)
            except PermissionError:
                # Windows: another process has the entry open, so there is one already.
                if os.name != "nt":
                    raise
                os.unlink(name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _disable(self, error: OSError) -> None:
        with self._lock:
            first, self._enabled = self._enabled, False
        if first:
            warnings.warn(
                f"compiled kernels are not kept on disk: cannot write to {self.folder} ({error})",
                RuntimeWarning,
                stacklevel=4,
            )

    def _shrink(self) -> None:
        """Remove the least recently used entries until three quarters of the bound are left."""
        entries: list[tuple[float, int, str]] = []
        total = 0
        now = time.time()
        for path in self.folder.glob("??/*"):
            # Another process may remove any of them at any moment.
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.suffix == _SUFFIX:
                    entries.append((status.st_mtime, status.st_size, str(path)))
                    total += status.st_size
                elif path.suffix == _TEMPORARY and now - status.st_mtime > _STALE_S:
                    path.unlink()
        if total <= self.max_bytes:
            return
        for _, size, name in sorted(entries):
            if total <= self.max_bytes * 3 // 4:
                break
            with contextlib.suppress(OSError):
                os.unlink(name)
                total -= size


def _unpack(data: bytes) -> bytes | None:
    """The payload of an entry's file, or None where anything about it is wrong."""
    if len(data) < _HEADER.size:
        return None
    magic, size, digest = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != _MAGIC or size != len(payload) or hashlib.sha256(payload).digest() != digest:
        return None
    return payload
