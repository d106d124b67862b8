"""Limits in which state evolution can be solved by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_phases.positional_semantic import (
    NoSuchPointError,
    Overlaps,
    Task,
    distance_ratio,
    map_eigenvalues,
    solve_state_evolution,
    state_evolution_step,
)
from numpy.typing import NDArray
from scipy.optimize import brentq

Array = NDArray[np.float64]
VARIANCE = 0.25


def teacher_fields() -> tuple[Array, Array]:
    """Gauss-Hermite nodes s, (2, n), of two tokens' fields of variance 1/4, and their weights."""
    x, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    plane = np.stack(np.meshgrid(x, x, indexing="ij")).reshape(2, -1)
    turned = np.stack([plane[0] + plane[1], plane[0] - plane[1]]) / np.sqrt(2)
    return np.sqrt(VARIANCE) * turned, np.outer(weights, weights).ravel()


def logistic(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


def test_many_samples_of_a_semantic_teacher_are_learned_at_a_known_rate() -> None:
    """omega = 0: the student can be the teacher, and only lambda keeps it from it.

    With Q = a Q*, epsilon_t = alpha K (1 - a)^2/2 + lambda a^2/2, K = sigma^2 E |dS/da|^2, and what is not along Q* is
    of higher order. So 1 - theta/sigma^2 = lambda/(alpha K), V = 1/(alpha E tr hess ell), epsilon_t = lambda/2
    (1 - lambda/(alpha K)) and epsilon_g = lambda^2/(2 alpha^2 K), each up to a factor 1 + O(1/alpha).
    """
    s, weights = teacher_fields()
    z = s * (s - s[::-1])
    slope = logistic(z) * (1 - logistic(z))  # dS_ll/dz_l
    K = 2 * VARIANCE * float(weights @ ((2 * z * slope) ** 2).sum(axis=0))
    gradients = (2 * s - s[::-1]) ** 2 + s**2  # |dz_l/dh|^2
    trace = 2 * VARIANCE * float(weights @ (slope**2 * gradients).sum(axis=0))
    strength = 0.01

    def scaled(alpha: float) -> Array:
        """Each is 1 as alpha grows."""
        point = solve_state_evolution(Task(omega=0.0), alpha, accuracy=1e-3)
        return np.array(
            [
                (1 - float(point.theta) / VARIANCE) * alpha * K / strength,
                float(point.V) * alpha * trace,
                (1 - 2 * point.train_loss / strength) * alpha * K / strength,
                point.test_error * 2 * alpha**2 * K / strength**2,
            ]
        )

    near, far = scaled(15.0), scaled(30.0)
    assert (np.abs(far - 1) < 0.2).all()
    assert (np.abs(far - 1) < 0.65 * np.abs(near - 1)).all()  # about half as far
    np.testing.assert_allclose(2 * far - near, 1, atol=0.02)


def positional_threshold(strength: float) -> float:
    """alpha where the positional student vanishes, Q -> 0, at omega = 0.3.

    Near h = 0 the losses are h^T M h/2 + ..., with a = 1/2 - T_ll and M = sigma^2/2 [[2 a_1, -a_1 - a_2], [., 2 a_2]].
    So g = -R w, R = M (1 + V M)^-1, and with c = (1, -1)

        sigma^2/V = lambda + sigma^2 alpha E tr R,      sigma^2/V = -alpha E c^T R c.
    """
    s, weights = teacher_fields()
    a = 0.5 - (0.7 * logistic(s * (s - s[::-1])) + 0.3 * 0.6)
    M = VARIANCE / 2 * np.array([[2 * a[0], -a[0] - a[1]], [-a[0] - a[1], 2 * a[1]]]).transpose(2, 0, 1)
    c = np.array([1.0, -1.0])

    def alpha(V: float) -> tuple[float, float]:
        R = M @ np.linalg.inv(np.eye(2) + V * M)
        value = -VARIANCE / V / float(weights @ np.einsum("i,nij,j->n", c, R, c))
        return value, VARIANCE / V - strength - VARIANCE * value * float(weights @ np.trace(R, axis1=1, axis2=2))

    V = brentq(lambda V: alpha(V)[1], 1e-4, 5.0)
    return alpha(V)[0]


@pytest.mark.parametrize(("strength", "below"), [(0.2, 2.0), (0.5, 4.0), (1.0, 8.0)])
def test_at_large_lambda_the_positional_student_vanishes_where_it_must(strength: float, below: float) -> None:
    with pytest.raises(NoSuchPointError) as caught:
        solve_state_evolution(Task(regularization=strength), below, "positional")
    assert caught.value.alpha == pytest.approx(positional_threshold(strength), rel=0.01)


def test_the_threshold_is_linear_in_large_lambda() -> None:
    """V -> 0 then, so alpha = lambda/((4 sigma^2 + 2 sigma^4) (E T_11 - 1/2))."""
    s, weights = teacher_fields()
    mean = float(weights @ (0.7 * logistic(s * (s - s[::-1])) + 0.3 * 0.6)[0])
    slope = 1 / ((4 * VARIANCE + 2 * VARIANCE**2) * (mean - 0.5))
    assert positional_threshold(100.0) / 100 == pytest.approx(slope, rel=1e-3)


def test_one_step_at_large_lambda_is_a_small_step_down_the_population_risk() -> None:
    """V -> sigma^2/lambda, and m -> -(alpha/lambda) times the slope of E ell(w) along the positions."""
    alpha, strength, m, q = 2.0, 1e4, 0.3, 0.06
    step = state_evolution_step(Task(regularization=strength), alpha, Overlaps(q, m, VARIANCE / strength, 0.0))
    assert pytest.approx(VARIANCE / strength, rel=1e-3) == step.V
    s, weights = teacher_fields()
    T = 0.7 * logistic(s * (s - s[::-1])) + 0.3 * 0.6

    def risk(mean: float) -> float:
        w = mean * np.array([[1.0], [-1.0]]) + np.sqrt(q / VARIANCE) * s
        S = logistic(w * (w - w[::-1]))  # the teacher's fields are independent of w: average over both
        squares = (weights @ (S**2).T) - 2 * (weights @ S.T) * (weights @ T.T) + weights @ (T**2).T
        return float(VARIANCE * squares.sum())

    slope = (risk(m + 1e-4) - risk(m - 1e-4)) / 2e-4
    assert step.m == pytest.approx(-alpha / strength * slope, rel=2e-3)


@pytest.mark.parametrize(
    ("alpha", "overlaps", "message"),
    [
        (0.0, Overlaps(0.1, 0.0, 1.0, 0.1), r"alpha must be a number in \(0, inf\)"),
        (-1.0, Overlaps(0.1, 0.0, 1.0, 0.1), "alpha must be a number"),
        (np.nan, Overlaps(0.1, 0.0, 1.0, 0.1), "alpha must be a number"),
        (2.0, Overlaps(np.nan, 0.0, 1.0, 0.1), "q must be a number"),
        (2.0, Overlaps(0.1, 0.0, -1.0, 0.1), "V must be"),
        (2.0, Overlaps(0.1, 0.0, 1.0, 0.3), "q must exceed theta"),
    ],
)
@pytest.mark.parametrize("function", [state_evolution_step, map_eigenvalues])
def test_the_map_refuses_bad_input(function: Any, alpha: float, overlaps: Overlaps, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(Task(), alpha, overlaps)


@pytest.mark.parametrize("function", [state_evolution_step, map_eigenvalues])
def test_the_map_refuses_what_is_no_task(function: Any) -> None:
    with pytest.raises(ValueError, match="task must be a Task"):
        function(None, 2.0, Overlaps(0.1, 0.0, 1.0, 0.1))


def test_the_distance_of_copies_refuses_what_is_no_fixed_point() -> None:
    with pytest.raises(ValueError, match="point must be a FixedPoint"):
        distance_ratio(Overlaps(0.1, 0.0, 1.0, 0.1), 0.1)  # type: ignore[arg-type]
