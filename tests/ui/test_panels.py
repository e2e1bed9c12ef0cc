"""Panels, events and cameras of `ds.ui` windows, in a window that the tests play."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.gui import frames
from diffsim.gui.events import EXIT, MOVE, Event, EventType

RES = (400, 200)
PRESS, RELEASE = EventType.PRESS, EventType.RELEASE


class View:
    """A view that keeps what it is shown, and sends events when it is pumped."""

    has_events = True

    def __init__(self, receive):
        self.receive, self.frames, self.to_come = receive, [], []

    def show(self, pixels):
        self.frames.append(pixels.copy())
        self.pump()

    def pump(self):
        while self.to_come:
            self.receive(self.to_come.pop(0))

    def title(self, text): ...

    def close(self): ...


@pytest.fixture
def window(monkeypatch):
    monkeypatch.setattr(frames, "open_view", lambda name, res, full, receive: View(receive))
    made = ds.ui.Window("test", RES, fps_limit=None)
    made.show()
    return made


def place(x, y):
    """A place in pixels from the upper left corner, as events have it."""
    return x / RES[0], 1 - y / RES[1]


def send(window, *events):
    window._frames.view.to_come += [Event(*event) for event in events]


def click(x, y):
    return (PRESS, "LMB", place(x, y)), (RELEASE, "LMB", place(x, y))


def move(x, y):
    return EventType.MOTION, MOVE, place(x, y)


class Panel:
    """A program with a panel at (40, 20), 200 pixels wide, which keeps its values."""

    def __init__(self, window):
        self.window, self.gui = window, window.get_gui()
        self.check, self.number, self.whole, self.color = False, 0.0, 3, (0.0, 0.5, 1.0)
        self.clicks = 0

    def frame(self, *events):
        """Show a frame, in which these events come in."""
        with self.gui.sub_window("panel", 0.1, 0.1, 0.5, 0.5) as g:
            self.check = g.checkbox("check", self.check)
            self.number = g.slider_float("number", self.number, -1, 1)
            self.whole = g.slider_int("whole", self.whole, 0, 10)
            self.color = g.color_edit_3("color", self.color)
            self.clicks += g.button("click")
            g.text("text", color=(1, 0, 0))
        send(self.window, *events)
        self.window.show()
        return self

    def values(self):
        return self.check, self.number, self.whole, self.color, self.clicks


LEFT, BAR = 48, 130  # of a bar in the panel, and its width [pixels]
ROWS = [20 + 19 + 4 + 23 * k + 9 for k in range(6)]


@pytest.fixture
def panel(window):
    return Panel(window).frame()


def test_checkboxes_and_buttons_are_clicked(panel):
    panel.frame(*click(LEFT + 5, ROWS[0])).frame()
    assert panel.check
    panel.frame(*click(LEFT + 5, ROWS[0])).frame(*click(LEFT + 5, ROWS[4])).frame()
    assert not panel.check
    assert panel.clicks == 1
    # Down and up in two frames; up elsewhere is no click.
    for there, clicks in (((LEFT + 5, ROWS[4]), 2), ((LEFT + 150, ROWS[4]), 2)):
        panel.frame((PRESS, "LMB", place(LEFT + 5, ROWS[4]))).frame().frame(move(*there))
        panel.frame((RELEASE, "LMB", place(*there))).frame().frame()
        assert panel.clicks == clicks
    assert panel.frame((PRESS, "RMB", place(LEFT + 5, ROWS[4]))).frame().clicks == 2


def test_sliders_follow_the_mouse_until_it_lets_go(panel):
    middle, end = LEFT + BAR / 2, LEFT + BAR
    panel.frame((PRESS, "LMB", place(middle, ROWS[1]))).frame()
    assert panel.number == pytest.approx(0, abs=1e-6)
    panel.frame(move(end + 90, 5)).frame()  # beyond its end, and another row
    assert panel.number == 1
    quarter = LEFT + 7 + (BAR - 14) / 4
    panel.frame(move(quarter, 5), (RELEASE, "LMB", place(quarter, 5))).frame()
    assert panel.number == pytest.approx(-0.5)
    panel.frame(move(end, ROWS[1])).frame()
    assert panel.number == pytest.approx(-0.5)
    panel.frame(*click(LEFT + 7 + (BAR - 14) * 0.68, ROWS[2])).frame()
    assert (panel.whole, type(panel.whole)) == (7, int)


def test_colors_are_three_bars(panel):
    wide = (BAR - 19) // 3 - 4
    panel.frame(*click(LEFT + wide - 1, ROWS[3])).frame()
    panel.frame(*click(LEFT + 2 * (wide + 4) + 1, ROWS[3])).frame()
    assert panel.color == (1.0, pytest.approx(0.5), 0.0)
    swatch = panel.window.get_image_buffer_as_numpy()[LEFT + 3 * (wide + 4) + 5, RES[1] - ROWS[3]]
    np.testing.assert_allclose(swatch, (1, 0.5, 0, 1), atol=0.01)


def test_values_of_the_program_are_shown(panel):
    before = panel.frame().window._frames.view.frames[-1]
    panel.number = 0.75
    after = panel.frame().window._frames.view.frames[-1]
    rows = np.flatnonzero((before != after).any((1, 2)))
    assert ROWS[1] - 10 <= rows[0] <= rows[-1] <= ROWS[1] + 10
    assert (panel.number, panel.frame().number) == (0.75, 0.75)


def test_panels_are_moved_and_folded_by_their_titles(panel):
    panel.frame((PRESS, "LMB", place(120, 30)), move(160, 60)).frame()
    panel.frame((RELEASE, "LMB", place(160, 60))).frame()
    assert panel.frame(*click(LEFT + 40 + 5, ROWS[0] + 30)).frame().check
    panel.frame(*click(48 + 40, 30 + 30)).frame()  # the triangle
    values = panel.values()
    shown = panel.frame(*click(LEFT + 45, ROWS[4] + 30)).frame().window._frames.view.frames[-1]
    assert panel.values() == values
    assert not shown[75:, :, :3].any()  # the title alone
    panel.frame(*click(48 + 40, 30 + 30)).frame()
    assert panel.frame(*click(LEFT + 45, ROWS[4] + 30)).frame().clicks == 1


def test_a_panel_above_takes_the_click(window):
    """And widgets of the same label are told apart by what follows it."""
    gui, clicks = window.get_gui(), []

    def frame(*events):
        for name in ("one", "other"):
            with gui.sub_window(name, 0.1, 0.1, 0.5, 0.5):
                for text in ("click", "click##2"):
                    if gui.button(text):
                        clicks.append((name, text))
        send(window, *events)
        window.show()

    frame()
    frame(*click(LEFT + 5, ROWS[0]))
    frame()
    assert clicks == [("other", "click")]
    frame(*click(LEFT + 5, ROWS[1]))
    frame()
    assert clicks[1:] == [("other", "click##2")]
    frame(move(0, 0))
    frame()
    shown = window._frames.view.frames[-1][:, LEFT : LEFT + 60]
    np.testing.assert_array_equal(
        shown[ROWS[0] - 9 : ROWS[0] + 9], shown[ROWS[1] - 9 : ROWS[1] + 9]
    )


def test_a_panel_is_as_high_as_its_widgets(window):
    gui = window.get_gui()
    for _ in range(3):
        gui.begin("low", 0, 0, 0.5, 0.05)
        for k in range(5):
            gui.text(f"line {k}")
        gui.end()
        window.show()
    high = 19 + 5 * 17 + 8
    shown = window._frames.view.frames[-1][:, 5, :3].any(-1)
    assert np.flatnonzero(shown)[-1] == pytest.approx(high, abs=5)


def test_panels_lie_above_what_is_drawn_later(window):
    canvas, gui = window.get_canvas(), window.get_gui()
    with gui.sub_window("panel", 0, 0, 1, 1):
        pass
    canvas.circles([[0.5, 0.5]], radius=1.0, color=(1, 1, 1))
    window.show()
    assert window._frames.view.frames[-1][60:, :, :3].max() < 40


def test_panels_begin_and_end(window):
    gui = window.get_gui()
    with pytest.raises(ds.ArgumentError, match="no panel was begun"):
        gui.end()
    gui.begin("one", 0, 0, 0.5, 0.5)
    with pytest.raises(ds.ArgumentError, match="'one' has no end, and 'other' begins"):
        gui.begin("other", 0, 0, 0.5, 0.5)
    window.show()
    assert not gui.button("free")  # a widget without a panel gets one
    window.show()
    with pytest.raises(ds.ArgumentError, match="minimum of the slider 's' is a number"):
        gui.slider_float("s", 0.0, "a", 1.0)
    with pytest.raises(ds.ArgumentError, match="a colour of three numbers"):
        gui.color_edit_3("c", 0xFF)


def test_events_wait_until_they_are_asked_for(window):
    send(window, (PRESS, "a"), (EventType.MOTION, MOVE), (RELEASE, "a"), (PRESS, "Escape"))
    assert window.event.key == ""
    window.show()
    assert [e.key for e in window.get_events(ds.ui.RELEASE)] == ["a"]
    assert window.get_event(ds.ui.PRESS)
    assert window.event.key == "a"
    assert [(e.type, e.key) for e in window.get_events()] == [(PRESS, ds.ui.ESCAPE)]
    assert not window.get_event()
    assert window.event.key == "a"
    assert window.is_pressed(ds.ui.ESCAPE, "b")
    assert not window.is_pressed("a")
    with pytest.raises(ds.ArgumentError, match="there is no key 'Esc'"):
        window.is_pressed("Esc")
    with pytest.raises(ds.ArgumentError, match=r"events are of ds\.ui\.PRESS"):
        window.get_event("a")


def test_keys_that_are_held_are_pressed_once(window, monkeypatch):
    """Systems repeat the press, or a release and a press at the same time."""
    now = [10.0]
    monkeypatch.setattr(frames.time, "perf_counter", lambda: now[0])
    both = [(RELEASE, "w"), (PRESS, "w")]
    send(window, (PRESS, "w"), (PRESS, "w"), *both, *both)
    window.show()
    assert [(e.type, e.key) for e in window.get_events()] == [(PRESS, "w")]
    assert window.is_pressed("w")
    send(window, (RELEASE, "w"))
    window.show()
    now[0] += 0.05
    send(window, (PRESS, "w"))
    window.show()
    assert [e.type for e in window.get_events()] == [RELEASE, PRESS]
    assert window.is_pressed("w")


def test_a_closed_window_ends_the_loop(window):
    assert window.running
    send(window, (PRESS, EXIT))
    window.show()
    assert not window.running
    window.running = True
    assert window.running
    assert window.get_events() == []


def test_the_camera_follows_keys_and_mouse(window, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("diffsim.ui.camera.time.perf_counter", lambda: now[0])
    camera = ds.ui.Camera()
    camera.lookat(0, 0, -1)

    def frame(*events, seconds=0.5):
        now[0] += seconds
        send(window, *events)
        window.show()
        camera.track_user_inputs(window, 0.1, yaw_speed=0.2, pitch_speed=0.3, hold_key=ds.ui.RMB)
        return [round(float(n), 5) for n in (*camera.curr_position, *camera.curr_lookat)]

    frame()
    # Half a second is 30 frames of a 60th: 3 units forward, then 3 to the left and up.
    assert frame((PRESS, "w")) == [0, 0, -3, 0, 0, -4]
    assert frame((RELEASE, "w"), (PRESS, "a"), (PRESS, "e")) == [-3, 3, -3, -3, 3, -4]
    still = frame((RELEASE, "a"), (RELEASE, "e"), move(200, 100))
    assert frame(move(220, 100)) == still  # the button is not held
    # A tenth of the window: 0.1 * 0.2 to the right, however long it took.
    turned = frame((PRESS, "RMB", place(220, 100)), move(260, 100))
    angle = 0.1 * 0.2
    np.testing.assert_allclose(turned[3:], [-3 + np.sin(angle), 3, -3 - np.cos(angle)], atol=1e-4)
    # And up, but never over the top.
    frame(move(260, -10_000))
    up = frame(move(260, -20_000))
    assert up[4] == pytest.approx(4, abs=1e-3)
    assert np.hypot(up[3] + 3, up[5] + 3) == pytest.approx(np.cos(0.99 * np.pi / 2), rel=1e-2)
