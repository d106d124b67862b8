"""The functional whose stationary points are the solutions of state evolution, by finite differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_phases.positional_semantic import Overlaps, SampleLoss, Task, proximal_map, state_evolution_step
from attention_phases.positional_semantic.quadrature import gaussian_nodes

ALPHA = 1.5
TASKS = [Task(), Task(omega=0.2, sigma=0.7, regularization=0.03, positional_attention=[[0.3, 0.7], [0.8, 0.2]])]
PLACE = Overlaps(q=0.1, m=0.1, V=6.0, theta=0.09)  # off any solution, nothing vanishes


def energy(task: Task, overlaps: Overlaps) -> float:
    """alpha E M over fixed nodes."""
    zeta, eta = np.split(gaussian_nodes(4, 17, 1, np.random.default_rng(0))[0].T, 2)
    variance = task.sigma**2
    s = task.sigma * eta
    teacher = np.moveaxis(task.teacher_attention(s.T[..., None]), 0, -1)
    loss = SampleLoss(variance * np.eye(2)[..., None], variance * teacher, variance * (teacher**2).sum(axis=(0, 1)))
    kappa = float(overlaps.q) - float(overlaps.theta) ** 2 / variance
    w = task.positions[:, None] * overlaps.m + overlaps.theta / variance * s + np.sqrt(kappa) * zeta
    return ALPHA * float(proximal_map(w[:, None], loss, overlaps.V).objective.mean())


def slope(task: Task, name: str) -> float:
    step = 0.01 * float(getattr(PLACE, name))
    high, low = (replace(PLACE, **{name: getattr(PLACE, name) + sign * step}) for sign in (1, -1))
    return (energy(task, high) - energy(task, low)) / (2 * step)


@pytest.mark.parametrize("task", TASKS)
def test_slopes_of_the_energy_are_the_hats(task: Task) -> None:
    """The functional is stationary in q, m, V and theta where the hats are the averages of the map, at any place.

    d(alpha E M) is V^/2 dq - m^ dm - q^/2 dV - theta^ dtheta.
    """
    new = state_evolution_step(task, ALPHA, PLACE)
    variance = task.sigma**2
    D = variance / float(new.V)
    m_hat, theta_hat = D * float(new.m), D * float(new.theta) / variance**2
    spread = float(new.q) * D**2 / variance
    q_hat = (spread - m_hat**2 - variance**2 * theta_hat**2) / variance
    V_hat = (D - task.regularization) / variance
    expected = {"q": V_hat / 2, "m": -m_hat, "V": -q_hat / 2, "theta": -theta_hat}
    for name, value in expected.items():
        # 2^17 Sobol points give the slopes, which are averages of the steep force, to some tenths of a per cent
        assert slope(task, name) == pytest.approx(value, rel=0.015), name
