"""Replayed tapes on a GPU that is not there: what becomes a graph, when it runs, and what if it cannot."""

import copy
import ctypes
import gc
import warnings

import numpy as np
import pytest

from diffsim.backends.cuda.driver import Driver, Launch
from diffsim.backends.cuda.libcuda import DriverError
from diffsim.backends.cuda.ptx import to_ptx
from diffsim.runtime import session
from diffsim.runtime.cuda.pair_kernels import text_of
from diffsim.runtime.memory.storage import StridedSpan
from tests.cuda.fake import live

STEPS = 20


class Spring:
    """A mass on a spring, on a time axis, and how far it is from 0.3 m in the end."""

    def __init__(self, ds, n=3):
        made = dict(dtype=ds.f64, needs_grad=True)
        self.x, self.v = (ds.field(shape=(STEPS + 1, n), **made) for _ in range(2))
        self.stiffness, self.loss = ds.field(shape=n, **made), ds.field(shape=(), **made)
        x, v, stiffness, loss = self.x, self.v, self.stiffness, self.loss

        @ds.kernel
        def step(t: ds.i32, h: ds.f64):
            for i in range(n):
                v[t + 1, i] = v[t, i] - h * stiffness[i] * x[t, i]
                x[t + 1, i] = x[t, i] + h * v[t + 1, i]

        @ds.kernel
        def measure():
            for i in range(n):
                loss[None] += (x[STEPS, i] - 0.3) ** 2

        self.step, self.measure = step, measure
        self.n = n

    def run(self):
        for t in range(STEPS):
            self.step(t, 0.1)
        self.measure()

    def record(self, ds, **options):
        tape = ds.Tape(self.loss, **options)
        with tape:
            self.run()
        return tape

    def start(self, stiffness):
        self.x.from_numpy(np.full((STEPS + 1, self.n), 1.0))
        self.v.from_numpy(np.zeros((STEPS + 1, self.n)))
        self.stiffness.from_numpy(np.asarray(stiffness, np.float64))

    def exact(self, stiffness):
        """Loss and gradient, by forward differentiation in NumPy."""
        k = np.asarray(stiffness, np.float64)
        x, v = np.ones(self.n), np.zeros(self.n)
        dx, dv = np.zeros(self.n), np.zeros(self.n)
        for _ in range(STEPS):
            dv = dv - 0.1 * (x + k * dx)
            v = v - 0.1 * k * x
            dx = dx + 0.1 * dv
            x = x + 0.1 * v
        return np.sum((x - 0.3) ** 2), 2 * (x - 0.3) * dx

    def check(self, stiffness):
        loss, gradient = self.exact(stiffness)
        np.testing.assert_allclose(self.loss[None], loss, rtol=1e-13)
        np.testing.assert_allclose(self.stiffness.grad.to_numpy(), gradient, rtol=1e-12)


def test_a_replay_is_one_graph_and_its_gradient_another(fake):
    ds = fake
    spring = Spring(ds)
    spring.start([1, 2, 3])
    tape = spring.record(ds)
    tape.replay()
    tape.backward()
    assert ds.driver.graph_launches == 2
    spring.check([1, 2, 3])
    for stiffness in ([2, 0.5, 1], [3, 4, 5]):
        spring.start(stiffness)
        waits, graphs, made = ds.driver.waits, ds.driver.graph_launches, len(ds.driver.graphs)
        tape.replay()
        tape.backward()
        assert ds.driver.waits == waits
        assert ds.driver.graph_launches == graphs + 2
        assert len(ds.driver.graphs) == made == 2
        spring.check(stiffness)


def test_what_is_recorded_is_not_done(fake, monkeypatch):
    ds = fake
    spring = Spring(ds)
    spring.start([1, 2, 3])
    tape = spring.record(ds)
    spring.start([4, 4, 4])
    monkeypatch.setattr(ds.driver, "run_graph", lambda graph: None)
    launched = len(ds.driver.launches)
    tape.replay()
    tape.backward()
    assert len(ds.driver.launches) == launched
    assert (spring.x.to_numpy() == 1).all()
    assert (spring.stiffness.grad.to_numpy() == 0).all()


def test_with_a_cold_cache_all_is_compiled_before(fake, tmp_path):
    """The fake driver refuses to allocate and load while a graph is made."""
    ds = fake
    ds.init(arch=ds.cuda, offline_cache_file_path=str(tmp_path / "cache"))
    spring = Spring(ds)
    spring.start([1, 2, 3])
    tape = ds.Tape(in_place="save")
    with tape:
        spring.run()
        spring.x.fill(2.5)
        spring.v[3, 1] = 4.0
        spring.x.copy_from(spring.v)
        spring.run()
    tape.replay()
    tape.backward(spring.loss)
    assert ds.driver.graph_launches == 2


@pytest.mark.parametrize("problem", ["refused", "in the middle"])
def test_without_graphs_launches_go_one_by_one(fake, monkeypatch, problem):
    ds = fake
    spring, other = Spring(ds), Spring(ds)
    error = DriverError("cuStreamEndCapture: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", 901)
    if problem == "refused":
        ds.driver.no_graphs = error
    else:

        def record(enqueue):
            raise error

        monkeypatch.setattr(ds.driver, "record", record)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for one in (spring, other):
            one.start([1, 2, 3])
            tape = one.record(ds, in_place="save")
            for stiffness in ([2, 0.5, 1], [3, 4, 5]):
                one.start(stiffness)
                waits = ds.driver.waits
                tape.replay()
                tape.backward()
                assert ds.driver.waits == waits
                one.check(stiffness)
    assert ["one by one" in str(w.message) for w in found] == [True]
    assert "CAPTURE_INVALIDATED" in str(found[0].message)
    assert ds.driver.graph_launches == 0
    monkeypatch.undo()


def test_graphs_go_with_their_tape(fake):
    ds = fake
    spring = Spring(ds)
    spring.start([1, 2, 3])

    def once():
        tape = spring.record(ds, in_place="save")
        for _ in range(3):
            tape.replay()
            tape.backward()
            used = live(ds)
        return used

    before = once(), live(ds)
    for _ in range(3):
        assert (once(), live(ds)) == before
    spring = None  # and with it what waits for the next recording of that line
    gc.collect()
    assert ds.driver.graphs == {}


def test_blocks_too_large_to_be_handed_over(quick_code, fake):
    ds = fake
    fields = [ds.field(ds.f64, shape=2, needs_grad=True) for _ in range(300)]
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def add_up(k: ds.f64):
        for j in ds.static(range(300)):
            f = fields[j]
            loss[None] += k * f[1] ** 2

    for j, f in enumerate(fields):
        f.fill(j)
    with ds.Tape(loss) as tape:
        add_up(1.0)
        add_up(10.0)
    for j, f in enumerate(fields):
        f.fill(-j)
    tape.replay()
    tape.backward()
    assert len(ds.driver.launches[-1].block) > 4096
    assert loss[None] == 11 * sum(j * j for j in range(300))
    assert [f.grad[1] for f in fields] == [-22.0 * j for j in range(300)]


def test_copies_between_layouts_and_types(fake):
    """They go through Python, between graphs, with the same values."""
    ds = fake
    made = dict(shape=(3, 4), needs_grad=True)
    x = ds.Vector.field(2, ds.f64, layout=ds.Layout.SOA, **made)
    y, z = ds.Vector.field(2, ds.f64, **made), ds.Vector.field(2, ds.f32, **made)
    line = ds.Vector.field(2, ds.f64, shape=5, layout=ds.Layout.SOA, needs_grad=True)
    other = ds.Vector.field(2, ds.f64, shape=5, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def measure():
        for i, j in y:
            loss[None] += y[i, j][0] * y[i, j][1] + z[i, j][0] * 3.0
        for i in other:
            loss[None] += other[i][0] ** 2 + other[i][1]

    random = np.random.default_rng(3)
    tape = ds.Tape(loss)
    with tape:
        y.copy_from(x)
        z.copy_from(y)
        other.copy_from(line)
        measure()
    for _ in range(2):
        a = random.integers(-4, 5, (3, 4, 2)).astype(float)
        b = random.integers(-4, 5, (5, 2)).astype(float)
        x.from_numpy(a)
        line.from_numpy(b)
        tape.replay()
        tape.backward()
        expected = np.sum(a[..., 0] * a[..., 1] + 3 * a[..., 0]) + np.sum(b[:, 0] ** 2 + b[:, 1])
        assert loss[None] == expected
        assert (x.grad.to_numpy() == a[..., ::-1] + [3, 0]).all()
        assert (line.grad.to_numpy() == np.stack([2 * b[:, 0], np.ones(5)], 1)).all()


def test_checks_are_looked_at_when_python_next_looks(fake):
    ds = fake
    x = ds.field(ds.f64, shape=4, needs_grad=True)
    loss, turns = ds.field(ds.f64, shape=(), needs_grad=True), ds.field(ds.i32, shape=())

    @ds.kernel
    def iterate():
        for i in x:
            y = x[i]
            for _ in range(turns[None]):
                y = ds.sin(y)
            loss[None] += y

    x.fill(0.5)
    turns[None] = 3
    with ds.Tape(loss) as tape:
        iterate()
    tape.replay()
    assert x[0] == 0.5
    tape.backward()
    special = next(iter(iterate.specializations.values()))
    adjoint = special.derivative.executable
    assert adjoint.checks
    assert adjoint in session.session.device.pending
    a, b = np.sin(0.5), np.sin(np.sin(0.5))
    np.testing.assert_allclose(x.grad[2], np.cos(0.5) * np.cos(a) * np.cos(b), rtol=1e-14)


def test_a_driver_that_fails_to_run_a_graph(fake):
    ds = fake
    spring = Spring(ds)
    spring.start([1, 2, 3])
    tape = spring.record(ds)
    tape.replay()
    ds.driver.failure = DriverError("cuGraphLaunch: CUDA_ERROR_ILLEGAL_ADDRESS", 700)
    with pytest.raises(ds.BackendError, match=r"launched before has failed .*ILLEGAL_ADDRESS"):
        tape.replay()
    ds.driver.failure = None
    with pytest.raises(ds.AutodiffError, match="did not run to its end"):
        tape.backward()
    tape.replay()
    tape.backward()
    spring.check([1, 2, 3])


# ---- the driver's own calls


class Library:
    """The driver's library as far as graphs go: notes the calls, and fails where it is told to."""

    def __init__(self, fails=None):
        self.calls, self.fails = [], fails

    def __getitem__(self, name):
        def call(*args):
            self.calls.append(name)
            if name == self.fails:
                return 901
            if name in ("cuStreamCreate", "cuGraphInstantiateWithFlags"):
                args[0]._obj.value = 0x500 if name == "cuStreamCreate" else 0x700
            elif name == "cuStreamEndCapture":
                args[1]._obj.value = 0x600
            elif name == "cuMemsetD8Async":
                self.stream = args[-1]
            return 0

        return call


@pytest.mark.parametrize(
    "fails",
    [
        None,
        "cuStreamBeginCapture_v2",
        "cuMemsetD8Async",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
    ],
)
def test_recording_leaves_nothing_behind(fails, monkeypatch):
    library = Library(fails)
    one = object.__new__(Driver)
    one._functions, one.stream = library, 0x400
    monkeypatch.setattr(one, "enter", lambda: False, raising=False)
    monkeypatch.setattr(one, "_error", lambda name, code: DriverError(name, code), raising=False)

    def enqueue(recorder):
        recorder.set_words(64, 0, 1, 8)

    if fails is None:
        assert one.record(enqueue) == 0x700
        assert library.stream == 0x500
    else:
        with pytest.raises(DriverError, match=fails):
            one.record(enqueue)
    calls = library.calls
    begun = calls.count("cuStreamBeginCapture_v2") and fails != "cuStreamBeginCapture_v2"
    assert calls.count("cuStreamEndCapture") == int(begun)
    ended = begun and fails != "cuStreamEndCapture"
    assert calls.count("cuGraphDestroy") == int(ended)
    assert calls[-1] == "cuStreamDestroy_v2"
    assert one.stream == 0x400


def test_launches_go_to_the_stream_that_records(cpu):
    """The native function that starts launches, on functions of Python in place of the driver's."""
    calls = []

    def noting(name, *types):
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *types)
        return kind(lambda *args: calls.append((name, *args)) or 0)

    one, address = object.__new__(Driver), ctypes.c_void_p
    one._functions = {
        "cuCtxGetCurrent": noting("get", address),
        "cuCtxPushCurrent_v2": noting("push", address),
        "cuCtxPopCurrent_v2": noting("pop", address),
        "cuLaunchKernel": noting("launch", address, *(ctypes.c_uint,) * 7, *(address,) * 3),
    }
    one._start, one._context, one.stream = None, 77, 88
    recorder = copy.copy(one)
    recorder.stream = 99
    params = (ctypes.c_void_p * 1)(5)
    launches = [Launch(3, 4, 32, params), Launch(6, 1, 64, params)]
    for chosen in (one, recorder):
        start, plan = chosen.prepare(launches, session.session.jit)
        calls.clear()
        assert start(plan) == 0
        assert [call[0] for call in calls] == ["get", "push", "launch", "launch", "pop"]
        assert calls[1] == ("push", 77)
        where = ctypes.addressof(params)
        assert calls[2][1:] == (3, 4, 1, 1, 32, 1, 1, 0, chosen.stream, where, None)
        assert calls[3][1:] == (6, 1, 1, 1, 64, 1, 1, 0, chosen.stream, where, None)


# ---- sums and exchanges


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("t", ["float", "double", "i8", "i16", "i32", "i64"])
def test_the_devices_own_kernels_are_ptx(t, adds, whole):
    ptx = to_ptx(text_of(t, adds=adds, whole=whole), 90)
    assert f".entry {'add' if adds else 'swap'}(" in ptx
    width = {"float": 32, "double": 64}.get(t) or int(t[1:])
    stores = [line for line in ptx.splitlines() if "st.global" in line]
    assert len(stores) == (1 if adds else 2)
    assert all(f"{width}" in line.split()[0] for line in stores)


def test_words_of_exchanges_divide_all_steps(fake):
    device = session.session.device
    for address, nbytes, step, word in (
        (256, 64, 64, "i64"),
        (256, 12, 24, "i32"),
        (258, 8, 8, "i16"),
        (256, 8, 9, "i8"),
    ):
        made = device.pairs.swap(
            StridedSpan(address, nbytes, 3, step), StridedSpan(4096, nbytes, 3, nbytes)
        )
        text, name = device.driver.functions[made.function]
        assert name == "swap"
        assert f"%va = load {word}," in text
