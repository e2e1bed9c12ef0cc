"""Pictures of Jacobians and of their errors: one image for each pair, named by fields (matplotlib)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from diffsim.ad.jacobians.comparison import Compared
from diffsim.ad.jacobians.launches import launches_of, subject_of
from diffsim.ad.jacobians.program import Program, by_rows
from diffsim.ad.tape import Tape
from diffsim.errors import ArgumentError, Span, shown
from diffsim.lang.host.signatures import checked, need_bool
from diffsim.runtime.fields.field import Field

_MOST = 1200  # rows or columns of an image; a picture has no more pixels
_LEAST = 0.12  # the share of the largest matrix that the smallest one is drawn with
_DECADES = 8  # from the largest number down, that logarithmic colours tell apart
_NOT_COMPUTED = "////"  # hatches: any colour would be a number's


@checked
def jacobian_plot(
    jacobians: Mapping[tuple[Field, Field], Any] | Tape,
    kernel: Any = None,
    inputs: Sequence[Field] | None = None,
    outputs: Sequence[Field] | None = None,
    show_plot: bool = True,
    show_colorbar: bool = True,
    scale_colors_per_submatrix: bool = False,
    title: str | None = None,
    colormap: str = "coolwarm",
    log_scale: bool = False,
) -> Any:
    """Draw Jacobians as images: a row of images for each output, a column for each input.

    Args:
        jacobians: what `jacobian` or `jacobian_fd` returned, dense or sparse. Hatched is not computed
            (NaN). Or a tape: a figure for each kernel on it, of its first launch, from what the fields
            hold now.
        kernel: a kernel or function whose name the title has.
        inputs: the inputs to draw, in that order; None: all.
        outputs: the outputs to draw, in that order; None: all.
        show_plot: whether to show the figure at once; else it is returned only.
        show_colorbar: whether to draw the scale of colours.
        scale_colors_per_submatrix: whether each image has a scale of its own.
        title: the title.
        colormap: the name of matplotlib's.
        log_scale: logarithmic colours, symmetric around 0: small and large derivatives side by side.

    Returns:
        The figure, of matplotlib; of a tape a list of them.

    Example:
        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)
        x.fill(3.0)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        found = ds.ad.jacobian(square, [x], [y])
        figure = ds.ad.jacobian_plot(found, show_plot=False)
        figure.savefig("jacobian.png")
        print(len(figure.axes) > 0)  # prints: True
    """
    flags = {
        "show_plot": show_plot,
        "show_colorbar": show_colorbar,
        "scale_colors_per_submatrix": scale_colors_per_submatrix,
        "log_scale": log_scale,
    }
    for name, flag in flags.items():
        need_bool(flag, name)
    if isinstance(jacobians, Tape):
        todo = [(f"Jacobian of launch {text}", m) for text, m in _of_launches(jacobians)]
    else:
        _need_matrices(jacobians)
        name = getattr(kernel, "__name__", "the function")
        todo = [("" if kernel is None else f"Jacobian of {name}", jacobians)]
    figures = []
    for heading, matrices in todo:
        images = {pair: thinned(matrix) for pair, matrix in matrices.items()}
        figure = draw(
            images,
            list(dict.fromkeys(i for i, _ in images)) if inputs is None else list(inputs),
            list(dict.fromkeys(o for _, o in images)) if outputs is None else list(outputs),
            title=heading if title is None else title,
            colormap=colormap,
            signed=True,
            logarithmic=log_scale,
            shared=not scale_colors_per_submatrix,
            colorbar=show_colorbar,
        )
        figures.append(figure)
    if show_plot:
        show_now()
    return figures if isinstance(jacobians, Tape) else figures[0]


def _need_matrices(jacobians: Any) -> None:
    if not isinstance(jacobians, Mapping) or not jacobians or not all(map(_is_pair, jacobians)):
        raise ArgumentError(
            f"jacobian_plot draws what ds.ad.jacobian returned, or a tape, not {shown(jacobians)}",
            Span.of_caller(),
            hint="J = ds.ad.jacobian(function, [x], [y]); ds.ad.jacobian_plot(J)",
        )


def _of_launches(tape: Tape) -> Iterator[tuple[str, Mapping[tuple[Field, Field], Any]]]:
    """Yield the Jacobian of the first launch of each kernel, and how it was launched."""
    seen: set[str] = set()
    for number, entry in launches_of(tape, "jacobian_plot"):
        found = subject_of(entry, None)
        name = entry.special.kernel.source.name
        if found is not None and name not in seen and not entry.special.mode.is_detached:
            seen.add(name)
            with Program(found) as program:
                yield f"{number}: {entry.text()}", by_rows(program, None)


def _is_pair(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and all(isinstance(f, Field) for f in key)


def plot_errors(compared: Sequence[tuple[str, Compared]], *, relative: bool) -> None:
    """Draw the errors of comparisons: a figure for each launch of a tape."""
    by_launch: dict[str, list[Compared]] = {}
    for launch, found in compared:
        by_launch.setdefault(launch, []).append(found)
    what = "relative" if relative else "absolute"
    for launch, group in by_launch.items():
        images = {}
        for c in group:
            errors = np.where(c.seen, c.relative if relative else c.errors, np.nan)
            images[c.input, c.output] = thinned(errors)
        draw(
            images,
            list(dict.fromkeys(c.input for c in group)),
            list(dict.fromkeys(c.output for c in group)),
            title=f"{what} errors of the gradient{f', launch {launch}' if launch else ''}",
            colormap="viridis",
            signed=False,
            logarithmic=True,
            shared=True,
            colorbar=True,
        )
    show_now()


def thinned(matrix: Any) -> np.ndarray:
    """Return a matrix of at most so many rows and columns: of each tile the number that is largest.

    A single derivative in a large sparse matrix stays visible.
    """
    if hasattr(matrix, "tocoo"):
        return _thinned_sparse(matrix.tocoo())
    array = np.asarray(matrix, np.float64)
    for axis in (0, 1):
        tile = -(-array.shape[axis] // _MOST)
        if tile > 1:
            array = _largest(array, axis, tile)
    return array


def _largest(array: np.ndarray, axis: int, tile: int) -> np.ndarray:
    parts = np.array_split(array, -(-array.shape[axis] // tile), axis=axis)
    rows = []
    for part in parts:
        # NaN counts as less than any number, unless there is nothing else.
        size = np.where(np.isnan(part), -1, np.abs(part))
        at = np.expand_dims(size.argmax(axis=axis), axis)
        rows.append(np.take_along_axis(part, at, axis=axis))
    return np.concatenate(rows, axis=axis)


def _thinned_sparse(matrix: Any) -> np.ndarray:
    tiles = [max(1, -(-n // _MOST)) for n in matrix.shape]
    made = np.zeros([-(-n // t) for n, t in zip(matrix.shape, tiles, strict=True)])
    order = np.argsort(np.abs(matrix.data))  # the largest one of a tile is written last
    rows, columns = matrix.row[order] // tiles[0], matrix.col[order] // tiles[1]
    made[rows, columns] = matrix.data[order]
    return made


def draw(
    images: Mapping[tuple[Field, Field], np.ndarray],
    ins: Sequence[Field],
    outs: Sequence[Field],
    *,
    title: str | None,
    colormap: str,
    signed: bool,
    logarithmic: bool,
    shared: bool,
    colorbar: bool,
) -> Any:
    """Draw one image for each pair."""
    pyplot = _pyplot()
    # An image is as large as its matrix, within reason.
    wide = _shares([max((images[p].shape[1] for p in images if p[0] is i), default=1) for i in ins])
    high = _shares(
        [max((images[p].shape[0] for p in images if p[1] is o), default=1) for o in outs]
    )
    size = (1.5 + 4.5 * sum(wide), 1.2 + 3.6 * sum(high))
    figure, places = pyplot.subplots(
        len(outs),
        len(ins),
        figsize=[min(14.0, max(3.5, s)) for s in size],
        squeeze=False,
        layout="constrained",
        gridspec_kw={"width_ratios": wide, "height_ratios": high},
    )
    whole = _norm(list(images.values()), signed=signed, logarithmic=logarithmic)
    colours = pyplot.get_cmap(colormap).with_extremes(bad="none")
    drawn = []
    for row, o in enumerate(outs):
        for number, i in enumerate(ins):
            axes = places[row, number]
            axes.set_xlabel(i.name if row == len(outs) - 1 else "")
            axes.set_ylabel(o.name if number == 0 else "")
            image = images.get((i, o))
            if image is None or not image.size:
                axes.set_axis_off()
                continue
            axes.patch.set(hatch=_NOT_COMPUTED, edgecolor="0.6")
            own = whole if shared else _norm([image], signed=signed, logarithmic=logarithmic)
            made = axes.imshow(
                image, cmap=colours, norm=own, aspect="auto", interpolation="nearest"
            )
            _whole_ticks(axes, image.shape)
            drawn.append((made, axes))
    if colorbar and drawn:
        for made, axes in drawn[:1] if shared else drawn:
            figure.colorbar(made, ax=places if shared else axes, shrink=0.9)
    if title:
        figure.suptitle(title)
    return figure


def _pyplot() -> Any:
    import matplotlib.pyplot as pyplot

    return pyplot


def _shares(sizes: list[int]) -> list[float]:
    largest = max(sizes)
    return [max(_LEAST, n / largest) for n in sizes]


def _whole_ticks(axes: Any, shape: tuple[int, ...]) -> None:
    """Number rows and columns by whole numbers; few ones all."""
    from matplotlib.ticker import MaxNLocator

    for axis, n in ((axes.yaxis, shape[0]), (axes.xaxis, shape[1])):
        axis.set_major_locator(MaxNLocator(nbins=min(n, 6), integer=True, min_n_ticks=1))


def _norm(images: list[np.ndarray], *, signed: bool, logarithmic: bool) -> Any:
    """Return how numbers become colours: 0 in the middle if they have signs."""
    from matplotlib import colors

    numbers = np.concatenate([np.abs(m[np.isfinite(m)]) for m in images])
    top = float(numbers.max(initial=0.0)) or 1.0
    if not logarithmic:
        return colors.Normalize(-top if signed else 0.0, top)
    least = max(float(numbers[numbers > 0].min(initial=top)), top * 10.0**-_DECADES)
    least = 10.0 ** np.floor(np.log10(min(least, top / 10)))
    if signed:
        return colors.SymLogNorm(least, vmin=-top, vmax=top)
    return colors.LogNorm(least, top, clip=True)


def show_now() -> None:
    """Show the figures, where there is something to show them on."""
    with warnings.catch_warnings():
        # Without a display they stay what pyplot knows: plt.savefig writes them.
        warnings.filterwarnings("ignore", message=".*non-interactive.*")
        _pyplot().show()
