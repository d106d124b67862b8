"""Facts about the nodes for Gaussian averages and about their error bars."""

from __future__ import annotations

import numpy as np
import pytest
from attention_phases.positional_semantic.quadrature import gaussian_nodes, mean_over_scrambles
from scipy import stats


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
