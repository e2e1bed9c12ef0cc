"""Automatic differentiation from Python: tapes, gradients written by hand, code without gradients."""

from typing import TYPE_CHECKING, NoReturn

from diffsim.ad.checkpoint import checkpoint
from diffsim.ad.custom_gradients import grad_for, grad_replaced, no_grad
from diffsim.ad.forward import FwdMode
from diffsim.ad.hessians.hessian import hessian, hvp
from diffsim.ad.implicit.linear_solve import linear_solve
from diffsim.ad.implicit.roots import fixed_point, implicit_root
from diffsim.ad.jacobians.gradcheck import gradcheck, gradcheck_tape
from diffsim.ad.jacobians.jacobian import jacobian, jacobian_fd
from diffsim.ad.jacobians.plots import jacobian_plot
from diffsim.ad.rollout import CheckpointStats
from diffsim.ad.schedules.plan import CheckpointPlan, checkpoint_plan
from diffsim.ad.tape import Tape
from diffsim.lang.builtins.intrinsics import stop_grad
from diffsim.lang.host.unsupported import absent
from diffsim.public_names import names_of_module
from diffsim.runtime.fields.adjoints import clear_all_gradients
from diffsim.runtime.fields.recorded import Recorded

if not TYPE_CHECKING:  # or every name would be one

    def __getattr__(name: str) -> NoReturn:
        raise absent(__name__, name, __all__)


__all__ = [
    "CheckpointPlan",
    "CheckpointStats",
    "FwdMode",
    "Recorded",
    "Tape",
    "checkpoint",
    "checkpoint_plan",
    "clear_all_gradients",
    "fixed_point",
    "grad_for",
    "grad_replaced",
    "gradcheck",
    "gradcheck_tape",
    "hessian",
    "hvp",
    "implicit_root",
    "jacobian",
    "jacobian_fd",
    "jacobian_plot",
    "linear_solve",
    "no_grad",
    "stop_grad",
]

__dir__ = names_of_module(__all__)
