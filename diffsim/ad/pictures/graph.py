"""The contents of a tape's picture: steps, the fields between them, and groups of steps.

`Collector` is the `Picture` that entries draw themselves into (`ad/record/entry.py`); `fold.py` makes one of
sequences that repeat; `dot.py` and `layout.py` draw the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diffsim.ad.record.entry import Entry, Use
from diffsim.runtime.fields.field import Field


@dataclass(frozen=True, slots=True)
class Link:
    """That a step reads or writes a field.

    Attributes:
        node: of the field.
        port: the parameter that the field was given for; "" if the kernel captured it.
        overwrites: whether an earlier step on the tape had used what it stores into.
    """

    node: int
    port: str = ""
    overwrites: bool = False


@dataclass(slots=True)
class Step:
    """One launch, copy, write from Python, or function with a gradient of its own; or several alike.

    Attributes:
        name: of the kernel.
        arguments: those that are numbers, and the names of the others.
        kind: "kernel" or "other".
        count: how many it stands for.
    """

    name: str
    arguments: tuple[str, ...] | None
    kind: str
    reads: tuple[Link, ...]
    writes: tuple[Link, ...]
    count: int = 1

    @property
    def label(self) -> str:
        text = self.name if self.arguments is None else f"{self.name}({', '.join(self.arguments)})"
        return text if self.count == 1 else f"{text} × {self.count}"


@dataclass(slots=True)
class Group:
    """Steps in a frame: those of a scope, or (without a name) those of a sequence that repeats."""

    name: str
    items: list[Step | Group] = field(default_factory=list)
    metadata: tuple[tuple[str, str], ...] = ()
    count: int = 1
    keeps_empty: bool = False

    @property
    def label(self) -> str:
        times = f"× {self.count}" if self.count > 1 else ""
        return " ".join(filter(None, (self.name, times)))


@dataclass(slots=True)
class FieldNode:
    """A field or array.

    Attributes:
        role: "input", "output" or "".
        is_written: whether a step writes it.
    """

    label: str
    has_grad: bool
    role: str = ""
    is_written: bool = False


@dataclass(slots=True)
class Graph:
    """Steps in the order of the tape, and the fields that they use, by their numbers."""

    items: list[Step | Group]
    fields: dict[int, FieldNode]
    direction: str = "LR"


def steps_of(items: Iterable[Step | Group]) -> Iterator[Step]:
    """Yield all steps, those inside groups too."""
    for item in items:
        if isinstance(item, Step):
            yield item
        else:
            yield from steps_of(item.items)


class Collector:
    """Collects steps and groups from entries, and finds names for the fields.

    Args:
        labels: names that the program gives, by the identity of the field or array.
        longest: whether of several names for one field the longest is shown; else the first.
        scopes: whether groups are kept.
    """

    def __init__(self, labels: Mapping[int, str], *, longest: bool, scopes: bool) -> None:
        self.items: list[Step | Group] = []
        self.fields: dict[int, FieldNode] = {}
        self._labels = labels
        self._longest = longest
        self._scopes = scopes
        self._open: list[Group] = []
        self._numbers: dict[int, int] = {}
        self._names: dict[int, list[str]] = {}
        self._used: dict[int, set[int | None]] = {}
        self._things: list[Any] = []  # alive, so that identities stay unique

    def step(
        self,
        name: str,
        reads: Iterable[Use],
        writes: Iterable[Use],
        arguments: tuple[str, ...] | None = None,
        kind: str = "other",
    ) -> None:
        reads, writes = list(reads), list(writes)
        read = self._links(reads, {})
        over = {id(u.thing): True for u in writes if u.stores and self._was_used(u)}
        written = self._links(writes, over)
        for use in (*reads, *writes):
            self._used[id(use.thing)].add(use.row)
        for link in written:
            self.fields[link.node].is_written = True
        self._add(Step(name, arguments, kind, read, written))

    def begin_group(self, name: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        """Draw what follows within a frame."""
        if self._scopes:
            self._open.append(Group(name, metadata=metadata))

    def end_group(self, *, keeps_empty: bool = False) -> None:
        """End the group begun last, if there is one."""
        if self._open:
            group = self._open.pop()
            group.keeps_empty = keeps_empty
            if group.items or keeps_empty:
                self._add(group)

    def finish(self) -> None:
        """End the groups that the program did not end, and choose the fields' names."""
        while self._open:
            self.end_group()
        for number, names in self._names.items():
            label = max(names, key=len) if self._longest else names[0]
            self.fields[number].label = label

    def node(self, thing: Any, port: str = "") -> int:
        """Return the number of a field's node, made at its first use."""
        # By identity: NumPy arrays are not hashable.
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self._numbers)
            self._things.append(thing)
            self._used[id(thing)] = set()
            is_field = isinstance(thing, Field)
            self.fields[number] = FieldNode("", is_field and thing.adjoint is not None)
            given = self._labels.get(id(thing))
            found = thing.name if is_field else port or "array"
            self._names[number] = [given or found]
        if port and id(thing) not in self._labels:
            self._names[number].append(port)
        return number

    def _links(self, uses: Sequence[Use], over: Mapping[int, bool]) -> tuple[Link, ...]:
        # One arrow for each field, though a kernel may use it in many places.
        made = {
            id(u.thing): Link(self.node(u.thing, u.port), u.port, over.get(id(u.thing), False))
            for u in reversed(uses)
        }
        return tuple(made[id(u.thing)] for u in {id(u.thing): u for u in uses}.values())

    def _was_used(self, use: Use) -> bool:
        self.node(use.thing, use.port)
        rows = self._used[id(use.thing)]
        return bool(rows) and (use.row is None or None in rows or use.row in rows)

    def _add(self, item: Step | Group) -> None:
        (self._open[-1].items if self._open else self.items).append(item)


def collect(entries: Iterable[Entry], collector: Collector) -> None:
    """Let all entries draw themselves."""
    for entry in entries:
        entry.draw(collector)
    collector.finish()


def without(graph: Graph, hidden: set[int]) -> Graph:
    """Return the graph without some fields, and without the arrows to and from them."""

    def kept(item: Step | Group) -> Step | Group:
        if isinstance(item, Group):
            inside = [kept(i) for i in item.items]
            return Group(item.name, inside, item.metadata, item.count, item.keeps_empty)
        reads, writes = (
            tuple(link for link in links if link.node not in hidden)
            for links in (item.reads, item.writes)
        )
        return Step(item.name, item.arguments, item.kind, reads, writes, item.count)

    fields = {n: f for n, f in graph.fields.items() if n not in hidden}
    return Graph([kept(i) for i in graph.items], fields, graph.direction)
