"""Python's own constructs in kernels: containers, `:=`, `in`, `super()`, `*args`, and funcs with types."""

import functools
import itertools
import math

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import DiffsimError, KernelStateError, KernelSyntaxError
from tests.support.gradients import check, field, numbers
from tests.support.source import make

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")

OPTIONS = {"a": 2.0, "b": 3.0}


@ds.func
def weighted(x, *others, scale=10.0, **named):
    s = x * scale
    for other in ds.static(others):
        s += other
    return s + named.get("more", 0.5)


@ds.pyfunc
def both(x):
    return x * x + 1


@ds.real_func
def above(x: ds.f64, limit: ds.f64) -> ds.i32:
    if x > limit:
        return 1
    for _ in range(3):
        if x < -limit:
            return -1
    return 0


def containers_of(x):
    """What the kernel below computes, in Python."""
    table = {"x": x, **OPTIONS}
    pairs = [i * x + j for i in range(2) for j in range(3) if i != j]
    squares = {k: k * x for k in range(3)}
    n, steps = 7, 0
    while (n := n // 2) > 0:
        steps += n
    found = 0
    if 3 in (n, 3) and 4 not in {1, 2} and n in range(-2, 9, 2):
        found = sum(k for k in OPTIONS.values()) + len(table)
    return [
        sum(pairs),
        squares[2],
        table["a"] + table["x"],
        steps,
        n,
        found,
        max(k * x for k in range(3)),
    ]


def test_containers_and_assignments_in_expressions():
    @ds.kernel
    def run(x: ds.f64) -> ds.types.vector(7, ds.f64):
        table = {"x": x, **OPTIONS}
        pairs = [i * x + j for i in range(2) for j in range(3) if i != j]
        squares = {k: k * x for k in range(3)}
        n, steps = 7, 0
        while (n := n // 2) > 0:
            steps += n
        found = 0.0
        if 3 in (n, 3) and 4 not in {1, 2} and n in range(-2, 9, 2):
            found = sum(k for k in OPTIONS.values()) + len(table)
        return [
            sum(pairs),
            squares[2],
            table["a"] + table["x"],
            steps,
            n,
            found,
            max(k * x for k in range(3)),
        ]

    for x in (1.5, -0.25):
        np.testing.assert_allclose(run(x).to_numpy(), containers_of(x))


def test_containers_of_the_kernel_are_seen_by_its_loops():
    # Their values are computed in another task, and reach the loop by memory.
    x, out = field(2), field(2)
    total = field()

    @ds.kernel
    def run():
        c = x[0] * x[1]
        table = {"c": c, "v": ds.Vector([c, x[0]])}
        rows = [ds.Vector([c, x[1]]), ds.Vector([x[0], c])]
        if c > 0.0:
            table = {"c": 3.0 * c, "v": ds.Vector([x[1], c])}
        for i in out:
            out[i] = table["c"] * table["v"][1] + rows[1][0]
        total[None] += out[0] * out[1] + table["c"]

    x.from_numpy(numbers(2, seed=1, lo=0.5))
    check(run, total, x, reset=[out])


def test_elements_of_fields_are_passed_by_reference():
    # Also where several lanes add to one element: the addition is atomic, as it is without the func.
    x, y = field(6, n=2), field(3, n=2)
    bodies = ds.types.struct(v=ds.f64, w=ds.types.vector(2, ds.f64)).field(shape=3, needs_grad=True)
    loss = field()

    @ds.func
    def add(total: ds.template(), v):
        total += v * v

    @ds.func
    def change(p: ds.template(), q: ds.template(), a: ds.template()):
        add(p.v, a.y)
        p.w.x = p.v * q[0]
        p.w[1] += a.x
        q = 2.0 * a
        q.y *= 3.0

    @ds.kernel
    def run():
        for i in x:
            j = i // 2
            add(y[j].x, x[i].y)
            add(y[j][1], x[i][0])
        for i in bodies:
            local = y[i]
            change(bodies[i], local, y[i])
            loss[None] += bodies[i].v * local[1] + bodies[i].w.dot(local) + y[i].x

    def program():
        bodies.v.fill(0.25)
        bodies.w.fill(0.5)
        run()

    x.from_numpy(numbers(6, 2, seed=2))
    check(program, loss, x, reset=[y])


def test_functions_with_stars_defaults_and_types():
    @ds.kernel
    def run(x: ds.f64) -> ds.types.vector(7, ds.f64):
        options = {"scale": 2.0, "more": 1.0}
        return [
            weighted(x),
            weighted(x, 1.0, x),
            weighted(x, **options),
            both(x),
            above(x, 1.0),
            above(x, 3.0),
            above(-x, 1.0),
        ]

    x = 2.5
    want = [10 * x + 0.5, 10 * x + 1 + x + 0.5, 2 * x + 1, both(x), 1, 0, -1]
    np.testing.assert_allclose(run(x).to_numpy(), want)
    with pytest.raises(KernelSyntaxError, match="has no type"):

        @ds.real_func
        def untyped(x):
            return x


@ds.data_oriented
class Scene:
    def __init__(self):
        self.x = field(3)
        self.loss = field()

    @ds.func
    def height(self, v):
        return v * v

    @property
    def depth(self):
        return 0.5

    @ds.kernel
    def run(self):
        for i in self.x:
            self.loss[None] += self.height(self.x[i])


@ds.data_oriented
class Hill(Scene):
    @ds.func
    def height(self, v):
        return super().height(v) * v + super().depth


def test_methods_of_parents():
    for cls in (Scene, Hill):
        one = cls()
        one.x.from_numpy(numbers(3, seed=3))
        check(one.run, one.loss, one.x)
        x = one.x.to_numpy()
        expected = x**2 if cls is Scene else x**3 + 0.5
        one.loss.fill(0)
        one.run()
        np.testing.assert_allclose(one.loss[None], expected.sum())


def test_unbound_methods_logic_of_vectors_and_structs_without_a_name():
    @ds.kernel
    def run(x: ds.f64) -> ds.types.vector(6, ds.f64):
        v = ds.Vector([x, 4.0])
        m = ds.Matrix.diag(dim=2, val=x) + ds.Matrix.outer_product(v, v)
        mask = (v > 3.5) and not (v > 10.0)
        s = ds.Struct(a=x, v=v)
        s.a += 1.0
        chosen = v if x > 0.0 else -v
        return [
            ds.Vector.normalized(v).norm(),
            ds.Matrix.trace(m),
            ds.select(mask, v, 0.0).sum(),
            s.a * s.v[1],
            chosen[0],
            ds.Vector.dot(v, chosen),
        ]

    want = [1.0, 6 + 9 + 16, 4.0, 16.0, 3.0, 25.0]
    np.testing.assert_allclose(run(3.0).to_numpy(), want)
    v = ds.Vector([3.0, 4.0])
    assert ds.Vector.norm(v) == ds.Matrix.norm(v) == v.norm() == 5.0
    assert ds.Struct(a=1.0, v=v).v.norm() == 5.0


def test_an_array_whose_shape_alone_is_read():
    @ds.kernel
    def size(a: ds.types.ndarray()) -> ds.i32:
        return 10 * a.shape[0] + a.shape[1]

    assert size(np.ones((3, 2), np.float32)) == 32


def test_a_keyword_default_that_changes_is_noticed():
    @ds.kernel
    def run() -> ds.f64:
        return weighted(1.0)

    assert run() == 10.5
    weighted.source.function.__kwdefaults__["scale"] = 3.0
    try:
        with pytest.raises(KernelStateError):
            run()
    finally:
        weighted.source.function.__kwdefaults__["scale"] = 10.0
    with pytest.raises(DiffsimError):
        above(1.0, 2.0)


PROGRAMS = {
    "lists": """
        s = 0.0
        for k, v in enumerate(reversed([x, 2 * x, x * x])):
            s += k * v
        for u, v in zip([x, 2.0], [3 * x, x]):
            s += u * v
        for c in ds.Vector([x, 2.0]):
            s *= c
        for row in ds.Matrix([[x, 1.0], [2.0, x]]):
            s += row[0] * row[1]
        for c in COEFFICIENTS:
            s = s * x + c
        return s""",
    "dictionaries": """
        d = dict({"a": x}, b=x * x)
        s = 0.0
        for k in d:
            s += d[k]
        for k, v in d.items():
            s += v if k == "a" else 2 * v
        for i in ds.static(range(2)):
            s += x * TABLE[f"w{i}"] + getattr(SHELF, f"k{i + 1:d}")
        return s""",
    "functions of sequences": """
        s = sum(map(square, [x, 2 * x])) + functools.reduce(product, [x, 3.0, x])
        for a, b in itertools.combinations([x, 2 * x, 3.0], 2):
            s += a * b
        for i, j in itertools.product(range(2), range(2)):
            s += x ** (i + j)
        s += sum(filter(None, [0.0, 2.0])) + sorted([(3, x), (1, x * x)], key=first)[0][1]
        return s""",
    "objects that are called": """
        return scaled(x) + SHELF(x) * x""",
    "match": """
        s = 0.0
        for i in ds.static(range(4)):
            match i * n:
                case 0:
                    s += x
                case 1 | 2:
                    s += x * x
                case other:
                    s += other * x
        match MODE:
            case "cubic":
                s *= x
            case _:
                s = 0.0
        return s""",
    "else after loops": """
        s = x
        for i in ds.static(range(3)):
            if i == 2 + n:
                break
        else:
            s *= 3 * x
        for i in ds.static(range(3)):
            for j in ds.static(range(3)):
                if j == n:
                    break
            else:
                s *= 0.0
            if i == n:
                s += x
                break
        else:
            s *= 0.0
        return s""",
    "math and NumPy": """
        y = math.sin(x) + math.sqrt(x) * math.pi + math.floor(x) + math.fabs(-x)
        y += np.where(x > 1.0, x * x, 0.0) + np.maximum(x, 2.0) * np.arctan2(x, 2.0)
        return y + (1.0 if isinstance(x, float) and not isinstance([x], tuple) else 0.0)""",
}


class Shelf:
    k1, k2 = 2.0, 3.0

    def __call__(self, x):
        return self.k2 * x


@pytest.mark.parametrize("name", PROGRAMS)
def test_python_runs_the_same_text(name):
    """The value is Python's, and the derivative that of differences of Python's values."""
    ds.init(default_fp=ds.f64)
    space = {"ds": ds, "math": math, "np": np, "functools": functools, "itertools": itertools}
    space |= {"COEFFICIENTS": [1.0, 2.0], "TABLE": {"w0": 2.0, "w1": 3.0}, "MODE": "cubic"}
    x, y, n = field(), field(), ds.field(ds.i32, shape=())
    space |= {"SHELF": Shelf(), "x": x, "y": y, "n": n}
    functions = """
def square(v): return v * v
def product(a, b): return a * b
def first(pair): return pair[0]
def scale(a, b, c=1.0): return a * b * b + c
scaled = functools.partial(scale, 2.0, c=3.0)
"""
    kernel = "\n@ds.kernel\ndef run():\n    y[None] = program(x[None], n[None])\n"
    make(functions + f"def program(x, n):{PROGRAMS[name]}\n" + kernel, space)
    x[None], n[None] = 1.3, 1
    with ds.Tape(y):
        space["run"]()
    program, h = space["program"], 1e-6
    assert y[None] == pytest.approx(program(1.3, 1), rel=1e-14)
    slope = (program(1.3 + h, 1) - program(1.3 - h, 1)) / (2 * h)
    assert x.grad[None] == pytest.approx(slope, rel=1e-7)
