"""The rule of 144 nodes: what it integrates exactly, and that the published overlaps are its fixed points."""

from __future__ import annotations

import numpy as np
import pytest
from attention_phases.positional_semantic import Overlaps, Task, solve_state_evolution
from attention_phases.positional_semantic.published_rule import coarse_point, degree_seven_rule, errors_at

PUBLISHED = {  # q, m, V, theta: Cui et al. (2024), arXiv 2402.03902, running example
    ("semantic", 1.57143): (0.0968805, 0, 14.9224, 0.139969),
    ("semantic", 0.345455): (0.0274166, 0, 29.5904, 0.0222546),
    ("positional", 1.57143): (0.0488174, 0.25643, 12.7844, 0),
    ("positional", 0.569091): (0.0328706, 0.228508, 19.4362, 0),
}


def test_moments_to_degree_seven() -> None:
    nodes, weights = degree_seven_rule()
    moments = np.array([1, 0, 1, 0, 3, 0, 15, 0])  # of one standard normal variable
    for i in range(8):
        for j in range(8 - i):
            assert weights @ (nodes[0] ** i * nodes[1] ** j) == pytest.approx(moments[i] * moments[j], abs=1e-13)


@pytest.mark.parametrize(("branch", "alpha"), PUBLISHED)
def test_published_overlaps_are_the_fixed_points_of_the_coarse_map(branch: str, alpha: float) -> None:
    found = coarse_point(Task(), alpha, branch)
    values = (found.q, abs(found.m), found.V, abs(found.theta))
    # their iteration ends when an overlap changes by less than 1e-4 a step, and at small alpha it changes slowly
    np.testing.assert_allclose(values, PUBLISHED[branch, alpha], rtol=0.01, atol=1e-8)


def test_the_errors_of_a_solution_are_its_own() -> None:
    point = solve_state_evolution(Task(), 1.5, "positional")
    errors = errors_at(Task(), 1.5, point.overlaps)
    # the root of other nodes: the losses agree within both errors, a few parts in ten thousand
    for value, own in ((errors.train_loss, point.train_loss), (errors.free_energy, point.free_energy)):
        assert value == pytest.approx(own, rel=1e-3)
    assert errors.test_error == pytest.approx(point.test_error, rel=1e-3)


def test_the_functional_is_stationary_where_the_training_loss_is_not() -> None:
    point = solve_state_evolution(Task(), 1.5, "semantic")
    changes: dict[str, list[float]] = {"free_energy": [], "train_loss": []}
    for factor in (0.98, 1.02):
        moved = Overlaps(point.q, point.m, factor * float(point.V), point.theta)
        errors = errors_at(Task(), 1.5, moved)
        for name, values in changes.items():
            values.append(getattr(errors, name) / point.train_loss - 1)
    assert max(np.abs(changes["free_energy"])) < 0.1 * min(np.abs(changes["train_loss"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Task(student_rank=2), 1.0, "semantic"), "two tokens and rank one"),
        ((Task(), -1.0, "semantic"), "alpha must"),
        ((Task(), 1.0, "mixed"), "branch must"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[Task, float, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        coarse_point(*arguments)
