"""Docstrings: `help` describes each object, and the examples in them run."""

import inspect
import pydoc
import re
import textwrap

import numpy as np
import pytest

import diffsim as ds

SPACES = {"ds": ds} | {
    f"ds.{name}": getattr(ds, name)
    for name in "ad algorithms linalg math optim profiler tools types".split()
}
EXAMPLE = re.compile(r"^Example:\n((?:    .*\n?|\n)+)", re.MULTILINE)


def documented():
    """Public names with their docstrings, each docstring once."""
    seen = set()
    for space, module in SPACES.items():
        for name in dir(module):
            doc = inspect.getdoc(getattr(module, name)) if name[0] != "_" else None
            if doc and doc not in seen:
                seen.add(doc)
                yield f"{space}.{name}", doc


EXAMPLES = {
    name: textwrap.dedent("".join(EXAMPLE.findall(doc)))
    for name, doc in documented()
    if EXAMPLE.search(doc)
}


def test_the_names_that_programs_begin_with_have_examples():
    first = "field ndarray kernel func dataclass Matrix Vector Struct template clone".split()
    assert {f"ds.{name}" for name in first} <= set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, cpu, quick_code, tmp_path):
    file = tmp_path / "example.py"
    file.write_text(EXAMPLES[name], encoding="utf-8")
    space = {"__name__": "example", "ds": ds, "np": np}
    exec(compile(EXAMPLES[name], str(file), "exec"), space)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (ds.f32, "Floating-point numbers of 32 bits"),
        (ds.u8, "Integers of 8 bits without a sign"),
        (ds.cuda, "NVIDIA GPU"),
        (ds.vulkan, "A GPU if there is one"),
        (ds.ij, "Axes 0 and 1"),
        (ds.math.ivec3, "vectors of 3 elements of the default integer"),
        (ds.sin, "Sine of x"),
        (ds.static, "Evaluate while compiling"),
    ],
)
def test_help_says_what_an_object_is(thing, words):
    text = pydoc.plaintext.document(thing)
    assert words in " ".join(text.split())
    assert "Methods defined here" not in text
