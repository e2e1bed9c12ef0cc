"""PTX: kernels come out, what would end the process is refused, the toolkit is found."""

import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from diffsim.backends.cuda import ptx as module
from diffsim.backends.cuda.ptx import PtxError, assemble, find_libdevice, find_ptxas, to_ptx

try:
    LIBDEVICE: Path | None = find_libdevice()
except PtxError:
    LIBDEVICE = None

needs_libdevice = pytest.mark.skipif(LIBDEVICE is None, reason="no libdevice here")
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas here")

SAXPY = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define ptx_kernel void @saxpy(ptr addrspace(1) %x, ptr addrspace(1) %y, float %a) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %i = sext i32 %t to i64
  %p = getelementptr float, ptr addrspace(1) %x, i64 %i
  %q = getelementptr float, ptr addrspace(1) %y, i64 %i
  %u = load float, ptr addrspace(1) %p
  %v = load float, ptr addrspace(1) %q
  %w = fmul contract float %a, %u
  %r = fadd contract float %w, %v
  store float %r, ptr addrspace(1) %q
  ret void
}
"""


def unary(call: str, declaration: str, kind: str = "float") -> str:
    return f"""
{declaration}
define ptx_kernel void @k(ptr addrspace(1) %p) {{
  %v = load {kind}, ptr addrspace(1) %p
  %r = {call}
  store {kind} %r, ptr addrspace(1) %p
  ret void
}}
"""


@pytest.mark.parametrize("sm", [70, 80, 90, 100])
def test_kernel_without_libdevice(sm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_libdevice", lambda: pytest.fail("libdevice was asked for"))
    ptx = to_ptx(SAXPY, sm)
    assert f".target sm_{sm}" in ptx
    assert ".visible .entry saxpy(" in ptx
    assert "fma.rn.f32" in ptx


@pytest.mark.parametrize("sm", module.TARGETS)
def test_every_target(sm: int) -> None:
    assert f".target sm_{sm}\n" in to_ptx("define ptx_kernel void @k() {\n  ret void\n}\n", sm)


@pytest.mark.parametrize("sm", [0, 30, 88, 91, 122, 1000, "90"])
def test_what_llvm_has_no_code_for_is_refused(sm: int) -> None:
    """It would end the process."""
    with pytest.raises(PtxError, match=f"no PTX for sm={sm!r}: choose one of 50, .* 90, "):
        to_ptx(SAXPY, sm)


def test_annotations_make_kernels() -> None:
    text = SAXPY.replace("ptx_kernel ", "") + (
        '!nvvm.annotations = !{!0}\n!0 = !{ptr @saxpy, !"kernel", i32 1}\n'
    )
    assert ".visible .entry saxpy(" in to_ptx(text)


@needs_libdevice
@pytest.mark.parametrize(
    ("name", "kind"), [("sinf", "float"), ("sin", "double"), ("pow", "double")]
)
def test_libdevice_is_linked(name: str, kind: str) -> None:
    arity = 2 if name == "pow" else 1
    arguments = ", ".join([f"{kind} %v"] * arity)
    types = ", ".join([kind] * arity)
    ptx = to_ptx(
        unary(
            f"call {kind} @__nv_{name}({arguments})", f"declare {kind} @__nv_{name}({types})", kind
        )
    )
    assert ptx.count(".visible .entry") == 1
    # Everything that the kernel does not use is gone, and nothing is left to be linked.
    assert ".extern" not in ptx
    assert ".visible .func" not in ptx
    assert len(ptx) < 60_000


@needs_libdevice
def test_flush_to_zero_is_off_unless_asked_for() -> None:
    text = unary("call float @__nv_expf(float %v)", "declare float @__nv_expf(float)")
    assert ".ftz" not in re.sub(r"ex2\.approx\.ftz", "", to_ptx(text))
    asked = text + '!llvm.module.flags = !{!0}\n!0 = !{i32 4, !"nvvm-reflect-ftz", i32 1}\n'
    assert "fma.rn.ftz.f32" in to_ptx(asked)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("call float @llvm.sin.f32(float %v)", "float"),
        ("call afn double @llvm.sin.f64(double %v)", "double"),
        ("call fast float @llvm.exp.f32(float %v)", "float"),
        ("call double @llvm.log.f64(double %v)", "double"),
        ("tail call float @llvm.tan.f32(float %v)", "float"),
    ],
)
def test_intrinsics_that_end_the_process_are_refused(call: str, kind: str) -> None:
    name = re.search(r"@(llvm[\w.]+)", call)
    assert name is not None
    with pytest.raises(PtxError, match=rf"line 5: {name[1]} has no NVIDIA code"):
        to_ptx(unary(call, f"declare {kind} @{name[1]}({kind})", kind))


@pytest.mark.parametrize(
    "op",
    ["sqrt", "fabs", "floor", "ceil", "trunc", "rint", "round", "roundeven", "nearbyint", "exp2"],
)
def test_allowed_intrinsics(op: str) -> None:
    ptx = to_ptx(
        unary(f"call float @llvm.{op}.f32(float %v)", f"declare float @llvm.{op}.f32(float)")
    )
    assert ".visible .entry k(" in ptx


@pytest.mark.parametrize("op", ["sin", "cos", "tanh"])
def test_approximate_intrinsics(op: str) -> None:
    ptx = to_ptx(
        unary(f"call afn float @llvm.{op}.f32(float %v)", f"declare float @llvm.{op}.f32(float)")
    )
    assert f"{op}.approx.f32" in ptx


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("define ptx_kernel void @k() { ret i32 }", "expected value token"),
        (unary("call float @expf(float %v)", "declare float @expf(float)"), "no NVIDIA code.*expf"),
    ],
)
def test_bad_modules_are_refused(text: str, message: str) -> None:
    with pytest.raises(PtxError, match=message):
        to_ptx(text)


@needs_libdevice
def test_unknown_libdevice_function_is_refused() -> None:
    with pytest.raises(PtxError, match="__nv_nothing"):
        to_ptx(unary("call float @__nv_nothing(float %v)", "declare float @__nv_nothing(float)"))


def test_damaged_libdevice_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "libdevice.10.bc"
    damaged.write_bytes(b"BC\xc0\xdejunk")
    with pytest.raises(PtxError, match="cannot read libdevice"):
        to_ptx(
            unary("call float @__nv_sinf(float %v)", "declare float @__nv_sinf(float)"),
            libdevice=damaged,
        )


def test_missing_libdevice_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_toolkits", lambda: iter([tmp_path]))
    with pytest.raises(PtxError, match="install the CUDA toolkit and set CUDA_HOME"):
        to_ptx(unary("call float @__nv_sinf(float %v)", "declare float @__nv_sinf(float)"))


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"])
def test_environment_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    file = tmp_path / "nvvm" / "libdevice" / "libdevice.10.bc"
    file.parent.mkdir(parents=True)
    file.touch()
    assert find_libdevice() == file


def test_python_packages_are_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "nvidia" / "cuda_nvcc" / "nvvm" / "libdevice" / "libdevice.10.bc"
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert find_libdevice() == file


@needs_ptxas
@pytest.mark.parametrize("sm", [80, 90])
def test_assemble_reports_registers(sm: int) -> None:
    report = assemble(to_ptx(SAXPY, sm), sm)
    assert report is not None
    assert re.search(r"Used \d+ registers", report)


@needs_ptxas
def test_assemble_passes_the_error_on() -> None:
    with pytest.raises(PtxError, match="ptxas refused the code for sm_80"):
        assemble(".version 7.8\n.target sm_80\nnonsense\n", 80)


@needs_ptxas
@needs_libdevice
def test_libdevice_code_assembles() -> None:
    text = unary("call double @__nv_pow(double %v, double %v)",
                 "declare double @__nv_pow(double, double)", "double")  # fmt: skip
    report = assemble(to_ptx(text, 80), 80)
    assert report is not None
    assert "0 bytes spill stores" in report


def test_without_ptxas_there_is_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    monkeypatch.setattr(module, "_toolkits", lambda: iter(()))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was run"))
    assert assemble("", 80) is None


def test_what_all_gpus_share_names_no_kind_of_gpu():
    """`backends/simt` asks its target for what has a name of NVIDIA's; comments may give it as an example."""
    for file in sorted((Path(module.__file__).parents[1] / "simt").glob("*.py")):
        with file.open("rb") as opened:
            tokens = [t for t in tokenize.tokenize(opened.readline) if t.type != tokenize.COMMENT]
        text = " ".join(t.string for t in tokens).replace("backends/cuda/target.py", "")
        text = text.replace("for NVIDIA.", "")
        found = re.findall(r"nvvm|nvptx|\bptx\b|cuda|nvidia|libdevice|addrspace\(\d", text, re.I)
        assert found == [], file.name
