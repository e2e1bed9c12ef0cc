"""States of a rollout in files: `ds.ad.checkpoint(..., disk=True)`."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diffsim.errors import AutodiffError, FileError, Span, memory_size
from diffsim.runtime.fields.field import Field

_NOTE = struct.Struct("qq")


class DiskStates:
    """A folder for the states of one rollout, removed with it.

    Attributes:
        most: most bytes of all files at once.
    """

    def __init__(self, folder: str | os.PathLike[str] | bool) -> None:
        """Make a folder of its own in `folder`, or where the system keeps temporary files (True)."""
        where = None if isinstance(folder, bool) else Path(os.fspath(folder))
        try:
            if where is not None:
                where.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix="diffsim-states-", dir=where))
        except OSError as problem:
            raise FileError(
                f"states cannot be written to {where or tempfile.gettempdir()}: {problem.strerror}",
                Span.of_caller(),
                hint="give a folder that can be written to: disk='/path/to/folder'",
            ) from problem
        self.most = 0
        self._sizes: dict[Path, int] = {}
        self._notes: int | None = None  # an open file
        weakref.finalize(self, _remove_folder, os.getpid(), self.folder)

    def store(self, step: int, fields: Sequence[Field]) -> DiskState:
        """Write what fields hold before a step.

        Raises:
            AutodiffError: the disk is full, or cannot be written to.
        """
        path = self.folder / f"{step}.state"
        part = path.with_suffix(".part")
        size = sum(f.storage.layout.nbytes for f in fields)
        try:
            # Under its name there is a whole file or none.
            with part.open("wb") as file:
                for f in fields:
                    np.save(file, f.storage.to_numpy(), allow_pickle=False)
            part.replace(path)
        except OSError as problem:
            with contextlib.suppress(OSError):
                part.unlink()
            what = f"the state before step {step}"
            raise self._full(what, problem, f"a state takes {memory_size(size)}, and ") from problem
        self._sizes[path] = size
        self.most = max(self.most, self._used)
        return DiskState(path, step, self._sizes)

    @property
    def _used(self) -> int:
        return sum(self._sizes.values())

    def _full(self, what: str, problem: OSError, size: str = "") -> AutodiffError:
        return AutodiffError(
            f"{what} cannot be written to {self.folder}: {problem.strerror} "
            f"({size}{memory_size(self._used)} are there)",
            Span.of_caller(),
            hint="give a folder on another disk (disk='/path/to/folder'), or more memory=, so that fewer "
            "states are written",
        )

    # ---- notes of steps

    def note(self, step: int, numbers: tuple[int, int]) -> None:
        """Write two numbers about a step.

        Raises:
            AutodiffError: the disk is full, or cannot be written to.
        """
        try:
            if self._notes is None:
                self._notes = os.open(self.folder / "notes", os.O_RDWR | os.O_CREAT, 0o600)
                weakref.finalize(self, os.close, self._notes)
            os.pwrite(self._notes, _NOTE.pack(*numbers), _NOTE.size * step)
        except OSError as problem:
            raise self._full(f"the note of step {step}", problem) from problem

    def noted(self, step: int) -> tuple[int, int]:
        """Return the numbers of a step."""
        assert self._notes is not None
        try:
            first, second = _NOTE.unpack(os.pread(self._notes, _NOTE.size, _NOTE.size * step))
        except (OSError, struct.error) as problem:
            raise _not_back(f"the note of step {step}", self.folder / "notes", problem) from problem
        return first, second


class DiskState:
    """A state in a file, which is removed when this object goes."""

    def __init__(self, path: Path, step: int, sizes: dict[Path, int]) -> None:
        self._path = path
        self._step = step
        weakref.finalize(self, _remove_file, os.getpid(), path, sizes)

    def restore(self, fields: Sequence[Field]) -> None:
        """Set fields to what the file holds."""
        try:
            with self._path.open("rb") as file:
                for f in fields:
                    f.storage.from_numpy(np.load(file, allow_pickle=False))
        except (OSError, ValueError) as problem:
            what = f"the state before step {self._step}"
            raise _not_back(what, self._path, problem) from problem


def _not_back(what: str, path: Path, problem: Exception) -> AutodiffError:
    return AutodiffError(
        f"{what} cannot be read back from {path}: {problem}",
        Span.of_caller(),
        hint="leave the files alone until the backward pass has ended, and run the program again",
    )


# A forked process has copies of the objects, and must leave the files alone.


def _remove_file(process: int, path: Path, sizes: dict[Path, int]) -> None:
    """Remove a file of this process."""
    if os.getpid() == process:
        sizes.pop(path, None)
        path.unlink(missing_ok=True)


def _remove_folder(process: int, path: Path) -> None:
    """Remove a folder of this process."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
