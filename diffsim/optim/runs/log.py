"""The log of a training: a CSV file with a line for each iteration, also after a resume."""

from __future__ import annotations

import contextlib
import csv
from pathlib import Path
from types import TracebackType
from typing import Any

from diffsim.errors import FileError, Span
from diffsim.runtime.files import write_text

COLUMNS = ("iteration", "loss", "best", "gradient_norm", "learning_rate", "seconds")


class Log:
    """A log file that is open.

    Args:
        path: of the file; None: nothing is written.
        done: the lines of so many iterations are kept; those of others are of a run that was lost.
    """

    def __init__(self, path: Path | None, done: int) -> None:
        self._file: Any = None
        self._path = path
        if path is None:
            return
        rows = _rows(path, done) if done else []
        write_text(path, "".join(",".join(row) + "\n" for row in [list(COLUMNS), *rows]))
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1)  # line by line
        except OSError as error:
            raise FileError(
                f"{path} cannot be written: {error.strerror or error}",
                Span.of_caller(),
                hint="name another folder: out=...",
            ) from None

    def write(self, *values: float) -> None:
        """Write the line of an iteration."""
        if self._file is not None:
            self._file.write(",".join(map(repr, values)) + "\n")

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def _rows(path: Path, done: int) -> list[list[str]]:
    """Return the whole lines of the first iterations; the last one may have been written half."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
    except (OSError, ValueError):
        return []
    whole = [row for row in rows if len(row) == len(COLUMNS) and row[0].isdigit()]
    return [row for row in whole if 1 <= int(row[0]) <= done]
