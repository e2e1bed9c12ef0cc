"""`ds.torch.wrap`, with the real PyTorch: its own checks of gradients, and its graph in every use."""

import gc
import resource
import subprocess
import sys

import pytest

import diffsim as ds

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
N = 3


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64)


def tensor(*shape, seed=0, grad=True):
    made = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return made.requires_grad_(grad)


@pytest.fixture
def step(_f64):
    """A step of a pendulum in place: its place and speed, and a push."""
    x, v, push = (ds.field(ds.f64, shape=N) for _ in range(3))

    @ds.kernel
    def move(dt: ds.f64):
        for i in x:
            v[i] += dt * (push[i] - ds.sin(x[i]))
            x[i] += dt * v[i] * v[i]

    return ds.torch.wrap(move, inputs=[x, v, push], outputs=[x, v])


def same_step(x, v, push, dt):
    v = v + dt * (push - torch.sin(x))
    return x + dt * v * v, v


@ds.kernel
def _product(a: ds.types.ndarray(), b: ds.types.ndarray(), c: ds.types.ndarray()):
    for i, j in a:
        c[i, j] = a[i, j] * ds.sin(b[i, j])


@pytest.fixture
def product(_f64):
    @ds.torch.wrap
    def product(a, b):
        c = ds.ndarray(ds.f64, a.shape, needs_grad=True)
        _product(a, b, c)
        return c

    return product


# --- values and gradients -------------------------------------------------------------------------


def test_gradcheck(step, product):
    a, b, c = (tensor(N, seed=k) for k in range(3))
    assert torch.autograd.gradcheck(lambda *t: step(*t, 0.3), (a, b, c))
    assert torch.autograd.gradcheck(product, (tensor(2, 3), tensor(2, 3, seed=1)))
    # Not contiguous, expanded, negated views, and one input for two places.
    assert torch.autograd.gradcheck(
        lambda a, b: product(a.T, b.expand(2, 3)), (tensor(3, 2), tensor(3, seed=1))
    )
    assert torch.autograd.gradcheck(lambda a: product(a[::2], a[1::2]), (tensor(4, 3),))


def test_a_policy_in_the_loop(step):
    """Each step is a node; gradients by the policy and by the start are those of PyTorch's own program."""
    policy = torch.nn.Sequential(
        torch.nn.Linear(2 * N, 4), torch.nn.Tanh(), torch.nn.Linear(4, N)
    ).double()
    start = tensor(N, seed=1)

    def run(one):
        x, v = start, torch.zeros(N, dtype=torch.float64)
        loss = 0.0
        for t in range(100):
            x, v = one(x, v, policy(torch.cat([x, v])), 0.02)
            loss = loss + (x * x).sum() * 0.01
        return torch.autograd.grad(loss, [start, *policy.parameters()])

    for found, expected in zip(run(step), run(same_step), strict=True):
        assert torch.allclose(found, expected, rtol=1e-11, atol=1e-13)


def test_nodes_that_share_inputs_and_a_used_up_gradient(step):
    a, b, c = (tensor(N, seed=k) for k in range(3))
    x1, v1 = step(a, b, c, 0.3)
    x2, v2 = step(a, v1, c, 0.1)
    y1, w1 = same_step(a, b, c, 0.3)
    y2, w2 = same_step(a, w1, c, 0.1)
    seed = tensor(N, seed=5, grad=False)
    before = seed.clone()
    found = torch.autograd.grad([x2, v2, x1], [a, b, c], [seed, seed, seed])
    expected = torch.autograd.grad([y2, w2, y1], [a, b, c], [seed, seed, seed])
    assert torch.equal(seed, before)
    for f, e in zip(found, expected, strict=True):
        assert torch.allclose(f, e, rtol=1e-12)


def test_twice_backward_and_unused_outputs(step):
    a, b, c = (tensor(N, seed=k) for k in range(3))
    out = step(a, b, c, 0.3)[1].sum()
    out.backward(retain_graph=True)
    once = a.grad.clone()
    out.backward()
    assert torch.equal(a.grad, 2 * once)
    assert torch.allclose(once, -0.3 * torch.cos(a.detach()))
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_only_what_needs_a_gradient_gets_one(step):
    a, b, c = tensor(N), tensor(N, seed=1, grad=False), tensor(N, seed=2, grad=False)
    x, _ = step(a, b, c, 0.3)
    x.sum().backward()
    assert a.grad is not None
    assert b.grad is None
    assert c.grad is None
    with torch.no_grad():
        assert not step(a, b, c, 0.3)[0].requires_grad
    assert not step(a.detach(), b, c, 0.3)[0].requires_grad
    assert torch.equal(step(a.detach(), b, c, 0.3)[0], x.detach())


def test_gradients_are_added_by_pytorch_alone(step):
    """What a backward pass gives is nobody's `.grad`, and what the user keeps there stays."""
    a, b, c = (tensor(N, seed=k) for k in range(3))
    kept = torch.full((N,), 7.0, dtype=torch.float64)
    a.grad = kept
    found = torch.autograd.grad(step(a, b, c, 0.3)[0].sum(), a)[0]
    assert a.grad is kept
    assert torch.equal(kept, torch.full_like(kept, 7.0))
    step(a, b, c, 0.3)[0].sum().backward()
    assert torch.allclose(a.grad, found + 7.0)


def test_outputs_do_not_share_memory_with_fields(step):
    a, b, c = (tensor(N, seed=k) for k in range(3))
    x, _ = step(a, b, c, 0.3)
    before = x.detach().clone()
    step(b, a, c, 0.3)
    assert torch.equal(x.detach(), before)
    with torch.no_grad():
        a.add_(1.0)  # an input may change: the call has its own copy
    x.sum().backward()


def test_whole_numbers_have_no_gradient():
    index, x, y, rank = (ds.field(t, shape=N) for t in (ds.i32, ds.f64, ds.f64, ds.i32))

    @ds.kernel
    def gather():
        for i in x:
            y[i] = x[index[i]] ** 2
            rank[i] = index[i] + 1

    wrapped = ds.torch.wrap(gather, inputs=[index, x], outputs=[y, rank])
    places = torch.tensor([2, 0, 2], dtype=torch.int32)
    a = tensor(N)
    out, ranks = wrapped(places, a)
    assert ranks.tolist() == [3, 1, 3]
    assert not ranks.requires_grad
    out.sum().backward()
    assert torch.allclose(a.grad, torch.tensor([2.0, 0.0, 4.0], dtype=torch.float64) * a.detach())


def test_decorator_single_precision_and_vectors():
    x = ds.Vector.field(2, ds.f32, shape=N)
    y = ds.field(ds.f32, shape=())

    @ds.torch.wrap(inputs=[x], outputs=[y])
    @ds.kernel
    def energy():
        y[None] = 0.0
        for i in x:
            y[None] += x[i].dot(x[i])

    a = tensor(N, 2).detach().float().requires_grad_()
    out = energy(a)
    assert out.shape == ()
    out.backward()
    assert torch.allclose(a.grad, 2 * a.detach())
    assert "energy" in repr(energy.__name__)


def test_torch_func(product):
    a, b = tensor(2, 3, grad=False), tensor(2, 3, seed=1, grad=False)
    found = torch.func.grad(lambda a: product(a, b).sum())(a)
    assert torch.allclose(found, torch.sin(b))
    rows = torch.autograd.functional.jacobian(lambda a: product(a, b).sum(0), a)
    assert torch.allclose(rows, torch.einsum("ij,jk->jik", torch.sin(b), torch.eye(3).double()))


def test_memory_stays_flat(step):
    """1,000 iterations, the losses of which are kept."""
    a = tensor(N)
    losses = []

    def iterate(times):
        for _ in range(times):
            loss = step(a, a, a, 0.1)[0].sum()
            loss.backward()
            a.grad = None
            losses.append(loss.detach())

    iterate(50)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    iterate(950)
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1500  # KiB


def test_a_graph_that_is_used_up_keeps_no_copies(step):
    a, b, c = (tensor(N, seed=k) for k in range(3))
    x, _ = step(a, b, c, 0.3)
    from diffsim.bridges.call import RecordedCall

    def calls():
        gc.collect()
        return sum(isinstance(o, RecordedCall) for o in gc.get_objects())

    assert calls() == 1
    x.sum().backward()
    assert calls() == 0  # though x holds on to its node


# --- refused --------------------------------------------------------------------------------------


def test_second_order_is_refused_and_never_taken_for_a_constant(step, product):
    a, b, c = (tensor(N, seed=k) for k in range(3))
    (g,) = torch.autograd.grad(step(a, b, c, 0.3)[0].sum(), a, create_graph=True)
    loss = (g * g).sum() + a.sum()
    with pytest.raises(ds.AutodiffError, match="the gradient of move has no gradient in PyTorch"):
        loss.backward()
    m, n = tensor(2, 3, grad=False), tensor(2, 3, grad=False)
    with pytest.raises(ds.AutodiffError, match="has no gradient in PyTorch"):
        torch.func.grad(lambda a: torch.func.grad(lambda b: product(b, n).sum())(a).sum())(m)


def test_an_error_names_the_call(step):
    a, b, c = (tensor(N, seed=k) for k in range(3))
    out = step(a, b, c, 0.3)[0].sum()  # this line
    ds.init(arch=ds.cpu, default_fp=ds.f64)
    with pytest.raises(ds.AutodiffError, match="# this line"):
        out.backward()


def f32(t):
    return t.detach().float()


WRONG = [
    (lambda s, t: s(t, t), "argument 3 of move is an array for the field push, and there is none"),
    (
        lambda s, t: s(t, 1.0, t, 0.3),
        "argument 2 of move is an array for the field v, not the number",
    ),
    (lambda s, t: s(t, t, f32(t), 0.3), "holds torch.float32, and the field push f64"),
    (lambda s, t: s(t, t, t[:2], 0.3), r"has shape \(2,\), and the field push needs \(3,\)"),
    (lambda s, t: s(t, t, t, t), "argument 4 of move is a tensor, and not among the inputs"),
    (lambda s, t: s(t, t, t, dt=t), "dt of move is a tensor, and not among the inputs"),
    (lambda s, t: s(t, t, t.to("meta"), 0.3), "is on meta, and kernels run on the CPU"),
    (lambda s, t: s(t.to_sparse(), t, t, 0.3), "is a sparse tensor"),
    (
        lambda s, t: torch.func.vmap(lambda u: s(u, u, u, 0.3))(t[None]),
        "is a batch of torch.func.vmap",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[m[:40] for _, m in WRONG])
def test_wrong_calls(step, wrong, message):
    with pytest.raises(ds.ArgumentError, match=message) as caught:
        wrong(step, tensor(N))
    assert "wrong(step, tensor(N))" in str(caught.value) or "lambda" in str(caught.value)


def test_wrong_wraps(product):
    x, y = ds.field(ds.f64, shape=N), ds.field(ds.f64, shape=N)
    for wrong, message in (
        (lambda: ds.torch.wrap(print, inputs=[x, x], outputs=[y]), "inputs has x twice"),
        (lambda: ds.torch.wrap(print, inputs=[x, ds.f64], outputs=[y]), "all fields, or all types"),
        (lambda: ds.torch.wrap(print, inputs=["x"], outputs=[y]), "an input is a field or a type"),
        (lambda: ds.torch.wrap(print, inputs=[x], outputs=[3]), "an output is a field, not"),
        (lambda: ds.torch.wrap(print, inputs=[x], outputs=[]), "there are no outputs"),
        (lambda: ds.torch.wrap(3), "what is wrapped is a function"),
        (lambda: ds.torch.wrap(lambda a: 3.0)(tensor(N)), "returns its outputs, which are fields"),
        (lambda: product(tensor(N).bfloat16(), tensor(N)), "which kernels do not have"),
        (lambda: product(1.0, 2.0), "is called without a tensor"),
        (lambda: product(tensor(0, 3), tensor(0, 3)), "is empty"),
    ):
        with pytest.raises(ds.ArgumentError, match=message):
            wrong()


def test_pytorch_is_imported_at_its_first_use():
    code = """
import sys, diffsim as ds
assert "torch" not in sys.modules
sys.modules["torch"] = None  # as if it were not installed
try:
    ds.torch.wrap(print)
except ds.MissingPackageError as e:
    print(e)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "PyTorch is not installed" in run.stdout, run.stderr
