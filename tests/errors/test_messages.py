"""Every mistake is an error with the user's own line, a caret under the faulty part, and advice.

`wrong/*.txt` are tables of wrong programs:

    === name
    KernelTypeError: a phrase of the message
    Hint: a phrase of the advice
    Also: a further part of the text, such as the line of another statement
    ---
    the program, with a line of carets below the part of the line that is at fault
            ^^^

(or `# <-` at the end of the line, where the part depends on Python's version). The lines of carets are
taken out before the program runs. `python tests/errors/test_messages.py` prints every error in full, for
reading.
"""

import ast
import functools
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

import diffsim as ds
from tests.support.source import make
from tests.support.tracebacks import own_frames

pytestmark = pytest.mark.usefixtures("quick_code")

PREAMBLE = "import math; import numpy as np; import diffsim as ds\n"
WRONG = Path(__file__).parent / "wrong"
PACKAGE = Path(ds.__file__).parent


@dataclass
class Program:
    """A wrong program and what is expected of its error."""

    name: str
    error: str
    phrase: str
    advice: str
    also: list[str]
    text: str
    line: int
    carets: str

    @property
    def where(self) -> str:
        """The kernel or func that the line stands in, as errors show it; "" outside any."""
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.FunctionDef) and node.lineno < self.line <= node.end_lineno:
                for mark in node.decorator_list:
                    kind = ast.unparse(mark).partition("(")[0].removeprefix("ds.")
                    return f", in {kind} {node.name}"
        return ""

    def shown(self, file: Path) -> str:
        """The place as the error must show it."""
        source = self.text.splitlines()[self.line - 1]
        carets = self.carets[len(source) - len(source.lstrip()) :]
        place = f'  File "{file}", line {self.line}{self.where}'
        if source.lstrip().startswith(
            ("def ", "async def ")
        ):  # seen from the kernel, or from Python: both are right
            place = ""
        return f"{place}\n    {source.strip()}\n    {carets}\n"


def parse(part: str) -> Program:
    name, _, rest = part.partition("\n")
    head, _, body = rest.partition("\n---\n")
    expected = [line.partition(": ") for line in head.splitlines()]
    error, _, phrase = expected[0]
    given = {key: [v for k, _, v in expected[1:] if k == key] for key in ("Hint", "Also")}
    lines, at, carets = [PREAMBLE.rstrip()], 0, ""
    for line in body.rstrip().splitlines():
        if re.fullmatch(r"\s*\^+", line):
            at, carets = len(lines), line
        else:
            lines.append(line)
            at = len(lines) if line.endswith("# <-") else at
    assert error, f"{name}: what is expected?"
    text = "\n".join(lines) + "\n"
    return Program(name, error, phrase, "".join(given["Hint"]), given["Also"], text, at, carets)


PROGRAMS = [
    pytest.param(parse(part), id=f"{file.stem}: {part.partition(chr(10))[0]}")
    for file in sorted(WRONG.glob("*.txt"))
    for part in re.split(r"^=== ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
]


def run(program: Program, folder: Path) -> tuple[Path, BaseException]:
    """The error of a program, run as a file of its own."""
    file = folder / (re.sub(r"\W+", "_", program.name) + ".py")
    file.write_text(program.text, encoding="utf-8")
    ds.init(offline_cache=False, strict=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(program.text, str(file), "exec"), {"__name__": "wrong"})
    except BaseException as error:
        return file, error
    finally:
        ds.reset()
    pytest.fail("no error")


RULES = ("GlobalDataAccessError", "KernelSimplicityError", "MissingGradientError")


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.values[0].error in RULES])
def test_advice_to_lift_a_rule_can_be_followed(program, tmp_path):
    """Where a refusal says that lifting the rules gives the gradient, it does; elsewhere it does not."""
    file, error = run(program, tmp_path)
    says_so = 'ds.init(rules="lifted") lifts' in str(error)
    advised = says_so
    if isinstance(
        error, ds.MissingGradientError
    ):  # to declare one field is simpler than to lift rules
        advised = error.is_lifted
        assert not says_so
    assert not says_so or "tape.stats()" in error.hint, "what it costs"
    ds.init(offline_cache=False, strict=True, rules="lifted")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(program.text, str(file), "exec"), {"__name__": "wrong"})
        again = None
    except ds.AutodiffError as found:
        again = found
    finally:
        ds.reset()
    still = again is not None and type(again).__name__ in RULES
    # A call of `kernel.grad` has no tape that could save anything: the advice names one.
    by_hand = ".grad(" in program.text
    assert still != advised or (by_hand and advised), str(again or error)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_wrong_program(program, tmp_path):
    file, error = run(program, tmp_path)
    assert type(error).__name__ == program.error, str(error)
    assert isinstance(error, ds.DiffsimError)
    assert program.phrase in error.message
    assert program.advice in (error.hint or "")
    assert program.advice or error.hint is None, f"unexpected advice: {error.hint}"
    for text in program.also:
        assert text in str(error)
    assert error.span.file == str(file), "the line is one of the program's"
    assert own_frames(error) == []
    shows_no_compiler(error)
    if program.line:
        assert error.span.line == program.line
    if program.carets:
        assert program.shown(file) in str(error) + "\n"


def test_there_are_enough_programs():
    assert len(PROGRAMS) >= 60
    assert len({p.id for p in PROGRAMS}) == len(PROGRAMS)
    without_a_place = [p.values[0].name for p in PROGRAMS if not p.values[0].line]
    assert without_a_place == ["class as a kernel"], "its decorator is no part of what Python runs"


# ---- nothing of the compiler is shown


@functools.cache
def internal_names() -> re.Pattern[str]:
    """Classes of diffsim that are no part of its interface, and the words of its stages."""
    names = {"bug", "InternalError", "NoneType", "ndarray object", "ufunc", "traceback", "IR"}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name not in dir(ds) + dir(ds.ad) + dir(
                ds.types
            ):
                names.add(node.name)
    common = {"If", "For", "While", "Let", "Root", "Pass", "Special", "Source", "Same", "types"}
    return re.compile(rf"\b({'|'.join(sorted(map(re.escape, names - common)))})\b")


def shows_no_compiler(error: ds.DiffsimError) -> None:
    assert internal_names().search(f"{error.message}\n{error.hint}") is None
    assert str(PACKAGE) not in str(error)
    assert "<diffsim" not in str(error)
    assert error.__cause__ is None, "what failed inside"
    assert error.__suppress_context__, "what failed inside"


@pytest.mark.parametrize("text", ["a Builder of it", "found NoneType", "the IR of f"])
def test_internal_names_are_found(text):
    assert internal_names().search(text)


# ---- mistakes that are not programs of their own


def test_no_source(tmp_path):
    lines = ["import diffsim as ds", "@ds.kernel", "def step():", "    pass"]
    with pytest.raises(ds.KernelSyntaxError, match="source of step is not available") as caught:
        exec("\n".join(lines), {})
    assert "define it in a notebook cell, or in a .py file" in caught.value.hint


def test_source_that_changed(tmp_path):
    file = tmp_path / "changed.py"
    text = "import diffsim as ds\n@ds.kernel\ndef step():\n    pass\n"
    file.write_text("# another program\n" * 9, encoding="utf-8")
    with pytest.raises(ds.KernelSyntaxError, match="something else") as caught:
        exec(compile(text, str(file), "exec"), {})
    assert "the file changed after it was loaded" in caught.value.hint


def test_nested_too_deeply(tmp_path):
    funcs = [f"@ds.func\ndef f{k}(a):\n    return f{k + 1}(a){' + a' * 200}\n" for k in range(100)]
    last = "@ds.func\ndef f100(a):\n    return a\n"
    text = PREAMBLE + "".join(funcs) + last
    text += "@ds.kernel\ndef step(a: ds.f32) -> ds.f32:\n    return f0(a)\nstep(1)\n"
    program = Program("deep", "", "", "", [], text, 0, "")
    limit = sys.getrecursionlimit()
    _, error = run(program, tmp_path)
    assert isinstance(error, ds.KernelSyntaxError)
    assert "nested too deeply" in error.message
    assert "divide it into several statements" in error.hint
    assert sys.getrecursionlimit() == limit


def test_a_func_that_calls_itself_is_shown_briefly(tmp_path):
    (program,) = (p.values[0] for p in PROGRAMS if p.values[0].name == "recursion")
    _, error = run(program, tmp_path)
    assert "more calls like these" in str(error)
    assert str(error).count("called from") == 4


def test_the_terminal_shows_the_error_once(tmp_path, capfd):
    (program,) = (p.values[0] for p in PROGRAMS if p.values[0].name == "unknown name")
    file, error = run(program, tmp_path)
    sys.excepthook(type(error), error, error.__traceback__)
    shown = capfd.readouterr().err
    assert shown.count("lenght is not defined") == 1
    assert program.shown(file) in shown
    assert shown.rstrip().endswith("Hint: did you mean length?")


def test_a_replaced_field_compiles_anew(cpu):
    x = ds.field(ds.f32, shape=3)

    @ds.kernel
    def first() -> ds.f32:
        return x[0]

    x[0] = 1.0
    assert first() == 1.0
    x = ds.field(ds.f32, shape=5)
    x[0] = 2.0
    assert first() == 2.0


def test_an_equal_list_is_no_change(cpu):
    weights = [1.0, 2.0]

    @ds.kernel
    def second() -> ds.f32:
        return weights[1]

    assert second() == 2.0
    weights = [1.0, 2.0]
    assert second() == 2.0


def test_a_kernel_keeps_its_object(cpu):
    @ds.data_oriented
    class Ball:
        def __init__(self):
            self.mass = 2.0

        @ds.kernel
        def weight(self) -> ds.f32:
            return self.mass * 10.0

    assert Ball().weight() == 20.0


@pytest.mark.parametrize(
    ("since", "statement", "said"),
    [
        ((3, 12), "type V = int", "a type alias cannot be used in a kernel"),
        ((3, 14), 'print(t"{1}")', "a template string cannot be used in a kernel"),
        ((3, 15), "a = {**k for k in [2]}", "2 is no dictionary"),
        ((3, 15), "a = [*k for k in [2]]", "2 cannot be unpacked"),
    ],
)
def test_syntax_of_later_versions(cpu, since, statement, said):
    if sys.version_info < since:
        pytest.skip("this Python does not parse it")
    space = {"ds": ds}
    make(f"@ds.kernel\ndef step():\n    {statement}\n", space)
    with pytest.raises(ds.DiffsimError, match=said) as found:
        space["step"]()
    assert found.value.span.line == 3


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for param in PROGRAMS:
            _, error = run(param.values[0], Path(folder))
            print(f"=== {param.id}\n{type(error).__name__}: {error}".replace(folder + "/", ""))
