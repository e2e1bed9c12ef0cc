"""IR as bytes for the cache on disk: `fingerprint`, `dumps`, `loads`.

A fingerprint is a digest of all that passes and code generation can see of a kernel. What they cannot see is
left out of it: where memories are, and on which lines of which file statements stand. Memories, places in
the source, launch-wide values and accesses are numbered in the order in which they are met, so that equal
kernels of two processes have the same numbers; bytes made by `dumps` refer to them by these.

The format is Python's pickle, of diffsim's own classes. It is trusted as the machine code beside
it is (docs/adr/0081).
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from diffsim.errors import Span
from diffsim.ir.nodes import (
    Alloca,
    Arg,
    Atomic,
    Block,
    Check,
    Const,
    CustomCall,
    Dim,
    For,
    Gradient,
    If,
    InlineLLVM,
    Kernel,
    Let,
    Load,
    Mem,
    Print,
    RngKey,
    Stmt,
    Store,
    Task,
    Value,
    While,
)
from diffsim.ir.print_format import CheckKind
from diffsim.ir.traversal import blocks

Reduced = tuple[Any, ...]
"""How pickle is told to make an object: a function, its arguments, and what is set afterwards."""
_Table = dict[type, Callable[[Any], Reduced]]

_DEEPEST = 64
"""Blocks within each other: pickle recurses on the stack of C, too small for a chain of a thousand `elif`."""
_PACKAGES = ("diffsim", "numpy", "builtins", "collections")


class NotStorable(Exception):
    """Something cannot be written as bytes that mean the same in another process."""


class Fingerprint(NamedTuple):
    """The identity of a kernel across processes.

    Attributes:
        digest: equal for kernels that compile to the same code.
        known: itself, its memories, places in the source, launch-wide values and accesses, by their numbers.
    """

    digest: str
    known: tuple[Any, ...]


def fingerprint(kernel: Kernel) -> Fingerprint | None:
    """Return the fingerprint of a kernel; None: it has none, and nothing made of it can be kept."""
    if _KEY not in kernel.memo:
        try:
            kernel.memo[_KEY] = _fingerprint(kernel)
        except (NotStorable, pickle.PicklingError, TypeError, AttributeError, RecursionError):
            kernel.memo[_KEY] = None
    found: Fingerprint | None = kernel.memo[_KEY]
    return found


def set_fingerprint(kernel: Kernel, made: Fingerprint) -> None:
    """Give a kernel a fingerprint that is known from elsewhere: from what it was made of, and how."""
    kernel.memo[_KEY] = made


_KEY = fingerprint


def _fingerprint(kernel: Kernel) -> Fingerprint:
    if not is_flat(kernel):
        raise NotStorable("blocks too deep")
    known: list[Any] = [kernel]

    def memory(m: Mem) -> Reduced:
        known.append(m)
        # All but the handle and the name. As a state, since gradients and masks refer back to it.
        return _fact, ("Mem",), _facts_of_mem(m)

    def place_in_source(s: Span) -> Reduced:
        known.append(s)
        return _fact, ("Span",)

    def numbered(x: Any) -> Reduced:
        known.append(x)
        return _TABLE[type(x)](x)

    table: _Table = {Mem: memory, Span: place_in_source}
    table |= dict.fromkeys(_NUMBERED, numbered)
    digest = hashlib.sha256(_pickled(kernel, table)).hexdigest()
    return Fingerprint(digest, tuple(known))


def dumps(
    thing: Any, known: Iterable[Any], met: list[Any] | None = None, *, with_places: bool = False
) -> bytes:
    """Return an object that is made of IR as bytes.

    Args:
        thing: kernels, statements, and what refers to them.
        known: what the bytes refer to by number; places in the source must be among these.
        with_places: whether other places are written as they are, with file and line.
        met: gets what a fingerprint numbers, in the order in which it is met.

    Raises:
        NotStorable: it holds what has no meaning in another process.
    """
    number = {id(k): n for n, k in enumerate(known)}

    def by_number(otherwise: Callable[[Any], Reduced]) -> Callable[[Any], Reduced]:
        def reduced(x: Any) -> Reduced:
            if met is not None:
                met.append(x)
            n = number.get(id(x))
            return otherwise(x) if n is None else (_known, (n,))

        return reduced

    table: _Table = {cls: by_number(_TABLE[cls]) for cls in (Kernel, *_NUMBERED)}
    table |= {Mem: by_number(_own_memory), Span: by_number(_place if with_places else _refused)}
    try:
        return _pickled(thing, table)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as problem:
        raise NotStorable(str(problem)) from None


def loads(data: bytes, known: Sequence[Any]) -> Any:
    """Return what `dumps` was given, with this process's objects for the known ones.

    Raises:
        NotStorable: the bytes were not made by `dumps` of this version.
    """
    try:
        return _Unpickler(data, known).load()
    except Exception as problem:  # bytes that somebody has made up may raise anything
        raise NotStorable(str(problem)) from None


# ---- how objects are taken apart


def _pickled(thing: Any, table: _Table) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.dispatch_table = _TABLE | table
    pickler.dump(thing)
    return file.getvalue()


def is_flat(kernel: Kernel) -> bool:
    """Return whether the blocks of a kernel are not too deep within each other to be written."""
    level = [b for t in kernel.tasks for b in (t.bounds, t.body)]
    for _ in range(_DEEPEST):
        level = [inner for b in level for s in b.stmts for inner in _blocks(s)]
        if not level:
            return True
    return False


def _blocks(s: Stmt) -> tuple[Block, ...]:
    if type(s) is CustomCall:
        return tuple(b for b in (s.body, s.adjoint, s.replay) if b is not None)
    return blocks(s)


def _by_slots(cls: Any) -> Callable[[Any], Reduced]:
    """Return how to take apart objects whose constructor takes what their slots hold."""
    names = _ORDER.get(cls)
    if names is not None:
        in_order = attrgetter(*names)
        return lambda x: (cls, in_order(x))
    values = attrgetter(*cls.__slots__)
    return lambda x: (_node, (cls, values(x)))


def _node(cls: Any, values: tuple[Any, ...]) -> Any:
    return cls(**dict(zip(cls.__slots__, values, strict=True)))


def _own(x: Load | Atomic) -> Any:
    return None if x.origin is x else x.origin


def _load(x: Load) -> Reduced:
    return Load, (x.out, x.mem, x.index, x.span, _own(x))


def _atomic(x: Atomic) -> Reduced:
    return Atomic, (x.out, x.op, x.mem, x.index, x.value, x.span, x.exclusive, _own(x))


def _own_memory(m: Mem) -> Reduced:
    """Take apart a memory that a pass has made."""
    if m.handle is not None or m.kind in ("field", "array"):
        raise NotStorable(f"the memory {m.name} belongs to the program")
    return _new_memory, (), _of_mem(m), None, None, _set_memory


def _new_memory() -> Mem:
    return Mem.__new__(Mem)


def _set_memory(m: Mem, values: tuple[Any, ...]) -> None:
    """Set the attributes of a new memory; they may refer back to it."""
    m.handle = None
    for name, value in zip(_OF_MEM, values, strict=True):
        setattr(m, name, value)


def _place(s: Span) -> Reduced:
    return Span, (s.file, s.line, s.col, s.end_line, s.end_col, s.where, s.parent)


def _refused(x: Any) -> Reduced:
    raise NotStorable(f"{x!r} is of this process alone")


def _fact(*_: Any) -> Any:
    raise pickle.UnpicklingError("a fingerprint is no kernel")


def _known(number: int) -> Any:
    raise pickle.UnpicklingError(f"object {number} is known to `loads` alone")


_NUMBERED = (Arg, Dim, RngKey, Load, Store, Atomic)
_OF_MEM = tuple(name for name in Mem.__slots__ if name != "handle")
_of_mem = attrgetter(*_OF_MEM)
# Names are for people: a kernel that is called with other fields of its template leads to the same code.
_facts_of_mem = attrgetter(*(name for name in _OF_MEM if name != "name"))
# The frequent ones, whose constructors are called with the slots in order.
_ORDER: dict[type, tuple[str, ...]] = {
    Value: ("type", "hint"),
    RngKey: ("type", "hint"),
    Const: ("type", "value"),
    Arg: ("type", "hint", "position"),
    Dim: ("type", "mem", "axis"),
    Block: ("stmts", "yields"),
    Let: ("out", "op", "args", "span"),
    Store: ("mem", "index", "value", "span"),
}
_OTHERS = (
    Alloca, Check, CustomCall, For, Gradient, If, InlineLLVM, Kernel, Print, Task, While,
)  # fmt: skip
_TABLE: _Table = {
    **{cls: _by_slots(cls) for cls in (*_ORDER, *_OTHERS)},
    Load: _load,
    Atomic: _atomic,
    CheckKind: lambda kind: (_kind, (kind.name,)),
}


def _kind(name: str) -> CheckKind:
    return CheckKind[name]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, known: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == _known.__name__:
            return self._known.__getitem__
        if module.partition(".")[0] in _PACKAGES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of IR")
