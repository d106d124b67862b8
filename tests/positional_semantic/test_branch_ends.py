"""Facts about where branches end, and where they cease to be minima."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from attention_phases.positional_semantic import (
    NoSuchPointError,
    NoThresholdError,
    Task,
    Threshold,
    map_eigenvalues,
    solve_state_evolution,
    spinodal_alpha,
    stability_alpha,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_SYMMETRIC = ((0.3, 0.7), (0.8, 0.2))


@cache
def end(omega: float, branch: Any, which: Any, start: float) -> Threshold:
    """To the accuracy of the stored table `branch-ends`: where an overlap vanishes slowly, 0.002 takes minutes."""
    return spinodal_alpha(Task(omega), branch, end=which, start=start, accuracy=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("omega", "branch", "which", "start", "kind"),
    [
        (0.3, "semantic", "lower", 1.0, "vanishes"),
        (0.1, "positional", "upper", 0.8, "vanishes"),
        (0.1, "positional", "lower", 8.0, "fold"),
        (0.3, "positional", "lower", 1.0, "vanishes"),
    ],
)
def test_beyond_its_end_a_branch_is_missing_and_before_it_is_there(
    omega: float, branch: Any, which: Any, start: float, kind: str
) -> None:
    found = end(omega, branch, which, start)
    assert found.kind == kind
    inwards = 1.06 if which == "lower" else 1 / 1.06
    assert solve_state_evolution(Task(omega), found.value * inwards, branch, accuracy=0.02).converged
    with pytest.raises(NoSuchPointError):
        solve_state_evolution(Task(omega), found.value / inwards, branch)


@pytest.mark.slow
def test_two_pieces_of_a_branch_that_end_close_to_each_other_are_told_apart() -> None:
    """With long steps a walk along the one leaps to the other with some nodes, and ends far away."""
    task = Task(omega=0.24)
    first = spinodal_alpha(task, "positional", end="upper", start=0.5, accuracy=0.02)
    second = spinodal_alpha(task, "positional", end="lower", start=100.0, accuracy=0.02)
    assert first.kind == second.kind == "fold"
    between = np.sqrt(first.value * second.value)
    assert first.value * 1.05 < between < second.value / 1.05
    with pytest.raises(NoSuchPointError):
        solve_state_evolution(task, between, "positional")


@pytest.mark.slow
def test_where_the_semantic_overlap_vanishes_an_eigenvalue_passes_one() -> None:
    """At the uninformed point, from which the semantic branch is born there: the eigenvalue along theta."""
    alpha = end(0.3, "semantic", "lower", 1.0).value
    along = []
    for factor in (0.94, 1.0, 1.06):
        point = solve_state_evolution(Task(), factor * alpha, "uninformed")
        values = map_eigenvalues(Task(), factor * alpha, point.overlaps, log2_nodes=16)
        along.append(values[np.abs(values - 1).argmin()].real)
    assert along[0] < along[1] < along[2]
    assert abs(along[1] - 1) < (along[2] - along[0]) / 6  # it is 1 to within 2 % of alpha


def test_a_fold_has_an_eigenvalue_one() -> None:
    fold = end(0.1, "positional", "lower", 8.0).value
    point = solve_state_evolution(Task(0.1), fold * 1.002, "positional")
    values = map_eigenvalues(Task(0.1), fold * 1.002, point.overlaps)
    assert np.abs(values - 1).min() < 0.15  # as the square root of the distance
    far = solve_state_evolution(Task(0.1), fold * 1.5, "positional")
    assert np.abs(map_eigenvalues(Task(0.1), fold * 1.5, far.overlaps) - 1).min() > 0.3


@pytest.mark.slow
@pytest.mark.parametrize(("branch", "which", "start"), [("semantic", "lower", 1.0), ("positional", "upper", 15.0)])
def test_a_branch_loses_stability_where_the_pass_joins_it(branch: Any, which: Any, start: float) -> None:
    """The mixed branch, the pass, exists on the inner side only, and the overlap that the branch lacks goes to zero."""
    alpha = stability_alpha(Task(), branch, end=which, start=start)
    assert alpha.kind == "exchange"
    inwards = 1.05 if which == "lower" else 1 / 1.05
    lacking = "m" if branch == "semantic" else "theta"
    sizes = []
    for factor in (inwards, inwards**3):
        point = solve_state_evolution(Task(), alpha.value * factor, "mixed", accuracy=0.02)
        sizes.append(getattr(point, lacking) ** 2)
    assert 1.8 < sizes[1] / sizes[0] < 4.5  # the square grows in proportion to the distance
    with pytest.raises(NoSuchPointError):
        solve_state_evolution(Task(), alpha.value / inwards, "mixed")


@pytest.mark.slow
def test_the_semantic_branch_is_born_where_the_uninformed_one_ceases_to_be_a_minimum() -> None:
    """Found from both sides: where its overlap vanishes, and where the map's derivative at the parent is 1."""
    born = stability_alpha(Task(), "uninformed", end="upper", start=0.8)
    ended = end(0.3, "semantic", "lower", 1.0)
    assert abs(born.value - ended.value) < 4 * np.hypot(born.standard_error, ended.standard_error)


@pytest.mark.slow
def test_the_positional_branch_is_born_where_the_uninformed_one_ceases_to_be_a_minimum() -> None:
    born = stability_alpha(Task(), "uninformed", overlap="m", end="upper", start=0.1)
    ended = end(0.3, "positional", "lower", 1.0)
    assert abs(born.value - ended.value) < 4 * np.hypot(born.standard_error, ended.standard_error)


@pytest.mark.slow
def test_the_mixed_branch_of_rank_two_grows_from_where_the_positional_one_ceases_to_be_a_minimum() -> None:
    """theta^2 grows from nothing about in proportion to the distance: the transition is continuous."""
    task = Task(student_rank=2)
    born = stability_alpha(task, "positional", end="upper", start=0.6, accuracy=0.02)
    squares = []
    for alpha in (1.3 * born.value, 1.6 * born.value):
        point = solve_state_evolution(task, alpha, "mixed", accuracy=0.02)
        squares.append(np.asarray(point.theta)[0, 0] ** 2)
        assert point.train_loss < solve_state_evolution(task, alpha, "positional", accuracy=0.02).train_loss
    assert 1.5 < squares[1] / squares[0] < 3
    theta = np.sqrt(squares[0])
    assert theta < 0.06  # of 0.25, which it tends to


def test_a_branch_that_goes_on_has_no_end_in_the_range() -> None:
    with pytest.raises(NoThresholdError) as none:
        spinodal_alpha(Task(), "positional", end="upper", alpha_range=(0.1, 10))
    assert none.value.winner == "positional"


@pytest.mark.parametrize("threshold", [spinodal_alpha, stability_alpha])
def test_a_branch_that_is_nowhere_has_no_end(threshold: Callable[..., Threshold]) -> None:
    """A purely positional teacher has nothing semantic to be learned."""
    with pytest.raises(NoThresholdError, match="no semantic solution was found") as none:
        threshold(Task(omega=1.0), "semantic")
    assert none.value.winner == "not found"
    with pytest.raises(NoThresholdError, match="no positional solution was found"):
        threshold(Task(positional_attention=NOT_SYMMETRIC), "positional")


def test_stability_is_searched_where_the_branch_is() -> None:
    """At omega = 0 the positional branch ends near 0.92, before where the search begins."""
    with pytest.raises(NoThresholdError, match="it is one") as none:
        stability_alpha(Task(0.0), "positional")
    assert none.value.winner == "positional"
    lost = stability_alpha(Task(0.0), "positional", end="upper", accuracy=0.01)
    assert 0.6 < lost.value < 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spinodal_alpha(Task(), "best"), "branch must be one of"),  # type: ignore[arg-type]
        (lambda: spinodal_alpha(Task(), "semantic", end="left"), "end must be one of"),  # type: ignore[arg-type]
        (lambda: spinodal_alpha(Task(), "semantic", start=0), "start"),
        (lambda: stability_alpha(Task(), "mixed"), "branch must be one of"),
        (lambda: stability_alpha(Task(student_rank=3), "semantic"), "student_rank"),
        (lambda: stability_alpha(Task(student_rank=2, teacher_rank=2), "semantic"), "teacher_rank"),
        (lambda: stability_alpha(Task(), "semantic", overlap="theta"), "overlap must be one of 'm'"),
    ],
)
def test_bad_calls_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
