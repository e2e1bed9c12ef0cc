"""Each public name and method has a docstring with an example, and the examples do what they say."""

import collections
import contextlib
import enum
import importlib.util
import inspect
import io
import re
import textwrap
import types

import numpy as np
import pytest

import diffsim as ds
from diffsim.ad.custom_gradients import GradReplaced
from diffsim.ad.replay.loaded_tape import LoadedTape
from diffsim.runtime.layouts.fields_builder import FieldsTree
from diffsim.runtime.observe.time_table import TimeTable
from diffsim.tools.progress_bar import Progress
from tests.support.printed import is_as_promised, promised_lines
from tests.support.source import make

MODULES = [n for n in dir(ds) if isinstance(getattr(ds, n), types.ModuleType)]
EXAMPLE = re.compile(r"^Example:\n((?:    .*\n?|\n)+)", re.MULTILINE)
NEEDS = {
    "scipy": r"import scipy|ds\.linalg\.Sparse|optim\.minimize",
    "torch": "import torch",
    "jax": "import jax",
    "pycuda": "import pycuda",
}
"""Packages, and the examples that cannot run without them."""
ON_GPU = re.compile(r"arch=ds\.(cuda|gpu)")
SILENT = {"ds.GUI.get_key_event", "ds.tools.imshow"}
"""Their examples are for a person at a window, and print nothing."""
ALIKE = (enum.Enum, str, float, int, bool, tuple, types.ModuleType)


@ds.dataclass
class Body:
    mass: ds.f32


@ds.kernel
def nothing():
    pass


KINDS = {
    "an adjoint": type(nothing.grad),
    "a kernel with tangents": type(nothing.jvp),
    "a vector type": type(ds.types.vector(3, ds.f32)),
    "a struct type": type(Body),
    "a struct": type(Body(mass=1.0)),
    "ds.root": type(ds.root),
    "a tree": FieldsTree,
    "a tape from a file": LoadedTape,
    "a function with a gradient": GradReplaced,
    "a table of times": TimeTable,
    "a progress bar": Progress,
}
"""Classes that are no public names themselves, but whose objects programs meet."""


def public(thing):
    return [name for name in dir(thing) if not name.startswith("_")]


def things():
    """All public names with what they are, each thing once."""
    seen = set()
    modules = {"ds": ds} | {f"ds.{m}": getattr(ds, m) for m in MODULES}
    for space, module in modules.items():
        for name in public(module):
            thing = getattr(module, name)
            if id(thing) not in seen:
                seen.add(id(thing))
                yield f"{space}.{name}", thing


def is_alike(thing):
    """Whether it is a constant, or an error: `ds.DiffsimError` has an example for all of them."""
    is_error = isinstance(thing, type) and issubclass(thing, Exception)
    return isinstance(thing, ALIKE) or (is_error and thing is not ds.DiffsimError)


def members(owner, cls):
    """The public methods and properties of a class, with the class that shows them."""
    for name in public(cls):
        member = inspect.getattr_static(cls, name)
        base = next(b for b in cls.__mro__ if name in vars(b))
        if base.__module__.startswith("diffsim") and not is_alike(getattr(cls, name)):
            if not isinstance(member, types.MemberDescriptorType | type):
                yield f"{owner}.{name}", member


def documented():
    """Public names and members with their docstrings, and that of the class where there is one."""
    for name, thing in things():
        if not is_alike(thing):
            yield name, inspect.getdoc(thing) or "", ""
    classes = {n: t for n, t in things() if isinstance(t, type) and not issubclass(t, Exception)}
    for owner, cls in (classes | KINDS).items():
        around = inspect.getdoc(cls) or ""
        for name, member in members(owner, cls):
            yield name, inspect.getdoc(member) or "", around


def example(doc):
    return textwrap.dedent("".join(EXAMPLE.findall(doc)))


DOCUMENTED = list(documented())
EXAMPLES = {example(doc): name for name, doc, _ in reversed(DOCUMENTED)}
EXAMPLES.pop("", None)


def is_shown(name, doc, around):
    """Whether it has an example, or that of its class uses it."""
    return bool(example(doc)) or f".{name.rpartition('.')[2]}" in example(around)


def test_everything_has_an_example():
    missing = [name for name, doc, around in DOCUMENTED if not is_shown(name, doc, around)]
    assert missing == []


def needed(code):
    """The package, or the "gpu", that an example cannot run without; "" for none."""
    found = [package for package, pattern in NEEDS.items() if re.search(pattern, code)]
    return found[0] if found else "gpu" if ON_GPU.search(code) else ""


GROUPS = collections.defaultdict(list)
"""Examples by the module or class of the name, and by what they need: hundreds of tests take long."""
for code, name in EXAMPLES.items():
    if name not in SILENT:
        GROUPS[name.rpartition(".")[0], needed(code)].append((name, code))
RUN = [pytest.param(*k, marks=pytest.mark.gpu if k[1] == "gpu" else ()) for k in GROUPS]


@pytest.mark.parametrize(("owner", "needs"), RUN)
def test_examples_print_what_they_say(owner, needs, cpu, quick_code, tmp_path, monkeypatch):
    if needs not in ("", "gpu") and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    wrong = {}
    for number, (name, code) in enumerate(GROUPS[owner, needs]):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        if (printed := run(name, code)) is not None:
            wrong[name] = printed
    assert wrong == {}


def run(name, code):
    """What an example prints, if that is something else than it says."""
    ds.init()
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            make(code, {"__name__": "example", "ds": ds, "np": np})
    except Exception as error:
        error.add_note(f"in the example of {name}")
        raise
    promised = "\n".join(promised_lines(code) or [])
    return None if is_as_promised(promised, printed.getvalue()) else printed.getvalue()


def test_examples_say_something():
    silent = [name for code, name in EXAMPLES.items() if not promised_lines(code)]
    assert set(silent) == SILENT


def test_a_missing_example_is_found():
    assert not is_shown("ds.Tape.zero", "Set all gradients to 0.", "Example:\n    tape.reset()\n")
    assert is_shown("ds.Tape.zero", "", "Args:\n    x: y\n\nExample:\n    tape.zero()\n")
