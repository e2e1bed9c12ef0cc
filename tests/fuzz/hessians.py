"""Second derivatives of whole programs: `ds.ad.hvp` against Python with dual numbers of dual numbers.

For two directions a and b, a (H b) is what the oracle says, and b (H a) is the same but for rounding; the
gradient comes with it. Both directions are one run, or one run each. Programs of odd numbers are those of
`tensors`.
"""

import math

import numpy as np

import diffsim as ds
from diffsim.errors import AutodiffError, KernelSyntaxError
from tests.fuzz import programs, tensors


def verdict(text, seed):
    """ "right", "refused", "invalid", or what is wrong."""
    kind = Tensors(text, seed) if seed % 2 else Numbers(text, seed)
    try:
        with np.errstate(all="ignore"):
            first, second = kind.directions()
            found = [kind.oracle(*pair) for pair in ((first, second), (second, second))]
    except (programs.Invalid, tensors.Invalid):
        return "invalid"
    (end, slope), (_, curve) = found
    want = {"gradient": slope.v, "first, second": slope.d, "second, second": curve.d}
    if not max(map(abs, want.values())) < 1e6:
        return "invalid"
    try:
        got_end, gradient, products = kind.run([first, second], together=seed % 3 == 0)
    except AutodiffError:
        return "refused"
    except KernelSyntaxError as error:  # of an update that is atomic and would read too late
        if "give the value a name first" in str(error):
            return "refused"
        raise
    for k in end:
        if not np.allclose(got_end[k], end[k], rtol=1e-9, atol=1e-9):
            return f"value of {k}: {got_end[k].tolist()} instead of {end[k].tolist()}"
    got = {
        "gradient": _dot(gradient, first),
        "first, second": _dot(products[1], first),
        "second, second": _dot(products[1], second),
    }
    for words, x in want.items():
        if not math.isclose(got[words], x, rel_tol=1e-7, abs_tol=1e-7):
            return f"derivative: {got[words]} instead of {x}: {words}"
    other = _dot(products[0], second)
    if not math.isclose(other, slope.d, rel_tol=1e-7, abs_tol=1e-7):
        return f"derivative: not symmetric: {other} instead of {slope.d}"
    return "right"


def _dot(a, b):
    return float(sum((a[k] * b[k]).sum() for k in b))


class Numbers:
    """A program of `programs`."""

    def __init__(self, text, seed):
        self.text, self.seed = text, seed

    def directions(self):
        """Two of them, with 0 for elements of which only the tape can say whether they are inputs."""
        sure = programs.sure_direction(self.text, self.seed)
        other = programs.start(self.seed + 1)[1]
        return sure, {k: np.where(d == 0, 0.0, other[k]) for k, d in sure.items()}

    def oracle(self, along, second):
        end, _, slope, _ = programs.oracle(self.text, self.seed, along, second=second)
        return end, slope

    def place(self):
        """The function, its loss, and its fields."""
        _, _, weights, _ = programs.start(self.seed)
        ds.init(default_fp=ds.f64)
        space, fields = programs.placed(self.text, self.seed)
        sums = {k: ds.field(ds.f64, w.shape) for k, w in weights.items()}
        for k, w in sums.items():
            w.from_numpy(weights[k])
        ends = programs.weigh(fields, sums)

        def run():
            space["main"]()
            for end in ends:
                end()

        return run, fields["loss"], {k: fields[k] for k in weights}

    def run(self, directions, *, together):
        """The values at the end, the gradient, and the product for each direction."""
        products = []
        groups = [directions] if together else [[d] for d in directions]
        for group in groups:
            function, loss, fields = self.place()
            vectors = [np.stack([d[k] for d in group]) for k in fields]
            found = ds.ad.hvp(function, list(fields.values()), vectors, loss=loss)
            products += [
                {k: p[j] for k, p in zip(fields, found, strict=True)} for j in range(len(group))
            ]
        gradient = {k: f.grad.to_numpy() for k, f in fields.items()}
        return {k: f.to_numpy() for k, f in fields.items()}, gradient, products


class Tensors(Numbers):
    """A program of `tensors`."""

    def directions(self):
        return tensors.start(self.seed)[1], tensors.start(self.seed + 1)[1]

    def oracle(self, along, second):
        end, slope, _ = tensors.expected(self.text, self.seed, along, second)
        return end, slope

    def place(self):
        _, _, weights, _, _ = tensors.start(self.seed)
        ds.init(default_fp=ds.f64)
        space, field = tensors.placed(self.text, self.seed)
        loss = ds.field(ds.f64, (), needs_grad=True)
        ends = [_sum_of(field(k), w, loss) for k, w in weights.items()]

        def run():
            space["main"]()
            for end in ends:
                end()

        return run, loss, {k: field(k) for k in weights}


def _sum_of(f, weights, loss):
    """A kernel that adds the weighted sum of a field to the loss."""
    w = _like(f)
    w.from_numpy(weights)

    @ds.kernel
    def vectors():
        for i in ds.grouped(f):
            loss[None] += (w[i] * f[i]).sum()

    @ds.kernel
    def numbers():
        for i in ds.grouped(f):
            loss[None] += w[i] * f[i]

    @ds.kernel
    def one_vector():
        loss[None] += (w[None] * f[None]).sum()

    @ds.kernel
    def one_number():
        loss[None] += w[None] * f[None]

    if f.shape:
        return vectors if f.element else numbers
    return one_vector if f.element else one_number


def _like(f):
    if not f.element:
        return ds.field(ds.f64, f.shape)
    maker = ds.Vector if len(f.element) == 1 else ds.Matrix
    return maker.field(*f.element, dtype=ds.f64, shape=f.shape)
