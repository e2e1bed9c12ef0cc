"""A folder of compiled code, shared by processes, that can never break a program.

An entry is one file: a header (magic, length, SHA-256 of the key and of the payload) and the payload. Files
are written beside their place and renamed, so readers and other writers see a whole entry or none, whenever
one of them is killed. Anything else found there (cut short by a full disk, foreign, flipped bits, another
key's, a pipe, a link) counts as a miss and is removed.

What is loaded runs with all rights of the user, so nobody else may write it: the folder is made with mode
0700, and one that belongs to somebody else, or that others may write to, is not used. A folder that cannot
be used, or not be written, is one warning, and programs run without.

The size is bounded by removing the least recently used entries. ``get`` marks an entry as used by
touching the file; the folder is only scanned once this process has added a sixteenth of the bound,
so that ``put`` stays cheap.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from diffsim.errors import warn

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MiB = 1 << 20

# Magic, length of the payload, digests of key and payload: little-endian, so that the format does not depend
# on the machine.
_HEADER = struct.Struct("<8sQ32s32s")
_MAGIC = b"diffsim\x02"
_SUFFIX = ".entry"
_TEMPORARY = ".partial"
# Five seconds cover the time between creating and locking a file; an hour any write without locks.
_ABANDONED_S, _STALE_S = 5.0, 3600.0
"""A temporary file older than this [s] was left by a process that died: if nobody has locked it; or if there
are no locks."""
_FLAGS = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    _FLAGS |= getattr(os, _flag, 0)  # neither wait for a pipe's writer nor follow links


_unscanned: dict[Path, int] = {}
"""The bytes this process has added to each folder since it scanned it; each `ds.init` opens it anew."""


class NoFolder(Exception):
    """There is no place for a cache; the text says why."""


def chosen_folder(given: str) -> Path:
    """Return the folder that a user names, or the default one.

    Args:
        given: a path, with ~ for a home folder; relative ones count from where the program is now.

    Raises:
        NoFolder: there is no such home folder, or no folder that the program is in.
    """
    if not given:
        return default_folder()
    path = os.path.expanduser(given)
    # `expanduser` leaves what it cannot resolve.
    if path.startswith("~"):
        raise NoFolder(f"there is no home folder for {given}")
    try:
        return Path(os.path.abspath(path))
    except OSError:
        raise NoFolder(f"{given} is a relative path, in a folder that is gone") from None


def default_folder() -> Path:
    """Return where this platform keeps a user's caches, with ``diffsim`` added.

    Raises:
        NoFolder: the user has no home folder.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        parent = Path(base) if base else _home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        parent = _home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification has relative paths ignored.
        parent = Path(base) if os.path.isabs(base) else _home() / ".cache"
    return parent / "diffsim"


def _home() -> Path:
    home = os.path.expanduser("~")
    if not os.path.isabs(home):  # no HOME, and no entry in the list of users: a container, say
        raise NoFolder("this user has no home folder")
    return Path(home)


_warned: set[str] = set()


def not_kept(why: str) -> None:
    """Warn that there is no cache, once for each reason."""
    if why not in _warned:
        _warned.add(why)
        warn(
            f"compiled kernels are not kept on disk: {why}. Name a folder of your own in the environment "
            "variable DIFFSIM_CACHE_DIR, or do without: ds.init(offline_cache=False)",
            RuntimeWarning,
        )


def key(*parts: str | bytes) -> str:
    """Return a file-name-safe key: the SHA-256 of the parts, each with its length before it.

    Args:
        parts: all that decides the cached bytes. ``("ab", "c")`` and ``("a", "bc")`` differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # The length keeps the parts apart: a plain concatenation of two pairs may be the same.
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
        # Asked at the first use: the folder may not exist before the first entry.
        self._safe: bool | None = None  # not known yet
        self._writable = True
        self._scan_after = max_bytes // 16

    def get(self, key: str) -> bytes | None:
        """Return the bytes stored under a key, or None.

        Args:
            key: as made by the function ``key``.
        """
        path = self._path(key)
        # Before anything is read: see `_why_unsafe`.
        if not self._is_safe():
            return None
        try:
            payload = _read(path, key, self.max_bytes)
        except FileNotFoundError:
            return None
        except OSError:  # not readable, a link, no file at all
            payload = None
        # A cache that this user may only read is still good for reading.
        with contextlib.suppress(OSError):
            if payload is None:
                _remove(path)
            else:
                # The modification time is the time of the last use: many file systems do not record accesses.
                os.utime(path)
        return payload

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key, in place of what was there.

        Args:
            key: as made by the function ``key``.
            data: the bytes; an entry larger than the whole bound is not stored.
        """
        path = self._path(key)
        size = _HEADER.size + len(data)
        # An entry larger than the bound would evict everything and then itself.
        if not self._writable or size > self.max_bytes:
            return
        try:
            # The parents first, as the folder itself may only be checked once it is there.
            _make(path.parent.parent)
            if not self._is_safe():
                return
            _make(path.parent)
            with contextlib.suppress(FileNotFoundError):  # another process may have cleaned up
                _write(path, _header(key, data) + data)
        # A full disk or a quota: reading still works, and the program goes on.
        except OSError as error:
            self._stop_writing(f"{self.folder} cannot be written ({error.strerror or error})")
            return
        # A scan is amortized over a sixteenth of the bound. The first entry of a process triggers one, or
        # many short processes would never do it.
        _unscanned[self.folder] = _unscanned.get(self.folder, self._scan_after) + size
        if _unscanned[self.folder] > self._scan_after:
            _unscanned[self.folder] = 0
            self._shrink()

    def _path(self, key: str) -> Path:
        # Keys become file names: nothing may leave the folder.
        if not (key.isascii() and key.isalnum()):
            raise ValueError(f"not a cache key: {key!r}")
        # 256 subfolders keep directories small.
        return self.folder / key[:2] / (key + _SUFFIX)

    def _is_safe(self) -> bool:
        """Return whether what is in the folder may be run; False, too, where it does not exist yet."""
        if self._safe is None:
            try:
                status = os.stat(self.folder)
            except FileNotFoundError:
                return False
            except OSError as error:
                why = f"{self.folder} cannot be used ({error.strerror or error})"
            else:
                why = _why_unsafe(status)
                why = why and f"{self.folder} {why}"
            self._safe = not why
            if why:
                self._stop_writing(why)
        return self._safe

    def _stop_writing(self, why: str) -> None:
        first, self._writable = self._writable, False
        if first:
            not_kept(why)

    def sizes(self) -> list[int]:
        """Return the size of each entry [byte]."""
        found = []
        for path in self._own_files():
            with contextlib.suppress(OSError):
                if path.suffix == _SUFFIX:
                    found.append(path.lstat().st_size)
        return found

    def clear(self) -> int:
        """Remove all entries; programs that run compile anew what they need. Return how many are left."""
        for path in self._own_files():
            with contextlib.suppress(OSError):
                if path.suffix == _SUFFIX:
                    _remove(path)
        return len(self.sizes())

    def why_unused(self) -> str:
        """Return why programs run without what is in the folder; empty if they use it."""
        try:
            return _why_unsafe(os.stat(self.folder))
        except FileNotFoundError:
            return ""  # made at the first entry
        except OSError as error:
            return error.strerror or str(error)

    def _own_files(self) -> Iterator[Path]:
        """Yield what this cache could have made: a folder given by the user may hold other files."""
        folders = [folder for folder in _inside(self.folder) if len(folder.name) == 2]
        for path in (file for folder in folders for file in _inside(folder)):
            if path.name.startswith(path.parent.name):
                yield path

    def _shrink(self) -> None:
        """Remove the least recently used entries until three quarters of the bound are left."""
        entries: list[tuple[float, int, str]] = []
        total = 0
        now = time.time()
        for path in self._own_files():
            # Another process may remove any of them at any moment.
            with contextlib.suppress(OSError):
                # `lstat`: a link is no entry.
                status = path.lstat()
                if path.suffix == _SUFFIX:
                    if not stat.S_ISREG(status.st_mode) or status.st_size > self.max_bytes:
                        _remove(path)
                        continue
                    entries.append((status.st_mtime, status.st_size, str(path)))
                    total += status.st_size
                elif path.suffix == _TEMPORARY and _is_left(path, now - status.st_mtime):
                    path.unlink()
        if total <= self.max_bytes:
            return
        for _, size, name in sorted(entries):
            # Down to three quarters, so that the next entries do not scan again at once.
            if total <= self.max_bytes * 3 // 4:
                break
            with contextlib.suppress(OSError):
                os.unlink(name)
                total -= size


def _why_unsafe(status: os.stat_result) -> str:
    """Return why code from a folder must not be run; empty if it may be."""
    if not stat.S_ISDIR(status.st_mode):
        return "is no folder"
    # Windows has access control lists in place of modes.
    if not hasattr(os, "geteuid"):  # Windows, where a user's folders are the user's own
        return ""
    if status.st_uid != os.geteuid():
        return "belongs to another user, whose code would run here"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        return f"can be written by other users, whose code would run here (its mode is {mode:o})"
    return ""


def _make(folder: Path) -> None:
    """Make a folder that is the user's own, whatever the umask says, and those above that are missing."""
    if not folder.is_dir():
        # One level after the other: `makedirs` gives the mode to the last one only.
        _make(folder.parent)
        # Another process may make it first.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not folder.is_dir():
            raise NotADirectoryError(20, "a file is in the way", str(folder))


def _inside(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it is gone, or no folder."""
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def _remove(path: Path) -> None:
    """Remove an entry, whatever it is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _header(key: str, data: bytes) -> bytes:
    digests = hashlib.sha256(key.encode()).digest(), hashlib.sha256(data).digest()
    return _HEADER.pack(_MAGIC, len(data), *digests)


def _read(path: Path, key: str, most: int) -> bytes | None:
    """Return the payload of an entry, or None where anything about its file is wrong.

    Args:
        path: the file.
        key: what it must have been stored under.
        most: its largest possible size [byte].

    Raises:
        OSError: it cannot be opened or read.
    """
    # Opened once, and everything checked on the open file: between a check by name and an open the file could
    # be exchanged.
    handle = os.open(path, _FLAGS)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        size = status.st_size - _HEADER.size
        if not stat.S_ISREG(status.st_mode) or size < 0 or status.st_size > most:
            return None
        # An entry of another user's could have been linked here while the folder was open to others.
        if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            return None
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or _HEADER.unpack(head)[1] != size:
            return None
        payload = file.read(size)
        # One more byte would be a file that somebody is writing to.
        # The header is made anew and compared as a whole: magic, length and both digests.
        return payload if not file.read(1) and head == _header(key, payload) else None


def _write(path: Path, data: bytes) -> None:
    # `mkstemp` creates with mode 0600.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem[:16], suffix=_TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            # Locked while it is written: another process's `_shrink` sees that the writer lives. The system
            # releases the lock with the process, however that ends.
            if fcntl is not None:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(data)
        try:
            # Atomic: readers see the old entry or the whole new one.
            os.replace(name, path)
        # A folder stands in the way: no entry, so it is removed.
        except IsADirectoryError:
            _remove(path)
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


def _is_left(path: Path, age: float) -> bool:
    """Return whether the process that was writing a temporary file is gone, and its lock with it.

    Args:
        path: the file.
        age: the time since something was written to it [s].
    """
    # A file that is very young may not be locked yet.
    if fcntl is None or age < _ABANDONED_S:
        return age > _STALE_S
    handle = os.open(path, _FLAGS)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return age > _STALE_S
    finally:
        os.close(handle)
    return True
