"""Each generator of random programs has its turn."""

from types import ModuleType

from tests.fuzz import __main__ as fuzz


def test_each_generator_is_reached(monkeypatch):
    modules = {n: m for n, m in vars(fuzz).items() if isinstance(m, ModuleType)}
    generators = {n for n, m in modules.items() if hasattr(m, "make")}
    reached = set()

    def reach(name):
        monkeypatch.setattr(modules[name], "make", lambda *_: reached.add(name) or ("", []))

    for name in generators:
        reach(name)
    monkeypatch.setattr(fuzz.given, "ways", lambda seed: [])
    for seed in range(256):
        fuzz.tries(seed, on_cuda=False)
    fuzz.tries(0, on_cuda=True)
    assert generators == reached
