"""The disk cache: whole entries or none, whatever happens to the folder."""

import multiprocessing
import os
import random
import sys
import warnings
from pathlib import Path

import pytest

from diffsim.runtime.cache.disk_cache import DiskCache, default_folder, key


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def entry_file(cache: DiskCache) -> Path:
    (path,) = (p for p in cache.folder.rglob("*") if p.is_file())
    return path


def test_round_trip(cache: DiskCache) -> None:
    name = key("kernel", b"\x00\xff")
    assert cache.get(name) is None
    for data in (b"code", b"", b"other" * 1000):
        cache.put(name, data)
        assert cache.get(name) == data
        assert DiskCache(cache.folder).get(name) == data


def test_key_depends_on_every_part_and_its_bounds() -> None:
    keys = [key(), key(""), key("ab", "c"), key("a", "bc"), key("abc"), key("abc", "")]
    assert len(set(keys)) == len(keys)
    assert key("ab") == key(b"ab")


def test_keys_cannot_leave_the_folder(cache: DiskCache) -> None:
    with pytest.raises(ValueError, match="not a cache key"):
        cache.get("../../secret")


def test_every_truncation_is_a_miss(cache: DiskCache) -> None:
    name = key("kernel")
    cache.put(name, b"machine code")
    path = entry_file(cache)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert cache.get(name) is None
        assert not path.exists()
    cache.put(name, b"machine code")
    assert cache.get(name) == b"machine code"


def test_every_flipped_byte_is_a_miss(cache: DiskCache) -> None:
    name = key("kernel")
    cache.put(name, b"machine code")
    path = entry_file(cache)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert cache.get(name) is None


@pytest.mark.parametrize("junk", [b"x" * 4096, b"\x7fELF" + bytes(200)])
def test_foreign_files_are_a_miss(cache: DiskCache, junk: bytes) -> None:
    name = key("kernel")
    cache.put(name, b"machine code")
    entry_file(cache).write_bytes(junk)
    assert cache.get(name) is None
    cache.put(name, b"machine code")
    assert cache.get(name) == b"machine code"


def contend(folder: Path, seed: int) -> None:
    """Write and read the same few keys as everyone else; exit with an error on a wrong byte."""
    cache = DiskCache(folder)
    rng = random.Random(seed)
    for _ in range(150):
        i = rng.randrange(4)
        cache.put(key(str(i)), bytes([i]) * (1000 * (i + 1)))
        found = cache.get(key(str(rng.randrange(4))))
        # os.replace never leaves a gap: once written, a key is always there.
        if found is not None and found != bytes([found[0]]) * (1000 * (found[0] + 1)):
            os._exit(3)
    if cache.get(key(str(i))) is None:
        os._exit(4)


def test_concurrent_writers(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=contend, args=(tmp_path, seed)) for seed in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert not list(tmp_path.rglob("*.partial"))


def test_unwritable_folder_warns_once_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="not kept on disk"):
        cache.put(key("a"), b"data")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(key("b"), b"data")
        assert cache.get(key("a")) is None


@pytest.mark.skipif(
    sys.platform == "win32" or not hasattr(os, "geteuid") or os.geteuid() == 0,
    reason="needs a user whom file modes bind",
)
def test_read_only_folder_can_be_read(cache: DiskCache) -> None:
    cache.put(key("a"), b"data")
    folder = entry_file(cache).parent
    folder.chmod(0o500)
    try:
        assert cache.get(key("a")) == b"data"
        with pytest.warns(RuntimeWarning, match="not kept on disk"):
            cache.put(key("a"), b"new")
    finally:
        folder.chmod(0o700)


def test_failing_write_leaves_nothing_behind(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        cache.put(key("a"), b"data")
    assert not [p for p in cache.folder.rglob("*") if p.is_file()]


def test_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, max_bytes=64_000)
    names = [key(str(i)) for i in range(120)]
    for i, name in enumerate(names):
        cache.put(name, bytes(1000))
        for path in tmp_path.rglob(f"{name}*"):
            os.utime(path, (1000 + i, 1000 + i))
        # The first entry stays in use all the time.
        assert cache.get(names[0]) is not None
    total = sum(path.stat().st_size for path in tmp_path.rglob("*.entry"))
    assert 32_000 < total <= 64_000 * 17 // 16
    assert cache.get(names[0]) is not None
    assert cache.get(names[1]) is None
    assert cache.get(names[-1]) is not None


def test_entry_larger_than_the_bound_is_not_stored(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, max_bytes=1000)
    cache.put(key("a"), bytes(2000))
    assert cache.get(key("a")) is None


def test_foreign_files_in_the_folder_survive_shrinking(tmp_path: Path) -> None:
    folder = tmp_path / "ab"
    folder.mkdir()
    (folder / "notes.txt").write_bytes(bytes(5000))
    (folder / "dead.partial").write_bytes(b"half")
    (folder / "abad.partial").write_bytes(b"half")
    for file in folder.iterdir():
        os.utime(file, (1000, 1000))
    cache = DiskCache(tmp_path, max_bytes=2000)
    for i in range(8):
        cache.put(key(str(i)), bytes(500))
    assert (folder / "notes.txt").exists()
    assert (folder / "dead.partial").exists()  # entries in this folder begin with ab
    assert not (folder / "abad.partial").exists()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="XDG folders")
def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "diffsim"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "diffsim"


def test_each_cache_of_a_folder_counts_what_the_process_has_added(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A session opens the cache anew: one scan for the first entry, then one for each 160 bytes and more."""
    scans = []
    monkeypatch.setattr(DiskCache, "_shrink", lambda cache: scans.append(cache.folder))
    before = []
    for i in range(9):
        DiskCache(tmp_path, max_bytes=160 * 16).put(key(str(i)), bytes(1))
        before.append(len(scans))
    DiskCache(tmp_path / "other", max_bytes=160 * 16).put(key("a"), bytes(1))
    # An entry is 81 bytes, with its header of 80.
    assert before == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert scans == [tmp_path] * 5 + [tmp_path / "other"]
