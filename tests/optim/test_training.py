"""`ds.optim.train`: best values, resumed runs to the same bits, what it says of NaN, how Ctrl-C ends it."""

import csv
import os
import random
import signal

import numpy as np
import pytest

import diffsim as ds


@ds.data_oriented
class Fit:
    """(x - target)², with random numbers of all kinds."""

    def __init__(self, noise=0.0):
        self.x = ds.Vector.field(2, ds.f32, shape=3, needs_grad=True)
        self.scale = ds.field(ds.f64, shape=(), needs_grad=True)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)
        self.seen = ds.field(ds.i32, shape=())  # goes on from iteration to iteration
        self.noise = noise
        self.random = np.random.default_rng(1)

    @ds.kernel
    def measure(self, shift: ds.f64):
        for i in self.x:
            away = self.x[i] * self.scale[None] - i - shift - self.noise * ds.random(ds.f64)
            self.loss[None] += away.norm_sqr()

    @ds.kernel
    def count(self):
        self.seen[None] += 1

    def __call__(self):
        shift = 0.0
        if self.noise:
            drawn = self.random.normal() + random.random() + np.random.rand()  # noqa: NPY002
            shift = self.noise * drawn + 0.001 * self.seen[None]
        self.measure(shift)
        self.count()
        return self.loss

    def optimizer(self):
        self.scale.fill(1)
        return ds.optim.Adam([self.x, self.scale], ds.optim.warm_up(0.1, 5), clip_norm=1.0)


def train(fit, iterations, **options):
    return ds.optim.train(fit, fit.optimizer(), iterations, progress=False, **options)


def test_the_best_values_are_back_at_the_end(cpu):
    fit = Fit(noise=0.3)
    values = []
    run = train(fit, 30, callback=lambda run: values.append(fit.x.to_numpy()))
    assert run.iteration == len(run.losses) == 30
    assert run.best_loss == min(run.losses)
    assert run.best_iteration == 1 + run.losses.index(run.best_loss)
    assert (fit.x.to_numpy() == values[run.best_iteration - 1]).all()
    assert run.best_loss < run.losses[0] / 3
    assert not run.interrupted


def test_the_loss_is_0_before_each_run(cpu):
    fits = [Fit() for _ in range(3)]
    for fit, old in zip(fits, (0.0, 7.0, 7.0), strict=True):
        fit.loss.fill(old)
    plain, returned, named = fits
    runs = [train(plain, 4), train(returned, 4), train(named, 4, loss=named.loss)]
    assert runs[0].losses == runs[1].losses == runs[2].losses
    assert runs[0].losses[0] == pytest.approx(2 * (0 + 1 + 4))  # x is 0
    again = Fit()
    assert train(again, 4, replay=True).losses == runs[0].losses


def test_a_kernel_may_return_the_loss(cpu):
    x = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def measure() -> ds.f64:
        return (x[None] - 3.0) ** 2

    run = ds.optim.train(measure, ds.optim.SGD(x, 0.25), 3, progress=False)
    assert run.losses == [9.0, 2.25, 0.5625]


def rows(folder):
    with open(folder / "log.csv") as file:
        return list(csv.DictReader(file))


def begin():
    ds.init(arch=ds.cpu, random_seed=3)
    random.seed(4)
    np.random.seed(5)  # noqa: NPY002
    return Fit(noise=0.1)


@pytest.mark.parametrize("stop", [1, 7, 12])
def test_a_resumed_run_gives_the_same_bits(cpu, tmp_path, stop):
    options = {"patience": 3}
    ends = []
    for name, parts in (("whole", [12]), ("parts", [stop, 12])):
        for last in parts:
            fit = begin()
            random.random()  # what a resume must put back
            begin() if last != parts[0] else None
            run = train(
                fit,
                12,
                out=tmp_path / name,
                resume=last != parts[0],
                state=[fit.seen],
                generators=fit.random,
                callback=lambda run, last=last: run.iteration == last,
                **options,
            )
        lines = [{k: v for k, v in row.items() if k != "seconds"} for row in rows(tmp_path / name)]
        assert [int(line["iteration"]) for line in lines] == [*range(1, 13)]
        ends.append(
            (fit.x.to_numpy().tobytes(), fit.scale[None], run.losses, lines, fit.seen[None])
        )
    assert ends[0] == ends[1]


def test_a_log_after_a_crash_has_no_line_twice(cpu, tmp_path):
    fit = begin()
    train(fit, 4, out=tmp_path, state=[fit.seen], generators=fit.random)
    whole = rows(tmp_path)
    # A process that was killed later has written more lines than its checkpoint knows, the last one in part.
    with open(tmp_path / "log.csv", "a") as file:
        file.write("5,1.0,1.0,1.0,0.1,2.0\n6,1.")
    train(fit, 6, out=tmp_path, resume=True, state=[fit.seen], generators=fit.random)
    assert rows(tmp_path)[:4] == whole
    assert [row["iteration"] for row in rows(tmp_path)] == list("123456")


def test_checkpoints_are_written_meanwhile(cpu, tmp_path):
    fit = Fit()
    sizes = []

    def look(run):
        path = tmp_path / "checkpoint.npz"
        sizes.append(len(np.load(path)["losses"]) if path.exists() else 0)

    train(fit, 4, out=tmp_path, checkpoint_every=0, callback=look)
    assert sizes == [0, 1, 2, 3]
    assert len(np.load(tmp_path / "checkpoint.npz")["losses"]) == 4


def test_resume_without_a_checkpoint_begins(cpu, tmp_path, capsys):
    run = train(Fit(), 2, out=tmp_path / "new", resume=True)
    assert run.iteration == 2
    assert "does not exist: training begins anew" in capsys.readouterr().err


def test_checkpoints_of_others_are_refused(cpu, tmp_path):
    fit = Fit()
    train(fit, 2, out=tmp_path)
    before = fit.x.to_numpy()
    again = {"out": tmp_path, "resume": True, "progress": False}
    y = ds.field(ds.f64, shape=3, needs_grad=True)

    def refused(words, opt, **options):
        with pytest.raises(ds.ArgumentError) as caught:
            ds.optim.train(fit, opt, 4, **again, **options)
        assert words in str(caught.value)

    refused("holds no parameter/x", ds.optim.Adam({"x": y}))
    refused("parameter/0 has the shape (3, 2)", ds.optim.Adam([y, fit.scale]))
    refused("has a parameter 1, which this training has not", ds.optim.Adam([fit.x]))
    refused("it is that of 'Adam'", ds.optim.SGD([fit.x, fit.scale]))
    refused("with the generators []", fit.optimizer(), generators=[fit.random])
    assert (fit.x.to_numpy() == before).all()
    ds.init(arch=ds.cpu, random_seed=9)
    refused("is of ds.init(random_seed=0)", fit.optimizer())
    (tmp_path / "checkpoint.npz").write_bytes(b"no archive")
    refused("is not a file that ds.save has written", fit.optimizer())
    ds.save(tmp_path / "checkpoint.npz", y)
    refused("is not a checkpoint of ds.optim.train", fit.optimizer())


def test_parameters_in_another_order_are_refused(cpu, tmp_path):
    a, b = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))

    @ds.kernel
    def measure() -> ds.f64:
        return (a[None] - 1.0) ** 2 + (b[None] + 1.0) ** 2

    def train(opt, iterations, **options):
        return ds.optim.train(measure, opt, iterations, out=tmp_path, progress=False, **options)

    train(ds.optim.SGD([a, b], 0.25), 2)
    with pytest.raises(ds.ArgumentError, match=r"checkpoint.npz are a, b, and here they are b, a"):
        train(ds.optim.SGD([b, a], 0.25), 4, resume=True)
    opt = ds.optim.SGD([a, b], 0.25)
    train(opt, 4, resume=True)
    with pytest.warns(UserWarning, match="has 4 iterations, and iterations=3 counts these, too"):
        assert train(opt, 3, resume=True).iteration == 4
    assert train(opt, 4, resume=True).iteration == 4


STEPS = 2


def test_a_checkpoint_of_another_program_is_named(cpu, tmp_path, monkeypatch):
    x, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(2))

    @ds.kernel
    def add():
        loss[None] += (x[None] - 1.0) ** 2

    calls = 0

    def program():
        nonlocal calls
        calls += 1  # what it sets itself is no part of it
        for _ in range(STEPS):
            add()
        return loss

    def other():
        add()
        return loss

    def resumed(program, iterations):
        opt = ds.optim.SGD(x, 0.1)
        run = ds.optim.train(program, opt, iterations, out=tmp_path, resume=True, progress=False)
        assert run.iteration == iterations

    resumed(program, 2)
    resumed(program, 3)
    monkeypatch.setitem(globals(), "STEPS", 3)
    with pytest.warns(
        UserWarning, match="another program: STEPS was 2 and is 3. The losses before"
    ):
        resumed(program, 4)
    with pytest.warns(UserWarning, match=r"program is gone; .*STEPS is gone; .*other is new"):
        resumed(other, 5)
    resumed(other, 6)


def cliff(edge):
    """NaN beyond an edge, where descent by 0.5 is in the fifth iteration: 0, 0.25, 0.54, 0.91, 1.7."""
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def measure():
        loss[None] += ds.sqrt(edge - x[None])

    return x, loss, measure


def test_nan_names_iteration_and_operation(cpu):
    x, loss, measure = cliff(1.0)
    opt = ds.optim.SGD(x, 0.5)
    with pytest.raises(ds.AutodiffError) as caught:
        ds.optim.train(measure, opt, 50, loss=loss, progress=False)
    text = str(caught.value)
    assert "the loss is nan in iteration 5 of the training: loss[None] became NaN" in text
    assert "loss[None] += ds.sqrt(edge - x[None])" in text
    assert 0.9 < x[None] < 1  # the best value


def test_with_patience_a_nan_goes_back(cpu):
    x, loss, measure = cliff(1.0)
    opt = ds.optim.SGD(x, 0.5)
    run = ds.optim.train(measure, opt, 60, loss=loss, patience=10, progress=False)
    assert np.isnan(run.losses).any()
    assert opt.scale < 1
    assert run.best_loss == np.nanmin(run.losses) < 0.05


def test_patience_goes_back_to_the_best_half_as_fast(cpu):
    x = ds.field(ds.f64, shape=(), needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x.fill(1.0)

    @ds.kernel
    def measure():
        loss[None] += x[None] ** 2

    opt = ds.optim.SGD(x, 1.5)  # x becomes -2 x, and at half the rate -x / 2
    run = ds.optim.train(measure, opt, 5, loss=loss, patience=2, progress=False)
    assert run.losses == [1.0, 4.0, 16.0, 1.0, 0.25]
    assert (opt.scale, run.best_iteration) == (0.5, 5)


def test_a_program_that_changes_a_parameter_is_refused(cpu):
    x = ds.field(ds.f64, shape=2, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def program():
        for i in x:
            x[i] = 0.5 * x[i] + 1.0

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    def both():
        program()
        measure()

    with pytest.raises(ds.FieldError, match=r"the program writes to x \(parameter 0\)"):
        ds.optim.train(both, ds.optim.SGD(x), 2, loss=loss, progress=False)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(cpu, capsys, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr("diffsim.runtime.observe.progress._tqdm", lambda *_: None)
    fit = Fit()
    ds.optim.train(fit, fit.optimizer(), 40)
    err = capsys.readouterr().err
    assert 2 <= err.count("/40  loss ") <= 40 if terminal else err.count("/40  loss ") == 10
    assert err.count("\n") == (1 if terminal else 10)
    assert f"[{24 * '#'}] 40/40  loss " in err


def test_ctrl_c_ends_after_the_iteration(cpu, tmp_path, capsys):
    fit = Fit()
    before = signal.getsignal(signal.SIGINT)

    def interrupt(run):
        if run.iteration == 3:
            os.kill(os.getpid(), signal.SIGINT)

    run = train(fit, 100, callback=interrupt, out=tmp_path)
    assert run.interrupted
    assert run.iteration == 3
    assert len(rows(tmp_path)) == 3
    assert "stopping after this iteration" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before

    def twice(run):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(fit, 100, callback=twice)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"opt": 3}, "opt is an optimiser, not the number 3"),
        ({"iterations": 0}, "iterations starts at 1, and is 0"),
        ({"iterations": 2.5}, "iterations is a whole number, not 2.5"),
        ({"program": 3}, "program is a function, and 3 cannot be called"),
        ({"program": lambda: None}, "the program returns nothing, and no loss is named"),
        ({"resume": True}, "resume=True goes on from a checkpoint, and no folder is named"),
        ({"patience": 0}, "patience starts at 1, and is 0"),
        ({"callback": 3}, "callback is a function"),
        ({"callback": lambda: True}, "callback is called with run, and its parameters are ()"),
        (
            {"program": lambda i: None},
            "the program is called with no arguments, and its parameters are (i)",
        ),
        ({"out": "/proc/nowhere"}, "nothing can be written to /proc/nowhere"),
        ({"generators": 3, "out": "here"}, "generators are those of numpy.random.default_rng"),
        ({"state": [3]}, "state 0 is the number 3"),
        ({"lr": 3}, "train has no parameter lr"),
    ],
)
def test_wrong_arguments(cpu, tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    fit = Fit()
    given = {"program": fit, "opt": fit.optimizer(), "iterations": 2, "progress": False} | change
    with pytest.raises(ds.DiffsimError) as caught:
        ds.optim.train(**given)
    assert words in str(caught.value)
    assert "Hint: " in str(caught.value)


def test_parameters_that_the_loss_does_not_depend_on_are_named():
    w, other, loss = (ds.field(ds.f64, (), needs_grad=True) for _ in range(3))
    other[None] = 2.0

    @ds.kernel
    def program():
        loss[None] = other[None] ** 2

    def launch():
        program()
        return loss

    with pytest.warns(UserWarning, match="the gradient of w is 0 in the first iteration"):
        ds.optim.train(launch, ds.optim.Adam([w], lr=0.1), 3, progress=False)
