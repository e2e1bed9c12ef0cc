"""What the user said of a loop's blocks stays with it, whatever a pass makes of the loop."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import Span
from diffsim.ir.nodes import Atomic, Block, Const, Mem, Task, Value
from diffsim.ir.schedules import FixedOrder, Privatized, Uniform
from diffsim.ir.types import f32, i32
from diffsim.passes import pipeline
from diffsim.passes.instrument.retain_grad import retain_gradients
from diffsim.passes.transforms.serialize import serialize

N = 40


@pytest.fixture(autouse=True)
def _cpu():
    ds.init(arch=ds.cpu)
    yield
    ds.reset()


def everything():
    """A kernel of loops that passes divide, copy, search for a winner, and make reductions of."""
    made = dict(dtype=ds.f32, needs_grad=True)
    x, y, bins = ds.field(shape=N, **made), ds.field(shape=N, **made), ds.field(shape=3, **made)
    u, v = (ds.Vector.field(2, ds.f32, shape=N, needs_grad=True) for _ in range(2))
    least, total = ds.field(shape=(), **made), ds.field(shape=(), **made)
    rest = ds.field(shape=(), **made)

    @ds.func
    def cube(a):
        return a**3

    @ds.func_grad(cube)
    def cube_grad(a, g):
        ds.adjoint[a] += 3 * a * a * g

    @ds.func
    def square(a):
        return a**2

    @ds.kernel
    def run(a: ds.f32):
        ds.stop_grad(rest)
        mean = 0.0
        ds.loop_config(block_dim=32)
        for i in x:
            mean += x[i] * rest[None]
        ds.loop_config(block_dim=64)
        for i in range(1, N - 1):
            y[i] = x[i - 1] - 2 * x[i] + x[i + 1] + mean + a
        ds.loop_config(block_dim=96)
        for i in x:
            ds.atomic_min(least[None], cube(x[i]) + ds.grad(square)(x[i]))
        for i in v:
            w = v[i] * a
            for k in range(3):
                w = w * w
            u[i] = w
        ds.loop_config(block_dim=512)
        for i in range(N):
            bins[i % 3] += x[i]
        ds.loop_config(block_dim=1024)
        for i in x:
            total[None] += x[i] ** 2

    return run, [32, 64, 96, None, 512, 1024]


def check(kernel, wanted):
    """Every parallel task has what was said of the loop in its line; returns how many there are."""
    loops = [t for t in kernel.tasks if t.axes]
    assert [(t.span.line, t.block_dim) for t in loops] == [
        (t.span.line, wanted[t.span.line]) for t in loops
    ]
    assert all(t.block_dim is None for t in kernel.tasks if not t.axes)
    return len(loops)


@pytest.mark.parametrize("stages", ["LOWER", "LOWER_DEBUG", "LOWER_CUDA", "LOWER_CUDA_DEBUG"])
@pytest.mark.parametrize("by_field", [False, True])
def test_no_pass_loses_it(stages, by_field):
    run, blocks = everything()
    run(ds.field(ds.f32, shape=()) if by_field else 0.5)
    (special,) = run.specializations.values()
    lines = [t.span.line for t in special.translation.kernel.tasks if t.axes]
    wanted = dict(zip(lines, blocks, strict=True))
    assert check(special.ir, wanted) == len(blocks)
    kept = {
        m: Mem("kept", m.dtype, m.rank, m.shape) for m in special.derivative.ir.mems if m.is_grad
    }
    adjoints = [special.derivative.ir, retain_gradients(special.derivative.ir, kept)]
    for kernel in (special.ir, *adjoints):
        for name, stage in getattr(pipeline, stages):
            kernel = stage(kernel)
            assert check(kernel, wanted) >= len(blocks) - (kernel.name == "run"), name
    # The search for the winner, the middle and the rims of the stencil's adjoint.
    made = [
        t.block_dim for t in pipeline.run(special.derivative.ir, pipeline.LOWER).tasks if t.axes
    ]
    assert made.count(96) == 2
    assert made.count(64) >= 3
    assert all(t.block_dim is None for t in serialize(special.ir).tasks)


def test_the_adjoint_is_right():
    """The same numbers as without any blocks: on the CPU they change nothing."""
    values = np.linspace(0.5, 1.5, N, dtype=np.float32)
    x, y = (ds.field(ds.f32, shape=N, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def run():
        ds.loop_config(block_dim=128)
        for i in range(1, N - 1):
            y[i] = x[i - 1] * x[i + 1]
        ds.loop_config(block_dim=32)
        for i in y:
            loss[None] += y[i]

    x.from_numpy(values)
    with ds.Tape(loss):
        run()
    expected = np.zeros(N)
    expected[2:] += values[:-2]
    expected[:-2] += values[2:]
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-6)
    assert "block_dim" in run.ir()
    assert "block_dim" not in run.llvm()


def test_replace_keeps_what_it_is_not_given():
    span, axis, mem = Span("here.py", 3), Value(i32), Mem("x", f32, 0, ())
    add = Atomic(None, "add", mem, (), Const(f32, 1.0), span)
    task = Task(
        (axis,),
        Block([], (Const(i32, 0), Const(i32, 4))),
        Block([add]),
        span,
        (("add", mem, ()),),
        (Privatized(mem, (), frozenset([add]), 1, 0),),
        frozenset([axis]),
        128,
        1,
        FixedOrder(frozenset([add]), serial=False),
        True,
        Uniform(frozenset([add]), frozenset()),
        active=object(),
        by_lane=frozenset([axis]),
        packed=(object(),),
        neighbours=(object(),),
        aligned=object(),
        appends=object(),
        written=(0,),
        reach=2,
    )
    assert all(getattr(task, name) not in (None, ()) for name in Task.__slots__)
    for name in Task.__slots__:
        other = object()
        changed = task.replace(**{name: other})
        assert getattr(changed, name) is other
        for kept in set(Task.__slots__) - {name}:
            assert getattr(changed, kept) is getattr(task, kept)
    with pytest.raises(TypeError):
        task.replace(blockdim=32)
