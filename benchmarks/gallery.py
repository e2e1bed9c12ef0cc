"""Seconds of one iteration (a run and its gradient) of the simulators of the gallery, beside the originals.

    python benchmarks/gallery.py                            # diffsim alone
    python benchmarks/gallery.py --only billiards --peers ../peers/bin/python --originals FOLDER
    python benchmarks/gallery.py --peers ../peers/bin/python --originals FOLDER --write

The originals are the scripts in the folder `examples` of DiffTaichi [1], which the user has to fetch; they
run on Taichi 1.7 as `gallery_original.py` says. Sizes, numbers of steps and f32 are the same on both sides;
what differs in a row is written beside it. The times are processor time on one thread, which hardly depends
on what else the machine does. Each measurement is a process of its own; they take turns, and the fastest
iteration of each counts, without those that compile or record.

[1] https://github.com/taichi-dev/difftaichi
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from diffsim.runtime.files import write_text

HERE = Path(__file__).resolve().parent
TABLE = HERE / "gallery.md"
Program = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """A simulator.

    Args:
        name: of the example, and of the row.
        make: gives the program from the example's module; it returns the field of the loss.
        target: how many times faster than the original it is to be.
        note: what differs from the original.
        options: of `ds.init`.
        replay: whether the example replays its tape.
    """

    name: str
    make: Callable[[ModuleType], Program]
    target: float
    note: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    replay: bool = True


def walker_3d(module: ModuleType, block: float) -> Program:
    return module.Walker(512, 200_000_000, block).walk


def billiards(module: ModuleType) -> Program:
    return module.Game(module.load_table(module.TABLES / "rack.json"), 1023).play


def smoke(module: ModuleType) -> Program:
    fluid = module.Smoke(110, 99)
    fluid.start.from_numpy(np.random.default_rng(0).normal(0, 0.3, (110, 110, 2)))
    return fluid.program


def wave(module: ModuleType) -> Program:
    membrane = module.Membrane(256, 255)
    membrane.start.from_numpy(np.random.default_rng(0).normal(0, 0.1, (256, 256)))
    return membrane.program


def pool(module: ModuleType) -> Program:
    water = module.Pool(256, 255)
    water.ground.from_numpy(module.tiles(256))
    water.start.from_numpy(module.piles(256))
    return water.program


BOX = "eight cells a sample, in the box; the original: one cell, 1000 samples on and on"
SEES = "light, walls, and a picture to compare with; the original reads beside its fields"
AGAIN = "copies of what steps overwrite; the original runs each step again"
CHECKPOINTS = (
    "in 200 MB, sums over nodes edge by edge; the original keeps all states of particles (3 GB)"
)
ROWS = [
    Row("mpm_walker", lambda m: m.Walker(1023).walk, 3, AGAIN, (("rules", "lifted"),)),
    Row("mpm_walker_3d", lambda m: walker_3d(m, 0.1), 3, CHECKPOINTS, replay=False),
    Row("liquid_walker", lambda m: walker_3d(m, 0.08), 3, CHECKPOINTS, replay=False),
    Row("rigid_body", lambda m: m.Robot(2047).walk, 20, "two rounds of impulses in place of one"),
    Row("billiards", billiards, 20, "cushions, and all pairs in one launch"),
    Row("smoke", smoke, 3),
    Row("wave", wave, 3),
    Row("electric", lambda m: m.Charges(1, 511).program, 20, "a goal that kernels compute"),
    Row("volume_renderer", lambda m: m.Scanner(128, 512, 100).program, 3, BOX),
    Row("water_renderer", pool, 3, SEES),
]  # fmt: skip


def measure(row: Row, limit: float) -> None:
    """Time iterations for some seconds, and print a line of JSON."""
    import diffsim as ds

    sys.path.insert(0, str(HERE.parent / "examples"))
    module = importlib.import_module(row.name)
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, **dict(row.options))
    program, times, tape = row.make(module), [], None
    with ds.ad.no_grad():
        loss = program()
    tape = ds.Tape(loss)
    begin = time.perf_counter()
    while len(times) < 4 or (len(times) < 500 and time.perf_counter() - begin < limit):
        start = time.process_time()
        if times and row.replay:
            tape.replay()
            tape.backward()
        else:
            with tape:
                program()
        times.append(time.process_time() - start)
    print(json.dumps({"loss": loss[None], "seconds": times}))


def run(command: list[Any]) -> dict[str, Any]:
    """Run a process of its own and read its line; an empty result if it fails."""
    found = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if found.returncode:
        print(found.stderr[-2000:], file=sys.stderr)
        return {}
    return json.loads(found.stdout.splitlines()[-1])


def best(row: Row, args: argparse.Namespace) -> tuple[float, float | None]:
    """The fastest iteration of diffsim and of the original [s]."""
    ours, theirs = [], []
    for _ in range(args.rounds):
        found = run([sys.executable, __file__, "--measure", row.name, "--seconds", args.seconds])
        ours += found.get("seconds", [])[2:]
        if args.peers and args.originals:
            script = HERE / "gallery_original.py"
            with tempfile.TemporaryDirectory() as scratch:
                command = [args.peers, script, row.name, args.originals, scratch, args.seconds]
                theirs += run(command).get("seconds", [])[1:]
    return min(ours), min(theirs, default=None)


def line(row: Row, ours: float, theirs: float | None) -> str:
    """A line of the table."""
    if theirs is None:
        return f"| {row.name} | {ours:.3g} | | | {row.target:g} | {row.note} |"
    return f"| {row.name} | {ours:.3g} | {theirs:.3g} | {theirs / ours:.1f} | {row.target:g} | {row.note} |"


def main() -> None:
    """Measure the rows that are asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(row.name for row in ROWS), help="names of rows")
    parser.add_argument("--peers", type=Path, help="a Python with taichi 1.7.4")
    parser.add_argument("--originals", type=Path, help="the folder of the originals")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a process at least")
    parser.add_argument("--write", action="store_true", help=f"keep the rows in {TABLE.name}")
    parser.add_argument("--measure", metavar="ROW", help=argparse.SUPPRESS)
    args = parser.parse_args()
    rows = {row.name: row for row in ROWS}
    if args.measure:
        measure(rows[args.measure], args.seconds)
        return
    chosen = args.only.split(",")
    if unknown := [name for name in chosen if name not in rows]:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(rows)}")
    for name in chosen:
        text = line(rows[name], *best(rows[name], args))
        print(text, flush=True)
        if args.write:
            keep(name, text)


def keep(name: str, text: str) -> None:
    """Put a line into the table, in the place of its last one."""
    lines = TABLE.read_text().splitlines()
    places = [i for i, old in enumerate(lines) if old.startswith(f"| {name} |")] or [len(lines)]
    lines[places[0] : places[0] + 1] = [text]
    write_text(TABLE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
