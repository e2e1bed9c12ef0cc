"""The rows of the GPU benchmarks' table, how their times are taken and their values checked."""

import dataclasses
import json
import math
import time
from dataclasses import dataclass, field

from harness import relative_error

from diffsim.runtime.files import write_text

RUNS, RUN_S = 5, 0.15  # runs, and the least length of one [s]
SOFT = 1e-4  # softening of the n-body row, squared [m^2]
problems = []  # what failed or was wrong: with any, the process ends with status 1


@dataclass
class Row:
    """One line of the table.

    Attributes:
        name: what was done.
        bytes: that have to be read and written at least.
        flops: f32 operations, where they are what counts.
        adds: instructions that add to memory atomically, where they are.
        seconds: one time for each column; NaN where the values were wrong.
        note: what the number does not say.
    """

    name: str
    bytes: float = 0.0
    flops: float = 0.0
    adds: float = 0.0
    seconds: dict = field(default_factory=dict)
    note: str = ""


class Bench:
    """The rows, and how to time things.

    Attributes:
        dry: tiny sizes and short runs.
        run_s: the least length of a run [s].
        rows: by their names, in order.
        versions: of the columns' libraries.
    """

    def __init__(self, *, dry, run_s=RUN_S, kept=None):
        self.dry = dry
        self.run_s = 0.002 if dry else run_s
        self.rows = {}
        self.versions = {}
        self.kept = kept

    def size(self, full, dry):
        return dry if self.dry else full

    def row(self, name, **counts):
        return self.rows.setdefault(name, Row(name, **counts))

    def time(self, run, sync):
        """Seconds of one call."""
        run()
        sync()
        calls = 1
        while True:
            start = time.perf_counter()
            for _ in range(calls):
                run()
            sync()
            if (spent := time.perf_counter() - start) > self.run_s:
                break
            calls = max(calls + 1, min(calls * 8, math.ceil(1.2 * calls * self.run_s / spent)))
        best = math.inf
        for _ in range(RUNS):
            start = time.perf_counter()
            for _ in range(calls):
                run()
            sync()
            best = min(best, (time.perf_counter() - start) / calls)
        return best

    def right(self, row, column, found, exact, tolerance=1e-4):
        """Whether values are; else the table says that they are wrong, and no time counts."""
        error = relative_error(found, exact)
        if error <= tolerance:
            return True
        report(f"{column}: {row.name}: WRONG by {error:.2g} of the largest value")
        row.seconds[column] = math.nan
        return False

    def keep(self):
        """Write the rows to a file, if this process is to hand them to another one."""
        if self.kept is not None:
            rows = [dataclasses.asdict(row) for row in self.rows.values()]
            made = json.dumps(dict(rows=rows, versions=self.versions))
            write_text(self.kept, made)

    def take(self, kept):
        """Add the times that another process kept."""
        if not kept.exists():
            return
        found = json.loads(kept.read_text(encoding="utf-8"))
        self.versions |= found["versions"]
        for row in found["rows"]:
            seconds = row.pop("seconds")
            self.row(**row).seconds |= seconds


def attempt(run, name):
    """Run one case; if it fails, that is reported and costs no other case."""
    try:
        run()
    except Exception as problem:
        report(f"{name} failed: {type(problem).__name__}: {problem}")


def report(problem):
    problems.append(problem)
    print(problem, flush=True)
