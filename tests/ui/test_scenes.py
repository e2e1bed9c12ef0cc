"""What scenes of `ds.ui` show, pixel by pixel, against rays that NumPy follows in f64."""

import numpy as np
import pytest

import diffsim as ds

RES = (96, 72)
NEAR, FAR = 0.1, 1000.0


@pytest.fixture
def window():
    return ds.ui.Window("test", RES, show_window=False)


def camera_at(position, lookat, up=(0, 1, 0), **settings):
    camera = ds.ui.Camera()
    camera.position(*position)
    camera.lookat(*lookat)
    camera.up(*up)
    for name, value in settings.items():
        getattr(camera, name)(value)
    return camera


def drawn(window, camera, lights=(), ambient=(0, 0, 0), background=(0, 0, 0), **parts):
    """The picture and the depths, (x, y), of a scene; `parts`: arguments of its methods, by their names."""
    canvas, scene = window.get_canvas(), window.get_scene()
    canvas.set_background_color(background)
    scene.set_camera(camera)
    scene.ambient_light(ambient)
    for pos, color in lights:
        scene.point_light(pos, color)
    for method, (args, named) in parts.items():
        getattr(scene, method.rstrip("_"))(*args, **named)
    canvas.scene(scene)
    return window.get_image_buffer_as_numpy()[:, :, :3], window.get_depth_buffer_as_numpy()


def axes_of(position, lookat, up):
    front = np.subtract(lookat, position).astype(float)
    front /= np.linalg.norm(front)
    right = np.cross(front, up)
    right /= np.linalg.norm(right)
    return right, np.cross(right, front), front


def rays(position, lookat, up=(0, 1, 0), fov=45):
    """Origin, and the direction through the centre of each pixel (x, y), of length 1 along the axis."""
    right, above, front = axes_of(position, lookat, up)
    i, j = np.indices(RES) + 0.5
    half = np.tan(np.radians(fov) / 2)
    u = (2 * i / RES[0] - 1) * half * RES[0] / RES[1]
    v = (2 * j / RES[1] - 1) * half
    return np.array(position, float), front + u[..., None] * right + v[..., None] * above


def depth_of(distance):
    """As Taichi's: 1 at the near plane, 0 at the far one."""
    return NEAR * (FAR / distance - 1) / (FAR - NEAR)


def hit(origin, along, center, radius):
    """How far along each ray a sphere begins; NaN where it is not hit."""
    a = (along**2).sum(-1)
    b = (along * (center - origin)).sum(-1)
    c = ((center - origin) ** 2).sum() - radius**2
    with np.errstate(invalid="ignore"):
        return (b - np.sqrt(b * b - a * c)) / a


def lit(at, normal, color, lights, ambient):
    """Lambert's law."""
    total = np.array(ambient, float) + np.zeros_like(at)
    for pos, light in lights:
        towards = np.subtract(pos, at)
        towards /= np.linalg.norm(towards, axis=-1, keepdims=True)
        total += np.maximum((normal * towards).sum(-1), 0)[..., None] * light
    return np.clip(total * color, 0, 1)


LIGHTS = [((2, 3, 4), (0.7, 0.6, 0.5)), ((-3, 1, 1), (0.1, 0.3, 0.2))]
VIEWS = {
    "along z": ((0, 0, 3), (0, 0, 0), (0, 1, 0)),
    "from above": ((0.5, 2.5, -1.5), (0.1, 0, 0.2), (0, 0, 1)),
    "tilted": ((-2, 0.5, 1), (0.2, -0.1, 0), (0.3, 1, 0.1)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_spheres_are_lit_where_rays_hit_them(window, view):
    centers = np.array([[0.1, -0.2, 0.3], [-0.3, 0.3, -0.4], [0.35, 0.1, 0.0]])
    radii, colors = np.array([0.25, 0.4, 0.15]), np.array([[1, 0.5, 0.2], [0.3, 0.9, 1], [1, 1, 1]])
    named = {"per_vertex_radius": radii, "per_vertex_color": colors}
    image, depth = drawn(
        window,
        camera_at(*VIEWS[view], fov=40),
        LIGHTS,
        (0.1, 0.1, 0.2),
        particles=((centers,), named),
    )
    origin, along = rays(*VIEWS[view], fov=40)
    far = np.stack([hit(origin, along, c, r) for c, r in zip(centers, radii, strict=True)])
    nearest = np.where(np.isnan(far), np.inf, far)
    which, t = nearest.argmin(0), nearest.min(0)
    seen = np.isfinite(t)
    at = origin + t[seen][:, None] * along[seen]
    normal = (at - centers[which[seen]]) / radii[which[seen]][:, None]
    expected = np.zeros((*RES, 3))
    expected[seen] = lit(at, normal, colors[which[seen]], LIGHTS, (0.1, 0.1, 0.2))
    # Of pixels at an edge f32 and f64 may see another side.
    wrong = np.abs(image - expected).max(-1) > 1.01 / 255
    assert seen.sum() > 500
    assert wrong.sum() <= 3
    np.testing.assert_allclose(depth[~wrong & seen], depth_of(t)[~wrong & seen], rtol=2e-5)
    assert (depth[~wrong & ~seen] == 0).all()


@pytest.mark.parametrize("view", VIEWS)
def test_a_place_is_where_its_projection_is(window, view):
    position, _lookat, _up = VIEWS[view]
    place = np.array([0.3, 0.2, -0.1])
    _, depth = drawn(window, camera_at(*VIEWS[view]), particles=(([place],), {"radius": 0.004}))
    right, above, front = axes_of(*VIEWS[view])
    offset = place - position
    size = RES[1] / 2 / np.tan(np.pi / 8) / (offset @ front)
    column = RES[0] / 2 + size * (offset @ right)
    row = RES[1] / 2 + size * (offset @ above)
    found = np.argwhere(depth)
    assert len(found) <= 1  # smaller than a pixel: that one alone whose centre it covers
    _, depth = drawn(window, camera_at(*VIEWS[view]), particles=(([place],), {"radius": 0.05}))
    middle = (np.argwhere(depth) + 0.5).mean(0)
    np.testing.assert_allclose(middle, (column, row), atol=0.25)


def test_a_parallel_projection_keeps_sizes(window):
    camera = camera_at((0, 0, 5), (0, 0, 0), projection_mode=1, left=-2, right=2, top=-1, bottom=1)
    centers = [[1, 0.5, 0], [-1, -0.5, 3]]
    image, depth = drawn(window, camera, ambient=(1, 1, 1), particles=((centers,), {"radius": 0.4}))
    i, j = np.indices(RES) + 0.5
    x, y = i / RES[0] * 4 - 2, j / RES[1] * 2 - 1
    for cx, cy, cz in centers:
        height = np.sqrt(np.maximum(0.16 - (x - cx) ** 2 - (y - cy) ** 2, 0))
        inside = height > 0.01
        expected = (FAR - (5 - cz - height)) / (FAR - NEAR)
        np.testing.assert_allclose(depth[inside], expected[inside], rtol=1e-6)
        assert (image[inside] == np.float32(128 / 255)).all()
    assert (depth > 0).sum() == pytest.approx(2 * np.pi * 0.16 * RES[0] * RES[1] / 8, rel=0.03)


def floor(size):
    """A square of two triangles at y = 0, and colours that follow from the place."""
    places = np.array([[-1, 0, -1], [1, 0, -1], [-1, 0, 1], [1, 0, 1]]) * size
    colors = np.stack([places[:, 0], places[:, 2], 0 * places[:, 0]], -1) / (2 * size) + 0.5
    return places, [0, 2, 1, 1, 2, 3], colors


@pytest.mark.parametrize("size", [0.8, 5.0])  # the larger one goes below and behind the camera
def test_colors_of_triangles_are_mixed_in_space(window, size):
    view = ((0.3, 0.4, 1.5), (0, 0, 0))
    places, indices, colors = floor(size)
    image, depth = drawn(
        window, camera_at(*view), ambient=(1, 1, 1),
        mesh=((places,), {"indices": indices, "per_vertex_color": colors}),
    )  # fmt: skip
    origin, along = rays(*view)
    t = -origin[1] / along[..., 1]
    at = origin + t[..., None] * along
    seen = (t > NEAR) & (np.abs(at[..., [0, 2]]) < size * 0.99).all(-1)
    expected = np.stack([at[..., 0], at[..., 2], 0 * t], -1) / (2 * size) + 0.5
    assert seen.sum() > 500
    np.testing.assert_allclose(image[seen], expected[seen], atol=1.01 / 255)
    np.testing.assert_allclose(depth[seen], depth_of(t)[seen], rtol=1e-4)
    outside = (t < 0) | (np.abs(at[..., [0, 2]]) > size * 1.02).any(-1)
    assert (depth[outside] == 0).all()


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("side", [1, -1])
def test_light_falls_on_the_side_that_it_is_on(window, side, two_sided):
    places, indices, _ = floor(5)
    view = ((0, 1.0 * side, 0.2), (0, 0, 0))
    light = [((0.5, 2 * side, -1), (0.8, 0.8, 0.8))]
    image, _ = drawn(
        window, camera_at(*view), light, (0.1, 0.1, 0.1),
        mesh=((places,), {"indices": indices, "color": (1, 0.5, 1), "two_sided": two_sided}),
    )  # fmt: skip
    origin, along = rays(*view)
    at = origin - (origin[1] / along[..., 1])[..., None] * along
    facing = side if two_sided else 1  # counterclockwise from above
    expected = lit(at, np.array([0, facing, 0]), (1, 0.5, 1), light, (0.1, 0.1, 0.1))
    np.testing.assert_allclose(image, expected, atol=1.01 / 255)


def ball(n=12):
    """A closed mesh around the origin, counterclockwise from outside."""
    u, v = np.meshgrid(np.linspace(0, np.pi, n), np.linspace(0, 2 * np.pi, 2 * n), indexing="ij")
    places = np.stack([np.sin(u) * np.sin(v), np.cos(u), np.sin(u) * np.cos(v)], -1).reshape(-1, 3)
    k = np.arange(n * 2 * n).reshape(n, 2 * n)
    a, b, c, d = (k[i : n - 1 + i, j : 2 * n - 1 + j].ravel() for i in (0, 1) for j in (0, 1))
    return places * 0.7, np.stack([a, c, b, b, c, d], -1).ravel()


def test_normals_are_found_between_neighbours(window):
    places, indices = ball()
    camera = camera_at((0.4, 0.3, 3), (0, 0, 0))
    found, _ = drawn(window, camera, LIGHTS, mesh=((places,), {"indices": indices}))
    around = [[] for _ in places]
    for corners in indices.reshape(-1, 3):
        a, b, c = places[corners]
        normal = np.cross(b - a, c - a)
        if np.linalg.norm(normal) > 1e-9:  # at the poles there are triangles without an area
            normal /= np.linalg.norm(normal)
        for k in corners:
            around[k].append(normal)
    means = np.array([np.mean(n, axis=0) for n in around])
    given, _ = drawn(window, camera, LIGHTS, mesh=((places, indices), {"normals": means}))
    np.testing.assert_allclose(found, given, atol=1.01 / 255)
    given, _ = drawn(window, camera, LIGHTS, mesh=((places, indices), {"normals": places}))
    assert given.max() > 0.3
    assert np.abs(found - given).mean() < 0.004  # a mesh is no sphere
    smooth, _ = drawn(window, camera, LIGHTS, particles=(([[0, 0, 0]],), {"radius": 0.7}))
    assert np.abs(smooth - given).mean() < 0.01


def test_what_is_nearer_hides_what_is_added_later(window):
    camera = camera_at((0, 0, 3), (0, 0, 0))
    square = [[-1, -1, 0], [1, -1, 0], [-1, 1, 0], [1, 1, 0]]
    parts = {
        "particles": (([[0, 0, 0.0]],), {"radius": 0.5, "color": (1, 0, 0)}),
        "mesh": ((square, [0, 1, 2, 1, 3, 2]), {"color": (0, 1, 0)}),
        "lines": (([[-1, 0.2, 0.3], [1, 0.2, 0.3]], 3.0), {"color": (0, 0, 1)}),
    }
    image, depth = drawn(window, camera, ambient=(1, 1, 1), **parts)
    turned, other = drawn(window, camera, ambient=(1, 1, 1), **dict(reversed(parts.items())))
    # Half of the ball is before the square, and the line runs through the ball.
    x, y = RES[0] // 2, RES[1] // 2
    line = y + round(0.2 / 2.7 * RES[1] / 2 / np.tan(np.pi / 8))
    assert tuple(image[x, y]) == (1, 0, 0)
    assert tuple(image[x, line]) == (1, 0, 0)
    assert tuple(image[x + 25, line]) == (0, 0, 1)
    assert tuple(image[x + 25, y]) == (0, 1, 0)
    np.testing.assert_array_equal(depth, other)
    np.testing.assert_array_equal(image, turned)


def test_lines_are_as_wide_as_pixels_anywhere(window):
    camera = camera_at((0, 0, 3), (0, 0, 0))
    ends = [[-9, 0.0, 0], [9, 0.0, 0], [-9, 0.9, -5], [9, 0.9, -5]]
    image, _ = drawn(window, camera, lines=((ends, 4.0), {"color": (1, 1, 1)}))
    np.testing.assert_allclose(image[:, :, 0].sum(1), 8, atol=0.02)


def test_a_line_begins_at_the_near_plane(window):
    """From behind the camera to far before it: the part before the camera is seen, in its own colours."""
    camera = camera_at((0, 0, 0), (0, 0, -1))
    ends, colors = [[-1, -1, 3], [1, 1, -5]], [[0, 0, 0], [1, 1, 1]]
    image, _depth = drawn(window, camera, lines=((ends, 1.0), {"per_vertex_color": colors}))
    size = RES[1] / 2 / np.tan(np.pi / 8)
    for distance in (0.5, 1.0, 2.0, 4.5):
        part = (3 + distance) / 8
        x, y = (int(n / 2 + size * (2 * part - 1) / distance) for n in RES)
        near = image[x - 1 : x + 2, y - 1 : y + 2].max()
        assert near == pytest.approx(part, abs=0.06), distance


def test_copies_are_where_their_matrices_put_them(window):
    places, indices = ball(6)
    camera = camera_at((1, 2, 5), (0, 0, 0))
    move, mirror = np.eye(4), np.diag([-1.0, 1, 1, 1])
    move[:3] = [[0, 0.5, 0, -1], [-0.5, 0, 0, 0.2], [0, 0, 2, 0.3]]
    mirror[0, 3] = 0.8
    transforms = ds.Matrix.field(4, 4, ds.f32, shape=3)
    transforms.from_numpy(np.stack([np.eye(4) * 0, move, mirror]).astype(np.float32))
    colors = np.abs(places)
    named = {"indices": indices, "per_vertex_color": colors}
    found = drawn(
        window, camera, LIGHTS,
        mesh_instance=((places,), {**named, "transforms": transforms, "instance_offset": 1}),
    )  # fmt: skip
    homogeneous = np.c_[places, np.ones(len(places))]
    normals = [places @ np.linalg.inv(m[:3, :3]) for m in (move, mirror)]
    one, other = ({"normals": n, **named} for n in normals)  # of a ball, the normals are its places
    expected = drawn(
        window, camera, LIGHTS,
        mesh=(((homogeneous @ move.T)[:, :3],), one),
        mesh_=(((homogeneous @ mirror.T)[:, :3],), other),
    )  # fmt: skip
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
    assert (expected[1] > 0).sum() > 600
    assert np.abs(found[0] - expected[0]).mean() < 0.01


def test_parts_of_arrays(window):
    camera, (places, indices) = camera_at((0, 0, 3), (0, 0, 0)), ball(5)
    white = {"color": (1, 1, 1)}

    def seen(method, *args, **named):
        return drawn(window, camera, ambient=(1, 1, 1), **{method: (args, {**white, **named})})[1]

    spheres = seen("particles", places, radius=0.1, index_offset=10, index_count=7)
    assert (spheres == seen("particles", places[10:17], radius=0.1)).all()
    faces = seen("mesh", places, indices, index_offset=60, index_count=30)
    assert (faces == seen("mesh", places, indices[60:90])).all()
    shifted = seen("mesh", places, indices[:30] - indices[:30].min() + 1, vertex_offset=3)
    assert (shifted == seen("mesh", places, indices[:30] - indices[:30].min() + 4)).all()
    loose = places[indices]
    assert (
        seen("mesh", loose, vertex_offset=30, vertex_count=60) == seen("mesh", loose[30:90])
    ).all()
    segments = seen(
        "lines", places, 2.0, vertex_offset=4, vertex_count=9
    )  # an odd one is left over
    assert (segments == seen("lines", places[4:12], 2.0)).all()
    assert spheres.any()
    assert faces.any()
    assert shifted.any()
    assert segments.any()
    assert not seen("particles", places, radius=0.1, index_offset=1000).any()


def test_wireframes_are_edges_alone(window):
    camera = camera_at((0, 0, 3), (0, 0, 0))
    square = [[-0.8, -0.8, 0], [0.8, -0.8, 0], [-0.8, 0.8, 0], [0.8, 0.8, 0]]
    named = {"indices": [0, 1, 2, 1, 3, 2], "color": (1, 1, 1)}
    whole, _ = drawn(window, camera, ambient=(1, 1, 1), mesh=((square,), named))
    edges, _ = drawn(
        window, camera, ambient=(1, 1, 1), mesh=((square,), {**named, "show_wireframe": True})
    )
    assert (edges <= whole).all()
    inside = whole[:, :, 0] > 0
    k = np.flatnonzero(inside.any(1))
    assert edges[k[0], RES[1] // 2, 0] == edges[k[-1], RES[1] // 2, 0] == 1
    assert edges[RES[0] // 2, RES[1] // 2].any()  # the diagonal
    assert not edges[k[0] + 5, RES[1] // 2].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_no_number_is_not_drawn(window, bad):
    camera, (places, indices) = camera_at((0, 0, 3), (0, 0, 0)), ball(5)
    broken = places.copy()
    broken[7] = bad
    left = indices.reshape(-1, 3)
    left = left[~(left == 7).any(1)].ravel()
    others = np.delete(places, 7, 0)
    for method, whole, part in [
        ("particles", {"centers": broken, "radius": 0.1}, {"centers": others, "radius": 0.1}),
        ("mesh", {"vertices": broken, "indices": indices}, {"vertices": places, "indices": left}),
        ("lines", {"vertices": broken[:8], "width": 2}, {"vertices": places[:6], "width": 2}),
    ]:  # fmt: skip
        found = drawn(window, camera, LIGHTS, (0.1, 0.1, 0.1), **{method: ((), whole)})
        expected = drawn(window, camera, LIGHTS, (0.1, 0.1, 0.1), **{method: ((), part)})
        if not np.isfinite(bad):  # what is far away may be seen
            np.testing.assert_array_equal(found[1], expected[1], err_msg=method)
        assert np.isfinite(found[0]).all()


def test_bands_of_rows_make_the_same_picture(window, monkeypatch):
    places, indices = ball()
    parts = {
        "particles": ((places * 1.2,), {"radius": 0.1}),
        "mesh": ((places, indices), {"color": (0.2, 0.5, 0.9)}),
        "lines": ((places, 2.0), {}),
    }
    camera = camera_at((0, 0.5, 3), (0, 0, 0))
    whole = drawn(window, camera, LIGHTS, **parts)
    monkeypatch.setattr("diffsim.ui.drawing.bands", lambda few: 7)
    cut = drawn(window, camera, LIGHTS, **parts)
    assert (whole[0] == cut[0]).all()
    assert (whole[1] == cut[1]).all()


def test_fields_are_drawn_as_they_were_when_they_were_added(window):
    x = ds.Vector.field(3, ds.f32, shape=(2, 2))
    places = np.array([[[0, 0, 0], [0.5, 0, 0]], [[0, 0.5, 0], [0.5, 0.5, 0]]], np.float32)
    scene, canvas = window.get_scene(), window.get_canvas()
    camera = camera_at((0, 0, 3), (0, 0, 0))

    def depth(given, change):
        scene.set_camera(camera)
        scene.particles(given, radius=0.1)
        canvas.scene(scene)
        change()
        return window.get_depth_buffer_as_numpy()

    x.from_numpy(places)
    found = depth(x, lambda: x.fill(9))
    given = places.copy()
    same = depth(given, lambda: given.fill(9))
    flat = depth(places.reshape(-1, 3).tolist(), lambda: None)
    assert flat.any()
    assert (found == flat).all()
    assert (same == flat).all()
    assert not depth([], lambda: None).any()  # parts and lights are for one frame


def test_depths_go_to_fields(window):
    _, expected = drawn(
        window, camera_at((0, 0, 3), (0, 0, 0)), particles=(([[0, 0, 0]],), {"radius": 1.0})
    )
    for made in (ds.field(ds.f32, shape=RES), ds.ndarray(ds.f32, shape=RES)):
        window.get_depth_buffer(made)
        assert (made.to_numpy() == expected).all()
    with pytest.raises(ds.ArgumentError, match=r"a field of shape \(96, 72\)"):
        window.get_depth_buffer(ds.field(ds.f32, shape=(4, 4)))


def test_matrices_of_the_camera():
    """(x, y, z, 1) @ V @ P is what the rays say, for both projections."""
    view = VIEWS["tilted"]
    place = np.array([0.3, -0.4, 0.2])
    right, above, front = axes_of(*view)
    x, y, d = (place - view[0]) @ np.stack([right, above, front], -1)
    camera = camera_at(*view, fov=60, z_near=0.5, z_far=9)
    clip = [*place, 1] @ camera.get_view_matrix() @ camera.get_projection_matrix(1.5)
    size = 1 / np.tan(np.pi / 6)
    depth = 0.5 * (9 / d - 1) / (9 - 0.5)
    np.testing.assert_allclose(
        clip / clip[3], [x / d * size / 1.5, y / d * size, depth, 1], rtol=1e-5
    )
    camera = camera_at(
        *view, z_near=0.5, z_far=9, projection_mode=1, left=-2, right=4, top=-3, bottom=1
    )
    clip = [*place, 1] @ camera.get_view_matrix() @ camera.get_projection_matrix(1.5)
    np.testing.assert_allclose(clip, [(x - 1) / 3, (y + 1) / 2, (9 - d) / 8.5, 1], rtol=1e-5)


WRONG = {
    r"centers has shape \(4, 5\), and a place has 3 numbers": lambda s: s.particles(
        np.zeros((4, 5)), radius=1
    ),
    "per_vertex_color has 2 elements, and there are 4 centers": lambda s: s.particles(
        np.zeros((4, 3)), 1, per_vertex_color=np.zeros((2, 3))
    ),
    "per_vertex_radius has 3 elements": lambda s: s.particles(
        np.zeros((4, 3)), per_vertex_radius=np.ones(3)
    ),
    "radius is a number, not None": lambda s: s.particles(np.zeros((4, 3))),
    "a radius is 0 or more, and one is -2": lambda s: s.particles(np.zeros((4, 3)), -2),
    "indices has 4, and there are 4 vertices": lambda s: s.mesh(np.zeros((4, 3)), [0, 1, 4]),
    "indices has -1": lambda s: s.lines(np.zeros((4, 3)), 1.0, indices=[-1, 0]),
    "indices are whole numbers, not float64": lambda s: s.mesh(np.zeros((4, 3)), [0.0, 1.0, 2.0]),
    "normals has 2 elements, and there are 4 vertices": lambda s: s.mesh(
        np.zeros((4, 3)), normals=np.zeros((2, 3))
    ),
    "color is a colour of three numbers": lambda s: s.mesh(np.zeros((3, 3)), color=0xFF0000),
    "transforms are 4 x 4 matrices": lambda s: s.mesh_instance(
        np.zeros((3, 3)), transforms=np.zeros((3, 3))
    ),
    "width is a positive number": lambda s: s.lines(np.zeros((4, 3)), 0),
    "index_count is 0 or more": lambda s: s.particles(np.zeros((4, 3)), 1, index_count=-1),
    "a camera is a ds.ui.Camera": lambda s: s.set_camera((0, 0, 1)),
    "a scene has no .particle": lambda s: s.particle,
    "has no attribute 'Windw'": lambda s: ds.ui.Windw,
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_drawn_is_refused(message):
    with pytest.raises((ds.ArgumentError, AttributeError), match=message):
        WRONG[message](ds.ui.Scene())


CAMERAS = {
    "looks at the place where it is": {"lookat": (0, 0, 0)},
    "up is the direction": {"lookat": (0, -2, 0)},
    "z_near is 0.1, and z_far 0.05": {"z_far": (0.05,)},
    "edges leave no picture": {"projection_mode": (1,), "left": (1,)},
    "an angle of 180 degrees": {"fov": (180,)},
    "a projection is 0 or 1": {"projection_mode": (2,)},
    "each coordinate of up is a number": {"up": (0, "y", 0)},
}


@pytest.mark.parametrize("message", CAMERAS)
def test_cameras_that_see_nothing_are_refused(window, message):
    camera = ds.ui.Camera()
    with pytest.raises(ds.ArgumentError, match=message):
        for name, args in CAMERAS[message].items():
            getattr(camera, name)(*args)
        drawn(window, camera)
