"""The CPU compiler: right code, errors instead of crashes, memory given back, vector maths."""

import ctypes
import gc
import math
import os
import re

import llvmlite.binding as llvm
import pytest

from diffsim.backends.native import jit as jit_module
from diffsim.backends.native.jit import VECTOR_MATH, Jit, LLVMError
from diffsim.errors import OptionError
from diffsim.runtime.options import vector_bits_of_environment

ADD = "define i64 @add(i64 %a, i64 %b) nounwind {\n  %c = add i64 %a, %b\n  ret i64 %c\n}\n"


def map_kernel(jit: Jit, name: str) -> str:
    """y[i] = f(x[i], x[i], ...) for the libm function `name`."""
    kind = "double" if name in VECTOR_MATH else "float"
    arity = VECTOR_MATH.get(name) or VECTOR_MATH[name[:-1]]
    return (
        jit.declare_math([name])
        + f"""
define void @map(ptr noalias %x, ptr noalias %y, i64 %n) nounwind {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr {kind}, ptr %x, i64 %i
  %q = getelementptr {kind}, ptr %y, i64 %i
  %v = load {kind}, ptr %p
  %f = call {kind} @{name}({", ".join([f"{kind} %v"] * arity)})
  store {kind} %f, ptr %q
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
    )


def add_function(jit: Jit, obj: bytes) -> int:
    library = jit.load(obj)
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(library.address("add"))(
        20, 22
    )


def test_compile_and_load(jit: Jit) -> None:
    assert add_function(jit, jit.compile(ADD)) == 42


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_level_works(level: int) -> None:
    jit = Jit(level)
    assert add_function(jit, jit.compile(ADD)) == 42


def test_objects_are_reproducible_and_portable_between_compilers(jit: Jit) -> None:
    other = Jit()
    assert other.fingerprint == jit.fingerprint
    assert other.compile(ADD) == jit.compile(ADD)
    assert add_function(other, jit.compile(ADD)) == 42
    assert Jit(1).fingerprint != jit.fingerprint


def test_code_without_avx512() -> None:
    """What a machine without it would run, under a key of its own."""
    wide, narrow = Jit(), Jit(vector_bits=256)
    text = map_kernel(narrow, "expf")
    assert "<16 x float>" not in text + narrow.optimized(text)
    assert narrow.vector_bits <= 256
    assert narrow.vector_registers <= wide.vector_registers
    assert (narrow.fingerprint == wide.fingerprint) == (wide.vector_bits <= 256)
    assert add_function(narrow, narrow.compile(ADD)) == 42


def test_the_width_that_the_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, bits in (("", 512), ("512", 512), (" 256 ", 256)):
        monkeypatch.setenv("DIFFSIM_VECTOR_BITS", text)
        assert vector_bits_of_environment() == bits
    monkeypatch.setenv("DIFFSIM_VECTOR_BITS", "128")
    with pytest.raises(OptionError, match="variable DIFFSIM_VECTOR_BITS cannot be '128'"):
        vector_bits_of_environment()


def test_libraries_have_name_spaces_of_their_own(jit: Jit) -> None:
    one = jit.load(jit.compile(ADD))
    two = jit.load(jit.compile(ADD.replace("add i64", "sub i64")))
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    assert call(one.address("add"))(50, 8) == 58
    assert call(two.address("add"))(50, 8) == 42


def test_registered_symbols_are_found(jit: Jit) -> None:
    callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: 2 * x)
    llvm.add_symbol("test_jit_twice", ctypes.cast(callback, ctypes.c_void_p).value)
    library = jit.load(
        jit.compile("""
declare i64 @test_jit_twice(i64)
define i64 @f(i64 %x) { %y = call i64 @test_jit_twice(i64 %x) ret i64 %y }""")
    )
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address("f"))(21) == 42


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("define i64 @f() { ret i64 }", "expected value token"),
        ("define i64 @f() { ret i64 %missing }", "undefined value '%missing'"),
        (
            "define i64 @f(i64 %x) {\n br label %b\nb:\n %y = phi i64 [ 0, %b ]\n ret i64 %y }",
            "PHI",
        ),
    ],
)
def test_bad_text_is_refused(jit: Jit, text: str, message: str) -> None:
    with pytest.raises(LLVMError, match=message):
        jit.compile(text)


def test_missing_symbols_are_named(jit: Jit) -> None:
    obj = jit.compile("declare void @no_such_symbol()\ndefine void @f() { call void "
                      "@no_such_symbol() ret void }")  # fmt: skip
    with pytest.raises(LLVMError, match="no_such_symbol"):
        jit.load(obj)
    with pytest.raises(LLVMError, match="no symbol 'nothing'"):
        jit.load(jit.compile(ADD)).address("nothing")


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_damaged_objects_are_refused(jit: Jit, cut: int) -> None:
    with pytest.raises(LLVMError):
        jit.load(jit.compile(ADD)[:cut])


def test_zeros_take_no_room_in_objects(jit: Jit) -> None:
    """Memory that belongs to the code is not in the file: reading it there would end the process."""
    text = """@zeros = internal global [67108864 x float] zeroinitializer, align 64
    define float @swap(i64 %k, float %v) {
      %place = getelementptr float, ptr @zeros, i64 %k
      %old = load float, ptr %place
      store float %v, ptr %place
      ret float %old
    }"""
    code = jit.compile(text)
    assert len(code) < 10_000
    library = jit.load(code)
    swap = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float)(library.address("swap"))
    assert [swap(67108863, 2.0), swap(67108863, 3.0), swap(0, 1.0)] == [0.0, 2.0, 0.0]


def test_loops_are_vectorised(jit: Jit) -> None:
    text = map_kernel(jit, "logf").replace("call float @logf(float %v)", "fadd float %v, 1.0")
    assert re.search(r"<\d+ x float>", jit.optimized(text))
    assert not re.search(r"fadd <\d+ x float>", Jit(1).optimized(text))


def test_code_of_the_runtime_library_is_compiled_with_few_passes(jit: Jit) -> None:
    """No loop is made of vectors, and what must be inlined is (`relax` has no code of its own)."""
    text = map_kernel(jit, "logf").replace(
        "call float @logf(float %v)", "call float @more(float %v)"
    )
    text += """
define internal float @more(float %v) alwaysinline nounwind {
  %sum = fadd float %v, 1.0
  ret float %sum
}
"""
    quick, whole = jit.compile(text, as_runtime=True), jit.compile(text)
    assert len(quick) < len(whole)
    assert b"more" not in quick
    assert jit.load(quick).address("map")


def test_functions_too_long_for_the_vectorizers(jit: Jit, monkeypatch: pytest.MonkeyPatch) -> None:
    text = map_kernel(jit, "logf").replace("call float @logf(float %v)", "fadd float %v, 1.0")
    function = text[text.index("define ") :].count("\n")
    monkeypatch.setattr(jit_module, "_LONGEST", function)
    assert re.search(r"<\d+ x float>", jit.optimized("; a comment\n" * function + text))
    monkeypatch.setattr(jit_module, "_LONGEST", function - 1)
    assert not re.search(r"fadd <\d+ x float>", jit.optimized(text))


def test_functions_too_long_to_look_for_vectors_in_blocks(
    jit: Jit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops of theirs are still made of vectors."""
    lines = ["define void @f(ptr noalias %x, ptr noalias %y) nounwind {"]
    for k in range(4):
        lines += [
            f"  %p{k} = getelementptr float, ptr %x, i64 {k}",
            f"  %q{k} = getelementptr float, ptr %y, i64 {k}",
            f"  %v{k} = load float, ptr %p{k}",
            f"  %w{k} = fadd float %v{k}, 1.0",
            f"  store float %w{k}, ptr %q{k}",
        ]
    block = "\n".join([*lines, "  ret void", "}", ""])
    loop = map_kernel(jit, "expf").replace("call float @expf(float %v)", "fadd float %v, 1.0")
    monkeypatch.setattr(jit_module, "_LONGEST_BLOCKS", 23)
    assert "fadd <4 x float>" in jit.optimized(block)
    monkeypatch.setattr(jit_module, "_LONGEST_BLOCKS", 10)
    assert "fadd float" in jit.optimized(block)
    assert "x float>" not in jit.optimized(block)
    assert re.search(r"fadd <\d+ x float>", jit.optimized(loop))


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_libraries_give_their_memory_back(jit: Jit) -> None:
    def code_bytes() -> int:
        with open("/proc/self/maps") as file:
            rows = [line.split() for line in file]
        spans = [row[0].split("-") for row in rows if "x" in row[1] and len(row) == 5]
        return sum(int(end, 16) - int(start, 16) for start, end in spans)

    obj = jit.compile(ADD)
    jit.load(obj).address("add")
    gc.collect()
    before = code_bytes()
    held = [jit.load(obj) for _ in range(100)]
    addresses = {library.address("add") for library in held}
    assert len(addresses) == 100
    assert code_bytes() >= before + 100 * 4096
    del held
    gc.collect()
    assert code_bytes() <= before


def test_declare_math_without_libmvec_is_plain(jit: Jit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "vector_math", False)
    text = jit.declare_math(["expf", "pow", "expf"])
    assert text.splitlines() == [
        "declare float @expf(float) nounwind willreturn memory(none)",
        "declare double @pow(double, double) nounwind willreturn memory(none)",
    ]


@pytest.mark.parametrize("name", ["sin", "cosf", "exp", "expf", "log", "logf", "powf", "tanhf"])
def test_vector_math(jit: Jit, name: str) -> None:
    text = map_kernel(jit, name)
    single = name not in VECTOR_MATH
    if jit.vector_math and llvm.address_of_symbol("_ZGVbN4v_tanhf"):
        found = "vector_exp" if name.startswith("exp") else rf"_ZGV\w+_{name}"
        assert re.search(rf"call <\d+ x \w+> @{found}\w*\(", jit.optimized(text))
    n = 83  # not a multiple of any vector width
    array = (ctypes.c_float if single else ctypes.c_double) * n
    x = array(*[0.01 + 3.0 * i / n for i in range(n)])
    y = array()
    library = jit.load(jit.compile(text))
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    run(library.address("map"))(ctypes.addressof(x), ctypes.addressof(y), n)
    reference = getattr(math, name[:-1] if single else name)
    arity = VECTOR_MATH[name[:-1] if single else name]
    for value, result in zip(x, y, strict=True):
        expected = reference(*[value] * arity)
        assert result == pytest.approx(expected, rel=6e-7 if single else 2e-15, abs=1e-15)


def test_loops_with_many_gathered_elements_are_vectorised(jit: Jit) -> None:
    """As in a lane with eight tangents, which gathers them from a grid."""
    lines = []
    for k in range(300):
        lines += [
            f"  %at{k} = add nsw i64 %first, {1000 * k}",
            f"  %p{k} = getelementptr inbounds float, ptr %y, i64 %at{k}",
            f"  %v{k} = load float, ptr %p{k}, !alias.scope !2, !noalias !5",
            f"  %s{k + 1} = fadd float %s{k}, %v{k}",
        ]
    # A module that has accesses of this name may gather on every CPU, those where gathers are slow, too.
    text = f"""
; @llvm.masked.gather
define void @f(ptr %params, i64 %n) nounwind {{
  %y = load ptr, ptr %params, !invariant.load !6
  %second = getelementptr ptr, ptr %params, i64 1
  %z = load ptr, ptr %second, !invariant.load !6
  br label %lane
lane:
  %i = phi i64 [ 0, %0 ], [ %next, %lane ]
  %q = getelementptr inbounds float, ptr %z, i64 %i
  %s0 = load float, ptr %q, !alias.scope !4, !noalias !3
  %whole = fptosi float %s0 to i32
  %first = sext i32 %whole to i64
{chr(10).join(lines)}
  store float %s300, ptr %q, !alias.scope !4, !noalias !3
  %next = add nsw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %lane, label %end
end:
  ret void
}}
!0 = distinct !{{!0}}
!1 = distinct !{{!1, !0}}
!7 = distinct !{{!7, !0}}
!2 = !{{!1}}
!3 = !{{!1}}
!4 = !{{!7}}
!5 = !{{!7}}
!6 = !{{}}
"""
    assert re.search(r"fadd <\d+ x float>", jit.optimized(text))
