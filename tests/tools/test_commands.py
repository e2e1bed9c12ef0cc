"""The program `diffsim`: its examples, `doctor`, the cache, and one line for each mistake."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from diffsim import tracebacks
from diffsim.commands import cache, demo, doctor
from diffsim.commands.failure import Failure
from diffsim.commands.main import main

ROOT = Path(__file__).resolve().parents[2]


def test_usage(capsys):
    assert main(["--help"]) == 0
    assert main([]) == 2
    help_, again = capsys.readouterr().out.split("diffsim: differentiable physics")[1:]
    assert help_ == again
    assert "diffsim demo NAME [options]  run an example" in help_


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"diffsim \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_list_has_the_first_line_of_each_example(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(re.match(r"gravity +Gravity without a formula", line) for line in lines)
    assert not any(line.startswith(("robot_file", "drawing")) for line in lines)
    assert any(re.match(r"ising +Magnets", line) for line in lines[lines.index("classics:") :])
    for words in (["demo"], ["demo", "--list"]):
        assert main(words) == 0
        assert capsys.readouterr().out.splitlines() == lines


def test_examples_in_folders_run_by_their_names(examples, tmp_path, capsys):
    examples("above", "print('not this one')")
    (tmp_path / "inner").mkdir()
    body = '"""Below."""\nimport beside\n\nif __name__ == "__main__":\n    print(beside.WORD, __file__)\n'
    (tmp_path / "inner" / "below.py").write_text(body)
    (tmp_path / "inner" / "beside.py").write_text('"""No example."""\nWORD = "found"\n')
    assert main(["demo", "below"]) == 0
    assert capsys.readouterr().out == f"found {tmp_path / 'inner' / 'below.py'}\n"
    assert main(["list"]) == 0
    assert "\ninner:\nbelow  Below.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("dmeo", "there is no command 'dmeo'; did you mean demo?"),
        ("xyzzy", "there is no command 'xyzzy'; there are demo, list, doctor, cache"),
        ("list all", "list takes no 'all'"),
        ("demo --steps 3", "name an example: diffsim demo NAME; `diffsim list` shows all"),
        ("demo gravty", "there is no example 'gravty'; did you mean gravity? `diffsim list` shows all"),
        ("demo robot_file", "there is no example 'robot_file'; `diffsim list` shows all"),
        ("cache", "write `diffsim cache info` or `diffsim cache clear`"),
        ("cache wipe", "write `diffsim cache info` or `diffsim cache clear`"),
        ("doctor now", "doctor takes no 'now'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(words, message, capsys):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"diffsim: {message}\n")


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """A folder of examples of our own."""
    monkeypatch.setattr(demo, "folder", lambda: tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.delenv("MPLBACKEND")

    def write(name, body):
        text = f'"""The example {name}."""\n{{}}\n\nif __name__ == "__main__":\n    {body}\n'
        (tmp_path / f"{name}.py").write_text(text.format("import os, sys, helper_of_examples"))

    (tmp_path / "helper_of_examples.py").write_text('"""No example."""\nWORD = "helped"\n')
    return write


def test_examples_run_as_scripts(examples, capsys):
    examples("show_all", "print(sys.argv, os.environ.get('MPLBACKEND'), helper_of_examples.WORD)")
    assert main(["demo", "show-all", "--steps", "3"]) == 0
    assert capsys.readouterr().out.endswith("show_all.py', '--steps', '3'] Agg helped\n")
    assert main(["list"]) == 0
    assert "show_all  The example show_all.\n" in capsys.readouterr().out


def test_it_says_what_an_example_has_written(examples, capsys):
    examples("draw", "os.makedirs('out/draw'); open('out/draw/loss.png', 'w').close()")
    assert main(["demo", "draw"]) == 0
    assert capsys.readouterr().out == "Written:\n  out/draw/loss.png\n"
    examples("put", "os.makedirs(sys.argv[2]); open(sys.argv[2] + '/a.png', 'w').close()")
    assert main(["demo", "put", "--out", "there"]) == 0
    assert capsys.readouterr().out == "Written:\n  there/a.png\n"


def test_a_window_is_asked_for(examples, capsys):
    examples("look", "print(os.environ.get('MPLBACKEND'))")
    assert main(["demo", "look.py", "--gui"]) == 0
    assert capsys.readouterr().out == "None\n"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("import a_package_of_nobody", 1, "needs the package a_package_of_nobody; install it"),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no such image')", 1, "diffsim: no such image"),
        ("sys.exit()", 0, ""),
        ("import diffsim; diffsim.init(arch=3)", 1, "OptionError: 3 is not a backend"),
        ("raise KeyboardInterrupt", 130, "stopped"),
    ],
)
def test_examples_that_end_early(examples, capsys, body, status, message):
    examples("one", body)
    assert main(["demo", "one"]) == status
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_frames_of_examples_are_those_of_a_user(tmp_path):
    package = Path(tracebacks.__file__).parent
    assert not tracebacks.IS_OWN[str(package / "examples" / "wave.py")]
    assert tracebacks.IS_OWN[str(package / "tools" / "wave.py")]


# ---- the cache


def test_cache_info_and_clear(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DIFFSIM_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["cache", "info"]) == 0
    assert ": 0 entries, 0 bytes, of at most 512 MiB" in capsys.readouterr().out
    for number in range(3):
        cache.open_cache().put(f"{number}a" + 62 * "0", b"code" * 100)
    mine = tmp_path / "cache" / "0a" / "notes.txt"
    mine.write_text("a file of somebody's")
    assert main(["cache", "info"]) == 0
    assert ": 3 entries, 1.41 KiB, of" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert ": removed 3 of 3 entries" in capsys.readouterr().out
    assert cache.open_cache().sizes() == []
    assert mine.exists()


def test_no_place_for_a_cache(monkeypatch, capsys):
    monkeypatch.setenv("DIFFSIM_CACHE_DIR", "~nobody_of_this_name/cache")
    assert main(["cache", "info"]) == 1
    assert "name a folder in the environment variable DIFFSIM_CACHE_DIR" in capsys.readouterr().err


# ---- doctor


def test_doctor(cpu, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DIFFSIM_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for part in (
        r"Python +3\.\d+", r"needed +numpy \d", r"processor +\w+", r"threads +\d+ for parallel loops",
        r"not used: can be written by other users", r"display +\S", r"self-test on cpu", r"compiling +\d+ ms",
        r"gradient +\d+ µs", r"agree with the closed form, to \de-1\d", r"everything works",
    ):  # fmt: skip
        assert re.search(part, out), (part, out)


def test_doctor_finds_a_wrong_gradient(cpu, capsys, monkeypatch):
    monkeypatch.setattr(doctor.np, "abs", lambda _: doctor.np.array([1e-3]))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAILED    the gradient differs from the closed form by 1.0e-03; please report it" in out
    assert out.endswith("something is wrong here: see above\n")


# ---- as users have it


def run(folder, *words, path):
    return subprocess.run(
        [sys.executable, "-m", "diffsim", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(path)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_the_wheel_has_what_is_needed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["diffsim"] == "diffsim.commands.main:main"
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["include"] == ["/diffsim", "/examples"]
    assert wheel["sources"] == {"examples": "diffsim/examples"}


def test_an_installed_package_runs_its_examples(tmp_path):
    """From a wheel, in an empty folder; skipped where hatchling, which builds it, is not installed."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    (tmp_path / "empty").mkdir()
    done = run(tmp_path / "empty", "demo", "minimize", path=tmp_path / "installed")
    assert done.returncode == 0, done.stderr
    assert "gravity" in done.stdout
    done = run(tmp_path / "empty", "demo", "mass_spring", "no.json", path=tmp_path / "installed")
    assert done.returncode == 2
    assert done.stderr == "no.json: there is no such file; check the path\n"


def test_no_examples_beside_the_package(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "_PACKAGE", tmp_path)
    with pytest.raises(Failure, match="the examples are missing beside"):
        demo.folder()
