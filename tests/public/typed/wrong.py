"""Mistakes that type checkers find, one in each line that says so."""

from typing import Literal

import diffsim as ds

vec2 = ds.types.vector[Literal[2], ds.f32]
vec3 = ds.types.vector[Literal[3], ds.f32]


@ds.dataclass
class Body:
    mass: ds.f32


@ds.kernel
def total(t: ds.i32, v: vec3) -> None:
    pass


x = ds.field(ds.f32, shape=8, needs_grad=True)
v = vec3(1, 2, 3)
ds.init(defualt_fp=ds.f64)  # wrong
total.gard()  # wrong
ds.sin(1, 2, 3)  # wrong
total("a", v)  # wrong
total(1, v, 2)  # wrong
total(1, vec2(1, 2))  # wrong
total.grad(1)  # wrong
x.to_nunpy()  # wrong
x.grad.fil(0)  # wrong
x + 1.0  # wrong
Body(mas=1.0)  # wrong
Body(mass="heavy")  # wrong
ds.fiel(ds.f32)  # wrong
ds.math.nomalize(v)  # wrong
ds.select(cond=True, x1=1.0)  # wrong
ds.field(ds.f32, shpe=3)  # wrong
ds.Tape(loss=3)  # wrong
ds.optim.Adam(x, learning=0.1)  # wrong
ds.cast(1.0, "f32")  # wrong
ds.ad.gradchek(total)  # wrong
