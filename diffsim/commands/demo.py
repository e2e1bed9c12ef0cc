"""`diffsim list` and `diffsim demo NAME`: the examples, which come with the package."""

from __future__ import annotations

import ast
import itertools
import os
import runpy
import sys
import time
from pathlib import Path

from diffsim.commands.failure import Failure
from diffsim.lang.host.unsupported import close_to

_PACKAGE = Path(__file__).resolve().parents[1]
_RUNS = '\nif __name__ == "__main__":'


def folder() -> Path:
    """Return where the examples are: in an installed package inside it, in a clone beside it.

    Raises:
        Failure: there are none.
    """
    for found in (_PACKAGE / "examples", _PACKAGE.parent / "examples"):
        # Something else may be called so beside an installed package.
        if (found / "mass_spring.py").is_file():
            return found
    raise Failure(f"the examples are missing beside {_PACKAGE}; install diffsim again")


def demos() -> dict[str, Path]:
    """Return the files of all examples by their names: those of the folder, then those of folders in it."""
    top = folder()
    files = [*sorted(top.glob("*.py")), *sorted(top.glob("*/*.py"))]
    # A file that does not run as a script is one that other examples import.
    return {file.stem: file for file in files if _RUNS in file.read_text(encoding="utf-8")}


def show_all(_: list[str]) -> int:
    """Print the names of all examples, and the first line of what each says about itself."""
    found = demos()
    width = max(map(len, found))
    top = within = folder()
    for name, file in found.items():
        if file.parent != within:
            within = file.parent
            print(f"\n{within.relative_to(top).as_posix()}:")
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        first = text.split("\n")[0]
        print(f"{name:{width}}  {first}")
    print("\nRun one with `diffsim demo NAME`; its source:", folder())
    return 0


def run(words: list[str]) -> int:
    """Run an example as if it had been started as a script.

    Args:
        words: its name, and its own options; nothing: list the examples.

    Raises:
        Failure: there is no such example; a package that it needs is missing.
    """
    if not words or words[0] in ("--list", "--help", "-h"):
        return show_all([])
    if words[0].startswith("-"):
        raise Failure("name an example: diffsim demo NAME; `diffsim list` shows all", status=2)
    name, *options = words
    known = demos()
    name = name.removesuffix(".py").replace("-", "_")
    if name not in known:
        close = close_to(name, list(known))
        hint = f"did you mean {close}? " if close else ""
        raise Failure(f"there is no example {words[0]!r}; {hint}`diffsim list` shows all", status=2)
    # No window unless one is asked for; matplotlib reads this when it is first imported.
    if "--gui" not in options:
        os.environ["MPLBACKEND"] = "Agg"
    path = known[name]
    sys.argv = [str(path), *options]
    sys.path.insert(0, str(path.parent))  # as Python does for a script
    begin = time.time()
    try:
        runpy.run_path(str(path), run_name="__main__")
    except ModuleNotFoundError as error:
        raise Failure(
            f"the example {name} needs the package {error.name}; install it, or run another example: "
            "`diffsim list` shows all"
        ) from None
    except SystemExit as ended:
        if isinstance(ended.code, int) or ended.code is None:
            return ended.code or 0
        raise Failure(str(ended.code)) from None
    finally:
        sys.path.remove(str(path.parent))
    _show_results(options, begin)
    return 0


def _show_results(options: list[str], begin: float) -> None:
    """Print the files that an example has written since then, to its folder for results."""
    given = dict(itertools.pairwise(options)).get("--out", "out")
    files = (file for file in Path(given).rglob("*") if file.is_file())
    # The clock of a file system may be coarse.
    written = sorted(file for file in files if file.stat().st_mtime >= begin - 1)
    if written:
        print("Written:", *written, sep="\n  ")
