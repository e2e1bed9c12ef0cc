"""Built-in GPU kernels over the elements of two memories: sums and exchanges."""

from __future__ import annotations

import ctypes
from typing import Any

from diffsim.backends.cuda.driver import Launch
from diffsim.ir.types import ScalarType
from diffsim.runtime.memory.storage import StridedSpan

# Threads in a block; these kernels are bound by memory, where the number hardly matters.
_THREADS = 256
# A grid-stride loop: thread k handles the elements k, k + n, k + 2n, ... of n threads in all, so neighbours
# in a warp access neighbours in memory.
_TEXT = """
define ptx_kernel void @{name}(ptr %to, ptr %of, i64 %n, i64 %width, i64 %to_step, i64 %of_step) #0 {{
entry:
  %a = addrspacecast ptr %to to ptr addrspace(1)
  %b = addrspacecast ptr %of to ptr addrspace(1)
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %c = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %g = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %t64 = zext i32 %t to i64
  %c64 = zext i32 %c to i64
  %g64 = zext i32 %g to i64
  %before = mul i64 %c64, {threads}
  %first = add i64 %before, %t64
  %stride = mul i64 %g64, {threads}
  br label %turn
turn:
  %k = phi i64 [ %first, %entry ], [ %next, %go ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %go, label %done
go:
{place}
  %pa = getelementptr {t}, ptr addrspace(1) %a, i64 %i
  %pb = getelementptr {t}, ptr addrspace(1) %b, i64 %j
  %va = load {t}, ptr addrspace(1) %pa, align {size}
  %vb = load {t}, ptr addrspace(1) %pb, align {size}
{work}
  %next = add i64 %k, %stride
  br label %turn
done:
  ret void
}}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
attributes #0 = {{ nounwind "nvvm.maxntid"="{threads}" }}
"""
# Runs without gaps: elements of both are numbered alike.
_WHOLE = """  %i = add i64 %k, 0
  %j = add i64 %k, 0"""
# Element k is in run k / width at column k % width; the runs of the two memories have their own distances.
_IN_ROWS = """  %row = udiv i64 %k, %width
  %column = urem i64 %k, %width
  %ri = mul i64 %row, %to_step
  %rj = mul i64 %row, %of_step
  %i = add i64 %ri, %column
  %j = add i64 %rj, %column"""
_SWAP = """  store {t} %vb, ptr addrspace(1) %pa, align {size}
  store {t} %va, ptr addrspace(1) %pb, align {size}"""
_ADD = """  %sum = {add} {t} %va, %vb
  store {t} %sum, ptr addrspace(1) %pa, align {size}"""


def text_of(t: str, *, adds: bool, whole: bool) -> str:
    """Write a kernel in LLVM IR for scalars of type `t`: it adds, or exchanges."""
    floats = {"float": 4, "double": 8}
    # Exchanges move bits, in integers of the width that the addresses allow.
    size = floats.get(t) or int(t[1:]) // 8
    work = (_ADD if adds else _SWAP).format(t=t, size=size, add="fadd" if t in floats else "add")
    place = _WHOLE if whole else _IN_ROWS
    name = "add" if adds else "swap"
    return _TEXT.format(name=name, t=t, size=size, place=place, work=work, threads=_THREADS)


class Pairs:
    """These kernels on one device; each is compiled at its first use."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._known: dict[tuple[str, bool, bool], tuple[int, int]] = {}

    def sum(self, to: StridedSpan, of: StridedSpan, dtype: ScalarType) -> Launch:
        """Return the launch that adds the scalars of one memory to those of another."""
        return self._launch(to, of, dtype.llvm, dtype.bytes, adds=True)

    def swap(self, one: StridedSpan, other: StridedSpan) -> Launch:
        """Return the launch that exchanges what two memories hold."""
        # The widest word that divides all addresses, lengths and steps: loads must be aligned to their size.
        numbers = (one.address, other.address, one.bytes, one.step, other.step)
        word = next(n for n in (8, 4, 2, 1) if not any(k % n for k in numbers))
        return self._launch(one, other, f"i{8 * word}", word, adds=False)

    def _launch(self, to: StridedSpan, of: StridedSpan, t: str, size: int, *, adds: bool) -> Launch:
        # Spares two divisions of 64 bits for each element, which a GPU does in software.
        whole = to.is_contiguous and of.is_contiguous
        function, most = self._function(t, adds, whole)
        count = to.nbytes // size
        # Sizes and steps in elements, as the kernel indexes.
        numbers = (
            to.address,
            of.address,
            count,
            to.bytes // size,
            to.step // size,
            of.step // size,
        )
        # No more blocks than run at once: the loop does the rest.
        grid = max(1, min(most, -(-count // _THREADS)))
        return Launch(function, grid, _THREADS, _Parameters(numbers))

    def _function(self, t: str, adds: bool, whole: bool) -> tuple[int, int]:
        """Return a kernel's handle, and how many of its blocks run at once."""
        # By type, operation and whether there are gaps: a dozen kernels at most.
        found = self._known.get((t, adds, whole))
        if found is None:
            driver = self._device.driver
            code = self._device.machine_code(text_of(t, adds=adds, whole=whole))
            function = driver.function(driver.load(code), "add" if adds else "swap")
            found = function, driver.blocks_at_once(function, _THREADS)
            self._known[t, adds, whole] = found
        return found


class _Parameters(ctypes.c_void_p * 6):  # type: ignore[misc]
    """The addresses of a kernel's parameters, as the driver takes them; keeps the numbers alive."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = (ctypes.c_int64 * len(numbers))(*numbers)
        first = ctypes.addressof(self.numbers)
        super().__init__(*(first + 8 * k for k in range(len(numbers))))
