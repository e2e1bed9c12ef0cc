"""Functions, types and values in containers that kernels were compiled for, and changes made at random."""

import numpy as np
import pytest

import diffsim as ds
from diffsim.errors import KernelStateError
from tests.fuzz import captured


def number(value=0.0):
    made = ds.field(ds.f64, ())
    made[None] = value
    return made


@ds.func
def one():
    return 1.0


@ds.func
def two(a=2.0):
    return a


def change_default():
    two.source.function.__defaults__ = (5.0,)


FUNCS = {
    "in a list": ("things[0]()", lambda t: t.__setitem__(0, two), 2.0),
    "in a dictionary": ("named['f']()", lambda t: t[2].update(f=two), 2.0),
    "in a list in a list": ("things[3][0]()", lambda t: t[3].reverse(), 2.0),
    "default": ("things[1]()", lambda t: change_default(), 5.0),
    "struct type": ("things[4](2.0).k", lambda t: t.__setitem__(4, Wider), 0.0),
}

Once = ds.types.struct(k=ds.f64)
Wider = ds.types.struct(extra=ds.f64, k=ds.f64)


@pytest.mark.parametrize("name", FUNCS)
def test_funcs_and_types_in_containers(name, tmp_path):
    text, change, then = FUNCS[name]
    things = [one, two, {"f": one}, [one, two], Once]
    program = "@ds.kernel\ndef run():\n    out[None] = " + text.replace("named", "things[2]") + "\n"
    file = tmp_path / "program.py"
    file.write_text(program)
    space = {"ds": ds, "things": things, "out": number()}
    exec(compile(program, str(file), "exec"), space)
    try:
        space["run"]()
        assert space["out"][None] != then
        change(things)
        try:
            space["run"]()
        except KernelStateError as refused:
            assert name == "default", refused
            assert "default of two" in str(refused)
        else:
            assert space["out"][None] == then
    finally:
        two.source.function.__defaults__ = (2.0,)


@pytest.mark.parametrize(
    "make", [lambda k: {1, k}, lambda k: {"a": 1, "b": k}], ids=["set", "dict"]
)
def test_template_arguments_are_compiled_for_their_values(make):
    out = number()

    @ds.kernel
    def run(things: ds.template(), k: ds.template()):
        out[None] = 1.0 if k in things else 2.0

    run(make(3), 3)
    first = out[None]
    run(make(4), 4)
    run(make(3), 4)
    assert (first, out[None]) == ((1.0, 2.0) if isinstance(make(1), set) else (2.0, 2.0))


TOO_LARGE = {
    "9**9**9": "does not fit into 64",
    "10**400": "does not fit into an f64",
    "1 << 10**5": "does not fit into 64",
    "ds.pow(9, 9**8)": "does not fit into 64",
    "ds.pow(9, 400)": "does not fit into",
    "pow(9, 9**8)": "does not fit into 64",
    "np.zeros(10**9)[0]": "would be large",
    "sum([1.0] * 10**8)": "is too long for a kernel",
    "len(list(range(10**9)))": "would be large",
}


@pytest.mark.parametrize("text", TOO_LARGE)
def test_what_would_take_long_to_compute_while_compiling_is_refused(text, tmp_path):
    program = f"@ds.kernel\ndef run():\n    out[None] = {text}\n"
    file = tmp_path / "program.py"
    file.write_text(program)
    space = {"ds": ds, "np": np, "out": number()}
    exec(compile(program, str(file), "exec"), space)
    with pytest.raises(ds.KernelTypeError, match=TOO_LARGE[text]) as caught:
        space["run"]()
    assert "line 3" in str(caught.value)


def test_powers_of_known_whole_numbers():
    out = number()

    @ds.kernel
    def run():
        out[None] = ds.pow(3, 4) + ds.pow(2, 0)

    run()
    assert out[None] == 82.0


@pytest.mark.parametrize("seed", range(60))
def test_random_changes(seed):
    text = captured.make(seed)
    assert captured.verdict(text) in ("right", "refused"), text


def test_random_changes_are_mostly_followed():
    verdicts = [captured.verdict(captured.make(seed)) for seed in range(60, 90)]
    assert verdicts.count("right") > 20
