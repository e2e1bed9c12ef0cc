"""A canvas for pictures of simulations: `ds.GUI`.

The class is loaded where it is first used, so that `import diffsim` stays quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from diffsim.gui.colors import hex_to_rgb as hex_to_rgb
from diffsim.gui.colors import rgb_to_hex as rgb_to_hex

if TYPE_CHECKING:
    from diffsim.gui.gui import GUI as GUI
else:

    def __getattr__(name: str) -> Any:
        if name != "GUI":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.gui").GUI
