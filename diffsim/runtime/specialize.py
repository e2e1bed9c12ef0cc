"""A kernel compiled for one combination of compiled-in arguments, and its adjoint, made when asked for."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from diffsim.errors import GlobalDataAccessError
from diffsim.ir.nodes import Kernel as IR
from diffsim.ir.nodes import Load, Mem
from diffsim.ir.types import TensorType
from diffsim.lang.matrix import Matrix
from diffsim.lang.translate import Translation
from diffsim.passes import access, reverse
from diffsim.passes.access import Access
from diffsim.passes.activity import Activity, missing_gradient
from diffsim.runtime import launch
from diffsim.runtime.arguments import Parameter
from diffsim.runtime.compile import Compiled
from diffsim.runtime.field import Field
from diffsim.runtime.versions import Versions

if TYPE_CHECKING:
    from diffsim.runtime.kernel import Kernel

_FOREVER = 1 << 62


class Special:
    """One compiled kernel.

    Attributes:
        kernel: the user's kernel.
        translation: the frontend's result, with what it captured.
        ir: the prepared IR.
        values: the parameters that a launch passes.
        launch: the launch function (`launch.py`).
        last: the clock's reading at the last launch; `stamps` at the last one with given arguments.
        stale: whether something that it was compiled for is gone.
    """

    def __init__(
        self,
        kernel: Kernel,
        translation: Translation,
        ir: IR,
        values: list[Parameter],
        arrays: dict[str, Any],
        simplicity: str,
    ) -> None:
        self.kernel = kernel
        self.translation = translation
        self.ir = ir
        self.values = values
        self.arrays = arrays
        self.simplicity = simplicity
        self.stale = False
        self.last = _FOREVER
        self.seed = 0
        self.stamps: dict[Any, int] = {}
        self.snapshots = {
            id(c): launch._snapshot(c.value) for c in launch.watched(translation.captures)
        }
        for mem in ir.mems:
            if mem.kind == "field":
                weakref.finalize(mem.handle(), _drop, weakref.ref(self))
        self.read = access.reads(ir)
        self.written = access.writes(ir)
        for a in (*self.read, *self.written):
            self._choose_axis(a)
        self.differentiable = any(m.grad is not None for m in ir.mems)
        self.on_tape = self.differentiable or any(a.mem.dtype.is_float for a in self.written)

    def _choose_axis(self, a: Access) -> None:
        """The first axis that a kernel indexes with an argument becomes the field's time axis."""
        if a.mem.kind != "field":
            return
        versions = self.versions_of(a.mem)
        axes = [r.axis for r in a.part if r.argument is not None]
        if versions.axis is None and axes:
            versions.axis = min(axes)

    @staticmethod
    def versions_of(mem: Mem) -> Versions:
        return mem.handle().versions  # type: ignore[no-any-return]

    def array_name(self, mem: Mem) -> str:
        """The parameter behind an array's memory (or behind that of its gradient)."""
        for name, ref in self.arrays.items():
            if ref._mem is mem or ref._mem.grad is mem:
                return name
        raise KeyError(mem.name)

    # ---- forward

    @functools.cached_property
    def compiled(self) -> Compiled:
        return Compiled(self.ir)

    @functools.cached_property
    def launch(self) -> Callable[..., Any]:
        return launch.forward(self)

    def recheck(self) -> bool:
        """Whether captured values changed so that the kernel must be compiled anew."""
        if launch.recheck(self):
            self.stale = True
        return self.stale

    def forget_launch(self) -> None:
        """Write the launch function anew at the next launch."""
        self.__dict__.pop("launch", None)
        if self.kernel.signature.plain:
            self.kernel.forget_launch()

    def again(self, *args: Any) -> Any:
        """Launch after compiling anew."""
        self.kernel.forget()
        return self.kernel(*args)

    def returned(self) -> Any:
        found = self.compiled.returned()
        t = self.compiled.result.dtype if self.compiled.result is not None else None
        wanted = self.kernel.signature.result
        if isinstance(wanted, TensorType):
            return Matrix(np.array(found).reshape(wanted.shape), wanted.scalar)
        assert t is not None
        return found

    # ---- backward

    @functools.cached_property
    def adjoint(self) -> IR:
        """The adjoint in IR.

        Raises:
            AutodiffError: and its kind, where the gradient can not be given exactly.
        """
        return reverse.reverse(self.ir, relaxed=self.simplicity == "relaxed")

    @functools.cached_property
    def activity(self) -> Activity:
        return Activity(self.ir)

    @functools.cached_property
    def adjoint_reads(self) -> list[Access]:
        """The loads of the adjoint: what must be as it was at the forward launch."""
        return [a for a in access.reads(self.adjoint) if not a.mem.is_grad]

    @functools.cached_property
    def adjoint_written(self) -> list[Access]:
        return access.writes(self.adjoint)

    @functools.cached_property
    def adjoint_compiled(self) -> Compiled:
        return Compiled(self.adjoint)

    @functools.cached_property
    def run_adjoint(self) -> Callable[..., None]:
        """The adjoint's launch function: (args, since, seed)."""
        return launch.backward(self)

    def grad_launch(self, *args: Any) -> None:
        """`kernel.grad(...)`: the adjoint of the last launch with these arguments."""
        for leak in self.activity.leaks:
            raise missing_gradient(leak)
        since = self.last
        if self.stamps and not self.arrays:
            try:
                since = self.stamps.get(args, since)
            except TypeError:
                pass
        self.run_adjoint(args, since, self.seed)

    def stale_value(self, k: int, args: tuple[Any, ...]) -> None:
        """Raise the error for a value that changed between the forward launch and its adjoint."""
        a = self.adjoint_reads[k]
        if a.mem.kind == "array":
            f: Field = args[[p.name for p in self.values].index(self.array_name(a.mem))]
        else:
            f = a.mem.handle()
        who, place = f.versions.written_by()
        shown = "" if place is None else "\n" + place.text()
        assert isinstance(a.stmt, Load)
        raise GlobalDataAccessError(
            f"the gradient of {self.kernel.source.name} needs {a.mem.name} as it was when the kernel "
            f"ran, and {who} has changed it since{shown}\n  read here:",
            a.stmt.origin.span,
            hint="give each step its own elements (x[t + 1, i] = f(x[t, i])), or keep what is read in "
            "another field",
        )


def _drop(special: weakref.ref[Special]) -> None:
    """A field that a kernel was compiled for is gone."""
    found = special()
    if found is not None:
        found.stale = True
        found.kernel.forget()


