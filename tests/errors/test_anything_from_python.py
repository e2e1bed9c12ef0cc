"""Whatever Python hands to whatever of diffsim's: it works, or the error is one for users.

Each thing of THINGS is given to each call of CALLS, some ten thousand calls. What comes out is a result or a
DiffsimError with the line of the call, advice, and no name of diffsim's own inside. Then every function and
method is called with a keyword, and every object is given an attribute, that it does not have.
"""

import contextlib
import inspect
import io
import re
import warnings

import numpy as np
import pytest

import diffsim as ds
from tests.support.tracebacks import own_frames

pytestmark = pytest.mark.usefixtures("quick_code")

THINGS = """
    None True 0 1 -1 3 2**70 10**400 10**5000 1.5 float("nan") float("inf") 1j "" "x" "f32" b"q" ...
    slice(0,2) () [] [1] [1,2] [1.5,2.5] (1,2,3) [[1,2],[3]] [[1,2],[3,4]] [None] ["a"] {} {"a":1}
    {1} range(3) int float str object() Odd() (lambda:1) (lambda*a,**k:a) (i_for_i()) own_list
    np.float32(2) np.int8(3) np.bool_(True) np.array(2.0) np.ones(3) np.ones((3,2)) np.ones(0)
    np.arange(3) np.ones(3,">f4") np.ones(6)[::2] fixed np.array([1,None,"a"])
    np.array(["a","b","c"]) np.ma.array([1.0,2.0,3.0],mask=[1,0,0]) np.float32 np.dtype("f4")
    np.array([1j,2,3]) x y v M l k x.grad arr unplaced p p[0] Ball Ball() tape step helper ds.f32
    ds.f64 ds.i32 ds.u1 ds.cpu ds.gpu ds.i ds.ij ds.root ds.Vector([1.0,2.0])
    ds.Matrix([[1.0,2.0],[3.0,4.0]]) ds.types.vector(2,ds.f32) ds.types.ndarray() ds.template()
    ds.sin ds.static ds.math.vec3 ds.Tape ds.field ds.Field ds.Layout.SOA ds
""".split()

CALLS = """
    ds.field(a)   ds.field(ds.f32, a)   ds.field(ds.f32, shape=(2, a))   ds.field(ds.f32, 2, name=a)
    ds.field(ds.f32, 2, needs_grad=a)   ds.field(ds.f32, 2, layout=a)
    ds.field(ds.f32, 2, needs_dual=a)   ds.ndarray(a, 2)   ds.ndarray(ds.f32, a)
    ds.ndarray(ds.f32, 2, needs_grad=a)   ds.Vector.field(a, ds.f32, 2)   ds.Vector.field(2, a, 2)
    ds.Vector.field(2, ds.f32, a)   ds.Vector.field(2, ds.f32, 2, layout=a)
    ds.Vector.ndarray(a, ds.f32, 2)   ds.Matrix.field(2, a, ds.f32, 2)
    ds.Matrix.field(a, 2, ds.f32, 2)   ds.Matrix.field(2, 2, a, 2)
    ds.Matrix.ndarray(2, a, ds.f32, 2)   ds.Vector(a)   ds.Vector([1, 2], a)   ds.Vector([1, a])
    ds.Matrix(a)   ds.Matrix([[1, a]])   ds.Matrix([a, a])   ds.Matrix([[1, 2]], a)
    ds.Vector.zero(a, 2)   ds.Vector.zero(ds.f32, a)   ds.Vector.one(ds.f32, a)
    ds.Vector.unit(2, a)   ds.Vector.unit(a, 0)   ds.Vector.unit(2, 0, a)
    ds.Matrix.zero(ds.f32, 2, a)   ds.Matrix.identity(a, 2)   ds.Matrix.identity(ds.f32, a)
    ds.Matrix.diag(2, a)   ds.Matrix.diag(a, 2)   ds.Matrix.rows(a)   ds.Matrix.cols(a)
    ds.Matrix.rows([a, a])   ds.Matrix.one(ds.f32, a, a)   ds.types.vector(a, ds.f32)
    ds.types.vector(2, a)   ds.types.matrix(2, a, ds.f32)   ds.types.matrix(a, 2, ds.f32)
    ds.types.ndarray(a)   ds.types.ndarray(ndim=a)   ds.types.struct(m=a)
    ds.types.vector(a)   ds.types.matrix(a, a)   ds.Matrix.field(2, 1, ds.f32, 2, ndim=a)
    ds.types.ndarray(field_dim=a)   ds.types.ndarray(ds.f32, 1, needs_grad=a)
    v.to_numpy(a, a)   v.to_numpy(keep_dims=a)   v.to_torch(a)   p.from_torch(a)   p.to_dict(a)
    ds.solve(a, a)   ds.solve(M[0], v[0], a)   ds.solve(M[0], a)   Ball().to_dict(a, a)
    ds.FieldsBuilder().dense(a, 2)   ds.FieldsBuilder().dynamic(ds.i, a)   ds.FieldsBuilder().place(a)
    ds.types.vector(2, ds.f32)(a)   ds.types.vector(2, ds.f32)(a, a)
    ds.types.vector(2, ds.f32).field(a)   ds.types.vector(2, ds.f32).ndarray(a)   ds.math.vec3(a)
    ds.math.vec3.field(a)   ds.math.vec3.ndarray(a)   ds.Struct.field(a)   ds.Struct.field({"m": a})
    ds.Struct.field({"m": ds.f32}, a)   Ball.field(a)   Ball.field(2, needs_grad=a)
    Ball.field(2, name=a)   Ball(a)   Ball(1.0, a)   Ball(m=a)   Ball(q=a)   Ball(1.0, [1, 2], a)
    ds.dataclass(a)   ds.kernel(a)   ds.kernel(simplicity=a)   ds.func(a)   ds.data_oriented(a)
    ds.func_grad(a)   ds.func_replay(a)   ds.f32(a)   ds.i32(a)   ds.u8(a)   ds.u1(a)
    ds.cast(a, ds.f32)   ds.cast(1.0, a)   ds.zero(a)   ds.one(a)   ds.sin(a)   ds.sqrt(a)
    ds.floor(a)   ds.abs(a)   ds.atan2(a, 1.0)   ds.pow(2, a)   ds.max(a, 1)   ds.max(a, a, a)
    ds.min(1, a)   ds.round(a)   ds.isnan(a)   ds.sign(a)   ds.select(a, 1, 2)
    ds.select(True, a, 2)   ds.raw_mod(7, a)   ds.stop_grad(a)   ds.static(a)   ds.ndrange(a)
    ds.grouped(a)   ds.random(a)   ds.randn(a)   ds.loop_config(a)   ds.atomic_add(a, 1)
    ds.atomic_add(x[0], a)   ds.svd(a)   ds.polar_decompose(a)   ds.sym_eig(a)   ds.eig(a)
    ds.math.mix(a, 1, 0.5)   ds.math.clamp(a, 0, 1)   ds.math.length(a)   ds.math.cross(a, a)
    ds.math.rotation2d(a)   ds.math.normalize(a)   ds.math.dot(a, a)   ds.math.inverse(a)
    ds.axes(a)   ds.axes(0, a)   ds.root.dense(a, 2)   ds.root.dense(ds.i, a)
    ds.root.dense(ds.ij, (2, a))   ds.root.dense(ds.i, 2).place(a)   ds.root.place(a)
    ds.root.pointer(a)   ds.copy(a, x)   ds.copy(x, a)   ds.copy(x, y, dest_offset=a)
    ds.copy(x, y, src_offset=a)   ds.copy(x, y, count=a)   ds.clone(a)   ds.clone(x, needs_grad=a)
    x.from_numpy(a)   x.to_numpy(a)   x.fill(a)   x.copy_from(a)   x.assign(a)   x[a]   x[a, a]
    x.__setitem__(a, 1.0)   x.__setitem__(0, a)   x == a   x != a   x + a   a + x   a @ x   x < a
    a in x   x.mark_written(a)   v.from_numpy(a)   v.to_numpy(a)   v.fill(a)   v.copy_from(a)
    v.assign(a)   v[a]   v.__setitem__(0, a)   v[0][a]   M.from_numpy(a)   M.fill(a)   M[a]
    M.__setitem__(0, a)   M[0][a]   M[0][0, a]   k.from_numpy(a)   k.fill(a)   k.__setitem__(0, a)
    k.copy_from(a)   l[a]   l.__setitem__(None, a)   l.fill(a)   l.from_numpy(a)   arr.from_numpy(a)
    arr[a]   arr.__setitem__(0, a)   arr.fill(a)   unplaced.fill(a)   unplaced[a]
    unplaced.from_numpy(a)   p[a]   p.__setitem__(0, a)   p.fill(a)   p.from_numpy(a)
    p.copy_from(a)   p.from_numpy({"m": a})   p.fill({"m": a})   p[0].__setattr__("m", a)
    p[0].__setattr__("c", a)   p[0] == a   p == a   b.__setattr__("m", a)   b.__setattr__("c", a)
    b == a   w + a   a + w   w * a   a - w   w / a   w // a   w % a   w ** a   a ** w   w @ a
    a @ A   A @ a   w & a   w << a   w == a   w < a   w[a]   w.__setitem__(a, 1.0)
    w.__setitem__(0, a)   w.__setitem__(slice(0, 2), a)   w.fill(a)   w.__setattr__("x", a)
    w.__setattr__("xy", a)   A[a]   A[a, 0]   A[0, a]   A.__setitem__(0, a)   w.dot(a)   w.cross(a)
    w.norm(a)   w.normalized(a)   w.outer_product(a)   w.cast(a)   A.trace(a)   n.__setitem__(0, a)
    n + a   n // a   n % a   step(a)   step.grad(a)   step.ir(a)   step.ir(args=a)
    step.ir(args=(a,))   step.llvm(a)   step.ptx(a)   step.grad.ir(a)   takes(a)   number(a)
    vector(a)   template(a)   number(a, 1)   template.grad(a)   takes.grad(a)   number.grad(a)
    ds.Tape(a)   ds.Tape(clear_gradients=a)   ds.Tape(in_place=a)   ds.Tape(retain_grad=a)
    ds.Tape(retain_grad=[a])   ds.Tape(validation=a)   ds.Tape(check_nan=a)   tape.backward(a)
    tape.backward(grads=a)   tape.backward(grads={x: a})   tape.record_func(a, [])
    tape.record_func(print, a)   tape.record_scope_begin(a)   tape.on_backward(a)
    tape.visualize(a)   tape.zero(a)   ds.ad.gradcheck(a, [x], [y])   ds.ad.gradcheck(step, a, [y])
    ds.ad.gradcheck(step, [x], a)   ds.ad.gradcheck(step, [a], [y])
    ds.ad.gradcheck(step, [x], [y], eps=a)   ds.ad.gradcheck(step, [x], [y], atol=a)
    ds.ad.gradcheck(step, [x], [y], max_inputs=a)
    ds.ad.gradcheck(step, [x], [y], raise_exception=a)   ds.ad.jacobian(a, [x], [y])
    ds.ad.jacobian(step, a, [y])   ds.ad.jacobian(step, [x], [y], max_outputs=a)
    ds.ad.jacobian_fd(step, [x], a)   ds.ad.jacobian_fd(step, [x], [y], eps=a)
    ds.ad.gradcheck_tape(a)   ds.ad.gradcheck_tape(tape, kernels=a)   ds.ad.grad_replaced(a)
    ds.ad.gradcheck(step, [x], [y], input_output_mask=a)   ds.ad.jacobian_plot(a)
    ds.ad.gradcheck(step, [x], [y], directions=a)   ds.ad.gradcheck(step, [x], [y], differences=a)
    ds.ad.gradcheck_tape(tape, input_output_masks=a)   ds.ad.gradcheck_tape(tape, skip_to_launch_index=a)
    ds.ad.grad_for(a)   ds.ad.no_grad(a)   ds.ad.checkpoint(a)
    ds.ad.checkpoint(lambda t: step(), 2, a)   ds.ad.checkpoint(lambda t: step(), a, [x])
    ds.ad.checkpoint(a, 2, [x])   ds.sync(a)   ds.reset(a)
""".strip()
CALLS = [call.strip() for line in CALLS.splitlines() for call in re.split(r"\s{2,}", line.strip())]

OPTIONS = """
    arch default_fp default_ip debug fast_math random_seed cpu_max_num_threads offline_cache kernel_simplicity
    device device_scratch_size default_gpu_block_dim deterministic rules traceback
""".split()

PROGRAM = """
import numpy as np
x = ds.field(ds.f32, shape=3, needs_grad=True)
y = ds.field(ds.f32, shape=3, needs_grad=True)
v = ds.Vector.field(2, ds.f32, shape=3)
M = ds.Matrix.field(2, 2, ds.f64, shape=3)
l = ds.field(ds.f64, shape=(), needs_grad=True)
k = ds.field(ds.i8, shape=3)
arr = ds.ndarray(ds.f32, 3)
unplaced = ds.field(ds.f32)
Ball = ds.types.struct(m=ds.f32, c=ds.types.vector(2, ds.f32))
p, b = Ball.field(shape=3), Ball()
w, A, n = ds.Vector([1.0, 2.0]), ds.Matrix([[1.0, 2.0], [3.0, 4.0]]), ds.Vector([1, 2], ds.u8)
fixed = np.ones(3)
fixed.flags.writeable = False
own_list = [1.0]
own_list.append(own_list)
class Odd:
    def __repr__(self):
        raise RuntimeError("no repr")
def i_for_i():
    return (i for i in range(3))
@ds.func
def helper(q):
    return q
@ds.kernel
def step():
    for i in x:
        y[i] = x[i] * 2.0
@ds.kernel
def takes(a: ds.types.ndarray()):
    for i in x:
        y[i] = x[i] * 2.0
@ds.kernel
def number(a: ds.f32):
    for i in x:
        y[i] = x[i] * a
@ds.kernel
def vector(a: ds.types.vector(2, ds.i32)):
    for i in x:
        y[i] = x[i] * a.x
@ds.kernel
def template(a: ds.template()):
    for i in x:
        y[i] = x[i]
tape = ds.Tape()
with tape:
    step()
"""
INSIDE = re.compile(
    r"object at 0x|diffsim\.[a-z]+\.[A-Za-z_]+|NoneType|\b_[a-z]+\b|must be real number|Traceback"
)


def space_of(tmp_path, init=True):
    """The names that calls are made with, and the file of the user's program."""
    if init:
        ds.init(arch=ds.cpu)
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    space = {"ds": ds, "np": np}
    exec(compile(PROGRAM, str(file), "exec"), space)
    return space


def complaint(call, space, file):
    """What is wrong with what the call comes to; "" if nothing is."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            eval(compile(call, file, "eval"), space)
    except ds.InternalError as error:
        return f"{call}: {error}"
    except ds.DiffsimError as error:
        text = f"{error.message} {error.hint}"
        if error.span is None or error.span.file != file:
            return f"{call}: not the user's line: {error}"
        if not error.hint or len(text) > 700 or INSIDE.search(text):
            return f"{call}: {error}"
        if own := own_frames(error):
            return f"{call}: its traceback shows {own}"
    except BaseException as error:
        return f"{call}: {error!r}"
    return ""


def is_of_others(thing, call, found):
    """Whether the error is one of Python's own, or NumPy's, about the thing itself."""
    masked = (
        thing.startswith("np.ma.") and call[0] == "a"
    )  # computes before it asks the other operand
    called = (
        call.startswith("ds.ad.") and "positional argument" in found
    )  # of a function that is called
    return masked or called


@pytest.mark.parametrize("thing", THINGS)
def test_anything_to_anything(thing, tmp_path, cpu, monkeypatch):
    monkeypatch.chdir(tmp_path)  # tape.visualize writes files
    assert len(CALLS) > 250
    file = str(tmp_path / "call.py")
    space = space_of(tmp_path)
    wrong = []
    for call in CALLS:
        space["a"] = eval(thing, space)
        found = complaint(call, space, file)
        if found and not is_of_others(thing, call, found):
            wrong.append(f"a = {thing}; {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("option", OPTIONS)
def test_anything_as_an_option(option, tmp_path, cpu):
    file = str(tmp_path / "call.py")
    space = space_of(tmp_path)
    wrong = []
    for thing in THINGS:
        if thing in ("3", "1") and option == "device":
            continue  # a number that there may be no GPU for
        space["a"] = eval(thing, space)
        if isinstance(space["a"], ds.runtime.session.Arch):
            continue
        found = complaint(f"ds.init({option}=a)", space, file)
        if found:
            wrong.append(f"a = {thing}; {found}")
    ds.init(arch=ds.cpu)
    assert not wrong, "\n".join(wrong)


FUNCTIONS = """
    ds.field ds.ndarray ds.Vector.field ds.Vector.ndarray ds.Vector.zero ds.Vector.unit ds.Matrix
    ds.Matrix.field ds.Matrix.ndarray ds.Matrix.zero ds.Matrix.identity ds.Matrix.diag
    ds.Matrix.rows ds.Struct.field Ball.field Ball ds.types.vector ds.types.matrix ds.types.ndarray
    ds.init ds.reset ds.sync ds.kernel ds.func ds.dataclass ds.axes ds.root.dense ds.copy ds.clone
    ds.Tape ds.ad.gradcheck ds.ad.jacobian ds.ad.jacobian_fd ds.ad.gradcheck_tape ds.ad.checkpoint
    ds.ad.jacobian_plot
    ds.ad.grad_replaced ds.ad.grad_for x.fill x.to_numpy x.from_numpy x.copy_from x.assign
    x.mark_written p.fill p.to_numpy p.from_numpy p.copy_from w.fill w.cast w.to_list w.to_numpy
    w.norm step step.grad step.ir step.llvm step.ptx tape.backward tape.replay tape.zero
    tape.visualize tape.on_backward tape.record_func
""".split()
SLIPS = {  # a misspelling: what was meant
    "ds.field(ds.f32, shap=3)": "shape",
    "ds.field(ds.f32, 3, need_grad=True)": "needs_grad",
    "ds.init(arhc=ds.cpu)": "arch",
    "ds.init(arch='gpuu')": "arch=ds.gpu",
    "ds.init(defualt_fp=ds.f64)": "default_fp",
    "ds.Tape(lss=l)": "loss",
    "ds.Tape(inplace='save')": "in_place",
    "tape.backward(grad={x: y})": "grads",
    "x.fill(vla=3)": "val",
    "ds.Vector.field(2, dtpye=ds.f32, shape=3)": "dtype",
    "ds.Vector([1, 2], td=ds.f32)": "dt",
    "ds.kernel(simplcity='strict')": "simplicity",
    "ds.ad.gradcheck(step, [x], [y], esp=1e-3)": "eps",
    "ds.ad.checkpoint(step, 3, sate=[x])": "state",
    "ds.root.dense(ds.i, dimnsions=3)": "dimensions",
    "Ball(mm=1)": "m",
    "ds.copy(x, y, cuont=2)": "count",
    "step.ir(afetr='simplify')": "after",
    "ds.feild": "field",
    "ds.Matirx": "Matrix",
    "ds.ad.gradchek": "gradcheck",
    "ds.math.vce3": "vec3",
    "x.from_nunpy": "from_numpy",
    "w.normalised()": "normalized",
    "A.determinat()": "determinant",
    "p.cc": "c",
    "b.mm": "m",
    "ds.field('f32')": "ds.f32",
}


def test_unknown_keywords(tmp_path, cpu, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = space_of(tmp_path)
    file = str(tmp_path / "call.py")
    for function in FUNCTIONS:
        for arguments in ("nosuch=1", "*range(30)", "1, 2, nosuch=3"):
            call = f"{function}({arguments})"
            with pytest.raises(ds.DiffsimError):
                eval(call, space)
            assert not complaint(call, space, file)


def test_slips_are_told_what_was_meant(tmp_path, cpu):
    space = space_of(tmp_path)
    for slip, meant in SLIPS.items():
        with pytest.raises(ds.DiffsimError) as found:
            eval(slip, space)
        expected = rf"(did you mean|write) \.?{re.escape(meant)}(=?\?)?$"
        assert re.search(expected, found.value.hint), found.value


SPACES = """
    ds ds.math ds.linalg ds.algorithms ds.ad ds.optim ds.types ds.profiler ds.tools Ball ds.Struct
    ds.Vector ds.Matrix ds.math.vec3 x x.grad v p w b arr unplaced tape step step.grad gui ply builder sparse
    solver adam prefix fb node
""".split()
MADE_BY_OTHERS = """
    ds.Field ds.Kernel ds.StructField ds.ad.CheckpointPlan ds.ad.CheckpointStats ds.ad.Recorded
    ds.optim.Minimum ds.optim.Run ds.Layout
""".split()  # classes that functions make objects of
NOT_CALLED = """
    ds.init ds.reset ds.tools.ArgumentParser ds.tools.animate ds.tools.imshow adam.lr step.specialize
    gui.Event gui.EventFilter gui.WidgetValue ds.precompile
""".split()  # those that end the session, open windows or belong to the inside
MORE = """
gui = ds.GUI("shapes", (16, 16), show_gui=False)
ply = ds.tools.PLYWriter(num_vertices=3)
adam = ds.optim.Adam([x])
prefix = ds.algorithms.PrefixSumExecutor(3)
fb = ds.FieldsBuilder()
node = ds.root.pointer(ds.i, 4)
"""
OF_SCIPY = """
builder = ds.linalg.SparseMatrixBuilder(3, 3, max_num_triplets=9)
sparse = builder.build()
solver = ds.linalg.SparseSolver()
"""
ARGUMENTS = """
    nosuch=1 *range(30) None "q" -1 10**400 [[1,2],[3]] object(),object() x,"q" x,x,float("nan") "q","q","q"
""".split()
ARGUMENTS.append("")


def is_of_objects(kind, member):
    """Whether a member of a class is a method, which has no object here."""
    if kind is ds.Vector and member in vars(ds.Matrix):
        kind = ds.Matrix  # whose methods it passes on
    return not isinstance(inspect.getattr_static(kind, member), staticmethod | classmethod | type)


def public_callables(space):
    """What users can call, by its text; a method that several objects have, once."""
    found = {}
    for name in SPACES:
        thing = eval(name, space) if name.split(".")[0] in space else None
        names = getattr(thing, "__all__", None) or [n for n in dir(thing) if n[0] != "_"]
        for member in names if thing is not None else ():
            text = f"{name}.{member}"
            function = None
            with contextlib.suppress(ds.DiffsimError):  # what this object does not have
                function = getattr(thing, member, None)
            error = isinstance(function, type) and issubclass(function, BaseException)
            if isinstance(thing, type) and is_of_objects(thing, member):
                continue
            if callable(function) and not error and text not in MADE_BY_OTHERS + NOT_CALLED:
                found.setdefault(getattr(function, "__func__", text), text)
    return sorted(found.values())


def test_all_that_is_public(tmp_path, cpu, monkeypatch):
    """What can be called is found by looking, so that nothing new is left out."""
    monkeypatch.chdir(tmp_path)
    space = space_of(tmp_path)
    exec(MORE, space)
    with contextlib.suppress(ds.MissingPackageError):
        exec(OF_SCIPY, space)
    file = str(tmp_path / "call.py")
    functions = public_callables(space)
    assert len(functions) > 400
    calls = [f"{function}({given})" for function in functions for given in ARGUMENTS]
    wrong = [found for call in calls if (found := complaint(call, space, file))]
    assert not wrong, "\n".join(wrong)


REFUSED = """
    node.parent(-1) node.parent(1.5) node.parent(None) s.parent(0) ds.linalg.LinearOperator(3)
    ds.linalg.MatrixFreeCG(op,v,v) ds.linalg.MatrixFreeCG(op,k,k) ds.linalg.MatrixFreeCG(op,x,y,"tol")
    ds.linalg.MatrixFreeBICGSTAB(op,x,y,1e-6,-1) ds.linalg.MatrixFreeCG(op,x,y,maxiter=None)
    ds.linalg.MatrixFreeCG(step,x,y) ds.math.popcnt([1,2]) ds.bit_cast([1.5],ds.i32)
    ds.rescale_index(x,y,[float("nan")]) ds.rescale_index(x,y,[1,2]) x.to_numpy(np.float64,"yes")
    gui.slider("a",None,1) gui.button("a",event_name=3) gui.point_field(np.ones((2,2)),bound="x")
    ds.tools.colormap(x,vmin="1") ply.add_vertex_channel(1.5,"int",[1,2,3])
    ds.func(helper,is_real_function="no")
    ds.tools.VideoManager("out",automatic_build="no") ds.tools.VideoManager("out",post_processor=3)
""".split()


def test_what_was_taken_silently(tmp_path, cpu, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = space_of(tmp_path)
    exec(MORE + "s = ds.field(ds.f32)\nnode.place(s)\nop = ds.linalg.LinearOperator(step)\n", space)
    file = str(tmp_path / "call.py")
    for call in REFUSED:
        with pytest.raises(ds.DiffsimError):
            eval(call, space)
        assert not complaint(call, space, file)


@pytest.mark.parametrize("size", [2**62, 10**18, 10**400])
@pytest.mark.parametrize(
    "make", ["ds.field(ds.f32, n)", "ds.Vector.field(3, ds.f64, (2, n))", "ds.ndarray(ds.i8, n)"]
)
def test_memory_that_is_not_there(make, size, tmp_path, cpu):
    with pytest.raises(ds.OutOfMemoryError, match=r"there is no memory for .*(bytes|GiB)"):
        eval(make, space_of(tmp_path) | {"n": size})
