"""Little memory: what does not fit is an error or ends the process, and nothing that is kept is wrong."""

import tempfile

from tests.soak import _processes
from tests.soak.kills import KERNELS

LITTLE = """
import resource, sys

import diffsim as ds

ds.init(cpu_max_num_threads=2)
warm = ds.field(ds.f64, shape=10)

@ds.kernel
def fill():
    for i in warm:
        warm[i] = i

fill()
mapped = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (mapped + int(sys.argv[1]),) * 2)
kept = []
try:
    for n in range(1000):
        x = ds.field(ds.f64, shape=int(sys.argv[2]), needs_grad=True)
        x.fill(float(n))
        kept.append(x)
    print("no limit")
except (MemoryError, ds.DiffsimError) as error:
    print("refused", type(error).__name__)
for n, x in enumerate(kept):
    assert x[0] == n and x[x.shape[0] - 1] == n, (n, x[0])
fill()
assert warm[9] == 9.0
"""


def fields(seconds, rng):
    """Fields until the memory is full: the error is one that a program can handle, and all goes on."""
    for _ in _processes.rounds(seconds):
        room, size = rng.randrange(1 << 26, 1 << 28), rng.randrange(1 << 16, 1 << 22)
        out = _processes.run(LITTLE, room, size)
        assert out.startswith(("refused", "no limit")), out


BOUND = "import resource\nresource.setrlimit(resource.RLIMIT_AS, ({0}, {0}))\n"


def compiling(seconds, rng):
    """Kernels are compiled in so little memory that Python or LLVM may give up; what is kept is right."""
    cache = tempfile.mkdtemp()
    for round in _processes.rounds(seconds):
        text = BOUND.format(rng.randrange(300 << 20, 900 << 20)) + KERNELS
        with _processes.start(text, round * 3, 3, DIFFSIM_CACHE_DIR=cache) as process:
            _, err = process.communicate(timeout=_processes.LONGEST)
        # It may end in any way but with a wrong number.
        assert "assert y[7]" not in err, err
        assert "assert x.grad[7]" not in err, err
        _processes.run(KERNELS, round * 3, 3, DIFFSIM_CACHE_DIR=cache)


SCENARIOS = {"fields": fields, "compiling": compiling}
