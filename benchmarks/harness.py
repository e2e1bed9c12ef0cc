"""What every workload shares: its command line, the clock, checks, C, and one JSON line per figure.

A workload is a script that `run.py` starts once per framework:

    python benchmarks/heat.py --framework c
    python benchmarks/heat.py --framework api --module diffsim

It prints lines of JSON. What they hold is written at `Bench.emit` and `Bench.check`.
"""

import argparse
import ctypes
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import repeat
from pathlib import Path
from time import perf_counter as now
from types import SimpleNamespace

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
C_FLAGS = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]


def compiler():
    """The C compiler, or None."""
    found = (shutil.which(name) for name in (os.environ.get("CC"), "gcc", "cc") if name)
    return next((path for path in found if path), None)


def skip(why):
    print(json.dumps(dict(skip=why)))
    sys.exit(0)


def relative_error(value, reference):
    """The largest difference, over the largest reference value; in pieces, to spare memory."""
    value, reference = np.ravel(value), np.ravel(reference)
    assert value.shape == reference.shape, (value.shape, reference.shape)
    difference = size = 0.0
    for i in range(0, len(value), 1 << 18):
        exact = reference[i : i + (1 << 18)].astype(np.float64)
        difference = np.maximum(difference, np.abs(value[i : i + (1 << 18)] - exact).max())
        size = max(size, np.abs(exact).max())
    return float(difference / size)


class Bench:
    """One run of one workload on one framework.

    Attributes:
        quick: small sizes and few repeats.
        scratch: a folder for compiled code and references, shared by the processes of one run.
        cache: an empty folder for what a framework compiles.
    """

    def __init__(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("--framework", default="api", help="api, c, warp or numba")
        parser.add_argument("--module", default="diffsim", help="what plays the part of Taichi")
        parser.add_argument("--quick", action="store_true")
        parser.add_argument("--scratch", type=Path)
        self.args = parser.parse_args()
        self.quick = self.args.quick
        self.framework = self.args.framework
        self.scratch = self.args.scratch or Path(tempfile.mkdtemp(prefix="bench-"))
        self.cache = Path(tempfile.mkdtemp(prefix="cache-", dir=self.scratch))
        self.diffsim = self.framework == "api" and self.args.module == "diffsim"

    def run(self, versions):
        """Run the version for the framework that was asked for, and clean up."""
        try:
            if self.framework not in versions:
                skip(None)
            versions[self.framework](self)
        finally:
            shutil.rmtree(self.cache, True)
            if not self.args.scratch:
                shutil.rmtree(self.scratch, True)

    def size(self, full, quick):
        return quick if self.quick else full

    # ---- frameworks

    def api(self, diffsim=None, taichi=None):
        """The module with Taichi's interface, initialised; each may have options of its own."""
        if self.diffsim:
            sys.path.insert(0, str(ROOT))
        try:
            module = importlib.import_module(self.args.module)
        except ModuleNotFoundError:
            skip(f"{self.args.module} is not installed")
        own = (diffsim if self.diffsim else taichi) or {}
        module.init(
            arch=module.cpu, offline_cache=True, offline_cache_file_path=str(self.cache), **own
        )
        version = module.__version__
        self.version(version if isinstance(version, str) else ".".join(map(str, version)))
        return module

    def warp(self):
        try:
            import warp
        except ModuleNotFoundError:
            skip("warp is not installed")
        warp.config.quiet = True
        warp.config.kernel_cache_dir = str(self.cache)
        warp.init()
        warp.set_device("cpu")
        self.version(getattr(warp, "__version__", None) or warp.config.version)
        return warp

    def numba(self):
        os.environ["NUMBA_CACHE_DIR"] = str(self.cache)
        try:
            import numba
        except ModuleNotFoundError:
            skip("numba is not installed")
        self.version(numba.__version__)
        return numba

    def c(self, source):
        """C source, compiled once per run; functions are made with `bind`."""
        command = compiler()
        if command is None:
            skip("no C compiler")
        folder = self.scratch / f"c-{Path(sys.argv[0]).stem}-{'quick' if self.quick else 'full'}"
        library = folder / "workload.so"
        if not library.exists():
            folder.mkdir(exist_ok=True)
            (folder / "workload.c").write_text(source)
            beside = folder / "workload.part.so"
            build = [command, *C_FLAGS, str(folder / "workload.c"), "-o", str(beside), "-lm"]
            made = subprocess.run(build, capture_output=True, text=True, check=False)
            if made.returncode:
                skip("the C compiler failed: " + made.stderr.strip().splitlines()[0])
            beside.replace(library)
        first = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
        self.version(first.stdout.splitlines()[0])
        return ctypes.CDLL(str(library))

    def version(self, text):
        print(json.dumps(dict(version=text)))

    # ---- figures

    def emit(self, figure, values, unit, work=None, like=None):
        """Print a figure.

        Args:
            figure: its name; the same in all frameworks.
            values: all repeats.
            unit: ms, us or s: the smaller the better.
            work: amount and unit of what one value stands for: a rate is shown beside it.
            like: the figure of the other frameworks to compare with, if it has another name there.
        """
        line = dict(figure=figure, unit=unit, value=statistics.median(values))
        line |= dict(low=min(values), high=max(values), repeats=len(values))
        print(json.dumps(line | dict(work=work, like=like)), flush=True)

    def check(self, figure, value, reference, tolerance=1e-3):
        """Print how far a figure's result is from a reference; outside `tolerance` it is wrong."""
        error = relative_error(value, reference)
        print(json.dumps(dict(check=figure, error=error, tolerance=tolerance)), flush=True)

    def time(self, figure, run, before=None, work=None, like=None, first=None, divide=1, per=""):
        """Time calls of `run`, each after an untimed `before`, after a first one in any case.

        Args:
            figure: the name of the figure [ms].
            run: returns when its work is done.
            before: what it needs before each call.
            work: see `emit`.
            like: see `emit`.
            first: the name for the first call, compiling included [s].
            divide: also emit the time of one of so many equal parts [us].
            per: what those parts are.
        """
        before = before or (lambda: None)
        before()
        start = now()
        run()
        if first:
            self.emit(first, [now() - start], "s")
        values = []
        least, most, budget = (2, 10, 0.1) if self.quick else (5, 60, 0.6)
        begin = now()
        while len(values) < least or (len(values) < most and now() - begin < budget):
            before()
            start = now()
            run()
            values.append((now() - start) * 1e3)
        self.emit(figure, values, "ms", work, like)
        if per:
            self.emit(f"{figure}, {per}", [v * 1e3 / divide for v in values], "us")

    def per_call(self, figure, run):
        """Time many calls of something short: microseconds per call, loop included."""
        run()
        start = now()
        for _ in repeat(None, 20):
            run()
        calls = max(20, int(0.01 / ((now() - start) / 20)))
        values = []
        begin = now()
        while len(values) < 3 or (not self.quick and len(values) < 25 and now() - begin < 1):
            start = now()
            for _ in repeat(None, calls):
                run()
            values.append((now() - start) / calls * 1e6)
        self.emit(figure, values, "us")

    # ---- references

    def reference(self, compute):
        """What `compute()` returns, a dict of arrays; computed once per run and kept in `scratch`."""
        kept = self.scratch / f"{Path(sys.argv[0]).stem}-{'quick' if self.quick else 'full'}.npz"
        if not kept.exists():
            beside = kept.with_suffix(".part.npz")
            np.savez(beside, **compute())
            beside.replace(kept)
        return SimpleNamespace(**np.load(kept))


def bind(function, *args, returns=None):
    """A C function with its arguments: int is long, float is float, an array is its pointer."""
    for a in args:
        assert not isinstance(a, np.ndarray) or (a.itemsize == 4 and a.flags.c_contiguous)
    kinds = {int: ctypes.c_long, float: ctypes.c_float}
    function.restype = returns
    ready = [
        kinds[type(a)](a) if type(a) in kinds else ctypes.c_void_p(a.ctypes.data) for a in args
    ]

    def call():
        return function(*ready)

    call.arrays = args  # kept alive
    return call


def main(**versions):
    Bench().run(versions)
