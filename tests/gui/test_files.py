"""Pictures and films that `ds.GUI` writes, read by Pillow and ffprobe, and what it does without a display."""

import io
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import diffsim as ds
from diffsim.gui.views import PictureView
from tests.support.processes import run

GRAYS = [10, 90, 170, 230]


def draw(gui, level):
    gui.set_image(np.full(gui.res, level, np.uint8))


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "webp", "tga"])
def test_a_picture_is_what_was_drawn(tmp_path, ending):
    gui = ds.GUI(res=(30, 20), show_gui=False)
    image = np.zeros((30, 20, 3), np.uint8)
    image[:, 10:] = 255, 128, 0  # the upper half
    gui.set_image(image)
    gui.show(tmp_path / f"a.{ending}")
    found = np.asarray(Image.open(tmp_path / f"a.{ending}").convert("RGB"))
    assert found.shape == (20, 30, 3)
    np.testing.assert_allclose(
        found, np.rot90(image), atol=0 if ending in {"png", "bmp", "tga"} else 60
    )


@pytest.mark.parametrize("ending", ["gif", "apng"])
def test_a_film_has_every_frame(tmp_path, ending):
    path = str(tmp_path / f"film.{ending}")
    with ds.GUI(res=(16, 8), show_gui=False) as gui:
        for level in GRAYS:
            draw(gui, level)
            gui.show(path)
    found = []
    with Image.open(path) as film:
        for k in range(film.n_frames):
            film.seek(k)
            found.append(np.asarray(film.convert("L"))[4, 8])
        film.seek(0)
        assert film.info["duration"] == pytest.approx(1000 / 30, abs=4)
    assert found == GRAYS


@pytest.mark.skipif(not shutil.which("ffprobe"), reason="needs ffmpeg")
def test_a_video_has_every_frame(tmp_path):
    path = str(tmp_path / "film.mp4")
    with ds.GUI(res=(33, 17), show_gui=False) as gui:
        for level in GRAYS:
            draw(gui, level)
            gui.show(path)
    asked = "-v error -count_frames -show_entries stream=nb_read_frames,width,height -of csv=p=0"
    found = subprocess.run(
        ["ffprobe", *asked.split(), path], capture_output=True, text=True, timeout=60
    )
    assert found.stdout.strip() == f"34,18,{len(GRAYS)}"


def test_a_video_without_ffmpeg_is_refused_with_another_way(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    gui = ds.GUI(res=(16, 8), show_gui=False)
    with pytest.raises(ds.ArgumentError, match=r"\.gif"):
        gui.show(tmp_path / "film.mp4")


def test_a_film_that_nobody_closes_is_complete_when_the_program_ends(tmp_path):
    path = tmp_path / "film.gif"
    program = f"""
        import diffsim as ds
        gui = ds.GUI(res=(16, 8), show_gui=False)
        for k in range(3):
            gui.clear(k * 0x404040)
            gui.show({str(path)!r})
    """
    run(tmp_path, program)
    with Image.open(path) as film:
        assert film.n_frames == 3


def test_without_a_display_frames_go_to_a_picture_and_that_is_said_once(tmp_path):
    program = f"""
        import os, sys
        import diffsim as ds
        os.chdir({str(tmp_path)!r})
        sys.stderr = sys.stdout
        gui = ds.GUI("My film: 1/2", res=(16, 8))
        for k in range(4):
            gui.clear(0xFF0000 if k == 3 else 0)
            gui.show()
        print(gui.frame, gui.running, gui.get_event(ds.GUI.ESCAPE))
        gui.close()
    """
    said, numbers = run(tmp_path, program, DISPLAY="", WAYLAND_DISPLAY="").splitlines()
    path = tmp_path / "My_film_1_2.png"
    assert str(path) in said
    assert numbers == "4 True False"
    # The last frame is there, though it came within the second.
    assert np.asarray(Image.open(path))[0, 0].tolist() == [255, 0, 0]


def test_the_picture_is_written_at_most_once_a_second(tmp_path, monkeypatch, capsys):
    now = [100.0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("diffsim.gui.views.time.monotonic", lambda: now[0])
    written = []
    monkeypatch.setattr("diffsim.gui.views.write_file", lambda path, data: written.append(now[0]))
    view = PictureView("x")
    frame = np.zeros((4, 4, 4), np.uint8)
    for _ in range(10):
        view.show(frame)
        now[0] += 0.25
    view.close()
    assert written == [100, 101, 102, 102.5]
    assert capsys.readouterr().err.count("\n") == 1


def test_notebooks_show_one_picture_that_is_replaced(monkeypatch):
    """With IPython's display played by the test."""
    shown = []

    class Handle:
        def update(self, picture):
            shown.append(("update", picture))

    def display(picture, display_id):
        shown.append(("display", picture))
        return Handle()

    played = type(sys)("IPython.display")
    played.Image = lambda data, format: Image.open(io.BytesIO(data))
    played.display = display
    monkeypatch.setitem(sys.modules, "IPython", type(sys)("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", played)
    now = [100.0]
    monkeypatch.setattr("diffsim.gui.views.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "matplotlib.pyplot.get_backend", lambda: "module://matplotlib_inline.backend_inline"
    )
    gui = ds.GUI("notebook", res=(16, 8))
    for level in GRAYS:
        draw(gui, level)
        gui.show()
        now[0] += 0.03  # every second one: 20 a second at most
    assert [kind for kind, _ in shown] == ["display", "update"]
    assert [np.asarray(p)[0, 0, 0] for _, p in shown] == GRAYS[::2]


def test_a_film_stays_in_the_folder_where_it_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    gui = ds.GUI("Film", res=16, show_gui=False)
    gui.show("film.gif")
    monkeypatch.chdir(tmp_path / "other")
    gui.close()
    assert (tmp_path / "film.gif").is_file()
