"""Names that Taichi has and diffsim does not, with advice on what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from diffsim.errors import FieldError, Span, UnknownAttributeError

_SPARSE = "layouts are dense: ds.root.dense; lists of their own: a field, and a counter with ds.atomic_add"
_PICTURES = "keep windows and pictures to matplotlib, as examples/drawing.py does: x.to_numpy()"
_ON_CPU_OR_CUDA = "there are ds.cpu and ds.cuda; ds.gpu is ds.cuda"

# Only names that Taichi documents; anything else is compared with the names that exist.
ABSENT: dict[str, str] = {
    "GUI": _PICTURES,
    "ui": _PICTURES,
    "tools": _PICTURES,
    "imwrite": _PICTURES,
    "imshow": _PICTURES,
    "imread": _PICTURES,
    "Texture": "use a field",
    "PI": "write ds.math.pi",
    "pi": "write ds.math.pi",
    "clamp": "write ds.math.clamp(x, low, high)",
    "mix": "write ds.math.mix(x, y, a)",
    "length": "write v.norm(), or ds.math.length(v)",
    "log10": "write ds.log(x) / math.log(10), of Python's math",
    "f16": "use ds.f32",
    "half": "use ds.f32",
    "float16": "use ds.f32",
    "popcnt": "count in a loop: n += (a >> k) & 1",
    "clz": "count in a loop, down from the width: while a >> n: n += 1",
    "mod": "write a % b, or ds.raw_mod(a, b) for C's",
    "logical_and": "write a and b",
    "logical_or": "write a or b",
    "logical_not": "write not a",
    "bit_shr": "write ds.i32(ds.u32(a) >> b); a >> b keeps the sign",
    "bit_sar": "write a >> b",
    "bit_shl": "write a << b",
    "atomic_mul": "multiply in a serial loop, ds.loop_config(serialize=True); or add logarithms",
    "real_func": "use @ds.func",
    "pyfunc": "use @ds.func in kernels, and a Python function outside",
    "static_assert": "use assert, which debug=True checks; or test in Python, before the launch",
    "static_print": "use print, which shows what is known at compile time too",
    "parallelize": "write ds.loop_config(serialize=False), which is the default",
    "serialize": "write ds.loop_config(serialize=True)",
    "block_local": "leave it out: the compiler decides",
    "assume_in_range": "leave it out: the compiler finds ranges",
    "no_activate": "leave it out: " + _SPARSE,
    "append": _SPARSE,
    "is_active": _SPARSE,
    "activate": _SPARSE,
    "deactivate": _SPARSE,
    "FieldsBuilder": "use ds.root; fields free their memory when nothing refers to them",
    "any_arr": "use ds.types.ndarray()",
    "ext_arr": "use ds.types.ndarray()",
    "linalg": "write the solver as kernels, or take SciPy's",
    "algorithms": "sort with NumPy: x.from_numpy(np.sort(x.to_numpy()))",
    "profiler": "measure with time.perf_counter() around launches and ds.sync()",
    "set_logging_level": "warnings are Python's: import warnings",
    "clear_all_gradients": "write tape.zero(), or x.grad.fill(0)",
    "FwdMode": "derivatives go backward: ds.Tape; whole Jacobian matrices: ds.ad.jacobian",
    "x64": _ON_CPU_OR_CUDA,
    "arm64": _ON_CPU_OR_CUDA,
    "vulkan": _ON_CPU_OR_CUDA,
    "metal": _ON_CPU_OR_CUDA,
    "opengl": _ON_CPU_OR_CUDA,
}
"""What to write for `ds.<name>` (and `ds.ad.<name>`)."""


def close_to(name: str, known: list[str]) -> str | None:
    """Return the known name that is most like this one."""
    # Exchanged letters first: `difflib` rates them lower than other single mistakes.
    for one in known:
        if sorted(one) == sorted(name):  # letters exchanged
            return one
    # By the ratio of Ratcliff and Obershelp, at least 0.6.
    close = difflib.get_close_matches(name, known, 1)
    return close[0] if close else None


def refuse_duals(needs_dual: object) -> None:
    """Raise FieldError for Taichi's forward mode."""
    if needs_dual is not False and needs_dual is not None:
        raise FieldError(
            "needs_dual is Taichi's forward mode, and derivatives go backward here",
            Span.of_caller(),
            hint="write needs_grad=True and use ds.Tape; ds.ad.jacobian gives whole Jacobian matrices",
        )


def absent(module: str, name: str, known: Iterable[str] = ()) -> AttributeError:
    """Return the error for a name that a module of diffsim does not have."""
    what = f"module {module!r} has no attribute {name!r}"
    # Libraries probe modules for such names (`__path__`, `__wrapped__`) and expect a plain AttributeError.
    if name.startswith("_"):
        return AttributeError(what)
    close = close_to(name, list(known))
    # A name of Taichi's has precise advice; for others the closest name is proposed.
    hint = ABSENT.get(name) or (f"did you mean {close}?" if close else f"see help({module})")
    return UnknownAttributeError(what, Span.of_caller(), hint)


def no_attribute(words: str, name: str, known: Iterable[str], hint: str = "") -> AttributeError:
    """Return the error for a name that an object does not have.

    Args:
        words: the object in the user's words.
        name: the name.
        known: the names that it has.
        hint: what to write, if that is known.
    """
    if name.startswith("_"):  # Python and libraries ask for these to see what an object can do
        return AttributeError(f"{words} has no attribute {name!r}")
    # Private names are never proposed.
    names = [k for k in known if not k.startswith("_")]
    close = close_to(name, names)
    hint = hint or (f"did you mean .{close}?" if close else f"there are {', '.join(names)}")
    return UnknownAttributeError(f"{words} has no .{name}", Span.of_caller(), hint)


def no_assignment(words: str, name: str, known: Iterable[str], hint: str = "") -> AttributeError:
    """Return the error for assigning an attribute that can not be assigned."""
    known = [k for k in known if not k.startswith("_")]
    close = None if name in known else close_to(name, known)
    return UnknownAttributeError(
        f".{name} of {words} can not be assigned",
        Span.of_caller(),
        hint or (f"did you mean .{close}?" if close else "keep it in a variable of its own"),
    )
