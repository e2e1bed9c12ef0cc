"""Memories that threads may add up in private copies, against all accesses of a run."""

import pytest

import diffsim as ds
from diffsim.passes import pipeline
from tests.support.trace import ir_of, trace

pytestmark = pytest.mark.usefixtures("cpu")

BODIES = {
    "histogram": "    for i in range(6):\n        h[k[i]] += 1.0\n",
    "row": "    for i in range(6):\n        g[n, k[i]] += 1.0\n        g[n, k[i] + 1] += 2.0\n",
    "inner loop": "    for i in range(6):\n        for j in range(3):\n            h[k[i] + j] += 1.0\n",
    "one for all": (
        "    for i in range(6):\n        for j in range(3):\n            h[j] += 1.0 * i\n"
        "            h[k[i]] += 1.0\n"
    ),
    "read": "    for i in range(6):\n        h[k[i]] += h[7]\n",
    "other row read": "    for i in range(6):\n        g[n, k[i]] += g[n + 1, i]\n",
    "stored": "    for i in range(6):\n        h[k[i]] += 1.0\n        h[i] = 0.0\n",
    "largest": "    for i in range(6):\n        ds.atomic_max(h[k[i]], 1.0)\n",
    "old value": "    for i in range(6):\n        x[i] = ds.atomic_add(h[k[i]], 1.0)\n",
    "own": "    for i in range(6):\n        h[i] += 1.0\n",
}


def lowered(body):
    h, g = ds.field(ds.f32, shape=8), ds.field(ds.f32, shape=(8, 8))
    k, x = ds.field(ds.i32, shape=8), ds.field(ds.f32, shape=8)
    for i in range(8):
        k[i] = i * 3 % 4
    kernel = ir_of(body, h=h, g=g, k=k, x=x)
    made = pipeline.run(kernel, pipeline.LOWER)
    (task,) = made.tasks
    return made, task, (h, g, k, x)


@pytest.mark.parametrize("name", BODIES)
def test_only_these_additions_touch_the_part(name):
    kernel, task, _fields = lowered(BODIES[name])
    n = 2
    done = trace(kernel, n).accesses
    for p in task.privatized:
        prefixes = [shift + (0 if v is None else n) for v, shift in p.prefix]
        inside = [
            a for a in done if a.stmt.mem is p.mem and list(a.element[: len(prefixes)]) == prefixes
        ]
        assert {a.stmt for a in inside} == p.atomics
        assert all(a.stmt in p.atomics for a in inside)
        lanes = {a.lane for a in done}
        assert len(inside) == p.count * len(lanes)
        assert p.scalars == p.mem.shape[-1] * (
            1 if prefixes else p.mem.shape[0] ** (p.mem.rank - 1)
        )
        of_lane = {
            (s, lane): [a.element for a in inside if a.stmt is s and a.lane == lane]
            for s in p.atomics
            for lane in lanes
        }
        same = [s for s in p.atomics if len({tuple(of_lane[s, lane]) for lane in lanes}) == 1]
        assert p.meeting == sum(len(of_lane[s, (0,)]) for s in same)


def test_which_are_found():
    found = {
        name: sorted((p.mem.name, len(p.prefix), p.count) for p in lowered(body)[1].privatized)
        for name, body in BODIES.items()
    }
    assert found == {
        "histogram": [("h", 0, 1)],
        "row": [("g", 1, 2)],
        "inner loop": [("h", 0, 3)],
        "one for all": [("h", 0, 6)],
        "read": [],
        "other row read": [("g", 1, 1)],
        "stored": [],
        "largest": [],
        "old value": [],
        "own": [],
    }


def test_large_parts_are_left_alone(monkeypatch):
    monkeypatch.setattr("diffsim.passes.transforms.privatize._MOST_SCALARS", 1 << 10)
    big, k = ds.field(ds.f32, shape=(4, (1 << 10) + 1)), ds.field(ds.i32, shape=8)
    body = "    for i in range(6):\n        big[{}] += 1.0\n"
    for at, found in (("n, k[i]", 0), ("k[i], n", 0)):
        kernel = ir_of(body.format(at), big=big, k=k)
        (task,) = pipeline.run(kernel, pipeline.LOWER).tasks
        assert len(task.privatized) == found
    small = ds.field(ds.f32, shape=(4, 1 << 10))
    kernel = ir_of(body.format("n, k[i]").replace("big", "small"), small=small, k=k)
    (task,) = pipeline.run(kernel, pipeline.LOWER).tasks
    assert len(task.privatized) == 1
