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

from diffsim.errors import FieldError, Span
from diffsim.optim.runs.archive import check_array, read_arrays, write_arrays
from diffsim.optim.runs.random_state import random_state, restore_random_state
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
    """

    def __init__(
        self,
        path: Path,
        opt: Optimizer,
        best: Mapping[str, Field],
        state: Mapping[str, Field],
        generators: list[np.random.Generator],
    ) -> None:
        self.path = path
        self.opt = opt
        self.generators = generators
        groups = {"parameter": opt.fields, "best": best, "state": state}
        self.fields = {f"{g}/{key}": f for g, fields in groups.items() for key, f in fields.items()}

    def write(self, losses: list[float], counters: Mapping[str, Any]) -> None:
        """Write the file, all or nothing."""
        arrays = {name: f.to_numpy() for name, f in self.fields.items()}
        arrays |= {f"optimizer/{key}": np.asarray(v) for key, v in self.opt.state_dict().items()}
        arrays["losses"] = np.asarray(losses, np.float64)
        arrays["counters"] = np.asarray(json.dumps(counters))
        arrays["random"] = np.asarray(random_state(self.generators))
        write_arrays(self.path, arrays)

    def read(self) -> tuple[list[float], dict[str, Any]]:
        """Set fields, optimiser and random numbers to the checkpoint; return losses and counters.

        Raises:
            FieldError: it is no checkpoint, or that of another training; nothing was changed.
        """
        arrays = read_arrays(self.path)
        for name in ("losses", "counters", "random"):
            if name not in arrays:
                raise FieldError(
                    f"{self.path} is not a checkpoint of ds.optim.train",
                    Span.of_caller(),
                    hint="name the folder of a training: out=..., or begin anew with resume=False",
                )
        for name, f in self.fields.items():
            check_array(self.path, arrays, name, f)
        prefix = "optimizer/"
        kept = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        self.opt.check_state(kept)
        restore_random_state(str(arrays["random"]), self.generators, self.path)
        for name, f in self.fields.items():
            f.from_numpy(arrays[name])
        self.opt.load_state_dict(kept)
        return arrays["losses"].tolist(), json.loads(str(arrays["counters"]))
