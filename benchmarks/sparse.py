"""Times of loops over sparse fields and of activation, with those of Taichi beside them.

    python benchmarks/sparse.py [--peer PYTHON] [--threads 1] [--write]

`--peer` is a Python with Taichi. Each number is the best of several rounds, in which the two take turns, each
in a process of its own: the machine is seldom quiet. `--write` puts the table into sparse.md.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
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


def best(task, sync, rounds):
    """The least milliseconds of several runs of a task."""
    task()
    sync()
    least = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        task()
        sync()
        least = min(least, time.perf_counter() - begin)
    return 1e3 * least


def measured(python, name, threads):
    """The times of one of the two, from a process of its own."""
    command = [python, __file__, "--measure", name, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(found):
    """The table in Markdown."""
    rows = ["| [ms] | diffsim | Taichi | ratio |", "|---|---|---|---|"]
    for name, words in TASKS.items():
        own, peer = found["diffsim"][name], found.get("taichi", {}).get(name)
        more = f"{peer:.3g} | {peer / own:.1f}" if peer else " | "
        rows.append(f"| {words} | {own:.3g} | {more} |")
    return "\n".join(rows) + "\n"


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--peer", help="a Python with Taichi")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", choices=["diffsim", "taichi"], help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(__import__(args.measure), args.threads)))
        return
    found = {}
    for _ in range(args.rounds):
        for name, python in (("diffsim", sys.executable), ("taichi", args.peer)):
            if python:
                now = measured(python, name, args.threads)
                before = found.setdefault(name, now)
                found[name] = {task: min(before[task], now[task]) for task in TASKS}
    text = table(found)
    print(text)
    if args.write:
        page = HERE / "sparse.md"
        head, _, _ = page.read_text(encoding="utf-8").partition("| [ms]")
        from diffsim.runtime.files import write_text  # Taichi's Python has no diffsim

        write_text(page, head + text)


if __name__ == "__main__":
    main()
