"""Fields in files: `ds.save` and `ds.load`. A file holds arrays in NumPy's format .npz, and nothing else.

Files are written beside their place and renamed, so a reader finds the old file or the new one, and never
half of one. Nothing is unpickled: a file from a stranger can hold wrong numbers, but no program.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from diffsim.errors import FieldError, FileError, Span
from diffsim.lang.host.signatures import checked, need_path
from diffsim.lang.types.descriptions import describe
from diffsim.optim.runs.stored_fields import arrays_of, check_one_set, check_stored, set_stored
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField
from diffsim.runtime.files import write_file


@checked
def save(path: Any, /, *fields: Any, **named: Any) -> None:
    """Write the values of fields to a file, which `ds.load` and `numpy.load` read.

        ds.save("weights.npz", w, b)
        ds.save("state.npz", position=x, velocity=v)

    Args:
        path: where; a file that is there is replaced when all is written.
        fields: stored under the names that the program has for them.
        named: stored under these names. A field of structs is stored as "name.member" for each member, one
            in a sparse tree with the cells that are active.

    Raises:
        ArgumentError: a field without a name, two of one name; the file cannot be written.

    Example:
        w = ds.field(ds.f32, shape=3)
        w.fill(1.5)
        ds.save("weights.npz", w)
        print(np.load("weights.npz")["w"].tolist())  # prints: [1.5, 1.5, 1.5]
    """
    need_path(path, "the path")
    arrays: dict[str, Any] = {}
    for name, f in _named(fields, named).items():
        arrays |= arrays_of(name, f)
    write_arrays(path, arrays)


@checked
def load(path: Any, /, *fields: Any, **named: Any) -> None:
    """Read the values of fields from a file that `ds.save` has written.

    All names, shapes and types are checked before the first field changes. In a sparse tree the cells are
    active then that were when the file was written, and no others.

    Args:
        path: of the file.
        fields: read from what is stored under the names that the program has for them.
        named: read from what is stored under these names. The file may hold others as well.

    Raises:
        ArgumentError: there is no such file, or it is no file of arrays; a name is missing, a shape or a
            type differs.

    Example:
        w, v = ds.field(ds.f32, shape=3), ds.field(ds.f32, shape=3)
        w.fill(1.5)
        ds.save("weights.npz", w)
        ds.load("weights.npz", w=v)
        print(v[2])  # prints: 1.5
    """
    need_path(path, "the path")
    wanted = _named(fields, named)
    arrays = read_arrays(path)
    for name, f in wanted.items():
        check_stored(path, arrays, name, f)
    check_one_set(path, arrays, wanted)
    for name, f in wanted.items():
        set_stored(arrays, name, f)


def _named(fields: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Field]:
    """Return the fields by the names that they have in a file."""
    found: dict[str, Field] = {}
    for name, f in _all(fields, named):
        if name in found:
            raise FieldError(
                f"there are two fields of the name {name}",
                Span.of_caller(),
                hint=f"name them: ds.save(path, {name}=x, other=y)",
            )
        found[name] = f
    if not found:
        raise FieldError(
            "no field is named",
            Span.of_caller(),
            hint="give fields: ds.save(path, x, v), and the same to ds.load",
        )
    return found


def _all(fields: tuple[Any, ...], named: Mapping[str, Any]) -> Iterator[tuple[str, Field]]:
    for k, f in enumerate(fields):
        if not isinstance(f, (Field, StructField)):
            raise FieldError(
                f"argument {k + 2} is {describe(f)}, and what is stored are fields",
                Span.of_caller(),
                hint="give fields, by name if you like: ds.save(path, x, velocity=v)",
            )
        if not f._found_name:
            raise FieldError(
                f"argument {k + 2} is a field without a name, under which it could be stored",
                Span.of_caller(),
                hint="name it: ds.save(path, x=field)",
            )
        yield from _members(f._found_name, f)
    for name, f in named.items():
        if not isinstance(f, (Field, StructField)):
            raise FieldError(
                f"{name} is {describe(f)}, and what is stored are fields",
                Span.of_caller(),
                hint="give fields; arrays are stored by numpy.savez",
            )
        yield from _members(name, f)


def _members(name: str, f: Field | StructField) -> Iterator[tuple[str, Field]]:
    if isinstance(f, Field):
        _ = f.shape  # which refuses a field without a place in memory
        yield name, f
    else:
        for key in f.keys:
            yield from _members(f"{name}.{key}", getattr(f, key))


def write_arrays(path: Any, arrays: Mapping[str, Any]) -> None:
    """Write arrays to a file, all or nothing."""
    file = io.BytesIO()
    # `savez` would take a name such as "file" for its own argument.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    write_file(path, file.getvalue())


def read_arrays(path: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a file.

    Raises:
        ArgumentError: it cannot be read, or is another kind of file.
    """
    name = os.fsdecode(path)
    try:
        with open(name, "rb") as file:  # NumPy leaves a broken archive open
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.lib.npyio.NpzFile):
                return {key: found[key] for key in found.files}
        reason = "it holds a single array without a name"
    except FileNotFoundError:
        raise FileError(
            f"{name}: there is no such file",
            Span.of_caller(),
            hint="name a file that ds.save has written",
        ) from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        # Of any other file NumPy says that it may be loaded as a pickle, which may run any program.
        reason = "it is no archive of arrays" if "If you trust" in str(error) else str(error)
    raise FileError(
        f"{name} is not a file that ds.save has written: {reason}",
        Span.of_caller(),
        hint="name one that it has written; pictures and other data are read by their own libraries",
    )
