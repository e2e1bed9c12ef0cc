"""Random programs in forward mode: launches, writes from Python, functions; dual numbers are the oracle.

`make fuzz` runs thousands of them. Two of these were wrong once: 20 (a copy of constants) and 1208 (an input
that is set again).
"""

import pytest

from tests.fuzz import forward, programs

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


@pytest.mark.parametrize("seed", [3, 5, 20, 27, 1208])
def test_a_program(seed):
    assert forward.verdict(programs.make(seed), seed) == "right"
