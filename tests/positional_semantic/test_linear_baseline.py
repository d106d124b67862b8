"""The linear positional baseline: its limit in closed form, and fits to data that tend to it."""

from __future__ import annotations

import tracemalloc
from typing import Any, cast

import numpy as np
import pytest
from attention_phases.positional_semantic import Task, attention, fit_linear, linear_baseline
from scipy.integrate import dblquad
from scipy.stats import norm, t


def test_the_baseline_of_the_running_example_agrees_with_adaptive_quadrature() -> None:
    def moment(power: int) -> float:
        def integrand(a: float, b: float) -> float:
            return float(norm.pdf(a) * norm.pdf(b) / (1 + np.exp(-0.25 * (a * a - a * b))) ** power)

        return float(dblquad(integrand, -9, 9, -9, 9, epsabs=1e-9, epsrel=1e-9)[0])

    mean, square = moment(1), moment(2)
    baseline = linear_baseline(Task())
    assert baseline.test_error == pytest.approx(0.5**2 / 2 * 0.7**2 * 4 * (square - mean**2), rel=1e-7)
    assert baseline.weights[0, 0] == pytest.approx(0.7 * mean + 0.3 * 0.6, rel=1e-8)
    assert baseline.standard_error <= 1e-15


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("n_tokens", [2, 3])
def test_the_baseline_is_mean_and_variance_of_the_teachers_attention(n_tokens: int, rank: int) -> None:
    """Against plain Monte Carlo, to five standard errors."""
    rng = np.random.default_rng([n_tokens, rank])
    positional = rng.dirichlet(np.ones(n_tokens), n_tokens)
    task = Task(omega=0.2, sigma=0.8, positional_attention=positional, teacher_rank=rank)
    baseline = linear_baseline(task)
    teacher = task.teacher_attention(0.8 * rng.standard_normal((200_000, n_tokens, rank)))
    errors = 0.8**2 / 2 * ((teacher - baseline.weights) ** 2).sum(axis=(1, 2))
    assert abs(errors.mean() - baseline.test_error) <= 5 * errors.std() / np.sqrt(len(errors))
    scatter = teacher.std(axis=0) / np.sqrt(len(teacher))
    assert (np.abs(teacher.mean(axis=0) - baseline.weights) <= 5 * scatter).all()
    assert baseline.weights.sum(axis=1) == pytest.approx(np.ones(n_tokens), abs=1e-12)


@pytest.mark.parametrize("n_tokens", [12, 100])
def test_many_tokens_take_little_memory(n_tokens: int) -> None:
    """Less than 64 MiB; the matrices of all samples alone would be gigabytes for a hundred tokens."""
    task = Task(omega=0.2, positional_attention=np.full((n_tokens, n_tokens), 1 / n_tokens))
    tracemalloc.start()
    baseline = linear_baseline(task)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**26
    teacher = task.teacher_attention(0.5 * np.random.default_rng(1).standard_normal((500, n_tokens, 1)))
    errors = 0.5**2 / 2 * ((teacher - baseline.weights) ** 2).sum(axis=(1, 2))
    assert abs(errors.mean() - baseline.test_error) <= 5 * errors.std() / np.sqrt(len(errors))
    assert baseline.standard_error < 0.01 * baseline.test_error


def test_a_positional_teacher_is_learned_without_error() -> None:
    task = Task(omega=1, positional_attention=((0.3, 0.7), (0.8, 0.2)))
    baseline = linear_baseline(task)
    assert baseline.test_error == 0
    assert (baseline.weights == task.positional_attention).all()


@pytest.mark.parametrize("omega", [0.0, 0.3, 0.8])
def test_the_error_does_not_depend_on_the_positional_part_but_for_its_weight(omega: float) -> None:
    plain = linear_baseline(Task(omega=0)).test_error
    other = linear_baseline(Task(omega=omega, positional_attention=((0.3, 0.7), (0.8, 0.2)), regularization=1))
    assert other.test_error == pytest.approx((1 - omega) ** 2 * plain, rel=1e-13)


def test_for_weak_attention_the_error_is_three_eighths_of_sigma_to_the_sixth() -> None:
    """The softmax is linear there: ``S_11 - 1/2 = (s_1^2 - s_1 s_2)/4``, with variance 3 sigma^4/16."""
    for sigma in (0.05, 0.1):
        error = linear_baseline(Task(omega=0, sigma=sigma)).test_error
        assert error == pytest.approx(3 / 8 * sigma**6, rel=20 * sigma**2)


def test_where_the_rule_does_not_converge_the_error_says_so() -> None:
    baseline = linear_baseline(Task(sigma=10))
    assert 0 < baseline.standard_error < 1e-3 * baseline.test_error


@pytest.mark.parametrize("n_tokens", [2, 3])
def test_a_fit_is_ridge_regression_on_the_sentences(n_tokens: int) -> None:
    task = Task(positional_attention=np.full((n_tokens, n_tokens), 1 / n_tokens))
    dataset = task.sample(30, 1.5, 0)
    fit = fit_linear(dataset, ridge=0.1)
    tokens = dataset.tokens - (task.positions / np.sqrt(30))[:, None]
    inputs, outputs = (np.moveaxis(a, 1, 0).reshape(n_tokens, -1) for a in (tokens, dataset.targets))
    expected = np.linalg.solve(inputs @ inputs.T + 30 * 0.1 * np.eye(n_tokens), inputs @ outputs.T).T
    np.testing.assert_allclose(fit.weights, expected, rtol=1e-10)
    loss = ((outputs - expected @ inputs) ** 2).sum() / (2 * 30) + 0.1 / 2 * (expected**2).sum()
    assert fit.train_loss == pytest.approx(loss / 30, rel=1e-8)


def test_the_test_error_of_a_fit_is_that_on_fresh_sentences() -> None:
    task, d = Task(sigma=0.9), 20
    dataset = task.sample(d, 3, 0)
    fit = fit_linear(dataset)
    rng = np.random.default_rng(1)
    tokens = 0.9 * rng.standard_normal((100_000, 2, d))
    fields = tokens @ dataset.teacher_query / np.sqrt(d)
    teacher = 0.7 * attention(fields) + 0.3 * task.positional_attention
    errors = (((teacher - fit.weights) @ tokens) ** 2).sum(axis=(1, 2)) / (2 * d)
    assert abs(errors.mean() - fit.test_error) <= 5 * errors.std() / np.sqrt(len(errors))
    assert fit.test_error_standard_error < 1e-3 * fit.test_error


def test_fits_tend_to_the_limit_as_one_over_d() -> None:
    """d times the mean excess is one positive number for d = 50 to 800, and there is nothing left at 1/d = 0.

    The mean over 16 teachers and samples each; d (error - limit) = slope + curvature/d, fitted by weighted least
    squares, must leave residuals of the size of the standard errors.
    """
    sizes, seeds, limit = np.array([50, 100, 200, 400, 800]), 16, linear_baseline(Task()).test_error
    errors = np.array(
        [
            [
                fit_linear(Task().sample(d, 1.5, np.random.default_rng([s, d]), "orthonormal")).test_error
                for s in range(seeds)
            ]
            for d in sizes
        ]
    )
    mean, error = errors.mean(axis=1), errors.std(axis=1, ddof=1) / np.sqrt(seeds)
    design = np.stack([np.ones(5), 1 / sizes]) / error
    inverse = np.linalg.inv(design @ design.T)
    intercept, slope = inverse @ design @ (mean / error)
    quantile = t.ppf(1 - 1e-4, seeds - 1)
    assert abs(intercept - limit) <= quantile * np.sqrt(inverse[0, 0])
    assert slope > 10 * np.sqrt(inverse[1, 1])
    assert (np.abs(mean - limit - slope / sizes) <= quantile * error).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_error_of_a_fit_is_not_below_that_of_the_best_matrix(seed: int) -> None:
    """More samples of the same teacher give a lower error, down to what no sample lowers."""
    query = np.random.default_rng(seed).standard_normal((60, 1))
    errors = [fit_linear(Task().sample(60, alpha, seed, query)).test_error for alpha in (0.2, 2, 40)]
    assert errors[0] > errors[1] > errors[2]
    many = fit_linear(Task().sample(60, 200, seed + 100, query)).test_error
    assert errors[2] == pytest.approx(many, rel=1e-3)


def test_the_published_baseline_lies_within_the_scatter_of_single_fits() -> None:
    """0.00199 at omega = 0.3 (arXiv 2402.03902), 1 % above the limit: the norm of one Gaussian teacher at d = 1000."""
    errors = [fit_linear(Task().sample(1000, 1.0, seed)).test_error for seed in range(8)]
    limit = linear_baseline(Task()).test_error
    assert 0.005 < 0.00199 / limit - 1 < 0.015
    assert abs(0.00199 - limit) < np.std(errors, ddof=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_baseline(cast("Any", "task")), "task must be a Task; got 'task'"),
        (
            lambda: linear_baseline(Task(positional_attention=np.eye(11), teacher_rank=2000)),
            "task must have at most 21201 fields, L times teacher_rank; got 22000",
        ),
        (lambda: fit_linear(cast("Any", 3)), "dataset must be a Dataset; got 3"),
        (lambda: fit_linear(Task().sample(5, 1, 0), -1), r"ridge must be a number in \[0, 1e\+12\]; got -1"),
        (lambda: fit_linear(Task().sample(1, 1, 0), 0), "ridge must be positive where the samples do not determine W"),
    ],
)
def test_unfit_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
