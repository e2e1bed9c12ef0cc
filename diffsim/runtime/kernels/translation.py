"""Makes a specialization of a kernel: binds its parameters, translates it and prepares its IR.

Called once for each combination of compiled-in arguments and kinds of arrays (`KernelTemplate.specialize`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from diffsim.ir import nodes
from diffsim.ir.nodes import Arg, Mem
from diffsim.ir.types import ScalarType
from diffsim.lang.frontend.translate import Translation
from diffsim.lang.frontend.values import StructValue
from diffsim.lang.host.source import Source
from diffsim.lang.types import flattening
from diffsim.passes.instrument.returned_values import note_returned
from diffsim.passes.transforms.known_shapes import insert_shapes
from diffsim.runtime import compiler
from diffsim.runtime.binding.arguments import (
    ArrayKind,
    ArrayRef,
    Parameter,
    array_ref,
    make_args,
    set_shape,
    takes_field,
)
from diffsim.runtime.binding.template_arguments import objects_in, own
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.struct_field import StructField
from diffsim.runtime.kernels import captures
from diffsim.runtime.kernels.access_summary import LaunchArguments
from diffsim.runtime.kernels.specialization import Specialization
from diffsim.runtime.session import session
from diffsim.runtime.translated.kept_translations import Place
from diffsim.runtime.variable_names import lasting_name_of

if TYPE_CHECKING:
    from diffsim.runtime.kernels.kernel_template import KernelTemplate


def translate(
    kernel: KernelTemplate,
    args: tuple[Any, ...],
    kinds: list[ArrayKind],
    key: tuple[Any, ...],
    *,
    by_field: bool,
) -> Specialization:
    """Translate a kernel for the arguments of a call.

    Args:
        kernel: the kernel.
        args: one for each parameter that a call gives.
        kinds: those of its array arguments, in order.
        key: what the specialization is found by.
        by_field: whether there may be fields in place of floats.
    """
    signature = kernel.signature
    run_time = make_args(signature.parameters)
    bindings: dict[str, object] = {}
    if kernel.owner is not None:
        bindings[signature.parameters[0].name] = kernel.owner()
    # Array parameters so far, in the order of `kinds`: `same` counts in it.
    refs: list[ArrayRef] = []
    given: dict[Arg, Mem] = {}
    values: list[Parameter] = []
    arrays: dict[str, ArrayRef] = {}
    for p, a in zip(kernel.call_parameters, args, strict=True):
        # 1. Bind each parameter to what the translator sees: an argument of the launch, a memory, or the
        # constant itself.
        field_given = by_field and takes_field(p, a)
        if p.kind == "value":
            bindings[p.name] = run_time[p.name]
        if p.kind == "struct":
            parts = [run_time[part.name] for part in p.parts]
            bindings[p.name] = flattening.of_leaves(p.struct, parts, StructValue)
            values += p.parts
            continue
        if p.kind == "array" or field_given:
            # Two parameters that get one array are one memory for the kernel: alias analysis and the
            # adjoint then see every access to it.
            kind = kinds[len(refs)]
            clamp = p.array is not None and p.array.clamp
            like = refs[kind.like] if kind.like >= 0 else None
            refs.append(array_ref(p.name, kind, clamp=clamp, like=like))
            if kind.same >= 0:
                refs[-1] = refs[kind.same].again(clamp=clamp)
            arrays[p.name] = refs[-1]
        # The frontend sees a number all the same; `compiler.prepare` puts the load in its place
        # afterwards, so that the gradient of the number flows to the field.
        if field_given:
            given[run_time[p.name]] = refs[-1]._mem
            p = dataclasses.replace(p, kind="array")
        elif p.kind == "array":
            bindings[p.name] = refs[-1]
        if p.kind != "template":
            values.append(p)
        else:
            # A copy, as the key was made of what is in it now (`template_arguments.own`).
            bindings[p.name] = own(a)
            if isinstance(a, (Field, StructField)):
                a.call_it(lasting_name_of(a) or p.name)
    # 2. Name the fields before the translation, whose messages and IR use the names.
    name_captured_fields(kernel.source)
    # 3. Translate and compile as far as the IR; machine code is made at the launch.
    notes: list[Field] = []
    made, ir = _translated(kernel, bindings, tuple(run_time.values()), given, notes)
    # After the translation, which is the same for all shapes.
    if any(kind.shape is not None for kind in kinds):
        for ref, kind in zip(refs, kinds, strict=True):
            set_shape(ref, kind)
        ir = insert_shapes(ir)
    simplicity = kernel.simplicity or session.options.kernel_simplicity
    launch_arguments = LaunchArguments(values, arrays, kernel.source.name)
    special = Specialization(kernel, key, made, ir, launch_arguments, simplicity)
    special.variants[note_returned] = notes  # kept alive: memories refer to them weakly
    # A dropped field frees its specializations (`Dependencies`), whose keys nobody can ask for any more.
    for p, a in zip(kernel.call_parameters, args, strict=True):
        if p.kind == "template":
            special.dependencies.add(objects_in(a))
    # 4. Refuse now what would be compiled anew at each launch.
    captures.check_lasts(special)
    return special


def _translated(
    kernel: KernelTemplate,
    bindings: dict[str, Any],
    args: tuple[Arg, ...],
    given: dict[Arg, Mem],
    notes: list[Field],
) -> tuple[Translation, nodes.Kernel]:
    """Translate a kernel and prepare its IR, or load both."""
    signature = kernel.signature
    place = None
    # Arguments in fields become loads after the translation, and several results are structs of the program.
    if not given and signature.form is None:
        is_method = kernel.owner is not None
        place = Place(kernel.source, bindings, args, signature.result, is_method=is_method)
        found = place.find()
        if found is not None:
            return found
    result = signature.form or signature.result
    made = compiler.translate(kernel.source, bindings, args, result)
    prepared = compiler.prepare(made.kernel, given)
    ir = note_returned(prepared, functools.partial(_new_notes, notes))
    if place is not None and not notes:
        place.keep(made, ir)
    return made, ir


def _new_notes(made: list[Field], name: str, t: ScalarType, shape: tuple[int, ...]) -> Mem:
    """Return the memory of a new field, which is added to those that were made."""
    notes = Field(t, (), name=name)
    notes.place(shape)
    made.append(notes)
    memory: Mem = notes._mem
    return memory


def name_captured_fields(source: Source) -> None:
    """Name the fields which a kernel uses after their variables."""
    # Python's own tables of the names in the function's code: globals and attributes in `co_names`, variables
    # of enclosing functions in `co_freevars`. A name in them that means something else does no harm: the
    # field gets a name at most.
    function = source.function
    code, space = function.__code__, function.__globals__
    captured = [(name, space.get(name)) for name in code.co_names]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        # A variable that is assigned after the kernel is defined: its cell is still empty.
        with contextlib.suppress(ValueError):
            captured.append((name, cell.cell_contents))
    for name, value in captured:
        if isinstance(value, Field) and value._shape is not None:
            value.call_it(name)
