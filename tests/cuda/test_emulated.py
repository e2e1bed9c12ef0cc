"""Whole programs on a GPU whose code is emulated, and whether the emulation sees what is wrong with code."""

import collections
from random import Random

import numpy as np
import pytest

from diffsim.backends.llvm.lowering import FunctionLowering
from diffsim.backends.simt import thread as cuda_thread
from diffsim.passes.transforms import fuse_tasks
from tests.backends.audit import audit
from tests.backends.emulator import Machine, Wrong
from tests.cuda import emulated, fake
from tests.fuzz import cuda as fuzz
from tests.fuzz import tensors, wide

COUNT = 5  # `make fuzz` runs many more


@pytest.fixture
def gpu(monkeypatch):
    """diffsim on an emulated GPU."""
    import diffsim as ds

    emulated.install(monkeypatch.setattr, by_default=True)
    emulated.choose(block_dim=32, at_once=3, small_tiles=False, races=True, random=Random(0))
    ds.init(default_fp=ds.f64)
    yield ds
    emulated.choose(block_dim=32, at_once=3, small_tiles=False, races=False)
    ds.reset()
    ds.init(arch=ds.cpu)


def test_programs(gpu):
    """Their values and gradients are those of dual numbers, and no thread touches what it must not."""
    answers, audited = collections.Counter(), set()
    for seed in range(COUNT):
        text, n = wide.make(seed)
        said = fuzz.verdict(text, seed, n)
        assert said in ("right", "refused", "invalid"), f"seed {seed}: {said}\n{text}"
        answers[said] += 1
        for llvm_text in fake.KERNELS.keys() - audited:
            audit(fake.KERNELS[llvm_text][1])
            audited.add(llvm_text)
    assert answers["right"] > 0.4 * COUNT


@pytest.mark.parametrize("size", [2, 4])
def test_one_component_at_the_end_of_a_block(gpu, size):
    """Its index, which the addition puts off, was used after the block too."""
    ds = gpu
    x, at, y = ds.field(ds.f32, 40), ds.field(ds.i32, 40), ds.field(ds.f32, 41)
    v = ds.Vector.field(size, ds.f32, 41)

    @ds.kernel
    def add():
        for i in x:
            j = at[i] + 1
            if x[i] > 0:
                v[j][size - 1] += x[i]
            for k in range(2):
                v[j + k][0] += 1.0
            y[j] += 1.0

    x.from_numpy(np.arange(40, dtype=np.float32) % 3)
    at.from_numpy(np.arange(40, dtype=np.int32) // 2)
    add()
    last, first, count = np.zeros(41), np.zeros(41), np.zeros(41)
    for i in range(40):
        last[i // 2 + 1] += i % 3
        count[i // 2 + 1] += 1
        first[i // 2 + 1] += 1
        first[i // 2 + 2] += 1
    assert v.to_numpy()[:, size - 1].tolist() == last.tolist()
    assert v.to_numpy()[:, 0].tolist() == first.tolist()
    assert y.to_numpy().tolist() == count.tolist()


def test_blocks_add_their_sums_while_lanes_add_to_the_same_elements(gpu):
    """The addition of the lane that the element belongs to was a plain one, and could be lost."""
    ds = gpu
    n = 100
    x, y = ds.field(ds.f64, n, needs_grad=True), ds.field(ds.f64, n, needs_grad=True)

    @ds.kernel
    def products():
        for i in y:
            y[i] = x[i] * x[i] + x[3] * i

    values = np.linspace(-1.0, 1.0, n)
    x.from_numpy(values)
    y.grad.fill(1.0)
    products()
    products.grad()  # the emulation watches what threads write and touch
    expected = 2 * values
    expected[3] += np.arange(n).sum()
    np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-12)


def test_programs_of_tensors(gpu):
    """Those of vectors, matrices, structs and funcs."""
    for seed in range(COUNT):
        said = fuzz.verdict_of_tensors(tensors.make(seed), seed)
        assert said in ("right", "refused", "invalid"), f"seed {seed}: {said}"


def test_indices_that_wrap_around_keep_tasks_apart(gpu):
    """x[a - 1] and x[a + 255] are one element where a has 8 bits."""
    ds = gpu
    x = ds.field(ds.f64, 8)

    @ds.kernel
    def both(a: ds.u8):
        for _ in range(1):
            x[a - ds.u8(1)] = 3 * x[a - ds.u8(1)] + 5
        for _ in range(1):
            x[a + ds.u8(255)] = 2 * x[a + ds.u8(255)] + 1

    both(3)
    assert x.to_numpy().tolist() == [0, 0, 11, 0, 0, 0, 0, 0]


def finds(seeds):
    """What is wrong with one of the programs."""
    for seed in seeds:
        text, n = wide.make(seed)
        try:
            said = fuzz.verdict(text, seed, n)
        except Wrong as e:
            return str(e)
        if said not in ("right", "refused", "invalid"):
            return said
    return "nothing"


def test_tasks_that_must_not_run_at_the_same_time_are_found(gpu, monkeypatch):
    monkeypatch.setattr(fuse_tasks, "independent", lambda one, other: True)
    assert "writes what another touches" in finds(range(20))


def test_loads_that_are_not_constant_are_found(gpu, monkeypatch):
    def constant(thread, mem):
        return f"{FunctionLowering.load_metadata(thread, mem)}, !invariant.load !1"

    monkeypatch.setattr(cuda_thread.Thread, "load_metadata", constant)
    assert "loaded as never written" in finds(range(5))
    with pytest.raises(AssertionError):
        for _, code in fake.KERNELS.values():
            audit(code)


def test_atomics_that_are_none_are_found(gpu, monkeypatch):
    def update(thread, s, at, v):
        thread.update(s.op, s.mem, at, v)

    monkeypatch.setattr(cuda_thread.Thread, "update_atomically", update)
    assert "writes what another touches" in finds(range(5))


def test_shuffles_of_threads_that_are_not_there_are_found(gpu, monkeypatch):
    enter = cuda_thread.Thread.enter_warp

    def enter_all(thread, *args):
        enter(thread, *args)
        thread._mask = "-1"

    monkeypatch.setattr(cuda_thread.Thread, "enter_warp", enter_all)
    assert "wait for others for ever" in finds(range(7, 12))


def test_elements_out_of_memory_are_found(gpu):
    ds = gpu
    x, at = ds.field(ds.f64, 5), ds.field(ds.i32, 5)

    @ds.kernel
    def add():
        for i in x:
            x[at[i]] += 1.0

    add()
    assert x[0] == 5
    at.fill(5)
    with pytest.raises(Wrong, match="outside all memory"):
        add()


SHARED = """@room = internal addrspace(3) global [64 x i64] undef, align 8
define ptx_kernel void @entry(ptr byval([4 x i64]) align 8 %params) nounwind {{
entry:
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %k = zext i32 %t to i64
  %mine = getelementptr i64, ptr addrspace(3) @room, i64 %k
  store i64 %k, ptr addrspace(3) %mine
  {between}
  %more = add i64 %k, {far}
  %other = and i64 %more, 63
  %at = getelementptr i64, ptr addrspace(3) @room, i64 %other
  %v = load i64, ptr addrspace(3) %at
  %out = load ptr addrspace(1), ptr %params
  %to = getelementptr i64, ptr addrspace(1) %out, i64 %k
  store i64 %v, ptr addrspace(1) %to
  ret void
}}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
"""


def test_shared_memory_needs_a_barrier():
    barrier = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"
    out = np.zeros(64, np.int64)
    params = np.array([out.ctypes.data, 0, 0, 0])
    text = SHARED.format(between=barrier, far=1).replace("@room", "@entry_room")
    Machine(text, watch=True).run("entry", params.ctypes.data, 1, 64)
    assert out.tolist() == [(k + 1) % 64 for k in range(64)]
    text = SHARED.format(between="", far=1).replace("@room", "@entry_room")
    with pytest.raises(Wrong, match="writes what another touches"):
        Machine(text, watch=True).run("entry", params.ctypes.data, 1, 64)
    own = SHARED.format(between="", far=0).replace("@room", "@entry_room")
    Machine(own, watch=True).run("entry", params.ctypes.data, 1, 64)


def test_sums_in_order_do_not_depend_on_who_is_first(gpu):
    ds = gpu

    def total(seed):
        emulated.choose(random=Random(seed))
        ds.init(default_fp=ds.f32, deterministic=True, offline_cache=False)
        x, y = ds.field(ds.f32, 500), ds.field(ds.f32, 3)
        s = ds.field(ds.f32, ())
        x.from_numpy(np.random.default_rng(0).normal(size=500).astype(np.float32))

        @ds.kernel
        def add():
            for i in x:
                s[None] += ds.exp(3 * x[i])
            for i in x:
                y[i % 3] += ds.exp(3 * x[i])

        add()
        return [s[None], *y.to_numpy().tolist()]

    assert len({tuple(total(seed)) for seed in range(6)}) == 1
