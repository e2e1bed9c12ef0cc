"""What a kernel does, step by step: every access and every value, for each lane and iteration.

This is the oracle of the analyses: whatever they say must hold of all that the trace lists.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import diffsim as ds
from diffsim.backends.interpreter import Interpreter
from diffsim.ir.nodes import Atomic, For, Load, Store, While
from diffsim.ir.traversal import outs
from tests.support.source import make


@dataclass
class Access:
    """One execution of a load, store or atomic update."""

    stmt: Any
    task: int
    lane: tuple[int, ...]
    element: tuple[int, ...]
    path: tuple[Any, ...]

    @property
    def writes(self):
        return not isinstance(self.stmt, Load)


@dataclass
class Computed:
    """One value that was computed, and what all values were then."""

    value: Any
    number: Any
    lane: tuple[int, ...]
    path: tuple[Any, ...]
    env: dict[Any, Any]


@dataclass
class Trace:
    accesses: list[Access] = field(default_factory=list)
    values: list[Computed] = field(default_factory=list)


class _Tracer(Interpreter):
    def start(self, kernel):
        self.trace, self.path = Trace(), []
        for self.number, self.current in enumerate(kernel.tasks):
            self.task(self.current)
        return self.trace

    def lane(self):
        bound = all(a in self.env for a in self.current.axes)  # not so in the task's bounds
        return tuple(int(self.env[a]) for a in self.current.axes) if bound else ()

    def where(self):
        """The loops around, each with the number of the iteration, counted from 0."""
        return tuple((s, n if isinstance(s, While) else self.iteration(s)) for s, n in self.path)

    def iteration(self, s):
        lo, hi, index = (int(self.value(v)) for v in (s.lo, s.hi, s.index))
        return hi - 1 - index if s.reverse else index - lo

    def stmt(self, s):
        if isinstance(s, (Load, Store, Atomic)):
            at = tuple(int(i) for i in self.values(s.index))
            self.trace.accesses.append(Access(s, self.number, self.lane(), at, self.where()))
        if isinstance(s, (For, While)):
            self.path.append((s, 0))
        super().stmt(s)
        if isinstance(s, (For, While)):
            self.path.pop()
        for v in outs(s):
            computed = Computed(v, self.env[v], self.lane(), self.where(), dict(self.env))
            self.trace.values.append(computed)

    def goes_on(self, s, carried):
        self.path[-1] = (s, self.path[-1][1] + 1)
        return super().goes_on(s, carried)


def trace(kernel, *args):
    """Run a kernel's IR on copies of its fields, and list what it does."""
    memory = {m: np.array(m.handle().to_numpy()) for m in kernel.mems if m.kind == "field"}
    with np.errstate(all="ignore"):
        return _Tracer(kernel, memory, args, 0, {}).start(kernel)


def ir_of(body, *args, params="n: ds.i32", **space):
    """The prepared IR of a kernel `f` with this body."""
    space = {"ds": ds, **space}
    make(f"@ds.kernel\ndef f({params}):\n{body}", space)
    return space["f"]._only(args).ir
