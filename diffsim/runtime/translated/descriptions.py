"""Descriptions of Python values: equal where a kernel would be translated to the same IR.

A description is made of tuples, texts and numbers, which mean the same in another process. What has none is
refused, and the kernel that looked at it is translated in each process: objects and functions of the program,
trees of fields, types of structs. A description never says less than what the translation can see.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from diffsim.ir.nodes import Arg, Mem
from diffsim.ir.op import Op
from diffsim.ir.types import ScalarType, TensorType
from diffsim.lang.frontend.expressions import ArrayRef
from diffsim.lang.host.annotations import ArrayAnnotation, Template
from diffsim.lang.host.func import BoundFunc, Func, PyFunc
from diffsim.lang.host.intrinsic import Intrinsic
from diffsim.lang.host.source import Source
from diffsim.lang.types.matrix import Matrix
from diffsim.runtime.cache.ir_bytes import NotStorable
from diffsim.runtime.fields.field import Field

Description = Any
"""Nested tuples of texts, numbers and None."""

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...))
_OF_FUNC = frozenset(
    "source gradient replay native __module__ __name__ __qualname__ __doc__ __annotations__ __wrapped__ "
    "__type_params__ __annotate__".split()
)
BUILTINS = frozenset(
    "range tuple list zip enumerate isinstance str reversed sorted divmod any all hasattr abs min max round "
    "sum pow len float int bool print".split()
)
"""Builtins whose results depend on their arguments alone."""


class Describer:
    """Describes the values that one translation saw, in the order in which it saw them.

    Attributes:
        kernel: the description of the kernel's own text.
        given: that of what its parameters are bound to.
        owner: the object that the kernel is a method of.
        sources: the kernel, and the funcs that were found.
        memories: those of fields and arrays, by the numbers that descriptions have for them.
    """

    def __init__(self, source: Source, bindings: Mapping[str, Any], *, is_method: bool) -> None:
        self.sources: list[Source] = []
        self.memories: list[Mem] = []
        self._numbers: dict[int, int] = {}
        names = list(bindings)
        self.owner = bindings[names.pop(0)] if is_method else None
        # What is asked of the object is observed, but for its truth where its class does not define any.
        truth = [name for name in ("__bool__", "__len__") if hasattr(type(self.owner), name)]
        self.kernel = self._source(source)
        self.given = truth, [(name, self.value(bindings[name])) for name in names]

    def value(self, x: Any) -> Description:
        """Return the description of a value.

        Raises:
            NotStorable: it has none.
        """
        kind = type(x)
        if kind in _ATOMS:
            # `repr` tells -0.0 from 0.0, and True from 1.
            return (kind.__name__, hex(x) if kind is int else repr(x))
        if kind in (tuple, list):
            return (kind.__name__, *map(self.value, x))
        if kind is range:
            return ("range", x.start, x.stop, x.step)
        if isinstance(x, np.generic) or kind is np.ndarray:
            if x.dtype.kind not in "biuf":
                raise NotStorable(f"an array of {x.dtype}")
            digest = hashlib.sha256(x.tobytes()).hexdigest()
            return (kind.__name__, x.dtype.str, x.shape, digest)
        if isinstance(x, ModuleType):
            if sys.modules.get(x.__name__) is not x:
                raise NotStorable("a module of another name")
            return ("module", x.__name__)
        return self._own(x)

    def _own(self, x: Any) -> Description:
        """Return the description of an object of diffsim's."""
        kind = type(x)
        if kind is Field:
            return self._field(x)
        if kind in (Func, PyFunc):
            return self._func(x)
        if kind is Matrix:
            return ("Matrix", x.typed, self.value(x.entries))
        if kind is ArrayRef:
            return ("array", x.clamp, repr(x._index_type), self._memory(x._mem))
        if kind is Arg:
            return ("argument", x.position, x.hint, repr(x.type))
        if kind is BoundFunc:
            return ("bound", self._func(x.func), self._object(x.owner))
        if isinstance(x, (ScalarType, TensorType)):
            return ("type", repr(x))
        return ("op", x.name) if kind is Op else _name_of(x)

    def _object(self, x: Any) -> Description:
        if self.owner is None or x is not self.owner:
            raise NotStorable("an object of the program")
        return "self"

    def _field(self, f: Field) -> Description:
        if f.tree is not None or f._shape is None:
            raise NotStorable("a field in a sparse tree, or without a place")
        facts = f.element, f.soa, f.kind, f.needs_grad, f.needs_dual, f.is_grad, f.is_dual
        return ("field", self._memory(f._mem), repr(facts))

    def _memory(self, m: Mem) -> Description:
        number = self._numbers.get(id(m))
        if number is not None:
            return number
        if m.place is not None or m.level is not None:
            raise NotStorable("a memory of a sparse tree")
        number = self._numbers[id(m)] = len(self.memories)
        self.memories.append(m)
        facts = (
            m.name, m.kind, repr(m.dtype), m.rank, m.shape, m.strides, m.component_stride, m.is_grad,
            m.in_blocks, m.origin,
        )  # fmt: skip
        grad, like = (None if x is None else self._memory(x) for x in (m.grad, m.like))
        return (number, *facts, grad, like)

    def _func(self, f: Func) -> Description:
        given = f.gradient is not None or f.replay is not None or f.native is not None
        if given or vars(f).keys() - _OF_FUNC:
            raise NotStorable("a func with a derivative or attributes of its own")
        return (type(f).__name__, self._source(f.source))

    def _source(self, s: Source) -> Description:
        if any(s is known for known in self.sources):
            return next(k for k, known in enumerate(self.sources) if known is s)
        self.sources.append(s)
        code = s.function.__code__
        # What a name means follows from the text and from the scopes around it; trees of fields, which have
        # no description, are found by two attributes.
        if "parent" in s.text or "snode" in s.text:
            raise NotStorable("a tree of fields")
        scopes = s.function.__module__, code.co_qualname, code.co_freevars, code.co_flags
        annotations = tuple((n, self._annotation(a)) for n, a in sorted(s.annotations().items()))
        text = hashlib.sha256(s.text.encode()).hexdigest()
        return (s.file, s.first, s.where, text, *scopes, annotations)

    def _annotation(self, a: Any) -> Description:
        return repr(a) if type(a) in (Template, ArrayAnnotation) else self.value(a)


def _name_of(x: Any) -> Description:
    """Return the name of something that does not change: the language's own, or a pure function."""
    name = str(getattr(x, "__name__", ""))
    kind = type(x)
    if kind is Intrinsic:
        home = "diffsim" if getattr(sys.modules["diffsim"], name, None) is x else "diffsim.math"
    elif isinstance(x, np.ufunc) or (isinstance(x, type) and issubclass(x, np.generic)):
        home = "numpy"  # its other functions read files, or memory as it happens to be
    else:
        named = isinstance(x, (FunctionType, BuiltinFunctionType, type))
        home = str(x.__module__) if named else ""
    pure = home in ("math", "numpy") or (home == "builtins" and name in BUILTINS)
    # Under its own name: a program may have put another function in its place.
    if (pure or home.partition(".")[0] == "diffsim") and getattr(
        sys.modules.get(home), name, None
    ) is x:
        return ("named", home, name)
    raise NotStorable(f"an object of class {kind.__name__}")
