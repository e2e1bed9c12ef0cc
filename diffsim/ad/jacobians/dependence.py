"""Which components of the inputs each component of the outputs depends on, found by runs of the program.

A run carries sets of 64 (`passes/instrument/dependence_sets.py`). Inputs are divided into 64 blocks first;
then each block into 8, and so on down to single components. Blocks that no output depends on together share
bits, so that the number of runs grows with the logarithm of the number of inputs if the matrix is sparse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.ad.jacobians.arguments import offsets
from diffsim.ad.jacobians.coloring import Pattern, colours_of, pattern_of
from diffsim.ad.jacobians.program import Program, size
from diffsim.ad.record.elements import Index, read_elements, write_elements
from diffsim.ad.record.entries import Computed, Launched, Stored
from diffsim.ad.record.entry import flat
from diffsim.ad.record.replaced import Replaced
from diffsim.ir.nodes import Mem
from diffsim.ir.types import u64
from diffsim.passes.instrument.dependence_sets import has_sets, is_known, set_memory, with_sets
from diffsim.runtime.executable import same_error
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.instrumentation import Instrumentation
from diffsim.runtime.kernels.specialization import Specialization
from diffsim.runtime.recorder import NullRecorder
from diffsim.runtime.session import session

_BITS = 64
_CHILDREN = 8  # blocks that a block is divided into
_SLOTS = _BITS // _CHILDREN


class _Carrier:
    """A kernel that carries sets; `memories` are those of the sets."""

    def __init__(self, plain: Specialization) -> None:
        mems = [m for m in plain.ir.mems if m.kind in ("field", "array") and has_sets(m)]
        self.memories: dict[Mem, Mem] = {m: set_memory(m) for m in mems}
        made = with_sets(plain.ir, self.memories)
        self.specialization = plain.variant(
            instrumentation=Instrumentation(lambda _: made, same_error)
        )

    @staticmethod
    def of(plain: Specialization) -> _Carrier:
        found: _Carrier | None = plain.variants.get(_Carrier)
        if found is None:
            found = plain.variants[_Carrier] = _Carrier(plain)
        return found


class _SetRecorder(NullRecorder):
    """Launches kernels that carry sets; `sets` are those of each field."""

    intercepts = True

    def __init__(self) -> None:
        self.sets: dict[Field, Field] = {}
        self._alive: list[Field] = []

    def of(self, f: Field) -> Field:
        """Return the sets of a field: empty at first."""
        if f not in self.sets:
            self.sets[f] = _words(f.element, f.shape)
        return self.sets[f]

    def launching(self, special: Specialization, args: tuple[Any, ...]) -> Specialization:
        made = _Carrier.of(special)
        executable = made.specialization.executable
        self._alive = []
        for mem, beside in made.memories.items():
            thing = special.object_of(mem, args)
            if isinstance(thing, Field):
                words = self.of(thing)
            else:  # an array of another library holds constants
                words = _words(mem.dtype.shape, tuple(thing.shape[: mem.rank]))
                self._alive.append(words)
            executable.bind_array(beside, words.address, words.shape)
        return made.specialization

    def wrote(self, field: Field, index: Index, value: Any) -> None:
        if field in self.sets:
            write_elements(self.sets[field], index, 0)

    def copied(self, target: Field, source: Field, to: Index = None, at: Index = None) -> None:
        if target.dtype.is_float and source.dtype.is_float:
            write_elements(self.of(target), to, read_elements(self.of(source), at))


def _words(element: tuple[int, ...], shape: tuple[int, ...]) -> Field:
    made = Field(u64, element, kind="array")
    made.place(shape)
    return made


def is_traceable(program: Program) -> bool:
    """Whether all dependences of a program go through its launches and copies."""
    for e in flat(program.tape.entries):
        if isinstance(e, (Stored, Computed)) or (isinstance(e, Replaced) and e.is_opaque):
            return False
        if isinstance(e, Launched) and (e.returned is not None or not _is_carried(e)):
            return False
    return True


def _is_carried(entry: Launched) -> bool:
    special = entry.special.origin
    # The gradient of an array of another library is not looked at.
    arrays = (m for m in special.ir.mems if m.kind == "array" and m.grad is not None)
    known = all(isinstance(special.object_of(m, entry.args), Field) for m in arrays)
    return known and is_known(special.ir)


def found_pattern(program: Program, most_runs: int) -> Pattern | None:
    """Return the pattern of all outputs by all inputs; None: it is not worth so many runs, or not known."""
    if not is_traceable(program):
        return None
    return _refined(
        lambda words: _run(program, words),
        sum(size(o) for o in program.outputs),
        sum(size(i) for i in program.inputs),
        most_runs,
    )


def _run(program: Program, words: np.ndarray) -> np.ndarray:
    """Run the program with these sets in its inputs; return those of its outputs."""
    program.runs += 1
    recorder = _SetRecorder()
    starts = offsets(program.inputs)
    for i in program.inputs:
        part = words[starts[i] : starts[i] + size(i)]
        recorder.of(i).storage.from_numpy(part.reshape(*i.shape, -1))
    with program.start.again():
        session.tape = recorder
        program.run()
        found = [recorder.of(o).storage.to_numpy().reshape(-1) for o in program.outputs]
    return np.concatenate(found)


def _refined(
    run: Callable[[np.ndarray], np.ndarray], height: int, width: int, most_runs: int
) -> Pattern | None:
    """Find the pattern of `height` outputs by `width` inputs; None: by more runs than that."""
    # 1. Blocks of one size, a bit for each.
    block = 1
    while block * _BITS < width:
        block *= _CHILDREN
    rows, blocks = _bits(run(_bit(np.arange(width) // block)), _BITS)
    runs = 1
    # 2. Each block is divided, until blocks are single components.
    while block > 1:
        count = -(-width // block)
        colours = colours_of(pattern_of(blocks, rows, (count, height)))
        needed = -(-(int(colours.max(initial=-1)) + 1) // _SLOTS)
        runs += needed
        if runs > most_runs:
            return None
        rows, blocks = _divided(run, rows, blocks, colours, block, width)
        block //= _CHILDREN
    return pattern_of(rows, blocks, (height, width))


def _divided(
    run: Callable[[np.ndarray], np.ndarray],
    rows: np.ndarray,
    blocks: np.ndarray,
    colours: np.ndarray,
    block: int,
    width: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows depend on which children of the blocks that they depend on."""
    component = np.arange(width)
    colour = colours[component // block]
    child = component % block // (block // _CHILDREN)
    words = _bit(_CHILDREN * (colour % _SLOTS) + child)
    found = [(rows[:0], blocks[:0])]
    for k in range(0, int(colours.max(initial=-1)) + 1, _SLOTS):
        # A colour is -1 where nothing depends on the block.
        now = (colour >= k) & (colour < k + _SLOTS)
        sets = run(np.where(now, words, np.uint64(0)))
        here = (colours[blocks] >= k) & (colours[blocks] < k + _SLOTS)
        slot = colours[blocks[here]] % _SLOTS
        # No row depends on two blocks of one colour: the bits of a slot are those of its one block.
        inside = sets[rows[here]] >> (_CHILDREN * slot).astype(np.uint64)
        pair, part = _bits(inside, _CHILDREN)
        found.append((rows[here][pair], blocks[here][pair] * _CHILDREN + part))
    return np.concatenate([r for r, _ in found]), np.concatenate([b for _, b in found])


def _bit(numbers: np.ndarray) -> np.ndarray:
    made: np.ndarray = np.uint64(1) << numbers.astype(np.uint64)
    return made


def _bits(words: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the word, and of the bit, for each of the lowest bits that is set."""
    found = [np.nonzero((words >> np.uint64(k)) & np.uint64(1))[0] for k in range(count)]
    bits = np.repeat(np.arange(count), [len(f) for f in found])
    return np.concatenate(found), bits
