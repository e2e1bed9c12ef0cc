"""Krylov solvers on NumPy vectors: conjugate gradients, BiCGStab and GMRES.

They need no matrix but products with it, and end with the residual that was really computed, so that a wrong
recurrence cannot pass for a solution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Product = Callable[[np.ndarray], np.ndarray]
"""A matrix times a vector."""

_RESTART = 50
"""Vectors that GMRES keeps before it begins anew."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When an iteration ends: at the residual `tolerance` relative to the right-hand side, or failing.

    Attributes:
        rounding: the relative error of a product with the matrix. A residual that this explains is as small
            as that of a factorisation.
    """

    tolerance: float
    most: int
    rounding: float


class NotConvergedError(Exception):
    """The iteration ended without a solution; `why` in words, and the residual relative to b."""

    def __init__(self, why: str, residual: float = 0.0, iterations: int = 0) -> None:
        super().__init__(why, residual, iterations)
        self.why = why
        self.residual = residual
        self.iterations = iterations


class _Count:
    """Counts iterations, and raises where there are too many."""

    def __init__(self, apply: Product, b: np.ndarray, limits: Limits) -> None:
        self._apply = apply
        self.size = 0.0  # a lower bound of the norm of the matrix
        self.b = b
        self.norm = float(np.linalg.norm(b))
        self.limits = limits
        self.number = 0

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return the product, and note the norm that it shows."""
        found, norm = self._apply(x), float(np.linalg.norm(x))
        if norm:
            self.size = max(self.size, float(np.linalg.norm(found)) / norm)
        return found

    def goal(self, x: np.ndarray) -> float:
        """Return the residual that is small enough."""
        noise = self.limits.rounding * (self.size * float(np.linalg.norm(x)) + self.norm)
        return max(self.limits.tolerance * self.norm, noise)

    def residual(self, x: np.ndarray) -> float:
        return float(np.linalg.norm(self.b - self.apply(x))) / self.norm

    def next(self, x: np.ndarray) -> None:
        if self.number >= self.limits.most:
            raise self.failed(f"no solution in {self.number} iterations", x)
        self.number += 1

    def failed(self, why: str, x: np.ndarray) -> NotConvergedError:
        with np.errstate(all="ignore"):
            return NotConvergedError(why, self.residual(x), self.number)


def conjugate_gradients(
    apply: Product, b: np.ndarray, limits: Limits, precondition: Product
) -> np.ndarray:
    """Solve A x = b for symmetric positive definite A (Hestenes and Stiefel, 1952)."""
    count, x = _Count(apply, b, limits), np.zeros_like(b)
    if not count.norm:
        return x
    r = b.copy()
    while not _is_solved(count, x, r):
        z = precondition(r)
        p, rz = z.copy(), float(r @ z)
        # The recurrence for r drifts from b - A x in rounding: then it begins anew.
        while np.linalg.norm(r) > count.goal(x):
            count.next(x)
            ap = count.apply(p)
            curvature = float(p @ ap)
            if not curvature > 0 or not rz > 0:
                raise count.failed("the matrix is not symmetric and positive definite", x)
            step = rz / curvature
            x += step * p
            r -= step * ap
            z = precondition(r)
            rz, before = float(r @ z), rz
            p = z + rz / before * p
        r = b - count.apply(x)
    return x


def bicgstab(apply: Product, b: np.ndarray, limits: Limits, precondition: Product) -> np.ndarray:
    """Solve A x = b (H. A. van der Vorst, SIAM J. Sci. Stat. Comput. 13(2), 1992)."""
    count, x = _Count(apply, b, limits), np.zeros_like(b)
    if not count.norm:
        return x
    r = b.copy()
    while not _is_solved(count, x, r):
        shadow, p, v = r.copy(), np.zeros_like(b), np.zeros_like(b)
        rho = alpha = omega = 1.0
        while np.linalg.norm(r) > count.goal(x):
            count.next(x)
            rho, before = float(shadow @ r), rho
            if not rho or not omega:
                break  # a breakdown: anew from this residual
            p = r + rho / before * alpha / omega * (p - omega * v)
            direction = precondition(p)
            v = count.apply(direction)
            along = float(shadow @ v)
            if not along:
                break
            alpha = rho / along
            x += alpha * direction
            s = r - alpha * v
            correction = precondition(s)
            t = count.apply(correction)
            square = float(t @ t)
            omega = float(t @ s) / square if square else 0.0
            x += omega * correction
            r = s - omega * t
        r = b - count.apply(x)
    return x


def gmres(apply: Product, b: np.ndarray, limits: Limits, precondition: Product) -> np.ndarray:
    """Solve A x = b by least residuals, begun anew after some vectors (Saad and Schultz, 1986)."""
    count, x = _Count(apply, b, limits), np.zeros_like(b)
    if not count.norm:
        return x
    r = b.copy()
    while not _is_solved(count, x, r):
        before = float(np.linalg.norm(r))
        x = x + precondition(_correction(count, x, r, precondition))
        r = b - count.apply(x)
        if not np.linalg.norm(r) < before:
            raise count.failed("the residual does not fall", x)
    return x


def _correction(count: _Count, x: np.ndarray, r: np.ndarray, precondition: Product) -> np.ndarray:
    """Return the best correction in one Krylov space (Arnoldi's process), before preconditioning."""
    size = min(_RESTART, len(r))
    beta = float(np.linalg.norm(r))
    basis, hessenberg = [r / beta], np.zeros((size + 1, size))
    first = np.zeros(size + 1)
    first[0] = beta
    weights: np.ndarray = np.zeros(0)
    for k in range(size):
        count.next(x)
        w = count.apply(precondition(basis[k]))
        scale = float(np.linalg.norm(w))
        for _ in range(2):  # twice is enough for orthogonality in rounding
            for i, v in enumerate(basis):
                part = float(v @ w)
                hessenberg[i, k] += part
                w = w - part * v
        hessenberg[k + 1, k] = norm = float(np.linalg.norm(w))
        top = hessenberg[: k + 2, : k + 1]
        if not np.isfinite(top).all():
            raise count.failed("a product with the matrix is not finite", x)
        weights = np.linalg.lstsq(top, first[: k + 2], rcond=None)[0]
        rest = float(np.linalg.norm(first[: k + 2] - top @ weights))
        if rest <= 0.5 * count.goal(x) or norm <= 1e-14 * scale:
            break
        basis.append(w / norm)
    return np.asarray(weights @ np.array(basis[: len(weights)]))


def _is_solved(count: _Count, x: np.ndarray, r: np.ndarray) -> bool:
    """Whether a residual, computed anew, is small enough."""
    norm = float(np.linalg.norm(r))
    if not np.isfinite(norm):
        raise count.failed("a product with the matrix is not finite", x)
    return norm <= count.goal(x)


METHODS = {"cg": conjugate_gradients, "bicgstab": bicgstab, "gmres": gmres}
