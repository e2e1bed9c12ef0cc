"""Type checkers accept a program as users write it, and find its mistakes (docs/adr/0065)."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typed"
ROOT = Path(__file__).resolve().parents[2]
WRONG = {
    number
    for number, line in enumerate((HERE / "wrong.py").read_text("utf-8").splitlines(), 1)
    if line.endswith("# wrong")
}


def checked(*command, **env):
    """Files and lines of the errors that a checker finds, and all that it prints."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    files = [str(HERE / "right.py"), str(HERE / "wrong.py")]
    run = subprocess.run(
        [sys.executable, "-m", *command, *files],
        capture_output=True,
        text=True,
        timeout=300,
        env=given,
        cwd=HERE,
    )
    said = run.stdout + run.stderr
    found = re.findall(r"([\w.]+):(\d+)(?::\d+)?(?: -|:) error", said)
    assert run.returncode == 1, said
    return {(name, int(line)) for name, line in found}, said


def is_right(found, said):
    assert {f for f in found if f[0] != "wrong.py"} == set(), said
    assert {line for _, line in found} == WRONG, said


def test_mypy(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    is_right(
        *checked(
            "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", MYPYPATH=str(ROOT)
        )
    )


def test_pyright(tmp_path):
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright, which has pyright with a Node.js, is not installed")
    options = tmp_path / "pyrightconfig.json"
    options.write_text(
        f'{{"include": ["{HERE}"], "extraPaths": ["{ROOT}"], "typeCheckingMode": "standard", '
        f'"pythonPlatform": "Linux"}}'
    )
    # As pyright itself: the checks that basedpyright adds are off in this mode.
    found = subprocess.run(
        [sys.executable, "-m", "basedpyright", "-p", str(options), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=HERE,
    )
    lines = re.findall(r"([\w.]+):(\d+):\d+ - error", found.stdout)
    is_right({(name, int(line)) for name, line in lines}, found.stdout + found.stderr)


def test_the_program_runs(cpu):
    made = runpy.run_path(str(HERE / "right.py"))
    assert made["planets"].mass.to_numpy().tolist() == [1.0, 0.0, 0.0, 0.0]
    assert made["b"].pos.to_list() == [1.0, 2.0, 3.0]


def test_stubs_say_what_the_package_says():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        stubs = importlib.import_module("write_stubs").stubs()
    finally:
        sys.path.remove(str(ROOT / "tools"))
    stale = [p for p, text in stubs.items() if (ROOT / "diffsim" / p).read_text("utf-8") != text]
    assert stale == [], "run python tools/write_stubs.py"
