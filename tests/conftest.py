"""What every test shares: a cache for this run, hypothesis profiles, a fresh CPU context.

diffsim is imported only inside fixtures, after the environment below is set.
"""

import functools
import gc
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import pytest

# Workers (of xdist) inherit the folder of the process that started them: what one has compiled, all find.
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ and "DIFFSIM_TEST_FOLDER" in os.environ
if not _IS_WORKER:
    os.environ["DIFFSIM_TEST_FOLDER"] = tempfile.mkdtemp(prefix="diffsim-test-")
FOLDER = pathlib.Path(os.environ["DIFFSIM_TEST_FOLDER"])
# Subprocesses inherit these, so no test reads or writes the user's own cache or opens a window.
os.environ["DIFFSIM_CACHE_DIR"] = str(FOLDER / "cache")
os.environ["MPLBACKEND"] = "Agg"
# DIFFSIM_ARCH would win over what a test asks for; this one is for tests that do not say (`make test-gpu`).
os.environ.pop("DIFFSIM_ARCH", None)
TEST_ARCH = os.environ.get("DIFFSIM_TEST_ARCH", "")
# Where Python is told to leave no bytecode beside the source, hundreds of subprocesses would each compile the
# package anew (0.4 s of CPU time each), and each worker would rewrite the assertions of hypothesis (2 s): all
# bytecode goes to the folder of this run.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(FOLDER / "bytecode")
    sys.dont_write_bytecode = False

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the tests that are made with it are skipped
    settings = None

# The same few examples on every run, so that a red test is the change's fault; `long` goes looking.
if settings is not None:
    _QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    settings.register_profile(
        "quick",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=15,
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
    parser.addoption(
        "--fake-gpu",
        action="store_true",
        help="run everything on a GPU that is not there (tests/cuda/fake.py): all but the GPU's own code",
    )
    parser.addoption(
        "--emulated-gpu",
        action="store_true",
        help="the same, with the GPU's code emulated on the CPU (tests/cuda/emulated.py)",
    )


def pytest_configure(config):
    _collect_from_the_other_end(config)
    # A shell's background jobs ignore Ctrl-C, and some tests send it to themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if TEST_ARCH:
        from diffsim.runtime import session

        session.default_arch = lambda: session.ARCHES[TEST_ARCH]
    if config.getoption("--fake-gpu"):
        from tests.cuda import fake

        fake.install(by_default=True)
    if config.getoption("--emulated-gpu"):
        from tests.cuda import emulated

        emulated.install(by_default=True)


def _collect_from_the_other_end(config):
    """Let every second worker collect the last folder first.

    Each collects all files, and the assertions of a file that has no bytecode yet are rewritten, which is
    most of the time. Two workers that begin at different ends each find half of the files' bytecode written.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    tests = pathlib.Path(__file__).parent
    if int(number) % 2 and [pathlib.Path(arg).resolve() for arg in config.args] == [tests]:
        config.args = sorted(map(str, tests.glob("*/test_*.py")), reverse=True)
        config.args += sorted(map(str, tests.glob("test_*.py")))


# The files that take longest, longest first: one that a worker begins last keeps all others waiting.
LONGEST = """
    examples/test_examples.py docs/test_docs.py ad/test_programs.py backends/test_cuda_runs.py
    trust/test_soak.py trust/test_numbers.py backends/test_cuda_ptx.py ir/test_ops.py
    ad/test_decompositions.py errors/test_anything_anywhere.py trust/test_deterministic.py
    trust/test_llvm.py examples/test_benchmarks.py backends/test_private_copies.py ad/test_generated.py
    examples/test_walkers.py ad/test_tensor_programs.py backends/test_cuda_block_dim.py
    lang/test_control_flow.py trust/test_interrupts.py backends/test_pool.py trust/test_cache_folder.py
    cuda/test_emulated.py examples/test_pictures_found.py runtime/test_disk_cache.py cuda/test_on_fake.py
    trust/test_files.py examples/test_notebooks.py runtime/test_threads.py runtime/test_launch.py
    cuda/test_launches.py docs/test_architecture.py cuda/test_staging.py ad/test_gradients.py
    examples/test_implicit_examples.py test_structure.py backends/test_trailing_task.py
    lang/test_decompositions.py ad/test_segments.py backends/test_outline.py trust/test_forks.py
    backends/test_simd.py tools/test_player.py tools/test_films.py errors/test_messages.py
""".split()


def pytest_collection_modifyitems(items):
    tests = pathlib.Path(__file__).parent
    place = {tests / name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (place.get(item.path, len(LONGEST)), item.path))


def pytest_collection_finish():
    # Thousands of collected tests live to the end: the garbage collector need not visit them each time.
    _leave_in_peace()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Nor need it visit the kernels of the files that are done: some tests call it in a loop."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            _leave_in_peace()


def _leave_in_peace():
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    if not _IS_WORKER:
        shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip what needs NVIDIA's mathematical library for GPUs where there is none."""
    try:
        return (yield)
    except Exception as problem:
        if "libdevice" in str(problem) and not _has_libdevice():
            pytest.skip("no libdevice here")
        raise


@functools.cache
def _has_libdevice() -> bool:
    from diffsim.backends.cuda.ptx import PtxError, find_libdevice

    try:
        find_libdevice()
    except PtxError:
        return False
    return True


@functools.cache
def _why_no_gpu() -> str:
    """Why tests marked ``gpu`` cannot run here; empty where they can."""
    from diffsim.backends.cuda.driver import Driver
    from diffsim.backends.cuda.libcuda import DriverError

    try:
        Driver()
    except DriverError as error:
        return str(error)
    return ""


def pytest_runtest_setup(item):
    fake = item.config.getoption("--fake-gpu") or item.config.getoption("--emulated-gpu")
    gpu = item.get_closest_marker("gpu")
    if gpu and fake and gpu.kwargs.get("real"):
        pytest.skip("this GPU is a fake")
    if gpu and not fake and (reason := _why_no_gpu()):
        pytest.skip(reason)
    on_gpu = fake or TEST_ARCH == "cuda"
    if on_gpu and item.get_closest_marker("host"):
        pytest.skip("about the CPU's native code")


@functools.cache
def _quick_jit():
    from diffsim.backends.native.jit import Jit

    return Jit(opt_level=0)


@pytest.fixture(scope="session", autouse=True)
def _every_pass_runs():
    """No test takes from disk what the passes made of the same kernel in another one.

    Tests change what passes do, and no key of the cache knows it. Machine code has its own text as its key.
    """
    from diffsim.runtime.cache import own_version

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_version, "_found", [None])
        yield


@pytest.fixture(autouse=True)
def _names_as_they_were():
    """Every test leaves diffsim's own names as it found them.

    While one of them means something else, no translation is kept.
    """
    from diffsim.runtime.translated import own_names

    yield
    assert not own_names.changed(), "the test gave one of diffsim's names another meaning, for good"


@pytest.fixture
def quick_code(monkeypatch):
    """The CPU's code without LLVM's passes, which take most of the time of a large kernel.

    For tests of formulas, rules and messages; others run programs as users do.
    """
    from diffsim.runtime.session import session

    monkeypatch.setattr(session, "_jit", _quick_jit())


@pytest.fixture
def cpu():
    """diffsim, initialized for the CPU (or what DIFFSIM_TEST_ARCH says) and reset afterwards."""
    import diffsim as ds

    ds.init()
    yield ds
    ds.reset()
