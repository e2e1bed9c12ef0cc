"""Files that diffsim writes for users: whole, or as they were before, and an error with advice."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Any

from diffsim.errors import FieldError, Span

# What to do about the usual errors; everything else gets general advice.
_ADVICE = {
    errno.ENOENT: "make the folder first, or name one that is there",
    errno.ENOTDIR: "a part of the path is a file: name a folder that is there",
    errno.EISDIR: "this is a folder: name a file in it",
    errno.EACCES: "name a file in a folder that you may write to",
    errno.EPERM: "name a file in a folder that you may write to",
    errno.EROFS: "name a file in a folder that you may write to",
    errno.ENOSPC: "make room on the disk, or name a file on another one",
    errno.EFBIG: "let the system allow larger files (ulimit -f)",
    errno.ENAMETOOLONG: "give it a shorter name",
}


def write_text(path: Any, text: str) -> None:
    """Write a file in UTF-8; if that fails or the process is killed, the old one is still there.

    Args:
        path: where; a text or a path.
        text: what.

    Raises:
        FieldError: it can not be written there.
    """
    # Names may hold lone surrogates (file names in other encodings), which UTF-8 can not encode.
    write_file(path, text.encode("utf-8", "backslashreplace"))


def write_file(path: Any, data: bytes) -> None:
    """Write a file in the same way."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise FieldError(
            f"a file's name is a text or a path, not {path!r}",
            Span.of_caller(),
            hint='write it in quotes: "tape.dot"',
        ) from None
    if not name or "\0" in name:
        raise FieldError(
            f"no file can be called {name!r}", Span.of_caller(), hint="give it a name, as tape.dot"
        )
    try:
        _write(os.path.realpath(name), data)  # a link stays a link
    except OSError as error:
        raise FieldError(
            f"{name} can not be written: {error.strerror or error}",
            Span.of_caller(),
            hint=_ADVICE.get(error.errno or 0, "name a file in another folder"),
        ) from None


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
