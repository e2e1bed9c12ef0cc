"""Decompositions of 2 x 2 and 3 x 3 matrices, and their adjoints.

Formulas over rows of the op table, like those of `lang/types/linalg.py`, without loops, tables or library
calls: each lane of a parallel loop does the same operations, so that lanes can share vector registers.

The values come from Jacobi rotations (C. G. J. Jacobi 1846), for singular values in the one-sided form of
M. R. Hestenes (1958) with the ordering of P. P. M. de Rijk (1989): a rotation of two columns also puts the
longer one first. Rotations do not square the matrix, so small singular values are not lost.

The adjoints are written in the sums and differences of singular values, one for each of the two relative
rotations of a pair of singular vectors; docs/decompositions.md derives them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsim.ir import builder_stack
from diffsim.ir.nodes import Value
from diffsim.ir.ops import (
    absolute,
    drop_rounding,
    eq,
    logical_not,
    matmul,
    maximum,
    select,
    sqrt,
    stop_grad,
    transpose,
)
from diffsim.lang.types.linalg import dot, elements, pack, shape

# The pairs (i, j) that one sweep rotates, in cyclic order by rows.
PAIRS = {2: ((0, 1),), 3: ((0, 1), (0, 2), (1, 2))}


# ---- small tools


def _numbers(a: Any) -> Any:
    """Return the limits of the scalar type: eps, tiny, ..."""
    return np.finfo(a.type.scalar.numpy if isinstance(a, Value) else a.dtype)


def _sweeps(a: Any) -> int:
    """Return how many sweeps of Jacobi rotations reach rounding error; the last ones converge cubically."""
    n = shape(a)[0]
    # A fixed number, found by experiments: one fewer is not enough for some matrices
    # (docs/decompositions.md). A loop that tests for convergence would diverge between lanes.
    return 2 if n == 2 else 4 if _numbers(a).bits == 32 else 5


def _columns(a: Any) -> list[Any]:
    """Return the columns of a matrix."""
    n, m = shape(a)
    flat = elements(a)
    return [pack([flat[i * m + j] for i in range(n)], (n,)) for j in range(m)]


def _of_columns(columns: list[Any]) -> Any:
    """Return the matrix with these columns."""
    rows = list(zip(*(elements(c) for c in columns), strict=True))
    return pack([x for row in rows for x in row], (len(rows), len(columns)))


def _diagonal(numbers: list[Any]) -> Any:
    """Return a diagonal matrix."""
    n, nothing = len(numbers), _constant(0.0, numbers[0])
    return pack([numbers[i] if i == j else nothing for i in range(n) for j in range(n)], (n, n))


def _identity_columns(a: Any) -> list[Any]:
    """Return the columns of the identity, in the type of a matrix."""
    n, like = shape(a)[0], elements(a)[0]
    one, zero = _constant(1.0, like), _constant(0.0, like)
    return [pack([one if i == j else zero for i in range(n)], (n,)) for j in range(n)]


def _constant(number: float, like: Any) -> Any:
    """Return a number in the type of another value."""
    if isinstance(like, Value):
        return builder_stack.builder().const(number, like.type)
    return like.dtype.type(number)


def _largest(numbers: list[Any]) -> Any:
    """Return the largest absolute value."""
    found = absolute(numbers[0])
    for x in numbers[1:]:
        found = maximum(found, absolute(x))
    return found


def _scaled(a: Any) -> tuple[Any, Any]:
    """Return the matrix divided by its largest element, and that element (1 for the zero matrix).

    Squares of the elements can then neither overflow nor all underflow.
    """
    size = _largest(elements(a))
    size = select(size > 0, size, 1.0)
    return a / size, size


def _cross(a: Any, b: Any) -> Any:
    """Return the vector product."""
    a, b = elements(a), elements(b)
    return pack([a[k - 2] * b[k - 1] - a[k - 1] * b[k - 2] for k in range(3)], (3,))


# ---- values


def _rotation(p: Any, q: Any, g: Any) -> tuple[Any, Any, Any]:
    """Return (c, k, e) of the rotation that diagonalizes [[p, g], [g, q]] with the larger value first.

    The new axes are c * a + k * b and c * b - k * a; the values become max(p, q) + e and min(p, q) - e.
    No angle is formed: with d = q - p and h = hypot(d, 2 g) it is the unit vector along (|d| + h, 2 g).
    """
    d, g = q - p, 2.0 * g
    h = sqrt(d * d + g * g)
    x = absolute(d) + h
    # (|d| + h)^2 + (2 g)^2 = 2 h (|d| + h): the square of
    # the length of the vector, with no further square root.
    length = 2.0 * h * x
    # Some bits above the smallest normal number: the reciprocal below neither overflows nor loses digits.
    there = length > float(_numbers(p).tiny) * 2.0**20
    # Where both d and g are 0 any axes do. Both sides of a select are evaluated, so the argument of the root
    # is replaced too: 1 / 0 would give NaN, which a select does not stop in derivatives.
    inverse = 1.0 / sqrt(select(there, length, 1.0))
    along, across = select(there, x * inverse, 1.0), select(there, g * inverse, 0.0)
    swapped = d > 0  # the larger value comes first
    return (
        select(swapped, across, along),
        select(swapped, along, across),
        h * across * across,
    )


def _jacobi_columns(a: Any) -> tuple[list[Any], list[Any]]:
    """Return the columns of A V, orthogonal and by decreasing length, and those of the rotation V."""
    w, v = _columns(a), _identity_columns(a)
    for _ in range(_sweeps(a)):
        for i, j in PAIRS[len(w)]:
            c, k, _ = _rotation(dot(w[i], w[i]), dot(w[j], w[j]), dot(w[i], w[j]))
            w[i], w[j] = c * w[i] + k * w[j], c * w[j] - k * w[i]
            v[i], v[j] = c * v[i] + k * v[j], c * v[j] - k * v[i]
    # Each rotation is orthogonal up to rounding. The errors
    # are common to w and v, so both are corrected by v.
    return _corrected(w, v), _corrected(v, v)


def _corrected(columns: list[Any], v: list[Any]) -> list[Any]:
    """Return the columns divided by the lengths of v's columns, which differ from 1 by rounding errors.

    1.5 - 0.5 s is the first-order expansion of 1 / sqrt(s) at s = 1.
    """
    return [(1.5 - 0.5 * dot(y, y)) * x for x, y in zip(columns, v, strict=True)]


def _unit(v: Any, instead: Any) -> tuple[Any, Any]:
    """Return the vector at length 1, and its length; `instead` for the zero vector."""
    length = sqrt(dot(v, v))
    nothing = eq(length, 0.0)
    # The divisor is replaced as well, since both sides of a select are evaluated.
    return _choose(nothing, instead, v / select(nothing, 1.0, length)), length


def _choose(condition: Any, a: Any, b: Any) -> Any:
    """Select between two tensors by one condition."""
    chosen = [select(condition, x, y) for x, y in zip(elements(a), elements(b), strict=True)]
    return pack(chosen, shape(a))


def _normal(u: Any) -> Any:
    """Return a unit vector orthogonal to a unit 3-vector."""
    x, y, z = elements(u)
    nothing = _constant(0.0, x)
    # Above 0.75 the cross product with the first axis would be short, and its direction inaccurate.
    flat = absolute(x) < 0.75
    # u x (1, 0, 0), or u x (0, 1, 0) where u is close to the first axis.
    made = pack([select(flat, nothing, -z), select(flat, z, nothing), select(flat, -y, x)], (3,))
    return made / sqrt(dot(made, made))


def svd(a: Any) -> tuple[Any, Any, Any]:
    """Return U, sigma, V with A = U sigma V^T; see `ds.svd`."""
    scaled, size = _scaled(a)
    # 1. Orthogonal columns w = A V. 2. Their directions are U, their lengths sigma. A column that is only
    # rounding error has no direction: there U is completed to an orthogonal matrix.
    w, v = _jacobi_columns(scaled)
    first, s0 = _unit(w[0], _identity_columns(a)[0])
    if len(w) == 2:
        x, y = elements(first)
        # Orthogonal by construction. A sign goes to U where sigma
        # would be negative (Taichi's convention for 2 x 2).
        second = pack([-y, x], (2,))
        s1 = dot(second, w[1])
        one = _constant(1.0, s1)
        second, s1 = select(s1 < 0, -one, one) * second, absolute(s1)
        return _of_columns([first, second]), _diagonal([s0 * size, s1 * size]), _of_columns(v)
    # One step of Gram and Schmidt removes what the sweeps left over.
    rest = w[1] - dot(first, w[1]) * first
    s1 = sqrt(dot(rest, rest))
    there = s1 > 0.5 * sqrt(dot(w[1], w[1]))  # else it is only what rounding left over
    second = _choose(there, rest / select(there, s1, 1.0), _normal(first))
    # By the cross product U is a rotation; the sign of det(A) goes to the last singular value.
    third = _cross(first, second)
    s = [s0 * size, s1 * size, dot(third, w[2]) * size]
    return _of_columns([first, second, third]), _diagonal(s), _of_columns(v)


def polar2(a: Any) -> tuple[Any, Any]:
    """Return R, S with A = R S for 2 x 2, in closed form: R is A plus or minus its cofactors, normalized."""
    p, q, r, t = elements(_scaled(a)[0])
    one = _constant(1.0, p)
    # A + cof(A) for det > 0 and A - cof(A) otherwise is a multiple of the orthogonal factor; unlike the
    # other combination it is 0 only for A = 0.
    flip = select(p * t - q * r < 0, -one, one)
    x, y = p + flip * t, r - flip * q
    length = sqrt(x * x + y * y)
    nothing = eq(length, 0.0)
    safe = select(nothing, 1.0, length)
    x, y = select(nothing, 1.0, x / safe), y / safe
    rotation = pack([x, -flip * y, y, flip * x], (2, 2))
    return rotation, _symmetric(matmul(transpose(rotation), a))


def polar3(a: Any) -> tuple[Any, Any]:
    """Return R, S with A = R S for 3 x 3, by the svd."""
    u, sigma, v = svd(a)
    turned = transpose(v)
    return matmul(u, turned), _symmetric(matmul(matmul(v, sigma), turned))


def _symmetric(a: Any) -> Any:
    return 0.5 * (a + transpose(a))


def sym_eig(a: Any) -> tuple[Any, Any]:
    """Return the diagonal matrix of the eigenvalues of (A + A^T) / 2, and V; see `ds.sym_eig`."""
    n = shape(a)[0]
    scaled, size = _scaled(a)
    e = elements(_symmetric(scaled))
    m = [[e[i * n + j] for j in range(n)] for i in range(n)]
    v = _identity_columns(a)
    for _ in range(_sweeps(a) if n == 3 else 1):
        for i, j in PAIRS[n]:
            c, k, more = _rotation(m[i][i], m[j][j], m[i][j])
            low = -maximum(-m[i][i], -m[j][j])
            m[i][i], m[j][j] = maximum(m[i][i], m[j][j]) + more, low - more
            # Exactly 0 by the choice of the rotation.
            m[i][j] = m[j][i] = _constant(0.0, e[0])
            for r in range(n):
                if r not in (i, j):
                    m[r][i], m[r][j] = c * m[r][i] + k * m[r][j], c * m[r][j] - k * m[r][i]
                    m[i][r], m[j][r] = m[r][i], m[r][j]
            v[i], v[j] = c * v[i] + k * v[j], c * v[j] - k * v[i]
    values = [m[i][i] * size for i in range(n)]
    v = _corrected(v, v)
    if n == 3:
        # Smallest first. Exchanging two columns changes the sign of the
        # determinant, so one column is negated: V remains a rotation.
        values, v = values[::-1], [v[2], v[1], -v[0]]
    return _diagonal(values), _of_columns(v)


def eig2(a: Any) -> tuple[Any, Any]:
    """Return eigenvalues and eigenvectors of a 2 x 2 matrix as `ds.eig` does; differentiated as written.

    The eigenvectors of a matrix so small that their derivative would overflow count as constant.
    """
    # The scale cancels out of the results, so it is a constant in derivatives.
    size = stop_grad(_scaled(a)[1])
    scaled = a / size
    middle, _, _, _, re, im, _ = _roots(scaled)
    values = pack([middle + re, im, middle - re, -im], (2, 2))
    # Its reciprocal, which the derivative contains, must not overflow.
    large = size > float(_numbers(size).tiny) * 2.0**24
    inverse = select(large, 1.0 / select(large, size, 1.0), 0.0)
    _, p, b, c, re, im, real = _roots(stop_grad(scaled) + inverse * (a - stop_grad(a)))
    # The columns of A - y are eigenvectors of the other eigenvalue x.
    one, nothing = _constant(1.0, p), _constant(0.0, p)
    # (A - y) (A - x) = 0 by Cayley and Hamilton.
    first = _eigenvector(p + re, im, b, c, re - p, [one, nothing, nothing, nothing], real)
    second = _eigenvector(p - re, -im, b, c, -re - p, [nothing, nothing, one, nothing], real)
    return values * size, _of_columns([first, second])


def _roots(a: Any) -> tuple[Any, ...]:
    """Return m, p, b, c, re, im, im == 0: [[m + p, b], [c, m - p]] has the eigenvalues m +- (re + i im)."""
    p, b, c, d = elements(a)
    middle, p = 0.5 * (p + d), 0.5 * (p - d)
    root = p * p + b * c
    real = root >= 0
    # Real for a discriminant that is not negative, imaginary otherwise.
    root = sqrt(absolute(root))
    return middle, p, b, c, select(real, root, 0.0), select(real, 0.0, root), real


def _eigenvector(x: Any, y: Any, b: Any, c: Any, z: Any, instead: list[Any], real: Any) -> Any:
    """Return the longer of the columns (x + iy, c), (b, z + iy), normalized; the first if not real."""
    left = logical_not(real) | (x * x + c * c >= b * b + z * z)
    nothing = _constant(0.0, x)
    v = [select(left, x, b), select(left, y, nothing), select(left, c, z), nothing]
    square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2]
    there = square > 0
    length = sqrt(select(there, square, 1.0))
    return pack([select(there, e / length, i) for e, i in zip(v, instead, strict=True)], (4,))


# ---- adjoints


def _ratio(difference: Any, by: Any, scale: Any) -> Any:
    """Return difference / by; 0 where `by` is only rounding error, relative to `scale`."""
    facts = _numbers(by)
    # A few units in the last place of the largest value: differences below are rounding, and would be
    # amplified to gradients of order 1 / eps. The second term keeps the quotient finite.
    there = absolute(by) > 4.0 * float(facts.eps) * scale + float(facts.tiny) * 2.0**24
    return select(there, difference / select(there, by, 1.0), 0.0)


def _rotation_quotient(t: Any, across: Any, by: Any, scale: Any, noise: Any, size: Any) -> Any:
    """Return t / by, for the adjoint t of a rotation of two singular vectors, where `by` may be 0.

    `across` is the adjoint of the element between them. A function that does not depend on which of
    several equal singular vectors were chosen has t = by * across: then the quotient is `across`, with no
    division. Values that differ from that by rounding alone count as equal. `size`: of the terms of `by`.
    """
    rest = t - by * across
    # Several sums of three products lead to t: 16 eps bounds their rounding errors.
    limit = 16.0 * float(_numbers(by).eps) * (noise + absolute(by * across))
    # In the tangent, which cannot know what it will be multiplied with, nearly equal vectors do not turn:
    # products that cancel their turn would lose eps / gap.
    turns = absolute(by) > float(_numbers(by).eps) ** 0.5 * size
    left = drop_rounding(rest, limit)
    return across + _ratio(select(turns, left, stop_grad(left)), by, scale)


def _sizes(*matrices: Any) -> list[Any]:
    """Return for each column the sum of its absolute values, over these matrices."""
    n = shape(matrices[0])[0]
    sizes = [0.0] * n
    for m in matrices:
        for k, x in enumerate(elements(absolute(m))):
            sizes[k % n] = sizes[k % n] + x
    return sizes


def svd_adjoint(u: Any, sigma: Any, v: Any, gu: Any, gs: Any, gv: Any) -> Any:
    """Return the adjoint of A, given those of U, sigma and V."""
    n = shape(u)[0]
    x, y, s = (elements(m) for m in (matmul(transpose(u), gu), matmul(transpose(v), gv), sigma))
    g, sizes, scale = elements(gs), _sizes(gu, gv), _largest(s)
    core = [g[i * n + j] for i in range(n) for j in range(n)]
    for i, j in PAIRS[n]:
        ij, ji, si, sj = i * n + j, j * n + i, s[i * n + i], s[j * n + j]
        of_u, of_v, noise = x[ij] - x[ji], y[ij] - y[ji], sizes[i] + sizes[j]
        # U and V rotate in the same sense, or in opposite senses (docs/decompositions.md, "The adjoint").
        same = _rotation_quotient(of_u + of_v, g[ij] + g[ji], sj - si, scale, noise, scale)
        size = maximum(absolute(si), absolute(sj))
        opposite = _rotation_quotient(of_u - of_v, g[ij] - g[ji], si + sj, scale, noise, size)
        core[ij], core[ji] = 0.5 * (same + opposite), 0.5 * (same - opposite)
    return matmul(matmul(u, pack(core, (n, n))), transpose(v))


def sym_eig_adjoint(values: Any, v: Any, gl: Any, gv: Any) -> Any:
    """Return the adjoint of A, given those of the diagonal matrix of eigenvalues and of V."""
    n = shape(v)[0]
    x, s, g = elements(matmul(transpose(v), gv)), elements(values), elements(gl)
    sizes, scale = _sizes(gv), _largest(s)
    core = [g[i * n + j] for i in range(n) for j in range(n)]
    for i, j in PAIRS[n]:
        ij, ji = i * n + j, j * n + i
        by = s[j * n + j] - s[i * n + i]
        noise = sizes[i] + sizes[j]
        # Eigenvalues come as a vector: nothing is made of the element between them, so vectors always turn.
        quotient = _rotation_quotient(x[ij] - x[ji], g[ij] + g[ji], by, scale, noise, 0.0)
        # Symmetric: only the symmetric part of A is decomposed.
        core[ij] = core[ji] = 0.5 * quotient
    return matmul(matmul(v, pack(core, (n, n))), transpose(v))


def sym_map_adjoint(values: Any, v: Any, gl: Any, gv: Any) -> Any:
    """Return the same for functions of a matrix, which do not depend on how V turns.

    So V may count as constant: all of V^T dA V is the change of the diagonal matrix.
    """
    return matmul(matmul(v, _symmetric(gl)), transpose(v))


def polar2_adjoint(r: Any, s: Any, gr: Any, gs: Any) -> Any:
    """Return the adjoint of A, given those of R and S."""
    gs = _symmetric(gs)
    # With dR = R W, W antisymmetric: R^T dA = W S + dS, and S is symmetric.
    z, e = elements(matmul(transpose(r), gr) - matmul(gs, s)), elements(s)
    trace = e[0] + e[3]
    w = _ratio(z[2] - z[1], trace, trace)
    nothing = _constant(0.0, w)
    return matmul(r, pack([nothing, -w, w, nothing], (2, 2)) + gs)


def polar3_adjoint(r: Any, s: Any, gr: Any, gs: Any) -> Any:
    """Return the adjoint of A, given those of R and S.

    The angular velocity w of R solves (tr(S) - S) w = the axis of R^T dA, a matrix whose eigenvalues are
    the sums of two singular values.
    """
    gs = _symmetric(gs)
    e = elements(s)
    trace = e[0] + e[4] + e[8]  # not less than the largest singular value
    there = trace > 0
    # Scaled to trace 1, so that products of three elements neither overflow nor underflow.
    e = [x / select(there, trace, 1.0) for x in e]
    p, q, t, x, y, z = 1.0 - e[0], 1.0 - e[4], 1.0 - e[8], e[5], e[2], e[1]
    rows = (  # of the inverse of [[p, -z, -y], [-z, q, -x], [-y, -x, t]], times its determinant
        (q * t - x * x, z * t + x * y, x * z + q * y),
        (z * t + x * y, p * t - y * y, p * x + y * z),
        (x * z + q * y, p * x + y * z, p * q - z * z),
    )
    det = p * rows[0][0] - z * rows[0][1] - y * rows[0][2]
    k = elements(matmul(transpose(r), gr) - matmul(gs, s))
    axis = pack([k[7] - k[5], k[2] - k[6], k[3] - k[1]], (3,))
    inverse = _ratio(_ratio(_constant(1.0, det), det, 1.0), trace, trace)
    u, v, w = (inverse * dot(pack(list(row), (3,)), axis) for row in rows)
    nothing = _constant(0.0, u)
    return matmul(r, pack([nothing, -w, v, w, nothing, -u, -v, u, nothing], (3, 3)) + gs)
