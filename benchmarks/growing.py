"""How the time of first calls grows with a program: families of programs, each of four sizes.

    python benchmarks/growing.py                    # the table, on standard output
    python benchmarks/growing.py --only branches    # one family
    python benchmarks/growing.py --write            # keep the table in growing.md

A family is a function that writes a program of size k. Its first forward pass and its first gradient are
measured at k, 2k, 4k and 8k, in one process and without the cache on disk: processor time, one thread. The
exponent is that of the last doubling: 1 says that the time has doubled, too.
"""

import argparse
import linecache
import math
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import diffsim as ds
from diffsim.runtime.files import write_text

ABOUT = """# How first calls grow

Written by `growing.py --write`: processor time of the first forward pass and the first gradient [ms], at four
sizes, on a machine with nothing else to do. The exponents are those of the last doubling: 1 says that the
time has doubled with the program. `layer` has k * k weights.
"""
HEAD = """
x = ds.field(ds.f32, shape=64, needs_grad=True)
y = ds.field(ds.f32, shape=64, needs_grad=True)
loss = ds.field(ds.f32, shape=(), needs_grad=True)
"""


def kernel(body: str, given: str = "") -> str:
    return f"{HEAD}{given}\n@ds.kernel\ndef run():\n{textwrap.indent(body, '    ')}"


def field(name: str, shape: str) -> str:
    return f"{name} = ds.field(ds.f32, shape={shape}, needs_grad=True)\n"


def lane(lines: list[str], result: str = "a") -> str:
    """A loop whose lanes compute `a`."""
    inside = ["a = x[i]", *lines, f"loss[None] += {result}"]
    return "for i in x:\n" + textwrap.indent("\n".join(inside), "    ") + "\n"


def statements(k: int) -> str:
    """k statements, one after the other."""
    forms = ("a = a * y[i] + 0.5", "a = ds.sin(a) - a * 0.3", "a = a / (1.0 + a * a)")
    return kernel(lane([forms[j % 3] for j in range(k)]))


def stores(k: int) -> str:
    """Stores of k components."""
    lines = [f"a = a * 0.9 + y[i]\nz[i, {j}] = a * a" for j in range(k)]
    return kernel(lane(lines), field("z", f"(64, {k})"))


def unrolled(k: int) -> str:
    """k iterations that `ds.static` unrolls."""
    loop = f"for j in ds.static(range({k})):\n    a = ds.tanh(a * w[j] + y[i])"
    return kernel(lane([loop]), field("w", str(k)))


def layer(k: int) -> str:
    """k x k weights, unrolled."""
    body = f"""
for i in range(64):
    for j in ds.static(range({k})):
        t = 0.0
        for l in ds.static(range({k})):
            t += w[j, l] * u[i, l]
        loss[None] += ds.tanh(t)
"""
    return kernel(body, field("w", f"({k}, {k})") + field("u", f"(64, {k})"))


def loops(k: int) -> str:
    """k loops in a lane."""
    loop = "for t in range(20):\n    a = a * 0.9 + y[(i + t) % 64] * 0.1"
    return kernel(lane([loop] * k))


def tasks(k: int) -> str:
    """k loops in a kernel, each a stencil of the one before."""
    lines = [
        f"for i in range(1, 63):\n    z[{j + 1}, i] = (z[{j}, i - 1] + z[{j}, i + 1]) * x[i]\n"
        for j in range(k)
    ]
    return kernel(
        "".join(lines) + f"for i in x:\n    loss[None] += z[{k}, i]\n",
        field("z", f"({k + 1}, 64)"),
    )


def kernels(k: int) -> str:
    """k kernels."""
    text = [HEAD, *(field(f"z{j}", "64") for j in range(k))]
    for j in range(k):
        before = f"z{j - 1}" if j else "x"
        text.append(
            f"@ds.kernel\ndef k{j}():\n    for i in x:\n        z{j}[i] = {before}[i] * y[i] + {j}.5\n"
        )
    text.append(f"@ds.kernel\ndef last():\n    for i in x:\n        loss[None] += z{k - 1}[i]\n")
    calls = "".join(f"    k{j}()\n" for j in range(k))
    return "\n".join(text) + f"\ndef run():\n{calls}    last()\n"


def branches(k: int) -> str:
    """k branches, one after the other."""
    branch = (
        "if a > 0.{:02d}:\n    a = ds.sqrt(a * a + y[i] + 1.0)\nelse:\n    a = ds.sin(a) * y[i]"
    )
    return kernel(lane([branch.format(j) for j in range(k)]))


def chain(k: int) -> str:
    """A chain of k `elif`."""
    lines = [
        f"{'elif' if j else 'if'} i % {k} == {j}:\n    r = a * a * {j}.5 + y[i]" for j in range(k)
    ]
    return kernel(lane(["r = 0.0", "\n".join(lines)], "r"))


def fields(k: int) -> str:
    """k fields in one kernel, each with neighbours."""
    given = "".join(field(f"f{j}", "64") + field(f"g{j}", "64") for j in range(k))
    body = "for i in range(1, 63):\n" + "".join(
        f"    g{j}[i] = f{j}[i - 1] * 0.5 + f{j}[i + 1] * x[i]\n" for j in range(k)
    )
    total = " + ".join(f"g{j}[i]" for j in range(k))
    return kernel(f"{body}for i in x:\n    loss[None] += {total}\n", given)


def calls(k: int) -> str:
    """k calls of a func with a branch."""
    func = """
@ds.func
def f(a, b):
    c = a * b + 1.0
    if c > 0.0:
        c = ds.sin(c) * a
    return c / (1.0 + c * c)
"""
    return kernel(lane(["a = f(a, y[i])"] * k), func)


def vectors(k: int) -> str:
    """Vectors of k components."""
    given = "".join(
        f"{n} = ds.Vector.field({k}, ds.f32, shape=64, needs_grad=True)\n" for n in "uv"
    )
    body = """
for i in x:
    a = u[i] * 2.0 + v[i]
    b = a.normalized() * v[i].dot(a)
    loss[None] += b.norm() + b.sum()
"""
    return kernel(body, given)


def stencil(k: int) -> str:
    """A stencil of k neighbours in each direction."""
    body = f"""
for i in range({k}, 256 - {k}):
    total = 0.0
    for d in ds.static(range(-{k}, {k} + 1)):
        total += p[i + d] * p[i] * (0.1 * d)
    q[i] = total
for i in q:
    loss[None] += q[i]
"""
    return kernel(body, field("p", "256") + field("q", "256"))


def updates(k: int) -> str:
    """k updates of elements that indices tell."""
    body = f"""
for i in x:
    for j in ds.static(range({k})):
        y[t[i, j]] += x[i] * x[t[i, j]]
for i in x:
    loss[None] += y[i]
"""
    return kernel(body, f"t = ds.field(ds.i32, shape=(64, {k}))\n")


FAMILIES: dict[str, tuple[Callable[[int], str], int]] = {
    **{f.__name__: (f, 8) for f in (loops, tasks, kernels, branches, chain, fields, calls)},
    **{f.__name__: (f, 4) for f in (vectors, updates, stencil)},
    **{f.__name__: (f, 50) for f in (statements, stores)},
    "unrolled": (unrolled, 16),
    "layer": (layer, 3),
}
"""By name, the family and its smallest size."""


def load(text: str, name: str) -> dict[str, Any]:
    """Run a program's text; diffsim finds it again."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {"ds": ds}
    exec(compile(text, name, "exec"), space)
    return space


def measure(name: str, k: int) -> tuple[float, float]:
    """Return what the first forward pass and the first gradient of a program take [s]."""
    ds.init(arch=ds.cpu, cpu_max_num_threads=1, offline_cache=False)
    space = load(FAMILIES[name][0](k), f"<{name} {k}>")
    begin = time.process_time()
    space["run"]()
    forward = time.process_time()
    with ds.Tape(space["loss"]):
        space["run"]()
    return forward - begin, time.process_time() - forward


def row(name: str, doublings: int) -> str:
    family, k = FAMILIES[name]
    measure("vectors", 1)  # the run-time library is compiled once a process
    found = [measure(name, k << n) for n in range(doublings + 1)]
    grown = [math.log2(b / a) if a else 0.0 for a, b in zip(*found[-2:], strict=True)]
    figures = " | ".join(f"{1000 * a:.0f}, {1000 * b:.0f}" for a, b in found)
    about = (family.__doc__ or "").rstrip(".")
    return f"| `{name}` | {about} | {k} | {figures} | {grown[0]:.1f}, {grown[1]:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=FAMILIES)
    parser.add_argument("--doublings", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    sizes = " | ".join(f"{1 << n} k" for n in range(args.doublings + 1))
    head = f"| family | what it is | k | {sizes} | exponents |"
    lines = [head, "| --- " * head.count(" | ") + "| --- |"]
    for name in [args.only] if args.only else FAMILIES:
        lines.append(row(name, args.doublings))
        print(lines[-1], file=sys.stderr)
    text = f"{ABOUT}\n" + "\n".join(lines) + "\n"
    if args.write:
        write_text(Path(__file__).with_suffix(".md"), text)
    else:
        print(text)


if __name__ == "__main__":
    main()
