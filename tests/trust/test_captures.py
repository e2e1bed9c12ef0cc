"""A kernel never goes on with something that Python has replaced since: whatever kind of thing it is.

Each case is a program whose function `run` is also run by plain Python: after the change the kernel must give
what Python gives, or refuse with an error that names what has changed.
"""

import enum
import math
import sys
import types

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import KernelStateError


class Mode(enum.Enum):
    A = 1
    B = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flag(enum.Flag):
    A = enum.auto()
    B = enum.auto()


class Thing:
    """An object with attributes as given."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Equal:
    """Equal to what `same` says."""

    __hash__ = None

    def __init__(self, same):
        self.same = same

    def __eq__(self, other):
        return self.same


class Truth(Thing):
    def __bool__(self):
        return self.true


class Sized(Thing):
    def __len__(self):
        return self.n

    def __iter__(self):
        return iter([1.0] * self.n)

    def __contains__(self, thing):
        return thing < self.n

    def __getitem__(self, k):
        return self.factor * k


class Dynamic:
    def __init__(self):
        self.table = {"gain": 1.0}

    def __getattr__(self, name):
        try:
            return self.__dict__["table"][name]
        except KeyError:
            raise AttributeError(name) from None


class Computed:
    factor = 1.0

    def __init__(self):
        self.base = 1.0

    @property
    def double(self):
        return 2.0 * self.base

    @property
    def both(self):
        return [self.base, 3.0]

    @staticmethod
    @ds.func
    def first():
        return 1.0


class Other(Computed):
    pass


class Slots:
    __slots__ = ("k",)


@pytest.fixture(autouse=True)
def doubles():
    ds.init(default_fp=ds.f64)


def number(value=0.0):
    made = ds.field(ds.f64, ())
    made[None] = value
    return made


CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


@case
def enum_member():
    me = Thing(mode=Mode.A)

    def run():
        if ds.static(me.mode == Mode.A):
            return 1.0
        return 2.0

    return run, lambda: setattr(me, "mode", Mode.B)


@case
def enum_member_by_identity():
    me = Thing(mode=Mode.A)

    def run():
        return 1.0 if me.mode is Mode.A else 2.0

    return run, lambda: setattr(me, "mode", Mode.B)


@case
def int_enum():
    me = Thing(level=Level.LOW)

    def run():
        return 1.0 * me.level

    return run, lambda: setattr(me, "level", Level.HIGH)


@case
def flag():
    me = Thing(flag=Flag.A | Flag.B)

    def run():
        return 1.0 if me.flag == Flag.A else 2.0

    return run, lambda: setattr(me, "flag", Flag.A)


@case
def none_instead_of_a_number():
    me = Thing(k=1.0)

    def run():
        return 1.0 if me.k is None else 2.0

    return run, lambda: setattr(me, "k", None)


@case
def object_instead_of_none():
    me = Thing(k=None)

    def run():
        return 1.0 if me.k is None else 2.0

    return run, lambda: setattr(me, "k", Thing())


@case
def field_instead_of_none():
    me = Thing(k=None)

    def run():
        return 1.0 if me.k is None else 2.0

    return run, lambda: setattr(me, "k", number())


@case
def none_instead_of_a_field():
    me = Thing(k=number())

    def run():
        return 1.0 if me.k is None else 2.0

    return run, lambda: setattr(me, "k", None)


@case
def none_instead_of_an_object():
    me = Thing(k=Thing())

    def run():
        return 1.0 if me.k is None else 2.0

    return run, lambda: setattr(me, "k", None)


@case
def a_set():
    chosen = {1, 2}

    def run():
        return 1.0 if 3 in chosen else 2.0

    return run, lambda: chosen.add(3)


@case
def a_frozenset():
    me = Thing(chosen=frozenset([1, 2]))

    def run():
        return 1.0 if 3 in me.chosen else 2.0

    return run, lambda: setattr(me, "chosen", frozenset([3]))


@case
def a_range():
    me = Thing(rows=range(3))

    def run():
        s = 0.0
        for k in ds.static(me.rows):
            s += k
        return s

    return run, lambda: setattr(me, "rows", range(4))


@case
def a_key():
    table = {"a": 1.0}

    def run():
        return 1.0 if "b" in table else 2.0

    return run, lambda: table.update(b=2.0)


@case
def a_key_that_is_not_there():
    table = {"a": 1.0, "b": 1.0}

    def run():
        return 1.0 if "b" not in table else 2.0

    return run, lambda: table.pop("b")


@case
def an_attribute_that_appears():
    me = Thing(a=1.0)

    def run():
        return 1.0 if hasattr(me, "b") else 2.0

    return run, lambda: setattr(me, "b", 1.0)


@case
def an_attribute_that_goes():
    me = Thing(b=1.0)

    def run():
        return 1.0 if hasattr(me, "b") else 2.0

    return run, lambda: delattr(me, "b")


@case
def an_attribute_of_a_class():
    me = Computed()

    def run():
        return me.factor

    def change():
        Computed.factor = 5.0

    return run, change, lambda: setattr(Computed, "factor", 1.0)


@case
def an_attribute_that_hides_that_of_the_class():
    me = Computed()

    def run():
        return me.factor

    return run, lambda: setattr(me, "factor", 5.0)


@case
def a_property():
    me = Computed()

    def run():
        return me.double

    return run, lambda: setattr(me, "base", 5.0)


@case
def a_property_with_a_list():
    me = Computed()

    def run():
        return me.both[0]

    return run, lambda: setattr(me, "base", 5.0)


@case
def another_class():
    me = Thing(k=Computed())

    def run():
        return 1.0 if isinstance(me.k, Other) else 2.0

    return run, lambda: setattr(me.k, "__class__", Other)


@case
def another_object_of_another_class():
    me = Thing(k=Computed())

    def run():
        return 1.0 if isinstance(me.k, Other) else 2.0

    return run, lambda: setattr(me, "k", Other())


@case
def identity():
    a, b = Thing(), Thing()
    me = Thing(one=a, two=b)

    def run():
        return 1.0 if me.one is me.two else 2.0

    return run, lambda: setattr(me, "two", a)


@case
def identity_of_lists():
    me = Thing(one=[1.0], two=[1.0])

    def run():
        return 1.0 if me.one is me.two else 2.0

    return run, lambda: setattr(me, "two", me.one)


@case
def equality():
    a, b = Equal(False), 3

    def run():
        return 1.0 if a == b else 2.0

    return run, lambda: setattr(a, "same", True)


@case
def equality_in_a_list():
    a = [Equal(False)]

    def run():
        return 1.0 if 3 in a else 2.0

    return run, lambda: setattr(a[0], "same", True)


@case
def truth():
    me = Truth(true=False)

    def run():
        return 1.0 if me else 2.0

    return run, lambda: setattr(me, "true", True)


@case
def length_and_elements():
    me = Sized(n=2)

    def run():
        s = 0.0
        for k in ds.static(me):
            s += k
        return s

    return run, lambda: setattr(me, "n", 3)


@case
def containment():
    me = Sized(n=2)

    def run():
        return 1.0 if 2 in me else 2.0

    return run, lambda: setattr(me, "n", 3)


@case
def an_item():
    me = Sized(factor=2.0)

    def run():
        return me[3]

    return run, lambda: setattr(me, "factor", 3.0)


@case
def an_attribute_by_getattr():
    me = Dynamic()

    def run():
        return me.gain

    return run, lambda: me.table.update(gain=5.0)


@case
def a_slot():
    me = Slots()
    me.k = 1.0

    def run():
        return me.k

    return run, lambda: setattr(me, "k", 2.0)


@case
def a_module():
    module = types.ModuleType("settings")
    module.k = 1.0

    def run():
        return module.k

    return run, lambda: setattr(module, "k", 2.0)


@case
def a_module_replaced():
    settings, other = types.ModuleType("settings"), types.ModuleType("other")
    settings.k, other.k = 1.0, 2.0

    def run():
        return settings.k

    def change():
        nonlocal settings
        settings = other

    return run, change


@case
def a_number_of_a_module():
    def run():
        return 1.0 * math.tau

    return run, lambda: setattr(math, "tau", 3.0), lambda: setattr(math, "tau", 2 * math.pi)


@case
def an_object():
    me, other = Thing(k=1.0), Thing(k=2.0)

    def run():
        return me.k

    def change():
        nonlocal me
        me = other

    return run, change


@case
def an_object_by_another_name():
    me = Thing(k=1.0)

    def run():
        it = me
        return it.k

    def change():
        nonlocal me
        me = Thing(k=2.0)

    return run, change


@case
def an_object_in_a_list():
    things = [Thing(k=1.0)]

    def run():
        return things[0].k

    def change():
        things[0] = Thing(k=2.0)

    return run, change


@case
def a_nested_list():
    rows = [[1.0, 2.0], [3.0, 4.0]]

    def run():
        return rows[1][0]

    def change():
        rows[1][0] = 7.0

    return run, change


@case
def a_named_tuple():
    pair = types.SimpleNamespace(p=(1.0, [2.0]))

    def run():
        return pair.p[1][0]

    return run, lambda: pair.p[1].__setitem__(0, 5.0)


@case
def the_sign_of_zero():
    me = Thing(k=0.0)

    def run():
        return math.atan2(me.k, -1.0)

    return run, lambda: setattr(me, "k", -0.0)


@case
def one_that_becomes_true():
    me = Thing(k=2)

    def run():
        return 1.0 if me.k is True else 2.0

    return run, lambda: setattr(me, "k", True)


@case
def an_array():
    me = Thing(a=np.array([1.0, 2.0]))

    def run():
        return me.a[1]

    return run, lambda: me.a.__setitem__(1, 5.0)


@case
def the_shape_of_an_array():
    me = Thing(a=np.zeros(3000))

    def run():
        return 1.0 * me.a.shape[0]

    return run, lambda: setattr(me, "a", np.zeros(4000))


@case
def a_string():
    me = Thing(kind="a")

    def run():
        return 1.0 if me.kind == "a" else 2.0

    return run, lambda: setattr(me, "kind", "b")


@case
def a_condition_on_an_object():
    me = Thing(callback=None)

    def run():
        return 1.0 if me.callback else 2.0

    return run, lambda: setattr(me, "callback", run)


@case
def a_builtin_that_is_hidden():
    def run():
        return 1.0 * len((1, 2, 3))

    return run, lambda: setattr(sys.modules[__name__], "len", 3), lambda: globals().pop("len", None)


@case
def a_type():
    me = Thing(kind=float)

    def run():
        return me.kind(2.75)

    return run, lambda: setattr(me, "kind", int)


@case
def a_long_list():
    me = Thing(items=[1.0] * 2000)

    def run():
        return me.items[1999]

    return run, lambda: me.items.__setitem__(1999, 2.0)


@case
def a_property_that_raises():
    me = Computed()

    def run():
        return me.double

    return run, lambda: delattr(me, "base")


@case
def a_getattr_that_raises():
    me = Dynamic()

    def run():
        return me.gain

    return run, lambda: me.table.clear()


@case
def an_item_that_raises():
    me = Sized(factor=2.0)

    def run():
        return me[3]

    return run, lambda: delattr(me, "factor")


@case
def a_truth_that_raises():
    me = Truth(true=True)

    def run():
        return 1.0 if me else 2.0

    return run, lambda: delattr(me, "true")


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_what_python_says_or_refused(name):
    run, change, *undo = CASES[name]()
    assert ds.kernel  # the text below is compiled as a func: the same body that Python runs
    func, out = ds.func(run), number()

    @ds.kernel
    def launch():
        out[None] = func()

    try:
        for _ in range(3):
            launch()
            assert out[None] == run()
        before = run()
        change()
        try:
            now = run()
        except Exception:
            now = None
        assert now != before
        try:
            launch()
        except ds.DiffsimError as refused:
            assert isinstance(refused, KernelStateError) or now is None, refused
        else:
            assert out[None] == now
            launch()
            assert out[None] == now
    finally:
        for f in undo:
            f()
