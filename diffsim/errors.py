"""Errors that show the user's own line.

Everything that can be reported has a `Span`: a place in the user's source. An error is made of three
parts: what is wrong, the line with a caret under the faulty expression, and what to do instead. A
function inlined into a kernel has the call as its span's `parent`, so both lines are shown.

The classes say *when* a mistake is found: `KernelSyntaxError` and the like while a kernel is translated,
`ArgumentError` and its kinds where Python calls diffsim, `CheckError` and its kinds while a kernel runs,
`AutodiffError` and its kinds while a gradient is made. `InternalError` is a fault of diffsim itself. Where
Python has a built-in class for a mistake, the class is derived from it as well: `except IndexError` and
`except AssertionError` do what they say.
"""

from __future__ import annotations

import linecache
import os
import re
import reprlib
import sys
import types
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any, ClassVar

from diffsim.public_names import PublicNames, names_of_module
from diffsim.tracebacks import IS_OWN, UserError

# Shown at each end of a long chain of calls: a func that calls itself is inlined hundreds of times before
# it is refused, and the places in the middle say nothing new.
_MOST_CALLERS = 2


class Span:
    """A stretch of the user's source: file, 1-based lines, 0-based columns in bytes, who inlined it.

    Example:
        x = ds.field(ds.f32, shape=3)
        try:
            x[7] = 1.0
        except ds.AccessError as error:
            print(error.span.line, error.span.source().strip())  # prints: 3 x[7] = 1.0
    """

    __slots__ = ("col", "end_col", "end_line", "file", "line", "parent", "where")

    def __init__(
        self,
        file: str,
        line: int,
        col: int = 0,
        end_line: int | None = None,
        end_col: int | None = None,
        where: str = "",
        parent: Span | None = None,
    ) -> None:
        self.file = file
        self.line = line
        self.col = col
        self.end_line = line if end_line is None else end_line
        self.end_col = end_col
        self.where = where
        self.parent = parent

    def __repr__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    def __reduce__(self) -> Any:
        # One row for each call: a func that calls itself has more of them than Python can nest in pickle.
        rows = [
            (s.file, s.line, s.col, s.end_line, s.end_col, s.where) for s in self._and_callers()
        ]
        return _span_of, (rows,)

    def _and_callers(self) -> list[Span]:
        """Return the span and those of the calls that inlined it, innermost first."""
        found: list[Span] = []
        span: Span | None = self
        while span is not None:
            found.append(span)
            span = span.parent
        return found

    def text(self) -> str:
        """Write the place as `File "...", line N`, the source line and carets; then the callers' lines.

        Example:
            x = ds.field(ds.f32, shape=3)
            try:
                x[7] = 1.0
            except ds.AccessError as error:
                print(error.span.text())
            # prints:   File "...", line 3
            # prints:     x[7] = 1.0
            # prints:     ^^^^
        """
        shown = [span._line() for span in self._and_callers()]
        if len(shown) > 2 * _MOST_CALLERS:  # a func that calls itself
            left_out = f"  {len(shown) - 2 * _MOST_CALLERS} more calls like these"
            shown = [*shown[:_MOST_CALLERS], left_out, *shown[-_MOST_CALLERS:]]
        return "\n  called from\n".join(shown)

    def _line(self) -> str:
        """Write one place: file and line, the source line, carets."""
        where = f", in {self.where}" if self.where else ""
        # The format of Python's own tracebacks, which editors and terminals turn into links.
        lines = [f'  File "{self.file}", line {self.line}{where}']
        source = self.source()
        if source.strip():  # the place alone otherwise
            indent = len(source) - len(source.lstrip())
            lines.append("    " + source.strip())
            if self.end_col is not None:
                # The source line is shown without its indentation, so the carets move to the left by as
                # much. Of an expression of several lines the first is shown, underlined to its end.
                start, end = self.columns()
                start = max(start, indent)
                if self.end_line != self.line:
                    end = len(source)
                carets = "^" * max(1, len(source[start:end].rstrip()))
                lines.append("    " + " " * (start - indent) + carets)
        return "\n".join(lines)

    def source(self) -> str:
        """Return its first line; empty if there is no such file or line.

        Example:
            x = ds.field(ds.f32, shape=3)
            try:
                x[7] = 1.0
            except ds.AccessError as error:
                print(error.span.source().strip())  # prints: x[7] = 1.0
        """
        return linecache.getline(self.file, self.line).rstrip("\n")

    def columns(self) -> tuple[int, int]:
        """Return the columns in characters, 0-based: of the first line, and behind the end in the last.

        Example:
            x = ds.field(ds.f32, shape=3)
            try:
                x[7] = 1.0
            except ds.AccessError as error:
                print(error.span.columns())  # prints: (4, 8)
        """
        start = _characters(self.source(), self.col)
        if self.end_col is None:
            return start, start
        return start, _characters(linecache.getline(self.file, self.end_line), self.end_col)

    @staticmethod
    def of_caller() -> Span | None:
        """Return the innermost line of the running Python program that is not diffsim's own.

        Example:
            print(ds.errors.Span.of_caller().line)  # prints: 1
        """
        return Caller().span()


class Caller:
    """Who called diffsim: the innermost place of the running Python program that is not diffsim's own.

    Making one costs a walk over a few frames; columns are computed only if a message asks for the span.
    """

    __slots__ = ("code", "instruction", "line")

    def __init__(self) -> None:
        frame = _caller()
        self.code = None if frame is None else frame.f_code
        self.instruction, self.line = (0, 0) if frame is None else (frame.f_lasti, frame.f_lineno)

    def span(self) -> Span | None:
        """Return its place in the source."""
        if self.code is None:
            return None
        # `f_lasti` is an offset in bytes, 2 per instruction; `co_positions` has one row per instruction.
        for at, (line, end_line, col, end_col) in enumerate(self.code.co_positions()):
            if at * 2 == self.instruction and line is not None:
                where = self.code.co_name
                name = "" if where == "<module>" else where
                return Span(self.code.co_filename, line, col or 0, end_line, end_col, name)
        return Span(self.code.co_filename, self.line)


def names_of_caller() -> dict[str, Any]:
    """Return what the names mean where diffsim was called: globals, and locals over them."""
    frame = _caller()
    return {} if frame is None else {**frame.f_globals, **frame.f_locals}


def _caller() -> FrameType | None:
    """Return the innermost frame of the running Python program that is not diffsim's own."""
    # `inspect.stack` would read the source file of every frame, which costs milliseconds.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and IS_OWN[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


_shown_of: dict[str, dict[Any, Any]] = {}
"""For each file with kernels, the registry of warnings already shown, as Python keeps one for each module.

A kernel's line is not one that Python executes, so there is no frame whose registry could be used."""


LEVELS = {"trace": 5, "debug": 10, "info": 20, "warn": 30, "error": 40, "critical": 50}
"""Levels of messages, by importance; the numbers are those of Python's `logging`."""


class Said:
    """The level of `ds.set_logging_level`, for warnings and for messages of Python's logger "diffsim"."""

    level: ClassVar[str] = "info"

    @classmethod
    def set(cls, level: str) -> None:
        """Let this level and all above it through."""
        if level == cls.level:
            return
        cls.level = level
        if logging := sys.modules.get("logging"):  # else nobody listens
            logging.getLogger("diffsim").setLevel(LEVELS[level])


def warn(message: str, category: type[Warning], span: Span | None = None) -> None:
    """Warn with the user's own line.

    Args:
        message: what is not as it was asked for, and what to do.
        category: the class of the warning.
        span: a line of a kernel; if left out, the line of the Python program that runs now.
    """
    if LEVELS[Said.level] > LEVELS["warn"]:
        return
    frame = None if span is not None else _caller()
    if span is not None:
        shown = _shown_of.setdefault(span.file, {})
        warnings.warn_explicit(message, category, span.file, span.line, registry=shown)
    elif frame is None:
        warnings.warn_explicit(message, category, "<diffsim>", 1)
    else:
        # With the module's registry, Python shows a warning once for each line, as usual.
        shown = frame.f_globals.setdefault("__warningregistry__", {})
        # Filters by module (`warnings.filterwarnings(module=...)`) then apply to the user's module.
        name = frame.f_globals.get("__name__") or "<unknown>"
        place = frame.f_code.co_filename, frame.f_lineno
        warnings.warn_explicit(message, category, *place, module=name, registry=shown)


def _span_of(rows: list[tuple[str, int, int, int, int | None, str]]) -> Span:
    """Rebuild a pickled span from its rows: its own and those of its callers."""
    span: Span | None = None
    # Outermost call first: each span is made with its parent.
    for row in reversed(rows):
        span = Span(*row, span)
    assert span is not None
    return span


def _characters(source: str, column: int) -> int:
    """Return the number of characters before a column, which `ast` counts in bytes of UTF-8."""
    return len(source.encode()[:column].decode(errors="replace"))


def _render(message: str, span: Span | None, hint: str | None) -> str:
    """Compose the text of an error."""
    parts = [message]
    if span is not None:
        parts.append(span.text())
    if hint:
        parts.append("  Hint: " + hint)
    return "\n".join(parts)


def memory_size(nbytes: int) -> str:
    """Write an amount of memory, such as "1.5 GiB"."""
    # A product of a shape can have hundreds of digits, which no float can hold.
    if nbytes >= 2**80:
        return f"more than 2**{nbytes.bit_length() - 1} bytes"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"


_shorten = reprlib.Repr()
_shorten.maxstring = _shorten.maxother = _shorten.maxlong = 60  # about half a line of a message


def shown(value: object) -> str:
    """Write a value that a user passed as a short line of a message, whatever its `repr` may be or do."""
    kind = type(value)
    name = getattr(value, "__name__", None)
    if isinstance(value, type):
        return f"the class {name}"
    if isinstance(name, str) and (callable(value) or isinstance(value, types.ModuleType)):
        return (
            f"the module {name}" if isinstance(value, types.ModuleType) else f"the function {name}"
        )
    try:
        # Looked for in the class: an object's own `__getattr__` is code of the program.
        words = getattr(kind, "in_words", None)
        text = str(words(value)) if words is not None else _shorten.repr(value)
    except Exception:  # a number of thousands of digits, an object whose __repr__ is broken
        text = " at 0x"
    # The default `repr` shows an address, which says nothing and differs from run to run.
    if " at 0x" in text:
        return f"an object of class {kind.__name__}"
    # A message is one line: white space is collapsed, `<class 'float'>` becomes `float`.
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", " ".join(text.split()))
    return text if len(text) <= 120 else text[:117] + "..."


class DiffsimError(UserError, metaclass=PublicNames):
    """Base of all errors raised by diffsim.

    Args:
        message: what is wrong, in the user's words.
        span: where; None only for mistakes outside any source line.
        hint: what to do instead.

    Example:
        x = ds.field(ds.f32, shape=3)
        try:
            x[7] = 1.0
        except ds.AccessError as error:  # or ds.DiffsimError, or IndexError
            print(error.message)  # prints: index 7 is outside ...
            print(error.hint is not None, error.span is not None)  # prints: True True
    """

    _public = "hint message span"

    advice: str | None = None
    """The hint of an error of this class that is raised without one."""

    def __init__(self, message: str, span: Span | None, hint: str | None = None) -> None:
        hint = hint or self.advice
        super().__init__(_render(message, span, hint))
        # An exception inside diffsim that led to this one is of no interest to the user.
        self.__suppress_context__ = True
        self.message = message
        self.span = span
        self.hint = hint

    # The attributes of Python's SyntaxError, for editors and other tools. They are properties because
    # OSError has a `filename` of its own, which would change the text.

    @property
    def filename(self) -> str | None:
        """The file of the line that is shown; None without a line."""
        return None if self.span is None else self.span.file

    @property
    def lineno(self) -> int | None:
        """The line, from 1 on."""
        return None if self.span is None else self.span.line

    @property
    def offset(self) -> int | None:
        """The column at which the faulty expression begins, from 1 on, in characters."""
        return None if self.span is None else self.span.columns()[0] + 1

    @property
    def end_lineno(self) -> int | None:
        """The line in which the expression ends."""
        return None if self.span is None else self.span.end_line

    @property
    def end_offset(self) -> int | None:
        """The column behind the expression, from 1 on, in characters."""
        return None if self.span is None else self.span.columns()[1] + 1

    @property
    def text(self) -> str | None:
        """The line itself; None where its source is not to be had."""
        return None if self.span is None else self.span.source() or None

    def __reduce__(self) -> Any:
        """Pickle the finished text and the attributes: the constructor's arguments cannot be recovered.

        Pools of processes pickle the errors of their workers.
        """
        return _error_of, (type(self), self.args), self.__dict__


def _error_of(cls: type[DiffsimError], args: tuple[Any, ...]) -> DiffsimError:
    """Rebuild a pickled error; its attributes are set after this."""
    # Python allows `B.__new__(cls)` only for the built-in class whose memory layout cls has, such as
    # NameError. `cls.__new__` may be found in another base, so the layout's class is searched for.
    native: Any = cls
    while "__new__" not in vars(native):
        native = native.__base__
    error: DiffsimError = native.__new__(cls, *args)
    super(DiffsimError, error).__init__(*args)
    error.__suppress_context__ = True
    return error


# No SyntaxError: IPython formats those in its own way, with its own frames, and asks them for no text.
class KernelSyntaxError(DiffsimError):
    """A statement or expression that the kernel language does not have."""


class KernelNameError(DiffsimError, NameError):
    """A name that is not defined, or not on every path that leads here."""


class KernelTypeError(DiffsimError, TypeError):
    """Types, shapes or argument counts that do not fit together."""


class KernelStateError(DiffsimError, RuntimeError):
    """A Python value that was compiled into a kernel has changed since."""


class ArgumentError(DiffsimError, ValueError):
    """A value given from Python that makes no sense."""


class FieldError(ArgumentError):
    """A field, its layout or one of its elements that does not fit what is done with it."""


class DtypeError(ArgumentError, TypeError):
    """A type of numbers that is none, or in which a number would lose something."""


class OptionError(ArgumentError):
    """An option that does not exist, cannot have this value, or does not go with another one."""


class FileError(ArgumentError, OSError):
    """A file that cannot be read or written, or that holds something else than it should."""


class OperationError(ArgumentError, TypeError):
    """Something done in Python to an object that is not made for it, such as `x + 1` with a field x."""


class UnknownAttributeError(ArgumentError, AttributeError):
    """A name that an object does not have, or one that cannot be assigned."""


class MissingPackageError(DiffsimError, ImportError):
    """A package that this function needs, and that is not installed."""


class OutOfMemoryError(DiffsimError, MemoryError):
    """There is no memory for a field, or for what a gradient has to keep."""


_SWITCH = 'ds.init(rules="lifted")'
KEEP = 'let the tape keep what was there: ds.Tape(loss, in_place="save")'
"""The option that lifts the first access rule for one tape."""
_COST = "at the cost of memory (tape.stats())"


def or_lifted(advice: str) -> str:
    """Return the advice of a refusal by a rule: what to write instead, and what lifts the rule."""
    return f"{advice}; {_SWITCH} lifts the rule for the whole program, {_COST}"


class AutodiffError(DiffsimError):
    """A gradient that diffsim cannot give exactly, refused where it is asked for.

    Attributes:
        narrower: of a refusal by a rule, the option that would lift it for one kernel or tape.
        is_lifted: whether lifting the rules would give the gradient.
        others: where there is more than one refusal, each of them.
    """

    def __init__(
        self, message: str, span: Span | None, hint: str | None = None, *, narrower: str = ""
    ) -> None:
        super().__init__(message, span, hint)
        self.narrower = narrower
        self.is_lifted = False
        self.others: tuple[AutodiffError, ...] = ()
        self._alone = str(self)

    @property
    def parts(self) -> tuple[AutodiffError, ...]:
        """The refusals that it is made of."""
        return self.others or (self,)

    def advising(self, *, switch: bool = True) -> AutodiffError:
        """Return the error with the advice to lift the rule: by its option, and by the switch for all."""
        advice = f"{self.hint}, or {self.narrower}" if self.narrower else self.hint or ""
        alone = self.advising_to(advice)
        if not switch:
            return alone
        made = self.advising_to(or_lifted(advice))
        made.is_lifted = True
        made._alone = str(alone)
        return made

    def advising_to(self, hint: str) -> AutodiffError:
        """Return the error with other advice."""
        return type(self)(self.message, self.span, hint)

    def briefly(self) -> str:
        """Write the error without the advice that is the same for all."""
        return self._alone


def together(errors: Sequence[AutodiffError]) -> AutodiffError:
    """Return one error for several refusals, each with its own advice."""
    parts = list(
        {place_of(e): e for error in reversed(errors) for e in reversed(error.parts)}.values()
    )
    parts.sort(key=_line_of)
    if len(parts) == 1:
        return parts[0]
    lifted = [str(k) for k, e in enumerate(parts, 1) if e.is_lifted]
    text = [f"the gradient is refused for {len(parts)} reasons"]
    if lifted:
        which = "all of them" if len(lifted) == len(parts) else ", ".join(lifted)
        text.append(f"  Hint for {which}: {_SWITCH}, {_COST}")
    text += [f"{k}. {e.briefly()}" for k, e in enumerate(parts, 1)]
    classes = {type(e) for e in parts}
    kind = classes.pop() if len(classes) == 1 else AutodiffError
    made = kind("\n".join(text), None, None)
    made.span, made.others = parts[0].span, tuple(parts)
    made.is_lifted = len(lifted) == len(parts)
    return made


def _line_of(error: AutodiffError) -> tuple[str, int]:
    return ("", 0) if error.span is None else (error.span.file, error.span.line)


def place_of(error: AutodiffError) -> tuple[object, ...]:
    """Return what two refusals have in common that say the same."""
    first = type(error), error.message.partition("\n")[0]
    # A value that is read and changed in several lines is one to rewrite where it is read.
    if error.message.endswith("read here:"):
        return *first, *_line_of(error)
    return *first, frozenset(re.findall(r"^  File .*, line \d+", str(error), re.MULTILINE))


class KernelSimplicityError(AutodiffError):
    """The gradient of a kernel outside the kernel simplicity rule was asked for."""


class GlobalDataAccessError(AutodiffError):
    """A gradient needs a field's value that the program has changed since.

    Attributes:
        written_at: of a value that was overwritten after the launch which needs it, the clock's reading.
    """

    written_at: int | None = None

    @property
    def is_stale(self) -> bool:
        """Whether it is about overwritten values alone."""
        return all(getattr(e, "written_at", None) is not None for e in self.parts)


class MissingGradientError(AutodiffError):
    """A float field on the way from the inputs to the loss has no gradient."""

    def advising(self, *, switch: bool = True) -> AutodiffError:
        """Return the error with its advice alone: to declare one field is less than to lift all rules."""
        made = super().advising(switch=False)
        made.is_lifted = switch
        return made


class CheckError(DiffsimError):
    """A check that failed as a kernel ran, most of them with `ds.init(debug=True)`."""


class AccessError(CheckError, IndexError):
    """An index out of bounds, in a kernel or from Python."""


class KernelAssertionError(CheckError, AssertionError):
    """An `assert` in a kernel that failed."""


class KernelArithmeticError(CheckError, ArithmeticError):
    """A number that is not finite, or an integer to a negative power."""


class KernelZeroDivisionError(KernelArithmeticError, ZeroDivisionError):
    """An integer divided by 0."""


class KernelOverflowError(KernelArithmeticError, OverflowError):
    """An integer that does not fit into its type."""


class SolveError(DiffsimError, ArithmeticError):
    """A solve that found no solution: a singular matrix, an iteration that does not converge."""


class BackendError(DiffsimError):
    """Something that the chosen backend cannot do."""


class InternalError(DiffsimError):
    """A fault in diffsim itself; please report it with the program."""

    in_full = True
    advice = "this is a fault of diffsim's: please report it, with the program that shows it"


__all__ = [
    "AccessError",
    "ArgumentError",
    "AutodiffError",
    "BackendError",
    "CheckError",
    "DiffsimError",
    "DtypeError",
    "FieldError",
    "FileError",
    "GlobalDataAccessError",
    "InternalError",
    "KernelArithmeticError",
    "KernelAssertionError",
    "KernelNameError",
    "KernelOverflowError",
    "KernelSimplicityError",
    "KernelStateError",
    "KernelSyntaxError",
    "KernelTypeError",
    "KernelZeroDivisionError",
    "MissingGradientError",
    "MissingPackageError",
    "OperationError",
    "OptionError",
    "OutOfMemoryError",
    "SolveError",
    "Span",
    "UnknownAttributeError",
]
__dir__ = names_of_module(__all__)
