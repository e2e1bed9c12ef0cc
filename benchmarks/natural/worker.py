"""One program on one framework in a process of its own, which runs and times what `run.py` asks for.

    python benchmarks/natural/worker.py wave --module taichi --n 64

Without commands on standard input it says what the first calls took. Commands are lines: `forward SECONDS`
and `gradient SECONDS` run for so long, at least once, and print the least times, of the clock and of
processors.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from suite import Built, arrays, build, build_c, load

ROOT = Path(__file__).resolve().parents[2]


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def start_module(args: argparse.Namespace, lifted: bool) -> Built:
    """The program on diffsim or Taichi."""
    module = load(args.program)
    options: dict[str, object] = dict(cpu_max_num_threads=args.threads, offline_cache=False)
    if args.module == "diffsim":
        import diffsim as ti

        options["rules"] = "lifted" if lifted else "enforced"
    else:
        import taichi as ti

        options |= getattr(module, "TAICHI", {})
        options["log_level"] = ti.ERROR
    options["default_fp"] = ti.f32 if args.precision == "f4" else ti.f64
    ti.init(arch=ti.cpu, **options)
    return build(ti, module, args.n, arrays(module, args.n, args.precision))


def first_calls(built: Built, forward_alone: bool) -> dict[str, object]:
    """Seconds of the first calls, compiling included, or why there is no gradient."""
    begin = time.perf_counter()
    built.forward()
    told: dict[str, object] = dict(first_forward=time.perf_counter() - begin)
    if forward_alone:
        return told | dict(no_gradient="the process ended")
    begin = time.perf_counter()
    try:
        built.gradient(lambda: None)
    except Exception as error:
        return told | dict(no_gradient=str(error).strip().splitlines()[-1][:200])
    return told | dict(first_gradient=time.perf_counter() - begin)


def start(args: argparse.Namespace) -> tuple[Built, dict[str, object]]:
    """The program, after its first calls; diffsim's rules are lifted where they refuse its gradient."""
    if args.module == "c":
        given = arrays(load(args.program), args.n, args.precision)
        built = build_c(args.library, args.n, given, args.wanted.split(","))
        return built, first_calls(built, False)
    built = start_module(args, args.lifted)
    told = first_calls(built, args.forward_alone)
    if args.module == "diffsim":
        if "no_gradient" in told and not args.lifted:
            os.execv(sys.executable, [sys.executable, *sys.argv, "--lifted"])
        told["rules"] = "lifted" if args.lifted else "enforced"
    return built, told


def measure(run: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Least times of a call: by the clock and of processors."""
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        wall, processor = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - wall, time.process_time() - processor))
    return least(times)


def least(times: list[tuple[float, float]]) -> tuple[float, float]:
    """The least times but for the least hundredth.

    Where other processes run, the clock of processors says half of what a call took, once in some ten
    thousand calls.
    """
    walls, processors = (sorted(t[k] for t in times) for k in (0, 1))
    return walls[len(times) // 100], processors[len(times) // 100]


def measure_gradient(built: Built, seconds: float) -> dict[str, tuple[float, float]]:
    """Least times of the adjoint alone and of both passes."""
    marks: list[tuple[float, float]] = []

    def mark() -> None:
        marks.append((time.perf_counter(), time.process_time()))

    backward, whole, end = [], [], time.perf_counter() + seconds
    while not whole or time.perf_counter() < end:
        marks.clear()
        mark()
        built.gradient(mark)
        mark()
        (a, p), (b, q), (c, r) = marks
        backward.append((c - b, r - q))
        whole.append((c - a, r - p))
    return dict(backward=least(backward), whole=least(whole))


def told_loss(built: Built) -> float:
    """The loss of one forward run: it adds to what was there."""
    before = built.loss()
    built.forward()
    return built.loss() - before


def serve(built: Built) -> None:
    for line in sys.stdin:
        command, seconds = line.split()
        if command == "forward":
            wall, processor = measure(built.forward, float(seconds))
            say(forward=(wall, processor))
        else:
            say(**measure_gradient(built, float(seconds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--module", default="diffsim", help="diffsim, taichi or c")
    parser.add_argument("--n", type=int, help="size; the program's smallest if left out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="f4", choices=["f4", "f8"])
    parser.add_argument("--library", type=Path, help="of the C reference")
    parser.add_argument("--wanted", default="", help="gradients of the C reference to keep")
    parser.add_argument("--lifted", action="store_true", help="diffsim's rules are lifted")
    parser.add_argument("--forward-alone", action="store_true", help="no gradient")
    parser.add_argument("--keep", type=Path, help="file for loss and gradients (npz)")
    args = parser.parse_args()
    args.n = args.n or load(args.program).SIZES[0]
    sys.path.insert(0, str(ROOT))
    built, told = start(args)
    results: dict[str, object] = dict(loss=told_loss(built))
    if "no_gradient" not in told:
        built.gradient(lambda: None)
        results = dict(loss=built.loss(), **built.gradients())
    if args.keep:
        np.savez(args.keep, **results)
    say(ready=True, **told)
    serve(built)


if __name__ == "__main__":
    main()
