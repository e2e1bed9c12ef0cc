"""Names that Taichi has and diffsim has not: each error says what to write."""

import re

import pytest

import diffsim as ds
from diffsim.lang.host.unsupported import ABSENT


@pytest.mark.parametrize("name", ABSENT)
def test_a_name_that_is_not_there(name):
    with pytest.raises(AttributeError, match=re.escape(ABSENT[name])):
        getattr(ds, name)
    assert name not in dir(ds.ad)


def test_what_is_recommended_is_there():
    for hint in ABSENT.values():
        for path in re.findall(r"ds((?:\.\w+)+)", hint):
            thing = ds
            for part in path.strip(".").split("."):
                thing = getattr(thing, part)


def test_other_names():
    assert not hasattr(ds, "Taype")
    with pytest.raises(
        AttributeError, match=r"'diffsim\.ad' has no attribute .FwdMode.(?s:.)*To do: "
    ):
        ds.ad.FwdMode


def test_in_a_kernel():
    @ds.kernel
    def run() -> ds.f32:
        return ds.clamp(1.0, 2.0, 3.0)

    with pytest.raises(ds.KernelNameError) as raised:
        run()
    assert raised.value.hint == ABSENT["clamp"]


def test_a_shift_that_fills_up_with_zeros(cpu):
    """What stands in for `bit_shr`: -8 is 2**32 - 8 without its sign."""

    @ds.kernel
    def half(a: ds.i32, b: ds.i32) -> ds.i32:
        return ds.i32(ds.u32(a) >> b)

    assert "ds.i32(ds.u32(a) >> b)" in ABSENT["bit_shr"]
    assert half(-8, 1) == (2**32 - 8) // 2
