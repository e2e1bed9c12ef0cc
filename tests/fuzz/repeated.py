"""Random kernels whose lanes load, store and add to the same few elements again and again.

In straight code, branches and loops; elements whose indices differ by constants, by numbers from a table or
of the launch, or not at all; a memory with a row for each step of time. Branches on the same conditions
compute the same roots and quotients of them; what comes of all branches is squared at the end, so that the
adjoint runs them again.

All numbers are small multiples of 1/16, so what compiled lanes compute, and their gradient, is compared bit
by bit with the interpreter. The rules are lifted: the adjoint of a program that overwrites what it read need
not be its gradient, but is code like any other.
"""

import linecache
from random import Random

import numpy as np

import diffsim as ds
from diffsim.passes.vectors import vectorize
from tests.support import bits

WIDTH, MOST, ROWS, STEPS = 8, 40, 5, 3


class Maker:
    """Writes a program."""

    def __init__(self, seed):
        self.r = Random(seed)
        rows = self.r.choice(["n", "n", "16", "40"])
        self.lines = [
            "@ds.kernel",
            "def run(n: ds.i32, u: ds.i32):",
            f"    for i in range({rows}):",
        ]
        self.values = ["1.0"]
        self.columns = ["0", "1", "2", "k", "k + 1", "2 + k - 1", "2 * k + u", "7 - k // (u + 1)"]

    def text(self):
        self.put(2, "k = at[i]")
        self.put(2, "far = 1.0")
        self.statements(2, self.r.randint(5, 16))
        self.put(2, "p[i, 7] += far * far")
        return "\n".join(self.lines) + "\n"

    def put(self, depth, line):
        self.lines.append("    " * depth + line)

    def place(self, names):
        name, column = self.r.choice(names), self.r.choice(self.columns)
        if name == "v":
            return f"v[i][{self.r.randint(0, 2)}]"
        # Rows of two steps of time, or of one: u is 0 or 1.
        step = self.r.choice(["u", "u", "u + 1", "1"])
        row = {"q": "k", "g": "k", "s": "0", "h": f"{step}, i"}.get(name, "i")
        return f"{name}[{row}, {column}]"

    def slow(self):
        """A root or a quotient of what no lane changes, whose derivative is exact, too."""
        place = self.place("qx")
        return self.r.choice([f"ds.sqrt({place} * {place})", f"{place} / (1.0 + k % 2)"])

    def statements(self, depth, count):
        for _ in range(count):
            kind = self.r.random()
            if kind < 0.12:
                self.put(depth, f"far = far + {self.slow()} - {self.place('qx')}")
            elif kind < 0.4:
                name = f"t{len(self.lines)}"
                terms = [f"{self.r.randint(-1, 2)} * {self.place('ppvqxhh')}" for _ in range(2)]
                # The same quotient of a value may be here before, and is one value then.
                quotient = f"{self.r.choice(self.values[-2:])} / (1.0 + k % 2)"
                last = self.r.choice([self.r.choice(self.values), quotient])
                self.put(depth, f"{name} = {' + '.join([*terms, last])}")
                self.values.append(name)
            elif kind < 0.82 or depth > 3:
                sign = self.r.choice(["+=", "+=", "+=", "="])
                place = self.place("pppvgshh") if sign == "+=" else self.place("pvh")
                self.put(depth, f"{place} {sign} {self.r.choice(self.values)}")
            else:
                head = f"for m{depth} in range({self.r.choice(['2', 'k', '0'])}):"
                head = self.r.choice([head, "if k > 1:", "if i % 16 < 15:"])
                self.put(depth, head)
                kept = list(self.values), list(self.columns)
                turn = f"m{depth}"
                self.columns += [turn, f"u + {turn}"] if head.startswith("for") else []
                self.statements(depth + 1, self.r.randint(1, 5))
                self.values, self.columns = kept


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


def results(text, seed, **options):
    """What the kernel and its gradient leave in the fields."""
    r, random = Random(seed), np.random.default_rng(seed)
    n, t = r.choice([1, 16, 33, MOST]), r.choice([ds.f32, ds.f64])
    ds.init(default_fp=t, offline_cache=False, rules="lifted", **options)
    names = dict(ds=ds, at=ds.field(ds.i32, shape=MOST))
    for name, rows in zip("pxqgs", (MOST, MOST, ROWS, ROWS, 1), strict=True):
        names[name] = ds.field(t, shape=(rows, WIDTH), needs_grad=True)
    names["h"] = ds.field(t, shape=(STEPS, MOST, WIDTH), needs_grad=True)
    names["v"] = ds.Vector.field(3, t, shape=MOST, needs_grad=True)
    exec(compile(text, f"<repeated {seed}>", "exec"), names)
    fields = {name: names[name] for name in "pxqgsvh"}
    for field in fields.values():
        for part in (field, field.grad):
            numbers = random.integers(-2, 3, part.to_numpy().shape)
            part.from_numpy(numbers.astype(part.to_numpy().dtype))
    names["at"].from_numpy(random.integers(0, 4, MOST).astype("i4"))
    u = r.randrange(STEPS - 1)
    names["run"](n, u)
    found = {name: field.to_numpy() for name, field in fields.items()}
    names["run"].grad(n, u)
    return found | {f"{name}.grad": field.grad.to_numpy() for name, field in fields.items()}


def verdict(text, seed):
    """The verdict on a program: "right", "invalid", or what is wrong."""
    file = f"<repeated {seed}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    how = Random(seed + 1)
    options = dict(
        cpu_max_num_threads=how.choice([1, 1, 3]),
        deterministic=how.random() < 0.2,
        debug=how.random() < 0.1,
    )
    always, vectorize._ALWAYS = vectorize._ALWAYS, how.random() < 0.7
    try:
        found = results(text, seed, arch=ds.cpu, **options)
        exact = results(text, seed, arch=ds.python)
    except ds.errors.DiffsimError as error:
        return "refused" if isinstance(error, ds.errors.AutodiffError) else f"crash: {error}"
    finally:
        vectorize._ALWAYS = always
    return bits.verdict(found, exact, options)
