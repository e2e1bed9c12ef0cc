"""A program as users write it, in the terms of type checkers."""

from typing import Literal

import numpy as np

import diffsim as ds
from diffsim.math import vec2

ds.init(arch=ds.cpu, default_fp=ds.f32, debug=False)
vec3 = ds.types.vector[Literal[3], ds.f32]
mat2 = ds.types.matrix[Literal[2], Literal[2], ds.f32]


@ds.dataclass
class Body:
    pos: vec3
    mass: ds.f32


@ds.dataclass
class Planet(ds.Struct):
    mass: ds.f32
    moons: ds.i32


pair = ds.types.vector(2, ds.f32)  # not in annotations
pairs = [pair.field(shape=3), ds.field(pair, shape=3), pair.ndarray(shape=2)]
pairs[0][0] = pair(1.0, 2.0)
bodies = ds.field(Body, shape=4)
planets = Planet.field(shape=4, needs_grad=True)
planets[0] = Planet(mass=1.0, moons=2)
b = Body(pos=vec3(1.0, 2.0, 3.0), mass=2.0)
x = ds.field(ds.f32, shape=8, needs_grad=True)
v = ds.Vector.field(3, ds.f32, shape=8)
w = vec3.field(shape=8, needs_grad=True)
loss = ds.field(ds.f32, shape=(), needs_grad=True)
size: int = b.pos.n
masses = bodies.mass.to_numpy()


@ds.func
def square(a: ds.f32) -> ds.f32:
    return a * a


@ds.kernel
def step(
    t: ds.i32,
    a: ds.types.ndarray,
    c: ds.types.ndarray[ds.f32, Literal[1]],
    f: ds.template,
    dt: ds.f32,
    g: vec3,
    h: vec2,
) -> ds.f32:
    s = 0.0
    for i in range(8):
        s += square(x[i]) * dt + a[i] + f[i] + c[i] + g[0] + h.x
        v[i] = ds.Vector([dt, dt, 1.0])
        w[i] += ds.math.normalize(v[i]) * ds.select(t > 2, 1.0, ds.sin(dt))
    for i, j in ds.ndrange(3, 3):
        ds.atomic_add(x[i + j], 0.5)
    for k in ds.static(range(3)):
        s += ds.cast(k, ds.f32)
    return s


@ds.kernel
def total() -> None:
    for i in x:
        loss[None] += x[i] ** 2


@ds.data_oriented
class Solver:
    def __init__(self, n: int) -> None:
        self.u = ds.field(ds.f32, shape=n)

    @ds.kernel
    def advance(self, dt: ds.f32) -> None:
        for i in self.u:
            self.u[i] += dt


with ds.Tape(loss) as tape:
    total()
total.grad()
solver = Solver(8)
solver.advance(0.1)
step(
    1, np.zeros(8, np.float32), ds.ndarray(ds.f32, 8), x, 0.1, vec3(1, 2, 3), ds.Vector([1.0, 2.0])
)
total_of: float = x.grad.to_numpy().sum()
optimizer = ds.optim.Adam([x], lr=0.1)
optimizer.step()
ds.ad.gradcheck(total, [x], [loss])
u = ds.Vector([1.0, 2.0]) + ds.Matrix([[1.0, 0.0], [0.0, 1.0]]) @ ds.Vector([3.0, 4.0])
print(u.norm(), u.xy, ds.sin(1.0), ds.root.dense(ds.ij, 4).shape, tape.stats())
