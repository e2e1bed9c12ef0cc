"""`PLYWriter`: points and meshes in the PLY format, which Blender, MeshLab, Houdini and ParaView read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from diffsim.errors import shown, warn
from diffsim.lang.host.signatures import checked_methods, is_one_of, need_count, need_whole
from diffsim.lang.host.unsupported import Explained
from diffsim.runtime.files import write_file
from diffsim.tools.pictures.arrays import as_array, path_of, refuse

_TYPES = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "float": "f4",
    "double": "f8",
}
_CORNERS = {"tri": 3, "quad": 4}


class _Element:
    """The channels of all vertices, or of all faces: name, type, one value each."""

    def __init__(self, what: str, count: int) -> None:
        self.what = what
        self.count = count
        self.channels: dict[str, np.ndarray] = {}

    def add(self, key: str, data_type: str, data: Any) -> None:
        """Add a channel, or `key_1`, `key_2`, ... for the columns of an array."""
        if not isinstance(key, str):
            raise refuse(
                f"the name of a channel is a text, not {shown(key)}", 'give a name: "mass"'
            )
        if not is_one_of(data_type, *_TYPES):
            # As in Taichi, whose programs go on without the channel.
            warn(
                f"{shown(data_type)} is no type of PLY files, and the channel {key} is left out; there are "
                + ", ".join(_TYPES),
                UserWarning,
            )
            return
        found = as_array(data, f"the channel {key}")
        if found.ndim == 0 or found.shape[0] != self.count:
            raise refuse(
                f"the channel {key} has the shape {found.shape}, and there are {self.count} {self.what}",
                f"give ({self.count},) values",
            )
        if found.ndim == 1:
            self._add(key, data_type, found)
            return
        for k, column in enumerate(found.reshape(self.count, -1).T):
            self._add(f"{key}_{k + 1}", data_type, column)

    def _add(self, key: str, data_type: str, column: np.ndarray) -> None:
        if key in self.channels:
            raise refuse(f"there is a channel {key} already", "give each channel a name of its own")
        if not key.isascii() or not key or any(c.isspace() for c in key):
            raise refuse(f"no channel can be called {key!r}", "use letters, digits and _")
        kind = np.dtype(_TYPES[data_type])
        if kind.kind in "iu" and column.size:
            info = np.iinfo(kind)
            if not (info.min <= column.min() and column.max() <= info.max):  # NaN as well
                raise refuse(
                    f"the channel {key} holds values that {data_type} has no room for",
                    'take a wider type, such as "int" or "float"',
                )
        self.channels[key] = column.astype(kind)

    def header(self) -> list[str]:
        names = {np.dtype(code): name for name, code in _TYPES.items()}
        return [f"property {names[data.dtype]} {key}" for key, data in self.channels.items()]


@checked_methods(
    "__init__ add_vertex_channel add_vertex_pos add_vertex_normal add_vertex_vel add_vertex_color "
    "add_vertex_alpha add_vertex_rgba add_vertex_id add_vertex_piece add_faces add_face_channel add_face_id "
    "add_face_piece export export_ascii export_frame export_frame_ascii"
)
class PLYWriter(Explained):
    """Writes points, and a mesh between them, as PLY files; the interface is Taichi's.

        writer = ds.tools.PLYWriter(num_vertices=n)
        writer.add_vertex_pos(*x.to_numpy().T)
        writer.export_frame(t, "out/liquid.ply")  # out/liquid_000000.ply

    Args:
        num_vertices: how many points there are.
        num_faces: how many faces.
        face_type: "tri" or "quad".
        comment: a line of the file.

    Example:
        from pathlib import Path

        writer = ds.tools.PLYWriter(num_vertices=3, num_faces=1)
        writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
        writer.add_faces([0, 1, 2])
        writer.export("mesh.ply")
        print(Path("mesh.ply").read_bytes()[:3])  # prints: b'ply'
    """

    _words = "a PLYWriter"

    def __init__(
        self,
        num_vertices: int,
        num_faces: int = 0,
        face_type: str = "tri",
        comment: str = "created by diffsim",
    ) -> None:
        for count, name, least in ((num_vertices, "num_vertices", 1), (num_faces, "num_faces", 0)):
            need_count(count, name, least)
        if not is_one_of(face_type, *_CORNERS):
            raise refuse(f"face_type cannot be {shown(face_type)}", 'use "tri" or "quad"')
        if "\n" in str(comment):
            raise refuse("the comment has several lines", "write one line")
        self.comment = str(comment)
        self._vertices = _Element("vertices", int(num_vertices))
        self._faces = _Element("faces", int(num_faces))
        self._corners = _CORNERS[face_type]
        self._indices: np.ndarray | None = None

    def add_vertex_channel(self, key: str, data_type: str, data: Any) -> None:
        """Add values of all vertices: (n,), or (n, m), which gives channels key_1 to key_m.

        Args:
            key: the name of the channel.
            data_type: "char", "uchar", "short", "ushort", "int", "uint", "float" or "double".
            data: the values.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_vertex_channel("mass", "float", [1.0, 2.0, 3.0])
            writer.export_ascii("mesh.ply")
            print("property float mass" in Path("mesh.ply").read_text())  # prints: True
        """
        self._vertices.add(key, data_type, data)

    def add_vertex_pos(self, x: Any, y: Any, z: Any) -> None:
        """Add the positions, (n,) each.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.export_ascii("mesh.ply")
            print("property float x" in Path("mesh.ply").read_text())  # prints: True
        """
        self._add_all("x y z", x, y, z)

    def add_vertex_normal(self, nx: Any, ny: Any, nz: Any) -> None:
        """Add the normals, (n,) each.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            zeros, ones = np.zeros(3), np.ones(3)
            writer.add_vertex_normal(zeros, zeros, ones)
            writer.export_ascii("mesh.ply")
            print("property float nz" in Path("mesh.ply").read_text())  # prints: True
        """
        self._add_all("nx ny nz", nx, ny, nz)

    def add_vertex_vel(self, vx: Any, vy: Any, vz: Any) -> None:
        """Add the velocities, (n,) each.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_vertex_vel([1, 1, 1], [0, 0, 0], [0, 0, 0])
            writer.export_ascii("mesh.ply")
            print("property float vx" in Path("mesh.ply").read_text())  # prints: True
        """
        self._add_all("vx vy vz", vx, vy, vz)

    def add_vertex_color(self, r: Any, g: Any, b: Any) -> None:
        """Add colours from 0 to 1, (n,) each.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_vertex_color([1, 0, 0], [0, 1, 0], [0, 0, 1])
            writer.export_ascii("mesh.ply")
            print("red" in Path("mesh.ply").read_text())  # prints: True
        """
        self._add_all("red green blue", r, g, b)

    def add_vertex_alpha(self, alpha: Any) -> None:
        """Add opacities from 0 to 1, (n,).

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_vertex_alpha([1.0, 0.5, 0.5])
            writer.export_ascii("mesh.ply")
            print("Alpha" in Path("mesh.ply").read_text())  # prints: True
        """
        self._add_all("Alpha", alpha)

    def add_vertex_rgba(self, r: Any, g: Any, b: Any, a: Any) -> None:
        """Add colours and opacities from 0 to 1, (n,) each.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_vertex_rgba([1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1])
            writer.export_ascii("mesh.ply")
            print("Alpha" in Path("mesh.ply").read_text())  # prints: True
        """
        self._add_all("red green blue Alpha", r, g, b, a)

    def _add_all(self, keys: str, *columns: Any) -> None:
        for key, column in zip(keys.split(), columns, strict=True):
            self._vertices.add(key, "float", column)

    def add_vertex_id(self) -> None:
        """Add the number of each vertex.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_vertex_id()
            writer.export_ascii("mesh.ply")
            print("property int id" in Path("mesh.ply").read_text())  # prints: True
        """
        self._vertices.add("id", "int", np.arange(self._vertices.count))

    def add_vertex_piece(self, piece: Any) -> None:
        """Add the number of the piece that each vertex belongs to, (n,).

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_vertex_piece([0, 0, 1])
            writer.export_ascii("mesh.ply")
            print("property int piece" in Path("mesh.ply").read_text())  # prints: True
        """
        self._vertices.add("piece", "int", piece)

    def add_faces(self, indices: Any) -> None:
        """Add the corners of the faces: numbers of vertices, (faces, 3 or 4) or in a row.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3, num_faces=1)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_faces([0, 1, 2])
            writer.export_ascii("mesh.ply")
            print("element face 1" in Path("mesh.ply").read_text())  # prints: True
        """
        found = as_array(indices, "indices")
        count, corners = self._faces.count, self._corners
        if found.size != count * corners or found.dtype.kind not in "iu":
            raise refuse(
                f"indices has the shape {found.shape} and the type {found.dtype}",
                f"give ({count}, {corners}) whole numbers",
            )
        if found.size and not 0 <= found.min() <= found.max() < self._vertices.count:
            raise refuse(
                f"a face has the corner {found.min() if found.min() < 0 else found.max()}, and there are "
                f"{self._vertices.count} vertices",
                f"they are numbered from 0 to {self._vertices.count - 1}",
            )
        self._indices = found.reshape(count, corners).astype("i4")

    def add_face_channel(self, key: str, data_type: str, data: Any) -> None:
        """Add values of all faces, as `add_vertex_channel` does.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3, num_faces=1)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_faces([0, 1, 2])
            writer.add_face_channel("area", "float", [0.5])
            writer.export_ascii("mesh.ply")
            print("property float area" in Path("mesh.ply").read_text())  # prints: True
        """
        self._faces.add(key, data_type, data)

    def add_face_id(self) -> None:
        """Add the number of each face.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3, num_faces=1)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_faces([0, 1, 2])
            writer.add_face_id()
            writer.export_ascii("mesh.ply")
            print("property int id" in Path("mesh.ply").read_text())  # prints: True
        """
        self._faces.add("id", "int", np.arange(self._faces.count))

    def add_face_piece(self, piece: Any) -> None:
        """Add the number of the piece that each face belongs to.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3, num_faces=1)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_faces([0, 1, 2])
            writer.add_face_piece([0])
            writer.export_ascii("mesh.ply")
            print("property int piece" in Path("mesh.ply").read_text())  # prints: True
        """
        self._faces.add("piece", "int", piece)

    def export(self, path: Any) -> None:
        """Write a binary file.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3, num_faces=1)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_faces([0, 1, 2])
            writer.export("mesh.ply")
            print(Path("mesh.ply").read_bytes()[:3])  # prints: b'ply'
        """
        self._write(path_of(path, "the mesh"), binary=True)

    def export_ascii(self, path: Any) -> None:
        """Write a file of text.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3, num_faces=1)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_faces([0, 1, 2])
            writer.export_ascii("mesh.ply")
            print(Path("mesh.ply").read_text()[:3])  # prints: ply
        """
        self._write(path_of(path, "the mesh"), binary=False)

    def export_frame(self, series_num: int, path: Any) -> None:
        """Write a binary file of a series: number 7 of "cloth.ply" is cloth_000007.ply.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3, num_faces=1)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_faces([0, 1, 2])
            writer.export_frame(7, "cloth.ply")
            print(Path("cloth_000007.ply").exists())  # prints: True
        """
        self._write(self._of_series(series_num, path), binary=True)

    def export_frame_ascii(self, series_num: int, path: Any) -> None:
        """Write a file of text, of a series.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3, num_faces=1)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.add_faces([0, 1, 2])
            writer.export_frame_ascii(7, "cloth.ply")
            print(Path("cloth_000007.ply").exists())  # prints: True
        """
        self._write(self._of_series(series_num, path), binary=False)

    @staticmethod
    def _of_series(number: int, path: Any) -> Path:
        need_whole(number, "series_num")
        given = path_of(path, "the mesh")
        stem = given.stem if given.suffix == ".ply" else given.name
        return given.with_name(f"{stem}_{number:06d}.ply")

    def _write(self, path: Path, *, binary: bool) -> None:
        missing = [axis for axis in "xyz" if axis not in self._vertices.channels]
        if missing:
            raise refuse(
                f"the vertices have no {', '.join(missing)}", "call add_vertex_pos(x, y, z) before"
            )
        if self._faces.count and self._indices is None:
            raise refuse("the faces have no corners", "call add_faces(indices) before")
        head = self._header("binary_little_endian" if binary else "ascii")
        tables = [self._vertices.channels]
        if self._indices is not None and self._faces.count:
            corners = {f"corner {k}": column for k, column in enumerate(self._indices.T)}
            size = np.full(self._faces.count, self._corners, "u1")
            tables.append({"size": size, **corners, **self._faces.channels})
        write_file(path, head.encode() + b"".join(_rows(table, binary=binary) for table in tables))

    def _header(self, form: str) -> str:
        lines = ["ply", f"format {form} 1.0", f"comment {self.comment}"]
        lines += [f"element vertex {self._vertices.count}", *self._vertices.header()]
        if self._faces.count:
            lines += [f"element face {self._faces.count}", "property list uchar int vertex_indices"]
            lines += self._faces.header()
        return "\n".join([*lines, "end_header\n"])


def _rows(channels: dict[str, np.ndarray], *, binary: bool) -> bytes:
    """Return the values of all elements, one element after the other."""
    columns = list(channels.values())
    if not binary:
        return "".join(
            " ".join(map(str, row)) + "\n" for row in zip(*columns, strict=True)
        ).encode()
    rows = np.empty(
        len(columns[0]), [(key, data.dtype.newbyteorder("<")) for key, data in channels.items()]
    )
    for key, data in channels.items():
        rows[key] = data
    return rows.tobytes()
