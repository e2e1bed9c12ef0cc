"""NVIDIA code: from LLVM text to PTX text, without a GPU or a CUDA driver.

``to_ptx`` optimises a module for one compute capability and emits PTX, which the driver compiles
for the GPU at hand. Kernels are functions with the ``ptx_kernel`` calling convention (or an
``nvvm.annotations`` entry). Mathematical functions are calls to ``__nv_*``, such as ``__nv_sinf``
or ``__nv_sin``: their bodies come from libdevice, a bitcode file of the CUDA toolkit that is linked
in only where a module declares such a function.

LLVM ends the whole process, with no exception, on most mathematical intrinsics for this target
(``llvm.sin.f64``, ``llvm.exp.f32``, ``llvm.pow``, ...), so they are refused before LLVM sees them.
These do work: sqrt, fabs, floor, ceil, trunc, rint, round, roundeven, nearbyint, minnum, maxnum,
minimum, maximum, copysign, fma, fmuladd, ldexp, frexp, canonicalize, ``frem``, f32 ``llvm.exp2``,
and, for f32 with the flag ``afn``, sin, cos and tanh (fast and inexact).

``assemble`` runs ptxas on the result, where there is one, for its report of registers and spills.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm

from diffsim import locks
from diffsim.backends.native.jit import dispose
from diffsim.errors import shown

TRIPLE = "nvptx64-nvidia-cuda"

TARGETS = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121)
"""The compute capabilities, times ten, that there is PTX for. LLVM ends the process on others."""

# Calls of these end the process inside LLVM, so they must be found in the text before it.
_FATAL = re.compile(
    r"call([^@\n]*)@llvm\."
    r"(a?sin|a?cos|a?tan|atan2|sinh|cosh|tanh|sincos|sincospi|exp|exp2|exp10|log|log2|log10"
    r"|pow|powi|modf|l?lround|l?lrint)\.([\w.]+)"
)
_APPROXIMATE = re.compile(r"\b(afn|fast)\b")
_DECLARED = re.compile(r"^\s*declare\b[^@\n]*@(__nv_\w+)", re.MULTILINE)
# What the CUDA driver itself provides to kernels.
_DEVICE_RUNTIME = frozenset({"vprintf", "malloc", "free", "__assertfail"})
# ptx78 is understood since CUDA 11.8, ptx81 (additions to vectors) since 12.1; newer GPUs have their own
# minimum, which LLVM picks.
_FEATURES = {90: "+ptx81"}
_LAST_SM_OF_FEATURES = 90

# LLVM forbids it after it has unrolled a loop; a loop of few iterations then waits for its loads in each.
_NO_UNROLLING = '\t.pragma "nounroll";\n'

_FLUSH_TO_ZERO_OFF = '!llvm.module.flags = !{!0}\n!0 = !{i32 4, !"nvvm-reflect-ftz", i32 0}\n'

_INSTALL = (
    "install the CUDA toolkit and set CUDA_HOME, or install NVIDIA's package nvidia-cuda-nvcc "
    "(CUDA 13: also nvidia-nvvm; CUDA 12: nvidia-cuda-nvcc-cu12) in this Python environment"
)

_init_lock = locks.lock()
_initialised = False


class PtxError(RuntimeError):
    """A module cannot become PTX, or a part of the CUDA toolkit is missing or refuses it."""


def to_ptx(text: str, sm: int = 80, libdevice: Path | None = None) -> str:
    """Compile LLVM IR text to PTX.

    Args:
        text: a module with opaque pointers; its triple and data layout are replaced. A module flag
            ``nvvm-reflect-ftz`` of its own wins over the default of 0 (keep subnormal numbers).
        sm: compute capability, ten times the version: 80 for 8.0.
        libdevice: the bitcode file; None to look for it with ``find_libdevice`` if needed.

    Raises:
        PtxError: bad text, an intrinsic or function that has no NVIDIA code, no libdevice, or no such
            compute capability.
    """
    if sm not in list(TARGETS):
        raise PtxError(
            f"there is no PTX for sm={shown(sm)}: choose one of {', '.join(map(str, TARGETS))}"
        )
    _refuse_fatal_intrinsics(text)
    _initialise()
    machine = _target_machine(sm)
    layout = str(machine.target_data)
    # Closed here in this order: the garbage collector could close the context before its modules.
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(llvm.create_context())
        module = stack.enter_context(_parse(text, layout, context))
        if _DECLARED.search(text):
            _link_libdevice(module, libdevice or find_libdevice(), layout, context)
        # libdevice asks for this flag with __nvvm_reflect: said explicitly, not left to a default.
        if '"nvvm-reflect-ftz"' not in text:
            with _parse(_FLUSH_TO_ZERO_OFF, layout, context) as flag:
                module.link_in(flag)
        options = llvm.create_pipeline_tuning_options(3)
        options.loop_vectorization = False  # a GPU thread is a lane already
        options.slp_vectorization = True  # pairs of loads and stores
        builder = stack.enter_context(llvm.create_pass_builder(machine, options))
        # Dead code first, or all of libdevice would be optimised before it is dropped.
        with llvm.create_new_module_pass_manager() as passes:
            passes.add_global_dead_code_eliminate_pass()
            passes.run(module, builder)
        passes = builder.getModulePassManager()
        stack.callback(dispose, passes)
        passes.run(module, builder)
        # After the passes: what libdevice's unused code would have called is gone by then.
        _refuse_unknown_functions(module)
        return str(machine.emit_assembly(module)).replace(_NO_UNROLLING, "")


def find_libdevice() -> Path:
    """Find the newest libdevice bitcode of the first CUDA installation that has one.

    Raises:
        PtxError: there is none; the message says what to install.
    """
    for root in _toolkits():
        for folder in (root / "nvvm" / "libdevice", root / "libdevice"):
            found = sorted(folder.glob("libdevice*.bc"))
            if found:
                return found[-1]
    raise PtxError(f"libdevice, NVIDIA's mathematical library, was not found: {_INSTALL}")


def find_ptxas() -> Path | None:
    """Find NVIDIA's assembler on PATH or in a CUDA installation; None: there is none."""
    found = shutil.which("ptxas")
    if found:
        return Path(found)
    name = "ptxas.exe" if sys.platform == "win32" else "ptxas"
    return next((p for root in _toolkits() if (p := root / "bin" / name).is_file()), None)


def assemble(ptx: str, sm: int) -> str | None:
    """Compile PTX for one GPU generation with ptxas.

    Args:
        ptx: the text.
        sm: compute capability, ten times the version.

    Returns:
        Its report of registers, shared memory and spills; None where there is no ptxas.

    Raises:
        PtxError: ptxas refused the text; the message is its own.
    """
    program = find_ptxas()
    if program is None:
        return None
    with tempfile.TemporaryDirectory(prefix="diffsim-ptx-") as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        done = subprocess.run(
            [program, f"-arch=sm_{sm}", "-v", source, "-o", Path(folder, "kernel.cubin")],
            capture_output=True,
            text=True,
            check=False,
        )
    report = done.stdout + done.stderr
    if done.returncode != 0:
        raise PtxError(f"ptxas refused the code for sm_{sm}:\n{report.strip()}")
    return report


def _initialise() -> None:
    global _initialised
    with _init_lock:
        if not _initialised:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            _initialised = True


def _target_machine(sm: int) -> llvm.TargetMachine:
    features = _FEATURES.get(sm, "+ptx78") if sm <= _LAST_SM_OF_FEATURES else ""
    return llvm.Target.from_triple(TRIPLE).create_target_machine(
        cpu=f"sm_{sm}", features=features, opt=3
    )


def _refuse_fatal_intrinsics(text: str) -> None:
    for match in _FATAL.finditer(text):
        flags, name, types = match.groups()
        single = types == "f32"
        # f32 exp2 has an instruction (ex2), and so have approximate sin, cos and tanh.
        if single and (
            name == "exp2" or (name in ("sin", "cos", "tanh") and _APPROXIMATE.search(flags))
        ):
            continue
        line = text.count("\n", 0, match.start()) + 1
        raise PtxError(
            f"line {line}: llvm.{name}.{types} has no NVIDIA code; call libdevice's "
            f"__nv_{name}{'f' if single else ''}"
        )


def _refuse_unknown_functions(module: llvm.ModuleRef) -> None:
    unknown = sorted(
        function.name
        for function in module.functions
        if function.is_declaration
        and not function.name.startswith("llvm.")
        and function.name not in _DEVICE_RUNTIME
    )
    if unknown:
        raise PtxError(f"no NVIDIA code for: {', '.join(unknown)}")


def _parse(text: str, layout: str, context: llvm.ContextRef) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text, context)
    except RuntimeError as error:
        raise PtxError(str(error)) from None
    module.triple = TRIPLE
    module.data_layout = layout
    try:
        module.verify()
    except RuntimeError as error:
        module.close()
        raise PtxError(str(error)) from None
    return module


@functools.cache
def _bitcode(path: Path) -> bytes:
    # Read once: half a megabyte that every kernel with a mathematical function needs.
    return path.read_bytes()


def _link_libdevice(
    module: llvm.ModuleRef, path: Path, layout: str, context: llvm.ContextRef
) -> None:
    try:
        library = llvm.parse_bitcode(_bitcode(path), context)
    except (OSError, RuntimeError) as error:
        raise PtxError(f"cannot read libdevice: {error}") from None
    with library:
        # Its own triple and layout are older spellings of the same; equal ones link silently.
        library.triple = TRIPLE
        library.data_layout = layout
        # Taken before linking, which empties the library.
        names = [function.name for function in library.functions if not function.is_declaration]
        module.link_in(library)
    for name in names:
        # Nobody else calls them: the optimiser may inline them and drop the rest.
        module.get_function(name).linkage = "internal"


def _toolkits() -> Iterator[Path]:
    """Yield folders where a CUDA toolkit, or a part of one, may be; the user's own choice first."""
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    for entry in sys.path:
        # NVIDIA's Python packages: nvidia/cuda_nvcc, nvidia/cu13, ...
        yield from sorted(Path(entry, "nvidia").glob("*"), reverse=True)
    for program in ("nvcc", "ptxas"):
        found = shutil.which(program)
        if found:
            yield Path(found).resolve().parent.parent
    if sys.platform == "win32":
        programs = os.environ.get("PROGRAMFILES", r"C:\Program Files")
        yield from sorted(
            Path(programs, "NVIDIA GPU Computing Toolkit", "CUDA").glob("v*"), reverse=True
        )
        yield Path(sys.prefix, "Library")
    else:
        yield Path("/usr/local/cuda")
        yield from sorted(Path("/usr/local").glob("cuda-*"), reverse=True)
        yield from map(Path, ("/opt/cuda", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit"))
    yield Path(sys.prefix)
