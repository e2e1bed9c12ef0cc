"""A gradient is right, or it is refused with an error that names the line: outside recorded launches."""

import gc
import importlib.util
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.record.entries import Launched
from diffsim.runtime.kernels.launch_history import STRETCH
from tests.fuzz import by_hand
from tests.support.gradients import field, numbers


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(default_fp=ds.f64)


# ---- kernel.grad of a kernel that was never launched


def test_what_the_kernel_itself_makes_is_missing_before_its_first_launch():
    x, s, loss = field(1), field(1), field()

    @ds.kernel
    def k():
        for i in x:
            s[i] = 2.0 * x[i]
        for i in x:
            loss[None] += s[i] ** 2

    x[0], loss.grad[None] = 3.0, 1.0
    with pytest.raises(
        ds.GlobalDataAccessError, match=r"never launched[\s\S]*launch it first"
    ) as e:
        k.grad()
    assert "s[i] ** 2" in e.value.span.text()
    assert x.grad[0] == 0
    k()
    k.grad()
    assert x.grad[0] == 24.0


def test_what_an_array_argument_lacks_before_the_first_launch():
    x, s, loss = (ds.ndarray(ds.f64, 1, needs_grad=True) for _ in range(3))

    @ds.kernel
    def k(x: ds.types.ndarray(), s: ds.types.ndarray(), loss: ds.types.ndarray()):
        for i in x:
            s[i] = 2.0 * x[i]
        for i in x:
            loss[0] += s[i] ** 2

    with pytest.raises(ds.GlobalDataAccessError, match="needs s as k leaves it"):
        k.grad(x, s, loss)


def test_an_adjoint_that_needs_nothing_of_the_launch_needs_no_launch():
    x, y = field(4), field(4)
    x.from_numpy(numbers(4))

    @ds.kernel
    def step(t: ds.i32):
        x[t + 1] = x[t] ** 2
        y[t] = ds.sin(x[t])

    y.grad[2], x.grad[3] = 1.0, 10.0
    v = x[2]
    step.grad(2)
    np.testing.assert_allclose(x.grad[2], np.cos(v) + 20.0 * v, rtol=1e-14)


def test_random_numbers_are_those_of_a_launch():
    x, y = field(3), field(3)

    @ds.kernel
    def shake():
        for i in x:
            y[i] = x[i] * ds.random()

    @ds.kernel
    def noise():
        for i in x:
            y[i] = x[i] + ds.random()

    y.grad.fill(1.0)
    with pytest.raises(ds.AutodiffError, match="random numbers of a launch"):
        shake.grad()
    noise.grad()  # needs none of them
    assert x.grad.to_numpy().tolist() == [1.0] * 3


# ---- several launches of one kernel, and its gradients by hand


class Squares:
    def __init__(self):
        self.x, self.loss = field(1, name="x"), field(name="loss")
        self.start(1.0)

    def start(self, x):
        self.x[0] = x
        self.x.grad.fill(0.0)
        self.loss.grad[None] = 1.0

    @ds.kernel
    def square(self):
        for i in self.x:
            self.loss[None] += self.x[i] ** 2

    @ds.kernel
    def scaled(self, by: ds.f64):
        for i in self.x:
            self.loss[None] += by * self.x[i] ** 2

    @ds.kernel
    def double(self):
        for i in self.x:
            self.x[i] *= 2.0


@pytest.mark.parametrize("takes", [False, True])
def test_a_gradient_belongs_to_one_launch(takes):
    """x^2 + (2 x)^2: at x = 1 the slope is 10, and the first launch saw an x that is gone."""
    s = Squares()
    launch, grad = (
        (lambda: s.scaled(1.0), lambda: s.scaled.grad(1.0)) if takes else (s.square, s.square.grad)
    )
    launch()
    s.double()
    launch()
    grad()
    s.double.grad()
    assert s.x.grad[0] == 8.0
    with pytest.raises(ds.GlobalDataAccessError, match=r"earlier launch[\s\S]*double") as caught:
        grad()
    assert s.x.grad[0] == 8.0  # nothing was added
    assert "self.x[i] ** 2" in caught.value.span.text()
    s.x[0] = 1.0
    launch()  # as the advice says
    grad()
    assert s.x.grad[0] == 10.0


def test_launches_that_saw_the_same_are_differentiated_as_often_as_there_are():
    s = Squares()
    for _ in range(3):
        s.square()
    for _ in range(3):
        s.square.grad()
    assert s.x.grad[0] == 6.0


def test_one_launch_has_gradients_for_as_many_seeds_as_wanted():
    s = Squares()
    for x in (1.0, 3.0, 5.0):  # each time a launch and two gradients: what came before is done with
        s.start(x)
        s.square()
        for seed in (1.0, 10.0):
            s.loss.grad[None] = seed
            s.square.grad()
        assert s.x.grad[0] == 11.0 * 2.0 * x


def test_a_launch_that_is_made_again_is_the_last_one():
    """By hand: the state is put back, the step launched again, then differentiated."""
    s, states = Squares(), []
    for _ in range(5):
        states.append(s.x[0])
        s.square()
        s.double()
    expected = sum(2 * 2 ** (2 * k) for k in range(5))
    for x in reversed(states):
        s.double.grad()
        s.x[0] = x
        s.square()
        s.square.grad()
    assert s.x.grad[0] == expected


def test_a_refused_gradient_does_not_count():
    s = Squares()
    s.square()
    s.x[0] = 2.0
    for _ in range(2):
        with pytest.raises(ds.GlobalDataAccessError):
            s.square.grad()
    s.square()
    s.square.grad()
    with pytest.raises(ds.GlobalDataAccessError, match="was called 2 times"):
        s.square.grad()


def test_launches_with_random_numbers_are_told_apart():
    x, y = field(3), field(3)
    x.fill(1.0)

    @ds.kernel
    def shake():
        for i in x:
            y[i] += x[i] * ds.random()

    y.grad.fill(1.0)
    shake()
    one = y.to_numpy()
    for _ in range(2):  # of one launch
        x.grad.fill(0.0)
        shake.grad()
        np.testing.assert_array_equal(x.grad.to_numpy(), one)
    shake()
    shake()
    shake.grad()
    with pytest.raises(ds.AutodiffError, match="random numbers of its own"):
        shake.grad()


@pytest.mark.parametrize("changes", [False, True])
def test_more_launches_than_are_noted(changes):
    """Launches in the middle may be forgotten; the first one is not."""
    s, count = Squares(), 40 * STRETCH
    for k in range(count):
        s.scaled(2.0)
        s.scaled(float(k))  # other arguments
        if changes and not k:
            s.x[0] = 3.0
    for _ in range(count - changes):
        try:
            s.scaled.grad(2.0)
        except ds.GlobalDataAccessError:
            assert changes
            return
    assert not changes
    assert s.x.grad[0] == 4.0 * count
    assert len(s.scaled.specializations) == 1
    (special,) = s.scaled.specializations.values()
    assert len(special.launches.times[(2.0,)]) < count


def test_launches_of_a_replay_count():
    s = Squares()
    tape = ds.Tape()
    with tape:
        s.square()
        s.double()
        s.square()
    s.x[0] = 1.0
    tape.replay()
    s.square.grad()
    s.double.grad()
    with pytest.raises(ds.GlobalDataAccessError, match="earlier launch"):
        s.square.grad()
    tape = ds.Tape()
    with tape:
        s.square()
        s.square()
    s.x[0] = 7.0
    tape.replay()
    s.x.grad.fill(0.0)
    s.square.grad()
    s.square.grad()
    assert s.x.grad[0] == 28.0


def test_an_array_at_the_place_of_another_was_not_launched():
    """An array that is gone, and one made later where it was."""

    @ds.kernel
    def count(a: ds.types.ndarray()):
        for i in a:
            a[i] += 1.0

    for turn in range(20):
        a = ds.ndarray(ds.f64, 3, needs_grad=True)
        if turn:
            with pytest.raises(ds.AutodiffError, match="was not launched with these arguments"):
                count.grad(a)
        count(a)
        count.grad(a)
        del a


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_programs_by_hand(first):
    """Programs of `make fuzz`; enough of them are neither refused nor the same."""
    said = [by_hand.verdict(by_hand.make(seed)) for seed in range(first, first + 20)]
    assert set(said) == {"right", "refused"}


# ---- checks that compared nothing


def programs():
    x, y = field(3), field(3)
    x.from_numpy(numbers(3))

    @ds.func
    def wrong(a):
        return a * a

    @ds.func_grad(wrong)
    def adj_wrong(a, g):
        ds.adjoint[a] += 7.0 * g

    @ds.kernel
    def bad():
        for i in x:
            y[i] = wrong(x[i])

    tape = ds.Tape()
    with tape:
        bad()
    return x, y, bad, tape


@pytest.mark.parametrize(
    "options",
    [{}, {"max_inputs": 0}, {"max_outputs": 0}, {"max_inputs": -1}, {"max_outputs": None}],
)
def test_zero_means_all(options):
    x, y, bad, tape = programs()
    assert not ds.ad.gradcheck(bad, [x], [y], raise_exception=False, **options)
    assert not ds.ad.gradcheck_tape(tape, raise_exception=False, **options)
    assert (
        ds.ad.jacobian(bad, [x], [y], max_outputs=0)[x, y].tolist() == np.diag([7.0] * 3).tolist()
    )
    assert not np.isnan(ds.ad.jacobian_fd(bad, [x], [y], max_inputs=0)[x, y]).any()


@pytest.mark.parametrize("kernels", [None, [], (), "bad", ["bad"]])
def test_no_names_mean_all_kernels(kernels):
    *_, tape = programs()
    assert not ds.ad.gradcheck_tape(tape, kernels=kernels, skip_kernels=[], raise_exception=False)


def test_a_name_that_is_no_kernels_is_an_error():
    *_, tape = programs()
    with pytest.raises(ds.ArgumentError, match=r"no kernel that is named 'bda'[\s\S]*mean 'bad'"):
        ds.ad.gradcheck_tape(tape, kernels=["bda"])
    with pytest.raises(ds.ArgumentError, match="its kernels are bad"):
        ds.ad.gradcheck_tape(tape, kernels="quite_other")
    assert not ds.ad.gradcheck_tape(tape, skip_kernels="bda", raise_exception=False)


def test_a_check_that_compares_nothing_is_an_error():
    *_, tape = programs()
    constant = field(3, grad=False)

    @ds.kernel
    def fill():
        for i in constant:
            constant[i] = 1.0

    with pytest.raises(ds.AutodiffError, match="nothing to compare"):
        ds.ad.gradcheck_tape(tape, skip_kernels=["bad"])
    with pytest.raises(ds.AutodiffError, match="nothing to compare"):
        ds.ad.gradcheck_tape(ds.Tape())
    other = ds.Tape()
    with other:
        fill()
    with pytest.raises(ds.AutodiffError, match="nothing to compare"):
        ds.ad.gradcheck_tape(other)


# ---- threads that come and go


@pytest.mark.host
def test_tapes_and_writes_in_many_threads():
    """Tapes begin and end in some threads while others write, read, launch and make fields."""
    until, failures = threading.Event(), []
    fields = [field(8) for _ in range(6)]

    @ds.kernel
    def touch(k: ds.f64):
        for i in fields[0]:
            fields[0][i] += k

    def record(f):
        tape = ds.Tape()
        with tape:
            f[0] = 1.0
        with ds.Tape(), ds.ad.no_grad():
            f.fill(2.0)

    def write(f):
        f.fill(0.0)
        f[1] = f[0] + 1.0
        f.copy_from(fields[5])
        f.from_numpy(np.ones(8))
        touch(1.0)

    def make(_):
        field(2).fill(1.0)
        for f in diffsim_fields():
            assert f.grad is not None

    def keep_on(act, f):
        try:
            while not until.is_set():
                act(f)
        except BaseException as error:
            failures.append(error)
            until.set()

    acts = [record, record, write, write, make]
    threads = [
        threading.Thread(target=keep_on, args=(act, f))
        for act, f in zip(acts, fields, strict=False)
    ]
    for t in threads:
        t.start()
    until.wait(1.5)
    until.set()
    for t in threads:
        t.join()
    assert not failures, failures


def diffsim_fields():
    from diffsim.runtime.session import session
    from diffsim.runtime.threads import members

    return members(session.with_grad)


def test_who_listens_where_no_tape_records_is_nobody_for_good():
    """What a thread was told before another one began to record stays the answer."""
    from diffsim.runtime.session import session

    listener = session.recorders and session.listener
    with ds.Tape():
        assert not listener
        inside = session.recorders
    assert inside
    assert not session.recorders


# ---- cells of a notebook that are edited

CELL = """
@ds.kernel
def step():
    for i in x:
        loss[None] += {} * x[i]
"""
CLASS = """
class Model:
    @ds.kernel
    def step(self):
        for i in x:
            loss[None] += {} * x[i]
"""


@pytest.fixture
def notebook(tmp_path):
    """Runs cells of one notebook."""
    name = f"notebook_{tmp_path.name.replace('-', '_')}"
    sys.modules[name] = module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(name, None)
    )
    module.__dict__.update(ds=ds, x=field(3, name="x"), loss=field(name="loss"))

    def run(text):
        file = tmp_path / f"cell{len(list(tmp_path.iterdir()))}.py"
        file.write_text(text)
        exec(compile(text, str(file), "exec"), module.__dict__)
        return module

    yield run
    del sys.modules[name]


@pytest.mark.parametrize("text", [CELL, CLASS])
def test_a_replay_does_not_run_what_was_edited_since(notebook, text):
    cells = notebook(text.format(2.0))
    step = cells.Model().step if text is CLASS else cells.step
    tape = ds.Tape(cells.loss)
    with tape:
        step()
    notebook(text.format(2.0) + "# a comment more\n")
    tape.replay()
    tape.backward()
    assert cells.x.grad.to_numpy().tolist() == [2.0] * 3
    notebook(text.format(5.0))
    with pytest.raises(
        ds.AutodiffError, match=r"step was defined anew[\s\S]*the new step"
    ) as caught:
        tape.replay()
    shown = str(caught.value)
    assert "cell0.py" in shown
    assert "cell2.py" in shown
    cells.x.grad.fill(0.0)
    tape.backward()  # of what ran
    assert cells.x.grad.to_numpy().tolist() == [2.0] * 3
    step = cells.Model().step if text is CLASS else cells.step
    with tape:
        step()
    tape.replay()
    tape.backward()
    assert cells.x.grad.to_numpy().tolist() == [5.0] * 3


def test_kernels_of_one_name_that_a_function_makes_are_not_edited(notebook):
    x, loss = field(3), field()

    def make(double):
        if double:

            @ds.kernel
            def step():
                for i in x:
                    loss[None] += 2.0 * x[i]
        else:

            @ds.kernel
            def step():
                for i in x:
                    loss[None] += x[i]

        return step

    one, two = make(True), make(False)
    tape = ds.Tape(loss)
    with tape:
        one()
        two()
    tape.replay()
    tape.backward()
    assert x.grad.to_numpy().tolist() == [3.0] * 3


# ---- long tapes


def test_what_a_long_tape_takes_of_memory():
    """So many bytes for each launch, for the record and its first replay, forward and backward."""
    n = 4000
    x, loss = field(n + 1), field()

    @ds.kernel
    def step(t: ds.i32):
        x[t + 1] = 0.5 * x[t]

    @ds.kernel
    def end():
        loss[None] += x[n]

    for t in range(n):
        step(t)  # kernels know what they were launched with, also without a tape
    end()
    taken = []
    for steps in (n // 2, n):
        gc.collect()
        tracemalloc.start()
        tape = ds.Tape(loss)
        with tape:
            for t in range(n - steps, n):
                step(t)
            end()
        recorded = tracemalloc.get_traced_memory()[0]
        tape.replay()
        tape.backward()
        taken.append((recorded, *tracemalloc.get_traced_memory()))
        tracemalloc.stop()
    assert x.grad[0] == 0.5**n
    (*_, half), (recorded, held, peak) = taken
    assert peak < 2.2 * half + 50_000
    assert (
        recorded < 100 * n
    )  # of which are an int of Python, and the readings of the clock for kernel.grad
    assert held < 170 * n
    assert peak < 200 * n


@pytest.mark.parametrize("t", [-1, -2, 4, 10**6])
@pytest.mark.parametrize("again", [False, True])
def test_rows_that_are_not_there_are_not_written(t, again):
    """A launch that skips row -1 leaves the last row alone: d(x[3]**2)/dx[3] is as it was."""
    x, loss = field(4), field()
    x[3] = 1.5

    @ds.kernel
    def skipped(t: ds.i32):
        if t >= 0 and t < 4:
            x[t] = 7.0

    @ds.kernel
    def square(t: ds.i32):
        loss[None] += x[t] ** 2

    tape = ds.Tape(loss)
    with tape:
        square(3)
        skipped(t)
    if again:
        tape.replay()
        tape.backward()
    assert x.grad.to_numpy().tolist() == [0.0, 0.0, 0.0, 3.0]
    with pytest.raises(ds.GlobalDataAccessError), ds.Tape(loss):
        square(3)
        skipped(3)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_chain_that_breaks_between_two_launches_of_a_kernel(breaks):
    """A kernel that was fine when it was first launched reads what another one lost a gradient in."""
    x, y, loss = field(), ds.field(ds.f64, shape=()), field()

    @ds.kernel
    def end():
        loss[None] += y[None] + x[None]

    @ds.kernel
    def lose():
        y[None] = x[None] * 2

    def program():
        end()
        if breaks:
            lose()
            end()

    if not breaks:
        with ds.Tape(loss):
            program()
        assert x.grad[None] == 1.0
        return
    with pytest.raises(ds.MissingGradientError) as caught, ds.Tape(loss):
        program()
    assert "y[None] = x[None] * 2" in str(caught.value)


def test_launches_on_a_record_are_those_that_were():
    """Arguments of every kind, found in order, backward, by number; and what is done to the newest stays."""
    x, loss = field(8), field()

    @ds.kernel
    def one(t: ds.i32):
        x[t] += 1.0

    @ds.kernel
    def two(a: ds.f64, t: ds.i32):
        x[t] += a

    @ds.kernel
    def none():
        loss[None] += x[0]

    tape = ds.Tape()
    with tape:
        one(3)
        two(0.1, 4)
        none()
        x[1] = 2.0
        one(np.int32(5))
    texts = ["one(3)", "two(0.1, 4)", "none()", "", "one(5)"]

    def shown(entries):
        return [e.text() if isinstance(e, Launched) else "" for e in entries]

    entries = tape.entries
    assert shown(entries) == shown(entries[:]) == shown(entries[k] for k in range(5)) == texts
    assert shown(reversed(entries)) == texts[::-1]
    assert shown(entries.firsts()) == texts[:4]
    newest = entries.newest()
    newest.seed = 5
    assert entries[-1] is entries.newest() is newest
    assert shown(entries) == texts
    assert shown(entries.firsts()) == texts
    assert tape.stats().entries == 5
