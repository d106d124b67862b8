"""Generalised approximate message passing for the empirical risk.

Cui, Behrens, Krzakala, Zdeborova, NeurIPS 2024 (arXiv 2402.03902), appendix A, with the tokens of a sample read as L
rows of one (n L, d) matrix X = (x + p). With Q the current student, one iteration is

    w = X Q/sqrt(d) - g V                     local fields, less what g itself has put into Q (the Onsager term)
    g = V^-1 (prox(w; V) - w)                 sample by sample (`proximal_map`)
    A = -(sigma^2/d) sum_mu,l dg_l/dw_l,      V = sigma^2 (lambda + A)^-1
    Q = (X^T g/sqrt(d) + Q A)(lambda + A)^-1.

The per-sample loss uses the sample's own Gram matrices, so a fixed point has ``h* = X Q/sqrt(d)``,
``g = -grad ell(h*)`` and ``lambda Q = X^T g/sqrt(d)``: it is a stationary point of the risk exactly, whatever A and V
are. As d grows, the overlaps follow state evolution, undamped if the iteration is. Where the proximal map jumps they do
so only nearly: A has the derivative of g beside the jumps, V^ of state evolution has the jumps too.

Three things stand between this recursion and its fixed points.

*Damping.* Along 1_d the map has an eigenvalue of -4 to -7 on the positional branch. Each update is therefore taken for
a fraction only. By default the fraction adapts: it grows while successive updates point the same way, and shrinks when
they turn back.

*Jumps.* Where the proximal map jumps, some samples lie so close to the jump that each change of minimum moves w back
across it, and they would change to and fro for ever. So, once the overlaps have settled, each sample's minimum is
followed from the iteration before, and no longer searched: it stays in its basin for as long as that has a minimum.
The fixed point may then have samples that are not at the global minimum of their proximal objective;
`GampRun.n_higher` counts them.

*V.* From then on A and V are held as they are: fixed points do not depend on them. A sample of which no minimum at this
V is consistent with the others' response to it goes on changing between its minima as they vanish. The smaller V, the
fewer of these there are, and as V goes to 0 the iteration becomes gradient descent. So V is lowered by a fifth whenever
samples still change and the residual has not halved within 50 iterations; as small V is slow, that number then grows
as 1/V.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from attention_phases import _checks
from attention_phases._arrays import Array
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.empirical_risk import EmpiricalRisk
from attention_phases.positional_semantic.minimization import Start, starting_query
from attention_phases.positional_semantic.proximal import ProximalPoint, proximal_map
from attention_phases.positional_semantic.teacher_student import Dataset, Seed, order_parameters

_FIRST_STEP = 0.1  # fraction of an update that is taken at the start, where it adapts
_SHORTEST_STEP = 0.01
_LOWERING = 0.8  # of V
_PATIENCE = 50  # iterations in which the residual should have halved, before V is lowered for the first time
_APART = 0.1  # a sample that moves by more than this (relative) has gone to another minimum
_EVERY = 10  # iterations between gradients of the risk


@dataclass(frozen=True, eq=False)
class GampOverlaps:
    """Order parameters, one entry an iteration; the first entry is the start.

    Attributes:
        q, m, V, theta: (T,) where r = t = 1, else (T, r, r), (T, r), (T, r, r), (T, r, t). V is the one in use.
    """

    q: Array
    m: Array
    V: Array
    theta: Array


@dataclass(frozen=True, eq=False)
class GampRun:
    """What an iteration of GAMP came to.

    Attributes:
        query: Q, (d, r).
        overlaps: on the way.
        train_loss: R(Q)/d.
        converged: whether residual is at most the tolerance that was asked for.
        residual: ``|grad R|/(|X^T g|/sqrt(d) + lambda |Q|)`` at Q, the gradient_norm of `minimize_risk`.
        n_iterations: how many were made.
        settled_at: the iteration from which minima were followed and V was held; None where it did not come to that.
        n_higher: how many samples have another minimum of their proximal objective below h*, at the V of settled_at
            and at ``w = h* - g V``; None where the run has not converged.
    """

    query: Float[Array, "d r"]
    overlaps: GampOverlaps
    train_loss: float
    converged: bool
    residual: float
    n_iterations: int
    settled_at: int | None
    n_higher: int | None


class _State(NamedTuple):
    query: Float[Array, "d r"]
    residual: Float[Array, "L r n"]  # g
    precision: Float[Array, "r r"]  # A


class _DivergedError(Exception):
    """What went wrong."""


@one_thread
def gamp(
    dataset: Dataset,
    start: Start | ArrayLike = "semantic",
    damping: float | None = None,
    *,
    response: ArrayLike | None = None,
    settled: float = 0.01,
    seed: Seed = 0,
    max_iterations: int = 2000,
    tolerance: float = 1e-8,
    must_converge: bool = True,
) -> GampRun:
    """Iterate GAMP on a data set.

    The start does not bind the run to a branch: the overlaps say where it has come to.

    Args:
        dataset: the samples.
        start: as for `minimize_risk`.
        damping: in [0, 1): Q, g and A are this fraction of the old and the rest of the new. 0 follows state evolution.
            Default: it adapts, from 0.9.
        response: V at the start, a number or (r, r). Default: from the curvature of the losses at the start.
        settled: minima are followed, and V is held, from when an undamped iteration would change the overlaps by less
            than this (q and V relatively, m and theta as cosines of Q with 1_d and Q*). 0: never.
        seed: for the random numbers of the start.
        max_iterations: after so many it gives up.
        tolerance: it ends where the gradient of the risk (`GampRun.residual`) is at most this.
        must_converge: whether to raise where it does not get there, or to return with ``converged=False``.

    Raises:
        ValueError: names the argument, what it must be and what it got.
        ConvergenceError: it did not converge, or it diverged (lambda + A is no longer positive, or numbers overflow);
            `last` is the GampRun up to the last sound iteration, `residual` its residual.
    """
    risk = EmpiricalRisk(dataset)
    if damping is not None:
        damping = _checks.real("damping", damping, 0, 1)
        if damping == 1:
            raise ValueError("damping must be below 1; got 1")
    settled = _checks.real("settled", settled, 0, 1)
    max_iterations = _checks.integer("max_iterations", max_iterations, 1)
    tolerance = _checks.real("tolerance", tolerance, 0, open_low=True)
    query = starting_query(dataset, start, _checks.generator(seed))
    first = _State(query, np.zeros_like(risk.fields(query)), _first_precision(risk, query, response))
    iteration = _Iteration(risk, first, damping, settled)
    failure = ""
    slope = risk.slope(query)
    for count in range(1, max_iterations + 1):
        try:
            residual = iteration.advance()
        except _DivergedError as error:
            failure = f"diverged: {error}"
            slope = risk.slope(iteration.state.query)
            break
        if residual <= tolerance or count % _EVERY == 0 or count == max_iterations:
            slope = risk.slope(iteration.state.query)
            if slope.relative_norm <= tolerance:
                break
    converged = not failure and slope.relative_norm <= tolerance
    run = GampRun(
        query=iteration.state.query,
        overlaps=iteration.overlaps(),
        train_loss=slope.risk / dataset.dimension,
        converged=converged,
        residual=slope.relative_norm,
        n_iterations=iteration.count,
        settled_at=iteration.settled_at,
        n_higher=_count_higher(risk, iteration.state.query, iteration.settled_response) if converged else None,
    )
    if failure or (must_converge and not converged):
        failure = failure or f"stopped with residual {run.residual:.2g} above tolerance {tolerance:g}"
        kind = "adaptive damping" if damping is None else f"damping {damping:g}"
        message = f"gamp with {kind} {failure} (iteration {run.n_iterations})"
        raise ConvergenceError(message, last=run, residual=run.residual)
    return run


class _Iteration:
    """The iteration from a start, one step after the other.

    Attributes:
        state: where it is.
        count: how many iterations have led there.
        settled_at: the count when the overlaps had settled; None before.
        settled_response: V then; before, V now.
    """

    def __init__(self, risk: EmpiricalRisk, start: _State, damping: float | None, settled: float) -> None:
        self._risk, self._dataset = risk, risk.dataset
        self._rows = risk.dataset.tokens.reshape(-1, risk.dataset.dimension)
        self._strength = risk.dataset.task.regularization * np.eye(start.query.shape[1])
        self._adapts, self._step = damping is None, _FIRST_STEP if damping is None else 1 - damping
        self._settled = settled
        self._proximal: ProximalPoint | None = None
        self._update: Array | None = None  # of Q, by the iteration before
        self._best, self._best_at, self._patience = math.inf, 0, float(_PATIENCE)
        self._changed_at = 0  # the last count when a sample's minimum had vanished and it went to another
        self._overlaps = [self._overlaps_of(start)]
        self.state, self.count = start, 0
        self.settled_at: int | None = None
        self.settled_response = self._response(start.precision)

    def _response(self, precision: Float[Array, "r r"]) -> Float[Array, "r r"]:
        """V."""
        return np.asarray(self._dataset.task.sigma**2 * np.linalg.inv(self._strength + precision))

    def _overlaps_of(self, state: _State) -> tuple[Array, Array, Array, Array]:
        """q, m, V and theta."""
        found = order_parameters(self._dataset.task, state.query, self._dataset.teacher_query)
        q, m, theta = (np.asarray(value) for value in (found.q, found.m, found.theta))
        return q, m, self._response(state.precision).reshape(q.shape), theta

    def overlaps(self) -> GampOverlaps:
        """Those of the start and after each iteration."""
        return GampOverlaps(*(np.stack(values) for values in zip(*self._overlaps, strict=True)))

    def advance(self) -> float:
        """One iteration. Returns how far ``X^T g/sqrt(d) = lambda Q`` is from holding, relative to its two sides."""
        query, g, precision = self.state
        V = self._response(precision)
        fields = self._risk.fields(query) - np.einsum("lan,ab->lbn", g, V)
        held = self.settled_at is not None
        last = self._proximal
        near = _alone(last) if held and last is not None else None
        try:
            self._proximal = proximal_map(fields, self._dataset.sample_loss, V, near)
        except ConvergenceError as error:
            raise _DivergedError(str(error)) from error
        if near is not None and _apart(near.minimizer, self._proximal.minimizer):
            self._changed_at = self.count
        if not held:
            precision = self._damped_precision(precision, self._proximal)
        g = (1 - self._step) * g + self._step * self._proximal.residual
        pull = self._rows.T @ np.moveaxis(g, -1, 0).reshape(len(self._rows), -1) / math.sqrt(len(query))
        shrinkage = query @ self._strength
        update = np.asarray(np.linalg.solve(self._strength + precision, (pull - shrinkage).T).T, dtype=np.float64)
        new = _State(query + self._step * update, g, precision)
        if not np.isfinite(new.query).all():
            raise _DivergedError("Q is not finite")
        residual = float(np.linalg.norm(pull - shrinkage) / (np.linalg.norm(pull) + np.linalg.norm(shrinkage)))
        self.count += 1
        self.state = self._lowered(new, residual) if held else new
        self._overlaps.append(self._overlaps_of(self.state))
        if not held:
            self.settled_response = self._response(precision)
            if self._change() < self._settled * self._step:
                self.settled_at = self._best_at = self.count
        if self._adapts:
            self._adapt(update)
        return residual

    def _damped_precision(self, precision: Float[Array, "r r"], proximal: ProximalPoint) -> Float[Array, "r r"]:
        """A. Where lambda + A would not be positive, a step that adapts is shortened."""
        task, d = self._dataset.task, self._dataset.dimension
        target = -(task.sigma**2) / d * np.einsum("lalbn->ab", proximal.derivative)
        target = (target + target.T) / 2
        while True:
            new = (1 - self._step) * precision + self._step * target
            if np.isfinite(new).all() and np.linalg.eigvalsh(self._strength + new)[0] > 0:
                return np.asarray(new)
            if not self._adapts or self._step <= _SHORTEST_STEP:
                raise _DivergedError("lambda + A is not positive")
            self._step /= 2

    def _adapt(self, update: Float[Array, "d r"]) -> None:
        """A longer step where successive updates point the same way, a shorter one where they turn back."""
        if self._update is not None:
            lengths = np.linalg.norm(update) * np.linalg.norm(self._update)
            cosine = float((update * self._update).sum() / lengths) if lengths else 0.0
            if cosine > 0.2:
                self._step = min(1.1 * self._step, 1.0)
            elif cosine < -0.2:
                self._step = max(0.7 * self._step, _SHORTEST_STEP)
        self._update = update

    def _change(self) -> float:
        """How much the last iteration has changed the overlaps: log tr q and log det V, m and theta as cosines."""
        sigma = self._dataset.task.sigma
        ends = []
        for q, m, V, theta in self._overlaps[-2:]:
            size = np.sqrt(np.trace(np.atleast_2d(q)))  # sigma |Q|/sqrt(d)
            _, volume = np.linalg.slogdet(np.atleast_2d(V))
            ends.append(
                np.concatenate([[2 * np.log(size), volume], sigma * m.ravel() / size, theta.ravel() / (sigma * size)])
            )
        return float(np.abs(ends[1] - ends[0]).max())

    def _lowered(self, state: _State, residual: float) -> _State:
        """The state, with V lowered if samples change their minima and the residual has not halved for long."""
        if residual < self._best / 2:
            self._best, self._best_at = residual, self.count
        elif self.count - self._best_at >= self._patience and self._changed_at > self._best_at:
            self._best, self._best_at, self._patience = residual, self.count, self._patience / _LOWERING
            return state._replace(precision=(self._strength + state.precision) / _LOWERING - self._strength)
        return state


def _alone(proximal: ProximalPoint) -> ProximalPoint:
    """Without rivals: only the minimum where each sample is is then followed."""
    none = np.full_like(proximal.rival_objective, np.inf)
    return replace(proximal, rival=proximal.minimizer, rival_objective=none)


def _apart(before: Float[Array, "L r n"], after: Float[Array, "L r n"]) -> bool:
    """Whether a sample is at another minimum than before."""
    squares = ((after - before) ** 2).sum(axis=(0, 1))
    return bool((squares > _APART**2 * (1 + (before**2).sum(axis=(0, 1)))).any())


def _count_higher(risk: EmpiricalRisk, query: Float[Array, "d r"], V: Float[Array, "r r"]) -> int:
    """How many samples have a minimum of their proximal objective below h*, with ``w = h* - g V``."""
    loss, minimizer = risk.dataset.sample_loss, risk.fields(query)
    value, gradient = loss.value_and_gradient(minimizer)
    away = np.einsum("lan,ab->lbn", gradient, V)  # w - h*
    objective = value + 0.5 * (away * gradient).sum(axis=(0, 1))
    lowest = proximal_map(minimizer + away, loss, V).objective
    return int((lowest < objective - 1e-9 * risk.dataset.task.sigma**2).sum())


def _first_precision(
    risk: EmpiricalRisk, query: Float[Array, "d r"], response: ArrayLike | None
) -> Float[Array, "r r"]:
    """A at the start: what gives the response asked for, or the curvature of the losses along h, as if V were small."""
    dataset = risk.dataset
    task = dataset.task
    variance, rank = task.sigma**2, task.student_rank
    if response is not None:
        V = np.atleast_2d(np.asarray(response, dtype=np.float64))
        V = _checks.array("response", V, (rank, rank))
        if np.abs(V - V.T).max() > 1e-12 * np.abs(V).max() or np.linalg.eigvalsh(V)[0] <= 0:
            raise ValueError(f"response must be symmetric and positive definite; got {_checks.shown(response)}")
        return np.asarray(variance * np.linalg.inv(V) - task.regularization * np.eye(rank))
    hessian = dataset.sample_loss.hessian(risk.fields(query))
    curvature = variance / dataset.dimension * np.einsum("lalbn->ab", hessian)
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    return np.asarray((vectors * np.abs(values)) @ vectors.T)
