"""One small kernel in a new process: what someone waits for who runs a script.

`runtime/kernels/launch_function.py` starts it and waits for its line: python benchmarks/first.py MODULE
CACHE_FOLDER
"""

import sys


def api(ds, cache):
    ds.init(arch=ds.cpu, offline_cache=True, offline_cache_file_path=cache)
    x = ds.field(ds.f32, shape=16)

    @ds.kernel
    def double(a: ds.f32):
        for i in x:
            x[i] = 2.0 * a + i

    double(1.5)
    return x[4]


def warp(wp, cache):
    wp.config.quiet = True
    wp.config.kernel_cache_dir = cache
    wp.set_device("cpu")

    @wp.kernel
    def double(x: wp.array(dtype=float), a: float):
        i = wp.tid()
        x[i] = 2.0 * a + float(i)

    x = wp.zeros(16, dtype=float)
    wp.launch(double, dim=16, inputs=[x, 1.5])
    return x.numpy()[4]


def numba(nb, cache):
    import numpy as np

    @nb.njit(cache=True)
    def double(x, a):
        for i in range(x.shape[0]):
            x[i] = 2.0 * a + i

    x = np.zeros(16, np.float32)
    double(x, 1.5)
    return x[4]


if __name__ == "__main__":
    import importlib
    import os

    name, folder = sys.argv[1:]
    if name == "diffsim":
        sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    os.environ["NUMBA_CACHE_DIR"] = folder
    module = importlib.import_module(name)
    print("result", float(dict(warp=warp, numba=numba).get(name, api)(module, folder)), flush=True)
