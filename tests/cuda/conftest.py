"""What tests of GPU runs share: diffsim on a GPU that is not there, and on a real one."""

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


@pytest.fixture
def gpu():
    """diffsim, initialized for the GPU and reset afterwards."""
    import diffsim as ds

    ds.init(arch=ds.cuda)
    yield ds
    ds.reset()
