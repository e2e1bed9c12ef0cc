"""`Failure`: what ends a command with one line."""


class Failure(Exception):
    """A command that cannot do what it was asked for; the text says what to do instead.

    Args:
        text: one line.
        status: the exit status; 2 where the command itself makes no sense.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status
