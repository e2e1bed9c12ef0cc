"""What a kernel does happens in Python's order: each body is run by Python too, on a list."""

import linecache

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import KernelSyntaxError

PREAMBLE = """
@func
def f():
    x[0] = 10.0
    return 2.0

@func
def index():
    x[0] = x[0] + 1.0
    return 0

@func
def fifth(a, b=3.0):
    x[2] = x[2] * 10.0 + a
    return a + b
"""

BODIES = [
    "x[0] *= f()",
    "x[0] **= f()",
    "x[0] //= f()",
    "x[0] %= f()",
    "x[0] /= f()",
    "x[1] *= x[0] * f() + x[0]",
    "x[1] = x[0] + f()",
    "x[1] = x[0] * f() + x[0]",
    "a, b = x[0], f(); x[1] = a + b",
    "a, b = f(), x[0]; x[1] = a + b",
    "x[0], x[1] = x[1], f() + x[0]",
    "x[1] = 1.0 if x[0] < f() < x[0] else 0.0",
    "x[1] = 1.0 if f() < x[0] < 5.0 else 0.0",
    "x[1] = 1.0 if x[0] > 5.0 and f() > 0.0 else x[0]",
    "x[1] = 1.0 if x[0] < 5.0 or f() > 0.0 else x[0]",
    "x[index()] = x[0]",
    "x[index()] += 1.0",
    "x[index()] *= 2.0",
    "x[index()] = f()",
    "x[1] = fifth(1.0, fifth(2.0))",
    "x[1] = fifth(b=fifth(1.0), a=fifth(2.0))",
    "x[1] = fifth(fifth(1.0))",
    "x[1] = fifth(1.0) - fifth(2.0) * fifth(3.0)",
    "x[1] = x[0] if f() > 1.0 else 0.0",
    "a = x[0]; a *= f(); x[1] = a",
    "a = x[0]; b = f(); x[1] = a * x[0]",
    "x[1] = -f() + x[0]",
    "x[1] = (x[0], f(), x[0])[2]",
]

REFUSED = ["x[0] += f()", "x[0] -= f()", "x[index()] += f()", "x[0] += x[0] * f()"]


def start():
    return [2.0, 3.0, 0.0]


def by_python(body):
    x = start()
    space = {"x": x, "func": lambda f: f}
    exec(PREAMBLE, space)
    for _ in range(2):
        exec(body, space)
    return x


def by_kernel(body, tmp_path):
    ds.init(default_fp=ds.f64)
    x = ds.field(ds.f64, 3)
    x.from_numpy(np.array(start()))
    text = PREAMBLE + "\n@kernel\ndef run():\n    ds.loop_config(serialize=True)\n"
    text += f"    for _ in range(2):\n        {body}\n"
    file = str(tmp_path / "ordered.py")
    (tmp_path / "ordered.py").write_text(text)
    linecache.checkcache(file)
    space = {"x": x, "func": ds.func, "kernel": ds.kernel, "ds": ds}
    exec(compile(text, file, "exec"), space)
    space["run"]()
    return x.to_numpy().tolist()


@pytest.mark.parametrize("body", BODIES)
def test_the_order_is_pythons(body, tmp_path):
    assert by_kernel(body, tmp_path) == pytest.approx(by_python(body), rel=1e-14)


@pytest.mark.parametrize("body", REFUSED)
def test_an_update_that_would_read_too_late_is_refused(body, tmp_path):
    """`+=` is atomic: it finds what is there when it is done."""
    with pytest.raises(KernelSyntaxError, match=r"(?s)changes x.*give the value a name first"):
        by_kernel(body, tmp_path)
