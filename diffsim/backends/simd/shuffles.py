"""Vectors of lanes from vectors of neighbours, and the other way round: transposes in registers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diffsim.backends.simd.simd_values import SimdValues
from diffsim.ir.types import ScalarType


def pick(body: SimdValues, t: ScalarType, v: str, length: int, which: Iterable[int]) -> str:
    """Emit the vector of some elements of a vector."""
    picks = [f"i32 {k}" for k in which]
    kind = f"<{length} x {t.llvm}>"
    return body.assign(
        f"shufflevector {kind} {v}, {kind} poison, <{len(picks)} x i32> <{', '.join(picks)}>"
    )


def join(body: SimdValues, t: ScalarType, vectors: Sequence[str], length: int) -> str:
    """Emit vectors of one length one behind the other; there is a power of two of them."""
    while len(vectors) > 1:
        kind, picks = f"<{length} x {t.llvm}>", ", ".join(f"i32 {k}" for k in range(2 * length))
        vectors = [
            body.assign(f"shufflevector {kind} {a}, {kind} {b}, <{2 * length} x i32> <{picks}>")
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        length *= 2
    return vectors[0]


def interleave(body: SimdValues, t: ScalarType, vectors: Sequence[str], room: int) -> str:
    """Emit one vector of what all lanes have, lane after lane, with `room` for each."""
    n, count = body.lanes, room_for(len(vectors))
    joined = join(body, t, [*vectors, *["poison"] * (count - len(vectors))], n)
    return pick(body, t, joined, count * n, [c * n + k for k in range(n) for c in range(room)])


def by_lane(body: SimdValues, t: ScalarType, vectors: Sequence[str]) -> list[str]:
    """Emit what each lane has of some vectors: a scalar of one, a vector of several."""
    n, width = body.lanes, len(vectors)
    if width == 1:
        kind = body.vector(t.llvm)
        return [body.assign(f"extractelement {kind} {vectors[0]}, i64 {k}") for k in range(n)]
    room = room_for(width)
    mixed = interleave(body, t, vectors, room)
    return [pick(body, t, mixed, room * n, range(room * k, room * k + width)) for k in range(n)]


def by_neighbour(body: SimdValues, t: ScalarType, lanes: Sequence[str], width: int) -> list[str]:
    """Emit the vectors of lanes of what each lane has, the reverse of `by_lane`."""
    n, room = body.lanes, room_for(width)
    if width == 1:
        return [insert(body, t.llvm, lanes)]
    if room * t.bits == 64:
        # Two floats as one double, which instructions load and insert at once.
        words = [body.assign(f"bitcast <2 x {t.llvm}> {v} to double") for v in lanes]
        whole = insert(body, "double", words)
        joined = body.assign(f"bitcast <{n} x double> {whole} to <{2 * n} x {t.llvm}>")
    else:
        if width < room:
            longer = [min(c, width - 1) for c in range(room)]
            lanes = [pick(body, t, v, width, longer) for v in lanes]
        joined = join(body, t, lanes, room)
    return [pick(body, t, joined, room * n, range(c, room * n, room)) for c in range(width)]


def insert(body: SimdValues, t: str, lanes: Sequence[str]) -> str:
    """Emit the vector of one scalar for each lane."""
    made = "poison"
    for k, v in enumerate(lanes):
        made = body.assign(f"insertelement {body.vector(t)} {made}, {t} {v}, i64 {k}")
    return made


def room_for(width: int) -> int:
    """Return the power of two that a number of neighbours needs."""
    return 1 << (width - 1).bit_length()
