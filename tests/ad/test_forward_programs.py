"""Random programs in forward mode, and forward over reverse mode; dual numbers are the oracle.

`make fuzz` runs thousands of them. Some of these were wrong once: in forward mode 20 (a copy of constants)
and 1208 (an input that is set again), in second derivatives 20 (an input declared constant).
"""

import pytest

from tests.fuzz import forward, hessians, programs, rewrites, tensors

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


@pytest.mark.parametrize("seed", [3, 5, 20, 27, 1208])
def test_a_program(seed):
    assert forward.verdict(programs.make(seed), seed) == "right"


@pytest.mark.parametrize(
    ("seed", "kind"), [(6, programs), (20, rewrites), (1, tensors), (15, tensors)]
)
def test_second_derivatives(seed, kind):
    assert hessians.verdict(kind.make(seed), seed) == "right"
