"""diffsim: differentiable physics in pure Python. `import diffsim as ds`.

Kernels over fields are compiled through diffsim's own IR and LLVM, and differentiated exactly: a gradient
is right, or it is refused with an error that names the line.
"""

from diffsim import ad, errors
from diffsim.ad.tape import Tape
from diffsim.errors import (
    AccessError,
    AutodiffError,
    BackendError,
    DiffsimError,
    FieldError,
    GlobalDataAccessError,
    InternalError,
    KernelNameError,
    KernelSimplicityError,
    KernelStateError,
    KernelSyntaxError,
    KernelTypeError,
    MissingGradientError,
)
from diffsim.ir.ops import (
    absolute as abs,
)
from diffsim.ir.ops import (
    acos,
    asin,
    atan,
    atan2,
    ceil,
    cos,
    cosh,
    exp,
    floor,
    isinf,
    isnan,
    log,
    raw_mod,
    rsqrt,
    select,
    sign,
    sin,
    sinh,
    sqrt,
    stop_grad,
    tan,
    tanh,
    trunc,
)
from diffsim.ir.ops import maximum as max
from diffsim.ir.ops import minimum as min
from diffsim.ir.ops import power as pow
from diffsim.ir.ops import rint as round
from diffsim.ir.types import bool_ as u1
from diffsim.ir.types import f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from diffsim.lang.annotations import template, types
from diffsim.lang.func import data_oriented, func
from diffsim.lang.intrinsics import (
    atomic_add,
    atomic_and,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_sub,
    atomic_xor,
    cast,
    grouped,
    loop_config,
    ndrange,
    randn,
    random,
    static,
)
from diffsim.lang.matrix import Matrix, Vector
from diffsim.lang.statements import PrecisionLoss
from diffsim.runtime.context import cpu, cuda, gpu, init, reset, sync
from diffsim.runtime.field import Field, Layout, field, ndarray
from diffsim.runtime.kernel import Kernel, kernel
from diffsim.runtime.tree import (
    axes,
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

__version__ = "0.1.0"
__all__ = [name for name in dir() if not name.startswith("_")]
