"""Tensors of PyTorch on the host: arguments of kernels without a copy, and copies into fields."""

import numpy as np
import pytest

import diffsim as ds

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64)


@ds.kernel
def double(a: ds.types.ndarray()):
    for i in a:
        a[i] *= 2.0


class Weighed:
    def __init__(self):
        self.x = ds.field(ds.f64, shape=3, needs_grad=True)
        self.loss = ds.field(ds.f64, shape=(), needs_grad=True)
        self.x.fill(1.0)

    @ds.kernel
    def add(self, a: ds.types.ndarray()):
        for i in self.x:
            self.loss[None] += a[i] * self.x[i] ** 2


def ones(*shape, **options):
    return torch.ones(*shape, dtype=torch.float64, **options)


def test_kernels_write_to_tensors():
    t = ones(4)
    double(t)
    double(t[1:3])
    double(t[::3])
    assert t.tolist() == [4.0, 4.0, 4.0, 4.0]
    shared = ds.from_dlpack(t)
    shared[0] = 7.0
    double(shared)
    assert t.tolist() == [14.0, 8.0, 8.0, 8.0]


def test_a_tensor_that_changes_after_its_launch_is_a_constant_on_a_tape():
    w = Weighed()
    t = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    with ds.Tape() as tape:
        w.add(t)
        t.mul_(10.0)
        w.add(t)
        t.zero_()
    t.fill_(np.nan)
    tape.backward(w.loss)
    assert w.x.grad.to_numpy().tolist() == [22.0, 44.0, 66.0]


def test_a_field_in_a_tensor_is_refused_on_a_tape():
    w = Weighed()
    for alias in (torch.from_dlpack(w.x), ds.from_dlpack(w.x)):
        with ds.Tape(), pytest.raises(ds.AutodiffError, match="this array is the memory of x"):
            w.add(alias)


def test_shared_fields_are_kept_by_each_wrapped_call():
    """PyTorch writes to a field between two calls, unseen: each call has the values of its time."""
    x, rate, y = (ds.field(ds.f64, shape=3) for _ in range(3))

    @ds.kernel
    def scale():
        for i in x:
            y[i] = rate[i] * x[i] ** 2

    rates = torch.from_dlpack(rate)
    wrapped = ds.torch.wrap(scale, inputs=[x], outputs=[y])
    a = ones(3, requires_grad=True)
    total = 0.0
    for k in (1.0, 10.0):
        rates.fill_(k)
        total = total + wrapped(a).sum()
    rates.fill_(1e9)
    total.backward()
    assert a.grad.tolist() == [22.0, 22.0, 22.0]


def test_copies():
    x = ds.Vector.field(2, ds.f32, shape=3, layout=ds.Layout.SOA)
    t = torch.arange(6, dtype=torch.float64).reshape(2, 3).T
    x.from_torch(t)
    assert x[2][1] == 5.0
    made = x.to_torch()
    assert made.dtype == torch.float32
    assert torch.equal(made, t.float())
    x.fill(0.0)
    assert made[2, 1] == 5.0
    assert x.to_torch("meta").device.type == "meta"


WRONG = [
    (lambda x: double(ones(3, requires_grad=True)), ds.KernelTypeError, "requires a gradient"),
    (lambda x: double(torch.ones(3).bfloat16()), ds.KernelTypeError, "NumPy cannot share"),
    (lambda x: double(ones(3, device="meta")), ds.KernelTypeError, "is an array, not an object"),
    (lambda x: ds.from_dlpack(3), ds.FieldError, "has no __dlpack__"),
    (
        lambda x: ds.from_dlpack(ones(3, device="meta")),
        ds.FieldError,
        "not in the memory of the host",
    ),
    (lambda x: x.from_torch(np.ones(3)), ds.FieldError, "takes a tensor of PyTorch"),
    (lambda x: x.from_torch(ones(2)), ds.FieldError, r"needs an array of shape \(3,\)"),
    (lambda x: x.from_torch(ones(3, requires_grad=True)), ds.FieldError, "requires a gradient"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG, ids=[m for *_, m in WRONG])
def test_refused(wrong, error, message):
    with pytest.raises(error, match=message) as caught:
        wrong(ds.field(ds.f64, shape=3))
    assert "lambda x" in str(caught.value)
