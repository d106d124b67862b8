"""Facts about the nodes for Gaussian averages and about their error bars."""

from __future__ import annotations

import numpy as np
import pytest
from attention_phases.positional_semantic import quadrature
from attention_phases.positional_semantic.quadrature import (
    GaussianRule,
    gaussian_nodes,
    lattice_rule,
    mean_over_scrambles,
    sobol_rule,
)
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]


def test_nodes_have_the_shape_asked_for_and_are_finite() -> None:
    nodes = gaussian_nodes(3, 12, 4, np.random.default_rng(0))
    assert nodes.shape == (4, 2**12, 3)
    assert np.isfinite(nodes).all()


def test_same_generator_gives_the_same_nodes_and_scrambles_differ() -> None:
    one, same, other = (gaussian_nodes(2, 5, 3, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.isin(one, other).any()
    assert len(np.unique(one)) == one.size


def test_nodes_are_standard_normal() -> None:
    nodes = gaussian_nodes(2, 14, 8, np.random.default_rng(2))
    for values, exact in (
        (nodes[..., 0], 0),
        (nodes[..., 1] ** 2, 1),
        (nodes[..., 0] * nodes[..., 1], 0),
        (nodes[..., 0] ** 4, 3),
        (np.cos(nodes[..., 0] + nodes[..., 1]), np.exp(-1)),
    ):
        estimate = mean_over_scrambles(values)
        # Student's t with 7 degrees of freedom exceeds 8 once in ten thousand times
        assert abs(estimate.value - exact) < 8 * estimate.standard_error


def test_errors_shrink_faster_than_those_of_monte_carlo() -> None:
    coarse, fine = (
        mean_over_scrambles(np.cos(gaussian_nodes(2, k, 16, np.random.default_rng(3)).sum(axis=2))) for k in (8, 14)
    )
    # 64 times as many points: 8 times better at random, nearly 64 times with Sobol points
    assert coarse.standard_error / fine.standard_error > 20


def test_error_bars_are_right() -> None:
    scores = []
    for seed in range(200):
        nodes = gaussian_nodes(2, 6, 8, np.random.default_rng(seed))
        estimate = mean_over_scrambles(np.cos(nodes.sum(axis=2)))
        scores.append((estimate.value - np.exp(-1)) / estimate.standard_error)
    # the scrambles' means are nearly normal: the scores follow Student's t with 7 degrees of freedom
    assert stats.kstest(scores, stats.t(7).cdf).pvalue > 1e-3


def test_mean_over_scrambles_by_hand() -> None:
    estimate = mean_over_scrambles(np.array([[1.0, 3.0], [4.0, 6.0]]))  # means 2 and 5
    assert estimate.value == 3.5
    assert estimate.standard_error == pytest.approx(1.5)


def plain_lattice(dimension: int, log2_nodes: int, n_randomisations: int, seed: int) -> GaussianRule:
    return lattice_rule(dimension, log2_nodes, n_randomisations, np.random.default_rng(seed), np.eye(dimension))


def test_points_in_a_ball_are_those_of_the_lattice() -> None:
    rng = np.random.default_rng(4)
    for dimension, reach in ((1, 9), (2, 9), (3, 7)):
        basis = rng.standard_normal((dimension, dimension)) + np.eye(dimension)
        shift, radius = rng.standard_normal(dimension), 2.0
        wide = np.stack(np.meshgrid(*[np.arange(-4 * reach, 4 * reach + 1)] * dimension, indexing="ij"), -1)
        expected = wide.reshape(-1, dimension) @ basis + shift
        expected = expected[np.linalg.norm(expected, axis=1) <= radius]
        points = quadrature._points_in_ball(basis, shift, radius).T
        assert len(points) == len(expected) > 0
        order, order_expected = np.lexsort(points.round(8).T), np.lexsort(expected.round(8).T)
        np.testing.assert_allclose(points[order], expected[order_expected], atol=1e-12)


@pytest.mark.parametrize("frame", [np.eye(4), np.kron([[1.0, 2.0], [1.0, -2.0]], np.eye(2))])
def test_a_lattice_integrates_smooth_functions(frame: Array) -> None:
    rule = lattice_rule(4, 12, 4, np.random.default_rng(5), frame)
    assert rule.n_nodes == pytest.approx(4 * 2**12, rel=0.01)
    z = rule.nodes
    wave = np.exp(-1.5)  # E cos(k . z) = exp(-|k|^2/2) with |k|^2 = 3
    for values, exact in (
        (np.ones(rule.n_nodes), 1.0),
        (z[0] ** 2 * z[3] ** 2, 1.0),
        (z[1] ** 6, 15.0),
        (np.cos(z[0] + z[1] - z[2]), wave),
        (np.exp(0.5 * z[2]), np.exp(0.125)),
    ):
        np.testing.assert_allclose(rule.means(values), exact, rtol=1e-3)


def test_a_lattice_beats_sobol_points_on_a_smooth_function() -> None:
    def scatter(rule: GaussianRule) -> float:
        return float(rule.means(np.exp(-((rule.nodes - 0.5) ** 2).sum(axis=0) / 2)).std(ddof=1))

    assert scatter(plain_lattice(4, 12, 8, 6)) < 0.1 * scatter(sobol_rule(4, 12, 8, np.random.default_rng(6)))


def test_randomisations_scatter_around_the_exact_value() -> None:
    rule = plain_lattice(4, 9, 64, 7)
    means = rule.means(np.abs(rule.nodes[0]))
    score = (means.mean() - np.sqrt(2 / np.pi)) / (means.std(ddof=1) / np.sqrt(len(means)))
    assert abs(score) < 4


def test_far_points_supply_what_the_ball_cuts_off() -> None:
    """The mass beyond |z| = 5, 5e-5: the ball of 2^7 points ends at 4.4. Its scatter covers what is missing."""
    exact = stats.chi2(4).sf(25)
    cut, whole = (lattice_rule(4, 7, 64, np.random.default_rng(10), np.eye(4), n_far) for n_far in (0, 8))
    assert whole.n_nodes == cut.n_nodes + 64 * 8
    beyond = [rule.means(((rule.nodes**2).sum(axis=0) > 25).astype(float)) for rule in (cut, whole)]
    assert not beyond[0].any()
    score = (beyond[1].mean() - exact) / (beyond[1].std(ddof=1) / 8)
    assert abs(score) < 4
    assert beyond[1].std(ddof=1) / 8 < 0.25 * exact  # some forty of the points are that far


def test_a_rule_closed_under_a_flip_is_exactly_odd() -> None:
    signs = np.array([-1.0, 1.0, -1.0, 1.0])
    for rule in (plain_lattice(4, 7, 3, 8), sobol_rule(4, 7, 3, np.random.default_rng(8))):
        closed = rule.closed_under(signs)
        assert closed.n_nodes == 2 * rule.n_nodes
        np.testing.assert_allclose(closed.means(closed.nodes[0] * closed.nodes[1]), 0, atol=1e-14)
        even = np.cos(closed.nodes[0] + closed.nodes[2])
        np.testing.assert_allclose(closed.means(even), rule.means(np.cos(rule.nodes[0] + rule.nodes[2])), rtol=1e-12)
