"""Programs that use pycuda: whose context kernels run in, and arrays that go in and out without copies."""

import ctypes
import gc
import importlib
import inspect
import logging
import re
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from diffsim.backends.cuda import driver, libcuda, pycuda_context
from tests.cuda import pycuda_fake


@pytest.fixture
def library(monkeypatch):
    made = pycuda_fake.Contexts()
    monkeypatch.setattr(driver, "load", lambda: made)
    return made


@pytest.fixture
def pycuda(library, monkeypatch):
    made = pycuda_fake.Pycuda(library)
    monkeypatch.setattr(pycuda_context, "find", lambda: made)
    monkeypatch.setattr(pycuda_context, "version", lambda: "2026.1")
    return made


def test_without_pycuda(library, monkeypatch):
    monkeypatch.setattr(pycuda_context, "find", lambda: None)
    opened = driver.Driver()
    assert opened._context == pycuda_fake.PRIMARY
    assert opened.interface == "libcuda"
    assert library.stack == []


@pytest.mark.parametrize("number", [0, 1])
def test_the_primary_context_is_retained_by_pycuda(library, pycuda, number):
    opened = driver.Driver(number)
    assert opened._context == pycuda_fake.PRIMARY + number
    assert library.streams == [opened._context], "the stream belongs to it"
    assert library.retained == [number]
    assert (library.stack, pycuda.own) == ([], []), "a context on a stack ends the process"
    assert opened.interface == "pycuda 2026.1"


def test_the_programs_context_is_adopted(library, pycuda):
    pycuda.init()
    made = pycuda.Device(0).make_context()
    opened = driver.Driver()
    assert opened._context == made.handle
    assert library.retained == []
    assert (library.stack, pycuda.own) == ([made.handle], [made])
    assert opened.interface == "pycuda 2026.1, in the program's context"


def test_a_context_on_another_gpu_is_not_adopted(library, pycuda):
    pycuda.init()
    made = pycuda.Device(1).make_context()
    opened = driver.Driver(0)
    assert opened._context == pycuda_fake.PRIMARY
    assert (library.stack, pycuda.own) == ([made.handle], [made])


def test_calls_put_back_what_others_made_current(library, pycuda):
    """pycuda does not see it on its own stack, so that is not asked."""
    pycuda.init()
    made = pycuda.Device(0).make_context()
    opened = driver.Driver()
    other = library.make(1)
    with opened.current():
        assert library.stack == [made.handle, other, made.handle]
    assert library.stack == [made.handle, other]
    library.stack.pop()
    pycuda.Context.pop()
    with opened.current():
        assert library.stack == [made.handle]
    assert (library.stack, pycuda.own) == ([], [])


def without_pycuda(library, pycuda, monkeypatch):
    monkeypatch.setattr(pycuda_context, "find", lambda: None)


def with_pycuda(library, pycuda, monkeypatch):
    pass


def with_a_context_of_the_program(library, pycuda, monkeypatch):
    pycuda.init()
    pycuda.Device(0).make_context()


PROVIDERS = [without_pycuda, with_pycuda, with_a_context_of_the_program]


def use_everything(opened):
    """Ask for memory, copies, events, waits, code and graphs."""
    at, host = opened.alloc(64), opened.page_locked(64)
    opened.copy_in(at, b"x" * 8, 8)
    opened.send(at, host, 8)
    opened.copy(at, at + 8, 8)
    opened.copy_rows(at, 16, at + 8, 16, 8, 2)
    for width in (1, 2, 4):
        opened.set_words(at, 0, width, 4)
    event = opened.event()
    opened.mark(event)
    assert opened.is_done(event)
    opened.wait_for_event(event)
    opened.fetch(host, at, 8)
    opened.copy_out(host, at, 8)
    module = opened.load(opened.link("text"))
    opened.blocks_at_once(opened.function(module, "f"), 256)
    opened.set_heap(1 << 20)
    graph = opened.record(lambda recorder: recorder.copy(at, at + 8, 8))
    opened.run_graph(graph)
    opened.drop_graph(graph)
    opened.unload(module)
    opened.wait_for(3)
    opened.free_memory()
    opened.free(at)


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("other", [False, True], ids=["alone", "beside_another"])
def test_calls_are_the_same_whoever_made_the_context(
    library, pycuda, monkeypatch, provider, *, other
):
    """They go to one table, each with that context current, and leave what was current before."""
    provider(library, pycuda, monkeypatch)
    opened = driver.Driver()
    if other:
        library.make(1)
    before, own = list(library.stack), list(pycuda.own)
    library.called = []
    use_everything(opened)
    assert (library.stack, pycuda.own) == (before, own)
    asked = [(name, at) for name, at in library.called if not name.startswith("cuCtxPush")]
    asked = [
        (name, at) for name, at in asked if name not in ("cuCtxGetCurrent", "cuCtxPopCurrent_v2")
    ]
    assert {at for _, at in asked} == {opened._context}
    assert [name for name, _ in asked] == CALLED


CALLED = """
    cuMemAlloc_v2 cuMemHostAlloc cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoDAsync_v2
    cuMemcpy2DAsync_v2
    cuMemsetD8Async cuMemsetD16Async cuMemsetD32Async cuEventCreate cuEventRecord cuEventQuery cuEventQuery
    cuMemcpyDtoHAsync_v2 cuStreamQuery cuMemcpyDtoHAsync_v2 cuStreamSynchronize
    cuLinkCreate_v2 cuLinkAddData_v2 cuLinkComplete cuLinkDestroy cuModuleLoadData cuModuleGetFunction
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuCtxSetLimit
    cuStreamCreate cuStreamBeginCapture_v2 cuMemcpyDtoDAsync_v2 cuStreamEndCapture cuGraphInstantiateWithFlags
    cuStreamDestroy_v2 cuGraphLaunch cuGraphExecDestroy cuModuleUnload cuStreamQuery cuMemGetInfo_v2
    cuMemFree_v2
""".split()


def test_the_table_holds_what_is_called_and_no_more():
    """A call that is missing there would fail at its first use only, on a machine with a GPU."""
    text = inspect.getsource(driver)
    named = set(
        re.findall(r'_functions\[\s*"(\w+)"|run\["(\w+)"\]|_(?:call|wait|number)\(\s*"(\w+)"', text)
    )
    called = {name for names in named for name in names if name}
    called |= {f"cuMemsetD{bits}Async" for bits in (8, 16, 32)}
    called |= {"cuGetErrorName", "cuGetErrorString", *driver._STARTS_WITH}
    assert called == set(libcuda.CALLS)


def test_memory_of_other_contexts_is_not_reached(library, pycuda):
    opened = driver.Driver()
    library.owner_of = {0x10: pycuda_fake.PRIMARY, 0x20: library.make(0), 0x30: None}
    assert [opened.is_reached(at) for at in (0x10, 0x20, 0x30, 0x40)] == [True, False, True, True]


def test_a_pycuda_that_can_not_be_loaded_is_none(monkeypatch, tmp_path):
    """It is built for one version of CUDA; with another one its import warns and fails."""
    (tmp_path / "pycuda").mkdir()
    (tmp_path / "pycuda" / "__init__.py").write_text("VERSION_TEXT = '1'\n")
    broken = "import warnings\nwarnings.warn('header')\nraise ImportError('undefined symbol')\n"
    (tmp_path / "pycuda" / "driver.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [n for n in sys.modules if n.partition(".")[0] == "pycuda"]:
        monkeypatch.delitem(sys.modules, name)
    pycuda_context.find.cache_clear()
    try:
        assert pycuda_context.find() is None
    finally:
        pycuda_context.find.cache_clear()
        sys.modules.pop("pycuda", None)


# ---- arrays


@pytest.fixture
def with_arrays(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycuda", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "pycuda.gpuarray", pycuda_fake.MODULE)
    return fake


def test_arrays_go_in(with_arrays):
    ds = with_arrays
    memory = ds.field(ds.f32, shape=6)
    memory.from_numpy(np.arange(6, dtype=np.float32))
    array = pycuda_fake.GPUArray((2, 3), np.float32, gpudata=memory.storage.address)

    @ds.kernel
    def double(a: ds.types.ndarray()):
        for i, j in a:
            a[i, j] *= 2

    double(array)
    assert memory.to_numpy().tolist() == [0, 2, 4, 6, 8, 10]


def test_arrays_of_another_context_are_refused(with_arrays):
    ds = with_arrays
    memory = ds.field(ds.f32, shape=6)
    array = pycuda_fake.GPUArray((6,), np.float32, gpudata=memory.storage.address)
    ds.driver.of_other_contexts.add(memory.storage.address)

    @ds.kernel
    def double(a: ds.types.ndarray()):
        for i in a:
            a[i] *= 2

    with pytest.raises(ds.KernelTypeError, match="another CUDA context") as caught:
        double(array)
    assert "double(array)" in str(caught.value)
    assert "pycuda.autoprimaryctx" in caught.value.hint


@pytest.mark.parametrize("layout", ["AOS", "SOA"])
def test_fields_come_out_without_a_copy(with_arrays, layout):
    ds = with_arrays
    x = ds.Vector.field(2, ds.f32, shape=3, layout=getattr(ds.Layout, layout))
    numbers = np.arange(6, dtype=np.float32).reshape(3, 2)
    x.from_numpy(numbers)
    array = x.to_gpuarray()
    assert isinstance(array, pycuda_fake.GPUArray)
    ds.sync()
    whole = (ctypes.c_float * 6).from_address(array.gpudata)
    seen = np.ndarray(array.shape, array.dtype, whole, 0, array.strides)
    assert seen.tolist() == numbers.tolist()
    seen[1] = 7, 8
    assert x[1].to_list() == [7, 8]


def test_an_array_keeps_the_fields_memory(with_arrays):
    x = with_arrays.field(with_arrays.f32, shape=3)
    memory = weakref.ref(x.storage)
    array = x.to_gpuarray()
    del x
    gc.collect()
    assert memory() is not None
    del array
    gc.collect()
    assert memory() is None


def test_a_field_on_the_cpu_is_no_such_array(cpu):
    x = cpu.field(cpu.f32, shape=3)
    if cpu.device_info() != "the CPU":
        pytest.skip("about the CPU")
    with pytest.raises(cpu.BackendError, match="x is not on a GPU"):
        x.to_gpuarray()


def test_without_pycuda_there_are_no_such_arrays(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycuda.gpuarray", None)
    with pytest.raises(fake.BackendError, match="pycuda cannot be used here") as caught:
        fake.field(fake.f32, shape=3).to_gpuarray()
    assert 'pip install "diffsim-lang[cuda]"' in caught.value.hint


# ---- what is used


def test_what_is_used_is_said(fake, caplog):
    assert fake.device_info() == "GPU 0 (a fake GPU), CUDA 13.0, through a fake"
    with caplog.at_level(logging.INFO, "diffsim"):
        fake.init(arch=fake.cuda)
    assert caplog.messages == [f"kernels run on {fake.device_info()}"]
    fake.init(arch=fake.cpu)
    assert fake.device_info() == "the CPU"


def test_the_fakes_names_are_pycudas():
    """Where pycuda is installed, the fake has what it has, and calls have the same arguments."""
    try:
        real = importlib.import_module("pycuda.driver")
        arrays = importlib.import_module("pycuda.gpuarray")
    except Exception as problem:
        pytest.skip(f"no pycuda: {problem}")
    assert callable(real.init)
    for name in ("get_current", "push", "pop", "handle"):
        assert hasattr(real.Context, name)
    for name in ("make_context", "retain_primary_context"):
        assert hasattr(real.Device, name)
    mine, theirs = (
        list(inspect.signature(a.GPUArray.__init__).parameters) for a in (pycuda_fake, arrays)
    )
    assert mine == theirs
    assert hasattr(arrays.GPUArray, "__cuda_array_interface__")
