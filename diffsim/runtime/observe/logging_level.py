"""How much diffsim says: `ds.set_logging_level(ds.ERROR)`, or `ds.init(log_level=ds.ERROR)`.

Warnings are Python's, and messages those of the logger "diffsim" of Python's `logging`. The level is for
both: from ERROR on there are no warnings.
"""

from __future__ import annotations

from typing import Any

from diffsim.errors import LEVELS, OptionError, Said, Span, shown
from diffsim.lang.host.signatures import checked

TRACE, DEBUG, INFO, WARN, ERROR, CRITICAL = LEVELS


def _number(level: Any) -> int:
    if not isinstance(level, str) or level not in LEVELS:
        raise OptionError(
            f"there is no level {shown(level)}",
            Span.of_caller(),
            hint="choose one of ds." + ", ds.".join(name.upper() for name in LEVELS),
        )
    return LEVELS[level]


@checked
def set_logging_level(level: str) -> None:
    """Choose what is said: ds.TRACE, DEBUG, INFO, WARN (warnings too), ERROR (errors only) or CRITICAL.

    Example:
        ds.set_logging_level(ds.ERROR)  # no warnings
        print(ds.is_logging_effective(ds.WARN))  # prints: False
    """
    _number(level)
    Said.set(level)


@checked
def is_logging_effective(level: str) -> bool:
    """Return whether something of this level is said.

    Example:
        print(ds.is_logging_effective(ds.ERROR))  # prints: True
    """
    return _number(level) >= LEVELS[Said.level]
