"""Long kernels compile in proportion to their length: calls of functions are counted, not seconds."""

import cProfile
import importlib.util
import itertools

import numpy as np
import pytest

import diffsim as ds

_HEAD = """
import diffsim as ds

x, y = (ds.field(ds.f32, 4, needs_grad=True) for _ in range(2))
u = ds.Vector.field(3, ds.f32, 4, needs_grad=True)

@ds.func
def mixed(a, b):
    c = a * 0.5 + b
    return c * 0.9

@ds.kernel
def long():
    for i in x:
        a = x[i]
        b = a * 0.5
        v = u[i]
"""
_TAIL = """
        y[i] = a + b + v[0]
"""
_STEPS = {  # what one step of each kind is; {k} is its number
    "locals": ["a = a * 0.99 + b * 0.1", "b -= ds.sin(a)"],
    "names": ["c{k} = a * {k}.0 + b", "a = c{k} - b"],
    "thrown away": ["_, c{k} = b, a * 0.5", "a = b + c{k}"],
    "stores": ["x[i] += a", "a = a * 0.99 + x[i]"],
    "branches": [
        "c{k} = a * {k}.0",
        "if a > 0.{k}:",
        "    b = b * 0.9 + c{k}",
        "else:",
        "    a = a - b",
    ],
    "loops": ["for t{k} in range(4):", "    a = a * 0.9 + b", "b = b - a"],
    "exits": ["for t{k} in range(4):", "    if a > {k}.0:", "        break", "    a = a * 0.9 + b"],
    "funcs": ["a = mixed(a, b)", "b = mixed(b, mixed(a, 0.5))"],
    "vectors": ["v = v * 0.99 + a", "v.x += 0.5 * v.y", "a = v.dot(v)"],
    "unpacking": ["a, (b, c{k}) = b, (a, b * 0.5)", "v[1] = c{k}"],
}


def _calls(folder, kind, steps):
    """The calls of functions that translate and lower a kernel of this many steps, and its adjoint."""
    lines = [line.format(k=k) for k in range(steps) for line in _STEPS[kind]]
    file = folder / f"long_{steps}.py"
    file.write_text(_HEAD + "".join(f"        {line}\n" for line in lines) + _TAIL)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    profile = cProfile.Profile()
    profile.enable()
    spec.loader.exec_module(module)
    module.long.llvm()
    module.long.grad.llvm()
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("kind", _STEPS)
def test_calls_in_proportion_to_length(tmp_path, kind):
    ds.init(offline_cache=False)
    _calls(tmp_path, kind, 3)  # what is looked up once in a process
    counts = [_calls(tmp_path, kind, steps) for steps in (6, 12, 24)]
    first, second = (b - a for a, b in itertools.pairwise(counts))
    assert second < 2.2 * first  # 2 in proportion, 4 if it grows as the square


def test_a_sum_that_many_branches_carry():
    """LLVM writes out 144 of them, and its vectorizer took minutes for the sum that goes through all."""
    ds.init(offline_cache=False, default_fp=ds.f64, cpu_max_num_threads=1)
    w, x = ds.field(ds.f64, (3, 8, 3, 2)), ds.field(ds.f64, (8, 3, 8))
    v, y = ds.field(ds.f64, 2), ds.field(ds.f64, (3, 8, 2))

    @ds.kernel
    def convolve():
        for o, i, j in ds.ndrange(2, 3, (1, 8)):
            s = v[o]
            for b in ds.static(range(3)):
                for c in range(8):
                    for a in ds.static(range(3)):
                        k, l = (i + 2 * a - 10) % 3, (j + 2 * b + 7) % 8
                        if 0 <= k < 3 and 0 <= l < 8:
                            f = v[o]
                            if f != 0:
                                s += 1
                            else:
                                s += f * w[a, c, b, o] * x[c, k, l] + 2
            y[i, j, o] = s

    v.from_numpy(np.array([0.0, 0.5]))
    convolve()
    want = np.zeros((3, 8, 2))
    want[:, 1:] = [144.0, 72.5]
    assert (y.to_numpy() == want).all()
