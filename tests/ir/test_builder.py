"""The builder: what literals become, how operands are promoted, what is known while building."""

import itertools
import threading

import numpy as np
import pytest

from diffsim.errors import KernelTypeError, Span
from diffsim.ir import ops
from diffsim.ir.builder import Builder, empty
from diffsim.ir.nodes import Atomic, Const, Load, Mem, Store, Value
from diffsim.ir.op import TABLE
from diffsim.ir.types import bool_, f32, f64, i8, i32, i64, tensor, u8, u32, u64

SPAN = Span("test_builder.py", 7)
VEC2, VEC3, MAT23 = tensor(f32, (2,)), tensor(f32, (3,)), tensor(f32, (2, 3))


@pytest.fixture
def b():
    with Builder(SPAN) as builder:
        yield builder


# ---- literals


@pytest.mark.parametrize(
    ("number", "t"),
    [
        (1, i32),
        (2**31 - 1, i32),
        (2**31, i64),
        (-(2**31), i32),
        (-(2**31) - 1, i64),
        (2**63, u64),
        (0.5, f32),
        (True, bool_),
        (np.float64(0.1), f64),
        (np.int8(3), i8),
        (np.bool_(True), bool_),
    ],
)
def test_literals_on_their_own(b, number, t):
    made = b.literal(number)
    assert made.type is t
    assert made.value == number


def test_a_literal_beyond_64_bits_is_refused(b):
    with pytest.raises(KernelTypeError, match="64 bits"):
        b.literal(2**64)


def test_a_literal_takes_the_precision_of_what_it_meets(b):
    for t in (f32, f64):
        made = Value(t) * 0.1
        (let,) = b.stmts[-1:]
        assert made.type is t
        assert let.args[1].value == float(t.numpy.type(0.1))


def test_default_types():
    b = Builder(SPAN, f64, i64)
    assert b.literal(0.1).type is f64
    assert b.literal(1).type is i64
    assert b.named("div", Value(i32), 2).type is f64
    assert b.named("mul", Value(i32), 0.5).type is f64


def test_constants_wrap_into_their_type(b):
    assert b.const(300, u8).value == 44
    assert b.const(-1, u32).value == 2**32 - 1
    assert b.const(200, i8).value == -56
    assert b.const(2, bool_).value is True
    assert b.const(1, f32).value == 1.0
    assert type(b.const(1, f32).value) is float


# ---- operands


@pytest.mark.parametrize(
    ("left", "right", "t"),
    [
        (Value(f32), Value(f64), f64),
        (Value(i32), Value(f32), f32),
        (Value(i32), Value(i64), i64),
        (Value(i32), 1, i32),
        (Value(i32), 2**40, i64),
        (Value(i32), 0.5, f32),
        (Value(u8), 1, i32),
        (Value(u32), 1, u32),
        (Value(bool_), Value(bool_), i32),
        (Value(f64), 1, f64),
        (Value(VEC3), 2, VEC3),
        (Value(VEC3), Value(f64), tensor(f64, (3,))),
        (1, Value(MAT23), MAT23),
    ],
)
def test_promotion_of_operands(b, left, right, t):
    assert b.named("add", left, right).type is t
    args = b.stmts[-1].args
    assert args[0].type.scalar is args[1].type.scalar is t.scalar


def test_results_of_comparisons(b):
    assert b.named("lt", Value(i32), Value(f64)).type is bool_
    assert b.named("eq", Value(VEC3), 0.0).type is tensor(bool_, (3,))


def test_quotients_of_integers_are_floats(b):
    assert b.named("div", Value(i32), Value(i32)).type is f32
    assert b.named("floordiv", Value(i32), Value(i32)).type is i32
    assert b.named("sin", Value(i64)).type is f32


def test_numbers_as_conditions_are_compared_with_zero(b):
    b.named("and", Value(i32), Value(bool_))
    first, second = b.stmts
    assert (first.op.name, second.op.name) == ("ne", "and")
    with pytest.raises(KernelTypeError, match="a boolean, not an f32"):
        b.named("and", Value(f32), Value(bool_))


def test_select_promotes_its_sides_and_not_its_condition(b):
    made = b.named("select", Value(bool_), Value(i32), Value(f64))
    assert made.type is f64
    assert [a.type for a in b.stmts[-1].args] == [bool_, f64, f64]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("add", (Value(f32),), r"\+ takes 2 arguments, 1 given"),
        (
            "add",
            (Value(VEC2), Value(VEC3)),
            "cannot combine a vector of 2 f32 and a vector of 3 f32",
        ),
        ("bit_and", (Value(f32), 1), "an integer, not an f32"),
        ("shl", (Value(i32), 1.5), "an integer, not an f32"),
        ("matmul", (Value(MAT23), Value(VEC2)), "cannot be multiplied .@. by a vector of 2 f32"),
        ("transpose", (Value(VEC2),), "only a matrix"),
        ("outer", (Value(MAT23), Value(VEC2)), "two vectors"),
        ("extract", (Value(VEC2), 2), "outside a vector of 2"),
        ("extract", (Value(VEC2), -1), "outside a vector of 2"),
        ("extract", (Value(MAT23), 0), "needs 2 indices, 1 given"),
        ("insert", (Value(MAT23), 1.0, 0, 3), "outside a 2x3 matrix"),
    ],
)
def test_operands_that_do_not_fit(b, name, args, message):
    with pytest.raises(KernelTypeError, match=message) as caught:
        b.named(name, *args)
    assert caught.value.span is SPAN


def test_a_literal_operand_beyond_64_bits_is_refused(b):
    with pytest.raises(KernelTypeError, match="64 bits"):
        b.named("add", Value(i32), 2**70)


def test_the_widest_literal_decides(b):
    made = b.named("select", Value(bool_), 0, 2**40)
    assert made.type is i64
    assert [a.value for a in b.stmts[-1].args[1:]] == [0, 2**40]


def test_casts(b):
    x = Value(f64)
    assert b.cast(x, f64) is x
    assert not b.stmts
    assert b.cast(x, i32).type is i32
    assert b.cast(Value(VEC3), i32).type is tensor(i32, (3,))
    assert b.cast(Const(f64, 2.9), i32).value == 2
    assert b.cast(Const(f64, -2.9), i32).value == -2
    assert b.cast(Const(i32, -1), u8).value == 255
    assert b.cast(Const(f64, 0.1), f32).value == float(np.float32(0.1))
    assert b.cast(Const(i32, 7), bool_).value is True
    assert b.cast(Const(f64, float("nan")), i32).value == 0
    assert b.cast(Const(f64, float("inf")), i32).value == 2**31 - 1


def test_casts_to_bool_compare(b):
    # A truncation would make False of 2.
    b.cast(Value(i32), bool_)
    assert b.stmts[-1].op is ops.ne


def test_tensor_of(b):
    x = Value(f64)
    made = b.tensor_of([x, 1, 0.5], (3,))
    assert made.type is tensor(f64, (3,))
    assert [getattr(a, "value", None) for a in b.stmts[-1].args] == [None, 1.0, 0.5]
    assert b.tensor_of([Value(i32), 0.5], (2,)).type is tensor(f32, (2,))
    assert b.tensor_of([1, 2], (2,)).type is tensor(i32, (2,))
    ones = b.tensor_of([1.0] * 4, (2, 2))
    assert isinstance(ones, Const)
    assert (ones.type, ones.value) == (tensor(f32, (2, 2)), 1.0)


def test_broadcasts(b):
    assert b.broadcast(Value(f64), VEC3).type is VEC3
    assert [s.op.name for s in b.stmts] == ["cast", "broadcast"]
    made = b.broadcast(Const(f32, 2.0), VEC3)
    assert isinstance(made, Const)
    assert made.type is VEC3
    v = Value(VEC3)
    assert b.broadcast(v, VEC3) is v


# ---- folding


def test_constants_are_folded_in_their_own_type(b):
    made = b.named("add", Const(f32, 1.0), Const(f32, 2.0**-30))
    assert (made.type, made.value) == (f32, 1.0)
    made = b.named("mul", Const(i32, 2**20), Const(i32, 2**20))
    assert (made.type, made.value) == (i32, 0)
    assert b.named("lt", Const(i32, 1), 2).value is True
    assert b.named("floordiv", Const(i32, -7), 2).value == -4
    assert b.named("mod", Const(i32, -7), 2).value == 1
    made = b.named("sin", 1.0)
    assert made.value == float(np.sin(np.float32(1.0)))
    made = b.named("add", Const(VEC3, 1.0), 2.0)
    assert (made.type, made.value) == (VEC3, 3.0)
    assert not b.stmts


@pytest.mark.parametrize(
    "row", [r for r in TABLE.values() if r.infer_type is None], ids=lambda r: r.name
)
def test_folding_equals_the_reference(b, row):
    letters = set(row.operands)
    t = f64 if letters & {"F", "N", "T"} else bool_ if letters == {"B"} else u64
    numbers = [(hi + lo) / 2 if t.is_float else int(hi) for lo, hi in row.sample]
    args = [
        Const(bool_, True) if letter == "B" else Const(t, n)
        for letter, n in zip(row.operands, numbers, strict=True)
    ]
    made = b.op(row, args)
    want = row.ref(*(a.type.numpy.type(a.value) for a in args))
    assert isinstance(made, Const)
    assert made.value == want


@pytest.mark.parametrize(
    ("name", "number", "both_sides"),
    [
        ("add", 0, True),
        ("mul", 1, True),
        ("sub", 0, False),
        ("div", 1, False),
        ("floordiv", 1, None),
    ],
)
def test_identities(b, name, number, both_sides):
    for x in (Value(f64), Value(VEC3)):
        made = b.named(name, x, number)
        assert (made is x) == (both_sides is not None)
        other = b.named(name, number, x)
        assert (other is x) == (both_sides is True)
    # The operand is not handed through where the result has another type.
    x = Value(i32)
    assert b.named(name, x, Const(f64, float(number))).type is f64


def test_zero_times_a_float_is_not_folded(b):
    assert isinstance(b.named("mul", Value(i32), 0), Const)
    assert not isinstance(b.named("mul", Value(f32), 0.0), Const)  # it may be NaN


def test_a_scalar_identity_does_not_shrink_a_tensor(b):
    x = Value(f32)
    assert b.named("add", x, Const(VEC3, 0.0)).type is VEC3
    assert b.named("mul", x, Const(VEC3, 1.0)).type is VEC3


def test_logic_is_folded(b):
    x = Value(bool_)
    assert b.named("and", x, True) is x
    assert b.named("or", False, x) is x
    assert b.named("and", x, False).value is False
    assert b.named("or", x, True).value is True
    assert b.named("not", True).value is False


def test_selects_are_folded(b):
    x, y, c = Value(f32), Value(f32), Value(bool_)
    assert b.named("select", True, x, y) is x
    assert b.named("select", False, x, y) is y
    assert b.named("select", c, x, x) is x
    assert b.named("select", Const(bool_, True), x, Value(f64)).type is f64


def test_structures_are_folded(b):
    x, y = Value(f32), Value(f32)
    v = b.tensor_of([x, y], (2,))
    assert b.named("extract", v, 1) is y
    m = b.tensor_of([x, x, y, y], (2, 2))
    assert b.named("extract", m, 1, 0) is y
    assert b.named("extract", Const(VEC3, 2.0), Value(i32)).value == 2.0
    assert b.named("sum", Const(MAT23, 2.0)).value == 12.0
    assert b.named("transpose", Const(MAT23, 2.0)).type is tensor(f32, (3, 2))


def test_operators_emit_rows(b):
    x, y = Value(f32), Value(f32)
    comparisons = x < y, x <= y, x > y, x >= y
    results = [
        *(x + y, 1.0 - x, 2.0 * x, 1.0 / x, -x),
        *(comparisons[0] | comparisons[2], comparisons[0] & comparisons[2]),
        ops.sin(x),
    ]
    names = "lt le gt ge add sub mul div neg or and sin".split()
    assert [s.op.name for s in b.stmts] == names
    assert [s.out for s in b.stmts] == [*comparisons, *results]


def test_rows_evaluate_numbers_outside_of_kernels(b):
    assert ops.maximum(1.0, 2.0) == 2.0
    assert ops.sin(np.zeros(3)).tolist() == [0.0] * 3
    assert not b.stmts


# ---- blocks, lines, memory


def test_blocks_and_lines(b):
    x, elsewhere = Value(f32), Span("test_builder.py", 9)
    x + x
    with b.block() as inner, b.at(elsewhere):
        x * x
    x - x
    assert [s.op.name for s in b.stmts] == ["add", "sub"]
    assert [(s.op.name, s.span) for s in inner] == [("mul", elsewhere)]
    assert b.stmts[-1].span is SPAN
    with pytest.raises(ZeroDivisionError), b.block(), b.at(elsewhere):
        raise ZeroDivisionError
    assert b.span is SPAN
    assert len(b.stmts) == 2


def test_memory(b):
    mem, i = Mem("v", VEC3, 1, (4,)), Value(i32)
    assert b.load(mem, (i,)).type is VEC3
    assert b.load(mem, (i, i)).type is f32
    b.store(mem, (i,), Value(VEC3))
    assert b.atomic("add", mem, (i,), Value(VEC3)) is None
    assert b.atomic("max", mem, (i, i), Value(f32), wants_old=True).type is f32
    assert [type(s) for s in b.stmts] == [Load, Load, Store, Atomic, Atomic]
    assert all(s.origin is s for s in b.stmts if not isinstance(s, Store))
    assert empty().stmts == []
    assert empty((i,)).yields == (i,)


def test_every_pair_of_types_has_a_sum(b):
    scalars = [f32, f64, i8, i32, i64, u8, u32, u64, bool_]
    for s, t in itertools.product(scalars, repeat=2):
        assert b.named("add", Value(s), Value(t)).type is not bool_


def test_threads_have_builders_of_their_own():
    begun, go_on = threading.Event(), threading.Event()

    def work():
        with Builder(SPAN):
            begun.set()
            go_on.wait(10)

    thread = threading.Thread(target=work)
    with Builder(SPAN) as b, b.block() as stmts:
        thread.start()
        assert begun.wait(10)
        v = Value(f32) + 1.0
        go_on.set()
        thread.join()
    assert [s.out for s in stmts] == [v]
