"""Makes one of sequences of steps that repeat: 1,000 time steps of 4 kernels are 4 boxes in a frame.

Two steps are alike if they are launches of one kernel with the same fields; two scopes, if what is inside
them is and their names differ in numbers only. Scopes are folded first, then each level from the left: of all
repetitions that begin at a place the one that covers most, and its own sequence in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from diffsim.ad.pictures.graph import Group, Link, Step

_LONGEST = 64  # steps of a sequence
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

Items = list[Step | Group]


def fold(items: Items) -> Items:
    """Return the steps with repetitions as groups that have a count, and steps alike as one."""
    inner = [_group_of(i, fold(i.items)) if isinstance(i, Group) else i for i in items]
    known: dict[Any, int] = {}
    kinds = np.array([known.setdefault(_signature(i), len(known)) for i in inner], np.int64)
    made: Items = []
    at = 0
    while at < len(inner):
        period, times = _longest_repetition(kinds[at:])
        group = inner[at : at + period * times]
        made.append(_repeated(group, period, times) if times > 1 else group[0])
        at += period * times
    return made


def _group_of(group: Group, items: Items) -> Group:
    return Group(group.name, items, group.metadata, group.count, group.keeps_empty)


def _signature(item: Step | Group) -> Any:
    if isinstance(item, Group):
        name = _NUMBER.sub("#", item.name)
        return name, item.count, tuple(map(_signature, item.items))
    links = [[(link.node, link.port) for link in ends] for ends in (item.reads, item.writes)]
    count = None if item.arguments is None else len(item.arguments)
    return item.name, item.kind, count, item.count, *map(tuple, links)


def _longest_repetition(kinds: np.ndarray) -> tuple[int, int]:
    """Return the length and the number of the repeated sequences that cover most, from the start on."""
    best = 1, 1
    for period in range(1, min(_LONGEST, len(kinds) // 2) + 1):
        # Quick: most starts repeat nothing.
        if kinds[period] != kinds[0]:
            continue
        same = kinds[period:] == kinds[:-period]
        run = len(same) if same.all() else int(np.argmin(same))
        times = run // period + 1
        if times > 1 and times * period > best[0] * best[1] * (best[1] > 1):
            best = period, times
    return best


def _repeated(items: Items, period: int, times: int) -> Step | Group:
    merged = [_merged(items[k::period]) for k in range(period)]
    if period > 1:
        return Group("", fold(merged), (), times)
    one = merged[0]
    one.count *= times
    return one


def _merged(alike: Items) -> Step | Group:
    """Return one item for several that are alike."""
    first, last = alike[0], alike[-1]
    if isinstance(first, Group):
        inside = [
            list(i) for i in zip(*(g.items for g in alike if isinstance(g, Group)), strict=True)
        ]
        name = first.name if first.name == last.name else f"{first.name} … {last.name}"
        same = all(g.metadata == first.metadata for g in alike if isinstance(g, Group))
        metadata = first.metadata if same else ()
        return Group(name, [_merged(i) for i in inside], metadata, first.count, first.keeps_empty)
    steps = [s for s in alike if isinstance(s, Step)]
    arguments = None
    if first.arguments is not None:
        columns = zip(*(s.arguments or () for s in steps), strict=True)
        arguments = tuple(_range_of(column) for column in columns)
    writes = tuple(
        Link(link.node, link.port, any(s.writes[k].overwrites for s in steps))
        for k, link in enumerate(first.writes)
    )
    return Step(first.name, arguments, first.kind, first.reads, writes, first.count)


def _range_of(texts: Sequence[str]) -> str:
    """Return arguments of several launches as one text."""
    if len(set(texts)) == 1:
        return texts[0]
    return f"{texts[0].split('…')[0]}…{texts[-1].split('…')[-1]}"
