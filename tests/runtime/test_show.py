"""`kernel.show`: each line of the source with its IR and its part of the adjoint, as text and as a table."""

import re
import sys
import types

import pytest

import diffsim as ds
from tests.support.source import line_of

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    """No line is divided, whatever the terminal of the tests is."""
    monkeypatch.setenv("COLUMNS", "200")


def spring():
    x, y = (ds.field(ds.f32, shape=4, needs_grad=True) for _ in range(2))

    @ds.func
    def pull(length, k):
        return -k * (length - 1.0)

    @ds.kernel
    def step(dt: ds.f32):
        for i in x:
            length = ds.sqrt(x[i])
            y[i] = dt * pull(length, 3.0)

    return step


def parts_of(text):
    """The statements below each line of the source: (IR, adjoint), by the line's number."""
    found, at = {}, None
    for line in text.splitlines():
        if head := re.match(r" {0,4}(\d+)  ", line):
            at = found.setdefault(int(head[1]), ([], []))
        elif "│" in line:
            left, _, right = line.partition("│")
            at[0].append(left.strip())
            at[1].append(right.strip())
    return {
        k: ("\n".join(ir).rstrip(), "\n".join(back).rstrip()) for k, (ir, back) in found.items()
    }


def test_each_line_has_its_statements(capsys):
    step = spring()
    step.show()
    text = capsys.readouterr().out
    assert text.startswith("kernel step, test_show.py\n")
    assert "functions it calls, test_show.py\n" in text
    parts = parts_of(text)
    lines = {name: line_of(spring, code) for name, code in {
        "loop": "for i in x:", "sqrt": "length = ds.sqrt(x[i])", "store": "y[i] = dt * pull",
        "func": "return -k * (length - 1.0)", "decorator": "@ds.kernel",
    }.items()}  # fmt: skip
    ir, back = parts[lines["sqrt"]]
    assert ir == "%t0: f32 = load x[%i]\n%length: f32 = sqrt %t0"
    assert "load x[%i]" in back
    assert "atomic_add x.grad[%i]" in back
    assert "parallel %i in 0..4 {" in parts[lines["loop"]][0]
    assert "store y[%i]" in parts[lines["store"]][0]
    assert "load y.grad[%i]" in parts[lines["store"]][1]
    assert "sub %length, 1.0" in parts[lines["func"]][0]
    assert parts[lines["decorator"]] == ("", "")


def test_nothing_is_lost(capsys):
    """All statements that `ir` prints are there, with their lines, and those of the adjoint in order."""
    step = spring()
    step.show()
    parts = parts_of(capsys.readouterr().out)
    for column, listing in ((0, step.ir()), (1, step.grad.ir())):
        shown = "\n".join(part[column] for part in parts.values())
        for line in listing.splitlines()[1:]:
            statement, _, place = line.partition(" ; L")
            if place:
                assert statement.strip() in shown
                assert statement.strip() in parts[int(place)][column]
    numbers = [int(n) for part in parts.values() for n in re.findall(r"^(\d+) ", part[1], re.M)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert numbers != sorted(numbers)  # the adjoint goes backwards


def test_a_page(tmp_path):
    spring().show(tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>kernel step</title>" in page
    assert page.count("<table>") == 2
    assert "https://" not in page
    assert re.search(
        r'<td class="ir">%t0: f32 = load x\[%i\]\n%length: f32 = sqrt %t0</td>',
        page.replace("  %", "%"),
    )


def test_notebooks_show_the_table(monkeypatch):
    shown = []
    fake = types.SimpleNamespace(
        get_ipython=lambda: True, display=types.SimpleNamespace(display=shown.append)
    )
    monkeypatch.setitem(sys.modules, "IPython", fake)
    spring().show()
    assert "<table>" in shown[0]._repr_html_()


def test_a_refused_adjoint_is_said(capsys):
    y = ds.field(ds.f32, shape=4, needs_grad=True)

    @ds.kernel
    def twice():
        for i in y:
            y[i] = y[i] * y[i]
            y[0] = 2.0 * y[i] * y[i]

    twice.show()
    text = " ".join(capsys.readouterr().out.split())
    assert "no adjoint: " in text
    assert re.search(rf"\(line {line_of(twice, 'y[i] = y[i]')}\)$", text)


def test_a_kernel_without_gradients(capsys):
    y = ds.field(ds.f32, shape=4)

    @ds.kernel
    def fill(t: ds.template()):
        for i in y:
            y[i] = t

    with pytest.raises(ds.DiffsimError, match="compiled for its arguments"):
        fill.show()
    fill.show(args=(3,))
    out = capsys.readouterr().out
    assert "store y[%i], 3.0" in out
    assert out.endswith("no adjoint: nothing that it reads or writes has a gradient\n")


def test_kernels_of_objects(capsys):
    @ds.data_oriented
    class Solver:
        def __init__(self):
            self.y = ds.field(ds.f32, shape=4)

        @ds.kernel
        def clear(self):
            for i in self.y:
                self.y[i] = 0.0

    solver = Solver()
    solver.clear()
    solver.clear.show()
    assert "store y[%i], 0.0" in capsys.readouterr().out


def test_narrow_terminals(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    spring().show()
    assert max(map(len, capsys.readouterr().out.splitlines())) < 80


@pytest.mark.parametrize("path", [3, ""])
def test_what_is_refused(path):
    with pytest.raises(ds.ArgumentError, match="path is a text"):
        spring().show(path)
