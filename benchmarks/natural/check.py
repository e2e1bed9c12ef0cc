"""Hold gradients of programs against central differences in f64, at tiny sizes: `check.py [PROGRAM ...]`."""

import sys
from pathlib import Path
from typing import Any

from suite import arrays, build, build_c, compile_c, difference_error, load, programs

TINY = dict(
    histogram=100, sorting=64, unrolled_layer=4, bundle=1000, kmeans=50, gmm=20, logsumexp=20
) | dict(
    ray_march=16, volume_renderer=8, hand=100, network=16, rnn=8, lstm=16, ode=20, cart_pole=20
)
TINY |= dict(trilinear=6, nbody_lists=5, factorization=200)
OVERWRITING = {"lstm", "sorting"}
"""Programs that overwrite the state which their gradients need."""


def start(ds: Any, name: str) -> None:
    """Begin a session in which this program has a gradient."""
    rules = "lifted" if name in OVERWRITING else "enforced"
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules=rules)


def program_error(ds: Any, name: str) -> float:
    """Of diffsim's gradient of a program, in a session that has begun."""
    module, n = load(name), TINY.get(name, 12)
    given = arrays(module, n, "f8")
    return difference_error(build(ds, module, n, given), given)


def reference_error(source: Path, folder: Path) -> float:
    """Of the adjoint that is written by hand in a C file; its library goes into the folder."""
    module, n = load(source.stem), TINY.get(source.stem, 12)
    given, library = arrays(module, n, "f8"), compile_c(source, 1, "f8", folder)
    built = build_c(library, n, given, list(given))
    built.gradient(lambda: None)
    wanted = [name for name, gradient in built.gradients().items() if gradient.any()]
    return difference_error(build_c(library, n, given, wanted), given)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import diffsim as ds

    for name in sys.argv[1:] or programs():
        start(ds, name)
        try:
            print(name, f"{program_error(ds, name):.0e}", flush=True)
        except ds.DiffsimError as error:
            print(name, "refused:", str(error).splitlines()[0], flush=True)


if __name__ == "__main__":
    main()
