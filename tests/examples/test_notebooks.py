"""The notebooks run from top to bottom: by plain Python, and by Jupyter's client where there is one."""

import ast
import contextlib
import importlib.util
import io
import json
import linecache
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 250_000  # bytes, with the pictures

# One process of its own for all: matplotlib's backend and names of cells are the program's.
RUNNER = """
import sys
sys.path.insert(0, {tests!r})
from tests.examples.test_notebooks import NOTEBOOKS, run_cells
for file in NOTEBOOKS:
    run_cells(file)
"""


def cells_of(file):
    """The code cells of a notebook, each with its number and with what the file says that it prints."""
    cells = json.loads(Path(file).read_text(encoding="utf-8"))["cells"]
    for k, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            printed = "".join("".join(printed_by(output)) for output in cell["outputs"])
            yield k, "".join(cell["source"]), printed


def printed_by(output):
    """The lines of an output that a plain Python prints; what Jupyter shows as a table is among them."""
    if output["output_type"] == "stream":
        return output["text"]
    is_table = output["output_type"] == "display_data" and "text/html" in output["data"]
    return output["data"]["text/plain"] if is_table else []


def words(printed):
    """What was printed, without numbers, which differ from machine to machine, and names of files."""
    text = re.sub(r'File "[^"]*"|[\w-]+\.(py|ipynb\[\d+\])', "FILE", printed)
    return re.sub(r"-?\b\d[\d.]*(e[-+]\d+)?", "0", text).replace("-0", "0").split()


def run_cells(file):
    """Execute the cells in one namespace; show what their last expressions are as Jupyter does."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ["COLUMNS"] = "120"  # the width of what is shown, whatever pytest's workers are given
    for k, text, expected in cells_of(file):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run_cell(f"{Path(file).name}[{k}]", text, main)
        assert words(printed.getvalue()) == words(expected), (
            f"{file}, cell {k}: run it in Jupyter anew"
        )


def run_cell(name, text, main):
    """Execute one cell."""
    # Kernels read their own source, which Jupyter keeps in the same way.
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    tree = ast.parse(text, name)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), vars(main))
    if last is not None:
        shown = eval(compile(ast.Expression(last.value), name, "eval"), vars(main))
        for form in ("_repr_html_", "_repr_svg_"):
            if hasattr(shown, form):
                getattr(shown, form)()


def test_notebooks_run_without_jupyter(tmp_path):
    pytest.importorskip("matplotlib")
    code = RUNNER.format(tests=str(FOLDER.parent))
    environment = os.environ | {"MPLBACKEND": "agg", "DIFFSIM_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir()), "notebooks leave no files behind"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_a_notebook_runs_in_jupyter(file, tmp_path):
    if not all(importlib.util.find_spec(name) for name in ("nbclient", "nbformat", "ipykernel")):
        pytest.skip("nbclient and ipykernel are not installed")
    import nbclient
    import nbformat

    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": tmp_path}}
    ).execute()


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_a_notebook_is_small_and_has_the_outputs_of_a_run_without_errors(file):
    assert file.stat().st_size < LARGEST
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    shown = [out for cell in code for out in cell["outputs"]]
    forms = {form for out in shown for form in out.get("data", {})}
    assert forms & {"image/png", "image/svg+xml", "text/html"}, "no picture"
    assert not [
        out for out in shown if out["output_type"] == "error" or out.get("name") == "stderr"
    ]


def test_notebooks_name_only_files_that_exist():
    for file in NOTEBOOKS:
        for target in re.findall(r"\]\(([^)#:]+)\)", file.read_text(encoding="utf-8")):
            assert (FOLDER / target).exists(), f"{file.name} links to {target}"
