"""Python processes that scenarios start, wait for and kill."""

import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 60.0
"""More than any program of a scenario takes, on a machine that is busy [s]."""


def start(text, *arguments, **environment):
    """A Python process that runs this text as a file, with diffsim to import."""
    handle, script = tempfile.mkstemp(suffix=".py", prefix="script")
    with os.fdopen(handle, "w") as file:
        file.write(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """What a process that must end well has printed."""
    with process:
        try:
            out, err = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"a program did not end\n{process.stderr.read()}") from None
    assert process.returncode == 0, f"status {process.returncode}\n{err}"
    return out


def run(text, *arguments, **environment):
    """Run a program that must end well; what it printed."""
    return ended(start(text, *arguments, **environment))


def kill_after(process, seconds):
    """Kill a process (signal 9) after this time, if it still runs then."""
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def rounds(seconds):
    """Count from 0 on for so many seconds, at least once."""
    end, count = time.monotonic() + seconds, 0
    while count == 0 or time.monotonic() < end:
        yield count
        count += 1
