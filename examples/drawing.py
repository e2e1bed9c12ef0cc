"""A picture for `mass_spring.py`: walks as strips of poses, drawn by matplotlib.

Films, curves and pages need no code like this: `ds.tools` makes them. A `Walk` is all that the
picture has to know of one simulated walk; `Stage` draws the ground, `Body` a pose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from robot_file import Robot

import diffsim as ds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 9.0  # of a picture of walks [inch, of 100 pixels]
POSES = 7  # at most, of a walk in the strip
EARTH, PASSIVE, INK = "#8a7f70", "#9aa0a6", "#222222"
COLOURS = "coolwarm_r"  # of the muscles: red is short, blue is long


@dataclass(frozen=True)
class Walk:
    """One simulated walk.

    Args:
        title: what to write over it.
        x: every point at every step, (steps + 1, n, 2) [m].
        activation: of every muscle, -1 (short) to 1 (long), (steps, k).
        dt: time between two steps [s].
    """

    title: str
    x: np.ndarray
    activation: np.ndarray
    dt: float

    def distance(self, step: int) -> float:
        """How far the centre has come by a step [m]."""
        return float((self.x[step] - self.x[0])[:, 0].mean())


class Body:
    """The lines and dots of a robot in one pose.

    Args:
        axes: where to draw.
        robot: which points are joined, and which springs are muscles.
        strength: opacity, 0..1.
    """

    def __init__(self, axes: "Axes", robot: Robot, strength: float = 1.0) -> None:
        """Put lines without places on the axes."""
        from matplotlib.collections import LineCollection

        self.robot, self.is_muscle = robot, robot.amplitude > 0
        style = {"capstyle": "round", "alpha": strength}
        self.passive = LineCollection([], colors=PASSIVE, linewidths=1.5, zorder=2, **style)
        self.muscles = LineCollection([], cmap=COLOURS, linewidths=3.5, zorder=3, **style)
        self.muscles.set_clim(-1, 1)
        axes.add_collection(self.passive)
        axes.add_collection(self.muscles)
        (self.dots,) = axes.plot([], [], "o", ms=4, color=INK, alpha=strength, zorder=4)

    def pose(self, walk: Walk, step: int) -> None:
        """Take the pose of one step."""
        x, activation = walk.x[step], walk.activation[min(step, len(walk.activation) - 1)]
        lines = x[self.robot.ends]
        self.passive.set_segments(lines[~self.is_muscle])
        self.muscles.set_segments(lines[self.is_muscle])
        self.muscles.set_array(activation[self.robot.muscle[self.is_muscle]])
        self.dots.set_data(x[:, 0], x[:, 1])


class Stage:
    """A figure with the ground of each walk, one above the other, to one scale.

    Args:
        walks: what will be seen; sets how far the ground reaches.
    """

    def __init__(self, walks: Sequence[Walk]) -> None:
        """Draw the ground with its ruler, where the walks start, and the legend."""
        from matplotlib.figure import Figure

        every = np.concatenate([walk.x.reshape(-1, 2) for walk in walks])
        low, high = every.min(0), every.max(0)
        span = 1.1 * (high[0] - low[0]) + 0.1  # seen along the ground [m]
        left, below, above = (low[0] + high[0] - span) / 2, 0.04 * span, high[1] + 0.03 * span
        panel = np.clip(WIDTH * (above + below) / span, 1.0, 3.0)
        self.figure = Figure(
            (WIDTH, len(walks) * (panel + 0.6) + 0.25), dpi=100, layout="constrained"
        )
        self.all_axes = list(self.figure.subplots(len(walks), squeeze=False)[:, 0])
        for axes, walk in zip(self.all_axes, walks, strict=True):
            axes.set(aspect="equal", xlim=(left, left + span), ylim=(-below, above), yticks=[])
            axes.spines[:].set_visible(False)
            axes.axhspan(-below, 0, color=EARTH, alpha=0.35, lw=0)
            axes.axhline(0, color=EARTH, lw=1.5)
            axes.axvline(walk.x[0, :, 0].mean(), color=INK, lw=1, ls=":", zorder=1)
            axes.minorticks_on()
            axes.tick_params(axis="x", which="both", direction="in")
            axes.tick_params(axis="x", which="major", length=7)
        self.all_axes[-1].set_xlabel("position along the ground [m]")
        self.add_legend()

    def add_legend(self) -> None:
        """Say above everything what the colours mean."""
        import matplotlib as mpl
        from matplotlib.lines import Line2D

        ends = mpl.colormaps[COLOURS]([0.0, 1.0])
        kinds = (
            ("muscle, short", ends[0], 3.5),
            ("muscle, long", ends[1], 3.5),
            ("spring", PASSIVE, 1.5),
        )
        lines = [Line2D([], [], label=name, color=shade, lw=lw) for name, shade, lw in kinds]
        self.figure.legend(handles=lines, ncols=3, loc="outside upper right", frameon=False)


def draw_strip(path: Path, robot: Robot, walks: Sequence[Walk]) -> None:
    """Draw each walk as poses at equal times, where they were taken, the last the strongest."""
    stage = Stage(walks)
    for axes, walk in zip(stage.all_axes, walks, strict=True):
        last = len(walk.x) - 1
        poses = int(np.clip(abs(walk.distance(last)) / (1.1 * robot.length + 1e-3) + 1, 2, POSES))
        for pose in range(poses):
            body = Body(axes, robot, strength=0.35 + 0.65 * pose / (poses - 1))
            body.pose(walk, last * pose // (poses - 1))
        title = f"{walk.title}: {signed(walk.distance(last))} m in {last * walk.dt:.1f} s"
        axes.set_title(title, loc="left", fontsize=11)
    ds.tools.save_figure(stage.figure, path)


def signed(distance: float) -> str:
    """Write a distance [m] with its sign, to the centimetre."""
    return f"{round(distance, 2) + 0.0:+.2f}".replace("-", "−")
