"""Times of loops over fields of several layouts, with those of Taichi beside them.

    python benchmarks/layouts.py [--peer PYTHON] [--threads 1] [--write]

`--peer` is a Python with Taichi. `--write` puts the table into layouts.md.
"""

from beside_taichi import best, run

SIDE = 1024
LAYOUTS = {
    "rows": "root.dense(ij, 1024)",
    "columns": "root.dense(j, 1024).dense(i, 1024)",
    "blocks": "root.dense(ij, 64).dense(ij, 16)",
    "aos": "two fields placed in one dense node (AoS)",
    "soa": "a field of vectors of 3, layout SOA",
    "vectors": "a field of vectors of 3, layout AOS",
}
LOOPS = {
    "update": "y[I] = 0.5 y[I] + x[I]",
    "stencil": "five points",
    "sum": "the sum of x y",
}
TASKS = {f"{a}.{b}": f"{LAYOUTS[a]}: {LOOPS[b]}" for a in LAYOUTS for b in LOOPS}


def fields(ds, layout):
    """Two fields of a layout."""
    n = (SIDE, SIDE)
    if layout in ("soa", "vectors"):
        chosen = ds.Layout.SOA if layout == "soa" else ds.Layout.AOS
        return [ds.Vector.field(3, ds.f32, shape=n, layout=chosen) for _ in range(2)]
    x, y = ds.field(ds.f32), ds.field(ds.f32)
    if layout == "rows":
        for f in (x, y):
            ds.root.dense(ds.ij, SIDE).place(f)
    elif layout == "columns":
        for f in (x, y):
            ds.root.dense(ds.j, SIDE).dense(ds.i, SIDE).place(f)
    elif layout == "blocks":
        for f in (x, y):
            ds.root.dense(ds.ij, SIDE // 16).dense(ds.ij, 16).place(f)
    else:
        ds.root.dense(ds.ij, SIDE).place(x, y)
    return [x, y]


def measure(ds, threads, rounds=20):
    """Milliseconds of each task; ds is diffsim or taichi."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    total = ds.field(ds.f32, shape=())
    times = {}
    for layout in LAYOUTS:
        tasks = loops(ds, *fields(ds, layout), total)
        times |= {f"{layout}.{k}": best(task, ds.sync, rounds) for k, task in tasks.items()}
    return times


def loops(ds, x, y, total):
    """The loops over two fields, by name."""
    vectors = hasattr(x, "n") and x.n == 3

    @ds.kernel
    def start():
        for i, j in x:
            x[i, j] += 1e-3 * i
            y[i, j] += 1e-3 * j

    @ds.kernel
    def update():
        for i, j in x:
            y[i, j] = 0.5 * y[i, j] + x[i, j]

    @ds.kernel
    def stencil():
        for i, j in ds.ndrange((1, SIDE - 1), (1, SIDE - 1)):
            y[i, j] = x[i + 1, j] + x[i - 1, j] + x[i, j + 1] + x[i, j - 1] - 4 * x[i, j]

    @ds.kernel
    def add():
        for i, j in x:
            if ds.static(vectors):
                total[None] += x[i, j].dot(y[i, j])
            else:
                total[None] += x[i, j] * y[i, j]

    start()
    return {"update": update, "stencil": stencil, "sum": add}


if __name__ == "__main__":
    run(__file__, TASKS, measure)
