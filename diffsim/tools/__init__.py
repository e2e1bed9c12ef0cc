"""Pictures, films, pages and command lines for programs that simulate; nothing here is needed by kernels.

Each name is loaded where it is first used, so that `import diffsim` stays quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from diffsim.lang.host.unsupported import absent
from diffsim.public_names import names_of_module

if TYPE_CHECKING:
    from diffsim.tools.animation import animate
    from diffsim.tools.arguments import ArgumentParser
    from diffsim.tools.loss_plot import plot_loss, save_figure
    from diffsim.tools.page.player import Player
    from diffsim.tools.pictures.colours import colormap
    from diffsim.tools.pictures.images import imread, imresize, imshow, imwrite
    from diffsim.tools.ply import PLYWriter
    from diffsim.tools.progress_bar import progress
    from diffsim.tools.video import VideoManager
else:
    _MODULES = {
        "animate": "animation",
        "ArgumentParser": "arguments",
        "colormap": "pictures.colours",
        "imread": "pictures.images",
        "imresize": "pictures.images",
        "imshow": "pictures.images",
        "imwrite": "pictures.images",
        "plot_loss": "loss_plot",
        "Player": "page.player",
        "PLYWriter": "ply",
        "progress": "progress_bar",
        "save_figure": "loss_plot",
        "VideoManager": "video",
    }

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise absent(__name__, name, __all__)
        made = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = made  # the next use finds it at once
        return made


__all__ = [
    "ArgumentParser",
    "PLYWriter",
    "Player",
    "VideoManager",
    "animate",
    "colormap",
    "imread",
    "imresize",
    "imshow",
    "imwrite",
    "plot_loss",
    "progress",
    "save_figure",
]

__dir__ = names_of_module(__all__)
