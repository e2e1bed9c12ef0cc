"""Tapes that were loaded from a file: fields and two programs, without the kernels' source."""

from __future__ import annotations

import functools
import json
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from diffsim.ad.replay.commands import Place, Program
from diffsim.ad.replay.inputs import ReplayInputs
from diffsim.ad.replay.ir_data import kernel_of
from diffsim.ad.replay.saved_tape import BYTE, FORMAT, SAME_BITS
from diffsim.ad.reverse.backward import ClearedGradients
from diffsim.ad.reverse.seeds import check_loss, of_its_own, start_from
from diffsim.errors import (
    ArgumentError,
    AutodiffError,
    DiffsimError,
    FieldError,
    FileError,
    Span,
    shown,
)
from diffsim.ir.nodes import Kernel, Mem
from diffsim.ir.types import scalar, tensor
from diffsim.ir.verifier import verify
from diffsim.lang.host.signatures import checked, checked_methods, need_path
from diffsim.lang.host.unsupported import no_attribute
from diffsim.runtime import compiler
from diffsim.runtime.binding.arguments import Parameter
from diffsim.runtime.executable import BoundArray, Executable
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import Storage, StorageLayout, StridedSpan
from diffsim.runtime.observe.profiler import ADJOINT, FORWARD
from diffsim.runtime.poison import poison
from diffsim.runtime.session import session
from diffsim.tracebacks import entries

_FAULTS = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, EOFError,
    zipfile.BadZipFile, struct.error, DiffsimError,
)  # fmt: skip


@checked
def load_tape(filename: str) -> LoadedTape:
    """Load a tape that `tape.save` wrote, with its fields.

    Args:
        filename: the file. Its kernels read and write memory as any kernel does: load files that you trust.

    Returns:
        The tape, to be replayed and differentiated.

    Raises:
        ArgumentError: there is no such file; it is damaged, or of another version of diffsim; the session's
            options would give other results.

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        y = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 3.0

        @ds.kernel
        def square():
            y[None] = x[None] ** 2

        with ds.Tape(y) as tape:
            square()
        tape.save("square.tape")

        loaded = ds.load_tape("square.tape")  # in another process, say
        loaded.fields["x"][None] = 5.0
        loaded.replay()
        loaded.backward()
        print(loaded.loss[None], loaded.fields["x"].grad[None])  # prints: 25.0 10.0
    """
    need_path(filename, "the filename")
    head, contents = _read(filename)
    if head.get("format") != FORMAT:
        raise FileError(
            f"{filename} is a tape of format {shown(head.get('format'))}, and this diffsim reads {FORMAT}",
            Span.of_caller(),
            hint="save it anew with this version of diffsim",
        )
    differing = [n for n in SAME_BITS if head["options"].get(n) != getattr(session.options, n)]
    if differing:
        wanted = ", ".join(f"{n}={head['options'].get(n)}" for n in differing)
        raise FileError(
            f"{filename} was saved with {wanted}, and would give other results here",
            Span.of_caller(),
            hint=f"call ds.init({wanted}) first",
        )
    try:
        return LoadedTape(head, contents)
    except _FAULTS as fault:
        raise _damaged(filename, fault) from None


def _read(filename: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the JSON of a file, and its arrays."""
    try:
        # No pickled objects: a file must not run code of its own in Python.
        with open(filename, "rb") as file:
            # Else NumPy takes the file for a pickle, and advises to allow that.
            if not zipfile.is_zipfile(file):
                raise zipfile.BadZipFile("it is no archive of NumPy, or ends too early")
        with np.load(filename, allow_pickle=False) as archive:
            contents = {name: archive[name] for name in archive.files}
        head = json.loads(contents.pop("tape").tobytes())
        if not isinstance(head["options"], dict):
            raise TypeError("options")
        return head, contents
    except OSError as error:
        raise FileError(
            f"{filename} cannot be read: {error.strerror or error}",
            Span.of_caller(),
            hint="name a file that tape.save has written",
        ) from None
    except _FAULTS as fault:
        raise _damaged(filename, fault) from None


def _damaged(filename: str, fault: BaseException) -> ArgumentError:
    why = f"there is no {fault}" if isinstance(fault, KeyError) else fault
    return FileError(
        f"{filename} is no tape that diffsim saved, or is damaged: {why}",
        Span.of_caller(),
        hint="save the tape anew: tape.save(filename)",
    )


class _Fields(dict[str, Field]):
    """The fields of a loaded tape, by name."""

    def __missing__(self, name: object) -> Field:
        raise FieldError(
            f"this tape has no field {shown(name)}",
            Span.of_caller(),
            hint=f"there are {', '.join(sorted(self))}",
        )


@entries("")
@checked_methods("replay backward zero")
class LoadedTape:
    """A tape from a file, made by `ds.load_tape`.

    Attributes:
        fields: the fields that the recorded program used, by their names there. They hold what they held when
            the tape was saved, and their gradients too.
        loss: that of the tape; None if it had none.

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        y = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 3.0

        @ds.kernel
        def square():
            y[None] = x[None] ** 2

        with ds.Tape(y) as tape:
            square()
        tape.save("square.tape")
        loaded = ds.load_tape("square.tape")
        print(sorted(loaded.fields), loaded.loss.shape)  # prints: ['x', 'y'] ()
    """

    def __init__(self, head: dict[str, Any], contents: Mapping[str, np.ndarray]) -> None:
        self._generation = session.generation
        self._all = [_field_of(*row[1:]) for row in head["fields"]]
        names = [row[0] for row in head["fields"]]
        self.fields = _Fields(
            {n: f for n, f in zip(names, self._all, strict=True) if n is not None}
        )
        for number, f in enumerate(self._all):
            if names[number] is not None:
                f.call_it(names[number])
                f.storage.from_numpy(contents[f"field{number}"])
                if f.adjoint is not None:
                    f.adjoint.storage.from_numpy(contents[f"grad{number}"])
                    f.adjoint._touch()
        self.loss = None if head["loss"] is None else self._all[head["loss"]]
        self._inputs = self._inputs_of(head["inputs"])
        self._memories = [
            _memory_of(n, contents.get(f"memory{k}")) for k, n in enumerate(head["memories"])
        ]
        self._kernels = [verify(kernel_of(data, self._mem), "a file") for data in head["kernels"]]
        self._executables: dict[int, Executable] = {}
        self._written = [self._all[n] for n in head["written"]]
        self._needed = [self._all[n].versions for n in head["needed"]]
        self._forward, _ = self._program(head["forward"], FORWARD)
        self._backward, places = self._program(head["backward"], ADJOINT)
        self._put_back = [(places[a], places[b]) for a, b in head["put_back"]]
        self._end: int | None = None  # the clock after the last replay

    def __repr__(self) -> str:
        return f"<tape from a file: {', '.join(self.fields)}>"

    def __getattr__(self, name: str) -> Any:
        hint = "there are replay, backward, zero, fields and loss; all else is done before the tape is saved"
        raise no_attribute("a tape from a file", name, (), hint)

    # ---- the programs

    def _field(self, ref: list[Any]) -> Field:
        number, is_grad = ref
        field: Field = self._all[number]
        found = field.adjoint if is_grad else field
        if found is None:
            raise ValueError(f"field {number} has no gradient")
        return found

    def _inputs_of(self, rows: Mapping[str, list[Any]]) -> ReplayInputs:
        """Return the arguments that a replay may be given."""
        made = ReplayInputs()
        for name, (number, value) in rows.items():
            field = self._all[number]
            field.call_it(name)
            type_ = tensor(field.dtype, field.element) if field.element else field.dtype
            made.recorded[name] = field, Parameter(name, "value", type_), value
        return made

    def _check_inputs(self, names: Iterable[str]) -> None:
        known = self._inputs.recorded
        for name in names:
            if name not in known:
                raise AutodiffError(
                    f"{name} is no argument that a replay of this file can be given",
                    Span.of_caller(),
                    hint=f"there {'is' if len(known) == 1 else 'are'} {', '.join(known)}"
                    if known
                    else f"call tape.replay({name}=...) once before tape.save, where the tape was recorded",
                )

    def _mem(self, ref: list[Any]) -> Mem:
        return self._field(ref)._mem

    def _executable(self, number: int) -> Executable:
        made = self._executables.get(number)
        if made is None:
            made = compiler.compile_kernel(self._kernels[number], session.backend)
            self._executables[number] = made
        return made

    def _program(self, commands: list[list[Any]], direction: str) -> tuple[Program, list[Place]]:
        """Return commands as a program, and where each of them is in it."""
        program, places = Program(), []
        add: dict[str, Callable[..., None]] = {
            "launch": functools.partial(self._launch, direction),
            "copy": lambda p, a, b: p.copy(self._span(a), self._span(b)),
            "copy_all": lambda p, a, b: p.copy_all(self._field(a), self._field(b)),
            "clear": lambda p, a: p.clear(self._span(a)),
            "add": lambda p, a, b: p.add(self._field(a), self._field(b)),
        }
        for kind, *operands in commands:
            add[kind](program, *operands)
            places.append(program.last())
        return program, places

    def _launch(
        self,
        direction: str,
        program: Program,
        number: int,
        args: list[Any],
        seed: int,
        arrays: list[list[Any]],
        places: list[list[Any]],
    ) -> None:
        compiled = self._executable(number)
        bound: list[BoundArray] = []
        for name, ref, has_grad, at in arrays:
            field = self._field(ref)
            mem = _array_of(self._kernels[number], name)
            address = field.address if at is None else self._whole(at, field)
            bound.append((mem, address, field.shape))
            if has_grad and mem.grad is not None and field.adjoint is not None:
                bound.append((mem.grad, field.adjoint.address, field.shape))
        for ref, at in places:
            field = self._field(ref)
            bound.append((field._mem, self._whole(at, field), ()))
        name = self._kernels[number].name
        name = name.removesuffix("_grad") if direction == ADJOINT else name
        program.for_launch(name, direction).add_launch(compiled, args, seed, bound)
        if compiled.prints:
            program.parts.append(compiled.show)

    def _span(self, data: list[Any]) -> StridedSpan:
        """Return a stretch of memory, which must be within one that the tape has."""
        what, offset, nbytes, count, step = data
        storage: Storage = (
            self._field(what).storage if isinstance(what, list) else self._memories[what]
        )
        last = offset + (count - 1) * step + nbytes
        if min(offset, nbytes, count - 1, step) < 0 or last > storage.layout.nbytes:
            raise ValueError("a command outside its memory")
        return StridedSpan(storage.address + offset, nbytes, count, step)

    def _whole(self, data: list[Any], field: Field) -> int:
        """Return the address of memory that stands for all of a field."""
        span = self._span(data)
        if span.nbytes != field.storage.layout.nbytes:
            raise ValueError("a copy of another size than its field")
        return span.address

    # ---- runs

    def _check(self, what: str) -> None:
        if session.tape is not None:
            raise AutodiffError(
                f"a loaded tape cannot be {what} while {session.tape.work.words}",
                Span.of_caller(),
                hint=f"do it {session.tape.work.outside}",
            )
        if self._generation != session.generation:
            raise AutodiffError(
                "ds.init() or ds.reset() was called since this tape was loaded",
                Span.of_caller(),
                hint="load it again: ds.load_tape(filename)",
            )

    def replay(self, **arguments: Any) -> None:
        """Run what was recorded, in order, from what the fields hold now.

        A tape with a loss sets it and the gradients to 0 first.

        Args:
            arguments: as in `Tape.replay`, of those that were given to a replay before `tape.save`.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape(y) as tape:
                square()
            tape.save("square.tape")
            loaded = ds.load_tape("square.tape")
            loaded.fields["x"][None] = 5.0
            loaded.replay()
            print(loaded.loss[None])  # prints: 25.0
        """
        self._check("replayed")
        self._check_inputs(arguments)
        self._inputs.write(arguments)
        if self.loss is not None:
            self.zero()
            self.loss.fill(0)
        self._end = None
        try:
            self._forward.run()
        finally:
            for f in self._written:
                f._touch()
        self._end = session.clock

    def backward(self, loss: Field | None = None, grads: Mapping[Field, Any] | None = None) -> None:
        """Compute the gradients of the last replay; see `Tape.backward`.

        Raises:
            AutodiffError: there was no replay, or a field that an adjoint needs was written since.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape(y) as tape:
                square()
            tape.save("square.tape")
            loaded = ds.load_tape("square.tape")
            loaded.replay()
            loaded.backward()
            print(loaded.fields["x"].grad[None])  # prints: 6.0
        """
        self._check("differentiated")
        seeds = self._seeds(loss, grads)
        if self._end is None or any(v.latest > self._end for v in self._needed):
            raise AutodiffError(
                "this tape was not replayed yet"
                if self._end is None
                else "a field that the gradient needs was written after the last replay",
                Span.of_caller(),
                hint="call tape.replay() first",
            )
        cleared = ClearedGradients(self._written)
        try:
            for f, seed in seeds.items():
                start_from(f, seed)
            self._run_backward()
        except BaseException as error:
            poison(
                error,
                lambda: [f.adjoint for f in self._all if f.adjoint],
                "tape.zero() sets them to 0.",
            )
            raise
        cleared.restore()

    def _seeds(self, loss: Field | None, grads: Mapping[Field, Any] | None) -> dict[Field, Any]:
        if not isinstance(grads, Mapping | None):
            raise ArgumentError(
                "grads is a dictionary",
                Span.of_caller(),
                hint="write tape.backward(grads={y: seed})",
            )
        seeds = {f: of_its_own(seed) for f, seed in (grads or {}).items()}
        if grads is None and loss is None:
            loss = self.loss
        if loss is not None:
            check_loss(loss)
            seeds[loss] = 1
        foreign = [f for f in seeds if f not in self._all]
        if foreign or not seeds:
            raise AutodiffError(
                f"{shown(foreign[0])} is no field of this tape"
                if foreign
                else "a backward pass starts from a loss or from gradients",
                Span.of_caller(),
                hint='write tape.backward(grads={tape.fields["y"]: seed})',
            )
        return seeds

    def _run_backward(self) -> None:
        try:
            self._backward.run()
        except BaseException:
            reached = self._backward.reached
            for aside, back in self._put_back:
                # As in `program.py`: what was put aside returns also after a failure.
                if aside < reached and not back < reached:
                    self._backward.run_one(back)
            raise
        finally:
            for f in self._all:
                if f.adjoint is not None:
                    f.adjoint._touch()

    def zero(self) -> None:
        """Set all gradients of the tape's fields to 0.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape(y) as tape:
                square()
            tape.save("square.tape")
            loaded = ds.load_tape("square.tape")
            loaded.replay()
            loaded.backward()
            loaded.zero()
            print(loaded.fields["x"].grad[None])  # prints: 0.0
        """
        for f in self._all:
            if f.adjoint is not None:
                f.adjoint.clear()


def _field_of(
    dtype: str,
    element: list[int],
    shape: list[int],
    order: list[int],
    soa: bool,
    kind: str,
    grad: bool,
    origin: Sequence[int] = (),
) -> Field:
    made = Field(scalar(dtype), tuple(element), soa=soa, kind=kind)
    if grad:
        made.add_grad()
    made.place(tuple(shape), tuple(order), origin=tuple(origin))
    return made


def _memory_of(nbytes: int, contents: np.ndarray | None) -> Storage:
    made = session.backend.new_storage(StorageLayout(BYTE, 1, (nbytes,), (0,), False))
    if contents is not None:
        made.from_numpy(contents.reshape(nbytes, 1))
    return made


def _array_of(kernel: Kernel, name: str) -> Mem:
    for mem in kernel.mems:
        if mem.kind == "array" and mem.name == name:
            return mem
    # Unused by this kernel: bound all the same, to nothing.
    return Mem(name, BYTE, 1, None, "array")
