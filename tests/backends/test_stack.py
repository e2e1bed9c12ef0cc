"""What registers have no room for: vectors lie in the stack at multiples of their size."""

import platform
import re

import pytest

import diffsim as ds
from diffsim.backends.cpu import outline
from diffsim.runtime.compiler import llvm_text

_ALIGN_TO_64 = b"\x48\x83\xe4\xc0"  # and rsp, -64
_X86 = platform.machine() in ("x86_64", "AMD64")


def crowded(n=64, count=40):
    """Lanes with more values at once than there are registers: each is needed again in the end."""
    x, y = (ds.field(ds.f32, shape=(n, n), needs_grad=True) for _ in range(2))

    @ds.kernel
    def mix():
        for i, j in ds.ndrange(n, n):
            kept = ds.Vector.zero(ds.f32, count)
            a = x[i, j]
            for k in ds.static(range(count)):
                a = a * 1.5 + 0.25
                kept[k] = a
            for k in ds.static(range(count)):
                a = a * kept[k] - kept[count - 1 - k]
            y[i, j] = a

    return mix


def not_inlined(text):
    """The attributes of each function of an LLVM text that is not always inlined."""
    heads = re.findall(r"^define .*@(\w+)\(.*\) (.*) \{$", text, re.M)
    groups = dict(re.findall(r"^attributes (#\d) = \{ (.*) \}$", text, re.M))
    return {
        name: " ".join(groups.get(word, word) for word in words.split())
        for name, words in heads
        if "alwaysinline" not in words
    }


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "in parts"])
def test_all_functions_align_their_stack(monkeypatch, parts):
    if parts:
        monkeypatch.setattr(outline, "_LONGEST", 4)
        monkeypatch.setattr(outline, "_MOST_NESTED", 4)
        monkeypatch.setattr(outline, "_PART", 3)
    found = not_inlined(llvm_text(crowded()._only(()).ir))
    assert "launch" in found
    assert any(name.startswith("part") for name in found) == parts
    for name, attributes in found.items():
        assert "alignstack=64" in attributes, name


@pytest.mark.skipif(not _X86, reason="looks for an x86 instruction")
def test_machine_code_aligns_the_stack(jit):
    assert _ALIGN_TO_64 in jit.compile(llvm_text(crowded()._only(()).ir))
