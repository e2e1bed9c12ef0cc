"""Random programs whose kernels have any shape: what the kernel simplicity rule has no place for.

As `programs.py`, but for what kernels are made of: statements, locals and parallel loops side by side, loops
under branches, loops in loops that carry several locals, that write elements, that end early or that a
`while` repeats, and kernels that return early. They run on tapes, and by `kernel.grad()` alone.
"""

import math

import numpy as np

from diffsim.errors import AutodiffError, KernelSyntaxError
from tests.fuzz import programs
from tests.fuzz.programs import Scope, oracle, placed, start, sure_direction

DEEPEST = 3  # levels of indentation that hold loops


class Maker(programs.Maker):
    """Writes a program."""

    def text(self):
        # Its kernels are long: one or two.
        for _ in range(self.r.randint(1, 2)):
            self.kernel()
        self.put(0, "def main():")
        for _ in range(self.r.randint(1, 3)):
            self.step(1)
        text = "\n".join(self.lines) + "\n"
        return programs.HEARD + text if "heard(" in text else text

    def kernel(self):
        name = f"k{len(self.kernels)}"
        takes_row = self.r.random() < 0.3
        self.kernels.append((name, takes_row))
        self.put(0, "@ds.kernel")
        self.put(0, f"def {name}({'t: ds.i32, ' if takes_row else ''}a: ds.f64):")
        self.row = ["t"] if takes_row else []
        self.kept = ["a"]
        for _ in range(self.r.randint(1, 3)):
            self.pick(self.lanes, self.lanes, self.keep, self.guarded, self.gather, self.serial)(1)
        if self.kept[1:]:
            self.put(1, f"s[None] += {self.kept[-1]}")

    def keep(self, depth):
        """A local of the kernel, which a loop in order carries."""
        self.scope = Scope(index=str(self.r.randrange(self.n)), floats=self.kept)
        self.loop(depth)
        self.kept = self.scope.floats

    def lanes(self, depth):
        """A loop over lanes, each of which writes its own elements."""
        targets = self.r.sample(["x", "y", "z", "v", "m"], self.r.randint(1, 2))
        self.put(depth, f"for i in range({self.n}):")
        self.scope = Scope(own=targets, index="i", floats=self.kept)
        # A kernel's locals that a loop over lanes changes make it one in order.
        self.scope.fixed = [] if self.r.random() < 0.1 else list(self.kept)
        self.body(depth + 1, self.r.randint(1, 2))
        for t in targets:
            self.write(depth + 1, t, self.pick("=", "=", "+=", "*="))

    def gather(self, depth):
        """The sum over all lanes, in a local of the kernel."""
        name = f"q{next(self.names)}"
        self.put(depth, f"{name} = {self.number()}")
        self.put(depth, f"for i in range({self.n}):")
        self.scope = Scope(index="i", floats=self.kept)
        self.scope.fixed = list(self.kept)
        self.body(depth + 1, self.r.randint(0, 2))
        self.put(depth + 1, f"{name} {self.pick('+=', '-=')} {self.expr(2)}")
        self.kept = [*self.kept, name]

    def guarded(self, depth):
        """A loop under a branch of the kernel, or the kernel's end."""
        self.scope = Scope(index=str(self.r.randrange(self.n)), floats=self.kept)
        self.put(depth, f"if {self.condition()}:")
        if self.r.random() < 0.2:
            self.put(depth + 1, "return")
            return
        kept = self.kept
        self.pick(self.lanes, self.keep)(depth + 1)
        self.kept = kept

    def serial(self, depth):
        super().serial()

    def body(self, depth, n):
        if depth > DEEPEST:
            self.local(depth)
            return
        for _ in range(n):
            kinds = (
                self.local,
                self.change,
                self.branch,
                self.loop,
                self.loop,
                self.spin,
                self.store,
                self.meet,
            )
            self.pick(*kinds)(depth)

    def change(self, depth):
        fixed = getattr(self.scope, "fixed", ["a"])
        own = [f for f in self.scope.floats if f not in fixed and f != "a"]
        if not own:
            self.local(depth)
            return
        self.put(depth, f"{self.pick(*own)} {self.pick('=', '+=', '*=')} {self.expr(2)}")

    def store(self, depth):
        """Any of its own elements, between other statements."""
        if self.scope.own:
            self.write(depth, self.pick(*self.scope.own), self.pick("=", "+=", "*="))
        else:
            self.change(depth)

    def block(self, depth, n):
        """Statements whose locals end with them."""
        floats, vecs = list(self.scope.floats), list(self.scope.vecs)
        self.body(depth, n)
        self.scope.floats, self.scope.vecs = floats, vecs

    def branch(self, depth):
        self.put(depth, f"if {self.condition()}:")
        self.block(depth + 1, self.r.randint(1, 2))
        if self.r.random() < 0.5:
            self.put(depth, "else:")
            self.block(depth + 1, 1)

    def loop(self, depth):
        carried = [f"q{next(self.names)}" for _ in range(self.r.randint(1, 2))]
        k = f"n{next(self.names)}"
        for name in carried:
            self.put(depth, f"{name} = {self.expr(1)}")
        ends = ["2", "3", *self.scope.ints]
        if self.scope.index == "i":
            ends += ["i", *([self.turns] if "at" not in self.scope.hidden else [])]
        self.put(depth, f"for {k} in range({self.pick(*ends)}):")
        self.scope.floats += carried
        self.scope.ints.append(k)
        floats, vecs = list(self.scope.floats), list(self.scope.vecs)
        self.inner(depth + 1)
        for name in carried:
            self.put(
                depth + 1, f"{name} = {self.pick(f'ds.sin({name})', name)} * 0.6 + {self.expr(1)}"
            )
            if self.r.random() < 0.2:
                self.put(depth + 1, f"if {self.condition()}:")
                self.put(depth + 2, self.pick("break", "continue"))
        self.scope.floats, self.scope.vecs = floats, vecs
        self.scope.ints.remove(k)

    def spin(self, depth):
        name, k = f"q{next(self.names)}", f"n{next(self.names)}"
        self.put(depth, f"{name} = {self.expr(1)}")
        self.put(depth, f"{k} = 0")
        self.put(depth, f"while {k} < {self.pick(2, 3)} and {name} < 2.0:")
        self.scope.floats.append(name)
        self.scope.ints.append(k)
        self.put(depth + 1, f"{k} += 1")
        floats, vecs = list(self.scope.floats), list(self.scope.vecs)
        self.inner(depth + 1)
        self.put(depth + 1, f"{name} = {name} * {self.expr(1)} + 0.6")
        self.scope.floats, self.scope.vecs = floats, vecs
        self.scope.ints.remove(k)

    def meet(self, depth):
        """Candidates, of which a branch takes some: what is computed of all before is mostly for that."""
        total, d, far = (f"q{next(self.names)}" for _ in range(3))
        k = f"n{next(self.names)}"
        self.put(depth, f"{total} = {self.number()}")
        self.put(depth, f"for {k} in range({self.pick(2, 3)}):")
        floats, vecs = list(self.scope.floats), list(self.scope.vecs)
        self.scope.ints.append(k)
        self.put(depth + 1, f"{d} = {self.leaf()} - {self.leaf()}")
        inside = depth + 1
        if self.r.random() < 0.4:
            self.put(inside, f"if {self.condition()}:")
            inside += 1
        self.put(inside, f"{far} = ds.sqrt({d} * {d} + {self.pick('0.1', f'{self.leaf()} ** 2')})")
        self.scope.floats += [total, d, far]
        if self.r.random() < 0.3:
            self.pick(self.local, self.change, self.store)(inside)
        self.put(inside, f"if {far} < {self.number()}:")
        self.put(inside + 1, f"{total} += {self.expr(1)} * {self.pick(d, far, f'{d} / {far}')}")
        if self.r.random() < 0.3:
            self.put(inside, "else:")
            self.put(inside + 1, f"{total} -= {self.expr(1)} * {self.pick(d, far)}")
        self.scope.floats, self.scope.vecs = [*floats, total], vecs
        self.scope.ints.remove(k)

    def inner(self, depth):
        if self.r.random() < 0.6:
            self.body(depth, 1)


def by_hand(text, seed):
    """The verdict on the kernels of a program, launched one after the other, with `kernel.grad()` alone."""
    calls = [
        line.replace("def ", "").split("(")[0] + ("(1, " if "t: ds.i32" in line else "(") + "0.7)"
        for line in text.splitlines()
        if line.startswith("def k")
    ]
    head = text.partition("def main():")[0]
    text = head + "def main():\n" + "".join(f"    {call}\n" for call in calls)
    programs.ds.init(default_fp=programs.ds.f64)
    try:
        with np.errstate(all="ignore"):
            direction = sure_direction(text, seed)
            slope = oracle(text, seed, direction)[2]
    except programs.Invalid:
        return "invalid"
    space, fields = placed(text, seed)
    weights = start(seed)[2]
    for k, w in weights.items():
        fields[k].grad.from_numpy(w)
    try:
        space["main"]()
        for call in reversed(calls):
            eval(call.replace("(", ".grad(", 1), space)
    except (AutodiffError, KernelSyntaxError):  # see `programs.run`
        return "refused"
    found = sum((fields[k].grad.to_numpy() * direction[k]).sum() for k in weights)
    right = math.isclose(found, slope, rel_tol=1e-7, abs_tol=1e-7)
    return "right" if right else f"derivative: {found} instead of {slope}"


def make(seed):
    """The program of this number."""
    return Maker(seed).text()
