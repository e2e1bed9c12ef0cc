"""`dir`, completion and `help` show the interface of diffsim, and nothing of its inside."""

import builtins
import inspect
import pydoc
import types

import pytest

import diffsim as ds

MODULES = "ad algorithms errors linalg math optim profiler tools torch types jax ui".split()
BASES = (Exception, int, str, dict)  # whose public names an object of ours may have too


def public(thing):
    return [name for name in dir(thing) if not name.startswith("_")]


@ds.kernel
def set_all(value: ds.f32):
    for i in range(2):
        pass


@ds.func
def square(x):
    return x * x


@ds.dataclass
class Body:
    pos: ds.types.vector(3, ds.f32)
    mass: ds.f32


@ds.data_oriented
class Solver:
    @ds.kernel
    def run(self):
        pass


@pytest.fixture(scope="module")
def objects():
    """One object of each kind that a program meets, and what `dir` shows of it."""
    ds.init(arch=ds.cpu)
    field = ds.field(ds.f32, shape=2, needs_grad=True)
    makers = "cols diag field identity ndarray one rows unit zero"
    methods = (
        "all any cross determinant dot inverse max min norm norm_inv norm_sqr normalized "
        "outer_product sum trace transpose"
    )
    node = (
        "bitmasked bytes_in_use deactivate_all dense dynamic fields finalized lazy_dual lazy_grad "
        "parent place pointer shape"
    )
    struct_field = (
        "copy_from dual fill from_numpy from_torch get_member_field grad keys name needs_dual "
        "needs_grad parent shape snode to_numpy to_torch"
    )
    return {
        "a tape": (
            ds.Tape(),
            "backward gradients loss on_backward record_func record_scope_begin record_scope_end "
            "replay reset save stats visualize zero",
        ),
        "a field": (
            field,
            "assign copy_from dtype dual element_shape fill from_numpy from_torch get_scalar_field grad m "
            "mark_written n name needs_dual needs_grad parent shape snode to_gpuarray to_numpy to_torch",
        ),
        "a kernel": (set_all, "grad ir jvp llvm ptx show specialize"),
        "a method": (Solver().run, "grad ir jvp llvm ptx show specialize"),
        "an adjoint": (set_all.grad, "ir llvm ptx"),
        "a func": (square, ""),
        "a struct type": (Body, "field members"),
        "a struct": (Body(mass=1.0), "mass pos to_dict"),
        "a field of structs": (Body.field(shape=2), f"mass pos {struct_field}"),
        "a vector": (
            ds.Vector([1.0, 2.0]),
            f"cast fill get_shape m n ndim shape to_list to_numpy w x y z {methods} {makers}",
        ),
        "a scalar type": (ds.f32, "bits name numpy"),
        "a vector type": (
            ds.types.vector(3, ds.f32),
            "dtype field get_shape m n ndarray ndim scalar shape",
        ),
        "a default type": (ds.math.vec3, "dtype field get_shape m n ndarray ndim shape"),
        "a backend": (ds.cuda, "name"),
        "an op": (ds.sin, "name"),
        "an intrinsic": (ds.static, ""),
        "the root": (ds.root, node),
        "a node": (ds.root.dense(ds.i, 4), node),
        "a builder": (ds.FieldsBuilder(), f"{node} empty finalize root"),
        "axes": (ds.ij, ""),
    }


def test_objects_show_their_interface_alone(objects):
    shown = {words: set(public(thing)) for words, (thing, _) in objects.items()}
    wanted = {words: set(names.split()) for words, (_, names) in objects.items()}
    differences = {w: shown[w] ^ wanted[w] for w in wanted if shown[w] != wanted[w]}
    assert differences == {}


def test_classes_show_no_more_than_their_objects(objects):
    for words, (thing, names) in objects.items():
        assert set(public(type(thing))) <= set(names.split()), words


def test_what_objects_show_is_there_and_described(objects):
    for words, (thing, _) in objects.items():
        for name in public(type(thing)):
            member = inspect.getattr_static(type(thing), name)
            text = inspect.getdoc(member) or ""
            described = text or isinstance(member, types.MemberDescriptorType)
            assert described, f"{words}: {name}"


@pytest.mark.parametrize("module", [None, *MODULES])
def test_modules_show_no_modules_of_the_inside(module):
    shown = getattr(ds, module) if module else ds
    for name in public(shown):
        thing = getattr(shown, name)
        assert not isinstance(thing, types.ModuleType) or name in MODULES, name
        home = getattr(thing, "__module__", "diffsim") or "diffsim"
        assert home.startswith("diffsim") or isinstance(thing, float), name
    assert set(shown.__all__) <= set(dir(shown))


def test_help_shows_the_interface_alone():
    text = pydoc.plaintext.document(ds.Tape)
    assert "record_func(" in text
    assert "keeps_inputs" not in text


@pytest.mark.parametrize("module", [ds, ds.math], ids=["diffsim", "diffsim.math"])
def test_a_star_import_leaves_pythons_functions_alone(module):
    assert [name for name in module.__all__ if hasattr(builtins, name)] == []
    assert {"copy", "math", "random"}.isdisjoint(module.__all__)


def test_a_class_of_a_program_shows_what_it_defines():
    class Mine(ds.Tape):
        def extra(self):
            pass

    tape = Mine()
    tape.note = 1
    assert {"extra", "note", "backward"} <= set(public(tape))
    assert "keeps_inputs" not in public(tape)
