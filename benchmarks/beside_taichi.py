"""What the benchmarks beside Taichi share: best times, one process for each of the two, and the table.

Each number is the best of several rounds, in which the two take turns, each in a process of its own: the
machine is seldom quiet.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path


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


def measured(python, script, name, threads):
    """The times of one of the two, from a process of its own."""
    command = [python, script, "--measure", name, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(tasks, found):
    """The table in Markdown."""
    rows = ["| [ms] | diffsim | Taichi | ratio |", "|---|---|---|---|"]
    for name, words in tasks.items():
        own, peer = found["diffsim"][name], found.get("taichi", {}).get(name)
        more = f"{peer:.3g} | {peer / own:.1f}" if peer else " | "
        rows.append(f"| {words} | {own:.3g} | {more} |")
    return "\n".join(rows) + "\n"


def run(script, tasks, measure):
    """Run the command line of a benchmark.

    Args:
        script: its file; the table is in the page of the same name.
        tasks: words for each task.
        measure: returns the milliseconds of each task, given diffsim or taichi and the number of threads.
    """
    parser = argparse.ArgumentParser()
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
                now = measured(python, script, name, args.threads)
                before = found.setdefault(name, now)
                found[name] = {task: min(before[task], now[task]) for task in tasks}
    text = table(tasks, found)
    print(text)
    if args.write:
        page = Path(script).with_suffix(".md")
        head, _, _ = page.read_text(encoding="utf-8").partition("| [ms]")
        from diffsim.runtime.files import write_text  # Taichi's Python has no diffsim

        write_text(page, head + text)
