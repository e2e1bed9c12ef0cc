"""Compiled code on disk: shared by processes, never in the way."""

import pytest

from tests.support.processes import run

# ---- the cache

COUNTED = """
import sys
import diffsim as ds
from diffsim.backends.native.jit import Jit

compiled, compile_one = [], Jit.compile

def counting(self, text, **how):
    if not how:  # no run-time library
        compiled.append(text)
    return compile_one(self, text, **how)

Jit.compile = counting
"""
CASE = """
compiled.clear()
ds.init({options})
x = ds.field(ds.f64, shape=100)

@ds.kernel
def fill(a: ds.f64):
    for i in x:
        x[i] = {formula}

fill(2.0)
print(len(compiled), x[3])
"""


def counted_one_by_one(folder, *cases, **environment):
    """How many kernels a process compiles for each (formula, options of init), and a value."""
    text = "".join(CASE.format(formula=formula, options=options) for formula, options in cases)
    lines = run(folder, COUNTED + text, **environment).splitlines()
    return [(int(count), float(value)) for count, value in map(str.split, lines)]


def counted(folder, formula="a * i", options="", **environment):
    return counted_one_by_one(folder, (formula, options), **environment)[0]


@pytest.mark.host
def test_processes_share_compiled_code(tmp_path):
    here = {"DIFFSIM_CACHE_DIR": str(tmp_path / "cache")}
    first, value = counted(tmp_path, **here)
    assert first >= 1
    assert value == 6.0
    same, other, fast, slow, _ = counted_one_by_one(
        tmp_path,
        ("a * i", ""),
        ("a * i + 1", ""),
        ("a * i / 7", "fast_math=True"),
        ("a * i / 7", ""),
        ("a * i", "debug=True"),
        **here,
    )
    assert same == (0, 6.0)
    assert other == (1, 7.0)
    assert fast[0] == slow[0] == 1
    assert counted(tmp_path, **here) == (0, 6.0)


@pytest.mark.host
def test_a_damaged_cache_is_no_problem(tmp_path):
    here = {"DIFFSIM_CACHE_DIR": str(tmp_path / "cache")}
    whole, _ = counted(tmp_path, **here)
    files = [f for f in (tmp_path / "cache").rglob("*") if f.is_file()]
    assert len(files) >= whole
    for k, file in enumerate(files):
        data = bytearray(file.read_bytes())
        if k % 3 == 0:
            data[len(data) // 2] ^= 1
        file.write_bytes(data if k % 3 == 0 else b"" if k % 3 == 1 else data[:-5])
    assert counted(tmp_path, **here) == (whole, 6.0)
    assert counted(tmp_path, **here) == (0, 6.0)


@pytest.mark.host
def test_without_the_cache_nothing_is_written(tmp_path):
    cache = tmp_path / "cache"
    here = {"DIFFSIM_CACHE_DIR": str(cache), "HOME": str(tmp_path / "home")}
    assert counted(tmp_path, options="offline_cache=False", **here)[0] >= 1
    assert not cache.exists()
    assert not (tmp_path / "home").exists()


@pytest.mark.host
def test_the_folder_given_to_init_wins(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    counted(
        tmp_path, options=f"offline_cache_file_path={str(mine)!r}", DIFFSIM_CACHE_DIR=str(other)
    )
    assert mine.exists()
    assert not other.exists()


def test_a_folder_that_can_not_be_written_is_a_warning(cpu, tmp_path):
    ds = cpu
    (tmp_path / "file").write_text("")
    ds.init(offline_cache_file_path=str(tmp_path / "file" / "cache"))

    @ds.kernel
    def one() -> ds.i32:
        return 123321

    with pytest.warns(RuntimeWarning, match="not kept on disk"):
        assert one() == 123321
