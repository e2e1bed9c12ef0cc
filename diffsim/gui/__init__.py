"""A canvas for pictures of simulations: `ds.GUI`."""

from diffsim.gui.colors import hex_to_rgb as hex_to_rgb
from diffsim.gui.colors import rgb_to_hex as rgb_to_hex
from diffsim.gui.gui import GUI as GUI
