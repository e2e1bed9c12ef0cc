"""Random programs whose lanes run loops in loops: what each of them saves for its adjoint.

Loops are counted, left early, skipped in part, in branches, or end when a number is reached; some keep or
replace what they carry, some carry what only decides on something, and some search by halves. Their numbers
of iterations are constants, or differ from lane to lane: as an element tells, or the lane's number, or that
of the iteration around. Memory for saved values is short in most programs, so that loops go back in segments
or run again.
"""

import contextlib

from diffsim.passes.autodiff import loop_checkpoints
from tests.fuzz import programs
from tests.fuzz.programs import Maker

SIZES = (6, 21)
DEEPEST = 5


class NestedMaker(Maker):
    """Writes a program of parallel loops with loops in loops."""

    turns = "at[i] % 4"
    kinds = "for", "for", "for", "while", "until"
    leaves = 0.4  # how many loops may be left early

    def text(self):
        for _ in range(self.r.randint(1, 2)):
            self.kernel()
        self.put(0, "def main():")
        for _ in range(self.r.randint(1, 2)):
            self.put(1, self.launch())
        text = "\n".join(self.lines) + "\n"
        return programs.HEARD + text if "heard(" in text else text

    def pieces(self):
        return self.map, self.map, self.scatter

    def body(self, depth, n):
        self.loop(depth)
        super().body(depth, n // 2)

    def counts(self, outer):
        """More numbers of iterations than the constants that all programs have."""
        near = f"ds.max(0, {outer} - 1), ds.min({self.n}, {outer} + 2)"
        few = self.turns, f"{outer} % 3 + 1", f"{outer}, {outer} + 2", near
        # Triangles in triangles would take long in Python.
        return few if self.scope.ints else (*few, "i + 1", f"i, {self.n}")

    def loop(self, depth):
        """A loop that carries a local, with other loops in it."""
        name, k = f"q{next(self.names)}", f"n{next(self.names)}"
        self.put(depth, f"{name} = {self.expr(1)}")
        floats, vecs = list(self.scope.floats), list(self.scope.vecs)
        outer = self.pick(*self.scope.ints) if self.scope.ints else "i"
        kind = self.pick(*self.kinds)
        if kind == "for":
            ends = self.pick("2", "3", "5", *self.counts(outer))
            self.put(depth, f"for {k} in range({ends}):")
        else:
            self.put(depth, f"{k} = 0")
            test = f"{k} < {self.pick(2, 3, 4)} and " if kind == "while" else f"{k} != 3 and "
            self.put(depth, f"while {test}{name} < {self.pick(0.6, 2.0)}:")
            if self.r.random() < 0.3:  # an iteration that is the last one need not count
                self.put(depth + 1, f"if {self.condition()}:")
                twice = [f"{k} += 1"] * (kind == "while")
                self.put(depth + 2, self.pick("break", "break", *twice))
            self.put(depth + 1, f"{k} += 1")
        self.scope.floats.append(name)
        self.scope.ints.append(k)
        if kind == "for" and self.r.random() < self.leaves:
            self.put(depth + 1, f"if {self.condition()}:")
            self.put(depth + 2, self.pick("break", "break", "continue"))
        if depth < DEEPEST and self.r.random() < 0.75:
            inside = depth + 1
            if self.r.random() < 0.3:
                self.put(inside, f"if {self.condition()}:")
                inside += 1
            within = list(self.scope.floats), list(self.scope.vecs)
            self.loop(inside)
            if self.r.random() < 0.5:
                self.put(inside, f"{name} = 0.7 * {name} + {self.expr(1)}")
            if inside > depth + 1:
                self.scope.floats, self.scope.vecs = within
        if self.r.random() < 0.2:
            self.scope.floats.append(self.searched(depth + 1))
        new = self.expr(1)
        replaced = (
            f"ds.min({name}, {new})",
            f"ds.max({new}, {name})",
            f"{new} if {self.condition()} else {name}",
        )
        again = f"ds.cos({name}) + {self.number()} * ds.sin({name})"  # kept, of short loops
        computed = (
            f"ds.sin({name}) * {new} + {self.number()}",
            f"ds.sin({name}) * {new} + {self.number()}",
            f"ds.sin({new}) * ({again})",
            f"{self.number()} * ({name} * {name} + 0.5) ** {self.pick(-0.3, 0.4, 1.5)}",
        )
        self.put(depth + 1, f"{name} = {self.pick(*computed, *replaced)}")
        self.scope.floats, self.scope.vecs = floats, vecs
        self.scope.ints.remove(k)
        if self.r.random() < 0.25:
            name = self.decided(depth, name)
        self.scope.floats = [*floats, name]
        if self.r.random() < 0.2:
            self.scope.floats.append(self.searched(depth))

    def searched(self, depth):
        """A local that the result of a search is a factor of: a loop whose own values have no derivative."""
        made, first, end, middle = (f"{kind}{next(self.names)}" for kind in "qaem")
        wanted = self.expr(1)
        self.put(depth, f"{first}, {end} = 0, {self.pick(1, 4, 7)}")
        self.put(depth, f"while {first} < {end}:")
        self.put(depth + 1, f"{middle} = ({first} + {end}) // 2")
        self.put(depth + 1, f"if {wanted} > {self.number()} * {middle}:")
        self.put(depth + 2, f"{first} = {middle} + 1")
        self.put(depth + 1, "else:")
        self.put(depth + 2, f"{end} = {middle}")
        self.put(depth, f"{made} = {self.expr(1)} * (0.1 * {first} + {self.number()})")
        return made

    def decided(self, depth, name):
        """A local that what a loop carries has decided on, and gives no derivative."""
        made = f"q{next(self.names)}"
        sides = self.expr(1), self.expr(1)
        self.put(depth, f"{made} = {sides[0]} if {name} < {self.number()} else {sides[1]}")
        return made


class ShortMaker(NestedMaker):
    """Writes loops with constant numbers of iterations, most of which run to their end."""

    kinds = ("for",)
    leaves = 0.1

    def counts(self, outer):
        return "4", "7"


@contextlib.contextmanager
def _memory(seed):
    """Less memory for what loops save."""
    before = loop_checkpoints._MOST_BYTES, loop_checkpoints._SHORTEST
    most, shortest = ((1 << 14, 16), (256, 4), (64, 2), (0, 3))[seed // 64 % 4]
    loop_checkpoints._MOST_BYTES, loop_checkpoints._SHORTEST = most, shortest
    try:
        yield
    finally:
        loop_checkpoints._MOST_BYTES, loop_checkpoints._SHORTEST = before


def make(seed):
    """The program of a seed."""
    return (ShortMaker if seed // 512 % 2 else NestedMaker)(seed, SIZES[seed // 256 % 2]).text()


def verdict(text, seed, in_place):
    """What is to be said about a program, by the oracle of `programs`."""
    with _memory(seed):
        # Adjoints that are kept on disk may have been made with other memory.
        n = SIZES[seed // 256 % 2]
        return programs.verdict(text, seed, in_place, n=n, offline_cache=False)
