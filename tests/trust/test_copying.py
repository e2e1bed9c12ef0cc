"""What copy, deepcopy, pickle and pools of processes make of diffsim's objects: the right ones, or errors."""

import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import DiffsimError, Span

WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {n}": (lambda thing, n=n: pickle.loads(pickle.dumps(thing, n)))
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


def modules():
    yield ds
    for module in pkgutil.walk_packages(ds.__path__, "diffsim."):
        if not module.name.endswith("__main__"):
            yield importlib.import_module(module.name)


def exception_classes():
    """Every class of an exception or a warning that the package defines, by looking through it."""
    found = {
        thing
        for module in modules()
        for thing in vars(module).values()
        if isinstance(thing, type)
        and issubclass(thing, BaseException)
        and thing.__module__.partition(".")[0] == "diffsim"
    }
    return sorted(found, key=lambda cls: cls.__qualname__)


def made(cls):
    """One of these, with all that its class can have."""
    callee = Span("a.py", 3, 4, 5, 6, "inner", Span("b.py", 7, 1, 7, 9, "outer"))
    given = dict(
        message="what is wrong",
        span=callee,
        hint="do that",
        narrower="leave it",
        reason="a reason",
        code=700,
        stmt=None,
    )
    names = inspect.signature(cls.__init__).parameters
    if not set(names) & {"message", "reason"}:
        return cls("what is wrong")
    return cls(**{name: given[name] for name in names if name != "self"})


def all_of(error):
    """What can be seen of an error."""
    seen = dict(vars(error))
    span = seen.pop("span", None)
    spans = []
    while span is not None:
        spans.append([getattr(span, name) for name in span.__slots__ if name != "parent"])
        span = span.parent
    shown = type(error), str(error), repr(error), error.args, getattr(error, "msg", None)
    return *shown, seen, spans, error.__suppress_context__, getattr(error, "__notes__", None)


def test_the_classes_are_found():
    found = exception_classes()
    assert {ds.KernelSyntaxError, ds.AccessError, ds.PrecisionLoss} < set(found)
    assert len(found) > 15


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cls", exception_classes(), ids=lambda cls: cls.__name__)
def test_exceptions_are_copied_whole(cls, way):
    error = made(cls)
    error.add_note("a note")
    again = WAYS[way](error)
    assert again is not error
    assert all_of(again) == all_of(error)
    if isinstance(error, DiffsimError):
        assert "what is wrong" in str(again) or "a reason" in str(again)
        assert again.hint
        if cls.__init__ is DiffsimError.__init__:
            assert again.span.parent.line == 7
            assert str(again).endswith("Hint: do that")


def test_a_func_that_calls_itself_too_often_is_no_problem():
    span = None
    for n in range(5000):
        span = Span("a.py", n, parent=span)
    again = pickle.loads(pickle.dumps(span))
    assert (again.line, again.parent.parent.line) == (4999, 4997)
    assert again.text() == span.text()


# ---- pools


def fail(cls):
    raise made(cls)


def fail_in_a_kernel(way):
    ds.init()
    x = ds.field(ds.f32, shape=3)

    @ds.func
    def off(i):
        return undefined_name + i  # noqa: F821

    @ds.kernel
    def wrong():
        for i in x:
            x[i] = off(i)

    wrong()


def contexts():
    return [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]


@pytest.mark.skipif(sys.platform == "win32", reason="diffsim runs on POSIX")
def test_exceptions_come_out_of_pools():
    classes = exception_classes()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        for cls in classes:
            with pytest.raises(cls) as caught:
                pool.submit(fail, cls).result(timeout=60)
            assert str(caught.value) == str(made(cls))
    with context.Pool(1) as pool:
        for cls in classes:
            with pytest.raises(cls) as caught:
                pool.apply_async(fail, (cls,)).get(timeout=60)
            assert str(caught.value) == str(made(cls))
        with pytest.raises(ds.KernelNameError, match="undefined_name") as caught:
            pool.apply_async(fail_in_a_kernel, ("pool",)).get(timeout=60)
    error = caught.value
    assert error.span.file == __file__
    assert "return undefined_name + i" in str(error)
    assert "called from" in str(error)
    assert "x[i] = off(i)" in str(error)


# ---- values and fields are copied, names are kept, what is known by identity is refused

Pair = ds.types.struct(a=ds.f32, b=ds.types.vector(3, ds.f32))
Nested = ds.types.struct(pair=Pair, n=ds.i32)


@ds.dataclass
class Particle:
    mass: ds.f32
    pos: ds.math.vec3

    @ds.func
    def momentum(self, v):
        return self.mass * v


class Outer:
    @ds.dataclass
    class Inner:
        n: ds.i32


@ds.func
def twice(a):
    return 2 * a


@ds.kernel
def nothing():
    pass


@ds.ad.grad_replaced
def replaced():
    pass


@ds.data_oriented
class Owner:
    def __init__(self):
        self.size = 3

    @ds.kernel
    def answer(self) -> ds.i32:
        return self.size

    @ds.func
    def one(self):
        return 1

    @ds.ad.grad_replaced
    def step(self):
        return self.size

    def __eq__(self, other):
        return isinstance(other, Owner) and other.size == self.size

    __hash__ = object.__hash__


VALUES = {
    "vector": ds.Vector([1.0, 2.0, 3.0]),
    "matrix": ds.Matrix([[1, 2], [3, 4]]),
    "vec3": ds.math.vec3(1, 2, 3),
    "struct": Pair(a=1.5, b=[1.0, 2.0, 3.0]),
    "nested struct": Nested(pair=Pair(a=1.5), n=4),
    "dataclass": Particle(mass=2.0, pos=[1.0, 2.0, 3.0]),
    "nested dataclass": Outer.Inner(n=4),
}
NAMED = {
    "func": twice,
    "kernel": nothing,
    "replaced": replaced,
    "dataclass": Particle,
    "nested dataclass": Outer.Inner,
    "struct type": Pair,
    "nested struct type": Nested,
    "vector type": ds.types.vector(3, ds.f32),
    "root": ds.root,
    **{
        name: getattr(ds, name) for name in ("cpu", "cuda", "gpu", "f32", "i64", "u1", "sin", "max")
    },
}


def same(a, b):
    return bool(np.all(np.asarray(a == b.entries if hasattr(b, "entries") else a == b)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", VALUES)
def test_values_are_copied(name, way):
    value = VALUES[name]
    again = WAYS[way](value)
    assert type(again) is type(value)
    assert repr(again) == repr(value)
    assert again is not value
    if hasattr(value, "to_dict"):
        assert again == value
        again_first = next(iter(value.to_dict()))
        if isinstance(getattr(again, again_first), float):
            setattr(again, again_first, 77.0)
            assert again != value
    else:
        again[0] = 77 + again[0]
        assert repr(again) != repr(value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMED)
def test_what_has_a_name_is_its_own_copy(name, way):
    assert WAYS[way](NAMED[name]) is NAMED[name]


@pytest.mark.parametrize("way", WAYS)
def test_every_public_name_is_copied_or_refused(way):
    for space, name in ((s, n) for s in (ds, ds.ad, ds.math) for n in dir(s) if n[0] != "_"):
        thing = getattr(space, name)
        if inspect.ismodule(thing):
            continue
        try:
            again = WAYS[way](thing)
        except DiffsimError as error:
            assert error.hint, name
        else:
            assert again is thing or repr(again) == repr(thing), name


def values_of(things):
    return [repr(thing) for thing in things]


def of_particles(mass):
    return Particle(mass=mass, pos=[mass, 0.0, 0.0])


def test_values_go_to_other_processes_and_back():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        things = [*VALUES.values(), *NAMED.values()]
        assert pool.submit(values_of, things).result(timeout=60)[: len(VALUES)] == [
            repr(v) for v in VALUES.values()
        ]
        for mass, found in zip((1.0, 2.0), pool.map(of_particles, (1.0, 2.0)), strict=True):
            assert found == of_particles(mass)
        f = ds.field(ds.f64, shape=(2, 3), offset=(-2, 5), needs_grad=True)
        f.fill(1.5)
        f.grad.fill(2.5)
        found, again = pool.submit(total, f).result(timeout=60)
        assert found == 9.0
        check_copied(f, again)


def test_equal_struct_types_without_a_name_are_one():
    assert ds.types.struct(a=ds.f32) is ds.types.struct(a=ds.f32)
    assert ds.types.struct(a=ds.f32) is not ds.types.struct(a=ds.f64)
    assert ds.types.struct(a=ds.f32, b=ds.f32) is not ds.types.struct(b=ds.f32, a=ds.f32)


def test_elements_of_fields_of_structs_become_structs(cpu):
    field = Particle.field(shape=3)
    field[1] = Particle(mass=2.0)
    for way in WAYS.values():
        again = way(field[1])
        assert again == Particle(mass=2.0)
        again.mass = 3.0
        assert field[1].mass == 2.0


def test_methods_are_copied_with_their_objects(cpu):
    owner = Owner()
    for method in (owner.answer, owner.one, owner.step):
        for name, way in WAYS.items():
            again = way(method)
            assert type(again) is type(method)
            assert again.owner == owner
            assert (again.owner is owner) == (name == "copy")
    assert pickle.loads(pickle.dumps(owner.answer))() == 3
    assert copy.deepcopy(owner.step)() == 3


def test_gradients_of_kernels_are_copied_with_them(cpu):
    assert copy.copy(nothing.grad) is nothing.grad
    assert pickle.loads(pickle.dumps(nothing.grad)) is nothing.grad


@pytest.mark.parametrize("way", WAYS)
def test_tapes_and_dense_trees_are_refused(cpu, way):
    loss = ds.field(ds.f32, shape=(), needs_grad=True)
    for thing in (ds.Tape(loss), ds.root.dense(ds.i, 3)):
        with pytest.raises(
            ds.ArgumentError, match="cannot be copied by copy or deepcopy"
        ) as caught:
            WAYS[way](thing)
        assert caught.value.hint
        assert caught.value.span.file == __file__ or way in ("copy", "deepcopy")


# ---- fields are copied with what they hold


def fields():
    """Fields of each kind, with numbers in them, their gradients and duals."""
    tree = ds.field(ds.f64, needs_grad=True)
    ds.root.dense(ds.i, 2).dense(ds.j, 3).place(tree, offset=(-1, 4))
    made = {
        "i8": ds.field(ds.i8, shape=5),
        "u1": ds.field(ds.u1, shape=4),
        "0-D": ds.field(ds.f32, shape=(), needs_grad=True),
        "offset": ds.field(ds.f64, shape=(2, 3), offset=(-2, 5), order="ji", needs_dual=True),
        "soa": ds.Vector.field(3, ds.f32, shape=4, layout=ds.Layout.SOA, needs_grad=True),
        "matrix": ds.Matrix.field(2, 3, ds.f64, shape=(2, 2)),
        "ndarray": ds.Vector.ndarray(2, ds.f64, shape=3, needs_grad=True),
        "tree": tree,
    }
    random = np.random.default_rng(1)
    for f in made.values():
        for part in parts(f):
            values = random.integers(0, 2, size=f.to_numpy().shape)
            part.from_numpy(
                np.where(values, -0.5 if f.dtype.is_float else 1, 0).astype(f.dtype.numpy)
            )
    return made


def parts(f):
    return [f, *([f.grad] if f.needs_grad else []), *([f.dual] if f.needs_dual else [])]


def form(f):
    return (
        *(f.dtype, f.element, f.shape, f.origin, f._order, f.soa, f.kind, f.needs_grad),
        f.needs_dual,
    )


def check_copied(f, again):
    assert again is not f
    assert form(again) == form(f)
    for one, other in zip(parts(f), parts(again), strict=True):
        assert np.array_equal(one.to_numpy(), other.to_numpy())
        assert one.address != other.address


@pytest.mark.parametrize("way", WAYS)
def test_fields_are_copied_with_what_they_hold(cpu, way):
    for f in fields().values():
        again = WAYS[way](f)
        check_copied(f, again)
        before = f.to_numpy()
        again.fill(7 if f.dtype is not ds.u1 else 1)
        assert np.array_equal(f.to_numpy(), before)


@pytest.mark.parametrize("way", WAYS)
def test_fields_of_structs_and_objects_with_fields(cpu, way):
    structs = Particle.field(shape=3, needs_grad=True)
    structs[1] = Particle(mass=2.0, pos=[1.0, 2.0, 3.0])
    structs.mass.grad[1] = 5.0
    again = WAYS[way](structs)
    assert again.type is Particle
    assert again[1] == structs[1]
    assert again.grad.mass[1] == 5.0
    again[1] = Particle(mass=3.0)
    assert structs[1].mass == 2.0
    if way == "copy":
        return
    # What belongs together stays together: a gradient is that of the copy, in either order.
    x = ds.field(ds.f32, shape=3, needs_grad=True)
    for held in ([x, x.grad, x], [x.grad, x]):
        again = WAYS[way](held)
        assert again[0] is again[-1] or again[0] is again[-1].grad
        assert again[1] in (again[0].grad, again[-1])


def test_fields_without_a_place(cpu):
    x = ds.field(ds.f32, needs_grad=True)
    for way in WAYS.values():
        again = way(x)
        assert not again.placed
        ds.root.dense(ds.i, 3).place(again)
        assert again.grad.shape == (3,)


def test_a_copy_on_a_tape_is_differentiated(cpu):
    x, loss = (ds.field(ds.f64, shape=s, needs_grad=True) for s in (2, ()))
    x.from_numpy(np.array([1.0, 2.0]))
    x.grad.fill(100.0)

    @ds.kernel
    def add(f: ds.template()):
        for i in f:
            loss[None] += f[i] ** 2

    with ds.Tape(loss):
        y = copy.deepcopy(x)
        add(y)
    assert x.grad.to_numpy().tolist() == [2.0, 4.0]
    with ds.Tape(), pytest.raises(ds.ArgumentError, match=r"(?s)a tape records.*after the block"):
        pickle.dumps(x)


def total(f):
    ds.init(default_fp=ds.f64)

    @ds.kernel
    def add() -> ds.f64:
        s = 0.0
        for I in ds.grouped(f):
            s += f[I]
        return s

    return add(), f


@pytest.mark.parametrize("way", WAYS)
def test_what_stands_inside_of_a_function_can_not_be_pickled(cpu, way):
    @ds.kernel
    def inside():
        pass

    @ds.func
    def small(a):
        return a

    @ds.dataclass
    class Local:
        a: ds.f32

    for thing in (inside, small, Local):
        if way.startswith("pickle"):
            with pytest.raises(DiffsimError, match="done by name") as caught:
                WAYS[way](thing)
            assert "top of a module" in caught.value.hint
        else:
            assert WAYS[way](thing) is thing
    if not way.startswith("pickle"):
        assert WAYS[way](Local(a=1.0)) == Local(a=1.0)


def test_axes_beyond_the_fourth_can_be_shown():
    assert repr(ds.axes(0, 5)) == "ds.axes(0, 5)"
    assert repr(ds.axes(1, 0)) == "ds.ji"
