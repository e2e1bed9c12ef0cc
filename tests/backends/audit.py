"""What CUDA code claims of memory, read in its LLVM text: what it loads as constant is not written."""

import re

from diffsim.backends.cuda.codegen import WORK, SimtCode

_NAME = r"[%@][\w.]+"
_TOUCH = re.compile(
    rf"(?P<what>load|store|atomicrmw|cmpxchg|asm) .*?ptr addrspace\(1\) (?P<at>{_NAME})(?P<more>.*)"
)


def audit(code: SimtCode) -> dict[str, tuple[int, int]]:
    """How many constant memories, and how many written ones, each entry point has.

    A memory is a slot of the parameter block that holds its address, or a word of the work area.

    Raises:
        AssertionError: an entry point loads something as constant that it writes.
    """
    layout = code.layout
    arrays = {slot for mem, slot in layout.pointers.items() if mem.kind == "array"}
    found = {}
    for body in re.findall(r"^define ptx_kernel .*?^}", code.text, re.M | re.S):
        name = re.search(r"@(\w+)\(", body)[1]
        constant, written = _memories(body)
        assert not constant & written, (name, constant & written)
        if any(slot in arrays for slot, _ in written):  # arrays may overlap each other
            assert not any(slot in arrays for slot, _ in constant), name
        found[name] = len(constant), len(written)
    return found


def _memories(body):
    """The memories that are loaded as constant, and those that are written."""
    slots, roots = {}, {}
    constant, written = set(), set()
    for line in body.splitlines():
        if found := re.match(r"  (%\w+) = getelementptr i64, ptr %params, i64 (\d+)", line):
            slots[found[1]] = int(found[2])
        elif found := re.match(r"  (%\w+) = load ptr addrspace\(1\), ptr (%\w+),", line):
            roots[found[1]] = {(slots[found[2]], None)}
        elif found := re.match(
            rf"  (%\w+) = getelementptr .*?, ptr addrspace\(1\) ({_NAME}), i64 (\S+)", line
        ):
            name, base, word = found.groups()
            of = roots[base]
            roots[name] = {(WORK, int(word))} if of == {(WORK, None)} else of
        elif found := re.match(
            rf"  (%\w+) = phi ptr addrspace\(1\) \[ ({_NAME}), .*?\[ ({_NAME}),", line
        ):
            roots[found[1]] = roots.get(found[2], set()) | roots.get(found[3], set())
        elif found := re.match(r"  (%\w+) = addrspacecast", line):
            roots[found[1]] = {("heap", None)}
        elif found := _TOUCH.search(line):
            of = roots[found["at"]]
            if found["what"] != "load":
                written |= of
            elif "!invariant.load" in line:
                constant |= of
    return constant, written
