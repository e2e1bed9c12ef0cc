"""One original of the gallery under Taichi 1.7, for `gallery.py`; the peer's Python runs this file.

    ../peers/bin/python benchmarks/gallery_original.py billiards ../difftaichi/examples

The originals were written for Taichi 0.5 to 0.7. `REPAIRS` brings them to 1.7 as they are loaded: names that
have changed since, one core in place of a GPU, no window. Nothing of what they compute is changed. An
iteration is what their `main` does for one gradient: the run with its backward pass, and what has to be
cleared before. Prints a line of JSON: the loss, and the processor time of each iteration [s].
"""

import json
import math
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import taichi as ti

REPAIRS = [
    (r"ti\.init\([^)]*\)", "ti.init(default_fp=real, arch=ti.cpu, cpu_max_num_threads=1)"),
    (r"ti\.(?:var|field)\(dt=", "ti.field(dtype="),
    (r"ti\.var\(", "ti.field("),
    (r"ti\.(Vector|Matrix)\(([^()]*), dt=", r"ti.\1.field(\2, dtype="),
    (r"@ti\.layout\n", ""),
    (r"(\w+\[[^\]]*\])\.atomic_add\(", r"ti.atomic_add(\1, "),
    (
        r"dense\(ti\.l, max_steps\)\.dense\(ti\.k,",
        "dense(ti.i, max_steps).dense(ti.j,",
    ),  # order of axes
    (r"dense\(ti\.l, max_steps\)\.dense\(ti\.i,", "dense(ti.i, max_steps).dense(ti.j,"),
    (
        r"dense\(ti\.l, steps \* p_dims\)\.dense\(ti\.ij,",
        "dense(ti.i, steps * p_dims).dense(ti.jk,",
    ),
    (r"block = ti\.root\.dense\(ti\.l,", "block = ti.root.dense(ti.i,"),
    (r"block\.dense\(ti\.ij,", "block.dense(ti.jk,"),
    (r"@ti\.complex_kernel_grad", "@ti.ad.grad_for"),
    (r"@ti\.complex_kernel", "@ti.ad.grad_replaced"),
    (r"ti\.Tape\(", "ti.ad.Tape("),
    (r"ti\.clear_all_gradients", "ti.ad.clear_all_gradients"),
    (r"ti\.ext_arr\(\)", "ti.types.ndarray()"),
    (r"\(v_out\.transpose\(\) @ normal\)\(0\)", "v_out.dot(normal)"),
    (r"(\w|\])\((\d)\)\.val", r"\1[\2]"),
    (r"\b(w\[\w\])\((\d)\)", r"\1[\2]"),
    (r"\bbase\((\d)\)", r"base[\1]"),
    (r"import matplotlib.*\n|from mpl_toolkits.*\n|import cv2\n|from imageio.*\n", ""),
    (r"\nos\.makedirs\(.*\n", "\n"),
]


@dataclass(frozen=True)
class Original:
    """How one of the originals is run.

    Args:
        file: its name without the ending.
        prepare: makes the scene.
        iteration: computes the gradient once.
        arguments: of its command line.
    """

    file: str
    prepare: Callable[[ModuleType], None]
    iteration: Callable[[ModuleType], None]
    arguments: tuple[str, ...] = ()


def load(original: Original, folder: Path) -> ModuleType:
    """Import an original from its repaired text."""
    path = folder / f"{original.file}.py"
    text = path.read_text()
    for pattern, new in REPAIRS:
        text = re.sub(pattern, new, text)
    repaired = Path(sys.argv[3]) / path.name  # kernels are read from their file again
    repaired.write_text(text)
    sys.path[:0] = [str(repaired.parent), str(folder)]
    sys.argv[1:] = original.arguments
    ti.GUI = lambda *_, **__: None
    return __import__(original.file)


@ti.kernel
def set_particles(m: ti.template(), x0: ti.types.ndarray()):
    for p in range(x0.shape[0]):
        for k in ti.static(range(m.dim)):
            m.x[0, p][k] = x0[p, k]
            m.F[0, p][k, k] = 1.0


def prepare_particles(m: ModuleType) -> None:
    """A robot of particles at its start; its weights stay 0."""
    scene = m.Scene()
    m.robot(scene)
    scene.finalize()
    (m.allocate_fields if hasattr(m, "allocate_fields") else m.place)()
    set_particles(m, np.array(scene.x, np.float32))
    m.actuator_id.from_numpy(np.array(scene.actuator_id, np.int32))
    m.particle_type.from_numpy(np.array(scene.particle_type, np.int32))


def walk_and_back(m: ModuleType) -> None:
    ti.ad.clear_all_gradients()
    m.forward()
    m.loss.grad[None] = 1
    m.backward()


def prepare_bodies(m: ModuleType) -> None:
    m.setup_robot(*m.robots[0]())
    m.use_toi = True


def bodies_walk(m: ModuleType) -> None:
    m.clear_states()
    with ti.ad.Tape(m.loss):
        m.forward(visualize=False)


def prepare_shot(m: ModuleType) -> None:
    m.init_x[None] = [0.1, 0.5]
    m.init_v[None] = [0.3, 0.0]


def shot(m: ModuleType) -> None:
    m.clear()
    with ti.ad.Tape(m.loss):
        m.forward()


def taped(m: ModuleType) -> None:
    with ti.ad.Tape(m.loss):
        m.forward()


def prepare_wave(m: ModuleType) -> None:
    m.allocate_fields()
    m.vis_interval = 1 << 30  # no windows
    m.initial.from_numpy(RANDOM.normal(0, 0.1, (256, 256)).astype(np.float32))


def prepare_smoke(m: ModuleType) -> None:
    """Smoke in a layer, and some wind."""
    n, smoke = m.n_grid, np.zeros((m.steps, m.n_grid, m.n_grid), np.float32)
    smoke[0, :, : n // 3] = 1
    m.smoke.from_numpy(smoke)
    wind = np.zeros((m.steps, n, n, 2), np.float32)
    wind[0] = RANDOM.normal(0, 0.3, (n, n, 2))
    m.v.from_numpy(wind)


def prepare_network(m: ModuleType) -> None:
    m.place()
    random.seed(0)
    m.initialize()
    for weight in (m.weight1, m.weight2):
        weight.from_numpy(RANDOM.uniform(-0.15, 0.15, weight.shape).astype(np.float32))


def prepare_views(m: ModuleType) -> None:
    """Pictures of its torus."""
    m.create_torus_density()
    for view in range(m.n_views):
        m.ray_march(m.target_images, math.pi * (view / m.n_views - 0.5), view)
    m.clear_density()


def views(m: ModuleType) -> None:
    m.clear_images()
    with ti.ad.Tape(m.loss):
        for view in range(m.n_views):
            m.ray_march(m.images, math.pi * (view / m.n_views - 0.5), view)
            m.compute_loss(view)


def prepare_pool(m: ModuleType) -> None:
    m.allocate_fields()
    m.initial[128, 128] = 1
    m.bottom_image.from_numpy(RANDOM.random((256, 256, 3)).astype(np.float32))


def pool(m: ModuleType) -> None:
    """A gradient of the picture is given, as the original takes one from a neural network."""
    ti.ad.clear_all_gradients()
    m.refracted_image.grad.fill(1e-3)
    with ti.ad.Tape(m.loss, clear_gradients=False):
        m.forward()


RANDOM = np.random.default_rng(0)
ORIGINALS = {
    "smoke": Original("smoke_taichi_gpu", prepare_smoke, taped),
    "wave": Original("wave", prepare_wave, taped),
    "electric": Original("electric", prepare_network, taped),
    "volume_renderer": Original("volume_renderer", prepare_views, views),
    "water_renderer": Original("water_renderer", prepare_pool, pool),
    "mpm_walker": Original("diffmpm", prepare_particles, taped),
    "mpm_walker_3d": Original("diffmpm3d", prepare_particles, walk_and_back),
    "liquid_walker": Original("liquid", prepare_particles, walk_and_back),
    "rigid_body": Original("rigid_body", prepare_bodies, bodies_walk, ("0", "train")),
    "billiards": Original("billiards", prepare_shot, shot),
}


def main() -> None:
    name, folder, _, seconds = sys.argv[1:5]
    original = ORIGINALS[name]
    limit, times = float(seconds), []
    m = load(original, Path(folder))
    original.prepare(m)
    begin = time.perf_counter()
    while len(times) < 2 or (len(times) < 50 and time.perf_counter() - begin < limit):
        start = time.process_time()
        original.iteration(m)
        ti.sync()
        times.append(time.process_time() - start)
    print(json.dumps({"loss": float(m.loss[None]), "seconds": times}))


if __name__ == "__main__":
    main()
