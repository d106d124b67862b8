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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.estimates import Estimate, standard_error
from attention_phases.positional_semantic.averages import free_energy, kappa
from attention_phases.positional_semantic.branches import (
    BRANCHES,
    Branch,
    BranchEquations,
    Clock,
    Evaluation,
    OutOfTimeError,
)
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
from attention_phases.positional_semantic.teacher_student import Seed, Task

Array = NDArray[np.float64]
Range = tuple[float, float]
End = Literal["lower", "upper"]

_SEARCH = 11  # log2 of the number of nodes with which a threshold is located
_SEARCH_AGAIN = 14  # the same, where it is not
_LEAST = 12  # the same, of each search that counts
_THOROUGH = 16  # the same, where a branch is lost on the way to its end
_FINEST = 17
_SEARCHES = 4  # how many sets of nodes, with seeds of their own, a threshold is averaged over
_GAIN = 1.3  # powers of two by which the error of a threshold shrinks, about, with each doubling of the nodes
_ROUGH = 1e-3  # relative accuracy of order parameters: the training loss has its square
_POLISHED = 1e-4  # the same, after a few more steps
_NEAR = 0.01  # in log alpha: closer than this to where both branches are missing, a search ends
_FARTHEST = 0.7  # largest change of log alpha in one step of a search
_SHORT = 0.2  # the same, of one that Newton's method takes with the Jacobian from where it began
_SMALL = 0.1  # by so much of their scale the unknowns may change in its course
_CLEAR = 5.0  # by so many errors two thresholds must differ to be told apart with few nodes
_MOST_STEPS = 40
_N_STARTS = 7  # where else in the range a search may begin


@dataclass(frozen=True)
class Threshold(Estimate):
    """A threshold in alpha.

    Attributes:
        value, standard_error: of alpha. The standard error is that of the averages, with what the last step of the
            search may have left; of errors of the replica-symmetric theory nothing is known here.
        kind: "crossing" (two losses are equal), "jump" (the global minimum changes, and the test error with it), "fold"
            (the branch turns back), "vanishes" (its overlaps go to zero), or "exchange" (another branch joins it).
    """

    kind: str


class NoThresholdError(ValueError):
    """There is no such threshold in the range of alpha that was asked for.

    Attributes:
        winner: what has the lower loss (or error) in all of the range. "neither" where the search came to an alpha in
            the range at which neither branch exists. For the end of a branch, the branch, which has none; "not found"
            where the branch (or one that is a minimum) was not found anywhere in the range.
    """

    def __init__(self, message: str, winner: str) -> None:
        super().__init__(message)
        self.winner = winner


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


@dataclass(frozen=True, eq=False)
class _Asked:
    """What is asked of every threshold, and the clock of the search."""

    limits: Range
    accuracy: float
    seeds: range
    clock: Clock

    @classmethod
    def of(cls, task: object, alpha_range: Range, accuracy: float, seed: Seed, time_limit: float) -> "_Asked":
        """The arguments, checked."""
        _checks.instance("task", task, Task)
        low, high = (float(end) for end in _checks.array("alpha_range", alpha_range, (2,)))
        if not 0 < low < high:
            raise ValueError(f"alpha_range must be (low, high) with 0 < low < high; got {_checks.shown(alpha_range)}")
        number = _checks.seed(seed)
        return cls(
            limits=(low, high),
            accuracy=_checks.real("accuracy", accuracy, 1e-5, 0.1),
            seeds=range(_SEARCHES * number, _SEARCHES * (number + 1)),
            clock=Clock(_checks.real("time_limit", time_limit, 0, open_low=True)),
        )

    def accurate(self, threshold: Threshold) -> Threshold:
        """The threshold if it is as accurate as was asked for, else a ConvergenceError."""
        if threshold.standard_error > self.accuracy:
            raise ConvergenceError(
                f"the threshold at alpha = {threshold.value:.4g} did not reach accuracy {self.accuracy:g} with up to "
                f"{_SEARCHES} times 2^{_FINEST} nodes in time_limit = {self.clock.limit:g} s: standard error "
                f"{threshold.standard_error:.2g}",
                last=threshold,
                residual=threshold.standard_error,
            )
        return threshold

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """One search: what it has found when its time is over goes into a ConvergenceError."""
        self.clock.restart()
        try:
            yield
        except OutOfTimeError:
            raise ConvergenceError(
                f"time_limit = {self.clock.limit:g} s is too short for this threshold; the search had come to "
                f"alpha = {self.clock.alpha:.4g}",
                last=None,
                residual=np.inf,
            ) from None


@dataclass(frozen=True, eq=False)
class _Guess:
    """A root of other equations, and how it moves with log alpha: where a search with new ones begins."""

    x: Float[Array, " k"]
    parameter: float
    slopes: Float[Array, "k+1 k"]
    drift: Float[Array, " k"]

    def at(self, parameter: float) -> Float[Array, " k"]:
        """The unknowns at a value of log alpha nearby."""
        return np.asarray(self.x + self.drift * np.clip(parameter - self.parameter, -_SHORT, _SHORT))

    def beyond(self, before: "_Guess", ratio: float) -> "_Guess":
        """Extrapolated, by this multiple of the way from the guess before."""
        return replace(
            self,
            x=self.x + ratio * (self.x - before.x),
            parameter=self.parameter + ratio * (self.parameter - before.parameter),
        )


class _Line:
    """One branch of a task with fixed nodes, at one alpha after another."""

    def __init__(
        self, task: Task, name: str, log2_nodes: int, seed: int, clock: Clock, guess: _Guess | None = None
    ) -> None:
        follow = 0.3 if log2_nodes == _SEARCH else 0.05
        self.equations = BranchEquations(Branch(task, name, clock), log2_nodes, seed, follow=follow)
        self._last: Root | None = None
        self.guess = guess  # for other equations too: the last point, or what this line began with
        self._ends: list[NoSuchPointError] = []

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
        root = self._step(alpha)
        if root is None:
            try:
                at, slopes = self._root(alpha)
            except NoSuchPointError as end:
                if self._last is not None:
                    self._ends.append(end)
                raise
            if at.averages.proximal.objective.size != self.equations.n_nodes:
                at = self.equations.evaluate(at.x, at.parameter)  # it was searched with more nodes
            at, slopes, _ = newton(self.equations, at, slopes, _POLISHED, max_steps=3)
            root = at, slopes
        self._last = root
        self.guess = _Guess(self.at.x, self.at.parameter, self.slopes, self.drift)

    def _step(self, alpha: float) -> Root | None:
        """The root at alpha, by Newton's method with the Jacobian of the guess, if it is close to where that leads."""
        guess, parameter, branch = self.guess, np.log(alpha), self.equations.branch
        if guess is None or abs(parameter - guess.parameter) > _SHORT:
            return None
        start = self.equations.evaluate(guess.at(parameter), parameter)
        at, slopes, converged = newton(self.equations, start, guess.slopes, _POLISHED, max_steps=6)
        change = np.abs((at.x - start.x) / self.equations.scale(start.x)).max()
        same = converged and change < _SMALL and np.sign(np.linalg.det(slopes[: branch.size])) == branch.orientation
        return (at, slopes) if same and branch.exists(at.x) else None

    def _root(self, alpha: float) -> Root:
        if self.guess is None:
            return find_root(self.equations, alpha)
        parameter = np.log(alpha)
        found = root_near(self.equations, self.equations.evaluate(self.guess.at(parameter), parameter))
        if found is None and self._last is not None:
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


_Values = tuple[Float[Array, " R"], float]
"""A difference that is positive below its root, by each randomisation, and its derivative with respect to alpha.

Infinite where only one side of it exists, NaN where none does."""
_Lines = tuple[_Line, ...]


class _OutOfRangeError(Exception):
    """A search came to an end of its range, or to where neither side of the difference exists.

    Attributes:
        alpha: where.
        sign: of the difference there; 0 where neither side exists.
        rises: whether the difference rises with alpha, where the search has seen it.
    """

    def __init__(self, alpha: float, sign: int, rises: bool) -> None:
        super().__init__(alpha)
        self.alpha, self.sign, self.rises = alpha, sign, rises


class _NoRootError(Exception):
    """A difference changes its sign without a root, where one side of it ends; `sign` and `rises` as above."""

    def __init__(self, alpha: float, sign: int, rises: bool) -> None:
        super().__init__(alpha)
        self.alpha, self.sign, self.rises = alpha, sign, rises


@dataclass(frozen=True, eq=False)
class _Found:
    """A root of a difference, its standard error, the slope there, and the lines that it was found with."""

    task: Task
    alpha: float
    error: float
    slope: float
    log2_nodes: int
    lines: list[_Lines]


class _Trail:
    """Roots that were found for one task after another: where the next search begins."""

    def __init__(self) -> None:
        self._roots: list[_Found] = []

    def add(self, found: _Found) -> _Found:
        """A new root."""
        self._roots = [*self._roots[-1:], found]
        return found

    @property
    def last(self) -> _Found | None:
        """The last root."""
        return self._roots[-1] if self._roots else None

    def predicted(self, omega: float) -> tuple[float, list[tuple[_Guess | None, ...]]]:
        """The threshold at another omega, and guesses for the lines: extrapolated from the last two roots."""
        last, before = self._roots[-1], self._roots[0]
        apart = last.task.omega - before.task.omega
        ratio = (omega - last.task.omega) / apart if apart else 0.0
        if abs(ratio) > 2:
            ratio = 0.0
        guesses = [
            tuple(_beyond(line, earlier, ratio) for line, earlier in zip(*pair, strict=True))
            for pair in zip(last.lines, before.lines, strict=True)
        ]
        return last.alpha * (last.alpha / before.alpha) ** ratio, guesses


def _beyond(line: _Line, earlier: _Line, ratio: float) -> _Guess | None:
    here, there = line.guess, earlier.guess
    return here.beyond(there, ratio) if here and there else here


class _Search:
    """The search for the root of a difference between branches, for one task after another."""

    def __init__(self, names: tuple[str, ...], asked: _Asked) -> None:
        self.names, self.asked = names, asked
        self._rough, self._accurate = _Trail(), _Trail()

    def rough(self, task: Task, values: Callable[[_Lines, float], _Values], start: float, limits: Range) -> _Found:
        """The root with few nodes. `start` is for the first task."""
        none: list[tuple[_Guess | None, ...]] = [(None,) * len(self.names)]
        last = self._rough.last
        if last is not None and last.task == task:
            return last
        if last is not None:
            start, guesses = self._rough.predicted(task.omega)
            try:
                return self._rough.add(self._with_nodes(task, values, _SEARCH, start, limits, guesses))
            except (_OutOfRangeError, _NoRootError, ConvergenceError):
                self._rough = _Trail()
        try:
            found = self._with_nodes(task, values, _SEARCH, start, limits, none)
        except _NoRootError:  # or few nodes make the curve so rough that it jumps
            found = self._with_nodes(task, values, _SEARCH_AGAIN, start, limits, none)
        return self._rough.add(found)

    def root(self, task: Task, values: Callable[[_Lines, float], _Values], start: float, limits: Range) -> _Found:
        """The root with as many nodes as the accuracy takes."""
        last = self._accurate.last
        if last is not None:
            start, guesses = self._accurate.predicted(task.omega)
            spare = np.log2(self.asked.accuracy / max(last.error, 1e-300)) / _GAIN
            log2_nodes = max(last.log2_nodes - max(int(spare), 0), _LEAST)
            try:
                return self._accurate.add(self._refined(task, values, log2_nodes, start, limits, guesses))
            except (_OutOfRangeError, _NoRootError, ConvergenceError):
                self._accurate = _Trail()
        rough = self.rough(task, values, start, limits)
        wanted = rough.error / (self.asked.accuracy * np.sqrt(_SEARCHES))
        log2_nodes = max(_more_nodes(rough.log2_nodes, wanted), _LEAST)
        guesses = [tuple(line.guess for line in rough.lines[0])] * _SEARCHES
        try:
            return self._accurate.add(self._refined(task, values, log2_nodes, rough.alpha, limits, guesses))
        except OutOfTimeError:
            return rough

    def _refined(
        self,
        task: Task,
        values: Callable[[_Lines, float], _Values],
        log2_nodes: int,
        start: float,
        limits: Range,
        guesses: list[tuple[_Guess | None, ...]],
    ) -> _Found:
        """The root with these nodes, and then with more until they are enough."""
        found = self._with_nodes(task, values, log2_nodes, start, limits, guesses)
        while found.error > self.asked.accuracy and log2_nodes < _FINEST:
            log2_nodes = _more_nodes(log2_nodes, found.error / self.asked.accuracy)
            guesses = [tuple(line.guess for line in lines) for lines in found.lines]
            try:
                found = self._with_nodes(task, values, log2_nodes, found.alpha, limits, guesses)
            except OutOfTimeError:
                break
        return found

    def _with_nodes(
        self,
        task: Task,
        values: Callable[[_Lines, float], _Values],
        log2_nodes: int,
        start: float,
        limits: Range,
        guesses: list[tuple[_Guess | None, ...]],
    ) -> _Found:
        """The root of the mean over as many sets of nodes as there are guesses."""
        lines = [
            tuple(
                _Line(task, name, log2_nodes, seed, self.asked.clock, guess)
                for name, guess in zip(self.names, each, strict=True)
            )
            for seed, each in zip(self.asked.seeds, guesses, strict=False)
        ]

        def difference(alpha: float) -> tuple[list[Float[Array, " R"]], float]:
            rows, slopes = [], []
            for each in lines:
                row, slope = values(each, alpha)
                if not np.isfinite(row).all():
                    return [row], slope
                rows.append(row)
                slopes.append(slope)
            return rows, float(np.mean(slopes))

        tolerance = self.asked.accuracy / 3 if len(guesses) == 1 else 0.0
        n_starts = _N_STARTS if guesses[0][0] is None else 0
        return _Found(task, *_newton(difference, start, limits, tolerance, n_starts), log2_nodes, lines)


def _more_nodes(log2_nodes: int, factor: float) -> int:
    """How many nodes an error takes that is smaller by this factor."""
    return min(log2_nodes + max(1, round(float(np.log2(factor)) / _GAIN + 0.3)), _FINEST)


def _error(rows: list[Float[Array, " R"]]) -> float:
    """Standard error of the mean over independent sets of nodes.

    From the scatter of the randomisations in each set, or of the sets, if that is larger: then the root of a set is
    off by more than is linear in the averages.
    """
    within = float(np.sqrt(sum(standard_error(row) ** 2 for row in rows))) / len(rows)
    between = float(standard_error(np.array([row.mean() for row in rows]))) if len(rows) > 1 else 0.0
    return max(within, between)


def _newton(
    difference: Callable[[float], tuple[list[Float[Array, " R"]], float]],
    start: float,
    limits: Range,
    tolerance: float,
    n_starts: int,
) -> tuple[float, float, float]:
    """A root, its standard error and the slope there: Newton's method in log alpha, in the bracket of the signs so far.

    It ends where what the last step leaves, about its square, is below the tolerance or a third of the error, and
    counts this as an error too. Where neither side exists at the start, it looks at n_starts other places.
    """
    low, high = np.log(limits)
    below, above = -np.inf, np.inf
    x, last, void = float(np.clip(np.log(start), low, high)), np.nan, np.nan
    elsewhere = sorted(np.linspace(low, high, n_starts).tolist(), key=lambda other: abs(other - x))
    n_rises, before, sign = 0, (np.nan, np.nan), 0
    for _ in range(_MOST_STEPS):
        rows, slope = difference(float(np.exp(x)))
        alpha, value = float(np.exp(x)), float(np.mean([row.mean() for row in rows]))
        if np.isnan(value) and np.isnan(last) and elsewhere:  # neither side of it exists at the start
            x = elsewhere.pop(0)
            continue
        if np.isnan(value):  # the same on the way: go half of it back
            if np.isnan(last) or abs(x - last) < _NEAR:
                raise _OutOfRangeError(alpha, 0, n_rises > 0)
            x, void = (x + last) / 2, x
            continue
        last, finite = x, np.isfinite(value)
        if value > 0:
            below = x
        else:
            above = x
        step = float(np.copysign(np.inf, value))
        if finite:
            n_rises += 1 if slope > 0 else -1
            sign = int(np.sign(value))
        if finite and slope < 0:
            step, error = -value / (slope * alpha), _error(rows) / abs(slope)
            bend = abs(1 + (slope / before[1] - 1) / (x - before[0])) / 2 if before[0] != x else 1.0
            left = max(1.0, bend if np.isfinite(bend) else 1.0) * step**2 * alpha
            inside = below <= x + step <= above and low <= x + step <= high
            if abs(step) < _SMALL and inside and left < max(tolerance, error / 3):
                return float(np.exp(x + step)), float(np.hypot(error, left)), slope
            before = x, slope
        new = float(np.clip(x + np.clip(step, -_FARTHEST, _FARTHEST), low, high))
        if not below < new < above and np.isfinite(above - below):
            new = (below + above) / 2
        if (new - void) * (x - void) <= 0:  # towards where both are missing
            new = (x + void) / 2
            if abs(x - new) < _NEAR / 2:
                raise _OutOfRangeError(alpha, 0, n_rises > 0)
        if new == x:
            raise _OutOfRangeError(alpha, 1 if value > 0 else -1, n_rises > 0)
        if (above - below) * alpha < _NEAR / 10:
            raise _NoRootError(alpha, sign, n_rises > 0)
        x = new
    raise ConvergenceError(
        f"the threshold was not found in {_MOST_STEPS} steps; the last alpha was {np.exp(x):g}",
        last=None,
        residual=np.inf,
    )


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
    asked = _Asked.of(task, alpha_range, accuracy, seed, time_limit)
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
    asked = _Asked.of(task, alpha_range, accuracy, seed, time_limit)
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
    asked = _Asked.of(task, alpha_range, accuracy, seed, time_limit)
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
    asked = _Asked.of(task, alpha_range, accuracy, seed, time_limit)
    return _curve(task, values, asked, _Crossover(asked).at)


class _Crossing:
    """The search for alpha_c, at one task after another."""

    def __init__(self, names: tuple[str, str], asked: _Asked) -> None:
        self.names, self.asked = names, asked
        self.search = _Search(names, asked)

    def at(self, task: Task) -> Threshold:
        """The threshold of one task."""
        found = self._in_either_order(lambda crossing: crossing.search.root(task, _loss_difference, *crossing.where))
        return self.asked.accurate(Threshold(found.alpha, found.error, "crossing"))

    def rough(self, task: Task) -> _Found:
        """The same with few nodes."""
        return self._in_either_order(lambda crossing: crossing.search.rough(task, _loss_difference, *crossing.where))

    @property
    def where(self) -> tuple[float, Range]:
        """Where a search for the first task begins, and where it ends."""
        return 1.0, self.asked.limits

    def _in_either_order(self, find: Callable[["_Crossing"], _Found]) -> _Found:
        """What is found, or the public error that says why there is nothing."""
        try:
            return find(self)
        except (_OutOfRangeError, _NoRootError) as end:
            if not end.rises:
                raise self._failure(end) from None
        other = _Crossing((self.names[1], self.names[0]), self.asked)
        try:
            found = find(other)
        except (_OutOfRangeError, _NoRootError) as end:
            raise other._failure(end) from None
        self.names, self.search = other.names, other.search
        return found

    def _failure(self, end: "_OutOfRangeError | _NoRootError") -> NoThresholdError | ConvergenceError:
        (first, second), limits = self.names, self.asked.limits
        if isinstance(end, _NoRootError):
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


def _loss_difference(lines: _Lines, alpha: float) -> _Values:
    """Training loss of the second less that of the first."""
    there = [_is_there(line, alpha) for line in lines]
    if not all(there):
        return np.array([np.inf if there[0] else -np.inf if there[1] else np.nan]), np.nan
    first, second = lines
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

    def __init__(self, asked: _Asked) -> None:
        self.asked = asked
        self._crossing = _Crossing(("positional", "semantic"), asked)
        self._search = _Search(("semantic",), asked)

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
            low = max(low, critical.alpha - _CLEAR * critical.error)
        baseline = linear_baseline(task)

        def values(lines: _Lines, alpha: float) -> _Values:
            (line,) = lines
            if not _is_there(line, alpha):  # there is no semantic attention yet
                return np.array([np.inf]), np.nan
            error, slope = line.test_error()
            return error - baseline.test_error, slope

        try:
            found = self._search.root(task, values, critical.alpha if critical else 1.0, (low, high))
        except _OutOfRangeError as end:
            if critical and end.sign < 0:
                return replace(self._crossing.at(task), kind="jump")
            winner = "linear" if end.sign > 0 else "attention"
            raise NoThresholdError(
                "alpha_range must have in it where attention begins to win over the linear baseline; got "
                f"{self.asked.limits}, at whose end {end.alpha:g} the {winner} one still has the lower test error",
                winner,
            ) from None
        except _NoRootError as end:
            if critical:
                return replace(self._crossing.at(task), kind="jump")
            raise ConvergenceError(
                f"the test error of attention does not cross that of the linear baseline: at alpha = {end.alpha:.4g}, "
                "where the semantic branch begins, it is below already",
                last=None,
                residual=np.inf,
            ) from None
        if critical and found.alpha < critical.alpha + _CLEAR * critical.error:
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
        lines = tuple(_Line(task, name, _SEARCH, self.asked.seeds[0], self.asked.clock) for name in names)
        difference, _ = _loss_difference(lines, alpha)
        return bool(difference.mean() > 0)


def _curve(task: Task, omegas: list[float], asked: _Asked, threshold: Callable[[Task], Threshold]) -> ThresholdCurve:
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


@one_thread
def spinodal_alpha(
    task: Task,
    branch: BranchName,
    *,
    end: End = "lower",
    start: float = 1.0,
    alpha_range: Range = (0.01, 1000.0),
    accuracy: float = 0.002,
    seed: Seed = 0,
    time_limit: float = 120.0,
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
        start: where the branch is first looked for; where it is not there, at multiples in the range.
        alpha_range: (low, high), 0 < low < high: how far to follow it.
        accuracy: largest standard error.
        seed: whole number or NumPy Generator; fixes the nodes.
        time_limit: seconds of CPU time after which the search gives up.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        NoThresholdError: it goes on to the end of the range (`winner` is its name), or was not found ("not found").
        ConvergenceError: it was lost on the way, or not found in time; or the accuracy was not reached.
    """
    asked = _Asked.of(task, alpha_range, accuracy, seed, time_limit)
    name = _checks.choice("branch", branch, BRANCHES)
    _checks.choice("end", end, ("lower", "upper"))
    start = _checks.real("start", start, 0, open_low=True)
    with asked.in_time():
        return asked.accurate(_spinodal(Branch(task, name, asked.clock), 1.0 if end == "upper" else -1.0, start, asked))


def _spinodal(branch: Branch, direction: float, start: float, asked: _Asked) -> Threshold:
    equations = BranchEquations(branch, _SEARCH, asked.seeds[0], follow=0.3)
    root = _first_root(equations, start, asked.limits)
    if root is None:
        raise _not_found(branch.name, asked.limits)
    equations, way, turn, _ = _turn_with_enough_nodes(equations, root, direction, asked)
    log2_nodes, error = _SEARCH, _end(equations, turn)[1]
    found: Threshold | None = None
    while log2_nodes < _FINEST and (found is None or error > asked.accuracy):
        log2_nodes = _more_nodes(log2_nodes, max(error / asked.accuracy, 2.0))
        ends = []
        try:
            for each in asked.seeds:
                equations = BranchEquations(branch, log2_nodes, each, follow=0.3)
                root = _nearest_root(equations, way, asked.limits)
                equations, way, turn, beyond = _turn_with_enough_nodes(equations, root, direction, asked)
                ends.append(_end(equations, turn))
        except OutOfTimeError:
            if found is None:
                raise
            break
        alphas, errors = np.array(ends).T
        error = max(float(standard_error(alphas)), float(np.sqrt((errors**2).sum())) / _SEARCHES)
        found = Threshold(float(alphas.mean()), error, _kind_of_end(equations, turn[0], beyond, error))
    assert found is not None
    return found


def _not_found(name: str, limits: Range) -> NoThresholdError:
    return NoThresholdError(
        f"alpha_range must have the {name} branch in it; got {limits}, and no {name} solution was found", "not found"
    )


def _end(equations: BranchEquations, turn: tuple[Place[Evaluation], float]) -> tuple[float, float]:
    """The alpha of a turn, and its standard error at that place of the curve, with what the search has left."""
    place, left = turn
    size = len(place.scale)
    null = np.linalg.svd(place.slopes[:size] * place.scale).U[:, -1]
    moves = -(null @ place.at.rows[:size]) / (null @ equations.parameter_slope(place.at))
    return place.at.alpha * (1 + float(moves.mean())), float(np.hypot(place.at.alpha * standard_error(moves), left))


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
    seed: Seed = 0,
    time_limit: float = 120.0,
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
        start: where the search begins; where the branch is not there, at the first multiple in the range where it is.
        alpha_range: (low, high), 0 < low < high: where to search.
        accuracy: largest standard error.
        seed: whole number or NumPy Generator; fixes the nodes.
        time_limit: seconds of CPU time after which the search gives up.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        NoThresholdError: the branch is a minimum to the end of the range, or to its own end (`winner` is its name); or
            neither it nor a minimum on it was found ("not found").
        ConvergenceError: as in `critical_alpha`.
    """
    asked = _Asked.of(task, alpha_range, accuracy, seed, time_limit)
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
    with asked.in_time():
        equations = BranchEquations(Branch(task, name, asked.clock), _SEARCH, asked.seeds[0], follow=0.3)
        root = _first_root(equations, start, asked.limits)
        if root is None:
            raise _not_found(name, asked.limits)
        there = root[0].alpha

        def values(lines: _Lines, alpha: float) -> _Values:
            (line,) = lines
            if not _is_there(line, alpha):  # back to where it is
                return np.array([np.inf if alpha < there else -np.inf]), np.nan
            growth, slope = line.growth(lacking)
            return sign * (growth - 1), sign * slope

        try:
            found = _Search((name,), asked).root(task, values, there, asked.limits)
        except (_OutOfRangeError, _NoRootError) as stop:
            is_minimum = stop.sign == -sign
            raise NoThresholdError(
                f"alpha_range must have in it where the {name} branch ceases to be a minimum; got {asked.limits}, and "
                f"from alpha = {there:.4g} to {stop.alpha:.4g}, where it or the range ends, it is "
                f"{'one' if is_minimum else 'none'}",
                name if is_minimum else "not found",
            ) from None
        return asked.accurate(Threshold(found.alpha, found.error, "exchange"))


_Turn = tuple[list[Evaluation], tuple[Place[Evaluation], float], Iterator[Place[Evaluation]]]
"""Roots on the way to where alpha turns back along a branch, the place where it does, by how much alpha may still
differ from that of the turn itself, and the places beyond."""


def _turn_with_enough_nodes(
    equations: BranchEquations, root: Root, direction: float, asked: _Asked
) -> tuple[BranchEquations, *_Turn]:
    """The turn, and the equations with which it was found: with more nodes where the branch is lost on the way.

    Few nodes make the curve rough, most so near its end.
    """
    try:
        return equations, *_turn(equations, root, direction, asked.limits, asked.accuracy)
    except ConvergenceError:
        if equations.log2_nodes >= _THOROUGH:
            raise
    finer = BranchEquations(equations.branch, min(equations.log2_nodes + 2, _THOROUGH), equations.seed, follow=0.3)
    return _turn_with_enough_nodes(finer, _nearest_root(finer, [root[0]], asked.limits), direction, asked)


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
) -> tuple[Place[Evaluation], float]:
    """The place between two where the tangent has no component along alpha: by false position along the curve.

    And by how much alpha may change to the turn itself.
    """
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
        left_over = abs(place.tangent[size]) * (b - a) * place.at.alpha
        if left_over < accuracy / 10:
            return place, float(left_over)
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


def _nearest_root(equations: BranchEquations, way: list[Evaluation], limits: Range) -> Root:
    """The root with other nodes, close to the end of a way where there is one."""
    for place in reversed(way):
        found = root_near(equations, equations.evaluate(place.x, place.parameter))
        if found is not None:
            return found
    found = _first_root(equations, way[0].alpha, limits)
    if found is None:
        raise ConvergenceError(
            f"the {equations.branch.name} branch was not found again with {equations.n_nodes} nodes",
            last=None,
            residual=np.inf,
        )
    return found


def _first_root(equations: BranchEquations, alpha: float, limits: Range) -> Root | None:
    """A root of the branch from a guess, at alpha or the first multiple of it in the range where there is one."""
    places = (factor * alpha for factor in (1.0, *ELSEWHERE))
    inside = (place for place in places if limits[0] <= place <= limits[1])
    return next(filter(None, (root_from_guess(equations, place) for place in inside)), None)


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
