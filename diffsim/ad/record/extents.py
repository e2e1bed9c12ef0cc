"""The elements that the accesses of a kernel reach in a launch, without duplicates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from diffsim.passes.analysis.regions import RegionAccess
from diffsim.runtime.kernels.access_summary import Extent

if TYPE_CHECKING:
    from diffsim.runtime.kernels.specialization import Specialization


def extents(special: Specialization, accesses: Iterable[RegionAccess]) -> list[Extent]:
    """Return extents with the boxes of several accesses, without duplicates."""
    made = (Extent(special.arguments, a) for a in accesses)
    return list({extent.key: extent for extent in made}.values())
