"""f16: every operation, rounded once, to the bit as NumPy's float16; conversions; where it may stand."""

import ctypes

import numpy as np
import pytest

from diffsim.backends.cuda import ptx
from diffsim.backends.native.jit import Jit
from tests.support.source import make

EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
SOME = EVERY[::67]

# NumPy computes each of them in f32 and rounds; sqrt(a * a) rounds in between.
FORMULAS = {
    "a + b": np.add,
    "a - b": np.subtract,
    "a * b": np.multiply,
    "a / b": np.divide,
    "a % b": np.mod,
    "a // b": np.floor_divide,
    "ds.max(a, b)": np.fmax,
    "ds.min(abs(a), 1.5)": lambda a, b: np.fmin(np.abs(a), np.float16(1.5)),
    "ds.sqrt(a * a)": lambda a, b: np.sqrt(a * a),
    "ds.round(a) - ds.floor(b)": lambda a, b: np.rint(a) - np.floor(b),
    "0.1 * a + b": lambda a, b: np.float16(0.1) * a + b,
    "ds.select(a < b, -a, ds.sign(b))": lambda a, b: np.where(a < b, -a, np.sign(b)),
    "v.dot(v)": lambda a, b: (
        (
            (a * a).astype(np.float32)
            + (b * b).astype(np.float32)  # a sum of its own: rounded once
        ).astype(np.float16)
    ),
    "(v + 2 * v).y": lambda a, b: b + np.float16(2) * b,
}


def computed(ds, a, b):
    """All formulas of two arrays, in one kernel."""
    x, y = (ds.field(ds.f16, shape=len(a)) for _ in range(2))
    outs = [ds.field(ds.f16, shape=len(a)) for _ in FORMULAS]
    x.from_numpy(a)
    y.from_numpy(b)
    text = "@ds.kernel\ndef run():\n    for i in x:\n        a, b = x[i], y[i]\n"
    text += "        v = ds.Vector([a, b])\n"
    text += "".join(f"        outs[{k}][i] = {formula}\n" for k, formula in enumerate(FORMULAS))
    space = {"ds": ds, "x": x, "y": y, "outs": outs}
    make(text, space)
    space["run"]()
    return {formula: out.to_numpy() for formula, out in zip(FORMULAS, outs, strict=True)}


def assert_same(got, want, name):
    """Equal bits, but for the payload of NaN and the sign of 0."""
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    assert same.all(), (name, got[~same][:3], want[~same][:3])


@pytest.mark.parametrize("arch", ["cpu", "python"])
def test_every_operation_is_rounded_as_by_numpy(cpu, quick_code, arch):
    ds = cpu
    ds.init(arch=getattr(ds, arch))
    a = EVERY if arch == "cpu" else EVERY[np.isfinite(EVERY)][::997]
    b = np.random.default_rng(0).permutation(a)
    found = computed(ds, a, b)
    with np.errstate(all="ignore"):
        for text, reference in FORMULAS.items():
            assert_same(found[text], reference(a, b), text)


def test_a_float_of_64_bits_is_rounded_once(cpu, quick_code):
    ds = cpu
    # Halfway between two numbers of f16 but for the last bits of f64, which f32 rounds away.
    near = [s * (1 + (2 * k + 1) * 2.0**-11) * (1 + e) for k in range(20) for s in (1, -1)
            for e in (0, 2.0**-52, -(2.0**-52), 2.0**-40)]  # fmt: skip
    edges = [65504, 65519.999999999, 65520, 2.0**-25, 2.0**-25 * (1 + 2.0**-50), 2.0**-24, 1e-320]
    a = np.array([*near, *edges, *(-e for e in edges), 0.0, -0.0, np.inf, -np.inf, np.nan, 1e300])
    wide, half, back = (ds.field(t, shape=len(a)) for t in (ds.f64, ds.f16, ds.f64))
    wide.from_numpy(a)

    @ds.kernel
    def run():
        for i in wide:
            half[i] = ds.cast(wide[i], ds.f16)
            back[i] = half[i]

    run()
    with np.errstate(over="ignore"):
        want = a.astype(np.float16)
    assert_same(half.to_numpy(), want, "f64 to f16")
    assert np.array_equal(np.signbit(half.to_numpy()), np.signbit(want))
    assert_same(back.to_numpy(), want.astype(float), "f16 to f64")


def test_where_it_may_stand(cpu, quick_code, capsys):
    ds = cpu
    pair = ds.types.struct(m=ds.f16, v=ds.types.vector(2, ds.f16))
    x = pair.field(shape=2)
    f = ds.Matrix.field(2, 2, ds.f16, shape=2, layout=ds.Layout.SOA)
    array = ds.Vector.ndarray(2, ds.f16, 3)

    @ds.kernel
    def run(
        a: ds.f16, w: ds.types.vector(2, ds.f16), t: ds.types.ndarray(dtype=ds.f16, ndim=1),
        u: ds.types.ndarray(),
    ) -> ds.types.vector(2, ds.f16):  # fmt: skip
        for i in x:
            x[i].m = a + i
            x[i].v = w * x[i].m
            f[i] = ds.Matrix([[1.0, 2.0], [a, 4.0]], ds.f16)
            t[i] += 0.1
            u[i] = w
        print(a, w, f"{a:.2f}")
        return f[0] @ w + ds.cast(1, ds.f16)

    given = np.array([1.0, 2048.0], np.float16)
    got = run(0.1, [2.0, 0.3], given, array)
    one, two = np.float16(0.1), np.array([2.0, 0.3], np.float16)
    assert capsys.readouterr().out.strip() == "0.1 [2.0, 0.3] 0.10"
    assert given.tolist() == [float(np.float16(1.0) + one), 2048.0]
    assert [x[1].m, *x[1].v] == [
        float(one + np.float16(1)),
        *(two * (one + np.float16(1))).tolist(),
    ]
    assert f.to_numpy().dtype == np.float16
    assert np.array_equal(array.to_numpy()[:2], [two, two])
    rows = np.array([[1, 2], [one, 4]], np.float32) @ two.astype(np.float32)
    assert np.array_equal(got.to_numpy(), rows.astype(np.float16) + np.float16(1))


def test_elements_from_python(cpu):
    ds = cpu
    x = ds.field(ds.f16, shape=3)
    x[0], x[1], x[2] = 0.1, 7, 1e9
    assert [x[0], x[1], x[2]] == [0.0999755859375, 7.0, np.inf]
    assert isinstance(x[0], float)
    x.fill(1 / 3)
    assert x.to_numpy().tolist() == [float(np.float16(1 / 3))] * 3
    for wrong in ("1", None, [1.0]):
        with pytest.raises(ds.DtypeError, match="an element of x is an f16"):
            x[0] = wrong
    assert (ds.f16(0.1), ds.types.f16, ds.float16) == (0.0999755859375, ds.f16, ds.f16)
    with pytest.raises(AttributeError, match=r"the type is ds\.f16"):
        ds.half


def test_default_float(cpu):
    ds = cpu
    ds.init(arch=ds.cpu, default_fp=ds.f16)

    @ds.kernel
    def third(n: int) -> float:
        return n / 3

    assert third(1) == float(np.float16(1) / np.float16(3))


def test_numbers_from_random_are_below_1(cpu):
    ds = cpu
    x = ds.field(ds.f16, shape=20000)
    y = ds.field(ds.f16, shape=20000)

    @ds.kernel
    def draw():
        for i in x:
            x[i] = ds.random(ds.f16)
            y[i] = ds.randn(ds.f16)

    draw()
    a, b = x.to_numpy().astype(float), y.to_numpy().astype(float)
    assert 0 <= a.min() < a.max() < 1
    assert len(np.unique(a)) == 2048  # steps of 2^-11, each of them
    assert abs(a.mean() - 0.5) < 0.01
    assert abs(b.mean()) < 0.03
    assert abs(b.std() - 1) < 0.03


@pytest.mark.parametrize("threads", [1, 4])
def test_atomic_updates(cpu, threads):
    ds = cpu
    ds.init(arch=ds.cpu, cpu_max_num_threads=threads)
    n = 60000
    x, total = ds.field(ds.f16, shape=n), ds.field(ds.f16, shape=3)
    # An odd number of elements: neighbours share words of 32 bits.
    bins = ds.field(ds.f16, shape=61)
    x.from_numpy((np.arange(n) % 7 - 3).astype(np.float16))

    @ds.kernel
    def update():
        for i in x:
            ds.atomic_add(bins[(i * 7) % 61], 1.0)
            ds.atomic_max(total[1], x[i])
            ds.atomic_min(total[2], x[i])
        for i in x:
            total[0] += ds.cast(0.25, ds.f16)

    update()
    assert bins.to_numpy().tolist() == np.bincount(np.arange(n) * 7 % 61).tolist()
    # Partial sums are f32: in f16 a sum of quarters stays at 512.
    assert total.to_numpy().tolist() == [n / 4, 3.0, -3.0]


def test_narrowing_is_a_warning(cpu):
    ds = cpu
    x = ds.field(ds.f16, shape=1)

    @ds.kernel
    def store(a: ds.f32):
        x[0] = a

    with pytest.warns(ds.PrecisionLoss, match="x holds f16: storing f32 loses precision"):
        store(0.1)
    assert x[0] == float(np.float16(0.1))


def test_sparse_matrices_are_refused(cpu):
    ds = cpu
    with pytest.raises(ds.DtypeError, match="f32 or f64, not f16"):
        ds.linalg.SparseMatrixBuilder(2, 2, 4, dtype=ds.f16)


# ---- processors and GPUs

LOOP = """
define void @{name}(ptr %x, ptr %y, i64 %n) {{
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %p = getelementptr {a}, ptr %x, i64 %i
  %q = getelementptr {b}, ptr %y, i64 %i
  %v = load {a}, ptr %p
  %w = {op} {a} %v to {b}
  store {b} %w, ptr %q
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %next, label %end
end:
  ret void
}}
"""


def test_processors_without_instructions_for_it():
    jit = Jit()
    jit._features += ",-f16c"
    jit._machine = jit._spread = jit._target_machine(jit._features, jit._opt_level)
    text = LOOP.format(name="widen", a="half", b="float", op="fpext")
    text += LOOP.format(name="narrow", a="float", b="half", op="fptrunc")
    library = jit.load(jit.compile(text))

    def run(name, a, out):
        made = np.empty(len(a), out)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        kind(library.address(name))(a.ctypes.data, made.ctypes.data, len(a))
        return made

    wide = EVERY.astype(np.float32)
    assert_same(run("widen", EVERY, np.float32), wide, "f16 to f32")
    # Every number of f16, halfway to the next one, and a little to both sides of that.
    bits = wide[np.isfinite(wide)].view(np.uint32)
    rng = np.random.default_rng(0)
    f = np.concatenate([bits + k for k in (0, 0xFFF, 0x1000, 0x1001)])
    f = np.concatenate([f, rng.integers(0, 1 << 32, 200000, dtype=np.uint32)]).view(np.float32)
    with np.errstate(over="ignore"):
        want = f.astype(np.float16)
    got = run("narrow", f, np.float16)
    assert_same(got, want, "f32 to f16")
    assert np.array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.skipif(ptx.find_ptxas() is None, reason="no ptxas here")
@pytest.mark.parametrize("sm", [75, 90])
def test_code_for_gpus(cpu, sm):
    ds = cpu
    x, h, s = ds.field(ds.f16, shape=64), ds.field(ds.f16, shape=8), ds.field(ds.f16, shape=())
    at = ds.field(ds.i32, shape=64)

    @ds.kernel
    def run(a: ds.f16):
        for i in x:
            h[at[i]] += x[i] * a
            ds.atomic_min(h[at[i]], x[i])
            ds.atomic_max(s[None], ds.cast(ds.cast(x[i], ds.f64) * 0.5, ds.f16))
            print(x[i])
        for i in x:
            s[None] += x[i]

    text = run.ptx(sm=sm)
    assert "cvt.rn.f16.f32" in text
    assert "atom.global.add.noftz.f16" in text
    ptx.assemble(text, sm)
