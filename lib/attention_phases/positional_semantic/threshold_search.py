"""The search for a root in alpha of a difference between branches: for one task after another.

A root is located with few nodes. Then it is that of the mean over several sets of nodes, each with a seed of its own,
and as many as the accuracy takes. The next task begins with what was found for the last two: the thresholds and the
fixed points, extrapolated, and the Jacobians.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from attention_phases._arrays import Array
from attention_phases.errors import ConvergenceError
from attention_phases.estimates import standard_error
from attention_phases.positional_semantic.averages import free_energy, kappa
from attention_phases.positional_semantic.branches import (
    Branch,
    BranchEquations,
    Clock,
    Evaluation,
    OutOfTimeError,
)
from attention_phases.positional_semantic.continuation import newton
from attention_phases.positional_semantic.state_evolution import (
    NoSuchPointError,
    Root,
    find_root,
    follow_branch,
    root_near,
)
from attention_phases.positional_semantic.teacher_student import Task

Range = tuple[float, float]

SEARCH = 11  # log2 of the number of nodes with which a threshold is located
_SEARCH_AGAIN = 14  # the same, where it is not
_LEAST = 12  # the same, of each search that counts
FINEST = 17
SEARCHES = 4  # how many sets of nodes, with seeds of their own, a threshold is averaged over
_GAIN = 1.3  # powers of two by which the error of a threshold shrinks, about, with each doubling of the nodes
_POLISHED = 1e-4  # the same, after a few more steps
_NEAR = 0.01  # in log alpha: closer than this to where both branches are missing, a search ends
_FARTHEST = 0.7  # largest change of log alpha in one step of a search
_SHORT = 0.2  # the same, of one that Newton's method takes with the Jacobian from where it began
_SMALL = 0.1  # by so much of their scale the unknowns may change in its course
MOST_STEPS = 40
_N_STARTS = 7  # where else in the range a search may begin


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


class Line:
    """One branch of a task with fixed nodes, at one alpha after another."""

    def __init__(
        self, task: Task, name: str, log2_nodes: int, seed: int, clock: Clock, guess: _Guess | None = None
    ) -> None:
        follow = 0.3 if log2_nodes == SEARCH else 0.05
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

    def growth(self, overlap: str) -> Float[Array, " R"]:
        """The map's derivative along an overlap that the branch lacks, by each randomisation; t = 1."""
        x, parameter = self.at.x, self.at.parameter
        here = self._growth_at(self.at, overlap)
        slope = np.array(
            [
                (self._growth_at(self.equations.evaluate(x + step, parameter), overlap) - here).mean() / step.sum()
                for step in np.diag(0.01 * self.equations.scale(x))
            ]
        )
        return np.asarray(here + slope @ self._shifts)

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


Values = tuple[Float[Array, " R"], float]
"""A difference that is positive below its root, by each randomisation, and its derivative with respect to alpha.

Infinite where only one side of it exists, NaN where none does."""
Lines = tuple[Line, ...]


class OutOfRangeError(Exception):
    """A search came to an end of its range, or to where neither side of the difference exists.

    Attributes:
        alpha: where.
        sign: of the difference there; 0 where neither side exists.
        rises: whether the difference rises with alpha, where the search has seen it.
    """

    def __init__(self, alpha: float, sign: int, rises: bool) -> None:
        super().__init__(alpha)
        self.alpha, self.sign, self.rises = alpha, sign, rises


class NoRootError(Exception):
    """A difference changes its sign without a root, where one side of it ends; `sign` and `rises` as above."""

    def __init__(self, alpha: float, sign: int, rises: bool) -> None:
        super().__init__(alpha)
        self.alpha, self.sign, self.rises = alpha, sign, rises


@dataclass(frozen=True, eq=False)
class Found:
    """A root of a difference, its standard error, the slope there, and the lines that it was found with."""

    task: Task
    alpha: float
    error: float
    slope: float
    log2_nodes: int
    lines: list[Lines]


class _Trail:
    """Roots that were found for one task after another: where the next search begins."""

    def __init__(self) -> None:
        self._roots: list[Found] = []

    def add(self, found: Found) -> Found:
        """A new root."""
        self._roots = [*self._roots[-1:], found]
        return found

    @property
    def last(self) -> Found | None:
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


def _beyond(line: Line, earlier: Line, ratio: float) -> _Guess | None:
    here, there = line.guess, earlier.guess
    return here.beyond(there, ratio) if here and there else here


class Search:
    """The search for the root of a difference between branches, for one task after another."""

    def __init__(self, names: tuple[str, ...], accuracy: float, seeds: range, clock: Clock) -> None:
        self.names, self.accuracy, self.seeds, self.clock = names, accuracy, seeds, clock
        self._rough, self._accurate = _Trail(), _Trail()

    def rough(self, task: Task, values: Callable[[Lines, float], Values], start: float, limits: Range) -> Found:
        """The root with few nodes. `start` is for the first task."""
        none: list[tuple[_Guess | None, ...]] = [(None,) * len(self.names)]
        last = self._rough.last
        if last is not None and last.task == task:
            return last
        if last is not None:
            start, guesses = self._rough.predicted(task.omega)
            try:
                return self._rough.add(self._with_nodes(task, values, SEARCH, start, limits, guesses))
            except (OutOfRangeError, NoRootError, ConvergenceError):
                self._rough = _Trail()
        try:
            found = self._with_nodes(task, values, SEARCH, start, limits, none)
        except NoRootError:  # or few nodes make the curve so rough that it jumps
            found = self._with_nodes(task, values, _SEARCH_AGAIN, start, limits, none)
        return self._rough.add(found)

    def root(self, task: Task, values: Callable[[Lines, float], Values], start: float, limits: Range) -> Found:
        """The root with as many nodes as the accuracy takes."""
        last = self._accurate.last
        if last is not None:
            start, guesses = self._accurate.predicted(task.omega)
            spare = np.log2(self.accuracy / max(last.error, 1e-300)) / _GAIN
            log2_nodes = max(last.log2_nodes - max(int(spare), 0), _LEAST)
            try:
                return self._accurate.add(self._refined(task, values, log2_nodes, start, limits, guesses))
            except (OutOfRangeError, NoRootError, ConvergenceError):
                self._accurate = _Trail()
        rough = self.rough(task, values, start, limits)
        wanted = rough.error / (self.accuracy * np.sqrt(SEARCHES))
        log2_nodes = max(more_nodes(rough.log2_nodes, wanted), _LEAST)
        guesses = [tuple(line.guess for line in rough.lines[0])] * SEARCHES
        try:
            return self._accurate.add(self._refined(task, values, log2_nodes, rough.alpha, limits, guesses))
        except OutOfTimeError:
            if rough.error > _SMALL * rough.alpha:  # it may not be there at all
                raise
            return rough

    def _refined(
        self,
        task: Task,
        values: Callable[[Lines, float], Values],
        log2_nodes: int,
        start: float,
        limits: Range,
        guesses: list[tuple[_Guess | None, ...]],
    ) -> Found:
        """The root with these nodes, and then with more until they are enough."""
        found = self._with_nodes(task, values, log2_nodes, start, limits, guesses)
        while found.error > self.accuracy and log2_nodes < FINEST:
            log2_nodes = more_nodes(log2_nodes, found.error / self.accuracy)
            guesses = [tuple(line.guess for line in lines) for lines in found.lines]
            try:
                found = self._with_nodes(task, values, log2_nodes, found.alpha, limits, guesses)
            except OutOfTimeError:
                break
        return found

    def _with_nodes(
        self,
        task: Task,
        values: Callable[[Lines, float], Values],
        log2_nodes: int,
        start: float,
        limits: Range,
        guesses: list[tuple[_Guess | None, ...]],
    ) -> Found:
        """The root of the mean over as many sets of nodes as there are guesses."""
        lines = [
            tuple(
                Line(task, name, log2_nodes, seed, self.clock, guess)
                for name, guess in zip(self.names, each, strict=True)
            )
            for seed, each in zip(self.seeds, guesses, strict=False)
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

        tolerance = self.accuracy / 3 if len(guesses) == 1 else 0.0
        n_starts = _N_STARTS if guesses[0][0] is None else 0
        return Found(task, *root_between(difference, start, limits, tolerance, n_starts), log2_nodes, lines)


def more_nodes(log2_nodes: int, factor: float) -> int:
    """How many nodes an error takes that is smaller by this factor."""
    return min(log2_nodes + max(1, round(float(np.log2(factor)) / _GAIN + 0.3)), FINEST)


def _error(rows: list[Float[Array, " R"]]) -> float:
    """Standard error of the mean over independent sets of nodes.

    From the scatter of the randomisations in each set, or of the sets, if that is larger: then the root of a set is
    off by more than is linear in the averages.
    """
    within = float(np.sqrt(sum(standard_error(row) ** 2 for row in rows))) / len(rows)
    between = float(standard_error(np.array([row.mean() for row in rows]))) if len(rows) > 1 else 0.0
    return max(within, between)


def root_between(
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
    for _ in range(MOST_STEPS):
        rows, slope = difference(float(np.exp(x)))
        alpha, value = float(np.exp(x)), float(np.mean([row.mean() for row in rows]))
        if np.isnan(value) and np.isnan(last) and elsewhere:  # neither side of it exists at the start
            x = elsewhere.pop(0)
            continue
        if np.isnan(value):  # the same on the way: go half of it back
            if np.isnan(last) or abs(x - last) < _NEAR:
                raise OutOfRangeError(alpha, 0, n_rises > 0)
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
                raise OutOfRangeError(alpha, 0, n_rises > 0)
        if new == x:
            raise OutOfRangeError(alpha, 1 if value > 0 else -1, n_rises > 0)
        if (above - below) * alpha < _NEAR / 10:
            raise NoRootError(alpha, sign, n_rises > 0)
        x = new
    raise ConvergenceError(
        f"the threshold was not found in {MOST_STEPS} steps; the last alpha was {np.exp(x):g}",
        last=None,
        residual=np.inf,
    )
