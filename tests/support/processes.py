"""Python programs run in processes of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start(folder, text, **environment):
    """A Python process that runs this text as a file."""
    folder.mkdir(exist_ok=True)
    script = folder / f"script{len(list(folder.glob('*.py')))}.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder, text, **environment):
    """What that process printed."""
    with start(folder, text, **environment) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out
