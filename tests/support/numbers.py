"""Numbers of every type, and formulas of two of them computed in a kernel."""

import numpy as np

FLOATS = ["f16", "f32", "f64"]
SIGNED = ["i8", "i16", "i32", "i64"]
UNSIGNED = ["u8", "u16", "u32", "u64"]
NUMBERS = FLOATS + SIGNED + UNSIGNED


def numpy_of(name):
    letters = {"f": "float", "i": "int", "u": "uint"}
    return np.dtype(letters[name[0]] + name[1:])


class Spy:
    """`spy[value]` in a kernel notes the type of the value."""

    def __init__(self):
        self.types = []

    def __getitem__(self, value):
        self.types.append(repr(value.type))
        return 0


def compute(ds, formula, a, b, result=None):
    """formula(a[i], b[i]) of two arrays, computed in a kernel."""
    types = {numpy_of(n): getattr(ds, n) for n in NUMBERS} | {np.dtype(bool): ds.u1}
    compiled = ds.func(formula)
    x, y = ds.field(types[a.dtype], shape=a.shape), ds.field(types[b.dtype], shape=b.shape)
    z = ds.field(types[np.dtype(result)] if result else types[a.dtype], shape=a.shape)
    x.from_numpy(a)
    y.from_numpy(b)

    @ds.kernel
    def run():
        for i in z:
            z[i] = compiled(x[i], y[i])

    run()
    return z.to_numpy()


def interesting(dtype, count=300, seed=0):
    """Numbers of an integer type: its ends, small ones, random ones."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    ends = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 10]
    if info.min < 0:
        ends += [-1, -2, -3, -7]
    small = rng.integers(max(info.min, -20), 20, 60)
    every = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    return np.concatenate([np.array(ends, dtype), small.astype(dtype), every])


def pairs(dtype, seed=0):
    a, b = interesting(dtype, 300, seed), interesting(dtype, 300, seed + 1)
    edge_a, edge_b = np.meshgrid(a[:14], b[:14])
    rng = np.random.default_rng(seed)
    a = np.concatenate([edge_a.ravel(), rng.permutation(a)])
    b = np.concatenate([edge_b.ravel(), rng.permutation(b)])
    return a, b
