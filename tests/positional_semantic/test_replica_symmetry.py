"""Facts about two copies of a student: they approach each other where the proximal map is smooth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_phases.positional_semantic import (
    SampleLoss,
    Task,
    distance_ratio,
    proximal_map,
    solve_state_evolution,
)
from attention_phases.positional_semantic.quadrature import gaussian_nodes

EXAMPLE = Task()


def test_close_copies_approach_at_the_rate_of_the_replicon() -> None:
    point = solve_state_evolution(EXAMPLE, 3.0, "semantic")
    ratio = distance_ratio(point, 1e-4)
    # eight scrambles: t of seven degrees of freedom beyond 5.4 once in a thousand runs
    assert abs(ratio.value - point.replicon) < 5.4 * ratio.standard_error + 2e-3 * point.replicon


def test_copies_that_share_the_teacher_only_are_apart_by_the_scatter_of_g_given_s() -> None:
    """At share 1 the copies are independent given s, so E|g^1 - g^2|^2 is twice the mean of Var[g | s]."""
    point = solve_state_evolution(EXAMPLE, 3.0, "semantic")
    rng = np.random.default_rng(0)
    s = 0.5 * gaussian_nodes(2, 11, 1, rng)[0].T[:, None]  # (L, 1, N)
    teacher = np.moveaxis(EXAMPLE.teacher_attention(np.moveaxis(s, -1, 0)), 0, -1)
    loss = SampleLoss(0.25 * np.eye(2)[..., None], 0.25 * teacher, 0.25 * (teacher**2).sum(axis=(0, 1)))
    V, theta = float(point.V), float(point.theta)
    kappa = float(point.q) - theta**2 / 0.25
    w = (theta / 0.25 * s + np.sqrt(kappa) * rng.standard_normal(s.shape) for _ in range(60))
    g = np.stack([proximal_map(fields, loss, V).residual for fields in w])  # (60, L, 1, N)
    variances = g.var(axis=0, ddof=1).sum(axis=(0, 1))
    scatter = variances.std() / np.sqrt(len(variances)) / variances.mean()
    expected = 3.0 * V**2 * variances.mean() / kappa
    ratio = distance_ratio(point, 1.0)
    assert ratio.value == pytest.approx(expected, rel=4 * scatter)


def test_close_copies_part_where_the_map_jumps() -> None:
    point = solve_state_evolution(EXAMPLE, 1.5, "positional")
    near, far = distance_ratio(point, 1e-3), distance_ratio(point, 1.0)
    assert near.value - 1 > 3 * near.standard_error
    assert far.value < 1


def test_it_works_for_a_student_of_rank_two() -> None:
    point = solve_state_evolution(Task(student_rank=2), 3.0, "mixed", accuracy=0.01)
    ratio = distance_ratio(point, 1e-4)
    # kappa is one mixture of the modes, of which the replicon is the slowest to approach
    assert 0 < ratio.value < point.replicon + 4 * ratio.standard_error


def test_same_seed_same_estimate() -> None:
    point = solve_state_evolution(EXAMPLE, 3.0, "semantic")
    estimates = [distance_ratio(point, 0.1, log2_nodes=10, seed=seed).value for seed in (1, 1, 2)]
    assert estimates[0] == estimates[1] != estimates[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"point": None}, "point must be a FixedPoint; got None"),
        ({"share": 0.0}, r"share must be a number in \(0, 1\]; got 0"),
        ({"share": 1.1}, r"share must be a number in \(0, 1\]; got 1\.1"),
        ({"log2_nodes": 30}, "log2_nodes must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"point": solve_state_evolution(EXAMPLE, 3.0, "semantic"), "share": 0.1}
    with pytest.raises(ValueError, match=message):
        distance_ratio(**(arguments | changes))
