"""Every error that diffsim makes says what to do: the source is read for those that do not."""

import ast
import functools
from pathlib import Path

import diffsim
from diffsim import errors

PACKAGE = Path(diffsim.__file__).parent
CLASSES = {
    name
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, errors.DiffsimError)
}
METHODS = {
    "type_error",
    "syntax",
    "syntax_error",
}  # of the context: cx.type_error(node, message, hint)
BARE = {
    "ValueError",
    "TypeError",
    "RuntimeError",
    "AssertionError",
    "KeyError",
    "IndexError",
    "MemoryError",
}

MAY_BE_BARE = {
    "ad/replay/ir_data.py": "a damaged file: turned into a FileError by ad/replay/loaded_tape.py",
    "ad/replay/loaded_tape.py": "a damaged file: turned into a FileError by load_tape",
    "backends/interpreter.py": "the oracle of tests, which users do not reach",
    "backends/native/crash_guard.py": "no object code for a module that LLVM has optimized: its own fault",
    "backends/native/pool.py": "made by the session, which checks the number of threads",
    "ir/op.py": "turned into a KernelTypeError where it is raised",
    "ir/ops/shapes.py": "turned into a KernelTypeError by ir/builder.py",
    "lang/builtins/glsl.py": "turned into a KernelTypeError by lang/frontend/calls.py",
    "lang/builtins/quaternions.py": "turned into a KernelTypeError by lang/builtins/glsl.py",
    "lang/types/linalg.py": "turned into a KernelTypeError by lang/frontend/calls.py",
    "lang/frontend/iteration_spaces.py": "turned into an error of the loop by its caller",
    "ir/types.py": "turned into a KernelTypeError in the same function",
    "lang/types/arrays.py": "turned into a KernelTypeError by those who take the element",
    "optim/runs/repeatable.py": "caught by optim/runs/objective.py, which then records each time",
    "runtime/binding/template_arguments.py": "caught by the launch functions, which then make the whole key",
    "optim/steps/gradient_norm.py": "a caller's own mistake: it has seen a gradient that is not finite",
    "runtime/cache/disk_cache.py": "keys are made by diffsim itself",
    "runtime/kernels/access_summary.py": "a lookup of its own",
    "runtime/memory/scalars.py": "caught where an element is set, as that of a memoryview",
    "runtime/memory/reserved.py": "turned into an OutOfMemoryError where the field is made",
    "runtime/fields/conversions.py": "turned into a DtypeError in the same function",
}
"""Files that raise exceptions of Python's, and why users do not see them so."""


def says_nothing(node):
    return (isinstance(node, ast.Constant) and not node.value) or (
        isinstance(node, ast.IfExp) and (says_nothing(node.body) or says_nothing(node.orelse))
    )


@functools.cache
def nodes(text):
    """The calls and the raise statements of a file, by kind."""
    found = {ast.Call: [], ast.Raise: []}
    for node in ast.walk(ast.parse(text)):
        if type(node) in found:
            found[type(node)].append(node)
    return found


def without_advice(text):
    """The lines that make an error of diffsim's without saying what to do."""
    found = []
    for node in nodes(text)[ast.Call]:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        own = name in CLASSES and getattr(errors, name).advice is None
        if (not own and name not in METHODS) or any(isinstance(a, ast.Starred) for a in node.args):
            continue
        hints = [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "hint")]
        if not hints or says_nothing(hints[0]):
            found.append(node.lineno)
    return found


def bare(text):
    """The lines that raise an exception of Python's with a text of ours."""
    return [
        node.lineno
        for node in nodes(text)[ast.Raise]
        if node.exc is not None and ast.unparse(node.exc).partition("(")[0] in BARE
    ]


def in_package(find, but):
    found, used = [], set()
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        lines = find(file.read_text(encoding="utf-8"))
        if name in but:
            used |= {name} if lines else set()
        else:
            found += [f"{name}:{line}" for line in lines]
    return found, set(but) - used


def test_every_error_says_what_to_do():
    assert in_package(without_advice, {}) == ([], set())


def test_no_error_of_pythons_reaches_users():
    assert in_package(bare, MAY_BE_BARE) == ([], set())


def test_the_reader_sees_what_is_missing():
    text = """
raise FieldError("x", span)
raise FieldError("x", span, "do y")
raise FieldError("x", span, hint="do y" if a else "")
raise cx.type_error(node, "x")
raise cx.type_error(node, "x", "do y")
raise cx.type_error(node, "x", hint=None)
raise InternalError("x", span)
return errors.AutodiffError("x", None, hint=None)
raise ValueError("x")
raise
"""
    assert sorted(without_advice(text)) == [2, 4, 5, 7, 9]
    assert bare(text) == [10]
