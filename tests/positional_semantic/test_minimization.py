"""Facts about the minimisers, the gauge, and the minima of the published experiments."""

from __future__ import annotations

import dataclasses
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from attention_phases import stored
from attention_phases.positional_semantic import (
    ConvergenceError,
    Dataset,
    EmpiricalRisk,
    Fit,
    Task,
    lowest_curvatures,
    minimize_risk,
    order_parameters,
)
from attention_phases.positional_semantic.minimization import gauge_rotation
from numpy.typing import NDArray
from scipy import stats
from tasks import SMALL, THREE, random_query, rotation

if TYPE_CHECKING:
    from attention_phases.positional_semantic.minimization import Method, Start

Array = NDArray[np.float64]


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
        size += task.sigma**2 * np.sqrt(dataset.n_samples)
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


@pytest.mark.parametrize("start", [np.zeros((60, 1)), np.full((60, 1), 1e-144), "far"])
def test_the_origin_is_left_where_there_is_a_way_down(start: Any) -> None:
    """At Q = 0 the gradient vanishes, and far out attention is saturated, so that the penalty alone leads there."""
    dataset = Task(sigma=2.0).sample(60, 2, seed=1)
    if isinstance(start, str):
        start = 1e3 * np.random.default_rng(1).standard_normal((60, 1))
    fit = minimize_risk(dataset, start)
    assert fit.converged
    assert lowest_curvatures(dataset, fit.query, 1)[0] > 0
    assert fit.train_loss < EmpiricalRisk(dataset).value(np.zeros((60, 1))) / 60


def test_the_origin_is_kept_where_it_is_the_minimum() -> None:
    dataset = Task(regularization=10.0).sample(60, 2, seed=1)
    fit = minimize_risk(dataset, np.zeros((60, 1)))
    assert fit.converged
    assert not fit.query.any()


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


Means = dict[tuple[str, float], Array]


@pytest.fixture(scope="module")
def ours() -> Means:
    """The four quantities at the minima from both informed starts, d = 1000: means over a few data sets."""
    runs: dict[tuple[str, float], list[Array]] = {}
    for alpha in ALPHAS:
        for seed in range(N_SEEDS):
            dataset = Task().sample(1000, alpha, seed)
            for start in STARTS:
                fit = minimize_risk(dataset, start, tolerance=1e-5)
                found = np.array([abs(float(fit.theta)) / 0.25, abs(float(fit.m)), fit.test_error, fit.train_loss])
                runs.setdefault((start, alpha), []).append(found)
    return {key: np.mean(run, axis=0) for key, run in runs.items()}


def tolerances(start: str, n_comparisons: int) -> Array:
    """How far a published mean may be from ours.

    The published values are means over an unknown number of runs, at least one, and come without a spread. If theirs
    scatter as ours do, the difference of the means has at most the variance of one run times 1 + 1/N_SEEDS. The
    variance of one run is that of the 16 draws of the stored table at each of `ALPHAS`, pooled: 45 degrees of freedom.
    All comparisons together then fail by chance once in a hundred times, or less often.
    """
    table = stored.load("alpha-scan")
    table = table[table["alpha"].isin(ALPHAS)]
    quantities = table[[f"{start}_{name}" for name in ("theta", "m", "test_error", "train_loss")]].abs()
    draws = quantities.assign(**{f"{start}_theta": quantities[f"{start}_theta"] / 0.25}).groupby(table["alpha"])
    degrees = len(table) - len(ALPHAS)
    assert set(table["d"]) == {1000}
    assert degrees == 45
    quantile = stats.t.ppf(1 - 0.01 / (2 * n_comparisons), degrees)
    result: Array = quantile * np.sqrt((1 + 1 / N_SEEDS) * draws.var().mean().to_numpy())
    return result


@pytest.mark.slow
def test_minima_agree_with_cited_experiments(ours: Means) -> None:
    for (start, alpha), cited in CITED.items():
        difference = ours[start, alpha] - cited
        assert (np.abs(difference) <= tolerances(start, 4 * len(CITED))).all()


@pytest.mark.slow
def test_minima_agree_with_all_published_experiments(ours: Means) -> None:
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
            difference = ours[start, alpha] - [curve(alpha) for curve in curves]
            assert (np.abs(difference) <= tolerances(start, 4 * len(STARTS) * len(ALPHAS))).all()


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_the_semantic_minimum_is_the_lower_one_above_the_transition(ours: Means, alpha: float) -> None:
    """The published alpha_c(0.3) is 1.241."""
    assert ours["semantic", alpha][3] < ours["positional", alpha][3]


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
