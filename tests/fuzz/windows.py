"""Random convolutions: sums over windows and channels, whose adjoints are collected by elements.

Layouts, steps, distances and offsets of windows, rows and components, orders of loops, branches around what
is added, and what follows the sum are random. All numbers are whole and small, so sums are exact in any
order, and values and gradients are compared bit by bit with the interpreter, which adds one by one.
"""

import functools
from random import Random

import numpy as np

import diffsim as ds
from tests.support import bits, source

N, M = 3, 8


def make(seed):
    """The program of this number."""
    r = Random(seed)
    c, o, size = r.choice([3, 8, 8]), r.choice([2, 3, 5, 9, 9]), r.choice([1, 2, 2, 3, 5])
    # Long windows are for those that go in steps; the interpreter takes its time for each weight.
    if c * o * size**2 > 160:
        c, o = (3, 2) if size == 5 else r.choice([(8, 2), (3, 5)])
    step, apart, first = r.choice([1, 1, 1, 2, 3]), r.choice([1, 1, 2]), r.choice([0, -1, -1, 1])
    column, beside = r.choice([1, 1, 2, 3]), r.choice([apart, apart, -1])
    both = r.choice(["", "", "", " + b", " - b"])
    place = r.choice([["k", "l", "c"], ["c", "k", "l"], ["k", "c", "l"], ["k + 1", "l", "c"]])
    weight = r.sample(["o", "c", "a", "b"], 4)
    out = r.choice([["i", "j", "o"], ["o", "i", "j"]])
    loops = [f"for c in range({c}):", f"for a in range({size}):", f"for b in range({size}):"]
    r.shuffle(loops)
    inside = [
        f"k, l = {step} * i + {apart} * a + {first}{both}, {column} * j + {beside} * b + {first}",
        f"if 0 <= k < {N} and 0 <= l < {M}:",
    ]
    branch = r.choice(["", "", "", "if (k + o) % 3:", "if w[{}] > 0:", "if c != o:", "if i > 1:"])
    # Branches around a factor that look like those which spare products of 0.
    guard = r.choice([""] * 4 + ["if f != 0:", "if f != 0:", "if f > 0:", "if f != 1:"])
    around = ["f = v[o]", guard] if guard else [branch.format(", ".join(weight))]
    if guard and r.random() < 0.5:
        around += [" s += 1", "else:"]
    inside += [" " + line for line in around if line]
    term = f"w[{', '.join(weight)}] * x[t, {', '.join(place)}]"
    if guard and r.random() < 0.7:
        term = "f * " + term
    # Rows and components tell sums apart.
    rows = r.choice([["t"], ["t"], ["t"], ["1 - t"], ["t", "t + 1"], ["1 - t", "t"]])
    parts = r.choice([[""], [""], [""], ["[0]", "[1]"], ["[1]"]])
    for at, part in ((row, part) for row in rows for part in parts):
        of = term.replace("x[t,", f"x[{at},") + part
        inside.append(
            "  " + r.choice([f"s += {of}", f"s += {of}", f"s -= 2 * {of}", f"s += {of} + 1"])
        )
    result = r.choice(
        ["s", "s", "ds.max(s, 0)", "2 * s", "s if s > 3 else -s", "ds.max(s, 2 * s - 1)"]
        + ["s * s * s - 3 * s * s + 2 * s"] * 3
    )
    # What is added inside the sum and behind it, too, is added from what a lane computes and what it loads.
    result += r.choice(["", " + v[o]", " + v[o] * v[o]"])
    # The result may be a later row of the same memory.
    row = r.random() < 0.3 and o <= c and out[0] == "i" and place[:2] == ["k", "l"]
    row = row and rows == ["t"] and parts == [""]
    extent = {"i": str(N), "j": str(M), "o": str(o)}
    # Sums over other windows and channels go to the same elements.
    more = [line.replace("range(", "range(1, ") for line in loops] if r.random() < 0.2 else []
    lines = [
        f"# {c} {o} {size} {int(row)}",
        "@ds.kernel",
        "def run(t: ds.i32):",
        f"    for {', '.join(out)} in ds.ndrange({', '.join(extent[v] for v in out)}):",
        f"        s = {r.choice(['0.0', 'v[o]', 'v[o]'])}",
        *(" " * (8 + n) + line for n, line in enumerate(loops)),
        *(" " * 11 + line for line in inside),
        *(" " * (8 + n) + line for n, line in enumerate(more)),
        *(" " * 11 + line for line in inside if more),
        f"        {'x[t + 1, i, j, o % ' + str(c) + ']' if row else 'y[t, i, j, o]'} = {result}",
        "@ds.kernel",
        "def total():",
        "    for q in ds.grouped(y): loss[None] += y[q] * z[q]",
        f"    for q in ds.grouped(x): loss[None] += x[q]{parts[-1]}",
    ]
    return "\n".join(lines) + "\n"


def results(text, seed, **options):
    """All numbers and gradients that a program leaves."""
    ds.init(default_fp=ds.f64, **options)
    c, o, size, _ = map(int, text.split("\n")[0][2:].split())
    random = np.random.default_rng(seed)
    extent = {"k": N, "l": M, "c": c, "k + 1": N + 1}
    at = text.split(" * x[")[1].split("]")[0].split(", ")[1:]
    weight = text.split("w[")[1].split("]")[0].split(", ")
    shapes = {
        "x": (2, *(extent[v] for v in at)),
        "w": tuple({"o": o, "c": c, "a": size, "b": size}[v] for v in weight),
        "y": (2, N, M, o),
        "z": (2, N, M, o),
        "v": (o,),
    }
    names = {"ds": ds}
    for name, shape in shapes.items():
        make_field = (
            functools.partial(ds.Vector.field, 2) if name == "x" and "][" in text else ds.field
        )
        field = names[name] = make_field(ds.f64, shape=shape, needs_grad=True)
        values = random.integers(-3, 4, field.to_numpy().shape).astype(float)
        field.from_numpy(values * (random.random(values.shape) < 0.6) if name == "v" else values)
    names["loss"] = ds.field(ds.f64, shape=(), needs_grad=True)
    source.make(text, names)
    with ds.Tape(names["loss"]):
        names["run"](0)
        names["total"]()
    found = {name: names[name].to_numpy() for name in shapes}
    return found | {f"{name}.grad": names[name].grad.to_numpy() for name in shapes}


def verdict(text, seed):
    """The verdict on a program: "right", "refused", or what is wrong."""
    how = Random(seed + 1)
    options = dict(cpu_max_num_threads=how.choice([1, 1, 3]), deterministic=how.random() < 0.2)
    return bits.against_interpreter(
        functools.partial(results, text, seed), options, may_refuse=True
    )
