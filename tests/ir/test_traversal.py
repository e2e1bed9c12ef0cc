"""What memories statements touch, against a walk over all that is inside each of them."""

from diffsim.ir.nodes import Atomic, Block, Load, Store
from diffsim.ir.traversal import TouchedMemories, statements
from tests.support.source import make

DEPTH = 12


def nested(ds):
    """The statements of branches within one another, with accesses before and behind each."""
    names = dict(ds=ds, **{n: ds.field(ds.f64, shape=8) for n in "xyz"})
    lines, behind = [], []
    for k in range(DEPTH):
        space = "    " * (k + 2)
        lines += [f"{space}a = a + x[{k % 8}]", f"{space}if a > {k}:"]
        what = (f"y[i] += a * {k}", f"z[i] = a + y[{k % 8}]")[k % 3 == 2]
        behind.insert(0, f"{space}    {what}")
    text = "@ds.kernel\ndef run():\n    for i in range(8):\n        a = x[i]\n"
    make(text + "\n".join([*lines, *behind]) + "\n", names)
    (task,) = names["run"]._only(()).ir.tasks
    return list(statements(task.body))


def test_touched_memories(cpu):
    found, asked = nested(cpu), []

    def is_load(s):
        asked.append(s)
        return isinstance(s, Load)

    touched = TouchedMemories(is_load)
    for s in found:
        inside = [x for x in statements(Block([s])) if isinstance(x, (Load, Store, Atomic))]
        only_loads = {
            x.mem: all(isinstance(y, Load) for y in inside if y.mem is x.mem) for x in inside
        }
        assert touched.of(s) == only_loads
    # Once for itself and once for the branch around it, however deep.
    accesses = [s for s in found if isinstance(s, (Load, Store, Atomic))]
    assert len(accesses) > 2 * DEPTH
    assert len(asked) <= 2 * len(accesses)
