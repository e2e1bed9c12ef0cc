"""Tangents of the kernels of random programs; `make fuzz` makes as many as there is time for."""

import pytest

from tests.fuzz import tangents

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


@pytest.mark.parametrize("seed", range(40, 50))
def test_a_random_program(seed):
    assert tangents.verdict(tangents.make(seed), seed) in ("right", "refused", "invalid")


def test_a_wrong_tangent_is_found(monkeypatch):
    right = tangents.WithTangents.run

    def wrong(self, *args):
        memory, found, result = right(self, *args)
        return memory, {m: a * 1.001 for m, a in found.items()}, result

    monkeypatch.setattr(tangents.WithTangents, "run", wrong)
    said = {tangents.verdict(tangents.make(seed), seed)[:7] for seed in range(40, 44)}
    assert "tangent" in said
