"""Pictures, films, pages and command lines for programs that simulate; nothing here is needed by kernels."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias
from typing_extensions import Self, TypeVar

import numpy as np

from diffsim import DType, Field, Kernel, Matrix, StructField, Tape, Vector, _Arch as Arch

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

class ArgumentParser(argparse.ArgumentParser):
    """The command line of a simulation: argparse's parser, with options that all examples share."""
    def __init__(self, description: str | None = ..., *, steps: int | None = ..., iterations: int | None = ..., out: Any = ..., seed: int = ..., arch: Arch | None = ..., **options: Any) -> None: ...
    def parse_args(self, args: Any = ..., namespace: Any = ...) -> Any:
        """Parse the command line, or these arguments; numbers and paths among them may be themselves."""
class PLYWriter:
    """Writes points, and a mesh between them, as PLY files; the interface is Taichi's."""
    def __init__(self, num_vertices: int, num_faces: int = ..., face_type: str = ..., comment: str = ...) -> None: ...
    def add_face_channel(self, key: str, data_type: str, data: Any) -> None:
        """Add values of all faces, as `add_vertex_channel` does."""
    def add_face_id(self) -> None:
        """Add the number of each face."""
    def add_face_piece(self, piece: Any) -> None:
        """Add the number of the piece that each face belongs to."""
    def add_faces(self, indices: Any) -> None:
        """Add the corners of the faces: numbers of vertices, (faces, 3 or 4) or in a row."""
    def add_vertex_alpha(self, alpha: Any) -> None:
        """Add opacities from 0 to 1, (n,)."""
    def add_vertex_channel(self, key: str, data_type: str, data: Any) -> None:
        """Add values of all vertices: (n,), or (n, m), which gives channels key_1 to key_m."""
    def add_vertex_color(self, r: Any, g: Any, b: Any) -> None:
        """Add colours from 0 to 1, (n,) each."""
    def add_vertex_id(self) -> None:
        """Add the number of each vertex."""
    def add_vertex_normal(self, nx: Any, ny: Any, nz: Any) -> None:
        """Add the normals, (n,) each."""
    def add_vertex_piece(self, piece: Any) -> None:
        """Add the number of the piece that each vertex belongs to, (n,)."""
    def add_vertex_pos(self, x: Any, y: Any, z: Any) -> None:
        """Add the positions, (n,) each."""
    def add_vertex_rgba(self, r: Any, g: Any, b: Any, a: Any) -> None:
        """Add colours and opacities from 0 to 1, (n,) each."""
    def add_vertex_vel(self, vx: Any, vy: Any, vz: Any) -> None:
        """Add the velocities, (n,) each."""
    def export(self, path: Any) -> None:
        """Write a binary file."""
    def export_ascii(self, path: Any) -> None:
        """Write a file of text."""
    def export_frame(self, series_num: int, path: Any) -> None:
        """Write a binary file of a series: number 7 of "cloth.ply" is cloth_000007.ply."""
    def export_frame_ascii(self, series_num: int, path: Any) -> None:
        """Write a file of text, of a series."""
class Player:
    """One HTML file with films side by side: play, pause, scrub, speed, keys; with the curve of a loss."""
    def __init__(self, title: str, unit: str = ..., max_bytes: int = ...) -> None: ...
    def add_frames(self, array: Any, dt: DType | None, label: str = ..., *, cmap: str = ..., vmin: float | None = ..., vmax: float | None = ...) -> None:
        """Add a film of images."""
    def add_loss(self, losses: Any, label: str = ...) -> None:
        """Add the curve of a training: one number for each iteration; `label` with the unit."""
    def add_points(self, positions: Any, dt: DType | None, label: str = ..., *, colors: Any = ..., lines: Any = ..., line_colors: Any = ..., radius: Any = ..., bounds: Any = ..., up: str = ..., cmap: str = ..., vmin: float | None = ..., vmax: float | None = ...) -> None:
        """Add a film of points, and of lines between them; three dimensions can be turned by dragging."""
    def write(self, path: Any) -> None:
        """Write the page."""
class VideoManager:
    """Writes frames as PNG files, and makes an MP4 and a GIF of them."""
    def __init__(self, output_dir: Any, video_filename: str | None = ..., width: int | None = ..., height: int | None = ..., post_processor: Any = ..., framerate: float = ..., automatic_build: bool = ...) -> None: ...
    def clean_frames(self) -> None:
        """Remove the files of the frames; the films stay."""
    def get_frame_directory(self) -> str:
        """Return the folder of the frames."""
    def get_output_filename(self, suffix: str) -> str:
        """Return the path of a film with this ending, such as ".mp4"."""
    def make_video(self, mp4: bool = ..., gif: bool = ...) -> None:
        """Make films of all frames so far."""
    def write_frame(self, img: Any) -> None:
        """Write the next frame."""
    def write_frames(self, images: Iterable[Any]) -> None:
        """Write several frames."""
def animate(array: Any, dt: DType | None, path: Any, *, label: str = ..., cmap: str = ..., vmin: float | None = ..., vmax: float | None = ..., colors: Any = ..., lines: Any = ..., line_colors: Any = ..., radius: Any = ..., bounds: Any = ..., up: str = ...) -> None:
    """Write a film: a GIF, an MP4 (where there is ffmpeg), or a page that plays in any browser."""
def colormap(values: Any, cmap: str = ..., vmin: float | None = ..., vmax: float | None = ...) -> np.ndarray:
    """Return the colours of numbers."""
def imread(filename: Any, channels: int = ...) -> np.ndarray:
    """Read an image from a file."""
def imresize(img: Any, w: int, h: int | None = ...) -> np.ndarray:
    """Return an image in another size: each pixel is the one of `img` at the same place."""
def imshow(img: Any, title: str = ...) -> None:
    """Show an image: below the cell of a notebook, or in a window; without a display it goes to a file."""
def imwrite(img: Any, filename: Any) -> None:
    """Write an image to a file: PNG, JPEG, WebP, BMP, TGA, TIFF or GIF, as its ending says."""
def plot_loss(losses: Any, path: Any, label: str = ...) -> None:
    """Draw the loss over the iterations of a training, and the best one so far."""
def progress(things: Iterable[T] | int, label: str = ..., total: int | None = ...) -> Any:
    """Loop over things, and show how far the loop is, on standard error."""
def save_figure(figure: Any, path: Any) -> None:
    """Write a figure of matplotlib's: the folder is made, and a program that is killed leaves the old file."""

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
