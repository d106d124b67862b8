"""What can be said of the flow without following it: linear flows near its critical points, and rates in closed form.

The origin, the unigram point theta_c^1 and the end of the rank-one flow are critical points. Near each of them the flow
is linear, and what grows or contracts there follows from the chain. As summarised, Lemma 3.1 to Theorem 3.9 of Chen,
Lin, Xu, Luo (ICML 2026, arXiv 2605.01199) are about these flows; all formulas are derived in the chapters of Part II.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.focus_dilution.condensation import (
    above_uniform,
    condensation_rate,
    unigram_profile,
)
from attention_phases.focus_dilution.dilution import RankOnePoint
from attention_phases.focus_dilution.focus import focus_rate
from attention_phases.focus_dilution.markov_transformer import MarkovChain, Parameters, few_tokens, fitting
from attention_phases.focus_dilution.stages import predicted_path
from attention_phases.focus_dilution.symmetry_breaking import resting_point
from attention_phases.focus_dilution.weight_space import unit_vector

_LARGEST_EXPONENT = 600  # the exponential of more may not fit into a number, once it is multiplied
_ALIKE = 1e-9  # probabilities this close, relative, are those of tokens that are alike


class LinearCondensation(NamedTuple):
    """The linear flow at the origin, at T times.

    Attributes:
        W0: (T, d, m).
        W1: (T, m, d).
        alpha: ``W0^T pi/|pi|``, (T, m).
        beta: ``W1 (pi - 1/d)/|pi - 1/d|``, (T, m).
    """

    W0: Float[Array, "T d m"]
    W1: Float[Array, "T m d"]
    alpha: Float[Array, "T m"]
    beta: Float[Array, "T m"]


class EmbeddingPrediction(NamedTuple):
    """The embedding, predicted from the weights at time 0 until a second direction has grown.

    Attributes:
        times: (T,), increasing, from 0; as dense as the part across needs.
        W0: ``w0 u^T + X``, (T, d, m): the rank-one flow, and the linear flow of what lies across it.
    """

    times: Float[Array, " T"]
    W0: Float[Array, "T d m"]


def linear_condensation(parameters: Parameters, chain: MarkovChain, times: ArrayLike) -> LinearCondensation:
    """The linear flow ``dW0/dt = pi (pi - 1/d)^T W1^T, dW1/dt = W0^T pi (pi - 1/d)^T`` from given weights.

    With ``lambda_1 = |pi| |pi - 1/d|``, alpha and beta are ``alpha cosh + beta sinh`` and ``beta cosh + alpha sinh`` of
    ``lambda_1 t``; what is orthogonal to them does not move. W_Q and W_K stay as they are.

    Args:
        parameters: the weights at time 0.
        chain: its pi must not be uniform.
        times: (T,).

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    W0, W1, _, _ = fitting(parameters, chain)
    t = _checks.array("times", times, (None,))
    pi, above, rate = chain.stationary, above_uniform(chain.stationary), condensation_rate(chain)
    if rate == 0:
        raise ValueError("chain must have a stationary distribution that is not uniform: nothing condenses there")
    if (longest := np.abs(t).max()) > _LARGEST_EXPONENT / rate:
        raise ValueError(
            f"times must be at most {_LARGEST_EXPONENT / rate:.4g}, lest the linear flow overflow; got {longest:g}"
        )
    p, n = pi / np.linalg.norm(pi), above / np.linalg.norm(above)
    alpha0, beta0 = W0.T @ p, W1 @ n
    ch, sh = np.cosh(rate * t)[:, None], np.sinh(rate * t)[:, None]
    alpha, beta = ch * alpha0 + sh * beta0, ch * beta0 + sh * alpha0
    return LinearCondensation(
        W0 + p[:, None] * (alpha - alpha0)[:, None, :], W1 + (beta - beta0)[:, :, None] * n, alpha, beta
    )


def contraction_rates(chain: MarkovChain) -> Float[Array, " d-1"]:
    """The rates at which W0 and W1 contract onto theta_c^1, (d - 1,), from the smallest on, the rarest token's.

    They are the eigenvalues, but for a zero, of ``C (c^2 |pi|^4 I + |pi|^2 w1 w1^T)`` with ``C = diag pi - pi pi^T``
    and c, w1 of `unigram_profile`.

    Raises:
        ValueError: `chain` is not a `MarkovChain`, or has more than 10000 tokens.
    """
    w0, w1 = unigram_profile(chain)
    few_tokens(chain)
    pi = chain.stationary
    root = np.diag(np.sqrt(pi)) - np.outer(pi, np.sqrt(pi))  # root root^T = C
    inner = root.T @ ((w0 @ pi) ** 2 * np.eye(len(pi)) + pi @ pi * np.outer(w1, w1)) @ root
    rates: Array = np.linalg.eigvalsh(inner)[1:]
    return rates


def unigram_spectrum(chain: MarkovChain, width: int) -> tuple[Float[Array, " 2dm"], Float[Array, " 2mm"]]:
    """All growth rates at theta_c^1, those of (W0, W1), (2 d m,), and of (W_Q, W_K), (2 m^2,), each in rising order.

    The first block contracts at the d - 1 `contraction_rates` and is neutral else. In the second one `focus_rate` and
    its negative stand m times each, and zeros.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    contracting, m = -contraction_rates(chain)[::-1], _checks.integer("width", width, 1)
    rate = abs(focus_rate(chain))
    outer = np.append(contracting, np.zeros(2 * chain.n_tokens * m - len(contracting)))
    return outer, np.array([-rate] * m + [0.0] * (2 * m * m - 2 * m) + [rate] * m)


def grown_scores(
    parameters: Parameters, u: ArrayLike, growth: ArrayLike
) -> tuple[Float[Array, "T m"], Float[Array, "T m"]]:
    """``q = W_Q^T u`` and ``k = W_K^T u``, (T, m) each, once q + k has grown by ``e^growth`` and q - k shrunk by it.

    With the growth of a `rank_one_flow` this holds on the rank-one manifold throughout; with ``lambda_2 t`` it is the
    linear flow at theta_c^1. What lies across u stays as it is in both.

    Args:
        parameters: the weights from which the growth is counted.
        u: (m,), a unit vector.
        growth: (T,), of either sign.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    _checks.instance("parameters", parameters, Parameters)
    direction = unit_vector("u", u, parameters.width)
    exponents = _checks.array("growth", growth, (None,))
    if (largest := np.abs(exponents).max()) > _LARGEST_EXPONENT:
        raise ValueError(f"growth must be of size at most {_LARGEST_EXPONENT}; got {largest:g}")
    factor = np.exp(exponents)[:, None]
    q, k = parameters.WQ.T @ direction, parameters.WK.T @ direction
    grown, shrunk = factor * (q + k), (q - k) / factor
    return (grown + shrunk) / 2, (grown - shrunk) / 2


def mass_redistribution(chain: MarkovChain) -> Float[Array, " d"]:
    """``D_k/s`` at the beginning of focus, (d,), where ``D_k = w0_k - pi_k sum_j w0_j`` is off the ray of pi.

    It is ``f_k/(2 |lambda_2|)`` with ``f_k = 2 lambda_2/v pi_k (w0_k - mean) + v r_k``: what a token gains as it is
    looked at, and as it looks. Mean and variance v are those of w0 under pi at theta_c^1, and r_k is
    ``pi_k (P_k - pi) . w1``.

    Raises:
        ValueError: `chain` is not a `MarkovChain`, or its focus rate is 0.
    """
    rate = focus_rate(chain)
    if rate == 0:
        raise ValueError("chain must have a focus rate that is not 0: no scores grow there; got 0")
    pi, (w0, w1) = chain.stationary, unigram_profile(chain)
    above = w0 - w0 @ pi
    v = pi @ above**2
    result: Array = (2 * rate / v * pi * above + v * pi * (chain.matrix @ w1 - pi @ w1)) / (2 * abs(rate))
    return result


def parting_rate(point: RankOnePoint, one: int, other: int) -> float:
    """The rate at which two tokens that are exactly alike part along u, at a resting point; negative: they do not.

    The difference y of their embeddings and h of their entries of w1 are pushed by nothing else. Their rate is the
    larger eigenvalue of ``F_ii - F_ij`` of the 2 x 2 blocks in (w0, w1) of minus the Hessian on the manifold.

    Raises:
        ValueError: a token is not one, or the two are not alike.
    """
    _checks.instance("point", point, RankOnePoint)
    d = point.chain.n_tokens
    i, j = _checks.integer("one", one, 0, d - 1), _checks.integer("other", other, 0, d - 1)
    exchanged = np.arange(d)
    exchanged[[i, j]] = j, i
    P = point.chain.transition
    if i == j or not np.allclose(P[np.ix_(exchanged, exchanged)], P, rtol=_ALIKE, atol=0):
        raise ValueError(f"one and other must be two tokens that the chain treats alike; got {i} and {j}")
    F, first, second = point.force_derivative, [i, d + i], [j, d + j]
    return float(np.linalg.eigvalsh(F[np.ix_(first, first)] - F[np.ix_(first, second)])[-1])


def symmetry_breaking_slope(chain: MarkovChain) -> float:
    """``|l|``: symmetry breaking has the rate ``delta |l| |xi|`` where alike tokens come to differ by ``delta xi``.

    The chain is lazy, with one frequent token, the first, and n >= 2 rare ones that are exactly alike; it is this
    symmetric chain that gives the slope, by a perturbation of its `resting_point`.

    Raises:
        ValueError: the chain is not of this kind.
        ConvergenceError: as for `resting_point`.
    """
    _checks.instance("chain", chain, MarkovChain)
    pi, P = chain.stationary, chain.transition
    kappa = 1 - float(P[0, 1] / pi[1])
    alike = np.allclose(pi[1:], pi[1], rtol=_ALIKE) and pi[0] > pi[1] and len(pi) > 2
    if not alike or not np.allclose(P, kappa * np.eye(len(pi)) + (1 - kappa) * pi, rtol=_ALIKE, atol=_ALIKE):
        raise ValueError("chain must be lazy, with one frequent token, the first, and two or more rare ones alike")
    end = resting_point(chain)
    at = RankOnePoint(chain, end.w0, end.w1, end.score_scale)
    a, x, p, w0, w1 = at.attention, at.x, at.probabilities, at.w0, at.w1
    v0, v1 = at.variance[1], p[1] @ w1**2 - (p[1] @ w1) ** 2
    gamma = (kappa * x[1] + (1 - kappa) * pi @ x) / (pi * x**2 @ p[:, 1] - kappa**2 * pi[1] / v1)
    theta = kappa * gamma / v1
    by_rare_queries = kappa * pi[1] * theta / v0 * a[1] * (w0 - x[1])
    by_outputs = pi[0] * a[0] * (1 - kappa - gamma * x[0] * p[0, 1])
    by_outputs += a[1] * (kappa + (1 - pi[0]) * (1 - kappa - gamma * x[1] * p[1, 1]))
    return float(np.linalg.norm(by_rare_queries + by_outputs))


@one_thread
def predicted_embedding(chain: MarkovChain, parameters: Parameters) -> EmbeddingPrediction:
    """The embedding from the weights at time 0 alone, until the second direction is a quarter of the first.

    What lies along the direction u in which the weights condense follows the rank-one flow; what lies across it grows
    by the transverse operator along that flow, and then at its end, as in `predict_timeline`. Where nothing grows
    across, it ends where the rank-one flow comes to rest.

    Raises:
        ValueError: the parameters are for another number of tokens, or have no part along the growing line.
        ConvergenceError: the rank-one flow does not come to rest.
    """
    fitting(parameters, chain)
    path = [(time, across.embedding(point)) for time, point, _, across in predicted_path(chain, parameters)]
    return EmbeddingPrediction(np.array([time for time, _ in path]), np.array([W0 for _, W0 in path]))
