"""Robot files: the shipped ones load, and each mistake in one is named, with its place and cure."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from examples.robot_file import MAX_POINTS, RobotError, load_robot

ROBOTS = sorted((Path(__file__).resolve().parents[2] / "examples" / "robots").glob("*.json"))
TRIANGLE = {
    "points": [[0, 0], [1, 0], [0, 1]],
    "springs": [{"a": 0, "b": 1}, {"a": 1, "b": 2, "muscle": True}, {"a": 2, "b": 0}],
}


def triangle(**changes):
    return {**TRIANGLE, **changes}


def springs(*more, **changes):
    """The triangle with its first spring changed, or with more springs."""
    first, *rest = TRIANGLE["springs"]
    return triangle(springs=[{**first, **changes}, *rest, *more])


# (a file's content as JSON or as text, what the message says after the file's name)
WRONG = [
    # no JSON
    ("", "line 1, column 1: no valid JSON: Expecting value"),
    ('{\n  "points": [[0, 0] [0, 1]]\n}', "line 2, column 21: no valid JSON: "),
    ("{'points': []}", "line 1, column 2: no valid JSON: "),
    ('{"points": [}', "line 1, column 13: no valid JSON: Expecting value"),
    ("[" * 100_000, "no valid JSON: nested too deep"),
    ('{"mass": 1' + "0" * 5000 + "}", "no valid JSON: "),
    ('{"mass": 1, "mass": 2}', 'the key "mass" is there twice in one object; delete one of them'),
    # the file as a whole
    ([], "the file: expected an object {...}, found []"),
    ({}, '"points" is missing; the format is described in robot_file.py'),
    ({"points": [[0, 0], [1, 0]]}, '"springs" is missing; the format is described'),
    (triangle(sprigns=[]), 'the file: unknown key "sprigns"; did you mean "springs"?'),
    (triangle(colour=1), 'the file: unknown key "colour"; known keys: name, mass, stiffness, '),
    (triangle(name=3), "name: expected a text, found 3"),
    (triangle(mass=0), "mass: 0 is not positive"),
    (triangle(mass="heavy"), 'mass: expected a number, found "heavy"'),
    (triangle(stiffness=float("nan")), "stiffness: NaN is not a finite number"),
    (triangle(damping=-1), "damping: -1 is negative; damping is 0 or more"),
    (triangle(amplitude=1.5), "amplitude: 1.5 is not between 0 and 1 (a share of the rest length)"),
    # points
    (triangle(points=5), "points: expected a list of 2 or more [x, y], found 5"),
    (triangle(points=[[0, 0]]), "points: expected a list of 2 or more [x, y], found [[0, 0]]"),
    (triangle(points=[[0, 0]] * (MAX_POINTS + 1)), f"points: 65 points, at most {MAX_POINTS} work"),
    (triangle(points=[[0, 0], [1, 0, 0]]), "points[1]: expected [x, y], found [1, 0, 0]"),
    (triangle(points=[[0, 0], 7]), "points[1]: expected [x, y], found 7"),
    (triangle(points=[[0, 0], [1, None]]), "points[1][1]: expected a number, found null"),
    (triangle(points=[[0, 0], [True, 0]]), "points[1][0]: expected a number, found true"),
    (triangle(points=[[0, 0], [1e400, 0]]), "points[1][0]: Infinity is not a finite number"),
    (triangle(points=[[0, 0], [10**400, 0]]), "points[1][0]: 1000"),
    (triangle(points=[[0, 0], [1, -0.2]]), "points[1]: y = -0.2 is below the ground (y = 0); "),
    # springs
    (triangle(springs={}), "springs: expected a list of springs, found {}"),
    (triangle(springs=[]), "springs: expected a list of springs, found []"),
    (triangle(springs=[[0, 1]]), "springs[0]: expected an object {...}, found [0, 1]"),
    (springs({"a": 0}), 'springs[3]: "b" is missing; a spring joins points "a" and "b"'),
    (springs(b=17), "springs[0].b: 17 is not a point (the robot has 3 points, 0..2)"),
    (springs(a=-1), "springs[0].a: -1 is not a point (the robot has 3 points, 0..2)"),
    (springs(a=1.0), "springs[0].a: expected a point's number, found 1.0"),
    (springs(a=True), "springs[0].a: expected a point's number, found true"),
    (springs(b=0), "springs[0]: joins point 0 to itself; change a or b"),
    (springs({"a": 1, "b": 0}), "springs[3]: joins points 1 and 0 again, as springs[0] does; "),
    (springs(muscel=True), 'springs[0]: unknown key "muscel"; did you mean "muscle"?'),
    (springs(muscle=1), "springs[0].muscle: expected true or false, found 1"),
    (springs(amplitude=0.1), 'springs[0].amplitude: only a muscle has one; add "muscle": true'),
    (springs(stiffness=0), "springs[0].stiffness: 0 is not positive"),
    (springs(stiffness=2e9), "springs[0].stiffness: 2000000000.0 is too large; at most 1e9 works"),
    (springs(damping="x" * 99), 'springs[0].damping: expected a number, found "xxxxx'),
    (springs(damping=None), "springs[0].damping: expected a number, found null"),
    # the robot as a whole
    (
        triangle(points=[[0, 0], [0, 0], [0, 1]]),
        "springs[0]: has no length (points 0 and 1 are at the same place); move one of them",
    ),
    (
        triangle(points=[*TRIANGLE["points"], [2, 0]]),
        "points[3]: no springs lead from point 0 to it; add one",
    ),
    (
        triangle(springs=[{"a": 0, "b": 1}, {"a": 1, "b": 2}]),
        'springs: the robot has no muscle; give some springs "muscle": true',
    ),
]


@pytest.mark.parametrize(("content", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_mistake_is_named(tmp_path, content, message):
    path = tmp_path / "robot.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(RobotError, match="^" + re.escape(f"{path}: {message}")):
        load_robot(path)


def test_messages_are_one_short_line(tmp_path):
    path = tmp_path / "robot.json"
    for content, _ in WRONG:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(RobotError) as caught:
            load_robot(path)
        message = str(caught.value).removeprefix(str(path))
        assert "\n" not in message
        assert len(message) < 160


def test_file_that_cannot_be_read(tmp_path):
    path = tmp_path / "no.json"
    with pytest.raises(RobotError, match=r"no\.json: there is no such file; check the path$"):
        load_robot(path)
    with pytest.raises(RobotError, match=r"cannot be read: Is a directory$"):
        load_robot(tmp_path)
    path.write_bytes(b'{"name": "\xff"}')
    with pytest.raises(RobotError, match=r"no\.json: is no text: byte 10 is not UTF-8$"):
        load_robot(path)


def test_defaults_and_what_overrides_them(tmp_path):
    path = tmp_path / "robot.json"
    path.write_text(json.dumps(springs(stiffness=7) | {"damping": 3}), encoding="utf-8-sig")
    robot = load_robot(path)
    assert robot.name == "robot"
    assert robot.muscle_count == 1
    assert robot.length == 1
    assert robot.stiffness.tolist() == [7, 1000, 1000]
    assert robot.damping.tolist() == [3, 3, 3]
    assert robot.amplitude.tolist() == pytest.approx([0, 0.2, 0])
    assert robot.muscle.tolist() == [0, 0, 0]
    assert robot.ends.tolist() == [[0, 1], [1, 2], [2, 0]]
    np.testing.assert_allclose(robot.rest, [1, 2**0.5, 1], rtol=1e-6)


def test_muscles_are_numbered_in_order(tmp_path):
    path = tmp_path / "robot.json"
    content = triangle(springs=[{**spring, "muscle": True} for spring in TRIANGLE["springs"]])
    path.write_text(json.dumps(content))
    assert load_robot(path).muscle.tolist() == [0, 1, 2]


@pytest.mark.parametrize("path", ROBOTS, ids=lambda path: path.stem)
def test_shipped_robot_loads(path):
    robot = load_robot(path)
    assert robot.name == path.stem
    assert robot.muscle_count >= 3
    assert robot.points[:, 1].min() == 0  # it stands on the ground
    assert len(robot.rest) == len(robot.ends) == len(robot.muscle)


def test_enough_robots_are_shipped():
    assert len(ROBOTS) >= 4
