"""Functions of CPython's C API that launch kernels: Python's side of ``calls.ll``.

A call through ``ctypes`` takes 100 ns, ``struct.pack_into`` 50, and to find out where NumPy has an array 200.
These functions do all of it in 20 to 60 ns. They are plain CPython functions whose code ``calls.ll`` has; a
``Signature`` tells them which arguments a kernel takes and where they go in its parameter block. Their code
is loaded when the first function is asked for.

They read the class of an object, and the head of NumPy's arrays, where the headers of CPython and NumPy have
them for every extension module. ``calls`` compares that with what Python says when they are loaded;
if it differs, it returns None and launches go the way that needs no such function.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from diffsim import locks
from diffsim.backends.native.jit import Jit, Library
from diffsim.backends.native.pool import Cache, load_native, load_pool

F32, F64, INTEGER, BOOL, ARRAY = range(5)
"""Kinds of arguments."""
_WORDS = 17  # of an argument: see `%Argument`
_HEAD = 4
_NO_ARGS, _FAST = 0x0004, 0x0080  # METH_NOARGS, METH_FASTCALL
CONTIGUOUS, ALIGNED, WRITEABLE = 0x0001, 0x0100, 0x0400
"""Flags of NumPy's arrays."""


@dataclass(frozen=True, slots=True)
class Number:
    """An argument that is a number.

    Attributes:
        kind: F32, F64, INTEGER or BOOL.
        slot: its slot of the block; None: the kernel does not use it.
        least, most: the range of an integer.
    """

    kind: int
    slot: int | None
    least: int = 0
    most: int = 0


@dataclass(frozen=True, slots=True)
class Array:
    """An argument that is an array.

    Attributes:
        slot: the slot of its address, which those of its dimensions follow; None: the kernel does not use it.
        rank: number of axes, components left out.
        of: the number of its kind, which fields name (`field_words`).
        element: bytes of an element.
        like: the number of the first argument of the same shape.
        dtype: that of NumPy's arrays; None: it takes none of them.
        written: whether the array must be writeable.
        components: lengths of the trailing axes of NumPy's arrays.
        grad_slot: the slot of the gradient's address; None: not used.
        grad_element: bytes of an element of the gradient; 0: it has none.
        shape: the lengths that it must have; None: any.
    """

    slot: int | None
    rank: int
    of: int
    element: int
    like: int
    dtype: np.dtype[Any] | None = None
    written: bool = False
    components: tuple[int, ...] = ()
    grad_slot: int | None = None
    grad_element: int = 0
    shape: tuple[int, ...] | None = None


def field_words(of: int, address: int, grad: int, shape: Sequence[int]) -> bytes:
    """Return what stands for a field among the arguments of a call.

    Args:
        of: the number of its kind, the same for all fields that one compiled kernel takes.
        address: of its memory.
        grad: of the memory of its gradient; 0: it has none.
        shape: its lengths.
    """
    words = (of, address, grad, *shape)
    return bytes((ctypes.c_int64 * len(words))(*words))


class _Method(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Methods:
    """The loaded code of ``calls.ll``, as CPython describes functions."""

    def __init__(self, library: Library) -> None:
        self._library = library
        address = library.address
        api, ptr = ctypes.pythonapi, ctypes.c_void_p
        functions = (ptr * 8)(
            *(
                ctypes.cast(f, ptr).value
                for f in (
                    api.PyLong_AsVoidPtr,
                    api.PyFloat_AsDouble,
                    api.PyLong_AsLongLongAndOverflow,
                    api.PyBytes_AsString,
                    api.PyErr_Occurred,
                    api.PyErr_SetString,
                    api.Py_IncRef,
                )
            ),
            id(RuntimeError),
        )
        objects = (ptr * 7)(*map(id, (None, True, False, float, int, bytes, np.ndarray)))
        ctypes.PYFUNCTYPE(None, ptr, ptr)(address("ds_calls"))(functions, objects)
        # Functions have their addresses.
        self._methods = {
            "ds_call": _Method(b"launch", address("ds_call"), _NO_ARGS, None),
            "ds_fits": _Method(b"fits", address("ds_fits"), _FAST, None),
            "ds_pack": _Method(b"pack", address("ds_pack"), _FAST, None),
            "ds_call_with": _Method(b"launch", address("ds_call_with"), _FAST, None),
        }
        self._new = ctypes.PYFUNCTYPE(ctypes.py_object, ptr, ctypes.py_object, ptr)(
            ctypes.cast(api.PyCFunction_NewEx, ptr).value or 0
        )

    def made(self, name: str, address: int) -> Callable[..., Any]:
        return self._new(ctypes.addressof(self._methods[name]), address, None)


class Calls:
    """Makes functions that launch kernels."""

    def __init__(self, load: Callable[[], Library]) -> None:
        """Args: load: returns the library of ``calls.ll``."""
        self._load = load
        self._lock = locks.rlock()
        # A signal handler may load the code in the middle of loading: functions have addresses in either.
        self._loaded: list[_Methods] = []

    def is_loaded(self) -> bool:
        """Load the code, unless another thread is doing so; return whether it is there.

        Who holds the lock of a kernel must not wait: the other thread may be about to launch it.
        """
        if not self._loaded and self._lock.acquire(blocking=False):
            try:
                if not self._loaded:
                    self._loaded.append(_Methods(self._load()))
            finally:
                self._lock.release()
        return bool(self._loaded)

    def launcher(self, block: int) -> Callable[[], None]:
        """Return the function that launches the kernel of the parameter block at an address."""
        return self._made("ds_call", block)

    def _made(self, name: str, address: int) -> Callable[..., Any]:
        if not self._loaded:
            with self._lock:
                self.is_loaded()
        return self._loaded[0].made(name, address)


class Signature:
    """The arguments that a compiled kernel takes as they are.

    Attributes:
        fits: fits(*args) returns whether these can be packed and launched.
        pack: pack(*args) packs them alone, where launches are not native calls.
        launch: launch(*args) packs and launches; RuntimeError: they do not fit any more.
    """

    def __init__(
        self,
        calls: Calls,
        block: ctypes.Array[ctypes.c_int64],
        arguments: Sequence[Number | Array],
        captured: Sequence[tuple[int, int]],
    ) -> None:
        """Describe the arguments.

        Args:
            calls: of this process.
            block: the parameter block.
            arguments: in order.
            captured: first bytes and ends of the memories that no array may share.
        """
        self._calls, self._block = calls, block
        self._arguments, self._pairs = arguments, captured
        self._captured = (ctypes.c_int64 * max(2 * len(captured), 1))(
            *(byte for pair in captured for byte in pair)
        )
        # Objects and memory that the words have the addresses of.
        self._held: list[Any] = [block]
        start = ctypes.addressof(block)
        words = [start, len(arguments), len(captured), ctypes.addressof(self._captured)]
        for a in arguments:
            mine = [0] * _WORDS
            slot = _address(start, a.slot)
            if isinstance(a, Number):
                mine[:4] = a.kind, slot, a.least, a.most
            else:
                lengths = (ctypes.c_int64 * (1 + len(a.components)))(
                    len(a.components), *a.components
                )
                self._held += [a.dtype, lengths]
                flags = CONTIGUOUS | ALIGNED | (WRITEABLE if a.written else 0)
                type_of = 0 if a.dtype is None else id(a.dtype)
                mine[:3] = ARRAY, slot, a.rank
                mine[4:10] = type_of, flags, a.of, ctypes.addressof(lengths), a.element, a.like
                mine[13:15] = _address(start, a.grad_slot), a.grad_element
                if a.shape is not None:
                    wanted = (ctypes.c_int64 * len(a.shape))(*a.shape)
                    self._held.append(wanted)
                    mine[3] = ctypes.addressof(wanted)
            words += mine
        self._words = (ctypes.c_int64 * len(words))(*words)

    @property
    def fits(self) -> Callable[..., bool]:
        return self._function("ds_fits")

    @property
    def pack(self) -> Callable[..., None]:
        return self._function("ds_pack")

    @property
    def launch(self) -> Callable[..., None]:
        return self._function("ds_call_with")

    def _function(self, name: str) -> Callable[..., Any]:
        return self._calls._made(name, ctypes.addressof(self._words))

    def bound(self, args: Sequence[Any]) -> Signature:
        """Return the signature of launches with these arrays, which takes the numbers alone.

        Args:
            args: such as `fits` takes.

        Raises:
            RuntimeError: they do not fit.
        """
        # A launch of another thread may be at work with the words of the block.
        block = type(self._block)(*self._block)
        whole = Signature(self._calls, block, self._arguments, self._pairs)
        whole.pack(*args)  # its words must live that long
        numbers = [a for a in self._arguments if isinstance(a, Number)]
        return Signature(self._calls, block, numbers, ())


def _address(block: int, slot: int | None) -> int:
    return 0 if slot is None else block + 8 * slot


def _is_as_expected() -> bool:
    """Return whether objects and arrays lie in memory as ``calls.ll`` reads them."""
    if (
        sys.implementation.name != "cpython"
        or sys.byteorder != "little"
        or object.__basicsize__ != 16
        or ctypes.sizeof(ctypes.c_void_p) != 8
    ):
        return False

    def word(address: int) -> int:
        return ctypes.c_int64.from_address(address).value

    sample = np.zeros((3, 5), np.float32)
    at, flags = id(sample), CONTIGUOUS | ALIGNED | WRITEABLE
    if np.ndarray.__basicsize__ < 72 or word(at + 8) != id(np.ndarray):
        return False
    frozen = np.zeros((5, 3), np.float64).T
    frozen.flags.writeable = False
    return (
        word(at + 16) == sample.ctypes.data
        and word(at + 24) & 0xFFFFFFFF == 2
        and [word(word(at + 32) + 8 * k) for k in range(2)] == [3, 5]
        and word(at + 56) == id(sample.dtype)
        and word(at + 64) & flags == flags
        and word(id(frozen) + 64) & flags == ALIGNED
    )


def calls(jit: Jit, cache: Cache | None) -> Calls | None:
    """Return what makes such functions, to be kept; None where Python or NumPy is not as expected."""
    if not _is_as_expected():
        return None

    def load() -> Library:
        load_pool(jit, cache)  # which it calls
        return load_native(jit, cache, "calls.ll")

    return Calls(load)
