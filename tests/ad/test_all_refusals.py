"""What the rules forbid in a program comes in one error, by kernel and line, with what would lift it."""

import numpy as np
import pytest

import diffsim as ds
from tests.fuzz import advice
from tests.support.gradients import field


@pytest.fixture(autouse=True)
def enforced(cpu):
    ds.init(default_fp=ds.f64)
    yield
    ds.init()


class Program:
    """Overwrites what a gradient needs and leaves out a gradient, beside loops that carry values."""

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
        "GlobalDataAccessError",  # powers, and squares after it
        "MissingGradientError",
        "GlobalDataAccessError",  # squares in itself
    ]
    lines = [part.span.line for part in error.parts]
    assert lines == sorted(lines)
    first, second = str(error).splitlines()[:2]
    assert first == "the gradient is refused for 3 reasons"
    switch = ': ds.init(rules="lifted"), at the cost of memory (tape.stats())'
    assert second == f"  Hint for all of them{switch}"
    assert str(error).count("tape.stats()") == 1
    assert error.span is error.parts[0].span
    ds.init(default_fp=ds.f64, kernel_simplicity="strict")
    p = Program()
    error = refusal(lambda: recorded(p))
    assert [type(part).__name__ for part in error.parts] == [
        "KernelSimplicityError",
        *kinds[1:],
    ]
    # A promise of the program's own, which the switch does not break.
    assert str(error).splitlines()[1] == f"  Hint for 2, 3{switch}"


def test_the_line_that_lifts_them_all_does():
    ds.init(default_fp=ds.f64, rules="lifted")
    p = Program()
    recorded(p)
    np.testing.assert_allclose(p.x.grad.to_numpy(), 5 * np.array([1.0, 2.0, 3.0, 4.0]) ** 4)


def test_all_of_a_kernel():
    x, y = field(4), field(4)

    @ds.kernel(simplicity="strict")
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
    assert "Hint for all of them" in str(error)


class Races:
    """Two kernels with launches in which iterations meet, one of a shape that it promises not to have."""

    def __init__(self):
        x, y, loss = field((4, 4)), field((4, 4)), field()
        self.x, self.loss = x, loss

        @ds.kernel
        def shift(t: ds.i32, u: ds.i32):
            for i in range(3):
                x[u, i] = x[t, i + 1] ** 2

        @ds.kernel(simplicity="strict")
        def powers(t: ds.i32, u: ds.i32):
            for i in range(3):
                a = 1.0
                for _ in range(3):
                    a *= y[t, i + 1]
                y[u, i] = a

        @ds.kernel
        def total():
            for I in ds.grouped(x):
                loss[None] += x[I] + y[I]

        self.shift, self.powers, self.total = shift, powers, total


def test_launches_are_in_the_error_of_all():
    """What arguments decide comes with what is refused for every launch, also of a kernel that is refused."""
    p = Races()

    def program(rows):
        with ds.Tape(p.loss):
            p.shift(*rows)
            p.powers(*rows)
            p.total()

    assert len(refusal(lambda: program((0, 1))).parts) == 1  # the shape
    error = refusal(lambda: program((2, 2)))
    kinds = [type(part).__name__ for part in error.parts]
    assert kinds == ["GlobalDataAccessError", "KernelSimplicityError", "GlobalDataAccessError"]
    assert [part.message.startswith("t = 2, u = 2: ") for part in error.parts] == [
        True,
        False,
        True,
    ]
    assert [part.span.line for part in error.parts] == sorted(
        part.span.line for part in error.parts
    )


def test_stale_values_and_launches_of_a_kernel():
    """Outside tapes: what was overwritten, and iterations that meet."""
    p = Races()
    p.shift(1, 1)
    with pytest.raises(ds.GlobalDataAccessError, match="t = 1, u = 1: "):
        p.shift.grad(1, 1)
    p.x.fill(1.0)
    error = refusal(lambda: p.shift.grad(1, 1))
    assert len(error.parts) == 2
    assert any("run shift(...) again on the same values" in part.hint for part in error.parts)
    assert any(part.message.startswith("t = 1, u = 1: ") for part in error.parts)


def test_each_of_two_stale_values_has_its_advice():
    x, y, loss = field(4), field(4), field()

    @ds.kernel
    def products():
        for i in x:
            loss[None] += x[i] * y[i]

    products()
    x.fill(1.0)
    y.fill(1.0)
    error = refusal(products.grad)
    assert len(error.parts) == 2
    assert all("run products(...) again on the same values" in part.hint for part in error.parts)


def test_launches_of_a_kernel_that_overwrites_what_it_reads():
    """Once it may save its state, it is refused for what the launch does: both are said at once."""
    x, y, loss = field(6), field(6), field()

    @ds.kernel
    def step():
        for i in x:
            x[i] = x[i] ** 2
        for i in x:
            y[(i * i) % 4] = x[i]

    def program(**options):
        with ds.Tape(loss, **options):
            step()

    error = refusal(program)
    assert len(error.parts) == 2
    assert ['in_place="save"' in part.hint for part in error.parts] == [True, False]
    assert "both store y[" in error.parts[1].message
    assert refusal(lambda: program(in_place="save")).message == error.parts[1].message


def test_launches_that_fail_different_conditions():
    """Nothing lifts a race, though a saving tape differentiates the first launch of the kernel."""
    x, y, loss = field(12), field(12), field()

    @ds.kernel
    def step(b: ds.i32):
        for i in range(4):
            x[i + 6] = ds.sin(y[i]) * x[i + b]

    def program(*launches, **options):
        with ds.Tape(loss, **options):
            for b in launches:
                step(b)
            total()

    @ds.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    assert refusal(lambda: program(6)).is_lifted
    program(6, in_place="save")
    error = refusal(lambda: program(6, 4, 4, 5))
    race = "b = 4: iteration 2 of this parallel loop reads x[6], and iteration 0 writes it"
    assert not error.is_lifted
    assert [part.message.startswith(race) for part in error.parts].count(True) == 1
    assert refusal(lambda: program(6, 4, in_place="save")).message.startswith(race)


def test_steps_of_rollouts():
    """What a step is refused for stands beside what the program around the rollout is refused for."""
    x, y, q, z, loss = field(4), field(4), field(4), ds.field(ds.f64, 4), field()

    @ds.kernel
    def squares():
        for i in q:
            q[i] = q[i] ** 2

    @ds.kernel
    def halves():
        for i in x:
            q[i // 2] = x[i] ** 2

    @ds.kernel
    def through():
        for i in x:
            z[i] = y[i] ** 2
        for i in x:
            y[i] = z[i] * x[i]

    def step(t):
        halves()
        through()

    def program(**options):
        with ds.Tape(loss, **options):
            squares()
            ds.ad.checkpoint(step, 3, state=[y])

    x.grad.fill(7.0)
    error = refusal(program)
    found = [part.message for part in error.parts]
    assert [text.partition(",")[0] for text in found] == [
        "the gradient needs q as it was read",
        "iterations 0 and 1 of this parallel loop both store q[0]",
        "z is given a value that depends on something with a gradient",
    ]
    assert "Hint for 1, 3: " in str(error)
    # Refused before the pass has begun: no gradient is poisoned.
    assert not np.isnan(x.grad.to_numpy()).any()
    kept = refusal(lambda: program(in_place="save"))
    assert [part.message for part in kept.parts] == found[1:]


@pytest.mark.parametrize("seed", [2, 8])
def test_advice_is_followed(seed, quick_code):
    """Options that refusals of random programs name; the gradients then are those of dual numbers."""
    text, lent = advice.make(seed)
    assert advice.verdict(text, seed, lent) == "right"


@pytest.mark.parametrize("doubled", [False, True])
def test_the_switch_is_no_advice_for_launches_that_cannot_be_asked(doubled):
    """Whether two iterations met depends on indices that were overwritten since: nobody knows it now."""
    x, y, loss = field(4), field(4), field()
    place = ds.field(ds.i32, shape=4)

    @ds.kernel
    def spread(a: ds.i32):
        for i in place:
            place[i] = (i * a) % 4
        for i in x:
            y[place[i]] = x[i] ** 2

    @ds.kernel
    def sums():
        for i in y:
            loss[None] += y[i]

    def run(**options):
        with ds.Tape(loss, **options):
            for a in (2 if doubled else 3, 1):
                spread(a)
                sums()

    error = refusal(run)
    assert not error.is_lifted
    assert 'in_place="save"' in str(error)
    assert "rules=" not in str(error)
    if doubled:
        refusal(lambda: run(in_place="save"))
    else:
        run(in_place="save")
