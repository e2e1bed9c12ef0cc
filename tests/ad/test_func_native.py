"""Funcs in LLVM text: `@ds.func_native`."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends import interpreter
from diffsim.backends.cuda.ptx import PtxError
from diffsim.passes import pipeline
from tests.support.gradients import check, field, numbers

SQUARE = "%r = fmul double %x, %x\nret double %r"
SQUARE_ADJ = "%a = fmul double %x, %adj_ret\n%r = fmul double %a, 2.0\nret double %r"


@pytest.fixture(autouse=True)
def _f64(cpu):
    ds.init(arch=ds.cpu, default_fp=ds.f64, debug=True)


def squares(square):
    x, loss = field(5), field()
    x.from_numpy(numbers(5))

    @ds.kernel
    def run():
        for i in x:
            loss[None] += ds.sin(square(2.0 * x[i])) * x[i]

    return x, loss, run


def test_value_and_adjoint():
    @ds.func_native(SQUARE, adj_text=SQUARE_ADJ)
    def square(x: ds.f64) -> ds.f64: ...

    x, loss, run = squares(square)
    check(run, loss, x)
    run()
    loss.fill(0)
    run()
    v = x.to_numpy()
    np.testing.assert_allclose(loss[None], (np.sin(4 * v**2) * v).sum())
    assert "%r = fmul double %x, %x" in run.llvm()
    assert "native.square.adj" in run.grad.llvm()


def test_several_arguments_branches_and_declarations():
    """A struct of the adjoints of the float arguments; labels, phis and calls in the text."""

    @ds.func_native(
        """
        declare double @llvm.fabs.f64(double)
        declare double @exp(double)
        %far = icmp sgt i32 %n, 3
        br i1 %far, label %big, label %small
        big:
          %e = call double @exp(double %a)
          br label %end
        small:
          %p = call double @llvm.fabs.f64(double %a)
          br label %end
        end:
          %q = phi double [ %e, %big ], [ %p, %small ]
          %r = fmul double %q, %b
          ret double %r""",
        adj_text="""
        declare double @exp(double)
        declare double @llvm.fabs.f64(double)
        %far = icmp sgt i32 %n, 3
        %e = call double @exp(double %a)
        %p = call double @llvm.fabs.f64(double %a)
        %q = select i1 %far, double %e, double %p
        %neg = fcmp olt double %a, 0.0
        %s = select i1 %neg, double -1.0, double 1.0
        %d = select i1 %far, double %e, double %s
        %db = fmul double %d, %b
        %ga = fmul double %db, %adj_ret
        %gb = fmul double %q, %adj_ret
        %r0 = insertvalue { double, double } poison, double %ga, 0
        %r1 = insertvalue { double, double } %r0, double %gb, 1
        ret { double, double } %r1""",
    )
    def mixed(a: ds.f64, n: ds.i32, b: ds.f64) -> ds.f64:
        """exp(a) b for n > 3, else |a| b."""

    x, loss = field(8), field()
    x.from_numpy(numbers(8))

    @ds.kernel
    def run():
        for i in x:
            s = x[i]
            for k in range(3):
                if s < 2.0:
                    s = 0.5 * mixed(s, i + k, b=x[i]) + ds.exp(-s)
            loss[None] += s

    check(run, loss, x)


def test_gradient_in_python_and_by_ds_grad():
    @ds.func_native(SQUARE)
    def square(x: ds.f64) -> ds.f64: ...

    @ds.func_grad(square)
    def adj_square(x, g):
        ds.adjoint[x] += 2.0 * x * g

    x, loss, run = squares(square)
    check(run, loss, x)

    @ds.func_native(SQUARE, adj_text=SQUARE_ADJ)
    def other(x: ds.f64) -> ds.f64: ...

    out = field(5)

    @ds.kernel
    def slopes():
        for i in x:
            out[i] = ds.grad(other)(x[i]) + ds.grad(square)(x[i])

    slopes()
    np.testing.assert_allclose(out.to_numpy(), 4 * x.to_numpy())

    @ds.kernel
    def twice():
        for i in x:
            loss[None] += ds.grad(square)(x[i]) * x[i]

    check(twice, loss, x)  # the gradient in Python is differentiated again

    @ds.kernel
    def twice_in_text():
        for i in x:
            loss[None] += ds.grad(other)(x[i]) * x[i]

    with pytest.raises(ds.AutodiffError, match=r"other\.adj is LLVM text"):
        with ds.Tape(loss):
            twice_in_text()


def test_no_adjoint_no_gradient():
    @ds.func_native(SQUARE)
    def square(x: ds.f64) -> ds.f64: ...

    x, loss, run = squares(square)
    with pytest.raises(ds.AutodiffError, match="square is LLVM text that no adjoint") as caught:
        with ds.Tape(loss):
            run()
    assert "square(2.0 * x[i])" in str(caught.value)

    @ds.kernel
    def constant():
        for i in x:
            loss[None] += x[i] * ds.stop_grad(square(x[i]))

    with ds.Tape(loss):
        constant()
    np.testing.assert_allclose(x.grad.to_numpy(), x.to_numpy() ** 2)


def test_replay_runs_in_the_adjoint():
    @ds.func_native(SQUARE, adj_text=SQUARE_ADJ, replay_text="ret double 0.0")
    def square(x: ds.f64) -> ds.f64: ...

    x, loss, run = squares(square)
    with ds.Tape(loss):
        run()
    v = x.to_numpy()
    np.testing.assert_allclose(loss[None], (np.sin(4 * v**2) * v).sum())
    # d/dx sin(q) x with q and q' = 8 x, where the adjoint believes that q is 0
    np.testing.assert_allclose(x.grad.to_numpy(), np.cos(0) * v * 8 * v, rtol=1e-14)


def test_integers_and_booleans():
    @ds.func_native("%r = call i32 @llvm.ctpop.i32(i32 %n)\nret i32 %r")
    def undeclared(n: ds.i32) -> ds.i32: ...

    @ds.func_native(
        "declare i32 @llvm.ctpop.i32(i32)\n%r = call i32 @llvm.ctpop.i32(i32 %n)\nret i32 %r"
    )
    def bits(n: ds.i32) -> ds.i32: ...

    @ds.func_native("%r = xor i1 %a, true\nret i1 %r")
    def negated(a: ds.u1) -> ds.u1: ...

    out = ds.field(ds.i32, shape=8)

    @ds.kernel
    def run():
        for i in out:
            out[i] = bits(i)
            if negated(i < 4):
                out[i] += 10

    run()
    assert out.to_numpy().tolist() == [0, 1, 1, 2, 11, 12, 12, 13]


def test_bad_text_is_reported_with_the_line():
    @ds.func_native("%r = fmul float %x, %x\nret double %r")
    def bad(x: ds.f64) -> ds.f64: ...

    _, _, run = squares(bad)
    with pytest.raises(ds.BackendError, match=r"LLVM refuses the text of bad: .*%x") as caught:
        run()
    assert "square(2.0 * x[i])" in str(caught.value)
    assert "<string>" not in str(caught.value)

    @ds.func_native("declare double @no_such_function(double)\nret double %x")
    def missing(x: ds.f64) -> ds.f64: ...

    _, _, run = squares(missing)
    with pytest.raises(ds.BackendError, match="calls no_such_function, which this process"):
        run()


def test_ptx_and_backends():
    @ds.func_native({"cuda": SQUARE}, adj_text={"cuda": SQUARE_ADJ})
    def only_cuda(x: ds.f64) -> ds.f64: ...

    @ds.func_native({"cpu": SQUARE})
    def only_cpu(x: ds.f64) -> ds.f64: ...

    y = field(3)

    @ds.kernel
    def one():
        for i in y:
            y[i] = only_cuda(y[i])

    @ds.kernel
    def other():
        for i in y:
            y[i] = only_cpu(y[i])

    assert "mul" in one.ptx()
    with pytest.raises(ds.BackendError, match="only_cuda has no text for cpu"):
        one()
    other()
    with pytest.raises((ds.BackendError, PtxError), match="only_cpu has no text for cuda"):
        other.ptx()


def test_the_interpreter_refuses():
    @ds.func_native(SQUARE)
    def square(x: ds.f64) -> ds.f64: ...

    x, _, run = squares(square)
    run()
    kernel = pipeline.run(run._only(()).ir, pipeline.LOWER)
    memory = {m: m.handle().to_numpy() for m in kernel.mems}
    with pytest.raises(ds.BackendError, match="square is LLVM text"):
        interpreter.run(kernel, memory)
    assert x is not None


def test_decorator_refuses_what_is_no_scalar():
    with pytest.raises(ds.KernelTypeError, match="the parameter v of f is no scalar"):

        @ds.func_native("ret double 0.0")
        def f(v: ds.types.vector(2, ds.f64)) -> ds.f64: ...

    with pytest.raises(ds.KernelTypeError, match="the result of g is no scalar"):

        @ds.func_native("ret double 0.0")
        def g(v: ds.f64): ...

    with pytest.raises(ds.KernelTypeError, match="h has a body"):

        @ds.func_native("ret double 0.0")
        def h(v: ds.f64) -> ds.f64:
            return v
