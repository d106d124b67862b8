"""Focus: at the unigram point the scores' weights grow, and attention leaves its base rates.

At theta_c^1 the forces on W0 and W1 vanish whatever the scores' weights are to first order, and their block of the
Hessian of -L has no positive eigenvalue. In the other block

    dW_Q/dt = lambda_2 u u^T W_K,        dW_K/dt = lambda_2 u u^T W_Q,

so ``u^T W_Q + u^T W_K`` grows at lambda_2, and the difference at -lambda_2: m directions, of which the start picks one.

As summarised, Theorems 3.4 and 3.5 of Chen, Lin, Xu, Luo (ICML 2026, arXiv 2605.01199); derived here afresh.
"""

import numpy as np

from attention_phases.focus_dilution.condensation import unigram_profile
from attention_phases.focus_dilution.markov_transformer import MarkovChain

_ROUNDING = 1e-13  # a covariance this much smaller than its two standard deviations is zero


def focus_rate(chain: MarkovChain) -> float:
    """lambda_2, the rate at which W_Q and W_K grow at the unigram point, with the sign of the focus.

    With tokens X_0 and X_1 that follow each other in the stationary chain and c of `unigram_profile`

        lambda_2 = c^2/|pi|^2 Cov[pi(X_0), log pi(X_1)] Var[pi(X_0)].

    It is positive where frequent tokens tend to follow frequent ones: the scores ``z_ik ~ pi_i pi_k`` grow, and
    attention turns to frequent tokens. Where it is negative, W_Q = -W_K grows at ``|lambda_2|``, and attention turns to
    rare tokens. It is 0 where pi is uniform, and where the two factors of the covariance are uncorrelated, as in a
    sequence of independent tokens: no focus there.

    Raises:
        ValueError: `chain` is not a `MarkovChain`.
    """
    w0, _ = unigram_profile(chain)
    pi = chain.stationary
    frequency, log_frequency = pi - pi @ pi, np.log(pi) - pi @ np.log(pi)
    covariance = pi * frequency @ chain.matrix @ log_frequency
    variance = pi @ frequency**2
    if not w0.any() or abs(covariance) <= _ROUNDING * np.sqrt(variance * (pi @ log_frequency**2)):
        return 0.0
    return float(w0 @ w0 / (pi @ pi) ** 2 * covariance * variance)
