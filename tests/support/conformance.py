"""The table of constructs, `tests/conformance/*.txt`: small programs, each run in every way and measured.

A program adds to y[None] something of the fields x and k. `want` says what, in NumPy; gradients are compared
with central differences of that. A program that is refused says with which error.
"""

import contextlib
import io
import math
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

import diffsim as ds
from diffsim.backends.cuda.ptx import assemble
from diffsim.runtime import compiler
from diffsim.runtime.kernels import kernel as kernel_module
from tests.support.source import make

FOLDER = Path(__file__).resolve().parents[1] / "conformance"
SECTIONS = {
    "types": "Types and numbers",
    "matrices": "Vectors and matrices",
    "control": "Loops, branches, expressions",
    "functions": "Functions, kernels, classes",
    "structs": "Structs",
    "fields": "Fields and layouts",
    "math": "Functions of numbers",
    "gradients": "Gradients",
}
X = np.array([0.7, -1.3, 2.1, 0.4])
K = np.array([3, 1, 4, 2], np.int32)
SEED = np.array([0.5, -1.0, 0.25, 2.0])
"""The direction that forward mode is asked for."""

RIGHT, NONE, LIFTED, REFUSED = "yes", "-", "lifted", "refused"


class Program(NamedTuple):
    """A program, and what it computes.

    `options`: "want", "where", "close", "refused", as written in the table.
    """

    section: str
    name: str
    options: dict[str, str]
    code: str

    def want(self, x):
        """Evaluate what y is for these numbers."""
        space = {"np": np, "math": math, "x": x, "k": K}
        exec(self.options.get("where", ""), space)
        return float(eval(self.options["want"], space))

    def slopes(self):
        """The derivative of `want` by each element of x, by central differences."""
        h = 1e-6 * np.eye(4)
        return np.array([(self.want(X + e) - self.want(X - e)) / 2e-6 for e in h])


def programs():
    """All programs of the table."""
    found = []
    for section in SECTIONS:
        text = (FOLDER / f"{section}.txt").read_text(encoding="utf-8")
        for part in text.split("=== ")[1:]:
            head, _, code = part.partition("---\n")
            name, *lines = head.splitlines()
            options = dict(line.split(": ", 1) for line in lines)
            found.append(Program(section, name, options, code.rstrip() + "\n"))
    return found


class Run:
    """One run of a program: its fields, and its kernels' namespace."""

    def __init__(self, program, arch="cpu", **options):
        ds.init(arch=getattr(ds, arch), default_fp=ds.f64, cpu_max_num_threads=1, **options)
        self.x = ds.field(ds.f64, 4, needs_grad=True, needs_dual=True)
        self.k = ds.field(ds.i32, 4)
        self.y = ds.field(ds.f64, (), needs_grad=True, needs_dual=True)
        self.x.from_numpy(X)
        self.k.from_numpy(K)
        self.space = {"ds": ds, "tm": ds.math, "np": np, "math": math}
        self.space |= {"x": self.x, "k": self.k, "y": self.y, "__name__": "conformance"}
        make(program.code, self.space)

    def value(self):
        self.space["run"]()
        return self.y[None]

    def gradient(self):
        with ds.Tape(self.y):
            self.space["run"]()
        return self.x.grad.to_numpy()

    def tangent(self):
        with ds.ad.FwdMode(self.y, self.x, seed=SEED):
            self.space["run"]()
        return np.array(self.y.dual[None])


def quietly(measure, *args, **options):
    """Measure without what the program prints and warns of."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return measure(*args, **options)


def _near(have, want, tolerance):
    return bool(np.all(np.abs(have - want) <= tolerance * (1 + np.max(np.abs(want)))))


def value(program, arch="cpu"):
    """The state of the value; a wrong one is an AssertionError."""
    refused = program.options.get("refused")
    try:
        found = quietly(lambda: Run(program, arch).value())
    except ds.DiffsimError as error:
        assert refused == type(error).__name__, f"{program.name}: {error}"
        assert error.span is None or error.span.line, program.name
        return REFUSED
    assert refused is None, f"{program.name} is accepted"
    want = program.want(X)
    tolerance = float(program.options.get("close", 1e-12))
    assert math.isnan(want) or _near(found, want, tolerance), f"{program.name}: {found}, not {want}"
    return RIGHT


def derivative(program, how, arch="cpu"):
    """The state of `gradient` or `tangent`; a wrong one is an AssertionError."""
    if "refused" in program.options:
        return NONE
    slopes = program.slopes()
    want = slopes if how == "gradient" else slopes @ SEED
    close = max(1e-7, 10 * float(program.options.get("close", 0)))
    for state, rules in ((RIGHT, "enforced"), (LIFTED, "lifted")):
        try:
            found = quietly(lambda rules=rules: getattr(Run(program, arch, rules=rules), how)())
        except ds.DiffsimError:
            # Nothing to differentiate is refused too: the loss depends on no gradient.
            if not np.any(slopes):
                return NONE
            continue
        assert _near(found, want, close), f"{how} of {program.name}: {found}, not {want}"
        return state if np.any(slopes) else NONE
    return REFUSED


def ptx(program, sm=80):
    """Whether PTX of the program's kernels and adjoints is emitted, and assembled where `ptxas` is there."""
    before = set(kernel_module._alive)
    with contextlib.suppress(ds.DiffsimError):
        run = quietly(lambda: Run(program, rules="lifted"))
        quietly(run.gradient)
    made = [
        s for kernel in set(kernel_module._alive) - before for s in kernel.specializations.values()
    ]
    if "refused" in program.options:
        return REFUSED
    assembled = False
    for special in made:
        irs = [special.ir]
        with contextlib.suppress(ds.AutodiffError):
            irs.append(special.derivative.ir)
        for ir in irs:
            assembled = assemble(compiler.ptx_text(ir, sm), sm) is not None
    return RIGHT if assembled else "emitted"


def in_table(name):
    """A name as it stands in a cell of the page."""
    return name.replace("|", "\\|").replace("*", "\\*")
