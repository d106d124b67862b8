"""Condensation: how the weights leave the origin along one line, and the point that they reach.

Near the origin attention stays at its base rates pi and the scores' weights stay as they are; the outer weights obey

    dW0/dt = pi (pi - 1/d)^T W1^T,        dW1/dt = W0^T pi (pi - 1/d)^T.

With the unit vectors p along pi and n along pi - 1/d, the m numbers ``(W0^T p + W1 n)/sqrt(2)`` grow at the rate
``lambda_1 = |pi| |pi - 1/d|``: W0 condenses onto p u^T and W1 onto u n^T, where the unit vector u in R^m is the
direction of those m numbers, picked by the start. The ray ends in the unigram point theta_c^1, of loss -sum pi log pi.

As summarised, Theorems 3.2 and 3.3 of Chen, Lin, Xu, Luo (ICML 2026, arXiv 2605.01199); derived here afresh.
"""

import numpy as np
from jaxtyping import Float

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases.focus_dilution.markov_transformer import MarkovChain, Parameters, Seed, fitting

_ROUNDING = 1e-12  # a vector this much shorter than what it is a difference of is zero


def condensation_rate(chain: MarkovChain) -> float:
    """lambda_1 = |pi| |pi - 1/d|, the rate at which W0 and W1 leave the origin; 0 where pi is uniform.

    Raises:
        ValueError: `chain` is not a `MarkovChain`.
    """
    _checks.instance("chain", chain, MarkovChain)
    pi = chain.stationary
    return float(np.linalg.norm(pi) * np.linalg.norm(above_uniform(pi)))


def condensing_direction(parameters: Parameters, chain: MarkovChain) -> Float[Array, " m"]:
    """u, (m,): the unit vector along ``W0^T p + W1 n``, the part of the weights that grows at lambda_1.

    Raises:
        ValueError: the parameters are for another number of tokens, pi is uniform, or the part that grows is zero.
    """
    return direction_of("parameters", parameters, chain)


def unigram_profile(chain: MarkovChain) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """w0 and w1, each (d,), of the unigram point ``W0 = w0 u^T, W1 = u w1^T``.

    With ``ell = log pi - mean(log pi)`` they are ``w0 = c pi`` and ``w1 = ell/(c |pi|^2)``; the flow conserves
    ``|w0|^2 - |w1|^2``, which is zero for a start at the origin, hence ``c^2 = |ell|/|pi|^3``. Both are 0 where pi is
    uniform.

    Raises:
        ValueError: `chain` is not a `MarkovChain`.
    """
    _checks.instance("chain", chain, MarkovChain)
    pi = chain.stationary
    if not above_uniform(pi).any():
        return np.zeros_like(pi), np.zeros_like(pi)
    ell = np.log(pi)
    ell -= ell.mean()
    c = np.sqrt(np.linalg.norm(ell) / np.linalg.norm(pi) ** 3)
    return c * pi, ell / (c * (pi @ pi))


def unigram_point(chain: MarkovChain, width: int, seed: Seed) -> Parameters:
    """theta_c^1, the critical point to which the flow from the origin condenses: it predicts pi, whatever the context.

    ``W0 = c pi u^T`` and ``W1 = u w1^T`` as in `unigram_profile`, W_Q = W_K = 0; the unit vector u is drawn at random.
    Where pi is uniform it is the origin itself.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    w0, w1 = unigram_profile(chain)
    width = _checks.integer("width", width, 1)
    u = _checks.generator(seed).standard_normal(width)
    u /= np.linalg.norm(u)
    zero = np.zeros((width, width))
    return Parameters(np.outer(w0, u), np.outer(u, w1), zero, zero)


def direction_of(name: str, parameters: Parameters, chain: MarkovChain) -> Float[Array, " m"]:
    """`condensing_direction` of an argument with another name."""
    W0, W1, _, _ = fitting(parameters, chain, name)
    pi = chain.stationary
    above = above_uniform(pi)
    if not above.any():
        raise ValueError("chain must have a stationary distribution that is not uniform: nothing condenses there")
    grows: Array = W0.T @ (pi / np.linalg.norm(pi)) + W1 @ (above / np.linalg.norm(above))
    size = np.linalg.norm(grows)
    if size == 0:
        raise ValueError(f"{name} must have a part that grows, W0^T pi/|pi| + W1 (pi - 1/d)/|pi - 1/d|; got 0")
    direction: Array = grows / size
    return direction


def above_uniform(stationary: Float[Array, " d"]) -> Float[Array, " d"]:
    """pi - 1/d, and exactly zero where pi is uniform to rounding."""
    above = stationary - 1 / len(stationary)
    return above if np.abs(above).max() > _ROUNDING * stationary.max() else np.zeros_like(above)
