"""Shows things where the program runs."""

from __future__ import annotations

import sys


def display(thing: object) -> None:
    """Show something: IPython and notebooks choose the form themselves, elsewhere its text is printed."""
    shell = sys.modules.get("IPython")
    if shell is not None and shell.get_ipython() is not None:
        shell.display.display(thing)
    else:
        print(thing)
