"""Index arithmetic: what an index is, as a base value plus a constant."""

from __future__ import annotations

from diffsim.ir.nodes import Const, Let, Value

Offset = tuple[Value | None, int]
"""A value (None: 0) plus a constant."""


def offset_of(v: Value, made_by: dict[Value, Let]) -> Offset:
    """The value as base + constant, looking through additions of constants and widening casts.

    Numbers without sign wrap around (`a - 1` may be `a + 255`): what is added to them is part of the base.
    """
    shift = 0
    while True:
        if isinstance(v, Const):
            return None, shift + int(v.value)
        let = made_by.get(v)
        if let is None:
            return v, shift
        name, args = let.op.name, let.args
        if name in ("add", "sub") and v.type.scalar.kind == "u":
            return v, shift
        if name == "add" and isinstance(args[1], Const):
            shift, v = shift + int(args[1].value), args[0]
        elif name == "add" and isinstance(args[0], Const):
            shift, v = shift + int(args[0].value), args[1]
        elif name == "sub" and isinstance(args[1], Const):
            shift, v = shift - int(args[1].value), args[0]
        elif name == "cast" and v.type.scalar.keeps_index(args[0].type.scalar):
            v = args[0]
        else:
            return v, shift
