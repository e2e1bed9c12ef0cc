"""Tasks again without their effects on fields, to recompute what they compute."""

from __future__ import annotations

from diffsim.ir.nodes import Atomic, Check, Load, Mem, Print, Stmt, Store, Task
from diffsim.ir.traversal import task_statements
from diffsim.passes.autodiff.custom_calls import Inliner


def writes_temps(task: Task) -> bool:
    """Whether a task writes a temporary."""
    return any(
        isinstance(s, (Store, Atomic)) and s.mem.kind == "temp" for s in task_statements(task)
    )


def replay(task: Task) -> Task:
    """Return the task without its effects on fields: it recomputes the temporaries."""
    work = Replayer()
    axes = work.fresh_all(task.axes)
    bounds = work.block(task.bounds)
    return task.replace(axes=axes, bounds=bounds, body=work.block(task.body))


class Replayer(Inliner):
    """Copies tasks without stores to fields, checks and prints."""

    replayed = True

    def stmt(self, s: Stmt) -> list[Stmt]:
        # The primal launch has checked and printed already.
        if isinstance(s, (Check, Print)):
            return []
        if isinstance(s, (Store, Atomic)) and s.mem.kind not in ("temp", "scratch"):
            if isinstance(s, Atomic) and s.out is not None:
                # A load from a memory of kind "lost" marks a value that cannot be recomputed. If
                # dead-code elimination leaves it, some derivative needs it (`_refuse_lost`).
                lost = Mem(s.mem.name, s.out.type, 0, (), "lost")
                return [Load(self.fresh(s.out), lost, (), s.span)]
            return []
        return super().stmt(s)
