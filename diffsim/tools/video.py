"""`VideoManager`: frames on disk, and the films made of them; the names are Taichi's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from diffsim.errors import FileError, Span, warn
from diffsim.lang.host.signatures import checked_methods, need_bool, need_function, need_path
from diffsim.lang.host.unsupported import Explained
from diffsim.runtime.files import write_file
from diffsim.tools.pictures.arrays import need_positive, path_of, refuse
from diffsim.tools.pictures.films import NO_FFMPEG, NO_FFMPEG_HERE, find_ffmpeg, gif, mp4
from diffsim.tools.pictures.images import as_bytes, encoded, imresize, pillow, to_rows

_FRAMES = "frames"


@checked_methods("__init__ write_frame write_frames clean_frames make_video get_output_filename")
class VideoManager(Explained):
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

    _words = "a VideoManager"

    def __init__(
        self,
        output_dir: Any,
        video_filename: str | None = None,
        width: int | None = None,
        height: int | None = None,
        post_processor: Any = None,
        framerate: float = 24,
        automatic_build: bool = True,
    ) -> None:
        self.directory = str(path_of(output_dir, "the folder of the frames"))
        self.frame_directory = str(Path(self.directory) / _FRAMES)
        if video_filename is not None:
            need_path(video_filename, "video_filename")
        if post_processor is not None:
            process = getattr(post_processor, "process", None)
            need_function(process, "post_processor.process", "give an object with process(image)")
        self.video_filename = video_filename
        if (width is None) != (height is None):
            raise refuse("one of width and height is given", "give both, or none of them")
        self.width, self.height = width, height
        self.post_processor = post_processor
        self.framerate = need_positive(framerate, "framerate", "give the number of frames a second")
        need_bool(automatic_build, "automatic_build")
        self.automatic_build = automatic_build
        self.frame_counter = 0
        self.frame_fns: list[str] = []
        self._next_build = 4

    def get_frame_directory(self) -> str:
        """Return the folder of the frames.

        Example:
            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            print(video.get_frame_directory())  # prints: ...frames
        """
        return self.frame_directory

    def get_output_filename(self, suffix: str) -> str:
        """Return the path of a film with this ending, such as ".mp4".

        Example:
            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            print(video.get_output_filename(".gif"))  # prints: ...video.gif
        """
        name = Path(self.video_filename or "video")
        return str(Path(self.directory) / name.with_suffix(suffix))

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
        if self.post_processor is not None:
            img = self.post_processor.process(img)
        pixels = as_bytes(img, "the frame")
        if self.width is None or self.height is None:
            self.width, self.height = pixels.shape[:2]
        if pixels.shape[:2] != (self.width, self.height):
            pixels = imresize(pixels, self.width, self.height)
        name = f"{self.frame_counter:06d}.png"
        write_file(Path(self.frame_directory) / name, encoded(to_rows(pixels), "PNG"))
        self.frame_fns.append(name)
        self.frame_counter += 1
        if self.automatic_build and self.frame_counter == self._next_build:
            self._next_build *= 2
            self.make_video()

    def write_frames(self, images: Iterable[Any]) -> None:
        """Write several frames.

        Example:
            from pathlib import Path

            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            video.clean_frames()
            video.write_frames(np.zeros((5, 16, 16, 3)))
            print(len(list(Path(video.get_frame_directory()).iterdir())))  # prints: 5
        """
        for image in images:
            self.write_frame(image)

    def clean_frames(self) -> None:
        """Remove the files of the frames; the films stay.

        Example:
            from pathlib import Path

            video = ds.tools.VideoManager("out", framerate=24, automatic_build=False)
            video.write_frame(np.zeros((16, 16, 3)))
            video.clean_frames()
            print(len(list(Path(video.get_frame_directory()).iterdir())))  # prints: 0
        """
        for name in self.frame_fns:
            with contextlib.suppress(FileNotFoundError):
                (Path(self.frame_directory) / name).unlink()
        self.frame_fns = []

    def make_video(self, mp4: bool = True, gif: bool = True) -> None:
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
        if not self.frame_fns:
            raise refuse("there are no frames to make a film of", "call write_frame(image) before")
        if gif:
            write_file(Path(self.get_output_filename(".gif")), self._gif())
        if not mp4:
            return
        if gif and find_ffmpeg() is None:
            warn(
                f"there is the GIF alone: {NO_FFMPEG_HERE}; {NO_FFMPEG}",
                UserWarning,
            )
            return
        write_file(Path(self.get_output_filename(".mp4")), self._mp4())

    def _gif(self) -> bytes:
        return gif(self._frame, len(self.frame_fns), 1 / self.framerate)

    def _mp4(self) -> bytes:
        return mp4((self._frame(k) for k in range(len(self.frame_fns))), self.framerate)

    def _frame(self, k: int) -> np.ndarray:
        path = Path(self.frame_directory) / self.frame_fns[k]
        try:
            with pillow().open(path) as image:
                return np.asarray(image.convert("RGB"))
        except OSError as error:
            raise FileError(
                f"the frame {path} cannot be read: {error.strerror or error}",
                Span.of_caller(),
                "write the frames again, or make the film before they are removed",
            ) from None
