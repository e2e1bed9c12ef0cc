"""Types, and annotations for arguments; the scalar types are also names of diffsim itself.

vec3 = ds.types.vector(3, ds.f32)

@ds.kernel
def push(x: ds.types.ndarray(dtype=vec3, ndim=1), force: vec3): ...
"""

from typing import TYPE_CHECKING, NoReturn

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
from diffsim.lang.host.annotations import template
from diffsim.lang.host.unsupported import absent
from diffsim.lang.types.namespace import matrix, ndarray, struct, vector
from diffsim.public_names import names_of_module

sparse_matrix_builder = template

if not TYPE_CHECKING:  # or every name would be one

    def __getattr__(name: str) -> NoReturn:
        raise absent(__name__, name, __all__)


__all__ = [
    "f16",
    "f32",
    "f64",
    "float16",
    "float32",
    "float64",
    "i8",
    "i16",
    "i32",
    "i64",
    "int8",
    "int16",
    "int32",
    "int64",
    "matrix",
    "ndarray",
    "sparse_matrix_builder",
    "struct",
    "template",
    "u1",
    "u8",
    "u16",
    "u32",
    "u64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "vector",
]
__dir__ = names_of_module(__all__)
