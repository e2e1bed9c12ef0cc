"""Kernels that diffsim itself runs on arrays of the host, whatever the session's backend is.

Their launches are no launches of the program: no tape records them, no profiler counts them, they need no
`ds.init`, and `ds.reset` does not touch them. They are compiled as all kernels are, with default options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.backends.cpu import codegen
from diffsim.ir.nodes import Mem
from diffsim.ir.types import f32, from_numpy, i32
from diffsim.lang.frontend import translate as frontend
from diffsim.lang.host.source import Source
from diffsim.passes import pipeline
from diffsim.runtime import compiler
from diffsim.runtime.backend import open_backend
from diffsim.runtime.binding.arguments import ArrayKind, Signature, array_ref, make_args
from diffsim.runtime.cpu.executable import CpuExecutable
from diffsim.runtime.session import session

_Key = tuple[tuple[np.dtype[Any], int], ...]
"""The key of a compiled kernel: element type and number of axes of each array."""


class HostKernel:
    """A function of numbers and contiguous NumPy arrays, compiled for the CPU at its first call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self._compiled: dict[_Key, tuple[CpuExecutable, list[Mem]]] = {}

    def __call__(self, *args: Any) -> None:
        """Run it: arrays are passed as they lie in memory, so they must be contiguous."""
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        assert all(a.flags.c_contiguous for a in arrays)
        key = tuple((a.dtype, a.ndim) for a in arrays)
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = self._compile(key)
        executable, memories = found
        # Threads share the parameter block.
        with executable.lock:
            for memory, array in zip(memories, arrays, strict=True):
                executable.bind_numpy(memory, array)
            numbers = (a for a in args if not isinstance(a, np.ndarray))
            executable.pack(executable.params, executable.args_at, *numbers)
            executable.launch()

    def _compile(self, key: _Key) -> tuple[CpuExecutable, list[Mem]]:
        """Take the way of `runtime/compiler.py`, with options of its own."""
        source = Source(self.function, "kernel")
        parameters = Signature(source, method=False).parameters
        args = make_args(parameters)
        bindings: dict[str, object] = dict(args)
        names = [p.name for p in parameters if p.kind == "array"]
        memories = []
        for name, (dtype, axes) in zip(names, key, strict=True):
            element = from_numpy(dtype)
            assert element is not None, dtype
            ref = array_ref(name, ArrayKind(element, axes, grad=False, large=False))
            bindings[name] = ref
            memories.append(ref._mem)
        made = frontend.translate(
            source,
            bindings,
            tuple(args.values()),
            None,
            default_fp=f32,
            default_ip=i32,
            debug=False,
        )
        kernel = pipeline.run(made.kernel, pipeline.PREPARE)
        lowered = pipeline.run(kernel, pipeline.lower(debug=False, deterministic=False))
        code = codegen.lower(lowered, session.jit, fast_math=False, deterministic=False)
        library = compiler.machine_code(kernel, code, open_backend("cpu", 0))
        return CpuExecutable(lowered, code, library), memories
