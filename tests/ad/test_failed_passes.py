"""A backward pass that fails leaves no gradients, wherever it fails; the next one gives the right ones."""

import signal

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.record.entries import Computed, Copied, Launched, Stored, Wrote
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.record.replaced import Replaced
from diffsim.ad.reverse import backward as backward_pass
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session
from tests.support.gradients import central, field, numbers

pytestmark = pytest.mark.usefixtures("quick_code")

N = 4


class Failed(Exception):
    """Stands for whatever may go wrong."""


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(default_fp=ds.f64)


class Program:
    """Every kind of entry that a tape holds: launches, writes and copies from Python, arguments that are
    fields, values returned, a function with a gradient of its own, a rollout.
    """

    def __init__(self):
        self.x, self.w, self.y, self.z, self.s = (field(N, name=n) for n in "xwyzs")
        self.gain, self.loss = field(name="gain"), field(name="loss")
        self.inputs = self.x, self.w, self.gain
        self.start()

    def start(self):
        self.x.from_numpy(numbers(N, lo=0.5, hi=1.5))
        self.w.from_numpy(numbers(N, seed=1, lo=0.5, hi=1.5))
        self.gain[None] = 1.25
        for f in (self.y, self.z, self.s, self.loss):
            f.fill(0.0)

    def values(self):
        return {f: f.to_numpy() for f in (*self.inputs, self.y, self.z, self.s, self.loss)}

    def grads(self):
        return [f.grad.to_numpy() for f in self.inputs]

    @ds.kernel
    def multiply(self, by: ds.f64):
        for i in self.x:
            self.y[i] = by * self.x[i] * self.w[i]

    @ds.kernel
    def damp(self):
        for i in self.s:
            self.s[i] = ds.sin(self.s[i]) * self.w[i]

    @ds.kernel
    def add(self):
        for i in self.z:
            self.loss[None] += self.z[i] ** 2 + self.s[i]

    @ds.kernel
    def length(self) -> ds.f64:
        total = 0.0
        for i in self.y:
            total += self.y[i] ** 2
        return total

    @ds.ad.grad_replaced
    def twice(self):
        self.multiply(2.0)

    @ds.ad.grad_for(twice)
    def twice_backward(self):
        self.multiply.grad(2.0)

    def run(self):
        self.multiply(self.gain)
        self.y[1] = 0.5
        self.z.copy_from(self.y)
        self.s.copy_from(self.x)
        ds.ad.checkpoint(lambda t: self.damp(), 5, state=[self.s], snapshots=2)
        self.add()
        self.twice()
        self.loss[None] += self.length()


class Overwriting(Program):
    """What can be replayed of it; it overwrites what its adjoint needs."""

    def run(self):
        self.multiply(self.gain)
        self.y[1] = 0.5
        self.z.copy_from(self.y)
        self.s.copy_from(self.x)
        for _ in range(3):
            self.damp()
        self.add()


def fail_at(monkeypatch, k):
    """Fail just before (even k) or after (odd k) the adjoint number k // 2 of all entries.

    Returns:
        a list of the entries whose turn it was.
    """
    turns = []

    def failing(old):
        def backward(entry, *args):
            turns.append(entry)
            if k == 2 * (len(turns) - 1):
                raise Failed
            last = k == 2 * (len(turns) - 1) + 1
            found = old(entry, *args)
            if last:
                raise Failed
            return found

        return backward

    def entry_by_entry(record, run):
        for entry in reversed(record):
            entry.backward(run)

    # Plain launches have no entries of their own there.
    monkeypatch.setattr(backward_pass, "run_rows", entry_by_entry)
    for kind in (Launched, Wrote, Stored, Copied, Computed):
        monkeypatch.setattr(kind, "backward", failing(kind.backward))
    monkeypatch.setattr(Saved, "restore", failing(Saved.restore))
    init = Replaced.__init__

    def make(entry, backward, *args, **kwargs):
        init(entry, lambda: failing(lambda _: backward())(entry), *args, **kwargs)

    monkeypatch.setattr(Replaced, "__init__", make)
    return turns


def are_nan(program):
    return all(np.isnan(g).all() for g in program.grads())


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7)


def gradients_by_differences(make):
    """Of the loss with respect to each input."""
    p = make()

    def loss(f):
        def at(moved):
            p.start()
            f.from_numpy(moved)
            p.run()
            return p.loss[None]

        return at

    p.start()
    return [central(loss(f), f.to_numpy()) for f in p.inputs]


@pytest.mark.parametrize("options", [{}, {"in_place": "save"}], ids=["refuse", "save"])
@pytest.mark.parametrize("make", [Program, Overwriting])
def test_wherever_it_fails(make, options, monkeypatch):
    """And afterwards the same tape, and a new one, give what they always gave."""
    if make is Overwriting:
        options = {"in_place": "save"}
    expected = gradients_by_differences(make)
    failures = 0
    for k in range(400):
        p = make()
        with monkeypatch.context() as patch:
            turns = fail_at(patch, k)
            tape = ds.Tape(**options)
            with tape:
                p.run()
            values = p.values()
            turns.clear()
            try:
                tape.backward(p.loss)
            except Failed as error:
                failures += 1
                assert are_nan(p)
                assert "are NaN now" in error.__notes__[0]
                assert len(error.__notes__) == 1
            else:
                assert len(turns) <= k // 2
                break
        tape.zero()
        try:
            tape.backward(p.loss)
        except ds.AutodiffError as error:
            assert "failed while it put back what s had held" in str(error)
            assert isinstance(turns[k // 2], Saved)
        else:
            for f, v in values.items():
                np.testing.assert_array_equal(f.to_numpy(), v)
            same(p.grads(), expected)
            tape.backward(p.loss)  # a second one adds up
            same(p.grads(), [2 * g for g in expected])
        p.start()
        with ds.Tape(p.loss, **options):
            p.run()
        same(p.grads(), expected)
    assert failures > 20


def test_a_replayed_tape_that_fails(monkeypatch):
    """After each number of its native steps: as an interrupt may."""
    expected = gradients_by_differences(Overwriting)
    p = Overwriting()
    tape = ds.Tape(in_place="save")
    with tape:
        p.run()
    kind = type(session.backend.new_command_list())
    run = kind.run
    failures = 0
    for k in range(100):
        p.start()
        tape.zero()
        tape.replay()
        values = p.values()
        left = [k]

        def until(self, begin=0, end=None, left=left):
            if end is not None or len(self) <= left[0]:
                left[0] -= len(self) if end is None else 0
                return run(self, begin, end)
            run(self, begin, left[0])
            left[0] = 1000
            raise Failed

        with monkeypatch.context() as patch:
            patch.setattr(kind, "run", until)
            try:
                tape.backward(p.loss)
            except Failed:
                failures += 1
                assert are_nan(p)
            else:
                break
        for f, v in values.items():
            np.testing.assert_array_equal(f.to_numpy(), v)
        tape.zero()
        tape.backward(p.loss)
        same(p.grads(), expected)
    assert failures > 5


@pytest.mark.parametrize("retained", [False, True])
def test_a_hook_that_raises(retained):
    for step in range(6):
        p = Overwriting()
        tape = ds.Tape(in_place="save", retain_grad=[p.y] if retained else False)
        with tape:
            p.run()

        @tape.on_backward
        def hook(k, grads, step=step):
            if k == step:
                raise Failed

        if step < 5:
            with pytest.raises(Failed):
                tape.backward(p.loss)
            assert are_nan(p)
            assert np.isnan(p.y.grad.to_numpy()).all()
        else:
            tape.backward(p.loss)
            same(p.grads(), gradients_by_differences(Overwriting))


def raise_failed():
    raise Failed


def test_gradients_that_are_not_on_the_tape_stay():
    p, other = Program(), field(N)
    other.grad.fill(3.0)
    tape = ds.Tape()
    with tape:
        p.add()
        tape.record_func(raise_failed, [p.x])
    with pytest.raises(Failed):
        tape.backward(p.loss)
    assert np.isnan(p.x.grad.to_numpy()).all()
    assert np.isnan(p.z.grad.to_numpy()).all()
    np.testing.assert_array_equal(other.grad.to_numpy(), 3.0)

    def touches():
        other.grad.fill(4.0)
        raise Failed

    tape.reset()
    with tape:
        tape.record_func(touches, [p.x])
    with pytest.raises(Failed):
        tape.backward(grads={p.x: 1.0})
    assert np.isnan(other.grad.to_numpy()).all()  # but what the pass did write to is


def test_a_check_for_nan_that_finds_one():
    p = Program()

    @ds.kernel
    def difference():
        p.loss[None] += ds.log(p.x[0]) - ds.log2(p.x[0])

    p.x[0] = 5e-324  # inf - inf
    with pytest.raises(ds.AutodiffError, match="became infinite in the adjoint of difference"):
        with ds.Tape(p.loss, check_nan=True):
            p.multiply(p.gain)
            difference()
    assert np.isnan(p.x.grad.to_numpy()).all()


def test_a_pass_that_is_refused_before_it_begins_changes_nothing():
    p = Program()

    @ds.kernel
    def racing():
        for i in p.y:
            p.y[i] = p.y[(i + 1) % N] ** 2

    tape = ds.Tape()
    with tape:
        p.multiply(p.gain)
        racing()
    p.x.grad.fill(2.0)
    with pytest.raises(ds.GlobalDataAccessError) as caught:
        tape.backward(grads={p.y: 1.0})
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 2.0)
    assert not hasattr(caught.value, "__notes__")


def test_a_value_that_changed_is_found_on_the_way():
    p = Program()
    with pytest.raises(ds.GlobalDataAccessError) as caught:
        with ds.Tape(p.loss):
            p.multiply(p.gain)
            p.z.copy_from(p.y)
            p.add()
            p.w.fill(1.0)
    assert are_nan(p)
    assert "tape.zero()" in caught.value.__notes__[0]
    with ds.Tape(p.loss):  # sets them to 0
        p.multiply(p.gain)
        p.z.copy_from(p.y)
        p.add()
    same([p.x.grad.to_numpy()], [2 * 1.25**2 * p.x.to_numpy()])


# ---- interrupts; one kernel's gradient


def interrupted(act):
    """Run it until a signal comes, such as Ctrl-C sends."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            act()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return caught.value


@pytest.mark.host
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers for signals")
@pytest.mark.parametrize("how", ["kernel.grad", "tape", "replay", "function.grad"])
def test_a_gradient_that_is_interrupted(how):
    x, loss, other = field(name="x"), field(name="loss"), field(name="other")
    turns = ds.field(ds.i64, shape=())
    x[None], turns[None] = 2.0, 3

    @ds.kernel
    def long():
        for i in range(turns[None]):
            loss[None] += ds.sin(x[None]) * (i + 1)

    @ds.ad.grad_replaced
    def function():
        long()

    @ds.ad.grad_for(function)
    def _():
        other.grad[None] = 1.0
        long.grad()

    long()
    long.grad()  # compiled beforehand: the signal is to come while it runs
    tape = ds.Tape()
    with tape:
        long()
    if how == "replay":
        tape.replay()
    x.grad[None], other.grad[None], loss.grad[None] = 5.0, 5.0, 1.0
    turns.storage.element(0)[0] = 2**40  # which nobody hears of
    act = {"kernel.grad": long.grad, "function.grad": function.grad}
    error = interrupted(act.get(how, lambda: tape.backward(loss)))
    assert "are NaN now" in error.__notes__[0]
    assert np.isnan(x.grad[None])
    assert np.isnan(other.grad[None]) if how == "function.grad" else other.grad[None] == 5.0
    turns.storage.element(0)[0] = 3
    x.grad[None], loss.grad[None] = 5.0, 1.0
    long.grad()
    np.testing.assert_allclose(x.grad[None], 5.0 + 6 * np.cos(2.0))


def test_a_kernels_gradient_that_is_refused_changes_nothing():
    p = Program()
    p.multiply(2.0)
    p.x.grad.fill(3.0)
    p.w.fill(1.0)
    with pytest.raises(ds.GlobalDataAccessError) as caught:
        p.multiply.grad(2.0)
    np.testing.assert_array_equal(p.x.grad.to_numpy(), 3.0)
    assert not hasattr(caught.value, "__notes__")


def test_a_second_interrupt_is_no_way_around(monkeypatch):
    p = Program()
    tape = ds.Tape()
    with tape:
        p.add()
        tape.record_func(raise_failed, [p.x])
    spoil, calls = Field.spoil, []

    def slow(f):
        calls.append(f)
        if len(calls) in (1, 3):
            raise KeyboardInterrupt
        spoil(f)

    monkeypatch.setattr(Field, "spoil", slow)
    with pytest.raises(Failed):
        tape.backward(p.loss)
    assert np.isnan(p.x.grad.to_numpy()).all()
    assert np.isnan(p.z.grad.to_numpy()).all()


def test_the_inputs_of_a_rollout_are_on_the_tape():
    """What its steps read is among the gradients that `tape.zero` sets to 0."""
    p = Program()
    p.s.fill(1.0)
    tape = ds.Tape()
    with tape:
        ds.ad.checkpoint(lambda t: p.damp(), 3, state=[p.s], snapshots=1)
        p.add()
    tape.backward(p.loss)
    assert p.w in tape.gradients
    assert p.w.grad.to_numpy().any()
    tape.zero()
    assert not p.w.grad.to_numpy().any()
