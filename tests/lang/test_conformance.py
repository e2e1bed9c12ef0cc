"""The page docs/conformance.md, against what its programs do on the CPU and in reverse mode."""

import re
from pathlib import Path

import pytest

from tests.support import conformance

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
PROGRAMS = conformance.programs()


@pytest.fixture(scope="module")
def states():
    """The states that the page gives, by construct."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    found = {name: tuple(rest.split(" | ")) for name, rest in rows}
    return {name: states for name, states in found.items() if len(states) == 5}


def test_the_page_has_every_program(states):
    assert list(states)[1:] == [conformance.in_table(p.name) for p in PROGRAMS]  # after the head


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_a_program(program, states, quick_code):
    on_cpu, _, _, reverse, _ = states[conformance.in_table(program.name)]
    if reverse in (conformance.NONE, conformance.REFUSED):
        assert conformance.value(program) == on_cpu
    else:
        assert conformance.derivative(program, "gradient") == reverse


def test_a_wrong_result_is_found():
    """The harness can fail: another program under the same claim."""
    first = next(p for p in PROGRAMS if p.name.startswith("literals take"))
    wrong = first._replace(code=first.code.replace("0.1", "0.2"))
    with pytest.raises(AssertionError, match=r"not 0\.19"):
        conformance.value(wrong)
    with pytest.raises(AssertionError, match="gradient of literals"):
        conformance.derivative(wrong, "gradient")
    accepted = first._replace(options={"refused": "KernelTypeError"})
    with pytest.raises(AssertionError, match="is accepted"):
        conformance.value(accepted)
