"""Fields of structs: one field for each member, under one name.

The members lie in memory one after the other, each a field with everything that fields have, so kernels,
gradients and tapes need to know nothing of structs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from diffsim.errors import ArgumentError, FieldError, OperationError, Span, shown
from diffsim.ir.types import TensorType, tensor
from diffsim.lang.host.field_like import StructFieldLike
from diffsim.lang.host.func import Func
from diffsim.lang.host.peer_names import OF_STRUCT_FIELDS
from diffsim.lang.host.signatures import checked_methods, is_one_of, need_bool
from diffsim.lang.host.unsupported import no_assignment, no_attribute
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.structs import Struct, StructType, nameless_struct, struct_type
from diffsim.public_names import PublicNames
from diffsim.runtime.fields.adjoints import no_dual
from diffsim.runtime.fields.constructors import make_field
from diffsim.runtime.fields.conversions import index_of
from diffsim.runtime.fields.field import Field
from diffsim.runtime.fields.protocols import FieldProtocols
from diffsim.runtime.variable_names import name_of
from diffsim.tracebacks import entries, entry

_METHODS = (
    "copy_from dual fill from_numpy from_torch get_member_field grad keys name needs_dual needs_grad parent "
    "shape snode to_numpy to_torch"
).split()
"""The public attributes besides the members, as `dir` and messages list them."""


@entries(but="__init__ __dir__ fields call_it in_words")
@checked_methods("fill to_numpy from_numpy to_torch from_torch copy_from parent get_member_field")
class StructField(FieldProtocols, StructFieldLike, metaclass=PublicNames):
    """A field whose elements are structs; made by `Particle.field(shape=n)` or `ds.Struct.field`.

    `particles.pos` is the field of a member; `particles[i]` an element, whose members can be read and
    assigned; `particles.grad` the fields of the gradients.

    Attributes:
        type: the type of its elements.

    Example:
        particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
        particles[0].mass = 2.0
        particles.pos.fill(1.0)
        print(particles[0].mass, particles.pos[3])  # prints: 2.0 [1.0, 1.0]
    """

    _public = " ".join(_METHODS)

    type: StructType
    _struct: dict[str, Any]

    def __init__(
        self, type_: StructType | dict[str, Any], members: dict[str, Any] | None = None
    ) -> None:
        fields = members or {}
        if not isinstance(type_, StructType):  # Taichi's form: fields by name, and methods
            fields, type_ = type_, _type_of(type_, {} if members is None else members)
        self.type = type_
        self._struct = fields

    def __getattr__(self, name: str) -> Any:
        # Past `__getattr__`: copying and pickling ask for attributes before `__init__` has run.
        members = self.__dict__.get("_struct", {})
        if name in members:
            return members[name]
        hint = (OF_STRUCT_FIELDS.get(name) or self.type.advice(name)) if members else ""
        raise no_attribute(
            self.in_words() if members else "a field of structs", name, members, hint
        )

    def __setattr__(self, name: str, value: object) -> None:
        members = self.__dict__.get("_struct", {})
        if name in members:
            raise FieldError(
                f"{name} is a field and cannot be replaced",
                Span.of_caller(),
                hint=f"assign its elements, or copy: .{name}.from_numpy(...), .{name}.copy_from(...)",
            )
        # Members are all that can be assigned to; a subclass of the user's may have attributes of its own.
        if members and (type(self) is StructField or hasattr(StructField, name)):
            hint = "" if hasattr(StructField, name) else self.type.advice(name)
            raise no_assignment(self.in_words(), name, members, hint)
        object.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        return [
            *self._struct,
            *(name for name in object.__dir__(self) if name.startswith("__")),
            *_METHODS,
        ]

    @property
    def keys(self) -> list[str]:
        """The names of the members.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            print(particles.keys)  # prints: ['pos', 'mass']
        """
        return list(self._struct)

    def _first(self) -> Any:
        return next(iter(self._struct.values()))

    @property
    def name(self) -> str:
        """The name of the field.

        Example:
            particles = ds.Struct.field({"mass": ds.f32}, shape=4, name="particles")
            print(particles.name)  # prints: particles
        """
        return self._found_name or "a field of structs"

    @property
    def _found_name(self) -> str:
        return self.given_name or name_of(self)

    @property
    def given_name(self) -> str:
        """The name, if it has one."""
        # Each member is named "name.member".
        return str(self._first().given_name).rpartition(".")[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            print(particles.shape)  # prints: (4,)
        """
        shape: tuple[int, ...] = self._first().shape
        return shape

    @property
    def origin(self) -> tuple[int, ...]:
        """The index of its first element along each axis."""
        origin: tuple[int, ...] = self._first().origin
        return origin

    @property
    def placed(self) -> bool:
        """Whether its memory is allocated."""
        return bool(self._first().placed)

    @property
    def needs_grad(self) -> bool:
        """Whether a member was declared with a gradient.

        Example:
            particles = ds.Struct.field({"mass": ds.f32}, shape=4, needs_grad=True)
            print(particles.needs_grad)  # prints: True
        """
        return any(f.needs_grad for f in self._struct.values())

    @property
    def grad(self) -> StructField | None:
        """The gradients of the members that have one; None if none has.

        Example:
            particles = ds.Struct.field({"mass": ds.f32}, shape=4, needs_grad=True)
            particles.grad.mass.fill(1.0)
            print(particles.grad[3].mass)  # prints: 1.0
        """
        found = {k: f.grad for k, f in self._struct.items() if f.grad is not None}
        # Made at each access: members may get gradients later (`lazy_grad`).
        return self._of_members(found) if found else None

    @property
    def needs_dual(self) -> bool:
        """Whether a member was declared with tangents, for forward mode.

        Example:
            particles = ds.Struct.field({"mass": ds.f32}, shape=4, needs_grad=True)
            print(particles.needs_dual)  # prints: False
        """
        return any(f.needs_dual for f in self._struct.values())

    @property
    @entry
    def dual(self) -> StructField:
        """The duals of the members that have one.

        Example:
            particles = ds.Struct.field({"mass": ds.f32}, shape=4, needs_dual=True)
            particles.dual.mass.fill(1.0)
            print(particles.dual[3].mass)  # prints: 1.0
        """
        found = {k: f.dual for k, f in self._struct.items() if f.needs_dual}
        if not found:
            raise no_dual(self)
        return self._of_members(found)

    @property
    def destroyed(self) -> bool:  # type: ignore[override]
        """Whether it was given up with its layout tree."""
        return bool(self._first().destroyed)

    def _of_members(self, found: dict[str, Any]) -> StructField:
        """Return a field of structs with the types of these members."""
        t = self.type
        return StructField(struct_type(t.__name__, {k: t.members[k] for k in found}), found)

    def parent(self, n: int = 1) -> Any:
        """Return the node of the layout tree that the field is placed in; the n-th around it.

        Example:
            particles = ds.Struct.field({"mass": ds.f32})
            cells = ds.root.dense(ds.i, 4)
            cells.place(particles)
            print(particles.parent() is cells)  # prints: True
        """
        return self._first().parent(n)

    def __copy__(self) -> StructField:
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> StructField:
        return StructField(self.type, copy.deepcopy(self._struct, memo))

    def __reduce_ex__(self, protocol: object) -> Any:
        return StructField, (self.type, self._struct)

    def fields(self) -> list[Field]:
        """Return the fields of all members, also those of structs inside."""
        made: list[Field] = []
        for f in self._struct.values():
            made += f.fields() if isinstance(f, StructField) else [f]
        return made

    def call_it(self, name: str) -> None:
        """Adopt a name for messages and printed IR, unless it has one."""
        for member, f in self._struct.items():
            f.call_it(f"{name}.{member}")

    def in_words(self) -> str:
        name = self._found_name
        return f"the field of structs {name}" if name else "a field of structs"

    def __repr__(self) -> str:
        shape = f"shape {self.shape}" if self.placed else "not placed"
        grad = ", needs_grad=True" if self.needs_grad else ""
        grad += ", needs_dual=True" if self.needs_dual else ""
        named = f"{self.given_name}: " if self.given_name else ""
        members = ", ".join(f"{k}: {t!r}" for k, t in self.type.members.items())
        return f"<field {named}{self.type.__name__}({members}), {shape}{grad}>"

    def _called(self) -> str:
        return self._found_name or "x"

    def _sample(self) -> str:
        # The advice is written for the struct field, not for its first member.
        return f"{self._first_plain()._sample().replace(self._first_plain()._called(), self._called())}"

    def _array_text(self) -> str:
        return f"{self._called()}.{next(iter(self._struct))}.to_numpy()"

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Any:
        # `to_numpy()` gives a dictionary, of which NumPy would make a 0-D array of objects.
        raise OperationError(
            f"{self.in_words()} cannot become one array",
            Span.of_caller(),
            hint=f"take its members, such as {self._array_text()}; to_numpy() gives a dictionary of all",
        )

    # ---- elements and whole contents

    def __getitem__(self, key: object) -> Element:
        found = Element(self, key)
        # Now, so that the error is in the line of the index rather than where a member is used.
        index_of(self._first_plain(), key)
        return found

    def _first_plain(self) -> Field:
        return self.fields()[0]

    def __setitem__(self, key: object, value: object) -> None:
        given = value.to_dict() if isinstance(value, (Struct, Element)) else value
        if not isinstance(given, dict) or set(given) != set(self._struct):
            raise FieldError(
                f"an element of {self.name} is a {self.type.__name__}, not {describe(value)}",
                Span.of_caller(),
                hint=f"give all members: {self.type.__name__}({', '.join(self._struct)})",
            )
        # Member by member, each of which reports to the tape as any field.
        for member, f in self._struct.items():
            f[key] = given[member]

    def get_member_field(self, key: str) -> Any:
        """Return the field of a member, by its name.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            print(particles.get_member_field("mass") is particles.mass)  # prints: True
        """
        if not is_one_of(key, *self._struct):
            raise FieldError(
                f"{self.in_words()} has no member {shown(key)}",
                Span.of_caller(),
                hint=f"its members are {', '.join(self._struct)}",
            )
        return self._struct[key]

    def to_numpy(self) -> dict[str, Any]:
        """Return a copy: an array for each member, by name.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            arrays = particles.to_numpy()
            print(arrays["pos"].shape, arrays["mass"].shape)  # prints: (4, 2) (4,)
        """
        return {member: f.to_numpy() for member, f in self._struct.items()}

    def to_torch(self, device: Any = None) -> dict[str, Any]:
        """Return a copy: a tensor of PyTorch for each member, by name.

        Example:
            import torch

            bodies = ds.types.struct(mass=ds.f32).field(shape=2)
            bodies.from_torch({"mass": torch.tensor([1.0, 2.0])})
            print(bodies.to_torch()["mass"].tolist())  # prints: [1.0, 2.0]
        """
        return {member: f.to_torch(device) for member, f in self._struct.items()}

    def from_torch(self, array_dict: Mapping[str, Any]) -> None:
        """Copy a tensor of PyTorch for each member, by name; members left out stay as they are.

        Example:
            import torch

            bodies = ds.types.struct(mass=ds.f32).field(shape=2)
            bodies.from_torch({"mass": torch.tensor([1.0, 2.0])})
            print(bodies[1].mass)  # prints: 2.0
        """
        self._each(array_dict, lambda f, a: f.from_torch(a))

    def from_numpy(self, array_dict: Mapping[str, object]) -> None:
        """Copy an array for each member, by name, into the field; members left out stay as they are.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            particles.from_numpy({"mass": np.ones(4, dtype=np.float32)})
            print(particles[3].mass)  # prints: 1.0
        """
        self._each(array_dict, lambda f, a: f.from_numpy(a))

    def fill(self, val: object) -> None:
        """Set all elements: to a struct, or all numbers to one number.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            particles.fill(1.0)
            print(particles[3].pos)  # prints: [1.0, 1.0]
        """
        if isinstance(val, (int, float)):
            for f in self._struct.values():
                f.fill(val)
        else:
            given = val.to_dict() if isinstance(val, (Struct, Element)) else val
            self._each(given, lambda f, v: f.fill(v))

    def copy_from(self, other: StructField) -> None:
        """Copy another field of the same shape and type.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            others = ds.clone(particles)
            others.fill(2.0)
            particles.copy_from(others)
            print(particles[3].mass)  # prints: 2.0
        """
        if not isinstance(other, StructField) or other.keys != self.keys:
            raise FieldError(
                f"{self.name} can only be copied from a field of {self.type.__name__}",
                Span.of_caller(),
                hint="copy member by member",
            )
        for member, f in self._struct.items():
            f.copy_from(other._struct[member])

    def _each(self, given: object, do: Callable[[Any, Any], None]) -> None:
        if not isinstance(given, dict) or not set(given) <= set(self._struct):
            raise FieldError(
                f"{self.name} takes a dictionary of its members, not {describe(given)}",
                Span.of_caller(),
                hint=f"its members are {', '.join(self._struct)}",
            )
        # Members that are not given keep their values.
        for member, one in given.items():
            do(self._struct[member], one)


@entries(but="__init__ __dir__ in_words")
class Element:
    """An element of a field of structs: reads and writes go to the field."""

    __slots__ = ("_field", "_key")

    def __init__(self, field: StructField, key: object) -> None:
        # Past `__setattr__`, which writes to the field.
        object.__setattr__(self, "_field", field)
        object.__setattr__(self, "_key", key)

    def _member(self, name: str) -> Any:
        members = self._field._struct
        if name not in members:
            raise no_attribute(self.in_words(), name, members, self._field.type.advice(name))
        return members[name]

    def __getattr__(self, member: str) -> Any:
        if member not in self._field._struct:
            method = self._field.type.method_of(self, member)
            if method is not None:
                return method
            return getattr(self._now(), member)
        return self._member(member)[self._key]

    def __setattr__(self, member: str, value: object) -> None:
        self._member(member)[self._key] = value

    def __dir__(self) -> list[str]:
        return [*self._field._struct, *self._field.type.methods, "to_dict"]

    def __eq__(self, other: object) -> Any:
        # Compared by value, as the elements of other fields, which are numbers.
        return self._now() == (other._now() if isinstance(other, Element) else other)

    # Mutable, and equal by value.
    __hash__ = None  # type: ignore[assignment]

    def _now(self) -> Struct:
        """Copy the element as a struct."""
        members = {m: f[self._key] for m, f in self._field._struct.items()}
        return self._field.type(
            **{m: one._now() if isinstance(one, Element) else one for m, one in members.items()}
        )

    def __reduce_ex__(self, protocol: object) -> Any:
        """Copy and pickle as a struct: what the element is now."""
        return self._now().__reduce__()

    def to_dict(self) -> dict[str, Any]:
        """Return the members by name."""
        made = {}
        for member, f in self._field._struct.items():
            one = f[self._key]
            made[member] = one.to_dict() if isinstance(one, Element) else one
        return made

    def in_words(self) -> str:
        return f"a {self._field.type.__name__}"

    def __repr__(self) -> str:
        inner = ", ".join(f"{k}={v!r}" for k, v in self.to_dict().items())
        return f"{self._field.type.__name__}({inner})"


def make_struct_field(
    t: StructType,
    shape: object,
    name: str,
    needs_grad: bool,
    layout: object,
    needs_dual: bool = False,
    offset: object = None,
) -> StructField:
    """Make the fields of all members."""
    members: dict[str, Any] = {}
    if not isinstance(name, str):
        raise FieldError(
            f"the name of a field is a text, not {shown(name)}",
            Span.of_caller(),
            hint='write name="x"',
        )
    # Before the members are made, whose errors would name one of them.
    need_bool(needs_grad, "needs_grad")
    need_bool(needs_dual, "needs_dual")
    for member, m in t.members.items():
        inner = f"{name}.{member}" if name else ""
        if isinstance(m, StructType):
            members[member] = make_struct_field(
                m, shape, inner, needs_grad, layout, needs_dual, offset
            )
            continue
        element = m.shape if isinstance(m, TensorType) else ()
        # Members that are integers have no gradient in a field that has one.
        grad, dual = bool(needs_grad) and m.is_float, bool(needs_dual) and m.is_float
        members[member] = make_field(element, m.scalar, shape, inner, grad, layout, dual, offset)
    for needs, what in ((needs_grad, "gradient"), (needs_dual, "dual")):
        if not needs or any(getattr(m, f"needs_{what[:4]}") for m in members.values()):
            continue
        raise FieldError(
            f"no member of {t.__name__} can have a {what}",
            Span.of_caller(),
            hint="only floats have derivatives",
        )
    return StructField(t, members)


@checked_methods("__new__ field")
class StructNamespace:
    """`ds.Struct(pos=p, mass=1.0)` makes a struct, `ds.Struct.field({"mass": ds.f32}, shape=n)` a field.

    Example:
        p = ds.Struct(pos=ds.Vector([1.0, 2.0]), mass=2.0)
        particles = ds.Struct.field({"mass": ds.f32}, shape=4)
        particles[0].mass = p.mass
        print(particles.mass[0])  # prints: 2.0
    """

    _diffsim_struct = True  # kernels make structs of run-time values with it

    def __new__(cls, members: Mapping[str, object] | None = None, **more: object) -> Struct:  # type: ignore[misc]
        """Make a struct of these members, of a type without a name."""
        if members is not None and not isinstance(members, Mapping):
            raise ArgumentError(
                f"the members of a struct are a dictionary, not {shown(members)}",
                Span.of_caller(),
                hint="write ds.Struct(mass=1.0), or ds.Struct({'mass': 1.0})",
            )
        return nameless_struct({**(members or {}), **more})

    @staticmethod
    def field(
        members: Mapping[str, object],
        methods: Mapping[str, Func] | None = None,
        shape: object = None,
        name: str = "",
        offset: object = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: object = None,
    ) -> StructField:
        """Make a field of structs with these members; see `StructType.field` for the other arguments.

        `methods` are `@ds.func`s that elements have, by name; their first parameter is the element.

        Example:
            particles = ds.Struct.field({"pos": ds.math.vec2, "mass": ds.f32}, shape=4)
            particles[1].pos = [1.0, 2.0]
            print(particles.pos[1], particles.shape)  # prints: [1.0, 2.0] (4,)
        """
        if not isinstance(members, dict):
            raise FieldError(
                f"the members are a dictionary from names to types, not {describe(members)}",
                Span.of_caller(),
                hint='write ds.Struct.field({"pos": ds.types.vector(3, ds.f32)}, shape=n)',
            )
        methods = {} if methods is None else methods
        if not isinstance(methods, dict) or not all(isinstance(f, Func) for f in methods.values()):
            raise FieldError(
                f"methods are a dictionary from names to @ds.func functions, not {describe(methods)}",
                Span.of_caller(),
                hint="for the number of elements write shape=n",
            )
        t = (
            StructType("struct", members, dict(methods))
            if methods
            else struct_type("struct", members)
        )
        return make_struct_field(t, shape, name, needs_grad, layout, needs_dual, offset)


def _type_of(fields: object, methods: object) -> StructType:
    """Return the type of structs whose members are these fields."""
    if not isinstance(fields, dict) or not isinstance(methods, dict):
        given = fields if not isinstance(fields, dict) else methods
        raise FieldError(
            f"ds.StructField takes dictionaries of fields and of methods, not {describe(given)}",
            Span.of_caller(),
            hint="write ds.Struct.field(dict(mass=ds.f32), shape=4), which makes the fields",
        )
    for name, f in fields.items():
        if not isinstance(f, (Field, StructField)):
            raise FieldError(
                f"{name} of this field of structs is {describe(f)}, not a field",
                Span.of_caller(),
                hint="write ds.Struct.field(dict(mass=ds.f32), shape=4), which makes the fields",
            )
    types = {
        k: f.type if isinstance(f, StructField) else tensor(f.dtype, f.element)
        for k, f in fields.items()
    }
    return struct_type("struct", types, methods)
