"""One kernel as the threads of a GPU compute it, seen on the CPU. (For any test: `--emulated-gpu`.)"""

import functools
from unittest import mock

from diffsim.backends.cuda.codegen import lower
from diffsim.backends.cuda.ptx import to_ptx
from diffsim.passes import pipeline
from diffsim.runtime.session import session
from tests.backends.emulator import Blocks

BLOCK = 64


class Emulated:
    """A kernel of diffsim, or its adjoint, as the GPU would run it on the fields' own memory."""

    def __init__(self, kernel, *, grad=False, block_dim=BLOCK, **options):
        (special,) = kernel.specializations.values()
        with mock.patch.object(session.backend, "many_lanes", new=True, create=True):
            ir = special.derivative.ir if grad else special.ir
        self.ir = pipeline.run(ir, pipeline.LOWER_CUDA, check=True)
        self.code = lower(self.ir, fast_math=False, block_dim=block_dim, **options)
        self.blocks = Blocks(self.code)

    def __call__(self, *args, **more):
        data = {m: m.handle()._array for m in self.ir.mems if m.kind == "field"}
        work = self.blocks.launch(data, args, **more)
        assert self.blocks.error[0] == 0
        assert not self.blocks.heap
        return work

    @functools.cached_property
    def ptx(self):
        """What a GPU would get: made where a test asks, as it takes longer than all else here."""
        return to_ptx(self.code.text, 90)

    @property
    def kinds(self):
        return [e.kind for e in self.code.entries]
