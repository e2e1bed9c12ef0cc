"""Every call that Taichi 1.7.4 takes: parameters of these names, in this order, or a reason why not.

`taichi_signatures.txt` lists Taichi's callables: `name(parameter, optional=, *, by_keyword=)`; a line with a
colon is about a method of an object, which `OBJECTS` makes.
"""

import inspect
from pathlib import Path

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import UnknownAttributeError

LINES = (Path(__file__).parent / "taichi_signatures.txt").read_text("utf-8").splitlines()
ABSENT = {
    "frexp get_addr global_thread_idx mesh_patch_idx ref sparse_matrix_builder tools.write_vtk "
    "profiler.CuptiMetric profiler.collect_kernel_profiler_metrics "
    "profiler.get_predefined_cupti_metrics "
    "profiler.set_kernel_profiler_metrics profiler.set_kernel_profiler_toolkit "
    "field:from_paddle field:to_paddle vector_field:from_paddle vector_field:to_paddle "
    "struct_field:from_paddle struct_field:to_paddle ndarray:get_type "
    "node:quant_array builder:quant_array": "not there; the error has advice",
    "ad.FwdMode.clear_seed ad.FwdMode.insert ad.FwdMode.recover_kernels ad.Tape.grad ad.Tape.insert "
    "tools.PLYWriter.print_header tools.PLYWriter.sanity_check struct_type:cast "
    "struct_type:filled_with_scalar": "Taichi's own code calls these",
    "linalg.LinearOperator.matvec": "an attribute of each operator: the kernel",
}
DIFFERENT = {
    "ad.clear_all_gradients": "its parameter has a type that is not public",
    "init": "enable_fallback and require_version are options by name",
    "vector_field:to_numpy": "both orders are taken: see below",
}


def listed(table):
    return {name: reason for names, reason in table.items() for name in names.split()}


@pytest.fixture(scope="module")
def objects():
    ds.init(arch=ds.cpu)
    builder = ds.FieldsBuilder()
    node = builder.dense(ds.i, 2)
    node.place(ds.field(ds.f32))
    struct = ds.types.struct(a=ds.f32)

    @ds.kernel
    def kernel():
        pass

    yield {
        "field": ds.field(ds.f32, 2),
        "vector_field": ds.Vector.field(2, ds.f32, 2),
        "struct_field": struct.field(shape=2),
        "ndarray": ds.ndarray(ds.f32, 2),
        "kernel": kernel,
        "node": node,
        "builder": builder,
        "tree": builder.finalize(),
        "struct_type": struct,
        "vec3": ds.math.vec3,
        "struct": struct(a=1.0),
    }
    ds.reset()


def parameters(text):
    """The parameters of a line: (name, whether it may be left out, "" or "*" or "**")."""
    found, named = [], False
    for part in filter(None, text.split(", ")):
        if part == "*":
            named = True
            continue
        stars = part[: len(part) - len(part.lstrip("*"))]
        found.append((part.strip("*="), part.endswith("="), stars or ("named" if named else "")))
        named = named or stars == "*"
    return found


def test_a_line_is_read():
    assert parameters("") == []
    assert parameters("a, b=, *, c=, **d") == [
        ("a", False, ""),
        ("b", True, ""),
        ("c", True, "named"),
        ("d", False, "**"),
    ]


def misfits(theirs, ours):
    """What a call that fits `theirs` could fail by."""
    ours = [p for p in ours if p.name not in ("self", "a") or p.name in [n for n, *_ in theirs]]
    places = [p for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    by_name = {p.name: p for p in ours}
    for k, (name, optional, kind) in enumerate(theirs):
        if kind == "*" and not any(p.kind is p.VAR_POSITIONAL for p in ours):
            yield from [] if len(places) > k else ["takes no more arguments"]
        elif kind == "named" and name not in by_name:
            yield f"has no {name}"
        elif not kind:
            if k >= len(places) or places[k].name != name:
                yield f"has no {name} in place {k}"
            elif optional and places[k].default is inspect.Parameter.empty:
                yield f"needs {name}"
    known = {name for name, *_ in theirs}
    for p in [] if any(kind == "**" for *_, kind in theirs) else ours:
        if p.name not in known and p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD:
            yield f"needs {p.name}"


def found(name, objects):
    """The callable of diffsim of this name."""
    owner, _, path = name.rpartition(":")
    thing = objects[owner] if owner else ds
    for part in path.split("."):
        thing = getattr(thing, part)
    return thing


def test_calls_of_taichi_fit(objects):
    absent, different, wrong = listed(ABSENT), listed(DIFFERENT), []
    for line in LINES:
        name, text = line.replace(": ", ":").removesuffix(")").split("(", 1)
        try:
            thing = found(name, objects)
        except AttributeError as problem:
            reason = absent.pop(name, "")
            # Advice for this name, not what any misspelt name gets.
            advised = isinstance(problem, UnknownAttributeError) and "there are" not in str(problem)
            if not reason or ("advice" in reason and not advised):
                wrong.append(f"{name} is missing: {problem}")
            continue
        problems = [*misfits(parameters(text), inspect.signature(thing).parameters.values())]
        if problems and not different.pop(name, None):
            wrong.append(f"{name} {problems}")
    assert wrong == []
    assert (absent, different) == ({}, {}), "reasons for what is no longer so"


def test_arrays_of_vectors_in_either_order_of_arguments(cpu):
    v = ds.Vector.field(2, ds.f32, 3)
    v.from_numpy(np.arange(6).reshape(3, 2, 1))  # as matrices of one column
    plain = np.arange(6, dtype=np.float32).reshape(3, 2)
    for array in (v.to_numpy(True), v.to_numpy(keep_dims=True), v.to_numpy(np.float32, True)):
        np.testing.assert_array_equal(array, plain[..., None], strict=True)
    for array in (v.to_numpy(), v.to_numpy(False, np.float32), v.to_numpy(np.float32)):
        np.testing.assert_array_equal(array, plain, strict=True)
    column = ds.Matrix.field(2, 1, ds.f32, 3)
    for array in (plain, plain[..., None]):
        column.fill(0)
        column.from_numpy(array)
        np.testing.assert_array_equal(column.to_numpy(), plain, strict=True)
    np.testing.assert_array_equal(column.to_numpy(True), plain[..., None], strict=True)
    wide = ds.Matrix.field(1, 2, ds.f32, 3)
    with pytest.raises(ds.FieldError, match=r"shape \(3, 1, 2\)"):
        wide.from_numpy(plain)
    assert wide.to_numpy().shape == wide.to_numpy(True).shape == (3, 1, 2)


@ds.kernel
def solved(b: ds.types.vector(2)) -> ds.types.vector(2):
    A = ds.Matrix([[2, 0], [0, 4]])  # of integers
    return ds.solve(A, b, ds.f32) + b.ndim * ds.solve(dt=ds.f32, A=A, b=b)


def test_spellings_of_taichi(cpu):
    assert solved(ds.Vector([1.0, 2.0])).to_list() == [1.0, 1.0]
    a, b = ds.Matrix([[2, 0], [0, 4]]), ds.Vector([1, 2])
    assert ds.solve(a, b, dt=ds.f32).to_list() == ds.solve(a, b, ds.f64).to_list() == [0.5, 0.5]
    assert ds.Vector.rows([[1, 2], [3, 4]]).to_list() == [[1, 2], [3, 4]]
    assert ds.Vector.zero(ds.i32, 2, 1).shape == ds.Vector.one(ds.i32, 2, m=1).shape == (2, 1)
    vec3 = ds.types.vector(3)
    assert (vec3.n, vec3.m, vec3.ndim, vec3.get_shape(), vec3.dtype) == (3, 1, 1, (3,), ds.f32)
    assert ds.types.ndarray(ds.f32, 1, 0, None, None, True, "clamp").clamp
    with pytest.raises(ds.ArgumentError, match="earlier name of ndim"):
        ds.types.ndarray(field_dim=1)
    with pytest.raises(ds.ArgumentError, match="needs the sizes"):
        ds.types.matrix()
    assert ds.Matrix.field(2, 1, ds.f32, 3, ndim=1).element == (2,)
    with pytest.raises(ds.ArgumentError, match="ndim=1"):
        ds.Matrix.field(2, 2, ds.f32, 3, ndim=1)
    ds.init(arch=ds.cpu, debug=0, default_fp=ds.f64)
    assert vec3.dtype is ds.f64


def test_structs_show_their_members_as_taichis(cpu):
    body = ds.types.struct(pos=ds.math.vec2, items=ds.i32)
    one = body(pos=[1.0, 2.0], items=3)
    field = body.field(shape=2)
    field[1] = one
    for thing in (one, field[1]):
        assert thing.keys == ["pos", "items"]
        assert thing.items == 3  # a member comes before Taichi's attribute
        assert list(thing.entries) == thing.keys
    assert list(ds.types.struct(a=ds.i32)(a=1).items) == [("a", 1)]
    assert one.to_dict(include_ndim=True)["__matrix_ndim"] == {"pos": 1}
    assert one.to_dict(True)["__struct_methods"] == {}
