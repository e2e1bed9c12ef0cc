"""Functions of tasks that a launch calls from one place are inlined before anything else.

LLVM inlines such a function whatever its length, but after it has simplified it, as callees come first. What
it does for the body it then does once more for the launch. One that is inlined at once is simplified once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_NAME = re.compile(r"@[a-z]+\d+\b")
_CALL = re.compile(r"call void (@[a-z]+\d+)\(")
_HEAD = "define internal void "
_COMPUTES = ") #1 {"


def inline_first(functions: Sequence[str], launch: Sequence[str]) -> list[str]:
    """Return the lines of functions, with those marked that `launch` calls and nobody else names.

    Those that only store are left as they are: LLVM makes calls of memset of them, and none in `launch`.
    """
    named = Counter(_NAME.findall("\n".join([*functions, *launch])))
    # Its head is the other place. A function whose address a thread of the pool gets has one more.
    once = {name for name in _CALL.findall("\n".join(launch)) if named[name] == 2}
    return [_marked(line) if _name(line) in once else line for line in functions]


def _name(line: str) -> str:
    return line.removeprefix(_HEAD).partition("(")[0] if line.startswith(_HEAD) else ""


def _marked(line: str) -> str:
    return line.replace(_COMPUTES, f") alwaysinline{_COMPUTES[1:]}")
