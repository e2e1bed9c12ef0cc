"""The version of diffsim as the cache on disk knows it: the state of its files, and what runs them."""

from __future__ import annotations

import os
import sys
import time

import llvmlite
import numpy as np

import diffsim.errors
from diffsim.runtime.cache.disk_cache import key

# About when the first module was imported.
_STARTED_NS = time.time_ns() - time.process_time_ns()
_found: list[str | None] = []


def own_version() -> str | None:
    """Return a text that is another one for other sources of diffsim, another Python, NumPy or llvmlite.

    None: what is in memory may not be what is in the files, so nothing that it makes can be kept.
    """
    if not _found:
        try:
            found, changed_ns = _files(os.path.dirname(diffsim.errors.__file__))
        except OSError:  # a package in an archive
            changed_ns = _STARTED_NS
        if changed_ns >= _STARTED_NS:
            _found.append(None)
        else:
            runs_on = sys.version, np.__version__, llvmlite.__version__
            _found.append(key(repr((found, runs_on))))
    return _found[0]


def _files(folder: str) -> tuple[list[tuple[str, int, int, int, int]], int]:
    """Return places, sizes and times of the sources below a folder, and when one was changed last [ns].

    Not what they hold: to read them all takes longer than to compile a short kernel.
    """
    found: list[tuple[str, int, int, int, int]] = []
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".ll")):
                    s = entry.stat()
                    # The time of the change of status, too: tools that unpack files set the other one.
                    times = s.st_mtime_ns, s.st_ctime_ns
                    found.append((entry.path, s.st_size, s.st_ino, *times))
                elif entry.is_dir() and entry.name != "__pycache__":
                    folders.append(entry.path)
    found.sort()
    return found, max(row[-1] for row in found)
