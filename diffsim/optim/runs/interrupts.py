"""Ctrl-C as a wish to end after the iteration that runs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event


@contextmanager
def stopped_by_ctrl_c() -> Iterator[Event]:
    """Give an event that the first Ctrl-C sets; the second one interrupts as ever."""
    stop = Event()
    # Python lets only the main thread handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(*_: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)
        print("\nstopping after this iteration (Ctrl-C again: at once)", file=sys.stderr)

    before = signal.getsignal(signal.SIGINT)
    # A handler that Python did not set cannot be put back; one that ignores (nohup) is meant.
    if before is None or before is signal.SIG_IGN:
        yield stop
        return
    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
