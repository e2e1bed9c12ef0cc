"""Triangles and segments before they are drawn: normals, instances, and cuts at the camera's near plane."""

from __future__ import annotations

import numpy as np


def normals_of(places: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """Return the mean of the unit normals of the triangles around each vertex.

    A normal points to where the triangle's vertices are seen counterclockwise from.
    """
    a, b, c = (places[faces[:, k]].astype(np.float64) for k in range(3))
    with np.errstate(all="ignore"):
        across = np.cross(b - a, c - a)
        across /= np.linalg.norm(across, axis=1, keepdims=True)
    # Triangles without an area, or with a place that is no number, say nothing about their neighbours.
    across[~np.isfinite(across).all(axis=1)] = 0
    corners, vertices = faces.ravel(), len(places)
    found = np.empty((vertices, 3), np.float32)
    around = np.maximum(np.bincount(corners, minlength=vertices), 1)
    for k in range(3):
        found[:, k] = np.bincount(corners, np.repeat(across[:, k], 3), vertices) / around
    return found


def instances(
    places: np.ndarray, normals: np.ndarray, transforms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return places and normals of copies of a mesh, one for each 4 x 4 matrix, one below the other."""
    linear = transforms[:, :3, :3]
    moved = np.einsum("tij,nj->tni", linear, places) + transforms[:, None, :3, 3]
    # Normals stay normals under the matrix of cofactors, up to its sign where the copy is a mirror image.
    rows = [np.cross(linear[:, (k + 1) % 3], linear[:, (k + 2) % 3]) for k in range(3)]
    cofactors = np.stack(rows, axis=1)
    sign = np.where(np.linalg.det(linear) < 0, -1.0, 1.0)
    turned = np.einsum("tij,nj->tni", cofactors * sign[:, None, None], normals)
    return moved.reshape(-1, 3).astype(np.float32), turned.reshape(-1, 3).astype(np.float32)


def repeated(shapes: np.ndarray, times: int, vertices: int) -> np.ndarray:
    """Return the shapes of copies of a mesh."""
    shift = np.arange(times, dtype=np.int32) * np.int32(vertices)
    return (shapes[None] + shift[:, None, None]).reshape(-1, shapes.shape[1])


def cut_faces(rows: np.ndarray, faces: np.ndarray, near: float) -> tuple[np.ndarray, np.ndarray]:
    """Cut off what of triangles is nearer than the near plane.

    Args:
        rows: of each vertex its place in the camera's coordinates, and anything else.
        faces: vertices of each triangle.
        near: distance of the plane.

    Returns:
        The rows, with new ones below, and the triangles that are left.
    """
    inside = (rows[:, 2] <= -near)[faces]
    count = inside.sum(axis=1)
    whole = faces[count == 3]
    tips, stumps = _alone_first(faces, inside, count == 1), _alone_first(faces, ~inside, count == 2)
    if not len(tips) + len(stumps):
        return rows, whole
    # One vertex is on its own side of the plane: the edges to both others are cut.
    new, made = _cuts(rows, np.concatenate([tips, stumps]), near)
    one, other = made[: len(tips)], made[len(tips) :]
    left = [
        whole,
        np.stack([tips[:, 0], one[:, 0], one[:, 1]], axis=1),
        np.stack([other[:, 0], stumps[:, 1], stumps[:, 2]], axis=1),
        np.stack([other[:, 0], stumps[:, 2], other[:, 1]], axis=1),
    ]
    return np.concatenate([rows, new]), np.concatenate(left).astype(np.int32)


def _alone_first(faces: np.ndarray, marked: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Turn the chosen triangles so that the only marked vertex comes first."""
    faces, first = faces[chosen], marked[chosen].argmax(axis=1)
    order = (first[:, None] + np.arange(3)) % 3
    return np.take_along_axis(faces, order, axis=1)


def cut_segments(rows: np.ndarray, pairs: np.ndarray, near: float) -> tuple[np.ndarray, np.ndarray]:
    """Cut off what of segments is nearer than the near plane; see `cut_faces`."""
    inside = (rows[:, 2] <= -near)[pairs]
    count = inside.sum(axis=1)
    whole = pairs[count == 2]
    cut = pairs[count == 1]
    if not len(cut):
        return rows, whole
    seen = np.where(inside[count == 1][:, :1], cut, cut[:, ::-1])
    new, made = _cuts(rows, seen, near)
    left = np.stack([seen[:, 0], made[:, 0]], axis=1)
    return np.concatenate([rows, new]), np.concatenate([whole, left]).astype(np.int32)


def _cuts(rows: np.ndarray, shapes: np.ndarray, near: float) -> tuple[np.ndarray, np.ndarray]:
    """Return vertices on the plane, between the first of each shape and its others, and their indices."""
    ends = shapes[:, 1:]
    begin, end = rows[np.repeat(shapes[:, 0], ends.shape[1])], rows[ends.ravel()]
    with np.errstate(all="ignore"):  # what is no number is not drawn
        part = (-near - begin[:, 2:3]) / (end[:, 2:3] - begin[:, 2:3])
        new = (begin + part * (end - begin)).astype(np.float32)
    new[:, 2] = -near
    indices = len(rows) + np.arange(ends.size, dtype=np.int32).reshape(ends.shape)
    return new, indices
