"""No room on the disk: programs go on without the cache, and files that were there stay."""

import contextlib
import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

from tests.soak import _processes
from tests.soak.kills import KERNELS

LIMITED = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))\n"

GRAPH = """
import sys
import diffsim as ds

ds.init(offline_cache=False)
x = ds.field(ds.f64, shape=5, needs_grad=True)

@ds.kernel
def step():
    for i in x:
        x[i] = 0.5 * x[i]

tape = ds.Tape(in_place="save")
with tape:
    for _ in range(200):
        step()
try:
    text = tape.visualize(sys.argv[1])
except ds.FileError as error:
    assert error.hint, error
    print("refused")
else:
    assert open(sys.argv[1]).read() == text
    print("written")
"""


def _warned_at_most_once(process):
    out, err = process.communicate(timeout=_processes.LONGEST)
    assert process.returncode == 0, f"status {process.returncode}\n{err}"
    assert err.count("Warning") <= 1, err
    return out


def files_that_may_not_grow(seconds, rng):
    """The system refuses to let a file grow beyond a size chosen by chance: kernels, then a graph."""
    cache = tempfile.mkdtemp()
    graph = Path(tempfile.mkdtemp(), "tape.dot")
    graph.write_text("old")
    before = "old"
    for round in _processes.rounds(seconds):
        limit = LIMITED.format(rng.choice([0, 1, 100, 3000, 20_000]))
        with _processes.start(limit + KERNELS, round * 3, 3, DIFFSIM_CACHE_DIR=cache) as process:
            _warned_at_most_once(process)
        _processes.run(KERNELS, round * 3, 3, DIFFSIM_CACHE_DIR=cache)
        with _processes.start(limit + GRAPH, graph) as process:
            if _warned_at_most_once(process) == "refused\n":
                assert graph.read_text() == before
        before = graph.read_text()
        assert [f.name for f in graph.parent.iterdir()] == ["tape.dot"]


def a_small_disk(seconds, rng):
    """A disk of a few kilobytes fills up while kernels are kept there."""
    place = tempfile.mkdtemp()
    if not _mount(place, "64k"):
        files_that_may_not_grow(seconds, rng)  # only root mounts
        return
    try:
        for round in _processes.rounds(seconds):
            some = Path(place, "some")
            with contextlib.suppress(OSError):  # full: kernels of earlier rounds are kept there
                some.write_bytes(bytes(rng.randrange(60_000)))
            for first in (5000 + round * 3, 5000):
                with _processes.start(KERNELS, first, 3, DIFFSIM_CACHE_DIR=place + "/c") as process:
                    _warned_at_most_once(process)
            some.unlink()
    finally:
        subprocess.run(["umount", place], check=False, capture_output=True)


def _mount(place, size):
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mount") or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return False
    return libc.mount(b"none", place.encode(), b"tmpfs", 0, f"size={size},mode=700".encode()) == 0


SCENARIOS = {"files_that_may_not_grow": files_that_may_not_grow, "a_small_disk": a_small_disk}
