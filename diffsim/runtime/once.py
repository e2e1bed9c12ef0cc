"""What is made when it is first asked for, once, whichever thread of Python asks."""

from __future__ import annotations

from typing import Any

from diffsim.ir import locks

making = locks.rlock()
"""Held while kernels are translated and compiled. A fork waits for it: LLVM can not be copied half way."""
locks.finish_before_fork(lambda: making)


class made_once(locks.cached):  # noqa: N801
    """A cached property of which no second value is ever made, as `cached_property` may do from 3.12 on.

    Code in use could otherwise be that of a value which was thrown away, and be freed.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        with making:
            return super().__get__(instance, owner)
