"""Fields that a kernel was given before, in the same combination: what follows from them is found out once.

Programs that hand their state from array to array launch a kernel with the same few combinations of fields
again and again. From the fields of a launch follow the addresses in the parameter block, that no two overlap,
the row of the launch history and the versions to test and to stamp. When a combination is launched a second
time with plain arguments all of that is kept, by the fields' numbers, which no other field ever has; from
then on a launch costs what it costs with captured fields (docs/adr/0090).

What is kept holds no field alive. It is dropped whenever a field may be somewhere else or have a gradient
since, with the words that stand for fields (`plain_arguments.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from diffsim.runtime.binding.plain_arguments import words
from diffsim.runtime.executable import PlainCall
from diffsim.runtime.fields.field import Field
from diffsim.runtime.launch_text import Writer, tuple_text
from diffsim.runtime.session import session
from diffsim.runtime.threads import members

if TYPE_CHECKING:
    LaunchArguments = (
        Any  # of a room above this one: runtime/kernels/access_summary.LaunchArguments
    )
    LaunchHistory = Any  # of a room above this one: runtime/kernels/launch_history.LaunchHistory

Role = tuple[str, bool]
"""An array parameter, and whether its gradient is meant."""

_MOST = 1 << 10
"""Combinations that are kept for one launch function; each takes about 2 KiB."""

_all: weakref.WeakSet[BoundFields] = weakref.WeakSet()


class BoundFields:
    """The combinations of fields that a launch function knows, and the names that its text has for them.

    Attributes:
        known: what follows from a combination, by the numbers of its fields: the values of `names`.
        names: of the text, in the order of these values.
        versions: of these names those of versions, by what they are of.
        row: of these names that of the row of the launch history, where numbers among the arguments do not
            decide which one it is; else there is the part of its key for each array.
        arrays: the array parameters.
    """

    def __init__(
        self,
        arguments: LaunchArguments,
        plain: PlainCall,
        roles: Iterable[Role],
        launches: LaunchHistory | None,
    ) -> None:
        """Begin without any combination.

        Args:
            arguments: of the launch; there are arrays among them.
            plain: how they are packed and launched.
            roles: which versions the text needs.
            launches: the history that the launch is added to, if it is.
        """
        self.known: dict[tuple[int, ...], tuple[Any, ...]] = {}
        self._arguments = arguments
        self._plain = plain
        self._launches = launches
        parameters = arguments.parameters
        self._places = [k for k, p in enumerate(parameters) if p.kind == "array"]
        self.arrays = [p.name for p in parameters if p.kind == "array"]
        self._numbers = [p.name for p in parameters if p.kind != "array"]
        self.versions = {role: f"$versions_{k}" for k, role in enumerate(dict.fromkeys(roles))}
        # The signature has the memory that its functions work on.
        self.names = ["$bound_signature", "$bound_fits", "$bound_call"]
        self.row: str | None = None
        if launches is not None and not self._numbers:
            self.row = "$bound_row"
            self.names.append(self.row)
        elif launches is not None:
            self.names += [self.key_of(n) for n in self.arrays]
        self.names += self.versions.values()
        self._seen: set[tuple[int, ...]] = set()
        _all.add(self)

    def key_of(self, name: str) -> str:
        """Return the name of an array's part of the key in the launch history."""
        return f"$key_{name}"

    @property
    def call(self) -> str:
        """The text that packs the numbers and launches."""
        return f"$bound_call({', '.join(self._numbers)})"

    def write(self, w: Writer, otherwise: list[str]) -> None:
        """Write the look-up; `otherwise` are the lines for arguments that are not such a combination."""
        w.space |= {"$known_fields": self.known, "$note_combination": self.note, "$Field": Field}
        classes = " and ".join(f"{n}.__class__ is $Field" for n in self.arrays)
        numbers = tuple_text([f"{n}.number" for n in self.arrays])
        w.emit(f"$bound = {classes} and $known_fields.get({numbers})", "if $bound:")
        w.emit(f"    {', '.join(self.names)} = $bound")
        if self._numbers:
            w.emit(
                f"    $is_plain = $bound_fits({', '.join(self._numbers)})",
                "    if not $is_plain:",
                "        $bound = None",
            )
        else:
            w.emit("    $is_plain = True")
        w.emit("if not $bound:", *("    " + line for line in otherwise))
        # None: the arrays are fields, and all has been looked at.
        given = tuple_text([p.name for p in self._arguments.parameters])
        w.emit("    if $is_plain and $bound is None:", f"        $note_combination({given})")

    def note(self, args: tuple[Any, ...]) -> None:
        """Note the fields of a launch whose arguments are plain; keep what follows at the second time."""
        numbers = tuple(args[k].number for k in self._places)
        if numbers not in self._seen:
            # Programs that make arrays anew for each launch have thousands of combinations, of one each.
            if len(self._seen) >= _MOST:
                self._seen.clear()
            self._seen.add(numbers)
            return
        known: list[Any] = []
        launches = self._launches
        if launches is not None:
            key = self._arguments.key(args)
            if self._numbers:
                known += [key[k] for k in self._places]
            elif (row := launches.times.get(key)) is not None:
                known.append(row)
            else:
                return
        given = [words.get(a.number) if a.__class__ is Field else a for a in args]
        if None in given:
            return
        named = self._arguments.named(args)
        for name, of_gradient in self.versions:
            known.append((named[name].adjoint if of_gradient else named[name]).versions)
        bound = self._plain.signature.bound(given)
        if len(self.known) >= _MOST:
            self.known.clear()
        self.known[numbers] = bound, bound.fits, bound.launch, *known

    def forget(self) -> None:
        """Drop all combinations."""
        self.known.clear()
        self._seen.clear()


def _forget_all() -> None:
    for bound in members(_all):
        bound.forget()


# As `plain_arguments.words`.
session.at_reset.append(_forget_all)
session.at_new_grad.append(_forget_all)
