"""Facts about the task, its samples, and the test error of a student."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from attention_phases.positional_semantic import (
    Dataset,
    Task,
    attention,
    generalization_error,
    order_parameters,
)
from numpy.typing import NDArray

Array = NDArray[np.float64]
THREE = ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3), (0.3, 0.3, 0.4))
FOUR = ((0.7, 0.1, 0.1, 0.1), (0, 1, 0, 0), (0.25, 0.25, 0.25, 0.25), (0, 0, 0.5, 0.5))
TASKS = [
    Task(),
    Task(positional_attention=((0.3, 0.7), (0.8, 0.2)), student_rank=2, sigma=0.8),
    Task(omega=0.6, positional_attention=THREE, student_rank=2, teacher_rank=2, sigma=1.0),
    Task(positional_attention=FOUR, teacher_rank=2, sigma=0.7, positions=(0, 3, -1, 2)),
]


def softmax_rows(scores: Array) -> Array:
    weights = np.exp(scores)
    result: Array = weights / weights.sum(axis=-1, keepdims=True)
    return result


def test_positions_are_evenly_spaced_by_default() -> None:
    np.testing.assert_array_equal(Task().positions, [1, -1])
    np.testing.assert_array_equal(Task(positional_attention=THREE).positions, [1, 0, -1])


def test_tasks_are_equal_when_their_parameters_are() -> None:
    assert Task() == Task(positional_attention=np.array([[0.6, 0.4], [0.4, 0.6]]), positions=[1, -1])
    assert hash(Task()) == hash(Task(positions=(1.0, -1.0)))
    different = [Task(omega=0.2), Task(sigma=1), Task(regularization=0), Task(student_rank=2), Task(teacher_rank=2)]
    different += [Task(positions=(1, 0)), Task(positional_attention=np.eye(2)), Task(positional_attention=THREE)]
    assert len({Task(), *different}) == 1 + len(different)
    assert Task() != "Task()"


def test_a_task_does_not_change_with_the_array_it_was_made_from() -> None:
    matrix = np.array([[0.6, 0.4], [0.4, 0.6]])
    task = Task(positional_attention=matrix)
    matrix[0] = 1
    assert task == Task()
    with pytest.raises(ValueError, match="read-only"):
        task.positional_attention[0, 0] = 1


@pytest.mark.parametrize("task", TASKS)
def test_targets_are_the_teacher_applied_to_the_bare_tokens(task: Task) -> None:
    d = 30
    dataset = task.sample(d, 2, seed=1)
    query = dataset.teacher_query
    assert dataset.tokens.shape == (60, task.n_tokens, d)
    assert query.shape == (d, task.teacher_rank)
    for tokens, matrix, target in zip(dataset.tokens, dataset.teacher_attention, dataset.targets, strict=True):
        bare = tokens - np.outer(task.positions, np.ones(d)) / np.sqrt(d)
        scores = (bare @ query) @ (bare @ query).T / d
        teacher = (1 - task.omega) * softmax_rows(scores) + task.omega * task.positional_attention
        np.testing.assert_allclose(matrix, teacher, rtol=1e-12)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, rtol=1e-14)
        np.testing.assert_allclose(target, teacher @ bare, rtol=0, atol=1e-13)


@pytest.mark.parametrize("task", TASKS)
def test_gram_form_of_the_loss_is_that_of_the_outputs(task: Task) -> None:
    d = 25
    dataset = task.sample(d, 3, seed=2)
    query = np.random.default_rng(3).standard_normal((d, task.student_rank))
    fields = dataset.tokens @ query / np.sqrt(d)
    outputs = attention(fields) @ dataset.tokens
    naive = ((dataset.targets - outputs) ** 2).sum(axis=(1, 2)) / (2 * d)
    np.testing.assert_allclose(dataset.sample_loss.value(np.moveaxis(fields, 0, -1)), naive, rtol=1e-10, atol=1e-15)


def test_tokens_are_gaussian_around_their_positions() -> None:
    task, d = Task(sigma=0.8, positional_attention=THREE, positions=(4, 0, -9)), 50
    dataset = task.sample(d, 80, seed=4)
    noise = dataset.tokens - (task.positions / np.sqrt(d))[:, None]
    n = noise.size
    assert abs(noise.mean()) < 4 * task.sigma / np.sqrt(n)
    assert abs(noise.var() / task.sigma**2 - 1) < 4 * np.sqrt(2 / n)
    assert abs((noise[:, 0] * noise[:, 1]).mean()) < 4 * task.sigma**2 / np.sqrt(n / 3)  # rows are independent


def test_the_number_of_samples_is_alpha_d() -> None:
    dataset = Task().sample(40, 1.26, seed=0)
    assert dataset.n_samples == len(dataset.tokens) == 50
    assert dataset.dimension == 40
    assert dataset.alpha == 50 / 40


@pytest.mark.parametrize("kind", ["gaussian", "orthonormal"])
def test_same_seed_same_sample(kind: str) -> None:
    one, same, as_generator, other = (Task().sample(20, 1, seed, kind) for seed in (7, 7, np.random.default_rng(7), 8))
    for again in (same, as_generator):
        np.testing.assert_array_equal(one.tokens, again.tokens)
        np.testing.assert_array_equal(one.teacher_query, again.teacher_query)
        np.testing.assert_array_equal(one.targets, again.targets)
    assert not np.isin(one.tokens, other.tokens).any()
    assert not np.isin(one.teacher_query, other.teacher_query).any()


def test_a_generator_is_advanced() -> None:
    rng = np.random.default_rng(7)
    one, other = (Task().sample(20, 1, rng) for _ in range(2))
    assert not np.isin(one.tokens, other.tokens).any()


@pytest.mark.parametrize(("d", "rank"), [(1, 1), (30, 1), (30, 3), (3, 3)])
def test_orthonormal_teachers(d: int, rank: int) -> None:
    query = Task(teacher_rank=rank).sample(d, 2, 0, "orthonormal").teacher_query
    np.testing.assert_allclose(query.T @ query, d * np.eye(rank), atol=1e-12 * d)


def test_gaussian_teachers() -> None:
    query = Task(teacher_rank=4).sample(3000, 0.01, 0, "gaussian").teacher_query
    # entries N(0, 1): the means of 3000 products have variances 2/3000 on the diagonal and 1/3000 off it
    np.testing.assert_allclose(query.T @ query / 3000, np.eye(4), atol=4 * np.sqrt(2 / 3000))


def test_a_given_teacher_is_used() -> None:
    query = np.arange(10.0).reshape(5, 2)
    dataset = Task(teacher_rank=2).sample(5, 2, 0, query)
    np.testing.assert_array_equal(dataset.teacher_query, query)
    query[0] = 7
    assert dataset.teacher_query[0, 0] == 0


def test_order_parameters_by_hand() -> None:
    task = Task(sigma=2)
    found = order_parameters(task, [[1.0], [3.0]], [[2.0], [-1.0]])
    assert (found.q, found.m, found.theta) == (20.0, 2.0, -2.0)
    assert all(type(value) is float for value in (found.q, found.m, found.theta))
    wide = order_parameters(Task(sigma=2, student_rank=2), [[1, 0], [3, 1]], [[2], [-1]])
    np.testing.assert_array_equal(wide.q, [[20, 6], [6, 2]])
    np.testing.assert_array_equal(wide.m, [2, 0.5])
    np.testing.assert_array_equal(wide.theta, [[-2], [-2]])


def monte_carlo(task: Task, query: Array, teacher_query: Array, n: int, seed: int) -> tuple[float, float]:
    """|y - f(x)|^2/(2 d) on n fresh sentences, from the outputs: mean and standard error."""
    d = len(query)
    bare = task.sigma * np.random.default_rng(seed).standard_normal((n, task.n_tokens, d))
    read = bare + np.outer(task.positions, np.ones(d)) / np.sqrt(d)
    teacher_fields, fields = bare @ teacher_query / np.sqrt(d), read @ query / np.sqrt(d)
    teacher = (1 - task.omega) * softmax_rows(teacher_fields @ teacher_fields.swapaxes(1, 2))
    teacher += task.omega * task.positional_attention
    student = softmax_rows(fields @ fields.swapaxes(1, 2))
    errors = ((teacher @ bare - student @ read) ** 2).sum(axis=(1, 2)) / (2 * d)
    return float(errors.mean()), float(errors.std() / np.sqrt(n))


@pytest.mark.parametrize("d", [1, 3, 12])
@pytest.mark.parametrize("task", TASKS)
def test_test_error_agrees_with_fresh_sentences(task: Task, d: int) -> None:
    rng = np.random.default_rng(5)
    teacher_query = rng.standard_normal((d, task.teacher_rank))
    query = 0.7 * rng.standard_normal((d, task.student_rank)) + 0.3  # with a part along the positions
    estimate = generalization_error(task, query, teacher_query)
    mean, error = monte_carlo(task, query, teacher_query, 60_000, seed=6)
    assert abs(estimate.value - mean) < 5 * np.hypot(error, estimate.standard_error)
    assert estimate.standard_error < error  # worth its while


def test_test_error_of_students_that_lie_on_the_teacher_or_on_the_positions() -> None:
    """Then the directions that matter are fewer than r + t + 1."""
    task, d = Task(), 8
    teacher_query = np.random.default_rng(7).standard_normal((d, 1))
    for query in (teacher_query, np.ones((d, 1)), np.zeros((d, 1))):
        estimate = generalization_error(task, query, teacher_query)
        mean, error = monte_carlo(task, query, teacher_query, 60_000, seed=8)
        assert abs(estimate.value - mean) < 5 * np.hypot(error, estimate.standard_error)


def test_a_student_that_is_the_teacher_makes_no_error_without_positions() -> None:
    task = Task(omega=0, positions=(0, 0))
    query = np.random.default_rng(9).standard_normal((20, 1))
    estimate = generalization_error(task, -query, query)
    assert abs(estimate.value) < 1e-25
    assert estimate.standard_error < 1e-25


def high_dimensional_error(task: Task, m: float, along: float, across: float) -> float:
    """E sigma^2/2 |T - S|^2 for L = 2, r = t = 1, by a tensor Gauss-Hermite rule.

    The student's fields are ``positions m + sigma (along eta + across zeta)``, the teacher's ``sigma eta``.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    weights = weights / weights.sum()
    eta1, eta2, zeta1, zeta2 = np.meshgrid(nodes, nodes, nodes, nodes, indexing="ij")
    weight = np.einsum("i,j,k,l->ijkl", weights, weights, weights, weights)
    teacher = task.teacher_attention(task.sigma * np.stack([eta1, eta2], axis=-1)[..., None])
    noise = task.sigma * (along * np.stack([eta1, eta2], axis=-1) + across * np.stack([zeta1, zeta2], axis=-1))
    student = attention((task.positions * m + noise)[..., None])
    return float((weight * task.sigma**2 / 2 * ((teacher - student) ** 2).sum(axis=(-2, -1))).sum())


def test_test_error_tends_to_its_high_dimensional_limit_as_one_over_d() -> None:
    task, m, along, across = Task(), 0.3, 0.5, 0.4
    limit = high_dimensional_error(task, m, along, np.hypot(across, m))  # tokens are noise along the positions too
    corrections = []
    for d in (100, 1000, 10_000):
        axes = np.linalg.qr(np.column_stack([np.ones(d), np.random.default_rng(d).standard_normal((d, 2))])).Q
        axes[:, 0] = 1 / np.sqrt(d)
        query = np.sqrt(d) * (m * axes[:, :1] + along * axes[:, 1:2] + across * axes[:, 2:])
        estimate = generalization_error(task, query, np.sqrt(d) * axes[:, 1:2], log2_nodes=15)
        corrections.append(d * (estimate.value - limit))
        assert d * estimate.standard_error < 0.05 * abs(corrections[0])
    np.testing.assert_allclose(corrections[1:], corrections[0], rtol=0.1)


def test_test_error_is_invariant_under_rotations_of_the_queries() -> None:
    task, d = Task(student_rank=2, teacher_rank=2), 40
    rng = np.random.default_rng(10)
    query, teacher_query = rng.standard_normal((2, d, 2))
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    one, other = (
        generalization_error(task, query @ a, teacher_query @ b, log2_nodes=13)
        for a, b in ((np.eye(2), np.eye(2)), (turn, np.diag([1, -1])))
    )
    assert abs(one.value - other.value) < 5 * np.hypot(one.standard_error, other.standard_error)


def test_same_seed_same_test_error() -> None:
    query, teacher_query = np.random.default_rng(11).standard_normal((2, 10, 1))
    values = [
        generalization_error(Task(), query, teacher_query, seed=seed).value
        for seed in (0, 0, np.random.default_rng(0), 1)
    ]
    assert values[0] == values[1] == values[2] != values[3]


def test_a_dataset_can_be_made_of_given_tokens() -> None:
    drawn = Task().sample(6, 2, seed=0)
    again = Dataset(drawn.task, drawn.tokens.tolist(), drawn.teacher_attention, drawn.teacher_query)
    np.testing.assert_array_equal(again.targets, drawn.targets)


THREADS = """
import sys
import numpy as np
from attention_phases.positional_semantic import Task, generalization_error, minimize_risk

dataset = Task(student_rank=2, teacher_rank=2).sample(500, 1.5, 0)  # OpenBLAS sums these products thread by thread
fit = minimize_risk(dataset, tolerance=1e-3)
for result in (dataset.tokens, dataset.teacher_attention, dataset.targets, dataset.sample_loss.cross, fit.query,
               generalization_error(dataset.task, fit.query, dataset.teacher_query).value):
    sys.stdout.write(np.asarray(result).tobytes().hex()[-4000:] + "\\n")
"""


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    def digits(n: int) -> str:
        environment: dict[str, Any] = {**os.environ, "OMP_NUM_THREADS": str(n), "OPENBLAS_NUM_THREADS": str(n)}
        done = subprocess.run(
            [sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert digits(1) == digits(2)


def test_a_dataset_does_not_change_with_the_arrays_it_was_made_from() -> None:
    drawn = Task().sample(10, 2, 0)
    tokens = drawn.tokens.copy()
    dataset = Dataset(drawn.task, tokens, drawn.teacher_attention, drawn.teacher_query)
    tokens *= 3
    np.testing.assert_array_equal(dataset.tokens, drawn.tokens)
    for array in (drawn.tokens, drawn.teacher_attention, drawn.teacher_query, dataset.tokens):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.parametrize("function", [order_parameters, generalization_error])
def test_a_task_is_asked_for(function: Any) -> None:
    with pytest.raises(ValueError, match="task must be a Task; got None"):
        function(None, np.ones((3, 1)), np.ones((3, 1)))
