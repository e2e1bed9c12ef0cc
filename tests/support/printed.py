"""What a program promises to print: its comments ``# prints: text``, with ``...`` for anything on a line."""

import contextlib
import io
import re
import tokenize

PRINTS = re.compile(r"^#\s*prints:\s?(?P<text>.*)$")


def promised_lines(code: str) -> list[str] | None:
    """The texts of the ``# prints:`` comments of a program; None if it has none."""
    found = []
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT and (prints := PRINTS.match(token.string)):
                found.append(prints["text"].rstrip())
    return found or None


def tidy(text: str) -> str:
    """Without spaces at the ends of lines and empty lines at the end."""
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def pattern(expected: str) -> re.Pattern[str]:
    """Expected text as a pattern, where ``...`` stands for anything on its line."""
    lines = []
    for line in tidy(expected).splitlines():
        if line.strip() == "...":
            lines.append(r"(?:[^\n]*\n)*?")
        else:
            lines.append(re.escape(line).replace(r"\.\.\.", r"[^\n]*?") + r"\n")
    return re.compile("".join(lines))


def is_as_promised(expected: str, printed: str) -> bool:
    """Whether all that was printed is the expected text."""
    if not expected:
        return not printed
    return pattern(expected).fullmatch(tidy(printed) + "\n") is not None
