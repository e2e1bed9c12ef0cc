"""Films: what the frames of a file show, how fast they go, and what needs ffmpeg."""

import os
import subprocess

import numpy as np
import pytest
from PIL import Image

import diffsim as ds
from diffsim.tools import VideoManager, animate
from diffsim.tools.pictures import films

HAS_FFMPEG = films.find_ffmpeg() is not None
needs_ffmpeg = pytest.mark.skipif(not HAS_FFMPEG, reason="there is no ffmpeg")


@pytest.fixture
def no_ffmpeg(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)


def frames_of(path):
    with Image.open(path) as image:
        for k in range(getattr(image, "n_frames", 1)):
            image.seek(k)
            yield np.asarray(image.convert("RGB")).astype(int), image.info.get("duration")


def colour_share(rows, colour):
    return float((np.abs(rows - colour).max(2) < 40).mean())


def test_a_film_of_colours(tmp_path):
    """Red at the bottom left first, then at the top right."""
    film = np.zeros((2, 4, 4, 3))
    film[0, :2, :2, 0] = film[1, 2:, 2:, 0] = 1
    animate(film, 0.1, tmp_path / "a.gif")
    (first, time), (last, hold) = frames_of(tmp_path / "a.gif")
    assert (time, hold) == (100, 1000)
    for rows, at in ((first, (0.25, 0.75)), (last, (0.75, 0.25))):
        red = np.argwhere(np.abs(rows - (255, 0, 0)).max(2) < 40)
        y, x = red.mean(0) / rows.shape[:2]
        # Labels take some of the picture; the corner is plain to see.
        assert abs(x - at[0]) < 0.2
        assert abs(y - at[1]) < 0.2


def test_a_film_of_points(tmp_path):
    positions = np.array([[[0.1, 0.1], [0.9, 0.1]], [[0.1, 0.9], [0.9, 0.9]]])
    animate(
        positions, 0.05, tmp_path / "a.gif", colors=["red", 0x0000FF], radius=0.1, bounds=(0, 1),
        lines=[(0, 1)], line_colors="lime",
    )  # fmt: skip
    heights = []
    for rows, _ in frames_of(tmp_path / "a.gif"):
        for colour in ((255, 0, 0), (0, 0, 255), (0, 255, 0)):
            assert 0.001 < colour_share(rows, colour) < 0.05
        heights.append(np.argwhere(np.abs(rows - (255, 0, 0)).max(2) < 40)[:, 0].mean())
    assert heights[1] < heights[0] - 100  # rows count downwards


def test_points_in_three_dimensions_and_gaps(tmp_path):
    positions = np.random.default_rng(0).random((3, 20, 3))
    positions[1, 5] = np.nan
    animate(positions, 0.05, tmp_path / "a.gif", colors=positions[:, :, 2], up="y")
    assert len(list(frames_of(tmp_path / "a.gif"))) == 3


def test_a_long_film_has_fewer_frames(tmp_path):
    film = np.linspace(0, 1, 900)[:, None, None] * np.ones((1, 2, 2))
    animate(film, 1e-6, tmp_path / "a.gif")
    shown = list(frames_of(tmp_path / "a.gif"))
    assert 30 <= len(shown) <= 110
    assert 20 <= shown[0][1] <= 120  # as slow as one can look at


@needs_ffmpeg
def test_mp4(tmp_path):
    animate(np.random.default_rng(0).random((6, 5, 7)), 0.1, tmp_path / "a.mp4")
    done = subprocess.run(
        [films.find_ffmpeg(), "-i", str(tmp_path / "a.mp4"), "-f", "null", "-"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "yuv420p" in done.stderr
    assert "10 fps" in done.stderr


def test_without_ffmpeg_there_is_one_clear_error(tmp_path, no_ffmpeg):
    with pytest.raises(ds.ArgumentError, match="ffmpeg, which is not here") as caught:
        animate(np.zeros((2, 3, 3)), 0.1, tmp_path / "a.mp4")
    assert "write a .gif or .html" in caught.value.hint


def test_ffmpeg_that_fails(tmp_path, monkeypatch):
    script = tmp_path / "ffmpeg"
    script.write_text("#!/bin/sh\ncat > /dev/null\necho no such codec >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ds.ArgumentError, match="cannot make the film: no such codec"):
        animate(np.zeros((2, 3, 3)), 0.1, tmp_path / "a.mp4")
    assert not (tmp_path / "a.mp4").exists()


def test_video_manager(tmp_path, no_ffmpeg):
    class Brighter:
        def process(self, image):
            return image + 0.5

    manager = VideoManager(
        tmp_path, "walk", framerate=10, automatic_build=False, post_processor=Brighter()
    )
    manager.write_frames([np.full((7, 4, 3), value) for value in (0.0, 0.25)])
    manager.write_frame(np.zeros((14, 8)))  # another size: as the first
    assert manager.get_frame_directory() == str(tmp_path / "frames")
    assert manager.get_output_filename(".gif") == str(tmp_path / "walk.gif")
    manager.make_video(mp4=False)
    shown = list(frames_of(tmp_path / "walk.gif"))
    assert [rows[0, 0, 0] for rows, _ in shown] == [128, 191, 128]
    assert [time for _, time in shown] == [100, 100, 1000]
    with pytest.warns(UserWarning, match="there is the GIF alone"):
        manager.make_video()
    with pytest.raises(ds.ArgumentError, match="ffmpeg, which is not here"):
        manager.make_video(gif=False)
    manager.clean_frames()
    assert not list((tmp_path / "frames").iterdir())
    with pytest.raises(ds.ArgumentError, match="no frames to make a film of"):
        manager.make_video()


@needs_ffmpeg
def test_video_manager_builds_films_on_the_way(tmp_path):
    manager = VideoManager(tmp_path, width=6, height=4)
    for value in (0.0, 0.3, 0.6, 0.9):
        manager.write_frame(np.full((3, 3), value))
    assert {p.name for p in tmp_path.iterdir()} == {"frames", "video.gif", "video.mp4"}
    assert next(frames_of(tmp_path / "video.gif"))[0].shape == (4, 6, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: animate(np.zeros((2, 3)), 0.1, "a.gif"), "the frames have the shape (2, 3)"),
        (lambda: animate([], 0.1, "a.gif"), "array has no frames"),
        (lambda: animate([np.zeros((2, 2)), np.zeros((3, 2))], 0.1, "a.gif"), "different shapes"),
        (lambda: animate(np.zeros((2, 3, 3)), 0, "a.gif"), "dt is a positive number, not 0"),
        (lambda: animate(np.zeros((2, 3, 3)), 0.1, "a.avi"), "'a.avi' names no format"),
        (lambda: animate(np.zeros((2, 3, 3)), 0.1, "a.gif", cmpa="gray"), "no parameter cmpa"),
        (lambda: animate(np.zeros((2, 3, 2)), 0.1, "a.gif", lines=[(0, 3)]), "ends at point 3"),
        (lambda: animate(np.zeros((2, 3, 2)), 0.1, "a.gif", lines=[0, 1]), "lines has the shape (2,)"),
        (lambda: animate(np.zeros((2, 3, 2)), 0.1, "a.gif", bounds=(1, 0)), "has no inside"),
        (lambda: animate(np.zeros((2, 3, 2)), 0.1, "a.gif", bounds=3), "bounds cannot be 3"),
        (lambda: animate(np.zeros((2, 3, 2)), 0.1, "a.gif", radius=-1), "radius cannot be -1"),
        (lambda: animate(np.zeros((2, 3, 2)), 0.1, "a.gif", colors="rde"), "'rde' is no colour"),
        (lambda: animate(np.zeros((2, 3, 2)), 0.1, "a.gif", colors=np.ones(4)), "there are 3 of them"),
        (lambda: animate(np.zeros((2, 3, 3)) / 0, 0.1, "a.gif"), "none of the positions"),
        (lambda: animate(np.zeros((2, 3, 3)), 0.1, "a.gif", up="x"), "up cannot be 'x'"),
        (lambda: VideoManager("v", framerate=0), "framerate is a positive number"),
        (lambda: VideoManager("v", width=3), "one of width and height"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_refused(wrong, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ds.DiffsimError) as caught:
        wrong()
    assert message in caught.value.message
    assert caught.value.span.file == __file__
    assert not list(tmp_path.iterdir())
