"""Depths of random scenes, seen by random cameras, against rays that NumPy follows in f64.

The seeds are those of scenes in which something was wrong once (triangles that are cut at the near plane and
reach far beyond the picture, slivers), and some others.
"""

import numpy as np
import pytest

import diffsim as ds

RES = (61, 47)


class Eye:
    """A random camera, and the rays through the centres of pixels, of length 1 along its axis."""

    def __init__(self, rng):
        place, lookat, up = rng.normal(0, 2, 3), rng.normal(0, 0.5, 3), rng.normal(0, 1, 3)
        self.fov = rng.uniform(15, 120)
        self.near = 10 ** rng.uniform(-2, 0)
        self.far = self.near * 10 ** rng.uniform(1, 4)
        self.parallel = rng.random() < 0.3
        self.edges = rng.normal(0, 0.5, 2)[:, None] + rng.uniform(0.3, 3, (2, 1)) * [-1, 1]
        self.camera = self._camera(place, lookat, up)
        front = (lookat - place) / np.linalg.norm(lookat - place)
        right = np.cross(front, up) / np.linalg.norm(np.cross(front, up))
        i, j = np.indices(RES) + 0.5
        parts = i[..., None] / RES[0], j[..., None] / RES[1]
        above = np.cross(right, front)
        if self.parallel:
            (left, other), (low, high) = self.edges
            self.origin = (
                place
                + (left + parts[0] * (other - left)) * right
                + (low + parts[1] * (high - low)) * above
            )
            self.along = np.broadcast_to(front, self.origin.shape)
        else:
            half = np.tan(np.radians(self.fov) / 2)
            x, y = (2 * parts[0] - 1) * half * RES[0] / RES[1], (2 * parts[1] - 1) * half
            self.origin, self.along = (
                np.broadcast_to(place, (*RES, 3)),
                front + x * right + y * above,
            )

    def _camera(self, place, lookat, up):
        camera = ds.ui.Camera()
        camera.position(*place)
        camera.lookat(*lookat)
        camera.up(*up)
        camera.fov(self.fov)
        camera.z_near(self.near)
        camera.z_far(self.far)
        if self.parallel:
            camera.projection_mode(1)
            (left, right), (low, high) = self.edges
            for name, edge in (("left", left), ("right", right), ("top", low), ("bottom", high)):
                getattr(camera, name)(edge)
        return camera

    def depth(self, t):
        """The depth at a distance; 0 where that is infinite."""
        span = self.far - self.near
        with np.errstate(all="ignore"):
            found = (
                (self.far - t) / span if self.parallel else self.near * (self.far / t - 1) / span
            )
        return np.where(np.isfinite(t), found, 0)


def sphere(eye, center, radius):
    """Distances to a sphere, and the pixels at its edge, which rounding decides about."""
    square = (eye.along**2).sum(-1)
    middle = (eye.along * (center - eye.origin)).sum(-1) / square
    gap = ((center - eye.origin - middle[..., None] * eye.along) ** 2).sum(-1)
    inside = radius**2 - gap
    t = middle - np.sqrt(np.maximum(inside, 0) / square)
    far = np.linalg.norm(center - eye.origin, axis=-1).max()
    edge = np.abs(inside) < 2e-3 * radius**2 + 1e-5 * radius * far + 1e-6
    edge |= np.abs(t - eye.near) < 1e-3 * eye.near
    return np.where((inside > 0) & (t >= eye.near) & (t <= eye.far), t, np.inf), edge


def triangle(eye, corners):
    """Distances to a triangle, and the pixels at its edges and where it is seen from the side."""
    normal = np.cross(corners[1] - corners[0], corners[2] - corners[0])
    slope = (eye.along * normal).sum(-1)
    t = ((corners[0] - eye.origin) * normal).sum(-1) / slope
    at = eye.origin + t[..., None] * eye.along
    shares = np.stack(
        [
            (np.cross(corners[k - 2] - corners[k], at - corners[k]) * normal).sum(-1)
            / (normal**2).sum()
            for k in range(3)
        ]
    )
    steps = sum(np.abs(np.gradient(shares, axis=axis)).max(0) for axis in (1, 2))
    edge = np.abs(shares).min(0) < 0.05 * steps + 1e-4
    edge |= np.abs(t - eye.near) < 0.02 * eye.near
    edge |= np.abs(slope) < 1e-3 * np.linalg.norm(normal)
    return np.where((shares >= 0).all(0) & (t >= eye.near) & (t <= eye.far), t, np.inf), edge


@pytest.mark.parametrize("seed", [91, 175, 190, 424, 452, 469, 552, *range(8)])
def test_depths_are_those_of_rays(seed):
    rng = np.random.default_rng(seed)
    eye = Eye(rng)
    centers = rng.normal(0, 1, (5, 3)).astype(np.float32)
    radii = (10 ** rng.uniform(-2, 0.3, 5)).astype(np.float32)
    corners = rng.normal(0, 2, (3, 3, 3)).astype(np.float32)
    seen = [
        sphere(eye, c, r) for c, r in zip(centers.astype(float), radii.astype(float), strict=True)
    ]
    seen += [triangle(eye, c) for c in corners.astype(float)]
    nearest, edge = np.min([t for t, _ in seen], 0), np.any([e for _, e in seen], 0)
    window = ds.ui.Window("test", RES, show_window=False)
    scene = window.get_scene()
    scene.set_camera(eye.camera)
    scene.particles(centers, per_vertex_radius=radii)
    scene.mesh(corners)
    window.get_canvas().scene(scene)
    found, expected = window.get_depth_buffer_as_numpy(), eye.depth(nearest)
    assert edge.mean() < 0.5
    np.testing.assert_allclose(found[~edge], expected[~edge], rtol=2e-4, atol=4e-6)
