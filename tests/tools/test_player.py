"""Pages: what is packed into them, that they stay small, and that a browser plays them."""

import base64
import io
import json
import re
import shutil
import subprocess
import zlib

import numpy as np
import pytest
from PIL import Image

import diffsim as ds
from diffsim.tools import Player, animate
from diffsim.tools.pictures import panels

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
RNG = np.random.default_rng(0)


def data_of(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1]
    )


def unpack(text, size):
    """Whole numbers as the page's script reads them."""
    raw = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).astype(np.uint16)
    half = len(raw) // 2
    steps = raw[:half] | raw[half:] << 8
    return np.cumsum(steps.reshape(-1, size), 0, dtype=np.uint16).view(np.int16)


def lines_of(panel):
    return (
        np.frombuffer(zlib.decompress(base64.b64decode(panel["lines"])), "<u4")
        .reshape(-1, 2)
        .tolist()
    )


def positions_of(panel):
    levels = unpack(panel["places"], panel["count"] * panel["dimensions"])
    low, high = np.array(panel["low"]), np.array(panel["high"])
    found = levels.reshape(-1, panel["count"], panel["dimensions"])
    return np.where(found == 32767, np.nan, low + found / panel["levels"] * (high - low))


def test_positions_are_right_to_a_part_of_the_bounds():
    positions = RNG.random((7, 11, 2)).cumsum(0)
    positions[3, 4, 1] = np.nan
    positions[5, 6] = 1e9  # flies away
    player = Player("p")
    player.add_points(positions, 0.25, bounds=(0, 8), lines=[(0, 1), (10, 2)])
    panel = data_of(player.text())["panels"][0]
    found = positions_of(panel)
    assert np.isnan(found[3, 4, 1])
    assert (found[5, 6] > 50).all()
    inside = np.isfinite(positions) & (positions < 1e6)
    np.testing.assert_allclose(found[inside], positions[inside], atol=8 / 4095)
    assert panel["times"] == [0.25 * k for k in range(7)]
    assert lines_of(panel) == [[0, 1], [10, 2]]


def test_colours_that_change():
    player = Player("p")
    values = RNG.random((6, 5))
    player.add_points(RNG.random((6, 5, 3)), 0.1, colors=values, cmap="gray", vmin=0, vmax=1)
    panel = data_of(player.text())["panels"][0]
    steps = np.frombuffer(zlib.decompress(base64.b64decode(panel["shades"]["index"])), np.uint8)
    index = np.cumsum(steps.reshape(6, 5), 0, dtype=np.uint8)
    shown = np.array([int(colour[:2], 16) for colour in panel["shades"]["table"]])[index]
    np.testing.assert_allclose(shown / 255, values, atol=0.004)
    assert (panel["scale"]["low"], panel["scale"]["high"]) == (0, 1)


def test_frames_are_images_of_the_page():
    film = RNG.integers(0, 256, (3, 5, 4, 3)).astype(np.uint8)
    player = Player("p")
    player.add_frames(film, 0.1)
    panel = data_of(player.text())["panels"][0]
    for text, frame in zip(panel["images"], film, strict=True):
        with Image.open(io.BytesIO(base64.b64decode(text))) as image:
            rows = np.asarray(image.convert("RGB"))
        if "webp" in panel["head"]:  # so small a film is kept without loss
            np.testing.assert_array_equal(rows[::-1].swapaxes(0, 1), frame)


def test_a_page_stays_small_and_says_so(tmp_path):
    player = Player("noise", max_bytes=200_000)
    player.add_frames(RNG.random((60, 90, 80)), 0.01, label="film")
    player.add_points(RNG.random((60, 900, 2)), 0.01, label="cloud")
    player.add_loss(RNG.random(9000), label="loss")
    player.write(tmp_path / "a.html")
    size = (tmp_path / "a.html").stat().st_size
    assert 60_000 < size <= 200_000
    text = (tmp_path / "a.html").read_text("utf-8")
    assert re.search(r"film: \d+ of 60 frames, .*so that the page stays small", text)
    assert re.search(r"cloud: \d+ of 60 frames, .*so that the page stays small", text)
    assert len(data_of(text)["panels"][2]["losses"]) == 2000


def test_lines_of_a_crowd_are_left_out_with_their_ends():
    """Lines stay with their two points, whatever numbers these have among those that are kept."""
    count = 66_000  # more than 16 bits can tell apart
    positions = RNG.random((1, count, 2))
    lines = np.stack([np.arange(count - 1), np.arange(1, count)], 1)
    player = Player("crowd", max_bytes=300_000)
    player.add_points(positions, 1, lines=lines[-1:], bounds=(0, 1), label="all")
    player.add_points(positions, 1, lines=np.concatenate([lines, lines[::-1]]), bounds=(0, 1))
    text = player.text()
    assert len(text) <= 300_000
    few, many = data_of(text)["panels"]
    assert re.search(r"all: \d+ of 66000 points", text)
    for panel in (few, many):
        assert panel["count"] < count
        assert all(
            max(pair) < panel["count"] for pair in (lines_of(panel) if "lines" in panel else [])
        )
    player = Player("crowd", max_bytes=3_000_000)
    player.add_points(positions, 1, lines=lines[-1:])
    (whole,) = data_of(player.text())["panels"]
    assert lines_of(whole) == [[count - 2, count - 1]]


def test_a_page_that_can_not_be_small_is_refused(tmp_path):
    player = Player("many", max_bytes=30_000)
    for _ in range(4):
        player.add_frames(RNG.random((4, 64, 64)), 1)
    with pytest.raises(ds.ArgumentError, match="however much is left out of its 4 panels"):
        player.write(tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_only_frames_that_are_shown_are_coloured(monkeypatch):
    """A film of gigabytes does not become three times as many."""
    film = np.broadcast_to(np.float32(0.5), (5000, 8, 8))
    seen = []
    frame = panels.Frames.frame
    monkeypatch.setattr(panels.Frames, "frame", lambda self, k: seen.append(k) or frame(self, k))
    player = Player("long")
    player.add_frames(film, 1)
    assert data_of(player.text())["panels"][0]["times"][-1] == 4999
    assert len(set(seen)) <= 240


def test_the_page_needs_nothing_else():
    player = Player("</script><b>&amp;")
    player.add_loss([3.0, np.inf, 1.0, np.nan], label="</script><b>")
    text = player.text()
    assert text.count("</script>") == 2
    assert "<b>" not in text
    assert not re.search(r"""(?:src|href)=["'](?!data:)|https?://|@import|url\(""", text)
    assert data_of(text)["panels"][0]["losses"] == [3.0, None, 1.0, None]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda p: p.write("a.html"), "the page is empty"),
        (lambda p: (p.add_loss([1.0]), p.write("a.gif")), "'a.gif' names no format"),
        (lambda p: p.add_frames(np.zeros((3, 3)), 1), "the frames have the shape (3, 3)"),
        (lambda p: p.add_points(np.zeros((3, 3)), 1), "the positions have the shape (3, 3)"),
        (lambda p: p.add_points(np.zeros((1, 3, 2)), 1, color=3), "no parameter color"),
        (lambda p: p.add_loss([]), "the losses have the shape (0,)"),
        (lambda p: Player(3), "the title is a text, not 3"),
    ],
)
def test_what_is_refused(wrong, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ds.DiffsimError) as caught:
        wrong(Player("p"))
    assert message in caught.value.message
    assert caught.value.span.file == __file__


# ---- in a browser


# The browser's virtual time does not count frames of animations, which are few without a screen.
FRAMES = (
    "<script>requestAnimationFrame = (f) => setTimeout(() => f(performance.now()), 16);</script>"
)


def opened(path, *, seconds=3):
    """What a headless browser has of a page after some (virtual) seconds."""
    path.write_text(path.read_text("utf-8").replace("<head>", f"<head>{FRAMES}"), "utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--virtual-time-budget={1000 * seconds}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_browser_plays_it(tmp_path):
    t = np.arange(50)[:, None] / 50
    circle = np.stack([np.cos(6 * t), np.sin(6 * t)], -1)
    player = Player("A circle")
    player.add_points(circle, 0.1, label="circle")
    player.add_points(np.concatenate([circle, circle[..., :1]], 2), 0.1, label="turns")
    player.add_frames(RNG.random((50, 8, 6)), 0.1, label="noise")
    player.add_loss(np.exp(-np.arange(9.0)), label="loss")
    player.write(tmp_path / "a.html")
    page = opened(tmp_path / "a.html")
    state = dict(re.findall(r'data-(\w+)="(\w+)"', page[: page.index("<head>")]))
    assert state["state"] == "playing"
    assert int(state["drawn"]) >= 30
    assert float(re.search(r'<output id="time">([\d.]+) s<', page)[1]) > 1
    assert page.count("<canvas") == 4
    assert page.count("<figcaption>") == 4


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_browser_shows_a_film_of_animate(tmp_path):
    animate(RNG.random((5, 8, 6)), 0.1, tmp_path / "a_film.html")
    page = opened(tmp_path / "a_film.html", seconds=1)
    assert 'data-state="playing"' in page
    assert "<h1>a film</h1>" in page
