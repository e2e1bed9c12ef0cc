"""Funcs that change what they are passed, results of loops, slices, and what is evaluated once."""

import numpy as np

from tests.support.gradients import check, field, numbers
from tests.support.source import make


def test_template_parameters_are_passed_by_reference(cpu):
    ds = cpu
    vec2 = ds.types.vector(2, ds.f64)

    @ds.dataclass
    class Body:
        pos: vec2
        mass: ds.f64

        @ds.func
        def push(self, other: ds.template()):
            self.pos += 1.0
            other.mass += self.mass

    @ds.func
    def grow(a: ds.template(), by=1.0):
        a += by

    @ds.func
    def swap(a: ds.template(), b: ds.template()):
        a, b = b, a

    @ds.func
    def twice(a: ds.template()):
        grow(a)
        grow(by=2.0, a=a)

    @ds.func
    def clip(a: ds.template(), limit):
        if a > limit:
            a = limit
            return 1
        return 0

    @ds.func
    def by_value(a):
        a += 1.0

    @ds.kernel
    def run(n: ds.i32) -> ds.types.matrix(4, 4, ds.f64):
        v = ds.Vector([1.0, 2.0])
        m = ds.Matrix([[0.0, 0.0], [0.0, 0.0]])
        s, t, clipped = 1.0, 5.0, 0
        body, other = Body(mass=2.0), Body(mass=3.0)
        if n > 0:
            for i in range(n):  # 3 turns
                grow(s)
                clipped += clip(t, 4.0)
            swap(s, t)
            grow(v)
            swap(v.x, v.y)
            twice(v[1])
            by_value(v)
            k = 0
            while k < n:
                grow(m[k % 2, 1], by=1.0 + k)
                k += 1
            grow(body.pos.y)
            grow(body.mass, 10.0)
            body.push(other)
            if n > 5:
                grow(body.mass)
        return [
            [s, t, clipped, v.x],
            [v.y, m[0, 1], m[1, 1], m[0, 0]],
            [body.pos.x, body.pos.y, body.mass, other.mass],
            [other.pos.x, 0.0, 0.0, 0.0],
        ]

    assert run(3).to_list() == [
        [4, 4, 1, 3],
        [5, 4, 2, 0],
        [1, 2, 12, 15],
        [0, 0, 0, 0],
    ]


def test_gradients_through_references(cpu):
    ds = cpu
    ds.init(default_fp=ds.f64)
    x, loss = field(6), field()

    @ds.func
    def step(state: ds.template(), k):
        if state.x < 0.3:
            state.y += x[k] * state.x
        state.x = ds.sin(state.x + state.y)

    @ds.kernel
    def run():
        for i in x:
            state = ds.Vector([x[i], 0.5])
            for k in range(4):
                step(state, (i + k) % 6)
            loss[None] += state.x * state.y

    x.from_numpy(numbers(6))
    check(run, loss, x)


def test_returns_of_several_values_from_loops(cpu):
    ds = cpu
    ds.init(default_fp=ds.f64)
    x, loss = field(7), field()
    Pair = ds.types.struct(p=ds.types.vector(2, ds.f64), k=ds.i32)

    @ds.func
    def search(a, b):
        for k in range(6):
            if a * k > b:
                return a * k, k, ds.Vector([a, b])
            if k == 3:
                return b, -1, ds.Vector([b, a * a])
        return 0.0, 7, ds.Vector([a, a])

    @ds.func
    def grown(a):
        s = Pair(p=ds.Vector([a, 1.0]), k=0)
        for k in range(3):
            for j in range(3):
                s.p *= 1.1
                s.k += 1
                if s.p.x * j > 1.0 + k:
                    return s
                if j == 2 and k == 1:
                    return Pair(p=s.p.yx * a, k=-1)
        return s

    @ds.kernel
    def run():
        for i in x:
            a, n, v = search(x[i], 0.7)
            s = grown(x[i])
            loss[None] += a * n + v.dot(s.p) * s.k

    def python_search(a, b):
        for k in range(6):
            if a * k > b:
                return a * k, k, np.array([a, b])
            if k == 3:
                return b, -1, np.array([b, a * a])

    def python_grown(a):
        p, n = np.array([a, 1.0]), 0
        for k in range(3):
            for j in range(3):
                p, n = p * 1.1, n + 1
                if p[0] * j > 1 + k:
                    return p, n
                if j == 2 and k == 1:
                    return p[::-1] * a, -1
        return p, n

    values = numbers(7, hi=2.0)
    x.from_numpy(values)
    check(run, loss, x)
    expected = 0.0
    for value in values:
        a, n, v = python_search(value, 0.7)
        p, k = python_grown(value)
        expected += a * n + v @ p * k
    loss[None] = 0.0
    run()
    assert np.isclose(loss[None], expected, rtol=1e-13)


UNROLLED = """
@ds.func
def first(a, b):
    for k in STATIC(range(4)):
        if a * k > b:
            return a * k
        if k == 3:
            return b
    return 0.0

@ds.kernel
def run():
    for i in x:
        if x[i] > 0.8:
            continue
        for d in STATIC(range(3)):
            if v[i][d] < 0.0:
                continue
            out[i] += v[i][d] * x[i] * (d + 1)
        for j in range(4):
            if x[j] < -0.7:
                break
            for d in STATIC(range(3)):
                out[i] += v[j][d] * x[i]
                if v[i][d] > 0.5:
                    break
                out[i] += x[j] ** 2
            out[i] += x[i] ** 3
        out[i] += first(x[i], v[i].x)
"""


def test_break_continue_and_return_in_unrolled_loops(cpu):
    ds = cpu
    ds.init(default_fp=ds.f64)
    x, v, loss = field(9), field(9, n=3), field()
    out, rolled = field(9), field(9)
    x.from_numpy(numbers(9))
    v.from_numpy(numbers(9, 3))
    space = {"ds": ds, "x": x, "v": v, "out": out}
    make(UNROLLED.replace("STATIC", "ds.static"), space)
    unrolled = space["run"]
    space = {**space, "out": rolled}
    make(UNROLLED.replace("STATIC", ""), space)
    unrolled()
    space["run"]()
    # What a loop adds to an element may be added up first: additions to fields have no order.
    np.testing.assert_allclose(out.to_numpy(), rolled.to_numpy(), rtol=1e-14)

    @ds.kernel
    def total():
        for i in out:
            loss[None] += out[i]

    def program():
        unrolled()
        total()

    check(program, loss, x, v, reset=[out])


def test_unrolled_loops_that_end_while_compiling(cpu):
    ds = cpu
    x, y = ds.field(ds.i32, 4), ds.field(ds.i32, 4)

    @ds.func
    def sum_below(n: ds.template()):
        s = 0
        for i in ds.static(range(9)):
            if ds.static(i == n):
                break
            s += i
        return s

    @ds.kernel
    def run(n: ds.i32) -> ds.i32:
        for k in ds.static(range(4)):
            for i in x:
                x[i] += 10**k
            if ds.static(k == 2):
                break
        s = sum_below(5)
        for k in ds.static(range(4)):
            if k == n:
                return s
            y[k] = 1
        return -1

    assert run(2) == 0 + 1 + 2 + 3 + 4
    assert x.to_numpy().tolist() == [111] * 4
    assert y.to_numpy().tolist() == [1, 1, 0, 0]
    assert run(7) == -1


def test_indices_are_evaluated_once(cpu):
    ds = cpu
    taken = ds.field(ds.i32, ())
    A, v = ds.Matrix.field(2, 2, ds.f64, 4), ds.Vector.field(2, ds.f64, 3)
    out = ds.field(ds.f64, 8)
    A.from_numpy(np.arange(16.0).reshape(4, 2, 2))

    @ds.func
    def take():
        return ds.atomic_add(taken[None], 1)

    @ds.kernel
    def run():
        out[0] = A[take()][0].y
        out[1] = A[take()][1][0]
        out[2] = A[take()][1, 1]
        w = ds.Vector([1.0, 2.0, 3.0, 4.0, 5.0])
        w[take()] += 10.0
        m = ds.Matrix([[1.0, 2.0], [3.0, 4.0]])
        m[take() - 4, 1] *= 10.0
        out[3], out[4] = w[3], m[0, 1]
        v[take() - 5].yx += ds.Vector([1.0, 2.0])
        out[5] = ds.Vector([5.0, 6.0])[take() - 6]

    run()
    assert taken[None] == 7
    assert out.to_numpy().tolist() == [1, 6, 11, 14, 20, 5, 0, 0]
    assert v.to_numpy().tolist() == [[2, 1], [0, 0], [0, 0]]


def test_a_random_index_is_drawn_once(cpu):
    ds = cpu
    right = ds.field(ds.i32, 500)

    @ds.kernel
    def run():
        for i in right:
            v = ds.Vector([1, 2, 3, 4])
            v[ds.random(ds.i32) & 3] += 10
            changed = 0
            for k in ds.static(range(4)):
                changed += int(v[k] == k + 11)
            right[i] = changed

    run()
    assert (right.to_numpy() == 1).all()


def test_a_list_times_an_integer_is_repeated(cpu):
    ds = cpu

    @ds.kernel
    def run(n: ds.template()) -> ds.types.vector(8, ds.f64):
        v = ds.Vector([1.0] * 3 + n * [2.0, 3.0])
        w = [1.0, 2.0] * 2.5
        return [v[0], v[2], v[3], v[4], v[5], v[6], len(v), w[1]]

    assert run(2).to_list() == [1, 1, 2, 3, 2, 3, 7, 5]


def test_a_constant_vector_given_to_a_func_is_a_local_there(cpu):
    ds = cpu

    @ds.func
    def changed(v):
        v.y *= 3.0
        v.xz += 1.0
        return v

    @ds.kernel
    def run() -> ds.types.vector(3, ds.f64):
        return changed(ds.Vector([1.0, 2.0, 3.0]))

    assert run().to_list() == [2, 6, 4]


def test_elements_of_a_constant_matrix_by_a_local(cpu):
    ds = cpu

    @ds.kernel
    def run(n: ds.i32) -> ds.types.vector(3, ds.f64):
        k = 1
        m = ds.Matrix([[1.0, 2.0], [3.0, 4.0]])
        return [ds.Matrix([[1.0, 2.0], [3.0, 4.0]])[k, 0], m[0, k], ds.Matrix([[5.0, 6.0]])[0, n]]

    assert run(1).to_list() == [3, 2, 6]


def test_slices_and_rows_are_assigned(cpu):
    ds = cpu
    ds.init(default_fp=ds.f64)
    A, v = ds.Matrix.field(3, 3, ds.f64, 2), ds.Vector.field(4, ds.f64, 2)
    Body = ds.types.struct(pos=ds.types.vector(3, ds.f64), turn=ds.types.matrix(2, 2, ds.f64))
    bodies = Body.field(shape=2)
    taken = ds.field(ds.i32, ())
    values = np.arange(18.0).reshape(2, 3, 3)

    @ds.kernel
    def run(k: ds.i32):
        m = A[0]
        w = ds.Vector([1.0, 2.0, 3.0, 4.0])
        w[1:3] = [7.0, 8.0]
        w[::-2] += ds.Vector([10.0, 20.0])
        m[k] = w[1:]
        m[:, 0] *= 2.0
        m[1:, 1:] = ds.Matrix([[-1.0, -2.0], [-3.0, -4.0]])
        m[ds.atomic_add(taken[None], 1), :2] -= 1.0
        A[0] = m
        A[1][k] += [1.0, 2.0, 3.0]
        A[1][1:, ::2] = 5.0
        v[1][:3] = w[1:]
        v[1][2:] -= 1.0
        body = Body(pos=v[1].xyz)
        body.pos[:2] += 100.0
        body.turn[1] = [k, 9.0]
        bodies[0] = body
        bodies[1].pos[1:] += body.pos[:2]
        bodies[1].turn[:, 1] = body.turn[1]

    A.from_numpy(values)
    run(1)
    m, w = values[0].copy(), np.array([1.0, 2.0, 3.0, 4.0])
    w[1:3] = 7, 8
    w[::-2] += 10, 20
    m[1] = w[1:]
    m[:, 0] *= 2
    m[1:, 1:] = [[-1, -2], [-3, -4]]
    m[0, :2] -= 1
    other = values[1].copy()
    other[1] += 1, 2, 3
    other[1:, ::2] = 5
    u = np.append(w[1:], 0.0)
    u[2:] -= 1
    pos = u[:3] + [100, 100, 0]
    assert A.to_numpy().tolist() == [m.tolist(), other.tolist()]
    assert v.to_numpy().tolist() == [[0] * 4, u.tolist()]
    assert taken[None] == 1
    assert bodies.pos.to_numpy().tolist() == [pos.tolist(), [0, *pos[:2]]]
    assert bodies.turn.to_numpy().tolist() == [[[0, 0], [1, 9]], [[0, 1], [0, 9]]]


def test_gradients_through_assigned_slices(cpu):
    ds = cpu
    ds.init(default_fp=ds.f64)
    A, v, out, loss = field(4, n=(3, 3)), field(4, n=3), field(4, n=(3, 3)), field()

    @ds.kernel
    def run():
        for i in A:
            m = A[i]
            for k in range(3):
                m[k, :2] = ds.sin(m[k, 1:]) * v[i][k]
                m[:, k] += v[i] * m[k]
            out[i][1] += m[2] * v[i]
            out[(i + 1) % 4][:, 0] += m[:, 2]

    @ds.kernel
    def total():
        for i in out:
            loss[None] += out[i].norm_sqr()

    def program():
        run()
        total()

    A.from_numpy(numbers(4, 3, 3))
    v.from_numpy(numbers(4, 3))
    check(program, loss, A, v, reset=[out])


def test_a_constant_vector_times_a_constant_matrix(cpu):
    ds = cpu
    m = ds.Matrix([[1.0, 2.0], [3.0, 4.0]])

    @ds.kernel
    def run(a: ds.f64) -> ds.types.vector(2, ds.f64):
        return a * (ds.Vector([5.0, 6.0]) @ ds.Matrix([[1.0, 2.0], [3.0, 4.0]]))

    assert run(1.0).to_list() == (ds.Vector([5.0, 6.0]) @ m).to_list() == [23, 34]
    assert (m @ ds.Vector([5.0, 6.0])).to_list() == [17, 39]


def test_a_matrix_is_unpacked_into_rows(cpu):
    ds = cpu

    @ds.kernel
    def run(b: ds.f64) -> ds.types.vector(3, ds.f64):
        m = ds.Matrix([[1.0, 2.0], [3.0, b]])
        u, v = m
        (p, q), (r, s) = ds.Matrix([[1.0, 2.0], [3.0, 4.0]])
        return [u.dot(v), p * 1000 + q * 100 + r * 10 + s, 7 if b > 0 else 0.5]

    assert run(5.0).to_list() == [13, 1234, 7]
    assert run(-5.0).to_list() == [-7, 1234, 0.5]
