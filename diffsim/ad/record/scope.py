"""Groups of entries, for pictures of a tape."""

from __future__ import annotations

from diffsim.ad.record.entry import BackwardRun, Entry, ForwardProgram, Picture, ReverseProgram


class Scope(Entry):
    """The begin (with a name) or end of a group of entries in pictures of the tape.

    Attributes:
        metadata: what the user said about it, as texts.
        keeps_empty: of an end, whether the group is drawn though there is nothing in it.
    """

    __slots__ = ("keeps_empty", "metadata", "name")
    ticks = False

    def __init__(
        self,
        name: str | None,
        metadata: tuple[tuple[str, str], ...] = (),
        *,
        keeps_empty: bool = False,
    ) -> None:
        self.name = name
        self.metadata = metadata
        self.keeps_empty = keeps_empty

    def backward(self, run: BackwardRun) -> None:
        """Nothing."""

    def record(self, program: ForwardProgram) -> None:
        """Nothing."""

    def reverse(self, program: ReverseProgram) -> None:
        """Nothing."""

    def draw(self, picture: Picture) -> None:
        if self.name is None:
            picture.end_group(keeps_empty=self.keeps_empty)
        else:
            picture.begin_group(self.name, self.metadata)
