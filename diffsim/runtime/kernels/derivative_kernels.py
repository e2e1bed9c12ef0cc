"""The derivatives of a kernel, as users call them: `kernel.grad(...)` and `kernel.jvp(...)`.

The first is that of an earlier launch (`gradient_call.py`), the second a launch together with its tangents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from diffsim import locks
from diffsim.errors import AutodiffError, DiffsimError, MissingGradientError, Span, together
from diffsim.ir import nodes
from diffsim.ir.print_format import Listing
from diffsim.ir.printer import print_kernel
from diffsim.ir.types import size_of
from diffsim.lang.host.signatures import checked_methods
from diffsim.public_names import PublicNames
from diffsim.runtime import compiler
from diffsim.runtime.binding import plain_calls
from diffsim.runtime.binding.array_memory import launch_packed
from diffsim.runtime.binding.template_arguments import constant_key
from diffsim.runtime.fields.device_array import known_as
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.derivative import Direction, Mode, missing_dual
from diffsim.runtime.kernels.launch_function import PLAIN
from diffsim.runtime.session import session

if TYPE_CHECKING:
    from diffsim.runtime.kernels.kernel import Kernel
    from diffsim.runtime.kernels.specialization import Specialization

_MOST_KNOWN = 1024
FORWARD = Mode(Direction.FORWARD)
"""One tangent."""


@checked_methods("ir llvm ptx")
class GradKernel(metaclass=PublicNames):
    """The adjoint of a kernel: `kernel.grad(...)` adds to the gradients of what the kernel read.

    If the kernel returns something that depends on them, `kernel.grad(..., returned=g)` gives its gradient.

    Example:
        x = ds.field(ds.f32, shape=(), needs_grad=True)
        y = ds.field(ds.f32, shape=(), needs_grad=True)
        x[None] = 3.0

        @ds.kernel
        def square():
            y[None] = x[None] ** 2

        y.grad[None] = 1.0
        square.grad()
        print(x.grad[None])  # prints: 6.0
    """

    _public = "ir llvm ptx"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.forget()

    def forget(self) -> None:
        """Forget what is known of the kernel's specializations, as the kernel itself does."""
        self._launch: Callable[..., Any] = self._first
        # Runs calls as nearly all are, if there were any; in `_known` by what is compiled in, and by fields.
        self._quick: Callable[..., bool] | None = None
        self._known: dict[tuple[Any, ...], plain_calls.Found] = {}

    def __reduce__(self) -> Any:
        return getattr, (self.kernel, "grad")

    def __call__(self, *args: object, **kwargs: object) -> None:
        try:
            if not kwargs and len(args) == self._count:
                if self._quick is not None and self._quick(args, args):
                    return
            else:
                args = self._bind(args, kwargs)
                if kwargs:  # of what the kernel returned
                    self._first(*args, **kwargs)
                    return
            for a in args:
                if a.__class__ not in PLAIN:
                    if self.kernel.gives_fields(args):
                        self._first(*args)
                        return
                    break
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
        if not by_field:
            self._remember(special, args, values)
        special.gradient_call(*values, returned=returned)

    def _remember(
        self, special: Specialization, args: tuple[object, ...], values: tuple[object, ...]
    ) -> None:
        """Let later calls with such arguments find the adjoint without looking for a specialization."""
        signature, call = self.kernel.signature, special.gradient_call
        if signature.direct:
            self._launch = call.__call__  # found quicker than by its object
        if (
            signature.form is not None
            or special.translation.uses_random
            or call.derivative.returns_active
        ):
            return
        keys: list[Any] = []
        parameters = self.kernel.call_parameters
        try:
            for p, a in zip(parameters, args, strict=True):
                if p.kind in ("template", "array") and a.__class__ is Field:
                    keys.append(a.number)
                elif p.kind == "template":
                    keys.append(constant_key(a))
                elif p.kind != "value":  # looked at anew at each call
                    return
        except KeyError:
            return
        quick = call.quick(call.numbers(values))
        if not keys:
            self._quick = quick
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        arrays = (a for p, a in zip(parameters, args, strict=True) if p.kind == "array")
        self._known[tuple(keys)] = quick, tuple(map(known_as, arrays))
        if self._quick is None:
            self._quick = plain_calls.finder_of_fields(
                signature.source.name, parameters, self._known
            )

    def ir(self, after: str = "autodiff", args: tuple[object, ...] = ()) -> str:
        """Return the adjoint in diffsim's IR after a stage: "autodiff", or one of `kernel.ir`'s.

        It computes its forward values again; a launch may run one that loads what the kernel has stored.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            print(square.grad.ir())
            # prints: kernel square_grad(x: field f32[], ...
            # prints: ...
        """
        return Listing(
            print_kernel(compiler.ir_after(self.kernel._only(args).derivative.ir, after))
        )

    def llvm(self, args: tuple[object, ...] = ()) -> str:
        """Return the adjoint in LLVM IR, as handed to LLVM for the CPU.

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            print("fmul" in square.grad.llvm())  # prints: True
        """
        return Listing(compiler.llvm_text(self.kernel._only(args).derivative.ir))

    def ptx(self, sm: int = 80, args: tuple[object, ...] = ()) -> str:
        """Return the adjoint as PTX for an NVIDIA GPU of compute capability sm / 10 (needs no GPU).

        Example:
            x = ds.field(ds.f32, shape=(), needs_grad=True)
            y = ds.field(ds.f32, shape=(), needs_grad=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            print("mul.f32" in square.grad.ptx(sm=80))  # prints: True
        """
        return compiler.ptx_of(self.kernel._only(args).derivative.ir, sm)

    def __repr__(self) -> str:
        return f"<gradient of the kernel {self.kernel.source.name}>"


@checked_methods("ir llvm ptx")
class JvpKernel:
    """The kernel with its tangents: `kernel.jvp(...)` launches it, and computes duals from duals.

    Nothing is cleared or seeded: the duals of what the kernel reads are as the program has set them. A
    kernel that returns something gives that, and its tangent.

    Example:
        x = ds.field(ds.f32, shape=(), needs_dual=True)
        y = ds.field(ds.f32, shape=(), needs_dual=True)
        x[None] = 3.0

        @ds.kernel
        def square():
            y[None] = x[None] ** 2

        x.dual[None] = 1.0
        square.jvp()
        print(y.dual[None])  # prints: 6.0
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __reduce__(self) -> Any:
        return getattr, (self.kernel, "jvp")

    def __call__(self, *args: object, **kwargs: object) -> Any:
        try:
            return self._launch(self.kernel.bind(args, kwargs))
        except DiffsimError as error:
            error.leave_package()
            raise

    def _launch(self, args: tuple[object, ...]) -> Any:
        name = self.kernel.source.name
        tape = session.tape
        if tape is not None:
            raise AutodiffError(
                f"{name}.jvp cannot run while {tape.work.words}",
                Span.of_caller(),
                hint=f"write {name}(...), whose tangents are computed there"
                if tape.tangents
                else f"call it {tape.work.outside}",
            )
        special, values = self._specialize(args)
        made = special.with_tangents(values, FORWARD, lent=False)
        if not made.duals:
            raise MissingGradientError(
                f"nothing that {name} reads or writes has a dual",
                Span.of_caller(),
                hint="declare the fields that it reads and writes with needs_dual=True",
            )
        if made.leaks:
            raise together([missing_dual(s) for s in made.leaks])
        found = launch_packed(made, values)
        if session.recorders and len(session.witnesses) == 1:  # the tape of another thread
            listener = session.listener
            assert listener is not None
            listener.launched(special, values, session.clock, 0)
        if special.ir.result is None:
            return None
        value, tangents = found if made.returns_active else (found, None)
        t = special.ir.result.dtype
        flat = [0.0] * size_of(t) if tangents is None else tangents.ravel().tolist()
        return value, made.as_declared(flat if t.shape else flat[0])

    def _specialize(self, args: tuple[object, ...]) -> tuple[Specialization, tuple[Any, ...]]:
        """Return the kernel compiled for these arguments and for what it captures now."""
        kernel = self.kernel
        while True:
            special, values = kernel.specialize(args, by_field=kernel.gives_fields(args))
            if not special.captures_changed():
                return special, values
            kernel.forget()

    def _ir(self, args: tuple[object, ...]) -> nodes.Kernel:
        special = self.kernel._only(args)
        # Templates and numbers are compiled in or blank; an array is there if it was given.
        arrays = {p.name: a for p, a in zip(self.kernel.call_parameters, args, strict=False)}
        given = tuple(arrays.get(p.name) for p in special.arguments.parameters)
        return special.with_tangents(given, FORWARD, lent=False).ir

    def ir(self, after: str = "autodiff", args: tuple[object, ...] = ()) -> str:
        """Return the kernel with its tangents in diffsim's IR after a stage, as `kernel.grad.ir`.

        Example:
            x = ds.field(ds.f32, shape=(), needs_dual=True)
            y = ds.field(ds.f32, shape=(), needs_dual=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            print("x.dual" in square.jvp.ir())  # prints: True
        """
        return Listing(print_kernel(compiler.ir_after(self._ir(args), after)))

    def llvm(self, args: tuple[object, ...] = ()) -> str:
        """Return it in LLVM IR, as handed to LLVM for the CPU.

        Example:
            x = ds.field(ds.f32, shape=(), needs_dual=True)
            y = ds.field(ds.f32, shape=(), needs_dual=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            print("fmul" in square.jvp.llvm())  # prints: True
        """
        return Listing(compiler.llvm_text(self._ir(args)))

    def ptx(self, sm: int = 80, args: tuple[object, ...] = ()) -> str:
        """Return it as PTX for an NVIDIA GPU of compute capability sm / 10 (needs no GPU).

        Example:
            x = ds.field(ds.f32, shape=(), needs_dual=True)
            y = ds.field(ds.f32, shape=(), needs_dual=True)
            x[None] = 3.0

            @ds.kernel
            def square():
                y[None] = x[None] ** 2

            print("mul.f32" in square.jvp.ptx(sm=80))  # prints: True
        """
        return compiler.ptx_of(self._ir(args), sm)

    def __repr__(self) -> str:
        return f"<tangents of the kernel {self.kernel.source.name}>"
