"""Fields in files: arrays; of a field in a sparse tree which cells are active, and all scalars but zeros.

A sparse field x has the arrays "x#tree" (text: the shape, and the cells of each sparse level), "x#runs" and
"x#values" (the scalars that are not 0: first place and length of each run of them in C order, and all of
them), and for each level, outermost first, "x#active0-runs" and "x#active0-values": the active cells,
and the lengths of lists. A gradient activates nothing and has no levels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from diffsim.errors import ArgumentError, DtypeError, FieldError, FileError, Span
from diffsim.lang.host.unsupported import close_to
from diffsim.runtime.fields.contents import caller, write_nonzeros
from diffsim.runtime.fields.field import Field
from diffsim.runtime.layouts.active_sets import active_set, is_inside, levels_of, set_active_set
from diffsim.runtime.memory.nonzeros import Nonzeros, nonzeros, places_of

Arrays = Mapping[str, Any]


def arrays_of(name: str, f: Field) -> dict[str, np.ndarray]:
    """Return the arrays of a field, by their names in a file."""
    if f.tree is None:
        return {name: f.to_numpy()}
    made = {f"{name}#tree": np.asarray(json.dumps(_tree(f)))} | _packed(name, nonzeros(f.storage))
    if not _is_derivative(f):
        for k, found in enumerate(active_set(f)):
            made |= _packed(f"{name}#active{k}", found)
    return made


def names_in(arrays: Arrays) -> list[str]:
    """Return the names of the fields in a file."""
    return list(dict.fromkeys(key.partition("#")[0] for key in arrays))


def check_stored(path: Any, arrays: Arrays, name: str, f: Field) -> None:
    """Check that what a file has under this name fits into a field to the letter."""
    file = os.fsdecode(path)
    if name not in names_in(arrays):
        held = names_in(arrays)
        close = close_to(name, held)
        raise ArgumentError(
            f"{file} holds no {name}; it holds {', '.join(held) or 'nothing'}",
            Span.of_caller(),
            hint=f"did you mean {close}? Write {close}={f.name}"
            if close
            else f"store it: ds.save(path, {name}=...)",
        )
    if (name in arrays) != (f.tree is None):
        is_dense = "is dense", "is in a sparse tree"
        raise FieldError(
            f"{name} {is_dense[name not in arrays]} in {file}, and {f.name} {is_dense[f.tree is not None]}",
            Span.of_caller(),
            hint="make the field in the layout in which it was stored, and copy it in a kernel",
        )
    if f.tree is None:
        _check_form(file, name, f, arrays[name].shape, arrays[name].dtype)
    else:
        _check_sparse(file, arrays, name, f)


def check_one_set(path: Any, arrays: Arrays, fields: Mapping[str, Field]) -> None:
    """Check that fields of one tree were stored with the same active cells."""
    known: dict[Any, tuple[str, Nonzeros]] = {}
    for name, f in fields.items():
        if f.tree is None or _is_derivative(f):
            continue
        levels = zip(levels_of(f), _levels(arrays, name, f), strict=True)
        for cells, found in levels:
            other, known_as = known.setdefault(cells, (name, found))
            if not found.equals(known_as):
                raise FieldError(
                    f"{other} and {name} are in one sparse tree, and {os.fsdecode(path)} has other active "
                    "cells for one than for the other",
                    Span.of_caller(),
                    hint="store fields of one tree by one ds.save, or load them one at a time",
                )


def set_stored(arrays: Arrays, name: str, f: Field) -> None:
    """Set a field to what a file has under this name, which was checked."""
    if f.tree is None:
        f.from_numpy(arrays[name])
        return
    if not _is_derivative(f):
        set_active_set(f, list(_levels(arrays, name, f)), caller())
    write_nonzeros(f, _unpacked(arrays, name))
    f.versions.by_caller()


def _is_derivative(f: Field) -> bool:
    return f.is_grad or f.is_dual


def _packed(name: str, found: Nonzeros) -> dict[str, np.ndarray]:
    separator = "-" if "#" in name else "#"
    return {f"{name}{separator}runs": found.runs(), f"{name}{separator}values": found.values}


def _unpacked(arrays: Arrays, name: str) -> Nonzeros:
    separator = "-" if "#" in name else "#"
    places = places_of(arrays[f"{name}{separator}runs"])
    return Nonzeros(places, arrays[f"{name}{separator}values"])


def _levels(arrays: Arrays, name: str, f: Field) -> Iterator[Nonzeros]:
    for k in range(len(levels_of(f))):
        yield _unpacked(arrays, f"{name}#active{k}")


def _tree(f: Field) -> dict[str, Any]:
    """Return the form of a sparse field, as text can hold it."""
    levels = [cells.level for cells in levels_of(f)]
    return {
        "shape": list(f.shape + f.element),
        "levels": [[list(one.axes), list(one.shape), one.list_axis] for one in levels],
        "node": "" if f.node is None else repr(f.node),
    }


def _check_form(file: str, name: str, f: Field, shape: tuple[int, ...], dtype: np.dtype) -> None:
    wanted = f.shape + f.element
    if shape != wanted:
        raise FieldError(
            f"{name} has the shape {shape} in {file}, and {f.name} has {wanted}",
            Span.of_caller(),
            hint="make the field in the shape in which it was stored",
        )
    if dtype != f.dtype.numpy:
        convert = f'{f.name}.from_numpy(numpy.load(path)["{name}"])'
        raise DtypeError(
            f"{name} is {dtype} in {file}, and {f.name} is {f.dtype}",
            Span.of_caller(),
            hint=f"convert it yourself: {convert}"
            if f.tree is None
            else "make the field of the type in which it was stored",
        )


def _check_sparse(file: str, arrays: Arrays, name: str, f: Field) -> None:
    """Check the arrays of a sparse field: the tree, and that all places are inside."""
    try:
        tree = json.loads(str(arrays[f"{name}#tree"]))
        shape, levels, node = tuple(tree["shape"]), tree["levels"], str(tree["node"])
        dtype = arrays[f"{name}#values"].dtype
    except (KeyError, TypeError, ValueError):
        raise _broken(file, name) from None
    _check_form(file, name, f, shape, dtype)
    if levels != _tree(f)["levels"]:
        raise FieldError(
            f"{name} is in another tree in {file} than {f.name} here: {node}, not {f.node!r}",
            Span.of_caller(),
            hint="place the field in nodes of the same kinds and sizes",
        )
    found = _checked(arrays, name, f.storage.layout.count, f.dtype.numpy)
    masks = []
    if not _is_derivative(f):
        for k, cells in enumerate(levels_of(f)):
            form = cells.mask.storage.layout
            masks.append(_checked(arrays, f"{name}#active{k}", form.count, form.dtype.numpy))
    known = [m for m in masks if m is not None]
    if found is None or len(known) < len(masks) or (known and not is_inside(f, found, known)):
        raise _broken(file, name)


def _checked(arrays: Arrays, name: str, count: int, dtype: Any) -> Nonzeros | None:
    """Return scalars of a file; None: they are missing, or no scalars of a storage with so many of them."""
    separator = "-" if "#" in name else "#"
    if not {f"{name}{separator}runs", f"{name}{separator}values"} <= arrays.keys():
        return None
    runs, values = arrays[f"{name}{separator}runs"], arrays[f"{name}{separator}values"]
    right = runs.ndim == 2 and runs.shape[1] == 2 and runs.dtype.kind == "i" and values.ndim == 1
    if not right or values.dtype != dtype:
        return None
    ends = runs.astype(object).sum(axis=1) if len(runs) else np.zeros(0, np.int64)
    inside = (runs >= 0).all() and (ends <= count).all() and (runs[1:, 0] > ends[:-1]).all()
    if not inside or runs[:, 1].sum() != len(values):
        return None
    return Nonzeros(places_of(runs), values)


def _broken(file: str, name: str) -> FileError:
    return FileError(
        f"{file} does not hold a sparse field {name} as ds.save writes them",
        Span.of_caller(),
        hint="name a file that ds.save has written",
    )
