"""Stores that are the last to their elements, and run wherever an adjoint comes by.

What such a store has stored is in its element when the launch has ended (docs/adr/0107).
"""

from __future__ import annotations

from collections.abc import Iterator

from diffsim.ir.nodes import (
    LEAVES,
    Atomic,
    Block,
    CustomCall,
    For,
    If,
    Kernel,
    Let,
    Load,
    Stmt,
    Store,
    Value,
)
from diffsim.ir.traversal import outs, task_statements, uses
from diffsim.passes.analysis.access_order import AccessSite, Section, sections_of

_MOST_GROUPS = 8
"""Writes that a store is compared with."""


def lasting_stores(kernel: Kernel, asked: set[Store]) -> set[Store]:
    """Return the stores of a value, bound in the same block, to elements that no later write reaches.

    Each run of such a store has an element of its own. Whether it runs follows from whole numbers alone,
    which come out the same in the adjoint: a comparison of floats may turn out differently there, as
    products and sums may be contracted in another way.
    """
    # Arrays may be fields that the kernel has by another name.
    if any(
        isinstance(s, CustomCall) or (isinstance(s, (Store, Atomic)) and s.mem.kind == "array")
        for t in kernel.tasks
        for s in task_statements(t)
    ):
        return set()
    sections = sections_of(kernel)
    found: set[Store] = set()
    for number, section in enumerate(sections):
        sites = [p for m in section.writes for p in section.writes[m] if p.stmt in asked]
        if not sites:
            continue
        certain = set(_certain_stores(section.task.bounds, section.task.body, section.axes))
        found |= {
            p.stmt
            for p in sites
            if p.stmt in certain
            and _has_own_elements(section, p)
            and not any(later.overlapping(p) for later in sections[number + 1 :])
        }
    return found


def _has_own_elements(section: Section, site: AccessSite) -> bool:
    """Whether no other statement of a task, lane or iteration writes the element that a store does."""
    loops = [loop.index for loop in site.loops if isinstance(loop, For)]
    if len(loops) < len(site.loops):
        return False
    groups = section.overlapping(site)
    if len(groups) > _MOST_GROUPS or not section.distances(site, site).same(
        (*section.axes, *loops)
    ):
        return False
    return all(
        len(g.sites) == 1 if site in g.sites else section.distances(site, g.first).never
        for g in groups
    )


def _certain_stores(bounds: Block, body: Block, axes: tuple[Value, ...]) -> Iterator[Store]:
    """Yield the stores of values of their own block that run wherever the adjoint's copy of it does."""
    whole: set[Value] = set()

    def is_whole(v: Value) -> bool:
        return isinstance(v, LEAVES) or v in whole

    def note(s: Stmt) -> None:
        if isinstance(s, (Let, Load)) and not s.out.type.is_float and all(map(is_whole, uses(s))):
            whole.add(s.out)

    def visit(block: Block) -> Iterator[Store]:
        bound: set[Value] = set()
        for s in block.stmts:
            note(s)
            if isinstance(s, Store) and s.value in bound:
                yield s
            elif isinstance(s, For) and is_whole(s.lo) and is_whole(s.hi):
                whole.add(s.index)
                yield from visit(s.body)
            elif isinstance(s, If) and is_whole(s.cond):
                yield from visit(s.then)
                yield from visit(s.orelse)
            bound.update(outs(s))

    for s in bounds.stmts:
        note(s)
    if all(map(is_whole, bounds.yields)):
        whole.update(axes)
        yield from visit(body)
