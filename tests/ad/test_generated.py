"""Kernels made at random: the CPU does what the interpreter does, and gradients are central differences.

A program is written as source text into a file: loads, stores and additions with affine and gathered indices,
branches, loops with break and continue that carry numbers, vectors and integers, locals of the kernel that
several parallel loops add to and read. Every third program is let break the global data access rules: there
a refusal is right, and so is a right gradient.

`HYPOTHESIS_PROFILE=long` makes many more of them.
"""

import itertools
from random import Random

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cpu import outline
from diffsim.backends.llvm import long_blocks
from diffsim.errors import AutodiffError
from diffsim.passes import pipeline
from diffsim.passes.autodiff import loop_checkpoints
from diffsim.passes.vectors import vectorize
from tests.support.made_kernels import Maker, Program

pytest.importorskip("hypothesis")
from hypothesis import Phase, given, settings
from hypothesis import strategies as st


def difference(function, program, name):
    """Richardson's central differences, for several widths: (widths, ...)."""
    start = program.start[name]
    found = []
    for h in (1e-3, 1e-4, 1e-5):
        gradient = np.zeros_like(start)
        for i in np.ndindex(*start.shape):
            slopes = []
            for step in (h, h / 2):
                ends = []
                for s in (step, -step):
                    moved = start.copy()
                    moved[i] += s
                    ends.append(function({name: moved}))
                slopes.append((ends[0] - ends[1]) / (2 * step))
            gradient[i] = (4 * slopes[1] - slopes[0]) / 3
        found.append(gradient)
    return np.array(found)


def agree(gradient, differences, rel=1e-6):
    """Whether for each element one of the widths gives the gradient."""
    scale = max(1.0, np.abs(gradient).max())
    error = np.abs(differences - gradient).min(axis=0)
    return bool((error <= rel * scale).all())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("made")


@pytest.fixture(autouse=True)
def _f64():
    ds.init(default_fp=ds.f64)
    yield
    ds.reset()


_count = itertools.count()


def made(seed, folder):
    ds.init(default_fp=ds.f64)
    random = Random(seed)
    rules = random.random() < 0.7
    text = f"# seed {seed}\n{Maker(random, rules).kernel()}"
    return Program(text, folder / f"made_{next(_count)}.py"), rules


def some(share):
    """A share of the profile's examples. A smaller seed makes no smaller kernel: nothing to shrink."""
    count = settings.default.max_examples // share
    return settings(phases=[Phase.explicit, Phase.generate], max_examples=count)


@some(3)
@given(st.integers(0, 2**31))
def test_made_kernels(folder, seed):
    check_made(folder, seed)


@some(4)
@given(st.integers(0, 2**31), st.booleans())
def test_made_kernels_as_vectors(folder, seed, cut):
    """The lanes run together wherever they may, and loops go back in segments of two iterations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectorize, "_ALWAYS", True)
        patch.setattr(long_blocks, "_LONG", 4 if cut else 10**9)
        patch.setattr(long_blocks, "_STRETCH", 2)
        patch.setattr(loop_checkpoints, "_MOST_BYTES", 0)
        patch.setattr(loop_checkpoints, "_SHORTEST", 2)
        check_made(folder, seed)


@some(4)
@given(st.integers(0, 2**31), st.booleans())
def test_made_kernels_in_parts(folder, quick_code, seed, together):
    """Bodies are cut after every third statement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectorize, "_ALWAYS", together)
        patch.setattr(outline, "_LONGEST", 4)
        patch.setattr(outline, "_MOST_NESTED", 4)
        patch.setattr(outline, "_PART", 3)
        check_made(folder, seed)


def check_made(folder, seed):
    program, rules = made(seed, folder)
    try:
        gradients = program.gradients()
    except AutodiffError as error:
        assert not rules, f"refused: {error}\n{program.text}"
        assert error.span is not None
        assert error.span.file.endswith(".py")
        return
    for name, gradient in gradients.items():
        expected = difference(program.value, program, name)
        assert np.isfinite(gradient).all(), program.text
        assert agree(gradient, expected), f"{name}: {gradient}, {expected}\n{program.text}"
    if rules:
        check_interpreter(program, gradients)


def check_interpreter(program, gradients):
    special = program.special()
    after = program.run({})
    lowered = pipeline.run(special.ir, pipeline.LOWER, check=True)
    for kernel in (special.ir, lowered):
        found = program.interpret(kernel)
        for name, value in after.items():
            if name in found:
                np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-12)
    state = {name: f.to_numpy() for name, f in program.fields.items()}
    for name in program.inputs:
        state[f"{name}.grad"] = np.zeros_like(program.start[name])
    for name, seed in program.seeds.items():
        state[f"{name}.grad"] = seed
    lowered = pipeline.run(special.derivative.ir, pipeline.LOWER, check=True)
    for kernel in (special.derivative.ir, lowered):
        found = program.interpret(kernel, state)
        for name, gradient in gradients.items():
            if f"{name}.grad" in found:
                np.testing.assert_allclose(
                    found[f"{name}.grad"], gradient, rtol=1e-9, atol=1e-10, err_msg=program.text
                )
