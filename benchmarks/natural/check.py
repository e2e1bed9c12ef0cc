"""Hold gradients of programs against central differences in f64, at tiny sizes: `check.py [PROGRAM ...]`."""

import sys
from pathlib import Path
from typing import Any

from suite import difference_error, load, programs

TINY = dict(
    histogram=100, sorting=64, unrolled_layer=4, bundle=1000, kmeans=50, gmm=20, logsumexp=20
) | dict(
    ray_march=16, volume_renderer=8, hand=100, network=16, rnn=8, lstm=16, ode=20, cart_pole=20
)
TINY |= dict(trilinear=6, nbody_lists=5)
OVERWRITING = {"lstm", "sorting"}
"""Programs that overwrite the state which their gradients need."""


def start(ds: Any, name: str) -> None:
    """Begin a session in which this program has a gradient."""
    rules = "lifted" if name in OVERWRITING else "enforced"
    ds.init(arch=ds.cpu, default_fp=ds.f64, rules=rules)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import diffsim as ds

    for name in sys.argv[1:] or programs():
        start(ds, name)
        try:
            print(name, f"{difference_error(ds, load(name), TINY.get(name, 12)):.0e}", flush=True)
        except ds.DiffsimError as error:
            print(name, "refused:", str(error).splitlines()[0], flush=True)


if __name__ == "__main__":
    main()
