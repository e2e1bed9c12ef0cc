"""Shares a field's memory with other libraries (PyTorch, CuPy, JAX, Numba, NumPy), without copies.

The memory is handed out by the CUDA array interface (version 3) and by DLPack. All work of diffsim goes to a
blocking stream, so it is in order with what others do on CUDA's default stream; for other streams it is
waited for here. Copies to and from tensors of PyTorch are here too.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diffsim import tracebacks
from diffsim.errors import BackendError, FieldError, MissingPackageError, Span
from diffsim.ir.layout import packed_strides
from diffsim.lang.host.signatures import checked_methods
from diffsim.lang.types.descriptions import describe
from diffsim.runtime.cuda.device import Buffer, DeviceStorage
from diffsim.runtime.memory.storage import HOST, HostStorage, Storage, StorageLayout
from diffsim.runtime.memory.versions import Versions
from diffsim.runtime.session import session
from diffsim.tracebacks import entries

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLDataTypeCode
NOT_GIVEN = object()
# Streams of a consumer that are in order with ours, or not to be waited for.
_IN_ORDER = (NOT_GIVEN, None, 0, 1, -1)


def strides_of(form: StorageLayout, element: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of the axes of a field and of its elements [scalars]."""
    # DLPack counts strides in elements, the CUDA array interface in bytes: the callers multiply.
    return (*form.strides, *packed_strides(element, form.component_stride))


def cuda_array_interface(storage: Any, element: tuple[int, ...]) -> dict[str, Any]:
    """Describe a field on a GPU as an array of shape `shape` + element, for `__cuda_array_interface__`."""
    form, width = storage.layout, storage.layout.dtype.bytes
    return {
        "shape": form.shape + element,
        "typestr": form.dtype.numpy.str,
        "data": (storage.address, False),
        "strides": tuple(width * s for s in strides_of(form, element)),
        "version": 3,
        # The consumer waits for this stream before it reads, by the interface's rules.
        "stream": storage.device.driver.stream,
    }


def gpu_array(storage: Any, element: tuple[int, ...]) -> Any:
    """Make an array of pycuda that shares, and keeps alive, the memory of a field on a GPU."""
    try:
        module = importlib.import_module("pycuda.gpuarray")
    except Exception as problem:
        raise BackendError(
            f"pycuda cannot be used here: {problem}",
            Span.of_caller(),
            hint='install it: pip install "diffsim-lang[cuda]"; x.__dlpack__ and x.to_numpy() need nothing',
        ) from None
    form, width = storage.layout, storage.layout.dtype.bytes
    with storage.device.driver.current():  # pycuda asks for the GPU of the current context
        # `base` keeps the storage alive as long as the array.
        return module.GPUArray(
            form.shape + element,
            form.dtype.numpy,
            gpudata=storage.address,
            base=storage,
            strides=tuple(width * s for s in strides_of(form, element)),
        )


# ---- DLPack


# The layout of `dlpack.h`: DLDevice and DLDataType are flattened into this struct, which has the same
# alignment.
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


# Since 1.0 a capsule says whether it is a copy, and whether it is read-only.
class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, of version 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_IS_COPIED = 2  # DLPACK_FLAG_BITMASK_IS_COPIED
_NAMES = {_Managed: b"dltensor", _Versioned: b"dltensor_versioned"}
_handed_out: dict[int, Any] = {}
"""Memory that others hold, by the address of its DLManagedTensor: struct, shape and strides, memory."""
_api = ctypes.pythonapi
_api.Py_IncRef.argtypes = (ctypes.py_object,)
_api.Py_IncRef(
    _handed_out
)  # its memory outlives this module: others may look at it to the very end
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_IsValid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)


# CFUNCTYPE acquires the GIL: a consumer may drop its tensor in any thread.
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _deleter(managed: int) -> None:
    _handed_out.pop(managed, None)


# A capsule's destructor is called with the GIL held. A consumer renames the capsule it takes
# ("used_dltensor"), so that a valid name means that the memory is still ours to free.
@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destructor(capsule: int) -> None:
    """Free what a capsule holds that no consumer has taken."""
    for name in _NAMES.values():
        if _api.PyCapsule_IsValid(capsule, name):
            _handed_out.pop(_api.PyCapsule_GetPointer(capsule, name), None)


@atexit.register
def _keep_to_the_end() -> None:
    """Clear the deleters when Python ends: later calls of them would run in an interpreter that is gone."""
    for managed, *_ in list(_handed_out.values()):
        managed.deleter = None


class Asked(NamedTuple):
    """The arguments of `__dlpack__`, by the rules of the Python array API."""

    max_version: tuple[int, int] | None
    dl_device: tuple[int, int] | None
    copy: bool | None
    stream: Any


def dlpack_device(storage: Storage) -> tuple[int, int]:
    """Return the device of a field as DLPack's type and number."""
    return storage.device.dlpack


def dlpack(storage: Storage, element: tuple[int, ...], asked: Asked) -> Any:
    """Return a capsule with a field's memory (or a copy of it), which lives as long as somebody holds it.

    Raises:
        BufferError: it is on a GPU, and asked for by something that is not (NumPy), or for another device.
            The capsule would be of no use, and NumPy's own error is lost where it releases it.
    """
    form = storage.layout
    if isinstance(storage, HostStorage):
        strides = [form.dtype.bytes * s for s in strides_of(form, element)]
        # NumPy's own implementation serves the host, for all versions of the protocol.
        array = np.ndarray(form.shape + element, form.dtype.numpy, storage.scalars.data, 0, strides)
        given: dict[str, Any] = asked._asdict()
        del given["stream"]
        # Arguments that NumPy's version may not know are left out where they have no value.
        return array.__dlpack__(**{k: v for k, v in given.items() if v is not None})
    assert isinstance(storage, DeviceStorage)
    device = storage.device
    for_host = asked.max_version is not None and asked.stream is NOT_GIVEN  # NumPy knows no streams
    if for_host or asked.dl_device not in (None, dlpack_device(storage)):
        raise BufferError(f"this field is in the memory of {device}: use x.to_numpy() for a copy")
    # On the same device and stream, so that it is ordered after all launches so far.
    owner: Any = storage
    if asked.copy:
        owner = Buffer(device, form.nbytes, "a copy of a field")
        device.driver.copy(owner.address, storage.address, form.nbytes)
    # Blocking is always right; ordering by an event would need the consumer's stream to be valid here.
    if asked.stream not in _IN_ORDER:
        device.driver.wait()
    shape, steps = form.shape + element, strides_of(form, element)
    axes = ctypes.c_int64 * len(shape)
    # Kept with the tensor, which only has their addresses.
    numbers = axes(*shape), axes(*steps)
    dtype = form.dtype.numpy
    tensor = _Tensor(
        owner.address,
        *dlpack_device(storage),
        len(shape),
        _CODES[dtype.kind],
        8 * dtype.itemsize,
        1,
        *map(ctypes.addressof, numbers),
        0,
    )
    deleter = ctypes.cast(_deleter, ctypes.c_void_p)
    managed: _Managed | _Versioned = _Managed(tensor, None, deleter)
    # Consumers that do not pass `max_version` know the old struct alone.
    if asked.max_version is not None and asked.max_version[0] >= 1:
        managed = _Versioned(1, 0, None, deleter, _IS_COPIED if asked.copy else 0, tensor)
    address = ctypes.addressof(managed)
    # From here the deleter, or the destructor, frees it.
    _handed_out[address] = managed, numbers, owner
    capsule_of = ctypes.cast(_destructor, ctypes.c_void_p)
    return _api.PyCapsule_New(address, _NAMES[type(managed)], capsule_of)


@entries("__dlpack__ __dlpack_device__")
@checked_methods("to_gpuarray")
class SharedMemory:
    """The part of a field that other libraries ask for its memory."""

    element: tuple[int, ...]
    storage: Any
    tree: Any
    versions: Versions
    _storage: Storage
    _shared: list[Storage]
    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.storage.device is HOST:
            raise AttributeError(f"{self.name} is not on a GPU")
        if self._storage not in self._shared:  # others keep the field, and this has to stay with it
            self._shared.append(self._storage)
        self._export()
        return cuda_array_interface(self._storage, self.element)

    def to_gpuarray(self) -> Any:
        """Return the field's memory as a `pycuda.gpuarray.GPUArray`, without a copy (axes: `to_numpy()`).

        Example:
            import pycuda.autoinit

            ds.init(arch=ds.cuda)
            print(ds.field(ds.f32, shape=3).to_gpuarray().shape)  # prints: (3,)
        """
        if self.storage.device is HOST:
            raise BackendError(
                f"{self.name} is not on a GPU",
                Span.of_caller(),
                hint="start with ds.init(arch=ds.cuda), or use x.to_numpy()",
            )
        self._export()
        return gpu_array(self._storage, self.element)

    def _export(self) -> None:
        """Note that other libraries see the memory from now on, and may write to it at any time."""
        if self.tree is not None:
            raise FieldError(
                f"{self.name} is in a sparse tree: writes to it by another library would activate nothing",
                Span.of_caller(),
                hint="give a copy, x.to_numpy(), and take the result back with x.from_numpy(array)",
            )
        self._exported = True
        session.with_grad.changes += 1  # a gradient's zeros may not last from now on
        self.versions.share()
        session.exported.add(self)  # launches look there for memory that arrays share

    def __dlpack__(
        self,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        stream: Any = NOT_GIVEN,
    ) -> Any:
        if not copy:  # a copy is not shared
            self._export()
        asked = Asked(max_version, dl_device, copy, stream)
        return dlpack(self.storage, self.element, asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack_device(self.storage)


# ---- copies for PyTorch


@functools.cache
def pytorch() -> Any:
    """Import PyTorch.

    Raises:
        MissingPackageError: it is not installed.
    """
    if not _is_installed("torch"):
        raise MissingPackageError(
            "PyTorch is not installed",
            Span.of_caller(),
            hint='install it: pip install "diffsim-lang[torch]"',
        )
    import torch

    # Errors of a backward pass show the user's line, and not PyTorch's that called for the user.
    tracebacks.add_own(torch.__path__[0])
    return torch


def _is_installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ValueError:  # it is in `sys.modules`, without a spec
        return False


@checked_methods("to_torch from_torch")
class TensorCopies:
    """The part of a field that copies from and to tensors of PyTorch, under Taichi's names."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...

        def to_numpy(self, dtype: Any = None, keep_dims: Any = False) -> np.ndarray: ...

        def from_numpy(self, array: object) -> None: ...

    def to_torch(self, device: Any = None, keep_dims: bool = False) -> Any:
        """Return a copy as a tensor of PyTorch, on the host or on the device that is named.

        Its shape is that of `to_numpy(keep_dims=...)`. On a tape it is a constant; functions of PyTorch with
        gradients are made by `ds.torch.wrap`.

        Example:
            import torch

            x = ds.field(ds.f32, shape=3)
            print(x.to_torch().dtype)  # prints: torch.float32
        """
        made = pytorch().from_numpy(np.asarray(self.to_numpy(keep_dims=keep_dims)))
        return made if device is None else made.to(device)

    def from_torch(self, arr: Any) -> None:
        """Copy a tensor of PyTorch, of shape `field.shape` + shape of one element, into the field.

        Example:
            import torch

            x = ds.field(ds.f32, shape=3)
            x.from_torch(torch.tensor([1.0, 2.0, 3.0]))
            print(x[2])  # prints: 3.0
        """
        torch = pytorch()
        if not isinstance(arr, torch.Tensor):
            raise FieldError(
                f"from_torch takes a tensor of PyTorch, not {describe(arr)}",
                Span.of_caller(),
                hint="arrays are copied by from_numpy, fields by copy_from",
            )
        if arr.requires_grad:
            raise FieldError(
                f"this tensor requires a gradient, which would be lost in {self.name}",
                Span.of_caller(),
                hint="make a function of PyTorch of the program, ds.torch.wrap; or copy arr.detach()",
            )
        self.from_numpy(arr.resolve_neg().cpu().numpy())
