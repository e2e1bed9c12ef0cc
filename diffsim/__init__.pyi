"""diffsim: differentiable physics in pure Python. `import diffsim as ds`."""

# Made by tools/write_stubs.py of what the package says: change that, and run it.

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
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
    """A field; made by `ds.field`, `ds.Vector.field` and `ds.Matrix.field`.

    Attributes:
        shape: number of elements along each axis; () for a single one.
        dtype: scalar type of its elements (of their components).
        grad: the field of its gradient; None without `needs_grad`.
        dual: the field of its tangent, in forward mode; an error without `needs_dual`.

    Example:
        x = ds.field(ds.f32, shape=(4, 8), needs_grad=True)
        x[1, 2] = 3.0
        print(x[1, 2], x.shape, x.dtype)  # prints: 3.0 (4, 8) f32
        print(x.grad.to_numpy().sum(), isinstance(x, ds.Field))  # prints: 0.0 True
    """
    def __array__(self, dtype: DType | None = ..., copy: bool | None = ...) -> np.ndarray: ...
    def __contains__(self, thing: Any) -> bool: ...
    def __dlpack__(self, *, max_version: tuple[int, int] | None = ..., dl_device: tuple[int, int] | None = ..., copy: bool | None = ..., stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __getitem__(self, key: Any) -> Any: ...
    def __iter__(self) -> Any: ...
    def __len__(self) -> int: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis; () for a single one.

        Example:
            print(ds.field(ds.f32, shape=(4, 8)).shape)  # prints: (4, 8)
        """
    dtype: Any
    @property
    def grad(self) -> Field: ...
    @property
    def dual(self) -> Field: ...
    def assign(self, source: Any) -> None:
        """Copy a field (differentiated on a tape) or an array of the same shape.

        Example:
            x = ds.field(ds.f32, shape=3)
            x.assign(np.array([1.0, 2.0, 3.0], dtype=np.float32))
            print(x[2])  # prints: 3.0
        """
    def copy_from(self, other: Field) -> None:
        """Copy another field of the same shape and element shape; differentiated on a tape.

        Raises:
            FieldError: something else, or another shape.

        Example:
            x, y = ds.field(ds.f32, shape=3), ds.field(ds.f32, shape=3)
            x[0] = 1.5
            y.copy_from(x)
            print(y[0])  # prints: 1.5
        """
    @property
    def element_shape(self) -> tuple[int, ...]:
        """The shape of an element: () of numbers, (n,) of vectors, (n, m) of matrices.

        Example:
            print(ds.Matrix.field(2, 3, ds.f32, shape=4).element_shape)  # prints: (2, 3)
        """
    def fill(self, val: Any) -> None:
        """Set every element (of a vector field: to a number, or to a vector).

        Raises:
            DtypeError: a value that is no element of the field.

        Example:
            x = ds.Vector.field(2, ds.f32, shape=3)
            x.fill([1.0, 2.0])
            print(x[2])  # prints: [1.0, 2.0]
        """
    def from_numpy(self, arr: Any) -> None:
        """Copy an array of shape `field.shape` + shape of one element into the field.

        Raises:
            FieldError: an array of another shape.
            DtypeError: numbers that the type of the field cannot hold.

        Example:
            x = ds.field(ds.f32, shape=3)
            x.from_numpy(np.array([1.0, 2.0, 3.0], dtype=np.float32))
            print(x[2])  # prints: 3.0
        """
    def from_torch(self, arr: Any) -> None:
        """Copy a tensor of PyTorch, of shape `field.shape` + shape of one element, into the field.

        Example:
            import torch

            x = ds.field(ds.f32, shape=3)
            x.from_torch(torch.tensor([1.0, 2.0, 3.0]))
            print(x[2])  # prints: 3.0
        """
    def get_scalar_field(self, *indices: int) -> Field:
        """Return a component of the elements as a field of numbers that shares their memory."""
    @property
    def m(self) -> int:
        """Columns of an element (1 for scalars and vectors).

        Example:
            print(ds.Matrix.field(2, 3, ds.f32, shape=4).m)  # prints: 3
        """
    def mark_written(self) -> None:
        """Tell that code outside diffsim has written to the field's memory, as Python's writes do.

        Example:
            x = ds.field(ds.f32, shape=3)
            np.from_dlpack(x)[0] = 2.0  # the same memory, behind diffsim's back
            x.mark_written()
            print(x[0])  # prints: 2.0
        """
    @property
    def n(self) -> int:
        """Rows of an element (1 for scalars).

        Example:
            print(ds.Matrix.field(2, 3, ds.f32, shape=4).n)  # prints: 2
        """
    @property
    def name(self) -> str:
        """The name given, or that of a variable, as far as there is one.

        Example:
            x = ds.field(ds.f32, shape=3, name="heat")
            print(x.name)  # prints: heat
        """
    @property
    def needs_dual(self) -> bool:
        """Whether it was declared with tangents, for forward mode.

        Example:
            print(ds.field(ds.f32, shape=3, needs_dual=True).needs_dual)  # prints: True
        """
    @property
    def needs_grad(self) -> bool:
        """Whether it was declared with a gradient.

        Example:
            print(ds.field(ds.f32, shape=3, needs_grad=True).needs_grad)  # prints: True
        """
    def parent(self, n: int = ...) -> Any:
        """Return the node of the layout tree that the field is placed in; the n-th around it.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.dense(ds.i, 4)
            blocks.dense(ds.i, 8).place(x)
            print(x.shape, x.parent().shape, x.parent(2).shape)  # prints: (32,) (32,) (4,)
        """
    @property
    def snode(self) -> Any:
        """The field itself: its place in the tree, whose `parent()` is the node around it.

        Example:
            x = ds.field(ds.f32)
            cells = ds.root.dense(ds.i, 4)
            cells.place(x)
            print(x.snode.parent() is cells)  # prints: True
        """
    def to_gpuarray(self) -> Any:
        """Return the field's memory as a `pycuda.gpuarray.GPUArray`, without a copy (axes: `to_numpy()`).

        Example:
            import pycuda.autoinit

            ds.init(arch=ds.cuda)
            print(ds.field(ds.f32, shape=3).to_gpuarray().shape)  # prints: (3,)
        """
    def to_numpy(self, dtype: DType | None = ..., keep_dims: Any = ...) -> np.ndarray:
        """Return a copy: an array of shape `field.shape` + shape of one element.

        Args:
            dtype: the type of the array, of NumPy; that of the field if left out.
            keep_dims: whether vectors and matrices of one column have the shape (n, 1), instead of (n,).

        Example:
            x = ds.Vector.field(2, ds.f32, shape=3)
            a = x.to_numpy()
            print(a.shape, a.dtype)  # prints: (3, 2) float32
        """
    def to_torch(self, device: Any = ..., keep_dims: bool = ...) -> Any:
        """Return a copy as a tensor of PyTorch, on the host or on the device that is named.

        Its shape is that of `to_numpy(keep_dims=...)`. On a tape it is a constant; functions of PyTorch with
        gradients are made by `ds.torch.wrap`.

        Example:
            import torch

            x = ds.field(ds.f32, shape=3)
            print(x.to_torch().dtype)  # prints: torch.float32
        """
from diffsim.errors import FieldError as FieldError
class FieldsBuilder:
    """A layout tree beside `ds.root`: `fb.dense(ds.i, n).place(x)`, then `tree = fb.finalize()`.

    Example:
        builder = ds.FieldsBuilder()
        x = ds.field(ds.f32)
        builder.dense(ds.i, 8).place(x)
        tree = builder.finalize()
        print(x.shape)  # prints: (8,)
        tree.destroy()  # frees the memory of x
    """
    def __init__(self) -> None: ...
    def bitmasked(self, indices: Axes, dimensions: Any) -> Node:
        """Divide each element into an array whose cells are active or not.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.bitmasked(ds.i, 32).place(x)
            builder.finalize()
            x[20] = 1.0  # activates this element
            print(x[20], x[0])  # prints: 1.0 0.0
        """
    @property
    def bytes_in_use(self) -> int:
        """How much memory the fields placed here or below take, with their gradients and masks.

        Example:
            x = ds.field(ds.f32)
            cells = ds.root.dense(ds.i, 8)
            cells.place(x)
            print(cells.bytes_in_use)  # prints: 32
        """
    def deactivate_all(self) -> None:
        """Make all cells of this node inactive, and those below: their elements are 0 from now on.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.pointer(ds.i, 4)
            blocks.dense(ds.i, 8).place(x)
            x[20] = 1.0  # activates block 2
            blocks.deactivate_all()
            print(x[20])  # prints: 0.0
        """
    def dense(self, indices: Axes, dimensions: Any) -> Node:
        """Divide each element into a dense array; see `ds.root.dense`.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.dense(ds.ij, (4, 8)).place(x)
            builder.finalize()
            print(x.shape)  # prints: (4, 8)
        """
    def dynamic(self, index: Axes, dimension: Any, chunk_size: Any = ...) -> Node:
        """Divide each element into a list, whose length changes; see `ds.root.dynamic`.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.i32)
            builder.dense(ds.i, 4).dynamic(ds.j, 8).place(x)
            builder.finalize()
            x[1, 0] = 7  # the list of cell 1 has an element now
            print(x[1, 0], x.shape)  # prints: 7 (4, 8)
        """
    @property
    def empty(self) -> bool:
        """Whether nothing was added yet.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            print(builder.empty)  # prints: True
            builder.dense(ds.i, 8).place(x)
            print(builder.empty)  # prints: False
        """
    def finalize(self, raise_warning: bool = ...) -> Any:
        """Close the tree, and return it; `raise_warning` is taken as Taichi's programs give it.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.dense(ds.i, 8).place(x)
            tree = builder.finalize()
            print(builder.finalized)  # prints: True
        """
    finalized: bool
    def lazy_dual(self) -> None:
        """Give a dual, for forward mode, to every float field placed below this node.

        Example:
            x = ds.field(ds.f32)
            ds.root.dense(ds.i, 8).place(x)
            ds.root.lazy_dual()
            print(x.dual.shape)  # prints: (8,)
        """
    def lazy_grad(self) -> None:
        """Give a gradient to every float field placed below this node.

        Example:
            x = ds.field(ds.f32)
            ds.root.dense(ds.i, 8).place(x)
            ds.root.lazy_grad()
            print(x.grad.shape)  # prints: (8,)
        """
    def parent(self, n: int = ...) -> Node:
        """Return the node around this one, or the n-th from here outwards.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.dense(ds.i, 4)
            cells = blocks.dense(ds.i, 8)
            print(cells.parent() is blocks, blocks.parent() is ds.root)  # prints: True True
        """
    def place(self, *args: Any, offset: Any = ...) -> Node:
        """Allocate fields (and their gradients, if any) with the axes of this node.

        Args:
            args: fields made without a shape.
            offset: the index of the first element, a number for each axis; 0 if left out.

        Example:
            x, v = ds.field(ds.f32), ds.Vector.field(3, ds.f32)
            ds.root.dense(ds.i, 8).place(x, v)
            print(x.shape, v.shape)  # prints: (8,) (8,)
        """
    def pointer(self, indices: Axes, dimensions: Any) -> Node:
        """Divide each element into an array whose cells are active or not.

        Example:
            builder = ds.FieldsBuilder()
            x = ds.field(ds.f32)
            builder.pointer(ds.i, 4).dense(ds.i, 8).place(x)
            builder.finalize()
            x[20] = 1.0  # activates block 2
            print(x[20], x[0])  # prints: 1.0 0.0
        """
    @property
    def root(self) -> Node:
        """The outermost node: the builder itself.

        Example:
            builder = ds.FieldsBuilder()
            print(builder.root is builder)  # prints: True
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells along each axis that it or a node above it divides.

        Example:
            print(ds.root.dense(ds.i, 4).dense(ds.i, 8).shape)  # prints: (32,)
        """
from diffsim.errors import FileError as FileError
class GUI:
    """A canvas in a window, a notebook, a browser or files.

    Positions are in the unit square: (0, 0) is the lower left corner, (1, 1) the upper right one. Radii and
    sizes are in pixels, colours 0xRRGGBB. Positions may be fields, arrays or lists. What is drawn later
    lies above; each `show` ends a frame and clears the canvas.

        gui = ds.GUI("Particles", res=512)
        while gui.running:
            step()
            gui.circles(x, radius=2, color=0xEEEEF0)
            gui.show()

    Without a display the same program writes its frames to a picture, and says where.

    Args:
        name: the title.
        res: pixels, as (width, height) or one number for both.
        background_color: what `show` clears the canvas with.
        show_gui: False: no window and nothing said; `show(file)` writes files.
        fullscreen: fill the screen.
        fast_gui: accepted as Taichi's; every canvas is drawn by compiled code.

    Attributes:
        name, res, background_color: as given.
        frame: how many frames were shown.
        event: what `get_event` has found last.

    Example:
        gui = ds.GUI("Particles", res=64, background_color=0x112F41, show_gui=False)
        gui.circles([[0.5, 0.5], [0.25, 0.75]], radius=5, color=0xFF0000)
        print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        gui.show("particles.png")
    """
    def __init__(self, name: str = ..., res: int | tuple[int, int] = ..., background_color: int = ..., show_gui: bool = ..., fullscreen: bool = ..., fast_gui: bool = ...) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *problem: Any) -> bool | None: ...
    name: Any
    res: Any
    background_color: Any
    @property
    def frame(self) -> int:
        """How many frames were shown.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.show("frame.png")
            print(gui.frame)  # prints: 1
        """
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
        """Draw an arrow from `orig` to `orig + direction`; see `arrows`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.arrow((0, 0), (1, 1), radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def arrow_field(self, direction: Any, radius: Any = ..., color: Any = ..., bound: float = ..., **kwargs: float) -> None:
        """Draw an arrow for each vector of an array of shape (x, y, 2), spread over the canvas.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.arrow_field(np.full((3, 3, 2), 0.2), radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def arrows(self, orig: Any, direction: Any, radius: Any = ..., color: Any = ..., tip_scale: float = ..., angle: float = ...) -> None:
        """Draw arrows.

        Args:
            orig: where they begin, of shape (n, 2).
            direction: from there to their tips.
            radius: half of the lines' width [pixels].
            color: one, or one for each.
            tip_scale: length of the two short lines at a tip, as a part of the arrow's.
            angle: between these lines and the arrow [degrees].

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.arrows([[0, 0], [0, 1]], [[1, 1], [1, -1]], radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def button(self, text: str, event_name: str | None = ...) -> str:
        """Add a button; return the key of its events of type `GUI.PRESS`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.button("Start", event_name="start"))  # prints: start
        """
    def circle(self, pos: Any, color: int = ..., radius: float = ...) -> None:
        """Draw a disc (`radius` in pixels).

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.circle((0.5, 0.5), color=0xFF0000, radius=5)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def circles(self, pos: Any, radius: Any = ..., color: Any = ..., palette: Sequence[int] | None = ..., palette_indices: Any = ...) -> None:
        """Draw discs.

        Args:
            pos: centres, of shape (n, 2).
            radius: one, or one for each [pixels].
            color: one, or one for each.
            palette: colours, from which `palette_indices` chooses one for each disc.
            palette_indices: a field, array or list of n whole numbers.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            x = ds.Vector.field(2, ds.f32, shape=3)
            x.fill(0.5)
            gui.circles(x, radius=5, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def clear(self, color: int | None = ...) -> None:
        """Fill the canvas with a colour, that of the background if none is given.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.clear(0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def close(self) -> None:
        """Close the window and finish films.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.show("film.gif")
            gui.close()
            print(gui.frame)  # prints: 1
        """
    def contour(self, scalar_field: Any, normalize: bool = ...) -> None:
        """Fill the canvas with the colours ("plasma") of a scalar field, stretched to its size.

        Args:
            scalar_field: of two axes; numbers from 0 to 1.
            normalize: whether its least and largest number become 0 and 1.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.contour(np.eye(8))
            print(gui.get_image()[0, 0, 0] > gui.get_image()[0, 63, 0])  # prints: True
        """
    @property
    def fps_limit(self) -> float | None:
        """The most frames a second in a window, 60 at first; None: as many as can be drawn.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.fps_limit = 30
            print(gui.fps_limit)  # prints: 30
        """
    @fps_limit.setter
    def fps_limit(self, value: Any) -> None: ...
    def get_cursor_pos(self) -> tuple[float, float]:
        """Return where the mouse is: (x, y) between 0 and 1.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            x, y = gui.get_cursor_pos()
            print(0 <= x <= 1, 0 <= y <= 1)  # prints: True True
        """
    def get_event(self, *e_filter: Any) -> bool:
        """Return whether there was such an event (as in `get_events`), which is then `gui.event`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.get_event(ds.GUI.PRESS))  # prints: False
        """
    def get_events(self, *e_filter: Any) -> Iterator[Any]:
        """Fetch the events since the last call, in their order.

        Args:
            e_filter: what is asked for: types (`GUI.PRESS`), keys ("a", `GUI.ESCAPE`), pairs of both; all
                events if nothing is given. Events that do not match are dropped.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print([event.key for event in gui.get_events(ds.GUI.PRESS)])  # prints: []
        """
    def get_image(self) -> np.ndarray:
        """Return what was drawn in this frame: (x, y, 4) of f32 from 0 to 1, of 256 levels.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.get_image().shape, gui.get_image().dtype)  # prints: (64, 64, 4) float32
        """
    def get_key_event(self) -> Any:
        """Wait for the next event and return it.

        Example:
            gui = ds.GUI("Keys", res=64, show_gui=False)
            if gui.has_key_event():
                print(gui.get_key_event().key)
        """
    def has_key_event(self) -> bool:
        """Return whether an event waits to be fetched.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.has_key_event())  # prints: False
        """
    def is_pressed(self, *keys: str) -> bool:
        """Return whether one of the keys, or buttons of the mouse, is pressed now.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.is_pressed("a", ds.GUI.LEFT))  # prints: False
        """
    def label(self, text: str) -> Any:
        """Add a label, which shows its title and its `.value`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            loss = gui.label("loss")
            loss.value = 0.5
            print(loss.value)  # prints: 0.5
        """
    def line(self, begin: Any, end: Any, radius: float = ..., color: int = ...) -> None:
        """Draw a segment (`radius`: half of its width in pixels, as in Taichi).

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.line((0, 0), (1, 1), radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def lines(self, begin: Any, end: Any, radius: Any = ..., color: Any = ...) -> None:
        """Draw segments from rows of `begin` to rows of `end`; radii and colours one, or one for each.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.lines([[0, 0], [0, 1]], [[1, 1], [1, 0]], radius=3, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def point_field(self, radius: Any, color: Any = ..., bound: float = ...) -> None:
        """Draw a disc for each element of an array of radii, spread over the canvas.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.point_field(np.full((3, 3), 5.0), color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def rect(self, topleft: Any, bottomright: Any, radius: float = ..., color: int = ...) -> None:
        """Draw the four sides of a rectangle.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.rect((0.25, 0.75), (0.75, 0.25), radius=3, color=0xFF0000)
            print(gui.get_image()[16, 32, :3])  # prints: [1. 0. 0.]
        """
    @property
    def running(self) -> bool:
        """Whether the window is open; True without one, until it is set to False.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            print(gui.running)  # prints: True
            gui.running = False
            print(gui.running)  # prints: False
        """
    @running.setter
    def running(self, value: Any) -> None: ...
    def set_image(self, img: Any) -> None:
        """Fill the canvas with an image.

        Args:
            img: a field or array of shape (x, y), grey, or of 2 to 4 components or a last axis of as many:
                red, green, blue and alpha, which is ignored. The first axis goes to the right, the second
                up. Floats reach from 0 to 1, integers without sign to the largest of their type.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            image = ds.field(ds.f32, shape=(64, 64))
            image.fill(1.0)
            gui.set_image(image)
            print(gui.get_image()[32, 32, 0])  # prints: 1.0
        """
    def show(self, file: str | PathLike[str] | None = ...) -> None:
        """End the frame: show it, or write it, clear the canvas, and let events come in.

        Args:
            file: a picture (.png, .jpg, .bmp, ...), or a film (.gif, .apng, and .mp4 where ffmpeg is), to
                which each `show` of that name appends a frame; it is complete when the canvas is closed or
                the program ends.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            for frame in range(3):
                gui.circle((0.5, 0.5), radius=5 * frame)
                gui.show("film.gif")
            gui.close()  # the film is complete
            print(gui.frame)  # prints: 3
        """
    def slider(self, text: str, minimum: float, maximum: float, step: float | None = ...) -> Any:
        """Add a slider; its `.value` is the number, which the program may set.

        Args:
            text: its title.
            minimum: the value at the left end, which it has at first.
            maximum: the value at the right end.
            step: what values are rounded to, counted from the minimum; if left out, any.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            force = gui.slider("force [N]", 0, 10, step=0.5)
            force.value = 2.5
            print(force.value)  # prints: 2.5
        """
    def text(self, content: str, pos: Any, font_size: float = ..., color: int = ...) -> None:
        """Write a text, of one line or more, below and to the right of `pos` (`font_size` in pixels).

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.text("t = 1 s", pos=(0.1, 0.9), color=0xFF0000)
            print(gui.get_image()[:, :, 0].max() > 0.5)  # prints: True
        """
    def triangle(self, a: Any, b: Any, c: Any, color: int = ...) -> None:
        """Fill a triangle.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.triangle((0, 0), (1, 0), (0.5, 1), color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def triangles(self, a: Any, b: Any, c: Any, color: Any = ...) -> None:
        """Fill triangles, whose corners are rows of `a`, `b` and `c`.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            a, b, c = [[0, 0]], [[1, 0]], [[0.5, 1]]  # a triangle
            gui.triangles(a, b, c, color=0xFF0000)
            print(gui.get_image()[32, 32, :3])  # prints: [1. 0. 0.]
        """
    def vector_field(self, vector_field: Any, arrow_spacing: int = ..., color: Any = ...) -> None:
        """Draw every fifth vector of a field as an arrow, the longest a tenth of the canvas.

        Example:
            gui = ds.GUI("Shapes", res=64, show_gui=False)
            gui.vector_field(np.ones((20, 20, 2)), color=0xFF0000)
            print(gui.get_image()[:, :, 0].max())  # prints: 1.0
        """
from diffsim.errors import GlobalDataAccessError as GlobalDataAccessError
INFO: str
from diffsim.errors import InternalError as InternalError

class Kernel(Generic[P, R]):
    """A compiled function over fields; made by `@ds.kernel`.

    Calling it launches it. `kernel.grad(...)` launches its adjoint, with the arguments of the launch it
    belongs to. `kernel.ir()`, `kernel.llvm()` and `kernel.ptx()` show what became of it, and so do the
    same methods of `kernel.grad`.

    Example:
        x = ds.field(ds.f32, shape=8)

        @ds.kernel
        def double():
            for i in x:
                x[i] = 2.0 * x[i]

        x.fill(1.5)
        double()
        print(x[7], isinstance(double, ds.Kernel))  # prints: 3.0 True
    """
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, obj: None, owner: Any = ...) -> Self: ...
    @overload
    def __get__(self: Kernel[Concatenate[S, Q], R], obj: S, owner: Any = ...) -> Kernel[Q, R]: ...
    @property
    def grad(self) -> _Derivative[P]:
        """The adjoint of this kernel, itself called like a kernel.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            square()
            y.grad[None] = 1.0
            square.grad()
            print(x.grad[None])  # prints: 6.0
        """
    @property
    def jvp(self) -> _Derivative[P]:
        """The kernel with its tangents (forward mode), itself called like a kernel.

        Example:
            x = ds.field(ds.f32, shape=(), needs_dual=True)
            y = ds.field(ds.f32, shape=(), needs_dual=True)
            x[None], x.dual[None] = 3.0, 1.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            square.jvp()
            print(y[None], y.dual[None])  # prints: 9.0 6.0
        """
    def ir(self, after: str = ..., args: tuple[Any, ...] = ...) -> str:
        """Return the kernel in diffsim's IR.

        Args:
            after: the stage: "frontend", "simplify", or one of `pipeline.LOWER`: "scatter_to_gather",
                "scalarize", "reductions", "demote_atomics", "forward_clears", "dce", "privatize", "seams" or
                "vectorize".
            args: arguments of a launch, for a kernel that is compiled for its arguments.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            print(square.ir())
            # prints: kernel square(x: field f32[], y: field f32[]) {
            # prints: ...
        """
    def llvm(self, args: tuple[Any, ...] = ...) -> str:
        """Return the kernel in LLVM IR, as handed to LLVM for the CPU.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            print("fmul" in square.llvm())  # prints: True
        """
    def ptx(self, sm: int = ..., args: tuple[Any, ...] = ...) -> str:
        """Return the kernel as PTX for an NVIDIA GPU of compute capability sm / 10 (needs no GPU).

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            print("mul.f32" in square.ptx(sm=80))  # prints: True
        """
    def show(self, path: Any = ..., args: tuple[Any, ...] = ...) -> None:
        """Show source, IR and adjoint side by side, line by line: a table in notebooks, else text.

        Args:
            path: an HTML file to write instead.
            args: arguments of a launch, for a kernel that is compiled for its arguments.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            square.show()
            # prints: kernel square, ...
            # prints: ...
        """
    def specialize(self, args: tuple[Any, ...], *, by_field: bool = ...) -> Any:
        """Return the kernel compiled for these arguments, compiled now if need be, and what a launch passes.

        Args:
            args: one for each parameter.
            by_field: whether there may be fields in place of floats.

        Example:
            @ds.kernel
            def double(a: ds.f32) -> ds.f32:
                return 2.0 * a

            _, values = double.specialize((3.0,))  # compiled before the first call
            print(values, double(3.0))  # prints: (3.0,) 6.0
        """

class _Derivative(Generic[P]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def ir(self, after: str = ..., args: tuple[Any, ...] = ...) -> str: ...
    def llvm(self, args: tuple[Any, ...] = ...) -> str: ...
    def ptx(self, sm: int = ..., args: tuple[Any, ...] = ...) -> str: ...

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
    """How the components of a vector field lie in memory.

    Example:
        v = ds.Vector.field(3, ds.f32, shape=8, layout=ds.Layout.SOA)  # all x, then all y, then all z
        v[0] = [1.0, 2.0, 3.0]
        print(v[0])  # prints: [1.0, 2.0, 3.0]
    """
    AOS: str
    SOA: str

class Matrix(_Tensor, Generic[N, M, D]):
    """A small vector or matrix of numbers.

    Args:
        arr: the elements: a list, a list of rows, or an array with one or two axes.
        dt: scalar type of the elements; NumPy's choice if left out.

    Operators work element by element; `@` multiplies matrices, and a matrix by a vector. Elements are
    `m[i, j]`, those of a vector also `v.x`, `v.y`, `v.z`, `v.w` and `v.xy`. Without `dt` it adopts the
    precision of what it meets in a kernel.

    Raises:
        ArgumentError: these are no numbers, or rows of different lengths.

    Example:
        m = ds.Matrix([[0.0, -1.0], [1.0, 0.0]])
        print(m @ ds.Vector([1.0, 2.0]), m * 2.0)  # prints: [-2.0, 1.0] [[0.0, -2.0], [2.0, 0.0]]
    """
    @overload
    def __init__(self, arr: Iterable[Any], dt: DType | None = ...) -> None: ...
    @overload
    def __init__(self, *elements: Any) -> None: ...
    @overload
    @staticmethod
    def field(n: int, m: int, dtype: DType | None = ..., shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field:
        """Make a field of n x m matrices (ndim=1: of vectors); see `ds.field` for the other arguments.

        Example:
            F = ds.Matrix.field(2, 3, ds.f32, shape=4)
            print(F[0].shape, F.to_numpy().shape)  # prints: (2, 3) (4, 2, 3)
        """
    @overload
    @staticmethod
    def field(*, shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field: ...
    @overload
    @staticmethod
    def ndarray(n: int, m: int, dtype: DType, shape: Any, **options: Any) -> Field:
        """Make an array of n x m matrices; see `ds.ndarray`.

        Example:
            a = ds.Matrix.ndarray(2, 3, ds.f32, shape=4)
            print(a.shape, a.to_numpy().shape)  # prints: (4,) (4, 2, 3)
        """
    @overload
    @staticmethod
    def ndarray(*, shape: Any, **options: Any) -> Field: ...
    @staticmethod
    def identity(dt: DType, n: int) -> Matrix[Any, Any, Any]:
        """Return the n x n identity.

        Example:
            print(ds.Matrix.identity(ds.f32, 2))  # prints: [[1.0, 0.0], [0.0, 1.0]]
        """
    @staticmethod
    def diag(dim: int, val: Any) -> Matrix[Any, Any, Any]:
        """Return the dim x dim matrix with `val` on the diagonal.

        Example:
            print(ds.Matrix.diag(2, 3.0))  # prints: [[3.0, 0.0], [0.0, 3.0]]
        """
    @staticmethod
    def rows(rows: Iterable[Any]) -> Matrix[Any, Any, Any]:
        """Return the matrix with these vectors as rows.

        Example:
            print(ds.Matrix.rows([ds.Vector([1, 2]), ds.Vector([3, 4])]))  # prints: [[1, 2], [3, 4]]
        """
    @staticmethod
    def cols(cols: Iterable[Any]) -> Matrix[Any, Any, Any]:
        """Return the matrix with these vectors as columns.

        Example:
            print(ds.Matrix.cols([ds.Vector([1, 2]), ds.Vector([3, 4])]))  # prints: [[1, 3], [2, 4]]
        """
    @staticmethod
    def unit(n: int, i: int, dt: DType | None = ...) -> Vector[Any, Any]:
        """Return the i-th unit vector of n elements, of integers where `dt` does not say.

        Example:
            print(ds.Matrix.unit(3, 1))  # prints: [0, 1, 0]
        """

    @staticmethod
    def zero(dt: DType, n: int, m: int | None = ...) -> Matrix[Any, Any, Any]:
        """Return all zeros: n elements, or n x m.

        Example:
            print(ds.Matrix.zero(ds.f32, 2, 2))  # prints: [[0.0, 0.0], [0.0, 0.0]]
        """
    @staticmethod
    def one(dt: DType, n: int, m: int | None = ...) -> Matrix[Any, Any, Any]:
        """Return all ones: n elements, or n x m.

        Example:
            print(ds.Matrix.one(ds.i32, 2, 2))  # prints: [[1, 1], [1, 1]]
        """

class MatrixField(Field):
    """For `isinstance(x, ds.MatrixField)`: a field of vectors or matrices; made by `ds.Vector.field`.

    Example:
        print(isinstance(ds.Vector.field(2, ds.f32, shape=3), ds.MatrixField))  # prints: True
    """
class MatrixNdarray(Ndarray):
    """`ds.MatrixNdarray(2, 3, ds.f32, shape)` makes an array of matrices, as `ds.Matrix.ndarray` does.

    Example:
        print(ds.MatrixNdarray(2, 3, ds.f32, 4).to_numpy().shape)  # prints: (4, 2, 3)
    """
    def __new__(cls, n: int, m: int, dtype: DType | None, shape: Any) -> Self: ...
from diffsim.errors import MissingGradientError as MissingGradientError
from diffsim.errors import MissingPackageError as MissingPackageError
class Ndarray(Field):
    """For `isinstance(x, ds.Ndarray)`: an array, made by `ds.ndarray` and the like.

    Example:
        print(isinstance(ds.ndarray(ds.f32, shape=3), ds.Ndarray))  # prints: True
    """
from diffsim.errors import OperationError as OperationError
from diffsim.errors import OptionError as OptionError
from diffsim.errors import OutOfMemoryError as OutOfMemoryError
class PrecisionLoss(Exception):
    """A value is stored into a narrower type."""
class ScalarField(Field):
    """For `isinstance(x, ds.ScalarField)`: a field of numbers, made by `ds.field`; or a component.

    Example:
        print(isinstance(ds.field(ds.f32, shape=3), ds.ScalarField))  # prints: True
    """
class ScalarNdarray(Ndarray):
    """`ds.ScalarNdarray(ds.f32, shape)` makes an array of numbers, as `ds.ndarray` does.

    Example:
        print(ds.ScalarNdarray(ds.f32, (2, 3)).shape)  # prints: (2, 3)
    """
    def __new__(cls, dtype: DType | None, arr_shape: Any) -> Self: ...
class ScopedTimer:
    """Measures the time of a block, and prints it.

        with ds.ScopedTimer("simulate"):
            simulate()

    Args:
        name: what is printed.
        active: whether anything is measured.
        print: whether the time is printed.
        dict: where the time is appended to the list of that name.
        synchronize: whether launches before and inside the block are waited for.

    Attributes:
        elapsed: the time of the block [ms].

    Example:
        times = {}
        with ds.ScopedTimer("simulate", print=False, dict=times) as timer:
            sum(range(1000))
        print(timer.elapsed > 0.0, len(times["simulate"]))  # prints: True 1
    """
    def __init__(self, name: str, active: bool = ..., print: bool = ..., dict: dict[str, list[float]] | None = ..., synchronize: bool = ...) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None: ...
    elapsed: Any
from diffsim.errors import SolveError as SolveError

@dataclass_transform()
class Struct:
    """`ds.Struct(pos=p, mass=1.0)` makes a struct, `ds.Struct.field({"mass": ds.f32}, shape=n)` a field.

    Example:
        p = ds.Struct(pos=ds.Vector([1.0, 2.0]), mass=2.0)
        particles = ds.Struct.field({"mass": ds.f32}, shape=4)
        particles[0].mass = p.mass
        print(particles.mass[0])  # prints: 2.0
    """
    def __init__(self, members: Mapping[str, Any] = ..., **more: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def to_dict(self) -> dict[str, Any]: ...
    @overload
    @classmethod
    def field(cls, members: Mapping[str, Any], methods: Any = ..., shape: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField:
        """Make a field of structs with these members; see `StructType.field` for the other arguments.

        `methods` are `@ds.func`s that elements have, by name; their first parameter is the element.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            particles[1].pos = [1.0, 2.0]
            print(particles.pos[1], particles.shape)  # prints: [1.0, 2.0] (4,)
        """
    @overload
    @classmethod
    def field(cls, *, shape: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField: ...

class StructField:
    """A field whose elements are structs; made by `Particle.field(shape=n)` or `ds.Struct.field`.

    `particles.pos` is the field of a member; `particles[i]` an element, whose members can be read and
    assigned; `particles.grad` the fields of the gradients.

    Attributes:
        type: the type of its elements.

    Example:
        particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
        particles[0].mass = 2.0
        particles.pos.fill(1.0)
        print(particles[0].mass, particles.pos[3])  # prints: 2.0 [1.0, 1.0]
    """
    def __getattr__(self, name: str) -> Any: ...
    def __array__(self, dtype: DType | None = ..., copy: bool | None = ...) -> Any: ...
    def __contains__(self, thing: Any) -> bool: ...
    def __getitem__(self, key: Any) -> Any: ...
    def __iter__(self) -> Any: ...
    def __len__(self) -> int: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def copy_from(self, other: StructField) -> None:
        """Copy another field of the same shape and type.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            others = ds.clone(particles)
            others.fill(2.0)
            particles.copy_from(others)
            print(particles[3].mass)  # prints: 2.0
        """
    @property
    def dual(self) -> StructField:
        """The duals of the members that have one.

        Example:
            particles = ds.Struct.field({"mass": ds.f32}, shape=4, needs_dual=True)
            particles.dual.mass.fill(1.0)
            print(particles.dual[3].mass)  # prints: 1.0
        """
    def fill(self, val: Any) -> None:
        """Set all elements: to a struct, or all numbers to one number.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            particles.fill(1.0)
            print(particles[3].pos)  # prints: [1.0, 1.0]
        """
    def from_numpy(self, array_dict: Mapping[str, object]) -> None:
        """Copy an array for each member, by name, into the field; members left out stay as they are.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            particles.from_numpy({"mass": np.ones(4, dtype=np.float32)})
            print(particles[3].mass)  # prints: 1.0
        """
    def from_torch(self, array_dict: Mapping[str, Any]) -> None:
        """Copy a tensor of PyTorch for each member, by name; members left out stay as they are.

        Example:
            import torch

            bodies = ds.types.struct(mass=ds.f32).field(shape=2)
            bodies.from_torch({"mass": torch.tensor([1.0, 2.0])})
            print(bodies[1].mass)  # prints: 2.0
        """
    def get_member_field(self, key: str) -> Any:
        """Return the field of a member, by its name.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            print(particles.get_member_field("mass") is particles.mass)  # prints: True
        """
    @property
    def grad(self) -> Any: ...
    @property
    def keys(self) -> list[str]:
        """The names of the members.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            print(particles.keys)  # prints: ['pos', 'mass']
        """
    @property
    def name(self) -> str:
        """The name of the field.

        Example:
            particles = ds.Struct.field({"mass": ds.f32}, shape=4, name="particles")
            print(particles.name)  # prints: particles
        """
    @property
    def needs_dual(self) -> bool:
        """Whether a member was declared with tangents, for forward mode.

        Example:
            particles = ds.Struct.field({"mass": ds.f32}, shape=4, needs_grad=True)
            print(particles.needs_dual)  # prints: False
        """
    @property
    def needs_grad(self) -> bool:
        """Whether a member was declared with a gradient.

        Example:
            particles = ds.Struct.field({"mass": ds.f32}, shape=4, needs_grad=True)
            print(particles.needs_grad)  # prints: True
        """
    def parent(self, n: int = ...) -> Any:
        """Return the node of the layout tree that the field is placed in; the n-th around it.

        Example:
            particles = ds.Struct.field({"mass": ds.f32})
            cells = ds.root.dense(ds.i, 4)
            cells.place(particles)
            print(particles.parent() is cells)  # prints: True
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            print(particles.shape)  # prints: (4,)
        """
    @property
    def snode(self) -> Any:
        """The field itself: its place in the tree, whose `parent()` is the node around it.

        Example:
            x = ds.field(ds.f32)
            cells = ds.root.dense(ds.i, 4)
            cells.place(x)
            print(x.snode.parent() is cells)  # prints: True
        """
    def to_numpy(self) -> dict[str, Any]:
        """Return a copy: an array for each member, by name.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            arrays = particles.to_numpy()
            print(arrays["pos"].shape, arrays["mass"].shape)  # prints: (4, 2) (4,)
        """
    def to_torch(self, device: Any = ...) -> dict[str, Any]:
        """Return a copy: a tensor of PyTorch for each member, by name.

        Example:
            import torch

            bodies = ds.types.struct(mass=ds.f32).field(shape=2)
            bodies.from_torch({"mass": torch.tensor([1.0, 2.0])})
            print(bodies.to_torch()["mass"].tolist())  # prints: [1.0, 2.0]
        """
TRACE: str
class Tape:
    """Records what runs inside `with`, for gradients.

    With a loss the gradients are computed at the end of the block:

        with ds.Tape(loss):
            simulate()
        x.grad[0]  # d loss / d x[0]

    Without one, afterwards and as often as wanted: `tape.backward(loss)` or
    `tape.backward(grads={y: seed})`; gradients then add up until `tape.zero()`.

    The same launches with other contents of the fields: `tape.replay()`, then `tape.backward()`.

    What Python writes to a field in the block is a constant: an input, with a gradient, if nothing on the
    tape used the element before. Copies (`copy_from`, `ds.copy`, `ds.clone`) are differentiated.

    Args:
        loss: a field of a single element that has a gradient. It is set to 0 on entry.
        clear_gradients: with a loss: whether all gradients are set to 0 on entry.
        in_place: "save" copies values that an adjoint needs before they are overwritten, and puts them
            back on the way, so that programs which overwrite their state have exact gradients;
            "refuse" raises GlobalDataAccessError instead. If left out, as `ds.init(rules=...)` says.
        retain_grad: fields (True: all) whose gradients are kept though kernels store into them: the
            gradient with respect to the value stored. Refused where one element is given several
            values that have an effect; the first one of an iteration may be treated as a local variable.
        validation: check the global data access rules to the letter, element by element, while the
            program runs (slow): nothing that was read may be written again, and what was written may
            only be added to.
        grad_check: fields whose gradients are compared with differences at the end of the block, which is
            replayed twice for each of their numbers (slow; along random directions from 100 numbers on).
        check_nan: look for NaN and infinities after each launch and each adjoint (slow); "nan": for NaN
            alone.

    Raises:
        MissingGradientError: the loss, or a field between it and the inputs, has no gradient.
        AutodiffError: and its kind, at the end of the block (or in `backward`): a gradient in `grad_check`
            differs, or the block cannot be replayed.

    Example:
        x = ds.field(ds.f32, shape=3, needs_grad=True)
        loss = ds.field(ds.f32, shape=(), needs_grad=True)
        x.fill(2.0)

        @ds.kernel
        def add_squares():
            for i in x:
                loss[None] += x[i] ** 2

        with ds.Tape(loss):
            add_squares()
        print(loss[None], x.grad[0])  # prints: 12.0 4.0
    """
    def __init__(self, loss: Field | None = ..., clear_gradients: bool = ..., validation: bool = ..., grad_check: Sequence[Field] | Field | None = ..., *, in_place: str | None = ..., retain_grad: bool | Field | Sequence[Field] = ..., check_nan: bool | str = ...) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None: ...
    def backward(self, loss: Any = ..., grads: Mapping[Field, Any] | None = ...) -> None:
        """Run the adjoints of everything recorded, last first.

        Args:
            loss: a field of a single element, whose gradient is set to 1; the tape's own if nothing
                is given; or a number that the tape followed: what a kernel returned, or made of that.
            grads: for any fields the gradients to start from: numbers, arrays or fields of their shape.

        Raises:
            AutodiffError: and its kind: a value that is needed has changed, a gradient is missing. Whatever
                is raised once the pass has begun, all gradients on the tape are NaN then.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape() as tape:
                square()
            tape.backward(y)
            print(x.grad[None])  # prints: 6.0
            tape.zero()
            tape.backward(grads={y: 0.5})
            print(x.grad[None])  # prints: 3.0
        """
    @property
    def gradients(self) -> dict[Field, Field]:
        """For each field on the tape that has one, its gradient.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            tape.backward(grads={y: 2.0})
            print(tape.gradients[x][0])  # prints: 2.0
        """
    def on_backward(self, hook: Any) -> Any:
        """Call a function after the adjoint of each launch, last launch first; also a decorator.

        Args:
            hook: `hook(step, grads)`: the number of the launch on the tape, from 0, and a dictionary
                from the fields that it read to their gradients so far. What the hook does to them
                (clip, set to 0) is what the earlier launches see.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape() as tape:
                square()

            @tape.on_backward
            def clip(step, grads):
                for gradient in grads.values():
                    gradient.from_numpy(np.clip(gradient.to_numpy(), -5.0, 5.0))

            tape.backward(y)
            print(x.grad[None])  # prints: 5.0
        """
    def record_func(self, backward: Callable[[], Any], arrays: Sequence[Field]) -> None:
        """Record a function that the backward pass calls at this place.

        Args:
            backward: called without arguments; it reads and adds to gradients.
            arrays: the fields and arrays whose gradients it uses, for `tape.zero()` and
                `tape.gradients`.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))

            def backward():  # of y = sin(x), which NumPy computes below
                x.grad.from_numpy(x.grad.to_numpy() + y.grad.to_numpy() * np.cos(x.to_numpy()))

            with ds.Tape() as tape:
                with ds.ad.no_grad():
                    y.from_numpy(np.sin(x.to_numpy()))
                tape.record_func(backward, [x, y])
            tape.backward(grads={y: 1.0})
            print(x.grad[0])  # prints: 1.0
        """
    def record_scope_begin(self, scope_name: str, metadata: Mapping[str, Any] | None = ...) -> None:
        """Begin a group of entries, for `visualize`; `metadata`: what its frame shows beside its name.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                tape.record_scope_begin("first step", {"dt": 0.01})
                y.copy_from(x)
                tape.record_scope_end()
            print("first step" in str(tape.visualize()))  # prints: True
        """
    def record_scope_end(self, remove_scope_if_empty: bool = ...) -> None:
        """End the group begun last; one that nothing was recorded in is drawn only if this is False.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                tape.record_scope_begin("nothing yet")
                tape.record_scope_end(remove_scope_if_empty=False)
                y.copy_from(x)
            print("nothing yet" in str(tape.visualize()))  # prints: True
        """
    def replay(self, **arguments: Any) -> None:
        """Run everything recorded again, in order, from what the fields hold now.

        Random numbers, what Python wrote to fields, and arguments passed by value are as recorded, but for
        those named here: `tape.replay(rate=0.1)`. A tape
        with a loss sets it (and the gradients) to 0 first, as on entry. `tape.backward()` after it gives
        the gradients of this run. Both run as native code, on a GPU as graphs, without Python between the
        launches.

        Args:
            arguments: numbers, vectors or matrices of floats, by the names of the kernels' parameters;
                they count in this replay alone, in all launches of kernels with such a parameter.

        Raises:
            AutodiffError: nothing was recorded, `ds.init` was called since, a kernel uses other
                fields now; the tape holds what cannot run without Python (see docs/replay.md); no
                launch has such an argument, or the launches had different ones.
            KernelStateError: a number that was compiled in has changed.
            CheckError: a check in a kernel (`debug=True`) failed.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape(y) as tape:
                square()
            x[None] = 5.0
            tape.replay()
            tape.backward()
            print(y[None], x.grad[None])  # prints: 25.0 10.0
        """
    def reset(self) -> None:
        """Forget what was recorded, and set the gradients to 0.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            tape.reset()
            print(tape.stats().entries)  # prints: 0
        """
    def save(self, filename: str) -> None:
        """Write the tape to a file, for `ds.load_tape` in another process or on another machine.

        The file holds the recorded launches and their adjoints, and what the fields hold now.

        Args:
            filename: where; a file that is there is replaced when all is written.

        Raises:
            AutodiffError: the tape cannot be replayed (see `replay`), or holds text for LLVM.
            ArgumentError: the file cannot be written; one that was there stays as it was.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            with ds.Tape(y) as tape:
                square()
            tape.save("square.tape")

            loaded = ds.load_tape("square.tape")
            loaded.fields["x"][None] = 5.0
            loaded.replay()
            print(loaded.loss[None])  # prints: 25.0
        """
    def stats(self) -> Any:
        """Count what the tape holds.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            print(tape.stats().entries, tape.stats().saved_bytes)  # prints: 1 0
        """
    def visualize(self, filename: str | None = ..., simplify_graph: bool = ..., hide_readonly_arrays: bool = ..., array_labels: Mapping[Any, str] | None = ..., choose_longest_node_name: bool = ..., ignore_graph_scopes: bool = ..., track_inputs: Sequence[Any] | None = ..., track_outputs: Sequence[Any] | None = ..., track_input_names: Sequence[str] | None = ..., track_output_names: Sequence[str] | None = ..., graph_direction: str = ...) -> Any:
        """Draw the recorded launches and the fields between them, as a graph.

        Args:
            filename: where to write it: as a picture if it ends in .svg, .png or .pdf, else in the DOT
                language of GraphViz.
            simplify_graph: whether sequences of steps that repeat are drawn once, with their number.
            hide_readonly_arrays: whether fields that nothing on the tape writes are left out.
            array_labels: names to show for fields and arrays.
            choose_longest_node_name: whether of several names for one field (a variable's, those of
                parameters) the longest is shown; else the first.
            ignore_graph_scopes: whether scopes are drawn without frames.
            track_inputs: fields to mark as inputs, which are shown in any case.
            track_outputs: the same for outputs.
            track_input_names: a name for each of them.
            track_output_names: the same for outputs.
            graph_direction: "LR" (from left to right), "RL", "TB" (from top to bottom) or "BT".

        Returns:
            The text in the DOT language; notebooks show it as the picture.

        Raises:
            ArgumentError: an option that makes no sense; the file cannot be written (one that was there
                stays as it was).

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            tape.visualize("graph.svg")
            print(str(tape.visualize()).startswith("digraph"))  # prints: True
        """
    def zero(self) -> None:
        """Set all gradients on the tape to 0.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            tape.backward(grads={y: 2.0})
            tape.zero()
            print(x.grad[0])  # prints: 0.0
        """
class Timer:
    """Measures the time of a block, and prints it.

        with ds.ScopedTimer("simulate"):
            simulate()

    Args:
        name: what is printed.
        active: whether anything is measured.
        print: whether the time is printed.
        dict: where the time is appended to the list of that name.
        synchronize: whether launches before and inside the block are waited for.

    Attributes:
        elapsed: the time of the block [ms].

    Example:
        times = {}
        with ds.ScopedTimer("simulate", print=False, dict=times) as timer:
            sum(range(1000))
        print(timer.elapsed > 0.0, len(times["simulate"]))  # prints: True 1
    """
    def __init__(self, name: str, active: bool = ..., print: bool = ..., dict: dict[str, list[float]] | None = ..., synchronize: bool = ...) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None: ...
    elapsed: Any
from diffsim.errors import UnknownAttributeError as UnknownAttributeError

class Vector(_Tensor, Generic[N, D]):
    """`ds.Vector([x, y, z])` makes a vector (a `ds.Matrix` of one axis).

    Example:
        v = ds.Vector([3.0, 4.0])
        print(v.norm(), v.x, v + 1.0)  # prints: 5.0 3.0 [4.0, 5.0]
    """
    @overload
    def __init__(self, arr: Iterable[Any], dt: DType | None = ...) -> None: ...
    @overload
    def __init__(self, *elements: Any) -> None: ...
    @overload
    @staticmethod
    def field(n: int, dtype: DType | None = ..., shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field:
        """Make a field of vectors of n elements; see `ds.field` for the other arguments.

        Example:
            x = ds.Vector.field(2, ds.f32, shape=3)
            x[0] = [1.0, 2.0]
            print(x[0], x.to_numpy().shape)  # prints: [1.0, 2.0] (3, 2)
        """
    @overload
    @staticmethod
    def field(*, shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field: ...
    @overload
    @staticmethod
    def ndarray(n: int, dtype: DType, shape: Any, **options: Any) -> Field:
        """Make an array of vectors of n elements; see `ds.ndarray`.

        Example:
            a = ds.Vector.ndarray(2, ds.f32, shape=3)
            print(a[0], a.to_numpy().shape)  # prints: [0.0, 0.0] (3, 2)
        """
    @overload
    @staticmethod
    def ndarray(*, shape: Any, **options: Any) -> Field: ...

    @staticmethod
    def zero(dt: DType, n: int) -> Vector[Any, Any]:
        """Return n zeros, or n x m.

        Example:
            print(ds.Vector.zero(ds.f32, 2))  # prints: [0.0, 0.0]
        """
    @staticmethod
    def one(dt: DType, n: int) -> Vector[Any, Any]:
        """Return n ones, or n x m.

        Example:
            print(ds.Vector.one(ds.i32, 3))  # prints: [1, 1, 1]
        """

    @staticmethod
    def unit(n: int, i: int, dt: DType | None = ...) -> Vector[Any, Any]:
        """Return the i-th unit vector of n elements, of integers where `dt` does not say.

        Example:
            print(ds.Vector.unit(3, 1, ds.f32))  # prints: [0.0, 1.0, 0.0]
        """

class VectorNdarray(Ndarray):
    """`ds.VectorNdarray(3, ds.f32, shape)` makes an array of vectors, as `ds.Vector.ndarray` does.

    Example:
        print(ds.VectorNdarray(3, ds.f32, 4).to_numpy().shape)  # prints: (4, 3)
    """
    def __new__(cls, n: int, dtype: DType | None, shape: Any) -> Self: ...
WARN: str
def abs(x: Any) -> Any:
    """Absolute value; derivative 0 at 0.

    Takes floats or integers; vectors, matrices and arrays element by element.

    Example:
        print(ds.abs(-2.5))  # prints: 2.5
    """
def acos(x: Any) -> Any:
    """Arc cosine [rad], NaN outside [-1, 1]; derivative 0 at -1 and 1.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.acos(-1.0) / ds.math.pi)  # prints: 1.0
    """
def activate(node: Any, indices: Any) -> Any:
    """Make a cell of a sparse node active, and those around it.

    Args:
        node: a `pointer`, `hash` or `bitmasked` node of a layout tree.
        indices: of the cell, counted in cells of the node: a number or a vector of integers, one for each axis.

    Raises:
        KernelTypeError: a node without such cells, or another number of indices.

    Example:
        x = ds.field(ds.f32)
        blocks = ds.root.pointer(ds.i, 4)
        blocks.dense(ds.i, 8).place(x)

        @ds.kernel
        def compute() -> ds.i32:
            ds.activate(blocks, 2)
            return ds.is_active(blocks, 2)

        print(compute())  # prints: 1
    """
from diffsim import ad as ad
adjoint: Any
from diffsim import algorithms as algorithms
amdgpu: Arch
"""A GPU if there is one, else the CPU, with a warning.

Kernels run there after `ds.init(arch=ds.gpu)`.

Example:
    ds.init(arch=ds.gpu)
    print(ds.device_info())  # prints: GPU 0 (...
"""
def append(node: Any, indices: Any, val: Any) -> Any:
    """Append a value to a list of a dynamic node; returns its index in the list, an i32.

    Args:
        node: a `dynamic` node of a layout tree.
        indices: of the cell that holds the list: a number or a vector of integers.

    Raises:
        KernelTypeError: a node without lists, or another number of indices.

    Example:
        x = ds.field(ds.i32)
        lists = ds.root.dense(ds.i, 4).dynamic(ds.j, 8)
        lists.place(x)

        @ds.kernel
        def compute() -> ds.i32:
            ds.append(lists, 1, 7)
            return x[1, 0]

        print(compute())  # prints: 7
    """
arm64: Arch
"""The CPU: kernels are compiled to machine code, whose parallel loops run on all cores.

Kernels run there after `ds.init(arch=ds.cpu)`.

Example:
    ds.init(arch=ds.cpu)
    print(ds.device_info())  # prints: the CPU
"""
def asin(x: Any) -> Any:
    """Arc sine [rad], NaN outside [-1, 1]; derivative 0 at -1 and 1.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.asin(1.0) / ds.math.pi)  # prints: 0.5
    """
def assume_in_range(val: Any, base: Any, low: Any, high: Any) -> Any:
    """Taichi's promise that a value lies in a range: the value itself, as the compiler finds ranges.

    Example:
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def compute():
            for i in x:
                x[ds.assume_in_range(i, 0, 0, 4)] = 2 * i

        compute()
        print(x[3])  # prints: 6
    """
def atan(x: Any) -> Any:
    """Arc tangent [rad], between -pi/2 and pi/2.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.atan(1.0) / ds.math.pi)  # prints: 0.25
    """
def atan2(x1: Any, x2: Any) -> Any:
    """Angle [rad] of the point (x2, x1), as in atan2(y, x); derivative 0 at the origin.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.atan2(1.0, -1.0) / ds.math.pi)  # prints: 0.75
    """
def atomic_add(x: Any, y: Any) -> Any:
    """Atomically add v to an element of a field, and return its value before: `ds.atomic_add(x[i], v)`.

    Example:
        x = ds.field(ds.i32, shape=())
        x[None] = 12

        @ds.kernel
        def update() -> ds.i32:
            return ds.atomic_add(x[None], 10)

        print(update(), x[None])  # prints: 12 22
    """
def atomic_and(x: Any, y: Any) -> Any:
    """Atomically store the bitwise and of v and an element of a field, and return its value before: `ds.atomic_and(x[i], v)`.

    Example:
        x = ds.field(ds.i32, shape=())
        x[None] = 12

        @ds.kernel
        def update() -> ds.i32:
            return ds.atomic_and(x[None], 10)

        print(update(), x[None])  # prints: 12 8
    """
def atomic_max(x: Any, y: Any) -> Any:
    """Atomically store the larger of v and an element of a field, and return its value before: `ds.atomic_max(x[i], v)`.

    Example:
        x = ds.field(ds.i32, shape=())
        x[None] = 12

        @ds.kernel
        def update() -> ds.i32:
            return ds.atomic_max(x[None], 10)

        print(update(), x[None])  # prints: 12 12
    """
def atomic_min(x: Any, y: Any) -> Any:
    """Atomically store the smaller of v and an element of a field, and return its value before: `ds.atomic_min(x[i], v)`.

    Example:
        x = ds.field(ds.i32, shape=())
        x[None] = 12

        @ds.kernel
        def update() -> ds.i32:
            return ds.atomic_min(x[None], 10)

        print(update(), x[None])  # prints: 12 10
    """
def atomic_mul(x: Any, y: Any) -> Any:
    """Atomically multiply by v an element of a field, and return its value before: `ds.atomic_mul(x[i], v)`.

    Example:
        x = ds.field(ds.i32, shape=())
        x[None] = 12

        @ds.kernel
        def update() -> ds.i32:
            return ds.atomic_mul(x[None], 10)

        print(update(), x[None])  # prints: 12 120
    """
def atomic_or(x: Any, y: Any) -> Any:
    """Atomically store the bitwise or of v and an element of a field, and return its value before: `ds.atomic_or(x[i], v)`.

    Example:
        x = ds.field(ds.i32, shape=())
        x[None] = 12

        @ds.kernel
        def update() -> ds.i32:
            return ds.atomic_or(x[None], 10)

        print(update(), x[None])  # prints: 12 14
    """
def atomic_sub(x: Any, y: Any) -> Any:
    """Atomically subtract v from an element of a field, and return its value before: `ds.atomic_sub(x[i], v)`.

    Example:
        x = ds.field(ds.i32, shape=())
        x[None] = 12

        @ds.kernel
        def update() -> ds.i32:
            return ds.atomic_sub(x[None], 10)

        print(update(), x[None])  # prints: 12 2
    """
def atomic_xor(x: Any, y: Any) -> Any:
    """Atomically store the bitwise exclusive or of v and an element of a field, and return its value before: `ds.atomic_xor(x[i], v)`.

    Example:
        x = ds.field(ds.i32, shape=())
        x[None] = 12

        @ds.kernel
        def update() -> ds.i32:
            return ds.atomic_xor(x[None], 10)

        print(update(), x[None])  # prints: 12 6
    """
def axes(*numbers: int) -> Axes:
    """Return the axes with these numbers, 0 the first.

    Example:
        x = ds.field(ds.f32)
        ds.root.dense(ds.axes(0, 1), (4, 8)).place(x)
        print(x.shape)  # prints: (4, 8)
    """
def bit_cast(obj: Any, dtype: DType | None) -> Any:
    """The value in another type of the same width with the same bits: `ds.bit_cast(1.0, ds.i32)` is 0x3f800000. A gradient by a float whose bits are taken is refused.

    Example:
        print(hex(ds.bit_cast(1.0, ds.i32)))  # prints: 0x3f800000
    """
def bit_sar(a: Any, n: Any) -> Any:
    """The bits of a shifted right by n, with the sign moved in: a >> n.

    Example:
        print(ds.bit_sar(-8, 1))  # prints: -4
    """
def bit_shl(a: Any, n: Any) -> Any:
    """The bits of a shifted left by n: a << n.

    Example:
        print(ds.bit_shl(3, 4))  # prints: 48
    """
def bit_shr(x1: Any, x2: Any) -> Any:
    """x1 shifted right by x2 bits, with zeros moved in whatever its sign; 0 where all are shifted out.

    Example:
        print(ds.bit_shr(-1, 28))  # prints: 15
    """
def block_local(*args: Any) -> Any:
    """Taichi's hint to keep a field in the shared memory of a GPU's blocks; it changes nothing, as the compiler decides.

    Example:
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def compute():
            ds.block_local(x)
            for i in x:
                x[i] = 2 * i

        compute()
        print(x[3])  # prints: 6
    """
def cache_read_only(*args: Any) -> Any:
    """Taichi's hint to read a field through a GPU's read-only cache; it changes nothing, as the compiler decides.

    Example:
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def compute():
            ds.cache_read_only(x)
            for i in x:
                x[i] = 2 * i

        compute()
        print(x[3])  # prints: 6
    """
def cast(obj: Any, dtype: DType | None) -> Any:
    """The value in another scalar type; vectors and matrices element by element.

    Example:
        print(ds.cast(2.75, ds.i32), ds.cast(ds.Vector([1.5, -1.5]), ds.i32))  # prints: 2 [1, -1]
    """
def ceil(x: Any, dtype: DType | None = ...) -> Any:
    """Smallest whole number not below.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.ceil(1.25), ds.ceil(1.25, ds.i32))  # prints: 2.0 2
    """
def clear_all_dual() -> None:
    """Set the duals of all fields to 0: the tangents that forward mode computes (`ds.ad.FwdMode`).

    Example:
        x = ds.field(ds.f32, shape=3, needs_dual=True)
        x.dual.fill(2.0)
        ds.clear_all_dual()
        print(x.dual[0])  # prints: 0.0
    """
def clear_all_gradients() -> None:
    """Set the gradients of all fields to 0.

    Example:
        x = ds.field(ds.f32, shape=3, needs_grad=True)
        x.grad.fill(2.0)
        ds.clear_all_gradients()
        print(x.grad[0])  # prints: 0.0
    """
def clone(x: Any, needs_grad: bool | None = ...) -> Any:
    """Make a new field of the same shape, type and values; on a tape a copy that is differentiated.

    Args:
        x: a field, array or field of structs.
        needs_grad: whether the new one has a gradient; as `x` if left out. With False it is cut off
            from `x`: what it holds counts as a constant.

    Example:
        x = ds.field(ds.f32, shape=3)
        y = ds.clone(x)
        x[0] = 1.0
        print(x[0], y[0])  # prints: 1.0 0.0
    """
def copy(dst: Any, src: Any, *, dest_offset: int = ..., src_offset: int = ..., count: int | None = ...) -> None:
    """Copy the elements of one field (or array) into another; differentiated on a tape.

    Args:
        dst: where to; a field, an array, or a field of structs.
        src: where from; it may be `dst` itself.
        dest_offset: the first element of `dst` that is written, counted in the order of its indices.
        src_offset: the first element of `src` that is read.
        count: how many elements. Without these three all of them, and the shapes are the same.

    Raises:
        ArgumentError: shapes or types that do not fit, elements that do not exist.

    Example:
        x, y = ds.field(ds.f32, shape=4), ds.field(ds.f32, shape=4)
        x.fill(1.5)
        ds.copy(y, x, dest_offset=1, count=2)
        print(y.to_numpy().tolist())  # prints: [0.0, 1.5, 1.5, 0.0]
    """
def cos(x: Any) -> Any:
    """Cosine of x [rad].

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.cos(ds.math.pi))  # prints: -1.0
    """
def cosh(x: Any) -> Any:
    """Hyperbolic cosine, (e^x + e^-x) / 2.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.cosh(0.0), ds.cosh(1.0))  # prints: 1.0 1.54308...
    """
cpu: Arch
"""The CPU: kernels are compiled to machine code, whose parallel loops run on all cores.

Kernels run there after `ds.init(arch=ds.cpu)`.

Example:
    ds.init(arch=ds.cpu)
    print(ds.device_info())  # prints: the CPU
"""
cuda: Arch
"""An NVIDIA GPU. `ds.init` raises BackendError where there is none.

Kernels run there after `ds.init(arch=ds.cuda)`.

Example:
    ds.init(arch=ds.cuda)
    print(ds.device_info())  # prints: GPU 0 (...
"""
def data_oriented(cls: C) -> C:
    """Decorate a class whose methods are kernels or funcs, so that `self.x` works inside them.

    The marker changes nothing in the class; numbers and fields reached through `self` are compiled in.

    Example:
        @ds.data_oriented
        class Grid:
            def __init__(self, n):
                self.x = ds.field(ds.i32, shape=n)

            @ds.kernel
            def fill(self, a: ds.i32):
                for i in self.x:
                    self.x[i] = a

        grid = Grid(3)
        grid.fill(7)
        print(grid.x.to_numpy())  # prints: [7 7 7]
    """

@dataclass_transform()
def dataclass(cls: type[T]) -> type[T]:
    """Decorate a class whose annotations are the members of a struct, and its functions methods.

        @ds.dataclass
        class Particle:
            pos: ds.types.vector(3, ds.f32)
            mass: ds.f32

            @ds.func
            def momentum(self, v):
                return self.mass * v

    A method that assigns to members of `self` changes the struct it is called on. One without `@ds.func` is
    called from Python too. A class that inherits
    has the members of its parents first, and their methods; parents are structs or plain classes. With
    `ds.Struct` as a parent, which changes nothing, type checkers know `Particle.field` too.

    Example:
        @ds.dataclass
        class Body:
            pos: ds.types.vector(2, ds.f32)
            mass: ds.f32

        bodies = Body.field(shape=3)
        bodies[0] = Body(pos=[1.0, 2.0], mass=0.5)
        print(bodies[0].pos, bodies.mass[0])  # prints: [1.0, 2.0] 0.5
    """

def deactivate(node: Any, indices: Any) -> Any:
    """Make a cell of a sparse node inactive: its elements are 0 from now on. Of a dynamic: empty a list.

    Args:
        node: a `pointer`, `hash` or `bitmasked` node of a layout tree.
        indices: of the cell, counted in cells of the node: a number or a vector of integers, one for each axis.

    Raises:
        KernelTypeError: a node without such cells, or another number of indices.

    Example:
        x = ds.field(ds.f32)
        blocks = ds.root.pointer(ds.i, 4)
        blocks.dense(ds.i, 8).place(x)

        @ds.kernel
        def compute() -> ds.i32:
            x[0] = 1.0
            ds.deactivate(blocks, 0)
            return ds.is_active(blocks, 0)

        print(compute())  # prints: 0
    """
def deactivate_all_snodes() -> None:
    """Make all cells of all sparse trees inactive.

    Example:
        x = ds.field(ds.f32)
        blocks = ds.root.pointer(ds.i, 4)
        blocks.dense(ds.i, 8).place(x)
        x[20] = 1.0  # activates block 2
        ds.deactivate_all_snodes()
        print(x[20])  # prints: 0.0
    """
def device_info() -> str:
    """Return what kernels run on, in words; for a GPU also whose context: libcuda's own, or pycuda's.

    Example:
        ds.init(arch=ds.cpu)
        print(ds.device_info())  # prints: the CPU
    """
def diagonal_map(f: Any, A: Any) -> Any:
    """f of a diagonal matrix: `U @ ds.diagonal_map(f, sigma) @ V.transpose()` after a `ds.svd`.

    f is a `@ds.func` of one number, or an op such as `ds.log`. The value is f of each element of the
    diagonal; the derivative is that of f as a function of matrices (Yu. L. Daletskii and S. G. Krein, 1965),
    which the gradient needs where singular values are equal.

    Example:
        @ds.kernel
        def compute(a: ds.f32) -> ds.math.mat2:
            return ds.diagonal_map(ds.sqrt, ds.Matrix([[a, 0.0], [0.0, 9.0]]))

        print(compute(4.0))  # prints: [[2.0, 0.0], [0.0, 3.0]]
    """
def digamma(x: Any) -> Any:
    """Derivative of lgamma; infinite at 0, NaN at -1, -2, ...

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.digamma(1.0))  # prints: -0.57721...
    """
dx11: Arch
"""A GPU if there is one, else the CPU, with a warning.

Kernels run there after `ds.init(arch=ds.gpu)`.

Example:
    ds.init(arch=ds.gpu)
    print(ds.device_info())  # prints: GPU 0 (...
"""
dx12: Arch
"""A GPU if there is one, else the CPU, with a warning.

Kernels run there after `ds.init(arch=ds.gpu)`.

Example:
    ds.init(arch=ds.gpu)
    print(ds.device_info())  # prints: GPU 0 (...
"""
def eig(A: Any, dt: DType | None = ...) -> Any:
    """Eigenvalues and right eigenvectors of a 2 x 2 matrix of floats, which may be complex.

    The rows of the first result (2 x 2) are the eigenvalues as (real part, imaginary part); the columns of
    the second (4 x 2) the eigenvectors, of length 1, as (real, imaginary, real, imaginary). Real
    eigenvalues come with the larger first, complex ones with the positive imaginary part first.

    Example:
        values, vectors = ds.eig(ds.Matrix([[0.0, -1.0], [1.0, 0.0]]))
        print(values)  # prints: [[0.0, 1.0], [0.0, -1.0]]
    """
def erf(x: Any) -> Any:
    """Error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.erf(0.0), ds.erf(1.0))  # prints: 0.0 0.84270...
    """
def erfc(x: Any) -> Any:
    """1 - erf(x), exact where erf(x) is nearly 1.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.erfc(0.0), ds.erfc(1.0))  # prints: 1.0 0.15729...
    """
from diffsim import errors as errors
def exp(x: Any) -> Any:
    """Exponential function e^x.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.exp(1.0))  # prints: 2.71828...
    """
def exp2(x: Any) -> Any:
    """2 to the power x.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.exp2(3.0))  # prints: 8.0
    """
f16: TypeAlias = float
"""Floating-point numbers of 16 bits (IEEE 754), `np.float16` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.f16`. Fields are made of it:
`ds.field(ds.f16, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.f16(2.75))  # prints: 2.75
"""
f32: TypeAlias = float
"""Floating-point numbers of 32 bits (IEEE 754), `np.float32` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.f32`. Fields are made of it:
`ds.field(ds.f32, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.f32(2.75))  # prints: 2.75
"""
f64: TypeAlias = float
"""Floating-point numbers of 64 bits (IEEE 754), `np.float64` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.f64`. Fields are made of it:
`ds.field(ds.f64, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.f64(2.75))  # prints: 2.75
"""

@overload
def field(dtype: DType | None = ..., shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> Field:
    """Make a field of numbers, vectors, matrices or structs.

    Args:
        dtype: scalar type, `ds.types.vector/matrix`, or a struct; the default float if left out.
        shape: number of elements along each axis, () for a single one. Without a shape the field waits
            to be placed: `ds.root.dense(ds.i, n).place(x)`.
        order: the axes in memory, slowest first: "ji" for columns side by side.
        name: for messages; else the variable's name in the first kernel that uses it.
        offset: the index of its first element, a number for each axis; 0 if left out.
        needs_grad: whether gradients with respect to it are wanted (`x.grad`).
        needs_dual: whether forward mode's tangents of it are wanted (`x.dual`).
        layout: for vector fields, `ds.Layout.AOS` or `ds.Layout.SOA`.

    Raises:
        ArgumentError: a shape, type or option that makes no sense.
        OutOfMemoryError: there is no memory for it.

    Example:
        x = ds.field(ds.f32, shape=(4, 8), needs_grad=True)
        x[1, 2] = 3.0
        print(x.to_numpy().sum())  # prints: 3.0
    """
@overload
def field(dtype: type[Any], shape: Any = ..., order: Any = ..., name: str = ..., offset: Any = ..., needs_grad: bool = ..., needs_dual: bool = ..., layout: Any = ...) -> StructField: ...

float16: TypeAlias = float
"""Floating-point numbers of 16 bits (IEEE 754), `np.float16` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.f16`. Fields are made of it:
`ds.field(ds.f16, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.f16(2.75))  # prints: 2.75
"""
float32: TypeAlias = float
"""Floating-point numbers of 32 bits (IEEE 754), `np.float32` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.f32`. Fields are made of it:
`ds.field(ds.f32, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.f32(2.75))  # prints: 2.75
"""
float64: TypeAlias = float
"""Floating-point numbers of 64 bits (IEEE 754), `np.float64` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.f64`. Fields are made of it:
`ds.field(ds.f64, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.f64(2.75))  # prints: 2.75
"""
def floor(x: Any, dtype: DType | None = ...) -> Any:
    """Largest whole number not above.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.floor(-1.5), ds.floor(-1.5, ds.i32))  # prints: -2.0 -2
    """
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
def func(fn: F) -> F:
    """Decorate a function so that kernels (and other funcs) can call it.

    Arguments are passed by value; fields, functions and other Python objects as they are. Those for
    parameters annotated `ds.template()` are changed where the func changes the parameter. A func may
    return one value or a tuple, from anywhere in its body.

    Example:
        @ds.func
        def square(a):
            return a * a

        @ds.kernel
        def compute(a: ds.f32) -> ds.f32:
            return square(a) + square(2.0)

        print(compute(3.0))  # prints: 13.0
    """
def func_grad(func: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function as the gradient of a func.

    It takes the func's parameters and then the adjoint of each value that the func returns (or these
    values first, then their adjoints), and adds to the adjoints of the parameters:
    `ds.adjoint[x] += ...`, of a field or array `ds.adjoint[a][i] += ...`. What it adds nothing to has
    derivative 0.

    Raises:
        AutodiffError: the func has a gradient already, or the parameters do not fit.

    Example:
        @ds.func
        def root(c):
            return ds.sqrt(c)

        @ds.func_grad(root)
        def adj_root(c, s, adj_s):  # its result s, and the adjoint of that
            ds.adjoint[c] += 0.5 / s * adj_s

        @ds.kernel
        def slope(c: ds.f32) -> ds.f32:
            return ds.grad(root)(c)

        print(slope(4.0))  # prints: 0.25
    """
def func_native(text: Any, adj_text: Any = ..., replay_text: Any = ...) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function without a body: what it computes is written in LLVM's language.

    The parameters and the result are scalars and have annotations. A text is the body of one LLVM
    function whose parameters have the same names (`%x`); lines `declare ...` before it name what it
    calls. It computes its result from its parameters and has no other effect.

    Args:
        text: for all backends, or a dictionary from "cpu" and "cuda" to one each.
        adj_text: its adjoint: gets `%adj_ret` after the parameters, and returns the adjoint of the float
            parameter, or a struct of those of all; without it there is no derivative.
        replay_text: what an adjoint runs in its place.

    Raises:
        KernelTypeError: a parameter without a scalar type.

    Example:
        @ds.func_native("%r = add i32 %a, 1\\nret i32 %r")
        def following(a: ds.i32) -> ds.i32: ...

        @ds.kernel
        def compute(a: ds.i32) -> ds.i32:
            return following(a)

        print(compute(41))  # prints: 42
    """
def func_replay(func: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that stands in for a func where an adjoint needs its result again.

    It has the func's parameters and returns the func's result without repeating its effects: for example, it
    reads a number that the func has stored, where the func would increment a counter again.

    Raises:
        AutodiffError: the func has a replay already, or the parameters do not fit.

    Example:
        count = ds.field(ds.i32, shape=())
        slot = ds.field(ds.i32, shape=3)

        @ds.func
        def take(i):  # the next free place, which it notes
            k = ds.atomic_add(count[None], 1)
            slot[i] = k
            return k

        @ds.func_replay(take)
        def take_again(i):
            return slot[i]

        @ds.kernel
        def compute():
            for i in range(3):
                take(i)

        compute()
        print(count[None])  # prints: 3
    """
gles: Arch
"""A GPU if there is one, else the CPU, with a warning.

Kernels run there after `ds.init(arch=ds.gpu)`.

Example:
    ds.init(arch=ds.gpu)
    print(ds.device_info())  # prints: GPU 0 (...
"""
gpu: Arch
"""A GPU if there is one, else the CPU, with a warning.

Kernels run there after `ds.init(arch=ds.gpu)`.

Example:
    ds.init(arch=ds.gpu)
    print(ds.device_info())  # prints: GPU 0 (...
"""
def grad(func: Any) -> Any:
    """The gradient of a func inside a kernel: `ds.grad(f)(x, y)` is (df/dx, df/dy), one for each float argument; a func of several results, or of vectors, takes their adjoints after its arguments.

    Example:
        @ds.func
        def energy(p):  # of a spring [J]
            return 0.5 * p * p

        @ds.kernel
        def force(p: ds.f32) -> ds.f32:
            return -ds.grad(energy)(p)

        print(force(3.0))  # prints: -3.0
    """
def grouped(x: Any) -> Any:
    """The indices of a field or ndrange as one vector: `for I in ds.grouped(x): x[I] = 0`.

    Example:
        x = ds.field(ds.i32, shape=(2, 3))

        @ds.kernel
        def compute():
            for I in ds.grouped(x):
                x[I] = I.sum()

        compute()
        print(x.to_numpy().tolist())  # prints: [[0, 1, 2], [1, 2, 3]]
    """
def hex_to_rgb(color: int) -> tuple[float, float, float]:
    """Return red, green and blue, between 0 and 1, of a colour 0xRRGGBB.

    Example:
        print(ds.hex_to_rgb(0xFF0033))  # prints: (1.0, 0.0, 0.2)
    """
i: Axes
"""Axis 0 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.i, 8).place(x)
    print(x.shape)  # prints: (8,)
"""
i16: TypeAlias = int
"""Integers of 16 bits with a sign, `np.int16` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.i16`. Fields are made of it:
`ds.field(ds.i16, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.i16(2.75))  # prints: 2
"""
i32: TypeAlias = int
"""Integers of 32 bits with a sign, `np.int32` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.i32`. Fields are made of it:
`ds.field(ds.i32, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.i32(2.75))  # prints: 2
"""
i64: TypeAlias = int
"""Integers of 64 bits with a sign, `np.int64` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.i64`. Fields are made of it:
`ds.field(ds.i64, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.i64(2.75))  # prints: 2
"""
i8: TypeAlias = int
"""Integers of 8 bits with a sign, `np.int8` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.i8`. Fields are made of it:
`ds.field(ds.i8, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.i8(2.75))  # prints: 2
"""
ij: Axes
"""Axes 0 and 1 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.ij, 8).place(x)
    print(x.shape)  # prints: (8, 8)
"""
ijk: Axes
"""Axes 0 and 1 and 2 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.ijk, 8).place(x)
    print(x.shape)  # prints: (8, 8, 8)
"""
ijkl: Axes
"""Axes 0 and 1 and 2 and 3 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.ijkl, 8).place(x)
    print(x.shape)  # prints: (8, 8, 8, 8)
"""
ijl: Axes
"""Axes 0 and 1 and 3 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.ijl, 8).place(x)
    print(x.shape)  # prints: (8, 8, 8)
"""
ik: Axes
"""Axes 0 and 2 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.ik, 8).place(x)
    print(x.shape)  # prints: (8, 8)
"""
ikl: Axes
"""Axes 0 and 2 and 3 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.ikl, 8).place(x)
    print(x.shape)  # prints: (8, 8, 8)
"""
il: Axes
"""Axes 0 and 3 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.il, 8).place(x)
    print(x.shape)  # prints: (8, 8)
"""
def init(arch: Arch | Sequence[Arch] | None = ..., default_fp: DType | None = ..., default_ip: DType | None = ..., *, debug: bool = ..., strict: bool = ..., fast_math: bool = ..., random_seed: int = ..., cpu_max_num_threads: int = ..., offline_cache: bool = ..., offline_cache_file_path: str = ..., rules: str = ..., kernel_simplicity: str = ..., device: int = ..., device_scratch_size: int = ..., default_gpu_block_dim: int = ..., deterministic: bool = ..., traceback: str = ..., check_nan: bool | str | None = ..., kernel_profiler: bool = ..., log_level: str = ...) -> None:
    """Start (or start anew) with these options. Fields made before stay usable.

    A field made for another backend moves to this one when it is next used; tapes recorded before do not.

    Args:
        arch: where kernels run: `ds.cpu`; `ds.cuda`, an NVIDIA GPU; `ds.gpu`, a GPU, or with a warning the
            CPU; `ds.python`, Python itself, slowly, line by line, for debuggers (docs/debugging.md); or a
            list, of which the first that is there is taken. If left out, `ds.cpu`. The environment variable
            DIFFSIM_ARCH (`cpu`, `cuda`, `gpu` or `python`) wins over it. Taichi's other names mean `ds.cpu`
            (`x64`, `x86_64`, `arm64`) or `ds.gpu` (`vulkan`, `metal`, `opengl`, `gles`, `dx11`, `dx12`,
            `amdgpu`).
        default_fp: type of float literals and of `float`: `ds.f32` (default), `ds.f64` or `ds.f16`.
        default_ip: type of int literals and of `int`: `ds.i32` (default) or `ds.i64`.
        debug: check bounds, divisions of integers and assertions in every kernel, and look for NaN and
            infinities (slower).
        strict: a float that a kernel assigns to an integer (an element, a local, a parameter of a func, its
            result) is an error, and so are a break or return in a parallel loop, a local that such a loop
            keeps from one iteration to the next, and a call of a function without `@ds.func`; else the float
            loses its fraction and the loops run in order, with a warning.
        fast_math: let the compiler reorder floating-point arithmetic and approximate divisions. Off by
            default: f64 means f64.
        random_seed: start of the random numbers.
        cpu_max_num_threads: threads of parallel loops; 0: as many as there are processors.
        offline_cache: keep compiled kernels on disk.
        offline_cache_file_path: the folder for them.
        device: number of the GPU.
        device_scratch_size: bytes of GPU memory in which kernels save the values of loops for gradients; 0:
            a 32nd of its memory.
        default_gpu_block_dim: threads in a GPU's blocks, for loops without `ds.loop_config(block_dim=...)`: a
            multiple of 32 up to 1024, or a power of two; 256 if left out.
        deterministic: the same bits in every run. On the CPU this holds for everything, and for any number of
            threads; on a GPU for sums and atomic updates. Slower where lanes share what they update.
        rules: "enforced" (default) refuses gradients of programs that break a rule, with the line; "lifted"
            differentiates them at the cost of memory (`tape.stats()` tells how much): state that is
            overwritten, fields without `needs_grad` on the way to the loss. If left out, what the environment
            variable DIFFSIM_RULES says. `in_place=` of a tape wins over it.
        kernel_simplicity: "relaxed" (default) differentiates kernels of any shape; "strict" refuses gradients
            of those outside the kernel simplicity rule. `simplicity=` of a kernel wins over it.
        check_nan: after each launch, find the operation that made a NaN or an infinity which was stored;
            "nan": for NaN alone. If left out, as `debug` says.
        kernel_profiler: measure each launch, for `ds.profiler` and `tape.stats()`.
        log_level: what is said: "info"; from ds.ERROR on there are no warnings.
        traceback: "short" (default) shows the program's own frames in the tracebacks of diffsim's errors;
            "full" shows those inside diffsim too.

    Raises:
        ArgumentError: an option that does not exist or cannot have this value.
        BackendError: a backend that this machine lacks.

    Example:
        ds.init(arch=ds.cpu, default_fp=ds.f64, random_seed=7)
        x = ds.field(float, shape=3)
        print(x.dtype, ds.device_info())  # prints: f64 the CPU
    """
int16: TypeAlias = int
"""Integers of 16 bits with a sign, `np.int16` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.i16`. Fields are made of it:
`ds.field(ds.i16, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.i16(2.75))  # prints: 2
"""
int32: TypeAlias = int
"""Integers of 32 bits with a sign, `np.int32` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.i32`. Fields are made of it:
`ds.field(ds.i32, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.i32(2.75))  # prints: 2
"""
int64: TypeAlias = int
"""Integers of 64 bits with a sign, `np.int64` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.i64`. Fields are made of it:
`ds.field(ds.i64, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.i64(2.75))  # prints: 2
"""
int8: TypeAlias = int
"""Integers of 8 bits with a sign, `np.int8` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.i8`. Fields are made of it:
`ds.field(ds.i8, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.i8(2.75))  # prints: 2
"""
def is_active(node: Any, indices: Any) -> Any:
    """Whether a cell of a sparse node is active.

    Args:
        node: a `pointer`, `hash` or `bitmasked` node of a layout tree.
        indices: of the cell, counted in cells of the node: a number or a vector of integers, one for each axis.

    Raises:
        KernelTypeError: a node without such cells, or another number of indices.

    Example:
        x = ds.field(ds.f32)
        blocks = ds.root.pointer(ds.i, 4)
        blocks.dense(ds.i, 8).place(x)

        @ds.kernel
        def compute() -> ds.i32:
            x[20] = 1.0  # in block 2
            return ds.is_active(blocks, 2)

        print(compute())  # prints: 1
    """
def is_logging_effective(level: str) -> bool:
    """Return whether something of this level is said.

    Example:
        print(ds.is_logging_effective(ds.ERROR))  # prints: True
    """
def isinf(x: Any) -> Any:
    """Whether it is infinite.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.isinf(-ds.math.inf))  # prints: True
    """
def isnan(x: Any) -> Any:
    """Whether it is not a number.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.isnan(ds.math.nan), ds.isnan(1.0))  # prints: True False
    """
j: Axes
"""Axis 1 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.j, 8).place(x)
    print(x.shape)  # prints: (8,)
"""
from diffsim import jax as jax
jk: Axes
"""Axes 1 and 2 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.jk, 8).place(x)
    print(x.shape)  # prints: (8, 8)
"""
jkl: Axes
"""Axes 1 and 2 and 3 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.jkl, 8).place(x)
    print(x.shape)  # prints: (8, 8, 8)
"""
jl: Axes
"""Axes 1 and 3 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.jl, 8).place(x)
    print(x.shape)  # prints: (8, 8)
"""
k: Axes
"""Axis 2 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.k, 8).place(x)
    print(x.shape)  # prints: (8,)
"""

@overload
def kernel(fn: Callable[P, R]) -> Kernel[P, R]:
    """Decorate a function so that it is compiled and run over fields.

    The outermost loops run in parallel. Parameters have annotations: scalar types are passed by value,
    `ds.types.ndarray()` without a copy, `ds.template()` is compiled in.

    Args:
        fn: the function.
        simplicity: "strict" refuses the gradient of a kernel outside the kernel simplicity rule, "relaxed"
            differentiates it; the option `kernel_simplicity` of `ds.init` if left out.

    Example:
        x = ds.field(ds.f32, shape=8)

        @ds.kernel
        def fill(start: ds.f32) -> ds.f32:
            for i in x:
                x[i] = start + i
            return x[7]

        print(fill(1.0))  # prints: 8.0
    """
@overload
def kernel(fn: None = ..., *, simplicity: str | None = ...) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...

kl: Axes
"""Axes 2 and 3 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.kl, 8).place(x)
    print(x.shape)  # prints: (8, 8)
"""
l: Axes
"""Axis 3 of a layout.

Example:
    x = ds.field(ds.f32)
    ds.root.dense(ds.l, 8).place(x)
    print(x.shape)  # prints: (8,)
"""
def length(node: Any, indices: Any) -> Any:
    """The length of a list of a dynamic node, an i32.

    Args:
        node: a `dynamic` node of a layout tree.
        indices: of the cell that holds the list: a number or a vector of integers.

    Raises:
        KernelTypeError: a node without lists, or another number of indices.

    Example:
        x = ds.field(ds.i32)
        lists = ds.root.dense(ds.i, 4).dynamic(ds.j, 8)
        lists.place(x)

        @ds.kernel
        def compute() -> ds.i32:
            x[1].append(7)
            return ds.length(lists, 1)

        print(compute())  # prints: 1
    """
def lgamma(x: Any) -> Any:
    """Logarithm of the absolute value of the gamma function; infinite at 0, -1, -2, ...

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.lgamma(5.0), ds.log(24.0))  # prints: 3.17805... 3.17805...
    """
from diffsim import linalg as linalg
def load(path: Any, /, *fields: Any, **named: Any) -> None:
    """Read the values of fields from a file that `ds.save` has written.

    All names, shapes and types are checked before the first field changes. In a sparse tree the cells are
    active then that were when the file was written, and no others.

    Args:
        path: of the file.
        fields: read from what is stored under the names that the program has for them.
        named: read from what is stored under these names. The file may hold others as well.

    Raises:
        ArgumentError: there is no such file, or it is no file of arrays; a name is missing, a shape or a
            type differs.

    Example:
        w, v = ds.field(ds.f32, shape=3), ds.field(ds.f32, shape=3)
        w.fill(1.5)
        ds.save("weights.npz", w)
        ds.load("weights.npz", w=v)
        print(v[2])  # prints: 1.5
    """
def load_tape(filename: str) -> Any:
    """Load a tape that `tape.save` wrote, with its fields.

    Args:
        filename: the file. Its kernels read and write memory as any kernel does: load files that you trust.

    Returns:
        The tape, to be replayed and differentiated.

    Raises:
        ArgumentError: there is no such file; it is damaged, or of another version of diffsim; the session's
            options would give other results.

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        y = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 3.0

        @ds.kernel
        def square():
            y[None] = x[None] ** 2

        with ds.Tape(y) as tape:
            square()
        tape.save("square.tape")

        loaded = ds.load_tape("square.tape")  # in another process, say
        loaded.fields["x"][None] = 5.0
        loaded.replay()
        loaded.backward()
        print(loaded.loss[None], loaded.fields["x"].grad[None])  # prints: 25.0 10.0
    """
def log(x: Any) -> Any:
    """Natural logarithm; -inf at 0, NaN below.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.log(ds.math.e))  # prints: 1.0
    """
def log2(x: Any) -> Any:
    """Logarithm to the base 2; -inf at 0, NaN below.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.log2(8.0))  # prints: 3.0
    """
def logical_and(*operands: Any) -> Any:
    """Whether all are true, element by element; all of them are evaluated.

    Example:
        print(ds.logical_and(True, 2 > 1, 0))  # prints: False
    """
def logical_not(a: Any) -> Any:
    """Whether it is false, element by element.

    Example:
        print(ds.logical_not(0))  # prints: True
    """
def logical_or(*operands: Any) -> Any:
    """Whether any is true, element by element; all of them are evaluated.

    Example:
        print(ds.logical_or(False, 2 > 1))  # prints: True
    """
def loop_config(*, block_dim: Any = ..., serialize: Any = ..., parallelize: Any = ..., block_dim_adaptive: Any = ..., bit_vectorize: Any = ..., name: Any = ..., independent: Any = ...) -> Any:
    """Options of the kernel's next outermost loop. `serialize=True` runs its iterations in order. `block_dim=n` gives the blocks of its GPU launch, and of its adjoint's, n threads: a multiple of 32 up to 1024, or a power of two; `ds.init(default_gpu_block_dim=n)` is for loops that do not say. That changes nothing on the CPU. `independent=True` is your word, for the gradient, that no two iterations touch one element unless both add to it; `debug=True` checks it. `parallelize`, `block_dim_adaptive`, `bit_vectorize` and `name`, which Taichi knows, change nothing at all.

    Example:
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def compute():
            ds.loop_config(serialize=True)
            for i in range(1, 4):
                x[i] = x[i - 1] + 2

        compute()
        print(x.to_numpy())  # prints: [0 2 4 6]
    """
def loop_unique(val: Any, covers: Any = ...) -> Any:
    """Taichi's promise that a value is another one in each iteration: the value itself. For gradients `ds.loop_config(independent=True)` promises it, which `debug=True` checks.

    Example:
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def compute():
            for i in x:
                x[ds.loop_unique(i)] = 2 * i

        compute()
        print(x[3])  # prints: 6
    """
from diffsim import math as math
def max(*args: Any) -> Any:
    """Larger of two; at a tie the derivative goes to the first.

    Takes floats or integers; vectors, matrices and arrays element by element.

    Example:
        print(ds.max(3.0, 1.5))  # prints: 3.0
    """
def mesh_local(*args: Any) -> Any:
    """Taichi's hint to keep attributes of a mesh in the shared memory of a GPU's blocks; it changes nothing, as the compiler decides.

    Example:
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def compute():
            ds.mesh_local(x)
            for i in x:
                x[i] = 2 * i

        compute()
        print(x[3])  # prints: 6
    """
metal: Arch
"""A GPU if there is one, else the CPU, with a warning.

Kernels run there after `ds.init(arch=ds.gpu)`.

Example:
    ds.init(arch=ds.gpu)
    print(ds.device_info())  # prints: GPU 0 (...
"""
def min(*args: Any) -> Any:
    """Smaller of two; at a tie the derivative goes to the first.

    Takes floats or integers; vectors, matrices and arrays element by element.

    Example:
        print(ds.min(3, 1, 2))  # prints: 1
    """
def ndarray(dtype: DType | None, shape: Any, needs_grad: bool = ..., needs_dual: bool = ...) -> Field:
    """Make an array for arguments annotated `ds.types.ndarray()`; used from Python like a field.

    Args:
        dtype: scalar type, or `ds.types.vector/matrix`.
        shape: number of elements along each axis.
        needs_grad: whether gradients with respect to it are wanted.
        needs_dual: whether forward mode's tangents of it are wanted (`x.dual`).

    Example:
        a = ds.ndarray(ds.types.vector(2, ds.f32), shape=8)
        a[0] = [1.0, 2.0]
        print(a.shape, a[0])  # prints: (8,) [1.0, 2.0]
    """
def ndrange(*args: Any) -> Any:
    """All index tuples of a box: `for i, j in ds.ndrange(n, (1, m))`; the outermost one runs in parallel.

    Example:
        x = ds.field(ds.i32, shape=(2, 4))

        @ds.kernel
        def compute():
            for i, j in ds.ndrange(2, (1, 3)):
                x[i, j] = 1

        compute()
        print(x.to_numpy().tolist())  # prints: [[0, 1, 1, 0], [0, 1, 1, 0]]
    """
def no_activate(*args: Any) -> Any:
    """A promise that stores in this loop reach active elements of a sparse field: taken, and not needed.

    Example:
        x = ds.field(ds.f32)
        blocks = ds.root.pointer(ds.i, 4)
        blocks.dense(ds.i, 8).place(x)

        @ds.kernel
        def compute():
            ds.no_activate(blocks)
            for i in x:
                x[i] += 1.0

        compute()
        print(x[0])  # prints: 0.0
    """
def one(x: Any) -> Any:
    """1 of the type of a value, in every element: `ds.one(x)`.

    Example:
        print(ds.one(ds.Vector([3.0, 4.0])), ds.one(7))  # prints: [1.0, 1.0] 1
    """
opengl: Arch
"""A GPU if there is one, else the CPU, with a warning.

Kernels run there after `ds.init(arch=ds.gpu)`.

Example:
    ds.init(arch=ds.gpu)
    print(ds.device_info())  # prints: GPU 0 (...
"""
from diffsim import optim as optim
def polar_decompose(A: Any, dt: DType | None = ...) -> Any:
    """R, S with A = R @ S, R orthogonal and S symmetric, for 2 x 2 and 3 x 3 matrices of floats.

    For 3 x 3, R is a rotation, and S has a negative eigenvalue where det(A) < 0; for 2 x 2, R is then a
    reflection, and S has none. (Both as in Taichi.)

    Example:
        R, S = ds.polar_decompose(ds.Matrix([[0.0, -2.0], [2.0, 0.0]]))
        print(R, S)  # prints: [[0.0, -1.0], [1.0, 0.0]] [[2.0, 0.0], [0.0, 2.0]]
    """
def pow(base: Any, exponent: Any) -> Any:
    """base to the power exponent. Where a derivative has no finite value (base = 0 with exponent < 1, the logarithm at base <= 0) it is 0.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.pow(2.0, -1.0))  # prints: 0.5
    """
def precompile(*kernels: Any, gradients: bool = ..., processes: int | None = ...) -> None:
    """Compile kernels before they are called, several at a time.

    Without it each kernel is compiled at its first call. It needs the cache on disk; without it, on a GPU and
    on systems other than Linux the kernels are compiled one after the other.

    Args:
        kernels: kernels; (kernel, argument, ...) for one that is compiled for its arguments.
        gradients: whether adjoints are compiled too, of kernels that have a gradient.
        processes: how many compile at once; the number of processors, if left out.

    Raises:
        ArgumentError: something else than a kernel, or a number of processes below 1.
        DiffsimError: what the first call would raise, as for a kernel that cannot be compiled.

    Example:
        x = ds.field(ds.f32, shape=4, needs_grad=True)
        y = ds.field(ds.f32, shape=4, needs_grad=True)

        @ds.kernel
        def double():
            for i in x:
                y[i] = 2.0 * x[i]

        @ds.kernel
        def power(n: ds.template()):
            for i in x:
                y[i] = x[i] ** n

        ds.precompile(double, (power, 3))
        x.fill(2.0)
        power(3)
        print(y[0])  # prints: 8.0
    """
from diffsim import profiler as profiler
def pyfunc(fn: F) -> F:
    """Decorate a function that kernels call, as `ds.func`, and Python as well, where it runs as it is.

    Example:
        @ds.pyfunc
        def square(a):
            return a * a

        @ds.kernel
        def compute(a: ds.f32) -> ds.f32:
            return square(a)

        print(square(3), compute(3.0))  # prints: 9 9.0
    """
python: Arch
"""Python itself: kernels run line by line, slowly, where a debugger sees them.

Kernels run there after `ds.init(arch=ds.python)`.

Example:
    ds.init(arch=ds.python)
    print(ds.device_info())  # prints: Python...
"""
def randn(dt: DType | None = ...) -> Any:
    """A random number with the standard normal distribution (G. E. P. Box, M. E. Muller, 1958).

    Example:
        x = ds.field(ds.f32, shape=1000)

        @ds.kernel
        def compute():
            for i in x:
                x[i] = ds.randn()

        compute()
        print(abs(x.to_numpy().mean()) < 0.2)  # prints: True
    """
def random(dtype: DType | None = ...) -> Any:
    """A random number: floats uniform in [0, 1), integers over their whole range. The sequence depends on `ds.init(random_seed=...)`, the launch and the loop index alone; an adjoint draws the same numbers.

    Example:
        x = ds.field(ds.f32, shape=1000)

        @ds.kernel
        def compute():
            for i in x:
                x[i] = ds.random()

        compute()
        a = x.to_numpy()
        print(a.min() >= 0.0, a.max() < 1.0)  # prints: True True
    """
def raw_div(x1: Any, x2: Any) -> Any:
    """The quotient as C has it: of integers rounded towards 0, and 0 where x2 is 0; of floats x1 / x2.

    Example:
        print(ds.raw_div(-7, 2), -7 // 2)  # prints: -3 -4
    """
def raw_mod(x1: Any, x2: Any) -> Any:
    """Integer remainder with the sign of x1, as in C; 0 if x2 is 0.

    Takes integers; vectors, matrices and arrays element by element.

    Example:
        print(ds.raw_mod(-7, 2))  # prints: -1
    """
def real_func(fn: F) -> F:
    """Decorate a function for kernels whose parameters and result all have types, to which calls convert.

    It may return from anywhere, and it cannot call itself. It is translated in place of each call, as
    every func is.

    Example:
        @ds.real_func
        def smaller(a: ds.f32, b: ds.f32) -> ds.f32:
            if a < b:
                return a
            return b

        @ds.kernel
        def compute(a: ds.i32) -> ds.f32:
            return smaller(a, 2.5)

        print(compute(3))  # prints: 2.5
    """
def rescale_index(a: Any, b: Any, I: Any) -> Any:
    """The index at the resolution of another field or node: of the block that an element is in.

    Args:
        a: the field or node that the index is of.
        b: the field or node of the result; their shapes divide one another.
        I: an index of a, a number or a vector of integers.

    Example:
        x, coarse = ds.field(ds.f32, shape=64), ds.field(ds.f32, shape=8)
        print(ds.rescale_index(x, coarse, [20]))  # prints: [2]
    """
def reset() -> None:
    """Forget compiled kernels, options and the layout tree; fields stay usable.

    Example:
        ds.init(default_fp=ds.f64)
        x = ds.field(float, shape=3)
        ds.reset()
        print(x.dtype, ds.field(float, shape=3).dtype)  # prints: f64 f32
    """
def rgb_to_hex(c: Sequence[float] | np.ndarray) -> Any:
    """Return the colour 0xRRGGBB of red, green and blue between 0 and 1; arrays of them give an array.

    Example:
        print(hex(ds.rgb_to_hex((1.0, 0.0, 0.2))))  # prints: 0xff0033
    """
root: Node
"""`ds.root`: where layout trees begin.

Example:
    x, v = ds.field(ds.f32), ds.Vector.field(3, ds.f32)
    ds.root.dense(ds.i, 8).place(x, v)
    print(x.shape, v[7])  # prints: (8,) [0.0, 0.0, 0.0]
"""
def round(x: Any, dtype: DType | None = ...) -> Any:
    """Nearest whole number, halves to even.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.round(2.5), ds.round(3.5, ds.i32))  # prints: 2.0 4
    """
def rsqrt(x: Any) -> Any:
    """1 / sqrt(x).

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.rsqrt(4.0))  # prints: 0.5
    """
def save(path: Any, /, *fields: Any, **named: Any) -> None:
    """Write the values of fields to a file, which `ds.load` and `numpy.load` read.

        ds.save("weights.npz", w, b)
        ds.save("state.npz", position=x, velocity=v)

    Args:
        path: where; a file that is there is replaced when all is written.
        fields: stored under the names that the program has for them.
        named: stored under these names. A field of structs is stored as "name.member" for each member, one
            in a sparse tree with the cells that are active.

    Raises:
        ArgumentError: a field without a name, two of one name; the file cannot be written.

    Example:
        w = ds.field(ds.f32, shape=3)
        w.fill(1.5)
        ds.save("weights.npz", w)
        print(np.load("weights.npz")["w"].tolist())  # prints: [1.5, 1.5, 1.5]
    """
def select(cond: Any, x1: Any, x2: Any) -> Any:
    """x1 where cond holds, else x2; both are evaluated.

    Takes a truth value and numbers of any type; vectors, matrices and arrays element by element.

    Example:
        print(ds.select(2 > 1, 10.0, 20.0))  # prints: 10.0
    """
def set_logging_level(level: str) -> None:
    """Choose what is said: ds.TRACE, DEBUG, INFO, WARN (warnings too), ERROR (errors only) or CRITICAL.

    Example:
        ds.set_logging_level(ds.ERROR)  # no warnings
        print(ds.is_logging_effective(ds.WARN))  # prints: False
    """
def sign(x: Any) -> Any:
    """-1, 0 or 1; NaN of NaN.

    Takes floats or integers; vectors, matrices and arrays element by element.

    Example:
        print(ds.sign(-3.0))  # prints: -1.0
    """
def sin(x: Any) -> Any:
    """Sine of x [rad].

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.sin(ds.math.pi / 2))  # prints: 1.0
    """
def sinh(x: Any) -> Any:
    """Hyperbolic sine, (e^x - e^-x) / 2.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.sinh(0.0), ds.sinh(1.0))  # prints: 0.0 1.17520...
    """
def solve(A: Any, b: Any, dt: DType | None = ...) -> Any:
    """The x with A x = b, of a square matrix up to 6 x 6 and a vector or matrix (Gaussian elimination).

    Raises:
        KernelTypeError: the matrix is not square or larger than 6 x 6, or has another number of rows.

    Example:
        A = ds.Matrix([[2.0, 1.0], [1.0, 3.0]])
        print(ds.solve(A, ds.Vector([3.0, 4.0])))  # prints: [1.0, 1.0]
    """
def sqrt(x: Any) -> Any:
    """Square root, NaN below 0; derivative 0 at 0.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.sqrt(9.0))  # prints: 3.0
    """

@overload
def static(x: T, /) -> T:
    """Evaluate while compiling: unrolls `for i in ds.static(range(3))`, decides `if ds.static(flag)`.

    Example:
        @ds.kernel
        def compute() -> ds.i32:
            total = 0
            for i in ds.static(range(3)):  # written out three times
                total += i
            return total

        print(compute())  # prints: 3
    """
@overload
def static(x: Any, *xs: Any) -> tuple[Any, ...]: ...

def static_assert(cond: Any, msg: Any = ...) -> Any:
    """Refuse to compile the kernel where a condition that is known before the launch does not hold: `ds.static_assert(x.shape[0] > 1, "x is too short")`.

    Example:
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def compute() -> ds.i32:
            ds.static_assert(x.shape[0] > 1, "x is too short")
            return x.shape[0]

        print(compute())  # prints: 4
    """
def static_print(*args: Any, sep: Any = ..., end: Any = ...) -> Any:
    """Print while the kernel is compiled: constants as Python does, other values by their type.

    Example:
        @ds.kernel
        def compute(a: ds.f32) -> ds.f32:
            ds.static_print("squaring", a)
            return a * a

        print(compute(3.0))
        # prints: squaring <an f32>
        # prints: 9.0
    """
def stop_grad(x: T) -> T:
    """The value itself, with derivative 0. As a statement with a field, `ds.stop_grad(x)`: all that the loop around it (outside loops: the kernel) reads from x is constant. In Python: what the field x holds now is a constant on the tape.

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        y = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 3.0

        @ds.kernel
        def compute():
            y[None] += x[None] * ds.stop_grad(x[None])

        with ds.Tape(y):
            compute()
        print(y[None], x.grad[None])  # prints: 9.0 3.0
    """
def svd(A: Any, dt: DType | None = ...) -> Any:
    """U, sigma, V with A = U @ sigma @ V.transpose(), for 2 x 2 and 3 x 3 matrices of floats.

    `sigma` is a diagonal matrix, largest value first. V is a rotation. For 3 x 3, U is one too, and the last
    singular value is negative where det(A) < 0; for 2 x 2, U is then a reflection. (Both as in Taichi.)
    Accurate to a few units in the last place of the largest singular value. The gradient is exact for equal
    singular values too, wherever there is one: see docs/decompositions.md.

    Example:
        U, sigma, V = ds.svd(ds.Matrix([[3.0, 0.0], [0.0, 2.0]]))
        print(sigma)  # prints: [[3.0, 0.0], [0.0, 2.0]]
    """
def sym_eig(A: Any, dt: DType | None = ...) -> Any:
    """Eigenvalues (a vector) and eigenvectors (the columns of a rotation) of a symmetric matrix of floats.

    2 x 2 with the largest eigenvalue first, 3 x 3 with the smallest first, as in Taichi. What is decomposed
    is the symmetric part of the matrix, and the gradient is symmetric.

    Example:
        values, vectors = ds.sym_eig(ds.Matrix([[2.0, 1.0], [1.0, 2.0]]))
        print(ds.round(values))  # prints: [3.0, 1.0]
    """
def sym_map(f: Any, A: Any) -> Any:
    """f of a symmetric matrix: its eigenvectors, and f of its eigenvalues.

    `ds.sym_map(ds.log, C)` is the logarithm of a matrix. f is a `@ds.func` of one number, or an op. The
    gradient is exact for equal eigenvalues too.

    Example:
        @ds.kernel
        def compute(a: ds.f32) -> ds.math.mat2:
            return ds.sym_map(ds.sqrt, ds.Matrix([[a, 0.0], [0.0, 9.0]]))

        print(ds.round(compute(4.0)))  # prints: [[2.0, 0.0], [0.0, 3.0]]
    """
def sync() -> None:
    """Wait until all launches are done (on the CPU they always are).

    Raises:
        CheckError: an index out of bounds or a failed assertion in a kernel on a GPU.

    Example:
        x = ds.field(ds.f32, shape=3)
        x.fill(1.5)
        ds.sync()  # on a GPU, what was launched has ended now
        print(x[0])  # prints: 1.5
    """
def tan(x: Any) -> Any:
    """Tangent of x [rad].

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.tan(ds.math.pi / 3) ** 2)  # prints: 2.9999...
    """
def tanh(x: Any) -> Any:
    """Hyperbolic tangent, sinh(x) / cosh(x).

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.tanh(0.0), ds.tanh(20.0))  # prints: 0.0 1.0
    """
template: TypeAlias = Any
"""Annotate an argument that the kernel is compiled for: a field, a constant, a function, an object.

Written `x: ds.template()`, or `x: ds.template`, as type checkers want it. The kernel is compiled anew for
each field or value that it gets. What a func does to a parameter `x: ds.template()` happens to the
caller's variable.

Args:
    tensor: taken and ignored, as by Taichi.
    dim: likewise.

Example:
    @ds.kernel
    def double(x: ds.template()):
        for i in x:
            x[i] *= 2.0

    a = ds.field(ds.f32, shape=3)
    a.fill(1.5)
    double(a)
    print(a[0])  # prints: 3.0
"""
from diffsim import tools as tools
from diffsim import torch as torch
def trigamma(x: Any) -> Any:
    """Derivative of digamma; infinite at 0, -1, -2, ...

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.trigamma(1.0), ds.math.pi**2 / 6)  # prints: 1.64493... 1.64493...
    """
def trunc(x: Any, dtype: DType | None = ...) -> Any:
    """Whole part, rounded towards zero.

    Takes floats (in a kernel, integers become the default float); vectors, matrices and arrays element by element.

    Example:
        print(ds.trunc(-1.5))  # prints: -1.0
    """
from diffsim import types as types
u1: TypeAlias = bool
"""Truth values, `np.bool` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.u1`. Fields are made of it:
`ds.field(ds.u1, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.u1(2.75))  # prints: True
"""
u16: TypeAlias = int
"""Integers of 16 bits without a sign, `np.uint16` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.u16`. Fields are made of it:
`ds.field(ds.u16, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.u16(2.75))  # prints: 2
"""
u32: TypeAlias = int
"""Integers of 32 bits without a sign, `np.uint32` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.u32`. Fields are made of it:
`ds.field(ds.u32, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.u32(2.75))  # prints: 2
"""
u64: TypeAlias = int
"""Integers of 64 bits without a sign, `np.uint64` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.u64`. Fields are made of it:
`ds.field(ds.u64, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.u64(2.75))  # prints: 2
"""
u8: TypeAlias = int
"""Integers of 8 bits without a sign, `np.uint8` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.u8`. Fields are made of it:
`ds.field(ds.u8, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.u8(2.75))  # prints: 2
"""
from diffsim import ui as ui
uint16: TypeAlias = int
"""Integers of 16 bits without a sign, `np.uint16` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.u16`. Fields are made of it:
`ds.field(ds.u16, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.u16(2.75))  # prints: 2
"""
uint32: TypeAlias = int
"""Integers of 32 bits without a sign, `np.uint32` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.u32`. Fields are made of it:
`ds.field(ds.u32, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.u32(2.75))  # prints: 2
"""
uint64: TypeAlias = int
"""Integers of 64 bits without a sign, `np.uint64` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.u64`. Fields are made of it:
`ds.field(ds.u64, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.u64(2.75))  # prints: 2
"""
uint8: TypeAlias = int
"""Integers of 8 bits without a sign, `np.uint8` in NumPy.

As an annotation it is the type of an argument, a result or a member: `t: ds.u8`. Fields are made of it:
`ds.field(ds.u8, shape=8)`. Called, it converts a number; floats lose their fraction on the way to
integers, and stay within their range.

Example:
    print(ds.u8(2.75))  # prints: 2
"""
vulkan: Arch
"""A GPU if there is one, else the CPU, with a warning.

Kernels run there after `ds.init(arch=ds.gpu)`.

Example:
    ds.init(arch=ds.gpu)
    print(ds.device_info())  # prints: GPU 0 (...
"""
x64: Arch
"""The CPU: kernels are compiled to machine code, whose parallel loops run on all cores.

Kernels run there after `ds.init(arch=ds.cpu)`.

Example:
    ds.init(arch=ds.cpu)
    print(ds.device_info())  # prints: the CPU
"""
x86_64: Arch
"""The CPU: kernels are compiled to machine code, whose parallel loops run on all cores.

Kernels run there after `ds.init(arch=ds.cpu)`.

Example:
    ds.init(arch=ds.cpu)
    print(ds.device_info())  # prints: the CPU
"""
def zero(x: Any) -> Any:
    """0 of the type of a value, in every element: `ds.zero(x)`.

    Example:
        print(ds.zero(ds.Vector([3.0, 4.0])), ds.zero(7))  # prints: [0.0, 0.0] 0
    """
class _Tensor:
    """A small vector or matrix of numbers.

    Args:
        arr: the elements: a list, a list of rows, or an array with one or two axes.
        dt: scalar type of the elements; NumPy's choice if left out.

    Operators work element by element; `@` multiplies matrices, and a matrix by a vector. Elements are
    `m[i, j]`, those of a vector also `v.x`, `v.y`, `v.z`, `v.w` and `v.xy`. Without `dt` it adopts the
    precision of what it meets in a kernel.

    Raises:
        ArgumentError: these are no numbers, or rows of different lengths.

    Example:
        m = ds.Matrix([[0.0, -1.0], [1.0, 0.0]])
        print(m @ ds.Vector([1.0, 2.0]), m * 2.0)  # prints: [-2.0, 1.0] [[0.0, -2.0], [2.0, 0.0]]
    """
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
        """Whether all elements are true, or not 0: `(a < b).all()`.

        Example:
            print((ds.Vector([1, 2]) < ds.Vector([2, 2])).all())  # prints: False
        """
    def any(self) -> Any:
        """Whether any element is true, or not 0: `(a < b).any()`.

        Example:
            print((ds.Vector([1, 2]) < ds.Vector([2, 2])).any())  # prints: True
        """
    def cast(self, dtype: DType) -> Any: ...
    def cross(self, other: Any) -> Any:
        """Vector product of two 3-vectors; of two 2-vectors its (scalar) third component.

        Raises:
            KernelTypeError: these are no two vectors of 2 or of 3 elements.

        Example:
            print(ds.Vector([1.0, 0.0, 0.0]).cross(ds.Vector([0.0, 1.0, 0.0])))  # prints: [0.0, 0.0, 1.0]
        """
    def determinant(self) -> Any:
        """Determinant of a matrix up to 4 x 4 (expansion by minors).

        Raises:
            KernelTypeError: the matrix is not square, or larger than 4 x 4.

        Example:
            print(ds.Matrix([[1, 2], [3, 4]]).determinant())  # prints: -2
        """
    def dot(self, other: Any) -> Any:
        """Scalar product of two vectors (of two matrices: sum of the products of their elements).

        Raises:
            KernelTypeError: the shapes differ.

        Example:
            print(ds.Vector([1.0, 2.0]).dot(ds.Vector([3.0, 4.0])))  # prints: 11.0
        """
    def fill(self, val: Any) -> None:
        """Set all elements.

        Example:
            v = ds.Vector([1.0, 2.0])
            v.fill(3.0)
            print(v)  # prints: [3.0, 3.0]
        """
    def get_shape(self) -> tuple[int, ...]:
        """Return `shape`, as Taichi's programs ask for it.

        Example:
            print(ds.Vector([1, 2, 3]).get_shape())  # prints: (3,)
        """
    def inverse(self) -> Any:
        """Inverse of a matrix up to 4 x 4 (adjugate over determinant).

        Raises:
            KernelTypeError: the matrix is not square, or larger than 4 x 4.

        Example:
            print(ds.Matrix([[1.0, 2.0], [3.0, 4.0]]).inverse())  # prints: [[-2.0, 1.0], [1.5, -0.5]]
        """
    @property
    def m(self) -> int:
        """Number of columns (1 of a vector).

        Example:
            print(ds.Matrix([[1, 2, 3], [4, 5, 6]]).m, ds.math.vec3.m)  # prints: 3 1
        """
    def max(self) -> Any:
        """Largest element.

        Example:
            print(ds.Vector([3, 1, 2]).max())  # prints: 3
        """
    def min(self) -> Any:
        """Smallest element.

        Example:
            print(ds.Vector([3, 1, 2]).min())  # prints: 1
        """
    @property
    def n(self) -> int:
        """Number of rows (of elements, of a vector).

        Example:
            print(ds.Matrix([[1, 2, 3], [4, 5, 6]]).n, ds.math.vec3.n)  # prints: 2 3
        """
    @property
    def ndim(self) -> int:
        """1 of a vector, 2 of a matrix.

        Example:
            print(ds.Matrix([[1, 2], [3, 4]]).ndim, ds.math.vec3.ndim)  # prints: 2 1
        """
    def norm(self, eps: Any = ...) -> Any:
        """sqrt(norm_sqr() + eps); its derivative at 0 is 0.

        Example:
            print(ds.Vector([3.0, 4.0]).norm())  # prints: 5.0
        """
    def norm_inv(self, eps: Any = ...) -> Any:
        """1 / norm(eps).

        Example:
            print(ds.Vector([3.0, 4.0]).norm_inv())  # prints: 0.2
        """
    def norm_sqr(self, eps: Any = ...) -> Any:
        """Sum of the squares of the elements, plus eps.

        Example:
            print(ds.Vector([3.0, 4.0]).norm_sqr())  # prints: 25.0
        """
    def normalized(self, eps: Any = ...) -> Any:
        """The vector divided by (norm() + eps).

        Example:
            print(ds.Vector([3.0, 4.0]).normalized())  # prints: [0.6, 0.8]
        """
    def outer_product(self, other: Any) -> Any:
        """Matrix of the products a[i] * other[j].

        Example:
            print(ds.Vector([1, 2]).outer_product(ds.Vector([3, 4])))  # prints: [[3, 4], [6, 8]]
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """(n,) of a vector, (n, m) of a matrix.

        Example:
            print(ds.Matrix([[1, 2, 3], [4, 5, 6]]).shape)  # prints: (2, 3)
        """
    def sum(self) -> Any:
        """Sum of all elements.

        Example:
            print(ds.Matrix([[1, 2], [3, 4]]).sum())  # prints: 10
        """
    def to_list(self) -> list[Any]:
        """Return the elements as (nested) lists of Python numbers.

        Example:
            print(ds.Vector([1.0, 2.0]).to_list())  # prints: [1.0, 2.0]
        """
    def to_numpy(self) -> np.ndarray:
        """Return a copy as a NumPy array.

        Example:
            print(ds.Matrix([[1, 2], [3, 4]]).to_numpy().sum(axis=0))  # prints: [4 6]
        """
    def trace(self) -> Any:
        """Sum of the diagonal.

        Raises:
            KernelTypeError: the matrix is not square.

        Example:
            print(ds.Matrix([[1, 2], [3, 4]]).trace())  # prints: 5
        """
    def transpose(self) -> Any:
        """Matrix with rows and columns exchanged.

        Example:
            print(ds.Matrix([[1, 2], [3, 4]]).transpose())  # prints: [[1, 3], [2, 4]]
        """
    @property
    def w(self) -> Any:
        """Element 3.

        Example:
            print(ds.Vector([1, 2, 3, 4]).w)  # prints: 4
        """
    @w.setter
    def w(self, value: Any) -> None: ...
    @property
    def x(self) -> Any:
        """Element 0.

        Example:
            print(ds.Vector([1, 2, 3, 4]).x)  # prints: 1
        """
    @x.setter
    def x(self, value: Any) -> None: ...
    @property
    def y(self) -> Any:
        """Element 1.

        Example:
            print(ds.Vector([1, 2, 3, 4]).y)  # prints: 2
        """
    @y.setter
    def y(self, value: Any) -> None: ...
    @property
    def z(self) -> Any:
        """Element 2.

        Example:
            print(ds.Vector([1, 2, 3, 4]).z)  # prints: 3
        """
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
    """A node of the tree: some axes with their sizes, inside another node.

    Attributes:
        kind: "root", "dense", or the kind of a sparse node.
        cells: which cells are active: of the node itself if it is sparse, else of the innermost sparse node
            around it; None: there is none.
        fields: those placed here or below: a tree does not keep them.
    """
    fields: Any
    def bitmasked(self, axes: Axes, dimensions: Any) -> Node:
        """Divide each element into an array whose cells are active or not.

        Example:
            x = ds.field(ds.f32)
            ds.root.bitmasked(ds.i, 32).place(x)
            x[20] = 1.0  # activates this element
            print(x[20], x[0], x.shape)  # prints: 1.0 0.0 (32,)
        """
    @property
    def bytes_in_use(self) -> int:
        """How much memory the fields placed here or below take, with their gradients and masks.

        Example:
            x = ds.field(ds.f32)
            cells = ds.root.dense(ds.i, 8)
            cells.place(x)
            print(cells.bytes_in_use)  # prints: 32
        """
    def deactivate_all(self) -> None:
        """Make all cells of this node inactive, and those below: their elements are 0 from now on.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.pointer(ds.i, 4)
            blocks.dense(ds.i, 8).place(x)
            x[20] = 1.0  # activates block 2
            blocks.deactivate_all()
            print(x[20])  # prints: 0.0
        """
    def dense(self, axes: Axes, dimensions: Any) -> Node:
        """Divide each element into a dense array.

        Args:
            axes: `ds.i`, `ds.ij`, ...
            dimensions: number of elements along each of the axes, or one number for all of them.

        Example:
            x = ds.field(ds.f32)
            ds.root.dense(ds.ij, (4, 8)).dense(ds.ij, 2).place(x)
            print(x.shape)  # prints: (8, 16)
        """
    def dynamic(self, axis: Axes, dimension: Any, chunk_size: Any = ...) -> Node:
        """Divide each element into a list, whose length changes.

        Args:
            axis: one that no node above has.
            dimension: the most elements of a list.
            chunk_size: how many elements loops take at once; a number that suits `dimension` if left out.

        Example:
            x = ds.field(ds.i32)
            ds.root.dense(ds.i, 4).dynamic(ds.j, 8).place(x)

            @ds.kernel
            def compute() -> ds.i32:
                x[1].append(7)
                x[1].append(8)
                return x[1].length()

            print(compute(), x[1, 0], x[1, 1])  # prints: 2 7 8
        """
    finalized: bool
    def lazy_dual(self) -> None:
        """Give a dual, for forward mode, to every float field placed below this node.

        Example:
            x = ds.field(ds.f32)
            ds.root.dense(ds.i, 8).place(x)
            ds.root.lazy_dual()
            print(x.dual.shape)  # prints: (8,)
        """
    def lazy_grad(self) -> None:
        """Give a gradient to every float field placed below this node.

        Example:
            x = ds.field(ds.f32)
            ds.root.dense(ds.i, 8).place(x)
            ds.root.lazy_grad()
            print(x.grad.shape)  # prints: (8,)
        """
    def parent(self, n: int = ...) -> Node:
        """Return the node around this one, or the n-th from here outwards.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.dense(ds.i, 4)
            cells = blocks.dense(ds.i, 8)
            print(cells.parent() is blocks, blocks.parent() is ds.root)  # prints: True True
        """
    def place(self, *args: Any, offset: Any = ...) -> Node:
        """Allocate fields (and their gradients, if any) with the axes of this node.

        Args:
            args: fields made without a shape.
            offset: the index of the first element, a number for each axis; 0 if left out.

        Example:
            x, v = ds.field(ds.f32), ds.Vector.field(3, ds.f32)
            ds.root.dense(ds.i, 8).place(x, v)
            print(x.shape, v.shape)  # prints: (8,) (8,)
        """
    def pointer(self, axes: Axes, dimensions: Any) -> Node:
        """Divide each element into an array whose cells are active or not.

        Example:
            x = ds.field(ds.f32)
            blocks = ds.root.pointer(ds.i, 4)
            blocks.dense(ds.i, 8).place(x)
            x[20] = 1.0  # activates block 2
            print(x[20], x[0], x.shape)  # prints: 1.0 0.0 (32,)
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of cells along each axis that it or a node above it divides.

        Example:
            print(ds.root.dense(ds.i, 4).dense(ds.i, 8).shape)  # prints: (32,)
        """
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
