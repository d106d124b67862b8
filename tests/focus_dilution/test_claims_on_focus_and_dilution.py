"""What the chapters on focus and on dilution claim of all chains, on chains other than theirs."""

import numpy as np
import pytest
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    coupled_chain,
    flatten,
    hessian_operator,
    hessian_product,
    mass_redistribution,
    nearly_symmetric_chain,
    parting_rate,
    rank_one_weights,
    unigram_spectrum,
)
from attention_phases.focus_dilution.condensation import unigram_point, unigram_profile
from attention_phases.focus_dilution.dilution import RankOnePoint, rank_one_flow
from attention_phases.focus_dilution.focus import focus_rate
from markov import CHAINS, FALLING
from scipy.special import softmax

every_chain = pytest.mark.parametrize("name", CHAINS)


@every_chain
def test_whole_spectrum_at_the_unigram_point_follows_from_the_chain(name: str) -> None:
    chain, m = CHAINS[name], 2
    point = unigram_point(chain, m, seed=0)
    growth = -(hessian_operator(point, chain) @ np.eye(len(flatten(point))))
    outer, scores = unigram_spectrum(chain, m)
    assert (outer[: chain.n_tokens - 1] < 0).all()
    assert not outer[chain.n_tokens - 1 :].any()
    np.testing.assert_allclose(np.linalg.eigvalsh(growth), np.sort(np.append(outer, scores)), atol=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_coupled_chain_has_the_rate_of_its_covariance_and_reversed_another(seed: int) -> None:
    pi = np.array(FALLING)
    a, b = np.random.default_rng(seed).standard_normal((2, len(pi)))
    a, b = a - a.mean(), b - b.mean()
    coupling = 0.5 * (np.outer(pi, pi) / np.abs(np.outer(a, b))).min()
    w0, _ = unigram_profile(MarkovChain.lazy(pi, 0))
    for first, second in ((a, b), (b, a)):
        chain = coupled_chain(pi, first, second, coupling)
        np.testing.assert_allclose(chain.stationary, pi, atol=1e-13)
        covariance = coupling * (first @ pi) * (second @ np.log(pi))
        expected = w0 @ w0 / (pi @ pi) ** 2 * covariance * (pi @ (pi - pi @ pi) ** 2)
        assert focus_rate(chain) == pytest.approx(expected, rel=1e-9)


@every_chain
def test_mass_redistribution_has_the_derived_rate_to_first_order_in_the_scores(name: str) -> None:
    chain = CHAINS[name]
    pi, (w0, w1) = chain.stationary, unigram_profile(chain)
    expected = 2 * abs(focus_rate(chain)) * mass_redistribution(chain)
    step = 1e-5
    up, down = (RankOnePoint(chain, w0, w1, s).force[0] for s in (step, -step))
    push = (up - down) / (2 * step)
    np.testing.assert_allclose(push - pi * push.sum(), expected, atol=1e-7)
    assert expected.sum() == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize("persistence", [0.3, -0.04])
def test_lazy_chain_moves_mass_to_frequent_tokens_whatever_the_sign(persistence: float) -> None:
    run = rank_one_flow(nearly_symmetric_chain(0.02, persistence), init_scale=1e-5)
    early = int(np.argmax(np.abs(run.score_scale) > 1e-3))
    excess = run.w0[early] - run.chain.stationary * run.w0[early].sum()
    assert excess[0] > 0 > excess[1:].max()


@every_chain
def test_attention_on_the_largest_embedding_is_above_its_base_rate_where_the_tilt_is_positive(name: str) -> None:
    run = rank_one_flow(CHAINS[name])
    for w0, s, row in list(zip(run.w0, run.score_scale, run.attention, strict=True))[::20]:
        tilt, top = s * w0, int(w0.argmax())
        clear = np.abs(tilt) > 1e-9
        above = row[:, top] - run.chain.stationary[top]
        assert (np.sign(above[clear]) == np.sign(tilt[clear])).all()


@every_chain
def test_at_rest_the_sign_of_an_embedding_is_told_by_what_its_query_should_say(name: str) -> None:
    run = rank_one_flow(CHAINS[name])
    pi, w0, w1, s = run.chain.stationary, run.w0[-1], run.w1[-1], run.score_scale[-1]
    x = run.attention[-1] @ w0
    wanted = run.chain.transition @ w1
    np.testing.assert_allclose(softmax(np.outer(x, w1), axis=1) @ w1, wanted, atol=1e-5)
    level = softmax(pi @ w0 * w1) @ w1
    clear = np.abs(wanted - level) > 1e-4
    assert clear.any()
    assert (np.sign(s * w0[clear]) == np.sign(wanted - level)[clear]).all()


@pytest.mark.parametrize(("persistence", "sign"), [(0.3, -1), (0.7, 1)])
def test_alike_tokens_part_only_at_large_persistence_in_the_hessian_of_the_full_model(
    persistence: float, sign: int
) -> None:
    chain = nearly_symmetric_chain(0, persistence)
    end = rank_one_flow(chain)
    w0, w1, s = end.w0[-1], end.w1[-1], end.score_scale[-1]
    d, point = chain.n_tokens, RankOnePoint(chain, w0, w1, s)
    one, other = [1, d + 1], [2, d + 2]
    block = point.force_derivative[np.ix_(one, one)] - point.force_derivative[np.ix_(one, other)]
    rates, modes = np.linalg.eigh(block)
    assert parting_rate(point, 1, 2) == pytest.approx(rates[-1], rel=1e-12)
    assert np.sign(rates[-1]) == sign
    u, apart, zero = np.eye(2)[0], np.zeros(d), np.zeros((2, 2))
    apart[1:3] = 1, -1
    weights = rank_one_weights(point, 2)
    for rate, (y, h) in zip(rates, modes.T, strict=True):
        mode = Parameters(y * np.outer(apart, u), h * np.outer(u, apart), zero, zero)
        moved = hessian_product(weights, chain, mode)
        np.testing.assert_allclose(-flatten(moved), rate * flatten(mode), atol=1e-6)
