"""`Player`: one self-contained page that plays films and shows the curve of a loss, offline."""

from __future__ import annotations

import html
import json
from pathlib import Path
from string import Template
from typing import Any

from diffsim.errors import memory_size, shown
from diffsim.lang.host.signatures import checked_methods
from diffsim.lang.host.unsupported import Explained
from diffsim.public_names import PublicNames
from diffsim.runtime.files import write_file
from diffsim.tools.page.packing import pack
from diffsim.tools.pictures.arrays import path_of, refuse
from diffsim.tools.pictures.panels import (
    Curve,
    Frames,
    Points,
    make_curve,
    make_frames,
    make_points,
)

_FOLDER = Path(__file__).parent
_MOST_BYTES = 2_000_000


_ADVICE = {
    "save": "write player.write(path)",
    "show": "write player.write(path), and open the page in a browser",
}


@checked_methods("__init__ add_frames add_points add_loss write")
class Player(Explained, metaclass=PublicNames):
    """One HTML file with films side by side: play, pause, scrub, speed, keys; with the curve of a loss.

        player = ds.tools.Player("A wave that becomes a pattern")
        player.add_frames(before, dt=0.01, label="before")
        player.add_frames(after, dt=0.01, label="after")
        player.add_loss(losses, label="loss [m²]")
        player.write("out/wave.html")

    The file needs nothing else and at most `max_bytes`: frames and points that do not fit are left out,
    with a note on the page.

    Args:
        title: of the page.
        unit: of the `dt` of all films: "s", or "iterations" for films of a training (with dt=1).
        max_bytes: the largest size of the file.

    Example:
        from pathlib import Path

        player = ds.tools.Player("A wave")
        player.add_frames(np.random.default_rng(0).random((10, 8, 8)), dt=0.1, label="height")
        player.add_loss([9.0, 4.0, 1.0], label="loss [m²]")
        player.write("wave.html")
        print(Path("wave.html").read_text()[:15])  # prints: <!doctype html>
    """

    _public = "add_frames add_loss add_points write"

    _words = "a player"
    _advice = _ADVICE

    def __init__(self, title: str, unit: str = "s", max_bytes: int = _MOST_BYTES) -> None:
        if not isinstance(title, str):
            raise refuse(f"the title is a text, not {shown(title)}", 'write Player("A wave")')
        self.title = title
        self.unit = str(unit)
        self.max_bytes = max_bytes
        self._panels: list[Frames | Points | Curve] = []

    def add_frames(
        self,
        array: Any,
        dt: float,
        label: str = "",
        *,
        cmap: str = "viridis",
        vmin: float | None = None,
        vmax: float | None = None,
    ) -> None:
        """Add a film of images.

        Args:
            array: (T, width, height) numbers, or (T, width, height, 3) colours; the first axis of an image
                goes to the right, the second one up. A list of fields or arrays does as well.
            dt: time from one frame to the next [s].
            label: what to write above.
            cmap: the colour map for numbers, one of matplotlib's.
            vmin: the number with its first colour; the smallest one if left out.
            vmax: the number with its last colour; the largest one if left out.

        Example:
            from pathlib import Path

            player = ds.tools.Player("A wave")
            frames = np.random.default_rng(0).random((10, 8, 8))  # (T, width, height)
            player.add_frames(frames, dt=0.1, label="height [m]")
            player.write("wave.html")
            print(Path("wave.html").exists())  # prints: True
        """
        self.add(make_frames(array, dt, label, cmap, vmin, vmax))

    def add_points(
        self,
        positions: Any,
        dt: float,
        label: str = "",
        *,
        colors: Any = None,
        lines: Any = None,
        line_colors: Any = None,
        radius: Any = None,
        bounds: Any = None,
        up: str = "z",
        cmap: str = "viridis",
        vmin: float | None = None,
        vmax: float | None = None,
    ) -> None:
        """Add a film of points, and of lines between them; three dimensions can be turned by dragging.

        Args:
            positions: (T, n, 2 or 3).
            dt: time from one frame to the next [s].
            label: what to write above.
            colors: one colour, such as 0x2166AC or "tab:blue"; one for each point, (n, 3), or (n,) whole
                numbers 0xRRGGBB; or numbers, (n,) or (T, n) floats, which get the colours of `cmap`.
            lines: pairs of points, (m, 2).
            line_colors: the same as `colors`, for lines.
            radius: in the unit of the positions: one number, or (n,).
            bounds: the lower and the upper corner of what is seen, as ((0, 0), (2, 1)) or (0, 1).
            up: the upright axis of three dimensions, "y" or "z".
            cmap: as for `add_frames`, and so are `vmin` and `vmax`.
            vmin: the number with its first colour.
            vmax: the number with its last colour.

        Example:
            from pathlib import Path

            player = ds.tools.Player("A wave")
            walk = np.random.default_rng(0).random((10, 5, 2))  # (T, n, 2)
            player.add_points(walk, dt=0.1, label="walk", colors=0x2166AC)
            player.write("walk.html")
            print(Path("walk.html").exists())  # prints: True
        """
        self.add(
            make_points(
                positions, dt, label, colors=colors, lines=lines, line_colors=line_colors, radius=radius,
                bounds=bounds, up=up, scaling=(cmap, vmin, vmax),
            )
        )  # fmt: skip

    def add_loss(self, losses: Any, label: str = "loss") -> None:
        """Add the curve of a training: one number for each iteration; `label` with the unit.

        Example:
            from pathlib import Path

            player = ds.tools.Player("A wave")
            player.add_loss([9.0, 4.0, 1.0], label="loss [m²]")
            player.write("loss.html")
            print(Path("loss.html").exists())  # prints: True
        """
        self.add(make_curve(losses, label))

    def add(self, panel: Frames | Points | Curve) -> None:
        """Add a panel that is made already."""
        self._panels.append(panel)

    def write(self, path: Any) -> None:
        """Write the page.

        Raises:
            ArgumentError: there is nothing on it, or too much; it cannot be written there.

        Example:
            from pathlib import Path

            player = ds.tools.Player("A wave")
            player.add_loss([9.0, 4.0, 1.0])
            player.write("loss.html")
            print(Path("loss.html").exists())  # prints: True
        """
        target = path_of(path, "the page", (".html", ".htm"))
        if not self._panels:
            raise refuse("the page is empty", "call add_frames, add_points or add_loss before")
        page = self.text().encode()
        if len(page) > self.max_bytes:
            raise refuse(
                f"the page takes {memory_size(len(page))}, however much is left out of its "
                f"{len(self._panels)} panels",
                "write several pages, or allow more: Player(title, max_bytes=...)",
            )
        write_file(target, page)

    def text(self) -> str:
        """Return the page as text."""
        parts = {
            name: (_FOLDER / f"player.{name}").read_text("utf-8") for name in ("html", "css", "js")
        }
        left = self.max_bytes - sum(map(len, parts.values())) - 1000
        packed: dict[int, dict[str, Any]] = {}
        notes: dict[int, str] = {}
        # Curves are small and come first; then each panel has its share of what the others left.
        order = sorted(
            range(len(self._panels)), key=lambda k: not isinstance(self._panels[k], Curve)
        )
        for done, k in enumerate(order):
            packed[k], notes[k] = pack(self._panels[k], left // (len(order) - done) - 1000)
            left -= len(json.dumps(packed[k]))
        panels = [packed[k] for k in range(len(self._panels))]
        data = json.dumps({"unit": self.unit, "panels": panels}, separators=(",", ":")).replace(
            "<", "\\u003c"
        )
        said = [f"<p>{html.escape(notes[k])}</p>" for k in range(len(self._panels)) if notes[k]]
        return Template(parts["html"]).substitute(
            title=html.escape(self.title), style=parts["css"], script=parts["js"], data=data,
            notes="".join(said),
        )  # fmt: skip
