"""Let programs meet bad luck, and see that they end well.

    python -m tests.soak                         all scenarios, five minutes together
    python -m tests.soak --seconds 3600
    python -m tests.soak --only kills            a module, or one scenario: kills.while_compiling
    python -m tests.soak --seed 1234             the same chances again

Ends with status 1 if any scenario found a fault, or did not end.
"""

import argparse
import importlib
import os
import pkgutil
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import tests.soak

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""How much longer than it was given a scenario may take, before it counts as one that does not end [s]."""


def scenarios():
    """All scenarios by name: their module's, a dot, their own."""
    found = {}
    for module in pkgutil.iter_modules(tests.soak.__path__):
        if not module.name.startswith("_"):
            own = importlib.import_module(f"tests.soak.{module.name}").SCENARIOS
            found |= {f"{module.name}.{name}": run for name, run in own.items()}
    return found


def run_here(name, seconds, seed):
    """Run one scenario in this process; the status to end with."""
    try:
        scenarios()[name](seconds, random.Random(f"{seed} {name}"))
    except Exception:  # a scenario that breaks is no better than one that finds a fault
        traceback.print_exc()
        return 1
    return 0


def run(name, seconds, seed):
    """Run one scenario in a process of its own: what was wrong, or None."""
    with tempfile.TemporaryDirectory(prefix="diffsim-soak-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.soak", "--inside"]
        command += ["--only", name, "--seconds", str(seconds), "--seed", str(seed)]
        cache = str(Path(folder, "cache"))
        own = {"TMPDIR": folder, "DIFFSIM_CACHE_DIR": cache, "MPLBACKEND": "Agg"}
        output = Path(folder, "output")
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            try:
                status = process.wait(seconds + PATIENCE)
            except subprocess.TimeoutExpired:
                status = "did not end"
                process.send_signal(signal.SIGABRT)  # faulthandler shows where it is
                with_grace(process, 5)
            finally:
                _kill_group(process.pid)
                process.wait()
        if status == 0:
            return None
        return f"status {status}\n{output.read_text(errors='replace')}"


def with_grace(process, seconds):
    """Wait a while for a process to end."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _kill_group(leader):
    """End all that a scenario has started and left."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="for all scenarios together")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", metavar="NAME", help="a module, or module.scenario")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = time.time_ns() // 10**6 % 10**9 if options.seed is None else options.seed
    if options.inside:
        return run_here(options.only, options.seconds, seed)
    known = list(scenarios())
    chosen = [n for n in known if options.only in (None, n, n.partition(".")[0])]
    if not chosen:
        parser.error(f"there is no {options.only}; the scenarios are: {', '.join(known)}")
    print(f"seed {seed} (to repeat it: --seed {seed})", flush=True)
    failures = 0
    for name in chosen:
        start = time.monotonic()
        wrong = run(name, options.seconds / len(chosen), seed)
        failures += wrong is not None
        verdict = "ok" if wrong is None else f"FAULT: {wrong}"
        print(f"{name:32} {time.monotonic() - start:6.1f} s  {verdict}", flush=True)
    print(f"{len(chosen)} scenarios, {failures} with faults")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
