"""diffsim: differentiable physics in pure Python. `import diffsim as ds`.

Kernels over fields are compiled through diffsim's own IR and LLVM, and differentiated exactly: a gradient
is right, or it is refused with an error that names the line.

Examples in docstrings suppose `import diffsim as ds` and `import numpy as np`.
"""

import importlib
from types import SimpleNamespace as _SimpleNamespace
from typing import TYPE_CHECKING, Any

from diffsim import ad, errors, math, optim, profiler, tools, types
from diffsim import gui as _gui
from diffsim import jax as jax
from diffsim import torch as torch
from diffsim.ad.field_ops import clone, copy
from diffsim.ad.field_ops import stop_grad_outside as _stop_grad_outside
from diffsim.ad.replay.loaded_tape import load_tape
from diffsim.ad.tape import Tape
from diffsim.compile_ahead import precompile
from diffsim.errors import (
    AccessError,
    ArgumentError,
    AutodiffError,
    BackendError,
    CheckError,
    DiffsimError,
    DtypeError,
    FieldError,
    FileError,
    GlobalDataAccessError,
    InternalError,
    KernelArithmeticError,
    KernelAssertionError,
    KernelNameError,
    KernelOverflowError,
    KernelSimplicityError,
    KernelStateError,
    KernelSyntaxError,
    KernelTypeError,
    KernelZeroDivisionError,
    MissingGradientError,
    MissingPackageError,
    OperationError,
    OptionError,
    OutOfMemoryError,
    SolveError,
    UnknownAttributeError,
)
from diffsim.gui import hex_to_rgb, rgb_to_hex

# Ops work on numbers, vectors, fields' elements and NumPy arrays alike, in kernels and in Python.
from diffsim.ir.ops import (
    abs,
    acos,
    asin,
    atan,
    atan2,
    ceil,
    cos,
    cosh,
    digamma,
    erf,
    erfc,
    exp,
    exp2,
    floor,
    isinf,
    isnan,
    lgamma,
    log,
    log2,
    max,
    min,
    pow,
    raw_mod,
    round,
    rsqrt,
    select,
    sign,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trigamma,
    trunc,
)

# Taichi's names. Each scalar type has a short and, as in NumPy, a long name.
from diffsim.ir.types import bool_ as u1
from diffsim.ir.types import f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from diffsim.ir.types import f16 as float16
from diffsim.ir.types import f32 as float32
from diffsim.ir.types import f64 as float64
from diffsim.ir.types import i8 as int8
from diffsim.ir.types import i16 as int16
from diffsim.ir.types import i32 as int32
from diffsim.ir.types import i64 as int64
from diffsim.ir.types import u8 as uint8
from diffsim.ir.types import u16 as uint16
from diffsim.ir.types import u32 as uint32
from diffsim.ir.types import u64 as uint64
from diffsim.lang.builtins.bits import bit_cast, bit_shr
from diffsim.lang.builtins.compile_time import (
    assume_in_range,
    block_local,
    cache_read_only,
    loop_unique,
    mesh_local,
    static_assert,
    static_print,
)
from diffsim.lang.builtins.intrinsics import (
    atomic_add,
    atomic_and,
    atomic_max,
    atomic_min,
    atomic_mul,
    atomic_or,
    atomic_sub,
    atomic_xor,
    cast,
    grouped,
    loop_config,
    ndrange,
    one,
    randn,
    random,
    static,
    stop_grad,
    zero,
)
from diffsim.lang.builtins.logic import (
    bit_sar,
    bit_shl,
    logical_and,
    logical_not,
    logical_or,
    raw_div,
    solve,
)
from diffsim.lang.builtins.sparse import (
    activate,
    append,
    deactivate,
    is_active,
    length,
    no_activate,
    rescale_index,
)
from diffsim.lang.builtins.spectral import diagonal_map, eig, polar_decompose, svd, sym_eig, sym_map
from diffsim.lang.frontend.functions.custom_derivatives import adjoint, grad
from diffsim.lang.frontend.functions.inline_llvm import func_native
from diffsim.lang.frontend.narrowing import PrecisionLoss
from diffsim.lang.host.annotations import template
from diffsim.lang.host.func import (
    data_oriented,
    func,
    func_grad,
    func_replay,
    pyfunc,
    real_func,
)
from diffsim.lang.host.hooks import RuntimeHooks as _RuntimeHooks
from diffsim.lang.host.hooks import install as _install
from diffsim.lang.host.unsupported import absent as _absent
from diffsim.lang.types.matrix import Matrix
from diffsim.lang.types.structs import dataclass
from diffsim.lang.types.vector import Vector
from diffsim.optim.runs.archive import load, save
from diffsim.public_names import names_of_module as _names_of_module
from diffsim.runtime.cpu import backend as _cpu_backend
from diffsim.runtime.cuda import backend as _cuda_backend
from diffsim.runtime.fields.adjoints import clear_all_dual, clear_all_gradients
from diffsim.runtime.fields.constructors import AnyField as Field
from diffsim.runtime.fields.constructors import (
    Layout,
    MatrixField,
    MatrixNdarray,
    Ndarray,
    ScalarField,
    ScalarNdarray,
    VectorNdarray,
    field,
    ndarray,
)
from diffsim.runtime.fields.constructors import make_field as _make_field
from diffsim.runtime.fields.constructors import make_ndarray as _make_ndarray
from diffsim.runtime.fields.device_array import from_dlpack
from diffsim.runtime.fields.struct_field import StructField
from diffsim.runtime.fields.struct_field import StructNamespace as Struct
from diffsim.runtime.fields.struct_field import make_struct_field as _make_struct_field
from diffsim.runtime.kernels.kernel import Kernel, kernel
from diffsim.runtime.kernels.kernel import forget_all as _forget_all
from diffsim.runtime.layouts.fields_builder import FieldsBuilder
from diffsim.runtime.layouts.layout_tree import (
    axes,
    deactivate_all_snodes,
    i,
    ij,
    ijk,
    ijkl,
    ijl,
    ik,
    ikl,
    il,
    j,
    jk,
    jkl,
    jl,
    k,
    kl,
    l,
    root,
)
from diffsim.runtime.observe.logging_level import (
    CRITICAL,
    DEBUG,
    ERROR,
    INFO,
    TRACE,
    WARN,
    is_logging_effective,
    set_logging_level,
)
from diffsim.runtime.observe.profiler import ScopedTimer
from diffsim.runtime.observe.profiler import ScopedTimer as Timer
from diffsim.runtime.python import backend as _python_backend
from diffsim.runtime.session import (
    amdgpu,
    arm64,
    cpu,
    cuda,
    device_info,
    dx11,
    dx12,
    gles,
    gpu,
    init,
    metal,
    opengl,
    python,
    reset,
    sync,
    vulkan,
    x64,
    x86_64,
)
from diffsim.runtime.session import session as _session
from diffsim.runtime.translated import own_names as _own_names

__version__ = "0.1.0"

# The language cannot import the runtime, which is built on top of it: it is given what it needs of it here,
# when both are loaded. Modules of the language call these functions only while a program runs.
_install(
    _RuntimeHooks(
        make_field=_make_field,
        make_ndarray=_make_ndarray,
        make_struct_field=_make_struct_field,
        default_fp=lambda: _session.options.default_fp,
        default_ip=lambda: _session.options.default_ip,
        stop_grad=_stop_grad_outside,
        forget_kernels=_forget_all,
    )
)
# What programs ask Taichi's build before they choose between `ti.vulkan` and `ti.cuda`. `ds.vulkan` is
# right for both: any GPU that there is, else the CPU. `GGUI_AVAILABLE` is about windows of Vulkan:
# who asks for it has pictures in the plane otherwise.
_TAICHI_BUILD = _SimpleNamespace(
    core=_SimpleNamespace(with_vulkan=lambda: True, GGUI_AVAILABLE=False)
)
if TYPE_CHECKING:
    from diffsim import algorithms, linalg, ui
    from diffsim.gui.gui import GUI
else:
    # Hidden from type checkers, which would otherwise accept every name as an attribute of the module.
    def __getattr__(name: str) -> Any:
        if name == "GUI":
            return _gui.GUI
        if name in (
            "algorithms",
            "linalg",
            "ui",
        ):  # imported at the first use, which makes them attributes
            return importlib.import_module(f"{__name__}.{name}")
        if name == "_lib":
            return _TAICHI_BUILD
        known = [*__all__, *_LEFT_OUT]
        raise _absent(__name__, name, known, {"ds.ad": ad.__all__, "ds.optim": optim.__all__})


# What `from diffsim import *` gives, and what advice for misspelled names is chosen from.
__all__ = [
    "CRITICAL",
    "DEBUG",
    "ERROR",
    "GUI",
    "INFO",
    "TRACE",
    "WARN",
    "AccessError",
    "ArgumentError",
    "AutodiffError",
    "BackendError",
    "CheckError",
    "DiffsimError",
    "DtypeError",
    "Field",
    "FieldError",
    "FieldsBuilder",
    "FileError",
    "GlobalDataAccessError",
    "InternalError",
    "Kernel",
    "KernelArithmeticError",
    "KernelAssertionError",
    "KernelNameError",
    "KernelOverflowError",
    "KernelSimplicityError",
    "KernelStateError",
    "KernelSyntaxError",
    "KernelTypeError",
    "KernelZeroDivisionError",
    "Layout",
    "Matrix",
    "MatrixField",
    "MatrixNdarray",
    "MissingGradientError",
    "MissingPackageError",
    "Ndarray",
    "OperationError",
    "OptionError",
    "OutOfMemoryError",
    "PrecisionLoss",
    "ScalarField",
    "ScalarNdarray",
    "ScopedTimer",
    "SolveError",
    "Struct",
    "StructField",
    "Tape",
    "Timer",
    "UnknownAttributeError",
    "Vector",
    "VectorNdarray",
    "acos",
    "activate",
    "ad",
    "adjoint",
    "algorithms",
    "amdgpu",
    "append",
    "arm64",
    "asin",
    "assume_in_range",
    "atan",
    "atan2",
    "atomic_add",
    "atomic_and",
    "atomic_max",
    "atomic_min",
    "atomic_mul",
    "atomic_or",
    "atomic_sub",
    "atomic_xor",
    "axes",
    "bit_cast",
    "bit_sar",
    "bit_shl",
    "bit_shr",
    "block_local",
    "cache_read_only",
    "cast",
    "ceil",
    "clear_all_dual",
    "clear_all_gradients",
    "clone",
    "cos",
    "cosh",
    "cpu",
    "cuda",
    "data_oriented",
    "dataclass",
    "deactivate",
    "deactivate_all_snodes",
    "device_info",
    "diagonal_map",
    "digamma",
    "dx11",
    "dx12",
    "eig",
    "erf",
    "erfc",
    "errors",
    "exp",
    "exp2",
    "f16",
    "f32",
    "f64",
    "field",
    "float16",
    "float32",
    "float64",
    "floor",
    "from_dlpack",
    "func",
    "func_grad",
    "func_native",
    "func_replay",
    "gles",
    "gpu",
    "grad",
    "grouped",
    "hex_to_rgb",
    "i",
    "i8",
    "i16",
    "i32",
    "i64",
    "ij",
    "ijk",
    "ijkl",
    "ijl",
    "ik",
    "ikl",
    "il",
    "init",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_active",
    "is_logging_effective",
    "isinf",
    "isnan",
    "j",
    "jk",
    "jkl",
    "jl",
    "k",
    "kernel",
    "kl",
    "l",
    "length",
    "lgamma",
    "linalg",
    "load",
    "load_tape",
    "log",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "loop_config",
    "loop_unique",
    "mesh_local",
    "metal",
    "ndarray",
    "ndrange",
    "no_activate",
    "one",
    "opengl",
    "optim",
    "polar_decompose",
    "precompile",
    "profiler",
    "pyfunc",
    "python",
    "randn",
    "raw_div",
    "raw_mod",
    "real_func",
    "rescale_index",
    "reset",
    "rgb_to_hex",
    "root",
    "rsqrt",
    "save",
    "select",
    "set_logging_level",
    "sign",
    "sin",
    "sinh",
    "solve",
    "sqrt",
    "static",
    "static_assert",
    "static_print",
    "stop_grad",
    "svd",
    "sym_eig",
    "sym_map",
    "sync",
    "tan",
    "tanh",
    "template",
    "tools",
    "trigamma",
    "trunc",
    "types",
    "u1",
    "u8",
    "u16",
    "u32",
    "u64",
    "ui",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "vulkan",
    "x64",
    "x86_64",
    "zero",
]

# Public too, but left out of a star import: it would replace Python's functions and modules of these names
# (kernels take Python's own for the same), JAX and PyTorch.
_LEFT_OUT = "abs copy jax math max min pow random round torch".split()
__dir__ = _names_of_module([*__all__, *_LEFT_OUT])
_own_names.remember()
