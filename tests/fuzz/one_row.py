"""Random kernels over boxes with short rows, most of which use a lane's numbers for its own element alone.

Boxes of two and three axes, at times smaller than their memories; elements of vectors, at a time step, in
memories of another order; rows that an index tells, `p[rows[i], j]`; sums, branches, lanes' numbers as
values. All numbers are whole and small, so what compiled code computes, and its gradient, is compared bit by
bit with the interpreter. Where lanes see what others of their row store, in one thread.
"""

import linecache
from functools import partial
from random import Random

import numpy as np

import diffsim as ds
from diffsim.passes.vectors import vectorize
from tests.support import bits

SHAPES = ((11, 3), (40, 7), (9, 16), (5, 1), (300, 2), (3, 4, 5), (6, 2, 2), (2, 30, 3))
ROWS = ("row[{last}]", "x[{other}]", "{last}", "{first}", "p[{seen}]", "p[{seen}]")
"""What depends on rows: a memory of one axis, neighbours, the numbers themselves."""


def make(seed):
    """The program of this number."""
    r = Random(seed)
    shape = r.choice(SHAPES)
    axes = "ijk"[: len(shape)]
    ends = [str(n) for n in shape]
    if r.random() < 0.3:
        ends[0] = f"(1, {shape[0]})"
    if r.random() < 0.15:
        ends[-1] = r.choice([f"(1, {shape[-1]})", f"{max(1, shape[-1] - 1)}"])
    own, told = ", ".join(axes), ", ".join(["rows[i]", *axes[1:]])
    names = {"last": axes[-1], "first": axes[0], "told": told}
    names["other"] = f"{', '.join(axes[:-1])}, ({axes[-1]} + 1) % {shape[-1]}"
    names["seen"] = f"{told[:-1]}({axes[-1]} + {r.choice([1, shape[-1] - 1])}) % {shape[-1]}"
    in_place = r.random() < 0.3

    def value():
        plain = ["x[{own}]", "v[{own}][1]", "z[t, {own}]", "a[t]", "m[{own}]", "x[{own}] * a[t]"]
        plain += ["p[{told}]"]
        if in_place and r.random() < 0.5:
            return f"p[{names['seen']}]"
        choices = plain if r.random() < 0.9 else ROWS
        return r.choice(choices).format(own=own, **names)

    lines = []
    for _ in range(r.randint(1, 3)):
        change = r.choice(
            [
                "y[{own}] += {}",
                "u[{own}] += v[{own}] * {}",
                "z[t + 1, {own}] = {}",
                "total[None] += {}",
                "p[{told}] = {}",
                "p[{told}] += {}",
            ][-2 if in_place else 0 :]
        )
        line = change.format(f"{r.choice([1, 2, -1])} * {value()}", own=own, told=told)
        guard = r.choice(["", "", f"if {value()} > {r.randint(0, 2)}:", "for _ in range(2):"])
        lines += [guard, f"    {line}"] if guard else [line]
    head = f"for {own} in ds.ndrange({', '.join(ends)}):"
    body = "\n".join(f"        {line}" for line in lines)
    return f"@ds.kernel\ndef run(t: ds.i32):\n    {head}\n{body}\n"


def results(text, seed, **options):
    """What the kernel and its gradient leave in the fields; what only one of them is refused is not there."""
    r = Random(seed)
    shape = r.choice(SHAPES)  # that of `make`
    t = r.choice([ds.f32, ds.f64])
    ds.init(default_fp=t, offline_cache=False, **options)
    order = "ijk"[: len(shape)]
    if r.random() < 0.2:
        order = order[::-1]
    fields = {name: ds.field(t, shape=shape, needs_grad=True) for name in "xy"}
    if r.random() < 0.3:
        fields["x"] = ds.field(t, shape=shape, needs_grad=True, order=order)
    fields["p"] = ds.field(t, shape=shape, needs_grad=True)
    for name in "uv":
        fields[name] = ds.Vector.field(2, t, shape=shape, needs_grad=True)
    fields["z"] = ds.field(t, shape=(3, *shape), needs_grad=True)
    fields["a"] = ds.field(t, shape=3, needs_grad=True)
    fields["row"] = ds.field(t, shape=shape[-1], needs_grad=True)
    fields["total"] = ds.field(t, shape=(), needs_grad=True)
    fields["m"] = ds.field(ds.i32, shape=shape)
    names = {"ds": ds, **fields}
    exec(compile(text, f"<one row {seed}>", "exec"), names)
    random = np.random.default_rng(seed)
    for field in fields.values():
        for part in (field, field.grad):
            if part is not None:
                given = part.to_numpy()
                part.from_numpy(random.integers(0, 4, given.shape).astype(given.dtype))
    names["rows"] = ds.field(ds.i32, shape=shape[0])
    names["rows"].from_numpy(random.permutation(shape[0]).astype("i4"))
    found = {}
    for what in ("run", "grad"):
        try:
            (names["run"] if what == "run" else names["run"].grad)(1)
        except ds.errors.AutodiffError:
            break
        for name, field in fields.items():
            found[what, name] = field.to_numpy()
            if field.grad is not None:
                found[what, name, "grad"] = field.grad.to_numpy()
    return found


def verdict(text, seed):
    """The verdict on a program: "right", "invalid", or what is wrong."""
    name = f"<one row {seed}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    how = Random(seed + 1)
    options = dict(
        cpu_max_num_threads=how.choice([1, 1, 3]),
        deterministic=how.random() < 0.1,
        debug=how.random() < 0.1,
    )
    # A row that is cut into chunks has lanes that run in any order.
    if ") % " in text and "p[rows[i], " in text:
        options["cpu_max_num_threads"] = 1
    always, vectorize._ALWAYS = vectorize._ALWAYS, how.random() < 0.6
    try:
        return bits.against_interpreter(partial(results, text, seed), options)
    finally:
        vectorize._ALWAYS = always
