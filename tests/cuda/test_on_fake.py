"""The tests for real GPUs, where there is none: on the fake one, or they would go stale unseen.

In a process of their own, as the fake is the default there; without those that take long or much memory.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
COSTLY = (
    "100000004 or 20971524 or threads_copy or 16] or 32] or 96] or 64] or 128] or 512] or False-1"
)


@pytest.mark.host
def test_files_for_real_gpus():
    files = sorted(map(str, FOLDER.glob("test_gpu_*.py")))
    assert len(files) >= 4
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "--fake-gpu"]
    done = subprocess.run(
        [*command, "-k", f"not ({COSTLY})", *files],
        cwd=FOLDER.parents[1],
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
