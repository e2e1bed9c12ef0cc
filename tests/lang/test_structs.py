"""Structs: members, fields of them, methods, and gradients through all of it."""

import dataclasses

import numpy as np
import pytest

import diffsim as ds

vec2 = ds.types.vector(2, ds.f64)


@ds.dataclass
class Body:
    mass: ds.f64
    vel: vec2

    @ds.func
    def energy(self):
        return 0.5 * self.mass * self.vel.dot(self.vel)

    @ds.func
    def push(self, f, dt: ds.f64):
        self.vel += dt / self.mass * f


@ds.dataclass
class Particle:
    pos: vec2
    body: Body
    kind: ds.i32


def make(n=5, grad=True):
    p = Particle.field(shape=n, needs_grad=grad)
    rng = np.random.default_rng(3)
    p.pos.from_numpy(rng.normal(size=(n, 2)))
    p.body.vel.from_numpy(rng.normal(size=(n, 2)))
    p.body.mass.from_numpy(rng.uniform(1, 2, size=n))
    p.kind.from_numpy(np.arange(n, dtype=np.int32) % 2)
    return p


def scalar(grad=True):
    return ds.field(ds.f64, (), needs_grad=grad)


class TestInPython:
    def test_types_and_values(self):
        p = Particle(pos=[1, 2], body=Body(3.0, [4, 5]))
        assert p.kind == 0
        assert p.body.mass == 3.0
        assert p.body.vel[1] == 5
        p.body.mass = 7
        assert p.body.mass == 7.0
        assert repr(Body(1.0, [2, 3])).startswith("Body(mass=1.0, vel=")
        with pytest.raises(ds.ArgumentError, match="no member poss"):
            Particle(poss=1)
        with pytest.raises(ds.ArgumentError, match="3 members, 4 values"):
            Particle(1, 2, 3, 4)
        with pytest.raises(ds.ArgumentError, match="is a Body, not the number 3"):
            Particle(body=3)
        with pytest.raises(ds.ArgumentError, match="vel of Body"):
            Body(vel=[1, 2, 3])

    def test_elements_read_and_write_the_field(self):
        p = make()
        p[1].body.mass = 9.0
        assert p.body.mass[1] == 9.0
        p[2] = Particle(pos=[1, 2], body=Body(3.0, [4, 5]), kind=6)
        assert p.pos[2][1] == 2
        assert p[2].body.vel[0] == 4
        assert p.kind[2] == 6
        p[3] = p[2]
        assert p.kind[3] == 6
        assert p[3].to_dict()["body"]["mass"] == 3.0
        with pytest.raises(ds.AccessError, match="index 7"):
            p[7]
        with pytest.raises(ds.FieldError, match="give all members"):
            p[0] = {"pos": [1, 2]}
        with pytest.raises(ds.FieldError, match="cannot be replaced"):
            p.pos = 3

    def test_whole_contents(self):
        p, q = make(), make()
        q.fill(0)
        assert q.pos.to_numpy().any() == False  # noqa: E712
        q.copy_from(p)
        got = q.to_numpy()
        np.testing.assert_array_equal(got["body"]["vel"], p.body.vel.to_numpy())
        q.from_numpy({"kind": np.full(5, 3, np.int32)})
        assert q.kind[4] == 3
        q.fill(Particle(pos=[1, 2], body=Body(3.0, [4, 5])))
        assert q.body.vel[4][1] == 5
        with pytest.raises(ds.FieldError, match="dictionary of its members"):
            q.from_numpy({"poss": np.zeros(5)})

    def test_gradient_fields(self):
        p = make()
        assert p.grad.pos is p.pos.grad
        assert p.grad.body.mass is p.body.mass.grad
        assert not hasattr(p.grad, "kind")
        assert Particle.field(shape=2).grad is None
        with pytest.raises(ds.FieldError, match="no member of struct can have a gradient"):
            ds.Struct.field({"a": ds.i32}, shape=2, needs_grad=True)

    def test_layout_trees(self):
        p = ds.Struct.field({"a": ds.f32, "v": vec2}, needs_grad=True)
        ds.root.dense(ds.ij, (3, 4)).place(p)
        assert p.shape == p.v.shape == p.grad.a.shape == (3, 4)

    @pytest.mark.parametrize("member", ["shape", "grad", "_x", "keys"])
    def test_names_that_members_can_not_have(self, member):
        with pytest.raises(ds.ArgumentError, match="cannot be called"):
            ds.types.struct(**{member: ds.f32})

    def test_bad_definitions(self):
        with pytest.raises(ds.ArgumentError, match="no members"):
            ds.types.struct()
        with pytest.raises(ds.ArgumentError, match=r"A\.__init__ would never be called"):

            @ds.dataclass
            class A:
                x: ds.f32

                def __init__(self):
                    self.x = 1

        with pytest.raises(ds.ArgumentError, match="default value"):

            @ds.dataclass
            class B:
                x: ds.f32 = 1.0


class TestInheritance:
    def test_members_of_the_parents_are_first_as_in_dataclasses(self):
        class Plain:
            charge: ds.f64
            mass: ds.f32

        class PythonsBody:
            mass: float
            vel: float

        class PythonsCharged(PythonsBody, Plain):
            spin: int
            vel: float

        @ds.dataclass
        class Charged(Body, Plain):
            spin: ds.i32
            vel: ds.types.vector(3, ds.f32)

        as_python_has_it = [f.name for f in dataclasses.fields(everything_of(PythonsCharged))]
        assert list(Charged.members) == as_python_has_it == ["charge", "mass", "vel", "spin"]
        assert Charged.members["mass"] is ds.f64
        assert Charged.members["vel"] is ds.types.vector(3, ds.f32)
        assert set(Charged.methods) == {"energy", "push"}
        assert list(Body.members) == ["mass", "vel"]

    def test_of_types_without_a_class(self):
        Point = ds.types.struct(pos=vec2)

        @ds.dataclass
        class Named(Point):
            number: ds.i32

        @ds.dataclass
        class Deeper(Named):
            more: ds.f32

        assert list(Deeper.members) == ["pos", "number", "more"]
        assert Deeper([1, 2], 3).pos.y == 2.0

    def test_methods_are_inherited_and_replaced(self):
        class Base:
            k: ds.f64

            @ds.func
            def first(self):
                return self.k

            @ds.func
            def both(self):
                return 10.0 * self.first() + self.k

        @ds.dataclass
        class Kept(Base):
            pass

        @ds.dataclass
        class Replaced(Kept):
            own: ds.f64

            @ds.func
            def first(self):
                return self.own

        out = ds.field(ds.f64, 2)

        @ds.kernel
        def run():
            kept = Kept(2.0)
            out[0] = kept.both()
            replaced = Replaced(2.0, 3.0)
            out[1] = replaced.both()

        run()
        assert out.to_numpy().tolist() == [22.0, 32.0]

    def test_what_can_not_be_inherited(self):
        class Default:
            k: ds.f64 = 1.0

        class Special:
            k: ds.f64

            def __len__(self):
                return 1

        for parent, problem in [
            (Default, "Default.k has a default value"),
            (Special, r"Special\.__len__ would never be called"),
        ]:
            with pytest.raises(ds.ArgumentError, match=problem):
                ds.dataclass(type("Child", (parent,), {"__annotations__": {"b": ds.f32}}))
        with pytest.raises(ds.ArgumentError, match=r"Child.mass has a default value"):

            @ds.dataclass
            class Child(Body):
                mass = 2.0

        with pytest.raises(ds.ArgumentError, match="a member of Hiding cannot be called mass"):

            @ds.dataclass
            class Hiding(Body):
                @ds.func
                def mass(self):
                    return 1.0

    def test_advice(self):
        @ds.dataclass
        class Heavy(Body):
            @ds.func
            def energy(self):
                return 2.0 * super().energy()

        class Bare(Body):
            pass

        @ds.kernel
        def run():
            Heavy(1.0).energy()

        @ds.kernel
        def make():
            b = Bare(1.0)
            b.push(0.0, 1.0)

        with pytest.raises(ds.KernelSyntaxError, match=r"as a @ds.func outside the classes"):
            run()
        with pytest.raises(ds.KernelSyntaxError, match=r"decorate Bare with @ds.dataclass"):
            make()


def everything_of(cls):
    """A class and its parents as Python's own dataclasses."""
    for part in reversed(cls.__mro__[:-1]):
        dataclasses.dataclass(part)
    return cls


class TestInKernels:
    def test_members_of_elements(self):
        p = make()
        before = p.to_numpy()

        @ds.kernel
        def step(dt: ds.f64):
            for i in p:
                p[i].pos += dt * p[i].body.vel
                p[i].body.vel.y -= 9.8 * dt
                p[i].body.vel[0] *= 0.5
                p[i].kind = 1 - p[i].kind

        step(0.1)
        after = p.to_numpy()
        v = before["body"]["vel"]
        np.testing.assert_allclose(after["pos"], before["pos"] + 0.1 * v, rtol=1e-15)
        np.testing.assert_allclose(after["body"]["vel"][:, 0], 0.5 * v[:, 0], rtol=1e-15)
        np.testing.assert_allclose(after["body"]["vel"][:, 1], v[:, 1] - 0.98, rtol=1e-15)
        np.testing.assert_array_equal(after["kind"], 1 - before["kind"])

    def test_locals_in_branches_and_loops(self):
        p, out = make(), ds.field(ds.f64, 5)

        @ds.kernel
        def run(n: ds.i32):
            for i in p:
                b = p[i].body
                if p[i].kind == 1:
                    b = Body(mass=2 * b.mass, vel=-b.vel)
                k = 0
                while k < n:
                    b.vel[1] += 1.0
                    b.mass *= 1.5
                    k += 1
                for _ in range(n):
                    b.push(ds.Vector([1.0, 0.0]), 0.1)
                out[i] = b.energy()
                p[i].body = b

        before = p.to_numpy()
        run(3)
        m, v = before["body"]["mass"].copy(), before["body"]["vel"].copy()
        odd = before["kind"] == 1
        m[odd] *= 2
        v[odd] *= -1
        for _ in range(3):
            v[:, 1] += 1
            m *= 1.5
        for _ in range(3):
            v[:, 0] += 0.1 / m
        np.testing.assert_allclose(p.body.mass.to_numpy(), m, rtol=1e-14)
        np.testing.assert_allclose(p.body.vel.to_numpy(), v, rtol=1e-14)
        np.testing.assert_allclose(out.to_numpy(), 0.5 * m * (v**2).sum(1), rtol=1e-14)

    def test_funcs_take_and_return_structs(self):
        p = make()

        @ds.func
        def lighter(b: Body, by):
            b.mass /= by  # its own copy
            return b

        @ds.func
        def pick(q, w):
            r = q
            if w > 1.5:
                r.pos *= 2.0
            return r

        @ds.kernel
        def run():
            for i in p:
                q = p[i]
                half = lighter(q.body, 2.0)
                p[i] = pick(q, q.body.mass)
                p[i].body.mass += half.mass

        before = p.to_numpy()
        run()
        m = before["body"]["mass"]
        np.testing.assert_allclose(p.body.mass.to_numpy(), 1.5 * m, rtol=1e-15)
        scale = np.where(m > 1.5, 2.0, 1.0)[:, None]
        np.testing.assert_allclose(p.pos.to_numpy(), before["pos"] * scale, rtol=1e-15)

    def test_a_method_that_changes_an_element(self):
        p = make()

        @ds.kernel
        def run():
            for i in p:
                p[i].body.push(ds.Vector([0.0, 2.0]), 0.5)

        before = p.to_numpy()["body"]
        run()
        want = before["vel"] + np.array([0, 1.0]) / before["mass"][:, None]
        np.testing.assert_allclose(p.body.vel.to_numpy(), want, rtol=1e-15)

    def test_locals_of_the_kernel_seen_by_several_tasks(self):
        p, out = make(), ds.field(ds.f64, 5)

        @ds.kernel
        def run():
            total = Body(mass=0.0, vel=[0.0, 0.0])
            for i in p:
                total.mass += p[i].body.mass
                total.vel += p[i].body.mass * p[i].body.vel
            total.vel /= total.mass
            for i in p:
                out[i] = (p[i].body.vel - total.vel).norm()

        run()
        b = p.to_numpy()["body"]
        mean = (b["mass"][:, None] * b["vel"]).sum(0) / b["mass"].sum()
        want = np.linalg.norm(b["vel"] - mean, axis=1)
        np.testing.assert_allclose(out.to_numpy(), want, rtol=1e-14)

    def test_constants_templates_and_objects(self):
        fixed = Body(2.0, [3.0, 4.0])
        out = ds.field(ds.f64, ())

        @ds.kernel
        def run(p: ds.template()):
            b = fixed
            b.mass += 1.0
            out[None] = b.energy() + p[1].body.mass + p.shape[0]

        p, q = make(), make(3)
        q[1].body.mass = 100.0
        run(p)
        assert out[None] == pytest.approx(0.5 * 3 * 25 + p[1].body.mass + 5)
        run(q)
        assert out[None] == pytest.approx(0.5 * 3 * 25 + 103)

        @ds.data_oriented
        class World:
            def __init__(self):
                self.bodies = Body.field(shape=4)

            @ds.kernel
            def fill(self):
                for i in self.bodies:
                    self.bodies[i] = Body(1.0 * i, [0.0, 1.0])

        w = World()
        w.fill()
        np.testing.assert_array_equal(w.bodies.mass.to_numpy(), [0, 1, 2, 3])

    def test_a_field_made_anew_is_compiled_anew(self):
        space = {"ds": ds}
        space["p"] = ds.Struct.field({"a": ds.f64}, shape=2)

        p = space["p"]

        @ds.kernel
        def run():
            for i in p:
                p[i].a += 1.0

        run()
        p = ds.Struct.field({"a": ds.f64}, shape=3)
        run()
        np.testing.assert_array_equal(p.a.to_numpy(), [1, 1, 1])


class TestGradients:
    def test_against_differences(self):
        p, loss = make(), scalar()

        @ds.kernel
        def cost(n: ds.i32):
            for i in p:
                q = p[i]
                for k in range(n):
                    q.body.push(-q.pos, 0.1)
                    q.pos += 0.1 * q.body.vel
                    if q.pos.x > 0.2:
                        q.body = Body(q.body.mass * 1.1, q.body.vel * 0.9)
                loss[None] += q.body.energy() + q.pos.norm_sqr()

        def value():
            loss[None] = 0
            cost(6)
            return loss[None]

        with ds.Tape(loss):
            cost(6)
        for f in (p.pos, p.body.vel, p.body.mass):
            a = f.to_numpy()
            got = f.grad.to_numpy()
            for index in np.ndindex(a.shape):
                sides = []
                for h in (1e-6, -1e-6):
                    b = a.copy()
                    b[index] += h
                    f.from_numpy(b)
                    sides.append(value())
                f.from_numpy(a)
                assert got[index] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-6, abs=1e-8)

    def test_through_fields_of_structs_step_by_step(self):
        n = 4
        p = ds.Struct.field({"x": ds.f64, "v": ds.f64}, shape=n + 1, needs_grad=True)
        loss = scalar()
        p[0].x, p[0].v = 1.0, 0.5

        @ds.kernel
        def step(t: ds.i32):
            p[t + 1].v = p[t].v - 0.1 * p[t].x
            p[t + 1].x = p[t].x + 0.1 * p[t].v

        @ds.kernel
        def end():
            loss[None] = p[n].x ** 2

        with ds.Tape(loss):
            for t in range(n):
                step(t)
            end()
        m = np.linalg.matrix_power(np.array([[1, 0.1], [-0.1, 1]]), n)
        x = m @ [1.0, 0.5]
        np.testing.assert_allclose([p.grad[0].x, p.grad[0].v], 2 * x[0] * m[0], rtol=1e-13)


def test_a_method_writes_only_what_it_changes(cpu):
    @ds.dataclass
    class Inner:
        a: ds.f64
        b: ds.f64

    @ds.dataclass
    class Mass:
        pos: ds.f64
        vel: ds.f64
        inner: Inner

        @ds.func
        def kick(self, force):
            self.vel += force
            if force > 3.5:
                self.inner.b = self.vel

        @ds.func
        def swap(self):
            self.pos, self.vel = self.vel, self.pos

    masses = Mass.field(shape=3, needs_grad=True)

    @ds.kernel
    def kick():
        for i in masses:
            masses[i].kick(masses[(i + 1) % 3].pos * masses[(i + 2) % 3].inner.a)

    @ds.kernel
    def swap():
        for i in masses:
            masses[i].swap()

    masses.pos.from_numpy(np.array([1.0, 2.0, 3.0]))
    masses.inner.a.fill(2.0)
    kick()
    stored = {
        line.split()[1].partition("[")[0] for line in kick.ir().splitlines() if "store" in line
    }
    assert stored == {"masses.vel", "masses.inner.b"}
    assert masses.vel.to_numpy().tolist() == [4.0, 6.0, 2.0]
    assert masses.inner.b.to_numpy().tolist() == [4.0, 6.0, 0.0]
    # Lanes read each other's positions, which nobody writes.
    masses.vel.grad.fill(1.0)
    kick.grad()
    assert masses.pos.grad.to_numpy().tolist() == [2.0, 2.0, 2.0]
    swap()
    assert masses.pos.to_numpy().tolist() == [4.0, 6.0, 2.0]
    assert masses.vel.to_numpy().tolist() == [1.0, 2.0, 3.0]


class TestUndecoratedMethods:
    """Plain functions as methods: the same numbers in Python and in kernels."""

    def make(self):
        @ds.dataclass
        class Spring:
            x: ds.f64
            k: ds.f64

            def energy(self, scale=1.0):
                return 0.5 * scale * self.k * self.x**2

            def pull(self, by):
                self.x += by

            @ds.func
            def twice(self):
                return self.energy(2.0)

        return Spring

    def test_in_python_and_kernels(self, cpu):
        springs = self.make().field(shape=3, needs_grad=True)
        springs.x.from_numpy(np.array([0.5, -1.0, 2.0]))
        springs.k.from_numpy(np.array([1.0, 2.0, 3.0]))
        total = scalar()

        @ds.kernel
        def add():
            for i in springs:
                s = springs[i]
                for _ in range(2):  # a loop whose local a method changes
                    s.pull(0.25)
                total[None] += s.energy() + s.twice()

        with ds.Tape(total):
            add()
        stretched = [s + 0.5 for s in (0.5, -1.0, 2.0)]
        want = [1.5 * k * x**2 for k, x in zip((1.0, 2.0, 3.0), stretched, strict=True)]
        assert total[None] == pytest.approx(sum(want), rel=1e-14)
        grads = [3 * k * x for k, x in zip((1.0, 2.0, 3.0), stretched, strict=True)]
        np.testing.assert_allclose(springs.x.grad.to_numpy(), grads, rtol=1e-14)
        # In Python: of a struct, and of an element, which the method changes in the field.
        one = self.make()(x=3.0, k=2.0)
        one.pull(by=1.0)
        assert (one.x, one.energy()) == (4.0, 16.0)
        springs[2].pull(1.0)
        assert (springs[2].x, springs[2].energy(scale=2.0)) == (3.0, 27.0)
        with pytest.raises(ds.DiffsimError, match=r"inside \w+ kernels|inside kernels"):
            one.twice()
        with pytest.raises(ds.UnknownAttributeError, match=r"has no \.energy"):
            one.energy = 1.0

    def test_of_a_nameless_type(self, cpu):
        def area(self):
            return self.a**2

        square = ds.types.struct(a=ds.f64, __struct_methods={"area": area})
        assert square is ds.types.struct(a=ds.f64, __struct_methods={"area": area})
        assert square is not ds.types.struct(a=ds.f64)

        @ds.kernel
        def measure(a: ds.f64) -> ds.f64:
            s = square(a=a)
            return s.area()

        assert measure(3.0) == square(3.0).area() == 9.0
        ds.init(arch=ds.cpu, strict=True)
        with pytest.raises(ds.KernelSyntaxError, match="area is a Python function"):
            measure(3.0)
        with pytest.raises(ds.ArgumentError, match="a method of a struct is a function, not 3"):
            ds.types.struct(a=ds.f64, __struct_methods={"area": 3})
        with pytest.raises(ds.ArgumentError, match="takes values, and f64 is a type"):
            ds.Struct(a=ds.f64)


def test_quoted_types_of_a_function(cpu):
    local = ds.types.vector(2, ds.f64)

    @ds.dataclass
    class Placed:
        at: "local"

    assert Placed(at=[1.0, 2.0]).at.to_list() == [1.0, 2.0]
    with pytest.raises(ds.ArgumentError, match="name missing, which is not defined"):

        @ds.dataclass
        class Unknown:
            at: "missing"  # noqa: F821
            other: "local"
