"""No program ends the process: not by a fault of LLVM, not by a function that nothing defines."""

import ctypes
import itertools
import subprocess
import sys
import warnings

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.native import jit as jit_module
from diffsim.backends.native.crash_guard import Crash, Guard
from diffsim.backends.native.jit import Jit, LLVMError
from diffsim.passes.vectors import vectorize
from diffsim.runtime.session import session

ADD = "define i64 @add(i64 %a, i64 %b) nounwind {\n  %c = add i64 %a, %b\n  ret i64 %c\n}\n"
HERE = """
import ctypes, threading
from diffsim.backends.native.jit import Jit
jit = Jit()
guarded = jit._guard._guarded
abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p)
read = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p)
"""
needs_guard = pytest.mark.skipif(not Guard.is_possible(), reason="guard.ll is for Linux")


@pytest.fixture(autouse=True)
def _complaints():
    """A kernel that LLVM fails on is an error in these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def python(text):
    return subprocess.run(
        [sys.executable, "-c", HERE + text],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@needs_guard
def test_abort_and_a_null_pointer_in_llvm_are_survived_more_than_once():
    done = python(
        "for function in (abort, read, abort):\n"
        "    print(guarded(ctypes.addressof(ctypes.c_void_p()), function, 0, 0, 0, 0))\n"
        "length, word = ctypes.c_void_p(), ctypes.c_char_p(b'four')\n"
        "print(guarded(ctypes.addressof(length), read, word, 0, 0, 0), length.value)\n"
    )
    assert (done.returncode, done.stdout.split()) == (0, ["1", "1", "1", "0", "4"]), done.stderr


@needs_guard
def test_an_abort_after_a_guarded_call_ends_the_process_as_ever():
    done = python(
        "guarded(ctypes.addressof(ctypes.c_void_p()), abort, 0, 0, 0, 0)\n"
        "print('on', flush=True)\nctypes.CDLL(None).abort()\n"
    )
    assert (done.returncode, done.stdout) == (-6, "on\n")


@needs_guard
def test_an_abort_of_another_thread_is_not_caught():
    done = python(
        "import time\n"
        "sleep = ctypes.cast(ctypes.CDLL(None).sleep, ctypes.c_void_p)\n"
        "inside = (ctypes.addressof(ctypes.c_void_p()), sleep, 5, 0, 0, 0)\n"
        "threading.Thread(target=guarded, args=inside, daemon=True).start()\n"
        "time.sleep(0.5)\nctypes.CDLL(None).abort()\n"
    )
    assert done.returncode == -6


class Failing(Guard):
    """LLVM that fails a number of times."""

    def __init__(self, times):
        super().__init__(0)
        self.left = times

    def run(self, passes, module, builder):
        self.left -= 1
        if self.left >= 0:
            raise Crash
        super().run(passes, module, builder)


@pytest.mark.parametrize("times", [1, 2])
def test_what_llvm_fails_on_is_compiled_with_less_optimization(times):
    jit = Jit()
    jit.__dict__["_guard"] = Failing(times)
    with pytest.warns(RuntimeWarning, match="compiled again with less optimization") as seen:
        code = jit.compile(ADD)
    assert len(seen) == times
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    library = jit.load(code)
    assert call(library.address("add"))(40, 2) == 42


def test_llvm_that_always_fails_is_an_error_that_names_the_kernel(monkeypatch):
    ds.init(arch=ds.cpu, offline_cache=False)
    x = ds.field(ds.f32, 4)

    @ds.kernel
    def doomed():
        for i in x:
            x[i] += 1.0

    doomed_jit = Jit()
    doomed_jit.__dict__["_guard"] = Failing(99)
    monkeypatch.setattr(session, "_jit", doomed_jit)
    with (
        warnings.catch_warnings(),
        pytest.raises(ds.errors.BackendError, match="no machine code of doomed"),
    ):
        warnings.simplefilter("ignore")
        doomed()


def test_a_function_that_is_not_there_is_named():
    jit = Jit()
    text = "declare double @no_such_thing(double)\ndefine double @f(double %x) nounwind {\n"
    text += "  %y = call double @no_such_thing(double %x)\n  ret double %y\n}\n"
    with pytest.raises(LLVMError, match="no_such_thing"):
        jit.load(jit.compile(text))


OWN = {}
POWI = """
declare {t} @llvm.powi.{s}.i32({t}, i32)
define {t} @f({t} %x, i32 %n) nounwind {{
  %y = call {t} @llvm.powi.{s}.i32({t} %x, i32 %n)
  ret {t} %y
}}
"""


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("single", [True, False])
def test_powers_that_llvm_makes_of_powers_are_there(single, own, monkeypatch):
    jit = Jit()
    if own:  # as where no library of the compiler's is loaded
        for name in jit_module._BUILTINS:
            monkeypatch.setitem(OWN, name, jit._own("builtins.ll").address(name))
        search = Jit._address_of
        monkeypatch.setattr(Jit, "_address_of", lambda j, name: OWN.get(name) or search(j, name))
    library = jit.load(
        jit.compile(POWI.format(t="float" if single else "double", s="f32" if single else "f64"))
    )
    t = ctypes.c_float if single else ctypes.c_double
    power = ctypes.CFUNCTYPE(t, t, ctypes.c_int32)(library.address("f"))
    for x, n in itertools.product((1.5, -0.75, 2.0), (-7, -1, 0, 1, 2, 13)):
        assert power(x, n) == pytest.approx(x**n, rel=1e-6 if single else 1e-14)
    assert power(1.0, -(2**31)) == 1.0
    assert power(0.0, -1) == np.inf


CALLS = """
x ** n; 2.0 ** n; x ** 3; x ** 0.5; x ** -2.5; 10.0 ** x; 2.0 ** x; ds.pow(x, ds.cast(n, ds.T))
ds.exp2(ds.cast(n, ds.T)); ds.exp(ds.log(x) * n); ds.sin(x) + ds.cos(x); ds.sin(x) / ds.cos(x)
ds.round(x); ds.floor(x); x % 0.7; x // 0.7; ds.max(x, n); ds.exp(ds.sin(x)); ds.sqrt(x) * ds.rsqrt(x)
n ** n; n // 3; n << n; ds.log(ds.pow(x, x)); ds.log2(ds.exp2(x)); ds.cast(x * 1e9, ds.i64) % 1000
ds.pow(ds.pow(x, 2.0), 0.5); ds.exp2(x) * ds.exp2(-x); ds.tan(ds.atan2(x, x + 1.0))
"""
"""What LLVM rewrites, or has no instruction for, of a float x and a small integer n."""

LOOPS = {
    "maps": """
    for i in y{k}:
        x, n = xs[i], ns[i]
        y{k}[i] = ds.cast({call}, ds.{t})
""",
    "loops": """
    for i in y{k}:
        x, n = xs[i], ns[i]
        s = ds.{t}(0)
        for j in range(3):
            s += ds.cast({call}, ds.{t})
        y{k}[i] = s / 3
""",
    "serial": """
    for _ in range(1):
        for i in range(20):
            x, n = xs[i], ns[i]
            y{k}[i] = ds.cast({call}, ds.{t})
""",
    "extremes": """
    for i in y{k}:
        x, n = xs[i], ns[i]
        ds.atomic_max(top{k}[None], ds.sin(ds.cos(ds.cast({call}, ds.{t}))))
""",
}


def kernels(calls, t):
    """Kernels of each kind, with a loop for each call."""
    return "".join(
        f"@ds.kernel\ndef {name}():"
        + "".join(loop.format(k=k, call=call, t=t) for k, call in enumerate(calls))
        for name, loop in LOOPS.items()
    )


@pytest.mark.parametrize(
    ("t", "fast_math", "simd"),
    [("f32", False, True), ("f32", True, False), ("f64", False, False), ("f64", True, True)],
)
def test_whatever_llvm_makes_of_a_function_can_be_linked(t, fast_math, simd, monkeypatch, tmp_path):
    monkeypatch.setattr(vectorize, "_ALWAYS", simd)
    ds.init(arch=ds.cpu, fast_math=fast_math)
    fp = getattr(ds, t)
    xs, ns = ds.field(fp, 20), ds.field(ds.i32, 20)
    xs.from_numpy(np.linspace(0.3, 1.4, 20).astype(fp.numpy))
    ns.from_numpy((np.arange(20) % 5).astype(np.int32))
    for line, calls in enumerate(CALLS.replace("T", t).strip().splitlines()):
        calls = [call.strip() for call in calls.split(";")]
        ys = [ds.field(fp, 20) for _ in calls]
        tops = [ds.field(fp, (), needs_grad=True) for _ in calls]
        space = {"ds": ds, "xs": xs, "ns": ns}
        for k, (y, top) in enumerate(zip(ys, tops, strict=True)):
            space.update({f"y{k}": y, f"top{k}": top})
        file = tmp_path / f"line{line}.py"
        file.write_text(kernels(calls, t))
        exec(compile(file.read_text(), str(file), "exec"), space)
        outs = []
        for kernel in ("maps", "loops", "serial"):
            for y in ys:
                y.fill(0)
            space[kernel]()
            outs.append([y.to_numpy() for y in ys])
        for top in tops:
            top[None] = -np.inf
        space["extremes"]()
        for call, top, first, *others in zip(calls, tops, *outs, strict=True):
            near = 2e-5 if t == "f32" else 1e-12
            near = 1e-3 if fast_math and t == "f32" and "pow" in call else near
            for other in others:
                assert np.allclose(first, other, rtol=near, atol=near, equal_nan=True), call
            expected = np.sin(np.cos(first.astype(float))).max()
            assert top[None] == pytest.approx(expected, rel=1e-4), call
