"""What the checks of gradients cost, on the particles of mpm.py: 32 steps on a Tape, with the gradient.

python benchmarks/checks.py            # 64k particles
python benchmarks/checks.py --quick    # 4k

The check that is always on (versions of fields, compared before each adjoint) is taken out of the launch
functions for the comparison; no option does that. The others are options of a Tape. Each is measured in
turns with the tape that has none; the quotients are medians over the rounds.
"""

import statistics
import sys
from time import perf_counter as now
from types import SimpleNamespace

import mpm

import diffsim as ds
from diffsim.runtime.kernels import launch_function

ROUNDS = 9


def without_versions(make):
    """What `make` gives, run once, with launch functions that neither note nor compare versions."""
    emit, stamps = launch_function.Writer.emit, launch_function.write_stamps

    def emit_rest(writer, *lines):
        if not any("$stale(" in line for line in lines):
            emit(writer, *lines)

    def only_dirty(writer, special, written, who):
        for a in written:
            if a.mem.is_grad:
                emit(writer, f"{writer.use(launch_function.versions_of(a.mem), 'v')}.dirty = True")

    launch_function.Writer.emit, launch_function.write_stamps = emit_rest, only_dirty
    try:
        made = make()
        made.run()
    finally:
        launch_function.Writer.emit, launch_function.write_stamps = emit, stamps
    return made


def simulation(**options):
    """A simulation with its own fields and kernels, and what runs it once on a Tape."""
    quick = "--quick" in sys.argv
    n, x, v = mpm.particles(SimpleNamespace(size=lambda full, small: small if quick else full))
    s = mpm.Simulation(ds, n)
    s.load(x, v)

    def run():
        s.clear()
        s.clear_grad()
        start = now()
        with ds.Tape(s.loss, clear_gradients=False, **options):
            s.simulate()
        return now() - start

    return SimpleNamespace(run=run, gradient=lambda: s.x.grad.to_numpy()[0])


def tiny():
    """A thousand launches that do next to nothing."""
    n = 1000
    x, loss = ds.field(ds.f32, n + 1, needs_grad=True), ds.field(ds.f32, (), needs_grad=True)

    @ds.kernel
    def step(t: ds.i32):
        x[t + 1] = x[t] * x[t]

    @ds.kernel
    def end():
        loss[None] = x[n]

    def run():
        start = now()
        with ds.Tape(loss):
            for t in range(n):
                step(t)
            end()
        return (now() - start) / n * 1e9

    return SimpleNamespace(run=run)


def main():
    ds.init(arch=ds.cpu)
    both = tiny(), without_versions(tiny)
    times = [[s.run() for s in both] for _ in range(100)]
    checked, bare = (min(t) for t in zip(*times, strict=True))
    print(
        f"The check takes {checked - bare:.0f} ns per launch and its adjoint ({checked:.0f} in all).\n"
    )
    plain = simulation()
    others = {
        "no check at all": without_versions(simulation),
        'in_place="save"': simulation(in_place="save"),
        "retain_grad=True": simulation(retain_grad=True),
        "check_nan=True": simulation(check_nan=True),
        "validation=True": simulation(validation=True),
    }
    plain.run()
    print("| Tape | time / time of a plain Tape |\n|---|---|")
    for name, other in others.items():
        other.run()
        quotients = []
        for k in range(ROUNDS):
            first, second = (plain, other) if k % 2 else (other, plain)
            times = {id(s): s.run() for s in (first, second)}
            quotients.append(times[id(other)] / times[id(plain)])
        if name != "retain_grad=True":
            error = abs(other.gradient() - plain.gradient()).max() / abs(plain.gradient()).max()
            assert error < 1e-4, (name, error)
        low, high = min(quotients), max(quotients)
        print(f"| {name} | {statistics.median(quotients):.2f} ({low:.2f}–{high:.2f}) |")


if __name__ == "__main__":
    main()
