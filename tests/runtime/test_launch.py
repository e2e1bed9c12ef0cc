"""Launches: ds.init and reset, what is compiled once or anew, inspection."""

import functools
import gc
import re
import sys
import warnings

import numpy as np
import pytest

from tests.support.processes import run

# ---- init and reset


def test_init_begins_anew(cpu):
    ds = cpu
    x = ds.field(ds.f64, shape=())
    scale = 2.0

    @ds.kernel
    def run() -> float:
        x[None] += scale
        tenth = 0.1
        return tenth

    assert run() == float(np.float32(0.1))
    scale = 3.0
    with pytest.raises(ds.KernelStateError):
        run()
    ds.init(default_fp=ds.f64)
    assert run() == 0.1
    assert x[None] == 5.0
    ds.reset()
    assert run() == float(np.float32(0.1))


@pytest.mark.parametrize(
    "options",
    [
        {"arch": "cpus"},
        {"arch": 3},
        {"default_fp": "f32"},
        {"default_fp": int},
        {"default_ip": float},
        {"debug": 2},
        {"random_seed": 1.5},
        {"random_seed": True},
        {"cpu_max_num_threads": -1},
        {"cpu_max_num_threads": 10**6},
        {"kernel_simplicity": "loose"},
        {"offline_cache_file_path": 5},
        {"fastmath": True},
    ],
    ids=str,
)
def test_wrong_options_are_refused_and_change_nothing(cpu, options):
    ds = cpu
    ds.init(default_fp=ds.f64, random_seed=3)

    @ds.kernel
    def tenth() -> ds.f64:
        a = 0.1
        return a

    tenth()
    with pytest.raises(ds.DiffsimError):
        ds.init(**options)
    assert tenth() == 0.1


def test_backends(cpu):
    ds = cpu
    with pytest.raises(ds.BackendError, match="cannot be used here"):
        ds.init(arch=ds.cuda, device=99)
    with pytest.warns(UserWarning, match="using the CPU"):
        ds.init(arch=ds.gpu, device=99)
    ds.init(ds.cpu)
    ds.sync()


def test_kernels_work_without_init(tmp_path):
    out = run(
        tmp_path,
        """
        import diffsim as ds

        x = ds.field(ds.f32, shape=3)

        @ds.kernel
        def fill():
            for i in x:
                x[i] = 2 * i

        fill()
        print(x.to_numpy().tolist())
        """,
    )
    assert out == "[0.0, 2.0, 4.0]\n"


# ---- compiled once, or anew


def compiled_texts(monkeypatch):
    """The list of what is compiled from now on."""
    from diffsim.backends.cpu import codegen as cpu
    from diffsim.backends.cuda import codegen as cuda

    made = []

    def noting(lower, kernel, *args, **more):
        made.append(kernel.name)
        return lower(kernel, *args, **more)

    for backend in (cpu, cuda):
        monkeypatch.setattr(backend, "lower", functools.partial(noting, backend.lower))
    return made


def test_a_kernel_is_compiled_once_for_each_template(cpu, monkeypatch):
    ds = cpu
    made = compiled_texts(monkeypatch)
    x, y = ds.field(ds.f32, shape=3), ds.field(ds.f32, shape=4)

    @ds.kernel
    def fill(f: ds.template(), v: ds.f32):
        for i in f:
            f[i] = v

    @ds.kernel
    def array(a: ds.types.ndarray()):
        for i in a:
            a[i] = 1

    for k in range(5):
        fill(x, k)
        fill(y, k)
    assert made == ["fill", "fill"]
    for shape in (3, 4, 5):
        array(np.zeros(shape, "f4"))
        array(np.zeros(shape))
    # The first shape of each type is a number in the code; all others have their code in common.
    assert made == ["fill", "fill", *["array"] * 4]


def test_a_new_field_under_an_old_name_compiles_anew(cpu, monkeypatch):
    ds = cpu
    made = compiled_texts(monkeypatch)
    x = ds.field(ds.f32, shape=3)

    @ds.kernel
    def fill(v: ds.f32):
        for i in x:
            x[i] += v

    for n in (3, 5, 7):
        x = ds.field(ds.f32, shape=n)
        gc.collect()
        for _ in range(3):
            fill(1.0)
        assert x.to_numpy().tolist() == [3.0] * n
    assert made == ["fill"] * 3


# ---- inspection


def test_kernels_show_what_became_of_them(cpu):
    ds = cpu
    x = ds.field(ds.f32, shape=8, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def measure(scale: ds.f32):
        for i in x:
            loss[None] += scale * ds.sin(x[i]) ** 2

    stages = {
        s: measure.ir(after=s) for s in ("frontend", "simplify", "scalarize", "reductions", "dce")
    }
    for text in stages.values():
        assert "measure" in text
        assert "sin" in text
    assert measure.ir() == stages["simplify"]
    assert "cos" in measure.grad.ir()
    assert "x.grad" in measure.grad.ir(after="dce")
    assert "define" in measure.llvm()
    assert "define" in measure.grad.llvm()
    for text in (measure.ptx(), measure.grad.ptx(sm=90)):
        assert re.search(r"\.visible \.entry", text)
    assert ".target sm_80" in measure.ptx()
    with pytest.raises(
        ds.BackendError, match="measure has no PTX: there is no PTX for sm=91"
    ) as caught:
        measure.ptx(sm=91)
    assert "measure.ptx(sm=91)" in str(caught.value)
    with pytest.raises(ds.DiffsimError, match="no stage"):
        measure.ir(after="nothing")
    # looking is not launching
    assert loss[None] == 0
    measure(1.0)
    assert measure.ir() == stages["simplify"]


def test_inspection_of_kernels_compiled_for_their_arguments(cpu):
    ds = cpu
    x = ds.Vector.field(2, ds.f64, shape=8, needs_grad=True)

    @ds.kernel
    def double(f: ds.template(), a: ds.types.ndarray()):
        for i in f:
            f[i] *= a[i]

    with pytest.raises(ds.DiffsimError, match="compiled for its arguments"):
        double.ir()
    a = np.ones(8)
    texts = [double.ir(args=(x, a)), double.llvm(args=(x, a)), double.ptx(args=(x, a))]
    assert all("double" in t for t in texts)
    double(x, a)
    assert double.ir() == texts[0]


def test_llvm_text_holds_no_address(cpu):
    ds = cpu

    def text():
        x = ds.field(ds.f32, shape=100)

        @ds.kernel
        def fill():
            for i in x:
                x[i] = i

        fill()
        return fill.llvm(), x

    (one, x), (two, y) = text(), text()
    assert x.address != y.address
    assert one == two


def test_the_wrong_number_of_arguments_names_the_call(cpu):
    ds = cpu

    @ds.kernel
    def two(a: ds.i32, b: ds.i32):
        pass

    for arguments in ((1,), (1, 2, 3), ()):
        with pytest.raises(ds.KernelTypeError, match="two"):
            two(*arguments)
    two(1, 2)
    for arguments in ((1,), (1, 2, 3), ()):
        with pytest.raises(ds.KernelTypeError, match="two") as caught:
            two(*arguments)
        assert "test_launch.py" in str(caught.value)


@pytest.mark.parametrize("more", [0, False, None, 3])
def test_an_argument_too_many_after_an_array(cpu, more):
    """It is no option of the launch function."""
    ds = cpu
    singles, doubles = np.zeros(4, np.float32), np.ones(4)

    @ds.kernel
    def count(a: ds.types.ndarray()):
        for i in a:
            a[i] += 1

    for _ in range(4):
        count(singles)
    for array in (singles, doubles):
        with pytest.raises(ds.KernelTypeError, match="count takes 1 argument, 2 given"):
            count(array, more)
    assert singles.tolist() == [4.0] * 4
    assert doubles.tolist() == [1.0] * 4


def test_errors_in_a_launch_leave_everything_usable(cpu):
    ds = cpu
    x = ds.field(ds.i32, shape=3)

    @ds.kernel
    def fill(a: ds.i32):
        for i in x:
            x[i] = a

    for wrong in (1.5, "a", 2**40, None):
        with pytest.raises(ds.KernelTypeError):
            fill(wrong)
    fill(3)
    with pytest.raises(ds.KernelTypeError):
        fill(2**40)
    assert x.to_numpy().tolist() == [3, 3, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fill(np.int16(4))
    assert x[0] == 4


@pytest.mark.parametrize(
    ("head", "total"),
    [
        ("while k < n[None]:", 45),
        ("for j in range(n[None]):", 45),
        ("for j in range(1000000):", 499999500000),
    ],
)
def test_the_first_kernel_of_a_process(tmp_path, head, total):
    """Whatever its code calls of the run-time library is there before it is loaded."""
    text = f"""
        import diffsim as ds

        ds.init(arch=ds.cpu, offline_cache=False)
        n = ds.field(ds.i64, shape=())
        r = ds.field(ds.i64, shape=())
        n[None] = 10

        @ds.kernel
        def first():
            k = ds.i64(0)
            {head}
                {"r[None] += k" if head.startswith("while") else "r[None] += j"}
                {"k += 1" if head.startswith("while") else "pass"}

        first()
        print(r[None])
    """
    assert run(tmp_path, text) == f"{total}\n"


class Refusing:
    """An output that cannot be written to."""

    def write(self, text):
        raise TypeError("not text")

    def flush(self):
        pass


@pytest.mark.parametrize("again", [False, True])
def test_an_error_after_the_launch_launches_nothing_again(cpu, monkeypatch, again):
    """With a default left out, a TypeError of Python's own means that arguments are missing; not this one."""
    ds = cpu
    x = ds.field(ds.i32, shape=())

    @ds.kernel
    def count(f: ds.template(), by: ds.i32 = 1):
        f[None] += by
        print(by)

    if again:
        count(x)
        x[None] = 0
    with monkeypatch.context() as m:
        m.setattr(sys, "stdout", Refusing())
        with pytest.raises(TypeError, match="not text"):
            count(x)
    assert x[None] == 1
