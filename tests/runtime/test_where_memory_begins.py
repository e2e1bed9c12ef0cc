"""Where the memory of fields begins: at cache lines, and large fields at different ones of a page."""

import itertools

import diffsim as ds

LINE, PAGE = 64, 4096


def begins(*shape, count=8):
    """Where in a page each of some fields of f32 begins, which are alive at the same time."""
    fields = [ds.field(ds.f32, shape=shape) for _ in range(count)]
    found = []
    for f in fields:
        f.fill(1.0)
        found.append(f._storage.address % PAGE)
    return found


def test_large_fields_begin_at_different_lines_of_a_page():
    found = begins(512, 512)
    assert len(set(found)) == len(found)
    assert all(at % LINE == 0 for at in found)
    # Multiples of the golden ratio: no two of them are neighbours.
    order = sorted(found)
    assert min(b - a for a, b in itertools.pairwise(order)) >= 3 * LINE


def test_sixty_four_large_fields_take_all_lines_of_a_page():
    assert len(set(begins(256, 128, count=64))) == PAGE // LINE


def test_small_fields_are_aligned():
    assert all(at % LINE == 0 for at in begins(3, 5))
