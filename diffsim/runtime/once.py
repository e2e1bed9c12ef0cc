"""What is made when it is first asked for, once, whichever thread of Python asks."""

from __future__ import annotations

import functools
import threading
from typing import Any

making = threading.RLock()
"""Held while kernels are translated and compiled."""


class made_once(functools.cached_property):  # noqa: N801
    """A cached property of which no second value is ever made, as `cached_property` may do from 3.12 on.

    Code in use could otherwise be that of a value which was thrown away, and be freed.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        with making:
            return super().__get__(instance, owner)
