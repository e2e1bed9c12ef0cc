"""Random sequences of recordings at the same lines, with changes between them, against recordings made anew.

A tape may write over the record of the last one of its line, know what was checked of it, run its adjoints
natively, and use the memory of its copies; a launch may know the fields that it is given. None of this may
show: with and without it the loss, all gradients and all errors are the same after each turn, to the last
bit.
"""

import random
import re
import threading
from unittest import mock

import numpy as np

import diffsim as ds
from diffsim.ad import tape as tapes
from diffsim.ad.repeat import variant
from diffsim.ad.repeat.known import Known
from diffsim.runtime.binding.bound_fields import BoundFields
from tests.support.source import make as run_source

PRELUDE = """
N = 3
p, x = (ds.field(ds.f64, shape=N, needs_grad=True) for _ in range(2))
h = ds.field(ds.f64, shape=(6, N), needs_grad=True)
z = ds.field(ds.f64, shape=(32, N), needs_grad=True)
q = ds.field(ds.i32, shape=N)
loss, other = (ds.field(ds.f64, shape=(), needs_grad=True) for _ in range(2))
plain = ds.field(ds.f64, shape=())
v, w = (ds.ndarray(ds.f64, shape=N, needs_grad=True) for _ in range(2))
b = [ds.ndarray(ds.f64, shape=N, needs_grad=True) for _ in range(5)]
m = ds.ndarray(ds.f64, shape=(6, N), needs_grad=True)
array = np.array([0.5, 1.5, -1.0])
FACTOR = 0.5
q.from_numpy(np.array([2, 0, 1], np.int32))
p.from_numpy(np.array([0.3, 0.7, 1.1]))
v.from_numpy(np.array([0.2, 0.4, 0.8]))
w.from_numpy(np.array([0.9, -0.4, 0.1]))
m.from_numpy(np.linspace(0.1, 1.8, 18).reshape(6, 3))
for one in b:
    one.from_numpy(np.array([0.6, -0.2, 0.3]))

@ds.kernel
def start():
    for i in x:
        x[i] = p[i]

@ds.kernel
def wave(a: ds.f64):
    for i in x:
        x[i] = ds.sin(a * x[i])

@ds.kernel
def enter():
    for i in x:
        h[0, i] = x[i] * p[i]

@ds.kernel
def into(t: ds.i32, a: ds.f64):
    for i in x:
        h[t + 1, i] = a * h[t, i] + p[i] ** 2

@ds.kernel
def between(s: ds.i32, t: ds.i32):
    for i in x:
        h[s, i] = h[t, i] ** 2 * p[i]

@ds.kernel
def end(t: ds.i32):
    for i in x:
        loss[None] += h[t, i] ** 2

@ds.kernel
def total():
    for i in x:
        loss[None] += x[i] ** 2

@ds.kernel
def scaled():
    for i in p:
        loss[None] += FACTOR * p[i]

@ds.kernel
def scatter():
    for i in x:
        x[q[i]] = 2.0 * p[i]

@ds.kernel
def order(t: ds.i32):
    for i in q:
        q[i] = ds.min(i, t)

@ds.kernel
def gather(a: ds.f64):
    for i in x:
        loss[None] += a * x[q[i]] * p[i]

@ds.kernel
def put():
    for i in p:
        other[None] += p[i] ** 2

@ds.kernel
def squares(u: ds.types.ndarray(), a: ds.f64):
    for i in range(N):
        loss[None] += a * u[i] ** 2

@ds.kernel
def lean(c: ds.types.vector(3, ds.f64), a: ds.f64):
    for i in p:
        loss[None] += (a + c[0] * c[1] + c[2]) * p[i] ** 2

@ds.kernel
def aside(c: ds.types.vector(2, ds.i32)):
    for i in x:
        h[c[0], i] = h[c[1], i] ** 2 * p[i]

@ds.kernel
def hand_on(u: ds.types.ndarray(), o: ds.types.ndarray()):
    for i in range(N):
        o[i] = ds.sin(u[i]) + 0.5 * u[(i + 1) % N]

@ds.kernel
def add_to(u: ds.types.ndarray(), o: ds.types.ndarray(), a: ds.f64, k: ds.i32):
    for i in range(N):
        o[i] += a * u[i] ** 2 + k

@ds.kernel
def along(m: ds.types.ndarray(), u: ds.types.ndarray(), t: ds.i32):
    for i in range(N):
        m[t + 1, i] = m[t, i] * u[i]

@ds.kernel
def noise():
    for i in p:
        loss[None] += p[i] * ds.random(ds.f64)

@ds.kernel
def product() -> ds.f64:
    return p[0] * p[1]

@ds.kernel
def both(a: ds.f64) -> ds.f64:
    for i in p:
        loss[None] += a * p[i] ** 2
    return p[0] * x[1]

@ds.kernel
def silent():
    plain[None] += 1.0

@ds.kernel
def looks() -> ds.f64:
    return plain[None]

@ds.kernel
def divide(a: ds.f64):
    for i in p:
        loss[None] += p[i] / a

@ds.kernel
def by_plain():
    for i in p:
        loss[None] += plain[None] * p[i] ** 2

@ds.kernel
def onward(t: ds.i32, a: ds.f64):
    for i in range(N):
        z[t + 1, i] = a * z[t, i] + p[i] ** 2

@ds.kernel
def finish(t: ds.i32):
    for i in range(N):
        loss[None] += z[t, i] ** 2

@ds.kernel
def place(t: ds.i32, a: ds.f64):
    for i in range(N):
        z[t + 1, q[i]] = a * z[t, i] + p[i] ** 2

def roll_by_index(a):
    for t in range(26):
        place(t, a)
    finish(26)

def roll(first, a, grow):
    for t in range(26):
        onward(first + t, a * (1.0 + grow * t))
    finish(first + 26)

def define():
    @ds.kernel
    def made():
        for i in p:
            loss[None] += 3.0 * p[i]
    return made

made = define()

def assign(field, index, value):
    field[index] = value

def fail():
    raise KeyError

def nest():
    with ds.Tape(loss):
        total()

def elsewhere():
    thread = threading.Thread(target=lambda: x.fill(0.25))
    thread.start()
    thread.join()

def from_thread(act):
    def run():
        try:
            act()
        except Exception as error:
            seen.append(f"{type(error).__name__} {error}")
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

def adding():
    with ds.Tape(other, clear_gradients=False):
        put()

def looked():
    seen.append(loss[None])

R = K = None  # what a kernel returned, and what Python read, in this turn or an earlier one

def give(number):
    global R
    R = number

def hold(number):
    global K
    K = number

def note(number):
    seen.append(number > 0.25)
    seen.append(f"{number:.17g}")

def late():
    ds.field(ds.f64, shape=(), needs_grad=True)

def quiet():
    with ds.ad.no_grad():
        put()

def steps():
    def step(t):
        into(t, 0.5)
    ds.ad.checkpoint(step, 3, state=[h])

def tangents():
    with ds.ad.FwdMode(loss=loss, param=p, seed=[1.0, 0.0, 0.0]):
        total()

def quiet_write():
    with ds.ad.no_grad():
        p[1] = 0.5
        x.fill(0.5)

kept = ds.Tape(loss)
asks = True

def turn(form, run):
    global T, kept, asks
    if form == "loss":
        with ds.Tape(loss):
            run()
    elif form == "kept":
        if anew:
            kept = ds.Tape(loss)
        with kept:
            run()
    elif form == "named":
        with ds.Tape(loss) as T:
            run()
    elif form == "other":
        with ds.Tape(other):
            run()
    elif form == "free":
        T = ds.Tape()
        loss[None] = 0.0
        with T:
            run()
        T.zero()
        T.backward(loss)
        T.backward(loss)
    elif form == "once":
        T = ds.Tape()
        loss[None] = 0.0
        with T:
            run()
        T.zero()
        T.backward(loss)
    elif form == "returned":
        T = ds.Tape()
        with T:
            run()
        T.zero()
        T.backward(R)
    elif form == "returned more":
        with ds.Tape() as T:
            run()
        T.backward(R)
        T.zero()
        T.backward(R)
        T.backward(loss)
    elif form == "more":
        with ds.Tape() as T:
            run()
        T.backward(loss)
    elif form == "seeds":
        T = ds.Tape()
        with T:
            run()
        T.zero()
        T.backward(other)
        T.backward(grads={loss: 2.0, x: 0.5})
    elif form == "blocks":
        T = ds.Tape()
        with T:
            run()
        with T:
            total()
        T.zero()
        T.backward(loss)
    elif form == "save":
        with ds.Tape(loss, in_place="save"):
            run()
    elif form == "adds":
        with ds.Tape(loss, clear_gradients=False):
            run()
    elif form == "retained":
        with ds.Tape(loss, retain_grad=[x]):
            run()
    elif form == "hooks":
        T = ds.Tape(loss)
        T.on_backward(lambda step, grads: seen.append((step, len(grads))))
        with T:
            run()
    elif form == "replayed":
        with ds.Tape(loss, in_place="save") as T:
            run()
        T.replay()
        T.backward()
    elif form == "rerun":
        with ds.Tape(loss) as T:
            run()
        T.replay()
        T.backward()
    elif form == "maybe":
        T = ds.Tape()
        with T:
            run()
        T.zero()
        if asks:
            T.backward(loss)
        asks = not asks
    elif form == "late":
        T = ds.Tape()
        with T:
            run()
        x.fill(0.125)
        T.backward(loss)
    elif form == "searched":
        with ds.Tape(loss, check_nan=True):
            run()
    elif form == "watched":
        with ds.Tape(loss) as T:
            run()
            seen.append((len(T.entries), T.complete))
            run()
        seen.append(T.stats().entries)
    elif form == "twice":
        with ds.Tape(loss) as T:
            run()
        T.backward()
        T.zero()
        T.backward(other)
        T.replay()
        T.backward()
        seen.append(len(T.gradients))
"""
FORMS = (
    "loss loss loss loss kept kept named free free seeds blocks save save adds retained hooks replayed rerun "
    "maybe maybe maybe late searched other"
).split()
CALM_FORMS = "loss loss loss named named kept watched twice hooks once once".split()
RETURN_FORMS = ["returned", "returned", "returned more", *CALM_FORMS[:4], "more", "once"]
NUMBERS = ["0.5", "0.5", "-0.5", "1.5", "0.0", "-0.0", "1", "np.float32(0.5)", "True", "plain"]
RARE = [
    "wave({a})",
    "noise()",
    "product()",
    "assign(p, 0, {n})",
    "assign(p, 1, 0.75)",
    "x.fill({n})",
    "assign(h, ({t}, 1), {n})",
    "loss.fill(0.0)",
    "p.to_numpy()",
    "ds.stop_grad(x)",
    "x.copy_from(p)",
    "squares(array, {a})",
    "fail()",
    "nest()",
    "elsewhere()",
    "quiet()",
    "quiet_write()",
    "steps()",
    "tangents()",
    "from_thread(total)",
    "from_thread(adding)",
    "looked()",
    "ds.reset()",
    "scaled.grad()",
    "loss.grad.fill({n})",
    "late()",
    "x.grad.fill({n})",
    "looks()",
    "x.mark_written()",
]
USUAL = [
    "start()",
    "wave({a})",
    "enter()",
    "into({t}, {a})",
    "into(0, {a})",
    "between({t}, {t})",
    "end({t})",
    "total()",
    "total()",
    "scaled()",
    "scatter()",
    "gather({a})",
    "put()",
    "squares(v, {a})",
    "squares(w, {a})",
    "hand_on(v, w)",
    "hand_on(w, v)",
    "hand_on(p, w)",
    "hand_on(w, x)",
    "add_to(v, w, {a}, 1)",
    "add_to(v, w, {a}, {t})",
    "along(m, w, {t})",
    "squares(b[{t}], {a})",
    "hand_on(b[{t}], b[{t}])",
    "silent()",
    "divide({a})",
    "by_plain()",
    "made()",
]
ROLLS = [
    "roll(0, 0.5, 0.125)",
    "roll(0, {a}, 0.0)",
    "roll(0, {a}, 0.125)",
    "roll({t}, {a}, 0.0)",
    "roll({t}, 0.5, 0.125)",
    "[total() for _ in range(25)]",
    "[divide(a) for a in [0.5] * 24 + [{a}]]",
    "[(hand_on(v, w), hand_on(w, v)) for _ in range(13)]",
    "[*[hand_on(b[k], b[k + 1]) for k in range(4)], squares(b[4], {a})]",
]
LOOKS = [
    "T.backward()",
    "T.backward(other)",
    "T.zero()",
    "T.replay()",
    "T.reset()",
    "seen.append(repr(T))",
    "seen.append(len(T.entries))",
    "T.on_backward(lambda step, grads: seen.append(step))",
    "T = ds.Tape(loss)",
    "T.__enter__(); total(); T.__exit__(None, None, None)",
    "total.grad()",
    "squares.grad(w, 0.5)",
    "hand_on.grad(v, w)",
    "loss.grad.fill({n})",
    "ds.reset()",
    "from_thread(lambda: turn('loss', total))",
    "from_thread(lambda: turn('loss', scaled))",
    "assign(x, 0, K)",
    "assign(x, 1, R)",
    "T.backward(R)",
]
WRITES = [
    "assign(p, 0, {n})",
    "assign(h, (0, {t}), 0.5)",
    "x.fill({n})",
    "p.from_numpy(array)",
    "assign(loss, None, {n})",
    "assign(plain, None, {n})",
]
GIVEN = [
    "squares(array, {a})",
    "squares(np.full(3, {n}), {a})",
    "lean([0.5, {n}, 1.5], {a})",
    "lean(ds.Vector([{n}, 0.5, 2.0]), 1.5)",
    "lean(np.array([{n}, 0.5, 2.0], np.float32), {a})",
    "aside([{t}, {t}])",
]
READS = [
    "looked()",
    "note(loss[None])",
    "note(p[1] * 2.0)",
    "hold(p[{t} % 3])",
    "hold(0.5 + np.sin(x[1]))",
    "hold(p.to_numpy())",
    "note(float(np.sum(p.to_numpy() * 2.0)))",
    "note(ds.stop_grad(p[2]))",
]
RETURNS = [
    "give(product())",
    "give(product())",
    "give(both({a}))",
    "give(both({a}))",
    "note(product())",
    "both({a}).value",
    "product()",
]
USES = [  # of numbers that this turn, or an earlier one, has read or been returned
    "assign(x, 0, K)",
    "assign(x, 1, R)",
    "assign(plain, None, K)",
    "assign(p, 1, 0.5 * R)",
    "wave(K)",
    "both(R)",
    "give(R * R)",
    "give(R + K)",
    "give(p[0] * R)",
    "x.from_numpy(K * np.ones(3))",
    "note(R)",
    "note(K)",
]
LENGTHS = ["[into(k, 0.5) for k in range({t})]", "[(total(), put()) for _ in range({t})]"]
THEMES = [
    [],
    [*WRITES, "total()", "by_plain()"],
    [*WRITES, "into({t}, {a})", "end({t})", "total()"],
    [*GIVEN, "scaled()", "end({t})"],
    [*GIVEN, *WRITES],
    [*READS, "total()", "scaled()"],
    [*READS, *RETURNS, "total()", "end({t})"],
    [*READS, *WRITES, "total()"],
    [*RETURNS, "scaled()", "total()"],
    [*RETURNS, *READS, *USES, "total()", "scaled()"],
    [*LENGTHS, "end({t})", "total()"],
    [*LENGTHS, *WRITES, "end({t})"],
    [*LENGTHS, *GIVEN, *WRITES],
    ["scatter()", "gather({a})", "total()"],
    ["scatter()", "gather({a})", "total()", "order({t})", "order(3)"],
    ["roll_by_index(0.5)", "roll_by_index({a})", "scatter()", "scaled()"],
    ["into({t}, {a})", "into(0, 0.5)", "assign(h, (0, 1), 0.5)", WRITES[1], "end({t})", "total()"],
    ["assign(h, ({t}, 1), {n})", "into({t}, {a})", "end({t})", "assign(p, 1, 0.75)"],
    ["between({t}, {t})", "end({t})", "enter()"],
    ["hand_on(v, w)", "hand_on(w, v)", "squares(w, {a})", "add_to(v, w, {a}, 1)"],
    ["hand_on(b[{t}], b[{t}])", "along(m, b[{t}], {t})", "squares(b[{t}], {a})"],
    ["hand_on(b[0], b[1])", "hand_on(b[1], b[2])", "squares(b[2], {a})"],
]
CHANGES = [
    "p.fill({n})",
    "p[1] = 0.625",
    "x.fill({n})",
    "q.from_numpy(np.array([0, 0, 1], np.int32))",
    "q.from_numpy(np.array([1, 2, 0], np.int32))",
    "plain[None] = {n}",
    "array[1] = {n}",
    "v.fill({n})",
    "w[1] = {n}",
    "b[1].fill({n})",
    "b[2] = ds.ndarray(ds.f64, shape=N, needs_grad=True)",
    "m.fill({n})",
    "squares(w, 0.5)",
    "hand_on(v, w)",
    "FACTOR = 0.75",
    "FACTOR = 0.5",
    "x = ds.field(ds.f64, shape=N, needs_grad=True)",
    "made = define()",
    "kept = ds.Tape(loss)",
    "ds.field(ds.f64, shape=1, needs_grad=True)",
    "T = None",
    "ds.ad.clear_all_gradients()",
    "p.grad.fill({n})",
    "x.grad.fill({n})",
    "h.grad.fill({n})",
]


def make(seed):
    """The text of a program."""
    r = random.Random(f"recordings {seed}")
    if seed % 4 == 3:
        return _taking_turns(r)
    if seed % 2:
        return _calm(r)
    rare = r.choice([0.0, 0.1, 0.2])
    theme = r.choice(THEMES)
    form, body = r.choice(FORMS), _body(r, rare, theme)
    lines = []
    for _ in range(r.randint(6, 14)):
        change = r.random()
        if change < 0.3:
            body = _changed(r, body, rare, theme)
        if r.random() < 0.2:
            form = r.choice([*FORMS, "returned", "returned more"])
        if r.random() < 0.25:
            lines.append(_change(r, theme, CHANGES))
        lines.append(f"turn({form!r}, lambda: [{', '.join(_filled(r, op) for op in body)}])")
    return "\n".join(lines) + "\n"


def _calm(r):
    """Many turns that are alike, so that tapes are steady, with a change now and then."""
    theme = r.choice(THEMES)
    form = r.choice(RETURN_FORMS if "give(product())" in theme else CALM_FORMS)
    body = [_op(r, 0.0, theme) for _ in range(r.choice([1, 1, 1, 2, 3]))]
    if r.random() < 0.3:
        body = [r.choice(ROLLS), *body[:-1]]
    bodies = [body]  # that take turns
    for _ in range(r.choice([0, 0, 1, 3])):
        bodies.append(_changed(r, r.choice(bodies), 0.0, theme))
    lines = []
    for k in range(r.randint(8, 18)):
        body = r.choice(bodies)
        now, ops = form, body
        if k > 3 and r.random() < 0.25:
            ops = _changed(r, body, 0.6, theme)
        if k > 3 and r.random() < 0.2:
            now = r.choice(CALM_FORMS + FORMS)
        if r.random() < 0.1:
            bodies = [ops]
        if r.random() < 0.25:
            lines.append(_change(r, theme, CHANGES + LOOKS))
        lines.append(f"turn({now!r}, lambda: [{', '.join(_filled(r, op) for op in ops)}])")
    return "\n".join(lines) + "\n"


def _taking_turns(r):
    """A few programs that take turns at one line, with writes, arrays and vectors."""
    theme = r.choice(
        [
            t
            for t in THEMES
            if len(t) > 4
            and not {*t}.isdisjoint({*WRITES, *GIVEN, *LENGTHS, *READS, *RETURNS, "order(3)"})
        ]
    )
    start = [_op(r, 0.0, theme) for _ in range(r.randint(0, 3))]
    bodies = []
    for _ in range(r.choice([1, 2, 2, 3, 5])):
        rest = [_op(r, 0.0, theme) for _ in range(r.randint(0, 3))]
        bodies.append(
            [*start[: r.randint(0, 3)], *rest, r.choice(["total()", "scaled()", "end({t})"])]
        )
    usual = ["loss", "loss", "once", "once", "more", "save"]
    usual = r.choice(RETURN_FORMS if "give(product())" in theme else usual)
    lines = []
    for _ in range(r.randint(12, 30)):
        ops, form = r.choice(bodies), usual
        if r.random() < 0.05:
            form = r.choice(
                "loss named once more free blocks maybe late seeds adds adds save".split()
            )
        if r.random() < 0.08:
            ops = _changed(r, ops, 0.6, theme)
        if r.random() < 0.08:
            lines.append(_change(r, theme, CHANGES + LOOKS))
        lines.append(f"turn({form!r}, lambda: [{', '.join(_filled(r, op) for op in ops)}])")
    return "\n".join(lines) + "\n"


def _change(r, theme, changes):
    """What happens between two turns: where q tells what lanes store, often to q."""
    some = CHANGES[3:5] if "scatter()" in theme and r.random() < 0.5 else changes
    return r.choice(some).format(n=r.choice(NUMBERS[:4]))


def _body(r, rare, theme):
    if r.random() < 0.3:
        return [_op(r, rare, theme)]
    some = [_op(r, rare, theme) for _ in range(r.randint(1, 6))]
    return ["start()", *some, r.choice(["end({t})", "total()", "scaled()"])]


def _op(r, rare, theme):
    op = r.choice(theme if theme and r.random() < 0.7 else RARE if r.random() < rare else USUAL)
    # The same numbers in each turn, or others.
    return _filled(r, op) if r.random() < 0.6 else op


def _filled(r, op):
    while "{t}" in op:
        op = op.replace("{t}", str(r.randint(0, 4)), 1)
    return op.format(a=r.choice(NUMBERS), n=r.choice(NUMBERS[:7]))


def _changed(r, body, rare, theme):
    k = r.randint(0, len(body) - 1)
    kind = r.choice(["drop", "insert", "replace"])
    if kind == "drop" and len(body) > 1:
        return body[:k] + body[k + 1 :]
    return [*body[:k], _op(r, rare, theme), *body[k + (kind == "replace") :]]


def verdict(text, seed):
    """What is wrong: "right", or the first turn that differs."""
    # Most of these programs are shorter than those that have a native pass.
    with mock.patch.object(variant, "FEW", random.Random(seed).choice([1, 2, variant.FEW])):
        again = _states(text, seed, anew=False)
    keep_none = mock.patch.object(tapes, "keep", return_value=None)
    know_none = mock.patch.object(Known, "holds", return_value=False)
    suffice_none = mock.patch.object(Known, "suffices", return_value=False)
    steady_none = mock.patch.object(tapes, "take_steady", return_value=None)
    bind_none = mock.patch.object(BoundFields, "note", return_value=None)
    with keep_none, know_none, suffice_none, steady_none, bind_none:
        fresh = _states(text, seed, anew=True)
    for k, (one, other) in enumerate(zip(fresh, again, strict=True)):
        if one != other:
            line = text.splitlines()[k]
            return f"wrong: line {k + 1}, {line}: anew {one!r:.300}, again {other!r:.300}"
    return "right"


def _states(text, seed, *, anew):
    """What there is after each line: loss, gradients, or the error."""
    ds.init(arch=ds.cpu, random_seed=seed % 1000, cpu_max_num_threads=1)
    space = {"ds": ds, "np": np, "threading": threading, "anew": anew, "seen": [], "T": None}
    run_source(PRELUDE, space)
    found = []
    for line in text.splitlines():
        error = ""
        try:
            run_source(line, space)
        except Exception as problem:
            notes = getattr(problem, "__notes__", ())
            error = re.sub(r"<made \d+>", "", f"{type(problem).__name__}: {problem} {notes}")
        found.append((error, *_numbers(space)))
    return found


def _numbers(space):
    fields = [space[name] for name in "p x h z loss other v w".split()]
    fields += [space["m"], *space["b"]]
    arrays = [a for f in fields for a in (f.to_numpy(), f.grad.to_numpy())]
    return *(a.tobytes() for a in arrays), re.sub(r"<made \d+>", "", str(space["seen"]))
