"""Random programs of solves, roots and fixed points, recorded and replayed, against differences of NumPy's.

A program is a function of calls, which runs twice: with functions that launch kernels and solve on a tape,
and with functions that compute the same of arrays, by dense solves and plain iterations. Central differences
of the second are the gradients that the first must have.
"""

import itertools
import linecache
import random

import numpy as np

import diffsim as ds
from diffsim.errors import DiffsimError
from tests.support.gradients import central

VECTORS = ["p", "b", "x", "y"]
WAYS = ["refuse", "save", "lifted", "replay", "forward"]
_NUMBERS = itertools.count()


def make(seed):
    """The text of a program: the size, the sparse places, and `main`."""
    rng = random.Random(f"solves {seed}")
    n = rng.randint(2, 6)
    lines = [line for _ in range(rng.randint(2, 5)) for line in _statements(rng)]
    at = rng.randrange(len(lines) + 1)
    if rng.random() < 0.4:
        lines[at:] = [f"for _ in range({rng.randint(2, 3)}):", *("    " + k for k in lines[at:])]
        lines.append("    pass")
    lines.append(f"measure({rng.choice(VECTORS[2:])})")
    lines.append(f"measure({rng.choice(VECTORS)})")
    return f"N = {n}\n\ndef main():\n" + "".join(f"    {line}\n" for line in lines)


def _statements(rng):
    t, u = rng.sample(VECTORS[1:], 2)
    a, c = rng.choice(VECTORS), round(rng.uniform(0.2, 0.9), 2)
    kind = rng.choice(
        "elementwise dense spd places rows constant function root fixed in_place".split()
    )
    if kind == "elementwise":
        return [f"{rng.choice(['store', 'add', 'scale'])}({t}, {a}, {u}, {c})"]
    if kind in ("root", "fixed"):
        how = rng.choice(["lu", "gmres", "bicgstab"])
        return [f"{kind}({t}, {u}, p, {c}, {how!r})"]
    if kind == "in_place":
        return [f"fixed_in_place({t}, p, {c})"]
    if kind == "constant":
        return [f"constant({u}, {t}, {c})"]
    if kind == "function":
        spd = rng.random() < 0.5
        return [
            f"function({u}, {t}, p, {c}, {'cg' if spd else rng.choice(['gmres', 'bicgstab'])!r})"
        ]
    out = rng.choice([t, u])  # the right-hand side too
    if kind == "places" or kind == "rows":
        how = rng.choice(["lu", "gmres", "bicgstab"])
        return [f"entries({a}, {c})", f"{kind}({u}, {out}, {how!r})"]
    how = rng.choice(["lu", "cg"] if kind == "spd" else ["lu", "gmres", "bicgstab"])
    return [f"assemble({a}, {c}, {kind == 'spd'})", f"dense({u}, {out}, {how!r})"]


def places(n):
    """Rows and columns of entries, row by row; one place twice."""
    found = [(i, j) for i in range(n) for j in range(n) if (i + 2 * j) % 3 != 1 or i == j]
    found.append((n - 1, n - 1))  # the last row's: they stay in order
    return np.array(found).T


# ---- with arrays


def model(text):
    """Return the loss as a function of what p holds at the start."""
    n = int(text.split()[2])
    rows, columns = places(n)

    def loss_of(p):
        v = {k: np.zeros(n) for k in VECTORS} | {"p": p.copy()}
        m, e = np.eye(n), np.ones(len(rows))
        total = 0.0
        i = np.arange(n)

        def store(t, a, b, c):
            v[t] = c * np.sin(v[a]) + 0.3 * np.roll(v[b], -1)

        def add(t, a, b, c):
            v[t] = v[t] + c * v[a] * np.cos(v[b])

        def scale(t, a, _, c):
            v[t] = v[t] * np.cos(c * v[a]) + 0.25

        def assemble(a, c, spd):
            w = v[a]
            own = c * (np.cos(w[:, None] - w) if spd else np.sin(w[:, None] * (i + 1)))
            m[...] = own + np.diag(n + w**2)

        def dense(b, out, _):
            v[out] = np.linalg.solve(m, v[b])

        def entries(a, c):
            e[...] = c * np.sin(v[a][rows] + columns) + (rows == columns) * (n + 1.0)

        def sparse(b, out, _):
            full = np.zeros((n, n))
            np.add.at(full, (rows, columns), e)
            v[out] = np.linalg.solve(full, v[b])

        def constant(b, out, c):
            v[out] = np.linalg.solve(_constant(n, c), v[b])

        def function(b, out, q, c, how):
            off = 0.5 * c * (np.eye(n, k=1) + (np.eye(n, k=-1) if how == "cg" else 0))
            v[out] = np.linalg.solve(np.diag(2 + v[q] ** 2) + off, v[b])

        def root(x, b, q, c, _):
            z = np.zeros(n)
            for _ in range(80):
                z = v[b] - 0.5 * c * np.sin(np.roll(z, -1)) * np.cos(v[q])
            v[x] = z

        def fixed_in_place(x, q, c):
            z = np.zeros(n)
            for _ in range(80):
                z = 0.5 * c * np.cos(z + v[q])
            v[x] = z

        def measure(t):
            nonlocal total
            total += float(((i + 1) * v[t] ** 2).sum())

        own = locals() | {"rows": sparse, "places": sparse, "fixed": root}
        _execute(text, {**own, **{k: k for k in VECTORS}})
        return total

    return loss_of


def _constant(n, c):
    return n * np.eye(n) + c * np.sin(np.arange(n * n).reshape(n, n))


def _execute(text, space):
    file = f"<solves {next(_NUMBERS)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), space)
    space["main"]()
    del linecache.cache[file]


# ---- with kernels


class World:
    """The fields of a program, and its functions."""

    def __init__(self, text):
        self.text = text
        self.n = n = int(text.split()[2])
        self.at = places(n)
        for k in VECTORS:
            setattr(self, k, ds.field(ds.f64, n, needs_grad=True))
        self.m = ds.field(ds.f64, (n, n), needs_grad=True)
        self.e = ds.field(ds.f64, self.at.shape[1], needs_grad=True)
        self.w = ds.field(ds.f64, n, needs_grad=True)  # what functions of solves compute
        self.loss = ds.field(ds.f64, (), needs_grad=True)
        self.place = ds.Vector.field(2, ds.i32, self.at.shape[1])
        self.place.from_numpy(self.at.T.astype(np.int32))
        self.kernels = {}

    def begin(self, p):
        """Set what is there at the start."""
        for k in VECTORS:
            getattr(self, k).fill(0)
        self.p.from_numpy(p)
        self.m.from_numpy(np.eye(self.n))
        self.e.fill(1)

    def run(self):
        """Run the program."""
        names = {k: getattr(self, k) for k in VECTORS}
        calls = {k: getattr(self, k) for k in vars(type(self)) if not k.startswith("_")}
        _execute(self.text, calls | names)

    def kernel(self, make, *about):
        """Return a kernel of some fields and numbers, made once."""
        key = (make.__name__, *(a if isinstance(a, (float, bool)) else id(a) for a in about))
        if key not in self.kernels:
            self.kernels[key] = make(*about)
        return self.kernels[key]

    def store(self, *about):
        self.kernel(_store, *about)()

    def add(self, *about):
        self.kernel(_add, *about)()

    def scale(self, t, a, _, c):
        self.kernel(_scale, t, a, c)()

    def assemble(self, a, c, spd):
        self.kernel(_assemble, self.m, a, c, spd)()

    def dense(self, b, out, how):
        ds.ad.linear_solve(self.m, b, out, method=how)

    def entries(self, a, c):
        self.kernel(_entries, self.e, self.place, a, c)()

    def places(self, b, out, how):
        ds.ad.linear_solve((self.e, tuple(self.at)), b, out, method=how)

    def rows(self, b, out, how):
        starts = np.searchsorted(self.at[0], np.arange(self.n + 1))
        ds.ad.linear_solve((self.e, self.at[1], starts), b, out, method=how)

    def constant(self, b, out, c):
        ds.ad.linear_solve(_constant(self.n, c), b, out)

    def function(self, b, out, q, c, how):
        apply = self.kernel(_apply, self.w, out, q, c, how == "cg")
        ds.ad.linear_solve(
            apply,
            b,
            out,
            product=self.w,
            symmetric=how == "cg",
            method=None if how == "cg" else how,
        )

    def root(self, x, b, q, c, how):
        ds.ad.implicit_root(self.kernel(_residual, self.w, x, b, q, c), x, self.w, method=how)

    def fixed(self, x, b, q, c, how):
        ds.ad.fixed_point(self.kernel(_step, self.w, x, b, q, c), x, self.w, method=how)

    def fixed_in_place(self, x, q, c):
        ds.ad.fixed_point(self.kernel(_step_in_place, x, q, c), x)

    def measure(self, t):
        self.kernel(_measure, self.loss, t)()


# Kernels refer to the fields of the functions that make them.


def _store(t, a, b, c):
    n = t.shape[0]

    @ds.kernel
    def store():
        for i in t:
            t[i] = c * ds.sin(a[i]) + 0.3 * b[(i + 1) % n]

    return store


def _add(t, a, b, c):
    @ds.kernel
    def add():
        for i in t:
            t[i] += c * a[i] * ds.cos(b[i])

    return add


def _scale(t, a, c):
    @ds.kernel
    def scale():
        for i in t:
            t[i] = t[i] * ds.cos(c * a[i]) + 0.25

    return scale


def _assemble(m, a, c, spd):
    n = m.shape[0]

    @ds.kernel
    def assemble():
        for i, j in m:
            if ds.static(spd):
                m[i, j] = c * ds.cos(a[i] - a[j])
            else:
                m[i, j] = c * ds.sin(a[i] * (j + 1))
        for i in range(n):
            m[i, i] += n + a[i] ** 2

    return assemble


def _entries(e, place, a, c):
    n = a.shape[0]

    @ds.kernel
    def entries():
        for k in e:
            i, j = place[k].x, place[k].y
            e[k] = c * ds.sin(a[i] + j)
            if i == j:
                e[k] += n + 1.0

    return entries


def _apply(w, x, q, c, symmetric):
    n = x.shape[0]

    @ds.kernel
    def apply():
        for i in w:
            w[i] += (2 + q[i] ** 2) * x[i]
        for i in range(n - 1):
            w[i] += 0.5 * c * x[i + 1]
            if ds.static(symmetric):
                w[i + 1] += 0.5 * c * x[i]

    return apply


def _residual(w, x, b, q, c):
    n = x.shape[0]

    @ds.kernel
    def residual():
        for i in w:
            w[i] = x[i] + 0.5 * c * ds.sin(x[(i + 1) % n]) * ds.cos(q[i]) - b[i]

    return residual


def _step(w, x, b, q, c):
    n = x.shape[0]

    @ds.kernel
    def step():
        for i in w:
            w[i] = b[i] - 0.5 * c * ds.sin(x[(i + 1) % n]) * ds.cos(q[i])

    return step


def _step_in_place(x, q, c):
    @ds.kernel
    def step():
        for i in x:
            x[i] = 0.5 * c * ds.cos(x[i] + q[i])

    return step


def _measure(loss, t):
    @ds.kernel
    def measure():
        for i in t:
            loss[None] += (i + 1) * t[i] ** 2

    return measure


# ---- both


def verdict(text, seed, way):
    """ "right", "refused", or what is wrong."""
    rng = np.random.default_rng(seed)
    ds.init(default_fp=ds.f64, rules="lifted" if way == "lifted" else "enforced")
    world, expected = World(text), model(text)
    p = rng.uniform(-1, 1, world.n)
    world.begin(p)
    if way == "forward":
        return _in_forward_mode(world, expected, p, rng)
    tape = ds.Tape(world.loss, in_place={"refuse": "refuse", "lifted": None}.get(way, "save"))
    try:
        with tape:
            world.run()
    except DiffsimError as error:
        # A program in place is refused where nothing is saved; else solves are on the tape.
        return "refused" if way == "refuse" else f"refused: {str(error).partition(chr(10))[0]}"
    wrong = _differs(world, expected, p)
    if wrong or way != "replay":
        return wrong or "right"
    for _ in range(2):
        p = rng.uniform(-1, 1, world.n)
        world.begin(p)
        tape.replay()
        tape.backward()
        wrong = _differs(world, expected, p)
        if wrong:
            return "replay: " + wrong
        again = world.p.grad.to_numpy()
        tape.backward()  # gradients add up
        if not np.allclose(world.p.grad.to_numpy(), 2 * again, rtol=1e-12, atol=1e-300):
            return "replay: a second pass gives another gradient"
    return "right"


def _differs(world, expected, p):
    value, gradient = expected(p), central(expected, p)
    found = world.loss[None]
    if not np.isclose(found, value, rtol=1e-7, atol=1e-9):
        return f"value {found} instead of {value}"
    grad = world.p.grad.to_numpy()
    size = max(1.0, float(np.abs(gradient).max()))
    if not np.allclose(grad, gradient, rtol=1e-5, atol=1e-6 * size):
        return f"gradient {grad} instead of {gradient}"
    return None


def _in_forward_mode(world, expected, p, rng):
    """Compare the derivatives along one direction, or along several at once."""
    seeds = rng.uniform(-1, 1, (rng.choice([1, 3]), world.n))
    try:
        with ds.ad.FwdMode(world.loss, world.p, [*seeds]) as forward:
            world.run()
    except DiffsimError as error:
        return f"refused: {str(error).partition(chr(10))[0]}"
    value, slopes = expected(p), seeds @ central(expected, p)
    found = forward.tangents(world.loss)
    if not np.isclose(world.loss[None], value, rtol=1e-7, atol=1e-9):
        return f"value {world.loss[None]} instead of {value}"
    size = max(1.0, float(np.abs(slopes).max()))
    if not np.allclose(found, slopes, rtol=1e-5, atol=1e-6 * size):
        return f"tangents {found} instead of {slopes}"
    return "right"
