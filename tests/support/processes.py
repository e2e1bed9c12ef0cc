"""Python programs run in processes of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start(folder, text, *, warnings="error", **environment):
    """A Python process that runs this text as a file."""
    folder.mkdir(exist_ok=True)
    script = folder / f"script{len(list(folder.glob('*.py')))}.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, "-W", warnings, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder, text, *, warnings="error", timeout=120, **environment):
    """What that process printed."""
    with start(folder, text, warnings=warnings, **environment) as process:
        out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, out + err
    return out
