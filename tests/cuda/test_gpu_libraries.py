"""PyTorch, CuPy and JAX beside diffsim on a real GPU, and the same memory in them."""

import gc

import numpy as np
import pytest

from tests.cuda.real import real, run

pytestmark = pytest.mark.gpu


@real
def test_torch_beside_diffsim(tmp_path):
    """A thousand turns, both orders of the first use, two threads."""
    pytest.importorskip("torch")
    for first in ("torch", "diffsim"):
        out = run(
            tmp_path,
            f"""
            import threading
            import torch, diffsim as ds
            if {first == "torch"}:
                t = torch.zeros(1000, device="cuda")
            ds.init(arch=ds.cuda)
            x = ds.field(ds.f32, shape=1000)

            @ds.kernel
            def more(a: ds.f32):
                for i in x:
                    x[i] += a

            more(1.0)
            if {first == "diffsim"}:
                t = torch.zeros(1000, device="cuda")
            for k in range(1000):
                more(1.0)
                t += 1
            assert x[999] == 1001, x[999]
            assert float(t[999]) == 1000

            def other():
                for k in range(200):
                    more(1.0)
                    t.add_(1)
                torch.cuda.synchronize()
                assert t[3].item() >= 1200

            threads = [threading.Thread(target=other) for _ in range(2)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert x[7] == 1401, x[7]
            assert float(t.sum()) == 1400 * 1000
            print("ok")
            """,
        )
        assert out == "ok\n"


@real
def test_pinned_tensors_may_change_after_a_copy(tmp_path):
    pytest.importorskip("torch")
    out = run(
        tmp_path,
        """
        import torch
        import diffsim as ds
        ds.init(arch=ds.cuda)
        right = []
        for n in (1, 1000, 100_000, 10_000_000):
            x = ds.field(ds.f32, shape=n)
            a = torch.full((n,), 3.0, pin_memory=True).numpy()
            for _ in range(20):
                a[...] = 3
                x.from_numpy(a)
                a[...] = 0
                right.append((x.to_numpy() == 3).all())
        print(all(right), len(right))
        """,
    )
    assert out == "True 80\n"


# ---- the same memory


def test_torch_sees_the_same_memory(gpu):
    torch = pytest.importorskip("torch")
    ds = gpu
    x = ds.Vector.field(3, ds.f32, shape=(4, 5), layout=ds.Layout.SOA)
    views = torch.from_dlpack(x), torch.as_tensor(x, device="cuda")
    for k, t in enumerate(views):
        assert tuple(t.shape) == (4, 5, 3)
        t[2, 3, 1] = 7 + k
        assert x[2, 3].to_list() == [0, 7 + k, 0]
        x[0, 0] = [1, 2, 3 + k]
        assert t[0, 0].tolist() == [1, 2, 3 + k]
        assert t.data_ptr() == x.address
    del x
    gc.collect()
    assert views[0][2, 3, 1].item() == 8


def test_tensors_are_used_where_they_are(gpu):
    torch = pytest.importorskip("torch")
    ds = gpu
    x = ds.field(ds.f32, shape=(300, 7))

    @ds.kernel
    def exchange(y: ds.types.ndarray()):
        for i, j in y:
            a = x[i, j]
            x[i, j] = y[i, j]
            y[i, j] = a + 1.0

    t = torch.arange(2100.0, device="cuda").reshape(300, 7)
    exchange(t)
    t += 1
    exchange(t)
    expected = np.arange(2100, dtype=np.float32).reshape(300, 7)
    assert (t.cpu().numpy() == expected + 1).all()
    assert (x.to_numpy() == 2).all()
    for wrong, message in (
        (t.T, "not contiguous"),
        (t.clone().requires_grad_(), "detach"),
        (t.cpu(), "not a torch|asarray|array"),
    ):
        with pytest.raises(ds.KernelTypeError, match=message):
            exchange(wrong)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        u = torch.full((300, 7), 3.0, device="cuda")
        for _ in range(100):
            u = u * 1.0
        stream.synchronize()
        exchange(u)
    assert (x.to_numpy() == 3).all()


def test_gradient_through_a_tensor_argument(gpu):
    torch = pytest.importorskip("torch")
    ds = gpu
    n = 1000
    x = ds.field(ds.f64, shape=n, needs_grad=True)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)
    x.fill(2)

    @ds.kernel
    def measure(w: ds.types.ndarray()):
        for i in x:
            loss[None] += w[i] * x[i] ** 2

    w = torch.arange(n, device="cuda", dtype=torch.float64)
    with ds.Tape(loss):
        measure(w)
        w.zero_()  # the tape has what it was
    assert (x.grad.to_numpy() == 4.0 * np.arange(n)).all()


def test_cupy_and_jax(gpu):
    ds = gpu
    x = ds.field(ds.f32, shape=10)
    x.fill(3)
    tried = 0
    for name in ("cupy", "jax.dlpack"):
        try:
            library = __import__(name, fromlist=["from_dlpack"])
        except ImportError:
            continue
        tried += 1
        assert float(library.from_dlpack(x).sum()) == 30
    if not tried:
        pytest.skip("neither is here")
