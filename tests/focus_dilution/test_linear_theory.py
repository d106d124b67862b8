"""Facts about what can be said of the flow without following it. Linear flows, and rates in closed form."""

import numpy as np
import pytest
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    RankOnePoint,
    condensing_direction,
    contraction_rates,
    flatten,
    focus_rate,
    gradient_flow,
    grown_scores,
    hessian_operator,
    linear_condensation,
    mass_redistribution,
    nearly_symmetric_chain,
    parting_rate,
    predict_timeline,
    predicted_embedding,
    rank_one_flow,
    resting_point,
    symmetry_breaking_rate,
    symmetry_breaking_slope,
    unigram_spectrum,
)
from markov import CHAINS, follow

every_chain = pytest.mark.parametrize("name", CHAINS)
ORIGIN = Parameters(np.zeros((4, 2)), np.zeros((2, 4)), np.zeros((2, 2)), np.zeros((2, 2)))


@every_chain
def test_the_linear_flow_at_the_origin_solves_the_linearised_equation(name: str) -> None:
    chain, h = CHAINS[name], 1e-4
    d, m = chain.n_tokens, 3
    start = Parameters.gaussian(d, m, 1.0, 0)
    zero = Parameters(np.zeros((d, m)), np.zeros((m, d)), np.zeros((m, m)), np.zeros((m, m)))
    found = linear_condensation(start, chain, [0, 2 - h, 2, 2 + h])
    np.testing.assert_allclose(found.W0[0], start.W0, atol=1e-15)
    np.testing.assert_allclose(found.W1[0], start.W1, atol=1e-15)
    at = Parameters(found.W0[2], found.W1[2], start.WQ, start.WK)
    rates = -(hessian_operator(zero, chain) @ flatten(at))
    expected = np.concatenate([(w[3] - w[1]).ravel() / (2 * h) for w in (found.W0, found.W1)])
    np.testing.assert_allclose(rates[: 2 * d * m], expected, atol=1e-7)
    assert not rates[2 * d * m :].any()
    pi = chain.stationary
    np.testing.assert_allclose(found.alpha[2], found.W0[2].T @ pi / np.linalg.norm(pi), atol=1e-14)
    above = pi - 1 / d
    np.testing.assert_allclose(found.beta[2], found.W1[2] @ above / np.linalg.norm(above), atol=1e-14)


@every_chain
def test_contraction_is_slowest_for_the_rarest_token(name: str) -> None:
    rates = contraction_rates(CHAINS[name])
    assert len(rates) == CHAINS[name].n_tokens - 1
    assert (np.diff(rates) >= 0).all()
    assert rates[0] > 0
    outer, scores = unigram_spectrum(CHAINS[name], 2)
    np.testing.assert_array_equal(outer[: len(rates)], -rates[::-1])
    assert scores[-1] == scores[-2] == abs(focus_rate(CHAINS[name]))


def test_without_a_frequency_there_is_no_contraction() -> None:
    assert not contraction_rates(MarkovChain.lazy(np.ones(4) / 4, 0.3)).any()


@every_chain
def test_scores_grow_as_the_growth_of_the_rank_one_flow_says(name: str) -> None:
    chain = CHAINS[name]
    start = Parameters.gaussian(chain.n_tokens, 3, 1e-2, 1)
    u = condensing_direction(start, chain)
    line = rank_one_flow(chain, start=start)
    q, k = grown_scores(start, u, line.growth)
    np.testing.assert_allclose((q * k).sum(axis=1), line.score_scale, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(q[0], start.WQ.T @ u, atol=1e-17)
    np.testing.assert_allclose(k[0], start.WK.T @ u, atol=1e-17)


@pytest.mark.parametrize("persistence", [0.3, -0.1, 0.2])
@pytest.mark.parametrize("pattern", [(2, 1, 0, -1, -2), (1, -1, 0, 0, 0), (4, -1, -1, -1, -1), (1, -1), (1, 1, -2)])
def test_the_slope_of_symmetry_breaking_is_that_of_a_small_asymmetry(
    persistence: float, pattern: tuple[int, ...]
) -> None:
    slope = symmetry_breaking_slope(nearly_symmetric_chain(0, persistence, pattern))
    delta = 1e-6  # the next order is 300 delta or less, relative
    rate = symmetry_breaking_rate(nearly_symmetric_chain(delta, persistence, pattern))
    assert rate == pytest.approx(slope * delta * np.linalg.norm(pattern), rel=1e-3)


def test_the_slope_depends_on_the_size_of_the_difference_alone() -> None:
    """Of the running example it is the number that another program computed before."""
    chain = nearly_symmetric_chain(0)
    assert symmetry_breaking_slope(chain) * np.sqrt(10) == pytest.approx(0.0317, abs=5e-5)


@every_chain
def test_the_predicted_embedding_is_that_of_the_flow(name: str) -> None:
    chain = CHAINS[name]
    start = Parameters.gaussian(chain.n_tokens, 4, 1e-4, 3)
    predicted = predicted_embedding(chain, start)
    assert predicted.times[0] == 0
    assert (np.diff(predicted.times) > 0).all()
    np.testing.assert_allclose(predicted.W0[0], start.W0, atol=1e-18)
    stages = predict_timeline(chain, start)
    assert stages[-1].name == "symmetry-breaking"
    assert predicted.times[-1] >= stages[-1].end
    breaking = stages[-1].start
    run = gradient_flow(chain, start=start, times=np.linspace(0, breaking, 12)[1:])
    for time, weights in zip(run.times[-6:], run.parameters[-6:], strict=True):
        j = int(np.searchsorted(predicted.times, time))
        part = (time - predicted.times[j - 1]) / (predicted.times[j] - predicted.times[j - 1])
        W0 = (1 - part) * predicted.W0[j - 1] + part * predicted.W0[j]
        assert np.abs(weights.W0 - W0).max() < 0.02 * np.abs(weights.W0).max()


def test_where_nothing_grows_across_the_prediction_ends_at_rest() -> None:
    chain = nearly_symmetric_chain(0)
    start = Parameters.gaussian(6, 4, 1e-3, 4)
    predicted = predicted_embedding(chain, start)
    assert predicted.times[-1] == rank_one_flow(chain, start=start).times[-1]
    assert np.linalg.svd(predicted.W0[-1], compute_uv=False)[1] < 0.01


def test_alike_tokens_part_in_the_full_flow_at_the_rate_of_their_point() -> None:
    chain = nearly_symmetric_chain(0, 0.65)
    end = resting_point(chain)
    rate = parting_rate(RankOnePoint(chain, end.w0, end.w1, end.score_scale), 2, 5)
    assert rate == pytest.approx(end.tangential_rates[0], rel=1e-8)
    below = resting_point(nearly_symmetric_chain(0))
    assert parting_rate(RankOnePoint(below.chain, below.w0, below.w1, below.score_scale), 2, 5) < 0


def test_redistribution_is_that_of_the_full_flow_early_in_focus() -> None:
    chain = CHAINS["restless"]
    start = Parameters.gaussian(6, 4, 1e-5, 5)
    run = follow(chain, start, 1150)
    u = condensing_direction(start, chain)
    w0 = np.array([frame.W0 @ u for frame in run.frames])
    s = np.array([(u @ frame.WQ) @ (u @ frame.WK) for frame in run.frames])
    off = w0 - np.outer(w0.sum(axis=1), chain.stationary)
    arrived = int(np.argmax(run.loss < chain.unigram_entropy + 1e-4))
    early = np.flatnonzero((np.abs(s) > 1e-3) & (np.abs(s) < 5e-3))
    measured = np.median((off[early] - off[arrived]) / s[early, None], axis=0)
    np.testing.assert_allclose(measured, mass_redistribution(chain), rtol=0.03)


def test_bad_arguments_are_named() -> None:
    uniform = MarkovChain.lazy(np.ones(4) / 4, 0.3)
    lazy = CHAINS["lazy"]
    with pytest.raises(ValueError, match="not uniform: nothing condenses"):
        linear_condensation(ORIGIN, uniform, [1.0])
    with pytest.raises(ValueError, match=r"times must be a real array of shape \(any\)"):
        linear_condensation(ORIGIN, lazy, 1.0)
    with pytest.raises(ValueError, match=r"times must be at most .*, lest the linear flow overflow; got 1e"):
        linear_condensation(ORIGIN, lazy, [0.0, 1e6])
    with pytest.raises(ValueError, match="growth must be of size at most 600; got 1000"):
        grown_scores(ORIGIN, [1, 0], [0.0, -1000.0])
    with pytest.raises(ValueError, match="u must be a unit vector"):
        grown_scores(ORIGIN, [1, 1], [0.0])
    with pytest.raises(ValueError, match="focus rate that is not 0"):
        mass_redistribution(uniform)
    with pytest.raises(ValueError, match=r"u must be a real array of shape \(2\)"):
        grown_scores(ORIGIN, [1, 0, 0], [0.0])
    end = resting_point(lazy)
    point = RankOnePoint(lazy, end.w0, end.w1, end.score_scale)
    with pytest.raises(ValueError, match="two tokens that the chain treats alike; got 0 and 1"):
        parting_rate(point, 0, 1)
    with pytest.raises(ValueError, match="other must be a whole number of at least 0 and at most 3; got 4"):
        parting_rate(point, 0, 4)
    for chain in (lazy, CHAINS["irreversible"], MarkovChain.lazy([0.6, 0.4], 0.1)):
        with pytest.raises(ValueError, match="chain must be lazy, with one frequent token"):
            symmetry_breaking_slope(chain)
    with pytest.raises(ValueError, match="parameters must be for the chain's 6 tokens; got 4"):
        predicted_embedding(CHAINS["restless"], ORIGIN)
    with pytest.raises(ValueError, match="width must be a whole number of at least 1"):
        unigram_spectrum(lazy, 0)
