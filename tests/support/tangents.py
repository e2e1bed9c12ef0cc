"""Kernels with tangents, as the pass makes them: their memory, and runs in the interpreter and on the CPU."""

import numpy as np

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.ir.verifier import verify
from diffsim.passes.tangent.forward import differentiate
from diffsim.runtime import compiler
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session
from tests.support.trace import ir_of

BODIES = {
    "elementwise": """
    for i in x:
        y[i] = ds.sin(x[i]) * y[i] / x[i] ** 1.5 + ds.atan2(x[i], 2.0) - abs(y[i])
""",
    "vectors": """
    for i in x:
        w = v[i] * x[i] + ds.Vector([y[i], 1.0])
        v[i] = w.normalized() + 0.5 * v[i].yx
        y[i] = w.dot(v[i])
        v[i].x = x[i] * y[i]
""",
    "matrices": """
    for i in x:
        a = ds.Matrix([[x[i], y[i]], [0.3, v[i].x]])
        b = a @ a.transpose() + v[i].outer_product(v[i])
        v[i] = b.inverse() @ v[i]
        y[i] = b.determinant() + a.trace() + b[n % 2, 0]
""",
    "sums": """
    total = ds.f64(0.0)
    for i in x:
        total += x[i] * x[i]
        s[None] += y[i] * x[i]
    for i in x:
        y[i] = x[i] / total
""",
    "scatter": """
    for i in x:
        y[at[i]] += x[i] ** 2
""",
    "stencil": """
    for i in range(1, 4):
        y[i] = x[i - 1] * x[i] - x[i + 1] / x[i]
""",
    "in place": """
    for i in x:
        x[i] = x[i] * x[i] + y[i]
        x[i] *= y[i]
        y[i] = x[i] + 1.0
""",
    "a branch": """
    for i in x:
        a = x[i]
        if y[i] > 0.7:
            a = a * y[i]
            y[i] = a
        elif i > 1:
            a = 0.5
        x[i] = a + y[i]
""",
    "loops": """
    for i in x:
        a = x[i]
        b = ds.f64(1.0)
        k = 0
        for j in range(n):
            a, b = a * y[i] + 0.1, b * a
            k += j
        while b > 0.05 and k < 9:
            b *= a * 0.3
            k += 1
        x[i] = a + b * k
""",
    "no iterations": """
    for i in x:
        a = x[i]
        for j in range(n, 1):
            a = a * y[i]
        for j in range(-n):
            a += 1.0
        y[i] = a
""",
    "constants": """
    for i in x:
        y[i] = 2.0
        c[i] = ds.floor(x[i]) + y[i]
        x[i] = c[i] * x[i]
""",
    "an own extreme": """
    for i in x:
        ds.atomic_max(y[i], x[i] * 1.5)
        ds.atomic_min(v[i].x, x[i])
""",
    "a serial task": """
    s[None] = x[0]
    old = ds.atomic_add(s[None], x[1] * x[2])
    k = n - n
    if k == 0:
        for i in range(1, 5):
            s[None] = s[None] * 0.5 + x[i] * old
            y[i] = s[None]
""",
    "other precision": """
    for i in x:
        y[i] = ds.cast(ds.cast(x[i], ds.i32) + 1, ds.f64) * x[i]
""",
}


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
            if m.dual is not None and m.dual.rank == m.rank + (width > 1):
                continue  # of another kernel with the same fields
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
        made.place((*m.shape, width), (m.rank, *range(m.rank)), in_blocks=True)
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
    executable.launch()


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


def kernel_of(body, grad=False):
    """The prepared IR of a kernel with this body, and its fields."""
    x, y, c = (ds.field(ds.f64, shape=5, needs_grad=grad) for _ in range(3))
    v = ds.Vector.field(2, ds.f64, shape=5, needs_grad=grad)
    s, at = ds.field(ds.f64, shape=(), needs_grad=grad), ds.field(ds.i32, shape=5)
    space = {"x": x, "y": y, "c": c, "v": v, "s": s, "at": at}
    return ir_of(body, **space), space


def directions_of(kernel, count):
    """Random directions, an array for each field of floats."""
    return [
        {m: a for m, a in random_memory(kernel, 100 + k, -1, 1).items() if m.dtype.is_float}
        for k in range(count)
    ]
