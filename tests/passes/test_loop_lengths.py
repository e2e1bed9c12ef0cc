"""How long loops are at most, against the lengths of all runs counted in Python."""

import pytest

import diffsim as ds
from diffsim.ir.nodes import For, While
from diffsim.ir.traversal import task_statements
from diffsim.passes.analysis.counted_loops import longest_runs
from tests.support.source import make

N = 9
# The ends of a loop in a lane i of N and an iteration j of 6, in a kernel and in Python.
EXACT = [
    "range(i + 1)",
    "range(i, 9)",
    "range(3, i)",
    "range(2 * i + 3 * j - 4)",
    "range(j, i + j + 1)",
    "range(i - 3, i + 4)",
    "range(max(0, i - 3), i + 4)",
    "range(max(0, i - 3), min(9, i + 4))",
    "range(max(i, 7), 9)",
    "range(20, i)",
]
MORE = [  # known, but not the least that is right: which ends belong to one lane is not asked
    "range(max(i - 1, j), min(2 * i, j + 3))",
    "range(max(3 - i, j), min(9, i + j))",
]
UNKNOWN = [
    "range(min(i, j), i + 1)",
    "range(min(i, j) + 1)",
    "range(n)",
    "range(n - i)",
    "range(i * j)",
    "range(at[i])",
    "range(i % 3)",
]


KERNEL = """@ds.kernel
def kernel(n: ds.i32):
    for i in range(N):
        total = 0.0
        for j in {around}:
            for k in {ends}:
                total += ds.sin(total) * k
        y[i] = total
"""


@pytest.fixture
def fields(cpu):
    at, y = ds.field(ds.i32, shape=N), ds.field(ds.f64, shape=N, needs_grad=True)
    return {"ds": ds, "N": N, "at": at, "y": y}


def found(space, ends, around="range(6)"):
    """How long the innermost loop is at most."""
    make(KERNEL.format(ends=ends.replace("m", "ds.m"), around=around.replace("m", "ds.m")), space)
    kernel = space["kernel"]._only((1,)).ir
    loops = [s for s in task_statements(kernel.tasks[0]) if isinstance(s, (For, While))]
    assert len(loops) == 2
    return longest_runs(kernel).get(loops[1])


def counted(ends, around="range(6)"):
    """The most iterations of a run."""
    runs = [{"i": i, "j": j} for i in range(N) for j in eval(around, {"i": i})]
    return max(len(eval(ends, run)) for run in runs)


@pytest.mark.parametrize("ends", EXACT)
def test_known_lengths(fields, ends):
    assert found(fields, ends) == counted(ends)


@pytest.mark.parametrize("ends", ["range(j)", "range(j, 6)"])
@pytest.mark.parametrize("around", ["range(max(2, i - 1), min(5, i + 1))", "range(i, 2 * i + 1)"])
def test_loops_in_loops_whose_ends_lanes_tell(fields, ends, around):
    assert found(fields, ends, around) == counted(ends, around)


@pytest.mark.parametrize("ends", MORE)
def test_bounds_of_lengths(fields, ends):
    assert counted(ends) <= found(fields, ends) < N + 6


@pytest.mark.parametrize("ends", UNKNOWN)
def test_unknown_lengths(fields, ends):
    assert found(fields, ends) is None
