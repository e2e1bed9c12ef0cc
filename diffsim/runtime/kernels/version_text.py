"""The lines of a launch function that test and stamp the versions of what the launch accesses.

Versions of captured fields are globals of the text. Those of arrays are looked up at each launch, unless its
fields are a known combination (`binding/bound_fields.py`), where they are names of the text as well.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ir.nodes import Arg, Dim, Value
from diffsim.passes.analysis.regions import RegionAccess
from diffsim.passes.analysis.slices import Form, Slice, form_text
from diffsim.runtime.binding.bound_fields import BoundFields
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.access_summary import (
    array_changed,
    slice_along,
    touch_array,
    versions_of,
)
from diffsim.runtime.launch_text import Writer

if TYPE_CHECKING:
    from diffsim.runtime.kernels.derivative import Derivative
    from diffsim.runtime.kernels.specialization import Specialization
    from diffsim.runtime.memory.versions import Versions


def _form_text(form: Form, special: Specialization) -> str:
    """Format a number of a launch as an expression of the parameters."""

    def name_of(v: Value) -> str:
        # The names of arguments are those of parameters.
        if isinstance(v, Dim):
            return f"{special.arguments.array_name(v.mem)}.shape[{v.axis}]"
        return v.hint

    return form_text(form, name_of)


def _bounds_text(s: Slice, special: Specialization) -> str:
    return f"{_form_text(s.first, special)}, {_form_text(s.last, special)}"


def _row_text(s: Slice, versions: Versions, special: Specialization) -> str | None:
    """Format the number of the row that holds a slice; None if it takes more than an expression."""
    row = s.row(versions.block)
    if row is not None:
        return _form_text(row, special)
    return f"({_form_text(s.first, special)}) // {versions.block}" if s.is_single else None


def write_row_numbers(
    w: Writer, accesses: Iterable[RegionAccess], tested: Iterable[str] = ()
) -> None:
    """Convert arguments that rows are computed from (or `tested`) to Python integers.

    NumPy's may wrap around.
    """
    leaves = (v for a in accesses for s in a.slices for v in s.leaves)
    rows = dict.fromkeys(v.hint for v in leaves if isinstance(v, Arg))
    for name in {**rows, **dict.fromkeys(tested)}:
        w.space["$plain"] = _plain
        w.emit(f"if {name}.__class__ is not int:", f"    {name} = $plain({name})")


def _plain(number: Any) -> Any:
    try:
        # NumPy's fixed-width `t + 1` would wrap around, and stamp or test another row than the kernel
        # accesses.
        return operator.index(number)
    except TypeError:  # it is refused where it is packed
        return number


def _slices_text(a: RegionAccess, special: Specialization) -> str:
    """Format the slices of an access as a dictionary from axis to bounds."""
    return "{" + ", ".join(f"{s.axis}: ({_bounds_text(s, special)})" for s in a.slices) + "}"


def _time_text(a: RegionAccess, special: Specialization) -> str:
    """Format the axis that should have rows, and how many indices a row, as the arguments say."""
    s = a.time_slice
    if s is None:
        return "None"
    assert s.stride is not None
    return f"({s.axis}, {_form_text(s.stride, special)})"


def write_stamps(
    w: Writer,
    special: Specialization,
    written: list[RegionAccess],
    writer: object,
    bound: BoundFields | None,
) -> None:
    """Stamp the versions of everything the kernel writes.

    These are direct stores, the one place outside `Versions`: a method call for each memory would be a
    tenth of a launch.

    Args:
        w: the text.
        special: the kernel.
        written: what the launch writes.
        writer: who writes.
        bound: the combinations of fields that the text knows, if it knows any.
    """
    # Several statements that write one memory need one stamp.
    seen: set[tuple[Any, str]] = set()
    who = w.use(writer, "who")
    arrays: dict[str, list[RegionAccess]] = {}
    for a in written:
        if a.mem.kind == "array":
            arrays.setdefault(special.arguments.role_text(a.mem), []).append(a)
            continue
        lines = _stamp_lines(w, special, a, writer)
        text = "\n".join(lines)
        if (a.mem, text) not in seen:
            seen.add((a.mem, text))
            w.emit(*lines)
    for field, accesses in arrays.items():
        w.emit(*_touch_lines(w, special, field, accesses, who, bound))


def _touch_lines(
    w: Writer,
    special: Specialization,
    field: str,
    accesses: list[RegionAccess],
    who: str,
    bound: BoundFields | None,
) -> list[str]:
    """Return the lines that stamp the versions of an array argument, or of its gradient or dual.

    `field` is the text for it, and `accesses` are what the launch writes of it.
    """
    mem = accesses[0].mem
    name, role = special.arguments.array_name(mem), special.arguments.role_of(mem)
    # Which field an array is, and which axis has its rows, is known at the launch only.
    w.space |= {"$touch_array": touch_array, "$Field": Field, "$ndarray": np.ndarray}
    times = [_time_text(a, special) for a in accesses]
    slow = [
        f"$touch_array({name}, {role}, $now, {time}, {_slices_text(a, special)}, {who})"
        for a, time in zip(accesses, times, strict=True)
    ]
    slow = list(dict.fromkeys(slow))
    if role[1] or any(time != "None" for time in times):
        return slow
    # The usual cases without a call: a field without rows, where one stamp is that of all accesses, and
    # memory that is nobody else's.
    looked_up = f"{name}.__class__ is $Field and {field}.versions"
    if bound is not None:
        looked_up = f"{bound.versions[name, role[0]]} if $bound else {looked_up}"
    return [
        f"$versions = {looked_up}",
        "if $versions and $versions.axis is None:",
        "    $versions.whole = $versions.latest = $now",
        f"    $versions.writer = {who}",
        "    $versions.dirty = True",
        f"elif {name}.__class__ is not $ndarray or $session.exported:",
        *("    " + line for line in slow),
    ]


def _stamp_lines(w: Writer, special: Specialization, a: RegionAccess, writer: object) -> list[str]:
    """Return the lines that stamp the versions of a captured field."""
    versions, number = versions_of(a.mem), str(versions_of(a.mem).name(writer))
    v, who = w.use(versions, "v"), w.use(writer, "who")
    # Spares the clearing of gradients and duals that are zeros already.
    derivative = a.mem.is_grad or a.mem in special.duals
    more = [f"{v}.dirty = True"] if derivative else []
    s = slice_along(a, versions.axis)
    if versions.axis is None and not derivative:
        # What the IR decides is decided: there are no rows, or the first launch makes them.
        s = a.time_slice if a.time_slice and a.time_slice.block is None else None
    # A write that is not confined to a known row may have changed any of them.
    if s is None:
        # With rows a launch would stamp fewer of them than this, and what asks for them counts on that.
        if versions.axis is None and a.slices and not a.mem.is_grad:
            versions.tell_of_rows(special.forget_launch)
        return [f"{v}.whole = {v}.latest = $now", f"{v}.writer = {who}", *more]
    place = None if versions.axis is None else _row_text(s, versions, special)
    if place is not None:
        rows, writers = w.use(versions.rows, "rows"), w.use(versions.writers, "writers")
        return [
            f"$part = {place}",
            # A row out of bounds is skipped by the kernel (or fails its check): there is nothing to stamp.
            f"if 0 <= $part < {len(versions.rows)}:",
            f"    {v}.latest = {rows}[$part] = $now",
            f"    {writers}[$part] = {number}",
            *more,
        ]
    # The launch finds out which row it is, if it is one.
    stride = "0" if s.stride is None else _form_text(s.stride, special)
    size = a.mem.handle().shape[s.axis]
    return [
        f"$first = {_form_text(s.first, special)}",
        f"$last = $first + {_form_text(s.spread, special)}",
        f"$length = {v}.block",
        "$part = $first // $length",
        f"if $part == $last // $length and {v}.axis == {s.axis} and 0 <= $part < len({v}.rows):",
        f"    {v}.latest = {v}.rows[$part] = $now",
        f"    {v}.writers[$part] = {number}",
        "else:",
        f"    {v}.written_slice(({s.axis}, $first, $last), {stride}, {size}, $now, {who})",
        *more,
    ]


def write_tests(w: Writer, of: Derivative, bound: BoundFields | None) -> None:
    """Test that what a derivative loads is as old as the launch that it belongs to, or older.

    Args:
        w: the text, where `$since` is the clock's reading at that launch.
        of: the derivative.
        bound: as in `write_stamps`.
    """
    special = of.specialization
    tests: set[str] = set()
    w.space["$stale"] = of.refuse_stale
    for k, a in enumerate(of.accesses.reads):
        if a.mem.kind == "array":
            w.space["$array_changed"] = array_changed
            array = special.arguments.role_text(a.mem)
            test = f"$array_changed({array}, $since, {_slices_text(a, special)})"
            name, (of_gradient, width) = (
                special.arguments.array_name(a.mem),
                special.arguments.role_of(a.mem),
            )
            if bound is not None and not width:
                # As for captured fields: one comparison settles the usual case.
                versions = bound.versions[name, of_gradient]
                test = f"(not $bound or {versions}.latest > $since) and {test}"
        else:
            test = _test_text(w, special, a)
            if versions_of(a.mem).axis is None and a.slices:
                versions_of(a.mem).tell_of_rows(of.forget_launch)
        if test in tests:
            continue
        tests.add(test)
        w.emit(f"if {test}:", f"    $stale({k}, $args, $since)")


def _test_text(w: Writer, special: Specialization, a: RegionAccess) -> str:
    """Format the test whether what is loaded of a captured field was written since the launch."""
    versions = versions_of(a.mem)
    v, text = w.use(versions, "v"), _part_text(w, special, a)
    # `latest` first: one comparison settles the usual case that nothing has been written since.
    return f"{v}.latest > $since and {v}.changed({text}, $since)"


def stored_text(w: Writer, of: Derivative) -> str:
    """Format the test whether what a derivative loads is what its launch, at `$since`, has stored there."""
    special = of.specialization
    found = ((w.use(versions_of(a.mem), "v"), _part_text(w, special, a)) for a in of.stored)
    return " and ".join(dict.fromkeys(f"{v}.are_of({part}, $since)" for v, part in found))


def cotangent_text(w: Writer, of: Derivative, bound: BoundFields | None) -> str | None:
    """Format the test whether a gradient that a derivative is linear in may be other than 0.

    None: a launch adds something in any case.
    """
    special, found = of.specialization, of.cotangents
    if found is None:
        return None
    tests = ["any($g)"] if of.returns_active else []
    for g in found:
        if g.kind == "field":
            tests.append(f"{w.use(versions_of(g), 'v')}.dirty")
            continue
        w.space["$Field"] = Field
        name = special.arguments.array_name(g)
        test = f"{name}.__class__ is not $Field or {special.arguments.role_text(g)}.versions.dirty"
        role = name, special.arguments.role_of(g)[0]
        if bound is not None and (known := bound.versions.get(role)) is not None:
            test = f"{known}.dirty if $bound else {test}"
        tests.append(f"({test})")
    return " or ".join(tests) or "False"


def _part_text(w: Writer, special: Specialization, a: RegionAccess) -> str:
    """Format the row of a captured field that an access stays within; None: there may be several."""
    versions = versions_of(a.mem)
    s = slice_along(a, versions.axis)
    if s is None:
        return "None"
    row = _row_text(s, versions, special)
    return f"{w.use(versions, 'v')}.row_within({_bounds_text(s, special)})" if row is None else row
