"""Random kernels whose lanes share elements with near lanes, on several threads, and the interpreter.

Sweeps in place and in colours, masks, steps of two, inner loops, components, several memories, minima,
neighbours on the side that a number chooses, roots and quotients of them: the numbers are small whole ones,
so sums are exact in any order. Chunks are short, so that small fields have many seams.
"""

import linecache
from functools import partial
from random import Random

import numpy as np

import diffsim as ds
from diffsim.backends.cpu import chunks
from diffsim.passes.vectors import vectorize
from diffsim.runtime.session import session
from tests.support import bits
from tests.support.vectors import narrow

ROWS, MOST = 60, 80
HEADS = ("for i in range({lo}, {hi}):", "for i, j in ds.ndrange(({lo}, {hi}), {m}):")
FIRST = (
    "i",
    "i + 1",
    "i - 1",
    "i + 2",
    "2 * i",
    "2 * i + 1",
    "2 * i + k",
    "i + k",
    "i - k",
    "n + 3",
    "40",
)
SECOND = ("j", "j + 1", "(3 * j) % 7", "k", "0", "j + k", "2")
MASKS = (
    "",
    "",
    "",
    "if (i + 1) % 2 == n % 2:",
    "if (i * j) % 3 != 1:",
    "if y[i, 1] > 0:",
    "if i < hi - 3:",
)


class Maker:
    """Writes a kernel of one loop, or of two."""

    def __init__(self, seed):
        self.r = Random(seed)
        self.best = self.r.choice(["min", "max"])

    def text(self):
        if self.r.random() < 0.3:
            loops = self.faces() if self.r.random() < 0.3 else self.rows()
        else:
            loops = [line for _ in range(self.r.choice([1, 1, 2])) for line in self.loop()]
        return "@ds.kernel\ndef run(n: ds.i32, lo: ds.i32, hi: ds.i32):\n" + "\n".join(loops) + "\n"

    def colors(self):
        """A sweep in place over cells of one colour, each of which reads cells of others."""
        r = self.r
        period = r.choice([2, 2, 2, 4, 3, 8])
        while True:
            a, b = r.choice([1, -1, 2, 3, 0, 5]), r.choice([1, 1, -1, 3, 2, 0])
            near = [(p, q) for p in range(-2, 3) for q in range(-2, 3) if (a * p + b * q) % period]
            if near:
                break
        lo, hi = r.choice([("lo", "hi"), ("3", "30"), ("6", "6"), ("4", "n + 9"), ("n", "hi")])
        color = r.choice([f"n % {period}", "0", "1", "n - 3", f"(lo + n) % {period}"])
        rest = r.choice(["", "", f" + {r.randint(1, 9)}"])
        same = "!=" if period == 2 and color != "n - 3" and r.random() < 0.2 else "=="
        terms = [f"2 * w[i + {p}, j + {q}]" for p, q in r.choices(near, k=r.randint(1, 5))]
        terms += r.sample(["w[i, j]", "y[i, j]", "y[i + 1, j]", "w[i, j] * y[i, j + 1]"], 2)
        value = " - ".join(f"y[i, j + 1] * {t}" if r.random() < 0.2 else t for t in terms)
        end = r.choice(["3", "5", "12", "30", "hi"])
        lines = [
            f"for i, j in ds.ndrange(({lo}, {hi}), ({r.choice(['2', '2', 'lo'])}, {end})):",
            f"    if ({a} * i + {b} * j{rest}) % {period} {same} {color}:",
            f"        {r.choice(['w[i, j] =', 'w[i, j] +='])} {value}",
        ]
        if r.random() < 0.3:
            lines.append("        x[i, j] += y[i, j]")
        if r.random() < 0.3:
            lines.append(f"    {self.update()}".replace("k", "1"))
        return ["    " + line.replace("+ -", "- ") for line in lines]

    def guarded(self):
        """A stencil that stores, whose neighbours are loaded where they are inside, or anyway."""
        r = self.r
        lo, hi = r.choice([("lo", "hi"), ("3", "30"), ("4", "n + 9"), ("n", "hi")])
        box = f"({lo}, {hi}), (2, {r.choice(['12', '30', 'hi'])})"
        lines = [f"for i, j in ds.ndrange({box}):", f"    a = {r.choice(['y[i, j - 1]', '1.0'])}"]
        for _ in range(r.randint(1, 3)):
            guard = r.choice(["i > lo", f"i + 1 < {hi}", "j > 2", "j - 1 >= 2", "j < 29", "a > 0"])
            lines.append(f"    if {guard}:")
            lines.append(f"        a += 2 * y[i + {r.randint(-1, 1)}, j + {r.randint(-1, 1)}]")
            if r.random() < 0.3:
                lines.append(f"        {self.pick_store()} = a")
        if r.random() < 0.3:
            # Of a row, lanes load what they have stored themselves, and what nobody stores.
            lines.append("    if j < 3:")
            lines.append(f"        w[i, j] {r.choice(['=', '+='])} 2 * y[i, j]")
            lines.append("    a += w[i, j] - w[i, j + 1]")
        lines.append(f"    {self.pick_store()} = a - y[i, j] * y[i, j + 1]")
        return ["    " + line for line in lines]

    def rows(self):
        """Lanes side by side add to elements beside theirs, in long rows and short ones."""
        r = self.r
        lo, hi = r.choice([("lo", "hi"), ("3", "30"), ("4", "n + 9"), ("n", "hi")])
        end = r.choice(["3", "4", "6", "19", "37", "67", "hi", "hi", "n + 30"])
        ahead = r.choice([(0, 1), (-1, 0), (-1, 1), (-1, 0, 1), (-2, 0, 2), (0, 5), (0, 0, 3, 4)])
        rows = r.choice([("i",), ("i",), ("i",), ("i + 1", "i"), ("3",), ("n", "n + 1")])
        # Elements that nobody else adds to may be stored and loaded, too.
        if own := r.random() < 0.3:
            ahead, rows = r.choice([(0,), (1,)]), ("i",)
        # Divisions that no lane makes again for another one, or few.
        slow = " / q" * r.choice([1, 3, 6, 6])
        lines = [f"for i, j in ds.ndrange(({lo}, {hi}), (2, {end})):"]
        lines.append("    q = 1.0 if y[i, j + 1] > 0 else 2.0")
        lines.append(f"    a = 8 * (y[i, j + {r.choice(ahead)}] - w[i, j]){slow}")
        for _ in range(r.randint(1, 2)):
            guard = r.choice(["", "", "if y[i, j] > 0: ", "if j != 5: "])
            memory, updates = r.choice("xxz"), []
            for _ in range(r.randint(2, 5)):
                place = f"{memory}[{r.choice(rows)}, j + {r.choice(ahead)}]"
                term = r.choice(["a", "-a", "2 - a", f"a * {r.randint(2, 4)}", "y[i, j + 1]"])
                updates.append(f"{place} += {term}")
                if own and r.random() < 0.5:
                    between = ["w[i, j] = {}", "{} = -w[i, j]", f"ds.atomic_{self.best}({{}}, a)"]
                    updates.append(r.choice(between).format(place))
            lines.append(f"    {guard}{'; '.join(updates)}")
            if not own and r.random() < 0.1:
                lines.append(f"    {self.update()}".replace("k", "1"))
        return ["    " + line.replace("+ -", "- ") for line in lines]

    def faces(self):
        """Lanes inside of faces add to elements around theirs, those at faces to other ones."""
        r = self.r
        lo, hi = r.choice([("3", "30"), ("3", "30"), ("lo", "hi"), ("4", "n + 30")])
        end = r.choice(["37", "67", "29", "n + 30"])
        rows = [r.choice([f"i > {lo}", f"i != {lo}", f"{lo} + 2 <= i"]), f"i < {hi} - 1"]
        tests = r.choice([rows, [], rows[:1]]) + r.choice([["j > 2", f"j < {end} - 2"], ["j >= 4"]])
        more = r.choice(["", "", "", "", " and y[i, j] > 0", " and j != 9"])
        places = [f"x[i + {r.randint(-1, 1)}, j + {r.randint(-1, 1)}]" for _ in range(4)]
        updates = [f"{p} += {r.choice(['a', '-a', '2 * a'])}" for p in places]
        # A lane loads what it has changed, or divides: no neighbour computes that again.
        own = r.choice(["w[i, j] = 2 * y[i, j]; a -= w[i, j]", "a = a / q / q / q / q / q"])
        lines = [
            f"for i, j in ds.ndrange(({lo}, {hi}), (2, {end})):",
            f"    if {' and '.join(tests)}{more}:",
            "        q = 1.0 if y[i, j + 1] > 0 else 2.0",
            f"        a = 32 * (y[i, j + 1] - {r.choice(['w[i, j]', '1.0'])})",
            f"        {own}",
            f"        {'; '.join(updates)}",
        ]
        if r.random() < 0.7:
            lines.append(
                f"    else: {r.choice(['z[i, j] += 2', 'w[i, j] = 5 * y[i, j]', updates[0]])}"
            )
            lines[-1] = lines[-1].replace("a", "3") if lines[-1].endswith("a") else lines[-1]
        return ["    " + line.replace("+ -", "- ") for line in lines]

    def pick_store(self):
        return self.r.choice(["x[i, j]", "z[i, j]"])

    def loop(self):
        r, box = self.r, self.r.random() < 0.7
        if r.random() < 0.3:
            return self.colors()
        if r.random() < 0.2:
            return self.guarded()
        bounds = r.choice([("lo", "hi"), ("3", "30"), ("6", "6"), ("4", "n + 9"), ("n", "hi")])
        lines = [HEADS[box].format(lo=bounds[0], hi=bounds[1], m=r.choice(["5", "1", "9"]))]
        if not box:
            lines.append("    j = i % 5")
        lines.append("    k = 1")
        depth = 1
        # A sweep in place, whose adjoint clears what neighbours add to: only of every second cell.
        sweeps = r.random() < 0.3
        if mask := "if (i + j) % 2 == n % 2:" if sweeps else r.choice(MASKS):
            lines.append("    " * depth + mask)
            depth += 1
        if sweeps:
            lines.append("    " * depth + "w[i, j] = 2 * w[i - 1, j] + w[i + 1, j] - y[i, j]")
            if box:
                lines[-1] += " + w[i, j + 1]"
        if r.random() < 0.3:
            lines.append("    " * depth + f"for k in range({r.choice(['3', '2', 'n % 4', '-1'])}):")
            depth += 1
        for _ in range(r.randint(1, 4)):
            lines.append("    " * depth + self.update())
        if r.random() < 0.3:
            lines.append("    total[None] += y[i, j]")
        return ["    " + line for line in lines]

    def at(self, near=True):
        r = self.r
        first = r.choice(FIRST[:9] if near else FIRST)
        return f"{first}, {r.choice(SECOND)}"

    def value(self):
        """A number of the lane, or of a neighbour on the side that a number chooses."""
        r = self.r
        if r.random() < 0.7:
            return "y[i, j]"
        one, other = (
            r.choice(
                [
                    "y[i - 1, j]",
                    "y[i, j + 1] - y[i, j]",
                    "u[i + 1, j][1]",
                    "y[i + 5, j]",
                    "ds.sqrt(y[i - 1, j] * y[i - 1, j])",
                    "ds.sqrt(u[i, j + 1][0] * u[i, j + 1][0]) / 2",
                ]
            )
            for _ in range(2)
        )
        if r.random() < 0.3:
            return f"({one} + {other})"
        return f"({one} if {r.choice(['y[i, j] > 0', 'u[i, j][1] > 0', 'j < 3'])} else {other})"

    def update(self):
        r, value = self.r, f"{self.r.choice(['1', '2', '-1'])} * {self.value()}"
        kind = r.choice(["x", "x", "x", "z", "v", "both", "least"])
        if kind == "v":
            return f"v[{self.at()}][{r.choice(['0', '1', 'k % 2'])}] += {value}"
        if kind == "both":
            return f"x[{self.at()}] += {value}; z[{self.at(near=False)}] -= y[i, j]"
        if kind == "least":
            # No two lanes bring the same number: which of them would get the gradient is not promised.
            return f"ds.atomic_{self.best}(least[{self.at()}], 1000 * y[i, j] + 9 * i + j)"
        return f"{kind}[{self.at(near=False)}] += {value}"


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


def results(text, seed, **options):
    """What the kernel and its gradient leave in the fields; what only one of them is refused is not there."""
    r = Random(seed)
    t = r.choice([ds.f32, ds.f64])
    ds.init(default_fp=t, offline_cache=False, **options)
    names = dict(ds=ds)
    for name in "xyzw":
        names[name] = ds.field(t, shape=(2 * ROWS, MOST), needs_grad=True)
    names["least"] = ds.field(t, shape=(2 * ROWS, MOST), needs_grad=True)
    for name in "uv":
        names[name] = ds.Vector.field(2, t, shape=(2 * ROWS, MOST), needs_grad=True)
    names["total"] = ds.field(t, shape=(), needs_grad=True)
    exec(compile(text, f"<near {seed}>", "exec"), names)
    random = np.random.default_rng(seed)
    fields = [f for n, f in names.items() if n in ("x", "y", "z", "w", "u", "v", "least", "total")]
    for field in fields:
        for part in (field, field.grad):
            values = random.integers(-2, 3, part.to_numpy().shape)
            part.from_numpy(np.asarray(values, part.to_numpy().dtype))
    args = r.choice([(4, 3, 50), (5, 4, 44), (3, 20, 20), (7, 9, 12)])
    found = {}
    for what in ("run", "grad"):
        try:
            (names["run"] if what == "run" else names["run"].grad)(*args)
        except ds.errors.AutodiffError:
            break
        for k, field in enumerate(fields):
            found[what, k] = field.to_numpy()
            found[what, k, "grad"] = field.grad.to_numpy()
    return found


def verdict(text, seed):
    """The verdict on a program: "right", "refused", or what is wrong."""
    name = f"<near {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    how = Random(seed + 1)
    options = dict(
        cpu_max_num_threads=how.choice([1, 2, 3, 8]),
        deterministic=how.random() < 0.1,
        debug=how.random() < 0.1,
    )
    before = vectorize._ALWAYS, chunks._CHUNK_WORK, session._jit
    vectorize._ALWAYS, chunks._CHUNK_WORK = how.random() < 0.5, how.choice([20, 200])
    if how.random() < 0.4:
        session._jit = narrow()
    try:
        return bits.against_interpreter(partial(results, text, seed), options)
    finally:
        vectorize._ALWAYS, chunks._CHUNK_WORK, session._jit = before
