"""Values that only decide on something have no adjoint; all that lead to something stored have one."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.passes.autodiff.activity import Activity, useful_values
from tests.support.trace import ir_of

pytestmark = pytest.mark.usefixtures("cpu")

N = 4
# In each, `a` leads to what is stored, and `b` does not.
BODIES = {
    "rules": "a = x[i] * 2.0\nb = x[i] * 3.0\ny[i] = a + ds.floor(b)\n",
    "branch": (
        "a = x[i]\nb = x[i] * 3.0\nif k[i] > 0:\n    a = a * 2.0\n    b = b * a\n"
        "y[i] = 2.0 * a if b > 1.0 else a\n"
    ),
    "loop": (
        "a = x[i]\nb = x[i] * 3.0\nfor j in range(3):\n    if b > 2.0:\n        a = a * 2.0\n"
        "    b = b * a\ny[i] = a\n"
    ),
    "while": "a = x[i]\nb = x[i] * 3.0\nwhile b < 9.0:\n    b = 2.0 * b + a\n    a = a * 3.0\ny[i] = a\n",
    "loop in loop": (
        "a = x[i]\nb = x[i]\nfor j in range(3):\n    for m in range(k[i]):\n        b = b * x[m]\n"
        "        a = a + x[m]\n    a = a * 2.0\n    if b > 1.0:\n        a = 2.0 * a\ny[i] = a\n"
    ),
    "addition": "a = x[i] * 2.0\nb = x[i] * 3.0\ny[k[i]] += a * ds.floor(b)\n",
}


def fields():
    x, y = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))
    return {"x": x, "y": y, "k": ds.field(ds.i32, shape=N)}


def useful(text):
    """The names of the useful values of a kernel."""
    kernel = ir_of(text, **fields())
    return {v.hint for v in useful_values(kernel, Activity(kernel).values)} & set("abcde")


def lane(body):
    return "    for i in x:\n" + "".join(f"        {line}\n" for line in body.splitlines())


@pytest.mark.parametrize("name", BODIES)
def test_only_what_is_stored_is_useful(name):
    assert useful(lane(BODIES[name])) == {"a"}


def test_carried_values_that_feed_each_other():
    """Each of them is useful through the next one, in as many turns as there are values."""
    chain = (
        "a = x[i]\nb = x[i]\nd = x[i]\ne = x[i]\nfor j in range(5):\n    a = a + b\n    b = b * d\n"
    )
    chain += "    d = d * 2.0\n    e = e + d\n"
    assert useful(lane(chain + "y[i] = a\nif e > 1.0:\n    y[i] = 2.0\n")) == set("abd")
    assert useful(lane(chain + "y[i] = e\n")) == set("de")


def test_temporaries_count_as_stored():
    text = (
        "    s = ds.f64(0.0)\n    for i in x:\n        a = x[i] * 2.0\n        s += a\n"
        "    for i in x:\n        y[i] = s\n"
    )
    assert useful(text) == {"a"}


def test_a_search_has_no_adjoint(cpu):
    """What is nearest has the gradient; the search for it leaves none, and no code."""
    cpu.init(arch=cpu.cpu, default_fp=cpu.f64)
    points, sites, size = 37, 6, 3
    rng = np.random.default_rng(5)
    x = ds.field(ds.f64, shape=(points, size), needs_grad=True)
    site = ds.field(ds.f64, shape=(sites, size), needs_grad=True)
    label = ds.field(ds.i32, shape=points)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def search():
        for i in range(points):
            best, found, c = 1e30, -1, 0
            while c < sites:
                far = 0.0
                for d in range(size):
                    far += ds.sqrt(ds.abs(x[i, d] - site[c, d]))
                if far < best:
                    best = far
                    found = c
                c += 1
            label[i] = found

    @ds.kernel
    def cost():
        for i, d in x:
            loss[None] += (x[i, d] - site[label[i], d]) ** 3

    x.from_numpy(rng.standard_normal((points, size)))
    site.from_numpy(rng.standard_normal((sites, size)))
    with ds.Tape(loss):
        search()
        cost()
    p, q = x.to_numpy(), site.to_numpy()
    nearest = np.sqrt(np.abs(p[:, None] - q)).sum(-1).argmin(1)
    exact = np.zeros_like(q)
    np.add.at(exact, nearest, -3 * (p - q[nearest]) ** 2)
    np.testing.assert_array_equal(label.to_numpy(), nearest)
    np.testing.assert_allclose(x.grad.to_numpy(), 3 * (p - q[nearest]) ** 2, rtol=1e-12)
    np.testing.assert_allclose(site.grad.to_numpy(), exact, rtol=1e-12)
    assert not any(word in search.grad.ir() for word in ("while", "saved", "store", "atomic"))


def test_what_a_search_has_found_is_computed_once(cpu):
    """The adjoint runs it to know where it adds: forward, without a count of its iterations."""
    cpu.init(arch=cpu.cpu, default_fp=cpu.f64)
    n, m = 37, 16
    rng = np.random.default_rng(6)
    edge, at = (ds.field(ds.f64, shape=k, needs_grad=True) for k in (m, n))
    x, y = (ds.field(ds.f64, shape=k, needs_grad=True) for k in (m, n))

    @ds.kernel
    def look_up():
        for i in range(n):
            first, end = 0, m - 1
            while first < end:
                middle = (first + end) // 2
                if edge[middle] < at[i]:
                    first = middle + 1
                else:
                    end = middle
            y[i] = x[first] ** 2 * at[i]

    edges, places, values = np.sort(rng.random(m)), rng.random(n), rng.standard_normal(m)
    for name, given in ((edge, edges), (at, places), (x, values)):
        name.from_numpy(given)
    look_up()
    y.grad.fill(1.0)
    look_up.grad()
    found = np.minimum(np.searchsorted(edges, places), m - 1)
    exact = np.zeros(m)
    np.add.at(exact, found, 2 * values[found] * places)
    np.testing.assert_allclose(x.grad.to_numpy(), exact, rtol=1e-12)
    np.testing.assert_allclose(at.grad.to_numpy(), values[found] ** 2, rtol=1e-12)
    np.testing.assert_array_equal(edge.grad.to_numpy(), 0)
    ir = look_up.grad.ir()
    assert ir.count("load edge") == 1
    assert not any(word in ir for word in (" for ", "saved", "iteration"))


def test_a_loop_of_given_numbers_that_stores_clears_gradients(cpu):
    """What was in the elements before has no effect any more."""
    cpu.init(arch=cpu.cpu, default_fp=cpu.f64)
    y = ds.field(ds.f64, shape=(3, 8), needs_grad=True)

    @ds.kernel
    def fill():
        for i in range(3):
            k = i
            while k < 6:
                y[i, k] = 1.5
                k += 2

    y.grad.fill(1.0)
    fill.grad()
    exact = np.ones((3, 8))
    for i in range(3):
        exact[i, i:6:2] = 0
    np.testing.assert_array_equal(y.grad.to_numpy(), exact)
