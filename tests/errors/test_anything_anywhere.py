"""Whatever stands wherever in a kernel: it compiles, or the error is one for users.

Each thing of THINGS is put into each place of PLACES, some thousand kernels, which are translated and not
run. Nothing but a DiffsimError may come out of it, never an InternalError, always with a line of the
kernel, and never with a name of the compiler's own.
"""

import re
import warnings

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("quick_code")

THINGS = """
    x  y  A  U  k  a  v  w  M  arr  n  c  b  f  g  h  math  np  ds  slice  Ball  x.grad  y.grad  x.shape
    arr.shape  v.norm  v[0]  M[0]  y[0]  A[0]  True  None  2.5  -1  2**62  1j  ...  "s"  b"q"  {1}  []
    [1,2]  [a,k]  (1,a)  range(3)  np.ones(3)  np.ones((2,2))  ds.f32  ds.sin  ds.Vector  ds.random
    ds.static  ds.types.vector(2,ds.f32)  ds.ndrange(3)  ds.grouped(x)  ds.static([1,2])
""".split()

PLACES = """
    r = {0}
    r = {0} + 1
    r = 1 - {0}
    r = -{0}
    r = not {0}
    r = ~{0}
    r = {0} ** 2
    r = {0} ** k
    r = {0} // 2
    r = {0} % a
    r = {0} << 1
    r = {0} @ {0}
    r = {0} @ v
    r = {0} < 1
    r = {0} == {0}
    r = {0} is None
    r = 1 in {0}
    r = k in {0}
    r = {0} if k > 0 else 1
    r = 1 if {0} else 2
    r = {0} and k > 0
    r = k > 0 or {0}
    r = {0}[0]
    r = {0}[k]
    r = {0}[a]
    r = {0}[None]
    r = {0}[0, 1]
    r = {0}[0:1]
    r = {0}[-1]
    r = {0}["q"]
    r = x[{0}]
    r = y[{0}].x
    r = A[0][{0}]
    r = arr[{0}]
    r = v[{0}]
    r = {0}.x
    r = {0}.w
    r = {0}.n
    r = {0}.shape
    r = {0}.zzz
    r = {0}.grad
    r = {0}()
    r = {0}(1)
    r = {0}(1, 2, 3)
    r = {0}(q=1)
    r = {0}(*{0})
    r = {0}.norm()
    r = {0}.norm({0})
    r = {0}.dot({0})
    r = {0}.cross(v)
    r = {0}.outer_product({0})
    r = {0}.inverse()
    r = {0}.max()
    r = {0}.cast({0})
    r = f({0})
    r = h({0})
    r = g({0})
    r = len({0})
    r = sum({0})
    r = min({0})
    r = max({0}, 1)
    r = abs({0})
    r = round({0})
    r = pow({0}, 2)
    r = int({0})
    r = float({0})
    r = bool({0})
    r = str({0})
    r = list({0})
    r = zip({0}, {0})
    r = enumerate({0})
    r = isinstance({0}, int)
    r = range({0})
    r = range(0, 3, {0})
    r = math.sqrt({0})
    r = np.sum({0})
    r = ds.cast({0}, ds.f32)
    r = ds.cast(1, {0})
    r = ds.sin({0})
    r = ds.max({0}, {0})
    r = ds.select({0}, 1, 2)
    r = ds.select(k > 0, {0}, 1)
    r = ds.stop_grad({0})
    r = ds.random({0})
    r = ds.randn({0})
    r = ds.static({0})
    r = ds.ndrange({0})
    r = ds.grouped({0})
    r = ds.atomic_add({0}, 1)
    r = ds.atomic_max(x[0], {0})
    r = ds.Vector({0})
    r = ds.Vector([{0}, 1])
    r = ds.Matrix({0})
    r = ds.Matrix([{0}, {0}])
    r = ds.Matrix([[{0}, 1], [1, 1]])
    r = ds.Matrix.rows({0})
    r = ds.Matrix.diag({0}, 1)
    r = ds.Matrix.zero({0}, 2)
    r = ds.Matrix.identity(ds.f32, {0})
    r = ds.Vector.zero(ds.f32, {0})
    r = [e for e in {0}]
    r = [{0} for e in ds.static(range(2))]
    r = 1.0; r = {0}
    r = {0}; r = 1.0
    r = {0}; r += 1
    r = [{0}, {0}]; r[0] = 1
    r: {0} = 1
    p, q = {0}
    {0}
    {0} = 1
    {0} += 1
    {0}[0] = 1
    {0}.x = 1
    {0}.q = 1
    x[0] = {0}
    x[0] *= {0}
    x[0] &= {0}
    y[0] = {0}
    y[0].x -= {0}
    A[0] = {0}
    U[None] += {0}
    v[0] = {0}
    t = ds.Vector([1.0, 2.0]); t[k] = {0}
    t = ds.Vector([1.0, 2.0]); t.x = {0}
    t = [1.0, a]; t[0] = {0}
    assert {0}
    assert k > 0, {0}
    return {0}
    ds.loop_config(serialize={0})
    ds.loop_config({0})
    if {0}: r = {0}
    while {0}: break
    for e in {0}: pass
    for e, q in {0}: pass
    for e in ds.static({0}): pass
    for i in x: {0}
    r = 0.0|for i in x: r += {0}
    r = {0}|for i in x: r = 1.0
    r = {0}|for i in x: r += 1.0
    r = {0}|for i in x: x[i] = r
    r = {0}|for i in range(3):|    for j in range(3): r = r + 1
    r = 0|while r < 3: r = {0}
    if k > 0: r = {0}|else: r = 1
    if k > 0: r = {0}|else: r = v
"""

PROGRAM = """import math; import numpy as np; import diffsim as ds
x = ds.field(ds.f32, shape=4, needs_grad=True)
y = ds.Vector.field(2, ds.f32, shape=4)
A = ds.Matrix.field(2, 2, ds.f32, shape=4)
U = ds.field(ds.i32, shape=())
n = 3
c = ds.Vector([1.0, 2.0])
class Ball: pass
b = Ball()
@ds.func
def f(q):
    return q
@ds.func
def h(q: ds.i32, z=1):
    return q + z
def g(q):
    return q
KERNELS = []
"""

KERNEL = """@ds.kernel
def step(
    k: ds.i32,
    a: ds.f32,
    v: ds.types.vector(2, ds.f32),
    w: ds.types.vector(3, ds.f32),
    M: ds.types.matrix(2, 2, ds.f32),
    arr: ds.types.ndarray(),
):
    {body}
KERNELS.append(step)
"""

ARGS = (1, 2.0, [1, 2], [1, 2, 3], [[1, 2], [3, 4]], np.ones(3))
INTERNAL = re.compile(
    r"\b(Method|Static|NdRange|Grouped|Space|Value|Const|ScalarType|TensorType|Intrinsic|ArrayRef|Mem|Func|"
    r"BoundFunc|Template|Undefined|TempVar|Op|Matrix object|NoneType)\b|object at 0x|<(ds|op|class|function)"
)


def bodies(thing):
    """The places, filled with the thing, as far as they are Python."""
    for place in PLACES.strip().splitlines():
        body = place.strip().replace("|", "\n    ").format(thing)
        try:
            compile(KERNEL.format(body=body), "kernel", "exec")
        except SyntaxError:
            continue
        yield body


@pytest.mark.parametrize("thing", THINGS)
def test_anything_anywhere(thing, tmp_path, cpu):
    # Half of the places, all of them for two things: what fails depends on the place more than on the thing.
    tried = list(bodies(thing))[THINGS.index(thing) % 2 :: 2]
    assert len(tried) > 40
    text = PROGRAM + "".join(KERNEL.format(body=body) for body in tried)
    file = tmp_path / "anything.py"
    file.write_text(text, encoding="utf-8")
    space = {}
    exec(compile(text, str(file), "exec"), space)
    wrong = []
    for body, kernel in zip(tried, space["KERNELS"], strict=True):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ds.PrecisionLoss)
                warnings.filterwarnings("ignore", "r keeps its value from one iteration")
                kernel.ir("frontend", ARGS)
        except ds.InternalError as error:
            wrong.append(f"{body}\n    {error}")
        except ds.DiffsimError as error:
            if INTERNAL.search(f"{error.message} {error.hint}") or str(file) not in str(error):
                wrong.append(f"{body}\n    {error}")
        except Exception as error:
            wrong.append(f"{body}\n    {error!r}")
    assert not wrong, "\n".join(wrong)
