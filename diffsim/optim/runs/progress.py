"""The progress of a training, in one line: drawn over in a terminal, else written ten times in all."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """A progress bar on the stream of errors, by `tqdm` where there is one and somebody watches.

    Args:
        total: how many iterations there are.
        start: how many of them are done already.
        shown: whether anything is shown at all.
    """

    def __init__(self, total: int, start: int = 0, *, shown: bool = True) -> None:
        self.total = total
        self.shown = shown
        self._bar: Any = _tqdm(total, start) if shown else None

    def update(self, done: int, text: str) -> None:
        """Show that so many iterations are done, and what became of the last one."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(done - self._bar.n)
        elif self.shown:
            self._draw(done, text)

    def _draw(self, done: int, text: str) -> None:
        terminal = sys.stderr.isatty()
        if not terminal and done % max(1, self.total // 10) and done != self.total:
            return
        bar = "#" * (30 * done // self.total)
        line = f"[{bar:.<30}] {done}/{self.total}  {text}"
        print(
            f"\r{line}" if terminal else line,
            end="" if terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
        elif self.shown and sys.stderr.isatty():
            print(file=sys.stderr)


def _tqdm(total: int, start: int) -> Any:
    """Return a bar of tqdm; None: there is none, or nobody watches and ten lines are enough."""
    notebook = hasattr(sys.modules.get("IPython"), "get_ipython") and "ipykernel" in sys.modules
    if not notebook and not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, initial=start, file=sys.stderr, dynamic_ncols=True)
