"""pycuda that is not there: its names and contexts, on a driver's library that is not there either.

`Contexts` is the part of libcuda that keeps a stack of contexts for each thread. `Pycuda` is `pycuda.driver`
as far as diffsim calls it, with the stack of its own that the real one has (pycuda 2026.1, src/cpp/cuda.hpp):
`push` first takes whatever is current from the driver's stack, if its own is not empty.
"""

import threading
from types import SimpleNamespace

import numpy as np

from diffsim.backends.cuda import libcuda

PRIMARY = 0x1000  # and the number of the device


class Contexts:
    """The driver's library as far as opening GPUs goes, with its stacks of contexts."""

    def __init__(self, count=2):
        self.count = count
        self.device_of = {PRIMARY + k: k for k in range(count)}
        self.owner_of = {}
        self.retained = []
        self.local = threading.local()
        self.streams = []
        self.called = []  # names, each with the context that was current

    @property
    def stack(self):
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        return self.local.stack

    def make(self, device):
        """A context that is not the primary one, current from now on."""
        handle = 0x2000 + len(self.device_of)
        self.device_of[handle] = device
        self.stack.append(handle)
        return handle

    def __getitem__(self, name):
        def call(*args):
            assert len(args) == len(libcuda.CALLS[name])
            self.called.append((name, self.stack[-1] if self.stack else None))
            return getattr(self, name, lambda *_: 0)(*args) or 0

        return call

    def cuDriverGetVersion(self, found):
        found._obj.value = 13000

    def cuDeviceGetCount(self, found):
        found._obj.value = self.count

    def cuDeviceGet(self, found, number):
        found._obj.value = number

    def cuDeviceGetAttribute(self, found, which, device):
        found._obj.value = {75: 9, 76: 0}.get(which, 132)

    def cuDevicePrimaryCtxRetain(self, found, device):
        self.retained.append(device)
        found._obj.value = PRIMARY + getattr(device, "value", device)

    def cuCtxGetCurrent(self, found):
        found._obj.value = self.stack[-1] if self.stack else None

    def cuCtxPushCurrent_v2(self, context):
        assert context in self.device_of
        self.stack.append(context)

    def cuCtxPopCurrent_v2(self, found):
        found._obj.value = self.stack.pop()

    def cuCtxGetDevice(self, found):
        if not self.stack:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        found._obj.value = self.device_of[self.stack[-1]]

    def cuStreamCreate(self, found, flags):
        self.streams.append(self.stack[-1])
        found._obj.value = 7

    def cuPointerGetAttribute(self, found, which, address):
        assert self.stack
        if which == 1 and address not in self.owner_of:
            return 1  # CUDA_ERROR_INVALID_VALUE: memory that was mapped, not allocated
        found._obj.value = {1: self.owner_of.get(address), 2: 2, 9: 0}[which]
        return 0


class Pycuda:
    """The module `pycuda.driver`."""

    def __init__(self, library):
        self.library = library
        self.local = threading.local()
        self.started = False
        driver = self

        class Context:
            def __init__(self, handle):
                self.handle = handle

            @staticmethod
            def get_current():
                return driver.own[-1] if driver.own else None

            def push(self):
                if driver.own:
                    library.stack.pop()
                library.stack.append(self.handle)
                driver.own.append(self)

            @staticmethod
            def pop():
                library.stack.pop()
                driver.own.pop()
                if driver.own:
                    library.stack.append(driver.own[-1].handle)

        class Device:
            def __init__(self, number):
                assert driver.started, "cuInit comes first"
                self.number = number

            def make_context(self):
                made = Context(library.make(self.number))
                driver.own.append(made)
                return made

            def retain_primary_context(self):
                library.retained.append(self.number)
                return Context(PRIMARY + self.number)

        self.Context, self.Device = Context, Device

    @property
    def own(self):
        if not hasattr(self.local, "own"):
            self.local.own = []
        return self.local.own

    def init(self):
        self.started = True


class GPUArray:
    """`pycuda.gpuarray.GPUArray`, whose memory is the host's."""

    def __init__(
        self, shape, dtype, allocator=None, base=None, gpudata=None, strides=None, order="C"
    ):
        assert gpudata is not None
        self.shape, self.dtype, self.strides = tuple(shape), np.dtype(dtype), strides
        self.gpudata, self.base = gpudata, base
        if strides is None:
            self.strides = np.empty(self.shape, self.dtype).strides

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "strides": self.strides,
            "data": (int(self.gpudata), False),
            "typestr": self.dtype.str,
            "stream": None,
            "version": 3,
        }


MODULE = SimpleNamespace(GPUArray=GPUArray)
