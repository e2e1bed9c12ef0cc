"""What a kernel is compiled for never becomes stale silently: constants reached in any way."""

import gc

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import KernelStateError
from diffsim.runtime.kernels import captures


class Body:
    """A plain object, as programs hold them."""

    def __init__(self, mass):
        self.mass = mass
        self.place = number(mass)


class Slotted:
    __slots__ = ("mass",)

    def __init__(self, mass):
        self.mass = mass


def number(value=0.0):
    made = ds.field(ds.f64, ())
    made[None] = value
    return made


@pytest.fixture(autouse=True)
def doubles():
    ds.init(default_fp=ds.f64)


def reaches():
    """For each way to a number: a kernel that puts it into `out`, and what changes it to 5."""
    out = number()
    bodies, slotted = [Body(1.0), Body(1.0)], [Slotted(1.0)]
    table = {"mass": 1.0, 3: [1.0], (1, 2): Body(1.0)}
    alone = Body(1.0)

    @ds.func
    def mass_of(b):
        return b.mass

    @ds.kernel
    def element():
        out[None] = bodies[0].mass

    @ds.kernel
    def unrolled():
        for b in ds.static(bodies):
            out[None] = b.mass

    @ds.kernel
    def in_slots():
        out[None] = slotted[0].mass

    @ds.kernel
    def key():
        out[None] = table["mass"]

    @ds.kernel
    def list_in_dict():
        out[None] = table[3][0]

    @ds.kernel
    def object_in_dict():
        out[None] = table[1, 2].mass

    @ds.kernel
    def passed_on():
        out[None] = mass_of(alone)

    @ds.kernel
    def renamed():
        b = alone
        out[None] = b.mass

    @ds.kernel
    def template(b: ds.template()):
        out[None] = b.mass

    def change(thing):
        thing.mass = 5.0

    return {
        "an element of a list": (element, lambda: change(bodies[0])),
        "an unrolled loop": (unrolled, lambda: change(bodies[1])),
        "a class with slots": (in_slots, lambda: change(slotted[0])),
        "a dictionary": (key, lambda: table.update(mass=5.0)),
        "a list in a dictionary": (list_in_dict, lambda: table[3].__setitem__(0, 5.0)),
        "an object in a dictionary": (object_in_dict, lambda: change(table[1, 2])),
        "a func's argument": (passed_on, lambda: change(alone)),
        "another name": (renamed, lambda: change(alone)),
        "a template argument": (lambda: template(alone), lambda: change(alone)),
    }, out


def test_a_list_of_fields_is_compared_without_calls(monkeypatch):
    """Whatever changes in it is seen, and the same fields in another list are the same."""
    fields, out = [number(1.0), number(2.0)], number()
    holder = Body(0.0)
    holder.fields = fields

    @ds.kernel
    def add():
        out[None] = 0.0
        for f in ds.static(holder.fields):
            out[None] += f[None]

    def total():
        add()
        return out[None]

    assert total() == 3.0
    with monkeypatch.context() as m:
        m.setattr(captures, "compare", None)
        m.setattr(captures, "recheck", None)
        assert total() == 3.0
    fields[1] = number(5.0)
    assert total() == 6.0
    fields[0], fields[1] = fields[1], fields[0]
    assert total() == 6.0
    fields[0][None] = 7.0
    assert total() == 8.0
    holder.fields = [fields[1]]
    with pytest.raises(KernelStateError, match="fields"):
        add()
    holder.fields = tuple(fields)
    with pytest.raises(KernelStateError, match="fields"):
        add()
    holder.fields = [*fields]
    assert total() == 8.0
    holder.fields = [fields[0], None]
    with pytest.raises(ds.DiffsimError):
        add()
    holder.fields = fields
    assert total() == 8.0
    # Gone, and nothing in its place: what is no field is not what is gone.
    del fields[1]
    gc.collect()
    fields.append(None)
    with pytest.raises(ds.DiffsimError):
        add()


class Parts:
    """A kernel that reads several attributes of an object, and of one of its parts."""

    def __init__(self):
        self.out, self.one, self.two = number(), number(1.0), number(2.0)
        self.part = Body(3.0)

    @ds.kernel
    def add(self):
        self.out[None] = self.one[None] + self.two[None] + self.part.place[None]


def test_a_new_object_at_each_of_several_places():
    parts = Parts()
    asked = []

    class Asking(Body):
        @property
        def place(self):
            asked.append(self)
            return self._place

        @place.setter
        def place(self, field):
            self._place = field

    for change, expected in [
        (lambda: None, 6.0),
        (lambda: setattr(parts, "two", number(5.0)), 9.0),
        (lambda: setattr(parts, "part", Asking(7.0)), 13.0),
        (lambda: setattr(parts.part, "place", number(0.5)), 6.5),
        (lambda: setattr(parts, "one", number(0.0)), 5.5),
    ]:
        change()
        for _ in range(4):
            parts.add()
            assert parts.out[None] == expected
    asked.clear()
    parts.add()
    assert len(asked) == 1
    del parts.part
    with pytest.raises((KernelStateError, AttributeError, ds.DiffsimError)):
        parts.add()


@pytest.mark.parametrize("way", list(reaches()[0]))
def test_a_number_that_changes_is_noticed(way):
    ways, out = reaches()
    kernel, change = ways[way]
    kernel()
    kernel()
    assert out[None] == 1.0
    change()
    with pytest.raises(KernelStateError, match=r"1\.0.* when .* was compiled"):
        kernel()


TEMPLATES = {
    "list": lambda v: [v],
    "tuple": lambda v: (v, 2.0),
    "array": lambda v: np.array([v]),
    "vector": lambda v: ds.Vector([v, 1.0]),
    "nested": lambda v: ([v], 1)[0],
    "dict": lambda v: {0: v},
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_constants_given_as_templates_count_by_value(kind):
    """Not by address: the next list may well lie where the last one was."""
    out = number()

    @ds.kernel
    def first(a: ds.template()):
        out[None] = a[0]

    for v in (1.0, 4.0, 5.0, 1.0):
        first(TEMPLATES[kind](v))
        assert out[None] == v
        gc.collect()
    kept = TEMPLATES[kind](1.0)
    first(kept)
    if kind != "tuple":
        kept[0] = 7.0
        first(kept)
        assert out[None] == 7.0


def test_objects_given_as_templates_count_by_themselves():
    out = number()

    @ds.kernel
    def mass(b: ds.template()):
        out[None] = b.mass

    @ds.kernel
    def place(b: ds.template()):
        out[None] = b.place[None]

    for v in (1.0, 4.0, 5.0):
        mass(Body(v))
        assert out[None] == v
        place(Body(v + 1))
        assert out[None] == v + 1
        mass(Slotted(v))
        assert out[None] == v
        gc.collect()


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_fields_in_containers_given_as_templates(kind):
    out, kept = number(), []

    @ds.kernel
    def first(a: ds.template()):
        out[None] = a[0][None]

    for v in (1.0, 4.0, 5.0):
        kept.append([number(v)] if kind == "list" else {0: number(v)})
        first(kept[-1])
        assert out[None] == v
    first(kept[0])
    assert out[None] == 1.0


def test_a_field_replaced_in_a_kernel_with_templates():
    """Compiled anew, with the arguments that only the caller knows."""
    out, factor, other = number(), number(2.0), number(3.0)
    b = Body(1.0)

    @ds.kernel
    def product(a: ds.template(), c: ds.template(), s: ds.f64):
        out[None] = factor[None] * a[None] * c.place[None] * s

    product(other, b, 1.0)
    assert out[None] == 6.0
    kept, factor = factor, number(5.0)
    product(other, b, 2.0)
    assert out[None] == 30.0
    old, b.place = b.place, number(7.0)
    product(other, b, s=2.0)
    assert out[None] == 210.0
    assert (kept[None], old[None]) == (2.0, 1.0)


def test_a_gradient_with_a_new_object_of_constants():
    x, loss = ds.field(ds.f64, 2, needs_grad=True), ds.field(ds.f64, (), needs_grad=True)

    @ds.kernel
    def weigh(w: ds.template()):
        for i in x:
            for k in ds.static(range(2)):
                loss[None] += w[k] * x[i]

    for a in (1.0, 2.0, 3.0):
        with ds.Tape(loss):
            weigh([a, 10.0])
        assert x.grad.to_numpy().tolist() == [a + 10] * 2


def test_a_dictionary_that_is_unrolled_is_watched():
    out, table = number(), {"a": 1.0}

    @ds.kernel
    def run():
        for _, v in ds.static(table.items()):
            out[None] += v

    run()
    assert out[None] == 1.0
    for change in ({"a": 2.0}, {"a": 1.0, "b": 3.0}):
        table.clear()
        table.update(change)
        with pytest.raises(KernelStateError):
            run()


TABLES = {
    "tuple": lambda: ((1, 0.0), (0, 2.0)),
    "list of tuples": lambda: [(1, 0.0), (0, 2.0)],
    "list of lists": lambda: [[1, 0.0], [0, 2.0]],
    "tuple of lists": lambda: ([1, 0.0], [0, 2.0]),
    "numbers": lambda: [1, 0.0, 2.0],
}


def summing(table):
    """A kernel that unrolls a table, and where it puts the sum."""
    out = number()

    @ds.kernel
    def run():
        out[None] = 0.0
        for row in ds.static(table):
            out[None] += row[1] if isinstance(row, (list, tuple)) else row

    run()
    return run, out


@pytest.mark.parametrize("kind", TABLES)
def test_the_same_table_is_not_compared_number_by_number(kind, monkeypatch):
    """Launches of a time step would take as long as ten others for a table of nine rows."""
    run, out = summing(TABLES[kind]())
    run()
    first, calls = out[None], []
    monkeypatch.setattr(captures, "compare", lambda now, kept: calls.append(now))
    monkeypatch.setattr(captures, "source_of", lambda now: calls.append(now))
    run()
    assert (calls, out[None]) == ([], first)


@pytest.mark.parametrize("kind", [k for k in TABLES if k != "tuple"])
@pytest.mark.parametrize("value", [3.0, -0.0, 0, False, None, "text"])
def test_a_table_that_changes_is_seen(kind, value):
    """Also where the new number is equal: in a kernel 0, 0.0, False and -0.0 are different ones."""
    table = TABLES[kind]()
    run, _ = summing(table)
    run()
    if kind == "list of tuples":
        table[0] = 1, value
    elif kind == "numbers":
        table[1] = value
    else:
        table[0][1] = value
    with pytest.raises(KernelStateError, match="was compiled and is"):
        run()


@pytest.mark.parametrize("kind", TABLES)
def test_an_equal_table_is_the_same_constant(kind):
    tables = [TABLES[kind]()]
    out = number()

    @ds.kernel
    def run():
        out[None] = 1.0 * len(tables[0])

    run()
    tables[0] = TABLES[kind]()
    run()
    assert out[None] == len(tables[0])


@pytest.mark.parametrize(
    "wrap", [lambda k: [k], lambda k: [(k,)], lambda k: [[k]], lambda k: ((k,),)]
)
def test_a_number_of_a_table_that_has_an_origin(wrap):
    """It has the same value, but a derivative, which a constant would lose."""
    x, loss = ds.field(ds.f64, (), needs_grad=True), ds.field(ds.f64, (), needs_grad=True)
    x[None] = 2.0
    tables = [wrap(2.0)]

    @ds.kernel
    def run():
        for _ in ds.static(tables[0]):
            loss[None] += 1.0

    run()
    with pytest.raises(ds.AutodiffError, match="read the field in the kernel"), ds.Tape(loss):
        tables[0] = wrap(x[None])
        run()


VECTORS = {
    "vector": lambda: ds.Vector([1.0, 0.0]),
    "list": lambda: [ds.Vector([1.0, 0.0]), ds.Vector([2.0, 3.0])],
    "matrix": lambda: ds.Matrix([[1.0, 0.0], [2.0, 3.0]]),
}


def first_of(vectors):
    """A kernel that has captured vectors, and where it puts the first row's second number."""
    out = number()

    @ds.kernel
    def of_list():
        for row in ds.static(vectors):
            if row[0] < 2.0:
                out[None] = row[1]

    @ds.kernel
    def of_matrix():
        out[None] = vectors[0, 1]

    @ds.kernel
    def of_vector():
        out[None] = vectors[1]

    run = of_list if isinstance(vectors, list) else of_matrix
    run = of_vector if not isinstance(vectors, list) and vectors.shape == (2,) else run
    run()
    return run, out


@pytest.mark.parametrize("kind", VECTORS)
def test_the_same_vectors_are_not_compared_in_parts(kind, monkeypatch):
    run, out = first_of(VECTORS[kind]())
    run()
    calls = []
    monkeypatch.setattr(captures, "compare", lambda now, kept: calls.append(now))
    monkeypatch.setattr(captures, "source_of", lambda now: calls.append(now))
    run()
    assert (calls, out[None]) == ([], 0.0)


def test_constants_of_a_number_type_are_made_once(monkeypatch):
    """`ds.Vector.zero(float, 2)` depends on nothing that a launch would have to ask again."""
    out, kind = number(), float

    @ds.kernel
    def run():
        made = ds.Matrix.identity(kind, 2) @ ds.Vector.one(float, 2) + ds.Vector.zero(int, 2)
        out[None] = made[1] + ds.Vector.unit(2, 1, kind)[1] / 2

    run()
    assert out[None] == 1.5
    calls = []
    monkeypatch.setattr(ds.Matrix, "_as_constant", lambda self: calls.append(self))
    run()
    assert (calls, out[None]) == ([], 1.5)
    monkeypatch.undo()
    kind = int
    run()
    assert out[None] == 1.5


@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.parametrize("value", [3.0, -0.0])
def test_a_vector_that_changes_is_seen(kind, value):
    vectors = VECTORS[kind]()
    run, _ = first_of(vectors)
    run()
    if kind == "matrix":
        vectors[0, 1] = value
    else:
        (vectors[0] if kind == "list" else vectors)[1] = value
    with pytest.raises(KernelStateError, match="was compiled and is"):
        run()


@pytest.mark.parametrize("kind", VECTORS)
def test_a_vector_of_another_type_or_with_an_origin(kind):
    """Equal numbers: with whole ones it is another constant, with one from a field it has a derivative."""
    x, loss = ds.field(ds.f64, (), needs_grad=True), ds.field(ds.f64, (), needs_grad=True)
    held = [VECTORS[kind]()]

    @ds.kernel
    def run():
        for _ in ds.static(held):
            loss[None] += 1.0

    run()
    whole = {"vector": [1, 0], "list": [ds.Vector([1, 0]), ds.Vector([2, 3])]}
    whole["matrix"] = [[1, 0], [2, 3]]
    other = whole[kind] if kind == "list" else ds.Matrix(whole[kind])
    held[0] = other
    with pytest.raises(KernelStateError):
        run()
    held[0] = VECTORS[kind]()
    run()
    with pytest.raises(ds.AutodiffError, match="read the field in the kernel"), ds.Tape(loss):
        made = VECTORS[kind]()
        if kind == "list":
            made[0] = made[0] + x[None]
        else:
            made = made + x[None]
        held[0] = made
        run()
