"""Generalised approximate message passing for the empirical risk.

Cui, Behrens, Krzakala, Zdeborova, NeurIPS 2024 (arXiv 2402.03902), appendix A, with the tokens of a sample read as L
rows of one (n L, d) matrix X = (x + p). With Q the current student, one iteration is

    w = X Q/sqrt(d) - g V                     local fields, less what g itself has put into Q (the Onsager term)
    g = V^-1 (prox(w; V) - w)                 sample by sample (`proximal_map`)
    A = -(sigma^2/d) sum_mu,l dg_l/dw_l,      V = sigma^2 (lambda + A)^-1
    Q = (X^T g/sqrt(d) + Q A)(lambda + A)^-1.

The per-sample loss uses the sample's own Gram matrices, so a fixed point has ``h* = X Q/sqrt(d)``,
``g = -grad ell(h*)`` and ``lambda Q = X^T g/sqrt(d)``: it is a stationary point of the risk exactly, whatever A and V
are. As d grows, the overlaps follow state evolution, undamped if the iteration is.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from attention_phases import _checks
from attention_phases._blas import one_thread
from attention_phases.errors import ConvergenceError
from attention_phases.positional_semantic.empirical_risk import EmpiricalRisk
from attention_phases.positional_semantic.minimization import Start, starting_query
from attention_phases.positional_semantic.proximal import proximal_map
from attention_phases.positional_semantic.teacher_student import Dataset, Seed

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GampOverlaps:
    """Order parameters, one entry an iteration; the first entry is the start.

    Attributes:
        q, m, V, theta: (T,) where r = t = 1, else (T, r, r), (T, r), (T, r, r), (T, r, t).
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
    """

    query: Float[Array, "d r"]
    overlaps: GampOverlaps
    train_loss: float
    converged: bool
    residual: float
    n_iterations: int


class _State(NamedTuple):
    query: Float[Array, "d r"]
    residual: Float[Array, "L r n"]  # g
    precision: Float[Array, "r r"]  # A


@one_thread
def gamp(
    dataset: Dataset,
    start: Start | ArrayLike = "semantic",
    damping: float = 0.5,
    *,
    response: float | Float[ArrayLike, "r r"] | None = None,
    seed: Seed = 0,
    max_iterations: int = 1000,
    tolerance: float = 1e-8,
    must_converge: bool = True,
) -> GampRun:
    """Iterate GAMP on a data set.

    Args:
        dataset: the samples.
        start: as for `minimize_risk`.
        damping: in [0, 1): Q, g and A are this fraction of the old and the rest of the new. 0 follows state evolution;
            the semantic branch converges at 0.5, the positional one needs about 0.8.
        response: V at the start. Default: from the curvature of the losses at the start.
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
    damping = _checks.real("damping", damping, 0, 1)
    if damping == 1:
        raise ValueError("damping must be below 1; got 1")
    max_iterations = _checks.integer("max_iterations", max_iterations, 1)
    tolerance = _checks.real("tolerance", tolerance, 0, open_low=True)
    query = starting_query(dataset, start, _checks.generator(seed))
    rows = dataset.tokens.reshape(-1, dataset.dimension)
    task, root = dataset.task, math.sqrt(dataset.dimension)
    variance, strength = task.sigma**2, task.regularization * np.eye(task.student_rank)
    state = _State(query, np.zeros_like(risk.fields(query)), _first_precision(risk, query, response))
    history = [state]
    failure = ""
    slope = risk.slope(query)
    for _ in range(max_iterations):
        D = strength + state.precision
        if not np.isfinite(D).all() or np.linalg.eigvalsh(D)[0] <= 0:
            failure = "diverged: lambda + A is not positive"
            break
        V = variance * np.linalg.inv(D)
        onsager = np.einsum("lan,ab->lbn", state.residual, V)
        proximal = proximal_map(risk.fields(state.query) - onsager, dataset.sample_loss, V)
        g = damping * state.residual + (1 - damping) * proximal.residual
        precision = -variance / dataset.dimension * np.einsum("lalbn->ab", proximal.derivative)
        precision = damping * state.precision + (1 - damping) * (precision + precision.T) / 2
        flat = np.moveaxis(g, -1, 0).reshape(len(rows), -1)
        target = np.linalg.solve(strength + precision, (rows.T @ flat / root + state.query @ precision).T).T
        query = damping * state.query + (1 - damping) * target
        if not np.isfinite(query).all():
            failure = "diverged: Q is not finite"
            break
        state = _State(query, g, precision)
        history.append(state)
        slope = risk.slope(query)
        if slope.relative_norm <= tolerance:
            break
    last = history[-1]
    run = GampRun(
        query=last.query,
        overlaps=_overlaps(dataset, history),
        train_loss=slope.risk / dataset.dimension,
        converged=slope.relative_norm <= tolerance,
        residual=slope.relative_norm,
        n_iterations=len(history) - 1,
    )
    if failure or (must_converge and not run.converged):
        failure = failure or f"stopped with residual {run.residual:.2g} above tolerance {tolerance:g}"
        raise ConvergenceError(
            f"gamp with damping {damping:g} {failure} (iteration {run.n_iterations})",
            last=replace(run, converged=False),
            residual=run.residual,
        )
    return run


def _first_precision(
    risk: EmpiricalRisk, query: Float[Array, "d r"], response: float | Float[ArrayLike, "r r"] | None
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


def _overlaps(dataset: Dataset, history: list[_State]) -> GampOverlaps:
    task, d = dataset.task, dataset.dimension
    variance = task.sigma**2
    queries = np.stack([state.query for state in history])  # (T, d, r)
    q = variance / d * np.einsum("tda,tdb->tab", queries, queries)
    m = queries.mean(axis=1)
    theta = variance / d * np.einsum("tda,db->tab", queries, dataset.teacher_query)
    precisions = np.stack([state.precision for state in history])
    D = task.regularization * np.eye(task.student_rank) + precisions
    V = np.asarray(variance * np.linalg.inv(D), dtype=np.float64)
    if task.student_rank == task.teacher_rank == 1:
        q, m, V, theta = q[:, 0, 0], m[:, 0], V[:, 0, 0], theta[:, 0, 0]
    return GampOverlaps(q, m, V, theta)
