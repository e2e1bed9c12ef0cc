"""How long first calls take: programs of 10 to 200 lines, with an empty cache and with a full one.

    python benchmarks/compiling.py                      # the table, on standard output
    python benchmarks/compiling.py --write              # keep it in compiling.md
    python benchmarks/compiling.py --peer python3       # Taichi beside it, of that Python

Each program runs in a process of its own, with one thread: its first forward pass and its first gradient with
an empty cache, then both in a new process. The times are of the processor, the least of three turns, without
the import. A program is a function of the module `ti`, as users write it for Taichi.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TURNS = 3
ABOUT = """# First calls

Written by `compiling.py --write`: processor time of first calls in a new process, without the import,
the least of three. AMD EPYC, AVX-512, a machine with nothing else to do.
"""


def tiny(ti):
    """Ten lines: a sum of squares."""
    x = ti.field(float, shape=16, needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def squares(a: float):
        for i in x:
            loss[None] += a * x[i] * x[i]

    return lambda: squares(1.5), loss


def matrices(ti, count=24):
    """A chain of 24 products of 3 x 3 matrices."""
    m = ti.Matrix.field(3, 3, float, shape=(64, 2), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def chain():
        for i in range(64):
            total = m[i, 0]
            for k in ti.static(range(count)):
                total = total @ (m[i, k % 2] + 0.1 * k * m[i, 1 - k % 2].transpose())
            loss[None] += total.trace()

    return chain, loss


def layer(ti, n=16):
    """A layer of 16 x 16 weights, unrolled."""
    x = ti.field(float, shape=(256, n), needs_grad=True)
    w = ti.field(float, shape=(n, n), needs_grad=True)
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def run():
        for i in range(256):
            for j in ti.static(range(n)):
                total = 0.0
                for k in ti.static(range(n)):
                    total += w[j, k] * x[i, k]
                loss[None] += ti.tanh(total) / 256

    return run, loss


def mpm(ti):  # noqa: C901, PLR0915 - one program, as users write it
    """MLS-MPM in three dimensions, with jelly, snow and water: 3 x 3 svd, 27 nodes."""
    n_particles, n_grid, steps = 512, 16, 2
    dx, inv_dx, dt = 1 / n_grid, float(n_grid), 1e-4
    p_vol, p_rho = (dx * 0.5) ** 3, 1.0
    p_mass = p_vol * p_rho
    mu_0, lambda_0 = 400.0, 280.0
    water, jelly, snow = 0, 1, 2

    def state(shape):
        return dict(needs_grad=True, shape=(steps + 1, *shape))

    x = ti.Vector.field(3, float, **state((n_particles,)))
    v = ti.Vector.field(3, float, **state((n_particles,)))
    C = ti.Matrix.field(3, 3, float, **state((n_particles,)))
    F = ti.Matrix.field(3, 3, float, **state((n_particles,)))
    Jp = ti.field(float, **state((n_particles,)))
    material = ti.field(int, shape=n_particles)
    grid_v_in = ti.Vector.field(3, float, **state((n_grid,) * 3))
    grid_v_out = ti.Vector.field(3, float, **state((n_grid,) * 3))
    grid_m = ti.field(float, **state((n_grid,) * 3))
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def initialize():
        for p in range(n_particles):
            x[0, p] = [0.3 + 0.4 * ti.random(), 0.3 + 0.4 * ti.random(), 0.3 + 0.4 * ti.random()]
            v[0, p] = [0.0, -1.0, 0.3]
            F[0, p] = ti.Matrix.identity(float, 3)
            Jp[0, p] = 1.0
            material[p] = p % 3

    @ti.func
    def kirchhoff_fixed_corotated(new_F, R, J, mu, la):
        return 2 * mu * (new_F - R) @ new_F.transpose() + ti.Matrix.identity(float, 3) * la * J * (
            J - 1
        )

    @ti.kernel
    def p2g(s: int):
        for p in range(n_particles):
            base = (x[s, p] * inv_dx - 0.5).cast(int)
            fx = x[s, p] * inv_dx - base.cast(float)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_F = (ti.Matrix.identity(float, 3) + dt * C[s, p]) @ F[s, p]
            h = ti.max(0.1, ti.min(5.0, ti.exp(10 * (1.0 - Jp[s, p]))))
            if material[p] == jelly:
                h = 0.3
            mu, la = mu_0 * h, lambda_0 * h
            if material[p] == water:
                mu = 0.0
            U, sig, V = ti.svd(new_F)
            J = 1.0
            plastic = Jp[s, p]
            for d in ti.static(range(3)):
                new_sig = sig[d, d]
                if material[p] == snow:
                    new_sig = ti.min(ti.max(sig[d, d], 1 - 2.5e-2), 1 + 4.5e-3)
                plastic *= sig[d, d] / new_sig
                sig[d, d] = new_sig
                J *= new_sig
            Jp[s + 1, p] = plastic
            if material[p] == water:
                new_F = ti.Matrix.identity(float, 3) * J ** (1.0 / 3.0)
            elif material[p] == snow:
                new_F = U @ sig @ V.transpose()
            F[s + 1, p] = new_F
            stress = kirchhoff_fixed_corotated(new_F, U @ V.transpose(), J, mu, la)
            affine = (-dt * p_vol * 4 * inv_dx**2) * stress + p_mass * C[s, p]
            for i, j, k in ti.static(ti.ndrange(3, 3, 3)):
                offset = ti.Vector([i, j, k])
                dpos = (offset.cast(float) - fx) * dx
                weight = w[i][0] * w[j][1] * w[k][2]
                grid_v_in[s, base + offset] += weight * (p_mass * v[s, p] + affine @ dpos)
                grid_m[s, base + offset] += weight * p_mass

    @ti.kernel
    def grid_op(s: int):
        for i, j, k in ti.ndrange(n_grid, n_grid, n_grid):
            v_out = grid_v_in[s, i, j, k] / (grid_m[s, i, j, k] + 1e-10)
            v_out[1] -= dt * 9.8
            if i < 3 and v_out[0] < 0:
                v_out[0] = 0
            if i > n_grid - 3 and v_out[0] > 0:
                v_out[0] = 0
            if j < 3 and v_out[1] < 0:
                v_out[1] = 0
            if j > n_grid - 3 and v_out[1] > 0:
                v_out[1] = 0
            if k < 3 and v_out[2] < 0:
                v_out[2] = 0
            if k > n_grid - 3 and v_out[2] > 0:
                v_out[2] = 0
            grid_v_out[s, i, j, k] = v_out

    @ti.kernel
    def g2p(s: int):
        for p in range(n_particles):
            base = (x[s, p] * inv_dx - 0.5).cast(int)
            fx = x[s, p] * inv_dx - base.cast(float)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_v = ti.Vector.zero(float, 3)
            new_C = ti.Matrix.zero(float, 3, 3)
            for i, j, k in ti.static(ti.ndrange(3, 3, 3)):
                dpos = ti.Vector([i, j, k]).cast(float) - fx
                g_v = grid_v_out[s, base + ti.Vector([i, j, k])]
                weight = w[i][0] * w[j][1] * w[k][2]
                new_v += weight * g_v
                new_C += 4 * inv_dx * weight * g_v.outer_product(dpos)
            v[s + 1, p] = new_v
            x[s + 1, p] = x[s, p] + dt * new_v
            C[s + 1, p] = new_C

    @ti.kernel
    def height():
        for p in range(n_particles):
            loss[None] += x[steps, p][1] / n_particles

    def run():
        for s in range(steps):
            p2g(s)
            grid_op(s)
            g2p(s)
        height()

    initialize()
    return run, loss


def mpm_plane(ti):  # noqa: C901, PLR0915 - one program, as users write it
    """MLS-MPM in the plane, with jelly, snow and water: 2 x 2 svd, 9 nodes."""
    n_particles, n_grid, steps = 512, 32, 2
    dx, inv_dx, dt = 1 / n_grid, float(n_grid), 1e-4
    p_vol, p_rho = (dx * 0.5) ** 2, 1.0
    p_mass = p_vol * p_rho
    mu_0, lambda_0 = 400.0, 280.0
    water, jelly, snow = 0, 1, 2

    def state(shape):
        return dict(needs_grad=True, shape=(steps + 1, *shape))

    x = ti.Vector.field(2, float, **state((n_particles,)))
    v = ti.Vector.field(2, float, **state((n_particles,)))
    C = ti.Matrix.field(2, 2, float, **state((n_particles,)))
    F = ti.Matrix.field(2, 2, float, **state((n_particles,)))
    Jp = ti.field(float, **state((n_particles,)))
    material = ti.field(int, shape=n_particles)
    grid_v_in = ti.Vector.field(2, float, **state((n_grid, n_grid)))
    grid_v_out = ti.Vector.field(2, float, **state((n_grid, n_grid)))
    grid_m = ti.field(float, **state((n_grid, n_grid)))
    loss = ti.field(float, shape=(), needs_grad=True)

    @ti.kernel
    def initialize():
        for p in range(n_particles):
            x[0, p] = [0.3 + 0.4 * ti.random(), 0.3 + 0.4 * ti.random()]
            v[0, p] = [0.0, -1.0]
            F[0, p] = ti.Matrix([[1.0, 0.0], [0.0, 1.0]])
            Jp[0, p] = 1.0
            material[p] = p % 3

    @ti.kernel
    def p2g(s: int):
        for p in range(n_particles):
            base = (x[s, p] * inv_dx - 0.5).cast(int)
            fx = x[s, p] * inv_dx - base.cast(float)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_F = (ti.Matrix.identity(float, 2) + dt * C[s, p]) @ F[s, p]
            h = ti.max(0.1, ti.min(5.0, ti.exp(10 * (1.0 - Jp[s, p]))))
            if material[p] == jelly:
                h = 0.3
            mu, la = mu_0 * h, lambda_0 * h
            if material[p] == water:
                mu = 0.0
            U, sig, V = ti.svd(new_F)
            J = 1.0
            plastic = Jp[s, p]
            for d in ti.static(range(2)):
                new_sig = sig[d, d]
                if material[p] == snow:
                    new_sig = ti.min(ti.max(sig[d, d], 1 - 2.5e-2), 1 + 4.5e-3)
                plastic *= sig[d, d] / new_sig
                sig[d, d] = new_sig
                J *= new_sig
            Jp[s + 1, p] = plastic
            if material[p] == water:
                new_F = ti.Matrix.identity(float, 2) * ti.sqrt(J)
            elif material[p] == snow:
                new_F = U @ sig @ V.transpose()
            F[s + 1, p] = new_F
            stress = 2 * mu * (new_F - U @ V.transpose()) @ new_F.transpose()
            stress += ti.Matrix.identity(float, 2) * la * J * (J - 1)
            affine = (-dt * p_vol * 4 * inv_dx**2) * stress + p_mass * C[s, p]
            for i, j in ti.static(ti.ndrange(3, 3)):
                offset = ti.Vector([i, j])
                dpos = (offset.cast(float) - fx) * dx
                weight = w[i][0] * w[j][1]
                grid_v_in[s, base + offset] += weight * (p_mass * v[s, p] + affine @ dpos)
                grid_m[s, base + offset] += weight * p_mass

    @ti.kernel
    def grid_op(s: int):
        for i, j in ti.ndrange(n_grid, n_grid):
            if grid_m[s, i, j] > 0:
                v_out = grid_v_in[s, i, j] / grid_m[s, i, j]
                v_out[1] -= dt * 9.8
                if i < 3 and v_out[0] < 0:
                    v_out[0] = 0
                if i > n_grid - 3 and v_out[0] > 0:
                    v_out[0] = 0
                if j < 3 and v_out[1] < 0:
                    v_out[1] = 0
                if j > n_grid - 3 and v_out[1] > 0:
                    v_out[1] = 0
                grid_v_out[s, i, j] = v_out

    @ti.kernel
    def g2p(s: int):
        for p in range(n_particles):
            base = (x[s, p] * inv_dx - 0.5).cast(int)
            fx = x[s, p] * inv_dx - base.cast(float)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
            new_v = ti.Vector.zero(float, 2)
            new_C = ti.Matrix.zero(float, 2, 2)
            for i, j in ti.static(ti.ndrange(3, 3)):
                dpos = ti.Vector([i, j]).cast(float) - fx
                g_v = grid_v_out[s, base + ti.Vector([i, j])]
                weight = w[i][0] * w[j][1]
                new_v += weight * g_v
                new_C += 4 * inv_dx * weight * g_v.outer_product(dpos)
            v[s + 1, p] = new_v
            x[s + 1, p] = x[s, p] + dt * new_v
            C[s + 1, p] = new_C

    @ti.kernel
    def height():
        for p in range(n_particles):
            loss[None] += x[steps, p][1] / n_particles

    def run():
        for s in range(steps):
            p2g(s)
            grid_op(s)
            g2p(s)
        height()

    initialize()
    return run, loss


PROGRAMS: dict[str, Callable] = dict(
    tiny=tiny, matrices=matrices, layer=layer, mpm_plane=mpm_plane, mpm=mpm
)


def measure(program: str, module: str, folder: str) -> None:
    """Print what the first calls of one program take in this process [s]."""
    if module == "diffsim":
        sys.path.insert(0, str(ROOT))
        import diffsim as ti
    else:
        import taichi as ti
    options = dict(cpu_max_num_threads=1, offline_cache=True, offline_cache_file_path=folder)
    ti.init(arch=ti.cpu, **options)
    begin = time.process_time()
    run, loss = PROGRAMS[program](ti)
    run()
    forward = time.process_time()
    with ti.ad.Tape(loss):
        run()
    print(json.dumps(dict(forward=forward - begin, gradient=time.process_time() - forward)))


def ask(python: str, program: str, module: str, folder: str) -> dict[str, float]:
    """Run `measure` in a new process."""
    command = [python, __file__, "--only", program, "--module", module, "--folder", folder]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(told.stdout.splitlines()[-1])


def rows(peer: str) -> list[str]:
    """Measure all programs and return the table's lines."""
    frameworks = [("diffsim", sys.executable)] + [("taichi", peer)] * bool(peer)
    found = []
    for name, program in PROGRAMS.items():
        for module, python in frameworks:
            least: dict[str, float] = {}
            for _ in range(TURNS):
                with tempfile.TemporaryDirectory() as folder:
                    for cache in ("empty", "full"):
                        for part, seconds in ask(python, name, module, folder).items():
                            key = f"{cache} {part}"
                            least[key] = min(seconds, least.get(key, seconds))
            figures = " | ".join(f"{1000 * s:.0f}" for s in least.values())
            about = program.__doc__.rstrip(".")
            found.append(f"| `{name}` | {about} | {module} | {figures} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PROGRAMS)
    parser.add_argument("--module", default="diffsim", choices=["diffsim", "taichi"])
    parser.add_argument("--folder", default="")
    parser.add_argument("--peer", default="", help="Python with Taichi")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.only:
        measure(args.only, args.module, args.folder)
        return
    head = "| program | what it is | module | forward pass [ms] | gradient | full cache: forward | gradient |"
    table = "\n".join([head, "| --- | --- | --- | --- | --- | --- | --- |", *rows(args.peer)])
    print(table)
    if args.write:
        from diffsim.runtime.files import write_text  # Taichi's Python has no diffsim

        write_text(Path(__file__).with_suffix(".md"), f"{ABOUT}\n{table}\n")


if __name__ == "__main__":
    main()
