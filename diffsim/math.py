"""Vectors and functions of shaders, under Taichi's names: `from diffsim import math as tm`.

`vec3`, `mat4`, `ivec2` and the like are types of the default float and integer: of `ds.init(default_fp=...,
default_ip=...)`, as it is where they are used. They are annotations, they make values, `vec3(1, 2, 3)`, and
fields, `vec3.field(shape=n)`. The functions work in kernels and in Python, on numbers and on vectors and
matrices element by element. Their derivatives are those of the formulas in their documentation.
"""

# Constants are Python's floats, which adopt the precision of what they meet in a kernel.
from math import e, inf, nan, pi
from typing import TYPE_CHECKING, NoReturn

# Rows of the op table, under the names of GLSL.
from diffsim.ir.ops import (
    abs,
    acos,
    asin,
    atan,
    atan2,
    ceil,
    cos,
    cosh,
    exp,
    exp2,
    floor,
    isinf,
    isnan,
    log,
    log2,
    max,
    min,
    pow,
    round,
    sign,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
)
from diffsim.ir.ops import rsqrt as inversesqrt
from diffsim.lang.builtins import glsl, quaternions
from diffsim.lang.builtins.bits import clz, popcnt
from diffsim.lang.builtins.glsl import formula
from diffsim.lang.host.annotations import DefaultTensor
from diffsim.lang.host.unsupported import absent
from diffsim.public_names import names_of_module

# Resolved where they are used (`DefaultTensor.now`), as the default types are known only after `ds.init`, and
# `from diffsim.math import vec3` may come before it.
vec2, vec3, vec4 = (DefaultTensor(f"vec{n}", "f", (n,)) for n in (2, 3, 4))
ivec2, ivec3, ivec4 = (DefaultTensor(f"ivec{n}", "i", (n,)) for n in (2, 3, 4))
uvec2, uvec3, uvec4 = (DefaultTensor(f"uvec{n}", "u", (n,)) for n in (2, 3, 4))
quat, transform = DefaultTensor("quat", "f", (4,)), DefaultTensor("transform", "f", (7,))
mat2, mat3, mat4 = (DefaultTensor(f"mat{n}", "f", (n, n)) for n in (2, 3, 4))

# The functions of GLSL that are no rows of the op table: formulas over rows, in `lang/builtins/glsl.py`.
clamp = formula(glsl.clamp)
mix = formula(glsl.mix)
step = formula(glsl.step)
smoothstep = formula(glsl.smoothstep)
fract = formula(glsl.fract)
mod = formula(glsl.mod)
radians = formula(glsl.radians)
degrees = formula(glsl.degrees)
length = formula(glsl.length)
distance = formula(glsl.distance)
dot = formula(glsl.dot)
cross = formula(glsl.cross)
normalize = formula(glsl.normalize)
reflect = formula(glsl.reflect)
refract = formula(glsl.refract)
inverse = formula(glsl.inverse)
determinant = formula(glsl.determinant)
eye = formula(glsl.eye)
translate = formula(glsl.translate)
scale = formula(glsl.scale)
rotation2d = formula(glsl.rotation2d)
rotation3d = formula(glsl.rotation3d)
rot_by_axis = formula(glsl.rot_by_axis)
rot_yaw_pitch_roll = formula(glsl.rot_yaw_pitch_roll)
vdir = formula(glsl.vdir)
cconj = formula(glsl.cconj)
cmul = formula(glsl.cmul)
cinv = formula(glsl.cinv)
cdiv = formula(glsl.cdiv)
csqrt = formula(glsl.csqrt)
cpow = formula(glsl.cpow)
cexp = formula(glsl.cexp)
clog = formula(glsl.clog)

# Rotations in space, in `lang/builtins/quaternions.py`.
quat_identity = formula(quaternions.quat_identity, mixed=True)
quat_mul = formula(quaternions.quat_mul, mixed=True)
quat_inverse = formula(quaternions.quat_inverse, mixed=True)
quat_from_axis_angle = formula(quaternions.quat_from_axis_angle, mixed=True)
quat_axis = formula(quaternions.quat_axis, mixed=True)
quat_angle = formula(quaternions.quat_angle, mixed=True)
quat_rotate = formula(quaternions.quat_rotate, mixed=True)
quat_rotate_inv = formula(quaternions.quat_rotate_inv, mixed=True)
quat_to_matrix = formula(quaternions.quat_to_matrix, mixed=True)
quat_from_matrix = formula(quaternions.quat_from_matrix, mixed=True)
quat_rpy = formula(quaternions.quat_rpy, mixed=True)
quat_slerp = formula(quaternions.quat_slerp, mixed=True)
transform_identity = formula(quaternions.transform_identity, mixed=True)
transform_get_translation = formula(quaternions.transform_get_translation, mixed=True)
transform_get_rotation = formula(quaternions.transform_get_rotation, mixed=True)
transform_point = formula(quaternions.transform_point, mixed=True)
transform_vector = formula(quaternions.transform_vector, mixed=True)
transform_multiply = formula(quaternions.transform_multiply, mixed=True)
transform_inverse = formula(quaternions.transform_inverse, mixed=True)
noise = formula(quaternions.noise)

# Hidden from type checkers, which would otherwise accept every name as an attribute of the module.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        raise absent(__name__, name, [*__all__, *_LEFT_OUT])


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

# Left out of a star import, so that Python's own stay: kernels take them for the same.
_LEFT_OUT = "abs max min pow round".split()
__dir__ = names_of_module([*__all__, *_LEFT_OUT])
