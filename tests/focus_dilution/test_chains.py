"""Facts about the families of chains that have a given stationary distribution."""

import numpy as np
import pytest
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution import (
    MarkovChain,
    balanced_chain,
    condensation_rate,
    coupled_chain,
    focus_rate,
    nearly_symmetric_chain,
)
from markov import FALLING

PI = np.array(FALLING)


@pytest.mark.parametrize("seed", range(5))
def test_a_balanced_chain_has_its_pi_and_the_odds_of_its_weights(seed: int) -> None:
    weights = np.exp(np.random.default_rng(seed).standard_normal((5, 5)))
    chain = balanced_chain(weights, PI)
    np.testing.assert_allclose(chain.stationary, PI, rtol=1e-12)
    flow = PI[:, None] * chain.transition
    # scaling rows and columns keeps every ratio J_ij J_kl / (J_il J_kj)
    odds = np.log(flow) - np.log(weights)
    np.testing.assert_allclose(odds - odds[:1] - odds[:, :1] + odds[0, 0], 0, atol=1e-12)


def test_a_balanced_chain_of_symmetric_weights_is_reversible() -> None:
    noise = np.random.default_rng(0).uniform(1, 2, (5, 5))
    flow = PI[:, None] * balanced_chain(noise + noise.T, PI).transition
    np.testing.assert_allclose(flow, flow.T, atol=1e-15)


def test_balanced_weights_of_a_chain_give_the_chain() -> None:
    chain = MarkovChain.lazy(PI, -0.05)
    np.testing.assert_allclose(
        balanced_chain(PI[:, None] * chain.transition, PI).transition, chain.transition, rtol=1e-12
    )


def test_weights_without_a_scaling_are_reported() -> None:
    # tokens 0 and 1 are followed by token 2 alone, which cannot take in as much as they send
    weights = np.array([[0, 0, 1.0], [0, 0, 1.0], [1.0, 1.0, 1.0]])
    with pytest.raises(ConvergenceError, match="cannot be scaled to these sums") as caught:
        balanced_chain(weights, [0.4, 0.4, 0.2])
    assert caught.value.residual > 0.1
    assert caught.value.last.shape == (3, 3)


def test_a_coupled_chain_is_run_backwards_by_exchanging_its_vectors() -> None:
    a, b = np.array([1.0, 0, -1, 0, 0]), np.array([0.0, 1, 0, -1, 0])
    forwards, backwards = coupled_chain(PI, a, b, 0.018), coupled_chain(PI, b, a, 0.018)
    np.testing.assert_allclose(forwards.stationary, PI, rtol=1e-12)
    flow = PI[:, None] * forwards.transition
    np.testing.assert_allclose(flow.T, PI[:, None] * backwards.transition, atol=1e-16)
    covariance = 0.018 * (a @ PI) * (b @ np.log(PI))
    assert np.sign(focus_rate(forwards)) == np.sign(covariance)
    assert focus_rate(coupled_chain(PI, a, b, 0)) == 0


def test_the_nearly_symmetric_chain_is_the_running_example() -> None:
    chain = nearly_symmetric_chain(0.02)
    expected = MarkovChain.lazy([0.5, 0.14, 0.12, 0.1, 0.08, 0.06], 0.3)
    np.testing.assert_allclose(chain.transition, expected.transition, rtol=1e-13)
    other = nearly_symmetric_chain(0.1, -0.05, pattern=[1, -1])
    np.testing.assert_allclose(other.stationary, [0.5, 0.35, 0.15], rtol=1e-13)
    assert condensation_rate(nearly_symmetric_chain(0)) == pytest.approx(0.2, abs=5e-4)


def test_bad_arguments_are_named() -> None:
    ones = np.ones((5, 5))
    with pytest.raises(ValueError, match=r"weights must be a real array of shape \(5, 5\)"):
        balanced_chain(np.ones((4, 4)), PI)
    with pytest.raises(ValueError, match="weights must have no negative entry"):
        balanced_chain(-ones, PI)
    with pytest.raises(ValueError, match="no row or column of zeros"):
        balanced_chain(np.diag([0.0, 1, 1, 1, 1]), PI)
    with pytest.raises(ValueError, match="stationary must have entries that sum to 1"):
        balanced_chain(ones, 2 * PI)
    a = np.array([1.0, 0, -1, 0, 0])
    with pytest.raises(ValueError, match="first must have entries that sum to 0; they sum to 1"):
        coupled_chain(PI, [1, 0, 0, 0, 0], a, 0.01)
    with pytest.raises(ValueError, match=r"second must be a real array of shape \(5\)"):
        coupled_chain(PI, a, [1, -1], 0.01)
    with pytest.raises(ValueError, match="strength must be so small that no probability is negative; got 1"):
        coupled_chain(PI, a, a, 1)
    with pytest.raises(ValueError, match=r"asymmetry must be so small that all frequencies are positive; got 0\.05"):
        nearly_symmetric_chain(0.05)
    with pytest.raises(ValueError, match="pattern must have entries that sum to 0"):
        nearly_symmetric_chain(0.01, pattern=[1, 2])
    with pytest.raises(ValueError, match="persistence must be in"):
        nearly_symmetric_chain(0, 1)
