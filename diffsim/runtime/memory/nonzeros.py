"""The scalars of a storage that are not 0, with their places: what copies and files of sparse fields hold.

A place is the number of a scalar in the order of an array of shape `layout.shape` + (components,), whatever
its order in memory. A scalar is 0 if all of its bits are, so -0.0 is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diffsim.backends.native.pool import wait
from diffsim.runtime.memory.reserved import ReservedStorage
from diffsim.runtime.memory.storage import HostStorage, Storage, StorageLayout


@dataclass(frozen=True, eq=False)
class Nonzeros:
    """Scalars that are not 0.

    Attributes:
        places: ascending.
        values: the scalar of each place.
    """

    places: np.ndarray
    values: np.ndarray

    def only(self, chosen: np.ndarray) -> Nonzeros:
        """Return those that are chosen."""
        return Nonzeros(self.places[chosen], self.values[chosen])

    def runs(self) -> np.ndarray:
        """Return the first place and the length of each run of places without a gap."""
        places = self.places
        first = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        lengths = np.diff(first, append=len(places))
        return np.stack([places[first], lengths], axis=1)

    def equals(self, other: Nonzeros) -> bool:
        """Return whether these are the same numbers at the same places."""
        return np.array_equal(self.places, other.places) and np.array_equal(
            self.values, other.values
        )


def places_of(runs: np.ndarray) -> np.ndarray:
    """Return the places that runs are made of."""
    first, lengths = runs[:, 0], runs[:, 1]
    begins = np.cumsum(lengths) - lengths
    return np.repeat(first - begins, lengths) + np.arange(int(lengths.sum()))


def nonzeros(storage: Storage) -> Nonzeros:
    """Return the scalars of a storage that are not 0."""
    wait()
    if not isinstance(storage, HostStorage):
        flat = np.ascontiguousarray(storage.to_numpy()).reshape(-1)
        found = np.flatnonzero(_bits(flat))
        return Nonzeros(found, flat[found])
    parts = [begin + np.flatnonzero(_bits(part)) for begin, part in _parts(storage)]
    at = np.concatenate([np.zeros(0, np.int64), *parts])
    places = _places(storage.layout, at)
    order = np.argsort(places, kind="stable")
    return Nonzeros(places[order], storage.scalars[at[order]])


def put(storage: Storage, found: Nonzeros) -> None:
    """Set these scalars, and all others to 0."""
    wait()
    if isinstance(storage, HostStorage):
        storage.fill(0)
        storage.scalars[_addresses(storage.layout, found.places)] = found.values
        return
    layout = storage.layout
    array = np.zeros((*layout.shape, layout.components), layout.dtype.numpy)
    array.reshape(-1)[found.places] = found.values
    storage.from_numpy(array)


def _bits(scalars: np.ndarray) -> np.ndarray:
    return scalars.view(f"u{scalars.dtype.itemsize}")


def _parts(storage: HostStorage) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the parts of a storage's memory that may hold anything but zeros, and where they begin."""
    if not isinstance(storage, ReservedStorage):
        yield 0, storage.scalars
        return
    width = storage.layout.dtype.bytes
    for begin, end in storage.runs(0, storage.layout.nbytes):
        yield begin // width, storage.scalars[begin // width : end // width]


def _steps(layout: StorageLayout) -> list[tuple[int, int]]:
    """Return stride and length of each axis, that of the components last."""
    strides = (*layout.strides, layout.component_stride)
    return list(zip(strides, (*layout.shape, layout.components), strict=True))


def _places(layout: StorageLayout, addresses: np.ndarray) -> np.ndarray:
    places = np.zeros_like(addresses)
    for stride, n in _steps(layout):
        places = places * n + addresses // stride % n
    return places


def _addresses(layout: StorageLayout, places: np.ndarray) -> np.ndarray:
    addresses = np.zeros_like(places)
    for stride, n in reversed(_steps(layout)):
        addresses += places % n * stride
        places = places // n
    return addresses
