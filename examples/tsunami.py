"""Where did the wave begin? A tsunami's source, found from gauges along a real coast.

    python examples/tsunami.py [--bathymetry FILE.npz]

The sea between Vancouver Island and the coast of Washington. A wave in shallow water of depth h travels at
√(g h), so that the ocean floor bends its way; what gauges record depends linearly on the surface at first,
and L-BFGS finds that surface, through all time steps. One sees the surface that made the records, the one
found, and the gauges: after 200 iterations the hump is 0.5 km beside its place, and 0.6 m high, not 1 m, as
roughness is punished. The grid is coarse (2.5 km) and the waves are small: a lesson and no forecast.

Data: depths are `topobathy.npz`, which comes with matplotlib (--bathymetry: a file with the arrays topo [m],
longitude and latitude [degrees]). The records are not measured: the same equations made them from a hump of
1 m, with noise of 1 mm.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import diffsim as ds

GRAVITY = 9.81  # [m/s²]
DEGREE = 111.2e3  # of latitude [m]
SHALLOW = 5.0  # least depth of water [m]
SPONGE = 6  # cells along the open sides in which waves die away
GAUGES = {  # (longitude, latitude); the nearest cell of water is taken
    "Tofino": (234.09, 49.15), "Bamfield": (234.86, 48.83), "Port Renfrew": (235.58, 48.55),
    "Neah Bay": (235.38, 48.37), "Sooke": (236.27, 48.36), "Port Angeles": (236.56, 48.12),
    "buoy S": (235.0, 48.15), "buoy W": (234.2, 48.75), "buoy N": (234.4, 49.0),
}  # fmt: skip
SOURCE = (234.65, 48.5, 14e3)  # of the hump: longitude, latitude, radius [m]
NOISE = 1e-3  # of the gauges [m]
SMOOTH = 1e-4  # weight of the surface's roughness in the loss
EVERY = 4  # steps a frame


class BathymetryError(ValueError):
    """A file of depths that cannot be used."""


def read(path: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heights of the ground (longitude, latitude) [m], longitudes and latitudes [degrees]."""
    from matplotlib.cbook import get_sample_data

    try:
        with np.load(path) if path else get_sample_data("topobathy.npz") as data:
            topo, lon, lat = (
                data[name].astype(float) for name in ("topo", "longitude", "latitude")
            )
    except FileNotFoundError:
        missing = path or "matplotlib's sample file topobathy.npz"
        raise BathymetryError(
            f"{missing} does not exist; name a file with --bathymetry FILE.npz"
        ) from None
    except (OSError, KeyError, ValueError, AttributeError) as error:
        raise BathymetryError(
            f"{path} has to be an .npz file with the arrays topo, longitude and latitude: {error}"
        ) from None
    if topo.shape != (lat.size, lon.size) or min(topo.shape) < 2 * SPONGE + 4:
        raise BathymetryError(
            f"topo is {topo.shape}; it has to be (latitudes, longitudes), which are {lat.size} and "
            f"{lon.size}, and at least {2 * SPONGE + 4} of each"
        )
    if not (np.diff(lon) > 0).all() or not (np.diff(lat) > 0).all() or not np.isfinite(topo).all():
        raise BathymetryError("longitude and latitude have to grow, and topo has to be finite")
    if not (topo < 0).any():
        raise BathymetryError(
            "there is no water: topo is the height above the sea, negative in it [m]"
        )
    return topo.T, lon, lat


@ds.data_oriented
class Sea:
    """Long waves on water at rest: η' = -div(h v), v' = -g grad η; v is on the sides of the cells.

    Args:
        depth: of each cell (nx, ny), 0 on land [m].
        size: of a cell, along x and along y [m].
        places: cells of the gauges, (m, 2).
        steps: of time.
        sponge: cells along the rim in which waves die away.
    """

    def __init__(
        self, depth: np.ndarray, size: tuple, places: np.ndarray, steps: int, sponge: int = SPONGE
    ) -> None:
        self.nx, self.ny = depth.shape
        self.dx, self.dy = size
        self.steps, self.gauges = steps, len(places)
        speed = np.sqrt(GRAVITY * depth.max())
        self.dt = float(0.9 / speed / np.hypot(1 / self.dx, 1 / self.dy))  # [s]
        i, j = np.mgrid[: self.nx, : self.ny]
        rim = np.minimum(np.minimum(i, self.nx - 1 - i), np.minimum(j, self.ny - 1 - j))
        grid = (self.nx, self.ny)
        self.depth, self.keep = ds.field(float, shape=grid), ds.field(float, shape=grid)
        self.depth.from_numpy(depth)
        self.keep.from_numpy(1 - 0.3 * np.maximum(1 - rim / max(sponge, 1), 0) ** 2 * (sponge > 0))
        self.source = ds.field(float, shape=grid, needs_grad=True)  # [m]
        self.eta = ds.field(float, shape=(steps + 1, *grid), needs_grad=True)  # surface [m]
        self.v = ds.Vector.field(2, float, shape=(steps + 1, *grid), needs_grad=True)  # [m/s]
        self.place = ds.Vector.field(2, ds.i32, shape=len(places))
        self.place.from_numpy(np.asarray(places, np.int32))
        self.record = ds.field(float, shape=(steps + 1, len(places)))  # [m]
        self.loss = ds.field(float, shape=(), needs_grad=True)

    @ds.func
    def side(self, i, j, k, l):
        """The depth of the water between two cells, 0 if one of them is land [m]."""
        low = ds.min(self.depth[i, j], self.depth[k, l])
        return ds.select(low > 0, 0.5 * (self.depth[i, j] + self.depth[k, l]), 0.0)

    @ds.kernel
    def begin(self):
        for i, j in self.source:
            self.eta[0, i, j] = ds.select(self.depth[i, j] > 0, self.source[i, j], 0.0)

    @ds.kernel
    def speed_up(self, t: ds.i32):
        """Component 0 is on a cell's left side, component 1 on its lower one."""
        for i, j in self.source:
            v = self.v[t, i, j]
            if i > 0 and self.side(i, j, i - 1, j) > 0:
                v[0] -= self.dt * GRAVITY / self.dx * (self.eta[t, i, j] - self.eta[t, i - 1, j])
            if j > 0 and self.side(i, j, i, j - 1) > 0:
                v[1] -= self.dt * GRAVITY / self.dy * (self.eta[t, i, j] - self.eta[t, i, j - 1])
            self.v[t + 1, i, j] = self.keep[i, j] * v

    @ds.kernel
    def flow(self, t: ds.i32):
        for i, j in self.source:
            gain = 0.0
            if i > 0:
                gain += self.side(i, j, i - 1, j) * self.v[t + 1, i, j][0] / self.dx
            if i < self.nx - 1:
                gain -= self.side(i + 1, j, i, j) * self.v[t + 1, i + 1, j][0] / self.dx
            if j > 0:
                gain += self.side(i, j, i, j - 1) * self.v[t + 1, i, j][1] / self.dy
            if j < self.ny - 1:
                gain -= self.side(i, j + 1, i, j) * self.v[t + 1, i, j + 1][1] / self.dy
            self.eta[t + 1, i, j] = self.keep[i, j] * (self.eta[t, i, j] + self.dt * gain)

    @ds.kernel
    def compare(self):
        for t, g in ds.ndrange(self.steps + 1, self.gauges):
            miss = self.eta[t, self.place[g][0], self.place[g][1]] - self.record[t, g]
            self.loss[None] += miss**2 / (NOISE**2 * self.steps * self.gauges)
        for i, j in ds.ndrange((1, self.nx), (1, self.ny)):
            a = self.source[i, j] - self.source[i - 1, j]
            b = self.source[i, j] - self.source[i, j - 1]
            self.loss[None] += SMOOTH / NOISE * (a * a + b * b)

    def program(self) -> ds.Field:
        """From the source to the loss."""
        self.begin()
        for t in range(self.steps):
            self.speed_up(t)
            self.flow(t)
        self.compare()
        return self.loss

    def run(self, source: np.ndarray) -> np.ndarray:
        """The surface at all times, (steps + 1, nx, ny) [m]."""
        self.source.from_numpy(source)
        self.program()
        return self.eta.to_numpy()


def nearest_water(depth: np.ndarray, lon: np.ndarray, lat: np.ndarray, place: tuple) -> tuple:
    """The cell of water that is nearest to a place."""
    away = np.hypot((lon[:, None] - place[0]) * np.cos(np.radians(place[1])), lat - place[1])
    return np.unravel_index(np.where(depth > 0, away, np.inf).argmin(), depth.shape)


def main(argv: Sequence[Any] | None = None) -> list[float]:
    """Find the source, and show it."""
    parser = ds.tools.ArgumentParser(__doc__, steps=400, iterations=200, out="out/tsunami")
    parser.add_argument("--bathymetry", type=Path, help=".npz file, instead of matplotlib's")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    try:
        ground, lon, lat = read(args.bathymetry)
    except BathymetryError as error:
        parser.error(str(error))
    depth = np.where(ground < 0, np.maximum(-ground, SHALLOW), 0)
    size = (
        DEGREE * np.cos(np.radians(lat.mean())) * np.diff(lon).mean(),
        DEGREE * np.diff(lat).mean(),
    )
    places = np.array([nearest_water(depth, lon, lat, place) for place in GAUGES.values()])
    sea = Sea(depth, size, places, args.steps)
    way = (lon[:, None] - SOURCE[0]) * size[0] / np.diff(lon).mean()
    up = (lat - SOURCE[1]) * size[1] / np.diff(lat).mean()
    truth = np.exp(-(way**2 + up**2) / SOURCE[2] ** 2) * (depth > 0)
    film = sea.run(truth)
    noise = np.random.default_rng(args.seed).normal(0, NOISE, (args.steps + 1, len(places)))
    sea.record.from_numpy(film[:, places[:, 0], places[:, 1]] + noise)
    sea.source.fill(0)
    run = ds.optim.minimize(sea.source, sea.program, iterations=args.iterations)
    found = sea.source.to_numpy() * (depth > 0)
    away = np.hypot(*[c.ravel()[found.argmax()] for c in np.broadcast_arrays(way, up)]) / 1e3
    print(
        f"highest at {found.max():.2f} m (it was {truth.max():.2f} m), {away:.1f} km beside the hump's middle"
    )
    show_results(args, sea, (truth, found), film, (lon, lat), run.losses)
    return run.losses


def show_results(
    args: Any, sea: Sea, sources: tuple, film: np.ndarray, axes: tuple, losses: list[float]
) -> None:
    """Draw both sources on a map, and let the wave run on a page."""
    import matplotlib.pyplot as plt

    depth, (lon, lat) = sea.depth.to_numpy(), axes
    figure, plots = plt.subplots(1, 2, figsize=(12, 4), layout="constrained", sharey=True)
    for axis, source, title in zip(plots, sources, ("made the records", "found"), strict=True):
        shown = np.ma.masked_where(depth == 0, source)
        image = axis.pcolormesh(lon, lat, shown.T, cmap="RdBu_r", vmin=-1, vmax=1)
        axis.contour(lon, lat, depth.T, [1, 200, 1000], colors="0.6", linewidths=0.6)
        where = sea.place.to_numpy()
        axis.plot(lon[where[:, 0]], lat[where[:, 1]], "k^", ms=5)
        axis.set(title=title, xlabel="longitude [°]", facecolor="0.85", aspect=1.52)
    plots[0].set_ylabel("latitude [°]")
    figure.colorbar(image, ax=plots, label="surface at first [m]")
    ds.tools.save_figure(figure, args.out / "sources.png")
    ds.tools.plot_loss(losses, args.out / "loss.png", label="loss")
    picture = ds.tools.colormap(film[::EVERY], "RdBu_r", -0.2, 0.2)
    picture[:, depth == 0] = 0.8
    player = ds.tools.Player("A tsunami between Vancouver Island and Washington")
    player.add_frames(picture, EVERY * sea.dt, label="surface, blue to red −0.2 to 0.2 m")
    player.add_loss(losses, label="loss")
    player.write(args.out / "tsunami.html")
    if args.gui:
        gui = ds.GUI("Tsunami", tuple(4 * s for s in depth.shape))
        for image in picture:
            if not gui.running:
                break
            gui.set_image(image.repeat(4, 0).repeat(4, 1))
            gui.show()


if __name__ == "__main__":
    main()
