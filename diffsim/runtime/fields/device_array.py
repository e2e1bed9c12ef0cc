"""Arrays of other libraries (PyTorch, CuPy, JAX, Numba, pycuda) as kernel arguments, without copies.

Those in the host's memory share it with NumPy (DLPack), so that kernels take them as arrays of NumPy, under
the same rules: they have no gradient, a tape keeps a copy of what they were, and those that are the memory of
a field with a gradient are refused on one.

Those on a GPU are taken by the CUDA array interface (version 3). All work of diffsim goes to a blocking
stream, so it is in order with what others do on CUDA's default stream;
what they do on other streams is waited for here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.errors import FieldError, KernelTypeError, Span
from diffsim.ir.layout import packed_strides
from diffsim.lang.host.field_like import is_any_field
from diffsim.lang.host.signatures import checked
from diffsim.lang.types.descriptions import describe
from diffsim.runtime.cuda.device import Buffer, Device
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.packed_arrays import PackedArray, given_of, memory_key
from diffsim.runtime.memory.storage import MemorySpace

# No stream, or the legacy default stream: the driver orders its work with diffsim's blocking stream (CUDA
# array interface, version 3).
_LEGACY_STREAMS = (None, 0, 1)

_CPU = (1, 3)
"""Memory that the host reaches, in DLPack's numbers: its own, and pinned by CUDA."""


# ---- on the host


def as_argument(value: Any, where: str) -> Any:
    """Return an array of another library on the host as one of NumPy, in the same memory; others as they are.

    Raises:
        KernelTypeError: it has a gradient in its library, or NumPy cannot share it.
    """
    if isinstance(value, np.ndarray) or is_any_field(value) or not _is_on_host(value):
        return value
    if getattr(value, "requires_grad", False) is True:
        raise KernelTypeError(
            f"{where}: the tensor requires a gradient, which would be lost in a kernel",
            Span.of_caller(),
            hint="make a function of PyTorch of what launches the kernel, ds.torch.wrap; or pass "
            "tensor.detach()",
        )
    try:
        made = shared(value)
    except Exception as problem:
        raise KernelTypeError(
            f"{where}: NumPy cannot share {describe(value)} ({problem})",
            Span.of_caller(),
            hint="pass a copy that it knows: float32 or float64, dense",
        ) from None
    return made


def _is_on_host(value: Any) -> bool:
    if not hasattr(type(value), "__dlpack__"):
        return False
    try:
        return value.__dlpack_device__()[0] in _CPU
    except Exception:  # JAX's tracers, PyTorch's meta tensors
        return False


def shared(value: Any) -> np.ndarray:
    """Return an array of NumPy in the memory of another library's."""
    # PyTorch's own way, as some releases of NumPy count what comes by DLPack as read-only.
    is_tensor = hasattr(type(value), "untyped_storage")
    return np.asarray(value.detach().numpy() if is_tensor else np.from_dlpack(value))


@checked
def from_dlpack(array: Any) -> np.ndarray:
    """Return an array in the memory of another library's, or of a field, without a copy.

    Kernels take it as an array argument; they take tensors of PyTorch and arrays of JAX themselves as well.
    What is written to it is written to the other one. It has no gradient.

    Args:
        array: anything with `__dlpack__`, on the host.

    Example:
        x = ds.field(ds.f32, shape=3)
        a = ds.from_dlpack(x)
        a[0] = 2.0
        print(x[0], a.dtype)  # prints: 2.0 float32
    """
    if not _is_on_host(array):
        on_gpu = hasattr(type(array), "__dlpack__")
        raise FieldError(
            f"{describe(array)} {'is not in the memory of the host' if on_gpu else 'has no __dlpack__'}",
            Span.of_caller(),
            hint="kernels take arrays on their GPU as they are: pass it as an argument"
            if on_gpu
            else "give a tensor or an array; x.from_numpy(numbers) copies into a field",
        )
    if is_any_field(array):
        return shared(array)
    made: np.ndarray = as_argument(array, "from_dlpack")
    return made


# ---- on a GPU


class DeviceArray:
    """An array of another library on a GPU, as kernels take it.

    Attributes:
        address: of its first scalar.
        shape: of the array.
        dtype: NumPy's type of its scalars.
        memory: address of the memory that it is a part of: arrays that share it may overlap.
        owner: what keeps the memory alive.
        device: the GPU.
    """

    __slots__ = ("address", "device", "dtype", "memory", "owner", "shape")

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        memory: int,
        owner: object,
        device: Device,
    ) -> None:
        self.device = device
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.memory = memory
        self.owner = owner

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def copy(self) -> DeviceArray:
        """Copy the array, on its device."""
        device = self.device
        made = Buffer(device, self.nbytes, "a copy of an array")
        device.driver.copy(made.address, self.address, self.nbytes)
        return DeviceArray(made.address, self.shape, self.dtype, made.address, made, device)

    def to_numpy(self) -> np.ndarray:
        """Copy the array to the host."""
        made = np.empty(self.shape, self.dtype)
        self.device.read(self.address, made)
        return made

    def overlaps(self, address: int, nbytes: int) -> bool:
        """Return whether it shares bytes with other memory."""
        # Both are half-open ranges of bytes.
        return address < self.address + self.nbytes and self.address < address + nbytes


def is_on_gpu(value: object) -> bool:
    """Return whether a value has the CUDA array interface, and is on a GPU."""
    if isinstance(value, (np.ndarray, Field)) or not hasattr(
        type(value), "__cuda_array_interface__"
    ):
        return False
    return getattr(value, "is_cuda", True) is True  # all tensors of PyTorch have the interface


def known_as(array: object) -> Any:
    """Return the key of an array argument in launch histories: its identity, or its place in memory."""
    if array.__class__ is np.ndarray:
        return id(array)
    if isinstance(array, DeviceArray):
        return array.address, array.shape
    if array.__class__ is PackedArray:
        return memory_key(given_of(array))
    # Of a Field: no later one at its place in memory has it.
    number = getattr(array, "number", None)
    return id(array) if number is None else ("field", number)


def wrap_argument(value: Any, device: MemorySpace, where: str) -> DeviceArray:
    """Wrap an array of another library as a kernel's argument.

    Raises:
        KernelTypeError: kernels run on the CPU or on another GPU; it has gaps, or cannot be written.
    """
    if not isinstance(device, Device):
        raise KernelTypeError(
            f"{where}: the array is on a GPU, and kernels run on the CPU",
            Span.of_caller(),
            hint="start with ds.init(arch=ds.cuda), or pass a copy on the CPU",
        )
    try:
        # A property, which may raise: PyTorch does for a tensor that requires a gradient.
        given = value.__cuda_array_interface__
    except Exception as problem:
        raise KernelTypeError(
            f"{where}: the array cannot be used: {problem}",
            Span.of_caller(),
            hint="for a tensor of PyTorch that requires a gradient pass tensor.detach()",
        ) from None
    shape, dtype = tuple(given["shape"]), np.dtype(given["typestr"])
    address, read_only = given["data"]
    strides, packed = given.get("strides"), packed_strides(shape, dtype.itemsize)
    if strides is not None and 0 not in shape:
        # The strides of axes of length 1 are arbitrary, and so are all of an empty array.
        gaps = zip(shape, strides, packed, strict=True)
        if any(n > 1 and s != p for n, s, p in gaps):
            raise KernelTypeError(
                f"{where}: the array is not contiguous",
                Span.of_caller(),
                hint="pass array.contiguous() (PyTorch) or ascontiguousarray(array) (CuPy)",
            )
    if given.get("mask") is not None:
        raise KernelTypeError(
            f"{where}: this array has a mask, which would be ignored",
            Span.of_caller(),
            hint="pass a copy without one",
        )
    if read_only:
        raise KernelTypeError(
            f"{where}: the array is read-only", Span.of_caller(), hint="pass a copy"
        )
    # An empty array may have no address.
    number = device.driver.where(address) if address else device.driver.device
    if number != device.driver.device:
        raise KernelTypeError(
            f"{where}: the array is not on GPU {device.driver.device}, where kernels run",
            Span.of_caller(),
            hint="move it there, or choose its GPU: ds.init(arch=ds.cuda, device=...)",
        )
    # An address on the right GPU can still be unknown to this context: pycuda may have one of its own.
    if address and not device.driver.is_reached(address):
        raise KernelTypeError(
            f"{where}: the array belongs to another CUDA context than the one that kernels run in",
            Span.of_caller(),
            hint="import pycuda.autoprimaryctx in place of pycuda.autoinit, or make pycuda's context before "
            "ds.init(arch=ds.cuda), which then uses it",
        )
    stream = given.get("stream")
    # The producer's work on the array may still be running there.
    if stream not in _LEGACY_STREAMS:
        device.driver.wait_for(stream)
    return DeviceArray(int(address), shape, dtype, _memory_of(value, int(address)), value, device)


def _memory_of(value: Any, address: int) -> int:
    """Return the address of the allocation that an array is a part of, as far as its library tells."""
    try:
        # Each library has a name of its own for the allocation that a view belongs to.
        if hasattr(value, "untyped_storage"):  # PyTorch
            return int(value.untyped_storage().data_ptr())
        if hasattr(value, "gpudata"):  # pycuda
            while getattr(value.base, "gpudata", None) is not None:
                value = value.base
            return int(value.gpudata)
        return int(value.data.mem.ptr)  # CuPy
    except Exception:
        return address
