"""`ds.svd`, `ds.polar_decompose`, `ds.eig`, `ds.sym_eig`, and functions of matrices.

The formulas are in `decompositions.py`. A call becomes one `CustomCall` statement, which holds the formulas
of the values and those of the adjoint. Differentiating the Jacobi rotations themselves would fail where
singular values are equal, and would save the state of every sweep.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from diffsim.errors import KernelTypeError, Span
from diffsim.ir.nodes import Block, CustomCall, Gradient, Value
from diffsim.ir.op import Op
from diffsim.ir.ops import (
    absolute,
    extract,
    matmul,
    maximum,
    select,
    spectral_gradient,
    stop_grad,
    transpose,
)
from diffsim.ir.types import an
from diffsim.lang.builtins import decompositions
from diffsim.lang.frontend import calls
from diffsim.lang.frontend.context import TranslationContext
from diffsim.lang.frontend.functions import inlining
from diffsim.lang.frontend.values import Evaluated
from diffsim.lang.host.func import BoundFunc, Func
from diffsim.lang.host.intrinsic import Intrinsic, only_in_kernels
from diffsim.lang.types.descriptions import describe
from diffsim.lang.types.linalg import pack
from diffsim.lang.types.matrix import Matrix

# ---- arguments


def _matrix(
    cx: TranslationContext, node: ast.Call, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Evaluate the matrix argument of a call, converted to the type that the call asks for."""
    sizes = (2,) if name == "eig" else (2, 3)
    dt = kwargs.pop("dt", args[1] if len(args) == 2 else None)
    if kwargs or not 1 <= len(args) <= 2:
        raise cx.type_error(node, f"ds.{name} takes one matrix", f"write ds.{name}(A)")
    a = cx.value(
        args[0], node.args[0] if node.args else node, "the matrix", like=cx.builder.default_fp
    )
    # Taichi's second argument: the type to compute in.
    a = a if dt is None else calls.convert(cx, a, dt, node)
    _refuse(a, name, sizes, lambda problem, hint: cx.type_error(node, problem, hint))
    return a


def _refuse(
    a: Any, name: str, sizes: tuple[int, ...], error: Callable[[str, str], Exception]
) -> None:
    """Refuse matrices of other sizes, and integers; `error` makes the exception."""
    shape = a.type.shape if isinstance(a, Value) else np.shape(a)
    shown = an(a.type) if isinstance(a, Value) else f"a matrix of shape {shape}"
    wanted = " or ".join(f"{n} x {n}" for n in sizes)
    if shape not in {(n, n) for n in sizes}:
        raise error(
            f"ds.{name} takes a {wanted} matrix, not {shown}",
            "for other sizes call numpy.linalg in Python, outside kernels",
        )
    if not (a.type.scalar.is_float if isinstance(a, Value) else a.dtype.kind == "f"):
        raise error(
            f"ds.{name} takes a matrix of floats, not {shown}", "convert it: A.cast(ds.f32)"
        )


def _in_python(name: str, formula: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
    """Make the Python side of a decomposition."""

    def run(a: Any, dt: Any = None) -> Any:
        given = Matrix(a, dt).entries
        # In Python integers are converted, as NumPy's functions
        # do it; in kernels the conversion is written out.
        given = given.astype(np.float64) if given.dtype.kind in "iu" else given
        sizes = (2,) if name == "eig" else (2, 3)
        _refuse(given, name, sizes, lambda p, h: KernelTypeError(p, Span.of_caller(), h))
        # The same formula over NumPy arrays: kernels and
        # Python give the same digits, apart from contractions.
        return tuple(Matrix(x) for x in formula(given))

    return run


def _custom(
    cx: TranslationContext,
    name: str,
    a: Value,
    values: Callable[[Any], tuple[Any, ...]],
    adjoint: Callable[..., Any],
) -> tuple[Value, ...]:
    """Emit the decomposition as one CustomCall with its adjoint."""
    b = cx.builder
    # Two blocks: the values, and the adjoint in terms of the results and their seeds. A block is emitted by
    # the same formulas that Python evaluates.
    with b.block() as body:
        found = values(a)
    outs, seeds = (tuple(Value(v.type) for v in found) for _ in range(2))
    with b.block() as backward:
        given = adjoint(*outs, *seeds)
    b.add(
        CustomCall(
            outs,
            (a,),
            Block(body, found),
            b.span,
            name=name,
            seeds=seeds,
            adjoint=Block(backward, (given,)),
            is_linear=True,
        )
    )
    return outs


def _once(adjoint: Callable[..., Any]) -> Callable[..., Any]:
    """Mark an adjoint as first order only.

    Where eigenvalues are equal it drops terms that are 0 in it, and whose derivatives are not.
    """
    # The op refuses to be differentiated: a second derivative is refused rather than wrong.
    return lambda *args: spectral_gradient(adjoint(*args))


def _sized(two: Callable[..., Any], three: Callable[..., Any]) -> Callable[[Any], Any]:
    """Choose between the algorithms for 2 x 2 and 3 x 3 matrices."""
    return lambda a: (two if decompositions.shape(a) == (2, 2) else three)(a)


# ---- the decompositions


def _svd(cx: TranslationContext, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    a = _matrix(cx, node, "svd", args, kwargs)
    return _custom(cx, "svd", a, decompositions.svd, _once(decompositions.svd_adjoint))


svd = Intrinsic(
    "svd",
    """U, sigma, V with A = U @ sigma @ V.transpose(), for 2 x 2 and 3 x 3 matrices of floats.

    `sigma` is a diagonal matrix, largest value first. V is a rotation. For 3 x 3, U is one too, and the last
    singular value is negative where det(A) < 0; for 2 x 2, U is then a reflection. (Both as in Taichi.)
    Accurate to a few units in the last place of the largest singular value. The gradient is exact for equal
    singular values too, wherever there is one: see docs/decompositions.md.
    """,
    _svd,
    _in_python("svd", decompositions.svd),
    "A, dt=None",
    example="""
        U, sigma, V = ds.svd(ds.Matrix([[3.0, 0.0], [0.0, 2.0]]))
        print(sigma)  # prints: [[3.0, 0.0], [0.0, 2.0]]
    """,
)


def _polar(cx: TranslationContext, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> Any:
    a = _matrix(cx, node, "polar_decompose", args, kwargs)
    # R and S are unique where A is invertible, so their adjoints
    # have no free rotations, and need no marking as first order.
    if a.type.shape == (2, 2):
        return _custom(cx, "polar", a, decompositions.polar2, decompositions.polar2_adjoint)
    return _custom(cx, "polar", a, decompositions.polar3, decompositions.polar3_adjoint)


polar_decompose = Intrinsic(
    "polar_decompose",
    """R, S with A = R @ S, R orthogonal and S symmetric, for 2 x 2 and 3 x 3 matrices of floats.

    For 3 x 3, R is a rotation, and S has a negative eigenvalue where det(A) < 0; for 2 x 2, R is then a
    reflection, and S has none. (Both as in Taichi.)
    """,
    _polar,
    _in_python(
        "polar_decompose", lambda a: _sized(decompositions.polar2, decompositions.polar3)(a)
    ),
    "A, dt=None",
    example="""
        R, S = ds.polar_decompose(ds.Matrix([[0.0, -2.0], [2.0, 0.0]]))
        print(R, S)  # prints: [[0.0, -1.0], [1.0, 0.0]] [[2.0, 0.0], [0.0, 2.0]]
    """,
)


def _sym_eig(
    cx: TranslationContext, node: ast.Call, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    a = _matrix(cx, node, "sym_eig", args, kwargs)
    values, vectors = _custom(
        cx, "sym_eig", a, decompositions.sym_eig, _once(decompositions.sym_eig_adjoint)
    )
    return _numbers_of(values), vectors


def _numbers_of(diagonal: Any) -> Any:
    n = decompositions.shape(diagonal)[0]
    return pack([extract(diagonal, k, k) for k in range(n)], (n,))


def _sym_eig_in_python(a: Any) -> tuple[Any, ...]:
    values, vectors = decompositions.sym_eig(a)
    return _numbers_of(values), vectors


sym_eig = Intrinsic(
    "sym_eig",
    """Eigenvalues (a vector) and eigenvectors (the columns of a rotation) of a symmetric matrix of floats.

    2 x 2 with the largest eigenvalue first, 3 x 3 with the smallest first, as in Taichi. What is decomposed
    is the symmetric part of the matrix, and the gradient is symmetric.
    """,
    _sym_eig,
    _in_python("sym_eig", _sym_eig_in_python),
    "A, dt=None",
    example="""
        values, vectors = ds.sym_eig(ds.Matrix([[2.0, 1.0], [1.0, 2.0]]))
        print(ds.round(values))  # prints: [3.0, 1.0]
    """,
)


def _eig(
    cx: TranslationContext, node: ast.Call, args: list[Any], kwargs: dict[str, Any]
) -> Evaluated:
    return decompositions.eig2(_matrix(cx, node, "eig", args, kwargs))


eig = Intrinsic(
    "eig",
    """Eigenvalues and right eigenvectors of a 2 x 2 matrix of floats, which may be complex.

    The rows of the first result (2 x 2) are the eigenvalues as (real part, imaginary part); the columns of
    the second (4 x 2) the eigenvectors, of length 1, as (real, imaginary, real, imaginary). Real
    eigenvalues come with the larger first, complex ones with the positive imaginary part first.
    """,
    _eig,
    _in_python("eig", decompositions.eig2),
    "A, dt=None",
    example="""
        values, vectors = ds.eig(ds.Matrix([[0.0, -1.0], [1.0, 0.0]]))
        print(values)  # prints: [[0.0, 1.0], [0.0, -1.0]]
    """,
)


# ---- functions of a matrix


def _evaluate(cx: TranslationContext, node: ast.Call, f: Any, x: Value) -> Value:
    # Ops and funcs alike are inlined once for each eigenvalue.
    if isinstance(f, Op):
        found = calls.apply(cx, node, f, [x])
    elif isinstance(f, BoundFunc):
        found = inlining.inline(cx, node, f.func, [f.owner, x], {})
    elif isinstance(f, Func):
        found = inlining.inline(cx, node, f, [x], {})
    else:
        raise cx.type_error(
            node, f"{describe(f)} is not a function of one number", "give it ds.log, or a @ds.func"
        )
    # A func may return a literal: it adopts the type of the eigenvalues.
    y = cx.value(found, node, "what the function returns", like=x.type)
    if y.type is not x.type:
        raise cx.type_error(
            node,
            f"the function makes {an(y.type)} of {an(x.type)}",
            "it takes a number and returns one of the same type",
        )
    return y


def _derivative(cx: TranslationContext, node: ast.Call, f: Any, x: Value) -> Value:
    """Emit f'(x), as the adjoint of a func is emitted."""
    # The function is inlined a second time, over a parameter with respect to which it is differentiated.
    b, param, out = cx.builder, Value(x.type), Value(x.type)
    with b.block() as body:
        y = _evaluate(cx, node, f, param)
    # The func is differentiated in reverse mode like any other code, with the seed 1.
    seed = b.const(1.0, x.type)
    b.add(Gradient((out,), (param,), (x,), Block(body, (y,)), (seed,), b.span, "the function"))
    return out


def _on_diagonal(cx: TranslationContext, node: ast.Call, f: Any, d: Value) -> Any:
    """Return diag(f(d[i, i])); off the diagonal 0, with the derivative f[x, y] * d[i, j].

    The divided difference f[x, y] is the mean of f' between x and y. Where these are close, it is computed by
    C. F. Gauss's rule with two points, whose error is of fourth order in their distance.
    """
    n = d.type.shape[0]
    x = [extract(d, k, k) for k in range(n)]
    # On the diagonal the ordinary chain rule applies.
    made = {(k, k): _evaluate(cx, node, f, x[k]) for k in range(n)}
    # At a relative distance h, cancellation in the quotient costs
    # eps / h, the rule h**4: they are equal at h = eps**(1/5).
    close = float(np.finfo(d.type.scalar.numpy).eps) ** 0.2
    for i, j in decompositions.PAIRS[n]:
        # Off the diagonal the value is 0: the slope is only the factor of a derivative, and constant in it.
        p, q = stop_grad(x[i]), stop_grad(x[j])
        gap, middle = p - q, 0.5 * (p + q)
        apart = absolute(gap) > close * maximum(absolute(p), absolute(q))
        quotient = (made[i, i] - made[j, j]) / select(apart, gap, 1.0)
        # The nodes of the two-point Gauss-Legendre rule on an interval
        # of length `gap` are at gap / (2 sqrt(3)) from its middle.
        reach = gap * (0.5 / 3**0.5)
        ends = [_derivative(cx, node, f, middle + step) for step in (reach, -reach)]
        slope = stop_grad(select(apart, quotient, 0.5 * (ends[0] + ends[1])))
        # An infinite f' would make NaN of the 0 that it is multiplied with.
        slope = select(absolute(slope) < float("inf"), slope, 0.0)
        made[i, j], made[j, i] = (slope * extract(d, *at) for at in ((i, j), (j, i)))
    return pack([made[i, j] for i in range(n) for j in range(n)], (n, n))


def _two(
    cx: TranslationContext, node: ast.Call, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Evaluate the matrix argument of a function of matrices."""
    if len(args) != 2 or kwargs:
        raise cx.type_error(
            node, f"ds.{name} takes a function and a matrix", f"write ds.{name}(ds.log, A)"
        )
    a = cx.value(args[1], node, "the matrix", like=cx.builder.default_fp)
    _refuse(a, name, (2, 3), lambda problem, hint: cx.type_error(node, problem, hint))
    return a


def _diagonal_map(
    cx: TranslationContext, node: ast.Call, args: list[Any], kwargs: dict[str, Any]
) -> Evaluated:
    return _on_diagonal(cx, node, args[0], _two(cx, node, "diagonal_map", args, kwargs))


diagonal_map = Intrinsic(
    "diagonal_map",
    """f of a diagonal matrix: `U @ ds.diagonal_map(f, sigma) @ V.transpose()` after a `ds.svd`.

    f is a `@ds.func` of one number, or an op such as `ds.log`. The value is f of each element of the
    diagonal; the derivative is that of f as a function of matrices (Yu. L. Daletskii and S. G. Krein, 1965),
    which the gradient needs where singular values are equal.
    """,
    _diagonal_map,
    only_in_kernels("diagonal_map"),
    "f, A",
    example="""
        @ds.kernel
        def compute(a: ds.f32) -> ds.math.mat2:
            return ds.diagonal_map(ds.sqrt, ds.Matrix([[a, 0.0], [0.0, 9.0]]))

        print(compute(4.0))  # prints: [[2.0, 0.0], [0.0, 3.0]]
    """,
)


def _sym_map(
    cx: TranslationContext, node: ast.Call, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    a = _two(cx, node, "sym_map", args, kwargs)
    # f(A) = V f(D) V^T. `_on_diagonal` supplies the derivatives off the diagonal, with which V counts as
    # constant: nothing is divided by a difference of eigenvalues.
    values, v = _custom(
        cx, "sym_map", a, decompositions.sym_eig, _once(decompositions.sym_map_adjoint)
    )
    return matmul(matmul(v, _on_diagonal(cx, node, args[0], values)), transpose(v))


sym_map = Intrinsic(
    "sym_map",
    """f of a symmetric matrix: its eigenvectors, and f of its eigenvalues.

    `ds.sym_map(ds.log, C)` is the logarithm of a matrix. f is a `@ds.func` of one number, or an op. The
    gradient is exact for equal eigenvalues too.
    """,
    _sym_map,
    only_in_kernels("sym_map"),
    "f, A",
    example="""
        @ds.kernel
        def compute(a: ds.f32) -> ds.math.mat2:
            return ds.sym_map(ds.sqrt, ds.Matrix([[a, 0.0], [0.0, 9.0]]))

        print(ds.round(compute(4.0)))  # prints: [[2.0, 0.0], [0.0, 3.0]]
    """,
)
