"""Traces of indices as the threads of a GPU write them: each note goes to a place of its own."""

import numpy as np

import diffsim as ds
from diffsim.backends.cuda.codegen import lower
from diffsim.ir.nodes import Store
from diffsim.passes import pipeline
from diffsim.passes.analysis.dependence import accesses_of
from diffsim.passes.autodiff.index_trace import index_trace
from tests.backends.emulator import Blocks
from tests.support.trace import ir_of


def test_notes_without_room(cpu):
    """The first launch only counts; the emulator refuses threads that store to one address."""
    x, at = ds.field(ds.f32, shape=80), ds.field(ds.i32, shape=70)
    places = np.random.default_rng(0).integers(0, 80, 70).astype(np.int32)
    at.from_numpy(places)
    kernel = ir_of("    for i in range(70):\n        x[at[i]] = 1.0\n", x=x, at=at)
    stores = [s for s in accesses_of(kernel.tasks[0]) if isinstance(s, Store)]
    trace = index_trace(kernel, 0, stores)
    ir = pipeline.run(trace.ir, pipeline.LOWER_CUDA, check=True)
    blocks = Blocks(lower(ir, fast_math=False, block_dim=32))
    fields = {m: m.handle()._array for m in kernel.mems}

    def run(starts, room):
        cursor, limit, notes = starts.copy(), np.array(room, np.int64), np.zeros(room + 1, np.int64)
        made = {trace.cursor: cursor, trace.limit: limit, trace.notes: notes, trace.bounds: cursor}
        blocks.launch(fields | made, (0,))
        return cursor, notes[:room]

    counts, _ = run(np.zeros(70, np.int64), 0)
    assert counts.tolist() == [1] * 70
    _, notes = run(np.arange(70), 70)
    assert notes.tolist() == places.tolist()
