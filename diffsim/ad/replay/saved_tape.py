"""Tapes in files: `tape.save(file)`, and `ds.load_tape(file)` in another process.

A file is a NumPy archive (.npz, without pickled objects): the contents of the fields, and one text in JSON
with the fields' layouts, the kernels and their adjoints as prepared IR (`ir_data.py`), and the commands of
the two programs that a replay runs (`commands.py`), with (memory, offset) in place of addresses. The machine
code is made anew where it is loaded, so a file can be replayed on another machine and another backend.
"""

from __future__ import annotations

import bisect
import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.ad.record.entry import fields_of
from diffsim.ad.record.overwrite_saves import Saved
from diffsim.ad.replay.commands import Place, Program
from diffsim.ad.replay.ir_data import NotPlain, kernel_data
from diffsim.errors import AutodiffError, Span
from diffsim.ir.nodes import Kernel, Mem
from diffsim.ir.types import scalar
from diffsim.passes.autodiff.custom_calls import inline_bodies
from diffsim.runtime.fields.field import Field
from diffsim.runtime.files import write_file
from diffsim.runtime.memory.storage import StorageLayout, StridedSpan, snapshot_address
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.ad.record.replaced import Replaced
    from diffsim.ad.replay.copies_in_place import CopiesInPlace
    from diffsim.ad.replay.inputs import ReplayInputs
    from diffsim.ad.replay.program import Replay
    from diffsim.runtime.kernels.specialization import Specialization

BYTE = scalar("u8")
FORMAT = 4
"""Of the file; a file of another number is refused."""
SAME_BITS = ("fast_math", "deterministic")
"""The options that the results' bits depend on."""


class ProgramData(Program):
    """A program as data, made by the same calls as one that runs."""

    def __init__(self, file: _File) -> None:
        super().__init__()
        self._file = file
        self.commands: list[list[Any]] = []

    def launch(
        self,
        special: Specialization,
        compiled: Any,
        args: tuple[Any, ...],
        seed: int,
        copies: CopiesInPlace | None = None,
    ) -> None:
        is_adjoint = special.differentiable and compiled is special.derivative.executable
        kernel = self._file.kernel(special.derivative.ir if is_adjoint else special.ir)
        arguments = special.arguments
        arrays = []
        moved = {} if copies is None else copies.of_arrays()
        for p, a in zip(arguments.parameters, args, strict=True):
            if p.kind == "array":
                mem = arguments.arrays[p.name]._mem
                at = self._file.place(moved[a]) if a in moved else None
                arrays.append([mem.name, self._file.field(a), mem.grad is not None, at])
        bound = [] if copies is None else copies.bound(special)
        places = [[self._file.field(f), self._file.place(at)] for f, _, at in bound]
        scalars = arguments.scalars(args)
        self.commands.append(["launch", kernel, scalars, seed, arrays, places])

    def copy(self, target: StridedSpan, source: StridedSpan, *kept: Any) -> None:
        self.kept += kept
        for memory in kept:
            self._file.keep(memory)
        where = self._file.place(target)
        # A field's place begins with a list, other memory's with a number.
        if isinstance(where[0], int):
            self._file.written.add(where[0])
        self.commands.append(["copy", where, self._file.place(source)])

    def copy_all(self, target: Field, source: Field) -> None:
        # The source may be no field of an entry's: a constant, as far as gradients go.
        self._file.own.discard(source)
        self.commands.append(["copy_all", self._file.field(target), self._file.field(source)])

    def clear(self, target: StridedSpan) -> None:
        self.commands.append(["clear", self._file.place(target)])

    def add(self, target: Field, source: Field) -> None:
        self.commands.append(["add", self._file.field(target), self._file.field(source)])

    def solve(self, step: Callable[[], Any], entry: Replaced) -> None:
        raise AutodiffError(
            f"this tape cannot be saved: {entry.name} solves in Python, which a file does not hold",
            entry.span,
            hint="keep the tape in this process, and call tape.replay() here",
        )

    def last(self) -> Place:
        return 0, len(self.commands) - 1


class _File:
    """The parts of the file: tables of fields, kernels and other memory."""

    def __init__(self) -> None:
        self.fields: dict[Field, int] = {}
        self.grads: dict[Field, Field] = {}  # from a gradient to its field
        # diffsim's own, which adjoints compute what they need in: neither names nor contents matter
        self.own: set[Field] = set()
        self.kernels: dict[Kernel, int] = {}
        self.kernel_rows: list[dict[str, Any]] = []
        self.memories: list[Any] = []
        self.written: set[int] = set()
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, Any]] = []

    def field(self, f: Field) -> list[Any]:
        """Return how a file refers to a field: its number, and whether it is its gradient."""
        of = self.grads.get(f)
        if of is not None:
            return [self.fields[of], True]
        number = self.fields.get(f)
        if number is None:
            number = self.fields[f] = len(self.fields)
            self._add_range(f.address, f.storage.layout.nbytes, [number, False])
            if f.adjoint is not None:
                self.grads[f.adjoint] = f
                self._add_range(f.adjoint.address, f.storage.layout.nbytes, [number, True])
        return [number, False]

    def kernel(self, ir: Kernel) -> int:
        number = self.kernels.get(ir)
        if number is None:
            # Fields before their gradients: these are found through them.
            found = [m.handle() for m in ir.mems if m.kind == "field"]
            for f in sorted(found, key=lambda f: f.is_grad):
                if f not in self.fields and f not in self.grads:
                    self.own.add(f)
                self.field(f)
            number = self.kernels[ir] = len(self.kernel_rows)
            try:
                self.kernel_rows.append(kernel_data(inline_bodies(ir), self._memory))
            except NotPlain as problem:
                raise AutodiffError(
                    f"this tape cannot be saved: {ir.name} holds {problem.what}",
                    problem.span,
                    hint="a file that somebody else may have made runs no such code: write it as a kernel",
                ) from None
        return number

    def _memory(self, mem: Mem) -> list[Any]:
        return self.field(mem.handle())

    def keep(self, memory: Any) -> None:
        """Note memory that commands refer to, besides that of fields."""
        if isinstance(memory, Saved):
            memory = memory.data
        if hasattr(memory, "layout"):
            address, nbytes = memory.address, memory.layout.nbytes
        else:
            address, nbytes = snapshot_address(memory), memory.nbytes
        if self._range(address) is None:
            self._add_range(address, nbytes, len(self.memories))
            self.memories.append((address, nbytes))

    def _add_range(self, address: int, nbytes: int, what: Any) -> None:
        k = bisect.bisect_right(self._starts, address)
        self._starts.insert(k, address)
        self._ranges.insert(k, (address, nbytes, what))

    def _range(self, address: int) -> tuple[int, int, Any] | None:
        k = bisect.bisect_right(self._starts, address) - 1
        if k < 0 or address >= self._ranges[k][0] + self._ranges[k][1]:
            return None
        return self._ranges[k]

    def place(self, span: StridedSpan) -> list[Any]:
        """Return a span with a memory and an offset in place of its address."""
        found = self._range(span.address)
        assert found is not None, "a command of a replay refers to memory that nothing keeps"
        start, _, what = found
        return [what, span.address - start, span.bytes, span.count, span.step]


def save(path: Any, replay: Replay, loss: Field | None, inputs: ReplayInputs) -> None:
    """Write what a replay runs to a file; see `Tape.save`."""
    file = _File()
    # Each replay writes them: what the last one was given is none of the record.
    file.own.update(field for field, _, _ in inputs.recorded.values())
    for f in fields_of(replay.entries.firsts()):
        if not f.is_grad:
            file.field(f)
    needed: dict[Field, Any] = {}
    there, back = ProgramData(file), ProgramData(file)
    backward = replay.programs(there, back, needed)
    if there.parts or back.parts:
        raise AutodiffError(
            "this tape cannot be saved: a step of it runs in Python (a write to some elements of a field)",
            Span.of_caller(),
            hint="write whole fields, or single elements",
        )
    contents: dict[str, np.ndarray] = {}
    head = {
        "format": FORMAT,
        "options": {name: getattr(session.options, name) for name in SAME_BITS},
        "fields": _field_rows(file),
        "loss": None if loss is None else file.field(loss)[0],
        "inputs": _input_rows(file, inputs),
        "kernels": file.kernel_rows,
        "memories": [nbytes for _, nbytes in file.memories],
        "forward": there.commands,
        "backward": back.commands,
        "put_back": [[a[1], b[1]] for a, b in backward.put_back],
        "written": [file.fields[f] for f in replay.written if f in file.fields],
        "needed": [file.fields[f] for f in needed if f in file.fields],
    }
    for f in file.fields:
        if f in file.own:
            continue
        contents[f"field{file.fields[f]}"] = f.storage.to_numpy()
        if f.adjoint is not None:
            contents[f"grad{file.fields[f]}"] = f.adjoint.storage.to_numpy()
    for number, (address, nbytes) in enumerate(file.memories):
        # What is first written needs no contents.
        if number not in file.written:
            contents[f"memory{number}"] = _bytes_at(address, nbytes)
    made = io.BytesIO()
    contents["tape"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    np.savez_compressed(made, allow_pickle=False, **contents)
    write_file(path, made.getvalue())


def _input_rows(file: _File, inputs: ReplayInputs) -> dict[str, list[Any]]:
    """Return the arguments that a replay may be given: their fields, and the record's numbers."""
    return {
        name: [file.field(field)[0], np.asarray(value).tolist()]
        for name, (field, _, value) in inputs.recorded.items()
    }


def _field_rows(file: _File) -> list[list[Any]]:
    """Return what a file says of each field: its name (None: it is diffsim's own), and its layout."""
    rows: list[list[Any]] = []
    used: set[str] = set()
    for f in file.fields:
        name = None
        if f not in file.own:
            name, k = f.name, 2
            while name in used:
                name, k = f"{f.name}_{k}", k + 1
            used.add(name)
        layout = f.storage.layout
        form = [f.dtype.name, list(f.element), list(f.shape), list(layout.order), f.soa, f.kind]
        rows.append([name, *form, f.adjoint is not None, list(f.origin)])
    return rows


def _bytes_at(address: int, nbytes: int) -> np.ndarray:
    """Return bytes of the memory where kernels run."""
    # By a copy on the device to memory that can be read as an array.
    storage = session.backend.new_storage(StorageLayout(BYTE, 1, (nbytes,), (0,), False))
    commands = session.backend.new_command_list()
    commands.add_copy(StridedSpan(storage.address, nbytes), StridedSpan(address, nbytes))
    commands.run()
    return storage.to_numpy()
