"""The driver's own library, libcuda: the signatures of the functions that are called, and their errors."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from ctypes import c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_ushort, c_void_p
from typing import Any

from diffsim.errors import BackendError, OutOfMemoryError, Span

c_ptr = ctypes.c_uint64  # an address on the device

LIBRARIES = (
    ("nvcuda.dll",)
    if sys.platform == "win32"
    else (
        "libcuda.so.1",
        "libcuda.so",
        "/usr/local/nvidia/lib64/libcuda.so.1",
        "/usr/lib/wsl/lib/libcuda.so.1",
    )
)
CALLS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxGetCurrent": (c_void_p,),
    "cuCtxGetDevice": (c_void_p,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuCtxSetLimit": (c_int, c_size_t),
    "cuMemGetInfo_v2": (c_void_p, c_void_p),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_ptr,),
    "cuMemHostAlloc": (c_void_p, c_size_t, c_uint),
    "cuMemcpyHtoDAsync_v2": (c_ptr, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_ptr, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_ptr, c_ptr, c_size_t, c_void_p),
    "cuMemcpy2DAsync_v2": (c_void_p, c_void_p),
    "cuMemsetD8Async": (c_ptr, c_ubyte, c_size_t, c_void_p),
    "cuMemsetD16Async": (c_ptr, c_ushort, c_size_t, c_void_p),
    "cuMemsetD32Async": (c_ptr, c_uint, c_size_t, c_void_p),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, c_void_p),
    "cuGraphInstantiateWithFlags": (c_void_p, c_void_p, ctypes.c_uint64),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuStreamSynchronize": (c_void_p,),
    "cuModuleLoadData": (c_void_p, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (c_void_p, c_void_p, c_int, c_size_t),
    "cuLinkCreate_v2": (c_uint, c_void_p, c_void_p, c_void_p),
    "cuLinkAddData_v2": (
        c_void_p,
        c_int,
        c_char_p,
        c_size_t,
        c_char_p,
        c_uint,
        c_void_p,
        c_void_p,
    ),
    "cuLinkComplete": (c_void_p, c_void_p, c_void_p),
    "cuLinkDestroy": (c_void_p,),
    "cuLaunchKernel": (
        c_void_p,
        *(c_uint,) * 7,
        c_void_p,
        c_void_p,
        c_void_p,
    ),
    "cuPointerGetAttribute": (c_void_p, c_int, c_ptr),
    "cuGetErrorName": (c_int, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
}
_BRIEF = {"cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}
_BRIEF |= {"cuStreamQuery", "cuEventQuery"}
"""Calls too short to be worth releasing the GIL for."""
# Sticky errors (CUresult): 214 ECC, 700 illegal address, 702 launch timeout, 709 context destroyed,
# 710 device assert, 714 to 719 faults of the hardware or a kernel. The context stays unusable after
# them.
_FATAL = frozenset((214, 700, 702, 709, 710, *range(714, 720)))


class DriverError(BackendError):
    """The driver refused a call, or is missing.

    Attributes:
        reason: what the driver says.
        code: the driver's number (CUresult); 0 where there is no driver.
        is_fatal: whether each later call of the process ends like this too: a kernel or the hardware has
            done something wrong.
    """

    advice = "the program nvidia-smi shows the GPU and its driver; ds.init(arch=ds.cpu) runs without them"

    def __init__(self, reason: str, code: int = 0) -> None:
        message, hint = reason, None
        self.is_fatal = code in _FATAL
        if self.is_fatal:
            message = f"something that was launched before has failed on the GPU: {reason}"
            hint = (
                "run the program with ds.init(debug=True) to find the kernel; after such an error this "
                "process cannot use the GPU any more"
            )
        super().__init__(message, Span.of_caller(), hint)
        self.reason = reason
        self.code = code


class OutOfMemory(DriverError, OutOfMemoryError):
    """The device has no memory left for an allocation."""

    advice = (
        "use smaller or fewer fields, release those that are no longer needed, or end other "
        "programs that use the GPU: nvidia-smi shows them"
    )


@functools.cache
def load() -> dict[str, Any]:
    """Load the library; return the driver's functions by name."""
    found = None
    # The folders of containers and of WSL are not always on the loader's path.
    for name in LIBRARIES:
        try:
            found = name, ctypes.CDLL(name)
            break
        except OSError:
            continue
    if found is None:
        library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
        raise DriverError(f"NVIDIA's driver ({library}) is not installed")
    name, slow = found
    # The same library twice: PyDLL keeps the GIL during a call, CDLL releases it.
    brief = ctypes.PyDLL(name)
    made = {}
    for call, types in CALLS.items():
        try:
            function = getattr(brief if call in _BRIEF else slow, call)
        except AttributeError:
            # All functions are resolved at once: a driver that lacks one is refused here, and not
            # in the middle of a program.
            raise DriverError(f"NVIDIA's driver is too old: it has no {call}") from None
        function.argtypes, function.restype = types, c_int
        made[call] = function
    # Not on Windows, which has no fork.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=functools.partial(_after_fork, made))
    return made


def _after_fork(functions: dict[str, Any]) -> None:
    """Replace all functions by an error: CUDA does not work in a forked process."""

    def gone(*_: Any) -> int:
        raise DriverError(
            "this process was forked from one that uses the GPU, and CUDA does not work in it: "
            'start processes with multiprocessing.get_context("spawn")'
        )

    for name in functions:
        functions[name] = gone
