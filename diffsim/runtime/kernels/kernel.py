"""`@ds.kernel`: translated at its first call, once for each combination of compiled-in arguments.

A launch goes through a function written for that one kernel (`launch_function.py`): it packs the arguments,
calls native code and notes what was written, without looking anything up.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

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
from diffsim.lang.host.copying import Bound, Named
from diffsim.lang.host.provenance import source_of
from diffsim.lang.host.signatures import checked, checked_methods, is_one_of, need_path
from diffsim.lang.host.source import Source
from diffsim.lang.types.structs import StructType
from diffsim.parameters import signature_of_function
from diffsim.public_names import PublicNames
from diffsim.runtime import compiler
from diffsim.runtime.binding import plain_calls
from diffsim.runtime.binding.array_memory import launch_packed, pack_arrays
from diffsim.runtime.binding.template_arguments import constant_key, template_key
from diffsim.runtime.fields.device_array import as_argument, is_on_gpu, wrap_argument
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.files import write_text
from diffsim.runtime.kernels import launch_function
from diffsim.runtime.kernels.arguments import (
    ArrayKind,
    Parameter,
    Signature,
    array_kind,
    field_kind,
    find_same,
    shapeless,
    struct_values,
    takes_field,
    with_shapes,
)
from diffsim.runtime.kernels.gradient_call import GradKernel, JvpKernel, ptx_of
from diffsim.runtime.kernels.specialization import Specialization
from diffsim.runtime.kernels.translation import translate
from diffsim.runtime.locked_cached_property import making
from diffsim.runtime.memory.packed_arrays import is_plain
from diffsim.runtime.observe.display import display
from diffsim.runtime.observe.side_by_side import SideBySide
from diffsim.runtime.session import session
from diffsim.runtime.threads import members
from diffsim.tracebacks import entries

# Weak: a kernel defined in a function goes with it. The set is needed to reach all kernels at `ds.init`.
_alive: weakref.WeakSet[Kernel] = weakref.WeakSet()
_MOST_KNOWN = 1024
_OWN_ARRAYS = frozenset((np.ndarray, Field))
"""Types of array arguments that are of no other library."""


@entries("__reduce__")
@checked_methods("ir show llvm ptx")
class Kernel(Named, metaclass=PublicNames):
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

    _public = "grad ir jvp llvm ptx show specialize"

    _diffsim_kernel = True

    def __init__(
        self,
        function: Callable[..., Any],
        simplicity: str | None,
        owner: weakref.ref[Any] | None = None,
        source: Source | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        # The decorated function is kept for its code, globals and defaults; it is never called.
        self.function = function
        self.simplicity = simplicity
        # A weak reference (see `_bind_to`): a kernel must not keep its object alive.
        self.owner = owner
        self.source = source or Source(function, "kernel")
        # One kernel for each object that this method was called on, by `id`: what `self.x` is may differ for
        # each, so they share no specializations.
        self.bound: dict[int, Kernel] = {}
        self._signature: Signature | None = None
        self.specializations: dict[Any, Specialization] = {}
        self.launched_before = False
        self.forget()
        _alive.add(self)

    def forget(self) -> None:
        """Discard all specializations, so that the next call compiles anew (after `ds.init`, say)."""
        # `kernel.grad` must refuse a launch that it can no longer know of, rather than treat the kernel as
        # never launched and differentiate it where nothing was computed (`GradientCall._known_launches`).
        if any(s.launches.last is not None for s in self.specializations.values()):
            self.launched_before = True
        self.specializations = {}
        # Launch functions by the quick keys of compiled-in arguments (`plain_calls.dispatcher`).
        self._known: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._launch: Callable[..., Any] = self._first
        self._by_shapes = False
        self._grad: GradKernel | None = None
        self._jvp: JvpKernel | None = None
        self._signature = None
        self._count = -1  # that of no call: the first one is bound, which asks for the signature

    def drop(self, special: Specialization) -> None:
        """Forget a specialization, one of whose fields is gone."""
        # The launch history goes with the specialization; see `forget`.
        self.launched_before |= special.launches.last is not None
        self._known.clear()
        # Another one may have taken its place under this key since.
        if self.specializations.get(special.key) is special:
            # Somebody may be looping over it: fields go at any time.
            self.specializations = {
                k: s for k, s in self.specializations.items() if s is not special
            }
            # Either may be this specialization's own function.
            self._launch, self._grad = self._first, None

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
        return BoundKernel(found, owner)

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

    @functools.cached_property
    def _takes_self(self) -> bool:
        """Whether it stands in a class, and its first parameter is the object."""
        return (
            "." in self.function.__qualname__
            and next(iter(signature_of_function(self.function).parameters), "") == "self"
        )

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

    @property
    def signature(self) -> Signature:
        if self._signature is None:
            # Only a kernel made by `_bind_to` is one of an object; the class attribute has no owner.
            method = self.owner is not None
            # The common mistake `Solver.step()`: without this error, `self` would be refused as a parameter
            # without a type, which explains nothing.
            if not method and self._takes_self:
                raise KernelTypeError(
                    f"{self.source.name} is a method and was called on its class",
                    Span.of_caller(),
                    hint=f"call it on an object of {self.function.__qualname__.split('.')[-2]}",
                )
            self._signature = Signature(self.source, method=method)
            self._count = len(self._signature.names)
        return self._signature

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

    def gives_fields(self, args: tuple[object, ...]) -> bool:
        """Return whether there are fields, or values of a tape, in place of numbers among the arguments."""
        # All but `self`, of a method.
        first, count = 0 if self.owner is None else 1, len(args)
        for k, p in self.signature.by_value:
            if k - first < count:
                a = args[k - first]
                if takes_field(p, a) or isinstance(a, Recorded):
                    return True
        return False

    @property
    def call_parameters(self) -> list[Parameter]:
        """The parameters that a call gives: all but `self`."""
        return self.signature.parameters[0 if self.owner is None else 1 :]

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[Any, ...]:
        """Bind a call's arguments to the parameters: one for each, in order.

        Raises:
            KernelTypeError: the call does not fit the signature.
        """
        mine = self._of_object(args)
        if mine is not None:
            return (args[0], *mine.bind(args[1:], kwargs))
        signature = self._signature or self.signature
        try:
            return signature.binder(*args, **kwargs)
        # Slower than the binder by far, and needed only for its error.
        except TypeError:  # the binder does nothing but bind: Python refused the call
            return signature.bind_by_name(args, kwargs)

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

    # ---- specialising

    def specialize(
        self, args: tuple[Any, ...], *, by_field: bool = False
    ) -> tuple[Specialization, tuple[Any, ...]]:
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
        parameters = self.call_parameters
        # The key of a specialization is made of the compiled-in arguments, in order, and the kinds of the
        # arrays. A field in place of a float adds the parameter's name, so that it is never mistaken for the
        # variant that takes a number.
        key: list[Any] = []
        values: list[Any] = []
        arrays: list[Any] = []
        kinds: list[ArrayKind] = []
        for p, a in zip(parameters, args, strict=True):
            if p.kind == "template":
                # What is compiled in is a constant of the gradient. A value that was read from a field which
                # the tape follows would lose its derivative here, silently.
                if session.tape is not None and (source := source_of(a)) is not None:
                    source.refuse(p.name, "give the kernel the field")
                key.append(template_key(a, p.name))
                continue
            if p.kind == "array":
                # An array of another library on a GPU is wrapped once, so that its address and stream are
                # known.
                if a.__class__ not in _OWN_ARRAYS:
                    a = as_argument(a, f"{p.name} of {self.source.name}")
                    if is_on_gpu(a):
                        a = wrap_argument(a, session.device, f"{p.name} of {self.source.name}")
                arrays.append(a)
                kinds.append(array_kind(p, a, self.source.name))
            elif by_field and takes_field(p, a):
                key.append(p.name)
                arrays.append(a)
                kinds.append(field_kind(p, a, self.source.name))
            if p.kind == "struct":
                values += struct_values(p, a, self.source.name)
                continue
            values.append(a)
        if arrays:
            kinds = with_shapes(self.specializations, key, find_same(kinds, arrays), arrays)
        whole = (*key, *kinds)
        # Double-checked locking: launches of compiled kernels take no lock, and two threads that ask for the
        # same specialization get one object (its derivative and history must not be doubled).
        special = self.specializations.get(whole)
        if special is None or special.is_stale:
            with making:
                special = self.specializations.get(whole)
                if special is None or special.is_stale:
                    special = translate(self, args, kinds, whole, by_field=by_field)
                    self.specializations[whole] = special
        if arrays and not all(map(is_plain, arrays)):
            return special, pack_arrays(special, values)
        return special, tuple(values)

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

    def _only(self, args: tuple[object, ...]) -> Specialization:
        if not isinstance(args, (tuple, list)):
            raise ArgumentError(
                f"args is a tuple of the arguments of a launch, not {shown(args)}",
                Span.of_caller(),
                hint=f"write {self.source.name}.ir(args=(1, 2.0))",
            )
        args = tuple(args)
        if args or not self.specializations:
            types_decide = all(p.kind in ("value", "struct") for p in self.call_parameters)
            if not args and not types_decide:
                raise DiffsimError(
                    f"{self.source.name} is compiled for its arguments: pass some",
                    Span.of_caller(),
                    hint=f"{self.source.name}.ir(args=(...)), or call it once before",
                )
            if args:
                args = self.bind(args, {})
            # Types alone decide, so any numbers do.
            blank = tuple(
                p.struct() if p.struct else 0 for p in self.call_parameters if p.kind != "self"
            )
            return self.specialize(args or blank, by_field=self.gives_fields(args))[0]
        # The latest one: with several, `args` selects.
        return next(reversed(self.specializations.values()))

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
        return ptx_of(self._only(args).ir, sm)

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

    def __init__(self, kernel: Kernel, owner: object) -> None:
        self.kernel = kernel
        self.owner = owner

    def __dir__(self) -> list[str]:
        return dir(self.kernel)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        try:
            return self.kernel(*args, **kwargs)
        except DiffsimError as error:
            error.leave_package()
            raise

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
