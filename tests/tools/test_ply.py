"""PLY files hold what was given, in both forms; a reader of the format says so."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.tools import PLYWriter

RNG = np.random.default_rng(0)
TYPES = {"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"}
TYPES |= {"float": "f4", "double": "f8"}


def read(path):
    """The elements of a PLY file: name to (columns by name, list of faces)."""
    head, _, body = path.read_bytes().partition(b"end_header\n")
    lines = head.decode().splitlines()
    assert lines[0] == "ply"
    form = lines[1].split()[1]
    elements, faces = {}, []
    for line in lines[2:]:
        word, *rest = line.split()
        if word == "element":
            columns = elements[rest[0]] = []
            counts = elements.setdefault("counts", {})
            counts[rest[0]] = int(rest[1])
        elif word == "property":
            columns.append(
                ("list", "u1", "i4") if rest[0] == "list" else (rest[1], "<" + TYPES[rest[0]])
            )
    counts = elements.pop("counts")
    words = iter(body.split()) if form == "ascii" else None
    at = 0

    def take(kind):
        nonlocal at
        if words:
            return np.dtype(kind).type(next(words))
        value = np.frombuffer(body, kind, 1, at)[0]
        at += np.dtype(kind).itemsize
        return value

    found = {}
    for name, columns in elements.items():
        for _ in range(counts[name]):
            for column in columns:
                if column[0] == "list":
                    faces.append([int(take("<i4")) for _ in range(int(take("u1")))])
                else:
                    found.setdefault(f"{name} {column[0]}", []).append(take(column[1]))
    assert words is None or next(words, None) is None
    assert words or at == len(body)
    return found, faces


@pytest.mark.parametrize("form", ["export", "export_ascii"])
def test_a_mesh(tmp_path, form):
    x = RNG.random((5, 3)).astype(np.float32)
    corners = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
    writer = PLYWriter(5, 2, "quad")
    writer.add_vertex_pos(*x.T)
    writer.add_vertex_rgba(*RNG.random((4, 5)))
    writer.add_vertex_id()
    writer.add_vertex_channel("heat", "double", x.astype(np.float64)[:, :2] / 3)
    writer.add_faces(corners)
    writer.add_face_piece(np.array([7, 8]))
    getattr(writer, form)(tmp_path / "a.ply")
    found, faces = read(tmp_path / "a.ply")
    for k, axis in enumerate("xyz"):
        np.testing.assert_array_equal(found[f"vertex {axis}"], x[:, k])
    np.testing.assert_array_equal(found["vertex heat_2"], x.astype(np.float64)[:, 1] / 3)
    assert found["vertex id"] == [0, 1, 2, 3, 4]
    assert "vertex Alpha" in found
    assert faces == corners.tolist()
    assert found["face piece"] == [7, 8]


def test_points_alone_and_series(tmp_path):
    writer = PLYWriter(num_vertices=2)
    writer.add_vertex_pos(np.zeros(2), np.ones(2), np.ones(2))
    writer.export_frame(7, str(tmp_path / "a.ply"))
    writer.export_frame_ascii(8, str(tmp_path / "a"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a_000007.ply", "a_000008.ply"]
    for path in tmp_path.iterdir():
        assert read(path)[0]["vertex y"] == [1, 1]


def test_a_field_gives_its_elements(cpu, tmp_path):
    x = ds.field(ds.f32, shape=3)
    x.fill(2.5)
    writer = PLYWriter(3)
    writer.add_vertex_pos(x, x, x)
    writer.export(tmp_path / "a.ply")
    assert read(tmp_path / "a.ply")[0]["vertex z"] == [2.5] * 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda w: PLYWriter(0), "num_vertices is a whole number from 1 on, not 0"),
        (lambda w: PLYWriter(1, 1, "pentagon"), "face_type cannot be 'pentagon'"),
        (lambda w: w.add_vertex_channel("a", "int", [1, 2]), "there are 3 vertices"),
        (lambda w: w.add_vertex_channel("a", "uchar", [1, 2, 256]), "has no room for"),
        (lambda w: w.add_vertex_channel("a", "int", [1, 2, np.nan]), "has no room for"),
        (lambda w: w.add_vertex_channel("a b", "int", [1, 2, 3]), "no channel can be called"),
        (lambda w: (w.add_vertex_id(), w.add_vertex_id()), "a channel id already"),
        (lambda w: w.add_faces([0, 1, 3]), "the corner 3"),
        (lambda w: w.add_faces([0, 1]), "indices has the shape (2,)"),
        (lambda w: w.export("a.ply"), "the vertices have no x, y, z"),
        (lambda w: (w.add_vertex_pos(*np.eye(3)), w.export("a.ply")), "the faces have no corners"),
    ],
)
def test_what_is_refused(wrong, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ds.ArgumentError) as caught:
        wrong(PLYWriter(3, 1))
    assert message in caught.value.message
    assert not list(tmp_path.iterdir())


def test_a_channel_of_an_unknown_type_is_left_out(tmp_path):
    """As in Taichi, one of whose examples has one."""
    writer = ds.tools.PLYWriter(num_vertices=3)
    writer.add_vertex_pos([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0])
    with pytest.warns(
        UserWarning, match="'long' is no type of PLY files, and the channel a is left"
    ):
        writer.add_vertex_channel("a", "long", [1, 2, 3])
    writer.export_ascii(str(tmp_path / "points.ply"))
    written = (tmp_path / "points.ply").read_text().splitlines()
    assert [line for line in written if line.startswith("property")] == [
        f"property float {axis}" for axis in "xyz"
    ]
