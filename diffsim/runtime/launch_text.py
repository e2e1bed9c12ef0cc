"""The text of a launch function while it is written (`kernels/launch_function.py`)."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable
from typing import Any

from diffsim.runtime.session import session


def tuple_text(things: list[str]) -> str:
    """Format a tuple of expressions."""
    return "(" + "".join(t + ", " for t in things) + ")"


class Writer:
    """Collects the text of a launch function and the global names it uses.

    The parameters keep the user's names. Every other name in the text begins with `$`, for which
    `finish` puts a prefix that no parameter has.
    """

    def __init__(self, name: str, params: list[str]) -> None:
        self.name = name
        self.params = params
        # Names that the text must not hide: those of the kernel's parameters.
        self.reserved = list(params)
        self.lines: list[str] = []
        # A variable of an enclosing function, and its value: no call can give it, unlike a parameter.
        self.fixed: tuple[str, bool] | None = None
        self.space: dict[str, Any] = {"$session": session, "$thread": threading.get_ident}
        # Of the finished text: its global names, and what stands for `$` in them.
        self._globals: dict[str, Any] = {}
        self._prefix = "_"

    def use(self, thing: object, stem: str) -> str:
        """Return the global name of an object, made at its first use."""
        # Linear, but a launch function uses a few dozen objects. By identity: equal objects may not be
        # interchangeable.
        for name, have in self.space.items():
            if have is thing and name.startswith(f"${stem}"):
                return name
        name = f"${stem}{len(self.space)}"
        self.space[name] = thing
        return name

    def emit(self, *lines: str) -> None:
        self.lines += ["    " + line for line in lines]

    def guard(self, start: int, lock: object) -> None:
        """Indent the lines since `start` under a lock: threads of Python share the parameter block."""
        # Python may switch threads between packing and the call, and a long launch releases the GIL
        # (docs/adr/0022): another thread would overwrite arguments, or the result, that are still needed.
        self.space["$lock"] = lock
        self.lines[start:] = ["    with $lock:", *("    " + line for line in self.lines[start:])]

    def guard_unless(self, test: str, start: int, lock: object) -> None:
        """Put the lines since `start` under a lock, as `guard` does, except where a test is true."""
        # A call that packs its arguments itself needs none, and a lock takes 0.1 us.
        self.space["$lock"] = lock
        self.lines[start:] = [
            f"    if not {test}:",
            "        $lock.acquire()",
            "    try:",
            *("    " + line for line in self.lines[start:]),
            "    finally:",
            f"        if not {test}:",
            "            $lock.release()",
        ]

    def indent(self, start: int) -> None:
        """Indent the lines since `start` once more."""
        self.lines[start:] = ["    " + line for line in self.lines[start:]]

    def note_failure(self, start: int, note: Callable[[], None]) -> None:
        """Call `note` if the lines since `start` fail after the clock has ticked: memory may be changed."""
        self.space["$cut_short"] = note
        # A launch that fails before the clock ticks has changed nothing; `$now` tells the two apart.
        self.lines[start:] = [
            "    $now = 0",
            "    try:",
            *("    " + line for line in self.lines[start:]),
            # KeyboardInterrupt, too: it can arrive in the middle of a launch (docs/adr/0022).
            "    except BaseException:",
            "        if $now:",
            "            $cut_short()",
            "        raise",
        ]

    def finish(self) -> Callable[..., Any]:
        # A parameter of the user's may itself begin with underscores.
        while any(p.startswith(self._prefix) for p in self.reserved):
            self._prefix += "_"
        prefix = self._prefix
        lines = [f"def $launch({', '.join(self.params)}):", *self.lines]
        if self.fixed is not None:
            inner = ("    " + line for line in lines)
            name, value = self.fixed
            lines = [
                f"def $make({name}):",
                *inner,
                "    return $launch",
                f"$launch = $make({value})",
            ]
        text = ("\n".join(lines) + "\n").replace("$", prefix)
        self._globals = space = self._renamed(self.space)
        file = f"<diffsim launch of {self.name}>"
        # So that tracebacks, debuggers and profilers show the text.
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), space)
        made: Callable[..., Any] = space[f"{prefix}launch"]
        return made

    def replace(self, names: dict[str, Any]) -> None:
        """Let global names of the finished text stand for other things, all at once for other threads."""
        self._globals.update(self._renamed(names))

    def _renamed(self, names: dict[str, Any]) -> dict[str, Any]:
        return {name.replace("$", self._prefix): thing for name, thing in names.items()}
