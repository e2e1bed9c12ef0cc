"""x86's own instructions on registers: transposes of lanes and neighbours, conversions.

Vectors of lanes are made of vectors of neighbours, and the other way round, by shuffles.

Floats become 32-bit integers by instructions that LLVM's vectorizer does not know, so this is for code that
is written with vectors. What does not fit is the least or largest number of the type, and NaN is 0
(`backends/llvm/conversions.py`). LLVM's plain conversion is poison there, so it takes seven instructions to
keep such numbers away from it and to put the ends in their place; and LLVM moves the last two of them
behind what is computed from the integer, where an index has 64 bits and takes two registers. x86's
instructions are defined for all numbers: they return the least integer for what does not fit and for NaN
(Intel 64 and IA-32 Architectures Software Developer's Manual, 2024, volume 1, table 4-1, "integer
indefinite"). Only numbers above and NaN are left to look for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diffsim.backends.llvm.module import number
from diffsim.backends.simd.simd_values import SimdValues
from diffsim.ir.nodes import Const, Value
from diffsim.ir.types import ScalarType

_INSTRUCTIONS = {
    (32, 4): "sse2.cvttps2dq",
    (32, 8): "avx.cvtt.ps2dq.256",
    (32, 16): "avx512.mask.cvttps2dq.512",
    (64, 4): "avx.cvtt.pd2dq.256",
    (64, 8): "avx512.mask.cvttpd2dq.512",
}
"""By the bits of the float and the lanes of a register."""
_TRUNCATES = 4  # "current direction" of rounding, which a truncating conversion does not ask for


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


def saturate(body: SimdValues, x: Value, to: ScalarType) -> str:
    """Emit the conversion of all lanes; "" where these instructions have none for the types."""
    have = x.type.scalar
    width = min(body.lanes, body.jit.vector_bits // have.bits)
    known = (have.bits, width) in _INSTRUCTIONS and (to.kind, to.bits) == ("i", 32)
    # Vectors of 256 bits and more are x86's alone.
    if not known or body.jit.vector_bits < 256:
        return ""
    whole = body.name(x)
    parts = [
        _register(body, have, to, body.lanes_of(have, whole, body.lanes, first, width), width)
        for first in range(0, body.lanes, width)
    ]
    return join(body, to, parts, width)


def _register(body: SimdValues, have: ScalarType, to: ScalarType, x: str, width: int) -> str:
    """Convert one register: the least number minus 1 is the largest one, and 0 takes the place of NaN.

    Not by selections among integers, which LLVM would move behind what is computed from them.
    """
    kind, out, test = (f"<{width} x {t}>" for t in (have.llvm, to.llvm, "i1"))
    # A power of two, which floats of every type hold.
    end = ", ".join([f"{have.llvm} {number(Const(have, float(to.limits[1] + 1)))}"] * width)
    above = body.assign(f"fcmp oge {kind} {x}, <{end}>")
    is_number = body.assign(f"fcmp ord {kind} {x}, zeroinitializer")
    safe = body.assign(f"select {test} {is_number}, {kind} {x}, {kind} zeroinitializer")
    name = f"@llvm.x86.{_INSTRUCTIONS[have.bits, width]}"
    types, args = kind, f"{kind} {safe}"
    if ".mask." in name:
        types += f", {out}, i{width}, i32"
        args += f", {out} zeroinitializer, i{width} -1, i32 {_TRUNCATES}"
    body.module.declare(name, f"declare {out} {name}({types})")
    made = body.assign(f"call {out} {name}({args})")
    less = body.assign(f"sext {test} {above} to {out}")
    return body.assign(f"add {out} {made}, {less}")
