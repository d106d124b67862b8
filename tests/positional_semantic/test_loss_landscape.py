"""Facts about the empirical risk, its minima and what lies between them."""

from __future__ import annotations

import dataclasses
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from attention_phases.positional_semantic import (
    ConvergenceError,
    Dataset,
    EmpiricalRisk,
    Fit,
    Task,
    attention,
    lowest_curvatures,
    minimize_risk,
    order_parameters,
    path_between,
    risk_on_plane,
)
from attention_phases.positional_semantic.loss_landscape import gauge_rotation
from numpy.typing import NDArray
from scipy import stats

if TYPE_CHECKING:
    from attention_phases.positional_semantic.loss_landscape import Method, Start

Array = NDArray[np.float64]
THREE = ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3), (0.3, 0.3, 0.4))
SMALL = [  # one of each kind, with d of 8
    Task(),
    Task(sigma=1.0, positional_attention=((0.3, 0.7), (0.8, 0.2)), student_rank=2),
    Task(omega=0.6, positional_attention=THREE, student_rank=2, teacher_rank=2, sigma=1.0),
    Task(positional_attention=THREE, teacher_rank=2, regularization=0, positions=(0, 3, -1)),
]


def random_query(dataset: Dataset, seed: int) -> Array:
    return np.random.default_rng([seed, 99]).standard_normal((dataset.dimension, dataset.task.student_rank))


def rotation(rank: int, seed: int) -> Array:
    return np.linalg.qr(np.random.default_rng([seed, 98]).standard_normal((rank, rank))).Q


# --- the risk -------------------------------------------------------------------------------------------------------


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


# --- the gauge ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [2, 3])
def test_theta_of_equal_ranks_is_symmetric_and_positive(rank: int) -> None:
    task = Task(student_rank=rank, teacher_rank=rank)
    dataset = task.sample(9, 2, seed=7)
    query = random_query(dataset, 6)
    gauged = query @ gauge_rotation(dataset, query)
    theta = np.asarray(order_parameters(task, gauged, dataset.teacher_query).theta)
    np.testing.assert_allclose(theta, theta.T, atol=1e-14)
    assert np.linalg.eigvalsh(theta).min() > 0
    # the representative does not depend on where in its orbit the query was
    turned = query @ rotation(rank, 1)
    np.testing.assert_allclose(turned @ gauge_rotation(dataset, turned), gauged, atol=1e-12)


@pytest.mark.parametrize("task", SMALL)
def test_fixing_the_gauge_twice_changes_nothing(task: Task) -> None:
    dataset = task.sample(8, 3, seed=8)
    query = random_query(dataset, 7)
    gauge = gauge_rotation(dataset, query)
    np.testing.assert_allclose(gauge.T @ gauge, np.eye(task.student_rank), atol=1e-14)
    np.testing.assert_allclose(gauge_rotation(dataset, query @ gauge), np.eye(task.student_rank), atol=1e-12)


def test_sign_of_a_student_of_rank_one_makes_its_largest_cosine_positive() -> None:
    dataset = Task().sample(50, 1, seed=9, teacher_query="orthonormal")
    teacher, positions = dataset.teacher_query, np.ones((50, 1))
    for query, sign in (
        (teacher - 0.5 * positions, 1),
        (0.5 * positions - teacher, -1),
        (positions - 0.5 * teacher, 1),
        (0.5 * teacher - positions, -1),
    ):
        assert gauge_rotation(dataset, query)[0, 0] == sign


# --- the minimisers -------------------------------------------------------------------------------------------------

MANY = {
    "running example": {},
    "A not symmetric": {"positional_attention": ((0.3, 0.7), (0.8, 0.2))},
    "A one-hot": {"positional_attention": ((0, 1), (1, 0)), "omega": 1},
    "no positional part": {"omega": 0},
    "little noise": {"sigma": 0.1},
    "large tokens": {"sigma": 2},
    "no penalty": {"regularization": 0},
    "large penalty": {"regularization": 10},
    "three tokens": {"positional_attention": THREE},
    "student of rank 2": {"student_rank": 2},
    "teacher of rank 2": {"teacher_rank": 2},
    "both of rank 2, three tokens": {"student_rank": 2, "teacher_rank": 2, "positional_attention": THREE},
    "other positions": {"positions": (0.2, 3)},
}


@pytest.mark.parametrize("start", ["semantic", "positional", "random"])
@pytest.mark.parametrize("name", MANY)
def test_lbfgs_reaches_its_tolerance(name: str, start: Start) -> None:
    task = Task(**MANY[name])  # type: ignore[arg-type]
    for d, alpha, tolerance in ((1, 1, 1e-7), (2, 0.5, 1e-7), (3, 4, 1e-10), (40, 1.5, 1e-9), (60, 0.1, 1e-7)):
        dataset = task.sample(d, alpha, seed=1)
        fit = minimize_risk(dataset, start, tolerance=tolerance, seed=2)
        assert fit.converged
        # in its own words: the gradient, over the parts of it that cancel
        slope = EmpiricalRisk(dataset).slope(fit.query)
        pull = np.linalg.norm(slope.gradient - task.regularization * fit.query)
        penalty = task.regularization * np.linalg.norm(fit.query)
        size = task.regularization * np.sqrt(d)
        size += task.sigma**2 * (1 + task.sigma**2) * np.sqrt(dataset.n_samples)
        norm = np.linalg.norm(slope.gradient) / (pull + penalty + 1e-3 * size)
        assert norm <= 1.01 * tolerance
        assert fit.gradient_norm <= tolerance


@pytest.mark.parametrize("task", SMALL)
def test_a_fit_says_what_its_query_is(task: Task) -> None:
    dataset = task.sample(20, 2, seed=10)
    for method in ("lbfgs", "adam"):
        fit = minimize_risk(dataset, "semantic", method, n_steps=50)
        assert fit.train_loss == pytest.approx(EmpiricalRisk(dataset).value(fit.query) / 20, rel=1e-12)
        observed = order_parameters(task, fit.query, dataset.teacher_query)
        for name in ("q", "m", "theta"):
            np.testing.assert_array_equal(getattr(fit, name), getattr(observed, name))
        np.testing.assert_allclose(gauge_rotation(dataset, fit.query), np.eye(task.student_rank), atol=1e-10)
        assert fit.trajectory is None


def test_a_minimum_is_not_above_its_neighbours() -> None:
    dataset = Task().sample(60, 1.5, seed=11)
    risk = EmpiricalRisk(dataset)
    for start in ("semantic", "positional", "random"):
        query = minimize_risk(dataset, start).query
        bottom = risk.value(query)
        for seed in range(20):
            assert risk.value(query + 0.01 * random_query(dataset, seed)) > bottom


@pytest.mark.slow
@pytest.mark.parametrize(("d", "seed"), [(200, 0), (300, 1), (300, 2), (400, 3)])
def test_lbfgs_is_never_above_the_gradient_descent_of_the_paper(d: int, seed: int) -> None:
    dataset = Task().sample(d, 1.5, seed)
    for start in ("semantic", "positional"):
        fit = minimize_risk(dataset, start)
        descent = minimize_risk(dataset, start, "gradient_descent", learning_rate=0.15, n_steps=5000)
        assert fit.train_loss <= descent.train_loss
        assert fit.n_evaluations < descent.n_evaluations / 20


@pytest.mark.parametrize("start", ["semantic", "positional"])
def test_informed_starts_end_in_their_own_basins(start: Start) -> None:
    dataset = Task().sample(400, 1.5, seed=12)
    fit = minimize_risk(dataset, start)
    own, other = (float(value) for value in ((fit.theta, fit.m) if start == "semantic" else (fit.m, fit.theta)))
    assert own > 0.1
    assert abs(other) < own / 2


def test_a_mixed_start_has_the_teacher_and_the_positions() -> None:
    task = Task(student_rank=2)
    dataset = task.sample(30, 2, seed=13)
    fit = minimize_risk(dataset, "mixed", "gradient_descent", n_steps=0)
    expected = np.hstack([dataset.teacher_query, np.ones((30, 1))])
    np.testing.assert_allclose(fit.query @ fit.query.T, expected @ expected.T, atol=1e-12)


@pytest.mark.parametrize("method", ["gradient_descent", "adam"])
def test_starts_are_what_they_say(method: Method) -> None:
    dataset = Task().sample(30, 2, seed=14)
    given = random_query(dataset, 8)
    for start, expected in (("semantic", dataset.teacher_query), ("positional", np.ones((30, 1))), (given, given)):
        fit = minimize_risk(dataset, start, method, n_steps=0)
        np.testing.assert_array_equal(np.abs(fit.query), np.abs(expected))
        assert fit.n_evaluations == 1
        assert not fit.converged


def test_a_given_start_is_not_changed() -> None:
    dataset = Task().sample(10, 2, seed=15)
    start = random_query(dataset, 9)
    before = start.copy()
    minimize_risk(dataset, start)
    minimize_risk(dataset, start, "gradient_descent", n_steps=3)
    np.testing.assert_array_equal(start, before)


def test_columns_beyond_the_start_are_small_but_not_zero() -> None:
    dataset = Task(student_rank=3).sample(200, 1, seed=16)
    fit = minimize_risk(dataset, "semantic", "adam", n_steps=0)
    sizes = np.sqrt(np.linalg.eigvalsh(fit.query.T @ fit.query))
    assert 0.1 < sizes[0] < sizes[1] < 0.2  # 0.01 sqrt(200) = 0.14
    assert sizes[2] == pytest.approx(np.linalg.norm(dataset.teacher_query), rel=1e-3)


def test_same_seed_same_start_and_another_than_the_sample() -> None:
    dataset = Task().sample(20, 2, seed=17)
    starts = [
        minimize_risk(dataset, "random", "adam", n_steps=0, seed=seed).query
        for seed in (17, 17, 18, np.random.default_rng(17), np.random.default_rng(17))
    ]
    np.testing.assert_array_equal(starts[0], starts[1])
    np.testing.assert_array_equal(starts[3], starts[4])
    assert not np.isin(np.abs(starts[0]), np.abs(starts[2])).any()
    assert not np.isin(np.abs(starts[0]), np.abs(dataset.teacher_query)).any()  # drawn with the same seed


def test_gradient_descent_makes_the_steps_it_says() -> None:
    dataset = Task().sample(30, 1.5, seed=18)
    risk, query = EmpiricalRisk(dataset), dataset.teacher_query
    for _ in range(7):
        query = query - 0.3 * risk.slope(query).gradient
    fit = minimize_risk(dataset, "semantic", "gradient_descent", n_steps=7, learning_rate=0.3)
    np.testing.assert_allclose(fit.query, query, rtol=1e-12)
    assert fit.n_evaluations == 8  # the gradient at the last point too
    default = minimize_risk(dataset, "semantic", "gradient_descent", n_steps=7)
    np.testing.assert_array_equal(
        default.query, minimize_risk(dataset, "semantic", "gradient_descent", n_steps=7, learning_rate=0.15).query
    )


def test_adam_makes_the_steps_of_pytorch() -> None:
    import torch  # here, as it takes seconds to import and serves this test alone

    dataset = Task().sample(30, 1.5, seed=19)
    risk = EmpiricalRisk(dataset)
    query = torch.tensor(np.array(dataset.teacher_query), requires_grad=True)
    optimiser = torch.optim.Adam([query], lr=0.02)
    for _ in range(25):
        query.grad = torch.from_numpy(risk.slope(query.detach().numpy()).gradient)
        optimiser.step()
    fit = minimize_risk(dataset, "semantic", "adam", n_steps=25, learning_rate=0.02)
    np.testing.assert_allclose(fit.query, query.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("method", ["gradient_descent", "adam"])
def test_methods_of_fixed_steps_say_whether_they_converged(method: Method) -> None:
    dataset = Task(regularization=1).sample(20, 2, seed=20)
    short = minimize_risk(dataset, "semantic", method, n_steps=3)
    assert not short.converged
    assert short.gradient_norm > 1e-7
    loose = minimize_risk(dataset, "semantic", method, n_steps=3, tolerance=1)
    assert loose.converged
    assert loose.n_evaluations == 4  # reaching the tolerance does not end it
    long = minimize_risk(dataset, "semantic", "gradient_descent", n_steps=1000)
    assert long.converged
    assert long.gradient_norm <= 1e-7


@pytest.mark.parametrize("limit", [1, 2, 10, 40, 60])
def test_lbfgs_that_runs_out_of_evaluations(limit: int) -> None:
    dataset = Task().sample(100, 1.5, seed=21)
    with pytest.raises(ConvergenceError, match=f"tolerance 1e-07 .{limit} evaluations") as caught:
        minimize_risk(dataset, max_evaluations=limit)
    last = caught.value.last
    assert isinstance(last, Fit)
    assert not last.converged
    assert caught.value.residual == last.gradient_norm > 1e-7
    assert last.n_evaluations == limit
    assert last.train_loss <= EmpiricalRisk(dataset).value(dataset.teacher_query) / 100
    returned = minimize_risk(dataset, max_evaluations=limit, must_converge=False)
    np.testing.assert_array_equal(returned.query, last.query)
    assert not returned.converged


def test_steps_that_diverge_raise() -> None:
    dataset = Task(regularization=1).sample(20, 2, seed=22)
    with pytest.raises(ConvergenceError, match="gradient_descent with learning_rate 100 diverged at step") as caught:
        # each step multiplies Q by 1 - 100
        minimize_risk(dataset, "semantic", "gradient_descent", learning_rate=100, n_steps=5000, record_every=100)
    last = caught.value.last
    assert np.isfinite(last.query).all()
    assert np.isfinite([last.train_loss, last.test_error, last.gradient_norm]).all()
    assert not last.converged
    assert caught.value.residual == last.gradient_norm
    assert last.n_evaluations < 20
    assert list(last.trajectory.steps) == [0, last.n_evaluations - 1]
    assert last.trajectory.train_loss[-1] == last.train_loss


@pytest.mark.parametrize("method", ["lbfgs", "gradient_descent", "adam"])
@pytest.mark.parametrize("task", [SMALL[0], SMALL[2]])
def test_trajectory_ends_at_the_fit(task: Task, method: Method) -> None:
    dataset = task.sample(20, 2, seed=23)
    fit = minimize_risk(dataset, "positional", method, n_steps=25, record_every=10)
    path = fit.trajectory
    assert path is not None
    if method == "lbfgs":
        assert (path.steps[:-1] == 10 * np.arange(len(path.steps) - 1)).all()
        assert len(path.steps) > 2
    else:
        np.testing.assert_array_equal(path.steps, [0, 10, 20, 25])
    assert path.train_loss[-1] == fit.train_loss
    for name in ("q", "m", "theta"):
        recorded = getattr(path, name)
        assert len(recorded) == len(path.steps)
        np.testing.assert_allclose(recorded[-1], getattr(fit, name), rtol=1e-12, atol=1e-15)
    assert path.train_loss[0] > path.train_loss[-1]
    start = order_parameters(task, np.ones((20, 1)), dataset.teacher_query) if task == SMALL[0] else None
    if start is not None:
        assert path.q[0] == pytest.approx(start.q)
        assert abs(path.m[0]) == 1
        assert abs(path.theta[0]) == pytest.approx(abs(start.theta))


def test_recording_changes_nothing() -> None:
    dataset = Task().sample(40, 1.5, seed=24)
    plain, recorded = (minimize_risk(dataset, record_every=every) for every in (None, 1))
    np.testing.assert_array_equal(plain.query, recorded.query)
    assert recorded.trajectory is not None
    assert (np.diff(recorded.trajectory.train_loss) <= 1e-12).all()


@pytest.mark.parametrize(
    "tokens", [np.zeros((3, 2, 4)), np.full((3, 2, 4), 5e-324), np.full((3, 2, 4), 1e12), np.ones((3, 2, 4))]
)
@pytest.mark.parametrize("regularization", [0, 0.01])
def test_strange_data_do_not_break_the_minimiser(tokens: Array, regularization: float) -> None:
    dataset = Dataset(Task(regularization=regularization), tokens, np.full((3, 2, 2), 0.5), np.zeros((4, 1)))
    fit = minimize_risk(dataset, "positional", must_converge=False)
    assert np.isfinite(fit.query).all()
    assert np.isfinite([fit.train_loss, fit.test_error, fit.gradient_norm]).all()


# --- the published experiments --------------------------------------------------------------------------------------

N_SEEDS = 4
ALPHAS = (1.25, 1.5, 2.0)
STARTS: tuple[Start, ...] = ("semantic", "positional")
# Cui, Behrens, Krzakala, Zdeborova (2024), figure 2 (omega = 0.3, d = 1000), from the public data of the paper:
# (start, alpha): |theta|/sigma^2, |m|, epsilon_g, epsilon_t
CITED = {
    ("semantic", 1.25): (0.47136, 0.01126, 0.002343, 0.002732),  # at alpha = 1.2537
    ("positional", 1.5): (0.02836, 0.26006, 0.003375, 0.003311),  # at alpha = 1.5025
    ("positional", 2.0): (0.03254, 0.26184, 0.003492, 0.004585),
}


class Ours(NamedTuple):
    mean: dict[tuple[str, float], Array]  # (start, alpha): the four quantities
    spread: dict[str, Array]  # start: their standard deviations from run to run, pooled over the alphas


@pytest.fixture(scope="module")
def ours() -> Ours:
    """Minima from both informed starts at d = 1000, of a few data sets."""
    runs: dict[tuple[str, float], list[Array]] = {}
    for alpha in ALPHAS:
        for seed in range(N_SEEDS):
            dataset = Task().sample(1000, alpha, seed)
            for start in STARTS:
                fit = minimize_risk(dataset, start, tolerance=1e-5)
                found = np.array([abs(float(fit.theta)) / 0.25, abs(float(fit.m)), fit.test_error, fit.train_loss])
                runs.setdefault((start, alpha), []).append(found)
    variance = {key: np.var(run, axis=0, ddof=1) for key, run in runs.items()}
    return Ours(
        mean={key: np.mean(run, axis=0) for key, run in runs.items()},
        spread={start: np.sqrt(np.mean([variance[start, alpha] for alpha in ALPHAS], axis=0)) for start in STARTS},
    )


def tolerances(ours: Ours, start: str, n_comparisons: int) -> Array:
    """How far a published mean may be from ours.

    The published values are means over an unknown number of runs, at least one, and come without a spread. If theirs
    scatter as ours do, the difference of the means has at most the variance of one run times 1 + 1/N_SEEDS. Ours is
    known with 3 (N_SEEDS - 1) degrees of freedom. All comparisons together then fail by chance once in a hundred
    times, or less often.
    """
    quantile = stats.t.ppf(1 - 0.01 / (2 * n_comparisons), len(ALPHAS) * (N_SEEDS - 1))
    result: Array = quantile * np.sqrt(1 + 1 / N_SEEDS) * ours.spread[start]
    return result


@pytest.mark.slow
def test_minima_agree_with_cited_experiments(ours: Ours) -> None:
    for (start, alpha), cited in CITED.items():
        difference = ours.mean[start, alpha] - cited
        assert (np.abs(difference) <= tolerances(ours, start, 4 * len(CITED))).all()


@pytest.mark.slow
def test_minima_agree_with_all_published_experiments(ours: Ours) -> None:
    folder = os.environ.get("ATTENTION_PHASES_REFERENCE")
    if folder is None:
        pytest.skip("ATTENTION_PHASES_REFERENCE does not name the folder with the published experiments")
    published = pd.read_csv(Path(folder) / "published_experiments_omega_0.3.csv")
    for start in STARTS:
        rows = published[(published["start"] == start) & (published["alpha"] > 1)]
        # the published alphas are others: a parabola through the published means, which bend slowly here
        curves = [
            np.polynomial.Polynomial.fit(rows["alpha"].to_numpy(), rows[column].to_numpy(), 2)
            for column in ("theta_over_sigma2", "m", "epsilon_g", "epsilon_t")
        ]
        for alpha in ALPHAS:
            difference = ours.mean[start, alpha] - [curve(alpha) for curve in curves]
            assert (np.abs(difference) <= tolerances(ours, start, 4 * len(STARTS) * len(ALPHAS))).all()


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_the_semantic_minimum_is_the_lower_one_above_the_transition(ours: Ours, alpha: float) -> None:
    """The published alpha_c(0.3) is 1.241."""
    assert ours.mean["semantic", alpha][3] < ours.mean["positional", alpha][3]


# --- plane, path, curvatures ----------------------------------------------------------------------------------------


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


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_stays_within_two_and_a_half_times_the_data() -> None:
    task = Task()
    tracemalloc.start()  # NumPy reports its arrays to it
    try:
        dataset = task.sample(1500, 1.5, seed=0)
        minimize_risk(dataset, max_evaluations=60, must_converge=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1 <= peak / dataset.tokens.nbytes <= 2.5


def test_a_fit_cannot_be_changed() -> None:
    fit = minimize_risk(Task().sample(5, 2, 0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        fit.converged = False  # type: ignore[misc]


def test_a_fit_pickles() -> None:
    """Sweeps run in other processes."""
    dataset = Task().sample(5, 2, 0)
    again: Any = pickle.loads(pickle.dumps((dataset.task, dataset, minimize_risk(dataset))))
    assert again[0] == dataset.task
    np.testing.assert_array_equal(again[1].tokens, dataset.tokens)
