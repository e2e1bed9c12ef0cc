"""Runs the examples that Taichi's package brings along, unmodified, with diffsim in Taichi's place.

    python tools/taichi_examples.py FOLDER [--only EXPRESSION] [--write]

FOLDER is `taichi/examples` of an installed Taichi 1.7.4. Each program runs in a process and an empty folder
of its own, without a display. One that draws is well when it has shown `FRAMES` pictures without an error,
any other when it ends. `--write` writes the table of docs/taichi-examples.md, and leaves the rows of programs
that did not run this time.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from diffsim.runtime.files import write_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "taichi-examples.md"
FRAMES = 3
SECONDS = 100
MARK = "<!-- the table is written by tools/taichi_examples.py -->\n"

PRELUDE = """
import os, runpy, sys, types
import diffsim as ds
sys.modules.update({"taichi": ds, "taichi.math": ds.math, "taichi._lib": ds._lib})
examples = types.ModuleType("taichi.examples")
folder, program, frames = sys.argv[1:]
examples.__path__ = [folder]
sys.modules["taichi.examples"] = examples
shown = 0
def counted(show):
    def count(window, *args, **options):
        global shown
        show(window, *args, **options)
        shown += 1
        if shown == int(frames):
            print("DRAWS", flush=True)
            os._exit(0)
    return count
ds.GUI.show = counted(ds.GUI.show)
ds.ui.Window.show = counted(ds.ui.Window.show)
sys.argv = [program]
sys.path.insert(0, os.path.dirname(program))
runpy.run_path(program, run_name="__main__")
print("ENDS", flush=True)
"""


def run(folder: Path, program: Path) -> tuple[str, str]:
    """Run a program; returns the state, and for one that fails the reason."""
    environment = dict(os.environ, MPLBACKEND="Agg", DIFFSIM_ARCH="cpu", PYTHONPATH=str(ROOT))
    environment.pop("DISPLAY", None)
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, "-W", "ignore", "-c", PRELUDE, folder, program, str(FRAMES)]
        try:
            done = subprocess.run(
                command, cwd=empty, env=environment, capture_output=True, text=True,
                timeout=SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "runs", f"without an end; stopped after {SECONDS} s"
    last = done.stdout.rstrip().rpartition("\n")[2]
    if done.returncode == 0 and last in ("DRAWS", "ENDS"):
        return "runs", ""
    return "no", reason(done.stderr)


def reason(text: str) -> str:
    """Return the first line of the error that a program ended with, and its hint."""
    lines = text.rstrip().splitlines()
    errors = [
        k for k, line in enumerate(lines) if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)
    ]
    if not errors:
        return lines[-1] if lines else "ended without an error"
    message = re.sub(r"^(\w+\.)+(\w+: )", r"\2", lines[errors[-1]])
    hints = [line.partition("Hint: ")[2] for line in lines[errors[-1] :] if "  Hint: " in line]
    return f"{message}. {hints[-1]}" if hints else message


def merged(before: str, rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Add the rows of the programs that did not run this time."""
    old = re.findall(r"^\| `(.+)` \| (\w+) \| (.*) \|$", before, re.MULTILINE)
    found = {name: (name, state, why.replace("\\|", "|")) for name, state, why in old}
    found.update((row[0], row) for row in rows)
    return [found[name] for name in sorted(found)]


def table(rows: list[tuple[str, str, str]]) -> str:
    """Write the table, and how many of the programs run."""
    well = sum(state == "runs" for _, state, _ in rows)
    lines = [f"{well} of {len(rows)} run.", "", "| example | | |", "|---|---|---|"]
    for name, state, why in rows:
        why = textwrap.shorten(why.replace("|", "\\|"), 220, placeholder=" ...")
        lines.append(f"| `{name}` | {state} | {why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run them, and print or write the table."""
    parser = argparse.ArgumentParser(description="Run Taichi's own examples on diffsim.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="programs whose name matches this expression")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    programs = sorted(p for p in options.folder.rglob("*.py") if p.name != "__init__.py")
    rows = []
    for program in programs:
        name = program.relative_to(options.folder).as_posix()
        if re.search(options.only, name):
            rows.append((name, *run(options.folder, program)))
            print(*rows[-1], sep=" | ", flush=True)
    if options.write:
        text, _, before = PAGE.read_text("utf-8").partition(MARK)
        write_text(PAGE, f"{text}{MARK}\n{table(merged(before, rows))}")


if __name__ == "__main__":
    main()
