"""Random programs as functions of PyTorch and JAX: gradients of two calls in a row, against a tape.

All fields are inputs and outputs, so that a chain of two calls is the program twice. The tape's gradients
themselves are compared with dual numbers by `programs.verdict`. Run with a Python that has the libraries.
"""

import importlib.util

import numpy as np

import diffsim as ds
from diffsim.errors import DiffsimError
from tests.fuzz import sparse

LIBRARIES = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]


def verdict(text, seed, library):
    """ "right", "refused", or what is wrong."""
    space, fields = sparse.space_of(text, seed)
    fields = [*fields, space["loss"]]
    start = [f.to_numpy() for f in fields]
    rng = np.random.default_rng(seed)
    ends = [rng.uniform(-1, 1, a.shape) for a in start]
    at, changes = space["at"].to_numpy(), []

    def main():
        space["main"]()
        changes.append((space["at"].to_numpy() != at).any())

    expected = _by_tape(main, fields, ends)
    if any(changes):
        return "invalid"  # state that is no input: calls of JAX do not share it
    space, fields = sparse.space_of(text, seed)
    fields = [*fields, space["loss"]]
    chain = _by_torch if library == "torch" else _by_jax
    before = [f.to_numpy() for f in fields]
    try:
        with np.errstate(all="ignore"):
            found = chain(space["main"], fields, start, ends)
    except Exception as error:
        # JAX makes errors of its own of those in callbacks.
        own = isinstance(error, DiffsimError) or type(error).__name__ == "JaxRuntimeError"
        if expected is None and own:
            return "refused"
        return f"refused: {str(error).partition(chr(10))[0]}"
    if expected is None:
        return "accepted, and a tape refuses it"
    if library == "jax" and not _same(before, [f.to_numpy() for f in fields]):
        return "fields: a call of a pure function has changed them"
    for what, a, b in zip(("values", "gradients"), found, expected, strict=True):
        if not _same(a, b):
            return f"{what}: {a} instead of {b}"
    return "right"


def _same(a, b):
    return all(
        np.allclose(p, q, rtol=1e-10, atol=1e-12, equal_nan=True) for p, q in zip(a, b, strict=True)
    )


def _by_tape(main, fields, ends):
    tape = ds.Tape(in_place="save")
    tape.keeps_inputs = False  # what Python sets is a constant to another library
    try:
        with np.errstate(all="ignore"), tape:
            main()
            main()
        values = [f.to_numpy() for f in fields]
        # What a program does not write has the gradient that it was given.
        tape.backward(grads=dict(zip(fields, ends, strict=True)))
    except DiffsimError:
        return None
    return values, [f.grad.to_numpy() for f in fields]


def _by_torch(main, fields, start, ends):
    import torch

    function = ds.torch.wrap(main, inputs=fields, outputs=fields)
    tensors = [torch.tensor(a, requires_grad=True) for a in start]
    middle = function(*tensors)
    made = function(*middle)
    function(*[t.detach() + 0.5 for t in tensors])  # another call meanwhile
    torch.autograd.backward(made, [torch.tensor(e) for e in ends])
    values = [t.detach().numpy() for t in made]
    zero = [torch.zeros_like(t) for t in tensors]
    grads = [z if t.grad is None else t.grad for t, z in zip(tensors, zero, strict=True)]
    return values, [g.numpy() for g in grads]


def _by_jax(main, fields, start, ends):
    import jax

    jax.config.update("jax_enable_x64", True)
    function = ds.jax.wrap(main, inputs=fields, outputs=fields)

    def twice(*arrays):
        return function(*function(*arrays))

    made, pull_back = jax.vjp(twice, *map(jax.numpy.asarray, start))
    grads = pull_back(tuple(map(jax.numpy.asarray, ends)))
    return [np.asarray(a) for a in made], [np.asarray(g) for g in grads]
