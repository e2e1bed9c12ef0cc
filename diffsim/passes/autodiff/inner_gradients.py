"""Expands gradients that a kernel asks for itself, `ds.grad(f)(x)`, into ordinary code, innermost first.

Assumes: the frontend's kernel. Promises: no Gradient statement is left. The code in its place is
differentiated like any other, so second derivatives need no rules of their own.

    %f: f32 = gradient energy (%a: f32 = %x) {         %t1: f32 = mul %x, %x
      %t: f32 = mul %a, %a                        ->   %f.1: f32 = mul 1.0, %x
      %e: f32 = mul %t, %a                             ...
      yield %e
    } from (1.0)
"""

from __future__ import annotations

from diffsim.errors import AutodiffError
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Atomic, Block, Gradient, Kernel, Stmt, Store, Task, no_derivative
from diffsim.ir.traversal import Rewriter, statements, task_statements
from diffsim.passes.autodiff.activity import Activity, check_bits
from diffsim.passes.autodiff.region_adjoint import Adjoints, Reverser


def expand_gradients(kernel: Kernel) -> Kernel:
    """Return the kernel with code in the place of each Gradient.

    Raises:
        AutodiffError: a func that changes memory, or that an op of it cannot be differentiated.
    """
    found = (s for t in kernel.tasks for s in task_statements(t, given=True))
    if not any(isinstance(s, Gradient) for s in found):
        return kernel
    work = _Expander()
    tasks = tuple(
        t.replace(bounds=work.block(t.bounds), body=work.block(t.body)) for t in kernel.tasks
    )
    return kernel.replace(tasks=tasks)


class _Expander(Rewriter):
    """Copies statements, and expands gradients among them."""

    def stmt(self, s: Stmt) -> list[Stmt]:
        return self.gradient(s) if isinstance(s, Gradient) else [self.copy(s)]

    def gradient(self, s: Gradient) -> list[Stmt]:
        """Return the forward code of the differentiated body, and its adjoint."""
        # Innermost first: `self.block` has expanded gradients inside the body before the body is
        # differentiated, so the reversal never meets a Gradient statement. Second derivatives are plain
        # repeated reverse mode: each level differentiates ordinary code.
        args, seeds = self.values(s.args), self.values(s.seeds)
        params, body = self.fresh_all(s.params), self.block(s.body)
        _check_pure(s, body)
        region = Kernel(s.name, (), (), (Task((), Block([]), body, s.span),), s.span)
        # Only the parameters are active: `ds.grad(f)(x)` is the derivative with respect to x alone, and
        # what f loads from memory is constant in it. A derivative through those loads is found by the
        # outer reversal.
        active = Activity(region, frozenset(), params)
        check_bits(region, active)
        work = Reverser(Builder(s.span), active.values, is_inner=True)
        work.env.update(zip(params, args, strict=True))
        adj: Adjoints = {}
        with work.builder, work.builder.block() as stmts:
            work.forward(body, save=True)
            for y, g in zip(body.yields, seeds, strict=True):
                work.add(adj, y, g)
            work.backward(body, adj)
        for out, p in zip(s.outs, params, strict=True):
            # A parameter that the results do not depend on has derivative 0.
            self.env[out] = adj.get(p) or no_derivative(p.type)
        return stmts


def _check_pure(gradient: Gradient, body: Block) -> None:
    for s in statements(body):
        # `Reverser.forward` emits no stores to fields, so the effect would be lost.
        if isinstance(s, (Store, Atomic)) and s.mem.kind != "scratch":
            raise AutodiffError(
                f"{gradient.name} changes {s.mem.name}, and ds.grad differentiates what a func returns",
                s.span,
                hint="return the value, and store it in the kernel",
            )
