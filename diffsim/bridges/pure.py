"""Calls that leave no trace, for libraries whose functions are pure (docs/adr/0044).

Such a library runs a call when it likes, as often as it likes, in any thread; its gradient is another call,
which runs the function again. So each call starts from the same state, and all fields are afterwards as they
were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from diffsim import locks
from diffsim.ad.forward import FwdMode
from diffsim.ad.record.snapshot import StartSnapshot
from diffsim.bridges.call import RecordedCall
from diffsim.bridges.function import FieldFunction, Prepared, set_values, values_of
from diffsim.errors import AutodiffError
from diffsim.runtime.fields.field import Field
from diffsim.runtime.session import session

_one_at_a_time = locks.rlock()
Arrays = list[np.ndarray]


class PureFunction:
    """A function of fields as a pure function of arrays.

    Args:
        function: with its inputs and outputs.
        prepared: its inputs, and the other arguments of the calls.
    """

    def __init__(self, function: FieldFunction, prepared: Prepared) -> None:
        self.function = function
        self.prepared = prepared

    def value(self, arrays: Sequence[np.ndarray]) -> tuple[Arrays, int]:
        """Return the outputs, and a number that stands for the state which the call began with."""
        with self._call(arrays) as (call, start):
            outputs = [values_of(f) for f in call.outputs]
        return outputs, self._state(call, start)

    def pull_back(
        self, arrays: Sequence[np.ndarray], seeds: Sequence[np.ndarray], state: int
    ) -> Arrays:
        """Return the gradients of all inputs of floats for given gradients of the outputs.

        Raises:
            AutodiffError: and its kind; the state has changed since the call that they belong to.
        """
        with self._call(arrays) as (call, start):
            given = {f: s for f, s in zip(call.outputs, seeds, strict=True) if f.dtype.is_float}
            wanted = [f for f in call.inputs if f.dtype.is_float]
            found = call.pull_back(given, wanted)
        if self._state(call, start) != state:
            names = ", ".join(sorted(f.name for f in self._others(call)))
            raise AutodiffError(
                f"values that {self.function.name} uses besides its inputs ({names}) have changed between a "
                "call and its gradient",
                call.span(),
                hint="make what changes an input; or wait for the gradient before it changes",
            )
        return [found[f] for f in wanted]

    def push_forward(self, arrays: Sequence[np.ndarray], tangents: Sequence[np.ndarray]) -> Arrays:
        """Return the tangents of all outputs of floats for given tangents of all inputs of floats."""
        with self._call(arrays) as (call, start):
            floats = [f for f in call.outputs if f.dtype.is_float]
            inputs = (f for f in call.inputs if f.dtype.is_float)
            _restore(start)
            self._load(arrays)
            session.launches = 0
            with FwdMode(loss=floats, param=dict(zip(inputs, tangents, strict=True))) as forward:
                self.function.run(self.prepared)
            return [np.array(forward.tangents(f), f.dtype.numpy) for f in floats]

    def _load(self, arrays: Sequence[np.ndarray]) -> None:
        for f, a in zip(self.prepared.fields, arrays, strict=True):
            set_values(f, np.asarray(a))

    @contextlib.contextmanager
    def _call(self, arrays: Sequence[np.ndarray]) -> Iterator[tuple[RecordedCall, StartSnapshot]]:
        """Run the function; fields hold what it left for the time of the block."""
        with _one_at_a_time:
            start = StartSnapshot()
            for f in self.prepared.fields:
                start.note(f)
            try:
                self._load(arrays)
                # A pure function draws the same random numbers each time, in each thread.
                session.launches = 0
                yield RecordedCall(self.function, self.prepared, start), start
            finally:
                _restore(start)

    def _others(self, call: RecordedCall) -> set[Field]:
        return call.fields() - set(call.inputs)

    def _state(self, call: RecordedCall, start: StartSnapshot) -> int:
        """Return a number for what the fields besides the inputs held before the call."""
        # The values that return bring their versions: only writes of others make a later one.
        latest = max((f.versions.latest for f in self._others(call)), default=0)
        return hash((session.generation, latest)) & 0x7FFFFFFF


def _restore(start: StartSnapshot) -> None:
    session.launches = start.launches
    for saved in start.saved.values():
        saved.restore()
