"""Results of compiling that are kept on disk: found again by what they follow from, and by nothing less."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import diffsim as ds
from diffsim.backends.cpu import codegen
from diffsim.ir.nodes import Mem
from diffsim.passes import pipeline
from diffsim.passes.autodiff import reverse
from diffsim.runtime import kept_results
from diffsim.runtime.cache import own_version
from diffsim.runtime.cache.ir_bytes import NotStorable, dumps, fingerprint, loads
from diffsim.runtime.kernels.specialization import Specialization

PROGRAM = textwrap.dedent(
    """\
    import collections, json
    import diffsim as ds
    from diffsim.backends.cpu import codegen
    from diffsim.lang.frontend import translate as frontend
    from diffsim.passes import pipeline
    from diffsim.passes.autodiff import reverse

    counts = collections.Counter()

    def counted(owner, name):
        inner = getattr(owner, name)
        def outer(*args, **options):
            counts[name] += 1
            return inner(*args, **options)
        setattr(owner, name, outer)

    ds.init(arch=ds.cpu, default_fp=ds.f64)
    x, y = (ds.field(ds.f64, shape=5, needs_grad=True) for _ in range(2))
    order = ds.field(ds.i32, shape=5)
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def powers(a: ds.f64):
        for i in x:
            total = 0.0
            for k in range(i + 1):
                total += a * x[i] ** k
            y[order[i]] += total
        print("first", y[0])

    @ds.kernel
    def add():
        for i in y:
            loss[None] += y[i]

    def run():
        with ds.Tape(loss):
            powers(2.0)
            add()

    counted(codegen, "lower"), counted(reverse, "reverse"), counted(pipeline, "run")
    counted(frontend, "translate")
    for i in range(5):
        x[i], order[i] = 0.5 + i, i
    run()
    gradient = x.grad.to_numpy().tolist()
    powers(2.0)
    x[1] = 3.0
    try:
        powers.grad(2.0)
        line = 0
    except ds.AutodiffError as error:
        line = error.span.line
    print(json.dumps(dict(counts=counts, gradient=gradient, line=line)))
    """
)
LINE = PROGRAM.splitlines().index("            total += a * x[i] ** k") + 1


def run(folder, text):
    (folder / "program.py").write_text(text)
    environment = {**os.environ, "DIFFSIM_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "program.py"]
    told = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    printed, _, found = told.stdout.rstrip().rpartition("\n")
    return printed, json.loads(found)


def test_a_second_process_compiles_nothing(tmp_path):
    printed, first = run(tmp_path, PROGRAM)
    assert first["counts"]["reverse"] == 2
    assert first["line"] == LINE
    s = 0.5 + np.arange(5)
    exact = [sum(2.0 * k * s[i] ** (k - 1) for k in range(i + 1)) for i in range(5)]
    np.testing.assert_allclose(first["gradient"], exact, rtol=1e-12)
    # The file may have grown above the kernel: lines are those of now, and so the text is translated.
    for above, made in ("", {}), ("\n\n", {"translate": 2, "run": 2}):
        again, found = run(tmp_path, above + PROGRAM)
        assert found["counts"] == made
        line = LINE + len(above)
        assert (again, found["gradient"], found["line"]) == (printed, first["gradient"], line)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache of its own, in a process that verifies nothing and knows its version."""
    monkeypatch.setattr(pipeline, "VERIFY", False)
    monkeypatch.setattr(own_version, "_found", ["1"])
    ds.init(arch=ds.cpu, offline_cache_file_path=str(tmp_path))


def digest(kernel, *args):
    return fingerprint(kernel.specialize(args)[0].ir).digest


def doubled(x, y, number=2.0):
    @ds.kernel
    def double(a: ds.f32):
        for i in range(4):
            y[i] = number * x[i] + a

    return double


def plain(**options):
    return ds.field(**{"dtype": ds.f32, "shape": 4, **options})


def same(**options):
    x = plain(**options)
    return x, x


def test_a_fingerprint_is_of_all_that_code_depends_on(kept):
    def vectors(layout):
        v = ds.Vector.field(2, ds.f32, shape=4, layout=layout)
        return v, v

    def side_by_side():
        x, y = ds.field(ds.f32), ds.field(ds.f32)
        ds.root.dense(ds.i, 4).place(x, y)
        return x, y

    def offset():
        x = ds.field(ds.f32)
        ds.root.dense(ds.i, 8).place(x, offset=(-2,))
        return x, plain()

    def sparse():
        x = ds.field(ds.f32)
        ds.root.pointer(ds.i, 4).place(x)
        return x, plain()

    fields = dict(
        two=lambda: (plain(), plain()),
        one_in_both_places=same,
        another_shape=lambda: (plain(shape=5), plain()),
        another_type=lambda: (plain(dtype=ds.i32), plain()),
        with_gradient=lambda: (plain(needs_grad=True), plain()),
        offset=offset,
        sparse=sparse,
        vectors=lambda: vectors(ds.Layout.AOS),
        vectors_apart=lambda: vectors(ds.Layout.SOA),
    )
    found = {name: digest(doubled(*make()), 1.0) for name, make in fields.items()}
    assert len(set(found.values())) == len(found)

    def named():
        return plain(name="heat"), plain(name="flow")

    for make in (fields["two"], side_by_side, named):  # whose elements lie in the same way
        assert digest(doubled(*make()), 1.0) == found["two"]
    numbers = [2.0, 3.0, -0.0, 0.0, float("nan")]
    made = [digest(doubled(plain(), plain(), number), 1.0) for number in numbers]
    assert made[0] == found["two"]
    assert len(set(made)) == len(numbers)


def test_a_result_is_of_the_options_and_of_the_version(kept, monkeypatch):
    keys = []
    for options in (
        {},
        dict(fast_math=True),
        dict(deterministic=True),
        dict(cpu_max_num_threads=3),
        dict(default_fp=ds.f64),
        dict(random_seed=1, log_level="error"),  # of no code
    ):
        ds.init(arch=ds.cpu, **options)
        keys.append(kept_results.base_key()[1:])
    assert len(set(keys)) == len(keys) - 1
    assert keys[0] == keys[-1]
    monkeypatch.setattr(own_version, "_found", ["2"])
    assert kept_results.base_key()[1:] not in keys
    for options in (dict(offline_cache=False), dict(debug=True)):
        ds.init(arch=ds.cpu, **options)
        assert kept_results.base_key() is None  # on disk
    ds.init(arch=ds.cpu)
    monkeypatch.setattr(own_version, "_found", [])
    monkeypatch.setattr(own_version, "_STARTED_NS", 0)  # all files have changed since
    assert kept_results.base_key() is None


def test_an_adjoint_refers_to_the_statements_of_its_kernel(kept):
    def special():
        x = plain(needs_grad=True)

        @ds.kernel
        def square():
            for i in x:
                x[i] = x[i] ** 2

        return x, square.specialize(())[0].in_place

    _, first = special()
    made = first.derivative._differentiated
    x, second = special()
    loaded = second.derivative._differentiated
    assert loaded.ir is not made.ir
    assert loaded.primal is second.ir
    assert loaded.restored == {x._mem}
    (task,) = second.ir.tasks
    (read,) = second.derivative.accesses.reads
    assert read.stmt.origin in task.body.stmts


@pytest.mark.parametrize("on_disk", [True, False])
def test_other_fields_in_the_places_of_a_template_lead_to_the_same_code(kept, monkeypatch, on_disk):
    if not on_disk:
        ds.init(arch=ds.cpu, offline_cache=False)
    made = []
    for owner, name in ((reverse, "reverse"), (codegen, "lower")):
        inner = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *a, f=inner, n=name, **o: made.append(n) or f(*a, **o)
        )

    @ds.kernel
    def step(old: ds.template(), new: ds.template()):
        for i in old:
            new[i] = old[i] * old[i] + 0.5

    heat = [plain(name=f"heat{t}", needs_grad=True) for t in range(4)]
    heat[0].from_numpy(start := np.linspace(-0.5, 0.5, 4, dtype=np.float32))
    heat[3].grad.fill(1.0)
    for t in range(3):
        step(heat[t], heat[t + 1])
    for t in reversed(range(3)):
        step.grad(heat[t], heat[t + 1])
    assert sorted(made) == ["lower", "lower", "reverse"]
    states = [start.astype(float)]
    for _ in range(3):
        states.append(states[-1] ** 2 + 0.5)
    np.testing.assert_allclose(heat[3].to_numpy(), states[3], rtol=1e-6)
    exact = np.prod([2.0 * s for s in states[:3]], axis=0)
    np.testing.assert_allclose(heat[0].grad.to_numpy(), exact, rtol=1e-5)
    made.clear()
    step(heat[0], heat[0])  # one field in both places is another program
    assert made == ["lower"]
    np.testing.assert_allclose(heat[0].to_numpy(), states[1], rtol=1e-6)


def test_what_belongs_to_a_process_is_not_written(kept):
    x = plain()
    with pytest.raises(NotStorable):
        dumps(x._mem, ())
    assert loads(dumps(x._mem, [x._mem]), [x._mem]) is x._mem
    own = Mem("t", ds.f32, 0, (), "temp")
    copy = loads(dumps((own, own), ()), ())
    assert copy[0] is copy[1]
    assert (copy[0].name, copy[0].kind, copy[0].origin) == ("t", "temp", ())
    for data in (b"", b"nonsense", dumps(own, ())[:-3]):
        with pytest.raises(NotStorable):
            loads(data, ())
    assert isinstance(doubled(plain(), plain()).specialize((1.0,))[0], Specialization)
