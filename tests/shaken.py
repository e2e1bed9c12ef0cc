"""A thread pool whose chunks start late, by a time that nobody knows: what depends on the schedule shows."""

from __future__ import annotations

from contextlib import contextmanager

import llvmlite.binding as llvm

import diffsim as ds
from diffsim.backends.native import pool
from diffsim.runtime.backend import open_backend
from diffsim.runtime.cpu import command_list
from diffsim.runtime.session import session

_DELAY = """alwaysinline nounwind {
wait:
  %cycles = call i64 @llvm.readcyclecounter()
  %mixed = mul i64 %cycles, 6364136223846793005
  %turns = lshr i64 %mixed, 54
  br label %late
late:
  %n = phi i64 [ %turns, %wait ], [ %fewer, %late ]
  call void @relax()
  %fewer = sub i64 %n, 1
  %over = icmp slt i64 %fewer, 0
  br i1 %over, label %run, label %late
run:
"""


def delayed(text: str) -> str:
    """The pool's code, with a delay of 0 to about 20 us before each chunk."""
    head, name, rest = text.partition("define internal void @run_chunk")
    assert name
    body = rest.replace("alwaysinline nounwind {\n", _DELAY, 1)
    return f"declare i64 @llvm.readcyclecounter()\n{head}{name}{body}"


_kept: list[object] = []
"""Code that kernels may hold addresses of, for the life of the process."""


@contextmanager
def changed(change):
    """Kernels compiled from here on run on a pool whose code was changed; call `ds.init` inside."""
    source, library = pool._source, pool.load_pool(session.jit, None)
    usual = dict(pool._native)
    _kept.extend((session.pool, session.launcher, session.calls))
    pool._source = lambda name="pool.ll": (
        change(source(name)) if name == "pool.ll" else source(name)
    )
    pool._native.clear()
    _start_anew()
    try:
        pool.load_pool(session.jit, None)
        yield
    finally:
        pool._source = source
        _kept.extend(pool._native.values())
        pool._native.clear()
        pool._native.update(usual)
        for name in pool.KERNEL_SYMBOLS:
            llvm.add_symbol(name, library.address(name))
        _start_anew()


def _start_anew():
    """Forget what was compiled for the pool so far, and the pool."""
    _kept.extend(open_backend("cpu", 0).loaded.values.values())
    open_backend("cpu", 0).loaded.values.clear()
    ds.init(arch=ds.cpu)
    session._pool = session._launcher = session._calls = None
    command_list._runner.cache_clear()
