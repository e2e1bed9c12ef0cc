"""Names that Taichi and Warp have and diffsim has not: each error says what to write."""

import re

import pytest

import diffsim as ds
from diffsim.lang.host import peer_names
from diffsim.lang.host.peer_names import EXACT, FAMILIES, advice_for

ALL = (EXACT, FAMILIES, peer_names.OF_FIELDS, peer_names.OF_TAPES, peer_names.KEYWORDS)


@pytest.mark.parametrize("name", EXACT)
def test_a_name_that_is_not_there(name):
    with pytest.raises(AttributeError, match=re.escape(EXACT[name])):
        getattr(ds, name)
    assert name not in dir(ds.ad) or f"ds.ad.{name}" in EXACT[name]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_names(family):
    name = family.replace("*", "_of_theirs")
    assert advice_for(name) == FAMILIES[family]
    with pytest.raises(AttributeError, match=re.escape(FAMILIES[family])):
        getattr(ds, name)


def test_names_of_another_module():
    with pytest.raises(AttributeError, match=r"Hint: write ds\.ad\.gradcheck"):
        ds.gradcheck


def test_what_is_recommended_is_there():
    for hint in (hint for table in ALL for hint in table.values()):
        for path in re.findall(r"\bds((?:\.\w+)+)", hint):
            thing = ds
            for part in path.strip(".").split("."):
                thing = getattr(thing, part)


def test_options_that_only_tune(cpu):
    """One warning for all, with what happens instead; the options of diffsim's own are taken."""
    tuning = dict.fromkeys(peer_names.TUNING_OF_INIT, 3)
    with pytest.warns(UserWarning, match="no effect here") as caught:
        ds.init(arch=ds.cpu, default_fp=ds.f64, **tuning)
    (warning,) = caught
    for name, instead in peer_names.TUNING_OF_INIT.items():
        assert f"{name}: {instead}" in str(warning.message)
    assert warning.filename == __file__
    assert ds.runtime.session.session.options.default_fp is ds.f64


def test_options_of_taichi_that_set_one_of_ours():
    assert set(peer_names.OPTIONS) == {"print_full_traceback", "check_out_of_bound", "default_up"}
    assert not set(peer_names.OPTIONS) & set(peer_names.TUNING_OF_INIT)


@pytest.mark.parametrize("name", peer_names.OF_FIELDS)
def test_attributes_of_fields(cpu, name):
    x = ds.field(ds.f32, 3)
    with pytest.raises(AttributeError) as caught:
        getattr(x, name)
    assert caught.value.hint == peer_names.OF_FIELDS[name]


@pytest.mark.parametrize("name", peer_names.OF_TAPES)
def test_attributes_of_tapes(name):
    with pytest.raises(AttributeError) as caught:
        getattr(ds.Tape(), name)
    assert caught.value.hint == peer_names.OF_TAPES[name]
    assert not hasattr(ds.Tape(), "_nothing")


@pytest.mark.parametrize("name", peer_names.KEYWORDS)
def test_arguments(cpu, name):
    with pytest.raises(ds.KernelTypeError) as caught:
        ds.field(ds.f32, 3, **{name: True})
    assert caught.value.hint == peer_names.KEYWORDS[name]


def test_other_names():
    assert not hasattr(ds, "Taype")
    with pytest.raises(
        AttributeError, match=r"'diffsim\.ad' has no attribute .autograd.(?s:.)*Hint: "
    ):
        ds.ad.autograd


def test_in_a_kernel():
    @ds.kernel
    def run() -> ds.f32:
        return ds.clamp(1.0, 2.0, 3.0)

    with pytest.raises(ds.KernelNameError) as raised:
        run()
    assert raised.value.hint == EXACT["clamp"]
