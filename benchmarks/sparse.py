"""Times of loops over sparse fields and of activation, with those of Taichi beside them.

    python benchmarks/sparse.py [--peer PYTHON] [--threads 1] [--write]

`--peer` is a Python with Taichi. `--write` puts the table into sparse.md.
"""

from beside_taichi import best, run

SIDE, FIRST, PARTICLES = 600, 1000, 200_000  # of the active square, its corner
TASKS = {
    "loop": "y[I] = 0.5 y[I] + x[I] over 600 x 600 active elements",
    "stencil": "five points, the same loop",
    "bits": "a loop over a third of the elements (bitmasked)",
    "store": "600 x 600 stores to active elements",
    "activate": "all deactivated, and 600 x 600 stores that activate",
    "scatter": "200,000 particles add to 3 x 3 elements",
    "append": "200,000 appends to 90,000 lists",
}


def measure(ds, threads, rounds=20):  # noqa: C901 - small kernels, one after the other
    """Milliseconds of each task; ds is diffsim or taichi."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    x, y, z = (ds.field(ds.f32) for _ in range(3))
    blocks = ds.root.pointer(ds.ij, 512)
    blocks.dense(ds.ij, 8).place(x, y)
    ds.root.pointer(ds.ij, 512).bitmasked(ds.ij, 8).place(z)
    kept = ds.field(ds.i32)
    lists = ds.root.dense(ds.ij, 300).dynamic(ds.k, 64, chunk_size=16)
    lists.place(kept)
    at = ds.Vector.field(2, ds.i32, shape=PARTICLES)

    @ds.kernel
    def start():
        for p in at:
            at[p] = [ds.cast(ds.random() * SIDE, ds.i32), ds.cast(ds.random() * SIDE, ds.i32)]

    @ds.kernel
    def store():
        for i, j in ds.ndrange(SIDE, SIDE):
            x[i + FIRST, j + FIRST] = 1.0

    @ds.kernel
    def loop():
        for i, j in x:
            y[i, j] = 0.5 * y[i, j] + x[i, j]

    @ds.kernel
    def stencil():
        for i, j in x:
            y[i, j] = x[i + 1, j] + x[i - 1, j] + x[i, j + 1] + x[i, j - 1] - 4 * x[i, j]

    @ds.kernel
    def some():
        for i, j in ds.ndrange(SIDE, SIDE):
            if (i + j) % 3 == 0:
                z[i + FIRST, j + FIRST] = 1.0

    @ds.kernel
    def bits():
        for i, j in z:
            z[i, j] = 0.5 * z[i, j] + 1.0

    @ds.kernel
    def scatter():
        for p in at:
            for i, j in ds.static(ds.ndrange(3, 3)):
                x[at[p] + ds.Vector([i + FIRST, j + FIRST])] += 1.0

    @ds.kernel
    def insert():
        for p in at:
            cell = at[p] // 2
            kept[cell[0], cell[1]].append(p)

    def activate():
        blocks.deactivate_all()
        store()

    def append():
        lists.deactivate_all()
        insert()

    start()
    store()
    some()
    tasks = {f.__name__: f for f in (loop, stencil, bits, store, activate, scatter, append)}
    return {name: best(tasks[name], ds.sync, rounds) for name in TASKS}


if __name__ == "__main__":
    run(__file__, TASKS, measure)
