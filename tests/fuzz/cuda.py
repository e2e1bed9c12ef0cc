"""Random programs on an emulated GPU: what their CUDA code computes, thread by thread."""

from random import Random

from tests.cuda import emulated
from tests.fuzz import programs, tensors


def options(seed):
    """How the code of a program is made and run: options of the emulation, of `verdict`, and the tape's."""
    r = Random(seed)
    how = {
        "block_dim": r.choice([32, 32, 64, 96, 8]),
        "at_once": r.choice([1, 3, 7]),
        "small_tiles": r.random() < 0.6,
        "random": Random(seed),
        "races": True,
    }
    more = {
        "single": r.random() < 0.4,
        "deterministic": r.random() < 0.2,
        "debug": r.random() < 0.1,
        "device_scratch_size": r.choice([0, 0, 1 << 20, 20000, 4000]),
        "offline_cache": False,  # what an emulated GPU is handed is no code for a real one
    }
    return how, more, r.choice(["save", "save", "refuse"])


def verdict(text, seed, n):
    """What `programs.verdict` says. In f32 a program is wrong only if it is right on the CPU."""
    how, more, in_place = options(seed)
    emulated.choose(**how)
    said = programs.verdict(text, seed, in_place, n, **more)
    if more["single"] and said not in ("right", "refused", "invalid"):
        on_cpu = programs.verdict(text, seed, in_place, n, single=True, arch=programs.ds.cpu)
        return "invalid" if on_cpu != "right" else said
    return said


def verdict_of_tensors(text, seed):
    """What `tensors.verdict` says."""
    how, more, in_place = options(seed)
    emulated.choose(**how)
    return tensors.verdict(text, seed, in_place, **{k: v for k, v in more.items() if k != "single"})
