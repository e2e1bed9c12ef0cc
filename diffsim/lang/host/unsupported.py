"""Errors for missing names: with advice for those of Taichi and Warp, or with the closest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from diffsim.errors import Span, UnknownAttributeError
from diffsim.lang.host.peer_names import advice_for


def close_to(name: str, known: list[str]) -> str | None:
    """Return the known name that is most like this one."""
    # Exchanged letters first: `difflib` rates them lower than other single mistakes.
    for one in known:
        if sorted(one) == sorted(name):  # letters exchanged
            return one
    # By the ratio of Ratcliff and Obershelp, at least 0.6.
    close = difflib.get_close_matches(name, known, 1)
    return close[0] if close else None


def absent(
    module: str,
    name: str,
    known: Iterable[str] = (),
    elsewhere: Mapping[str, Iterable[str]] = {},
    advice: Mapping[str, str] = {},
) -> AttributeError:
    """Return the error for a name that a module of diffsim does not have.

    Args:
        module: the module.
        name: the name.
        known: the names that it has.
        elsewhere: names of other modules, by what a program calls these: "ds.ad".
        advice: what to write for names of this module's counterparts in other frameworks.
    """
    what = f"module {module!r} has no attribute {name!r}"
    # Libraries probe modules for such names (`__path__`, `__wrapped__`) and expect a plain AttributeError.
    if name.startswith("_"):
        return AttributeError(what)
    close = close_to(name, list(known))
    # Names of other frameworks have precise advice; for others the closest name is proposed.
    hint = (
        advice.get(name)
        or advice_for(name)
        or next(
            (f"write {other}.{name}" for other, names in elsewhere.items() if name in names), None
        )
    )
    hint = hint or (f"did you mean {close}?" if close else f"see help({module})")
    return UnknownAttributeError(what, Span.of_caller(), hint)


def no_attribute(words: str, name: str, known: Iterable[str], hint: str = "") -> AttributeError:
    """Return the error for a name that an object does not have.

    Args:
        words: the object in the user's words.
        name: the name.
        known: the names that it has.
        hint: what to write, if that is known.
    """
    if name.startswith("_"):  # Python and libraries ask for these to see what an object can do
        return AttributeError(f"{words} has no attribute {name!r}")
    # Private names are never proposed.
    names = [k for k in known if not k.startswith("_")]
    close = close_to(name, names)
    hint = hint or (f"did you mean .{close}?" if close else f"there are {', '.join(names)}")
    return UnknownAttributeError(f"{words} has no .{name}", Span.of_caller(), hint)


class Explained:
    """Base of objects that users meet: a name that they do not have is an error with advice.

    Classes say what they are in the user's words, and what to write for names of other frameworks.
    """

    __slots__ = ()
    _words = "this object"
    _advice: Mapping[str, str] = {}

    if not TYPE_CHECKING:  # or every name would be one

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self._words, name, dir(self), self._advice.get(name, ""))


def no_assignment(words: str, name: str, known: Iterable[str], hint: str = "") -> AttributeError:
    """Return the error for assigning an attribute that cannot be assigned."""
    known = [k for k in known if not k.startswith("_")]
    close = None if name in known else close_to(name, known)
    return UnknownAttributeError(
        f".{name} of {words} cannot be assigned",
        Span.of_caller(),
        hint or (f"did you mean .{close}?" if close else "keep it in a variable of its own"),
    )
