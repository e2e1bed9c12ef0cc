"""Checks that the Python values a kernel was compiled for are unchanged, made in the launch function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffsim.errors import KernelStateError
from diffsim.lang.host.observations import (
    ABSENT,
    ATTRIBUTE,
    CALL,
    CHANGED,
    GONE,
    ITEM,
    REPLACED,
    SAME,
    Frozen,
    Observation,
    Ref,
    compare,
    is_atom,
)
from diffsim.lang.host.provenance import source_of
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization
    from diffsim.runtime.launch_text import Writer

_MOST_MOVES = 3
"""How many equal values in new objects replace the expected object, so that the fast test of identity holds
again; a value that is made anew more often is compared by value at each launch."""


def write_checks(w: Writer, special: Specialization, then: str) -> None:
    """Write the test of all observations; where one fails, `recheck` decides whether `then` is executed."""
    places = _Places(w)
    tests = [_test(w, places, observed) for observed in special.translation.observations]
    if not tests:
        return
    w.space["$recheck"] = special.recheck
    # One expression that stops at the first difference. A property of the user's may raise, or an attribute
    # may be gone; `recheck` then finds out what happened, and raises the error with its text.
    owners = (f"    {name} = {text}" for text, name in places.owners.items())
    w.emit("try:", *owners, f"    $changed = {' or '.join(tests)}")
    w.emit("except Exception:", "    $changed = True")
    w.emit("if $changed and $recheck():", f"    {then}")


def _test(w: Writer, places: _Places, observed: Observation) -> str:
    """Format the test that is true where an observed value may have changed."""
    place, kept = places.question(observed), observed.kept
    if observed.how == ABSENT:
        # "name in namespace": the name must still be absent, so that the builtin is meant.
        return place
    if isinstance(kept, Ref):
        # Compared by identity and referenced weakly: the kernel keeps no object of the program alive.
        return f"{place} is not {w.use(kept, 'f')}()"
    if observed.moves < _MOST_MOVES and not hasattr(type(kept), "compare"):
        # Identity first: it costs a few nanoseconds, and constants are mostly the same objects from launch to
        # launch. Lists and arrays can change in place, so those are compared by value.
        return f"{place} is not {w.use(kept, 'k')}"
    if isinstance(kept, Frozen) and kept.objects:
        # Each by identity, without a call.
        others = [f"$now[{k}] is not {w.use(ref, 'f')}()" for k, ref in enumerate(kept.objects)]
        kind = w.use(kept.kind, "t")
        of_kind = f"($now := {place}).__class__ is not {kind} or len($now) != {len(others)}"
        return f"{of_kind} or {' or '.join(others)}"
    w.space["$differs"] = _differs
    if isinstance(kept, Frozen) and kept.kind is tuple and kept.fixed:
        # No tuple of numbers changes, so that for the same one identity is enough, too.
        same, kept = w.use(kept.fixed, "k"), w.use(kept, "k")
        return f"($now := {place}) is not {same} and $differs($now, {kept})"
    return f"$differs({place}, {w.use(kept, 'k')})"


def _differs(now: object, kept: object) -> bool:
    """Tell whether a value has changed, or is the same but was read from a field that the tape follows."""
    if isinstance(kept, Frozen) and kept.has(now):
        return False
    # Equal is not enough: a number read from a field on a tape has a derivative, which a constant in the
    # kernel would lose. Where nothing records, none has.
    return compare(now, kept) != SAME or (bool(session.recorders) and source_of(now) is not None)


class _Places:
    """Formats the expressions that repeat observations.

    Attributes:
        owners: the expressions that these begin with, and the variable of each: `self` of all its attributes.
    """

    def __init__(self, w: Writer) -> None:
        self._w = w
        self._refs: dict[int, Ref] = {}
        self.owners: dict[str, str] = {}

    def question(self, observed: Observation) -> str:
        """Format the expression that repeats an observation."""
        w = self._w
        if observed.how == CALL:
            given = (self._thing(a, "a") for a in observed.key)
            return f"{w.use(observed.owner, 'q')}({', '.join(given)})"
        owner = self._owner(observed.owner)
        if observed.how == ATTRIBUTE:
            return f"{owner}.{observed.key}"
        # A key that is no text may have any `repr`; it is passed as an object.
        key = repr(observed.key) if type(observed.key) is str else w.use(observed.key, "n")
        return f"{owner}[{key}]" if observed.how == ITEM else f"{key} in {owner}"

    def _owner(self, owner: object) -> str:
        """Return the variable of what an observation looks into, or the object's own name."""
        if isinstance(owner, Observation):
            # `config.solver.dt` is asked from the outermost name on, so that a replaced `config` with equal
            # values costs nothing (docs/adr/0020).
            text = self.question(owner)
        elif isinstance(owner, Ref):
            text = self._thing(owner, "g")
        else:
            return self._thing(owner, "g")
        return self.owners.setdefault(text, f"$owner{len(self.owners)}")

    def _thing(self, thing: object, stem: str) -> str:
        if not isinstance(thing, Ref):
            return self._w.use(thing, stem)
        # Each observation has a reference of its own; those to one object are one name.
        return self._w.use(self._refs.setdefault(id(thing()), thing), stem) + "()"


def recheck(special: Specialization) -> bool:
    """Compare all captured values; True if the kernel must be compiled anew.

    Raises:
        KernelStateError: a number (or other constant) that was compiled in has changed.
        AutodiffError: it is the same, but Python made it of what has a gradient.
    """
    changed: tuple[Observation, Any] | None = None
    # All of them, before anything is concluded: an object that was replaced makes the kernel be compiled
    # anew, which cures a constant that changed with it.
    for observed in special.translation.observations:
        now = observed.now()
        source = source_of(now)
        if source is not None:
            source.refuse(observed.text, "read the field in the kernel")
        found = observed.compare(now)
        # Compiled anew with the values as they are now, so that later observations need no comparison.
        if found == REPLACED:
            return True
        if found == CHANGED and changed is None:
            changed = observed, now
        # The same value in another object (`self.dt = 0.1` in each step): expect that object from now on.
        if found == SAME and is_atom(observed.kept) and now is not observed.kept:
            observed.kept, observed.moves = now, observed.moves + 1
            special.forget_launch()
    if changed is None:
        return False
    observed, now = changed
    name = special.name
    # Silently compiling anew instead would make a kernel in a loop over `self.t` be compiled in each
    # iteration.
    raise KernelStateError(
        f"{observed.text} was {_shown(observed.kept)} when {name} was compiled and is {_shown(now)} now",
        observed.span,
        hint="pass it as an argument, keep it in a 0-D field, or call ds.init(...) with your options to "
        f"compile {name} anew",
    )


def check_lasts(special: Specialization) -> None:
    """Refuse an observation that gives a new object each time: each launch would compile the kernel anew.

    Raises:
        KernelStateError: it is.
    """
    for observed in special.translation.observations:
        # A property that makes a new object at each access, say.
        if observed.how != ABSENT and observed.compare(observed.now()) == REPLACED:
            raise KernelStateError(
                f"{observed.text} is another object each time it is read",
                observed.span,
                hint="keep the object in a variable or an attribute, and let the kernel use that",
            )


def _shown(value: object) -> str:
    text = "gone" if value is GONE else repr(value)
    return text if len(text) < 40 else text[:37] + "..."
