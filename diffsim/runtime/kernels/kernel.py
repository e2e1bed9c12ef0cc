"""`@ds.kernel`: what a program calls and looks at.

A call's arguments select a specialization (`kernel_template.py`). Its launches go through a function written
for that one kernel (`launch_function.py`): it packs the arguments, calls native code and notes what was
written, without looking anything up.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from diffsim.errors import (
    ArgumentError,
    AutodiffError,
    DiffsimError,
    KernelTypeError,
    OptionError,
    Span,
    shown,
)
from diffsim.ir.print_format import Listing
from diffsim.ir.printer import print_kernel
from diffsim.lang.host.copying import Bound
from diffsim.lang.host.signatures import checked, checked_methods, is_one_of, need_path
from diffsim.lang.host.source import Source
from diffsim.lang.types.structs import StructType
from diffsim.public_names import PublicNames
from diffsim.runtime import compiler
from diffsim.runtime.binding import plain_calls
from diffsim.runtime.binding.arguments import Parameter, shapeless
from diffsim.runtime.binding.array_memory import launch_packed
from diffsim.runtime.binding.template_arguments import constant_key
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.files import write_text
from diffsim.runtime.kernels import launch_function
from diffsim.runtime.kernels.derivative_kernels import GradKernel, JvpKernel
from diffsim.runtime.kernels.kernel_template import KernelTemplate
from diffsim.runtime.kernels.specialization import Specialization
from diffsim.runtime.observe.display import display
from diffsim.runtime.observe.side_by_side import SideBySide
from diffsim.runtime.session import session
from diffsim.runtime.threads import members
from diffsim.tracebacks import entries

# Weak: a kernel defined in a function goes with it. The set is needed to reach all kernels at `ds.init`.
_alive: weakref.WeakSet[Kernel] = weakref.WeakSet()
_MOST_KNOWN = 1024


@entries("__reduce__")
@checked_methods("ir show llvm ptx")
class Kernel(KernelTemplate):
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

    _public = "grad ir jvp llvm ptx show"

    _diffsim_kernel = True

    def __init__(
        self,
        function: Callable[..., Any],
        simplicity: str | None,
        owner: weakref.ref[Any] | None = None,
        source: Source | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        super().__init__(function, simplicity, owner, source)
        # One kernel for each object that this method was called on, by `id`: what `self.x` is may differ for
        # each, so they share no specializations.
        self.bound: dict[int, Kernel] = {}
        self._grad: GradKernel | None = None
        self.forget()
        _alive.add(self)

    def forget(self) -> None:
        """As in `KernelTemplate`; the launch functions go, too."""
        super().forget()
        # Launch functions by the quick keys of compiled-in arguments (`plain_calls.dispatcher`).
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._launch: Callable[..., Any] = self._first
        self._by_shapes = False
        if self._grad is not None:
            self._grad.forget()
        self._jvp: JvpKernel | None = None

    def drop(self, special: Specialization) -> bool:
        """As in `KernelTemplate`."""
        self._known.clear()
        found = super().drop(special)
        if found:
            # Either may have this specialization's own function.
            self._launch = self._first
            if self._grad is not None:
                self._grad.forget()
        return found

    def forget_launch(self) -> None:
        """Discard the launch functions, which the next call fetches from its specialization."""
        self._known.clear()
        self._launch = self._first

    def __get__(self, owner: object, kind: object = None) -> Kernel | BoundKernel:
        if owner is None:
            return self
        # Hot path of kernels that are methods: one dictionary look-up and one small object for each access.
        found = self.bound.get(id(owner))
        if found is None:
            try:
                found = self._bind_to(owner)
            except DiffsimError as error:
                error.leave_package()
                raise
        made = BoundKernel()
        made.kernel, made.owner = found, owner  # an `__init__` would be a call more
        return made

    def _bind_to(self, owner: object) -> Kernel:
        """Make the kernel of one object, by identity: equal objects have kernels of their own."""
        bound, number = self.bound, id(owner)
        try:
            # The callback removes the entry before `id` can be given to another object: the number is free
            # only once the object is gone. `bound` in place of `self` keeps no cycle through the callback.
            mine = weakref.ref(owner, lambda _: bound.pop(number, None))
        except TypeError:
            raise ArgumentError(
                f"objects of class {type(owner).__name__} cannot have kernels as methods",
                Span.of_caller(),
                hint="the class must allow weak references",
            ) from None
        found = bound[number] = Kernel(self.function, self.simplicity, mine, self.source)
        return found

    def _of_object(self, args: tuple[object, ...]) -> Kernel | None:
        """Return the kernel of the object that comes first: a decorator above `ds.kernel` passes it so.

        None: this is no kernel of a class, or that of an object already.
        """
        if self.owner is not None or not args or not self._takes_self:
            return None
        home = self.function.__qualname__.rpartition(".")[0]
        if all(c.__qualname__ != home for c in type(args[0]).__mro__):
            return None
        return self.bound.get(id(args[0])) or self._bind_to(args[0])

    def __call__(self, *args: object, **kwargs: object) -> Any:
        # A launch costs a third of a microsecond: the arguments are not even counted before it, and the try
        # blocks cost nothing unless something is raised.
        try:
            if kwargs:
                args = self.bind(args, kwargs)
            try:
                return self._launch(*args)
            # Nothing has been launched when any of these is raised, so running anew repeats no effect.
            except launch_function.FieldArgument:
                by_field = True
            except launch_function.Outdated:
                # Before `forget`, which discards the signature.
                by_field = self.gives_fields(args)
                self.forget()
            except plain_calls.UnfitArguments:
                by_field = self.gives_fields(args)
            except TypeError:
                # With another number of arguments than the kernel has parameters, Python refuses the call of
                # a launch function, and `_need_all` the others.
                if len(args) == self._count:
                    raise
                return self(*self.bind(args, {}))
            return self._run(args, by_field=by_field)
        except DiffsimError as error:
            error.leave_package()
            raise

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[Any, ...]:
        """As in `KernelTemplate`; the object comes first in calls through a decorator above `ds.kernel`."""
        mine = self._of_object(args)
        if mine is not None:
            return (args[0], *mine.bind(args[1:], kwargs))
        return super().bind(args, kwargs)

    def _first(self, *args: object) -> Any:
        """Compile at the first call; from then on the launch function is called directly."""
        mine = self._of_object(args)
        if mine is not None:
            return mine(*args[1:])
        self._need_all(args)
        return self._run(args, by_field=self.gives_fields(args))

    def _remember(self, special: Specialization, args: tuple[object, ...]) -> None:
        """Let later calls with such arguments find the launch function without looking for a specialization.

        A call with others leaves it through `FieldArgument`, `UnfitArguments` or `UnboundArguments`.
        """
        parameters = self.call_parameters
        if any(p.kind == "struct" for p in parameters):  # taken apart at each call
            return
        # There are several for the same arguments but for the shapes of arrays.
        by_shapes = self._by_shapes or len(set(map(shapeless, self.specializations))) < len(
            self.specializations
        )
        keys: list[Any] = []
        for p, a in zip(parameters, args, strict=True):
            try:
                if p.kind == "template":
                    keys.append(a.number if a.__class__ is Field else constant_key(a))
                elif p.kind == "array" and by_shapes:
                    keys.append(a.shape)  # type: ignore[attr-defined]
            except KeyError:
                return
        key = tuple(keys)
        form = self.signature.form
        launch = plain_calls.strict(special)
        if launch is None:
            return
        if not keys and form is None:
            # Nothing about the arguments but the arrays' types can select another specialization.
            self._launch = launch
            return
        if len(self._known) >= _MOST_KNOWN or self._by_shapes != by_shapes:
            self._known.clear()
        self._known[key] = launch
        if self._launch == self._first or self._by_shapes != by_shapes:
            self._by_shapes = by_shapes
            result = None if form is None else self._result
            name = self.source.name
            self._launch = plain_calls.dispatcher(
                name, parameters, self._known, result, by_shapes=by_shapes
            )

    def _result(self, found: Any) -> Any:
        """Return what a launch gives, several values apart."""
        form = self._signature and self._signature.form
        if not form:
            return found
        followed = isinstance(found, Recorded)
        if followed and isinstance(form.type, StructType):
            raise AutodiffError(
                f"{self.source.name} returns a struct, whose numbers would be constants on a tape",
                Span.of_caller(),
                hint="return them as a tuple, or store them into a field",
            )
        return form.read(found, followed=followed)

    def _need_all(self, args: tuple[object, ...]) -> None:
        """Raise, as Python does for a launch function, where the number of arguments differs.

        `__call__` then binds them and launches again, so nothing may have been launched before this.
        """
        if len(args) != self._count:
            raise launch_function.UnboundArguments

    def _run(self, args: tuple[object, ...], *, by_field: bool) -> object:
        """Launch, compiling as often as captured values turn out to have changed.

        Args:
            args: one for each parameter.
            by_field: whether there are fields in place of floats: their elements are read, and get
                gradients.
        """
        if by_field:
            args = tuple(
                _as_argument(p, a) if p.kind == "value" and isinstance(a, Recorded) else a
                for p, a in zip(self.call_parameters, args, strict=True)
            )
        # Each iteration compiles for the values as they are now; it ends unless something changes them all
        # the time.
        while True:
            special, values = self.specialize(args, by_field=by_field)
            if not by_field:
                self._remember(special, args)
            try:
                return self._result(launch_packed(special, values))
            except launch_function.Outdated:
                self.forget()

    # ---- gradient and inspection

    @property
    def grad(self) -> GradKernel:
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
        if self._grad is None:
            self._grad = GradKernel(self)
        return self._grad

    @property
    def jvp(self) -> JvpKernel:
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
        if self._jvp is None:
            self._jvp = JvpKernel(self)
        return self._jvp

    def ir(self, after: str = "simplify", args: tuple[object, ...] = ()) -> str:
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
        special = self._only(args)
        if is_one_of(after, "frontend"):
            return Listing(print_kernel(special.translation.kernel))
        return Listing(print_kernel(compiler.ir_after(special.ir, after)))

    def show(self, path: Any = None, args: tuple[object, ...] = ()) -> None:
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
        special = self._only(args)
        adjoint: Any = "nothing that it reads or writes has a gradient"
        if special.differentiable:
            try:
                adjoint = compiler.ir_after(special.derivative.ir, "autodiff")
            except AutodiffError as refusal:
                where = f" (line {refusal.span.line})" if refusal.span else ""
                adjoint = f"{refusal.message.splitlines()[0].rstrip(':')}{where}"
        view = SideBySide(self.source, compiler.ir_after(special.ir, "simplify"), adjoint)
        if path is None:
            display(view)
        else:
            need_path(path, "path")
            write_text(path, view.page())

    def llvm(self, args: tuple[object, ...] = ()) -> str:
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
        return Listing(compiler.llvm_text(self._only(args).ir))

    def ptx(self, sm: int = 80, args: tuple[object, ...] = ()) -> str:
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
        return compiler.ptx_of(self._only(args).ir, sm)

    def __reduce__(self) -> Any:
        # A kernel of an object is pickled as an attribute of it, as Python does with bound methods.
        owner = self.owner and self.owner()
        return super().__reduce__() if owner is None else (getattr, (owner, self.source.name))

    def __repr__(self) -> str:
        return f"<kernel {self.source.name}>"


class BoundKernel(Bound, metaclass=PublicNames):
    """A kernel accessed through an object, which it keeps alive."""

    _public = ""

    __slots__ = ("kernel", "owner")

    kernel: Kernel
    owner: Any

    def __dir__(self) -> list[str]:
        return dir(self.kernel)

    # Without a call of Python's, and without keeping what the kernel may replace: it is asked each time.
    __call__ = property(operator.attrgetter("kernel.__call__"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __repr__(self) -> str:
        return f"<kernel {self.kernel.source.name} of {self.owner!r}>"


def _as_argument(p: Parameter, a: Recorded) -> object:
    """Return a value of the tape as an argument: in a field, if the tape is to follow it."""
    # Only a float that the tape follows has a derivative; everything else is a constant of the launch.
    if p.type is not None and p.type.is_float and a.follows():
        field = a.in_field(p.type, p.name)
        if field is not None:
            return field
    return a.value


@checked
def kernel(fn: Callable[..., Any] | None = None, *, simplicity: str | None = None) -> Any:
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
    if simplicity is not None and not is_one_of(simplicity, "strict", "relaxed"):
        raise OptionError(
            f"simplicity cannot be {shown(simplicity)}",
            Span.of_caller(),
            hint='give it "strict" or "relaxed"',
        )
    if fn is None:
        return lambda f: kernel(f, simplicity=simplicity)
    if isinstance(fn, Kernel):
        raise KernelTypeError(
            f"{fn.source.name} is a kernel already",
            Span.of_caller(),
            hint="write @ds.kernel once",
        )
    return Kernel(fn, simplicity)


def forget_all() -> None:
    """Discard every compiled specialization of all kernels."""
    for k in members(_alive):
        k.forget()


# A kernel compiled while a field had no gradient has no memory for it, so each new gradient invalidates too.
session.at_reset.append(forget_all)
session.at_new_grad.append(forget_all)
