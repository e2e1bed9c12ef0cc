"""Copies between NumPy and a GPU that is not there (`fake.py`), which does them late and in parts."""

import contextlib
import ctypes
import functools
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from diffsim.backends.cuda import driver as drivers
from diffsim.backends.cuda import libcuda
from diffsim.backends.cuda.driver import Driver
from diffsim.backends.cuda.libcuda import DriverError
from diffsim.runtime import session
from diffsim.runtime.cuda import staging

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE, SLOT = 32, 256


@pytest.fixture
def small(fake, monkeypatch):
    """The fake GPU, and slots so small that arrays of some hundred numbers take many."""
    monkeypatch.setattr(staging, "AT_ONCE", AT_ONCE)
    monkeypatch.setattr(staging, "SLOT_BYTES", SLOT)
    return fake


def slots():
    """The slots that nobody uses."""
    return list(session.session.device.staging._slots)


def scribble(array):
    array.view(np.uint8)[...] = 0x55


def check_slots():
    """Each once, in memory of its own, and no more than there may be."""
    found = slots()
    assert len(set(map(id, found))) == len(found) <= staging.MOST_SLOTS
    assert len({slot.address for slot in found}) == len(found)


# ---- what is copied is right


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 63, 64, 65, 256, 1000, 12_345])
def test_there_and_back(small, n):
    ds = small
    x = ds.field(ds.i32, shape=max(n, 1))
    values = np.random.default_rng(n).integers(-(2**31), 2**31, max(n, 1)).astype(np.int32)
    given = values.copy()
    x.from_numpy(given)
    scribble(given)
    assert (x.to_numpy() == values).all()
    check_slots()


def test_writing_waits_for_nothing_while_there_are_slots(small):
    ds = small
    x = ds.field(ds.u8, shape=SLOT * staging.MOST_SLOTS)
    waits = ds.driver.waits
    ds.driver.random.random = lambda: 1.0  # the device does nothing by itself
    given = np.arange(SLOT * staging.MOST_SLOTS, dtype=np.uint8)
    x.from_numpy(given)
    scribble(given)
    assert ds.driver.waits == waits
    assert ds.driver.done < ds.driver.asked
    assert len(slots()) == staging.MOST_SLOTS
    assert (x.to_numpy() == np.arange(SLOT * staging.MOST_SLOTS, dtype=np.uint8)).all()


def test_slots_are_made_when_they_are_needed(small):
    ds = small
    x = ds.field(ds.u8, shape=SLOT)
    assert not ds.driver.locked
    for _ in range(20):
        x.from_numpy(np.zeros(SLOT, np.uint8))
        ds.sync()
    assert len(ds.driver.locked) == 1


class Mirror:
    """Fields on the device and the same on NumPy, to which random things are done.

    Numbers are whole and small, so that everything is exact.
    """

    def __init__(self, ds, seed, n=300):
        self.ds, self.n = ds, n
        self.random = np.random.default_rng(seed)
        self.fields = [
            ds.field(ds.f64, shape=n),
            ds.field(ds.f64, shape=n),
            ds.field(ds.f32, shape=n),
            ds.Vector.field(3, ds.i32, shape=n, layout=ds.Layout.SOA),
        ]
        self.arrays = [f.to_numpy() for f in self.fields]
        assert not any(a.any() for a in self.arrays)
        a, b, c, d = self.fields

        @ds.kernel
        def mix(k: ds.i32):
            for i in a:
                a[i] = ds.floor(0.5 * a[i]) + b[i]
                c[i] = ds.cast(d[i][1] + k, ds.f32)

        @ds.kernel
        def through(given: ds.types.ndarray(), back: ds.types.ndarray()):
            for i in b:
                b[i] = given[i] - 1.0
                back[i] = a[i] + given[i]

        self.mix, self.through = mix, through

    def values(self, k):
        """An array for a field: as it is, with gaps, or of another type."""
        field = self.arrays[k]
        shape, kind = field.shape, self.random.integers(3)
        numbers = self.random.integers(-100, 100, (2, *shape)).astype(field.dtype)
        if kind == 0:
            return numbers[0].copy()
        if kind == 1:
            return np.moveaxis(numbers, 0, 1)[:, 0]
        return numbers[0].astype(np.int16)

    def turn(self):
        what = self.random.integers(9)
        k = int(self.random.integers(4))
        field, array = self.fields[k], self.arrays[k]
        i = int(self.random.integers(self.n))
        if what <= 2:
            given = self.values(k)
            field.from_numpy(given)
            array[...] = given
            given[...] = 99
        elif what == 3:
            assert np.array_equal(field.to_numpy(), array)
        elif what == 4:
            value = int(self.random.integers(100))
            field[i] = [value, value + 1, value + 2] if k == 3 else value
            array[i] = [value, value + 1, value + 2] if k == 3 else value
        elif what == 5:
            found = field[i]
            assert np.array_equal(found.to_numpy() if k == 3 else found, array[i])
        elif what == 6:
            self.mix(i)
            a, b, c, d = self.arrays
            a[...] = np.floor(0.5 * a) + b
            c[...] = d[:, 1] + i
        elif what == 7:
            given, back = self.values(0).astype(float), np.zeros(self.n)
            self.through(given, back)
            assert np.array_equal(back, self.arrays[0] + given)
            self.arrays[1][...] = given - 1
        else:
            self.fields[0].copy_from(self.fields[1])
            self.arrays[0][...] = self.arrays[1]

    def check(self):
        for field, array in zip(self.fields, self.arrays, strict=True):
            assert np.array_equal(field.to_numpy(), array)
        check_slots()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(small, seed):
    small.driver.random.seed(seed)
    mirror = Mirror(small, seed)
    for _ in range(150):
        mirror.turn()
    mirror.check()


@pytest.mark.parametrize("broken", ["wait", "_mark"])
def test_the_fake_finds_a_slot_used_too_early(small, monkeypatch, broken):
    """Else the tests above would show nothing."""
    mirror = Mirror(small, 1)
    if broken == "wait":
        monkeypatch.setattr(staging._Slot, "wait", lambda self: None)
    else:
        monkeypatch.setattr(small.driver, "mark", lambda event: None)
    with pytest.raises(AssertionError):
        for _ in range(150):
            mirror.turn()
        mirror.check()


def test_threads(small):
    ds = small
    found = []

    def work(seed):
        try:
            mirror = Mirror(ds, seed)
            start.wait()
            for _ in range(100):
                mirror.turn()
            for field, array in zip(mirror.fields, mirror.arrays, strict=True):
                assert np.array_equal(field.to_numpy(), array)
        except BaseException as problem:
            found.append(problem)
            start.abort()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    start = threading.Barrier(len(threads))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not found, found
    check_slots()
    assert len(slots()) == staging.MOST_SLOTS


# ---- what goes wrong


@pytest.mark.parametrize("locked", [0, 1, 2])
def test_without_page_locked_memory(small, locked):
    """None, or less than asked for: the driver copies as it can."""
    small.driver.most_locked = locked * SLOT
    mirror = Mirror(small, locked)
    for _ in range(100):
        mirror.turn()
    mirror.check()
    assert len(slots()) == locked


@pytest.mark.parametrize("locked", [0, 1 << 20])
@pytest.mark.parametrize("n", [AT_ONCE, 5 * SLOT])
def test_arrays_that_are_page_locked_themselves(small, n, locked):
    """Such as those of a tensor of PyTorch: the driver returns before it has read them."""
    ds = small
    x = ds.field(ds.u8, shape=n)
    memory = ds.driver.page_locked(n)
    ds.driver.most_locked = n + locked
    given = np.ctypeslib.as_array((ctypes.c_uint8 * n).from_address(memory))
    given[...] = np.arange(n) % 256
    x.from_numpy(given)
    scribble(given)
    assert (x.to_numpy() == np.arange(n) % 256).all()


def lines_until_interrupted(k, run):
    """Run with Ctrl-C at the k-th line of `runtime/cuda/staging.py`; whether it came so far."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if frame.f_code.co_filename != staging.__file__:
            return None
        if event == "line":
            count += 1
            if count == k:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return count >= k


@pytest.mark.parametrize("what", ["write", "read"])
def test_ctrl_c_at_any_line(small, what):
    """Whatever the GPU still does, nobody sees it: slots may get lost there, but are not used too early."""
    ds = small
    n = 5 * SLOT + 40
    x, y = ds.field(ds.u8, shape=n), ds.field(ds.u8, shape=n)
    device = session.session.device
    random = np.random.default_rng(0)
    k, comes = 0, True
    while comes:
        k += 1
        device.staging = staging.Staging(ds.driver, lambda: session.session.pool)
        with contextlib.suppress(DriverError):
            y.from_numpy(random.integers(0, 256, n, np.uint8))
        lost = random.integers(0, 256, n, np.uint8)
        run = functools.partial(x.from_numpy, lost) if what == "write" else x.to_numpy
        comes = lines_until_interrupted(k, run)
        check_slots()
        assert len(slots()) + len(device.staging._unmade) >= staging.MOST_SLOTS - 2
        for _ in range(3):
            values = random.integers(0, 256, (2, n), np.uint8)
            for field, one in ((x, values[0]), (y, values[1])):
                given = one.copy()
                field.from_numpy(given)
                scribble(given)
            assert (y.to_numpy() == values[1]).all()
            assert (x.to_numpy() == values[0]).all()
    assert k > 40
    assert len(slots()) >= 2


def test_what_the_driver_says_is_raised(small):
    ds = small
    x = ds.field(ds.f32, shape=1000)
    values = np.arange(1000, dtype=np.float32)
    x.from_numpy(values)
    problem = DriverError("cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS", 700)
    for call in ("mark", "wait_for_event", "send", "fetch"):
        whole = getattr(ds.driver, call)

        def fails(*args):
            raise problem

        setattr(ds.driver, call, fails)
        runs = {"send": [0], "fetch": [1]}.get(call, [0, 1])
        for run in runs:
            with pytest.raises(ds.BackendError, match=r"launched before has failed .*ILLEGAL_ADDR"):
                (lambda: x.from_numpy(-values), x.to_numpy)[run]()
        setattr(ds.driver, call, whole)
        check_slots()
    x.from_numpy(values)
    assert (x.to_numpy() == values).all()
    for run in (lambda: x.from_numpy(values[:1000]), lambda: x.__setitem__(3, 1.0)):
        ds.driver.failure = problem
        with pytest.raises(ds.BackendError, match=r"launched before has failed .*ILLEGAL_ADDRESS"):
            run()
        ds.driver.failure = None


def test_in_a_forked_child_nothing_is_touched(small, monkeypatch):
    """Page-locked memory is not there in it: the driver's refusal must come before the copy."""
    ds = small
    x = ds.field(ds.u8, shape=3 * SLOT)
    x.from_numpy(np.zeros(3 * SLOT, np.uint8))

    def gone(*_):
        raise DriverError("this process was forked")

    for name in "event mark is_done wait_for_event wait send fetch copy_in".split():
        monkeypatch.setattr(ds.driver, name, gone)
    monkeypatch.setattr(type(session.session.pool), "copy", lambda *_: pytest.fail("touched"))
    for run in (lambda: x.from_numpy(np.ones(3 * SLOT, np.uint8)), x.to_numpy):
        for _ in range(6):
            with pytest.raises(ds.BackendError, match=r"^this process was forked"):
                run()


@pytest.mark.parametrize(
    "last",
    [
        "x.from_numpy(a)",
        "x.from_numpy(a); x.to_numpy()",
        "atexit.register(lambda: print(int(x.to_numpy()[-1])))",
        "threading.Thread(target=lambda: [x.from_numpy(a) for _ in iter(int, 1)], daemon=True).start()\n"
        "time.sleep(0.2)",
    ],
)
def test_a_process_ends_while_copies_are_under_way(last):
    """The function registered first runs last, when the threads that copy are gone."""
    script = f"""
        import atexit, threading, time
        import numpy as np
        a = np.arange(30_000_000 // 4, dtype=np.int32)
        {"later = []; atexit.register(lambda: [f() for f in later])" if "atexit" in last else ""}
        from tests.cuda import fake
        fake.install(by_default=True)
        from diffsim.runtime.cuda import staging
        staging.SLOT_BYTES = 4 << 20
        import diffsim as ds
        ds.init(arch=ds.cuda)
        x = ds.field(ds.i32, shape=a.shape)
        x.from_numpy(a)
    """
    last = last.replace("atexit.register(", "later.append(")
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script) + last],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    expected = f"{30_000_000 // 4 - 1}\n" if "later" in last else ""
    assert (run.returncode, run.stdout, run.stderr) == (0, expected, "")


# ---- the driver's own calls


class Library:
    """The driver's library as far as copies go: notes the calls, and answers what it is told to."""

    def __init__(self):
        self.calls, self.answers = [], {}

    def __getitem__(self, name):
        def call(*args):
            types = libcuda.CALLS[name]
            assert len(args) == len(types)
            for kind, arg in zip(types, args, strict=True):
                kind.from_param(arg)  # what ctypes does with it
            self.calls.append((name, *args))
            answers = self.answers.get(name)
            if name in ("cuMemHostAlloc", "cuEventCreate"):
                args[0]._obj.value = 0x7F0000000000 + len(self.calls)
            return answers.pop(0) if answers else 0

        return call


@pytest.fixture
def one(monkeypatch):
    made = object.__new__(Driver)
    made._functions, made.stream = Library(), 0x400
    monkeypatch.setattr(made, "enter", lambda: False, raising=False)
    monkeypatch.setattr(made, "_error", lambda name, code: DriverError(name, code), raising=False)
    return made


def test_calls_of_the_driver(one):
    calls = one._functions.calls
    address = one.page_locked(4096)
    assert address > 2**32
    assert calls[-1][0] == "cuMemHostAlloc"
    assert calls[-1][2:] == (4096, 0)
    event = one.event()
    assert calls[-1][0::2] == ("cuEventCreate", 2)
    one.send(77, address, 4096)
    assert calls[-1] == ("cuMemcpyHtoDAsync_v2", 77, address, 4096, 0x400)
    one.fetch(address, 77, 4096)
    assert calls[-1] == ("cuMemcpyDtoHAsync_v2", address, 77, 4096, 0x400)
    one.copy_in(77, b"abcd", 4)
    assert calls[-1] == ("cuMemcpyHtoDAsync_v2", 77, b"abcd", 4, 0x400)
    one.mark(event)
    assert calls[-1] == ("cuEventRecord", event, 0x400)


def test_waiting_for_an_event(one):
    answers = one._functions.answers
    answers["cuEventQuery"] = [600, 0, 700, 600, 600, 600, 0, 600, 700]
    assert one.is_done(5) is False
    assert one.is_done(5) is True
    with pytest.raises(DriverError, match="cuEventQuery") as caught:
        one.is_done(5)
    assert caught.value.code == 700
    one.wait_for_event(5)
    assert len(answers["cuEventQuery"]) == 2
    with pytest.raises(DriverError, match="cuEventQuery"):
        one.wait_for_event(5)


def test_ctrl_c_ends_a_wait_for_an_event(one, monkeypatch):
    monkeypatch.setattr(one._functions, "answers", {"cuEventQuery": [600] * 10**6})
    timer = threading.Timer(0.3, lambda: drivers.ctypes.pythonapi.PyErr_SetInterrupt())
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        one.wait_for_event(5)
    timer.join()
