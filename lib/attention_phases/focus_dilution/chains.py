"""Chains with a given stationary distribution: for experiments beyond the lazy chain, and for chains of tokens alike.

What a chain is made from is its flow of probability ``J_ij = pi_i P_ij``: a matrix without negative entries whose rows
and columns both sum to pi. Each such matrix is a chain, and it is reversible where the matrix is symmetric.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution.markov_transformer import MarkovChain, _distribution

FREQUENT = 0.5  # pi of the frequent token of `nearly_symmetric_chain`
_SCALINGS = 20_000
_BALANCED = 1e-14  # largest error of a row's sum, in units of pi


def balanced_chain(weights: ArrayLike, stationary: ArrayLike) -> MarkovChain:
    """The chain whose flow is ``J_ij = r_i weights_ij c_j``, scaled by rows and columns until both sum to pi.

    It is the chain nearest to the weights, in Kullback-Leibler divergence, that has this stationary distribution, and
    it is reversible where the weights are symmetric.

    Args:
        weights: (d, d), no negative entry; where all are positive the scaling exists.
        stationary: pi, (d,), positive entries that sum to 1.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: the scaling does not converge, as where zeros of the weights leave no flow with these sums;
            `last` is the flow, (d, d), `residual` the largest error of a row's sum over its pi.
    """
    pi = _distribution("stationary", stationary)
    flow = _checks.array("weights", weights, (len(pi), len(pi)))
    if flow.min() < 0 or not (flow.any(axis=0).all() and flow.any(axis=1).all()):
        raise ValueError("weights must have no negative entry, and no row or column of zeros")
    error = np.inf
    for _ in range(_SCALINGS):
        flow = flow * (pi / flow.sum(axis=1))[:, None]
        flow *= pi / flow.sum(axis=0)
        error = float(np.abs(flow.sum(axis=1) / pi - 1).max())
        if error <= _BALANCED:
            break
    else:
        raise ConvergenceError(f"weights cannot be scaled to these sums: rows are wrong by {error:.1e}", flow, error)
    return MarkovChain(flow / flow.sum(axis=1, keepdims=True))


def coupled_chain(stationary: ArrayLike, first: ArrayLike, second: ArrayLike, strength: float) -> MarkovChain:
    """The chain with the flow ``J_ij = pi_i pi_j + strength first_i second_j``: independent tokens, and one coupling.

    It is reversible where the two vectors are parallel; with the two exchanged it runs backwards.

    Args:
        stationary: pi, (d,), positive entries that sum to 1.
        first: (d,), sums to 0: what of a token matters for the next one.
        second: (d,), sums to 0: what of the next token it changes.
        strength: so small that no entry of the flow is negative.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    pi = _distribution("stationary", stationary)
    vectors = [_zero_sum(name, value, len(pi)) for name, value in (("first", first), ("second", second))]
    strength = _checks.real("strength", strength)
    flow = np.outer(pi, pi) + strength * np.outer(*vectors)
    if flow.min() < 0:
        i, j = np.unravel_index(int(flow.argmin()), flow.shape)
        raise ValueError(
            f"strength must be so small that no probability is negative; got {strength:g}, which makes that of token "
            f"{j} after token {i} {flow[i, j] / pi[i]:.2g}"
        )
    return MarkovChain(flow / flow.sum(axis=1, keepdims=True))


def nearly_symmetric_chain(
    asymmetry: float, persistence: float = 0.3, pattern: ArrayLike = (2, 1, 0, -1, -2)
) -> MarkovChain:
    """The running example: a lazy chain of a token of frequency 1/2, and of rare ones that differ by the asymmetry.

    Args:
        asymmetry: delta; rare token k has the frequency ``1/(2 n) + delta xi_k``, which must be positive.
        persistence: as in `MarkovChain.lazy`.
        pattern: xi, (n,), sums to 0. The tokens are exactly alike where delta = 0.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    asymmetry = _checks.real("asymmetry", asymmetry)
    xi = _zero_sum("pattern", pattern, None)
    rare = (1 - FREQUENT) / len(xi) + asymmetry * xi
    if rare.min() <= 0:
        raise ValueError(
            f"asymmetry must be so small that all frequencies are positive; got {asymmetry:g}, "
            f"which makes one of them {rare.min():.3g}"
        )
    return MarkovChain.lazy(np.append(FREQUENT, rare), persistence)


def _zero_sum(name: str, value: ArrayLike, length: int | None) -> Float[Array, " n"]:
    vector = _checks.array(name, value, (length,))
    if abs(vector.sum()) > 1e-12 * np.abs(vector).sum():
        raise ValueError(f"{name} must have entries that sum to 0; they sum to {vector.sum():.3g}")
    return vector
