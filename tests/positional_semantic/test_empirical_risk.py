"""Facts about the empirical risk, its gradient and its Hessian."""

from __future__ import annotations

import numpy as np
import pytest
from attention_phases.positional_semantic import (
    Dataset,
    EmpiricalRisk,
    Task,
    attention,
    minimize_risk,
)
from numpy.typing import NDArray
from tasks import SMALL, random_query, rotation

Array = NDArray[np.float64]


@pytest.mark.parametrize("task", SMALL)
def test_risk_is_the_squared_error_and_the_penalty(task: Task) -> None:
    dataset = task.sample(8, 3, seed=1)
    query = random_query(dataset, 0)
    outputs = attention(dataset.tokens @ query / np.sqrt(8)) @ dataset.tokens
    naive = ((dataset.targets - outputs) ** 2).sum() / 16 + task.regularization / 2 * (query**2).sum()
    risk = EmpiricalRisk(dataset)
    assert risk.value(query) == pytest.approx(naive, rel=1e-12)
    assert risk.slope(query).risk == pytest.approx(naive, rel=1e-12)


@pytest.mark.parametrize("task", SMALL)
def test_gradient_agrees_with_central_differences(task: Task) -> None:
    dataset = task.sample(8, 3, seed=2)
    risk, query, step = EmpiricalRisk(dataset), random_query(dataset, 1), 1e-4
    numerical = np.empty_like(query)
    for index in np.ndindex(query.shape):
        shift = np.zeros_like(query)
        shift[index] = step
        numerical[index] = (risk.value(query + shift) - risk.value(query - shift)) / (2 * step)
    gradient = risk.slope(query).gradient
    assert np.linalg.norm(gradient - numerical) < 1e-6 * np.linalg.norm(gradient)


@pytest.mark.parametrize("task", SMALL)
def test_hessian_agrees_with_differences_of_the_gradient_and_is_symmetric(task: Task) -> None:
    dataset = task.sample(8, 3, seed=3)
    risk, query, step = EmpiricalRisk(dataset), random_query(dataset, 2), 1e-4
    hessian = risk.hessian(query) @ np.eye(query.size)
    numerical = np.empty_like(hessian)
    for column in range(query.size):
        shift = np.zeros(query.size)
        shift[column] = step
        ahead, behind = (risk.slope(query + sign * shift.reshape(query.shape)).gradient.ravel() for sign in (1, -1))
        numerical[:, column] = (ahead - behind) / (2 * step)
    assert np.linalg.norm(hessian - numerical) < 1e-6 * np.linalg.norm(hessian)
    np.testing.assert_allclose(hessian, hessian.T, rtol=0, atol=1e-13 * np.abs(hessian).max())


@pytest.mark.parametrize("task", SMALL)
def test_risk_does_not_change_under_rotations_of_the_query(task: Task) -> None:
    dataset = task.sample(8, 3, seed=4)
    risk, query = EmpiricalRisk(dataset), random_query(dataset, 3)
    turn = rotation(task.student_rank, 0)
    slope = risk.slope(query)
    for matrix in (-np.eye(task.student_rank), turn):
        turned = risk.slope(query @ matrix)
        assert turned.risk == pytest.approx(slope.risk, rel=1e-12)
        np.testing.assert_allclose(turned.gradient, slope.gradient @ matrix, rtol=1e-10, atol=1e-12)


def test_risk_does_not_depend_on_the_order_of_the_samples() -> None:
    dataset = Task().sample(20, 2, seed=5)
    order = np.random.default_rng(0).permutation(dataset.n_samples)
    shuffled = Dataset(dataset.task, dataset.tokens[order], dataset.teacher_attention[order], dataset.teacher_query)
    query = random_query(dataset, 4)
    assert EmpiricalRisk(shuffled).value(query) == pytest.approx(EmpiricalRisk(dataset).value(query), rel=1e-13)
    one, other = (minimize_risk(data, tolerance=1e-10) for data in (dataset, shuffled))
    np.testing.assert_allclose(one.query, other.query, atol=1e-7)


def test_risk_of_a_growing_query_tends_to_that_of_hard_attention() -> None:
    dataset = Task(regularization=0).sample(20, 2, seed=6)
    query = random_query(dataset, 5)
    fields = dataset.tokens @ query
    hard = np.eye(2)[(fields @ fields.swapaxes(1, 2)).argmax(axis=2)]
    expected = ((dataset.targets - hard @ dataset.tokens) ** 2).sum() / 40
    slope = EmpiricalRisk(dataset).slope(1e9 * query)
    assert slope.risk == pytest.approx(expected, rel=1e-12)
    assert not slope.gradient.any()
