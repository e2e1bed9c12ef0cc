"""Errors are of the classes that Python has for the mistake, and tell their place as SyntaxError does."""

import builtins
import pickle
import re
from pathlib import Path

import pytest

import diffsim as ds
from diffsim import errors

PAGE = Path(__file__).parents[2] / "docs" / "catching-errors.md"


def classes():
    found = [c for c in vars(errors).values() if isinstance(c, type)]
    return {c.__name__: c for c in found if issubclass(c, ds.DiffsimError)}


def test_the_page_lists_them_all():
    rows = re.findall(r"^\| `ds\.(\w+)` \| (.*?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {name for name, _ in rows} == set(classes())
    assert len(rows) == len(classes())
    for name, bases in rows[1:]:
        of_python = {b for b in classes()[name].__mro__ if b.__module__ == "builtins"}
        named = {getattr(builtins, b) for b in re.findall(r"`(\w+)`", bases)}
        assert named <= of_python, name
        # All that a named class has above itself needs no word.
        rest = {b for b in of_python if not any(issubclass(n, b) for n in named)}
        assert rest <= {object, BaseException, Exception}, name


def test_all_of_them_are_public():
    assert set(classes()) <= set(ds.__all__)


def test_the_place_is_that_of_a_syntax_error(cpu, tmp_path):
    # Columns count characters, not bytes; the second expression has several lines.
    text = 'größe = ds.field("f32", 3)\n'
    file = tmp_path / "größe.py"
    file.write_text(text, "utf-8")
    with pytest.raises(ds.DtypeError) as caught:
        exec(compile(text, str(file), "exec"), {"ds": ds})
    e = caught.value
    assert (e.filename, e.lineno, e.offset, e.end_lineno, e.end_offset) == (str(file), 1, 9, 1, 27)
    assert e.text == text.rstrip()
    again = pickle.loads(pickle.dumps(e))
    assert (type(again), str(again), again.offset) == (type(e), str(e), e.offset)


def test_without_a_place():
    e = ds.DiffsimError("no place", None)
    assert (e.filename, e.lineno, e.offset, e.end_lineno, e.end_offset, e.text) == (None,) * 6


def test_files_of_the_system_stay_out_of_the_text(cpu, tmp_path):
    """OSError writes its own `filename` into its text, where it has one."""
    with pytest.raises(OSError, match="no such file") as caught:
        ds.load(tmp_path / "nowhere.npz", x=ds.field(ds.f32, 2))
    assert isinstance(caught.value, ds.FileError)
    assert str(caught.value).startswith(f"{tmp_path / 'nowhere.npz'}: there is no such file\n")
    assert caught.value.filename == __file__
