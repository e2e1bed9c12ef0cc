"""A hand is fitted to points in space: 26 parameters, thousands of distances, a Jacobian in forward mode.

The problem has the shape of ADBench's "hand": a skinned mesh on bones with Euler angles, the distances of its
points to measured ones, and Levenberg and Marquardt's method, which wants the whole Jacobian. Few parameters
and many residuals are what forward mode is for: `ds.ad.FwdMode` takes 8 columns a run. (`ds.ad.jacobian`
gives the same matrix in one line; it puts all fields back, which takes longer than this function.) The mesh
is not ADBench's: it is made here, of rings around 15 finger bones and of a flat palm, and its points know to
which of the measured ones they belong.

    python examples/hand_tracking.py

One sees the flat hand at the start and the fitted one, both with the measured points, and in the film each
iteration between. With 1,020 points the function takes 0.013 ms on one core and its Jacobian, 3,060 x 26,
takes 1.3 ms, most of it Python's; with 27,200 points 0.28 ms and 22 ms, three runs of the function a column.

Bones and skin: linear blend skinning (Magnenat-Thalmann et al. 1988); the shape of the problem: Taylor et
al., User-specific hand modeling from monocular depth sequences (CVPR 2014), and ADBench (Srajer et al. 2018).
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

import diffsim as ds

PARAMETERS = (
    26  # 3 angles and 3 coordinates of the palm, then flex, spread, flex, flex of each finger
)
PALM = (0.09, 0.04, 0.012)  # length, half the width, half the thickness [m]
BLEND = 0.008  # on both sides of a joint, where skin belongs to two bones [m]


class Finger(NamedTuple):
    """Where a finger begins on the palm, where it points to, and its bones."""

    root: tuple[float, float, float]  # [m]
    angle: float  # sideways [rad]
    lengths: tuple[float, float, float]  # [m]
    radius: float  # [m]


FINGERS = (
    Finger((0.025, 0.036, -0.004), 0.8, (0.042, 0.032, 0.026), 0.0105),  # thumb
    Finger((0.090, 0.028, 0.0), 0.10, (0.043, 0.026, 0.021), 0.0090),
    Finger((0.093, 0.009, 0.0), 0.02, (0.047, 0.030, 0.022), 0.0092),
    Finger((0.089, -0.010, 0.0), -0.06, (0.043, 0.028, 0.022), 0.0088),
    Finger((0.080, -0.028, 0.0), -0.14, (0.034, 0.021, 0.019), 0.0078),
)


class Skin(NamedTuple):
    """Points of the mesh: the two bones of each, where it is in their frames, and the first one's part."""

    bones: np.ndarray  # (n, 2)
    first: np.ndarray  # (n, 3) [m]
    second: np.ndarray  # (n, 3) [m]
    part: np.ndarray  # (n,)
    faces: np.ndarray  # (m, 4), corners


def make_skin(rings: int, around: int) -> Skin:
    """Make rings of points around all bones: bone 3 f + k is bone k of finger f, and 15 the palm."""
    angle = np.arange(around) * 2 * np.pi / around
    circle = np.stack([0 * angle, np.cos(angle), np.sin(angle)], axis=1)
    bones, first, second, part, faces = [], [], [], [], []

    def tube(stations, radii, bone, parent, to_parent):
        start = sum(map(len, first))
        for k, (x, radius) in enumerate(zip(stations, radii, strict=True)):
            own = circle * radius + [x, 0, 0]
            first.append(own)
            second.append(to_parent(own))
            bones.append(np.tile([bone, parent], (around, 1)))
            inside = 1.0 if bone == parent else np.clip(0.5 + 0.5 * x / BLEND, 0, 1)
            part.append(np.full(around, inside))
            if k:
                a = start + (k - 1) * around + np.arange(around)
                b = start + (k - 1) * around + np.roll(np.arange(around), -1)
                faces.append(np.stack([a, b, b + around, a + around], axis=1))

    length, width, thickness = PALM
    u = np.linspace(-0.98, 0.98, 2 * rings)
    bulge = (1 - np.abs(u) ** 4) ** 0.5
    tube(length * (u + 1) / 2, bulge[:, None, None] * [1, width, thickness], 15, 15, lambda p: p)
    for f, finger in enumerate(FINGERS):
        base = turned_sideways(finger.angle)
        for k, length in enumerate(finger.lengths):
            x = np.linspace(-0.5 * BLEND, length, rings)
            radii = finger.radius * (1 - 0.12 * k - 0.12 * x / length)
            if k == 2:  # the tip is round
                radii = radii * np.sqrt(1 - 0.99 * np.clip((x / length - 0.6) / 0.4, 0, 1) ** 2)
            if k == 0:
                tube(x, radii, 3 * f, 15, lambda p, b=base, at=finger.root: p @ b.T + at)
            else:
                before = np.array([finger.lengths[k - 1], 0, 0])
                tube(x, radii, 3 * f + k, 3 * f + k - 1, lambda p, at=before: p + at)
    return Skin(*map(np.concatenate, (bones, first, second, part, faces)))


def turned_sideways(angle: float) -> np.ndarray:
    """A rotation about the axis that is normal to the palm."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


class Hand:
    """The kernels from parameters to residuals.

    Args:
        rings: of points along each bone.
        around: points of a ring.
    """

    def __init__(self, rings: int = 6, around: int = 10) -> None:
        self.skin = skin = make_skin(rings, around)
        n = len(skin.part)
        self.pose = pose = ds.field(ds.f64, shape=PARAMETERS)
        self.points = points = ds.Vector.field(3, ds.f64, shape=n)  # [m]
        self.measured = measured = ds.Vector.field(3, ds.f64, shape=n)  # [m]
        self.residual = residual = ds.Vector.field(3, ds.f64, shape=n)  # [m]
        rotation = ds.Matrix.field(3, 3, ds.f64, shape=16)
        place = ds.Vector.field(3, ds.f64, shape=16)  # of each bone's joint [m]
        base = ds.Matrix.field(3, 3, ds.f64, shape=5)
        root = ds.Vector.field(3, ds.f64, shape=5)
        length = ds.field(ds.f64, shape=(5, 3))
        bones = ds.Vector.field(2, ds.i32, shape=n)
        first, second = (ds.Vector.field(3, ds.f64, shape=n) for _ in range(2))
        part = ds.field(ds.f64, shape=n)
        base.from_numpy(np.stack([turned_sideways(f.angle) for f in FINGERS]))
        root.from_numpy(np.array([f.root for f in FINGERS]))
        length.from_numpy(np.array([f.lengths for f in FINGERS]))
        bones.from_numpy(skin.bones.astype(np.int32))
        first.from_numpy(skin.first)
        second.from_numpy(skin.second)
        part.from_numpy(skin.part)

        @ds.func
        def about_x(t):
            return ds.Matrix(
                [[1.0, 0.0, 0.0], [0.0, ds.cos(t), -ds.sin(t)], [0.0, ds.sin(t), ds.cos(t)]]
            )

        @ds.func
        def about_y(t):  # flexes a finger towards the palm
            return ds.Matrix(
                [[ds.cos(t), 0.0, ds.sin(t)], [0.0, 1.0, 0.0], [-ds.sin(t), 0.0, ds.cos(t)]]
            )

        @ds.func
        def about_z(t):  # spreads it
            return ds.Matrix(
                [[ds.cos(t), -ds.sin(t), 0.0], [ds.sin(t), ds.cos(t), 0.0], [0.0, 0.0, 1.0]]
            )

        @ds.func
        def palm():
            return about_z(pose[2]) @ about_y(pose[1]) @ about_x(pose[0])

        @ds.kernel
        def move_bones():
            for f in range(5):
                r = palm() @ base[f] @ about_z(pose[7 + 4 * f])
                at = ds.Vector([pose[3], pose[4], pose[5]]) + palm() @ root[f]
                for k in ds.static(range(3)):
                    r = r @ about_y(pose[6 + 4 * f + (k + 1 if k else 0)])
                    rotation[3 * f + k] = r
                    place[3 * f + k] = at
                    at += length[f, k] * ds.Vector([r[0, 0], r[1, 0], r[2, 0]])
            for _ in range(1):
                rotation[15] = palm()
                place[15] = ds.Vector([pose[3], pose[4], pose[5]])

        @ds.kernel
        def move_skin():
            for i in points:
                a, b = bones[i].x, bones[i].y
                p = rotation[a] @ first[i] + place[a]
                q = rotation[b] @ second[i] + place[b]
                points[i] = part[i] * p + (1.0 - part[i]) * q
                residual[i] = points[i] - measured[i]

        self.move_bones, self.move_skin = move_bones, move_skin

    def run(self) -> None:
        """Compute the residuals of the pose."""
        self.move_bones()
        self.move_skin()

    def residuals(self, pose: np.ndarray) -> np.ndarray:
        """The distances to the measured points along the axes [m]."""
        self.pose.from_numpy(pose)
        self.run()
        return self.residual.to_numpy().ravel()

    def jacobian(self) -> np.ndarray:
        """Their derivatives by the parameters: a column for each, 8 of them in a run."""
        rows = []
        for seeds in np.split(np.eye(PARAMETERS), range(8, PARAMETERS, 8)):
            with ds.ad.FwdMode(param=self.pose, seed=[*seeds]) as forward:
                self.run()
            rows.append(forward.tangents(self.residual).reshape(len(seeds), -1))
        return np.concatenate(rows).T


class Fit(NamedTuple):
    """The result of a fit, and the points and the error after each iteration."""

    pose: np.ndarray
    film: list[np.ndarray]
    errors: list[float]  # root mean square [m]


def fit(hand: Hand, pose: np.ndarray, iterations: int) -> Fit:
    """Let the squares of the residuals become least, by Levenberg and Marquardt's method."""
    r = hand.residuals(pose)
    film, errors, damping = [hand.points.to_numpy()], [rms(r)], 1e-2
    for _ in range(iterations):
        hand.pose.from_numpy(pose)
        j = hand.jacobian()
        h, g = j.T @ j, j.T @ r
        for _ in range(10):
            step = np.linalg.solve(h + damping * np.diag(np.diag(h)), -g)
            tried = hand.residuals(pose + step)
            if tried @ tried < r @ r:
                pose, r, damping = pose + step, tried, damping / 10
                break
            damping *= 4
        film.append(hand.points.to_numpy())
        errors.append(rms(r))
        if np.abs(step).max() < 1e-10:
            break
    return Fit(pose, film, errors)


def rms(residuals: np.ndarray) -> float:
    """The root of the mean square distance [m]."""
    return float(np.sqrt(np.mean(np.sum(residuals.reshape(-1, 3) ** 2, axis=1))))


def random_pose(random: np.random.Generator) -> np.ndarray:
    """A hand that is half closed, somewhere."""
    pose = np.empty(PARAMETERS)
    pose[:3] = random.uniform(-0.6, 0.6, 3)
    pose[3:6] = random.uniform(-0.05, 0.05, 3)
    fingers = random.uniform(0.1, 1.0, (5, 4))
    fingers[:, 1] = random.uniform(-0.2, 0.2, 5)
    pose[6:] = fingers.ravel()
    return pose


def main(argv: list[str] | None = None) -> Fit:
    """Fit a hand to points of another one, with noise."""
    parser = ds.tools.ArgumentParser(
        __doc__, iterations=30, out="out/hand_tracking", arch=ds.cpu, seed=2
    )
    parser.add_argument("--noise", type=float, default=1.0, help="of the measured points [mm]")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch, default_fp=ds.f64)
    random = np.random.default_rng(args.seed)
    hand, truth = Hand(), random_pose(random)
    hand.residuals(truth)
    exact = hand.points.to_numpy()
    hand.measured.from_numpy(exact + random.normal(0, args.noise / 1e3, exact.shape))
    found = fit(hand, np.zeros(PARAMETERS), args.iterations)
    off = np.abs(found.pose - truth)
    print(
        f"{len(found.errors) - 1} iterations: error {1e3 * found.errors[0]:.1f} mm -> "
        f"{1e3 * found.errors[-1]:.2f} mm; angles off by {np.degrees(np.delete(off, [3, 4, 5]).max()):.2f} "
        f"degrees, the palm by {1e3 * off[3:6].max():.2f} mm at most"
    )
    draw(args.out, hand, found)
    return found


def draw(folder: Path, hand: Hand, found: Fit) -> None:
    """Write the picture before and after, the film, the page and the curve of the error."""
    import matplotlib.pyplot as plt
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    measured = hand.measured.to_numpy()
    figure = plt.figure(figsize=(10, 5), layout="constrained")
    for k, (points, title) in enumerate(((found.film[0], "before"), (found.film[-1], "after"))):
        axes = figure.add_subplot(1, 2, k + 1, projection="3d")
        skin = Poly3DCollection(points[hand.skin.faces], facecolor="#e8b896", edgecolor="#b98560")
        skin.set(alpha=0.75, linewidth=0.3)
        axes.add_collection3d(skin)
        axes.scatter(*measured[::2].T, s=2, color="#2166ac", label="measured")
        every = np.concatenate([measured, points])
        middle, half = (every.max(0) + every.min(0)) / 2, np.ptp(every, axis=0).max() / 2
        limits = np.stack([middle - half, middle + half], axis=1)
        axes.set(xlim=limits[0], ylim=limits[1], zlim=limits[2], box_aspect=(1, 1, 1))
        axes.set(title=f"{title}: off by {1e3 * rms(points - measured):.1f} mm; axes in m")
        axes.view_init(55, -100)
        axes.locator_params(nbins=4)
        axes.legend(frameon=False, loc="upper left", markerscale=4)
    ds.tools.save_figure(figure, folder / "hand_tracking.png")
    film = [np.concatenate([points, measured]) for points in found.film]
    colours = np.repeat([[0.85, 0.5, 0.3], [0.13, 0.4, 0.67]], len(measured), axis=0)
    style = {"colors": colours, "radius": 0.001}
    ds.tools.animate(film, 0.3, folder / "hand_tracking.gif", **style)
    ds.tools.plot_loss(found.errors, folder / "loss.png", label="root mean square distance [m]")
    player = ds.tools.Player("A hand is fitted to points")
    player.add_points(film, 0.3, label="each iteration", **style)
    player.add_loss(found.errors, label="root mean square distance [m]")
    player.write(folder / "hand_tracking.html")


if __name__ == "__main__":
    main()
