"""The functions of `ds.math`: those of GLSL, complex numbers, and transformations.

Each is a formula over rows of the op table, as in `lang/types/linalg.py`: it works on values in a kernel
and on numbers, vectors and arrays in Python, and its derivative follows from the rows. Definitions follow
chapter 8 of The OpenGL Shading Language 4.60 (Khronos Group, 2023), and the order and sense of rotations
Taichi. Cases left open by GLSL (edges in the wrong order, vectors of length 0) are explained in place.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import DiffsimError, KernelTypeError, Span
from diffsim.ir import builder_stack
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Value
from diffsim.ir.op import TABLE, Tracked
from diffsim.ir.ops import (
    absolute,
    atan2,
    cos,
    exp,
    floor,
    log,
    maximum,
    minimum,
    power,
    select,
    sin,
    sqrt,
)
from diffsim.lang.frontend import calls
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.operators import folding
from diffsim.lang.host.intrinsic import Intrinsic
from diffsim.lang.types import linalg
from diffsim.lang.types.arrays import same_shape
from diffsim.lang.types.linalg import elements, pack, shape
from diffsim.lang.types.matrix import Matrix, in_python, wrap

# ---- common functions, element by element


def clamp(x: Any, xmin: Any, xmax: Any) -> Any:
    """min(max(x, xmin), xmax), element by element; at both ends the derivative goes to x.

    Example:
        print(ds.math.clamp(1.5, 0.0, 1.0))  # prints: 1.0
        print(ds.math.clamp(ds.Vector([-1.0, 0.5]), 0.0, 1.0))  # prints: [0.0, 0.5]
    """
    # The order of GLSL: with xmin > xmax the result is `xmax`.
    return minimum(maximum(x, xmin), xmax)


def mix(x: Any, y: Any, a: Any) -> Any:
    """x * (1 - a) + y * a, element by element: x where a is 0, y where it is 1.

    Example:
        print(ds.math.mix(10.0, 20.0, 0.25))  # prints: 12.5
    """
    # Not x + a * (y - x), which is not exactly y at a = 1.
    return x * (1.0 - a) + y * a


def step(edge: Any, x: Any) -> Any:
    """0 where x < edge, else 1, element by element; the derivative is 0 everywhere.

    Example:
        print(ds.math.step(0.5, ds.Vector([0.25, 0.5])))  # prints: [0.0, 1.0]
    """
    # Constants of the precision of the operands: literals alone would become the default float.
    return select(x < edge, *_floats(0.0, 1.0, like=(edge, x)))


def smoothstep(edge0: Any, edge1: Any, x: Any) -> Any:
    """3 t^2 - 2 t^3 of t = clamp((x - edge0) / (edge1 - edge0), 0, 1), element by element.

    The derivative is 0 at the edges and beyond. Edges in the other order make it fall instead of rise.

    Example:
        print(ds.math.smoothstep(0.0, 1.0, 0.25))  # prints: 0.15625
    """
    t = clamp((x - edge0) / (edge1 - edge0), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def fract(x: Any) -> Any:
    """x - floor(x), element by element; the derivative is 1, at whole numbers (from the right) too.

    Example:
        print(ds.math.fract(-1.25))  # prints: 0.75
    """
    # floor has derivative 0, so that of the difference is 1 without a case of its own.
    return x - floor(x)


def mod(x: Any, y: Any) -> Any:
    """Remainder with the sign of y, x - y * floor(x / y), element by element; whole of whole numbers.

    Example:
        print(ds.math.mod(-1.0, 4.0), ds.math.mod(5, 3))  # prints: 3.0 2
    """
    return TABLE["mod"](x, y)


def radians(x: Any) -> Any:
    """The angle [degree] in radians.

    Example:
        print(ds.math.radians(180.0) == ds.math.pi)  # prints: True
    """
    return x * (math.pi / 180)


def degrees(x: Any) -> Any:
    """The angle [rad] in degrees.

    Example:
        print(ds.math.degrees(ds.math.pi))  # prints: 180.0
    """
    return x * (180 / math.pi)


# ---- geometry


def length(x: Any) -> Any:
    """sqrt(dot(x, x)), of a number its absolute value; derivative 0 at 0.

    Example:
        print(ds.math.length(ds.Vector([3.0, 4.0])))  # prints: 5.0
    """
    # sqrt(x * x) of a number would overflow for large x, where |x| does not.
    return linalg.norm(x) if shape(x) else absolute(x)


def distance(x: Any, y: Any) -> Any:
    """length(x - y); derivative 0 where x = y.

    Example:
        print(ds.math.distance(ds.Vector([1.0, 1.0]), ds.Vector([4.0, 5.0])))  # prints: 5.0
    """
    return length(x - y)


def dot(x: Any, y: Any) -> Any:
    """Scalar product of two vectors, product of two numbers.

    Example:
        print(ds.math.dot(ds.Vector([1.0, 2.0]), ds.Vector([3.0, 4.0])))  # prints: 11.0
    """
    return linalg.dot(x, y) if shape(x) or shape(y) else x * y


def cross(x: Any, y: Any) -> Any:
    """Vector product of two 3-vectors; of two 2-vectors its (scalar) third component.

    Example:
        x, y = ds.Vector([1.0, 0.0, 0.0]), ds.Vector([0.0, 1.0, 0.0])
        print(ds.math.cross(x, y))  # prints: [0.0, 0.0, 1.0]
    """
    return linalg.cross(x, y)


def normalize(v: Any) -> Any:
    """v / length(v); not a number where the length is 0: use v.normalized(eps) there.

    Example:
        print(ds.math.normalize(ds.Vector([3.0, 4.0])))  # prints: [0.6, 0.8]
    """
    return v / length(v)


def reflect(x: Any, n: Any) -> Any:
    """x - 2 dot(n, x) n: the direction x after a reflection at a surface with the unit normal n.

    Example:
        print(ds.math.reflect(ds.Vector([1.0, -1.0]), ds.Vector([0.0, 1.0])))  # prints: [1.0, 1.0]
    """
    return x - 2.0 * dot(n, x) * n


def refract(x: Any, n: Any, eta: Any) -> Any:
    """The unit direction x after a refraction at a surface with the unit normal n, which points against x.

    eta x - (eta d + sqrt(k)) n with d = dot(n, x), k = 1 - eta^2 (1 - d^2); eta is the refractive index
    that it comes from over the one that it goes to. Where k < 0 (total reflection) it is 0 and so is its
    derivative; at k = 0 the root's derivative is 0.

    Example:
        down = ds.Vector([0.0, -1.0])  # into glass, at a right angle
        print(ds.math.refract(down, -down, 1.0 / 1.5))  # prints: [0.0, -1.0]
    """
    d = dot(n, x)
    k = 1.0 - eta * eta * (1.0 - d * d)
    # Both sides of a select are evaluated: without the maximum the
    # root of a negative number would be NaN, and its derivative too.
    return select(k < 0.0, 0.0, eta * x - (eta * d + sqrt(maximum(k, 0.0))) * n)


# ---- matrices and transformations


def inverse(mat: Any) -> Any:
    """Inverse of a matrix up to 4 x 4.

    Example:
        print(ds.math.inverse(ds.Matrix([[1.0, 2.0], [3.0, 4.0]])))  # prints: [[-2.0, 1.0], [1.5, -0.5]]
    """
    return linalg.inverse(mat)


def determinant(m: Any) -> Any:
    """Determinant of a matrix up to 4 x 4.

    Example:
        print(ds.math.determinant(ds.Matrix([[1.0, 2.0], [3.0, 4.0]])))  # prints: -2.0
    """
    return linalg.determinant(m)


def eye(n: Any) -> Any:
    """The n x n identity.

    Example:
        print(ds.math.eye(2))  # prints: [[1.0, 0.0], [0.0, 1.0]]
    """
    if type(n) is not int or n < 1:
        raise ValueError("eye needs a size that is known before the launch")
    return np.eye(n)


def translate(dx: Any, dy: Any, dz: Any) -> Any:
    """The 4 x 4 matrix that moves points (x, y, z, 1) by (dx, dy, dz).

    Example:
        origin = ds.Vector([0.0, 0.0, 0.0, 1.0])
        print(ds.math.translate(1.0, 2.0, 3.0) @ origin)  # prints: [1.0, 2.0, 3.0, 1.0]
    """
    # Homogeneous coordinates: a translation is linear in (x, y, z, 1).
    return _affine([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [dx, dy, dz])


def scale(sx: Any, sy: Any, sz: Any) -> Any:
    """The 4 x 4 matrix that multiplies coordinates by (sx, sy, sz).

    Example:
        print(ds.math.scale(1.0, 2.0, 3.0) @ ds.Vector([1.0, 1.0, 1.0, 1.0]))  # prints: [1.0, 2.0, 3.0, 1.0]
    """
    return _affine([[sx, 0.0, 0.0], [0.0, sy, 0.0], [0.0, 0.0, sz]])


def rotation2d(ang: Any) -> Any:
    """The 2 x 2 matrix of a counter-clockwise turn by the angle [rad].

    Example:
        turned = ds.math.rotation2d(ds.math.pi / 2) @ ds.Vector([1.0, 0.0])
        print(ds.round(turned))  # prints: [0.0, 1.0]
    """
    # Column vectors are multiplied from the right: (1, 0) goes to (cos, sin).
    c, s = cos(ang), sin(ang)
    return pack([c, -s, s, c], (2, 2))


def rot_by_axis(axis: Any, ang: Any) -> Any:
    """The 4 x 4 matrix of a turn about an axis, any 3-vector but 0, by the angle `ang` [rad].

    The turn is clockwise for one who looks against the axis, as in Taichi: for the right hand rule give
    -ang. (O. Rodrigues, Journal de mathematiques pures et appliquees 5, 1840.)

    Example:
        about_z = ds.math.rot_by_axis(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        print(ds.round(about_z @ ds.Vector([0.0, 1.0, 0.0, 1.0])))  # prints: [1.0, 0.0, 0.0, 1.0]
    """
    if shape(axis) != (3,):
        raise ValueError("rot_by_axis needs a vector of 3 elements and an angle")
    a, c, s = elements(normalize(axis)), cos(ang), sin(ang)
    # Rodrigues' formula: (1 - c) a a^T + c I - s [a]x; the sign of the last term gives the clockwise sense.
    rows = [[(1.0 - c) * a[i] * a[j] for j in range(3)] for i in range(3)]
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        rows[i][i] = rows[i][i] + c
        rows[j][k] = rows[j][k] + s * a[i]
        rows[k][j] = rows[k][j] - s * a[i]
    return _affine(rows)


def rot_yaw_pitch_roll(yaw: Any, pitch: Any, roll: Any) -> Any:
    """The 4 x 4 matrix that turns by yaw about y, then by pitch about x, then by roll about z [rad].

    Each turn is clockwise for one who looks against its axis, as in Taichi.

    Example:
        about_z = ds.math.rot_yaw_pitch_roll(0.0, 0.0, ds.math.pi / 2)
        print(ds.round(about_z @ ds.Vector([0.0, 1.0, 0.0, 1.0])))  # prints: [1.0, 0.0, 0.0, 1.0]
    """
    (cy, cx, cz), (sy, sx, sz) = ([f(a) for a in (yaw, pitch, roll)] for f in (cos, sin))
    return _affine(
        [
            [cz * cy + sz * sx * sy, sz * cx, sz * sx * cy - cz * sy],
            [cz * sx * sy - sz * cy, cz * cx, sz * sy + cz * sx * cy],
            [cx * sy, -sx, cx * cy],
        ]
    )


def rotation3d(ang_x: Any, ang_y: Any, ang_z: Any) -> Any:
    """rot_yaw_pitch_roll(ang_z, ang_x, ang_y), which is what Taichi gives for these angles [rad].

    The 4 x 4 matrix turns by ang_z about y, then by ang_x about x, then by ang_y about z.

    Example:
        about_x = ds.math.rotation3d(ds.math.pi / 2, 0.0, 0.0)
        print(ds.round(about_x @ ds.Vector([0.0, 0.0, 1.0, 1.0])))  # prints: [0.0, 1.0, 0.0, 1.0]
    """
    return rot_yaw_pitch_roll(ang_z, ang_x, ang_y)


def vdir(ang: Any) -> Any:
    """The unit 2-vector (cos, sin) of the angle [rad].

    Example:
        print(ds.math.vdir(0.0))  # prints: [1.0, 0.0]
    """
    return pack([cos(ang), sin(ang)], (2,))


# ---- complex numbers: vectors (real, imaginary)


def cconj(z: Any) -> Any:
    """Conjugate of a complex number, a vector (real, imaginary).

    Example:
        print(ds.math.cconj(ds.Vector([1.0, 2.0])))  # prints: [1.0, -2.0]
    """
    x, y = _complex(z)
    return pack([x, -y], (2,))


def cmul(z1: Any, z2: Any) -> Any:
    """Product of two complex numbers.

    Example:
        print(ds.math.cmul(ds.Vector([0.0, 1.0]), ds.Vector([0.0, 1.0])))  # prints: [-1.0, 0.0]
    """
    (a, b), (c, d) = _complex(z1), _complex(z2)
    return pack([a * c - b * d, a * d + b * c], (2,))


def cinv(z: Any) -> Any:
    """1 / z of a complex number.

    Example:
        print(ds.math.cinv(ds.Vector([0.0, 2.0])))  # prints: [0.0, -0.5]
    """
    # 1 / z = conj(z) / |z|^2.
    return cconj(z) / dot(z, z)


def cdiv(z1: Any, z2: Any) -> Any:
    """Quotient of two complex numbers.

    Example:
        print(ds.math.cdiv(ds.Vector([1.0, 3.0]), ds.Vector([1.0, 1.0])))  # prints: [2.0, 1.0]
    """
    return cmul(z1, cconj(z2)) / dot(z2, z2)


def csqrt(z: Any) -> Any:
    """Square root of a complex number, with a real part that is not negative; derivative 0 at 0.

    Example:
        print(ds.math.csqrt(ds.Vector([4.0, 0.0])))  # prints: [2.0, 0.0]
    """
    # Polar form; the angle in [-pi, pi] is halved, which selects the principal root.
    return sqrt(length(z)) * vdir(0.5 * _angle(z))


def cpow(z: Any, n: Any) -> Any:
    """A complex number to a real power.

    Example:
        print(ds.math.cpow(ds.Vector([3.0, 0.0]), 2.0))  # prints: [9.0, 0.0]
    """
    return power(length(z), n) * vdir(n * _angle(z))


def cexp(z: Any) -> Any:
    """Exponential of a complex number.

    Example:
        print(ds.math.cexp(ds.Vector([0.0, ds.math.pi])).x)  # prints: -1.0
    """
    x, y = _complex(z)
    return exp(x) * vdir(y)


def clog(z: Any) -> Any:
    """Logarithm of a complex number, with an imaginary part in [-pi, pi].

    Example:
        print(ds.math.clog(ds.Vector([-1.0, 0.0])).y == ds.math.pi)  # prints: True
    """
    # log z = log |z| + i arg z, the principal value.
    return pack([log(length(z)), _angle(z)], (2,))


# ---- helpers


def _floats(*numbers: float, like: tuple[Any, ...]) -> list[Any]:
    """Return the numbers; in a kernel as values of the type of the widest float among `like`."""
    values = [x for x in like if isinstance(x, Value)]
    if not values:
        return list(numbers)
    b: Builder = builder_stack.builder()
    floats = [x.type.scalar for x in values if x.type.is_float]
    t = max(floats, key=lambda t: t.bits, default=b.default_fp)
    return [b.const(number, t) for number in numbers]


def _affine(rows: list[list[Any]], shift: list[Any] | None = None) -> Any:
    """Return the 4 x 4 matrix of a linear map (3 rows of 3) and a shift."""
    flat = [e for row, d in zip(rows, shift or [0.0] * 3, strict=True) for e in (*row, d)]
    return pack([*flat, 0.0, 0.0, 0.0, 1.0], (4, 4))


def _complex(z: Any) -> list[Any]:
    if shape(z) != (2,):
        raise ValueError(f"a complex number is a vector of 2 elements, this has shape {shape(z)}")
    return elements(z)


def _angle(z: Any) -> Any:
    x, y = _complex(z)
    return atan2(y, x)


# ---- as functions of the language


def _parameters_of(function: Callable[..., Any]) -> str:
    """Write the parameters of a formula, without `inspect.signature`, which is slow."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = list(code.co_varnames[: code.co_argcount])
    for k, default in enumerate(defaults, len(names) - len(defaults)):
        names[k] += f"={default!r}"
    if code.co_flags & inspect.CO_VARARGS:
        names.append(f"*{code.co_varnames[code.co_argcount]}")
    return ", ".join(names)


def formula(
    function: Callable[..., Any], module: str = "math.", *, mixed: bool = False
) -> Intrinsic:
    """Make a function of `ds.math` from a formula: of values in kernels, of numbers and vectors in Python.

    Args:
        function: the formula.
        module: what stands before its name after `ds.`: "" for functions of ds itself.
        mixed: whether vectors and matrices of different shapes go together.
    """
    name = f"{module}{function.__name__}"
    # `inspect.signature` is slow, and importing diffsim makes dozens of these functions.
    signature = functools.cache(lambda: inspect.signature(function))

    def usage() -> str:
        return f"write ds.{name}({', '.join(signature().parameters)})"

    def bind(args: Any, kwargs: Any, error: Callable[[str, str], Exception]) -> list[Any]:
        try:
            # Python's own rules for positional and keyword arguments.
            return list(signature().bind(*args, **kwargs).args)
        except TypeError:
            given = calls.count(len(args) + len(kwargs))
            raise error(f"ds.{name} cannot be called with {given}", usage()) from None

    def in_kernel(
        cx: TranslationContext, node: ast.Call, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        bound = bind(args, kwargs, lambda text, hint: cx.type_error(node, text, hint))
        for k, a in enumerate(bound):
            # A list of literals is a constant vector, without a precision of its own.
            if isinstance(a, list) and calls.is_literal(a):
                bound[k] = folding.fold(cx, node, Matrix, a)
        # Constants are folded in Python: 0 / 0 is NaN there too, without a warning.
        if all(isinstance(a, (*folding.Number, Matrix)) for a in bound):
            with np.errstate(all="ignore"):
                return folding.fold(cx, node, made, *bound)
        values = folding.operands(cx, node, *bound)
        try:
            return function(*values)
        except ValueError as problem:
            if isinstance(problem, DiffsimError):
                raise
            raise cx.type_error(node, str(problem), usage()) from None

    def outside(*args: Any, **kwargs: Any) -> Any:
        bound = bind(args, kwargs, lambda text, hint: KernelTypeError(text, Span.of_caller(), hint))
        # A result that a tape tracks: the ops of the formula are recorded one by one.
        if any(isinstance(a, Tracked) and not isinstance(a, float) for a in bound):
            return wrap(function(*bound))
        if not mixed:
            same_shape(f"ds.{name}", [x.entries if isinstance(x, Matrix) else x for x in bound])
        return in_python(f"ds.{name}", function, *bound)

    made = Intrinsic(name, function.__doc__ or "", in_kernel, outside, _parameters_of(function))
    return made
