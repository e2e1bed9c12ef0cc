"""Random programs of vectors, matrices, structs and funcs against dual numbers, as in `test_programs.py`."""

import collections
import os

import pytest

from tests.fuzz import tensors

COUNT = 400 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 20
ANSWERS = collections.Counter()


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_program_of_tensors(seed, request):
    """Its values and its gradient are those of dual numbers, or it is refused."""
    if seed % 2:  # half of them as users run them
        request.getfixturevalue("quick_code")
    said = tensors.verdict(tensors.make(seed), seed, debug=seed % 3 == 0)
    assert said in ("right", "refused", "invalid"), tensors.make(seed)
    ANSWERS[said] += 1


def test_most_programs_are_not_refused():
    if sum(ANSWERS.values()) < COUNT:
        pytest.skip("not all programs were run")
    assert ANSWERS["right"] > 0.8 * COUNT
