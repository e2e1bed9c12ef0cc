"""Calls of LLVM that may fail in LLVM itself, without ending the process: Python's side of `guard.ll`.

LLVM is built with its assertions, and a few of them do not hold: its vectorizer compares two estimates of
what a loop costs, and calls abort() where they differ. On Linux the call is abandoned then (siglongjmp), and
`Crash` raised; the objects that it was working on must not be touched again. Elsewhere these are plain calls.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import llvmlite.binding as llvm


class Crash(RuntimeError):
    """LLVM failed on a fault of its own."""


class Guard:
    """Runs passes and emits code, by way of the function `guarded` of `guard.ll`."""

    def __init__(self, guarded: int) -> None:
        """Args: guarded: the function's address; 0 for plain calls."""
        pointers = [ctypes.c_void_p] * 6
        self._guarded = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers)(guarded) if guarded else None

    @staticmethod
    def is_possible() -> bool:
        """Return whether `guard.ll` is written for this system."""
        return sys.platform == "linux"

    def run(self, passes: Any, module: llvm.ModuleRef, builder: Any) -> None:
        """Run a pass manager; raises Crash."""
        if self._guarded is None:
            passes.run(module, builder)
        else:
            self._call("LLVMPY_RunNewModulePassManager", passes, module, builder, None)

    def emit(self, machine: llvm.TargetMachine, module: llvm.ModuleRef) -> bytes:
        """Return the object code of a module; raises Crash."""
        if self._guarded is None:
            return bytes(machine.emit_object(module))
        lib, error = llvm.ffi.lib, ctypes.c_char_p()
        # LLVMPY_TargetMachineEmitToMemory(machine, module, kind, error): kind 1 is an object file.
        words = ctypes.cast(ctypes.byref(error), ctypes.c_void_p)
        as_object = ctypes.c_void_p(1)
        made = self._call("LLVMPY_TargetMachineEmitToMemory", machine, module, as_object, words)
        if not made:
            raise RuntimeError((error.value or b"no object code").decode(errors="replace"))
        buffer = ctypes.cast(made, lib.LLVMPY_TargetMachineEmitToMemory.restype)
        start = lib.LLVMPY_GetBufferStart(buffer)
        code = ctypes.string_at(start, lib.LLVMPY_GetBufferSize(buffer))
        lib.LLVMPY_DisposeMemoryBuffer(buffer)
        return code

    def _call(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function of LLVM with four pointers (or numbers of that size) under the guard."""
        lib = llvm.ffi.lib
        # The C function itself: llvmlite's wrapper takes the lock, which is held here already.
        function = getattr(lib, name)._cfn
        pointers = [ctypes.cast(getattr(a, "_ptr", a), ctypes.c_void_p) for a in arguments]
        result = ctypes.c_void_p()
        assert self._guarded is not None
        with lib._lock:  # what every call of llvmlite holds
            crashed = self._guarded(
                ctypes.addressof(result), ctypes.cast(function, ctypes.c_void_p), *pointers
            )
        # After the lock is released: the thread survives, and other threads must be able to call
        # LLVM again.
        if crashed:
            raise Crash
        return result
