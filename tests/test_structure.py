"""The shape of the package, held by tests: imports, lengths of files, documentation.

The checks read the source with ``ast`` and take the package folder as an argument, so that the
last tests here can show each of them a small wrong package and see it complain.
"""

import ast
import functools
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

# public_names, tracebacks <- errors, locks <- ir <- {lang, passes, backends} <- runtime
# <- {ad, algorithms, gui, linalg, optim, tools, ui}
# <- bridges <- {torch, jax} <- __init__ <- commands <- __main__
# math and types, names of the language under names of their own, stand beside __init__
_BASE = {"errors", "locks", "parameters", "public_names", "tracebacks"}
_MIDDLE = {"lang", "passes", "backends"}
_OUTER = {"ad", "algorithms", "gui", "linalg", "optim", "tools", "ui"}
_LIBRARIES = {"jax", "torch"}  # bridges to them, by their names
MAY_IMPORT = {
    "tracebacks": set(),
    "errors": {"public_names", "tracebacks"},
    "locks": set(),
    "parameters": set(),
    "public_names": set(),
    "ir": _BASE,
    **{part: {"ir"} | _BASE for part in _MIDDLE},
    "runtime": {"ir"} | _BASE | _MIDDLE,
    **{part: {"ir", "runtime"} | _BASE | _MIDDLE | _OUTER - {part} for part in _OUTER},
    "math": {"ir", "lang"} | _BASE,
    "types": {"ir", "lang"} | _BASE,
    "profiler": {"runtime"} | _BASE,
    "compile_ahead": {"lang", "runtime"} | _BASE,
    "bridges": {"ad", "ir", "lang", "runtime"} | _BASE,
    **{library: {"bridges", "ir", "lang", "runtime"} | _BASE for library in _LIBRARIES},
    "__init__": {"bridges", "compile_ahead", "ir", "math", "profiler", "runtime", "types"}
    | _LIBRARIES
    | _BASE
    | _MIDDLE
    | _OUTER,
    "commands": {"__init__", "ir", "runtime"} | _BASE | _MIDDLE | _OUTER,
    "__main__": {"commands"},
}
# Within a part, a room imports those before it.
ROOMS = """
    ir ir/ops
    lang/text lang/host lang/types lang/frontend lang/builtins lang
    passes/analysis passes/sparse passes/transforms passes/vectors passes/forms passes/neighbours passes/kept
    passes/autodiff passes/tangent
    passes/instrument passes
    backends/native backends/llvm backends/simd backends/simt backends/cpu backends/cuda backends
    runtime/memory runtime/cache runtime runtime/cpu runtime/cuda runtime/python
    runtime/fields runtime/layouts runtime/observe runtime/numbering runtime/binding
    runtime/translated runtime/kernels
    ad/record ad/pictures ad/checks ad/reverse ad/repeat ad/replay ad/schedules ad
    ad/jacobians ad/hessians ad/implicit
    bridges
    optim/steps optim/runs optim
    gui
    ui
    linalg
    tools/pictures tools/page tools
    commands
""".split()
UNDIVIDED = {
    "lang/frontend"
}  # one recursion, as syntax nests; its folders are no rooms of their own
MOST_FILES = 14  # of a room, beside its __init__.py
# Parts that stay free of everything but the standard library and the names here.
THIRD_PARTY = {"tracebacks": set(), "errors": set(), "ir": {"numpy"}}
MAY_BE_LATE = set(
    "matplotlib mpl_toolkits IPython PIL scipy torch jax tornado tqdm webbrowser".split()
)
MAX_LINES = 600
MAX_LINES_OF = {"ir/ops/table.py": 900}
MAX_LINES_OF_TESTS = 800
EXAMPLE = re.compile(
    r'(?:\n *)?\n *(?:Example:|example="""|example=f""")\n[^"]*(?:"(?!"")[^"]*)*?(?=\n *""")'
)
"""The lines of an example in a docstring, which do not count among those of a file."""


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
    return _import_nodes(file.read_text(encoding="utf-8"))


@functools.cache  # by the text: several checks read all files
def _import_nodes(text: str):
    found = []

    def walk(node: ast.AST, late: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                found.append((child, late))
            elif not isinstance(child, ast.expr):  # statements, and what holds them
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                walk(child, late or inside)

    walk(ast.parse(text), False)
    return found


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


def room_of(package: Path, folder: Path) -> str | None:
    """The room of ROOMS that a folder is, or is a part of."""
    name = folder.relative_to(package).as_posix()
    whole = next((room for room in UNDIVIDED if name.startswith(f"{room}/")), name)
    return whole if whole in ROOMS else None


def wrong_rooms(package: Path) -> list[str]:
    """Imports between the rooms of a part that go against the order of ROOMS; rooms that are too full."""
    wrong = []
    for folder in sorted({file.parent for file in package.rglob("*.py")} - {package}):
        name = folder.relative_to(package).as_posix()
        if room_of(package, folder) is None:
            wrong.append(f"{name}: has no place in ROOMS")
        if len(files := [f for f in folder.glob("*.py") if f.name != "__init__.py"]) > MOST_FILES:
            wrong.append(f"{name}: {len(files)} files, limit {MOST_FILES}")
    for where, part, name, _ in imports(package):
        here = room_of(package, (package / where.partition(":")[0]).parent)
        if (package / where.partition(":")[0]).name == "__init__.py" or not name.startswith(
            f"{package.name}.{part}"
        ):
            continue
        target = package.joinpath(*name.split(".")[1:])
        there = room_of(package, target if target.is_dir() else target.parent)
        if here and there and ROOMS.index(there) > ROOMS.index(here):
            wrong.append(f"{where}: {here} imports {there}")
    return wrong


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


def wrong_lengths(package: Path, most: int = MAX_LINES) -> list[str]:
    """Files that are too long to be read in one sitting."""
    wrong = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        lines = len(EXAMPLE.sub("", file.read_text(encoding="utf-8")).splitlines())
        limit = MAX_LINES_OF.get(name, most)
        if lines > limit:
            wrong.append(f"{name}: {lines} lines, limit {limit}")
    return wrong


CHECKS = [wrong_arrows, wrong_rooms, wrong_third_party, wrong_late_imports, wrong_lengths]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_package(check):
    assert len(list(PACKAGE.rglob("*.py"))) > 5, "the walker does not see the package"
    assert check(PACKAGE) == []


def test_import_is_light():
    code = "import sys, diffsim; print(*{'matplotlib', 'torch', 'jax'}.intersection(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout.split()) == (0, []), run.stdout + run.stderr


@pytest.mark.parametrize("module", ["diffsim", "diffsim.math"])
def test_public_names_exist_and_have_docstrings(module):
    public = importlib.import_module(module)
    names = [name for name in dir(public) if not name.startswith("_")]
    assert set(public.__all__) <= set(names)
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


def test_no_file_of_tests_is_too_long():
    assert wrong_lengths(TESTS, MAX_LINES_OF_TESTS) == []


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
    "__init__.py": "from .runtime.session import init as init\nfrom diffsim import errors\n",
    "errors.py": "import os.path\n",
    "ir/__init__.py": "",
    "ir/types.py": "import numpy as np\nfrom ..errors import Span\nfrom . import nodes\n",
    "ir/nodes.py": "from diffsim.ir import types\n",
    "locks.py": "",
    "lang/host/source.py": "from diffsim import locks\n",
    "lang/frontend/context.py": "from diffsim.ir.types import f32\nfrom ..host import source\n",
    "lang/frontend/functions/inlining.py": "from .. import context\n",
    "runtime/session.py": "import llvmlite\nimport diffsim.backends.cpu.codegen\nfrom .. import lang\n",
    "backends/cpu/codegen.py": "def init():\n    import matplotlib\n",
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
        ("lang/types/a.py", "from ...ad import x", ":1: lang imports ad"),
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
    ("name", "text", "complaint"),
    [
        ("lang/host/a.py", "from ..frontend import context", ":1: lang/host imports lang/frontend"),
        (
            "lang/types/a.py",
            "import diffsim.lang.builtins.glsl",
            ":1: lang/types imports lang/builtins",
        ),
        (
            "runtime/a.py",
            "from diffsim.runtime.fields.field import x",
            ":1: runtime imports runtime/fields",
        ),
        ("ad/cellar/a.py", "", ": has no place in ROOMS"),
    ],
)
def test_a_wrong_room_is_caught(tmp_path, name, text, complaint):
    package = make_package(
        tmp_path, RIGHT | {"runtime/fields/field.py": "", "lang/builtins/glsl.py": "", name: text}
    )
    where = name if complaint[1].isdigit() else name.rpartition("/")[0]
    assert wrong_rooms(package) == [where + complaint]


def test_a_full_room_is_caught(tmp_path):
    files = {f"ad/record/a{k}.py": "" for k in range(MOST_FILES + 1)}
    assert wrong_rooms(make_package(tmp_path, RIGHT | files)) == ["ad/record: 15 files, limit 14"]


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
        (wrong_lengths, "ir/ops/table.py", "x = 1\n" * 901, ": 901 lines, limit 900"),
    ],
)
def test_a_wrong_package_is_caught(tmp_path, check, name, text, complaint):
    package = make_package(tmp_path, RIGHT | {name: text})
    assert check(package) == [name + complaint]


def test_a_long_file_of_tests_is_caught(tmp_path):
    line = "x = 1\n"
    tests = make_package(tmp_path, {"ad/test_a.py": line * 801, "ad/test_b.py": line * 800})
    assert wrong_lengths(tests, MAX_LINES_OF_TESTS) == ["ad/test_a.py: 801 lines, limit 800"]


def test_examples_in_docstrings_do_not_count():
    example = 'def f():\n    """Do.\n\n    Example:\n        f()\n\n        print(1)\n    """\n'
    assert EXAMPLE.sub("", example) == 'def f():\n    """Do.\n    """\n'


def test_missing_docstrings_are_caught():
    @dataclass
    class Bare: ...

    assert undocumented(make_package)
    assert undocumented(Bare)
    assert undocumented(Bare())
    assert not undocumented(part_of)
    assert not undocumented(3.14)
