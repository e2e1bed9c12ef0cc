"""Run the benchmarks and print tables: each workload on each framework, in a process of its own.

python benchmarks/run.py --quick                    # small sizes: does everything work?
python benchmarks/run.py --peers venv/bin/python    # with the frameworks that one can import
python benchmarks/run.py --only heat,loop --write   # some of them; keep the results
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from diffsim.runtime.files import write_text

HERE = Path(__file__).resolve().parent
WORKLOADS = "launch stream heat reduce nbody mpm mpm3d spring loop".split()
FRAMEWORKS = "diffsim C taichi warp numba".split()
PEERS = FRAMEWORKS[2:]
BUSY = 0.5  # a load from which on the figures are not worth keeping
ROUNDS = 3  # of diffsim and C; the peers, which are slow, take part in the first only

# What diffsim aims at. Kinds: "us" and "s": at most so long; "C": C's time over diffsim's, at least;
# a peer's name: its time over diffsim's, at least, or (last entry) over a time it took elsewhere [ms].
TARGETS = [
    ("`import diffsim`", "launch", "import", "s", 0.2),
    ("first result, empty cache", "launch", "process to first result, cold", "s", 0.4),
    ("first result, filled cache", "launch", "process to first result, warm", "s", 0.3),
    ("empty launch", "launch", "empty kernel", "us", 2),
    ("parallel fill of 1024", "launch", "parallel fill of 1024", "us", 4),
    ("one kernel recorded and differentiated", "launch", "one kernel on a Tape", "us", 15),
    ("read `field[i]` from Python", "launch", "read field[i] from Python", "us", 1),
    ("write `field[i]` from Python", "launch", "write field[i] from Python", "us", 1),
    ("saxpy", "stream", "saxpy forward", "C", 0.85),
    ("triad", "stream", "triad forward", "C", 0.85),
    ("gradient of triad", "stream", "triad backward", "C", 1 / 1.3),
    ("heat, 100 steps", "heat", "100 steps", "C", 0.85),
    ("gradient of heat", "heat", "32 steps backward", "taichi", 5, 193),
    ("sum", "reduce", "sum forward", "C", 0.85),
    ("gradient of the sum", "reduce", "sum backward", "C", 1 / 1.3),
    ("maximum", "reduce", "maximum", "C", 0.85),
    ("n-body, with fast_math", "nbody", "forward", "C", 0.7),
    ("gradient of n-body, with fast_math", "nbody", "backward", "C", 0.77),
    ("MPM", "mpm", "forward", "C", 0.85),
    ("gradient of MPM", "mpm", "backward", "C", 0.77),
    ("3-D particles to grid, adjoint compiled", "mpm3d", "first call: to grid, adjoint", "s", 3),
    (
        "3-D grid to particles, adjoint compiled",
        "mpm3d",
        "first call: to particles, adjoint",
        "s",
        3,
    ),
    ("spring forward, per launch", "spring", "forward, per launch", "us", 5),
    ("spring backward, per launch", "spring", "backward, per launch", "us", 5),
    ("spring replayed, with gradient", "spring", "replayed, with gradient", "ms", 10),
    ("serial loop", "loop", "forward", "C", 0.85),
    ("gradient of the serial loop", "loop", "backward", "C", 1 / 1.5),
]

READING = """\
How to read the tables:

- Every cell is a median, with the smallest and the largest value in brackets, and where it makes
  sense the rate that the median stands for. Times of first calls hold the compiling.
- **C / diffsim** and **best peer / diffsim** are quotients of times: above 1, diffsim is faster. The
  quotient to C is the median over rounds, in each of which both were measured one after the other.
- C is compiled with `-O3 -march=native -ffast-math -fopenmp`; its gradients are written by hand. It
  shows what the machine can do. Peers whose values are wrong are left out of the best.
- diffsim runs with its defaults (no fast arithmetic) unless the name of a figure says otherwise.
- Warp runs kernels on one processor, the others on all. Its first calls compile both directions.
- A tilde: unsteady, the median is more than 1.5 times the fastest; something else was running.
- A dash: that framework does not have this, or was not there. WRONG: its value or gradient is further
  from an independent reference than tolerated. Errors are listed below each table.
"""


class Results:
    """What one framework gave in one workload, over all rounds.

    Attributes:
        figures: per figure the lines of all rounds.
        checks: per figure the largest relative error.
        wrong: figures whose error is larger than tolerated.
        note: why there is nothing, or None.
    """

    def __init__(self):
        self.figures, self.checks, self.wrong = {}, {}, set()
        self.note = self.version = None

    def take(self, output):
        for text in output.splitlines():
            if not text.startswith("{"):
                continue
            line = json.loads(text)
            if "figure" in line:
                self.figures.setdefault(line["figure"], []).append(line)
            elif "check" in line:
                name, error = line["check"], line["error"]
                self.checks[name] = max(self.checks.get(name, 0), error)
                if not error <= line["tolerance"]:
                    self.wrong.add(name)
            else:
                self.version = line.get("version", self.version)
                self.note = line.get("skip", self.note)

    def median(self, figure):
        """The median over rounds, or None."""
        lines = self.figures.get(figure)
        return statistics.median(line["value"] for line in lines) if lines else None

    def unsteady(self, figure):
        lines = self.figures.get(figure, [])
        return bool(lines) and self.median(figure) > 1.5 * min(line["low"] for line in lines)

    def cell(self, figure):
        lines = self.figures.get(figure)
        if not lines:
            return "–"
        low, high = min(a["low"] for a in lines), max(a["high"] for a in lines)
        value = self.median(figure)
        text = f"{short(value)} ({short(low)}–{short(high)})" if low < high else short(value)
        if lines[0]["work"]:
            amount, unit = lines[0]["work"]
            text += f", {short(amount / value * 1e3)} {unit}/s"
        text = "~ " * self.unsteady(figure) + text
        return text + " WRONG" * (figure in self.wrong)


def short(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def over_c(results, figure, like):
    """C's time over diffsim's: the median over rounds, or None."""
    ours, theirs = results["diffsim"].figures.get(figure), results["C"].figures.get(like)
    if not ours or not theirs or like in results["C"].wrong:
        return None
    return statistics.median(c["value"] / d["value"] for c, d in zip(theirs, ours, strict=False))


def over_peers(results, figure, like):
    """The best peer's time over diffsim's, and its name."""
    ours = results["diffsim"].median(figure)
    times = [
        (results[peer].median(like), peer)
        for peer in PEERS
        if like in results[peer].figures and like not in results[peer].wrong
    ]
    if not times or ours is None:
        return None
    best, name = min(times)
    return best / ours, name


def execute(workload, framework, args, scratch):
    """Run one workload on one framework and return its Results' input and note."""
    python = args.peers if framework in PEERS else sys.executable
    if not python:
        return "", "no interpreter was given with --peers"
    version = "c" if framework == "C" else framework if framework in ("warp", "numba") else "api"
    command = [python, str(HERE / f"{workload}.py"), "--framework", version]
    command += ["--module", "taichi" if framework == "taichi" else "diffsim"]
    command += ["--scratch", str(scratch)] + ["--quick"] * args.quick
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    except subprocess.TimeoutExpired:
        return "", "took more than 400 s"
    if done.returncode == 0:
        return done.stdout, None
    lines = done.stderr.strip().splitlines() or ["no message"]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return done.stdout, f"failed (exit {done.returncode}): {(errors or lines)[-1][:200]}"


def measure(workload, args, scratch):
    """All frameworks, taking turns."""
    results = {framework: Results() for framework in FRAMEWORKS}
    for turn in range(1 if args.quick else args.rounds):
        for framework in FRAMEWORKS:
            found = results[framework]
            if found.note or (turn and (framework in PEERS or not found.figures)):
                continue
            begin = time.perf_counter()
            output, note = execute(workload, framework, args, scratch)
            found.take(output)
            found.note = note or found.note
            took = f"{time.perf_counter() - begin:.1f} s"
            print(
                f"  {workload}: {framework}, round {turn + 1}, {took}", file=sys.stderr, flush=True
            )
    return results


def table(workload, results, title):
    """One workload as Markdown."""
    shown = [f for f in FRAMEWORKS if results[f].figures]
    names = dict.fromkeys(name for f in shown for name in results[f].figures)
    head = ["", *shown, "C / diffsim", "best peer / diffsim"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in names:
        lines = next(results[f].figures[name] for f in shown if name in results[f].figures)
        like = lines[0]["like"] or name
        to_c, to_peer = over_c(results, name, like), over_peers(results, name, like)
        cells = [f"{name} [{lines[0]['unit']}]"]
        cells += [results[f].cell(name if f == "diffsim" else like) for f in shown]
        cells.append(f"{to_c:.2f}" if to_c else "–")
        cells.append(f"{short(to_peer[0])} ({to_peer[1]})" if to_peer else "–")
        rows.append("| " + " | ".join(cells) + " |")
    text = [f"## {workload}", "", title, "", *rows, "", "Relative errors:", ""]
    for f in shown:
        errors = "; ".join(f"{name} {error:.1e}" for name, error in results[f].checks.items())
        text.append(f"- {f}: {errors or 'nothing to check'}")
    text += [f"- {f}: {results[f].note}" for f in FRAMEWORKS if results[f].note]
    return "\n".join(text) + "\n"


def title(workload, quick):
    """A workload's docstring."""
    text = (HERE / f"{workload}.py").read_text(encoding="utf-8").split('"""')[1].strip()
    return "(A quick run: the sizes are smaller than said here.)\n\n" * quick + text


def target(row, everything):
    """One row of the table of targets: what was asked for, what came out, and whether it is met."""
    name, workload, figure, kind, limit, *elsewhere = row
    results = everything[workload]
    ours, unsteady = results["diffsim"].median(figure), results["diffsim"].unsteady(figure)
    value = None
    if kind in ("us", "ms", "s"):
        asked, value, better = f"at most {limit} {kind}", ours, -1
        said = f"{short(value)} {kind}" if value else ""
    elif kind == "C":
        asked, value, better = (
            f"{100 * limit:.0f} % of C's speed",
            over_c(results, figure, figure),
            1,
        )
        said = f"{100 * value:.0f} %" if value else ""
        unsteady = unsteady or results["C"].unsteady(figure)
    else:
        asked, better = f"{limit} times as fast as {kind}", 1
        theirs, source = results[kind].median(figure), ""
        if theirs is None and elsewhere:
            theirs, source = elsewhere[0], f" (against {elsewhere[0]} ms, measured elsewhere)"
        value = theirs / ours if theirs and ours else None
        said = f"{short(value)} times{source}" if value else ""
    if value is None:
        return f"| {name} | {asked} | not measured | – |"
    if figure in results["diffsim"].wrong:
        return f"| {name} | {asked} | {said} | WRONG |"
    met = "met" if value * better >= limit * better else "**missed**"
    return f"| {name} | {asked} | {said} | {met}{' ~' * unsteady} |"


def targets(everything, quick, load):
    rows = [target(row, everything) for row in TARGETS if row[1] in everything]
    head = ["## Targets", ""]
    if quick:
        head += ["Small sizes: these figures say little about the targets.", ""]
    if load > BUSY:
        head += [f"**The machine was busy (load {load:.1f} at the start): measure again.**", ""]
    return "\n".join([*head, "| | target | measured | |", "|---|---|---|---|", *rows]) + "\n"


def processor():
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return next(
            a.split(":")[1].strip() for a in text.splitlines() if a.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def setting(everything, args, load):
    """When and where: a dict for the JSON file and the heading of the page."""
    versions = {
        "Python": platform.python_version(),
        "OS": f"{platform.system()} {platform.machine()}",
    }
    packages = "import numpy, llvmlite; print(numpy.__version__, llvmlite.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", packages], capture_output=True, text=True, check=True
    )
    versions["NumPy"], versions["llvmlite"] = done.stdout.split()
    for results in everything.values():
        for framework, found in results.items():
            if found.version:
                versions[framework] = found.version
    return dict(
        date=datetime.date.today().isoformat(),
        processor=processor(),
        processors=os.cpu_count(),
        load=round(load, 1),
        quick=args.quick,
        rounds=1 if args.quick else args.rounds,
        versions=versions,
    )


def heading(where):
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    lines = [
        "# Measurements",
        "",
        f"{where['date']}, {where['processor']}, {where['processors']} processors, load at the start "
        f"{where['load']}. {versions}.",
        "Written by `benchmarks/run.py --write`"
        + (" with --quick" if where["quick"] else "")
        + ".",
        "",
        READING,
    ]
    return "\n".join(lines)


def write(where, pages, everything):
    write_text(HERE / "results.md", heading(where) + "\n" + "\n".join(pages))
    data = {
        workload: {f: vars(found) | dict(wrong=sorted(found.wrong)) for f, found in results.items()}
        for workload, results in everything.items()
    }
    text = json.dumps(dict(where, workloads=data), indent=1)
    write_text(HERE / "results.json", text + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats")
    parser.add_argument("--only", default="", help="workloads, separated by commas")
    parser.add_argument("--peers", help="a Python that has taichi, warp-lang or numba")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of diffsim and C")
    parser.add_argument("--write", action="store_true", help="keep results.md and results.json")
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else WORKLOADS
    if unknown := set(chosen) - set(WORKLOADS):
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    everything, pages, begin = {}, [], time.perf_counter()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for workload in chosen:
            everything[workload] = measure(workload, args, scratch)
            pages.append(table(workload, everything[workload], title(workload, args.quick)))
            print(pages[-1], flush=True)
    pages.append(targets(everything, args.quick, load))
    print(pages[-1])
    print(f"Took {time.perf_counter() - begin:.0f} s.", file=sys.stderr)
    if args.write:
        write(setting(everything, args, load), pages, everything)
    bad = [w for w, r in everything.items() if r["diffsim"].wrong or r["diffsim"].note]
    sys.exit(f"diffsim failed or is wrong in: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
