"""The order of the passes, read from top to bottom.

A stage is a name that `kernel.ir(after="...")` understands, and a function from kernel to kernel. The
frontend's kernel goes through PREPARE; an adjoint is made of the result by `reverse`; both then go through
LOWER on their way to a backend.
"""

from __future__ import annotations

from collections.abc import Callable

from diffsim.ir.nodes import Kernel
from diffsim.ir.verify import verify
from diffsim.passes.bounds import check_bounds
from diffsim.passes.customs import take_bodies
from diffsim.passes.dead import drop_dead
from diffsim.passes.gather import gather
from diffsim.passes.gradients import expand_gradients
from diffsim.passes.in_place import leave_in_place
from diffsim.passes.late import store_last
from diffsim.passes.order import find_order
from diffsim.passes.private import find_private
from diffsim.passes.scalarize import scalarize
from diffsim.passes.sums import mark_exclusive, take_out_sums
from diffsim.passes.wide import find_wide

Pass = Callable[[Kernel], Kernel]
Stages = tuple[tuple[str, Pass], ...]

PREPARE: Stages = (("simplify", lambda k: drop_dead(expand_gradients(k))),)

LOWER: Stages = (
    ("gather", lambda k: drop_dead(gather(take_bodies(k), behind=True))),
    ("scalarize", scalarize),
    ("sums", take_out_sums),
    ("exclusive", lambda k: leave_in_place(mark_exclusive(k))),
    ("dead", drop_dead),
    ("private", find_private),
    ("wide", find_wide),
)

IN_ORDER: tuple[str, Pass] = ("order", find_order)
"""With `deterministic=True` on the CPU: before the last stage."""

LOWER_CUDA: Stages = (
    ("gather", lambda k: drop_dead(gather(take_bodies(k)))),
    ("scalarize", lambda k: scalarize(k, column="cuda")),
    LOWER[2],
    ("exclusive", lambda k: leave_in_place(mark_exclusive(k, in_blocks=True))),
    *LOWER[4:],
    ("late", store_last),
)

LOWER_DEBUG: Stages = (("bounds", lambda k: check_bounds(take_bodies(k))), *LOWER)

LOWER_CUDA_DEBUG: Stages = (LOWER_DEBUG[0], *LOWER_CUDA)


def lower(*, debug: bool, deterministic: bool) -> Stages:
    """The stages on the way to the CPU's backend."""
    stages = LOWER_DEBUG if debug else LOWER
    return (*stages[:-1], IN_ORDER, stages[-1]) if deterministic else stages


VERIFY = False
"""Whether the IR is verified after every stage (tests and debug=True do)."""


def run(kernel: Kernel, stages: Stages, upto: str = "", *, check: bool = False) -> Kernel:
    """The kernel after these stages, or after the one named `upto`."""
    for name, stage in stages:
        kernel = stage(kernel)
        if check or VERIFY:
            verify(kernel, name)
        if name == upto:
            break
    return kernel
