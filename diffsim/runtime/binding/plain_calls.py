"""The part of a launch function that lets native code take plain arguments, and what finds launch functions.

A call of a kernel goes to the launch function that the last one went to. With array arguments this one asks
native code whether the arrays are such as its specialization is for, and refuses others; with compiled-in
arguments a function written by `dispatcher` looks up which one it is (docs/adr/0083).
"""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from diffsim.ir.nodes import Mem
from diffsim.runtime.binding.bound_fields import BoundFields
from diffsim.runtime.binding.plain_arguments import note_fields, signature, words
from diffsim.runtime.binding.template_arguments import constant_key
from diffsim.runtime.executable import CallText, Executable, PlainCall
from diffsim.runtime.fields.field import Field
from diffsim.runtime.launch_text import Writer, tuple_text

if TYPE_CHECKING:
    AccessSummary = Any  # of a room above this one: runtime/kernels/access_summary.AccessSummary
    LaunchHistory = Any  # of a room above this one: runtime/kernels/launch_history.LaunchHistory
    Parameter = Any  # of a room above this one: runtime/kernels/arguments.Parameter
    Specialization = Any  # of a room above this one: runtime/kernels/specialization.Specialization
Found = tuple[Callable[..., bool], tuple[Any, ...]]
"""A function of arguments and their key in a launch history, and what stands for the arrays in the key."""

_FIRST_LAUNCHES = 2
"""Launches of a kernel before native functions are made for it: one that runs once needs none."""


class UnfitArguments(Exception):
    """A launch was given arrays that another specialization is for; nothing was launched."""


def write_fits(
    w: Writer,
    special: Specialization,
    compiled: Executable,
    mems: tuple[Mem, ...],
    accesses: AccessSummary,
    *,
    more: bool,
    launches: LaunchHistory | None = None,
) -> tuple[PlainCall | None, BoundFields | None]:
    """Test whether native code takes the arguments as they are.

    Args:
        w: the text.
        special: the kernel.
        compiled: the code that is launched, which may be that of a derivative.
        mems: its memories.
        accesses: its accesses.
        more: see `write_guard`.
        launches: the history that the launch is added to.

    Returns:
        How they are packed and launched; None: it never does. And the combinations of fields that the text
        knows, where `$bound` is true; None: it has no such name.
    """
    at_once = compiled.packs_in_call and not (more or compiled.checks or compiled.prints)
    described = signature(special, compiled, mems, accesses, apart=at_once)
    if described is None:
        return None, None
    given = []
    arrays = []
    lines = []
    for p in special.arguments.parameters:
        given.append(p.name)
        if p.kind == "array":
            w.space |= {"$words": words.get, "$Field": Field}
            given[-1] = f"$given_{p.name}"
            arrays.append(p.name)
            lines.append(
                f"{given[-1]} = $words({p.name}.number) if {p.name}.__class__ is $Field else {p.name}"
            )
    plain = PlainCall(described, ", ".join(given), "$is_plain", at_once)
    late = compiled.packs_in_call
    w.space |= {"$fits": _fits_later if late else described.fits, "$signature": described}
    lines.append(f"$is_plain = $fits({plain.arguments})")
    if arrays:
        w.space["$note_fields"] = note_fields
        lines += ["if not $is_plain:", f"    $note_fields({tuple_text(arrays)})"]
    if not (arrays and at_once):
        w.emit(*lines)
        return plain, None
    used = [a.mem for a in (*accesses.writes, *accesses.reads) if a.mem.kind == "array"]
    roles = [(special.arguments.array_name(m), special.arguments.role_of(m)[0]) for m in used]
    bound = BoundFields(special.arguments, plain, roles, launches)
    bound.write(w, lines)
    return plain._replace(bound=bound.call), bound


def _fits_later(*_: object) -> bool:
    return False


def write_call(w: Writer, text: CallText) -> None:
    """Write the call of an executable, which gives names their later meanings after the first launches."""
    w.space.update(text.names)
    if text.later is not None:
        w.space["$call"] = _counted(w, text.names["$call"], text.later)
    w.emit(*text.lines)


def _counted(
    w: Writer, call: Callable[[], object], later: Callable[[], dict[str, Any]]
) -> Callable[[], None]:
    left = _FIRST_LAUNCHES

    def launch() -> None:
        nonlocal left
        if left > 0:  # two threads may count as one: no harm
            left -= 1
        else:
            # A thread that has found arguments not to be plain calls either function: both launch what is
            # in the block.
            w.replace(later())
        call()

    return launch


def write_refusal(w: Writer, plain: PlainCall) -> None:
    """Refuse arrays that are not plain, where `strict` has made the function."""
    w.fixed = ("$strict", False)
    w.space["$UnfitArguments"] = UnfitArguments
    w.emit(f"if $strict and not {plain.test}:", "    raise $UnfitArguments")


def write_only_if_unfit(
    w: Writer, start: int, compiled: Executable, plain: PlainCall | None
) -> None:
    """Let the lines since `start`, which pack arguments, run only where native code does not do it."""
    if plain is None:
        return
    w.indent(start)
    if compiled.packs_in_call:
        w.lines.insert(start, f"    if not {plain.test}:")
    else:
        w.space["$pack_plain"] = plain.signature.pack
        w.lines[start:start] = [
            f"    if {plain.test}:",
            f"        $pack_plain({plain.arguments})",
            "    else:",
        ]


def write_guard(
    w: Writer, start: int, compiled: Executable, plain: PlainCall | None, *, packs: bool, more: bool
) -> None:
    """Guard the lines since `start` by the lock of the parameter block, as far as they need it.

    Args:
        w: the text.
        start: where the lines begin.
        compiled: what they call.
        plain: how they call it.
        packs: whether there are arguments.
        more: whether they put other things into the block, or look at what the launch has left.
    """
    # Without anything in the parameter block that differs between launches, threads may use it at once, and
    # a call that packs its arguments itself has a block of its own.
    at_once = plain is not None and plain.at_once
    if more or compiled.prints or (packs and not at_once):
        w.guard(start, compiled.lock)
    elif plain is not None:
        w.guard_unless(plain.test, start, compiled.lock)


def strict(special: Specialization) -> Callable[..., Any] | None:
    """Return a launch function that refuses arrays which are not plain; None where it cannot tell.

    Another specialization may be for those.

    Raises:
        UnfitArguments: where it is called with such arrays.
    """
    launch = special.launch
    if not special.arguments.arrays:
        return launch
    if not isinstance(launch, FunctionType) or not launch.__closure__:
        return None
    closure = (CellType(True),)
    return FunctionType(launch.__code__, launch.__globals__, launch.__name__, None, closure)


def dispatcher(
    name: str,
    parameters: list[Parameter],
    known: dict[Any, Callable[..., Any]],
    result: Callable[[Any], Any] | None,
    *,
    by_shapes: bool,
) -> Callable[..., Any]:
    """Write the function that finds the launch function for compiled-in arguments, and calls it.

    Args:
        name: of the kernel.
        parameters: those that a call gives.
        known: launch functions by the keys of compiled-in arguments; it may change at any time.
        result: makes what a call gives of what a launch returns; None: it is that.
        by_shapes: whether the shapes of arrays are among these keys.

    Raises:
        UnfitArguments: where it is called with arguments that no function is known for.
    """
    w = Writer(name, [p.name for p in parameters])
    w.space |= {"$known": known, "$Field": Field, "$constant": constant_key, "$result": result}
    w.space["$UnfitArguments"] = UnfitArguments
    keys = []
    for p in parameters:
        if p.kind == "template":
            keys.append(f"{p.name}.number if {p.name}.__class__ is $Field else $constant({p.name})")
        elif p.kind == "array" and by_shapes:
            keys.append(f"{p.name}.shape")
    given = ", ".join(p.name for p in parameters if p.kind != "template")
    call = f"$launch({given})"
    w.emit(
        "try:",
        f"    $launch = $known[{tuple_text(keys)}]",
        "except (KeyError, AttributeError):" if by_shapes else "except KeyError:",
        "    raise $UnfitArguments from None",
        f"return {call}" if result is None else f"return $result({call})",
    )
    return w.finish()


def finder_of_fields(
    name: str, parameters: list[Parameter], known: dict[tuple[Any, ...], Found]
) -> Callable[..., bool]:
    """Write the function that finds a function by the fields among the arguments, and calls it.

    It takes the arguments, twice. It returns False where it knows none.

    Args:
        name: of the kernel.
        parameters: those that a call gives.
        known: what it finds, by what is compiled in, and by the numbers of fields; it may change at any time.
    """
    names = [p.name for p in parameters]
    w = Writer(name, names)
    w.params = ["$args", "$same"]
    w.space |= {"$known": known, "$Field": Field, "$constant": constant_key}
    arrays = [p.name for p in parameters if p.kind == "array"]
    given = [p.name for p in parameters if p.kind != "template"]
    key = [f"$key_{n}" if n in arrays else n for n in given]
    others = {"template": "$constant({})", "array": "None"}
    keys = [
        f"{p.name}.number if {p.name}.__class__ is $Field else {others[p.kind].format(p.name)}"
        for p in parameters
        if p.kind in others
    ]
    w.emit(
        f"{tuple_text(names)} = $args",
        "try:",
        f"    $call, $keys = $known[{tuple_text(keys)}]",
        "except KeyError:",
        "    return False",
    )
    if arrays:
        w.emit(f"{tuple_text([f'$key_{a}' for a in arrays])} = $keys")
    w.emit(f"return $call({tuple_text(given)}, {tuple_text(key)})")
    return w.finish()
