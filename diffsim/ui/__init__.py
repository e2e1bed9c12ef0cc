"""Windows with canvases, scenes in space, and panels of widgets, under the names of Taichi's GGUI."""

from typing import TYPE_CHECKING, Any

from diffsim.gui.gui import GUI
from diffsim.lang.host.unsupported import absent
from diffsim.public_names import names_of_module
from diffsim.ui.camera import Camera, ProjectionMode, make_camera
from diffsim.ui.canvas import Canvas
from diffsim.ui.panels import Gui
from diffsim.ui.scene import Scene
from diffsim.ui.window import Window

SHIFT, ALT, CTRL = GUI.SHIFT, GUI.ALT, GUI.CTRL
ESCAPE, RETURN, TAB, BACKSPACE, SPACE = GUI.ESCAPE, GUI.RETURN, GUI.TAB, GUI.BACKSPACE, GUI.SPACE
UP, DOWN, LEFT, RIGHT, CAPSLOCK = GUI.UP, GUI.DOWN, GUI.LEFT, GUI.RIGHT, GUI.CAPSLOCK
LMB, MMB, RMB = GUI.LMB, GUI.MMB, GUI.RMB
PRESS, RELEASE = GUI.PRESS, GUI.RELEASE

if not TYPE_CHECKING:  # or every name would be one

    def __getattr__(name: str) -> Any:
        raise absent(__name__, name, __all__)


__all__ = [
    "ALT",
    "BACKSPACE",
    "CAPSLOCK",
    "CTRL",
    "DOWN",
    "ESCAPE",
    "LEFT",
    "LMB",
    "MMB",
    "PRESS",
    "RELEASE",
    "RETURN",
    "RIGHT",
    "RMB",
    "SHIFT",
    "SPACE",
    "TAB",
    "UP",
    "Camera",
    "Canvas",
    "Gui",
    "ProjectionMode",
    "Scene",
    "Window",
    "make_camera",
]

__dir__ = names_of_module(__all__)
