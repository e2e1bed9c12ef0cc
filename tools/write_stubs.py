"""Write the stubs (`*.pyi`) by which type checkers and editors know diffsim's public names.

    python tools/write_stubs.py           # write them
    python tools/write_stubs.py --check   # fail if one is out of date

They are made of what the running package says: the names that `dir` shows, signatures, annotations and
docstrings. `tools/stub_parts.py` has what only a type checker needs. See docs/adr/0065.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from stub_parts import HEADER, METHODS, NAMES, OF_FIELDS, REPLACED  # noqa: E402

import diffsim as ds  # noqa: E402
from diffsim.ir.op import Op  # noqa: E402
from diffsim.ir.types import ScalarType  # noqa: E402
from diffsim.lang.host.annotations import DefaultTensor  # noqa: E402
from diffsim.lang.host.intrinsic import Intrinsic  # noqa: E402
from diffsim.runtime.fields.protocols import FieldProtocols  # noqa: E402
from diffsim.runtime.layouts.layout_tree import Axes, Node  # noqa: E402
from diffsim.runtime.session import Arch  # noqa: E402

FILES = {
    "": "__init__.pyi",
    "ad": "ad/__init__.pyi",
    "algorithms": "algorithms.pyi",
    "jax": "jax.pyi",
    "linalg": "linalg/__init__.pyi",
    "math": "math.pyi",
    "optim": "optim/__init__.pyi",
    "profiler": "profiler.pyi",
    "tools": "tools/__init__.pyi",
    "torch": "torch.pyi",
    "types": "types.pyi",
    "ui": "ui/__init__.pyi",
}
OPERATORS = set(
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ "
    "__mod__ __rmod__ __pow__ __rpow__ __matmul__ __rmatmul__ __and__ __rand__ __or__ __ror__ __xor__ "
    "__rxor__ __lshift__ __rlshift__ __rshift__ __rrshift__ __lt__ __le__ __gt__ __ge__".split()
)
UNARY = set("__neg__ __pos__ __invert__ __abs__ __float__ __int__ __bool__".split())
SPECIAL = (
    OPERATORS
    | UNARY
    | set(
        "__call__ __enter__ __exit__ __getitem__ __setitem__ __iter__ __len__ __contains__ __array__ "
        "__dlpack__ __dlpack_device__".split()
    )
)
HEAD = re.compile(r"^( *)(def|class) (\w+).*:(?: \.\.\.)?$", re.MULTILINE)
KNOWN = set(
    "Any Callable Iterable Iterator Mapping Sequence Literal None bool int float str bytes tuple list dict "
    "set type object slice Path PathLike Self T F C P R Field Tape Kernel Matrix Vector StructField Arch "
    "Axes Node DType Camera Canvas Gui Scene Window".split()
)


def public(thing: Any) -> list[str]:
    """The public names of a module or class."""
    return [name for name in dir(thing) if not name.startswith("_")]


def write(module: str) -> str:
    """The text of a module's stub."""
    space = getattr(ds, module) if module else ds
    parts, header = [], HEADER[""] if not module else HEADER.get(module, HEADER["*"])
    for name in public(space):
        parts.append(_entry(module, name, getattr(space, name)))
    if not module:
        parts += [_class("_Tensor", ds.Matrix), _class("Arch", Arch), _class("Axes", Axes)]
        parts.append(_class("Node", Node))
        parts.append("__version__: str")
    listed = "__all__ = [\n" + "".join(f'    "{n}",\n' for n in space.__all__) + "]\n"
    doc = inspect.getdoc(space).split("\n")[0]
    note = "# Made by tools/write_stubs.py of what the package says: change that, and run it.\n"
    return f'"""{doc}"""\n\n{note}\n{header}\n' + "\n".join(p for p in parts if p) + "\n\n" + listed


def _entry(module: str, name: str, thing: Any) -> str:
    """The declaration of one public name."""
    if (module, name) in REPLACED:
        return _documented(REPLACED[module, name], name, thing)
    if module and getattr(ds, name, None) is thing:
        return f"from diffsim import {name} as {name}"
    if isinstance(thing, types.ModuleType):
        return f"from diffsim import {name} as {name}"
    if isinstance(thing, type):
        if issubclass(thing, Exception) and thing.__module__ == "diffsim.errors":
            return f"from diffsim.errors import {name} as {name}"
        return _class(name, thing, getattr(ds, module) if module else ds)
    if isinstance(thing, ScalarType):
        python = "bool" if thing.is_bool else "float" if thing.is_float else "int"
        return f"{name}: TypeAlias = {python}{_doc_below(thing)}"
    if isinstance(thing, DefaultTensor):
        sizes = ", ".join(f"Literal[{n}]" for n in thing.shape)
        scalar = "float" if thing.kind == "f" else "int"
        made = "Vector" if len(thing.shape) == 1 else "Matrix"
        return f"{name}: TypeAlias = {made}[{sizes}, {scalar}]{_doc_below(thing)}"
    for kind in (Arch, Axes, Node):
        if isinstance(thing, kind):
            return f"{name}: {kind.__name__}{_doc_below(thing)}"
    if callable(thing):
        return _function(name, thing)
    return f"{name}: {type(thing).__name__ if isinstance(thing, str | float) else 'Any'}"


def _function(name: str, thing: Any, owner: str = "") -> str:
    signature = inspect.signature(thing)
    given = list(signature.parameters.values())
    if thing is ds.init:
        given = given[
            :-1
        ]  # Taichi's other options are taken with a warning: a checker may refuse them
    result = _result(thing, signature)
    if isinstance(thing, Op | Intrinsic):
        result = "Any"
    text = f"def {name}({_parameters(given)}) -> {result}:"
    return text + _doc(thing, "    ")


def _doc(thing: Any, indent: str) -> str:
    """The whole docstring: editors show that of a stub in place of the source's."""
    doc = (inspect.getdoc(thing) or "").rstrip().replace("\\", "\\\\").replace('"""', r"\"\"\"")
    if not doc:
        return " ..."
    end = f"\n{indent}" if "\n" in doc or doc.endswith('"') else ""
    return f"\n{indent}" + textwrap.indent(f'"""{doc}', indent).lstrip() + f'{end}"""'


def _doc_below(thing: Any) -> str:
    """The docstring of a variable, which stands below it."""
    return _doc(thing, "").removesuffix(" ...")


def _documented(text: str, name: str, thing: Any) -> str:
    """Declarations written by hand, with the docstrings of the package: one for all overloads of a name."""
    if not HEAD.search(text):
        return text + _doc_below(thing)
    lines, described = [], set()
    for line in text.split("\n"):
        head = HEAD.match(line)
        if not head:
            lines.append(line)
            continue
        indent, kind, called = head.groups()
        is_first = called not in described and (called == name if not indent else called[0] != "_")
        described.add(called)
        owner = thing if not indent else inspect.getattr_static(thing, called, None)
        doc = _doc(owner, f"{indent}    ") if is_first and owner is not None else " ..."
        end = "" if kind == "class" else " ..."
        lines.append(line.removesuffix(" ...") + (end if doc == " ..." else doc))
    return "\n".join(lines)


def _parameters(given: list[inspect.Parameter]) -> str:
    texts, starred = [], False
    for k, p in enumerate(given):
        if p.kind is p.KEYWORD_ONLY and not starred:
            texts.append("*")
            starred = True
        starred |= p.kind is p.VAR_POSITIONAL
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        text = stars + p.name
        if not (k == 0 and p.name in ("self", "cls")):
            text += f": {_type(p.annotation, p.name)}"
        if p.default is not p.empty:
            text += " = ..."
        texts.append(text)
        following = given[k + 1].kind if k + 1 < len(given) else None
        if p.kind is p.POSITIONAL_ONLY and following is not p.POSITIONAL_ONLY:
            texts.append("/")
    return ", ".join(texts)


def _type(annotation: Any, parameter: str = "") -> str:
    """An annotation of the source, with names that the stub does not have replaced by Any."""
    # Not a time step, which other functions call dt.
    if parameter in ("dtype", "dt", "default_fp", "default_ip") and annotation not in (
        "float",
        float,
    ):
        return "DType | None"
    if annotation is inspect.Parameter.empty:
        return "Any"
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:typing|collections\.abc|os)\.", "", text)
    if text in ("object", "Any"):
        return "Any"
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in KNOWN | {"np"}:
            node.id = NAMES.get(node.id, "Any")
    made = ast.unparse(tree)
    # A subscripted Any, and an attribute of one, are Any.
    made = re.sub(r"\bAny(?:\.\w+|\[[^][]*\])+", "Any", made)
    return "Any" if re.search(r"\bAny \||\| Any\b", made) else made


def _result(function: Any, signature: inspect.Signature) -> str:
    """The type of what a function returns."""
    found = _type(signature.return_annotation)
    while wrapped := getattr(function, "__wrapped__", None):
        if function.__code__.co_filename == contextlib.__file__:  # `contextlib.contextmanager`
            return re.sub("^Iterator", "AbstractContextManager", found)
        function = wrapped
    return found


def _class(name: str, cls: type, space: Any = ds) -> str:
    if ("", name) in REPLACED:
        return _documented(REPLACED["", name], name, cls)
    above = cls.__mro__[1:-1]
    bases = [b.__name__ for b in above if b in vars(ds).values() or b in vars(space).values()]
    bases = ["Field"] if name in OF_FIELDS else bases
    bases += ["Exception"] if issubclass(cls, Warning) else []
    library = _of_library(cls)
    bases += [f"{library.__module__}.{library.__name__}"] if library else []
    head = f"class {name}({bases[0]}):" if bases else f"class {name}:"
    lines = [head + (_doc(cls, "    ") if inspect.getdoc(cls) else "")]
    inherited = set(
        dir(Exception) if issubclass(cls, Exception) else dir(library) if library else []
    )
    inherited -= {n for b in cls.__mro__ if b.__module__.startswith("diffsim") for n in vars(b)}
    shown = [n for n in dict.fromkeys([*_attributes(cls), *public(cls)]) if n not in inherited]
    for member in [*_constructors(cls), *sorted(_special(cls)), *shown, "__getattr__"]:
        if text := _member(name, cls, member):
            lines.append(textwrap.indent(text, "    "))
    return "\n".join(lines) if len(lines) > 1 else head + _doc(cls, "    ")


def _of_library(cls: type) -> type | None:
    """Its base of the standard library, whose methods are those of the Python that runs; None if none."""
    names = sys.stdlib_module_names - {"abc", "builtins", "typing"}
    return next((b for b in cls.__mro__ if b.__module__ in names), None)


def _attributes(cls: type) -> Iterator[str]:
    """The public names that a docstring lists under `Attributes:`."""
    doc = inspect.getdoc(cls) or ""
    listed = re.search(r"^Attributes:\n((?:[ ]{4}.*\n?|\n)+)", doc, re.MULTILINE)
    hidden = set(dir(cls)) if "_public" not in vars(cls) else set(vars(cls)["_public"].split())
    for names in re.findall(r"^ {4}([\w, ]+):", listed[1], re.MULTILINE) if listed else ():
        for one in names.split(", "):
            if "_public" not in vars(cls) or one in hidden:
                yield one


def _constructors(cls: type) -> list[str]:
    if "__new__" in vars(cls):
        return ["__new__"]
    if issubclass(cls, Exception):
        return []
    return ["__init__"] if any("__init__" in vars(b) for b in cls.__mro__[:-1]) else []


def _special(cls: type) -> set[str]:
    ours = [b for b in cls.__mro__ if b.__module__.startswith("diffsim.")]
    found = {n for b in ours for n in vars(b) if n in SPECIAL}
    # What fields answer to operators is an error that explains how to compute with their elements.
    return found - OPERATORS - UNARY if issubclass(cls, FieldProtocols) else found


def _member(owner: str, cls: type, name: str) -> str:
    if (owner, name) in METHODS:
        return METHODS[owner, name]
    found = inspect.getattr_static(cls, name, None)
    if name == "__getattr__":
        return ""
    if name == "__new__":
        found = found.__func__ if isinstance(found, staticmethod) else found
    if name in OPERATORS:
        return f"def {name}(self, other: Any, /) -> Any: ..."
    if isinstance(found, property):
        result = _type(inspect.signature(found.fget).return_annotation) if found.fget else "Any"
        text = f"@property\ndef {name}(self) -> {result}:{_doc(found, '    ')}"
        if found.fset:
            text += f"\n@{name}.setter\ndef {name}(self, value: Any) -> None: ..."
        return text
    if isinstance(found, staticmethod | classmethod):
        mark = "staticmethod" if isinstance(found, staticmethod) else "classmethod"
        function = found.__func__
        return f"@{mark}\n{_function(name, function)}"
    if isinstance(found, type):
        return f"{name}: Any"
    if callable(found):
        signature = inspect.signature(found)
        given = list(signature.parameters.values())
        if given and given[0].name not in (
            "self",
            "cls",
        ):  # a formula, whose first operand is the owner
            given[0] = given[0].replace(name="self", annotation=inspect.Parameter.empty)
        result = "None" if name == "__init__" else _result(found, signature)
        result = "Self" if name == "__new__" else result
        result = "bool | None" if name == "__exit__" else result
        doc = " ..." if name.startswith("__") else _doc(found, "    ")
        return f"def {name}({_parameters(given)}) -> {result}:{doc}"
    return f"{name}: {type(found).__name__ if isinstance(found, str | int | float) else 'Any'}"


@functools.cache
def stubs() -> dict[str, str]:
    """The text of each stub by its path in the package."""
    return {path: write(module) for module, path in FILES.items()}


def main() -> int:
    """Write the stubs, or check them."""
    parser = argparse.ArgumentParser(description="Write the stubs for type checkers.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    check = parser.parse_args().check
    stale = [p for p, text in stubs().items() if not _is_current(ROOT / "diffsim" / p, text)]
    for path in stale if not check else ():
        (ROOT / "diffsim" / path).write_text(stubs()[path], encoding="utf-8")
    if check and stale:
        print(f"out of date: {', '.join(stale)} (python tools/write_stubs.py)")
    return int(check and bool(stale))


def _is_current(file: Path, text: str) -> bool:
    return file.exists() and file.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
