"""The proximal map against minima found by trial, far beyond the fields that occur, and its derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from attention_phases.positional_semantic import SampleLoss, Task, proximal_map
from numpy.typing import NDArray

Array = NDArray[np.float64]


def teacher_loss(task: Task, n: int, rng: np.random.Generator) -> SampleLoss:
    """sigma^2/2 |S - T|^2 of n random teachers' fields."""
    teacher = task.teacher_attention(task.sigma * rng.standard_normal((n, task.n_tokens, task.teacher_rank)))
    T = np.moveaxis(teacher, 0, -1)
    variance = task.sigma**2
    return SampleLoss(variance * np.eye(task.n_tokens)[..., None], variance * T, variance * (T**2).sum(axis=(0, 1)))


def random_response(rank: int, scale: float, rng: np.random.Generator) -> Array:
    """A symmetric matrix with eigenvalues from a third of the scale to three times as much."""
    turn = np.linalg.qr(rng.standard_normal((rank, rank))).Q
    return np.asarray(turn @ np.diag(scale * 3 ** rng.uniform(-1, 1, rank)) @ turn.T)


def value(h: Array, w: Array, loss: SampleLoss, V: Array) -> Array:
    """The proximal objective at h, (L, r, points, n)."""
    away = h - w[:, :, None]
    quadratic = 0.5 * np.einsum("lapn,ab,lbpn->pn", away, np.linalg.inv(V), away)
    n_points, n = h.shape[2:]
    many = SampleLoss(loss.gram, np.tile(loss.cross, n_points), np.tile(loss.constant, n_points))
    return np.asarray(quadratic + many.value(h.reshape(*h.shape[:2], -1)).reshape(n_points, n))


def lowest_by_trial(w: Array, loss: SampleLoss, V: Array, per_side: int) -> Array:
    """The lowest objective on a grid that holds all minima lower than w, and on finer ones around its three best."""
    n_tokens, rank, _ = w.shape
    size = n_tokens * rank

    def grid(count: int) -> Array:
        axis = np.linspace(-1, 1, count)
        return np.stack(np.meshgrid(*[axis] * size, indexing="ij")).reshape(n_tokens, rank, -1, 1)

    roots, turn = np.linalg.eigh(V)
    half = np.sqrt(2 * roots)[:, None, None] * np.sqrt(loss.value(w))  # ell is nowhere negative: no minimum is farther

    def around(centre: Array, count: int, width: float) -> tuple[Array, Array]:
        points = centre[:, :, None] + np.einsum("ab,lbpn->lapn", turn, width * grid(count) * half)
        return points, value(points, w, loss, V)

    points, values = around(w, per_side, 1.0)
    order = np.argsort(values, axis=0)[:3]
    result: Array = values.min(axis=0)
    for best in order:
        centre, width = np.take_along_axis(points, best[None, None, None], axis=2)[:, :, 0], 2 / (per_side - 1)
        for _ in range(12):
            near, near_values = around(centre, 3, width)
            chosen = near_values.argmin(axis=0)
            centre = np.take_along_axis(near, chosen[None, None, None], axis=2)[:, :, 0]
            result = np.minimum(result, near_values.min(axis=0))
            width *= 0.6
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_tokens", "rank", "n", "per_side"), [(2, 1, 300, 41), (3, 1, 300, 13), (2, 2, 300, 7), (3, 2, 100, 3)]
)
def test_no_trial_leads_lower_than_the_minimum(n_tokens: int, rank: int, n: int, per_side: int) -> None:
    """V from 1e-3 to 1e3, fields from small ones to saturated attention."""
    rng = np.random.default_rng([n_tokens, rank])
    lower, reached = 0, 0
    for scale in np.geomspace(1e-3, 1e3, 10):
        rows = rng.dirichlet(np.full(n_tokens, 2.0), n_tokens)
        task = Task(rng.uniform(0, 1), rng.uniform(0.3, 1), positional_attention=rows, teacher_rank=rank)
        loss = teacher_loss(task, n, rng)
        V = random_response(rank, scale, rng)
        w = rng.standard_normal((n_tokens, rank, n)) * 10 ** rng.uniform(-1, 0.4, n)
        found = proximal_map(w, loss, V).objective
        by_trial = lowest_by_trial(w, loss, V, per_side)
        lower += int((by_trial < found - 1e-9 - 1e-6 * found).sum())
        reached += int((by_trial < 1.05 * found + 1e-6).sum())
    assert lower == 0
    assert reached > 0.7 * 10 * n  # trial is good enough to see a minimum that was missed


@pytest.mark.parametrize(("n_tokens", "rank"), [(2, 1), (2, 2), (3, 1)])
def test_derivatives_by_V_against_differences(n_tokens: int, rank: int) -> None:
    """From h* - w = V g and g = -grad ell(h*): dg = (dg/dw) dV g, and the envelope changes by -g^T dV g/2."""
    rng = np.random.default_rng([n_tokens, rank, 5])
    n, eps = 400, 1e-4
    rows = np.full((n_tokens, n_tokens), 1 / n_tokens)
    loss = teacher_loss(Task(positional_attention=rows, teacher_rank=rank), n, rng)
    w = 0.5 * rng.standard_normal((n_tokens, rank, n))
    V, change = random_response(rank, 3.0, rng), random_response(rank, 1.0, rng)
    point, up, down = (proximal_map(w, loss, V + step * change) for step in (0.0, eps, -eps))
    g = point.residual
    moved = np.einsum("ab,lbn->lan", change, g)
    # where h* jumps in between, the quotient is of order 1/eps; the envelope is continuous, but has a kink
    force = np.abs((up.residual - down.residual) / (2 * eps) - np.einsum("lakbn,kbn->lan", point.derivative, moved))
    assert np.mean(force.max(axis=(0, 1)) > 1e-6) < 0.01
    envelope = np.abs((up.objective - down.objective) / (2 * eps) + 0.5 * (g * moved).sum(axis=(0, 1)))
    assert np.mean(envelope > 1e-7) < 0.01
    assert np.abs(np.einsum("lakbn,kbn->lan", point.derivative, moved)).max() > 1e-3
