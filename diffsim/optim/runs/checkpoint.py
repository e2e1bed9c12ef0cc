"""Checkpoints of a training: one file with all that the next iterations depend on.

It is a file of arrays as `ds.save` writes them: "parameter/KEY", "best/KEY", "state/KEY", the optimiser's
state under "optimizer/", the losses, and as text the counters of the run and the state of random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, FileError, Span, warn
from diffsim.optim.runs.archive import read_arrays, write_arrays
from diffsim.optim.runs.fingerprint import differences, fingerprint
from diffsim.optim.runs.random_state import random_state, restore_random_state
from diffsim.optim.runs.stored_fields import (
    arrays_of,
    check_one_set,
    check_stored,
    names_in,
    set_stored,
)
from diffsim.optim.steps.optimizer import Optimizer
from diffsim.runtime.fields.field import Field


class Checkpoint:
    """The file of a training's checkpoint.

    Args:
        path: of the file.
        opt: the optimiser, which knows the parameters.
        best: for each parameter a field with the best values so far.
        state: other fields that go on from iteration to iteration.
        generators: of random numbers.
        program: what is trained, to be compared with that of a checkpoint.
    """

    def __init__(
        self,
        path: Path,
        opt: Optimizer,
        best: Mapping[str, Field],
        state: Mapping[str, Field],
        generators: list[np.random.Generator],
        program: Any,
    ) -> None:
        self.path = path
        self.opt = opt
        self.generators = generators
        groups = {"parameter": opt.fields, "best": best, "state": state}
        self._names = {key: f._found_name for key, f in opt.fields.items()}
        self._program = fingerprint(program)
        self.fields = {f"{g}/{key}": f for g, fields in groups.items() for key, f in fields.items()}

    def write(self, losses: list[float], counters: Mapping[str, Any]) -> None:
        """Write the file, all or nothing."""
        arrays: dict[str, Any] = {}
        for name, f in self.fields.items():
            arrays |= arrays_of(name, f)
        arrays |= {f"optimizer/{key}": np.asarray(v) for key, v in self.opt.state_dict().items()}
        arrays["losses"] = np.asarray(losses, np.float64)
        arrays["counters"] = np.asarray(json.dumps(counters))
        about = {"program": self._program, "names": self._names}
        arrays["about"] = np.asarray(json.dumps(about))
        arrays["random"] = np.asarray(random_state(self.generators))
        write_arrays(self.path, arrays)

    def read(self) -> tuple[list[float], dict[str, Any]]:
        """Set fields, optimiser and random numbers to the checkpoint; return losses and counters.

        Raises:
            ArgumentError: it is no checkpoint, or that of another training; nothing was changed.
        """
        arrays = read_arrays(self.path)
        for name in ("losses", "counters", "random"):
            if name not in arrays:
                raise FileError(
                    f"{self.path} is not a checkpoint of ds.optim.train",
                    Span.of_caller(),
                    hint="name the folder of a training: out=..., or begin anew with resume=False",
                )
        self._check_parameters(arrays)
        prefix = "optimizer/"
        kept = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        self.opt.check_state(kept)
        restore_random_state(str(arrays["random"]), self.generators, self.path)
        for name, f in self.fields.items():
            set_stored(arrays, name, f)
        self.opt.load_state_dict(kept)
        self._warn_of_changes(arrays)
        return arrays["losses"].tolist(), json.loads(str(arrays["counters"]))

    def _check_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of other parameters, or of the same ones in another order."""
        for name, f in self.fields.items():
            check_stored(self.path, arrays, name, f)
        check_one_set(self.path, arrays, self.fields)
        for name in names_in(arrays):
            if name.startswith(("parameter/", "state/")) and name not in self.fields:
                kind, _, key = name.partition("/")
                raise ArgumentError(
                    f"{self.path} has a {kind} {key}, which this training has not",
                    Span.of_caller(),
                    hint="give the same fields, or begin anew with resume=False",
                )
        before = self._about(arrays).get("names", {})
        if before != self._names and sorted(map(str, before.values())) == sorted(
            map(str, self._names.values())
        ):
            raise ArgumentError(
                f"the parameters of {self.path} are {_listed(before)}, and here they are "
                f"{_listed(self._names)}",
                Span.of_caller(),
                hint="give them in the same order, or by names: ds.optim.Adam({'w': w, 'b': b})",
            )

    def _warn_of_changes(self, arrays: Mapping[str, Any]) -> None:
        changed = differences(self._about(arrays).get("program", {}), self._program)
        if changed:
            more = f", and {len(changed) - 3} more" if len(changed) > 3 else ""
            warn(
                f"{self.path} is of another program: {'; '.join(changed[:3])}{more}. The losses before "
                f"iteration {len(arrays['losses']) + 1} and the best values are the other one's; "
                "resume=False begins anew",
                UserWarning,
            )

    @staticmethod
    def _about(arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the file says of its program; nothing: an older version has written it."""
        return dict(json.loads(str(arrays["about"]))) if "about" in arrays else {}


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(str, names.values()))
