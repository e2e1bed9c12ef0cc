"""Arguments of drawing methods, as arrays: places, indices, colours, and the part of them that is drawn."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from diffsim.errors import shown
from diffsim.lang.host.field_like import is_field
from diffsim.lang.host.signatures import need_number, need_whole
from diffsim.lang.types.descriptions import describe
from diffsim.tools.pictures.arrays import as_array, refuse

COLOR_HINT = "give red, green and blue between 0 and 1, such as (1.0, 0.5, 0.0)"


def vectors(name: str, value: object, size: int) -> np.ndarray:
    """Return places or directions as an array of shape (n, size), f32, of its own.

    Elements may lie along several axes. Places of the plane lie at z = 0 of a scene; of a third coordinate a
    canvas makes no use.
    """
    made = as_array(value, name)
    if made.shape == (0,):  # an empty list: nothing is drawn
        made = made.reshape(0, size)
    if made.ndim < 2 or made.shape[-1] not in (2, 3):
        raise refuse(
            f"{name} has shape {made.shape}, and a place has {size} numbers",
            f"give ds.Vector.field({size}, ds.f32, shape=n), or an array of shape (n, {size})",
        )
    made = made.reshape(-1, made.shape[-1])
    found = np.zeros((len(made), size), np.float32)
    shared = min(size, made.shape[1])
    with np.errstate(over="ignore"):
        found[:, :shared] = made[:, :shared]
    return found


def rgb(name: str, value: object) -> np.ndarray:
    """Return one colour: red, green, blue, f32."""
    if isinstance(value, (str, numbers.Number)) or value is None:
        raise refuse(f"{name} is a colour of three numbers, not {shown(value)}", COLOR_HINT)
    made = as_array(value, name).ravel()
    if made.shape not in ((3,), (4,)):
        raise refuse(f"{name} is a colour of three numbers, not {shown(value)}", COLOR_HINT)
    return made[:3].astype(np.float32)


def colors(color: object, per_vertex_color: object, count: int, of: str) -> np.ndarray:
    """Return the colours of `count` things: (1, 3) if they have the same, else (count, 3)."""
    if per_vertex_color is None:
        return rgb("color", color)[None]
    made = as_array(per_vertex_color, "per_vertex_color")
    if made.ndim < 2 or made.shape[-1] not in (3, 4):
        raise refuse(
            f"per_vertex_color has shape {made.shape}, and a colour has three numbers",
            "give a field of vectors: ds.Vector.field(3, ds.f32, shape=n)",
        )
    made = made.reshape(-1, made.shape[-1])[:, :3]
    need_count("per_vertex_color", len(made), count, of)
    return np.array(made, np.float32, order="C")


def packed(colored: np.ndarray) -> np.ndarray:
    """Return colours 0xRRGGBB of rows of red, green, blue."""
    levels = (np.nan_to_num(colored).clip(0, 1) * 255 + 0.5).astype(np.uint32)
    return levels[:, 0] << 16 | levels[:, 1] << 8 | levels[:, 2]


def need_count(name: str, found: int, count: int, of: str) -> None:
    """Refuse arrays that do not have one element for each of something."""
    if found != count:
        raise refuse(
            f"{name} has {found} elements, and there are {count} {of}", "give one for each"
        )


def radii(radius: object, per_vertex_radius: object, count: int) -> np.ndarray:
    """Return the radii of `count` things: one if they have the same, else `count`."""
    if per_vertex_radius is None:
        need_number(radius, "radius", "give a number; per_vertex_radius takes one for each")
        if radius is None:
            raise refuse("radius is a number, not None", "give one, or per_vertex_radius")
        made = np.array([radius], np.float32)
    else:
        made = as_array(per_vertex_radius, "per_vertex_radius").astype(np.float32).ravel()
        need_count("per_vertex_radius", len(made), count, "centers")
    if (made < 0).any():
        raise refuse(f"a radius is 0 or more, and one is {made[made < 0][0]:g}", "give its length")
    return made


def indices(value: object, vertices: int, corners: int) -> np.ndarray:
    """Return indices of vertices, one after the other, i32."""
    made = as_array(value, "indices")
    if made.dtype.kind not in "iu":
        raise refuse(
            f"indices are whole numbers, not {made.dtype}",
            "convert them: .astype(np.int32)"
            if not is_field(value)
            else "make it ds.field(ds.i32, ...)",
        )
    made = made.ravel()
    if made.size and not 0 <= made.min() <= made.max() < vertices:
        worst = made.min() if made.min() < 0 else made.max()
        raise refuse(
            f"indices has {worst}, and there are {vertices} vertices",
            f"indices are 0 to {vertices - 1}; {corners} of them make one shape",
        )
    return made.astype(np.int32)


def part(what: str, offset: Any, count: Any, length: int) -> slice:
    """Return which of `length` elements are drawn: all from `offset` on if there is no count."""
    for name, one in ((f"{what}_offset", offset), (f"{what}_count", count)):
        need_whole(one, name)
        if one is not None and one < 0:
            raise refuse(f"{name} is 0 or more, not {one}", "leave it out to draw all")
    return slice(offset, length if count is None else min(offset + count, length))


def shapes(
    corners: int, vertices: int, given: object, index: tuple[Any, Any], vertex: tuple[Any, Any]
) -> np.ndarray:
    """Return the vertices of each shape, (n, corners) of i32.

    Args:
        corners: how many vertices a shape has: 3 of a triangle.
        vertices: how many there are.
        given: indices of vertices; None: vertices in their order.
        index: offset and count of the indices that are drawn.
        vertex: the same of vertices, without indices; with indices the offset is added to them.
    """
    if given is None:
        chosen = part("vertex", *vertex, vertices)
        made = np.arange(vertices, dtype=np.int32)[chosen]
    else:
        need_whole(vertex[0], "vertex_offset")
        shifted = as_array(given, "indices")
        made = indices(shifted + vertex[0] if vertex[0] else given, vertices, corners)
        made = made[part("index", *index, len(made))]
    whole = len(made) // corners * corners  # what is left over is no shape
    return made[:whole].reshape(-1, corners)


def matrices(value: object) -> np.ndarray:
    """Return transforms of instances, (n, 4, 4), f64."""
    made = as_array(value, "transforms")
    if made.ndim < 3 or made.shape[-2:] != (4, 4):
        raise refuse(
            f"transforms are 4 x 4 matrices, not {describe(value)}",
            "give a field of matrices: ds.Matrix.field(4, 4, ds.f32, shape=n)",
        )
    return made.reshape(-1, 4, 4).astype(np.float64)
