"""Measurements on one NVIDIA GPU: bytes or operations counted first, then what is reached of the ceiling.

    python benchmarks/gpu/run.py            print the table
    python benchmarks/gpu/run.py --write    and write it to benchmarks/gpu/results.md
    python benchmarks/gpu/run.py --ptx      registers and spills to benchmarks/gpu/ptx.md; needs ptxas alone
    python benchmarks/gpu/run.py --tune     the heat step for several tiles, blocks and layouts (`tune.py`)
    python benchmarks/gpu/run.py --dry      tiny sizes, without a GPU on the CPU: to see that it runs

Needs diffsim and NumPy. PyTorch, CuPy, Taichi and Warp get a column where they can be imported, each in a
process of its own. The ceiling for bytes is a copy on the device by the driver, measured in the same run
(bytes read and written); that for operations is two f32 operations a clock in each of 128 units of every
multiprocessor. That for atomic additions is an assumption: in each of 96 slices of the L2 cache one a clock
of 1.6 GHz, be it of a number or of a vector in one sector of 32 bytes. Times are of many launches between
two waits, divided by their number: the least of five such runs. They count only if the values were right;
else the table says WRONG. If anything failed or was wrong, the status is 1.
"""

import argparse
import ctypes
import datetime
import functools
import importlib
import importlib.util
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import diffsim as ds
from diffsim.runtime.cuda.device import Device
from diffsim.runtime.files import write_text

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # the workloads are those of the CPU

import mpm  # noqa: E402 - found by the line above, as what rows.py and the others import
import tune  # noqa: E402
import warp_rows  # noqa: E402
from heat import K  # noqa: E402
from rows import SOFT, Bench, attempt, problems  # noqa: E402

LONGEST_S = 150  # for the column of another library
# 3 differences, 3 products and 4 sums of squares, 1 root, 3 products, 3 x 2 to add up
PAIR_FLOPS = 20
L2_RATE = 96 * 1.6e9  # atomic additions per second
CLOCK_RATE = 13  # CUdevice_attribute: peak clock [kHz]


# ---- kernels: in the language that diffsim and Taichi share


def streams(b, column, ti):
    n = b.size(1 << 28, 1 << 12)
    x, y, z = (ti.field(ti.f32, shape=n, needs_grad=True) for _ in range(3))

    @ti.kernel
    def saxpy(a: ti.f32):
        for i in x:
            y[i] = a * x[i] + y[i]

    @ti.kernel
    def triad(a: ti.f32):
        for i in x:
            z[i] = x[i] + a * y[i]

    def ends(*fields):
        return [f[k] for f in fields for k in (0, n - 1)]

    x.fill(1.0)
    y.fill(2.0)
    row = b.row(f"saxpy, {n:.3g} elements", bytes=12 * n)
    saxpy(3.0)
    if b.right(row, column, ends(y), np.array([5.0, 5.0])):
        row.seconds[column] = b.time(lambda: saxpy(0.0), ti.sync)
    y.grad.fill(2.0)
    saxpy.grad(3.0)
    row = b.row(f"saxpy, its gradient, {n:.3g} elements", bytes=12 * n)
    row.note = "y's gradient read, x's added to"
    if b.right(row, column, ends(y.grad, x.grad), np.array([2.0, 2.0, 6.0, 6.0])):
        row.seconds[column] = b.time(lambda: saxpy.grad(0.0), ti.sync)
    row = b.row(f"triad, {n:.3g} elements", bytes=12 * n)
    y.fill(2.0)
    triad(3.0)
    if b.right(row, column, ends(z), np.array([7.0, 7.0])):
        row.seconds[column] = b.time(lambda: triad(3.0), ti.sync)
    for f, value in ((x, 1.0), (y, 1.0), (z, 2.0)):
        f.grad.fill(value)
    triad.grad(3.0)
    row = b.row(f"triad, its gradient, {n:.3g} elements", bytes=24 * n)
    row.note = "z's gradient read and cleared, those of x and y added to"
    exact = np.array([3.0, 3.0, 7.0, 7.0, 0.0, 0.0])
    if b.right(row, column, ends(x.grad, y.grad, z.grad), exact):
        row.seconds[column] = b.time(lambda: triad.grad(3.0), ti.sync)


def sums(b, column, ti):
    n = b.size(1 << 30, 1 << 12)
    x = ti.field(ti.f32, shape=n, needs_grad=True)
    total = ti.field(ti.f32, shape=(), needs_grad=True)

    @ti.kernel
    def add():
        for i in x:
            total[None] += x[i]

    x.fill(0.5)
    total[None] = 0.0
    add()
    row = b.row(f"sum, {n:.3g} elements", bytes=4 * n)
    if b.right(row, column, total[None], np.array(0.5 * n)):
        row.seconds[column] = b.time(add, ti.sync)
    total.grad[None] = 3.0
    add.grad()
    row = b.row(f"sum, {n:.3g} elements, gradient", bytes=8 * n)
    if b.right(row, column, [x.grad[0], x.grad[n - 1]], np.array([3.0, 3.0])):
        total.grad[None] = 0.0
        row.seconds[column] = b.time(add.grad, ti.sync)


def heat(b, column, ti):
    n = b.size(8192, 1024)
    u = ti.field(ti.f32, shape=(2, n, n), needs_grad=True)

    @ti.kernel
    def step(t: ti.i32):
        for i, j in ti.ndrange((1, n - 1), (1, n - 1)):
            around = u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1]
            u[t + 1, i, j] = u[t, i, j] + K * (around - 4.0 * u[t, i, j])

    u.fill(1.0)
    u[0, 1, 1] = 2.0
    step(0)
    cells = (n - 2) ** 2
    row = b.row(f"heat, {n} x {n}, a step", bytes=8 * cells)
    if b.right(row, column, [u[1, 1, 1], u[1, 1, 2]], np.array([2 - 4 * K, 1 + K])):
        row.seconds[column] = b.time(lambda: step(0), ti.sync)
    u.grad.fill(0.0)
    u.grad[1, 1, 1] = 1.0
    step.grad(0)
    row = b.row(f"heat, {n} x {n}, its gradient", bytes=16 * cells)
    row.note = "reads and clears one gradient, adds to the other"
    found = [u.grad[0, 1, 1], u.grad[0, 1, 2], u.grad[0, 0, 1]]
    if b.right(row, column, found, np.array([1 - 4 * K, K, K])):
        row.seconds[column] = b.time(lambda: step.grad(0), ti.sync)


def bodies(b, column, ti, words):
    n = b.size(65536, 128)
    x = ti.Vector.field(3, ti.f32, shape=n)
    a = ti.Vector.field(3, ti.f32, shape=n)
    mass = ti.field(ti.f32, shape=n)

    @ti.kernel
    def pull():
        for i in range(n):
            here = x[i]
            total = ti.Vector([0.0, 0.0, 0.0])
            for j in range(n):
                d = x[j] - here
                near = ti.rsqrt(d.dot(d) + SOFT)
                total += mass[j] * near * near * near * d
            a[i] = total

    hx = np.random.default_rng(0).random((n, 3), np.float32)
    x.from_numpy(hx)
    mass.fill(1.0 / n)
    pull()
    d = hx.astype(np.float64) - hx[0]
    exact = (d / n * (((d * d).sum(1) + SOFT) ** -1.5)[:, None]).sum(0)
    row = b.row(f"n-body, {n} bodies{words}", flops=float(PAIR_FLOPS) * n * n)
    if b.right(row, column, a.to_numpy()[0], exact, 1e-3):
        row.seconds[column] = b.time(pull, ti.sync)


def particles(b, column, ti):
    """Steps of 2-D MPM (`mpm.py`), the particles in random order and in that of their cells."""
    n, cells = b.size(1 << 22, 1 << 10), b.size(1024, 64)
    mpm.resize(cells, 2, 2e-5, n)
    x = mpm.scattered(n)
    shares = mpm.shares(x)
    for places, words in ((x, ""), (mpm.by_cell(x), ", by cell")):
        sim = mpm.Simulation(ti, n)
        stepped(b, column, ti, sim, places, words)
        added(b, column, ti, sim, shares, words)


def stepped(b, column, ti, sim, x, words):
    n, v = len(x), (1.0, -1.0)
    means, sums = mpm.together(x, v)
    sim.load(x, np.array(v, np.float32))

    def steps():
        for t in range(mpm.T):
            for kernel in sim.kernels:
                kernel(t)

    def back():
        for t in reversed(range(mpm.T)):
            for kernel in reversed(sim.kernels):
                kernel.grad(t)

    # per particle and step: x v C F in and out; per node: three sums in, two numbers out
    forward = n * mpm.T * 2 * 48 + 3 * 4 * mpm.T * mpm.NG**2
    row = b.row(f"MPM, {n:.3g} particles{words}, a step", bytes=forward / mpm.T)
    row.note = f"{27 * n:.2g} numbers added to nodes, particles in " + (
        "the order of their cells" if words else "random order"
    )
    sim.clear()
    sim.forward()
    found = mpm.over_particles(np.mean, *(f.to_numpy()[mpm.T] for f in (sim.x, sim.v)))
    right = b.right(row, column, found / means, np.ones(3), 1e-3)
    back_row = b.row(
        f"MPM, {n:.3g} particles{words}, gradient of a step", bytes=3 * forward / mpm.T
    )
    # The gradient first: it belongs to one launch of each kernel, however often it is asked for.
    sim.clear_grad()
    sim.measure.grad()
    back()
    found = mpm.over_particles(np.sum, *(f.grad.to_numpy()[0] for f in (sim.x, sim.v)))
    if b.right(back_row, column, found / sums, np.ones(3), 1e-3):
        back_row.seconds[column] = b.time(back, ti.sync) / mpm.T
    if right:
        row.seconds[column] = b.time(steps, ti.sync) / mpm.T


def added(b, column, ti, sim, shares, words):
    """What a step adds to the grid, and nothing else of it: where so many particles have each node."""
    n, at, momentum, mass = sim.n, sim.x, sim.momentum, sim.mass
    per_cell = mpm.INV

    @ti.kernel
    def add_to_grid():
        for p in range(n):
            base = ti.cast(at[0, p] * per_cell - 0.5, ti.i32)
            for i, j in ti.static(ti.ndrange(3, 3)):
                momentum[0, base[0] + i, base[1] + j] += ti.Vector([1.0, 2.0])
                mass[0, base[0] + i, base[1] + j] += 1.0

    row = b.row(f"MPM, {n:.3g} particles{words}, its additions alone", adds=18 * n)
    row.note = "9 nodes, to each a vector of two and a number"
    sim.clear()
    add_to_grid()
    sums = np.concatenate([momentum.to_numpy()[0].ravel(), mass.to_numpy()[0].ravel()])
    exact = np.concatenate([np.outer(shares, [1.0, 2.0]).ravel(), shares.ravel()])
    if b.right(row, column, sums, exact, 0.0):
        row.seconds[column] = b.time(add_to_grid, ti.sync)


def launches(b, column, ti):
    x = ti.field(ti.f32, shape=1)

    @ti.kernel
    def empty():
        for i in x:
            x[i] = 1.0

    row = b.row("launch of a kernel with one lane")
    row.seconds[column] = b.time(empty, ti.sync)
    row = b.row("the same, with a wait after it")

    def both():
        empty()
        ti.sync()

    row.seconds[column] = b.time(both, ti.sync)
    if hasattr(ti, "Tape") and hasattr(ti.Tape, "replay"):
        replayed(b, column, ti)


def replayed(b, column, ti):
    """Steps of a small chain of numbers, run again from a tape."""
    steps = b.size(1000, 10)
    x = ti.field(ti.f32, shape=(steps + 1, 64), needs_grad=True)

    @ti.kernel
    def link(t: ti.i32):
        for i in range(64):
            x[t + 1, i] = 0.5 * x[t, i] + 1.0

    tape = ti.Tape()
    with tape:
        for t in range(steps):
            link(t)
    row = b.row("launch in a tape that is replayed")
    row.seconds[column] = b.time(tape.replay, ti.sync) / steps


def copies(b, column, ti):
    """A large field from and to NumPy, whose memory is pageable; PyTorch's from and to page-locked memory."""
    n = b.size(1 << 28, 1 << 12)
    host = np.arange(n, dtype=np.float32)
    ways = {}
    if column == "PyTorch":
        on_gpu = ti.cuda.is_available()
        sync = ti.cuda.synchronize if on_gpu else lambda: None
        x = ti.empty(n, device="cuda" if on_gpu else "cpu")
        here = ti.empty(n, pin_memory=on_gpu)
        ways["from_numpy"] = lambda: x.copy_(here, non_blocking=True)
        ways["to_numpy"] = lambda: here.copy_(x, non_blocking=True)
    else:
        sync, x = ti.sync, ti.field(ti.f32, shape=n)
        x.from_numpy(host)
        assert np.array_equal(x.to_numpy(), host)

        def read():
            x.to_numpy()

        ways["from_numpy"], ways["to_numpy"] = lambda: x.from_numpy(host), read
    device = x.storage.device if column == "diffsim" else None
    if isinstance(device, Device):
        address = host.ctypes.data

        def alone():
            found = np.empty_like(host)
            device.driver.copy_out(found.ctypes.data, x.address, host.nbytes)

        ways["from_numpy, by the driver alone"] = lambda: device.driver.copy_in(
            x.address, address, host.nbytes
        )
        ways["to_numpy, by the driver alone"] = alone
    for name, way in ways.items():
        row = b.row(f"{name}, {host.nbytes:.3g} bytes")
        row.seconds[column] = b.time(way, sync)
        if column == "diffsim":
            row.note = f"{host.nbytes / row.seconds[column] / 1e9:.3g} GB/s"


CASES = (streams, sums, heat, particles, launches, copies)


def fields_of(b, column, ti):
    """All of them; those that fail are named and left out."""
    for case in CASES:
        attempt(lambda case=case: case(b, column, ti), f"{column}: {case.__name__}")
        b.keep()


# ---- columns


def with_diffsim(b):
    arch = ds.cpu if b.dry and not has_gpu() else ds.cuda
    for fast in (False, True):
        ds.init(arch=arch, fast_math=fast)
        words = ", fast_math" if fast else ""
        attempt(lambda words=words: bodies(b, "diffsim", ds, words), "diffsim: bodies")
        if not fast:
            fields_of(b, "diffsim", ds)


def with_taichi(b):
    ti = importlib.import_module("taichi")
    b.versions["Taichi"] = ".".join(map(str, ti.__version__))
    arch = ti.cpu if b.dry else ti.cuda
    ti.init(arch=arch, log_level=ti.ERROR, fast_math=True, enable_fallback=False)
    fields_of(b, "Taichi", ti)
    attempt(lambda: bodies(b, "Taichi", ti, ", fast_math"), "Taichi: bodies")


def with_warp(b):
    wp = importlib.import_module("warp")
    wp.config.quiet = True
    wp.init()
    wp.set_device("cpu" if b.dry else "cuda:0")
    b.versions["Warp"] = wp.config.version
    for case in warp_rows.CASES:
        attempt(lambda case=case: case(b, wp), f"Warp: {case.__name__}")
        b.keep()


def with_torch(b):
    torch = importlib.import_module("torch")
    b.versions["PyTorch"] = torch.__version__
    device = "cuda" if torch.cuda.is_available() else "cpu"
    n, m = b.size(1 << 28, 1 << 12), b.size(1 << 30, 1 << 12)
    x, y = (torch.ones(n, device=device) for _ in range(2))
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    row = b.row(f"saxpy, {n:.3g} elements")
    row.seconds["PyTorch"] = b.time(lambda: y.add_(x, alpha=0.0), sync)
    z = torch.empty_like(x)
    row = b.row(f"triad, {n:.3g} elements")
    row.seconds["PyTorch"] = b.time(lambda: torch.add(x, y, alpha=3.0, out=z), sync)
    many = torch.ones(m, device=device)
    row = b.row(f"sum, {m:.3g} elements")
    row.seconds["PyTorch"] = b.time(lambda: torch.sum(many), sync)
    copies(b, "PyTorch", torch)


def with_cupy(b):
    cupy = importlib.import_module("cupy")
    b.versions["CuPy"] = cupy.__version__
    sync = cupy.cuda.runtime.deviceSynchronize
    m = b.size(1 << 30, 1 << 12)
    x = cupy.ones(m, cupy.float32)
    row = b.row(f"sum, {m:.3g} elements")
    row.seconds["CuPy"] = b.time(lambda: x.sum(), sync)


COLUMNS = {
    "diffsim": with_diffsim,
    "Taichi": with_taichi,
    "Warp": with_warp,
    "PyTorch": with_torch,
    "CuPy": with_cupy,
}
NEEDS = {"Taichi": "taichi", "Warp": "warp", "PyTorch": "torch", "CuPy": "cupy"}


def by_itself(name, b):
    """A column in a process of its own: whatever happens to it costs no other column."""
    with tempfile.TemporaryDirectory(prefix="diffsim-bench-") as folder:
        kept = Path(folder, "rows.json")
        command = [sys.executable, __file__, "--only", name, "--keep", str(kept)]
        try:
            subprocess.run(command + ["--dry"] * b.dry, check=True, timeout=LONGEST_S)
        finally:
            b.take(kept)


# ---- the ceilings


def has_gpu():
    try:
        importlib.import_module("diffsim.backends.cuda.driver").Driver()
    except Exception:  # no driver, no GPU, or a diffsim without a GPU backend
        return False
    return True


def driver_version():
    """Such as 580.159.04, or nothing where NVIDIA's management library is not there."""
    for name in ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", "nvml.dll"):
        try:
            nvml = ctypes.CDLL(name)
        except OSError:
            continue
        text = ctypes.create_string_buffer(81)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, 81) == 0:
            return text.value.decode()
    return ""


def ceilings(b):
    """(copied bytes per second, f32 operations per second, the machine in words)."""
    if not has_gpu():
        n = 1 << 20
        x, y = np.ones(n), np.zeros(n)
        seconds = b.time(lambda: np.copyto(y, x), lambda: None)
        return 16 * n / seconds, math.nan, "no GPU"
    driver = importlib.import_module("diffsim.backends.cuda.driver").Driver()
    n = b.size(1 << 31, 1 << 20)
    x, y = driver.alloc(n), driver.alloc(n)
    seconds = b.time(lambda: driver.copy(y, x, n), driver.wait)
    driver.free(x)
    driver.free(y)
    clock = 1e3 * driver.attribute(CLOCK_RATE)
    flops = 2 * 128 * driver.processors * clock
    words = [driver.name, f"{driver.processors} multiprocessors", f"{clock / 1e9:.2f} GHz"]
    if exact := driver_version():
        words.append(f"driver {exact}")
    words.append(f"CUDA {driver.version // 1000}.{driver.version % 1000 // 10}")
    return 2 * n / seconds, flops, ", ".join(words)


# ---- the table


def shown(seconds):
    if math.isnan(seconds):
        return "WRONG"
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            break
    return f"{seconds * scale:.3g} {unit}"


def table(b, ceiling, peak, machine):
    columns = [c for c in COLUMNS if any(c in r.seconds for r in b.rows.values())]
    lines = [
        f"{machine}; {datetime.datetime.now(datetime.UTC):%Y-%m-%d}.",
        *[", ".join(f"{name} {version}" for name, version in b.versions.items()) + "."]
        * bool(b.versions),
        f"Copy on the device: {ceiling / 1e12:.3f} TB/s. f32 peak: {peak / 1e12:.1f} TFLOP/s.",
        "",
        "| what | counted | predicted | " + " | ".join(columns) + " | of the ceiling | |",
        "|---|--:|--:|" + "--:|" * (len(columns) + 1) + "---|",
    ]
    for r in b.rows.values():
        bound = max(r.bytes / ceiling, r.flops / peak if r.flops else 0.0, r.adds / L2_RATE)
        counted = f"{r.bytes / 1e9:.3g} GB" if r.bytes else ""
        counted = f"{r.flops / 1e9:.3g} GFLOP" if r.flops else counted
        counted = f"{r.adds:.3g} additions" if r.adds else counted
        times = [shown(r.seconds[c]) if c in r.seconds else "" for c in columns]
        ours = r.seconds.get("diffsim")
        part = f"{100 * bound / ours:.0f} %" if ours and bound > 0 else ""
        predicted = shown(bound) if bound > 0 else ""
        lines.append(f"| {' | '.join([r.name, counted, predicted, *times, part, r.note])} |")
    return "\n".join(lines) + "\n"


# ---- what the kernels are made of


def registers():
    """What ptxas says of the kernels' code, as a table; needs ptxas, but no GPU."""
    kind = importlib.import_module("diffsim.runtime.kernels.kernel").Kernel
    kernels, specialize = {}, kind.specialize

    def noting(kernel, *args, **kwargs):
        kernels[kernel.__name__] = kernel
        return specialize(kernel, *args, **kwargs)

    kind.specialize = noting
    b = Bench(dry=True)
    b.time = lambda run, sync: run() or 1.0
    lines = [
        "# Registers of the GPU benchmarks",
        "",
        "Made by `python benchmarks/gpu/run.py --ptx`: what ptxas says of code for compute capability 9.0,",
        "and counts of memory instructions in the PTX (an instruction may load or add up to four numbers).",
        "",
        "| kernel | launch | registers | spills [B] | loads | read-only | stores | atomics |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for fast in (False, True):
        ds.init(arch=ds.cpu, fast_math=fast)
        kernels.clear()
        for case in [] if fast else CASES:
            case(b, "", ds)
        bodies(b, "", ds, "")
        for kernel in kernels.values():
            for made in (kernel, kernel.grad):
                lines += rows_of(made.ptx(sm=90), ", fast_math" if fast else "")
    return "\n".join(lines) + "\n"


def rows_of(ptx, words):
    ptxas = importlib.import_module("diffsim.backends.cuda.ptx")
    report = ptxas.assemble(ptx, 90)
    for part in report.split("Compiling entry function '")[1:]:
        name = part[: part.index("'")]
        code = ptx[ptx.index(f".entry {name}(") :]
        code = code[: code.index("\n}")]
        used = re.search(r"Used (\d+) registers", part).group(1)
        spills = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        kernel, _, launch = name.rpartition("_")
        loads, constant = code.count("ld.global"), code.count("ld.global.nc")
        atomics = len(re.findall(r"\b(?:atom|red)\.(?:relaxed|global|shared)", code))
        numbers = [used, spills, loads, constant, code.count("st.global"), atomics]
        yield f"| {kernel}{words} | {launch} | {' | '.join(map(str, numbers))} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--ptx", action="store_true", help="write benchmarks/gpu/ptx.md instead")
    parser.add_argument("--tune", action="store_true", help="the heat step's variants instead")
    parser.add_argument("--only", default="", help="one of " + ", ".join(COLUMNS))
    parser.add_argument("--keep", type=Path, help="write the one column's rows to this file")
    given = parser.parse_args()
    if given.ptx:
        text = registers()
        print(text)
        write_text(HERE / "ptx.md", text)
        return 0
    b = Bench(dry=given.dry, kept=given.keep)
    if given.keep:
        attempt(lambda: COLUMNS[given.only](b), given.only)
        b.keep()
        return len(problems) > 0
    found = ceilings(b)
    if given.tune:
        tune.tune(Bench(dry=given.dry or not has_gpu(), run_s=0.05), *found[::2])
        return len(problems) > 0
    for name, run in COLUMNS.items():
        there = name not in NEEDS or importlib.util.find_spec(NEEDS[name])
        if there and given.only in ("", name):
            run = functools.partial(by_itself, name) if name in NEEDS else run
            attempt(functools.partial(run, b), name)
    text = table(b, *found)
    print(text)
    if given.write:
        head = f"# Measurements on a GPU\n\n{__doc__.split('.')[0]}.\n"
        head += (
            "Made by `python benchmarks/gpu/run.py --write`, which says what is timed and how.\n\n"
        )
        write_text(HERE / "results.md", head + text)
    return len(problems) > 0


if __name__ == "__main__":
    sys.exit(main())
