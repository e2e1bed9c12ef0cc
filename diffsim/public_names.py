"""The names that `dir`, completion and `help` show of public classes and modules.

Modules of diffsim share attributes with one another that are no part of its interface. A class names those
that are, in `_public`; the stubs for type checkers, the reference and the tests go by the same lists.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any


class PublicNames(type):
    """Metaclass of classes that users meet: `dir` shows the names in `_public`, of bases too.

    A class that a program derives from one of them shows all that it defines.
    """

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> None:
        super().__init__(name, bases, space)
        # Not where a class lists the names itself, as those of structs depend on their members.
        if not any("__dir__" in vars(base) for base in cls.__mro__[:-1]):
            type.__setattr__(cls, "__dir__", _names_of_instance)
        if "_description" in space:
            type.__setattr__(cls, "__doc__", _Doc(cls.__doc__))

    def __dir__(cls) -> list[str]:
        return _shown(super().__dir__(), _public(cls))


class _Doc:
    """The documentation of a class, and of each object of it the text that its `_description` gives."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __get__(self, thing: Any, owner: type) -> str | None:
        return self.text if thing is None else thing._description()


def _names_of_instance(self: Any) -> list[str]:
    cls = type(self)
    own = set() if _is_ours(cls) else set(getattr(self, "__dict__", ()))
    return _shown(object.__dir__(self), _public(cls) | own)


def _public(cls: type) -> set[str]:
    found: set[str] = set()
    for base in cls.__mro__:
        listed = vars(base).get("_public")
        if listed is not None:
            found.update(listed.split())
        elif not _is_ours(base):
            found.update(n for n in vars(base) if not n.startswith("_"))
    return found


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("diffsim.")


def _shown(names: Iterable[str], public: set[str]) -> list[str]:
    """Keep Python's own names, such as `__class__`, and the public ones."""
    return sorted(n for n in names if n in public or n.startswith("__"))


def names_of_module(public: list[str]) -> Callable[[], list[str]]:
    """Return the `__dir__` of a module with these names."""
    return lambda: [*public, "__all__", "__doc__", "__file__", "__name__"]


def with_example(doc: str, example: str) -> str:
    """Return a docstring with an example at its end, for objects that are made by a call."""
    if not example:
        return doc
    return f"{inspect.cleandoc(doc)}\n\nExample:\n{textwrap.indent(textwrap.dedent(example).strip(), '    ')}"


def summary(doc: str | None) -> str:
    """Return the first paragraph of a docstring on one line, as advice in errors quotes it."""
    return " ".join((doc or "").split("\n\n")[0].split())
