"""Intrinsics, the functions of the language that are not ops: `ds.loop_config`, `ds.static`, `ds.eig`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from diffsim.errors import DiffsimError, Span
from diffsim.lang.host.signatures import misfit
from diffsim.parameters import placed, signature_of
from diffsim.public_names import PublicNames, with_example
from diffsim.tracebacks import entry

Handler = Callable[[Any, Any, list[Any], dict[str, Any]], Any]
"""Emits a call in a kernel: (translation context, syntax node, arguments, keyword arguments) -> result."""

_intrinsics: dict[str, Intrinsic] = {}


def _intrinsic(name: str) -> Intrinsic:
    """Return the intrinsic of that name; pickles refer to this function."""
    return _intrinsics[name]


class Intrinsic(metaclass=PublicNames):
    """A function of the language that is not an op: how it is translated, and what it does in Python.

    There is one per name, which pickling and copying keep: `ds.static` is recognized by identity.

    Args:
        name: as users write it after `ds.`.
        doc: its documentation, without the example.
        in_kernel: emits a call of it in a kernel.
        in_python: what a call outside kernels does.
        parameters: as in a `def`: "x, dtype=None".
        lazy: whether `in_kernel` gets the syntax of the arguments instead of their values.
        example: a short program, for its documentation.
    """

    _public = ""

    def __init__(
        self,
        name: str,
        doc: str,
        in_kernel: Handler,
        in_python: Callable[..., Any],
        parameters: str,
        *,
        lazy: bool = False,
        example: str = "",
    ) -> None:
        self.__name__ = name
        self.__doc__ = with_example(doc, example)
        self.in_kernel = in_kernel
        self.in_python = in_python
        self.parameters = parameters
        self.lazy = lazy
        # Two of one name would be confused by pickle, which finds them by name.
        assert _intrinsics.setdefault(name, self) is self, name

    # Pickled by name, since handlers are closures, which cannot be pickled.
    def __reduce__(self) -> Any:
        return _intrinsic, (self.__name__,)

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.parameters)

    @entry
    def __call__(self, *args: object, **kwargs: object) -> Any:
        if kwargs:
            placed_args, kwargs = placed(self.parameters, args, kwargs)
            args = tuple(placed_args)
        try:
            return self.in_python(*args, **kwargs)
        except TypeError as problem:
            # The Python side may have other names for its parameters, and none of them is the user's.
            if isinstance(problem, DiffsimError) or self._takes(args, kwargs):
                raise
            error = misfit(f"ds.{self.__name__}", self.__signature__, args, kwargs, str(problem))
        raise error

    def _takes(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Return whether a call fits the parameters."""
        try:
            self.__signature__.bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def __repr__(self) -> str:
        return f"<ds.{self.__name__}>"


def only_in_kernels(name: str) -> Callable[..., Any]:
    """Return the Python side of an intrinsic that exists in kernels only: a function that raises."""

    def refuse(*args: object, **kwargs: object) -> Any:
        raise DiffsimError(
            f"ds.{name} works inside kernels and funcs only",
            Span.of_caller(),
            hint="call it from a @ds.kernel",
        )

    return refuse
