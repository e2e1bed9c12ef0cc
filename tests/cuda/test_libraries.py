"""Other libraries on a GPU that is not there (`fake.py`): their arrays in kernels, our fields in them."""

import gc
import re
import weakref

import numpy as np
import pytest

from diffsim.runtime.cuda import device
from diffsim.runtime.fields import export
from diffsim.runtime.memory.storage import HOST
from tests.cuda.fake import Foreign, live
from tests.support.processes import run


def test_arrays_on_the_gpu_are_used_where_they_are(fake):
    ds = fake
    memory = ds.field(ds.f32, shape=12)
    memory.from_numpy(np.arange(12, dtype=np.float32))
    x = ds.field(ds.f32, shape=(2, 3))

    @ds.kernel
    def take(y: ds.types.ndarray()):
        for i, j in x:
            x[i, j] = y[i, j]
            y[i, j] = -1.0

    take(Foreign(memory, 12, (2, 3)))
    assert x.to_numpy().tolist() == [[3, 4, 5], [6, 7, 8]]
    assert memory.to_numpy().tolist() == [0, 1, 2, -1, -1, -1, -1, -1, -1, 9, 10, 11]
    take(Foreign(memory, 0, (2, 3), (12, 4), stream=99))
    assert ds.driver.waited_for == 99
    assert x.to_numpy().tolist() == [[0, 1, 2], [-1, -1, -1]]
    for wrong, message in (
        (Foreign(memory, 0, (2, 3), (16, 4)), "not contiguous"),
        (Foreign(memory, 0, (2, 3), data=(memory.address, True)), "read-only"),
        (Foreign(memory, 0, (2, 3), mask=memory), "has a mask"),
        (Foreign(memory, 0, (2, 3), data=(12345, False)), "not on GPU 0"),
        (Foreign(memory, 0, (2, 3), dtype=np.complex64), "complex64 cannot be used"),
        (Foreign(x, 4, (1, 3)), "overlap"),
    ):
        with pytest.raises(ds.KernelTypeError, match=message):
            take(wrong)
    ds.init(arch=ds.cpu)
    with pytest.raises(ds.KernelTypeError, match="is on a GPU, and kernels run on the CPU"):
        take(Foreign(memory, 12, (2, 3)))


def test_gradients_with_foreign_arrays(fake):
    """The tape keeps what they were, and refuses to lose a value in them."""
    ds = fake
    memory = ds.field(ds.f32, shape=3)
    memory.from_numpy(np.float32([1, 2, 3]))
    x, loss = ds.field(ds.f32, shape=3, needs_grad=True), ds.field(ds.f32, (), needs_grad=True)
    x.fill(1)

    @ds.kernel
    def measure(w: ds.types.ndarray()):
        for i in x:
            loss[None] += w[i] * x[i] ** 2

    with ds.Tape(loss):
        measure(Foreign(memory))
        memory.fill(100)
    assert x.grad.to_numpy().tolist() == [2, 4, 6]
    x.grad.fill(0)
    measure(Foreign(memory))
    loss.grad.fill(1)
    measure.grad(Foreign(memory))
    assert x.grad.to_numpy().tolist() == [200, 200, 200]

    @ds.kernel
    def store(w: ds.types.ndarray()):
        for i in x:
            w[i] = x[i]

    with pytest.raises(ds.MissingGradientError):
        with ds.Tape(loss):
            store(Foreign(memory))
            measure(Foreign(memory))


def test_a_replay_refuses_foreign_arrays(fake):
    ds = fake
    memory = ds.field(ds.f32, shape=3)
    x, loss = ds.field(ds.f32, shape=3, needs_grad=True), ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def measure(w: ds.types.ndarray()):
        for i in x:
            loss[None] += w[i] * x[i] ** 2

    with ds.Tape(loss) as tape:
        measure(Foreign(memory))
    with pytest.raises(ds.AutodiffError, match="w of measure was an array of another library"):
        tape.replay()


def test_writes_from_outside_can_be_told(fake):
    ds = fake
    x, loss = ds.field(ds.f32, 3, needs_grad=True), ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def measure():
        for i in x:
            loss[None] += x[i] ** 2

    with pytest.raises(ds.GlobalDataAccessError):
        with ds.Tape(loss):
            measure()
            x.mark_written()


# ---- fields handed out


def test_fields_are_handed_out(fake):
    ds = fake
    x = ds.Matrix.field(2, 3, ds.f64, shape=(4, 5), layout=ds.Layout.SOA)
    given = x.__cuda_array_interface__
    assert given["shape"] == (4, 5, 2, 3)
    assert given["typestr"] == "<f8"
    assert given["strides"] == (40, 8, 480, 160)
    assert given["data"] == (x.address, False)
    assert x.__dlpack_device__() == (2, 0)
    memory = weakref.ref(x.storage)
    capsule = x.__dlpack__()
    del x
    gc.collect()
    assert memory() is not None
    del capsule
    gc.collect()
    assert memory() is None


def test_numpy_is_told_that_a_field_is_on_a_gpu(fake):
    """Its own error would be lost, with a SystemError in its place."""
    ds = fake
    x = ds.field(ds.f32, shape=4)
    memory = weakref.ref(x.storage)
    with pytest.raises(BufferError, match=r"use x\.to_numpy"):
        np.from_dlpack(x)
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(1, 0), stream=None)
    assert x.__dlpack__(max_version=(1, 0), stream=1, dl_device=(2, 0)) is not None
    del x
    gc.collect()
    assert memory() is None


class OnHost:
    """A field of the fake GPU as a library sees it that knows streams and works on the host's memory."""

    def __init__(self, field, stream=1, **more):
        self.field, self.more = field, {"stream": stream, **more}

    def __dlpack_device__(self):
        return self.field.__dlpack_device__()

    def __dlpack__(self, **asked):
        self.capsule = self.field.__dlpack__(**{**asked, **self.more})
        self.name = re.search(r'"(\w+)"', repr(self.capsule))[1]
        return self.capsule


@pytest.mark.parametrize(
    ("version", "name"), [((1, 0), "dltensor_versioned"), (None, "dltensor"), ((0, 8), "dltensor")]
)
def test_capsules_of_both_kinds_are_read_by_numpy(fake, monkeypatch, version, name):
    ds = fake
    monkeypatch.setattr(device, "_DLPACK_CUDA", HOST.dlpack[0])
    values = np.arange(60.0).reshape(4, 5, 3)
    x = ds.Vector.field(3, ds.f64, shape=(4, 5), layout=ds.Layout.SOA)
    x.from_numpy(values)
    given = OnHost(x, max_version=version)
    a = np.from_dlpack(given)
    ds.sync()
    assert given.name == name
    assert a.ctypes.data == x.address
    assert (a == values).all()
    assert a.flags.writeable == (version == (1, 0))  # by the old kind NumPy is not told
    if a.flags.writeable:
        a[2, 3, 1] = -1
        assert x[2, 3][1] == -1
    x.fill(5)
    ds.sync()
    assert (a == 5).all()
    memory, held = weakref.ref(x.storage), len(export._handed_out)
    del x, given
    gc.collect()
    assert memory() is not None
    del a
    gc.collect()
    assert (memory(), len(export._handed_out)) == (None, held - 1)


def test_a_copy_is_one_if_it_is_asked_for(fake, monkeypatch):
    ds = fake
    monkeypatch.setattr(device, "_DLPACK_CUDA", HOST.dlpack[0])
    x = ds.field(ds.i32, shape=1000)
    x.fill(3)
    used = live(ds)
    a = np.from_dlpack(OnHost(x, copy=True, max_version=(1, 0)))
    x.fill(4)
    ds.sync()
    assert (a == 3).all()
    assert live(ds) > used
    del a
    assert live(ds) == used
    x.fill(5)
    waits = ds.driver.waits
    for stream in (None, 1, -1):
        x.__dlpack__(stream=stream)
    assert ds.driver.waits == waits
    for stream in (2, 12345):  # of its own, or a thread's: in no order with ours
        x.__dlpack__(stream=stream)
        assert ds.driver.waits == waits + 1
        waits += 1
    for place in ((2, 1), (1, 7), (13, 0)):
        with pytest.raises(BufferError, match=r"in the memory of GPU 0 .*to_numpy"):
            x.__dlpack__(stream=1, dl_device=place)


def test_memory_may_be_let_go_after_pythons_end(tmp_path):
    """As by a static variable of another library."""
    code = (
        "import ctypes\n"
        "from tests.cuda import fake\n"
        "fake.install()\n"
        "import diffsim as ds\n"
        "ds.init(arch=ds.cuda)\n"
        "capsule = ds.field(ds.f32, 4).__dlpack__(stream=1)\n"
        "take = ctypes.pythonapi.PyCapsule_GetPointer\n"
        "take.restype, take.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)\n"
        "at = take(capsule, b'dltensor') + 56\n"  # after DLTensor and the manager's own pointer
        "keep = ctypes.pythonapi.Py_IncRef\n"
        "keep.argtypes = (ctypes.py_object,)\n"
        "class Late:\n"
        "    def __del__(self, at=at, word=ctypes.c_void_p, write=__import__('os').write):\n"
        "        write(1, b'%d' % (word.from_address(at).value or 0))\n"
        "import numpy\n"  # its module is among the last to be emptied
        "numpy.late = Late()\n"
        "assert ctypes.c_void_p.from_address(at).value\n"
        "keep(capsule)\n"
    )
    assert run(tmp_path, code) == "0"


def test_numpy_shares_a_field_on_the_cpu(fake):
    ds = fake
    ds.init(arch=ds.cpu)
    x = ds.Vector.field(3, ds.f32, shape=(4, 5), layout=ds.Layout.SOA)
    a = np.from_dlpack(x)
    x[2, 3] = [1, 2, 3]
    assert a[2, 3].tolist() == [1, 2, 3]
    assert not hasattr(x, "__cuda_array_interface__")
    del x
    gc.collect()
    assert a[2, 3].tolist() == [1, 2, 3]
