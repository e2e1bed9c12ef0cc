"""Dependences through Python that a record lacks: searched for before each backward pass.

Values that Python reads from fields and writes to others are constants on the record. Numbers and arrays
carry their provenance (`runtime/fields/read_values.py`), but results of `math.sqrt`, of other libraries or of
`np.array(...)` do not. So the record itself is searched for signs of a lost dependence:

- a loss that depends on nothing with a gradient: Python computed it, or the launches are not in the block;
- a field that was read in Python and reaches the loss on no path of the record, while Python later wrote to a
  field that does;
- gradients that were set in the block, of fields whose gradients the backward pass computes anew.

The first two are heuristics. They are off in programs that call `ds.stop_grad`: those tell what is constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from diffsim.ad.record.entries import Stored, Wrote, all_written
from diffsim.ad.record.entry import Entry, flat, used_by
from diffsim.ad.record.replaced import Replaced
from diffsim.errors import AutodiffError, Span
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.versions import span_of

if TYPE_CHECKING:
    from diffsim.ad.record.record import Record

Writes = Mapping[Field, Span | None]
"""Fields that were written, and the statements."""
_MEANT = "if a constant is meant, say so: ds.stop_grad({})"


# ---- gradients that were set in the block


def check_seeds(record: Record) -> None:
    """Refuse seeds set in the block for fields whose gradients the backward pass computes anew."""
    # Programs that set no gradients, nearly all, pay for one look at each kernel.
    if not record.seeded and not any(special.accesses.gradient_writes for special in record.alive):
        return
    computed = {f.adjoint for f in all_written(record.firsts()) if f.adjoint is not None}
    for gradient, span in (s for e in flat(record.firsts()) for s in e.sets_gradients()):
        if gradient in computed:
            name = gradient.name
            raise AutodiffError(
                f"{name} was set in the block of a tape whose backward pass computes it anew: the value set "
                "would be lost silently",
                span,
                hint="give it to the backward pass of a tape without a loss: "
                f"tape.backward(grads={{{name.removesuffix('.grad')}: seed}})",
            )


def check_rollout(written: Writes, seeded: Writes, own: Iterable[Field]) -> None:
    """Refuse gradients that the steps of a rollout write: its backward pass runs them again.

    Args:
        written: the gradients that they write, and where.
        seeded: those that they set to something other than 0.
        own: the fields that each step makes anew; their gradients may be set to 0.
    """
    cleared = {f.adjoint for f in own if f.adjoint is not None}
    for gradient, span in {
        **{g: s for g, s in written.items() if g not in cleared},
        **seeded,
    }.items():
        raise AutodiffError(
            f"{gradient.name} is set in a step of a checkpointed rollout: the backward pass runs its steps "
            "again, and gradients would be lost silently",
            span,
            hint="set it outside the rollout: tape.backward(grads={y: seed})",
        )


# ---- what leads to the loss


def check_reaches(record: Record, loss: Field | None, seeds: Iterable[Field]) -> None:
    """Refuse a loss that depends on nothing, and dependences of it that go through Python."""
    if loss is not None and not record.declares_constants:
        _check_loss(record, loss)
    if record.reads:
        _check_read_outs(record, loss, seeds)


def _check_loss(record: Record, loss: Field) -> None:
    """Raise AutodiffError if the loss depends on nothing that has a gradient."""
    where: Span | None = None
    computed = False
    what = "nothing on this tape writes to it"
    # From the last write of the loss backwards: the first entry that decides ends the search.
    for entry in reversed(record):
        if isinstance(entry, Replaced):
            if entry.by_user or loss in used_by(entry):
                return  # a gradient given by the user may reach the loss
        elif loss not in entry.writes():
            # An entry that does not write the loss says nothing about it.
            continue
        # A followed value has its own chain; a declared constant is what the user wants.
        elif isinstance(entry, Stored) or entry.is_declared_constant:
            return
        elif isinstance(entry, Wrote):
            if not computed:
                what = "its last value is a constant from Python"
                where = span_of(entry.writer)
            break
        # One way to a field with a gradient is enough; whether that gradient is 0 is not asked.
        elif any(f.adjoint is not None for f in entry.reads()):
            return
        # Updates (`loss += ...`) may be several, so earlier writes are looked at too; the message names
        # the last.
        elif not computed:
            what = "the values it is computed from have no gradient"
            where, computed = entry.statement(loss), True
    if computed and any(map(_is_cut, record.firsts())):
        return
    shown = _shown(f"{loss.name} was set here:", where)
    source = min(_read_outs(record), key=lambda s: s.entry, default=None)
    if source is not None:
        shown += _shown(f"{source.field.name} was read out here:", source.reader.span())
    raise AutodiffError(
        f"the loss {loss.name} depends on nothing that has a gradient: {what}{shown}\n"
        "  its gradient is asked for here:",
        Span.of_caller(),
        hint="compute it in kernels, from fields with needs_grad=True, in the block of the tape; "
        + _MEANT.format(loss.name),
    )


def _check_read_outs(record: Record, loss: Field | None, seeds: Iterable[Field]) -> None:
    """Raise AutodiffError where the loss depends through Python on a field that was read.

    That is an array that NumPy computed from it; or, where its use is unknown, a field that was set later, if
    the field that was read reaches the loss on no path of the record.
    """
    # One backward walk over the record collects the fields that lead to the loss (`wanted` here and
    # now, `ever` at any place), as liveness analysis does, and the constants from Python among them.
    sources = {s.field: s for s in reversed(_read_outs(record))}
    first = min((s.entry for s in sources.values()), default=len(record))
    wanted = {f for f in seeds if isinstance(f, Field)}
    ever = set(wanted)
    explained: list[set[Field]] = []
    found: list[tuple[int, Wrote]] = []
    for number in range(len(record) - 1, -1, -1):
        entry = record[number]
        if isinstance(entry, Replaced):
            inside = used_by(entry)
            # `tape.record_func` says how the gradient flows between these fields, so they are
            # explained.
            if entry.by_user:
                explained.append(inside)
            if entry.by_user or not wanted.isdisjoint(inside):
                wanted |= inside
                ever |= inside
        # It does not lead to the loss.
        elif wanted.isdisjoint(entry.writes()):
            continue
        elif isinstance(entry, Wrote):
            if entry.array_source is not None:
                _check_taken(entry, explained)
            # Only a constant written after something was read can have been made of it.
            elif number >= first and entry.is_given():
                found.append((number, entry))
            # Overwritten as a whole: what the field held before does not lead to the loss.
            if entry.index is None or not entry.field.shape:
                wanted.discard(entry.field)
        else:
            # Kill, then gen: what a launch stores completely is dead before it, what it reads is live.
            wanted.difference_update(entry.overwrites())
            wanted.update(f for f in entry.reads() if f.adjoint is not None)
            ever |= wanted
    if record.declares_constants:
        return
    for f, source in sources.items():
        later = [e for number, e in found if number >= source.entry]
        set_from = [e for e in later if e.field is loss]
        # The loss itself set from Python after a read; or a field that leads to the loss on no recorded
        # way, although something that does was set after reading it (docs/adr/0019).
        if set_from or (later and f not in ever):
            _refuse(source, (set_from or later)[-1])


def _check_taken(entry: Wrote, explained: list[set[Field]]) -> None:
    """Raise AutodiffError for an array computed from a field, unless its gradient was recorded."""
    assert entry.array_source is not None
    source, span = entry.array_source
    if source is None or entry.declared_constant:
        return
    # The adjoint of the write clears the gradient that a function for the field itself has made.
    if source is entry.field:
        raise AutodiffError(
            f"{source.name} is given an array that Python made of {source.name} itself; the write takes its "
            "gradient, so that nothing could flow to what was there before",
            span,
            hint="do this in a kernel, or give another field the array, and record its gradient: "
            f"tape.record_func(backward, [{source.name}, y]); {_MEANT.format('array')}",
        )
    if any({source, entry.field} <= fields for fields in explained):
        return
    raise AutodiffError(
        f"{entry.field.name} is given an array that Python took from {source.name}; for the tape it is a "
        f"constant, and a part of the gradient of {source.name} would be missing",
        span,
        hint="do this in a kernel, or record its gradient: tape.record_func(backward, "
        f"[{source.name}, {entry.field.name}]); {_MEANT.format('array')}",
    )


def _refuse(source: Any, entry: Wrote) -> None:
    name, other = source.field.name, entry.field.name
    set_here = _shown(f"{other} was set here:", span_of(entry.writer))
    raise AutodiffError(
        f"{name} was read out in Python, and {other}, which leads to the loss, was set from Python later: if "
        f"it was made of {name}, a part of the gradient would be missing{set_here}\n"
        f"  {name} was read out here:",
        source.reader.span(),
        hint="do what is in between in kernels; if the two have nothing to do with each other, say that a "
        f"constant is meant: ds.stop_grad(value), or read {name} in ds.ad.no_grad()",
    )


def _is_cut(entry: Entry) -> bool:
    """Whether the user declared a constant: what is computed from it is constant, too."""
    return entry.is_declared_constant or (
        isinstance(entry, Wrote) and isinstance(entry.value, Field)
    )


def _read_outs(record: Record) -> list[Any]:
    """Return the provenance of each field with a gradient that Python read in this recording, in order."""
    return [source for source in record.reads if source.field is not None]


def _shown(title: str, span: Span | None) -> str:
    return "" if span is None else f"\n  {title}\n{span.text()}"
