"""What tests on a real GPU share: its device, the mark of those that no fake will do for, processes."""

import os
import sys

import pytest

from diffsim.runtime import session
from tests.support import processes

real = pytest.mark.gpu(real=True)  # not on a fake GPU


def device():
    return session.session.device


def run(folder, text):
    """What a process of Python printed; other libraries may warn in it, and stand outside of .venv."""
    path = os.pathsep.join([str(processes.ROOT), *sys.path])
    return processes.run(folder, text, warnings="default", timeout=240, PYTHONPATH=path)
