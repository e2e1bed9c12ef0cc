"""Random programs of several kernels against dual numbers; `make fuzz` makes as many as there is time for."""

import collections
import os

import pytest

from diffsim.runtime.kernels import launch_function
from tests.fuzz import programs
from tests.fuzz.shrink import shrink

COUNT = 400 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 24
ANSWERS = collections.Counter()


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_program(seed, request):
    """Its values and its gradient are those of dual numbers, or it is refused."""
    if seed % 2:  # half of them as users run them
        request.getfixturevalue("quick_code")
    text = programs.make(seed)
    for how in ("save", "refuse"):
        said = programs.verdict(text, seed, how)
        assert said in ("right", "refused", "invalid"), text
        ANSWERS[how, said] += 1


def test_most_programs_are_not_refused():
    if sum(ANSWERS.values()) < 2 * COUNT:
        pytest.skip("not all programs were run")
    assert ANSWERS["save", "right"] > 0.6 * COUNT
    # Most programs overwrite what they need, on purpose.
    assert ANSWERS["refuse", "right"] > 0.15 * COUNT


def test_the_oracle():
    """x0 = a x0^2, then y0 is set: by hand."""
    text = "def main():\n    pass\n"
    values, direction, weights, _ = programs.start(5)
    _, loss, slope = programs.expected(text, 5)
    assert loss == pytest.approx(sum((weights[k] * values[k]).sum() for k in values))
    assert slope == pytest.approx(sum((weights[k] * direction[k]).sum() for k in values))
    text = (
        "@ds.kernel\n"
        "def k0(a: ds.f64):\n"
        "    for i in range(1):\n"
        "        x[0] = a * x[0] * x[0]\n"
        "def main():\n"
        "    k0(3.0)\n"
        "    y[0] = 2.0 * x[0]\n"
    )
    _, _, other = programs.expected(text, 5)
    x, dx, w = (a["x"][0] for a in (values, direction, weights))
    change = w * (6 * x - 1) * dx  # y0 is an input, as it was
    assert other - slope == pytest.approx(change)


def test_a_wrong_gradient_is_found_and_made_small(monkeypatch):
    """A tape that forgets the adjoints of one kernel."""
    made = launch_function.derivative

    def forgetful(of):
        name = of.specialization.kernel.source.name
        return (lambda *_: None) if name == "k0" else made(of)

    monkeypatch.setattr(launch_function, "derivative", forgetful)

    def wrong(text):
        return programs.verdict(text, 2, "save").startswith("derivative")

    text = programs.make(2)
    assert wrong(text)
    small = shrink(text, wrong)
    assert wrong(small)
    assert len(small) < len(text) / 2


def test_programs_of_steps_lose_line_after_line():
    assert (
        shrink("dense(ds.i, 2).\nloop x\nclear y\ntotal x\n", lambda t: "clear" in t) == "clear y\n"
    )
