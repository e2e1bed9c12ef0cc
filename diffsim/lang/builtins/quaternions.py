"""Quaternions and rigid transformations in `ds.math`, with Warp's names: `quat_rotate(q, v)`.

A quaternion is a vector of 4 elements (x, y, z, w), of length 1 where it stands for a rotation; a
transformation is a vector of 7, a translation and then a quaternion. Each function is a formula over rows of
the op table (see `glsl.py`), so its derivative follows from theirs. What is guarded by a select is 0 / 0
elsewhere: its derivative there is 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from diffsim.ir.ops import atan2, cos, maximum, select, sin, sqrt
from diffsim.lang.types import linalg
from diffsim.lang.types.linalg import elements, pack, shape


def quat_identity() -> Any:
    """The quaternion (0, 0, 0, 1), which turns nothing.

    Example:
        q = ds.math.quat_identity()
        print(ds.math.quat_rotate(q, ds.Vector([1.0, 2.0, 3.0])))  # prints: [1.0, 2.0, 3.0]
    """
    return np.array([0.0, 0.0, 0.0, 1.0])


def quat_mul(p: Any, q: Any) -> Any:
    """The product of two quaternions: the rotation q, and then p.

    Example:
        q = ds.math.quat_from_axis_angle(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        half = ds.math.quat_mul(q, q)
        print(ds.round(ds.math.quat_rotate(half, ds.Vector([1.0, 2.0, 3.0]))))  # prints: [-1.0, -2.0, 3.0]
    """
    (a, b, c, d), (x, y, z, w) = _quat(p), _quat(q)
    return pack(
        [
            d * x + a * w + b * z - c * y,
            d * y + b * w + c * x - a * z,
            d * z + c * w + a * y - b * x,
            d * w - a * x - b * y - c * z,
        ],
        (4,),
    )


def quat_inverse(q: Any) -> Any:
    """The conjugate, which is the inverse of a quaternion of length 1.

    Example:
        print(ds.math.quat_inverse(ds.Vector([0.5, 0.5, 0.5, 0.5])))  # prints: [-0.5, -0.5, -0.5, 0.5]
    """
    x, y, z, w = _quat(q)
    return pack([-x, -y, -z, w], (4,))


def quat_from_axis_angle(axis: Any, angle: Any) -> Any:
    """The rotation about an axis of length 1 by the angle [rad], by the right hand rule.

    Example:
        q = ds.math.quat_from_axis_angle(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        print(ds.round(ds.math.quat_rotate(q, ds.Vector([1.0, 0.0, 0.0]))))  # prints: [0.0, 1.0, 0.0]
    """
    s = sin(0.5 * angle)
    return pack([*(a * s for a in _vector(axis)), cos(0.5 * angle)], (4,))


def quat_axis(q: Any) -> Any:
    """The axis of a rotation by an angle from 0 to pi; 0, with derivative 0, where it turns nothing.

    Example:
        print(ds.math.quat_axis(ds.Vector([0.0, 1.0, 0.0, 0.0])))  # prints: [0.0, 1.0, 0.0]
    """
    x, y, z, w = _quat(q)
    length = sqrt(x * x + y * y + z * z)
    # The same rotation has two quaternions: the axis belongs to that with w >= 0.
    scale = select(w < 0.0, -1.0, 1.0) / select(length > 0.0, length, 1.0)
    return pack([select(length > 0.0, e * scale, 0.0) for e in (x, y, z)], (3,))


def quat_angle(q: Any) -> Any:
    """The angle of a rotation [rad], from 0 to pi.

    Example:
        print(ds.math.quat_angle(ds.Vector([0.0, 1.0, 0.0, 0.0])) == ds.math.pi)  # prints: True
    """
    x, y, z, w = _quat(q)
    return 2.0 * atan2(sqrt(x * x + y * y + z * z), select(w < 0.0, -w, w))


def quat_rotate(q: Any, v: Any) -> Any:
    """The vector v after the rotation.

    Example:
        half_turn = ds.Vector([0.0, 0.0, 1.0, 0.0])  # about z
        print(ds.math.quat_rotate(half_turn, ds.Vector([1.0, 2.0, 3.0])))  # prints: [-1.0, -2.0, 3.0]
    """
    x, y, z, w = _quat(q)
    return _rotated([x, y, z], w, v)


def quat_rotate_inv(q: Any, v: Any) -> Any:
    """The vector v before the rotation.

    Example:
        q = ds.math.quat_from_axis_angle(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        print(ds.round(ds.math.quat_rotate_inv(q, ds.Vector([0.0, 1.0, 0.0]))))  # prints: [1.0, 0.0, 0.0]
    """
    x, y, z, w = _quat(q)
    return _rotated([-x, -y, -z], w, v)


def quat_to_matrix(q: Any) -> Any:
    """The 3 x 3 matrix of the rotation.

    Example:
        half_turn = ds.Vector([0.0, 0.0, 1.0, 0.0])  # about z
        print(ds.math.quat_to_matrix(half_turn)[0, 0])  # prints: -1.0
    """
    x, y, z, w = _quat(q)
    rows = [
        [w * w + x * x - y * y - z * z, 2.0 * (x * y - w * z), 2.0 * (x * z + w * y)],
        [2.0 * (x * y + w * z), w * w - x * x + y * y - z * z, 2.0 * (y * z - w * x)],
        [2.0 * (x * z - w * y), 2.0 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return pack([e for row in rows for e in row], (3, 3))


def quat_from_matrix(m: Any) -> Any:
    """The quaternion of a rotation's 3 x 3 matrix (S. W. Shepperd, 1978).

    Example:
        half_turn = ds.Matrix([[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
        print(ds.math.quat_from_matrix(half_turn))  # prints: [0.0, 0.0, 1.0, 0.0]
    """
    if shape(m) != (3, 3):
        raise ValueError(f"quat_from_matrix needs a 3 x 3 matrix, not shape {shape(m)}")
    a, b, c, d, e, f, g, h, i = elements(m)
    # Four times the square of each element; the largest is at least 1, and its root divides the others.
    squares = [1.0 + a - e - i, 1.0 - a + e - i, 1.0 - a - e + i, 1.0 + a + e + i]
    pairs = [
        [None, b + d, c + g, h - f],
        [b + d, None, f + h, c - g],
        [c + g, f + h, None, d - b],
        [h - f, c - g, d - b, None],
    ]
    found: list[Any] = []
    best: Any = None
    for k, square in enumerate(squares):
        # Where it is not the largest it is not taken, and must not divide by 0.
        root = sqrt(maximum(square, 0.5))
        row = [0.5 * root if x is None else 0.5 * x / root for x in pairs[k]]
        if best is None:
            found, best = row, square
            continue
        larger = square > best
        found = [select(larger, x, y) for x, y in zip(row, found, strict=True)]
        best = maximum(square, best)
    return pack(found, (4,))


def quat_rpy(roll: Any, pitch: Any, yaw: Any) -> Any:
    """The rotation by roll about x, then pitch about y, then yaw about z [rad].

    Example:
        q = ds.math.quat_rpy(0.0, 0.0, ds.math.pi / 2)  # a yaw
        print(ds.round(ds.math.quat_rotate(q, ds.Vector([1.0, 0.0, 0.0]))))  # prints: [0.0, 1.0, 0.0]
    """
    about_z, about_y, about_x = (_about(k, a) for k, a in ((2, yaw), (1, pitch), (0, roll)))
    return quat_mul(quat_mul(about_z, about_y), about_x)


def _about(k: int, angle: Any) -> Any:
    """Return the rotation about an axis of the coordinates."""
    parts = [0.0, 0.0, 0.0, cos(0.5 * angle)]
    parts[k] = sin(0.5 * angle)
    return pack(parts, (4,))


def quat_slerp(p: Any, q: Any, t: Any) -> Any:
    """The rotation on the way from p (t = 0) to q (t = 1), at constant speed along the shorter arc.

    Example:
        q = ds.math.quat_from_axis_angle(ds.Vector([0.0, 0.0, 1.0]), ds.math.pi / 2)
        middle = ds.math.quat_slerp(ds.math.quat_identity(), q, 0.5)
        print(ds.round(ds.math.degrees(ds.math.quat_angle(middle))))  # prints: 45.0
    """
    x, y, z, w = _quat(quat_mul(quat_inverse(p), q))
    square = x * x + y * y + z * z
    # Of half of the angle between them: sine and cosine, of the shorter arc.
    sine, cosine = sqrt(square), select(w < 0.0, -w, w)
    half = atan2(sine, cosine)
    # sin(t h) / sin(h), by its series where h is small: there is no angle at p = q, but a derivative.
    near = square < 1e-8
    series = t * (1.0 + (1.0 - t * t) * square / 6.0)
    ratio = select(near, series, sin(t * half) / select(near, 1.0, sine))
    ratio = select(w < 0.0, -ratio, ratio)
    return quat_mul(p, pack([x * ratio, y * ratio, z * ratio, cos(t * half)], (4,)))


def transform_identity() -> Any:
    """The transformation that changes nothing.

    Example:
        print(ds.math.transform_identity())  # prints: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    """
    return np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])


def transform_get_translation(t: Any) -> Any:
    """The translation of a transformation.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        print(ds.math.transform_get_translation(t))  # prints: [1.0, 2.0, 3.0]
    """
    return pack(_transform(t)[0], (3,))


def transform_get_rotation(t: Any) -> Any:
    """The quaternion of a transformation.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        print(ds.math.transform_get_rotation(t))  # prints: [0.0, 0.0, 1.0, 0.0]
    """
    return pack(_transform(t)[1], (4,))


def transform_point(t: Any, p: Any) -> Any:
    """The point p, turned and moved.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        print(ds.math.transform_point(t, ds.Vector([1.0, 0.0, 0.0])))  # prints: [0.0, 2.0, 3.0]
    """
    return transform_vector(t, p) + transform_get_translation(t)


def transform_vector(t: Any, v: Any) -> Any:
    """The vector v, turned.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        print(ds.math.transform_vector(t, ds.Vector([1.0, 0.0, 0.0])))  # prints: [-1.0, 0.0, 0.0]
    """
    return quat_rotate(transform_get_rotation(t), v)


def transform_multiply(a: Any, b: Any) -> Any:
    """The transformation b, and then a.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        twice = ds.math.transform_multiply(t, t)
        print(ds.math.transform_point(twice, ds.Vector([1.0, 0.0, 0.0])))  # prints: [1.0, 0.0, 6.0]
    """
    moved = transform_point(a, transform_get_translation(b))
    turned = quat_mul(transform_get_rotation(a), transform_get_rotation(b))
    return pack([*elements(moved), *elements(turned)], (7,))


def transform_inverse(t: Any) -> Any:
    """The transformation that undoes another one.

    Example:
        t = ds.Vector([1.0, 2.0, 3.0, 0.0, 0.0, 1.0, 0.0])  # half a turn about z, then a shift
        back = ds.math.transform_inverse(t)
        print(ds.math.transform_point(back, ds.Vector([0.0, 2.0, 3.0])))  # prints: [1.0, 0.0, 0.0]
    """
    back = quat_inverse(transform_get_rotation(t))
    return pack(
        [*(-x for x in elements(quat_rotate(back, transform_get_translation(t)))), *elements(back)],
        (7,),
    )


def _rotated(u: list[Any], w: Any, v: Any) -> Any:
    """Return v + 2 w (u x v) + 2 u x (u x v)."""
    if shape(v) != (3,):
        raise ValueError(
            f"a rotation applies to a vector of 3 elements, and this has shape {shape(v)}"
        )
    axis = pack(u, (3,))
    side = linalg.cross(axis, v)
    return v + 2.0 * (w * side + linalg.cross(axis, side))


def _quat(q: Any) -> list[Any]:
    if shape(q) != (4,):
        raise ValueError(f"a quaternion is a vector of 4 elements, this has shape {shape(q)}")
    return elements(q)


def _vector(v: Any) -> list[Any]:
    if shape(v) != (3,):
        raise ValueError(f"an axis is a vector of 3 elements, this has shape {shape(v)}")
    return elements(v)


def _transform(t: Any) -> tuple[list[Any], list[Any]]:
    if shape(t) != (7,):
        raise ValueError(f"a transformation is a vector of 7 elements, this has shape {shape(t)}")
    flat = elements(t)
    return flat[:3], flat[3:]


# ---- noise


def noise(p: Any) -> Any:
    """Smooth noise between -1 and 1 at a number or a vector of 2 or 3: sums of sines that never repeat.

    The sines turn in incommensurate directions, so the noise has derivatives of all orders, on every device.

    Example:
        print(-1.0 <= ds.math.noise(ds.Vector([0.25, 0.5])) <= 1.0)  # prints: True
    """
    xs = elements(p) if shape(p) else [p]
    if len(xs) > 3:
        raise ValueError("noise is there for numbers and vectors of 2 or 3")
    total: Any = 0.0
    for k, amplitude in enumerate(_AMPLITUDES):
        # Golden angles spread the directions evenly, and make the periods incommensurate.
        way = [math.cos(2.39996323 * (k + 1) * (j + 1) + j) for j in range(len(xs))]
        size = _FREQUENCIES[k] / math.sqrt(sum(w * w for w in way))
        phase = sum((w * size) * x for w, x in zip(way, xs, strict=True)) + 1.7 * k
        total = total + amplitude * sin(phase)
    return total


_FREQUENCIES = [1.6180339887**k * 2.0 for k in range(7)]
_AMPLITUDES = [a / sum(1.3**-k for k in range(7)) for a in (1.3**-k for k in range(7))]
