"""What every test shares: a cache of its own, hypothesis profiles, a fresh CPU context.

diffsim is imported only inside fixtures, after the environment below is set.
"""

import functools
import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# Subprocesses inherit both, so no test reads or writes the user's own cache or opens a window.
CACHE_DIR = tempfile.mkdtemp(prefix="diffsim-test-cache-")
os.environ["DIFFSIM_CACHE_DIR"] = CACHE_DIR
os.environ["MPLBACKEND"] = "Agg"

# The same few examples on every run, so that a red test is the change's fault; `long` goes looking.
_QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
settings.register_profile(
    "quick",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=25,
    suppress_health_check=_QUIET,
)
settings.register_profile(
    "long", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_QUIET
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew (tests/golden)"
    )


def pytest_unconfigure():
    shutil.rmtree(CACHE_DIR, ignore_errors=True)


@functools.cache
def _why_no_gpu() -> str:
    """Why tests marked ``gpu`` cannot run here; empty where they can."""
    try:
        import pycuda.driver as driver

        driver.init()
        return "" if driver.Device.count() else "no NVIDIA GPU"
    except Exception as error:  # no pycuda, no driver, a driver that refuses: all mean "not here"
        return f"no usable CUDA: {error}"


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and (reason := _why_no_gpu()):
        pytest.skip(reason)


@pytest.fixture
def cpu():
    """diffsim, initialized for the CPU and reset afterwards."""
    import diffsim as ds

    ds.init(arch=ds.cpu)
    yield ds
    ds.reset()
