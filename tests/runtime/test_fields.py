"""Fields: elements, copies, layouts, big ones, and that memory goes back."""

import gc
import itertools
import os
import sys
import weakref

import numpy as np
import pytest

TYPES = "f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 u1".split()


def samples(name, shape):
    rng = np.random.default_rng(0)
    if name[0] == "f":
        return rng.normal(size=shape).astype("float" + name[1:])
    if name == "u1":
        return rng.random(shape) > 0.5
    dtype = np.dtype({"i": "int", "u": "uint"}[name[0]] + name[1:])
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def make(ds, element, dtype, shape, **more):
    if not element:
        return ds.field(dtype, shape=shape, **more)
    if len(element) == 1:
        return ds.Vector.field(*element, dtype, shape=shape, **more)
    return ds.Matrix.field(*element, dtype, shape=shape, **more)


# ---- elements and copies


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("element", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 2)])
def test_round_trips(cpu, name, element, shape):
    ds = cpu
    a = samples(name, shape + element)
    for layout in (ds.Layout.AOS, ds.Layout.SOA):
        x = make(ds, element, getattr(ds, name), shape, layout=layout)
        assert (x.to_numpy() == 0).all()
        x.from_numpy(a)
        found = x.to_numpy()
        assert found.dtype == a.dtype
        assert found.shape == shape + element
        assert (found == a).all()
        for index in itertools.product(*map(range, shape)):
            key = None if not shape else index[0] if len(shape) == 1 else index
            one = x[key]
            assert (np.asarray(one.to_list() if element else one) == a[index]).all()
        found[...] = 0  # a copy
        assert (x.to_numpy() == a).all()


@pytest.mark.parametrize("name", TYPES)
def test_elements_are_written_from_python_and_read_in_kernels(cpu, name):
    ds = cpu
    x, y = (ds.field(getattr(ds, name), shape=(3, 4)) for _ in range(2))
    a = samples(name, (3, 4))
    for i, j in itertools.product(range(3), range(4)):
        x[i, j] = a[i, j]
    for i, j in itertools.product(range(3), range(4)):
        assert x[i, j] == a[i, j]
        assert type(x[i, j]) is type(a[i, j].item())

    @ds.kernel
    def copy():
        for i, j in x:
            y[i, j] = x[i, j]

    copy()
    assert (y.to_numpy() == a).all()


def test_fill_and_copy_from(cpu):
    ds = cpu
    x, y = ds.field(ds.f32, shape=(3, 4)), ds.field(ds.f64, shape=(3, 4))
    x.fill(2.5)
    y.copy_from(x)
    assert (y.to_numpy() == 2.5).all()
    v, w = ds.Vector.field(2, ds.i32, shape=3), ds.Vector.field(2, ds.i64, shape=3)
    v.fill(7)
    v.fill([1, 2])
    w.copy_from(v)
    assert w.to_numpy().tolist() == [[1, 2]] * 3
    v.fill(ds.Vector([3, 4]))
    assert v.to_numpy().tolist() == [[3, 4]] * 3
    soa = ds.Vector.field(2, ds.i64, shape=3, layout=ds.Layout.SOA)
    soa.copy_from(w)
    assert soa.to_numpy().tolist() == [[1, 2]] * 3
    soa.fill([5, 6])
    assert soa.to_numpy().tolist() == [[5, 6]] * 3
    y.from_numpy(np.ones((3, 4), np.float32))
    assert (y.to_numpy(dtype=np.int8) == 1).all()


def test_zero_dimensional_fields(cpu):
    ds = cpu
    x, v = ds.field(ds.i32, shape=()), ds.Vector.field(2, ds.f32, shape=())
    x[None] = 5
    x[None] += 2
    v[None] = [1, 2]
    assert (x[None], v[None].to_list(), x.shape) == (7, [1, 2], ())
    assert x[()] == 7
    x.from_numpy(np.array(9))
    assert x.to_numpy() == 9
    x.fill(4)
    assert x[None] == 4


def test_indices_of_many_kinds(cpu):
    ds = cpu
    x, y = ds.field(ds.i32, shape=5), ds.field(ds.i32, shape=(2, 3))
    x[np.int64(3)] = 7
    x[(2,)] = 6
    y[1, np.int32(2)] = 5
    y[ds.Vector([0, 1])] = 4
    y[[0, 2]] = 3
    assert x.to_numpy().tolist() == [0, 0, 6, 7, 0]
    assert y.to_numpy().tolist() == [[0, 4, 3], [0, 0, 5]]
    assert (x[np.int8(3)], y[(1, 2)]) == (7, 5)


@pytest.mark.parametrize("key", [5, -1, 1.5, "a", None, slice(None), (1, 1), (), [0, 0], 2**40])
def test_wrong_indices_are_refused(cpu, key):
    x = cpu.field(cpu.i32, shape=5)
    with pytest.raises((cpu.AccessError, cpu.FieldError)):
        x[key]
    with pytest.raises((cpu.AccessError, cpu.FieldError)):
        x[key] = 1
    assert (x.to_numpy() == 0).all()


@pytest.mark.parametrize("value", [1.5, "1", None, [1, 2], 2**31, -(2**31) - 1, 1j, np.ones(2)])
def test_wrong_values_are_refused(cpu, value):
    for shape, key in [(5, 0), ((), None), ((2, 2), (0, 0))]:
        x = cpu.field(cpu.i32, shape=shape)
        with pytest.raises(cpu.DtypeError):
            x[key] = value
        with pytest.raises(cpu.DtypeError):
            x.fill(value)
        assert (x.to_numpy() == 0).all()


def test_wrong_arrays_and_declarations_are_refused(cpu):
    ds = cpu
    x, v = ds.field(ds.i32, shape=(2, 3)), ds.Vector.field(2, ds.f32, shape=3)
    for wrong in (np.zeros((3, 2), int), np.zeros((2, 3)), np.zeros(6, int), 1):
        with pytest.raises(ds.ArgumentError):
            x.from_numpy(wrong)
    with pytest.raises(ds.FieldError):
        v.from_numpy(np.zeros((2, 3)))
    with pytest.raises(ds.FieldError):
        x.copy_from(v)
    with pytest.raises(ds.DtypeError):
        x.copy_from(ds.field(ds.f32, shape=(2, 3)))
    sizes = np.array([2, 3])
    assert ds.field(ds.f32, shape=sizes, offset=-sizes).shape == (2, 3)
    for shape in (0, -1, 2.5, (3, 0), "3", True, np.array([2.0]), np.eye(2, dtype=int)):
        with pytest.raises(ds.FieldError):
            ds.field(ds.f32, shape=shape)
    with pytest.raises(ds.DtypeError):
        ds.field("f32", shape=2)
    with pytest.raises(ds.DtypeError):
        ds.field(ds.i32, shape=2, needs_grad=True)
    with pytest.raises(ds.OutOfMemoryError):
        ds.field(ds.f32, shape=2**50)


def test_names_and_words(cpu):
    ds = cpu
    given = ds.field(ds.f32, shape=2, name="density")
    found = ds.Vector.field(2, ds.f64, shape=(2, 3), needs_grad=True)

    @ds.kernel
    def use():
        found[0, 0] = given[0]

    use()
    assert repr(given) == "<field density: f32, shape (2,)>"
    assert repr(found) == "<field found: vec2 f64, shape (2, 3), needs_grad=True>"
    assert found.grad.name == "found.grad"
    assert (found.n, found.m, found.dtype, found.needs_grad) == (2, 1, ds.f64, True)


# ---- layouts


def test_the_tree_decides_the_order_in_memory(cpu):
    ds = cpu
    a = np.arange(24).reshape(4, 6)
    rows, columns, tiles, nested = (ds.field(ds.i32) for _ in range(4))
    ds.root.dense(ds.ij, (4, 6)).place(rows)
    ds.root.dense(ds.j, 6).dense(ds.i, 4).place(columns)
    ds.root.dense(ds.i, 4).dense(ds.j, 6).place(tiles)
    ds.root.dense(ds.ij, (2, 3)).dense(ds.ij, 2).place(nested)
    for x in (rows, columns, tiles, nested):
        assert x.shape == (4, 6)
        x.from_numpy(a)
        assert (x.to_numpy() == a).all()
        assert x[3, 5] == 23
    assert rows.storage.layout.strides == (6, 1)
    assert columns.storage.layout.strides == (1, 4)

    @ds.kernel
    def work(x: ds.template()):
        for i, j in x:
            x[i, j] = 100 * i + j + x[i, j]

    expected = 100 * np.arange(4)[:, None] + np.arange(6) + a
    for x in (rows, columns, tiles, nested):
        work(x)
        assert (x.to_numpy() == expected).all()


@pytest.mark.parametrize("layout", ["AOS", "SOA"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_orders_of_three_axes_with_vectors(cpu, order, layout):
    ds = cpu
    sizes = (2, 3, 4)
    a = np.arange(48.0).reshape(2, 3, 4, 2)
    x = ds.Vector.field(2, ds.f64, layout=getattr(ds.Layout, layout))
    node = ds.root
    for axis in order:
        node = node.dense(ds.axes(axis), sizes[axis])
    node.place(x)
    assert x.shape == sizes
    x.from_numpy(a)

    @ds.kernel
    def turn():
        for i, j, k in x:
            v = x[i, j, k]
            x[i, j, k] = [v.y + i, v.x * 10 + j + k]

    turn()
    i, j, k = np.indices(sizes)
    expected = np.stack([a[..., 1] + i, a[..., 0] * 10 + j + k], -1)
    assert (x.to_numpy() == expected).all()
    assert x[1, 2, 3].to_list() == expected[1, 2, 3].tolist()


def test_lazy_grad(cpu):
    ds = cpu
    x, y, n, z = ds.field(ds.f32), ds.Vector.field(2, ds.f64), ds.field(ds.i32), ds.field(ds.f32)
    block = ds.root.dense(ds.i, 4)
    block.place(x, y)
    block.dense(ds.j, 2).place(n)
    ds.root.place(z)
    assert z.shape == ()
    ds.root.lazy_grad()
    assert x.grad.shape == y.grad.shape == (4,)
    assert n.grad is None
    assert z.grad.shape == ()
    before = x.grad
    ds.root.lazy_grad()
    assert x.grad is before
    x.grad[2] = 1.5
    assert x.grad.to_numpy().tolist() == [0, 0, 1.5, 0]


def test_a_field_is_placed_once(cpu):
    ds = cpu
    x = ds.field(ds.f32)
    with pytest.raises(ds.FieldError, match="no place"):
        x[0] = 1
    with pytest.raises(ds.FieldError, match="no place"):
        x.to_numpy()
    ds.root.dense(ds.i, 3).place(x)
    with pytest.raises(ds.FieldError, match="already has its place"):
        ds.root.dense(ds.i, 3).place(x)


def test_a_gradient_is_placed_with_its_field(cpu):
    ds = cpu
    x = ds.Vector.field(2, ds.f32, needs_grad=True, layout=ds.Layout.SOA)
    ds.root.dense(ds.j, 3).dense(ds.i, 2).place(x)
    assert x.grad.shape == (2, 3)
    assert x.grad.storage.layout.strides == x.storage.layout.strides


# ---- memory


def _available_bytes():
    if not hasattr(os, "sysconf") or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return 0
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        free = int(lines["MemAvailable"].split()[0]) * 1024
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
        if limit != "max":
            with open("/sys/fs/cgroup/memory.current") as file:
                free = min(free, int(limit) - int(file.read()))
    except (OSError, KeyError):
        pass
    return free


@pytest.mark.memory
@pytest.mark.skipif(_available_bytes() < 6 << 30, reason="needs 6 GiB of memory")
def test_more_elements_than_32_bits_count(cpu):
    ds = cpu
    n = 2**31 + 16
    x = ds.field(ds.u8, shape=n)

    @ds.kernel
    def mark(i: ds.i64, v: ds.u8):
        x[i] = v
        x[n - 2] = 4

    @ds.kernel
    def last() -> ds.i64:
        s = ds.i64(0)
        for i in range(n - 40, n):
            s += x[i] * ds.cast(i % 2 + 1, ds.i64)
            x[i] += 1
        return s

    mark(n - 1, 200)
    assert (x[n - 1], x[n - 2], x[n - 3], x[15]) == (200, 4, 0, 0)
    x[n - 3] = 7
    x[2**31 - 1] = 9
    expected = 200 * ((n - 1) % 2 + 1) + 4 * ((n - 2) % 2 + 1) + 7 * ((n - 3) % 2 + 1)
    expected += 9 * ((2**31 - 1) % 2 + 1)
    assert last() == expected
    assert (x[n - 1], x[n - 2], x[n - 4], x[n - 40], x[n - 41]) == (201, 5, 1, 1, 0)
    assert x[-1 + 2**31] == 10


def _resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.memory
def test_memory_goes_back_with_the_field(cpu):
    ds = cpu
    n = 10_000_000

    @ds.kernel
    def touch(f: ds.template()):
        for i in range(0, n, 512):
            f[i] = 1.0

    sizes = []
    for _ in range(10):
        x = ds.field(ds.f64, shape=n)
        touch(x)
        assert x[512] == 1.0
        sizes.append(_resident_bytes())
        gone = weakref.ref(x)
        del x
        gc.collect()
        assert gone() is None
    assert max(sizes[5:]) < sizes[4] + 40e6, sizes
    assert len(touch.specializations) <= 2


def test_a_captured_field_lives_with_its_variable_alone(cpu):
    ds = cpu

    class Holder:
        pass

    holder = Holder()
    holder.x = ds.field(ds.f32, shape=10, needs_grad=True)
    holder.s = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def total():
        for i in range(10):
            holder.s[None] += holder.x[i]

    with ds.Tape(holder.s):
        total()
    gone = weakref.ref(holder.x)
    grad = holder.x.grad
    holder.x = None
    gc.collect()
    assert gone() is None
    assert grad.to_numpy().tolist() == [1] * 10


@pytest.mark.parametrize("tape", [False, True])
def test_objects_with_kernels_go_away(cpu, tape):
    ds = cpu

    @ds.data_oriented
    class Model:
        def __init__(self):
            self.x = ds.field(ds.f32, shape=10, needs_grad=True)
            self.loss = ds.field(ds.f32, shape=(), needs_grad=True)

        @ds.func
        def rule(self, i):
            return self.x[i] * 2

        @ds.kernel
        def run(self):
            for i in self.x:
                self.loss[None] += self.rule(i)

    model = Model()
    if tape:
        with ds.Tape(model.loss):
            model.run()
    else:
        model.run()
        model.run.grad()
    gone = weakref.ref(model), weakref.ref(model.x)
    del model
    gc.collect()
    assert [g() for g in gone] == [None, None]


def test_fields_survive_init_and_reset(cpu):
    ds = cpu
    x = ds.field(ds.f32, shape=3, needs_grad=True)
    x.fill(2.0)

    @ds.kernel
    def double():
        for i in x:
            x[i] *= 2

    double()
    ds.init(default_fp=ds.f64)
    assert x.to_numpy().tolist() == [4, 4, 4]
    double()
    ds.reset()
    double()
    x[0] = 1.0
    assert x.to_numpy().tolist() == [1, 16, 16]
    assert x.grad is not None


def test_neighbouring_fields_do_not_overlap(cpu):
    ds = cpu
    fields = [ds.field(ds.u8, shape=n) for n in (1, 3, 7, 63, 64, 65)]
    for k, x in enumerate(fields):
        x.fill(k + 1)
    for k, x in enumerate(fields):
        assert (x.to_numpy() == k + 1).all()
        assert x.address % 64 == 0


@pytest.mark.parametrize(
    ("shape", "order"), [((7, 5000), None), ((3, 4), "ji"), ((40_000,), None), ((), None)]
)
def test_copies_of_components_in_blocks(cpu, shape, order):
    ds = cpu
    x = ds.Vector.field(3, ds.f32, shape=shape, layout=ds.Layout.SOA, order=order)
    numbers = np.random.default_rng(1).integers(-99, 99, size=(*shape, 3))
    x.from_numpy(numbers)
    for dtype in (None, np.float64, np.int32):
        found = x.to_numpy(dtype)
        assert np.array_equal(found, numbers)
        assert found.dtype == (dtype or np.float32)


@pytest.mark.memory
@pytest.mark.skipif(_available_bytes() < 6 << 30, reason="needs 6 GiB of memory")
def test_short_axes_of_an_array_beyond_32_bits(cpu):
    """Each index fits into 32 bits, the place in memory does not; pages that are not written take none."""
    ds = cpu
    n, m = 2**16, 2**15 + 1
    y = ds.ndarray(ds.i8, shape=(n, m))

    @ds.kernel
    def rows(a: ds.types.ndarray(), low: ds.i32):
        for i, j in ds.ndrange((low, a.shape[0]), a.shape[1]):
            a[i, j] = ds.cast(j % 100, ds.i8)

    rows(y, n - 2)
    assert [y[n - 1, m - 1], y[n - 2, 7], y[n - 3, 7], y[0, 7]] == [(m - 1) % 100, 7, 0, 0]


@pytest.mark.parametrize(
    ("shape", "margin"),
    [((), 64), (16, 64), ((8, 100), 448), ((2, 10**6), 65536), ((100, 3, 50), 640)],
)
def test_an_index_that_is_off_by_one_reaches_no_other_memory(cpu, shape, margin):
    """Room for one step along the slowest axis, up to 64 KiB, at both ends of the elements."""
    x = cpu.field(cpu.f32, shape=shape)
    storage = x.storage
    whole = storage.scalars
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    first, last = whole.ctypes.data, whole.ctypes.data + whole.nbytes
    assert storage.layout.margin == margin
    assert first + margin <= storage.address
    assert storage.address + storage.layout.nbytes + margin <= last
    assert storage.address % 64 == 0


def test_arrays_are_copied_into_without_a_search_for_names(cpu, monkeypatch):
    """A name is for messages: what has none yet is looked for among the program's variables."""
    ds = cpu
    fresh, rows = ds.ndarray(ds.f32, 4), ds.field(ds.f32, (2, 3))
    with pytest.raises(ds.FieldError, match=r"fresh needs an array of shape \(4,\)"):
        fresh.from_numpy(np.zeros(3, np.float32))
    with pytest.raises(ds.FieldError, match=r"rows\[1\] needs an array of shape \(3,\)"):
        rows[1] = np.zeros(2, np.float32)
    with pytest.raises(ds.FieldError, match="fresh: this array has a mask"):
        fresh.from_numpy(np.ma.masked_array(np.zeros(4, np.float32), mask=True))
    monkeypatch.setattr("diffsim.runtime.fields.field.name_of", None)
    fresh.from_numpy(np.arange(4, dtype=np.float32))
    rows[1] = np.ones(3, np.float32)
    assert fresh[3] == 3.0
    assert rows[1, 2] == 1.0
