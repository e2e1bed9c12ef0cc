"""Pictures of tapes: `tape.visualize()`, its options, the files it writes, and what notebooks show."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsim.ad.pictures.dot import write_dot
from diffsim.ad.pictures.drawing import draw
from diffsim.ad.pictures.fold import fold
from diffsim.ad.pictures.graph import Collector, FieldNode, Graph, collect, without
from diffsim.ad.pictures.svg import draw_svg
from diffsim.ad.record.entry import Entry
from diffsim.errors import ArgumentError, FieldError, OptionError, Span, shown
from diffsim.lang.host.signatures import is_one_of, need_bool, need_path
from diffsim.runtime.fields.field import Field
from diffsim.runtime.files import write_file, write_text

_DIRECTIONS = ("LR", "RL", "TB", "BT")
_FORMS = ("svg", "png", "pdf")
_OTHER_FORMS = ("jpg", "jpeg", "gif", "webp", "bmp", "tif", "tiff", "eps", "ps", "html", "htm")
_SECONDS = 60.0  # that GraphViz may take


class TapePicture(str):
    """The text of a picture in the DOT language; notebooks show the picture itself."""

    __slots__ = ("graph",)
    graph: Graph

    def render(self, form: str) -> bytes:
        """Return the picture as a file of this format: "svg", "png" or "pdf"."""
        if (made := _by_graphviz(str(self), form)) is not None:
            return made
        return draw_svg(self.graph).encode() if form == "svg" else draw(self.graph, form)

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{draw_svg(self.graph)}</div>'


def _by_graphviz(text: str, form: str) -> bytes | None:
    """Let GraphViz draw it; None: it is missing, or cannot."""
    program = shutil.which("dot")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, f"-T{form}"],
            input=text.encode("utf-8", "backslashreplace"),
            capture_output=True,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """The options of `Tape.visualize`, which documents them."""

    simplify_graph: bool = True
    hide_readonly_arrays: bool = False
    array_labels: Mapping[Any, str] | None = None
    choose_longest_node_name: bool = True
    ignore_graph_scopes: bool = False
    track_inputs: Sequence[Any] | None = None
    track_outputs: Sequence[Any] | None = None
    track_input_names: Sequence[str] | None = None
    track_output_names: Sequence[str] | None = None
    graph_direction: str = "LR"

    def check(self) -> None:
        """Refuse what makes no sense."""
        for name in (
            "simplify_graph",
            "hide_readonly_arrays",
            "choose_longest_node_name",
            "ignore_graph_scopes",
        ):
            need_bool(getattr(self, name), name)
        if not is_one_of(self.graph_direction, *_DIRECTIONS):
            raise OptionError(
                f"graph_direction={shown(self.graph_direction)} is not possible",
                Span.of_caller(),
                hint='it is "LR" (from left to right), "RL", "TB" (from top to bottom) or "BT"',
            )
        labels = self.array_labels
        right = labels is None or (
            isinstance(labels, Mapping) and all(isinstance(f, (Field, np.ndarray)) for f in labels)
        )
        if not right:
            raise FieldError(
                f"array_labels is a dictionary from fields to names, not {shown(labels)}",
                Span.of_caller(),
                hint='write array_labels={x: "position"}',
            )
        for role in self.tracked():
            _check_tracked(*role)

    def tracked(self) -> list[tuple[str, Any, Any]]:
        """Return "input" and "output" with the fields that are marked so, and their names."""
        return [
            ("input", _given(self.track_inputs), _given(self.track_input_names)),
            ("output", _given(self.track_outputs), _given(self.track_output_names)),
        ]


def _given(option: Sequence[Any] | None) -> Sequence[Any]:
    return () if option is None else option


def metadata_texts(metadata: Any) -> tuple[tuple[str, str], ...]:
    """Return what the user says about a scope as texts."""
    if metadata is None:
        return ()
    if not isinstance(metadata, Mapping):
        raise ArgumentError(
            f"metadata is a dictionary, not {shown(metadata)}",
            Span.of_caller(),
            hint='write record_scope_begin("step", {"t": 3})',
        )
    return tuple((str(k), shown(v)) for k, v in metadata.items())


def _check_tracked(role: str, things: Any, names: Any) -> None:
    right = isinstance(things, (list, tuple)) and all(
        isinstance(t, (Field, np.ndarray)) for t in things
    )
    if not right:
        raise FieldError(
            f"track_{role}s is a list of fields and arrays, not {shown(things)}",
            Span.of_caller(),
            hint=f"write track_{role}s=[x, y]",
        )
    texts = isinstance(names, (list, tuple)) and all(isinstance(n, str) for n in names)
    if not texts or (names and len(names) != len(things)):
        raise ArgumentError(
            f"track_{role}_names is a list of texts, one for each of track_{role}s, not {shown(names)}",
            Span.of_caller(),
            hint=f'write track_{role}s=[x, y], track_{role}_names=["x", "y"]',
        )


def make_picture(entries: Iterable[Entry], options: PictureOptions) -> TapePicture:
    """Return the picture of a record."""
    options.check()
    graph = _graph(entries, options)
    made = TapePicture(write_dot(graph))
    made.graph = graph
    return made


def _graph(entries: Iterable[Entry], options: PictureOptions) -> Graph:
    labels = {id(thing): str(label) for thing, label in (options.array_labels or {}).items()}
    roles = options.tracked()
    for _, things, names in roles:
        labels |= {id(t): name for t, name in zip(things, names, strict=False)}
    collector = Collector(
        labels, longest=options.choose_longest_node_name, scopes=not options.ignore_graph_scopes
    )
    tracked = {
        collector.node(thing): (role, thing) for role, things, _ in roles for thing in things
    }
    collect(entries, collector)
    for node, (role, _) in tracked.items():
        collector.fields[node].role = role
    items = fold(collector.items) if options.simplify_graph else collector.items
    graph = Graph(items, collector.fields, options.graph_direction)
    if not options.hide_readonly_arrays:
        return graph
    return without(graph, {n for n, f in graph.fields.items() if _is_only_read(f)})


def _is_only_read(field: FieldNode) -> bool:
    return not field.is_written and not field.role


def write_picture(picture: TapePicture, filename: Any) -> None:
    """Write a picture to a file: as svg, png or pdf where the name ends so, else in the DOT language.

    Raises:
        ArgumentError: it cannot be written there.
    """
    need_path(filename, "the filename")
    ending = os.path.splitext(os.fspath(filename))[1].lower().removeprefix(".")
    if ending in _OTHER_FORMS:
        raise ArgumentError(
            f"pictures of tapes are not written as .{ending}",
            Span.of_caller(),
            hint="name a file that ends in .svg, .png or .pdf",
        )
    if ending in _FORMS:
        write_file(filename, picture.render(ending))
    else:
        write_text(filename, picture)
