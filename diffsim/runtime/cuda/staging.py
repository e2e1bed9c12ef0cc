"""Copies between NumPy and a GPU by way of page-locked memory.

A GPU accesses host memory directly only where its pages are locked. Other memory is copied by the driver
through page-locked memory of its own, with one thread and after waiting for the stream. Here the threads of
the pool copy, and only a reader waits for the GPU:

    to the GPU     fill a slot; ask for the copy; go on with the next slot while the GPU reads the first
    to the host    ask for copies to two slots; empty the first when it is there, and ask for the next

A slot belongs to one call at a time, which removes it from the list and appends it afterwards. The GPU may
still be using it then, so the next user waits for the event of the slot, even if the last call failed. Slots
are never freed: the driver frees them with the process, when nothing uses them any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.backends.cuda.libcuda import DriverError
from diffsim.backends.native.pool import Pool

AT_ONCE = 1 << 16  # bytes; up to here the driver takes pageable memory without a wait
SLOT_BYTES = 4 << 20  # 80 us at 50 GB/s, for some 10 us of calls
MOST_SLOTS = 4
_AHEAD = 2  # slots that the GPU fills while the host waits for the first


class Staging:
    """Page-locked slots of one device; any thread may use it."""

    def __init__(self, driver: Any, pool: Callable[[], Pool]) -> None:
        self._driver = driver
        self._pool = pool
        # Used from the front and returned at the end: the slot in front has been given to the GPU the longest
        # ago, so it is the likeliest to be free.
        self._slots: deque[_Slot] = deque()  # the one used last comes last
        # One token for each slot that may still be made; `pop` of a list is atomic, so no lock is needed.
        self._unmade = [True] * MOST_SLOTS

    def write(self, to: int, array: np.ndarray) -> None:
        """Copy a contiguous array (which may change afterwards) to the device.

        Other threads' work may come between the parts of a large one, here and in `read`.
        """
        nbytes = array.nbytes
        # The driver stages up to 64 KiB of pageable memory and returns before the transfer (CUDA driver API,
        # "API synchronization behavior").
        if nbytes <= AT_ONCE:
            if nbytes:  # a copy, as the array itself may be page-locked by another library
                self._driver.copy_in(to, array.tobytes(), nbytes)
            return
        host = array.ctypes.data
        for done in range(0, nbytes, SLOT_BYTES):
            n = min(SLOT_BYTES, nbytes - done)
            slot = self._acquire()
            # No memory can be locked, or all slots are in use by other threads: the driver's own way, which
            # waits.
            if slot is None:
                self._driver.copy_in(to + done, host + done, n)
                self._driver.wait()
                continue
            try:
                slot.wait()
                # The host copies into the next slot while the GPU reads this one, so both work at full
                # bandwidth.
                self._pool().copy(slot.address, host + done, n)
                slot.use(self._driver.send, to + done, slot.address, n)
            # Also after an error: a lost slot is never made again.
            finally:
                self._slots.append(slot)

    def read(self, array: np.ndarray, of: int) -> None:
        """Copy from the device to a contiguous array, after all work that was asked for before."""
        host, nbytes = array.ctypes.data, array.nbytes
        if nbytes <= AT_ONCE:
            if nbytes:
                self._driver.copy_out(host, of, nbytes)
            return
        # Bytes asked for of the GPU, and bytes that have arrived in the array.
        asked = done = 0
        ahead: deque[tuple[_Slot, int]] = deque()
        try:
            while done < nbytes:
                # Two copies ahead keep the GPU busy while the host empties the first slot; more would take
                # slots from other threads.
                while asked < nbytes and len(ahead) < _AHEAD and (slot := self._acquire()):
                    n = min(SLOT_BYTES, nbytes - asked)
                    ahead.append((slot, n))
                    slot.wait()
                    slot.use(self._driver.fetch, slot.address, of + asked, n)
                    asked += n
                # In order: the stream completes the copies in the order in which they were issued.
                if ahead:
                    slot, n = ahead[0]
                    slot.wait()
                    self._pool().copy(host + done, slot.address, n)
                    ahead.popleft()  # first: a slot may get lost here, but never be used twice
                    self._slots.append(slot)
                else:
                    n = min(SLOT_BYTES, nbytes - done)
                    self._driver.copy_out(host + done, of + done, n)
                    asked += n
                done += n
        finally:
            # Still in use by the GPU, perhaps; the next user waits for the event.
            self._slots.extend(slot for slot, _ in ahead)

    def _acquire(self) -> _Slot | None:
        """Return a slot for the caller alone, which the GPU may still be busy with; None: there is none."""
        try:
            slot = self._slots.popleft()
        except IndexError:
            return self._make()
        made = None
        try:
            # A new slot costs memory, a busy one a wait: made only where the oldest slot is still in use.
            if self._unmade and not slot.is_done():
                made = self._make()
        except BaseException:
            self._slots.appendleft(slot)
            raise
        if made is None:
            return slot
        self._slots.appendleft(slot)
        return made

    def _make(self) -> _Slot | None:
        """Return a new slot, unless there are as many as there may be, or no more memory can be locked."""
        try:
            self._unmade.pop()
            return _Slot(self._driver)
        except IndexError:
            return None
        except DriverError:
            # No more page-locked memory: never asked for again, as locking is slow even where it fails.
            self._unmade.clear()
            return None


class _Slot:
    """Page-locked memory, and an event: once it is done, the GPU does not use that memory.

    Attributes:
        address: of its first byte.
    """

    __slots__ = ("_driver", "_event", "_marked", "address")

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        # An event that was never recorded counts as done (cuEventQuery).
        self._event = driver.event()
        self._marked = True
        self.address = driver.page_locked(SLOT_BYTES)

    def use(self, copy: Callable[..., None], *args: int) -> None:
        """Issue a copy to or from this memory."""
        # If the copy was issued and an interrupt came before the event, a wait for the old event would end
        # too early.
        self._marked = False  # until the event follows the copy on the stream
        copy(*args)
        self._mark()

    def _mark(self) -> None:
        if not self._marked:
            self._driver.mark(self._event)
            self._marked = True

    def is_done(self) -> bool:
        """Return whether the GPU does not use it any more."""
        self._mark()
        return bool(self._driver.is_done(self._event))

    def wait(self) -> None:
        """Wait until the GPU does not use it any more."""
        self._mark()
        self._driver.wait_for_event(self._event)
