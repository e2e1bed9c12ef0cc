"""Prints IR: one line a statement, typed, with the user's names; the same text for the same kernel.

    kernel step(x: field f32[8], loss: field f32[]) {
      parallel %i in 0..8 {                               ; L4
        %t0: f32 = load x[%i]                             ; L5
        %t1: f32 = mul %t0, %t0                           ; L5
        atomic_add loss[], %t1                            ; L5
      }
    }

A value is printed by the user's name for it if it has one, else as t0, t1, ...; a second value of a
name gets a number (%e.1). Malformed IR is printed too (hence `strict=False`): `verify` shows it.
"""

from __future__ import annotations

from diffsim.errors import Span
from diffsim.ir.nodes import (
    Alloca,
    Arg,
    Atomic,
    Block,
    Check,
    Const,
    CustomCall,
    Dim,
    For,
    Gradient,
    If,
    InlineLLVM,
    Kernel,
    Let,
    Load,
    Mem,
    Print,
    RngKey,
    Stmt,
    Store,
    Task,
    Value,
    While,
)

_COMMENT_COLUMN = 64


class _Printer:
    """Prints one kernel: names are given in order of appearance."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, Span | None]] = []
        self.names: dict[Value, str] = {}
        self.used: dict[str, int] = {}
        self.mems: dict[Mem, str] = {}
        self.mem_names: dict[str, int] = {}
        self.depth = 0

    def line(self, text: str, span: Span | None = None) -> None:
        self.lines.append(("  " * self.depth + text, span))

    def mem(self, m: Mem) -> str:
        # Numbered in order of appearance, so equal kernels print equally, whatever the objects'
        # addresses.
        if m not in self.mems:
            n = self.mem_names.get(m.name, 0)
            self.mem_names[m.name] = n + 1
            self.mems[m] = m.name if n == 0 else f"{m.name}.{n}"
        return self.mems[m]

    def name(self, v: Value) -> str:
        """Return the printed form of a value, named at its first use."""
        if isinstance(v, Const):
            return self.number(v)
        if isinstance(v, (Arg, Dim)):
            return "$" + v.hint
        if isinstance(v, RngKey):
            return "$seed"
        # Named at the first print, which is the definition in well-formed IR: numbers rise in reading
        # order.
        if v not in self.names:
            if v.hint:
                n = self.used.get(v.hint, 0)
                self.used[v.hint] = n + 1
                self.names[v] = f"%{v.hint}" if n == 0 else f"%{v.hint}.{n}"
            else:
                n = self.used.get("", 0)
                self.used[""] = n + 1
                self.names[v] = f"%t{n}"
        return self.names[v]

    def number(self, c: Const) -> str:
        text = repr(c.value).lower() if c.type.is_bool else repr(c.value)
        return text if not c.type.shape else f"splat({text})"

    def typed(self, v: Value) -> str:
        return f"{self.name(v)}: {v.type}"

    def list(self, vs: tuple[Value, ...]) -> str:
        return ", ".join(self.name(v) for v in vs)

    def place(self, m: Mem, index: tuple[Value, ...]) -> str:
        return f"{self.mem(m)}[{self.list(index)}]"

    def block(self, b: Block, *, yields: bool = True) -> None:
        self.depth += 1
        for stmt in b.stmts:
            self.stmt(stmt)
        # Bodies of tasks yield reductions, which are printed in a form of their own.
        if yields and b.yields:
            self.line("yield " + self.list(b.yields))
        self.depth -= 1

    def bound(self, vs: tuple[Value, ...]) -> str:
        return ", ".join(self.typed(v) for v in vs) + " = " if vs else ""

    def carried(self, params: tuple[Value, ...], inits: tuple[Value, ...]) -> str:
        pairs = (f"{self.typed(p)} = {self.name(i)}" for p, i in zip(params, inits, strict=False))
        return f" carry ({', '.join(pairs)})" if params else ""

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Let):
            args = self.list(s.args)
            self.line(f"{self.typed(s.out)} = {s.op.name} {args}", s.span)
        elif isinstance(s, Load):
            place = self.place(s.mem, s.index)
            self.line(f"{self.typed(s.out)} = load {place}", s.span)
        elif isinstance(s, Store):
            self.line(f"store {self.place(s.mem, s.index)}, {self.name(s.value)}", s.span)
        elif isinstance(s, Atomic):
            word = ("exclusive_" if s.exclusive else "atomic_") + s.op
            text = f"{word} {self.place(s.mem, s.index)}, {self.name(s.value)}"
            self.line(f"{self.typed(s.out)} = {text}" if s.out else text, s.span)
        elif isinstance(s, For):
            lo, hi = self.name(s.lo), self.name(s.hi)
            order = " reversed" if s.reverse else ""
            carried = self.carried(s.params, s.inits)
            head = f"for {self.name(s.index)} in {lo}..{hi}{order}{carried} {{"
            # Results first, as in an assignment, though they are bound after the body.
            self.line(self.bound(s.outs) + head, s.span)
            self.block(s.body)
            self.line("}")
        elif isinstance(s, While):
            carried = self.carried(s.params, s.inits)
            self.line(f"{self.bound(s.outs)}while{carried} {{", s.span)
            self.block(s.cond)
            self.line("} do {")
            self.block(s.body)
            self.line("}")
        elif isinstance(s, If):
            self.line(f"{self.bound(s.outs)}if {self.name(s.cond)} {{", s.span)
            self.block(s.then)
            # Empty branches are left out, as Python's `else` is.
            if s.orelse.stmts or s.orelse.yields:
                self.line("} else {")
                self.block(s.orelse)
            self.line("}")
        elif isinstance(s, Alloca):
            self.line(f"scratch {self.mem(s.mem)}[{self.name(s.count)}]: {s.mem.dtype}", s.span)
        elif isinstance(s, InlineLLVM):
            self.line(f"{self.bound(s.outs)}native {s.name} {self.list(s.args)}", s.span)
        elif isinstance(s, Gradient):
            pairs = zip(s.params, s.args, strict=False)
            given = ", ".join(f"{self.typed(p)} = {self.name(a)}" for p, a in pairs)
            self.line(f"{self.bound(s.outs)}gradient {s.name} ({given}) {{", s.span)
            self.block(s.body)
            self.line(f"}} from ({self.list(s.seeds)})")
        elif isinstance(s, CustomCall):
            self.line(f"{self.bound(s.outs)}custom {s.name} {{", s.span)
            self.block(s.body)
            if s.replay is not None:
                self.line("} replay {")
                self.block(s.replay)
            if s.adjoint is not None:
                seeds = ", ".join(map(self.typed, s.seeds))
                self.line(f"}} adjoint ({seeds}) of ({self.list(s.args)}) {{")
                self.block(s.adjoint)
            self.line("}")
        else:
            assert isinstance(s, (Check, Print))
            self.report(s)

    def report(self, s: Check | Print) -> None:
        if isinstance(s, Print):
            text = "".join(map(str, s.pieces))
            self.line(", ".join([f"print {text!r}", *map(self.name, s.values)]), s.span)
        else:
            self.line(f"check {self.name(s.cond)}, {s.message!r}", s.span)

    def task(self, t: Task) -> None:
        if not t.axes:
            self.line("serial {", t.span)
        else:
            for stmt in t.bounds.stmts:
                self.stmt(stmt)
            b = t.bounds.yields
            ranges = ", ".join(
                f"{self.name(a)} in {'..'.join(map(self.name, b[2 * k : 2 * k + 2]))}"
                for k, a in enumerate(t.axes)
            )
            blocks = f" block_dim {t.block_dim}" if t.block_dim else ""
            lag = "" if t.lag is None else f" lag {t.lag}"
            claim = " independent" if t.independent else ""
            self.line(f"parallel {ranges}{blocks}{lag}{claim} {{", t.span)
        self.block(t.body, yields=False)
        self.depth += 1
        # The yields of a task are its reductions' contributions, shown as the updates that they amount
        # to.
        for (op, m, index), v in zip(t.reductions, t.body.yields, strict=False):
            self.line(f"reduce_{op} {self.place(m, index)}, {self.name(v)}", t.span)
        self.depth -= 1
        self.line("}")


def describe(m: Mem, name: str) -> str:
    """Return a memory's declaration, for the head of a kernel."""
    if m.shape is None:
        return f"{name}: array<{m.dtype}, {m.rank}>"
    return f"{name}: {m.kind} {m.dtype}[{', '.join(map(str, m.shape))}]"


def print_kernel(kernel: Kernel) -> str:
    """Return the kernel as text."""
    return "".join(
        # The line alone, not the file: the text goes into golden files and must not depend on where they lie.
        f"{text}\n" if span is None else f"{text:<{_COMMENT_COLUMN}} ; L{span.line}\n"
        for text, span in printed_lines(kernel)
    )


def printed_lines(kernel: Kernel) -> list[tuple[str, Span | None]]:
    """Return the lines of the kernel's text, with the places in the user's source that they were made of."""
    p = _Printer()
    # Scratch is printed where it is allocated.
    mems = [m for m in kernel.mems if m.kind != "scratch"]
    # Declared memories take the unnumbered names, before any statement mentions one.
    heads = [describe(m, p.mem(m)) for m in mems]
    heads += [f"${a.hint}: {a.type}" for a in kernel.args]
    p.line(f"kernel {kernel.name}({', '.join(heads)}) {{")
    p.depth = 1
    for task in kernel.tasks:
        p.task(task)
    p.depth = 0
    p.line("}")
    return p.lines
