"""Facts about the plane, the path and the curvatures of the risk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from attention_phases.positional_semantic import (
    Dataset,
    EmpiricalRisk,
    Fit,
    Task,
    lowest_curvatures,
    minimize_risk,
    order_parameters,
    path_between,
    risk_on_plane,
)
from numpy.typing import NDArray
from tasks import SMALL, random_query

if TYPE_CHECKING:
    from attention_phases.positional_semantic.minimization import Start

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def two_minima() -> tuple[Dataset, Fit, Fit]:
    dataset = Task().sample(300, 1.5, seed=25)
    return dataset, minimize_risk(dataset, "semantic"), minimize_risk(dataset, "positional")


@pytest.mark.parametrize("task", SMALL)
def test_plane_is_the_risk_at_its_points(task: Task) -> None:
    dataset = task.sample(8, 3, seed=26)
    first, second = random_query(dataset, 10), random_query(dataset, 11)
    plane = risk_on_plane(dataset, first, second, extent=1.2, resolution=5)
    risk = EmpiricalRisk(dataset)
    # Q = a first + b second; its coordinates follow from those of the two students
    basis = np.column_stack([plane.first, plane.second])
    for row, column in ((0, 0), (1, 4), (2, 2), (3, 1), (4, 4)):
        a, b = np.linalg.solve(basis, [plane.x[column], plane.y[row]])
        expected = risk.value(a * first + b * second) / 8
        assert plane.train_loss[row, column] == pytest.approx(expected, rel=1e-10)
    assert plane.x[2] == plane.y[2] == 0  # the origin is in the middle
    for student, place in ((first, plane.first), (second, plane.second)):
        q = np.asarray(order_parameters(task, student, dataset.teacher_query).q)
        assert np.trace(np.atleast_2d(q)) == pytest.approx((place**2).sum())
    assert plane.first[0] > 0 == pytest.approx(plane.first[1], abs=1e-12)
    assert plane.second[1] > 0
    farther = max(np.linalg.norm(plane.first), np.linalg.norm(plane.second))
    assert plane.x[-1] == -plane.x[0] == plane.y[-1] == pytest.approx(1.2 * farther)


def test_minima_are_minima_of_the_plane(two_minima: tuple[Dataset, Fit, Fit]) -> None:
    dataset, semantic, positional = two_minima
    plane = risk_on_plane(dataset, semantic.query, positional.query, resolution=81)
    loss = plane.train_loss
    inner = loss[1:-1, 1:-1]
    size = len(inner)
    neighbours = [loss[i : i + size, j : j + size] for i in range(3) for j in range(3)]
    minima = np.argwhere(inner <= np.min(neighbours, axis=0))
    places = {(plane.x[1 + column], plane.y[1 + row]) for row, column in minima}
    spacing = plane.x[1] - plane.x[0]
    for place in (plane.first, plane.second, -plane.first, -plane.second):  # each with its mirror image
        assert min(np.abs(np.subtract(place, other)).max() for other in places) <= spacing
    assert len(places) == 4
    np.testing.assert_allclose(loss, loss[::-1, ::-1], rtol=1e-10)  # Q -> -Q
    assert min(semantic.train_loss, positional.train_loss) <= loss.min()


def test_path_ends_at_the_two_minima_and_crosses_a_barrier(two_minima: tuple[Dataset, Fit, Fit]) -> None:
    dataset, semantic, positional = two_minima
    straight = path_between(dataset, semantic.query, positional.query, n_steps=0)
    relaxed = path_between(dataset, semantic.query, positional.query)
    for path in (straight, relaxed):
        np.testing.assert_array_equal(path.queries[0], semantic.query)
        np.testing.assert_array_equal(path.queries[-1], positional.query)
        assert path.train_loss[0] == pytest.approx(semantic.train_loss, rel=1e-12)
        assert path.train_loss[-1] == pytest.approx(positional.train_loss, rel=1e-12)
        assert path.train_loss.max() > max(semantic.train_loss, positional.train_loss)
        assert path.queries.shape == (21, 300, 1)
        assert (path.arc[0], path.arc[-1]) == (0, 1)
    np.testing.assert_allclose(straight.arc, np.linspace(0, 1, 21), atol=1e-12)
    np.testing.assert_allclose(straight.queries[10], (semantic.query + positional.query) / 2, atol=1e-12)
    assert relaxed.train_loss.max() < straight.train_loss.max()
    steps = np.linalg.norm(np.diff(relaxed.queries, axis=0), axis=(1, 2))
    # spread evenly along the line before: corners make the chords a little shorter, each by its own angle
    assert steps.max() < 1.2 * steps.min()
    risk = EmpiricalRisk(dataset)
    np.testing.assert_allclose(relaxed.train_loss, [risk.value(query) / 300 for query in relaxed.queries], rtol=1e-12)


@pytest.mark.parametrize("task", SMALL)
@pytest.mark.parametrize("k", [1, 3, 8])
def test_lowest_curvatures_are_those_of_the_whole_hessian(task: Task, k: int) -> None:
    dataset = task.sample(8 if task.student_rank == 2 else 20, 3, seed=27)
    for query in (random_query(dataset, 12), minimize_risk(dataset).query):
        dense = np.linalg.eigvalsh(EmpiricalRisk(dataset).hessian(query) @ np.eye(query.size))
        np.testing.assert_allclose(lowest_curvatures(dataset, query, k), dense[:k], rtol=1e-6, atol=1e-6 * dense[-1])


@pytest.mark.parametrize("start", ["semantic", "positional"])
def test_curvatures_at_minima_are_positive(two_minima: tuple[Dataset, Fit, Fit], start: Start) -> None:
    dataset, semantic, positional = two_minima
    lowest = lowest_curvatures(dataset, (semantic if start == "semantic" else positional).query)
    assert lowest[0] > 1e-4
    assert (np.diff(lowest) >= 0).all()
    assert lowest_curvatures(dataset, np.zeros((300, 1)), 1)[0] < -1e-3  # the origin is no minimum


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("rank", "k"), [(2, 1), (2, 3), (3, 2), (3, 5)])
def test_rotations_cost_nothing(rank: int, k: int, seed: int) -> None:
    task = Task(student_rank=rank, teacher_rank=rank)
    dataset = task.sample(30, 2, seed)
    fit = minimize_risk(dataset, tolerance=1e-10)
    lowest, free = lowest_curvatures(dataset, fit.query, k), rank * (rank - 1) // 2
    assert (np.abs(lowest[:free]) < 1e-9).all()
    assert (lowest[free:] > 1e-5).all()
    dense = np.linalg.eigvalsh(EmpiricalRisk(dataset).hessian(fit.query) @ np.eye(30 * rank))
    np.testing.assert_allclose(lowest, dense[:k], rtol=0, atol=1e-8 * dense[-1])


def test_fewer_equations_than_unknowns_leave_the_curvature_of_the_penalty() -> None:
    dataset = Task(regularization=0.02).sample(100, 0.1, seed=28)
    dense = np.linalg.eigvalsh(EmpiricalRisk(dataset).hessian(minimize_risk(dataset).query) @ np.eye(100))
    assert np.isclose(dense, 0.02, rtol=1e-9).sum() >= 100 - 2 * dataset.n_samples
    lowest = lowest_curvatures(dataset, minimize_risk(dataset).query, 40)
    np.testing.assert_allclose(lowest, dense[:40], rtol=1e-6)  # many of them the same


@pytest.mark.parametrize(("sigma", "d", "rank", "seed"), [(3.0, 8, 2, 13), (3.0, 3, 1, 3)])
def test_a_relaxed_path_never_climbs_more_than_the_segment(sigma: float, d: int, rank: int, seed: int) -> None:
    """Far from the minima a step may be too long, or the path fold up: then the segment is returned."""
    dataset = Task(sigma=sigma, student_rank=rank, regularization=1.0).sample(d, 2, 0)
    ends = 10 * np.random.default_rng(seed).standard_normal((2, d, rank))
    straight = path_between(dataset, *ends, n_points=7, n_steps=0).train_loss.max()
    assert path_between(dataset, *ends, n_points=7, n_steps=50).train_loss.max() <= straight
