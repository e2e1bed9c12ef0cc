"""Read and check a robot file for `mass_spring.py`.

A robot is points joined by damped springs; some springs are muscles. The file is JSON:

    {
      "name": "hopper",
      "mass": 0.1,            mass of each point [kg]
      "stiffness": 1000,      of every spring that names none [N/m]
      "damping": 2.0,         along every spring that names none [N s/m]
      "amplitude": 0.2,       of every muscle that names none: share of the rest length, 0..1
      "points": [[0, 0], [0.2, 0], [0.1, 0.2]],                       x, y [m]; the ground is y = 0
      "springs": [{"a": 0, "b": 1}, {"a": 1, "b": 2, "muscle": true, "stiffness": 2000}, ...]
    }

Only "points" and "springs" have to be there. A spring joins the points number "a" and "b"
(the first is 0) and is at rest as drawn. Whatever is wrong with a file becomes one
`RobotError` that says where and what to do. Start with `load_robot` at the end.
"""

import difflib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DEFAULTS = {"mass": 0.1, "stiffness": 1000.0, "damping": 2.0, "amplitude": 0.2}
ROBOT_KEYS = ("name", *DEFAULTS, "points", "springs")
SPRING_KEYS = ("a", "b", "muscle", "stiffness", "damping", "amplitude")
MAX_POINTS = 64  # the controller's kernel has one term a point


class RobotError(ValueError):
    """A robot file that cannot be used; the message names the file, the place and the cure."""


@dataclass(frozen=True)
class Robot:
    """A checked robot: n points and m springs, k of them muscles.

    Args:
        name: for titles.
        mass: of each point [kg].
        points: where they start, (n, 2) [m].
        ends: the two points of each spring, (m, 2), integers.
        rest: length of each spring as drawn, (m,) [m].
        stiffness: (m,) [N/m].
        damping: along the spring, (m,) [N s/m].
        amplitude: a muscle changes its rest length by at most this share, (m,); 0: no muscle.
        muscle: which muscle a spring is, (m,), 0..k-1; 0 for the others, whose amplitude is 0.
    """

    name: str
    mass: float
    points: np.ndarray
    ends: np.ndarray
    rest: np.ndarray
    stiffness: np.ndarray
    damping: np.ndarray
    amplitude: np.ndarray
    muscle: np.ndarray

    @property
    def muscle_count(self) -> int:
        """How many of the springs are muscles."""
        return int(np.count_nonzero(self.amplitude))

    @property
    def length(self) -> float:
        """How long or, if that is more, how tall the body is [m]."""
        return float(np.ptp(self.points, axis=0).max())


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make the dict of one JSON object; a key given twice would hide its first value."""
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise RobotError(f'the key "{key}" is there twice in one object; delete one of them')
        table[key] = value
    return table


def check_keys(where: str, table: Any, known: tuple[str, ...]) -> None:
    """Refuse anything but an object whose keys are all known."""
    if not isinstance(table, dict):
        raise RobotError(f"{where}: expected an object {{...}}, found {show(table)}")
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(known)}"
            raise RobotError(f'{where}: unknown key "{key}"; {hint}')


def show(value: Any) -> str:
    """Write a JSON value as the file does, cut to a handy length."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def number(where: str, value: Any) -> float:
    """Check that a JSON value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RobotError(f"{where}: expected a number, found {show(value)}")
    if not abs(value) < math.inf:
        raise RobotError(f"{where}: {show(value)} is not a finite number")
    if abs(value) > 1e9:
        raise RobotError(f"{where}: {show(value)} is too large; at most 1e9 works")
    return float(value)


def constant(where: str, key: str, value: Any) -> float:
    """Check one of the constants that `DEFAULTS` lists."""
    value = number(where, value)
    if key == "amplitude" and not 0 < value < 1:
        raise RobotError(f"{where}: {value:g} is not between 0 and 1 (a share of the rest length)")
    if key == "damping" and value < 0:
        raise RobotError(f"{where}: {value:g} is negative; damping is 0 or more")
    if key in {"mass", "stiffness"} and value <= 0:
        raise RobotError(f"{where}: {value:g} is not positive")
    return value


def read_points(items: Any) -> np.ndarray:
    """Check "points"; (n, 2) [m]."""
    if not isinstance(items, list) or len(items) < 2:
        raise RobotError(f"points: expected a list of 2 or more [x, y], found {show(items)}")
    if len(items) > MAX_POINTS:
        raise RobotError(f"points: {len(items)} points, at most {MAX_POINTS} work; use fewer")
    points = np.zeros((len(items), 2))
    for i, item in enumerate(items):
        if not isinstance(item, list) or len(item) != 2:
            raise RobotError(f"points[{i}]: expected [x, y], found {show(item)}")
        points[i] = [number(f"points[{i}][{axis}]", value) for axis, value in enumerate(item)]
        if points[i, 1] < 0:
            raise RobotError(
                f"points[{i}]: y = {points[i, 1]:g} is below the ground (y = 0); move it up"
            )
    return points


def read_spring(where: str, item: Any, base: dict[str, float], points: np.ndarray) -> dict:
    """Check one spring; its ends, constants and rest length."""
    check_keys(where, item, SPRING_KEYS)
    spring = {key: constant(f"{where}.{key}", key, item.get(key, base[key])) for key in base}
    for end in ("a", "b"):
        if end not in item:
            raise RobotError(f'{where}: "{end}" is missing; a spring joins points "a" and "b"')
        index, last = item[end], len(points) - 1
        if isinstance(index, bool) or not isinstance(index, int):
            raise RobotError(f"{where}.{end}: expected a point's number, found {show(index)}")
        if not 0 <= index <= last:
            raise RobotError(
                f"{where}.{end}: {show(index)} is not a point "
                f"(the robot has {len(points)} points, 0..{last})"
            )
        spring[end] = index
    if spring["a"] == spring["b"]:
        raise RobotError(f"{where}: joins point {spring['a']} to itself; change a or b")
    muscle = item.get("muscle", False)
    if not isinstance(muscle, bool):
        raise RobotError(f"{where}.muscle: expected true or false, found {show(muscle)}")
    if not muscle and "amplitude" in item:
        raise RobotError(f'{where}.amplitude: only a muscle has one; add "muscle": true')
    spring["amplitude"] = spring["amplitude"] if muscle else 0.0
    spring["rest"] = math.dist(points[spring["a"]], points[spring["b"]])
    if spring["rest"] < 1e-6:
        raise RobotError(
            f"{where}: has no length (points {spring['a']} and {spring['b']} are at the same "
            "place); move one of them"
        )
    return spring


def read_springs(items: Any, base: dict[str, float], points: np.ndarray) -> list[dict]:
    """Check "springs": each alone, then that none is there twice and that all points hang on."""
    if not isinstance(items, list) or not items:
        raise RobotError(f"springs: expected a list of springs, found {show(items)}")
    springs, seen = [], {}
    group = list(range(len(points)))  # of each point; a spring makes two groups one
    for s, item in enumerate(items):
        spring = read_spring(f"springs[{s}]", item, base, points)
        a, b = spring["a"], spring["b"]
        first = seen.setdefault(frozenset((a, b)), s)
        if first != s:
            raise RobotError(
                f"springs[{s}]: joins points {a} and {b} again, as springs[{first}] does; "
                "delete one of them"
            )
        group = [group[a] if g == group[b] else g for g in group]
        springs.append(spring)
    for i, g in enumerate(group):
        if g != group[0]:
            raise RobotError(f"points[{i}]: no springs lead from point 0 to it; add one")
    if not any(spring["amplitude"] for spring in springs):
        raise RobotError('springs: the robot has no muscle; give some springs "muscle": true')
    return springs


def build_robot(data: Any, name: str) -> Robot:
    """Check a robot file's content."""
    check_keys("the file", data, ROBOT_KEYS)
    for key in ("points", "springs"):
        if key not in data:
            raise RobotError(f'"{key}" is missing; the format is described in robot_file.py')
    name = data.get("name", name)
    if not isinstance(name, str):
        raise RobotError(f"name: expected a text, found {show(name)}")
    base = {key: constant(key, key, data.get(key, value)) for key, value in DEFAULTS.items()}
    mass = base.pop("mass")
    points = read_points(data["points"])
    springs = read_springs(data["springs"], base, points)

    def column(key: str) -> np.ndarray:
        return np.array([spring[key] for spring in springs], np.float32)

    amplitude = column("amplitude")
    return Robot(
        name=name,
        mass=mass,
        points=points.astype(np.float32),
        ends=np.array([(spring["a"], spring["b"]) for spring in springs], np.int32),
        rest=column("rest"),
        stiffness=column("stiffness"),
        damping=column("damping"),
        amplitude=amplitude,
        muscle=np.where(amplitude > 0, np.cumsum(amplitude > 0) - 1, 0).astype(np.int32),
    )


def load_robot(path: Path) -> Robot:
    """Read a robot file, or raise `RobotError`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RobotError(f"{path}: there is no such file; check the path") from None
    except OSError as error:
        raise RobotError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RobotError(f"{path}: is no text: byte {error.start} is not UTF-8") from None
    try:
        return build_robot(json.loads(text, object_pairs_hook=unique_keys), path.stem)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise RobotError(f"{path}: {place}: no valid JSON: {error.msg}") from None
    except RecursionError:
        raise RobotError(f"{path}: no valid JSON: nested too deep") from None
    except RobotError as error:
        raise RobotError(f"{path}: {error}") from None
    except ValueError as error:  # a number of thousands of digits
        raise RobotError(f"{path}: no valid JSON: {error}") from None
