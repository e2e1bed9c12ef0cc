"""The CPU compiler: LLVM text in, machine code in this process out.

``Jit.compile`` turns LLVM IR text into the bytes of an object file (which the caller may keep on
disk under a key made with ``Jit.fingerprint``); ``Jit.load`` links such bytes into the process.
Modules need no target triple and no data layout: the host's are filled in. Each library gets a
name space of its own, so two kernels may both define ``task``; what a library does not define is
looked up among the symbols given to ``llvmlite.binding.add_symbol``, in ``builtins.ll`` and in the
process itself, and a missing one raises ``LLVMError`` instead of ending the process. (LLJIT does not
see all of these by itself: ``compile`` appends the names of what a module needs to the object file,
where object readers do not look, and ``load`` hands their addresses over. LLVM makes calls of its own,
such as those of ``ldexp`` and ``__powidf2``, so the names are those of the finished object.)

Where LLVM fails in itself (``crash_guard.py``), the module is compiled again with less of its optimiser.

Loading costs about 0.3 ms (LLJIT with JITLink; an MCJIT engine for each object costs 0.65 ms and
ends the process on an undefined symbol). Mark generated functions ``nounwind``: the loader then
has no unwind tables to register.

Vector mathematics
    glibc's libmvec holds vector forms of the libm functions (``VECTOR_MATH``), within 4 ulp. The
    loop vectoriser takes them when the *declaration* of the scalar function names the variants and
    something keeps the variants' own declarations alive; call sites are plain calls. For ``logf``
    on a machine with AVX-512 the module needs exactly::

        declare float @logf(float) nounwind willreturn memory(none) "vector-function-abi-variant"=
            "_ZGVbN4v_logf,_ZGVdN8v_logf,_ZGVeN16v_logf"
        declare <4 x float> @_ZGVbN4v_logf(<4 x float>)
        declare <8 x float> @_ZGVdN8v_logf(<8 x float>)
        declare <16 x float> @_ZGVeN16v_logf(<16 x float>)
        @llvm.compiler.used = appending global [3 x ptr] [ptr @_ZGVbN4v_logf, ptr @_ZGVdN8v_logf,
            ptr @_ZGVeN16v_logf], section "llvm.metadata"

    ``exp`` has forms of its own (``exponential.py``), defined in the module in place of declarations.
    Those of sin and cos (``trigonometric.py``) are for lanes alone, which have them inlined: the
    vectorizer takes libmvec's.

    The letter is the instruction set (b SSE, c AVX, d AVX2, e AVX-512), the number the lanes (half
    as many for ``exp``), one ``v`` for each argument. ``memory(none)`` is essential, and a variant
    the CPU lacks must not be named. ``Jit.declare_math`` writes this text, or bare declarations
    where there is no libmvec. The last elements of a loop are done by the scalar function, so an
    element's last bits can depend on where its chunk begins.

Vector width
    Some Intel CPUs make LLVM prefer 256-bit vectors; the feature ``-prefer-256-bit`` undoes that.
    Measured on a Zen 5 core, 512 against 256 bits: ``expf`` over 1M f32 0.19 against 0.31 ms, saxpy
    (bound by memory) the same. So it is on for every CPU with AVX-512, and generated text needs no
    ``prefer-vector-width`` attribute.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import struct
import sys
from collections.abc import Iterable, Iterator
from importlib import resources
from itertools import count
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from diffsim import locks
from diffsim.backends.native import exponential
from diffsim.backends.native.crash_guard import Crash, Guard
from diffsim.errors import warn

VECTOR_MATH: dict[str, int] = {
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh"), 1),
    **dict.fromkeys(("erf", "erfc", "exp", "exp10", "exp2", "expm1", "log", "log10", "log1p"), 1),
    **dict.fromkeys(("log2", "sin", "sinh", "tan", "tanh"), 1),
    **dict.fromkeys(("atan2", "hypot", "pow"), 2),
}
"""Functions libmvec may have, by their f64 name (f32 adds an ``f``), and their argument counts.

sin, cos, exp, log and pow are there since glibc 2.22, the rest since 2.35.
"""
_OWN_FORMS = ("exp", "expf")
"""Functions whose vector forms are in the module itself (`exponential.py`)."""
MATH: dict[str, int] = {
    **VECTOR_MATH,
    **dict.fromkeys(("fdim", "fmod", "nextafter", "remainder"), 2),
    **dict.fromkeys(("j0", "j1", "lgamma", "logb", "tgamma", "y0", "y1"), 1),
}
"""Functions of the C library that kernels may call: all of numbers alone."""

_LONGEST = 12_000
"""Lines of the longest function for which LLVM's vectorizers run.

The time that they take grows faster than the square of a block's length: minutes for some hundred unrolled
iterations of a loop over vectors.
"""

_LONGEST_BLOCKS = 1_000
"""Lines of the longest function for which LLVM's SLP vectorizer runs.

It takes longer than all other passes together (0.7 s of 1 s for functions of a 3 x 3 svd), and these ran no
faster for it. Shorter kernels do: two-dimensional MPM.
"""

_RUNTIME = -1
"""The level of code that belongs to the run-time library: functions that wait and call, and compute nothing.

A process without a cache compiles them before its first launch. A few passes, and the code generator that
LLVM has for quick builds, take 20 ms for the thread pool, where O3 takes 140; launches take no longer for it.
"""
_RUNTIME_PASSES = ("always_inliner", "sroa")

_OPTIONS = (
    "-alias-set-saturation-threshold=4000",
    "-vectorize-scev-check-threshold=128",
    "-post-RA-scheduler=false",
    "-dag-maps-huge-region=400",
    "-memdep-block-scan-limit=40",
    "-dse-memoryssa-scanlimit=60",
    "-dse-memoryssa-walklimit=40",
)
"""Options of LLVM, for the whole process.

The loop vectorizer takes all accesses above 250 for one set that may overlap, whatever their scopes say, and
gives up above 16 checks at run time. A lane that computes eight tangents has more of both, and took five
times as long for it.

The scheduler that runs behind the register allocator takes time as the square of a block's length, three
fifths of all for an unrolled layer of 16 x 16, and processors that reorder instructions themselves gain
nothing by it. The one before it compares all accesses to memory of a block, 1,000 by default, with one
another. And for each load GVN looks through 100 instructions for what has loaded or stored its element, which
diffsim's own passes have found before (`scalar_replacement.py`): 40 are enough. So is a shorter
search for stores that later ones overwrite: it finds the same, and took up to two fifths of the passes' time.
"""

# Behind the object file: the length of the list of imported names, and a magic number that tells a
# truncated or foreign file. Object readers ignore what follows the sections.
_TRAILER = struct.Struct("<Q8s")
_TRAILER_MAGIC = b"dsimport"
_SYMBOL = struct.Struct("<IBBHQQ")  # of an ELF64 file: name, info, other, section, value, size
_BUILTINS = ("__powidf2", "__powisf2", "__extendhfsf2", "__truncsfhf2")
"""The functions of ``builtins.ll``."""

_init_lock = locks.lock()
_initialised = False
# A fork while another thread is inside LLVM would leave this lock held in the child for ever.
locks.finish_before_fork(lambda: llvm.ffi.lib._lock._lock)  # what every call of llvmlite holds
_has_vector_math = False


def _longest(text: str) -> int:
    """Return the number of lines of the longest function of a module."""
    _, *functions = f"\n{text}".split("\ndefine ")
    return max((f.count("\n") for f in functions), default=0)


class LLVMError(RuntimeError):
    """LLVM refused a module: it does not parse or verify, or a symbol it needs is missing."""


def _initialise() -> bool:
    """Initialize LLVM for the host, once; return whether libmvec is there."""
    global _initialised, _has_vector_math
    with _init_lock:
        if not _initialised:
            for option in _OPTIONS:
                llvm.set_option("", option)
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            llvm.initialize_native_asmparser()
            if sys.platform == "linux":
                # Python may have been linked without libm, or have it in a local scope only.
                _load_shared("libm.so.6")
                _has_vector_math = (
                    platform.machine() == "x86_64"
                    and _load_shared("libmvec.so.1")
                    and llvm.address_of_symbol("_ZGVbN4v_expf") is not None
                )
            _initialised = True
        return _has_vector_math


def _load_shared(name: str) -> bool:
    try:
        llvm.load_library_permanently(name)
    except RuntimeError:
        return False
    return True


def _undefined(code: bytes) -> list[str]:
    """Return the undefined symbols of an object file; of one that is not ELF, those it may have."""
    # Other formats are not read here: the declarations of the module, and these two, must do.
    if code[:5] != b"\x7fELF\x02":
        return list(_BUILTINS)
    with llvm.ObjectFileRef.from_data(code) as file:
        # No others: sections of zeros have a size, but no bytes in the file.
        wanted = (b".strtab", b".symtab")
        sections = {s.name(): s.data() for s in file.sections() if s.name() in wanted}
    # Parsed by hand, as llvmlite's object files show sections only.
    names = sections[b".strtab"]
    found = []
    for name, info, _, section, _, _ in _SYMBOL.iter_unpack(sections[b".symtab"]):
        # SHN_UNDEF and a binding other than local (System V ABI, symbol table).
        if section == 0 and name and info >> 4:
            found.append(names[name : names.index(b"\0", name)].decode())
    return found


class Library:
    """Machine code loaded into the process; it lives as long as this object.

    Keep the library referenced for as long as any address taken from it is in use.
    """

    def __init__(self, engine: llvm.LLJIT, name: str, tracker: llvm.ResourceTracker) -> None:
        """Wrap a linked library; called by ``Jit.load`` only."""
        self._engine = engine
        self._name = name
        self._trackers = [tracker]
        self._addresses: dict[str, int] = {}

    def address(self, name: str) -> int:
        """Return the address of a function or global variable that the library defines.

        Args:
            name: its name in the LLVM text.

        Raises:
            LLVMError: the library does not define it.
        """
        # Once per name: each lookup in LLJIT makes a tracker, which is kept.
        found = self._addresses.get(name)
        if found is None:
            try:
                tracker = self._engine.lookup(self._name, name)
            except RuntimeError as error:
                raise LLVMError(f"no symbol '{name}' in this library: {error}") from None
            # A tracker that is collected would remove the library from the engine.
            self._trackers.append(tracker)
            found = self._addresses[name] = int(tracker[name])
        return found


_own_code: dict[str, Library] = {}  # for the life of the process: others hold addresses in it


def dispose(passes: llvm.ModulePassManager) -> None:
    """Free the memory of a pass manager, 30 kB and more.

    Its `close` does not: llvmlite 0.50 has the method for that in a base class behind one that does nothing.
    """
    llvm.newpassmanagers.NewPassManager._dispose(passes)
    passes.detach()


def _runtime_passes() -> llvm.ModulePassManager:
    passes = llvm.create_new_module_pass_manager()
    for name in _RUNTIME_PASSES:
        getattr(passes, f"add_{name}_pass")()
    return passes


def digest_of(file: str) -> str:
    """Return a digest of a file of this package that determines machine code, for cache keys."""
    try:
        # By content, not by version number: a change in a checkout must not find stale machine
        # code.
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:  # an archive, whose files do not change one by one
        return file


class Jit:
    """A compiler for the CPU this process runs on, with all of its instructions.

    Attributes:
        fingerprint: all that decides an object's bytes besides the text: use it in cache keys.
        vector_math: whether libmvec is loaded, so that ``declare_math`` offers vector forms.
    """

    def __init__(self, opt_level: int = 3, vector_bits: int = 512) -> None:
        """Make a compiler.

        Args:
            opt_level: 0 to 3, as in ``-O3``; below 2 nothing is vectorised.
            vector_bits: width of the widest registers to use, if the CPU has them: 512, or 256 for the code
                that a CPU without AVX-512 would run.
        """
        self.vector_math = _initialise()
        self._opt_level = opt_level
        self._triple: str = llvm.get_process_triple()
        self._cpu: str = llvm.get_host_cpu_name()
        # Code is compiled for exactly this CPU. Its name and features are part of the key, so a
        # cache that is shared by machines holds an object for each.
        self._host: dict[str, bool] = llvm.get_host_cpu_features()
        if vector_bits < 512:
            self._host.update((f, False) for f in self._host if f.startswith(("avx512", "avx10")))
        self._features: str = llvm.FeatureMap(self._host).flatten()
        if self._host.get("avx512f"):
            self._features += ",-prefer-256-bit"
        # JITLink places an object's sections together, so the small code model is safe with it.
        self._jit_link = sys.platform in ("linux", "darwin")
        self._machine = self._target_machine(self._features, opt_level)
        # AMD's gathers and scatters take longer than one access for each lane: the loop vectorizer should
        # know. Code that asks for them itself, for many lanes under a mask, would be as many branches.
        slow = ",+prefer-no-gather,+prefer-no-scatter" if self._cpu.startswith("znver") else ""
        self._spread = self._target_machine(self._features + slow, opt_level)
        self._layout = str(self._machine.target_data)
        # Made with the first library: a process that only compiles (fills the cache) needs none.
        self._engine: llvm.LLJIT | None = None
        self._forms: dict[tuple[str, bool], list[tuple[str, int]]] = {}
        self._names = count()
        self._lock = locks.lock()
        self.fingerprint: str = "|".join(
            (
                self._triple,
                self._cpu,
                self._features,
                ".".join(map(str, llvm.llvm_version_info)),
                llvmlite.__version__,
                f"O{opt_level}",
                "libmvec" if self.vector_math else "scalar",
                digest_of(__file__),
            )
        )

    def compile(self, text: str, *, as_runtime: bool = False) -> bytes:
        """Compile LLVM IR text to an object file (with a trailer that ``load`` understands).

        Args:
            text: a module with opaque pointers; its triple and data layout are replaced.
            as_runtime: compile it quickly, as part of the run-time library: its speed is of no account.

        Raises:
            LLVMError: the text does not parse or verify; the message names the place.
        """
        if as_runtime:
            return self._object(text, _RUNTIME, False, Guard(0))
        vectors = self._opt_level >= 2 and _longest(text) <= _LONGEST
        # Less and less of the optimizer: most faults are in the vectorizers. A result of any
        # attempt is right; only a crash leads to the next one.
        attempts = [(self._opt_level, vectors), (self._opt_level, False), (0, False)]
        for level, vectors in dict.fromkeys(attempts):
            with contextlib.suppress(Crash):
                return self._object(text, level, vectors, self._guard)
            warn(
                "LLVM has failed on a kernel, and may have said so above. It is compiled again with "
                "less optimization: the results are the same, its speed may not be",
                RuntimeWarning,
            )
        raise LLVMError("LLVM fails on this module, even without optimization")

    def load(self, obj: bytes) -> Library:
        """Link an object file made by ``compile`` (by any process of this fingerprint).

        Raises:
            LLVMError: it is no such object, or needs a symbol that nobody defines.
        """
        # From a file on disk, so nothing is taken for granted: it may be cut short.
        size, magic = _TRAILER.unpack(obj[-_TRAILER.size :].rjust(_TRAILER.size, b"\0"))
        end = len(obj) - _TRAILER.size
        if magic != _TRAILER_MAGIC or size > end:
            raise LLVMError("not an object made by Jit.compile")
        # 1. Resolve the imports: LLJIT does not find all of them by itself, and here a missing one gets
        # an error with its name.
        builder = llvm.JITLibraryBuilder().add_current_process()
        missing = []
        for name in obj[end - size : end].decode(errors="replace").splitlines():
            address = self._address_of(name)
            if address is None:
                missing.append(name)
            else:
                builder.import_symbol(name, address)
        if missing:
            raise LLVMError(f"undefined symbols: {', '.join(missing)}")
        builder.add_object_img(obj[: end - size])
        # 2. Link, each object into a library of its own: several kernels define the same names.
        with self._lock:
            if self._engine is None:
                self._engine = llvm.create_lljit_compiler(
                    self._target_machine(self._features, self._opt_level),
                    use_jit_link=self._jit_link,
                    suppress_errors=True,
                )
            library = f"diffsim.{next(self._names)}"
        try:
            tracker = builder.link(self._engine, library)
        except RuntimeError as error:
            raise LLVMError(f"cannot load an object file: {error}") from None
        return Library(self._engine, library, tracker)

    def _object(self, text: str, level: int, vectors: bool, guard: Guard) -> bytes:
        """Compile to an object file, followed by the names that it imports."""
        with self._optimised(text, level, vectors, guard) as module:
            # Declarations of the optimized module and undefined symbols of the object: code
            # generation adds calls of its own (memcpy, ldexp, __powidf2).
            declared = [f.name for f in module.functions if f.is_declaration]
            code = guard.emit(self._machine_for(text, level), module)
        needed = dict.fromkeys((*declared, *_undefined(code)))
        imports = "\n".join(n for n in needed if not n.startswith("llvm.")).encode()
        return code + imports + _TRAILER.pack(len(imports), _TRAILER_MAGIC)

    def _address_of(self, name: str) -> int | None:
        # On first need: few kernels have integer powers under fast math, or f16 on an old processor.
        if name in _BUILTINS and llvm.address_of_symbol(name) is None:
            code = self._own("builtins.ll")
            for builtin in _BUILTINS:
                llvm.add_symbol(builtin, code.address(builtin))
        found: int | None = llvm.address_of_symbol(name)
        return found

    def _own(self, file: str) -> Library:
        """Load a file of LLVM text beside this one, compiled once per process and without a guard."""
        if file not in _own_code:
            text = (
                resources.files("diffsim.backends.native")
                .joinpath(file)
                .read_text(encoding="utf-8")
            )
            _own_code[file] = self.load(self.compile(text, as_runtime=True))
        return _own_code[file]

    @locks.cached
    def _guard(self) -> Guard:
        if not Guard.is_possible():
            return Guard(0)
        return Guard(self._own("guard.ll").address("guarded"))

    def optimized(self, text: str) -> str:
        """Return the module after the optimization passes, as LLVM IR text."""
        # Same decision as in `compile`, so that the text shown is the code that runs.
        vectors = self._opt_level >= 2 and _longest(text) <= _LONGEST
        with self._optimised(text, self._opt_level, vectors, self._guard) as module:
            return str(module)

    def declare_math(self, names: Iterable[str], *, vectors: bool = True) -> str:
        """Return module-level text that declares libm functions, with their vector forms if any.

        Call it once a module: it also writes the module's ``@llvm.compiler.used``.

        Args:
            names: C names such as ``expf`` or ``pow``, each a key of ``MATH`` with or
                without the ``f``.
            vectors: whether to offer the vector forms.
        """
        lines: list[str] = []
        used: list[str] = []
        for name in dict.fromkeys(names):
            # `expf` is the f32 form of `exp`. `erf` and `lgamma` end in f or not by their own
            # names, so the table decides, not the last letter.
            single = name not in MATH
            arity = MATH[name[:-1] if single else name]
            scalar = "float" if single else "double"
            variants: list[str] = []
            for variant, lanes in self.vector_forms(name) if vectors else ():
                vector = f"<{lanes} x {scalar}>"
                used.append(variant)
                # The variants are declared too, and kept alive by @llvm.compiler.used, or LLVM
                # would drop them before its vectorizer runs.
                if name in _OWN_FORMS:
                    lines.append(exponential.definition(variant, scalar, lanes))
                    variants.append(f"_ZGV_LLVM_N{lanes}v_{name}({variant})")
                else:
                    lines.append(f"declare {vector} @{variant}({', '.join([vector] * arity)})")
                    variants.append(variant)
            offer = f' "vector-function-abi-variant"="{",".join(variants)}"' if variants else ""
            arguments = ", ".join([scalar] * arity)
            lines.append(
                f"declare {scalar} @{name}({arguments}) nounwind willreturn memory(none){offer}"
            )
        if used:
            pointers = ", ".join(f"ptr @{name}" for name in used)
            lines.append(
                f"@llvm.compiler.used = appending global [{len(used)} x ptr] [{pointers}], "
                'section "llvm.metadata"'
            )
        return "\n".join(lines) + "\n"

    def vector_forms(self, name: str) -> list[tuple[str, int]]:
        """Return the vector forms of a libm function, as (symbol, lanes), narrowest first."""
        known = name, self.vector_math
        if known not in self._forms:
            self._forms[known] = self._find_vector_forms(name)
        return self._forms[known]

    def _find_vector_forms(self, name: str) -> list[tuple[str, int]]:
        single = name not in MATH
        arity = MATH[name[:-1] if single else name]
        found = []
        for letter, bits in self._vector_sets():
            lanes = bits // (32 if single else 64)
            if name in _OWN_FORMS:
                found.append((f"vector_{name}_{lanes}", lanes))
                continue
            # Name mangling of the Vector Function ABI: N for unmasked, one v per vector argument.
            symbol = f"_ZGV{letter}N{lanes}{'v' * arity}_{name}"
            if llvm.address_of_symbol(symbol) is not None:
                found.append((symbol, lanes))
        return found

    @property
    def vector_bits(self) -> int:
        """Return the width of the CPU's vector registers [bit]."""
        if self._host.get("avx512f"):
            return 512
        return 256 if self._host.get("avx2") else 128

    @property
    def has_fma(self) -> bool:
        """Return whether the CPU computes a b + c with one rounding."""
        return bool(self._host.get("fma"))

    @property
    def looks_up_bytes(self) -> bool:
        """Return whether the CPU looks up 64 bytes at once in a table of 128 (AVX-512 VBMI)."""
        return bool(self._host.get("avx512vbmi") and self._host.get("avx512bw"))

    @property
    def vector_registers(self) -> int:
        """Return the number of vector registers."""
        return 32 if self._host.get("avx512f") or platform.machine() == "aarch64" else 16

    def _vector_sets(self) -> list[tuple[str, int]]:
        """Return libmvec's letters for this CPU's instruction sets, with register widths [bit]."""
        if not self.vector_math:
            return []
        sets = [("b", 128)]
        if self._host.get("avx2"):
            sets.append(("d", 256))
        elif self._host.get("avx"):
            sets.append(("c", 256))
        if self._host.get("avx512f"):
            sets.append(("e", 512))
        return sets

    def _machine_for(self, text: str, level: int) -> llvm.TargetMachine:
        if level == _RUNTIME:
            return self._quick
        return self._machine if "@llvm.masked." in text else self._spread

    @locks.cached
    def _quick(self) -> llvm.TargetMachine:
        return self._target_machine(self._features, 0)

    def _target_machine(self, features: str, opt_level: int) -> llvm.TargetMachine:
        return llvm.Target.from_triple(self._triple).create_target_machine(
            cpu=self._cpu,
            features=features,
            opt=opt_level,
            # JITLink wants position-independent code; the small code model suffices, as one
            # object's sections are close together.
            reloc="pic" if self._jit_link else "default",
            codemodel="small" if self._jit_link else "jitdefault",
            jit=True,
        )

    @contextlib.contextmanager
    def _optimised(
        self, text: str, level: int, vectors: bool, guard: Guard
    ) -> Iterator[llvm.ModuleRef]:
        """Yield a module after the passes of a level; raises Crash."""
        # A context of its own: names and types of earlier modules cannot leak into this one. All is
        # closed here, in this order, because the garbage collector could close the context first.
        with contextlib.ExitStack() as stack:
            context = stack.enter_context(llvm.create_context())
            try:
                module = stack.enter_context(llvm.parse_assembly(text, context))
                module.triple = self._triple
                module.data_layout = self._layout
                module.verify()
            except RuntimeError as error:
                raise LLVMError(str(error)) from None
            options = llvm.create_pipeline_tuning_options(max(level, 0))
            options.loop_vectorization = vectors
            options.slp_vectorization = vectors and _longest(text) <= _LONGEST_BLOCKS
            builder = stack.enter_context(
                llvm.create_pass_builder(self._machine_for(text, level), options)
            )
            passes = _runtime_passes() if level == _RUNTIME else builder.getModulePassManager()
            stack.callback(dispose, passes)
            try:
                guard.run(passes, module, builder)
                yield module
            except Crash:
                stack.pop_all()
                for broken in (passes, builder, module, context):
                    broken.detach()  # nobody knows what state they are in: they are left as they are
                raise
