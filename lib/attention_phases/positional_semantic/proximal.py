"""The proximal map of the per-sample loss, at its global minimum.

State evolution and GAMP both ask, for each sample with local fields w (L, r), response V and loss ell, for

    h* = argmin_h  1/2 sum_l (h_l - w_l)^T V^-1 (h_l - w_l) + ell(h),        g = V^-1 (h* - w) = -grad ell(h*)

(`SampleLoss` is ell). The objective is not convex: ell is even, and where V is large or w is small several minima
compete. Every sample is therefore descended from several starts, by Newton's method with analytic derivatives, and the
lowest minimum is taken (`descent`; `two_token_descent` for L = 2, r = 1, `two_column_descent` for L = r = 2).

The derivative of g follows from the stationarity of h*, with H the Hessian of ell at h*:

    V^-1 (dh* - dw) = -H dh*      =>      dg/dw = -H (1 + V H)^-1.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases.positional_semantic.descent import Limits, Minima, eliminate, minima
from attention_phases.positional_semantic.sample_loss import SampleLoss
from attention_phases.positional_semantic.two_column_descent import two_column_minima
from attention_phases.positional_semantic.two_token_descent import two_token_derivatives, two_token_minima

_LIMITS = Limits()


@dataclass(frozen=True, eq=False)
class ProximalPoint:
    """Global minima of n samples.

    Attributes:
        minimizer: h*, (L, r, n).
        objective: value of the whole objective at h*, (n,): the Moreau envelope of ell at w.
        fields: w, (L, r, n).
        rival: the lowest other local minimum that was found, (L, r, n); equal to h* where there is none.
        rival_objective: the objective there, (n,); infinite where there is none.
        V: the response, (r, r).
        loss: ell.
    """

    minimizer: Float[Array, "L r n"]
    objective: Float[Array, " n"]
    fields: Float[Array, "L r n"]
    rival: Float[Array, "L r n"]
    rival_objective: Float[Array, " n"]
    V: Float[Array, "r r"]
    loss: SampleLoss

    @cached_property
    def residual(self) -> Float[Array, "L r n"]:
        """g = V^-1 (h* - w)."""
        precision, away = np.linalg.inv(self.V), self.minimizer - self.fields
        if len(self.V) == 1:
            return np.asarray(precision[0, 0] * away)
        return np.asarray(np.tensordot(precision, away, axes=(1, 1)).swapaxes(0, 1))

    @cached_property
    def derivative(self) -> Float[Array, "L r L r n"]:
        """dg/dw of each sample, away from the points where h* jumps."""
        n_tokens, rank, n = self.minimizer.shape
        precision = np.asarray(np.linalg.inv(self.V), dtype=np.float64)
        if n_tokens == 2 and rank == 1:
            return two_token_derivatives(self.loss, float(precision[0, 0]), self.minimizer)
        # from V^-1 (dh* - dw) = -H dh*:  dg/dw = -V^-1 (V^-1 + H)^-1 H
        size = n_tokens * rank
        hessian = self.loss.hessian(self.minimizer).reshape(size, size, n)
        blocks = np.kron(np.eye(n_tokens), precision)
        solution, _ = eliminate(hessian + blocks[..., None], hessian)
        result = -np.tensordot(blocks, solution, axes=1)
        return np.ascontiguousarray(result).reshape(n_tokens, rank, n_tokens, rank, n)


def proximal_map(
    fields: ArrayLike,
    loss: SampleLoss,
    V: ArrayLike,
    near: ProximalPoint | None = None,
) -> ProximalPoint:
    """Minimise ``1/2 sum_l (h_l - w_l)^T V^-1 (h_l - w_l) + ell(h)`` over h, for each of n samples.

    Args:
        fields: w, (L, r, n).
        loss: ell of each sample; n samples.
        V: the response, a number > 0 for r = 1, else (r, r), symmetric and positive definite.
        near: the result for the same samples at fields and V a few per cent away. Its two lowest minima of each sample
            are then followed to where they are now, and the lower one is taken: several times faster than a new search,
            and wrong only where another minimum has become the lowest in between.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: a descent did not end at a stationary point (`last`: the minimisers found, (L, r, n)).
    """
    n_tokens, _, n = loss.cross.shape
    w = _checks.array("fields", fields, (n_tokens, None, n)).copy()
    rank = w.shape[1]
    return global_minima(w, loss, response(V, rank), near)


def global_minima(
    w: Float[Array, "L r n"], loss: SampleLoss, V: Float[Array, "r r"], near: ProximalPoint | None
) -> ProximalPoint:
    """`proximal_map`, for arguments that need no check."""
    start = None if near is None else Minima(near.minimizer, near.objective, near.rival, near.rival_objective)
    if w.shape[:2] == (2, 1):
        found = two_token_minima(w, loss, 1 / float(V[0, 0]), start, _LIMITS)
    elif w.shape[:2] == (2, 2):
        found = two_column_minima(w, loss, np.asarray(np.linalg.inv(V), dtype=np.float64), start, _LIMITS)
    else:
        found = minima(w, loss, np.asarray(np.linalg.inv(V), dtype=np.float64), start, _LIMITS)
    return ProximalPoint(found.lowest, found.value, w, found.rival, found.rival_value, V, loss)


def response(V: ArrayLike, rank: int) -> Float[Array, "r r"]:
    """V as a matrix. ValueError where it is none, not symmetric or not positive definite."""
    if np.ndim(V) == 0 and rank == 1:
        return np.array([[_checks.real("V", V, 0, open_low=True)]])
    matrix = _checks.array("V", V, (rank, rank))
    if np.abs(matrix - matrix.T).max() > 1e-9 * np.abs(matrix).max() or np.linalg.eigvalsh(matrix)[0] <= 0:
        raise ValueError(f"V must be symmetric and positive definite; got {_checks.shown(matrix.tolist())}")
    return (matrix + matrix.T) / 2
