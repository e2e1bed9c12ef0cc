"""`diffsim cache info` and `diffsim cache clear`: the folder of compiled kernels."""

from __future__ import annotations

from diffsim.commands.failure import Failure
from diffsim.errors import memory_size
from diffsim.runtime.cache.disk_cache import DiskCache, NoFolder, chosen_folder
from diffsim.runtime.options import cache_dir_of_environment


def open_cache() -> DiskCache:
    """Return the cache that programs without options of their own use.

    Raises:
        Failure: there is no place for one.
    """
    try:
        return DiskCache(chosen_folder(cache_dir_of_environment()))
    except NoFolder as reason:
        raise Failure(
            f"there is no cache: {reason}; name a folder in the environment variable DIFFSIM_CACHE_DIR"
        ) from None


def run(words: list[str]) -> int:
    """Run `info` or `clear`."""
    if words not in (["info"], ["clear"]):
        raise Failure("write `diffsim cache info` or `diffsim cache clear`", status=2)
    cache = open_cache()
    sizes = cache.sizes()
    kernels = f"{len(sizes)} entries, {memory_size(sum(sizes))}"
    if words == ["info"]:
        print(f"{cache.folder}: {kernels}, of at most {memory_size(cache.max_bytes)}")
    else:
        left = cache.clear()
        print(f"{cache.folder}: removed {len(sizes) - left} of {kernels}")
    return 0
