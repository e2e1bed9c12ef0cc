"""The folder of compiled code: what is found there is never run by mistake, and programs run without it."""

import ast
import contextlib
import errno
import os
import re
import shutil
import socket
import stat
import sys
import time
import warnings
from pathlib import Path

import pytest

import diffsim
from diffsim.backends.native.jit import _TRAILER, _TRAILER_MAGIC
from diffsim.errors import Span, warn
from diffsim.runtime.backend import open_backend
from diffsim.runtime.cache import disk_cache as caches
from diffsim.runtime.cache.disk_cache import DiskCache, NoFolder, chosen_folder, key
from tests.soak._processes import start

posix = pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")
A, B = key("a"), key("b")


@pytest.fixture
def cache(tmp_path):
    return DiskCache(tmp_path / "cache")


def place(cache, name):
    return cache.folder / name[:2] / f"{name}.entry"


def test_an_entry_copied_over_anothers_is_a_miss(cache):
    cache.put(A, b"code of a")
    cache.put(B, b"code of b")
    shutil.copy(place(cache, A), place(cache, B))
    assert cache.get(B) is None
    assert not place(cache, B).exists()
    cache.put(B, b"code of b")
    assert (cache.get(A), cache.get(B)) == (b"code of a", b"code of b")


def a_pipe(path):
    os.mkfifo(path)


def a_sparse_file(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


def a_huge_file_that_looks_right(path):
    with path.open("wb") as file:
        file.write(caches._HEADER.pack(caches._MAGIC, (1 << 40) - caches._HEADER.size, b"", b""))
        file.truncate(1 << 40)


def a_folder(path):
    (path / "more").mkdir(parents=True)
    (path / "more" / "file").write_text("x")


def a_link(path):
    other = path.parent.parent / "other"
    other.write_bytes(caches._header(A, b"evil") + b"evil")
    path.symlink_to(other)


def a_dangling_link(path):
    path.symlink_to("/nowhere/at/all")


def a_device(path):
    path.symlink_to("/dev/zero")


def a_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def a_real_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


def an_unreadable_file(path):
    path.write_bytes(caches._header(A, b"code") + b"code")
    path.chmod(0)


def a_file_of_another_user(path):
    path.write_bytes(caches._header(A, b"evil") + b"evil")
    try:
        os.chown(path, 12345, -1)
    except PermissionError:
        pytest.skip("only root gives files away")


STRANGE = [
    a_pipe, a_sparse_file, a_huge_file_that_looks_right, a_folder, a_link, a_dangling_link, a_device,
    a_socket, a_real_device, an_unreadable_file, a_file_of_another_user,
]  # fmt: skip


@posix
@pytest.mark.parametrize("make", STRANGE)
@pytest.mark.parametrize("read_first", [True, False])
def test_what_is_no_entry_is_a_miss_and_replaced(cache, make, read_first):
    cache.put(B, b"other")
    path = place(cache, A)
    path.parent.mkdir(exist_ok=True)
    make(path)
    bound = os.geteuid() == 0 and make is an_unreadable_file  # no mode binds root
    began = time.monotonic()
    if read_first and not bound:
        assert cache.get(A) is None
    cache.put(A, b"code")
    assert cache.get(A) == b"code"
    assert time.monotonic() - began < 30
    assert stat.S_ISREG(path.lstat().st_mode)
    assert cache.get(B) == b"other"
    assert not list(cache.folder.rglob("*.partial"))


@posix
@pytest.mark.parametrize("change", [b"more", None])
def test_a_file_that_changes_while_it_is_read_is_a_miss(cache, monkeypatch, change):
    cache.put(A, b"code" * 1000)
    path, fstat = place(cache, A), os.fstat

    def changing(handle):
        status = fstat(handle)
        with open(path, "ab") as file:
            file.write(change) if change else file.truncate(200)
        return status

    monkeypatch.setattr(os, "fstat", changing)
    assert cache.get(A) is None


@posix
def test_an_entry_with_all_sums_right_over_garbage_is_compiled_again(cpu, tmp_path):
    ds = cpu

    def once(folder="cache"):
        ds.init(offline_cache_file_path=str(tmp_path / folder))
        x = ds.field(ds.f64, shape=10)

        @ds.kernel
        def fill():
            for i in x:
                x[i] = 3.25 * i

        fill()
        return x[7]

    once("other")  # what a process loads once, whatever kernels it runs, is not read again
    open_backend("cpu", 0).loaded.values.clear()
    assert once() == 3.25 * 7
    garbage = b"\x7fELF" + bytes(range(256)) * 4
    entries = list((tmp_path / "cache").rglob("*.entry"))
    assert entries
    ends = b"", _TRAILER.pack(3, _TRAILER_MAGIC), _TRAILER.pack(1 << 60, _TRAILER_MAGIC)
    for end in ends:
        data = garbage + b"\xff" * 16 + end
        for entry in entries:
            entry.write_bytes(caches._header(entry.stem, data) + data)
        open_backend("cpu", 0).loaded.values.clear()
        assert once() == 3.25 * 7
        again = [DiskCache(tmp_path / "cache").get(entry.stem) for entry in entries]
        assert data not in again


# ---- whose folder it is


@posix
def test_the_folder_is_made_for_its_user_alone(tmp_path):
    old = os.umask(0)
    try:
        cache = DiskCache(tmp_path / "above" / "cache")
        cache.put(A, b"code")
    finally:
        os.umask(old)
    assert cache.get(A) == b"code"
    made = [tmp_path / "above", *(tmp_path / "above").rglob("*")]
    assert len(made) == 4
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def refused(cache, why):
    """A cache that must neither read nor write, with one warning."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        assert cache.get(A) is None
        cache.put(A, b"mine")
        cache.put(B, b"mine")
        assert cache.get(B) is None
    (warning,) = caught
    assert re.search(why, str(warning.message))
    assert warning.category is RuntimeWarning
    assert warning.filename == __file__
    assert "DIFFSIM_CACHE_DIR" in str(warning.message)


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_not_used(tmp_path, mode):
    cache = DiskCache(tmp_path / "cache")
    cache.put(A, b"code")
    cache.folder.chmod(mode)
    assert cache.get(A) == b"code"  # seen as safe before: whoever comes later looks again
    refused(DiskCache(tmp_path / "cache"), "can be written by other users")


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives away")
def test_a_folder_of_another_user_is_not_used(tmp_path):
    cache = DiskCache(tmp_path / "cache")
    cache.put(A, b"code")
    os.chown(cache.folder, 12345, -1)
    refused(DiskCache(tmp_path / "cache"), "belongs to another user")


def test_without_user_ids_the_folder_is_used(cache, monkeypatch):
    monkeypatch.delattr(os, "geteuid", raising=False)
    monkeypatch.delattr(os, "getuid", raising=False)
    monkeypatch.setattr(caches, "fcntl", None)
    cache.put(A, b"code")
    assert cache.get(A) == b"code"


@pytest.mark.parametrize("part", [300, 200])
def test_paths_that_are_too_long_are_a_warning(tmp_path, part):
    path = tmp_path
    for _ in range(1 if part > 255 else 30):
        path = path / ("x" * part)
    refused(DiskCache(path), "not kept on disk")


def test_a_file_in_the_way_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(DiskCache(tmp_path / "file"), "is no folder")
    refused(DiskCache(tmp_path / "file" / "cache"), "cannot be used")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_is_one_warning_and_entries_are_read_on(cache, monkeypatch):
    cache.put(A, b"code")

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.warns(RuntimeWarning, match="No space left"):
            cache.put(B, b"more")
        cache.put(B, b"more")
    assert cache.get(A) == b"code"
    assert not list(cache.folder.rglob("*.partial"))


# ---- which folder it is


@posix
def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert chosen_folder("~/x") == tmp_path / "x"
    assert chosen_folder("rel/../x") == tmp_path / "x"
    assert chosen_folder("/abs") == Path("/abs")
    with pytest.raises(NoFolder, match="no home folder for ~no_such_user/x"):
        chosen_folder("~no_such_user/x")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for home in ("relative", "~"):
        monkeypatch.setenv("HOME", home)
        with pytest.raises(NoFolder, match="no home folder"):
            chosen_folder("")


SMALL = """
{before}
import diffsim as ds
ds.init({options})
x = ds.field(ds.f64, shape=1000)

@ds.kernel
def fill():
    for i in x:
        x[i] = 2.0 * i

fill()
print("done", x[7])
"""


def program(before="", options="", drop=(), **environment):
    """Status, output and errors of a small program in this environment."""
    own = {**dict.fromkeys(drop), **environment}
    with contextlib.ExitStack() as stack:
        for name, value in own.items():
            old = os.environ.pop(name, None)
            stack.callback(os.environ.__setitem__ if old is not None else lambda *_: 0, name, old)
        given = {name: value for name, value in own.items() if value is not None}
        process = start(SMALL.format(before=before, options=options), **given)
    with process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.host
@posix
def test_a_user_without_a_name_and_a_home(tmp_path):
    nameless = "import pwd\ndef nobody(uid): raise KeyError(uid)\npwd.getpwuid = nobody"
    status, out, err = program(nameless, drop=("HOME", "DIFFSIM_CACHE_DIR", "XDG_CACHE_HOME"))
    assert (status, out) == (0, "done 14.0\n"), err
    assert err.count("Warning") == 1
    assert "RuntimeWarning: compiled kernels are not kept on disk: this user has no home" in err
    assert "\n  fill()\n" in err  # the user's line


@pytest.mark.host
@posix
def test_a_home_folder_in_the_variable(tmp_path):
    status, out, err = program(HOME=str(tmp_path), DIFFSIM_CACHE_DIR="~/x")
    assert (status, out, err) == (0, "done 14.0\n", "")
    assert list((tmp_path / "x").rglob("*.entry"))


@pytest.mark.host
@posix
@pytest.mark.parametrize(
    "folder", ["/dev/null", "/dev/null/x", "/proc/no/such", "~nobody_here/x", "x" * 300]
)
def test_folders_that_can_not_be_are_one_warning(folder):
    status, out, err = program(DIFFSIM_CACHE_DIR=folder)
    assert (status, out) == (0, "done 14.0\n"), err
    assert err.count("Warning") == 1
    assert "not kept on disk" in err
    assert "\n  fill()\n" in err


@pytest.mark.parametrize("how", ["DIFFSIM_CACHE_DIR", "offline_cache_file_path"])
def test_a_zero_character_in_the_path(cpu, how):
    if how == "DIFFSIM_CACHE_DIR":
        pytest.skip("the environment cannot hold one")
    with pytest.raises(cpu.OptionError, match="zero character") as caught:
        cpu.init(offline_cache_file_path="a\0b")
    assert caught.value.hint


# ---- the other variables


@pytest.mark.parametrize(
    ("variable", "good", "bad"),
    [
        ("DIFFSIM_NUM_THREADS", ["", " ", "0", " 3 "], ["abc", "-1", "1.5", "100000", "9" * 5000, "²"]),
        ("DIFFSIM_DEBUG", ["", "0", "1", "true", "False", "off"], ["2", "abc", "-1", "yes please"]),
        ("DIFFSIM_RULES", ["", "enforced", "lifted"], ["strict", "0", "Lifted"]),
        ("DIFFSIM_ARCH", ["", "cpu"], ["vulkan", "CPU!", "0"]),
    ],
)  # fmt: skip
def test_variables_mean_something_or_are_refused(cpu, monkeypatch, variable, good, bad):
    ds = cpu

    def launch():
        ds.init()
        x = ds.field(ds.i32, shape=4)

        @ds.kernel
        def fill():
            for i in x:
                x[i] = i

        fill()
        return x[3]

    for text in good:
        monkeypatch.setenv(variable, text)
        assert launch() == 3
    for text in bad:
        monkeypatch.setenv(variable, text)
        with pytest.raises(ds.OptionError, match=f"environment variable {variable}") as caught:
            launch()
        assert caught.value.hint
        assert caught.value.span.file == __file__
        assert len(caught.value.message) < 120


@pytest.mark.host
def test_debug_of_the_environment_holds_without_init():
    text = (
        SMALL.format(before="", options="").replace("ds.init()", "").replace("x[i] =", "x[i + 1] =")
    )
    process = start(text, DIFFSIM_DEBUG="1")
    with process:
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert "AccessError" in err


# ---- several processes


def test_leftovers_of_killed_writers_are_removed(tmp_path):
    code = (
        "import os, sys\n"
        "from diffsim.runtime.cache import disk_cache as cache\n"
        "os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        "cache.DiskCache(sys.argv[1]).put(cache.key('x'), bytes(100))\n"
    )
    for _ in range(2):
        with start(code, tmp_path / "cache") as process:
            process.communicate(timeout=60)
    cache = DiskCache(tmp_path / "cache")
    left = list(cache.folder.rglob("*.partial"))
    assert len(left) == 2
    for file in left:
        os.utime(file, (time.time() - 60,) * 2)
    cache.put(A, b"code")
    assert not list(cache.folder.rglob("*.partial"))


@posix
def test_what_is_being_written_is_left_alone(tmp_path, monkeypatch):
    import fcntl

    cache = DiskCache(tmp_path / "cache")
    folder = cache.folder / "ab"
    folder.mkdir(parents=True, mode=0o700)
    cache.folder.chmod(0o700)
    with (folder / "ab12.partial").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(file.name, (time.time() - 60,) * 2)
        (folder / "ab34.partial").touch()  # just made: its lock may be next
        cache.put(A, b"code")
        assert sorted(f.name for f in folder.iterdir()) == ["ab12.partial", "ab34.partial"]


def test_sparse_files_do_not_push_entries_out(tmp_path):
    cache = DiskCache(tmp_path / "cache", max_bytes=100_000)
    cache.put(A, bytes(1000))
    a_sparse_file(place(cache, A).with_name(f"{A[:2]}ff.entry"))
    for n in range(20):
        cache.put(key(str(n)), bytes(1000))
    assert cache.get(A) is not None
    assert cache.get(key("3")) is not None


def test_a_folder_that_goes_while_it_is_looked_through_is_no_fault(cache, monkeypatch):
    cache.put(A, b"code")
    cache.put(B, b"code")
    listdir = os.listdir

    def vanishing(folder):
        found = listdir(folder)
        if Path(folder) == cache.folder:
            shutil.rmtree(cache.folder / A[:2])
        return found

    monkeypatch.setattr(os, "listdir", vanishing)
    # As in a new process, whose first entry has it look through all.
    monkeypatch.setattr(caches, "_unscanned", {})
    fresh = DiskCache(cache.folder)
    fresh.put(key("c"), b"code")
    assert fresh.get(A) is None
    assert fresh.get(B) == b"code"


# ---- warnings


def test_warnings_are_given_by_one_function():
    """It finds the user's line; `warnings.warn` counts frames, which are different from each place."""
    package = Path(diffsim.__file__).parent
    found = []
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name.startswith("warnings.") and "catch" not in name and "filter" not in name:
                found.append(f"{file.relative_to(package)}: {name}")
            if isinstance(node, ast.ImportFrom) and node.module == "warnings":
                found.append(f"{file.relative_to(package)}: from warnings")
    assert set(found) == {"errors.py: warnings.warn_explicit"}


def test_a_warning_names_the_line_that_led_to_it():
    with warnings.catch_warnings(record=True, action="always") as caught:
        warn("words", UserWarning)
        warn("words", UserWarning, Span("a.py", 7))
    places = [(w.filename, w.lineno) for w in caught]
    assert places == [(__file__, sys._getframe().f_lineno - 3), ("a.py", 7)]


def test_the_same_warning_is_shown_once_for_each_line():
    code = "from diffsim.errors import warn\nfor _ in range(3):\n    warn('words', UserWarning)\n"
    code += "warn('words', UserWarning)\n"
    with start(code) as process:
        _, err = process.communicate(timeout=60)
    assert err.count("UserWarning: words") == 2
