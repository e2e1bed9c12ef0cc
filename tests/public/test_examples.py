"""Each public name and method has a docstring with an example, and the examples do what they say."""

import importlib.util
import inspect
import os
import re
import textwrap
import types

import numpy as np
import pytest

import diffsim as ds
from tests.support.printed import is_as_promised, promised_lines
from tests.support.source import make

MODULES = "ad algorithms linalg math optim profiler tools torch types jax".split()
EXAMPLE = re.compile(r"^Example:\n((?:    .*\n?|\n)+)", re.MULTILINE)
NEEDS = re.compile(r"^import (scipy|torch|jax|graphviz|pycuda)|ds\.(torch|jax)\.wrap", re.MULTILINE)
ON_GPU = re.compile(r"arch=ds\.(cuda|gpu)")
LATER = re.compile(
    r"ds\.(ad|optim|tools|profiler|torch|jax|linalg|algorithms|root|[A-Z]\w+|axes|clear\w+|copy|deactivate\w+"
    r"|\w*logging\w*|device_info|from_dlpack|\w+_to_\w+|init|load\w*|reset|save|sync)\b"
)
ALIKE = (str, float, int, bool, tuple, types.ModuleType)


@ds.dataclass
class Body:
    mass: ds.f32


KINDS = {"ds.root": type(ds.root), "struct type": type(Body), "struct": type(Body(mass=1.0))}
KINDS["vector type"] = type(ds.types.vector(3, ds.f32))
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
    assert [name for name in missing if not LATER.match(name)] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder where examples write their files."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("examples"))
    yield
    os.chdir(before)


RUN = [
    pytest.param(code, id=name, marks=pytest.mark.gpu if ON_GPU.search(code) else ())
    for code, name in EXAMPLES.items()
]


@pytest.mark.parametrize("code", RUN)
def test_examples_print_what_they_say(code, cpu, quick_code, folder, capfd):
    for needed in {a or b for a, b in NEEDS.findall(code)}:
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    make(code, {"__name__": "example", "ds": ds, "np": np})
    printed = capfd.readouterr().out
    assert is_as_promised("\n".join(promised_lines(code) or []), printed), printed


def test_examples_say_something():
    assert [name for code, name in EXAMPLES.items() if not promised_lines(code)] == []


def test_a_missing_example_is_found():
    assert not is_shown("ds.Tape.zero", "Set all gradients to 0.", "Example:\n    tape.reset()\n")
    assert is_shown("ds.Tape.zero", "", "Args:\n    x: y\n\nExample:\n    tape.zero()\n")
