"""LLVM text that users write (`@ds.func_native`), as functions of a kernel's module."""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from diffsim.backends.llvm.module import Module
from diffsim.backends.native.jit import MATH
from diffsim.errors import BackendError
from diffsim.ir.nodes import InlineLLVM

if TYPE_CHECKING:
    from diffsim.backends.llvm.lowering import FunctionLowering

_DECLARED = re.compile(r"^\s*declare\b[^@\n]*@([\w.$]+)\(.*$", re.MULTILINE)


def define(module: Module, s: InlineLLVM) -> tuple[str, str]:
    """Add the function to the module; return its symbol and its return type.

    Raises:
        BackendError: there is no text for this backend, or LLVM refuses it; with the line of the call.
    """
    backend = module.target.name
    text = s.text.get(backend)
    if text is None:
        raise BackendError(
            f"{s.name} has no text for {backend}",
            s.span,
            hint=f'give ds.func_native a dictionary with "{backend}": ...',
        )
    types = [v.type.scalar.llvm for v in s.outs]
    result = types[0] if len(types) == 1 else f"{{ {', '.join(types)} }}"
    params = ", ".join(
        f"{v.type.scalar.llvm} %{name}" for v, name in zip(s.args, s.names, strict=True)
    )
    # `declare` is not allowed inside a function: such lines move to the module, once for each
    # symbol.
    declarations = {f"@{m[1]}": m[0].strip() for m in _DECLARED.finditer(text)}
    body = _DECLARED.sub("", text).strip("\n")
    # Named by content: equal texts become one function, and two functions of the user may share a
    # name.
    digest = hashlib.sha256(f"{result}({params}){body}".encode()).hexdigest()[:12]
    symbol = f"@native.{s.name}.{digest}"
    # alwaysinline: the user's few instructions are optimized together with the lane around them.
    head = f"define internal {result} {symbol}({params}) alwaysinline nounwind {{"
    function = f"{head}\n{body}\n}}"
    if symbol not in module.declared:
        # Parsed alone first: in the whole module an error would name a line that the user never
        # wrote.
        _check(s, "\n".join((*declarations.values(), function)))
        for name, declaration in declarations.items():
            _declare(module, s, name, declaration)
        module.declare(symbol, function)
    return symbol, result


def _declare(module: Module, s: InlineLLVM, symbol: str, declaration: str) -> None:
    name = symbol[1:]
    if module.target.name == "cpu" and not name.startswith("llvm."):
        # `declare_math` writes these declarations, with their vector forms.
        if name in MATH or name.removesuffix("f") in MATH:
            module.math[name] = None
            return
        # The loader would find it missing much later, and without the line of the call.
        if llvm.address_of_symbol(name) is None:
            raise BackendError(
                f"the text of {s.name} calls {name}, which this process does not have",
                s.span,
                hint="load its library first: ctypes.CDLL(..., mode=ctypes.RTLD_GLOBAL)",
            )
    module.declare(symbol, declaration)


def _check(s: InlineLLVM, text: str) -> None:
    """Parse and verify the function alone, so that LLVM's message is about this text."""
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(llvm.create_context())
        try:
            module = stack.enter_context(llvm.parse_assembly(text, context))
            module.verify()
        except RuntimeError as error:
            raise BackendError(
                f"LLVM refuses the text of {s.name}: {_said(str(error))}",
                s.span,
                hint="it is the body of one function, its parameters called "
                + (", ".join(f"%{name}" for name in s.names) or "nothing")
                + f", and ends with ret {_ret(s)}",
            ) from None


def _said(message: str) -> str:
    """Return LLVM's message without positions in a text that the user does not see."""
    lines = [line for line in message.splitlines() if line.strip()]
    return "\n  ".join(re.sub(r"^<string>:\d+:\d+: error: ", "", line) for line in lines[1:])


def _ret(s: InlineLLVM) -> str:
    types = [v.type.scalar.llvm for v in s.outs]
    return f"{types[0]} ..." if len(types) == 1 else f"{{ {', '.join(types)} }} ..."


def call(body: FunctionLowering, s: InlineLLVM) -> None:
    """Emit a call of the function made of the user's text."""
    symbol, result = define(body.module, s)
    found = body.assign(f"call {result} {symbol}({', '.join(map(body.typed, s.args))})")
    if len(s.outs) == 1:
        body.names[s.outs[0]] = found
        return
    for k, out in enumerate(s.outs):
        body.names[out] = body.assign(f"extractvalue {result} {found}, {k}")
