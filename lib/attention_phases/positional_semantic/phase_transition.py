"""The thresholds in alpha = n/d at which the global minimum changes, and from which attention beats the baseline.

Each is a root of a difference: of the training losses of two branches (`critical_alpha`), or of the test errors of
attention and of the linear baseline (`linear_crossover_alpha`). Both sides of a difference are averaged over the same
nodes, so that most of their errors cancel.

The training loss is taken from the variational formula (`averages`). It is stationary in the order parameters, so their
errors enter squared, and its derivative with respect to alpha is E of the minimised objective.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.branches import BRANCHES
from attention_phases.positional_semantic.linear_baseline import linear_baseline
from attention_phases.positional_semantic.state_evolution import BranchName, NoSuchPointError, NotFoundError
from attention_phases.positional_semantic.teacher_student import Seed, Task
from attention_phases.positional_semantic.threshold_search import (
    SEARCH,
    Found,
    Line,
    Lines,
    NoRootError,
    OutOfRangeError,
    Search,
    Values,
)
from attention_phases.positional_semantic.thresholds import CLEAR, Asked, NoThresholdError, Range, Threshold


@dataclass(frozen=True, eq=False)
class ThresholdCurve:
    """A threshold at several omega. `alpha` and `standard_error` are NaN where there is none in the range.

    Attributes:
        omega, alpha, standard_error: (n,).
        kind: n texts: the kind of each threshold, or, where there is none, the winner; "not found" where the search
            failed.
    """

    omega: Float[Array, " n"]
    alpha: Float[Array, " n"]
    standard_error: Float[Array, " n"]
    kind: tuple[str, ...]


@one_thread
def critical_alpha(
    task: Task,
    *,
    branches: tuple[BranchName, BranchName] = ("positional", "semantic"),
    alpha_range: Range = (0.05, 20.0),
    accuracy: float = 0.002,
    seed: Seed = 0,
    time_limit: float = 60.0,
) -> Threshold:
    """alpha_c: where the training losses of two branches are equal. Above it the second branch has the lower loss.

    Cui et al., 2024: the global minimum passes there from the positional to the semantic branch. Where one branch
    does not exist, the other counts as the lower.

    Args:
        task: what is learned from what.
        branches: the one that has the lower loss below, and the one that has it above; or the other way round.
        alpha_range: (low, high), 0 < low < high: where to search.
        accuracy: largest standard error.
        seed: whole number or NumPy Generator; fixes the nodes.
        time_limit: seconds of CPU time after which the search gives up.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        NoThresholdError: the losses do not cross in the range; `winner` is the branch with the lower loss.
        ConvergenceError: the threshold was not found, not in time, or its accuracy not reached with 4 times 2^17 nodes
            (`last` is the Threshold then, else None; `residual` its standard error).
    """
    names = _pair(branches)
    asked = Asked.of(task, alpha_range, accuracy, seed, time_limit)
    with asked.in_time():
        return _Crossing(names, asked).at(task)


@one_thread
def critical_curve(
    task: Task,
    omegas: ArrayLike,
    *,
    branches: tuple[BranchName, BranchName] = ("positional", "semantic"),
    alpha_range: Range = (0.05, 20.0),
    accuracy: float = 0.002,
    seed: Seed = 0,
    time_limit: float = 60.0,
) -> ThresholdCurve:
    """`critical_alpha` at each omega, each searched from where the last ones were found: threshold and fixed points.

    Arguments as there, with the time limit for each omega; where the losses do not cross in the range, alpha is NaN and
    the kind the winner.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: a point was not found or is not as accurate as asked for. All others are found all the same:
            `last` is the ThresholdCurve, `residual` its largest standard error.
    """
    values, names = _omegas(omegas), _pair(branches)
    asked = Asked.of(task, alpha_range, accuracy, seed, time_limit)
    return _curve(task, values, asked, _Crossing(names, asked).at)


@one_thread
def linear_crossover_alpha(
    task: Task,
    *,
    alpha_range: Range = (0.05, 20.0),
    accuracy: float = 0.002,
    seed: Seed = 0,
    time_limit: float = 60.0,
) -> Threshold:
    """alpha_l: where the test error of the global minimum first falls below that of the linear baseline.

    Cui et al., 2024. The positional minimum never does: its attention does not depend on the tokens, and
    of all such the baseline is the best. So alpha_l is alpha_c, where the test error jumps (kind "jump"), or a crossing
    on the semantic branch above it (kind "crossing").

    Arguments as in `critical_alpha`.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        NoThresholdError: attention does not win in the range (`winner` is "linear"), or has won where it begins
            ("attention").
        ConvergenceError: as in `critical_alpha`.
    """
    asked = Asked.of(task, alpha_range, accuracy, seed, time_limit)
    with asked.in_time():
        return _Crossover(asked).at(task)


@one_thread
def linear_crossover_curve(
    task: Task,
    omegas: ArrayLike,
    *,
    alpha_range: Range = (0.05, 20.0),
    accuracy: float = 0.002,
    seed: Seed = 0,
    time_limit: float = 60.0,
) -> ThresholdCurve:
    """`linear_crossover_alpha` at each omega, each searched from where the last ones were found.

    Arguments and errors as in `critical_curve`; where there is none in the range, alpha is NaN and the kind the winner.
    """
    values = _omegas(omegas)
    asked = Asked.of(task, alpha_range, accuracy, seed, time_limit)
    return _curve(task, values, asked, _Crossover(asked).at)


class _Crossing:
    """The search for alpha_c, at one task after another."""

    def __init__(self, names: tuple[str, str], asked: Asked) -> None:
        self.names, self.asked = names, asked
        self.search = Search(names, asked.accuracy, asked.seeds, asked.clock)

    def at(self, task: Task) -> Threshold:
        """The threshold of one task."""
        found = self._in_either_order(lambda crossing: crossing.search.root(task, _loss_difference, *crossing.where))
        return self.asked.accurate(Threshold(found.alpha, found.error, "crossing"))

    def rough(self, task: Task) -> Found:
        """The same with few nodes."""
        return self._in_either_order(lambda crossing: crossing.search.rough(task, _loss_difference, *crossing.where))

    @property
    def where(self) -> tuple[float, Range]:
        """Where a search for the first task begins, and where it ends."""
        return 1.0, self.asked.limits

    def _in_either_order(self, find: Callable[["_Crossing"], Found]) -> Found:
        """What is found, or the public error that says why there is nothing."""
        try:
            return find(self)
        except (OutOfRangeError, NoRootError) as end:
            if not end.rises:
                raise self._failure(end) from None
        other = _Crossing((self.names[1], self.names[0]), self.asked)
        try:
            found = find(other)
        except (OutOfRangeError, NoRootError) as end:
            raise other._failure(end) from None
        self.names, self.search = other.names, other.search
        return found

    def _failure(self, end: "OutOfRangeError | NoRootError") -> NoThresholdError | ConvergenceError:
        (first, second), limits = self.names, self.asked.limits
        if isinstance(end, NoRootError):
            return ConvergenceError(
                f"the {first} and the {second} loss do not cross: one of the branches ends at alpha = {end.alpha:.4g}",
                last=None,
                residual=np.inf,
            )
        wrong = f"alpha_range must have the crossing of the {first} and the {second} loss in it; got {limits}, "
        if end.sign == 0:
            return NoThresholdError(f"{wrong}but next to alpha = {end.alpha:.4g} neither branch exists", "neither")
        winner = first if end.sign > 0 else second
        return NoThresholdError(
            f"{wrong}and to its end at {end.alpha:.4g} the {winner} branch has the lower loss", winner
        )


def _loss_difference(lines: Lines, alpha: float) -> Values:
    """Training loss of the second less that of the first."""
    there = [_is_there(line, alpha) for line in lines]
    if not all(there):
        return np.array([np.inf if there[0] else -np.inf if there[1] else np.nan]), np.nan
    first, second = lines
    (loss, slope), (other_loss, other_slope) = second.train_loss(), first.train_loss()
    return loss - other_loss, slope - other_slope


def _is_there(line: Line, alpha: float) -> bool:
    try:
        line.move(alpha)
    except (NoSuchPointError, NotFoundError):
        return False
    return True


class _Crossover:
    """The search for alpha_l, at one task after another."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._crossing = _Crossing(("positional", "semantic"), asked)
        self._search = Search(("semantic",), asked.accuracy, asked.seeds, asked.clock)

    def at(self, task: Task) -> Threshold:
        """The threshold of one task."""
        critical = None
        try:
            critical = self._crossing.rough(task)
        except NoThresholdError as none:
            if none.winner == "positional":
                raise NoThresholdError(f"{none}; it never beats the linear baseline", "linear") from None
        low, high = self.asked.limits
        if critical:
            low = max(low, critical.alpha - CLEAR * critical.error)
        baseline = linear_baseline(task)

        def values(lines: Lines, alpha: float) -> Values:
            (line,) = lines
            if not _is_there(line, alpha):  # there is no semantic attention yet
                return np.array([np.inf]), np.nan
            error, slope = line.test_error()
            return error - baseline.test_error, slope

        try:
            found = self._search.root(task, values, critical.alpha if critical else 1.0, (low, high))
        except OutOfRangeError as end:
            if critical and end.sign < 0:
                return replace(self._crossing.at(task), kind="jump")
            winner = "linear" if end.sign > 0 else "attention"
            raise NoThresholdError(
                "alpha_range must have in it where attention begins to win over the linear baseline; got "
                f"{self.asked.limits}, at whose end {end.alpha:g} the {winner} one still has the lower test error",
                winner,
            ) from None
        except NoRootError as end:
            if critical:
                return replace(self._crossing.at(task), kind="jump")
            raise ConvergenceError(
                f"the test error of attention does not cross that of the linear baseline: at alpha = {end.alpha:.4g}, "
                "where the semantic branch begins, it is below already",
                last=None,
                residual=np.inf,
            ) from None
        if critical and found.alpha < critical.alpha + CLEAR * critical.error:
            jump = self._crossing.at(task)
            if jump.value >= found.alpha:
                return replace(jump, kind="jump")
        if critical is None and self._positional_is_lower(task, found.alpha):
            raise ConvergenceError(
                f"the semantic branch beats the linear baseline from alpha = {found.alpha:.4g} on, but the positional "
                "one is the lower there, and alpha_c was not found",
                last=None,
                residual=np.inf,
            )
        error = float(np.hypot(found.error, baseline.standard_error / found.slope))
        return self.asked.accurate(Threshold(found.alpha, error, "crossing"))

    def _positional_is_lower(self, task: Task, alpha: float) -> bool:
        names = ("positional", "semantic")
        lines = tuple(Line(task, name, SEARCH, self.asked.seeds[0], self.asked.clock) for name in names)
        difference, _ = _loss_difference(lines, alpha)
        return bool(difference.mean() > 0)


def _curve(task: Task, omegas: list[float], asked: Asked, threshold: Callable[[Task], Threshold]) -> ThresholdCurve:
    found: list[tuple[float, float, str]] = []
    failures: list[str] = []
    for omega in omegas:
        try:
            with asked.in_time():
                here = threshold(replace(task, omega=omega))
        except NoThresholdError as error:
            found.append((np.nan, np.nan, error.winner))
            continue
        except ConvergenceError as error:
            failures.append(f"omega = {omega:g}: {error}")
            if not isinstance(error.last, Threshold):
                found.append((np.nan, np.nan, "not found"))
                continue
            here = error.last
        found.append((here.value, here.standard_error, here.kind))
    alpha, errors, kinds = zip(*found, strict=True)
    curve = ThresholdCurve(np.array(omegas), np.array(alpha), np.array(errors), kinds)
    if failures:
        raise ConvergenceError(
            f"{len(failures)} of {len(omegas)} points failed, and `last` has the others; the first at {failures[0]}",
            last=curve,
            residual=float(np.nanmax(curve.standard_error, initial=0)),
        )
    return curve


def _pair(branches: object) -> tuple[str, str]:
    if not isinstance(branches, Sequence) or isinstance(branches, str) or len(names := list(branches)) != 2:
        raise ValueError(f"branches must be two names; got {_checks.shown(branches)}")
    first, second = (_checks.choice("branches", name, BRANCHES) for name in names)
    if first == second:
        raise ValueError(f"branches must be two different names; got {_checks.shown(branches)}")
    return first, second


def _omegas(omegas: ArrayLike) -> list[float]:
    values = _checks.array("omegas", omegas, (None,))
    return [_checks.real(f"omegas[{i}]", value, 0, 1) for i, value in enumerate(values.tolist())]
