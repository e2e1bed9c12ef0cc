"""Vectors and functions of shaders, under Taichi's names: `from diffsim import math as tm`."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

from diffsim import abs as abs
from diffsim import acos as acos
from diffsim import asin as asin
from diffsim import atan as atan
from diffsim import atan2 as atan2
def cconj(z: Any) -> Any:
    """Conjugate of a complex number, a vector (real, imaginary).

    Example:
        print(ds.math.cconj(ds.Vector([1.0, 2.0])))  # prints: [1.0, -2.0]
    """
def cdiv(z1: Any, z2: Any) -> Any:
    """Quotient of two complex numbers.

    Example:
        print(ds.math.cdiv(ds.Vector([1.0, 3.0]), ds.Vector([1.0, 1.0])))  # prints: [2.0, 1.0]
    """
from diffsim import ceil as ceil
def cexp(z: Any) -> Any:
    """Exponential of a complex number.

    Example:
        print(ds.math.cexp(ds.Vector([0.0, ds.math.pi])).x)  # prints: -1.0
    """
def cinv(z: Any) -> Any:
    """1 / z of a complex number.

    Example:
        print(ds.math.cinv(ds.Vector([0.0, 2.0])))  # prints: [0.0, -0.5]
    """
def clamp(x: Any, xmin: Any, xmax: Any) -> Any:
    """min(max(x, xmin), xmax), element by element; at both ends the derivative goes to x.

    Example:
        print(ds.math.clamp(1.5, 0.0, 1.0))  # prints: 1.0
        print(ds.math.clamp(ds.Vector([-1.0, 0.5]), 0.0, 1.0))  # prints: [0.0, 0.5]
    """
def clog(z: Any) -> Any:
    """Logarithm of a complex number, with an imaginary part in [-pi, pi].

    Example:
        print(ds.math.clog(ds.Vector([-1.0, 0.0])).y == ds.math.pi)  # prints: True
    """
def clz(x: Any) -> Any:
    """The number of zero bits above the highest 1 of x; the width of its type for 0.

    Example:
        print(ds.math.clz(1))  # prints: 31
    """
def cmul(z1: Any, z2: Any) -> Any:
    """Product of two complex numbers.

    Example:
        print(ds.math.cmul(ds.Vector([0.0, 1.0]), ds.Vector([0.0, 1.0])))  # prints: [-1.0, 0.0]
    """
from diffsim import cos as cos
from diffsim import cosh as cosh
def cpow(z: Any, n: Any) -> Any:
    """A complex number to a real power.

    Example:
        print(ds.math.cpow(ds.Vector([3.0, 0.0]), 2.0))  # prints: [9.0, 0.0]
    """
def cross(x: Any, y: Any) -> Any:
    """Vector product of two 3-vectors; of two 2-vectors its (scalar) third component.

    Example:
        x, y = ds.Vector([1.0, 0.0, 0.0]), ds.Vector([0.0, 1.0, 0.0])
        print(ds.math.cross(x, y))  # prints: [0.0, 0.0, 1.0]
    """
def csqrt(z: Any) -> Any:
    """Square root of a complex number, with a real part that is not negative; derivative 0 at 0.

    Example:
        print(ds.math.csqrt(ds.Vector([4.0, 0.0])))  # prints: [2.0, 0.0]
    """
def degrees(x: Any) -> Any:
    """The angle [rad] in degrees.

    Example:
        print(ds.math.degrees(ds.math.pi))  # prints: 180.0
    """
def determinant(m: Any) -> Any:
    """Determinant of a matrix up to 4 x 4.

    Example:
        print(ds.math.determinant(ds.Matrix([[1.0, 2.0], [3.0, 4.0]])))  # prints: -2.0
    """
def distance(x: Any, y: Any) -> Any:
    """length(x - y); derivative 0 where x = y.

    Example:
        print(ds.math.distance(ds.Vector([1.0, 1.0]), ds.Vector([4.0, 5.0])))  # prints: 5.0
    """
def dot(x: Any, y: Any) -> Any:
    """Scalar product of two vectors, product of two numbers.

    Example:
        print(ds.math.dot(ds.Vector([1.0, 2.0]), ds.Vector([3.0, 4.0])))  # prints: 11.0
    """
e: float
from diffsim import exp as exp
from diffsim import exp2 as exp2
def eye(n: Any) -> Any:
    """The n x n identity.

    Example:
        print(ds.math.eye(2))  # prints: [[1.0, 0.0], [0.0, 1.0]]
    """
from diffsim import floor as floor
def fract(x: Any) -> Any:
    """x - floor(x), element by element; the derivative is 1, at whole numbers (from the right) too.

    Example:
        print(ds.math.fract(-1.25))  # prints: 0.75
    """
inf: float
def inverse(mat: Any) -> Any:
    """Inverse of a matrix up to 4 x 4.

    Example:
        print(ds.math.inverse(ds.Matrix([[1.0, 2.0], [3.0, 4.0]])))  # prints: [[-2.0, 1.0], [1.5, -0.5]]
    """
def inversesqrt(x: Any) -> Any:
    """1 / sqrt(x).

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.rsqrt(4.0))  # prints: 0.5
    """
from diffsim import isinf as isinf
from diffsim import isnan as isnan
ivec2: TypeAlias = Vector[Literal[2], int]
"""The type of vectors of 2 elements of the default integer type, as `ds.init` chooses it.

Called, it makes one: `ivec2(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `ivec2.field(shape=8)` makes a field.

Example:
    print(ds.math.ivec2(1).shape)  # prints: (2,)
"""
ivec3: TypeAlias = Vector[Literal[3], int]
"""The type of vectors of 3 elements of the default integer type, as `ds.init` chooses it.

Called, it makes one: `ivec3(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `ivec3.field(shape=8)` makes a field.

Example:
    print(ds.math.ivec3(1).shape)  # prints: (3,)
"""
ivec4: TypeAlias = Vector[Literal[4], int]
"""The type of vectors of 4 elements of the default integer type, as `ds.init` chooses it.

Called, it makes one: `ivec4(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `ivec4.field(shape=8)` makes a field.

Example:
    print(ds.math.ivec4(1).shape)  # prints: (4,)
"""
def length(x: Any) -> Any:
    """sqrt(dot(x, x)), of a number its absolute value; derivative 0 at 0.

    Example:
        print(ds.math.length(ds.Vector([3.0, 4.0])))  # prints: 5.0
    """
from diffsim import log as log
from diffsim import log2 as log2
mat2: TypeAlias = Matrix[Literal[2], Literal[2], float]
"""The type of matrices of 2 x 2 elements of the default float type, as `ds.init` chooses it.

Called, it makes one: `mat2(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `mat2.field(shape=8)` makes a field.

Example:
    print(ds.math.mat2(1).shape)  # prints: (2, 2)
"""
mat3: TypeAlias = Matrix[Literal[3], Literal[3], float]
"""The type of matrices of 3 x 3 elements of the default float type, as `ds.init` chooses it.

Called, it makes one: `mat3(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `mat3.field(shape=8)` makes a field.

Example:
    print(ds.math.mat3(1).shape)  # prints: (3, 3)
"""
mat4: TypeAlias = Matrix[Literal[4], Literal[4], float]
"""The type of matrices of 4 x 4 elements of the default float type, as `ds.init` chooses it.

Called, it makes one: `mat4(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `mat4.field(shape=8)` makes a field.

Example:
    print(ds.math.mat4(1).shape)  # prints: (4, 4)
"""
from diffsim import max as max
from diffsim import min as min
def mix(x: Any, y: Any, a: Any) -> Any:
    """x * (1 - a) + y * a, element by element: x where a is 0, y where it is 1.

    Example:
        print(ds.math.mix(10.0, 20.0, 0.25))  # prints: 12.5
    """
def mod(x: Any, y: Any) -> Any:
    """Remainder with the sign of y, x - y * floor(x / y), element by element; whole of whole numbers.

    Example:
        print(ds.math.mod(-1.0, 4.0), ds.math.mod(5, 3))  # prints: 3.0 2
    """
nan: float
def noise(p: Any) -> Any:
    """Smooth noise between -1 and 1 at a number or a vector of 2 or 3: sums of sines that never repeat.

    The sines turn in incommensurate directions, so the noise has derivatives of all orders, on every device.

    Example:
        print(-1.0 <= ds.math.noise(ds.Vector([0.25, 0.5])) <= 1.0)  # prints: True
    """
def normalize(v: Any) -> Any:
    """v / length(v); not a number where the length is 0: use v.normalized(eps) there.

    Example:
        print(ds.math.normalize(ds.Vector([3.0, 4.0])))  # prints: [0.6, 0.8]
    """
pi: float
def popcnt(x: Any) -> Any:
    """The number of bits of x that are 1.

    Example:
        print(ds.math.popcnt(7))  # prints: 3
    """
from diffsim import pow as pow
quat: TypeAlias = Vector[Literal[4], float]
"""The type of vectors of 4 elements of the default float type, as `ds.init` chooses it.

Called, it makes one: `quat(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `quat.field(shape=8)` makes a field.

Example:
    print(ds.math.quat(1).shape)  # prints: (4,)
"""
def quat_angle(q: Any) -> Any:
    """The angle of a rotation [rad], from 0 to pi.

    Example:
        print(ds.math.quat_angle(ds.Vector([0.0, 1.0, 0.0, 0.0])) == ds.math.pi)  # prints: True
    """
def quat_axis(q: Any) -> Any:
    """The axis of a rotation by an angle from 0 to pi; 0, with derivative 0, where it turns nothing.

    Example:
        print(ds.math.quat_axis(ds.Vector([0.0, 1.0, 0.0, 0.0])))  # prints: [0.0, 1.0, 0.0]
    """
def quat_from_axis_angle(axis: Any, angle: Any) -> Any:
    """The rotation about an axis of length 1 by the angle [rad], by the right hand rule.

    Example:
        q = ds.math.quat_from_axis_angle(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        print(ds.round(ds.math.quat_rotate(q, ds.Vector([1.0, 0.0, 0.0]))))  # prints: [0.0, 1.0, 0.0]
    """
def quat_from_matrix(m: Any) -> Any:
    """The quaternion of a rotation's 3 x 3 matrix (S. W. Shepperd, 1978).

    Example:
        half_turn = ds.Matrix([[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
        print(ds.math.quat_from_matrix(half_turn))  # prints: [0.0, 0.0, 1.0, 0.0]
    """
def quat_identity() -> Any:
    """The quaternion (0, 0, 0, 1), which turns nothing.

    Example:
        q = ds.math.quat_identity()
        print(ds.math.quat_rotate(q, ds.Vector([1.0, 2.0, 3.0])))  # prints: [1.0, 2.0, 3.0]
    """
def quat_inverse(q: Any) -> Any:
    """The conjugate, which is the inverse of a quaternion of length 1.

    Example:
        print(ds.math.quat_inverse(ds.Vector([0.5, 0.5, 0.5, 0.5])))  # prints: [-0.5, -0.5, -0.5, 0.5]
    """
def quat_mul(p: Any, q: Any) -> Any:
    """The product of two quaternions: the rotation q, and then p.

    Example:
        q = ds.math.quat_from_axis_angle(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        half = ds.math.quat_mul(q, q)
        print(ds.round(ds.math.quat_rotate(half, ds.Vector([1.0, 2.0, 3.0]))))  # prints: [-1.0, -2.0, 3.0]
    """
def quat_rotate(q: Any, v: Any) -> Any:
    """The vector v after the rotation.

    Example:
        half_turn = ds.Vector([0.0, 0.0, 1.0, 0.0])  # about z
        print(ds.math.quat_rotate(half_turn, ds.Vector([1.0, 2.0, 3.0])))  # prints: [-1.0, -2.0, 3.0]
    """
def quat_rotate_inv(q: Any, v: Any) -> Any:
    """The vector v before the rotation.

    Example:
        q = ds.math.quat_from_axis_angle(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        print(ds.round(ds.math.quat_rotate_inv(q, ds.Vector([0.0, 1.0, 0.0]))))  # prints: [1.0, 0.0, 0.0]
    """
def quat_rpy(roll: Any, pitch: Any, yaw: Any) -> Any:
    """The rotation by roll about x, then pitch about y, then yaw about z [rad].

    Example:
        q = ds.math.quat_rpy(0.0, 0.0, ds.math.pi / 2)  # a yaw
        print(ds.round(ds.math.quat_rotate(q, ds.Vector([1.0, 0.0, 0.0]))))  # prints: [0.0, 1.0, 0.0]
    """
def quat_slerp(p: Any, q: Any, t: Any) -> Any:
    """The rotation on the way from p (t = 0) to q (t = 1), at constant speed along the shorter arc.

    Example:
        q = ds.math.quat_from_axis_angle(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        middle = ds.math.quat_slerp(ds.math.quat_identity(), q, 0.5)
        print(ds.round(ds.math.degrees(ds.math.quat_angle(middle))))  # prints: 45.0
    """
def quat_to_matrix(q: Any) -> Any:
    """The 3 x 3 matrix of the rotation.

    Example:
        half_turn = ds.Vector([0.0, 0.0, 1.0, 0.0])  # about z
        print(ds.math.quat_to_matrix(half_turn)[0, 0])  # prints: -1.0
    """
def radians(x: Any) -> Any:
    """The angle [degree] in radians.

    Example:
        print(ds.math.radians(180.0) == ds.math.pi)  # prints: True
    """
def reflect(x: Any, n: Any) -> Any:
    """x - 2 dot(n, x) n: the direction x after a reflection at a surface with the unit normal n.

    Example:
        print(ds.math.reflect(ds.Vector([1.0, -1.0]), ds.Vector([0.0, 1.0])))  # prints: [1.0, 1.0]
    """
def refract(x: Any, n: Any, eta: Any) -> Any:
    """The unit direction x after a refraction at a surface with the unit normal n, which points against x.

    eta x - (eta d + sqrt(k)) n with d = dot(n, x), k = 1 - eta^2 (1 - d^2); eta is the refractive index
    that it comes from over the one that it goes to. Where k < 0 (total reflection) it is 0 and so is its
    derivative; at k = 0 the root's derivative is 0.

    Example:
        down = ds.Vector([0.0, -1.0])  # into glass, at a right angle
        print(ds.math.refract(down, -down, 1.0 / 1.5))  # prints: [0.0, -1.0]
    """
def rot_by_axis(axis: Any, ang: Any) -> Any:
    """The 4 x 4 matrix of a turn about an axis, any 3-vector but 0, by the angle `ang` [rad].

    The turn is clockwise for one who looks against the axis, as in Taichi: for the right hand rule give
    -ang. (O. Rodrigues, Journal de mathematiques pures et appliquees 5, 1840.)

    Example:
        about_z = ds.math.rot_by_axis(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        print(ds.round(about_z @ ds.Vector([0.0, 1.0, 0.0, 1.0])))  # prints: [1.0, 0.0, 0.0, 1.0]
    """
def rot_yaw_pitch_roll(yaw: Any, pitch: Any, roll: Any) -> Any:
    """The 4 x 4 matrix that turns by yaw about y, then by pitch about x, then by roll about z [rad].

    Each turn is clockwise for one who looks against its axis, as in Taichi.

    Example:
        about_z = ds.math.rot_yaw_pitch_roll(0.0, 0.0, ds.math.pi / 2)
        print(ds.round(about_z @ ds.Vector([0.0, 1.0, 0.0, 1.0])))  # prints: [1.0, 0.0, 0.0, 1.0]
    """
def rotation2d(ang: Any) -> Any:
    """The 2 x 2 matrix of a counter-clockwise turn by the angle [rad].

    Example:
        turned = ds.math.rotation2d(ds.math.pi / 2) @ ds.Vector([1.0, 0.0])
        print(ds.round(turned))  # prints: [0.0, 1.0]
    """
def rotation3d(ang_x: Any, ang_y: Any, ang_z: Any) -> Any:
    """rot_yaw_pitch_roll(ang_z, ang_x, ang_y), which is what Taichi gives for these angles [rad].

    The 4 x 4 matrix turns by ang_z about y, then by ang_x about x, then by ang_y about z.

    Example:
        about_x = ds.math.rotation3d(ds.math.pi / 2, 0.0, 0.0)
        print(ds.round(about_x @ ds.Vector([0.0, 0.0, 1.0, 1.0])))  # prints: [0.0, 1.0, 0.0, 1.0]
    """
from diffsim import round as round
def scale(sx: Any, sy: Any, sz: Any) -> Any:
    """The 4 x 4 matrix that multiplies coordinates by (sx, sy, sz).

    Example:
        print(ds.math.scale(1.0, 2.0, 3.0) @ ds.Vector([1.0, 1.0, 1.0, 1.0]))  # prints: [1.0, 2.0, 3.0, 1.0]
    """
from diffsim import sign as sign
from diffsim import sin as sin
from diffsim import sinh as sinh
def smoothstep(edge0: Any, edge1: Any, x: Any) -> Any:
    """3 t^2 - 2 t^3 of t = clamp((x - edge0) / (edge1 - edge0), 0, 1), element by element.

    The derivative is 0 at the edges and beyond. Edges in the other order make it fall instead of rise.

    Example:
        print(ds.math.smoothstep(0.0, 1.0, 0.25))  # prints: 0.15625
    """
from diffsim import sqrt as sqrt
def step(edge: Any, x: Any) -> Any:
    """0 where x < edge, else 1, element by element; the derivative is 0 everywhere.

    Example:
        print(ds.math.step(0.5, ds.Vector([0.25, 0.5])))  # prints: [0.0, 1.0]
    """
from diffsim import tan as tan
from diffsim import tanh as tanh
transform: TypeAlias = Vector[Literal[7], float]
"""The type of vectors of 7 elements of the default float type, as `ds.init` chooses it.

Called, it makes one: `transform(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `transform.field(shape=8)` makes a field.

Example:
    print(ds.math.transform(1).shape)  # prints: (7,)
"""
def transform_get_rotation(t: Any) -> Any:
    """The quaternion of a transformation.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        print(ds.math.transform_get_rotation(t))  # prints: [0.0, 0.0, 1.0, 0.0]
    """
def transform_get_translation(t: Any) -> Any:
    """The translation of a transformation.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        print(ds.math.transform_get_translation(t))  # prints: [1.0, 2.0, 3.0]
    """
def transform_identity() -> Any:
    """The transformation that changes nothing.

    Example:
        print(ds.math.transform_identity())  # prints: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    """
def transform_inverse(t: Any) -> Any:
    """The transformation that undoes another one.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        back = ds.math.transform_inverse(t)
        print(ds.math.transform_point(back, ds.Vector([0.0, 2.0, 3.0])))  # prints: [1.0, 0.0, 0.0]
    """
def transform_multiply(a: Any, b: Any) -> Any:
    """The transformation b, and then a.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        twice = ds.math.transform_multiply(t, t)
        print(ds.math.transform_point(twice, ds.Vector([1.0, 0.0, 0.0])))  # prints: [1.0, 0.0, 6.0]
    """
def transform_point(t: Any, p: Any) -> Any:
    """The point p, turned and moved.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        print(ds.math.transform_point(t, ds.Vector([1.0, 0.0, 0.0])))  # prints: [0.0, 2.0, 3.0]
    """
def transform_vector(t: Any, v: Any) -> Any:
    """The vector v, turned.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        print(ds.math.transform_vector(t, ds.Vector([1.0, 0.0, 0.0])))  # prints: [-1.0, 0.0, 0.0]
    """
def translate(dx: Any, dy: Any, dz: Any) -> Any:
    """The 4 x 4 matrix that moves points (x, y, z, 1) by (dx, dy, dz).

    Example:
        origin = ds.Vector([0.0, 0.0, 0.0, 1.0])
        print(ds.math.translate(1.0, 2.0, 3.0) @ origin)  # prints: [1.0, 2.0, 3.0, 1.0]
    """
from diffsim import trunc as trunc
uvec2: TypeAlias = Vector[Literal[2], int]
"""The type of vectors of 2 elements of the default integer, unsigned type, as `ds.init` chooses it.

Called, it makes one: `uvec2(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `uvec2.field(shape=8)` makes a field.

Example:
    print(ds.math.uvec2(1).shape)  # prints: (2,)
"""
uvec3: TypeAlias = Vector[Literal[3], int]
"""The type of vectors of 3 elements of the default integer, unsigned type, as `ds.init` chooses it.

Called, it makes one: `uvec3(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `uvec3.field(shape=8)` makes a field.

Example:
    print(ds.math.uvec3(1).shape)  # prints: (3,)
"""
uvec4: TypeAlias = Vector[Literal[4], int]
"""The type of vectors of 4 elements of the default integer, unsigned type, as `ds.init` chooses it.

Called, it makes one: `uvec4(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `uvec4.field(shape=8)` makes a field.

Example:
    print(ds.math.uvec4(1).shape)  # prints: (4,)
"""
def vdir(ang: Any) -> Any:
    """The unit 2-vector (cos, sin) of the angle [rad].

    Example:
        print(ds.math.vdir(0.0))  # prints: [1.0, 0.0]
    """
vec2: TypeAlias = Vector[Literal[2], float]
"""The type of vectors of 2 elements of the default float type, as `ds.init` chooses it.

Called, it makes one: `vec2(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `vec2.field(shape=8)` makes a field.

Example:
    print(ds.math.vec2(1).shape)  # prints: (2,)
"""
vec3: TypeAlias = Vector[Literal[3], float]
"""The type of vectors of 3 elements of the default float type, as `ds.init` chooses it.

Called, it makes one: `vec3(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `vec3.field(shape=8)` makes a field.

Example:
    print(ds.math.vec3(1).shape)  # prints: (3,)
"""
vec4: TypeAlias = Vector[Literal[4], float]
"""The type of vectors of 4 elements of the default float type, as `ds.init` chooses it.

Called, it makes one: `vec4(...)` takes the elements in order, or one for all. It annotates
arguments, results and members; `vec4.field(shape=8)` makes a field.

Example:
    print(ds.math.vec4(1).shape)  # prints: (4,)
"""

__all__ = [
    "acos",
    "asin",
    "atan",
    "atan2",
    "cconj",
    "cdiv",
    "ceil",
    "cexp",
    "cinv",
    "clamp",
    "clog",
    "clz",
    "cmul",
    "cos",
    "cosh",
    "cpow",
    "cross",
    "csqrt",
    "degrees",
    "determinant",
    "distance",
    "dot",
    "e",
    "exp",
    "exp2",
    "eye",
    "floor",
    "fract",
    "inf",
    "inverse",
    "inversesqrt",
    "isinf",
    "isnan",
    "ivec2",
    "ivec3",
    "ivec4",
    "length",
    "log",
    "log2",
    "mat2",
    "mat3",
    "mat4",
    "mix",
    "mod",
    "nan",
    "noise",
    "normalize",
    "pi",
    "popcnt",
    "quat",
    "quat_angle",
    "quat_axis",
    "quat_from_axis_angle",
    "quat_from_matrix",
    "quat_identity",
    "quat_inverse",
    "quat_mul",
    "quat_rotate",
    "quat_rotate_inv",
    "quat_rpy",
    "quat_slerp",
    "quat_to_matrix",
    "radians",
    "reflect",
    "refract",
    "rot_by_axis",
    "rot_yaw_pitch_roll",
    "rotation2d",
    "rotation3d",
    "scale",
    "sign",
    "sin",
    "sinh",
    "smoothstep",
    "sqrt",
    "step",
    "tan",
    "tanh",
    "transform",
    "transform_get_rotation",
    "transform_get_translation",
    "transform_identity",
    "transform_inverse",
    "transform_multiply",
    "transform_point",
    "transform_vector",
    "translate",
    "trunc",
    "uvec2",
    "uvec3",
    "uvec4",
    "vdir",
    "vec2",
    "vec3",
    "vec4",
]
