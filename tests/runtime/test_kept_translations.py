"""Translations that are kept: loaded where Python gives the same answers, made anew where one differs."""

import enum
import math
import types

import numpy as np
import pytest

import diffsim as ds
from diffsim.ir.printer import print_kernel
from diffsim.passes import pipeline
from diffsim.runtime import compiler
from diffsim.runtime.cache import own_version

GLOBAL = 2.0


@pytest.fixture
def translated(tmp_path, monkeypatch):
    """The names of the kernels that were translated, with a cache of their own."""
    monkeypatch.setattr(pipeline, "VERIFY", False)
    monkeypatch.setattr(own_version, "_found", ["1"])
    ds.init(arch=ds.cpu, offline_cache_file_path=str(tmp_path))
    names, translate = [], compiler.translate

    def counted(source, *args):
        names.append(source.name)
        return translate(source, *args)

    monkeypatch.setattr(compiler, "translate", counted)
    return names


def field(name="", **options):
    return ds.field(**{"dtype": ds.f32, "shape": 4, "name": name, **options})


@ds.func
def same(a):
    return a


@ds.func
def twice(a):
    return 2 * a


def scaled(k):
    @ds.func
    def scale(a, b=3.0):
        return k * a + b

    return scale


def with_default(b):
    @ds.func
    def scale(a, b=b):
        return a + b

    return scale


def program(
    x=None, y=None, n=2, f=same, root=math, config=None, arg=ds.f32, static=1, lists=(1, 2)
):
    """A kernel for which every argument is something that it looks at."""
    x = field("x") if x is None else x
    y = field("y") if y is None else y
    config = config or types.SimpleNamespace(dt=0.5, inner=types.SimpleNamespace(k=1))

    @ds.kernel
    def run(a: arg, s: ds.template()):
        for i in range(4):
            total = f(x[i]) * n + root.sqrt(4.0) + config.dt * config.inner.k + GLOBAL + a
            for k in ds.static(range(len(lists))):
                total += lists[k] * s
            y[i] = total

    return run.specialize((1.0, static))[0]


def same_field(**options):
    x = field("x", **options)
    return dict(x=x, y=x)


def swapped():
    x, y = field("y"), field("x")
    return dict(x=x, y=y)


VARIANTS = [
    dict,
    lambda: dict(n=3),
    lambda: dict(n=2.0),
    lambda: dict(n=0.0),
    lambda: dict(n=-0.0),
    lambda: dict(n=True),
    lambda: dict(n=np.float64(2.0)),
    lambda: dict(n=np.float32(2.0)),
    lambda: dict(f=twice),
    lambda: dict(f=scaled(2.0)),
    lambda: dict(f=scaled(3.0)),
    lambda: dict(f=with_default(1.0)),
    lambda: dict(f=with_default(4.0)),
    lambda: dict(root=types.SimpleNamespace(sqrt=math.exp)),
    lambda: dict(root=types.SimpleNamespace(sqrt=lambda v: v)),
    lambda: dict(root=np),
    lambda: dict(config=types.SimpleNamespace(dt=0.25, inner=types.SimpleNamespace(k=1))),
    lambda: dict(config=types.SimpleNamespace(dt=0.5, inner=types.SimpleNamespace(k=2))),
    lambda: dict(arg=ds.f64),
    lambda: dict(static=2),
    lambda: dict(static=1.0),
    lambda: dict(lists=[1, 2]),
    lambda: dict(lists=(1, 2, 3)),
    lambda: dict(lists=(1, 2.0)),
    lambda: dict(x=field("x", shape=8)),
    lambda: dict(x=field("x", dtype=ds.f64)),
    lambda: dict(x=field("x", needs_grad=True)),
    lambda: dict(x=field("pressure")),
    same_field,
    swapped,
]


def listing(special):
    return print_kernel(special.ir), print_kernel(special.translation.kernel)


def fresh(make):
    """What a translation gives that looks at no cache."""
    pipeline.VERIFY = True
    try:
        return listing(program(**make()))
    finally:
        pipeline.VERIFY = False


@pytest.mark.filterwarnings("ignore::diffsim.lang.frontend.narrowing.PrecisionLoss")
def test_each_answer_counts(translated, monkeypatch):
    exact = [fresh(make) for make in VARIANTS]
    for k, make in enumerate(VARIANTS):
        program()  # this one is kept now, and is wrong for all others
        assert listing(program(**make())) == exact[k], k
    # With the same answers from new objects, nothing is translated.
    program()
    del translated[:]
    assert listing(program()) == exact[0]
    assert translated == []
    monkeypatch.setitem(globals(), "GLOBAL", 5.0)
    assert listing(program()) != exact[0]
    monkeypatch.setitem(globals(), "GLOBAL", 2.0)
    for owner, name, value in (
        (math, "sqrt", math.exp),
        (ds, "alpha", ds.Vector([3.0, 4.0])),
        (ds.types, "f64", ds.f32),
        (ds.Matrix, "norm", ds.Matrix.sum),
    ):
        with monkeypatch.context() as patch:
            program()
            patch.setattr(owner, name, value, raising=False)
            expected = fresh(dict)
            del translated[:]
            assert listing(program()) == expected
            assert translated == ["run"], name
    with monkeypatch.context() as patch:
        program()
        patch.setitem(globals(), "len", lambda _: 1)
        expected = fresh(dict)
        assert listing(program()) == expected != exact[0]


def test_what_python_itself_adds_to_names_counts_for_nothing(translated, monkeypatch):
    for kind in (ds.Field, ds.Matrix, ds.Vector):
        assert kind.__annotations__ is not None  # makes an empty one
    monkeypatch.setitem(vars(ds.math), "__warningregistry__", {})
    program()
    program()
    assert translated == ["run"]


def test_options_arrays_and_methods(translated, tmp_path):
    @ds.data_oriented
    class Body:
        def __init__(self, k, x):
            self.k, self.x = k, x

        @ds.func
        def force(self, i):
            return -self.k * self.x[i]

        @ds.kernel
        def step(self, v: ds.types.ndarray(dtype=ds.f32, ndim=1)):
            for i in self.x:
                v[i] = self.force(i)

    def stepped(k, **options):
        x, v = field("x", **options), np.zeros(8, np.float32)
        x.fill(1.0)
        Body(k, x).step(v)
        return v[: x.shape[0]].tolist()

    assert stepped(2.0) == stepped(2.0) == [-2.0] * 4
    assert translated == ["step"]
    assert stepped(3.0) == [-3.0] * 4
    assert stepped(3.0, shape=8) == [-3.0] * 8
    assert translated == ["step"] * 3
    ds.init(arch=ds.cpu, default_fp=ds.f64, offline_cache_file_path=str(tmp_path))
    stepped(3.0, shape=8)
    assert translated == ["step"] * 4


class Colour(enum.IntEnum):
    RED = 2


def plain(a):
    return 2 * a


def test_what_has_no_description_is_translated_each_time(translated):
    def runs(*seen):
        things, other = seen

        def once():
            y = field("y")

            @ds.kernel
            def run():
                for i in y:
                    y[i] = ds.static(things(other))

            return run.specialize(())[0]

        once()
        del translated[:]
        once()
        return translated == []

    assert runs(math.sqrt, 4.0)
    assert runs(ds.f32, 4.0)
    assert not runs(plain, 4.0)
    assert not runs(math.sqrt, Colour.RED)


def filled(y):
    @ds.kernel
    def fill():
        for i in y:
            y[i] = 0.5 * i

    return fill


def test_a_field_in_a_sparse_tree_has_no_description(translated):
    for _ in range(2):
        x = ds.field(ds.f32)
        ds.root.pointer(ds.i, 4).place(x)
        filled(x)()
    assert translated == ["fill"] * 2


def test_what_a_translation_shows_is_shown_each_time(translated, capsys):
    def shown(y):
        @ds.kernel
        def show():
            ds.static_print("one", 1)
            y[0] = 1.0

        return show

    for _ in range(2):
        with pytest.warns(match="fraction"):
            filled(field("n", dtype=ds.i32))()
        shown(field("y"))()
        assert capsys.readouterr().out == "one 1\n"
    assert translated == ["fill", "show"] * 2
