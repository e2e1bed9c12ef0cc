"""The arguments that a launch takes as they are, by native code: numbers in range, arrays that lie as needed.

`signature` describes a kernel's arguments to `backends/native/calls.py`, which checks and packs them in some
tens of nanoseconds (docs/adr/0083). Everything else (numbers of NumPy, lists, packed copies, arrays that
overlap, errors) goes the way in Python, and so do kernels with arguments that are not described here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from diffsim.backends.native import calls
from diffsim.backends.native.calls import Array, Number, Signature, field_words
from diffsim.ir.layout import packed_strides
from diffsim.ir.nodes import Mem
from diffsim.ir.types import ScalarType, Type, i64, size_of, tensor
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.lang.frontend.expressions import ArrayRef
    from diffsim.runtime.executable import Executable

    AccessSummary = Any  # of a room above this one: runtime/kernels/access_summary.AccessSummary
    Specialization = Any  # of a room above this one: runtime/kernels/specialization.Specialization

Kind = tuple[Type, int, bool, bool]
"""Of a field: type of an element, number of axes, whether it has a gradient, whether it is one."""
_FLOATS = {32: calls.F32, 64: calls.F64}
_MOST_WORDS = 4096
_kinds: dict[Kind, int] = {}
words: dict[int, bytes] = {}
"""The words that stand for fields among plain arguments, by the fields' numbers."""

# A field may be somewhere else afterwards, have a gradient, or be destroyed.
session.at_reset.append(words.clear)
session.at_new_grad.append(words.clear)


def note_fields(args: Iterable[object]) -> None:
    """Note the fields among the arguments of a launch, so that the next one is plain."""
    for a in args:
        if a.__class__ is Field and a.number not in words and _is_packed(a):
            if len(words) >= _MOST_WORDS:
                words.clear()
            t, grad = tensor(a.dtype, a.element), a.adjoint
            of = _number_of((t, len(a.shape), grad is not None, a.is_grad))
            address = 0 if grad is None else grad.address
            words[a.number] = field_words(of, a.address, address, a.shape)


def _is_packed(f: Field) -> bool:
    """Return whether shape and element say where the elements of a field are, as array arguments need it."""
    if f._shape is None or f.destroyed or f.tree is not None or any(f.origin) or f.soa:
        return False
    packed = f._strides == packed_strides(f.shape, size_of(tensor(f.dtype, f.element)))
    return packed and not f.storage.layout.in_blocks


def _number_of(kind: Kind) -> int:
    return _kinds.setdefault(kind, len(_kinds) + 1)


def signature(
    special: Specialization,
    compiled: Executable,
    mems: tuple[Mem, ...],
    accesses: AccessSummary,
    *,
    apart: bool,
) -> Signature | None:
    """Return the description of the arguments of a launch; None if they go the way in Python.

    Args:
        special: the kernel.
        compiled: the code that is launched, which may be that of a derivative.
        mems: its memories.
        accesses: its accesses.
        apart: whether they are packed into a block of their own, so that nobody need wait for a thread that
            packs others in Python.
    """
    arguments, refs = special.arguments, list(special.arguments.arrays.values())
    if compiled.calls is None or special.duals or not arguments.parameters:
        return None
    mine = [m for ref in refs for m in (ref._mem, ref._mem.grad) if m is not None]
    # An array that is passed twice has two names; arrays of instrumented code are bound by who made it.
    if len({id(m) for m in mine}) < len(mine) or any(
        m.kind == "array" and m not in mine for m in compiled.layout.pointers
    ):
        return None
    written = {a.mem for a in (*special.accesses.writes, *accesses.writes)}
    args = {a.hint: slot for a, slot in compiled.layout.args.items()}
    names = [p.name for p in arguments.parameters]
    places = {id(ref._mem): names.index(name) for name, ref in arguments.arrays.items()}
    made: list[Number | Array] = []
    for k, p in enumerate(arguments.parameters):
        if p.kind == "array":
            ref = arguments.arrays[p.name]
            like = k if ref._mem.like is None else places[id(ref._mem.like)]
            one: Number | Array | None = _array(ref, compiled, like, ref._mem in written)
        else:
            one = _number(p.type, args.get(p.name))
        if one is None:
            return None
        made.append(one)
    fields = [m.handle() for m in mems if m.kind == "field"] if refs else []
    captured = [(f.address, f.address + f.storage.layout.nbytes) for f in fields]
    # Code runs with any copy of its parameter block, one at a time.
    block = type(compiled.params)(*compiled.params) if apart else compiled.params
    return Signature(compiled.calls, block, made, captured)


def _number(t: Type | None, slot: int | None) -> Number | None:
    if not isinstance(t, ScalarType):
        return None
    if t.is_bool:
        return Number(calls.BOOL, slot)
    if t.is_float:
        return Number(_FLOATS[t.bits], slot) if t.bits in _FLOATS else None
    bits = t.bits - (t.kind == "i")
    # Of u64 the half that an i64 holds.
    return Number(calls.INTEGER, slot, -(2**bits) if t.kind == "i" else 0, 2 ** min(bits, 63) - 1)


def _array(ref: ArrayRef, compiled: Executable, like: int, written: bool) -> Array | None:
    mem, grad = ref._mem, ref._mem.grad
    if ref._index_type is i64:
        return None
    slots, t = compiled.layout.pointers, mem.dtype
    return Array(
        slots.get(mem),
        mem.rank,
        _number_of((t, mem.rank, grad is not None, mem.is_grad)),
        size_of(t) * t.scalar.bytes,
        like,
        # Of NumPy's arrays none has a gradient.
        None if grad is not None or mem.is_grad or not compiled.takes_numpy else t.scalar.numpy,
        written,
        t.shape,
        None if grad is None else slots.get(grad),
        0 if grad is None else size_of(grad.dtype) * grad.dtype.scalar.bytes,
        mem.shape,
    )
