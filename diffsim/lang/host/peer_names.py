"""Names of Taichi and of Warp that diffsim does not have, with what to write instead; of optimisers PyTorch's.

Errors give the advice where a program uses such a name, and the tables of `docs/from-taichi.md` and
`docs/from-warp.md` are made of it. A key holds all names with the same advice; `*` ends a family of names.
Only what these frameworks document is here: any other name is compared with the names that exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

_BFLOAT16 = "use ds.f16, or ds.f32 for numbers beyond 65504"
_ERRORS = "errors of kernels are ds.DiffsimError and its kinds, such as ds.KernelTypeError and ds.KernelNameError"
_LOGGING = "warnings are Python's: import warnings"
_DTYPES = "types are ds.f16 to ds.f64, ds.i8 to ds.i64, ds.u1 to ds.u64; NumPy's: ds.f32.numpy"
_TEXTURE = "use a field, and mix neighbours by hand"
_STREAMS = "launches run in order; ds.sync() waits for them"
_GRAPHS = "launches that repeat are recorded once: tape.replay()"
_MEMORY = "the runtime keeps the device's memory; a field frees its own when nothing refers to it"
_MODULES = (
    "kernels compile at the first call, and their code is kept on disk; nothing is to be loaded"
)
_VECTOR_TYPES = "write ds.math.vec2, vec3, vec4, ivec3, uvec3, or a type of your own: ds.types.vector(3, ds.f64)"
_MATRIX_TYPES = (
    "write ds.math.mat2, mat3, mat4, or a type of your own: ds.types.matrix(3, 3, ds.f64)"
)
_QUATERNIONS = (
    "write ds.math.quat_rotate and the like; the product of quaternions is ds.math.quat_mul(p, q)"
)
_TRANSFORMS = "write ds.math.transform(p, q), ds.math.transform_point(t, p) and the like"
_SPATIAL = "keep angular and linear parts apart, or in a ds.types.vector(6, ds.f32)"
_GEOMETRY = "write the query as a @ds.func over fields of vertices and indices"
_NEIGHBOURS = "make a list of the points in each cell of a grid, and loop over the lists around, as in examples/classics/grains.py"
_SOLVERS = "write the solver as kernels, or take SciPy's"
_TIMES = "write ds.init(kernel_profiler=True), and ds.profiler.print_kernel_profiler_info()"
_BRIDGES = "kernels take tensors as they are, and torch.from_dlpack(x) is a field's memory; x.from_torch(t) copies"
_FILL = "make the field and fill it: x = ds.field(ds.f32, shape=n); x.fill(1)"
_OPERATORS = "write the operator: +, -, *, /, //, %, &, |, ^, <<, >>, ~"
_QUANT = "use fields of ds.i8, ds.i16 or ds.f16"
_COMPILER = "the compiler decides"
_COMPILED = "leave it out: " + _COMPILER
_SAMPLES = "make it of ds.random() or ds.randn()"
_NOISE = "write ds.math.noise(p), which is another noise, or your own as a @ds.func"

TAICHI: dict[str, dict[str, str]] = {
    "Targets and starting": {
        "extension DeviceCapability": "ds.device_info() says what the device can do",
        "aot": "compiled code is kept on disk between runs by itself: ds.init(offline_cache=True)",
        "graph": _GRAPHS,
        "TaichiAssertionError TaichiCompilationError TaichiNameError TaichiRuntimeError TaichiRuntimeTypeError "
        "TaichiSyntaxError TaichiTypeError": _ERRORS,
        "experimental": "leave it out: there are no features on trial",
    },
    "Fields and arrays": {
        "SNode": "use ds.root; fields free their memory when nothing refers to them",
        "any_arr ext_arr": "use ds.types.ndarray()",
        "BitpackedFields": "use fields of ds.i8 or ds.u8",
        "Texture Format": _TEXTURE,
        "sparse": "sparse fields are made by ds.root.pointer and the like",
        "call_internal": "functions inside Taichi's own run time are missing here: write it with @ds.func",
        "get_addr": "an element of a sparse tree is named by its index",
        "Mesh MeshInstance mesh_patch_idx": "keep vertices and indices in fields: for e in faces: a = x[faces[e][0]]",
        "uint1": "use ds.u1",
        "half": "the type is ds.f16",
        "is_integral is_real is_signed is_tensor": "ask NumPy: np.issubdtype(ds.f32.numpy, np.floating)",
        "texture rw_texture": _TEXTURE,
        "quant": _QUANT,
    },
    "Kernels and functions": {
        "ArgPack argpack": "write a ds.dataclass, or one parameter each",
        "ref": "a @ds.func returns what it changes; vectors and structs are passed as they are",
        "parallelize": "write ds.loop_config(serialize=False), which is the default",
        "serialize": "write ds.loop_config(serialize=True)",
        "simt global_thread_idx": "a loop over the elements is parallel; the compiler makes threads, warps and blocks of it",
    },
    "Arithmetic": {
        "PI pi": "write ds.math.pi",
        "clamp": "write ds.math.clamp(x, xmin, xmax)",
        "mix": "write ds.math.mix(x, y, a)",
        "log10": "write ds.log(x) / math.log(10), of Python's math",
        "popcnt": "write ds.math.popcnt(a)",
        "clz": "write ds.math.clz(a)",
        "mod": "write a % b, or ds.raw_mod(a, b) for C's",
        "frexp": "NumPy can: np.frexp(x.to_numpy())",
    },
    "Tools": {
        "sparse_matrix_builder": "write ds.types.sparse_matrix_builder()",
        "write_vtk": "meshio and pyevtk write VTK files of x.to_numpy(); ds.tools.PLYWriter writes PLY",
        "imread imresize imshow imwrite": "write ds.tools.imread, ds.tools.imresize, ds.tools.imshow, ds.tools.imwrite",
    },
    "Names of older versions": {
        "var global_var": "write ds.field(ds.f32, shape=n); of vectors ds.Vector.field(2, ds.f32, shape=n)",
        "layout": "place the fields where the program starts: ds.root.dense(ds.i, n).place(x)",
        "sqr": "write x**2",
        "inv": "write 1 / x",
        "set_default_fp set_default_ip": "write ds.init(default_fp=ds.f64, default_ip=ds.i32)",
        "cfg": "options are arguments of ds.init, such as debug=True; see help(ds.init)",
        "PLYWriter VideoManager": "write ds.tools.PLYWriter, ds.tools.VideoManager",
        "profiler_print kernel_profiler_print print_kernel_profile_info": "write ds.profiler.print_kernel_profiler_info()",
    },
}
"""By topic: what to write for `ti.<name>`."""

WARP: dict[str, dict[str, str]] = {
    "Launches": {
        "launch launch_tiled Launch": "call the kernel: step(t); its loops say how many elements there are",
        "tid": "loop over the elements: for i in x, or for i, j in ds.ndrange(n, m)",
        "block_dim tile* untile store map": "loop over the elements; the compiler makes blocks",
        "autograd": "write ds.ad, as in ds.ad.gradcheck and ds.ad.jacobian",
        "config": "options are arguments of ds.init, such as debug=True; see help(ds.init)",
        "synchronize synchronize_device synchronize_stream synchronize_event": "write ds.sync()",
        "Stream Event Scoped*Stream ScopedStream get_stream set_stream wait_stream wait_event record_event "
        "stream_* event_* get_event_elapsed_time": _STREAMS,
        "Graph CaptureMode ScopedCapture capture_* is_conditional_graph_supported": _GRAPHS,
        "Device DeviceLike get_device get_devices set_device get_preferred_device ScopedDevice get_cuda_* "
        "is_cpu_available is_cuda_available is_device_available is_cubql_available map_cuda_device "
        "unmap_cuda_device can_access": "ds.init(arch=ds.cuda) chooses the device for the whole program; ds.device_info() describes it",
        "Allocator CudaManagedAllocator MemoryKind ScopedAllocator ScopedMemory* ScopedMempool* ScopedPeer* "
        "get_mempool_* set_mempool_* is_mempool_* is_peer_* set_peer_* get_device_allocator "
        "set_device_allocator set_cuda_allocator print_memory_report": _MEMORY,
        "Module ModuleBuildOptions Function get_module get_module_options set_module_options load_module "
        "force_load compile_aot_module load_aot_module clear_kernel_cache clear_lto_cache "
        "get_cpu_kernel_cache_key build_experimental overload get_suggested_block_size": _MODULES,
        "timing_* TIMING_* TimingResult ScopedCudaProfiler cuda_profiler_*": _TIMES,
        "Logger LOG_* ScopedLog* get_logger set_logger print_diagnostics": _LOGGING,
        "Warp*Error": _ERRORS,
        "DeterministicMode": "write ds.init(deterministic=True)",
    },
    "Arrays": {
        "array array1d array2d array3d array4d fixedarray": "ds.field(ds.f32, shape=(n, m)) makes one; as a parameter: x: ds.types.ndarray()",
        "zeros zeros_like empty empty_like": "ds.field(ds.f32, shape=n) makes a field of zeros",
        "ones ones_like full full_like": _FILL,
        "from_numpy": "make a field of this shape, and x.from_numpy(array)",
        "indexedarray* indexedfabricarray* fabricarray* index indexref": "index with a field of integers: x[ids[i]]",
        "from_torch to_torch from_jax to_jax from_paddle to_paddle to_dlpack device_* dtype_* "
        "from_ptr from_ipc_handle jax_* Jax* clear_jax_*": _BRIDGES,
        "address address_of ref handle array_store atomic_cas atomic_exch": "elements are read and written by index: x[i] = y",
        "view": "write x.to_numpy().reshape(...), or index with arithmetic",
        "Texture1D Texture2D Texture3D Texture*Mode TextureResourceFlags GLTextureResource RegisteredGLBuffer texture_sample": _TEXTURE,
    },
    "Types": {
        "vec2 vec3 vec4 vec2* vec3* vec4* vector": _VECTOR_TYPES,
        "mat22* mat33* mat44* matrix matrix_from_cols matrix_from_rows diag get_diag": _MATRIX_TYPES,
        "identity": "write ds.Matrix.identity(ds.f32, 3)",
        "quat*": _QUATERNIONS,
        "transform*": _TRANSFORMS,
        "spatial_* velocity_at_point": _SPATIAL,
        "struct": "write @ds.dataclass, or ds.types.struct(pos=ds.math.vec3)",
        "bool": "use ds.u1",
        "bfloat16": _BFLOAT16,
        "Int Float Scalar": "each call compiles for the types it is given: @ds.func without annotations",
        "constant": "leave it out: numbers of Python are compiled in",
        "HALF_PI half_pi TAU tau": "write ds.math.pi",
        "E INF NAN": "write ds.math.e, ds.math.inf, ds.math.nan",
        "inf nan e": "write ds.math.e, ds.math.inf, ds.math.nan",
        "PHI phi LN2 ln2 LN10 ln10 LOG2E log2e LOG10E log10e": "compute it in Python: math.log(2)",
    },
    "Functions": {
        "add sub mul div floordiv neg pos invert bit_and bit_or bit_xor lshift rshift unot cw_mul cw_div div_approx": _OPERATORS,
        "dot cross normalize outer trace transpose determinant inverse inverse_approx length_sq ddot": "write the method: a.dot(b), a.cross(b), v.normalized(), a.outer_product(b), A.trace(), A.transpose(), A.determinant(), A.inverse(), v.norm_sqr()",
        "skew": "write ds.math.mat3([[0, -v.z, v.y], [v.z, 0, -v.x], [-v.y, v.x, 0]])",
        "where": "write ds.select(condition, a, b), or a if condition else b",
        "lerp": "write ds.math.mix(a, b, t)",
        "smoothstep step degrees radians": "write ds.math.smoothstep, ds.math.step, ds.math.degrees, ds.math.radians",
        "rint": "write ds.round(x)",
        "frac": "write ds.math.fract(x)",
        "nonzero": "write ds.select(x == 0, 0.0, 1.0)",
        "isfinite": "write not (ds.isnan(x) or ds.isinf(x))",
        "cbrt": "write ds.sign(x) * ds.pow(ds.abs(x), 1 / 3)",
        "copysign": "write ds.abs(a) if b >= 0 else -ds.abs(a)",
        "erfinv erfcinv": "solve ds.erf(x) == y by Newton's method",
        "bit_count": "count in a loop: n += (a >> k) & 1",
        "argmin argmax lower_bound": "write the loop over the elements",
        "norm_l1 norm_l2 norm_huber norm_pseudo_huber smooth_normalize": "write the norm: v.norm(), v.norm(1e-6), ds.abs(v).sum()",
        "svd2 svd3 qr3 eig3": "write ds.svd(A), ds.sym_eig(A), ds.polar_decompose(A)",
        "dense_*": _SOLVERS,
        "printf": "use print",
        "expect_eq expect_neq expect_near": "use assert, which debug=True checks",
        "rand_init": "write ds.init(random_seed=0)",
        "randf randi randu": "write ds.random(), ds.random(ds.i32), ds.random(ds.u32)",
        "sample_* poisson": _SAMPLES,
        "noise pnoise curlnoise": _NOISE,
    },
    "Geometry": {
        "Bvh* bvh_* Mesh* mesh_* Volume volume_* closest_point_edge_edge intersect_tri_tri": _GEOMETRY,
        "HashGrid* hash_grid_*": _NEIGHBOURS,
        "geometry MarchingCubes": "surfaces of a field: skimage.measure.marching_cubes(x.to_numpy())",
        "render": "draw with ds.ui, or with ds.GUI in two dimensions",
        "fem sim": _SOLVERS,
        "jacobian_plot plot_kernel_jacobians": "write ds.ad.jacobian_plot(ds.ad.jacobian(function, [x], [y]))",
        "utils": "this module has no counterpart: see help(diffsim)",
    },
}
"""By topic: what to write for `wp.<name>`."""

FIELDS: dict[str, str] = {
    "numpy": "write x.to_numpy()",
    "zero_": "write x.fill(0)",
    "fill_": "write x.fill(value)",
    "retain_grad": "write ds.Tape(loss, retain_grad=x)",
    "to_paddle from_paddle": _BRIDGES,
    "device": "ds.init(arch=ds.cuda) chooses the device for the whole program",
    "vars": "write the member: x.position",
    "requires_grad": "write x.needs_grad",
    "clone": "write ds.clone(x)",
    "list": "write x.to_numpy().tolist()",
    "to": "ds.init(arch=ds.cuda) chooses the device for the whole program",
    "ptr cptr ipc_handle memory_kind pinned": "memory is shared with other libraries by DLPack: np.from_dlpack(x)",
    "mark_read mark_init": "leave it out: reads and writes are tracked automatically",
    "mark_write": "write x.mark_written() after code of another library wrote to it",
    "host_accessors host_accessor": "index it: x[i]",
    "layout": "ds.Layout.SOA is given where a field is made: ds.Vector.field(3, ds.f32, shape=n, layout=ds.Layout.SOA)",
    "element_type get_type": "write x.dtype, the type of its numbers, and x.element_shape",
    "contiguous is_contiguous is_transposed strides capacity": "fields are contiguous; x.to_numpy() is an array of NumPy",
}
"""Advice for attributes of an array or field of theirs."""

STRUCT_FIELDS: dict[str, str] = {
    "field_dict": "write {name: x.get_member_field(name) for name in x.keys}",
    "struct_methods": "call them of an element: x[i].method()",
    "to_paddle from_paddle": "copy by NumPy: x.to_numpy(), x.from_numpy(arrays)",
    "dtype": "the members have types: x.position.dtype",
}
"""Advice for attributes of a field of structs of theirs."""

OF_NODES = {"quant_array": _QUANT}
"""Advice for attributes of a node of a layout tree of theirs."""

TAPES: dict[str, str] = {
    "record_launch": "call the kernel in the block: with ds.Tape() as tape: step(t)",
    "get_adjoint": "read x.grad",
    "launches scopes": "tape.visualize() draws what was recorded",
    "insert": "call the kernel in the block: with ds.Tape() as tape: step(t)",
    "grad": "write tape.backward()",
    "const_gradients": "write ds.Tape(loss, clear_gradients=False)",
}
"""Advice for attributes of a tape of theirs."""

_SCHEDULE = "give the rate as a function of the step: lr=ds.optim.cosine(0.01, steps=300), exponential, step_decay, warm_up"
_RATE = "write opt.lr = 0.001; opt.rate() is the rate of the next step"
_STEP = "write opt.step(), which reads the gradients of its fields"

OPTIMIZERS: dict[str, str] = {
    "zero_grad": "leave it out: with ds.Tape(loss) begins with all gradients 0; elsewhere write x.grad.fill(0)",
    "param_groups add_param_group": "write opt.lr = 0.001; fields with a rate of their own have an optimiser of their own",
    "parameters params target": "write opt.fields",
    "learning_rate get_lr get_last_lr set_lr": _RATE,
    "defaults hyperparams": "options are attributes: opt.lr, opt.clip_norm, opt.betas",
    "state": "write opt.state_dict()",
    "update apply apply_gradients apply_updates minimize": _STEP,
    "init": "leave it out: the state is made with the optimiser",
    "zero clear": "write opt.reset(), which forgets all earlier steps; gradients: x.grad.fill(0)",
    "save load": "write ds.save(path, x) for fields, opt.state_dict() for the optimiser; ds.optim.train(out=...) keeps both",
    "weight_decay": "add it to the loss: loss[None] += 0.5 * decay * w[i] ** 2",
}
"""Advice for attributes of an optimiser of PyTorch, JAX's libraries, Keras or Warp."""

OPTIMIZER_CLASSES: dict[str, str] = {
    "AdamW": "write ds.optim.Adam, and add the decay of weights to the loss",
    "LBFGS Lbfgs": 'write ds.optim.minimize(fields, program, method="L-BFGS-B")',
    "RMSprop Adagrad Adadelta Adamax NAdam RAdam Rprop ASGD SparseAdam Adafactor Muon": "write ds.optim.Adam or ds.optim.SGD",
    "Sgd sgd": "write ds.optim.SGD",
    "lr_scheduler LRScheduler LambdaLR": _SCHEDULE,
    "CosineAnnealingLR": "write lr=ds.optim.cosine(0.01, steps=300)",
    "StepLR MultiStepLR": "write lr=ds.optim.step_decay(0.01, every=100)",
    "ExponentialLR": "write lr=ds.optim.exponential(0.01, factor=0.99)",
    "LinearLR": "write lr=ds.optim.warm_up(0.01, steps=10)",
    "ReduceLROnPlateau": "write ds.optim.train(..., patience=20), which halves the rate",
    "clip_grad_norm clip_grad_norm_ clip_by_global_norm": "write clip_norm=1.0: ds.optim.Adam(fields, clip_norm=1.0)",
}
"""Advice for other names of `torch.optim`, `optax` and `warp.optim`."""

FOUND: dict[str, str] = {
    "x": "the fields that were given hold the best values: x.to_numpy()",
    "fun": "write .loss",
    "success": "write .converged",
    "nit": "write len(found.losses)",
    "nfev njev": "write .evaluations",
    "jac": "the fields hold the last gradient: x.grad",
}
"""Advice for attributes of the result of `scipy.optimize.minimize`."""

KEYWORDS: dict[str, str] = {
    "weight_decay": "add it to the loss: loss[None] += 0.5 * decay * w[i] ** 2",
    "params": "fields come first: ds.optim.Adam([w, b], lr=0.01)",
    "learning_rate": "write lr=0.01",
    "maximize": "minimise the loss times -1",
    "requires_grad": "write needs_grad=True",
    "device": "ds.init(arch=ds.cuda) chooses the device for the whole program",
    "dim": "leave it out of a launch: the loops of the kernel say how many elements there are",
    "block_dim": "write ds.loop_config(block_dim=128) before the loop in the kernel, or ds.init(default_gpu_block_dim=128)",
    "max_blocks": "leave it out: a launch takes as many blocks as the GPU runs at once",
    "enable_backward": "leave it out: an adjoint is made when a gradient is asked for",
}
"""Advice for an argument of theirs."""

TUNING: dict[str, str] = {
    "gdb_trigger": "start the program in a debugger",
    "short_circuit_operators": "and, or stop early, as in Python",
    "enable_fallback": "arch=[ds.cuda, ds.cpu] takes the first that is there",
    "require_version": "ds.__version__ is diffsim's own",
    "ad_stack_size": "loops save what their gradients need, however often they run",
    "unrolling_limit": "loops over ds.static may be long",
    "flatten_if advanced_optimization opt_level num_compile_threads force_scalarize_matrix real_matrix "
    "real_matrix_scalarize dynamic_index packed half2_vectorization use_llvm": _COMPILER,
    "cfg_optimization cache_loop_invariant_global_vars move_loop_invariant_outside_if "
    "demote_dense_struct_fors detect_read_only lower_access simplify_after_lower_access simplify_before_lower_access "
    "quant_opt_atomic_demotion quant_opt_store_fusion": _COMPILER,
    "make_block_local make_cpu_multithreading_loop make_thread_local make_mesh_block_local "
    "auto_mesh_local_default_occupacy demote_no_access_mesh_fors experimental_auto_mesh_local "
    "mesh_localize_all_attr_mappings mesh_localize_from_end_mapping mesh_localize_to_end_mapping "
    "optimize_mesh_reordered_mapping": _COMPILER,
    "default_cpu_block_dim cpu_block_dim_adaptive max_block_dim saturating_grid_dim gpu_max_reg cuda_stack_limit "
    "vk_api_version allow_nv_shader_extension": "default_gpu_block_dim sets the size of a GPU's blocks",
    "device_memory_GB device_memory_fraction": "fields take the memory that they need",
    "verbose verbose_kernel_launches": _LOGGING,
    "print_ir print_preprocessed_ir print_accessor_ir print_ir_dbg_info": "write print(kernel.ir())",
    "print_kernel_llvm_ir print_kernel_llvm_ir_optimized print_struct_llvm_ir print_kernel_asm print_kernel_amdgcn": (
        "write print(kernel.llvm()), or print(kernel.ptx())"
    ),
    "timeline": _TIMES,
    "offline_cache_max_size_of_files offline_cache_cleaning_policy offline_cache_cleaning_factor": (
        "the least recently used entries are removed automatically"
    ),
}
"""Options of `ti.init` that change no number: they have no effect, and what happens here instead."""

OPTIONS: dict[str, str] = {
    "print_full_traceback": 'traceback="full", which it sets',
    "check_out_of_bound": "debug=True, which it sets",
    "default_up": "default_ip, of which it is the type without sign",
}
"""The meaning of an option of `ti.init` that sets one of `ds.init`."""


def _families(topics: Iterable[dict[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the advice by name, and by pattern for names with `*`."""
    exact: dict[str, str] = {}
    families: dict[str, str] = {}
    for topic in topics:
        for names, advice in topic.items():
            for name in names.split():
                # Taichi's names come first: most programs are written for it.
                (families if "*" in name else exact).setdefault(name, advice)
    return exact, families


EXACT, FAMILIES = _families([*TAICHI.values(), *WARP.values()])
OF_FIELDS = _families([FIELDS])[0]
OF_STRUCT_FIELDS = _families([STRUCT_FIELDS])[0]
OF_TAPES = _families([TAPES])[0]
OF_OPTIMIZERS = _families([OPTIMIZERS])[0]
OF_OPTIM = _families([OPTIMIZER_CLASSES])[0]
OF_MINIMUM = _families([FOUND])[0]
TUNING_OF_INIT = _families([TUNING])[0]
"""`FIELDS`, `STRUCT_FIELDS`, `TAPES`, what optimisers have, and `TUNING`, by name."""


def advice_for(name: str) -> str | None:
    """Return what to write for a name of a module of Taichi's or Warp's; None: it is neither's."""
    if name in EXACT:
        return EXACT[name]
    return next((text for family, text in FAMILIES.items() if fnmatchcase(name, family)), None)
