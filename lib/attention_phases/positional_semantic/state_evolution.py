"""State evolution: what the minimum of the empirical risk is like as d grows, with n = alpha d samples.

The equations are in `averages`, their unknowns on each branch of solutions in `branches`, the ways to solve them and to
follow a branch in `continuation`. A fixed point is searched with few nodes, and corrected with as many as the accuracy
takes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Complex, Float

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.estimates import standard_error
from attention_phases.positional_semantic.averages import (
    Overlaps,
    Point,
    free_energy,
    model,
    next_point,
    residual,
)
from attention_phases.positional_semantic.branches import BRANCHES, Branch, BranchEquations, Evaluation
from attention_phases.positional_semantic.continuation import Place, jacobian, newton, turning_point, walk
from attention_phases.positional_semantic.proximal import response
from attention_phases.positional_semantic.teacher_student import Seed, Task

BranchName = Literal["semantic", "positional", "mixed", "uninformed"]

_ROUGH = 1e-3  # relative accuracy of roots while a branch is searched and followed
_GAIN, _GAIN_WITH_JUMPS = 1.6, 1.3  # errors shrink at least by about so many powers of two with twice the nodes
_FEW_JUMPS = 3e-3  # density of jumps, in units of the inverse width of the fields, that does not harm averages
_SEARCH = 11  # log2 of the number of nodes with which a branch is searched and followed
_ROUGHEST = 9  # the same, for the first steps from a guess
_THOROUGH = 14  # the same, where fewer leave it open whether the branch exists
_MOST_THOROUGH = 17  # the same, where a branch is lost
_FINEST = 21
# times alpha: where a branch is searched that does not come out at alpha itself, to be followed from there
ELSEWHERE = (1.25, 0.8, 2.0, 0.5, 4.0, 0.25, 8.0, 1 / 8, 32.0, 1 / 32, 128.0, 1 / 128)


@one_thread
def state_evolution_step(
    task: Task, alpha: float, overlaps: Overlaps, *, log2_nodes: int = 16, seed: Seed = 0
) -> Overlaps:
    """One application of the map, undamped, with about 2^log2_nodes nodes.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    if not isinstance(task, Task):
        raise ValueError(f"task must be a Task; got {_checks.shown(task)}")
    alpha = _checks.real("alpha", alpha, 0, open_low=True)
    log2_nodes = _checks.integer("log2_nodes", log2_nodes, 8, _FINEST)
    seed = _checks.seed(seed)
    point = Point.of(task, overlaps)
    response(point.V, task.student_rank)
    averages = model(task, log2_nodes, seed).averages(point)
    return next_point(task, alpha, averages).public()


@one_thread
def map_eigenvalues(
    task: Task, alpha: float, overlaps: Overlaps, *, log2_nodes: int = 14, seed: Seed = 0
) -> Complex[np.ndarray[tuple[Any, ...], np.dtype[np.complex128]], " k"]:
    """Eigenvalues of the map's derivative at one point, largest modulus first, in all its order parameters.

    Where they belong to a fixed point and some modulus exceeds 1, undamped iteration leaves it; one that passes through
    1 as alpha changes marks the end of the branch. Differences of 1 %, 2^log2_nodes nodes: good to a per cent.

    Raises:
        ValueError: names the argument, what it must be and what it got.
    """
    _checks.instance("task", task, Task)
    seed = _checks.seed(seed)
    point = Point.of(task, overlaps)
    upper = np.triu_indices(task.student_rank)

    def flat(place: Point) -> Array:
        return np.concatenate([place.q[upper], place.m, place.V[upper], place.theta.ravel()])

    def shaped(values: Array) -> Overlaps:
        split = np.cumsum([len(upper[0]), len(point.m), len(upper[0])])
        q, m, V, theta = np.split(values, split)
        full = [np.zeros_like(point.q), np.zeros_like(point.V)]
        for matrix, entries in zip(full, (q, V), strict=True):
            matrix[upper] = entries
            matrix.T[upper] = entries
        return Point(full[0], m, full[1], theta.reshape(point.theta.shape)).public()

    here = flat(point)
    root = float(np.sqrt(np.trace(point.q)))
    size = Point(
        np.full_like(point.q, root**2),
        np.full_like(point.m, root / task.sigma),
        np.full_like(point.V, np.trace(point.V)),
        np.full_like(point.theta, root * task.sigma),
    )
    columns = []
    for index, step in enumerate(0.01 * flat(size)):
        ends = []
        for sign in (1, -1):
            shifted = here.copy()
            shifted[index] += sign * step
            moved = state_evolution_step(task, alpha, shaped(shifted), log2_nodes=log2_nodes, seed=seed)
            ends.append(flat(Point.of(task, moved)))
        columns.append((ends[0] - ends[1]) / (2 * step))
    values = np.linalg.eigvals(np.stack(columns, axis=1))
    return np.asarray(values[np.argsort(-np.abs(values))], dtype=np.complex128)


class NoSuchPointError(ConvergenceError):
    """The branch was followed towards the alpha that was asked for, and ends before. `last`: the last Overlaps on it.

    Attributes:
        alpha: where it ends.
        reason: "fold" (it turns back there, and the Jacobian is singular) or "vanishes" (its overlaps go to zero).
    """

    def __init__(self, message: str, last: Any, residual: float, alpha: float, reason: str) -> None:
        super().__init__(message, last, residual)
        self.alpha = alpha
        self.reason = reason


class NotFoundError(ConvergenceError):
    """No solution of the branch was found, neither at the alpha that was asked for nor at any multiple of it."""


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """A solution of state evolution. Floats where r = t = 1, else arrays shaped as in `Overlaps`.

    Attributes:
        task, alpha, branch: what was solved.
        q, m, V, theta: the order parameters. What vanishes by the branch's symmetry is exactly zero.
        train_loss: epsilon_t = alpha E ell(h*) + lambda tr q/(2 sigma^2).
        test_error: epsilon_g = E ell(w).
        free_energy: the variational formula of epsilon_t (module docstring): the same number by another road.
        marginal_cost: E M, of the minimised objective of one more sample: the derivative of epsilon_t in alpha.
        standard_error: by name, of the numbers above and of jump_density: how far the value may be from that of exact
            averages, from the scatter of independent randomisations of the nodes. Of errors of the replica-symmetric
            theory it knows nothing.
        residual: the largest relative change of an order parameter under one more step of the map, undamped.
        converged: whether the equations hold at these nodes to a twentieth of the accuracy that was asked for.
        jump_density: density of the fields w on the surfaces where h* jumps: the probability that w is within a
            distance epsilon of one is ``2 epsilon jump_density`` for small epsilon.
        pointwise_replicon: alpha times the spectral radius of ``X -> V E[sum_ll' J_ll' X J_ll'^T] V``, with
            J_ll' = dg_l/dw_l', over the nodes, none of which is on a jump.
        replicon: the same for the exact average, which is infinite where h* jumps (the square of a step's derivative):
            here where jump_density exceeds three of its standard errors. Below 1 replica symmetry is stable.
        n_nodes, n_evaluations: how many nodes, and how many evaluations of the map with however many nodes.
    """

    task: Task
    alpha: float
    branch: str
    q: float | Array
    m: float | Array
    V: float | Array
    theta: float | Array
    train_loss: float
    test_error: float
    free_energy: float
    marginal_cost: float
    standard_error: dict[str, Any]
    residual: float
    converged: bool
    jump_density: float
    pointwise_replicon: float
    replicon: float
    n_nodes: int
    n_evaluations: int

    @property
    def overlaps(self) -> Overlaps:
        """The order parameters alone, as `state_evolution_step` takes them."""
        return Overlaps(self.q, self.m, self.V, self.theta)


@one_thread
def solve_state_evolution(
    task: Task,
    alpha: float,
    branch: BranchName = "semantic",
    start: FixedPoint | Overlaps | None = None,
    *,
    accuracy: float = 2e-3,
    seed: Seed = 0,
    must_converge: bool = True,
) -> FixedPoint:
    """A fixed point of state evolution on one branch.

    Branches: "semantic" (theta != 0 = m), "positional" (m != 0 = theta), "uninformed" (both 0), "mixed" (for r > 1 the
    first columns are aligned with the teacher and the next one with the positions; for r = 1 the one column with both,
    and the point is no minimum but the pass between the semantic and the positional valley).
    theta and m are then non-negative where their sign is free, theta is diagonal, q and V are diagonal.

    The root is found by Newton's method, with few nodes first and then with as many as the accuracy takes. Where it
    does not come out on the branch that was asked for, the branch is followed in alpha from where it does.

    Args:
        task: what is learned from what.
        alpha: n/d, > 0.
        branch: its name.
        start: a point nearby, such as the solution at another alpha.
        accuracy: largest relative standard error of order parameters (those that do not vanish) and of both errors.
        seed: whole number or NumPy Generator; fixes the nodes.
        must_converge: whether to raise where the equations are not solved, or to return with ``converged=False``.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        NoSuchPointError: the branch does not reach this alpha; it was followed to where it ends.
        ConvergenceError: no solution was found, and that there is none was not shown (`last` is None); or the accuracy
            was not reached with 2^21 nodes (`last` is the FixedPoint, `residual` its residual).
    """
    if not isinstance(task, Task):
        raise ValueError(f"task must be a Task; got {_checks.shown(task)}")
    alpha = _checks.real("alpha", alpha, 0, open_low=True)
    name = _checks.choice("branch", branch, BRANCHES)
    accuracy = _checks.real("accuracy", accuracy, 1e-6, 0.1)
    seed = _checks.seed(seed)
    equations = BranchEquations(Branch(task, name), _SEARCH, seed, follow=0.5)
    if start is None:
        found = find_root(equations, alpha)
    else:
        overlaps = start.overlaps if isinstance(start, FixedPoint) else start
        x = equations.branch.unknowns(Point.of(task, overlaps))
        found = root_near(equations, equations.evaluate(x, np.log(alpha))) or find_root(equations, alpha)
    return _refine(equations, found, alpha, accuracy, must_converge)


Root = tuple[Evaluation, Float[Array, "k+1 k"]]
"""A root of the equations with few nodes, and the Jacobian there."""


def root_near(equations: BranchEquations, at: Evaluation) -> Root | None:
    """The root that Newton's method comes to, if it is on this branch.

    It is not on its continuation beyond a fold, nor are its overlaps noise.
    """
    branch = equations.branch
    root, _, converged = newton(equations, at, jacobian(equations, at), 2 * _ROUGH)
    if not (converged and branch.exists(root.x)):
        return None
    slopes = jacobian(equations, root)
    sign = np.sign(np.linalg.det(slopes[: branch.size]))
    return (root, slopes) if sign == branch.orientation else None


def root_from_guess(equations: BranchEquations, alpha: float) -> Root | None:
    """A root of this branch from the guess, after a few steps that bring the unknowns to their scales."""
    branch = equations.branch
    rough = BranchEquations(branch, _ROUGHEST, equations.seed, follow=0.5)
    x = branch.guess(alpha)
    for _ in range(5):
        x = branch.relaxed(x, rough.evaluate(x, np.log(alpha)).values[: branch.size])
    equations.n_evaluations += rough.n_evaluations
    return root_near(equations, equations.evaluate(x, np.log(alpha)))


def find_root(equations: BranchEquations, alpha: float) -> Root:
    """The branch at this alpha: directly, or followed from another alpha."""
    found = root_from_guess(equations, alpha)
    if found is not None:
        return found
    ends: dict[bool, NoSuchPointError] = {}  # of the piece above this alpha, and of the piece below
    for factor in ELSEWHERE:
        if (factor > 1) in ends:
            continue
        found = root_from_guess(equations, factor * alpha)
        if found is None:
            continue
        try:
            return follow_branch(equations, found, alpha)
        except NoSuchPointError as error:
            ends[factor > 1] = error
    if ends:
        raise next(iter(ends.values()))
    raise NotFoundError(
        f"no {equations.branch.name} solution was found at alpha = {alpha:g}, nor from alpha/128 to 128 alpha",
        last=None,
        residual=np.inf,
    )


def follow_branch(coarse: BranchEquations, start: Root, alpha: float) -> Root:
    """Follow a branch from a root to another alpha.

    Raises:
        NoSuchPointError: it turns back before, or its overlaps have become noise around zero.
        ConvergenceError: it was lost on the way.
    """
    branch = coarse.branch
    equations = BranchEquations(branch, coarse.log2_nodes, coarse.seed, follow=0.3)
    target, first = np.log(alpha), start[0].alpha
    way = [start]
    places = walk(equations, *start, np.sign(target - start[0].parameter), _ROUGH)
    for before, after in places:
        if (after.at.parameter - target) * (before.at.parameter - target) <= 0:
            nearer = min(before, after, key=lambda place: abs(place.at.parameter - target))
            at, slopes, converged = newton(equations, equations.evaluate(nearer.at.x, target), nearer.slopes, _ROUGH)
            if converged and branch.exists(at.x):
                return at, slopes
            if converged:
                way.append((at, slopes))
            break
        if after.direction != before.direction:
            end = _end(branch, before, after, places, first, alpha)
            return _follow_with_more_nodes(equations, way, alpha, end)
        way.append((after.at, after.slopes))
    noise = next((place for place, _ in way if not branch.exists(place.x)), None)
    if noise is not None:
        end = _no_such_point(branch, noise, first, alpha, noise.alpha, "vanishes")
        return _follow_with_more_nodes(equations, way, alpha, end)
    lost = ConvergenceError(
        f"the {branch.name} branch could not be followed from alpha = {first:g} to {alpha:g}; "
        "whether it exists there is not known",
        last=None,
        residual=np.inf,
    )
    return _follow_with_more_nodes(equations, way, alpha, lost)


def _follow_with_more_nodes(
    equations: BranchEquations, way: list[Root], alpha: float, failure: ConvergenceError
) -> Root:
    """Follow the last part of a branch again, or raise the failure.

    Few nodes put the end of a branch a few per cent off, and lose it where it hardly depends on its overlap.
    """
    finer = _THOROUGH if equations.log2_nodes < _THOROUGH else _MOST_THOROUGH
    located = isinstance(failure, NoSuchPointError) and equations.log2_nodes >= _THOROUGH
    if located or equations.log2_nodes >= finer:
        raise failure
    again = BranchEquations(equations.branch, finer, equations.seed, follow=0.3)
    for place, slopes in reversed(way[-4:]):
        at, _, converged = newton(again, again.evaluate(place.x, place.parameter), slopes, _ROUGH)
        if converged and again.branch.exists(at.x):
            return follow_branch(again, (at, jacobian(again, at)), alpha)
    raise failure


def _end(
    branch: Branch,
    before: Place[Evaluation],
    after: Place[Evaluation],
    beyond: Iterator[tuple[Place[Evaluation], Place[Evaluation]]],
    first: float,
    alpha: float,
) -> NoSuchPointError:
    """The error that says where and how a branch ends: where it turns back, at a fold unless its overlaps vanish there.

    Where they vanish it goes on with their signs changed, at nearly the same alpha.
    """
    turn = turning_point(before, after)
    reason, later = "fold", after
    for _ in range(4):
        if abs(later.at.parameter - turn) > 0.05:
            break
        if (branch.cosines(later.at.x) < 0).any():
            reason = "vanishes"
            break
        _, later = next(beyond, (after, after))
    return _no_such_point(branch, before.at, first, alpha, float(np.exp(turn)), reason)


def _no_such_point(
    branch: Branch, last: Evaluation, first: float, alpha: float, end: float, reason: str
) -> NoSuchPointError:
    return NoSuchPointError(
        f"the {branch.name} branch does not exist at alpha = {alpha:g}: followed from "
        f"alpha = {first:.4g}, it ends at about {end:.4g} ({reason})",
        last=branch.point(last.x).public(),
        residual=float(np.abs(last.values[: branch.size]).max()),
        alpha=end,
        reason=reason,
    )


def _refine(equations: BranchEquations, found: Root, alpha: float, accuracy: float, must_converge: bool) -> FixedPoint:
    """The root with as many nodes as the accuracy takes: more by what the errors so far suggest, until it is enough.

    Near its end a branch may come to this alpha with few nodes and not with many: it is then searched with more.
    """
    search, branch, n_evaluations = equations, equations.branch, equations.n_evaluations
    at, slopes = found
    if at.averages.proximal.objective.shape[-1] != equations.n_nodes:  # it was found with more nodes
        at = equations.evaluate(at.x, at.parameter)
    test_slope = equations.test_loss_slope(at.x)
    worst = _worst(*_errors(equations, at, slopes, test_slope))
    log2_nodes = equations.log2_nodes
    while True:
        width = np.sqrt(np.trace(branch.point(at.x).q))  # of the fields
        jumps = bool(equations.jump_density(at).mean() * width > _FEW_JUMPS)
        gain = _GAIN_WITH_JUMPS if jumps else _GAIN
        more = max(1, math.ceil(float(np.log2(worst / accuracy)) / gain))
        if log2_nodes + more > _FINEST and log2_nodes > search.log2_nodes:
            break  # out of reach
        log2_nodes = min(log2_nodes + more, _FINEST)
        start = at.x
        for smooth in (False, True) if not jumps else (True,):  # a mixture with jumps may be too rough for a root
            equations = BranchEquations(branch, log2_nodes, search.seed, smooth=smooth)
            at, slopes, converged = newton(equations, equations.evaluate(start, at.parameter), slopes, accuracy / 20)
            n_evaluations += equations.n_evaluations
            if converged:
                break
        if not (converged and branch.exists(at.x)) and search.log2_nodes < _THOROUGH:
            search = BranchEquations(branch, search.log2_nodes + 3, search.seed, follow=0.5)
            return _refine(search, find_root(search, alpha), alpha, accuracy, must_converge)
        values, errors = _errors(equations, at, slopes, test_slope)
        worst = _worst(values, errors)
        if not converged or worst <= accuracy or log2_nodes >= _FINEST:
            break
    point = _fixed_point(equations, at, slopes, alpha, values, errors, converged, n_evaluations)
    if must_converge and not (converged and worst <= accuracy):
        what = f"relative standard error {worst:.2g}" if converged else f"residual {point.residual:.2g}"
        raise ConvergenceError(
            f"the {branch.name} solution at alpha = {alpha:g} did not reach accuracy {accuracy:g}: {what} "
            f"with {point.n_nodes} nodes",
            last=point,
            residual=point.residual,
        )
    return point


def _jumps(density: Float[Array, " R"]) -> bool:
    """Whether this density of jumps is more than noise."""
    return bool(density.mean() > 3 * standard_error(density))


def _errors(
    equations: BranchEquations, at: Evaluation, slopes: Float[Array, "k+1 k"], test_slope: Float[Array, " k"]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values and standard errors of what was solved for, by name."""
    branch, task, size = equations.branch, equations.branch.task, equations.branch.size
    point, penalty = branch.point(at.x), task.regularization / (2 * task.sigma**2)
    test_loss = equations.test_loss(at.x)
    dx, deviations = _shifts(at, slopes)
    shifted = [branch.point(at.x + column) for column in dx.T]
    values: dict[str, Any] = {name: getattr(point, name) for name in ("q", "m", "V", "theta")}
    errors: dict[str, Any] = {
        name: standard_error(np.stack([getattr(other, name) for other in shifted], axis=-1)) for name in values
    }
    trace_q = np.array([np.trace(other.q) for other in shifted])
    values["train_loss"] = float(at.values[size] + penalty * np.trace(point.q))
    errors["train_loss"] = float(standard_error(deviations[size] + slopes[size] @ dx + penalty * trace_q))
    values["test_error"] = float(test_loss.mean())
    errors["test_error"] = float(standard_error(test_loss + test_slope @ dx))
    return values, errors


def _shifts(at: Evaluation, slopes: Float[Array, "k+1 k"]) -> tuple[Float[Array, "k R"], Float[Array, "k+1 R"]]:
    """To first order, from the root to those that the nodes of one randomisation alone would give; and what moves it.

    Those are the deviations of the equations, and of alpha E ell(h*), from their means.
    """
    deviations = at.rows - at.values[:, None]
    return -np.asarray(np.linalg.solve(slopes[:-1], deviations[:-1])), deviations


def _marginal_cost(branch: Branch, at: Evaluation, slopes: Float[Array, "k+1 k"]) -> Float[Array, " R"]:
    """E M = E ell(h*) + tr V q^/(2 alpha) by each randomisation, at its own root, where q^ = V^-1 Delta V^-1."""
    dx, deviations = _shifts(at, slopes)
    loss = at.values[-1] + deviations[-1] + slopes[-1] @ dx
    r = branch.task.student_rank
    log_ratio = (at.x[:, None] + dx)[: 2 * r].reshape(2, r, -1)  # of Delta and V
    return np.asarray((loss + np.exp(log_ratio[0] - log_ratio[1]).sum(axis=0) / 2) / at.alpha)


def _worst(values: dict[str, Any], errors: dict[str, Any]) -> float:
    """The largest relative standard error of what does not vanish."""
    worst = 0.0
    for name, value in values.items():
        value, error = np.atleast_1d(value), np.atleast_1d(errors[name])
        some = value != 0
        worst = max(worst, float((error[some] / np.abs(value[some])).max(initial=0)))
    return worst


def _fixed_point(
    equations: BranchEquations,
    at: Evaluation,
    slopes: Float[Array, "k+1 k"],
    alpha: float,
    values: dict[str, Any],
    errors: dict[str, Any],
    converged: bool,
    n_evaluations: int,
) -> FixedPoint:
    branch, task = equations.branch, equations.branch.task
    point = branch.point(at.x)
    density = equations.jump_density(at)
    replicon = equations.pointwise_replicon(at)
    marginal_cost = _marginal_cost(branch, at, slopes)
    errors["marginal_cost"] = float(standard_error(marginal_cost))
    errors["free_energy"] = float(standard_error(alpha * at.averages.envelope))
    errors["jump_density"] = float(standard_error(density))
    if task.student_rank == task.teacher_rank == 1:
        errors |= {name: float(errors[name].item()) for name in ("q", "m", "V", "theta")}
    public = point.public()
    return FixedPoint(
        task=task,
        alpha=alpha,
        branch=branch.name,
        q=public.q,
        m=public.m,
        V=public.V,
        theta=public.theta,
        train_loss=values["train_loss"],
        test_error=values["test_error"],
        free_energy=free_energy(task, alpha, point, at.averages),
        marginal_cost=float(marginal_cost.mean()),
        standard_error=errors,
        residual=residual(task, alpha, point, at.averages),
        converged=converged,
        jump_density=float(density.mean()),
        pointwise_replicon=replicon,
        replicon=np.inf if _jumps(density) else replicon,
        n_nodes=equations.n_nodes,
        n_evaluations=n_evaluations,
    )
