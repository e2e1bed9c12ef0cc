"""Files that diffsim writes: whole or as before, and an error with advice where they cannot be written."""

import ast
import errno
import io
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import diffsim as ds
from diffsim.runtime.files import write_text

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")
bound = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="no mode binds root"
)


def test_a_file_is_written_as_given(tmp_path):
    for path in (tmp_path / "a", str(tmp_path / "b"), os.fsencode(tmp_path / "c")):
        write_text(path, "é\n")
        write_text(path, "über\r\n")
        assert Path(os.fsdecode(path)).read_bytes() == "über\r\n".encode()
    write_text(tmp_path / "d", "lone \udc80")
    assert (tmp_path / "d").read_text() == "lone \\udc80"
    assert len(list(tmp_path.iterdir())) == 4


@posix
def test_the_place_keeps_its_nature(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    old = os.umask(0o027)
    try:
        write_text("file", "1")
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.chmod(0o604)
    link.symlink_to(file)
    write_text(link, "2")
    assert link.is_symlink()
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("2", 0o604)
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "3")
    reader.join()
    assert got == ["3"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def wrong_paths(folder):
    (folder / "file").write_text("mine")
    yield "a\0b", "no file can be called"
    yield "", "no file can be called"
    yield folder, "[Dd]irectory|denied"
    yield folder / "file" / "a", "Not a directory|File exists"
    yield folder / ("x" * 300) / "a", "too long|No such file"
    yield 3, "a text or a path, not 3"
    yield None, "a text or a path, not None"


def test_where_nothing_can_be_written_advice_is_given(tmp_path):
    for path, why in wrong_paths(tmp_path):
        with pytest.raises(ds.ArgumentError, match=why) as caught:
            write_text(path, "x")
        assert caught.value.hint
        assert caught.value.span.file == __file__
    assert (tmp_path / "file").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


@posix
@bound
def test_without_permission_the_file_stays(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for mode, folder_mode in ((0o400, 0o700), (0o600, 0o500)):
        file.chmod(mode)
        tmp_path.chmod(folder_mode)
        try:
            with pytest.raises(ds.FieldError, match="denied") as caught:
                write_text(file, "x")
        finally:
            tmp_path.chmod(0o700)
        assert "that you may write to" in caught.value.hint
        assert file.read_text() == "mine"


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, step):
    file = tmp_path / "file"
    file.write_text("mine")

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if step == "replace":
        monkeypatch.setattr(os, "replace", full)
    else:
        monkeypatch.setattr(
            "builtins.open", lambda *args: type("Full", (io.FileIO,), {"write": full})(*args)
        )
    with pytest.raises(ds.FileError, match="No space left") as caught:
        write_text(file, "x")
    monkeypatch.undo()
    assert "make room" in caught.value.hint
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_the_graph_of_a_tape_is_written_whole_or_not(cpu, tmp_path):
    x = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def square():
        x[None] = x[None] * x[None]

    tape = ds.Tape(x, in_place="save")
    with tape:
        square()
    place = tmp_path / "tape.dot"
    text = tape.visualize(str(place))
    assert place.read_text() == text
    for made in (tmp_path / "new" / "tape.svg", tmp_path / "page" / "of" / "square.html"):
        tape.visualize(made) if made.suffix == ".svg" else square.show(made)
        assert made.stat().st_size
    with pytest.raises(ds.FileError, match="cannot be made: Not a directory") as caught:
        tape.visualize(place / "inside" / "tape.dot")
    assert caught.value.hint == "a part of the path is a file: name another folder"


WRITERS = {
    "npz": lambda path: ds.save(path, x=ds.field(ds.f32, shape=2)),
    "csv": lambda path: write_text(path, "1,2"),
    "png": lambda path: ds.tools.imwrite(np.zeros((2, 3)), path),
    "gif": lambda path: ds.tools.animate(np.zeros((2, 3, 4)), 0.1, path),
}


@pytest.mark.parametrize("ending", WRITERS)
def test_folders_are_made_whoever_writes(cpu, tmp_path, ending):
    path = tmp_path / "a" / "b" / f"result.{ending}"
    WRITERS[ending](path)
    assert path.stat().st_size
    for wrong in (path / f"inside.{ending}", path / "deep" / f"inside.{ending}"):
        with pytest.raises(ds.FileError, match=r"the folder .* cannot be made") as caught:
            WRITERS[ending](wrong)
        assert "a part of the path is a file" in caught.value.hint


def writing(file):
    """What in a file of Python writes files: the function that it stands in, and the call."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in ("open", "fdopen"):
                modes = [
                    a.value
                    for a in [*node.args, *(k.value for k in node.keywords)]
                    if isinstance(a, ast.Constant)
                ]
                if not any(
                    isinstance(m, str) and set(m) & set("wxa+") and len(m) < 4 for m in modes
                ):
                    continue
            elif name not in (
                "write_bytes",
                "savefig",
                "savez",
                "imsave",
                "mkstemp",
                "NamedTemporaryFile",
            ) and (name != "write_text" or isinstance(node.func, ast.Name)):
                continue
            yield f"{file.relative_to(ROOT).as_posix()}:{function.name}"


WRITES_BESIDE = {
    "benchmarks/gallery_original.py:load": "in a temporary folder",
    "benchmarks/harness.py:c": "the source of a library that is compiled beside its place",
    "benchmarks/harness.py:reference": "beside its place, and renamed",
    "benchmarks/natural/worker.py:main": "in a temporary folder",
    "diffsim/ad/schedules/disk_states.py:store": "beside its place, and renamed",
    "diffsim/ad/pictures/drawing.py:draw": "to memory",
    "diffsim/backends/cuda/ptx.py:assemble": "in a temporary folder",
    "diffsim/optim/runs/archive.py:write_arrays": "to memory",
    "diffsim/optim/runs/log.py:__init__": "lines at the end of what write_text has written",
    "diffsim/runtime/cache/disk_cache.py:_write": "beside its place, and renamed",
    "diffsim/runtime/fields/display.py:_image": "to memory",
    "diffsim/runtime/files.py:_write": "what the others use",
    "diffsim/tools/loss_plot.py:save_figure": "to memory",
    "tools/update_docs.py:_run": "in a temporary folder",
    "tools/write_stubs.py:main": "made anew by the next run",
}


def test_everything_is_written_beside_its_place():
    folders = [ROOT / name for name in ("diffsim", "examples", "tools", "benchmarks")]
    found = {w for folder in folders for file in folder.rglob("*.py") for w in writing(file)}
    assert found == set(WRITES_BESIDE), "write files with diffsim.runtime.files.write_text"


def test_the_walking_robot_says_at_once_that_its_results_can_not_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    command = [
        sys.executable,
        ROOT / "examples" / "mass_spring.py",
        "--out",
        tmp_path / "file" / "out",
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    assert "nothing can be written to" in run.stderr
    assert "--out" in run.stderr
    assert "Traceback" not in run.stderr
    assert "trained" not in run.stdout
