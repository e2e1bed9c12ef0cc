"""A cloth falls over a ball: points, springs, and small explicit steps.

    python examples/classics/falling_cloth.py [--points 48] [--gui]

Springs lie along the threads, along the diagonals (against shear) and over two squares (against bending). The
ball is a place where no point may be: points that come into it are set on its surface and lose the part of
their velocity that goes inwards, and some of the rest to friction. `examples/cloth.py` is a cloth by implicit
steps, with gradients.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import diffsim as ds

SIDE, MASS = 1.0, 0.2  # of the cloth [m], [kg]
STIFFNESS = 150.0  # of a spring, times its length by the distance of two points [N/m]
DAMPING = 0.01  # of a spring [N s/m]
AIR = 0.3  # share of the velocity that air takes in a second
RADIUS, FRICTION = 0.3, 0.4  # of the ball [m]; of cloth on it
GRAVITY = 9.81  # [m/s²]
FPS = 50  # frames a second
NEAR = [(1, 0), (0, 1), (1, 1), (1, -1), (2, 0), (0, 2)]  # one end of a spring, seen from the other


@ds.data_oriented
class Cloth:
    """n by n points, level at first and above the ball, whose middle is the origin.

    Args:
        n: points along a side.
        height: of the cloth above the middle of the ball [m].
        gravity: downwards [m/s²].
    """

    def __init__(self, n: int, height: float = 0.45, gravity: float = GRAVITY) -> None:
        self.n, self.gravity = n, gravity
        self.rest = SIDE / (n - 1)  # [m]
        self.mass = MASS / n**2  # [kg]
        # The stiffest mode of the cloth has about 4 times the stiffness of 4 springs.
        self.dt = 0.3 * (self.mass / (4 * STIFFNESS)) ** 0.5  # [s]
        self.x, self.v, self.force = (ds.Vector.field(3, float, shape=(n, n)) for _ in range(3))
        x, y = (np.mgrid[:n, :n] / (n - 1) - 0.5) * SIDE
        self.x.from_numpy(np.stack([x + 0.08, y, np.full_like(x, height)], -1))

    @ds.func
    def pull(self, i, j, k, l, rest):
        """The force of a spring on its end (i, j) [N]."""
        way, speed = self.x[k, l] - self.x[i, j], self.v[k, l] - self.v[i, j]
        length = way.norm()
        along = way / length
        return (STIFFNESS * (length - rest) + DAMPING * speed.dot(along)) * along

    @ds.kernel
    def accelerate(self):
        """Forces by places and velocities of the step before; `move` changes them."""
        for i, j in self.x:
            force = ds.Vector([0.0, 0.0, -self.mass * self.gravity])
            for s in ds.static(range(len(NEAR))):
                rest = self.rest * (NEAR[s][0] ** 2 + NEAR[s][1] ** 2) ** 0.5
                for side in ds.static((1, -1)):
                    k, l = i + side * NEAR[s][0], j + side * NEAR[s][1]
                    if 0 <= k < self.n and 0 <= l < self.n:
                        force += self.pull(i, j, k, l, rest)
            self.force[i, j] = force

    @ds.kernel
    def move(self):
        for i, j in self.x:
            v = (self.v[i, j] + self.dt / self.mass * self.force[i, j]) * (1 - AIR * self.dt)
            x = self.x[i, j] + self.dt * v
            if x.norm() < RADIUS:
                out = x.normalized()
                inward = ds.min(v.dot(out), 0.0)
                v -= inward * out
                slide = v - v.dot(out) * out
                v -= ds.min(1.0, -FRICTION * inward / (slide.norm() + 1e-9)) * slide
                x = RADIUS * out
            self.v[i, j], self.x[i, j] = v, x

    def step(self) -> None:
        """Go on by one time step."""
        self.accelerate()
        self.move()


def threads(n: int) -> np.ndarray:
    """Pairs of points to draw lines between."""
    number = np.arange(n * n).reshape(n, n)
    pairs = (number[1:], number[:-1]), (number[:, 1:], number[:, :-1])
    return np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in pairs])


class Picture:
    """A window, or a film of what it would show: the cloth over the ball, lit from the side."""

    def __init__(self, n: int, file: Path | None) -> None:
        number = np.arange(n * n).reshape(n, n)
        a, b, c, d = number[:-1, :-1], number[:-1, 1:], number[1:, :-1], number[1:, 1:]
        self.faces = np.stack([a, c, b, b, c, d], -1).astype(np.int32)
        squares = np.indices((n, n)).sum(0) // 4 % 2
        self.colors = np.where(squares[..., None], [0.13, 0.33, 0.67], [0.75, 0.82, 0.9])
        self.window = ds.ui.Window(
            "A cloth falls over a ball", (600, 600), show_window=file is None
        )
        self.camera, self.file = ds.ui.Camera(), file
        self.camera.position(0.95, -1.3, 0.75)
        self.camera.lookat(0, 0, -0.1)
        self.camera.up(0, 0, 1)

    def show(self, x: np.ndarray) -> None:
        """Show a frame; with a window the right button turns the camera."""
        canvas, scene = self.window.get_canvas(), self.window.get_scene()
        canvas.set_background_color((1, 1, 1))
        self.camera.track_user_inputs(self.window, movement_speed=0.02, hold_key=ds.ui.RMB)
        scene.set_camera(self.camera)
        scene.ambient_light((0.35, 0.35, 0.35))
        scene.point_light((2, -1, 3), (0.75, 0.75, 0.75))
        scene.particles([[0, 0, 0]], radius=0.98 * RADIUS, color=(0.9, 0.6, 0.2))
        scene.mesh(x, self.faces, per_vertex_color=self.colors, two_sided=True)
        canvas.scene(scene)
        if self.file is None:
            self.window.show()
        else:
            self.window.save_image(self.file)


def main(argv: Sequence[Any] | None = None) -> None:
    """Let the cloth fall, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=20000, out="out/falling_cloth")
    parser.add_argument("--points", type=int, default=48, help="along a side (default 48)")
    args = parser.parse_args(argv)
    if args.points < 3:
        parser.error(f"--points has to be at least 3, not {args.points}")
    ds.init(arch=args.arch)
    cloth, film, lines = Cloth(args.points), [], threads(args.points)
    every = max(1, round(1 / FPS / cloth.dt))
    picture = Picture(args.points, None if args.gui else args.out / "falling_cloth.gif")
    for step in ds.tools.progress(range(args.steps), "steps"):
        if step % every == 0 and picture.window.running:
            film.append(cloth.x.to_numpy().reshape(-1, 3))
            picture.show(film[-1])
        cloth.step()
    picture.window.destroy()
    player = ds.tools.Player("A cloth falls over a ball")
    look = {"lines": lines, "radius": 0.002, "bounds": ((-0.7, -0.7, -0.8), (0.7, 0.7, 0.6))}
    player.add_points(np.array(film), every * cloth.dt, label="cloth [m]", **look)
    player.write(args.out / "falling_cloth.html")


if __name__ == "__main__":
    main()
