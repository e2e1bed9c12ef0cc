"""Events, widgets, closing and the rate of `ds.GUI`, in a window that the tests play.

Real windows are in test_windows.py.
"""

import itertools
import re

import numpy as np
import pytest

import diffsim as ds
from diffsim.gui import frames
from diffsim.gui.window import key_of

GUI = ds.GUI
Event = GUI.Event


class Window:
    """A view that keeps what it is shown, and sends events when it is pumped."""

    has_events = True

    def __init__(self, receive):
        self.receive = receive
        self.frames, self.titles, self.to_come, self.closed = [], [], [], False

    def show(self, pixels):
        self.frames.append(pixels.copy())
        self.pump()

    def pump(self):
        while self.to_come:
            self.receive(self.to_come.pop(0))

    def title(self, text):
        self.titles.append(text)

    def close(self):
        self.closed = True


@pytest.fixture
def gui(monkeypatch):
    monkeypatch.setattr(frames, "open_view", lambda name, res, full, receive: Window(receive))
    made = GUI("test", res=(400, 200))
    made.fps_limit = None
    made.show()
    return made


def send(gui, *events):
    gui._frames.view.to_come += [Event(*e) if isinstance(e, tuple) else e for e in events]
    gui.show()


def press(key, pos=(0.5, 0.5)):
    return GUI.PRESS, key, pos


def release(key, pos=(0.5, 0.5)):
    return GUI.RELEASE, key, pos


def test_events_come_in_their_order_and_once(gui):
    send(gui, press("a"), release("a"), (GUI.MOTION, GUI.MOVE, (0.1, 0.2)))
    assert [(e.type, e.key) for e in gui.get_events()] == [
        (GUI.PRESS, "a"),
        (GUI.RELEASE, "a"),
        (GUI.MOTION, GUI.MOVE),
    ]
    assert list(gui.get_events()) == []
    assert gui.get_cursor_pos() == (0.1, 0.2)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([GUI.PRESS], ["a", "LMB"]),
        ([GUI.PRESS, GUI.RELEASE], ["a", "a", "LMB"]),
        (["a"], ["a", "a"]),
        ([(GUI.RELEASE, "a")], ["a"]),
        ([[GUI.PRESS, "LMB"], (GUI.PRESS, "b")], ["LMB"]),
        ([GUI.ESCAPE], []),
        ([GUI.MOVE], ["Motion"]),
    ],
)
def test_a_filter_takes_types_keys_and_pairs(gui, wanted, found):
    send(gui, press("a"), release("a"), press("LMB"), (GUI.MOTION, GUI.MOVE))
    assert [e.key for e in gui.get_events(*wanted)] == found
    assert not gui.has_key_event()


def test_get_event_keeps_what_it_found(gui):
    send(gui, press("x"), press("a", (0.25, 0.75)), press("b"))
    assert gui.get_event("a")
    assert (gui.event.key, gui.event.pos) == ("a", (0.25, 0.75))
    assert gui.get_event(GUI.PRESS)
    assert gui.event.key == "b"
    assert not gui.get_event()


def test_keys_are_pressed_until_they_are_released(gui):
    send(gui, press("a"), press("Shift"))
    assert gui.is_pressed("a")
    assert gui.is_pressed("b", "a")
    assert gui.is_pressed(GUI.SHIFT)
    assert gui.is_pressed("Shift_L")
    assert not gui.is_pressed("b")
    send(gui, release("a"), press("c"))
    assert not gui.is_pressed("a")
    assert [e.modifier for e in gui.get_events("c")] == [["Shift"]]


def test_a_program_that_asks_for_no_events_does_not_gather_them(gui):
    send(gui, *[(GUI.MOTION, GUI.MOVE, (k, 0)) for k in range(10_100)])
    events = list(gui.get_events())
    assert (len(events), events[-1].pos) == (10_000, (10_099, 0))


def test_get_key_event_waits_and_shows_the_canvas(gui):
    gui.circle((0.5, 0.5), radius=9)
    sent = itertools.chain([[], []], [[Event(*press("k"))]], itertools.repeat([]))
    pump = gui._frames.view.pump
    gui._frames.view.pump = lambda: (gui._frames.view.to_come.extend(next(sent)), pump())
    assert gui.get_key_event().key == "k"
    assert gui._frames.view.frames[-1][100, 200, 0] == 255


def test_a_window_that_is_closed_while_the_program_waits_ends_the_wait(gui):
    gui._frames.view.to_come.append(Event(GUI.PRESS, GUI.EXIT))
    assert gui.get_key_event().key == GUI.EXIT
    assert not gui.running


@pytest.mark.parametrize("ask", ["running", "is_pressed", "get_events"])
def test_a_loop_that_shows_nothing_hears_events_too(gui, monkeypatch, ask):
    """A paused program, say: it may be closed, or go on at a key."""
    now = [100.0]
    monkeypatch.setattr(frames.time, "perf_counter", lambda: now[0])
    gui.show()
    gui._frames.view.to_come += [Event(*press("a")), Event(GUI.PRESS, GUI.EXIT)]
    asked = {
        "running": lambda: not gui.running,
        "is_pressed": lambda: gui.is_pressed("a"),
        "get_events": lambda: [e.key for e in gui.get_events()] == ["a", GUI.EXIT],
    }[ask]
    assert not asked()  # it was looked for a moment ago
    now[0] += 0.1
    assert asked()


# ---- closing


def test_a_closed_window_ends_running_and_is_an_event(gui):
    assert gui.running
    send(gui, (GUI.PRESS, GUI.EXIT))
    assert not gui.running
    assert gui.get_event(GUI.ESCAPE, GUI.EXIT)


def test_a_program_that_goes_on_after_closing_is_ended(gui):
    send(gui, (GUI.PRESS, GUI.EXIT))
    for _ in range(5):
        gui.show()
    with pytest.raises(GUI.WindowClosed, match=r"while gui\.running") as caught:
        gui.show()
    assert isinstance(caught.value, RuntimeError)


def test_running_can_be_set(gui):
    gui.running = False
    assert not gui.running
    gui.running = True
    for _ in range(9):
        gui.show()


def test_a_block_closes_the_window(gui):
    with gui:
        pass
    assert gui._frames.view.closed


# ---- widgets: a column of 200 pixels at the upper right of 400 x 200


def test_a_slider_follows_the_mouse(gui):
    slider = gui.slider("alpha", 1, 5)
    assert slider.value == 1
    # Its bar runs from 210 to 390, so 300 is the middle.
    send(gui, press("LMB", (300 / 400, 0.95)))
    assert slider.value == pytest.approx(3)
    send(gui, (GUI.MOTION, GUI.MOVE, (345 / 400, 0.1)))  # dragged, also beside it
    assert slider.value == pytest.approx(4)
    send(
        gui,
        (GUI.MOTION, GUI.MOVE, (2.0, 0.1)),
        release("LMB", (2.0, 0.1)),
        (GUI.MOTION, GUI.MOVE, (0.75, 0.95)),
    )
    assert slider.value == 5
    slider.value = 2.5
    gui.show()
    shown = gui._frames.view.frames[-1][:, :, 0]
    knob = np.nonzero(shown[30] == 0x55)[0]
    assert knob.mean() == pytest.approx(210 + 1.5 / 4 * 180, abs=1)


def test_a_slider_with_a_step_has_its_multiples(gui):
    slider = gui.slider("n", 2, 10, step=3)
    found = set()
    for x in np.linspace(205, 395, 40):
        send(gui, press("LMB", (x / 400, 0.95)), release("LMB", (x / 400, 0.95)))
        found.add(slider.value)
    assert sorted(found) == [2, 5, 8, 10]


def test_a_button_sends_its_event_when_it_is_let_go(gui):
    key, other = gui.button("Go"), gui.button("Stop", event_name="stop")
    assert (key, other) == ("WidgetButton_Go", "stop")
    send(gui, press("LMB", (0.75, 0.9)))
    assert not gui.get_event(key)
    send(gui, release("LMB", (0.75, 0.9)))
    assert gui.get_event((GUI.PRESS, key))
    send(gui, press("LMB", (0.75, 0.9)), release("LMB", (0.1, 0.1)))  # let go elsewhere
    assert not gui.get_event(key)
    send(gui, press("LMB", (0.75, 0.7)), release("LMB", (0.75, 0.7)))
    assert gui.get_event("stop")


def test_a_label_shows_its_value(gui):
    label = gui.label("x")
    gui.show()
    before = gui._frames.view.frames[-1]
    label.value = 0.125
    gui.show()
    assert (before[:20, 200:] != gui._frames.view.frames[-1][:20, 200:]).any()
    assert (before[20:] == gui._frames.view.frames[-1][20:]).all()


# ---- frames


def test_show_clears_the_canvas_and_counts(gui):
    gui.background_color = 0x102030
    gui.circle((0.5, 0.5))
    gui.show()
    gui.show()
    assert gui.frame == 3
    assert (gui._frames.view.frames[-1] == [0x10, 0x20, 0x30, 255]).all()


def test_the_rate_has_a_limit(gui, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(frames.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(frames.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    gui._frames.times = []
    for limit in (60, 4):
        gui.fps_limit = limit
        gui.show()
        start = now[0]
        for _ in range(8):
            gui.show()
        assert now[0] - start == pytest.approx(8 / limit)
    assert gui.fps_limit == 4
    gui.fps_limit = None
    gui.show()
    assert gui.fps_limit is None
    assert now[0] - start == pytest.approx(8 / 4)
    assert re.fullmatch(r"test \(\d+\.\d frames/s\)", gui._frames.view.titles[-1])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a", "a"), ("A", "a"), ("ctrl+c", "c"), ("ctrl+shift+C", "c"), (" ", " "), ("escape", GUI.ESCAPE),
        ("enter", GUI.RETURN), ("left", GUI.LEFT), ("shift", GUI.SHIFT), ("control", GUI.CTRL),
        ("+", "equal"),
        ("ctrl++", "equal"), ("f5", "F5"), ("!", "1"), ("exclam", "1"), ("minus", "minus"), ("-", "minus"),
        ("alt+backspace", GUI.BACKSPACE), ("ö", "ö"), (None, None), ("", None),
    ],
)  # fmt: skip
def test_keys_have_the_names_of_taichi(name, key):
    assert key_of(name) == key
    assert key is None or not ds.GUI("keys", show_gui=False).is_pressed(key)


def test_every_key_that_has_a_name_can_be_asked_for(gui):
    gui.button("stop", "halt")
    given = vars(GUI)
    own = {n for n, value in given.items() if n.isupper() and isinstance(value, str)}
    assert len(own) > 15
    gui.is_pressed(*(given[n] for n in own), "halt", "Shift_L", "F12", "KP_Enter", "ö", "1")
    assert not gui.get_event(GUI.PRESS, (GUI.RELEASE, "a"), [GUI.MOTION, GUI.MOVE])


# ---- mistakes


MISTAKES = {
    "positions have shape (n, 2)": lambda g: g.circles(np.zeros((5, 3))),
    "pos.to_numpy()[:, :2] takes": lambda g: g.circles(ds.Vector.field(3, ds.f32, shape=5)),
    "[:, :2]": lambda g: g.circles(np.zeros((5, 3))),
    "the method without an s": lambda g: g.circles([0.5, 0.5]),
    "one position (x, y)": lambda g: g.circle([[0.1, 0.2], [0.3, 0.4]]),
    "an array of shape (5,)": lambda g: g.circles(np.zeros((5, 2)), radius=np.ones(4)),
    "0xRRGGBB": lambda g: g.circles(np.zeros((5, 2)), color=np.ones(5)),
    "a colour is a number, not 'red'": lambda g: g.circle((0, 0), color="red"),
    "a colour is a number, not 7.5": lambda g: ds.hex_to_rgb(7.5),
    "write (1.0, 0.5, 0.0)": lambda g: ds.rgb_to_hex(0.5),
    "a colour is a whole number": lambda g: g.circle((0, 0), color=0.5),
    "no palette_indices": lambda g: g.circles(np.zeros((5, 2)), palette=[0, 1]),
    "indices are 0 to 1": lambda g: g.circles(
        np.zeros((2, 2)), palette=[0, 1], palette_indices=[0, 2]
    ),
    "3 of begin, 4 of end": lambda g: g.lines(np.zeros((3, 2)), np.zeros((4, 2))),
    "res=(10, 20)": lambda g: g.set_image(np.zeros((10, 20))),
    ".astype(np.uint8) for 0 to 255": lambda g: g.set_image(np.zeros((400, 200), int)),
    "(x, y, 3) with colours": lambda g: g.set_image(np.zeros((400, 200, 5))),
    "the image is a field or an array": lambda g: g.set_image("picture.png"),
    "use one of .png": lambda g: g.show("frame.xyz"),
    "res=(512, 512)": lambda g: GUI("x", res=(1, 2, 3)),
    "gui.get_image() returns": lambda g: g.core,
    "draw by gui.circle": lambda g: g.canvas,
    "did you mean .circles": lambda g: g.cirlces,
    "None is no limit": lambda g: setattr(g, "fps_limit", 0),
    "give the minimum first": lambda g: g.slider("x", 5, 1),
    "no event will ever come": lambda g: g.get_key_event(),
    "cannot be made": lambda g: g.show("/proc/no/a.png"),
    "not (10.5, 3)": lambda g: GUI("x", res=(10.5, 3)),
    "not True": lambda g: GUI("x", res=True),
    "one is -2": lambda g: g.circles(np.zeros((3, 2)), radius=np.array([1.0, -2.0, 3.0])),
    "one is -1": lambda g: g.rect((0, 0), (1, 1), radius=-1),
    "a colour is one number, not (1, 0, 0)": lambda g: g.circle((0, 0), color=(1, 0, 0)),
    "font_size is a positive number": lambda g: g.text("a", (0, 0), font_size=-15),
    "arrow_spacing starts at 1": lambda g: g.vector_field(np.ones((4, 4, 2)), arrow_spacing=0),
    "the step of the slider 'x'": lambda g: g.slider("x", 0, 1, step=-0.5),
    "fps_limit is a number": lambda g: setattr(g, "fps_limit", "fast"),
    "there is no key 'foo'": lambda g: g.is_pressed("a", "foo"),
    'did you mean "Escape"?': lambda g: g.get_event((GUI.PRESS, "Esc")),
    'did you mean " "?': lambda g: g.is_pressed("space"),
    'write "a": keys are named as without Shift': lambda g: g.is_pressed("A"),
    "a key is a text, not 27": lambda g: g.get_event(27),
    "an event is of a type such as GUI.PRESS": lambda g: g.get_event(("press", "a")),
    "has ended the frames of 'test'": lambda g: (g.close(), g.show("late.gif")),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_is_named_with_what_to_write(said):
    with pytest.raises(ds.DiffsimError) as caught:
        MISTAKES[said](GUI("test", res=(400, 200), show_gui=False))
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert said in text
    assert __file__ in text
