"""The order of the passes, read from top to bottom.

A stage is a name that `kernel.ir(after="...")` understands, and a function from kernel to kernel; the name is
that of the module under `transforms/` (or `instrument/`) which the function is in. The frontend's kernel goes
through PREPARE; an adjoint is made of the result by `reverse`; both then go through LOWER on their way to a
backend.
"""

from __future__ import annotations

from collections.abc import Callable

from diffsim.ir.nodes import Kernel, Task
from diffsim.ir.verifier import verify
from diffsim.passes.autodiff.custom_calls import inline_bodies
from diffsim.passes.autodiff.inner_gradients import expand_gradients
from diffsim.passes.forms.equal_values import merge_equal_values
from diffsim.passes.forms.joined_ranges import join_ranges
from diffsim.passes.forms.loop_order import order_loops
from diffsim.passes.forms.merged_nests import merge_nests
from diffsim.passes.forms.merged_updates import merge_updates
from diffsim.passes.forms.scalar_replacement import replace_by_values
from diffsim.passes.forms.unrolled_loops import unroll_short_loops
from diffsim.passes.forms.zero_factors import without_zero_factors
from diffsim.passes.instrument.bounds import check_bounds
from diffsim.passes.kept.branches import keep_for_later_branches
from diffsim.passes.kept.sweeps import keep_for_sweeps_back
from diffsim.passes.kept.tables import keep_in_tables
from diffsim.passes.neighbours.interiors import split_guarded_updates, split_interiors
from diffsim.passes.neighbours.materialized_values import materialize_values
from diffsim.passes.neighbours.scatter_to_gather import scatter_to_gather
from diffsim.passes.neighbours.torus_gathers import gather_on_torus
from diffsim.passes.sparse.activation import activate_stores, expand_activations
from diffsim.passes.sparse.compaction import compact_loops
from diffsim.passes.transforms.dce import eliminate_dead_code
from diffsim.passes.transforms.demote_atomics import demote_atomics
from diffsim.passes.transforms.forward_clears import forward_clears
from diffsim.passes.transforms.fuse_tasks import fuse_tasks
from diffsim.passes.transforms.mark_uniform import mark_uniform
from diffsim.passes.transforms.ordered_updates import order_updates
from diffsim.passes.transforms.privatize import privatize
from diffsim.passes.transforms.reductions import hoist_reductions
from diffsim.passes.transforms.scalarize import scalarize
from diffsim.passes.transforms.seams import find_seams
from diffsim.passes.transforms.sink_stores import sink_stores
from diffsim.passes.vectors.early_loads import load_early
from diffsim.passes.vectors.mirror_windows import mirror_windows
from diffsim.passes.vectors.relative_windows import relative_windows
from diffsim.passes.vectors.vectorize import vectorize

Pass = Callable[[Kernel], Kernel]
Stages = tuple[tuple[str, Pass], ...]


def _gather(
    kernel: Kernel, *, is_gpu: bool, has_masks: bool = True, in_order: bool = False
) -> Kernel:
    """Scatter to gather, in the interior of boxes too, and eliminate what is no longer needed."""
    # A GPU's threads take remainders at no cost, and each part is a launch: only atomics cost more.
    kernel = inline_bodies(kernel)
    # What is scattered in a fixed order is noted first, which takes longer than any function.
    spare = not is_gpu and not in_order
    torus: frozenset[Task] = frozenset()
    # Threads of a GPU are no vectors.
    if not is_gpu:
        kernel = materialize_values(mirror_windows(relative_windows(kernel)))
        kernel, torus = gather_on_torus(kernel, spare=spare, has_masks=has_masks)
    kernel, rims = split_interiors(kernel, only_updates=is_gpu, has_masks=has_masks, done=torus)
    kernel = scatter_to_gather(
        kernel,
        allow_lag=not is_gpu,
        colors=not is_gpu,
        rims=rims | torus,
        spare=spare,
    )
    return eliminate_dead_code(kernel if is_gpu else split_guarded_updates(kernel))


def _keep(kernel: Kernel) -> Kernel:
    """Compute once what a lane would compute again; the operands of what is kept may be dead then."""
    # The derivative of a sine is the cosine that the program has, too.
    once = merge_equal_values(kernel, only_functions=True)
    return keep_for_later_branches(keep_for_sweeps_back(once))


# Before reversal: the adjoint then meets no Gradient statement, reverses nothing that is dead, and finds
# boxes where programs have nests.
PREPARE: Stages = (
    # `activate_stores` before all others, so that whatever looks at a kernel sees what it activates.
    (
        "simplify",
        lambda k: order_loops(
            merge_nests(eliminate_dead_code(expand_gradients(activate_stores(k))))
        ),
    ),
)

SPARSE: Stages = (("activations", expand_activations), ("active_cells", compact_loops))
"""Passes for kernels on sparse trees, before every backend."""

LOWER: Stages = (
    SPARSE[0],
    # On tensors: a stencil on vectors is one group of additions instead of one for each component.
    ("scatter_to_gather", lambda k: _gather(k, is_gpu=False)),
    # Unrolled before sums are hoisted: each iteration's is one of the outer loop.
    ("scalarize", lambda k: unroll_short_loops(without_zero_factors(scalarize(k)))),
    # Before `demote_atomics`: a hoisted sum changes which elements the lanes update one by one.
    # Merged after the gather, which knows additions one by one.
    ("reductions", lambda k: hoist_reductions(merge_updates(k), in_lanes=True)),
    ("demote_atomics", demote_atomics),
    # After it: only an exclusive update may be turned into a store.
    ("forward_clears", forward_clears),
    # After both, which know updates and not loads and stores in their place.
    ("scalar_replacement", replace_by_values),
    ("dce", lambda k: eliminate_dead_code(load_early(_keep(k)))),
    # As late as can be: up to here a loop over active cells is a dense loop, whose indices are affine.
    SPARSE[1],
    ("join_ranges", join_ranges),
    # After all that makes other values of those that depend on a lane's numbers, or on nothing else.
    ("tables", keep_in_tables),
    # It and `vectorize` name statements and values of the task, so nothing may rewrite those afterwards.
    ("privatize", privatize),
    ("seams", find_seams),
    ("vectorize", vectorize),
)

IN_ORDER: tuple[str, Pass] = ("ordered_updates", order_updates)
"""With `deterministic=True` on the CPU: before the last stage."""

GPU_FUNCTIONS = frozenset({"rsqrt"})
"""The mathematical functions that GPUs have an instruction for, and whose rows have a formula for others."""

LOWER_CUDA: Stages = (
    SPARSE[0],
    ("scatter_to_gather", lambda k: _gather(k, is_gpu=True)),
    ("scalarize", lambda k: without_zero_factors(scalarize(k, functions=GPU_FUNCTIONS))),
    ("reductions", hoist_reductions),
    ("demote_atomics", lambda k: demote_atomics(k, in_blocks=True)),
    ("forward_clears", forward_clears),
    ("dce", eliminate_dead_code),
    SPARSE[1],
    ("privatize", privatize),
    # Splits exclusive updates alone, which `privatize` does not name. There is no `vectorize`: the threads of
    # a warp are the lanes of a vector.
    ("sink_stores", sink_stores),
    ("fuse_tasks", fuse_tasks),
    ("mark_uniform", mark_uniform),
)

LOWER_DEBUG: Stages = (("bounds", lambda k: check_bounds(inline_bodies(k))), *LOWER)

INTERPRETED: Stages = SPARSE
"""For the interpreter, which takes prepared IR as it is otherwise."""

INTERPRETED_DEBUG: Stages = (LOWER_DEBUG[0], *SPARSE)

LOWER_CUDA_DEBUG: Stages = (LOWER_DEBUG[0], *LOWER_CUDA)


def lower(*, debug: bool, deterministic: bool, vector_bits: int = 512) -> Stages:
    """Return the stages on the way to the CPU's backend; `vector_bits`: see `vectorize`."""
    stages = LOWER_DEBUG if debug else LOWER
    others: dict[str, Pass] = {}
    has_masks = vector_bits >= 512
    if deterministic or not has_masks:
        others["scatter_to_gather"] = lambda k: _gather(
            k, is_gpu=False, has_masks=has_masks, in_order=deterministic
        )
    if not has_masks:
        others["forward_clears"] = lambda k: forward_clears(k, has_masks=False)
        others["vectorize"] = lambda k: vectorize(k, vector_bits=vector_bits)
    stages = tuple((name, others.get(name, stage)) for name, stage in stages)
    # `vectorize` judges the task as it finally is, so it stays last.
    return (*stages[:-1], IN_ORDER, stages[-1]) if deterministic else stages


def lower_cuda(*, debug: bool) -> Stages:
    """Return the stages on the way to the backend for NVIDIA GPUs."""
    return LOWER_CUDA_DEBUG if debug else LOWER_CUDA


VERIFY = False
"""Whether the IR is verified after every stage (tests and debug=True do)."""


def run(kernel: Kernel, stages: Stages, upto: str = "", *, check: bool = False) -> Kernel:
    """Return the kernel after these stages, or after the one named `upto`."""
    # A new kernel from each stage: earlier ones stay valid, which `kernel.ir(after=...)` and tests rely
    # on.
    for name, stage in stages:
        kernel = stage(kernel)
        if check or VERIFY:
            verify(kernel, name)
        if name == upto:
            break
    return kernel
