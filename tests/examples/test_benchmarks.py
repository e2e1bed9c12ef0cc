"""The benchmarks still run, in small sizes, and what they time is right. No time is looked at.

Not here: `runtime/kernels/launch_function.py` and `checks.py`, which do nothing but time what other tests
run.
"""

import json
import os
import re
from pathlib import Path

import pytest

from tests.support import forked

ROOT = Path(__file__).resolve().parents[2]


def run(script, *arguments, folder):
    """What a benchmark prints."""
    found = os.pathsep.join([str(ROOT), *filter(None, [os.getenv("PYTHONPATH")])])
    made = forked.run(
        ROOT / "benchmarks" / script,
        *arguments,
        folder=folder,
        environment={**os.environ, "PYTHONPATH": found},
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@pytest.mark.parametrize(
    "workload", ["stream", "heat", "reduce", "nbody", "mpm", "mpm3d", "spring", "loop"]
)
def test_workload_is_right(workload, tmp_path):
    lines = run(f"{workload}.py", "--quick", folder=tmp_path).splitlines()
    checks = [line for line in map(json.loads, lines) if "check" in line]
    assert checks
    for line in checks:
        assert line["error"] <= line["tolerance"], line


@pytest.mark.parametrize(
    ("arguments", "heading"),
    [(("--only", "diffsim"), "| what | counted |"), (("--tune",), "| 8192 x 8192 | layout |")],
    ids=["table", "tune"],
)
def test_gpu_benchmark_runs_dry(arguments, heading, tmp_path):
    assert heading in run("gpu/run.py", "--dry", *arguments, folder=tmp_path)


def test_gallery_measures_a_row(tmp_path):
    """Each row is an example and has an original; one of them is measured."""
    quick = ("--rounds", "1", "--seconds", "0.01")
    name, seconds, *_ = (
        run("gallery.py", "--only", "billiards", *quick, folder=tmp_path).strip("| \n").split(" | ")
    )
    assert name == "billiards"
    assert 0 < float(seconds) < 1
    table = (ROOT / "benchmarks" / "gallery.py").read_text()
    originals = (ROOT / "benchmarks" / "gallery_original.py").read_text()
    rows = re.findall(r'    Row\(\s*"(\w+)"', table)
    assert len(rows) >= 5
    for row in rows:
        assert (ROOT / "examples" / f"{row}.py").exists()
        assert f'"{row}": Original(' in originals
