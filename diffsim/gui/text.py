"""Texts as masks of pixels, drawn with the font that matplotlib brings along."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


@functools.lru_cache(maxsize=256)
def text_mask(content: str, size: float) -> np.ndarray:
    """Return how much of each pixel a text covers, 0 to 255, with room above and below the letters.

    Args:
        content: the text, of one line or several.
        size: height of a line [pixels].
    """
    lines = [_line_mask(line, size) for line in content.split("\n")]
    step = max(round(size * 1.2), 1)
    mask = np.zeros((step * len(lines), max(m.shape[1] for m, _ in lines)), np.uint8)
    for k, (letters, rise) in enumerate(lines):
        # The base line lies at 4/5 of the line; letters reach `rise` pixels above it.
        top = max(k * step + round(size * 0.8) - rise, 0)
        rows = min(letters.shape[0], mask.shape[0] - top)
        part = mask[top : top + rows, : letters.shape[1]]
        np.maximum(part, letters[:rows], out=part)
    mask.flags.writeable = False  # it is kept
    return mask


def _line_mask(line: str, size: float) -> tuple[np.ndarray, int]:
    """Return the mask of a line's letters, and how far it reaches above the base line."""
    if not line.strip():
        return np.zeros((0, 1), np.uint8), 0
    font = _font()
    # A font's size is that of its square. With this part of it, texts are as wide as Taichi's.
    font.set_size(size * 0.78, 72)
    font.set_text(line, 0.0)
    font.draw_glyphs_to_bitmap(antialiased=True)
    mask = np.array(font.get_image(), np.uint8)
    descent = round(font.get_descent() / 64)  # in 64ths of a pixel
    return mask, mask.shape[0] - descent


@functools.cache
def _font() -> Any:
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    return FT2Font(font_manager.findfont("DejaVu Sans"))
