"""`ds.GUI` in real windows: Tk's on a screen of Xvfb, and WebAgg's in a headless browser.

Skipped where these are absent.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageGrab

from diffsim.gui.window import FigureView
from tests.support.processes import start

needs_tk = pytest.mark.skipif(
    not (shutil.which("Xvfb") and importlib.util.find_spec("tkinter")),
    reason="needs Xvfb and tkinter",
)
BLUE, ORANGE = [0x11, 0x2F, 0x41], [0xFF, 0x88, 0x00]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(
    not (BROWSER and importlib.util.find_spec("tornado")), reason="needs Chromium and tornado"
)


class Renderer:
    """What a figure is drawn with, of this size in pixels of the screen."""

    def __init__(self, width, height):
        self.width, self.height = width, height

    def get_canvas_width_height(self):
        return self.width / 2, self.height / 2  # points, of a screen with two pixels each

    def new_gc(self):
        return self

    def restore(self): ...

    def draw_image(self, context, x, y, image):
        assert (x, y) == (0, 0)
        self.image = image[::-1]  # matplotlib's rows begin at the bottom


@pytest.mark.parametrize(
    ("size", "place"),
    [
        ((6, 4), (0, 0, 1)),
        ((12, 8), (0, 0, 2)),  # HiDPI
        ((13, 20), (0, 6, 13 / 6)),
        ((60, 8), (24, 0, 2)),
        ((3, 2), (0, 0, 0.5)),
        ((5, 1), (2, 0, 0.25)),
    ],
)
def test_a_frame_fills_a_window_of_any_size(size, place):
    """Each pixel of the screen is the one of ours at its place, and the rest is black."""
    view = FigureView.__new__(FigureView)
    view.pixels = np.arange(24, dtype=np.uint32).reshape(4, 6) + 0x01020304
    renderer = Renderer(*size)
    view._draw(renderer)
    assert view.place == pytest.approx(place)
    x0, y0, scale = place
    found = renderer.image.copy().view(np.uint32)[:, :, 0]
    assert found.shape == size[::-1]
    for row, column in np.ndindex(found.shape):
        i, j = (column - x0) / scale, (size[1] - 1 - row - y0) / scale
        inside = (
            0 <= i < 6 and 0 <= j < 4 and i * scale < int(6 * scale) and j * scale < int(4 * scale)
        )
        up = (int(4 * scale) - 1 - (size[1] - 1 - row - y0)) / scale  # from the top of the frame
        expected = view.pixels[int(up), int(i)] if inside else 0xFF000000
        assert found[row, column] == expected, (row, column)


@pytest.fixture(scope="module")
def display():
    """A screen of its own; Xvfb chooses the number."""
    with subprocess.Popen(
        ["Xvfb", "-displayfd", "1", "-screen", "0", "900x700x24", "-nolisten", "tcp"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        yield f":{server.stdout.readline().strip()}"
        server.terminate()


PROGRAM = """
    import json
    import os
    import signal
    import threading
    import time
    import diffsim as ds
    from matplotlib import pyplot as plt

    gui = ds.GUI("window", res=(300, 200), background_color=0x112F41)
    slider = gui.slider("r", 0, 10)
    gui.show()
    plt.plot([1, 2])  # the program's own plots stay out of the window
    plt.close("all")
    window = gui._frames.view.manager.window
    widget = gui._frames.view.canvas.get_tk_widget()

    def send(*event, **how):
        widget.event_generate(*event, **how)
        gui.show()

    def show_disc(**more):
        for _ in range(3):
            gui.circle((0.25, 0.25), radius=20, color=0xFF8800)
            gui.show()
            time.sleep(0.05)
        print(json.dumps({"place": gui._frames.view.place, **more}), flush=True)
        input()

    send("<Motion>", x=30, y=150)
    send("<ButtonPress-3>", x=30, y=150)
    widget.focus_force()
    for key in ("a", "Escape", "Left", "exclam"):
        send(f"<KeyPress-{key}>")
        send(f"<KeyRelease-{key}>")
    send("<Button-4>", x=30, y=150)
    events = [(e.type.name, e.key, e.pos, e.delta) for e in gui.get_events()]
    send("<ButtonPress-1>", x=200, y=30)
    send("<ButtonRelease-1>", x=200, y=30)
    show_disc(events=events, slider=slider.value, axes=len(gui._frames.view.canvas.figure.axes))
    window.geometry("700x400")
    gui.show()
    time.sleep(0.1)
    gui.show()
    send("<Motion>", x=50, y=400)
    show_disc(cursor=gui.get_cursor_pos())
    list(gui.get_events())
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        gui.get_key_event()
    except KeyboardInterrupt:
        print("Ctrl-C")
    window.tk.call(window.protocol("WM_DELETE_WINDOW"))  # as the button of a window manager does
    print(gui.running, gui.get_event(gui.EXIT), flush=True)
    gui.show()
    gui.close()
"""


@needs_tk
def test_a_window_of_tk(display, tmp_path):
    """Frames arrive on the screen, events in the program; it can be resized, interrupted and closed."""
    with start(tmp_path, PROGRAM, DISPLAY=display, MPLBACKEND="TkAgg") as process:
        told = process.stdout.readline()
        assert told, process.communicate()[1]
        told, screen = json.loads(told), np.asarray(ImageGrab.grab(xdisplay=display))
        # Tk's y is down from the top.
        at = [pytest.approx(30 / 300, abs=0.01), pytest.approx(50 / 200, abs=0.01)]
        assert [e[:2] for e in told["events"]] == [
            ["MOTION", "Motion"],
            ["PRESS", "RMB"],
            *([kind, key] for key in ("a", "Escape", "Left", "1") for kind in ("PRESS", "RELEASE")),
            ["MOTION", "Wheel"],
        ]
        assert told["events"][1][2] == at
        assert told["events"][-1][3] == [0, 120]
        assert told["slider"] == pytest.approx(5, abs=0.1)
        assert (told["place"], told["axes"]) == ([0, 0, 1], 0)
        # The window lies in the corner: there is no window manager.
        assert screen[:200, :300].reshape(-1, 3)[[0, 150 * 300 + 75]].tolist() == [
            BLUE,
            ORANGE,
        ]
        process.stdin.write("\n")
        process.stdin.flush()
        told, screen = (
            json.loads(process.stdout.readline()),
            np.asarray(ImageGrab.grab(xdisplay=display)),
        )
        # 300 x 200 fits twice into 700 x 400, with 50 black pixels at both sides.
        assert told["place"] == [50, 0, 2]
        assert told["cursor"] == [pytest.approx(0, abs=0.01), pytest.approx(0, abs=0.01)]
        assert screen[300, 50 + 150].tolist() == ORANGE
        assert screen[300, [10, 690]].tolist() == [[0, 0, 0]] * 2
        out, err = process.communicate("\n", timeout=60)
        assert (out.split(), err) == (["Ctrl-C", "False", "True"], "")


def page_at(address, folder):
    """What Chromium shows of a page, when the first frame is in it: (height, width, 3) of u8."""
    options = "--headless --no-sandbox --disable-gpu --window-size=500,400"
    picture = folder / "page.png"
    files = [f"--user-data-dir={folder}/profile", f"--screenshot={picture}"]
    # No pipes: its helpers would hold them open.
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    for seconds in (5, 5, 10, 10, 30):  # a busy machine may take long to load the page
        command = [BROWSER, *options.split(), f"--timeout={seconds}000", *files, address]
        subprocess.run(command, timeout=90, **silent)
        if picture.exists():
            page = np.asarray(Image.open(picture).convert("RGB"))
            if (page == BLUE).all(axis=-1).any():
                break
    return page


@needs_browser
@pytest.mark.slow
def test_a_window_in_a_browser(tmp_path):
    """A page shows the frames."""
    program = """
        import diffsim as ds
        gui = ds.GUI("window", res=(300, 200), background_color=0x112F41)
        while gui.running:
            gui.circle((0.5, 0.5), radius=40, color=0xFF8800)
            gui.show()
    """
    # Matplotlib looks for a port that is free, and leaves a socket behind for each that is not.
    quiet = {"warnings": "ignore", "MPLBACKEND": "WebAgg", "BROWSER": "true", "DISPLAY": ""}
    quiet["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # tornado may be anywhere
    with start(tmp_path, program, **quiet) as process:
        try:
            page = page_at(process.stderr.readline().split()[-1], tmp_path)
        finally:
            process.kill()
        assert process.stderr.read() == ""
    orange, blue = ((page == color).all(axis=-1) for color in (ORANGE, BLUE))
    # The sum of clip(r - d, 0, 1) less than the rim.
    assert orange.sum() == pytest.approx(np.pi * 39**2, rel=0.02)
    assert orange.sum() + blue.sum() == pytest.approx(300 * 200, rel=0.02)
