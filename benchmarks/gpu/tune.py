"""The heat step and its gradient with other tiles, other blocks and other layouts (`run.py --tune`).

A thread has a column of a tile's height h, and loads each element once for all lanes of the column. From the
L2 cache each element is therefore read (h + 2) / h times, and at both ends of a block's rows come 32 bytes
more: 16 / block_dim. That and what is written, over the speed of L2, is one prediction; what has to be read
and written at least, over the speed of a copy, is the other. The larger one is the least time there is. The
adjoint reads one gradient like this, adds to another one, and clears the first in a second launch.

Registers are those that ptxas gives for compute capability 9.0, and warps how many they let a multiprocessor
run at the same time, of 64.
"""

import itertools
import re
from unittest import mock

import numpy as np
from heat import K
from rows import attempt

import diffsim as ds
from diffsim.backends.cuda import codegen as cuda
from diffsim.backends.cuda import ptx
from diffsim.backends.simt import distribution

TILES = (2, 4, 8, 16)
BLOCKS = (128, 256, 512, 1024)
L2_BYTES = 5.5e12  # that L2 hands out and takes in a second: an assumption
LAYOUTS = {
    "one field, rows of 8192": (1, 8192, 8192),
    "two fields, rows of 8192": (2, 8192, 8192),
    "one field, rows of 8200": (1, 8200, 8200),
    "one field, rows of 8224": (1, 8192, 8224),
}
"""Fields, and rows and columns that they have. The cells of a step are always the same."""


def variants(dry):
    """(tile, block_dim, layout): the first layout with all, the others with what diffsim takes.

    In a dry run each tile and each block once.
    """
    first, *others = LAYOUTS
    both = zip(TILES, BLOCKS, strict=True) if dry else itertools.product(TILES, BLOCKS)
    yield from ((tile, block, first) for tile, block in both)
    yield from ((8, cuda.BLOCK_DIM, layout) for layout in others)


class Heat:
    """A new kernel, and the fields it is about, of which it takes n x n cells."""

    def __init__(self, n, layout, block):
        fields, *plane = layout
        self.n, self.block = n, block
        if fields == 1:
            self.fields = [ds.field(ds.f32, shape=(2, *plane), needs_grad=True)]
            self.step = self.in_one(*self.fields)
        else:
            self.fields = [ds.field(ds.f32, shape=plane, needs_grad=True) for _ in range(2)]
            self.step = self.in_two(*self.fields)

    def in_one(self, u):
        n, block = self.n, self.block

        @ds.kernel
        def step(t: ds.i32):
            ds.loop_config(block_dim=block)
            for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
                around = u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1]
                u[t + 1, i, j] = u[t, i, j] + K * (around - 4.0 * u[t, i, j])

        return step

    def in_two(self, u, v):
        n, block = self.n, self.block

        @ds.kernel
        def step(t: ds.i32):
            ds.loop_config(block_dim=block)
            for i, j in ds.ndrange((1, n - 1), (1, n - 1)):
                around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
                v[i, j] = u[i, j] + K * (around - 4.0 * u[i, j])

        return step

    def check(self):
        """Raise if a step or its gradient is wrong at some places: in the middle, and in corners."""
        one, n = len(self.fields) == 1, self.n
        old, new, at, to = self.fields[0], self.fields[-1], (0,) * one, (1,) * one
        for f in self.fields:
            f.fill(1.0)
            f.grad.fill(0.0)
        places = [(9, 5), (1, 1), (n - 2, n - 2), (n // 2, n // 2), (n - 3, 3)]
        for i, j in places:
            old[(*at, i, j)] = 2.0
            new.grad[(*to, i, j)] = 1.0
        self.step(0)
        self.step.grad(0)
        for i, j in places:
            near = [(i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1), (i + 1, j + 1)]
            inner = [max(p) < n - 1 and min(p) > 0 for p in near]
            found = [new[(*to, *p)] for p in [(i, j), *near]]
            exact = [2 - 4 * K, *(1 + K * k for k in inner[:4]), 1]
            np.testing.assert_allclose(found, exact, rtol=1e-6)
            found = [old.grad[(*at, *p)] for p in [(i, j), *near]]
            np.testing.assert_allclose(found, [1 - 4 * K, K, K, K, K, 0], rtol=1e-6)
            assert new.grad[(*to, i, j)] == 0.0


def code(kernel):
    """The PTX, and registers and warps of its launch with the most of them, where there is a ptxas."""
    text = kernel.ptx(sm=90)
    report = ptx.assemble(text, 90)
    if report is None:
        return text, "", ""
    used = max(map(int, re.findall(r"Used (\d+) registers", report)))
    block = int(re.search(r"\.maxntid (\d+)", text).group(1))
    each = -(-used // 8) * 8 * block  # registers are given out by the eight
    return text, used, min(65536 // each, 2048 // block) * block // 32


def predicted(tile, block, ceiling, gradient):
    """Seconds, bound by memory and bound by L2."""
    bytes_of_all = 4 * 8190**2
    reads, others = (tile + 2) / tile + 16 / block, 3 if gradient else 1
    return bytes_of_all * (1 + others) / ceiling, bytes_of_all * (reads + others) / L2_BYTES


def tune(b, ceiling, machine):
    """Print measured beside predicted, as Markdown; without a GPU only what is compiled."""
    ds.init(arch=ds.cpu if b.dry else ds.cuda)
    head = [
        f"{machine}. Copy: {ceiling / 1e12:.3f} TB/s; L2: {L2_BYTES / 1e12:.3g} TB/s (assumed).",
        "",
        "| 8192 x 8192 | layout | tile | block | registers | warps "
        "| memory [us] | L2 [us] | measured [us] |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(head))
    texts, best = set(), {}
    for how in variants(b.dry):
        attempt(lambda how=how: variant(b, ceiling, how, texts, best), str(how))
    for name, (took, *how) in {} if b.dry else best.items():
        print(f"\nBest, {name}: {1e6 * took:.0f} us (tile, block and layout: {how}).")


def variant(b, ceiling, how, texts, best):
    """Print a step's line and its gradient's, and take note of the fastest."""
    tile, block, layout = how
    with mock.patch.object(distribution, "tile_height", return_value=tile):
        heat = Heat(8192, LAYOUTS[layout], block)
        own = Heat(1027, (LAYOUTS[layout][0], 1030, 1030), block) if b.dry else heat
        own.check()
        for name, kernel, run in (
            ("a step", heat.step, own.step),
            ("gradient", heat.step.grad, own.step.grad),
        ):
            text, registers, warps = code(kernel)
            assert text not in texts, "the variants are the same code"
            texts.add(text)
            times = [*predicted(tile, block, ceiling, name == "gradient")]
            times.append(took := b.time(lambda run=run: run(0), ds.sync))
            # Without a GPU, neither the copy nor the step has been timed on one.
            times = [f"{1e6 * t:.0f}" * (k == 1 or not b.dry) for k, t in enumerate(times)]
            cells = [name, layout, tile, block, registers, warps, *times]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            best[name] = min(best.get(name, (np.inf,)), (took, *how))
