"""A kernel before its arguments are known, and what it was compiled to for some: its specializations.

There is one for each combination of compiled-in arguments and kinds of arrays; a call's arguments select it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, DiffsimError, KernelTypeError, Span, shown
from diffsim.lang.host.copying import Named
from diffsim.lang.host.provenance import source_of
from diffsim.lang.host.source import Source
from diffsim.parameters import signature_of_function
from diffsim.public_names import PublicNames
from diffsim.runtime.binding.arguments import (
    ArrayKind,
    Parameter,
    Signature,
    array_kind,
    field_kind,
    find_same,
    struct_values,
    takes_field,
    with_shapes,
)
from diffsim.runtime.binding.array_memory import pack_arrays
from diffsim.runtime.binding.template_arguments import template_key
from diffsim.runtime.fields.device_array import as_argument, is_on_gpu, wrap_argument
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.recorded import Recorded
from diffsim.runtime.kernels.specialization import Specialization
from diffsim.runtime.kernels.translation import translate
from diffsim.runtime.locked_cached_property import making
from diffsim.runtime.memory.packed_arrays import is_plain
from diffsim.runtime.session import session

_OWN_ARRAYS = frozenset((np.ndarray, Field))
"""Types of array arguments that are of no other library."""


class KernelTemplate(Named, metaclass=PublicNames):
    """A decorated function and its specializations; `Kernel` launches them.

    Attributes:
        function: kept for its code, globals and defaults; it is never called.
        simplicity: as given to `@ds.kernel`.
        owner: the object that it is a method of: weak, as a kernel must not keep its object alive.
        source: the text of the function.
        specializations: by their keys, the latest last.
        launched_before: whether one that is gone was launched.
    """

    _public = "specialize"

    def __init__(
        self,
        function: Callable[..., Any],
        simplicity: str | None,
        owner: weakref.ref[Any] | None,
        source: Source | None,
    ) -> None:
        self.function = function
        self.simplicity = simplicity
        self.owner = owner
        self.source = source or Source(function, "kernel")
        self.specializations: dict[Any, Specialization] = {}
        self.launched_before = False

    def forget(self) -> None:
        """Discard all specializations, so that the next call compiles anew (after `ds.init`, say)."""
        # `kernel.grad` must refuse a launch that it can no longer know of, rather than treat the kernel as
        # never launched and differentiate it where nothing was computed (`GradientCall._known_launches`).
        if any(s.launches.last is not None for s in self.specializations.values()):
            self.launched_before = True
        self.specializations = {}
        self._signature: Signature | None = None
        self._count = -1  # that of no call: the first one is bound, which asks for the signature

    def drop(self, special: Specialization) -> bool:
        """Forget a specialization, one of whose fields is gone; returns whether calls would have found it."""
        # The launch history goes with the specialization; see `forget`.
        self.launched_before |= special.launches.last is not None
        # Another one may have taken its place under this key since.
        if self.specializations.get(special.key) is not special:
            return False
        # Somebody may be looping over it: fields go at any time.
        self.specializations = {k: s for k, s in self.specializations.items() if s is not special}
        return True

    def forget_launch(self) -> None:
        """Let the next call look for its specialization, one of which launches in another way now."""
        raise NotImplementedError

    # ---- the arguments of a call

    @functools.cached_property
    def _takes_self(self) -> bool:
        """Whether it stands in a class, and its first parameter is the object."""
        return (
            "." in self.function.__qualname__
            and next(iter(signature_of_function(self.function).parameters), "") == "self"
        )

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

    @property
    def call_parameters(self) -> list[Parameter]:
        """The parameters that a call gives: all but `self`."""
        return self.signature.parameters[0 if self.owner is None else 1 :]

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

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[Any, ...]:
        """Bind a call's arguments to the parameters: one for each, in order.

        Raises:
            KernelTypeError: the call does not fit the signature.
        """
        signature = self._signature or self.signature
        try:
            return signature.binder(*args, **kwargs)
        # Slower than the binder by far, and needed only for its error.
        except TypeError:  # the binder does nothing but bind: Python refused the call
            return signature.bind_by_name(args, kwargs)

    # ---- the specialization for them

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
