"""Sorting and prefix sums of fields, under Taichi's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, FieldError, Span, shown
from diffsim.ir.types import i32
from diffsim.lang.builtins.intrinsics import loop_config
from diffsim.lang.host.annotations import template
from diffsim.lang.host.signatures import checked, checked_methods, need_count
from diffsim.public_names import names_of_module
from diffsim.runtime.fields.constructors import field, make_field
from diffsim.runtime.fields.field import Field
from diffsim.runtime.kernels.kernel import kernel

__all__ = ["PrefixSumExecutor", "parallel_sort"]
__dir__ = names_of_module(__all__)
_BLOCK = 1024


@kernel
def _gather(source: template(), order: template(), out: template()) -> None:  # type: ignore[valid-type]
    for i in source:
        out[i] = source[order[i]]


@kernel
def _copy(source: template(), out: template()) -> None:  # type: ignore[valid-type]
    for i in source:
        out[i] = source[i]


@checked
def parallel_sort(keys: Field, values: Field | None = None) -> None:
    """Sort a field with one axis in place, from small to large; equal keys keep their order.

    On a tape the gradients of keys and values go to where their numbers came from: the order counts as
    constant.

    Args:
        keys: what is sorted.
        values: a field of the same length, which is brought into the same order.

    Example:
        keys = ds.field(ds.i32, shape=3)
        keys.from_numpy(np.array([3, 1, 2], np.int32))
        ds.algorithms.parallel_sort(keys)
        print(keys.to_numpy())  # prints: [1 2 3]
    """
    given = [keys] if values is None else [keys, values]
    for f in given:
        if not isinstance(f, Field) or len(f.shape) != 1 or f.shape != keys.shape:
            raise FieldError(
                f"parallel_sort takes fields with one axis of one length, not {shown(f)}",
                Span.of_caller(),
                hint="write ds.algorithms.parallel_sort(keys, values)",
            )
    if keys.element:
        raise ArgumentError(
            "vectors have no order", Span.of_caller(), hint="sort by a field of numbers, as keys"
        )
    # The answer of a comparison is constant where it has a derivative.
    _need_no_offset(*given)
    order = field(i32, shape=keys.shape)
    order.from_numpy(np.argsort(_plain(keys), kind="stable").astype(np.int32))
    for f in given:
        sorted_ = _like(f)
        _gather(f, order, sorted_)
        _copy(sorted_, f)


def _need_no_offset(*fields: Field) -> None:
    for f in fields:
        if any(f.origin):
            raise FieldError(
                f"{f.name} has an offset, and is sorted or summed from index 0 on",
                Span.of_caller(),
                hint="copy it to a field without one: y.copy_from(x), and back",
            )


def _plain(f: Field) -> np.ndarray:
    """Return the numbers of a field, as constants."""
    numbers: Any = f.to_numpy()
    return np.array(numbers)


def _like(f: Field) -> Field:
    made: Field = make_field(f.element, f.dtype, f.shape, "", f.needs_grad, None)
    return made


@kernel
def _sum_blocks(x: template(), sums: template(), n: i32) -> None:  # type: ignore[valid-type]
    for b in sums:
        s = x[b * _BLOCK]
        for k in range(b * _BLOCK + 1, min(n, (b + 1) * _BLOCK)):
            s += x[k]
            x[k] = s
        sums[b] = s


@kernel
def _sum_serially(sums: template()) -> None:  # type: ignore[valid-type]
    loop_config(serialize=True)
    for b in range(1, sums.shape[0]):
        sums[b] += sums[b - 1]


@kernel
def _add_sums(x: template(), sums: template()) -> None:  # type: ignore[valid-type]
    for i in x:
        if i >= _BLOCK:
            x[i] += sums[i // _BLOCK - 1]


@checked_methods()
class PrefixSumExecutor:
    """Inclusive prefix sums, in place: `x[i]` becomes `x[0] + ... + x[i]`.

    Args:
        length: the number of elements of the fields that it is run on.

    Example:
        x = ds.field(ds.i32, shape=4)
        x.fill(2)
        ds.algorithms.PrefixSumExecutor(4).run(x)
        print(x.to_numpy())  # prints: [2 4 6 8]
    """

    def __init__(self, length: int) -> None:
        need_count(length, "a length", 1, "write ds.algorithms.PrefixSumExecutor(n)")
        self.length = int(length)

    def run(self, input_arr: Field) -> None:
        """Replace the numbers of a field by their prefix sums."""
        x = input_arr
        if not isinstance(x, Field) or x.shape != (self.length,) or x.element or x.dtype.is_bool:
            raise FieldError(
                f"this sums fields of {self.length} numbers, not {shown(x)}",
                Span.of_caller(),
                hint="make an executor for that length",
            )
        _need_no_offset(x)
        sums = field(x.dtype, shape=-(-self.length // _BLOCK), needs_grad=x.needs_grad)
        _sum_blocks(x, sums, self.length)
        _sum_serially(sums)
        _add_sums(x, sums)
