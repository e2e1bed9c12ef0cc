"""Runs the documentation: every ```python block of README.md and docs/*.md.

The blocks of one file run in order and share one namespace; each file runs in a process and an
empty folder of its own. Each block becomes a real file, so kernels in it can find their source.

Written in the Markdown:

``# prints: text``
    A comment in a block, after the statement that prints or on a line of its own. A block that has
    one must have one for every line it prints, in order.
``<!-- output -->`` and a ```text block
    Right after a Python block: exactly what that block prints.
``<!-- error: KernelTypeError -->``
    Right before a Python block: it must raise this very class. An output block that follows must
    be part of the message (what Python shows from the error's name on, notes included).
``<!-- needs: torch -->``
    On a line of its own: from here on blocks are only compiled where this package is not installed.

In both kinds of expected text ``...`` stands for anything on its line, and a line with nothing else
for any lines. There is no other way to skip a block: what should not run is ```text or another language.
"""

import contextlib
import ctypes
import importlib.util
import itertools
import os
import re
import sys
import textwrap
import traceback
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from diffsim.backends.native.jit import Jit
from diffsim.runtime.session import session
from tests.support import forked
from tests.support.printed import is_as_promised, pattern, promised_lines, tidy

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.compile(r"^ *(`{3,}|~{3,})\s*\{?py|^<!-- (output|error)", re.MULTILINE)
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if BLOCKS.search(path.read_text("utf-8"))  # others have nothing to run
]
TIMEOUT = 600  # [s] one page

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<info>[^`]*)$")
COMMENT = re.compile(r"^\s*<!--\s*(?P<text>.*?)\s*-->\s*$")


class DocsError(Exception):
    """The page says one thing and diffsim does another; the message starts with page and line."""


@dataclass
class Block:
    """A Python block and what the page promises about it."""

    line: int  # of its first line of code, counted from 1
    code: str
    error: str | None = None
    output: str | None = None
    needs: str | None = None  # a package without which it is not run


# --- reading a page -------------------------------------------------------------------------------


def read_blocks(page: str, text: str) -> list[Block]:
    """The Python blocks of a page, in order, with their marks."""
    blocks: list[Block] = []
    lines = text.splitlines()
    mark, mark_line, just_python, needs, i = None, 0, False, None, 0
    while i < len(lines):
        if comment := COMMENT.match(lines[i]):
            if wanted := re.fullmatch(r"needs:\s*(\w+)", comment["text"]):
                needs = wanted[1]
            else:
                mark, mark_line = comment["text"], i + 1
        elif fence := FENCE.match(lines[i]):
            start = i + 1
            i = _end_of_fence(page, lines, i, fence)
            code = textwrap.dedent("\n".join(lines[start:i])) + "\n"
            where = f"{page}:{mark_line}"
            is_python = _is_python(f"{page}:{start}", fence["info"])
            error = re.fullmatch(r"error:\s*(\w+)", mark) if mark else None
            if is_python and (error or not mark):
                blocks.append(Block(start + 1, code, error[1] if error else None, needs=needs))
            elif mark == "output" and fence["info"].strip() == "text" and just_python:
                blocks[-1].output = code
            elif mark:
                raise DocsError(f"{where}: <!-- {mark} --> does not belong before this block")
            mark, just_python = None, is_python
        elif lines[i].strip():
            if mark and re.match(r"(output|error|skip)\b", mark):
                raise DocsError(f"{page}:{mark_line}: no block right after <!-- {mark} -->")
            mark, just_python = None, False
        i += 1
    if mark and re.match(r"(output|error|skip)\b", mark):
        raise DocsError(f"{page}:{mark_line}: no block right after <!-- {mark} -->")
    return blocks


def _end_of_fence(page: str, lines: list[str], start: int, fence: re.Match[str]) -> int:
    for i in range(start + 1, len(lines)):
        text = lines[i].strip()
        if text.startswith(fence["fence"]) and not text.strip(fence["fence"][0]):
            return i
    raise DocsError(f"{page}:{start + 1}: this block never ends")


def _is_python(where: str, info: str) -> bool:
    language = info.strip().lower()
    if language == "python":
        return True
    if language.startswith(("py", "{py")) and language != "pycon":
        raise DocsError(f"{where}: write ```python, not ```{info.strip()}, or it is not run")
    return False


# --- running a page (in a process of its own) -----------------------------------------------------


@contextlib.contextmanager
def captured_stdout(target: Path):
    """Sends file descriptor 1 to a file, so that what native code prints is seen too."""
    sys.stdout.flush()
    saved = os.dup(1)
    with target.open("wb") as file:
        os.dup2(file.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)
        os.dup2(saved, 1)
        os.close(saved)


def run_page(page: str, text: str) -> None:
    """Runs the blocks of a page in the current folder; DocsError says what is not so."""
    # A real module, since inspect looks a class's source up through its module's file.
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    for number, block in enumerate(read_blocks(page, text), start=1):
        file = Path(f"{Path(page).stem}_{number}.py").resolve()
        file.write_text(block.code, encoding="utf-8")
        module.__file__ = str(file)
        raised: BaseException | None = None
        log = file.with_suffix(".out")
        absent = block.needs and importlib.util.find_spec(block.needs) is None
        with captured_stdout(log):
            try:
                code = compile(block.code, str(file), "exec")
                if absent:
                    continue
                exec(code, module.__dict__)
            except (Exception, SystemExit) as error:
                raised = error
        check_error(page, block, file, raised)
        check_output(page, block, log.read_text(encoding="utf-8", errors="replace"), raised)


def check_error(page: str, block: Block, file: Path, raised: BaseException | None) -> None:
    """The block raised what its mark says, or nothing if it has no mark."""
    where = f"{page}:{block.line}"
    if raised is None:
        if block.error:
            raise DocsError(f"{where}: the block should raise {block.error}, but raises nothing")
        return
    if type(raised).__name__ == block.error:
        return
    frames = traceback.extract_tb(raised.__traceback__)
    lines = [frame.lineno or 1 for frame in frames if frame.filename == str(file)]
    if isinstance(raised, SyntaxError) and raised.filename == str(file):
        lines.append(raised.lineno or 1)
    if lines:
        where = f"{page}:{block.line + lines[-1] - 1}"
    wanted = f"; it should raise {block.error}" if block.error else ""
    shown = "".join(traceback.format_exception(raised))
    raise DocsError(f"{where}: the block raises {type(raised).__name__}{wanted}\n\n{shown}")


def check_output(page: str, block: Block, printed: str, raised: BaseException | None) -> None:
    """The block printed what its comments and its output block say."""
    promised = promised_lines(block.code)
    if promised is not None:
        _compare(page, block, "\n".join(promised), printed)
    if block.output is None:
        return
    if raised is None:
        _compare(page, block, block.output, printed)
        return
    message = tidy("".join(traceback.format_exception_only(raised))) + "\n"
    if not pattern(block.output).search(message):
        raise DocsError(
            f"{page}:{block.line}: the message of the error is another one\n"
            f"--- the page says\n{tidy(block.output)}\n--- the error says\n{message}"
        )


def _compare(page: str, block: Block, expected: str, printed: str) -> None:
    if not is_as_promised(expected, printed):
        raise DocsError(
            f"{page}:{block.line}: the block prints something else\n"
            f"--- the page says\n{tidy(expected)}\n--- the block prints\n{tidy(printed)}"
        )


def main(*pages_and_paths: str) -> int:
    """Runs pages for the tests below: how many of them are wrong, with the reasons on standard error.

    Without LLVM's passes: what a page prints is the same, and most of its time is spared.
    """
    session._jit = Jit(opt_level=0)
    wrong = 0
    for page, path in zip(pages_and_paths[::2], pages_and_paths[1::2], strict=True):
        try:
            run_page(page, Path(path).read_text(encoding="utf-8"))
        except DocsError as error:
            print(error, file=sys.stderr)
            wrong += 1
    return wrong


# --- tests ----------------------------------------------------------------------------------------


def failure(folder: Path, *paths: Path) -> str:
    """Runs pages in a process of its own in the folder; the reasons why they fail, or nothing."""
    pages = [p.relative_to(ROOT).as_posix() if p.is_relative_to(ROOT) else p.name for p in paths]
    run = forked.run(
        __file__,
        *itertools.chain(*zip(pages, paths, strict=True)),
        folder=folder,
        environment=os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)},
        timeout=TIMEOUT,
    )
    if run.returncode == 0:
        return ""
    return run.stderr or f"{pages}: the process ended with {run.returncode}\n{run.stdout}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page(path, tmp_path):
    if reason := failure(tmp_path, path):
        pytest.fail(reason, pytrace=False)


# The runner itself, shown pages that are right and pages that are not.

RIGHT = """
# Page

```python
import inspect
import os

class Thing:
    size = 2

def f(x):
    return x + 1  # the source of f

print(f(1), "# prints: nothing")  # prints: 2 # prints: nothing
for i in range(2):
    print(i * 1.5)
# prints: 0.0
# prints: 1...
```

Blocks share a namespace, find their source, and may be indented.

1. In a list:

   ```python
   print(inspect.getsource(f).splitlines()[-1].strip())
   os.system("echo from another process")
   ```

   <!-- output -->

   ```text
   return x + 1  # the source of f
   from ... process
   ```

<!-- error: ZeroDivisionError -->
```python
1 / 0
```
<!-- output -->
```text
division by zero
```

<!-- an ordinary comment -->
Text, and a block that is not run:

```text
...
```

<!-- needs: os -->

```python
print("run")  # prints: run
```

<!-- needs: no_such_package -->

```python
import no_such_package
```
"""


def test_a_right_page_passes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(RIGHT, encoding="utf-8")
    assert failure(tmp_path, page) == ""


WRONG = [
    (
        "<!-- needs: no_such_package -->\n```python\nx = \n```",
        "PAGE:3: the block raises SyntaxError",
    ),
    ("<!-- needs: os -->\n```python\n1 / 0\n```", "PAGE:3: the block raises ZeroDivisionError"),
    ("```python\nx = 1\n1 / 0\n```", "PAGE:3: the block raises ZeroDivisionError"),
    ("\n```python\nx = \n```", "PAGE:3: the block raises SyntaxError"),
    ("```python\nraise SystemExit(0)\n```", "PAGE:2: the block raises SystemExit"),
    ("```python\nprint(1)  # prints: 2\n```", "PAGE:2: the block prints something else"),
    ("```python\nprint(1)  # prints: 1\nprint(2)\n```", "PAGE:2: the block prints"),
    (
        "```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```",
        "--- the page says\n2\n--- the block prints\n1",
    ),
    (
        "<!-- error: KeyError -->\n```python\nx = 1\n```",
        "PAGE:3: the block should raise KeyError, but raises nothing",
    ),
    (
        "<!-- error: LookupError -->\n```python\n{}[1]\n```",
        "PAGE:3: the block raises KeyError; it should raise LookupError",
    ),
    (
        "<!-- error: KeyError -->\n```python\n{}[1]\n```\n<!-- output -->\n```text\n2\n```",
        "PAGE:3: the message of the error is another one",
    ),
    ("<!-- skip -->\n```python\n1 / 0\n```", "PAGE:1: <!-- skip --> does not belong"),
    ("<!-- outputs -->\n```text\n1\n```", "PAGE:1: <!-- outputs --> does not belong"),
    ("<!-- output -->\n```text\n1\n```", "PAGE:1: <!-- output --> does not belong"),
    ("<!-- error: KeyError -->\n\nwords", "PAGE:1: no block right after"),
    ("```py\n1 / 0\n```", "PAGE:1: write ```python, not ```py"),
    ("```python\n1 / 0\n", "PAGE:1: this block never ends"),
]
"""Pages, and what is said of each."""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """What is said of all wrong pages, run one after the other in one process."""
    folder = tmp_path_factory.mktemp("wrong")
    pages = [folder / f"page{k}.md" for k in range(len(WRONG))]
    for page, (text, _) in zip(pages, WRONG, strict=True):
        page.write_text(text, encoding="utf-8")
    return failure(folder, *pages)


@pytest.mark.parametrize("k", range(len(WRONG)))
def test_a_wrong_page_is_caught(complaints, k):
    said = re.search(rf"^page{k}\.md:(?s:.*?)(?=^page\d+\.md:|\Z)", complaints, re.MULTILINE)
    assert WRONG[k][1].replace("PAGE", f"page{k}.md") in said[0]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
