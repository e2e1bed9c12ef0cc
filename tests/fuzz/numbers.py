"""Random kernels of casts, quotients, remainders, shifts and atomic extremes, on special numbers.

What a program computes is compared with what NumPy computes of the same IR, statement by statement, to the
last bit. So nothing is made where bits may differ: a sum takes no product, of which the CPU makes one
operation, and what functions of the C library give only goes to `s` and `e`, which are not compared. That
LLVM fails on a kernel counts as wrong. Each program runs lane after lane, in vectors, and with `fast_math`.
"""

from __future__ import annotations

import linecache
import warnings
from random import Random

import numpy as np

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.errors import DiffsimError
from diffsim.ir.types import SCALARS
from diffsim.passes.vectors import vectorize

N = 35
FLOATS, INTS = ["f16", "f32", "f64"], ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
FUNCTIONS = [
    "sin",
    "cos",
    "tan",
    "exp",
    "exp2",
    "log",
    "log2",
    "tanh",
    "atan",
    "sinh",
    "asin",
    "sqrt",
]


class Maker:
    """Writes a program."""

    def __init__(self, seed):
        self.r = Random(seed)
        self.lines = []
        self.fresh = 0

    def pick(self, *things):
        return things[self.r.randrange(len(things))]

    def text(self):
        for k in range(2):
            self.lines += ["@ds.kernel", f"def k{k}():", f"    for i in range({N}):"]
            self.locals, self.ways = [], {}
            for _ in range(self.r.randint(1, 4)):
                self.statement()
        return "\n".join(self.lines) + "\n"

    def statement(self):
        kind = self.pick("local", "store", "store", "extreme", "extreme", "sum", "loop")
        t = self.pick(*FLOATS, *INTS)
        if kind == "local":
            name = f"q{self.fresh}"
            self.fresh += 1
            self.put(f"{name} = {self.exact(t, 2)}")
            self.locals.append((name, t))
        elif kind == "store":
            self.put(f"y_{t}[i] = {self.exact(t, 3)}")
        elif kind == "extreme":
            near = t in FLOATS and self.r.random() < 0.6
            place = self.pick("s", "e") if near else self.pick("r", "z")
            at = "None" if place in "sr" else self.index()
            value = self.near(t, 3) if near else self.exact(t, 2)
            way = self.ways.setdefault((place, t), self.pick("min", "max"))  # in any order of lanes
            self.put(f"ds.atomic_{way}({place}_{t}[{at}], {value})")
        elif kind == "sum":
            t = self.pick(*INTS)
            self.put(f"c_{t}[{self.index()}] += {self.exact(t, 2)}")
        else:
            name = f"q{self.fresh}"
            self.fresh += 1
            self.put(f"{name} = {self.exact(t, 1)}")
            self.put(f"for j in range({self.pick('2', '3', 'i % 4')}):")
            self.put(
                f"    {name} = {self.exact(t, 2)}"
                if self.r.random() < 0.3
                else f"    {name} = abs(ds.max({name}, {self.exact(t, 1)}))"
            )
            self.locals.append((name, t))

    def put(self, line):
        self.lines.append("        " + line)

    def index(self):
        return self.pick(
            "i", "i", f"(i + {self.r.randrange(N)}) % {N}", f"{N - 1} - i", "i // 2", "at[i]"
        )

    def leaf(self, t):
        mine = [name for name, have in self.locals[-3:] if have == t]
        return self.pick(
            f"x_{t}[{self.index()}]", f"w_{t}[{self.index()}]", self.constant(t), *mine
        )

    def constant(self, t):
        if t in FLOATS:
            number = self.pick(
                "0.0", "-0.0", "1.5", "-2.5", "inf", "-inf", "nan", "3e9", "0.1", "1e30"
            )
        else:
            info = np.iinfo(SCALARS[t].numpy)
            numbers = [0, 1, 2, 3, 5, 7, 31, 32, 64, int(info.max), int(info.min), -1, -3]
            number = self.pick(*(n for n in numbers if info.min <= n <= info.max))
        return f"ds.{t}({number})"

    def exact(self, t, depth):
        """Something of a type whose last bit is known."""
        if depth == 0 or self.r.random() < 0.15:
            return self.leaf(t)
        a, b = self.exact(t, depth - 1), self.exact(t, depth - 1)
        other = self.pick(*FLOATS, *INTS)
        choices = [
            f"ds.cast({self.exact(other, depth - 1)}, ds.{t})",
            f"ds.cast({self.exact(other, depth - 1)}, ds.{t})",
            f"({a} // {b})",
            f"({a} % {b})",
            f"abs(ds.max({a}, {b}))",  # of 0 and -0 either may be the larger one
            f"abs(ds.min({a}, {b}))",
            f"ds.sign({a})",
            f"abs({a})",
            f"({a} if {self.condition(depth - 1)} else {b})",
            f"({self.leaf(t)} + {self.leaf(t)})",
            f"({self.leaf(t)} - {self.leaf(t)})",
        ]
        if t in FLOATS:
            whole = self.pick("floor", "ceil", "round", "trunc")
            choices += [
                f"({a} / {b})",
                f"ds.{whole}({a})",
                f"ds.{whole}({a})",
                f"ds.sqrt({a})",
                f"-({a})",
            ]
            return self.pick(*choices)
        n = self.exact(t, depth - 1)
        choices += [
            f"({a} << {n})",
            f"({a} >> {n})",
            f"({a} & {b})",
            f"({a} | {b})",
            f"({a} ^ {b})",
        ]
        choices += [f"~{self.leaf(t)}", f"ds.raw_mod({a}, {b})", f"({a} * {b})", f"({a} + {b})"]
        # A narrow integer that meets a number that is written becomes an i32: the type is said again.
        return f"ds.cast({self.pick(*choices)}, ds.{t})"

    def near(self, t, depth):
        """A float whose last bits are not known: functions of functions."""
        if depth == 0 or self.r.random() < 0.1:
            return self.exact(t, 1)
        a, b = self.near(t, depth - 1), self.near(t, depth - 1)
        f, g = self.pick(*FUNCTIONS), self.pick(*FUNCTIONS)
        n = self.leaf(self.pick("i32", "u8", "i64"))
        return self.pick(
            f"ds.{f}({a})", f"ds.{f}(ds.{g}({a}))", f"ds.{f}({a})", f"ds.{f}(ds.sin({a}))", f"({a} + {b})",
            f"({a} * {b})", f"ds.max({a}, {b})", f"({a} - ds.{f}({b}))", f"ds.pow(abs({a}), {b})",
            f"{a} ** ds.cast({n} % 5, ds.i32)", f"({a} if {self.condition(1)} else {b})",
        )  # fmt: skip

    def condition(self, depth):
        t = self.pick(*FLOATS, *INTS)
        sign = self.pick("<", "<=", ">", ">=", "==", "!=")
        return f"{self.exact(t, depth)} {sign} {self.exact(t, depth)}"


def special(t, rng, n=N):
    """Numbers of a type, half of them special."""
    if t.is_float:
        info = np.finfo(t.numpy)
        some = [
            0.0,
            -0.0,
            1,
            -1,
            0.5,
            -0.5,
            2.5,
            np.inf,
            -np.inf,
            np.nan,
            info.max,
            info.smallest_subnormal,
        ]
        some += [2.0**31, -(2.0**31) - 1, 2.0**63, 2.0**64, 255.5, -1e-3, info.tiny]
        plain = rng.uniform(-4, 4, n)
    else:
        info = np.iinfo(t.numpy)
        some = [0, 1, 2, 3, 7, 31, 32, 63, 64, 100, info.max, info.max - 1, info.min, info.min // 2]
        some = [k for k in (*some, -1, -2, -7, 255, 2**31, 2**53 + 1) if info.min <= k <= info.max]
        plain = rng.integers(0 if t.kind == "u" else -9, 9, n)
    chosen = np.array([some[k] for k in rng.integers(0, len(some), n)], t.numpy)
    return np.where(rng.random(n) < 0.5, chosen, plain.astype(t.numpy))


def make(seed):
    """The program of this number."""
    return Maker(seed).text()


def _space(seed):
    rng = np.random.default_rng(seed)
    space = {"ds": ds, "inf": np.inf, "nan": np.nan}
    for name in (*FLOATS, *INTS):
        t = SCALARS[name]
        for letter in "xw":
            space[f"{letter}_{name}"] = ds.field(t, N)
            space[f"{letter}_{name}"].from_numpy(special(t, rng))
        grad = t.is_float and seed % 3 == 0
        for letter in "yzce":
            space[f"{letter}_{name}"] = ds.field(t, N, needs_grad=grad)
        for letter in "sr":
            space[f"{letter}_{name}"] = ds.field(t, (), needs_grad=grad)
    space["at"] = ds.field(ds.i32, N)
    space["at"].from_numpy(rng.integers(0, N, N).astype(np.int32))
    return space


def verdict(text, seed):
    """ "right", "refused", "invalid", or what is wrong."""
    for mode in ("plain", "vectors", "fast"):
        said = _run(text, seed, mode)
        if said != "right":
            return said
    return "right"


def _run(text, seed, mode):
    before, vectorize._ALWAYS = vectorize._ALWAYS, mode == "vectors"
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ds.PrecisionLoss)
            return _compare(text, seed, mode)
    except RuntimeWarning as complaint:
        return f"{mode}: {complaint}"
    except (DiffsimError, SyntaxError, NameError) as problem:
        if isinstance(problem, ds.errors.BackendError):
            return f"{mode}: {problem}"
        return "invalid"
    finally:
        vectorize._ALWAYS = before


def _compare(text, seed, mode):
    ds.init(arch=ds.cpu, fast_math=mode == "fast", offline_cache=False)
    space = _space(seed)
    file = f"<numbers {seed} {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), space)
    for name in ("k0", "k1"):
        kernel = space.get(name)
        if kernel is None:
            continue
        ir = kernel._only(()).ir
        memory = {mem: mem.handle().to_numpy() for mem in ir.mems if mem.kind == "field"}
        kernel()
        if mode == "fast":
            continue
        interpreter.run(ir, memory)
        for mem, want in memory.items():
            got = mem.handle().to_numpy()
            if mem.name[0] not in "se" and not np.array_equal(
                got, want, equal_nan=want.dtype.kind == "f"
            ):
                return f"{mode}: {name}, {mem.name}: {got.tolist()} instead of {want.tolist()}"
    return "right"
