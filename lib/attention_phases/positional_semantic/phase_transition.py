"""The thresholds in alpha = n/d at which the global minimum changes, and those at which a minimum ends.

Each is a root of a difference: of the training losses of two branches (`critical_alpha`), of the test errors of
attention and of the linear baseline (`linear_crossover_alpha`); or a point where a branch turns back or its overlaps
vanish (`spinodal_alpha`). Both sides of a difference are averaged over the same nodes, so that most of their errors
cancel, and the standard error is that of the threshold, from the scatter of independent randomisations of the nodes.

The training loss is taken from the variational formula (`averages`). It is stationary in the order parameters, so their
errors enter squared, and its derivative with respect to alpha is E of the minimised objective.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.estimates import Estimate, standard_error
from attention_phases.positional_semantic.averages import free_energy, kappa
from attention_phases.positional_semantic.branches import BRANCHES, Branch, BranchEquations, Evaluation
from attention_phases.positional_semantic.continuation import Place, along, newton, walk
from attention_phases.positional_semantic.linear_baseline import linear_baseline
from attention_phases.positional_semantic.state_evolution import (
    ELSEWHERE,
    BranchName,
    NoSuchPointError,
    NotFoundError,
    Root,
    find_root,
    follow_branch,
    root_from_guess,
    root_near,
)
from attention_phases.positional_semantic.teacher_student import Task

Array = NDArray[np.float64]
Range = tuple[float, float]
End = Literal["lower", "upper"]

_SEARCH = 11  # log2 of the number of nodes with which a threshold is located
_THOROUGH = 16  # the same, where a branch is lost on the way to its end
_FINEST = 19
_SEARCHES = 4  # independent ones for the end of a branch
_GAIN = 1.3  # powers of two by which the error of a threshold shrinks, about, with each doubling of the nodes
_ROUGH = 1e-3  # relative accuracy of order parameters: the training loss has its square
_POLISHED = 1e-4  # the same, after a few more steps
_NEAR = 0.01  # in log alpha: closer than this to where both branches are missing, a search ends
_FARTHEST = 0.7  # largest change of log alpha in one step of a search
_MOST_STEPS = 40
_N_STARTS = 7  # where else in the range a search may begin


@dataclass(frozen=True)
class Threshold(Estimate):
    """A threshold in alpha.

    Attributes:
        value, standard_error: of alpha. The standard error is that of the averages. The search itself ends within a
            tenth of the accuracy that was asked for; of errors of the replica-symmetric theory nothing is known here.
        kind: "crossing" (two losses are equal), "jump" (the global minimum changes, and the test error with it), "fold"
            (the branch turns back), or "vanishes" (its overlaps go to zero).
    """

    kind: str


class NoThresholdError(ValueError):
    """There is no such threshold in the range of alpha that was asked for.

    Attributes:
        winner: what has the lower loss (or error) in all of the range; for the end of a branch, the branch. "neither"
            where both branches end before their losses cross: in between is only the uninformed one.
    """

    def __init__(self, message: str, winner: str) -> None:
        super().__init__(message)
        self.winner = winner


@dataclass(frozen=True, eq=False)
class ThresholdCurve:
    """A threshold at several omega. `alpha` and `standard_error` are NaN where there is none in the range.

    Attributes:
        omega, alpha, standard_error: (n,).
        kind: n texts: the kind of each threshold, or, where there is none, the winner.
    """

    omega: Float[Array, " n"]
    alpha: Float[Array, " n"]
    standard_error: Float[Array, " n"]
    kind: tuple[str, ...]


class _Line:
    """One branch of a task with fixed nodes, at one alpha after another."""

    def __init__(self, task: Task, name: str, log2_nodes: int, seed: int) -> None:
        follow = 0.3 if log2_nodes == _SEARCH else 0.05
        self.equations = BranchEquations(Branch(task, name), log2_nodes, seed, follow=follow)
        self._last: Root | None = None
        self._is_root = False  # whether the last point is a root of these equations, and not of those it started from
        self._ends: list[NoSuchPointError] = []

    def start_from(self, other: "_Line") -> None:
        """Begin at the root of the same branch of another task, or with other nodes."""
        if other.is_somewhere:
            self._last = self.equations.evaluate(other.at.x, other.at.parameter), other.slopes

    @property
    def is_somewhere(self) -> bool:
        """Whether there is a last point."""
        return self._last is not None

    @property
    def at(self) -> Evaluation:
        """The last point."""
        assert self._last is not None
        return self._last[0]

    @property
    def slopes(self) -> Float[Array, "k+1 k"]:
        """The Jacobian there."""
        assert self._last is not None
        return self._last[1]

    def move(self, alpha: float) -> None:
        """Go to the root at alpha. Errors as in `solve_state_evolution`, and the line stays where it was."""
        for end in self._ends:
            if (alpha - end.alpha) * (self.at.alpha - end.alpha) <= 0:
                raise end
        try:
            at, slopes = self._root(alpha)
        except NoSuchPointError as end:
            if self._is_root:
                self._ends.append(end)
            raise
        if at.averages.proximal.objective.size != self.equations.n_nodes:
            at = self.equations.evaluate(at.x, at.parameter)  # it was searched with more nodes
        at, slopes, _ = newton(self.equations, at, slopes, _POLISHED, max_steps=3)
        self._last, self._is_root = (at, slopes), True

    def _root(self, alpha: float) -> Root:
        if self._last is None:
            return find_root(self.equations, alpha)
        step = np.log(alpha) - self.at.parameter
        start = self.at.x + self.drift * np.clip(step, -0.2, 0.2)
        found = root_near(self.equations, self.equations.evaluate(start, np.log(alpha)))
        if found is None and self._is_root:
            try:
                return follow_branch(self.equations, self._last, alpha)
            except NoSuchPointError:
                raise
            except ConvergenceError:  # lost on the way; it may come out from a guess
                pass
        return found or find_root(self.equations, alpha)

    @property
    def drift(self) -> Float[Array, " k"]:
        """Derivatives of the root with respect to log alpha."""
        branch = self.equations.branch
        return -np.asarray(np.linalg.solve(self.slopes[: branch.size], branch.parameter_slope(self.at)))

    @property
    def _shifts(self) -> Float[Array, "k R"]:
        """From the root to those that each randomisation alone would give; their mean is what Newton's method left."""
        size = self.equations.branch.size
        return -np.asarray(np.linalg.solve(self.slopes[:size], self.at.rows[:size]))

    def train_loss(self) -> tuple[Float[Array, " R"], float]:
        """epsilon_t by each randomisation, and its derivative with respect to alpha."""
        branch, alpha, averages = self.equations.branch, self.at.alpha, self.at.averages
        mean = float(averages.envelope.mean())
        loss = free_energy(branch.task, alpha, branch.point(self.at.x), averages)
        return loss + alpha * (averages.envelope - mean), mean

    def test_error(self) -> tuple[Float[Array, " R"], float]:
        """epsilon_g by each randomisation, at the root that it alone would give, and its derivative."""
        slope = self.equations.test_loss_slope(self.at.x)
        return self.equations.test_loss(self.at.x) + slope @ self._shifts, float(slope @ self.drift) / self.at.alpha

    def growth(self, overlap: str) -> tuple[Float[Array, " R"], float]:
        """The map's derivative along an overlap that the branch lacks, and how it changes with alpha; t = 1."""
        x, parameter = self.at.x, self.at.parameter
        here = self._growth_at(self.at, overlap)
        slope = np.array(
            [
                (self._growth_at(self.equations.evaluate(x + step, parameter), overlap) - here).mean() / step.sum()
                for step in np.diag(0.01 * self.equations.scale(x))
            ]
        )
        return here + slope @ self._shifts, float(here.mean() + slope @ self.drift) / self.at.alpha

    def _growth_at(self, at: Evaluation, overlap: str) -> Float[Array, " R"]:
        """In the last column: alpha V/sigma^2 times dm^/dm, or alpha V sigma^2 times dtheta^/dtheta.

        A small m moves w_k by c_k m, a small theta by theta s_k/sigma^2. Integration by parts replaces dg/dw_k by
        g zeta_k/kappa^(1/2), so that no derivative of g is left, which jumps.
        """
        branch, model = self.equations.branch, self.equations.model
        task, point = branch.task, branch.point(at.x)
        g, zeta = at.averages.proximal.residual[:, -1], model.zeta[:, -1]
        if overlap == "m":
            c = task.positions / task.sigma
            product = (c @ g) * (c @ zeta)
        else:
            s = model.teacher_fields[:, 0] / task.sigma
            product = (g * s).sum(axis=0) * (zeta * s).sum(axis=0) - (g * zeta).sum(axis=0)
        factor = at.alpha * point.V[-1, -1] / np.sqrt(kappa(task, point)[-1, -1])
        return np.asarray(factor * model.rule.means(product))


_Difference = Callable[[float], tuple[Float[Array, " R"], float]]
"""Of alpha: a difference that is positive below its root, by each randomisation, and its derivative."""


@one_thread
def critical_alpha(
    task: Task,
    *,
    branches: tuple[BranchName, BranchName] = ("positional", "semantic"),
    alpha_range: Range = (0.05, 20.0),
    accuracy: float = 0.002,
    seed: int = 0,
) -> Threshold:
    """alpha_c: where the training losses of two branches are equal. Above it the second branch has the lower loss.

    Cui et al., 2024: the global minimum passes there from the positional to the semantic branch. Where one branch
    does not exist, the other counts as the lower.

    Args:
        task: what is learned from what.
        branches: the one that has the lower loss below, and the one that has it above.
        alpha_range: (low, high), 0 < low < high: where to search.
        accuracy: largest standard error.
        seed: whole number; fixes the nodes.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        NoThresholdError: the losses do not cross in the range; `winner` is the branch with the lower loss.
        ConvergenceError: the threshold was not found, or its accuracy not reached with 2^19 nodes (`last` is the
            Threshold, `residual` its standard error).
    """
    _checks.instance("task", task, Task)
    names = _pair(branches)
    limits = _limits(alpha_range)
    return _Crossing(names, limits, *_checked(accuracy, seed)).at(task)


@one_thread
def critical_curve(
    task: Task,
    omegas: ArrayLike,
    *,
    branches: tuple[BranchName, BranchName] = ("positional", "semantic"),
    alpha_range: Range = (0.05, 20.0),
    accuracy: float = 0.002,
    seed: int = 0,
) -> ThresholdCurve:
    """`critical_alpha` at each omega, each searched from where the last one was found.

    Arguments and errors as there; where the losses do not cross in the range, alpha is NaN and the kind the winner.
    """
    _checks.instance("task", task, Task)
    values = _omegas(omegas)
    crossing = _Crossing(_pair(branches), _limits(alpha_range), *_checked(accuracy, seed))
    return _curve(task, values, crossing.at)


@one_thread
def linear_crossover_alpha(
    task: Task, *, alpha_range: Range = (0.05, 20.0), accuracy: float = 0.002, seed: int = 0
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
    _checks.instance("task", task, Task)
    return _Crossover(_limits(alpha_range), *_checked(accuracy, seed)).at(task)


@one_thread
def linear_crossover_curve(
    task: Task,
    omegas: ArrayLike,
    *,
    alpha_range: Range = (0.05, 20.0),
    accuracy: float = 0.002,
    seed: int = 0,
) -> ThresholdCurve:
    """`linear_crossover_alpha` at each omega, each searched from where the last one was found.

    Arguments and errors as there; where there is none in the range, alpha is NaN and the kind the winner.
    """
    _checks.instance("task", task, Task)
    values = _omegas(omegas)
    return _curve(task, values, _Crossover(_limits(alpha_range), *_checked(accuracy, seed)).at)


class _OutOfRangeError(Exception):
    """A search came to an end of its range; `positive` is the sign of the difference there."""

    def __init__(self, alpha: float, positive: bool) -> None:
        super().__init__(alpha)
        self.alpha, self.positive = alpha, positive


class _NoRootError(Exception):
    """A difference changes its sign without a root, where one side of it ends."""

    def __init__(self, alpha: float) -> None:
        super().__init__(alpha)
        self.alpha = alpha


def _root(
    make: Callable[[int], _Difference], start: float, limits: Range, accuracy: float
) -> tuple[float, float, float]:
    """A root of a difference, its standard error and the slope there, with as many nodes as the accuracy takes.

    `make` gives the difference for a number of nodes.
    """
    log2_nodes = _SEARCH
    alpha, error, slope = _root_with_nodes(make(log2_nodes), start, limits, accuracy)
    while error > accuracy and log2_nodes < _FINEST:
        log2_nodes = _more_nodes(log2_nodes, error / accuracy)
        alpha, error, slope = _root_with_nodes(make(log2_nodes), alpha, limits, accuracy)
    return alpha, error, slope


def _more_nodes(log2_nodes: int, factor: float) -> int:
    """How many nodes an error takes that is smaller by this factor."""
    return min(log2_nodes + max(1, round(float(np.log2(factor)) / _GAIN + 0.3)), _FINEST)


def _root_with_nodes(
    difference: _Difference, start: float, limits: Range, accuracy: float
) -> tuple[float, float, float]:
    """Newton's method in log alpha, inside the bracket that the signs so far leave."""
    low, high = np.log(limits)
    below, above = -np.inf, np.inf
    x, last, void = float(np.clip(np.log(start), low, high)), np.nan, np.nan
    elsewhere = sorted(np.linspace(low, high, _N_STARTS).tolist(), key=lambda other: abs(other - x))
    for _ in range(_MOST_STEPS):
        values, slope = difference(float(np.exp(x)))
        value = float(values.mean())
        if np.isnan(value) and np.isnan(last) and elsewhere:  # neither side of it exists at the start
            x = elsewhere.pop(0)
            continue
        if np.isnan(value):  # the same on the way: go half of it back
            if np.isnan(last) or abs(x - last) < _NEAR:
                raise _OutOfRangeError(float(np.exp(x)), below == last)
            x, void = (x + last) / 2, x
            continue
        last = x
        if value > 0:
            below = x
        else:
            above = x
        step, error = np.copysign(np.inf, value), 0.0
        if np.isfinite(value) and slope < 0:
            step, error = -value / (slope * np.exp(x)), float(standard_error(values)) / abs(slope)
        new = float(np.clip(x + np.clip(step, -_FARTHEST, _FARTHEST), low, high))
        if not below < new < above and np.isfinite(above - below):
            new = (below + above) / 2
        if (new - void) * (x - void) <= 0:  # towards where both are missing
            new = (x + void) / 2
            if abs(x - new) < _NEAR / 2:
                raise _OutOfRangeError(float(np.exp(x)), value > 0)
        if new == x:
            raise _OutOfRangeError(float(np.exp(x)), value > 0)
        if abs(new - x) * np.exp(x) < max(accuracy, error) / 10:
            if not np.isfinite(value):
                raise _NoRootError(float(np.exp(x)))
            return float(np.exp(new)), error, slope
        x = new
    raise ConvergenceError(
        f"the threshold was not found in {_MOST_STEPS} steps; the last alpha was {np.exp(x):g}",
        last=None,
        residual=np.inf,
    )


def _accurate(threshold: Threshold, accuracy: float) -> Threshold:
    """The threshold if it is as accurate as was asked for, else a ConvergenceError."""
    if threshold.standard_error > accuracy:
        raise ConvergenceError(
            f"the threshold at alpha = {threshold.value:.4g} did not reach accuracy {accuracy:g}: standard error "
            f"{threshold.standard_error:.2g} with 2^{_FINEST} nodes",
            last=threshold,
            residual=threshold.standard_error,
        )
    return threshold


class _Crossing:
    """The search for alpha_c, at one task after another."""

    def __init__(self, names: tuple[str, str], limits: Range, accuracy: float, seed: int) -> None:
        self.names, self.limits, self.accuracy, self.seed = names, limits, accuracy, seed
        self.lines: tuple[_Line, _Line] | None = None  # where the last search ended

    def at(self, task: Task) -> Threshold:
        """The threshold of one task."""
        first, second = self.names
        try:
            alpha, error, _ = _root(partial(self._difference, task), self.last, self.limits, self.accuracy)
        except _OutOfRangeError as end:
            if self.limits[0] * (1 + _NEAR) < end.alpha < self.limits[1] * (1 - _NEAR):
                raise NoThresholdError(
                    f"alpha_range must have the crossing of the {first} and the {second} loss in it; got "
                    f"{self.limits}, but next to alpha = {end.alpha:.4g} neither branch exists",
                    "neither",
                ) from None
            winner = first if end.positive else second
            raise NoThresholdError(
                f"alpha_range must have the crossing of the {first} and the {second} loss in it; got "
                f"{self.limits}, and to its end at {end.alpha:.4g} the {winner} branch has the lower loss",
                winner,
            ) from None
        except _NoRootError as end:
            raise ConvergenceError(
                f"the {first} and the {second} loss do not cross: one of the branches ends at alpha = {end.alpha:.4g}",
                last=None,
                residual=np.inf,
            ) from None
        return _accurate(Threshold(alpha, error, "crossing"), self.accuracy)

    @property
    def last(self) -> float:
        """Where the last search ended, or where the first begins."""
        return self.lines[0].at.alpha if self.lines and self.lines[0].is_somewhere else 1.0

    def _difference(self, task: Task, log2_nodes: int) -> _Difference:
        first, second = (_Line(task, name, log2_nodes, self.seed) for name in self.names)
        if self.lines:
            first.start_from(self.lines[0])
            second.start_from(self.lines[1])
        self.lines = first, second
        return partial(_loss_difference, first, second)


def _loss_difference(first: _Line, second: _Line, alpha: float) -> tuple[Float[Array, " R"], float]:
    """Training loss of the second less that of the first; infinite where only one is there, NaN where none is."""
    there = [_is_there(line, alpha) for line in (first, second)]
    if not all(there):
        return np.full(2, np.inf if there[0] else -np.inf if there[1] else np.nan), np.nan
    (loss, slope), (other_loss, other_slope) = second.train_loss(), first.train_loss()
    return loss - other_loss, slope - other_slope


def _is_there(line: _Line, alpha: float) -> bool:
    try:
        line.move(alpha)
    except (NoSuchPointError, NotFoundError):
        return False
    return True


class _Crossover:
    """The search for alpha_l, at one task after another."""

    def __init__(self, limits: Range, accuracy: float, seed: int) -> None:
        self.limits, self.accuracy, self.seed = limits, accuracy, seed
        self._crossing = _Crossing(("positional", "semantic"), limits, accuracy, seed)
        self._line: _Line | None = None

    def at(self, task: Task) -> Threshold:
        """The threshold of one task."""
        critical = None
        try:
            critical = self._crossing.at(task)
        except NoThresholdError as none:
            if none.winner == "positional":
                raise NoThresholdError(f"{none}; it never beats the linear baseline", "linear") from None
        low = critical.value if critical else self.limits[0]
        start = critical.value if critical else self._crossing.last
        baseline = linear_baseline(task)
        difference = partial(self._difference, task, baseline.test_error)
        try:
            alpha, error, slope = _root(difference, start, (low, self.limits[1]), self.accuracy)
        except _OutOfRangeError as end:
            if critical and not end.positive:
                return Threshold(critical.value, critical.standard_error, "jump")
            winner = "linear" if end.positive else "attention"
            raise NoThresholdError(
                "alpha_range must have in it where attention begins to win over the linear baseline; got "
                f"{self.limits}, at whose end {end.alpha:g} the {winner} one still has the lower test error",
                winner,
            ) from None
        except _NoRootError as end:
            raise ConvergenceError(
                f"the test error of attention does not cross that of the linear baseline: at alpha = {end.alpha:.4g}, "
                "where the semantic branch begins, it is below already",
                last=None,
                residual=np.inf,
            ) from None
        if critical is None and self._positional_is_lower(task, alpha):
            raise ConvergenceError(
                f"the semantic branch beats the linear baseline from alpha = {alpha:.4g} on, but the positional one is "
                "the lower there, and alpha_c was not found",
                last=None,
                residual=np.inf,
            )
        error = float(np.hypot(error, baseline.standard_error / slope))
        return _accurate(Threshold(alpha, error, "crossing"), self.accuracy)

    def _positional_is_lower(self, task: Task, alpha: float) -> bool:
        positional, semantic = (_Line(task, name, _SEARCH, self.seed) for name in ("positional", "semantic"))
        difference, _ = _loss_difference(positional, semantic, alpha)
        return bool(difference.mean() > 0)

    def _difference(self, task: Task, baseline: float, log2_nodes: int) -> _Difference:
        line = _Line(task, "semantic", log2_nodes, self.seed)
        before = self._line or (self._crossing.lines[1] if self._crossing.lines else None)
        if before:
            line.start_from(before)
        self._line = line

        def difference(alpha: float) -> tuple[Float[Array, " R"], float]:
            if not _is_there(line, alpha):  # there is no semantic attention yet
                return np.full(2, np.inf), np.nan
            error, slope = line.test_error()
            return error - baseline, slope

        return difference


def _curve(task: Task, omegas: list[float], threshold: Callable[[Task], Threshold]) -> ThresholdCurve:
    found: list[tuple[float, float, str]] = []
    for omega in omegas:
        try:
            here = threshold(replace(task, omega=omega))
            found.append((here.value, here.standard_error, here.kind))
        except NoThresholdError as error:
            found.append((np.nan, np.nan, error.winner))
    alpha, errors, kinds = zip(*found, strict=True)
    return ThresholdCurve(np.array(omegas), np.array(alpha), np.array(errors), kinds)


@one_thread
def spinodal_alpha(
    task: Task,
    branch: BranchName,
    *,
    end: End = "lower",
    start: float = 1.0,
    alpha_range: Range = (0.01, 1000.0),
    accuracy: float = 0.002,
    seed: int = 0,
) -> Threshold:
    """Where a branch ends as alpha falls (end "lower") or rises ("upper"); beyond it the branch does not exist.

    The branch is followed by pseudo-arclength continuation to where alpha turns back along it: at a fold, or where its
    overlaps vanish (kinds "fold" and "vanishes"). An eigenvalue of the map's derivative passes through 1 there.

    The end is the mean of four, each searched with nodes of its own, for where the curve is flat, jumps of the proximal
    map make it rough, and its lowest place is a matter of chance. The standard error is the larger of that from their
    scatter and that of a root of ``l . F = 0``, with F the equations and l the null vector of their Jacobian.

    Args:
        task: what is learned from what.
        branch: its name.
        end: which end.
        start: where the branch is first looked for; where it is not there, at multiples.
        alpha_range: (low, high), 0 < low < high: how far to follow it.
        accuracy: largest standard error.
        seed: whole number; fixes the nodes.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        NoThresholdError: it goes on to the end of the range; `winner` is its name.
        ConvergenceError: it was not found, or lost on the way; or the accuracy was not reached.
    """
    _checks.instance("task", task, Task)
    name = _checks.choice("branch", branch, BRANCHES)
    _checks.choice("end", end, ("lower", "upper"))
    start = _checks.real("start", start, 0, open_low=True)
    limits = _limits(alpha_range)
    accuracy, seed = _checked(accuracy, seed)
    direction = 1.0 if end == "upper" else -1.0
    seeds = range(_SEARCHES * seed, _SEARCHES * (seed + 1))
    log2_nodes = _SEARCH
    equations = BranchEquations(Branch(task, name), log2_nodes, seeds[0], follow=0.3)
    root = _first_root(equations, start)
    if root is None:
        raise NotFoundError(
            f"no {name} solution was found at multiples of alpha = {start:g}", last=None, residual=np.inf
        )
    equations, way, turn, beyond = _turn_with_enough_nodes(equations, root, direction, limits, accuracy)
    alpha, error = _end(equations, turn)
    while log2_nodes < _FINEST and (log2_nodes == _SEARCH or error > accuracy):
        log2_nodes = _more_nodes(log2_nodes, max(error / accuracy, 2.0))
        found = []
        for each in seeds:
            equations = BranchEquations(equations.branch, log2_nodes, each, follow=0.3)
            root = _nearest_root(equations, way)
            equations, way, turn, beyond = _turn_with_enough_nodes(equations, root, direction, limits, accuracy)
            found.append(_end(equations, turn))
        alphas, errors = np.array(found).T
        alpha = float(alphas.mean())
        error = max(float(standard_error(alphas)), float(np.sqrt((errors**2).sum())) / _SEARCHES)
    return _accurate(Threshold(alpha, error, _kind_of_end(equations, turn, beyond, error)), accuracy)


def _end(equations: BranchEquations, turn: Place[Evaluation]) -> tuple[float, float]:
    """The alpha of a turn, and its standard error at that place of the curve."""
    size = len(turn.scale)
    null = np.linalg.svd(turn.slopes[:size] * turn.scale).U[:, -1]
    moves = -(null @ turn.at.rows[:size]) / (null @ equations.parameter_slope(turn.at))
    return turn.at.alpha * (1 + float(moves.mean())), turn.at.alpha * float(standard_error(moves))


@one_thread
def stability_alpha(
    task: Task,
    branch: BranchName,
    *,
    overlap: Literal["m", "theta"] | None = None,
    end: End = "lower",
    start: float = 1.0,
    alpha_range: Range = (0.01, 1000.0),
    accuracy: float = 0.002,
    seed: int = 0,
) -> Threshold:
    """Where a branch ceases to be a minimum as alpha falls (end "lower") or rises ("upper"), though it still exists.

    There the map's derivative along an overlap that the branch lacks is 1, and another branch joins it: kind
    "exchange". Beyond, the loss falls along that overlap. For r = 1 the branch that joins is the mixed one, the pass.
    For r = 2 the overlap is that of the second column, which is free on these branches, and the mixed branch is born
    there as the minimum that takes over; the semantic and the positional branch are born out of the uninformed one.

    Args:
        task: what is learned from what, with r <= 2 and t = 1.
        branch: "semantic", "positional" or "uninformed".
        overlap: "m" or "theta". None: m on the semantic branch, theta on the others.
        end: which end.
        start: where the search begins.
        alpha_range: (low, high), 0 < low < high: where to search.
        accuracy: largest standard error.
        seed: whole number; fixes the nodes.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        NoThresholdError: the branch is a minimum to the end of the range, or to its own end; `winner` is its name.
        ConvergenceError: as in `critical_alpha`.
    """
    _checks.instance("task", task, Task)
    if task.student_rank > 2 or task.teacher_rank != 1:
        got = (task.student_rank, task.teacher_rank)
        raise ValueError(f"task must have student_rank <= 2 and teacher_rank = 1; got {got}")
    name = _checks.choice("branch", branch, ("semantic", "positional", "uninformed"))
    lacking = "m" if name == "semantic" else "theta"
    if overlap is not None:
        choices = {"semantic": ("m",), "positional": ("theta",), "uninformed": ("m", "theta")}[name]
        lacking = _checks.choice("overlap", overlap, choices)
    sign = -1 if _checks.choice("end", end, ("lower", "upper")) == "upper" else 1
    start = _checks.real("start", start, 0, open_low=True)
    limits = _limits(alpha_range)
    accuracy, seed = _checked(accuracy, seed)
    last: _Line | None = None

    def make(log2_nodes: int) -> _Difference:
        nonlocal last
        line = _Line(task, name, log2_nodes, seed)
        if last is not None:
            line.start_from(last)
        last = line

        def difference(alpha: float) -> tuple[Float[Array, " R"], float]:
            try:
                line.move(alpha)
            except NoSuchPointError:
                return np.full(2, np.inf if end == "lower" else -np.inf), np.nan
            growth, slope = line.growth(lacking)
            return sign * (growth - 1), sign * slope

        return difference

    try:
        alpha, error, _ = _root(make, start, limits, accuracy)
    except (_OutOfRangeError, _NoRootError) as stop:
        raise NoThresholdError(
            f"alpha_range must have in it where the {name} branch ceases to be a minimum; got {limits}, and it is one "
            f"to alpha = {stop.alpha:.4g}, where it or the range ends",
            name,
        ) from None
    return _accurate(Threshold(alpha, error, "exchange"), accuracy)


_Turn = tuple[list[Evaluation], Place[Evaluation], Iterator[Place[Evaluation]]]
"""Roots on the way to where alpha turns back along a branch, the place where it does, and the places beyond."""


def _turn_with_enough_nodes(
    equations: BranchEquations, root: Root, direction: float, limits: Range, accuracy: float
) -> tuple[BranchEquations, *_Turn]:
    """The turn, and the equations with which it was found: with more nodes where the branch is lost on the way.

    Few nodes make the curve rough, most so near its end.
    """
    try:
        return equations, *_turn(equations, root, direction, limits, accuracy)
    except ConvergenceError:
        if equations.log2_nodes >= _THOROUGH:
            raise
    finer = BranchEquations(equations.branch, min(equations.log2_nodes + 2, _THOROUGH), equations.seed, follow=0.3)
    return _turn_with_enough_nodes(finer, _nearest_root(finer, [root[0]]), direction, limits, accuracy)


def _turn(equations: BranchEquations, root: Root, direction: float, limits: Range, accuracy: float) -> _Turn:
    """Follow a branch to where alpha turns back along it."""
    way = [root[0]]
    places = walk(equations, *root, direction, _ROUGH)
    for before, after in places:
        if after.direction != before.direction:
            beyond = itertools.chain([after], (place for _, place in places))
            return way, _turn_between(equations, before, after, accuracy), beyond
        way.append(after.at)
        if not limits[0] <= after.at.alpha <= limits[1]:
            if not equations.branch.exists(after.at.x):
                break  # with few nodes the walk may step over where the overlaps vanish
            name = equations.branch.name
            raise NoThresholdError(
                f"alpha_range must have the end of the {name} branch in it; got {limits}, beyond which it goes on", name
            )
    raise ConvergenceError(
        f"the {equations.branch.name} branch was lost at alpha = {way[-1].alpha:g}", last=None, residual=np.inf
    )


def _kind_of_end(
    equations: BranchEquations, turn: Place[Evaluation], beyond: Iterator[Place[Evaluation]], error: float
) -> str:
    """Whether a branch ends at a fold, or where its overlaps vanish.

    In the variable that vanishes the curve is even: it turns there as at a fold. A fold is what comes before, if alpha
    has changed by more than three standard errors when the overlaps vanish.
    """
    if not equations.branch.exists(turn.at.x):
        return "vanishes"
    for place in beyond:
        if not equations.branch.exists(place.at.x):
            return "vanishes"
        if abs(place.at.alpha - turn.at.alpha) > 3 * error:
            break
    return "fold"


def _turn_between(
    equations: BranchEquations, before: Place[Evaluation], after: Place[Evaluation], accuracy: float
) -> Place[Evaluation]:
    """The place between two where the tangent has no component along alpha: by false position along the curve."""
    size = len(before.scale)
    apart = np.append((after.at.x - before.at.x) / before.scale, after.at.parameter - before.at.parameter)
    ends = [(0.0, before), (float(apart @ before.tangent), after)]
    weights = [1.0, 1.0]
    place, kept = after, -1
    for _ in range(_MOST_STEPS):
        (a, left), (b, right) = ends
        u, v = weights[0] * left.tangent[size], weights[1] * right.tangent[size]
        length = (a * v - b * u) / (v - u)
        found = along(equations, before, length, _ROUGH)
        if found is None:
            break
        place = found
        if abs(place.tangent[size]) * (b - a) * place.at.alpha < accuracy / 10:
            return place
        side = 0 if place.direction == left.direction else 1
        weights[side] = 1.0
        if side == kept:
            weights[1 - side] /= 2  # Illinois: the other end has stayed for two steps
        ends[side], kept = (length, place), side
    raise ConvergenceError(
        f"where the {equations.branch.name} branch turns, near alpha = {place.at.alpha:g}, was not found",
        last=None,
        residual=np.inf,
    )


def _nearest_root(equations: BranchEquations, way: list[Evaluation]) -> Root:
    """The root with other nodes, close to the end of a way where there is one."""
    for place in reversed(way):
        found = root_near(equations, equations.evaluate(place.x, place.parameter))
        if found is not None:
            return found
    found = _first_root(equations, way[0].alpha)
    if found is None:
        raise ConvergenceError(
            f"the {equations.branch.name} branch was not found again with {equations.n_nodes} nodes",
            last=None,
            residual=np.inf,
        )
    return found


def _first_root(equations: BranchEquations, alpha: float) -> Root | None:
    """A root of the branch from a guess, at alpha or the first multiple of it where there is one."""
    return next(filter(None, (root_from_guess(equations, factor * alpha) for factor in (1.0, *ELSEWHERE))), None)


def _pair(branches: object) -> tuple[str, str]:
    if not isinstance(branches, Sequence) or isinstance(branches, str) or len(names := list(branches)) != 2:
        raise ValueError(f"branches must be two names; got {_checks.shown(branches)}")
    first, second = (_checks.choice("branches", name, BRANCHES) for name in names)
    if first == second:
        raise ValueError(f"branches must be two different names; got {_checks.shown(branches)}")
    return first, second


def _limits(alpha_range: Range) -> Range:
    low, high = _checks.array("alpha_range", alpha_range, (2,))
    if not 0 < low < high:
        raise ValueError(f"alpha_range must be (low, high) with 0 < low < high; got {_checks.shown(alpha_range)}")
    return float(low), float(high)


def _checked(accuracy: float, seed: int) -> tuple[float, int]:
    return _checks.real("accuracy", accuracy, 1e-5, 0.1), _checks.integer("seed", seed, 0)


def _omegas(omegas: ArrayLike) -> list[float]:
    values = _checks.array("omegas", omegas, (None,))
    return [_checks.real(f"omegas[{i}]", value, 0, 1) for i, value in enumerate(values.tolist())]
