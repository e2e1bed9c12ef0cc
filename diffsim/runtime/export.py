"""A field's memory in the hands of other libraries (PyTorch, CuPy, JAX, Numba, NumPy), without copies.

It is handed out by the CUDA array interface (version 3) and by DLPack. All work of diffsim goes to a
blocking stream, so it is in order with what others do on CUDA's default stream; for other streams it is
waited for here.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from diffsim.runtime.storage import Form, HostStorage, Storage

_CPU, _CUDA = 1, 2  # DLDeviceType
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode
_IN_ORDER = (
    None,
    0,
    1,
    -1,
)  # streams of a consumer that are in order with ours, or not to be waited for


def strides_of(form: Form, element: tuple[int, ...]) -> tuple[int, ...]:
    """How far apart neighbours along the axes of a field and of its elements are [scalars]."""
    inner = form.component_stride
    rows = (inner * element[1], inner) if len(element) == 2 else (inner,) * len(element)
    return (*form.strides, *rows)


def cuda_array_interface(storage: Any, element: tuple[int, ...]) -> dict[str, Any]:
    """A field on a GPU as others see it: an array of shape `shape` + element."""
    form, width = storage.form, storage.form.dtype.bytes
    return {
        "shape": form.shape + element,
        "typestr": form.dtype.numpy.str,
        "data": (storage.address, False),
        "strides": tuple(width * s for s in strides_of(form, element)),
        "version": 3,
        "stream": storage.device.driver.stream,
    }


# ---- DLPack


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_NAME = b"dltensor"
_handed_out: dict[int, Any] = {}
"""What others hold, by the address of its DLManagedTensor."""
_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_IsValid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _deleter(managed: int) -> None:
    _handed_out.pop(managed, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destructor(capsule: int) -> None:
    """Of a capsule that nobody has taken."""
    if _api.PyCapsule_IsValid(capsule, _NAME):
        _handed_out.pop(_api.PyCapsule_GetPointer(capsule, _NAME), None)


def dlpack_device(storage: Storage) -> tuple[int, int]:
    """Where a field is, in DLPack's numbers."""
    return (_CPU, 0) if storage.device is None else (_CUDA, storage.device.driver.device)


def dlpack(storage: Storage, element: tuple[int, ...], options: dict[str, Any]) -> Any:
    """A capsule with a field's memory, which lives as long as somebody holds it.

    Raises:
        BufferError: it is on a GPU, and asked for by something that is not (NumPy), or for the CPU. The
            capsule would be of no use, and NumPy's own error is lost where it lets go of it.
    """
    form = storage.form
    knows_streams = "stream" in options
    stream = options.pop("stream", None)
    if isinstance(storage, HostStorage):
        strides = [form.dtype.bytes * s for s in strides_of(form, element)]
        array = np.ndarray(form.shape + element, form.dtype.numpy, storage.scalars.data, 0, strides)
        return array.__dlpack__(**{k: v for k, v in options.items() if v is not None})
    wanted = options.get("dl_device")
    if (wanted is not None and wanted[0] == _CPU) or (
        "max_version" in options and not knows_streams
    ):
        raise BufferError(
            f"this field is in the memory of {storage.device}: use x.to_numpy() for a copy"
        )
    if stream not in _IN_ORDER:
        storage.device.driver.wait()
    shape, steps = form.shape + element, strides_of(form, element)
    axes = ctypes.c_int64 * len(shape)
    numbers = axes(*shape), axes(*steps)
    kind, number = dlpack_device(storage)
    dtype = form.dtype.numpy
    tensor = _Tensor(
        storage.address,
        kind,
        number,
        len(shape),
        _CODES[dtype.kind],
        8 * dtype.itemsize,
        1,
        *map(ctypes.addressof, numbers),
        0,
    )
    managed = _Managed(tensor, None, ctypes.cast(_deleter, ctypes.c_void_p))
    address = ctypes.addressof(managed)
    _handed_out[address] = managed, numbers, storage
    return _api.PyCapsule_New(address, _NAME, ctypes.cast(_destructor, ctypes.c_void_p))
