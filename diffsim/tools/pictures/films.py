"""Films of frames: GIFs by Pillow, which is always there, and MP4s by ffmpeg where it is."""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from diffsim.tools.pictures.arrays import refuse
from diffsim.tools.pictures.images import pillow

NO_FFMPEG_HERE = "an MP4 is made by ffmpeg, which is not here"
NO_FFMPEG = (
    "write a .gif or .html, which need nothing; or install ffmpeg, or the package imageio-ffmpeg"
)
HOLD = 1.0  # the last frame of a GIF stays so long before it starts anew [s]
_COLOURS = 256
_FASTEST = 0.02  # browsers slow down GIFs whose frames follow each other faster [s]


def gif(frame: Callable[[int], np.ndarray], count: int, seconds: float) -> bytes:
    """Return an endless GIF.

    Args:
        frame: returns the rows of one frame, (height, width, 3), u8.
        count: how many there are.
        seconds: from one to the next.
    """
    image = pillow()
    # One palette for all frames: the colours do not flicker, and the file stays small. A ninth of the
    # pixels gives as good a one, in a ninth of the time.
    some = np.concatenate(
        [frame(k)[::3, ::3].reshape(-1, 3) for k in range(0, count, -(-count // 8))]
    )
    palette = image.fromarray(some[None]).quantize(_COLOURS, kmeans=1)
    colours = np.reshape(palette.getpalette(), (-1, 3))
    colours[colours.min(1) > 247] = 255  # the paper stays white
    palette.putpalette(colours.ravel().tolist())
    images = [
        image.fromarray(frame(k)).quantize(palette=palette, dither=image.Dither.NONE)
        for k in range(count)
    ]
    times = [round(1000 * max(_FASTEST, seconds))] * count  # [ms]
    times[-1] = round(1000 * max(HOLD, seconds))
    file = io.BytesIO()
    images[0].save(
        file, format="GIF", save_all=True, append_images=images[1:], duration=times, loop=0
    )
    return file.getvalue()


def find_ffmpeg() -> str | None:
    """Return the path of ffmpeg: the system's, or that of the package imageio-ffmpeg; None: neither."""
    if found := shutil.which("ffmpeg"):
        return found
    try:
        return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        return None


def mp4(frames: Iterable[np.ndarray], rate: float) -> bytes:
    """Return an MP4 that every browser plays (H.264).

    Args:
        frames: rows of each frame, (height, width, 3), u8; an odd last row or column is left out.
        rate: frames a second.

    Raises:
        ArgumentError: there is no ffmpeg here, or it fails.
    """
    program = find_ffmpeg()
    if program is None:
        raise refuse(NO_FFMPEG_HERE, NO_FFMPEG)
    even = _even(frames)
    first = next(even)
    size = f"{first.shape[1]}x{first.shape[0]}"
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{rate:.6g}", "-i", "-"]
    with tempfile.TemporaryDirectory(prefix="diffsim-film-") as folder:
        path = Path(folder) / "film.mp4"
        command = [program, "-loglevel", "error", "-y", *source, *_codec(program)]
        command += ["-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
        problem = _run(command, itertools.chain([first], even))
        if not problem and path.exists():
            return path.read_bytes()
    raise refuse(f"ffmpeg cannot make the film: {problem or 'it wrote nothing'}", NO_FFMPEG)


def _codec(program: str) -> list[str]:
    """Return the options for H.264, or for the older MPEG-4, as some builds of ffmpeg leave H.264 out."""
    found = subprocess.run([program, "-hide_banner", "-encoders"], capture_output=True, check=False)
    if b"libx264" in found.stdout:
        return ["-c:v", "libx264", "-crf", "20"]
    return ["-c:v", "mpeg4", "-q:v", "3"]


def _run(command: list[str], frames: Iterable[np.ndarray]) -> str:
    """Run ffmpeg on frames, one after the other; return what it complains of."""
    with tempfile.TemporaryFile() as complaints:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=complaints) as process:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it gave up: its complaint says why
                for frame in frames:
                    process.stdin.write(frame.tobytes())
                process.stdin.close()
        complaints.seek(0)
        lines = complaints.read().decode(errors="replace").strip().split("\n")
    return lines[-1] if process.returncode else ""


def _even(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield frames with an even number of rows and columns, as the codecs need them."""
    for frame in frames:
        height, width = frame.shape[:2]
        yield np.ascontiguousarray(frame[: height - height % 2, : width - width % 2])
