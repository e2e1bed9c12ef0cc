"""The part of a tape for its pictures: scopes, and `visualize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diffsim.ad.pictures.picture import (
    PictureOptions,
    TapePicture,
    make_picture,
    metadata_texts,
    write_picture,
)
from diffsim.ad.pictures.svg import draw_svg
from diffsim.ad.record.entry import Entry
from diffsim.ad.record.scope import Scope
from diffsim.errors import shown
from diffsim.lang.host.signatures import checked_methods, need_bool

_MOST_DRAWN = 50_000  # entries


@checked_methods("visualize record_scope_begin record_scope_end")
class Drawn:
    """A tape's methods for pictures of it."""

    if TYPE_CHECKING:

        @property
        def entries(self) -> Sequence[Entry]: ...

        def _append(self, entry: Entry) -> None: ...

    def record_scope_begin(
        self, scope_name: str, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Begin a group of entries, for `visualize`; `metadata`: what its frame shows beside its name.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                tape.record_scope_begin("first step", {"dt": 0.01})
                y.copy_from(x)
                tape.record_scope_end()
            print("first step" in str(tape.visualize()))  # prints: True
        """
        name = scope_name if isinstance(scope_name, str) else shown(scope_name)
        self._append(Scope(name, metadata_texts(metadata)))

    def record_scope_end(self, remove_scope_if_empty: bool = True) -> None:
        """End the group begun last; one that nothing was recorded in is drawn only if this is False.

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                tape.record_scope_begin("nothing yet")
                tape.record_scope_end(remove_scope_if_empty=False)
                y.copy_from(x)
            print("nothing yet" in str(tape.visualize()))  # prints: True
        """
        need_bool(remove_scope_if_empty, "remove_scope_if_empty")
        self._append(Scope(None, keeps_empty=not remove_scope_if_empty))

    def _repr_svg_(self) -> str | None:
        """Return what notebooks show where a cell ends with a tape; None: its `repr`."""
        if len(self.entries) > _MOST_DRAWN:
            return None  # folding them would take seconds, without anybody having asked for it
        return draw_svg(make_picture(self.entries, PictureOptions()).graph)

    def visualize(
        self,
        filename: str | None = None,
        simplify_graph: bool = True,
        hide_readonly_arrays: bool = False,
        array_labels: Mapping[Any, str] | None = None,
        choose_longest_node_name: bool = True,
        ignore_graph_scopes: bool = False,
        track_inputs: Sequence[Any] | None = None,
        track_outputs: Sequence[Any] | None = None,
        track_input_names: Sequence[str] | None = None,
        track_output_names: Sequence[str] | None = None,
        graph_direction: str = "LR",
    ) -> TapePicture:
        """Draw the recorded launches and the fields between them, as a graph.

        Args:
            filename: where to write it: as a picture if it ends in .svg, .png or .pdf, else in the DOT
                language of GraphViz.
            simplify_graph: whether sequences of steps that repeat are drawn once, with their number.
            hide_readonly_arrays: whether fields that nothing on the tape writes are left out.
            array_labels: names to show for fields and arrays.
            choose_longest_node_name: whether of several names for one field (a variable's, those of
                parameters) the longest is shown; else the first.
            ignore_graph_scopes: whether scopes are drawn without frames.
            track_inputs: fields to mark as inputs, which are shown in any case.
            track_outputs: the same for outputs.
            track_input_names: a name for each of them.
            track_output_names: the same for outputs.
            graph_direction: "LR" (from left to right), "RL", "TB" (from top to bottom) or "BT".

        Returns:
            The text in the DOT language; notebooks show it as the picture.

        Raises:
            ArgumentError: an option that makes no sense; the file cannot be written (one that was there
                stays as it was).

        Example:
            x, y = (ds.field(ds.f32, shape=3, needs_grad=True) for _ in range(2))
            with ds.Tape() as tape:
                y.copy_from(x)
            tape.visualize("graph.svg")
            print(str(tape.visualize()).startswith("digraph"))  # prints: True
        """
        options = PictureOptions(
            simplify_graph,
            hide_readonly_arrays,
            array_labels,
            choose_longest_node_name,
            ignore_graph_scopes,
            track_inputs,
            track_outputs,
            track_input_names,
            track_output_names,
            graph_direction,
        )
        picture = make_picture(self.entries, options)
        if filename is not None:
            write_picture(picture, filename)
        return picture
