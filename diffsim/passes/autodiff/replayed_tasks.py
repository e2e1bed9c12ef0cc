"""Tasks again without their effects on fields, to recompute what they compute."""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, Check, Load, Mem, Print, Stmt, Store, Task
from diffsim.ir.traversal import task_statements
from diffsim.passes.autodiff.custom_calls import Inliner


def writes_temps(task: Task, versions: frozenset[Mem] = frozenset()) -> bool:
    """Whether a task writes a temporary, or one of these versions of memories."""
    return any(
        isinstance(s, (Store, Atomic)) and (s.mem.kind == "temp" or s.mem in versions)
        for s in task_statements(task)
    )


def replay(
    task: Task, versions: frozenset[Mem] = frozenset(), live: frozenset[Mem] = frozenset()
) -> Task:
    """Return the task without its effects on fields: it recomputes temporaries and versions of memories.

    `live`: memories whose loads find what the task itself has just written, if it is repeated: in versions.
    """
    work = Replayer()
    work.versions, work.live = versions, live & versions
    axes = work.fresh_all(task.axes)
    bounds = work.block(task.bounds)
    return task.replace(axes=axes, bounds=bounds, body=work.block(task.body))


class Replayer(Inliner):
    """Copies tasks without stores to fields, checks and prints."""

    replayed = True
    versions: frozenset[Mem] = frozenset()
    live: frozenset[Mem] = frozenset()

    def stmt(self, s: Stmt) -> list[Stmt]:
        # The primal launch has checked and printed already.
        if isinstance(s, (Check, Print)):
            return []
        if isinstance(s, (Store, Atomic)) and s.mem.kind not in ("temp", "scratch"):
            return self._write(s)
        if isinstance(s, Load) and s.mem in self.live:
            # No copy of the user's load, which the access rules would ask about: it finds the right value
            # at this point of the run, if not at the end of it.
            index = self.values(s.index)
            return [Load(self.fresh(s.out), self.mem(s.mem), index, s.span)]
        return super().stmt(s)

    def _write(self, s: Store | Atomic) -> list[Stmt]:
        """Return what is left of a write to a field."""
        again: list[Stmt] = []
        if s.mem in self.versions:
            alone = s.replace(out=None) if isinstance(s, Atomic) else s
            again += super().stmt(alone)
        if isinstance(s, Atomic) and s.out is not None:
            # A load from a memory of kind "lost" marks a value that cannot be recomputed. If dead-code
            # elimination leaves it, some derivative needs it (`reverse._lost_values`).
            lost = Mem(s.mem.name, s.out.type, 0, (), "lost")
            again.append(Load(self.fresh(s.out), lost, (), s.span))
        return again
