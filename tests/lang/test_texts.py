"""Kernels and funcs whose text no file has: lambdas, `exec`, `python -c`, programs on stdin, the prompt."""

import sys
import types

import numpy as np
import pytest

import diffsim as ds

# A list, so that nobody holds the whole text unless the test does.
LINES = [
    "import diffsim as ds",
    "",
    "@ds.kernel",
    "def f(x: ds.f64) -> ds.f64:",
    "    return x * {}",
]


def code(factor, file="<string>"):
    return compile("\n".join(LINES).format(factor), file, "exec")


def run(compiled):
    space = {"__name__": "somewhere"}
    exec(compiled, space)
    return space["f"]


def test_without_a_text(cpu):
    with pytest.raises(ds.KernelSyntaxError, match="source of f is not available") as caught:
        run(code(2))
    assert "a text that exec() runs only while a variable has it" in caught.value.hint


def test_exec_of_a_text(cpu, tmp_path):
    text = "\n".join(LINES).format(3)
    assert run(text)(2.0) == run(compile(text, "<made>", "exec"))(2.0) == 6.0
    held = {"kernels": text.replace("3", "4").encode()}
    assert run(compile(held["kernels"], "elsewhere", "exec"))(2.0) == 8.0
    file = tmp_path / "kernels.txt"
    file.write_text(text.replace("3", "5"), encoding="utf-8")
    assert run(compile(file.read_text(encoding="utf-8"), "<string>", "exec"))(2.0) == 10.0


def test_errors_show_the_line_of_a_text(cpu):
    text = "\n".join(LINES).format("wrong")
    f = run(text)
    with pytest.raises(ds.KernelNameError, match="wrong is not defined") as caught:
        f(2.0)
    assert "line 5, in kernel f\n    return x * wrong\n" in str(caught.value)


def test_another_text_of_that_name_is_not_taken(cpu):
    texts = ["\n".join(LINES).format(k) for k in (7, 8)]
    texts += ["\n" + t for t in texts]  # the same code on other lines
    for text in texts:
        compiled = compile(text, "<string>", "exec")
        assert run(compiled)(1.0) == float(text[-1])
    with pytest.raises(ds.KernelSyntaxError, match="not available"):
        run(code(9))


def test_python_c(cpu, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "\n".join(LINES).format(11)])
    assert run(code(11))(2.0) == 22.0


def test_a_program_on_stdin(cpu, monkeypatch, tmp_path):
    file = tmp_path / "program.py"
    file.write_text("\n".join(LINES).format(12), encoding="utf-8")
    with open(file, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "__stdin__", stream)
        assert run(code(12, "<stdin>"))(2.0) == 24.0
        assert stream.tell() == 0  # the program may read its input


def test_the_prompt(cpu, monkeypatch):
    typed = ["x = 1", *LINES[:2], "class A:", *(f"    {line}" for line in LINES[2:]), "a.f(2.0)"]
    typed[-2] = typed[-2].format(13).replace("def f(x", "def f(x")
    history = types.SimpleNamespace(
        get_current_history_length=lambda: len(typed), get_history_item=lambda k: typed[k - 1]
    )
    monkeypatch.setitem(sys.modules, "readline", history)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    space = {"__name__": "__main__", "ds": ds}
    exec(compile("\n".join(typed[3:-1]), "<stdin>", "exec"), space)
    f = vars(space["A"])["f"]
    assert f(2.0) == 26.0
    assert f.source.span(f.source.node.body[0]).line == 4


@pytest.fixture
def lambdas():
    make = lambda c: lambda x: (  # noqa: E731
        x * c)  # fmt: skip
    return [lambda a: a + 1, lambda a, b=3: a * b], make(5.0), ds.func(lambda v: v * v)


def test_lambdas(cpu, lambdas):
    both, by_five, square = lambdas
    x = ds.field(ds.f64, 2, needs_grad=True)
    y = ds.field(ds.f64, (), needs_grad=True)
    x.from_numpy(np.array([2.0, 3.0]))

    @ds.kernel
    def add():
        for i in x:
            for f in ds.static(both):
                y[None] += f(x[i])
            y[None] += by_five(x[i]) * square(x[i])

    with ds.Tape(y):
        add()
    assert y[None] == sum(x + 1 + 3 * x + 5 * x**3 for x in (2.0, 3.0))
    assert x.grad.to_numpy().tolist() == [4 + 15 * x**2 for x in (2.0, 3.0)]


def test_a_lambda_is_watched(cpu):
    factor = 2.0
    scale = lambda a: a * factor  # noqa: E731

    @ds.kernel
    def f(x: ds.f64) -> ds.f64:
        return scale(x)

    assert f(3.0) == 6.0
    scale = lambda a: a + factor  # noqa: E731
    assert f(3.0) == 5.0
    factor = 4.0
    with pytest.raises(ds.KernelStateError, match=r"factor was 2\.0"):
        f(3.0)


def test_lambdas_with_strict(cpu):
    ds.init(arch=ds.cpu, strict=True)
    twice = lambda a: 2 * a  # noqa: E731

    @ds.kernel
    def f(x: ds.f64) -> ds.f64:
        return twice(x)

    with pytest.raises(ds.KernelSyntaxError, match="twice is a lambda"):
        f(1.0)
