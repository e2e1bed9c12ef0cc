"""Every example runs as a user runs it: in a process and an empty folder of its own, no display.

Few iterations and steps, so this says that the examples work, not how far a robot walks.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support import forked

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT = 300  # [s] one example; a first run also compiles
SHORT = ("--iterations", "4", "--steps", "100")
PICTURES = ("loss.png", "before.gif", "walk.gif", "walk.png")
RESULTS = (*PICTURES, "walk.html", "weights.npz")
KEPT = ("checkpoint.npz", "log.csv")


def environment():
    """What an example finds: no display, and the package of this checkout."""
    found = {key: value for key, value in os.environ.items() if "DISPLAY" not in key}
    root = str(EXAMPLES.parent)  # in front, for a checkout that is not installed
    found["PYTHONPATH"] = os.pathsep.join(
        [root, str(EXAMPLES), *filter(None, [os.getenv("PYTHONPATH")])]
    )
    return {**found, "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}


def start(script, *arguments, folder):
    """Start an example the way `python examples/script.py` does."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(script, *arguments, folder, status=0):
    """Run an example to its end; what it wrote to stdout and to stderr."""
    done = forked.run(
        EXAMPLES / script, *arguments, folder=folder, environment=environment(), warnings="error"
    )
    out, err = done.stdout, done.stderr
    assert done.returncode == status, f"{script} ended with {done.returncode}:\n{out}\n{err}"
    assert "Traceback" not in err
    return out, err


def check_image(path, frames):
    with Image.open(path) as image:
        assert getattr(image, "n_frames", 1) >= frames
        assert min(image.size) > 100
        for frame in range(frames):
            image.seek(frame)
            some = np.asarray(image.convert("RGB"))[::3, ::3].astype(int) @ (1 << 16, 1 << 8, 1)
            assert len(np.unique(some)) > 5, "nothing is drawn"


def check_results(folder):
    assert {path.name for path in folder.iterdir()} == {*RESULTS, *KEPT}
    for name in PICTURES:
        check_image(folder / name, frames=5 if name.endswith("gif") else 1)
    assert (folder / "walk.gif").stat().st_size < 3e6


def losses(out):
    return [float(text) for text in re.findall(r"loss\D*? (-?[\d.]+)", out)]


@pytest.fixture(scope="module")
def walks(tmp_path_factory, trained):
    """What the training of two robots printed on both streams, and its folder; the wheel has no legs."""
    folder = tmp_path_factory.mktemp("walks")
    wheel = EXAMPLES / "robots" / "wheel.json"
    out, err = run("mass_spring.py", wheel, *SHORT, "--out", "wheel", folder=folder)
    return {"walker": trained, "wheel": (out, err, folder / "wheel")}


@pytest.mark.parametrize("robot", ["walker", "wheel"])
def test_mass_spring(robot, walks):
    out, err, folder = walks[robot]
    first, last, best = (float(text) for text in re.findall(r"(?:first|last|best) (-?[\d.]+)", out))
    assert best < first, out
    assert best <= last
    assert out.startswith(robot)
    assert re.search(r"walked: before .* m, after .* m = .* body lengths in 0.4 s", out)
    assert err.count("loss") == 4  # the progress bar
    check_results(folder)
    for name in RESULTS:
        assert f"{Path(folder.name) / name}\n" in out


def test_mass_spring_by_default(tmp_path):
    out, _ = run("mass_spring.py", "--quick", folder=tmp_path)
    assert out.startswith("walker: ")
    check_results(tmp_path / "out" / "mass_spring")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training of the walker printed, on both streams, and the folder of what it wrote."""
    folder = tmp_path_factory.mktemp("trained")
    walker = EXAMPLES / "robots" / "walker.json"
    out, err = run("mass_spring.py", walker, *SHORT, "--seed", 5, "--out", "here", folder=folder)
    return out, err, folder / "here"


def test_mass_spring_is_deterministic_and_resumes(tmp_path, trained):
    """Two iterations, and two more, give the bits of four."""
    *_, kept = trained
    shorter = ("--iterations", 2, *SHORT[2:])
    run("mass_spring.py", *shorter, "--seed", 5, "--out", "more", folder=tmp_path)
    run("mass_spring.py", *SHORT, "--seed", 5, "--out", "more", "--resume", folder=tmp_path)
    run("mass_spring.py", *SHORT, "--seed", 6, "--out", "other", folder=tmp_path)
    folders = kept, tmp_path / "more", tmp_path / "other"
    one, more, other = (dict(np.load(folder / "weights.npz")) for folder in folders)
    for name, values in one.items():
        np.testing.assert_array_equal(values, more[name])
    assert any((one[name] != other[name]).any() for name in one)


def test_mass_spring_refuses_the_checkpoint_of_another_robot(tmp_path, trained):
    *_, kept = trained
    hopper = EXAMPLES / "robots" / "hopper.json"
    arguments = (hopper, *SHORT, "--resume", "--out")
    (tmp_path / "checkpoint.npz").write_text("no archive")
    for folder, message in (
        (kept, "parameter/w_position has the shape (32, 14, 2)"),
        (tmp_path, f"{tmp_path}/checkpoint.npz is not a file that ds.save has written"),
    ):
        _, err = run("mass_spring.py", *arguments, folder, folder=tmp_path, status=2)
        assert err.startswith(message)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for another process")
def test_ctrl_c_ends_the_training_and_draws(tmp_path):
    arguments = ("--iterations", "1000", "--steps", "100", "--out", "here")
    with start("mass_spring.py", *arguments, folder=tmp_path) as process:
        progress = process.stderr.readline()  # after the first 100 iterations
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    assert "100/1000" in progress
    assert "stopping after this iteration" in err
    assert int(re.search(r"trained: (\d+) iterations", out)[1]) < 1000
    check_results(tmp_path / "here")


def test_bad_robot_file(tmp_path):
    (tmp_path / "bad.json").write_text(json.dumps({"points": [[0, 0], [1, 0]]}))
    out, err = run("mass_spring.py", "bad.json", folder=tmp_path, status=2)
    assert out == ""
    assert err == 'bad.json: "springs" is missing; the format is described in robot_file.py\n'


def test_robot_that_flies_apart(tmp_path):
    stiff = {"a": 0, "b": 1, "muscle": True, "stiffness": 1e8}
    robot = {"points": [[0, 0], [0.1, 0.1]], "springs": [stiff]}
    (tmp_path / "stiff.json").write_text(json.dumps(robot))
    _, err = run("mass_spring.py", "stiff.json", *SHORT, folder=tmp_path, status=2)
    assert err.startswith("the robot flew apart; make its springs softer or its points heavier")


@pytest.mark.parametrize("option", ["--iterations=0", "--steps=0", "--learning-rate=nan"])
def test_bad_option(tmp_path, option):
    _, err = run("mass_spring.py", option, folder=tmp_path, status=2)
    name = option.partition("=")[0]
    assert f"argument {name}: 0 is too small" in err or f"{name} is between 0 and 1" in err


def test_gravity(tmp_path):
    arguments = ("--bodies", 8, "--steps", 200, "--out", "here")
    out, _ = run("gravity.py", *arguments, folder=tmp_path)
    assert float(re.search(r"drift at most (\S+) of it", out)[1]) < 1e-3
    check_image(tmp_path / "here" / "gravity.gif", frames=11)
    assert (tmp_path / "here" / "gravity.html").stat().st_size < 2e6


def test_liquid(tmp_path):
    """Both ways give one gradient, and the budget holds."""
    out, _ = run("liquid.py", "--steps", 100, "--memory", "0.25", folder=tmp_path)
    rows = [line.split() for line in out.splitlines() if line.startswith("ds.ad.")]
    assert [row[0] for row in rows] == ["ds.ad.checkpoint", "ds.ad.grad_for"]
    for mine, other in zip(rows[0][1:4], rows[1][1:4], strict=True):
        assert float(mine) == pytest.approx(float(other), abs=1e-8)
    assert abs(float(rows[0][2])) > 1e-3
    assert int(re.search(r"at most (\d+) bytes", out)[1]) <= 250_000
    check_image(tmp_path / "out" / "liquid" / "liquid.gif", frames=20)
    assert (tmp_path / "out" / "liquid" / "liquid.html").exists()


def test_minimize(tmp_path):
    out, _ = run("minimize.py", folder=tmp_path)
    falling = losses(out)
    assert len(falling) == 11
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] < 1e-3
    assert float(re.search(r"gravity (\S+) m/s²$", out.strip())[1]) == pytest.approx(9.81, abs=0.1)
