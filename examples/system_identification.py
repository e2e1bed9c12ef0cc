"""The parameters of a pendulum, found from a CSV of its measured motion: length, friction and drag.

    python examples/system_identification.py [MEASURED.csv]

The file has a row for each time, with the columns `time` [s], evenly spaced, and `angle` [rad]; lines with #
at the beginning are notes. L-BFGS fits a simulation to it: five numbers, through all time steps (RK4).
One sees the measurements, the motion before and after, and what is left over, which should look like noise.

`measurements/pendulum.csv` is not from a laboratory: SciPy's integrator DOP853 made it, not diffsim, with the
numbers that are written at its top, and noise of 0.01 rad was added.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import diffsim as ds

GRAVITY = 9.81  # [m/s²]
MEASURED = Path(__file__).parent / "measurements" / "pendulum.csv"
NAMES = (
    "length [m]",
    "friction [1/s]",
    "drag [1]",
    "angle at first [rad]",
    "turning at first [rad/s]",
)
GUESS = (1.0, 0.1, 0.1, 0.0, 0.0)
LOWEST, HIGHEST = np.array([0.01, 0, 0, -3.1, -30]), np.array([100, 10, 10, 3.1, 30])


class MeasurementError(ValueError):
    """A file of measurements that cannot be used; the message says where and what is needed."""


def read(path: Path) -> tuple[np.ndarray, float]:
    """Read the angles (n,) [rad], and the time between them [s]."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise MeasurementError(
            f"{path} cannot be read: {reason}; a file to start from is {MEASURED}"
        ) from None
    kept = [(k, line) for k, line in enumerate(lines, 1) if line.strip() and line[0] != "#"]
    names = [name.strip() for name in kept[0][1].split(",")] if kept else []
    for name in ("time", "angle"):
        if name not in names:
            raise MeasurementError(
                f'{path}: the first row has to name a column "{name}", not {names}'
            )
    rows = []
    for (k, _), cells in zip(kept[1:], csv.reader(line for _, line in kept[1:]), strict=True):
        try:
            row = [float(cells[names.index(name)]) for name in ("time", "angle")]
        except (ValueError, IndexError):
            row = [np.nan]
        if not np.isfinite(row).all():
            raise MeasurementError(
                f"{path}, line {k}: time and angle have to be numbers, not {cells}"
            )
        rows.append(row)
    if len(rows) < 10:
        raise MeasurementError(f"{path}: at least 10 rows are needed, not {len(rows)}")
    time, angle = np.array(rows).T
    dt = (time[-1] - time[0]) / (len(time) - 1)
    off = np.abs(time - (time[0] + dt * np.arange(len(time))))
    if dt <= 0 or off.max() > 0.01 * dt:
        worst = kept[1 + int(off.argmax())][0]
        raise MeasurementError(
            f"{path}, line {worst}: times have to grow by the same step, here {dt:.6g} s"
        )
    return angle, float(dt)


@ds.data_oriented
class Pendulum:
    """A pendulum over the times of measurements: angle'' = -g/length · sin - friction · turn - drag · turn².

    Args:
        measured: angles [rad].
        dt: time from one to the next [s].
    """

    def __init__(self, measured: np.ndarray, dt: float) -> None:
        self.n, self.dt = len(measured), dt
        self.p = ds.field(ds.f64, shape=5, needs_grad=True)  # as in NAMES
        self.state = ds.Vector.field(2, ds.f64, shape=self.n, needs_grad=True)  # angle and turning
        self.measured = ds.field(ds.f64, shape=self.n)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)  # mean square [rad²]
        self.measured.from_numpy(measured)
        self.p.from_numpy(np.array(GUESS))

    @ds.func
    def change(self, s):
        """The derivative of the state by time."""
        pull = -GRAVITY / self.p[0] * ds.sin(s[0])
        return ds.Vector([s[1], pull - self.p[1] * s[1] - self.p[2] * s[1] * abs(s[1])])

    @ds.kernel
    def begin(self):
        for _ in range(1):
            self.state[0] = ds.Vector([self.p[3], self.p[4]])

    @ds.kernel
    def step(self, t: ds.i32):
        for _ in range(1):
            s, h = self.state[t], self.dt
            a = self.change(s)
            b = self.change(s + h / 2 * a)
            c = self.change(s + h / 2 * b)
            d = self.change(s + h * c)
            self.state[t + 1] = s + h / 6 * (a + 2 * b + 2 * c + d)

    @ds.kernel
    def compare(self):
        for t in range(self.n):
            self.loss[None] += (self.state[t][0] - self.measured[t]) ** 2 / self.n

    def program(self) -> ds.Field:
        """From the five numbers to the loss."""
        self.begin()
        for t in range(self.n - 1):
            self.step(t)
        self.compare()
        return self.loss

    def motion(self) -> np.ndarray:
        """The angles of a run with the numbers as they are."""
        self.program()
        return self.state.to_numpy()[:, 0]

    def start(self) -> None:
        """Guess the length from the zeros of the motion, and where it begins."""
        angle = self.measured.to_numpy()
        cross = np.flatnonzero((angle[:-1] < 0) != (angle[1:] < 0))
        if len(cross) > 1:
            half = (cross[-1] - cross[0]) * self.dt / (len(cross) - 1)
            self.p[0] = GRAVITY * (half / np.pi) ** 2
        self.p[3], self.p[4] = angle[0], (angle[3] - angle[0]) / (3 * self.dt)


def main(argv: Sequence[Any] | None = None) -> np.ndarray:
    """Fit the pendulum, and show it; return the five numbers."""
    parser = ds.tools.ArgumentParser(__doc__, iterations=60, out="out/system_identification")
    parser.add_argument(
        "measured", nargs="?", type=Path, default=MEASURED, help="CSV of the motion"
    )
    args = parser.parse_args(argv)
    ds.init(arch=args.arch, default_fp=ds.f64)
    try:
        angle, dt = read(args.measured)
    except MeasurementError as error:
        parser.error(str(error))
    pendulum = Pendulum(angle, dt)
    pendulum.start()
    before, losses = pendulum.motion(), []
    for part in (0.25, 1.0):  # the first swings alone, so that no fit slips by a whole one
        count = max(10, round(part * len(angle)))
        piece = Pendulum(angle[:count], dt)
        piece.p.from_numpy(pendulum.p.to_numpy())
        found = ds.optim.minimize(
            piece.p, piece.program, iterations=args.iterations, bounds=(LOWEST, HIGHEST)
        )
        losses += found.losses
        pendulum.p.from_numpy(piece.p.to_numpy())
    after = pendulum.motion()
    for name, value in zip(NAMES, pendulum.p.to_numpy(), strict=True):
        print(f"{name:25} {value:.4f}")
    print(f"left over: {np.std(after - angle):.4f} rad")
    show_results(args, angle, dt, before, after, losses)
    return pendulum.p.to_numpy()


def show_results(
    args: Any, angle: np.ndarray, dt: float, before: np.ndarray, after: np.ndarray, losses: list
) -> None:
    """Draw the fit, and let the pendulums swing on a page."""
    import matplotlib.pyplot as plt

    ds.tools.plot_loss(losses, args.out / "loss.png", label="mean square [rad²]")
    figure, (top, low) = plt.subplots(
        2, 1, figsize=(10, 6), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    time = dt * np.arange(len(angle))
    top.plot(time, angle, ".", ms=3, color="0.6", label="measured")
    top.plot(time, before, "--", lw=1, color="tab:orange", label="first guess")
    top.plot(time, after, color="tab:blue", label="found")
    top.set(ylabel="angle [rad]")
    top.legend(loc="upper right")
    low.plot(time, angle - after, ".", ms=2)
    low.set(xlabel="time [s]", ylabel="left over [rad]")
    ds.tools.save_figure(figure, args.out / "fit.png")
    player = ds.tools.Player("A pendulum, measured and found")
    look = {"lines": [(0, 1)], "radius": 0.04, "bounds": ((-1.1, -1.2), (1.1, 0.5))}
    for x, name in ((angle, "measured"), (before, "first guess"), (after, "found")):
        bob = np.stack([np.sin(x), -np.cos(x)], -1)
        player.add_points(np.stack([0 * bob, bob], 1), dt, label=name, **look)
    player.add_loss(losses, label="mean square [rad²]")
    player.write(args.out / "system_identification.html")
    if args.gui:
        gui = ds.GUI("Pendulum, measured and found", 400, background_color=0xFFFFFF)
        for swing in np.stack([angle, after], 1):
            if not gui.running:
                break
            bobs = 0.5 + 0.4 * np.stack([np.sin(swing), -np.cos(swing)], 1)
            gui.lines(np.full((2, 2), 0.5), bobs, radius=1, color=0x888888)
            gui.circles(bobs, radius=8, color=np.array([0xAAAAAA, 0x2255AA]))
            gui.show()


if __name__ == "__main__":
    main()
