"""Translations kept on disk: found by the text of a kernel, used while Python gives the same answers.

A translation depends on the kernel's text, on its arguments, on options, and on what it asked Python: its
observations (docs/adr/0020). All of these are described (`descriptions.py`). Text, arguments and options are
the key; the questions are in the entry, are asked again, and each must have an answer of the same
description. A kernel that asked for something without description is translated anew, and so is one whose
translation shows something: a warning, `ds.static_print`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any, NamedTuple

from diffsim.errors import Span
from diffsim.ir.nodes import Arg, Kernel, Mem
from diffsim.ir.types import ScalarType, Type
from diffsim.lang.frontend.translate import Translation
from diffsim.lang.host.inspection import is_ours
from diffsim.lang.host.observations import (
    ABSENT,
    CALL,
    GONE,
    ITEM,
    SAME,
    Observation,
    dereference,
)
from diffsim.lang.host.source import Source
from diffsim.runtime import kept_results
from diffsim.runtime.cache.disk_cache import DiskCache, key
from diffsim.runtime.cache.ir_bytes import (
    Fingerprint,
    NotStorable,
    dumps,
    fingerprint,
    loads,
    set_fingerprint,
)
from diffsim.runtime.fields.field import Field
from diffsim.runtime.translated import own_names
from diffsim.runtime.translated.descriptions import BUILTINS, Describer, Description

_KEYS = (str, int, bool, float)


class Record(NamedTuple):
    """A question as it is kept.

    Attributes:
        how: as of an `Observation`.
        owner: a path to the object that is asked.
        key: the name, the key or the arguments.
        text: the expression that asked.
        span: where it stands.
        strict: whether the answer counts, and not only later ones that follow from it.
        answer: its description.
    """

    how: str
    owner: tuple[Any, ...]
    key: Any
    text: str
    span: Span
    strict: bool
    answer: Description


class KeptTranslation(Translation):
    """A translation that was loaded; the IR before the passes is loaded if somebody asks for it."""

    def __init__(
        self,
        image: bytes,
        memories: list[Mem],
        observations: list[Observation],
        *,
        uses_random: bool,
    ) -> None:
        self._image, self._memories = image, memories
        self.observations = observations
        self.uses_random = uses_random
        self.has_output = False

    @functools.cached_property
    def kernel(self) -> Kernel:  # type: ignore[override]
        made: Kernel = loads(self._image, self._memories)
        return made


class Place:
    """Where the translation of a kernel for certain arguments is kept.

    Args:
        source: of the kernel.
        bindings: as `translate` gets them.
        args: the arguments that a launch passes.
        result: the type of what the kernel returns.
        is_method: whether the first binding is the object that the kernel is a method of.
    """

    def __init__(
        self,
        source: Source,
        bindings: Mapping[str, Any],
        args: tuple[Arg, ...],
        result: Type | None,
        *,
        is_method: bool,
    ) -> None:
        self._begin = functools.partial(_Asked, source, bindings, is_method=is_method)
        self._place: tuple[DiskCache, str] | None = None
        base = kept_results.base_key()
        if base is not None and not own_names.changed():
            store, *parts = base
            with contextlib.suppress(NotStorable):
                asked = self._begin()
                types = [(a.position, a.hint, repr(a.type)) for a in args]
                whole = asked.kernel, asked.given, types, repr(result)
                self._place = store, key(*parts, "translation", repr(whole))

    def find(self) -> tuple[Translation, Kernel] | None:
        """Return the translation and the prepared IR that are kept, if Python answers as it did then."""
        if self._place is None:
            return None
        store, name = self._place
        data = store.get(name)
        if data is None:
            return None
        try:
            records, uses_random, first, prepared = loads(data, ())
            asked = self._begin()
            for r in records:
                asked.ask(Record(*r))
            ir, digest, known = loads(prepared, asked.memories)
        except (NotStorable, TypeError, ValueError):  # or an entry that somebody has made up
            return None
        set_fingerprint(ir, Fingerprint(digest, tuple(known)))
        observations = [o for o in asked.observations if o.strict]
        return KeptTranslation(first, asked.memories, observations, uses_random=uses_random), ir

    def keep(self, made: Translation, ir: Kernel) -> None:
        """Keep a translation and the IR that it was prepared to, if all that it saw has a description."""
        found = None if self._place is None or made.has_output else fingerprint(ir)
        if self._place is None or found is None:
            return
        store, name = self._place
        try:
            asked = self._begin()
            for o in made.observations:
                asked.record(o)
            memories = asked.memories
            first = dumps(made.kernel, memories, with_places=True)
            prepared = dumps((ir, found.digest, found.known), memories, with_places=True)
            rows = [tuple(r) for r in asked.records]
            data = dumps((rows, made.uses_random, first, prepared), (), with_places=True)
        except NotStorable:
            return
        store.put(name, data)


class _Asked(Describer):
    """The questions of one translation, in their order, with paths to those who were asked."""

    def __init__(self, source: Source, bindings: Mapping[str, Any], *, is_method: bool) -> None:
        super().__init__(source, bindings, is_method=is_method)
        self.records: list[Record] = []
        self.observations: list[Observation] = []
        self._places: dict[int, int] = {}

    # ---- keeping

    def record(self, o: Observation) -> int:
        """Write down a question; return its number."""
        if id(o) in self._places:
            return self._places[id(o)]
        if isinstance(o.owner, Observation):
            owner: tuple[Any, ...] = "answer", self.record(o.owner)
        else:
            owner = self._path(o)
        now = o.now()
        # An answer that has changed since is none to compile for, and identity is of one process.
        changed = o.strict and o.how != ABSENT and o.compare(now) != SAME
        if o.exact or changed or not _is_plain(o):
            raise NotStorable(o.text)
        answer = self._answer(o, now)
        self._places[id(o)] = len(self.records)
        self.records.append(Record(o.how, owner, o.key, _text(o.node), o.span, o.strict, answer))
        return len(self.records) - 1

    def _answer(self, o: Observation, now: Any) -> Description:
        # Objects of diffsim's are looked into without further questions.
        return self.value(now) if o.strict or is_ours(now) else None

    def _path(self, o: Observation) -> tuple[Any, ...]:
        owner = o.owner if isinstance(o.owner, dict) else dereference(o.owner)
        for k, s in enumerate(self.sources):
            if owner is s.function.__globals__:
                return "globals", k
            if owner is s.function:
                return "function", k
            cells = zip(s.function.__code__.co_freevars, s.function.__closure__ or (), strict=True)
            for name, cell in cells:
                if owner is cell:
                    return "cell", k, name
        if self.owner is not None and owner is self.owner:
            return ("self",)
        if isinstance(owner, dict):
            module = sys.modules.get(str(owner.get("__name__")))
            if module is not None and is_ours(module) and vars(module) is owner:
                return "module", module.__name__
        elif isinstance(owner, FunctionType):
            path = "own", owner.__module__, owner.__qualname__
            if owner.__module__.partition(".")[0] == "diffsim" and self._at(path) is owner:
                return path
        raise NotStorable(f"{o.text} is asked of an object of the program")

    # ---- asking again

    def ask(self, r: Record) -> None:
        """Ask the question of a record again.

        Raises:
            NotStorable: the answer is another one.
        """
        is_answer = r.owner[0] == "answer"
        owner = self.observations[r.owner[1]] if is_answer else self._at(r.owner)
        o = Observation(r.how, owner, r.key, None, r.text, r.span)
        o.strict = r.strict
        now = o.now()
        if isinstance(now, Field):  # as the translation names it
            now.call_it(str(r.owner[2] if r.owner[0] == "cell" else r.key))
        if now is GONE or self._answer(o, now) != r.answer:
            raise NotStorable(f"{r.text} is something else")
        o.seen = now
        o.settle()
        self.observations.append(o)

    def _at(self, path: tuple[Any, ...]) -> Any:
        """Return the object at a path."""
        kind, *rest = path
        try:
            if kind == "self":
                return self.owner
            if kind == "module":
                return vars(sys.modules[rest[0]])
            if kind == "own":
                found: Any = sys.modules[rest[0]]
                for name in rest[1].split("."):
                    found = getattr(found, name)
                return found
            function = self.sources[rest[0]].function
            if kind == "globals":
                return function.__globals__
            if kind == "function":
                return function
            return function.__closure__[function.__code__.co_freevars.index(rest[1])]
        except (LookupError, AttributeError, TypeError, ValueError) as problem:
            raise NotStorable(str(problem)) from None


def _is_plain(o: Observation) -> bool:
    """Return whether a question means the same in another process."""
    if o.how == ABSENT:
        return o.key in BUILTINS
    if o.how == CALL:
        plain = (*_KEYS, type(None))
        return all(
            type(k) in plain or k in (float, int, bool) or type(k) is ScalarType for k in o.key
        )
    return o.how != ITEM or type(o.key) in _KEYS


def _text(node: ast.AST | str) -> str:
    if isinstance(node, str):
        return node
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)
