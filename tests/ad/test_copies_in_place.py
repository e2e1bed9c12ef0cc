"""Native backward passes that load whole copies where they are, in place of copying them back."""

import numpy as np
import pytest

import diffsim as ds

N, STEPS = 7, 5
START = np.linspace(0.2, 0.9, N)


def logistic(x, steps=STEPS):
    """x -> x + x (1 - x) / 2, so many times; and its derivative."""
    slope = np.ones_like(x)
    for _ in range(steps):
        slope = slope * (1.5 - x)
        x = x + 0.5 * x * (1 - x)
    return x, slope


def three_times(tape, x, run, check):
    """Record the same three times, the last two backward passes natively, then replay."""
    for _ in range(3):
        x.from_numpy(START)
        with tape:
            run()
        check()
    x.from_numpy(START)
    tape.replay()
    tape.backward()
    check()


def operations(tape):
    """How many the native pass has; on the CPU launches in a row are one."""
    return sum(len(part) for part in tape._replay._reverse.program.parts)


@pytest.fixture
def loss(cpu):
    return ds.field(ds.f64, shape=(), needs_grad=True)


@pytest.mark.parametrize("layout", [ds.Layout.AOS, ds.Layout.SOA])
def test_fields_of_vectors_in_any_layout(loss, layout):
    x = ds.Vector.field(2, ds.f64, shape=(N, 3), needs_grad=True, layout=layout)

    @ds.kernel
    def step():
        for i, j in x:
            x[i, j] += 0.5 * x[i, j] * (1.0 - x[i, j])

    @ds.kernel
    def add():
        for i, j in x:
            loss[None] += x[i, j].dot(ds.Vector([1.0, 2.0]))

    start = np.linspace(0.1, 0.9, N * 6).reshape(N, 3, 2)
    end, slope = logistic(start)
    tape = ds.Tape(loss, in_place="save")
    for turn in range(4):
        x.from_numpy(start)
        if turn < 3:
            with tape:
                for _ in range(STEPS):
                    step()
                add()
        else:
            tape.replay()
            tape.backward()
        np.testing.assert_allclose(x.to_numpy(), end, rtol=1e-14)  # the final values
        np.testing.assert_allclose(x.grad.to_numpy(), slope * [1.0, 2.0], rtol=1e-13)
    assert operations(tape) in (1, STEPS + 1)  # launches, and no copies between them


def test_arrays_among_the_arguments(loss):
    x = ds.ndarray(ds.f64, N, needs_grad=True)

    @ds.kernel
    def step(a: ds.types.ndarray()):
        for i in range(N):
            a[i] += 0.5 * a[i] * (1.0 - a[i])

    @ds.kernel
    def add(a: ds.types.ndarray()):
        for i in range(N):
            loss[None] += a[i]

    def run():
        for _ in range(STEPS):
            step(x)
        add(x)

    end, slope = logistic(START)

    def check():
        np.testing.assert_allclose(x.to_numpy(), end, rtol=1e-14)
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-13)

    three_times(ds.Tape(loss, in_place="save"), x, run, check)


def test_rows_and_the_whole_of_one_field(loss):
    """Copies of rows are copied back, and then those of the whole field too."""
    x = ds.field(ds.f64, shape=(2, N), needs_grad=True)

    @ds.kernel
    def swap_in(p: ds.i32):
        for i in range(N):
            x[p, i] = x[1 - p, i] + 0.5 * x[1 - p, i] * (1.0 - x[1 - p, i])

    @ds.kernel
    def both():
        for k, i in x:
            x[k, i] *= x[k, i]

    @ds.kernel
    def add():
        for k, i in x:
            loss[None] += x[k, i] * (k + 1.0)

    tape = ds.Tape(loss, in_place="save")
    end1, slope1 = logistic(START, 1)
    end2, slope2 = logistic(end1**2, 1)
    for turn in range(4):
        x.from_numpy(np.stack([START, 2 * START]))
        if turn < 3:
            with tape:
                swap_in(1)
                both()
                swap_in(0)
                add()
        else:
            tape.replay()
            tape.backward()
        np.testing.assert_allclose(x.to_numpy(), [end2, end1**2], rtol=1e-14)
        wanted = (slope2 + 2.0) * 2 * end1 * slope1
        np.testing.assert_allclose(x.grad.to_numpy(), [wanted, np.zeros(N)], rtol=1e-13)


def test_a_second_pass_begins_at_the_final_values(loss):
    x = ds.field(ds.f64, shape=N, needs_grad=True)
    at = ds.field(ds.i32, shape=N)

    @ds.kernel
    def step():
        for i in x:
            x[i] *= x[i]

    @ds.kernel
    def add():
        for i in x:
            loss[None] += x[i] * at[i]

    at.fill(2)
    tape = ds.Tape(loss, in_place="save")
    for _ in range(3):
        x.from_numpy(START)
        with tape:
            for _ in range(3):
                step()
            add()
        np.testing.assert_allclose(x.grad.to_numpy(), 2 * 8 * START**7, rtol=1e-13)
        np.testing.assert_allclose(x.to_numpy(), START**8, rtol=1e-13)
    # A second pass over the same record starts from them again.
    tape.backward()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * 2 * 8 * START**7, rtol=1e-13)


def test_a_pass_with_rows_that_fails_puts_the_final_values_back(loss, monkeypatch):
    """After each number of its native operations."""
    x = ds.field(ds.f64, shape=(2, N), needs_grad=True)

    @ds.kernel
    def turn(p: ds.i32):
        for i in range(N):
            x[p, i] = x[1 - p, i] * x[1 - p, i]

    @ds.kernel
    def add():
        for i in range(N):
            loss[None] += x[1, i]

    x.from_numpy(np.stack([START, START]))
    tape = ds.Tape(loss, in_place="save")
    with tape:
        for p in (1, 0, 1):
            turn(p)
        add()
    x.from_numpy(np.stack([START, START]))
    tape.replay()
    tape.backward()
    reverse = tape._replay._reverse
    assert reverse.put_back
    values, slope = x.to_numpy(), x.grad.to_numpy()
    np.testing.assert_allclose(slope[0], 8 * START**7, rtol=1e-13)
    (commands,) = reverse.program.parts
    kind, failures = type(commands), len(commands)
    run = kind.run
    for k in range(failures):

        def until(self, begin=0, end=None, k=k):
            if end is not None:
                return run(self, begin, end)
            run(self, 0, k)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(kind, "run", until)
            tape.backward()
        np.testing.assert_array_equal(x.to_numpy(), values)
        assert np.isnan(x.grad.to_numpy()).all()
        tape.zero()
        tape.backward()
        np.testing.assert_array_equal(x.grad.to_numpy(), slope)
    assert failures > 8


def test_several_fields_are_copied_by_turns(loss):
    x, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))

    @ds.kernel
    def forth():
        for i in x:
            y[i] = x[i] + 0.5 * x[i] * (1.0 - x[i])

    @ds.kernel
    def back():
        for i in x:
            x[i] = y[i] + 0.5 * y[i] * (1.0 - y[i])

    @ds.kernel
    def add():
        for i in x:
            loss[None] += x[i]

    def run():
        for _ in range(3):
            forth()
            back()
        add()

    end, slope = logistic(START, 6)

    def check():
        np.testing.assert_allclose(x.to_numpy(), end, rtol=1e-14)
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-13)

    tape = ds.Tape(loss, in_place="save")
    three_times(tape, x, run, check)
    assert operations(tape) in (1, 7)
