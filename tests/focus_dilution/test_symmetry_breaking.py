"""Facts about the end of the rank-one flow and the second direction that grows there."""

import time

import numpy as np
import pytest
from attention_phases.errors import ConvergenceError
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    balanced_chain,
    flatten,
    hessian_operator,
    local_growth_rate,
    nearly_symmetric_chain,
    population_gradient,
    rank_one_weights,
    unflatten,
)
from attention_phases.focus_dilution.condensation import unigram_profile
from attention_phases.focus_dilution.dilution import RankOnePoint, rank_one_flow
from attention_phases.focus_dilution.symmetry_breaking import (
    resting_point,
    symmetry_breaking_rate,
    transverse_operator,
)
from markov import CHAINS, FALLING, Array, follow

TWO_SORTS = {
    "one frequent, five rare": nearly_symmetric_chain(0, 0.3),
    "one frequent, five rare, restless": nearly_symmetric_chain(0, -0.1),
    "two frequent, four rare": MarkovChain.lazy([0.3, 0.3, 0.1, 0.1, 0.1, 0.1], 0.4),
    "two frequent that prefer each other, not reversible": balanced_chain(
        np.kron([[1.0, 3.0], [0.5, 2.0]], np.ones((2, 2))) + np.diag([0.0, 0, 4, 4]), [0.35, 0.35, 0.15, 0.15]
    ),
    "two tokens": MarkovChain([[0.9, 0.1], [0.4, 0.6]]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_rate_is_the_growth_of_the_full_flow_while_it_is_linear(name: str) -> None:
    chain, init_scale = CHAINS[name], 1e-6
    point, d = resting_point(chain), chain.n_tokens
    start = flatten(rank_one_weights(point, 3)) + flatten(Parameters.gaussian(d, 3, init_scale, seed=4))
    rate = symmetry_breaking_rate(chain)
    run = follow(chain, unflatten(start, d, 3), (np.log(1e-2 / init_scale) + 2) / rate, 1e-8)
    # above 300 times the start the part that does not grow, and the second singular value, have fallen behind
    measured = local_growth_rate(run.times, run.singular_values[:, 1], 300 * init_scale, 1e-2).median
    assert measured == pytest.approx(rate, rel=0.005)


@pytest.mark.parametrize("name", ["lazy", "irreversible, to rare tokens"])
def test_growth_rates_at_the_end_are_those_across_and_those_along(name: str) -> None:
    chain, m = CHAINS[name], 3
    point = resting_point(chain)
    weights = rank_one_weights(point, m)
    rounding = chain.n_tokens * np.finfo(float).eps  # of a sum over tokens
    assert np.abs(flatten(population_gradient(weights, chain))).max() < rounding
    size = len(flatten(weights))
    growth = -np.linalg.eigvalsh(hessian_operator(weights, chain) @ np.eye(size))
    across = np.concatenate([point.transverse_rates, -point.transverse_rates] * (m - 1))
    known = np.concatenate([across, point.tangential_rates])
    expected = np.sort(np.concatenate([known, np.zeros(size - len(known))]))
    np.testing.assert_allclose(np.sort(growth), expected, atol=1e-12)


@pytest.mark.parametrize("name", CHAINS)
def test_transverse_operator_is_a_block_of_the_hessian_at_any_point_of_the_manifold(name: str) -> None:
    chain, m = CHAINS[name], 3
    d, rng = chain.n_tokens, np.random.default_rng(6)
    w0, w1 = rng.standard_normal((2, d))
    q, k = rng.standard_normal((2, m))
    u, v = np.eye(m)[:2]
    weights = Parameters(np.outer(w0, u), np.outer(u, w1), np.outer(u, q), np.outer(u, k))
    nothing = [np.zeros(shape) for shape in ((d, m), (m, d), (m, m), (m, m))]

    def across(place: int, part: Array) -> Array:
        parts = nothing.copy()
        parts[place] = np.outer(part, v) if place == 0 else np.outer(v, part)
        return flatten(Parameters(*parts))

    sizes = (d, d, m, m)
    basis = np.array([across(place, row) for place, size in enumerate(sizes) for row in np.eye(size)]).T
    moved = -(hessian_operator(weights, chain) @ basis)
    T = transverse_operator(RankOnePoint(chain, w0, w1, float(q @ k)), q, k)
    block = np.zeros((2 * d + 2 * m, 2 * d + 2 * m))
    block[:d, d:], block[d:, :d] = T, T.T
    np.testing.assert_allclose(moved, basis @ block, atol=1e-14)  # and nothing leads out of the block


@pytest.mark.parametrize("name", CHAINS)
def test_at_the_end_no_score_and_no_token_pulls(name: str) -> None:
    chain = CHAINS[name]
    point, d = resting_point(chain), chain.n_tokens
    assert point.residual < 1e-15
    M, by_scores = point.transverse[:, :d], point.transverse[:, d:]
    assert np.abs(by_scores).max() < 1e-14
    for vanishes in (M @ point.w1, M @ np.ones(d), point.w0 @ M):
        assert np.abs(vanishes).max() < 1e-14
    assert (point.transverse_rates[-2:] < 1e-14).all()  # rank d - 2 at most


@pytest.mark.parametrize("name", CHAINS)
def test_along_the_manifold_nothing_grows_and_four_directions_are_neutral(name: str) -> None:
    rates = resting_point(CHAINS[name]).tangential_rates
    assert np.abs(rates[:4]).max() < 1e-13
    assert rates[4] < -1e-5


def test_end_does_not_depend_on_a_small_start() -> None:
    chain = CHAINS["lazy"]
    point, run = resting_point(chain), rank_one_flow(chain, init_scale=1e-4)
    np.testing.assert_allclose(run.w0[-1], point.w0, atol=1e-5)
    np.testing.assert_allclose(run.score_scale[-1], point.score_scale, atol=1e-5)


@pytest.mark.parametrize("name", TWO_SORTS)
def test_training_stalls_where_there_are_two_sorts_of_tokens(name: str) -> None:
    point = resting_point(TWO_SORTS[name])
    assert abs(point.score_scale) > 0.1
    assert point.transverse_rates[0] < 1e-15


def test_tokens_that_are_alike_part_where_a_tangential_rate_is_positive() -> None:
    """Above a persistence of about .57 the symmetric end is a saddle; the four rates are those of the full flow."""
    below, above = (nearly_symmetric_chain(0, persistence) for persistence in (0.55, 0.65))
    assert resting_point(below).tangential_rates[0] < 1e-12
    point = resting_point(above)
    growing = point.tangential_rates[point.tangential_rates > 1e-6]
    assert growing == pytest.approx(np.full(4, growing[0]), rel=1e-6)
    start = flatten(rank_one_weights(point, 3))
    start[3:18:3] += 1e-7 * np.array([2.0, 1, 0, -1, -2])  # the rare tokens' embeddings along u
    run = follow(above, unflatten(start, 6, 3), 500, 1e-8)
    apart = np.array([frame.W0[1:, 0].std() for frame in run.frames])
    assert local_growth_rate(run.times, apart, 1e-6, 1e-4).median == pytest.approx(growing[0], rel=5e-3)


def test_growth_across_is_zero_in_the_full_flow_of_a_symmetric_chain() -> None:
    chain = TWO_SORTS["one frequent, five rare"]
    point = resting_point(chain)
    start = flatten(rank_one_weights(point, 3)) + flatten(Parameters.gaussian(6, 3, 1e-6, seed=5))
    run = follow(chain, unflatten(start, 6, 3), 2000, 1e-8)
    later = run.singular_values[run.times > 1000, 1]
    assert later[-1] == pytest.approx(later[0], rel=1e-3)


def test_three_sorts_of_tokens_do_not_stall() -> None:
    chain = MarkovChain.lazy([0.4, 0.15, 0.15, 0.1, 0.1, 0.1], 0.3)
    rates = resting_point(chain).transverse_rates
    assert rates[0] > 1e-4
    assert rates[1] < 1e-15  # a 3 x 3 matrix between the sorts, with two vectors that it takes to 0


def orders(chains: list[MarkovChain]) -> Array:
    """Exponents in delta of the singular values across, between one chain and the next, where delta is halved."""
    rates = np.array([resting_point(chain).transverse_rates for chain in chains])
    result: Array = np.log2(rates[0] / rates[1])
    return result


def test_singular_values_of_a_lazy_chain_are_of_orders_one_three_and_five_in_the_asymmetry() -> None:
    order = orders([nearly_symmetric_chain(delta, 0.3) for delta in (0.002, 0.001)])
    assert order[:3] == pytest.approx([1, 3, 5], abs=0.1)


def test_singular_values_of_other_chains_are_of_orders_one_and_two_in_the_asymmetry() -> None:
    symmetric = TWO_SORTS["one frequent, five rare"]
    flow = symmetric.stationary[:, None] * symmetric.transition
    noise = np.random.default_rng(6).uniform(-1, 1, (6, 6))
    order = orders(
        [
            balanced_chain(flow * (1 + delta * noise), nearly_symmetric_chain(0.1 * delta).stationary)
            for delta in (0.01, 0.005)
        ]
    )
    assert order[:2] == pytest.approx([1, 2], abs=0.1)


def test_rate_is_proportional_to_the_asymmetry_as_it_vanishes() -> None:
    deltas = np.array([0.0003, 0.0006, 0.00125, 0.0025])
    rates = [symmetry_breaking_rate(nearly_symmetric_chain(delta, 0.3)) for delta in deltas]
    assert np.polyfit(np.log(deltas), np.log(rates), 1)[0] == pytest.approx(1, abs=0.01)
    # the slope of the line, and where it bends: numbers computed before, by another program
    assert rates / deltas == pytest.approx([0.0317, 0.0317, 0.0316, 0.0315], abs=6e-5)
    for delta, expected in ((0.01, 0.0291), (0.02, 0.0380)):
        rate = symmetry_breaking_rate(nearly_symmetric_chain(delta, 0.3))
        assert rate / delta == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("chain", [MarkovChain.lazy(FALLING, 0), MarkovChain.lazy(np.ones(4) / 4, 0.3)])
def test_without_focus_the_end_is_the_unigram_point_and_nothing_grows(chain: MarkovChain) -> None:
    point = resting_point(chain)
    np.testing.assert_array_equal(point.w0, unigram_profile(chain)[0])
    assert point.score_scale == 0
    assert point.transverse_rates[0] < 1e-16


def test_flow_that_creeps_on_for_ever_has_no_end() -> None:
    # two tokens are always followed by one of the other two: the logits of this rule grow like log t
    alternating = MarkovChain([[0, 0.5, 0.5, 0], [0.9, 0, 0, 0.1], [0.6, 0, 0, 0.4], [0, 0.3, 0.7, 0]])
    with pytest.raises(ConvergenceError, match="has no end") as caught:
        resting_point(alternating)
    assert np.abs(caught.value.last.w1[-1]).min() > 4


@pytest.mark.parametrize("asymmetry", [1e-3, 1e-5, 1e-9])
def test_nearly_uniform_frequencies_are_refused_by_name_and_not_waited_for(asymmetry: float) -> None:
    chain = MarkovChain.lazy(0.2 + asymmetry * np.array([2, 1, 0, -1, -2]), 0.3)
    assert symmetry_breaking_rate(MarkovChain.lazy(0.2 + 5e-3 * np.array([2, 1, 0, -1, -2]), 0.3)) > 0.01
    begin = time.process_time()
    with pytest.raises(ConvergenceError, match="lambda_2 = "):
        symmetry_breaking_rate(chain)
    assert time.process_time() - begin < 5


def test_chain_that_is_no_chain_is_refused() -> None:
    with pytest.raises(ValueError, match="chain must be a MarkovChain"):
        symmetry_breaking_rate(np.eye(2))  # type: ignore[arg-type]
