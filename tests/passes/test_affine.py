"""Affine indices, against the numbers that the indices have in every iteration."""

from random import Random

import pytest

import diffsim as ds
from diffsim.ir.nodes import Store
from diffsim.ir.traversal import statements
from diffsim.passes.analysis.affine import (
    affine_forms,
    definitions,
    element_of,
    offset_of,
    task_definitions,
)
from tests.support.trace import ir_of, trace

pytestmark = pytest.mark.usefixtures("cpu")


def expression(random, depth=2):
    """An integer expression of loop variables, an argument and constants."""
    if depth == 0 or random.random() < 0.2:
        return random.choice(["i", "j", "k", "n", str(random.randint(-3, 3))])
    a, b = expression(random, depth - 1), expression(random, depth - 1)
    return random.choice(
        [
            f"({a} + {b})",
            f"({a} - {b})",
            f"({random.choice([-2, 2, 3])} * {a})",
            f"(-{a})",
            f"ds.i64({a})",
            f"({a} * {b})",
            f"({a} << 1)",
            f"({a} // 2)",
            f"ds.max({a}, {b})",
            f"ds.Vector([{a}, {b}])[1]",
            f"(ds.Vector([{a}, {b}]) + ds.Vector([2, -3]))[{random.randint(0, 1)}]",
            f"(4 - ds.i64(ds.Vector([{a}, {b}]) - 1))[0]",
        ]
    )


def body_of(random):
    lines = [f"            y[{k}] = {expression(random)}\n" for k in range(6)]
    return (
        f"    for i, j in ds.ndrange({random.randint(1, 3)}, (1, {random.randint(2, 4)})):\n"
        f"        for k in range({random.randint(1, 3)}):\n" + "".join(lines)
    )


@pytest.mark.parametrize("seed", range(25))
def test_every_form_is_the_number(seed):
    random = Random(seed)
    y = ds.field(ds.i64, shape=8)
    kernel = ir_of(body_of(random), y=y)
    (task,) = kernel.tasks
    forms, defs = affine_forms(task), definitions(kernel)
    n = random.randint(-2, 5)
    for done in trace(kernel, n).values:
        if not done.value.type.is_int or done.value.type.shape:
            continue
        base, shift = offset_of(done.value, defs)
        assert int(done.number) == (0 if base is None else int(done.env[base])) + shift
        form = forms.form(done.value)
        if form is not None:
            parts = (f if v is None else f * int(done.env[v]) for v, f in form.items())
            assert int(done.number) == sum(parts)
            least, most = forms.interval(form)
            assert least <= int(done.number) <= most


def test_what_is_affine():
    y = ds.field(ds.i64, shape=64)
    at = ds.field(ds.i32, shape=8)
    kernel = ir_of(
        "    for i in range(4):\n"
        "        y[3 * i + n + 1] = 0\n"
        "        y[(i << 2) - i] = 0\n"
        "        y[at[i] + 5] = 0\n"
        "        y[i * i] = 0\n"
        "        y[i // 2] = 0\n",
        y=y,
        at=at,
    )
    (task,) = kernel.tasks
    forms, (axis,), (n,) = affine_forms(task), task.axes, kernel.args
    index = [s.index[0] for s in statements(task.body) if isinstance(s, Store)]
    found = [forms.form(v) for v in index]
    assert found == [{axis: 3, n: 1, None: 1}, {axis: 3}, None, None, None]
    assert forms.ranges[axis] == (0, 3)
    base, shift = offset_of(index[2], definitions(kernel))
    assert shift == 5  # what is loaded is the base
    assert base is not index[2]


def test_unsigned_numbers_wrap_around():
    y = ds.field(ds.f32, shape=256)
    kernel = ir_of(
        "    for i in range(4):\n"
        "        k = ds.cast(i, ds.u8)\n"
        "        y[k - ds.cast(1, ds.u8)] = 0.0\n",
        y=y,
    )
    (task,) = kernel.tasks
    (store,) = (s for s in statements(task.body) if isinstance(s, Store))
    assert affine_forms(task).form(store.index[0]) is None
    assert offset_of(store.index[0], definitions(kernel))[1] == 0
    assert (255,) in [a.element for a in trace(kernel, 0).accesses]


def test_one_element_has_one_name():
    y = ds.field(ds.f32, shape=(8, 8))
    kernel = ir_of(
        "    for i in range(4):\n"
        "        y[i + 2, n] = 0.0\n"
        "        y[1 + i + 1, n] = 0.0\n"
        "        y[i + 1, n] = 0.0\n",
        y=y,
    )
    defs = definitions(kernel)
    one, two, three = (
        element_of(s.index, defs) for s in statements(kernel.tasks[0].body) if isinstance(s, Store)
    )
    assert one == two != three


def test_components_of_an_index_vector_are_looked_up():
    y = ds.field(ds.f32, shape=(8, 8))
    kernel = ir_of(
        "    for at in ds.grouped(ds.ndrange(4, 4)):\n"
        "        if n > 0:\n"
        "            y[at] = 0.0\n"
        "            y[at + ds.Vector([1, 2])] = 0.0\n"
        "            y[at + at] = 0.0\n",
        y=y,
    )
    (task,) = kernel.tasks
    i, j = task.axes
    defs = definitions(kernel)
    found = [element_of(s.index, defs) for s in statements(task.body) if isinstance(s, Store)]
    assert found[:2] == [((i, 0), (j, 0)), ((i, 1), (j, 2))]
    assert {i, j}.isdisjoint(base for base, _ in found[2])


def test_results_are_computed_once_and_kept_while_the_code_is_the_same():
    y = ds.field(ds.f32, shape=8)
    kernel = ir_of("    for i in y:\n        y[i] = 2.0 * y[i] + n\n", y=y)
    (task,) = kernel.tasks
    assert definitions(kernel) is definitions(kernel)
    assert affine_forms(task.replace(block_dim=64)) is affine_forms(task)
    other = task.replace(body=task.body)
    assert task_definitions(other) is not task_definitions(task)
    assert kernel.replace(name="g").memo == {}
