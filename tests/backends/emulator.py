"""GPU threads on the CPU: the LLVM text that `diffsim.backends.cuda` makes, run block by block.

Python threads stand for those of a block, and meet at every shuffle and barrier. What this can not show:
races between threads (Python runs one at a time, though in any order), memory that is not coherent, what
LLVM's NVIDIA code generator and ptxas do.
"""

import ctypes
import re
import threading

import llvmlite.binding as llvm
import numpy as np

from diffsim.backends.cuda import ARENA, WORK, CudaCode
from diffsim.backends.layout import ERROR, SEED


class Blocks:
    """Runs entry points, with a Python thread for each of a block's.

    Shuffles and barriers are where they meet.
    """

    def __init__(self, code: CudaCode, arena: int = 1 << 16) -> None:
        self.code = code
        self.here = threading.local()
        self.words = [0] * 1024
        self.warps = {}
        self.lock = threading.Lock()
        self.arena = np.zeros(arena // 8)
        text = code.text.replace("ptx_kernel ", "").replace("addrspacecast", "bitcast")
        text = text.replace(" addrspace(1)", "").replace(" addrspace(3)", "").replace("@__nv_", "@")
        text = re.sub(r"byval\(.*?\)", "noalias", text)
        text = re.sub(r"@llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.x", r"@sreg_\1", text)
        text = text.replace("@llvm.nvvm.shfl.sync.down.i32", "@shfl_down")
        text = text.replace("@llvm.nvvm.barrier.cta.sync.aligned.all", "@block_barrier")
        text = text.replace("@malloc", "@seen_malloc").replace("@free", "@seen_free")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        word, address = ctypes.c_uint32, ctypes.c_void_p
        self.kept = []
        for name in ("tid", "ctaid", "nctaid"):
            self.symbol(f"sreg_{name}", word, lambda name=name: getattr(self.here, name))
        self.symbol("shfl_down", word, self.shuffle, word, word, word, word)
        self.symbol("block_barrier", None, lambda _: self.block.wait(30), word)
        self.symbol("seen_malloc", address, self.malloc, ctypes.c_int64)
        self.symbol("seen_free", None, self.free, address)
        module = llvm.parse_assembly(text)
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self.engine = llvm.create_mcjit_compiler(module, machine)
        self.engine.finalize_object()
        self.heap, self.heap_left, self.most_held = {}, 1 << 30, 0

    def symbol(self, name, result, function, *args):
        self.kept.append(ctypes.CFUNCTYPE(result, *args)(function))
        llvm.add_symbol(name, ctypes.cast(self.kept[-1], ctypes.c_void_p).value)

    def malloc(self, n):
        held = n + sum(map(len, self.heap.values()))
        if held > self.heap_left:
            return None
        self.most_held = max(self.most_held, held)
        room = ctypes.create_string_buffer(n)
        self.heap[ctypes.addressof(room)] = room
        return ctypes.addressof(room)

    def free(self, p):
        if p is not None:
            del self.heap[p]

    def shuffle(self, mask, word, distance, last):
        here = self.here.tid
        assert mask >> here % 32 & 1
        with self.lock:
            members = self.warps.setdefault((here // 32, mask), threading.Barrier(mask.bit_count()))
        self.words[here] = word
        members.wait(30)
        there = here % 32 + distance
        got = self.words[here + distance] if there < 32 and mask >> there & 1 else 0xDEADBEEF
        members.wait(30)
        return got

    def run(self, entry, params, grid=2):
        """One launch, its blocks one after the other."""
        function = self.engine.get_function_address(entry.name)
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
        grid = min(grid, entry.blocks or grid)
        self.block = threading.Barrier(entry.block_dim)

        def thread(ctaid, tid):
            vars(self.here).update(ctaid=ctaid, tid=tid, nctaid=grid)
            kernel(params.ctypes.data)

        for ctaid in range(grid):
            members = [
                threading.Thread(target=thread, args=(ctaid, k)) for k in range(entry.block_dim)
            ]
            for member in members:
                member.start()
            for member in members:
                member.join(60)
                assert not member.is_alive()

    def launch(self, data, args=(), *, seed=0, **more):
        """All entries in order. `data`: array of each memory; returns the work area."""
        layout = self.code.layout
        params = np.full(layout.fixed, 0xDEAD, np.uint64)
        work = np.full(layout.work, 0xDEAD, np.uint64)
        self.error = np.zeros(8, np.int64)
        params[WORK] = work.ctypes.data
        params[ERROR] = self.error.ctypes.data
        params[SEED] = seed
        if layout.arena_bytes is not None:
            params[ARENA] = self.arena.ctypes.data
            params[layout.arena_bytes] = self.arena.nbytes
        for mem, slot in layout.pointers.items():
            params[slot] = data[mem].ctypes.data
            if mem in layout.dims:
                params[layout.dims[mem] :][: mem.rank] = data[mem].shape
        for arg, value in zip(self.code.layout.args, args, strict=True):
            params[layout.args[arg] :][:1].view(arg.type.numpy)[0] = value
        for slot in layout.temps.values():
            work[slot] = 0
        handed = params.copy()
        for entry in self.code.entries:
            self.run(entry, params, **more)
        assert (params == handed).all()
        return work
