"""The thresholds in alpha = n/d at which a branch ends, and those at which it ceases to be a minimum.

A branch ends where it turns back along alpha, or where its overlaps vanish (`spinodal_alpha`). It ceases to be a
minimum where the map's derivative along an overlap that it lacks passes through 1 (`stability_alpha`).
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.estimates import standard_error
from attention_phases.positional_semantic.branches import (
    BRANCHES,
    Branch,
    BranchEquations,
    Evaluation,
    OutOfTimeError,
)
from attention_phases.positional_semantic.continuation import Place, along, walk
from attention_phases.positional_semantic.state_evolution import (
    ELSEWHERE,
    BranchName,
    NoSuchPointError,
    NotFoundError,
    Root,
    root_from_guess,
    root_near,
)
from attention_phases.positional_semantic.teacher_student import Seed, Task
from attention_phases.positional_semantic.threshold_search import (
    FINEST,
    MOST_STEPS,
    SEARCHES,
    Line,
    NoRootError,
    OutOfRangeError,
    more_nodes,
)
from attention_phases.positional_semantic.thresholds import CLEAR, Asked, NoThresholdError, Range, Threshold

End = Literal["lower", "upper"]

_CAREFUL = 14  # log2 of the number of nodes with which a minimum is told from a pass, and an end is first looked for
_THOROUGH = 16  # the same, where a branch is lost on the way to its end or has none
_STEP = 0.1  # longest, on the way to the end of a branch: its pieces may be as close as this in log alpha
_ROUGH = 1e-3  # relative accuracy of order parameters: the training loss has its square
_STRIDE = 0.1  # first step, in log alpha, of a search for where a branch ceases to be a minimum
_SHORTEST = 0.002  # the same, of the last one before the branch's own end
_CHORD = 0.05  # in log alpha: over this the slope is taken there


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
    asked = Asked.of(task, alpha_range, accuracy, seed, time_limit)
    name = _checks.choice("branch", branch, BRANCHES)
    _checks.choice("end", end, ("lower", "upper"))
    start = _checks.real("start", start, 0, open_low=True)
    with asked.in_time():
        return asked.accurate(_spinodal(Branch(task, name, asked.clock), 1.0 if end == "upper" else -1.0, start, asked))


def _spinodal(branch: Branch, direction: float, start: float, asked: Asked) -> Threshold:
    equations = BranchEquations(branch, _CAREFUL, asked.seeds[0], follow=0.3)
    root = _first_root(equations, start, asked.limits)
    if root is None:
        raise _not_found(branch.name, asked.limits)
    equations, way, turn, _ = _turn_with_enough_nodes(equations, root, direction, asked)
    log2_nodes, factor = equations.log2_nodes, _end(equations, turn)[1] / asked.accuracy
    found: Threshold | None = None
    while log2_nodes < FINEST and (found is None or factor > 1):
        log2_nodes = more_nodes(log2_nodes, max(factor, 2.0))
        ends = []
        try:
            for each in asked.seeds:
                equations = BranchEquations(branch, log2_nodes, each, follow=0.3)
                root = _nearest_root(equations, way, asked.limits)
                equations, _, turn, beyond = _turn_with_enough_nodes(equations, root, direction, asked)
                ends.append(_end(equations, turn))
        except OutOfTimeError:
            if found is None:
                raise
            break
        except NoThresholdError:
            ends = []  # with some nodes it goes on
        alphas, errors = np.array(ends).reshape(-1, 2).T
        if not ends or alphas.max() > (1 + _STEP) * alphas.min():  # they join or part pieces of the branch
            found, log2_nodes, factor = None, max(log2_nodes, FINEST - 1), 2.0
            continue
        error = max(float(standard_error(alphas)), float(np.sqrt((errors**2).sum())) / SEARCHES)
        kind = _kind_of_end(equations, turn[0], beyond, error * SEARCHES**0.5)
        found = Threshold(float(alphas.mean()), error, kind)
        factor = error / asked.accuracy
    if found is None:
        raise ConvergenceError(
            f"where the {branch.name} branch ends depends on the nodes, with 2^{FINEST} of them too: "
            "it may have pieces that nearly touch",
            last=None,
            residual=np.inf,
        )
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
        start: where the search begins; where the branch is not there, or no minimum, at the first multiple in the range
            where it is.
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
    asked = Asked.of(task, alpha_range, accuracy, seed, time_limit)
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
        there = _minimum_near(Line(task, name, _CAREFUL, asked.seeds[0], asked.clock), lacking, start, asked.limits)
        try:
            return asked.accurate(_stability(task, name, lacking, -sign, there, asked))
        except (OutOfRangeError, NoRootError) as stop:
            is_minimum = stop.sign < 0
            raise NoThresholdError(
                f"alpha_range must have in it where the {name} branch ceases to be a minimum; got {asked.limits}, and "
                f"from alpha = {there:.4g} to {stop.alpha:.4g}, where it or the range ends, it is "
                f"{'one' if is_minimum else 'none'}",
                name if is_minimum else "not found",
            ) from None


def _stability(task: Task, name: str, lacking: str, direction: int, there: float, asked: Asked) -> Threshold:
    """The mean over sets of nodes of where the branch, a minimum at `there`, ceases to be one.

    A set's own map jumps a little as alpha moves, so its root is bracketed, and the slope is that of a chord.
    """
    log2_nodes, places = _CAREFUL - 1, [there] * SEARCHES
    found: Threshold | None = None
    while log2_nodes <= FINEST and (found is None or found.standard_error > asked.accuracy):
        roots, errors = [], []
        try:
            for seed, place in zip(asked.seeds, places, strict=True):
                new_line = partial(Line, task, name, log2_nodes, seed, asked.clock)
                root, error = _ceases_to_be_minimum(new_line, lacking, direction, there, place, asked)
                roots.append(root)
                errors.append(error)
        except OutOfTimeError:
            if found is None:
                raise
            break
        error = max(float(standard_error(np.array(roots))), float(np.sqrt(np.square(errors).sum())) / SEARCHES)
        found, places = Threshold(float(np.mean(roots)), error, "exchange"), roots
        log2_nodes = more_nodes(log2_nodes, max(error / asked.accuracy, 2.0)) if log2_nodes < FINEST else FINEST + 1
    assert found is not None
    return found


def _ceases_to_be_minimum(
    new_line: Callable[[], Line], lacking: str, direction: int, there: float, near: float, asked: Asked
) -> tuple[float, float]:
    """Where with some nodes the map's derivative along the overlap that the branch lacks is 1; its standard error.

    Args:
        new_line: makes the branch with these nodes.
        lacking: that overlap.
        direction: of alpha, from where the branch is a minimum to where it is none.
        there: an alpha where it is one.
        near: about where it ceases to be one, or `there`, if that is not known.
        asked: range, accuracy.
    """
    line, known = new_line(), dict[float, float]()

    def excess(x: float) -> float:
        nonlocal line
        if x not in known:
            alpha = float(np.exp(x))
            try:
                line.move(alpha)
            except ConvergenceError:  # near the branch's end it is easily lost on the way
                line = new_line()
                line.move(alpha)
            known[x] = float(line.growth(lacking).mean()) - 1
        return known[x]

    low, high = np.log(asked.limits).tolist()
    inside, step = float(np.log(near)), _STRIDE * direction
    while (value := excess(inside)) > 0:  # with these nodes it is none yet
        back = min(max(inside - step, low), high)
        if back == inside or (np.log(there) - inside) * direction > _STRIDE:
            raise NoRootError(float(np.exp(inside)), 1, False)
        inside = back
    outside = inside
    while value <= 0:
        inside, outside = outside, min(max(outside + step, low), high)
        if outside == inside:
            raise OutOfRangeError(float(np.exp(inside)), -1, False)
        try:
            value = excess(outside)
            step *= 1.5
        except (NoSuchPointError, NotFoundError):
            if abs(step) < _SHORTEST:
                raise OutOfRangeError(float(np.exp(inside)), -1, False) from None
            step, outside = step / 2, inside
    root = float(brentq(excess, inside, outside, xtol=asked.accuracy / 20 / np.exp(inside), rtol=1e-12))
    farther = root - _CHORD * direction  # where it is a minimum, so that it is there
    slope = abs(excess(farther) - excess(root)) / _CHORD
    line.move(float(np.exp(root)))
    alpha = float(np.exp(root))
    return alpha, alpha * float(standard_error(line.growth(lacking))) / slope


_Turn = tuple[list[Evaluation], tuple[Place[Evaluation], float], Iterator[Place[Evaluation]]]
"""Roots on the way to where alpha turns back along a branch, the place where it does, by how much alpha may still
differ from that of the turn itself, and the places beyond."""


def _turn_with_enough_nodes(
    equations: BranchEquations, root: Root, direction: float, asked: Asked
) -> tuple[BranchEquations, *_Turn]:
    """The turn, and the equations with which it was found: with more nodes where the branch is lost or has no end.

    Few nodes make the curve rough, most so near its end, and may join pieces of it that are close to each other.
    """
    try:
        return equations, *_turn(equations, root, direction, asked.limits, asked.accuracy)
    except NoThresholdError:
        if equations.log2_nodes >= _THOROUGH:
            raise
        log2_nodes = _THOROUGH
    except ConvergenceError:
        if equations.log2_nodes >= _THOROUGH:
            raise
        log2_nodes = min(equations.log2_nodes + 2, _THOROUGH)
    finer = BranchEquations(equations.branch, log2_nodes, equations.seed, follow=0.3)
    return _turn_with_enough_nodes(finer, _nearest_root(finer, [root[0]], asked.limits), direction, asked)


def _turn(equations: BranchEquations, root: Root, direction: float, limits: Range, accuracy: float) -> _Turn:
    """Follow a branch to where alpha turns back along it."""
    way = [root[0]]
    places = walk(equations, *root, direction, _ROUGH, _STEP)
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
    has changed by more than three standard errors, those of one set of nodes, when the overlaps vanish.
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
    for _ in range(MOST_STEPS):
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
    return next(_roots(equations, alpha, limits), None)


def _roots(equations: BranchEquations, alpha: float, limits: Range) -> Iterator[Root]:
    """Roots of the branch from a guess, at alpha and multiples of it in the range."""
    places = (factor * alpha for factor in (1.0, *ELSEWHERE))
    inside = (place for place in places if limits[0] <= place <= limits[1])
    return filter(None, (root_from_guess(equations, place) for place in inside))


def _minimum_near(line: Line, lacking: str, alpha: float, limits: Range) -> float:
    """Where the branch is clearly a minimum: alpha or the first multiple of it; else where it is at all."""
    name, there = line.equations.branch.name, []
    for root, _ in _roots(line.equations, alpha, limits):
        there.append(root.alpha)
        try:
            line.move(root.alpha)
        except ConvergenceError:
            continue
        growth = line.growth(lacking)
        if growth.mean() + CLEAR * standard_error(growth) < 1:
            return root.alpha
    if not there:
        raise _not_found(name, limits)
    return there[0]
