"""The quick part of `make soak`: each scenario for a moment, always with the same chances."""

import sys

import pytest

from tests.soak.__main__ import run, scenarios

SECONDS = 0.6
# `make soak` alone runs these, which take longest and are like others here.
LONGEST = {"disk.a_small_disk", "process.memory"}


@pytest.mark.host
@pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
@pytest.mark.parametrize("name", [name for name in scenarios() if name not in LONGEST])
def test_scenario(name):
    wrong = run(name, SECONDS, seed=0)
    assert wrong is None, f"python -m tests.soak --only {name} --seed 0: {wrong}"
