"""Arguments that native code packs: what it takes is what Python packs, and it takes nothing else."""

import ctypes
import itertools
import math
import sys
import threading

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native import calls
from diffsim.runtime.binding import plain_calls
from diffsim.runtime.session import session

pytestmark = pytest.mark.usefixtures("quick_code")

TYPES = [ds.f16, ds.f32, ds.f64, ds.i8, ds.i16, ds.i32, ds.i64, ds.u8, ds.u32, ds.u64, ds.u1]
NUMBERS = [
    *(
        s * 2**k + d
        for s, k, d in itertools.product((1, -1), (0, 7, 8, 31, 32, 63, 64, 70), (-1, 0))
    ),
    *(
        0.5,
        -0.0,
        1e-46,
        3.4028235677973366e38,
        1e39,
        -1e300,
        math.inf,
        -math.inf,
        math.nan,
        True,
        False,
    ),
    *(
        np.float32(0.1),
        np.float64(0.1),
        np.int8(-3),
        np.uint64(2**63),
        np.bool_(True),
        np.array(2.5),
    ),
    *("1", None, 1j, [1], 10**400),
]


def outcome(kernel, args, made):
    try:
        kernel(*args)
    except Exception as error:
        return type(error), str(error)
    return (made.to_numpy() if isinstance(made, ds.Field) else np.asarray(made)).tobytes()


@pytest.fixture(autouse=True)
def native_from_the_second_launch(request, monkeypatch):
    if "usual_launches" not in request.fixturenames:
        monkeypatch.setattr(plain_calls, "_FIRST_LAUNCHES", 0)


@pytest.fixture
def usual_launches():
    """Native functions are made when they usually are."""


@pytest.fixture
def without_calls():
    """Starts anew, without native functions."""

    def start():
        ds.init(arch=ds.cpu)
        session._calls = False

    yield start
    session._calls = None


def test_numbers_are_what_python_packs(cpu, without_calls):
    def found(t):
        x = ds.field(t, shape=())

        @ds.kernel
        def put(before: ds.f64, a: t, after: ds.i32):
            if before == 0.25 and after == -7:
                x[None] = a

        return [outcome(put, (0.25, n, -7), x) for n in NUMBERS]

    native = [found(t) for t in TYPES]
    assert session._calls
    without_calls()
    for t, mine, expected in zip(TYPES, native, map(found, TYPES), strict=True):
        assert mine == expected, t.name


def arrays():
    table = np.arange(48, dtype=np.float32).reshape(6, 8)
    yield from (
        table,
        table.T,
        table[1:3],
        table[:, ::2],
        table[::-1],
        table[:0],
        table[0],
        table.copy(),
    )
    yield from (
        table.astype(np.float64),
        table.astype(">f4"),
        table.view(np.int32),
        table.view(np.ma.MaskedArray),
    )
    frozen = table.copy()
    frozen.flags.writeable = False
    yield from (
        frozen,
        table[3:],
        table.reshape(-1)[1:41].reshape(5, 8),
        memoryview(table),
        table.tolist(),
    )
    yield (
        np.frombuffer(b"\0" + bytes(48), np.uint8)[1:].view(np.float32).reshape(3, 4)
    )  # not aligned


def test_arrays_are_what_python_binds(cpu, without_calls):
    """Pairs, of which some overlap, each after others."""

    def found():
        @ds.kernel
        def add(a: ds.types.ndarray(), t: ds.f32, b: ds.types.ndarray(dtype=ds.f32, ndim=2)):
            for i, j in b:
                b[i, j] += (
                    t * a[i % a.shape[0], j % a.shape[1]] + 100 * a.shape[0] + 1000 * b.shape[1]
                )

        made = []
        for k, m in itertools.product(range(18), range(0, 18, 3)):
            both = list(arrays())
            made.append(outcome(add, (both[k], 0.5, both[m]), both[m]))
        return made

    native = found()
    assert len({o for o in native if isinstance(o, bytes)}) > 9
    without_calls()
    assert native == found()


def test_an_array_that_changes_before_the_call_is_refused(cpu):
    """Another thread may do that; nothing is launched."""
    block = (ctypes.c_int64 * 9)(*range(9))
    array = calls.Array(7, 1, 1, 4, 0, np.dtype(np.float32))
    made = calls.Signature(session.calls, block, [array], [])
    a = np.zeros(5, np.float32)
    assert made.fits(a)
    assert not made.fits(a, a)
    a.resize(0)
    assert not made.fits(a)
    with pytest.raises(RuntimeError, match="changed"):
        made.launch(a)
    assert list(block) == list(range(9))


def test_native_functions_are_made_at_the_third_launch(cpu, usual_launches, monkeypatch):
    x = ds.field(ds.i32, shape=8)

    @ds.kernel
    def put(k: ds.i32, a: ds.i32):
        x[k] = a

    @ds.kernel
    def add():
        x[0] += 1

    loaded = []
    monkeypatch.setattr(calls.Calls, "is_loaded", lambda self: loaded.append(1) or is_loaded(self))
    for k in range(8):
        put(k, 10 * k)
        add()
        assert len(loaded) == 2 * (k > 1)  # once for each kernel
    assert x.to_numpy().tolist() == [8, *range(10, 80, 10)]


is_loaded = calls.Calls.is_loaded


def test_code_that_another_thread_loads_is_not_waited_for(cpu, usual_launches, monkeypatch):
    """It may wait for the kernel that this one is about to launch."""
    x = ds.field(ds.i32, shape=())

    @ds.kernel
    def add(a: ds.i32):
        x[None] += a

    def load():
        begun.set()
        assert go_on.wait(60)
        return usual()

    native, begun, go_on = calls.Calls(load), threading.Event(), threading.Event()
    usual = session.calls._load
    monkeypatch.setattr(session, "_calls", native)
    loader = threading.Thread(target=native.is_loaded)
    loader.start()
    assert begun.wait(60)
    for _ in range(5):
        add(1)
    go_on.set()
    loader.join()
    assert native._loaded
    for _ in range(5):
        add(1)
    assert x[None] == 10


@pytest.fixture
def hasty_threads():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_threads_that_pack_in_both_ways(cpu, hasty_threads):
    """A thread that gives NumPy's numbers packs in Python, one that gives Python's does not."""
    count = ds.field(ds.i32, shape=(2, 500))

    @ds.kernel
    def add(row: ds.i32, k: ds.i32, a: ds.f64, b: ds.f64):
        if a == row and b == row:
            count[row, k] += 1

    def work(row, number):
        for k in range(500):
            add(row, k, number(row), number(row))

    given = [(0, float), (0, float), (1, np.float32), (1, np.float32)]
    threads = [threading.Thread(target=work, args=a) for a in given]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    np.testing.assert_array_equal(count.to_numpy(), 2)


def test_a_kernel_finds_the_code_for_what_it_is_given(cpu):
    x, y = ds.field(ds.f64, shape=3), ds.field(ds.f64, shape=3)
    a, b = ds.ndarray(ds.f64, 3), ds.ndarray(ds.f64, 3)

    @ds.kernel
    def put(to: ds.template(), how: ds.template(), from_: ds.types.ndarray(), t: ds.f64) -> ds.f64:
        for i in to:
            to[i] = from_[i] * t + how
        return t

    numbers = np.arange(3.0)
    a.from_numpy(10 + numbers)
    b.from_numpy(20 + numbers)
    given = [
        (numbers, numbers),
        (a, 10 + numbers),
        (b, 20 + numbers),
        (numbers.astype(np.float32), numbers),
    ]
    for _ in range(2):
        for to, how, (array, values) in itertools.product((x, y), (1, True, 2, -0.0, 0.5), given):
            assert put(to, how, array, 2.0) == 2.0
            np.testing.assert_array_equal(to.to_numpy(), 2 * values + how)
            # Literals' signs and classes count: -0.0 and 0 are two numbers.
            put(to, how, array * 0 if array is numbers else array, -0.0)
            if how == 0 and array is numbers:
                assert np.signbit(to.to_numpy()).all()
    with pytest.raises(TypeError, match="put takes 4 arguments, 3 given: t is missing"):
        put(x, 1, numbers)


def test_fields_as_arrays_after_they_got_gradients_or_are_gone(cpu):
    @ds.kernel
    def double(a: ds.types.ndarray(), b: ds.types.ndarray()):
        for i in a:
            b[i] = 2 * a[i]

    for grad in (False, True, False):
        for n in (3, 4):
            a, b = (ds.ndarray(ds.f32, n, needs_grad=grad) for _ in range(2))
            a.fill(n)
            for _ in range(3):
                b.fill(0)
                double(a, b)
                np.testing.assert_array_equal(b.to_numpy(), 2 * n)
            double(b, a)
            np.testing.assert_array_equal(a.to_numpy(), 4 * n)
            if grad:
                a.grad.fill(1)
                double.grad(b, a)
                np.testing.assert_array_equal(b.grad.to_numpy(), 2)
