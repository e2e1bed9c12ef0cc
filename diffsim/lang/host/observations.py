"""What a translation asked of Python, and whether Python would still give the same answer.

A kernel is compiled for the answers: what stands under a name, an attribute, an item, what `==` or `in` or
a call said at compile time. Each question is a `Observation`. Before a launch it is asked again, and the
new answer is compared with the old one: numbers, strings and containers of them by their values, all other
objects by identity.
"""

from __future__ import annotations

import ast
import enum
import math
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import numpy as np

from diffsim.errors import Span
from diffsim.ir.op import Tracked

SAME, CHANGED, REPLACED = range(3)
"""What became of an answer: another constant is CHANGED, another object REPLACED."""

ITEM, ATTRIBUTE, ABSENT, CALL = "item", "attribute", "absent", "call"


class _Gone:
    """The answer to a question that can not be asked any more."""

    def __repr__(self) -> str:
        return "gone"


GONE = _Gone()

_ATOMS = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType, slice)
_BASES: tuple[Any, ...] = (object, int, str, float)
_CONTAINERS = (list, tuple, set, frozenset, range)
_SOLID = (type, enum.Enum, *(getattr(types, name) for name in ("ModuleType", "FunctionType")))


class CompiledByValue:
    """Base of the language's own objects that a kernel is compiled for by their parts: vectors, structs.

    Two with equal parts are the same constant, whichever objects they are.
    """

    __slots__ = ()

    def _as_constant(self) -> Any:
        """Return the parts: a constant, or a tuple or list of constants and objects."""
        raise NotImplementedError

    @staticmethod
    def _describe_constant(*parts: Any) -> str:
        """Write the object in a message about a constant that has changed, given its parts."""
        return repr(parts[-1])


class Ref(weakref.ref):
    """An object that an answer was, not kept alive by it."""

    __slots__ = ()


def hold(thing: Any) -> Any:
    """The thing, by a weak reference if it is an object whose life is the program's own business."""
    if isinstance(thing, _SOLID) or type(thing).__module__.startswith(
        ("diffsim.lang", "diffsim.ir")
    ):
        return thing
    try:
        return Ref(thing)
    except TypeError:
        return thing


def held(thing: Any) -> Any:
    """What `hold` was given; None if it is gone."""
    return thing() if isinstance(thing, Ref) else thing


def is_atom(thing: Any) -> bool:
    """Whether it is a constant without parts."""
    return type(thing) in _ATOMS or isinstance(thing, (int, float, str, np.generic))


def is_constant(thing: Any) -> bool:
    """Whether it counts by its value."""
    kinds = (*_CONTAINERS, np.ndarray, enum.Enum)
    return is_atom(thing) or isinstance(thing, kinds) or is_compiled_by_value(thing)


def is_compiled_by_value(thing: object) -> TypeGuard[CompiledByValue]:
    """Return whether the object's parts count, by its class alone."""
    return issubclass(type(thing), CompiledByValue)


def is_settled(thing: Any) -> bool:
    """Whether its value, which is watched, decides how it answers to an operation."""
    kind = type(thing)
    if kind in _ATOMS or kind is np.ndarray or isinstance(thing, np.generic):
        return True
    if kind in (list, tuple, set, frozenset):
        return all(map(is_settled, thing))
    if isinstance(thing, enum.Enum):
        compares: Any = kind.__eq__
        return any(compares is known.__eq__ for known in _BASES)
    if kind.__module__.partition(".")[0] == "diffsim":
        return True
    return kind in (range, zip, enumerate, reversed)


def is_settled_outside(thing: Any) -> bool:
    """The same, for operations that do not ask the elements of a container."""
    return type(thing) in (list, tuple, set, frozenset) or is_settled(thing)


def has_code(thing: Any) -> bool:
    """Whether code of the program may decide how it answers."""
    return not is_settled(thing) and not isinstance(thing, (*_SOLID, types.BuiltinFunctionType))


# ---- answers, frozen


class Frozen:
    """A container or array as it was.

    Attributes:
        kind: its class.
        parts: its elements, frozen; of an array its type, shape and bytes.
        bare: whether the elements are atoms, which are kept as they are.
        thing: the object itself, where its identity counts too.
    """

    __slots__ = ("bare", "kind", "parts", "thing")

    def __init__(self, value: Any, *, exact: bool) -> None:
        self.kind = type(value)
        self.thing = hold(value) if exact else None
        self.bare = False
        self.parts: Any
        if isinstance(value, np.ndarray):
            self.parts = _array_parts(value)
        elif isinstance(value, (list, tuple)):
            self.bare = all(map(is_atom, value))
            self.parts = tuple(value) if self.bare else tuple(freeze(v, exact=exact) for v in value)
        elif isinstance(value, (set, frozenset)):
            self.parts = _set_parts(value)
        elif isinstance(value, range):
            self.parts = (value.start, value.stop, value.step)
        else:
            self.parts = freeze(value._as_constant(), exact=exact)

    def compare(self, now: Any) -> int:
        if type(now) is not self.kind:
            return CHANGED if is_constant(now) else REPLACED
        if self.thing is not None and now is not held(self.thing):
            return REPLACED
        if isinstance(now, np.ndarray):
            return SAME if _array_parts(now) == self.parts else CHANGED
        if isinstance(now, (list, tuple)):
            if len(now) != len(self.parts):
                return CHANGED
            if self.bare and all(map(operator.is_, now, self.parts)):
                return SAME
            return max(map(compare, now, self.parts), default=SAME)
        if isinstance(now, (set, frozenset)):
            return SAME if _set_parts(now) == self.parts else CHANGED
        if isinstance(now, range):
            return SAME if (now.start, now.stop, now.step) == self.parts else CHANGED
        return compare(now._as_constant(), self.parts)

    def __repr__(self) -> str:
        kind = self.kind
        if issubclass(kind, np.ndarray):
            dtype, shape, text = self.parts
            return repr(np.frombuffer(text, dtype).reshape(shape))
        if issubclass(kind, (list, tuple)):
            inner = ", ".join(map(repr, map(held, self.parts)))
            if issubclass(kind, list):
                return f"[{inner}]"
            return f"({inner},)" if len(self.parts) == 1 else f"({inner})"
        if issubclass(kind, (set, frozenset)):
            return "{" + ", ".join(sorted(repr(v) for _, v in self.parts)) + "}"
        if issubclass(kind, range):
            return repr(range(*self.parts))
        parts = list(map(held, self.parts.parts))
        return str(kind._describe_constant(*parts))


def _array_parts(a: np.ndarray) -> tuple[Any, ...]:
    return a.dtype, a.shape, a.tobytes()


def _set_parts(value: Any) -> frozenset[Any]:
    return frozenset((type(v), v if is_atom(v) else id(v)) for v in value)


def freeze(value: Any, *, exact: bool = False) -> Any:
    """An answer, to compare later ones with; `exact`: they must be the same object, if it is no number."""
    if is_atom(value):
        return value
    if isinstance(value, (*_CONTAINERS, np.ndarray)) or is_compiled_by_value(value):
        return Frozen(value, exact=exact)
    if isinstance(value, (types.MethodType, types.BuiltinMethodType)):  # made anew each time
        return _Method(value)
    return hold(value)


class _Method:
    """A method taken from an object."""

    __slots__ = ("name", "owner")

    def __init__(self, method: Any) -> None:
        self.owner = hold(method.__self__)
        self.name = getattr(method, "__func__", method.__name__)

    def compare(self, now: Any) -> int:
        if not isinstance(now, (types.MethodType, types.BuiltinMethodType)):
            return REPLACED
        same = now.__self__ is held(self.owner)
        return SAME if same and getattr(now, "__func__", now.__name__) == self.name else REPLACED


def compare(now: Any, kept: Any) -> int:
    """What became of a frozen answer."""
    if isinstance(kept, (Frozen, _Method)):
        return kept.compare(now)
    if isinstance(kept, Ref):
        return SAME if now is not None and now is kept() else REPLACED
    if now is kept:
        return SAME
    if is_atom(kept):
        if _same_atom(now, kept):
            return SAME
        return CHANGED if is_constant(now) else REPLACED
    return CHANGED if isinstance(kept, enum.Enum) and is_constant(now) else REPLACED


def identities(kept: Any) -> tuple[int, ...]:
    """What tells a frozen answer from others of which nobody would say that a constant has changed."""
    if isinstance(kept, Frozen):
        if issubclass(kept.kind, (*_CONTAINERS, np.ndarray)):
            return ()
        return tuple(number for part in kept.parts.parts for number in identities(part))
    return () if is_atom(kept) else (id(held(kept)),)


def _same_atom(a: Any, b: Any) -> bool:
    # What Python reads while a tape records is of a class of its own, and otherwise a float.
    kinds = {float if isinstance(x, Tracked) and isinstance(x, float) else type(x) for x in (a, b)}
    if len(kinds) > 1:
        return False
    if isinstance(a, (float, np.floating)):
        a, b = float(a), float(b)
        if a != a or b != b:
            return a != a and b != b
        return a == b and math.copysign(1.0, a) == math.copysign(1.0, b)
    return bool(a == b)


# ---- questions


class Observation:
    """A question that the translation asked, and the answer that the kernel is compiled for.

    Attributes:
        how: ITEM: `owner[key]`; ATTRIBUTE: `owner.key`; ABSENT: whether `key in owner`, where it was not;
            CALL: `owner(*key)`.
        owner: an object, or the look that found it.
        seen: the answer while the kernel is translated; then, as `kept`, frozen.
        strict: whether the answer counts; it does not where it only was looked into: `config` of `config.dt`.
        exact: whether it must be the very object even if it is a list or an array, which `is` asks for.
        moves: how often another object with the same value was found.
    """

    __slots__ = ("exact", "how", "kept", "key", "moves", "node", "owner", "seen", "span", "strict")

    def __init__(
        self, how: str, owner: Any, key: Any, seen: Any, node: ast.AST | str, span: Span
    ) -> None:
        self.how = how
        self.owner = owner
        self.key = key
        self.seen = seen
        self.kept: Any = None
        self.node = node
        self.span = span
        self.strict = self.exact = False
        self.moves = 0

    @property
    def text(self) -> str:
        return self.node if isinstance(self.node, str) else ast.unparse(self.node)

    def has_other(self, value: Any) -> bool:
        """Whether a constant is another one than it was when this was asked before."""
        seen = self.seen
        return (
            value is not seen
            and is_constant(seen)
            and is_constant(value)
            and compare(value, freeze(seen)) != SAME
        )

    @property
    def object(self) -> Any:
        """The object that the answer was, if it is one that the kernel does not keep alive."""
        return self.kept() if isinstance(self.kept, Ref) else None

    def settle(self) -> None:
        """The translation is done: freeze the answer, and keep alive nothing that only the program owns."""
        self.kept = freeze(self.seen, exact=self.exact) if self.strict else None
        self.seen = None
        if not isinstance(self.owner, (Observation, dict)):
            self.owner = hold(self.owner)
        if self.how == CALL:
            self.key = tuple(map(hold, self.key))

    def now(self) -> Any:
        """The answer now; GONE if the question makes no sense any more."""
        owner = self.owner.now() if isinstance(self.owner, Observation) else held(self.owner)
        if owner is GONE:
            return GONE
        try:
            if self.how == ITEM:
                return owner[self.key]
            if self.how == ATTRIBUTE:
                return getattr(owner, self.key)
            if self.how == ABSENT:
                return GONE if self.key in owner else False
            return owner(*map(held, self.key))
        except Exception:
            return GONE

    def compare(self, now: Any) -> int:
        return REPLACED if now is GONE else compare(now, self.kept)


class Observations:
    """All questions of one translation."""

    def __init__(self) -> None:
        self._found: dict[Any, Observation] = {}
        self._alive: list[Any] = []  # so that no other object gets the same id

    def __iter__(self) -> Iterator[Observation]:
        return iter(self._found.values())

    def note(
        self,
        how: str,
        owner: Any,
        key: Any,
        seen: Any,
        node: ast.AST | str,
        span: Callable[[], Span],
        *,
        strict: bool,
    ) -> Observation:
        """Remember a question and its answer; `strict`: whether the answer itself counts."""
        if how == CALL:
            name: Any = tuple(map(id, key))
        else:
            name = (type(key), repr(key)) if is_settled(key) else id(key)
        place = (how, id(owner), name)
        look = self._found.get(place)
        if look is None:
            self._alive.append((owner, key))
            look = self._found[place] = Observation(how, owner, key, seen, node, span())
        look.strict |= strict
        return look

    def exactly(self, thing: Any) -> None:
        """The identity of a thing was asked for."""
        if is_atom(thing):
            return
        for look in self:
            seen = look.seen
            held_in = isinstance(seen, (list, tuple)) and any(e is thing for e in seen)
            if seen is thing or held_in:
                look.exact = look.strict = True

    def settled(self) -> list[Observation]:
        """The questions whose answers count, frozen."""
        found = list(self)
        for look in found:
            look.settle()
        return [look for look in found if look.strict]
