"""Random dense layers as scalar loops: any order of loops and indices, triangles, rows that an index picks.

Python runs the same text on NumPy arrays, in f64; gradients are held against central differences of that.
"""

import itertools
import types
from random import Random

import numpy as np

import diffsim as ds
from tests.support.source import make as define

SIZES = (1, 3, 8, 17, 33, 40)
FIELDS = ("w", "x", "b", "y")


def make(seed):
    """The text of a kernel; its first line holds the shapes."""
    r = Random(seed)
    n, j, k = (r.choice(SIZES) for _ in range(3))
    places = {
        "w": r.choice(["jk", "kj", "jk"]),
        "x": r.choice(["ik", "ki"]),
        "y": r.choice(["ij", "ji"]),
    }
    if r.random() < 0.3:
        # So many lanes add to each weight that private copies are in the order of the lanes.
        n, j, k = 140, r.choice(SIZES[1:4]), r.choice(SIZES[1:4])
        places |= {"w": "jk", "x": "ki", "y": "ij"} if r.random() < 0.7 else {}
    extents = dict(i=n, j=j, k=k)
    shapes = {f: tuple(extents[a] for a in axes) for f, axes in places.items()} | {
        "b": (j,),
        "row": (n,),
    }
    lines = [
        f"# {shapes}",
        "@ds.kernel",
        "def layer():",
        *_loops(r, places, extents),
    ]
    return "\n".join(lines) + "\n"


def _loops(r, places, extents):
    if r.random() < 0.2:
        return _box(r, places, extents)
    lines, depth = [], 1

    def put(text):
        lines.append("    " * depth + text)

    around = r.choice(["y", "ij", "ji", "i", "j"])
    if around == "y":
        put(f"for {', '.join(places['y'])} in y:")
    elif len(around) == 2:
        put(f"for {', '.join(around)} in ds.ndrange({extents[around[0]]}, {extents[around[1]]}):")
    else:
        put(f"for {around} in range({extents[around]}):")
        depth += 1
        other = "j" if around == "i" else "i"
        put(f"for {other} in range({extents[other]}):")
    depth += 1
    if r.random() < 0.2:
        put(r.choice(["if b[j] > 0.0:", "if i % 3 != 1:", "if x[0, 0] < 9.0:"]))
        depth += 1
    at = {f: "[" + ", ".join(axes) + "]" for f, axes in places.items()}
    if r.random() < 0.2:
        at["x"] = at["x"].replace("i", "row[i]")
    put(f"total = {r.choice(['0.0', 'b[j]', 'b[j] * 0.5'])}")
    for _ in range(r.choice([1, 1, 1, 2])):
        put(f"for k in range({r.choice(['', '', '', 'j % 2, '])}{_end(r, extents)}):")
        factor = r.choice(["", "", "", "0.5 * ", "b[j] * ", "ds.sin(total) * "])
        term = f"{factor}w{at['w']} * x{at['x']}"
        put(f"    total {r.choice(['+=', '+=', '-='])} {r.choice([term, term, f'({term}) ** 2'])}")
    way = r.choice(["ds.tanh(total)", "ds.max(total, 0.0)", "total", "ds.sin(total) + b[j]"])
    put(f"y{at['y']} {r.choice(['=', '=', '+='])} {way}")
    return lines


def _box(r, places, extents):
    """All in one box, whose lanes share the elements that they add to."""
    axes = r.sample("ijk", 3)
    at = {f: "[" + ", ".join(a) + "]" for f, a in places.items()}
    term = f"w{at['w']} * x{at['x']}"
    lines = [
        f"    for {', '.join(axes)} in ds.ndrange({', '.join(str(extents[a]) for a in axes)}):"
    ]
    depth = 2
    if r.random() < 0.3:
        lines.append(" " * 8 + r.choice(["if b[j] > 0.0:", f"if {term} > 0.0:", "if k < i:"]))
        depth = 3
    value = r.choice([term, f"ds.sin({term})", f"{term} * b[j]"])
    lines.append(" " * 4 * depth + f"y{at['y']} {r.choice(['+=', '-='])} {value}")
    return lines


def _end(r, extents):
    """The end of the sum: all of it, or a triangle."""
    return r.choice(
        [str(extents["k"])] * 4 + [f"ds.min(j + 1, {extents['k']})", str(extents["k"] // 2)]
    )


def verdict(text, seed):
    """ "right", or what is wrong."""
    shapes = eval(text.partition("\n")[0][1:])
    numbers = np.random.default_rng(seed)
    given = {f: numbers.uniform(-1, 1, shapes[f]) for f in FIELDS}
    given["row"] = numbers.integers(0, shapes["row"][0], shapes["row"])
    ds.init(
        arch=ds.cpu,
        default_fp=ds.f64,
        cpu_max_num_threads=1 + seed % 2,
        deterministic=seed % 5 == 0,
    )
    fields = {f: ds.field(ds.f64, shape=shapes[f], needs_grad=True) for f in FIELDS}
    fields["row"] = ds.field(ds.i32, shape=shapes["row"])
    for f, field in fields.items():
        field.from_numpy(given[f].astype(field.to_numpy().dtype))
    names = {"ds": ds, **fields}
    define(text, names)
    layer = names["layer"]
    weight = numbers.uniform(-1, 1, shapes["y"])
    layer()
    expected = _in_python(text, given)
    if not np.allclose(fields["y"].to_numpy(), expected, rtol=1e-11, atol=1e-11):
        return f"wrong value: {np.abs(fields['y'].to_numpy() - expected).max()}"
    fields["y"].grad.from_numpy(weight)
    layer.grad()
    for f in FIELDS:
        step = numbers.uniform(-1, 1, shapes[f])
        ahead, behind = (
            (_in_python(text, given | {f: given[f] + s * 1e-6 * step}) * weight).sum()
            for s in (1, -1)
        )
        found = (fields[f].grad.to_numpy() * step).sum()
        if not np.isclose(found, (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-5):
            return f"wrong gradient of {f}: {found}, and not {(ahead - behind) / 2e-6}"
    return "right"


def _in_python(text, given):
    """Return y after the text has run on arrays."""
    arrays = {f: a.copy() for f, a in given.items()}
    plain = types.SimpleNamespace(
        kernel=lambda f: f,
        ndrange=lambda *ends: itertools.product(*map(range, ends)),
        tanh=np.tanh,
        sin=np.sin,
        max=max,
        min=min,
    )
    axes = text.partition(" in y:")
    if axes[1]:  # a loop over the elements of an array
        text = f"{axes[0]} in ds.ndrange(*y.shape):{axes[2]}"
    names = {"ds": plain, **arrays}
    exec(text, names)
    names["layer"]()
    return arrays["y"]
