"""Kernels with tangents, as the pass makes them: their memory, and runs in the interpreter and on the CPU."""

import numpy as np

from diffsim.backends import interpreter
from diffsim.ir.verifier import verify
from diffsim.passes.tangent.forward import differentiate
from diffsim.runtime import compiler
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session


class WithTangents:
    """A kernel's IR, and the kernel that computes `width` tangents besides.

    Args:
        primal: prepared IR whose memories are fields.
        width: the number of tangents.
        without: the names of float fields that get no dual.
    """

    def __init__(self, primal, width=1, without=()):
        self.primal, self.width = primal, width
        self.fields = []  # the IR refers to them weakly
        for m in primal.mems:
            if m.kind == "field" and m.dtype.is_float and m.name not in without:
                self.fields.append(_dual(m, width))
                m.dual = self.fields[-1]._mem
        self.made = differentiate(primal, width=width)
        self.ir = verify(self.made.ir)

    @property
    def active(self):
        """The memories with a dual."""
        return [m for m in self.primal.mems if m.dual is not None]

    def run(self, start, directions, args=(), seed=0):
        """Run in the interpreter; return the memory afterwards, by name, its tangents, and the result.

        Args:
            start: an array for each memory of the primal.
            directions: for each tangent an array for each memory with a dual.
        """
        memory = {m: start[m].copy() for m in start}
        memory |= {m.dual: self.stacked(m, directions) for m in self.active}
        result = interpreter.run(self.ir, memory, args, seed)
        return memory, {m: self.apart(m, memory[m.dual]) for m in self.active}, result

    def run_compiled(self, start, directions, args=()):
        """Run as machine code; return the same, without the result."""
        put(start)
        put({m.dual: self.stacked(m, directions) for m in self.active})
        launch(self.ir, args)
        found = {m.dual: m.dual.handle().to_numpy() for m in self.active}
        memory = {m: m.handle().to_numpy() for m in start} | found
        return memory, {m: self.apart(m, found[m.dual]) for m in self.active}

    def stacked(self, m, directions):
        """Return what the dual of a memory holds."""
        found = [np.asarray(d[m], m.dtype.scalar.numpy) for d in directions]
        return np.stack(found, axis=m.rank) if self.width > 1 else found[0].copy()

    def apart(self, m, dual):
        """Return the tangents of a memory, one after the other."""
        return np.moveaxis(dual, m.rank, 0) if self.width > 1 else dual[None]


def _dual(m, width):
    """A field for the tangents of a memory; each of several lies as the memory itself does."""
    made = Field(m.dtype.scalar, m.dtype.shape, name=f"{m.name}.dual")
    if width > 1:
        made.place((*m.shape, width), (m.rank, *range(m.rank)))
    else:
        made.place(m.shape)
    return made


def put(memory):
    """Give fields their numbers."""
    for m, a in memory.items():
        m.handle().from_numpy(a)


def launch(ir, args=()):
    """Compile IR and run it on its fields."""
    executable = compiler.compile_kernel(ir, session.backend)
    executable.pack(executable.params, executable.args_at, *args)
    executable.call(executable.block)


def random_memory(kernel, seed=0, lo=0.2, hi=1.2):
    """Return an array of random numbers for each field of a kernel; integers from 0 to 3."""
    r = np.random.default_rng(seed)
    made = {}
    for m in (m for m in kernel.mems if m.kind == "field"):
        numbers = r.uniform(lo, hi, m.shape + m.dtype.shape)
        integers = r.integers(0, 4, m.shape + m.dtype.shape)
        made[m] = (numbers if m.dtype.is_float else integers).astype(m.dtype.scalar.numpy)
    return made


def differences(primal, start, direction, args=(), h=1e-6):
    """Return the tangents of all memories, and of the result, by central differences in the interpreter."""
    ends = []
    for step in (h, -h):
        moved = {m: np.array(a + step * direction.get(m, 0), a.dtype) for m, a in start.items()}
        result = interpreter.run(primal, moved, args)
        ends.append((moved, result))
    (above, r1), (below, r0) = ends
    slope = {m: (above[m] - below[m]) / (2 * h) for m in direction}
    return slope, None if r1 is None else (np.asarray(r1) - np.asarray(r0)) / (2 * h)
