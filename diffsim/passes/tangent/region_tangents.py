"""The tangents of a region: after each statement of the primal, that of its tangents.

    y = op(x, ...)         dy = (the op's row)
    y = load m[i]          dy = load m.dual[i]
    store m[i], v          store m.dual[i], dv               (0 where v does not depend on a dual)
    atomic_add m[i], v     atomic_add m.dual[i], dv
    atomic_max m[i], v     where m[i] becomes v: store m.dual[i], dv
    if c { } else { }      the tangents of the results are further results
    for, while             the tangents of carried values are carried, too
    y = custom f(x)        the transpose of the given adjoint (`call_tangents.py`)

The statements of the primal stay as they are. Nothing is saved, and state that is changed in place needs no
rules: a load's tangent is loaded where the load stands.
"""

from __future__ import annotations

from diffsim.errors import AutodiffError
from diffsim.ir.nodes import (
    Alloca,
    Atomic,
    Block,
    Const,
    CustomCall,
    For,
    If,
    InlineLLVM,
    Let,
    Load,
    Mem,
    Store,
    Value,
    While,
    derivative_of,
    no_derivative,
)
from diffsim.ir.types import derivative_type, i32
from diffsim.passes.autodiff.activity import Activity
from diffsim.passes.tangent.call_tangents import tangents_of_call
from diffsim.passes.tangent.op_tangents import TangentBuilder, tangent_of_op

Index = tuple[Value, ...]


class TangentEmitter:
    """Emits a region together with its tangents.

    Args:
        builder: where the statements go.
        activity: which values have a tangent.
        width: the number of tangents.

    Attributes:
        tangents: the tangents of each value that has some.
        hidden: the duals of temporaries and scratch, one memory for each tangent.
    """

    def __init__(self, builder: TangentBuilder, activity: Activity, width: int) -> None:
        self.builder = builder
        self.activity = activity
        self.width = width
        self.tangents: dict[Value, tuple[Value, ...]] = {}
        self.hidden: dict[Mem, tuple[Mem, ...]] = {}

    # ---- values and memories

    def tangent(self, v: Value, k: int) -> Value | None:
        """Return the k-th tangent of a value; None: it is 0."""
        found = self.tangents.get(v)
        return None if found is None else found[k]

    def some_tangent(self, v: Value, k: int) -> Value:
        """Return the k-th tangent of a value, or a constant 0."""
        return self.tangent(v, k) or no_derivative(v.type)

    def bind(self, v: Value, tangents: tuple[Value, ...]) -> None:
        """Give a value its tangents."""
        self.tangents[v] = tangents
        self.builder.tangents.update(tangents)

    def has_dual(self, mem: Mem) -> bool:
        """Whether a memory holds tangents."""
        return mem in self.hidden or mem.dual is not None

    def place(self, mem: Mem, index: Index, k: int) -> tuple[Mem, Index]:
        """Return where the k-th tangent of an element is."""
        if mem in self.hidden:
            return self.hidden[mem][k], index
        assert mem.dual is not None
        if self.width == 1:
            return mem.dual, index
        # The tangents of an element are neighbours; an index beyond the rank selects a component.
        return mem.dual, (*index[: mem.rank], Const(i32, k), *index[mem.rank :])

    # ---- statements

    def block(self, block: Block) -> None:
        """Emit the statements of a block, each with its tangents."""
        b = self.builder
        for s in block.stmts:
            b.span = s.span
            if isinstance(s, Let):
                self._let(s)
            elif isinstance(s, Load):
                b.add(s)
                self._load(s)
            elif isinstance(s, Store):
                b.add(s)
                self._store(s)
            elif isinstance(s, Atomic):
                self._atomic(s)
            elif isinstance(s, If):
                self._if(s)
            elif isinstance(s, (For, While)):
                self._loop(s)
            elif isinstance(s, CustomCall):
                b.add(s)
                self._custom(s)
            else:
                b.add(s)
                if isinstance(s, Alloca):
                    self._alloca(s)
                elif isinstance(s, InlineLLVM):
                    self._refuse_text(s)

    def _let(self, s: Let) -> None:
        self.builder.keep(s)
        if s.out in self.activity.values:
            made = [self._let_tangent(s, k) for k in range(self.width)]
            if any(dy is not None for dy in made):
                self.bind(s.out, tuple(dy or no_derivative(s.out.type) for dy in made))

    def _let_tangent(self, s: Let, k: int) -> Value | None:
        return tangent_of_op(self.builder, s, lambda v: self.tangent(v, k))

    def _load(self, s: Load) -> None:
        if s.out in self.activity.values:
            self._bind_element(s.out, s)

    def _bind_element(self, v: Value, s: Load | Atomic) -> None:
        """Emit loads of an element's tangents, those of the value that it has."""
        places = [self.place(s.mem, s.index, k) for k in range(self.width)]
        # What an adjoint loads again of the forward launch must be as it was, and so must its tangent.
        again = s.origin if isinstance(s, Load) and s.origin is not s else None
        self.bind(v, tuple(self.builder.load(mem, index, again) for mem, index in places))

    def _store(self, s: Store) -> None:
        if self.has_dual(s.mem):
            for k in range(self.width):
                mem, index = self.place(s.mem, s.index, k)
                self.builder.store(mem, index, self.some_tangent(s.value, k))

    def _atomic(self, s: Atomic) -> None:
        b = self.builder
        if not self.has_dual(s.mem):
            b.add(s)
        elif s.op == "add":
            self._add(s)
        elif s.op == "xchg":
            b.add(s)
            self._exchange(s)
        else:
            assert s.op in ("min", "max")
            self._extreme(s)

    def _add(self, s: Atomic) -> None:
        b = self.builder
        # Where the old value has tangents, no other lane changes the element meanwhile (`in_order.py`).
        if s.out in self.activity.values:
            self._bind_element(s.out, s)
        b.add(s)
        if s.value in self.tangents:
            for k in range(self.width):
                mem, index = self.place(s.mem, s.index, k)
                b.atomic("add", mem, index, self.some_tangent(s.value, k))

    def _exchange(self, s: Atomic) -> None:
        """Emit the exchange of the tangents, too (in the adjoint of a minimum or maximum)."""
        olds = []
        for k in range(self.width):
            mem, index = self.place(s.mem, s.index, k)
            new = self.some_tangent(s.value, k)
            olds.append(self.builder.atomic("xchg", mem, index, new, wants_old=True))
        if s.out is not None:
            self.bind(s.out, tuple(v for v in olds if v is not None))

    def _extreme(self, s: Atomic) -> None:
        """Emit a minimum or maximum, and the tangents of the value if it took the element's place.

        At a tie it counts as taking it, as in the adjoint. No other lane changes the element meanwhile.
        """
        b = self.builder
        if s.out in self.activity.values:
            self._bind_element(s.out, s)
        old = s.out or Value(s.value.type)
        b.add(s.replace(out=old))
        # By the op itself, which ignores NaN.
        won = b.named("eq", b.named(s.op, old, s.value), s.value)
        for k in range(self.width):
            mem, index = self.place(s.mem, s.index, k)
            kept = b.load(mem, index)
            b.store(mem, index, b.named("select", won, self.some_tangent(s.value, k), kept))

    def _custom(self, s: CustomCall) -> None:
        active = [dx for a in s.args if (dx := self.tangents.get(a)) is not None]
        if active:
            along = [tuple(self.some_tangent(a, k) for a in s.args) for k in range(self.width)]
            found = tangents_of_call(self.builder, s, along)
            for out, tangents in zip(s.outs, zip(*found, strict=True), strict=True):
                self.bind(out, tangents)

    def _alloca(self, s: Alloca) -> None:
        if self.activity.is_active(s.mem):
            name, t = f"{s.mem.name}.dual", derivative_type(s.mem.dtype)
            made = tuple(Mem(name, t, 1, None, "scratch") for _ in range(self.width))
            self.hidden[s.mem] = made
            for mem in made:
                self.builder.add(Alloca(mem, s.count, s.span))

    def _refuse_text(self, s: InlineLLVM) -> None:
        if any(a in self.tangents for a in s.args):
            raise AutodiffError(
                f"{s.name} is LLVM text, and forward mode has no tangent for it",
                s.span,
                hint=f"write {s.name} as a @ds.func, or cut the tangent on purpose: ds.stop_grad(...) around "
                "its arguments",
            )

    # ---- regions

    def _if(self, s: If) -> None:
        active = [k for k, out in enumerate(s.outs) if out in self.activity.values]
        then, orelse = (self._region(side, active) for side in (s.then, s.orelse))
        outs = (*s.outs, *self._fresh(s.outs, active))
        self.builder.add(s.replace(then=then, orelse=orelse, outs=outs))

    def _loop(self, s: For | While) -> None:
        active = [k for k, p in enumerate(s.params) if p in self.activity.values]
        inits = (*s.inits, *self._tangents_of(s.inits, active))
        params = (*s.params, *self._fresh(s.params, active))
        body = self._region(s.body, active)
        outs = (*s.outs, *self._fresh(s.outs, active))
        # The condition of a while is a boolean, which has no tangent.
        self.builder.add(s.replace(params=params, inits=inits, body=body, outs=outs))

    def _region(self, block: Block, active: list[int]) -> Block:
        """Return a block with its tangents, which yields those of some of its yields besides."""
        with self.builder.block() as stmts:
            self.block(block)
        return Block(stmts, (*block.yields, *self._tangents_of(block.yields, active)))

    def _tangents_of(self, values: tuple[Value, ...], active: list[int]) -> tuple[Value, ...]:
        """Return the tangents of some of these values in a row."""
        return tuple(self.some_tangent(values[j], k) for j in active for k in range(self.width))

    def _fresh(self, values: tuple[Value, ...], active: list[int]) -> tuple[Value, ...]:
        """Bind new values as the tangents of some that a statement binds; return them in a row."""
        made: list[Value] = []
        for v in (values[j] for j in active):
            tangents = tuple(derivative_of(v, "dual") for _ in range(self.width))
            self.bind(v, tangents)
            made += tangents
        return tuple(made)
