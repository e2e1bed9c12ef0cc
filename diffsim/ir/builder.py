"""Builds typed IR: promotes operands, infers types, folds constants, appends statements.

The frontend, the derivative rules and the expansions all emit through here, so a program and its adjoint
obey the same typing, and nothing that is known while building reaches the passes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Container, Iterator, Sequence

import numpy as np

from diffsim.errors import KernelTypeError, Span, shown
from diffsim.ir import builder_stack, types
from diffsim.ir.nodes import Atomic, Block, Const, Let, Load, Mem, Stmt, Store, Value
from diffsim.ir.op import TABLE, Op
from diffsim.ir.types import ScalarType, TensorType, Type, an, bool_, promote, tensor

Operand = Value | float | int | bool
_KIND_NAMES = {
    "F": "a float",
    "I": "an integer",
    "N": "a number",
    "B": "a boolean",
    "J": "an integer",
}


_TENSOR_ADVICE = {
    "extract": "write one index for each axis, starting at 0",
    "insert": "write one index for each axis, starting at 0",
    "matmul": "element by element multiply with *; rows and columns are exchanged by .transpose()",
    "outer": "write v.outer_product(w) with two vectors",
    "transpose": "a vector has no rows and columns; for one row write ds.Matrix([[x, y]])",
}


class Builder:
    """Appends statements to the block under construction.

    Args:
        span: the line that is being translated; `at` changes it.
        default_fp: type of float literals that meet no other float.
        default_ip: type of int literals that meet no other number.
    """

    def __init__(
        self, span: Span, default_fp: ScalarType = types.f32, default_ip: ScalarType = types.i32
    ) -> None:
        self.span = span
        self.default_fp = default_fp
        self.default_ip = default_ip
        self.stmts: list[Stmt] = []
        self.is_inner = False  # whether derivatives emitted here may be differentiated again
        self.cut: Container[Value] = ()  # adjoints that are 0 where their value was thrown away
        self.ranges: dict[Value, tuple[int, int]] = {}
        """The least and largest number that indices of loops take, as far as that is known."""
        # Where each value comes from, for simplifications that look through an operand.
        self._made: dict[Value, Let] = {}
        self.functions: Container[str] | None = None
        """The target's mathematical functions, once ops are written out for a target (`Op.formula`)."""

    def __enter__(self) -> Builder:
        builder_stack.push(self)
        return self

    def __exit__(self, *exc: object) -> None:
        builder_stack.pop()

    @contextlib.contextmanager
    def block(self) -> Iterator[list[Stmt]]:
        """Collect the statements emitted inside the `with` in a list of their own."""
        # Blocks nest like calls: the list under construction is swapped out and back in.
        outer, self.stmts = self.stmts, []
        try:
            yield self.stmts
        finally:
            self.stmts = outer

    @contextlib.contextmanager
    def at(self, span: Span) -> Iterator[None]:
        """Give the statements emitted inside the `with` that line."""
        outer, self.span = self.span, span
        try:
            yield
        finally:
            self.span = outer

    def add(self, stmt: Stmt) -> None:
        self.stmts.append(stmt)

    # ---- values

    def const(self, number: float | int | bool, t: Type) -> Const:
        """Return a constant of that type (every element of a tensor type)."""
        kind = t.scalar.kind
        if kind == "b":
            return Const(t, bool(number))
        if kind == "f" or isinstance(number, float):
            try:
                return Const(t, types.converted(number, t.scalar).item())
            except OverflowError as problem:
                hint = "write it as a float: 1e30"
                raise KernelTypeError(str(problem), self.span, hint) from None
        number = int(number)
        # Wraps around as the machine does (two's complement).
        if not t.scalar.holds(number):
            number &= (1 << t.scalar.bits) - 1
            if kind == "i" and number >> (t.scalar.bits - 1):
                number -= 1 << t.scalar.bits
        return Const(t, number)

    def literal(self, number: float | int | bool | np.generic) -> Const:
        """Return the constant of a Python number: default_fp, default_ip (or i64 if too large), or bool."""
        # NumPy numbers carry their own type; Python numbers take the default one, or adapt to an
        # operand.
        if isinstance(number, np.generic):
            t = types.from_numpy(number.dtype)
            if t is not None:
                return self.const(number.item(), t)
            number = number.item()
        if isinstance(number, bool):
            return Const(bool_, number)
        if isinstance(number, int):
            # The default type first, then the narrowest that holds it: 2**40 is never silently cut off.
            for t in (self.default_ip, types.i64, types.u64):
                if t.holds(number):
                    return Const(t, number)
            raise KernelTypeError(
                f"{shown(number)} does not fit into 64 bits",
                self.span,
                hint="write it as a float: 1e30",
            )
        return self.const(float(number), self.default_fp)

    def named(self, name: str, *args: Operand) -> Value:
        return self.op(TABLE[name], args)

    def cast(self, x: Value, scalar: ScalarType) -> Value:
        """Emit the conversion of a value's scalars."""
        have = x.type.scalar
        if have is scalar:
            return x
        # Folded with the definition of `cast` (`types.converted`), so compile time and run time agree.
        if isinstance(x, Const):
            return Const(tensor(scalar, x.type.shape), types.converted(_typed(x), scalar).item())
        # A truncation to one bit would make 2 false.
        if scalar.is_bool:
            return self.named("ne", x, 0)
        if have.for_storage and scalar is not have.arithmetic:
            return self.cast(self.cast(x, have.arithmetic), scalar)
        if scalar.for_storage:
            return self._stored(x, scalar)
        return self._let(TABLE["cast"], (x,), tensor(scalar, x.type.shape))

    def _stored(self, x: Value, scalar: ScalarType) -> Value:
        """Emit the conversion to a type of storage."""
        made = self.made_by(x)
        # What was not computed with is as it was stored.
        if made is not None and made.op.name == "cast" and made.args[0].type.scalar is scalar:
            return made.args[0]
        # Integers that f32 does not hold are beyond f16, so only floats must not be rounded twice.
        if not x.type.is_float:
            x = self.cast(x, scalar.arithmetic)
        return self._let(TABLE["cast"], (x,), tensor(scalar, x.type.shape))

    def broadcast(self, x: Value, t: Type) -> Value:
        """Emit a scalar in every element of type `t` (converted to its scalar type)."""
        x = self.cast(x, t.scalar)
        if isinstance(x, Const):
            return Const(t, x.value)
        if x.type is t:
            return x
        return self._let(TABLE["broadcast"], (x,), t)

    def build(self, elements: Sequence[Value], t: Type) -> Value:
        """Emit a tensor of scalars in row order."""
        first = elements[0]
        # A tensor constant has one number; vectors of different constants stay `build` statements.
        if isinstance(first, Const) and all(
            isinstance(e, Const) and e.value == first.value for e in elements
        ):
            return Const(t, first.value)
        return self._let(TABLE["build"], tuple(elements), t)

    def tensor_of(
        self, elements: Sequence[Operand], shape: tuple[int, ...], like: Type | None = None
    ) -> Value:
        """Emit a tensor of values and numbers in row order, promoted to one scalar type.

        Numbers alone take the precision of `like`, the type of the place they go to.
        """
        # Values decide about the type; literals adapt to them, except that a float literal makes
        # integers floats.
        literals = [self.literal(e).type.scalar for e in elements if not isinstance(e, Value)]
        strong = [e.type.scalar for e in elements if isinstance(e, Value)]
        common = functools.reduce(promote, strong or literals)
        if any(t.is_float for t in literals) and not common.is_float:
            common = self.default_fp
        if like is not None and like.is_float and not strong:
            common = like.scalar
        # A number that does not fit beside the values widens them, and does not wrap around.
        whole = [e for e in elements if isinstance(e, int) and not isinstance(e, bool)]
        fits = common.is_float or (common.is_int and all(map(common.holds, whole)))
        if strong and whole and not fits:
            common = promote(common, self._type_of_whole(whole))
        values = [
            self.cast(e, common) if isinstance(e, Value) else self.const(e, common)
            for e in elements
        ]
        return self.build(values, tensor(common, shape))

    def _whole(self, op: Op, args: Sequence[Operand]) -> Value:
        """Emit an op on tensors as wholes."""
        values = tuple(a if isinstance(a, Value) else self.literal(a) for a in args)
        if op.name in ("matmul", "outer"):
            common = promote(values[0].type.scalar, values[1].type.scalar)
            values = tuple(self.cast(v, common) for v in values)
        elif op.name == "insert":
            values = (values[0], self.cast(values[1], values[0].type.scalar), *values[2:])
        try:
            t = op.infer_type(values, None)  # type: ignore[misc]
        except ValueError as problem:
            advice = _TENSOR_ADVICE.get(op.name, "give operands of shapes that go together")
            raise KernelTypeError(str(problem), self.span, hint=advice) from None
        if not op.moves and t.scalar.for_storage:
            wide = [self.cast(v, v.type.scalar.arithmetic) for v in values]
            return self.cast(self._whole(op, wide), t.scalar)
        return self._fold_structure(op, values) or self._let(op, values, t)

    def op(self, op: Op, args: Sequence[Operand]) -> Value:
        """Emit an op on values and Python numbers, operands promoted by its signature."""
        if op.infer_type is not None:
            return self._whole(op, args)
        if len(args) != len(op.operands):
            some = f"{len(op.operands)} argument{'s' * (len(op.operands) != 1)}"
            raise KernelTypeError(
                f"{op.sign} takes {some}, {len(args)} given", self.span, hint=f"give {some}"
            )
        args = [a.item() if isinstance(a, np.generic) else a for a in args]
        groups: dict[str, ScalarType] = {}
        # Operands with the same letter in the signature are promoted to one scalar type.
        for letter in op.operands:
            if letter not in groups:
                groups[letter] = self._common(op, letter, args)
        shape: tuple[int, ...] = ()
        values: tuple[Value, ...] = ()
        for letter, a in zip(op.operands, args, strict=True):
            scalar = groups[letter]
            if isinstance(a, Value):
                # Scalars go with any tensor (the op broadcasts them); two tensors must agree.
                if a.type.shape:
                    if shape and a.type.shape != shape:
                        every = [v.type for v in args if isinstance(v, Value) and v.type.shape]
                        raise KernelTypeError(
                            f"{op.sign} cannot combine {' and '.join(map(an, every))}",
                            self.span,
                            hint="it works element by element: both need the same shape"
                            + ("; the matrix product is written @" if op.name == "mul" else ""),
                        )
                    shape = a.type.shape
                values += (a if a.type.scalar is scalar else self._convert(a, scalar, letter),)
            else:
                values += (self.const(a, scalar),)
        result = op.result_type(groups)
        if not op.moves and any(t.for_storage for t in groups.values()):
            wide = [self.cast(v, v.type.scalar.arithmetic) for v in values]
            return self.cast(self.op(op, wide), result)
        return self.typed_op(op, values, tensor(result, shape))

    def typed_op(self, op: Op, values: tuple[Value, ...], t: Type) -> Value:
        """Emit an op on values that have the types of its signature; `t` is that of the result."""
        # The order matters: what is constant needs no formula, and a formula no statement of the op
        # itself.
        return (
            self._fold(op, values, t) or self._expanded(op, values, t) or self._let(op, values, t)
        )

    def _expanded(self, op: Op, values: tuple[Value, ...], t: Type) -> Value | None:
        """Emit the formula of an op, if that is how the target computes it."""
        # Before lowering, ops stay whole: their rows' derivative rules apply to the op, not to its
        # expansion.
        formula = None if self.functions is None else op.formula(self.functions)
        if formula is None:
            return None
        with self:
            # Literals in a formula may have widened a narrow integer.
            return self.cast(formula(*values), t.scalar)

    def _convert(self, x: Value, scalar: ScalarType, letter: str) -> Value:
        return self.named("ne", x, 0) if letter == "B" else self.cast(x, scalar)

    def _common(self, op: Op, letter: str, args: Sequence[Operand]) -> ScalarType:
        """Return the scalar type that all operands with this letter become."""
        common: ScalarType | None = None
        # Python numbers are weak operands, as in NumPy (NEP 50): they adopt the type of the values
        # beside them.
        weakest = 0  # of the Python numbers: 1 bool, 2 int, 3 float
        for have, a in zip(op.operands, args, strict=True):
            if have != letter:
                continue
            if isinstance(a, Value):
                common = a.type.scalar if common is None else promote(common, a.type.scalar)
            else:
                rank = 1 if isinstance(a, bool) else 2 if isinstance(a, int) else 3
                weakest = max(weakest, rank)
        if letter == "B":
            if common is not None and common.is_float:
                raise self._mismatch(op, letter, common)
            return bool_
        # A float literal beside integers: the program's default float type, not f64.
        if weakest == 3 and (common is None or not common.is_float):
            common = self.default_fp
        elif weakest == 2 and (common is None or not common.is_float):
            width = self._type_of_whole(args)
            common = width if common is None else promote(common, width)
        elif common is None:
            common = bool_
        if letter == "F" and not common.is_float:
            return self.default_fp
        if letter == "N" and common.is_bool:
            return self.default_ip
        if letter == "I" and common.is_bool:
            return self.default_ip
        if letter in "IJ" and common.is_float:
            raise self._mismatch(op, letter, common)
        return common

    def _type_of_whole(self, args: Sequence[Operand]) -> ScalarType:
        """Return the type of the whole numbers among operands, which were written in the program."""
        literals = [a for a in args if isinstance(a, int) and not isinstance(a, bool)]
        widths = (self.default_ip, types.i64, types.u64)
        # A literal too large for the default type widens the operation instead of wrapping around.
        width = next((t for t in widths if all(t.holds(n) for n in literals)), None)
        if width is None:
            raise KernelTypeError(
                f"{max(literals, key=abs)} does not fit into 64 bits",
                self.span,
                hint="compute with floats: write it with a point, as 1e30",
            )
        return width

    def _mismatch(self, op: Op, letter: str, have: ScalarType) -> KernelTypeError:
        return KernelTypeError(
            f"{op.sign} needs {_KIND_NAMES[letter]}, not {an(have)}",
            self.span,
            hint="write a comparison: a != 0"
            if letter == "B"
            else "convert it: ds.cast(value, ds.i32)"
            + ("; a power is written **" if op.name == "bit_xor" else ""),
        )

    def _let(self, op: Op, args: tuple[Value, ...], t: Type) -> Value:
        out = Value(t)
        made = self._made[out] = Let(out, op, args, self.span)
        self.stmts.append(made)
        return out

    def made_by(self, v: Value) -> Let | None:
        """Return the statement that binds a value, if it is an op emitted here."""
        return self._made.get(v)

    # ---- folding

    def _fold(self, op: Op, args: tuple[Value, ...], t: Type) -> Value | None:
        """Return the value of an op on constants, if it is known now."""
        if all(isinstance(a, Const) for a in args):
            # The NumPy reference of the op's row is its definition; overflow and NaN are results, not
            # warnings.
            with np.errstate(all="ignore"):
                raw = [_typed(a) for a in args if isinstance(a, Const)]
                try:
                    return self.const(op.ref(*raw).item(), t)
                # What has no value now (an integer divided by 0) is left to run time, which reports it
                # with a line.
                except (ValueError, OverflowError, ZeroDivisionError, AttributeError):
                    return None
        if op.name in _IDENTITIES:
            return self._fold_identity(op.name, args, t)
        # Only where the type stays: folding must not drop a broadcast or a cast.
        if op.name == "select":
            cond, a, b = args
            if isinstance(cond, Const):
                return a if cond.value and a.type is t else b if b.type is t else None
            return a if a is b and a.type is t else None
        if op.name in ("and", "or"):
            # `true and x` is x, `false and x` is false; dually for `or`.
            for side, other in (args, args[::-1]):
                if isinstance(side, Const):
                    if bool(side.value) == (op.name == "and"):
                        return other if other.type is t else None
                    return Const(t, side.value)
        return None

    def _fold_identity(self, name: str, args: tuple[Value, ...], t: Type) -> Value | None:
        """Simplify `x + 0`, `x * 1` and the like, and integers times 0."""
        left, right = args
        for side, other in ((right, left), (left, right)):
            if not isinstance(side, Const):
                continue
            # 0 - x, 1 / x, 0 << x are no identities.
            one_sided = name in ("sub", "div", "shl", "shr") and side is left
            if side.value == _IDENTITIES[name] and other.type is t and not one_sided:
                return other
            # Integers only: a float times 0 is NaN for infinities and NaN (IEEE 754), and -0.0 for
            # negative numbers.
            if name == "mul" and t.is_int and side.value == 0:
                return Const(t, 0)
        return None

    def _fold_structure(self, op: Op, args: tuple[Value, ...]) -> Value | None:
        """Return the value of an op on whole tensors, if it is known now."""
        first = args[0]
        if op.name == "extract":
            if isinstance(first, Const):
                return Const(first.type.scalar, first.value)
            # `build` directly followed by `extract` is what subscripts of a fresh vector give; the pair
            # vanishes.
            made = self._made_by_build(first)
            if made is not None and all(isinstance(i, Const) for i in args[1:]):
                at = np.ravel_multi_index([i.value for i in args[1:]], first.type.shape)  # type: ignore[attr-defined]
                return made[int(at)]
        elif op.name == "transpose" and isinstance(first, Const):
            return Const(tensor(first.type.scalar, first.type.shape[::-1]), first.value)
        elif op.name == "sum" and isinstance(first, Const) and isinstance(first.type, TensorType):
            return self.const(first.value * first.type.size, first.type.scalar)
        return None

    def _made_by_build(self, x: Value) -> tuple[Value, ...] | None:
        """Return the elements of a tensor that one of the last few statements built."""
        # A short window: a search through the whole block would make building quadratic, and the value
        # may only be taken from a block that is still open.
        for stmt in self.stmts[-8:]:
            if isinstance(stmt, Let) and stmt.out is x and stmt.op.name == "build":
                return stmt.args
        return None

    # ---- memory

    def load(
        self, mem: Mem, index: tuple[Value, ...], origin: Load | Atomic | None = None
    ) -> Value:
        """Load the element at the index, or one component of it if the index is longer than the rank."""
        # Indices beyond the rank select a component of the element.
        t: Type = mem.dtype.scalar if len(index) > mem.rank else mem.dtype
        out = Value(t)
        self.stmts.append(Load(out, mem, index, self.span, origin))
        return out

    def store(self, mem: Mem, index: tuple[Value, ...], value: Value) -> None:
        self.stmts.append(Store(mem, index, value, self.span))

    def atomic(
        self,
        op: str,
        mem: Mem,
        index: tuple[Value, ...],
        value: Value,
        *,
        wants_old: bool = False,
    ) -> Value | None:
        """Emit an atomic update; `wants_old`: return the element's old value."""
        out = Value(value.type) if wants_old else None
        self.stmts.append(Atomic(out, op, mem, index, value, self.span))
        return out


def _typed(c: Const) -> np.generic:
    """Return a constant's number in NumPy's type."""
    number: np.generic = c.type.scalar.numpy.type(c.value)
    return number


_IDENTITIES = {
    "add": 0,
    "sub": 0,
    "mul": 1,
    "div": 1,
    "shl": 0,
    "shr": 0,
    "bit_or": 0,
    "bit_xor": 0,
}


def empty(yields: tuple[Value, ...] = ()) -> Block:
    """Return a block without statements."""
    return Block([], yields)
