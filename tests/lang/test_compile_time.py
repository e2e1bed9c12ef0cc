"""What is over when a kernel is compiled: static assertions and prints, Taichi's hints and promises."""

import pytest

import diffsim as ds
from tests.support.source import line_of


@pytest.fixture(autouse=True)
def _start():
    ds.init(arch=ds.cpu)


def test_static_assert():
    x = ds.field(ds.f32, 3)

    def kernel_of(least):
        @ds.kernel
        def run():
            ds.static_assert(x.shape[0] > least, "x is too short")

        return run

    kernel_of(2)()
    with pytest.raises(ds.KernelTypeError, match="x is too short") as caught:
        kernel_of(3)()
    assert "ds.static_assert(x.shape[0] > least" in str(caught.value)

    @ds.kernel
    def later(n: ds.i32):
        ds.static_assert(n > 3)

    with pytest.raises(ds.KernelSyntaxError, match="known before the launch"):
        later(5)


def test_static_print(capsys):
    @ds.kernel
    def run(n: ds.i32):
        for k in ds.static(range(2)):
            ds.static_print("part", k, n, sep="; ")

    run(1)
    run(2)
    assert capsys.readouterr().out == "part; 0; <an i32>\npart; 1; <an i32>\n"  # once


def test_printed_containers(capsys):
    pair = ds.types.struct(p=ds.f32, q=ds.i32)

    @ds.kernel
    def run(a: ds.f32):
        b = pair(a, 2)
        ds.static_print((a, 1), [a, "t"], {"k": (a,)}, b, [b], ds.ndrange(2), sep="; ")
        print({"k": a, 2: [b]}, b)

    run(1.5)
    b = "struct(p=<an f32>, q=<an i32>)"
    assert capsys.readouterr().out.splitlines() == [
        f"(<an f32>, 1); [<an f32>, 't']; {{'k': (<an f32>,)}}; {b}; [{b}]; <ds.ndrange(...)>",
        "{'k': 1.5, 2: [struct(p=1.5, q=2)]} struct(p=1.5, q=2)",
    ]


def test_hints_change_nothing():
    x, y = ds.field(ds.f32, 8), ds.field(ds.f32, 8)

    @ds.kernel
    def run():
        ds.block_local(x)
        ds.cache_read_only(x, y)
        ds.mesh_local(x)
        for i in x:
            j = ds.loop_unique(i, covers=[x])
            y[ds.assume_in_range(j, i, 0, 1)] = x[i] + 1

    run()
    assert y.to_numpy().tolist() == [1] * 8

    @ds.kernel
    def wrong():
        ds.block_local(3)

    with pytest.raises(ds.KernelTypeError, match="takes fields"):
        wrong()


def test_a_loop_over_a_0d_field():
    x = ds.field(ds.f32, (), needs_grad=True)
    x[None] = 2

    @ds.kernel
    def run():
        for I in ds.grouped(x):
            x[I] += 1
        for I in x:
            x[I] *= 2

    run()
    assert x[None] == 6


@pytest.mark.parametrize(
    ("values", "some", "every"), [((1, 2), 1, 1), ((0, 2), 1, 0), ((0, 0), 0, 0)]
)
def test_any_and_all_of_values(values, some, every):
    @ds.kernel
    def run(a: ds.i32, b: ds.i32) -> ds.i32:
        v = ds.Vector([a, b])
        r = 0
        if any(v > 0):
            r += 1
        if all(v > 0):
            r += 10
        if all([a > 0, b > 0, True]):
            r += 100
        if any(v):
            r += 1000
        return r

    assert run(*values) == 1001 * some + 110 * every


def test_static_names_fields(cpu):
    ds = cpu
    x, y = ds.field(ds.f64, 3, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)
    x.fill(2.0)

    @ds.kernel
    def add():
        a = ds.static(x)
        b, c = ds.static(x, y)
        for i in a:
            for k in ds.static(range(b.shape[0])):
                c[None] += a[i] * b[k]

    with ds.Tape(y):
        add()
    assert y[None] == 36.0
    assert x.grad.to_numpy().tolist() == [12.0, 12.0, 12.0]


def test_many_unrolled_iterations_are_warned_of_once(cpu):
    """At the longest loop of the nest; the loops of two nests are not counted together."""
    x = ds.field(ds.f32, shape=8)
    n = 24

    @ds.kernel
    def nest():
        for i in x:
            total = 0.0
            for j in ds.static(range(3)):
                for k in ds.static(range(n * 10)):
                    total += j * k
            x[i] = total

    @ds.kernel
    def launches():
        for k in ds.static(range(501)):
            for i in range(1):
                x[0] = k

    @ds.kernel
    def apart():
        for i in x:
            for k in ds.static(range(500)):
                x[i] += k
            for k in ds.static([1.0] * 500):
                x[i] += k

    with pytest.warns(UserWarning, match="more than 500 iterations are unrolled") as seen:
        nest.ir()
    (said,) = seen
    assert said.filename == __file__
    assert said.lineno == line_of(nest, "for k in")
    assert str(said.message).endswith("once: for k in range(n * 10)")
    with pytest.warns(UserWarning, match="for k in range.501. in Python, around the launches"):
        launches.ir()
    apart.ir()
