"""Files that diffsim writes for users: whole, or as they were before, and an error with advice.

A missing folder is made, whoever writes the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from diffsim.errors import ArgumentError, FileError, Span

# What to do about the usual errors; everything else gets general advice.
_ADVICE = {
    errno.ENOTDIR: "a part of the path is a file: name another folder",
    errno.EEXIST: "a part of the path is a file: name another folder",
    errno.EISDIR: "this is a folder: name a file in it",
    errno.EACCES: "name a file in a folder that you may write to",
    errno.EPERM: "name a file in a folder that you may write to",
    errno.EROFS: "name a file in a folder that you may write to",
    errno.ENOSPC: "make room on the disk, or name a file on another one",
    errno.EFBIG: "let the system allow larger files (ulimit -f)",
    errno.ENAMETOOLONG: "give it a shorter name",
}


def write_text(path: Any, text: str) -> None:
    """Write a file in UTF-8, and make its folder; if that fails or it is killed, the old file is still there.

    Args:
        path: where; a text or a path.
        text: what.

    Raises:
        ArgumentError: it cannot be written there.
    """
    # Names may hold lone surrogates (file names in other encodings), which UTF-8 cannot encode.
    write_file(path, text.encode("utf-8", "backslashreplace"))


def write_file(path: Any, data: bytes) -> None:
    """Write a file in the same way."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise ArgumentError(
            f"a file's name is a text or a path, not {path!r}",
            Span.of_caller(),
            hint='write it in quotes: "tape.dot"',
        ) from None
    if not name or "\0" in name:
        raise ArgumentError(
            f"no file can be called {name!r}", Span.of_caller(), hint="give it a name, as tape.dot"
        )
    real = os.path.realpath(name)  # a link stays a link
    try:
        os.makedirs(os.path.dirname(real), exist_ok=True)
    except OSError as error:
        raise _not_written(
            f"the folder {os.path.dirname(name)} cannot be made",
            error,
            "name a file in another folder",
        ) from None
    try:
        _write(real, data)
    except OSError as error:
        raise _not_written(
            f"{name} cannot be written", error, "name a file in another folder"
        ) from None


def writable_folder(folder: Path) -> None:
    """Make a folder for results, and check that files can be written there.

    For programs that work long before they write: afterwards it would be late to learn that they cannot.

    Raises:
        ArgumentError: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _not_written(
            f"nothing can be written to {folder}", error, "name another folder"
        ) from None


def _not_written(what: str, error: OSError, otherwise: str) -> ArgumentError:
    """Return the error for a file or a folder that cannot be written, with what to do about it."""
    return FileError(
        f"{what}: {error.strerror or error}",
        Span.of_caller(),
        hint=_ADVICE.get(error.errno or 0, otherwise),
    )


def _write(name: str, data: bytes) -> None:
    # Write beside the target and rename: `os.replace` is atomic on POSIX, so a reader sees the old file or
    # the new one, and a killed process leaves the old one.
    try:
        mode = os.stat(name).st_mode
    except FileNotFoundError:
        mode = None
    # Else the rename would fail with a less clear error, after the work is done.
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if mode is not None and not stat.S_ISREG(
        mode
    ):  # a pipe or a terminal: there is nothing to lose, and nothing beside
        with open(name, "wb") as file:
            file.write(data)
        return
    # A rename needs no right to write the file itself: a file that the user has protected would be replaced.
    if mode is not None and not os.access(name, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    # In the same folder, as a rename does not cross file systems. The random name is opened with "x", so that
    # no file of somebody's is overwritten.
    beside = os.path.join(os.path.dirname(name), f".{os.urandom(8).hex()}.part")
    try:
        with open(beside, "xb") as file:
            file.write(data)
        # A new file would have the default mode.
        if mode is not None:
            os.chmod(beside, stat.S_IMODE(mode))
        os.replace(beside, name)
    # KeyboardInterrupt too: no partial file is left behind.
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
