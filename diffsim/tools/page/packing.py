"""Panels as the page of a `Player` has them: compressed, and made smaller until they fit.

Frames become images of their own (WebP). Positions become whole numbers of 12 bits between the bounds, of
which the differences from frame to frame are compressed. A note says what was left out to fit.
"""

from __future__ import annotations

import base64
import importlib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from diffsim.tools.pictures.colours import Scale, Shades
from diffsim.tools.pictures.images import encoded, pillow, to_rows
from diffsim.tools.pictures.panels import Curve, Frames, Points, spans_decades
from diffsim.tools.pictures.projection import VIEW

_LEVELS = 4095
_NAN = 32767
_FRAME_STEPS = (
    # frames, longer side [pixels], quality of WebP (100: without loss)
    (240, 640, 100), (240, 640, 85), (240, 512, 75), (180, 512, 65), (120, 512, 60), (120, 384, 60),
    (80, 384, 60), (80, 256, 60), (50, 256, 50), (30, 192, 50), (16, 128, 40), (4, 64, 30),
)  # fmt: skip
_POINT_STEPS = (
    # frames, points
    (480, 40_000), (300, 40_000), (200, 40_000), (120, 40_000), (120, 20_000), (80, 20_000), (80, 10_000),
    (60, 5_000), (40, 2_000), (16, 1_000), (4, 200),
)  # fmt: skip
# Points that lines join stay as long as possible: without some of them the lines have no ends.
_ALL = 10**9
_LINE_STEPS = (
    *((frames, _ALL) for frames in (480, 300, 200, 120, 80, 40, 16)),
    (16, 40_000), (16, 10_000), (16, 2_000), (4, 200),
)  # fmt: skip
_MOST_LOSSES = 2000
_SAMPLES = 5

Packed = tuple[dict[str, Any], str]
"""The data of a panel, and a note about what was left out of it."""


def pack(panel: Frames | Points | Curve, budget: int) -> Packed:
    """Return a panel in at most this many bytes of text."""
    if isinstance(panel, Frames):
        return _pack_frames(panel, budget)
    if isinstance(panel, Points):
        return _pack_points(panel, budget)
    return _pack_curve(panel)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _chosen(count: int, most: int) -> np.ndarray:
    """Return which frames are kept: the first and the last one among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _note(label: str, left_out: list[str]) -> str:
    where = f"{label}: " if label else ""
    return f"{where}{', '.join(left_out)}, so that the page stays small." if left_out else ""


# ---- frames


def _pack_frames(panel: Frames, budget: int) -> Packed:
    count, width, height = panel.source.shape[:3]
    for most, side, quality in _FRAME_STEPS:
        kept = _chosen(count, most)
        size = _smaller(width, height, side)
        few = kept[:: max(1, len(kept) // _SAMPLES)]
        guess = sum(len(one) for one in _images(panel, few, size, quality)) * len(kept) / len(few)
        if guess * 4 / 3 > budget and (most, side, quality) != _FRAME_STEPS[-1]:
            continue
        images = [_text(one) for one in _images(panel, kept, size, quality)]
        if sum(map(len, images)) <= budget:
            break
    form = _form()
    made = {
        "kind": "frames",
        "label": panel.label,
        "times": _times(kept, panel.dt),
        "width": size[0],
        "height": size[1],
        "head": f"data:image/{form.lower()};base64,",
        "images": images,
        "scale": _pack_scale(panel.scale),
    }
    left_out = [f"{len(kept)} of {count} frames"] if len(kept) < count else []
    left_out += [f"{size[0]} × {size[1]} of {width} × {height} pixels"] if size[0] < width else []
    return made, _note(panel.label, left_out)


def _smaller(width: int, height: int, side: int) -> tuple[int, int]:
    factor = min(1.0, side / max(width, height))
    return max(1, round(width * factor)), max(1, round(height * factor))


def _form() -> str:
    return "WEBP" if importlib.import_module("PIL.features").check("webp") else "JPEG"


def _images(
    panel: Frames, kept: np.ndarray, size: tuple[int, int], quality: int
) -> Iterator[bytes]:
    for k in kept:
        image = pillow().fromarray(to_rows(panel.frame(k)))
        if image.size != size:
            image = image.resize(size, pillow().Resampling.BOX)
        options: dict[str, Any] = {"quality": quality}
        if _form() == "WEBP":
            options = {"lossless": True} if quality == 100 else {**options, "method": 4}
        yield encoded(np.asarray(image), _form(), **options)


# ---- points


def _pack_points(panel: Points, budget: int) -> Packed:
    count, points = panel.positions.shape[:2]
    for most, crowd in _LINE_STEPS if len(panel.lines) else _POINT_STEPS:
        kept, some = _chosen(count, most), _chosen(points, crowd)
        inside = np.atleast_1d(np.isin(panel.lines, some).all(1))
        made = _points(panel, kept, some, np.flatnonzero(inside))
        if sum(len(v) for v in _texts(made)) <= budget:
            break
    left_out = [f"{len(kept)} of {count} frames"] if len(kept) < count else []
    left_out += [f"{len(some)} of {points} points"] if len(some) < points else []
    left_out += [f"{inside.sum()} of {len(inside)} lines"] if not inside.all() else []
    return made, _note(panel.label, left_out)


def _texts(made: Any) -> Iterator[str]:
    """Yield all texts in a panel's data."""
    if isinstance(made, dict):
        for value in made.values():
            yield from _texts(value)
    elif isinstance(made, list):
        yield str(made)
    elif isinstance(made, str):
        yield made


def _points(panel: Points, kept: np.ndarray, some: np.ndarray, lines: np.ndarray) -> dict[str, Any]:
    """Return some frames, some points and some lines of a panel, all given by their numbers."""
    low, high = panel.bounds
    places = panel.positions[kept][:, some]
    scaled = (places - low) / (high - low) * _LEVELS
    bad = ~np.isfinite(scaled)
    whole = np.where(bad, _NAN, np.clip(np.where(bad, 0, scaled), -32000, 32000).round())
    radius = panel.radius[some]
    uniform = bool((radius == radius[0]).all())
    made = {
        "kind": "points",
        "label": panel.label,
        "times": _times(kept, panel.dt),
        "count": len(some),
        "dimensions": len(low),
        "up": panel.up,
        "view": list(VIEW),
        "low": _short(low),
        "high": _short(high),
        "levels": _LEVELS,
        "places": _numbers(whole.astype(np.int16).reshape(len(kept), -1)),
        "radius": _short(radius[:1])[0] if uniform else _short(radius),
        "shades": _pack_shades(panel.shades, kept, some),
        "scale": _pack_scale(panel.shades.scale or panel.line_shades.scale),
    }
    if len(lines):
        # The ends by their numbers among the points that are kept.
        ends = np.searchsorted(some, panel.lines[lines]).astype("<u4")
        made["lines"] = _text(zlib.compress(ends.tobytes(), 7))
        made["lineShades"] = _pack_shades(panel.line_shades, kept, lines)
    return made


def _numbers(rows: np.ndarray) -> str:
    """Return whole numbers of 16 bits, (T, n): differences from row to row, low bytes before high ones."""
    steps = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1])).astype(np.uint16).ravel()
    planes = np.stack([steps & 255, steps >> 8]).astype(np.uint8)
    return _text(zlib.compress(planes.tobytes(), 7))


def _pack_shades(shades: Shades, kept: np.ndarray, some: np.ndarray) -> dict[str, Any]:
    moves = len(shades.index) > 1
    rows = (shades.index[kept] if moves else shades.index)[:, some]
    steps = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))
    return {
        "moves": moves,
        "index": _text(zlib.compress(steps.tobytes(), 7)),
        "table": [bytes(colour).hex() for colour in shades.table],
    }


def _pack_scale(scale: Scale | None) -> dict[str, Any] | None:
    if scale is None:
        return None
    stops = [bytes(colour).hex() for colour in scale.table[:255:18]]
    return {"low": scale.low, "high": scale.high, "stops": stops}


def _times(kept: np.ndarray, dt: float) -> list[float]:
    return [float(f"{k * dt:.7g}") for k in kept]


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


# ---- curves


def _pack_curve(panel: Curve) -> Packed:
    kept = _chosen(len(panel.losses), _MOST_LOSSES)
    made = {
        "kind": "curve",
        "label": panel.label,
        "at": [int(k) + 1 for k in kept],
        "losses": [float(f"{v:.5g}") if np.isfinite(v) else None for v in panel.losses[kept]],
        "log": spans_decades(panel.losses),
    }
    return made, ""
