"""What tests on a real GPU share: its device, the mark of those that no fake will do for, processes."""

import os
import sys
import time

import pytest

from diffsim.runtime import session
from tests.support import processes

real = pytest.mark.gpu(real=True)  # not on a fake GPU


def device():
    return session.session.device


def run(folder, text):
    """What a process of Python printed; other libraries may warn in it, and stand outside .venv."""
    path = os.pathsep.join([str(processes.ROOT), *sys.path])
    return processes.run(folder, text, warnings="default", timeout=240, PYTHONPATH=path)


def slow_kernel(ds, x):
    """A kernel that runs as long as it is asked to, on a few threads."""

    @ds.kernel
    def slow(n: ds.i32):
        for i in x:
            for _ in range(n):
                x[i] = ds.sin(x[i]) + 1.0

    return slow


def share_until_return(ds, launch):
    """How much of the time that a launch takes on the GPU has passed when its call returns."""
    ds.sync()
    start = time.perf_counter()
    launch()
    returned = time.perf_counter() - start
    ds.sync()
    return returned / (time.perf_counter() - start)
