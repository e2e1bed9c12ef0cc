"""What tests of backends share."""

import pytest

from diffsim.backends.native.jit import Jit


@pytest.fixture(scope="module")
def jit() -> Jit:
    """The compiler in the process."""
    return Jit()
