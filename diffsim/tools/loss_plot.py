"""`plot_loss`: the curve of a training; `save_figure` for every other picture of matplotlib's."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np

from diffsim.lang.host.signatures import checked, need_function
from diffsim.runtime.files import write_file
from diffsim.tools.pictures.arrays import path_of
from diffsim.tools.pictures.figures import new_figure
from diffsim.tools.pictures.panels import make_curve, spans_decades

_FORMATS = (".png", ".svg", ".pdf")


@checked
def plot_loss(losses: Any, path: Any, label: str = "loss") -> None:
    """Draw the loss over the iterations of a training, and the best one so far.

    Args:
        losses: one for each iteration.
        path: of the picture: .png, .svg or .pdf.
        label: of the axis, with the unit: "loss [m]".

    Raises:
        ArgumentError: no losses, an ending that names no format, a file that cannot be written.

    Example:
        ds.tools.plot_loss([9.0, 4.0, 1.0], "loss.png", label="loss [m²]")
        print(ds.tools.imread("loss.png").ndim)  # prints: 3
    """
    target = path_of(path, "the picture", _FORMATS)
    curve = make_curve(losses, label)
    figure = new_figure(6.4, 4)
    axes = figure.add_subplot()
    count = np.arange(1, len(curve.losses) + 1)
    axes.plot(count, curve.losses, ".-", color="tab:blue", lw=1, ms=3, label="each iteration")
    best = np.fmin.accumulate(curve.losses)
    alone = "o" if len(count) == 1 else ""  # one point makes no line
    axes.plot(count, best, color="tab:red", lw=2, marker=alone, label="best so far")
    axes.set(xlabel="iteration", ylabel=curve.label)
    if spans_decades(curve.losses):
        axes.set_yscale("log")
    axes.set_xlim(0.5 if len(count) < 10 else None, len(count) + 0.5 if len(count) < 10 else None)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, target)


@checked
def save_figure(figure: Any, path: Any) -> None:
    """Write a figure of matplotlib's: the folder is made, and a program that is killed leaves the old file.

    A figure of `matplotlib.pyplot` is closed, so that figures do not add up.

    Args:
        figure: the figure.
        path: of the picture: .png, .svg or .pdf.

    Raises:
        ArgumentError: an ending that names no format; a file that cannot be written.

    Example:
        from matplotlib import pyplot

        figure, ax = pyplot.subplots()
        ax.plot([0, 1, 4])
        ds.tools.save_figure(figure, "out/curve.png")
        print(ds.tools.imread("out/curve.png").ndim)  # prints: 3
    """
    target = path_of(path, "the picture", _FORMATS)
    need_function(getattr(figure, "savefig", None), "savefig of the figure", "give plt.gcf()")
    file = io.BytesIO()
    figure.savefig(file, format=target.suffix[1:].lower())
    write_file(target, file.getvalue())
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close(figure)
