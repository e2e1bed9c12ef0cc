"""Tracebacks of diffsim's errors hold the program's own frames, and those of the package on request."""

import logging
import sys
import traceback
import types

import pytest

import diffsim as ds
from tests.support.processes import start
from tests.support.tracebacks import own_frames

TYPO = """\
import diffsim as ds

ds.init(arch=ds.cpu)
x = ds.field(ds.f32, shape=8)

@ds.func
def length(a):
    total = a * a
    return ds.sqrt(totl)

@ds.kernel
def step():
    for i in x:
        x[i] = length(x[i])

def main():
    step()

main()
"""


def frames(error):
    return [entry.name for entry in traceback.extract_tb(error.__traceback__)]


def overflow():
    """A kernel that is called wrongly."""

    @ds.kernel
    def fill(x: ds.template()):
        for i in x:
            x[i] = wrong  # noqa: F821

    fill(ds.field(ds.f32, shape=3))


def test_a_script_prints_its_own_lines_only(tmp_path):
    process = start(tmp_path, TYPO)
    _, said = process.communicate()
    file = process.args[-1]
    # Python marks calls below its own frames from 3.13 on, even those that fill their line.
    marks = "    ~~~~^^\n" if sys.version_info >= (3, 13) else ""
    assert (
        said
        == f"""\
Traceback (most recent call last):
  File "{file}", line 19, in <module>
    main()
{marks}  File "{file}", line 17, in main
    step()
{marks}diffsim.errors.KernelNameError: totl is not defined
  File "{file}", line 9, in func length
    return ds.sqrt(totl)
                   ^^^^
  called from
  File "{file}", line 14, in kernel step
    x[i] = length(x[i])
           ^^^^^^^^^^^^
  Hint: did you mean total?
"""
    )


def test_the_environment_asks_for_all_frames(tmp_path):
    def said(text, asked):
        return start(tmp_path, text, DIFFSIM_TRACEBACK=asked).communicate()[1]

    assert said(TYPO, "full").count("in expr\n") > 1
    assert "in expr" in said(TYPO.replace("ds.init(arch=ds.cpu)", ""), "full")
    option = TYPO.replace("arch=ds.cpu", 'traceback="short"')
    assert "in expr" not in said(option, "full"), "the option wins"
    assert "DIFFSIM_TRACEBACK cannot be 'long'" in said(TYPO, "long")


def test_the_option_shows_all_frames_until_the_next_init(cpu):
    ds.init(arch=ds.cpu, traceback="full")
    with pytest.raises(ds.KernelNameError) as found:
        overflow()
    assert len(own_frames(found.value)) > 5
    ds.init(arch=ds.cpu)
    with pytest.raises(ds.KernelNameError) as found:
        overflow()
    assert own_frames(found.value) == []
    assert frames(found.value)[-1] == "overflow"
    assert found.traceback[-1].frame.code.name == "overflow", "where pytest and debuggers stop"


def test_functions_of_the_program_that_diffsim_calls_stay(cpu):
    x = ds.field(ds.f32, shape=3, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    @ds.kernel
    def total(t: ds.i32):
        for i in x:
            loss[None] += x[i]

    def step(t):
        launch(t)

    def launch(t):
        total(t, t)

    with pytest.raises(ds.KernelTypeError) as found, ds.Tape(loss):
        ds.ad.checkpoint(step, 3, [x])
    assert frames(found.value)[1:] == ["step", "launch"]


def test_other_exceptions_keep_all_frames(cpu):
    x = ds.field(ds.f32, shape=3, needs_grad=True)
    loss = ds.field(ds.f32, shape=(), needs_grad=True)

    def step(t):
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as found, ds.Tape(loss):
        ds.ad.checkpoint(step, 3, [x])
    assert "run" in frames(found.value)
    assert frames(found.value)[-1] == "step"


def test_faults_of_diffsim_itself_keep_all_frames(cpu, monkeypatch):
    def fail(*args):
        raise ds.InternalError("a fault", None)

    monkeypatch.setattr(ds.runtime.kernels.kernel.compiler, "translate", fail)
    with pytest.raises(ds.InternalError) as found:
        overflow()
    assert "specialize" in frames(found.value)


def test_logs_show_the_same(cpu, caplog):
    try:
        overflow()
    except ds.DiffsimError:
        logging.getLogger("tests").exception("it failed")
    assert "in overflow" in caplog.text
    assert "diffsim/runtime" not in caplog.text


def test_a_notebook_shows_its_cell_only(cpu):
    """IPython asks an exception for its own text; its frames, which run the cell, come first."""
    shell = types.ModuleType("IPython.core.interactiveshell")
    exec("def run_code(cell):\n    cell()", vars(shell))
    with pytest.raises(ds.KernelNameError) as found:
        shell.run_code(overflow)
    lines = found.value._render_traceback_()
    assert lines[0] == "Traceback (most recent call last):"
    assert "in run_code" not in "\n".join(lines)
    assert lines[1].endswith("in overflow")
    marks = sys.version_info >= (3, 13)  # a line of them below the call
    assert "KernelNameError: wrong is not defined" in lines[3 + marks]
    assert len(lines) < 9 + marks


def test_no_error_is_one_that_notebooks_format_themselves():
    """IPython does not ask a SyntaxError for its text, and shows its own frames."""
    kinds = [k for k in vars(ds.errors).values() if isinstance(k, type)]
    assert ds.KernelSyntaxError in kinds
    assert not any(issubclass(k, SyntaxError) for k in kinds)


def test_an_error_may_be_raised_again(cpu):
    try:
        overflow()
    except ds.KernelNameError as error:
        kept = error

    def again():
        raise kept

    with pytest.raises(ds.KernelNameError) as found:
        again()
    assert frames(found.value)[1:] == ["again", *frames(found.value)[2:]]
    assert frames(found.value)[-1] == "overflow"
