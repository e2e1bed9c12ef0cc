"""Texts of functions that no file has: of `python -c`, of a prompt, of `exec`.

Python keeps the code of such a function and forgets its text. It often exists somewhere else: among the
arguments of the process, in the history of the prompt, in a variable of whoever called `exec`. What is found
is taken only if it compiles to the very code of the function, so a wrong guess does no harm.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from types import FrameType, FunctionType
from typing import Any

_MOST_ITEMS = 1000
"""Elements of a list or dictionary that are looked at."""
_LONGEST_NAME = 4096
_MOST_DECORATORS = 10
_numbers = itertools.count(1)


def texts(function: FunctionType) -> Iterator[list[str]]:
    """Yield texts, as lines, that the function may be from: the line of its code is that of the text."""
    name = function.__name__
    word = "lambda" if name == "<lambda>" else f"def {name}"
    first = function.__code__.co_firstlineno
    for text in itertools.chain(_of_process(), _of_prompt(word, first), _of_frames(word)):
        lines = text.splitlines(keepends=True)
        if word in text and len(lines) >= first:
            yield lines


def registered(lines: list[str], file: str) -> str:
    """Give a text a name under which error messages find its lines; return that."""
    name = f"<{file.strip('<>')} {next(_numbers)}>"
    # Without a time: `linecache.checkcache` keeps such an entry.
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return name


def _of_process() -> Iterator[str]:
    """Yield the text of `python -c TEXT`, and that of `python < FILE`."""
    options = getattr(sys, "orig_argv", [])
    if "-c" in options[:-1]:
        yield options[options.index("-c") + 1]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        assert sys.__stdin__ is not None
        stream = sys.__stdin__.fileno()
        about = os.fstat(stream)
        if stat.S_ISREG(about.st_mode):
            # By its place, so that a program that reads its input goes on where it was.
            yield os.pread(stream, about.st_size, 0).decode(errors="replace")


def _of_prompt(word: str, first: int) -> Iterator[str]:
    """Yield what was typed last, from statements on whose line of that number may begin the function."""
    readline = sys.modules.get("readline")
    if readline is None or not hasattr(sys, "ps1"):
        return
    count: int = readline.get_current_history_length()
    typed = [readline.get_history_item(k + 1) or "" for k in range(count)]
    for k in reversed(range(count)):
        if word in typed[k]:
            # The function begins there, or at a decorator above. Python counts lines by statement.
            for above in range(k, max(k - _MOST_DECORATORS, -1), -1):
                if above - first + 1 >= 0:
                    yield "\n".join(typed[above - first + 1 :]) + "\n"


def _of_frames(word: str) -> Iterator[str]:
    """Yield the texts with a word that the functions in progress hold: one of them called `exec`."""
    frame: FrameType | None = sys._getframe(1)
    seen: set[int] = set()
    while frame is not None:
        held = list(frame.f_locals.values())
        for thing in _parts((*held, *frame.f_code.co_consts)):
            if id(thing) not in seen:
                seen.add(id(thing))
                yield from _as_text(thing, word)
        frame = frame.f_back


def _parts(things: Iterable[Any]) -> Iterator[Any]:
    """Yield things and the elements of plain containers among them."""
    for thing in things:
        yield thing
        if type(thing) in (list, tuple):
            yield from thing[:_MOST_ITEMS]
        elif type(thing) is dict:
            yield from list(thing.values())[:_MOST_ITEMS]


def _as_text(thing: Any, word: str) -> Iterator[str]:
    """Yield a text, or that of the file it names: `exec(open("kernels.py").read())`."""
    if isinstance(thing, bytes):
        thing = thing.decode(errors="replace")
    if isinstance(thing, os.PathLike):
        thing = os.fspath(thing)
    if not isinstance(thing, str):
        return
    if "\n" in thing or word in thing:
        yield thing
    elif 0 < len(thing) < _LONGEST_NAME:
        with contextlib.suppress(OSError, ValueError, UnicodeError):
            if os.path.isfile(thing) and os.path.getsize(thing) < 2**24:
                with open(thing, encoding="utf-8") as file:
                    yield file.read()
