"""Grains pour into a box: lists of neighbours in cells.

    python examples/classics/grains.py [--gui]

Each cell of a grid has a list of the grains in it (a `dynamic` node), made anew in each step. So a grain
looks for others in nine cells, and not among all. Where grains overlap, a spring with a damper pushes them
apart.
"""

import numpy as np

import diffsim as ds

RADIUS, DT, EVERY = 0.006, 1e-4, 60  # [m], time step [s], steps a frame
CELLS = int(0.5 / RADIUS)  # along a side of the box, which is 1 m wide: each as wide as a grain
MOST = 16  # grains in a cell
STIFFNESS, DAMPING, GRAVITY = 4e5, 60.0, 9.8  # of a mass of 1: [1/s²], [1/s], [m/s²]


@ds.data_oriented
class Grains:
    """Discs of equal size and mass."""

    def __init__(self, places):
        self.x, self.v, self.push = (ds.Vector.field(2, float, len(places)) for _ in range(3))
        self.inside = ds.field(ds.i32)  # the grains in a cell
        self.lists = ds.root.dense(ds.ij, CELLS).dynamic(ds.k, MOST, chunk_size=MOST)
        self.lists.place(self.inside)
        self.x.from_numpy(places)

    @ds.func
    def cell(self, x):
        return ds.math.clamp(ds.cast(x * CELLS, ds.i32), 0, CELLS - 1)

    @ds.kernel
    def sort(self):
        for i, j in self.lists.parent():
            self.inside[i, j].deactivate()
        for p in self.x:
            self.inside[self.cell(self.x[p])].append(p)

    @ds.func
    def contact(self, gap, speed):
        """The push along `gap`, the way from one middle to the other."""
        distance = gap.norm(1e-24)
        n, overlap = gap / distance, 2 * RADIUS - distance
        return ds.select(overlap > 0, (STIFFNESS * overlap - DAMPING * speed.dot(n)) * n, 0.0 * n)

    @ds.kernel
    def collide(self):
        for p in self.x:
            x, v, c = self.x[p], self.v[p], self.cell(self.x[p])
            push = ds.Vector([0.0, -GRAVITY])
            for i in range(ds.max(c[0] - 1, 0), ds.min(c[0] + 2, CELLS)):
                for j in range(ds.max(c[1] - 1, 0), ds.min(c[1] + 2, CELLS)):
                    for k in range(self.inside[i, j].length()):
                        q = self.inside[i, j, k]
                        if q != p:
                            push += self.contact(x - self.x[q], v - self.v[q])
            for side in ds.static(range(2)):  # the walls, as grains in a mirror
                way = ds.Vector([ds.static(1.0 - side), ds.static(1.0 * side)])
                push += self.contact(2 * x[side] * way, 2 * v[side] * way)
                push += self.contact(2 * (x[side] - 1) * way, 2 * v[side] * way)
            self.push[p] = push

    @ds.kernel
    def move(self):
        for p in self.x:
            self.v[p] += DT * self.push[p]
            self.x[p] += DT * self.v[p]

    def step(self):
        self.sort()
        self.collide()
        self.move()


def heap(rng, columns, rows):
    """Rows of grains in the air, slightly out of order."""
    places = np.mgrid[:columns, :rows].reshape(2, -1).T * 2.2 * RADIUS + (0.1, 0.3)
    return places + rng.uniform(-0.1, 0.1, places.shape) * RADIUS


def main(argv=None):
    """Let a heap fall, in a window or into files."""
    parser = ds.tools.ArgumentParser(__doc__, steps=10000, out="out/grains")
    parser.add_argument("--rows", type=int, default=40, help="of 40 grains (default 40)")
    args = parser.parse_args(argv)
    ds.init(arch=args.arch)
    grains, film = Grains(heap(np.random.default_rng(args.seed), 40, args.rows)), []
    gui = ds.GUI("Grains", 512, background_color=0x1B1512, show_gui=args.gui)
    for step in ds.tools.progress(range(args.steps), "steps"):
        if step % EVERY == 0 and gui.running:
            film.append(grains.x.to_numpy())
            gui.circles(film[-1], radius=512 * RADIUS, color=0xD9A45B)
            gui.show(None if args.gui else args.out / "grains.gif")
        grains.step()
    gui.close()
    player = ds.tools.Player("Grains")
    player.add_points(np.array(film), EVERY * DT, radius=RADIUS, bounds=(0, 1), label="grains [m]")
    player.write(args.out / "grains.html")


if __name__ == "__main__":
    main()
