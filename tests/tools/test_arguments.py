"""The command line and the progress of examples."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import diffsim as ds
from diffsim.tools import ArgumentParser, progress


def parser(folder):
    return ArgumentParser(
        """A wave.

        It is 100 % wet.""",
        prog="wave",
        steps=256,
        iterations=100,
        out=folder / "out" / "wave",
    )


def test_defaults_and_given(tmp_path, monkeypatch):
    monkeypatch.delenv("DIFFSIM_ARCH", raising=False)
    found = parser(tmp_path).parse_args([])
    assert (found.steps, found.iterations, found.seed, found.gui) == (256, 100, 0, False)
    assert found.arch is ds.cpu
    assert found.out == tmp_path / "out" / "wave"
    assert found.out.is_dir()
    more = [
        "--steps",
        3,
        "--iterations=1",
        "--arch",
        "gpu",
        "--seed",
        9,
        "--gui",
        "--out",
        tmp_path,
    ]
    found = parser(tmp_path).parse_args(more)
    assert (found.steps, found.iterations, found.seed, found.gui) == (3, 1, 9, True)
    assert found.arch is ds.gpu
    assert found.out == tmp_path


def test_the_environment_chooses_the_backend(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFSIM_ARCH", "cuda")
    assert parser(tmp_path).parse_args([]).arch is ds.cuda


def test_options_without_a_default_are_not_there(tmp_path, capsys):
    bare = ArgumentParser("A thing.", prog="thing")
    assert not hasattr(bare.parse_args([]), "steps")
    with pytest.raises(SystemExit):
        bare.parse_args(["--steps", "3"])
    assert "unrecognized arguments: --steps 3" in capsys.readouterr().err


def test_help(tmp_path, capsys):
    with pytest.raises(SystemExit):
        parser(tmp_path).parse_args(["--help"])
    text = capsys.readouterr().out
    assert "A wave.\n\nIt is 100 % wet.\n" in text
    assert "(default 256)" in " ".join(text.split())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--steps 0", "argument --steps: 0 is too small, it starts at 1"),
        ("--iterations 2.5", "argument --iterations: '2.5' is no whole number"),
        ("--seed -1", "argument --seed: -1 is too small, it starts at 0"),
        ("--arch cudda", "argument --arch: there is no 'cudda'; choose cpu, cuda, gpu"),
        (
            "--out FILE/inside",
            "inside: Not a directory; a part of the path is a file: name another folder",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, given, message):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        parser(tmp_path).parse_args(given.replace("FILE", str(tmp_path / "file")).split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_progress_on_lines(capsys):
    with_notes = progress(40, "training")
    for i in with_notes:
        with_notes.note(loss=0.25, step=i)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 10
    assert re.fullmatch(r"training  \[#+\.+\] 4/40  loss 0.25  step 3  [\d.]+ s left", lines[0])
    assert lines[-1].startswith(f"training  [{24 * '#'}] 40/40  loss 0.25  step 39")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_in_a_terminal_takes_one_line(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("diffsim.runtime.observe.progress._tqdm", lambda *_: None)
    assert list(progress("abc", "letters")) == list("abc")
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\x1b[K\n")
    assert "3/3" in stream.getvalue()


def test_a_loop_that_ends_early_ends_its_line(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("diffsim.runtime.observe.progress._tqdm", lambda *_: None)
    for i in progress(100):
        if i == 3:
            break
    assert stream.getvalue().endswith("\x1b[K\n")
    assert "3/100" in stream.getvalue()


def test_things_without_a_length(capsys):
    assert list(progress(iter(range(5)), "some")) == [0, 1, 2, 3, 4]
    assert list(progress(iter(range(5)), "five", total=5)) == [0, 1, 2, 3, 4]
    assert "five" in capsys.readouterr().err
    with pytest.raises(ds.ArgumentError, match="cannot be looped over"):
        progress(3.5)


def test_losses_are_drawn(tmp_path):
    ds.tools.plot_loss(np.exp(-np.arange(30.0)), tmp_path / "a" / "loss.png", "loss [m]")
    assert Path(tmp_path / "a" / "loss.png").stat().st_size > 5000
    ds.tools.plot_loss([30.0, np.nan, 10.0], tmp_path / "loss.svg")
    assert b"<svg" in (tmp_path / "loss.svg").read_bytes()
    # Iterations are whole: the axis of so few has no ticks between them.
    assert b"<!-- 1.25 -->" not in (tmp_path / "loss.svg").read_bytes()
    assert b"<!-- 2 -->" in (tmp_path / "loss.svg").read_bytes()
    ds.tools.plot_loss([2.0], tmp_path / "one.svg")
    text = (tmp_path / "one.svg").read_text()
    assert "fill: #d62728" in text, "one point is a dot: there is no line"
    assert "<!-- 1 -->" in text
    assert "<!-- 1.02 -->" not in text
    for losses in ([], [[1.0, 2.0]]):
        with pytest.raises(ds.ArgumentError, match="one number for each iteration"):
            ds.tools.plot_loss(losses, tmp_path / "b.png")
