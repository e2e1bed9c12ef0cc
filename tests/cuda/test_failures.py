"""Calls of the driver that fail, at any moment: what the user sees, and that everything goes on after it.

Random programs run on a fake GPU and beside it on NumPy. Now and then one call of the driver fails, for good
(a kernel has spoilt the context) or once.
"""

import contextlib
import functools
import gc
import sys

import numpy as np
import pytest

from diffsim.backends.cuda.libcuda import DriverError, OutOfMemory
from diffsim.runtime import session
from diffsim.runtime.cuda import backend as cuda_backend
from diffsim.runtime.cuda import staging
from diffsim.runtime.cuda.device import Device
from tests.cuda import fake as fakes
from tests.cuda.fake import FakeDriver, Foreign, live

N = 40
CALLS = (
    "alloc copy copy_in copy_out drop_graph event fetch free free_memory function is_done link load mark "
    "blocks_at_once page_locked record run_graph send set_words unload wait wait_for wait_for_event where"
).split()
ONCE = {1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY"}
FOR_GOOD = {700: "CUDA_ERROR_ILLEGAL_ADDRESS", 719: "CUDA_ERROR_LAUNCH_FAILED"}


SAFE = "drop_graph free is_done mark unload wait wait_for_event".split()
"""They fail only after what cannot be mended."""


class FailingDriver(FakeDriver):
    """A driver whose `countdown`-th call from now on ends with an error.

    Attributes:
        dead: the error that all calls end with from now on.
        failed_with: the error of the last call that failed.
    """

    countdown = code = 0
    dead = failed_with = None

    def fail(self, countdown, code):
        self.countdown, self.code, self.failed_with = countdown, code, None

    def call(self, name):
        counts = self.code in FOR_GOOD or name not in SAFE
        self.countdown -= counts
        if self.dead is not None or (counts and self.countdown == 0):
            self.failed_with = code = self.dead or self.code
            self.dead = code if code in FOR_GOOD else None
            raise self.error(name, code)

    def error(self, name, code):
        kind = OutOfMemory if code == 2 else DriverError
        return kind(f"{name}: {({**ONCE, **FOR_GOOD})[code]}", code)

    def prepare(self, launches, jit):
        start, block = super().prepare(launches, jit)

        def started(block):
            try:
                self.call("start")
            except DriverError as problem:
                return problem.code
            return start(block)

        return started, block

    def failed(self, code):
        raise self.error("start", code)


def failing(name):
    whole = getattr(FakeDriver, name)

    @functools.wraps(whole)
    def call(self, *args, **kwargs):
        self.call(name)
        return whole(self, *args, **kwargs)

    return call


for _name in CALLS:
    setattr(FailingDriver, _name, failing(_name))


class Program:
    """Random actions on fields, and the same on NumPy; numbers are whole and small."""

    def __init__(self, ds, seed):
        self.ds, self.driver = ds, ds.driver
        self.random = np.random.default_rng(seed)
        self.others = []
        made = dict(shape=N, needs_grad=True)
        self.a, self.b = ds.field(ds.f64, **made), ds.field(ds.f64, **made)
        self.w, self.big = ds.field(ds.f64, shape=N), ds.field(ds.i32, shape=9000)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)
        self.fields = [self.a, self.b, self.w, self.big]
        self.arrays = [f.to_numpy() for f in self.fields]
        self.tape = None
        a, b, loss = self.a, self.b, self.loss

        @ds.kernel
        def mix(w: ds.types.ndarray(), k: ds.f64):
            for i in a:
                a[i] = b[i] * w[i] + k

        @ds.kernel
        def measure():
            for i in a:
                loss[None] += a[i] * a[i]

        self.mix, self.measure = mix, measure

    def numbers(self, n=N):
        return self.random.integers(-5, 6, n).astype(float)

    def write(self):
        k = int(self.random.integers(4))
        array = self.arrays[k]
        given = self.random.integers(-9, 10, array.shape).astype(array.dtype)
        self.fields[k].from_numpy(given)
        array[...] = given
        return None

    def read(self):
        k = int(self.random.integers(4))
        return self.fields[k].to_numpy(), self.arrays[k].copy()

    def element(self):
        k, i = int(self.random.integers(4)), int(self.random.integers(N))
        self.fields[k][i] = i
        self.arrays[k][i] = i
        return self.fields[k][i], i

    def copy(self):
        self.b.copy_from(self.w)
        self.arrays[1][...] = self.arrays[2]

    def fill(self):
        self.w.fill(3)
        self.arrays[2][...] = 3

    def launch(self):
        given = self.numbers()
        how = self.random.integers(3)
        if how == 2:
            self.w.from_numpy(given)
            self.arrays[2][...] = given
        self.mix([given, Foreign(self.w, dtype=np.float64, stream=99), self.w][how], 2.0)
        w = given if how == 0 else self.arrays[2]
        self.arrays[0][...] = self.arrays[1] * w + 2

    def gradient(self):
        with self.ds.Tape(self.loss, in_place="save") as tape:
            self.mix(self.w, 1.0)
            self.measure()
            self.a.fill(7)
        self.tape = tape
        return self.of_tape()

    def replay(self):
        if self.tape is None:
            return None
        self.tape.replay()
        self.tape.backward()
        return self.of_tape()

    def of_tape(self):
        """Loss and gradient, and what they should be."""
        _, b, w, _ = self.arrays
        self.arrays[0][...] = 7
        a = b * w + 1
        return (self.loss[None], *self.b.grad.to_numpy()), (np.sum(a * a), *(2 * a * w))

    def make(self):
        shape = int(self.random.integers(1, 50))
        f = self.ds.Vector.field(3, self.ds.f32, shape=shape, layout=self.ds.Layout.SOA)
        f.fill(self.ds.Vector([1.0, 2.0, 3.0]))
        self.others.append(f)
        return f[shape - 1].to_numpy(), [1, 2, 3]

    def drop(self):
        if self.others:
            del self.others[int(self.random.integers(len(self.others)))]

    def forget(self):
        self.tape = None

    def sync(self):
        self.ds.sync()

    def start_anew(self):
        self.tape = None
        self.ds.init(arch=self.ds.cuda, offline_cache=False)

    ACTIONS = (write, read, element, copy, fill, launch, gradient, replay, make, drop, forget, sync)

    def turn(self):
        many = len(self.ACTIONS)
        action = self.start_anew if self.random.random() < 0.04 else None
        return (action or self.ACTIONS[self.random.integers(many)].__get__(self))()

    def again(self):
        """After a failure nobody knows what fields hold."""
        self.tape = None
        for f, array in zip(self.fields, self.arrays, strict=True):
            f.from_numpy(array)
        self.ds.sync()

    def check(self):
        for f, array in zip(self.fields, self.arrays, strict=True):
            assert np.array_equal(f.to_numpy(), array)


@pytest.fixture
def failing_gpu(monkeypatch):
    import diffsim as ds

    fakes.install(monkeypatch.setattr)
    monkeypatch.setattr(staging, "AT_ONCE", 4096)
    monkeypatch.setattr(staging, "SLOT_BYTES", 8192)
    opened = []

    def open_device(number, jit, pool):
        if not opened:
            driver = FailingDriver(memory=1 << 25, keeps_launches=False)
            opened.append(Device(driver, jit(), pool))
        return opened[0]

    monkeypatch.setattr(cuda_backend, "open_device", open_device)
    hidden = []
    monkeypatch.setattr(sys, "unraisablehook", hidden.append)
    ds.init(arch=ds.cuda, offline_cache=False)
    monkeypatch.setattr(ds, "driver", session.session.device.driver, raising=False)
    yield ds
    ds.driver.dead = None
    gc.collect()
    ds.reset()
    ds.init(arch=ds.cpu)
    assert hidden == []


def check_words(problem, code):
    """What the user reads: the call, the line, and after what cannot be mended what to do."""
    text = str(problem)
    assert ({**ONCE, **FOR_GOOD})[code] in text or "there is no memory" in text
    assert "test_failures.py" in text or problem.span is None
    if code in FOR_GOOD:
        assert "has failed on the GPU" in text or "cannot be launched" in text, text
        assert "debug=True" in text


@pytest.mark.filterwarnings("ignore:replayed tapes launch their kernels one by one")
@pytest.mark.parametrize("seed", range(6))
def test_random_programs(failing_gpu, seed):
    ds = failing_gpu
    program, driver = Program(ds, seed), ds.driver
    random, memory = np.random.default_rng(100 + seed), driver.memory
    failed = 0
    for k in range(150):
        driver.fail(0, 0)
        how = random.random()
        if how < 0.3:
            codes = list(FOR_GOOD if seed % 2 and k > 80 else ONCE)
            driver.fail(int(random.integers(1, 12)), int(random.choice(codes)))
        elif how < 0.4:
            driver.failed_with, driver.memory = 2, driver.used
        try:
            found = program.turn()
        except ds.DiffsimError as problem:
            check_words(problem, driver.failed_with)
            failed += 1
            if driver.dead is not None:
                break
            driver.fail(0, 0)
            driver.memory = memory
            program.again()
        else:
            driver.memory = memory
            assert driver.dead or found is None or np.array_equal(*found)
    assert failed > 3 or driver.dead
    if driver.dead is not None:  # all that is left is to be told so, and to let go
        for _ in range(20):
            with contextlib.suppress(ds.DiffsimError):
                program.turn()
        return
    driver.fail(0, 0)
    program.check()
    program = found = None
    gc.collect()
    assert driver.graphs == {}
    assert all("@swap(" in text or "@add(" in text for text in driver.modules.values())
    assert live(ds) < 2_000_000  # the arena of saved values, a 32nd of the memory
