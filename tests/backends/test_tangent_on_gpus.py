"""Tangents as the threads of a GPU compute them, emulated, against the interpreter; `ptxas` takes it."""

import numpy as np
import pytest

from diffsim.backends.cuda.codegen import lower
from diffsim.backends.cuda.ptx import PtxError, assemble, find_libdevice, to_ptx
from diffsim.passes import pipeline
from tests.backends.emulator import Blocks
from tests.support.tangents import (
    BODIES,
    WithTangents,
    directions_of,
    kernel_of,
    put,
    random_memory,
)

pytestmark = pytest.mark.usefixtures("cpu")
EXTREME = "    for i in x:\n        ds.atomic_max(s[None], x[i] * y[i])\n        y[i] = x[i]\n"


def emulated(body, width):
    """The code of a kernel with tangents, after what its threads computed was compared."""
    primal, _fields = kernel_of(body)
    start, directions = random_memory(primal, 1), directions_of(primal, width)
    made = WithTangents(primal, width)
    memory, found, _ = made.run(start, directions, (3,))
    lowered = pipeline.run(made.ir, pipeline.LOWER_CUDA, check=True)
    code = lower(lowered, fast_math=False, block_dim=32)
    put(start)
    put({m.dual: made.stacked(m, directions) for m in made.active})
    data = {m: m.handle()._array for m in lowered.mems if m.kind == "field"}
    blocks = Blocks(code)
    blocks.launch(data, (3,))
    assert blocks.error[0] == 0
    for m in made.active:
        np.testing.assert_allclose(m.handle().to_numpy(), memory[m], rtol=1e-11, atol=1e-12)
        tangents = made.apart(m, m.dual.handle().to_numpy())
        np.testing.assert_allclose(tangents, found[m], rtol=1e-11, atol=1e-12)
    return code


@pytest.mark.parametrize("name", ["matrices", "sums", "scatter", "stencil", "loops"])
def test_threads_compute_tangents(name):
    emulated(BODIES[name], 1)


@pytest.mark.parametrize("body", [BODIES["vectors"], EXTREME], ids=["vectors", "an extreme"])
def test_four_at_once_which_ptxas_takes(body):
    code = emulated(body, 4)
    try:
        find_libdevice()
    except PtxError:
        pytest.skip("no libdevice here")
    report = assemble(to_ptx(code.text, 90), 90)
    assert report is None or "registers" in report
