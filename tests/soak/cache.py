"""Many processes on one cache of compiled code, some of them killed: never a wrong byte, no rubbish left."""

import multiprocessing
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

from diffsim.runtime.cache.disk_cache import DiskCache, key
from tests.soak import _processes

WRITERS, KEYS = 8, 6


def _data(n, size):
    """What must stand under a key: it tells the key, and is long enough to be cut somewhere."""
    return key(str(n)).encode() * (1 + 37 * size)


def _contend(folder, seed, end):
    """Write and read the same few keys as all others, until a time."""
    cache, rng = DiskCache(folder, max_bytes=3 << 20), random.Random(seed)
    while time.monotonic() < end:
        n = rng.randrange(KEYS)
        if rng.random() < 0.5:
            cache.put(key(str(n)), _data(n, rng.randrange(100)))
        found = cache.get(key(str(n)))
        if found is not None and found != key(str(n)).encode() * (len(found) // 64):
            os._exit(3)


def _start(folder, rng, end):
    context = multiprocessing.get_context("fork")  # nothing here has started a thread
    process = context.Process(target=_contend, args=(folder, rng.random(), end))
    process.start()
    return process


def writers(seconds, rng):
    """Eight writers on one cache; now and then one is killed, an entry damaged or all taken away."""
    folder = Path(tempfile.mkdtemp(), "cache")
    end = time.monotonic() + seconds
    working = [_start(folder, rng, end) for _ in range(WRITERS)]
    killed = 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(0, 0.05))
        chance = rng.random()
        if chance < 0.5:
            victim = working.pop(rng.randrange(len(working)))
            assert victim.exitcode in (None, 0), f"a writer ended with {victim.exitcode}"
            victim.kill()
            victim.join()
            killed += 1
            working.append(_start(folder, rng, end))
        elif chance < 0.9:
            _damage(folder / key(str(n := rng.randrange(KEYS)))[:2] / f"{key(str(n))}.entry", rng)
        elif chance < 0.95:
            shutil.rmtree(folder, ignore_errors=True)
    for process in working:
        process.join(_processes.LONGEST)
        assert process.exitcode == 0, f"a writer ended with {process.exitcode}"
    _is_clean(folder)


def _damage(entry, rng):
    """Cut an entry, copy another one over it, or put something else there."""
    try:
        how = rng.randrange(4)
        if how == 0:
            os.truncate(entry, rng.randrange(1 + entry.stat().st_size))
        elif how == 1:
            others = [f for f in entry.parent.parent.rglob("*.entry") if f != entry]
            beside = entry.with_name("copy")
            shutil.copy(rng.choice(others), beside)
            beside.replace(entry)
        else:
            entry.unlink()
            os.mkfifo(entry) if how == 2 else entry.mkdir()
    except (OSError, IndexError):  # a writer was faster
        return


def _is_clean(folder):
    """A writer that comes later finds whole entries, and removes what the killed ones left."""
    cache = DiskCache(folder)
    for n in range(KEYS):
        found = cache.get(key(str(n)))
        assert found is None or found == key(str(n)).encode() * (len(found) // 64)
    for file in folder.rglob("*.partial"):
        os.utime(file, (time.time() - 60,) * 2)
    cache.put(key("last"), b"code")
    assert cache.get(key("last")) == b"code"
    assert not list(folder.rglob("*.partial"))


SCENARIOS = {"writers": writers}
