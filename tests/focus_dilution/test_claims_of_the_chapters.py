"""What the chapters on the Markov transformer and on condensation claim of all chains, on chains other than theirs."""

import numpy as np
import pytest
from attention_phases.focus_dilution import (
    MarkovChain,
    Parameters,
    conserved_change,
    contraction_rates,
    exact_weights,
    excess_loss,
    flatten,
    forces,
    gradient_flow,
    hessian_operator,
    linear_condensation,
    population_gradient,
    population_loss,
    unflatten,
)
from attention_phases.focus_dilution.condensation import condensation_rate, unigram_point
from markov import CHAINS, FALLING
from numpy.typing import NDArray

Array = NDArray[np.float64]
every_chain = pytest.mark.parametrize("name", CHAINS)


def norm(values: Array) -> float:
    return float(np.linalg.norm(values))


@every_chain
@pytest.mark.parametrize("scale", [2.0, 0.3, -0.5])
def test_width_d_is_enough_for_any_positive_chain(name: str, scale: float) -> None:
    assert excess_loss(exact_weights(CHAINS[name], scale), CHAINS[name]) < 1e-20


@every_chain
def test_while_attention_rests_the_outer_matrices_see_only_the_frequencies(name: str) -> None:
    chain = CHAINS[name]
    d, pi = chain.n_tokens, chain.stationary
    rng = np.random.default_rng(0)
    outer = rng.standard_normal((d, 3)), rng.standard_normal((3, d))
    weights = Parameters(*outer, np.zeros((3, 3)), rng.standard_normal((3, 3)))
    logits = pi @ weights.W0 @ weights.W1
    prediction = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(forces(weights, chain).output_force, np.outer(pi, pi - prediction), atol=1e-14)
    assert population_loss(weights, chain) >= chain.unigram_entropy


@every_chain
def test_a_step_changes_conserved_quantities_at_second_order_only(name: str) -> None:
    chain, step = CHAINS[name], 0.1
    rng = np.random.default_rng(1)
    d = chain.n_tokens
    here = Parameters(*(rng.standard_normal(shape) for shape in ((d, 3), (3, d), (3, 3), (3, 3))))
    g0, g1, gq, gk = population_gradient(here, chain).arrays
    there = unflatten(flatten(here) - step * flatten(population_gradient(here, chain)), d, 3)
    first, second, third = conserved_change(here, there)
    np.testing.assert_allclose(first, step**2 * (g0.T @ g0 - g1 @ g1.T - gq @ gq.T - gk @ gk.T), atol=1e-14)
    np.testing.assert_allclose(second, step**2 * (gq.T @ gq - gk.T @ gk), atol=1e-14)
    np.testing.assert_allclose(third, 0, atol=1e-14)


@every_chain
def test_the_error_of_the_linear_flow_is_of_third_order_with_the_predicted_coefficient(name: str) -> None:
    chain, scale = CHAINS[name], 1e-4
    d, pi, rate = chain.n_tokens, chain.stationary, condensation_rate(chain)
    start = Parameters.gaussian(d, 4, scale, 2)
    at_start = linear_condensation(start, chain, [0])
    time = np.log(0.02 / norm(at_start.alpha + at_start.beta) * 2) / rate  # where the weights are 0.02
    linear = linear_condensation(start, chain, [time])
    found = gradient_flow(chain, start=start, times=[time], rtol=1e-9).parameters[-1]
    size = norm(linear.alpha)
    assert size == pytest.approx(0.02, rel=0.05)
    assert norm(found.W0 - linear.W0[0]) / size**3 == pytest.approx(pi @ pi / (2 * d * rate), rel=0.02)


@every_chain
def test_contraction_at_the_unigram_point_is_in_the_spectrum_of_the_hessian(name: str) -> None:
    chain, m = CHAINS[name], 2
    point = unigram_point(chain, m, seed=3)
    outer = slice(0, 2 * chain.n_tokens * m)  # the scores' weights have their own block
    hessian = hessian_operator(point, chain) @ np.eye(len(flatten(point)))
    spectrum = np.linalg.eigvalsh(hessian[outer, outer])
    assert spectrum.min() > -1e-12  # contractive or neutral
    for rate in contraction_rates(chain):
        assert np.abs(spectrum - rate).min() < 1e-10


def test_an_unbalanced_start_ends_at_the_point_of_its_own_balance() -> None:
    chain = CHAINS["irreversible"]
    pi = np.array(FALLING)
    p, n = pi / norm(pi), (pi - 1 / 5) / norm(pi - 1 / 5)
    u, zero = np.eye(3)[0], np.zeros((3, 3))
    ell = np.log(pi) - np.log(pi).mean()
    for x, y in ((1.5, 1e-3), (1e-3, 1.5)):
        start = Parameters(x * np.outer(p, u), y * np.outer(u, n), zero, zero)
        end = gradient_flow(chain, start=start, t_max=2000).parameters[-1]
        balance = x**2 - y**2
        square = (balance + np.sqrt(balance**2 + 4 * (ell @ ell) / (pi @ pi))) / (2 * pi @ pi)
        assert norm(end.W0) ** 2 / (pi @ pi) == pytest.approx(square, rel=1e-4)


def test_equal_frequencies_wait_for_a_power_of_the_scale() -> None:
    chain = MarkovChain.lazy(np.full(3, 1 / 3), 0.7)
    scales, times = [0.02, 0.04], []
    for scale in scales:
        found = gradient_flow(chain, 6, scale, t_max=1e7, seed=1)
        times.append(found.times[int(np.argmax(found.loss < 0.95 * np.log(3)))])
    assert np.log(times[0] / times[1]) / np.log(2) == pytest.approx(4, abs=0.2)
