"""The options of `ds.init`, their defaults and checks, and the environment variables that replace them.

This is the only place that reads environment variables:
    DIFFSIM_ARCH        cpu, cuda, gpu or python: the backend, whatever `ds.init` is given
    DIFFSIM_CACHE_DIR   folder of compiled code (the option offline_cache_file_path wins)
    DIFFSIM_NUM_THREADS threads of the CPU backend (the option cpu_max_num_threads wins)
    DIFFSIM_DEBUG       1: as debug=True (the option debug wins)
    DIFFSIM_RULES       enforced or lifted (the option rules wins)
    DIFFSIM_TRACEBACK   full: as traceback="full" (the option traceback wins)
    DIFFSIM_VECTOR_BITS 256: code without AVX-512, for measurements; read when the first kernel is compiled
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffsim.backends.cuda.codegen import BLOCK_DIM
from diffsim.errors import LEVELS, ArgumentError, OptionError, Span, shown, warn
from diffsim.ir.types import ScalarType, f16, f32, f64, i32, i64
from diffsim.ir.verifier import is_block_dim
from diffsim.lang.host import peer_names
from diffsim.lang.host.unsupported import close_to


@dataclass(slots=True)
class Options:
    """The options of the session; `ds.init` documents them."""

    default_fp: ScalarType = f32
    default_ip: ScalarType = i32
    debug: bool = False
    strict: bool = False
    fast_math: bool = False
    random_seed: int = 0
    cpu_max_num_threads: int = 0
    offline_cache: bool = True
    offline_cache_file_path: str = ""
    rules: str = "enforced"
    kernel_simplicity: str = "relaxed"
    device: int = 0
    device_scratch_size: int = 0
    default_gpu_block_dim: int = BLOCK_DIM
    deterministic: bool = False
    traceback: str = "short"
    check_nan: bool | str | None = None
    kernel_profiler: bool = False
    log_level: str = "info"

    @property
    def watched_numbers(self) -> str:
        """The numbers that launches are searched for: "" none, "nan", or "nan inf"."""
        found = self.debug if self.check_nan is None else self.check_nan
        return "nan" if found == "nan" else "nan inf" if found else ""

    @property
    def lifts_rules(self) -> bool:
        """Whether gradients of programs that break a rule are made, at the cost of memory."""
        return self.rules == "lifted"


# Options with a few values; the others have a type and a range.
_CHOICES: dict[str, tuple[Any, ...]] = {
    "default_fp": (f16, f32, f64),
    "default_ip": (i32, i64),
    "rules": ("enforced", "lifted"),
    "kernel_simplicity": ("relaxed", "strict"),
    "traceback": ("short", "full"),
    "check_nan": (True, False, "nan"),
    "log_level": tuple(LEVELS),
}
# `default_fp=float` means the type that Python's annotation stands for.
_PYTHON_TYPES = {float: f32, int: i32}
_TYPES: dict[str, type] = {
    "debug": bool,
    "strict": bool,
    "fast_math": bool,
    "random_seed": int,
    "cpu_max_num_threads": int,
    "offline_cache": bool,
    "offline_cache_file_path": str,
    "device": int,
    "device_scratch_size": int,
    "default_gpu_block_dim": int,
    "deterministic": bool,
    "kernel_profiler": bool,
}
_TYPE_HINTS = {bool: "True or False", int: "a whole number", str: "a text"}
# A bound that catches mistakes.
_MOST_THREADS = 1024
_THREADS_HINT = (
    f"give it a number from 1 to {_MOST_THREADS}, or 0 for as many threads as processors"
)


def parse(given: dict[str, Any]) -> Options:
    """Check the options that `ds.init` was given, and those of the environment.

    Raises:
        ArgumentError: an option that does not exist or cannot have this value.
    """
    # The environment is read at each `ds.init`, so that tests and notebooks can change it.
    options = of_environment()
    given = _of_taichi(given)
    threads_of_environment()  # a wrong value is reported here, rather than at some launch
    tuning = [n for n in given if n in peer_names.TUNING_OF_INIT and n not in Options.__slots__]
    for name, value in given.items():
        if name in tuning:
            continue
        # A misspelt option would be ignored silently.
        if name not in Options.__slots__:
            raise OptionError(f"ds.init has no option {name}", Span.of_caller(), hint=_advice(name))
        setattr(options, name, _choice(name, value) if name in _CHOICES else _value(name, value))
    if tuning:
        _warn_of(tuning)
    return options


def _of_taichi(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with those of `ti.init` that mean the same as one of diffsim in its place."""
    made = dict(given)
    if made.pop("check_out_of_bound", False):
        made.setdefault("debug", True)
    if made.pop("print_full_traceback", False):
        made.setdefault("traceback", "full")
    unsigned = made.pop("default_up", None)
    signed = made.get("default_ip", i32)
    if (
        unsigned is not None
        and getattr(unsigned, "name", "")[1:] != getattr(signed, "name", "i32")[1:]
    ):
        raise OptionError(
            f"the default unsigned integer is that of default_ip, not {shown(unsigned)}",
            Span.of_caller(),
            hint="give default_ip=ds.i64 for ds.u64, and leave default_up out",
        )
    return made


def _warn_of(tuning: list[str]) -> None:
    """Warn of options of Taichi that tune what diffsim does by itself: no number depends on them."""
    instead = "; ".join(f"{name}: {peer_names.TUNING_OF_INIT[name]}" for name in tuning)
    warn(f"options of ti.init that have no effect here ({instead})", UserWarning)


def _advice(name: str) -> str:
    """Return what to write for an option that does not exist."""
    close = close_to(name, ["arch", *Options.__slots__])
    return f"did you mean {close}?" if close else "see help(ds.init)"


def _choice(name: str, value: Any) -> object:
    """Check an option that has one of a few values."""
    value = _PYTHON_TYPES.get(value, value) if isinstance(value, type) else value
    choices = _CHOICES[name]
    # By identity but for texts: == of a user's object may do anything.
    if not any(value is c or (isinstance(value, str) and value == c) for c in choices):
        raise _refusal(name, value, "choose one of " + ", ".join(map(repr, choices)))
    return value


def _value(name: str, value: Any) -> object:
    """Check an option that is a number, a text, or True or False."""
    kind: Any = _TYPES[name]
    # Taichi's programs also write debug=1.
    if kind is bool and value.__class__ in (int, np.bool_) and value in (0, 1):
        return bool(value)
    # bool is a subclass of int: `random_seed=True` is refused.
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
        raise _refusal(name, value, f"give it {_TYPE_HINTS[kind]}")
    if name == "cpu_max_num_threads" and not 0 <= value <= _MOST_THREADS:
        raise _refusal(name, value, _THREADS_HINT)
    # Refused here, where the option is named, rather than by the file system.
    if name == "offline_cache_file_path" and "\0" in value:
        raise _refusal(
            name, value, "give it the path of a folder", ": there is a zero character in it"
        )
    if name == "device" and value < 0:
        raise _refusal(name, value, "GPUs are numbered from 0")
    if name == "device_scratch_size" and value < 0:
        raise _refusal(name, value, "give it a number of bytes")
    if name == "default_gpu_block_dim" and not is_block_dim(value):
        raise _refusal(name, value, "give it a multiple of 32 up to 1024, or a power of two")
    return value


def _refusal(name: str, value: Any, hint: str, reason: str = "") -> ArgumentError:
    return OptionError(
        f"the option {name} cannot be {shown(value)}{reason}", Span.of_caller(), hint=hint
    )


# ---- the environment


def _of_environment(variable: str, default: Any, meaning: Callable[[str], Any], hint: str) -> Any:
    """Return the value of an environment variable.

    Args:
        variable: its name.
        default: the value where it is not set, or empty.
        meaning: the value of a text; None for a text that has none.
        hint: which texts there are.
    """
    # Set to nothing means not set, as in shells.
    text = os.environ.get(variable, "").strip()
    found = meaning(text) if text else default
    if found is None:
        # A value may be anything, a whole file by mistake: shortened in the message.
        quoted = repr(text) if len(text) < 40 else f"{text[:37]!r}..."
        raise OptionError(
            f"the environment variable {variable} cannot be {quoted}", Span.of_caller(), hint=hint
        )
    return found


def of_environment() -> Options:
    """Return the options of a session that was given none."""
    return Options(
        debug=debug_of_environment(),
        rules=rules_of_environment(),
        traceback=traceback_of_environment(),
    )


def _word_of_environment(variable: str, *words: str) -> str:
    """Return which of these words a variable is set to; the first if it is not set."""
    hint = f"give it {', '.join(words[:-1])} or {words[-1]}"
    return str(_of_environment(variable, words[0], lambda t: t if t in words else None, hint))


def arch_of_environment() -> str:
    """Return the name of the backend that the environment asks for; "" if it does not say."""
    words = "cpu", "cuda", "gpu", "python"
    hint = f"give it {', '.join(words[:-1])} or {words[-1]}"
    return str(_of_environment("DIFFSIM_ARCH", "", lambda t: t if t in words else None, hint))


def rules_of_environment() -> str:
    """Return whether the environment asks for "lifted" rules; "enforced" if it does not say."""
    return _word_of_environment("DIFFSIM_RULES", "enforced", "lifted")


def debug_of_environment() -> bool:
    """Return whether the environment asks for debug mode."""
    # The usual spellings in shells and CI systems.
    words = {"0": False, "false": False, "no": False, "off": False}
    words |= {"1": True, "true": True, "yes": True, "on": True}
    hint = "give it 1 for debug=True, or 0"
    return bool(_of_environment("DIFFSIM_DEBUG", False, lambda t: words.get(t.lower()), hint))


def traceback_of_environment() -> str:
    """Return which tracebacks the environment asks for; "short" if it does not say."""
    return _word_of_environment("DIFFSIM_TRACEBACK", "short", "full")


def threads_of_environment() -> int:
    """Return how many threads the environment asks for; 0 if it does not say."""

    def number(text: str) -> int | None:
        # `isdecimal` alone takes other scripts' digits; four digits bound the conversion.
        plain = text.isascii() and text.isdecimal() and len(text.lstrip("0")) <= 4
        return int(text) if plain and int(text) <= _MOST_THREADS else None

    return int(_of_environment("DIFFSIM_NUM_THREADS", 0, number, _THREADS_HINT))


def vector_bits_of_environment() -> int:
    """Return the width of the CPU's vectors that the environment asks for [bit]."""
    return int(_word_of_environment("DIFFSIM_VECTOR_BITS", "512", "256"))


def cache_dir_of_environment() -> str:
    """Return the folder for compiled code that the environment names; empty if it does not."""
    return os.environ.get("DIFFSIM_CACHE_DIR", "")
