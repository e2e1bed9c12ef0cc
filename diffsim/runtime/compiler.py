"""From Python source to an executable: the stages of compiling a kernel, in their order.

    source ── translate ──▶ IR ── prepare ──▶ IR ( ── differentiate ──▶ adjoint IR )
           ── lower ──▶ scalar IR ── generate ──▶ LLVM text ── machine_code ──▶ code ── link ──▶ Executable

Everything up to the prepared IR is the same for all backends; from `lower` on the backend has its say
(`runtime/backend.py`). `kernel.ir(after=...)`, `kernel.llvm()` and `kernel.ptx()` show the results of the
same stages.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from diffsim.backends.cuda.codegen import emit_ptx
from diffsim.backends.cuda.ptx import PtxError
from diffsim.errors import BackendError, DiffsimError, Span, shown
from diffsim.ir.nodes import Arg, Kernel, Mem
from diffsim.ir.print_format import Listing
from diffsim.ir.types import Type
from diffsim.lang.frontend import translate as frontend
from diffsim.lang.frontend.translate import Translation
from diffsim.lang.host.signatures import is_one_of, need_whole
from diffsim.lang.host.source import Source
from diffsim.lang.types.flattening import ResultForm
from diffsim.passes import pipeline
from diffsim.passes.autodiff import reverse
from diffsim.passes.forms.args_from_fields import load_args_from_fields
from diffsim.passes.forms.equal_values import merge_equal_values
from diffsim.passes.forms.root_squares import squares_without_roots
from diffsim.passes.forms.task_versions import NewVersion
from diffsim.passes.tangent import forward
from diffsim.runtime import kept_results
from diffsim.runtime.backend import Backend, Code, CodeRefused, open_backend
from diffsim.runtime.cache import disk_cache
from diffsim.runtime.executable import Executable
from diffsim.runtime.session import session


def translate(
    source: Source,
    bindings: dict[str, Any],
    args: tuple[Arg, ...],
    result: Type | ResultForm | None,
) -> Translation:
    """Translate Python source to IR; see `lang.frontend.translate`."""
    options = session.options
    return frontend.translate(
        source,
        bindings,
        args,
        result,
        default_fp=options.default_fp,
        default_ip=options.default_ip,
        debug=options.debug,
        strict=options.strict,
        stops=session.backend.stops,
    )


def prepare(kernel: Kernel, given: Mapping[Arg, Mem]) -> Kernel:
    """Bring translated IR to the form that is analyzed, differentiated and lowered.

    Args:
        kernel: the frontend's result.
        given: the arguments that are loaded from 0-D fields, which the launch passes in place of numbers.
    """
    # Before the passes: a load in place of a number is an operand like any other, so that simplification and
    # differentiation need no case for it.
    kernel = load_args_from_fields(kernel, given)
    return pipeline.run(kernel, pipeline.PREPARE, check=session.options.debug)


def differentiate(
    kernel: Kernel,
    *,
    strict: bool,
    detached: bool,
    in_place: bool,
    new_version: NewVersion | None,
    again: bool = False,
) -> reverse.Adjoint:
    """Make the adjoint of a prepared kernel, or load it; see `passes.autodiff.reverse`."""
    many_lanes = session.backend.many_lanes
    how = "adjoint", strict, detached, in_place, again, many_lanes
    kept: reverse.Adjoint | None = kept_results.find_kernel(kernel, *how)
    if kept is not None:
        return kept
    once = merge_equal_values(kernel)
    made = reverse.reverse(
        squares_without_roots(once) if again else once,
        strict=strict,
        detached=detached,
        in_place=in_place,
        new_version=new_version,
        again=again,
        many_lanes=many_lanes,
    )
    # The text of an error has numbers of lines in it, which change.
    if not any(c.perhaps for c in made.conditions):
        kept_results.keep_kernel(kernel, made, made.ir, *how)
    return made


def with_tangents(
    kernel: Kernel, *, width: int, detached: bool, varying: tuple[Arg, ...] = ()
) -> forward.Tangent:
    """Make a prepared kernel that computes tangents besides; see `passes.tangent.forward`."""
    return forward.differentiate(kernel, width=width, detached=detached, varying=varying)


def compile_kernel(kernel: Kernel, backend: Backend) -> Executable:
    """Compile a prepared kernel, or its adjoint, for a backend; or load what this led to before."""
    found = find_code(kernel, backend)
    if found is not None:
        with contextlib.suppress(CodeRefused):  # an entry that somebody has made up
            return backend.link(found.lowered, found.code, _loaded(found.key, found.image, backend))
    # Differentiation comes before: an adjoint is prepared IR, and takes the same way down.
    lowered, code = ahead.pop(kernel) if kernel in ahead else generate(kernel, backend)
    # The unlowered kernel is passed along for its source line, if the backend refuses the code.
    image = machine_code(kernel, code, backend)
    if backend.keeps_code:
        bare = copy.copy(code)
        bare.text = ""
        kept_results.keep(kernel, (lowered.replace(tasks=()), bare, _key(code, backend)), "code")
    return backend.link(lowered, code, image)


class KeptCode(NamedTuple):
    """A kernel's code, as an earlier process kept it.

    Attributes:
        lowered: the kernel in scalar IR, without its tasks.
        code: what `link` needs to know; without text.
        key: of the machine code in the disk cache.
        image: the machine code.
    """

    lowered: Kernel
    code: Code
    key: str
    image: bytes


def find_code(kernel: Kernel, backend: Backend) -> KeptCode | None:
    """Return what is kept of a kernel's code; None: nothing."""
    kept = kept_results.find(kernel, "code") if backend.keeps_code else None
    if kept is None:
        return None
    lowered, code, name = kept
    if session.cache is not None:
        image = session.cache.get(name)
    else:  # what is loaded needs no image
        image = b"" if _known_as(name) in backend.loaded.values else None
    return None if image is None else KeptCode(lowered, code, name, image)


ahead: dict[Kernel, tuple[Kernel, Code]] = {}
"""Lowered kernels and their text, of kernels that are about to be compiled (`ds.precompile`)."""


def generate(kernel: Kernel, backend: Backend) -> tuple[Kernel, Code]:
    """Lower a prepared kernel, or an adjoint, and generate the text for LLVM."""
    lowered = lower(kernel, backend)
    return lowered, backend.generate(lowered)


def is_kept(code: Code, backend: Backend) -> bool:
    """Return whether the disk cache has the machine code of a text."""
    return session.cache is not None and session.cache.get(_key(code, backend)) is not None


def lower(kernel: Kernel, backend: Backend) -> Kernel:
    """Bring prepared IR to the form that a backend generates code from: operations on scalars."""
    return pipeline.run(kernel, backend.lowering(), check=session.options.debug)


def machine_code(kernel: Kernel, code: Code, backend: Backend) -> Any:
    """Return loaded machine code: from memory, from the disk cache, or made now.

    Raises:
        BackendError: the backend's compiler refused the code.
    """
    if not code.text:
        return None  # the IR itself is run (arch=ds.python)
    store = session.cache
    # The text is the whole input of code generation, options and sizes included, so no list of dependencies
    # has to be kept complete.
    key = _key(code, backend)
    try:
        return backend.loaded.get(_known_as(key), lambda: _load(key, code, backend, store))
    except CodeRefused as problem:
        raise backend.refusal(kernel, str(problem)) from None


def _key(code: Code, backend: Backend) -> str:
    return disk_cache.key(*backend.code_key(code.text))


def _known_as(key: str) -> tuple[str, str]:
    """Return the key of loaded code: in another folder its entry has to be written, too."""
    store = session.cache
    return key, "" if store is None else str(store.folder)


def _loaded(key: str, image: bytes, backend: Backend) -> Any:
    """Return machine code of the cache, loaded once."""
    return backend.loaded.get(_known_as(key), lambda: backend.load(image))


def _load(key: str, code: Code, backend: Backend, store: disk_cache.DiskCache | None) -> Any:
    """Load machine code from the disk cache; where it is missing, assemble and keep it."""
    # A cache hit spares LLVM's optimizer, which takes most of the time of a first launch.
    kept = store.get(key) if store is not None else None
    if kept is not None:
        with contextlib.suppress(CodeRefused):  # an entry that somebody has made up
            return backend.load(kept)
    # Refused or missing: made anew, and stored in place of what was there.
    image = backend.assemble(code.text)
    loaded = backend.load(image)
    # Stored after it was loaded: code that cannot be loaded would be refused again in each process.
    if store is not None:  # only what could be loaded
        store.put(key, image)
    return loaded


# ---- what the stages made, to be looked at


def ir_after(kernel: Kernel, stage: str) -> Kernel:
    """Return the IR of a prepared kernel, or of an adjoint, after the stage of that name."""
    if is_one_of(stage, "simplify", "autodiff"):
        # Prepared IR is what both names mean: an adjoint is simplified when it is made.
        return kernel
    names = [name for name, _ in pipeline.LOWER]
    if not is_one_of(stage, *names):
        raise DiffsimError(
            f"there is no stage {shown(stage)}",
            Span.of_caller(),
            hint="the stages are frontend, simplify, autodiff, " + ", ".join(names),
        )
    return pipeline.run(kernel, pipeline.LOWER, stage)


def llvm_text(kernel: Kernel) -> str:
    """Return the LLVM text of a prepared kernel for the CPU, whatever the session's backend is."""
    # Code generation for the CPU needs no session of that backend.
    cpu = open_backend("cpu", 0)
    return cpu.generate(lower(kernel, cpu)).text


def ptx_text(kernel: Kernel, sm: int) -> str:
    """Return the PTX of a prepared kernel for NVIDIA GPUs of compute capability sm / 10; needs no GPU."""
    options = session.options
    try:
        return emit_ptx(
            pipeline.run(kernel, pipeline.lower_cuda(debug=options.debug)),
            sm,
            fast_math=options.fast_math,
            deterministic=options.deterministic,
            block_dim=options.default_gpu_block_dim,
        )
    except PtxError as problem:
        hint = "docs/gpu.md says what it takes"
        raise BackendError(f"{kernel.name} has no PTX: {problem}", Span.of_caller(), hint) from None


def ptx_of(kernel: Kernel, sm: int) -> str:
    """Return a kernel as PTX for a GPU of compute capability sm / 10."""
    need_whole(
        shown(sm) if sm is None else sm,
        "sm",
        "give the compute capability times ten, such as sm=80",
    )
    return Listing(ptx_text(kernel, sm))
