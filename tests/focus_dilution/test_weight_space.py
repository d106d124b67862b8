"""Facts about weights as points of a space, and about what is read from trajectories."""

from __future__ import annotations

import numpy as np
import pytest
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    RankOnePoint,
    attention,
    conserved_change,
    cosine,
    exact_weights,
    flatten,
    gradient_flow,
    hessian_operator,
    hessian_product,
    local_growth_rate,
    population_gradient,
    population_loss,
    project,
    rank_one_weights,
    resting_point,
    unflatten,
)
from markov import CHAINS, Array

LAZY = CHAINS["lazy"]
every_chain = pytest.mark.parametrize("name", CHAINS)


def test_a_vector_holds_the_weights_in_their_order() -> None:
    weights = Parameters.gaussian(4, 3, 1.0, 0)
    vector = flatten(weights)
    assert vector.shape == (2 * 4 * 3 + 2 * 3 * 3,)
    np.testing.assert_array_equal(vector[:3], weights.W0[0])
    np.testing.assert_array_equal(vector[-3:], weights.WK[-1])
    for one, other in zip(unflatten(vector, 4, 3).arrays, weights.arrays, strict=True):
        np.testing.assert_array_equal(one, other)


@every_chain
def test_the_hessian_is_the_derivative_of_the_gradient(name: str) -> None:
    chain = CHAINS[name]
    d, m, step = chain.n_tokens, 2, 1e-5
    weights = Parameters.gaussian(d, m, 0.7, 1)
    x = flatten(weights)
    operator = hessian_operator(weights, chain)
    matrix = operator @ np.eye(len(x))

    def gradient(x: Array) -> Array:
        return flatten(population_gradient(unflatten(x, d, m), chain))

    numerical = [(gradient(x + row) - gradient(x - row)) / (2 * step) for row in step * np.eye(len(x))]
    np.testing.assert_allclose(matrix, np.array(numerical), atol=1e-8)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)
    direction = Parameters.gaussian(d, m, 1.0, 2)
    np.testing.assert_allclose(
        operator @ flatten(direction), flatten(hessian_product(weights, chain, direction)), atol=1e-14
    )


def test_what_is_conserved_changes_by_nothing_along_the_flow_and_not_off_it() -> None:
    run = gradient_flow(LAZY, 5, 0.3, times=[20], rtol=1e-9)
    start, end = Parameters.gaussian(4, 5, 0.3, 0), run.parameters[-1]
    assert max(np.abs(change).max() for change in conserved_change(start, end)) < 1e-8
    double = Parameters(*(2 * part for part in start.arrays))
    first, second, third = conserved_change(start, double)
    np.testing.assert_allclose(third, start.W1.sum(axis=1))
    np.testing.assert_allclose(second, 3 * (start.WQ.T @ start.WQ - start.WK.T @ start.WK))
    assert first.shape == (5, 5)


@every_chain
def test_exact_weights_predict_the_chain(name: str) -> None:
    weights = exact_weights(CHAINS[name], 0.3)
    assert population_loss(weights, CHAINS[name]) == pytest.approx(CHAINS[name].conditional_entropy, rel=1e-12)


@every_chain
def test_rank_one_weights_have_the_attention_and_the_scores_of_their_point(name: str) -> None:
    chain = CHAINS[name]
    end = resting_point(chain)
    weights = rank_one_weights(end, 3)
    point = RankOnePoint(chain, end.w0, end.w1, end.score_scale)
    np.testing.assert_allclose(attention(weights, chain), point.attention, atol=1e-14)
    assert population_loss(weights, chain) == pytest.approx(point.loss, rel=1e-13)
    along = project([weights, weights], [1, 0, 0])
    np.testing.assert_allclose(along.w0, [end.w0, end.w0])
    np.testing.assert_allclose(along.w1, [end.w1, end.w1])
    np.testing.assert_allclose(along.score_scale, end.score_scale, rtol=1e-14)


def test_cosine_of_arrays() -> None:
    a = np.array([[1.0, 2], [3, 4]])
    assert cosine(a, -2 * a) == pytest.approx(-1, rel=1e-15)
    assert cosine([1, 0], [1, 1]) == pytest.approx(0.5**0.5)
    assert cosine([1e300, 1e300], [1e-300, 0]) == pytest.approx(0.5**0.5)
    for wrong in ([0, 0], [np.nan, 1], [1, np.inf], [], "up", [[1], [1, 2]]):
        with pytest.raises(ValueError, match="one must be a real array"):
            cosine(wrong, [1, 1])
        with pytest.raises(ValueError, match="other must be a real array"):
            cosine([1, 1], wrong)
    with pytest.raises(ValueError, match=r"other must be of the shape of one, \(1,\); got shape \(2,\)"):
        cosine([1], [1, 1])


def test_the_growth_rate_of_an_exponential_is_its_rate_and_its_spread_that_of_the_curve() -> None:
    uneven, even = np.sort(np.random.default_rng(0).uniform(0, 10, 300)), np.linspace(0, 10, 2001)
    exact = local_growth_rate(uneven, 1e-3 * np.exp(0.7 * uneven), 1e-2, 0.5)
    np.testing.assert_allclose(exact, [0.7, 0.7, 0.7], rtol=1e-9)
    bent = local_growth_rate(even, np.exp(0.1 * even**2), 0, 1e9)  # the rate rises evenly from 0 to 2
    assert bent == pytest.approx([1, 0.5, 1.5], abs=0.01)


def test_bad_arguments_are_named() -> None:
    times = np.arange(20.0)
    with pytest.raises(ValueError, match="more than ten sizes between them; got 4"):
        local_growth_rate(times, np.exp(times), 1, 60)
    with pytest.raises(ValueError, match=r"sizes must be a real array of shape \(20\)"):
        local_growth_rate(times, times[1:], 1, 60)
    with pytest.raises(ValueError, match=r"vector must be a real array of shape \(42\)"):
        unflatten(np.zeros(41), 4, 3)
    with pytest.raises(ValueError, match="score must not be 0"):
        exact_weights(LAZY, 0)
    with pytest.raises(ValueError, match="chain must have positive transition probabilities"):
        exact_weights(MarkovChain([[0.0, 1.0], [0.5, 0.5]]), 1)
    with pytest.raises(ValueError, match="width must be a whole number of at least 2"):
        rank_one_weights(resting_point(LAZY), 1)
    with pytest.raises(ValueError, match="point must be a RankOnePoint or a RestingPoint; got None"):
        rank_one_weights(None, 2)  # type: ignore[arg-type]
    weights = Parameters.gaussian(4, 3, 1, 0)
    for frames in ([], weights, np.zeros((2, 2)), [None]):
        with pytest.raises(ValueError, match="frames must be a list or tuple of Parameters, at least one; got"):
            project(frames, [1, 0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"frames must all have the same width; got \[2, 3\]"):
        project([weights, Parameters.gaussian(4, 2, 1, 0)], [1, 0, 0])
    with pytest.raises(ValueError, match="u must be a unit vector; got one of length 2"):
        project([weights], [2, 0, 0])
    with pytest.raises(ValueError, match="start must be a Parameters; got None"):
        conserved_change(None, weights)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="now must have width 3, as start has; got 2"):
        conserved_change(weights, Parameters.gaussian(4, 2, 1, 0))
    with pytest.raises(ValueError, match=r"score must be a number in \[-1e\+12, 1e\+12\]; got 1e\+300"):
        exact_weights(LAZY, 1e300)
    with pytest.raises(ValueError, match="times must increase"):
        local_growth_rate(times[::-1], np.exp(times), 1, 60)
    with pytest.raises(ValueError, match=r"u must be a real array of shape \(3\)"):
        project([Parameters.gaussian(4, 3, 1, 0)], [1, 0])
    with pytest.raises(ValueError, match="parameters must be for the chain's 4 tokens; got 5"):
        hessian_operator(Parameters.gaussian(5, 3, 1, 0), LAZY)
    with pytest.raises(ValueError, match="parameters must be a Parameters"):
        flatten(np.zeros(3))  # type: ignore[arg-type]
