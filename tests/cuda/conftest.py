"""What tests of the GPU's host side share."""

import pytest

from diffsim.runtime import session
from tests.cuda import fake as fakes


@pytest.fixture
def fake(monkeypatch):
    """diffsim on a fake GPU; `fake.driver` is its driver."""
    import diffsim as ds

    fakes.install(monkeypatch.setattr)
    ds.init(arch=ds.cuda)
    monkeypatch.setattr(ds, "driver", session.session.device.driver, raising=False)
    yield ds
    ds.reset()
    ds.init(arch=ds.cpu)
