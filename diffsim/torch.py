"""Functions of fields as functions of PyTorch: `ds.torch.wrap` (docs/pytorch.md).

PyTorch is imported at the first use, never with diffsim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from diffsim.bridges.call import RecordedCall
from diffsim.bridges.function import FieldFunction, Given, Prepared, set_values, values_of
from diffsim.errors import ArgumentError, AutodiffError, FieldError, Span
from diffsim.lang.host.copying import Named
from diffsim.lang.host.signatures import checked
from diffsim.lang.host.unsupported import absent
from diffsim.public_names import names_of_module
from diffsim.runtime.fields.export import pytorch
from diffsim.runtime.fields.field import Field
from diffsim.runtime.memory.storage import HOST
from diffsim.runtime.session import session
from diffsim.tracebacks import entries

__all__ = ["wrap"]
__dir__ = names_of_module(__all__)

if not TYPE_CHECKING:  # or every name would be one

    def __getattr__(name: str) -> NoReturn:
        raise absent(__name__, name, __all__)


@checked
def wrap(
    function: Callable[..., Any] | None = None, *, inputs: Any = None, outputs: Any = None
) -> Any:
    """Make a function of tensors of PyTorch, with gradients, of a function of fields; also a decorator.

        step = ds.torch.wrap(move, inputs=[x, v, force], outputs=[x, v])
        x1, v1 = step(x0, v0, policy(x0))
        x1.sum().backward()

    A call copies the tensors into the input fields, calls the function, and returns copies of the outputs. It
    is one node of PyTorch's graph. Calls may follow each other in one graph in any number.

    Args:
        function: launches kernels. Arguments after the inputs are passed on to it.
        inputs: a field for each tensor. Without fields all tensors (or as many as there are types here)
            become arrays (`ds.ndarray`) of their shape, which the function gets as arguments.
        outputs: fields that the function writes; if left out, it returns them. One output is one tensor,
            several are a tuple.

    Raises:
        ArgumentError: at a call: a tensor does not fit.
        AutodiffError: and its kind: a gradient cannot be given; at the call, or in `backward`.

    Example:
        import torch

        x = ds.field(ds.f64, shape=3, needs_grad=True)
        y = ds.field(ds.f64, shape=3, needs_grad=True)

        @ds.kernel
        def square():
            for i in x:
                y[i] = x[i] ** 2

        f = ds.torch.wrap(square, inputs=[x], outputs=[y])
        a = torch.full((3,), 3.0, dtype=torch.float64, requires_grad=True)
        f(a).sum().backward()
        print(a.grad.tolist())  # prints: [6.0, 6.0, 6.0]
    """
    pytorch()
    if function is None:
        return lambda f: WrappedForTorch(FieldFunction(f, inputs, outputs))
    return WrappedForTorch(FieldFunction(function, inputs, outputs))


@entries("__call__")
class WrappedForTorch(Named):
    """A function of tensors; made by `ds.torch.wrap`."""

    def __init__(self, function: FieldFunction) -> None:
        functools.update_wrapper(self, function.function)
        self.function = function

    def __call__(self, *args: Any, **named: Any) -> Any:
        torch, function = pytorch(), self.function
        places = _places(function, args, named)
        tensors = [args[k] for k in places]
        given = {k: _given(args[k], f"argument {k + 1} of {function.name}") for k in places}
        prepared = function.prepare(args, named, given)
        recording = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if recording or _in_functorch():
            made = _node().apply(_Place(function, prepared), *tensors)
            outputs = made[1:]
        else:
            _load(prepared, tensors)
            outputs = [_tensor(f) for f in function.run(prepared)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class _Place:
    """Hands a call to its node of PyTorch's graph, whose methods are static."""

    def __init__(self, function: FieldFunction, prepared: Prepared) -> None:
        self.function = function
        self.prepared: Prepared | None = prepared
        self.call: RecordedCall | None = None

    def run(self, tensors: Sequence[Any]) -> RecordedCall:
        assert self.prepared is not None
        _load(self.prepared, tensors)
        self.call = RecordedCall(self.function, self.prepared)
        return self.call


@functools.cache
def _node() -> Any:
    """Return the class of nodes; made late, as its base is PyTorch's."""
    torch = pytorch()
    base: Any = torch.autograd.Function

    class FieldFunctionNode(base):
        """A call of a function of fields in PyTorch's graph."""

        @staticmethod
        def forward(place: _Place, *tensors: Any) -> Any:
            call = place.run(tensors)
            # PyTorch drops what a node saved when its graph is freed, and refuses a second pass over it: the
            # call hangs on a tensor that is saved.
            holder = torch.empty(0)
            holder.diffsim_call = call
            return holder, *map(_tensor, call.outputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            holder, *outputs = output
            place, *tensors = inputs
            # torch.func wraps tensors, which have no attributes then. And it differentiates gradients
            # by tensors, to which the gradient must be seen to belong.
            ctx.kept = place.call if _in_functorch() else None
            ctx.save_for_backward(holder, *(tensors if _in_functorch() else ()))
            ctx.set_materialize_grads(False)
            whole = [t for t in outputs if not t.is_floating_point()]
            ctx.mark_non_differentiable(holder, *whole)

        @staticmethod
        def backward(ctx: Any, _: Any, *gradients: Any) -> Any:
            holder, *tensors = ctx.saved_tensors
            call: RecordedCall = ctx.kept or holder.diffsim_call
            needed = ctx.needs_input_grad[1:]
            if not torch.is_grad_enabled():
                return None, *_pull_back(call, needed, gradients)
            # create_graph=True: a node in which the gradient of this gradient is refused. It hangs on a
            # number, so that it is never taken for a constant.
            hook = torch.zeros((), requires_grad=True)
            tied = (hook, *tensors)
            return None, *_gradient_node().apply(call, needed, len(tied), *tied, *gradients)

    return FieldFunctionNode


@functools.cache
def _gradient_node() -> Any:
    """Return the class of nodes of gradients: their own gradient is refused."""
    torch = pytorch()
    base: Any = torch.autograd.Function

    class GradientNode(base):
        """The gradient of a call in PyTorch's graph."""

        @staticmethod
        def forward(call: RecordedCall, needed: Sequence[bool], tied: int, *tensors: Any) -> Any:
            return tuple(_pull_back(call, needed, tensors[tied:]))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.call = inputs[0]

        @staticmethod
        def backward(ctx: Any, *_: Any) -> NoReturn:
            raise AutodiffError(
                f"the gradient of {ctx.call.name} has no gradient in PyTorch: it was computed with "
                "create_graph=True, and the loss depends on it",
                ctx.call.span(),
                hint="leave the gradient out of the loss: gradient.detach()",
            )

    return GradientNode


def _in_functorch() -> bool:
    """Return whether torch.func transforms what runs now."""
    return bool(pytorch()._C._are_functorch_transforms_active())


def _pull_back(call: RecordedCall, needed: Sequence[bool], gradients: Sequence[Any]) -> list[Any]:
    """Return the gradients of a call's inputs; None where none is needed."""
    seeds = {
        f: _array(g)
        for f, g in zip(call.outputs, gradients, strict=True)
        if g is not None and f.dtype.is_float
    }
    wanted = [f for f, need in zip(call.inputs, needed, strict=True) if need and f.dtype.is_float]
    if not seeds or not wanted:
        return [None] * len(call.inputs)
    found = call.pull_back(seeds, wanted)
    return [_to_tensor(found[f]) if f in found else None for f in call.inputs]


# ---- tensors


def _places(function: FieldFunction, args: Sequence[Any], named: dict[str, Any]) -> list[int]:
    """Return which arguments are inputs."""
    torch = pytorch()
    count = function.count(args, lambda a: isinstance(a, torch.Tensor))
    places = [k for k, a in enumerate(args) if isinstance(a, torch.Tensor)]
    by_name = [n for n, a in named.items() if isinstance(a, torch.Tensor)]
    beyond = places[count:] if count is not None else []
    if by_name or beyond:
        what = by_name[0] if by_name else f"argument {beyond[0] + 1}"
        raise ArgumentError(
            f"{what} of {function.name} is a tensor, and not among the inputs: its gradient would be lost",
            Span.of_caller(),
            hint="name a field for it, inputs=[...], and give tensors by place",
        )
    if not places:
        raise ArgumentError(
            f"{function.name} is called without a tensor",
            Span.of_caller(),
            hint="give its inputs as tensors; or call the function that was wrapped",
        )
    return places


def _given(tensor: Any, what: str) -> Given:
    torch = pytorch()
    if _in_functorch() and torch._C._functorch.is_batchedtensor(tensor):
        raise FieldError(
            f"{what} is a batch of torch.func.vmap, and a call computes one result in its fields",
            Span.of_caller(),
            hint="call it for each element: torch.stack([f(x) for x in batch]); or give the fields an axis "
            "for the batch",
        )
    if tensor.layout is not torch.strided:
        raise ArgumentError(
            f"{what} is a sparse tensor", Span.of_caller(), hint="convert it: tensor.to_dense()"
        )
    on_host = session.device is HOST
    if (tensor.device.type == "cpu") != on_host or tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentError(
            f"{what} is on {tensor.device}, and kernels run on {session.device}",
            Span.of_caller(),
            hint='move it: tensor.to("cpu")' if on_host else 'move it: tensor.to("cuda")',
        )
    name = str(tensor.dtype)
    try:
        dtype = np.dtype(name.removeprefix("torch."))
    except TypeError:  # bfloat16 and the like
        dtype = None
    return Given(tensor, tuple(tensor.shape), dtype, name)


def _load(prepared: Prepared, tensors: Sequence[Any]) -> None:
    """Copy tensors into fields."""
    for f, tensor in zip(prepared.fields, tensors, strict=True):
        set_values(f, _array(tensor))


def _array(tensor: Any) -> np.ndarray:
    """Return a tensor as an array, which may share its memory."""
    return tensor.detach().resolve_neg().cpu().numpy()


def _tensor(f: Field) -> Any:
    return _to_tensor(values_of(f))


def _to_tensor(array: np.ndarray) -> Any:
    made = pytorch().from_numpy(array)
    return made if session.device is HOST else made.cuda(session.device.dlpack[1])
