"""Times of kernels: `ds.init(kernel_profiler=True)`, `ds.profiler`, `tape.stats()`, `ds.ScopedTimer`."""

import time

import numpy as np
import pytest

import diffsim as ds

pytestmark = pytest.mark.usefixtures("cpu", "quick_code")


@pytest.fixture
def program():
    x, y = (ds.field(ds.f64, shape=3000, needs_grad=True) for _ in range(2))
    loss = ds.field(ds.f64, shape=(), needs_grad=True)

    @ds.kernel
    def wave(t: ds.i32):
        for i in x:
            y[i] += ds.sin(x[i]) * t

    @ds.kernel
    def total():
        for i in x:
            loss[None] += y[i]

    def run():
        for t in range(5):
            wave(t)
        total()

    return x, y, loss, run, wave


def rows(table):
    return {(row.name, row.direction): row for row in table.rows}


@pytest.fixture
def measuring(program):
    ds.init(default_fp=ds.f64, kernel_profiler=True)
    return program


def test_launches_forward_and_backward(measuring, capsys):
    _, _, loss, run, wave = measuring
    began = time.perf_counter()
    with ds.Tape(loss):
        run()
    wave(7)
    wave.grad(7)
    wall = time.perf_counter() - began
    found = rows(ds.profiler.table())
    counts = {key: row.counter for key, row in found.items()}
    expected = {"forward": 6, "adjoint": 6}
    assert counts == {("wave", d): n for d, n in expected.items()} | {
        ("total", "forward"): 1,
        ("total", "adjoint"): 1,
    }
    for row in found.values():
        assert 0 < row.min <= row.avg * (1 + 1e-12)
        assert row.avg <= row.max * (1 + 1e-12)
        assert row.total == pytest.approx(1e-3 * row.avg * row.counter)
        assert row.compile_seconds > 0
    # Compilations are no part of the times of launches.
    total = ds.profiler.get_kernel_profiler_total_time()
    assert total == pytest.approx(sum(row.total for row in found.values()))
    assert total + sum(row.compile_seconds for row in found.values()) < wall
    assert ds.profiler.query_kernel_profiler_info("wave").counter == 6
    assert ds.profiler.query_kernel_profiler_info("nothing").counter == 0
    with pytest.raises(ds.ArgumentError, match=r'(?s)by its name.*info\("wave"\)'):
        ds.profiler.query_kernel_profiler_info(wave)
    ds.profiler.print_kernel_profiler_info()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].split()[:2] == ["kernel", "launches"]
    assert sum(line.split()[0] == "wave" for line in lines) == 2
    ds.profiler.print_kernel_profiler_info("trace")
    lines = capsys.readouterr().out.splitlines()
    order = [line.split("ms  ")[1] for line in lines]
    assert order == ["wave, forward"] * 5 + ["total, forward", "total, adjoint"] + [
        "wave, adjoint"
    ] * 5 + ["wave, forward", "wave, adjoint"]
    ds.profiler.print_scoped_profiler_info()
    assert "compiled in ms" in capsys.readouterr().out
    ds.profiler.clear_kernel_profiler_info()
    assert not sum(row.counter for row in ds.profiler.table().rows)


def test_a_tape_has_its_own_launches_only(measuring):
    _, _, loss, run, wave = measuring
    wave(1)
    tape = ds.Tape()
    with tape:
        run()
    wave(2)
    stats = tape.stats()
    assert {key: row.counter for key, row in rows(stats.kernels).items()} == {
        ("wave", "forward"): 5,
        ("total", "forward"): 1,
    }
    for n in (1, 2):
        tape.backward(loss)
        found = rows(tape.stats().kernels)
        assert found["wave", "adjoint"].counter == 5 * n
        assert found["wave", "forward"].counter == 5
    assert stats == tape.stats()
    assert "kernels" not in repr(stats)
    # Again and again: each recording is measured, and its adjoints too.
    for _ in range(4):
        with ds.Tape(loss) as tape:
            run()
        assert rows(tape.stats().kernels)["wave", "adjoint"].counter == 5


def test_a_table_and_a_plot(measuring):
    _, _, loss, run, _ = measuring
    with ds.Tape(loss) as tape:
        run()
    table = tape.stats().kernels
    html = table._repr_html_()
    assert html.count("<tr>") == 5
    axes = table.plot()
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["forward", "adjoint"]
    widths = [bar.get_width() for bar in axes.patches]
    assert sum(widths) == pytest.approx(1e3 * table.total)
    assert str(type(table)()) == "no launch was measured"


def test_without_the_option(program):
    _, _, loss, run, wave = program
    with ds.Tape(loss) as tape:
        run()
    assert tape.stats().kernels.rows == []
    # Nothing at all is in the launch function.
    assert not [name for name in wave._launch.__code__.co_names if "mark" in name]
    with pytest.raises(ds.ArgumentError, match="no launch was measured") as caught:
        ds.profiler.print_kernel_profiler_info()
    assert "ds.init(kernel_profiler=True)" in caught.value.hint
    with pytest.raises(ds.OptionError, match="the option kernel_profiler cannot be 2"):
        ds.init(kernel_profiler=2)


def test_names_that_are_not_there(measuring):
    with pytest.raises(ds.UnknownAttributeError) as caught:
        ds.profiler.set_kernel_profiler_metrics
    assert "Nsight" in caught.value.hint
    with pytest.raises(ds.UnknownAttributeError, match="print_kernel_profiler_info"):
        ds.profiler.print_kernel_profile_info
    with pytest.raises(ds.OptionError, match="mode='all' is not possible"):
        ds.profiler.print_kernel_profiler_info("all")


def test_random_numbers_arrays_and_debug(program):
    """The options go together."""
    ds.init(default_fp=ds.f64, kernel_profiler=True, debug=True)

    @ds.kernel
    def draw(a: ds.types.ndarray()) -> ds.f64:
        for i in a:
            a[i] = ds.random(ds.f64)
        return a[0]

    a = np.zeros(5)
    assert draw(a) == a[0]
    draw(a)
    assert ds.profiler.query_kernel_profiler_info("draw").counter == 2


def test_many_launches_take_no_more_memory_than_their_times(measuring):
    _, _, _, _, wave = measuring
    for t in range(3000):
        wave(t)
    assert ds.profiler.query_kernel_profiler_info("wave").counter == 3000


def test_a_scoped_timer(cpu, capsys):
    times = {}
    with ds.ScopedTimer("work", dict=times) as timer:
        time.sleep(0.01)
    assert 10 <= timer.elapsed < 1000
    assert times == {"work": [timer.elapsed]}
    assert capsys.readouterr().out == f"work took {timer.elapsed:.2f} ms\n"
    with ds.ScopedTimer("work", print=False, dict=times, synchronize=True):
        pass
    with ds.ScopedTimer("work", active=False, dict=times) as timer:
        pass
    assert len(times["work"]) == 2
    assert timer.elapsed == 0
    assert not capsys.readouterr().out
    with pytest.raises(ds.ArgumentError, match="active is True or False"):
        ds.ScopedTimer("x", active=1)


def test_tangents(measuring):
    x, y, _, _, wave = measuring
    with ds.ad.FwdMode(loss=y, param=x, seed=np.ones(3000)):
        wave(3)
    wave(3)
    found = rows(ds.profiler.table())
    assert found["wave", "tangent"].counter == 1
    assert found["wave", "forward"].counter == 1


def test_replays_and_tapes_from_files(measuring, tmp_path):
    """Their launches are measured one by one, forward and backward; the results stay the same."""
    x, _, loss, run, _ = measuring
    x.fill(0.5)
    tape = ds.Tape(loss)
    with tape:
        run()
    gradient = x.grad.to_numpy()
    for _ in range(2):
        measuring[1].fill(0)
        tape.replay()
        tape.backward()
        assert (x.grad.to_numpy() == gradient).all()
    counts = {
        ("wave", "forward"): 5,
        ("total", "forward"): 1,
        ("wave", "adjoint"): 5,
        ("total", "adjoint"): 1,
    }
    found = rows(tape.stats().kernels)
    assert {key: row.counter for key, row in found.items()} == {k: 3 * n for k, n in counts.items()}
    assert all(row.min > 0 for row in found.values())
    tape.save(str(tmp_path / "tape.npz"))
    ds.profiler.clear_kernel_profiler_info()
    again = ds.load_tape(str(tmp_path / "tape.npz"))
    again.replay()
    again.backward()
    found = rows(ds.profiler.table())
    assert {key: row.counter for key, row in found.items()} == counts
    ds.profiler.print_kernel_profiler_info("trace")


def test_the_memory_of_fields(capsys):
    x = ds.field(ds.f64, shape=(64, 64), needs_grad=True, name="heat")
    small = ds.Vector.field(3, ds.f32, shape=100, name="velocity")
    ds.profiler.print_memory_profiler_info()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {line[0]: " ".join(line[-2:]) for line in lines}
    assert found["heat"] == found["heat.grad"] == "32 KiB"
    assert found["velocity"] == "1.17 KiB"
    names = [line[0] for line in lines]
    assert names.index("heat") < names.index("velocity") < names.index("all") == len(names) - 1
    del x, small
    ds.profiler.print_memory_profiler_info()
    assert "heat" not in capsys.readouterr().out
