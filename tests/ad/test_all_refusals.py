"""What the rules forbid in a program comes in one error, by kernel and line, with what would lift it."""

import numpy as np
import pytest

import diffsim as ds
from tests.support.gradients import field


@pytest.fixture(autouse=True)
def enforced(cpu):
    ds.init(default_fp=ds.f64)
    yield
    ds.init()


class Program:
    """Breaks the simplicity rule, the access rules and leaves out a gradient."""

    def __init__(self):
        x, loss, y = field(4), field(), ds.field(ds.f64, shape=4)
        self.x, self.loss = x, loss

        @ds.kernel
        def powers():
            for i in x:
                a = 1.0
                for _ in range(3):
                    a *= x[i]
                y[i] = a

        @ds.kernel
        def squares():
            for i in x:
                x[i] = x[i] ** 2

        @ds.kernel
        def sums():
            for i in x:
                loss[None] += y[i] * x[i]

        self.kernels = powers, squares, sums

    def run(self):
        self.x.from_numpy(np.array([1.0, 2.0, 3.0, 4.0]))
        for kernel in self.kernels:
            kernel()


def refusal(action):
    with pytest.raises(ds.AutodiffError) as caught:
        action()
    return caught.value


def recorded(p):
    with ds.Tape(p.loss):
        p.run()


def test_all_of_a_tape():
    p = Program()
    error = refusal(lambda: recorded(p))
    kinds = [type(part).__name__ for part in error.parts]
    assert kinds == [
        "KernelSimplicityError",
        "MissingGradientError",
        "GlobalDataAccessError",  # squares in itself
    ]
    lines = [part.span.line for part in error.parts]
    assert lines == sorted(lines)
    first, second = str(error).splitlines()[:2]
    assert first == "the gradient is refused for 3 reasons"
    assert (
        second
        == '  To do for all of them: ds.init(rules="lifted"), at the cost of memory (tape.stats())'
    )
    assert str(error).count("tape.stats()") == 1
    assert error.span is error.parts[0].span


def test_the_line_that_lifts_them_all_does():
    ds.init(default_fp=ds.f64, rules="lifted")
    p = Program()
    recorded(p)
    np.testing.assert_allclose(p.x.grad.to_numpy(), 5 * np.array([1.0, 2.0, 3.0, 4.0]) ** 4)


def test_all_of_a_kernel():
    x, y = field(4), field(4)

    @ds.kernel
    def both():
        for i in x:
            y[i] = x[i] ** 2
        for i in x:
            a = 0.0
            for _ in range(3):
                a += ds.sin(x[i])
            x[i] = a

    both()
    error = refusal(both.grad)
    kinds = {type(part) for part in error.parts}
    assert kinds == {ds.KernelSimplicityError, ds.GlobalDataAccessError}
    assert [part.span.line for part in error.parts] == sorted({p.span.line for p in error.parts})


def test_one_reads_as_ever():
    p = Program()
    squares = p.kernels[1]
    squares()
    error = refusal(squares.grad)
    assert type(error) is ds.GlobalDataAccessError
    assert error.parts == (error,)
    assert str(error).startswith(
        "the gradient needs x as it was read, and the kernel changes it later"
    )
    assert error.hint.endswith("at the cost of memory (tape.stats())")


def test_a_value_changed_after_the_block():
    """No tape could have saved it: the advice is another one."""
    x, loss = field(4), field()

    @ds.kernel
    def squares():
        for i in x:
            loss[None] += x[i] ** 2

    tape = ds.Tape()
    with tape:
        squares()
    x[0] = 2.0
    error = refusal(lambda: tape.backward(loss))
    assert "lifted" not in str(error)
    assert error.hint.startswith("change it after the backward pass")


def test_every_overwritten_value_of_a_pass():
    x, y, loss = field(4), field(4), field()

    @ds.kernel
    def first():
        for i in x:
            loss[None] += x[i] ** 2

    @ds.kernel
    def second():
        for i in y:
            loss[None] += y[i] ** 2

    def program():
        with ds.Tape(loss):
            for _ in range(3):
                first()
                second()
                x.fill(1.0)
                y.fill(1.0)

    error = refusal(program)
    assert [type(part) for part in error.parts] == [ds.GlobalDataAccessError] * 2
    assert "To do for all of them" in str(error)
