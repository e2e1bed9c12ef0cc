"""Read and check the JSON file of a billiard table for `billiards.py`; `tables/rack.json` is one.

Whatever is wrong with a file becomes one `TableError` that says where and what is needed. The keys are those
of `Table`.
"""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent / "tables"


class TableError(ValueError):
    """A file of a table that cannot be used; the message says where and what to do."""


@dataclass(frozen=True)
class Table:
    """The things on a table, whose lower left corner is the origin: the keys of its JSON file.

    Args:
        size: width and height between the cushions [m].
        radius: of the balls [m].
        restitution: share of the speed against each other that two balls keep, 0 to 1.
        cushion: share of the speed against a cushion that a ball keeps, 0 to 1.
        shot: velocity of ball 0 at the start [m/s].
        target: the ball that is to reach the spot.
        spot: where it is to be at the end [m].
        balls: where they lie [m].
    """

    size: list[float]
    radius: float
    restitution: float
    cushion: float
    shot: list[float]
    target: int
    spot: list[float]
    balls: list[list[float]]

    def check(self) -> None:
        """Raise a TableError at the first thing that is wrong."""
        pairs = {"size": self.size, "shot": self.shot, "spot": self.spot}
        need(isinstance(self.balls, list) and len(self.balls) > 0, "balls", "a list of [x, y]")
        for name, pair in {**pairs, **{f"balls[{i}]": b for i, b in enumerate(self.balls)}}.items():
            is_pair = isinstance(pair, list) and len(pair) == 2
            need(is_pair and all(map(is_number, pair)), name, "two numbers [x, y]")
        need(min(self.size) > 0, "size", "two positive numbers")
        for name in ("radius", "restitution", "cushion"):
            value = getattr(self, name)
            need(is_number(value) and 0 <= value <= 1, name, "a number from 0 to 1")
        need(0 < self.radius < min(self.size) / 2, "radius", "so small that a ball fits in")
        last = len(self.balls) - 1
        is_ball = type(self.target) is int and 0 <= self.target <= last
        need(is_ball, "target", f"the number of a ball, 0 to {last}")
        for i, ball in enumerate(self.balls):
            inside = all(
                self.radius <= x <= s - self.radius for x, s in zip(ball, self.size, strict=True)
            )
            need(inside, f"balls[{i}]", f"on the table: {ball} touches a cushion or is beyond it")
            for j in range(i):
                apart = math.dist(ball, self.balls[j]) >= 2 * self.radius - 1e-9
                need(apart, f"balls[{i}]", f"beside balls[{j}]: at {ball} they overlap")


def is_number(value: Any) -> bool:
    """Tell whether a value of a JSON file is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def need(good: bool, where: str, what: str) -> None:
    """Raise a TableError unless a value is as it has to be."""
    if not good:
        raise TableError(f'"{where}" has to be {what}')


def load_table(path: Path) -> Table:
    """Read a table from a JSON file."""
    known = [f.name for f in fields(Table)]
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        need(isinstance(given, dict), "the file", "one object {...}")
        for key in given:
            near = difflib.get_close_matches(key, known, 1) or [", ".join(known)]
            need(key in known, key, f"one of the known keys; meant may be: {near[0]}")
        for key in known:
            need(key in given, key, f"there; {TABLES / 'rack.json'} has all keys")
        table = Table(**given)
        table.check()
    except OSError as error:
        raise TableError(
            f"{path}: {error.strerror}; a table to start from is {TABLES / 'rack.json'}"
        ) from None
    except ValueError as error:  # of JSON, of Unicode, of a table
        raise TableError(f"{path}: {error}") from None
    return table
