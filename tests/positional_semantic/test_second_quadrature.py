"""State evolution's averages by another rule, which shares nothing with the library.

Fields of the teacher and of the student stand on two grids, a plane each; minima are found by trying all points of a
third grid, and then a few Newton steps on differences of the objective. The trapezoidal rule on a grid with a random
shift is unbiased, and so fine a grid sees on which side of the jump each point is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from attention_phases.positional_semantic import Overlaps, Task, solve_state_evolution, state_evolution_step
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
TASK = Task()
ALPHA = 11 / 7
H = np.linspace(-3, 3, 121)
PLANE = np.stack(np.meshgrid(H, H, indexing="ij"))


class Averages(NamedTuple):
    """Of one sample: E|g|^2, E[c . g], V^/alpha, E[g . s], E ell(h*), E ell(w)."""

    q_hat: float
    m_hat: float
    V_hat: float
    force_on_teacher: float
    train: float
    test: float


def logistic(z: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-z)))


def losses(h: Array, wanted: Array) -> Array:
    """sigma^2 [(S_11 - T_11)^2 + (S_22 - T_22)^2]."""
    first, second = h
    difference = first - second
    squares = (logistic(first * difference) - wanted[0]) ** 2 + (logistic(-second * difference) - wanted[1]) ** 2
    return np.asarray(TASK.sigma**2 * squares)


def minima(w: Array, wanted: Array, V: float) -> tuple[Array, Array]:
    """h* at the points of the plane w[0] x w[1], and the objective there."""
    one, other = (((H - axis[:, None]) ** 2) / (2 * V) for axis in w)
    table = one[:, :, None] + losses(PLANE, wanted)  # w_1, h_1, h_2
    first = table.argmin(axis=1)
    table = np.take_along_axis(table, first[:, None], axis=1) + other  # w_1, w_2, h_2
    j = table.argmin(axis=2)
    h = np.stack([H[np.take_along_axis(first, j, axis=1)], H[j]])
    field = np.stack(np.meshgrid(*w, indexing="ij"))

    def objective(point: Array) -> Array:
        return np.asarray(((point - field) ** 2).sum(axis=0) / (2 * V) + losses(point, wanted))

    e = 2e-3
    x, y = e * np.array([1, 0])[:, None, None], e * np.array([0, 1])[:, None, None]
    for _ in range(3):
        here, east, west, north, south = (objective(h + d) for d in (0 * x, x, -x, y, -y))
        across = objective(h + x + y) + objective(h - x - y) - objective(h + x - y) - objective(h - x + y)
        gx, gy, hxx, hyy, hxy = (
            (east - west) / (2 * e),
            (north - south) / (2 * e),
            (east + west - 2 * here) / e**2,
            (north + south - 2 * here) / e**2,
            across / (4 * e**2),
        )
        candidate = h + np.stack([hxy * gy - hyy * gx, hxy * gx - hxx * gy]) / (hxx * hyy - hxy**2)
        h = np.where(objective(candidate) < here, candidate, h)
    return h, objective(h)


def averages(overlaps: Overlaps, rng: np.random.Generator) -> Averages:
    q, m, V, theta = (float(value) for value in (overlaps.q, overlaps.m, overlaps.V, overlaps.theta))
    variance = TASK.sigma**2
    root = np.sqrt(q - theta**2 / variance)
    total = np.zeros(6)
    step, fine, reach = 0.6, 0.35, 5.3
    eta = step * (np.arange(-10, 10)[:, None] + rng.random(2))  # teacher's fields, along their sum and difference
    for along in eta[:, 0]:
        for across in eta[:, 1]:
            weight = step**2 / (2 * np.pi) * np.exp(-(along**2 + across**2) / 2)
            if weight < 1e-8:
                continue
            s = TASK.sigma * np.array([along + across, along - across]) / np.sqrt(2)
            wanted = (1 - TASK.omega) * logistic(s * (s - s[::-1])) + TASK.omega * 0.6
            mean = m * np.array([1, -1]) + theta / variance * s
            grid = np.arange(-reach, reach, fine)[:, None] + fine * rng.random(2)
            zeta = np.stack(np.meshgrid(*grid.T, indexing="ij"))
            masses = weight * fine**2 / (2 * np.pi) * np.exp(-(zeta**2).sum(axis=0) / 2)
            w = mean[:, None] + root * grid.T
            h, envelope = minima(w, wanted, V)
            field = np.stack(np.meshgrid(*w, indexing="ij"))
            g = (h - field) / V
            squares = (g**2).sum(axis=0)
            parts = (
                squares,
                -(zeta[0] - zeta[1]) * envelope / root,
                ((zeta**2).sum(axis=0) - 2) * envelope / root**2,
                (g * s[:, None, None]).sum(axis=0),
                envelope - V * squares / 2,
                losses(field, wanted),
            )
            total += [float((masses * part).sum()) for part in parts]
    return Averages(*total)


def next_overlaps(overlaps: Overlaps, found: Averages) -> dict[str, float]:
    """The map, and both errors, from the equations as they stand in the theory."""
    variance, strength = TASK.sigma**2, TASK.regularization
    q_hat, m_hat, V_hat = (ALPHA * value for value in found[:3])
    theta_hat = (V_hat * float(overlaps.theta) + ALPHA * found.force_on_teacher) / variance
    D = strength + variance * V_hat
    return {
        "q": variance * (variance * q_hat + m_hat**2 + variance**2 * theta_hat**2) / D**2,
        "m": m_hat / D,
        "V": variance / D,
        "theta": variance**2 * theta_hat / D,
        "train_loss": ALPHA * found.train + strength * float(overlaps.q) / (2 * variance),
        "test_error": found.test,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("branch", "vanishes"), [("semantic", "m"), ("positional", "theta")])
def test_averages_at_the_branch_points_agree_with_another_rule(branch: Any, vanishes: str) -> None:
    point = solve_state_evolution(TASK, ALPHA, branch, accuracy=2e-4)
    ours: dict[str, list[float]] = {name: [] for name in ("q", "m", "V", "theta")}
    for seed in range(8):
        moved = state_evolution_step(TASK, ALPHA, point.overlaps, log2_nodes=15, seed=seed)
        for name, values in ours.items():
            values.append(float(getattr(moved, name)))
    rng = np.random.default_rng(2024)
    others = [next_overlaps(point.overlaps, averages(point.overlaps, rng)) for _ in range(4)]
    scores = {}
    for name in others[0]:
        theirs = np.array([other[name] for other in others])
        error = theirs.std(ddof=1) / 2
        if name in ours:
            value, own = np.mean(ours[name]), np.std(ours[name], ddof=1) / np.sqrt(8)
        else:
            value, own = getattr(point, name), point.standard_error[name]
        if name != vanishes:
            assert error < 2e-3 * abs(theirs.mean())  # the comparison means something
        scores[name] = (theirs.mean() - value) / np.hypot(error, own)
    # twelve comparisons of three degrees of freedom at the least: 1 % of such tests fail
    quantile = stats.t(3).ppf(1 - 0.01 / 24)
    assert all(abs(score) < quantile for score in scores.values()), scores
