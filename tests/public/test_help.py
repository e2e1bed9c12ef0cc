"""Docstrings: `help` describes each object."""

import pydoc

import pytest

import diffsim as ds


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
