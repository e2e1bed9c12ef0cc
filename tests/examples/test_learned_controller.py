"""The example with PyTorch, as a user runs it; skipped where PyTorch is not installed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("torch", reason="PyTorch is not installed")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "learned_controller.py"


def test_the_controller_learns(tmp_path):
    options = ["--iterations", "11", "--steps", "25", "--out", str(tmp_path / "out")]
    made = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), *options],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(SCRIPT.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    losses = [float(text) for text in re.findall(r"loss +([\d.]+)", made.stdout)]
    assert len(losses) == 2
    assert losses[1] < 0.7 * losses[0]
    with Image.open(tmp_path / "out" / "learned_controller.png") as image:
        assert min(image.size) > 100
    assert (tmp_path / "out" / "learned_controller.html").exists()
