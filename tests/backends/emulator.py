"""GPU threads on the CPU: the text of `diffsim.backends.cuda.codegen`, optimized and run block by block.

The threads of a block are fibers (`threads.ll`) that take turns in a random order, and meet at every shuffle
and barrier: all of those who must be there, at the same place of the code. Blocks come in a random order too.
LLVM's usual passes for the host go over the text first, so that what it claims of memory (what is never
written, what does not overlap, how it is aligned) is taken at its word.

`watch=True` has every access to global and shared memory noted. After a launch it is an error if something
was written that was loaded as never written; if one thread wrote what another touched (`races=False` allows
what users may do: to global memory); if an access was not aligned or (`inside`) outside all memory.

What this cannot show: memory that is not coherent, threads that run at the same time, what LLVM's NVIDIA
code generator and ptxas do. It needs Linux: fibers are glibc's.
"""

import ctypes
import re
import sys
import threading
from pathlib import Path
from random import Random

import llvmlite.binding as llvm
import numpy as np
import pytest

from diffsim.backends.cuda.codegen import ARENA, WORK, SimtCode
from diffsim.backends.llvm.parameter_block import ERROR, SEED
from diffsim.backends.native.jit import Jit

MOST_THREADS = 1024
_FIBER, _STACK = 8 << 10, 64 << 10
_LOG = 1 << 20
_HEAP = 64 << 20
_BARRIER = 1 << 32
_WHOLE_WARP = 0xFFFFFFFF
_THREADS = np.arange(MOST_THREADS)
_INVARIANT, _LOAD, _STORE, _ATOMIC = range(4)
_BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8, "ptr": 8}
_NOTE = "nounwind willreturn memory(inaccessiblemem: readwrite)"
_DECLARED = {
    "sreg_tid": "i32 @sreg_tid() nounwind willreturn memory(none)",
    "sreg_ctaid": "i32 @sreg_ctaid() nounwind willreturn memory(none)",
    "sreg_nctaid": "i32 @sreg_nctaid() nounwind willreturn memory(none)",
    "shfl_down": "i32 @shfl_down(i32, i32, i32, i32, i32) convergent nounwind "
    "memory(inaccessiblemem: readwrite)",
    "block_barrier": "void @block_barrier(i32) convergent nounwind",
    "red_v2": "void @red_v2(ptr, float, float) nounwind",
    "red_v4": "void @red_v4(ptr, float, float, float, float) nounwind",
    "note": f"void @note(ptr, i64) {_NOTE}",
}


class Wrong(AssertionError):
    """Something that no launch may do."""


class HostJit(Jit):
    """All of LLVM's passes, which take the text at its word; then the quickest code generator.

    The host's code generator is nothing that a GPU has, and takes as long as the passes.
    """

    def _target_machine(self, features, opt_level):
        return super()._target_machine(features, 0)


class Threads:
    """The fibers, and what they share; there is one in a process."""

    def __init__(self):
        if not sys.platform.startswith("linux"):
            pytest.skip("fibers need glibc")
        self.jit = HostJit()
        self.lock = threading.RLock()
        text = Path(__file__).with_name("threads.ll").read_text()
        text = text.replace("{fiber}", str(_FIBER)).replace("{stack}", str(_STACK))
        self.library = self.jit.load(self.jit.compile(text))
        for name in (*_DECLARED, "device_malloc", "device_free", "rsqrt", "rsqrtf"):
            llvm.add_symbol(name, self.library.address(name))
        self.kept = []
        self.order = self.words_of("order", np.uint32, MOST_THREADS)
        self.waits = self.words_of("waits", np.int64, MOST_THREADS)
        self.words = self.words_of("words", np.uint32, MOST_THREADS)
        self.far = self.words_of("far", np.uint32, MOST_THREADS)
        self.got = self.words_of("got", np.uint32, MOST_THREADS)
        self.tid, self.ctaid, self.nctaid = (
            self.words_of(name, np.uint32, 1) for name in ("tid", "ctaid", "nctaid")
        )
        self.phase, self.logged, self.most_logged = (
            self.words_of(name, np.int64, 1) for name in ("phase", "logged", "most_logged")
        )
        self.kernel, self.params = (
            self.words_of(name, np.uint64, 1) for name in ("kernel", "params")
        )
        self.heap_next, self.heap_left, self.heap_held, self.heap_most = (
            self.words_of(f"heap_{name}", np.int64, 1) for name in ("next", "left", "held", "most")
        )
        self.memory("contexts", _FIBER * (MOST_THREADS + 1))
        self.memory("stacks", _STACK * MOST_THREADS)
        self.heap = self.memory("heap", _HEAP)
        self.log = self.memory("log", 32 * _LOG).view(np.int64).reshape(-1, 4)
        self.begin, self.sweep, self.through = (
            ctypes.PYFUNCTYPE(None, ctypes.c_uint32)(self.library.address(name))
            for name in ("begin", "sweep", "through")
        )

    def words_of(self, name, dtype, n):
        """A variable of the library as an array."""
        kind = np.ctypeslib.as_ctypes_type(dtype)
        return np.ctypeslib.as_array((kind * n).from_address(self.library.address(name)))

    def memory(self, name, nbytes):
        """Memory that the library finds under a name."""
        room = np.empty(nbytes + 64, np.uint8)  # pages that nobody touches cost nothing
        room = room[-room.ctypes.data % 64 :][:nbytes]
        self.words_of(name, np.uint64, 1)[0] = room.ctypes.data
        self.kept.append(room)
        return room

    # ---- blocks

    def run(self, function, params, grid, block_dim, *, shared, meets, random):
        """All blocks of a launch, one after the other."""
        self.kernel[0], self.params[0] = function, params
        self.nctaid[0] = grid
        blocks = list(range(grid))
        random.shuffle(blocks)
        order = list(range(block_dim))
        for block in blocks:
            random.shuffle(order)
            self.order[:block_dim] = order
            self.ctaid[0] = block
            self.phase[0] += 1
            for memory in shared:
                memory[:] = 0xCD
            if not meets:
                self.through(block_dim)
                continue
            self.begin(block_dim)
            self.sweep(block_dim)
            while self._go_on(block_dim):
                self.sweep(block_dim)

    def _go_on(self, n):
        """Let those go on who wait for nobody any more; returns whether there were any."""
        what = int(self.waits[0])
        if (self.waits[:n] == what).all():
            if what == -1:
                return False
            if what & _BARRIER:
                self.phase[0] += 1
                self.waits[:n] = 0
                return True
            if what & _WHOLE_WARP == _WHOLE_WARP:
                self._shuffle(n)
                return True
        waits = self.waits[:n].tolist()
        if all(w & _BARRIER for w in waits) and -1 not in waits:
            raise Wrong("the threads of a block wait at different barriers")
        released = False
        for first in range(0, n, 32):
            warp = waits[first : first + 32]
            for what in set(warp):
                if what == -1 or what & _BARRIER:
                    continue
                mask = what & 0xFFFFFFFF
                # Blocks of fewer than 32 threads name those too that are not there.
                members = [k for k in range(len(warp)) if mask >> k & 1]
                if any(w == what and not mask >> k & 1 for k, w in enumerate(warp)):
                    raise Wrong("a thread is not in the mask of its shuffle")
                if all(warp[k] == what for k in members):
                    released = True
                    for k in members:
                        there = k + int(self.far[first + k])
                        ok = there < len(warp) and mask >> there & 1
                        self.got[first + k] = self.words[first + there] if ok else 0xDEADBEEF
                        self.waits[first + k] = 0
        if not released:
            raise Wrong(f"threads wait for others for ever: {[hex(w) for w in waits]}")
        return True

    def _shuffle(self, n):
        """All threads of the block take their words: they wait at one place, and for their whole warps."""
        thread = _THREADS[:n]
        there = thread + self.far[:n]
        ok = (there < n) & (there // 32 == thread // 32)
        self.got[:n] = np.where(ok, self.words[np.where(ok, there, 0)], np.uint32(0xDEADBEEF))
        self.waits[:n] = 0


_threads = []


def threads():
    """The fibers of this process."""
    if not _threads:
        _threads.append(Threads())
    return _threads[0]


class Machine:
    """The entry points of CUDA code, ready to run.

    Args:
        text: LLVM text for NVIDIA GPUs.
        watch: whether to look at all accesses to memory.
        random: the order of threads and blocks.
    """

    def __init__(self, text, *, watch=False, random=None):
        self.threads = threads()
        self.watch = watch
        self.random = random or Random(0)
        shared = re.findall(
            r"^(@\S+) = internal addrspace\(3\) global \[(\d+) x (\w+)\]", text, re.M
        )
        meets = set()
        for body in re.findall(r"^define ptx_kernel .*?^}", text, re.M | re.S):
            name = re.search(r"@(\w+)", body)[1]
            if "@llvm.nvvm.shfl" in body or "@llvm.nvvm.barrier" in body:
                meets.add(name)
        self.meets = meets
        jit = self.threads.jit
        self.library = jit.load(jit.compile(_for_host(text, watch)))
        self.shared = []
        for symbol, n, t in shared:
            kind = ctypes.c_uint8 * (int(n) * _BYTES[t])
            memory = np.ctypeslib.as_array(kind.from_address(self.library.address(symbol[1:])))
            self.shared.append((symbol[1:], memory))

    def run(self, name, params, grid, block_dim, *, inside=None, same=(), races=True):
        """One launch.

        Args:
            name: of the entry point.
            params: address of the parameter block.
            grid: the number of blocks.
            block_dim: threads in a block.
            inside: (addresses, ends) of all global memory, sorted; None: not looked at.
            same: addresses of words that several blocks may write, the same to all.
            races: whether threads may not write what others touch.
        """
        fibers = self.threads
        with fibers.lock:
            fibers.logged[0] = 0
            fibers.most_logged[0] = _LOG if self.watch else 0
            fibers.heap_next[0] = 0
            mine = [(n, m) for n, m in self.shared if n.startswith(f"{name}_")]
            fibers.run(
                self.library.address(name),
                params,
                grid,
                block_dim,
                shared=[m for _, m in mine],
                meets=name in self.meets,
                random=self.random,
            )
            if self.watch:
                count = min(int(fibers.logged[0]), _LOG)
                blocks = [(m.ctypes.data, m.ctypes.data + len(m)) for _, m in mine]
                look(fibers.log[:count].copy(), blocks, inside, same, races)


def _for_host(text, watch):
    """The text with what a CPU has in place of what a GPU has."""
    lines, sites, used = [], 0, {"note"} if watch else set()
    for line in text.splitlines():
        if re.match(r"declare .*@(llvm\.nvvm|malloc|free)\b", line):
            continue
        if line.startswith("@"):
            line = line.replace("internal addrspace(3)", "")
        elif "@llvm.nvvm.shfl" in line:
            sites += 1
            line = line.replace("@llvm.nvvm.shfl.sync.down.i32(", f"@shfl_down(i32 {sites}, ")
        elif "@llvm.nvvm.barrier" in line:
            sites += 1
            line = line.replace(
                "@llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)", f"@block_barrier(i32 {sites})"
            )
        elif "call void asm sideeffect" in line:
            line = re.sub(r'asm sideeffect "red\S+\.add\.(v\d)\.f32 .*?", "\S+"', r"@red_\1", line)
            if watch:
                at = re.search(r"addrspace\(1\) (%\w+),", line)[1]
                width = int(re.search(r"@red_v(\d)", line)[1])
                lines.append(f"  call void @note(ptr {at}, i64 {_ATOMIC << 8 | 4 * width})")
        elif watch:
            lines += _notes(line)
        lines.append(line)
    text = "\n".join(lines) + "\n"
    text = text.replace("ptx_kernel ", "").replace("addrspacecast", "bitcast")
    text = text.replace(" addrspace(1)", "").replace(" addrspace(3)", "").replace("@__nv_", "@")
    text = re.sub(r"byval\(.*?\)", "noalias", text)
    text = re.sub(r"@llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.x", r"@sreg_\1", text)
    text = re.sub(r"@(malloc|free)\b", r"@device_\1", text)
    used |= {name for name in _DECLARED if f"@{name}(" in text}
    if "@device_malloc" in text:
        text += "declare noalias ptr @device_malloc(i64)\n"
    if "@device_free" in text:
        text += "declare void @device_free(ptr)\n"
    return text + "".join(f"declare {_DECLARED[name]}\n" for name in sorted(used))


_ACCESS = re.compile(
    r"  (?:%\w+ = )?(?:"
    r"(?P<load>load) (?P<t>\w+)(?: addrspace\(1\))?, "
    r"|(?P<store>store) (?P<u>\w+) \S+, "
    r"|atomicrmw \w+ |cmpxchg )ptr (?:addrspace\([13]\) )(?P<at>[%@][\w.]+)(?:, (?P<v>\w+))?"
)


def _notes(line):
    """The notes of an access to global or shared memory."""
    found = _ACCESS.match(line)
    if not found:
        touches = re.match(r"  (%\w+ = )?(load|store|atomicrmw|cmpxchg) ", line)
        assert not touches or not re.search(r", ptr addrspace|(rmw \w+|xchg) ptr addrspace", line)
        return []
    kind = _LOAD if found["load"] else _STORE if found["store"] else _ATOMIC
    if "!invariant.load" in line:
        kind = _INVARIANT
    size = _BYTES[found["t"] or found["u"] or found["v"]]
    return [f"  call void @note(ptr {found['at']}, i64 {kind << 8 | size})"]


# ---- what was done to memory


def look(log, shared, inside, same, races):
    """Raise `Wrong` if the accesses of a launch cannot have been meant.

    Args:
        log: rows of address, kind and size, thread, phase.
        shared: pairs of addresses between which shared memory lies.
        inside: (addresses, ends) of global memory.
        same: addresses of words that several threads may write.
        races: whether threads may not write what others touch in global memory.
    """
    if not len(log):
        return
    at, kind, size, who = log[:, 0], log[:, 1] >> 8, log[:, 1] & 255, log[:, 2]
    bad = at % np.where(size == 16, 16, np.minimum(size, 8)) != 0
    in_shared = np.zeros(len(log), bool)
    for lo, hi in shared:
        in_shared |= (at >= lo) & (at < hi)
    if bad.any():
        raise Wrong(f"an access is not aligned: {_words(log[bad][0])}")
    if inside is not None:
        starts, ends = inside
        k = np.searchsorted(starts, at, "right") - 1
        ok = in_shared | ((k >= 0) & (at + size <= ends[k]))
        if not ok.all():
            raise Wrong(f"an access outside all memory: {_words(log[~ok][0])}")
    # Bytes; blocks and what lies between two barriers are apart in shared memory.
    rows = np.repeat(np.arange(len(log)), size)
    byte = at[rows] + (np.arange(len(rows)) - np.repeat(np.cumsum(size) - size, size))
    place = np.where(in_shared[rows], log[rows, 3], 0)
    order = np.lexsort((place, byte))
    byte, place, rows = byte[order], place[order], rows[order]
    new = np.ones(len(rows), bool)
    new[1:] = (byte[1:] != byte[:-1]) | (place[1:] != place[:-1])
    group = np.cumsum(new) - 1
    n = group[-1] + 1
    kinds, threads_ = kind[rows], who[rows]

    def any_of(which):
        return np.bincount(group[which], minlength=n) > 0

    stores, atomics = any_of(kinds == _STORE), any_of(kinds == _ATOMIC)
    constant = any_of(kinds == _INVARIANT)
    reads = any_of(kinds == _LOAD) | constant
    first = threads_[new]
    several = any_of(threads_ != first[group])
    starts = byte[new]
    free = np.isin(starts & ~7, np.array(list(same), np.int64))
    if not races:
        free |= ~in_shared[rows[new]]
    for wrong, words in (
        (constant & (stores | atomics), "what is loaded as never written is written"),
        (several & stores & ~free, "a thread writes what another touches"),
        (several & atomics & reads & ~free, "a thread reads what another updates"),
    ):
        if wrong.any():
            which = rows[group == np.flatnonzero(wrong)[0]]
            raise Wrong(f"{words}: " + "; ".join(_words(log[r]) for r in which[:6]))


def _words(row):
    word = ("invariant load", "load", "store", "atomic")[row[1] >> 8]
    return f"{word} of {row[1] & 255} bytes at {row[0]:#x} by thread {row[2] & 1023} of block {row[2] >> 10}"


def words_of_all(code, params):
    """Addresses of the words that every block of a launch writes: how many blocks there are."""
    return [int(params[WORK]) + 8 * word for word in code.layout.blocks.values()]


# ---- a kernel on arrays


class Blocks:
    """Runs the entry points of a kernel, on arrays."""

    def __init__(self, code: SimtCode, arena: int = 1 << 16, *, watch: bool = True) -> None:
        self.code = code
        self.machine = Machine(code.text, watch=watch)
        self.arena = np.zeros(arena // 8)
        self.heap_left, self.most_held = 1 << 25, 0

    @property
    def heap(self):
        """Bytes that threads have taken and not given back."""
        return int(self.machine.threads.heap_held[0])

    def run(self, entry, params, grid=2):
        """One launch, its blocks one after the other."""
        grid = min(grid, entry.blocks or grid)
        self.machine.run(
            entry.name,
            params.ctypes.data,
            grid,
            entry.block_dim,
            same=words_of_all(self.code, params),
        )

    def launch(self, data, args=(), *, seed=0, **more):
        """All entries in order. `data`: array of each memory; returns the work area."""
        fibers = self.machine.threads
        fibers.heap_held[0] = fibers.heap_most[0] = 0
        fibers.heap_left[0] = self.heap_left
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
        self.most_held = int(fibers.heap_most[0])
        return work
