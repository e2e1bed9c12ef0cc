"""What the compiler makes in docs/*.md (IR, LLVM, launch functions, the table of ops) is as it is now.

After a change of the compiler: `python tools/update_docs.py`, or DIFFSIM_UPDATE_DOCS=1 with these tests.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diffsim as ds
from diffsim.ir import ops

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "update_docs.py"
PAGES = [
    p
    for p in [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    if " made: " in p.read_text("utf-8")
]
INIT = ROOT / "diffsim" / "__init__.py"  # has the names of all ops


def update(*arguments, folder):
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )


def test_made_parts_are_up_to_date(tmp_path):
    """All pages in one process, as the tool runs them by itself; what it prints names the pages."""
    if os.environ.get("DIFFSIM_UPDATE_DOCS") == "1":
        run = update(*PAGES, INIT, folder=tmp_path)
        assert run.returncode == 0, run.stderr
        return
    run = update("--check", *PAGES, INIT, folder=tmp_path)
    if run.returncode:
        advice = "Hint: python tools/update_docs.py, and read what it changed."
        pytest.fail(f"{run.stdout}{run.stderr}\n{advice}", pytrace=False)


def test_architecture_has_every_stage():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for made in (
        "spring.ir()",
        "spring.grad.ir()",
        "forward_clears",
        "spring.llvm()",
        "show_launch",
    ):
        assert re.search(rf"```.*made: .*{re.escape(made)}", page), made


def test_the_table_lists_exactly_the_public_ops():
    page = (ROOT / "docs" / "language.md").read_text("utf-8")
    table = page.partition("<!-- made: show_ops() -->\n")[2].partition("\n\n")[0]
    names = re.findall(r"^\| `ds\.(\w+)`", table, re.MULTILINE)
    assert sorted(names) == sorted(ops.PUBLIC)
    missing = [name for name in names if not hasattr(ds, name) or name not in dir(ds)]
    assert not missing, "rows without their line in diffsim/__init__.py"


def test_a_stale_part_is_caught_and_updated(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 20\n```\n\n"
        "<!-- error: ZeroDivisionError -->\n```python\n1 / 0\n```\n\n"
        "  ```text made: f'{x + 1}\\n{x + 2}'\n  old\n  ```\n\n"
        "<!-- made: x -->\nold\nold\n\nThe end.\n",
        encoding="utf-8",
    )
    run = update("--check", page, folder=tmp_path)
    assert run.returncode == 1
    assert "-old" in run.stdout
    assert "+  22" in run.stdout
    assert update(page, folder=tmp_path).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert "made: f'{x + 1}\\n{x + 2}'\n  21\n  22\n  ```\n\n<!-- made: x -->\n20\n\nThe" in text
    assert update("--check", page, folder=tmp_path).returncode == 0


def test_an_error_that_no_page_promises_ends_the_update(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\n1 / 0\n```\n\n```text made: 1\n```\n", encoding="utf-8")
    run = update(page, folder=tmp_path)
    assert run.returncode == 1
    assert "ZeroDivisionError" in run.stderr
