"""Write what the compiler makes: in docs/*.md IR, LLVM, the table of ops; in diffsim/__init__.py their names.

    python tools/update_docs.py             write them anew
    python tools/update_docs.py --check     only say which ones are out of date; exit status 1 if any

A made part is marked by the expression that makes it, which sees what the page's Python blocks before
it have defined, and the functions of this file that start with ``show_``:

``` a fenced block whose info string ends in ``made: kernel.ir()``
    the text between the fences is the expression's value.
``<!-- made: show_ops() -->``
    the lines up to the next empty one are.

`tests/docs/test_architecture.py` runs this for each page.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import difflib
import io
import linecache
import os
import re
import sys
import tempfile
import textwrap
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import diffsim  # noqa: E402 - this checkout, whatever is installed
from diffsim.ir.ops import PUBLIC  # noqa: E402
from diffsim.lang.host import peer_names  # noqa: E402
from diffsim.runtime.files import write_text  # noqa: E402

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`]*)$")
MADE_FENCE = re.compile(r"\bmade: (?P<expression>.+)$")
MADE_COMMENT = re.compile(r"^<!-- made: (?P<expression>.+?) -->$")


# --- what pages may show --------------------------------------------------------------------------


def show_ops() -> str:
    """The table of all public ops, as Markdown."""
    lines = ["| name | arguments | result | what it is |", "|---|---|---|---|"]
    kinds = {"F": "float", "I": "integer", "N": "number", "B": "bool", "T": "any", "b": "bool"}
    for name in sorted(PUBLIC):
        row = PUBLIC[name]
        takes = ", ".join(kinds[letter] for letter in row.operands)
        lines.append(f"| `ds.{name}` | {takes} | {kinds[row.result]} | {row.doc} |")
    return "\n".join(lines)


def show_requirements() -> str:
    """The requirements in pyproject.toml, as a table in Markdown."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = [re.split(r"(?=[<>=!~])", text, maxsplit=1) for text in project["dependencies"]]
    rows = [("Python", project["requires-python"]), *(tuple(need) for need in needs)]
    lines = [f"| {name} | {versions.replace(',', ', ')} |" for name, versions in rows]
    return "\n".join(["| needed | versions |", "|---|---|", *lines])


def show_op_names() -> str:
    """The names of all public ops, as an item of a list in Markdown."""
    names = ", ".join(f"`ds.{name}`" for name in sorted(PUBLIC))
    return textwrap.fill(f"- Ops, each one row of a table: {names}.", 130, subsequent_indent="  ")


PEERS = ROOT / "tools" / "peers"
_ATTRIBUTES = {"Attributes of fields": peer_names.FIELDS, "Attributes of tapes": peer_names.TAPES}
_OPTIONS = {
    "Options of ti.init": peer_names.OPTIONS,
    "Options of ti.init that only tune": peer_names.TUNING,
}
TABLES = {
    "taichi": peer_names.TAICHI | _ATTRIBUTES | _OPTIONS,
    "warp": peer_names.WARP | _ATTRIBUTES,
}


def peer_modules(peer: str) -> dict[str, list[str]]:
    """The public names of another framework ("taichi", "warp"), by its modules; "" is the framework's own."""
    modules: dict[str, list[str]] = {}
    names: list[str] = []
    for line in (PEERS / f"{peer}.txt").read_text(encoding="utf-8").splitlines():
        if section := re.fullmatch(r"\[(.*)\]", line):
            names = modules[section[1]] = []
        elif not line.startswith("#"):
            names += line.split()
    return modules


def show_same_names(peer: str, module: str = "") -> str:
    """The names of a module of the framework's that are diffsim's as well."""
    names = [n for n in peer_modules(peer)[module] if is_here(module, n)]
    return textwrap.fill(", ".join(f"`{n}`" for n in names) + ".", 130)


def is_here(module: str, name: str) -> bool:
    """Whether diffsim has a name where the framework has it."""
    owners = {"": diffsim, "math": diffsim.math, "types": diffsim.types, "Tape": diffsim.Tape()}
    return hasattr(owners.get(module, diffsim.ad), name)


def show_advice(peer: str, topic: str) -> str:
    """A table of the framework's names on one topic that diffsim does not have, with what to write."""
    lines = ["| name | what to write |", "|---|---|"]
    for names, advice in TABLES[peer][topic].items():
        lines.append(
            f"| {', '.join(f'`{n}`' for n in names.split())} | {advice.removeprefix('write ')} |"
        )
    return "\n".join(lines)


def show_lines(text: str, first: str, count: int) -> str:
    """Some lines of a text: from the one that holds `first`, and `...` for what is left out."""
    lines = text.splitlines()
    start = _line_with(lines, first)
    shown = lines[start : start + count]
    before, after = ["..."] * (start > 0), ["..."] * (start + count < len(lines))
    return "\n".join([*before, *shown, *after])


def show_file(path: str, first: str, count: int) -> str:
    """Some lines of a file of this repository, from the one that holds `first`."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    start = _line_with(lines, first)
    return "\n".join(lines[start : start + count])


def _line_with(lines: list[str], first: str) -> int:
    found = [k for k, line in enumerate(lines) if first in line]
    if not found:
        raise LookupError(f"no line with {first!r} in:\n" + "\n".join(lines[:20]))
    return found[0]


def show_launch(name: str) -> str:
    """The launch function that was written for the kernel (or `kernel_grad`) of that name."""
    text = "".join(linecache.getlines(f"<diffsim launch of {name}>"))
    assert text, f"{name} was not launched on this page"
    # Identities of Python objects differ from run to run; long conditions do not fit the page.
    text = re.sub(r"!= \d{6,}", "!= 1402566254...", text)
    return text.replace(" or ", "\n            or ")


# --- names ----------------------------------------------------------------------------------------

INIT = ROOT / "diffsim" / "__init__.py"
CHANGELOG = ROOT / "CHANGELOG.md"
IMPORTED = re.compile(r"(?<=^from diffsim\.ir\.ops import \(\n)[^)]*(?=^\)$)", re.MULTILINE)
PUBLISHED = re.compile(r"(?<=^__all__ = \[\n)[^]]*(?=^\]$)", re.MULTILINE)


def with_names(source: str) -> str:
    """The text of diffsim/__init__.py with the public ops that there are: imported, and in `__all__`."""
    imported = set(re.findall(r"\w+", IMPORTED.search(source)[0]))
    published = set(re.findall(r"\w+", PUBLISHED.search(source)[0])) - imported | set(PUBLIC)
    published -= set(dir(builtins))  # which a star import leaves alone
    elsewhere = set(re.findall(r"^    (\w+),$", IMPORTED.sub("", source), re.MULTILINE))
    source = IMPORTED.sub("".join(f"    {n},\n" for n in _sorted(set(PUBLIC) - elsewhere)), source)
    return PUBLISHED.sub("".join(f'    "{n}",\n' for n in _sorted(published)), source)


def _sorted(names: set[str]) -> list[str]:
    """As ruff has them: capitals first, then classes, and numbers in names by what they are."""

    def key(name: str) -> tuple[Any, ...]:
        parts = re.split(r"(\d+)", name)
        kind = 0 if name.isupper() and len(name) > 1 else 1 + name[0].islower()
        return kind, *(int(part) if part.isdigit() else part for part in parts)

    return sorted(names, key=key)


# --- pages ----------------------------------------------------------------------------------------


def update(page: str, folder: Path) -> str:
    """The text of a page with all made parts as they are now.

    Args:
        page: the Markdown.
        folder: where the files of its Python blocks are put.
    """
    module = types.ModuleType("__main__")
    space: dict[str, Any] = module.__dict__
    space.update({n: f for n, f in globals().items() if n.startswith("show_")})
    lines, number, fails, out = page.splitlines(), 0, False, []
    where = iter(range(len(lines)))
    for i in where:
        line = lines[i]
        out.append(line)
        if comment := MADE_COMMENT.match(line):
            end = _until(lines, i + 1, lambda text: not text.strip())
            out.append(_made(comment["expression"], space))
            _skip(where, end - i - 1)
        elif fence := FENCE.match(line):
            end = _until(lines, i + 1, lambda text, fence=fence: text.strip() == fence["fence"])
            body = lines[i + 1 : end]
            if made := MADE_FENCE.search(fence["info"]):
                text = _made(made["expression"], space)
                body = textwrap.indent(text, fence["indent"]).splitlines()
            elif fence["info"].strip() == "python":
                number += 1
                code = textwrap.dedent("\n".join(body)) + "\n"
                _run(code, folder / f"block_{number}.py", module, fails=fails)
            out += [*body, lines[end]]
            _skip(where, end - i)
        if line.strip():
            fails = line.startswith("<!-- error:")
    return "\n".join(out) + "\n"


def _until(lines: list[str], start: int, test: Callable[[str], bool]) -> int:
    return next((k for k in range(start, len(lines)) if test(lines[k])), len(lines))


def _skip(where: Iterator[int], count: int) -> None:
    for _ in range(count):
        next(where, None)


def _made(expression: str, space: dict[str, Any]) -> str:
    return str(eval(expression, space)).rstrip("\n")


def _run(code: str, file: Path, module: types.ModuleType, *, fails: bool) -> None:
    """Run a Python block; one that a page says raises an error may do so."""
    file.write_text(code, encoding="utf-8")
    module.__file__ = str(file)
    sys.modules["__main__"] = module
    expected: tuple[type[BaseException], ...] = (Exception,) if fails else ()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(*expected):
        exec(compile(code, str(file), "exec"), module.__dict__)


def main() -> int:
    """Update or check the pages given, or all."""
    parser = argparse.ArgumentParser(description="Write what the compiler makes into docs/*.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    parser.add_argument(
        "pages",
        nargs="*",
        type=Path,
        help="files (default: docs/*.md, CHANGELOG.md and __init__.py)",
    )
    arguments = parser.parse_args()
    pages = [p.resolve() for p in arguments.pages] or [
        *sorted((ROOT / "docs").glob("*.md")),
        CHANGELOG,
        INIT,
    ]
    status = 0
    for page in pages:
        old = page.read_text(encoding="utf-8")
        if page == INIT:
            new = with_names(old)
        elif re.search(r"(```.*|<!-- )made: ", old):
            before = os.getcwd()
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                try:
                    new = update(old, Path(folder))
                finally:
                    os.chdir(before)
        else:
            continue
        if new == old:
            continue
        if arguments.check:
            status = 1
            name = page.name
            difference = difflib.unified_diff(
                old.splitlines(), new.splitlines(), name, "as it is now", lineterm="", n=1
            )
            print("\n".join(difference))
        else:
            write_text(page, new)
            print(f"updated {page.name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
