"""A kernel is compiled for these very fields and objects, and from the text it was loaded from."""

import copy
import dataclasses
import gc
import importlib
import os
import pickle
import sys

import numpy as np
import pytest

import diffsim as ds


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(default_fp=ds.f64)


@dataclasses.dataclass(frozen=True)
class Spring:
    """Equal to others of its name, and none of them."""

    name: str
    x: ds.Field = dataclasses.field(compare=False)
    total: ds.Field = dataclasses.field(compare=False)

    @ds.kernel
    def add(self):
        for i in self.x:
            self.total[None] += self.x[i]


def numbers(*values):
    made = ds.field(ds.f64, len(values), needs_grad=True)
    made.from_numpy(np.array(values))
    return made


def total():
    return ds.field(ds.f64, (), needs_grad=True)


def test_equal_objects_have_kernels_of_their_own():
    one, two = (Spring("spring", numbers(v, v), total()) for v in (1.0, 5.0))
    assert one == two
    with ds.Tape(two.total):
        two.add()
    one.add()
    assert (one.total[None], two.total[None]) == (2, 10)
    assert two.x.grad.to_numpy().tolist() == [1, 1]
    del one
    gc.collect()
    two.add()
    assert two.total[None] == 20


def test_objects_that_can_not_be_hashed_have_kernels_too():
    @dataclasses.dataclass
    class Mass:
        x: ds.Field

        @ds.kernel
        def double(self):
            for i in self.x:
                self.x[i] *= 2.0

    mass = Mass(numbers(1.0, 2.0))
    mass.double()
    assert mass.x.to_numpy().tolist() == [2, 4]


def test_a_field_in_the_place_of_one_that_is_gone():
    """Kernels that only ask for its shape do not keep a field, and Python gives its address away again."""
    count = total()

    @ds.kernel
    def rows(a: ds.template()):
        for _ in range(a.shape[0]):
            count[None] += 1.0

    @ds.kernel
    def rows_of(several: ds.template()):
        for _ in range(several[0].shape[0]):
            count[None] += 1.0

    for n in range(1, 20):
        for kernel in (rows, rows_of):
            count[None] = 0.0
            a = ds.field(ds.f64, n)
            kernel(a if kernel is rows else [a])
            assert count[None] == n
            del a
    assert not rows.specializations


def test_what_was_compiled_for_an_object_goes_with_it():
    count = total()

    class Step:
        by = 1.0

    @ds.kernel
    def add(what: ds.template()):
        count[None] += what.by

    @ds.kernel
    def apply(what: ds.template()):
        count[None] += what(1.0)

    @ds.kernel
    def weigh(by: ds.template()):
        count[None] += by[0]

    for n in range(1, 4):

        @ds.func
        def double(v):
            return 2 * v

        add(Step())
        apply(double)
        weigh(np.ones(1))
        assert count[None] == 4 * n
    del double
    gc.collect()
    assert (len(add.specializations), len(apply.specializations), len(weigh.specializations)) == (
        0,
        0,
        1,
    )


def test_kernels_are_copied_and_pickled_like_functions():
    assert copy.copy(twice) is twice
    assert copy.deepcopy([twice, plus])[0] is twice
    assert pickle.loads(pickle.dumps((twice, plus))) == (twice, plus)


@ds.func
def plus(a, b):
    return a + b


@ds.kernel
def twice(x: ds.template()):
    for i in x:
        x[i] = plus(x[i], x[i])


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copied_field_is_another_memory(way):
    """A kernel that was compiled for one of them is compiled anew for the other."""
    x = numbers(1.0)
    again = way(x)
    twice(again)
    twice(x)
    again[0] += 5.0
    assert (x[0], again[0]) == (2.0, 7.0)


def test_a_copied_element_of_structs_is_a_struct():
    pair = ds.types.struct(place=ds.types.vector(2, ds.f64), mass=ds.f64)
    x = pair.field(shape=2)
    x[1] = {"place": [1.0, 2.0], "mass": 3.0}
    for way in (copy.copy, copy.deepcopy):
        kept = way(x[1])
        x.mass[1] = 4.0
        assert (kept.mass, x[1].mass) == (3, 4)
        x.mass[1] = 3.0


# ---- the text of a kernel

MODULE = """
import diffsim as ds


@ds.kernel
def now(x: ds.template()):
    for i in x:
        x[i] = {0}


def later(by):
    @ds.kernel
    def made(x: ds.template()):
        for i in x:
            x[i] = {0} * by

    return made
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module, and what writes its file again, with another number."""
    file = tmp_path / "edited_module_of_kernels.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    stamp = iter(range(1_000_000_000, 2_000_000_000, 10))

    def write(number, more=""):
        file.write_text(more + MODULE.format(number))
        os.utime(file, (when := next(stamp), when))

    write(1.0)
    yield importlib.import_module(file.stem), write
    del sys.modules[file.stem]


def result(kernel):
    x = ds.field(ds.f64, 1)
    kernel(x)
    return x[0]


def test_a_module_loaded_again_has_its_new_kernels(module):
    loaded, write = module
    assert (result(loaded.now), result(loaded.later(2.0))) == (1, 2)
    write(3.0)
    loaded = importlib.reload(loaded)
    assert (result(loaded.now), result(loaded.later(2.0))) == (3, 6)


def test_a_file_that_is_edited_while_its_program_runs(module):
    """What runs is what was loaded."""
    loaded, write = module
    assert result(loaded.now) == 1
    for more in ("", "# a line more\n"):
        write(3.0, more)
        assert result(loaded.later(2.0)) == 2


def test_a_function_of_an_old_text(module):
    loaded, write = module
    old = loaded.later
    write(3.0)
    loaded = importlib.reload(loaded)
    assert result(loaded.later(2.0)) == 6
    with pytest.raises(ds.KernelSyntaxError, match="changed after it was loaded"):
        old(2.0)


# ---- loaded code


@pytest.mark.host
def test_code_that_is_loaded_already_is_used_again():
    """LLVM keeps some kilobytes of each library that it has ever loaded."""

    def fill(x):
        @ds.kernel
        def ones():
            for i in x:
                x[i] = 1.0

        ones()
        assert x.to_numpy().tolist() == [1] * 7
        return ones._only(()).executable.address

    assert len({fill(ds.field(ds.f64, 7)) for _ in range(3)}) == 1
