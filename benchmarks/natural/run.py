"""Measure programs as people write them: diffsim, Taichi and C side by side, in turns.

    python benchmarks/natural/run.py --only wave,ode                 # some programs, no file is written
    python benchmarks/natural/run.py --only wave --write             # their rows anew, the others as they are
    python benchmarks/natural/run.py --peer venv/bin/python --write  # all; keeps results.json and results.md
    DIFFSIM_VECTOR_BITS=256 python benchmarks/natural/run.py --sizes 1 --write   # AVX2: results-avx2.md

Each program runs in a process of its own on each of the three; the processes take turns, so that none has the
quiet minutes for itself. Before anything is timed, loss and gradients are compared, and diffsim's gradient
is held against central differences in f64.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from report import write_page
from suite import HERE, RESULTS, compile_c, load, programs, reference

TOLERANCE = 2e-3  # of f32
Row = dict[str, Any]


class Worker:
    """A process that runs one program; it answers one command at a time."""

    def __init__(self, python: str, arguments: list[str], threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true"}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put(None)

    def answer(self, seconds: float) -> Row | None:
        """The next line, or None if the process has ended or takes too long."""
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return None
        return json.loads(line) if line else None

    def ask(self, command: str, seconds: float) -> Row | None:
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{command} {seconds}\n")
            self.process.stdin.flush()
        except OSError:
            return None
        return self.answer(60)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def started(args: argparse.Namespace, name: str, n: int, threads: int) -> Iterator[dict]:
    """The workers of a program that are ready, with what they said, and their values."""
    module, scratch = load(name), Path(tempfile.mkdtemp(dir=args.scratch))
    common = [name, "--n", str(n), "--threads", str(threads)]
    found: dict[str, tuple[Worker, Row, dict[str, np.ndarray]]] = {}

    def start(framework: str, python: str, *more: str) -> bool:
        keep = scratch / f"{framework}.npz"
        own = ["--module", framework, "--keep", str(keep), *more]
        worker = Worker(python, common + own, threads)
        told = worker.answer(150)
        if told is None or not told.get("ready"):
            worker.end()
            worker.errors.seek(0)
            print(name, framework, *worker.errors.read().splitlines()[-1:], file=sys.stderr)
            return False
        with np.load(keep) as kept:
            found[framework] = worker, told, dict(kept)
        keep.unlink()
        return True

    try:
        start("diffsim", sys.executable)
        source = reference(name, module)
        if source is not None and "diffsim" in found:
            library = compile_c(source, threads, "f4", scratch)
            wanted = ",".join(set(found["diffsim"][2]) - {"loss"})
            start("c", sys.executable, "--library", str(library), "--wanted", wanted)
        if args.peer and not start("taichi", args.peer):
            start("taichi", args.peer, "--forward-alone")
        yield found
    finally:
        for worker, _, _ in found.values():
            worker.end()


def relative_error(value: np.ndarray, exact: np.ndarray) -> float:
    """In the root of the sum of squares: a few elements lie at kinks, where f32 decides on the side."""
    size = float(np.linalg.norm(exact.astype("f8")))
    return float(np.linalg.norm(value.astype("f8") - exact)) / max(size, 1e-30)


def compare(values: dict[str, dict[str, np.ndarray]]) -> dict[str, list[str]]:
    """What of each framework differs from diffsim's by more than the tolerance."""
    ours, wrong = values["diffsim"], {}
    for framework, theirs in values.items():
        wrong[framework] = [
            f"{name} {relative_error(theirs[name], ours[name]):.1e}"
            for name in theirs
            if name in ours and not relative_error(theirs[name], ours[name]) < TOLERANCE
        ]
    return wrong


def take_turns(workers: dict[str, Any], rounds: int, seconds: float) -> dict[str, Row]:
    """Least times of every worker [s]: (clock, processors) by direction."""
    best: dict[str, Row] = {framework: {} for framework in workers}
    slow = set()
    for _ in range(rounds):
        for framework, (worker, told, _) in workers.items():
            commands = ["forward"] if "no_gradient" in told else ["forward", "gradient"]
            for command in commands if framework not in slow else []:
                answer = worker.ask(command, seconds)
                for key, pair in (answer or {}).items():
                    before = best[framework].get(key, pair)
                    best[framework][key] = [min(a, b) for a, b in zip(before, pair, strict=True)]
                    if pair[0] > 2:
                        slow.add(framework)
    return best


def measure(args: argparse.Namespace, name: str, n: int, threads: int) -> Row | None:
    """One row: a program of one size."""
    with started(args, name, n, threads) as workers:
        if "diffsim" not in workers:
            return None
        wrong = compare({framework: values for framework, (_, _, values) in workers.items()})
        best = take_turns(workers, args.rounds, args.seconds)
        return dict(
            program=name,
            n=n,
            threads=threads,
            work=load(name).work(n),
            **{
                framework: told | best[framework] | dict(wrong=wrong[framework])
                for framework, (_, told, _) in workers.items()
            },
        )


def check_differences(names: list[str]) -> dict[str, str]:
    """Of each program's gradient at a tiny size, in f64."""
    command = [sys.executable, str(HERE / "check.py"), *names]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in made.stdout.splitlines())


def machine(scratch: Path) -> Row:
    """Bytes and operations a second of one processor, and its name."""
    import ctypes
    import platform

    code = ctypes.CDLL(str(compile_c(HERE / "machine.c", 1, "f4", scratch)))
    code.bandwidth.restype = code.operations.restype = ctypes.c_double
    long = ctypes.c_long
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    vectors = "AVX-512" if "avx512f" in info else "AVX2" if "avx2" in info else "no AVX2"
    names = [line.split(":")[1] for line in info.splitlines() if line.startswith("model name")]
    return dict(
        name=f"{names[0].strip()}, {len(names)} processors, {vectors}",
        python=platform.python_version(),
        cache=code.bandwidth(long(1 << 15), long(2000)),
        memory=code.bandwidth(long(1 << 25), long(8)),
        operations=code.operations(long(200)),
    )


def kept_machine() -> Row:
    """The machine of the rows that stay."""
    found: Row = json.loads((HERE / f"{RESULTS}.json").read_text(encoding="utf-8"))["machine"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="programs, separated by commas")
    parser.add_argument("--sizes", default="0,1,2", help="which of the three")
    parser.add_argument("--threads", default="1,2", help="two threads: the second size alone")
    parser.add_argument("--peer", help="a Python that has Taichi")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.08, help="of each turn")
    parser.add_argument(
        "--write", action="store_true", help="keep the rows in results.json and .md"
    )
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(programs())
    with tempfile.TemporaryDirectory(prefix="natural-") as scratch:
        args.scratch = scratch
        # Some rows are no reason to judge all others by what the machine can do right now.
        where = kept_machine() if args.only and args.write else machine(Path(scratch))
        differences = check_differences(names)
        for name in names:
            rows = []
            for threads in map(int, args.threads.split(",")):
                for size in map(int, args.sizes.split(",")):
                    if threads > 1 and size != 1:
                        continue
                    row = measure(args, name, load(name).SIZES[size], threads)
                    if row is None:
                        print(f"{name}: diffsim failed", file=sys.stderr)
                        continue
                    rows.append(row | dict(size=size, difference=differences.get(name)))
                    show(rows[-1])
            if args.write:
                write_page(HERE, where, rows)


def show(row: Row) -> None:
    """Times [ms] of a row on the terminal: of the processor, of several threads by the clock."""
    which = 1 if row["threads"] == 1 else 0
    cells = [f"{row['program']} n={row['n']} threads={row['threads']}"]
    for framework in ("diffsim", "c", "taichi"):
        told = row.get(framework, {})
        times = [told[key][which] * 1e3 for key in ("forward", "backward") if key in told]
        cells.append(f"{framework} " + " / ".join(f"{t:.3g}" for t in times))
        cells += told.get("wrong", [])
    print(" | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
