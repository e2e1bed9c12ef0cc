"""Processes that are killed (signal 9) at random times: what they leave behind is readable and right."""

import tempfile
import time
from pathlib import Path

from PIL import Image

from tests.soak import _processes

KERNELS = """
import sys
import diffsim as ds

first, count = int(sys.argv[1]), int(sys.argv[2])
ds.init()
x = ds.field(ds.f64, shape=50, needs_grad=True)
y = ds.field(ds.f64, shape=50, needs_grad=True)
print("ready", flush=True)

def launch(number):
    @ds.kernel
    def scaled():
        for i in x:
            y[i] = number * x[i] * x[i]

    scaled()
    scaled.grad()

for number in range(first, first + count):
    x.fill(0.5)
    y.grad.fill(1.0)
    x.grad.fill(0.0)
    launch(number)
    assert y[7] == 0.25 * number, (number, y[7])
    assert x.grad[7] == number, (number, x.grad[7])
"""


def while_compiling(seconds, rng):
    """A process is killed while it compiles and keeps its kernels; the next has the right numbers."""
    cache = tempfile.mkdtemp()
    count = 8
    taken = None  # the time from the first kernel to the last [s]
    for round in _processes.rounds(seconds):
        victim = _processes.start(KERNELS, round * count, count, DIFFSIM_CACHE_DIR=cache)
        assert victim.stdout.readline() == "ready\n", victim.communicate()[1]
        start = time.monotonic()
        _processes.kill_after(victim, rng.uniform(0, taken or 1.0))
        _processes.run(KERNELS, round * count, count, DIFFSIM_CACHE_DIR=cache)
        taken = taken or time.monotonic() - start


FILES = """
import sys
from pathlib import Path
from diffsim.runtime.files import write_text

folder = Path(sys.argv[1])
print("ready", flush=True)
for n in range(10**9):
    write_text(folder / "graph.dot", f"{n % 10}" * 300_000)
"""
PICTURES = """
import sys
from pathlib import Path
import diffsim as ds

folder = Path(sys.argv[1])
print("ready", flush=True)
for n in range(10**9):
    ds.tools.plot_loss([float(n), 1.0, 0.5], folder / "loss.png")
"""


def while_writing(seconds, rng):
    """A process is killed while it writes a graph or a picture again and again: the last one is whole."""
    folder = Path(tempfile.mkdtemp())
    for round in _processes.rounds(seconds):
        text = FILES if round % 2 == 0 else PICTURES
        with _processes.start(text, folder) as victim:
            assert victim.stdout.readline() == "ready\n", victim.communicate()[1]
            _processes.kill_after(victim, rng.uniform(0, 0.6))
        graph, picture = folder / "graph.dot", folder / "loss.png"
        if graph.exists():
            words = graph.read_text()
            assert len(words) == 300_000, len(words)
            assert len(set(words)) == 1
        if picture.exists():
            with Image.open(picture) as image:
                image.load()
                assert image.size == (640, 400), image.size


SCENARIOS = {"while_compiling": while_compiling, "while_writing": while_writing}
