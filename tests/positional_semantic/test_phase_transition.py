"""Facts about the thresholds in alpha."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic import (
    NoSuchPointError,
    NoThresholdError,
    Task,
    Threshold,
    ThresholdCurve,
    critical_alpha,
    critical_curve,
    linear_baseline,
    linear_crossover_alpha,
    linear_crossover_curve,
    minimize_risk,
    solve_state_evolution,
    spinodal_alpha,
    stability_alpha,
    threshold_search,
)
from attention_phases.positional_semantic.branches import BranchEquations
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

OMEGAS = (0.1, 0.3, 0.45)
FOLDER = os.environ.get("ATTENTION_PHASES_REFERENCE")
NOT_SYMMETRIC = ((0.3, 0.7), (0.8, 0.2))


@cache
def critical(omega: float, seed: int = 0) -> Threshold:
    return critical_alpha(Task(omega), seed=seed)


@cache
def crossover(omega: float) -> Threshold:
    return linear_crossover_alpha(Task(omega))


# --- alpha_c ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("omega", OMEGAS)
def test_the_training_losses_are_equal_at_alpha_c_and_ordered_on_both_sides(omega: float) -> None:
    """By the other formula of the training loss, E ell(h*) and the penalty, and with other nodes."""
    alpha = critical(omega)
    differences = []
    for factor in (0.95, 1.0, 1.05):
        semantic, positional = (
            solve_state_evolution(Task(omega), factor * alpha.value, branch, accuracy=1e-3, seed=7)
            for branch in ("semantic", "positional")
        )
        error = np.hypot(semantic.standard_error["train_loss"], positional.standard_error["train_loss"])
        differences.append((semantic.train_loss - positional.train_loss, error))
    (below, _), (at, error), (above, _) = differences
    slope = (above - below) / (0.1 * alpha.value)
    assert below > 0 > above
    assert abs(at) < 4 * np.hypot(error, slope * alpha.standard_error)


@pytest.mark.parametrize("curve", [critical_curve, linear_crossover_curve])
def test_errors_are_as_large_as_other_seeds_deviate(curve: Callable[..., ThresholdCurve]) -> None:
    """24 seeds against ten times the accuracy, at omegas where the proximal map jumps much, little and hardly ever.

    The squares of the pulls have the mean 1 and follow chi^2, but for errors that are themselves known to a seventh
    only, which are chosen as small as they happen to be, and are the larger of two: all within the margins.
    """
    omegas = (0.0, 0.1, 0.3, 0.48)
    accurate = curve(Task(), omegas, accuracy=4e-4, seed=99)
    found = [curve(Task(), omegas, seed=seed) for seed in range(24)]
    values, errors = (np.stack([getattr(each, name) for each in found]) for name in ("alpha", "standard_error"))
    pulls = (values - accurate.alpha) / np.hypot(errors, accurate.standard_error)
    rms = np.sqrt((pulls**2).mean(axis=0))
    assert (errors <= 0.002).all()
    low, high = np.sqrt(stats.chi2(24).ppf([1e-3, 1 - 1e-3]) / 24)
    assert (rms > 0.8 * low).all(), rms
    assert (rms < 1.1 * high).all(), rms
    assert np.sqrt((pulls**2).mean()) < 1.3
    assert np.sqrt((pulls**2).mean()) > 0.7


def test_what_the_last_step_leaves_is_an_error_too() -> None:
    """Newton's method on a parabola, from where its last step is a good part of the error."""
    rows = np.linspace(-1, 1, 8) * 1e-4

    def difference(alpha: float) -> tuple[list[NDArray[np.float64]], float]:
        return [rows + 1 - alpha**2], -2 * alpha

    alpha, error, slope = threshold_search.root_between(difference, 1.02, (0.1, 10), 1e-3, 0)
    averages = rows.std(ddof=1) / np.sqrt(8) / abs(slope)
    assert abs(alpha - 1) > 10 * averages
    assert error == pytest.approx(abs(alpha - 1), rel=0.1)
    alpha, error, _ = threshold_search.root_between(difference, 1.02, (0.1, 10), 0.0, 0)
    assert abs(alpha - 1) < averages / 3
    assert error == pytest.approx(averages, rel=0.1)


@pytest.mark.slow
def test_finite_size_minima_bracket_alpha_c() -> None:
    """At d = 2000, 0.2 below and above: the mean over four data sets of the difference of the two minima's losses."""
    alpha = critical(0.3).value
    for side, shift in ((1, -0.2), (-1, 0.2)):
        differences = []
        for seed in range(4):
            dataset = Task().sample(2000, alpha + shift, seed)
            semantic, positional = (minimize_risk(dataset, start) for start in ("semantic", "positional"))
            differences.append(side * (semantic.train_loss - positional.train_loss))
        assert (
            np.mean(differences) > 2.35 * np.std(differences, ddof=1) / 2
        )  # one-sided, 95 %, three degrees of freedom


def test_a_curve_is_its_points() -> None:
    curve = critical_curve(Task(), OMEGAS)
    for i, omega in enumerate(OMEGAS):
        point = critical(omega)
        assert curve.kind[i] == point.kind == "crossing"
        assert abs(curve.alpha[i] - point.value) < 4 * np.hypot(curve.standard_error[i], point.standard_error)


def test_no_crossing_names_the_winner() -> None:
    with pytest.raises(NoThresholdError, match=r"alpha_range.*positional branch") as none:
        critical_alpha(Task(omega=1.0))
    assert none.value.winner == "positional"
    with pytest.raises(NoThresholdError, match="semantic branch") as none:
        critical_alpha(Task(), alpha_range=(1.4, 3))
    assert none.value.winner == "semantic"
    with pytest.raises(NoThresholdError, match="neither branch exists") as none:
        critical_alpha(Task(), alpha_range=(0.01, 0.05))
    assert none.value.winner == "neither"
    curve = critical_curve(Task(), (0.3, 1.0))
    assert curve.kind == ("crossing", "positional")
    assert np.isnan(curve.alpha[1])
    assert np.isnan(curve.standard_error[1])


@pytest.mark.parametrize("omega", [0.0, 0.3])
def test_the_order_of_the_branches_does_not_matter(omega: float) -> None:
    """At omega = 0 only the semantic branch is there where the search begins."""
    assert critical_alpha(Task(omega), branches=("semantic", "positional")) == critical(omega)


@pytest.mark.parametrize("omega", [0.1, 0.2, 0.3, 0.4, 0.5])
def test_where_one_branch_is_nowhere_and_the_other_begins_in_the_range_neither_wins(omega: float) -> None:
    """A symmetric student cannot look away from itself: no positional branch. The semantic one is born somewhere."""
    with pytest.raises(NoThresholdError) as none:
        critical_alpha(Task(omega, positional_attention=NOT_SYMMETRIC), accuracy=0.005)
    assert none.value.winner == "neither"


def test_a_curve_keeps_its_points_where_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    search = threshold_search.Search.root

    def fails_at_a_fifth(self: Any, task: Task, *arguments: Any) -> Any:
        if task.omega == 0.2:
            raise ConvergenceError("lost", last=None, residual=np.inf)
        return search(self, task, *arguments)

    monkeypatch.setattr(threshold_search.Search, "root", fails_at_a_fifth)
    with pytest.raises(ConvergenceError, match=r"1 of 3 points failed.*omega = 0.2: lost") as failure:
        critical_curve(Task(), (0.1, 0.2, 0.3))
    curve = failure.value.last
    assert curve.kind == ("crossing", "not found", "crossing")
    assert np.isfinite(curve.alpha).tolist() == [True, False, True]
    assert failure.value.residual == curve.standard_error[[0, 2]].max()


def test_a_curve_takes_less_work_than_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in nodes at which the proximal map was evaluated."""
    work = [0]
    evaluate = BranchEquations.evaluate

    def counted(self: BranchEquations, *arguments: Any) -> Any:
        work[0] += self.n_nodes
        return evaluate(self, *arguments)

    monkeypatch.setattr(BranchEquations, "evaluate", counted)
    omegas = np.linspace(0.36, 0.48, 7)
    critical_curve(Task(), omegas)
    curve, work[0] = work[0], 0
    for omega in omegas:
        critical_alpha(Task(omega))
    assert curve < 0.75 * work[0]


def test_a_search_ends_with_its_time() -> None:
    """Two columns each: eight dimensions. What was reached is said; with a little more time an estimate is there."""
    with pytest.raises(ConvergenceError, match=r"time_limit = 0.3 s is too short.*had come to alpha = ") as stopped:
        critical_alpha(Task(student_rank=2, teacher_rank=2), time_limit=0.3)
    assert stopped.value.last is None
    critical(0.3)  # what is compiled on the way
    with pytest.raises(ConvergenceError, match=r"did not reach accuracy 1e-05.*time_limit = 2 s") as stopped:
        critical_alpha(Task(), accuracy=1e-5, time_limit=2)
    assert abs(stopped.value.last.value - critical(0.3).value) < 5 * np.hypot(
        stopped.value.last.standard_error, critical(0.3).standard_error
    )


def test_a_generator_is_a_seed() -> None:
    """The same state gives the same nodes; it moves on, and then gives others."""
    functions: list[Callable[..., Threshold]] = [
        critical_alpha,
        partial(stability_alpha, branch="semantic", accuracy=0.02),
        partial(spinodal_alpha, branch="positional", start=0.5, accuracy=0.02),
    ]
    for threshold in functions:
        rng = np.random.default_rng(5)
        first, second = threshold(Task(), seed=rng), threshold(Task(), seed=rng)
        assert threshold(Task(), seed=np.random.default_rng(5)) == first
        assert abs(first.value - second.value) < 5 * np.hypot(first.standard_error, second.standard_error)
        assert first.value != second.value


def test_between_the_ends_of_both_branches_there_is_no_crossing() -> None:
    """At lambda = .001 the positional branch vanishes before the semantic one is born; between is only a third."""
    task = Task(regularization=1e-3)
    positional = spinodal_alpha(task, "positional", end="upper", start=0.35, accuracy=0.01)
    semantic = spinodal_alpha(task, "semantic", accuracy=0.01)
    assert positional.value < semantic.value
    with pytest.raises(NoThresholdError, match="neither branch exists") as none:
        critical_alpha(task)
    assert none.value.winner == "neither"
    crossover = linear_crossover_alpha(task, accuracy=0.01)
    assert crossover.kind == "crossing"
    assert crossover.value > semantic.value
    between = (positional.value + semantic.value) / 2
    assert solve_state_evolution(task, between, "uninformed", accuracy=0.01).q > 0
    for branch in ("positional", "semantic"):
        with pytest.raises(NoSuchPointError):
            solve_state_evolution(task, between, branch)


def test_an_accuracy_out_of_reach_raises_with_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold_search, "FINEST", 12)
    with pytest.raises(ConvergenceError, match="did not reach accuracy") as error:
        critical_alpha(Task(), accuracy=1e-4)
    assert error.value.last.standard_error == error.value.residual > 1e-4


# --- alpha_l ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("omega", OMEGAS)
def test_at_alpha_l_the_global_minimum_is_as_good_as_the_linear_baseline(omega: float) -> None:
    alpha = crossover(omega)
    assert alpha.kind == "crossing"
    assert alpha.value > critical(omega).value
    baseline = linear_baseline(Task(omega)).test_error
    below, at, above = (
        solve_state_evolution(Task(omega), factor * alpha.value, "semantic", accuracy=1e-3, seed=7)
        for factor in (0.95, 1.0, 1.05)
    )
    slope = (above.test_error - below.test_error) / (0.1 * alpha.value)
    assert below.test_error > baseline > above.test_error
    error = np.hypot(at.standard_error["test_error"], slope * alpha.standard_error)
    assert abs(at.test_error - baseline) < 4 * error


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("alpha", [0.7, 1.2, 9.0])
def test_the_positional_branch_never_beats_the_baseline(omega: float, alpha: float) -> None:
    point = solve_state_evolution(Task(omega), alpha, "positional", accuracy=5e-3)
    assert point.test_error > linear_baseline(Task(omega)).test_error


def test_where_attention_never_wins_the_error_says_so() -> None:
    with pytest.raises(NoThresholdError) as none:
        linear_crossover_alpha(Task(omega=0.7), alpha_range=(0.5, 20))
    assert none.value.winner == "linear"
    with pytest.raises(NoThresholdError) as none:
        linear_crossover_alpha(Task(), alpha_range=(1.7, 4))
    assert none.value.winner == "attention"
    assert linear_crossover_curve(Task(), (0.3, 1.0)).kind == ("crossing", "linear")


def test_a_strong_penalty_makes_attention_win_with_a_jump() -> None:
    """At lambda = .1 neither branch exists where the search begins; alpha_l is alpha_c there."""
    task = Task(regularization=0.1)
    critical, crossover = (f(task, accuracy=0.01) for f in (critical_alpha, linear_crossover_alpha))
    assert crossover.kind == "jump"
    assert crossover.value == pytest.approx(critical.value, abs=1e-6)
    semantic, positional = (
        solve_state_evolution(task, critical.value, branch) for branch in ("semantic", "positional")
    )
    assert semantic.train_loss == pytest.approx(positional.train_loss, rel=1e-3)
    assert semantic.test_error < linear_baseline(task).test_error < positional.test_error


# --- the published points -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(FOLDER is None, reason="ATTENTION_PHASES_REFERENCE names no folder of published numbers")
def test_the_published_thresholds_lie_below_ours() -> None:
    """By 1 to 12 %, most at small omega: their rule moves both branches where the proximal map jumps."""
    table = pd.read_csv(Path(str(FOLDER)) / "published_thresholds.csv")
    for name, curve in (("alpha_c", critical_curve), ("alpha_l", linear_crossover_curve)):
        published = table[table["threshold"] == name].sort_values("omega")
        ours = curve(Task(), published["omega"].to_numpy())
        ratio = ours.alpha / published["alpha"].to_numpy()
        assert (ratio > 1.0).all()
        assert (ratio < 1.13).all()


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [critical_alpha, linear_crossover_alpha])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha_range": (2, 1)}, r"alpha_range must be \(low, high\).*\(2, 1\)"),
        ({"alpha_range": (0, 1)}, "alpha_range"),
        ({"alpha_range": 3}, "alpha_range"),
        ({"alpha_range": (1, np.nan)}, "alpha_range"),
        ({"accuracy": 0}, "accuracy"),
        ({"accuracy": "fine"}, "accuracy"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"time_limit": 0}, "time_limit"),
    ],
)
def test_bad_arguments_are_refused(function: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(Task(), **arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: critical_alpha(0.3), "task must be a Task"),  # type: ignore[arg-type]
        (lambda: critical_alpha(Task(), branches=("semantic",)), "branches"),  # type: ignore[arg-type]
        (lambda: critical_alpha(Task(), branches={"semantic", "positional"}), "branches"),  # type: ignore[arg-type]
        (lambda: critical_alpha(Task(), branches="semantic"), "branches"),  # type: ignore[arg-type]
        (lambda: critical_alpha(Task(), branches=("semantic", "semantic")), "two different names"),
        (lambda: critical_alpha(Task(), branches=("semantic", "other")), "branches must be one of"),  # type: ignore[arg-type]
        (lambda: critical_curve(Task(), []), "omegas"),
        (lambda: critical_curve(Task(), (0.3, 1.3)), r"omegas\[1\] must be a number in \[0, 1\]; got 1.3"),
        (lambda: linear_crossover_curve(Task(), "0.3"), "omegas"),
    ],
)
def test_bad_calls_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
