"""The shape of the package, held by tests: imports, lengths of files, documentation.

The checks read the source with ``ast`` and take the package folder as an argument, so that the
last tests here can show each of them a small wrong package and see it complain.
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "diffsim"
TESTS = Path(__file__).resolve().parent

# errors <- ir <- {lang, passes, backends} <- runtime <- {ad, gui, tools} <- __init__
# math, names of the language under a name of its own, stands beside __init__
_MIDDLE = {"lang", "passes", "backends"}
_OUTER = {"ad", "gui", "tools"}
MAY_IMPORT = {
    "errors": set(),
    "ir": {"errors"},
    **{part: {"errors", "ir"} for part in _MIDDLE},
    "runtime": {"errors", "ir"} | _MIDDLE,
    **{part: {"errors", "ir", "runtime"} | _MIDDLE | _OUTER - {part} for part in _OUTER},
    "math": {"errors", "ir", "lang"},
    "__init__": {"errors", "ir", "math", "runtime"} | _MIDDLE | _OUTER,
    "__main__": {"__init__", "errors", "ir", "runtime"} | _MIDDLE | _OUTER,
}
# Parts that stay free of everything but the standard library and the names here.
THIRD_PARTY = {"errors": set(), "ir": {"numpy"}}
MAY_BE_LATE = {"matplotlib", "mpl_toolkits", "IPython"}
MAX_LINES = 600
MAX_LINES_OF = {"ir/ops.py": 900}


def part_of(package: Path, file: Path) -> str:
    """The top-level part a file belongs to: ``ir`` for ir/types.py, ``errors`` for errors.py."""
    return file.relative_to(package).parts[0].removesuffix(".py")


def imported_names(package: Path, file: Path, node: ast.stmt) -> list[str]:
    """Absolute dotted names that an import statement reaches, relative ones resolved."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert isinstance(node, ast.ImportFrom)
    module = node.module or ""
    if node.level:
        here = [package.name, *file.relative_to(package).parent.parts]
        above = here[: len(here) - (node.level - 1)]
        module = ".".join([*above, *filter(None, [module])])
    if module == package.name:  # `from diffsim import errors`: a part, or a public name?
        return [f"{module}.{alias.name}" for alias in node.names]
    return [module]


def import_nodes(file: Path):
    """Each import statement of a file, and whether it stands inside a function."""

    def walk(node: ast.AST, late: bool):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                yield child, late
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, late or inside)

    yield from walk(ast.parse(file.read_text(encoding="utf-8"), str(file)), False)


def imports(package: Path):
    """(where, part, dotted name, late) for every import in the package."""
    for file in sorted(package.rglob("*.py")):
        for node, late in import_nodes(file):
            where = f"{file.relative_to(package).as_posix()}:{node.lineno}"
            for name in imported_names(package, file, node):
                yield where, part_of(package, file), name, late


def wrong_arrows(package: Path) -> list[str]:
    """Imports between parts of the package that go against the direction."""
    parts = {part_of(package, file): file for file in sorted(package.rglob("*.py"))}
    wrong = [
        f"{file.relative_to(package).as_posix()}: {part} has no place in MAY_IMPORT"
        for part, file in parts.items()
        if part not in MAY_IMPORT
    ]
    for where, part, name, _ in imports(package):
        root, _, rest = name.partition(".")
        if root != package.name or part not in MAY_IMPORT:
            continue
        target = rest.partition(".")[0]
        if target not in parts:
            target = "__init__"
        if target != part and target not in MAY_IMPORT[part]:
            wrong.append(f"{where}: {part} imports {target}")
    return sorted(wrong)


def wrong_third_party(package: Path) -> list[str]:
    """Imports of other projects by the parts that must stay free of them."""
    return [
        f"{where}: {part} imports {name}"
        for where, part, name, _ in imports(package)
        if part in THIRD_PARTY
        and (root := name.partition(".")[0]) not in sys.stdlib_module_names
        and root != package.name
        and root not in THIRD_PARTY[part]
    ]


def wrong_late_imports(package: Path) -> list[str]:
    """Imports inside functions, but for the few projects that must not be loaded early."""
    return [
        f"{where}: {name} is imported late"
        for where, _, name, late in imports(package)
        if late and name.partition(".")[0] not in MAY_BE_LATE
    ]


def wrong_lengths(package: Path) -> list[str]:
    """Files that are too long to be read in one sitting."""
    wrong = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        lines = len(file.read_text(encoding="utf-8").splitlines())
        limit = MAX_LINES_OF.get(name, MAX_LINES)
        if lines > limit:
            wrong.append(f"{name}: {lines} lines, limit {limit}")
    return wrong


CHECKS = [wrong_arrows, wrong_third_party, wrong_late_imports, wrong_lengths]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_package(check):
    assert len(list(PACKAGE.rglob("*.py"))) > 5, "the walker does not see the package"
    assert check(PACKAGE) == []


def test_import_is_light():
    code = "import sys, diffsim; print(*{'matplotlib', 'torch'}.intersection(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout.split()) == (0, []), run.stdout + run.stderr


@pytest.mark.parametrize("module", ["diffsim", "diffsim.math"])
def test_public_names_exist_and_have_docstrings(module):
    public = importlib.import_module(module)
    names = public.__all__
    assert names
    assert sorted(set(names)) == sorted(names)
    assert [name for name in names if undocumented(getattr(public, name))] == []


def undocumented(thing: object) -> bool:
    """Whether help() has nothing of ours to say: no text, or the one a dataclass makes itself."""
    if isinstance(thing, bool | int | float | str | tuple):
        return False  # a constant such as pi: its type's text is all that it can have
    doc = inspect.getdoc(thing) or ""
    cls = thing if isinstance(thing, type) else type(thing)
    return not doc.strip() or doc.startswith(f"{cls.__name__}(")


# --- the tests' own shape -------------------------------------------------------------------------


def test_the_map_of_the_tests_is_complete():
    """tests/README.md names every folder, and every module that tests share."""
    page = (TESTS / "README.md").read_text(encoding="utf-8")
    files = [file.relative_to(TESTS) for file in sorted(TESTS.rglob("*.py"))]
    folders = {file.parts[0] for file in files if len(file.parts) > 1}
    shared = {file.as_posix() for file in files if file.parts[0] == "support"}
    assert len(folders) > 5
    assert {name for name in folders | shared if f"`{name}`" not in page} == set()


def test_no_file_of_tests_imports_another():
    """What two of them need stands in tests/support: each can be read, and run, by itself."""
    wrong = [
        f"{file.relative_to(TESTS).as_posix()}:{node.lineno}: {name}"
        for file in sorted(TESTS.rglob("*.py"))
        for node, _ in import_nodes(file)
        for name in imported_names(TESTS, file, node)
        if re.search(r"\btest_\w+$", name)
    ]
    assert wrong == []


def test_what_tests_import_of_each_other_is_there():
    """A helper that moves is looked for here, and not only when its file is run."""
    missing = [
        f"{file.relative_to(TESTS).as_posix()}:{node.lineno}: {name}"
        for file in sorted(TESTS.rglob("*.py"))
        for node, _ in import_nodes(file)
        for name in imported_names(TESTS, file, node)
        if name.startswith("tests.") and not _is_there(TESTS.parent / name.replace(".", "/"))
    ]
    assert missing == []


def _is_there(module: Path) -> bool:
    return module.is_dir() or module.with_suffix(".py").is_file()


# --- the checks themselves ------------------------------------------------------------------------


def make_package(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "diffsim"
    for name, text in files.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return package


RIGHT = {
    "__init__.py": "from .runtime.context import init as init\nfrom diffsim import errors\n",
    "errors.py": "import os.path\n",
    "ir/__init__.py": "",
    "ir/types.py": "import numpy as np\nfrom ..errors import Span\nfrom . import nodes\n",
    "ir/nodes.py": "from diffsim.ir import types\n",
    "lang/scope.py": "from diffsim.ir.types import f32\nimport diffsim.errors\n",
    "runtime/context.py": "import llvmlite\nimport diffsim.backends.cpu\nfrom .. import lang\n",
    "backends/cpu.py": "def init():\n    import matplotlib\n",
    "gui/canvas.py": "def show():\n    from matplotlib import pyplot\n",
}


def test_a_right_package_passes(tmp_path):
    package = make_package(tmp_path, RIGHT)
    assert [complaint for check in CHECKS for complaint in check(package)] == []


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("ir/a.py", "import diffsim.lang", ":1: ir imports lang"),
        ("errors.py", "\nfrom .ir import x", ":2: errors imports ir"),
        ("lang/a.py", "from ..passes import x", ":1: lang imports passes"),
        ("lang/b/a.py", "from ...ad import x", ":1: lang imports ad"),
        ("passes/a.py", "from .. import backends", ":1: passes imports backends"),
        ("backends/a.py", "def f():\n import diffsim.runtime", ":2: backends imports runtime"),
        ("runtime/a.py", "from diffsim.ad.tape import T", ":1: runtime imports ad"),
        ("ad/a.py", "import diffsim as ds", ":1: ad imports __init__"),
        ("ad/a.py", "from diffsim import field", ":1: ad imports __init__"),
        ("ir/a.py", "if TYPE_CHECKING:\n from ..lang import x", ":2: ir imports lang"),
        ("util.py", "", ": util has no place in MAY_IMPORT"),
    ],
)
def test_a_wrong_arrow_is_caught(tmp_path, name, text, complaint):
    package = make_package(tmp_path, RIGHT | {"passes/p.py": "", "ad/t.py": "", name: text})
    assert wrong_arrows(package) == [name + complaint]


@pytest.mark.parametrize(
    ("check", "name", "text", "complaint"),
    [
        (wrong_third_party, "ir/a.py", "from llvmlite import ir", ":1: ir imports llvmlite"),
        (wrong_third_party, "errors.py", "import numpy", ":1: errors imports numpy"),
        (wrong_late_imports, "ad/a.py", "def f():\n import os", ":2: os is imported late"),
        (
            wrong_late_imports,
            "ad/a.py",
            "class A:\n def f(s):\n  if s:\n   from . import x",
            ":4: diffsim.ad is imported late",
        ),
        (wrong_lengths, "ad/a.py", "x = 1\n" * 601, ": 601 lines, limit 600"),
        (wrong_lengths, "ir/ops.py", "x = 1\n" * 901, ": 901 lines, limit 900"),
    ],
)
def test_a_wrong_package_is_caught(tmp_path, check, name, text, complaint):
    package = make_package(tmp_path, RIGHT | {name: text})
    assert check(package) == [name + complaint]


def test_missing_docstrings_are_caught():
    @dataclass
    class Bare: ...

    assert undocumented(make_package)
    assert undocumented(Bare)
    assert undocumented(Bare())
    assert not undocumented(part_of)
    assert not undocumented(3.14)
