"""Write docs/conformance.md: for each construct of the language what was measured of it.

    python tools/conformance.py

The programs are those of tests/conformance; `tests/lang/test_conformance.py` runs them too, and compares
what it finds with the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from diffsim.runtime.files import write_text  # noqa: E402
from tests.support import conformance  # noqa: E402

HEAD = """\
# Conformance

*Reference. For those who want to know whether a construct works, and for those who implement the language.*

The behaviour of each construct of [the language](language.md), as measured: `python tools/conformance.py`
runs every program of `tests/conformance` in every way and writes this page. A program adds
something of two fields to a third one, and says in NumPy what. Its value is compared with that, its
derivatives with central differences of it. The tests run the programs on the CPU and in reverse mode and
compare what they find with the page. A second implementation can be held to the same table: a program is
plain text, and needs the prelude that `tests/support/conformance.py` gives it.

| state | |
|---|---|
| yes | the value, or the derivative, is right |
| lifted | refused by [the rules](autodiff.md#by-the-rules-or-as-it-stands); right with `rules="lifted"` |
| refused | an error that names the line |
| - | nothing to differentiate: the result depends on no float, or is refused itself |

CPU and interpreter (`arch=ds.python`) say what the value is. PTX: code for NVIDIA GPUs is emitted for the
kernels and their adjoints, and `ptxas` assembles it.
"""


def table(section: str, title: str, programs: list[conformance.Program]) -> str:
    """The table of one section, as Markdown."""
    lines = [f"## {title}", "", f"[The programs](../tests/conformance/{section}.txt)", ""]
    lines += [
        "| construct | CPU | interpreter | PTX | reverse | forward |",
        "|---|---|---|---|---|---|",
    ]
    for one in programs:
        states = (
            conformance.value(one),
            conformance.value(one, "python"),
            conformance.ptx(one),
            conformance.derivative(one, "gradient"),
            conformance.derivative(one, "tangent"),
        )
        lines.append(f"| {conformance.in_table(one.name)} | {' | '.join(states)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure all programs and write the page."""
    programs = conformance.programs()
    parts = [
        table(section, title, [p for p in programs if p.section == section])
        for section, title in conformance.SECTIONS.items()
    ]
    write_text(ROOT / "docs" / "conformance.md", "\n".join([HEAD, *parts]))
    print(f"{len(programs)} programs")


if __name__ == "__main__":
    main()
