"""`kernel.grad`: the adjoint of a kernel, called as the kernel is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diffsim import locks
from diffsim.errors import DiffsimError, MissingGradientError, Span, shown
from diffsim.ir import nodes
from diffsim.ir.printer import print_kernel
from diffsim.lang.host.signatures import checked_methods, need_whole
from diffsim.runtime import compiler

if TYPE_CHECKING:
    from diffsim.runtime.kernels.kernel import Kernel


@checked_methods("ir llvm ptx")
class GradKernel:
    """The adjoint of a kernel: `kernel.grad(...)` adds to the gradients of what the kernel read.

    If the kernel returns something that depends on them, `kernel.grad(..., returned=g)` gives its gradient.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._launch: Callable[..., Any] = self._first

    def __reduce__(self) -> Any:
        return getattr, (self.kernel, "grad")

    def __call__(self, *args: object, **kwargs: object) -> None:
        try:
            if kwargs or len(args) != self._count:
                args = self._bind(args, kwargs)
                if kwargs:  # of what the kernel returned
                    self._first(*args, **kwargs)
                    return
            if self.kernel.gives_fields(args):
                self._first(*args)
            else:
                self._launch(*args)
        except DiffsimError as error:
            error.leave_package()
            raise

    def _bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        """Bind a call's arguments to the kernel's parameters; leave the gradient `returned` in kwargs."""
        # A parameter of that name is the user's: then it means theirs.
        named = "returned" in self.kernel.signature.names
        seed = {} if named or "returned" not in kwargs else {"returned": kwargs.pop("returned")}
        args = self.kernel.bind(args, kwargs)
        kwargs.clear()
        kwargs.update(seed)
        return args

    @locks.cached
    def _count(self) -> int:
        return len(self.kernel.signature.names)

    def _first(self, *args: object, returned: object = None) -> None:
        by_field = self.kernel.gives_fields(args)
        special, values = self.kernel.specialize(args, by_field=by_field)
        if not special.differentiable:
            raise MissingGradientError(
                f"nothing that {self.kernel.source.name} reads or writes has a gradient",
                Span.of_caller(),
                hint="declare the fields that it reads and writes with needs_grad=True",
            )
        # Fields in place of floats select another specialization, so only plain calls may skip this method.
        if self.kernel.signature.plain and not by_field:
            self._launch = special.gradient_call
        special.gradient_call(*values, returned=returned)

    def ir(self, after: str = "autodiff", args: tuple[object, ...] = ()) -> str:
        """Return the adjoint in diffsim's IR after a stage: "autodiff", or one of `kernel.ir`'s."""
        return print_kernel(compiler.ir_after(self.kernel._only(args).derivative.ir, after))

    def llvm(self, args: tuple[object, ...] = ()) -> str:
        """Return the adjoint in LLVM IR, as handed to LLVM for the CPU."""
        return compiler.llvm_text(self.kernel._only(args).derivative.ir)

    def ptx(self, sm: int = 80, args: tuple[object, ...] = ()) -> str:
        """Return the adjoint as PTX for an NVIDIA GPU of compute capability sm / 10 (needs no GPU)."""
        return ptx_of(self.kernel._only(args).derivative.ir, sm)


def ptx_of(kernel: nodes.Kernel, sm: int) -> str:
    """Return a kernel as PTX for a GPU of compute capability sm / 10."""
    need_whole(
        shown(sm) if sm is None else sm,
        "sm",
        "give the compute capability times ten, such as sm=80",
    )
    return compiler.ptx_text(kernel, sm)
