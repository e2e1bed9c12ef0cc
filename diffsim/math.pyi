"""Vectors and functions of shaders, under Taichi's names: `from diffsim import math as tm`."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """Conjugate of a complex number, a vector (real, imaginary)."""
def cdiv(z1: Any, z2: Any) -> Any:
    """Quotient of two complex numbers."""
from diffsim import ceil as ceil
def cexp(z: Any) -> Any:
    """Exponential of a complex number."""
def cinv(z: Any) -> Any:
    """1 / z of a complex number."""
def clamp(x: Any, xmin: Any, xmax: Any) -> Any:
    """min(max(x, xmin), xmax), element by element; at both ends the derivative goes to x."""
def clog(z: Any) -> Any:
    """Logarithm of a complex number, with an imaginary part in [-pi, pi]."""
def clz(x: Any) -> Any:
    """The number of zero bits above the highest 1 of x; the width of its type for 0."""
def cmul(z1: Any, z2: Any) -> Any:
    """Product of two complex numbers."""
from diffsim import cos as cos
from diffsim import cosh as cosh
def cpow(z: Any, n: Any) -> Any:
    """A complex number to a real power."""
def cross(x: Any, y: Any) -> Any:
    """Vector product of two 3-vectors; of two 2-vectors its (scalar) third component."""
def csqrt(z: Any) -> Any:
    """Square root of a complex number, with a real part that is not negative; derivative 0 at 0."""
def degrees(x: Any) -> Any:
    """The angle [rad] in degrees."""
def determinant(m: Any) -> Any:
    """Determinant of a matrix up to 4 x 4."""
def distance(x: Any, y: Any) -> Any:
    """length(x - y); derivative 0 where x = y."""
def dot(x: Any, y: Any) -> Any:
    """Scalar product of two vectors, product of two numbers."""
e: float
from diffsim import exp as exp
from diffsim import exp2 as exp2
def eye(n: Any) -> Any:
    """The n x n identity."""
from diffsim import floor as floor
def fract(x: Any) -> Any:
    """x - floor(x), element by element; the derivative is 1, at whole numbers (from the right) too."""
inf: float
def inverse(mat: Any) -> Any:
    """Inverse of a matrix up to 4 x 4."""
def inversesqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
from diffsim import isinf as isinf
from diffsim import isnan as isnan
ivec2: TypeAlias = Vector[Literal[2], int]
ivec3: TypeAlias = Vector[Literal[3], int]
ivec4: TypeAlias = Vector[Literal[4], int]
def length(x: Any) -> Any:
    """sqrt(dot(x, x)), of a number its absolute value; derivative 0 at 0."""
from diffsim import log as log
from diffsim import log2 as log2
mat2: TypeAlias = Matrix[Literal[2], Literal[2], float]
mat3: TypeAlias = Matrix[Literal[3], Literal[3], float]
mat4: TypeAlias = Matrix[Literal[4], Literal[4], float]
from diffsim import max as max
from diffsim import min as min
def mix(x: Any, y: Any, a: Any) -> Any:
    """x * (1 - a) + y * a, element by element: x where a is 0, y where it is 1."""
def mod(x: Any, y: Any) -> Any:
    """Remainder with the sign of y, x - y * floor(x / y), element by element; whole of whole numbers."""
nan: float
def noise(p: Any) -> Any:
    """Smooth noise between -1 and 1 at a number or a vector of 2 or 3: sums of sines that never repeat."""
def normalize(v: Any) -> Any:
    """v / length(v); not a number where the length is 0: use v.normalized(eps) there."""
pi: float
def popcnt(x: Any) -> Any:
    """The number of bits of x that are 1."""
from diffsim import pow as pow
quat: TypeAlias = Vector[Literal[4], float]
def quat_angle(q: Any) -> Any:
    """The angle of a rotation [rad], from 0 to pi."""
def quat_axis(q: Any) -> Any:
    """The axis of a rotation by an angle from 0 to pi; 0, with derivative 0, where it turns nothing."""
def quat_from_axis_angle(axis: Any, angle: Any) -> Any:
    """The rotation about an axis of length 1 by the angle [rad], by the right hand rule."""
def quat_from_matrix(m: Any) -> Any:
    """The quaternion of a rotation's 3 x 3 matrix (S. W. Shepperd, 1978)."""
def quat_identity() -> Any:
    """The quaternion (0, 0, 0, 1), which turns nothing."""
def quat_inverse(q: Any) -> Any:
    """The conjugate, which is the inverse of a quaternion of length 1."""
def quat_mul(p: Any, q: Any) -> Any:
    """The product of two quaternions: the rotation q, and then p."""
def quat_rotate(q: Any, v: Any) -> Any:
    """The vector v after the rotation."""
def quat_rotate_inv(q: Any, v: Any) -> Any:
    """The vector v before the rotation."""
def quat_rpy(roll: Any, pitch: Any, yaw: Any) -> Any:
    """The rotation by roll about x, then pitch about y, then yaw about z [rad]."""
def quat_slerp(p: Any, q: Any, t: Any) -> Any:
    """The rotation on the way from p (t = 0) to q (t = 1), at constant speed along the shorter arc."""
def quat_to_matrix(q: Any) -> Any:
    """The 3 x 3 matrix of the rotation."""
def radians(x: Any) -> Any:
    """The angle [degree] in radians."""
def reflect(x: Any, n: Any) -> Any:
    """x - 2 dot(n, x) n: the direction x after a reflection at a surface with the unit normal n."""
def refract(x: Any, n: Any, eta: Any) -> Any:
    """The unit direction x after a refraction at a surface with the unit normal n, which points against x."""
def rot_by_axis(axis: Any, ang: Any) -> Any:
    """The 4 x 4 matrix of a turn about an axis, any 3-vector but 0, by the angle `ang` [rad]."""
def rot_yaw_pitch_roll(yaw: Any, pitch: Any, roll: Any) -> Any:
    """The 4 x 4 matrix that turns by yaw about y, then by pitch about x, then by roll about z [rad]."""
def rotation2d(ang: Any) -> Any:
    """The 2 x 2 matrix of a counter-clockwise turn by the angle [rad]."""
def rotation3d(ang_x: Any, ang_y: Any, ang_z: Any) -> Any:
    """rot_yaw_pitch_roll(ang_z, ang_x, ang_y), which is what Taichi gives for these angles [rad]."""
from diffsim import round as round
def scale(sx: Any, sy: Any, sz: Any) -> Any:
    """The 4 x 4 matrix that multiplies coordinates by (sx, sy, sz)."""
from diffsim import sign as sign
from diffsim import sin as sin
from diffsim import sinh as sinh
def smoothstep(edge0: Any, edge1: Any, x: Any) -> Any:
    """3 t^2 - 2 t^3 of t = clamp((x - edge0) / (edge1 - edge0), 0, 1), element by element."""
from diffsim import sqrt as sqrt
def step(edge: Any, x: Any) -> Any:
    """0 where x < edge, else 1, element by element; the derivative is 0 everywhere."""
from diffsim import tan as tan
from diffsim import tanh as tanh
transform: TypeAlias = Vector[Literal[7], float]
def transform_get_rotation(t: Any) -> Any:
    """The quaternion of a transformation."""
def transform_get_translation(t: Any) -> Any:
    """The translation of a transformation."""
def transform_identity() -> Any:
    """The transformation that changes nothing."""
def transform_inverse(t: Any) -> Any:
    """The transformation that undoes another one."""
def transform_multiply(a: Any, b: Any) -> Any:
    """The transformation b, and then a."""
def transform_point(t: Any, p: Any) -> Any:
    """The point p, turned and moved."""
def transform_vector(t: Any, v: Any) -> Any:
    """The vector v, turned."""
def translate(dx: Any, dy: Any, dz: Any) -> Any:
    """The 4 x 4 matrix that moves points (x, y, z, 1) by (dx, dy, dz)."""
from diffsim import trunc as trunc
uvec2: TypeAlias = Vector[Literal[2], int]
uvec3: TypeAlias = Vector[Literal[3], int]
uvec4: TypeAlias = Vector[Literal[4], int]
def vdir(ang: Any) -> Any:
    """The unit 2-vector (cos, sin) of the angle [rad]."""
vec2: TypeAlias = Vector[Literal[2], float]
vec3: TypeAlias = Vector[Literal[3], float]
vec4: TypeAlias = Vector[Literal[4], float]

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
