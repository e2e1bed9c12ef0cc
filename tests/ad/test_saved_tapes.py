"""`tape.save(file)` and `ds.load_tape(file)`."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import AutodiffError, FieldError, FileError

N = 6

PROGRAM = """
import numpy as np
import diffsim as ds

ds.init(arch=ds.cpu, rules="lifted")
n = 40
x = ds.Vector.field(2, ds.f32, shape=n, needs_grad=True)
v = ds.Vector.field(2, ds.f32, shape=n, needs_grad=True, layout=ds.Layout.SOA)
k, loss = (ds.field(ds.f32, shape=(), needs_grad=True) for _ in range(2))
order = ds.field(ds.i32, shape=n)

@ds.func
def damped(f):
    return f - 0.1 * ds.sin(f)

@ds.kernel
def step(dt: ds.f32):
    for i in range(n):
        f = -k[None] * x[order[i]] * x[i].norm()
        for j in range(4):
            f = damped(f)
        if f.x > 0.0:
            f.x *= 0.5
        v[i] += dt * f + 1e-3 * ds.random()
    for i in range(n):
        x[i] += dt * v[i]

@ds.kernel
def measure():
    for i in range(n):
        loss[None] += x[i].dot(x[i])

numbers = np.random.default_rng(1)
x.from_numpy(numbers.normal(size=(n, 2)).astype(np.float32))
start = x.to_numpy()
order.from_numpy(numbers.permutation(n).astype(np.int32))
k[None] = 3.0
tape = ds.Tape(loss)
with tape:
    for t in range(20):
        step(0.01)
    v[3] = [0.5, -0.5]
    measure()
"""


def results(fields):
    found = [fields["loss"].to_numpy(), fields["x"].to_numpy()]
    return [*found, *(fields[name].grad.to_numpy() for name in "xvk")]


def equal(found, wanted):
    return all(a.tobytes() == b.tobytes() for a, b in zip(found, wanted, strict=True))


def test_another_process_has_the_same_bits(tmp_path):
    there = tmp_path / "there.npz"
    end = """
x.from_numpy(start)
v.fill(0)
tape.save({file!r})
tape.replay()
tape.backward()
fields = dict(loss=loss, x=x, v=v, k=k)
"""
    load = """
import numpy as np
import diffsim as ds
ds.init(arch=ds.cpu)
tape = ds.load_tape({file!r})
tape.replay()
tape.backward()
fields = tape.fields
"""
    show = """
found = [fields["loss"].to_numpy(), fields["x"].to_numpy(), *(fields[n].grad.to_numpy() for n in "xvk")]
np.savez({out!r}, *found)
"""
    found = []
    for number, text in enumerate((PROGRAM + end, load)):
        out = str(tmp_path / f"{number}.npz")
        path = tmp_path / f"program{number}.py"
        path.write_text(textwrap.dedent(text + show).format(file=str(there), out=out))
        subprocess.run([sys.executable, str(path)], check=True)
        with np.load(out) as archive:
            found.append([archive[name] for name in archive.files])
    assert equal(*found)
    assert np.abs(found[0][2]).min() > 0


class Springs:
    """A small tape, in f64, with an array argument and values set by Python."""

    def __init__(self, **options):
        self.x = ds.field(ds.f64, shape=(4, N), needs_grad=True, name="x")
        self.y = ds.ndarray(ds.f64, N, needs_grad=True)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True, name="loss")
        x, loss = self.x, self.loss

        @ds.kernel
        def step(t: ds.i32, y: ds.types.ndarray(), rate: ds.f64):
            for i in range(N):
                x[t + 1, i] = x[t, i] + rate * ds.sin(x[t, i]) * y[i]

        @ds.kernel
        def measure():
            for i in range(N):
                loss[None] += x[3, i] ** 2

        self.step, self.measure = step, measure
        self.tape = ds.Tape(loss, **options)
        x.from_numpy(np.linspace(0.1, 2.0, 4 * N).reshape(4, N))
        self.y.from_numpy(np.linspace(1.0, 2.0, N))

    def record(self):
        with self.tape:
            for t in range(3):
                self.step(t, self.y, 0.1 * (t + 1))
            self.measure()
        return self


def expected(x0, y):
    """The loss and d loss / d x0, by hand."""
    slope = np.ones(N)
    for t in range(3):
        slope *= 1 + 0.1 * (t + 1) * np.cos(x0) * y
        x0 = x0 + 0.1 * (t + 1) * np.sin(x0) * y
    return (x0**2).sum(), 2 * x0 * slope


@pytest.fixture
def springs(cpu):
    return Springs().record()


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "tape.npz")


def test_other_inputs_and_several_passes(springs, file):
    springs.tape.save(file)
    tape = ds.load_tape(file)
    x, y = tape.fields["x"], springs.y
    for shift in (0.0, 0.3):
        start = np.linspace(0.1, 2.0, N) + shift
        for i in range(N):
            x[0, i] = start[i]
        tape.replay()
        tape.backward()
        loss, slope = expected(start, y.to_numpy())
        assert tape.loss[None] == pytest.approx(loss, rel=1e-14)
        np.testing.assert_allclose(x.grad.to_numpy()[0], slope, rtol=1e-13)
    # Gradients add up until they are set to 0, as those of other tapes do.
    tape.backward()
    np.testing.assert_allclose(x.grad.to_numpy()[0], 2 * slope, rtol=1e-13)
    tape.zero()
    seed = np.zeros((4, N))
    seed[3, 0] = 1.0
    tape.backward(grads={x: seed})
    assert x.grad[0, 0] == pytest.approx(slope[0] / (2 * x[3, 0]), rel=1e-13)
    assert not x.grad.to_numpy()[0, 1:].any()


def test_the_first_tape_goes_on_as_before(springs, file):
    before = springs.x.to_numpy(), springs.x.grad.to_numpy()
    springs.tape.save(file)
    assert equal([springs.x.to_numpy(), springs.x.grad.to_numpy()], before)
    springs.tape.replay()
    springs.tape.backward()
    assert equal([springs.x.to_numpy(), springs.x.grad.to_numpy()], before)


def test_contents_and_names(springs, file):
    springs.tape.save(file)
    tape = ds.load_tape(file)
    assert list(tape.fields) == ["x", "springs.y", "loss"]
    np.testing.assert_array_equal(tape.fields["x"].to_numpy(), springs.x.to_numpy())
    np.testing.assert_array_equal(tape.fields["x"].grad.to_numpy(), springs.x.grad.to_numpy())
    assert repr(tape) == "<tape from a file: x, springs.y, loss>"


def test_a_second_replay_of_in_place_state(cpu, file):
    x = ds.field(ds.f64, shape=N, needs_grad=True, name="x")
    loss = ds.field(ds.f64, shape=(), needs_grad=True, name="loss")

    @ds.kernel
    def grow():
        for i in x:
            x[i] *= x[i]

    @ds.kernel
    def add():
        for i in x:
            loss[None] += x[i]

    x.fill(1.1)
    tape = ds.Tape(loss, in_place="save")
    with tape:
        for _ in range(3):
            grow()
        add()
    x.fill(1.1)
    tape.save(file)
    loaded = ds.load_tape(file)
    for value in (1.1, 1.3):
        loaded.fields["x"].fill(value)
        loaded.replay()
        loaded.backward()
        # The final values are there again after the pass.
        np.testing.assert_allclose(loaded.fields["x"].to_numpy(), value**8, rtol=1e-13)
        np.testing.assert_allclose(loaded.fields["x"].grad.to_numpy(), 8 * value**7, rtol=1e-13)


@pytest.fixture
def scaled(cpu):
    """A tape of total += rate * x**2 - dot(g, [1, 2]), at rate = 2 and g = (3, 4)."""
    x, total = (ds.field(ds.f64, shape=(), needs_grad=True, name=name) for name in ("x", "total"))

    @ds.kernel
    def scale(rate: ds.f64, g: ds.types.vector(2, ds.f64)):
        total[None] += rate * x[None] ** 2 - g.dot(ds.Vector([1.0, 2.0]))

    tape = ds.Tape(total)
    with tape:
        scale(2.0, [3.0, 4.0])
    return tape


def test_arguments_of_a_replay_do_not_stay(scaled, file):
    scaled.replay(rate=5.0, g=[1.0, 1.0])
    scaled.save(file)
    loaded = ds.load_tape(file)
    assert sorted(loaded.fields) == ["total", "x"]
    loaded.fields["x"][None] = 3.0
    for rate, g, given in (
        (2.0, (3.0, 4.0), {}),  # the record's
        (7.0, (3.0, 4.0), {"rate": 7.0}),
        (2.0, (0.5, 4.0), {"g": (0.5, 4.0)}),
        (2.0, (3.0, 4.0), {}),
    ):
        loaded.replay(**given)
        loaded.backward()
        assert loaded.fields["total"][None] == rate * 9.0 - g[0] - 2 * g[1]
        assert loaded.fields["x"].grad[None] == 6 * rate


# ---- what is refused


def test_arguments_that_do_not_fit(scaled, file):
    scaled.save(file)
    with pytest.raises(AutodiffError, match=r"(?s)rate is no argument.*rate=\.\.\.\) once before"):
        ds.load_tape(file).replay(rate=3.0)
    scaled.replay(rate=1.0)
    scaled.save(file)
    loaded = ds.load_tape(file)
    loaded.replay()
    loaded.backward()
    for given, message in (
        ({"speed": 1.0}, "(?s)speed is no argument.*there is rate"),
        ({"rate": "fast"}, "rate of tape.replay is an f64"),
        ({"rate": loaded.fields["x"]}, r"(?s)is a number, not the field x.*rate=x\[None\]"),
    ):
        with pytest.raises(ds.DiffsimError, match=message):
            loaded.replay(**given)
    assert loaded.fields["x"].grad[None] == 0.0  # 2 rate x at x = 0
    with pytest.raises(FieldError, match=r"(?s)no field 'y'.*there are total, x"):
        loaded.fields["y"]
    with pytest.raises(AttributeError, match=r"(?s)no \.visualize.*replay, backward, zero"):
        loaded.visualize()


def test_a_gradient_without_a_replay(springs, file):
    springs.tape.save(file)
    tape = ds.load_tape(file)
    with pytest.raises(AutodiffError, match="was not replayed yet"):
        tape.backward()
    tape.replay()
    tape.fields["x"][1, 0] = 5.0
    with pytest.raises(AutodiffError, match="was written after the last replay"):
        tape.backward()


def test_other_options(springs, file):
    springs.tape.save(file)
    ds.init(arch=ds.cpu, default_fp=ds.f64, fast_math=True)
    with pytest.raises(FileError, match=r"fast_math=False(.|\n)*ds\.init\(fast_math=False\)"):
        ds.load_tape(file)


def test_checks_of_kernels(file):
    """Those of `debug=True`: they are of their kinds after loading, too."""
    ds.init(arch=ds.cpu, debug=True)
    x, y = (ds.field(ds.f32, shape=4, needs_grad=True) for _ in range(2))
    at, n = ds.field(ds.i32, shape=4), ds.field(ds.i32, shape=())
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def step():
        for i in x:
            assert x[i] > 0.0, "positive"
            y[i] = x[at[i]] * (7 // n[None])
        for i in y:
            loss[None] += y[i]

    x.fill(2.0)
    n[None] = 2
    with ds.Tape(loss) as tape:
        step()
    tape.save(file)
    loaded = ds.load_tape(file)
    loaded.replay()
    loaded.backward()
    assert loaded.fields["loss"][None] == 4 * 2.0 * 3
    assert loaded.fields["x"].grad.to_numpy().tolist() == [12.0, 0.0, 0.0, 0.0]
    for field, value, kind in (
        ("n", 0, ZeroDivisionError), ("at", 4, IndexError), ("x", -1.0, AssertionError)
    ):  # fmt: skip
        kept = loaded.fields[field].to_numpy()
        loaded.fields[field].fill(value)
        with pytest.raises(kind):
            loaded.replay()
        loaded.fields[field].from_numpy(kept)


def test_a_tape_of_an_earlier_session(springs, file):
    springs.tape.save(file)
    tape = ds.load_tape(file)
    ds.init(arch=ds.cpu)
    with pytest.raises(AutodiffError, match="since this tape was loaded"):
        tape.replay()


def test_nothing_recorded(cpu, file):
    with pytest.raises(AutodiffError, match="nothing to save"):
        Springs().tape.save(file)


def test_text_for_llvm(cpu, file):
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.func_native(
        "%r = fmul double %a, %a\nret double %r",
        adj_text="""
        %two = fmul double 2.0, %a
        %r = fmul double %two, %adj_ret
        ret double %r
    """,
    )
    def square(a: ds.f64) -> ds.f64: ...

    @ds.kernel
    def run():
        loss[None] = square(x[None])

    tape = ds.Tape(loss)
    with tape:
        run()
    with pytest.raises(AutodiffError, match=r"cannot be saved: run.* holds text for LLVM"):
        tape.save(file)


@pytest.mark.parametrize("kept", [0, 10, 500, 0.5, 0.99])
def test_files_that_were_cut(springs, file, kept):
    springs.tape.save(file)
    with open(file, "rb") as f:
        data = f.read()
    with open(file, "wb") as f:
        f.write(data[: int(kept * len(data)) if kept < 1 else kept])
    with pytest.raises(FileError, match="is no tape that diffsim saved, or is damaged"):
        ds.load_tape(file)


def changed(file, change):
    with np.load(file) as archive:
        contents = {name: archive[name] for name in archive.files}
    head = json.loads(contents["tape"].tobytes())
    change(head)
    contents["tape"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    np.savez(file, **contents)


def put(*path):
    *where, value = path

    def change(head):
        for key in where[:-1]:
            head = head[key]
        head[where[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        put("fields", 0, 3, [5]),
        put("fields", 0, 1, "f128"),
        put("kernels", 0, "tables", "values", 0, 0, "Exec"),
        put("kernels", 0, "tables", "blocks", 0, 1, [{"value": 0}]),
        put("kernels", 0, "tasks", [[]]),
        put("forward", 0, 1, 77),
        put("forward", 0, 2, []),
        put("backward", 0, ["copy", [[0, False], 0, 10**6, 1, 0], [[0, False], 0, 8, 1, 0]]),
        put("forward", 0, ["call", "os.system"]),
        put("loss", 99),
        put("needed", [99]),
    ],
)
def test_files_that_somebody_has_changed(springs, file, change):
    springs.tape.save(file)
    changed(file, change)
    with pytest.raises(FileError, match="is damaged"):
        ds.load_tape(file)


def test_another_format(springs, file):
    springs.tape.save(file)
    changed(file, put("format", 99))
    with pytest.raises(FileError, match="format 99, and this diffsim reads 4"):
        ds.load_tape(file)


def test_files_that_are_not_there(springs, tmp_path, file):
    with pytest.raises(FileError, match="cannot be read"):
        ds.load_tape(str(tmp_path / "none.npz"))
    springs.tape.save(file)
    with open(file, "rb") as f:
        kept = f.read()
    with pytest.raises(FileError, match="cannot be made: File exists"):
        springs.tape.save(str(Path(file) / "tape.npz"))
    springs.tape.save(file)
    with open(file, "rb") as f:
        assert f.read() == kept
    assert [p.name for p in tmp_path.iterdir()] == ["tape.npz"]
