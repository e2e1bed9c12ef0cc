"""The values that a translation read from Python, and whether reading it again gives the same answers.

A kernel is compiled for the answers: what a name, an attribute or an item was, what `==`, `in` or a call
gave at compile time. Each question is an `Observation`. Before a launch it is asked again, and the new answer
is compared with the frozen old one: numbers, strings and containers of them by value, all other objects by
identity. Objects of the program are held weakly, so that a compiled kernel keeps none of them alive.
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

# In order of severity, so that the worst among the parts of a container is their maximum.
SAME, CHANGED, REPLACED = range(3)
"""Results of comparing answers. CHANGED: another constant, which is an error at the launch. REPLACED: another
object, for which the kernel is compiled anew."""

ITEM, ATTRIBUTE, ABSENT, CALL = "item", "attribute", "absent", "call"


class _Gone:
    """The type of GONE, the answer to a question that cannot be asked any more."""

    def __repr__(self) -> str:
        return "gone"


GONE = _Gone()

# Compared by exact type: a subclass may define operators, which are code of the program.
_ATOMS = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType, slice)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)
_NUMBERS = (float, int, bool)
# Classes whose `__eq__` an enum may inherit without bringing code of its own.
_BASES: tuple[Any, ...] = (object, int, str, float)
_MOST_OBJECTS = 16
_CONTAINERS = (list, tuple, set, frozenset, range)
# Objects that live as long as their module: a strong reference to them retains no memory of the program.
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
    def _describe_constant(*parts: object) -> str:
        """Write the object in a message about a constant that has changed, given its parts."""
        return repr(parts[-1])


class Ref(weakref.ref):
    """A weak reference to the object that was an answer.

    A class of its own, as `weakref.ref` objects of the program can be answers too.
    """

    __slots__ = ()


def reference(thing: object) -> Any:
    """Return the object, or a weak reference to it if it is the program's own."""
    if isinstance(thing, _SOLID) or type(thing).__module__.startswith(
        ("diffsim.lang", "diffsim.ir")
    ):
        return thing
    try:
        return Ref(thing)
    # Without `__weakref__` (a class with slots, a tuple): there is no way but to keep it alive.
    except TypeError:
        return thing


def dereference(thing: object) -> Any:
    """Return the object that was given to `reference`; None if it has been collected."""
    return thing() if isinstance(thing, Ref) else thing


def is_atom(thing: object) -> bool:
    """Return whether an object is a constant without parts."""
    return type(thing) in _ATOMS or isinstance(thing, (int, float, str, np.generic))


def cannot_change(thing: object) -> bool:
    """Return whether an object is a constant for ever: a plain number or text, or a tuple of such."""
    kind = type(thing)
    return kind in _PLAIN or (kind is tuple and all(map(cannot_change, thing)))  # type: ignore[call-overload]


def is_constant(thing: object) -> bool:
    """Return whether an object is compared by value."""
    kinds = (*_CONTAINERS, np.ndarray, enum.Enum)
    return is_atom(thing) or isinstance(thing, kinds) or is_compiled_by_value(thing)


def is_compiled_by_value(thing: object) -> TypeGuard[CompiledByValue]:
    """Return whether an object is compared by its parts.

    `issubclass` and not `isinstance`, which would ask the object for `__class__` and so could run its code.
    """
    return issubclass(type(thing), CompiledByValue)


def is_settled(thing: Any) -> bool:
    """Return whether the observed value alone determines the results of operations on an object.

    False for objects whose operators are code of the program: those are called again before each launch.
    """
    kind = type(thing)
    if kind in _ATOMS or kind is np.ndarray or isinstance(thing, np.generic):
        return True
    # Types as the arguments of `ds.Vector.zero(float, 2)`: the class is observed, and calls no other code.
    if kind is type and thing in _NUMBERS:
        return True
    if kind in (list, tuple, set, frozenset):
        return all(map(is_settled, thing))
    if isinstance(thing, enum.Enum):
        # An enum whose class defines `__eq__` answers by code of the program.
        compares: Any = kind.__eq__
        return any(compares is known.__eq__ for known in _BASES)
    if kind.__module__.partition(".")[0] == "diffsim":
        return True
    return kind in (range, zip, enumerate, reversed)


def is_settled_outside(thing: object) -> bool:
    """Return whether an object is settled for operations that do not reach the elements of a container."""
    return type(thing) in (list, tuple, set, frozenset) or is_settled(thing)


def has_code(thing: object) -> bool:
    """Return whether code of the program may determine the results of operations on an object."""
    return not is_settled(thing) and not isinstance(thing, (*_SOLID, types.BuiltinFunctionType))


# ---- answers, frozen


class Frozen:
    """A container, array or object compiled by value, as it was.

    Attributes:
        kind: its class.
        parts: its elements, frozen; of an array its type, shape and bytes.
        bare: whether the elements are atoms, which are stored as they are.
        fixed: the elements of a list or tuple: themselves if they cannot change, frozen if they are such
            lists; () if there are others.
        plain: the numbers of a vector or a matrix, or None.
        thing: the object itself, where its identity counts too.
    """

    __slots__ = ("bare", "fixed", "kind", "parts", "plain", "thing")

    def __init__(self, value: Any, *, exact: bool) -> None:
        self.kind = type(value)
        self.thing = reference(value) if exact else None
        self.bare = False
        self.fixed: tuple[Any, ...] = ()
        self.plain: Any = None
        self.parts: Any
        # A copy of the bytes: the program may change the array in place.
        if isinstance(value, np.ndarray):
            self.parts = _array_parts(value)
        elif isinstance(value, (list, tuple)):
            # The usual list of numbers is compared by `is` first, with no call per element.
            self.bare = all(map(is_atom, value))
            self.parts = tuple(value) if self.bare else tuple(freeze(v, exact=exact) for v in value)
            if not exact and self.kind in (list, tuple):
                self.fixed = _fixed(value, self.parts)
        elif isinstance(value, (set, frozenset)):
            self.parts = _set_parts(value)
        elif isinstance(value, range):
            self.parts = (value.start, value.stop, value.step)
        else:
            self.parts = freeze(value._as_constant(), exact=exact)
            self.plain = None if exact else _numbers(value)

    @property
    def objects(self) -> tuple[Ref, ...]:
        """The elements of a short list of nothing but objects of the program, fields say; () of another."""
        if (
            self.kind not in (list, tuple)
            or self.thing is not None
            or len(self.parts) > _MOST_OBJECTS
        ):
            return ()
        return self.parts if all(isinstance(p, Ref) for p in self.parts) else ()

    def has(self, now: Any) -> bool:
        """Return whether a list, tuple or vector has the same numbers, none of which has an origin on a tape.

        That is found in a tenth of the time that comparing them takes; False says nothing.
        """
        fixed = self.fixed
        if now is fixed:
            return len(fixed) > 0
        if self.plain is not None:
            return type(now) is self.kind and bool(_numbers(now) == self.plain)
        if type(now) is not self.kind or not 0 < len(now) == len(fixed):
            return False
        return all(map(operator.is_, now, fixed)) or all(map(_is_fixed, now, fixed))

    def compare(self, now: Any) -> int:
        """Return SAME, CHANGED or REPLACED for the present state of the object."""
        # A list is not the same constant as a tuple: `isinstance` in the kernel can tell them apart.
        if type(now) is not self.kind:
            return CHANGED if is_constant(now) else REPLACED
        if self.thing is not None and now is not dereference(self.thing):
            return REPLACED
        if isinstance(now, np.ndarray):
            return SAME if _array_parts(now) == self.parts else CHANGED
        if isinstance(now, (list, tuple)):
            if len(now) != len(self.parts):
                return CHANGED
            # The program usually has the very same numbers in its list: no comparison by value is needed.
            if self.bare and all(map(operator.is_, now, self.parts)):
                return SAME
            # Element by element; `max` takes the most severe result.
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
            inner = ", ".join(map(repr, map(dereference, self.parts)))
            if issubclass(kind, list):
                return f"[{inner}]"
            return f"({inner},)" if len(self.parts) == 1 else f"({inner})"
        if issubclass(kind, (set, frozenset)):
            return "{" + ", ".join(sorted(repr(v) for _, v in self.parts)) + "}"
        if issubclass(kind, range):
            return repr(range(*self.parts))
        parts = list(map(dereference, self.parts.parts))
        return str(kind._describe_constant(*parts))


def _fixed(elements: Any, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what `has` compares elements with, given them and their frozen parts; () if there is none."""
    if all(map(cannot_change, elements)):
        return tuple(elements)
    found = tuple(v if cannot_change(v) else p for v, p in zip(elements, parts, strict=True))
    return found if all(cannot_change(p) or _may_have(p) for p in found) else ()


def _numbers(value: Any) -> Any:
    """Return what is equal for two vectors only if they are the same constant, and none has an origin."""
    parts = value._as_constant()
    if len(parts) != 2 or type(parts[0]) is not bool or type(parts[1]) is not np.ndarray:
        return None
    # Of one with an origin each launch asks whether its tape still records.
    if getattr(value, "provenance", None) is not None or parts[1].dtype.hasobject:
        return None
    return parts[0], _array_parts(parts[1])


def _may_have(kept: object) -> bool:
    return type(kept) is Frozen and (len(kept.fixed) > 0 or kept.plain is not None)


def _is_fixed(now: Any, kept: Any) -> bool:
    return now is kept or (type(kept) is Frozen and kept.has(now))


def _array_parts(a: np.ndarray) -> tuple[Any, ...]:
    return a.dtype, a.shape, a.tobytes()


def _set_parts(value: Any) -> frozenset[Any]:
    # With the type, as 1, 1.0 and True are equal in Python and different constants in a kernel.
    return frozenset((type(v), v if is_atom(v) else id(v)) for v in value)


def freeze(value: object, *, exact: bool = False) -> Any:
    """Freeze an answer, to compare later ones with; `exact`: identity counts even for containers."""
    if is_atom(value):
        return value
    if isinstance(value, (*_CONTAINERS, np.ndarray)) or is_compiled_by_value(value):
        return Frozen(value, exact=exact)
    if isinstance(value, (types.MethodType, types.BuiltinMethodType)):  # made anew each time
        return _Method(value)
    return reference(value)


class _Method:
    """A bound method: Python makes a new object each time one is read, so owner and function are compared."""

    __slots__ = ("name", "owner")

    def __init__(self, method: Any) -> None:
        self.owner = reference(method.__self__)
        self.name = getattr(method, "__func__", method.__name__)

    def compare(self, now: object) -> int:
        """Return SAME or REPLACED."""
        if not isinstance(now, (types.MethodType, types.BuiltinMethodType)):
            return REPLACED
        # The function is compared too: a class may have got another method of this name.
        same = now.__self__ is dereference(self.owner)
        return SAME if same and getattr(now, "__func__", now.__name__) == self.name else REPLACED


def compare(now: object, kept: object) -> int:
    """Compare an answer with a frozen one."""
    if isinstance(kept, (Frozen, _Method)):
        return kept.compare(now)
    # A collected object is REPLACED, even if the answer now is None.
    if isinstance(kept, Ref):
        return SAME if now is not None and now is kept() else REPLACED
    if now is kept:
        return SAME
    if is_atom(kept):
        if _same_atom(now, kept):
            return SAME
        return CHANGED if is_constant(now) else REPLACED
    # Members of an enum are constants to the user, though they are compared by identity.
    return CHANGED if isinstance(kept, enum.Enum) and is_constant(now) else REPLACED


def identities(kept: object) -> tuple[int, ...]:
    """Return the ids of the objects in a frozen answer.

    Answers with other objects belong to other specializations: that is no change of a constant.
    """
    if isinstance(kept, Frozen):
        if issubclass(kept.kind, (*_CONTAINERS, np.ndarray)):
            return ()
        return tuple(number for part in kept.parts.parts for number in identities(part))
    return () if is_atom(kept) else (id(dereference(kept)),)


def _same_atom(a: Any, b: Any) -> bool:
    """Return whether two atoms are the same: -0.0 is not 0.0, and NaN is NaN."""
    # A number read from a field while a tape records has a class of its own, and is otherwise a float.
    kinds = {float if isinstance(x, Tracked) and isinstance(x, float) else type(x) for x in (a, b)}
    if len(kinds) > 1:
        return False
    # `==` would call -0.0 and 0.0 equal, whose reciprocals differ, and NaN different from itself, so that
    # the kernel would be compiled anew at each launch.
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
        how: ITEM: `owner[key]`; ATTRIBUTE: `owner.key`; ABSENT: `key in owner`, where it was not;
            CALL: `owner(*key)`.
        owner: an object, or the observation that found it.
        seen: the answer during the translation.
        kept: the answer, frozen, after it.
        strict: whether the answer counts; not for `config` in `config.dt`.
        exact: whether identity counts even for a list or an array, as the kernel uses `is`.
        moves: how often another object with the same value was found.
    """

    __slots__ = ("exact", "how", "kept", "key", "moves", "node", "owner", "seen", "span", "strict")

    def __init__(
        self, how: str, owner: object, key: Any, seen: object, node: ast.AST | str, span: Span
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
        """The expression that asked."""
        return self.node if isinstance(self.node, str) else ast.unparse(self.node)

    def has_other(self, value: object) -> bool:
        """Return whether a constant differs from the answer to the same question before."""
        seen = self.seen
        return (
            value is not seen
            and is_constant(seen)
            and is_constant(value)
            and compare(value, freeze(seen)) != SAME
        )

    @property
    def objects(self) -> list[Any]:
        """The objects that the answer was, or had as elements, which the kernel does not keep alive."""
        kept = self.kept
        refs = (
            (kept,) if isinstance(kept, Ref) else kept.objects if isinstance(kept, Frozen) else ()
        )
        return [thing for ref in refs if (thing := ref()) is not None]

    def settle(self) -> None:
        """Freeze the answer at the end of the translation, and release the program's objects."""
        self.kept = freeze(self.seen, exact=self.exact) if self.strict else None
        self.seen = None
        # Namespaces (dictionaries of globals) have no weak references, and live as long as their functions.
        if not isinstance(self.owner, (Observation, dict)):
            self.owner = reference(self.owner)
        if self.how == CALL:
            self.key = tuple(map(reference, self.key))

    def now(self) -> Any:
        """Ask again; GONE if that is not possible any more."""
        owner = self.owner.now() if isinstance(self.owner, Observation) else dereference(self.owner)
        if owner is GONE:
            return GONE
        try:
            if self.how == ITEM:
                return owner[self.key]
            if self.how == ATTRIBUTE:
                return getattr(owner, self.key)
            if self.how == ABSENT:
                # The key was not in the namespace; if it is now, the name no longer means the builtin.
                return GONE if self.key in owner else False
            return owner(*map(dereference, self.key))
        # Code of the program failed: whatever the answer was, it is not the same now.
        except Exception:
            return GONE

    def compare(self, now: Any) -> int:
        """Compare a new answer with the frozen one."""
        return REPLACED if now is GONE else compare(now, self.kept)


class Observations:
    """The observations of one translation; asking the same question twice makes one observation.

    Invariant: owners and keys are kept alive during the translation, as they are told apart by their ids.
    """

    def __init__(self) -> None:
        self._found: dict[Any, Observation] = {}
        self._alive: list[Any] = []  # so that no other object gets the same id

    def __iter__(self) -> Iterator[Observation]:
        return iter(self._found.values())

    def note(
        self,
        how: str,
        owner: object,
        key: Any,
        seen: object,
        node: ast.AST | str,
        span: Callable[[], Span],
        *,
        strict: bool,
    ) -> Observation:
        """Add a question and its answer; `strict`: whether the answer itself counts."""
        if how == CALL:
            # Arguments are told apart by identity; `_alive` makes sure that no id is used twice.
            name: Any = tuple(map(id, key))
        else:
            name = (type(key), repr(key)) if is_settled(key) else id(key)
        place = (how, id(owner), name)
        observation = self._found.get(place)
        if observation is None:
            self._alive.append((owner, key))
            observation = self._found[place] = Observation(how, owner, key, seen, node, span())
        observation.strict |= strict
        return observation

    def note_identity(self, thing: object) -> None:
        """Record that the kernel compares an object by identity (`is`)."""
        if is_atom(thing):
            return
        for observation in self:
            seen = observation.seen
            # The object may have been read as an item of a container that was observed as a whole.
            is_item = isinstance(seen, (list, tuple)) and any(e is thing for e in seen)
            if seen is thing or is_item:
                observation.exact = observation.strict = True

    def settled(self) -> list[Observation]:
        """Freeze the answers; return the observations that a launch has to compare."""
        found = list(self)
        for observation in found:
            observation.settle()
        return [observation for observation in found if observation.strict]
