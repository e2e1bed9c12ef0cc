"""How long kernels take and how much memory fields: `ds.init(kernel_profiler=True)` measures each launch.

    ds.init(kernel_profiler=True)
    simulate()
    ds.profiler.print_kernel_profiler_info()

Without the option nothing is measured, and launches cost nothing more. On a GPU the times are those between
events of the driver, so nothing waits. The launches of a replay (`tape.replay()`) run one by one then.
"""

from typing import TYPE_CHECKING, Any

from diffsim.public_names import names_of_module
from diffsim.runtime.observe import profiler as _times
from diffsim.runtime.observe.profiler import (
    clear_kernel_profiler_info,
    clear_scoped_profiler_info,
    get_kernel_profiler_total_time,
    print_kernel_profiler_info,
    print_memory_profiler_info,
    print_scoped_profiler_info,
    query_kernel_profiler_info,
    table,
)

if not TYPE_CHECKING:  # or every name would be one

    def __getattr__(name: str) -> Any:
        return getattr(_times, name)  # the error for a missing name


__all__ = [
    "clear_kernel_profiler_info",
    "clear_scoped_profiler_info",
    "get_kernel_profiler_total_time",
    "print_kernel_profiler_info",
    "print_memory_profiler_info",
    "print_scoped_profiler_info",
    "query_kernel_profiler_info",
    "table",
]
__dir__ = names_of_module(__all__)
