"""The blocks that the driver is asked for, on a GPU that is not there (`fake.py`)."""

import numpy as np
import pytest

N = 10_000


class Program:
    """A stencil with a sum at the end, its loops in blocks of 64, of 1024, and of what is the default."""

    def __init__(self, ds):
        self.x, self.y, self.z = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(3))
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)
        x, y, z, loss = self.x, self.y, self.z, self.loss

        @ds.kernel
        def run(a: ds.f64):
            ds.loop_config(block_dim=64)
            for i in range(1, N - 1):
                y[i] = x[i - 1] * x[i + 1]
            for i in y:
                z[i] = ds.sin(a * y[i])
            ds.loop_config(block_dim=1024)
            for i in z:
                loss[None] += z[i] ** 2

        self.kernel = run

    def exact(self, values, a):
        """Loss and gradient of x."""
        y = np.zeros(N)
        y[1:-1] = values[:-2] * values[2:]
        inner = 2 * np.sin(a * y) * np.cos(a * y) * a
        inner[[0, -1]] = 0
        gradient = np.zeros(N)
        gradient[:-2] += inner[1:-1] * values[2:]
        gradient[2:] += inner[1:-1] * values[:-2]
        return (np.sin(a * y) ** 2).sum(), gradient

    def check(self, values, a):
        loss, gradient = self.exact(values, a)
        np.testing.assert_allclose(self.loss[None], loss, rtol=1e-12)
        np.testing.assert_allclose(self.x.grad.to_numpy(), gradient, rtol=1e-12, atol=1e-13)


def blocks(launches, default=256):
    """The blocks of loops' launches; all others are one thread, or what loops have that do not say."""
    loops = {launch.name: launch.block_dim for launch in launches if "_task" in launch.name}
    assert {launch.block_dim for launch in launches if launch.name not in loops} <= {1, default}
    return loops


def test_launches_have_the_blocks_that_were_asked_for(fake):
    ds = fake
    program = Program(ds)
    values = np.random.default_rng(0).normal(size=N)
    program.x.from_numpy(values)
    before = len(ds.driver.launches)
    with ds.Tape(program.loss):
        program.kernel(0.5)
    program.check(values, 0.5)
    made = ds.driver.launches[before:]
    # Threads of the first loop have 4 lanes each, the others' have 8.
    assert [(x.name, x.block_dim, x.grid) for x in made if x.name.startswith("run_task")] == [
        ("run_task0", 64, -(-(N - 2) // (4 * 64))),
        ("run_task1", 256, -(-N // (8 * 256))),
        ("run_task2", 1024, -(-N // (8 * 1024))),
    ]
    backward = blocks([x for x in made if x.name.startswith("run_grad")])
    # The sum; the sine; the middle of the stencil's adjoint with its rims, and what it clears.
    assert list(backward.values())[:2] == [1024, 256]
    assert set(list(backward.values())[2:]) == {64}


def test_a_sums_grid_fills_the_gpu_with_its_blocks(fake):
    """Blocks of 64 find room for 2048 threads on each of two processors 32 times, those of 1024 twice."""
    ds = fake
    x, total = ds.field(ds.f32, shape=10_000_000), ds.field(ds.f32, shape=())
    ds.driver.run_kernels = False

    @ds.kernel
    def add(n: ds.template()):
        ds.loop_config(block_dim=n)
        for i in x:
            total[None] += x[i]

    found = []
    for n in (1, 16, 64, 1024):
        add(n)
        found.append((ds.driver.launches[-1].block_dim, ds.driver.launches[-1].grid))
    assert found == [(1, 128), (16, 128), (64, 64), (1024, 4)]


@pytest.mark.parametrize("n", [64, 512])
def test_what_loops_have_that_do_not_say(fake, n):
    ds = fake
    ds.init(arch=ds.cuda, default_gpu_block_dim=n)
    program = Program(ds)
    values = np.random.default_rng(1).normal(size=N)
    program.x.from_numpy(values)
    before = len(ds.driver.launches)
    with ds.Tape(program.loss):
        program.kernel(0.5)
    program.check(values, 0.5)
    found = blocks(ds.driver.launches[before:], n)
    assert [found[f"run_task{k}"] for k in range(3)] == [64, n, 1024]
    assert set(found.values()) == {64, n, 1024}
    ds.init(arch=ds.cuda)
    program.kernel(0.5)
    assert [launch.block_dim for launch in ds.driver.launches[-3:]] == [64, 256, 1024]


def test_replayed_tapes_have_them_too(fake):
    ds = fake
    program = Program(ds)
    rng = np.random.default_rng(2)
    first, other = rng.normal(size=(2, N))
    program.x.from_numpy(first)
    tape = ds.Tape(program.loss)
    before = len(ds.driver.launches)
    with tape:
        program.kernel(0.7)
    recorded = [(x.name, x.block_dim, x.grid) for x in ds.driver.launches[before:]]
    for values in (first, other):
        program.x.from_numpy(values)
        program.loss[None] = 0.0
        program.x.grad.fill(0)
        graphs, before = ds.driver.graph_launches, len(ds.driver.launches)
        tape.replay()
        tape.backward()
        assert ds.driver.graph_launches == graphs + 2
        replayed = [(x.name, x.block_dim, x.grid) for x in ds.driver.launches[before:]]
        assert replayed == recorded
        program.check(values, 0.7)


def test_checkpointed_and_restored(fake):
    """State that a tape puts back, and steps that are run again, with blocks of 32."""
    ds = fake
    n, steps = 50, 12
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def step():
        ds.loop_config(block_dim=32)
        for i in x:
            x[i] = x[i] - 0.1 * x[i] ** 2

    @ds.kernel
    def measure():
        ds.loop_config(block_dim=96)
        for i in x:
            loss[None] += x[i]

    values = np.random.default_rng(3).random(n)
    z, slope = values.copy(), np.ones(n)
    for _ in range(steps):
        slope *= 1 - 0.2 * z
        z = z - 0.1 * z**2

    def plain():
        for _ in range(steps):
            step()

    for run in (plain, lambda: ds.ad.checkpoint(lambda t: step(), steps, state=[x])):
        x.from_numpy(values)
        loss[None] = 0.0
        x.grad.fill(0)
        before = len(ds.driver.launches)
        with ds.Tape(loss, in_place="save"):
            run()
            measure()
        np.testing.assert_allclose(loss[None], z.sum(), rtol=1e-13)
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-12)
        made = ds.driver.launches[before:]
        for launch in made:
            wanted = {"step": 32, "measure": 96}.get(launch.name.split("_")[0])
            assert wanted is None or launch.block_dim == wanted
        assert sum(launch.name == "step_task0" for launch in made) >= steps
