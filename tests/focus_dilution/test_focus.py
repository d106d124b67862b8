"""Facts about the rate at which attention leaves its base rates."""

import numpy as np
import pytest
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    flatten,
    hessian_operator,
    local_growth_rate,
    nearly_symmetric_chain,
    unflatten,
    unigram_spectrum,
)
from attention_phases.focus_dilution.condensation import unigram_point
from attention_phases.focus_dilution.focus import focus_rate
from markov import CHAINS, FALLING, SKEWED, Followed, follow


def from_unigram_point(chain: MarkovChain, init_scale: float, seed: int, last_scale: float = 3e-2) -> Followed:
    m, d = 3, chain.n_tokens
    start = flatten(unigram_point(chain, m, seed)) + flatten(Parameters.gaussian(d, m, init_scale, seed + 100))
    return follow(chain, unflatten(start, d, m), np.log(last_scale / init_scale) / abs(focus_rate(chain)), 1e-8)


@pytest.mark.parametrize("name", CHAINS)
def test_rate_is_the_growth_of_the_full_flow_while_it_is_linear(name: str) -> None:
    chain, init_scale = CHAINS[name], 1e-6
    run = from_unigram_point(chain, init_scale, seed=2)
    query = np.array([np.linalg.norm(frame.WQ) for frame in run.frames])
    measured = local_growth_rate(
        run.times, query, 30 * init_scale, 1e-2
    ).median  # of the curvature at W_Q = 1e-2: a part of 1e-4
    assert measured == pytest.approx(abs(focus_rate(chain)), rel=0.001)


@pytest.mark.parametrize("name", CHAINS)
def test_sign_of_the_rate_says_whether_attention_turns_to_frequent_or_to_rare_tokens(name: str) -> None:
    chain = CHAINS[name]
    run = from_unigram_point(chain, 1e-6, seed=3)
    last, sign = run.frames[-1], np.sign(focus_rate(chain))
    np.testing.assert_allclose(last.WK, sign * last.WQ, atol=1e-4)
    pi = chain.stationary
    more_frequent = run.attention[-1] @ pi - pi @ pi  # mean base rate of the attended token, above where it was
    assert (sign * more_frequent > 0).all()
    pattern = np.log(run.attention[-1] / pi)
    pattern -= (pattern @ pi)[:, None]
    expected = np.outer(pi, pi - pi @ pi)  # z ~ pi pi^T, up to what does not change a row of the attention
    cosine = (pattern * expected).sum() / np.linalg.norm(pattern) / np.linalg.norm(expected)
    assert cosine == pytest.approx(sign, abs=1e-3)


@pytest.mark.parametrize("name", ["lazy", "irreversible, to rare tokens"])
def test_at_the_unigram_point_the_scores_alone_are_unstable(name: str) -> None:
    chain, m = CHAINS[name], 2
    d = chain.n_tokens
    point = unigram_point(chain, m, seed=4)
    growth = -(hessian_operator(point, chain) @ np.eye(2 * d * m + 2 * m * m))
    outer, scores = slice(0, 2 * d * m), slice(2 * d * m, None)
    assert np.abs(growth[outer, scores]).max() < 1e-15
    assert np.linalg.eigvalsh(growth[outer, outer]).max() < 1e-13
    np.testing.assert_allclose(np.linalg.eigvalsh(growth[scores, scores]), unigram_spectrum(chain, m)[1], atol=1e-14)


def test_rate_of_a_lazy_chain_is_proportional_to_its_persistence() -> None:
    at_one = focus_rate(nearly_symmetric_chain(0.01, 0.5)) / 0.5
    for persistence in (-0.05, 0.1, 0.9):
        chain = nearly_symmetric_chain(0.01, persistence)
        assert focus_rate(chain) == pytest.approx(persistence * at_one, rel=1e-12)


def test_rate_is_that_of_the_reversed_chain_with_the_factors_exchanged() -> None:
    chain = CHAINS["irreversible"]
    pi = chain.stationary
    backward = MarkovChain((chain.transition * pi[:, None]).T / pi[:, None])
    pair = (pi[:, None] * backward.transition).T  # probability of (X_0, X_1) in the chain, from the reversed one
    covariance = (pair * np.outer(pi - pi @ pi, np.log(pi) - pi @ np.log(pi))).sum()
    ell = np.log(pi) - np.log(pi).mean()
    expected = np.linalg.norm(ell) / np.linalg.norm(pi) ** 5 * covariance * (pi**3 @ np.ones(5) - (pi @ pi) ** 2)
    assert focus_rate(chain) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("stationary", [FALLING, SKEWED, np.ones(7) / 7])
def test_no_focus_where_tokens_are_independent(stationary: tuple[float, ...]) -> None:
    assert focus_rate(MarkovChain.lazy(stationary, 0)) == 0


def test_no_focus_where_pi_is_uniform() -> None:
    assert focus_rate(MarkovChain([[0.2, 0.5, 0.3], [0.3, 0.2, 0.5], [0.5, 0.3, 0.2]])) == 0


def test_chain_that_is_no_chain_is_refused() -> None:
    with pytest.raises(ValueError, match="chain must be a MarkovChain"):
        focus_rate(np.eye(2))  # type: ignore[arg-type]
