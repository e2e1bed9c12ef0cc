"""The API reference, as Markdown: one entry for each public name, from `dir`, docstrings and signatures.

It reads the imported package: ops, intrinsics and types are objects, which no reader of source text sees.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import diffsim
from diffsim.ir.op import Op
from diffsim.ir.types import ScalarType
from diffsim.lang.host.annotations import DefaultTensor

KINDS = {"F": "float", "I": "integer", "N": "number", "B": "bool", "T": "any", "b": "bool"}
SECTION = re.compile(
    r"^(Args|Attributes|Example|Raises|Returns):\n((?:(?:[ ]{4}.*)?(?:\n|\Z))+)", re.MULTILINE
)
ITEM = re.compile(r"^(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): ?", re.MULTILINE)

MANY = 4  # names in a heading
AS_VALUES = (
    ScalarType,
    DefaultTensor,
)  # written as annotations; that they can be called is said in their words

PAGES = {
    "kernels": "Kernels, fields and tapes",
    "in-kernels": "Functions of the kernel language",
    "ops": "Functions of numbers",
    "types": "Types, axes and backends",
    "errors": "Errors",
    "ad": "ds.ad",
    "math": "ds.math",
    "optim": "ds.optim",
    "linalg": "ds.linalg",
    "algorithms": "ds.algorithms",
    "tools": "ds.tools",
    "ui": "ds.ui",
    "profiler": "ds.profiler",
    "torch": "ds.torch",
    "jax": "ds.jax",
}
"""File and title of each page."""

MODULES = [name for name in PAGES if isinstance(getattr(diffsim, name, None), types.ModuleType)]


def entries() -> dict[str, dict[str, Any]]:
    """All public names with what they are, as `ds.field`, on the page that describes each."""
    found: dict[str, dict[str, Any]] = {page: {} for page in PAGES}
    for name in public(diffsim):
        if name not in MODULES:
            thing = getattr(diffsim, name)
            found[_page_of(thing)][f"ds.{name}"] = thing
    for module in MODULES:
        for name in public(getattr(diffsim, module)):
            found[module][f"ds.{module}.{name}"] = getattr(getattr(diffsim, module), name)
    return found


def public(thing: Any) -> list[str]:
    """The public names of a module or class."""
    return [name for name in dir(thing) if not name.startswith("_")]


def _page_of(thing: Any) -> str:
    if isinstance(thing, type):
        return "errors" if issubclass(thing, Exception) else "kernels"
    if inspect.isfunction(thing):
        return "kernels"
    kind = type(thing).__name__
    return {"Op": "ops", "Intrinsic": "in-kernels", "Adjoint": "in-kernels"}.get(kind, "types")


def pages() -> dict[str, str]:
    """The Markdown of all pages, by their files."""
    made = {f"reference/{page}.md": _page(page, things) for page, things in entries().items()}
    return {"reference/index.md": _index(), **made}


def _index() -> str:
    lines = [
        "# Reference: all names",
        "",
        "For whoever knows a name and wants its arguments. Each public name with the first line of its "
        "description; the descriptions are those that `help()` shows. Their examples suppose "
        "`import diffsim as ds` and `import numpy as np`.",
    ]
    for page, things in entries().items():
        lines += ["", f"## {PAGES[page]}", "", "| name | what it is |", "|---|---|"]
        for names, thing in _groups(things):
            links = ", ".join(f"[`{name}`]({page}.md#{anchor(name)})" for name in names)
            lines.append(f"| {links} | {_first_line(thing)} |")
    return "\n".join(lines) + "\n"


def _page(page: str, things: dict[str, Any]) -> str:
    parts = [f"# {PAGES[page]}\n"]
    if page in MODULES:
        # Not `inspect.getdoc`, which takes the indentation of code that follows the first line.
        parts.append(to_markdown(getattr(diffsim, page).__doc__ or ""))
    for names, thing in _groups(things):
        parts.append(_entry(names, thing))
    return "\n".join(parts)


def _groups(things: dict[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """Names of one thing, and of values that only their type describes, have one entry."""
    groups: dict[int, list[str]] = {}
    for name, thing in things.items():
        described = isinstance(thing, type) or _doc(thing) != inspect.getdoc(type(thing))
        described &= not isinstance(thing, str)
        groups.setdefault(id(thing) if described else id(type(thing)), []).append(name)
    for names in groups.values():
        yield names, things[names[0]]


def _doc(thing: Any) -> str:
    if isinstance(thing, str):
        return "A level of messages, for `ds.set_logging_level`."
    if isinstance(thing, bool | int | float | tuple):
        return f"The constant {thing!r}."
    return inspect.getdoc(thing) or ""


def _first_line(thing: Any) -> str:
    first = to_markdown(_doc(thing)).strip().split("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def anchor(name: str) -> str:
    """Where a name is on its page."""
    return name.replace(".", "-")


def addresses() -> dict[str, str]:
    """Where each public name is described, as reference/ad.md#ds-ad-hvp."""
    found = {f"ds.{module}": f"reference/{module}.md" for module in MODULES}
    for page, things in entries().items():
        found |= {name: f"reference/{page}.md#{anchor(name)}" for name in things}
    return found


def _entry(names: list[str], thing: Any) -> str:
    """A heading, the signature, and the docstring; for a class, its public methods and properties too."""
    marks = "".join(f'<a id="{anchor(name)}"></a>' for name in names[1:])
    title = ", ".join(f"`{name}`" for name in names)
    if len(names) > MANY:
        title, marks = f"`{names[0]}` and the like", f"{marks}All of them: {title}."
    lines = [f"## {title} {{ #{anchor(names[0])} }}", "", marks, ""]
    if shown := _signature(names[0], thing):
        lines += ["```text", shown, "```", ""]
    lines.append(to_markdown(_doc(thing)))
    if isinstance(thing, type) and thing.__module__.startswith("diffsim"):
        lines += _members(names[0], thing)
    return "\n".join(lines)


def _members(owner: str, cls: type) -> list[str]:
    lines = []
    bases = [b for b in cls.__mro__[1:] if getattr(diffsim, b.__name__, None) is b]
    if bases:
        base = f"ds.{bases[0].__name__}"
        lines += [f"Has also what [`{base}`](#{anchor(base)}) has.", ""]
    for name, member in inspect.getmembers(cls):
        if name.startswith("_") or name in dir(Exception):
            continue
        if any(getattr(base, name, None) is member for base in bases):
            continue  # its base's entry describes it
        if not next(c for c in cls.__mro__ if name in vars(c)).__module__.startswith("diffsim"):
            continue  # Python's own, as those of `argparse`
        doc = inspect.getdoc(member) or ""
        is_ours = callable(member) or isinstance(member, property)
        if not is_ours or not doc.strip():
            continue
        shown = "" if isinstance(member, property) else _signature(name, member)
        lines += [f"### `{name}` {{ #{anchor(owner)}-{name} }}", ""]
        lines += ["```text", shown, "```", ""] if shown else []
        lines.append(to_markdown(doc))
    return lines


def _signature(name: str, thing: Any) -> str:
    """How it is called, without the quotes of annotations; nothing for what is not called."""
    if not callable(thing) or isinstance(thing, AS_VALUES):
        return ""
    if isinstance(thing, type) and re.search(r"\bmade by\b", _first_line(thing)):
        return ""  # its constructor is not for programs
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""  # a class of C's, whose arguments Python does not know
    if isinstance(thing, Op):
        found = _with_kinds(thing, found)
    given = _arguments(list(found.parameters.values()))
    result = found.return_annotation
    arrow = "" if result is found.empty or isinstance(thing, type) else f" -> {_type(result)}"
    one_line = f"{name}({', '.join(given)}){arrow}"
    if len(one_line) <= 90 or not given:
        return one_line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in given) + f"){arrow}"


def _with_kinds(op: Op, found: inspect.Signature) -> inspect.Signature:
    """The signature of an op, with the kinds of numbers that it takes and gives."""
    kinds = [KINDS[letter] for letter in op.operands]
    parameters = [
        parameter.replace(annotation=kind)
        for parameter, kind in zip(found.parameters.values(), kinds, strict=False)
    ]
    rest = list(found.parameters.values())[len(parameters) :]
    return found.replace(parameters=[*parameters, *rest], return_annotation=KINDS[op.result])


def _arguments(parameters: list[inspect.Parameter]) -> list[str]:
    """The arguments, with the star before those that are only given by name."""
    given = []
    has_star = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not has_star:
            given.append("*")
            has_star = True
        if parameter.name not in ("self", "cls"):
            given.append(_one_argument(parameter))
    return given


def _one_argument(parameter: inspect.Parameter) -> str:
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    text = star.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        default = re.sub(r" at 0x[0-9a-f]+", "", repr(parameter.default))
        text += f"={default}" if parameter.annotation is parameter.empty else f" = {default}"
    return text


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


# --- docstrings -----------------------------------------------------------------------------------


def to_markdown(doc: str) -> str:
    """A docstring in Google's form as Markdown: sections as lists, indented examples as blocks."""
    return _escaped(SECTION.sub(_section, doc)).rstrip() + "\n"


def _section(match: re.Match[str]) -> str:
    body = textwrap.dedent(match[2]).strip("\n")
    if match[1] == "Returns":
        return f"**Returns:** {body}\n\n"
    if match[1] == "Example":
        return f"**Example:**\n\n```python\n{body}\n```\n\n"
    items = []
    for line in body.splitlines():
        if ITEM.match(line):
            items.append(ITEM.sub(r"- `\1`: ", line, count=1))
        else:
            items.append(f"  {line}".rstrip() if items else line)
    title = {"Args": "Arguments"}.get(match[1], match[1])
    return f"**{title}:**\n\n" + "\n".join(items) + "\n\n"


def _escaped(text: str) -> str:
    """Without signs that Markdown would take for tags, outside code."""
    lines, in_block = [], False
    for line in text.splitlines():
        in_block ^= line.startswith("```")
        if line.startswith("    ") or in_block:
            lines.append(line)
            continue
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [p.replace("<", "&lt;").replace("*args", "\\*args") for p in parts[::2]]
        lines.append("".join(parts))
    return "\n".join(lines)
