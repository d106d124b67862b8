"""Facts about the growth from the origin and the unigram point."""

import numpy as np
import pytest
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    cosine,
    flatten,
    hessian_operator,
    local_growth_rate,
    population_gradient,
    population_loss,
    unflatten,
)
from attention_phases.focus_dilution.condensation import (
    condensation_rate,
    condensing_direction,
    unigram_point,
    unigram_profile,
)
from markov import CHAINS, SKEWED, Followed, follow

DOUBLY_STOCHASTIC = MarkovChain([[0.2, 0.5, 0.3], [0.3, 0.2, 0.5], [0.5, 0.3, 0.2]])


def until_condensed(chain: MarkovChain, init_scale: float, settling: float = 2) -> Followed:
    start = Parameters.gaussian(chain.n_tokens, 3, init_scale, 5)
    return follow(chain, start, (np.log(1 / init_scale) + settling) / condensation_rate(chain))


@pytest.mark.parametrize("name", CHAINS)
def test_rate_is_the_growth_of_the_full_flow_while_it_is_linear(name: str) -> None:
    chain, init_scale = CHAINS[name], 1e-6
    run = until_condensed(chain, init_scale)
    # from 30 times the start, where the parts that do not grow are small, to where the loss is still that of the origin
    measured = local_growth_rate(run.times, run.singular_values[:, 0], 30 * init_scale, 1e-2).median
    assert measured == pytest.approx(condensation_rate(chain), rel=0.001)


def test_rate_is_the_largest_eigenvalue_at_the_origin_once_per_dimension() -> None:
    chain, m = CHAINS["irreversible"], 2
    d = chain.n_tokens
    origin = unflatten(np.zeros(2 * d * m + 2 * m * m), d, m)
    hessian = hessian_operator(origin, chain) @ np.eye(2 * d * m + 2 * m * m)
    growth = np.sort(-np.linalg.eigvalsh(hessian))[::-1]
    expected = np.zeros(len(growth))
    expected[:m], expected[-m:] = condensation_rate(chain), -condensation_rate(chain)
    np.testing.assert_allclose(growth, expected, atol=1e-14)


def test_weights_condense_along_the_direction_that_the_start_picks() -> None:
    chain = CHAINS["lazy"]
    pi = chain.stationary
    run = until_condensed(chain, 1e-6, settling=40)  # rare tokens take long to reach their place
    small = run.frames[int(np.searchsorted(run.singular_values[:, 0], 1e-2))]
    u = condensing_direction(run.frames[0], chain)
    assert cosine(small.W0, np.outer(pi, u)) == pytest.approx(1, abs=1e-6)
    assert cosine(small.W1, np.outer(u, pi - 1 / 4)) == pytest.approx(1, abs=1e-5)
    last = run.frames[-1]
    assert cosine(last.W0, np.outer(pi, u)) > 0.999
    assert cosine(last.W1, np.outer(u, np.log(pi) - np.log(pi).mean())) > 0.999  # it has turned to the logarithm
    np.testing.assert_allclose(condensing_direction(last, chain), u, atol=1e-4)


@pytest.mark.parametrize("name", ["lazy", "reversible, to rare tokens"])
def test_attention_stays_at_its_base_rates_at_second_order_of_the_scale_of_the_start(name: str) -> None:
    chain = CHAINS[name]
    scales = np.array([1e-2, 1e-3, 1e-4])
    runs = [until_condensed(chain, scale) for scale in scales]
    moved = [np.abs(run.attention - chain.stationary).sum(axis=2).max() for run in runs]
    scores = [np.abs(flatten(run.frames[-1]) - flatten(run.frames[0]))[-18:].max() for run in runs]  # W_Q and W_K
    assert np.diff(np.log(moved)) / np.diff(np.log(scales)) == pytest.approx([2, 2], abs=0.2)
    assert np.diff(np.log(scores)) / np.diff(np.log(scales)) == pytest.approx([1, 1], abs=0.2)


@pytest.mark.parametrize("name", CHAINS)
def test_unigram_point_is_a_critical_point_with_the_entropy_of_pi_as_its_loss(name: str) -> None:
    chain = CHAINS[name]
    point = unigram_point(chain, 4, seed=7)
    assert np.abs(flatten(population_gradient(point, chain))).max() < 1e-15
    assert population_loss(point, chain) == pytest.approx(chain.unigram_entropy, abs=1e-14)
    w0, w1 = unigram_profile(chain)
    assert w0 @ w0 == pytest.approx(w1 @ w1, rel=1e-13)  # what a start at the origin conserves
    assert w1.sum() == pytest.approx(0, abs=1e-13)


def test_flow_arrives_at_the_unigram_point() -> None:
    chain = CHAINS["stirred"]
    run = until_condensed(chain, 1e-5, settling=50)
    w0, w1 = unigram_profile(chain)
    u = condensing_direction(run.frames[0], chain)
    assert run.loss[-1] == pytest.approx(chain.unigram_entropy, abs=1e-6)
    np.testing.assert_allclose(run.frames[-1].W0, np.outer(w0, u), atol=1e-3)
    np.testing.assert_allclose(run.frames[-1].W1, np.outer(u, w1), atol=1e-3)


def test_nothing_condenses_where_pi_is_uniform() -> None:
    assert condensation_rate(DOUBLY_STOCHASTIC) == 0
    assert not flatten(unigram_point(DOUBLY_STOCHASTIC, 3, seed=8)).any()
    with pytest.raises(ValueError, match="not uniform: nothing condenses"):
        condensing_direction(Parameters.gaussian(3, 2, 0.1, 9), DOUBLY_STOCHASTIC)


def test_same_seed_gives_the_same_point() -> None:
    chain = CHAINS["lazy"]
    points = [flatten(unigram_point(chain, 4, seed)) for seed in (1, 1, 2)]
    assert np.array_equal(points[0], points[1])
    assert not np.allclose(points[0], points[2])


def test_bad_arguments_are_named() -> None:
    chain = MarkovChain.lazy(SKEWED, 0.3)
    with pytest.raises(ValueError, match="width must be a whole number of at least 1"):
        unigram_point(chain, 0, seed=0)
    with pytest.raises(ValueError, match="chain must be a MarkovChain"):
        condensation_rate(chain.transition)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="parameters must be for the chain's 4 tokens; got 5"):
        condensing_direction(Parameters.gaussian(5, 2, 0.1, 0), chain)
    nothing = Parameters(np.zeros((4, 2)), np.zeros((2, 4)), np.eye(2), np.eye(2))
    with pytest.raises(ValueError, match="parameters must have a part that grows"):
        condensing_direction(nothing, chain)
