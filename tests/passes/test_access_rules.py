"""The data access rules within a kernel, against the order in which elements are read and changed."""

import itertools

import pytest

import diffsim as ds
from diffsim.errors import GlobalDataAccessError
from diffsim.ir.nodes import Load
from diffsim.ir.traversal import task_statements
from diffsim.passes.autodiff.reverse import reverse
from tests.support.trace import ir_of, trace

pytestmark = pytest.mark.usefixtures("cpu")

KERNELS = {
    "other field": "    for i in range(4):\n        y[i] = x[i] ** 2\n",
    "own element": "    for i in range(4):\n        x[i] = x[i] ** 2\n",
    "own element, linear": "    for i in range(4):\n        x[i] = 2.0 * x[i]\n",
    "read after": "    for i in range(4):\n        x[i] = y[i]\n        y[i + 4] = x[i] ** 2\n",
    "written between": "    for i in range(4):\n        y[i] = x[i] ** 2\n        x[i] = 1.0\n",
    "earlier task": (
        "    for i in range(4):\n        x[i] = y[i + 4]\n    for i in range(4):\n        y[i] = x[i] ** 2\n"
    ),
    "later task": (
        "    for i in range(4):\n        y[i] = x[i] ** 2\n    for i in range(4):\n        x[i] = 1.0\n"
    ),
    "other row": "    for i in range(4):\n        z[n + 1, i] = z[n, i] ** 2\n",
    "same row": "    for i in range(4):\n        z[n, i] = z[n, i] ** 2\n",
    "recurrence": (
        "    for i in range(4):\n        for t in range(1, 4):\n            z[t, i] = z[t - 1, i] ** 2\n"
    ),
    "recurrence, backwards": (
        "    for i in range(4):\n        for t in range(3):\n            z[t, i] = z[t + 1, i] ** 2\n"
    ),
    "one element in a loop": (
        "    for i in range(4):\n        for t in range(3):\n            z[0, i] = z[0, i] ** 2\n"
    ),
    "bound": "    for i in range(k[0]):\n        x[i] = y[i] ** 2\n        k[i] = 1\n",
    "sum": "    for i in range(4):\n        x[0] += y[i] ** 2\n",
    "sum that is read": "    for i in range(4):\n        x[i] += y[i] ** 2\n        y[i + 4] = x[i] ** 2\n",
}
RACES = {
    "neighbour": "    for i in range(4):\n        x[i] = x[i + 1] ** 2\n",
    "one for all": "    for i in range(4):\n        x[0] = y[i] ** 2\n",
    "permuted": "    for i in range(4):\n        z[1, i] = z[i, 2] ** 2\n",
}


def kernel_of(body):
    x, y = (ds.field(ds.f64, shape=8, needs_grad=True) for _ in range(2))
    z = ds.field(ds.f64, shape=(8, 8), needs_grad=True)
    k = ds.field(ds.i32, shape=8)
    k[0] = 3
    return ir_of(body, x=x, y=y, z=z, k=k), (x, y, z, k)


def repeated_loads(kernel):
    """The loads that the adjoint of the kernel on its own copy of memory would repeat.

    Made with `in_place`, and where that is refused too, with every float load.
    """
    try:
        adjoint = reverse(kernel, in_place=True).ir
    except GlobalDataAccessError:
        return {s for t in kernel.tasks for s in task_statements(t) if isinstance(s, Load)}
    return {
        s.origin
        for t in adjoint.tasks
        for s in task_statements(t)
        if isinstance(s, Load) and s.origin is not s
    }


def is_stale(kernel, n):
    """Whether an element that the adjoint loads again is changed after it was read."""
    done = trace(kernel, n).accesses
    needed = repeated_loads(kernel)
    return any(
        one.stmt in needed
        and other.writes
        and one.stmt.mem is other.stmt.mem
        and one.element == other.element
        for one, other in itertools.combinations(done, 2)
    )


def races(kernel, n):
    """Whether lanes of one task store, or read and write, one element."""
    done = trace(kernel, n).accesses
    return any(
        one.task == other.task
        and one.lane != other.lane
        and one.stmt.mem is other.stmt.mem
        and one.element == other.element
        and (one.writes or other.writes)
        for one, other in itertools.combinations(done, 2)
    )


def refused(kernel, n, **options):
    """Whether the adjoint is refused, or made under a condition that this launch does not meet."""
    try:
        adjoint = reverse(kernel, **options)
    except GlobalDataAccessError as error:
        assert options or "rule 1" in error.message
        return True
    done = trace(adjoint.primal, n).accesses
    return any(
        one.task == c.one.number
        and other.task == c.other.number
        and one.element == other.element
        and not (c.same_lane and one.lane == other.lane)
        for c in adjoint.conditions
        for one in done
        if one.stmt in c.one.accesses
        for other in done
        if other.stmt in c.other.accesses
    )


@pytest.mark.parametrize("name", KERNELS)
def test_refused_are_those_that_change_what_they_read(name):
    kernel, _fields = kernel_of(KERNELS[name])
    stale = is_stale(kernel, 2)
    assert refused(kernel, 2) == stale
    if not stale:
        assert reverse(kernel).restored == frozenset()


def test_the_list_has_both():
    made = {name: kernel_of(body) for name, body in KERNELS.items()}
    found = {name: is_stale(kernel, 2) for name, (kernel, _fields) in made.items()}
    assert 4 <= sum(found.values()) <= len(found) - 4


def test_what_a_lane_stores_and_reads_again_is_not_loaded():
    """So it may change after that."""
    kernel, _fields = kernel_of(
        "    for i in range(4):\n        x[i] = y[i]\n        y[i + 4] = x[i] ** 2\n        x[i] = 1.0\n"
    )
    assert {s.mem.name for s in repeated_loads(kernel)} == {"y"}
    assert reverse(kernel)[1] == frozenset()


@pytest.mark.parametrize("name", RACES)
def test_races_are_refused(name):
    kernel, _fields = kernel_of(RACES[name])
    assert races(kernel, 2)
    assert refused(kernel, 2, in_place=True)


def test_what_must_be_as_before_the_launch():
    """With `in_place`, memories that the kernel changes after it read them, and only those."""
    found = {}
    for name in ("own element", "written between", "later task", "same row", "read after"):
        kernel, _fields = kernel_of(KERNELS[name])
        found[name] = {m.name for m in reverse(kernel, in_place=True).restored}
    assert found == {
        "own element": {"x"},
        "written between": {"x"},
        "later task": {"x"},
        "same row": {"z"},
        "read after": set(),
    }


def test_neither_before_nor_after():
    """What is read between two writes of the launch is nowhere to be found any more."""
    kernel, _fields = kernel_of(
        "    for i in range(4):\n        x[i] = y[i]\n"
        "    for i in range(4):\n        y[i + 4] = x[i] ** 2\n        x[i] = 1.0\n"
    )
    with pytest.raises(GlobalDataAccessError, match="neither"):
        reverse(kernel, in_place=True)
