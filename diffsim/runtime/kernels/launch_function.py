"""Writes the Python function that launches one compiled kernel.

A launch should cost little more than the call into native code, so nothing is looked up: the function is
written as text for the kernel at hand, with everything it needs as its globals. Its steps, in order:
check that captured Python values are still what they were, pack the arguments, tick the clock, note the
versions of what is written, call, report errors, tell the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from diffsim.ir.op import Tracked
from diffsim.ir.types import size_of
from diffsim.passes.sparse.activation import changed_levels
from diffsim.runtime.binding.arguments import Parameter, flatten, takes_field
from diffsim.runtime.binding.array_memory import bind_array, write_arrays
from diffsim.runtime.binding.bound_fields import BoundFields
from diffsim.runtime.binding.plain_calls import (
    write_call,
    write_fits,
    write_guard,
    write_only_if_unfit,
    write_refusal,
)
from diffsim.runtime.binding.vector_arguments import numbers_of
from diffsim.runtime.executable import Executable, PlainCall
from diffsim.runtime.fields.device_array import known_as
from diffsim.runtime.kernels import captures
from diffsim.runtime.kernels.access_summary import LaunchArguments
from diffsim.runtime.kernels.launch_history import STRETCH, new_row
from diffsim.runtime.kernels.version_text import (
    cotangent_text,
    stored_text,
    write_row_numbers,
    write_stamps,
    write_tests,
)
from diffsim.runtime.launch_text import Writer, tuple_text
from diffsim.runtime.observe.profiler import ADJOINT, timer_of

if TYPE_CHECKING:
    from diffsim.runtime.kernels.derivative import Derivative
    from diffsim.runtime.kernels.specialization import Specialization
    from diffsim.runtime.observe.nonfinite import FiniteWatch
    from diffsim.runtime.observe.profiler import KernelTimer

# False in one attribute access while no tape records anywhere. `alone` serves the usual case of one recording
# thread; `listener` also reports to the tapes of other threads.
_LISTENER = "$tape = $session.recorders and ($session.alone.get($thread()) or $session.listener)"
# Combinations of arguments kept for `kernel.grad`: a kernel that is given the time step has one for each
# step, and a program may run for days.
_MOST_STAMPS = 1 << 16
PLAIN = frozenset((int, float, bool))
"""Types of arguments that say nothing of where they come from."""


# ---- arguments


class Outdated(Exception):
    """An object that the kernel was compiled for was replaced; nothing was launched."""


class FieldArgument(Exception):
    """A launch was given a field in place of a float; nothing was launched."""


class UnboundArguments(TypeError):
    """There are more or fewer arguments than parameters; nothing was launched.

    Python raises a plain TypeError for this where a launch function is called.
    """


def _followed(a: object) -> bool:
    return isinstance(a, Tracked) and not isinstance(a, float)


def _coerced(arguments: LaunchArguments, *args: object) -> list[Any]:
    """Convert the arguments to scalars, checking each.

    Raises:
        FieldArgument: one is a field, or a value of a tape, in place of a float: another variant of the
            kernel reads it.
    """
    # A float that a tape follows, or a field, needs the variant that loads it from memory; asked only here,
    # as `struct` refuses such objects on the fast path.
    values = [p for p in arguments.parameters if p.kind == "value"]
    if any(_followed(a) or takes_field(p, a) for p, a in zip(values, args, strict=True)):
        raise FieldArgument
    flat: list[Any] = []
    for p, a in zip(values, args, strict=True):
        flat += flatten(p, a, arguments.kernel)
    return flat


def _write_pack(
    w: Writer,
    special: Specialization,
    compiled: Executable,
    *,
    seeded: bool = False,
) -> None:
    """Pack the arguments; `seeded`: and after them the cotangent of what the kernel returns."""
    values = [p for p in special.arguments.parameters if p.kind == "value"]
    # With no arguments and no cotangent there is nothing in the block that changes from launch to launch.
    if not values and not seeded:
        return
    names = ", ".join(p.name for p in values)
    more = ", *$g" if seeded else ""
    w.space["$pack"] = compiled.pack
    w.space["$memory"] = compiled.params
    w.space["$coerced"] = _coerced
    arguments = w.use(special.arguments, "arguments")
    slow = f"$pack($memory, {compiled.args_at}, *$coerced({arguments}, {names}){more})"
    # `struct.pack_into` checks types and ranges of plain numbers in C. Whatever it refuses is converted, or
    # explained, by the slow path.
    # `struct` takes any object for a boolean, by its truth.
    if any(p.type is not None and (p.type.shape or p.type.is_bool) for p in values):
        # Vectors and matrices are flattened first, which `struct` does not do.
        coerced = f"$coerced({arguments}, {names})"
        quick = numbers_of(values)
        if quick is not None:
            w.space["$numbers"] = quick
            coerced = f"$numbers({names}) or {coerced}"
        w.emit(f"$flat = {coerced}")
        w.emit(f"$pack($memory, {compiled.args_at}, *$flat{more})")
        return
    given = f"{names}{more}" if names else more.removeprefix(", ")
    w.emit("try:", f"    $pack($memory, {compiled.args_at}, {given})")
    w.emit("except Exception:", f"    {slow}")


# ---- the masks of sparse trees


def _write_activity(w: Writer, special: Specialization) -> None:
    """Stamp the masks of sparse trees that the launch has changed."""
    if changed_levels(special.ir):
        w.space["$note_activity"] = note_activity
        w.emit(f"$note_activity({w.use(special, 'special')})")


def note_activity(special: Specialization) -> None:
    """Stamp the masks of sparse trees that the last launch has changed."""
    head = special.kernel.source.head()
    for level, span in changed_levels(special.ir).items():
        # The statement rather than the kernel's first line: it says what is activated.
        level.mask.handle().node.note_changes(span if span.where else head)


# ---- the functions


def forward(special: Specialization) -> Callable[..., Any]:
    """Write the launch function of a specialization."""
    # The generated text, in its order: 1. what is checked before anything changes; 2. arguments, seed, clock
    # and stamps; 3. the call; 4. launch history and tape.
    compiled = special.executable
    params = [p.name for p in special.arguments.parameters]
    w = Writer(special.name, params)
    w.space["$Outdated"] = Outdated
    write_row_numbers(w, (*special.accesses.reads, *special.accesses.writes))
    more = compiled.result is not None or special.translation.uses_random
    more = more or special.watch is not None
    noted = special.launches if special.differentiable else None
    plain, bound = write_fits(
        w, special, compiled, special.ir.mems, special.accesses, more=more, launches=noted
    )
    if plain is not None and special.arguments.arrays:
        write_refusal(w, plain)
    if special.looks_at_captures:
        captures.write_checks(w, special, "raise $Outdated")
    recorded = w.use(special.recorded_as, "special")
    # A recorder may copy what the kernel will overwrite, or put an instrumented variant in its place; the
    # variant reports the launch itself.
    if special.is_announced and (special.accesses.writes or special.returns_float):
        # What writes nothing is replaced in forward mode alone.
        wanted = "intercepts" if special.accesses.writes else "tangents"
        w.emit(_LISTENER, f"if $tape and $tape.{wanted}:")
        _write_known_replacement(w, special, recorded)
        w.emit(f"    $other = $tape.launching({recorded}, {tuple_text(params)})")
        w.emit("    if $other is not None:", f"        return $other.launch({', '.join(params)})")
    # From here on a failure may leave memory half written.
    whole = len(w.lines)
    start = len(w.lines)
    _write_pack(w, special, compiled)
    write_arrays(w, special, compiled, special.ir.mems, special.accesses)
    write_only_if_unfit(w, start, compiled, plain)
    seed = "0"
    if special.translation.uses_random:
        w.space["$set_seed"] = compiled.set_seed
        w.emit("$session.launches = $n = $session.launches + 1")
        # The counter gives each launch a key of its own; threads count in ranges of their own.
        w.emit("$seed = ($session.options.random_seed << 32) + $n", "$set_seed($seed)")
        seed = "$seed"
    # Ticked before the call: a write that fails half way must be as new as one that succeeds.
    w.emit("$session.clock = $now = $session.clock + 1")
    write_stamps(w, special, special.accesses.writes, special.kernel.source.head(), bound)
    timer = timer_of(special.name, special.direction, special.backend.device)
    _write_observed_call(w, special, compiled, special.watch, seed, timer, plain)
    _write_activity(w, special)
    if compiled.result is not None:
        w.space["$returned"] = special.returned
        w.emit("$result = $returned()")
    write_guard(w, start, compiled, plain, packs=bool(params), more=more)
    # Only such kernels have a `kernel.grad` that asks for the launch.
    if special.differentiable:
        _write_launch_note(w, special, seed, bound)
    if special.only_neighbours_hear and not special.returns_active:
        # The recorder of the block knows of the launch; those of other threads do not.
        w.emit("if len($session.witnesses) > 1:", f"    {_LISTENER}")
        w.emit(f"    $tape.launched({recorded}, {tuple_text(params)}, $now, {seed})")
    elif special.on_tape:
        if not (special.is_announced and (special.accesses.writes or special.returns_float)):
            w.emit(_LISTENER)
        w.emit("if $tape:")
        w.emit(f"    $tape.launched({recorded}, {tuple_text(params)}, $now, {seed})")
        # In place of a number the program receives one that the tape follows.
        if special.returns_active:
            w.emit("    return $tape.returned($result)")
    if special.accesses.writes:
        w.note_failure(whole, special.cut_short)
    if compiled.result is not None:
        w.emit("return $result")
    return w.finish()


def _write_known_replacement(w: Writer, special: Specialization, recorded: str) -> None:
    """Launch what a recorder has put in place of the kernel before, without a call of the recorder."""
    # A recorder looks at arguments that Python may have made of what it follows.
    w.space["$plain_types"] = PLAIN
    tests = [f"{p.name}.__class__ in $plain_types" for p in special.arguments.parameters]
    args = ", ".join(p.name for p in special.arguments.parameters)
    w.emit(
        "    $replaced = $tape.replacements",
        "    if " + " and ".join(["$replaced.duals == $session.duals", *tests]) + ":",
        f"        $other = $replaced.get({recorded})",
        "        if $other is not None:",
        f"            return $other({args})",
    )


def _write_observed_call(
    w: Writer,
    special: Specialization,
    compiled: Executable,
    watch: FiniteWatch | None,
    more: str,
    timer: KernelTimer | None,
    plain: PlainCall | None,
) -> None:
    """Call the code; with the options for it, measure its time, and look at what it has stored.

    `more` is what a launch is repeated with: the seed, and the cotangent.
    """
    args = tuple_text([p.name for p in special.arguments.parameters])
    if watch is not None:
        w.space["$watch"], w.space["$again"] = watch, run_again
        w.emit(f"$before = $watch.before{args}")
    if timer is not None:
        w.space["$mark"], w.space["$measured"] = timer.mark, timer.add
        w.emit("$begin = $mark()")
    _write_call(w, special, compiled, plain)
    if timer is not None:
        w.emit("$measured($now, $begin, $mark())")
    if watch is None:
        return
    again = f"$again({w.use(special, 'special')}, $code, {args}, {more})"
    w.emit(f"$watch.look($before, lambda $code: {again}, {args})")


def run_again(
    special: Specialization,
    code: Executable,
    args: tuple[Any, ...],
    seed: int,
    cotangent: Sequence[float] = (),
) -> None:
    """Run a launch with other machine code, which no tape and no version takes note of."""
    code.pack(code.params, code.args_at, *special.arguments.scalars(args), *cotangent)
    arrays = [p for p in special.arguments.parameters if p.kind == "array"]
    named = special.arguments.named(args)
    for p in arrays:
        mem, given = special.arguments.arrays[p.name]._mem, named[p.name]
        bind_array(code, mem, given)
        for dual in special.arguments.duals_of(mem):
            bind_array(code, dual, special.arguments.object_of(dual, args))
    code.set_seed(seed)
    w = Writer(special.name, [])
    w.emit("$now = $session.clock")  # what is reported late is of this launch
    _write_call(w, special, code)
    w.finish()()


def _write_call(
    w: Writer, special: Specialization, compiled: Executable, plain: PlainCall | None = None
) -> None:
    has_arrays = any(p.kind == "array" for p in special.arguments.parameters)
    w.space["$compiled"] = compiled  # its code and memory live while it runs
    write_call(w, compiled.call_text(has_arrays=has_arrays, plain=plain))


def _write_launch_note(
    w: Writer, special: Specialization, seed: str, bound: BoundFields | None
) -> None:
    """Add the launch to the launch history, for `kernel.grad` with the same arguments."""
    launches = special.launches
    here = w.use(launches, "launches")
    w.space["$times"] = launches.times
    # One tuple, replaced as a whole: another thread reads a reading and a key that belong together.
    w.emit(f"{here}.last = ($now, {seed})")
    params = [p.name for p in special.arguments.parameters]
    if not params:
        # The only key there is; its row exists from the start, so that a launch need not ask.
        w.space["$alone"] = launches.times.setdefault((), new_row())
        w.emit(
            "$alone.append($now)",
            # A power of 2: one bitwise test in place of a call at each launch.
            f"if not len($alone) & {STRETCH - 1}:",
            f"    {here}.shorten($alone)",
        )
        return
    start = len(w.lines)
    _write_row_note(w, special, bound)
    if special.translation.uses_random:
        w.emit(f"{here}.seeds[$known_as] = {seed}")
    w.emit(f"if len($times) > {_MOST_STAMPS}:", f"    {here}.forget()")
    if bound is None:
        return
    launches.bound.append(bound)
    if bound.row is not None:
        w.indent(start)
        w.lines[start:start] = [
            "    if $bound:",
            f"        {bound.row}.append($now)",
            f"        if not len({bound.row}) & {STRETCH - 1}:",
            f"            {here}.shorten({bound.row})",
            "    else:",
        ]


def _key_of_flat(parameters: Iterable[Parameter]) -> list[str]:
    """Return the text of a launch's key, as `LaunchArguments.key` makes it, of the numbers in `$flat`."""
    key: list[str] = []
    at = 0
    for p in parameters:
        if p.kind == "array":
            key.append(f"$known({p.name})")
            continue
        assert p.type is not None
        size = size_of(p.type)
        key.append(f"tuple($flat[{at}:{at + size}])" if p.type.shape else f"$flat[{at}]")
        at += size
    return key


def _write_row_note(w: Writer, special: Specialization, bound: BoundFields | None) -> None:
    """Add the launch to the row of its arguments."""
    here = w.use(special.launches, "launches")
    params = [p.name for p in special.arguments.parameters]
    w.space["$key"] = special.arguments.key
    whole = f"$key({tuple_text(params)})"
    tensors = {p.kind for p in special.arguments.parameters if p.type is not None and p.type.shape}
    if "value" in tensors:
        # A vector argument is a list or an array, which cannot be hashed; it was flattened to be packed.
        w.space["$known"] = known_as
        key = _key_of_flat(special.arguments.parameters)
        w.emit(f"$known_as = {tuple_text(key)}", f"{here}.note($known_as, $now)")
    elif tensors:  # fields in their place
        w.emit(f"$known_as = {whole}", f"{here}.note($known_as, $now)")
    else:
        w.space["$known"] = known_as
        # Arrays cannot be hashed, and are told apart by identity, not by their elements.
        key = [
            _key_text(p.name, bound) if p.kind == "array" else p.name
            for p in special.arguments.parameters
        ]
        w.emit(f"$known_as = {tuple_text(key)}", "try:", "    $noted = $times[$known_as]")
        w.space["$row"] = new_row
        w.emit("except KeyError:", "    $times[$known_as] = $row($now)")
        # An argument of a type without a hash (a 0-D NumPy array, say) takes the slow path.
        w.emit("except TypeError:", f"    $known_as = {whole}", f"    {here}.note($known_as, $now)")
        w.emit("else:", "    $noted.append($now)")
        w.emit(f"    if not len($noted) & {STRETCH - 1}:", f"        {here}.shorten($noted)")
    floats = [
        p.name
        for p in special.arguments.parameters
        if p.kind == "value" and p.type is not None and not p.type.shape and p.type.is_float
    ]
    if floats:
        # 0.0 and -0.0 are one key.
        w.emit(f"if not ({' and '.join(floats)}):")
        w.emit(f"    {here}.note_zeros({tuple_text(floats)})")


def _key_text(array: str, bound: BoundFields | None) -> str:
    known = f"$known({array})"
    if bound is None or bound.row is not None:
        return known
    return f"{bound.key_of(array)} if $bound else {known}"


def captures_changed(special: Specialization) -> Callable[[], bool]:
    """Write a function that tells whether a captured value has changed."""
    w = Writer(special.name + "_captures", [])
    captures.write_checks(w, special, "return True")
    w.emit("return False")
    return w.finish()


def derivative(of: Derivative) -> Callable[..., None]:
    """Write the launch function of a derivative: (args, since, seed), or (args, since, seed, g).

    `since` is the clock's reading at the forward launch: what the derivative loads must not be younger.
    `g` is the cotangent of what the kernel returned, as a list of scalars, where that depends on a gradient.
    """
    special, compiled, accesses = of.specialization, of.executable, of.accesses
    params = [p.name for p in special.arguments.parameters]
    w = Writer(special.name + "_grad", params)
    w.params = ["$args", "$since", "$seed", *(["$g"] if of.returns_active else [])]
    if params:
        w.emit(f"{tuple_text(params)} = $args")
    tested = () if of.checks is None else of.checks.tested
    write_row_numbers(w, (*accesses.reads, *accesses.writes, *of.stored), tested)
    if of.stored:
        # The elements that it loads may hold something else by now.
        w.space["$compute"] = of.compute
        w.emit(f"if not ({stored_text(w, of)}):", f"    return $compute({', '.join(w.params)})")
    guarded = of.returns_active or special.translation.uses_random or of.watch is not None
    plain = bound = None
    if not of.returns_active:
        plain, bound = write_fits(w, special, compiled, of.ir.mems, accesses, more=guarded)
    # 1. Everything that the derivative loads must be as old as the launch, or older (docs/adr/0004).
    write_tests(w, of, bound)
    # The launch must meet the conditions under which the adjoint was made.
    if of.checks is not None:
        w.space["$refuse"] = of.checks.refuse
        test = of.checks.test_text()
        w.emit("$refuse($args)" if test is None else f"if not ({test}): $refuse($args)")
    # What it is linear in is 0: it would add zeros (docs/adr/0156).
    test = cotangent_text(w, of, bound)
    if test is not None:
        w.emit(f"if not ({test}):", "    return")
    # 2. The same launch as the forward one, with the adjoint's code.
    start = len(w.lines)
    _write_pack(w, special, compiled, seeded=of.returns_active)
    write_arrays(w, special, compiled, of.ir.mems, accesses)
    write_only_if_unfit(w, start, compiled, plain)
    # The same key gives the same numbers, so those of the forward launch need not be saved.
    if special.translation.uses_random:
        w.space["$set_seed"] = compiled.set_seed
        w.emit("$set_seed($seed)")
    # Gradients have versions as well: a later adjoint may load what this one writes.
    w.emit("$session.clock = $now = $session.clock + 1")
    write_stamps(w, special, accesses.writes, special.kernel.source.head(), bound)
    more = "$seed, $g" if of.returns_active else "$seed"
    timer = timer_of(special.name, ADJOINT, special.backend.device)
    _write_observed_call(w, special, compiled, of.watch, more, timer, plain)
    write_guard(w, start, compiled, plain, packs=bool(params), more=guarded)
    return w.finish()
