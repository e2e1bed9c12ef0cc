"""Films: frames that are gathered in a file, finished when the canvas is closed or the program ends."""

from __future__ import annotations

import atexit
import io
import os
import shutil
import subprocess
from typing import Any, Protocol

import numpy as np

from diffsim.gui.arguments import refuse
from diffsim.gui.views import encoded
from diffsim.runtime.files import write_file

PICTURES = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "bmp": "bmp", "tga": "tga", "webp": "webp"}
"""Endings of pictures, and what they are called where they are written."""
ANIMATIONS = {"gif": "gif", "apng": "png"}
VIDEOS = ("mp4", "webm", "mkv", "mov")
RATE = 30
"""Frames a second of a film, unless `fps_limit` says."""


class Film(Protocol):
    """A film that is being written."""

    def add(self, pixels: np.ndarray) -> None:
        """Append a frame: (height, width, 4) of u8."""

    def finish(self) -> None:
        """Write what is left."""


def ending_of(path: str) -> str:
    """Return the ending of a file's name: one of those that can be written."""
    ending = os.path.splitext(path)[1].lower().removeprefix(".")
    if ending not in (*PICTURES, *ANIMATIONS, *VIDEOS):
        raise refuse(
            f"{path!r} can not be written: its ending says no kind of picture or film",
            f"pictures are {', '.join(PICTURES)}; films, one frame for each show, are "
            f"{', '.join((*ANIMATIONS, *VIDEOS))}",
        )
    return ending


def new_film(path: str, ending: str, res: tuple[int, int], rate: float) -> Film:
    """Begin a film, which is finished at the program's end at the latest."""
    film: Film = Video(path, res, rate) if ending in VIDEOS else Animation(path, ending, rate)
    atexit.register(film.finish)
    return film


class Animation:
    """A GIF, or a PNG with several frames. Frames are kept compressed until the end."""

    def __init__(self, path: str, ending: str, rate: float) -> None:
        # Written once now, so that a folder that is not there is found before an hour of frames.
        self.path, self.format, self.rate = path, ANIMATIONS[ending], rate
        self.frames: list[bytes] = []

    def add(self, pixels: np.ndarray) -> None:
        self.frames.append(encoded(pixels))
        if len(self.frames) == 1:
            self._write()

    def finish(self) -> None:
        atexit.unregister(self.finish)
        if len(self.frames) > 1:
            self._write()
        self.frames = []

    def _write(self) -> None:
        from PIL import Image

        def opened(frame: bytes) -> Any:
            return Image.open(io.BytesIO(frame))

        data = io.BytesIO()
        opened(self.frames[0]).save(
            data,
            format=self.format,
            save_all=True,
            append_images=[opened(f) for f in self.frames[1:]],  # opened, and not decoded yet
            duration=1000 / self.rate,  # [ms]
            loop=0,
        )
        write_file(self.path, data.getvalue())


class Video:
    """A video that ffmpeg encodes while it is drawn."""

    def __init__(self, path: str, res: tuple[int, int], rate: float) -> None:
        program = shutil.which("ffmpeg")
        if program is None:
            raise refuse(
                f"{path} is a video, and the program ffmpeg, which writes them, is not here",
                'install ffmpeg (apt install ffmpeg, brew install ffmpeg), or write "film.gif"',
            )
        write_file(path, b"")  # an error of a wrong folder, before ffmpeg has one of its own
        self.path = path
        # Both sizes even, as the usual encoding of colours needs.
        self.process = subprocess.Popen(
            [
                *(program, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgba"),
                *("-s", f"{res[0]}x{res[1]}", "-r", str(rate), "-i", "-"),
                *("-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", path),
            ],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def add(self, pixels: np.ndarray) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(pixels.tobytes())
        except BrokenPipeError:
            self._complain()

    def finish(self) -> None:
        atexit.unregister(self.finish)
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
            if self.process.wait():
                self._complain()
            if self.process.stderr:
                self.process.stderr.close()

    def _complain(self) -> None:
        reason = self.process.stderr.read().decode(errors="replace") if self.process.stderr else ""
        raise refuse(
            f"ffmpeg could not write {self.path}: {reason.strip().splitlines()[-1:] or 'it ended'}",
            'write "film.gif", which needs no ffmpeg',
        )
