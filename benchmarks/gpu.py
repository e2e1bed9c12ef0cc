"""Measurements on one NVIDIA GPU: bytes or operations counted first, then what is reached of the ceiling.

    python benchmarks/gpu.py            print the table
    python benchmarks/gpu.py --write    and write it to benchmarks/gpu.md
    python benchmarks/gpu.py --ptx      registers and spills to benchmarks/ptx.md; needs ptxas, but no GPU
    python benchmarks/gpu.py --dry      tiny sizes, without a GPU on the CPU: to see that it runs

Needs diffsim and NumPy. PyTorch, CuPy and Taichi get a column where they can be imported. The ceiling for
bytes is a copy on the device by the driver, measured in the same run (bytes read and written); that for
operations is two f32 operations a clock in each of 128 units of every multiprocessor. Times are of many
launches between two waits, divided by their number: the least of five such runs.
"""

import argparse
import datetime
import importlib
import importlib.util
import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import mpm
import numpy as np

import diffsim as ds

HERE = Path(__file__).resolve().parent
RUNS, RUN_S = 5, 0.15  # runs, and the least length of one [s]
K = 0.2  # dt times diffusivity over dx^2 [1]
SOFT = 1e-4  # softening, squared [m^2]
PAIR_FLOPS = (
    20  # 3 differences, 3 products and 4 sums of squares, 1 root, 3 products, 3 x 2 to add up
)
CLOCK_RATE = 13  # CUdevice_attribute: peak clock [kHz]


@dataclass
class Row:
    """One line of the table.

    Attributes:
        name: what was done.
        bytes: that have to be read and written at least.
        flops: f32 operations, where they are what counts.
        seconds: one time for each column.
        note: what the number does not say.
    """

    name: str
    bytes: float = 0.0
    flops: float = 0.0
    seconds: dict = field(default_factory=dict)
    note: str = ""


class Bench:
    """The rows, and how to time things."""

    def __init__(self, *, dry):
        self.dry = dry
        self.rows = {}

    def size(self, full, dry):
        return dry if self.dry else full

    def row(self, name, **counts):
        return self.rows.setdefault(name, Row(name, **counts))

    def time(self, run, sync, *, once=False):
        """Seconds of one call."""
        run()
        sync()
        calls = 1
        while not once:
            start = time.perf_counter()
            for _ in range(calls):
                run()
            sync()
            if (spent := time.perf_counter() - start) > (0.002 if self.dry else RUN_S):
                break
            calls = max(calls + 1, min(calls * 8, math.ceil(1.2 * calls * RUN_S / spent)))
        best = math.inf
        for _ in range(RUNS):
            start = time.perf_counter()
            for _ in range(calls):
                run()
            sync()
            best = min(best, (time.perf_counter() - start) / calls)
        return best


# ---- kernels: in the language that diffsim and Taichi share


def streams(b, column, ti):
    n = b.size(1 << 28, 1 << 12)
    x, y, z = (ti.field(ti.f32, shape=n) for _ in range(3))

    @ti.kernel
    def saxpy(a: ti.f32):
        for i in x:
            y[i] = a * x[i] + y[i]

    @ti.kernel
    def triad(a: ti.f32):
        for i in x:
            z[i] = x[i] + a * y[i]

    x.fill(1.0)
    y.fill(2.0)
    triad(3.0)
    assert z[n - 1] == 7.0
    row = b.row(f"saxpy, {n:.3g} elements", bytes=12 * n)
    row.seconds[column] = b.time(lambda: saxpy(0.0), ti.sync)
    row = b.row(f"triad, {n:.3g} elements", bytes=12 * n)
    row.seconds[column] = b.time(lambda: triad(3.0), ti.sync)


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
    assert math.isclose(total[None], 0.5 * n, rel_tol=1e-4)
    total.grad[None] = 3.0
    add.grad()
    assert x.grad[n - 1] == 3.0
    row = b.row(f"sum, {n:.3g} elements", bytes=4 * n)
    row.seconds[column] = b.time(add, ti.sync)
    row = b.row(f"sum, {n:.3g} elements, gradient", bytes=8 * n)
    total.grad[None] = 0.0
    row.seconds[column] = b.time(add.grad, ti.sync)


def heat(b, column, ti):
    n = b.size(8192, 64)
    u = ti.field(ti.f32, shape=(2, n, n), needs_grad=True)

    @ti.kernel
    def step(t: ti.i32):
        for i, j in ti.ndrange((1, n - 1), (1, n - 1)):
            around = u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1]
            u[t + 1, i, j] = u[t, i, j] + K * (around - 4.0 * u[t, i, j])

    u.fill(1.0)
    u[0, 1, 1] = 2.0
    step(0)
    assert abs(u[1, 1, 1] - 1.2) < 1e-6
    cells = (n - 2) ** 2
    row = b.row(f"heat, {n} x {n}, a step", bytes=8 * cells)
    row.seconds[column] = b.time(lambda: step(0), ti.sync)
    u.grad.fill(0.0)
    u.grad[1, 1, 1] = 1.0
    step.grad(0)
    assert abs(u.grad[0, 1, 2] - K) < 1e-6
    row = b.row(f"heat, {n} x {n}, its gradient", bytes=16 * cells)
    row.note = "reads and clears one gradient, adds to the other"
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
    assert np.allclose(a.to_numpy()[0], exact, rtol=1e-3, atol=1e-4)
    row = b.row(f"n-body, {n} bodies{words}", flops=float(PAIR_FLOPS) * n * n)
    row.seconds[column] = b.time(pull, ti.sync)


def particles(b, column, ti):
    """Steps of 2-D MPM (`mpm.py`), the particles in random order."""
    n, cells = b.size(1 << 22, 1 << 10), b.size(1024, 64)
    mpm.NG, mpm.T, mpm.DX, mpm.INV, mpm.DT = cells, 2, 1 / cells, float(cells), 2e-5
    mpm.VOLUME = mpm.MASS = (0.6 / mpm.DX) ** 2 / n * mpm.DX**2
    mpm.STRESS = -mpm.DT * mpm.VOLUME * 4 * mpm.INV**2
    x = (np.random.default_rng(1).random((n, 2)) * 0.6 + 0.2).astype(np.float32)
    v = np.zeros_like(x)
    sim = mpm.Simulation(ti, n)
    sim.load(x, v)
    sim.clear()
    sim.simulate()
    ti.sync()
    # per particle and step: x v C F in and out; per node of its nine: three sums in, two numbers out
    forward = n * mpm.T * 2 * 48 + 3 * 4 * mpm.T * cells * cells
    row = b.row(f"MPM, {n:.3g} particles, a step", bytes=forward / mpm.T)
    row.note = f"{27 * n:.2g} atomic additions, particles in random order"

    def steps():
        for t in range(mpm.T):
            for kernel in sim.kernels:
                kernel(t)

    row.seconds[column] = b.time(steps, ti.sync) / mpm.T
    sim.clear()
    sim.simulate()

    def back():
        for t in reversed(range(mpm.T)):
            for kernel in reversed(sim.kernels):
                kernel.grad(t)

    row = b.row(f"MPM, {n:.3g} particles, gradient of a step", bytes=3 * forward / mpm.T)
    row.seconds[column] = b.time(back, ti.sync) / mpm.T


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
    def step(t: ti.i32):
        for i in range(64):
            x[t + 1, i] = 0.5 * x[t, i] + 1.0

    tape = ti.Tape()
    with tape:
        for t in range(steps):
            step(t)
    row = b.row("launch in a tape that is replayed")
    row.seconds[column] = b.time(tape.replay, ti.sync) / steps


def fields_of(b, column, ti):
    """All of them; those that fail are named and left out."""
    cases = [streams, sums, heat, particles, launches]
    for case in cases:
        attempt(lambda case=case: case(b, column, ti), f"{column}: {case.__name__}")


def attempt(run, name):
    try:
        run()
    except Exception as problem:  # one case must not cost the others
        print(f"{name} failed: {type(problem).__name__}: {problem}", flush=True)


# ---- columns


def with_diffsim(b):
    arch = ds.cpu if b.dry and not has_gpu() else ds.cuda
    for fast in (False, True):
        ds.init(arch=arch, fast_math=fast, kernel_simplicity="relaxed")
        words = ", fast_math" if fast else ""
        attempt(lambda words=words: bodies(b, "diffsim", ds, words), "diffsim: bodies")
        if not fast:
            fields_of(b, "diffsim", ds)


def with_taichi(b):
    ti = importlib.import_module("taichi")
    ti.init(arch=ti.cpu if b.dry else ti.cuda, log_level=ti.ERROR, fast_math=True)
    fields_of(b, "Taichi", ti)
    attempt(lambda: bodies(b, "Taichi", ti, ", fast_math"), "Taichi: bodies")


def with_torch(b):
    torch = importlib.import_module("torch")
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


def with_cupy(b):
    cupy = importlib.import_module("cupy")
    sync = cupy.cuda.runtime.deviceSynchronize
    m = b.size(1 << 30, 1 << 12)
    x = cupy.ones(m, cupy.float32)
    row = b.row(f"sum, {m:.3g} elements")
    row.seconds["CuPy"] = b.time(lambda: x.sum(), sync)


COLUMNS = {
    "diffsim": with_diffsim,
    "Taichi": with_taichi,
    "PyTorch": with_torch,
    "CuPy": with_cupy,
}
NEEDS = {"Taichi": "taichi", "PyTorch": "torch", "CuPy": "cupy"}


# ---- the ceilings


def has_gpu():
    try:
        importlib.import_module("diffsim.backends.driver").Driver()
    except Exception:  # no driver, no GPU, or a diffsim without a GPU backend
        return False
    return True


def ceilings(b):
    """(copied bytes per second, f32 operations per second, the machine in words)."""
    if not has_gpu():
        n = 1 << 20
        x, y = np.ones(n), np.zeros(n)
        seconds = b.time(lambda: np.copyto(y, x), lambda: None)
        return 16 * n / seconds, math.nan, "no GPU"
    driver = importlib.import_module("diffsim.backends.driver").Driver()
    n = b.size(1 << 31, 1 << 20)
    x, y = driver.alloc(n), driver.alloc(n)
    seconds = b.time(lambda: driver.copy(y, x, n), driver.wait)
    driver.free(x)
    driver.free(y)
    clock = 1e3 * driver.attribute(CLOCK_RATE)
    flops = 2 * 128 * driver.processors * clock
    version = f"{driver.version // 1000}.{driver.version % 1000 // 10}"
    words = (
        f"{driver.name}, {driver.processors} multiprocessors, {clock / 1e9:.2f} GHz, CUDA {version}"
    )
    return 2 * n / seconds, flops, words


# ---- the table


def shown(seconds):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            break
    return f"{seconds * scale:.3g} {unit}"


def table(b, ceiling, peak, machine):
    columns = [c for c in COLUMNS if any(c in r.seconds for r in b.rows.values())]
    lines = [
        f"{machine}; {datetime.datetime.now(datetime.UTC):%Y-%m-%d}.",
        f"Copy on the device: {ceiling / 1e12:.3f} TB/s. f32 peak: {peak / 1e12:.1f} TFLOP/s.",
        "",
        "| what | counted | predicted | " + " | ".join(columns) + " | of the ceiling | |",
        "|---|--:|--:|" + "--:|" * (len(columns) + 1) + "---|",
    ]
    for r in b.rows.values():
        bound = max(r.bytes / ceiling, r.flops / peak if r.flops else 0.0)
        counted = f"{r.bytes / 1e9:.3g} GB" if r.bytes else ""
        counted = f"{r.flops / 1e9:.3g} GFLOP" if r.flops else counted
        times = [shown(r.seconds[c]) if c in r.seconds else "" for c in columns]
        ours = r.seconds.get("diffsim")
        part = f"{100 * bound / ours:.0f} %" if ours and bound else ""
        predicted = shown(bound) if bound else ""
        lines.append(f"| {' | '.join([r.name, counted, predicted, *times, part, r.note])} |")
    return "\n".join(lines) + "\n"


# ---- what the kernels are made of


def registers():
    """What ptxas says of the kernels' code, as a table; needs ptxas, but no GPU."""
    kind = importlib.import_module("diffsim.runtime.kernel").Kernel
    kernels, specialize = {}, kind.specialize

    def noting(kernel, args, kwargs):
        kernels[kernel.__name__] = kernel
        return specialize(kernel, args, kwargs)

    kind.specialize = noting
    b = Bench(dry=True)
    b.time = lambda run, sync: run() or 1.0
    lines = [
        "# Registers of the GPU benchmarks",
        "",
        "Made by `python benchmarks/gpu.py --ptx`: what ptxas says of the code for compute capability 9.0,",
        "and counts of memory instructions in the PTX (an instruction may load or add up to four numbers).",
        "",
        "| kernel | launch | registers | spills [B] | loads | read-only | stores | atomics |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for fast in (False, True):
        ds.init(arch=ds.cpu, fast_math=fast, kernel_simplicity="relaxed")
        kernels.clear()
        bodies(b, "", ds, "")
        if not fast:
            fields_of(b, "", ds)
        for kernel in kernels.values():
            for made in (kernel, kernel.grad):
                lines += rows_of(made.ptx(sm=90), ", fast_math" if fast else "")
    return "\n".join(lines) + "\n"


def rows_of(ptx, words):
    ptxas = importlib.import_module("diffsim.backends.ptx")
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
    parser.add_argument("--ptx", action="store_true", help="write benchmarks/ptx.md instead")
    parser.add_argument("--only", default="", help="one of " + ", ".join(COLUMNS))
    given = parser.parse_args()
    if given.ptx:
        text = registers()
        print(text)
        (HERE / "ptx.md").write_text(text, encoding="utf-8")
        return
    b = Bench(dry=given.dry)
    found = ceilings(b)
    for name, run in COLUMNS.items():
        there = name not in NEEDS or importlib.util.find_spec(NEEDS[name])
        if there and given.only in ("", name):
            attempt(lambda run=run: run(b), name)
    text = table(b, *found)
    print(text)
    if given.write:
        head = f"# Measurements on a GPU\n\n{__doc__.split('.')[0]}.\n"
        head += "Made by `python benchmarks/gpu.py --write`, which says what is timed and how.\n\n"
        (HERE / "gpu.md").write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    main()
