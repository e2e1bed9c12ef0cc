"""`ArgumentParser`: argparse's, with the options that all examples have."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diffsim.errors import ArgumentError
from diffsim.runtime.files import writable_folder
from diffsim.runtime.session import ARCHES, Arch, default_arch


class ArgumentParser(argparse.ArgumentParser):
    """The command line of a simulation: argparse's parser, with options that all examples share.

        parser = ds.tools.ArgumentParser(__doc__, steps=256, iterations=100, out="out/wave")
        parser.add_argument("--cells", type=int, default=64, help="along a side")
        args = parser.parse_args(argv)
        ds.init(arch=args.arch)

    An option is there if its default is given; `--arch`, `--seed` and `--gui` always are. Ranges are checked,
    and the folder for the results is made at once: after hours of training it would be late to learn that
    it cannot be.

    Args:
        description: what the program does; the docstring of the file.
        steps: the default of --steps.
        iterations: the default of --iterations.
        out: the default of --out, a folder; `args.out` is a Path.
        seed: the default of --seed.
        arch: the default of --arch.
        options: those of argparse's parser.

    Example:
        parser = ds.tools.ArgumentParser("A wave.", steps=256)
        parser.add_argument("--cells", type=int, default=64, help="along a side")
        args = parser.parse_args(["--steps", "10"])
        print(args.steps, args.cells, args.arch)  # prints: 10 64 ...
    """

    def __init__(
        self,
        description: str | None = None,
        *,
        steps: int | None = None,
        iterations: int | None = None,
        out: Any = None,
        seed: int = 0,
        arch: Arch | None = None,
        **options: Any,
    ) -> None:
        text = inspect.cleandoc(description or "")
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(description=text, **options)
        add = self.add_argument
        if steps is not None:
            add("--steps", type=whole(1), default=steps, help="time steps (default %(default)s)")
        if iterations is not None:
            text = "of the optimisation (default %(default)s)"
            add("--iterations", type=whole(1), default=iterations, help=text)
        default = arch or default_arch()
        text = f"where kernels run: {', '.join(ARCHES)} (default {default.name})"
        add("--arch", type=_arch, default=default, metavar="ARCH", help=text)
        if out is not None:
            text = "folder for pictures and results (default %(default)s)"
            add("--out", type=Path, default=Path(out), metavar="FOLDER", help=text)
        add("--seed", type=whole(0), default=seed, help="of random numbers (default %(default)s)")
        add("--gui", action="store_true", help="show a window, too")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the command line, or these arguments; numbers and paths among them may be themselves.

        Example:
            args = ds.tools.ArgumentParser("A wave.", steps=256).parse_args(["--steps", 10])
            print(args.steps)  # prints: 10
        """
        texts = None if args is None else [str(argument) for argument in args]
        found = super().parse_args(texts, namespace)
        if isinstance(getattr(found, "out", None), Path):
            try:
                writable_folder(found.out)
            except ArgumentError as error:
                self.error(f"argument --out: {error.message}; {error.hint}")
        return found


def whole(least: int) -> Callable[[str], int]:
    """Return a type for `add_argument`: whole numbers from `least` on."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is too small, it starts at {least}")
        return number

    return read


def _arch(text: str) -> Arch:
    if text not in ARCHES:
        raise argparse.ArgumentTypeError(f"there is no {text!r}; choose {', '.join(ARCHES)}")
    return ARCHES[text]
