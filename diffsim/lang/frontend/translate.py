"""The front end's entry point: from a Python function and the kinds of its arguments to a kernel in IR.

Read this file first, then `values.py` (what names are bound to), `statements.py` and `expressions.py` (one
function per kind of syntax node), `regions.py` (branches and loops), `tasks.py` (what runs in parallel).
"""

from __future__ import annotations

from typing import Any

from diffsim.errors import DiffsimError, InternalError, KernelSyntaxError
from diffsim.ir.builder import Builder
from diffsim.ir.nodes import Arg, Kernel, Mem
from diffsim.ir.types import ScalarType, Type, an
from diffsim.lang.frontend import statements, tasks
from diffsim.lang.frontend.context import RETURN, Constants, Frame, TranslationContext
from diffsim.lang.frontend.functions import inlining, structs
from diffsim.lang.frontend.values import StructValue
from diffsim.lang.host.observations import Observation
from diffsim.lang.host.source import Source
from diffsim.lang.types.flattening import ResultForm


class Translation:
    """A kernel in IR, and the Python values that it was compiled for.

    Attributes:
        kernel: the IR.
        observations: what was read from Python; the kernel is stale if any of it changes.
        uses_random: whether it draws random numbers.
        has_output: whether the user was shown something while it was made.
    """

    def __init__(
        self,
        kernel: Kernel,
        observations: list[Observation],
        *,
        uses_random: bool,
        has_output: bool = False,
    ) -> None:
        self.kernel = kernel
        self.observations = observations
        self.uses_random = uses_random
        self.has_output = has_output


def translate(
    source: Source,
    bindings: dict[str, Any],
    args: tuple[Arg, ...],
    result: Type | ResultForm | None,
    *,
    default_fp: ScalarType,
    default_ip: ScalarType,
    debug: bool,
    strict: bool = False,
    stops: bool = False,
) -> Translation:
    """Translate a kernel.

    Args:
        source: the function's syntax.
        bindings: for each parameter its `Arg`, `ArrayRef`, or the Python object it is compiled for.
        args: the run-time arguments, in order.
        result: type of the returned value, or form of several, if there is one.
        default_fp: type of float literals on their own.
        default_ip: type of int literals on their own.
        debug: whether assertions are translated.
        strict: whether a float that is assigned to an integer is an error; else it is a warning.
        stops: whether `breakpoint()` stops a launch; else it is a warning.

    Raises:
        KernelSyntaxError, KernelNameError, KernelTypeError: with the user's line.
    """
    head = source.head()
    builder = Builder(head, default_fp, default_ip)
    frame = Frame(source, None)
    cx = TranslationContext(builder, frame, debug=debug, strict=strict, stops=stops)
    for name, thing in bindings.items():
        # A struct is a local that may change, as a number or a vector is.
        if isinstance(thing, StructValue):
            structs.spread(frame.env, name, thing)
        else:
            frame.env[name] = thing
    # 1. The state: parameters are bound like locals, and the result is a memory that the launch reads.
    tasks.start_random_stream(cx)
    if isinstance(result, ResultForm):
        cx.result_form, result = result, result.carrier
    if result is not None:
        cx.result = cx.use(Mem("return", result, 0, (), "temp"))
    # 2. The statements. `with builder` lets the formulas of vectors and matrices find the builder.
    with builder:
        try:
            statements.block(cx, source.node.body)
        except (DiffsimError, Warning):  # a Warning: the user has made warnings errors
            raise
        except RecursionError:
            raise KernelSyntaxError(
                f"an expression or a chain of calls in {source.name} is nested too deeply",
                head,
                hint="divide it into several statements; a func cannot call itself",
            ) from None
        # Anything else is a fault of diffsim: it is reported as such, with the line under translation.
        except Exception as fault:
            raise InternalError(
                f"translating this failed with {type(fault).__name__}: {fault}", builder.span
            ) from fault
        # The statements after the last parallel loop.
        tasks.close_serial_task(cx)
    # 3. Checks that need the whole function.
    if cx.next_loop is not None:
        raise cx.syntax(
            cx.next_loop.node,
            "there is no outermost loop after this ds.loop_config",
            "put it right before the loop that it is for",
        )
    if result is not None:
        if cx.env.get(RETURN, False) is False:
            raise cx.syntax(
                source.node,
                f"{source.name} says that it returns {_in_words(cx, result)}, and has no return",
                "add a return, or take the -> away",
            )
        inlining.check_returns(cx, source)
    # 4. Outside loops `ds.stop_grad(x)` holds for all of the kernel.
    made = tuple(map(Constants(cx.constant_mems).task, cx.tasks) if cx.constant_mems else cx.tasks)
    kernel = Kernel(source.name, args, tuple(cx.mems), made, head, cx.result)
    return Translation(
        kernel,
        cx.observations.settled(),
        uses_random=cx.uses_random,
        has_output=cx.has_output,
    )


def _in_words(cx: TranslationContext, result: Type) -> str:
    return an(result) if cx.result_form is None else "several values"
