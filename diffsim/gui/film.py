"""Files of frames: pictures, and films, which are finished when the canvas is closed or the program ends."""

from __future__ import annotations

import atexit
import io
import subprocess
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from diffsim.runtime.files import write_file
from diffsim.tools.pictures.arrays import path_of, refuse
from diffsim.tools.pictures.films import NO_FFMPEG, NO_FFMPEG_HERE, find_ffmpeg, gif
from diffsim.tools.pictures.images import encoded, pillow

PICTURES = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".bmp": "BMP",
    ".tga": "TGA",
}
"""Endings of pictures, and what Pillow calls their formats."""
_VIDEOS = (".mp4", ".webm", ".mkv", ".mov")
RATE = 30
"""Frames a second of a film, unless `fps_limit` says."""


class Film(Protocol):
    """A film that is being written."""

    def add(self, rows: np.ndarray) -> None:
        """Append a frame: (height, width, 3) of u8, from the top."""

    def finish(self) -> None:
        """Write what is left."""


def checked_path(file: Any) -> Path:
    """Return where a picture or film goes, of which the ending says the format."""
    return path_of(file, "a picture or film", (*PICTURES, ".gif", ".apng", *_VIDEOS))


def new_film(path: Path, rate: float) -> Film:
    """Begin a film, which is finished at the program's end at the latest."""
    film: Film
    film = Video(path, rate) if path.suffix.lower() in _VIDEOS else Animation(path, rate)
    atexit.register(film.finish)
    return film


class Animation:
    """A GIF, or a PNG with several frames. Frames are kept compressed until the end."""

    def __init__(self, path: Path, rate: float) -> None:
        self.path, self.rate = path, rate
        self.frames: list[bytes] = []

    def add(self, rows: np.ndarray) -> None:
        self.frames.append(encoded(rows, "PNG", compress_level=1))
        # Written once now, so that a missing folder is found before an hour of frames.
        if len(self.frames) == 1:
            self._write()

    def finish(self) -> None:
        atexit.unregister(self.finish)
        if len(self.frames) > 1:
            self._write()
        self.frames = []

    def _write(self) -> None:
        if self.path.suffix.lower() == ".gif":
            data = gif(lambda k: np.asarray(self._frame(k)), len(self.frames), 1 / self.rate)
        else:
            data = self._animated_png()
        write_file(self.path, data)

    def _frame(self, k: int) -> Any:
        return pillow().open(io.BytesIO(self.frames[k]))

    def _animated_png(self) -> bytes:
        data = io.BytesIO()
        self._frame(0).save(
            data,
            format="PNG",
            save_all=True,
            append_images=[self._frame(k) for k in range(1, len(self.frames))],
            duration=1000 / self.rate,  # [ms]
            loop=0,
        )
        return data.getvalue()


class Video:
    """A video that ffmpeg encodes while the program draws, so that no frame is kept."""

    def __init__(self, path: Path, rate: float) -> None:
        if find_ffmpeg() is None:
            raise refuse(NO_FFMPEG_HERE, NO_FFMPEG)
        write_file(path, b"")  # an error of the path, before ffmpeg has one of its own
        self.path, self.rate = path, rate
        self.process: subprocess.Popen[bytes] | None = None

    def add(self, rows: np.ndarray) -> None:
        if self.process is None:
            self.process = self._start(rows.shape[1], rows.shape[0])
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(rows.tobytes())
        except BrokenPipeError:
            self.finish()

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        source = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self.rate:.6g} -i -"
        # Both sizes even, as the usual encoding of colours needs.
        coding = "-vf pad=ceil(iw/2)*2:ceil(ih/2)*2 -pix_fmt yuv420p"
        command = [str(find_ffmpeg()), "-y", "-loglevel", "error", *source.split(), *coding.split()]
        pipe = subprocess.PIPE
        return subprocess.Popen([*command, str(self.path)], stdin=pipe, stderr=pipe)

    def finish(self) -> None:
        atexit.unregister(self.finish)
        process, self.process = self.process, None
        if process is None:
            return
        said = process.communicate()[1].decode(errors="replace").strip().split("\n")[-1]
        if process.returncode:
            raise refuse(f"ffmpeg cannot make {self.path}: {said}", NO_FFMPEG)
