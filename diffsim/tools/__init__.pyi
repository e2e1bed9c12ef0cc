"""Pictures, films, pages and command lines for programs that simulate; nothing here is needed by kernels."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

class ArgumentParser(argparse.ArgumentParser):
    """The command line of a simulation: argparse's parser, with options that all examples share.

        parser = ds.tools.ArgumentParser(__doc__, steps=256, iterations=100, out="out/wave")
        parser.add_argument("--cells", type=int, default=64, help="along a side")
        args = parser.parse_args(argv)
        ds.init(arch=args.arch)

    An option is there if its default is given; `--arch`, `--seed` and `--gui` always are. Ranges are checked,
    and the folder for the results is made at once: after hours of training it would be late to learn that
    it cannot be.

    Args:
        description: what the program does; the docstring of the file.
        steps: the default of --steps.
        iterations: the default of --iterations.
        out: the default of --out, a folder; `args.out` is a Path.
        seed: the default of --seed.
        arch: the default of --arch.
        options: those of argparse's parser.

    Example:
        parser = ds.tools.ArgumentParser("A wave.", steps=256)
        parser.add_argument("--cells", type=int, default=64, help="along a side")
        args = parser.parse_args(["--steps", "10"])
        print(args.steps, args.cells, args.arch)  # prints: 10 64 ...
    """
    def __init__(self, description: str | None = ..., *, steps: int | None = ..., iterations: int | None = ..., out: Any = ..., seed: int = ..., arch: Arch | None = ..., **options: Any) -> None: ...
    def parse_args(self, args: Any = ..., namespace: Any = ...) -> Any:
        """Parse the command line, or these arguments; numbers and paths among them may be themselves.

        Example:
            args = ds.tools.ArgumentParser("A wave.", steps=256).parse_args(["--steps", 10])
            print(args.steps)  # prints: 10
        """
class PLYWriter:
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
    def __init__(self, num_vertices: int, num_faces: int = ..., face_type: str = ..., comment: str = ...) -> None: ...
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
    def add_vertex_pos(self, x: Any, y: Any, z: Any) -> None:
        """Add the positions, (n,) each.

        Example:
            from pathlib import Path

            writer = ds.tools.PLYWriter(num_vertices=3)
            writer.add_vertex_pos([0, 1, 0], [0, 0, 1], [0, 0, 0])
            writer.export_ascii("mesh.ply")
            print("property float x" in Path("mesh.ply").read_text())  # prints: True
        """
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
class Player:
    """One HTML file with films side by side: play, pause, scrub, speed, keys; with the curve of a loss.

        player = ds.tools.Player("A wave that becomes a pattern")
        player.add_frames(before, dt=0.01, label="before")
        player.add_frames(after, dt=0.01, label="after")
        player.add_loss(losses, label="loss [m²]")
        player.write("out/wave.html")

    The file needs nothing else and at most `max_bytes`: frames and points that do not fit are left out,
    with a note on the page.

    Args:
        title: of the page.
        unit: of the `dt` of all films: "s", or "iterations" for films of a training (with dt=1).
        max_bytes: the largest size of the file.

    Example:
        from pathlib import Path

        player = ds.tools.Player("A wave")
        player.add_frames(np.random.default_rng(0).random((10, 8, 8)), dt=0.1, label="height")
        player.add_loss([9.0, 4.0, 1.0], label="loss [m²]")
        player.write("wave.html")
        print(Path("wave.html").read_text()[:15])  # prints: <!doctype html>
    """
    def __init__(self, title: str, unit: str = ..., max_bytes: int = ...) -> None: ...
    def add_frames(self, array: Any, dt: float, label: str = ..., *, cmap: str = ..., vmin: float | None = ..., vmax: float | None = ...) -> None:
        """Add a film of images.

        Args:
            array: (T, width, height) numbers, or (T, width, height, 3) colours; the first axis of an image
                goes to the right, the second one up. A list of fields or arrays does as well.
            dt: time from one frame to the next [s].
            label: what to write above.
            cmap: the colour map for numbers, one of matplotlib's.
            vmin: the number with its first colour; the smallest one if left out.
            vmax: the number with its last colour; the largest one if left out.

        Example:
            from pathlib import Path

            player = ds.tools.Player("A wave")
            frames = np.random.default_rng(0).random((10, 8, 8))  # (T, width, height)
            player.add_frames(frames, dt=0.1, label="height [m]")
            player.write("wave.html")
            print(Path("wave.html").exists())  # prints: True
        """
    def add_loss(self, losses: Any, label: str = ...) -> None:
        """Add the curve of a training: one number for each iteration; `label` with the unit.

        Example:
            from pathlib import Path

            player = ds.tools.Player("A wave")
            player.add_loss([9.0, 4.0, 1.0], label="loss [m²]")
            player.write("loss.html")
            print(Path("loss.html").exists())  # prints: True
        """
    def add_points(self, positions: Any, dt: float, label: str = ..., *, colors: Any = ..., lines: Any = ..., line_colors: Any = ..., radius: Any = ..., bounds: Any = ..., up: str = ..., cmap: str = ..., vmin: float | None = ..., vmax: float | None = ...) -> None:
        """Add a film of points, and of lines between them; three dimensions can be turned by dragging.

        Args:
            positions: (T, n, 2 or 3).
            dt: time from one frame to the next [s].
            label: what to write above.
            colors: one colour, such as 0x2166AC or "tab:blue"; one for each point, (n, 3), or (n,) whole
                numbers 0xRRGGBB; or numbers, (n,) or (T, n) floats, which get the colours of `cmap`.
            lines: pairs of points, (m, 2).
            line_colors: the same as `colors`, for lines.
            radius: in the unit of the positions: one number, or (n,).
            bounds: the lower and the upper corner of what is seen, as ((0, 0), (2, 1)) or (0, 1).
            up: the upright axis of three dimensions, "y" or "z".
            cmap: as for `add_frames`, and so are `vmin` and `vmax`.
            vmin: the number with its first colour.
            vmax: the number with its last colour.

        Example:
            from pathlib import Path

            player = ds.tools.Player("A wave")
            walk = np.random.default_rng(0).random((10, 5, 2))  # (T, n, 2)
            player.add_points(walk, dt=0.1, label="walk", colors=0x2166AC)
            player.write("walk.html")
            print(Path("walk.html").exists())  # prints: True
        """
    def write(self, path: Any) -> None:
        """Write the page.

        Raises:
            ArgumentError: there is nothing on it, or too much; it cannot be written there.

        Example:
            from pathlib import Path

            player = ds.tools.Player("A wave")
            player.add_loss([9.0, 4.0, 1.0])
            player.write("loss.html")
            print(Path("loss.html").exists())  # prints: True
        """
class VideoManager:
    """Writes frames as PNG files, and makes an MP4 and a GIF of them.

        video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
        for _ in range(50):
            step()
            video.write_frame(pixels)
        video.make_video(gif=True, mp4=True)

    Args:
        output_dir: the folder, made if it is missing.
        video_filename: of the films, without an ending; "video" if left out.
        width: of the films, in pixels, with `height`; that of the first frame if left out.
        height: as `width`.
        post_processor: an object whose `process(image)` returns what is written of an image.
        framerate: frames a second.
        automatic_build: whether the films are made again after 4, 8, 16, ... frames.

    Example:
        video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
        for t in range(4):
            video.write_frame(np.full((16, 16, 3), t / 4))
        video.make_video(mp4=False)
        print(video.get_output_filename(".gif"))  # prints: ...video.gif
    """
    def __init__(self, output_dir: Any, video_filename: str | None = ..., width: int | None = ..., height: int | None = ..., post_processor: Any = ..., framerate: float = ..., automatic_build: bool = ...) -> None: ...
    def clean_frames(self) -> None:
        """Remove the files of the frames; the films stay.

        Example:
            from pathlib import Path

            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            video.write_frame(np.zeros((16, 16, 3)))
            video.clean_frames()
            print(len(list(Path(video.get_frame_directory()).iterdir())))  # prints: 0
        """
    def get_frame_directory(self) -> str:
        """Return the folder of the frames.

        Example:
            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            print(video.get_frame_directory())  # prints: ...frames
        """
    def get_output_filename(self, suffix: str) -> str:
        """Return the path of a film with this ending, such as ".mp4".

        Example:
            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            print(video.get_output_filename(".gif"))  # prints: ...video.gif
        """
    def make_video(self, mp4: bool = ..., gif: bool = ...) -> None:
        """Make films of all frames so far.

        Where there is no ffmpeg, the GIF is made all the same, with one warning that there is no MP4.

        Raises:
            ArgumentError: there are no frames; only an MP4 is asked for, and there is no ffmpeg.

        Example:
            from pathlib import Path

            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            video.write_frames(np.random.default_rng(0).random((5, 16, 16, 3)))
            video.make_video(mp4=False)
            print(Path(video.get_output_filename(".gif")).exists())  # prints: True
        """
    def write_frame(self, img: Any) -> None:
        """Write the next frame.

        Args:
            img: a field or array, as for `ds.tools.imwrite`.

        Example:
            from pathlib import Path

            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            video.clean_frames()
            video.write_frame(np.zeros((16, 16, 3)))
            print(len(list(Path(video.get_frame_directory()).iterdir())))  # prints: 1
        """
    def write_frames(self, images: Iterable[Any]) -> None:
        """Write several frames.

        Example:
            from pathlib import Path

            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            video.clean_frames()
            video.write_frames(np.zeros((5, 16, 16, 3)))
            print(len(list(Path(video.get_frame_directory()).iterdir())))  # prints: 5
        """
def animate(array: Any, dt: float, path: Any, *, label: str = ..., cmap: str = ..., vmin: float | None = ..., vmax: float | None = ..., colors: Any = ..., lines: Any = ..., line_colors: Any = ..., radius: Any = ..., bounds: Any = ..., up: str = ...) -> None:
    """Write a film: a GIF, an MP4 (where there is ffmpeg), or a page that plays in any browser.

    It runs at the speed of life, where it is neither too short nor too long for that.

    Args:
        array: what changes: (T, width, height) numbers, (T, width, height, 3) colours, or (T, n, 2 or 3)
            positions of points. The first axis of images goes to the right, the second one up.
        dt: time from one frame to the next [s].
        path: of the file; its ending .gif, .mp4 or .html says what it is.
        label: what to write above.
        cmap: the colour map for numbers, one of matplotlib's.
        vmin: the number with its first colour; the smallest one if left out.
        vmax: the number with its last colour; the largest one if left out.
        colors: of points: one, such as 0x2166AC or "tab:blue"; one for each, (n, 3); numbers, (n,) or (T, n).
        lines: pairs of points that lines join, (m, 2).
        line_colors: the same as `colors`, for lines.
        radius: of the points, in the unit of the positions: one number, or (n,).
        bounds: the lower and the upper corner of what is seen, as ((0, 0), (2, 1)) or (0, 1).
        up: the upright axis of points in three dimensions, "y" or "z".

    Raises:
        ArgumentError: a shape or an option that makes no sense; no ffmpeg for an MP4; a file that cannot be
            written.

    Example:
        from pathlib import Path

        waves = np.random.default_rng(0).random((3, 8, 8))  # (T, width, height)
        ds.tools.animate(waves, dt=0.1, path="waves.gif", label="height [m]")
        print(Path("waves.gif").read_bytes()[:3])  # prints: b'GIF'
    """
def colormap(values: Any, cmap: str = ..., vmin: float | None = ..., vmax: float | None = ...) -> np.ndarray:
    """Return the colours of numbers.

    Args:
        values: a field or array of any shape.
        cmap: a colour map of matplotlib: "viridis", "coolwarm" (for values of both signs), "gray", ...
        vmin: the number that has the first colour; the smallest one if left out.
        vmax: the number that has the last colour; the largest one if left out.

    Returns:
        An array of the shape of `values` and (3,), f32, from 0 to 1: red, green, blue. NaN is grey.

    Example:
        colours = ds.tools.colormap(np.array([0.0, 0.5, 1.0]), "gray")
        print(colours.shape, colours[0], colours[2])  # prints: (3, 3) [0. 0. 0.] [1. 1. 1.]
    """
def imread(filename: Any, channels: int = ...) -> np.ndarray:
    """Read an image from a file.

    Args:
        filename: PNG, JPEG, or what else Pillow can read.
        channels: 1 (grey), 2 (grey and opacity), 3 (RGB) or 4 (RGBA); 0: as the file has them.

    Returns:
        (width, height, channels), u8; the pixel (0, 0) is at the bottom left.

    Raises:
        FileError: there is no such file, or it is no image.

    Example:
        ds.tools.imwrite(np.eye(4), "eye.png")
        image = ds.tools.imread("eye.png")
        print(image.shape, image[0, 0], image[0, 1])  # prints: (4, 4, 1) [255] [0]
    """
def imresize(img: Any, w: int, h: int | None = ...) -> np.ndarray:
    """Return an image in another size: each pixel is the one of `img` at the same place.

    Args:
        img: a field or array, (width, height) or (width, height, channels).
        w: the new width.
        h: the new height; as `w` if left out.

    Example:
        print(ds.tools.imresize(np.eye(4), 8).shape)  # prints: (8, 8)
    """
def imshow(img: Any, title: str = ...) -> None:
    """Show an image: below the cell of a notebook, or in a window; without a display it goes to a file.

    Args:
        img: as for `imwrite`.
        title: of the window.

    Example:
        image = np.random.default_rng(0).random((64, 64))
        ds.tools.imshow(image, "noise")
    """
def imwrite(img: Any, filename: Any) -> None:
    """Write an image to a file: PNG, JPEG, WebP, BMP, TGA, TIFF or GIF, as its ending says.

    Args:
        img: a field or array, (width, height) or (width, height, 1 to 4). Floats are 0 to 1, whole numbers 0
            to the largest one of their type.
        filename: where; the folder is made if it is missing.

    Raises:
        ArgumentError: another shape or type; an ending that names no format; it cannot be written there.

    Example:
        image = ds.field(ds.f32, shape=(4, 4))
        image[0, 0] = 1.0
        ds.tools.imwrite(image, "image.png")
        print(ds.tools.imread("image.png").max())  # prints: 255
    """
def plot_loss(losses: Any, path: Any, label: str = ...) -> None:
    """Draw the loss over the iterations of a training, and the best one so far.

    Args:
        losses: one for each iteration.
        path: of the picture: .png, .svg or .pdf.
        label: of the axis, with the unit: "loss [m]".

    Raises:
        ArgumentError: no losses, an ending that names no format, a file that cannot be written.

    Example:
        ds.tools.plot_loss([9.0, 4.0, 1.0], "loss.png", label="loss [m²]")
        print(ds.tools.imread("loss.png").ndim)  # prints: 3
    """
def progress(things: Iterable[T] | int, label: str = ..., total: int | None = ...) -> Any:
    """Loop over things, and show how far the loop is, on standard error.

    That is one line in a terminal, which `tqdm` draws where it is installed, then in notebooks too; elsewhere
    it is ten lines.

        for i in (bar := ds.tools.progress(range(100), "training")):
            bar.note(loss=step())

    Args:
        things: what to loop over; a number n is `range(n)`.
        label: what to write before the bar.
        total: how many there are, for things that do not know it.

    Example:
        total = 0
        for i in ds.tools.progress(range(4), "adding"):
            total += i
        print(total)  # prints: 6
    """
def save_figure(figure: Any, path: Any) -> None:
    """Write a figure of matplotlib's: the folder is made, and a program that is killed leaves the old file.

    A figure of `matplotlib.pyplot` is closed, so that figures do not add up.

    Args:
        figure: the figure.
        path: of the picture: .png, .svg or .pdf.

    Raises:
        ArgumentError: an ending that names no format; a file that cannot be written.

    Example:
        from matplotlib import pyplot

        figure, ax = pyplot.subplots()
        ax.plot([0, 1, 4])
        ds.tools.save_figure(figure, "out/curve.png")
        print(ds.tools.imread("out/curve.png").ndim)  # prints: 3
    """

__all__ = [
    "ArgumentParser",
    "PLYWriter",
    "Player",
    "VideoManager",
    "animate",
    "colormap",
    "imread",
    "imresize",
    "imshow",
    "imwrite",
    "plot_loss",
    "progress",
    "save_figure",
]
