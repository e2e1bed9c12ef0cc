"""The programs of this folder, built on a module with Taichi's interface, and their C references.

A program is a file that imports nothing of ours:

    SIZES = (64, 512, 1448)         # one that fits into a cache, one that does not, one of 8 times its work
    def given(n, random): ...       # dict of NumPy arrays
    def work(n): ...                # items of one run; bytes and operations of an item
    def program(ti, n, shapes): ... # (run, loss, fields), the fields named as in `given`

It may have `TAICHI`, options that Taichi needs for its gradient, and `C`, the reference of another program.
A reference has `setup(n, arrays)`, `forward()` and `backward(gradients)`, arrays in the order of `given`.
"""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
FLAGS = ["-O3", "-march=native", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
# diffsim and C as on a machine without AVX-512; Taichi has no such option.
AVX2 = os.environ.get("DIFFSIM_VECTOR_BITS") == "256"
if AVX2:
    FLAGS.append("-mno-avx512f")
RESULTS = "results-avx2" if AVX2 else "results"
Arrays = dict[str, np.ndarray]


class Built(NamedTuple):
    """A program that is ready to run.

    `gradient` runs forward and backward, and calls its argument between the two.
    """

    forward: Callable[[], None]
    gradient: Callable[[Callable[[], None]], None]
    loss: Callable[[], float]
    gradients: Callable[[], Arrays]
    write: Callable[[Arrays], None]


def programs() -> dict[str, Path]:
    """All programs by name."""
    return {path.stem: path for path in sorted(HERE.glob("*/*.py"))}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"natural_{name}", programs()[name])
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arrays(module: ModuleType, n: int, precision: str) -> Arrays:
    """What the program is given: integers as they are, floats of the precision."""
    given = module.given(n, np.random.default_rng(n))
    return {
        name: np.ascontiguousarray(a, np.int32 if a.dtype.kind == "i" else precision)
        for name, a in given.items()
    }


def build(ti: ModuleType, module: ModuleType, n: int, given: Arrays) -> Built:
    """A program on diffsim or Taichi, which has been initialised."""
    shapes = {name: a.shape for name, a in given.items()}
    run, loss, fields = module.program(ti, n, shapes)

    def write(values: Arrays) -> None:
        for name, value in values.items():
            fields[name].from_numpy(value)
        ti.sync()

    def forward() -> None:
        run()
        ti.sync()

    def gradient(between: Callable[[], None]) -> None:
        with ti.ad.Tape(loss):
            run()
            ti.sync()
            between()
        ti.sync()

    def gradients() -> Arrays:
        found = {}
        for name, field in fields.items():
            if given[name].dtype.kind == "f" and getattr(field, "needs_grad", True):
                with suppress(
                    AttributeError
                ):  # Taichi's fields without gradients hold an empty one
                    found[name] = field.grad.to_numpy()
        return found

    write(given)
    return Built(forward, gradient, lambda: float(loss[None]), gradients, write)


def reference(name: str, module: ModuleType) -> Path | None:
    """The C file of a program."""
    path = programs()[getattr(module, "C", name)].with_suffix(".c")
    return path if path.exists() else None


def compile_c(source: Path, threads: int, precision: str, folder: Path) -> Path:
    """The library; with one thread no addition is atomic."""
    library = folder / f"{source.stem}-{threads}-{precision}.so"
    compiler = shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no gcc")
    real = {"f4": "float", "f8": "double"}[precision]
    own = ["-fopenmp"] if threads > 1 else []
    command = [compiler, *FLAGS, *own, f"-Dreal={real}", "-include", str(HERE / "common.h")]
    subprocess.run([*command, str(source), "-o", str(library), "-lm"], check=True)
    return library


def build_c(library: Path, n: int, given: Arrays, wanted: list[str]) -> Built:
    """A program's reference; `wanted` names the gradients."""
    code = ctypes.CDLL(str(library))
    code.forward.restype = ctypes.c_double
    found = {name: np.zeros_like(a) for name, a in given.items()}

    def pointers(values: Arrays) -> Any:
        return (ctypes.c_void_p * len(values))(*(a.ctypes.data for a in values.values()))

    code.setup(ctypes.c_long(n), pointers(given))
    slots, last = pointers(found), [0.0]

    def forward() -> None:
        last[0] = code.forward()

    def gradient(between: Callable[[], None]) -> None:
        forward()
        between()
        code.backward(slots)

    def write(values: Arrays) -> None:
        for name, value in values.items():
            given[name][:] = value

    def gradients() -> Arrays:
        return {name: found[name] for name in wanted}

    return Built(forward, gradient, lambda: last[0], gradients, write)


def difference_error(built: Built, given: Arrays) -> float:
    """Relative error of the gradient along a random direction, against central differences in f64."""
    built.gradient(lambda: None)
    found = built.gradients()
    random, step = np.random.default_rng(1), 1e-6
    ways = {name: random.standard_normal(g.shape) for name, g in found.items()}
    exact = sum(float((found[name] * way).sum()) for name, way in ways.items())
    start, losses = {name: given[name].copy() for name in ways}, []
    for sign in (1, -1):
        built.write({name: start[name] + sign * step * way for name, way in ways.items()})
        built.gradient(lambda: None)
        losses.append(built.loss())
    return abs((losses[0] - losses[1]) / (2 * step) - exact) / max(abs(exact), 1e-12)
