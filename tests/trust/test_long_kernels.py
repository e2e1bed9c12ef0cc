"""Long kernels compile in proportion to their length: calls of functions are counted, not seconds."""

import cProfile
import importlib.util
import itertools

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
