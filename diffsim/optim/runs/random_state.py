"""The state of random numbers, as text: those of kernels, of Python and of NumPy."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, Span
from diffsim.lang.types.descriptions import describe
from diffsim.runtime.session import session


def checked_generators(given: Any) -> list[np.random.Generator]:
    """Return the generators that a training draws from: none, one, or a list."""
    found: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    found = [] if given is None else list(found)
    for g in found:
        if not isinstance(g, np.random.Generator):
            raise ArgumentError(
                f"generators are those of numpy.random.default_rng, not {describe(g)}",
                Span.of_caller(),
                hint="write generators=[random]; numpy.random.* and random.* are kept by themselves",
            )
    return found


def random_state(generators: Sequence[np.random.Generator]) -> str:
    """Return the state of all random numbers that a program may draw."""
    # NumPy's old global generator is no attribute of a module that could be left out: programs use it.
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    return json.dumps(
        {
            "seed": session.options.random_seed,
            "launches": session.launches,
            "python": random.getstate(),
            "numpy": _plain(numpy_state),
            "generators": [_plain(g.bit_generator.state) for g in generators],
        }
    )


def restore_random_state(text: str, generators: Sequence[np.random.Generator], path: Any) -> None:
    """Let all random numbers go on from a state.

    Raises:
        ArgumentError: it is that of another seed, or of other generators.
    """
    state = json.loads(text)
    if state["seed"] != session.options.random_seed:
        raise ArgumentError(
            f"{path} is of ds.init(random_seed={state['seed']}), and the seed is "
            f"{session.options.random_seed} now",
            Span.of_caller(),
            hint="give the same seed, or begin anew with resume=False",
        )
    mine = [g.bit_generator.state["bit_generator"] for g in generators]
    theirs = [s["bit_generator"] for s in state["generators"]]
    if mine != theirs:
        raise ArgumentError(
            f"{path} is of a training with the generators {theirs}, and there are {mine} now",
            Span.of_caller(),
            hint="give the same generators, or begin anew with resume=False",
        )
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(_unplain(state["numpy"]))  # noqa: NPY002
    session.launches = state["launches"]
    for g, s in zip(generators, state["generators"], strict=True):
        g.bit_generator.state = _unplain(s)


def _plain(thing: Any) -> Any:
    """Return a state as JSON has it: arrays as lists with their type."""
    if isinstance(thing, dict):
        return {key: _plain(value) for key, value in thing.items()}
    if isinstance(thing, np.ndarray):
        return {"array": thing.tolist(), "dtype": str(thing.dtype)}
    return thing.item() if isinstance(thing, np.generic) else thing


def _unplain(thing: Any) -> Any:
    if isinstance(thing, dict) and set(thing) == {"array", "dtype"}:
        return np.array(thing["array"], dtype=thing["dtype"])
    if isinstance(thing, dict):
        return {key: _unplain(value) for key, value in thing.items()}
    return thing
