"""diffsim: differentiable physics in pure Python. `import diffsim as ds`."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, dataclass_transform, overload
from typing_extensions import Self, TypeVar

import numpy as np


T = TypeVar("T")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
N = TypeVar("N", covariant=True, default=Any)
M = TypeVar("M", covariant=True, default=Any)
D = TypeVar("D", covariant=True, default=Any)

# Scalar types are those of Python for a checker: `t: ds.i32` is an int, and `ds.f32` a class.
DType: TypeAlias = type[float] | type[int] | type[bool] | type[_Tensor] | _Tensor
_Arch: TypeAlias = Arch

from diffsim.errors import AccessError as AccessError
from diffsim.errors import ArgumentError as ArgumentError
from diffsim.errors import AutodiffError as AutodiffError
from diffsim.errors import BackendError as BackendError
CRITICAL: str
from diffsim.errors import CheckError as CheckError
DEBUG: str
from diffsim.errors import DiffsimError as DiffsimError
from diffsim.errors import DtypeError as DtypeError
ERROR: str
class Field:
    """A field; made by `ds.field`, `ds.Vector.field` and `ds.Matrix.field`."""
    def __array__(self, dtype: DType | None = ..., copy: bool | None = ...) -> np.ndarray: ...
    def __contains__(self, thing: Any) -> bool: ...
    def __getitem__(self, key: Any) -> Any: ...
    def __iter__(self) -> Any: ...
    def __len__(self) -> int: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis; () for a single one."""
    dtype: Any
    @property
    def grad(self) -> Field: ...
    @property
    def dual(self) -> Field: ...
    def assign(self, source: Any) -> None:
        """Copy a field (differentiated on a tape) or an array of the same shape."""
    def copy_from(self, other: Field) -> None:
        """Copy another field of the same shape and element shape."""
    @property
    def element_shape(self) -> tuple[int, ...]:
        """The shape of an element: () of numbers, (n,) of vectors, (n, m) of matrices."""
    def fill(self, val: Any) -> None:
        """Set every element (of a vector field: to a number, or to a vector)."""
    def from_numpy(self, arr: Any) -> None:
        """Copy an array of shape `field.shape` + shape of one element into the field."""
    def from_torch(self, arr: Any) -> None:
        """Copy a tensor of PyTorch, of shape `field.shape` + shape of one element, into the field."""
    def get_scalar_field(self, *indices: int) -> Field:
        """Return a component of the elements as a field of numbers that shares their memory."""
    @property
    def m(self) -> int:
        """Columns of an element (1 for scalars and vectors)."""
    def mark_written(self) -> None:
        """Tell that code outside diffsim has written to the field's memory, as Python's writes do."""
    @property
    def n(self) -> int:
        """Rows of an element (1 for scalars)."""
    @property
    def name(self) -> str:
        """The name given, or that of a variable, as far as there is one."""
    @property
    def needs_dual(self) -> bool:
        """Whether it was declared with tangents, for forward mode."""
    @property
    def needs_grad(self) -> bool:
        """Whether it was declared with a gradient."""
    def parent(self, n: int = ...) -> Any:
        """Return the node of the layout tree that the field is placed in; the n-th around it."""
    @property
    def snode(self) -> Any:
        """The field itself: its place in the tree, whose `parent()` is the node around it."""
    def to_gpuarray(self) -> Any:
        """Return the field's memory as a `pycuda.gpuarray.GPUArray`, without a copy (axes: `to_numpy()`)."""
    def to_numpy(self, dtype: DType | None = ..., keep_dims: Any = ...) -> np.ndarray:
        """Return a copy: an array of shape `field.shape` + shape of one element."""
    def to_torch(self, device: Any = ..., keep_dims: bool = ...) -> Any:
        """Return a copy as a tensor of PyTorch, on the host or on the device that is named."""
from diffsim.errors import FieldError as FieldError
class FieldsBuilder:
    """A layout tree beside `ds.root`: `fb.dense(ds.i, n).place(x)`, then `tree = fb.finalize()`."""
    def __init__(self) -> None: ...
    def bitmasked(self, indices: Axes, dimensions: Any) -> Node:
        """Divide each element into an array whose cells are active or not."""
    @property
    def bytes_in_use(self) -> int:
        """How much memory the fields placed here or below take, with their gradients and masks."""
    def deactivate_all(self) -> None:
        """Make all cells of this node inactive, and those below: their elements are 0 from now on."""
    def dense(self, indices: Axes, dimensions: Any) -> Node:
        """Divide each element into a dense array; see `ds.root.dense`."""
    def dynamic(self, index: Axes, dimension: Any, chunk_size: Any = ...) -> Node:
        """Divide each element into a list, whose length changes; see `ds.root.dynamic`."""
    @property
    def empty(self) -> bool:
        """Whether nothing was added yet."""
    def finalize(self, raise_warning: bool = ...) -> Any:
        """Close the tree, and return it; `raise_warning` is taken as Taichi's programs give it."""
    finalized: bool
    def lazy_dual(self) -> None:
        """Give a dual, for forward mode, to every float field placed below this node."""
    def lazy_grad(self) -> None:
        """Give a gradient to every float field placed below this node."""
    def parent(self, n: int = ...) -> Node:
        """Return the node around this one, or the n-th from here outwards."""
    def place(self, *args: Any, offset: Any = ...) -> Node:
        """Allocate fields (and their gradients, if any) with the axes of this node."""
    def pointer(self, indices: Axes, dimensions: Any) -> Node:
        """Divide each element into an array whose cells are active or not."""
    @property
    def root(self) -> Node:
        """The outermost node: the builder itself."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells along each axis that it or a node above it divides."""
from diffsim.errors import FileError as FileError
class GUI:
    """A canvas in a window, a notebook, a browser or files."""
    def __init__(self, name: str = ..., res: int | tuple[int, int] = ..., background_color: int = ..., show_gui: bool = ..., fullscreen: bool = ..., fast_gui: bool = ...) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *problem: Any) -> bool | None: ...
    name: Any
    res: Any
    background_color: Any
    @property
    def frame(self) -> int:
        """How many frames were shown."""
    @frame.setter
    def frame(self, value: Any) -> None: ...
    event: Any
    ALT: str
    BACKSPACE: str
    CAPSLOCK: str
    CTRL: str
    DOWN: str
    ESCAPE: str
    EXIT: str
    Event: Any
    EventFilter: Any
    LEFT: str
    LMB: str
    MMB: str
    MOTION: Any
    MOVE: str
    PRESS: Any
    RELEASE: Any
    RETURN: str
    RIGHT: str
    RMB: str
    SHIFT: str
    SPACE: str
    TAB: str
    UP: str
    WHEEL: str
    WidgetValue: Any
    WindowClosed: Any
    def arrow(self, orig: Any, direction: Any, radius: float = ..., color: int = ..., **kwargs: float) -> None:
        """Draw an arrow from `orig` to `orig + direction`; see `arrows`."""
    def arrow_field(self, direction: Any, radius: Any = ..., color: Any = ..., bound: float = ..., **kwargs: float) -> None:
        """Draw an arrow for each vector of an array of shape (x, y, 2), spread over the canvas."""
    def arrows(self, orig: Any, direction: Any, radius: Any = ..., color: Any = ..., tip_scale: float = ..., angle: float = ...) -> None:
        """Draw arrows."""
    def button(self, text: str, event_name: str | None = ...) -> str:
        """Add a button; return the key of its events of type `GUI.PRESS`."""
    def circle(self, pos: Any, color: int = ..., radius: float = ...) -> None:
        """Draw a disc (`radius` in pixels)."""
    def circles(self, pos: Any, radius: Any = ..., color: Any = ..., palette: Sequence[int] | None = ..., palette_indices: Any = ...) -> None:
        """Draw discs."""
    def clear(self, color: int | None = ...) -> None:
        """Fill the canvas with a colour, that of the background if none is given."""
    def close(self) -> None:
        """Close the window and finish films."""
    def contour(self, scalar_field: Any, normalize: bool = ...) -> None:
        """Fill the canvas with the colours ("plasma") of a scalar field, stretched to its size."""
    @property
    def fps_limit(self) -> float | None:
        """The most frames a second in a window, 60 at first; None: as many as can be drawn."""
    @fps_limit.setter
    def fps_limit(self, value: Any) -> None: ...
    def get_cursor_pos(self) -> tuple[float, float]:
        """Return where the mouse is: (x, y) between 0 and 1."""
    def get_event(self, *e_filter: Any) -> bool:
        """Return whether there was such an event (as in `get_events`), which is then `gui.event`."""
    def get_events(self, *e_filter: Any) -> Iterator[Any]:
        """Fetch the events since the last call, in their order."""
    def get_image(self) -> np.ndarray:
        """Return what was drawn in this frame: (x, y, 4) of f32 from 0 to 1, of 256 levels."""
    def get_key_event(self) -> Any:
        """Wait for the next event and return it."""
    def has_key_event(self) -> bool:
        """Return whether an event waits to be fetched."""
    def is_pressed(self, *keys: str) -> bool:
        """Return whether one of the keys, or buttons of the mouse, is pressed now."""
    def label(self, text: str) -> Any:
        """Add a label, which shows its title and its `.value`."""
    def line(self, begin: Any, end: Any, radius: float = ..., color: int = ...) -> None:
        """Draw a segment (`radius`: half of its width in pixels, as in Taichi)."""
    def lines(self, begin: Any, end: Any, radius: Any = ..., color: Any = ...) -> None:
        """Draw segments from rows of `begin` to rows of `end`; radii and colours one, or one for each."""
    def point_field(self, radius: Any, color: Any = ..., bound: float = ...) -> None:
        """Draw a disc for each element of an array of radii, spread over the canvas."""
    def rect(self, topleft: Any, bottomright: Any, radius: float = ..., color: int = ...) -> None:
        """Draw the four sides of a rectangle."""
    @property
    def running(self) -> bool:
        """Whether the window is open; True without one, until it is set to False."""
    @running.setter
    def running(self, value: Any) -> None: ...
    def set_image(self, img: Any) -> None:
        """Fill the canvas with an image."""
    def show(self, file: str | PathLike[str] | None = ...) -> None:
        """End the frame: show it, or write it, clear the canvas, and let events come in."""
    def slider(self, text: str, minimum: float, maximum: float, step: float | None = ...) -> Any:
        """Add a slider; its `.value` is the number, which the program may set."""
    def text(self, content: str, pos: Any, font_size: float = ..., color: int = ...) -> None:
        """Write a text, of one line or more, below and to the right of `pos` (`font_size` in pixels)."""
    def triangle(self, a: Any, b: Any, c: Any, color: int = ...) -> None:
        """Fill a triangle."""
    def triangles(self, a: Any, b: Any, c: Any, color: Any = ...) -> None:
        """Fill triangles, whose corners are rows of `a`, `b` and `c`."""
    def vector_field(self, vector_field: Any, arrow_spacing: int = ..., color: Any = ...) -> None:
        """Draw every fifth vector of a field as an arrow, the longest a tenth of the canvas."""
from diffsim.errors import GlobalDataAccessError as GlobalDataAccessError
INFO: str
from diffsim.errors import InternalError as InternalError

class Kernel(Generic[P, R]):
    """A compiled function over fields; made by `@ds.kernel`."""
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, obj: None, owner: Any = ...) -> Self: ...
    @overload
    def __get__(self: Kernel[Concatenate[S, Q], R], obj: S, owner: Any = ...) -> Kernel[Q, R]: ...
    @property
    def grad(self) -> _GradKernel[P]:
        """The adjoint: `kernel.grad(...)`, with the arguments of the launch it belongs to."""
    def ir(self, *, after: str | None = ...) -> str: ...
    def llvm(self) -> str: ...
    def ptx(self, arch: str = ...) -> str: ...
    def jvp(self, *args: Any, **kwargs: Any) -> Any: ...
    def show(self, *args: Any, **kwargs: Any) -> Any: ...
    def specialize(self, *args: Any, **kwargs: Any) -> Any: ...

class _GradKernel(Generic[P]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def ir(self, *, after: str | None = ...) -> str: ...
    def llvm(self) -> str: ...
    def ptx(self, arch: str = ...) -> str: ...

from diffsim.errors import KernelArithmeticError as KernelArithmeticError
from diffsim.errors import KernelAssertionError as KernelAssertionError
from diffsim.errors import KernelNameError as KernelNameError
from diffsim.errors import KernelOverflowError as KernelOverflowError
from diffsim.errors import KernelSimplicityError as KernelSimplicityError
from diffsim.errors import KernelStateError as KernelStateError
from diffsim.errors import KernelSyntaxError as KernelSyntaxError
from diffsim.errors import KernelTypeError as KernelTypeError
from diffsim.errors import KernelZeroDivisionError as KernelZeroDivisionError
class Layout:
    """How the components of a vector field lie in memory."""
    AOS: str
    SOA: str

class Matrix(_Tensor, Generic[N, M, D]):
    """`ds.Matrix([[a, b], [c, d]])` makes a matrix of numbers, `ds.Matrix([x, y])` a vector."""
    @overload
    def __init__(self, arr: Iterable[Any], dt: DType | None = ...) -> None: ...
    @overload
    def __init__(self, *elements: Any) -> None: ...
    @overload
    @staticmethod
    def field(n: int, m: int, dtype: DType | None = ..., shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field: ...
    @overload
    @staticmethod
    def field(*, shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field: ...
    @overload
    @staticmethod
    def ndarray(n: int, m: int, dtype: DType, shape: Any, **options: Any) -> Field: ...
    @overload
    @staticmethod
    def ndarray(*, shape: Any, **options: Any) -> Field: ...
    @staticmethod
    def identity(dt: DType, n: int) -> Matrix[Any, Any, Any]: ...
    @staticmethod
    def diag(dim: int, val: Any) -> Matrix[Any, Any, Any]: ...
    @staticmethod
    def rows(rows: Iterable[Any]) -> Matrix[Any, Any, Any]: ...
    @staticmethod
    def cols(cols: Iterable[Any]) -> Matrix[Any, Any, Any]: ...
    @staticmethod
    def unit(n: int, i: int, dt: DType | None = ...) -> Vector[Any, Any]: ...

    @staticmethod
    def zero(dt: DType, n: int, m: int | None = ...) -> Matrix[Any, Any, Any]: ...
    @staticmethod
    def one(dt: DType, n: int, m: int | None = ...) -> Matrix[Any, Any, Any]: ...

class MatrixField(Field):
    """For `isinstance(x, ds.MatrixField)`: a field of vectors or matrices; made by `ds.Vector.field`."""
class MatrixNdarray(Ndarray):
    """`ds.MatrixNdarray(2, 3, ds.f32, shape)` makes an array of matrices, as `ds.Matrix.ndarray` does."""
    def __new__(cls, n: int, m: int, dtype: DType | None, shape: Any) -> Self: ...
from diffsim.errors import MissingGradientError as MissingGradientError
from diffsim.errors import MissingPackageError as MissingPackageError
class Ndarray(Field):
    """For `isinstance(x, ds.Ndarray)`: an array, made by `ds.ndarray` and its like."""
from diffsim.errors import OperationError as OperationError
from diffsim.errors import OptionError as OptionError
from diffsim.errors import OutOfMemoryError as OutOfMemoryError
class PrecisionLoss(Exception):
    """A value is stored into a narrower type."""
class ScalarField(Field):
    """For `isinstance(x, ds.ScalarField)`: a field of numbers, made by `ds.field`; or a component."""
class ScalarNdarray(Ndarray):
    """`ds.ScalarNdarray(ds.f32, shape)` makes an array of numbers, as `ds.ndarray` does."""
    def __new__(cls, dtype: DType | None, arr_shape: Any) -> Self: ...
class ScopedTimer:
    """Measures the time of a block, and prints it."""
    def __init__(self, name: str, active: bool = ..., print: bool = ..., dict: dict[str, list[float]] | None = ..., synchronize: bool = ...) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None: ...
    elapsed: Any
from diffsim.errors import SolveError as SolveError

@dataclass_transform()
class Struct:
    """`ds.Struct(pos=p, mass=1.0)` makes a struct, `ds.Struct.field({"mass": ds.f32}, shape=n)` a field."""
    def __init__(self, members: Mapping[str, Any] = ..., **more: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def to_dict(self) -> dict[str, Any]: ...
    @overload
    @classmethod
    def field(cls, members: Mapping[str, Any], methods: Any = ..., shape: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField: ...
    @overload
    @classmethod
    def field(cls, *, shape: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField: ...

class StructField:
    """A field whose elements are structs; made by `Particle.field(shape=n)` or `ds.Struct.field`."""
    def __getattr__(self, name: str) -> Any: ...
    def __array__(self, dtype: DType | None = ..., copy: bool | None = ...) -> Any: ...
    def __contains__(self, thing: Any) -> bool: ...
    def __getitem__(self, key: Any) -> Any: ...
    def __iter__(self) -> Any: ...
    def __len__(self) -> int: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def copy_from(self, other: StructField) -> None:
        """Copy another field of the same shape and type."""
    @property
    def dual(self) -> StructField:
        """The duals of the members that have one."""
    def fill(self, val: Any) -> None:
        """Set all elements: to a struct, or all numbers to one number."""
    def from_numpy(self, array_dict: Mapping[str, object]) -> None:
        """Copy an array for each member, by name, into the field; members left out stay as they are."""
    def from_torch(self, array_dict: Mapping[str, Any]) -> None:
        """Copy a tensor of PyTorch for each member, by name; members left out stay as they are."""
    def get_member_field(self, key: str) -> Any:
        """Return the field of a member, by its name."""
    @property
    def grad(self) -> Any: ...
    @property
    def keys(self) -> list[str]:
        """The names of the members."""
    @property
    def name(self) -> str:
        """The name of the field."""
    @property
    def needs_dual(self) -> bool:
        """Whether a member was declared with tangents, for forward mode."""
    @property
    def needs_grad(self) -> bool:
        """Whether a member was declared with a gradient."""
    def parent(self, n: int = ...) -> Any:
        """Return the node of the layout tree that the field is placed in; the n-th around it."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
    @property
    def snode(self) -> Any:
        """The field itself: its place in the tree, whose `parent()` is the node around it."""
    def to_numpy(self) -> dict[str, Any]:
        """Return a copy: an array for each member, by name."""
    def to_torch(self, device: Any = ...) -> dict[str, Any]:
        """Return a copy: a tensor of PyTorch for each member, by name."""
TRACE: str
class Tape:
    """Records what runs inside `with`, for gradients."""
    def __init__(self, loss: Field | None = ..., clear_gradients: bool = ..., validation: bool = ..., grad_check: Sequence[Field] | Field | None = ..., *, in_place: str | None = ..., retain_grad: bool | Field | Sequence[Field] = ..., check_nan: bool | str = ...) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None: ...
    def backward(self, loss: Any = ..., grads: Mapping[Field, Any] | None = ...) -> None:
        """Run the adjoints of everything recorded, last first."""
    @property
    def gradients(self) -> dict[Field, Field]:
        """For each field on the tape that has one, its gradient."""
    def on_backward(self, hook: Any) -> Any:
        """Call a function after the adjoint of each launch, last launch first; also a decorator."""
    def record_func(self, backward: Callable[[], Any], arrays: Sequence[Field]) -> None:
        """Record a function that the backward pass calls at this place."""
    def record_scope_begin(self, scope_name: str, metadata: Mapping[str, Any] | None = ...) -> None:
        """Begin a group of entries, for `visualize`; `metadata`: what its frame shows beside its name."""
    def record_scope_end(self, remove_scope_if_empty: bool = ...) -> None:
        """End the group begun last; one that nothing was recorded in is drawn only if this is False."""
    def replay(self, **arguments: Any) -> None:
        """Run everything recorded again, in order, from what the fields hold now."""
    def reset(self) -> None:
        """Forget what was recorded, and set the gradients to 0."""
    def save(self, filename: str) -> None:
        """Write the tape to a file, for `ds.load_tape` in another process or on another machine."""
    def stats(self) -> Any:
        """Count what the tape holds."""
    def visualize(self, filename: str | None = ..., simplify_graph: bool = ..., hide_readonly_arrays: bool = ..., array_labels: Mapping[Any, str] | None = ..., choose_longest_node_name: bool = ..., ignore_graph_scopes: bool = ..., track_inputs: Sequence[Any] | None = ..., track_outputs: Sequence[Any] | None = ..., track_input_names: Sequence[str] | None = ..., track_output_names: Sequence[str] | None = ..., graph_direction: str = ...) -> Any:
        """Draw the recorded launches and the fields between them, as a graph."""
    def zero(self) -> None:
        """Set all gradients on the tape to 0."""
from diffsim.errors import UnknownAttributeError as UnknownAttributeError

class Vector(_Tensor, Generic[N, D]):
    """`ds.Vector([x, y, z])` makes a vector (a `ds.Matrix` of one axis)."""
    @overload
    def __init__(self, arr: Iterable[Any], dt: DType | None = ...) -> None: ...
    @overload
    def __init__(self, *elements: Any) -> None: ...
    @overload
    @staticmethod
    def field(n: int, dtype: DType | None = ..., shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field: ...
    @overload
    @staticmethod
    def field(*, shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field: ...
    @overload
    @staticmethod
    def ndarray(n: int, dtype: DType, shape: Any, **options: Any) -> Field: ...
    @overload
    @staticmethod
    def ndarray(*, shape: Any, **options: Any) -> Field: ...

    @staticmethod
    def zero(dt: DType, n: int) -> Vector[Any, Any]: ...
    @staticmethod
    def one(dt: DType, n: int) -> Vector[Any, Any]: ...

    @staticmethod
    def unit(n: int, i: int, dt: DType | None = ...) -> Vector[Any, Any]: ...

class VectorNdarray(Ndarray):
    """`ds.VectorNdarray(3, ds.f32, shape)` makes an array of vectors, as `ds.Vector.ndarray` does."""
    def __new__(cls, n: int, dtype: DType | None, shape: Any) -> Self: ...
WARN: str
def abs(x: Any) -> Any:
    """Absolute value; derivative 0 at 0."""
def acos(x: Any) -> Any:
    """Arc cosine [rad]; derivative 0 at -1 and 1."""
def activate(node: Any, indices: Any) -> Any:
    """Make a cell of a sparse node active, and those around it."""
from diffsim import ad as ad
adjoint: Any
from diffsim import algorithms as algorithms
amdgpu: Arch
def append(node: Any, indices: Any, val: Any) -> Any:
    """Append a value to a list of a dynamic node; returns its index in the list."""
arm64: Arch
def asin(x: Any) -> Any:
    """Arc sine [rad]; derivative 0 at -1 and 1."""
def assume_in_range(val: Any, base: Any, low: Any, high: Any) -> Any:
    """Taichi's promise that a value lies in a range: the value itself, as the compiler finds ranges."""
def atan(x: Any) -> Any:
    """Arc tangent [rad]."""
def atan2(x1: Any, x2: Any) -> Any:
    """Angle [rad] of the point (x2, x1), as in atan2(y, x); derivative 0 at the origin."""
def atomic_add(x: Any, y: Any) -> Any:
    """Atomically add v to an element of a field, and return its value before: `ds.atomic_add(x[i], v)`."""
def atomic_and(x: Any, y: Any) -> Any:
    """Atomically store the bitwise and of v and an element of a field, and return its value before: `ds.atomic_and(x[i], v)`."""
def atomic_max(x: Any, y: Any) -> Any:
    """Atomically store the larger of v and an element of a field, and return its value before: `ds.atomic_max(x[i], v)`."""
def atomic_min(x: Any, y: Any) -> Any:
    """Atomically store the smaller of v and an element of a field, and return its value before: `ds.atomic_min(x[i], v)`."""
def atomic_mul(x: Any, y: Any) -> Any:
    """Atomically multiply by v an element of a field, and return its value before: `ds.atomic_mul(x[i], v)`."""
def atomic_or(x: Any, y: Any) -> Any:
    """Atomically store the bitwise or of v and an element of a field, and return its value before: `ds.atomic_or(x[i], v)`."""
def atomic_sub(x: Any, y: Any) -> Any:
    """Atomically subtract v from an element of a field, and return its value before: `ds.atomic_sub(x[i], v)`."""
def atomic_xor(x: Any, y: Any) -> Any:
    """Atomically store the bitwise exclusive or of v and an element of a field, and return its value before: `ds.atomic_xor(x[i], v)`."""
def axes(*numbers: int) -> Axes:
    """Return the axes with these numbers, 0 the first."""
def bit_cast(obj: Any, dtype: DType | None) -> Any:
    """The value in another type of the same width with the same bits: `ds.bit_cast(1.0, ds.i32)` is 0x3f800000. A gradient by a float whose bits are taken is refused."""
def bit_sar(a: Any, n: Any) -> Any:
    """The bits of a shifted right by n, with the sign moved in: a >> n."""
def bit_shl(a: Any, n: Any) -> Any:
    """The bits of a shifted left by n: a << n."""
def bit_shr(x1: Any, x2: Any) -> Any:
    """x1 shifted right by x2 bits, with zeros moved in whatever its sign; 0 where all are shifted out."""
def block_local(*args: Any) -> Any:
    """Taichi's hint to keep a field in the shared memory of a GPU's blocks; it changes nothing, as the compiler decides."""
def cache_read_only(*args: Any) -> Any:
    """Taichi's hint to read a field through a GPU's read-only cache; it changes nothing, as the compiler decides."""
def cast(obj: Any, dtype: DType | None) -> Any:
    """The value in another scalar type; vectors and matrices element by element."""
def ceil(x: Any, dtype: DType | None = ...) -> Any:
    """Smallest whole number not below."""
def clear_all_dual() -> None:
    """Set the duals of all fields to 0: the tangents that forward mode computes (`ds.ad.FwdMode`)."""
def clear_all_gradients() -> None:
    """Set the gradients of all fields to 0."""
def clone(x: Any, needs_grad: bool | None = ...) -> Any:
    """Make a new field of the same shape, type and values; on a tape a copy that is differentiated."""
def copy(dst: Any, src: Any, *, dest_offset: int = ..., src_offset: int = ..., count: int | None = ...) -> None:
    """Copy the elements of one field (or array) into another; differentiated on a tape."""
def cos(x: Any) -> Any:
    """Cosine of x [rad]."""
def cosh(x: Any) -> Any:
    """Hyperbolic cosine."""
cpu: Arch
cuda: Arch
def data_oriented(cls: C) -> C:
    """Decorate a class whose methods are kernels or funcs."""

@dataclass_transform()
def dataclass(cls: type[T]) -> type[T]:
    """Decorate a class whose annotations are the members of a struct, and its functions methods."""

def deactivate(node: Any, indices: Any) -> Any:
    """Make a cell of a sparse node inactive: its elements are 0 from now on. Of a dynamic: empty a list."""
def deactivate_all_snodes() -> None:
    """Make all cells of all sparse trees inactive."""
def device_info() -> str:
    """Return what kernels run on, in words; for a GPU also whose context: libcuda's own, or pycuda's."""
def diagonal_map(f: Any, A: Any) -> Any:
    """f of a diagonal matrix: `U @ ds.diagonal_map(f, sigma) @ V.transpose()` after a `ds.svd`."""
def digamma(x: Any) -> Any:
    """Derivative of lgamma; infinite at 0, NaN at -1, -2, ..."""
dx11: Arch
dx12: Arch
def eig(A: Any, dt: DType | None = ...) -> Any:
    """Eigenvalues and right eigenvectors of a 2 x 2 matrix of floats, which may be complex."""
def erf(x: Any) -> Any:
    """Error function."""
def erfc(x: Any) -> Any:
    """1 - erf(x), exact where erf(x) is nearly 1."""
from diffsim import errors as errors
def exp(x: Any) -> Any:
    """Exponential."""
def exp2(x: Any) -> Any:
    """2 to the power x."""
f16: TypeAlias = float
f32: TypeAlias = float
f64: TypeAlias = float

@overload
def field(dtype: DType | None = ..., shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field:
    """Make a field of numbers, vectors or matrices."""
@overload
def field(dtype: type[Any], shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField: ...

float16: TypeAlias = float
float32: TypeAlias = float
float64: TypeAlias = float
def floor(x: Any, dtype: DType | None = ...) -> Any:
    """Largest whole number not above."""
def from_dlpack(array: Any) -> np.ndarray:
    """Return an array in the memory of another library's, or of a field, without a copy."""

def func(fn: F) -> F:
    """Decorate a function so that kernels (and other funcs) can call it."""

def func_grad(func: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function as the gradient of a func."""
def func_native(text: Any, adj_text: Any = ..., replay_text: Any = ...) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function without a body: what it computes is written in LLVM's language."""
def func_replay(func: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that stands in for a func where an adjoint needs its result again."""
gles: Arch
gpu: Arch
def grad(func: Any) -> Any:
    """The gradient of a func inside a kernel: `ds.grad(f)(x, y)` is (df/dx, df/dy), one for each float argument; a func of several results, or of vectors, takes their adjoints after its arguments."""
def grouped(x: Any) -> Any:
    """The indices of a field or ndrange as one vector: `for I in ds.grouped(x): x[I] = 0`."""
def hex_to_rgb(color: int) -> tuple[float, float, float]:
    """Return red, green and blue, between 0 and 1, of a colour 0xRRGGBB."""
i: Axes
i16: TypeAlias = int
i32: TypeAlias = int
i64: TypeAlias = int
i8: TypeAlias = int
ij: Axes
ijk: Axes
ijkl: Axes
ijl: Axes
ik: Axes
ikl: Axes
il: Axes
def init(arch: Arch | Sequence[Arch] | None = ..., default_fp: DType | None = ..., default_ip: DType | None = ..., *, debug: bool = ..., strict: bool = ..., fast_math: bool = ..., random_seed: int = ..., cpu_max_num_threads: int = ..., offline_cache: bool = ..., offline_cache_file_path: str = ..., rules: str = ..., kernel_simplicity: str = ..., device: int = ..., device_scratch_size: int = ..., default_gpu_block_dim: int = ..., deterministic: bool = ..., traceback: str = ..., check_nan: bool | str | None = ..., kernel_profiler: bool = ..., log_level: str = ...) -> None:
    """Start (or start anew) with these options. Fields made before stay usable."""
int16: TypeAlias = int
int32: TypeAlias = int
int64: TypeAlias = int
int8: TypeAlias = int
def is_active(node: Any, indices: Any) -> Any:
    """Whether a cell of a sparse node is active."""
def is_logging_effective(level: str) -> bool:
    """Return whether something of this level is said."""
def isinf(x: Any) -> Any:
    """Whether it is infinite."""
def isnan(x: Any) -> Any:
    """Whether it is not a number."""
j: Axes
from diffsim import jax as jax
jk: Axes
jkl: Axes
jl: Axes
k: Axes

@overload
def kernel(fn: Callable[P, R]) -> Kernel[P, R]:
    """Decorate a function so that it is compiled and run over fields."""
@overload
def kernel(fn: None = ..., *, simplicity: str | None = ...) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...

kl: Axes
l: Axes
def length(node: Any, indices: Any) -> Any:
    """The length of a list of a dynamic node."""
def lgamma(x: Any) -> Any:
    """Logarithm of the absolute value of the gamma function; infinite at 0, -1, -2, ..."""
from diffsim import linalg as linalg
def load(path: Any, /, *fields: Any, **named: Any) -> None:
    """Read the values of fields from a file that `ds.save` has written."""
def load_tape(filename: str) -> Any:
    """Load a tape that `tape.save` wrote, with its fields."""
def log(x: Any) -> Any:
    """Natural logarithm."""
def log2(x: Any) -> Any:
    """Logarithm to the base 2."""
def logical_and(*operands: Any) -> Any:
    """Whether all are true, element by element; all of them are evaluated."""
def logical_not(a: Any) -> Any:
    """Whether it is false, element by element."""
def logical_or(*operands: Any) -> Any:
    """Whether any is true, element by element; all of them are evaluated."""
def loop_config(*, block_dim: Any = ..., serialize: Any = ..., parallelize: Any = ..., block_dim_adaptive: Any = ..., bit_vectorize: Any = ..., name: Any = ..., independent: Any = ...) -> Any:
    """Options of the kernel's next outermost loop. `serialize=True` runs its iterations in order. `block_dim=n` gives the blocks of its GPU launch, and of its adjoint's, n threads: a multiple of 32 up to 1024, or a power of two; `ds.init(default_gpu_block_dim=n)` is for loops that do not say. That changes nothing on the CPU. `independent=True` is your word, for the gradient, that no two iterations touch one element unless both add to it; `debug=True` checks it. `parallelize`, `block_dim_adaptive`, `bit_vectorize` and `name`, which Taichi knows, change nothing at all."""
def loop_unique(val: Any, covers: Any = ...) -> Any:
    """Taichi's promise that a value is another one in each iteration: the value itself. For gradients `ds.loop_config(independent=True)` promises it, which `debug=True` checks."""
from diffsim import math as math
def max(*args: Any) -> Any:
    """Larger of two; at a tie the derivative goes to the first."""
def mesh_local(*args: Any) -> Any:
    """Taichi's hint to keep attributes of a mesh in the shared memory of a GPU's blocks; it changes nothing, as the compiler decides."""
metal: Arch
def min(*args: Any) -> Any:
    """Smaller of two; at a tie the derivative goes to the first."""
def ndarray(dtype: DType | None, shape: Any, needs_grad: bool = ..., needs_dual: bool = ...) -> Field:
    """Make an array for arguments annotated `ds.types.ndarray()`; used from Python like a field."""
def ndrange(*args: Any) -> Any:
    """All index tuples of a box: `for i, j in ds.ndrange(n, (1, m))`; the outermost one runs in parallel."""
def no_activate(*args: Any) -> Any:
    """A promise that stores in this loop reach active elements of a sparse field: taken, and not needed."""
def one(x: Any) -> Any:
    """1 of the type of a value, in every element: `ds.one(x)`."""
opengl: Arch
from diffsim import optim as optim
def polar_decompose(A: Any, dt: DType | None = ...) -> Any:
    """R, S with A = R @ S, R orthogonal and S symmetric, for 2 x 2 and 3 x 3 matrices of floats."""
def pow(base: Any, exponent: Any) -> Any:
    """base to the power exponent. Where a derivative has no finite value (base = 0 with exponent < 1, the logarithm at base <= 0) it is 0."""
from diffsim import profiler as profiler

def pyfunc(fn: F) -> F:
    """Decorate a function that kernels call, and Python as well."""

python: Arch
def randn(dt: DType | None = ...) -> Any:
    """A random number with the standard normal distribution (G. E. P. Box, M. E. Muller, 1958)."""
def random(dtype: DType | None = ...) -> Any:
    """A random number: floats uniform in [0, 1), integers over their whole range. The sequence depends on `ds.init(random_seed=...)`, the launch and the loop index alone; an adjoint draws the same numbers."""
def raw_div(x1: Any, x2: Any) -> Any:
    """The quotient as C has it: of integers rounded towards 0, and 0 where x2 is 0; of floats x1 / x2."""
def raw_mod(x1: Any, x2: Any) -> Any:
    """Integer remainder with the sign of x1, as in C; 0 if x2 is 0."""

def real_func(fn: F) -> F:
    """Decorate a function for kernels whose parameters and result all have types."""

def rescale_index(a: Any, b: Any, I: Any) -> Any:
    """The index at the resolution of another field or node: of the block that an element is in."""
def reset() -> None:
    """Forget compiled kernels, options and the layout tree; fields stay usable."""
def rgb_to_hex(c: Sequence[float] | np.ndarray) -> Any:
    """Return the colour 0xRRGGBB of red, green and blue between 0 and 1; arrays of them give an array."""
root: Node
def round(x: Any, dtype: DType | None = ...) -> Any:
    """Nearest whole number, halves to even."""
def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
def save(path: Any, /, *fields: Any, **named: Any) -> None:
    """Write the values of fields to a file, which `ds.load` and `numpy.load` read."""
def select(cond: Any, x1: Any, x2: Any) -> Any:
    """x1 where cond holds, else x2; both are evaluated."""
def set_logging_level(level: str) -> None:
    """Choose what is said: ds.TRACE, DEBUG, INFO, WARN (warnings too), ERROR (errors only) or CRITICAL."""
def sign(x: Any) -> Any:
    """-1, 0 or 1; NaN of NaN."""
def sin(x: Any) -> Any:
    """Sine of x [rad]."""
def sinh(x: Any) -> Any:
    """Hyperbolic sine."""
def solve(A: Any, b: Any, dt: DType | None = ...) -> Any:
    """The x with A x = b, of a square matrix up to 6 x 6 and a vector or matrix (Gaussian elimination)."""
def sqrt(x: Any) -> Any:
    """Square root; derivative 0 at 0."""

@overload
def static(x: T, /) -> T:
    """Evaluate while compiling: unrolls `for i in ds.static(range(3))`, decides `if ds.static(flag)`."""
@overload
def static(x: Any, *xs: Any) -> tuple[Any, ...]: ...

def static_assert(cond: Any, msg: Any = ...) -> Any:
    """Refuse to compile the kernel where a condition that is known before the launch does not hold: `ds.static_assert(x.shape[0] > 1, "x is too short")`."""
def static_print(*args: Any, sep: Any = ..., end: Any = ...) -> Any:
    """Print while the kernel is compiled: constants as Python does, other values by their type."""
def stop_grad(x: T) -> T:
    """The value itself, with derivative 0."""
def svd(A: Any, dt: DType | None = ...) -> Any:
    """U, sigma, V with A = U @ sigma @ V.transpose(), for 2 x 2 and 3 x 3 matrices of floats."""
def sym_eig(A: Any, dt: DType | None = ...) -> Any:
    """Eigenvalues (a vector) and eigenvectors (the columns of a rotation) of a symmetric matrix of floats."""
def sym_map(f: Any, A: Any) -> Any:
    """f of a symmetric matrix: its eigenvectors, and f of its eigenvalues."""
def sync() -> None:
    """Wait until all launches are done (on the CPU they always are)."""
def tan(x: Any) -> Any:
    """Tangent of x [rad]."""
def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
template: TypeAlias = Any
from diffsim import tools as tools
from diffsim import torch as torch
def trigamma(x: Any) -> Any:
    """Derivative of digamma; infinite at 0, -1, -2, ..."""
def trunc(x: Any, dtype: DType | None = ...) -> Any:
    """Whole part, rounded towards zero."""
from diffsim import types as types
u1: TypeAlias = bool
u16: TypeAlias = int
u32: TypeAlias = int
u64: TypeAlias = int
u8: TypeAlias = int
from diffsim import ui as ui
uint16: TypeAlias = int
uint32: TypeAlias = int
uint64: TypeAlias = int
uint8: TypeAlias = int
vulkan: Arch
x64: Arch
x86_64: Arch
def zero(x: Any) -> Any:
    """0 of the type of a value, in every element: `ds.zero(x)`."""
class _Tensor:
    """A small vector or matrix of numbers."""
    def __abs__(self) -> Matrix: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __and__(self, other: Any, /) -> Any: ...
    def __array__(self, dtype: DType | None = ..., copy: bool | None = ...) -> np.ndarray: ...
    def __bool__(self) -> bool: ...
    def __floordiv__(self, other: Any, /) -> Any: ...
    def __ge__(self, other: Any, /) -> Any: ...
    def __getitem__(self, index: Any) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __invert__(self) -> Any: ...
    def __iter__(self) -> Any: ...
    def __le__(self, other: Any, /) -> Any: ...
    def __len__(self) -> int: ...
    def __lshift__(self, other: Any, /) -> Any: ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __matmul__(self, other: Any, /) -> Any: ...
    def __mod__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __or__(self, other: Any, /) -> Any: ...
    def __pos__(self) -> Any: ...
    def __pow__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __rand__(self, other: Any, /) -> Any: ...
    def __rfloordiv__(self, other: Any, /) -> Any: ...
    def __rlshift__(self, other: Any, /) -> Any: ...
    def __rmatmul__(self, other: Any, /) -> Any: ...
    def __rmod__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __ror__(self, other: Any, /) -> Any: ...
    def __rpow__(self, other: Any, /) -> Any: ...
    def __rrshift__(self, other: Any, /) -> Any: ...
    def __rshift__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __rxor__(self, other: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: Any) -> None: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __xor__(self, other: Any, /) -> Any: ...
    def all(self) -> Any:
        """Whether all elements are true, or not 0: `(a < b).all()`."""
    def any(self) -> Any:
        """Whether any element is true, or not 0: `(a < b).any()`."""
    def cast(self, dtype: DType) -> Any: ...
    def cross(self, other: Any) -> Any:
        """Vector product of two 3-vectors; of two 2-vectors its (scalar) third component."""
    def determinant(self) -> Any:
        """Determinant of a matrix up to 4 x 4 (expansion by minors)."""
    def dot(self, other: Any) -> Any:
        """Scalar product of two vectors (of two matrices: sum of the products of their elements)."""
    def fill(self, val: Any) -> None:
        """Set all elements."""
    def get_shape(self) -> tuple[int, ...]:
        """Return `shape`, as Taichi's programs ask for it."""
    def inverse(self) -> Any:
        """Inverse of a matrix up to 4 x 4 (adjugate over determinant)."""
    @property
    def m(self) -> int:
        """Number of columns (1 of a vector)."""
    def max(self) -> Any:
        """Largest element."""
    def min(self) -> Any:
        """Smallest element."""
    @property
    def n(self) -> int:
        """Number of rows (of elements, of a vector)."""
    @property
    def ndim(self) -> int:
        """1 of a vector, 2 of a matrix."""
    def norm(self, eps: Any = ...) -> Any:
        """sqrt(norm_sqr() + eps); its derivative at 0 is 0."""
    def norm_inv(self, eps: Any = ...) -> Any:
        """1 / norm(eps)."""
    def norm_sqr(self, eps: Any = ...) -> Any:
        """Sum of the squares of the elements, plus eps."""
    def normalized(self, eps: Any = ...) -> Any:
        """The vector divided by (norm() + eps)."""
    def outer_product(self, other: Any) -> Any:
        """Matrix of the products a[i] * other[j]."""
    @property
    def shape(self) -> tuple[int, ...]:
        """(n,) of a vector, (n, m) of a matrix."""
    def sum(self) -> Any:
        """Sum of all elements."""
    def to_list(self) -> list[Any]:
        """Return the elements as (nested) lists of Python numbers."""
    def to_numpy(self) -> np.ndarray:
        """Return a copy as a NumPy array."""
    def trace(self) -> Any:
        """Sum of the diagonal."""
    def transpose(self) -> Any:
        """Matrix with rows and columns exchanged."""
    @property
    def w(self) -> Any:
        """Element 3."""
    @w.setter
    def w(self, value: Any) -> None: ...
    @property
    def x(self) -> Any:
        """Element 0."""
    @x.setter
    def x(self, value: Any) -> None: ...
    @property
    def y(self) -> Any:
        """Element 1."""
    @y.setter
    def y(self, value: Any) -> None: ...
    @property
    def z(self) -> Any:
        """Element 2."""
    @z.setter
    def z(self, value: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __call__(self, *elements: Any) -> Any: ...
class Arch:
    """A backend, chosen by `ds.init(arch=ds.cuda)`."""
    name: str
class Axes:
    """One or several axes: `ds.i`, `ds.ij`, `ds.axes(0, 1)`."""
    def __init__(self, *numbers: int) -> None: ...
class Node:
    """A node of the tree: some axes with their sizes, inside another node."""
    fields: Any
    def bitmasked(self, axes: Axes, dimensions: Any) -> Node:
        """Divide each element into an array whose cells are active or not."""
    @property
    def bytes_in_use(self) -> int:
        """How much memory the fields placed here or below take, with their gradients and masks."""
    def deactivate_all(self) -> None:
        """Make all cells of this node inactive, and those below: their elements are 0 from now on."""
    def dense(self, axes: Axes, dimensions: Any) -> Node:
        """Divide each element into a dense array."""
    def dynamic(self, axis: Axes, dimension: Any, chunk_size: Any = ...) -> Node:
        """Divide each element into a list, whose length changes."""
    finalized: bool
    def lazy_dual(self) -> None:
        """Give a dual, for forward mode, to every float field placed below this node."""
    def lazy_grad(self) -> None:
        """Give a gradient to every float field placed below this node."""
    def parent(self, n: int = ...) -> Node:
        """Return the node around this one, or the n-th from here outwards."""
    def place(self, *args: Any, offset: Any = ...) -> Node:
        """Allocate fields (and their gradients, if any) with the axes of this node."""
    def pointer(self, axes: Axes, dimensions: Any) -> Node:
        """Divide each element into an array whose cells are active or not."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells along each axis that it or a node above it divides."""
__version__: str

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
