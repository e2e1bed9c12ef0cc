"""What is compiled is what Python runs: a file that has changed since is noticed."""

import ast
import importlib.machinery
import importlib.util
import linecache
import os
import sys

import pytest

import diffsim as ds
from diffsim.errors import KernelSyntaxError

TEXT = """import math
import numpy as np
import diffsim as ds
out = ds.field(ds.f64, ())

def make(n, other=3.0):
    unit = 1.0

    class Body:
        __hidden = 2.0

        @ds.kernel
        def run(self, a: ds.f64 = 4.0):
            "A docstring."
            assert n > 0
            for i in range(n):
                if i > 1:
                    out[None] += ds.sin(a) * unit
                    out[None] += self.__hidden * math.pi
            names = [k for k in ds.static(range(3))]

    @ds.func
    def inner(a: ds.f64, b=other):
        return a - b

    @ds.kernel
    def outer():
        out[None] = inner(5.0)

    return Body(), outer
"""

CHANGES = {
    "a number": ("5.0", "6.0"),
    "a sign": ("a - b", "a + b"),
    "a sign of zero": ("inner(5.0)", "inner(-5.0)"),
    "a name": ("* unit", "* n"),
    "an operator": ("* math.pi", "+ math.pi"),
    "a function": ("ds.sin", "ds.cos"),
    "indentation": ("                    out[None] += self", "                out[None] += self"),
    "a bound": ("range(3)", "range(4)"),
    "a comparison": ("i > 1", "i >= 1"),
    "a class of a number": ("inner(5.0)", "inner(5)"),
    "lines more above": ("import math\n", "import math\n" + "import os\n" * 40),
}


def load(file, text):
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def edit(file, text):
    file.write_text(text)
    os.utime(file, (1, 1))
    linecache.checkcache(str(file))


@pytest.fixture(autouse=True)
def doubles(monkeypatch):
    ds.init(default_fp=ds.f64)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_was_edited_before_the_decorator_reads_it(change, tmp_path):
    module = load(tmp_path / "factory.py", TEXT)
    old, new = CHANGES[change]
    assert old in TEXT
    edit(tmp_path / "factory.py", TEXT.replace(old, new))
    with pytest.raises(KernelSyntaxError, match=r"(changed after|something else|cannot be read)"):
        module.make(4)


def test_a_comment_more_changes_nothing(tmp_path):
    module = load(tmp_path / "factory.py", TEXT)
    edit(tmp_path / "factory.py", TEXT.replace("i > 1:", "i > 1:  # from the third on"))
    body, outer = module.make(4)
    outer()
    assert module.out[None] == 2.0
    body.run()
    assert module.out[None] == pytest.approx(2.0 + 2 * (4 * 3.141592653589793 / 2 - 0.7568024953))


def test_a_file_that_stays_as_it_is(tmp_path):
    module = load(tmp_path / "factory.py", TEXT)
    for _ in range(2):
        _, outer = module.make(4)
        outer()
        assert module.out[None] == 2.0


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_decorators_defaults_and_closures(future, tmp_path):
    text = (
        future
        + """
import functools
import diffsim as ds
from diffsim import kernel as k
out = ds.field(ds.f64, ())

def noted(f):
    f.note = 1
    return f

def make(c):
    def deeper(d):
        @noted
        @k(
            simplicity="relaxed",
        )
        @noted
        def run(
            a: ds.f64,
            b: ds.f64 = [1.0, 2.0][1],
        ):
            x = c
            while x < 100.0 and a > 0.0:
                x = x * 2.0 if x > 1.0 else x + d
            out[None] = x - b
        return run
    return deeper(1.0)
"""
    )
    module = load(tmp_path / "decorated.py", text)
    module.make(1.0)(1.0)
    assert module.out[None] == 126.0


ANNOTATED = """
import math
import diffsim as ds
out = ds.field(ds.f64, ())

@ds.func
def half(x: ds.f64, more=(1.0, 3)):
    "A docstring."
    y: ds.f64 = x * math.pow(0.5, 1.0)
    return y - more[0]

def make(n):
    class Body:
        @ds.kernel
        def run(self, a: ds.f64):
            b: ds.f64 = half(a) * n
            for k in ds.static(range(3)):
                b = b + (2 if k in (0, 1) else -2.0)
            out[None] = b
    return Body()
"""


class Checking(ast.NodeTransformer):
    """Does what tools do that check types: each annotated value is passed through a call."""

    def visit_AnnAssign(self, node):
        node.value = ast.parse(f"checked({ast.unparse(node.value)}, 'a message')").body[0].value
        ast.copy_location(node.value, node)
        return ast.fix_missing_locations(node)

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        added = ast.copy_location(ast.parse("from typing import cast as checked").body[0], node)
        node.body.insert(ast.get_docstring(node) is not None, added)
        return ast.fix_missing_locations(node)


class CheckingLoader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, *of_module, _optimize=-1):  # the module since 3.15
        tree = Checking().visit(ast.parse(data))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("* n", "* m"),
        ("(2 if", "(5 if"),
        ("0.5", "0.25"),
        ("static", "grouped"),
        ("a: ds.f64", "other: ds.f64"),
        ("(0, 1)", "(0, 7)"),
    ],
)
def test_functions_that_an_import_hook_has_rewritten(old, new, tmp_path):
    file = tmp_path / "hooked.py"
    file.write_text(ANNOTATED)
    loader = CheckingLoader("hooked", str(file))
    spec = importlib.util.spec_from_file_location("hooked", file, loader=loader)
    module = importlib.util.module_from_spec(spec)
    code = loader.get_code("hooked")
    if old:
        edit(file, ANNOTATED.replace(old, new))
        with pytest.raises(KernelSyntaxError, match="is not what Python has compiled"):
            exec(code, vars(module))
            module.make(4.0)
    else:
        exec(code, vars(module))
        module.make(4.0).run(8.0)
        assert module.out[None] == (8.0 * 0.5 - 1.0) * 4.0 + 2.0


class Private:
    """Names with two underscores are those of the class."""

    def __init__(self, out):
        self.__gain = 3.0
        self.out = out

    @ds.func
    def __scaled(self, __by):
        __made = __by * self.__gain
        return __made

    @ds.kernel
    def run(self):
        self.out[None] = self.__scaled(__by=2.0)

    class __Inner:
        def __init__(self, out):
            self.__k, self.out = 7.0, out

        @ds.kernel
        def run(self):
            self.out[None] = self.__k

    def inner(self):
        return self.__Inner(self.out)

    def made(self):
        out = self.out

        @ds.kernel
        def run():
            out[None] = self.__gain

        return run


def test_private_names():
    out = ds.field(ds.f64, ())
    me = Private(out)
    me.run()
    assert out[None] == 6.0
    me.inner().run()
    assert out[None] == 7.0
    me.made()()
    assert out[None] == 3.0
