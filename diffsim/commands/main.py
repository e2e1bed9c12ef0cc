"""Chooses the command of the program `diffsim`, and turns errors into one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from diffsim import __version__
from diffsim.commands import cache, demo, doctor
from diffsim.commands.failure import Failure
from diffsim.errors import DiffsimError
from diffsim.lang.host.unsupported import close_to

_COMMANDS: dict[str, tuple[Callable[[list[str]], int], str, str]] = {
    "demo": (
        demo.run,
        "NAME [options]",
        "run an example; `diffsim demo NAME --help` shows its options",
    ),
    "list": (demo.show_all, "", "list the examples"),
    "doctor": (
        doctor.run,
        "",
        "look at this machine: versions, processor, GPU, cache, and a self-test",
    ),
    "cache": (cache.run, "info|clear", "show, or empty, the folder of compiled kernels"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: what stands after `diffsim`; that of this process if left out.

    Returns:
        The exit status: 0, 1 for something that failed, 2 for a command that makes no sense.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"diffsim {__version__}")
        return 0
    try:
        if words[0] not in _COMMANDS:
            close = close_to(words[0], list(_COMMANDS))
            hint = f"did you mean {close}?" if close else f"there are {', '.join(_COMMANDS)}"
            raise Failure(f"there is no command {words[0]!r}; {hint}", status=2)
        command, arguments, _ = _COMMANDS[words[0]]
        if not arguments and len(words) > 1:
            raise Failure(f"{words[0]} takes no {words[1]!r}", status=2)
        return command(words[1:])
    except Failure as failure:
        print(f"diffsim: {failure}", file=sys.stderr)
        return failure.status
    except DiffsimError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `diffsim list | head`
        sys.stderr.close()
        return 1


def _usage() -> str:
    """Return the list of commands."""
    rows = [
        (f"diffsim {name} {more}".rstrip(), what) for name, (_, more, what) in _COMMANDS.items()
    ]
    width = max(len(left) for left, _ in rows)
    lines = [f"  {left:{width}}  {what}" for left, what in rows]
    return "\n".join(["diffsim: differentiable physics in pure Python", "", *lines])
