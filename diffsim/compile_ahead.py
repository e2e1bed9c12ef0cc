"""`ds.precompile`: kernels are compiled before they are called, several at a time.

Python translates and differentiates one kernel after the other; LLVM's part, about half of the time, is done
meanwhile by forks of the process, which leave the machine code in the disk cache. So each kernel is loaded
afterwards as in a second run of the program, and code that a fork has failed to make is made here, with the
error that it gives.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator

from diffsim.errors import ArgumentError, AutodiffError, Span, shown
from diffsim.lang.host.signatures import checked, need_bool, need_whole
from diffsim.runtime import compiler
from diffsim.runtime.backend import Code
from diffsim.runtime.kernels.derivative import Derivative
from diffsim.runtime.kernels.kernel import BoundKernel, Kernel
from diffsim.runtime.kernels.specialization import Specialization
from diffsim.runtime.locked_cached_property import making
from diffsim.runtime.session import session


@checked
def precompile(*kernels: object, gradients: bool = True, processes: int | None = None) -> None:
    """Compile kernels before they are called, several at a time.

    Without it each kernel is compiled at its first call. It needs the cache on disk; without it, on a GPU and
    on systems other than Linux the kernels are compiled one after the other.

    Args:
        kernels: kernels; (kernel, argument, ...) for one that is compiled for its arguments.
        gradients: whether adjoints are compiled too, of kernels that have a gradient.
        processes: how many compile at once; the number of processors, if left out.

    Raises:
        ArgumentError: something else than a kernel, or a number of processes below 1.
        DiffsimError: what the first call would raise, as for a kernel that cannot be compiled.

    Example:
        x = ds.field(ds.f32, shape=4, needs_grad=True)
        y = ds.field(ds.f32, shape=4, needs_grad=True)

        @ds.kernel
        def double():
            for i in x:
                y[i] = 2.0 * x[i]

        @ds.kernel
        def power(n: ds.template()):
            for i in x:
                y[i] = x[i] ** n

        ds.precompile(double, (power, 3))
        x.fill(2.0)
        power(3)
        print(y[0])  # prints: 8.0
    """
    need_bool(gradients, "gradients")
    if processes is not None:
        need_whole(processes, "processes")
        if processes < 1:
            raise ArgumentError(
                f"processes={processes}: nothing would be compiled",
                Span.of_caller(),
                hint="leave it out for as many as there are processors",
            )
    with making:
        found = [_specialization(kernel) for kernel in kernels]
        stages = [s for special in found for s in _stages(special, gradients=gradients)]
        try:
            if _may_fork():
                _assemble(stages, processes or os.cpu_count() or 1)
            for stage in stages:
                stage.executable  # noqa: B018 - made now, from the cache
        finally:
            compiler.ahead.clear()


def _specialization(given: object) -> Specialization:
    """Return the variant of a kernel that is asked for."""
    kernel, *args = given if isinstance(given, tuple) and given else (given,)
    if isinstance(kernel, BoundKernel):
        kernel = kernel.kernel  # there is one for each object
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"ds.precompile takes kernels, not {shown(kernel)}",
            Span.of_caller(),
            hint="write ds.precompile(step, (move, 0.1)): kernels, and kernels with their arguments",
        )
    return kernel._only(tuple(args))


def _stages(special: Specialization, *, gradients: bool) -> Iterator[Specialization | Derivative]:
    """Yield what is compiled of a kernel: itself, and its adjoint if it has one."""
    yield special
    if gradients and any(m.grad is not None for m in special.ir.mems):
        with contextlib.suppress(AutodiffError):  # it is raised where a gradient is asked for
            if special.derivative.refusal is None and special.derivative.ir.tasks:
                yield special.derivative.usual


def _may_fork() -> bool:
    """Whether forks may make code for this process, and have a place to leave it."""
    # What `debug=True` compiles is made of the kernel later.
    plain = session.backend.name == "cpu" and not session.options.debug
    return plain and sys.platform == "linux" and session.cache is not None


def _assemble(stages: list[Specialization | Derivative], processes: int) -> None:
    """Have forks make the machine code of kernels; each is begun when its text is there."""
    running: list[int] = []
    try:
        for stage in stages:
            if compiler.find_code(stage.ir, session.backend) is not None:
                continue
            compiler.ahead[stage.ir] = _, code = compiler.generate(stage.ir, session.backend)
            if compiler.is_kept(code, session.backend):
                continue
            while len(running) >= processes:
                _wait(running.pop(0))
            running.append(_fork(stage, code))
    finally:
        for child in running:
            _wait(child)


def _wait(child: int) -> None:
    """Wait for the end of a fork; how it ended shows in the cache."""
    with contextlib.suppress(
        ChildProcessError
    ):  # a program that ignores SIGCHLD has no ended children
        os.waitpid(child, 0)


def _fork(stage: Specialization | Derivative, code: Code) -> int:
    """Make the machine code of a kernel in a fork of this process; returns its number."""
    with warnings.catch_warnings():
        # Python warns of forks beside threads: those of the native pool hold no lock, and `locks` knows the
        # others.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):  # the parent does it again, and tells
            compiler.machine_code(stage.ir, code, session.backend)
        os._exit(0)
    return child
