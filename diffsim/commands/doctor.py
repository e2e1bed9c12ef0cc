"""`diffsim doctor`: what diffsim finds on this machine, and whether gradients come out right here."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding as llvm
import numpy as np

import diffsim as ds
from diffsim.backends.cuda.ptx import PtxError, find_libdevice
from diffsim.commands import cache
from diffsim.commands.failure import Failure
from diffsim.errors import BackendError, memory_size
from diffsim.runtime.session import session
from diffsim.tools.pictures.films import find_ffmpeg

_OPTIONAL = "scipy torch jax tqdm pycuda imageio-ffmpeg meshio".split()
_COUNT = 200_000  # elements of the self-test
_WIDE = ("avx512f", "avx2", "avx", "sse4.2", "sve", "neon")  # the widest vectors first

Row = tuple[str, str]
"""A property of the machine, and its value."""


def run(words: list[str]) -> int:
    """Print what is found; the exit status is 1 if a self-test fails."""
    if words:
        raise Failure(f"doctor takes no {words[0]!r}", status=2)
    for name, rows in (("versions", _versions()), ("machine", _machine()), ("files", _files())):
        _print(name, rows)
    archs = [ds.cpu]
    try:
        ds.init(arch=ds.cuda)
        _print("gpu", iter([("found", ds.device_info()), ("libdevice", _libdevice())]))
        archs.append(ds.cuda)
    except BackendError as error:
        _print("gpu", iter([("none", error.message.partition(": ")[2] or error.message)]))
    healthy = True
    for arch in archs:
        try:
            _print(f"self-test on {arch.name}", self_test(arch))
        except (Failure, ds.DiffsimError) as error:
            healthy = False
            print(f"  FAILED    {error}")
    print("\neverything works" if healthy else "\nsomething is wrong here: see above")
    return 0 if healthy else 1


def _print(title: str, rows: Iterator[Row]) -> None:
    print(title)
    for name, text in rows:
        print(f"  {name:10}{text}", flush=True)


def _versions() -> Iterator[Row]:
    yield "diffsim", ds.__version__
    yield "Python", f"{platform.python_version()}, {sys.executable}"
    yield "LLVM", ".".join(map(str, llvm.llvm_version_info)) + f", llvmlite {_version('llvmlite')}"
    yield "needed", ", ".join(f"{name} {_version(name)}" for name in ("numpy", "matplotlib"))
    found = {name: _version(name) for name in _OPTIONAL}
    yield "optional", ", ".join(f"{n} {v}" for n, v in found.items() if v) or "none"
    if missing := [name for name, version in found.items() if not version]:
        yield "", f"without {', '.join(missing)}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _machine() -> Iterator[Row]:
    features = llvm.get_host_cpu_features()
    wide = [name for name in _WIDE if features.get(name)]
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield (
        "processor",
        f"{llvm.get_host_cpu_name()}, {wide[0] if wide else 'no vectors that LLVM knows of'}",
    )
    ds.init(arch=ds.cpu)
    yield "threads", f"{session.threads} for parallel loops, of {os.cpu_count()} processors"


def _files() -> Iterator[Row]:
    try:
        found = cache.open_cache()
        sizes = found.sizes()
        yield "cache", f"{found.folder}, {len(sizes)} kernels, {memory_size(sum(sizes))}"
        if why := found.why_unused():
            yield "", f"not used: {why}"
    except Failure as failure:
        yield "cache", str(failure)
    window = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    has_window = window or sys.platform == "darwin"
    yield "display", (window or "yes") if has_window else "none: windows become files"
    program = find_ffmpeg()
    yield (
        "films",
        f"GIF, HTML, MP4 by {program}" if program else "GIF, HTML; no MP4: install ffmpeg",
    )


def _libdevice() -> str:
    try:
        return str(find_libdevice())
    except PtxError:
        return "none: sin, exp, pow and the like do not compile; install nvidia-nvvm"


def self_test(arch: Any) -> Iterator[Row]:
    """Compile a kernel, run it and its adjoint, and compare with the closed form.

    Raises:
        Failure: a number is wrong.
    """
    ds.init(arch=arch, offline_cache=False)  # so that compiling is measured
    x = ds.field(ds.f64, shape=_COUNT, needs_grad=True)
    total = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def energy() -> None:
        for i in x:
            total[None] += 0.5 * x[i] * x[i] / (1.0 + x[i] * x[i])

    def gradient() -> None:
        with ds.Tape(total):
            energy()

    values = np.linspace(-3, 3, _COUNT)
    x.from_numpy(values)
    yield "compiling", f"{1e3 * _seconds(energy):.0f} ms"
    yield (
        "launch",
        f"{1e6 * min(_seconds(energy) for _ in range(20)):.0f} µs for {_COUNT:,} elements",
    )
    yield "adjoint", f"{1e3 * _seconds(gradient):.0f} ms with compiling"
    yield "gradient", f"{1e6 * min(_seconds(gradient) for _ in range(20)):.0f} µs"
    expected = values / (1 + values**2) ** 2
    error = float(np.abs(np.asarray(x.grad) - expected).max())
    value = float((0.5 * values**2 / (1 + values**2)).sum())
    if not error < 1e-14 or not abs(float(total[None]) / value - 1) < 1e-12:
        raise Failure(f"the gradient differs from the closed form by {error:.1e}; please report it")
    yield "right", f"value and gradient agree with the closed form, to {error:.0e}"


def _seconds(what: Callable[[], object]) -> float:
    """Return how long a call takes, with the work that it starts on a GPU."""
    begin = time.perf_counter()
    what()
    ds.sync()
    return time.perf_counter() - begin
